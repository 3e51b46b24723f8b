"""Finds what an agent's repository holds beyond the work tree: other branches, stashes, the index, and commits that only a reflog names.

A snapshot sees files. This sees what was committed, stashed or staged and is in no file any more, and takes it out of a workspace before
that is removed (rule 8, docs/explanation/rules.md). As everywhere, no git runs in the agent's repository and none of its configuration is
kept: its objects are moved as they are, and references and an index are written anew beside them.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, UnsupportedRepository
from pytest_gittrix.git.bare_repository import open_bare
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.objects import MissingObject, Objects, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.tree import SUBMODULE, Entry, parse_tree
from pytest_gittrix.os_level.files import link_files, names_in, sync_directory, sync_tree, write_file
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.repositories.agent_repository import AgentRepository, read_repository
from pytest_gittrix.workspaces.seed import Seed

REPOSITORY: Final = "archive.agent.git"
"""The bare repository beside a session's record that holds an agent's side work."""
CONTENTS: Final = "archive.txt"
"""The file in it that says what is there."""

_BUILDING: Final = "archive.agent.tmp"
_UNKNOWN_INDEX: Final = "the index is in a format that only git reads"
_INDEX: Final = re.compile(r"index|sharedindex\.[0-9a-f]+")  # a split index is in two files
_FAN: Final = re.compile(r"[0-9a-f]{2}")
_SUBMODULES: Final = ".git/modules"
_LARGEST_INDEX: Final = 256 << 20
_LARGEST_LOG: Final = 16 << 20
_MOST_LOGGED: Final = 1000
_BATCH: Final = 64 << 20


class SideWork(NamedTuple):
    """What is in an agent's repository and in no file of its work tree.

    Attributes:
        refs: commits by the names that they get in the archive.
        lines: the same for people, a line for each.
        repository: the repository, as its files describe it.
    """

    refs: Mapping[str, str]
    lines: tuple[str, ...]
    repository: AgentRepository


class LinkedWork(NamedTuple):
    """What is staged or committed in a linked work tree, and in no file of it. Its objects are durable's, which forgets them some day.

    Attributes:
        git_dir: the directory in durable with its HEAD and its index.
        commits: those that its detached HEAD leads to and the baseline does not, that of HEAD first.
        edge: their parents that are not among them, with the parents of each; without the baseline itself.
        blobs: the ids of staged contents.
        lines: the same for people, a line for each.
    """

    git_dir: str
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
        promoted: whether that was promoted, so that its commits are no side work.
        on_step: called for each commit; may raise to end the search.

    Raises:
        WriteRejected: the index or HEAD cannot be read.
        AdapterUnavailable: durable's objects cannot be read.
    """
    try:
        with SafeDir.open(git_dir) as git:
            head = os.fsdecode(git.read("HEAD", max_bytes=_LARGEST_LOG)[0]).strip()
            data = git.read("index", max_bytes=_LARGEST_INDEX)[0] if git.exists("index") else b""
    except FileNotFoundError:
        return None
    staged: dict[str, str] = {}
    lines: list[str] = []
    try:
        if data != seed.index:  # else nobody has staged anything since the work tree was made
            staged = _staged(IndexFile(data, seed.format).staged(), seed, files)
        lines += _staged_lines(staged)
    except (UnsupportedRepository, ValueError, IndexError, struct.error):
        lines.append(_UNKNOWN_INDEX)
    commits: tuple[str, ...] = ()
    edge: Mapping[str, tuple[str, ...]] = {}
    if not promoted and re.fullmatch(rf"[0-9a-f]{{{seed.format.hex_size}}}", head) and head != seed.commit:
        with _objects_of_durable(git_dir, seed) as objects:
            commits, edge = _commits_since(seed.commit, head, objects, on_step)
        lines.append(f"a detached HEAD is at {head}{'' if commits else ', which is in durable alone'}")
    return LinkedWork(git_dir, commits, edge, tuple(staged.values()), tuple(lines)) if lines else None


@contextmanager
def _objects_of_durable(git_dir: str, seed: Seed) -> Iterator[Objects]:
    objects = open_objects(Path(git_dir, "..", "..", "objects"), seed.format)
    try:
        yield objects
    finally:
        objects.close()


def _commits_since(
    baseline: str, head: str, objects: Objects, on_step: Callable[[], object]
) -> tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]:
    """The commits that ``head`` leads to and ``baseline`` does not, and their other parents, as ``git rev-list --boundary`` finds them.

    Both histories are read from the newest commit to the oldest, until all that is left to read belongs to the baseline. Dates that a clock
    or an agent set wrong make this read more, or return commits that the baseline leads to as well; none is left out.
    """
    parents: dict[str, tuple[str, ...]] = {}
    of_baseline = {baseline}
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

    read(baseline)
    read(head)
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
    beyond = {parent for id_ in commits for parent in parents[id_] if parent not in commits and parent != baseline}
    return tuple(commits), {id_: parents[id_] for id_ in sorted(beyond) if id_ in parents}


