"""A world: hermetic, the same each time, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.clock import CLOCK_START, FrozenClock
from pytest_gittrix.clock.propagation import CLOCK_VARIABLE
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.errors import BaselineConflict, InvalidInput, SessionExpired, UnsupportedRepository, WriteRejected
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.repos.history import SMALL_PROJECT, Executable, Step
from pytest_gittrix.testing.repos.templates import Templates
from pytest_gittrix.testing.world import World

FILES = {"app.py": "one\n", "run.sh": Executable("#!/bin/sh\n")}


def test_a_world_holds_a_small_project_unless_told_otherwise(tmp_path: Path) -> None:
    with World.open(tmp_path) as world:
        assert set(world.durable.tree()) == set(SMALL_PROJECT)
        assert world.durable.git("status", "--porcelain") == ""
        assert world.clock.now() == CLOCK_START
        assert world.gittrix.list_sessions() == []
        assert world.sessions == []


def test_environments_that_programs_make_are_not_promoted_and_committed_files_there_are_as_any_other(tmp_path: Path) -> None:
    made = ("venv.create('.venv')", "os.makedirs('node_modules/p')", "open('node_modules/p/1.js', 'w').close()", "open('new', 'w').close()")
    with World.open(tmp_path) as world:
        world.durable.commit({"node_modules/own.js": "own\n"})
        session = world.start("Install")
        subprocess.run([sys.executable, "-c", f"import os, venv; {'; '.join(made)}"], cwd=session.workspace_path, check=True)
        assert session.touched_files() == ["new"]
        subprocess.run("echo changed > node_modules/own.js", shell=True, cwd=session.workspace_path, check=True)

        promoted = world.durable.tree(session.promote().sha)

        assert promoted.keys() == {*SMALL_PROJECT, "new", "node_modules/own.js"}
        assert world.durable.read("node_modules/own.js") == b"changed\n"


def test_what_the_agent_wrote_is_what_is_promoted(world: World) -> None:
    session = world.start("Fix the bug")
    session.write("app.py", "two\n")

    result = session.promote()

    assert result.sha == world.durable.head()
    assert world.durable.read("app.py") == b"two\n"
    assert (world.durable.path / "app.py").read_text() == "two\n"
    assert world.durable.log()[0].committer.when == CLOCK_START
    assert world.sessions == [session]


def test_a_rival_gets_in_the_way(world: World) -> None:
    session = world.start()
    session.write("app.py", "two\n")
    theirs = world.rival.commit({"app.py": "theirs\n"})

    with world.durable.unchanged(objects=True), pytest.raises(BaselineConflict) as conflict:
        session.promote()

    assert conflict.value.conflicting_files == ["app.py"]
    assert conflict.value.durable_sha == theirs


def test_the_clock_runs_the_sweep(tmp_path: Path) -> None:
    with World.open(tmp_path, files=FILES, eviction=EvictionPolicy(ttl_idle="1h"), sweep_interval=timedelta(minutes=5)) as world:
        session = world.start()

        world.clock.advance(hours=1)
        assert [record.state for record in world.gittrix.list_sessions()] == ["active"]
        world.clock.advance(minutes=5)

        assert [record.state for record in world.gittrix.list_sessions()] == ["expired"]
        with pytest.raises(SessionExpired):
            session.read("app.py")


def test_equal_worlds_have_equal_commits_and_sessions(tmp_path: Path) -> None:
    seen = []
    for name in ("one", "other"):
        with World.open(tmp_path / name, files=FILES, templates=Templates(tmp_path / f"templates-{name}")) as world:
            world.clock.advance(minutes=1)
            theirs = world.rival.commit({"new": "n\n"})
            session = world.start("Fix it")
            session.write("app.py", "two\n")
            seen.append((theirs, session.id, session.promote().sha, world.start().id))

    assert seen[0] == seen[1]
    assert seen[0][1] != seen[0][3]


def test_another_process_has_the_same_ids(tmp_path: Path) -> None:
    program = """
import sys
from pytest_gittrix.testing.world import World
from pytest_gittrix.engine.operations.ids import seeded_ids
with World.open(sys.argv[1], files={"app.py": "one\\n"}) as world:
    print(world.start("Fix it").id, world.durable.head())
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "there"], capture_output=True, text=True, check=True, timeout=60)

    with World.open(tmp_path / "here", files={"app.py": "one\n"}) as world:
        assert done.stdout.split() == [world.start("Fix it").id, world.durable.head()]


