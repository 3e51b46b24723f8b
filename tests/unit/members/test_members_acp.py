"""Members whose agents speak the Agent Client Protocol, over real pipes: prompts, the log, stop reasons, and an end in the middle."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

import pytest
from support.acp_program import ARGV, MEMBER, SAVES
from support.confined import available
from support.members import Crew

from pytest_gittrix import World
from pytest_gittrix.acp.client import AcpAgent
from pytest_gittrix.acp.driver import Drive, MemberLog, main, take_turn
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.errors import InvalidInput, TurnBusy

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents as processes run on Linux")


def turns(crew: Crew, id_: str) -> list[str]:
    """How the turns of a session ended, each of which has its prompt."""
    types = [one for one in crew.types(id_) if one in ("turn.started", "user_message", "turn.ended")]
    ends = [event.data["status"] for event in crew.events(id_) if event.type == "turn.ended"]
    assert types == ["turn.started", "user_message", "turn.ended"] * len(ends)
    return ends


def test_a_turn_that_is_refused_is_a_failure_with_its_work_saved_by_a_confined_agent(crew: Crew) -> None:
    secret = crew.world.path / "secret"
    secret.write_text("of the host")
    looks = f"open('projects/app/found', 'w').write(str(os.path.exists({str(secret)!r})))"
    level = available("jail by namespaces").level
    life = crew.ended(command=MEMBER, confine=level, task=f"{SAVES}\n{looks}\nreason = 'refusal'")
    [ended] = crew.members.observe()

    assert (ended.ended, ended.unsaved, ended.result.exit_status if ended.result else "") == ("failed", False, "Completed")
    assert ended.agent is not None
    assert (ended.agent.code, ended.agent.stop_reason) == (1, "refusal")
    assert [crew.app.text("show", f"feature:{name}") for name in ("new.py", "found")] == ["code", "False"]
    moved = next(event.data for event in crew.events(life.id) if event.data.get("to") == "failed")
    assert moved["reason"] == "its agent stopped with refusal, and its work is saved"


def test_an_agent_that_dies_says_why_and_the_next_of_its_member_works_to_the_end(crew: Crew) -> None:
    died = crew.ended(command=MEMBER, task="sys.stderr.write('out of luck'); sys.stderr.flush(); os._exit(4)")
    then = crew.ended(command=MEMBER, task="say('done')")
    ended = {life.id: (life.ended, life.agent.stop_reason if life.agent else "") for life in crew.members.observe()}

    assert ended == {died.id: ("failed", "failed"), then.id: ("completed", "end_turn")}
    process = crew.members.process(died.id)
    assert process is not None
    assert "Its last errors: out of luck" in process.capture()
    assert (turns(crew, died.id), turns(crew, then.id)) == (["failed"], ["done"])


def test_a_brain_that_is_asked_to_stop_ends_its_turn_and_is_no_failure(crew: Crew) -> None:
    life = crew.start(kind="brain", command=MEMBER, task=f"{SAVES}\nsay('waiting')\nreceive()")
    crew.wait_for(life.id, "user_message")
    ended = crew.members.stop(life.id)

    assert (ended.ended, ended.agent.stop_reason if ended.agent else "") == ("completed", "cancelled")
    assert turns(crew, life.id) == ["interrupted"]


def test_a_turn_of_a_driver_follows_one_that_nobody_ended_and_leaves_none() -> None:
    with World.open() as world:
        session = world.start()
        parts_of(session.for_agent()).recorder.append("turn.started", {"turn": "t9", "runs": "task"}, actor="agent")
        drive = Drive(str(world.gittrix.store.root), "fast", session.id, str(session.workspace_path), task="go", stays=False)
        log = MemberLog.of(drive)

        def ends() -> list[str]:
            return [event.data["status"] for event in session.history(["turn.ended"])]

        turn = log.begin_turn()
        with pytest.raises(TurnBusy):
            session.interrupt()
        log.end_turn(turn, "done")
        session.end_turn(session.begin_turn())
        assert ends() == ["lost", "done", "done"]

        async def cancelled_while_it_begins() -> None:
            turn = asyncio.create_task(take_turn(log, AcpAgent.__new__(AcpAgent), "never sent"))
            await asyncio.sleep(0)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn

        asyncio.run(cancelled_while_it_begins())
        assert ends()[3:] == ["interrupted"]

        busy = session.begin_turn()
        assert main(json.dumps(asdict(drive)), ARGV) == 1
        assert session.history(["workflow_event"])[-1].data["error"] == f"Session {session.id} has a turn running."
        session.end_turn(busy)

        log.end_turn(turn, "failed")
        assert (len(ends()), session.turn_running) == (5, False), "what has ended is not ended again"


def test_a_loop_of_the_protocol_needs_a_task_and_a_program_that_is_there(crew: Crew) -> None:
    with pytest.raises(InvalidInput, match="Nothing says what alice is to do"):
        crew.start(command=MEMBER)
    with pytest.raises(InvalidInput, match="There is no program 'no-such-program'"):
        crew.start(command=["acp:no-such-program"], task="go")
