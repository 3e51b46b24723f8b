"""The fold: what a history adds up to, which histories cannot be, and when a session's time is over."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from support.events import CREATED, NOW

from pytest_gittrix.errors import InvalidInput, LogDamaged, MetadataVersionUnsupported
from pytest_gittrix.record.eventlog.events import Event, check
from pytest_gittrix.record.eventlog.vocabulary import CONVERSATION, VOCABULARY
from pytest_gittrix.record.state.fold import (
    ENDED,
    ORIGINS,
    RULES,
    Intent,
    Policy,
    Result,
    SessionState,
    deadline_ns,
    fold,
    metadata_of,
    state_from_metadata,
)
from pytest_gittrix.record.state.values import Kept, Lineage

SECOND = 1_000_000_000
HOUR = 3600 * SECOND

INTENT: dict[str, Any] = {
    "commit": "c" * 40,
    "parent": "b" * 40,
    "ref": "refs/heads/main",
    "tree": "e" * 40,
    "paths_digest": "d",
    "count": 2,
    "owner": {"pid": 1},
}
DONE = {"commit": "c" * 40, "ref": "refs/heads/main", "branch": "main", "strategy": "commit"}

KEPT = {**DONE, "before": "b" * 40, "in_durable": [{"path": "a"}]}
REBASED = {"commit": "d" * 40, "before": "b" * 40}

# One event of each kind that can follow, as it would be at any time.
SAMPLES: dict[str, dict[str, Any]] = {
    "workspace.ready": {"path": "/w"},
    "session.accessed": {},
    "session.write": {"path": "a", "op": "write"},
    "session.commit": {"sha": "a" * 40, "message": "m"},
    "session.extended": {"ttl_idle_ns": HOUR},
    "session.relocated": {"durable_ref": "local:///moved#main", "durable_path": "/moved"},
    "session.activity": {"observed_ns": NOW},
    "promote.intent": INTENT,
    "promote.done": DONE,
    "promote.kept": KEPT,
    "session.rebased": REBASED,
    "promote.aborted": {"commit": "c" * 40, "reason": "lost"},
    "promote.conflict": {"paths_digest": "d", "count": 1, "head": "f" * 40},
    "worktree.updated": {"commit": "c" * 40},
    "worktree.stale": {"commit": "c" * 40, "reason": "dirty"},
    "touched.seen": {"added": [{"path": "b"}], "gone": [{"path": "a"}]},
    "eviction.postponed": {"budget_ns": 30 * 10**9},
    "archive.written": {"touched": ["a"], "patch": "archive.patch"},
    "session.ended": {"state": "discarded"},
    "workspace.removed": {},
    "session.identified": {"identity": {"agent": "gastown/polecats/Toast"}},
    "step.started": {"step": "build"},
    "step.completed": {"step": "build"},
    "handoff.intent": {"child": "sess_b"},
    "session.succeeded": {"child": "sess_b"},
    "succession.aborted": {"child": "sess_b", "reason": "no space"},
    "workspace.kept": {"tree": "4" * 40},
    "handoff.aborted": {"child": "sess_b", "reason": "no space"},
    "run.started": {"run": "r2", "command": "agent", "model": "live", "parent": "sess_1", "at_seq": 4, "exchanges": 1},
    "run.ended": {"run": "r2", "code": 0},
    "turn.started": {"turn": "t1", "runs": "process"},
    "turn.ended": {"turn": "t1", "status": "done"},
    **{type: {key: f"some {key}" for key in sorted(kind.required)} for type, kind in CONVERSATION.items()},
    "prompt.queued": {"text": "go on", "source": "inbox", "key": "k"},
    "hearing.began": {"source": "forge", "after": 7},
    "durable.moved": {"ref": "refs/heads/main", "old": "b" * 40, "new": "f" * 40},
    "log.recovered": {"dropped_bytes": 3},
    "runtime.observed": {"state": "alive", "pid": 7, "start_time": 1, "source": "process"},
    "activity.observed": {"state": "active", "source": "native", "observed_ns": NOW},
    "model.exchange": {"number": 1, "protocol": "chat", "digest": "0" * 64, "duration_ns": 5, "calls": ["bash"], "input": 3, "output": 2},
    "pr.observed": {"state": "open", "number": 7, "ci": "passing", "review": "approved", "mergeable": True},
    "report.submitted": {"report": "working", "accepted": True},
    "status.decided": {"session": "working", "reason": "task_in_progress"},
    "session.restored": {},
    "life.moved": {"to": "active"},
    "agent.launched": {"pid": 7, "start_time": 1},
    "agent.exited": {"code": 0},
    "stop.requested": {"force": True},
    "finalize.started": {"attempt": 1},
    "finalize.repository": {"name": "app", "action": "pushed", "branch": "fix"},
    "finalize.finished": {"status": "Completed"},
    "work.locked": {"item": "#42"},
    "work.released": {"item": "#42"},
}


def history(*steps: tuple[str, dict[str, Any]] | str, policy: Policy | None = None) -> list[Event]:
    """Events one second apart, from a creation on; a bare type stands for its sample."""
    born = ("session.created", {**CREATED, "policy": (policy or Policy()).to_data()})
    pairs = [born, *((step, SAMPLES[step]) if isinstance(step, str) else step for step in steps)]
    for type, data in pairs:
        check(type, data)
    return [Event(seq, NOW + seq * SECOND, "sess_a", type, "agent", data) for seq, (type, data) in enumerate(pairs)]


def test_a_created_session_is_what_its_event_says() -> None:
    state = fold(history())
    assert state == SessionState(
        id="sess_a",
        task="fix the bug",
        durable_ref="local:///repo#main",
        durable_path="/repo",
        durable_branch="main",
        baseline="b" * 40,
        ephemeral_ref="local:///store/s/workspace",
        workspace="/store/s/workspace",
        workspace_kind="clone",
        git_backed=True,
        policy=Policy(4 * HOUR, None, True, False),
        created_ns=NOW,
        updated_ns=NOW,
        last_access_ns=NOW,
        format="sha1",
        seq=0,
    )
    assert not state.ended
    assert not state.workspace_present


def test_paths_that_are_not_utf8_come_back() -> None:
    data = {**CREATED, "durable_path_b64": "L+k=", "workspace_b64": "L3cv6Q=="}
    del data["durable_path"], data["workspace"]
    state = fold([Event(0, NOW, "s", "session.created", "human", data)])
    assert (state.durable_path, state.workspace) == ("/\udce9", "/w/\udce9")


def test_what_the_agent_did_adds_up() -> None:
    steps: list[tuple[str, dict[str, Any]] | str] = [
        "workspace.ready",
        ("session.write", {"path": "b", "op": "write"}),
        ("session.write", {"path": "a", "op": "delete"}),
        ("session.write", {"path": "b", "op": "delete"}),
        ("session.commit", {"sha": "1", "message": "one"}),
        ("session.commit", {"sha": "2", "message": "two"}),
    ]
    state = fold(history(*steps))
    assert list(state.api_touched) == ["b", "a"]
    assert state.api_deleted == {"a", "b"}
    assert fold(history(*steps, ("session.write", {"path": "a", "op": "write"})), state).api_deleted == {"b"}
    assert state.commits == ["1", "2"]
    assert (state.workspace, state.workspace_present) == ("/w", True)
    assert (state.seq, state.updated_ns, state.last_access_ns) == (6, NOW + 6 * SECOND, NOW + 6 * SECOND)


def test_what_programs_touched_is_what_the_last_look_found() -> None:
    def seen(added: str = "", gone: str = "") -> tuple[str, dict[str, Any]]:
        return "touched.seen", {"added": [{"path": path} for path in added], "gone": [{"path": path} for path in gone]}

    def wrote(path: str) -> tuple[str, dict[str, Any]]:
        return "session.write", {"path": path, "op": "write"}

    assert fold(history(seen("ba"))).touched == ["a", "b"]
    assert fold(history(seen("ba"), seen("c", "a"))).touched == ["b", "c"]
    assert fold(history(wrote("z"), seen("a"))).touched == ["z", "a"]
    assert fold(history(seen("a"), wrote("a"))).touched == ["a"]
    assert fold(history(wrote("z"), seen(gone="z"))).touched == []
    assert fold(history(seen("z"), wrote("z"), seen(gone="z"))).touched == []
    for again in (wrote("z"), seen("z")):
        assert fold(history(wrote("z"), seen(gone="z"), again)).touched == ["z"]
    ended = history(wrote("z"), ("session.ended", {"state": "discarded"}), seen("a"))
    assert metadata_of(fold(ended))["touchedFiles"] == ["z", "a"]


def test_a_look_at_the_files_is_no_use_of_the_session() -> None:
    assert fold(history("workspace.ready", "touched.seen")).last_access_ns == NOW + SECOND


def test_a_name_that_is_not_utf8_is_touched_as_it_is() -> None:
    data = {"added": [{"path_b64": "L+k="}], "gone": []}
    assert fold(history(("touched.seen", data))).touched == ["/\udce9"]


def test_the_topic_branch_is_read_from_older_logs() -> None:
    born = Event(0, NOW, "sess_a", "session.created", "human", {**CREATED, "identity": {"branch": "fix/a", "agent": "ada"}})
    assert fold([born]).identity == {"topic_branch": "fix/a", "agent": "ada"}
    renamed = Event(1, NOW, "sess_a", "session.identified", "human", {"identity": {"branch": "fix/b"}})
    removed = Event(2, NOW, "sess_a", "session.identified", "human", {"identity": {"branch": None}})
    assert fold([born, renamed]).identity == {"topic_branch": "fix/b", "agent": "ada"}
    assert fold([born, renamed, removed]).identity == {"agent": "ada"}


def test_the_conversation_is_counted_by_itself() -> None:
    steps = ("workspace.ready", "user_message", "session.write", "tool_call", "tool_result", "turn.started")
    assert fold(history(*steps)).said == 3
    lineage = Lineage("sess_0", "fork", "sess_a", "sess_0", 4, 2)
    born = Event(0, NOW, "sess_a", "session.created", "human", {**CREATED, "lineage": lineage.to_data()})
    assert fold([born]).said == 1


def test_an_intent_stays_open_until_it_is_done_or_aborted() -> None:
    events = history("promote.intent")
    assert fold(events).intent == Intent("c" * 40, "b" * 40, "refs/heads/main", "e" * 40, "d", 2, INTENT, 1, NOW + SECOND)
    aborted = fold(history("promote.intent", "promote.aborted"))
    assert (aborted.intent, aborted.state) == (None, "active")
    done = fold(history("promote.intent", ("promote.done", {**DONE, "pr_url": "http://pr", "patch": "p"})))
    assert (done.intent, done.state, done.strategy) == (None, "promoted", "commit")
    assert done.result == Result("c" * 40, "main", "http://pr", "p")


def test_a_promotion_that_keeps_a_session_moves_its_baseline() -> None:
    deleted: list[Any] = [("session.write", {"path": path, "op": "delete"}) for path in "ab"]
    merged = [{"path": "m", "mode": 0o100644, "id": "1" * 40}]
    first = {**KEPT, "branch": "gittrix/x", "strategy": "pr", "pr_url": "http://pr", "merged": merged}
    state = fold(history(*deleted, "promote.intent", ("promote.kept", first)))
    assert (state.state, state.intent, state.result, state.strategy) == ("active", None, None, "commit")
    assert (state.baseline, state.earlier_baselines) == ("c" * 40, ("b" * 40,))
    assert (state.durable_branch, state.durable_ref) == ("gittrix/x", "local:///repo#gittrix/x")
    assert (state.api_deleted, list(state.api_touched)) == ({"b"}, ["a", "b"])
    assert state.kept == Kept("c" * 40, "gittrix/x", "http://pr", merged, origin="main", strategy="pr", rebased=[])
    assert metadata_of(state)["earlierBaselines"] == ["b" * 40]
    second = {**DONE, "commit": "d" * 40, "branch": "gittrix/x", "before": "c" * 40}
    again = fold(history(*deleted, ("promote.kept", first), ("promote.kept", second)))
    assert again.kept == Kept("d" * 40, "gittrix/x", "http://pr", [], origin="main", strategy="pr", rebased=[])
    renewed = {**second, "strategy": "branch"}
    made_again = fold(history(*deleted, ("promote.kept", first), ("promote.kept", renewed)))
    assert made_again.kept == Kept("d" * 40, "gittrix/x", None, [], origin="main", strategy="branch", rebased=[])
    assert again.earlier_baselines == ("b" * 40, "c" * 40)


def test_a_rebase_moves_the_baseline_and_no_branch() -> None:
    deleted: list[Any] = [("session.write", {"path": path, "op": "delete"}) for path in "ab"]
    merged = [{"path": "m", "mode": 0o100644, "id": "1" * 40, "becomes": {"mode": 0o100644, "id": "2" * 40}}]
    moved = {**REBASED, "merged": merged, "in_durable": [{"path": "a"}]}
    state = fold(history(*deleted, ("session.rebased", moved)))
    assert (state.state, state.baseline, state.earlier_baselines) == ("active", "d" * 40, ("b" * 40,))
    assert (state.durable_branch, state.api_deleted) == ("main", {"b"})
    assert state.kept == Kept("d" * 40, "main", merged=merged, promoted=[], origin="main", rebased=["d" * 40])
    assert metadata_of(state)["rebasedOnto"] == ["d" * 40]
    promoted = fold(history("promote.kept", ("session.rebased", {"commit": "d" * 40, "before": "c" * 40})))
    assert promoted.kept == Kept("c" * 40, "main", None, [], [], "main", rebased=["d" * 40])
    back = {"commit": "b" * 40, "before": "d" * 40}
    again = fold(history(*deleted, ("session.rebased", moved), ("session.rebased", back)))
    assert (again.baseline, again.earlier_baselines) == ("b" * 40, ("b" * 40, "d" * 40))
    assert metadata_of(again)["rebasedOnto"] == ["d" * 40]


def test_who_works_in_a_session_is_what_was_told_last() -> None:
    born = history(
        ("session.identified", {"identity": {"agent": "a", "rig": "r"}}),
        ("step.started", {"step": "build", "molecule_id": "m"}),
        ("session.identified", {"identity": {"rig": None, "work_unit": "gt-1"}}),
    )
    assert fold(born).identity == {"agent": "a", "work_unit": "gt-1", "step_ref": "build", "molecule_id": "m"}
    assert "step_ref" not in fold([*born, Event(4, NOW, "sess_a", "step.completed", "agent", {"step": "build"})]).identity


def test_a_session_begins_its_own_line_unless_it_is_told_otherwise() -> None:
    lineage = Lineage("sess_0", "handoff", "sess_00", "sess_000")
    child = fold([Event(0, NOW, "sess_a", "session.created", "human", {**CREATED, "lineage": lineage.to_data()})])

    assert (fold(history()).chain, fold(history()).root) == ("sess_a", "sess_a")
    assert (child.lineage, child.chain, child.root) == (lineage, "sess_00", "sess_000")


def test_a_handoff_is_open_until_its_session_ended_or_goes_on() -> None:
    ended = ("session.ended", {"state": "discarded", "outcome": "handoff", "successor": "sess_b"})

    assert fold(history("handoff.intent")).handoff == "sess_b"
    assert fold(history("handoff.intent", "handoff.aborted")).handoff is None
    assert fold(history("session.succeeded", "succession.aborted")).successor is None

    done = fold(history("handoff.intent", ended))
    assert (done.handoff, done.outcome, done.successor) == (None, "handoff", "sess_b")


def test_a_turn_is_open_until_it_ended_which_it_may_after_its_session() -> None:
    assert fold(history("turn.started")).turn == "t1"
    assert fold(history("turn.started", "turn.ended")).turn is None
    assert fold(history("turn.started", ("session.ended", {"state": "expired"}), "turn.ended")).turn is None


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (["call a"], {"a": "grep"}),
        (["call a", "answer a"], {}),
        (["answer a", "call a"], {"a": "grep"}),
        (["call a", "call a", "answer a"], {}),
        (["call a", "answer a", "call a"], {"a": "grep"}),
        (["call b", "call a", "answer b", "answer b"], {"a": "grep"}),
    ],
)
def test_a_call_is_open_until_an_answer_comes_after_it(steps: list[str], left: dict[str, str]) -> None:
    said = [step.split() for step in steps]
    events = [
        ("tool_call", {"call_id": id, "name": "grep", "args": {}}) if what == "call" else ("tool_result", {"call_id": id, "ok": True})
        for what, id in said
    ]
    assert fold(history(*events)).calls == left


def test_a_session_ends_once_and_its_record_goes_on() -> None:
    state = fold(history("workspace.ready", ("session.ended", {"state": "expired"}), "archive.written", "workspace.removed"))
    assert (state.state, state.ended, state.archived, state.workspace_present) == ("expired", True, True, False)
    assert fold(history("promote.done", ("session.ended", {"state": "promoted"}))).state == "promoted"


# What cannot happen ----------------------------------------------------------------------------------------------------------------


def test_what_was_written_since_files_were_kept_is_known() -> None:
    assert not fold(history("workspace.kept")).changed_since_checkpoint
    assert fold(history("workspace.kept", "session.write")).changed_since_checkpoint
    written = fold(history("session.write", "workspace.kept"))
    assert (written.changed_since_checkpoint, written.checkpoint) == (False, "4" * 40)
    assert not fold(history("session.write", "session.commit")).changed_since_checkpoint


def test_every_stored_event_has_a_rule_and_a_sample() -> None:
    assert ORIGINS.keys() | RULES.keys() == VOCABULARY.keys()
    assert SAMPLES.keys() == RULES.keys()


@pytest.mark.parametrize("end", [("session.ended", {"state": state}) for state in sorted(ENDED)] + ["promote.done"])
@pytest.mark.parametrize("type", [type for type, rule in RULES.items() if "ended" not in rule.when] + ["session.ended", *ORIGINS])
def test_an_ended_session_can_do_nothing_any_more(type: str, end: tuple[str, dict[str, Any]] | str) -> None:
    with pytest.raises(LogDamaged, match=f"Event 2 of session 'sess_a' is '{type}', which cannot happen"):
        fold([*history(end), Event(2, NOW, "sess_a", type, "agent", SAMPLES.get(type, {}))])


@pytest.mark.parametrize(
    "steps",
    [
        ["promote.intent", "promote.intent"],
        ["promote.intent", ("promote.done", {**DONE, "commit": "other"})],
        ["promote.intent", ("promote.aborted", {"commit": "other", "reason": ""})],
        ["promote.intent", ("promote.kept", {**KEPT, "commit": "other"})],
        [("promote.kept", {**KEPT, "before": "f" * 40})],
        [("session.rebased", {**REBASED, "before": "f" * 40})],
        ["promote.intent", "session.rebased"],
        ["promote.intent", ("session.ended", {"state": "expired"})],
        [("session.ended", {"state": "active"})],
        [("session.ended", {"state": "bogus"})],
        ["promote.done", ("session.ended", {"state": "expired"})],
        [("session.created", CREATED)],
        ["turn.started", ("turn.started", {"turn": "t2", "runs": "thread"})],
        ["turn.ended"],
        ["handoff.intent", "handoff.intent"],
        ["handoff.aborted"],
        ["succession.aborted"],
        ["session.succeeded", ("succession.aborted", {"child": "sess_c", "reason": ""})],
        ["handoff.intent", ("handoff.aborted", {"child": "sess_c", "reason": ""})],
        ["turn.started", ("turn.ended", {"turn": "t2", "status": "done"})],
    ],
)
def test_a_history_that_cannot_have_happened_is_damage(steps: list[Any]) -> None:
    with pytest.raises(LogDamaged, match="cannot happen"):
        fold(history(*steps))


def test_a_history_begins_with_a_creation() -> None:
    with pytest.raises(LogDamaged, match=r"begins with 'session\.write'"):
        fold([Event(0, NOW, "s", "session.write", "agent", {"path": "a", "op": "write"})])
    with pytest.raises(InvalidInput, match="no event"):
        fold([])


def test_a_hole_in_the_history_is_refused() -> None:
    events = history("workspace.ready", "session.accessed")
    with pytest.raises(InvalidInput, match="does not follow"):
        fold([events[0], events[2]])


def test_an_event_of_a_later_engine_is_not_passed_over() -> None:
    event = Event(1, NOW, "sess_a", "dream.started", "agent", {})
    with pytest.raises(MetadataVersionUnsupported, match=r"dream\.started"):
        fold([event], fold(history()))


# Piece by piece --------------------------------------------------------------------------------------------------------------------


FULL = history(
    "workspace.ready",
    "session.write",
    "session.commit",
    "session.activity",
    "session.rebased",
    ("promote.kept", {**KEPT, "before": "d" * 40}),
    "promote.intent",
    "promote.done",
    "archive.written",
)


@pytest.mark.parametrize("cut", range(1, len(FULL) + 1))
def test_a_history_folded_in_two_pieces_is_the_same_and_changes_neither(cut: int) -> None:
    first = fold(FULL[:cut])
    before = copy.deepcopy(first)
    assert fold(FULL[cut:], first) == fold(FULL)
    assert fold(FULL, first) == fold(FULL)  # events it already has are passed over
    assert first == before


@pytest.mark.parametrize("called", [(), ("tool_call",)])
@pytest.mark.parametrize("type", RULES)
def test_no_event_changes_the_state_it_is_folded_onto(type: str, called: tuple[str, ...]) -> None:
    first = fold(history("workspace.ready", ("session.write", {"path": "other", "op": "write"}), "session.commit", *called))
    before = copy.deepcopy(first)
    with suppress(LogDamaged):  # it may be one that has no place here
        fold([Event(first.seq + 1, NOW, "sess_a", type, "agent", SAMPLES[type])], first)
    assert first == before


# Time ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "last"),
    [
        (Policy(), 3 * SECOND + 4 * HOUR),
        (Policy(ttl_idle_ns=None), None),
        (Policy(ttl_idle_ns=None, ttl_absolute_ns=HOUR), HOUR),
        (Policy(ttl_idle_ns=HOUR, ttl_absolute_ns=HOUR), HOUR),
        (Policy(ttl_idle_ns=HOUR, ttl_absolute_ns=2 * HOUR), 3 * SECOND + HOUR),
        (Policy(ttl_idle_ns=HOUR, ttl_absolute_ns=1, manual=True), None),
    ],
)
def test_idle_time_counts_from_the_last_use_and_absolute_time_from_creation(policy: Policy, last: int | None) -> None:
    state = fold(history("workspace.ready", "session.accessed", "session.write", "promote.aborted", policy=policy))
    assert deadline_ns(state) == (None if last is None else NOW + last)


def test_extending_replaces_the_idle_limit() -> None:
    policy = Policy(ttl_idle_ns=HOUR, ttl_absolute_ns=9 * HOUR, until_promote=False)
    state = fold(history(("session.extended", {"ttl_idle_ns": 2 * HOUR}), policy=policy))
    assert state.policy == Policy(2 * HOUR, 9 * HOUR, False, False)
    assert deadline_ns(state) == NOW + SECOND + 2 * HOUR


@pytest.mark.parametrize(("seen", "counts"), [(-HOUR, 0), (SECOND // 2, SECOND // 2), (99 * HOUR, SECOND)])
def test_file_changes_count_as_use_but_never_later_than_they_were_seen(seen: int, counts: int) -> None:
    state = fold(history(("session.activity", {"observed_ns": NOW + seen})))
    assert state.last_access_ns == NOW + counts
    assert state.updated_ns == NOW + SECOND


# The record ------------------------------------------------------------------------------------------------------------------------


def test_the_record_of_a_state_is_the_documented_one() -> None:
    state = fold(history("workspace.ready", "session.write", "promote.intent", "promote.done"))
    assert metadata_of(state) == {
        "metadataVersion": 1,
        "id": "sess_a",
        "task": "fix the bug",
        "durableRef": "local:///repo#main",
        "durablePath": "/repo",
        "durableBranch": "main",
        "ephemeralRef": "local:///store/s/workspace",
        "ephemeralPath": "/w",
        "baselineSha": "b" * 40,
        "workspaceKind": "clone",
        "isGitBacked": True,
        "state": "promoted",
        "createdAt": "2030-01-01T00:00:00.000Z",
        "updatedAt": "2030-01-01T00:00:04.000Z",
        "lastAccessAt": "2030-01-01T00:00:04.000Z",
        "evictionPolicy": {"ttlIdleMs": 14_400_000, "ttlAbsoluteMs": None, "untilPromote": True, "manual": False},
        "touchedFiles": ["a"],
        "promote": {"strategy": "commit", "result": {"sha": "c" * 40, "branch": "main"}},
    }


def test_a_record_without_optional_parts_leaves_them_out() -> None:
    data = {**CREATED, "durable_path": None, "durable_branch": None, "workspace": None}
    record = metadata_of(fold([Event(0, NOW, "s", "session.created", "human", data)]))
    assert {"durablePath", "durableBranch", "ephemeralPath"}.isdisjoint(record)
    assert record["promote"] == {"strategy": "auto", "result": None}


def test_a_state_survives_its_record_as_far_as_the_record_goes() -> None:
    record = {**metadata_of(fold(FULL)), "vendor": {"x": 1}}
    state = state_from_metadata(record)
    assert state.legacy
    assert state.seq == -1
    assert metadata_of(state) == record


@pytest.mark.parametrize(
    ("state", "until_promote", "present"), [("active", True, True), ("promoted", True, False), ("promoted", False, True)]
)
def test_a_foreign_record_says_by_its_state_whether_the_workspace_should_be_there(state: str, until_promote: bool, present: bool) -> None:
    record = metadata_of(fold(history()))
    record |= {"state": state, "evictionPolicy": {**record["evictionPolicy"], "untilPromote": until_promote}}
    assert state_from_metadata(record).workspace_present is present


def test_an_imported_session_goes_on_as_if_it_had_always_had_a_log() -> None:
    record = metadata_of(fold(history("session.write")))
    events = [
        Event(0, NOW + HOUR, "sess_a", "session.imported", "system", {"metadata": record}),
        Event(1, NOW + 2 * HOUR, "sess_a", "session.write", "agent", {"path": "z", "op": "write"}),
    ]
    state = fold(events)
    assert not state.legacy
    assert (state.seq, list(state.api_touched), state.created_ns) == (1, ["a", "z"], NOW)
    assert fold(events[:1]).last_access_ns == NOW + SECOND  # importing is no use of the session
