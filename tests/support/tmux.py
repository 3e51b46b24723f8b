"""A person at a terminal: tmux, typed to and looked at."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.daemon import wait_until

_SAYS = '"$@"; echo "ended with $?"; exec sleep 600'
"""What a shell runs behind the program: tmux itself does not always know how that ended."""
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@dataclass(frozen=True)
class Tmux:
    """A server of tmux with one window of 100 columns and 30 rows."""

    socket: Path

    @classmethod
    @contextmanager
    def running(cls, socket: Path, argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> Iterator[Tmux]:
        """One that runs a program, for a block, and then shows ``ended with`` and its exit status."""
        tmux = cls(socket)
        variables = [part for name, value in environment.items() for part in ("-e", f"{name}={value}")]
        tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "-c", str(cwd), *variables, "sh", "-c", _SAYS, "sh", *argv)
        try:
            yield tmux
        finally:
            with suppress(subprocess.CalledProcessError):
                tmux("kill-server")

    def __call__(self, *arguments: str) -> str:
        argv = ["tmux", "-S", str(self.socket), *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    @property
    def screen(self) -> str:
        """What is shown, with all that has gone beyond the top; lines that the window wrapped are one."""
        return self("capture-pane", "-p", "-J", "-S", "-")

    def see(self, words: str) -> None:
        """Wait until words are shown."""
        wait_until(lambda: words in self.screen, f"{words!r} on the screen")

    def type(self, *keys: str) -> None:
        """Type keys, by the names that tmux has for them."""
        self("send-keys", *keys)
