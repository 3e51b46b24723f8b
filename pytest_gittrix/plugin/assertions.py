"""The explanation of a failed ``assert a == b`` of trees and fingerprints, which paths differ and how, and of ``assert path in tree``
and ``assert text in conversation``.

pytest calls ``explain`` for every failed comparison of every test, so it first looks at the names of types. It imports nothing of the
package: a test with such a value has loaded its module. ``assert gittrix.sweep() == [session.id]`` is explained where the timer was faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gittrix.engine.engine import GitTrix
    from pytest_gittrix.engine.services import SweptSession

_TREES = "pytest_gittrix.git.tree"
_FINGERPRINTS = "pytest_gittrix.testing.repos.fingerprint"
_CONVERSATIONS = "pytest_gittrix.model.conversations"
_SHOWN = 40
_LONGEST = 160
_LISTS = (list, tuple, set, frozenset)


def explain(operator: str, left: object, right: object) -> list[str] | None:
    """The lines that pytest shows for ``assert left <operator> right``; None leaves the explanation to pytest."""
    if operator in ("in", "not in") and isinstance(right, Mapping) and _is_tree({}, right):
        paths = sorted(right)
        return [f"{left!r} {operator} a tree of {len(paths)} path{'s' if len(paths) != 1 else ''}", *_shortened([*map(repr, paths)])]
    if operator == "in" and isinstance(right, str) and type(right).__module__ == _CONVERSATIONS:
        return [f"{left!r} in the conversation", *_shortened(right.splitlines())]
    if operator != "==":
        return None
    if type(left).__module__ == _FINGERPRINTS and type(left) is type(right):
        lines = [_fact_line(*fact) for fact in left.differences(right)]  # type: ignore[attr-defined]
        return [f"fingerprints differ in {len(lines)} place{'s' if len(lines) != 1 else ''}, left != right", *_shortened(lines)]
    if isinstance(left, Mapping) and isinstance(right, Mapping) and _is_tree(left, right):
        return _tree_lines(left, right)
    return None


def explain_swept(
    operator: str, left: object, right: object, swept: Sequence[SweptSession], engines: Sequence[GitTrix] = ()
) -> list[str] | None:
    """The lines for a comparison that misses sessions which were swept before it, or left because they are in use; None if there are none.

    Args:
        operator: the operator of the comparison.
        left: the value on its left.
        right: the value on its right.
        swept: the sessions that were swept until now.
        engines: those of the test.
    """
    if not (swept or engines) or operator not in ("==", "in") or not isinstance(right, _LISTS):
        return None
    if operator == "==" and not isinstance(left, _LISTS):
        return None
    expected, got = (_ids(right), _ids(left)) if operator == "==" else (_ids([left]), _ids(right))
    missing = expected - got
    # Of ids that are only on the left, sweep() may just have evicted some.
    more = got - expected if operator == "==" else ()
    named = [one for one in swept if one.id in missing or (one.id in more and one.by != "sweep()")]
    lines = [line for engine in engines for line in _in_use_lines(missing, engine)]
    if named:
        from pytest_gittrix.durations import instant_text

        lines += [f"{one.id} was swept by {one.by} at {instant_text(one.at_ns)}" for one in named]
    if not lines:
        return None
    rule = "sweep() gives the sessions that it evicts itself; swept() gives those that were swept until now."
    return [f"{_short(left)} {operator} {_short(right)}", *_shortened(lines), *([rule] if named else [])]


def _in_use_lines(ids: frozenset[str], engine: GitTrix) -> list[str]:
    """A line for each of some ids that is a session which sweeps leave because somebody works there."""
    if ids.isdisjoint(engine.store.ids()):
        return []
    return [f"{one.id} is in use by {one.users}, so a sweep leaves it until they have ended" for one in engine.in_use() if one.id in ids]


def _ids(value: object) -> frozenset[str]:
    return frozenset(one for one in value if isinstance(one, str)) if isinstance(value, _LISTS) else frozenset()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _fact_line(name: str, left: str | None, right: str | None) -> str:
    """A fact of two fingerprints that differs, in the order of the assertion: neither side need be the earlier one."""
    if right is None:
        return f"{name}: only on the left ({left})"
    if left is None:
        return f"{name}: only on the right ({right})"
    return f"{name}: {left} != {right}"


def _is_tree(left: Mapping[Any, Any], right: Mapping[Any, Any]) -> bool:
    # A mapping of changes has None for a deletion.
    values = [*left.values(), *right.values()]
    kinds = {type(value).__module__ for value in values if value is not None}
    return kinds == {_TREES}


def _tree_lines(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    paths = [path for path in sorted(left.keys() | right.keys()) if path not in left or path not in right or left[path] != right[path]]
    moved = dict(_moves(left, right))
    arrived = set(moved.values())
    lines = [_path_line(path, left, right, moved) for path in paths if path not in arrived]
    count = len(left.keys() | right.keys())
    return [f"trees differ at {len(paths)} of {count} path{'s' if count != 1 else ''}", *_shortened(lines)]


def _moves(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Paths only in ``left``, each with a path only in ``right`` that holds the same entry."""
    gone = {path: entry for path, entry in left.items() if path not in right and entry is not None}
    new = [path for path in sorted(right) if path not in left]
    for path in sorted(gone):
        twin = next((other for other in new if right[other] == gone[path]), None)
        if twin is not None:
            new.remove(twin)
            yield path, twin


def _path_line(path: str, left: Mapping[str, Any], right: Mapping[str, Any], moved: Mapping[str, str]) -> str:
    if path in moved:
        return f"{path!r}: is {moved[path]!r} on the right ({_entry(left[path])})"
    if path not in right:
        return f"{path!r}: only on the left ({_entry(left[path])})"
    if path not in left:
        return f"{path!r}: only on the right ({_entry(right[path])})"
    return f"{path!r}: {_entry(left[path])} != {_entry(right[path])}{_hint(left[path], right[path])}"


def _entry(entry: Any) -> str:
    return "deleted" if entry is None else f"{entry.kind} {entry.mode:06o} {entry.id[:10]}"


def _hint(left: Any, right: Any) -> str:
    return " (same bytes, other mode)" if left and right and left.id == right.id else ""


def _shortened(lines: list[str]) -> list[str]:
    left_out = len(lines) - _SHOWN
    return lines if left_out <= 0 else [*lines[:_SHOWN], f"... {left_out} more"]
