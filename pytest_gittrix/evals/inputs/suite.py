"""A suite: a directory with ``suite.toml`` and a directory for each case, read into values that say everything a sample needs.

A case is what it holds: its digest covers every file of it and every setting that counts.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_gittrix.clock.clock import EPOCH
from pytest_gittrix.durations import format_instant, parse_instant
from pytest_gittrix.engine.promotion.selection import OnOverlap, check_on_overlap
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.evals.inputs.identity import check_id, digest_of
from pytest_gittrix.evals.inputs.strict_toml import Table
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.os_level.confinement_levels import LEVELS
from pytest_gittrix.workspaces.seed import History, check_history
from pytest_gittrix.workspaces.workspace import WorkspaceKind, check_kind

SCHEMA: Final = 1
DriftAt = Literal["after-start", "before-promote"]
CheckKind = Literal["command", "tree", "diff", "function", "pytest"]

GENERATED: Final = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")
"""Directories that tools leave behind; what is in them is never part of a result (the eval research, section 6)."""

_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CHECKS: Final = get_args(CheckKind)
_DEFAULT_TIMEOUT_MS: Final = 120_000
_DEFAULT_OUTPUT: Final = 10_000_000
_SUITE_KEYS: Final = ("schema", "name", "epoch", "defaults")
_DEFAULT_KEYS: Final = ("timeout", "output", "confine", "workspace", "history", "on_overlap")
_CASE_KEYS: Final = ("id", "task", "durable", "drift", "check", "gold", "limits", "review", "workspace", "history", "on_overlap")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the durable repository of a case comes from.

    Attributes:
        kind: ``files`` (a directory that becomes one commit), ``bundle`` (a git bundle) or ``path`` (a repository of this machine).
        path: of it.
        ref: what to take from a bundle, or the full id of the commit to take from a repository; empty for files.
    """

    kind: Literal["files", "bundle", "path"]
    path: Path
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """What somebody else commits to the durable repository while the agent is at work.

    Attributes:
        files: a directory whose files are written; None for a patch.
        patch: a patch that is applied; None for files.
        at: when.
    """

    files: Path | None
    patch: Path | None
    at: DriftAt


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so for a sample to pass.

    Attributes:
        kind: which.
        command: program and words, of ``command``.
        path: of the expected tree or diff, of the file that pytest runs, or of the module of a function.
        function: its name in the module.
    """

    kind: CheckKind
    command: tuple[str, ...] = ()
    path: Path | None = None
    function: str = ""


@dataclass(frozen=True, slots=True)
class ReviewRule:
    """What a review lets through.

    Attributes:
        exclude: names of directories that are left out of the result, wherever they are.
        allow: shell patterns of paths that may be touched; all by default.
        deny: shell patterns of paths that may not; a sample that touches one is refused.
    """

    exclude: tuple[str, ...] = GENERATED
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One task on one repository.

    Attributes:
        id: its name, unique in the suite.
        directory: where it is.
        task: what the agent is told.
        source: the durable repository.
        checks: what the result must satisfy; all of them.
        digest: of everything above and below and of every file of the case.
        drift: what happens in durable meanwhile.
        gold: a patch that solves it.
        timeout_ms: how long the agent may take, in milliseconds; and each check.
        output: bytes of output that are kept of one program.
        review: what may be promoted.
        workspace: kind of workspace.
        history: how much of the past the agent sees.
        on_overlap: what promotion does where durable changed the same files.
    """

    id: str
    directory: Path
    task: str
    source: Source
    checks: tuple[Check, ...]
    digest: str = ""
    drift: Drift | None = None
    gold: Path | None = None
    timeout_ms: int = _DEFAULT_TIMEOUT_MS
    output: int = _DEFAULT_OUTPUT
    review: ReviewRule = ReviewRule()
    workspace: WorkspaceKind = "clone"
    history: History = "none"
    on_overlap: OnOverlap = "refuse"


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of cases. Made by ``Suite.load``.

    Attributes:
        name: what it is called.
        directory: where it is.
        epoch: where the clock of every sample stands.
        confine: how the agent's programs are confined unless the run says otherwise.
        cases: sorted by id.
    """

    name: str
    directory: Path
    epoch: datetime
    confine: str
    cases: tuple[Case, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Suite:
        """Read a suite.

        Args:
            path: its directory, or its ``suite.toml``.

        Raises:
            InvalidInput: something in it is not allowed; the message names file and key.
            AdapterUnavailable: the repository or commit of a case is not there.
        """
        given = Path(_without_nul(os.fspath(path))).absolute()
        file = given if given.name == "suite.toml" else given / "suite.toml"
        top = Table.read(file, _SUITE_KEYS)
        if top.raw("schema") != SCHEMA or not isinstance(top.raw("schema"), int) or isinstance(top.raw("schema"), bool):
            top.wrong("schema", f"{SCHEMA}, the version that is known", top.raw("schema"))
        defaults = top.table("defaults", _DEFAULT_KEYS)
        cases = sorted((_read_case(directory, defaults) for directory in _directories(file.parent / "cases")), key=lambda case: case.id)
        if not cases:
            raise InvalidInput(f"{file.parent} has no case.", fix="Make cases/<id>/case.toml.")
        _require_unlike(cases)
        name = check_id(top.text("name", file.parent.name), f"{file}: name")
        return cls(name, file.parent, _epoch(top), defaults.text("confine", "auto", among=LEVELS), tuple(cases))

    def case(self, id_: str) -> Case:
        """The case of an id. Raises InvalidInput if there is none."""
        for case in self.cases:
            if case.id == id_:
                return case
        raise InvalidInput(f"The suite has no case {id_!r}.", fix=f"Use one of {', '.join(case.id for case in self.cases)}.")


def _directories(cases: Path) -> list[Path]:
    """All directories but hidden ones and those that tools leave: one without a case.toml is a mistake and no reason to run fewer cases."""
    try:
        found = sorted(cases.iterdir())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise InvalidInput(f"{cases} cannot be read: {problem.strerror}.", fix="Make it a directory that can be.") from None
    return [path for path in found if path.is_dir() and not path.name.startswith(".") and path.name not in GENERATED]


def _read_case(directory: Path, defaults: Table) -> Case:
    table = Table.read(directory / "case.toml", _CASE_KEYS)
    limits = table.table("limits", ("timeout", "output"))
    case = Case(
        id=check_id(table.text("id", directory.name), f"{table.file}: id"),
        directory=directory,
        task=_task(table),
        source=_source(table.table("durable", ("files", "bundle", "ref", "path", "commit"))),
        checks=_checks(table.table("check", _CHECKS)),
        drift=_drift(table),
        gold=table.inside("gold", directory=False),
        timeout_ms=limits.milliseconds("timeout", defaults.milliseconds("timeout", _DEFAULT_TIMEOUT_MS)),
        output=limits.size("output", defaults.size("output", _DEFAULT_OUTPUT)),
        review=_review(table.table("review", ("exclude", "allow", "deny"))),
        workspace=check_kind(table.text("workspace", defaults.text("workspace", "clone"))),
        history=check_history(_either(table, defaults, "history", "none")),
        on_overlap=_on_overlap(table, defaults),
    )
    return replace(case, digest=_digest(case))


def _task(table: Table) -> str:
    file = table.file.parent / "task.md"
    if "task" in table or not file.is_file():
        return table.text("task")
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as problem:
        raise InvalidInput(f"{file} is not UTF-8: {problem}.", fix="Write the task as UTF-8 text.") from None
    except OSError as problem:
        raise _unreadable(file, problem) from None


def _source(table: Table) -> Source:
    files, bundle = table.inside("files", directory=True), table.inside("bundle", directory=False)
    given = [key for key in ("files", "bundle", "path") if key in table]
    if len(given) != 1:
        raise InvalidInput(
            f"{table.file}: [durable] has {' and '.join(given) or 'no source'}.",
            why="A case starts from one repository.",
            fix="Give exactly one of files, bundle and path.",
        )
    stray = [key for key in ("ref", "commit") if key in table and key != {"bundle": "ref", "path": "commit"}.get(given[0])]
    if stray:
        table.wrong(stray[0], f"left out: [durable] {given[0]} has none", table.raw(stray[0]))
    if files is not None:
        return Source("files", files)
    if bundle is not None:
        return Source("bundle", bundle, table.text("ref", "HEAD"))
    repository = Path(os.path.realpath(table.file.parent / table.text("path")))
    return Source("path", repository, _commit(table, repository))


def _commit(table: Table, repository: Path) -> str:
    wanted = table.text("commit")
    if wanted.startswith("-") or not wanted:
        table.wrong("commit", "a commit of that repository", wanted)
    try:
        found = run_git(["-C", str(repository), "rev-parse", "--verify", "--end-of-options", f"{wanted}^{{commit}}"], env=hermetic_env())
    except GittrixError as problem:
        raise InvalidInput(
            f"{table.file}: durable.commit {wanted!r} is no commit of {repository}.",
            why=problem.fact,
            fix="Name a repository of this machine and a commit in it.",
        ) from None
    return found.decode().strip()


def _drift(table: Table) -> Drift | None:
    if "drift" not in table:
        return None
    drift = table.table("drift", ("files", "patch", "at"))
    files, patch = drift.inside("files", directory=True), drift.inside("patch", directory=False)
    if (files is None) == (patch is None):
        raise InvalidInput(f"{table.file}: [drift] needs files or patch, and not both.", fix="Give one of them.")
    at: Any = drift.text("at", "before-promote", among=get_args(DriftAt))
    return Drift(files, patch, at)


def _checks(table: Table) -> tuple[Check, ...]:
    found = [_check(table, kind) for kind in _CHECKS if kind in table]
    if not found:
        raise InvalidInput(
            f"{table.file}: [check] is missing.",
            why="Without a check nobody can say whether a sample passed.",
            fix=f"Give at least one of {', '.join(_CHECKS)}.",
        )
    return tuple(found)


def _check(table: Table, kind: CheckKind) -> Check:
    if kind == "command":
        command = table.texts("command")
        if not command:
            table.wrong("command", "a program and its words, as a list", table.raw("command"))
        return Check(kind, command=command)
    if kind == "function":
        file, _, name = table.text("function").partition(":")
        path = table.beside(file, directory=False) if name.isidentifier() and file.endswith(".py") else None
        if path is None:
            table.wrong("function", "file.py:name of a function in the case's directory", table.text("function"))
        return Check(kind, path=path, function=name)
    return Check(kind, path=table.inside(kind, directory=kind == "tree"))


def _review(table: Table) -> ReviewRule:
    return ReviewRule(table.texts("exclude", GENERATED), table.texts("allow"), table.texts("deny"))


def _on_overlap(table: Table, defaults: Table) -> OnOverlap:
    return check_on_overlap(table.text("on_overlap", defaults.text("on_overlap", "refuse")))


def _either(table: Table, defaults: Table, key: str, default: object) -> Any:
    return next((one.raw(key) for one in (table, defaults) if key in one), default)


def _epoch(top: Table) -> datetime:
    value = top.raw("epoch")
    if value is None:
        return EPOCH
    try:
        found = value if isinstance(value, datetime) and value.tzinfo is not None else parse_instant(top.text("epoch"))
    except InvalidInput:
        found = None
    if found is None or found < _EARLIEST:
        top.wrong("epoch", "an instant from 1970 on, such as 2030-01-01T00:00:00Z", value)
    return found


def _require_unlike(cases: list[Case]) -> None:
    known: dict[str, Case] = {}
    for case in cases:
        other = known.setdefault(case.id.casefold(), case)
        if other is not case:
            raise InvalidInput(
                f"{case.directory} and {other.directory} have the ids {case.id!r} and {other.id!r}.",
                why="Results are kept by id, on file systems too that take capitals for small letters.",
                fix="Give one of them another id.",
            )


def _digest(case: Case) -> str:
    """Of what the case holds; not of where it is, so that a moved suite is the same one."""
    files = {path: [kind, hashlib.sha256(data).hexdigest()] for path, kind, data in _files(case.directory)}
    source = case.source
    settings = [
        case.id,
        case.task,
        [source.kind, "" if source.kind == "path" else str(source.path.relative_to(case.directory)), source.ref],
        case.timeout_ms,
        case.output,
        [list(case.review.exclude), list(case.review.allow), list(case.review.deny)],
        [case.workspace, case.history, case.on_overlap],
    ]
    return digest_of([settings, files])


def _files(root: Path) -> Iterator[tuple[str, str, bytes]]:
    def unreadable(problem: OSError) -> None:
        raise _unreadable(problem.filename, problem) from None

    for directory, names, files in os.walk(root, onerror=unreadable):
        names[:] = sorted(name for name in names if not is_left_out(name))
        links = [name for name in names if os.path.islink(os.path.join(directory, name))]
        for name in sorted([*files, *links]):
            path = Path(directory, name)
            try:
                status = path.lstat()
                if is_left_out(name) or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                    continue
                kind = "link" if stat.S_ISLNK(status.st_mode) else "program" if status.st_mode & 0o100 else "file"
                data = os.fsencode(os.readlink(path)) if kind == "link" else path.read_bytes()
            except OSError as problem:
                raise _unreadable(path, problem) from None
            yield path.relative_to(root).as_posix(), kind, data


def is_left_out(name: str) -> bool:
    """Whether something of that name is no part of a case: git's own directory, and what tools leave behind."""
    return name == ".git" or name in GENERATED or name.endswith(".pyc")


def _unreadable(path: object, problem: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be read: {problem.strerror}.", why="A case is all that it holds.", fix="Let this user read it.")


def told(instant: datetime) -> str:
    """An instant as the manifest tells it."""
    return format_instant(instant)


def _without_nul(path: str) -> str:
    if "\0" in path:
        raise InvalidInput(f"{path!r} is no path.", why="No path holds NUL.", fix="Give the path of a suite's directory.")
    return path