def find_side_work(
    root: str,
    seed: Seed,
    *,
    made_here: Collection[str],
    on_branch: Callable[[], Collection[str]],
    promoted: bool,
    files: Mapping[str, Entry | None],
    on_step: Callable[[], object] = lambda: None,
) -> SideWork | None:
    """Look for side work in a workspace.

    A repository in which nothing was stored since it was made costs one listing of a directory.

    Args:
        root: the work tree, with its own ``.git``.
        seed: its baseline.
        made_here: names of packs that the engine itself put there.
        on_branch: gives the commits of the branch that HEAD is on, down to the baseline.
        promoted: whether the work tree was promoted, so that these are no side work: their outcome is in the promotion.
        files: what the work tree changed of the baseline, which is archived or promoted.
        on_step: called for each file of the repository; may raise to end the search.

    Raises:
        UnsupportedRepository, AdapterUnavailable, WriteRejected: the repository, or a part of it, cannot be read.
    """
    # An overlay has the baseline's pack in a layer below, and nobody makes it before a program needs it: so it is asked for last.
    if not _stores_objects(root, lambda pack: pack in made_here or pack in seed.packs):
        return None
    found = read_repository(root, seed.format, known_packs={*seed.packs, *made_here}, on_step=on_step)
    if found.problems:
        raise AdapterUnavailable(
            found.problems[0], why="The agent's repository may hold work that is in no file.", fix="Look into it by hand: it is kept."
        )
    branch = on_branch()
    known = {seed.commit, *(branch if promoted else ())}
    refs = {_ref(name, number): id_ for number, (name, id_) in enumerate(found.branches.items()) if id_ not in known}
    lines = [f"branch {name!r} is at {id_}" for name, id_ in found.branches.items() if id_ not in known]
    if found.branch is None and found.commit is not None and found.commit not in known:
        refs["refs/gittrix/agent/HEAD"] = found.commit
        lines.append(f"a detached HEAD is at {found.commit}")
    for number, id_ in enumerate(found.stashes):
        refs[f"refs/gittrix/agent/stash/{number}"] = id_
        lines.append(f"stash {number} is {id_}")
    known |= {*branch, *refs.values()}
    forgotten = [id_ for id_ in _logged(root, seed) if id_ not in known and id_ in found.objects]
    refs |= {f"refs/gittrix/agent/reflog/{number}": id_ for number, id_ in enumerate(forgotten)}
    lines += [f"commit {id_} is in the reflog" for id_ in forgotten]
    lines += _staged_lines(_staged(((path, id_) for path, id_ in found.staged() if id_ in found.objects), seed, files))
    lines += [] if found.has_known_index else [_UNKNOWN_INDEX]
    return SideWork(refs, tuple(lines), found) if lines else None


def nested_repositories(root: str, directories: Collection[str]) -> list[str]:
    """Where an agent has repositories of its own below a work tree in which something was stored.

    Args:
        root: the work tree.
        directories: those in it that have a ``.git`` directory.

    Returns:
        Such directories; and the one with the repositories of submodules, of which a work tree has no more than a file ``.git``.

    Raises:
        AdapterUnavailable: one cannot be listed.
    """
    found = [path for path in directories if _stores_objects(os.path.join(root, path))]
    return [*found, *([_SUBMODULES] if names_in(os.path.join(root, _SUBMODULES)) else [])]


