"""Suites: a directory with ``suite.toml`` and a directory for each case, read into everything that a sample needs.

The digest of a case covers every file of it and every setting that results depend on.
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

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.durations import parse_instant
from pytest_gittrix.engine.promotion.conflicts import OnOverlap, check_on_overlap
from pytest_gittrix.errors import GittrixError, InvalidInput, did_you_mean
from pytest_gittrix.evals.inputs.identity import check_id, digest_of
from pytest_gittrix.evals.inputs.strict_toml import TomlTable
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.os_level.command import LEVELS
from pytest_gittrix.workspaces.seed import History, check_history
from pytest_gittrix.workspaces.workspace import WorkspaceKind, check_kind

SCHEMA: Final = 1
DriftAt = Literal["after-start", "before-promote"]
CheckKind = Literal["command", "tree", "diff", "function", "pytest", "tests"]

GENERATED: Final = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")
"""Directories that tools leave behind; their files are never part of a result."""

_SUITE_FILE: Final = "suite.toml"
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CHECKS: Final = get_args(CheckKind)
_DEFAULT_TIMEOUT_MS: Final = 120_000
_DEFAULT_OUTPUT: Final = 10_000_000
_SUITE_KEYS: Final = ("schema", "name", "clock_start", "defaults")
_DEFAULT_KEYS: Final = ("timeout", "output", "confine", "workspace", "history", "on_overlap")
_CASE_KEYS: Final = ("id", "task", "durable", "drift", "check", "gold", "limits", "review", "workspace", "history", "on_overlap")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the durable repository of a case comes from.

    Attributes:
        kind: ``files`` (a directory that becomes one commit), ``bundle`` (a git bundle) or ``path`` (a repository of this machine).
        path: the directory, the bundle or the repository.
        ref: the reference to take from a bundle, or the full id of the commit to take from a repository; empty for files.
    """

    kind: Literal["files", "bundle", "path"]
    path: Path
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """What a rival commits to the durable repository while the agent works.

    Attributes:
        files: a directory whose files are written; None for a patch.
        patch: a patch that is applied; None for files.
        at: when the rival commits.
    """

    files: Path | None
    patch: Path | None
    at: DriftAt


