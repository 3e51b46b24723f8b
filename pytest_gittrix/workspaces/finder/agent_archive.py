"""Takes the work that only an agent's git has out of a workspace before that is removed: into a bare repository next to the record.

Nothing of the agent's configuration comes along. The objects of a repository of its own are moved as they are; those of a linked work
tree are durable's, and copied. References are written again, and the index is copied.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, UnsupportedRepository
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.git_directory import open_bare
from pytest_gittrix.git.objects import Objects, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.git.tree import SUBMODULE, parse_tree
from pytest_gittrix.os_level.files import link_files, sync_directory, sync_tree, write_file
from pytest_gittrix.os_level.remove_tree import remove_tree
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.finder.accounting import FORGED
from pytest_gittrix.workspaces.finder.agent_work import AgentWork, ToCopy
from pytest_gittrix.workspaces.seeds.seed import Seed

REPOSITORY: Final = "archive.agent.git"
"""The bare repository in a session's directory that holds the work."""
CONTENTS: Final = "archive.txt"
"""The file in it that lists the work."""

_BUILDING: Final = "archive.agent.tmp"
_INDEX: Final = re.compile(r"index|sharedindex\.[0-9a-f]+")  # a split index is in two files
_LARGEST_INDEX: Final = 256 << 20
_BATCH: Final = 64 << 20


def archive_agent_work(directory: Path, seed: Seed, work: AgentWork, *, sync: bool, on_step: Callable[[], object] = lambda: None) -> Path:
    """Put the work that was found into a bare repository. A move that was killed goes on, a copy begins again.

    Args:
        directory: the session's directory.
        seed: the baseline.
        work: what was found. Its workspace is out of the agent's reach; a repository of its own is of no use afterwards.
        sync: write through to the disk.
        on_step: called for each object that is copied; may raise. Of a copy that ends by any error nothing is left.

    Returns:
        The bare repository, which is whole in itself if it holds commits.

    Raises:
        UnsupportedRepository: the objects are no plain directory.
        AdapterUnavailable: the index is too large, or durable's objects cannot be read.
        WriteRejected: the index cannot be read.
        OSError: the disk refused, or the agent took away the right to move the objects.
    """
    building, target = directory / _BUILDING, directory / REPOSITORY
    own = os.path.join(work.git_dir, "objects")
    if work.to_copy is None and not stat.S_ISDIR(os.lstat(own).st_mode):
        raise UnsupportedRepository(f"{own} is no directory.", why="It could lead anywhere.", fix="Look into it by hand.")
    remove_tree(building)
    try:
        open_bare(building, seed.format.name)
        write_file(building / CONTENTS, "".join(f"{line}\n" for line in (*work.lines, *work.also)).encode(errors="backslashreplace"))
        _copy_index(work.git_dir, building)
        if work.to_copy is None:
            _move_objects(building, work, own)
        else:
            _copy_objects(building, seed, work, work.to_copy, on_step)
        if sync:
            sync_tree(str(building))
        os.rename(building, target)
    except Exception:
        if work.to_copy is not None:  # what was moved is in it, and nowhere else
            remove_tree(building)
        raise
    if sync:
        sync_directory(str(directory))
    return target


def settle_agent_work(root: str, directory: Path) -> Path | None:
    """The repository that ``archive_agent_work`` made, or was about to name when it was killed; None if there is none."""
    building, target = directory / _BUILDING, directory / REPOSITORY
    git_dir = os.path.join(root, ".git")  # a file, in a linked work tree
    if os.path.isdir(git_dir) and (building / "objects").is_dir() and not os.path.lexists(os.path.join(git_dir, "objects")):
        os.rename(building, target)
    return target if target.is_dir() else None


def _write_refs(building: Path, work: AgentWork, shallow: Iterable[str]) -> None:
    packed = "".join(f"{id_} {name}\n" for name, id_ in sorted(work.refs.items()))
    write_file(building / "packed-refs", f"# pack-refs with: sorted \n{packed}".encode())
    if cut := [*shallow]:
        write_file(building / "shallow", "".join(f"{id_}\n" for id_ in cut).encode())


def _copy_index(git_dir: str, target: Path) -> None:
    """Copy the files of an agent's index into a directory, but for what is no plain file: that stages nothing.

    Raises:
        AdapterUnavailable: one is so large that it cannot be an index; its workspace is kept whole.
    """
    with SafeDir.open(git_dir) as git:
        for name in filter(_INDEX.fullmatch, os.listdir(git_dir)):
            status = git.lstat(name)
            if status is None or not stat.S_ISREG(status.st_mode):
                continue
            if status.st_size > _LARGEST_INDEX:
                raise AdapterUnavailable(
                    f"The agent's {name} is not archived: it has {status.st_size} bytes; the limit is {_LARGEST_INDEX}."
                )
            write_file(target / name, git.read(name, max_bytes=_LARGEST_INDEX)[0])


def _move_objects(building: Path, work: AgentWork, own: str) -> None:
    """Move the objects of the agent's own repository, without its link to other object directories, which are of no concern here."""
    _write_refs(building, work, work.shallow)
    with suppress(FileNotFoundError):
        os.rename(os.path.join(own, "info"), os.path.join(work.git_dir, f"info-{secrets.token_hex(8)}"))
    shutil.rmtree(building / "objects")
    os.rename(own, building / "objects")


def _copy_objects(building: Path, seed: Seed, work: AgentWork, copied: ToCopy, on_step: Callable[[], object]) -> None:
    """Copy what only a linked work tree leads to out of durable."""
    packs = building / "objects" / "pack"
    with closing(open_objects(Path(work.git_dir).parents[1] / "objects", seed.format)) as objects:
        for batch in _batches(_objects_to_keep(objects, seed, copied, on_step)):
            install_pack(str(packs.parent), build_pack(batch, seed.format))
    if copied.commits:
        packs.mkdir(exist_ok=True)
        link_files(seed.pack_dir, packs, seed.packs)
        _write_refs(building, work, sorted({*seed.shallow.splitlines(), *(id_ for id_, parents in copied.edge.items() if parents)}))


def _batches(objects: Iterable[tuple[str, str, bytes]]) -> Iterator[dict[str, tuple[str, bytes]]]:
    """Objects in parts that can be held in memory, each for a pack of its own."""
    batch: dict[str, tuple[str, bytes]] = {}
    size = 0
    for id_, kind, data in objects:
        batch[id_] = kind, data
        size += len(data)
        if size > _BATCH:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _objects_to_keep(objects: Objects, seed: Seed, copied: ToCopy, on_step: Callable[[], object]) -> Iterator[tuple[str, str, bytes]]:
    """Id, kind and data of every object that the commits, those on their edge and the index name, and the baseline does not have."""
    known = {entry.id for entry in seed.entries.values()}
    pending = [*copied.commits, *copied.edge, *copied.blobs]
    while pending:
        id_ = pending.pop()
        if id_ in known:
            continue
        known.add(id_)
        on_step()
        with suppress(*FORGED):
            kind, data = objects.read(id_)
            yield id_, kind, data
            if kind == "commit":
                pending.append(parse_commit(id_, data).tree)
            elif kind == "tree":
                pending += [item for mode, item in parse_tree(data, seed.format.size).values() if mode != SUBMODULE]
