"""Drives a member's agent that speaks the Agent Client Protocol: a process of its own, between the agent and whoever started the member.

The member's process is this driver. It starts the agent, confined as the member's agents are, sends it the task and what is written to the
driver's standard input as prompts, and stores its updates in the session's log. So the conversation outlives the program that started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_gittrix.engine.operations.requester import make_mark
from pytest_gittrix.errors import GittrixError

if TYPE_CHECKING:
    from pytest_gittrix.acp.client import AcpAgent
    from pytest_gittrix.engine.agents.launch import AgentSettings
    from pytest_gittrix.engine.agents.processes import AgentProcess
    from pytest_gittrix.engine.agents.turn_log import Status
    from pytest_gittrix.engine.operations.recorder import Recorder
    from pytest_gittrix.os_level.lease import Lease
    from pytest_gittrix.record.store.store import Store

PREFIX: Final = "acp:"
"""What a command begins with whose program speaks the protocol, as in ``acp:my-agent``."""

END_TURN: Final = "end_turn"
"""The stop reason of a turn that ended by itself, with its work done."""

_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); from pytest_gittrix.acp.driver import main; sys.exit(main(sys.argv[2], sys.argv[3:]))"
)
_LARGEST_READ: Final = 1 << 16
_LOOK: Final = 0.3
"""Seconds between two looks at a log for prompts."""


@dataclass(frozen=True, slots=True)
class Drive:
    """What a driver works on; it gets this as JSON.

    Attributes:
        store: the root of the store.
        durability: of the store.
        session: the member's session.
        workspace: its workspace.
        task: the first prompt; empty for none.
        stays: whether the agent stays after that, for further prompts.
        after: the event of the session behind which its prompts (``prompt.queued``) are for this agent.
    """

    store: str
    durability: Literal["full", "fast"]
    session: str
    workspace: str
    task: str
    stays: bool
    after: int = -1

    @property
    def argv(self) -> list[str]:
        """The command line of the driver, for ``AgentSettings.start``."""
        root = str(Path(__file__).absolute().parents[2])
        return [sys.executable, "-I", "-c", _PROGRAM, root, json.dumps(asdict(self))]


def speaks_acp(command: Sequence[str]) -> bool:
    """Whether the program of a command speaks the protocol: the command begins with ``acp:``."""
    return bool(command) and command[0].startswith(PREFIX)


def start_agent_of(
    store: Store, id_: str, settings: AgentSettings, command: Sequence[str], *, prompt: str, stays: bool, after: int = -1, **options: Any
) -> AgentProcess:
    """Start the agent of a session: its program itself, or this driver, which starts it, if it speaks the protocol.

    Args:
        store: the store of the session.
        id_: the session.
        settings: what the launcher's agents get and may reach.
        command: the program and its arguments.
        prompt: the first prompt for the driver; empty for none.
        stays: whether the driver stays after that, for further prompts.
        after: as in ``Drive``.
        options: those of ``AgentSettings.start``.

    Raises:
        GittrixError: as ``AgentSettings.start``; no process and no file of it is left.
    """
    argv, driver = [*command], list[str]()
    if speaks_acp(command):
        driver = Drive(str(store.root), store.durability, id_, str(options["workspace"]), prompt, stays, after).argv
        argv[0] = argv[0].removeprefix(PREFIX)
    return settings.of_session(id_).start(argv, driver=driver, mark=make_mark(store.root, id_), **options)


def main(text: str, argv: Sequence[str]) -> int:
    """Drive an agent to its end.

    Args:
        text: a ``Drive``, as JSON.
        argv: the agent's command line, which confines it.

    Returns:
        0 if its last turn ended by itself (``end_turn``), else 1.
    """
    drive = Drive(**json.loads(text))
    try:
        reason = asyncio.run(_run(drive, argv))
    except GittrixError as problem:
        sys.stderr.write(f"{problem}\n")
        with suppress(GittrixError):  # the session has ended
            MemberLog.of(drive).record("workflow_event", {"source": "acp", "stop_reason": "failed", "error": problem.fact})
        return 1
    return 0 if reason == END_TURN else 1


async def _run(drive: Drive, argv: Sequence[str]) -> str:
    """Send the prompts of a drive until the last one, or until SIGTERM; returns the stop reason of the last turn."""
    from pytest_gittrix.acp.client import CANCELLED, conversation
    from pytest_gittrix.confine.command_line import Launch
    from pytest_gittrix.confine.runner import start_wrapped

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    reason = END_TURN
    launched, log = Launch([*argv], dict(os.environ), directory=Path(drive.workspace)), MemberLog.of(drive)
    try:
        async with conversation(lambda: start_wrapped(launched), log, drive.workspace) as agent:
            async for prompt in _prompts(drive, log):
                reason = CANCELLED
                reason = await take_turn(log, agent, prompt)
    except asyncio.CancelledError:  # asked to end
        task.uncancel()
    return reason


async def take_turn(log: MemberLog, agent: AcpAgent, prompt: str) -> str:
    """Send a prompt, as one turn of the member's session; a task that is cancelled leaves no turn open.

    Args:
        log: of the member's session.
        agent: the agent that works in it.
        prompt: the prompt.

    Returns:
        The stop reason.

    Raises:
        TurnBusy: the session has a turn running; the agent was not asked.
        SessionExpired: the session has ended.
        AdapterUnavailable: as for ``AcpAgent.prompt``.
    """
    from pytest_gittrix.acp.client import CANCELLED, FAILED
    from pytest_gittrix.aio.threads import in_thread

    turn = await in_thread(log.begin_turn, lambda turn: log.end_turn(turn, "interrupted"))
    reason = FAILED
    try:
        reason = (await agent.prompt(prompt)).stop_reason
    except asyncio.CancelledError:
        reason = CANCELLED
        raise
    finally:
        status: Status = "interrupted" if reason == CANCELLED else "failed" if reason == FAILED else "done"
        await in_thread(partial(log.end_turn, turn, status))
    return reason


async def _prompts(drive: Drive, log: MemberLog) -> AsyncIterator[str]:
    """The task, and then each prompt that the log or standard input gets, as they come."""
    from pytest_gittrix.aio.threads import in_thread

    if drive.task:
        yield drive.task
    if not drive.stays:
        return
    loop, lines, begun = asyncio.get_running_loop(), asyncio.Queue[bytes](), bytearray()

    def take() -> None:
        first, *more = os.read(0, _LARGEST_READ).split(b"\n")
        begun.extend(first)
        for piece in more:
            lines.put_nowait(bytes(begun))
            begun[:] = piece

    loop.add_reader(0, take)
    heard = drive.after
    try:
        while True:
            for seq, prompt in await in_thread(partial(log.queued, heard)):
                heard = seq
                yield prompt
            with suppress(TimeoutError):
                line = await asyncio.wait_for(lines.get(), _LOOK)
                if prompt := line.decode("utf-8", "replace").strip():
                    yield prompt
    finally:
        loop.remove_reader(0)


class MemberLog:
    """The log of a member's session, for what its agent reports."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._size = -1  # of the log, when it was last read for prompts
        self._lease: Lease | None = None  # the right to run a turn, while one runs

    @classmethod
    def of(cls, drive: Drive) -> MemberLog:
        """The log of the session that a driver works for."""
        from pytest_gittrix.clock.file_clock import clock_from_environment
        from pytest_gittrix.engine.operations.recorder import Recorder
        from pytest_gittrix.record.store.store import Store

        store = Store(drive.store, durability=drive.durability)
        return cls(Recorder(store, drive.session, clock_from_environment(), lambda _: None))

    def record(self, type: str, data: Mapping[str, Any]) -> object:
        """Store an event of the conversation. Raises as ``AgentSession.record``."""
        from pytest_gittrix.engine.operations.conversation import check_recordable, normalised

        plain = normalised(data)
        with self._recorder.working("record", "agent", marks=False):
            return self._recorder.append(check_recordable(type, plain), plain, actor="agent")

    def queued(self, after: int) -> list[tuple[int, str]]:
        """The prompts that were stored behind an event, in their order, each with its number; none if the log is as it was before."""
        size = self._recorder.log.path.stat().st_size
        if size == self._size:
            return []
        events = self._recorder.log.twin().read()
        self._size = size
        return [(event.seq, str(event.data["text"])) for event in events if event.type == "prompt.queued" and event.seq > after]

    def begin_turn(self) -> str:
        """Store that a turn starts; gives its name. Raises as ``UserSession.begin_turn``."""
        from pytest_gittrix.engine.agents.turn_log import claim, end_lost, record_start, release

        lease = claim(self._recorder)
        try:
            with self._recorder.working("turn", "agent", marks=False) as state:
                state = end_lost(self._recorder, state, "before_start_turn")
                turn = record_start(self._recorder, state, "task")
        except BaseException:
            release(lease)
            raise
        self._lease = lease
        return turn

    def end_turn(self, turn: str, status: Status) -> None:
        """Store how a turn ended, unless that is stored already."""
        from pytest_gittrix.engine.agents.turn_log import record_end, release

        try:
            with self._recorder.leased() as state:
                if state.turn == turn:
                    record_end(self._recorder, turn, status)
        finally:
            if self._lease is not None:
                release(self._lease)
                self._lease = None

    def emit(self, type: str, data: Mapping[str, Any]) -> None:
        """Nothing: no listener is in this process."""
