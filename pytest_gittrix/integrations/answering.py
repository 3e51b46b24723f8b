"""A Python that stays in a session and answers questions: a line of JSON for each line of JSON.

Frameworks that keep state between calls, such as names or a shell, have it in such a Python: it is confined as programs of the agent are.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Final

from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.os_level.monotonic import real_seconds

LONGEST_ANSWER: Final = 1 << 26
"""The most bytes that an answer may have."""

_MOST_ERRORS: Final = 1 << 12

# Questions and answers have descriptors that no other program inherits. What is printed below Python goes with the errors.
_STREAMS: Final = """
import json, os, sys
questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
"""


class NoAnswer(Exception):
    """A Python has ended without an answer; the text says why."""


class AnsweringPython:
    """A Python in a session, started by its first question, and again by the first one after it has ended."""

    def __init__(self, programs: Programs, source: str) -> None:
        """Choose what it runs; it is not started yet.

        Args:
            programs: what runs it.
            source: reads lines of JSON from ``questions``, and for each prints one with an object to ``answers``.
        """
        self._programs = programs
        self._source = _STREAMS + source
        self._turn = threading.Lock()
        self._running: Running | None = None
        self._ended = False
        self._errors = b""

    def ask(self, question: object, timeout: float | None = None) -> dict[str, Any]:
        """Give it a question and wait for its answer. What it sends is as little to be trusted as the output of any program of an agent.

        Args:
            question: what JSON can say.
            timeout: real seconds; None for no limit.

        Raises:
            NoAnswer: it ended, or it was ended because it took too long or sent too much, or by ``end``.
            SessionExpired: the session ended, before the question or before the answer.
            GittrixError: as ``Programs.start``.
        """
        self._programs.require_live()
        with self._turn:
            try:
                running = self._started()
                running.write(json.dumps(question).encode() + b"\n")
                return _object(self._line(running, timeout))
            except BaseException as problem:  # also an interrupt: the answer that comes later would be taken for that of the next question
                self.kill()
                if isinstance(problem, NoAnswer):
                    self._programs.require_live()  # it also ends with the session
                raise

    def _started(self) -> Running:
        """The Python that runs; one is started if none does."""
        self._require_not_ended()
        if self._running is None or self._running.poll() is not None:
            self._running = self._programs.start([sys.executable, "-P", "-u", "-c", self._source])
            self._reader = threading.Thread(target=self._keep_errors, args=(self._running,), daemon=True)
            self._reader.start()
            self._require_not_ended()  # end() knows nothing of one that was still being started
        return self._running

    def _require_not_ended(self) -> None:
        if self._ended:
            raise NoAnswer("It was ended.")

    def _line(self, running: Running, timeout: float | None) -> bytes:
        deadline = None if timeout is None else real_seconds() + timeout
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                piece = running.stdout.read(None if deadline is None else deadline - real_seconds())
            except TimeoutError:
                raise NoAnswer(f"It did not end within {timeout:g} seconds.") from None
            if not piece:
                running.kill()  # it may have closed its answers alone, and go on
                self._reader.join()
                raise NoAnswer(f"It ended its Python: {self._errors.decode('utf-8', 'replace')}")
            line += piece
            if len(line) > LONGEST_ANSWER:
                raise NoAnswer(f"It gave more than {LONGEST_ANSWER} bytes.")
        return bytes(line)

    def _keep_errors(self, running: Running) -> None:
        """Keep the last errors, and read all of them: a program whose errors nobody reads has to wait."""
        self._errors = b""
        for piece in running.stderr:
            self._errors = (self._errors + piece)[-_MOST_ERRORS:]

    def kill(self) -> None:
        """End it, with everything that it started. The next question starts another one."""
        if self._running is not None:
            self._running.kill()

    def end(self) -> None:
        """End it for good, with everything that it started: no question starts another one. Ending twice does nothing."""
        self._ended = True
        self.kill()


def _object(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise NoAnswer("It gave something else than an answer.")
    return answer
