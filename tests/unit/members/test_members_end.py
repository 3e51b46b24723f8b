"""How a member's session ends: its agent goes, is stopped or killed; what it left is saved, and the workspace is retained, every time."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemon import wait_until
from support.git import GitRepo
from support.members import Crew

from pytest_gittrix import points
from pytest_gittrix.confine.levels import strongest
from pytest_gittrix.engine.operations.requester import on_behalf_of
from pytest_gittrix.errors import InvalidInput, PersonRequired, SessionNotFound
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.repos.remote_repos import BareRemote

# An agent that goes by itself ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "number"), [(0, None), (3, None), (None, signal.SIGKILL)])
def test_however_an_agent_goes_its_work_is_saved_and_its_session_completes(crew: Crew, code: int | None, number: int | None) -> None:
    script = crew.script().write("projects/app/left.txt", "left\n")
    life = crew.ended(script.exits(code) if code is not None else script.kill_itself(int(number or 0)), work_item="app#1")

    assert crew.members.exited() == [life.id]
    (ended,) = crew.members.observe()

    assert crew.states(life.id) == ["active", "finalizing", "completed", "retained"]
    assert ended == crew.members.get(life.id)
    assert ended.agent is not None
    assert (ended.agent.code, ended.agent.signal) == (code, number)
    assert ended.result is not None
    assert ended.result.exit_status == "CompletedDegraded"  # it was on no branch
    assert crew.app.text("show", f"{ended.result.recovery_branches[0].branch}:left.txt") == "left"
    assert (ended.locks, crew.held(), ended.unsaved) == ((), {}, False)
    assert crew.members.exited() == []


def test_a_session_without_work_completes_and_says_that_nothing_was_to_be_saved(crew: Crew) -> None:
    life = crew.members.finish(crew.ended().id)
    assert (life.state, life.ended) == ("retained", "completed")
    assert life.result is not None
    assert life.result.exit_status == "Skipped"
    assert [event.data["action"] for event in crew.events(life.id) if event.type == "finalize.repository"] == ["skipped", "skipped"]


def test_a_remote_that_takes_nothing_fails_the_session_and_its_work_stays(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"))
    crew.app.path.rename(crew.app.path.with_suffix(".aside"))

    ended = crew.members.finish(life.id)

    assert (ended.state, ended.ended, ended.unsaved) == ("retained", "failed", True)
    assert (crew.repo(life.id) / "left.txt").exists()


def test_a_finalization_that_cannot_even_begin_fails_the_session_instead_of_staying_for_ever(crew: Crew) -> None:
    life = crew.ended()
    (crew.directory(life.id) / "finalize").write_text("in the way")
    ended = crew.members.finish(life.id)
    assert (ended.state, ended.ended, ended.unsaved) == ("retained", "failed", True)


def test_a_session_whose_workspace_is_gone_completes(crew: Crew) -> None:
    life = crew.chat()
    shutil.rmtree(crew.workspace(life.id))
    ended = crew.members.finish(life.id)
    assert (ended.state, ended.ended, ended.result and ended.result.exit_status) == ("retained", "completed", "Skipped")


def test_a_live_agent_is_not_finished(crew: Crew) -> None:
    life = crew.start()
    assert crew.members.exited() == []
    with pytest.raises(InvalidInput, match="runs"):
        crew.members.finish(life.id)
    assert crew.members.get(life.id).state == "active"


def test_an_agent_that_is_launched_meanwhile_is_not_finished(crew: Crew) -> None:
    arrived, go = threading.Event(), threading.Event()

    def stand(name: str) -> None:
        if name == "lease:busy":
            go.set()
        elif name == "member:active":
            arrived.set()
            assert go.wait(60)

    with points.listening(stand), ThreadPoolExecutor(1) as pool:
        starting = pool.submit(crew.start, crew.script().polite().at("up").hang(), id="mine")
        assert arrived.wait(60)
        assert crew.members.get("mine").agent is None
        with pytest.raises(InvalidInput, match="runs"):
            crew.members.finish("mine")
        assert starting.result().state == "active"
    crew.agents.wait_for("up")
    assert "agent.exited" not in crew.types("mine")


def test_what_an_agent_left_running_is_ended_before_its_work_is_saved(crew: Crew) -> None:
    life = crew.ended(crew.script().spawn_child(crew.script("child").polite().hang()))
    crew.members.finish(life.id)
    assert crew.agents.gone("child")


def test_an_interactive_session_ends_when_somebody_says_so(crew: Crew) -> None:
    life = crew.chat()
    crew.commit(life.id, "said.txt", branch="talk")
    assert crew.members.exited() == []

    ended = crew.members.finish(life.id)

    assert crew.states(life.id) == ["active", "finalizing", "completed", "retained"]
    assert ended.result is not None
    assert [one.branch for one in ended.result.pushed_branches] == ["talk"]


def test_as_botminters_code_has_it_a_dead_agent_is_a_failure_and_nothing_is_saved(crew: Crew) -> None:
    members = crew.manager(dead="fail")
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"))

    (ended,) = members.observe()

    assert crew.states(life.id) == ["active", "failed", "retained"]
    assert (ended.attempts, ended.unsaved) == (0, True)
    assert crew.branches() == {"main": crew.app.head()}


# Stopping ------------------------------------------------------------------------------------------------------------------------


def test_a_polite_agent_is_asked_and_its_work_saved(crew: Crew) -> None:
    life = crew.start(crew.script().write("projects/app/left.txt", "left\n").polite(7).at("up").hang())
    crew.agents.wait_for("up")

    stopped = crew.members.stop(life.id, reason="enough")

    assert crew.agents.asked == ["SIGTERM"]
    assert crew.states(life.id) == ["active", "finalizing", "completed", "retained"]
    assert stopped.agent is not None
    assert stopped.agent.code == 7
    assert (stopped.stop_ns, stopped.forced) == (crew.clock.now_ns(), False)
    assert [event.data for event in crew.events(life.id) if event.type == "stop.requested"] == [{"reason": "enough"}]
    assert "left.txt" in crew.app.text("log", "--all", "--name-only", "--format=")


def test_one_that_does_not_listen_is_killed_after_the_grace_with_all_that_it_started(crew: Crew) -> None:
    members = crew.manager(grace=0.2)
    life = crew.start(crew.script().deaf().spawn_child().at("up").hang())
    crew.agents.wait_for("up")

    stopped = members.stop(life.id)

    assert crew.agents.gone()
    assert (stopped.state, stopped.ended) == ("retained", "completed")
    assert stopped.agent is not None
    assert stopped.agent.signal == signal.SIGKILL


def test_by_force_it_is_killed_and_retained_and_nothing_is_saved(crew: Crew) -> None:
    life = crew.start(crew.script().write("projects/app/left.txt", "left\n").polite().at("up").hang(), work_item="app#1")
    crew.agents.wait_for("up")

    killed = crew.members.stop(life.id, force=True)

    assert crew.agents.gone()
    assert crew.agents.asked == []
    assert crew.states(life.id) == ["active", "killed", "retained"]
    assert (killed.ended, killed.forced, killed.attempts, killed.locks, crew.held()) == ("killed", True, 0, (), {})
    assert killed.agent is not None
    assert killed.agent.signal == signal.SIGKILL
    assert (crew.repo(life.id) / "left.txt").exists()
    assert crew.members.exited() == []


def test_the_state_is_stored_before_anything_is_killed(crew: Crew) -> None:
    life = crew.start()
    seen: list[bool] = []

    def look(name: str) -> None:
        if name == "member:retained":
            seen.append(crew.members.process(life.id).observe().state == "alive")  # type: ignore[union-attr]

    with points.listening(look):
        crew.members.stop(life.id, force=True)
    assert seen == [True]


@pytest.mark.parametrize("force", [False, True])
def test_to_stop_what_is_over_is_no_error_and_does_nothing(crew: Crew, force: bool) -> None:
    life = crew.members.stop(crew.start().id)
    before = crew.events(life.id)
    assert crew.members.stop(life.id, force=force) == life
    assert crew.events(life.id) == before


def test_an_interactive_session_is_stopped_by_saving_it(crew: Crew) -> None:
    assert crew.members.stop(crew.chat().id).ended == "completed"
    assert crew.members.stop(crew.chat().id, force=True).ended == "killed"


def test_killed_while_it_is_finalized_it_is_retained_and_the_finalization_gives_up_without_a_word(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"))
    arrived, go = threading.Event(), threading.Event()

    def stand(name: str) -> None:
        if name == "member:finalizing":
            arrived.set()
            assert go.wait(60)

    with points.listening(stand), ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(crew.members.finish, life.id)
        assert arrived.wait(60)
        killed = crew.manager().stop(life.id, force=True)
        before = crew.types(life.id)
        go.set()
        ended = finishing.result()

    assert (killed.state, killed.ended) == ("retained", "killed")
    assert ended == crew.members.get(life.id)
    assert crew.types(life.id) == before
    assert crew.states(life.id) == ["active", "finalizing", "killed", "retained"]
    assert crew.members.exited() == []


def test_killed_between_two_repositories_nothing_more_is_told(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n").write("team/specs/new.md", "new\n"))
    types: list[str] = []

    def kill(event: Any) -> None:
        types.append(event.data["name"])

    crew.engine.on("finalize.repository", kill)
    arrived, go = threading.Event(), threading.Event()

    def hook() -> None:
        """The remote of the second repository, that takes its time."""
        arrived.set()
        assert go.wait(60)

    with ThreadPoolExecutor(1) as pool, _slow(crew.team, hook):
        finishing = pool.submit(crew.members.finish, life.id)
        assert arrived.wait(60)
        crew.manager().stop(life.id, force=True)
        go.set()
        ended = finishing.result()

    assert set(types) == {"app"}
    assert crew.states(life.id) == ["active", "finalizing", "killed", "retained"]
    assert ended.state == "retained"


@contextmanager
def _slow(remote: GitRepo, act: Callable[[], None]) -> Iterator[None]:
    """Have a remote's hook wait, at its first push, until something was done."""
    with BareRemote(remote.path).held() as held, ThreadPoolExecutor(1) as pool:

        def wait() -> None:
            held.wait(60)
            act()
            held.release()

        waiting = pool.submit(wait)
        yield
        waiting.result()


