"""Canaries: a test file with a changed expectation, which the right result must fail.

A result that passes a test whatever the test expects has not been tested by it. Both texts are printed alike, so that a result which reads
the test file does not know which of them it is given.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

_RAISED_INSTEAD: Final = "StopAsyncIteration"


def printed(source: str) -> str:
    """A test file as it is printed when nothing in it is changed; as it is, if it cannot be parsed."""
    tree = _parsed(source)
    return source if tree is None else ast.unparse(tree)


def changeable(source: str) -> frozenset[str]:
    """The names of the tests, such as ``TestIt::test_it``, that have an expectation which can be changed."""
    tree = _parsed(source)
    return frozenset() if tree is None else frozenset(name for name, test in _tests(tree) if any(True for _ in _expectations(test)))


def changed(source: str, names: Collection[str], seed: int) -> str:
    """The test file with one expectation of each named test changed.

    Args:
        source: the test file.
        names: the names of tests; see ``changeable``.
        seed: decides which expectation of several is changed.
    """
    tree = _parsed(source)
    if tree is None:
        return source
    drawn = random.Random(seed)
    for name, test in _tests(tree):
        found = [*_expectations(test)] if name in names else []
        if found:
            holder, field, index, change = drawn.choice(found)
            values = getattr(holder, field)
            if index is None:
                setattr(holder, field, change(values))
            else:
                values[index] = change(values[index])
    return ast.unparse(ast.fix_missing_locations(tree))


def test_name(nodeid: str) -> str:
    """The name of a test as ``changeable`` has it, of a node id such as ``test_it[1-2]``."""
    return nodeid.partition("[")[0]


_Place = tuple[Any, str, int | None, Any]


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _tests(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}::{inner.name}", inner) for inner in node.body if isinstance(inner, ast.FunctionDef))


def _expectations(test: ast.FunctionDef) -> Iterator[_Place]:
    """The places of a test whose change must make it fail; only statements that are surely executed count."""
    parameters = _parameters(test)
    for statement in _executed(test.body):
        if isinstance(statement, ast.With):
            for item in statement.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises" and call.args:
                    yield call, "args", 0, _other_exception
        elif isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare) and len(statement.test.ops) == 1:
            compare, operation = statement.test, statement.test.ops[0]
            if isinstance(operation, ast.Eq):
                for field, index, side in (("left", None, compare.left), ("comparators", 0, compare.comparators[0])):
                    if _is_literal(side):
                        yield compare, field, index, _other_value
                    elif isinstance(side, ast.Name) and side.id in parameters and _uses(test, side.id) == 1:
                        yield parameters[side.id]
            elif isinstance(operation, ast.Is) and isinstance(compare.comparators[0], ast.Constant):
                yield compare, "comparators", 0, _other_value


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.Return):
            return
        yield statement
        if isinstance(statement, ast.With) and "pytest.raises" not in ast.unparse(statement.items[0].context_expr):
            yield from _executed(statement.body)


def _parameters(test: ast.FunctionDef) -> Mapping[str, _Place]:
    """The parameters whose values stand in the test's own decorator, each with the place of its values."""
    found: dict[str, _Place] = {}
    for decorator in test.decorator_list:
        if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith("mark.parametrize") or len(decorator.args) < 2:
            continue
        try:
            given = ast.literal_eval(decorator.args[0])
        except ValueError:
            continue
        names = [name.strip() for name in given.split(",")] if isinstance(given, str) else [*map(str, given)]
        rows = decorator.args[1]
        if not isinstance(rows, ast.List | ast.Tuple):
            continue
        for number, name in enumerate(names):
            cells = [row.elts[number] for row in rows.elts if isinstance(row, ast.List | ast.Tuple)] if len(names) > 1 else rows.elts
            if len(cells) == len(rows.elts) and all(map(_is_literal, cells)):
                column = None if len(names) == 1 else number
                found[name] = (decorator, "args", 1, lambda value, column=column: _other_column(value, column))
    return found


def _other_column(rows: Any, column: int | None) -> Any:
    for number, row in enumerate(rows.elts):
        if column is None:
            rows.elts[number] = _other_value(row)
        else:
            row.elts[column] = _other_value(row.elts[column])
    return rows


def _uses(test: ast.FunctionDef, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(test))


def _is_literal(node: ast.expr) -> bool:
    try:
        return type(ast.literal_eval(node)) in (int, float, bool, str, bytes, list, tuple, dict, set, type(None))
    except (ValueError, TypeError, RecursionError):
        return False


def _other_value(node: ast.expr) -> ast.expr:
    """A literal of the same type that is not equal; of another type for None."""
    value = ast.literal_eval(node)
    match value:
        case bool():
            other: Any = not value
        case int() | float():
            other = value + 1 if abs(value) < 1 << 50 else 0
        case str():
            other = value[:-1] + ("x" if value[-1] != "x" else "y") if value else "x"
        case bytes():
            other = value[:-1] + (b"x" if value[-1:] != b"x" else b"y") if value else b"x"
        case list():
            other = [*value, value[-1] if value else 1]
        case tuple():
            other = (*value, value[-1] if value else 1)
        case dict():
            other = {**value, "x": 1} if "x" not in value else {}
        case set():
            other = {*value, "x"} if "x" not in value else {"y"}
        case _:
            other = 1
    return ast.parse(repr(other), mode="eval").body


def _other_exception(node: ast.expr) -> ast.expr:
    name = _RAISED_INSTEAD if ast.unparse(node) != _RAISED_INSTEAD else "BufferError"
    return ast.Name(name, ast.Load())
