"""What Inspect AI loads when it looks for extensions (entry point group ``inspect_ai``): the name of the sandbox, and nothing else.

Inspect loads every entry point at each start, so the provider itself is loaded only when its class is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inspect_ai.util import sandboxenv

if TYPE_CHECKING:
    from pytest_gittrix.integrations.inspect_provider import GittrixSandbox


@sandboxenv(name="gittrix")
def gittrix() -> Any:
    """The class of the sandbox."""
    from pytest_gittrix.integrations.inspect_provider import GittrixSandbox

    return GittrixSandbox


def provider() -> type[GittrixSandbox]:
    """The same class, for programs that use it without its name."""
    from pytest_gittrix.integrations.inspect_provider import GittrixSandbox

    return GittrixSandbox
