"""What else a test might expect: an expression whose value is surely another one than that of an expression of its source."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Final

_OTHER: Final = {
    "list": "[*{}, 1]",
    "tuple": "(*{}, 1)",
    "str": "{} + 'x'",
    "bytes": "{} + b'x'",
    "int": "{} + 1",
    "float": "{} + 1",
    "bool": "not {}",
    "dict": "{{**{}, ...: 1}}",
    "set": "{} | {{...}}",
}
"""Another value of a type than an expression has."""
_RETURNED: Final = {
    "list": "list",
    "sorted": "list",
    "tuple": "tuple",
    "str": "str",
    "repr": "str",
    "len": "int",
    "int": "int",
    "set": "set",
    "dict": "dict",
}
EXACT: Final = 1 << 50


def called(call: Any) -> str:
    """The name of what is called; empty for what is no call of a name."""
    return ast.unparse(call.func) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute) else ""


def written(node: ast.expr) -> Any:
    """The value of a literal; the node itself if it is none."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return node


def other_value(node: ast.expr) -> ast.expr | None:
    """An expression whose value is another one, of the same type where that is known; no expression if it might be the same."""
    value = written(node)
    match value:
        case str() if value[-1:] in tuple("0123456789"):
            other: Any = value[:-1] + str((int(value[-1]) + 1) % 10)  # such as a number's text, which stays one
        case str():
            other = value[:-1] + ("x" if value[-1] != "x" else "y") if value else "x"
        case bytes():
            other = value[:-1] + (b"x" if value[-1:] != b"x" else b"y") if value else b"x"
        case list():
            other = [*_other_items(value)]
        case tuple():
            other = tuple(_other_items(value))
        case dict():
            other = {**value, "x": 1} if "x" not in value else {}
        case set():
            other = {*value, "x"} if "x" not in value else {"y"}
        case bool():
            other = not value
        case int() | float():
            other = value + 1 if abs(value) < EXACT else 0
        case None:
            other = 1
        case _:
            return _other_of(node, kind_of(node))
    return ast.parse(repr(other), mode="eval").body


def _other_items(items: Sequence[Any]) -> Sequence[Any]:
    """Other items, also for a container that knows neither order nor repetition: the last is one that is not among them."""
    if not items:
        return [1]
    found = other_value(ast.parse(repr(items[-1]), mode="eval").body)
    other = items[0] if found is None else written(found)
    return [*items, items[-1]] if other in items else [*items[:-1], other]


def _other_of(node: ast.expr, kind: str) -> ast.expr | None:
    """The other value of an expression that has a value of a type."""
    if not kind:
        return None
    return ast.parse(_OTHER.get(kind, "{{'x': {}}}").format(f"({ast.unparse(node)})"), mode="eval").body


def kind_of(node: ast.expr) -> str:
    """The type of an expression's value if it is surely known."""
    value = written(node)
    if not isinstance(value, ast.AST):
        return "large" if type(value) in (int, float) and not abs(value) < EXACT else type(value).__name__
    if isinstance(node, ast.List | ast.ListComp):
        return "list"
    if isinstance(node, ast.Dict | ast.DictComp | ast.Set | ast.SetComp):
        return "dict" if isinstance(node, ast.Dict | ast.DictComp) else "set"
    if isinstance(node, ast.Tuple | ast.JoinedStr):
        return "tuple" if isinstance(node, ast.Tuple) else "str"
    return _RETURNED.get(called(node), "")


def far_from(node: ast.expr, *, tolerance: float) -> ast.expr | None:
    """An expression whose value is out of reach of all that is near to another one's; more items where a container is compared."""
    kind = kind_of(node)
    if kind in ("list", "tuple", "dict"):
        return _other_of(node, kind)
    if kind not in ("int", "float"):
        return None
    value = written(node)
    if isinstance(value, int | float):
        return ast.parse(repr(value + 4 * abs(value) + 4 * tolerance + 1), mode="eval").body
    text = f"({ast.unparse(node)})"
    return ast.parse(f"{text} + 4 * abs{text} + {4 * tolerance + 1}", mode="eval").body
