"""Finds the work that only an agent's git has: other branches, stashes, the index, and commits that a reflog or nothing names.

A snapshot sees files. This sees what was committed, stashed or staged and is in no file. No git runs in the agent's repository, none of
its configuration is read, and no link is followed. A linked work tree has its repository in durable, whose references stay: there only
counts what git would forget with the work tree.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.git.index import IndexFile
from pytest_gittrix.git.pack import ids_in_index
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.os_level.files import names_in
from pytest_gittrix.workspaces.finder.accounting import Accounting, SharedHistory
from pytest_gittrix.workspaces.finder.findings import FoundWork
from pytest_gittrix.workspaces.repositories.agent_objects import AgentObjects
from pytest_gittrix.workspaces.repositories.agent_repository import AgentRepository, read_linked, read_repository
from pytest_gittrix.workspaces.seeds.seed import Seed

UNKNOWN_INDEX: Final = "the index is in a format that only git reads"
_FAN: Final = re.compile(r"[0-9a-f]{2}")
_SUBMODULES: Final = ".git/modules"

Files = Mapping[str, Entry | None]
"""What a work tree changed of its baseline, which is archived or promoted."""


class ToCopy(NamedTuple):
    """The objects of a linked work tree. They are durable's, which forgets them some day.

    Attributes:
        commits: those that nothing that stays leads to, newest first.
        edge: their parents that are not among them, with the parents of each; without the baseline itself.
        blobs: the ids of staged contents.
    """

    commits: tuple[str, ...]
    edge: Mapping[str, tuple[str, ...]]
    blobs: tuple[str, ...]


class AgentWork(NamedTuple):
    """What an agent's git leads to and no file of its work tree has.

    Attributes:
        git_dir: the directory with its HEAD and its index.
        findings: every piece that is named to a person; all are only copies.
        refs: objects by the names that they get in the archive.
        also: lines about what is kept without a finding: contents that were staged and staged over, objects that are damaged.
        shallow: commits whose parents are missing.
        to_copy: the objects to copy; None where the whole store of the agent's repository is moved.
    """

    git_dir: str
    findings: tuple[FoundWork, ...]
    refs: Mapping[str, str]
    also: tuple[str, ...] = ()
    shallow: tuple[str, ...] = ()
    to_copy: ToCopy | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """The findings for people, a line for each."""
        return tuple(one.where for one in self.findings)


def find_agent_work(
    root: str,
    seed: Seed,
    *,
    on_branch: Callable[[], Collection[str]],
    promoted: bool,
    files: Files,
    on_step: Callable[[], object] = lambda: None,
) -> AgentWork | None:
    """Look for work in a workspace's own repository; None if there is none.

    A repository in which nothing was stored since it was made costs one listing of a directory.

    Args:
        root: the work tree, with its own ``.git``.
        seed: its baseline.
        on_branch: gives the commits of the branch that HEAD is on, down to the baseline.
        promoted: whether the work tree was promoted: then the outcome of these commits is in the promotion.
        files: its changes.
        on_step: called for each file of the repository; may raise to end the search.

    Raises:
        UnsupportedRepository, AdapterUnavailable, WriteRejected: the repository, or a part of it, cannot be read.
    """
    # An overlay has the baseline's pack in a layer below, which is made when a program first needs it: so it is asked for last.
    if not _stores_objects(root, lambda pack: pack in seed.packs):
        return None
    found = read_repository(root, seed.format, known_packs=seed.packs, on_step=on_step)
    if found.problems:
        raise AdapterUnavailable(
            found.problems[0], why="The agent's repository may hold work that is in no file.", fix="Look into it by hand: it is kept."
        )
    objects = AgentObjects(os.path.join(root, ".git", "objects"), seed.format)
    try:
        pieces, account = _Pieces(seed, files), Accounting(found.objects, objects, on_step)
        if found.packed:  # an agent that packs its repository packs the baseline with it
            account.cover(id_ for name in seed.packs if name.endswith(".idx") for id_ in _packed_ids(seed, name))
        account.left -= {entry.id for entry in files.values() if entry is not None}
        account.cover([seed.commit, *(on_branch() if promoted else ())])
        pieces.add_tips(_tips(found), account)
        for place, index in (("", found.index), *((f" in the work tree {one.name!r}", one.index) for one in found.work_trees)):
            account.cover(pieces.add_staged(index, place, account.left))
        also = pieces.add_lost(account)
    finally:
        objects.close()
    if not pieces.findings and not also:
        return None
    return AgentWork(os.path.join(root, ".git"), tuple(pieces.findings), pieces.refs(), tuple(also), found.shallow)


def find_linked_work(
    git_dir: str, seed: Seed, files: Files, *, promoted: bool, on_step: Callable[[], object] = lambda: None
) -> AgentWork | None:
    """Look for work that goes with a linked work tree: commits on no branch, and contents that are only staged; None if there is none.

    Args:
        git_dir: the directory in durable with its HEAD and its index.
        seed: its baseline.
        files: its changes.
        promoted: whether these were promoted: then the outcome of the commits of its HEAD is in the promotion.
        on_step: called for each commit; may raise to end the search.

    Raises:
        AdapterUnavailable: durable's objects, or a file of the directory, cannot be read.
    """
    try:
        found = read_linked(git_dir, seed.format, unchanged_index=seed.index)
    except FileNotFoundError:
        return None
    head = found.heads.get("HEAD", seed.commit)
    others = [tip for tip in _tips_without_name(found.logged, found.heads) if tip[1] not in (head, seed.commit)]
    pieces, history = _Pieces(seed, files), SharedHistory(os.path.dirname(os.path.dirname(git_dir)), seed.commit, seed.format, on_step)
    try:
        if not promoted and head != seed.commit:
            pieces.add("HEAD", head, f"a detached HEAD is at {head}{'' if history.holds(head) else ', which is in durable alone'}")
        if others:
            history.cover([head, *history.commits])
            history.cover_references()
            pieces.add_tips(others, history)
    finally:
        history.close()
    refs, blobs = pieces.refs(), pieces.add_staged(found.index)
    if not pieces.findings:
        return None
    return AgentWork(git_dir, tuple(pieces.findings), refs, to_copy=ToCopy(tuple(history.commits), history.edge, tuple(blobs)))


class _Pieces:
    """The pieces of work that were found in one git, in order, and their names in an archive.

    Args:
        seed: the baseline.
        files: the changes of the work tree.
    """

    def __init__(self, seed: Seed, files: Files) -> None:
        self.findings: list[FoundWork] = []
        self._named: list[tuple[str, str]] = []
        self._seed = seed
        self._kept = {entry.id for entry in files.values() if entry is not None}

    def add(self, name: str, id_: str | None, line: str) -> None:
        """Add a piece. Without an id it gets no name, and without a line it is no finding."""
        if id_ is not None:
            self._named.append((name, id_))
        if line:
            self.findings.append(FoundWork(name.partition("/")[0], id_ or "", "only", line))

    def add_tips(self, tips: Iterable[tuple[str, str, str]], account: Accounting | SharedHistory) -> None:
        """Add what is not accounted for, and account for all that it leads to."""
        for name, id_, line in tips:
            if account.holds(id_):
                self.add(name, id_, line)
                account.cover([id_])

    def add_staged(self, index: IndexFile | None, place: str = "", among: Collection[str] | None = None) -> list[str]:
        """Add the staged contents that are neither in the baseline nor in the work tree; returns their ids.

        Args:
            index: the index; None for one that only git can read.
            place: which one it is, for people.
            among: the ids that count; all by default.
        """
        if index is None:
            self.add("staged/", None, f"{UNKNOWN_INDEX}{place}")
            return []
        entries = self._seed.entries
        wanted = ((path, id_) for path, id_ in index.staged() if id_ not in self._kept and (among is None or id_ in among))
        staged = {path: id_ for path, id_ in wanted if path not in entries or entries[path].id != id_}
        for path, id_ in staged.items():
            self.add("staged/", id_, f"{path!r} is staged with other contents{place}")
        return [*staged.values()]

    def add_lost(self, account: Accounting) -> list[str]:
        """Add the objects that nothing names; returns lines about those that are no finding."""
        lost = {id_: account.kind(id_) for id_ in account.roots()}
        for id_, kind in lost.items():
            self.add("lost/", id_ if kind else None, f"nothing names the {kind} {id_}" if kind not in ("blob", "") else "")
        contents = [*lost.values()].count("blob")
        also = [f"nothing names the contents of {contents} file{'s' if contents > 1 else ''}"] if contents else []
        return also + [f"the object {id_} is damaged" for id_ in sorted(account.damaged)]

    def refs(self) -> dict[str, str]:
        """The objects by their full names in an archive; a name that ends in ``/`` gets a number."""
        refs: dict[str, str] = {}
        numbers: Counter[str] = Counter()
        for name, id_ in self._named:
            refs[f"refs/gittrix/agent/{name}{numbers[name] if name.endswith('/') else ''}"] = id_
            numbers[name] += 1
        return refs


def _packed_ids(seed: Seed, name: str) -> list[str]:
    with open(os.path.join(seed.pack_dir, name), "rb") as index:
        return ids_in_index(index.read(), seed.format)


def _tips(found: AgentRepository) -> Iterator[tuple[str, str, str]]:
    """What leads to objects of a repository, the most telling first: a name for the archive, the object, and a line for people."""
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
    yield from _tips_without_name((*found.logged, *(id_ for tree in found.work_trees for id_ in tree.logged)), found.heads)


def _tips_without_name(logged: Iterable[str], heads: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """As ``_tips``, for what reflogs and files such as ORIG_HEAD lead to."""
    for id_ in logged:
        yield "reflog/", id_, f"commit {id_} is in the reflog"
    for name, id_ in heads.items():
        yield "heads-of-git/", id_, f"{name} is at {id_}"


def _branch_name(name: str) -> str:
    """The name of a branch in the archive; a name that git does not accept is numbered."""
    try:
        return f"heads/{branch_ref(name).removeprefix('refs/heads/')}"
    except InvalidInput:
        return "unnamed-heads/"


def nested_repositories(root: str, directories: Collection[str]) -> list[str]:
    """The repositories of an agent's own below a work tree in which something was stored.

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