def test_all_that_run_by_themselves_are_stopped_and_chats_only_if_their_member_is_named(crew: Crew) -> None:
    loop, chat, bob = crew.start(), crew.chat(), crew.start(member="bob")

    named = crew.members.stop_all(member="bob")
    assert (named.deactivated, named.skipped_interactive) == ((bob.id,), ())
    summary = crew.members.stop_all()
    assert (summary.deactivated, summary.killed, summary.skipped_interactive, summary.errors) == ((loop.id,), (), (chat.id,), {})
    assert crew.members.get(chat.id).state == "active"
    forced = crew.members.stop_all(member="alice", force=True)
    assert (forced.killed, forced.deactivated) == ((chat.id,), ())


def test_all_agents_are_asked_to_end_before_any_is_waited_for(crew: Crew, tmp_path: Path) -> None:
    ready, asked = tmp_path / "ready", tmp_path / "asked"
    ready.mkdir()
    asked.mkdir()
    waits = f"while [ $(ls {asked} | wc -l) -lt 3 ]; do sleep 0.01; done"
    agent = f"trap ': > {asked}/$BM_SESSION_ID; {waits}; exit 0' TERM; : > {ready}/$BM_SESSION_ID; while :; do sleep 0.01; done"
    members = crew.manager(grace=30.0)
    lives = [members.start("ada", command=["sh", "-c", agent]) for _ in range(3)]
    wait_until(lambda: len([*ready.iterdir()]) == 3)

    summary = members.stop_all()

    assert set(summary.deactivated) == {life.id for life in lives}
    ends = [members.get(life.id).agent for life in lives]
    assert [(end.code, end.signal) for end in ends if end is not None] == [(0, None)] * 3
    assert [crew.types(life.id).count("stop.requested") for life in lives] == [1, 1, 1]


