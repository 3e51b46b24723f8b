"""A real agent on a real repository, tested as its author would: this project's own history is the durable side.

Run it with ``pytest examples -s`` to see what happens; ``make demo`` does so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gittrix import AgentSession, BaselineConflict, DurableRepo, FrozenClock, GitTrix, Rival, SessionExpired, UserSession

PROJECT = Path(__file__).resolve().parent.parent
RunAgent = Callable[[AgentSession], list[str]]

pytestmark = pytest.mark.gittrix(repository=PROJECT, task="group the digits of long numbers")


def show(title: str, text: object) -> None:
    """Print a step, for whoever watches."""
    print(f"\n--- {title}\n{text}")


def test_the_agents_edits_stay_in_its_workspace(
    gittrix_session: UserSession, gittrix_agent: AgentSession, gittrix_durable: DurableRepo, run_agent: RunAgent
) -> None:
    with gittrix_durable.unchanged():
        changed = run_agent(gittrix_agent)
        assert changed
        assert gittrix_agent.touched_files() == sorted(changed)
    info = gittrix_session.info()
    show("the session", f"{info.session_id}: {info.task!r} on {info.durable_branch} at {info.baseline_sha[:12]}")
    show(f"the agent changed {len(changed)} files; the diff of the first", gittrix_agent.diff(changed[:1]))


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
    show("the rival's commit, then the agent's promotion", caught.value)

    result = gittrix_session.promote(files=rest)
    assert gittrix_durable.head() == result.sha
    assert gittrix_durable.log()[0].parents == (head,)
    show("promoted without the conflicting file", gittrix_durable.git("show", "--stat", "--format=%h %an: %s", result.sha))


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
    with pytest.raises(SessionExpired) as caught:
        gittrix_session.promote()
    kept = gittrix.store.directory(gittrix_session.id) / "archive.patch"
    assert changed[0] in kept.read_text()
    show("four hours later, after the sweep", f"{caught.value}\nKept: {kept.name}, {kept.stat().st_size} bytes")
