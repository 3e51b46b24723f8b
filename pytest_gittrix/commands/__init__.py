"""The base of every verb of the command line: its declaration, the parser, the engine that it runs on, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.commands.declaration import Group as Group
    from pytest_gittrix.commands.declaration import arg as arg
    from pytest_gittrix.commands.declaration import verb as verb
    from pytest_gittrix.commands.output import CommandResult as CommandResult

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.commands.declaration": ("Group", "arg", "verb"),
        "pytest_gittrix.commands.output": ("CommandResult",),
    },
)