def test_one_that_cannot_be_stopped_does_not_stop_the_others_from_being_stopped(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = sorted([crew.start(), crew.start()], key=lambda life: life.id)
    with crew.engine.services.recorder(first.id).leased():
        recorder = crew.engine.services.recorder

        def hasty(id_: str) -> Any:
            made = recorder(id_)
            made._lease.wait = 0.0
            return made

        monkeypatch.setattr(crew.engine.services, "recorder", hasty)
        summary = crew.members.stop_all()
    assert summary.deactivated == (second.id,)
    assert list(summary.errors) == [first.id]
    assert crew.members.get(first.id).state == "active"


def test_an_agent_neither_starts_nor_ends_sessions_of_members(crew: Crew) -> None:
    life, chat = crew.start(), crew.chat()
    before = [crew.types(one.id) for one in (life, chat)]
    pid = life.agent.pid if life.agent is not None else 0

    with on_behalf_of(lambda: pid):
        for decide in (
            crew.chat,
            lambda: crew.members.stop(life.id),
            lambda: crew.members.stop(chat.id, force=True),
            crew.members.stop_all,
            lambda: crew.members.finalize(chat.id),
            lambda: crew.members.cleanup(Selector(all=True)),
            lambda: crew.members.lock(chat.id, "td-7"),
            lambda: crew.members.unlock(chat.id, "td-7"),
        ):
            with pytest.raises(PersonRequired, match=f"The agent of session {life.id} asked to"):
                decide()
        assert [crew.types(one.id) for one in (life, chat)] == before
        assert crew.members.cleanup(Selector(all=True), dry_run=True).removed == ()
        assert crew.members.lock(life.id, "td-7").acquired
        assert crew.members.unlock(life.id, "td-7")


# Two at once -----------------------------------------------------------------------------------------------------------------------


def test_of_many_threads_that_finish_one_session_one_does_it(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"))
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda _: crew.members.finish(life.id), range(4)))
    assert {one.state for one in ended} == {"retained"}
    assert crew.types(life.id).count("finalize.started") == 1
    assert crew.states(life.id) == ["active", "finalizing", "completed", "retained"]


