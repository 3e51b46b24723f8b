"""The archive of unpromoted work, made before its workspace is removed: a patch to read, and a commit to fetch (rule 8).

The commit is in a bare repository next to the record (``archive.git``, ``refs/gittrix/archive/<id>``), never in durable:
an eviction changes nothing there. The repository has what the session changed, as it was and as it became, with the trees above it. It is a
partial clone of durable: git fetches a file that the session did not change from there when it is asked for. So an archive is as large as
the work is, whatever the size of durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pytest_gittrix.engine.operations.agent_commits import AGENT
from pytest_gittrix.engine.operations.review import patch_of
from pytest_gittrix.engine.operations.validation import visible
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.git_directory import open_bare
from pytest_gittrix.git.pack import build_pack, install_pack, store_object
from pytest_gittrix.git.tree import SUBMODULE, Changes, Entry, lookup, parents, subtree_of
from pytest_gittrix.os_level.files import remove_left, sync_directory, sync_tree, write_file
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.finder.agent_archive import REPOSITORY
from pytest_gittrix.workspaces.finder.ignored import LeftOut
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.snapshot import Snapshot

_MOST_COPIED: Final = 4 << 30
WHOLE: Final = "archive.workspace"
"""A workspace, or what of it is kept, that could not be archived as a change of its baseline."""

_DESCRIPTION: Final = (
    "Here is what a session changed and did not promote, as it was and as it became.\n"
    "Files that it did not change are those of commit {} in durable, from where git fetches them.\n"
)

_PATCH: Final = "archive.patch"
_COMMIT: Final = "archive.git"


@dataclass(frozen=True, slots=True)
class Archive:
    """Work that was set aside.

    Attributes:
        patch: a file with which ``git apply`` turns the baseline into that work.
        repository: a bare repository that holds it as a commit.
        ref: the commit's reference there.
        commit: the commit.
        touched: the paths in it, ignored ones too.
        large: those of them that are in the commit only, since they are too large for a patch.
    """

    patch: Path
    repository: Path
    ref: str
    commit: str
    touched: tuple[str, ...]
    large: tuple[str, ...] = ()


def archives_in(directory: Path) -> tuple[str, ...]:
    """The paths of all that was archived of a session, in its directory; none if nothing was."""
    names = [name for name in (_PATCH, _COMMIT, REPOSITORY, WHOLE) if os.path.lexists(directory / name)]
    # A repository without a reference is what an attempt left that failed.
    return tuple(str(directory / name) for name in names if name != _COMMIT or (directory / name / "packed-refs").exists())


def unpromoted(snapshot: Snapshot, promoted: Changes | None) -> dict[str, Entry | None]:
    """The changes of a snapshot that were not promoted just so.

    A promoted deletion is among them where something that was not promoted is in its place: without it the rest fits on no baseline.
    """
    if promoted is None:
        return dict(snapshot.changes)
    left = {path: entry for path, entry in snapshot.changes.items() if path not in promoted or promoted[path] != entry}
    kept = {path for path, entry in left.items() if entry is not None} | snapshot.large.keys()
    directories = {above for path in kept for above in parents(path)}

    def made_way(path: str) -> bool:
        return path in directories or not kept.isdisjoint(parents(path))

    return {path: entry for path, entry in snapshot.changes.items() if path in left or (entry is None and made_way(path))}


def store_large_files(
    directory: Path, durable: str, snapshot: Snapshot, files: SafeDir, *, sync: bool, on_step: Callable[[], object] = lambda: None
) -> dict[str, Entry]:
    """Copy the files that are too large for a snapshot into the archive's repository, without holding any of them.

    Args:
        directory: the session's directory.
        durable: as for ``write_archive``.
        snapshot: the workspace, at the moment when it was taken.
        files: the workspace's files.
        sync: write through to the disk.
        on_step: called for each mebibyte; may raise to end the copying; the next call begins again.

    Returns:
        The entry of each, by path, for ``write_archive``.

    Raises:
        AdapterUnavailable: a file changed meanwhile, or they are more than are copied.
        WriteRejected, PathNotFound: a file cannot be read any more.
        OSError: the disk refused.
    """
    size = sum(large.size for large in snapshot.large.values())
    if size > _MOST_COPIED:
        raise AdapterUnavailable(
            f"{next(iter(snapshot.large))!r} is not archived: files over the limit have {size} bytes in all; {_MOST_COPIED} are copied.",
            why="A sweep that copies for hours would keep every other command waiting.",
            fix="Remove what is not needed. A session that ends keeps its whole workspace instead.",
        )
    if not snapshot.large:
        return {}
    format_ = snapshot.seed.format
    repository = _open_repository(directory, snapshot.seed, durable, sync)

    def pieces(path: str) -> Iterator[bytes]:
        for piece in files.pieces(path):
            on_step()
            yield piece

    return {
        path: Entry(large.mode, store_object(str(repository / "objects"), large.size, partial(pieces, path), format_, sync=sync))
        for path, large in snapshot.large.items()
    }


def write_archive(
    directory: Path,
    session_id: str,
    task: str,
    durable: str,
    snapshot: Snapshot,
    changes: Mapping[str, Entry | None],
    *,
    large: Mapping[str, Entry],
    ignored: LeftOut,
    seconds: int,
    sync: bool,
    on_step: Callable[[], object] = lambda: None,
) -> Archive:
    """Set changes aside in a session's directory; an earlier archive is replaced.

    Args:
        directory: the session's directory.
        session_id: its id.
        task: for the commit message.
        durable: where git finds the files that the session did not change: a path or an address.
        snapshot: the workspace.
        changes: what of it to keep.
        large: what ``store_large_files`` gave.
        ignored: ignored files, which are in the commit and not in the patch.
        seconds: date of the commit, since 1970.
        sync: write through to the disk.
        on_step: called at each step; may raise to end the work; the next call begins again.
    """
    seed = snapshot.seed
    patch = directory / _PATCH
    notes = (*(f"Not in this patch: {path!r}, which is ignored. The commit has it.\n" for path in ignored.entries),)
    text = "".join(notes) + patch_of(snapshot, [*changes, *large], on_step)
    write_file(str(patch), text.encode(errors="surrogateescape"), sync=sync)
    on_step()
    built = build_commit(
        seed.trees.read,
        seed.root,
        {**changes, **large, **ignored.entries},
        {**snapshot.blobs, **ignored.blobs},
        parent=seed.commit,
        author=Signature(*AGENT, seconds),
        message=f"gittrix: set aside from {visible(task) or session_id}",
        format_=seed.format,
    )
    repository = _open_repository(directory, seed, durable, sync)
    ref = f"refs/gittrix/archive/{session_id}"
    before = _objects_before(seed, {*changes, *large, *ignored.entries})
    pack = build_pack({**before, **built.objects}, seed.format, level=built.level)
    install_pack(str(repository / "objects"), pack, sync=sync, promised=True)
    write_file(str(repository / "packed-refs"), f"# pack-refs with: peeled fully-peeled sorted \n{built.id} {ref}\n".encode(), sync=sync)
    for place in (repository, repository / "objects", repository / "objects" / "pack", directory):
        remove_left(place, lambda name: name.startswith("tmp_"))  # of an attempt that was killed: nothing else writes here
    if sync:
        sync_tree(str(repository))
        sync_directory(str(directory))
    return Archive(patch, repository, ref, built.id, tuple(sorted([*changes, *large, *ignored.entries])), tuple(large))


def _open_repository(directory: Path, seed: Seed, durable: str, sync: bool) -> Path:
    repository = directory / _COMMIT
    open_bare(repository, seed.format.name, promised_by=durable, sync=sync)
    if seed.baseline.parents:
        write_file(str(repository / "shallow"), f"{seed.commit}\n".encode(), sync=sync)
    write_file(str(repository / "description"), _DESCRIPTION.format(seed.commit).encode(), sync=sync)
    return repository


def _objects_before(seed: Seed, changed: Collection[str]) -> dict[str, tuple[str, bytes]]:
    """Kind and data of what the baseline has at paths that changed, by id: the files, the trees above them and its commit.

    Git needs all of these to send the change to who has the baseline, and nothing else of it.
    """
    files = {entry.id for path in changed if (entry := seed.entries.get(path)) is not None and entry.mode != SUBMODULE}
    above = {subtree_of(lookup(seed.trees.read, seed.root, parent)) for path in changed for parent in parents(path)}
    return {id_: seed.objects.read(id_) for id_ in {seed.commit, seed.root, *files, *above} if id_}
