"""The tools of a session behind the Model Context Protocol, by the official Python SDK (``mcp`` 2).

Version 2 renamed the server class and sends only errors of its own kind to the model, with their text; so what the engine refuses is told
as one of those, by its code and message, and what nobody foresaw is told to nobody. It must not know what a tool does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pytest_gittrix import __version__
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.integrations.extras import required
from pytest_gittrix.mcp.tools import SessionTools

_INSTRUCTIONS = """\
You work in session {session}, in a throw-away workspace of a git repository. Read, write and delete files by these tools, with paths from \
the workspace's root. `diff` shows what you have changed. `commit` commits in the workspace only. When the work is done, call \
`request_promotion` and show the commands that it gives to the person in charge: only they can promote."""


def server(tools: SessionTools) -> Any:
    """An ``MCPServer`` with every tool of a session.

    Args:
        tools: what it offers.

    Raises:
        CapabilityMissing: the SDK is not installed, or is older than version 2.
    """
    server_class = required("mcp.server.mcpserver", "mcp").MCPServer
    made = server_class(
        "gittrix",
        instructions=_INSTRUCTIONS.format(session=tools.session),
        version=__version__,
        log_level="ERROR",
    )
    for tool in tools.tools:
        made.add_tool(_telling(tool), name=tool.__name__, description=tool.__doc__)
    return made


def serve(tools: SessionTools) -> None:
    """Answer on standard input and output until the client goes away. Raises as :func:`server`."""
    server(tools).run("stdio")


def _telling(tool: Callable[..., Any]) -> Callable[..., Any]:
    refused = required("mcp.server.mcpserver.exceptions", "mcp").ToolError

    @wraps(tool)
    def told(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except GittrixError as error:
            raise refused(f"{error.code}: {error}") from error

    return told