def test_another_process_that_finishes_it_meanwhile_does_nothing_twice(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"))

    def elsewhere() -> None:
        with crew.restarted() as members:
            assert members.finish(life.id).state == "retained"

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(lambda: in_fork(elsewhere, timeout=60)), pool.submit(crew.members.finish, life.id)]
        assert both[0].result().error is None  # type: ignore[union-attr]
        assert both[1].result().state == "retained"  # type: ignore[union-attr]
    assert crew.types(life.id).count("finalize.started") == 1


def test_a_finalization_that_was_killed_is_gone_on_with(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"))
    Crash().at("member:finalizing", lambda: crew.members.finish(life.id))

    assert crew.members.get(life.id).state == "finalizing"
    assert crew.members.exited() == [life.id]
    ended = crew.members.finish(life.id)
    assert (ended.state, ended.ended, ended.attempts) == ("retained", "completed", 1)


@pytest.mark.parametrize("point", ["member:exited", "member:finalizing", "member:ended", "member:retained"])
def test_wherever_a_finish_is_killed_the_next_one_goes_on(crew: Crew, point: str) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"), work_item="app#1")
    Crash().at(point, lambda: crew.members.finish(life.id))
    assert crew.members.exited() == ([] if point == "member:retained" else [life.id])
    crew.members.observe()
    assert crew.states(life.id) == ["active", "finalizing", "completed", "retained"]
    assert crew.held() == {}


# Once more -------------------------------------------------------------------------------------------------------------------------


def test_a_session_that_failed_is_finalized_again_once_its_remote_is_back(crew: Crew) -> None:
    life = crew.ended(crew.script().write("projects/app/left.txt", "left\n"))
    aside = crew.app.path.with_suffix(".aside")
    crew.app.path.rename(aside)
    assert crew.members.finish(life.id).ended == "failed"
    aside.rename(crew.app.path)

    again = crew.members.finalize(life.id)

    assert crew.states(life.id)[-4:] == ["retained", "finalizing", "completed", "retained"]
    assert (again.attempts, again.unsaved, again.ended) == (2, False, "completed")


def test_a_killed_session_is_finalized_afterwards(crew: Crew) -> None:
    life = crew.chat()
    crew.commit(life.id, "said.txt", branch="talk")
    crew.members.stop(life.id, force=True)
    assert "talk" not in crew.branches()

    assert crew.members.finalize(life.id).ended == "completed"
    assert crew.branches()["talk"] == crew.git(life.id, "rev-parse", "talk")


def test_only_what_is_retained_is_finalized_again(crew: Crew) -> None:
    life = crew.start()
    with pytest.raises(InvalidInput, match="only what is retained"):
        crew.members.finalize(life.id)
    with pytest.raises(SessionNotFound):
        crew.members.finalize("nobody")
    assert crew.members.get(life.id).state == "active"


@pytest.mark.parametrize("verb", ["get", "finish", "stop", "finalize", "inspect", "process"])
@pytest.mark.parametrize("id_", ["nobody", "nul\0", "../up", "an ordinary one"])
def test_what_is_no_members_session_is_refused_by_every_verb(crew: Crew, verb: str, id_: str) -> None:
    ordinary = crew.world.start()
    asked = ordinary.id if id_ == "an ordinary one" else id_
    with pytest.raises(SessionNotFound if id_ == "nobody" else InvalidInput):
        getattr(crew.members, verb)(asked)
    assert ordinary.info().state == "active"
    assert crew.sessions() == [ordinary.id]


# Limits ------------------------------------------------------------------------------------------------------------------------


def test_an_agent_that_passes_a_limit_is_ended_its_work_is_saved_and_the_record_names_the_limit(crew: Crew) -> None:
    if strongest().level == "off":
        pytest.skip("nothing confines programs here")
    too_many = ["sh", "-c", "echo new > projects/app/new.txt; for i in 1 2 3 4 5 6; do sleep 60 & done; wait"]
    members = crew.manager(confine="auto", limits={"memory": "2GB", "processes": 900})

    life = members.start("alice", command=too_many, limits={"processes": 4})
    crew.wait_gone(life.id)
    ended = members.finish(life.id)

    assert life.agent is not None
    assert "limits processes=4 memory=2GB" in (life.agent.confinement or "")
    (exited,) = [event for event in crew.events(life.id) if event.type == "agent.exited"]
    assert exited.data == {"signal": 9, "limit": "processes", "reason": "it was ended, because it passed its limit of processes"}
    assert ended.state == "retained"
    assert (crew.workspace(life.id) / "projects" / "app" / "new.txt").exists()
