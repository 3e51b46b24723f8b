"""The check that runs pytest on a result, built so that neither files nor code of the result can answer for pytest.

pytest is loaded before anything of the result, settings of the result are ignored, and the answer carries a secret that is read from the
input before the result is loaded. Code under test shares its process with the test, so this withstands simple tricks (``pytest.py``,
``sitecustomize.py``, ``os._exit``, ``pytest.skip``), but not code that searches the interpreter's memory.
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
secret, name = sys.stdin.readline().strip(), sys.stdin.readline().strip()
answer = os.open(os.path.join(os.environ["HOME"], name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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
            files = [os.path.realpath(str(one.path)) for one in found.traceback]
            files = [one for one in files if not one.startswith(TOOLS)]
            marked = not files and report.when != "call"
            if not marked and (not files or files[-1].startswith(checkout + os.sep)):
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
        reason = "the result gave up " + witness.given_up
    elif witness.ended != witness.collected:
        reason = "only %d of %d tests came to an end" % (witness.ended, witness.collected)
    else:
        reason = "" if witness.passed else "no test passed"
    write(answer, json.dumps({"secret": secret, "status": status, "reason": reason}).encode())
    leave(status)


main()
"""


@dataclass(frozen=True)
class PytestCheck:
    """Runs a test file on a result.

    Attributes:
        run: runs a program in the checkout, given ``argv`` and by name ``stdin``.
        scratch: a directory that the program can read but not write.
        home: the program's home directory.
    """

    run: Callable[..., Finished]
    scratch: Path
    home: Path

    def __call__(self, test: Path) -> tuple[str, Finished]:
        """Run the test file.

        Args:
            test: the test file; a copy of it is run.

        Returns:
            Why the result did not pass, empty if it did; and how the program ended.
        """
        directory = self.scratch / "pytest"
        directory.mkdir(exist_ok=True)
        (directory / test.name).write_bytes(test.read_bytes())
        settings = directory / "pytest.ini"
        settings.write_text("[pytest]\n", encoding="ascii")
        secret, answer = secrets.token_hex(16), f".answer-{secrets.token_hex(8)}"
        # Python does not look into its working directory nor the user's packages: the agent could have put a pytest.py there.
        argv = [sys.executable, "-P", "-s", "-c", _WITNESS, *_OPTIONS, "-c", str(settings), str(directory / test.name)]
        done = self.run(argv, stdin=f"{secret}\n{answer}\n".encode())
        return _problem(done, _read(self.home / answer), secret), done


def _problem(done: Finished, found: dict[str, Any], secret: str) -> str:
    if done.timed_out:
        return "its time was up"
    if not succeeded(done):
        return f"status {done.code}" if done.code is not None else f"signal {done.signal}"
    if found.get("secret") != secret:
        return "the result ended pytest before it was done"
    return str(found.get("reason")) if found.get("status") == 0 else f"status {found.get('status')}"


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
