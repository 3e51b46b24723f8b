"""Keeps from the code under test what it could learn of hidden tests besides the calls: their files, and the names of their parameters.

It runs with nothing of the package: ``verifier_program`` is given its text. Sources: landlock(7) and ``linux/landlock.h``.
"""

from __future__ import annotations

import _posixsubprocess
import base64
import ctypes
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_OLDEST_ABI, _IOCTL_ABI = 3, 5
"""An older Landlock lets files be cut short; a newer one knows of commands to devices, too."""
_RIGHTS, _IOCTL_DEV = (1 << 15) - 1, 1 << 15
_OF_FILES = 1 | 2 | 4 | 1 << 14 | _IOCTL_DEV  # to execute, write, read and cut short
_CWD, _ENVIRONMENT, _PREEXEC = 4, 5, 21
"""Which arguments of ``fork_exec`` are the directory and the environment of the new process, and what is called in it."""
_USUAL = "bin dev etc lib lib32 lib64 libx32 opt proc run sbin srv sys usr var"
"""What of the root directory programs use; under a guard it cannot be listed."""
_BY_OTHER_CALLS = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty"}


def write_hidden_files(request: Mapping[str, Any], home: str) -> tuple[str, str, str]:
    """Write the hidden files of a request beside a new home directory for programs; give their directory, the test and its settings."""
    os.environ["HOME"] = os.path.join(home, "home")
    os.mkdir(os.environ["HOME"])
    directory = os.path.join(home, f"tests-{request['answer'][-8:]}")
    os.mkdir(directory)
    test, settings = os.path.join(directory, request["name"]), os.path.join(directory, "pytest.ini")
    Path(settings).write_text("[pytest]\n", encoding="ascii")
    for path, data in {**request["support"], request["name"]: base64.b64encode(request["test"].encode("utf-8"))}.items():
        file = Path(directory, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))
    return directory, test, settings


class Secrecy:
    """Keeps a directory from all programs that this process starts.

    They can neither read nor change what is in it, nor look into this process, not even as root. What this process itself may do stays.

    Args:
        directory: the directory.
        may: whether a program may all the same, given its arguments, directory and environment; by default none may.

    Attributes:
        kept: whether that is so: the kernel can do it, and no program was started in a way that does it not.
    """

    def __init__(self, directory: str, may: Callable[[Any, Any, Any], bool] = lambda *_: False) -> None:
        self._ruleset = _ruleset_without(os.path.realpath(directory))
        self.kept = self._ruleset is not None
        if self.kept:
            fork_exec = _posixsubprocess.fork_exec

            def kept_from(*given: Any) -> int:
                arguments = [*given]
                if not may(given[0], given[_CWD], given[_ENVIRONMENT]):
                    arguments[_PREEXEC] = self._behind_it(arguments[_PREEXEC])
                return fork_exec(*arguments)

            changed: Any = subprocess
            _posixsubprocess.fork_exec = changed._fork_exec = kept_from
            changed._USE_POSIX_SPAWN = False
        sys.addaudithook(self._watch)

    def _behind_it(self, then: Callable[[], object] | None) -> Callable[[], None]:
        def prepare() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, self._ruleset, 0):
                raise OSError(ctypes.get_errno(), "the program could not be kept from the hidden files")
            if then is not None:
                then()

        return prepare

    def _watch(self, event: str, _arguments: object) -> None:
        if event in _BY_OTHER_CALLS:
            self.kept = False


def keep_names() -> None:
    """Have pytest tell no name of a test in the environment or in a path: the names of parameters tell what is expected."""
    import _pytest.runner
    import _pytest.tmpdir

    def tell(_item: Any, when: str | None) -> None:
        os.environ.update({"PYTEST_CURRENT_TEST": f"test ({when})"} if when else {})
        if when is None:
            os.environ.pop("PYTEST_CURRENT_TEST", None)

    runner: Any = _pytest.runner
    places: Any = _pytest.tmpdir
    runner._update_current_test_var = tell
    places._mk_tmp = lambda _request, factory: factory.mktemp("test", numbered=True)


def _ruleset_without(directory: str) -> int | None:
    """A Landlock ruleset that allows everything but a directory; none where the kernel has no Landlock that can."""
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    if abi < _OLDEST_ABI:
        return None
    rights = _RIGHTS | (_IOCTL_DEV if abi >= _IOCTL_ABI else 0)
    handled = struct.pack("=Q", rights)
    ruleset: int = libc.syscall(_CREATE_RULESET, handled, len(handled), 0)
    if ruleset < 0:
        return None
    for path in dict.fromkeys(_others(directory)):
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        is_directory = stat.S_ISDIR(os.fstat(place).st_mode)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights if is_directory else rights & _OF_FILES, place), 0)
        os.close(place)
    return ruleset


def _others(directory: str) -> Iterator[str]:
    """The paths of everything that is not in a directory and not above it, as far as directories above it can be listed."""
    named = [*sys.path, sys.prefix, sys.base_prefix, os.getcwd(), *(f"/{name}" for name in _USUAL.split())]
    named += [os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ]
    above = directory
    while above != "/":
        above = os.path.dirname(above)
        try:
            named += [os.path.join(above, name) for name in os.listdir(above)]
        except OSError:
            continue
    for path in named:
        real = os.path.realpath(path)
        if path and not f"{directory}/".startswith(f"{real}/") and real != "/" and not f"{real}/".startswith(f"{directory}/"):
            yield real
