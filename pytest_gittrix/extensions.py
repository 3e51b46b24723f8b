"""What is chosen by a name: ours, and that of other packages, which register theirs by the hooks of ``Hooks``.

A registration is the address of an object, so nothing is loaded before its name is used. The entry points of other packages are scanned
only when a name is not one of ours, or when a list of all names is asked for.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gittrix.errors import CapabilityMissing, GittrixError, InvalidInput, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP: Final = "gittrix"
"""The group of entry points by which a package names the module that has its hooks."""

_HEADING: Final = re.compile(rb"\[\s*gittrix\s*\]")


class Extension(NamedTuple):
    """One registration.

    Attributes:
        address: the object, as ``package.module`` or ``package.module:attribute``.
        what: what it is for, in a line for lists.
    """

    address: str
    what: str = ""

    def load(self) -> Any:
        """Import the object.

        Raises:
            CapabilityMissing: it cannot be imported.
        """
        module, _, attribute = self.address.partition(":")
        with self.at_fault("loaded"):
            loaded = import_module(module)
            return attrgetter(attribute)(loaded) if attribute else loaded

    @contextmanager
    def at_fault(self, used: str = "used") -> Iterator[None]:
        """A block in which an error that is none of ours is the extension's fault.

        Args:
            used: what the block does with it, for the message.

        Raises:
            CapabilityMissing: the block raised such an error.
        """
        try:
            yield
        except GittrixError:
            raise
        except Exception as error:
            raise CapabilityMissing(
                f"The extension {self.address} cannot be {used}: {error}.",
                why="A package registered it under the name that was used.",
                fix="Update that package, or remove it.",
            ) from error


Registered = Mapping[str, Extension]


class Hooks:
    """The hooks of a package that extends this one. Each is a function of the module that its entry point names."""

    def gittrix_views(self) -> Registered:  # type: ignore[empty-body]
        """Return views by name: modules with ``record(events)``, and ``state_of(state)`` or ``state_in(events)``."""

    def gittrix_workspaces(self) -> Registered:  # type: ignore[empty-body]
        """Return kinds of workspace by name: functions from the name to the ``Ephemeral`` that makes and opens them."""

    def gittrix_forges(self) -> Registered:  # type: ignore[empty-body]
        """Return forges by name: functions from ``owner/name``, with ``token=`` and perhaps ``base_url=``, to a ``Forge``."""

    def gittrix_commands(self) -> Registered:  # type: ignore[empty-body]
        """Return commands of ``gittrix`` by name: modules with a function of the name, declared by ``@verb``, or ``Group`` of verbs.

        The function is called with the parsed options and returns a ``CommandResult``. A dash in the name is an underscore in the
        function's.
        """

    def gittrix_clauses(self) -> Registered:  # type: ignore[empty-body]
        """Return families of clauses by three letters: modules with a subclass of ``Clauses``. The registration has the family's title."""

    def gittrix_executors(self) -> Registered:  # type: ignore[empty-body]
        """Return executors of eval runs by name: functions from the text after ``NAME:``, or None, to a factory of executors."""

    def gittrix_agents(self) -> Registered:  # type: ignore[empty-body]
        """Return agents of eval runs by name: functions from the text after ``NAME:`` to an ``Agent``."""


_LOCAL: Final = Extension("pytest_gittrix.backends.local:LocalEphemeral")

_CLAUSES: Final = {
    "ISO": ("isolation", "isolation"),
    "OVL": ("overlay", "overlay reads"),
    "PRM": ("promotion", "promotion"),
    "FIL": ("files", "files of all kinds"),
    "CNF": ("conflict", "conflict"),
    "LCK": ("concurrency", "concurrency"),
    "EVC": ("eviction", "eviction"),
    "END": ("ends", "what an end leaves"),
    "DUR": ("durability", "durability"),
    "LOG": ("log", "the log"),
    "TRN": ("turns", "turns"),
    "LIN": ("lineage", "lineages and forks"),
    "LIF": ("lifecycle", "lifecycle of members' sessions"),
    "FIN": ("finalization", "finalization"),
    "RET": ("retention", "retention"),
    "STA": ("status", "status"),
    "IDS": ("identity", "identity"),
    "NAM": ("names", "names and paths"),
    "ERR": ("bad_input", "bad input"),
    "CAP": ("capabilities", "capabilities"),
}

