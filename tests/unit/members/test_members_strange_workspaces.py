"""Workspaces that agents left in a state that nobody counts on, and what is done in them once they are only kept."""

from __future__ import annotations

import errno
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.members import Crew
from support.refusals import refuse_to_open

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.members.finalize_record import Notes
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.record.state.retention import RetentionPolicy, Selector
from pytest_gittrix.workspaces.multi_repo import RepositorySpec
from pytest_gittrix.workspaces.repositories.walk import find_repositories

DEEP = 400
LATER = timedelta(hours=25)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    try:
        with Crew.open(tmp_path) as opened:
            yield opened
    finally:
        # Nor could whoever tidies up after tests get as deep as they may have gone.
        subprocess.run(["rm", "-rf", str(tmp_path / "world")], check=True)


@pytest.fixture
def shallow_stack() -> Iterator[None]:
    """A program that can call itself less deep than ``DEEP``: what follows directories by calls fails there."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + DEEP - 50)
    yield
    sys.setrecursionlimit(usual)


def deep(directory: Path) -> None:
    """Make directories in one another, with a file at the bottom."""
    here = os.open(directory, os.O_RDONLY)
    try:
        for _ in range(DEEP):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    finally:
        os.close(here)


# Depth -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shallow_stack")
@pytest.mark.parametrize("place", ["projects/app", "beside"])
def test_a_workspace_of_any_depth_comes_to_its_end_is_measured_and_goes(crew: Crew, place: str) -> None:
    crew.members = crew.manager(retention=RetentionPolicy(disk_budget_bytes=0))
    life = crew.chat()
    at = crew.workspace(life.id) / place
    at.mkdir(exist_ok=True)
    deep(at)

    ended = crew.members.stop(life.id)
    assert ended.state == "retained"
    assert crew.members.inspect(life.id).holds_work == ended.unsaved == (place == "projects/app")
    assert crew.members.scan().removed == (() if ended.unsaved else (life.id,))
    if ended.unsaved:
        assert crew.members.cleanup(Selector(id=life.id)).removed == (life.id,)
    assert crew.members.get(life.id).state == "removed"
    crew.engine.services.resources.trash.empty()
    assert list((crew.engine.store.root / ".trash").iterdir()) == []


def test_credentials_that_cannot_be_had_for_any_reason_end_a_finalization_and_lose_nothing(crew: Crew) -> None:
    def broken(_url: str) -> tuple[str, str] | None:
        raise RuntimeError("no keyring")

    life = crew.chat()
    crew.put(life.id, "new.txt")
    ended = crew.manager(credentials=broken).stop(life.id)
    assert (ended.state, ended.ended, ended.unsaved) == ("retained", "failed", True)
    assert "no keyring" in next(event for event in crew.events(life.id) if event.data.get("to") == "failed").data["reason"]
    assert crew.members.finalize(life.id).ended == "completed"


def test_who_opens_issues_can_fail_in_any_way_and_the_work_is_saved(crew: Crew) -> None:
    def broken(_title: str, _body: str) -> str:
        raise RuntimeError("the forge is on fire")

    crew.members = crew.manager(forge=broken)
    life = crew.chat()
    commit = crew.commit(life.id, "mine.txt")
    ended = crew.members.stop(life.id)
    assert (ended.ended, ended.unsaved, ended.degraded) == ("completed", False, True)
    assert commit in crew.branches().values()
    finished = next(event for event in crew.events(life.id) if event.type == "finalize.finished")
    assert "the forge is on fire" in finished.data["reason"]


def test_a_directory_that_cannot_be_listed_may_hold_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed", "open/app/.git", "open/app/closed"):
        (tmp_path / name).mkdir(parents=True)
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert find_repositories(str(tmp_path)) == ["closed", "open/app"]


def test_that_it_cannot_be_noted_what_was_saved_makes_no_failure_of_it(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Notes, "note_saved", full)
    life = crew.chat()
    crew.put(life.id, "new.txt")
    ended = crew.members.stop(life.id)
    assert (ended.ended, ended.unsaved) == ("completed", False)
    assert crew.members.inspect(life.id).holds_work


def test_a_lock_that_cannot_be_read_keeps_nothing_of_a_start_that_failed(crew: Crew) -> None:
    locks = crew.engine.home / "work-locks"
    locks.mkdir()
    (locks / f"{'0' * 64}.item").write_text("nonsense")
    shutil.rmtree(crew.app.path)
    with pytest.raises(AdapterUnavailable, match="cannot be read"):
        crew.chat()
    assert crew.sessions() == []


def test_a_link_that_leads_round_in_circles_hides_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "app" / ".git").mkdir(parents=True)
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "up").symlink_to(".")
    assert find_repositories(str(tmp_path)) == ["app"]


# Sizes -------------------------------------------------------------------------------------------------------------------------


def kept(crew: Crew, path: str = ".ralph/notes") -> Life:
    """A retained session without work, and with a small file."""
    life = crew.chat()
    crew.put(life.id, path)
    return crew.members.stop(life.id)


def room(size: int) -> RetentionPolicy:
    """A policy that removes nothing but for want of room."""
    return RetentionPolicy(interactive_success_ns=10**15, disk_budget_bytes=size)


def test_a_file_with_holes_takes_no_room_and_drives_out_no_other(crew: Crew) -> None:
    first, second = kept(crew), kept(crew)
    with (crew.repo(second.id) / ".ralph" / "huge").open("wb") as file:
        file.truncate(1 << 40)
    members = crew.manager(retention=room(10 << 20))
    assert members.scan().removed == ()
    assert {members.get(life.id).state for life in (first, second)} == {"retained"}


def test_a_file_with_many_names_counts_once(crew: Crew) -> None:
    life = kept(crew)
    place = crew.repo(life.id) / ".ralph"
    (place / "large").write_bytes(b"x" * (1 << 20))
    for number in range(20):
        (place / f"large-{number}").hardlink_to(place / "large")
    assert crew.manager(retention=room(4 << 20)).scan().removed == ()
    assert crew.manager(retention=room(1 << 20)).scan().removed == (life.id,)


# What is done later ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["a file", "a commit"])
def test_work_that_is_done_in_a_kept_workspace_keeps_it(crew: Crew, what: str) -> None:
    life = crew.chat()
    crew.put(life.id, "first.txt")
    assert crew.members.stop(life.id).ended == "completed"
    if what == "a file":
        crew.put(life.id, "second.txt")
    else:
        crew.commit(life.id, "second.txt")
    crew.clock.advance(LATER)

    assert crew.members.scan().spared == (life.id,)
    assert crew.members.cleanup(Selector(all=True)).spared == (life.id,)
    crew.members.finalize(life.id)
    assert crew.members.scan().removed == (life.id,)


def test_that_a_clone_is_gone_by_then_keeps_nothing_that_was_saved(crew: Crew) -> None:
    life = crew.chat()
    crew.put(life.id, "first.txt")
    crew.members.stop(life.id)
    shutil.rmtree(crew.engine.home / "clones")
    assert crew.members.scan().removed == (life.id,)


# Addresses ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["ssh://git:hidden@127.0.0.1:1/x.git", "git://me:hidden@127.0.0.1:1/x", "HTTPS://hidden@127.0.0.1:1/x", "http://a:hidden@h/x"]
)
def test_an_address_with_a_secret_in_it_is_refused_and_not_repeated(crew: Crew, url: str) -> None:
    with pytest.raises(InvalidInput, match="credentials") as refused:
        crew.chat(repositories=[RepositorySpec("app", url)])
    assert "hidden" not in str(refused.value)
    assert crew.sessions() == []


def test_ignored_files_are_not_committed_where_the_rules_cannot_be_read(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    crew.app.commit({".gitignore": "build/\n"})
    life = crew.chat()
    crew.put(life.id, "build/out.o")
    with monkeypatch.context() as refusing:
        refuse_to_open(refusing, ".gitignore", errno.EIO)
        ended = crew.members.stop(life.id)
    assert (ended.ended, ended.unsaved) == ("failed", True)
    assert len(crew.branches()) == 1
