"""The daemon's requests about orchestrated sessions: agent-orchestrator's operations, with its field names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.daemon import DaemonClient, Staff, wait_until

FIELDS = {
    "id",
    "projectId",
    "status",
    "activity",
    "branch",
    "issueId",
    "pr",
    "workspacePath",
    "runtimeHandle",
    "agentInfo",
    "createdAt",
    "lastActivityAt",
    "metadata",
}
PLACE = "/api/orchestrator/sessions"


@pytest.fixture
def staff(tmp_path: Path) -> Iterator[Staff]:
    with Staff.open(tmp_path) as opened:
        argv = opened.agents.script("stub").polite().at("up").read().hang().command
        file = opened.hires()
        agents = f"[projects.agents]\nstub = {json.dumps(argv)}\n"
        file.write_text(f'{file.read_text()}[[projects]]\nid = "parser"\ndurable = {json.dumps(str(opened.app.path))}\n{agents}')
        yield opened


@pytest.fixture
def spawned(staff: Staff, daemon: DaemonClient) -> str:
    """A session whose agent waits for a line; its id."""
    id_: str = daemon.ok("POST", PLACE, {"projectId": "parser", "issueId": "INT-7"})["session"]["id"]
    staff.agents.step("up")
    return id_


def test_a_spawned_session_is_told_with_every_field_and_listed(daemon: DaemonClient, spawned: str) -> None:
    answer = daemon.ok("GET", f"{PLACE}/{spawned}")["session"]

    assert answer.keys() == FIELDS
    assert (answer["projectId"], answer["issueId"], answer["branch"]) == ("parser", "INT-7", "feat/INT-7")
    assert Path(answer["workspacePath"], "a.txt").read_text() == "one\n"
    assert daemon.ok("GET", PLACE)["sessions"] == daemon.ok("GET", f"{PLACE}?project=parser")["sessions"] == [answer]


def test_one_session_leads_a_project_however_often_it_is_asked_for(daemon: DaemonClient) -> None:
    with ThreadPoolExecutor(4) as pool:
        body = {"projectId": "parser", "systemPrompt": "see to the issues"}
        sessions = [*pool.map(lambda _: daemon.ok("POST", f"{PLACE}/orchestrator", body)["session"], range(4))]

    assert {one["id"] for one in sessions} == {sessions[0]["id"]}
    assert [one["id"] for one in daemon.ok("GET", PLACE)["sessions"]] == [sessions[0]["id"]]
    assert daemon.request("POST", f"{PLACE}/orchestrator", {"projectId": "nothing"}).error == (400, "INVALID_INPUT")
    assert daemon.request("POST", f"{PLACE}/orchestrator", {"projectId": "parser", "issueId": "x"}).error == (400, "INVALID_INPUT")


def test_what_is_sent_reaches_the_agent(staff: Staff, daemon: DaemonClient, spawned: str) -> None:
    assert daemon.ok("POST", f"{PLACE}/{spawned}/send", {"text": "look at it"})["sent"] is True

    wait_until(lambda: staff.agents.heard == ["look at it"], "the line")


def test_a_session_is_killed_once_and_can_be_restored(staff: Staff, daemon: DaemonClient, spawned: str) -> None:
    assert daemon.request("POST", f"{PLACE}/{spawned}/restore").error == (409, "SESSION_NOT_RESTORABLE")
    assert daemon.ok("POST", f"{PLACE}/{spawned}/kill") == {"ok": True, "cleaned": True, "alreadyTerminated": False, "archives": []}
    assert staff.agents.gone("stub")
    assert daemon.ok("POST", f"{PLACE}/{spawned}/kill", {"reason": "auto_cleanup"})["alreadyTerminated"] is True
    assert "restoredAt" in daemon.ok("POST", f"{PLACE}/{spawned}/restore")["session"]
    staff.agents.step("up")
    assert len(staff.agents.alive("stub")) == 1


def test_a_report_is_believed_or_refused_with_the_reason(daemon: DaemonClient, spawned: str) -> None:
    assert daemon.ok("POST", f"{PLACE}/{spawned}/report", {"state": "working", "note": "x"}) == {
        "ok": True,
        "accepted": True,
        "reason": None,
    }
    refused = daemon.ok("POST", f"{PLACE}/{spawned}/report", {"state": "merged"})
    assert refused["accepted"] is False
    assert refused["reason"]


def test_a_cleanup_tells_what_it_would_do_and_leaves_what_runs(daemon: DaemonClient, spawned: str) -> None:
    for body in (None, {"dryRun": True}, {"projectId": "parser"}):
        answer = daemon.ok("POST", f"{PLACE}/cleanup", body)
        assert answer == {"ok": True, "killed": [], "skipped": [spawned], "errors": {}, "archives": {}}


@pytest.mark.parametrize(
    ("method", "path", "body", "error"),
    [
        ("POST", "", {"projectId": "nothing"}, (400, "INVALID_INPUT")),
        ("POST", "", {"projectId": "parser", "agent": "nobody"}, (400, "INVALID_INPUT")),
        ("POST", "", {"projectId": "parser", "limits": {"cores": 2}}, (400, "INVALID_INPUT")),
        ("POST", "/orchestrator", {"projectId": "parser", "limits": {"memory": "much"}}, (400, "INVALID_INPUT")),
        ("POST", "", {"project_id": "parser"}, (400, "INVALID_INPUT")),
        ("GET", "?project=nothing", None, (400, "INVALID_INPUT")),
        ("GET", "/par-9", None, (404, "SESSION_NOT_FOUND")),
        ("POST", "/par-9/kill", None, (404, "SESSION_NOT_FOUND")),
        ("POST", "/par-9/restore", None, (404, "SESSION_NOT_FOUND")),
        ("POST", "/par-9/send", {"text": "x"}, (404, "SESSION_NOT_FOUND")),
        ("POST", "/par-9/report", {"state": "working"}, (404, "SESSION_NOT_FOUND")),
        ("POST", "/par-9/claim-pr", {"number": 3}, (404, "SESSION_NOT_FOUND")),
        ("POST", "/par-9/claim-pr", {"number": 0}, (400, "INVALID_INPUT")),
        ("POST", "/cleanup", {"projectId": "nothing"}, (400, "INVALID_INPUT")),
    ],
)
def test_what_is_not_there_is_refused_by_its_code(
    daemon: DaemonClient, method: str, path: str, body: object, error: tuple[int, str]
) -> None:
    assert daemon.request(method, PLACE + path, body).error == error
