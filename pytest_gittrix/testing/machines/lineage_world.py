"""A world of sessions that come from sessions, beside a model of them all; ``lineage_machine`` has the rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.testing.machines.lineage_model import STILLBORN, LineageModel, LineageSession
from pytest_gittrix.testing.machines.machine_base import FOREVER, WorldMachine, ask, require_equal


class LineageWorld(WorldMachine):
    """Two engines, and the model of their sessions.

    Attributes:
        model: the expected lineage of every session.
        handles: for each engine, its handles of the sessions by id; a session that has ended keeps its handle.
        logs: the bytes of each session's log after the last step.
        writable: the ids of the sessions to whose logs this step may write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = LineageModel()
        self.handles: list[dict[str, UserSession]] = [{}, {}]
        self.logs: dict[str, bytes] = {}
        self.writable: set[str] = set()

    def reopen_sessions(self, which: int) -> None:
        """Have a restarted engine open every live session."""
        for one in self.model.sessions.values():
            if one.lives:
                self.handles[which][one.id] = self.engines[which].get_session(one.id)

    def started(self, id_: str, identity: dict[str, Any], became: str = "born", **where: Any) -> LineageSession:
        """Enter a session that was started, or one that is left of a start that was killed."""
        now = self.world.clock.now_ns()
        fields = {"chain": id_, "root": id_, "identity": identity, **where}
        one = LineageSession(f"s{len(self.model.sessions) + 1}", id_, now - now % 1000, **fields)
        self.model.sessions[id_] = one
        self.writable.add(id_)
        if became == STILLBORN:
            one.state = "discarded"
            return one
        for handles, engine in zip(self.handles, self.engines, strict=True):
            handle = ask(f"get_session({one})", partial(engine.get_session, id_))
            assert handle is not None
            handles[id_] = handle
        require_equal(f"{one} has the files it begins with.", one.file, self.handles[0][id_].read("a"))
        return one

    def handed_on(self, parent: LineageSession, id_: str, identity: dict[str, Any]) -> LineageSession:
        """Enter a handoff: the parent has ended, and the child has its files and goes on in its line."""
        self.writable.add(parent.id)
        parent.state, parent.outcome, parent.successor = "discarded", "handoff", id_
        origin: dict[str, Any] = {"parent": parent, "relation": "handoff", "chain": parent.chain, "root": parent.root}
        return self.started(id_, {**parent.identity, **identity}, file=parent.file, **origin)

    def succeeded(self, parent: LineageSession, id_: str, identity: dict[str, Any], became: str = "born") -> LineageSession:
        """Enter a session that goes on with the work of one that crashed."""
        self.writable.add(parent.id)
        if became != STILLBORN:
            parent.successor = id_
        return self.started(id_, identity, became, parent=parent, relation="crash", chain=parent.chain, root=parent.root)

    def forked(
        self, parent: LineageSession, id_: str, identity: dict[str, Any], at: int, file: bytes, became: str = "born"
    ) -> LineageSession:
        """Enter a fork made after an event, with the messages up to that event."""
        copied = [(event.seq, event.data["text"]) for event in self.log_of(id_) if event.type == "assistant_message"]
        expected = [text for seq, text in parent.messages if seq <= at]
        if became != STILLBORN:
            require_equal(f"A fork of {parent} takes along what was said up to event {at}.", expected, [text for _, text in copied])
        origin: dict[str, Any] = {"parent": parent, "relation": "fork", "root": parent.root, "at_seq": at}
        return self.started(id_, {**parent.identity, **identity}, became, file=file, messages=copied, **origin)

    def operation(self, what: str, parent: LineageSession) -> Callable[[], object]:
        """The operation of a name in ``DEATHS``, for another process to run."""
        engine = self.engines[0]
        if what == "handoff":
            return self.handles[0][parent.id].handoff
        if what == "fork":
            return partial(engine.fork, parent.id)
        return partial(engine.start_session, "task", eviction=FOREVER, parent=parent.id if what == "succeed" else None)

    def settled(self, parent: LineageSession, what: str, became: str, length: int) -> list[LineageSession]:
        """Enter what a recovery left of an operation that was killed.

        Args:
            parent: the session that the operation was about.
            what: the operation, a name in ``DEATHS``.
            became: what must be left of the child.
            length: how many events the parent's log had before.
        """
        fresh = sorted(set(self.engines[0].store.ids()) - self.model.sessions.keys())
        require_equal(f"A {what} that was killed leaves no more than its child.", int(became != "nothing"), len(fresh))
        self.writable |= {parent.id} if what in ("handoff", "succeed") else set()
        if what == "start":
            return [self.started(id_, {}, became) for id_ in fresh]
        if what == "succeed":
            return [self.succeeded(parent, id_, {}, became) for id_ in fresh]
        if what == "fork":
            return [self.forked(parent, id_, {}, length - 1, parent.file, became) for id_ in fresh]
        return [self.handed_on(parent, id_, {}) for id_ in fresh]
