"""The report of a run on session systems, made from the reports of its tests: the outcome of each clause, and the findings by cause.

All functions are pure. The same outcomes of tests give the same report, in whatever order and in however many processes the tests ran.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from pytest_gittrix.conformance.base.catalogue import all_clauses, clauses_by_code, in_order
from pytest_gittrix.conformance.base.clause import LACKING, PROPERTY, SYSTEM, WAIVED, Clause, families_by_letters
from pytest_gittrix.conformance.base.outcome import (
    CAUSE,
    COVERED,
    FAILING,
    HISTORY,
    LOST,
    NEVER,
    REFUSALS,
    SCENE,
    SCRIPT,
    SETTING,
    SHOWN,
    STATUS,
    Status,
)
from pytest_gittrix.errors import first_few
from pytest_gittrix.extensions import OURS, registered
from pytest_gittrix.safe_text import printable, printable_line
from pytest_gittrix.testing.systems.protocol import Capability

_PLACE: Final = re.compile(r"/[^\s'\"]*/gittrix-world-\w+")
"""The directory of a clause's place, which is another in every run; the scripts call it by the same name as the reasons do."""

# If several tests are of one clause, the report has the first of these statuses that one of them ended in.
_WEIGHT: Final = (
    *(Status.BROKEN, Status.INCOMPLETE_REFUSAL, Status.DOCUMENTED, Status.AS_GIT, Status.WAIVED, Status.INCONCLUSIVE, Status.NO_VERDICT),
    *(Status.KEPT, Status.SKIPPED, Status.NOT_CLAIMED, Status.NOT_RUN),
)


_NAMED: Final = 8
_LONGEST_CHECK: Final = 160
_AS_ONE: Final = {"promote does not look at what is unsaved in the checkout": ("PRM-19", "PRM-20", "PRM-21", "PRM-22")}
"""Causes of clauses that are one fault where each of them missed its refusal."""
NOT_YET: Final = "not yet"
"""What the reason of a waiver begins with if the promise is to be kept one day."""
_SILENT: Final = (Status.INCONCLUSIVE, Status.NO_VERDICT, Status.SKIPPED, Status.NOT_RUN)
"""The statuses that say nothing of what a system does."""


@dataclass(frozen=True)
class ClauseOutcome:
    """The outcome of one clause.

    Attributes:
        clause: the clause.
        status: its outcome.
        reason: why it is not kept, in full; how much was tried of a clause that is kept.
        replay: the command that runs the clause again, if it failed.
        cause: the cause of the failure, as a sentence; clauses that failed for one cause are one finding. Empty if the clause is the cause.
        loses_work: whether the clause saw work lost.
        script: a shell script that shows the failure; empty if there is none.
        reproduced: whether the script, run once, said ``LOST:`` or ``WRONG:``; None if it was not run, did not end, or cannot tell.
        happened: what the clause saw happen, as a sentence without a full stop; empty where it cannot say that for people.
        history: every operation, as JSON lines; empty if no report wants it.
    """

    clause: Clause
    status: Status
    reason: str = ""
    replay: str = ""
    cause: str = ""
    loses_work: bool = False
    script: str = ""
    reproduced: bool | None = None
    happened: str = ""
    history: str = ""

    @property
    def title(self) -> str:
        """What happens, as a sentence without a full stop: the cause, what the clause saw, or what its promise is to prevent."""
        prevents = self.clause.why.removeprefix("Otherwise ").removesuffix(".")
        seen = self.happened or prevents or f"this is not so: {self.clause.promise}"
        return self.cause or seen[:1].upper() + seen[1:]

    @property
    def waiver(self) -> str:
        """``not yet`` or ``on purpose`` for a clause that need not be kept, by the first words of the reason; otherwise empty."""
        if self.status not in (Status.WAIVED, Status.DOCUMENTED):
            return ""
        return NOT_YET if self.reason.casefold().startswith(NOT_YET) else "on purpose"