OURS: Final[Mapping[str, Registered]] = {
    "workspaces": dict.fromkeys(("clone", "lazy", "copy", "worktree", "overlay"), _LOCAL),
    "views": {
        "gittrix": Extension("pytest_gittrix.views.gittrix"),
        "gastown": Extension("pytest_gittrix.views.gastown"),
        "pixir": Extension("pytest_gittrix.views.pixir"),
        "orchestrator": Extension("pytest_gittrix.views.orchestrator"),
        "botminter": Extension("pytest_gittrix.views.botminter"),
    },
    "forges": {"github": Extension("pytest_gittrix.backends.forge.github:GitHubForge")},
    "commands": {
        "agent": Extension("pytest_gittrix.cli.acp:agent", "run Claude Code in a session, or watch a scripted agent at work"),
        "eval": Extension("pytest_gittrix.cli.evals:EVAL", "run agents on suites of cases, and compare how they did"),
        "serve": Extension("pytest_gittrix.cli.serve", "run the daemon: sessions over HTTP, until a signal ends it"),
        "conform": Extension("pytest_gittrix.cli.conform", "see which promises a session system keeps"),
        "unfinished": Extension("pytest_gittrix.cli.unfinished", "see what would be lost if a worktree were removed now"),
        "mcp": Extension("pytest_gittrix.cli.mcp", "serve a session to an agent, by the Model Context Protocol"),
        "acp": Extension("pytest_gittrix.cli.acp", "serve sessions to an editor, by the Agent Client Protocol"),
        "world": Extension("pytest_gittrix.commands.verbs.page:WORLD", "the world that a failing test left, as a page"),
        "tape": Extension("pytest_gittrix.commands.verbs.tapes:TAPE", "what agents and their models said, as files"),
        "torture": Extension("pytest_gittrix.cli.torture", "strike any program at each call that changes a file; see what is left"),
    },
    "clauses": {name: Extension(f"pytest_gittrix.conformance.families.{module}", title) for name, (module, title) in _CLAUSES.items()},
    "executors": {
        "local": Extension("pytest_gittrix.evals.runs.executors:on_this_machine"),
        "dask": Extension("pytest_gittrix.evals.runs.executors:dask"),
    },
    "agents": {
        "acp": Extension("pytest_gittrix.evals.runs.agents:AcpProgramAgent.of"),
        "python": Extension("pytest_gittrix.evals.runs.agents:CallableAgent.of"),
    },
}
"""What this package registers, by the kind: the hook ``gittrix_KIND``."""


_NOUNS: Final = {"workspaces": "kind of workspace", "clauses": "family of clauses"}


