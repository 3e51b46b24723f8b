"""Registers the sandbox with Inspect AI, which loads this module by the entry point group ``inspect_ai``.

Inspect loads every entry point at each start, so the provider itself is loaded only when Inspect needs its class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gittrix.extras import needs

with needs("inspect"):
    from inspect_ai.util import sandboxenv


if TYPE_CHECKING:
    from pytest_gittrix.integrations.inspect.provider import GittrixSandbox


@sandboxenv(name="gittrix")
def gittrix() -> Any:
    """Give Inspect the class of the sandbox."""
    from pytest_gittrix.integrations.inspect.provider import GittrixSandbox

    return GittrixSandbox


def provider() -> type[GittrixSandbox]:
    """The class of the sandbox, for programs that do not look it up by its name."""
    from pytest_gittrix.integrations.inspect.provider import GittrixSandbox

    return GittrixSandbox
