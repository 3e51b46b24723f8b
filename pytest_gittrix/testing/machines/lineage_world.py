"""A world of sessions that come from sessions, with a model beside it that each birth is entered into.

``line_machine`` draws what happens. Must know no pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.testing.machines.lineage_model import STILLBORN, Family, Kin
from pytest_gittrix.testing.machines.machine_base import FOREVER, WorldMachine, ask, require_equal


class LineWorld(WorldMachine):
    """Two engines, and what must be known of their sessions.

    Attributes:
        family: what must be known.
        handles: the sessions as each engine has them, by id; of one that has ended, as it was held before.
        logs: each session's log, as it was after the last step.
        about: the sessions that the present step may write about.
    """

    def __init__(self) -> None:
        super().__init__()
        self.family = Family()
        self.handles: list[dict[str, UserSession]] = [{}, {}]
        self.logs: dict[str, bytes] = {}
        self.about: set[str] = set()

    def take_in_hand(self, which: int) -> None:
        """Have an engine that was restarted open what lives."""
        for one in self.family.kin.values():
            if one.lives:
                self.handles[which][one.id] = self.engines[which].get_session(one.id)

    def started(self, id_: str, who: dict[str, Any], became: str = "born", **where: Any) -> Kin:
        """Enter a session that was started, or of whose start only a trace is left."""
        now = self.world.clock.now_ns()
        fields = {"chain": id_, "root": id_, "identity": who, **where}
        one = Kin(f"s{len(self.family.kin) + 1}", id_, now - now % 1000, **fields)
        self.family.kin[id_] = one
        self.about.add(id_)
        if became == STILLBORN:
            one.state = "discarded"
            return one
        for handles, engine in zip(self.handles, self.engines, strict=True):
            handle = ask(f"get_session({one})", partial(engine.get_session, id_))
            assert handle is not None
            handles[id_] = handle
        require_equal(f"{one} has the files it begins with.", one.file, self.handles[0][id_].read("a"))
        return one

    def handed_on(self, parent: Kin, id_: str, who: dict[str, Any]) -> Kin:
        """Enter a handoff: one has ended, the other has its files and its place in the line."""
        self.about.add(parent.id)
        parent.state, parent.outcome, parent.successor = "discarded", "handoff", id_
        place: dict[str, Any] = {"parent": parent, "relation": "handoff", "chain": parent.chain, "root": parent.root}
        return self.started(id_, {**parent.identity, **who}, file=parent.file, **place)

    def succeeded(self, parent: Kin, id_: str, who: dict[str, Any], became: str = "born") -> Kin:
        """Enter a session that goes on where another crashed."""
        self.about.add(parent.id)
        if became != STILLBORN:
            parent.successor = id_
        return self.started(id_, who, became, parent=parent, relation="crash", chain=parent.chain, root=parent.root)

    def forked(self, parent: Kin, id_: str, who: dict[str, Any], at: int, file: bytes, became: str = "born") -> Kin:
        """Enter a fork after an event, with what was said until then."""
        told = [(event.seq, event.data["text"]) for event in self.log_of(id_) if event.type == "assistant_message"]
        expected = [text for seq, text in parent.said if seq <= at]
        if became != STILLBORN:
            require_equal(f"A fork of {parent} takes along what was said up to event {at}.", expected, [text for _, text in told])
        place: dict[str, Any] = {"parent": parent, "relation": "fork", "root": parent.root, "at_seq": at}
        return self.started(id_, {**parent.identity, **who}, became, file=file, said=told, **place)

    def operation(self, what: str, parent: Kin) -> Callable[[], object]:
        """What another process is to do, by its name in ``DEATHS``."""
        engine = self.engines[0]
        if what == "handoff":
            return self.handles[0][parent.id].handoff
        if what == "fork":
            return partial(engine.fork, parent.id)
        return partial(engine.start_session, "task", eviction=FOREVER, parent=parent.id if what == "succeed" else None)

    def settled(self, parent: Kin, what: str, became: str, length: int) -> list[Kin]:
        """Enter what a recovery has left of an operation that was killed; ``length`` is that of the parent's log before."""
        fresh = sorted(set(self.engines[0].store.ids()) - self.family.kin.keys())
        require_equal(f"A {what} that was killed leaves no more than its child.", int(became != "nothing"), len(fresh))
        self.about |= {parent.id} if what in ("handoff", "succeed") else set()
        if what == "start":
            return [self.started(id_, {}, became) for id_ in fresh]
        if what == "succeed":
            return [self.succeeded(parent, id_, {}, became) for id_ in fresh]
        if what == "fork":
            return [self.forked(parent, id_, {}, length - 1, parent.file, became) for id_ in fresh]
        return [self.handed_on(parent, id_, {}) for id_ in fresh]
