"""This process without git's local variables, such as the ``GIT_DIR`` of a hook, while somebody works in a world.

A program that is started in a workspace inherits them, and its git would work on the repository of the hook. Blocks may overlap, and end in
any order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, Literal, get_args

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.environment import local_variables

GitVariables = Literal["drop", "keep"]

_changing: Final = threading.Lock()
_blocks: Final[list[dict[str, str]]] = []
"""What each block that has not ended took out of the environment, in the order in which they began."""


@contextmanager
def withheld(mode: GitVariables = "drop") -> Iterator[Collection[str]]:
    """A block in which ``os.environ`` has none of git's local variables; afterwards it has those that it had.

    Args:
        mode: ``drop``, or ``keep`` to leave them where they are.

    Returns:
        The names of those that were there when the block began.

    Raises:
        InvalidInput: ``mode`` is none of the two.
    """
    if mode not in get_args(GitVariables):
        raise InvalidInput(
            f"git_variables={mode!r} is not known.",
            why="It decides whether programs inherit variables that point git to another repository.",
            fix=f"Use one of {', '.join(get_args(GitVariables))}.",
        )
    if mode == "keep":
        yield local_variables(os.environ)
        return
    with _changing:
        taken = {name: os.environ.pop(name) for name in local_variables(os.environ)}
        _blocks.append(taken)
    try:
        yield [*taken]
    finally:
        with _changing:
            at = next(number for number, block in enumerate(_blocks) if block is taken)
            del _blocks[at]
            # A block that began later, and is still at work, gives them back: what the first one found wins.
            (os.environ if at == len(_blocks) else _blocks[at]).update(taken)
