"""Suites from the releases of a package: the agent applies the change of one release while a rival commits a part of the next one.

The history is real. It is made from wheels that are pinned by hash, and the same wheels give the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import Field

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.sample_record import Outcome, Record
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.inputs.suite_writer import digest_of_cases, free_path, new_suite, overlap, write_files
from pytest_gittrix.evals.inputs.wheels import Files, Pins, fetch
from pytest_gittrix.formats.toml_file import TomlTable, Version1, load_toml, toml_list, toml_text
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.patch import FileChange, Side, patch_bytes
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.testing.repos.history import Contents, Executable, History, Step, resolve
from pytest_gittrix.testing.repos.templates import Templates

DRIFT: Final = 30
"""Percentage of the files that may drift which do drift; at least one file does."""

_AUTHOR: Final = ("Release", "release@example.com")
_EXPECTED: Final = "expected.toml"
_TASK: Final = """\
This repository holds {package} {before}, as its wheel has it. Make it {package} {version}.

The change of that release is the patch below. Apply all of it, and change nothing else. It fits on the files as they are now.

```diff
{patch}```
"""
_CASE: Final = """\
{task}gold = "gold.patch"

[durable]
path = "../../history.git"
commit = "{commit}"

[drift]
patch = "drift.patch"
at = "before-promote"

