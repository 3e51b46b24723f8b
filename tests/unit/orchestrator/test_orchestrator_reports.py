"""What agents say of themselves through an orchestrator: taken or refused, recorded and audited, acted on at the next look."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.orchestrator import Led, filed_audit, on_linux

from pytest_gittrix.errors import InvalidInput, SessionNotFound
from pytest_gittrix.orchestrator.flat_audit import audit_path
from pytest_gittrix.orchestrator.session import Reported
from pytest_gittrix.record.state.agent_reports import REPORTS, RESERVED

pytestmark = on_linux


def test_a_report_is_recorded_audited_and_acted_on_at_the_next_look(led: Led) -> None:
    session = led.spawn()
    led.does(session, "ready")
    assert led.lead.report(session.id, "Needs-Input", "which database?") == Reported(accepted=True)
    assert led.now(session.id).status == "working"
    (event,) = [event for event in led.site.events(session.id) if event.type == "report.submitted"]
    assert (event.actor, event.data) == ("agent", {"report": "needs_input", "accepted": True, "note": "which database?"})

    assert [one.status for one in led.lead.poll()] == ["needs_input"]
    assert led.decided(session.id)[1:] == [("needs_input", "awaiting_user_input")]
    assert led.now(session.id).metadata["agentReportedNote"] == "which database?"
    assert led.types() == ["session.working", "session.needs_input"]


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_gives_the_state_that_it_stands_for(led: Led, name: str) -> None:
    session = led.spawn()
    assert led.lead.report(session.id, name) == Reported(accepted=True)
    led.lead.poll()

    assert led.decided(session.id)[-1] == REPORTS[name]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_what_is_seen_cannot_be_declared(led: Led, name: str) -> None:
    session = led.spawn()
    answer = led.lead.report(session.id, name)

    assert not answer.accepted
    assert "it is seen" in (answer.reason or "")
    assert led.lead.poll()[0].status == "working"


def test_a_refused_report_is_kept_with_its_reason(led: Led) -> None:
    session = led.spawn()
    answer = led.lead.report(session.id, "dancing", "wheee")
    (entry,) = led.lead.audit(session.id)

    assert (entry["accepted"], entry["reportState"], entry["note"]) == (False, "dancing", "wheee")
    assert entry["rejectionReason"] == answer.reason
    assert "There is no report 'dancing'" in (answer.reason or "")


def test_neither_an_orchestrator_nor_what_is_over_reports(led: Led) -> None:
    leader, session = led.lead.spawn_orchestrator("app"), led.spawn()
    led.lead.kill(session.id)

    assert led.lead.report(leader.id, "working").reason == "An orchestrator does not report of itself."
    assert led.lead.report(session.id, "working").reason == "The session is terminated."
    assert len(led.lead.audit(session.id)) == 1


def test_a_report_of_what_was_purged_is_kept_too(led: Led) -> None:
    session = led.spawn()
    led.lead.kill(session.id, purge=True)

    assert not led.lead.report(session.id, "completed").accepted
    assert [entry["accepted"] for entry in led.lead.audit(session.id)] == [False]


def test_the_audit_file_is_a_copy_of_what_the_log_tells(led: Led) -> None:
    session = led.spawn()
    for name in ("started", "nonsense", "waiting"):
        led.lead.report(session.id, name)
        led.site.clock.advance(seconds=1)

    assert [entry["reportState"] for entry in led.lead.audit(session.id)] == ["waiting", "nonsense", "started"]
    assert filed_audit(led.files, session.id) == led.lead.audit(session.id)
    assert led.lead.audit(session.id)[-1]["source"] == "acknowledge"
    audit_path(led.files, session.id).unlink()
    assert len(led.lead.audit(session.id)) == 3


def test_an_audit_that_cannot_be_written_is_announced_and_the_report_counts(led: Led) -> None:
    session = led.spawn()
    audit_path(led.files, session.id).parent.write_text("in the way")

    assert led.lead.report(session.id, "working") == Reported(accepted=True)
    assert ".agent-report-audit" in led.errors[-1]
    assert len(led.lead.audit(session.id)) == 1


def test_reports_at_once_are_all_kept(led: Led) -> None:
    session = led.spawn()
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda number: led.another().report(session.id, "working", str(number)), range(16))]

    assert all(answer.accepted for answer in answers)
    assert sorted(int(entry["note"]) for entry in led.lead.audit(session.id)) == [*range(16)]
    assert len(filed_audit(led.files, session.id)) == 16


def test_what_is_no_text_or_no_session_is_refused(led: Led) -> None:
    session = led.spawn()
    with pytest.raises(InvalidInput, match="name is int"):
        led.lead.report(session.id, 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="lone surrogate"):
        led.lead.report(session.id, "working", "\ud800")
    with pytest.raises(SessionNotFound):
        led.lead.report("app-9", "working")
    with pytest.raises(SessionNotFound):
        led.lead.audit("app-9")
    with pytest.raises(InvalidInput, match="not a session id"):
        led.lead.report("../app", "working")
    assert led.lead.audit(session.id) == []
