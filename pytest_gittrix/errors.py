"""The errors a session system can end in, each with a stable code.

Codes are the contract (``docs/reference/errors.md``): programs match on ``.code``, people read the message. A message has up to
four parts, one a line: the fact, why it matters, what to do, how to opt out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, Self

PromoteStage = Literal["staging", "apply", "cleanup"]
ConflictKind = Literal["path", "text", "tree"]


class Advice(str):
    """A part of a message that names arguments: it is Python's wording, and carries that of the command line beside it.

    Args:
        python: for who calls a function: ``Promote with strategy='branch'.``
        command: for who typed a command: ``Promote with --strategy branch.``
    """

    command: str

    def __new__(cls, python: str, command: str = "") -> Self:
        advice = super().__new__(cls, python)
        advice.command = command
        return advice


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word that was probably meant by ``word``; None if none is alike by that much, of 1 for the same word."""
    from difflib import get_close_matches

    near = get_close_matches(word, [*known], 1, likeness)
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question ``Did you mean start? ``, with a space behind it, for the known word that was probably meant; empty if there is none."""
    near = nearest(word, known)
    return f"Did you mean {near}? " if near is not None else ""


class GittrixError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        fact: what happened, naming the thing it happened to.
        why: why that matters to the reader.
        fix: what to do about it.
        opt_out: how to switch the rule off, where that is possible.

    A part that is an :class:`Advice` is worded for the command line too.

    Attributes:
        outcome: ``unknown`` if the operation had begun, so that a recovery finishes or undoes it; None otherwise.
        session: the id of the session that is made then, if it is finished; None for an operation that makes none.
    """

    code: ClassVar[str] = "GITTRIX_ERROR"

    outcome: Literal["unknown"] | None = None
    session: str | None = None

    def __init__(self, fact: str, *, why: str = "", fix: str = "", opt_out: str = "") -> None:
        self.fact, self.why, self.fix, self.opt_out = fact, why, fix, opt_out
        super().__init__("\n".join(part for part in (fact, why, fix, opt_out) if part))

    def leave_open(self, why: str, fix: str, session: str | None = None) -> None:
        """Say that the operation had begun: its outcome is unknown, and ``why`` and ``fix`` are about that."""
        self.outcome, self.session = "unknown", session
        self.why, self.fix = why, fix
        self.args = ("\n".join(part for part in (self.fact, why, fix, self.opt_out) if part),)

    def command_message(self) -> str:
        """The message as the command line words it: it speaks of flags and commands where ``str()`` speaks of arguments and calls."""
        parts = (self.fact, self.why, self.fix, self.opt_out)
        worded = [part.command if isinstance(part, Advice) else part for part in parts]
        return "\n".join(part for part in worded if part)


class AdapterUnavailable(GittrixError):
    """A backend cannot be reached or is not what it was said to be."""

    code = "ADAPTER_UNAVAILABLE"


class UnsupportedRepository(AdapterUnavailable):
    """The repository is real, but of a kind the engine refuses by name (shallow, partial, unknown ref storage)."""

    code = "UNSUPPORTED_REPOSITORY"


class AuthFailed(GittrixError):
    """A remote refused the credentials."""

    code = "AUTH_FAILED"


class PersonRequired(GittrixError):
    """An agent's process asked for what only a person decides: what becomes of work; which sessions begin, end or get messages."""

    code = "PERSON_REQUIRED"


class CapabilityMissing(GittrixError):
    """The system, adapter or workspace kind cannot do what was asked."""

    code = "CAPABILITY_MISSING"


class ConfinementMissing(CapabilityMissing):
    """This machine has nothing that confines programs as was asked; the message says what is in the way, and how to get rid of it."""


