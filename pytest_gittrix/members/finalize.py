"""What an agent leaves behind is saved: committed, pushed, or put on a recovery branch; or it stays, and the result says that it must.

BotMinter's finalization (the document's table "Finalization"; session-systems 4.3), without its losses (4.6, rules 8 to 11): every
commit that the remote has not is found, however little leads to it, and every file that ought to be committed. The engine never runs git
in the agent's repositories and changes nothing in the workspace. It can be killed anywhere and run again, and a second run does
nothing more. It must not know an engine or a log: who calls is told what happens.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.backends.transport import Transport
from pytest_gittrix.errors import EvictionRace, GittrixError
from pytest_gittrix.git.refs import short_branch
from pytest_gittrix.members.finalize_record import KINDS, NOTES, Action, Finalized, Notes, summed_up
from pytest_gittrix.members.finalize_remote import Deadline, OutOfTime, Remote, write_settings
from pytest_gittrix.members.finalize_repository import Saving, Task, lenders
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.workspaces.alternates import ScratchRepository
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace, clone_format, clone_path
from pytest_gittrix.workspaces.rescue import find_repositories, read_repository

DEADLINE: Final = 160.0
"""Seconds that a finalization may take (BotMinter)."""

Tell = Callable[[str, Mapping[str, Any]], object]
"""Told ``finalize.started``, ``finalize.repository`` and ``finalize.finished``, with the data of such an event."""

CreateIssue = Callable[[str, str], str]
"""Opens an issue with a title and a body, and gives its address."""

Credentials = Callable[[str], tuple[str, str] | None]
"""Gives user and token for an address, or None."""


def finalize(
    workspace: MultiRepoWorkspace,
    id_: str,
    *,
    tell: Tell = lambda _type, _data: None,
    deadline: float = DEADLINE,
    forge: CreateIssue | None = None,
    attempt: int = 1,
    home: str | os.PathLike[str] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    credentials: Credentials = lambda _url: None,
    environment: Mapping[str, str] | None = None,
    identity: tuple[str, str] = ("gittrix", "gittrix@localhost"),
) -> Finalized:
    """Save what is in a workspace, in which nobody works any more.

    Args:
        workspace: what ``checkout_all`` made. Its addresses are gone by, not what a workspace says of itself.
        id_: id of the session.
        tell: told what happens, once each repository is done.
        deadline: seconds that it may take. What is not saved by then stays.
        forge: opens an issue for each repository that needed recovery branches.
        attempt: the number of this attempt, from 1; for ``finalize.started``.
        home: a directory of the engine's own for this session, to be removed with the workspace; ``<workspace>.finalize`` by default.
        monotonic: the clock by which ``deadline`` is meant.
        credentials: asked for each ``http`` address.
        environment: more variables for git, such as ``SSH_AUTH_SOCK``.
        identity: who commits what was left uncommitted.

    Returns:
        What came of it. A remote that cannot be reached is a result (``Failed``), not an error.

    Raises:
        InvalidInput: the id cannot be part of a branch's name.
        EvictionRace: another finalization of this workspace was under way for all that time; nothing was told.
        OSError: the disk refused. What was saved by then is saved; the next attempt goes on.
    """
    short_branch(f"recovery/{id_}/HEAD")
    until = Deadline(monotonic() + deadline, monotonic)
    if not os.path.isdir(workspace.path):
        tell("finalize.started", {"attempt": attempt})
        return _finished(tell, Finalized("Skipped", reason=f"There is no workspace at {workspace.path}."))
    place = os.fspath(home) if home is not None else f"{workspace.path}.finalize"
    with locked_file(workspace.path, busy=lambda: _check_time(workspace.path, until)) as held:
        tell("finalize.started", {"attempt": attempt})
        run = _Run(workspace, id_, place, until, held, credentials, environment or {}, identity)
        try:
            run.begin()
            for repository in workspace.repositories:
                for action in run.save(repository):
                    tell("finalize.repository", action.data())
            for action in run.strangers():
                tell("finalize.repository", action.data())
            issues, trouble = _issues(run, id_, forge)
            return _finished(tell, summed_up(run.actions, issues, trouble))
        finally:
            run.tidy()


def _finished(tell: Tell, ended: Finalized) -> Finalized:
    tell("finalize.finished", ended.data())
    return ended


def _check_time(path: str, until: Deadline) -> None:
    """Raise EvictionRace if no time is left to wait for another finalization."""
    try:
        until.left()
    except OutOfTime:
        raise EvictionRace(
            f"{path} is being finalized by somebody else.",
            why="Two at once would push the same work twice.",
            fix="Wait for that one to end; a push of one that was killed ends by itself.",
        ) from None


class _Run:
    """One finalization of one workspace."""

    def __init__(
        self,
        workspace: MultiRepoWorkspace,
        id_: str,
        home: str,
        until: Deadline,
        held: int,
        credentials: Credentials,
        environment: Mapping[str, str],
        identity: tuple[str, str],
    ) -> None:
        self._workspace, self._id, self._home, self._until, self._held = workspace, id_, home, until, held
        self._credentials, self._environment, self._identity = credentials, environment, identity
        self._settings = os.path.join(home, "gitconfig")
        self._places: list[str] = []
        self.notes = Notes.at(os.path.join(home, NOTES))
        self.actions: list[Action] = []

    def begin(self) -> None:
        """Make the engine's directory, without what a killed attempt left, and see what repositories there are."""
        self.tidy()
        os.makedirs(self._home, exist_ok=True)
        write_settings(self._settings)
        self._places = find_repositories(self._workspace.path)

    def tidy(self) -> None:
        """Remove all but the notes."""
        home = Path(self._home)
        for left in [*home.glob("repository-*"), *home.glob("tmp_*"), home / "gitconfig"]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        if home.is_dir() and not any(home.iterdir()):
            home.rmdir()

    def save(self, repository: CheckedOutRepository) -> list[Action]:
        """Save one repository; gives what was done."""
        done: list[Action] = []
        try:
            self._until.left()
            self._save(repository, done)
        except OutOfTime:
            done.append(Action(repository.name, "failed", reason="the time was up"))
        except GittrixError as error:
            done.append(Action(repository.name, "failed", reason=error.fact))
        except (OSError, ValueError, LookupError, RecursionError) as error:
            done.append(Action(repository.name, "failed", reason=f"{type(error).__name__}: {error}"))
        if not done:
            done.append(Action(repository.name, "skipped", reason="there is nothing to save"))
        done.sort(key=lambda one: (KINDS.index(one.action), one.branch or "", one.files, one.commit or ""))
        self.actions += done
        return done

    def _save(self, repository: CheckedOutRepository, done: list[Action]) -> None:
        root = os.path.join(self._workspace.path, repository.directory)
        if not os.path.lexists(os.path.join(root, ".git")):
            kind = "left" if os.path.lexists(root) and os.listdir(root) else "skipped"
            done.append(Action(repository.name, "left" if kind == "left" else "skipped", reason="there is no repository any more"))
            return
        if os.path.realpath(root) != os.path.join(os.path.realpath(self._workspace.path), *repository.directory.split("/")):
            done.append(Action(repository.name, "failed", reason=f"a link leads from {repository.directory} to another place"))
            return
        below = f"{repository.directory}/"
        strangers = frozenset(place.removeprefix(below) for place in self._places if place.startswith(below))
        task = Task(repository, root, self._id, strangers, self._identity)
        format_ = clone_format(clone_path(self._workspace.clones, repository.url), repository.commit)
        found = read_repository(root, format_, timeout=self._until.left())
        number = self._workspace.repositories.index(repository)
        scratch = ScratchRepository.make(
            os.path.join(self._home, f"repository-{number}.git"),
            format_,
            lenders(task, self._workspace.clones),
            shallow=found.shallow,
            time_left=self._until.left,
        )
        try:
            url = repository.url
            transport = Transport.to(url, credentials=self._credentials(url), timeout=self._until.left(), environment=self._environment)
            remote = Remote(transport, scratch, self._settings, self._until, self._held)
            Saving(task, found, scratch, remote, self.notes, self._until, done).run()
        finally:
            scratch.close()

    def strangers(self) -> list[Action]:
        """Tell of the repositories that are not the workspace's own: no remote is known for them, so they stay."""
        own = {repository.directory for repository in self._workspace.repositories}
        reason = "a repository that the session does not know, so no remote of it"
        found = [Action(place, "left", reason=reason) for place in self._places if place not in own]
        self.actions += found
        return found


