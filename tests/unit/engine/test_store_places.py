"""A store works from wherever it is: one that was moved goes on, and a copy of one never reaches into the original."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.engine import KINDS, Site

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, LogDamaged
from pytest_gittrix.testing.repos.member_witness import everything_below

COPIED = [kind for kind in KINDS if kind != "worktree"]


@contextmanager
def engine_on(site: Site, store: Path) -> Iterator[GitTrix]:
    """An engine on a store at another place, as another process would have."""
    durable = LocalDurable(site.durable.path, author=("Human", "human@example.com"), sync=False)
    options: dict[str, Any] = {"durability": "fast", "strategy": "commit", "sweep_interval": None}
    made = GitTrix(durable, LocalEphemeral(), store=store, home=site.root / "home", clock=site.clock, **options)
    try:
        yield made
    finally:
        made.close()


def at_work(site: Site, kind: str) -> UserSession:
    session = site.start(workspace=kind)
    session.write("app.py", "print('v2')\n")
    session.write("new.txt", "new\n")
    session.delete("README.md")
    return session


@pytest.mark.parametrize("kind", COPIED)
def test_what_is_done_in_a_copy_stays_in_the_copy(site: Site, kind: str) -> None:
    session = at_work(site, kind)
    before = everything_below(site.store)
    shutil.copytree(site.store, site.root / "backup", symlinks=True)

    with engine_on(site, site.root / "backup") as engine:
        copied = engine.get_session(session.id)
        assert copied.info().workspace_path == str(site.root / "backup" / session.id / "workspace")
        assert set(copied.touched_files()) == {"app.py", "new.txt", "README.md"}
        copied.write("app.py", "print('in the copy')\n")
        copied.delete("new.txt")
        copied.discard()

    assert everything_below(site.store) == before
    assert session.read("app.py") == b"print('v2')\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_of_a_copy_removes_nothing_of_the_original(site: Site, kind: str) -> None:
    session = at_work(site, kind)
    shutil.copytree(site.store, site.root / "backup", symlinks=True)
    before, durable = everything_below(site.store), site.durable.fingerprint()
    site.clock.advance(hours=5)

    with engine_on(site, site.root / "backup") as engine:
        assert engine.sweep() == [session.id]
        assert [event.type for event in engine.history(session.id)].count("archive.written") == 1

    assert everything_below(site.store) == before
    assert site.durable.fingerprint() == durable


def test_a_copy_of_a_linked_work_tree_is_not_worked_in(site: Site) -> None:
    session = at_work(site, "worktree")
    shutil.copytree(site.store, site.root / "backup", symlinks=True)

    with engine_on(site, site.root / "backup") as engine:
        with pytest.raises(AdapterUnavailable, match="is a copy of the work tree"):
            engine.get_session(session.id)

    assert session.read("app.py") == b"print('v2')\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_was_moved_goes_on(site: Site, kind: str) -> None:
    session = at_work(site, kind)
    site.close()
    site.store.rename(site.root / "elsewhere")

    with engine_on(site, site.root / "elsewhere") as engine:
        assert engine.problems() == []
        moved = engine.get_session(session.id)
        assert moved.read("app.py") == b"print('v2')\n"
        moved.write("later.txt", "later\n")
        result = moved.promote()

    assert set(site.durable.changed(result.sha)) == {"app.py", "new.txt", "README.md", "later.txt"}
    assert site.durable.git("worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_linked_work_tree_that_was_moved_is_listed_where_it_is(site: Site) -> None:
    session = at_work(site, "worktree")
    site.close()
    site.store.rename(site.root / "elsewhere")

    with engine_on(site, site.root / "elsewhere") as engine:
        engine.get_session(session.id)

    assert str(site.root / "elsewhere" / session.id / "workspace") in site.durable.git("worktree", "list", "--porcelain")
    assert site.durable.git("worktree", "prune", "--dry-run", "--verbose", "--expire=now") == ""


def test_a_directory_that_was_copied_is_a_problem_that_names_its_session(site: Site) -> None:
    session = at_work(site, "copy")
    shutil.copytree(site.directory(session), site.directory("sess_copy"))

    (problem,) = site.engine.problems()
    assert problem.id == "sess_copy"
    assert f"It belongs to the session {session.id!r}." in problem.message
    with pytest.raises(LogDamaged):
        site.engine.get_session("sess_copy")
    assert site.engine.sweep() == []
    assert session.touched_files() != []
