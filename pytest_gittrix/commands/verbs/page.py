"""The verbs that write the page of a session, and that of a world which a failing test left."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_gittrix.commands import engine_context as context
from pytest_gittrix.commands.declaration import SESSION, Group, arg, verb
from pytest_gittrix.commands.output import CommandResult
from pytest_gittrix.commands.render import text_of
from pytest_gittrix.errors import GittrixError

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.report.session_page import SessionView


@verb(
    SESSION,
    arg("--out", metavar="FILE", help="the file; ID.html in the current directory by default"),
    examples=("gittrix session page sess_V1St", "gittrix session page sess_V1St --out run.html"),
)
def page(options: Namespace) -> CommandResult:
    """Write one page of a session to look at in a browser: what happened in order, and the diff; prints where it is."""
    from pytest_gittrix.report.session_page import write_session_page

    with context.engine(options, tidy=False) as gittrix:
        id_ = context.full_id(gittrix, options.id)
        file = write_session_page(view_of(gittrix, id_), Path(context.absolute_path(options.out or f"{id_}.html")))
    return CommandResult({"id": id_, "page": str(file)}, text_of([str(file)]))


@verb(
    arg("directory", metavar="DIR", help='the directory of the world, as the section "gittrix world" of a failure names it'),
    arg("--out", metavar="FILE", help="the file; world.html in the current directory by default"),
    name="page",
    examples=("gittrix world page /tmp/pytest-of-ada/pytest-12/gittrix/0041-test_conflict",),
)
def world_page(options: Namespace) -> CommandResult:
    """Write one page of the world that a failing test left: its sessions, what happened, and the diffs; prints where it is."""
    from pytest_gittrix.report.world_page import kept_world, write_world_page

    directory = Path(context.absolute_path(options.directory))
    store, parts = kept_world(directory)
    file = write_world_page(directory.name, store, parts, Path(context.absolute_path(options.out or "world.html")))
    return CommandResult({"world": str(directory), "page": str(file)}, text_of([str(file)]))


WORLD: Final = Group("world", "the world that a failing test left", {"look": (world_page,)})


def view_of(gittrix: GitTrix, id_: str) -> SessionView:
    """What a page shows of a session, perhaps an ended one.

    Raises:
        GittrixError: its record cannot be read.
    """
    from pytest_gittrix.durations import ns_of
    from pytest_gittrix.report.session_page import SessionView

    state, events = gittrix.store.load(id_), gittrix.store.log(id_).read()
    patch: bytes | None = None
    commits: tuple[tuple[int, str, str], ...] = ()
    if not state.ended and state.life is None:
        with suppress(GittrixError):
            session = gittrix.get_session(id_)
            patch = session.diff().encode("utf-8", "surrogateescape")
            commits = tuple((ns_of(one.timestamp), one.sha, one.message) for one in session.log())
    return SessionView(state, events, gittrix.store.directory(id_), patch, commits)