def keep_side_work(root: str, directory: Path, seed: Seed, work: SideWork, *, sync: bool) -> Path:
    """Move the objects of a workspace's repository into a bare repository with clean references; a killed move is gone on with.

    Args:
        root: the work tree, out of the agent's reach; its repository is of no use afterwards.
        directory: the session's directory.
        seed: the baseline.
        work: what ``find_side_work`` found.
        sync: write through to the disk.

    Returns:
        The bare repository.

    Raises:
        UnsupportedRepository: the objects are no plain directory.
        AdapterUnavailable: the index is too large.
        WriteRejected: the index is there and cannot be read.
        OSError: the disk refused, or the agent took away the right to move them.
    """
    from_, building, target = os.path.join(root, ".git", "objects"), directory / _BUILDING, directory / REPOSITORY
    if not stat.S_ISDIR(os.lstat(from_).st_mode):
        raise UnsupportedRepository(f"{from_} is no directory.", why="It could lead anywhere.", fix="Look into it by hand.")
    _begin(building, seed, work.lines, os.path.join(root, ".git"))
    packed = "".join(f"{id_} {name}\n" for name, id_ in sorted(work.refs.items()))
    write_file(building / "packed-refs", f"# pack-refs with: sorted \n{packed}".encode())
    if work.repository.shallow:
        write_file(building / "shallow", "".join(f"{id_}\n" for id_ in work.repository.shallow).encode())
    # It may lead to other object directories; those of the agent's are of no concern here.
    with suppress(FileNotFoundError):
        os.rename(os.path.join(from_, "info"), os.path.join(root, ".git", f"info-{secrets.token_hex(8)}"))
    shutil.rmtree(building / "objects")
    os.rename(from_, building / "objects")
    _finish(building, target, sync)
    return target


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
    building, target = directory / _BUILDING, directory / REPOSITORY
    try:
        _begin(building, seed, work.lines, work.git_dir)
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
            write_file(building / "packed-refs", f"# pack-refs with: sorted \n{work.commits[0]} refs/gittrix/agent/HEAD\n".encode())
        _finish(building, target, sync)
    except Exception:
        shutil.rmtree(building, ignore_errors=True)
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


def _begin(building: Path, seed: Seed, lines: Iterable[str], git_dir: str) -> None:
    """Make a bare repository with an agent's index and a list of what is in it, in place of one that a killed attempt left."""
    shutil.rmtree(building, ignore_errors=True)
    open_bare(building, seed.format.name)
    write_file(building / CONTENTS, "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
    _keep_index(git_dir, building)


def _finish(building: Path, target: Path, sync: bool) -> None:
    if sync:
        sync_tree(str(building))
    os.rename(building, target)
    if sync:
        sync_directory(str(target.parent))


def _keep_index(git_dir: str, target: Path) -> None:
    """Copy the files of an agent's index into a directory, but for what is no plain file: that stages nothing.

    Raises:
        AdapterUnavailable: one is so large that it is no index to be believed; its workspace is kept whole.
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


def settle_side_work(root: str, directory: Path) -> Path | None:
    """The repository that ``keep_side_work`` made, or was about to name when it was killed; None if there is none."""
    building, target = directory / _BUILDING, directory / REPOSITORY
    git_dir = os.path.join(root, ".git")  # a file, in a linked work tree
    if os.path.isdir(git_dir) and (building / "objects").is_dir() and not os.path.lexists(os.path.join(git_dir, "objects")):
        os.rename(building, target)
    return target if target.is_dir() else None


def _stores_objects(root: str, is_known: Callable[[str], bool] = lambda _pack: False) -> bool:
    objects = os.path.join(root, ".git", "objects")
    try:
        names = os.listdir(objects)
        if any(_FAN.fullmatch(name) for name in names):
            return True
        packs = os.listdir(os.path.join(objects, "pack")) if "pack" in names else []
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as problem:
        raise AdapterUnavailable(
            f"{objects} cannot be listed: {problem.strerror}.",
            why="It may hold work of the agent's that is in no file.",
            fix="Look into it by hand.",
        ) from problem
    return any(name.endswith(".pack") and not is_known(name) for name in packs)


def _ref(name: str, number: int) -> str:
    """The name of a branch in the archive; a name that git takes for none is numbered."""
    try:
        return f"refs/gittrix/agent/heads/{branch_ref(name).removeprefix('refs/heads/')}"
    except InvalidInput:
        return f"refs/gittrix/agent/unnamed-heads/{number}"


def _logged(root: str, seed: Seed) -> list[str]:
    """The commits that the log of HEAD names, newest first."""
    try:
        with SafeDir.open(os.path.join(root, ".git")) as git:
            text = git.read("logs/HEAD", max_bytes=_LARGEST_LOG)[0]
    except FileNotFoundError:
        return []
    size = seed.format.hex_size
    ids = [match.decode() for match in re.findall(rb"^[0-9a-f]{%d} ([0-9a-f]{%d}) " % (size, size), text, re.MULTILINE)]
    return [*dict.fromkeys(reversed(ids))][:_MOST_LOGGED]


def _staged(staged: Iterable[tuple[str, str]], seed: Seed, files: Mapping[str, Entry | None]) -> dict[str, str]:
    """The staged contents that are neither in the baseline nor in the work tree, by path."""
    kept = {entry.id for entry in files.values() if entry is not None}
    return {path: id_ for path, id_ in staged if id_ not in kept and (path not in seed.entries or seed.entries[path].id != id_)}


def _staged_lines(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{path!r} is staged with other contents" for path in paths)
