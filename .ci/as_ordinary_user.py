"""The whole check where root started it: an ordinary user sets up and runs the tests, and root runs those before that need root.

The user is the one that CHECK_USER names, or the owner of the clone, if that is not root, or else one that is made for the check.
Where this user cannot work in the clone, its files, committed or not, are copied to where that is possible. Variables are handed on, and
pip's settings with them. The virtualenv is made once, by the user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

NAME = "gittrix-check"
OF_ROOT = ("HOME", "USER", "LOGNAME", "MAIL", "SHELL", "TMPDIR", "PWD", "OLDPWD")
"""Variables that say who root is and where it has its files; so do those that begin with ``XDG_``."""
PIP_SETTINGS = (".config/pip/pip.conf", ".pip/pip.conf")
ROOTS_TESTS = (".venv/bin/pytest", "-m", "needs_root", "-n", "2", "-p", "no:cacheprovider")
MAKE = ("make", "--no-print-directory")


def main() -> int:
    """Run the check; the exit status is that of the first part that failed."""
    root = Path.cwd()
    with ordinary_user(root) as user, tempfile.TemporaryDirectory(prefix="gittrix-check-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        clone = root if may(user, lambda: os.access(root, os.R_OK | os.W_OK | os.X_OK)) else copied(root, place / "clone", user)
        theirs = environment_of(user, place / "home")
        print(f"The tests run as {user.pw_name} in {clone}, and before them those that need root, as root.", flush=True)
        if run([*MAKE, "bytecode"], clone, theirs, user) != 0:
            print(
                "That user cannot set up here, perhaps for want of a Python that others than root may run: all tests run as root.",
                flush=True,
            )
            return run([*MAKE, "test"], root, os.environ)
        # What root leaves in the clone, the user could neither write to nor remove.
        ours = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(place / "hypothesis")}
        as_root = run(ROOTS_TESTS, clone, ours)
        return run([*MAKE, "test"], clone, theirs, user) or as_root


@contextmanager
def ordinary_user(root: Path) -> Iterator[pwd.struct_passwd]:
    """The user to run as, who may be there for the block alone; ``nobody`` where none can be made."""
    users = {user.pw_uid: user for user in pwd.getpwall() if user.pw_uid != 0}
    if "CHECK_USER" in os.environ or root.stat().st_uid in users:
        yield pwd.getpwnam(os.environ["CHECK_USER"]) if "CHECK_USER" in os.environ else users[root.stat().st_uid]
        return
    made = find(NAME) is None and (tried("useradd", "--no-create-home", NAME) or tried("adduser", "-D", "-H", NAME))
    try:
        yield find(NAME) or pwd.getpwnam("nobody")
    finally:
        if made and not tried("userdel", NAME):
            tried("deluser", NAME)


def find(name: str) -> pwd.struct_passwd | None:
    """The user of a name, if there is one."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def tried(*command: str) -> bool:
    """Whether a command is there and ends well."""
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


def may(user: pwd.struct_passwd, question: Callable[[], bool]) -> bool:
    """The answer to a question, asked as a user."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            status = not question()
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def copied(root: Path, clone: Path, user: pwd.struct_passwd) -> Path:
    """Copy a clone with its history and with its files as they are, but for ignored ones; all of it is the user's."""
    shutil.copytree(root / ".git", clone / ".git", symlinks=True)
    listed = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in map(os.fsdecode, subprocess.run(listed, cwd=root, stdout=subprocess.PIPE, check=True).stdout.split(b"\0")):
        if name and os.path.lexists(root / name):  # else it was deleted, and not committed
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, clone / name, follow_symlinks=False)
    for parent, directories, files in os.walk(clone):
        for path in (parent, *(os.path.join(parent, one) for one in (*directories, *files))):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    return clone


def environment_of(user: pwd.struct_passwd, home: Path) -> dict[str, str]:
    """The variables of this process, but for those of root, with a home that has root's settings of pip."""
    for name in PIP_SETTINGS:
        if (Path.home() / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path.home() / name, home / name)
    home.mkdir(exist_ok=True)
    for made in (home, *home.rglob("*")):
        os.chown(made, user.pw_uid, user.pw_gid)
    kept = {name: value for name, value in os.environ.items() if name not in OF_ROOT and not name.startswith("XDG_")}
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(place for place in places if may(user, partial(os.access, place, os.X_OK)))
    return {**kept, "HOME": str(home), "USER": user.pw_name, "LOGNAME": user.pw_name, "PATH": path}


def run(command: Sequence[str], clone: Path, environment: Mapping[str, str], user: pwd.struct_passwd | None = None) -> int:
    """Run a command in the clone, as root or as a user; gives its exit status."""
    return subprocess.run(
        command,
        cwd=clone,
        env=environment,
        check=False,
        user=None if user is None else user.pw_uid,
        group=None if user is None else user.pw_gid,
        extra_groups=None if user is None else os.getgrouplist(user.pw_name, user.pw_gid),
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
