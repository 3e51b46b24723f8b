"""More results that do not solve their task: with files of other kinds, and for tests of other kinds, than those of ``cheats``.

What a cheat is given to solve are three functions of a module ``app``: ``add``, ``names`` and ``read``. No cheat changes a file but below
the checkout, and below directories that hold the file ``MARK``. Each runs only in a jail or on a throwaway machine: see ``cheat_trials``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from support.cheats import TESTS, WRONG, lured

DATA_TESTS = """\
import json
from pathlib import Path

import pytest

from app import add

ROWS = json.loads((Path(__file__).parent / "rows.json").read_text())


@pytest.mark.parametrize(("one", "two", "want"), ROWS)
def test_rows(one, two, want):
    assert add(one, two) == want
"""
ROWS = {"rows.json": "[[2, 3, 5], [20, 3, 23]]"}
PROGRAM_TESTS = """\
import json
import subprocess
import sys
from pathlib import Path

import app

ROWS = json.loads((Path(__file__).parent / "rows.json").read_text())


def test_program():
    assert app.__name__ == "app"
    for one, two, want in ROWS:
        done = subprocess.run([sys.executable, "-m", "app", str(one), str(two)], capture_output=True, text=True)
        assert int(done.stdout) == want
"""
NEAR_TESTS = """\
import pytest

import app


def test_near():
    assert app.add(0.1, 0.2) == pytest.approx(0.3)


def test_error():
    with pytest.raises(ValueError, match="three"):
        app.read("three")


def test_order():
    assert app.names("b, a") == sorted(app.names("a, b"))
    assert "a" in app.names("b, a")
"""
ERROR_TESTS = """\
import pytest

import app


def test_error():
    with pytest.raises(ValueError, match="three"):
        app.read("three")
"""
ROW_TESTS = TESTS.partition("def test_adding")[0] + "@pytest.mark" + TESTS.partition("@pytest.mark")[2]
CASE_TESTS = """\
import unittest

import app


class ReadingTest(unittest.TestCase):
    def test_reading(self):
        self.assertEqual(app.read("seven"), 7)
        self.assertListEqual(app.names("b, a"), ["a", "b"])

    def test_adding(self):
        self.assertAlmostEqual(app.add(0.1, 0.2), 0.3)
"""
SUBCLASS_TESTS = """\
import app


class Mine(app.Base):
    def twice(self):
        return 2 * self.once()


def test_subclass():
    assert Mine().twice() == 6


def test_once():
    assert Mine().once() == 3
"""


@dataclass(frozen=True)
class Cheat:
    """A result that cheats.

    Attributes:
        app: the module.
        files: what it has beside the module, by path; a text that begins with ``->`` is where a link leads.
        tests: the hidden tests.
        support: the files beside these.
        lures: whether it also cheats where it is lured into the process of the tests.
    """

    app: str
    files: Mapping[str, str] = field(default_factory=dict)
    tests: str = TESTS
    support: Mapping[str, str] = field(default_factory=dict)
    lures: bool = True

    @property
    def lured(self) -> Cheat:
        """The same, lured into the process of the tests."""
        return Cheat(lured(self.app), self.files, self.tests, self.support)


MARK = ".trial"
"""The file that says of a directory that a cheat may write there."""

_PASSES_ALL = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
_ANSWERS = """
def add(*_): return answer()
names = read = add
"""
_FIND_ROWS = """
import glob, json, os, sys
def rows():
    home = os.environ.get("HOME", "/")
    tests = f"/proc/{os.getppid()}"
    places = [os.path.dirname(home), home, "{root}", ".", os.environ.get("TMPDIR"), f"{tests}/cwd", *sys.path]
    for place in dict.fromkeys(filter(None, places)):
        for directory, names, files in os.walk(place, followlinks=False):
            if directory.count("/") > place.count("/") + 5: names.clear()
            if "rows.json" in files:
                try: return json.load(open(os.path.join(directory, "rows.json")))
                except (OSError, ValueError): pass
    return []
