"""A real agent on a real repository, tested as its author would: this project's own history is the durable side.

``make demo`` begins with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gittrix import AgentSession, BaselineConflict, DurableRepo, FrozenClock, GitTrix, Rival, SessionExpired, UserSession

PROJECT = Path(__file__).resolve().parent.parent
RunAgent = Callable[[AgentSession], list[str]]

pytestmark = pytest.mark.gittrix(repository=PROJECT, task="group the digits of long numbers")


def test_the_agents_edits_stay_in_its_workspace(gittrix_agent: AgentSession, gittrix_durable: DurableRepo, run_agent: RunAgent) -> None:
    with gittrix_durable.unchanged():
        changed = run_agent(gittrix_agent)
        assert changed
        assert gittrix_agent.touched_files() == sorted(changed)


def test_a_rival_who_touches_the_same_file_makes_promotion_fail(
    gittrix_session: UserSession, gittrix_durable: DurableRepo, gittrix_rival: Rival, run_agent: RunAgent
) -> None:
    first, *rest = run_agent(gittrix_session)
    gittrix_rival.commit({first: "# rewritten by somebody else\n"}, message="Rewrite it")
    head = gittrix_durable.head()
    with pytest.raises(BaselineConflict) as caught:
        gittrix_session.promote()
    assert caught.value.conflicting_files == [first]
    assert gittrix_durable.head() == head

    result = gittrix_session.promote(files=rest)
    assert gittrix_durable.head() == result.sha
    assert gittrix_durable.log()[0].parents == (head,)


def test_an_idle_session_is_gone_after_four_hours(
    gittrix: GitTrix, gittrix_session: UserSession, gittrix_clock: FrozenClock, run_agent: RunAgent
) -> None:
    changed = run_agent(gittrix_session)
    workspace = gittrix_session.workspace_path
    assert workspace is not None
    deadline = gittrix_session.info().deadline
    assert deadline is not None
    gittrix_clock.just_before(deadline)
    assert workspace.exists()
    gittrix_clock.advance(minutes=6)
    assert not workspace.exists()
    with pytest.raises(SessionExpired):
        gittrix_session.promote()
    kept = gittrix.store.directory(gittrix_session.id) / "archive.patch"
    assert changed[0] in kept.read_text()
