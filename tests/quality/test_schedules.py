"""The engine in every order of its actors, up to two preemptions: no history that no sequence of operations explains.

What is judged is the same for all of them: each answer, with commits known by their height on the branch afterwards, must be what the
sequential model answers in some order that respects real time. The numbers of orders are printed.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.backends.protocol import Drift, Durable, LandingResult
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.commit import BuiltCommit
from pytest_gittrix.git.refs import RefMoved
from pytest_gittrix.git.tree import Changes
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.schedules.explorer import Run, explore, replay, schedules
from pytest_gittrix.testing.schedules.linearize import CallHistory, require_linear
from pytest_gittrix.testing.schedules.sequential import SessionOp, Sessions, session_calls, sessions_model
from pytest_gittrix.testing.world import World

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "find-a-lost-update.md"
FILES = {"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n"}


@dataclass
class Scene:
    """A world with a second engine beside its own, as another machine's user has it, and the history of what is done there.

    Attributes:
        world: the world.
        elsewhere: an engine on the same durable repository with a store and locks of its own.
        history: what was done.
        sessions: by the names the history has for them.
        engines: the engine that started each of them.
    """

    world: World
    elsewhere: GitTrix
    history: CallHistory[SessionOp] = field(default_factory=CallHistory)
    sessions: dict[str, UserSession] = field(default_factory=dict)
    engines: dict[str, GitTrix] = field(default_factory=dict)

    @property
    def durable(self) -> DurableRepo:
        """The world's."""
        return self.world.durable

    def start(self, name: str, *paths: str, engine: GitTrix | None = None, actor: str = "before") -> None:
        """A session whose agent changes some paths."""
        chosen = engine or self.world.gittrix
        op = SessionOp("start", name, paths)
        session = self.history.call(actor, op, lambda: chosen.start_session(name), lambda made: made.info().baseline_sha)
        for path in paths:
            session.write(path, f"{name}'s {path}\n")
        self.sessions[name] = session
        self.engines[name] = chosen

    def promote(self, name: str, *, actor: str) -> None:
        """Promote all of a session."""
        self.history.call(actor, SessionOp("promote", name), self.sessions[name].promote, lambda result: result.sha)

    def evict(self, name: str, *, actor: str) -> None:
        """Discard a session."""
        self.history.call(actor, SessionOp("evict", name), self.sessions[name].discard)

    def sweep(self, name: str, *, actor: str) -> None:
        """A sweep; its only session may be ``name``."""
        engine = self.engines[name]
        self.history.call(actor, SessionOp("sweep", name), engine.sweep, lambda gone: gone == [self.sessions[name].id])

    def late(self, *, actor: str) -> None:
        """Let the time of all sessions run out."""
        self.history.call(actor, SessionOp("late"), lambda: self.world.clock.advance(hours=5), lambda _: None)

    def commit(self, *paths: str, actor: str) -> None:
        """A rival's commit."""
        contents = {path: f"{actor}'s {len(self.history.calls)}\n" for path in paths}
        self.history.call(actor, SessionOp("commit", paths=paths), lambda: self.world.rival.commit(contents))

    def head(self, *, actor: str) -> None:
        """Where durable is."""
        self.history.call(actor, SessionOp("head"), self.world.durable.head)


Prepare = Callable[[Scene], object]


def prepared(directory: Path, prepare: Prepare, wrapped: Callable[[Durable], Durable] = lambda durable: durable) -> Callable[[], Any]:
    """Makes scenes, each in a world of its own, with sessions that ``prepare`` starts."""

    @contextmanager
    def make() -> Iterator[Scene]:
        options: dict[str, Any] = {"workspace": "lazy", "bare": True, "sweep_interval": None}
        with World.open(directory / "world", files=FILES, keep=False, **options) as world:
            durable = world.gittrix.durable
            assert durable is not None
            elsewhere = GitTrix(
                wrapped(durable),
                LocalEphemeral(kind="lazy"),
                store=world.path / "elsewhere" / "sessions",
                clock=world.clock,
                sweep_interval=None,
                durability="fast",
                strategy="commit",
                ids=seeded_ids(1),
            )
            with closing(elsewhere):
                scene = Scene(world, elsewhere)
                prepare(scene)
                yield scene

    return make


