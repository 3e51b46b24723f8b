"""The page of a test's world: every session in it with what happened and its diff, durable's history, the clock and the races.

Everything is read from the disk, without an engine, so that reading changes nothing: no event, no sweep, no lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pytest_gittrix.durations import format_instant
from pytest_gittrix.engine.operations.review import changes_now, landed_changes
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.patch import patch_bytes
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.report.page import render_plain, write_page
from pytest_gittrix.report.session_page import SessionView, session_cards
from pytest_gittrix.safe_text import visible_line
from pytest_gittrix.workspaces.walk import Limits
from pytest_gittrix.workspaces.workspace import open_workspace

_MOST_COMMITS: Final = 100


def write_world_page(title: str, store: Store, parts: Mapping[str, str], file: Path) -> Path:
    """Write the page of a world to a file; returns it.

    Args:
        title: its heading, such as the name of the test.
        store: its sessions.
        parts: the text of further parts, by their titles; one that is empty is left out.
        file: the file.

    Raises:
        OSError: the file cannot be written.
    """
    sessions = [session_cards(view, f"s{number}-") for number, view in enumerate(views(store), 1)]
    return write_page(file, render_plain("world.html", title=title, sessions=sessions, parts=[part for part in parts.items() if part[1]]))


def kept_world(directory: Path) -> tuple[Store, Mapping[str, str]]:
    """The sessions of a world that was kept on the disk, and the further parts of its page.

    Raises:
        InvalidInput: there is no world in the directory.
    """
    sessions, durable = directory / "gittrix" / "sessions", directory / "durable"
    if not durable.is_dir() or not sessions.is_dir():
        raise InvalidInput(
            f"{directory} is no world of a test.",
            why="A world has its repository in durable, and its sessions in gittrix/sessions.",
            fix='Name the directory that the section "gittrix world" of a failure names.',
        )
    return Store(sessions), {"durable": "\n".join(_durable_log(durable))}


def _durable_log(path: Path) -> Iterator[str]:
    with Repository.open(path) as repository:
        branch = repository.current_branch() or "main"
        head = repository.head(branch_ref(branch))
        for commit in repository.log(head, limit=_MOST_COMMITS) if head else ():
            subject = commit.message.partition("\n")[0]
            yield visible_line(f"{commit.id[:10]}  {format_instant(commit.author.when)}  {commit.author.name}: {subject}")


def views(store: Store) -> Iterator[SessionView]:
    """What a page shows of each session of a store, the earliest first; members' sessions have no diff."""
    for state in sorted(store.scan()[0], key=lambda state: (state.created_ns, state.id)):
        events = store.log(state.id).salvage().events
        patch: bytes | None = None
        with suppress(GittrixError, MissingObject, OSError):
            patch = _landed_patch(state, events) if state.ended else _workspace_patch(store, state)
        yield SessionView(state, events, store.directory(state.id), patch)


def patches(store: Store) -> Iterator[tuple[str, bytes]]:
    """The id of each session with a workspace, and the changes since its baseline as a patch. Members' sessions have no baseline."""
    for state in store.scan()[0]:
        if (patch := _workspace_patch(store, state)) is not None:
            yield state.id, patch


def _workspace_patch(store: Store, state: SessionState) -> bytes | None:
    if state.life is not None or state.workspace is None or not state.workspace_present or not os.path.isdir(state.workspace):
        return None
    workspace = open_workspace(state.workspace, str(store.directory(state.id) / "engine"))
    try:
        return patch_bytes(changes_now(state, workspace, Limits())[0])
    finally:
        workspace.close()


def _landed_patch(state: SessionState, events: Sequence[Event]) -> bytes | None:
    """What an ended session landed."""
    done = next((event for event in events if event.type == "promote.done"), None)
    landed = landed_changes(events, done.data["commit"], state.durable_path) if done is not None else None
    return None if landed is None else patch_bytes(landed)