def test_session_ids_depend_on_the_seed_alone_and_never_repeat() -> None:
    first = list(islice(iter(seeded_ids(0), None), 1000))

    assert first == list(islice(iter(seeded_ids(0), None), 1000))
    assert len(set(first)) == 1000
    assert set(first).isdisjoint(islice(iter(seeded_ids(1), None), 1000))
    assert all(len(id_) == len("sess_") + 12 and id_.removeprefix("sess_").isalnum() for id_ in first)


def test_a_history_ends_before_the_clock_starts(tmp_path: Path) -> None:
    start = datetime(2040, 5, 6, tzinfo=UTC)
    history = [Step({"a": "1"}, "One", ("Ada", "ada@example.com")), Step({"a": "2"}, "Two", ("Bob", "bob@example.com"))]

    with World.open(tmp_path, history=history, clock_start=start, branch="trunk") as world:
        assert [(commit.author.name, start - commit.author.when) for commit in world.durable.log()] == [
            ("Bob", timedelta(minutes=1)),
            ("Ada", timedelta(minutes=2)),
        ]
        assert world.durable.git("branch", "--show-current") == "trunk"
        assert world.start().info().durable_branch == "trunk"


def test_a_bare_durable_can_be_promoted_to(tmp_path: Path) -> None:
    with World.open(tmp_path, files=FILES, bare=True) as world:
        session = world.start()
        session.write("app.py", "two\n")
        session.promote()

        assert world.durable.read("app.py") == b"two\n"
        assert not (world.durable.path / "app.py").exists()


@pytest.mark.parametrize("kind", ["clone", "lazy", "copy", "worktree"])
def test_each_kind_of_workspace(kind: str, tmp_path: Path) -> None:
    with World.open(tmp_path, files=FILES, workspace=kind) as world:  # type: ignore[arg-type]
        session = world.start()
        session.write("app.py", "two\n")

        assert session.info().workspace_kind == kind
        assert session.touched_files() == ["app.py"]


def test_all_there_is_to_say_about_workspaces_can_be_said(tmp_path: Path) -> None:
    with World.open(tmp_path, history=[{"a": "1"}, {"a": "2"}], workspace=LocalEphemeral(history="full")) as world:
        path = world.start().workspace_path
        assert path is not None

        count = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=path, env=dict(world.env), capture_output=True, check=True)
        assert count.stdout == b"2\n"


def test_a_sha256_world_works(tmp_path: Path) -> None:
    with World.open(tmp_path, files=FILES, object_format="sha256") as world:
        session = world.start()
        session.write("app.py", "two\n")

        assert len(session.promote().sha) == 64
        assert world.durable.read("app.py") == b"two\n"


# The directory -----------------------------------------------------------------------------------------------------------------


def test_a_temporary_world_goes_when_it_is_closed() -> None:
    with World.open(files=FILES) as world:
        world.start().write("new", "x")
        assert world.path.is_dir()

    assert not world.path.exists()
    assert [name for name in os.listdir(world.path.parent) if name.startswith(world.path.name)] == []


def test_a_given_directory_stays_and_a_temporary_one_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    for options in ({"path": tmp_path / "given"}, {"keep": True}):
        with World.open(files=FILES, **options) as world:  # type: ignore[arg-type]
            head = world.durable.head()
        assert world.durable.head() == head
        assert world.path.is_relative_to(tmp_path)

    with World.open(tmp_path / "not kept", files=FILES, keep=False) as world:
        assert world.path.exists()
    assert not world.path.exists()


def test_an_agent_that_takes_its_own_permissions_away_does_not_keep_the_world() -> None:
    with World.open(files={"d/x": "1\n"}) as world:
        workspace = world.start().workspace_path
        assert workspace is not None
        (workspace / "d").chmod(0)

    assert not world.path.exists()


def test_closing_twice_does_nothing_more(world: World) -> None:
    world.close()
    world.close()

    assert world.path.exists()


def test_closing_ends_the_timers_of_the_worlds_own_clock_only(tmp_path: Path) -> None:
    fired: list[datetime] = []
    mine = FrozenClock(CLOCK_START + timedelta(days=1), separate_files=False)
    mine.every(timedelta(hours=1), lambda: fired.append(mine.now()))

    with World.open(tmp_path, files=FILES, clock=mine) as world:
        assert world.clock is mine
        assert world.durable.log()[0].committer.when == mine.now() - timedelta(minutes=1)

    mine.advance(hours=1)
    assert len(fired) == 1


