"""The engine a command runs on: where sessions are kept, which repository, whose clock, and whom to ask.

The engine is loaded when it is opened, not before. Must not know what a command does with it.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gittrix.errors import InvalidInput, SessionNotFound

if TYPE_CHECKING:
    from pytest_gittrix.adapters.local import LocalDurable, LocalEphemeral
    from pytest_gittrix.session.manager import GitTrix
    from pytest_gittrix.session.session import UserSession
    from pytest_gittrix.session.strategy import Question


@contextmanager
def engine(
    options: Namespace, durable: LocalDurable | None = None, ephemeral: LocalEphemeral | None = None, *, tidy: bool = True
) -> Iterator[GitTrix]:
    """The engine over the store that was named, or the default one.

    Args:
        options: ``store`` and ``json`` of the command line.
        durable: the repository to start sessions on; sessions there already know theirs.
        ephemeral: what to make workspaces with.
        tidy: recover and sweep first, as the TypeScript CLI does at each command.

    Raises:
        InvalidInput: PYTEST_GITTRIX_CLOCK names no clock file.
        GittrixError: whatever the command raises.
    """
    from pytest_gittrix.clock_files import clock_from_environment
    from pytest_gittrix.session.manager import GitTrix

    gittrix = GitTrix(
        durable,
        ephemeral,
        store=Path(options.store).absolute() if options.store else None,
        clock=clock_from_environment(),
        sweep_interval=None,
        ask=_ask if _has_person(options) else None,
    )
    try:
        yield gittrix.init() if tidy else gittrix
    finally:
        gittrix.close()


@contextmanager
def session(options: Namespace) -> Iterator[UserSession]:
    """The session whose id, or the beginning of whose id, was given.

    Raises:
        SessionNotFound, InvalidInput: as :func:`full_id`.
        SessionExpired: it has ended.
    """
    with engine(options) as gittrix:
        yield gittrix.get_session(full_id(gittrix, options.id))


def full_id(gittrix: GitTrix, beginning: str) -> str:
    """The id that is, or alone begins with, ``beginning``.

    Raises:
        SessionNotFound: no id does.
        InvalidInput: several do, and the first are named; or it can begin no id.
    """
    store = gittrix.store
    if store.directory(beginning).is_dir():
        return beginning
    try:
        return gittrix.records.resolve(beginning)
    except SessionNotFound as problem:
        raise SessionNotFound(f"There is no session {beginning!r} in {store.root}.", fix=problem.fix) from None


def standard_input(what: str) -> bytes:
    """All of standard input.

    Args:
        what: what it is, for messages.

    Raises:
        InvalidInput: it is closed.
    """
    from pytest_gittrix.git.snapshot import Limits

    if sys.stdin is None:
        raise InvalidInput("Standard input is closed.", why=f"It is {what}.", fix="For nothing at all: </dev/null.")
    return sys.stdin.buffer.read(Limits().max_file + 1)  # one more than is allowed is refused; an endless stream must not fill memory


def local_durable(path: str | None, branch: str | None) -> LocalDurable:
    """The repository at, or around, a directory.

    Args:
        path: the directory; the current one by default.
        branch: where sessions start and promote to; by default the branch that the repository is on.

    Raises:
        AdapterUnavailable, UnsupportedRepository: there is none, or none that can be used.
        InvalidInput: the branch's name is none, or HEAD is on no branch and none was named.
    """
    from pytest_gittrix.adapters.local import LocalDurable

    return LocalDurable(path or ".", branch or _current_branch(path or "."))


def repository_path(path: str) -> str:
    """The name under which sessions know the repository at, or around, a directory. Raises AdapterUnavailable if there is none."""
    durable = local_durable(path, "main")
    durable.close()
    return durable.path


def _current_branch(path: str) -> str:
    from pytest_gittrix.git.repository import Repository

    with Repository.open(path) as repository:
        ref = repository.current_branch()
    if ref is None:
        raise InvalidInput(
            f"{repository.git_dir} is on no branch: its HEAD is detached.",
            why="A session starts from the head of a branch, and is promoted to it.",
            fix="Name the branch with --branch.",
        )
    return ref.removeprefix("refs/heads/")


def _has_person(options: Namespace) -> bool:
    streams = (sys.stdin, sys.stderr)
    return not options.json and all(stream is not None and stream.isatty() for stream in streams)


def _ask(question: Question) -> str:
    """Ask a person where promotions to a repository shall land. No answer is the default."""
    answers = ("commit", "branch", "patch")
    print(f"{question.contributors} people wrote {question.branch!r}. Where shall promotions land, from now on?", file=sys.stderr)
    while True:
        print(f"{', '.join(answers)} [{question.default}]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip() or question.default
        if answer in answers:
            return answer