@dataclass(frozen=True)
class Finding:
    """What is wrong with a system, in one place: all clauses that failed for one cause.

    Attributes:
        outcomes: the outcomes of the clauses, by family and number; at least one.
    """

    outcomes: tuple[ClauseOutcome, ...]

    @property
    def id(self) -> str:
        """A name that stays the same from run to run: the cause, or the code of the clause that is the cause."""
        return self.outcomes[0].cause or self.outcomes[0].clause.code

    @property
    def title(self) -> str:
        """What happens, as a sentence without a full stop."""
        return self.outcomes[0].title

    @property
    def status(self) -> Status:
        """The worst status of its clauses."""
        return min((one.status for one in self.outcomes), key=_WEIGHT.index)

    @property
    def loses_work(self) -> bool:
        """Whether one of its clauses saw work lost."""
        return any(one.loses_work for one in self.outcomes)

    @property
    def losses(self) -> tuple[str, ...]:
        """What a user loses, a sentence for each clause: first what loses work."""
        worst_first = sorted(self.outcomes, key=lambda one: not one.loses_work)
        return tuple(dict.fromkeys(one.clause.why for one in worst_first if one.clause.why))

    @property
    def script(self) -> str:
        """The shortest script of those that were seen to show it, or else of all; empty if there is none."""
        return self._shown.script

    @property
    def reproduced(self) -> bool | None:
        """Whether the script, run once, showed it; None if it was not run."""
        return self._shown.reproduced

    @cached_property
    def _shown(self) -> ClauseOutcome:
        return min(self.outcomes, key=lambda one: (not one.script, not one.reproduced, len(one.script)))


