"""Canaries: a test file with a changed expectation, which the right result must fail.

A result that passes a test whatever the test expects has not been tested by it. Both texts are printed alike, so that a result which reads
the test file does not know which of them it is given.

An expectation that one value meets (equality) gets another value, so that an object that equals all is found out. An expectation that many
values meet (a truth, an order, ``in``) becomes its opposite; that is done only in a test without an expectation of the first kind.

Where an exception of Python's is expected, another usual one is. One exception may be of several classes by right: where it meets the
other, the rest of them are expected by turns; see ``canary_rounds``.
"""

from __future__ import annotations

import ast
import builtins
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pytest_gittrix.evals.judging.other_value import EXACT, called, far_from, kind_of, other_value, written

_RAISED_INSTEAD: Final = "StopAsyncIteration"
_USUAL: Final = ("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError", "ZeroDivisionError")
"""Exceptions that tests ask for; one class may be all of them."""
TOO_MANY: Final = 3
"""How many kinds of exception, besides the expected one, are no right result's: its exception may be of two or three kinds."""
_RAISES: Final = ("pytest.raises", "raises", "self.assertRaises", "self.assertRaisesRegex")
_SWALLOWS: Final = (*_RAISES, "contextlib.suppress", "suppress")
_EQUAL: Final = frozenset(f"self.assert{kind}Equal" for kind in ("", "List", "Tuple", "Dict", "Set", "Sequence", "MultiLine", "Count"))
_PAIRS: Final = (
    ("True", "False"),
    ("In", "NotIn"),
    ("Is", "IsNot"),
    ("IsNone", "IsNotNone"),
    ("IsInstance", "NotIsInstance"),
    ("Less", "GreaterEqual"),
    ("Greater", "LessEqual"),
    ("Regex", "NotRegex"),
)
_OPPOSITES: Final = {
    "assertNotEqual": "assertEqual",
    **{f"assert{one}": f"assert{other}" for one, other in _PAIRS},
    **{f"assert{other}": f"assert{one}" for one, other in _PAIRS},
}
_CLOSE: Final = frozenset({"pytest.approx", "approx", "math.isclose", "isclose", "self.assertAlmostEqual"})
_RELATIVE: Final = frozenset({"rel", "rel_tol"})
_ABSOLUTE: Final = frozenset({"abs", "abs_tol", "delta"})
_WIDEST: Final = 0.1
"""The relative tolerance up to which another number is surely out of reach."""
_LIBRARY: Final = {"decimal": ("Decimal",), "fractions": ("Fraction",), "pathlib": ("Path",), "datetime": ("date", "datetime", "timedelta")}
_MADE_OF_FIRST: Final = {"bytes", *(name for module, names in _LIBRARY.items() for one in names for name in (one, f"{module}.{one}"))}
"""Calls that have another value if their first argument has."""
_LEAVES: Final = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_Test = ast.FunctionDef | ast.AsyncFunctionDef
_OWN_BODY: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def printed(source: str) -> str:
    """A test file as it is printed when nothing in it is changed; as it is, if it cannot be parsed."""
    tree = _parsed(source)
    return source if tree is None else ast.unparse(tree)


def changeable(source: str) -> Mapping[str, str]:
    """The tests that have an expectation which can be changed.

    Args:
        source: the test file.

    Returns:
        The name of each test, such as ``TestIt::test_it``, and the first name of the function that it runs. The name is another one where
        a class inherits the test from a class of the file.
    """
    tree = _parsed(source)
    functions: dict[_Test, str] = {}
    tests = {} if tree is None else _tests(tree)
    for name, test in tests.items():
        functions.setdefault(test, name)
    can_change = {test for test in functions if _changes(test)}
    return {name: functions[test] for name, test in tests.items() if test in can_change}


def changed(source: str, names: Collection[str], random_seed: int, turn: int = 0, order: int = 0) -> str:
    """The test file with one expectation of each named test changed.

    Args:
        source: the test file.
        names: the names of tests; see ``changeable``.
        random_seed: decides which expectation of several is changed.
        turn: which of the exceptions that may be expected instead is, below ``turns``.
        order: decides in which order these have their turns.
    """
    tree = _parsed(source)
    if tree is None:
        return source
    for change in _drawn(tree, names, random_seed).values():
        if isinstance(change, _OtherException):
            change.expect(random.Random(order).sample(change.others, len(change.others))[turn % len(change.others)])
        else:
            change()
    return ast.unparse(ast.fix_missing_locations(tree))