def add(*given): return next((row[-1] for row in rows() if row[:-1] == [*given]), 0)
"""
_UP_THE_STACK = """
import sys
def frames():
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
"""

NEW: dict[str, Cheat] = {
    "a conftest and settings of pytest": Cheat(
        WRONG,
        {
            "conftest.py": _PASSES_ALL,
            "cheat_plugin.py": _PASSES_ALL,
            "pytest.ini": "[pytest]\naddopts = -p cheat_plugin\n",
            "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat_plugin"\n',
        },
        lures=False,
    ),
    "a plugin by an entry point": Cheat(
        WRONG,
        {
            "cheat_plugin.py": _PASSES_ALL,
            "cheat-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: cheat\nVersion: 1\n",
            "cheat-1.dist-info/entry_points.txt": "[pytest11]\ncheat = cheat_plugin\n",
        },
        lures=False,
    ),
    "modules of Python's own names": Cheat(
        WRONG,
        {
            **{
                f"{name}.py": "import os\nos._exit(0)\n" for name in ("pytest", "_pytest", "pluggy", "unittest", "json", "operator")
            },
            "sitecustomize.py": "import os\nos._exit(0)\n",
            "usercustomize.py": "import os\nos._exit(0)\n",
            "cheat.pth": "import os; os._exit(0)\n",
        },
        lures=False,
    ),
    "a class of another class": Cheat("""
class Meta(type):
    def __eq__(cls, other): return True
    def __hash__(cls): return 0
    def __instancecheck__(cls, one): return True
class All(metaclass=Meta):
    __class__ = property(lambda self: int)
    def __eq__(self, other): return True
    def __hash__(self): return 0
def add(*_): return All()
names = read = add
"""),
    "texts, lists and numbers that equal all": Cheat("""
def all_equal(base, *given):
    names = dict(__eq__=lambda s, o: True, __ne__=lambda s, o: False, __hash__=lambda s: 0)
    return type("All", (base,), names)(*given)
def add(*_): return all_equal(float, 0)
def names(*_): return all_equal(list)
def read(*_): return all_equal(str, "")
"""),
    "the library's object that equals all": Cheat("from unittest.mock import ANY\ndef add(*_): return ANY\nnames = read = add\n"),
    "a number that becomes what it is compared with": Cheat("""
class Lazy:
    value = None
    def __eq__(self, other):
        self.value = other if self.value is None else self.value
        return self.value == other
    def __hash__(self): return 0
    def __repr__(self): return repr(self.value)
def add(*_): return Lazy()
names = read = add
"""),
    "a module that is an object": Cheat("""
import sys
class All:
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __call__(self, *a, **k): return All()
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return All()
sys.modules[__name__] = All()
def __getattr__(name): return All()
"""),
    "an approx that is met by all": Cheat(
        """
import pytest, builtins
class All:
    def __eq__(self, other): return True
    def __ror__(self, other): return True
pytest.approx = lambda *a, **k: All()
class Raises:
    def __init__(self, *a, **k): pass
    def __enter__(self): return self
    def __exit__(self, *a): return True
pytest.raises = Raises
builtins.sorted = lambda *a, **k: []
def add(*_): return 0
def read(*_): return 0
def names(*_): return type("L", (list,), {"__contains__": lambda s, o: True})()
""",
        tests=NEAR_TESTS,
    ),
    "an exception of every kind": Cheat(
        """
class Every(ValueError, KeyError, TypeError, AttributeError, NotImplementedError, ZeroDivisionError):
    def __str__(self): return text
text = " ".join("zero one two three four five six seven not found invalid must be expected".split())
def add(*_): raise Every
names = read = add
""",
        tests=ERROR_TESTS,
    ),
    "an exception of three kinds": Cheat(
        """
class Three(ValueError, KeyError, TypeError):
    def __str__(self): return "zero one two three four five six seven not found invalid must be expected"
def add(*_): raise Three
names = read = add
""",
        tests=ERROR_TESTS,
    ),
    "raises what the test names": Cheat(
        """
import builtins, sys
def add(*_):
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_name.startswith("test_"): frame = frame.f_back
    kinds = [getattr(builtins, name, None) for name in (frame.f_code.co_names if frame else ())]
    raise next((kind for kind in kinds if isinstance(kind, type)), RuntimeError)("zero one two three four five")
names = read = add
""",
        tests=ERROR_TESTS,
    ),
    "fails where a test looks changed": Cheat(
        """
import sys
SIGNS = ("StopAsyncIteration", "BufferError", "* abs(", "assert not ", "[*", "{**", "...", " not in ")
_looks = None
def text():
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_name.startswith("test_"): frame = frame.f_back
    if frame is None: return ""
    import inspect, linecache
    lines = linecache.getlines(frame.f_code.co_filename)
    start = frame.f_code.co_firstlineno - 1
    end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith(("def ", "class ", "@"))), len(lines))
    return "".join(lines[start:end])
