"""Taking a lock that other programs take too: made, waited for, and taken from an owner only by who knows that it is dead.

It must not know what is locked, nor how the lock is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pytest_gittrix.os_level.files import read_text

_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.02


def take(
    lock: str,
    make: Callable[[], None],
    *,
    wait: float,
    settle: Callable[[str], bool] | None,
    busy: Callable[[], object],
    refusal: Callable[[], Exception],
) -> None:
    """Make a lock file, as soon as nobody else has it.

    Args:
        lock: the file.
        make: makes it; raises FileExistsError while it is there.
        wait: seconds to wait for another holder.
        settle: asked, with the contents of a lock that is in the way, to take away what its owner left if that is known to be dead;
            says whether it did.
        busy: called between tries; passes the point where a test's scheduler can let the holder go on.
        refusal: the error for a holder that did not let go; raised.
    """
    deadline, pause = time.monotonic() + wait, _FIRST_PAUSE
    while True:
        try:
            return make()
        except FileExistsError:
            held = read_text(lock)
        if held is None or (settle is not None and settle(held)):
            continue
        busy()
        if time.monotonic() > deadline:
            raise refusal()
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