def turns(source: str, names: Collection[str], random_seed: int) -> Mapping[str, int]:
    """How many exceptions ``changed`` may expect by turns, for each named test of which it changes one that may be of several kinds."""
    tree = _parsed(source)
    if tree is None:
        return {}
    found = {test: change for test, change in _drawn(tree, names, random_seed).items() if isinstance(change, _OtherException)}
    counts = {name: len(found[test].others) for name, test in _tests(tree).items() if name in names and test in found}
    return {name: count for name, count in counts.items() if count > 1}


def test_name(nodeid: str) -> str:
    """The name of a test as ``changeable`` has it, of a node id such as ``test_it[1-2]``."""
    return nodeid.partition("[")[0]


@dataclass(frozen=True)
class _OtherException:
    """Changes the exception that a call expects.

    Attributes:
        call: the call.
        others: the exceptions that it may expect instead, in their order of turns before one is drawn.
    """

    call: ast.Call
    others: Sequence[str]

    def expect(self, name: str) -> None:
        """Expect the exception of that name."""
        self.call.args[0] = ast.Name(name, ast.Load())


_Change = Callable[[], object] | _OtherException
"""Changes an expectation in the tree."""
_Put = Callable[[ast.expr], object]
_Value = tuple[ast.expr, _Put]
"""An expression, and what replaces it."""


@dataclass(frozen=True)
class _Variable:
    """A name of a test that gets its values in one place, where they are written.

    Attributes:
        values: what it may stand for, each with what replaces it.
        loads: how often it is used.
        assigned: whether its value is assigned, and not one of a row.
    """

    values: list[_Value]
    loads: int
    assigned: bool


_Variables = Mapping[str, _Variable]
_Other = Callable[[ast.expr], ast.expr | None]
"""Makes the expression that is expected instead of one."""


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _tests(tree: ast.Module) -> Mapping[str, _Test]:
    """The tests by name. A class of the same shape says which tests a class inherits from others of the file."""
    found: dict[str, _Test] = {}
    classes: dict[str, type] = {}
    for node in tree.body:
        if isinstance(node, _Test) and node.name.startswith("test"):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            own = {inner.name: inner for inner in node.body if isinstance(inner, _Test) and inner.name.startswith("test")}
            bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
            shape = classes[node.name] = type(node.name, tuple(bases), own)
            found |= {f"{node.name}::{name}": getattr(shape, name) for name in dir(shape) if name.startswith("test")}
    return found


def _drawn(tree: ast.Module, names: Collection[str], random_seed: int) -> Mapping[_Test, _Change]:
    """The change of each named test: the same for a seed, whatever the other names are."""
    found: dict[_Test, _Change] = {}
    for test in dict.fromkeys(test for name, test in _tests(tree).items() if name in names):
        if changes := _changes(test):
            found[test] = random.Random(f"{random_seed} {test.lineno}").choice(changes)
    return found


def _changes(test: _Test) -> list[_Change]:
    """The changes of a test of which each must make it fail; only statements that are surely executed count."""
    variables = _variables(test)
    statements = [*_executed(test.body, variables)]
    return [change for statement in statements for change in _other_expectations(statement, variables)] or [
        change for statement in statements for change in _opposite(statement)
    ]


def _other_expectations(statement: ast.stmt, variables: _Variables) -> Iterator[_Change]:
    """The changes that expect another value, or another exception."""
    calls: list[Any] = [getattr(statement, "value", None)]
    if isinstance(statement, ast.With):
        calls = [item.context_expr for item in statement.items]
    for call in calls:
        if called(call) in _RAISES and call.args:
            yield _OtherException(call, _other_exceptions(call.args[0], variables))
    for side, put in _sides(statement):
        yield from _other_side(side, put, variables, other_value)
    for number, put, tolerance in _near(statement):
        yield from _other_side(number, put, variables, partial(far_from, tolerance=tolerance))


def _other_side(side: ast.expr, put: _Put, variables: _Variables, other_of: _Other) -> Iterator[_Change]:
    """The changes of a side: of a name, of what a call or a sum is made of, or of the side itself."""
    if isinstance(side, ast.Name):
        yield from _other_variable(side, variables, other_of)
    elif isinstance(side, ast.BinOp) and isinstance(side.op, ast.Add | ast.Sub):
        for name in ("left", "right"):
            operand = getattr(side, name)
            if kind_of(operand) in ("int", "float") and (other := other_of(operand)):
                yield partial(setattr, side, name, other)
    elif isinstance(side, ast.Call) and called(side) in _MADE_OF_FIRST and side.args:
        yield from _other_side(side.args[0], partial(side.args.__setitem__, 0), variables, other_of)
    elif isinstance(side, ast.Call) and called(side).rpartition(".")[2][:1].isupper():
        if all(isinstance(written(one), ast.AST) for one in _arguments(side)):
            return
        # An equality of the class may leave out an argument, but not all.
        yield partial(_change_arguments, side, other_of)
    elif other := other_of(side):
        yield partial(put, other)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _change_arguments(call: ast.Call, other_of: _Other) -> None:
    """Change all arguments of a call that are literals."""
    call.args = [other_of(one) or one for one in call.args]
    for keyword in call.keywords:
        keyword.value = other_of(keyword.value) or keyword.value