@dataclass(frozen=True, slots=True)
class Check:
    """One condition for a sample to pass.

    Attributes:
        kind: the kind of the check.
        command: the program and its arguments, for ``command``.
        path: the expected tree or diff, the file that pytest runs, the directory of test files, or the module of a function.
        function: the name of the function in the module.
        must_pass: pytest's ids of the tests, or paths of whole files, in the directory of test files.
    """

    kind: CheckKind
    command: tuple[str, ...] = ()
    path: Path | None = None
    function: str = ""
    must_pass: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewRule:
    """What may be promoted.

    Attributes:
        exclude: names of directories that are left out of the result, at any depth.
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
        id: the name of the case, unique in the suite.
        directory: the directory of the case.
        task: the task as the agent gets it.
        source: the source of the durable repository.
        checks: the checks, all of which the result must pass.
        digest: the digest of every setting and every file of the case.
        drift: what a rival commits meanwhile.
        gold: a patch that solves the task.
        timeout_ms: the time limit of the agent, and of each check, in milliseconds.
        output: the bytes of output that are recorded of one program.
        review: what may be promoted.
        workspace: the kind of workspace.
        history: how much of the past the agent sees.
        on_overlap: what a promotion does if durable changed the same files.
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
        name: the name of the suite.
        directory: its directory.
        clock_start: the instant that the clock of every sample stands at.
        confine: the level of confinement of programs, unless the run has another one.
        cases: the cases, sorted by id.
    """

    name: str
    directory: Path
    clock_start: datetime
    confine: str
    cases: tuple[Case, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Suite:
        """Read a suite.

        Args:
            path: the suite's directory, or its ``suite.toml``.

        Raises:
            InvalidInput: a file has something that is not allowed; the message names file and key.
            AdapterUnavailable: the repository or commit of a case is missing.
        """
        given = Path(_without_nul(os.fspath(path))).absolute()
        file = given if given.name == _SUITE_FILE else given / _SUITE_FILE
        if not file.exists():
            raise InvalidInput(
                f"There is no suite in {file.parent}.",
                why=f"A suite is a directory with a {_SUITE_FILE}.",
                fix=f"{did_you_mean(file.parent.name, _suites_in(file.parent.parent))}Give the path of one.",
            )
        top = TomlTable.read(file, _SUITE_KEYS)
        if top.raw("schema") != SCHEMA or not isinstance(top.raw("schema"), int) or isinstance(top.raw("schema"), bool):
            top.wrong("schema", f"{SCHEMA}, the version that is known", top.raw("schema"))
        defaults = top.table("defaults", _DEFAULT_KEYS)
        cases = sorted((_read_case(directory, defaults) for directory in _directories(file.parent / "cases")), key=lambda case: case.id)
        if not cases:
            raise InvalidInput(f"{file.parent} has no case.", fix="Make cases/<id>/case.toml.")
        _require_unlike(cases)
        name = check_id(top.text("name", file.parent.name), f"{file}: name")
        return cls(name, file.parent, _clock_start(top), defaults.text("confine", "auto", among=LEVELS), tuple(cases))

    def case(self, id_: str) -> Case:
        """The case with an id. Raises InvalidInput if there is none."""
        for case in self.cases:
            if case.id == id_:
                return case
        raise InvalidInput(f"The suite has no case {id_!r}.", fix=f"Use one of {', '.join(case.id for case in self.cases)}.")


def _suites_in(directory: Path) -> list[str]:
    """The names of the suites in a directory, which may be missing."""
    return [file.parent.name for file in directory.glob(f"*/{_SUITE_FILE}")]


def _directories(cases: Path) -> list[Path]:
    """All directories except hidden ones and those of tools. One without a case.toml is an error, so that no case is missed."""
    try:
        found = sorted(cases.iterdir())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise InvalidInput(f"{cases} cannot be read: {problem.strerror}.", fix="Make it a directory that can be.") from None
    return [path for path in found if path.is_dir() and not path.name.startswith(".") and path.name not in GENERATED]


def _read_case(directory: Path, defaults: TomlTable) -> Case:
    table = TomlTable.read(directory / "case.toml", _CASE_KEYS)
    limits = table.table("limits", ("timeout", "output"))
    review = table.table("review", ("exclude", "allow", "deny"))
    case = Case(
        id=check_id(table.text("id", directory.name), f"{table.file}: id"),
        directory=directory,
        task=_task(table),
        source=_source(table.table("durable", ("files", "bundle", "ref", "path", "commit"))),
        checks=_checks(table.table("check", (*_CHECKS, "must_pass"))),
        drift=_drift(table),
        gold=table.inside("gold", directory=False),
        timeout_ms=limits.milliseconds("timeout", defaults.milliseconds("timeout", _DEFAULT_TIMEOUT_MS)),
        output=limits.size("output", defaults.size("output", _DEFAULT_OUTPUT)),
        review=ReviewRule(review.texts("exclude", GENERATED), review.texts("allow"), review.texts("deny")),
        workspace=check_kind(table.text("workspace", defaults.text("workspace", "clone"))),
        history=check_history(next((one.raw("history") for one in (table, defaults) if "history" in one), "none")),
        on_overlap=check_on_overlap(table.text("on_overlap", defaults.text("on_overlap", "refuse"))),
    )
    return replace(case, digest=_digest(case))


def _task(table: TomlTable) -> str:
    file = table.file.parent / "task.md"
    if "task" in table or not file.is_file():
        return table.text("task")
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as problem:
        raise InvalidInput(f"{file} is not UTF-8: {problem}.", fix="Write the task as UTF-8 text.") from None
    except OSError as problem:
        raise _unreadable(file, problem) from None


def _source(table: TomlTable) -> Source:
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


def _commit(table: TomlTable, repository: Path) -> str:
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


def _drift(table: TomlTable) -> Drift | None:
    if "drift" not in table:
        return None
    drift = table.table("drift", ("files", "patch", "at"))
    files, patch = drift.inside("files", directory=True), drift.inside("patch", directory=False)
    if (files is None) == (patch is None):
        raise InvalidInput(f"{table.file}: [drift] needs files or patch, and not both.", fix="Give one of them.")
    at: Any = drift.text("at", "before-promote", among=get_args(DriftAt))
    return Drift(files, patch, at)


def _checks(table: TomlTable) -> tuple[Check, ...]:
    found = [_check(table, kind) for kind in _CHECKS if kind in table]
    if not found:
        raise InvalidInput(
            f"{table.file}: [check] is missing.",
            why="Without a check, no sample can pass or fail.",
            fix=f"Give at least one of {', '.join(_CHECKS)}.",
        )
    return tuple(found)


def _check(table: TomlTable, kind: CheckKind) -> Check:
    if kind == "command":
        command = table.texts("command")
        if not command:
            table.wrong("command", "a program and its arguments, as a list", table.raw("command"))
        return Check(kind, command=command)
    if kind == "function":
        file, _, name = table.text("function").partition(":")
        path = table.beside(file, directory=False) if name.isidentifier() and file.endswith(".py") else None
        if path is None:
            table.wrong("function", "file.py:name of a function in the case's directory", table.text("function"))
        return Check(kind, path=path, function=name)
    if kind == "tests":
        return _hidden_tests(table)
    return Check(kind, path=table.inside(kind, directory=kind == "tree"))


def _hidden_tests(table: TomlTable) -> Check:
    directory, named = table.inside("tests", directory=True), table.texts("must_pass")
    assert directory is not None
    missing = [one for one in named if not (directory / one.partition("::")[0]).is_file()]
    if not named or missing:
        table.wrong("must_pass", "a list of pytest's ids, or of files, in the directory of tests", missing or table.raw("must_pass"))
    return Check("tests", path=directory, must_pass=named)


def _clock_start(top: TomlTable) -> datetime:
    key = "clock_start"
    value = top.raw(key)
    if value is None:
        return CLOCK_START
    try:
        found = value if isinstance(value, datetime) and value.tzinfo is not None else parse_instant(top.text(key))
    except InvalidInput:
        found = None
    if found is None or found < _EARLIEST:
        top.wrong(key, "an instant from 1970 on, such as 2030-01-01T00:00:00Z", value)
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
    """The digest of a case's content. It does not cover the path, so that a moved suite is the same one."""
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
    """Whether an entry of that name is not part of a case: git's own directory, and what tools leave behind."""
    return name == ".git" or name in GENERATED or name.endswith(".pyc")


def _unreadable(path: object, problem: OSError) -> InvalidInput:
    return InvalidInput(
        f"{path} cannot be read: {problem.strerror}.", why="The digest of a case covers all its files.", fix="Let this user read it."
    )


def _without_nul(path: str) -> str:
    if "\0" in path:
        raise InvalidInput(f"{path!r} is no path.", why="No path holds NUL.", fix="Give the path of a suite's directory.")
    return path
