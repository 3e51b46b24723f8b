"""The errors a session system can end in, each with a stable code.

Codes are the contract (``docs/reference/errors.md``): programs match on ``.code``, people read the message. A message has up to
four parts, one a line: the fact, why it matters, what to do, how to opt out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, Self, TypedDict, Unpack

PromoteStage = Literal["staging", "apply", "cleanup"]
ConflictKind = Literal["path", "text", "tree"]


class Parts(TypedDict, total=False):
    """The parts of a message after its fact."""

    why: str
    fix: str
    opt_out: str


class Advice(str):
    """A part of a message that names arguments: Python's wording, with that of the command line as an attribute.

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


def first_few(names: Iterable[object], most: int = 3) -> str:
    """Names on one line, such as ``a, b, c and 4 more``.

    Args:
        names: the names.
        most: how many of them are shown.
    """
    listed = [*map(str, names)]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


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

    def __init_subclass__(cls, code: str | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code

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


class AdapterUnavailable(GittrixError, code="ADAPTER_UNAVAILABLE"):
    """A backend cannot be reached or is not what it was said to be."""


class UnsupportedRepository(AdapterUnavailable, code="UNSUPPORTED_REPOSITORY"):
    """The repository is real, but of a kind the engine refuses by name (shallow, partial, unknown ref storage)."""


class AuthFailed(GittrixError, code="AUTH_FAILED"):
    """A remote refused the credentials."""


class PersonRequired(GittrixError, code="PERSON_REQUIRED"):
    """An agent's process asked for what only a person decides: what becomes of work; which sessions begin, end or get messages."""


class CapabilityMissing(GittrixError, code="CAPABILITY_MISSING"):
    """The system, adapter or workspace kind cannot do what was asked."""


class ConfinementMissing(CapabilityMissing):
    """This machine has nothing that confines programs as was asked; the message says what is in the way, and how to get rid of it."""


class ExtraMissing(CapabilityMissing, ImportError):
    """A part of the package needs packages that are not installed; the message has the line that installs them.

    Attributes:
        extra: the name of the extra that installs them.
    """

    def __init__(self, fact: str, *, extra: str, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, **parts)
        self.extra = extra


class InvalidInput(GittrixError, code="INVALID_INPUT"):
    """An argument, option, file or record has a value that is not allowed; the message names it."""


class SessionNotFound(GittrixError, code="SESSION_NOT_FOUND"):
    """No session of that id is in the store."""


class SessionExpired(GittrixError, code="SESSION_EXPIRED"):
    """The session has ended (promoted, discarded or expired) and can do nothing any more.

    Attributes:
        state: the ended state.
    """

    def __init__(self, fact: str, *, state: str, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, **parts)
        self.state = state


class BaselineConflict(GittrixError, code="BASELINE_CONFLICT"):
    """Durable changed, since the session's baseline, at a path that is being promoted (rule 4, docs/explanation/rules.md).

    Attributes:
        conflicting_files: the selected paths that overlap, sorted.
        durable_sha: the head that promotion met.
        baseline_sha: the head the session started from.
        kinds: for each conflicting path ``path`` (would merge as text), ``text`` (would not) or ``tree`` (file/directory or kind clash).
    """

    def __init__(
        self,
        fact: str,
        *,
        conflicting_files: Sequence[str],
        durable_sha: str,
        baseline_sha: str,
        kinds: Mapping[str, ConflictKind] | None = None,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(fact, **parts)
        self.conflicting_files = list(conflicting_files)
        self.durable_sha = durable_sha
        self.baseline_sha = baseline_sha
        self.kinds = dict(kinds or {})


class PromoteFailed(GittrixError, code="PROMOTE_FAILED"):
    """A promotion could not be made; durable is as it was.

    Attributes:
        stage: ``staging`` (the selection), ``apply`` (the commit) or ``cleanup``.
    """

    def __init__(self, fact: str, *, stage: PromoteStage, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, **parts)
        self.stage = stage


class SecretsFound(PromoteFailed, code="SECRETS_FOUND"):
    """A promotion that was to be without secrets has files or lines that look like credentials.

    Attributes:
        secrets: what was found, by path, such as ``line 2: GitHub token``; never the secret itself.
    """

    def __init__(self, fact: str, *, secrets: Mapping[str, Sequence[str]], stage: PromoteStage, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, stage=stage, **parts)
        self.secrets = {path: list(found) for path, found in secrets.items()}


class WorktreeDirty(PromoteFailed, code="WORKTREE_DIRTY"):
    """The human's checked-out branch has work in the way of the selection, or a merge in progress (rule 5)."""


class WorktreeUnwritable(PromoteFailed, code="WORKTREE_UNWRITABLE"):
    """The system would not let the human's checkout of the branch be brought forward: it is read-only, or another user's."""


class PathCollision(PromoteFailed, code="PATH_COLLISION"):
    """A promoted path would differ from another only by case or unicode form."""


class FilteredContent(PromoteFailed, code="FILTERED_CONTENT"):
    """Selected files go through a filter, such as Git LFS, and are not known to be as it would store them.

    Attributes:
        filters: the name of the filter, by path.
    """

    def __init__(self, fact: str, *, filters: Mapping[str, str], stage: PromoteStage, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, stage=stage, **parts)
        self.filters = dict(filters)


class HazardousPath(PromoteFailed, code="HAZARDOUS_PATH"):
    """A promotion that was to be without hazards adds paths that other machines or programs cannot take, or take for something else.

    Attributes:
        hazards: the reason, by path.
    """

    def __init__(self, fact: str, *, hazards: Mapping[str, str], stage: PromoteStage, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, stage=stage, **parts)
        self.hazards = dict(hazards)


class DurableLocked(PromoteFailed, code="DURABLE_LOCKED"):
    """Another program holds a git lock of durable that is not ours to break; the message names the file."""


class WriteRejected(GittrixError, code="WRITE_REJECTED"):
    """A path or its contents may not be written: it escapes the workspace, is a git directory, or is over a limit."""


class PathIsDirectory(WriteRejected, code="PATH_IS_DIRECTORY"):
    """A directory was to be read as a file."""


class PathNotFound(GittrixError, FileNotFoundError, code="PATH_NOT_FOUND"):
    """No such file in the workspace (a deleted file reads as absent: rule 7)."""

    def __init__(self, fact: str, **parts: Unpack[Parts]) -> None:
        GittrixError.__init__(self, fact, **parts)

    def __str__(self) -> str:
        return "\n".join(part for part in (self.fact, self.why, self.fix, self.opt_out) if part)


class EvictionRace(GittrixError, code="EVICTION_RACE"):
    """Another process holds the session's lock and did not let go within the time allowed."""


class LeaseLost(EvictionRace, code="LEASE_LOST"):
    """The right to write was taken away from its owner, which was silent for too long."""


class SessionInUse(GittrixError, code="SESSION_IN_USE"):
    """Processes work in the session's workspace, which would be removed under them.

    Attributes:
        processes: the number and the program of each; none where only the lock of a program of the engine shows that it runs.
    """

    def __init__(self, fact: str, *, processes: Iterable[tuple[int, str]], **parts: Unpack[Parts]) -> None:
        super().__init__(fact, **parts)
        self.processes = tuple(processes)


class TurnBusy(GittrixError, code="TURN_BUSY"):
    """The session has a turn running; it can have one at a time (Pixir)."""


class TurnOver(GittrixError, code="TURN_OVER"):
    """The turn was interrupted, or ended by its caller, and can do nothing to its session any more."""


class WorkItemHeld(GittrixError, code="WORK_ITEM_HELD"):
    """Another session works on the item already (BotMinter).

    Attributes:
        holder: the id of that session.
    """

    def __init__(self, fact: str, *, holder: str, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, **parts)
        self.holder = holder


class SessionNotRestorable(GittrixError, code="SESSION_NOT_RESTORABLE"):
    """The session is not over, or over in a way that nothing comes back from (agent-orchestrator)."""


class WorkspaceMissing(GittrixError, code="WORKSPACE_MISSING"):
    """The session's workspace is gone, and what was to be done needs it (agent-orchestrator).

    Attributes:
        path: where it was.
    """

    def __init__(self, fact: str, *, path: str, **parts: Unpack[Parts]) -> None:
        super().__init__(fact, **parts)
        self.path = path


class MetadataVersionUnsupported(GittrixError, code="METADATA_VERSION_UNSUPPORTED"):
    """A record was written in a version or shape this engine does not know; it was left untouched."""


class LogDamaged(GittrixError, code="LOG_DAMAGED"):
    """A session's event log is damaged in the middle. It is reported, never skipped (rule 10)."""


class ClockConflict(GittrixError, code="CLOCK_CONFLICT"):
    """Another time library already holds this process's clock."""


class Deadlock(GittrixError, code="DEADLOCK"):
    """Actors of a race wait for each other, or a step that a test named was never reached."""


class DaemonRuns(GittrixError, code="DAEMON_RUNS"):
    """Another daemon manages the same home already."""


class DaemonLost(GittrixError, code="DAEMON_LOST"):
    """The daemon did not live to tell what became of a command."""


class GitFailed(AdapterUnavailable, code="GIT_FAILED"):
    """The git binary is missing, too old, timed out or refused a command the engine needs."""
