"""The tools of a session behind the Model Context Protocol, by the official Python SDK (``mcp`` 2).

Version 2 renamed the server class, and sends the text of an error to the model only for its ``ToolError``. So an error of the engine is
raised as a ``ToolError`` with its code and message; the text of any other exception is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pytest_gittrix import __version__
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.extras import required
from pytest_gittrix.mcp.tools import SessionTools

_INSTRUCTIONS = """\
You work in session {session}, in a throw-away workspace of a git repository. Read, write and delete files by these tools, with paths from \
the workspace's root. `diff` shows what you have changed. `commit` commits in the workspace only. When the work is done, call \
`request_promotion` and show the commands that it gives to the person in charge: only they can promote."""


def server(tools: SessionTools) -> Any:
    """Make an ``MCPServer`` with every tool of a session.

    Args:
        tools: the tools.

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
        made.add_tool(_with_tool_errors(tool), name=tool.__name__, description=tool.__doc__)
    return made


def serve(tools: SessionTools) -> None:
    """Serve on standard input and output until the client disconnects. Raises as :func:`server`."""
    server(tools).run("stdio")


def _with_tool_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    tool_error = required("mcp.server.mcpserver.exceptions", "mcp").ToolError

    @wraps(tool)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except GittrixError as error:
            raise tool_error(f"{error.code}: {error}") from error

    return call
