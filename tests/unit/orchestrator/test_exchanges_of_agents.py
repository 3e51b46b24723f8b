"""Agents that stay ask one model at the same time, and each session's log has the exchanges of its own agent."""

from __future__ import annotations

import sys
from pathlib import Path

from support import coding_agent
from support.frameworks import available
from support.orchestrator import ENVIRONMENT, on_linux, open_fleet

from pytest_gittrix.engine.agents.exchanges import record_exchange
from pytest_gittrix.model import Answer, Call, Request
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.server import ModelServer
from pytest_gittrix.orchestrator.config import CommandAgent
from pytest_gittrix.os_level.monotonic import pause, real_seconds

pytestmark = on_linux
LONGEST = 60.0


def answer(request: Request) -> Answer | str:
    return "Done." if request.results else Answer((Call("", "bash", {"command": "sleep 0.2; echo x >> work"}),))


def test_exchanges_are_those_of_the_session_whose_agent_asked(tmp_path: Path) -> None:
    available("guard")
    with open_fleet(tmp_path) as fleet:
        engine = fleet.site.engine

        def record(exchange: Exchange) -> None:
            record_exchange(engine.services.recorder(str(exchange.session)), exchange)

        def asked(id_: str) -> int:
            return sum(event.type == "model.exchange" for event in fleet.site.events(id_))

        with ModelServer(on_exchange=record) as model:
            model.answer_with(answer)
            agent = CommandAgent("coder", (sys.executable, str(Path(coding_agent.__file__))))
            lead = fleet.another(
                fleet.project(agents=(agent,)),
                network=[model],
                confine="guard",
                readable=[Path(coding_agent.__file__).parent],
                environment=ENVIRONMENT,
            )
            sessions = [fleet.spawn(lead).id for _ in range(2)]
            end = real_seconds() + LONGEST
            while [asked(id_) for id_ in sessions] != [2, 2] and real_seconds() < end:
                pause(0.05)
            lead.close()

        assert [asked(id_) for id_ in sessions] == [2, 2]
        assert sorted(str(one.session) for one in model.exchanges) == sorted(sessions * 2)