def judge(scene: Scene, run: Run) -> None:
    """The history is that of a session system, and nothing is left lying about."""
    require_linear(session_calls(scene.history.calls, [commit.id for commit in run.log]), Sessions(), sessions_model)
    assert all(len(commit.parents) == 1 for commit in run.log[:-1]), "NOT A LINE: a commit has other than one parent"
    remains = [path.name for path in (scene.world.path / "durable").rglob("*") if path.suffix in (".lock", ".keep")]
    assert remains == [], f"LEFT BEHIND: {remains}"


@dataclass(frozen=True)
class Case:
    """Some actors, and the endings they must come to in one order or another, so that the case shows what it says."""

    prepare: Prepare
    actors: Mapping[str, Callable[[Scene], object]]
    endings: frozenset[str]
    bound: int = 2


def starts(*sessions: tuple[str, ...], elsewhere: tuple[str, ...] = ()) -> Prepare:
    """Start sessions; those of the names in ``elsewhere`` there."""

    def prepare(scene: Scene) -> None:
        for name, *paths in sessions:
            scene.start(name, *paths, engine=scene.elsewhere if name in elsewhere else None)

    return prepare


def due(*session: str) -> Prepare:
    """One session whose time is up."""

    def prepare(scene: Scene) -> None:
        scene.start(*session)
        scene.late(actor="before")

    return prepare


def promotes(name: str, actor: str) -> dict[str, Callable[[Scene], object]]:
    """An actor that promotes."""
    return {actor: lambda scene: scene.promote(name, actor=actor)}


def commits(*paths: str) -> dict[str, Callable[[Scene], object]]:
    """The rival."""
    return {"rival": lambda scene: scene.commit(*paths, actor="rival")}


def sweeps(name: str, actor: str = "sweeper") -> dict[str, Callable[[Scene], object]]:
    """An actor that sweeps."""
    return {actor: lambda scene: scene.sweep(name, actor=actor)}


def passes_and_sweeps(scene: Scene) -> None:
    scene.late(actor="sweeper")
    scene.sweep("s1", actor="sweeper")


def looks_twice(scene: Scene) -> None:
    scene.head(actor="B")
    points.reached("look:again")
    scene.head(actor="B")


def starts_and_promotes(scene: Scene) -> None:
    scene.start("s1", "a.txt", actor="A")
    scene.promote("s1", actor="A")


