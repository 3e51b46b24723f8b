"""Session systems under the state machine: ours, natively and as any other is driven; a plain one; and how users take the machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import rule, run_state_machine_as_test

from fixtures.broken_systems.plain import PlainSystem
from fixtures.broken_systems.zoo import ZOO
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing import oracle as oracle_module
from pytest_gittrix.testing.machines import session_trial, work_trial
from pytest_gittrix.testing.machines.draws import many_files
from pytest_gittrix.testing.machines.machine_base import replay, steps_of
from pytest_gittrix.testing.machines.session_machine import RIVAL_POINTS, SandboxMachine, machine_for
from pytest_gittrix.testing.machines.session_trial import Trial
from pytest_gittrix.testing.profiles import SHRINKING
from pytest_gittrix.testing.repos.edits import DurableEdit, Edits, Tree
from pytest_gittrix.testing.repos.history import Executable, Symlink
from pytest_gittrix.testing.systems.driver import Stage, sandbox_of
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem
from pytest_gittrix.testing.systems.protocol import BASE, Capability
from pytest_gittrix.testing.systems.under_test import access_to, another_engine, in_another_process
from pytest_gittrix.testing.waivers import INVARIANTS, waive_for_the_run
from pytest_gittrix.testing.world import World

FILES = Tree({"a": b"1\n2\n3\n", "lib/b": b"2\n"})
LONG = EvictionPolicy()

TestEngine = machine_for(World.open).TestCase
TestDriven = machine_for(GitTrixSystem("clone")).TestCase
TestDrivenWithoutShell = machine_for(GitTrixSystem("lazy")).TestCase
TestPlain = machine_for(PlainSystem()).TestCase


# The machine ---------------------------------------------------------------------------------------------------------------------


class Declaring:
    """Our engine, as a system that declares no more than a test wants.

    Args:
        extended: what it declares besides ``BASE``.
    """

    def __init__(self, *extended: Capability) -> None:
        self.name = "declaring"
        self.capabilities = BASE | set(extended)
        self.open = GitTrixSystem("clone").open


def rules_of(machine: type[SandboxMachine]) -> set[str]:
    return {one.function.__name__ for one in machine.setup_state().rules}


def with_only(machine: type[SandboxMachine], *names: str) -> type[SandboxMachine]:
    """A machine without its other rules."""
    return type(machine.__name__, (machine,), dict.fromkeys(rules_of(machine) - {*names}))


ALWAYS = {
    "start",
    "agent_writes",
    "agent_looks",
    "agent_writes_much",
    "agent_ignores_what_it_edits",
    "durable_changes",
    "durable_is_rewound",
    "human_leaves_work_lying",
    "promote",
    "promote_over_drift",
    "promote_over_another_session",
    "promote_beside_a_rival",
    "promote_some",
    "promote_by_name",
    "evict",
    "sweep",
}
SHELL = {"agents_program_writes", "agents_program_renames", "agents_program_flips_the_mode", "agent_runs_git", "agent_ignores_everything"}
TIME = {"time_passes", "sweep_at_a_deadline"}
NATIVE = {"promote_a_review", "promote_and_reconcile", "promote_and_go_on", "rebase", "sessions_overlap"}


@pytest.mark.parametrize(
    ("declared", "more"),
    [
        ([], set()),
        ([Capability.DELETE], {"agent_deletes"}),
        ([Capability.DISCARD], {"discard"}),
        ([Capability.COMMITS], {"agent_commits"}),
        ([Capability.HUNKS], {"promote_hunks"}),
        ([Capability.EXTEND], {"extend"}),
        ([Capability.SHELL], SHELL),
        ([Capability.CLOCK], TIME),
        ([Capability.RESUME], {"engine_restarts"}),
        ([Capability.RESUME, Capability.PROCESSES], {"engine_restarts", "promote_in_another_process"}),
        ([Capability.PROCESSES, Capability.CRASH], set()),
        ([Capability.CLOCK, Capability.EXTEND, Capability.ABSOLUTE], {*TIME, "extend", "an_extension_leaves_the_absolute_time"}),
    ],
)
def test_a_system_is_asked_for_what_it_declares(declared: list[Capability], more: set[str]) -> None:
    assert rules_of(machine_for(Declaring(*declared))) == ALWAYS | more


def test_our_own_engine_is_asked_for_everything() -> None:
    everything = rules_of(SandboxMachine)

    assert rules_of(machine_for(World.open)) == everything
    assert rules_of(machine_for(GitTrixSystem())) == everything - NATIVE
    assert rules_of(machine_for(sandbox_of(PlainSystem()))) == rules_of(machine_for(PlainSystem()))


def test_a_system_that_declares_the_least_keeps_what_it_promises() -> None:
    machine = machine_for(Declaring())
    profile = settings(max_examples=10, stateful_step_count=15, deadline=None, derandomize=True, database=None)

    run_state_machine_as_test(machine, settings=profile)

    assert not machine.access.can(Capability.SHELL)


def test_settings_are_those_of_the_profile_but_for_what_hides_the_steps() -> None:
    taken, profile = machine_for(World.open).TestCase.settings, settings()

    assert taken.deadline is None
    assert Phase.explain not in taken.phases
    assert (taken.max_examples, taken.stateful_step_count) == (profile.max_examples, profile.stateful_step_count)
    assert taken.suppress_health_check == profile.suppress_health_check


def test_what_is_no_system_is_refused() -> None:
    with pytest.raises(InvalidInput, match="neither a session system nor a function"):
        machine_for(42)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="does not declare"):
        machine_for(type("Poor", (), {"name": "poor", "capabilities": frozenset(), "open": None})())


def test_a_machine_opens_the_system_it_is_for_and_has_the_rules_of_its_users() -> None:
    opened: list[dict[str, Any]] = []
    seen: list[str] = []

    @contextmanager
    def system(**arguments: Any) -> Iterator[World]:
        opened.append(arguments)
        with World.open(**arguments) as world:
            yield world

    @rule(session=SandboxMachine.sessions)
    def archive(self: SandboxMachine, session: Any) -> None:
        seen.append(session.name)

    machine = machine_for(system, rules=[archive])
    one = machine()
    session = one.world_opens(files=FILES, workspace="lazy", bare=True, policy=LONG)
    one.archive(session=session)  # type: ignore[attr-defined]
    one.teardown()

    assert "archive" in rules_of(machine)
    assert opened == [{"files": FILES, "workspace": "lazy", "bare": True, "sweep_interval": None}]
    assert seen == ["s1"]


@pytest.fixture(scope="module")
def failure() -> AssertionError:
    """Of a machine whose user asserts too much."""

    @rule(session=SandboxMachine.sessions)
    def explode(self: SandboxMachine, session: Any) -> None:
        raise AssertionError("boom")

    machine = with_only(machine_for(World.open, rules=[explode]), "explode")
    quiet = settings(database=None, derandomize=True, print_blob=False)  # whatever a continuous-integration system would like to read
    profile = settings(quiet, max_examples=5, deadline=None, suppress_health_check=[*HealthCheck])
    with pytest.raises(AssertionError, match="boom") as caught:
        run_state_machine_as_test(machine, settings=settings(profile, phases=[Phase.generate, Phase.shrink]))
    caught.value.machine = machine  # type: ignore[attr-defined]
    return caught.value


def test_a_failure_tells_its_steps_in_a_few_lines(failure: AssertionError) -> None:
    heading, *lines = [line for note in failure.__notes__ for line in note.splitlines()]

    assert heading.startswith(("Failing test case:", "Falsifying example:"))  # as the version of Hypothesis says it
    assert steps_of(failure) == ["state.explode(session=sessions_0)"]
    assert lines == [
        "state = SandboxMachine()",
        "sessions_0 = state.world_opens(files=Tree({'a': b''}), workspace='lazy', bare=False, policy=EvictionPolicy())",
        "state.explode(session=sessions_0)",
        "state.teardown()",
    ]


def test_what_a_failure_printed_can_be_done_again(failure: AssertionError) -> None:
    printed = "\n".join(line for note in failure.__notes__ for line in note.splitlines() if line.startswith(("state", "sessions_")))

    with pytest.raises(AssertionError, match="boom"):
        replay(failure.machine, printed)  # type: ignore[attr-defined]


# Trials, written down ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workspace", ["lazy", "clone", "copy"])
def test_a_trial_can_be_written_down(workspace: str) -> None:
    with Trial(World.open, files=FILES, workspace=workspace) as trial:
        first, second = trial.start(EvictionPolicy()), trial.start(EvictionPolicy())
        trial.write(first, "a", b"1\n2\nthree\n")
        trial.delete(second, "lib/b")
        trial.commit(first)
        trial.durable_edit(DurableEdit("disjoint", (Edits({"c": b"3\n"}),)), at_the_desk=True)

        answers = [trial.promote(first), trial.promote(second, ["a"]), trial.promote(second), trial.promote(first)]
        trial.check_all()

    assert answers == ["OK", "PROMOTE_FAILED", "OK", "SESSION_EXPIRED"]


@pytest.mark.parametrize("workspace", ["clone", "copy"])
def test_programs_of_the_agent_are_seen(workspace: str) -> None:
    with Trial(World.open, files=FILES, workspace=workspace) as trial:
        session = trial.start(EvictionPolicy())
        trial.shell(session, Edits({"a": Executable(b"1\n2\n3\n"), "link": Symlink(b"a"), "lib/b": None, "lib": b"now a file\n"}))
        trial.run(session, "git add -A && git commit -qm own && git rm -rq --cached .")
        trial.look(session)

        assert trial.promote(session) == "OK"
        trial.check_all()


@pytest.mark.parametrize("point", RIVAL_POINTS)
def test_a_rival_comes_in_at_each_of_the_points_that_the_machine_draws(point: str) -> None:
    with Trial(World.open, files=FILES, workspace="lazy") as trial:
        session = trial.start(EvictionPolicy())
        trial.write(session, "a", b"agent\n")

        trial.promote_beside_a_rival(session, DurableEdit("disjoint", (Edits({"c": b"3\n"}),)), point)

        assert {"a", "c"} <= trial.judge.tree(trial.model.head).keys()


@pytest.mark.parametrize("dies_at", range(1, 9))
def test_a_promotion_killed_in_another_process_is_whole_or_not_at_all(dies_at: int) -> None:
    with Trial(World.open, files=FILES, workspace="lazy") as trial:
        session = trial.start(EvictionPolicy())
        trial.write(session, "a", b"agent\n")

        landed = trial.promote_elsewhere(session, lambda action: in_another_process(action, dies_at=dies_at))
        trial.check_all()

        assert trial.promote(session) == ("SESSION_EXPIRED" if landed else "OK")


@pytest.mark.parametrize("dies_at", [1, 10, 30, None])
def test_a_driven_system_is_killed_at_any_call_that_changes_a_file(dies_at: int | None) -> None:
    with Trial(PlainSystem(), files=FILES) as trial:
        session = trial.start(LONG)
        trial.write(session, "a", b"agent\n")

        landed = trial.promote_elsewhere(session, lambda action: trial.elsewhere(action, dies_at=dies_at))
        trial.check_all()

        assert landed is (dies_at is None)


def test_a_look_need_not_be_a_use_of_a_system_that_is_not_ours() -> None:
    with Trial(PlainSystem(), files=FILES) as trial:
        looked_at, left_alone = trial.start(LONG), trial.start(LONG)
        trial.world.clock.advance(hours=3)
        trial.look(looked_at)
        trial.world.clock.advance(hours=3)

        trial.sweep()

        assert trial.model.sessions[left_alone.id].state == "expired"


def test_another_process_that_fails_in_earnest_fails_the_test() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        in_another_process(fail)
    assert in_another_process(lambda: None)


def test_another_engine_works_on_the_same_sessions() -> None:
    with World.open(files=FILES) as world:
        session = world.start()
        other = another_engine(world, 1)

        assert [record.id for record in other.list_sessions()] == [session.id]
        assert other.start_session("more").id != session.id
        other.close()


def test_a_sandbox_that_can_reopen_itself_is_asked_to() -> None:
    class Reopening:
        def reopen(self) -> str:
            return "mine"

    assert another_engine(Reopening(), 1) == "mine"


def test_a_promotion_that_leaves_more_than_its_commit_is_found() -> None:
    class Littering(GitTrixSystem):
        def open(self, place: Any) -> Any:
            engine = super().open(place)
            whole = engine.promote

            def promote(*arguments: Any, **options: Any) -> Any:
                made = whole(*arguments, **options)
                place.durable.git("branch", "left-behind", made.sha)
                return made

            engine.promote = promote  # type: ignore[method-assign]
            return engine

    with Trial(Littering(), files=FILES) as trial:
        session = trial.start(LONG)
        trial.write(session, "a", b"agent\n")
        with pytest.raises(AssertionError, match=r"refs/heads/left-behind: nothing(.|\n)*waive durable-untouched"):
            trial.promote(session)


def test_the_entry_of_a_systems_own_work_tree_is_no_change_of_durable() -> None:
    with Trial(GitTrixSystem("worktree"), files=FILES) as trial:
        session = trial.start(LONG)
        trial.write(session, "a", b"agent\n")
        trial.evict(session)

        assert trial.model.sessions[session.id].state != "active"


class KeepsARemote(GitTrixSystem):
    """Our engine, with a remote in each workspace."""

    def open(self, place: Any) -> Any:
        engine = super().open(place)
        whole = engine.start

        def start(*arguments: Any, **options: Any) -> str:
            id_ = whole(*arguments, **options)
            with open(engine.workspace(id_) / ".git" / "config", "a", encoding="utf-8") as config:
                config.write('[remote "review"]\n\turl = https://review.example.org\n')
            return id_

        engine.start = start  # type: ignore[method-assign]
        return engine


def test_a_file_of_a_person_may_not_change_wherever_it_is() -> None:
    with Trial(GitTrixSystem("worktree"), files=FILES) as trial:
        trial.start(LONG)
        trial.world.durable.stage({"worktrees/notes.txt": "notes\n"})

        with pytest.raises(AssertionError, match=r"index: worktrees/notes\.txt: nothing(.|\n)*work tree: worktrees/notes\.txt: nothing"):
            trial.check()


def test_one_invariant_is_waived_and_the_others_are_still_required() -> None:
    def trial(waived: Iterable[str]) -> None:
        with Trial(KeepsARemote("clone"), files=FILES, waived=[*waived]) as running:
            running.start(LONG)
            running.check_all()

    trial(["workspace-no-remote"])
    with pytest.raises(AssertionError, match="A workspace knows no remote"):
        trial(set(INVARIANTS) - {"workspace-no-remote"})


def test_a_machine_waives_what_it_its_system_and_the_run_waive(monkeypatch: pytest.MonkeyPatch) -> None:
    system = KeepsARemote("clone")
    monkeypatch.setattr(system, "waivers", {"workspace-no-remote": "a review server", "CNF-01": "a clause"}, raising=False)
    machine = machine_for(system, waivers={"listing": "names are folded"})
    before = waive_for_the_run({"touched": "for this run"})
    try:
        state = machine()
        with state.stage_opens(files=FILES, bare=False, policy=LONG) and state.trial as trial:
            assert {"workspace-no-remote", "listing", "touched"} <= {*trial.waived}
    finally:
        waive_for_the_run(before)


@pytest.mark.parametrize(
    ("waivers", "message"),
    [
        ({"workspace-no-remotes": "why"}, "which is no invariant(.|\n)*Did you mean workspace-no-remote\\?"),
        ({"CNF-01": "why"}, "waives 'CNF-01', which is no invariant"),
        ({"listing": " "}, "The waiver of listing by the machine has no reason"),
        (["listing"], "are no mapping"),
    ],
)
def test_a_wrong_waiver_of_an_invariant_is_refused(waivers: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        machine_for(PlainSystem(), waivers=waivers)


def test_a_wrong_waiver_of_a_system_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    system = PlainSystem()
    monkeypatch.setattr(system, "waivers", {"CNF-01": "a clause", "workspace-no-remotes": "why"}, raising=False)

    with pytest.raises(InvalidInput, match="the system waives 'workspace-no-remotes'"):
        machine_for(system)


def test_the_page_lists_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "strategies.md").read_text(encoding="utf-8")
    rows = page.partition("| rule | does | needs |")[2].partition("\n\n")[0].splitlines()[2:]
    opening = {one.function.__name__ for one in SandboxMachine.setup_state().initializers}

    assert sorted(row.split("`")[1] for row in rows) == sorted(rules_of(SandboxMachine) | opening)


def test_the_page_lists_the_invariants_that_can_be_waived() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "strategies.md").read_text(encoding="utf-8")
    rows = page.partition("| invariant | says |")[2].partition("\n\n")[0].splitlines()[2:]

    assert rows == [f"| `{name}` | {says} |" for name, says in INVARIANTS.items()]
    oracle = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (oracle_module, session_trial, work_trial))  # type: ignore[arg-type]
    assert {*re.findall(r'name="([a-z-]+)"', oracle)} == {*INVARIANTS}


def test_a_stage_is_a_sandbox() -> None:
    with Stage.open(PlainSystem(), files=FILES) as stage:
        first = stage.start()
        other = another_engine(stage, 1)

        assert access_to(PlainSystem()).states(other) == {first.id: "active"}


def test_the_trial_complains_about_a_system_that_lies() -> None:
    with World.open(files=FILES) as world:
        world.gittrix.sweep = list  # type: ignore[method-assign]

        @contextmanager
        def system(**_arguments: Any) -> Iterator[World]:
            yield world

        with Trial(system, files=FILES) as trial:
            trial.start(EvictionPolicy())
            world.clock.advance(hours=5)
            with pytest.raises(AssertionError, match="exactly the sessions past their deadline"):
                trial.sweep()


def test_a_session_past_its_time_is_refused_before_a_sweep_came() -> None:
    with Trial(PlainSystem(), files=FILES) as trial:
        session = trial.start(LONG)
        trial.write(session, "a", b"agent\n")

        trial.after_the_last_instant(session)

        assert trial.model.sessions[session.id].state == "expired"
        assert trial.promote(session) == "SESSION_EXPIRED"


def test_a_system_that_waives_it_may_promote_what_is_past_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    system = PlainSystem()
    monkeypatch.setattr(system, "waivers", {"END-07": "a timer ends sessions"}, raising=False)
    with Trial(system, files=FILES) as trial:
        session = trial.start(LONG)
        trial.world.clock.advance(hours=5)

        trial.settle()

        assert trial.model.sessions[session.id].state == "expired"


def test_what_a_system_leaves_in_durable_when_all_have_ended_is_found() -> None:
    with Trial(ZOO["discards leave a reference"].system(), files=FILES) as trial:
        trial.discard(trial.start(LONG))
        with pytest.raises(AssertionError, match=r"refs/gittrix/plain-1(.|\n)*waive nothing-stays"):
            trial.end_all()


def test_a_failed_promotion_names_what_was_selected_and_where_durable_changed() -> None:
    with Trial(ZOO["drift is cut short"].system(), files=FILES, bare=True) as trial:
        session = trial.start(LONG)
        trial.edit(session, Edits({"a": b"agent\n"}))
        trial.durable_edit(DurableEdit("disjoint", (Edits(many_files(b"human\n")),)), at_the_desk=False)
        trial.durable_edit(DurableEdit("overlap", (Edits({"a": b"human\n"}),)), at_the_desk=False)

        with pytest.raises(AssertionError, match=r"promote\(\) of 'a', of which durable changed 'a', must answer BASELINE_CONFLICT"):
            trial.promote(session)


def test_shrinking_stops_after_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(stateful, "run_state_machine_as_test", lambda *_, **__: seen.append(engine.MAX_SHRINKING_SECONDS))
    before = engine.MAX_SHRINKING_SECONDS

    machine_for(World.open).TestCase("runTest").runTest()

    assert (seen, engine.MAX_SHRINKING_SECONDS) == ([SHRINKING], before)
