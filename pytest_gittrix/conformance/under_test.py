"""The session system under test: loaded by its name, and wrapped so that tests can open sandboxes of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.errors import Advice, InvalidInput
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.driver import sandbox_of
from pytest_gittrix.testing.systems.protocol import Engine, SessionSystem, check_system

_NAME: Final = re.compile(r"\w+(\.\w+)*:\w+(\.\w+)*")
_WHY: Final = "The clauses are put to the system that this names."
_OPT_OUT: Final = Advice(
    "Without it the clauses are put to the fixture gittrix_system, by default to the reference engine.",
    "Leave SYSTEM out to try the engine of this package.",
)
COMMAND_VARIABLE: Final = "GITTRIX_CONFORM"
"""Set where ``gittrix conform`` runs the clauses: a refusal of the system is worded for who typed that command."""


class SystemUnderTest:
    """A session system that is also a function: it takes the arguments of ``World.open``, and gives a context manager of a sandbox.

    Args:
        system: the system; its other public attributes are attributes of this object too.
        sandbox: opens a sandbox; by default a ``Stage`` on the system.

    Attributes:
        name: the system's name.
        capabilities: the system's capabilities.
    """

    def __init__(self, system: SessionSystem, sandbox: Callable[..., AbstractContextManager[Any]] | None = None) -> None:
        self.name = system.name
        self.capabilities = system.capabilities
        self._system = system
        self._sandbox = sandbox or sandbox_of(system)

    def __repr__(self) -> str:
        return f"<SystemUnderTest {self._system!r}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._system, name)

    def __call__(self, **arguments: Any) -> AbstractContextManager[Any]:
        """Open a sandbox of the system."""
        return self._sandbox(**arguments)

    def open(self, place: Place) -> Engine:
        """Open an engine of the system on a place."""
        return self._system.open(place)


def load_system(text: str, origin: str) -> SessionSystem:
    """Load a system by its name.

    Args:
        text: ``package.module:attribute``. The attribute is a system, or a callable without arguments that gives one.
        origin: where the name was given, for the error message.

    Raises:
        InvalidInput: the name is malformed, the module cannot be imported or has no such attribute, or the attribute is no session system
            and gives none.
    """
    if not _NAME.fullmatch(text):
        raise InvalidInput(
            Advice(f"{text!r} is not the name of a session system (from {origin}).", f"{text!r} is not the name of a session system."),
            why=_WHY,
            fix="Write package.module:attribute, such as acme.testing:system.",
            opt_out=_OPT_OUT,
        )
    module_name, _, path = text.partition(":")
    try:
        found = reduce(getattr, path.split("."), _imported(module_name, text, origin))
    except AttributeError:
        raise InvalidInput(
            Advice(f"{module_name} has no {path!r} (from {origin}).", f"{module_name} has no {path!r}, which SYSTEM names."),
            why=_WHY,
            fix="Name a session system of that module, or a function or class that gives one.",
            opt_out=_OPT_OUT,
        ) from None
    return _checked(found, text, origin)


def source_of(text: str, root: Path) -> str:
    """The file of the module in the name of a loaded system, relative to a directory; empty if it is not below it."""
    file = getattr(sys.modules.get(text.partition(":")[0]), "__file__", None)
    path = Path(file).resolve() if file else root.parent
    return path.relative_to(root.resolve()).as_posix() if path.is_relative_to(root.resolve()) else ""


def _imported(name: str, text: str, origin: str) -> Any:
    try:
        return import_module(name)
    except Exception as problem:
        top = name.partition(".")[0]
        missing = isinstance(problem, ModuleNotFoundError) and problem.name in (name, top)
        fact = f"{name} cannot be imported: {type(problem).__name__}: {problem}"
        install = Advice(
            "Install it, or run `python -m pytest`, which looks in the current directory too.",
            "Install it, or put its directory on PYTHONPATH.",
        )
        raise InvalidInput(
            Advice(f"{fact} ({text!r} is from {origin}).", f"There is no module {name!r}, which SYSTEM names." if missing else f"{fact}."),
            why=_WHY,
            fix=install if missing else "Mend the module.",
            opt_out=_OPT_OUT,
        ) from problem


def _checked(found: Any, text: str, origin: str) -> SessionSystem:
    is_one = not isinstance(found, type) and all(hasattr(found, name) for name in ("name", "capabilities", "open"))
    try:
        return check_system(found if is_one or not callable(found) else found())
    except Exception as problem:
        fact, why, fix = (getattr(problem, part, "") for part in ("fact", "why", "fix"))
        fact = fact or f"{type(problem).__name__}: {problem}"
        raise InvalidInput(
            Advice(f"{text!r} gives no session system (from {origin}): {fact}", f"{text!r} gives no session system: {fact}"),
            why=why or _WHY,
            fix=fix or "Name a session system, or a callable that gives one when it is called without arguments.",
            opt_out=_OPT_OUT,
        ) from problem
