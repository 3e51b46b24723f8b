"""The house as a table: storeys, rooms, and what a room may not know. ``python -m tests.quality.house`` prints it with its arrows.

A room is a package; what it is for is the first sentence of its docstring. Imports are read from the syntax trees, so one inside a
function and one for type checkers alone count as much as one at the top. ``docs/explanation/architecture.md`` opens with the picture of
this table.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

PACKAGE = "pytest_gittrix"
SOURCE = Path(__file__).resolve().parents[2] / PACKAGE

STOREYS: Mapping[str, tuple[str, ...]] = {
    "Ground": (
        "errors",
        "points",
        "durations",
        "extras",
        "extensions",
        "safe_text",
        "formats",
        "lazy_exports",
        "os_level",
        "clock",
    ),
    "Material": ("git", "workspaces", "record", "backends", "views", "gastown"),
    "Engine": ("confine", "model", "engine"),
    "Systems": ("aio", "members", "orchestrator", "acp"),
    "Proof": ("testing", "conformance", "evals", "strategies"),
    "Ways in": ("report", "integrations", "mcp", "commands", "server", "cli", "plugin", "more_fixtures", "hookspecs"),
}
"""From the ground up: the packages and modules directly under the package that stand on each storey."""

MOST_FILES = 15
"""Files that one room may have, its ``__init__`` not counted."""
MORE_FILES: Mapping[str, int] = {"conformance.families": 20}
"""Rooms whose idea is a list: a family of clauses a file."""

MOST_LINES = 450
"""Lines that one file may have."""
MORE_LINES: Mapping[str, int] = {"pytest_gittrix/conformance/families/promotion.py": 500}
"""Files whose one idea needs more, by their place: the lines of each."""

SAME_NAMES: Mapping[str, str] = {
    "Call": "what a model calls and what an actor calls, each taught by the page of its door",
    "Ephemeral": "what the fixture of one gives, by the protocol that makes one",
    "Place": "where a program may work and where a test's people work, each taught by the page of its door",
    "TurnContext": "what a clause asks of the argument of a turn, and the engine's",
}
"""Public classes that rightly share a name, each with the reason."""

PYTEST = frozenset({"pytest", "_pytest"})
GIT_LIBRARIES = frozenset({"git", "gitdb", "pygit2", "dulwich"})
NEVER: Mapping[str, frozenset[str]] = {
    "errors": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "points": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "durations": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "os_level": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "clock": PYTEST | GIT_LIBRARIES | {"hypothesis"},
    "git": PYTEST | {"hypothesis"},
    "workspaces": PYTEST | {"hypothesis", f"{PACKAGE}.record", f"{PACKAGE}.backends"},
    "record": PYTEST | GIT_LIBRARIES | {"hypothesis", f"{PACKAGE}.git", f"{PACKAGE}.workspaces"},
    "backends": PYTEST | {"hypothesis", f"{PACKAGE}.record"},
    "views": PYTEST | GIT_LIBRARIES | {"hypothesis", f"{PACKAGE}.clock", f"{PACKAGE}.git", f"{PACKAGE}.os_level", "pathlib"},
    "confine": PYTEST | {"hypothesis", f"{PACKAGE}.record", f"{PACKAGE}.backends"},
    "engine": PYTEST | {"hypothesis"},
    "members": PYTEST | {"hypothesis"},
    "orchestrator": PYTEST | {"hypothesis"},
    "testing": PYTEST,
}
"""Libraries and rooms that a room never knows, beyond what its storey already keeps it from."""


NOT_OURS = frozenset({"_replace", "_asdict", "_request"})
"""Names that look private and are those of libraries: of named tuples, and of pytest's items."""


