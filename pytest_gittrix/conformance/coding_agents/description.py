"""The description of a coding agent: a few lines of TOML that say how it is started, and how it finds its model.

``{task}`` in the command is the task, quoted for the shell, and ``{url}`` in the command, in variables and in files is the model's address.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from pytest_gittrix.conformance.worktrees.base.description import fill
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.formats.toml_file import TomlTable, read_toml, validated

_TABLE: Final = "agent"


class CodingAgent(TomlTable):
    """A coding agent, as its description tells it. Only ``command`` has to be given.

    Attributes:
        name: what the report calls it; the first word of ``command`` by default.
        command: a line of shell that does a task without a person, with ``{task}``.
        env: further environment variables, in addition to those by which clients of the four protocols find their model.
        files: texts of files in its home, by path, for agents that take the model's address from a file.
        readable: what it may read in addition to the programs of the system, such as the directory in which it is installed.
        timeout: seconds for each run.
    """

    name: str = ""
    command: str = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    readable: list[str] = Field(default_factory=list)
    timeout: float = Field(default=120.0, gt=0, le=3600)

    @field_validator("command")
    @classmethod
    def _has_a_task(cls, value: str) -> str:
        if "{task}" not in value:
            raise ValueError("the command has no {task}")
        return value

    @field_validator("files")
    @classmethod
    def _in_its_home(cls, value: dict[str, str]) -> dict[str, str]:
        for path in value:
            if os.path.isabs(path) or ".." in Path(path).parts:
                raise ValueError(f"{path!r} is no path below the home")
        return value

    @property
    def title(self) -> str:
        """What the report calls it."""
        return self.name or self.command.split()[0]

    def line(self, task: str, url: str) -> str:
        """The line of shell that does a task."""
        return fill(self.command, {"task": task, "url": url})


def read_agent(path: str | os.PathLike[str]) -> CodingAgent:
    """Read a description.

    Args:
        path: a TOML file with the table ``[agent]``.

    Raises:
        InvalidInput: the file cannot be read, or is no description; the message names the line and the keys that there are.
    """
    file = Path(path)
    found, text = read_toml(file)
    table = found.get(_TABLE)
    if not isinstance(table, dict):
        raise InvalidInput(
            f"{file} has no table [agent].",
            why="The description of a coding agent is there.",
            fix='Write [agent] and below it command = "your-agent {task}".',
        )
    return validated(file, CodingAgent, table, text=text, table=(_TABLE,))
