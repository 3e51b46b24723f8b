"""What ``git add`` would make of the files of a snapshot (docs/explanation/promotion.md).

The attributes are those of the baseline. A ``.gitattributes`` that the agent changed counts only where it is among what is taken: then the
commit has it, and a person's git goes by it. The agent's own configuration and ``info/attributes`` count for nothing, and no filter is run.

A workspace has the bytes of the repository, as a baseline has them. So a file that the agent did not change is not converted, and neither
is one that it left in the encoding of the repository. To git, line endings of either kind are the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from pytest_gittrix.git.git_directory import common_dir_at
from pytest_gittrix.git.tree import EXECUTABLE, FILE, Changes, Entry
from pytest_gittrix.git.worktree.attributes import ATTRIBUTES
from pytest_gittrix.git.worktree.conversion import Conversion, Conversions, is_as_filtered
from pytest_gittrix.git.worktree.encodings import Unconvertible, is_utf8
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.snapshot import Snapshot

_FILES = (FILE, EXECUTABLE)


def conversions_for(snapshot: Snapshot, durable: str | None, taken: Collection[str] | None = None) -> Conversions:
    """How git converts the files of a snapshot.

    Args:
        snapshot: the workspace.
        durable: the path of the repository whose configuration counts.
        taken: the paths that are taken of the changes; all by default.
    """
    changed = {path: entry for path, entry in snapshot.changes.items() if _is_rules(path) and (taken is None or path in taken)}

    def read(directory: str) -> bytes:
        path = f"{directory}/{ATTRIBUTES}" if directory else ATTRIBUTES
        if path not in changed:
            return _rules_of(snapshot.seed, directory)
        entry = changed[path]
        return snapshot.blobs[entry.id] if entry is not None and entry.mode in _FILES else b""

    return Conversions(read, common_dir_at(durable))


def as_stored(seed: Seed, durable: str | None) -> Callable[[str, bytes], bytes]:
    """A function from a path and a file's bytes to the bytes that ``git add`` would store, by the attributes of a baseline alone."""
    conversions = Conversions(lambda directory: _rules_of(seed, directory), common_dir_at(durable))

    def stored(path: str, data: bytes) -> bytes:
        try:
            return _converted(conversions.of(path), data, seed, seed.entries.get(path)) if _may_change(data) else data
        except Unconvertible:
            return data

    return stored


def depends_on(snapshot: Snapshot, taken: Collection[str]) -> bool:
    """Whether other files would be converted otherwise if only some paths were taken, since attributes that changed are not among them."""
    return any(_is_rules(path) and path not in taken for path in snapshot.changes)


def checked_in(snapshot: Snapshot, durable: str | None, taken: Collection[str] | None = None) -> Snapshot:
    """A snapshot whose files are as ``git add`` would store them.

    A file that is in the baseline just so is no change any more, and one that is not in its encoding can never be promoted.

    Args:
        snapshot: as it was taken, or as an earlier call gave it.
        durable: the path of the repository whose configuration counts.
        taken: the paths that are taken of the changes; all by default.
    """
    candidates = _candidates(snapshot)
    if not candidates:
        return snapshot
    changes, blobs, refused = dict(snapshot.changes), dict(snapshot.blobs), dict(snapshot.refused)
    raw: dict[str, bytes] = {}
    conversions = conversions_for(snapshot, durable, taken)
    for path, data in candidates.items():
        changed, baseline = changes[path], snapshot.seed.entries.get(path)
        assert changed is not None
        try:
            converted = _converted(conversions.of(path), data, snapshot.seed, baseline)
        except Unconvertible as problem:
            refused[path] = f"its attributes declare an encoding, and {problem}"
            del changes[path]
            continue
        entry = Entry(changed.mode, snapshot.seed.format.hash_object("blob", converted))
        if converted != data:
            raw[path] = data
        if entry == baseline:
            del changes[path]
        else:
            changes[path] = entry
            blobs[entry.id] = converted
    if not raw and not snapshot.raw and len(changes) == len(snapshot.changes):
        return snapshot
    needed = {entry.id for entry in changes.values() if entry is not None}
    blobs = {id_: data for id_, data in blobs.items() if id_ in needed}
    return replace(snapshot, changes=changes, blobs=blobs, refused=dict(sorted(refused.items())), raw=raw)


def filtered(snapshot: Snapshot, changes: Changes, blobs: Mapping[str, bytes], conversions: Conversions) -> dict[str, str]:
    """The changed files that are not known to be as their filter would store them, each with the name of the filter.

    Contents that the baseline has at a changed path, such as those of a file that moved, went through it before.

    Args:
        snapshot: the workspace.
        changes: what is taken of it.
        blobs: the bytes of the new entries by id.
        conversions: how git converts its files.
    """
    known = {entry.id for path in changes if (entry := snapshot.seed.entries.get(path)) is not None}
    found: dict[str, str] = {}
    for path, entry in changes.items():
        if entry is None or entry.mode not in _FILES or entry.id in known:
            continue
        name = conversions.filter_of(path)
        if name is not None and not is_as_filtered(blobs[entry.id], name):
            found[path] = name
    return found


def _converted(conversion: Conversion, data: bytes, seed: Seed, baseline: Entry | None) -> bytes:
    if baseline is None or baseline.mode not in _FILES:
        return conversion.to_git(data, lambda: None, lenient=True)
    if seed.format.hash_object("blob", data) == baseline.id:
        return data  # only its mode differs
    return conversion.to_git(data, lambda: seed.blob(baseline.id), lenient=True)


def _is_rules(path: str) -> bool:
    return path.rpartition("/")[2] == ATTRIBUTES


def _candidates(snapshot: Snapshot) -> Mapping[str, bytes]:
    """The changed files that git may store otherwise than they are, with their bytes."""
    files = ((path, entry) for path, entry in snapshot.changes.items() if entry is not None and entry.mode in _FILES)
    bytes_of = ((path, snapshot.raw[path] if path in snapshot.raw else snapshot.blobs[entry.id]) for path, entry in files)
    return {path: data for path, data in bytes_of if _may_change(data)}


def _may_change(data: bytes) -> bool:
    """Whether there are attributes by which git would store bytes otherwise, in a workspace."""
    return b"\r" in data or b"$Id:" in data or not is_utf8(data)


def _rules_of(seed: Seed, directory: str) -> bytes:
    return seed.rules_file(f"{directory}/{ATTRIBUTES}" if directory else ATTRIBUTES) or b""
