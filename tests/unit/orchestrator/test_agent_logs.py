"""What published coding agents write about themselves, read as activity: their own records, at any age, torn, foreign, hostile."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.agent_records import VERSIONS, conversation, recorded, timed
from support.orchestrator import MINUTE, NOW, SECOND

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.orchestrator.agent_logs import reading
from pytest_gittrix.orchestrator.agent_logs.reading import AgentHome, native_activity
from pytest_gittrix.orchestrator.agent_logs.rules import ActivityRule, RecordFormat, values_at
from pytest_gittrix.orchestrator.agent_logs.updates import acp_activity
from pytest_gittrix.orchestrator.config import CommandAgent
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.agent_activity import SqliteQuery
from pytest_gittrix.record.state.observations import Activity

ASKING = ("claude", "codex", "opencode")
"""The agents that may ask for permission, and write that they call a tool before they have its result."""


@pytest.fixture(name="home")
def home_fixture(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "workspace").mkdir()
    return tmp_path / "home"


def workspace(home: Path) -> Path:
    return home.parent / "workspace"


def seen(home: Path, later: float = 0, *, private: bool = True) -> Activity | None:
    """What the files in a home show, so many seconds after ``NOW``."""
    return native_activity(AgentHome(home, private), workspace(home), NOW + round(later * SECOND))


def states(home: Path, *later: float) -> list[str | None]:
    return [None if (found := seen(home, seconds)) is None else found.state for seconds in later]


@pytest.mark.parametrize("agent", VERSIONS)
def test_a_turn_is_active_until_it_is_over_and_then_ready_and_then_idle(agent: str, home: Path) -> None:
    files = conversation(agent, home, str(workspace(home)))
    files.write("prompt", NOW)
    assert states(home, 0, 299, 301) == ["active", "active", "idle"]
    files.write("end", NOW + SECOND)
    assert states(home, 1, 300, 302) == ["ready", "ready", "idle"]
    found = seen(home, 302)
    assert found is not None
    assert (found.source, found.observed_ns) == ("native", NOW + SECOND)


@pytest.mark.parametrize("agent", ["claude", "codex", "pi", "opencode"])
def test_a_call_without_a_result_asks_after_five_minutes_where_the_agent_may_ask(agent: str, home: Path) -> None:
    files = conversation(agent, home, str(workspace(home)))
    files.write("prompt", NOW)
    files.write("call", NOW)
    assert states(home, 0, 300, 301, 1800) == ["active", "active", *(["waiting_input"] * 2 if agent in ASKING else ["idle"] * 2)]
    files.write("result", NOW + 30 * MINUTE)
    assert states(home, 1800, 2101) == ["active", "idle"]


@pytest.mark.parametrize(("agent", "trusted"), [("claude", {"permissionMode": "bypassPermissions"}), ("codex", {})])
def test_an_agent_that_asks_for_no_permission_is_idle_where_another_would_wait(agent: str, trusted: dict[str, str], home: Path) -> None:
    files = conversation(agent, home, str(workspace(home)))
    files.write("prompt" if agent == "claude" else "context", NOW, **trusted)
    files.write("call", NOW)
    assert states(home, 1800) == ["idle"]
    if agent == "claude":
        files.write("mode", NOW, permissionMode="default")
    else:
        files.write("context", NOW, payload__approval_policy="on-request")
        files.write("call", NOW)
    assert states(home, 1800) == ["waiting_input"]


@pytest.mark.parametrize("agent", ["claude", "codex", "pi", "opencode"])
def test_an_error_blocks_once_the_agent_has_given_up(agent: str, home: Path) -> None:
    files = conversation(agent, home, str(workspace(home)))
    files.write("prompt", NOW)
    if agent == "opencode":
        files.write("end", NOW, data__finish=None, data__error={"name": "APIError", "data": {"message": "bad"}})
    else:
        files.write("error", NOW)
    assert states(home, 0, 30, 31, 3600) == ["active", "active", "blocked", "blocked"]
    files.write("prompt", NOW + MINUTE, **({"id": "msg_z"} if agent == "opencode" else {}))
    assert states(home, 61) == ["active"]


def test_a_question_waits_at_once_and_until_it_is_answered(home: Path) -> None:
    files = conversation("claude", home, str(workspace(home)))
    files.write("question", NOW)
    assert states(home, 0, 86_400) == ["waiting_input", "waiting_input"]
    files.write("answer", NOW + MINUTE)
    assert states(home, 61) == ["active"]


def test_of_several_calls_the_one_without_a_result_counts(home: Path) -> None:
    files = conversation("claude", home, str(workspace(home)))
    files.write("call", NOW, message__content__0__id="one")
    files.write("call", NOW, message__content__0__id="two")
    files.write("result", NOW + SECOND, message__content__0__tool_use_id="two")
    assert states(home, 2, 600) == ["active", "waiting_input"]
    files.write("result", NOW + 2 * SECOND, message__content__0__tool_use_id="one")
    assert states(home, 3, 600) == ["active", "idle"]


def test_what_an_agent_writes_beside_its_conversation_changes_nothing(home: Path) -> None:
    files = conversation("claude", home, str(workspace(home)))
    for name in ("mode", "prompt", "end", "turn duration", "last prompt"):
        files.write(name, NOW)
    assert states(home, 1) == ["ready"]
    files = conversation("codex", home, str(workspace(home)), "other")
    for name in ("start", "context", "prompt", "words", "call", "usage"):
        files.write(name, NOW + SECOND)
    assert states(home, 1, 302) == ["active", "idle"]


def test_a_subagent_that_has_finished_leaves_its_leader_at_work(home: Path) -> None:
    files = conversation("claude", home, str(workspace(home)))
    files.write("call", NOW)
    beside = home / Path(files.path).with_suffix("") / "subagents/agent-1.jsonl"
    beside.parent.mkdir(parents=True)
    beside.write_text(json.dumps(timed(recorded("claude", "end"), NOW + SECOND) | {"isSidechain": True}) + "\n")
    assert states(home, 1) == ["active"]


@pytest.mark.parametrize("agent", ["claude", "codex", "pi", "gemini"])
def test_a_torn_last_line_is_passed_over_wherever_it_was_cut(agent: str, home: Path) -> None:
    files = conversation(agent, home, str(workspace(home)))
    files.write("prompt", NOW)
    whole = (home / files.path).read_bytes()
    line = json.dumps(timed(recorded(agent, "end"), NOW)).encode()
    for size in range(1, len(line), 7):
        (home / files.path).write_bytes(whole + line[:size])
        assert states(home, 0) == ["active"], size
    (home / files.path).write_bytes(whole + line)
    assert states(home, 0) == ["ready"], "a last line without its end is whole if it is JSON"


def test_of_a_long_log_only_the_end_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = conversation("claude", home, str(workspace(home)))
    files.write("prompt", NOW)
    with (home / files.path).open("a") as log:
        log.writelines(json.dumps({"type": "attachment", "content": "x" * 1000}) + "\n" for _ in range(20_000))
    files.write("end", NOW)
    parts: list[int] = []
    part = reading.SafeDir.part
    monkeypatch.setattr(
        reading.SafeDir, "part", lambda self, path, most, *, end=None: parts.append(most) or part(self, path, most, end=end)
    )

    assert states(home, 0) == ["ready"]
    assert sum(parts) == 1 << 16


def test_a_record_longer_than_what_is_read_at_a_time_is_read_whole(home: Path) -> None:
    files = conversation("claude", home, str(workspace(home)))
    files.write("result", NOW, message__content__0__content="x" * 700_000)
    assert states(home, 0) == ["active"]
    files.write("end", NOW)
    assert states(home, 0) == ["ready"]


def test_the_newest_of_several_conversations_and_agents_counts(home: Path) -> None:
    conversation("pi", home, str(workspace(home))).write("end", NOW)
    conversation("claude", home, str(workspace(home))).write("prompt", NOW + SECOND)
    assert states(home, 1) == ["active"]
    conversation("claude", home, str(workspace(home)), "older").write("end", NOW)
    os.utime(home / conversation("claude", home, str(workspace(home)), "older").path, (1, 1))
    assert states(home, 1) == ["active"]


@pytest.mark.parametrize("agent", VERSIONS)
def test_in_a_persons_home_only_conversations_about_the_workspace_count(agent: str, home: Path) -> None:
    (home.parent / "elsewhere").mkdir()
    elsewhere = conversation(agent, home, str(home.parent / "elsewhere"))
    elsewhere.write("prompt", NOW)
    assert (seen(home, private=False), states(home, 0)) == (None, ["active"])
    files = conversation(agent, home, str(workspace(home)), "mine")
    for name in ("prompt", "end"):
        files.write(name, NOW, **({"session_id": "mine"} if agent == "opencode" else {}))
    if agent == "opencode":
        files._row("session", NOW, {"id": "mine", "directory": os.path.realpath(workspace(home))})
    found = seen(home, private=False)
    assert found is not None
    assert found.state == "ready"


@pytest.mark.parametrize("agent", ["claude", "opencode"])
def test_no_link_leads_out_of_a_home(agent: str, home: Path) -> None:
    (home.parent / "other").mkdir()
    files = conversation(agent, home.parent / "other", str(workspace(home)))
    files.write("prompt", NOW)
    (home / files.path).parent.mkdir(parents=True)
    (home / files.path).symlink_to(home.parent / "other" / files.path)
    assert seen(home) is None
    (home / files.path).unlink()
    os.mkfifo(home / files.path)
    assert seen(home) is None
    assert native_activity(AgentHome(home.parent / "other"), workspace(home), NOW) is not None


def test_what_is_no_log_and_no_database_shows_nothing(home: Path) -> None:
    for agent in VERSIONS:
        path = home / conversation(agent, home, str(workspace(home))).path
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\xff\x00not one\n[]\nnull\n" + b"[" * 5000)
    assert seen(home) is None
    assert native_activity(AgentHome(home / "missing"), workspace(home), NOW) is None


def test_values_are_found_in_the_items_of_lists() -> None:
    record = {"a": [{"b": 1}, {"b": [2, None]}, 3], "b": {"c": True}, "n": None}

    assert [values_at(record, key) for key in ("a.b", "b.c", "n", "a.x", "b")] == [[1, 2], [True], [], [], [{"c": True}]]
    assert [ActivityRule({"b.c": value}, "active").fits(record) for value in (True, 1, "*", "True")] == [True, False, True, False]
    assert not ActivityRule({"n": "*"}, "active").fits(record)


@pytest.mark.parametrize(
    ("given", "message"), [({"when": {}, "state": "active"}, "no condition"), ({"when": {"a": 1}, "state": "x"}, "'x' is no")]
)
def test_a_rule_that_means_nothing_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ActivityRule(**given)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="unit of time"):
        RecordFormat((), unit="years")


RULES = (
    ActivityRule({"kind": "ask"}, "waiting_input"),
    ActivityRule({"kind": ("done", "stopped")}, "ready"),
    ActivityRule({"kind": "*"}, "active"),
)


@pytest.mark.parametrize("place", ["workspace", "home", "absolute"])
def test_a_log_of_any_program_is_read_by_rules(place: str, home: Path) -> None:
    root = {"workspace": workspace(home), "home": home, "absolute": home.parent}[place]
    before = {"workspace": "", "home": "~/", "absolute": f"{home.parent}/"}[place]
    agent = CommandAgent("own", ("own",), log=f"{before}logs/*/run.jsonl", rules=RULES, time="at", unit="s")

    def does() -> list[Activity | None]:
        return [agent.activity(workspace(home), NOW), agent.home_activity(AgentHome(home), workspace(home), NOW)]

    assert [one and one.source for one in does()] == ([None, "none"] if place == "home" else ["none", None])
    for name, kind in (("older", "ask"), ("newer", "done")):
        (root / "logs" / name).mkdir(parents=True)
        (root / "logs" / name / "run.jsonl").write_text(json.dumps({"kind": kind, "at": NOW // SECOND}) + '\n{"other": 1}\n{"ki')
    os.utime(root / "logs/older/run.jsonl", (1, 1))
    found = does()[place == "home"]
    assert does()[place != "home"] is None
    assert found is not None
    assert (found.state, found.observed_ns, found.source) == ("ready", NOW, "native")


def test_a_database_of_any_program_is_read_by_rules(home: Path) -> None:
    query = SqliteQuery("SELECT json_object('kind', kind, 'at', at) FROM steps ORDER BY at DESC")
    agent = CommandAgent("own", ("own",), database="~/own.db", query=query, rules=RULES, time="at")
    plain = CommandAgent("own", ("own",), database="own.db", query=SqliteQuery("SELECT 'blocked', max(at) FROM steps"))

    def does() -> str | None:
        found = agent.home_activity(AgentHome(home), workspace(home), NOW)
        return found and found.state

    assert does() == "unknown"
    for path in (home / "own.db", workspace(home) / "own.db"):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE steps (kind, at)")
            steps = [("begin", NOW // 1_000_000), ("ask", NOW // 1_000_000 + 1), (None, NOW // 1_000_000 + 2)]
            database.executemany("INSERT INTO steps VALUES (?, ?)", steps)
    assert does() == "waiting_input"
    found = plain.activity(workspace(home), NOW)
    assert found is not None
    assert found.state == "blocked"
    (home / "own.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    failed = agent.home_activity(AgentHome(home), workspace(home), NOW)
    assert failed is not None
    assert failed.failed


def test_rules_without_anything_to_read_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no log or database"):
        CommandAgent("own", ("own",), rules=RULES)
    with pytest.raises(InvalidInput, match="unit of time"):
        CommandAgent("own", ("own",), log="x", rules=RULES, unit="years")


def test_updates_of_the_protocol_show_what_an_agent_does() -> None:
    events: list[Event] = []

    def after(type: str, minute: float, **data: object) -> list[str | None]:
        events.append(Event(len(events), NOW + round(minute * MINUTE), "app-1", type, "agent", data))
        found = [acp_activity(events, NOW + round((minute + later) * MINUTE)) for later in (0, 6)]
        return [one and one.state for one in found]

    assert acp_activity(events, NOW) is None
    assert after("session.created", 0) == [None, None]
    assert after("user_message", 1, text="go") == ["active", "idle"]
    assert after("tool_call", 2, call_id="c", name="x", args={}) == ["active", "idle"]
    assert after("tool_result", 3, call_id="c", ok=True) == ["active", "idle"]
    assert after("turn.ended", 4, turn="t", status="done") == ["ready", "idle"]
    assert after("turn.ended", 5, turn="t", status="failed") == ["active", "blocked"]