[check]
function = "check.py:is_the_release"
"""
_CHECK: Final = '''\
"""{package} {version}: what it changed is as it released it, and nothing else was changed."""

from pytest_gittrix.git.tree import Entry

RELEASED = {{
{files}}}


def is_the_release(result):
    there = result.files
    for path, entry in RELEASED.items():
        assert there.get(path) == entry, f"{{path}} is not as it was released"
    before = result.repository.entries(result.before)
    others = sorted(path for path in {{*before, *there}} - RELEASED.keys() if before.get(path) != there.get(path))
    assert not others, f"{{others[0]}} was not to be changed"
'''


@dataclass(frozen=True)
class Release:
    """One release of the package.

    Attributes:
        version: its version.
        files: its files by path.
    """

    version: str
    files: Files


@dataclass(frozen=True, slots=True)
class Expected:
    """How a case ends for an agent that applies exactly the requested change.

    Attributes:
        outcome: ``pass``, or ``conflict`` where the drift touches the same paths as the change.
        overlap: those paths, sorted.
    """

    outcome: Outcome
    overlap: tuple[str, ...] = ()


class _ExpectedTable(TomlTable):
    outcome: Outcome
    overlap: list[str] = Field(default_factory=list)


class _ExpectedFile(TomlTable):
    schema_version: Version1
    cases: dict[str, _ExpectedTable]


@dataclass(frozen=True)
class ReleaseSuite:
    """A suite made from releases.

    Attributes:
        suite: the suite.
        pins: its releases, each with the hash of its wheel.
        expected: the expected end of each case, by id.
    """

    suite: Suite
    pins: Pins
    expected: Mapping[str, Expected]

    @property
    def digest(self) -> str:
        """The digest of all cases: the same for the same releases on every machine."""
        return digest_of_cases(self.suite)


def make_releases(pins: Pins, out: str | os.PathLike[str]) -> ReleaseSuite:
    """Fetch the releases of a package, and make a suite of them.

    Args:
        pins: the releases, oldest first.
        out: the directory of the suite, which must not exist; it is made whole or not at all.

    Raises:
        CapabilityMissing: this Python has no pip.
        AdapterUnavailable: pip could not download a wheel.
        InvalidInput: a wheel is not the pinned one or cannot be used, or ``out`` exists.
    """
    free_path(out)
    fetched = [fetch(pins.package, pin) for pin in pins.releases]
    found = [replace(pin, sha256=sha256) for pin, (sha256, _) in zip(pins.releases, fetched, strict=True)]
    releases = [Release(pin.version, files) for pin, (_, files) in zip(pins.releases, fetched, strict=True)]
    return write_suite(Pins.of(pins.package, found), releases, out)


def write_suite(pins: Pins, releases: Sequence[Release], out: str | os.PathLike[str]) -> ReleaseSuite:
    """Make a suite of releases whose files are in memory.

    Args:
        pins: the releases as the suite's ``releases.toml`` lists them.
        releases: the same releases, in the same order.
        out: as for ``make_releases``.

    Raises:
        InvalidInput: ``out`` exists, a path cannot be in a repository, or a change is not text.
    """
    target = free_path(out)
    with new_suite(target) as draft:
        commits = _write_history(pins.package, releases, draft)
        expected = {}
        for number in range(len(releases) - 2):
            triple = (releases[number], releases[number + 1], releases[number + 2])
            for ending, drifting in _drifts(*triple):
                id_ = _id(pins.package, triple[1].version, ending)
                files, expected[id_] = _case_files(pins.package, commits[number], *triple, _part(id_, drifting))
                write_files(draft / "cases" / id_, files)
        top = f'schema = 1\nname = "{pins.package}-releases"\n\n[defaults]\nhistory = "full"\n'
        write_files(draft, {"suite.toml": top, "releases.toml": pins.encode(), _EXPECTED: _expected_toml(expected)})
    return ReleaseSuite(Suite.load(target), pins, expected)


def expected_of(suite: str | os.PathLike[str]) -> dict[str, Expected]:
    """The expected end of each case of a suite of releases, by id.

    Args:
        suite: the suite's directory.

    Raises:
        InvalidInput: it is not a suite of releases.
    """
    found = load_toml(Path(suite) / _EXPECTED, _ExpectedFile)
    return {id_: Expected(one.outcome, tuple(one.overlap)) for id_, one in found.cases.items()}


def surprises(expected: Mapping[str, Expected], records: Iterable[Record]) -> list[str]:
    """The samples that did not end as expected, one line each.

    Args:
        expected: the expected ends, by id of the case.
        records: the records of a run; those of other cases are ignored.
    """
    found = []
    for record in records:
        wanted = expected.get(record.id)
        if wanted is None:
            continue
        met = tuple(sorted(record.conflict or ()))
        if record.outcome != wanted.outcome:
            found.append(f"{record.id} #{record.epoch}: {record.outcome} instead of {wanted.outcome}")
        elif met != wanted.overlap:
            found.append(f"{record.id} #{record.epoch}: conflict in {', '.join(met)} instead of {', '.join(wanted.overlap)}")
    return found


def _write_history(package: str, releases: Sequence[Release], directory: Path) -> tuple[str, ...]:
    """Make a bare repository with a commit for each release; return the commits."""
    empty: Files = {}
    before = [empty, *(release.files for release in releases)]
    steps = [
        Step(_changes(old, release.files), f"{package} {release.version}", _AUTHOR) for old, release in zip(before, releases, strict=False)
    ]
    template = Templates(directory / ".templates").of(History.of(history=steps))
    template.materialise(directory / "history.git", bare=True)
    shutil.rmtree(directory / ".templates", ignore_errors=True)
    return template.commits


def _changes(old: Files, new: Files, paths: Iterable[str] | None = None) -> dict[str, bytes | Executable | None]:
    """The changes that turn the old files into the new ones, at some paths or at all."""
    return {path: new.get(path) for path in sorted({*old, *new} if paths is None else paths) if old.get(path) != new.get(path)}


def _case_files(
    package: str, commit: str, before: Release, release: Release, after: Release, drifting: Sequence[str]
) -> tuple[dict[str, str | bytes], Expected]:
    """The files of a case by name, and its expected end."""
    change = _changes(before.files, release.files)
    drift = _changes(before.files, after.files, drifting)
    shared = tuple(path for path in change if any(overlap(path, other) for other in drift))
    gold = _patch(before.files, change)
    task = _TASK.format(package=package, before=before.version, version=release.version, patch=_as_text(gold, release.version))
    # A reader of text changes line endings; TOML preserves escaped ones.
    inline_task = f"task = {toml_text(task)}\n" if "\r" in task else ""
    files: dict[str, str | bytes] = {
        "case.toml": _CASE.format(task=inline_task, commit=commit),
        "check.py": _CHECK.format(package=package, version=release.version, files=_released(change)),
        "drift.patch": _patch(before.files, drift),
        "gold.patch": gold,
    }
    if not inline_task:
        files["task.md"] = task
    return files, Expected("conflict", shared) if shared else Expected("pass")


def _drifts(before: Release, release: Release, after: Release) -> Iterator[tuple[str, list[str]]]:
    """The paths that the drift of each case is drawn from: those that the next release changes and this one does too, and the others."""
    change = _changes(before.files, release.files)
    moved = [
        path
        for path in _changes(release.files, after.files)
        if after.files.get(path) != before.files.get(path) and not any(path != other and overlap(path, other) for other in before.files)
    ]
    over = [path for path in moved if any(overlap(path, other) for other in change)]
    for ending, paths in (("over", over), ("apart", [path for path in moved if path not in over])):
        if paths:
            yield ending, paths


def _part(id_: str, paths: Sequence[str]) -> list[str]:
    """Some of the paths, chosen by a hash: as good as random, and always the same."""
    drawn = sorted(paths, key=lambda path: hashlib.sha256(f"{id_}\0{path}".encode(errors="surrogatepass")).digest())
    return drawn[: -(-len(paths) * DRIFT // 100)]


def _patch(files: Files, changes: Contents) -> bytes:
    """The changes as a patch for ``git apply``."""
    old, old_blobs = resolve({path: files[path] for path in changes if path in files}, SHA1)
    new, new_blobs = resolve(changes, SHA1)
    blobs = old_blobs | new_blobs
    return patch_bytes(FileChange(path, _side(old.get(path), blobs), _side(entry, blobs)) for path, entry in new.items())


def _side(entry: Entry | None, blobs: Mapping[str, bytes]) -> Side | None:
    return None if entry is None else Side(entry.mode, blobs[entry.id], entry.id)


def _released(change: Contents) -> str:
    entries, _ = resolve(change, SHA1)
    return "".join(
        f"    {path!a}: None,\n" if entry is None else f"    {path!a}: Entry({entry.mode:#o}, {entry.id!r}),\n"
        for path, entry in entries.items()
    )


def _as_text(patch: bytes, version: str) -> str:
    try:
        return patch.decode()
    except UnicodeDecodeError as problem:
        raise InvalidInput(
            f"The change of {version} is not UTF-8: {problem}.",
            why="The task contains the change, and a task is text.",
            fix="Leave that release out, or use another package.",
        ) from None


def _id(package: str, version: str, ending: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{package}-{version}-{ending}")


def _expected_toml(expected: Mapping[str, Expected]) -> str:
    lines = ["# How each case ends for an agent that does exactly its task: where the drift meets the change, conflict is right.\n"]
    lines.append("schema = 1\n")
    for id_, one in expected.items():
        lines.append(f'\n[cases."{id_}"]\noutcome = "{one.outcome}"\n')
        if one.overlap:
            lines.append(f"overlap = {toml_list(one.overlap)}\n")
    return "".join(lines)
