"""Pull requests of orchestrated sessions: found, followed, merged, closed and taken over, at a forge on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.orchestrator import Fleet, on_linux, open_fleet

from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.errors import InvalidInput, SessionNotRestorable
from pytest_gittrix.orchestrator.session import PRInfo, Session
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote

pytestmark = on_linux


@dataclass
class Forged:
    """Sessions of a project with a forge."""

    fleet: Fleet
    server: ForgeServer
    forge: GitHubForge

    def open(self, branch: str, **options: Any) -> int:
        """A pull request from a new branch of the forge's repository; gives its number."""
        repo = self.server.remote.repo
        repo.git("update-ref", f"refs/heads/{branch}", repo.head("main"))
        repo.commit({f"{branch}.txt": "work\n"}, branch=branch)
        return self.forge.open_pr(branch, "main", "Mend the login", **options).number

    def look(self, id: str) -> Session:
        """A session, looked at half a minute later, while its agent is at work."""
        self.fleet.site.clock.advance(seconds=30)
        if self.fleet.now(id).status not in ("merged", "killed"):
            self.fleet.does(self.fleet.now(id), "active")
        self.fleet.lead.poll()
        return self.fleet.now(id)


@pytest.fixture(name="forged")
def forged_fixture(tmp_path: Path) -> Iterator[Forged]:
    with (
        BareRemote.make(tmp_path / "remote.git", files={"app.py": "1\n"}) as remote,
        ForgeServer(remote) as server,
        GitHubForge("acme/app", base_url=server.url) as forge,
        open_fleet(tmp_path, forge=forge) as fleet,
    ):
        yield Forged(fleet, server, forge)


def test_a_pull_request_is_found_by_its_branch_and_followed_until_it_is_merged(forged: Forged) -> None:
    fleet, state = forged.fleet, forged.server.state
    session = fleet.spawn(issue_id="42")
    assert forged.look(session.id).pr is None
    number = forged.open("feat/42", draft=True)
    opened = forged.look(session.id)
    assert opened.status == "pr_open"
    assert opened.pr == PRInfo(
        number, f"{forged.server.web}/acme/app/pull/{number}", "Mend the login", "acme", "app", "feat/42", "main", True
    )

    state.pulls[number].draft = False
    state.checks("feat/42", {"tests": "failure"})
    assert forged.look(session.id).status == "ci_failed"
    state.checks("feat/42", {"tests": "success"})
    state.request_review(number, "ada")
    assert forged.look(session.id).status == "review_pending"
    state.review(number, "ada", "changes_requested")
    assert forged.look(session.id).status == "changes_requested"
    state.checks("feat/42", {"more": "in_progress"})
    state.review(number, "ada", "approved")
    assert forged.look(session.id).status == "approved"
    state.checks("feat/42", {"more": "success"})
    assert forged.look(session.id).status == "mergeable"
    state.merge(number)
    assert forged.look(session.id).status == "merged"

    assert fleet.types() == [
        *("session.working", "pr.created", "ci.failing", "review.pending", "review.changes_requested"),
        *("review.approved", "merge.ready", "merge.completed"),
    ]
    assert fleet.lead.poll() == []  # that is its end
    with pytest.raises(SessionNotRestorable, match="merged, which nothing comes back from"):
        fleet.lead.restore(session.id)


def test_a_merged_session_is_cleaned_up(forged: Forged) -> None:
    session = forged.fleet.spawn(issue_id="42")
    number = forged.open("feat/42")
    forged.look(session.id)
    forged.server.state.merge(number)

    assert forged.fleet.lead.cleanup().killed == [session.id]  # without another look
    assert forged.fleet.now(session.id).status == "cleanup"
    assert forged.fleet.process(session.id).observe().state == "exited"


@pytest.mark.parametrize(("busy", "minutes"), [("active", 0), ("waiting_input", 4)])
def test_the_originals_poll_ends_a_merged_session_once_its_agent_rests(forged: Forged, busy: str, minutes: int) -> None:
    fleet = forged.fleet
    real = fleet.another(end_merged=True)
    session = fleet.spawn(issue_id="42")
    number = forged.open("feat/42")
    forged.look(session.id)
    forged.server.state.merge(number)
    assert [one.status for one in real.poll()] == ["merged"]

    fleet.site.clock.advance(minutes=minutes)
    fleet.does(session, busy)
    assert real.poll() == []
    assert fleet.now(session.id).status == "merged"
    fleet.site.clock.advance(minutes=2)
    real.poll()
    assert fleet.now(session.id).status == "cleanup"
    assert fleet.process(session.id).observe().state == "exited"


