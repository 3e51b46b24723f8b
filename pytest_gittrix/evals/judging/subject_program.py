"""The program in which code under test runs: it does what the tests ask for, and answers with plain values or with numbers of objects.

It runs by itself, with nothing of the package: ``verifier_program`` starts it. Nothing that it answers is executed there.
"""

from __future__ import annotations

import builtins
import contextlib
import datetime
import decimal
import fractions
import importlib
import io
import json
import operator
import os
import pathlib
import sys
import types
from typing import Any

_PLAIN = (str, int, bool, type(None))
_AS_TEXT = {
    datetime.datetime: "datetime",
    datetime.date: "date",
    datetime.time: "time",
    decimal.Decimal: "decimal",
    fractions.Fraction: "fraction",
    pathlib.PosixPath: "path",
}
_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_MADE_IN_PYTHON = 1 << 9
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_COMPARED = "eq ne lt le gt ge len bool format int float complex index neg pos abs invert round trunc floor ceil"
_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_DECIDING = frozenset(
    f"__{name}__"
    for name in [
        *_COMPARED.split(),
        *(f"{how}{name}" for name in _ARITHMETIC.split() for how in ("", "r", "i")),
    ]
)
"""The methods by which a type decides what a test finds when it compares, counts, adds up or prints."""
_objects: list[Any] = []


def decides(kind: type) -> bool:
    """Whether a type of the code under test, and none of the library, defines such a method."""
    return any(not _DECIDING.isdisjoint(vars(one)) for one in kind.__mro__ if not _of_library(one))


def _of_library(kind: type) -> bool:
    if kind.__module__.partition(".")[0] not in sys.stdlib_module_names - {"__main__"}:
        return False
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind or not kind.__flags__ & _MADE_IN_PYTHON


def encode(value: Any, depth: int = 0) -> Any:
    """A value as JSON with marks of types. Only exact types are values; anything else is an object that stays here, with a number."""
    kind = type(value)
    if kind in _PLAIN:
        return value if kind is not int or abs(value) < 1 << 53 else ["int", str(value)]
    if kind is float:
        return ["float", value.hex()]
    if kind is bytes or kind is bytearray:
        return [kind.__name__, value.hex()]
    if kind is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if kind is datetime.timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    if kind in _AS_TEXT and type(getattr(value, "tzinfo", None)) in (type(None), datetime.timezone):
        return [_AS_TEXT[kind], value.isoformat() if hasattr(value, "isoformat") else str(value)]
    if depth < 50 and kind in _CONTAINERS:
        return [_CONTAINERS[kind], [encode(item, depth + 1) for item in value]]
    if depth < 50 and kind is dict:
        return ["dict", [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in value.items()]]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    _objects.append(value)
    return ["function" if kind in _FUNCTIONS else "decider" if decides(kind) else "object", len(_objects) - 1]


def decode(value: Any) -> Any:
    """The value of what ``encode`` made."""
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind in ("object", "function"):
        return _objects[rest[0]]
    if kind == "module":
        return importlib.import_module(rest[0])
    if kind == "dict":
        return {decode(key): decode(item) for key, item in rest[0]}
    if kind in ("list", "tuple", "set", "frozenset"):
        return getattr(builtins, kind)(decode(item) for item in rest[0])
    return decode_scalar(kind, rest)


def decode_scalar(kind: str, rest: list[Any]) -> Any:
    """The value of a scalar with a mark of its type. Raises ValueError for a mark that is not known."""
    if kind == "int":
        return int(rest[0])
    if kind == "float":
        return float.fromhex(rest[0])
    if kind in ("bytes", "bytearray"):
        return getattr(builtins, kind).fromhex(rest[0])
    if kind == "complex":
        return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
    if kind == "timedelta":
        return datetime.timedelta(*rest)
    if kind in ("datetime", "date", "time"):
        return getattr(datetime, kind).fromisoformat(rest[0])
    if kind == "decimal":
        return decimal.Decimal(rest[0])
    if kind == "fraction":
        return fractions.Fraction(rest[0])
    if kind == "path":
        return pathlib.PosixPath(rest[0])
    raise ValueError(kind)


def _without_value(_value: object) -> None:
    """Answer nothing: an import only makes the module ready."""


_OPERATIONS: dict[str, Any] = {
    "getattr": getattr,
    "getitem": operator.getitem,
    "len": len,
    "iter": iter,
    "next": next,
    "str": str,
    "repr": repr,
    "int": int,
    "float": float,
    "import": lambda name: _without_value(importlib.import_module(name)),
    "call": lambda function, args, named: function(*args, **named),
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked for; say what came of it, what was printed, and how arguments were changed."""
    out, err = io.StringIO(), io.StringIO()
    os.environ.clear()
    os.environ.update(request["environment"])
    with contextlib.suppress(OSError):
        os.chdir(request["directory"])
    given = [decode(item) for item in request["given"]]
    found: dict[str, Any] = {"nonce": request["nonce"]}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            found["value"] = encode(_OPERATIONS[request["do"]](*given))
        except BaseException as problem:  # noqa: BLE001  (whatever code under test raises is an answer)
            kind = type(problem)
            found["raised"] = [kind.__module__, kind.__name__, encode(list(problem.args)), f"{kind.__name__}: {problem}"]
    if request["do"] == "call":
        found["changed"] = [encode(item) if type(item) in (list, dict, set, bytearray) else None for item in given[1]]
    return {**found, "out": out.getvalue(), "err": err.getvalue()}


def main() -> None:
    """Answer requests until there are no more."""
    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    sys.path[:0] = sys.argv[3:]
    with os.fdopen(requests, "rb") as reader, os.fdopen(answers, "wb") as writer:
        for line in reader:
            writer.write(json.dumps(answer(json.loads(line))).encode("utf-8", "surrogatepass") + b"\n")
            writer.flush()


if __name__ == "__main__":
    main()