BOTH = {**promotes("s1", "A"), **promotes("s2", "B")}
CASES = {
    "two promotions, disjoint": Case(starts(("s1", "a.txt"), ("s2", "b.txt")), BOTH, frozenset({"A done, B done"})),
    "two promotions, overlapping": Case(
        starts(("s1", "a.txt"), ("s2", "a.txt", "b.txt")), BOTH, frozenset({"A done, B BASELINE_CONFLICT", "A BASELINE_CONFLICT, B done"})
    ),
    "two promotions of two engines, disjoint": Case(
        starts(("s1", "a.txt"), ("s2", "b.txt"), elsewhere=("s2",)), BOTH, frozenset({"A done, B done"})
    ),
    "two promotions of two engines, overlapping": Case(
        starts(("s1", "a.txt"), ("s2", "a.txt", "b.txt"), elsewhere=("s2",)),
        BOTH,
        frozenset({"A done, B BASELINE_CONFLICT", "A BASELINE_CONFLICT, B done"}),
    ),
    "two promotions of one session": Case(
        starts(("s1", "a.txt")),
        {**promotes("s1", "A"), **promotes("s1", "B")},
        frozenset({"A done, B SESSION_EXPIRED", "A SESSION_EXPIRED, B done"}),
    ),
    "promotion and sweep of a due session": Case(
        due("s1", "a.txt"), {**promotes("s1", "A"), **sweeps("s1")}, frozenset({"A SESSION_EXPIRED, sweeper done"})
    ),
    "promotion and sweep while time runs out": Case(
        starts(("s1", "a.txt")),
        {**promotes("s1", "A"), "sweeper": passes_and_sweeps},
        frozenset({"A done, sweeper done", "A SESSION_EXPIRED, sweeper done"}),
    ),
    "two sweeps": Case(due("s1", "a.txt"), {**sweeps("s1", "A"), **sweeps("s1", "B")}, frozenset({"A done, B done"})),
    "promotion and rival commit, disjoint": Case(
        starts(("s1", "a.txt")), {**promotes("s1", "A"), **commits("b.txt")}, frozenset({"A done, rival done"})
    ),
    "promotion and rival commit, overlapping": Case(
        starts(("s1", "a.txt")),
        {**promotes("s1", "A"), **commits("a.txt")},
        frozenset({"A done, rival done", "A BASELINE_CONFLICT, rival done"}),
    ),
    "promotion and evict": Case(
        starts(("s1", "a.txt")),
        {**promotes("s1", "A"), "B": lambda scene: scene.evict("s1", actor="B")},
        frozenset({"A done, B SESSION_EXPIRED", "A SESSION_EXPIRED, B done"}),
    ),
    "start and rival commit": Case(
        starts(),
        {"A": starts_and_promotes, **commits("a.txt")},
        frozenset({"A done, rival done", "A BASELINE_CONFLICT, rival done"}),
    ),
    "two promotions and a rival": Case(
        starts(("s1", "a.txt"), ("s2", "b.txt"), elsewhere=("s2",)),
        {**BOTH, **commits("b.txt")},
        frozenset({"A done, B done, rival done", "A done, B BASELINE_CONFLICT, rival done"}),
        bound=1,
    ),
    "promotion, rival and sweep while time runs out": Case(
        starts(("s1", "a.txt")),
        {**promotes("s1", "A"), **commits("a.txt"), "sweeper": passes_and_sweeps},
        frozenset(f"A {ends}, rival done, sweeper done" for ends in ("done", "BASELINE_CONFLICT", "SESSION_EXPIRED")),
        bound=1,
    ),
    "promotion and somebody who looks": Case(
        starts(("s1", "a.txt")), {**promotes("s1", "A"), "B": looks_twice}, frozenset({"A done, B done"})
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_order_is_one_that_a_sequence_of_operations_explains(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = explore(prepared(tmp_path, case.prepare), actors=case.actors, bound=case.bound, check=judge)
    print(f"{name}: {found}")
    found.verify()
    assert found.complete
    assert set(found.endings) == case.endings


def does(ops: Sequence[SessionOp], actor: str) -> Callable[[Scene], None]:
    """An actor that does one operation after another, refused or not."""

    def act(scene: Scene) -> None:
        for op in ops:
            points.reached("program:next")
            if op.do in ("promote", "evict") and op.session not in scene.sessions:
                continue  # not started yet: nobody can name it
            with suppress(GittrixError):
                match op.do:
                    case "start":
                        scene.start(op.session, *op.paths, actor=actor)
                    case "promote":
                        scene.promote(op.session, actor=actor)
                    case "evict":
                        scene.evict(op.session, actor=actor)
                    case "head":
                        scene.head(actor=actor)
                    case "commit":
                        scene.commit(*op.paths, actor=actor)

    return act


def programs(name: str) -> st.SearchStrategy[list[SessionOp]]:
    """Up to three operations, on sessions of the scene or on the actor's own."""
    paths = st.lists(st.sampled_from([*FILES]), min_size=1, max_size=2, unique=True).map(tuple)
    sessions = st.sampled_from(["s1", "s2", name])
    promote = st.builds(SessionOp, st.just("promote"), sessions)
    started = st.builds(lambda paths: [SessionOp("start", name, paths), SessionOp("promote", name)], paths)
    one = st.one_of(
        promote,
        st.builds(SessionOp, st.just("evict"), sessions),
        st.builds(lambda paths: SessionOp("commit", paths=paths), paths),
        st.just(SessionOp("head")),
    )
    return st.one_of(started, st.lists(one, min_size=1, max_size=3))


@given(schedule=schedules("AB", steps=60), a=programs("a"), b=programs("b"))
def test_drawn_programs_in_drawn_orders_are_explained(schedule: list[tuple[int, str]], a: list[SessionOp], b: list[SessionOp]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        make = prepared(Path(directory), starts(("s1", "a.txt"), ("s2", "a.txt", "b.txt"), elsewhere=("s2",)))
        replay(schedule, make, actors={"A": does(a, "A"), "B": does(b, "B")}, check=judge).verify()


class Wrapped:
    """A durable repository with a defect; what is not defective is the real one's."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._durable, name)


class CheckedOutsideTheLock(Wrapped):
    """Looks whether the branch has moved, and then moves it without holding it."""

    def land(self, branch: str, built: BuiltCommit, changes: Changes, *, expected: str | None, **rest: Any) -> LandingResult:
        now = self._durable.head(branch)
        if now != expected:
            raise RefMoved(branch, now)
        points.reached("land:checked")
        return self._durable.land(branch, built, changes, expected=self._durable.head(branch), **rest)


class DriftJudgedOnce(Wrapped):
    """After a lost race it takes the drift it knows."""

    def drift(self, *asked: Any) -> Drift:
        if "_known" not in vars(self):
            self._known = self._durable.drift(*asked)
        return self._known


class NoLease:
    """Lets everybody in."""

    def acquire(self) -> Self:
        """Do not wait."""
        return self

    def release(self, *_: object) -> None:
        """Nothing was held."""

    def remove(self) -> None:
        """Nothing is there."""

    __enter__, __exit__ = acquire, release


def unlocked(scene: Scene) -> None:
    """A session that two promotions can enter at once."""
    scene.world.gittrix.store.lease = lambda *_, **__: NoLease()
    scene.start("s1", "a.txt")


def of_elsewhere(*session: str) -> Prepare:
    return starts(session, elsewhere=session[:1])


@dataclass(frozen=True)
class Seeded:
    """A defect, and who runs into it."""

    prepare: Prepare
    actors: Mapping[str, Callable[[Scene], object]]
    wrapped: Callable[[Durable], Any] = lambda durable: durable


SEEDED = {
    "checked outside the lock": Seeded(starts(("s1", "a.txt"), ("s2", "b.txt"), elsewhere=("s1",)), BOTH, CheckedOutsideTheLock),
    "drift judged once": Seeded(of_elsewhere("s1", "a.txt"), {**promotes("s1", "A"), **commits("a.txt")}, DriftJudgedOnce),
    "no lease": Seeded(unlocked, {**promotes("s1", "A"), **promotes("s1", "B")}),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_defect_is_found_and_shrunk_to_a_few_turns(name: str, tmp_path: Path) -> None:
    seeded = SEEDED[name]
    make = prepared(tmp_path, seeded.prepare, seeded.wrapped)
    played = 0

    def fails(schedule: list[tuple[int, str]]) -> bool:
        nonlocal played
        played += 1
        return replay(schedule, make, actors=seeded.actors, check=judge).finding is not None

    began = time.monotonic()
    schedule = find(schedules(seeded.actors), fails, settings=settings(max_examples=500, database=None, deadline=None))
    seconds = time.monotonic() - began
    run = replay(schedule, make, actors=seeded.actors, check=judge)
    print(f"{name}: found and shrunk in {seconds:.1f} s, {played} orders\n{run}")

    assert replay(run.schedule, make, actors=seeded.actors, check=judge).steps == run.steps
    assert run.headline.startswith("NOT LINEARISABLE")
    assert len(run.schedule) <= 2
    assert run.turns <= 6


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_defect_is_found_by_trying_every_order(name: str, tmp_path: Path) -> None:
    seeded = SEEDED[name]
    found = explore(prepared(tmp_path, seeded.prepare, seeded.wrapped), actors=seeded.actors, bound=1, check=judge)
    print(f"{name}: {found}")

    assert 0 < len(found.findings) < len(found.runs)
    with pytest.raises(AssertionError, match="NOT LINEARISABLE"):
        found.verify()


def test_the_page_shows_what_its_test_prints(pytester: pytest.Pytester) -> None:
    page = PAGE.read_text(encoding="utf-8")
    program, output = (re.search(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) for language in ("python", "text"))
    assert program
    assert output
    pytester.makepyfile(test_promote=program[1])

    result = pytester.runpytest_subprocess("-p", "no:schemathesis", timeout=120)

    result.assert_outcomes(failed=1)
    shown = [line.removeprefix("E       ").removeprefix("AssertionError: ").rstrip() for line in result.outlines if line.startswith("E ")]
    assert [line for line in shown if line] == [line for line in output[1].splitlines() if line]
