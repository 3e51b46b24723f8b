"""One line for each clause with its result while a run goes on, and under them a bar where a person watches at a terminal.

``gittrix conform`` names this module to pytest as a plugin.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, cast

import pytest

from pytest_gittrix.conformance.base.clause import PROPERTY
from pytest_gittrix.conformance.base.outcome import FAILING, Status
from pytest_gittrix.safe_text import printable_line

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from pytest_gittrix.conformance.reports.model import ClauseOutcome

_LONGEST: Final = max(map(len, Status))
_COLOURS: Final = {Status.KEPT: "green", **dict.fromkeys(FAILING, "red")}


class ClauseLines:
    """The lines of a run.

    Args:
        stream: what they are written to.
        terminal: whether a person watches there, who is shown colours and a bar.
    """

    def __init__(self, stream: IO[str], *, terminal: bool) -> None:
        self._stream, self._terminal = stream, terminal
        self._done = 0
        self._bar: Bar | None = None

    def ended(self, code: str, status: Status, promise: str, total: int) -> None:
        """Write the line of a clause that has ended; the bar goes with the last one.

        Args:
            code: the clause's code.
            status: its outcome.
            promise: its promise.
            total: how many lines there will be; 0 if that is not known.
        """
        self._done += 1
        number = f"[{self._done:>{len(str(total))}}/{total}]" if total else f"[{self._done}]"
        line = f"{number} {status:<{_LONGEST}} {code}  {printable_line(promise)}"
        if not self._terminal:
            print(line, file=self._stream, flush=True)
            return
        from rich.text import Text

        bar = self._bar = self._bar or self._opened(total)
        bar.console.print(Text(line, style=_COLOURS.get(status, "yellow")), soft_wrap=True)
        bar.update(bar.task_ids[0], completed=self._done)
        bar.refresh()
        if self._done == total:
            self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _opened(self, total: int) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("clauses"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # It draws only when a clause ends: a thread of its own would be copied into the programs that clauses fork.
        bar = Progress(*columns, console=Console(file=self._stream, force_terminal=True), auto_refresh=False, transient=True)
        bar.add_task("clauses", total=total or None)
        bar.start()
        return bar


class _OfPytest:
    """The lines of a run of pytest, in the process that a person started."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal
        self._lines: ClauseLines | None = None
        self._found: dict[str, list[ClauseOutcome]] = {}
        self._total = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the clauses."""
        self._total = self._total or len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Count the clauses that a process of pytest-xdist found: each of them finds all."""
        self._total = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: Any) -> Generator[None, Any, Any]:
        """Count a clause as pytest does, and show no letter for it."""
        category, letter, word = yield
        return (category, "", "") if _is_clause(report) else (category, letter, word)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write the line of a clause when its test has ended."""
        from pytest_gittrix.conformance.reports.model import outcome_of, worst

        if not _is_clause(report):
            return
        found = self._found.setdefault(report.nodeid, [])
        if (outcome := outcome_of(report)) is not None:
            found.append(outcome)
        if report.when == "teardown" and found:
            self._lines = self._lines or ClauseLines(cast("IO[str]", _Through(self._terminal)), terminal=self._terminal.isatty)
            ended = worst(self._found.pop(report.nodeid))
            self._lines.ended(ended.clause.code, ended.status, ended.clause.promise, self._total)

    def pytest_sessionfinish(self) -> None:
        """Take the bar away where a run ends early."""
        if self._lines is not None:
            self._lines.close()


class _Through:
    """The terminal of pytest as a stream."""

    def __init__(self, terminal: Any) -> None:
        self._write: Callable[..., None] = terminal.write
        self.encoding = sys.stdout.encoding

    def write(self, text: str) -> int:
        self._write(text)
        return len(text)

    def flush(self) -> None:
        self._write("", flush=True)


def _is_clause(report: Any) -> bool:
    return any(name == PROPERTY for name, _ in getattr(report, "user_properties", ()))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Write the lines, but not in the processes of pytest-xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_OfPytest(terminal), "gittrix-clause-lines")
