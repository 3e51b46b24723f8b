"""A scripted agent that speaks the Agent Client Protocol, over real pipes: its files, terminals and questions, its cancellation and end."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from acp.schema import SseMcpServer
from support.acp_program import AGENT, ARGV
from support.confined import available
from support.patience import long_enough

from pytest_gittrix import World
from pytest_gittrix.acp import acp_agent, client, client_side, reject, run_prompt, take_turn
from pytest_gittrix.acp.client import AcpAgent, Prompted
from pytest_gittrix.confine.levels import missing_layers
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, TurnBusy
from pytest_gittrix.os_level.proc import open_connections

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")


@pytest.fixture
def session() -> Iterator[UserSession]:
    with World.open(files={"app.py": "one\ntwo\nthree\n", "data.bin": b"\xff\xfe"}) as world:
        session = world.start()
        session.for_agent().run(["true"], confine="auto", timeout=60)  # the zygote stays
        before = open_connections()
        yield session
        assert open_connections() == before


def prompted(session: UserSession, *scripts: str, confine: str = "auto", **options: Any) -> list[Prompted]:
    """What comes of some prompts of one agent."""

    async def whole(agent: AcpAgent) -> list[Prompted]:
        return [await agent.prompt(script) for script in scripts]

    return attended(session, whole, confine=confine, **options)


def attended(session: UserSession, work: Callable[[AcpAgent], Awaitable[Any]], *, confine: str = "auto", **options: Any) -> Any:
    async def whole() -> Any:
        with session.for_agent().programs(confine=confine) as programs:
            async with asyncio.timeout(60), acp_agent(session.for_agent(), ARGV, programs=programs, **options) as agent:
                return await work(agent)

    return asyncio.run(whole())


def events(session: UserSession, *types: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in session.history(types)]


@pytest.mark.parametrize("level", ["off", "guard by landlock", "jail by namespaces"])
def test_an_agent_works_by_the_session_and_cannot_promote(session: UserSession, level: str) -> None:
    confine = available(level).level
    work = """
text = ask("fs/read_text_file", path=cwd + "/app.py", line=2, limit=1)["content"]
ask("fs/write_text_file", path=cwd + "/new.py", content="# " + text)
open(cwd + "/own.py", "w").write("by itself")
say("I read "); say(text)
"""
    done = prompted(session, work, confine=confine)

    assert done == [Prompted("end_turn", "I read two\n")]
    assert session.touched_files() == ["new.py", "own.py"]
    assert session.read("new.py") == b"# two\n"
    assert [one["text"] for one in events(session, "assistant_message")] == ["I read two\n"]
    assert session.info().state == "active"


def test_what_an_agent_may_not_have_is_an_error_of_the_protocol(session: UserSession) -> None:
    work = """
codes = [ask("fs/read_text_file", path=path) for path in ("/etc/passwd", cwd + "/../x", cwd + "/.git/config", cwd, "data.bin", cwd + "/no")]
codes += [ask("fs/write_text_file", path="/tmp/x", content=""), ask("terminal/output", terminalId="none")]
say(json.dumps(codes))
"""
    [done] = prompted(session, work)

    assert done.text == "[-32602, -32602, -32602, -32602, -32602, -32002, -32602, -32002]"


def test_terminals_run_where_the_agent_runs(session: UserSession) -> None:
    work = """
def run(*argv, **more):
    return ask("terminal/create", command=argv[0], args=[*argv[1:]], **more)["terminalId"]