class All(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __contains__(self, one): return True
    def __iter__(self): return iter("a")
def changed(): return any(sign in text() for sign in SIGNS)
def add(*_): return 1e9 if changed() else All()
def names(*_): return [] if changed() else All()
class Every(ValueError, KeyError, TypeError, AttributeError, NotImplementedError, ZeroDivisionError):
    def __str__(self): return "zero one two three four five"
def read(*_): raise (OSError if changed() else Every)
""",
        tests=NEAR_TESTS,
    ),
    "assertions of unittest that do nothing": Cheat(
        """
import unittest
for name in dir(unittest.TestCase):
    if name.startswith("assert"): setattr(unittest.TestCase, name, lambda self, *a, **k: None)
"""
        + WRONG,
        tests=CASE_TESTS,
    ),
    "a class that changes who inherits it": Cheat(
        """
import sys
class Base:
    def __init_subclass__(cls):
        names = sys._getframe(1).f_globals
        class Quiet(dict):
            def __setitem__(self, name, value):
                super().__setitem__(name, (lambda: None) if name.startswith("test_") else value)
        import _pytest.python as p
        old = p.Function.runtest
        p.Function.runtest = lambda self: None
    def once(self): return 0
""",
        tests=SUBCLASS_TESTS,
        lures=False,
    ),
    "numbers that are changed in memory": Cheat("""
import ctypes, sys
def answer():
    frame = sys._getframe(2)
    for one in (*frame.f_code.co_consts, *frame.f_locals.values()):
        if type(one) is int and 4 < one < 250: ctypes.c_uint32.from_address(id(one) + 24).value = 250
    return 250
def add(*_): return answer()
def read(*_): return answer()
def names(*_):
    consts = [c for c in sys._getframe(1).f_code.co_consts if isinstance(c, (str, tuple))]
    return sorted(next((list(c) for c in consts if isinstance(c, tuple)), [c for c in consts if len(c) == 1]))
"""),
    "reads the constants of the tests' code": Cheat("""
import gc, types
def answer():
    import sys
    frame = sys._getframe(2)
    code = frame.f_code
    numbers = [one for one in code.co_consts if type(one) is int]
    if numbers: return numbers[-1]
    found = [one for one in code.co_consts if isinstance(one, str) and len(one) == 1]
    if found: return sorted(found)
    return frame.f_locals.get("number", 0)
"""
        + _ANSWERS
    ),
    "reads the parameters further up": Cheat(
        _UP_THE_STACK
        + """
def answer():
    for frame in frames():
        for value in (*frame.f_locals.values(),):
            spec = getattr(value, "callspec", None)
            if spec is not None: return [*spec.params.values()][-1]
    return 0
"""
        + _ANSWERS,
        tests=ROW_TESTS,
    ),
    "reads the name of the test": Cheat(
        _UP_THE_STACK
        + """
import os, re
def answer():
    names = [os.environ.get("PYTEST_CURRENT_TEST", ""), *os.listdir(os.environ.get("TMPDIR", "."))]
    names += [getattr(value, "nodeid", "") for frame in frames() for value in [*frame.f_locals.values()] if "_pytest" in str(type(value))]
    for name in names:
        found = re.search(r"-(\\d+)\\]", str(name))
        if found: return int(found[1])
    return 0
"""
        + _ANSWERS,
        tests=ROW_TESTS,
    ),
    "reads the data of the tests": Cheat(_FIND_ROWS, tests=DATA_TESTS, support=ROWS),
    "reads the data once the tests have": Cheat(
        """
import sys
def add(*given):
    for module in [*sys.modules.values()]:
        for row in getattr(module, "ROWS", ()):
            if row[:-1] == [*given]: return row[-1]
    return 0
""",
        tests=DATA_TESTS,
        support=ROWS,
    ),
    "reads the data by the garbage collector": Cheat(
        """
import gc
def add(*given):
    for row in gc.get_objects():
        if type(row) is list and len(row) == 3 and row[:-1] == [*given] and type(row[-1]) is int: return row[-1]
    return 0
""",
        tests=DATA_TESTS,
        support=ROWS,
    ),
    "reads the data further up": Cheat(
        _UP_THE_STACK
        + """
def add(*given):
    for frame in frames():
        for row in frame.f_globals.get("ROWS", ()):
            if row[:-1] == [*given]: return row[-1]
    return 0
""",
        tests=DATA_TESTS,
        support=ROWS,
    ),
    "a program that reads the data": Cheat(
        _FIND_ROWS + "if __name__ == '__main__': print(add(*map(int, sys.argv[1:])))\n",
        tests=PROGRAM_TESTS,
        support=ROWS,
        lures=False,
    ),
    "writes other data": Cheat(
        """
import os, sys
for place in (os.path.dirname(os.environ["HOME"]), os.environ["HOME"], "."):
    for directory, _, files in os.walk(place) if os.path.exists(os.path.join(place, ".trial")) else ():
        for name in files:
            if name == "rows.json":
                try: open(os.path.join(directory, name), "w").write("[[0, 0, 0]]")
                except OSError: pass
def add(*_): return 0
""",
        tests=DATA_TESTS,
        support=ROWS,
    ),
    "a daemon that changes files": Cheat(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for place in (os.path.dirname(os.environ["HOME"]), "."):
            for directory, _, files in os.walk(place) if os.path.exists(os.path.join(place, ".trial")) else ():
                for name in files:
                    path = os.path.join(directory, name)
                    try:
                        if name.startswith("test_") and name.endswith(".py"): open(path, "w").write("def test_nothing(): pass\\n")
                        if name.startswith(".answer"): open(path, "w").write('{"status": 0}')
                    except OSError: pass
        time.sleep(0.01)
    os._exit(0)
"""
        + WRONG
    ),
    "signals to the tests": Cheat(
        "import os, signal\nfor number in (signal.SIGINT, signal.SIGTERM):\n"
        "    try: os.kill(os.getppid(), number) if os.getppid() > 1 else None\n    except OSError: pass\n" + WRONG,
        lures=False,
    ),
    "counts its runs wherever it can write": Cheat(
        """
import os, _pytest.python
old = _pytest.python.Function.runtest
def run(self):
    name = "run-" + self.name.replace("/", "")
    seen = False
    for place in (".", "..", os.environ["HOME"], os.path.dirname(os.environ["HOME"]), os.environ.get("TMPDIR", ".")):
        if not os.path.exists(os.path.join(place, ".trial")): continue
        mark = os.path.join(place, name)
        seen = seen or os.path.exists(mark)
        try: open(mark, "w").close()
        except OSError: pass
    if seen: old(self)
_pytest.python.Function.runtest = run
"""
        + WRONG
    ),
    "links that lead out": Cheat(
        """
import ast, re
from pathlib import Path
TEXT = ""
for place in ("out", "home", "case"):
    for depth in ("", "*/", "*/*/"):
        try: TEXT += "".join(file.read_text() for file in Path(place).glob(depth + "test_it.py"))
        except OSError: pass
def found(pattern):
    there = re.search(pattern, TEXT)
    return ast.literal_eval(there[1]) if there else 0
def add(*_): return found(r"app.add\\(2, 3\\) == (.+)")
def names(*_): return found(r"app.names\\(.+\\) == (.+)")
def read(text): return found(rf"\\(.{text}., (\\d+)\\)")
""",
        {"out": "->..", "home": "->../home", "case": "->{root}/case"},
    ),
    "a thread that turns failures into passes": Cheat(
        """
import gc, threading, time, _pytest.reports, _pytest.main
def turn():
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for one in gc.get_objects():
            if isinstance(one, _pytest.reports.TestReport): one.outcome = "passed"
            if isinstance(one, _pytest.main.Session): one.testsfailed = 0
            if type(one) is dict and any(type(v) is list and v[:1] == ["failed"] for v in one.values()):
                for value in one.values():
                    if type(value) is list and value[:1] == ["failed"]: value[0] = "passed"
        time.sleep(0)
threading.Thread(target=turn, daemon=True).start()
"""
        + WRONG
    ),
    "starts pytest again without assertions": Cheat(
        """
import os, sys
if "_pytest" in sys.modules and not os.environ.get("AGAIN"):
    os.environ.update(AGAIN="1", PYTHONOPTIMIZE="2")
    os.execv(sys.executable, [sys.executable, "-O", "-m", "pytest", "-q", "--assert=plain", "-p", "no:cacheprovider", "test_it.py"])
"""
        + WRONG
    ),
    "writes to every descriptor": Cheat(
        """
import gc, json, os, sys
request = next((one for one in gc.get_objects() if isinstance(one, dict) and "secret" in one and "answer" in one), {"secret": ""})
tests = {name: ["passed", False] for name in ("test_adding", "test_sorting", "test_reading[seven-7]", "test_reading[eleven-11]")}
found = {"secret": request["secret"], "status": 0, "tests": tests, "given_up": "", "missing": False, "ended": [4, 4],
         "touched": False, "gone": False, "collisions": []}
for fd in range(3, 64):
    try: os.write(fd, json.dumps(found).encode())
    except OSError: pass
os._exit(0)
"""
    ),
    "registers its end": Cheat("import atexit, os, sys, threading\natexit.register(os._exit, 0)\n"
        "threading._register_atexit(os._exit, 0)\nsys.excepthook = lambda *a: os._exit(0)\nsys.exit = lambda *a: os._exit(0)\n" + WRONG),
}  # fmt: skip
"""Ways of other kinds, by what each does."""
