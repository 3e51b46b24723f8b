"""Loads what extras install, with an error that says how to install what is missing or does not run on this Python.

Each extra is for one part of the package, and only that part loads what the extra installs: through ``required``, or in a ``with
needs(...)`` block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from pytest_gittrix.errors import ExtraMissing, InvalidInput


@dataclass(frozen=True, slots=True)
class Extra:
    """What one extra is for.

    Attributes:
        packages: the packages that it installs, as they are imported.
        called: the part of the package that needs them, for messages.
        oldest: the oldest Python that they run on.
        opt_out: how to do without.
    """

    packages: tuple[str, ...]
    called: str
    oldest: tuple[int, int] = (3, 11)
    opt_out: str = ""


EXTRAS: Final[Mapping[str, Extra]] = {
    "xdist": Extra(("xdist",), "a run in several processes", opt_out="Leave --workers out, to use one process."),
    "forge": Extra(("httpx",), "the client of a forge"),
    "dask": Extra(("distributed",), "the executor dask", opt_out="Leave --executor out, to use processes of this machine."),
    "serve": Extra(("fastapi", "uvicorn"), "the daemon", opt_out="Commands such as gittrix session do the same without a daemon."),
    "mcp": Extra(("mcp",), "the MCP server"),
    "acp": Extra(("acp",), "the client of the Agent Client Protocol"),
    "inspect": Extra(("inspect_ai",), "the Inspect AI sandbox"),
    "pydantic-ai": Extra(("pydantic_ai",), "the pydantic-ai workspace"),
    "deepagents": Extra(("deepagents",), "the deepagents backend"),
    "openai-agents": Extra(("agents",), "the OpenAI Agents SDK sandbox"),
    "claude": Extra(("claude_agent_sdk",), "the Claude Agent SDK"),
    "harbor": Extra(("harbor",), "the Harbor environment", oldest=(3, 12)),
}
"""By the name of the extra: ``pip install "pytest-gittrix[NAME]"``. Extras for work on the package itself are left out."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """A block that imports what an extra installs.

    Args:
        extra: a key of ``EXTRAS``.

    Raises:
        ExtraMissing: it is not installed, does not run on this Python, or is not of the version that the extra requires.
        InvalidInput: there is no such extra.
    """
    if reason := missing(extra):
        raise _missing(extra, reason)
    try:
        yield
    except ExtraMissing:
        raise
    except ImportError as error:
        raise _missing(extra, f"It cannot be loaded: {error}.") from error


def required(module: str, extra: str) -> ModuleType:
    """Load a module that an extra installs, by its dotted name; ``needs`` says what is raised."""
    with needs(extra):
        return import_module(module)


def missing(extra: str) -> str:
    """Why a part of the package cannot run here, as a sentence; empty if it can.

    Raises:
        InvalidInput: there is no such extra.
    """
    if extra not in EXTRAS:
        raise InvalidInput(f"There is no extra {extra!r}.", fix=f"There are {', '.join(EXTRAS)}.")
    wanted = EXTRAS[extra]
    if sys.version_info < wanted.oldest:
        return f"{wanted.packages[0]} needs Python {_dotted(wanted.oldest)} or newer; this is {_dotted(sys.version_info[:2])}."
    absent = next((package for package in wanted.packages if _is_absent(package)), None)
    return "" if absent is None else f"The package {absent} is not installed."


def _is_absent(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # not even the namespace is there that it belongs to
        return True


def _missing(extra: str, reason: str) -> ExtraMissing:
    wanted = EXTRAS[extra]
    return ExtraMissing(
        f"{wanted.called[0].upper()}{wanted.called[1:]} is not available here. {reason}",
        why=f"It is the extra {extra!r}; only users of that part have to install it.",
        fix=f"Install it: pip install 'pytest-gittrix[{extra}]', or in a clone: pip install '.[{extra}]'",
        opt_out=wanted.opt_out,
        extra=extra,
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