def test_a_world_can_work_on_another_repository(world: World, tmp_path: Path) -> None:
    first, own = world.gittrix, world.durable
    with World.open(tmp_path / "other", files={"theirs.txt": "1\n"}, branch="trunk") as other:
        world.work_on(other.durable)
        session = world.start()
        session.write("new.txt", "x")
        world.rival.commit({"rival.txt": "y"})
        session.promote()

        assert world.durable is other.durable
        assert sorted(other.durable.tree()) == ["new.txt", "rival.txt", "theirs.txt"]
        assert len(own.log()) == 1
        assert world.gittrix is not first
        assert world.gittrix.home == first.home
        idle = world.start()
        world.clock.advance(hours=5)
        assert (first.swept(), world.gittrix.swept()) == ([], [idle.id])  # the first one's timer is gone
        world.close()
        assert other.durable.head()


def test_two_worlds_do_not_share_a_directory(tmp_path: Path) -> None:
    with World.open(tmp_path, files=FILES) as world:
        with pytest.raises(InvalidInput, match="holds a durable repository already"):
            World.open(tmp_path, files=FILES)

        assert world.durable.read("app.py") == b"one\n"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"workspace": "vm"}, InvalidInput),
        ({"branch": "a b"}, InvalidInput),
        ({"object_format": "md5"}, UnsupportedRepository),
        ({"files": {}, "history": [{}]}, InvalidInput),
        ({"files": {"../x": ""}}, WriteRejected),
        ({"clock_start": datetime(2030, 1, 1)}, InvalidInput),
        ({"strategy": "hope"}, InvalidInput),
    ],
)
def test_a_wrong_argument_leaves_no_directory_behind(
    options: dict[str, object], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with pytest.raises(error):
        World.open(templates=Templates(tmp_path / "templates"), **options)  # type: ignore[arg-type]

    assert [name for name in os.listdir(tmp_path) if name != "templates"] == []


# The environment ---------------------------------------------------------------------------------------------------------------


def test_programs_of_the_world_see_its_clock_and_nothing_of_the_users(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    world.clock.advance(days=1)
    env = world.env

    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "By hand"], cwd=world.durable.path, env=dict(env), check=True)

    assert world.durable.log()[0].committer.when == CLOCK_START + timedelta(days=1)
    assert env["HOME"] == str(world.path / "home")
    assert env["GITTRIX_HOME"] == str(world.path / "gittrix")
    assert Path(env[CLOCK_VARIABLE]).read_text() == "2030-01-02T00:00:00.000000Z\n"
    with pytest.raises(TypeError):
        env["HOME"] = "elsewhere"  # type: ignore[index]


def test_the_environment_is_of_now(world: World) -> None:
    before = world.env["GIT_COMMITTER_DATE"]

    world.clock.advance(seconds=90)

    assert (before, world.env["GIT_COMMITTER_DATE"]) == ("1893456000 +0000", "1893456090 +0000")
    assert Path(world.env[CLOCK_VARIABLE]).read_text() == "2030-01-01T00:01:30.000000Z\n"


def test_the_engines_home_is_the_worlds_own(world: World) -> None:
    session = world.start()

    assert session.workspace_path is not None
    assert session.workspace_path.is_relative_to(world.path / "gittrix" / "sessions")
    assert world.gittrix.home == world.path / "gittrix"


def test_sessions_can_be_kept_elsewhere(tmp_path: Path) -> None:
    with World.open(tmp_path / "one", files=FILES, store=tmp_path / "sessions") as world:
        id_ = world.start().id

    with World.open(tmp_path / "two", files=FILES, store=tmp_path / "sessions") as other:
        assert [record.id for record in other.gittrix.list_sessions()] == [id_]
        assert other.start().id != id_


def test_worlds_with_one_history_prepare_it_once(tmp_path: Path) -> None:
    templates = Templates(tmp_path / "templates")
    for name in ("one", "two"):
        with World.open(tmp_path / name, files=FILES, templates=templates) as world:
            world.start()

    assert len(os.listdir(tmp_path / "templates" / "seeds")) == 1
    assert not (world.path / "gittrix" / "seeds").exists() or os.listdir(world.path / "gittrix" / "seeds") == []
