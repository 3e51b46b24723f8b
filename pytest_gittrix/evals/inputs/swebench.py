"""Data sets in the format of SWE-bench, as suites: one line of JSON, one case, on repositories that are on this machine.

Nothing is downloaded and no image is built: a case runs with what is installed where the suite is run. The fields are those of the
SWE-bench data set: ``instance_id``, ``repo``, ``base_commit``, ``problem_statement``, ``patch``, ``test_patch``, ``FAIL_TO_PASS`` and
``PASS_TO_PASS``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.hidden_tests import write_tests
from pytest_gittrix.evals.inputs.identity import check_id, suite_name
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.inputs.suite_writer import TESTS, case_with_tests, free_path, new_suite, write_files
from pytest_gittrix.formats.toml_file import toml_text

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]*[A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Instance:
    """One line of a data set.

    Attributes:
        id: the name of the instance.
        repository: ``owner/name``.
        commit: the commit that the agent starts from.
        task: the task as the agent gets it.
        gold: a patch that solves the task; empty if there is none.
        test_patch: a patch that adds the tests; empty if the repository has them.
        fail_to_pass: pytest's ids of tests that fail before the change and must pass after it.
        pass_to_pass: pytest's ids of tests that pass and must still pass.
    """

    id: str
    repository: str
    commit: str
    task: str
    gold: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """The ids of all tests that must pass."""
        return tuple(dict.fromkeys((*self.fail_to_pass, *self.pass_to_pass)))


def instances(text: str) -> list[Instance]:
    """Read a data set.

    Args:
        text: JSON objects, one a line; blank lines are skipped.

    Raises:
        InvalidInput: a line is not a JSON object, a field is missing or wrong, or two lines have one id; the message names the line.
    """
    found: dict[str, Instance] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        one = _instance(number, line)
        if one.id.casefold() in found:
            _wrong(number, f"the instance_id {one.id!r} already exists", "Ids are the names of directories; give each line its own.")
        found[one.id.casefold()] = one
    if not found:
        raise InvalidInput("The data set has no line.", fix="Give one JSON object on each line.")
    return [*found.values()]


def case_files(instance: Instance, repository: Path) -> dict[str, str]:
    """The files of a case but its hidden tests, by their path in its directory.

    Args:
        instance: the instance.
        repository: its repository on this machine.
    """
    case = case_with_tests(repository, instance.commit, instance.tests, gold=bool(instance.gold))
    return {"task.md": instance.task, "case.toml": case, **({"gold.patch": instance.gold} if instance.gold else {})}


def import_swebench(file: str | os.PathLike[str], repositories: str | os.PathLike[str], out: str | os.PathLike[str]) -> Suite:
    """Make a suite of a data set.

    Args:
        file: the data set.
        repositories: a directory with its repositories, as ``owner/name``, ``owner__name`` or ``name``, with or without ``.git``.
        out: the directory of the suite, which must not be there; it is made whole or not at all.

    Raises:
        InvalidInput: the data set is none, a repository or a commit is not there, or ``out`` is.
    """
    source, target = Path(file), free_path(out)
    try:
        found = instances(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{source} cannot be read: {error}.", fix="Give a file of JSON lines, in UTF-8.") from None
    places = {one.repository: repository_of(one.repository, Path(repositories)) for one in found}
    with new_suite(target) as draft:
        write_files(draft, {"suite.toml": f"schema = 1\nname = {toml_text(suite_name(target.name))}\n"})
        for one in found:
            case = draft / "cases" / one.id
            write_files(case, case_files(one, places[one.repository]))
            write_tests(places[one.repository], one.commit, case / TESTS, one.tests, patch=one.test_patch.encode())
    return Suite.load(target)


def repository_of(name: str, repositories: Path) -> Path:
    """Where a repository of this machine is.

    Args:
        name: ``owner/name``.
        repositories: a directory with repositories.

    Raises:
        InvalidInput: it is nowhere below it.
    """
    owner, _, short = name.partition("/")
    stems = (f"{owner}/{short}", f"{owner}__{short}", short)
    candidates = [repositories / f"{stem}{ending}" for stem in stems for ending in ("", ".git")]
    for candidate in candidates:
        if (candidate / ".git").exists() or (candidate / "HEAD").is_file():
            return candidate.resolve()
    raise InvalidInput(
        f"The repository {name} is not in {repositories}.",
        why="Cases run on repositories of this machine; nothing is downloaded.",
        fix=f"Clone it to one of {', '.join(str(one.relative_to(repositories)) for one in candidates)}.",
    )


def _instance(number: int, line: str) -> Instance:
    try:
        fields = json.loads(line)
    except ValueError as error:
        _wrong(number, f"it is not JSON: {error}", "Write one JSON object on each line.")
    if not isinstance(fields, dict):
        _wrong(number, "it is not a JSON object", "Write one JSON object on each line.")
    one = Instance(
        id=check_id(_text(number, fields, "instance_id"), f"line {number}: instance_id: "),
        repository=_text(number, fields, "repo"),
        commit=_text(number, fields, "base_commit"),
        task=_text(number, fields, "problem_statement"),
        gold=_text(number, fields, "patch", needed=False),
        test_patch=_text(number, fields, "test_patch", needed=False),
        fail_to_pass=_tests(number, fields, "FAIL_TO_PASS"),
        pass_to_pass=_tests(number, fields, "PASS_TO_PASS"),
    )
    if not _REPOSITORY.fullmatch(one.repository):
        _wrong(number, f"repo is {one.repository!r}", 'Give it as "owner/name".')
    if not _COMMIT.fullmatch(one.commit):
        _wrong(number, f"base_commit is {one.commit!r}", "Give the full id of a commit.")
    if not one.fail_to_pass and not one.pass_to_pass:
        _wrong(number, "no test is named", "Name tests in FAIL_TO_PASS or PASS_TO_PASS: without one, no sample can pass or fail.")
    return one


def _text(number: int, fields: Mapping[str, Any], name: str, *, needed: bool = True) -> str:
    value = fields.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or "\0" in value or (needed and not value.strip()):
        _wrong(number, f"{name} is {value!r:.100}", "Give it as text, without NUL.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _wrong(number, f"{name} has half of a surrogate pair", "Write it as UTF-8.")
    return value


def _tests(number: int, fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Ids of tests: a list, or as in the published data set a list within a text."""
    value = fields.get(name) or []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list) or not all(isinstance(one, str) and one and one[0] != "-" and "\0" not in one for one in value):
        _wrong(number, f"{name} is {fields.get(name)!r:.100}", "Give it as a list of pytest's ids.")
    if strange := [one for one in value if ".py" not in one.partition("::")[0]]:
        _wrong(number, f"{name} has {strange[0]!r}", "Only tests that pytest can name (path/test_x.py::test_y) can be run here.")
    return tuple(value)


def _wrong(number: int, fact: str, fix: str) -> NoReturn:
    raise InvalidInput(f"Line {number} is not a SWE-bench instance: {fact}.", why="A missing line would change the score.", fix=fix)