SYSTEM_ROOM = "os_level"
"""The one room that locks, renames, forks and reads ``/proc``, but for the modules of ``SYSTEM_ELSEWHERE``."""
LOCK, MOVE, FORK, PROC = "locks files", "renames files", "forks", "reads /proc"
_PROGRAM = "a program of its own, which runs without the package's imports"
SYSTEM_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    LOCK: {"confine.kernel.namespace_jail": _PROGRAM},
    MOVE: {
        "confine.filesystem_layout": "moves a directory of earlier versions out of a home, as it is",
        "engine.lineage.handoff": "moves the parts of a session, as they are, to its successor",
        "engine.lineage.member_recovery": "moves a workspace out of its place to see that it can be removed, and back",
        "engine.eviction.archiver": "moves a workspace that cannot be archived into the record, as it is",
        "evals.results.store": "moves a record that does not count aside, as it is",
        "evals.runs.work_dirs": "moves a directory to a name that one process alone knows, as it is",
        "git.refs": "moves a reference's lock into its place, which is git's protocol",
        "orchestrator.flat_files": "moves a session's file into the archive, as it is",
        "testing.faults.torture": "moves the first state of a sweep aside, as it is",
        "testing.repos.member_workspaces": "moves a remote aside, as it is, and back",
        "testing.scenarios.agent_program": _PROGRAM,
        "workspaces.overlay": "puts whiteouts in their places",
        "workspaces.finder.agent_archive": "moves the objects of a repository, as they are, out of a workspace that goes",
        "workspaces.spares": "gives a workspace that was made ahead to the one start that renames it first",
        "workspaces.trash": "moves what is removed into the trash, as it is",
        "workspaces.workspace": "moves workspaces, as they are",
    },
    FORK: {
        "confine.gateway.server": _PROGRAM,
        "confine.launcher": _PROGRAM,
        "confine.zygote": _PROGRAM,
        "engine.agents.supervisor": _PROGRAM,
        "testing.scenarios.agent_program": _PROGRAM,
    },
    PROC: {
        "confine.kernel.namespace_jail": "makes links into the /proc of the jail, which it does not read",
        "confine.zygote_client": "compares what a child of this thread would inherit",
        "testing.faults.seccomp_notify": "looks into a thread that is stopped inside a system call",
        "testing.scenarios.agent_program": _PROGRAM,
    },
}
"""The modules outside the room that do it all the same, each with its reason."""

PURE_ROOM = "views"
PURE_OS = frozenset({"os.PathLike", "os.fspath", "os.sep", "os.path.realpath", "os.path.relpath"})
"""What the room of pure functions may take from ``os``: names of paths. It opens no file."""


@dataclass(frozen=True)
class Import:
    """One import: the module it reaches, where it stands, and whether it runs when the importing module is loaded."""

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
    text: str

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """Every node of its tree, which many rules look through."""
        return [*ast.walk(self.tree)]

    @property
    def place(self) -> str:
        """Its file, from the directory of the package, as a person would type it."""
        return f"{self.name.replace('.', '/')}{'/__init__' if self.is_package else ''}.py"

    @cached_property
    def lines(self) -> int:
        """How many lines it has."""
        return len(self.text.splitlines())

    @cached_property
    def docstring_lines(self) -> int:
        """How many of its lines are docstrings, with those after attributes."""
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in self.nodes if _is_text(node))

    @cached_property
    def code_lines(self) -> int:
        """How many of its lines are neither empty nor comments nor docstrings."""
        empty = sum(not line.strip() or line.lstrip().startswith("#") for line in self.text.splitlines())
        within = sum(not line.strip() for node in self.nodes if _is_text(node) for line in node.value.value.splitlines())
        return self.lines - self.docstring_lines - empty + within

    @property
    def room(self) -> str:
        """The package that it is in, without the name of the whole; a module directly under the whole is a room of its own."""
        _, _, rest = self.name.partition(".")
        folder, _, _ = rest.rpartition(".")
        return rest if self.is_package else folder or rest

    @property
    def is_door(self) -> bool:
        """Whether it only leads to names of other modules: a package's ``__init__`` that loads them when they are asked for."""
        return self.is_package and only_leads_on(self.tree)