@dataclass(frozen=True)
class SystemReport:
    """The outcome of a run on one system.

    Attributes:
        name: the system's name.
        outcomes: one for each clause of the suite, by family and number.
        titles: the titles of the families, by their letters.
        has_levels: whether the suite has the levels ``BASE`` and ``EXTENDED``.
        file: what a code host shows findings in, relative to the project's root: a file with a test that failed, the one that makes the
            system, or the description; empty if there is none.
        lines: the line of that file that a clause is about, by its code; the first one by default.
        properties: facts of the run by name, such as the ``version`` of what was tested, the ``date``, and the version of ``git``.
    """

    name: str
    outcomes: tuple[ClauseOutcome, ...]
    titles: Mapping[str, str] = field(default_factory=families_by_letters)
    has_levels: bool = True
    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    def of(self, *statuses: Status) -> tuple[ClauseOutcome, ...]:
        """The outcomes with one of these statuses."""
        return tuple(one for one in self.outcomes if one.status in statuses)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What failed, by cause: what loses work first, then what is broken, then what fails the most clauses."""
        by_cause: dict[str, list[ClauseOutcome]] = {}
        for one in self.of(*FAILING):
            by_cause.setdefault(one.cause or one.clause.code, []).append(one)
        found = [Finding(tuple(group)) for group in by_cause.values()]
        return tuple(sorted(found, key=lambda one: (not one.loses_work, _WEIGHT.index(one.status), -len(one.outcomes))))

    @property
    def unasked(self) -> tuple[ClauseOutcome, ...]:
        """The outcomes of clauses about the loss of work that say nothing: not run, skipped, or without a verdict."""
        return tuple(one for one in self.of(*_SILENT) if one.clause.protects_work)

    @property
    def headline(self) -> str:
        """How many faults were found, and how many of them lose work, as one sentence. None loses work only where that was asked."""
        faults, losing = len(self.findings), sum(one.loses_work for one in self.findings)
        if not faults:
            return "No fault was found."
        count = f"{faults} {'fault' if faults == 1 else 'faults'}"
        if losing or not self.unasked:
            return f"{count}; {losing or 'none'} of them {'lose' if losing > 1 else 'loses'} work."
        silent = len(self.unasked)
        return f"{count}; whether work is lost is not known, as {silent} {'clause' if silent == 1 else 'clauses'} about it gave no verdict."

    @property
    def families(self) -> Mapping[str, Mapping[Status, int]]:
        """The number of clauses with each status, for each family of which a clause was run."""
        found: dict[str, dict[Status, int]] = {}
        for one in self.outcomes:
            found.setdefault(one.clause.family, dict.fromkeys(Status, 0))[one.status] += 1
        return {family: counts for family, counts in found.items() if counts[Status.NOT_RUN] < sum(counts.values())}

    @property
    def untested(self) -> tuple[Capability, ...]:
        """The declared capabilities of which every clause was skipped. A capability with a clause that was not run is left out."""
        return tuple(one for one in Capability if self._is_untested([found for found in self.outcomes if one in found.clause.needs], one))

    @staticmethod
    def _is_untested(outcomes: Sequence[ClauseOutcome], capability: Capability) -> bool:
        idle = all(one.status in (Status.SKIPPED, Status.NOT_CLAIMED) for one in outcomes)
        declared = any(one.status is Status.SKIPPED or capability not in one.reason.split(", ") for one in outcomes)
        return bool(outcomes) and idle and declared

    @property
    def unshown(self) -> tuple[ClauseOutcome, ...]:
        """The outcomes whose script, run once, did not show what it is for, so that they have no verdict: a defect of the kit."""
        return tuple(one for one in self.outcomes if one.reproduced is False)

    @property
    def defect(self) -> str:
        """What is wrong with the kit itself, as a sentence; empty if every script that was run showed what it is for."""
        if not self.unshown:
            return ""
        many = len(self.unshown)
        shown = "a script did not show what it is for" if many == 1 else f"{many} scripts did not show what they are for"
        return f"This kit has a defect: {shown}, so that {first_few((one.clause.code for one in self.unshown), _NAMED)} gave no verdict."

    @property
    def is_kept(self) -> bool:
        """Whether no clause failed, no declared capability is untested, and every script that was run showed what it is for."""
        return not (self.of(*FAILING) or self.untested or self.unshown)

    @property
    def level(self) -> str | None:
        """``EXTENDED`` if every clause is kept, ``BASE`` if every clause that needs no capability is kept, otherwise None."""
        if not self.has_levels:
            return None
        if all(one.status is Status.KEPT for one in self._leveled):
            return "EXTENDED"
        if all(one.status is Status.KEPT for one in self._leveled if not one.clause.needs):
            return "BASE"
        return None

    @property
    def _leveled(self) -> Sequence[ClauseOutcome]:
        """The outcomes that the levels are about: families of other packages are no part of them."""
        others = registered("clauses").keys() - OURS["clauses"].keys()
        return [one for one in self.outcomes if one.clause.family not in others]

    @property
    def verdict(self) -> str:
        """The level that is reached, and the clauses that the next level lacks, as one sentence."""
        if left_out := sum(one.status is Status.NOT_RUN for one in self._leveled):
            return f"unknown, as {left_out} of {len(self._leveled)} clauses were not run"
        if self.level == "EXTENDED":
            return "EXTENDED"
        base = [one for one in self._leveled if not one.clause.needs and one.status is not Status.KEPT]
        lacking = base or [one for one in self._leveled if one.status is not Status.KEPT]
        codes = first_few((one.clause.code for one in lacking), _NAMED)
        return f"{self.level or 'none'} ({'EXTENDED' if self.level else 'BASE'} lacks {codes})"


def summarise_clauses(
    reports: Iterable[Any],
    *,
    is_own_file: Callable[[str], bool],
    requested: str = "",
    source: str = "",
    search: Mapping[str, float] | None = None,
) -> tuple[SystemReport, ...]:
    """Make a report of each system, sorted by name, from pytest's reports.

    Args:
        reports: pytest's reports of all phases; reports of tests that are not clauses are ignored.
        is_own_file: whether a node id is in a file of the project, so that pytest can run the test by it.
        requested: the name of the system on the command line; empty if none was given.
        source: the project's file that makes the system; empty if that is not known.
        search: the seconds that were given to search for crashes and races, by the name of the option.
    """
    best: dict[str, dict[str, ClauseOutcome]] = {}
    refusals: dict[str, set[str]] = {}
    missed: dict[str, dict[str, str]] = {}
    files: dict[str, str] = {}
    for report in reports:
        properties = dict(report.user_properties)
        if PROPERTY not in properties or (outcome := outcome_of(report)) is None:
            continue
        outcome = replace(outcome, history=properties.get(HISTORY, ""))
        refusals.setdefault(properties[SYSTEM], set()).update(properties.get(REFUSALS, "").splitlines())
        missed.setdefault(properties[SYSTEM], {})[properties[PROPERTY]] = properties.get(NEVER, "")
        if outcome.status in FAILING:
            own = is_own_file(report.nodeid)
            outcome = replace(outcome, replay=_replay(report.nodeid, outcome.clause.code, own, requested, search or {}))
            if own:
                file = report.nodeid.partition("::")[0]
                files[properties[SYSTEM]] = min(files.get(properties[SYSTEM], file), file)
        outcomes = best.setdefault(properties[SYSTEM], {})
        outcomes[outcome.clause.code] = worst([outcomes.get(outcome.clause.code, outcome), outcome])
    return tuple(SystemReport(name, _all(best[name], refusals[name], missed[name]), file=files.get(name, source)) for name in sorted(best))


def worst(outcomes: Iterable[ClauseOutcome]) -> ClauseOutcome:
    """The worst of several outcomes of one clause; there is at least one."""
    return min(outcomes, key=_rank)


def outcome_of(report: Any) -> ClauseOutcome | None:
    """The outcome that one of pytest's reports on a clause gives for it; None for a phase that decides nothing."""
    properties = dict(report.user_properties)
    code = properties[PROPERTY]
    clause = clauses_by_code().get(code) or Clause(code, report.nodeid.rpartition("::")[2], "", frozenset())
    if report.outcome == "failed":
        facts = properties if report.when == "call" else {}
        reproduced = facts[SHOWN] == "yes" if SHOWN in facts else None
        return ClauseOutcome(
            clause,
            Status.NO_VERDICT if reproduced is False else Status(facts.get(STATUS, Status.BROKEN)),
            _why_failed(report, properties, clause),
            cause=printable_line(facts.get(CAUSE, "")) or _cause_in_setup(report),
            loses_work=LOST in facts and reproduced is not False,
            script=_headed(facts.get(SCRIPT, ""), clause),
            reproduced=reproduced,
        )
    if report.outcome == "skipped" and hasattr(report, "wasxfail"):
        if WAIVED in properties:
            return ClauseOutcome(clause, Status.WAIVED, printable(properties[WAIVED]))
        return ClauseOutcome(clause, Status.BROKEN, "it is marked xfail, and not waived")
    if report.outcome == "skipped":
        status = Status.NOT_CLAIMED if LACKING in properties else Status(properties.get(STATUS, Status.SKIPPED))
        return ClauseOutcome(clause, status, properties.get(LACKING) or printable(_skip_reason(report)))
    return ClauseOutcome(clause, Status.KEPT, properties.get(COVERED, "")) if (report.when, report.outcome) == ("call", "passed") else None


