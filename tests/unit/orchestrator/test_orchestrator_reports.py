"""What agents say of themselves through an orchestrator: taken or refused, recorded and audited, acted on at the next look."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.orchestrator import Fleet, filed_audit, on_linux

from pytest_gittrix.errors import InvalidInput, SessionNotFound
from pytest_gittrix.orchestrator.flat_audit import audit_path
from pytest_gittrix.orchestrator.session import Reported
from pytest_gittrix.record.state.agent_reports import REPORTS, RESERVED

pytestmark = on_linux


def test_a_report_is_recorded_audited_and_acted_on_at_the_next_look(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.does(session, "ready")
    assert fleet.lead.report(session.id, "Needs-Input", "which database?") == Reported(accepted=True)
    assert fleet.now(session.id).status == "working"
    (event,) = [event for event in fleet.site.events(session.id) if event.type == "report.submitted"]
    assert (event.actor, event.data) == ("agent", {"report": "needs_input", "accepted": True, "note": "which database?"})

    assert [one.status for one in fleet.lead.poll()] == ["needs_input"]
    assert fleet.decided(session.id)[1:] == [("needs_input", "awaiting_user_input")]
    assert fleet.now(session.id).metadata["agentReportedNote"] == "which database?"
    assert fleet.types() == ["session.working", "session.needs_input"]


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_gives_the_state_that_it_stands_for(fleet: Fleet, name: str) -> None:
    session = fleet.spawn()
    assert fleet.lead.report(session.id, name) == Reported(accepted=True)
    fleet.lead.poll()

    assert fleet.decided(session.id)[-1] == REPORTS[name]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_what_is_seen_cannot_be_declared(fleet: Fleet, name: str) -> None:
    session = fleet.spawn()
    answer = fleet.lead.report(session.id, name)

    assert not answer.accepted
    assert "it is seen" in (answer.reason or "")
    assert fleet.lead.poll()[0].status == "working"


def test_a_refused_report_is_kept_with_its_reason(fleet: Fleet) -> None:
    session = fleet.spawn()
    answer = fleet.lead.report(session.id, "dancing", "wheee")
    (entry,) = fleet.lead.audit(session.id)

    assert (entry["accepted"], entry["reportState"], entry["note"]) == (False, "dancing", "wheee")
    assert entry["rejectionReason"] == answer.reason
    assert "There is no report 'dancing'" in (answer.reason or "")


def test_neither_an_orchestrator_nor_what_is_over_reports(fleet: Fleet) -> None:
    leader, session = fleet.lead.spawn_orchestrator("app"), fleet.spawn()
    fleet.lead.kill(session.id)

    assert fleet.lead.report(leader.id, "working").reason == "An orchestrator does not report of itself."
    assert fleet.lead.report(session.id, "working").reason == "The session is terminated."
    assert len(fleet.lead.audit(session.id)) == 1


def test_a_report_of_what_was_purged_is_kept_too(fleet: Fleet) -> None:
    session = fleet.spawn()
    fleet.lead.kill(session.id, purge=True)

    assert not fleet.lead.report(session.id, "completed").accepted
    assert [entry["accepted"] for entry in fleet.lead.audit(session.id)] == [False]


def test_the_audit_file_is_a_copy_of_what_the_log_tells(fleet: Fleet) -> None:
    session = fleet.spawn()
    for name in ("started", "nonsense", "waiting"):
        fleet.lead.report(session.id, name)
        fleet.site.clock.advance(seconds=1)

    assert [entry["reportState"] for entry in fleet.lead.audit(session.id)] == ["waiting", "nonsense", "started"]
    assert filed_audit(fleet.files, session.id) == fleet.lead.audit(session.id)
    assert fleet.lead.audit(session.id)[-1]["source"] == "acknowledge"
    audit_path(fleet.files, session.id).unlink()
    assert len(fleet.lead.audit(session.id)) == 3


def test_an_audit_that_cannot_be_written_is_announced_and_the_report_counts(fleet: Fleet) -> None:
    session = fleet.spawn()
    audit_path(fleet.files, session.id).parent.write_text("in the way")

    assert fleet.lead.report(session.id, "working") == Reported(accepted=True)
    assert ".agent-report-audit" in fleet.errors[-1]
    assert len(fleet.lead.audit(session.id)) == 1


def test_reports_at_once_are_all_kept(fleet: Fleet) -> None:
    session = fleet.spawn()
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda number: fleet.another().report(session.id, "working", str(number)), range(16))]

    assert all(answer.accepted for answer in answers)
    assert sorted(int(entry["note"]) for entry in fleet.lead.audit(session.id)) == [*range(16)]
    assert len(filed_audit(fleet.files, session.id)) == 16


def test_what_is_no_text_or_no_session_is_refused(fleet: Fleet) -> None:
    session = fleet.spawn()
    with pytest.raises(InvalidInput, match="name is int"):
        fleet.lead.report(session.id, 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="lone surrogate"):
        fleet.lead.report(session.id, "working", "\ud800")
    with pytest.raises(SessionNotFound):
        fleet.lead.report("app-9", "working")
    with pytest.raises(SessionNotFound):
        fleet.lead.audit("app-9")
    with pytest.raises(InvalidInput, match="not a session id"):
        fleet.lead.report("../app", "working")
    assert fleet.lead.audit(session.id) == []
