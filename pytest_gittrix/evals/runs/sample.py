"""One sample: a world, a session, the agent, the review, the promotion, the checks, and what it all came to.

Everything of it happens at the suite's epoch, in a directory of its own. What is written down is the same for the same sample; what is
not (times, output of checks) is kept apart. Must not know runs, other samples, or where records are kept.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.confine.choose import Confinement
from pytest_gittrix.engine.operations.review import Review, file_changes
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, BaselineConflict, DurableLocked, PathCollision, PromoteFailed, WriteRejected
from pytest_gittrix.evals.inputs.case_repo import BRANCH, contents_of, durable_of, patch_contents
from pytest_gittrix.evals.inputs.identity import digest_bytes, session_id
from pytest_gittrix.evals.inputs.sample_record import CheckResult, Outcome, Record
from pytest_gittrix.evals.inputs.suite import Case
from pytest_gittrix.evals.results.run_repository import new_objects
from pytest_gittrix.evals.results.store import Belongings, lines
from pytest_gittrix.evals.runs.agents import Agent, AgentFailed, GoldAgent
from pytest_gittrix.evals.runs.checks import Means, Result, judge
from pytest_gittrix.evals.runs.event_recorder import Tape
from pytest_gittrix.evals.runs.launch import Launcher, surroundings
from pytest_gittrix.evals.runs.toolbox import Desk, OutOfTime, finished_fields
from pytest_gittrix.evals.runs.transcript import Mismatch, Script
from pytest_gittrix.git.patch import patch_bytes
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.repository import Repository, require_head
from pytest_gittrix.testing.repos.history import Contents
from pytest_gittrix.testing.repos.templates import Templates
from pytest_gittrix.testing.world import World

_REASON: Final = 300
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}\b")
# What says no to a promotion because of what is being promoted, and not because the machine failed.
_REFUSALS: Final = (PathCollision, PromoteFailed, WriteRejected)


@dataclass(frozen=True)
class Order:
    """A sample to be done.

    Attributes:
        case: what on.
        epoch: which repetition, from 0.
        key: see ``identity.sample_key``.
        seed: 64 hex digits.
        agent: who.
        instant: where the clock stands.
        confinement: of programs.
        passed: variables from outside that the agent gets.
        path: where programs are looked for.
        timeout: seconds that the agent has.
        trees: whether the tree after each step is written down.
        script: what the agent's steps are held against.
    """

    case: Case
    epoch: int
    key: str
    seed: str
    agent: Agent
    instant: datetime
    confinement: Confinement
    passed: Mapping[str, str]
    path: str | None
    timeout: float
    trees: bool = False
    script: Script | None = None


@dataclass
class _End:
    """What is known of the end so far."""

    outcome: Outcome = "fail"
    reason: str = ""
    exit: int | None = None
    conflict: dict[str, str] | None = None
    head: str = ""
    promoted: str = ""
    checks: list[CheckResult] = field(default_factory=list)


class Sample:
    """One sample being done. Made and used by ``do``.

    Args:
        order: what is to be done.
        place: an empty directory for it, removed by the caller.
        mark: what its programs are known by.
        templates: where prepared histories are.
        cache: where unpacked repositories are.
    """

    def __init__(self, order: Order, place: Path, mark: str, *, templates: Templates, cache: Path) -> None:
        self._order = order
        self._case = order.case
        self._place = place
        self._mark = mark
        self._templates = templates
        self._cache = cache
        self._tape = Tape(place)
        self._end = _End()
        self._desk: Desk | None = None
        self._packs: tuple[str, ...] = ()
        self._head = ""

    def do(self) -> tuple[Record, Belongings]:
        """Do it. Whatever is no doing of the agent's is raised as it is."""
        case, order = self._case, self._order
        ephemeral = LocalEphemeral(kind=case.workspace, history=case.history)
        with self._timed("open"):
            world = World.open(
                self._place / "world",
                **durable_of(case, self._cache),
                branch=BRANCH,
                workspace=ephemeral,
                epoch=order.instant,
                templates=self._templates,
                sweep_interval=None,
                separate_files=case.drift is not None,
                keep=True,
            )
        with world:
            self._packs = _packs_of(self._repository(world))
            session = world.start(case.task, id=session_id(order.seed))
            self._head = self._durable_head(world)
            self._tape.follow(session)
            points.reached("eval:session-started")
            with self._timed("agent"):
                worked = self._work(world, session)
            try:
                with self._timed("review"):
                    review = self._reviewed(session)
                    patch = patch_bytes(file_changes(review.snapshot))
            except WriteRejected as refusal:
                return self._unreviewable(world, session, "refused", refusal.fact)
            except AdapterUnavailable:
                # Otherwise an agent that fails could have itself left out of every rate, by locking its own workspace.
                locked = _locked(session.workspace_path)
                if not locked:
                    raise
                return self._unreviewable(world, session, "agent_error", locked)
            left_out = {"left_out": sorted(review.refused)} if review.refused else {}
            self._tape.put("review.done", {"files": len(review.changes), "tree": review.tree, **left_out})
            if worked and self._allowed(review):
                with self._timed("promote"):
                    landed = self._promote(session, review)
                if landed:
                    with self._timed("check"):
                        self._check(world)
            self._tape.put("sample.done", {"outcome": self._end.outcome, "reason": self._end.reason})
            return self._written(world, session, review, patch)

    # The agent -----------------------------------------------------------------------------------------------------------------

    def _work(self, world: World, session: UserSession) -> bool:
        """Whether the agent came to an end of its own."""
        self._drift(world, "after-start")
        order, end = self._order, self._end
        try:
            desk = self._desk = self._made_desk(world, session)
            end.exit = order.agent.work(desk)
            desk.finish()
        except AgentFailed as failed:
            end.outcome, end.reason, end.exit = "agent_error", self._line(str(failed)), failed.exit
        except Mismatch as mismatch:
            end.outcome, end.reason = "agent_error", self._line(f"the replay went another way: {mismatch}")
        except OutOfTime:
            end.outcome, end.reason = "timeout", f"the agent's {order.timeout:g} s were up"
        if self._durable_head(world) != self._head:
            end.outcome, end.reason = "agent_error", "durable moved behind the run's back"
        self._tape.put("agent.done", {"exit": end.exit, "outcome": "" if end.outcome == "fail" else end.outcome})
        points.reached("eval:agent-done")
        if end.outcome == "fail":
            self._drift(world, "before-promote")
        return end.outcome == "fail"

    def _made_desk(self, world: World, session: UserSession) -> Desk:
        order, case = self._order, self._case
        home = self._place / "home"
        launch = Launcher(session.workspace_path or self._place, home, order.confinement, order.agent.readable)

        def variables() -> Mapping[str, str]:
            file = home / ".task"
            home.mkdir(exist_ok=True)
            file.write_text(case.task, encoding="utf-8", errors="surrogatepass")
            file.chmod(0o444)
            told = {
                "GITTRIX_CASE": case.id,
                "GITTRIX_EPOCH": str(order.epoch),
                "GITTRIX_SEED": order.seed,
                "GITTRIX_TASK_FILE": str(file),
            }
            return session.for_agent().environment(self._variables(world, home, told))

        return Desk(
            session.for_agent(),
            task=case.task,
            seed=order.seed,
            case=case.id,
            epoch=order.epoch,
            gold=case.gold if isinstance(order.agent, GoldAgent) else None,
            surroundings=variables,
            launch=launch,
            timeout=order.timeout,
            most_output=case.output,
            base=session.history()[0].data["baseline"],
            tree=(lambda: self._reviewed(session).tree) if order.trees else None,
            script=order.script,
        )

    def _variables(self, world: World, home: Path, told: Mapping[str, str]) -> dict[str, str]:
        order = self._order
        return surroundings(home, world.clock, path=order.path, passed=order.passed, told=told, mark=self._mark)

    def _drift(self, world: World, at: str) -> None:
        drift = self._case.drift
        if drift is None or drift.at != at:
            return
        if drift.files is not None:
            changes: Contents = contents_of(drift.files)
        else:
            assert drift.patch is not None
            changes = patch_contents(self._repository(world), world.durable.head(), drift.patch, self._place)
        self._head = world.rival.commit(changes, worktree=True)
        self._tape.put("durable.drifted", {"commit": self._head})

    # What became of it ---------------------------------------------------------------------------------------------------------

    def _reviewed(self, session: UserSession) -> Review:
        """The work without what tools leave behind."""
        review = session.review()
        excluded = frozenset(self._case.review.exclude)
        kept = {path: entry for path, entry in review.changes.items() if excluded.isdisjoint(path.split("/"))}
        if len(kept) == len(review.changes):
            return review
        known = review.snapshot.blobs
        blobs = {entry.id: known[entry.id] for entry in kept.values() if entry is not None and entry.id in known}
        return replace(review, changes=kept, snapshot=replace(review.snapshot, changes=kept, blobs=blobs))

    def _allowed(self, review: Review) -> bool:
        rule = self._case.review
        denied = [path for path in review.changes if any(fnmatchcase(path, pattern) for pattern in rule.deny)]
        if rule.allow:
            denied += [path for path in review.changes if not any(fnmatchcase(path, pattern) for pattern in rule.allow)]
        if denied:
            self._end.outcome, self._end.reason = "refused", f"{denied[0]} may not be touched"
        return not denied

    def _promote(self, session: UserSession, review: Review) -> bool:
        """Whether there is a result to check: the promoted commit, or durable as it is where nothing was changed."""
        end = self._end
        end.head = self._head
        if not review.changes:
            return True
        try:
            end.promoted = session.promote(review, strategy="commit", on_overlap=self._case.on_overlap).sha
        except BaselineConflict as conflict:
            end.outcome, end.reason = "conflict", self._line(f"durable changed {', '.join(conflict.conflicting_files)}")
            end.conflict = {path: str(conflict.kinds.get(path, "path")) for path in conflict.conflicting_files}
            self._tape.put("promote.refused", {"conflict": end.conflict})
        except DurableLocked:
            raise
        except _REFUSALS as refusal:
            end.outcome, end.reason = "refused", self._line(refusal.fact)
        points.reached("eval:promoted")
        return bool(end.promoted)

    def _check(self, world: World) -> None:
        end, case = self._end, self._case
        commit = end.promoted or end.head
        result = Result(case, world.durable.path, self._repository(world), end.head, commit)
        # By names that nobody knows beforehand: an agent that is not confined could have put something there.
        home, scratch = (Path(tempfile.mkdtemp(prefix="check-", dir=self._place)) for _ in range(2))
        # The case itself is not shown: what is checked is the agent's code, and it would find the solution there.
        launch = Launcher(world.durable.path, home, self._order.confinement, (scratch,))
        means = Means(launch, lambda: self._variables(world, home, {}), scratch, home)
        for check in case.checks:
            found, done = judge(check, result, means)
            found = replace(found, detail=self._line(found.detail))
            end.checks.append(found)
            self._tape.put("check.done", {"kind": found.kind, "ok": found.ok, "detail": found.detail})
            if done is not None:
                self._tape.timing.append({"check": found.kind, **finished_fields(done)})
        wrong = [check for check in end.checks if not check.ok]
        end.outcome = "fail" if wrong else "pass"
        end.reason = self._line("; ".join(f"{check.kind}: {check.detail}" for check in wrong))

    # Writing it down -----------------------------------------------------------------------------------------------------------

    def _unreviewable(self, world: World, session: UserSession, outcome: Outcome, reason: str) -> tuple[Record, Belongings]:
        """What the agent left is more than any review takes (too deep, too large, too much of it), or it left nothing."""
        end = self._end
        if end.outcome == "fail":
            end.outcome, end.reason = outcome, self._line(reason)
        self._tape.put("sample.done", {"outcome": end.outcome, "reason": end.reason})
        told = self._tape.events(world.gittrix.history(session.id), self._order.instant)
        events = lines(told)
        base = session.history()[0].data["baseline"]
        record = replace(self._begun(session), base=base, events=digest_bytes(events), event_count=len(told))
        transcript = self._desk.steps if self._desk is not None else []
        return record, Belongings(events, self._tape.timing, b"", transcript, self._packs, {}, {"base": base})

    def _begun(self, session: UserSession) -> Record:
        """The record with what is known whatever became of the work."""
        order, case, end = self._order, self._case, self._end
        return Record(
            key=order.key,
            id=case.id,
            epoch=order.epoch,
            seed=order.seed,
            case=case.digest,
            session=session.id,
            outcome=end.outcome,
            reason=end.reason,
            exit=end.exit,
        )

    def _written(self, world: World, session: UserSession, review: Review, patch: bytes) -> tuple[Record, Belongings]:
        end = self._end
        repository = self._repository(world)
        told = self._tape.events(world.gittrix.history(session.id), self._order.instant)
        events = lines(told)
        objects = dict(review.snapshot.objects)
        references = {"base": review.baseline, "final": review.tree}
        if end.promoted:
            objects |= new_objects(repository.objects.read, end.promoted, review.baseline)
            references["promoted"] = end.promoted
        record = replace(
            self._begun(session),
            base=review.baseline,
            final=review.tree,
            head=end.head,
            promoted=end.promoted,
            tree=repository.tree(end.promoted) if end.promoted else "",
            files=tuple(sorted(review.changes)),
            conflict=end.conflict,
            checks=tuple(end.checks),
            events=digest_bytes(events),
            event_count=len(told),
        )
        transcript = self._desk.steps if self._desk is not None else []
        return record, Belongings(events, self._tape.timing, patch, transcript, self._packs, objects, references)

    def _line(self, text: str) -> str:
        """A reason on one line that is not too long and the same each time; its end says as much as its beginning."""
        line = _ADDRESS.sub("0x…", " ".join(text.replace(str(self._place), "").split()))
        return line if len(line) <= _REASON else f"{line[: _REASON // 3]} … {line[-_REASON * 2 // 3 :]}"

    def _repository(self, world: World) -> Repository:
        durable: Any = world.gittrix.durable
        found: Repository = durable.repository
        return found

    def _durable_head(self, world: World) -> str:
        return require_head(self._repository(world), branch_ref(BRANCH))

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        with self._tape.timed(phase):
            yield


def _packs_of(repository: Repository) -> tuple[str, ...]:
    """The packs that the repository has before anything happens in it: those of its base."""
    directory = os.path.join(repository.objects_dir, "pack")
    return tuple(os.path.join(directory, name.removesuffix(".idx")) for name in sorted(os.listdir(directory)) if name.endswith(".idx"))


def _locked(workspace: Path | None) -> str:
    """What the agent did to its workspace that keeps it from being read; empty if nothing is seen of that kind."""
    if workspace is None:
        return ""
    if not workspace.is_dir() or workspace.is_symlink():
        return "the agent took its workspace away"
    if not os.access(workspace, os.R_OK | os.X_OK):
        return "the agent locked its workspace"
    for root, names, files in os.walk(workspace):
        names.sort()
        for name, needed in [*((name, os.R_OK | os.X_OK) for name in names), *((name, os.R_OK) for name in sorted(files))]:
            path = os.path.join(root, name)
            if not os.path.islink(path) and not os.access(path, needed):
                return f"the agent locked {os.path.relpath(path, workspace)}"
    return ""