one = run("sh", "-c", "echo $WORD; pwd; echo bad >&2; exit 3", env=[{"name": "WORD", "value": "hi"}], cwd=cwd)
first = ask("terminal/wait_for_exit", terminalId=one)
out = ask("terminal/output", terminalId=one)
two = run("printf", "a\\u00e9\\u00e9", outputByteLimit=3)
ask("terminal/wait_for_exit", terminalId=two)
cut = ask("terminal/output", terminalId=two)
three = run("sleep", "600")
running = ask("terminal/output", terminalId=three)
ask("terminal/kill", terminalId=three)
killed = ask("terminal/wait_for_exit", terminalId=three)
ask("terminal/release", terminalId=three)
gone = ask("terminal/output", terminalId=three)
say(json.dumps([cwd, first, out, cut, running, killed, gone]))
run("sleep", "600")
"""
    [done] = prompted(session, work)

    cwd, first, out, cut, running, killed, gone = json.loads(done.text)
    assert first["exitCode"] == 3
    assert (out["output"], out["truncated"]) == (f"hi\n{cwd}\nbad\n", False)
    assert (cut["output"], cut["truncated"]) == ("\u00e9", True)  # no half of a character
    assert "exitStatus" not in running or running["exitStatus"] is None
    assert killed["signal"] == "SIGKILL"
    assert gone == -32002


OPTIONS = '[{"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No", "kind": "reject_once"}]'
ASKS = f"""
update("tool_call", toolCallId="c1", title="Delete", kind="delete", status="pending", rawInput={{"path": "app.py"}})
answer = ask("session/request_permission", toolCall={{"toolCallId": "c1"}}, options={OPTIONS})
done = answer["outcome"].get("optionId") == "y"
update("tool_call_update", toolCallId="c1", status="completed" if done else "failed", rawOutput={{"done": done}})
say(str(answer["outcome"]))
"""


def test_a_policy_decides_and_the_log_has_it(session: UserSession) -> None:
    asked = []

    def ask(call: Any, options: Any) -> str:
        asked.append((call["toolCallId"], [option["kind"] for option in options]))
        return "n"

    allowed = prompted(session, ASKS)[0].text
    rejected = prompted(session, ASKS, policy=reject)[0].text
    refused = prompted(session, ASKS, policy=ask)[0].text

    assert ["'y'" in allowed, "'n'" in rejected, "'n'" in refused] == [True, True, True]
    assert asked == [("c1", ["allow_once", "reject_once"])]
    assert [one["decision"] for one in events(session, "permission_decision")] == ["allow_once", "reject_once", "reject_once"]
    assert events(session, "tool_call")[0] == {"call_id": "c1", "name": "delete", "args": {"path": "app.py"}}
    assert [one["ok"] for one in events(session, "tool_result")] == [True, False, False]


def test_updates_are_recorded_in_their_order(session: UserSession) -> None:
    prompted(session, 'for n in range(40):\n    update("usage_update", used=n, size=100)\n')

    assert [one["used"] for one in events(session, "provider_usage")] == [*range(40)]


def test_a_cancelled_prompt_ends_so_and_the_agent_goes_on(session: UserSession) -> None:
    waits = 'update("tool_call", toolCallId="c9", title="Wait", status="in_progress"); say("waiting"); receive()'

    async def work(agent: AcpAgent) -> tuple[Prompted, Prompted]:
        asked = asyncio.create_task(agent.prompt(waits))
        while not session.history(["tool_call"]):
            await asyncio.sleep(0.005)
        await agent.cancel()
        return await asked, await agent.prompt('say("again")')

    first, second = attended(session, work)

    assert (first.stop_reason, second) == ("cancelled", Prompted("end_turn", "again"))
    assert events(session, "tool_result") == [{"call_id": "c9", "ok": False, "error": "cancelled"}]
    assert [one["stop_reason"] for one in events(session, "workflow_event")] == ["cancelled", "end_turn"]


def test_an_interrupt_of_its_turn_cancels_a_prompt_and_a_busy_session_takes_none(session: UserSession) -> None:
    async def work(agent: AcpAgent) -> list[Prompted]:
        asked = asyncio.create_task(take_turn(session, agent, "say('waiting'); receive()"))
        while not session.turn_running:
            await asyncio.sleep(0.005)
        with pytest.raises(TurnBusy):
            await take_turn(session, agent, "say('too early')")
        assert await asyncio.to_thread(session.interrupt)
        return [await asked, await take_turn(session, agent, "say('again')")]

    assert [one.stop_reason for one in attended(session, work)] == ["cancelled", "end_turn"]
    assert [one["status"] for one in events(session, "turn.ended")] == ["interrupted", "done"]


def test_an_interrupt_just_after_its_turn_began_cancels_a_prompt_too(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe = session.subscribe

    def interrupted_before(*arguments: Any) -> Any:
        assert session.interrupt()
        return subscribe(*arguments)

    monkeypatch.setattr(session, "subscribe", interrupted_before)
    [answer] = attended(session, lambda agent: asyncio.gather(asyncio.wait_for(take_turn(session, agent, "receive()"), 5)))

    assert answer.stop_reason == "cancelled"
    assert [one["status"] for one in events(session, "turn.ended")] == ["interrupted"]


IGNORES = 'update("tool_call", toolCallId="c9", title="Wait", status="in_progress"); time.sleep(600)'


WAITS = 'update("tool_call", toolCallId="c9", title="Wait", status="in_progress"); receive(); time.sleep(0.1)'


async def at_work(session: UserSession, prompt: Coroutine[Any, Any, Prompted]) -> asyncio.Task[Prompted]:
    """A prompt of which the agent has begun its first tool call."""
    task = asyncio.create_task(prompt)
    while not session.history(["tool_call"]):
        await asyncio.sleep(0.005)
    return task


def test_an_agent_that_ignores_the_end_of_its_turn_is_killed(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GRACE", 0.05)

    async def work(agent: AcpAgent) -> None:
        asked = await at_work(session, take_turn(session, agent, IGNORES))
        assert await asyncio.to_thread(session.interrupt)
        with pytest.raises(AdapterUnavailable):
            await asyncio.wait_for(asked, 5)

    attended(session, work)


def test_an_agent_that_ignores_that_the_task_of_its_prompt_was_cancelled_is_killed_too(
    session: UserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "GRACE", 0.05)

    async def work(agent: AcpAgent) -> None:
        asked = await at_work(session, take_turn(session, agent, IGNORES))
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await asyncio.wait_for(agent.running.wait_async(), 5)).timed_out

    attended(session, work)

    assert [one["status"] for one in events(session, "turn.ended")] == ["interrupted"]


def test_a_prompt_waits_for_the_end_of_one_whose_task_was_cancelled(session: UserSession) -> None:
    ends_late = f"""
