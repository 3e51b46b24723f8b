"""Nothing an agent plants in its workspace runs in the engine, and nothing it plants leads the engine to durable (rule 6)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from support.bytes import changed, everything_below
from support.hostile import VECTORS, Trap
from support.scene import SOAK, TTL, Scene, person, scratch

from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError, InvalidInput, PathCollision, WriteRejected


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scratch() as directory:
        yield Scene(directory)


WORKING: Final[Mapping[str, Callable[[UserSession], object]]] = {
    "info": lambda session: session.info(),
    "list": lambda session: session.list(),
    "read": lambda session: session.read("app.py"),
    "exists": lambda session: session.exists(".gitignore"),
    "write": lambda session: session.write("app.py", "by the agent\n"),
    "delete": lambda session: session.delete("README.md"),
    "touched": lambda session: session.touched_files(),
    "diff": lambda session: session.diff(),
    "review": lambda session: session.review(["app.py"]),
    "commit": lambda session: session.commit("work"),
    "write and commit": lambda session: session.write_and_commit({"run.sh": "echo\n"}, "more"),
    "log": lambda session: session.log(),
    "agent": lambda session: session.for_agent().touched_files(),
    "archive": lambda session: session.archive(),
    "moved references": lambda session: session.moved_refs(),
}

ENDING: Final[Mapping[str, Callable[[GitTrix, UserSession], object]]] = {
    "promote": lambda _engine, session: session.promote(files=["app.py", "README.md"]),
    "promote a review": lambda _engine, session: session.promote(session.review(["app.py"])),
    "promote to a branch": lambda _engine, session: session.promote(files=["app.py"], strategy="branch"),
    "discard": lambda _engine, session: session.discard(),
    "sweep": lambda engine, session: engine.sweep(),
}


def test_the_trap_works_on_git_itself(scene: Scene) -> None:
    with scene.engine() as engine:
        workspace = Path(str(engine.start_session("x").workspace_path))
        trap = Trap.set_in(workspace, scene.root, scene.git_dir)
        VECTORS["core.fsmonitor"](trap)
        subprocess.run(["git", "status"], cwd=workspace, env=person(scene.root), capture_output=True, check=False)
        assert trap.mark.exists()


@pytest.mark.parametrize("vector", VECTORS)
def test_nothing_that_is_planted_runs_or_leads_out(scene: Scene, vector: str) -> None:
    tried = refused = 0
    turn = 1 + [*VECTORS].index(vector) % (len(ENDING) - 1)
    for ending, end in [*ENDING.items()] if SOAK else [[*ENDING.items()][which] for which in (0, turn)]:
        with scene.engine() as engine:
            session = engine.start_session("a task")
            trap = Trap.set_in(Path(str(session.workspace_path)), scene.root, scene.git_dir)
            VECTORS[vector](trap)
            durable = everything_below(scene.durable)
            for work in WORKING.values():
                tried += 1
                try:
                    work(session)
                except GittrixError:
                    refused += 1
            assert changed(durable, everything_below(scene.durable)) == set()
            if ending == "sweep":
                scene.clock.advance(2 * TTL)
            head = scene.git("rev-parse", "main")
            end(engine, session)
            engine.recover()
            tried += 2
            assert not (engine.store.directory(session.id) / "workspace").exists()
            touched = scene.git("diff", "--name-only", "--no-renames", head, "main").splitlines()
            assert touched == {"promote": ["README.md", "app.py"], "promote a review": ["app.py"]}.get(ending, [])
            assert not trap.mark.exists(), trap.mark.read_text()
        scene.judge_repository()
        scene.git("reset", "-q", "--hard", scene.baseline)
    print(f"{vector}: {tried} operations, {refused} refused, none ran anything")
    assert refused <= tried // 3


# Names of files that a program in the workspace makes. True: a file like any other, for git and for the engine.
NAMES: Final[Mapping[bytes, bool]] = {
    b"-rf": True,
    b"--output=x": True,
    b"a\nb": True,
    b'quo"te': True,
    b"tab\there": True,
    b" leading and trailing ": True,
    b"$(touch mark)": True,
    b"`touch mark`": True,
    b"*": True,
    b":(top)app.py": True,
    b"\xff\xfe": True,
    "café".encode(): True,
    b"HEAD": True,
    b"refs/heads/main": True,
    b"x/.gitignore": True,
    b".gitx/config": True,
    b"x.keep": True,
    b"a" * 255: True,
    b".GIT/config": False,
    b".Git/hooks/pre-commit": False,
    b"git~1/config": False,
    b"GIT~1": False,
    ".g\u200cit/config".encode(): False,
    ".git\ufe0f/config".encode(): True,  # no file system drops a variation selector
    b".git./config": False,
    b".git /config": False,
    b".git::$INDEX_ALLOCATION/config": False,
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:30])[2:-1])
def test_a_hostile_name_is_promoted_as_it_is_or_refused(scene: Scene, name: bytes) -> None:
    with scene.engine() as engine:
        session = engine.start_session("names")
        path = os.path.join(os.fsencode(str(session.workspace_path)), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(os.fsdecode(path)).write_bytes(b"hostile\n")
        session.write("app.py", "x\n")
        session.diff()
        if NAMES[name]:
            assert os.fsdecode(name) in session.touched_files()
            session.promote()
            listed = scene.git("ls-tree", "-r", "-z", "--name-only", "main").split("\0")
            assert os.fsdecode(name) in listed
        else:
            before = everything_below(scene.durable)
            with pytest.raises(WriteRejected):
                session.promote()
            assert changed(before, everything_below(scene.durable)) == set()
            session.promote(files=["app.py"])
        scene.git("-c", "core.protectHFS=true", "-c", "core.protectNTFS=true", "read-tree", "--dry-run", "main")
    if name != b"x/.gitignore":
        scene.judge_repository()


def test_the_git_directory_of_a_nested_repository_is_passed_over(scene: Scene) -> None:
    with scene.engine() as engine:
        session = engine.start_session("nested")
        nested = Path(str(session.workspace_path)) / "nested"
        scene.git("init", "-q", str(nested))
        (nested / "file.txt").write_text("x\n")
        scene.git("-C", str(nested), "add", ".")
        scene.git("-C", str(nested), "commit", "-qm", "inside")
        assert session.touched_files() == ["nested/file.txt"]
        session.promote()
        assert scene.git("ls-tree", "-r", "main", "nested").split()[0] == "100644"
    scene.judge_repository()


@pytest.mark.parametrize("kind", ["README.MD", "App.py"])
def test_a_name_that_is_another_one_elsewhere_is_refused(scene: Scene, kind: str) -> None:
    with scene.engine() as engine:
        session = engine.start_session("names")
        session.write(kind, "x\n")
        with pytest.raises(PathCollision, match=kind):
            session.promote()


@pytest.mark.parametrize(
    "path", ["../durable/app.py", "/etc/passwd", "a/../../x", ".git/config", "x/.git/hooks/pre-commit", "", "a\0b", "./../x", ".GIT/config"]
)
def test_a_path_that_leads_out_is_refused_by_every_method(scene: Scene, path: str) -> None:
    with scene.engine() as engine:
        session = engine.start_session("paths")
        before = everything_below(scene.durable)
        for method in (
            session.read,
            session.delete,
            session.exists,
            lambda name: session.write(name, "x"),
            lambda name: session.list(name or "\0"),
        ):
            with pytest.raises((WriteRejected, InvalidInput)):
                method(path)
        assert changed(before, everything_below(scene.durable)) == set()


@pytest.mark.parametrize("make", [os.link, os.symlink], ids=["hard-link", "symlink"])
@pytest.mark.parametrize("place", ["app.py", "new.txt", "src/a/one.txt"])
def test_a_link_to_a_file_of_durable_is_replaced_and_not_written_through(
    scene: Scene, place: str, make: Callable[[str, str], None]
) -> None:
    with scene.engine() as engine:
        session = engine.start_session("links")
        link = Path(str(session.workspace_path)) / place
        link.unlink(missing_ok=True)
        make(str(scene.durable / "README.md"), str(link))
        before = everything_below(scene.durable)
        if make is os.symlink:
            for method in (session.read, lambda path: session.write(path, "by the agent\n")):
                with pytest.raises(WriteRejected, match="leads out of the workspace"):
                    method(place)
        session.write(place, "by the agent\n", follow=False)
        session.commit("work")
        assert changed(before, everything_below(scene.durable)) == set()
        assert session.read(place) == b"by the agent\n"
        session.promote(files=[place])
        assert scene.git("show", f"main:{place}") == "by the agent"
        session_directory = engine.store.directory(session.id)
        assert not (session_directory / "workspace").exists()
    assert (scene.durable / "README.md").read_bytes().startswith(b"# Greeter")
    scene.judge_repository()


def test_a_directory_swapped_for_a_link_to_durable_leads_nowhere(scene: Scene) -> None:
    with scene.engine() as engine:
        session = engine.start_session("links")
        workspace = Path(str(session.workspace_path))
        (workspace / "src").rename(workspace / "old")
        (workspace / "src").symlink_to(scene.durable / "src")
        before = everything_below(scene.durable)
        for operation in (
            lambda: session.write("src/a/one.txt", "x"),
            lambda: session.read("src/a/one.txt"),
            lambda: session.delete("src/a/one.txt"),
        ):
            with pytest.raises(GittrixError):
                operation()
        assert set(session.touched_files()) == {"old/a/one.txt", "old/b/two.txt", "src", "src/a/one.txt", "src/b/two.txt"}
        session.commit("work")
        session.discard()
        assert changed(before, everything_below(scene.durable)) == set()
