"""Lazy doors: a package whose public names are loaded from their modules when they are first used.

A door keeps the start of a program cheap. The supervisor of an agent and the launcher of confined programs run without site-packages, so a
door that loaded what it leads to would end every start of an agent. ``dir()`` of a door lists its names, so that help and completion show
them, but not to the libraries that read every attribute that a module lists: those would load them all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

SWEEPS: Final = frozenset({"_pytest", "pluggy", "freezegun", "time_machine"})
"""The libraries that read every attribute of every module, by the packages that call ``dir()``."""


def door(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package that leads to other modules.

    Args:
        package: the package's own name, ``__name__``.
        modules: the names that each module gives, by the module's name.

    Returns:
        The function, to be assigned at the package's module level. The package also gets a ``__dir__``.
    """
    module = sys.modules[package]
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    def listed() -> list[str]:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return sorted(vars(module)) if caller.partition(".")[0] in SWEEPS else sorted({*vars(module), *homes})

    vars(module)["__dir__"] = listed
    return load
