"""Finds what a linked work tree holds beyond its files, and takes it out of durable before the work tree is removed.

The repository is durable's, whose references stay. What only the work tree leads to is what git would forget with it: commits on a detached
HEAD or in its reflog, and contents that are only staged.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Final, NamedTuple

from pytest_gittrix.errors import UnsupportedRepository
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import MissingObject, Objects, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.git.refs import References
from pytest_gittrix.git.tree import SUBMODULE, Entry, parse_tree
from pytest_gittrix.os_level.files import link_files, write_file
from pytest_gittrix.os_level.remove_tree import remove_tree
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.repositories.agent_repository import read_linked
from pytest_gittrix.workspaces.seed import Seed
from pytest_gittrix.workspaces.side_work import (
    BUILDING,
    REPOSITORY,
    UNKNOWN_INDEX,
    begin_archive,
    finish_archive,
    numbered,
    staged_apart,
    staged_lines,
    write_refs,
)

_LARGEST_INDEX: Final = 256 << 20
_LARGEST_HEAD: Final = 1 << 20
_BATCH: Final = 64 << 20


class LinkedWork(NamedTuple):
    """What is staged or committed in a linked work tree, and in no file of it. Its objects are durable's, which forgets them some day.

    Attributes:
        git_dir: the directory in durable with its HEAD and its index.
        refs: commits by the names that they get in the archive.
        commits: those that these lead to and nothing that stays in durable does, newest first.
        edge: their parents that are not among them, with the parents of each; without the baseline itself.
        blobs: the ids of staged contents.
        lines: the same for people, a line for each.
    """

    git_dir: str
    refs: Mapping[str, str]
    commits: tuple[str, ...]
    edge: Mapping[str, tuple[str, ...]]
    blobs: tuple[str, ...]
    lines: tuple[str, ...]


def find_linked_work(
    git_dir: str,
    seed: Seed,
    files: Mapping[str, Entry | None],
    *,
    promoted: bool,
    on_step: Callable[[], object] = lambda: None,
) -> LinkedWork | None:
    """Look for work of a linked work tree that goes with it: commits on no branch, and contents that are only staged.

    Args:
        git_dir: the directory in durable with its HEAD and its index.
        seed: its baseline.
        files: what the work tree changed of the baseline, which is archived or promoted.
        promoted: whether that was promoted, so that the commits of its HEAD are no side work.
        on_step: called for each commit; may raise to end the search.

    Raises:
        WriteRejected: the index or HEAD cannot be read.
        AdapterUnavailable: durable's objects, or a file of the directory, cannot be read.
    """
    try:
        with SafeDir.open(git_dir) as git:
            head = os.fsdecode(git.read("HEAD", max_bytes=_LARGEST_HEAD)[0]).strip()
            data = git.read("index", max_bytes=_LARGEST_INDEX)[0] if git.exists("index") else b""
        found = read_linked(git_dir, seed.format)
    except FileNotFoundError:
        return None
    staged: dict[str, str] = {}
    lines: list[str] = []
    try:
        if data != seed.index:  # else nobody has staged anything since the work tree was made
            staged = staged_apart(IndexFile(data, seed.format).staged(), seed, files)
        lines += staged_lines(staged)
    except (UnsupportedRepository, ValueError, IndexError, struct.error):
        lines.append(UNKNOWN_INDEX)
    named: list[tuple[str, str]] = []
    commits: dict[str, None] = {}
    edge: dict[str, tuple[str, ...]] = {}
    others = {id_: ("reflog/", f"commit {id_} is in the reflog") for id_ in found.logged if id_ not in (head, seed.commit)}
    for name, id_ in found.heads.items():
        if id_ not in (head, seed.commit):
            others.setdefault(id_, ("heads-of-git/", f"{name} is at {id_}"))
    is_ahead = not promoted and re.fullmatch(rf"[0-9a-f]{{{seed.format.hex_size}}}", head) is not None and head != seed.commit
    if is_ahead or others:
        with _objects_of_durable(git_dir, seed) as objects:
            if is_ahead:
                commits, edge = _commits_since([seed.commit], [head], objects, on_step)
                named.append(("HEAD", head))
                lines.append(f"a detached HEAD is at {head}{'' if commits else ', which is in durable alone'}")
            stays = [
                seed.commit,
                head,
                *commits,
                *(References(_common_dir(git_dir), seed.format).below("refs/").values() if others else ()),
            ]
            for id_, (name, line) in others.items():
                more, border = _commits_since(stays, [id_], objects, on_step)
                if more:
                    named.append((name, id_))
                    lines.append(line)
                    stays.append(id_)
                    commits, edge = {**commits, **more}, {**edge, **border}
    outside = {id_: parents for id_, parents in edge.items() if id_ not in commits}
    return LinkedWork(git_dir, numbered(named), tuple(commits), outside, tuple(staged.values()), tuple(lines)) if lines else None


def _common_dir(git_dir: str) -> str:
    """The git directory of the repository that a linked work tree belongs to."""
    return os.path.dirname(os.path.dirname(git_dir))


@contextmanager
def _objects_of_durable(git_dir: str, seed: Seed) -> Iterator[Objects]:
    objects = open_objects(Path(_common_dir(git_dir), "objects"), seed.format)
    try:
        yield objects
    finally:
        objects.close()


def _commits_since(
    known: Sequence[str], heads: Sequence[str], objects: Objects, on_step: Callable[[], object]
) -> tuple[dict[str, None], dict[str, tuple[str, ...]]]:
    """The commits that ``heads`` lead to and ``known`` do not, and their other parents, as ``git rev-list --boundary`` finds them.

    Both histories are read from the newest commit to the oldest, until all that is left to read is known. Dates that a clock or an agent
    set wrong make this read more, or return commits that are known as well; none is left out. The first of ``known`` is the baseline,
    which is nobody's other parent.
    """
    parents: dict[str, tuple[str, ...]] = {}
    of_baseline = {*known}
    unread: list[tuple[int, bool, str]] = []
    undecided: set[str] = set()

    def read(id_: str) -> None:
        on_step()
        with suppress(MissingObject, ValueError, LookupError, OverflowError):  # what an agent's commit names can be anything
            commit = parse_commit(id_, objects.read(id_)[1])
            parents[id_] = commit.parents
            heappush(unread, (-commit.committer.seconds, id_ not in of_baseline, id_))  # at equal dates the baseline's come first
            if id_ not in of_baseline:
                undecided.add(id_)

    for id_ in (*known, *heads):
        read(id_)
    found: list[str] = []
    while undecided:
        id_ = heappop(unread)[2]
        undecided.discard(id_)
        found.append(id_)
        if id_ in of_baseline:
            marked = list(parents[id_])
            while marked:
                below = marked.pop()
                if below not in of_baseline:
                    of_baseline.add(below)
                    undecided.discard(below)
                    marked += parents.get(below, ())
        for parent in parents[id_]:
            if parent not in parents:
                read(parent)
    commits = dict.fromkeys(id_ for id_ in found if id_ not in of_baseline)
    beyond = {parent for id_ in commits for parent in parents[id_] if parent not in commits and parent != known[0]}
    return commits, {id_: parents[id_] for id_ in sorted(beyond) if id_ in parents}


def keep_linked_work(directory: Path, seed: Seed, work: LinkedWork, *, sync: bool, on_step: Callable[[], object] = lambda: None) -> Path:
    """Copy what only a linked work tree leads to, with its index, into a bare repository; a killed copy begins anew.

    Args:
        directory: the session's directory.
        seed: the baseline.
        work: what ``find_linked_work`` found.
        sync: write through to the disk.
        on_step: called for each object; may raise to end the copy, of which nothing is left then.

    Returns:
        The bare repository, which is whole in itself if it holds commits.

    Raises:
        AdapterUnavailable: the index is too large, or durable's objects cannot be read.
        OSError: the disk refused.
    """
    building, target = directory / BUILDING, directory / REPOSITORY
    try:
        begin_archive(building, seed, work.lines, work.git_dir)
        packs = building / "objects" / "pack"
        with _objects_of_durable(work.git_dir, seed) as objects:
            for batch in _batches(_objects_to_keep(objects, seed, work, on_step)):
                install_pack(str(packs.parent), build_pack(batch, seed.format))
        if work.commits:
            packs.mkdir(exist_ok=True)
            link_files(seed.pack_dir, packs, seed.packs)
            cut = {*seed.shallow.splitlines(), *(id_ for id_, parents in work.edge.items() if parents)}
            if cut:
                write_file(building / "shallow", "".join(f"{id_}\n" for id_ in sorted(cut)).encode())
            write_refs(building, work.refs)
        finish_archive(building, target, sync)
    except Exception:
        remove_tree(building)
        raise
    return target


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


def _objects_to_keep(objects: Objects, seed: Seed, work: LinkedWork, on_step: Callable[[], object]) -> Iterator[tuple[str, str, bytes]]:
    """Id, kind and data of every object that the commits, those on their edge and the index name, and the baseline does not have."""
    known = {entry.id for entry in seed.entries.values()}
    pending = [*work.commits, *work.edge, *work.blobs]
    while pending:
        id_ = pending.pop()
        if id_ in known:
            continue
        known.add(id_)
        on_step()
        with suppress(MissingObject, ValueError, LookupError, OverflowError):  # what an agent's index, commit or tree names can be anything
            kind, data = objects.read(id_)
            yield id_, kind, data
            if kind == "commit":
                pending.append(parse_commit(id_, data).tree)
            elif kind == "tree":
                pending += [item for mode, item in parse_tree(data, seed.format.size).values() if mode != SUBMODULE]
