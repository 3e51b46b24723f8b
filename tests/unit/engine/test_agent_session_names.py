"""What an agent's object of a session does not have, and what it says when it is asked for it."""

from __future__ import annotations

import pytest

from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.agents.session_parts import DECISIONS
from pytest_gittrix.engine.user_session import UserSession


def test_the_decisions_are_what_the_persons_object_has_in_addition() -> None:
    assert {name for name in set(dir(UserSession)) - set(dir(AgentSession)) if not name.startswith("_")} == DECISIONS


def test_an_agent_that_promotes_is_answered_with_who_may(gittrix_agent: AgentSession) -> None:
    with pytest.raises(AttributeError) as refused:
        gittrix_agent.promote()  # type: ignore[attr-defined]

    assert str(refused.value).splitlines() == [
        "'AgentSession' object has no attribute 'promote': only a person decides about a session.",
        "What an agent can call, its programs can call too.",
        "Call gittrix_session.promote() in a test; elsewhere, promote() of the session that the engine gave you.",
    ]
    assert not hasattr(gittrix_agent, "promote")


def test_another_name_is_refused_as_python_does(gittrix_agent: AgentSession) -> None:
    with pytest.raises(AttributeError, match=r"^'AgentSession' object has no attribute 'tuched_files'$") as refused:
        gittrix_agent.tuched_files()  # type: ignore[attr-defined]

    assert refused.value.obj is gittrix_agent  # Python and pytest make a suggestion of it
