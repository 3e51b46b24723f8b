"""Suites: a directory with ``suite.toml`` and a directory for each case, read into everything that a sample needs.

The digest of a case covers every file of it and every setting that results depend on.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal

from pytest_gittrix.engine.promotion.conflicts import OnOverlap
from pytest_gittrix.errors import GittrixError, InvalidInput, did_you_mean
from pytest_gittrix.evals.inputs.identity import check_id, digest_of
from pytest_gittrix.evals.inputs.suite_file import GENERATED, CaseTable, Defaults, DriftAt, DurableTable, SuiteFile
from pytest_gittrix.evals.spending.model_limits import NO_LIMITS, ModelLimits
from pytest_gittrix.formats.toml_file import load_toml
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.workspaces.kinds import WorkspaceKind
from pytest_gittrix.workspaces.seeds.seed import History

CheckKind = Literal["command", "tree", "diff", "function", "pytest", "tests"]

_SUITE_FILE: Final = "suite.toml"


@dataclass(frozen=True, slots=True)
class CaseSource:
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
class CaseCheck:
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

    def denied(self, paths: Iterable[str]) -> list[str]:
        """Those of some paths that may not be touched."""
        every = [*paths]
        found = [path for path in every if any(fnmatchcase(path, pattern) for pattern in self.deny)]
        if self.allow:
            found += [path for path in every if not any(fnmatchcase(path, pattern) for pattern in self.allow)]
        return found


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
        check_network: what programs of the checks reach; nothing by default.
        model_limits: what the agent may use of its model.
        work: the digest of what the agent works on: everything of the case but its checks and solutions.
    """

    id: str
    directory: Path
    task: str
    source: CaseSource
    checks: tuple[CaseCheck, ...]
    digest: str = ""
    drift: Drift | None = None
    gold: Path | None = None
    timeout_ms: int = 120_000
    output: int = 10_000_000
    review: ReviewRule = ReviewRule()
    workspace: WorkspaceKind = "clone"
    history: History = "none"
    on_overlap: OnOverlap = "refuse"
    check_network: tuple[str, ...] = ()
    model_limits: ModelLimits = NO_LIMITS
    work: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of cases. Made by ``Suite.load``.

    Attributes:
        name: the name of the suite.
        directory: its directory.
        clock_start: the instant of the frozen clock of every sample.
        confine: the level of confinement of programs, unless the run has another one.
        cases: the cases, sorted by id.
        network: what agents reach, unless the run says it; see ``confine.check_network``.
        readable: what agents may read beyond their workspaces, unless the run says it.
    """

    name: str
    directory: Path
    clock_start: datetime
    confine: str
    cases: tuple[Case, ...]
    network: tuple[str, ...] = ()
    readable: tuple[Path, ...] = ()

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
        top = load_toml(file, SuiteFile)
        cases = sorted((_read_case(directory, top.defaults) for directory in _directories(file.parent / "cases")), key=lambda case: case.id)
        if not cases:
            raise InvalidInput(f"{file.parent} has no case.", fix="Make cases/<id>/case.toml.")
        _require_unlike(cases)
        name = top.name or check_id(file.parent.name, f"{file}: name: ")
        readable = tuple(file.parent / os.path.expanduser(one) for one in top.agent.readable)
        return cls(name, file.parent, top.clock_start, top.defaults.confine, tuple(cases), tuple(top.agent.network), readable)

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


def _read_case(directory: Path, defaults: Defaults) -> Case:
    file = directory / "case.toml"
    table = load_toml(file, CaseTable, context=directory)
    check, limits, drift, review = table.check, table.limits, table.drift, table.review
    checks = (
        CaseCheck("command", tuple(check.command)) if check.command else None,
        CaseCheck("tree", path=check.tree) if check.tree else None,
        CaseCheck("diff", path=check.diff) if check.diff else None,
        CaseCheck("function", path=check.function[0], function=check.function[1]) if check.function else None,
        CaseCheck("pytest", path=check.pytest) if check.pytest else None,
        CaseCheck("tests", path=check.tests, must_pass=tuple(check.must_pass)) if check.tests else None,
    )
    case = Case(
        id=table.id or check_id(directory.name, f"{file}: id: "),
        directory=directory,
        task=_task(file, table.task),
        source=_source(file, table.durable),
        checks=tuple(filter(None, checks)),
        drift=Drift(drift.files, drift.patch, drift.at) if drift else None,
        gold=table.gold,
        timeout_ms=limits.timeout or defaults.timeout,
        output=limits.output or defaults.output,
        review=ReviewRule(tuple(review.exclude), tuple(review.allow), tuple(review.deny)),
        workspace=table.workspace or defaults.workspace,
        history=defaults.history if table.history is None else table.history,
        on_overlap=table.on_overlap or defaults.on_overlap,
        check_network=tuple(check.network),
        model_limits=ModelLimits(limits.max_tokens, limits.max_cost, limits.max_exchanges).over(
            ModelLimits(defaults.max_tokens, defaults.max_cost, defaults.max_exchanges)
        ),
    )
    digest, work = _digests(case)
    return replace(case, digest=digest, work=work)


def _task(case: Path, given: str | None) -> str:
    file = case.parent / "task.md"
    if given is not None:
        return given
    if not file.is_file():
        raise InvalidInput(f"{case}: task must be given.", fix='Write task = "...", or a file task.md.')
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as problem:
        raise InvalidInput(f"{file} is not UTF-8: {problem}.", fix="Write the task as UTF-8 text.") from None
    except OSError as problem:
        raise _unreadable(file, problem) from None


def _source(case: Path, table: DurableTable) -> CaseSource:
    if table.files is not None:
        return CaseSource("files", table.files)
    if table.bundle is not None:
        return CaseSource("bundle", table.bundle, "HEAD" if table.ref is None else table.ref)
    repository = Path(os.path.realpath(case.parent / str(table.path)))
    named = ["rev-parse", "--verify", "--end-of-options", f"{table.commit}^{{commit}}"]
    try:
        found = run_git(["-C", str(repository), *named], env=hermetic_env())
    except GittrixError as problem:
        raise InvalidInput(
            f"{case}: durable.commit {table.commit!r} is not a commit of {repository}.",
            why=problem.fact,
            fix="Name a repository of this machine and a commit in it.",
        ) from None
    return CaseSource("path", repository, found.decode().strip())


def _require_unlike(cases: list[Case]) -> None:
    known: dict[str, Case] = {}
    for case in cases:
        other = known.setdefault(case.id.casefold(), case)
        if other is not case:
            raise InvalidInput(
                f"{case.directory} and {other.directory} have the ids {case.id!r} and {other.id!r}.",
                why="Results are kept by id, also on file systems that ignore case.",
                fix="Give one of them another id.",
            )


def _digests(case: Case) -> tuple[str, str]:
    """The digests of a case's content, and of what the agent works on. They do not cover paths: a moved suite is the same one."""
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
        *([case.model_limits.to_json()] if case.model_limits else []),
    ]
    given = [None if source.kind == "path" else source.path, *([case.drift.files, case.drift.patch] if case.drift else [])]
    places = [path.relative_to(case.directory).as_posix() for path in given if path is not None]
    work = {path: found for path, found in files.items() if any(path == place or path.startswith(f"{place}/") for place in places)}
    return digest_of([settings, files]), digest_of([settings, case.drift.at if case.drift else "", work])


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
        raise InvalidInput(f"{path!r} is not a path.", why="No path holds NUL.", fix="Give the path of a suite's directory.")
    return path
