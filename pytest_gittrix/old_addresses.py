"""Old addresses of modules: an import of one gives the module of today, and says once where it is.

``pytest_gittrix`` puts the finder behind all others, so that an address which is in use costs nothing. Type checkers do not see it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Final

MOVED: Final = {
    "adapters.forge_github": ("backends.forge.github", "backends"),
    "adapters.local": ("backends.local", "backends"),
    "adapters.remote": ("backends.remote", "backends"),
    "conformance.capabilities": ("conformance.families.capabilities", "conformance"),
    "conformance.conflict": ("conformance.families.conflict", "conformance"),
    "evals.desk": ("evals.runs.toolbox", "evals"),
    "evals.releases": ("evals.inputs.releases", "evals"),
    "evals.run": ("evals.runs.run", "evals"),
    "evals.store": ("evals.results.store", "evals"),
    "evals.suite": ("evals.inputs.suite", "evals"),
    "evals_pytest.outcome": ("plugin.evals.outcome", "plugin"),
    "fixtures": ("plugin.fixtures", "plugin"),
    "freeze": ("clock.freeze", "clock"),
    "git.hydrate": ("workspaces.multi_repo", "members"),
    "integrations.programs": ("engine.agents.programs", "confine"),
    "integrations.extras": ("extras", "extras"),
    "integrations.inspect_junit": ("integrations.inspect.junit", "integrations.inspect.junit"),
    "integrations.inspect_provider": ("integrations.inspect.provider", "integrations.inspect.provider"),
    "integrations.inspect_registry": ("integrations.inspect.registry", "integrations.inspect.registry"),
    "integrations.inspect_scorer": ("integrations.inspect.scorer", "integrations.inspect.scorer"),
    "harness.agent_kit": ("testing.scenarios.agent_kit", "testing.scenarios"),
    "harness.blackbox": ("testing.schedules.blackbox", "testing.schedules"),
    "harness.chain_kit": ("testing.scenarios.lineage_kit", "testing.scenarios"),
    "harness.crash": ("testing.faults.crash", "testing.faults"),
    "harness.driver": ("testing.systems.driver", "testing.systems"),
    "harness.forge_server": ("testing.repos.forge_server", "testing.repos"),
    "harness.golden": ("testing.scenarios.golden_log", "testing.scenarios"),
    "harness.history": ("testing.repos.history", "testing.repos"),
    "harness.line_machine": ("testing.machines.lineage_machine", "testing.machines"),
    "harness.linearize": ("testing.schedules.linearize", "testing.schedules"),
    "harness.log_check": ("testing.scenarios.log_check", "testing.scenarios"),
    "harness.log_kit": ("testing.scenarios.log_kit", "testing.scenarios"),
    "harness.log_machine": ("testing.machines.log_machine", "testing.machines"),
    "harness.machine": ("testing.machines.session_machine", "testing.machines"),
    "harness.matrices": ("testing.scenarios.matrices", "testing.scenarios"),
    "harness.oracle": ("testing.oracle", "testing"),
    "harness.own_system": ("testing.systems.gittrix_system", "testing.systems"),
    "harness.place": ("testing.repos.place", "testing.repos"),
    "harness.powercut": ("testing.faults.powercut", "testing.faults"),
    "harness.profiles": ("testing.profiles", "testing"),
    "harness.race": ("testing.schedules.race", "testing.schedules"),
    "harness.remote_kit": ("testing.repos.remote_kit", "testing.repos"),
    "harness.schedule": ("testing.schedules.explorer", "testing.schedules"),
    "harness.sequential": ("testing.schedules.sequential", "testing.schedules"),
    "harness.session_in": ("testing.scenarios.session_in", "testing.scenarios"),
    "harness.small_disk": ("testing.faults.small_disks", "testing.faults"),
    "harness.supervisor": ("testing.faults.supervisor", "testing.faults"),
    "harness.system": ("testing.systems.protocol", "testing.systems"),
    "harness.timeline": ("testing.scenarios.timeline", "testing.scenarios"),
    "harness.turn_kit": ("testing.scenarios.turn_kit", "testing.scenarios"),
    "harness.turn_machine": ("testing.machines.turn_machine", "testing.machines"),
    "harness.world_machine": ("testing.machines.machine_base", "testing.machines"),
    "record.life": ("record.state.lifecycle", "members"),
    "record.retention": ("record.state.retention", "members"),
    "session.agent_start": ("engine.agents.start", "engine"),
    "session.confine": ("confine.choose", "confine"),
    "session.ids": ("engine.operations.ids", "engine"),
    "session.info": ("engine.operations.info", "engine"),
    "session.manager": ("engine.engine", "engine"),
    "session.members": ("members.members", "members"),
    "session.orchestrator": ("orchestrator.orchestrator", "orchestrator"),
    "session.stream": ("engine.event_stream", "engine"),
    "views.gastown_files": ("gastown.files", "gastown"),
}
"""For each module that the documentation once taught: where it is now, and the door that its public names are imported from."""

_PACKAGE: Final = "pytest_gittrix"
_GONE: Final = frozenset({"adapters", "harness", "session", "evals_pytest"})


class MovedModules:
    """A finder and loader of modules that have moved, for ``sys.meta_path``; and of the packages that are gone with them."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of a module under its old name; None for every other name."""
        package, _, old = name.partition(".")
        if package != _PACKAGE or (old not in MOVED and old not in _GONE):
            return None
        return ModuleSpec(name, self, is_package=old in _GONE)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module of today, which is the same object under both names."""
        old = spec.name.partition(".")[2]
        if old in _GONE:
            return None
        new, door = MOVED[old]
        warnings.warn(
            f"{spec.name} has moved. Import what you use of it from {_PACKAGE}.{door}; the old address goes with version 1.0.",
            DeprecationWarning,
            stacklevel=2,  # the import system's own frames are passed over
        )
        module = import_module(f"{_PACKAGE}.{new}")
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back the specification of its new name: it was run under that one."""
        spec = module.__spec__
        if spec is not None and spec.name in self._specs:
            module.__spec__ = self._specs.pop(spec.name)

    def get_code(self, name: str) -> CodeType | None:
        """The code of the module of today, for ``python -m`` with the old name."""
        new = import_module(f"{_PACKAGE}.{MOVED[name.partition('.')[2]][0]}")
        loader = new.__spec__.loader if new.__spec__ is not None else None
        return loader.get_code(new.__name__) if loader is not None and hasattr(loader, "get_code") else None


def install() -> None:
    """Have old addresses found, after everything else was asked."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
