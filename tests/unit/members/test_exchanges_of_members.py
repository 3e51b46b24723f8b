"""Members ask one model at a time, one of them by two agents: each session has the exchanges of its own agents."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import coding_agent
from support.frameworks import available
from support.members import Crew
from support.orchestrator import on_linux

from pytest_gittrix.engine.agents.exchanges import record_exchange
from pytest_gittrix.model import Answer, Call, Request
from pytest_gittrix.model.protocols.exchanges import Exchange
from pytest_gittrix.model.server import ModelServer

pytestmark = on_linux
AGENT = f"{sys.executable} {coding_agent.__file__}"


def answer(request: Request) -> Answer | str:
    return "Done." if request.results else Answer((Call("", "bash", {"command": 'sleep 0.2; echo "I am $GITTRIX_SESSION_ID"'}),))


@pytest.mark.parametrize("level", ["guard", "jail"])
def test_exchanges_are_those_of_the_session_whose_agents_asked(crew: Crew, level: str) -> None:
    available(level)

    def record(exchange: Exchange) -> None:
        record_exchange(crew.engine.services.recorder(str(exchange.session)), exchange)

    commands = {"alice": ["sh", "-c", f"{AGENT} & {AGENT}; wait"], "bob": ["sh", "-c", AGENT], "carol": ["sh", "-c", AGENT]}
    with ModelServer(on_exchange=record) as model:
        model.answer_with(answer)
        members = crew.manager(network=[model], confine=level, readable=[Path(coding_agent.__file__).parent, sys.prefix], commands=commands)
        ids = {member: members.start(member).id for member in commands}
        for id_ in ids.values():
            process = members.process(id_)
            assert process is not None
            process.wait(60)
        ended = {member: members.stop(id_) for member, id_ in ids.items()}
        members.close()

    assert set(ended) == set(commands)
    for member, many in (("alice", 4), ("bob", 2), ("carol", 2)):
        events = crew.events(ids[member])
        exited = next(event for event in events if event.type == "agent.exited")
        of_session = [one for one in model.exchanges if one.session == ids[member]]
        recorded = [event.data["number"] for event in events if event.type == "model.exchange"]
        assert sorted(recorded) == sorted(one.number for one in of_session)  # two that end at once are recorded in either order
        assert len(of_session) == many
        assert exited.data["network"]["model"]["exchanges"] == many
        said = {result.text.strip() for one in of_session for result in one.request.results}
        assert said == {f"I am {ids[member]}"}
