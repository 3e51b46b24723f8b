"""What a session reported as done is there when it is opened again, whatever the disk refused meanwhile, and at whichever call.

A normal run plays faults at a sample of the calls, ``PYTEST_GITTRIX_SOAK=1`` at every one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from support.fault_sweep import Operation, sweep_operation
from support.scene import FIRST, SOAK, Scene, one_session

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.testing.faults.supervisor import supported

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))

REFUSALS: Final = ("ENOSPC", "EIO", "EMFILE", "EACCES")


def archived(session: UserSession) -> str:
    archive = session.archive()
    assert archive is not None
    return archive.commit


STEPS: Final[Mapping[str, Callable[[UserSession], object]]] = {
    "write": lambda session: session.write("said.txt", "it is written\n"),
    "commit": lambda session: session.commit("first"),
    "attach": lambda session: session.attach(b"a picture"),
    "delete": lambda session: session.delete("README.md"),
    "checkpoint": lambda session: session.checkpoint(),
    "record": lambda session: session.record("user_message", {"text": "look"}).seq,
    "commit again": lambda session: session.commit("second"),
    "identify": lambda session: session.identify(agent="Fig"),
    "archive": archived,
}


def report(scene: Scene, *names: str) -> None:
    """Go through some steps, and print what each reported; one that is refused is passed over."""
    with scene.engine(init=False) as engine:
        session = engine.get_session(FIRST)
        for name in names or STEPS:
            try:
                answer = STEPS[name](session)
            except GittrixError:
                continue
            print(json.dumps([name, answer]))


def judge(scene: Scene, printed: list[str]) -> str:
    reported = dict(json.loads(line) for line in printed)
    with scene.engine() as engine:
        session = engine.get_session(FIRST)
        commits = {reported[name] for name in ("commit", "commit again") if name in reported}
        assert commits <= {entry.sha for entry in session.log()}
        assert "write" not in reported or session.read("said.txt") == b"it is written\n"
        assert "attach" not in reported or session.attached(reported["attach"]) == b"a picture"
        assert "delete" not in reported or not session.exists("README.md")
        assert "record" not in reported or session.history()[reported["record"]].data == {"text": "look"}
        assert "identify" not in reported or engine.query(agent="Fig")
        if "checkpoint" in reported:
            (kept,) = [event for event in session.history(["workspace.kept"]) if event.data["tree"] == reported["checkpoint"]]
            assert session.fork(kept.seq).touched_files()
        if "archive" in reported:
            archive = engine.store.directory(FIRST) / "archive.git"
            scene.git("--git-dir", str(archive), "fsck", "--strict", "--full")
            assert scene.git("--git-dir", str(archive), "rev-parse", f"refs/gittrix/archive/{FIRST}") == reported["archive"]
            scene.git("apply", "--check", str(archive.with_name("archive.patch")))
    return f"{len(reported)} reported"


EVERYTHING: Final = Operation(one_session, report, judge, 19)
COMMITS: Final = Operation(one_session, lambda scene: report(scene, "commit", "commit again"), judge, 2)


@pytest.mark.parametrize("kind", REFUSALS if SOAK else ("EIO", "EMFILE"))
def test_whatever_was_reported_is_there(place: Path, kind: str) -> None:
    assert sweep_operation(EVERYTHING, place, kinds=(kind,), points=EVERYTHING.some(), label="everything")


@pytest.mark.parametrize("kind", (*REFUSALS, "sticky ENOSPC") if SOAK else ("ENOSPC", "EACCES"))
def test_a_commit_that_was_reported_is_in_the_log(place: Path, kind: str) -> None:
    found = sweep_operation(COMMITS, place, kinds=(kind,), points=COMMITS.some(), label="commits")
    assert found["2 reported"] < found.total(), "no refusal was reported"