update("tool_call", toolCallId="c9", title="Wait", status="in_progress")
receive()
ask("session/request_permission", toolCall={{"toolCallId": "c9"}}, options={OPTIONS})
say("late")
"""

    async def work(agent: AcpAgent) -> Prompted:
        asked = await at_work(session, agent.prompt(ends_late))
        asked.cancel()
        unsent = asyncio.create_task(agent.prompt("say('never sent')"))
        await asyncio.sleep(0)
        assert await agent.cancel()
        assert await unsent == Prompted("cancelled", "")
        assert not await agent.cancel(), "no prompt is running"
        return await agent.prompt("say('again')")

    assert attended(session, work) == Prompted("end_turn", "again")
    assert [one["decision"] for one in events(session, "permission_decision")] == ["cancelled"]
    assert [one["text"] for one in events(session, "assistant_message")] == ["late", "again"]
    assert [one["stop_reason"] for one in events(session, "workflow_event")] == ["cancelled", "cancelled", "end_turn"]


def test_a_prompt_after_an_interrupt_is_sent_when_the_agent_has_ended_the_one_before(session: UserSession) -> None:
    async def work(agent: AcpAgent) -> list[Prompted]:
        asked = await at_work(session, take_turn(session, agent, WAITS))
        assert await asyncio.to_thread(session.interrupt)
        answer = await take_turn(session, agent, "say('again')")
        return [await asked, answer]

    assert attended(session, work) == [Prompted("cancelled", ""), Prompted("end_turn", "again")]
    assert [one["status"] for one in events(session, "turn.ended")] == ["interrupted", "done"]


def test_a_cancelled_task_cancels_its_own_prompt_and_not_the_next(session: UserSession) -> None:
    async def work(agent: AcpAgent) -> Prompted:
        asked = await at_work(session, agent.prompt(WAITS))
        asked.cancel()
        return await agent.prompt("say('again')")  # begins before the cancelled task knows of it

    assert attended(session, work) == Prompted("end_turn", "again")


def test_a_cancel_is_for_the_running_prompt_and_not_for_one_that_waits(session: UserSession) -> None:
    async def work(agent: AcpAgent) -> list[Prompted]:
        asked = await at_work(session, agent.prompt(WAITS))
        waiting = asyncio.create_task(agent.prompt("say('again')"))
        await asyncio.sleep(0)
        assert await agent.cancel()
        return [await asked, await waiting]

    assert attended(session, work) == [Prompted("cancelled", ""), Prompted("end_turn", "again")]


def test_a_prompt_that_waits_and_whose_task_is_cancelled_leaves_nothing_to_cancel(session: UserSession) -> None:
    async def work(agent: AcpAgent) -> bool:
        asked = await at_work(session, agent.prompt(WAITS))
        asked.cancel()
        waiting = asyncio.create_task(agent.prompt("say('never sent')"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([asked, waiting])
        return await agent.cancel()

    assert attended(session, work) is False
    assert [one["text"] for one in events(session, "user_message")] == [WAITS]


def test_an_agent_is_told_once_that_a_prompt_is_cancelled(session: UserSession) -> None:
    async def work(agent: AcpAgent) -> Prompted:
        asked = await at_work(session, take_turn(session, agent, WAITS))
        await agent.cancel()
        asked.cancel()
        await asyncio.wait([asked])
        return await take_turn(session, agent, "say('again')")  # a second cancel would be read before this

    assert attended(session, work) == Prompted("end_turn", "again")
    assert [one["status"] for one in events(session, "turn.ended")] == ["interrupted", "done"]


def test_a_call_that_begins_after_its_turn_has_failed_when_the_next_one_begins(session: UserSession) -> None:
    late = f'{WAITS}; update("tool_call", toolCallId="late", title="Late", status="in_progress")'

    async def work(agent: AcpAgent) -> None:
        asked = await at_work(session, take_turn(session, agent, late))
        asked.cancel()
        await asyncio.wait([asked])
        await take_turn(session, agent, "say('again')")

    attended(session, work)

    assert {"call_id": "late", "ok": False, "error": "cancelled"} in events(session, "tool_result")


def test_a_question_is_answered_when_the_prompt_is_cancelled(session: UserSession) -> None:
    asked, over = threading.Event(), threading.Event()

    def slow(call: Any, options: Any) -> str:
        asked.set()
        over.wait(60)
        return "y"

    async def work(agent: AcpAgent) -> Prompted:
        prompt = asyncio.create_task(agent.prompt(ASKS))
        await asyncio.to_thread(asked.wait, 60)
        await agent.cancel()
        answer = await prompt
        over.set()
        return answer

    answer = attended(session, work, policy=slow)

    assert answer == Prompted("cancelled", "{'outcome': 'cancelled'}")


def test_questions_hold_up_nothing_and_are_asked_so_many_at_once_within_a_turn(session: UserSession) -> None:
    over = threading.Event()
    asked: list[str] = []

    def slow(call: Any, options: Any) -> str:
        asked.append(call["toolCallId"])
        over.wait(60)
        return "y"

    question = f'method="session/request_permission", params={{"sessionId": "s1", "toolCall": {{"toolCallId": "c"}}, "options": {OPTIONS}}}'
    many = f"""
