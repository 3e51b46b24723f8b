"""Loads frameworks, with an error that says how to install one that is missing or does not run on this Python.

Every integration is a separate extra, and only its module loads the framework, through ``required``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from pytest_gittrix.errors import CapabilityMissing, InvalidInput


@dataclass(frozen=True, slots=True)
class Extra:
    """One framework: its package, the name of the integration in error messages, and the oldest Python that it runs on."""

    package: str
    called: str
    oldest: tuple[int, int] = (3, 11)


EXTRAS: Final[Mapping[str, Extra]] = {
    "mcp": Extra("mcp", "the MCP server"),
    "inspect": Extra("inspect_ai", "the Inspect AI sandbox"),
    "mini": Extra("minisweagent", "the mini-swe-agent environment"),
    "pydantic-ai": Extra("pydantic_ai", "the pydantic-ai workspace"),
    "harbor": Extra("harbor", "the Harbor environment", oldest=(3, 12)),
}
"""By the name of the extra: ``pip install "pytest-gittrix[NAME]"``."""


def required(module: str, extra: str) -> ModuleType:
    """Load a module of a framework.

    Args:
        module: the module's dotted name.
        extra: the extra that installs the framework, a key of ``EXTRAS``.

    Raises:
        CapabilityMissing: the framework is not installed, does not run on this Python, or is not of the version that the extra requires.
        InvalidInput: there is no such extra.
    """
    if reason := missing(extra):
        raise _missing(extra, reason)
    try:
        return import_module(module)
    except ImportError as error:
        raise _missing(extra, f"{module} cannot be loaded: {error}.") from error


def missing(extra: str) -> str:
    """Why an integration cannot run here, as a sentence; empty if it can.

    Raises:
        InvalidInput: there is no such extra.
    """
    if extra not in EXTRAS:
        raise InvalidInput(f"There is no extra {extra!r}.", fix=f"There are {', '.join(EXTRAS)}.")
    wanted = EXTRAS[extra]
    if sys.version_info < wanted.oldest:
        return f"{wanted.package} needs Python {_dotted(wanted.oldest)} or newer; this is {_dotted(sys.version_info[:2])}."
    if find_spec(wanted.package) is None:
        return f"The package {wanted.package} is not installed."
    return ""


def _missing(extra: str, reason: str) -> CapabilityMissing:
    return CapabilityMissing(
        f"{EXTRAS[extra].called[0].upper()}{EXTRAS[extra].called[1:]} cannot run here. {reason}",
        why="The frameworks that sessions plug into are extras; nobody has to install those that they do not use.",
        fix=f'Install it: pip install "pytest-gittrix[{extra}]"',
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
