"""What a session touched, as its record has it: by programs as well as through the session."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, in_child, open_site, shell

from pytest_gittrix import EvictionPolicy, UserSession, points


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, {"app.py": "v1\n", "old.py": "v1\n"}) as opened:
        yield opened


def recorded(site: Site, session: UserSession | str) -> Any:
    """The list in the file, which the state of the log agrees with."""
    found = json.loads((site.directory(session) / "metadata.json").read_text())["touchedFiles"]
    assert found == site.state(session if isinstance(session, str) else session.id).touched
    return found


LOOKS: dict[str, Callable[[UserSession], object]] = {
    "touched_files": UserSession.touched_files,
    "diff": UserSession.diff,
    "review": UserSession.review,
    "info": UserSession.info,
    "commit": lambda session: session.commit("half"),
    "checkpoint": UserSession.checkpoint,
    "a turn": lambda session: session.start_turn(print).wait(60),
    "of the agent": lambda session: session.for_agent().diff(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_records_what_programs_did(site: Site, look: str) -> None:
    session = site.start()
    shell(session, "echo v2 > app.py; echo new > new.py; rm old.py")

    LOOKS[look](session)

    assert recorded(site, session) == ["app.py", "new.py", "old.py"]
    (seen,) = [event for event in site.events(session.id) if event.type == "touched.seen"]
    assert seen.data == {"added": [{"path": path} for path in ("app.py", "new.py", "old.py")], "gone": []}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_that_finds_nothing_new_records_nothing(site: Site, look: str) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    LOOKS[look](session)
    shell(session, "echo v3 > app.py")
    LOOKS[look](session)
    assert "touched.seen" not in site.types(session.id)


def test_what_is_as_in_the_baseline_again_is_not_touched(site: Site) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    shell(session, "echo new > new.py")
    assert session.touched_files() == recorded(site, session) == ["app.py", "new.py"]
    session.write("app.py", "v1\n")
    shell(session, "rm new.py")
    assert session.touched_files() == recorded(site, session) == []
    session.write("app.py", "v3\n")
    assert site.state(session.id).touched == ["app.py"]


def test_a_name_that_is_not_utf8_is_recorded(site: Site) -> None:
    session = site.start()
    assert session.workspace_path is not None
    (session.workspace_path / "caf\udce9").write_text("x")
    session.diff()
    assert site.state(session.id).touched == ["caf\udce9"]
    assert recorded(site, session) == ["caf\udce9"]


def test_who_only_looks_from_outside_records_nothing(site: Site) -> None:
    session = site.start()
    shell(session, "echo v2 > app.py")
    assert site.engine.info(session.id).touched_files == ("app.py",)
    assert site.types(session.id)[-1] == "workspace.ready"


def test_a_promotion_records_it_before_its_intent(site: Site) -> None:
    session = site.start()
    shell(session, "echo v2 > app.py; echo later > later.txt")
    session.promote(files=["app.py"])
    types = site.types(session.id)
    assert types.index("touched.seen") == types.index("promote.intent") - 1
    assert recorded(site, session) == ["app.py", "later.txt"]
    assert site.engine.info(session.id).touched_files == ("app.py", "later.txt")
    assert site.engine.list_sessions()[0].touched_files == ["app.py", "later.txt"]


def test_a_promotion_that_keeps_the_session_leaves_what_was_not_promoted(site: Site) -> None:
    session = site.start()
    shell(session, "echo v2 > app.py; echo later > later.txt")
    session.promote(files=["app.py"], keep=True)
    assert session.touched_files() == recorded(site, session) == ["later.txt"]


@pytest.mark.parametrize("until_promote", [True, False])
def test_what_is_written_after_a_promotion_is_recorded_with_the_workspace_s_removal(site: Site, until_promote: bool) -> None:
    session = site.start(eviction=EvictionPolicy(until_promote=until_promote))
    shell(session, "echo v2 > app.py")
    session.promote()
    if not until_promote:
        (site.directory(session) / "workspace/late.txt").write_text("late\n")
        site.engine.evict(session.id)
    assert recorded(site, session) == (["app.py"] if until_promote else ["app.py", "late.txt"])


ENDS: dict[str, Callable[[Site, UserSession], object]] = {
    "discard": lambda _site, session: session.discard(),
    "evict": lambda site, session: site.engine.evict(session.id),
    "sweep": lambda site, _session: (site.clock.advance(hours=5), site.engine.sweep()),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_records_it(site: Site, end: str) -> None:
    session = site.start()
    shell(session, "echo v2 > app.py; rm old.py")
    if end == "sweep":
        os.utime(session.workspace_path or "")
    ENDS[end](site, session)
    assert recorded(site, session) == ["app.py", "old.py"]
    assert site.engine.info(session.id).touched_files == ("app.py", "old.py")


def test_an_end_that_was_killed_is_finished_with_it(site: Site) -> None:
    session = site.start()
    shell(session, "echo v2 > app.py")

    def killed() -> None:
        with points.listening(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == "evict:apart" else None):
            site.engine.evict(session.id)

    in_child(killed)
    with site.another() as engine:
        assert engine.info(session.id).state == "expired"
    assert recorded(site, session) == ["app.py"]


def test_a_handoff_takes_it_along(site: Site) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    shell(session, "echo new > new.py")
    session.touched_files()
    child = session.handoff()
    assert recorded(site, session) == recorded(site, child) == ["app.py", "new.py"]
    assert child.touched_files() == ["app.py", "new.py"]
    assert site.types(child.id).count("touched.seen") == 1