def _cause_in_setup(report: Any) -> str:
    """What kept a clause from beginning, so that many clauses are one finding; empty for a failure in another phase."""
    if report.when != "setup":
        return ""
    return f"no clause could begin: {printable_line(_PLACE.sub('$ROOT', _message(report).partition(chr(10))[0]))}"


def _message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr or report.outcome)


def _headed(script: str, clause: Clause) -> str:
    """A script that says in its second line which promise it is about."""
    first, _, rest = script.partition("\n")
    return f"{first}\n# {clause.code}: {printable_line(clause.promise)}\n{rest}" if script else ""


def _for_outsiders(message: str, clause: Clause) -> str:
    """The message of an error without pytest's own lines, which say nothing to those who do not know the test."""
    said = re.split(r"^(?:AssertionError: )?assert ", message, maxsplit=1, flags=re.MULTILINE)
    own = re.sub(r"^(?:ClauseFailure|AssertionError): ", "", said[0]).strip()
    if own or len(said) == 1:
        return own
    return f"This is not so: {clause.promise} ({said[1].splitlines()[0][:_LONGEST_CHECK]})"


def _why_failed(report: Any, properties: Mapping[str, str], clause: Clause) -> str:
    if WAIVED in properties and str(report.longrepr).startswith("[XPASS(strict)]"):
        return f"it is kept now: remove its waiver ({printable(properties[WAIVED])})"
    prefix = "" if report.when == "call" else f"in {report.when}: "
    unseen = "The script, run once more, did not show it." if properties.get(SHOWN) == "no" else ""
    lines = [
        _for_outsiders(_message(report), clause),
        properties.get(SETTING, ""),
        properties.get(SCENE, ""),
        properties.get(COVERED, ""),
        unseen,
    ]
    return prefix + _PLACE.sub("$ROOT", printable("\n".join(filter(None, lines))))


def _skip_reason(report: Any) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def _replay(nodeid: str, code: str, own: bool, requested: str, search: Mapping[str, float]) -> str:
    flags = [(name, f"{seconds:g}") for name, seconds in search.items() if seconds]
    if own:
        return shlex.join(["pytest", nodeid, *(f"--gittrix-{name}={seconds}" for name, seconds in flags)])
    again = ["gittrix", "conform", *([requested] if requested else []), "--clause", code]
    return shlex.join([*again, *(word for name, seconds in flags for word in (f"--{name}", seconds))])


def _rank(found: ClauseOutcome) -> tuple[int, str, str]:
    return (_WEIGHT.index(found.status), found.reason, found.replay)


def _all(found: Mapping[str, ClauseOutcome], refusals: Collection[str], missed: Mapping[str, str]) -> tuple[ClauseOutcome, ...]:
    """The outcome of every clause.

    A missed refusal is a cause that clauses share only if the system never gave it, or if all of some clauses miss theirs. Otherwise each
    case that it misses is its own fault.
    """
    shared = {code: cause for cause, codes in _AS_ONE.items() if all(missed.get(one) for one in codes) for code in codes}
    run = [
        one if one.cause else replace(one, cause=_never(missed[code].splitlines(), refusals) or shared.get(code, ""))
        for code, one in found.items()
    ]
    missing = [ClauseOutcome(clause, Status.NOT_RUN) for clause in all_clauses() if clause.code not in found]
    return tuple(sorted([*run, *missing], key=lambda one: in_order(one.clause)))


def _never(refusals: Sequence[str], given: Collection[str]) -> str:
    """The cause of a missed refusal, if the system never gave it; otherwise an empty text."""
    if not refusals or any(one in given for one in refusals):
        return ""
    verb = refusals[0].partition(": ")[0]
    return f"{verb} never refuses with {' or '.join(one.partition(': ')[2] for one in refusals)}"