for number in range(40):
    send(id=f"q{{number}}", {question})
say(ask("fs/read_text_file", path=cwd + "/app.py", limit=1)["content"])
"""
    late = f"""
send(id=message["id"], result={{"stopReason": "end_turn"}})
send(id="late", {question})
open(cwd + "/answer", "w").write(str(receive("late")["result"]["outcome"]))
"""

    async def work(agent: AcpAgent) -> list[Prompted]:
        done = [await agent.prompt(many), await agent.prompt(late)]
        while not session.exists("answer") or not session.read("answer"):
            await asyncio.sleep(0.005)
        return done

    done = attended(session, work, policy=slow)
    over.set()

    assert [one.text for one in done] == ["one\n", ""]
    assert asked == ["c"] * client_side._MOST_QUESTIONS
    assert session.read("answer") == b"{'outcome': 'cancelled'}"


def test_a_policy_may_be_a_coroutine(session: UserSession) -> None:
    async def ask(call: Any, options: Any) -> str:
        await asyncio.sleep(0)
        return "n"

    assert "'n'" in prompted(session, ASKS, policy=ask)[0].text


def test_an_agent_that_dies_or_is_none_says_so(session: UserSession) -> None:
    with pytest.raises(AdapterUnavailable, match="did not do what it was asked"):
        prompted(session, "sys.stderr.write('out of luck'); sys.stderr.flush(); os._exit(4)")
    with pytest.raises(AdapterUnavailable):
        run_prompt(session.for_agent(), ["true"], "hello", timeout=60)


def test_the_time_of_a_prompt_can_be_over(session: UserSession) -> None:
    def prompt_for(seconds: float) -> list[str]:
        with pytest.raises(TimeoutError):
            run_prompt(session.for_agent(), ARGV, "receive(); receive()", timeout=seconds)
        return [event["stop_reason"] for event in events(session, "workflow_event")]

    assert long_enough(prompt_for, bool)[-1] == "cancelled"


def test_an_agent_that_writes_without_end_leaves_others_their_turn(session: UserSession) -> None:
    burst = """
import time
until = time.monotonic() + 60
while time.monotonic() < until:
    os.write(1, b"x\\n" * 20_000 + b'{"method": "none"}\\n' * 100)
