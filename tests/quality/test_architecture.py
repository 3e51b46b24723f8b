"""The house keeps its shape: imports point downwards and in no circle, rooms keep their nevers, everything public is documented.

The rules are the table in ``tests/quality/house.py``, which ``docs/explanation/architecture.md`` shows to readers. They are checked on the
syntax trees, so an import inside a function counts as much as one at the top; what an import *costs* is checked in fresh processes.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gittrix.extensions import OURS
from tests.quality.house import (
    MORE_LINES,
    MOST_FILES,
    MOST_LINES,
    PACKAGE,
    SAME_NAMES,
    SOURCE,
    STOREYS,
    SYSTEM_ELSEWHERE,
    House,
    Import,
    Module,
    copied_fixtures,
    named,
    never_of,
    page,
    storey_of,
)

CORE = 3
"""The highest storey of the core, from 1: that of the engine."""

PAGE = SOURCE.parent / "docs/explanation/architecture.md"

# Too dear to load in every pytest run and every shell completion.
HEAVY = ("git", "pydantic", "hypothesis", "pygit2", "freezegun", "time_machine", "filelock", "rich", "jinja2")

# An installed plugin that nobody uses costs nothing: these load the standard library and pytest alone.
LIGHT = tuple(f"{PACKAGE}.{name}" for name in ("plugin", "plugin.core_fixtures", "plugin.run_state", "hookspecs"))


@pytest.fixture(scope="module")
def ours() -> House:
    return House(SOURCE)


def import_breaches(house: House) -> list[str]:
    """What is wrong with single imports, one line each."""
    modules = [module for module in house.modules.values() if module.name != PACKAGE]
    homeless = [f"{module.place}: has no storey; give its room one in STOREYS" for module in modules if storey_of(module.room) is None]
    wrong = [
        f"{module.place}:{found.line}: imports {found.target}: {reason}"
        for module in house.modules.values()
        for found in house.imports[module.name]
        if (reason := _wrong(house, module, found))
    ]
    return homeless + wrong + house.upward()


def _wrong(house: House, module: Module, found: Import) -> str | None:
    library = found.target.partition(".")[0]
    if module.name == PACKAGE:
        loads = found.at_load and library not in sys.stdlib_module_names and found.target != f"{PACKAGE}.lazy_exports"
        return "the package itself loads its rooms lazily" if loads else None
    light = any(found.target == name or found.target.startswith(f"{name}.") for name in (*LIGHT[1:], f"{PACKAGE}.lazy_exports"))
    cheap = light or library in sys.stdlib_module_names | {"pytest"}
    if module.name in LIGHT and found.at_load and not cheap:
        return f"{module.name} loads only the standard library and pytest"
    forbidden = [never for never in never_of(module.room) if f"{found.target}.".startswith(f"{never}.")]
    if forbidden:
        return f"{module.room} never knows {forbidden[0]}"
    if library != PACKAGE or found.target == f"{PACKAGE}.__version__":
        return None
    target = house.modules.get(found.target)
    if target is None or target.name == PACKAGE:
        return "inside the package, import from the module itself"
    if target.is_door and target.room != module.room:
        return "doors are for users; inside the package, import from the module itself"
    return None


def docstring_breaches(house: House) -> list[str]:
    """Modules, public classes, functions and methods without a docstring. A method of a class with bases may inherit its own."""
    breaches = []
    for module in house.modules.values():
        if not ast.get_docstring(module.tree):
            breaches.append(f"{module.place}:1: has no module docstring")
        breaches += [f"{module.place}:{node.lineno}: {name} has no docstring" for name, node in _undocumented(module.tree)]
    return breaches


def _undocumented(owner: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.stmt]]:
    for node in owner.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        if any(named(decorator, "overload", "setter", "deleter") for decorator in node.decorator_list):
            continue
        if not ast.get_docstring(node) and not _may_inherit(owner, node):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{name}", inner) for name, inner in _undocumented(node))


def _may_inherit(owner: ast.Module | ast.ClassDef, node: ast.stmt) -> bool:
    if not isinstance(owner, ast.ClassDef) or isinstance(node, ast.ClassDef):
        return False
    return any(not named(base, "Protocol", "ABC", "Generic", "NamedTuple") for base in owner.bases if not isinstance(base, ast.Subscript))


def test_imports_point_downwards_and_no_room_knows_what_it_must_not(ours: House) -> None:
    breaches = import_breaches(ours)

    assert not breaches, "\n".join(breaches)


def test_the_engine_and_what_it_rests_on_import_nothing_that_is_registered_by_name(ours: House) -> None:
    registered = {found.address.partition(":")[0] for kind in OURS.values() for found in kind.values()} - {f"{PACKAGE}.backends.local"}
    core = [module for module in ours.modules.values() if (storey_of(module.room) or 0) <= CORE and not module.is_door]
    core = [module for module in core if module.room != "gastown"]  # which is of one system itself

    assert [f"{one.place}: {it.target}" for one in core for it in ours.imports[one.name] if it.target in registered] == []
    assert len(core) > 100


def test_every_module_and_public_name_is_documented(ours: House) -> None:
    breaches = docstring_breaches(ours)

    assert not breaches, "\n".join(breaches)


def test_every_name_of_the_table_is_in_the_house(ours: House) -> None:
    tops = {room.partition(".")[0] for room in ours.rooms}

    assert {name for names in STOREYS.values() for name in names} == tops


def test_neither_rooms_nor_modules_stand_in_a_circle(ours: House) -> None:
    assert ours.circles() == []


def test_no_module_uses_the_private_names_of_another(ours: House) -> None:
    assert ours.private_reaches() == []


def test_no_public_class_shares_its_name_with_another(ours: House) -> None:
    assert ours.shared_class_names() == []


def test_one_room_alone_locks_renames_forks_and_reads_proc(ours: House) -> None:
    assert ours.system_reaches() == []


def test_every_exception_is_a_module_of_the_house(ours: House) -> None:
    assert {f"{PACKAGE}.{name}" for names in SYSTEM_ELSEWHERE.values() for name in names} <= set(ours.modules)


def test_views_touch_no_file(ours: House) -> None:
    assert ours.impure() == []


def test_no_room_has_more_files_than_one_idea_needs(ours: House) -> None:
    assert ours.crowded() == []


def test_no_file_is_longer_than_one_idea_needs(ours: House) -> None:
    assert ours.long() == []


def test_every_longer_file_and_shared_name_of_the_tables_is_in_the_house(ours: House) -> None:
    lines = {module.place: module.lines for module in ours.modules.values()}
    classes = [node.name for module in ours.modules.values() for node in module.tree.body if isinstance(node, ast.ClassDef)]

    assert [place for place in MORE_LINES if lines.get(place, 0) <= MOST_LINES] == []
    assert [name for name in SAME_NAMES if classes.count(name) < 2] == []


def test_the_page_on_the_architecture_shows_the_house_as_it_is(ours: House) -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert text.partition("<!-- house -->\n")[2].partition("\n<!-- /house -->")[0] == page(ours), (
        "run: python -m tests.quality.house --page"
    )


@pytest.mark.parametrize("module", [PACKAGE, f"{PACKAGE}.plugin", f"{PACKAGE}.cli.main"])
def test_start_up_loads_nothing_heavy(module: str, tmp_path: Path) -> None:
    program = f"import sys; import {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, f"{module} cannot be imported:\n{done.stderr}"
    assert done.stdout.split() == [], f"importing {module} also loads {done.stdout.strip()}"


def small(root: Path, **files: str) -> House:
    """A small package on disk: ``git__tree="..."`` is ``git/tree.py``; each gets a docstring and its ``__init__`` files."""
    source = root / PACKAGE
    for name, body in {"__init__": "", **files}.items():
        path = source.joinpath(*name.split("__")) if name != "__init__" else source / "__init__"
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents[: len(path.relative_to(source).parts) - 1]:
            (folder / "__init__.py").write_text('"""A room."""\n', encoding="utf-8")
        path.with_suffix(".py").write_text(f'"""A module."""\n{body}\n', encoding="utf-8")
    return House(source)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"git__tree": "from pytest_gittrix.engine import engine", "engine__engine": ""},
            "git (storey 2) may not know pytest_gittrix.engine",
        ),
        ({"git__tree": "def f():\n    import pytest_gittrix.engine", "engine__engine": ""}, "git (storey 2) may not know"),
        ({"git__tree": "def f():\n    import_module('pytest_gittrix.engine')", "engine__engine": ""}, "git (storey 2) may not know"),
        ({"git__tree": "from ..engine import engine", "engine__engine": ""}, "git (storey 2) may not know pytest_gittrix.engine.engine"),
        ({"git__tree": "if TYPE_CHECKING:\n    from ..engine import engine", "engine__engine": ""}, "git (storey 2) may not know"),
        ({"record__log__log": "from pytest_gittrix.git import tree", "git__tree": ""}, "record.log never knows pytest_gittrix.git"),
        ({"record__log": "import pygit2"}, "record never knows pygit2"),
        ({"engine__engine": "if True:\n    import pytest"}, "engine never knows pytest"),
        ({"engine__engine": "import hypothesis.strategies"}, "engine never knows hypothesis"),
        ({"testing__world": "def f():\n    from _pytest.tmpdir import TempPathFactory"}, "testing never knows _pytest"),
        ({"views__pixir": "import pygit2"}, "views never knows pygit2"),
        ({"plugin": "import pluggy"}, "loads only the standard library and pytest"),
        ({"plugin": "from pytest_gittrix import points", "points": ""}, "loads only the standard library and pytest"),
        ({"__init__": "from pytest_gittrix.errors import GittrixError", "errors": ""}, "the package itself loads its rooms lazily"),
        ({"engine__engine": "from pytest_gittrix import GitTrix"}, "import from the module itself"),
        ({"engine__engine": "import pytest_gittrix"}, "import from the module itself"),
        ({"attic": ""}, "attic.py: has no storey"),
    ],
)
def test_the_checker_sees_a_wrong_import(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    breaches = import_breaches(small(tmp_path, **files))

    assert [breach for breach in breaches if expected in breach], breaches


def test_the_checker_sees_who_goes_through_a_door(tmp_path: Path) -> None:
    house = small(tmp_path, engine__engine="from pytest_gittrix.clock import Clock", clock__clock="")
    (house.source / "clock/__init__.py").write_text('"""A door."""\n__getattr__ = door(__name__, {})\n')

    assert [breach for breach in import_breaches(House(house.source)) if "doors are for users" in breach]


@pytest.mark.parametrize(
    "files",
    [
        {"git__a": "from pytest_gittrix.git import b", "git__b": "import pytest_gittrix.git.a"},
        {"git__a": "from pytest_gittrix.git import b", "git__b": "def f():\n    import pytest_gittrix.git.a"},
        {"git__a": "from pytest_gittrix.git import b", "git__b": "if TYPE_CHECKING:\n    import pytest_gittrix.git.a"},
    ],
    ids=["at load", "deferred", "for typing"],
)
def test_the_checker_sees_a_circle_of_modules(files: dict[str, str], tmp_path: Path) -> None:
    assert [circle for circle in small(tmp_path, **files).circles() if circle.startswith("circle of modules: pytest_gittrix.git.")]


def test_the_checker_sees_a_circle_of_rooms(tmp_path: Path) -> None:
    house = small(
        tmp_path,
        git__a="from pytest_gittrix.views import a",
        git__b="",
        views__a="",
        views__b="from pytest_gittrix.git import b",
    )

    (circle,) = house.circles()
    assert circle in ("circle of rooms: git -> views -> git", "circle of rooms: views -> git -> views")


def test_the_checker_accepts_a_house_in_order(tmp_path: Path) -> None:
    house = small(
        tmp_path,
        __init__="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pytest_gittrix.git.tree import Entry",
        errors="",
        git__tree="from pytest_gittrix import __version__, errors",
        git__pack="from pytest_gittrix.git import tree\ndef f():\n    '''Late.'''\n    from pytest_gittrix.git import repository",
        git__repository="import pygit2",
        engine__engine="from pytest_gittrix.git.tree import Entry\nfrom pytest_gittrix.record import log",
        record__log="import pydantic",
        plugin="import os\nimport pytest\ndef f():\n    '''Late.'''\n    from pytest_gittrix.engine import engine",
    )

    assert import_breaches(house) == []
    assert house.circles() == []
    assert docstring_breaches(house) == []


def test_the_checker_sees_what_is_undocumented(tmp_path: Path) -> None:
    functions = "def public(): ...\ndef _private(): ...\n"
    classes = "class Shown:\n    '''Shown.'''\n    def method(self): ...\nclass Heir(Shown):\n    '''Heir.'''\n    def method(self): ..."

    assert docstring_breaches(small(tmp_path, errors=functions + classes)) == [
        "pytest_gittrix/errors.py:2: public has no docstring",
        "pytest_gittrix/errors.py:6: Shown.method has no docstring",
    ]


def test_the_checker_counts_a_door_as_importing_what_it_leads_to(tmp_path: Path) -> None:
    house = small(tmp_path, confine__run="", engine__programs="", engine__run="import pytest_gittrix.confine.run")
    (house.source / "confine/__init__.py").write_text(
        '"""A."""\n__getattr__ = door(__name__, {"pytest_gittrix.engine.programs": ("Programs",)})\n'
    )

    house = House(house.source)
    assert house.upward() == []
    assert house.circles()[0] in ("circle of rooms: confine -> engine -> confine", "circle of rooms: engine -> confine -> engine")
    assert house.exported() == {f"{PACKAGE}.confine": ["Programs"]}


def test_the_checker_sees_a_file_that_is_too_long(tmp_path: Path) -> None:
    assert small(tmp_path, git__tree="\n" * MOST_LINES).long() == [
        f"pytest_gittrix/git/tree.py: {MOST_LINES + 2} lines, more than {MOST_LINES}"
    ]


def test_lines_of_code_and_of_docstrings_are_counted_apart(tmp_path: Path) -> None:
    body = "# a comment\n\nX = 1\n'''What X is,\n\nin a word.'''\n\ndef f():\n    '''Do it.'''\n    return X"

    module = small(tmp_path, errors=body).modules[f"{PACKAGE}.errors"]

    assert (module.lines, module.code_lines, module.docstring_lines) == (11, 3, 5)


def test_a_fixture_that_stands_in_two_files_word_for_word_is_seen(tmp_path: Path) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef one():\n    return {}\n"
    for name, number in (("test_a.py", 1), ("test_b.py", 1), ("test_c.py", 2)):
        (tmp_path / name).write_text(fixture.format(number))

    assert list(copied_fixtures(tmp_path).values()) == [2]


def test_the_checker_sees_a_room_with_too_many_files(tmp_path: Path) -> None:
    files = {f"git__part_{number}": "" for number in range(MOST_FILES + 1)}

    assert small(tmp_path, **files).crowded() == [f"git: {MOST_FILES + 1} files, more than {MOST_FILES}"]


def test_the_checker_sees_the_use_of_a_private_name_of_another_module(tmp_path: Path) -> None:
    house = small(
        tmp_path,
        git__refs="class Refs:\n    def __init__(self):\n        self._lock = 1\ndef _path(): ...",
        git__pack="from pytest_gittrix.git.refs import _path\ndef held(refs):\n    return refs._lock",
        git__tree="class Tree:\n    def __init__(self, other):\n        self._lock = other._lock",
    )

    assert house.private_reaches() == [
        "pytest_gittrix/git/pack.py:2: uses _path, which is private to another module",
        "pytest_gittrix/git/pack.py:4: uses _lock, which is private to another module",
    ]


def test_the_checker_sees_classes_of_one_name(tmp_path: Path) -> None:
    house = small(
        tmp_path,
        git__refs="class Lock: ...",
        workspaces__seed="class Lock: ...",
        os_level__lease="class Lock: ...",
        git__a="class _Lock: ...",
    )

    assert house.shared_class_names() == [
        "Lock: pytest_gittrix/git/refs.py, pytest_gittrix/os_level/lease.py, pytest_gittrix/workspaces/seed.py"
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import fcntl\nfcntl.flock(1, fcntl.LOCK_EX)", "locks files"),
        ("from fcntl import flock", "locks files"),
        ("from filelock import FileLock", "locks files"),
        ("import os\nos.replace('a', 'b')", "renames files"),
        ("import os\ndef f(a, b):\n    '''Late.'''\n    os.rename(a, b)", "renames files"),
        ("from os import replace", "renames files"),
        ("import shutil\nshutil.move('a', 'b')", "renames files"),
        ("from pathlib import Path\nPath('a').rename('b')", "renames files"),
        ("from pathlib import Path\nPath('a').replace(Path('b'))", "renames files"),
        ("import os\nif os.fork() == 0: ...", "forks"),
        ("def f(pid):\n    '''Late.'''\n    return open(f'/proc/{pid}/stat')", "reads /proc"),
    ],
)
def test_the_checker_sees_who_goes_to_the_system_outside_its_room(body: str, expected: str, tmp_path: Path) -> None:
    house = small(tmp_path, engine__engine=body, os_level__files=body)

    assert {breach.partition(": ")[2] for breach in house.system_reaches()} == {f"{expected}, which is os_level's"}
    assert all(breach.startswith("pytest_gittrix/engine/engine.py:") for breach in house.system_reaches())


def test_the_checker_accepts_what_only_looks_like_the_system(tmp_path: Path) -> None:
    body = "import dataclasses\nprint('a'.replace('a', 'b'), 'see /proc/self', '/proc', dataclasses.replace)"

    assert small(tmp_path, engine__engine=body).system_reaches() == []


def test_the_checker_sees_an_exception_that_is_needed_no_more(tmp_path: Path) -> None:
    house = small(tmp_path, git__refs="import os\n")

    assert house.system_reaches() == ["pytest_gittrix.git.refs: renames files no more; take it out of SYSTEM_ELSEWHERE"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("print(open('a'))", "open"),
        ("import os\nos.unlink('a')", "os.unlink"),
        ("import os\nos.path.exists('a')", "os.path.exists"),
        ("from os import path", "from os"),
        ("from pathlib import Path", "pathlib"),
        ("def f():\n    '''Late.'''\n    import shutil", "shutil"),
    ],
)
def test_the_checker_sees_a_view_that_touches_a_file(body: str, name: str, tmp_path: Path) -> None:
    house = small(tmp_path, views__pixir=body, engine__engine=body)

    (breach,) = house.impure()
    assert breach.startswith("pytest_gittrix/views/pixir.py:")
    assert breach.endswith(f": views may not use {name}")


def test_the_checker_accepts_a_view_that_only_names_paths(tmp_path: Path) -> None:
    body = "import os\ndef f(a: os.PathLike[str]):\n    '''Named.'''\n    return os.path.relpath(os.path.realpath(a)).split(os.sep)"

    assert small(tmp_path, views__names=body).impure() == []
