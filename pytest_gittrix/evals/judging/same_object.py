"""Which tests tell objects apart: what crosses to another process is never the same object, so there the answer says nothing."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection
from typing import Any, Final

from pytest_gittrix.evals.judging.other_value import called

_ASSERTIONS: Final = ("self.assertIs", "self.assertIsNot")


def tells_objects_apart(source: str, names: Collection[str]) -> set[str]:
    """The tests of a file that ask whether two values are the same object.

    Args:
        source: the file.
        names: the tests, such as ``TestIt::test_it``.

    Returns:
        Those whose function asks so; all if something else of the file does, such as a helper or a fixture.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {*names}
    asking: set[str] = set()
    for node in ast.walk(tree):
        inner: list[Any] = getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef) else []
        for one in inner:
            if not isinstance(one, ast.ClassDef) and any(map(_asks, ast.walk(one))):
                name = getattr(one, "name", "")
                if not name.startswith("test"):
                    return {*names}
                asking.add(name)
    return {name for name in names if name.rpartition("::")[2] in asking}


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        return any(isinstance(op, ast.Is | ast.IsNot) and not (_is_known(one) or _is_known(other)) for one, op, other in pairs)
    if isinstance(node, ast.Call) and called(node) in _ASSERTIONS:
        return not any(map(_is_known, node.args[:2]))
    return called(node) == "id"


def _is_known(node: ast.expr) -> bool:
    """Whether an expression is an object that there is once in each process, and that means the same in both."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and hasattr(builtins, node.id))
