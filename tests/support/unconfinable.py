"""Runs commands as on a machine where nothing confines programs: no namespaces, no Landlock, and a bubblewrap that does not work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = """
import errno, os, sys
from pytest_gittrix.os_level.linux import gain_nothing_by_exec
from pytest_gittrix.os_level.seccomp import failing, install

os.environ["PATH"] = sys.argv[1] + os.pathsep + os.environ["PATH"]
gain_nothing_by_exec()
install(failing({"unshare": errno.EPERM, "landlock_create_ruleset": errno.ENOSYS}))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def on_a_machine_without(directory: Path, *command: str) -> list[str]:
    """The command line that runs a command so; ``directory`` is for what it finds first on its search path."""
    directory.mkdir(parents=True, exist_ok=True)
    bwrap = directory / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n", encoding="ascii")
    bwrap.chmod(0o755)
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}", str(directory), *command]
