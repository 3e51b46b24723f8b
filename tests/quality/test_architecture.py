"""The house keeps its shape: imports point downwards, rooms keep their nevers, modules stay small and documented.

The rules are section 3 of the design, told to readers in ``docs/explanation/architecture.md``. They are checked on the
syntax trees, so an import inside a function counts as much as one at the top; what an import *costs* is checked in fresh processes.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGE = "pytest_gittrix"
SOURCE = Path(__file__).resolve().parents[2] / PACKAGE
MAX_LINES = 450

# room -> (floor, what is in it: names of modules and folders directly under the package)
ROOMS: Mapping[str, tuple[int, frozenset[str]]] = {
    "ground": (1, frozenset({"errors", "points", "timetext"})),
    "time": (2, frozenset({"clock", "clock_carriers", "clock_files", "freeze", "timers"})),
    "git": (2, frozenset({"git"})),
    "record": (3, frozenset({"record"})),
    "adapters": (3, frozenset({"adapters"})),
    "views": (4, frozenset({"views"})),
    "session": (5, frozenset({"session"})),
    "harness": (6, frozenset({"harness"})),
    "conformance": (7, frozenset({"conformance"})),
    "evals": (7, frozenset({"evals"})),
    "fixtures": (7, frozenset({"fixtures"})),
    "strategies": (7, frozenset({"strategies"})),
    "front": (8, frozenset({"plugin", "hookspecs", "config", "cli", "server", "integrations", "mcp", "report", "evals_pytest"})),
}
ROOM_OF = {name: room for room, (_, names) in ROOMS.items() for name in names}

# What floors alone would let through.
NEVER_ROOMS: Mapping[str, frozenset[str]] = {
    "record": frozenset({"git"}),
    "views": frozenset({"time", "git"}),
}
PYTEST = frozenset({"pytest", "_pytest"})
GIT_LIBRARIES = frozenset({"git", "gitdb", "pygit2", "dulwich"})
NEVER_LIBRARIES: Mapping[str, frozenset[str]] = {
    "ground": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "time": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "git": PYTEST | {"hypothesis"},
    "record": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "adapters": PYTEST | {"hypothesis"},
    "session": PYTEST | {"hypothesis"},
    "views": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "harness": PYTEST,
}

# Too dear to load in every pytest run and every shell completion.
HEAVY = ("git", "pydantic", "hypothesis", "pygit2", "freezegun", "filelock", "rich")


@dataclass(frozen=True)
class Import:
    """One import: the module it reaches, and whether it runs when the importing module is loaded."""

    target: str
    line: int
    at_load: bool
    for_typing: bool


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    path: Path
    is_package: bool
    tree: ast.Module
    lines: int

    @property
    def room(self) -> str | None:
        """The room the module is in, None for the package's own ``__init__`` and for what has no room."""
        _, _, rest = self.name.partition(".")
        return ROOM_OF.get(rest.partition(".")[0])