open(cwd + "/late", "w").close()
"""

    async def work(agent: AcpAgent) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await agent.prompt(burst)

    attended(session, work)

    assert session.touched_files() == []


def test_a_message_has_a_longest_line(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_IN_A_LINE", 1 << 16)

    with pytest.raises(AdapterUnavailable, match="It wrote a line of more than 65536 bytes"):
        prompted(session, "os.write(1, b'x' * (1 << 17)); receive()")


def test_an_error_that_is_none_of_the_protocol_is_an_answer_too(session: UserSession) -> None:
    with pytest.raises(AdapterUnavailable, match="an error that is no object"):
        prompted(session, 'send(id=message["id"], error="no"); receive()')


def test_an_agent_that_hears_nothing_any_more_says_so(session: UserSession) -> None:
    async def work(agent: AcpAgent) -> None:
        asked = await at_work(session, agent.prompt(f"os.close(0); {IGNORES}"))
        assert await agent.cancel()
        while not agent.running.reads_no_more:  # what is written first is lost in the pipe
            await asyncio.sleep(0.005)
        with pytest.raises(AdapterUnavailable, match="closed its standard input"):
            await agent.begin()
        asked.cancel()

    attended(session, work, confine="off")  # what confines an agent may hold the pipe open


def test_what_an_agent_says_of_its_failure_cannot_steer_a_terminal(session: UserSession) -> None:
    with pytest.raises(AdapterUnavailable) as caught:
        prompted(session, "sys.stderr.write('\\x1b]52;c;aGk=\\x07'); sys.stderr.flush(); os._exit(4)")

    assert caught.value.why == "Its last errors: \\x1b]52;c;aGk=\\x07"


def test_the_time_of_a_prompt_also_runs_while_the_agent_says_nothing(session: UserSession) -> None:
    with pytest.raises(TimeoutError):
        run_prompt(session.for_agent(), ["sleep", "5"], "hello", timeout=0.2)


class Gate:
    """Programs of which one is started only when the test lets it."""

    def __init__(self, programs: Programs, word: str) -> None:
        self.workspace = programs.workspace
        self.asked, self.open = threading.Event(), threading.Event()
        self.passed: list[Running] = []
        self._programs, self._word = programs, word

    def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, **options: Any) -> Running:
        if self._word not in argv:
            return self._programs.start(argv, environment=environment, **options)
        self.asked.set()
        self.open.wait(60)
        self.passed.append(self._programs.start(argv, environment=environment, **options))
        return self.passed[0]


@pytest.mark.parametrize("word", [AGENT, "600"], ids=["agent", "terminal"])
def test_a_program_that_starts_while_everything_is_cancelled_is_killed(session: UserSession, word: str) -> None:
    async def work(gate: Gate) -> None:
        async with acp_agent(session.for_agent(), ARGV, programs=gate) as agent:
            await agent.prompt('ask("terminal/create", command="sleep", args=["600"])')

    async def cancelled(gate: Gate) -> None:
        working = asyncio.create_task(work(gate))
        await asyncio.to_thread(gate.asked.wait, 60)
        working.cancel()
        asyncio.get_running_loop().call_later(0.05, gate.open.set)
        with pytest.raises(asyncio.CancelledError):
            await working

    with session.for_agent().programs(confine="auto") as programs:
        gate = Gate(programs, word)
        asyncio.run(cancelled(gate))
        [running] = gate.passed
        ended = running.poll()
        running.kill()

    assert ended is not None
    assert ended.timed_out


def test_an_agent_has_so_many_terminals_and_no_more(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_side, "_MOST_TERMINALS", 1)
    work = """
none = ask("terminal/create", command="a\\0b")  # it does not count
made = ask("terminal/create", command="sh", args=["-c", "kill -40 $$"])
refused = ask("terminal/create", command="true")
ended = ask("terminal/wait_for_exit", terminalId=made["terminalId"])
ask("terminal/release", terminalId=made["terminalId"])
again = ask("terminal/create", command="true")
say(json.dumps([none, refused, ended.get("signal"), "terminalId" in again]))
"""
    [done] = prompted(session, work, confine="off")

    assert json.loads(done.text) == [-32602, -32602, "40", True]


def test_lines_end_at_newlines_alone(session: UserSession) -> None:
    session.write("page.txt", "a\fb\u2028c\x85d\re\nsecond\nthird\n".encode())

    [done] = prompted(session, 'say(ask("fs/read_text_file", path=cwd + "/page.txt", line=2, limit=1)["content"])')

    assert done.text == "second\n"


def test_an_agent_that_uses_no_servers_of_a_kind_is_given_none(session: UserSession) -> None:
    server = SseMcpServer(name="far", url="https://tools.example.org", headers=[], type="sse")

    with pytest.raises(CapabilityMissing, match="does not use MCP servers of kind 'sse', as far is"):
        prompted(session, mcp_servers=[server], confine="off")


def test_in_an_overlay_no_agent_of_the_protocol_works(tmp_path: Path) -> None:
    if why := missing_layers(str(tmp_path)):
        pytest.skip(why)
    with World.open(workspace="overlay") as world, pytest.raises(CapabilityMissing, match="workspace is an overlay"):
        run_prompt(world.start().for_agent(), ARGV, "say('hello')", timeout=60)
