"""Turns that follow a script and stop where a test wants them to, without a sleep; in a process or in a thread.

A script is a function for ``start_turn``. Test and turn meet at named points, through named pipes (``rendezvous``), since a turn in a
process shares no memory with the test. Turns that hang are ended with the kit.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.os_level.lease import Owner
from pytest_gittrix.os_level.lock_owner import owner_of
from pytest_gittrix.os_level.process_tree import end_tree
from pytest_gittrix.testing.scenarios.rendezvous import STAY, Rendezvous, ScriptKit

_SLICE: Final = 0.01  # seconds between two looks at whether a turn in a thread is to end
_GRACE: Final = 5.0  # seconds that a turn may take from its start to the first message of its script
_SOON, _JOIN = 0.5, 5.0
_ENDING: Final = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE")
_TREE: Final = "trap '' TERM INT HUP QUIT; echo $$; sh -c 'echo $$; exec cat \"$0\"' \"$0\" & wait"
"""A child and a grandchild of the turn: shells that ignore every signal they can, until no process has the pipe ``$0`` open for writing."""

Step = Callable[["_Play"], object]


class TurnCut(BaseException):
    """Ends a script in a thread whose turn was interrupted, or whose kit is closed. No ``Exception``, so that no handler catches it."""


class TurnKit(ScriptKit):
    """Scripts for turns, and the test's side of them.

    Args:
        directory: for its pipes; by default a temporary one, which is removed with the kit.
        timeout: real seconds to wait for a turn before it counts as stuck.

    Raises:
        CapabilityMissing: the system has no named pipes.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, timeout: float = 30.0) -> None:
        super().__init__(directory, "gittrix-turns-")
        self._over = threading.Event()
        self._children: list[tuple[str, Owner]] = []
        self._processes: dict[int, Owner] = {}
        self._begun = self._ended = 0
        self._last = "began"
        self._plays: list[_Play] = []
        self._rendezvous = Rendezvous(
            self.directory,
            timeout=timeout,
            grace=_GRACE,
            receive=self._receive,
            over=lambda: 0 < self._begun == self._ended,
            all_over="Every turn has ended",
            report=lambda: f"{self._begun} turns began, {self._ended} ended; the last that was heard: it {self._last}.",
        )

    def script(self) -> TurnScript:
        """A script without steps, to add some to: ``turns.script().say("hello").at("said").hang()``."""
        return TurnScript(self)

    def children(self, name: str | None = None) -> list[int]:
        """The ids of the processes that scripts started with ``spawn_child``, of a name or all; dead ones too."""
        return [owner.pid for owner in self._known_children(name)]

    def alive(self, name: str | None = None) -> list[int]:
        """The ids of those that still run; a process that was just killed may run for another moment."""
        return [owner.pid for owner in self._known_children(name) if owner.alive() is not False]

    def gone(self, name: str | None = None, timeout: float | None = None) -> bool:
        """Wait until none of them runs; whether there were any, and all ended in time."""
        return self._wait_until(lambda: not self.alive(name), timeout) and bool(self.children(name))

    def _end(self) -> None:
        """End every turn that still follows a script, and the processes it started."""
        self._over.set()
        self._rendezvous.listen()
        for owner in self._processes.values():
            if owner.alive() is not False:
                end_tree(owner.pid)
        for play in self._plays:
            play.end()
        for _, owner in self._children:
            if owner.alive() is not False:
                with suppress(ProcessLookupError):
                    os.kill(owner.pid, signal.SIGKILL)
        for play in self._plays:
            play.reap()

    def _receive(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"at": point}:
                self._last = f"stood at {point!r}"
            case {"begun": owner}:
                self._begun += 1
                if owner["pid"] != self.test_pid:
                    self._processes[owner["pid"]] = Owner.from_json(owner)
            case {"ended": how, "pid": pid}:
                self._ended += 1
                self._last = how
                self._processes.pop(pid, None)
            case {"child": name, "owner": owner}:
                self._children.append((name, Owner.from_json(owner)))

    def _tell(self, **message: Any) -> None:
        """Called by a script, in whichever process."""
        if not self._closed:
            self._rendezvous.tell(**message)

    def _known_children(self, name: str | None) -> list[Owner]:
        self._listen()
        return [owner for known, owner in self._children if name in (None, known)]


