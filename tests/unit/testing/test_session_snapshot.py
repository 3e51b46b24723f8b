"""The plain values of a session that snapshots are made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import coding_agent

from pytest_gittrix.errors import BaselineConflict
from pytest_gittrix.model.answers.script import call, stop
from pytest_gittrix.testing.session_snapshot import to_snapshot
from pytest_gittrix.testing.world import World

FILES = {"app.py": "v1\n", "gone": "x\n", "tool": "t\n"}


@pytest.fixture
def world() -> Iterator[World]:
    with World.open(files=FILES) as world:
        yield world


def edit(workspace: Path | None) -> None:
    """One change of each kind."""
    assert workspace is not None
    (workspace / "app.py").write_text("v2\n")
    (workspace / "gone").unlink()
    (workspace / "tool").chmod(0o755)
    (workspace / "link").symlink_to("app.py")
    (workspace / "raw").write_bytes(b"\0a")


def test_a_session_is_its_changes_by_path(world: World) -> None:
    session = world.start()
    edit(session.workspace_path)

    assert to_snapshot(session.for_agent()) == {
        "state": "active",
        "changes": {
            "app.py": {"change": "changed", "kind": "file", "mode": "100644", "diff": "@@ -1 +1 @@\n-v1\n+v2\n"},
            "gone": {"change": "deleted", "kind": "file", "mode": "100644", "diff": "@@ -1 +0,0 @@\n-x\n"},
            "link": {
                "change": "added",
                "kind": "symlink",
                "mode": "120000",
                "diff": "@@ -0,0 +1 @@\n+app.py\n\\ No newline at end of file\n",
            },
            "raw": {"change": "added", "kind": "file", "mode": "100644", "bytes": "2 (daa8f618e069)"},
            "tool": {"change": "changed", "kind": "file -> executable", "mode": "100644 -> 100755"},
        },
    }


def test_a_promotion_has_the_changes_that_landed_and_an_ended_session_no_others(world: World) -> None:
    session = world.start()
    edit(session.workspace_path)
    before = to_snapshot(session)
    session.promote()

    landed = {"outcome": "done", "branch": "main", "strategy": "commit", "changes": before["changes"]}
    assert to_snapshot(session) == {"state": "promoted", "promotions": [landed]}


def test_a_session_that_goes_on_has_what_it_changed_since_its_promotion(world: World) -> None:
    session = world.start()
    session.write("app.py", "v2\n")
    session.promote(keep=True)
    session.write("app.py", "v3\n")
    snapshot = to_snapshot(session)

    assert snapshot["changes"]["app.py"]["diff"] == "@@ -1 +1 @@\n-v2\n+v3\n"
    assert [(one["outcome"], one["changes"]["app.py"]["diff"]) for one in snapshot["promotions"]] == [("kept", "@@ -1 +1 @@\n-v1\n+v2\n")]


def test_a_conflict_is_one_of_the_promotions(world: World) -> None:
    session = world.start()
    session.write("app.py", "v2\n")
    world.rival.commit({"app.py": "v0\n"})
    with pytest.raises(BaselineConflict):
        session.promote()

    assert to_snapshot(session)["promotions"] == [{"outcome": "conflict", "paths": 1}]


def test_exchanges_with_a_model_and_commits_are_told(world: World) -> None:
    world.model.script(call("bash", command="rm app.py"), stop("Done."))
    session = world.start()
    environment = {**os.environ, **world.model.env(session.id)}
    subprocess.run([sys.executable, coding_agent.__file__], cwd=session.workspace_path, env=environment, capture_output=True, check=True)
    session.for_agent().commit("Remove it")

    snapshot = to_snapshot(session)
    assert (snapshot["commits"], snapshot["exchanges"]) == (["Remove it"], ["bash", "answered"])
    assert snapshot["changes"]["app.py"]["change"] == "deleted"


def test_programs_of_the_agent_are_told_to_both(world: World) -> None:
    session = world.start()
    agent = session.for_agent()
    agent.run([sys.executable, "-c", "raise SystemExit(3)"], timeout=60)
    agent.run(["sh", "-c", "kill -9 $$"], timeout=60)

    programs = [{"command": "{python} -c 'raise SystemExit(3)'", "code": 3}, {"command": "sh -c 'kill -9 $$'", "signal": 9}]
    assert to_snapshot(agent)["programs"] == to_snapshot(session)["programs"] == programs


def test_it_is_the_same_wherever_the_world_is(tmp_path: Path) -> None:
    found = []
    for name in ("here", "a longer directory there"):
        with World.open(tmp_path / name, files=FILES) as world:
            session = world.start()
            edit(session.workspace_path)
            session.write("where.txt", f"{session.workspace_path} {world.durable.path} {sys.executable}\n")
            session.for_agent().commit(f"In {session.workspace_path}")
            before = to_snapshot(session)
            session.promote(message="All of it")
            found.append(json.dumps([before, to_snapshot(session)]))

    assert found[0] == found[1]
    assert "{workspace} {durable} {python}" in found[0]
    assert str(tmp_path) not in found[0]


def test_a_name_that_is_not_utf_8_is_escaped(world: World) -> None:
    session = world.start()
    assert session.workspace_path is not None
    (Path(os.fsdecode(os.fsencode(session.workspace_path) + b"/\xff"))).write_text("x\n")

    assert [*to_snapshot(session)["changes"]] == ["\\xff"]


def test_reading_it_is_no_use_of_the_session(world: World) -> None:
    session = world.start()
    before = world.gittrix.info(session.id).last_access_at
    world.clock.advance(hours=1)
    to_snapshot(session)

    assert world.gittrix.info(session.id).last_access_at == before


def test_any_other_value_is_left_as_it_is() -> None:
    value = {"a": object()}
    assert to_snapshot(value, path=(("a", dict),)) is value