class Names:
    """The names of a kind, as choices of a command line: one of ours is found without a look at other packages."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __contains__(self, name: object) -> bool:
        return name in OURS[self._kind] or name in registered(self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(registered(self._kind))


def find(kind: str, name: str) -> Any:
    """Load what is registered under a name.

    Args:
        kind: a key of ``OURS``.
        name: the name.

    Raises:
        InvalidInput: nothing is registered under it.
        CapabilityMissing: it cannot be loaded.
    """
    return _registration(kind, name).load()


def made(kind: str, name: str, *arguments: Any, **options: Any) -> Any:
    """Call the function that is registered under a name.

    Args:
        kind: a key of ``OURS``.
        name: the name.
        arguments: what it is called with.
        options: what it is called with by name.

    Raises:
        InvalidInput: nothing is registered under it.
        CapabilityMissing: it cannot be loaded, or fails.
        GittrixError: what it raises.
    """
    registration = _registration(kind, name)
    function = registration.load()
    with registration.at_fault("called"):
        return function(*arguments, **options)


def _registration(kind: str, name: str) -> Extension:
    found = OURS[kind].get(name) or registered(kind).get(name)
    if found is None:
        names = tuple(registered(kind))
        fix = f"{did_you_mean(name, names)}Use one of: {', '.join(names)}."
        raise InvalidInput(f"There is no {_NOUNS.get(kind, kind.removesuffix('s'))} {name!r}.", fix=fix)
    return found


@cache
def registered(kind: str) -> Registered:
    """Everything that is registered of a kind, by name, ours first. A name belongs to the first package that registers it.

    A package whose hooks cannot be loaded, or raise, or return something else, is left out, with a RuntimeWarning.
    """
    if not declared():
        return OURS[kind]
    found: dict[str, Extension] = {}
    for hook in reversed(getattr(hooks(), f"gittrix_{kind}").get_hookimpls()):  # called one by one, so that each fails alone
        try:
            theirs = {_text(name): Extension(*map(_text, extension)) for name, extension in (hook.function() or {}).items()}
        except Exception as problem:  # noqa: BLE001  (a broken package of somebody else's must not take away ours)
            _left_out(hook.plugin_name, problem)
        else:
            found |= {name: extension for name, extension in theirs.items() if name not in found}
    return found


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is no text")


def _left_out(package: str, problem: Exception) -> None:
    warnings.warn(f"What the package of the entry point {package!r} registers is missing: {problem}", RuntimeWarning, stacklevel=4)


@cache
def hooks() -> Any:
    """Return the callers of the hooks of all packages, made once."""
    import pluggy

    class Manager(pluggy.PluginManager):
        def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
            return {} if name.removeprefix("gittrix_") in OURS and callable(getattr(plugin, name, None)) else None

    manager = Manager(GROUP)
    specification = pluggy.HookspecMarker(GROUP)
    for kind in OURS:
        specification(getattr(Hooks, f"gittrix_{kind}"))
    manager.add_hookspecs(Hooks)
    for entry in reversed(declared()):  # the last one is called first
        try:
            manager.register(Extension(entry.value).load(), f"{entry.name}={entry.value}")
        except Exception as problem:  # noqa: BLE001  (a broken package of somebody else's must not take away ours)
            _left_out(entry.name, problem)
    manager.register(_own_hooks(), "pytest-gittrix")
    return manager.hook


@cache
def declared() -> Sequence[EntryPoint]:
    """The entry points of other packages, in alphabetical order. Packages whose entry points cannot be read are left out, with a warning.

    importlib.metadata takes longer to load, and to read the entry points of all packages, than most commands take. So their files are
    searched for the name of the group first. Where packages may be in other places than directories, it is asked.
    """
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    plain = finders == [PathFinder] and not any(path.endswith(".egg") or os.path.isfile(path) for path in sys.path)
    directories = [*_declaring(sys.path)] if plain else []
    if plain and not directories:
        return ()
    from importlib.metadata import Distribution, distributions

    found: list[EntryPoint] = []
    for distribution in map(Distribution.at, directories) if plain else _first_of_a_name(distributions()):
        try:
            found += _of(distribution)
        except Exception as problem:  # noqa: BLE001  (a broken package of somebody else's must not take away ours)
            warnings.warn(f"Entry points of the group {GROUP} are missing: {problem}", RuntimeWarning, stacklevel=2)
    return sorted(found, key=lambda one: one.name)


def _of(distribution: Distribution) -> list[EntryPoint]:
    return [one for one in distribution.entry_points if one.group == GROUP]


def _first_of_a_name(distributions: Iterable[Distribution]) -> Iterator[Distribution]:
    """The distributions that are not hidden by an earlier one of their name."""
    seen = set()
    for distribution in distributions:
        name = re.sub(r"[-_.]+", "_", str(distribution.name)).lower()
        if name not in seen:
            yield distribution
        seen.add(name)


def _declaring(path: Iterable[str]) -> Iterator[str]:
    """The metadata directories of distributions with the group. The first distribution of a name on the path hides the others."""
    seen = set()
    for directory in path:
        try:
            names = os.listdir(directory or ".")
        except OSError:
            continue
        for name in names:
            stem, _, suffix = name.rpartition(".")
            if suffix.lower() not in ("dist-info", "egg-info"):
                continue
            distribution = re.sub(r"[-_.]+", "_", stem.partition("-")[0]).lower()
            metadata = os.path.join(directory, name)
            if distribution not in seen and _HEADING.search(_read(os.path.join(metadata, "entry_points.txt"))):
                yield metadata
            seen.add(distribution)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _own_hooks() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(**{f"gittrix_{kind}": _returning(registrations) for kind, registrations in OURS.items()})


def _returning(registrations: Registered) -> Any:
    def hook() -> Registered:
        return registrations

    return hook