def parse(source: Path) -> dict[str, Module]:
    """Every module under ``source``, by its dotted name."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = (source.name, *path.relative_to(source).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, is_package, ast.parse(text, str(path)), len(text.splitlines()))
    return modules


def imports_of(module: Module, known: Mapping[str, Module]) -> list[Import]:
    """Every import of ``module``, wherever it stands; ``from package import module`` reaches the module."""
    return list(_walk(module.tree.body, module, known, at_load=True, for_typing=False))


def _walk(nodes: Sequence[ast.AST], module: Module, known: Mapping[str, Module], *, at_load: bool, for_typing: bool) -> Iterator[Import]:
    for node in nodes:
        for target in _targets(node, module, known):
            yield Import(target, getattr(node, "lineno", 1), at_load and not for_typing, for_typing)
        if isinstance(node, ast.If) and _names(node.test, "TYPE_CHECKING"):
            yield from _walk(node.body, module, known, at_load=at_load, for_typing=True)
            yield from _walk(node.orelse, module, known, at_load=at_load, for_typing=for_typing)
            continue
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(list(ast.iter_child_nodes(node)), module, known, at_load=at_load and not inside, for_typing=for_typing)


def _targets(node: ast.AST, module: Module, known: Mapping[str, Module]) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = _absolute(node, module)
            return [name if (name := f"{base}.{alias.name}") in known or base == PACKAGE else base for alias in node.names]
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _names(function, "import_module", "__import__"):
            return [name]
    return []


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _names(node: ast.expr, *names: str) -> bool:
    return (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in names)


def import_breaches(source: Path) -> list[str]:
    """What is wrong with the imports under ``source``, one line each, empty when the house stands."""
    modules = parse(source)
    breaches = [f"{_where(m)}: has no room; give it one in ROOMS" for m in modules.values() if m.room is None and m.name != PACKAGE]
    for module in modules.values():
        for found in imports_of(module, modules):
            reason = _wrong(module, found)
            if reason:
                breaches.append(f"{_where(module, found.line)}: imports {found.target}: {reason}")
    return breaches + _circles(modules)


def _wrong(module: Module, found: Import) -> str | None:
    library, _, rest = found.target.partition(".")
    if module.name == f"{PACKAGE}.plugin" and found.at_load and library not in sys.stdlib_module_names | {"pytest"}:
        return "plugin.py loads only the standard library and pytest"
    if module.name == PACKAGE:
        return None if found.for_typing or library in sys.stdlib_module_names else "the package itself loads its rooms lazily"
    if module.room is None:
        return None
    if library != PACKAGE:
        return f"{module.room} never knows {library}" if library in NEVER_LIBRARIES.get(module.room, ()) else None
    if rest == "__version__":
        return None
    room = ROOM_OF.get(rest.partition(".")[0])
    if room is None:
        return "inside the package, import from the room itself"
    if room == module.room:
        return None
    if room in NEVER_ROOMS.get(module.room, ()):
        return f"{module.room} never knows {room}"
    floor, below = ROOMS[module.room][0], ROOMS[room][0]
    return None if below < floor else f"{module.room} (floor {floor}) may not reach {room} (floor {below})"


def _circles(modules: Mapping[str, Module]) -> list[str]:
    graph = {
        name: {found.target for found in imports_of(module, modules) if found.at_load and found.target in modules} - {name}
        for name, module in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["circle: " + " -> ".join(reversed(error.args[1]))]
    return []


def size_breaches(source: Path) -> list[str]:
    """Modules that have outgrown one idea."""
    return [f"{_where(m)}: {m.lines} lines, more than {MAX_LINES}" for m in parse(source).values() if m.lines > MAX_LINES]


def docstring_breaches(source: Path) -> list[str]:
    """Modules, public classes, functions and methods without a docstring. A method of a class with bases may inherit its own."""
    breaches = []
    for module in parse(source).values():
        if not ast.get_docstring(module.tree):
            breaches.append(f"{_where(module)}: has no module docstring")
        breaches += [f"{_where(module, node.lineno)}: {name} has no docstring" for name, node in _undocumented(module.tree)]
    return breaches


def _undocumented(owner: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.stmt]]:
    for node in owner.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if any(_names(decorator, "overload", "setter", "deleter") for decorator in node.decorator_list):
            continue
        if not ast.get_docstring(node) and not _may_inherit(owner, node):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{name}", inner) for name, inner in _undocumented(node))


def _may_inherit(owner: ast.Module | ast.ClassDef, node: ast.stmt) -> bool:
    if not isinstance(owner, ast.ClassDef) or isinstance(node, ast.ClassDef):
        return False
    return any(not _names(base, "Protocol", "ABC", "Generic", "NamedTuple") for base in owner.bases if not isinstance(base, ast.Subscript))


def _where(module: Module, line: int = 1) -> str:
    return f"{module.name.replace('.', '/')}{'/__init__' if module.is_package else ''}.py:{line}"


def test_imports_point_downwards_and_no_room_knows_what_it_must_not() -> None:
    breaches = import_breaches(SOURCE)

    assert not breaches, "\n".join(breaches)


def test_modules_are_short_enough_to_hold_one_idea() -> None:
    breaches = size_breaches(SOURCE)

    assert not breaches, "\n".join(breaches)


def test_every_module_and_public_name_is_documented() -> None:
    breaches = docstring_breaches(SOURCE)

    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize("module", [PACKAGE, f"{PACKAGE}.plugin", f"{PACKAGE}.cli.main"])
def test_start_up_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    program = f"import sys; import {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, f"{module} cannot be imported:\n{done.stderr}"
    assert done.stdout.split() == [], f"importing {module} also loads {done.stdout.strip()}"


def house(root: Path, **files: str) -> Path:
    """A small package on disk: ``git__tree="..."`` is ``git/tree.py``; each gets a docstring and its ``__init__`` files."""
    source = root / PACKAGE
    for name, body in {"__init__": "", **files}.items():
        path = source.joinpath(*name.split("__")) if name != "__init__" else source / "__init__"
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents[: len(path.relative_to(source).parts) - 1]:
            (folder / "__init__.py").write_text('"""A room."""\n', encoding="utf-8")
        path.with_suffix(".py").write_text(f'"""A module."""\n{body}\n', encoding="utf-8")
    return source


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"git__tree": "from pytest_gittrix.record import log", "record__log": ""}, "git (floor 2) may not reach record (floor 3)"),
        ({"git__tree": "def f():\n    import pytest_gittrix.session", "session__manager": ""}, "git (floor 2) may not reach session"),
        ({"git__tree": "def f():\n    import_module('pytest_gittrix.session')"}, "git (floor 2) may not reach session"),
        ({"git__tree": "from ..record import log", "record__log": ""}, "git (floor 2) may not reach record"),
        ({"record__log": "from pytest_gittrix.git import tree", "git__tree": ""}, "record never knows git"),
        ({"record__log": "import pygit2"}, "record never knows pygit2"),
        ({"adapters__local": "from pytest_gittrix import record"}, "adapters (floor 3) may not reach record (floor 3)"),
        ({"session__manager": "if True:\n    import pytest"}, "session never knows pytest"),
        ({"session__manager": "import hypothesis.strategies"}, "session never knows hypothesis"),
        ({"views__pixir": "from pytest_gittrix.session import manager", "session__manager": ""}, "views (floor 4) may not reach session"),
        ({"harness__world": "def f():\n    from _pytest.tmpdir import TempPathFactory"}, "harness never knows _pytest"),
        ({"views__pixir": "from pytest_gittrix.clock import Clock", "clock": ""}, "views never knows time"),
        ({"plugin": "import pluggy"}, "plugin.py loads only the standard library and pytest"),
        ({"plugin": "from pytest_gittrix import config", "config": ""}, "plugin.py loads only the standard library and pytest"),
        ({"__init__": "from pytest_gittrix.errors import GittrixError", "errors": ""}, "the package itself loads its rooms lazily"),
        ({"session__manager": "from pytest_gittrix import GitTrix"}, "import from the room itself"),
        ({"session__manager": "import pytest_gittrix"}, "import from the room itself"),
        ({"attic": ""}, "attic.py:1: has no room"),
        ({"git__a": "from pytest_gittrix.git import b", "git__b": "import pytest_gittrix.git.a"}, "circle: pytest_gittrix.git."),
    ],
)
def test_the_checker_sees_a_wrong_import(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    breaches = import_breaches(house(tmp_path, **files))

    assert [breach for breach in breaches if expected in breach], breaches


def test_the_checker_accepts_a_house_in_order(tmp_path: Path) -> None:
    source = house(
        tmp_path,
        __init__="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pytest_gittrix.git.tree import Entry",
        errors="",
        git__tree="from pytest_gittrix import __version__, errors",
        git__pack="from pytest_gittrix.git import tree\ndef f():\n    '''Late.'''\n    from pytest_gittrix.git import repository",
        git__repository="from pytest_gittrix.git import pack\nimport pygit2",
        session__manager="from pytest_gittrix.git.tree import Entry\nfrom pytest_gittrix.record import log",
        record__log="import pydantic",
        plugin="import os\nimport pytest\ndef f():\n    '''Late.'''\n    from pytest_gittrix.session import manager",
    )

    assert import_breaches(source) == []
    assert docstring_breaches(source) == []


def test_the_checker_sees_what_is_too_long_or_undocumented(tmp_path: Path) -> None:
    functions = "def public(): ...\ndef _private(): ...\n"
    classes = "class Shown:\n    '''Shown.'''\n    def method(self): ...\nclass Heir(Shown):\n    '''Heir.'''\n    def method(self): ..."
    source = house(tmp_path, errors=functions + classes, points="\n" * MAX_LINES)

    assert docstring_breaches(source) == [
        "pytest_gittrix/errors.py:2: public has no docstring",
        "pytest_gittrix/errors.py:6: Shown.method has no docstring",
    ]
    assert [breach.partition(":")[0] for breach in size_breaches(source)] == ["pytest_gittrix/points.py"]


def test_the_floors_of_the_map_are_without_gaps() -> None:
    floors = sorted({floor for floor, _ in ROOMS.values()})

    assert floors[0] == 1
    assert all(above - below == 1 for below, above in pairwise(floors))
