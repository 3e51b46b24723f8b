"""Checks of a result: by a command, an expected tree or diff, a Python function, or pytest.

A check sees a checkout of what was promoted. Equal results give equal check results, so these hold no output of programs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.confine.launcher import NOT_FOUND
from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.errors import AdapterUnavailable, first_few
from pytest_gittrix.evals.inputs.agent_code import load
from pytest_gittrix.evals.inputs.case_repo import contents_of, patched_tree
from pytest_gittrix.evals.inputs.hidden_tests import imported_files
from pytest_gittrix.evals.inputs.sample_record import CheckResult
from pytest_gittrix.evals.inputs.suite import Case, CaseCheck, CheckKind
from pytest_gittrix.evals.judging.pytest_check import judge
from pytest_gittrix.evals.judging.pytest_run import HiddenTests, PytestPlace
from pytest_gittrix.evals.judging.verdict import Verdict
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import Entry, changed_paths
from pytest_gittrix.os_level.monotonic import interrupt_after
from pytest_gittrix.testing.repos.history import Executable, resolve

MACHINE_FAILURES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENFILE, errno.ENOMEM})
"""Numbers of errors that a machine causes, and no result."""

_ROOTS: Final = ("src", ".")
"""Where a project keeps its modules."""


class _CheckTimeUp(BaseException):
    """The time of a check is up. No ``except Exception`` of a function catches it."""


@dataclass(frozen=True)
class ResultToCheck:
    """The result of a sample, as its checks see it.

    Attributes:
        case: the case.
        path: a checkout of the result, without links that lead out of it.
        repository: the durable repository.
        before: the commit that the result is based on.
        commit: the result: the promoted commit, or ``before`` if nothing was promoted.
    """

    case: Case
    path: Path
    repository: Repository
    before: str
    commit: str

    def read(self, path: str) -> bytes:
        """The bytes of a file of the result. Raises PathNotFound if there is no such file."""
        return self.repository.read(path, self.commit)

    @property
    def files(self) -> Mapping[str, Entry]:
        """The entries of the result, by path."""
        return self.repository.entries(self.commit)


@dataclass(frozen=True)
class CheckPlace:
    """A checkout of the result for one program or function alone.

    Attributes:
        path: the checkout.
        home: the home directory of programs, which is empty.
        launch: runs a program in the checkout, given ``argv`` and by name ``stdin``, ``share`` (the part of the time left that it
            may take) and further variables.
        finds: whether a program is on the ``PATH`` of what ``launch`` runs.
    """

    path: Path
    home: Path
    launch: Callable[..., Finished]
    finds: Callable[[str], bool] = lambda _: True


@dataclass(frozen=True)
class CheckContext:
    """What a check can use.

    Attributes:
        place: makes a place for a program or a function.
        scratch: a directory for files of the check, which no program can read.
    """

    place: Callable[[], CheckPlace]
    scratch: Path


def run_check(check: CaseCheck, result: ResultToCheck, context: CheckContext) -> tuple[CheckResult, Finished | None]:
    """Run one check on a result.

    Args:
        check: the check.
        result: the result.
        context: what the check can use.

    Returns:
        What the check found, and how its program ended if it has one.

    Raises:
        AdapterUnavailable: the machine failed while a function read the result, or the program of the check is not on this machine.
        InvalidInput: the check cannot be run: its function cannot be loaded, or its diff does not apply to the result's base.
    """
    match check.kind:
        case "command":
            return _by_program(check, context.place())
        case "pytest" | "tests":
            return _by_pytest(check, result, context)
        case "tree":
            return _by_tree(check, result), None
        case "diff":
            return _by_diff(check, result, context), None
        case "function":
            return _by_function(check, replace(result, path=without_links_out(context.place().path))), None


def _by_program(check: CaseCheck, place: CheckPlace) -> tuple[CheckResult, Finished]:
    done = place.launch([*check.command])
    if done.code == NOT_FOUND and not place.finds(check.command[0]):
        raise AdapterUnavailable(
            f"A check cannot run: there is no program {check.command[0]!r} on its PATH.",
            why="It would have failed for every agent.",
            fix="Install the program, where the level of confinement shows it: below /usr, or in the environment of this Python.",
        )
    if done.timed_out:
        return CheckResult(check.kind, False, "its time was up"), done
    how = f"status {done.code}" if done.code is not None else f"signal {done.signal}"
    return CheckResult(check.kind, done.code == 0, "" if done.code == 0 else how), done


def _by_pytest(check: CaseCheck, result: ResultToCheck, context: CheckContext) -> tuple[CheckResult, Finished]:
    assert check.path is not None
    known = _modules_of(result)

    def place() -> PytestPlace:
        made = context.place()
        return PytestPlace(partial(made.launch, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"), made.home)

    if check.kind == "pytest":
        verdict = judge(HiddenTests(check.path.name, check.path.read_text(encoding="utf-8"), known=known), place)
        return CheckResult(check.kind, not verdict.wrong, verdict.detail, dict(verdict.judges), dict(verdict.failed)), verdict.done
    return _by_files(check.kind, [*_hidden_tests(check.path, check.must_pass, known)], place)


def _modules_of(result: ResultToCheck) -> frozenset[str]:
    """The top-level modules that the repository had before the agent came."""
    found = set()
    for path in result.repository.entries(result.before):
        root, *inside = path.removeprefix("src/").split("/")
        if inside == ["__init__.py"]:
            found.add(root)
        elif not inside and root.endswith(".py"):
            found.add(root.removesuffix(".py"))
    return frozenset(found)


def _by_files(kind: CheckKind, files: Sequence[HiddenTests], place: Callable[[], PytestPlace]) -> tuple[CheckResult, Finished]:
    """Judge every file, also after one that did not pass: the table of tests is whole, unless the time was up."""
    found: list[tuple[HiddenTests, Verdict]] = []
    for tests in files:
        if not found or not found[-1][1].done.timed_out:
            found.append((tests, judge(tests, place)))
    wrong = [(tests, verdict) for tests, verdict in found if verdict.wrong]
    judges = {f"{tests.name}::{name}": by for tests, verdict in found for name, by in verdict.judges.items()}
    failed = {f"{tests.name}::{name}": by for tests, verdict in found for name, by in verdict.failed.items()}
    # A file whose tests are not known counts as one test, under its own name.
    failed |= {tests.name: "subject" for tests, verdict in wrong if not verdict.failed}
    for tests in files[len(found) :]:
        failed |= dict.fromkeys([f"{tests.name}::{name}" for name in tests.chosen] or [tests.name], "subject")
    shown = [f"{tests.name}: {verdict.detail}" for tests, verdict in wrong or found if verdict.detail]
    detail = "; ".join(shown[:1] if wrong else shown) + (f"; and {len(wrong) - 1} more files" if len(wrong) > 1 else "")
    return CheckResult(kind, not wrong, detail, judges, failed), (wrong or found)[0 if wrong else -1][1].done


def _hidden_tests(directory: Path, named: Sequence[str], known: frozenset[str]) -> Iterator[HiddenTests]:
    """The tests of each file that has some that must pass. A file of tests sees the others that it imports."""
    contents = {path: one.data if isinstance(one, Executable) else one for path, one in contents_of(directory).items()}
    files = {path: data for path, data in contents.items() if isinstance(data, bytes)}
    modules = dict.fromkeys(one.partition("::")[0] for one in named)
    support = {path: data for path, data in files.items() if path not in modules}
    tests = {path: files[path] for path in modules}
    for module in modules:
        # A file that is named without a test is run whole.
        chosen = () if module in named else tuple(one.partition("::")[2] for one in named if one.startswith(f"{module}::"))
        beside = {**support, **imported_files(tests, module)}
        yield HiddenTests(module, files[module].decode("utf-8"), beside, chosen, _ROOTS, known)


def _by_tree(check: CaseCheck, result: ResultToCheck) -> CheckResult:
    assert check.path is not None
    wanted = _expected(check.path, result.case.digest)
    files = result.files
    wrong = sorted(path for path in {*wanted, *files} if wanted.get(path) != files.get(path))
    return CheckResult(check.kind, not wrong, _listed(wrong))


def _by_diff(check: CaseCheck, result: ResultToCheck, context: CheckContext) -> CheckResult:
    assert check.path is not None
    repository = result.repository
    wanted = patched_tree(repository, result.before, check.path, context.scratch)
    if wanted == repository.tree(result.commit):
        return CheckResult(check.kind, True)
    return CheckResult(check.kind, False, _listed(sorted(changed_paths(repository.trees.read, wanted, repository.tree(result.commit)))))


def _by_function(check: CaseCheck, result: ResultToCheck) -> CheckResult:
    function: Any = getattr(load(str(check.path)), check.function)
    try:
        with interrupt_after(result.case.timeout_ms / 1000, _CheckTimeUp):
            answer = function(result)
    except _CheckTimeUp:
        return CheckResult(check.kind, False, "its time was up")
    except KeyboardInterrupt:
        raise
    except OSError as problem:
        if problem.errno in MACHINE_FAILURES:
            raise AdapterUnavailable(f"The machine failed in a check: {problem}.", fix="Free disk space, or check the disk.") from None
        return CheckResult(check.kind, False, f"{type(problem).__name__}: {problem}".splitlines()[0])
    except BaseException as problem:  # noqa: BLE001  (also SystemExit, and what pytest.fail raises: a check that is not satisfied)
        first = (str(problem).splitlines() or [""])[0]
        return CheckResult(check.kind, False, f"{type(problem).__name__}: {first}")
    return CheckResult(check.kind, answer is not False, "" if answer is not False else "it answered False")


def without_links_out(path: Path) -> Path:
    """Remove the links of a checkout that lead out of it: a function reads them with the rights of the run; return the checkout."""
    root = os.path.realpath(path)
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            link = os.path.join(directory, name)
            if os.path.islink(link) and not f"{os.path.realpath(link)}/".startswith(f"{root}/"):
                os.unlink(link)
    return path


@lru_cache(maxsize=64)
def _expected(directory: Path, _digest: str) -> dict[str, Entry | None]:
    return resolve(contents_of(directory), SHA1)[0]


def _listed(paths: list[str]) -> str:
    return first_few(paths) + " differ" * bool(paths)
