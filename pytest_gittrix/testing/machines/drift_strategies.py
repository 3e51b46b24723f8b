"""Strategies for drift: what people do to durable during a session, aimed at the session's work, with a recipe for each kind of drift.

A recipe is drawn only where it is possible, so no example is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.tree import parents
from pytest_gittrix.testing.machines.strategies import check_choices, check_collection, contents, edits
from pytest_gittrix.testing.repos.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Tree
from pytest_gittrix.testing.repos.history import Content, Executable, Symlink, retyped


def durable_edits(
    tree: Mapping[str, Content],
    *,
    touched: Collection[str] | Mapping[str, Content | None] = (),
    kinds: Collection[DurableKind] = DURABLE_KINDS,
) -> SearchStrategy[DurableEdit]:
    """Things a person does to durable, aimed at what a session has touched.

    Args:
        tree: what durable's branch holds.
        touched: what the session has touched; as a mapping, with the new contents (None where it deleted). Without any, every file of the
            tree is a target.
        kinds: which to draw from. Those that are impossible here are left out: nothing can be renamed in an empty tree, and
            ``same-content`` and ``modify/delete`` need ``touched`` as a mapping.

    Raises:
        InvalidInput: an unknown kind; or, when it is drawn, none of the kinds is possible.
    """
    check_collection("touched", touched)
    return _durable_edits(Tree(tree), touched, check_choices("kinds", kinds, DURABLE_KINDS))


_SHARED: Final[Collection[DurableKind]] = ("overlap", "delete/modify", "directory/file", "mode", "symlink")


def overlapping_edits(tree: Mapping[str, Content]) -> SearchStrategy[tuple[Edits, Edits]]:
    """The work of two sessions of one repository, of which the second is aimed at the paths that the first touches.

    Args:
        tree: what durable's branch holds.
    """

    def aimed(ours: Edits) -> SearchStrategy[tuple[Edits, Edits]]:
        theirs = durable_edits(tree, touched=ours, kinds=_SHARED if ours or tree else ["disjoint"])
        return theirs.map(lambda edit: (ours, edit.commits[0]))

    return edits(tree, min_size=1).flatmap(aimed)


@st.composite
def _durable_edits(
    draw: st.DrawFn, tree: Tree, touched: Collection[str] | Mapping[str, Content | None], wanted: Collection[str]
) -> DurableEdit:
    situation = _Situation(draw, tree, touched)
    possible = [kind for kind in DURABLE_KINDS if kind in wanted and _RECIPES[kind].possible(situation)]
    if not possible:
        raise InvalidInput(
            f"None of {', '.join(wanted)} is possible here.",
            why=f"The tree holds {len(tree)} files, of which {len(situation.standing)} were touched.",
            fix="Add 'disjoint' or 'overlap', or give more files.",
        )
    kind: DurableKind = draw(st.sampled_from(possible))
    return _RECIPES[kind].make(situation, kind)


class _Situation:
    """The tree, the touched paths and the draw function that a recipe works with."""

    def __init__(self, draw: st.DrawFn, tree: Tree, touched: Collection[str] | Mapping[str, Content | None]) -> None:
        self.draw = draw
        self.tree = tree
        self.new: Mapping[str, Content | None] = touched if isinstance(touched, Mapping) else {}
        self.touched = sorted(touched) or sorted(tree)
        self.standing = [path for path in self.touched if path in tree]
        self.deleted = [path for path in self.standing if path in self.new and self.new[path] is None]
        self.regular = [path for path in self.standing if not isinstance(tree[path], Symlink)]
        self.lettered = [path for path in self.standing if path.swapcase() not in tree and path.swapcase() != path and self._fits(path)]
        self.written = {path: new for path, new in self.new.items() if new is not None and tree.get(path) != new}
        self.others = [path for path in tree if path not in self.touched]

    def _fits(self, path: str) -> bool:
        without = self.tree.apply({path: None})
        return len(without.placing(path.swapcase(), b"")) == 1

    def one(self, paths: Iterable[str]) -> str:
        return self.draw(st.sampled_from(list(paths)))

    def content(self, *, other_than: Content | None) -> Content:
        """Some content that differs from ``other_than``."""
        drawn = self.draw(contents())
        return drawn if drawn != other_than else b"another\n"

    def fresh(self, stem: str = "moved") -> str:
        """A path that clashes neither with the tree nor with touched paths."""
        taken = {*self.tree, *self.touched}
        taken |= {parent for path in taken for parent in parents(path)}
        return next(name for number in count(1) if (name := stem if number == 1 else f"{stem}{number}") not in taken)


def _commits(kind: DurableKind, *edits: Edits | Mapping[str, Content | None]) -> DurableEdit:
    return DurableEdit(kind, tuple(one if isinstance(one, Edits) else Edits(one) for one in edits))


def _overlap(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.touched)
    return _commits(kind, situation.tree.placing(path, situation.content(other_than=situation.tree.get(path))))


def _elsewhere(situation: _Situation) -> Edits:
    path = situation.one([*situation.others, situation.fresh("elsewhere")])
    return Edits({path: situation.content(other_than=situation.tree.get(path))})


def _disjoint(situation: _Situation, kind: DurableKind) -> DurableEdit:
    return _commits(kind, _elsewhere(situation))


def _rename_away(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.standing)
    return _commits(kind, {path: None, situation.fresh(): situation.tree[path]})


def _rename_onto(situation: _Situation, kind: DurableKind) -> DurableEdit:
    source, target = situation.one(situation.others), situation.one(situation.touched)
    rest = situation.tree.apply({source: None})
    return _commits(kind, {source: None, **rest.placing(target, situation.tree[source])})


def _delete(situation: _Situation, kind: DurableKind) -> DurableEdit:
    return _commits(kind, {situation.one(situation.standing): None})


def _modify(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.deleted)
    return _commits(kind, {path: situation.content(other_than=situation.tree[path])})


def _directory_file(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.touched)
    above = list(parents(path))
    target = situation.one([f"{path}/inside", *above])
    return _commits(kind, situation.tree.placing(target, situation.draw(contents(kinds=["file"]))))


def _mode(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.regular)
    content = situation.tree[path]
    return _commits(kind, {path: content.data if isinstance(content, Executable) else Executable(_plain(content))})


def _plain(content: Content) -> bytes | str:
    assert isinstance(content, bytes | str)
    return content


def _symlink(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.regular)
    same_bytes = [st.just(one) for one in retyped(situation.tree[path]) if isinstance(one, Symlink)]
    return _commits(kind, {path: situation.draw(st.one_of(contents(kinds=["symlink"]), *same_bytes))})


def _case_only(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.lettered)
    return _commits(kind, {path: None, path.swapcase(): situation.tree[path]})


def _same_content(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.written)
    new = situation.written[path]
    assert new is not None
    return _commits(kind, situation.tree.placing(path, new))


def _there_and_back(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one(situation.standing)
    changed = {path: situation.content(other_than=situation.tree[path])}
    return _commits(kind, changed, {path: situation.tree[path]})


def _rewind(situation: _Situation, kind: DurableKind) -> DurableEdit:
    change = situation.draw(st.sampled_from(["nothing", "elsewhere", "overlap"]))
    edits = _elsewhere(situation) if change == "elsewhere" else Edits({})
    if change == "overlap" and situation.standing:
        path = situation.one(situation.standing)
        edits = Edits({path: situation.content(other_than=situation.tree[path])})
    return DurableEdit(kind, (edits,), rewrite=True)


def _left_lying(situation: _Situation, kind: DurableKind) -> DurableEdit:
    path = situation.one([*situation.standing, *situation.others] or [situation.fresh("untracked")])
    gone = path in situation.tree and situation.draw(st.booleans())
    edits = Edits({path: None if gone else situation.content(other_than=situation.tree.get(path))})
    return DurableEdit(kind, staged=edits) if kind == "staged" else DurableEdit(kind, dirty=edits)


@dataclass(frozen=True)
class _Recipe:
    make: Callable[[_Situation, DurableKind], DurableEdit]
    possible: Callable[[_Situation], object]


def _always(_situation: _Situation) -> bool:
    return True


_RECIPES: Final[Mapping[DurableKind, _Recipe]] = {
    "overlap": _Recipe(_overlap, lambda situation: situation.touched),
    "disjoint": _Recipe(_disjoint, _always),
    "rename-away": _Recipe(_rename_away, lambda situation: situation.standing),
    "rename-onto": _Recipe(_rename_onto, lambda situation: situation.others and situation.touched),
    "delete/modify": _Recipe(_delete, lambda situation: situation.standing),
    "modify/delete": _Recipe(_modify, lambda situation: situation.deleted),
    "directory/file": _Recipe(_directory_file, lambda situation: situation.touched),
    "mode": _Recipe(_mode, lambda situation: situation.regular),
    "symlink": _Recipe(_symlink, lambda situation: situation.regular),
    "case-only": _Recipe(_case_only, lambda situation: situation.lettered),
    "same-content": _Recipe(_same_content, lambda situation: situation.written),
    "revert-to-baseline": _Recipe(_there_and_back, lambda situation: situation.standing),
    "rewind": _Recipe(_rewind, _always),
    "dirty": _Recipe(_left_lying, _always),
    "staged": _Recipe(_left_lying, _always),
}