def _issues(run: _Run, id_: str, forge: CreateIssue | None) -> tuple[list[str], list[str]]:
    """Open an issue for each repository that has recovery branches, unless one tells of them; gives the addresses, and what went wrong."""
    issues: list[str] = []
    trouble: list[str] = []
    for name in dict.fromkeys(one.name for one in run.actions if one.action == "recovered"):
        recovered = [one for one in run.actions if one.action == "recovered" and one.name == name]
        branches = [one.branch for one in recovered if one.branch is not None]
        url = run.notes.issue_about(name, branches)
        if url is None and forge is not None:
            try:
                url = forge(f"Work of session {id_} was saved to recovery branches of {name}", _body(id_, recovered))
            except Exception as error:  # noqa: BLE001  (whoever opens issues is a stranger, and the work is saved by now)
                problem = error.fact if isinstance(error, GittrixError) else f"{type(error).__name__}: {error}"
                trouble.append(f"{name}: no issue could be opened: {problem}")
                continue
            run.notes.opened(name, branches, url)
        if url is not None:
            issues.append(url)
    return issues, trouble


def _body(id_: str, recovered: list[Action]) -> str:
    rows = "".join(f"- `{one.branch}` at {one.commit}: {one.reason or 'its own branch did not take it'}\n" for one in recovered)
    return f"The finalization of session `{id_}` could not bring this work to the branches it was made for:\n\n{rows}"