@dataclass(frozen=True)
class House:
    """All modules of a package, and the arrows between them.

    Args:
        source: directory of the package.
    """

    source: Path

    @cached_property
    def modules(self) -> Mapping[str, Module]:
        """Every module, by its dotted name."""
        modules = {}
        gc.disable()  # it would go through all trees again and again, which takes longer than to parse them
        try:
            for name, path in module_names(self.source).items():
                text = path.read_text(encoding="utf-8")
                modules[name] = Module(name, path, path.name == "__init__.py", ast.parse(text, str(path)), text)
        finally:
            gc.enable()
        return modules

    @cached_property
    def imports(self) -> Mapping[str, Sequence[Import]]:
        """Every import of each module, wherever it stands; ``from package import module`` reaches the module."""
        return {name: [*self._walk(module.tree.body, module, at_load=True, for_typing=False)] for name, module in self.modules.items()}

    @cached_property
    def rooms(self) -> Mapping[str, Sequence[Module]]:
        """The modules of each room, in the order of the storeys."""
        found = defaultdict(list)
        for module in self.modules.values():
            if module.name != PACKAGE:
                found[module.room].append(module)
        return {room: found[room] for room in sorted(found, key=lambda room: (storey_of(room) or 0, room))}

    @cached_property
    def arrows(self) -> Mapping[str, Mapping[str, Sequence[tuple[Module, Import]]]]:
        """The imports from one room into another, by room and room. What a door leads to counts, but for the package's own door."""
        arrows: dict[str, dict[str, list[tuple[Module, Import]]]] = {room: defaultdict(list) for room in self.rooms}
        for name, imports in self.imports.items():
            module = self.modules[name]
            if name == PACKAGE:
                continue
            for found in imports:
                target = self.modules.get(found.target)
                if target is not None and target.name != PACKAGE and target.room != module.room:
                    arrows[module.room][target.room].append((module, found))
        return arrows

    def upward(self) -> list[str]:
        """The imports that lead to a higher storey, one line each."""
        return [
            f"{module.place}:{found.line}: {room} (storey {storey_of(room)}) may not know {found.target} (storey {storey_of(other)})"
            for room, others in self.arrows.items()
            for other, imports in others.items()
            if (storey_of(room) or 0) < (storey_of(other) or 0)
            for module, found in imports
        ]

    def circles(self) -> list[str]:
        """A circle of rooms and a circle of modules, where there are any, one line each."""
        modules = {
            name: {found.target for found in imports if found.target in self.modules} - {name, PACKAGE}
            for name, imports in self.imports.items()
            if name != PACKAGE
        }
        rooms = {room: set(others) for room, others in self.arrows.items()}
        return [*_circle("rooms", rooms), *_circle("modules", modules)]

    def private_reaches(self) -> list[str]:
        """The places that use a private name of another module, one line each."""
        own = {name: _private_names(module.nodes) for name, module in self.modules.items()}
        everywhere = frozenset().union(*own.values())
        return [
            f"{module.place}:{line}: uses {private}, which is private to another module"
            for name, module in self.modules.items()
            for private, line in _private_uses(module.nodes)
            if private in everywhere - own[name] - NOT_OURS
        ]

    def shared_class_names(self) -> list[str]:
        """The names that two public classes have, but for those of ``SAME_NAMES``, one line for each name."""
        found: dict[str, list[str]] = defaultdict(list)
        for module in self.modules.values():
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(module.place)
        return [f"{name}: {', '.join(places)}" for name, places in sorted(found.items()) if len(places) > 1 and name not in SAME_NAMES]

    def exported(self) -> Mapping[str, Sequence[str]]:
        """The names that each door gives, by the door."""
        doors = {name: _door(module.tree) for name, module in self.modules.items() if module.is_package}
        return {name: sorted(public for names in modules.values() for public in names) for name, modules in doors.items() if modules}

    def long(self) -> list[str]:
        """The files with more lines than their limit, one line each."""
        limits = {module: MORE_LINES.get(module.place, MOST_LINES) for module in self.modules.values()}
        return [f"{module.place}: {module.lines} lines, more than {limit}" for module, limit in limits.items() if module.lines > limit]

    def system_reaches(self) -> list[str]:
        """The places outside ``SYSTEM_ROOM`` that do what is its own, and the entries of the table that nobody needs, one line each."""
        found = [
            (what, module, line)
            for module in self.modules.values()
            if module.room.partition(".")[0] != SYSTEM_ROOM
            for what, line in _system_uses(module.nodes)
        ]
        allowed = {(what, f"{PACKAGE}.{name}") for what, names in SYSTEM_ELSEWHERE.items() for name in names}
        unused = allowed - {(what, module.name) for what, module, _ in found}
        return [
            f"{module.place}:{line}: {what}, which is {SYSTEM_ROOM}'s" for what, module, line in found if (what, module.name) not in allowed
        ] + [f"{name}: {what} no more; take it out of SYSTEM_ELSEWHERE" for what, name in sorted(unused) if name in self.modules]

    def impure(self) -> list[str]:
        """The places where ``PURE_ROOM`` could touch a file, one line each."""
        return [
            f"{module.place}:{line}: {PURE_ROOM} may not use {name}"
            for module in self.modules.values()
            if module.room.partition(".")[0] == PURE_ROOM
            for name, line in _file_uses(module.tree)
        ]

    def crowded(self) -> list[str]:
        """The rooms with more files than their limit, one line each."""
        counts = {room: sum(not module.is_package for module in modules) for room, modules in self.rooms.items()}
        limits = {room: MORE_FILES.get(room, MOST_FILES) for room in counts}
        return [f"{room}: {count} files, more than {limits[room]}" for room, count in counts.items() if count > limits[room]]

    def _walk(self, nodes: Sequence[ast.AST], module: Module, *, at_load: bool, for_typing: bool) -> Iterator[Import]:
        for node in nodes:
            for target in self._targets(node, module):
                yield Import(target, getattr(node, "lineno", 1), at_load and not for_typing and not _is_door(node), for_typing)
            if isinstance(node, ast.If) and named(node.test, "TYPE_CHECKING"):
                yield from self._walk(node.body, module, at_load=at_load, for_typing=True)
                yield from self._walk(node.orelse, module, at_load=at_load, for_typing=for_typing)
                continue
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from self._walk(list(ast.iter_child_nodes(node)), module, at_load=at_load and not inside, for_typing=for_typing)

    def _targets(self, node: ast.AST, module: Module) -> list[str]:
        match node:
            case ast.Import():
                return [alias.name for alias in node.names]
            case ast.ImportFrom():
                base = _absolute(node, module)
                names = [f"{base}.{alias.name}" for alias in node.names]
                return [name if name in self.modules or base == PACKAGE else base for name in names]
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if named(function, "import_module", "__import__"):
                return [name]
            case ast.Call(args=[_, ast.Dict(keys=keys)]) if _is_door(node):
                return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        return []


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether a statement is a text alone: a docstring, or the sentence after an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_door(node: ast.AST) -> bool:
    """Whether an expression makes a door, which loads nothing until a name is asked for."""
    return isinstance(node, ast.Call) and named(node.func, "door")


