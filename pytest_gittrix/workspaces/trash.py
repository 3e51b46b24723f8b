"""A directory for what is removed: moved there by one rename, and deleted later."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading

from pytest_gittrix.os_level.files import names_in
from pytest_gittrix.os_level.remove_tree import permit_owner, remove_tree


class Trash:
    """A directory for what is removed: moved there by one rename, and deleted later.

    Args:
        directory: on the same file system as the directories to remove.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._again = False
        self._emptying: threading.Thread | None = None

    def discard(self, path: str) -> None:
        """Move a directory to the trash. A directory that is gone already is no error."""
        target = os.path.join(self._directory, secrets.token_hex(8))
        try:
            _move(path, target)
        except FileNotFoundError:
            os.makedirs(self._directory, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                _move(path, target)

    def empty(self) -> list[OSError]:
        """Delete everything in the trash now; what cannot be deleted, such as a mount in it, stays for the next time.

        Returns:
            Why something stays, as ``remove_tree`` says it.
        """
        return [problem for name in names_in(self._directory) for problem in remove_tree(os.path.join(self._directory, name))]

    def empty_soon(self) -> None:
        """Delete everything in the trash on a background thread, also what comes while that is at work."""
        if not names_in(self._directory):
            return
        self._again = True  # no lock: a process that is forked while a thread holds one would wait for ever
        if self._emptying is None or not self._emptying.is_alive():
            self._emptying = threading.Thread(target=self._empty_until_done, name="gittrix-trash", daemon=True)
            self._emptying.start()

    def _empty_until_done(self) -> None:
        while self._again:
            self._again = False
            self.empty()

    def wait(self) -> None:
        """Wait for the background thread to end, if it runs."""
        if self._emptying is None:
            return
        self._emptying.join()
        if self._again:  # somebody called for it just as it ended, or its process was forked
            self._again = False
            self.empty()


def _move(path: str, target: str) -> None:
    try:
        os.rename(path, target)
    except PermissionError:
        # A directory without write permission cannot be moved to another parent; an agent may have removed the permission.
        permit_owner(path)
        os.rename(path, target)
