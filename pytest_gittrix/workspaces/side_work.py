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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, UnsupportedRepository
from pytest_gittrix.git.bare_repository import open_bare
from pytest_gittrix.git.pack import ids_in_index
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.os_level.files import names_in, sync_directory, sync_tree, write_file
from pytest_gittrix.os_level.remove_tree import remove_tree
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.repositories.accounting import Accounting
from pytest_gittrix.workspaces.repositories.agent_objects import AgentObjects
from pytest_gittrix.workspaces.repositories.agent_repository import AgentRepository, read_repository
from pytest_gittrix.workspaces.seed import Seed

REPOSITORY: Final = "archive.agent.git"
"""The bare repository beside a session's record that holds an agent's side work."""
CONTENTS: Final = "archive.txt"
"""The file in it that says what is there."""

BUILDING: Final = "archive.agent.tmp"
UNKNOWN_INDEX: Final = "the index is in a format that only git reads"
_INDEX: Final = re.compile(r"index|sharedindex\.[0-9a-f]+")  # a split index is in two files
_FAN: Final = re.compile(r"[0-9a-f]{2}")
_SUBMODULES: Final = ".git/modules"
_LARGEST_INDEX: Final = 256 << 20
_LARGEST_LOG: Final = 16 << 20
_BATCH: Final = 64 << 20


class SideWork(NamedTuple):
    """What is in an agent's repository and in no file of its work tree.

    Attributes:
        refs: objects by the names that they get in the archive.
        lines: the same for people, a line for each.
        also: more lines, of what is kept and nobody is told of: contents that were staged and staged over, objects that are damaged.
        repository: the repository, as its files describe it.
    """

    refs: Mapping[str, str]
    lines: tuple[str, ...]
    also: tuple[str, ...]
    repository: AgentRepository