def _door(tree: ast.Module) -> Mapping[str, Sequence[str]]:
    """The names that a source's door gives, by the modules that it loads them from."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_door(node)]
    return {module: names for call in calls for module, names in ast.literal_eval(call.args[1]).items()}


def only_leads_on(tree: ast.Module) -> bool:
    """Whether a source defines nothing and ends with a door to names of other modules."""
    defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
    return not defines and bool(tree.body) and "door(" in ast.unparse(tree.body[-1])


def module_names(source: Path) -> Mapping[str, Path]:
    """The files of a package by the dotted names of their modules, in the order of their paths."""
    names = {}
    for path in sorted(source.rglob("*.py")):
        parts = (source.name, *path.relative_to(source).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def storey_of(room: str) -> int | None:
    """The number of a room's storey, from 1; None for a room that has none."""
    top = room.partition(".")[0]
    return next((number for number, names in enumerate(STOREYS.values(), 1) if top in names), None)


def never_of(room: str) -> frozenset[str]:
    """What a room never knows."""
    return NEVER.get(room.partition(".")[0], frozenset())


def named(node: ast.expr, *names: str) -> bool:
    """Whether an expression is one of these names, or an attribute with one of them."""
    return (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in names)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _private_names(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """The private names that a module gives: at its top, in its classes, and as attributes of its own objects."""
    names = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls"), ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return frozenset(filter(_is_private, names))


def _private_uses(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int]]:
    """The private names that a module takes from objects that are not the method's own, and those that it imports; with their lines."""
    for node in nodes:
        match node:
            case ast.Attribute(attr=name, value=value) if _is_private(name) and not named(value, "self", "cls"):
                yield name, node.lineno
            case ast.ImportFrom(names=aliases):
                yield from ((alias.name, node.lineno) for alias in aliases if _is_private(alias.name))


