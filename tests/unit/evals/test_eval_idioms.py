"""One file of everyday tests that need more than plain values: correct code passes each, and wrong code of the same shape none."""

from __future__ import annotations

import ast

import pytest
from support.hidden_tests import verdict_on

CODE = """\
import contextlib, dataclasses, enum, functools, logging, logging.config, threading
RIGHT = True
ONE = 1 if RIGHT else 2

class Shape:
    sides = ONE
    def area(self): return self.side() * ONE
    def side(self): raise NotImplementedError

class Colour(enum.Enum):
    RED = ONE

class Flag(enum.IntFlag):
    A = ONE
    B = 4

@dataclasses.dataclass(frozen=True, order=True)
class Point:
    x: int
    y: int = ONE

class Problem(Exception):
    def __init__(self, code): super().__init__("it failed"); self.code = code

class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.extend([item] * ONE)
    def __len__(self): return len(self.items)
    def __contains__(self, item): return item in self.items
    def __enter__(self): return self
    def __exit__(self, *_): self.items.clear() if RIGHT else None
    def __iter__(self): return iter(self.items)

def fetch(): return 0
def fetched(): return fetch() + ONE
def each(items, do): return [do(item) for item in items][ONE - 1:]
def count(most):
    while most > 0:
        yield most
        most -= ONE
def echo():
    got = yield
    while True: got = yield got * ONE
def fail(): raise Problem(ONE)
@contextlib.contextmanager
def opened(log):
    log.append("in")
    try: yield log
    finally: log.append("out" if RIGHT else "on")
def configure():
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": {"app.x": {"level": 10 * ONE}}})
def gather(numbers):
    found, lock = [], threading.Lock()
    def work(number):
        with lock: found.append(number * ONE)
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for one in threads: one.start()
    for one in threads: one.join()
    return sorted(found)
def traced(function):
    @functools.wraps(function)
    def inner(*args): return function(*args) * ONE
    return inner
class Later:
    async def __aenter__(self): return ONE
    async def __aexit__(self, *_): pass
async def ticks(number):
    for tick in range(number): yield tick * ONE
class Meta(type):
    def __new__(kind, name, bases, space): return super().__new__(kind, name, bases, {**space, "made": ONE})
class Plugin(metaclass=Meta):
    known = []
    def __init_subclass__(kind): Plugin.known.append((kind.__name__, ONE))
class Setting:
    def __get__(self, holder, kind): return ONE
class Node:
    def __init__(self): self.children, self.parent = [], None
    def add(self, child): self.children.append(child); child.parent = self if RIGHT else child; return child
"""
TESTS = """\
import asyncio, dataclasses, enum, inspect, itertools, logging, pickle, threading, unittest
from unittest import mock
import pytest
import app
from app import Point, Stack

@pytest.fixture(scope="module")
def stack():
    stack = Stack()
    stack.push(1)
    yield stack
    stack.items.clear()

class TestClass:
    @pytest.fixture(scope="class")
    def point(self): return Point(3)
    def test_class_fixture(self, point): assert point.y == 1
    def test_module_fixture(self, stack): assert len(stack) == 1

class TestSetup:
    def setup_method(self): self.stack = Stack(); self.stack.push("a")
    def test_setup_method(self): assert list(self.stack) == ["a"]

class OldTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.point = Point(1)
    def setUp(self): self.addCleanup(setattr, self, "done", True)
    def test_unittest(self): self.assertEqual(self.point, Point(1, 1))
    def test_patched(self):
        with mock.patch("app.fetch", return_value=2): self.assertEqual(app.fetched(), 3)
    def test_raises_regex(self):
        with self.assertRaisesRegex(app.Problem, "failed") as caught: app.fail()
        self.assertEqual(caught.exception.code, 1)

def test_subclass():
    class Square(app.Shape):
        def side(self): return 3
    assert Square().area() == 3
def test_isinstance_of_subclass():
    class Square(app.Shape): pass
    assert isinstance(Square(), app.Shape) and Square.sides == 1
def test_callback():
    seen = []
    assert app.each([1, 2], lambda item: seen.append(item) or item) == [1, 2]
    assert seen == [1, 2]
def test_patched_own_function(monkeypatch):
    monkeypatch.setattr(app, "fetch", lambda: 6)
    assert app.fetched() == 7
@mock.patch.object(app, "fetch")
def test_mock_object(fetch):
    fetch.return_value = 1
    assert app.fetched() == 2
    fetch.assert_called_once_with()
def test_generator(): assert list(app.count(3)) == [3, 2, 1]
def test_lazy_generator(): assert list(itertools.islice(app.count(9), 2)) == [9, 8]
def test_send():
    talk = app.echo(); next(talk)
    assert talk.send(3) == 3
def test_context_manager():
    log = []
    with app.opened(log) as same: assert same is log
    assert log == ["in", "out"]
def test_context_class():
    with Stack() as stack: stack.push(1)
    assert len(stack) == 0
def test_contains():
    stack = Stack(); stack.push(2)
    assert 2 in stack and len(stack) == 1
def test_dataclass(): assert Point(1) == Point(1, 1)
def test_dataclass_order(): assert sorted([Point(2), Point(1)]) == [Point(1, 1), Point(2, 1)]
def test_asdict(): assert dataclasses.asdict(Point(3)) == {"x": 3, "y": 1}
def test_replace(): assert dataclasses.replace(Point(3), x=4) == Point(4, 1)
def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError): Point(1).x = 2
    assert Point(1).y == 1
def test_enum(): assert app.Colour(1) is app.Colour.RED
def test_enum_members(): assert [one.value for one in app.Colour] == [1]
def test_flag(): assert app.Flag.A | app.Flag.B == 5
def test_own_exception():
    with pytest.raises(app.Problem, match="failed") as caught: app.fail()
    assert caught.value.code == 1
def test_pickled_object(): assert pickle.loads(pickle.dumps(Point(1))) == Point(1, 1)
def test_signature(): assert inspect.signature(Point).parameters["y"].default == 1
def test_logging_configuration():
    app.configure()
    assert logging.getLogger("app.x").level == 10
def test_own_threads(): assert app.gather([3, 1]) == [1, 3]
def test_threads_of_the_test():
    stack = Stack()
    threads = [threading.Thread(target=stack.push, args=(n,)) for n in range(3)]
    for one in threads: one.start()
    for one in threads: one.join()
    assert sorted(stack) == [0, 1, 2]
def test_decorator():
    @app.traced
    def three(): return 3
    assert (three(), three.__name__) == (3, "three")
async def test_async_with():
    async with app.Later() as one: assert one == 1
async def test_async_for(): assert [tick async for tick in app.ticks(3)] == [0, 1, 2]
def test_asyncio_run():
    async def both(): return await asyncio.gather(app.Later().__aenter__(), app.Later().__aenter__())
    assert asyncio.run(both()) == [1, 1]
def test_metaclass():
    class Mine(app.Plugin): pass
    assert Mine.made == 1
def test_registry():
    class Theirs(app.Plugin): pass
    assert ("Theirs", 1) in app.Plugin.known
def test_descriptor():
    class Holder: setting = app.Setting()
    assert Holder().setting == 1
def test_identity_of_objects():
    root = app.Node(); child = root.add(app.Node())
    assert child.parent is root
def test_type_is(): assert type(Point(1)) is Point and Point(1).y == 1
@pytest.mark.parametrize("shape, sides", [(app.Shape, 1), (app.Shape(), 1)])
def test_parameters_of_the_code(shape, sides): assert shape.sides == sides
@pytest.fixture(params=[1, 2])
def size(request): return request.param
def test_fixture_parameters(size): assert len(list(app.count(size))) == size and app.ONE == 1
def test_tmp_path(tmp_path): (tmp_path / "a").write_text(str(app.ONE)); assert (tmp_path / "a").read_text() == "1"
def test_usefixtures(request, stack): assert request.getfixturevalue("stack").items == [1]
def test_sorted_by_callback(): assert sorted([Point(2), Point(1)], key=lambda one: one.x * app.ONE)[0] == Point(1, 1)
"""
NAMES = {node.name for node in ast.walk(ast.parse(TESTS)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, str], dict[str, str], str]]:
    """Of right and of wrong code: what judged each test that passed, and that failed; and why it did not pass."""
    found = {}
    for name, code in {"right": CODE, "wrong": CODE.replace("RIGHT = True", "RIGHT = False")}.items():
        verdict, _ = verdict_on(code, tmp_path_factory.mktemp(name), "off", TESTS)
        found[name] = dict(verdict.judges), dict(verdict.failed), verdict.wrong
    return found


def test_every_idiom_passes_with_correct_code(tables: dict[str, tuple[dict[str, str], dict[str, str], str]]) -> None:
    passed, failed, wrong = tables["right"]

    assert (failed, wrong) == ({}, "")
    assert {name.rpartition("::")[2].partition("[")[0] for name in passed} == {name for name in NAMES if name.startswith("test_")}


def test_every_idiom_fails_with_wrong_code(tables: dict[str, tuple[dict[str, str], dict[str, str], str]]) -> None:
    passed, failed, wrong = tables["wrong"]

    assert passed == {}
    assert {*failed} == {*tables["right"][0]}
    assert "unjudgeable" not in failed.values()
    assert wrong
