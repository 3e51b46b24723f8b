"""A ``git`` first on PATH, which calls the test at chosen commands, for systems in other processes and languages.

The shim is a small shell script. At a watched command it writes one line to a pipe and waits for the answer, before or after it has run the
real git with the same arguments, input and output. At any other command it becomes the real git at once.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.git.environment import git_binary

Side = Literal["before", "after"]

_STOP: Final = b"stop\n"

# Options of git itself precede the command; some take the next word. A shim opens its own pipe for reading before it asks, so that an
# answer neither blocks nor is lost, and fails with ENXIO when the shim was killed.
_SCRIPT: Final = """\
#!/bin/sh
here={here}
git={git}
command= skip=
for word; do
    if [ -n "$skip" ]; then skip=; continue; fi
    case $word in
        -C | -c | --git-dir | --work-tree | --namespace | --config-env) skip=yes ;;
        -*) ;;
        *) command=$word; break ;;
    esac
done
case $command in *[!a-z0-9-]*) command= ;; esac

ask() {{
    [ -e "$here/watched/$1.$command" ] || return 0
    answer=$here/answer.$$
    mkfifo "$answer" && exec 3<>"$answer" || return 0
    echo "$1 $command $$" >"$here/ask"
    read -r _ <&3
    exec 3>&-
    rm -f "$answer"
}}

ask before
[ -e "$here/watched/after.$command" ] || exec "$git" "$@"
"$git" "$@"
status=$?
ask after
exit $status
"""


class GitShim:
    """The script, and the thread that answers it.

    Args:
        directory: where to put the script; created here.
        act: called with ``before`` or ``after`` and the git command, on the shim's own thread, while that git waits. What it raises is
            appended to ``errors``, and git goes on.

    Raises:
        CapabilityMissing: the platform has no named pipes.
    """

    def __init__(self, directory: Path, act: Callable[[Side, str], None]) -> None:
        if not hasattr(os, "mkfifo"):
            raise CapabilityMissing(
                "A git shim needs named pipes, which this platform does not have.",
                why="The shim waits on one while the test acts.",
                fix="Use Linux, macOS or WSL; points of the engine itself work everywhere.",
            )
        self.errors: list[BaseException] = []
        self._directory = directory
        self._act = act
        self._watched = directory / "watched"
        self._bin = directory / "bin"
        for made in (self._watched, self._bin):
            made.mkdir(parents=True)
        script = self._bin / "git"
        script.write_text(_SCRIPT.format(here=shlex.quote(str(directory)), git=shlex.quote(git_binary())), encoding="utf-8")
        script.chmod(0o755)
        os.mkfifo(directory / "ask")
        # Open for writing too, so that reading waits for the next shim instead of ending with the last.
        self._pipe = os.open(directory / "ask", os.O_RDWR | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="gittrix-git-shim", daemon=True)
        self._thread.start()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return ``base`` with the shim first on PATH."""
        return {**base, "PATH": os.pathsep.join([str(self._bin), base.get("PATH", os.defpath)])}

    def watch(self, side: Side, command: str) -> None:
        """Call ``act`` before or after each ``git <command>`` from now on.

        Raises:
            InvalidInput: no git command has such a name.
        """
        if not command.replace("-", "").isalnum() or not command.isascii() or not command.islower():
            raise InvalidInput(
                f"{command!r} is neither a point of the engine nor a git command.",
                why="It would never be reached.",
                fix='Name a point such as "promote:head-read", or a command as git is called with it, such as "update-ref".',
            )
        (self._watched / f"{side}.{command}").touch()

    def forget(self, side: Side, command: str) -> None:
        """Stop watching a command."""
        (self._watched / f"{side}.{command}").unlink(missing_ok=True)

    def close(self) -> None:
        """Let every waiting git go on, and end the thread."""
        for path in self._watched.iterdir():
            path.unlink()
        os.write(self._pipe, _STOP)
        self._thread.join()
        os.close(self._pipe)
        (self._directory / "ask").unlink()

    def _serve(self) -> None:
        pending = b""
        while True:
            pending += os.read(self._pipe, 4096)
            while b"\n" in pending:
                line, _, pending = pending.partition(b"\n")
                if line + b"\n" == _STOP:
                    return
                self._answer(*line.decode("ascii").split())

    def _answer(self, side: str, command: str, shim: str) -> None:
        try:
            self._act("before" if side == "before" else "after", command)
        except BaseException as error:  # noqa: BLE001 - raised again where the test can see it; the git that waits must go on
            self.errors.append(error)
        with suppress(OSError):  # the shim was killed meanwhile
            pipe = os.open(self._directory / f"answer.{shim}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(pipe, b"go\n")
            os.close(pipe)
