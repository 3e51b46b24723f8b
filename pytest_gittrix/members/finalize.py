"""Finalization: the work that an agent leaves is committed, pushed, or put on a recovery branch; or it stays, and the result says so.

This is BotMinter's finalization without its losses (docs/explanation/you-know-botminter.md): it finds every commit that the remote does not
have, whatever refers to it, and every file that should be committed. It never runs git in the agent's repositories and changes nothing
in the workspace. It can be killed at any point and run again, and a second run does nothing more. It has neither an engine nor a log: it
reports its events to the caller.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.backends.transport import Transport
from pytest_gittrix.errors import EvictionRace, GittrixError
from pytest_gittrix.git.refs import short_branch
from pytest_gittrix.members.finalize_held import HeldBack
from pytest_gittrix.members.finalize_record import KINDS, NOTES, Action, Finalized, Notes, summarise
from pytest_gittrix.members.finalize_remote import Deadline, Remote, write_settings
from pytest_gittrix.members.finalize_repository import Saving
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.os_level.monotonic import OutOfTime
from pytest_gittrix.workspaces.finder.opened_repository import GONE, opened, refusal
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace
from pytest_gittrix.workspaces.repositories.walk import find_repositories

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.protocol import Forge

DEADLINE: Final = 160.0
"""Seconds that a finalization may take (BotMinter)."""

OnEvent = Callable[[str, Mapping[str, Any]], object]
"""Called with the type and the data of each event: ``finalize.started``, ``finalize.repository`` and ``finalize.finished``."""

CreateIssue = Callable[[str, str], str]
"""Opens an issue with a title and a body, and returns its address."""


def issue_opener(forge: Forge) -> CreateIssue:
    """Open issues at a forge."""
    return lambda title, body: forge.create_issue(title, body).url


Credentials = Callable[[str], tuple[str, str] | None]
"""Returns user and token for an address, or None."""


def finalize(
    workspace: MultiRepoWorkspace,
    id_: str,
    *,
    on_event: OnEvent = lambda _type, _data: None,
    deadline: float = DEADLINE,
    forge: CreateIssue | None = None,
    attempt: int = 1,
    home: str | os.PathLike[str] | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    credentials: Credentials = lambda _url: None,
    environment: Mapping[str, str] | None = None,
    identity: tuple[str, str] = ("gittrix", "gittrix@localhost"),
    allow_secrets: Iterable[str] = (),
    archive: str | os.PathLike[str] | None = None,
) -> Finalized:
    """Save the work in a workspace whose agent has ended.

    Args:
        workspace: the workspace as ``checkout_all`` made it. Its addresses are used, not those in the agent's repositories.
        id_: id of the session.
        on_event: called with each event; with those of a repository once it is done.
        deadline: seconds that it may take. Work that is not saved by then stays.
        forge: opens an issue for each repository that needed recovery branches.
        attempt: the number of this attempt, from 1; for ``finalize.started``.
        home: the engine's directory for this session's finalizations, removed with the workspace; ``<workspace>.finalize`` by default.
        monotonic: the clock of ``deadline``, in seconds.
        credentials: called for each ``http`` address.
        environment: more variables for git, such as ``SSH_AUTH_SOCK``.
        identity: name and address of the committer of uncommitted files.
        allow_secrets: paths and fingerprints of files that a person lets through although they seem to hold credentials; for this and all
            later attempts.
        archive: the directory where held-back files are kept, also when the workspace goes; ``<workspace>.held`` by default.

    Returns:
        The outcome. A remote that cannot be reached is an outcome (``Failed``), not an error.

    Raises:
        InvalidInput: the id cannot be part of a branch's name.
        EvictionRace: another finalization of this workspace ran all the time; no event was reported.
        OSError: the disk refused. Work that was saved by then is saved, and the next attempt continues.
    """
    short_branch(f"recovery/{id_}/HEAD")
    until = Deadline(monotonic() + deadline, monotonic)
    if not os.path.isdir(workspace.path):
        on_event("finalize.started", {"attempt": attempt})
        return _finished(on_event, Finalized("Skipped", reason=f"There is no workspace at {workspace.path}."))
    directory = os.fspath(home) if home is not None else f"{workspace.path}.finalize"
    with locked_file(workspace.path, busy=lambda: _check_time(workspace.path, until)) as lock:
        on_event("finalize.started", {"attempt": attempt})
        kept = Path(archive) if archive is not None else Path(f"{workspace.path}.held")
        run = _Finalization(workspace, id_, directory, until, lock, credentials, environment or {}, identity, kept)
        try:
            run.begin()
            run.notes.allow(allow_secrets)
            for repository in workspace.repositories:
                for action in run.save(repository):
                    on_event("finalize.repository", action.data())
            for action in run.unknown_repositories():
                on_event("finalize.repository", action.data())
            issues, trouble = _issues(run, id_, forge)
            return _finished(on_event, summarise(run.actions, issues, trouble))
        finally:
            run.tidy()


def _finished(on_event: OnEvent, ended: Finalized) -> Finalized:
    on_event("finalize.finished", ended.data())
    return ended


def _check_time(path: str, until: Deadline) -> None:
    """Raise EvictionRace if no time is left to wait for another finalization."""
    try:
        until.left()
    except OutOfTime:
        raise EvictionRace(
            f"{path} is being finalized by another process or thread.",
            why="Two at once would push the same work twice.",
            fix="Wait for that one to end; a push of one that was killed ends by itself.",
        ) from None


@dataclass
class _Finalization:
    """One finalization of one workspace."""

    workspace: MultiRepoWorkspace
    id: str
    home: str
    until: Deadline
    lock: int
    credentials: Credentials
    environment: Mapping[str, str]
    identity: tuple[str, str]
    archive: Path
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = os.path.join(self.home, "gitconfig")
        self.notes = Notes.at(os.path.join(self.home, NOTES))
        self.found: list[str] = []

    def begin(self) -> None:
        """Make the engine's directory, without the remains of a killed attempt, and find the workspace's repositories."""
        self.tidy()
        os.makedirs(self.home, exist_ok=True)
        write_settings(self.settings)
        self.found = find_repositories(self.workspace.path)

    def tidy(self) -> None:
        """Remove all but the notes."""
        home = Path(self.home)
        for left in [*home.glob("repository-*"), *home.glob("tmp_*"), home / "gitconfig"]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        if home.is_dir() and not any(home.iterdir()):
            home.rmdir()

    def save(self, repository: CheckedOutRepository) -> list[Action]:
        """Save one repository, and return what was done."""
        done: list[Action] = []
        try:
            self.until.left()
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
        problem = refusal(self.workspace, repository)
        if problem == GONE:
            root = os.path.join(self.workspace.path, repository.directory)
            has_files = os.path.lexists(root) and os.listdir(root)
            done.append(Action(repository.name, "left" if has_files else "skipped", reason=GONE))
            return
        if problem is not None:
            done.append(Action(repository.name, "failed", reason=problem))
            return
        scratch = os.path.join(self.home, f"repository-{self.workspace.repositories.index(repository)}.git")
        with opened(self.workspace, repository, self.found, scratch, self.until.left) as look:
            url, left = repository.url, self.until.left()
            transport = Transport.to(url, credentials=self.credentials(url), timeout=left, environment=self.environment)
            remote = Remote(transport, look.scratch, self.settings, self.until, self.lock)
            held = HeldBack(self.id, self.archive, self.notes.allowed)
            Saving(look, self.id, self.identity, remote, self.notes, held, done).run()

    def unknown_repositories(self) -> list[Action]:
        """Add an action for each repository that the session does not know: no remote is known for it, so it stays."""
        own = {repository.directory for repository in self.workspace.repositories}
        reason = "a repository that the session does not know, so no remote of it"
        actions = [Action(path, "left", reason=reason) for path in self.found if path not in own]
        self.actions += actions
        return actions


def _issues(run: _Finalization, id_: str, forge: CreateIssue | None) -> tuple[list[str], list[str]]:
    """Open an issue for each repository with recovery branches, unless there is one; return the addresses, and what went wrong."""
    issues: list[str] = []
    trouble: list[str] = []
    for name in dict.fromkeys(one.name for one in run.actions if one.action == "recovered"):
        recovered = [one for one in run.actions if one.action == "recovered" and one.name == name]
        branches = [one.branch for one in recovered if one.branch is not None]
        url = run.notes.issue_about(name, branches)
        if url is None and forge is not None:
            try:
                url = forge(f"Work of session {id_} was saved to recovery branches of {name}", _body(id_, recovered))
            except Exception as error:  # noqa: BLE001  (the forge is the user's code, and the work is saved by now)
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
