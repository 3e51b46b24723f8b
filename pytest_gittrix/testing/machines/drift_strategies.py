"""What a person may do to durable behind a session's back, drawn so that it meets the session's work: a recipe for each kind of drift.

A recipe is offered only where it is possible, so that nothing is drawn in vain. It must know no disk, no engine and no pytest.
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
from pytest_gittrix.testing.machines.strategies import check_choices, check_collection, contents
from pytest_gittrix.testing.repos.edits import DURABLE_KINDS, DurableEdit, DurableKind, Edits, Tree
from pytest_gittrix.testing.repos.history import Content, Executable, Symlink


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


@st.composite
def _durable_edits(
    draw: st.DrawFn, tree: Tree, touched: Collection[str] | Mapping[str, Content | None], wanted: Collection[str]
) -> DurableEdit:
    scene = _Scene(draw, tree, touched)
    possible = [kind for kind in DURABLE_KINDS if kind in wanted and _RECIPES[kind].possible(scene)]
    if not possible:
        raise InvalidInput(
            f"None of {', '.join(wanted)} is possible here.",
            why=f"The tree holds {len(tree)} files, of which {len(scene.standing)} were touched.",
            fix="Add 'disjoint' or 'overlap', or give more files.",
        )
    kind: DurableKind = draw(st.sampled_from(possible))
    return _RECIPES[kind].make(scene, kind)


class _Scene:
    """What a recipe has to work with."""

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
        """Some content, always another one than that."""
        drawn = self.draw(contents())
        return drawn if drawn != other_than else b"another\n"

    def fresh(self, stem: str = "moved") -> str:
        """A path that meets neither the tree nor what was touched."""
        taken = {*self.tree, *self.touched}
        taken |= {parent for path in taken for parent in parents(path)}
        return next(name for number in count(1) if (name := stem if number == 1 else f"{stem}{number}") not in taken)


def _commits(kind: DurableKind, *edits: Edits | Mapping[str, Content | None]) -> DurableEdit:
    return DurableEdit(kind, tuple(one if isinstance(one, Edits) else Edits(one) for one in edits))


def _overlap(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.touched)
    return _commits(kind, scene.tree.placing(path, scene.content(other_than=scene.tree.get(path))))


def _elsewhere(scene: _Scene) -> Edits:
    path = scene.one([*scene.others, scene.fresh("elsewhere")])
    return Edits({path: scene.content(other_than=scene.tree.get(path))})


def _disjoint(scene: _Scene, kind: DurableKind) -> DurableEdit:
    return _commits(kind, _elsewhere(scene))


def _rename_away(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.standing)
    return _commits(kind, {path: None, scene.fresh(): scene.tree[path]})


def _rename_onto(scene: _Scene, kind: DurableKind) -> DurableEdit:
    source, target = scene.one(scene.others), scene.one(scene.touched)
    rest = scene.tree.apply({source: None})
    return _commits(kind, {source: None, **rest.placing(target, scene.tree[source])})


def _delete(scene: _Scene, kind: DurableKind) -> DurableEdit:
    return _commits(kind, {scene.one(scene.standing): None})


def _modify(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.deleted)
    return _commits(kind, {path: scene.content(other_than=scene.tree[path])})


def _directory_file(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.touched)
    above = list(parents(path))
    target = scene.one([f"{path}/inside", *above])
    return _commits(kind, scene.tree.placing(target, scene.draw(contents(kinds=["file"]))))


def _mode(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.regular)
    content = scene.tree[path]
    return _commits(kind, {path: content.data if isinstance(content, Executable) else Executable(_plain(content))})


def _plain(content: Content) -> bytes | str:
    assert isinstance(content, bytes | str)
    return content


def _symlink(scene: _Scene, kind: DurableKind) -> DurableEdit:
    return _commits(kind, {scene.one(scene.regular): scene.draw(contents(kinds=["symlink"]))})


def _case_only(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.lettered)
    return _commits(kind, {path: None, path.swapcase(): scene.tree[path]})


def _same_content(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.written)
    new = scene.written[path]
    assert new is not None
    return _commits(kind, scene.tree.placing(path, new))


def _there_and_back(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one(scene.standing)
    changed = {path: scene.content(other_than=scene.tree[path])}
    return _commits(kind, changed, {path: scene.tree[path]})


def _rewind(scene: _Scene, kind: DurableKind) -> DurableEdit:
    change = scene.draw(st.sampled_from(["nothing", "elsewhere", "overlap"]))
    edits = _elsewhere(scene) if change == "elsewhere" else Edits({})
    if change == "overlap" and scene.standing:
        path = scene.one(scene.standing)
        edits = Edits({path: scene.content(other_than=scene.tree[path])})
    return DurableEdit(kind, (edits,), rewrite=True)


def _left_lying(scene: _Scene, kind: DurableKind) -> DurableEdit:
    path = scene.one([*scene.standing, *scene.others] or [scene.fresh("untracked")])
    gone = path in scene.tree and scene.draw(st.booleans())
    edits = Edits({path: None if gone else scene.content(other_than=scene.tree.get(path))})
    return DurableEdit(kind, staged=edits) if kind == "staged" else DurableEdit(kind, dirty=edits)


@dataclass(frozen=True)
class _Recipe:
    make: Callable[[_Scene, DurableKind], DurableEdit]
    possible: Callable[[_Scene], object]


def _always(_scene: _Scene) -> bool:
    return True


_RECIPES: Final[Mapping[DurableKind, _Recipe]] = {
    "overlap": _Recipe(_overlap, lambda scene: scene.touched),
    "disjoint": _Recipe(_disjoint, _always),
    "rename-away": _Recipe(_rename_away, lambda scene: scene.standing),
    "rename-onto": _Recipe(_rename_onto, lambda scene: scene.others and scene.touched),
    "delete/modify": _Recipe(_delete, lambda scene: scene.standing),
    "modify/delete": _Recipe(_modify, lambda scene: scene.deleted),
    "directory/file": _Recipe(_directory_file, lambda scene: scene.touched),
    "mode": _Recipe(_mode, lambda scene: scene.regular),
    "symlink": _Recipe(_symlink, lambda scene: scene.regular),
    "case-only": _Recipe(_case_only, lambda scene: scene.lettered),
    "same-content": _Recipe(_same_content, lambda scene: scene.written),
    "revert-to-baseline": _Recipe(_there_and_back, lambda scene: scene.standing),
    "rewind": _Recipe(_rewind, _always),
    "dirty": _Recipe(_left_lying, _always),
    "staged": _Recipe(_left_lying, _always),
}
