"""Which of the tools that an agent offers runs a command, reads a file or writes one, by their names and schemas.

Each agent has its own: ``Bash`` with a ``command``, ``exec_command`` with a ``cmd``, ``shell`` with a list of words. A script that asks for
what it wants to happen, and not for a tool by name, runs in all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pytest_gittrix.errors import CapabilityMissing
from pytest_gittrix.model.protocols.values import Call, Request, Tool

_SHELLS: Final = (
    "bash",
    "shell",
    "exec_command",
    "run_shell_command",
    "execute_bash",
    "run_command",
    "terminal",
    "shell_command",
    "execute",
)
_READERS: Final = ("read", "read_file", "view", "cat", "open_file")
_WRITERS: Final = ("write", "write_file", "create_file", "create", "save")
_COMMANDS: Final = ("command", "cmd", "script", "commands")
_PATHS: Final = ("file_path", "filepath", "path", "filename", "absolute_path", "file")
_CONTENTS: Final = ("content", "contents", "file_text", "text", "new_content", "file_content")


def shell_call(request: Request, command: str) -> Call:
    """A call that runs a command in a shell.

    Raises:
        CapabilityMissing: the agent offers no tool for it.
    """
    for tool in _ranked(request, _SHELLS):
        name = _property(tool, _COMMANDS)
        if name is None:
            continue
        words = tool.properties[name].get("type") == "array"
        return Call("", tool.name, {**_fillers(tool, name), name: ["bash", "-lc", command] if words else command})
    raise _missing(request, f"run {command!r}", "a string or list named command, cmd or script")


def read_call(request: Request, path: str) -> Call:
    """A call that reads a file. Raises CapabilityMissing: the agent offers no tool for it, and no shell."""
    for tool in _ranked(request, _READERS, only=True):
        name = _property(tool, _PATHS)
        if name is not None and _property(tool, _CONTENTS) is None:
            return Call("", tool.name, {**_fillers(tool, name), name: path})
    return shell_call(request, f"cat {shlex.quote(path)}")


def write_call(request: Request, path: str, contents: str) -> Call:
    """A call that makes a file, or replaces its contents: by a tool that writes files, or else by a shell.

    Raises:
        CapabilityMissing: the agent offers neither.
    """
    for tool in _ranked(request, _WRITERS):
        where, what = _property(tool, _PATHS), _property(tool, _CONTENTS)
        if where is not None and what is not None and not {"old_string", "old_str", "oldText"} & {*tool.properties}:
            return Call("", tool.name, {**_fillers(tool, where, what), where: path, what: contents})
    return shell_call(request, written_by_shell(path, contents))


def written_by_shell(path: str, contents: str) -> str:
    """A command that makes a file, or replaces its contents."""
    return f"printf %s {shlex.quote(contents)} > {shlex.quote(path)}"


def _ranked(request: Request, names: tuple[str, ...], *, only: bool = False) -> Iterator[Tool]:
    """The tools of an agent, those with a known name first, in the order of the names."""
    by_name = {tool.name.lower(): tool for tool in reversed(request.tools)}
    known = [by_name[name] for name in names if name in by_name]
    yield from known
    if not only:
        yield from (tool for tool in request.tools if tool not in known)


def _property(tool: Tool, names: tuple[str, ...]) -> str | None:
    by_name = {name.lower().replace("-", "_"): name for name in tool.properties}
    return next((by_name[name] for name in names if name in by_name), None)


def _fillers(tool: Tool, *given: str) -> Mapping[str, Any]:
    """Values for the arguments that a tool requires in addition to those that are given."""
    return {name: _filler(tool.properties.get(name, {})) for name in tool.required if name not in given}


def _filler(schema: object) -> Any:
    if not isinstance(schema, Mapping):
        return ""
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if str(kind).lower() in ("integer", "number"):
        return schema.get("minimum", 60_000)
    return {"boolean": False, "array": [], "object": {}}.get(str(kind).lower(), "as the task asks")


def _missing(request: Request, what: str, form: str) -> CapabilityMissing:
    offered = ", ".join(tool.name for tool in request.tools) or "none"
    return CapabilityMissing(
        f"The script is to {what}, and the agent offers no tool that can.",
        why=f"Its tools: {offered}. A tool is known by an argument: {form}.",
        fix="Name the tool and its arguments: call(NAME, ...).",
    )