class TurnScript:
    """The steps of a turn, added one by one; a function for ``start_turn``, for any number of turns.

    Args:
        kit: the kit that the script belongs to.
    """

    def __init__(self, kit: TurnKit) -> None:
        self._kit = kit
        self._steps: list[Step] = []
        self._value: Any = None

    def __call__(self, context: TurnContext) -> Any:
        """Do the steps, one after another; gives the value set by ``returns``."""
        return _Play(self._kit, context).run(self._steps, self._value)

    def do(self, fn: Callable[[TurnContext], object]) -> Self:
        """Call ``fn(context)``: for anything that has no step."""
        return self._add(lambda play: fn(play.context))

    def emit(self, type: str, /, **data: Any) -> Self:
        """Announce an event without storing it: ``emit("text_delta", chunk="he")``."""
        return self._add(lambda play: play.context.emit(type, data))

    def record(self, type: str, /, **data: Any) -> Self:
        """Store an event: ``record("provider_usage", input=12)``."""
        return self._add(lambda play: play.context.record(type, data))

    def say(self, text: str, *, by: str = "assistant") -> Self:
        """Store a message by the ``assistant`` or by the ``user``.

        Raises:
            InvalidInput: ``by`` is neither.
        """
        if by not in ("assistant", "user"):
            raise InvalidInput(f"{by!r} says nothing in a session.", fix="Use assistant or user.")
        return self.record(f"{by}_message", text=text)

    def call(self, call_id: str, name: str = "shell", **args: Any) -> Self:
        """Call a tool: ``call("c1", "shell", argv=["ls"])``. Steps before its ``result`` happen inside the tool."""
        return self.record("tool_call", call_id=call_id, name=name, args=args)

    def result(self, call_id: str, output: Any = "", *, ok: bool = True) -> Self:
        """Answer a call; with ``ok=False``, ``output`` is the error's message."""
        answer = {"output": output} if ok else {"error": {"kind": "failed", "message": output}}
        return self.record("tool_result", call_id=call_id, ok=ok, **answer)

    def write(self, path: str, data: bytes | str) -> Self:
        """Write a file of the workspace, through the session."""
        return self._add(lambda play: play.context.session.write(path, data))

    def at(self, point: str) -> Self:
        """Stop here until the test says ``turns.go(point)``; ``turns.wait_for(point)`` returns when the turn is here.

        A turn that is interrupted here does nothing more, even after ``go``.
        """
        self._kit._rendezvous.point(point)
        return self._add(lambda play: play.stop_at(point))

    def spawn_child(self, name: str = "child") -> Self:
        """Start a child with a child of its own, both deaf to SIGTERM, SIGINT and SIGHUP; ``turns.children(name)`` gives their pids."""
        return self._add(lambda play: play.spawn(name))

    def hang(self) -> Self:
        """Do nothing, for ever."""
        return self._add(lambda play: play.hang())

    def deaf(self) -> Self:
        """Ignore SIGTERM, SIGINT and the other signals that ask a process to end. A thread ignores none: its process is the test's."""
        return self._add(lambda play: play.ignore_signals())

    def ignore_interrupt(self) -> Self:
        """``deaf``, then ``hang``."""
        return self.deaf().hang()

    def until_cancelled(self) -> Self:
        """Wait until the turn is cancelled, then go on, as a polite thread does; a process is killed and cannot go on."""
        return self._add(lambda play: play.hang(polite=True))

    def crash(self, error: BaseException | None = None) -> Self:
        """Raise an error; a ``RuntimeError`` by default."""
        return self._add(lambda _play: _raise(error or RuntimeError("the script crashes here")))

    def kill_itself(self) -> Self:
        """Have the turn's process die by SIGKILL. In a thread, which shares its process with the test, it raises instead."""
        return self._add(lambda play: play.kill_itself())

    def returns(self, value: Any) -> Self:
        """Set the value that the turn returns after its last step."""
        self._value = value
        return self

    def _add(self, step: Step) -> Self:
        self._steps.append(step)
        return self


@dataclass(eq=False)
class _Play:
    """One run of a script, in whichever process."""

    kit: TurnKit
    context: TurnContext

    def __post_init__(self) -> None:
        self.thread = threading.current_thread()
        self.trees: list[subprocess.Popen[str]] = []

    @property
    def forked(self) -> bool:
        """Whether this runs in another process than the test."""
        return os.getpid() != self.kit.test_pid

    def run(self, steps: list[Step], value: Any) -> Any:
        """Do the steps, and report how they ended, unless the process died."""
        if not self.forked:
            self.kit._plays.append(self)
        self.kit._tell(begun=Owner.current().to_json())
        how = "was cut short"
        try:
            for step in steps:
                step(self)
            how = "ended by itself"
        except Exception as problem:
            how = f"raised {type(problem).__name__}"
            raise
        finally:
            self.kit._tell(ended=how, pid=os.getpid())
        return value

    def stop_at(self, point: str) -> None:
        """Report the point, and wait for ``go``."""
        self.kit._tell(at=point)
        fd = self.kit._rendezvous.descriptor(point)
        while True:
            ready = select.select([fd], [], [], _SLICE)[0]
            self._cut()  # a turn that was ended must not read a ``go`` that is meant for the next one
            with suppress(BlockingIOError):  # another turn was quicker
                if ready and os.read(fd, 1):
                    return

    def hang(self, *, polite: bool = False) -> None:
        """Wait until the kit is closed or, if ``polite``, until the turn is cancelled."""
        while not self.kit._over.wait(_SLICE if polite else None):
            if self.context.cancelled.is_set():
                return
        raise TurnCut

    def ignore_signals(self) -> None:
        """Ignore signals, but not in the test's own process. Blocking is not enough: another thread of the process would receive them."""
        if self.forked:
            for name in _ENDING:
                signal.signal(getattr(signal, name), signal.SIG_IGN)

    def spawn(self, name: str) -> None:
        """Start a child and a grandchild, and report them to the test once they ignore signals."""
        pipe = str(self.kit.directory / STAY)
        tree = subprocess.Popen(["/bin/sh", "-c", _TREE, pipe], stdout=subprocess.PIPE, text=True)
        self.trees.append(tree)
        assert tree.stdout is not None
        for _ in range(2):
            self.kit._tell(child=name, owner=owner_of(int(tree.stdout.readline())).to_json())

    def kill_itself(self) -> None:
        """Die, but not in the test's own process."""
        if not self.forked:
            raise InvalidInput("This turn runs in a thread.", why="The test would die with it.", fix="Run it with runs='process'.")
        os.kill(os.getpid(), signal.SIGKILL)

    def end(self) -> None:
        """Called by the kit in the test's process: end the thread."""
        self.thread.join(_SOON)
        self.context.cancelled.set()  # for a script that waits for its cancellation only
        self.thread.join(_JOIN)

    def reap(self) -> None:
        """Called by the kit: wait for children that were killed."""
        for tree in self.trees:
            with tree:
                tree.wait(_JOIN)

    def _cut(self) -> None:
        if self.kit._over.is_set() or self.context.cancelled.is_set():
            raise TurnCut


def _raise(error: BaseException) -> None:
    raise error