def _near(statement: ast.stmt) -> Iterator[tuple[ast.expr, _Put, float]]:
    """The numbers that a value must be near to, each with what replaces it and the tolerance, where that is surely known."""
    value: Any = statement.test if isinstance(statement, ast.Assert) else getattr(statement, "value", None)
    if called(value) == "self.assertTrue" and value.args:
        value = value.args[0]
    for call in [value, *(side for side, _ in _sides(statement))]:
        tolerance = _tolerance(call)
        if tolerance is not None:
            numbers = (0,) if called(call).endswith("approx") else (0, 1)
            yield from ((call.args[number], partial(call.args.__setitem__, number), tolerance) for number in numbers)
    if isinstance(value, ast.Compare) and len(value.ops) == 1 and isinstance(value.ops[0], ast.Lt | ast.LtE):
        distance: Any = value.left
        limit = written(value.comparators[0])
        inner: Any = distance.args[0] if called(distance) in ("abs", "math.fabs", "fabs") and len(distance.args) == 1 else None
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and type(limit) in (int, float) and limit < EXACT:
            yield from ((getattr(inner, name), partial(setattr, inner, name), limit) for name in ("left", "right"))


def _tolerance(call: Any) -> float | None:
    """The absolute tolerance of a call that compares nearly; none if it is no such call, or may be met by a number that is far away."""
    name = called(call)
    if name not in _CLOSE or len(call.args) != (1 if name.endswith("approx") else 2):
        return None
    tolerance = 1.0 if name.startswith("self.") else 0.0
    for keyword in call.keywords:
        value = written(keyword.value)
        if keyword.arg == "msg":
            continue
        if type(value) not in (int, float) or not 0 <= value < EXACT:
            return None
        if keyword.arg in _ABSOLUTE:
            tolerance = max(tolerance, float(value))
        elif keyword.arg != "places" and not (keyword.arg in _RELATIVE and value <= _WIDEST):
            return None
    return tolerance


def _other_variable(name: ast.Name, variables: _Variables, other_of: _Other) -> Iterator[_Change]:
    """The change of a name that is used nowhere else, where it gets its values: code under test must not be able to read the old ones."""
    variable = variables.get(name.id)
    if variable is None or variable.loads != 1:
        return
    others = [(other_of(value), put) for value, put in variable.values]
    if all(other is not None for other, _ in others):
        yield lambda: [put(other) for other, put in others if other is not None]


def _sides(statement: ast.stmt) -> list[tuple[ast.expr, _Put]]:
    """Both sides of an equality that a statement asserts, each with what replaces it; the constant that it asserts an identity with."""
    call: Any = getattr(statement, "value", None)
    if called(call) in _EQUAL and len(call.args) > 1:
        return [(call.args[number], partial(call.args.__setitem__, number)) for number in (0, 1)]
    compare: Any = statement.test if isinstance(statement, ast.Assert) else None
    if called(call) == "self.assertTrue" and call.args:
        compare = call.args[0]
    if not isinstance(compare, ast.Compare) or len(compare.ops) != 1:
        return []
    right: Any = (compare.comparators[0], partial(compare.comparators.__setitem__, 0))
    if isinstance(compare.ops[0], ast.Eq):
        return [(compare.left, partial(setattr, compare, "left")), right]
    return [right] if isinstance(compare.ops[0], ast.Is) and isinstance(compare.comparators[0], ast.Constant) else []


def _opposite(statement: ast.stmt) -> Iterator[_Change]:
    """The change that expects the opposite. An equality of computed values stays: an object that equals all would meet it all the same."""
    if any(isinstance(node, ast.Eq) for node in ast.walk(statement)):
        return
    if isinstance(statement, ast.Assert):
        yield partial(setattr, statement, "test", ast.UnaryOp(ast.Not(), statement.test))
    elif isinstance(statement, ast.Expr) and called(statement.value).startswith("self."):
        function: Any = getattr(statement.value, "func", None)
        if function.attr in _OPPOSITES:
            yield partial(setattr, function, "attr", _OPPOSITES[function.attr])