class ExtraMissing(CapabilityMissing, ImportError):
    """A part of the package needs packages that are not installed; the message has the line that installs them.

    Attributes:
        extra: the name of the extra that installs them.
    """

    def __init__(self, fact: str, *, extra: str, why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.extra = extra


class InvalidInput(GittrixError):
    """An argument, option, file or record has a value that is not allowed; the message names it."""

    code = "INVALID_INPUT"


class SessionNotFound(GittrixError):
    """No session of that id is in the store."""

    code = "SESSION_NOT_FOUND"


class SessionExpired(GittrixError):
    """The session has ended (promoted, discarded or expired) and can do nothing any more.

    Attributes:
        state: the ended state.
    """

    code = "SESSION_EXPIRED"

    def __init__(self, fact: str, *, state: str, why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.state = state


class BaselineConflict(GittrixError):
    """Durable changed, since the session's baseline, at a path that is being promoted (rule 4, docs/explanation/rules.md).

    Attributes:
        conflicting_files: the selected paths that overlap, sorted.
        durable_sha: the head that promotion met.
        baseline_sha: the head the session started from.
        kinds: for each conflicting path ``path`` (would merge as text), ``text`` (would not) or ``tree`` (file/directory or kind clash).
    """

    code = "BASELINE_CONFLICT"

    def __init__(
        self,
        fact: str,
        *,
        conflicting_files: Sequence[str],
        durable_sha: str,
        baseline_sha: str,
        kinds: Mapping[str, ConflictKind] | None = None,
        why: str = "",
        fix: str = "",
        opt_out: str = "",
    ) -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.conflicting_files = list(conflicting_files)
        self.durable_sha = durable_sha
        self.baseline_sha = baseline_sha
        self.kinds = dict(kinds or {})


class PromoteFailed(GittrixError):
    """A promotion could not be made; durable is as it was.

    Attributes:
        stage: ``staging`` (the selection), ``apply`` (the commit) or ``cleanup``.
    """

    code = "PROMOTE_FAILED"

    def __init__(self, fact: str, *, stage: PromoteStage, why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.stage = stage


class SecretsFound(PromoteFailed):
    """A promotion that was to be without secrets has files or lines that look like credentials.

    Attributes:
        secrets: what was found, by path, such as ``line 2: GitHub token``; never the secret itself.
    """

    code = "SECRETS_FOUND"

    def __init__(
        self, fact: str, *, secrets: Mapping[str, Sequence[str]], stage: PromoteStage, why: str = "", fix: str = "", opt_out: str = ""
    ) -> None:
        super().__init__(fact, stage=stage, why=why, fix=fix, opt_out=opt_out)
        self.secrets = {path: list(found) for path, found in secrets.items()}


class WorktreeDirty(PromoteFailed):
    """The human's checked-out branch has work in the way of the selection, or a merge in progress (rule 5)."""

    code = "WORKTREE_DIRTY"


class WorktreeUnwritable(PromoteFailed):
    """The system would not let the human's checkout of the branch be brought forward: it is read-only, or another user's."""

    code = "WORKTREE_UNWRITABLE"


class PathCollision(PromoteFailed):
    """A promoted path would differ from another only by case or unicode form."""

    code = "PATH_COLLISION"


class FilteredContent(PromoteFailed):
    """Selected files go through a filter, such as Git LFS, and are not known to be as it would store them.

    Attributes:
        filters: the name of the filter, by path.
    """

    code = "FILTERED_CONTENT"

    def __init__(
        self, fact: str, *, filters: Mapping[str, str], stage: PromoteStage, why: str = "", fix: str = "", opt_out: str = ""
    ) -> None:
        super().__init__(fact, stage=stage, why=why, fix=fix, opt_out=opt_out)
        self.filters = dict(filters)


class HazardousPath(PromoteFailed):
    """A promotion that was to be without hazards adds paths that other machines or programs cannot take, or take for something else.

    Attributes:
        hazards: the reason, by path.
    """

    code = "HAZARDOUS_PATH"

    def __init__(
        self, fact: str, *, hazards: Mapping[str, str], stage: PromoteStage, why: str = "", fix: str = "", opt_out: str = ""
    ) -> None:
        super().__init__(fact, stage=stage, why=why, fix=fix, opt_out=opt_out)
        self.hazards = dict(hazards)


class DurableLocked(PromoteFailed):
    """Another program holds a git lock of durable that is not ours to break; the message names the file."""

    code = "DURABLE_LOCKED"


class WriteRejected(GittrixError):
    """A path or its contents may not be written: it escapes the workspace, is a git directory, or is over a limit."""

    code = "WRITE_REJECTED"


class PathIsDirectory(WriteRejected):
    """A directory was to be read as a file."""

    code = "PATH_IS_DIRECTORY"


class PathNotFound(GittrixError, FileNotFoundError):
    """No such file in the workspace (a deleted file reads as absent: rule 7)."""

    code = "PATH_NOT_FOUND"

    def __init__(self, fact: str, *, why: str = "", fix: str = "", opt_out: str = "") -> None:
        GittrixError.__init__(self, fact, why=why, fix=fix, opt_out=opt_out)

    def __str__(self) -> str:
        return "\n".join(part for part in (self.fact, self.why, self.fix, self.opt_out) if part)


class EvictionRace(GittrixError):
    """Another process holds the session's lock and did not let go within the time allowed."""

    code = "EVICTION_RACE"


class LeaseLost(EvictionRace):
    """The right to write was taken away from its owner, which was silent for too long."""

    code = "LEASE_LOST"


class SessionInUse(GittrixError):
    """Processes work in the session's workspace, which would be removed under them.

    Attributes:
        processes: the number and the program of each; none where only the lock of a program of the engine shows that it runs.
    """

    code = "SESSION_IN_USE"

    def __init__(self, fact: str, *, processes: Iterable[tuple[int, str]], why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.processes = tuple(processes)


class TurnBusy(GittrixError):
    """The session has a turn running; it can have one at a time (Pixir)."""

    code = "TURN_BUSY"


class TurnOver(GittrixError):
    """The turn was interrupted, or ended by its caller, and can do nothing to its session any more."""

    code = "TURN_OVER"


class WorkItemHeld(GittrixError):
    """Another session works on the item already (BotMinter).

    Attributes:
        holder: the id of that session.
    """

    code = "WORK_ITEM_HELD"

    def __init__(self, fact: str, *, holder: str, why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.holder = holder


class SessionNotRestorable(GittrixError):
    """The session is not over, or over in a way that nothing comes back from (agent-orchestrator)."""

    code = "SESSION_NOT_RESTORABLE"


class WorkspaceMissing(GittrixError):
    """The session's workspace is gone, and what was to be done needs it (agent-orchestrator).

    Attributes:
        path: where it was.
    """

    code = "WORKSPACE_MISSING"

    def __init__(self, fact: str, *, path: str, why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.path = path


class MetadataVersionUnsupported(GittrixError):
    """A record was written in a version or shape this engine does not know; it was left untouched."""

    code = "METADATA_VERSION_UNSUPPORTED"


class LogDamaged(GittrixError):
    """A session's event log is damaged in the middle. It is reported, never skipped (rule 10)."""

    code = "LOG_DAMAGED"


class ClockConflict(GittrixError):
    """Another time library already holds this process's clock."""

    code = "CLOCK_CONFLICT"


class Deadlock(GittrixError):
    """Actors of a race wait for each other, or a step that a test named was never reached."""

    code = "DEADLOCK"


class DaemonRuns(GittrixError):
    """Another daemon manages the same home already."""

    code = "DAEMON_RUNS"


class DaemonLost(GittrixError):
    """The daemon did not live to tell what became of a command."""

    code = "DAEMON_LOST"


class GitFailed(AdapterUnavailable):
    """The git binary is missing, too old, timed out or refused a command the engine needs."""

    code = "GIT_FAILED"
