"""A test file put to a result by pytest, in such a way that neither the files of the result nor a line of its code can answer for pytest.

pytest is loaded before anything of the result is, no setting of the result counts, and what pytest found is said under a word that is
gone from the input before the result is loaded. Code under test shares its process with the test, so this withstands what is easy
(``pytest.py``, ``sitecustomize.py``, ``os._exit``, ``pytest.skip``), and not somebody who searches the interpreter's memory.
Must not know what the answer is used for.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.evals.runs.launch import Finished, succeeded

_OPTIONS: Final = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib")

_WITNESS: Final = """\
import json, os, sys, unittest
word, place = sys.stdin.readline().strip(), sys.stdin.readline().strip()
said = os.open(os.path.join(os.environ["HOME"], place), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
checkout = os.getcwd()
write, leave = os.write, sys.exit
import _pytest, pluggy, pytest

GIVEN_UP = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)
TOOLS = tuple(os.path.dirname(os.path.realpath(one.__file__)) + os.sep for one in (_pytest, pluggy, unittest))


class Witness:
    def __init__(self):
        self.passed = self.ended = self.collected = 0
        self.given_up = ""

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        found = call.excinfo
        report = (yield).get_result()
        self.passed += report.when == "call" and report.passed
        if found is not None and isinstance(found.value, GIVEN_UP) and not self.given_up:
            places = [os.path.realpath(str(one.path)) for one in found.traceback]
            places = [one for one in places if not one.startswith(TOOLS)]
            marked = not places and report.when != "call"
            if not marked and (not places or places[-1].startswith(checkout + os.sep)):
                self.given_up = item.nodeid

    def pytest_runtest_logfinish(self):
        self.ended += 1

    def pytest_sessionfinish(self, session):
        self.collected = session.testscollected


def main():
    witness = Witness()
    sys.path.insert(0, checkout)
    os.environ["PYTHONPATH"] = checkout
    status = int(pytest.main(sys.argv[1:], plugins=[witness]))
    if witness.given_up:
        told = "the result gave up " + witness.given_up
    elif witness.ended != witness.collected:
        told = "only %d of %d tests came to an end" % (witness.ended, witness.collected)
    else:
        told = "" if witness.passed else "no test passed"
    write(said, json.dumps({"word": word, "status": status, "told": told}).encode())
    leave(status)


main()
"""


@dataclass(frozen=True)
class PytestCheck:
    """How a test file is put to a result.

    Attributes:
        run: runs a program in the checkout: ``argv``, and by name ``stdin``.
        scratch: a directory that it can read and not write.
        home: its home directory.
    """

    run: Callable[..., Finished]
    scratch: Path
    home: Path

    def __call__(self, test: Path) -> tuple[str, Finished]:
        """Put it.

        Args:
            test: the test file; a copy of it is run.

        Returns:
            Why the result is not right, empty if it is; and how the program ended.
        """
        place = self.scratch / "pytest"
        place.mkdir(exist_ok=True)
        (place / test.name).write_bytes(test.read_bytes())
        settings = place / "pytest.ini"
        settings.write_text("[pytest]\n", encoding="ascii")
        word, said = secrets.token_hex(16), f".said-{secrets.token_hex(8)}"
        # Neither the directory that it runs in nor the user's packages are looked in: both can hold a file of the agent's named pytest.py.
        argv = [sys.executable, "-P", "-s", "-c", _WITNESS, *_OPTIONS, "-c", str(settings), str(place / test.name)]
        done = self.run(argv, stdin=f"{word}\n{said}\n".encode())
        return _wrong(done, _read(self.home / said), word), done


def _wrong(done: Finished, found: dict[str, Any], word: str) -> str:
    if done.timed_out:
        return "its time was up"
    if not succeeded(done):
        return f"status {done.code}" if done.code is not None else f"signal {done.signal}"
    if found.get("word") != word:
        return "the result ended pytest before it was done"
    return str(found.get("told")) if found.get("status") == 0 else f"status {found.get('status')}"


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
