"""The engine a command runs on: its store, its repository, its clock, and the person who can be asked.

The engine is loaded when it is opened, not before. A command that a daemon runs for a remote caller works on the daemon's engine, with the
caller's directory and standard input.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from pytest_gittrix.errors import InvalidInput, SessionNotFound, nearest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gittrix.backends.local import LocalDurable
    from pytest_gittrix.backends.protocol import Ephemeral
    from pytest_gittrix.commands.team_file import Team
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.promotion.strategy import Question
    from pytest_gittrix.engine.user_session import UserSession
    from pytest_gittrix.members.members import Members
    from pytest_gittrix.orchestrator.orchestrator import Orchestrator


_PREFIX: Final = "sess_"


class RemoteCaller(NamedTuple):
    """The process for which a daemon runs a command, and what the daemon lends to the command.

    Attributes:
        directory: the caller's working directory.
        stdin: the caller's standard input; None if it is closed.
        engine, members, orchestrator: the daemon's.
        team: the team that the daemon manages.
        runtime_id: the id that the runtime of the caller's agent gives its conversation; empty if there is none.
    """

    directory: str
    stdin: bytes | None
    engine: GitTrix
    members: Members
    orchestrator: Orchestrator
    team: Team
    runtime_id: str = ""


remote_caller: ContextVar[RemoteCaller | None] = ContextVar("remote_caller", default=None)
"""The process for which the command in this context runs; None if it was typed in this process."""


@contextmanager
def engine(
    options: Namespace, durable: LocalDurable | str | None = None, ephemeral: Ephemeral | None = None, *, tidy: bool = True
) -> Iterator[GitTrix]:
    """The engine over the store that was named, or the default one.

    Args:
        options: ``store`` and ``json`` of the command line.
        durable: the repository to start sessions on, or the address of a remote; existing sessions know theirs.
        ephemeral: makes the workspaces.
        tidy: recover and sweep first, as the TypeScript CLI does at each command.

    Raises:
        InvalidInput: PYTEST_GITTRIX_CLOCK names no clock file.
        GittrixError: any error of the command.
    """
    from pytest_gittrix.clock.file_clock import clock_from_environment
    from pytest_gittrix.commands.forge_options import ForgeSettings
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.eviction.evictor import BUDGET
    from pytest_gittrix.engine.operations.resources import QUEUE_WAIT
    from pytest_gittrix.engine.operations.validation import budget_from_environment, queue_wait_from_environment

    caller = remote_caller.get()
    if caller is not None and durable is None and ephemeral is None:
        if tidy:
            caller.engine.recover()
            caller.engine.sweep()
        yield caller.engine
        return
    forge = ForgeSettings.of(options, os.environ if caller is None else {})  # a caller with a forge of its own does not use a daemon
    gittrix = GitTrix(
        durable,
        ephemeral,
        store=caller.engine.store.root if caller is not None else store_of(options),
        clock=caller.engine.clock if caller is not None else clock_from_environment(),
        sweep_interval=None,
        sweep_budget=budget_from_environment(BUDGET),
        ask=_ask if has_person(options) else None,
        forge=forge.open,
        credentials=forge.credentials,
        queue_wait=queue_wait_from_environment(QUEUE_WAIT),
    )
    gittrix.services.index.persist_from = 1  # every command is a process of its own, and finds what the one before it read
    try:
        yield gittrix.init() if tidy else gittrix
    finally:
        gittrix.close()


def store_of(options: Namespace) -> Path | None:
    """The store that was named; None for the default one. Raises InvalidInput if it cannot be a directory, because a file is in the way."""
    if not options.store:
        return None
    from pathlib import Path

    store = Path(options.store).absolute()
    there = next(path for path in (store, *store.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise InvalidInput(
            f"{store} cannot be a store: {'it' if there == store else there} is a file.",
            why="A store has a directory for each session.",
            fix="Name a directory with --store; it is made if it is missing.",
        )
    return store


def members(gittrix: GitTrix, options: Namespace) -> Members:
    """The manager of the team's members: the daemon's, or one made from the team file, which first finishes sessions without an agent.

    Raises:
        InvalidInput: the team file is not valid.
    """
    from pytest_gittrix.commands.managers import members_of

    caller = remote_caller.get()
    if caller is not None:
        return caller.members
    manager = members_of(gittrix, team(options))
    manager.observe()
    return manager


def orchestrator(gittrix: GitTrix, options: Namespace) -> Orchestrator:
    """The manager of the team's projects: the daemon's, or one made from the team file. Raises as :func:`members`."""
    from pytest_gittrix.commands.managers import orchestrator_of

    caller = remote_caller.get()
    return orchestrator_of(gittrix, team(options)) if caller is None else caller.orchestrator


def poll_projects(gittrix: GitTrix, options: Namespace) -> None:
    """Poll the sessions of the team's projects once, as a daemon does all the time; where one runs this command, nothing is done.

    Raises:
        InvalidInput: the team file is not valid.
    """
    if remote_caller.get() is None and team(options).projects:
        orchestrator(gittrix, options).poll()


def team(options: Namespace) -> Team:
    """The team whose sessions are managed. Raises InvalidInput for a team file that is not valid."""
    from pytest_gittrix.commands.team_file import read_team
    from pytest_gittrix.record.store.store import default_home

    caller = remote_caller.get()
    if caller is not None:
        return caller.team
    store = store_of(options)
    return read_team(store.parent if store is not None else default_home(), getattr(options, "team", None))


@contextmanager
def session(options: Namespace) -> Iterator[UserSession]:
    """The session whose id, or whose beginning of an id, was given.

    Raises:
        SessionNotFound, InvalidInput: as :func:`full_id`.
        SessionExpired: it has ended.
    """
    with engine(options) as gittrix:
        yield gittrix.get_session(full_id(gittrix, options.id))


def full_id(gittrix: GitTrix, beginning: str | None) -> str:
    """The full id of the one session whose id is, or begins with, ``beginning``; without one, that of this process's environment.

    Raises:
        SessionNotFound: no id begins so.
        InvalidInput: several ids begin so (the first are named), or no id can.
    """
    if beginning is None:
        return own_id(gittrix)
    store = gittrix.store
    if store.directory(beginning).is_dir():
        return beginning
    try:
        return gittrix.records.resolve(beginning)
    except SessionNotFound as problem:
        meant = _meant_session(beginning, store.ids())
        raise SessionNotFound(f"There is no session {beginning!r} in {store.root}.", fix=f"{meant}{problem.fix}") from None


def own_id(gittrix: GitTrix, *, by_hook: bool = False) -> str:
    """The id of the session that this process belongs to, from its environment.

    Args:
        gittrix: the engine whose session it is.
        by_hook: whether standard input and a file in the working directory are searched, too.

    Raises:
        SessionNotFound: nothing names one, or there is none of that id.
    """
    from pytest_gittrix.gastown.runtime_id import FILE, VARIABLES, resolve

    def not_found() -> NoReturn:
        searched = [*VARIABLES, *(("standard input", FILE) if by_hook else ())]
        raise SessionNotFound(
            "No session was named, and this process does not know which one it belongs to.",
            why=f"The command searched {', '.join(searched[:-1])} and {searched[-1]}.",
            fix="Give its id; `gittrix session list` shows all sessions.",
        )

    found = resolve(os.environ, stdin=sys.stdin if by_hook else None, directory=os.curdir if by_hook else None, generate=not_found)
    if not gittrix.store.directory(found.id).is_dir():
        raise SessionNotFound(
            f"There is no session {found.id!r} in {gittrix.store.root}.",
            why=f"This process belongs to it, according to {found.source}.",
            fix="Give the id of another, or name the store it is in with --store.",
        )
    return found.id


def _meant_session(beginning: str, ids: Iterable[str]) -> str:
    """The question for the session whose id was probably meant. What all ids begin with says nothing, so the rest is compared."""
    rest = beginning.removeprefix(_PREFIX)
    by_beginning = {id_.removeprefix(_PREFIX)[: len(rest)]: id_ for id_ in ids}
    near = nearest(rest, by_beginning)
    return "" if near is None else f"Did you mean {by_beginning[near]}? "


def standard_input(what: str) -> bytes:
    """All of standard input.

    Args:
        what: what it is, for messages.

    Raises:
        InvalidInput: it is closed.
    """
    from pytest_gittrix.workspaces.walk import Limits

    caller = remote_caller.get()
    if caller.stdin is None if caller is not None else sys.stdin is None:
        raise InvalidInput("Standard input is closed.", why=f"It is {what}.", fix="For nothing at all: </dev/null.")
    if caller is not None:
        return caller.stdin or b""
    return sys.stdin.buffer.read(Limits().max_file + 1)  # one more than is allowed is refused; an endless stream must not fill memory


def durable_named(path: str | None, branch: str | None) -> LocalDurable | str:
    """The durable that ``--durable`` and ``--branch`` name: a repository of this machine, or the address of a remote with its branch.

    Raises:
        AdapterUnavailable, UnsupportedRepository, InvalidInput: as ``local_durable``; or a branch is named twice.
    """
    from pytest_gittrix.engine.operations.resources import is_address

    url, _, named = (path or "").partition("#")
    if not is_address(url):
        return local_durable(path, branch)
    if branch and named and branch != named:
        raise InvalidInput(f"Two branches are named: {named!r} in the address, and {branch!r}.", fix="Name one.")
    return f"{url}#{branch or named or 'main'}"


def local_durable(path: str | None, branch: str | None) -> LocalDurable:
    """The repository at, or around, a directory.

    Args:
        path: the directory; the current one by default.
        branch: the branch that sessions start from and promote to; by default the one that the repository is on.

    Raises:
        AdapterUnavailable, UnsupportedRepository: there is no repository, or it cannot be used.
        InvalidInput: the name cannot be a branch's, or HEAD is on no branch and none was named.
    """
    from pytest_gittrix.backends.local import LocalDurable

    root = absolute_path(path or ".")
    return LocalDurable(root, branch or _current_branch(root))


def absolute_path(path: str) -> str:
    """A path, absolute from where the command was typed, so that messages name it alike wherever the command runs."""
    caller = remote_caller.get()
    try:
        return os.path.join(os.getcwd() if caller is None else caller.directory, path)
    except OSError:  # the directory is gone; using the path will say so
        return path


def repository_path(gittrix: GitTrix, path: str) -> str:
    """The name under which sessions know the repository at, or around, a directory, or the remote at an address.

    Raises:
        AdapterUnavailable: there is none.
        InvalidInput: git takes no such address.
    """
    from pytest_gittrix.engine.operations.resources import is_address, mirror_of

    address = path.partition("#")[0]
    if is_address(address) and not address.startswith("local://"):
        return mirror_of(gittrix.home, address)
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


def has_person(options: Namespace) -> bool:
    """Whether a person is at the terminal and can be asked."""
    if remote_caller.get() is not None:
        return False
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
