"""A throwaway machine for programs that cheat: whatever they write, no file outside changes.

All file systems are read-only there but private ones in memory, on the temporary directories and on home, which go with it. It has its own
processes, shared memory and network. Only root can have one. This module also runs there by itself: it lays it out, and becomes the
program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_gittrix.os_level import linux

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
_NAMESPACES = ("--mount", "--pid", "--fork", "--ipc", "--net", "--kill-child", "--mount-proc")
_PRIVATE = ("/dev/shm", "/tmp", "/var/tmp", "/run", str(Path.home()))
_KEEP = "THROWAWAY_KEEP"
"""The variable with one more directory that is there."""
_TAKEN = (16, 17, 21, 22, 25, 27)
"""The powers to load modules, to use raw devices, to mount, to restart the machine, to set its clock and to make devices."""


def in_throwaway(
    argv: Sequence[str], *, stdin: bytes = b"", ordinary: bool = False, first: str = "", keep: str = "", timeout: float = 600
) -> subprocess.CompletedProcess[bytes]:
    """Run a program in a throwaway machine, with an empty directory as its own.

    Args:
        argv: the program.
        stdin: what it reads.
        ordinary: as an ordinary user, and not as root.
        first: a directory in which programs are looked for before the others.
        keep: one more directory that is there, read-only, also where it is below home or a temporary directory.
        timeout: seconds after which it is ended.
    """
    own = [sys.executable, "-P", str(Path(__file__).resolve()), "ordinary" if ordinary else "root", *argv]
    path = os.pathsep.join(filter(None, (first, os.environ["PATH"])))
    variables = {"PATH": path, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1", _KEEP: keep}
    return subprocess.run(["unshare", *_NAMESPACES, *own], input=stdin, capture_output=True, env=variables, timeout=timeout, check=False)


def _lay_out() -> None:
    """Make everything read-only but the private places, in which the project and Python stay where they are."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.set_mount("/", linux.READ_ONLY, below=True)
    linux.mount("tmpfs", "/dev/shm", "tmpfs", 0)
    kept = [os.path.realpath(one) for one in (ROOT, sys.prefix, sys.base_prefix, os.environ.pop(_KEEP, "")) if one]
    kept = [one for one in dict.fromkeys(kept) if any(f"{one}/".startswith(f"{private}/") for private in _PRIVATE[1:])]
    kept = [one for one in kept if not any(one != other and one.startswith(f"{other}/") for other in kept)]
    for number, place in enumerate(kept):
        os.mkdir(f"/dev/shm/{number}")
        linux.mount(place, f"/dev/shm/{number}", None, linux.MS_BIND | linux.MS_REC)
    for private in _PRIVATE[1:]:
        if os.path.isdir(private) and not os.path.islink(private):
            linux.mount("tmpfs", private, "tmpfs", 0)
            os.chmod(private, 0o1777)
    os.chmod("/dev/shm", 0o1777)
    for number, place in enumerate(kept):
        os.makedirs(place, exist_ok=True)
        linux.mount(f"/dev/shm/{number}", place, None, linux.MS_MOVE)
        os.rmdir(f"/dev/shm/{number}")
    # The kernel's own settings are those of every machine on it.
    linux.mount("/proc/sys", "/proc/sys", None, linux.MS_BIND)
    linux.set_mount("/proc/sys", linux.READ_ONLY, below=True)


def main() -> None:
    """Lay out the machine that this process is in, and become the program."""
    who, *argv = sys.argv[1:]
    _lay_out()
    for power in _TAKEN:
        linux.libc.prctl(24, power, 0, 0, 0)  # PR_CAPBSET_DROP: the next program does not have it
    home = "/tmp/own"
    os.mkdir(home)
    os.chdir(home)
    os.environ["HOME"] = home
    if who == "ordinary":
        os.chown(home, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main()
