"""Users import from the front doors and from nothing deeper; an old address still leads to its module, and says where it is now."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.quality.house import PACKAGE, SOURCE, module_names, only_leads_on

ROOT = SOURCE.parent
DOORS = frozenset(
    f"{PACKAGE}{name and '.'}{name}"
    for name in (
        "",
        *("testing", *(f"testing.{room}" for room in ("repos", "faults", "schedules", "scenarios", "systems", "machines"))),
        *("conformance", "clock", "errors", "extras", "points", "strategies", "evals", "confine", "model", "engine", "backends", "members"),
        *("aio", "orchestrator", "acp", "gastown", "views", "plugin", "extensions", "commands", "more_fixtures"),
    )
)
"""The addresses that users import from; besides them, each module of ``integrations`` and ``mcp`` is one."""
RUN = frozenset({f"{PACKAGE}.cli", f"{PACKAGE}.conformance.test_conformance"})
"""Modules that users name to run them: by ``python -m``, by ``pytest --pyargs``."""

MODULES = module_names(SOURCE)
LAZY = sorted(
    name for name, path in MODULES.items() if path.name == "__init__.py" and only_leads_on(ast.parse(path.read_text(encoding="utf-8")))
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
BLOCK = re.compile(r"^```(?:python|py)\b.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def is_door(address: str) -> bool:
    """Whether users may import from an address: a door, a module of one that the door shows, or an integration."""
    return address in DOORS or address in RUN or address.startswith((f"{PACKAGE}.integrations.", f"{PACKAGE}.mcp"))


def addresses(source: str) -> Iterator[str]:
    """The modules of ours that a source imports from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == PACKAGE:
            yield node.module
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE)


def deep_addresses(text: str) -> list[str]:
    """The addresses behind the doors that a page or a source tells users of, in code and in prose."""
    named = re.findall(rf"\b{PACKAGE}(?:\.\w+)+", text)
    return sorted({name for name in named if name in MODULES and not is_door(name)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_documentation_tells_of_doors_only(page: Path) -> None:
    assert deep_addresses(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_example_goes_through_doors_only(example: Path) -> None:
    assert [address for address in addresses(example.read_text(encoding="utf-8")) if not is_door(address)] == []


def test_a_deep_address_is_seen() -> None:
    assert deep_addresses("Use `pytest_gittrix.testing.schedules.race` or pytest_gittrix.testing.") == [
        "pytest_gittrix.testing.schedules.race"
    ]
    assert list(addresses("from pytest_gittrix.engine.engine import GitTrix\nimport pytest_gittrix.git.refs")) == [
        "pytest_gittrix.engine.engine",
        "pytest_gittrix.git.refs",
    ]


def names_for_type_checkers(module: ast.Module) -> set[str]:
    """What a door imports for type checkers alone."""
    guarded = [node for node in module.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in guarded for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def names_at_run_time(module: ast.Module) -> set[str]:
    """What a door gives at run time."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and ast.unparse(node.func) == "door"]
    return {name for call in calls for names in ast.literal_eval(call.args[1]).values() for name in names}


def parsed(name: str) -> ast.Module:
    """The source of a module of ours."""
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LAZY)
def test_a_door_gives_what_it_shows_to_type_checkers(name: str) -> None:
    tree = parsed(name)

    assert names_at_run_time(tree) == names_for_type_checkers(tree) != set()


@pytest.mark.parametrize("name", LAZY)
def test_every_name_of_a_door_can_be_imported_and_none_is_hidden_by_a_module(name: str) -> None:
    door = import_module(name)

    for public in names_at_run_time(parsed(name)):
        assert f"{name}.{public}" not in MODULES
        assert getattr(door, public) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = door.nothing


@pytest.mark.parametrize("name", LAZY)
def test_completion_shows_what_a_door_gives(name: str) -> None:
    assert names_at_run_time(parsed(name)) <= {*dir(import_module(name))}


def test_libraries_that_read_every_attribute_of_a_module_load_nothing() -> None:
    program = (
        "import importlib, sys, freezegun.api, time_machine, pytest\n"
        f"modules = [importlib.import_module(door) for door in {LAZY!r}]\n"
        "before = {*sys.modules}\n"
        "with freezegun.freeze_time('2030-01-01'): pass\n"
        "with time_machine.travel(0): pass\n"
        "manager = pytest.PytestPluginManager()\n"
        "for module in modules: manager.register(module)\n"
        "sweep = compile('[getattr(one, name, None) for one in modules for name in dir(one)]', '', 'exec')\n"
        "exec(sweep, {'modules': modules, '__name__': '_pytest.fixtures'})\n"
        "print(*(name for name in {*sys.modules} - before if name.startswith('pytest_gittrix.')))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_help_lists_the_names_of_the_package_with_a_line_each() -> None:
    package = import_module(PACKAGE)
    said = re.findall(r"^    (\w+): +\S.*$", package.__doc__ or "", re.MULTILINE)

    assert said == package.__all__


def test_doors_load_nothing_until_they_are_used() -> None:
    """The supervisor of an agent and the launcher of confined programs run without site-packages, and must start quickly."""
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); import importlib; [importlib.import_module(d) for d in {LAZY!r}]; print(*sys.modules)"
    )

    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    ours = {name for name in done.stdout.split() if name.partition(".")[0] == PACKAGE}
    parents = {door.rpartition(".")[0] for door in LAZY} - {""}
    assert ours <= {*LAZY, *parents, f"{PACKAGE}.lazy_exports"}