def test_a_closed_pull_request_is_told_and_dropped_by_a_restore(forged: Forged) -> None:
    fleet, session = forged.fleet, forged.fleet.spawn(issue_id="42")
    number = forged.open("feat/42")
    forged.look(session.id)
    forged.forge.close_pr(number)
    assert forged.look(session.id).status == "working"
    assert fleet.types()[-1] == "pr.closed"
    fleet.lead.kill(session.id)
    fleet.lead.restore(session.id)

    assert fleet.now(session.id).pr is None
    assert forged.look(session.id).pr is None
    again = forged.open("feat/42")
    assert (forged.look(session.id).pr or PRInfo(0, "", "", "", "", "", "", False)).number == again


def test_nothing_is_stored_of_a_pull_request_that_did_not_change(forged: Forged) -> None:
    fleet, session = forged.fleet, forged.fleet.spawn(issue_id="42")
    forged.open("feat/42")
    for _ in range(4):
        forged.look(session.id)

    assert fleet.site.types(session.id).count("pr.observed") == 1


def test_a_forge_that_cannot_be_asked_stops_no_look(forged: Forged) -> None:
    fleet, session = forged.fleet, forged.fleet.spawn(issue_id="42")
    forged.open("feat/42")
    forged.look(session.id)
    forged.server.tokens.add("needed")

    assert forged.look(session.id).status == "mergeable"
    assert "401" in fleet.errors[0] or "token" in fleet.errors[0]
    fleet.process(session.id).stop(grace=0)
    fleet.site.clock.advance(minutes=6)
    fleet.lead.poll()
    assert fleet.now(session.id).status == "errored"


# Whose it is -------------------------------------------------------------------------------------------------------------------


def numbers(fleet: Fleet) -> dict[str, int | None]:
    return {one.id: None if one.pr is None else one.pr.number for one in fleet.lead.list()}


def test_who_claims_a_pull_request_takes_it_from_others(forged: Forged) -> None:
    fleet = forged.fleet
    first, second = fleet.spawn(issue_id="42"), fleet.spawn()
    number = forged.open("feat/42")
    forged.look(first.id)
    assert numbers(fleet) == {first.id: number, second.id: None}

    claimed = fleet.lead.claim_pr(second.id, number)
    assert (claimed.status, claimed.branch) == ("mergeable", "feat/42")
    assert numbers(fleet) == {first.id: None, second.id: number}
    forged.look(first.id)
    assert numbers(fleet) == {first.id: None, second.id: number}
    assert fleet.lead.claim_pr(second.id, number).pr == claimed.pr


def test_two_sessions_of_one_branch_do_not_both_get_its_pull_request(forged: Forged) -> None:
    fleet = forged.fleet
    sessions = [fleet.spawn(branch="topic") for _ in range(2)]
    number = forged.open("topic")
    forged.look(sessions[0].id)

    assert numbers(fleet) == {"app-1": number, "app-2": None}


def test_of_two_that_hold_one_the_last_to_get_it_keeps_it(forged: Forged) -> None:
    fleet = forged.fleet
    first, second = fleet.spawn(branch="topic"), fleet.spawn(branch="other")
    number = forged.open("topic")
    forged.look(first.id)
    recorder = fleet.site.engine.services.recorder(second.id)
    with recorder.leased():
        recorder.append("pr.observed", {"state": "open", "number": number})
    forged.look(first.id)

    assert numbers(fleet) == {first.id: None, second.id: number}


def test_what_cannot_be_claimed_is_said(forged: Forged) -> None:
    fleet = forged.fleet
    session, killed, leader = fleet.spawn(), fleet.spawn(), fleet.lead.spawn_orchestrator("app")
    fleet.lead.kill(killed.id)
    one, two, closed = forged.open("one"), forged.open("two"), forged.open("three")
    forged.forge.close_pr(closed)
    fleet.lead.claim_pr(session.id, one)

    for id, number, message in [
        *((leader.id, two, "is an orchestrator"), (killed.id, two, "is over"), (session.id, two, f"has the pull request {one}")),
        *((fleet.spawn().id, closed, f"The pull request {closed} is closed"), (fleet.spawn().id, 99, "99")),
    ]:
        with pytest.raises(InvalidInput, match=message):
            fleet.lead.claim_pr(id, number)
    with pytest.raises(InvalidInput, match="has no forge"):
        fleet.another(fleet.project(forge=None)).claim_pr(fleet.spawn().id, two)
    assert [number for number in numbers(fleet).values() if number is not None] == [one]
