"""The archive of unpromoted work, made before its workspace is removed: a patch to read, and a commit to fetch (rule 8).

The commit is in a bare repository beside the record (``archive.git``, ``refs/gittrix/archive/<id>``), never in durable:
an eviction changes nothing there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.engine.operations.review import file_changes
from pytest_gittrix.git.bare_repository import open_bare
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.pack import install_pack
from pytest_gittrix.git.patch import patch_text
from pytest_gittrix.git.tree import Changes, Entry, parents
from pytest_gittrix.os_level.files import sync_directory, sync_tree, write_file
from pytest_gittrix.workspaces.seed import Seed
from pytest_gittrix.workspaces.snapshot import Snapshot

AGENT: Final = ("agent", "agent@localhost")


@dataclass(frozen=True, slots=True)
class Archive:
    """Work that was set aside.

    Attributes:
        patch: a file with which ``git apply`` turns the baseline into that work.
        repository: a bare repository that holds it as a commit.
        ref: the commit's reference there.
        commit: the commit.
        touched: the paths in it.
    """

    patch: Path
    repository: Path
    ref: str
    commit: str
    touched: tuple[str, ...]


def unpromoted(snapshot: Snapshot, promoted: Changes | None) -> dict[str, Entry | None]:
    """The changes of a snapshot that were not promoted just so.

    A promoted deletion is among them where something that was not promoted stands in its place: without it the rest fits on no baseline.
    """
    if promoted is None:
        return dict(snapshot.changes)
    left = {path: entry for path, entry in snapshot.changes.items() if path not in promoted or promoted[path] != entry}
    kept = {path for path, entry in left.items() if entry is not None}
    directories = {above for path in kept for above in parents(path)}

    def made_way(path: str) -> bool:
        return path in directories or not kept.isdisjoint(parents(path))

    return {path: entry for path, entry in snapshot.changes.items() if path in left or (entry is None and made_way(path))}


def write_archive(
    directory: Path, session_id: str, task: str, snapshot: Snapshot, changes: Mapping[str, Entry | None], *, seconds: int, sync: bool
) -> Archive:
    """Set changes aside in a session's directory; an earlier archive is replaced.

    The repository is whole in itself: it holds the seed's pack too, so it outlives the seed, durable, and what durable forgets.

    Args:
        directory: the session's directory.
        session_id: its id.
        task: for the commit message.
        snapshot: the workspace.
        changes: what of it to keep.
        seconds: date of the commit, since 1970.
        sync: write through to the disk.

    Raises:
        OSError: the disk refused.
    """
    seed = snapshot.seed
    patch = directory / "archive.patch"
    text = patch_text(file_changes(snapshot, changes))
    write_file(str(patch), text.encode(errors="surrogateescape"), sync=sync)
    built = build_commit(
        seed.trees.read,
        seed.root,
        changes,
        snapshot.blobs,
        parent=seed.commit,
        author=Signature(*AGENT, seconds),
        message=f"gittrix: set aside from {task or session_id}",
        format_=seed.format,
    )
    repository = directory / "archive.git"
    ref = f"refs/gittrix/archive/{session_id}"
    open_bare(repository, seed.format.name, sync=sync)
    _take_packs(seed, repository / "objects" / "pack")
    if seed.shallow:
        write_file(str(repository / "shallow"), seed.shallow.encode(), sync=sync)
    install_pack(str(repository / "objects"), built.pack, sync=sync)
    write_file(str(repository / "packed-refs"), f"# pack-refs with: peeled fully-peeled sorted \n{built.id} {ref}\n".encode(), sync=sync)
    if sync:
        sync_tree(str(repository))
        sync_directory(str(directory))
    return Archive(patch, repository, ref, built.id, tuple(changes))


def _take_packs(seed: Seed, directory: Path) -> None:
    """Give a repository a hard link to the seed's pack, which is never written to."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in seed.packs:
        source, target = os.path.join(seed.objects_dir, "pack", name), directory / name
        if target.exists():
            continue
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