def find_side_work(
    root: str,
    seed: Seed,
    *,
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
        on_branch: gives the commits of the branch that HEAD is on, down to the baseline.
        promoted: whether the work tree was promoted, so that these are no side work: their outcome is in the promotion.
        files: what the work tree changed of the baseline, which is archived or promoted.
        on_step: called for each file of the repository; may raise to end the search.

    Raises:
        UnsupportedRepository, AdapterUnavailable, WriteRejected: the repository, or a part of it, cannot be read.
    """
    # An overlay has the baseline's pack in a layer below, and nobody makes it before a program needs it: so it is asked for last.
    if not _stores_objects(root, lambda pack: pack in seed.packs):
        return None
    found = read_repository(root, seed.format, known_packs=seed.packs, on_step=on_step)
    if found.problems:
        raise AdapterUnavailable(
            found.problems[0], why="The agent's repository may hold work that is in no file.", fix="Look into it by hand: it is kept."
        )
    objects = AgentObjects(os.path.join(root, ".git", "objects"), seed.format)
    try:
        return _account(found, Accounting(found.objects, objects, on_step), seed, on_branch() if promoted else (), files)
    finally:
        objects.close()


def _account(
    found: AgentRepository, accounting: Accounting, seed: Seed, promoted: Collection[str], files: Mapping[str, Entry | None]
) -> SideWork | None:
    """The objects that neither the baseline nor a promotion nor a file of the work tree has, by what leads to them."""
    if found.packed:  # an agent that packs its repository packs the baseline with it
        accounting.cover(id_ for name in seed.packs if name.endswith(".idx") for id_ in _packed_ids(seed, name))
    accounting.left -= {entry.id for entry in files.values() if entry is not None}
    accounting.cover([seed.commit, *promoted])
    named: list[tuple[str, str]] = []
    lines: list[str] = []
    for name, id_, line in _tips(found):
        if id_ in accounting.left:
            named.append((name, id_))
            lines.append(line)
            accounting.cover([id_])
    for place, index in (("", found.index), *((f" in the work tree {one.name!r}", one.index) for one in found.work_trees)):
        staged = {} if index is None else staged_apart(((path, id_) for path, id_ in index.staged() if id_ in accounting.left), seed, files)
        lines += [f"{line}{place}" for line in (*staged_lines(staged), *([UNKNOWN_INDEX] if index is None else []))]
        named += [("staged/", id_) for id_ in staged.values()]
        accounting.cover(staged.values())
    lost = {id_: accounting.kind(id_) for id_ in accounting.roots()}
    named += [("lost/", id_) for id_, kind in lost.items() if kind]
    lines += [f"nothing names the {kind} {id_}" for id_, kind in lost.items() if kind not in ("blob", "")]
    contents = [*lost.values()].count("blob")
    also = [f"nothing names the contents of {contents} file{'s' if contents > 1 else ''}"] if contents else []
    also += [f"the object {id_} is damaged" for id_ in sorted(accounting.damaged)]
    return SideWork(numbered(named), tuple(lines), tuple(also), found) if lines or also else None


def numbered(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """References of an archive by their full names, those whose names end in ``/`` with a number."""
    refs: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for name, id_ in named:
        refs[f"refs/gittrix/agent/{name}{numbers[name] if name.endswith('/') else ''}"] = id_
        numbers[name] += 1
    return refs


def _packed_ids(seed: Seed, name: str) -> list[str]:
    with open(os.path.join(seed.pack_dir, name), "rb") as index:
        return ids_in_index(index.read(), seed.format)


def _tips(found: AgentRepository) -> Iterator[tuple[str, str, str]]:
    """What leads to objects of a repository, the most telling first: a name for the archive, the object, and a line for people.

    A name that ends in ``/`` gets a number.
    """
    for name, id_ in found.branches.items():
        yield _branch_name(name), id_, f"branch {name!r} is at {id_}"
    if found.branch is None and found.commit is not None:
        yield "HEAD", found.commit, f"a detached HEAD is at {found.commit}"
    for number, id_ in enumerate(found.stashes):
        yield "stash/", id_, f"stash {number} is {id_}"
    for name, id_ in found.references.items():
        yield "references/", id_, f"{name} is at {id_}"
    for tree in found.work_trees:
        for name, id_ in tree.heads.items():
            yield "work-trees/", id_, f"{name} of the work tree {tree.name!r} is at {id_}"
    for id_ in (*found.logged, *(id_ for tree in found.work_trees for id_ in tree.logged)):
        yield "reflog/", id_, f"commit {id_} is in the reflog"
    for name, id_ in found.heads.items():  # HEAD itself was among the first
        yield "heads-of-git/", id_, f"{name} is at {id_}"


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
    from_, building, target = os.path.join(root, ".git", "objects"), directory / BUILDING, directory / REPOSITORY
    if not stat.S_ISDIR(os.lstat(from_).st_mode):
        raise UnsupportedRepository(f"{from_} is no directory.", why="It could lead anywhere.", fix="Look into it by hand.")
    begin_archive(building, seed, (*work.lines, *work.also), os.path.join(root, ".git"))
    write_refs(building, work.refs)
    if work.repository.shallow:
        write_file(building / "shallow", "".join(f"{id_}\n" for id_ in work.repository.shallow).encode())
    # It may lead to other object directories; those of the agent's are of no concern here.
    with suppress(FileNotFoundError):
        os.rename(os.path.join(from_, "info"), os.path.join(root, ".git", f"info-{secrets.token_hex(8)}"))
    shutil.rmtree(building / "objects")
    os.rename(from_, building / "objects")
    finish_archive(building, target, sync)
    return target


def begin_archive(building: Path, seed: Seed, lines: Iterable[str], git_dir: str) -> None:
    """Make a bare repository with an agent's index and a list of what is in it, in place of one that a killed attempt left."""
    remove_tree(building)
    open_bare(building, seed.format.name)
    write_file(building / CONTENTS, "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
    _keep_index(git_dir, building)


def write_refs(repository: Path, refs: Mapping[str, str]) -> None:
    """Write all references of an archive."""
    packed = "".join(f"{id_} {name}\n" for name, id_ in sorted(refs.items()))
    write_file(repository / "packed-refs", f"# pack-refs with: sorted \n{packed}".encode())


def finish_archive(building: Path, target: Path, sync: bool) -> None:
    """Give an archive that is whole its name."""
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
    building, target = directory / BUILDING, directory / REPOSITORY
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


def _branch_name(name: str) -> str:
    """The name of a branch in the archive; a name that git takes for none is numbered."""
    try:
        return f"heads/{branch_ref(name).removeprefix('refs/heads/')}"
    except InvalidInput:
        return "unnamed-heads/"


def staged_apart(staged: Iterable[tuple[str, str]], seed: Seed, files: Mapping[str, Entry | None]) -> dict[str, str]:
    """The staged contents that are neither in the baseline nor in the work tree, by path."""
    kept = {entry.id for entry in files.values() if entry is not None}
    return {path: id_ for path, id_ in staged if id_ not in kept and (path not in seed.entries or seed.entries[path].id != id_)}


def staged_lines(paths: Iterable[str]) -> tuple[str, ...]:
    """A line for people for each of these paths."""
    return tuple(f"{path!r} is staged with other contents" for path in paths)