def _variables(test: _Test) -> _Variables:
    """The variables by name: parameters with rows of values, those of a loop over rows, and those that are assigned once."""
    uses = Counter((node.id, type(node.ctx)) for node in ast.walk(test) if isinstance(node, ast.Name))
    uses.update((argument.arg, ast.Store) for argument in test.args.args)
    found: dict[str, _Variable] = {}

    def note(columns: Mapping[str, list[_Value]], *, assigned: bool = False) -> None:
        for name, values in columns.items():
            if uses[name, ast.Store] == 1:
                found[name] = _Variable(values, uses[name, ast.Load], assigned)

    decorators: list[Any] = test.decorator_list
    for decorator in decorators:
        indirect = any(keyword.arg == "indirect" for keyword in getattr(decorator, "keywords", ()))
        if called(decorator).endswith("mark.parametrize") and len(decorator.args) > 1 and not indirect:
            names = written(decorator.args[0])
            if isinstance(names, str):
                names = [name.strip() for name in names.split(",") if name.strip()]
                names = names[0] if len(names) == 1 else names
            note(_columns(names, decorator.args[1]))
    for node in ast.walk(test):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            note({node.targets[0].id: [(node.value, partial(setattr, node, "value"))]}, assigned=True)
        elif isinstance(node, ast.For):
            names = [getattr(one, "id", "") for one in node.target.elts] if isinstance(node.target, ast.Tuple) else ast.unparse(node.target)
            note(_columns(names, _rows(node, found)))
    return found


def _rows(loop: ast.For, variables: _Variables) -> Any:
    """What a loop goes over: an expression, or the one that its name is bound to."""
    variable = variables.get(loop.iter.id) if isinstance(loop.iter, ast.Name) else None
    return variable.values[0][0] if variable and variable.assigned else loop.iter


def _columns(names: Any, table: Any) -> Mapping[str, list[_Value]]:
    """The values by name that rows give to one name or to a list of names; none if they are not surely known."""
    rows: list[Any] = table.elts if isinstance(table, ast.List | ast.Tuple) else []
    if not rows or not isinstance(names, str | list | tuple):
        return {}
    if isinstance(names, str):
        places = enumerate(rows)
        return {names: [_cell(row.args, 0) if called(row) == "pytest.param" and row.args else _cell(rows, at) for at, row in places]}
    cells = [row.args if called(row) == "pytest.param" else getattr(row, "elts", []) for row in rows]
    if any(len(row) != len(names) or any(isinstance(cell, ast.Starred) for cell in row) for row in cells):
        return {}
    return {str(name): [_cell(row, number) for row in cells] for number, name in enumerate(names)}


def _cell(row: list[Any], number: int) -> _Value:
    return row[number], partial(row.__setitem__, number)


def _executed(body: list[ast.stmt], variables: _Variables) -> Iterator[ast.stmt]:
    """The statements that are surely executed if the test passes, also in ``with`` and in loops over rows that are written."""
    for statement in body:
        if isinstance(statement, _LEAVES):
            return
        yield statement
        if isinstance(statement, ast.With) and not any(called(item.context_expr) in _SWALLOWS for item in statement.items):
            yield from _executed(statement.body, variables)
        if isinstance(statement, ast.For):
            rows = _rows(statement, variables)
            if isinstance(rows, ast.List | ast.Tuple) and any(not isinstance(row, ast.Starred) for row in rows.elts):
                yield from _executed(statement.body, variables)
        if _leaves(statement):
            return


def _leaves(statement: ast.AST) -> bool:
    """Whether a statement may leave the test, or the loop that it is in, before the next one; functions in it leave only themselves."""
    if isinstance(statement, (*_LEAVES, ast.Yield, ast.YieldFrom)):
        return True
    return not isinstance(statement, _OWN_BODY) and any(map(_leaves, ast.iter_child_nodes(statement)))


def _other_exceptions(node: ast.expr, variables: _Variables) -> Sequence[str]:
    """The exceptions to expect instead: usual ones of another kind where Python's own are expected, and else one that is not usual."""
    expected = [*map(_builtin, _expected(node, variables))]
    if None not in expected:
        others = [name for name in _USUAL if not any(_are_related(getattr(builtins, name), one) for one in expected)]
        if len(others) >= TOO_MANY:
            return others
    return [_RAISED_INSTEAD if ast.unparse(node) != _RAISED_INSTEAD else "BufferError"]


def _expected(node: ast.expr, variables: _Variables) -> Iterator[ast.expr]:
    """The exceptions that an expression may stand for."""
    variable = variables.get(node.id) if isinstance(node, ast.Name) else None
    parts = [value for value, _ in variable.values] if variable else node.elts if isinstance(node, ast.Tuple) else []
    if not parts:
        yield node
    for part in parts:
        yield from _expected(part, {})


def _builtin(node: ast.expr) -> Any:
    """The exception of Python's that an expression names; none if it is none."""
    found = getattr(builtins, node.id, None) if isinstance(node, ast.Name) else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _are_related(one: type, other: Any) -> bool:
    return issubclass(one, other) or issubclass(other, one)
