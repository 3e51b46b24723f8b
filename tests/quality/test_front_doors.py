"""Users import from the front doors and from nothing deeper; an old address still leads to its module, and says where it is now."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.old_addresses import MOVED
from tests.quality.house import PACKAGE, SOURCE, module_names, only_leads_on

ROOT = SOURCE.parent
DOORS = frozenset(
    f"{PACKAGE}{name and '.'}{name}"
    for name in (
        "",
        *("testing", *(f"testing.{room}" for room in ("repos", "faults", "schedules", "scenarios", "systems", "machines"))),
        *("conformance", "clock", "errors", "extras", "points", "strategies", "evals", "confine", "model", "engine", "backends", "members"),
        *("aio", "orchestrator", "acp", "gastown", "views", "plugin"),
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


def test_doors_load_nothing_until_they_are_used() -> None:
    """The keeper of an agent and the launcher of confined programs run without site-packages, and must start quickly."""
    program = (
        f"import sys; sys.path.append({str(ROOT)!r}); import importlib; [importlib.import_module(d) for d in {LAZY!r}]; print(*sys.modules)"
    )

    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    ours = {name for name in done.stdout.split() if name.partition(".")[0] == PACKAGE}
    parents = {door.rpartition(".")[0] for door in LAZY} - {""}
    assert ours <= {*LAZY, *parents, f"{PACKAGE}.lazy_exports", f"{PACKAGE}.old_addresses"}


TAUGHT = {
    "adapters.forge_github": ("GitHubForge",),
    "adapters.local": (
        "LocalDurable",
        "LocalEphemeral",
    ),
    "adapters.remote": ("RemoteDurable",),
    "conformance.capabilities": ("CapabilityClauses",),
    "conformance.conflict": ("ConflictClauses",),
    "evals.desk": ("Desk",),
    "evals.releases": (
        "expected_of",
        "surprises",
    ),
    "evals.run": (
        "Options",
        "run",
    ),
    "evals.store": ("RunStore",),
    "evals.suite": ("Suite",),
    "evals_pytest.outcome": ("EvalSample",),
    "fixtures": (
        "Ephemeral",
        "Worlds",
    ),
    "freeze": ("process_freeze",),
    "git.hydrate": ("RepositorySpec",),
    "harness.agent_kit": ("AgentKit",),
    "harness.blackbox": (
        "Command",
        "calls_of",
        "explore_processes",
        "interleave",
        "intrude",
    ),
    "harness.chain_kit": (
        "ChainKit",
        "Link",
        "check_line",
    ),
    "harness.crash": ("Crash",),
    "harness.driver": ("Stage",),
    "harness.forge_server": ("ForgeServer",),
    "harness.history": (
        "Executable",
        "Step",
        "Symlink",
    ),
    "harness.line_machine": ("LineMachine",),
    "harness.linearize": (
        "Call",
        "linearise",
    ),
    "harness.log_kit": ("LogKit",),
    "harness.log_machine": ("LogMachine",),
    "harness.machine": (
        "machine_for",
        "replay",
    ),
    "harness.own_system": ("GitTrixSystem",),
    "harness.place": ("Place",),
    "harness.powercut": ("PowerCuts",),
    "harness.race": ("Race",),
    "harness.remote_kit": ("Remotes",),
    "harness.schedule": (
        "explore",
        "replay",
        "schedules",
    ),
    "harness.session_in": ("SessionsIn",),
    "harness.small_disk": ("SmallDisks",),
    "harness.timeline": ("Timeline",),
    "harness.turn_kit": ("TurnKit",),
    "harness.turn_machine": ("TurnMachine",),
    "harness.world_machine": ("machine_of",),
    "integrations.inspect_junit": (
        "junit",
        "main",
    ),
    "record.retention": (
        "RetentionPolicy",
        "expired",
    ),
    "session.agent_start": ("start_agent",),
    "session.confine": (
        "Place",
        "confinement",
        "run",
        "toolchain",
        "wrapped",
    ),
    "session.manager": ("GitTrix",),
    "session.members": ("Members",),
    "session.orchestrator": (
        "CommandAgent",
        "Orchestrator",
        "Project",
        "SpawnConfig",
    ),
    "session.stream": ("follow",),
    "views.gastown_files": (
        "export",
        "read_index",
        "read_town_events",
    ),
}
"""The names that the documentation once taught at an old address."""

LOOK = """
import importlib, json, warnings
from pytest_gittrix.errors import ExtraMissing
found = {}
moved, taught = %r, %r
for old, (new, _) in moved.items():
    try:
        today = importlib.import_module("pytest_gittrix." + new)
    except ExtraMissing:
        continue
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = importlib.import_module("pytest_gittrix." + old)
        twice = importlib.import_module("pytest_gittrix." + old)
    same = module is twice is today
    messages = [str(one.message) for one in caught if one.category is DeprecationWarning]
    gone = [name for name in taught.get(old, ()) if not hasattr(module, name)]
    found[old] = [same, module.__name__, module.__spec__.name, messages, gone]
print(json.dumps(found))
"""


def test_every_name_that_was_taught_has_an_address() -> None:
    assert TAUGHT.keys() <= MOVED.keys()


@pytest.fixture(scope="module")
def old_addresses() -> dict[str, list[Any]]:
    """What an import of each old address gives, in a process that has imported nothing else."""
    done = subprocess.run([sys.executable, "-c", LOOK % (dict(MOVED), TAUGHT)], capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("old", MOVED)
def test_an_old_address_is_the_module_of_today_and_names_its_door(old: str, old_addresses: dict[str, list[Any]]) -> None:
    new, door = MOVED[old]
    if old not in old_addresses:
        pytest.skip(f"{new} needs an extra; tests/tools tests its old address")
    same, name, spec_name, messages, gone = old_addresses[old]

    assert same
    assert name == spec_name == f"{PACKAGE}.{new}"
    assert gone == []
    (message,) = messages
    assert f"{PACKAGE}.{old} has moved." in message
    assert f"from {PACKAGE}.{door};" in message
    assert is_door(f"{PACKAGE}.{door}")


def test_the_warning_points_at_who_imports(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("import json\nfrom pytest_gittrix.session.manager import GitTrix\n")

    done = subprocess.run(
        [sys.executable, "-W", "always", "theirs.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert re.search(r"theirs\.py:2: DeprecationWarning: pytest_gittrix\.session\.manager has moved\.", done.stderr)


def test_a_module_can_be_run_by_its_old_address() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_gittrix.harness.profiles"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
