"""Every verb of the command line as a function of its options, with its parser; run by the terminal and by the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.commands.output import CommandResult as CommandResult

__getattr__ = door(__name__, {"pytest_gittrix.commands.output": ("CommandResult",)})