def _system_uses(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int]]:
    """What a module does that is the system's room's, with the lines."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="fcntl"), attr="flock" | "lockf"):
                yield LOCK, node.lineno
            case ast.ImportFrom(module="fcntl" | "filelock") | ast.Import(names=[ast.alias(name="filelock")]):
                yield LOCK, node.lineno
            case ast.Attribute(value=ast.Name(id="os"), attr="rename" | "renames" | "replace"):
                yield MOVE, node.lineno
            case ast.Call(func=ast.Attribute(attr="rename" | "replace", value=value), args=[_], keywords=[]) if not named(value, "os"):
                yield MOVE, node.lineno  # those of pathlib take one argument, those of texts and instants do not
            case ast.Attribute(value=ast.Name(id="shutil"), attr="move"):
                yield MOVE, node.lineno
            case ast.Attribute(value=ast.Name(id="os"), attr="fork" | "forkpty"):
                yield FORK, node.lineno
            case ast.ImportFrom(module="os", names=aliases):
                names = {alias.name for alias in aliases}
                yield from ((MOVE, node.lineno) for _ in names & {"rename", "renames", "replace"})
                yield from ((FORK, node.lineno) for _ in names & {"fork", "forkpty"})
            case ast.Constant(value=str(text)) if text.startswith("/proc/"):
                yield PROC, node.lineno


def _file_uses(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names that a module uses, and that could touch a file, with the lines."""
    parts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.Name) and node.id == "open":
            yield "open", node.lineno
        elif name.startswith("os.") and name.replace(".", "").isidentifier() and node not in parts and name not in PURE_OS:
            yield name, node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((one, node.lineno) for one in imported if one in ("io", "pathlib", "shutil", "subprocess", "tempfile"))
            if isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path"):
                yield f"from {node.module}", node.lineno


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _circle(what: str, graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"circle of {what}: " + " -> ".join(reversed(error.args[1]))]
    return []


def page(house: House) -> str:
    """The picture of the storeys and the table of the rooms, as Markdown, for ``docs/explanation/architecture.md``."""
    width = max(map(len, STOREYS))
    floors = [f"  {number} {storey:{width}} | {'  '.join(names)}" for number, (storey, names) in enumerate(STOREYS.items(), 1)]
    rule = "  " + "-" * (max(map(len, floors)) - 2)
    picture = f"\n{rule}\n".join(reversed(floors))
    rows = [
        f"| {number} {storey} | `{room}` | {_sentence(modules)} |"
        for number, storey in sorted(enumerate(STOREYS, 1), reverse=True)
        for room, modules in house.rooms.items()
        if storey_of(room) == number
    ]
    return "\n".join(["```text", picture, "```", "", "| storey | room | what it is for |", "|---|---|---|", *rows])


def _sentence(modules: Sequence[Module]) -> str:
    front = next((module for module in modules if module.is_package), modules[0])
    return (ast.get_docstring(front.tree) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")


def copied_fixtures(tests: Path) -> Mapping[str, int]:
    """The fixtures that stand in more than one file of a tree of tests word for word, and in how many files each stands."""
    places: dict[str, set[Path]] = defaultdict(set)
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list):
                places[ast.unparse(node)].add(path)
    return {text: len(files) for text, files in places.items() if len(files) > 1}


def _print_rooms(house: House) -> None:
    for number, (storey, _) in enumerate(STOREYS.items(), 1):
        print(f"\n{number} {storey}")
        for room, modules in house.rooms.items():
            if storey_of(room) != number:
                continue
            files, sizes = sum(not module.is_package for module in modules), _sizes(modules)
            print(f"  {room:24} {files:3} files {sizes}  {_sentence(modules)}")
            if house.arrows[room]:
                print(f"  {'':24} -> {', '.join(sorted(house.arrows[room]))}")


def _sizes(modules: Iterable[Module]) -> str:
    modules = list(modules)
    lines, code, prose = (sum(getattr(module, name) for module in modules) for name in ("lines", "code_lines", "docstring_lines"))
    return f"{lines:6} lines ({code} code, {prose} docstrings)"


def main() -> int:
    """Print each room with its sentence, size and arrows; 1 where an arrow runs up, in a circle, or a room is too large."""
    house = House(SOURCE)
    if "--page" in sys.argv:
        print(page(house))
        return 0
    _print_rooms(house)
    tests = SOURCE.parent / "tests"
    exported, copied = house.exported(), copied_fixtures(tests)
    breaches = {
        "arrows up": house.upward(),
        "circles": house.circles(),
        "rooms with too many files": house.crowded(),
        "files that are too long": house.long(),
        "uses of private names": house.private_reaches(),
        f"uses of the system outside {SYSTEM_ROOM}": [*house.system_reaches(), *house.impure()],
        "class names that stand for two things": house.shared_class_names(),
    }
    print(f"\n{len(house.rooms)} rooms, {len(house.modules)} files, {_sizes(house.modules.values())}")
    print(f"tests: {_sizes(House(tests).modules.values())}; {len(copied)} fixtures copied, {sum(copied.values())} times in all")
    print(f"{sum(map(len, exported.values()))} names exported by {len(exported)} doors")
    for what, found in breaches.items():
        print(f"{len(found)} {what}", *found, sep="\n  ")
    return int(any(breaches.values()))


if __name__ == "__main__":
    sys.exit(main())
