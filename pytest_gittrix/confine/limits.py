"""Limits of what a confined program may use: processes, memory, disk and processor time. ``meter`` enforces them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from pytest_gittrix.errors import Advice, CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.proc import lists_children

Limit = Literal["processes", "memory", "disk", "cpu"]
"""The name of a limit that a program passed."""

_UNITS: Final = {"B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS_OF_SIZES: Final = _UNITS | {f"{unit}B": factor for unit, factor in _UNITS.items() if unit != "B"}


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What a confined program may use, together with everything it starts. A program that passes one is ended with all of that.

    Attributes:
        processes: most processes and threads at a time.
        memory: most bytes of the machine's memory at a time.
        disk: most bytes on disk in the directories that it may write (workspace, home, temporary files), with older files.
        cpu_seconds: most seconds of processor time.

    None is no limit.

    Raises:
        InvalidInput: a value is not a whole number from 1, or ``cpu_seconds`` no number above 0.
    """

    processes: int | None = None
    memory: int | None = None
    disk: int | None = None
    cpu_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            seconds = name == "cpu_seconds" and isinstance(value, float) and math.isfinite(value)
            if not (whole or seconds) or value <= 0:
                raise _no_limit(f"{name}={value!r}")

    def given(self) -> dict[str, Any]:
        """The limits that there are, by name."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}

    def __str__(self) -> str:
        return " ".join(f"{name}={_size_text(value) if _READ[name] is size_bytes else value}" for name, value in self.given().items())

    def or_else(self, others: ResourceLimits | None) -> ResourceLimits:
        """These, and those of others that these do not name."""
        return self if others is None else ResourceLimits(**others.given() | self.given())


def size_bytes(text: object) -> int:
    """Read a size as ``10GB`` or ``10G``: a whole number with ``B``, ``KB``, ``MB``, ``GB`` or ``TB`` (powers of ten).

    Raises:
        ValueError: it is written otherwise.
    """
    name = text.lstrip("0123456789") if isinstance(text, str) else ""
    number = text[: len(text) - len(name)] if isinstance(text, str) else ""
    if not number or len(number) > 15 or name not in _UNITS_OF_SIZES:
        raise ValueError(f"{text!r} is not a size: write it like 10GB, with one of B, KB, MB, GB, TB")
    return int(number) * _UNITS_OF_SIZES[name]


def check_limits(limits: object) -> ResourceLimits | None:
    """Validate the limits of a program.

    Args:
        limits: ``ResourceLimits``; a mapping of its attributes, in which a size may be a text such as ``2GB``; or texts such as
            ``memory=2GB``.

    Returns:
        The limits; None if there are none.

    Raises:
        InvalidInput: it is none of these, or a name is given twice.
    """
    if limits is None or isinstance(limits, ResourceLimits):
        return limits if limits is not None and limits.given() else None
    if isinstance(limits, Mapping):
        found = {name: _read(name, value) for name, value in limits.items()}
        return ResourceLimits(**found) if found else None
    if not isinstance(limits, Iterable):
        raise _no_limit(repr(limits))
    named: dict[str, str] = {}
    for text in [limits] if isinstance(limits, str) else limits:
        name, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals:
            raise _no_limit(repr(text))
        if name in named:
            raise InvalidInput(f"The limit {name} is given twice.", why="Only one of them could hold.", fix="Give it once.")
        named[name] = value
    return check_limits(named)


def require_limits(level: str, why: str) -> None:
    """See that a level can keep to limits. Raises CapabilityMissing if it cannot."""
    if level == "off":
        reason = f"level off keeps no program to them. {why}".strip()
    elif not lists_children():
        reason = "this kernel does not list the children of processes (CONFIG_PROC_CHILDREN)."
    else:
        return
    raise CapabilityMissing(
        f"Limits are not available here: {reason}",
        why="The program would use more than was asked for.",
        fix=Advice(
            "Use confine='guard' or 'jail' on a machine that has them.", "Use --confine guard or --confine jail on a machine that has them."
        ),
        opt_out=Advice("Leave limits= out.", "Leave --limit out."),
    )


_READ: Final[Mapping[object, Callable[[str], Any]]] = {"processes": int, "memory": size_bytes, "disk": size_bytes, "cpu_seconds": float}


def _read(name: object, value: object) -> Any:
    try:
        read = _READ[name]
        return read(value) if isinstance(value, str) else value
    except (KeyError, ValueError) as problem:
        raise _no_limit(f"{name}={value!r}") from problem


def _size_text(size: int) -> str:
    unit = next((name for name in ("TB", "GB", "MB", "KB") if size % _UNITS_OF_SIZES[name] == 0), "B")
    return f"{size // _UNITS_OF_SIZES[unit]}{unit}"


def _no_limit(what: str) -> InvalidInput:
    return InvalidInput(
        f"{what} is no limit of a confined program.",
        why="It decides what the program may use.",
        fix="Use processes=200, memory=2GB, disk=5GB, cpu_seconds=600: whole numbers from 1, sizes also as texts with KB, MB, GB or TB.",
    )
