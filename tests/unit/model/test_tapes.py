"""Tapes: what was recorded is played again wherever it is the same question, and drift is named by its first leaf."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_client import PROTOCOLS, ask, results

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.model.answers.faults import fail
from pytest_gittrix.model.answers.script import call, stop
from pytest_gittrix.model.protocols.values import Answer, Call, Message, Request, Text, Thinking, Tool, ToolResult
from pytest_gittrix.model.server import ModelServer
from pytest_gittrix.model.tapes.matching import first_difference, lenient_form, normal_form
from pytest_gittrix.model.tapes.placeholders import Known, days, spelled, without_volatile
from pytest_gittrix.model.tapes.player import TapeMismatch
from pytest_gittrix.model.tapes.tape import Tape

KEY = "AKIA" + "IOSFODNN7ABCDEFG"
NOBODY = Known({})


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return tmp_path / "tapes" / "work.jsonl"


def work(url: str, protocol: str, task: str = "Look", output: Any = "v1", *, stream: bool = True) -> str:
    """A small agent: asks, runs what it is told, asks again."""
    said: list[Any] = [task]
    while True:
        heard = ask(url, protocol, *said, stream=stream)
        if heard.status != 200:
            raise AssertionError(json.dumps(heard.error))
        if not heard.calls:
            return heard.text
        said += results(protocol, heard, *(output for _ in heard.calls))


def record(tape: Path, protocol: str = "chat", **options: Any) -> None:
    with ModelServer(**options) as model:
        model.answer_with(two_steps())
        model.tape(tape, "rewrite")
        work(model.url, protocol)
        model.check()


def saying(text: str, _: Request) -> str:
    return text


def two_steps() -> Callable[[Request], Answer]:
    def answer(request: Request) -> Answer:
        if request.results:
            return Answer((Text("Seen."),))
        return Answer((Thinking("Where?", "c2ln"), Text("I look."), Call("", "bash", {"command": "cat app.py"})))

    return answer


def replay(tape: Path, *, lenient: bool = False, **options: Any) -> ModelServer:
    model = ModelServer(**options)
    model.tape(tape, "replay", lenient=lenient, again="pytest x --gittrix-model=rewrite")
    return model


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_was_recorded_is_played_again(tape: Path, protocol: str) -> None:
    record(tape, protocol)
    with replay(tape) as model:
        assert work(model.url, protocol) == "Seen."
        model.check()
        assert [one.content.text for one in model.exchanges] == ["I look.", "Seen."]  # type: ignore[union-attr]


def test_a_tape_has_one_exchange_a_line_with_what_is_new(tape: Path) -> None:
    record(tape, "anthropic")
    head, first, second = map(json.loads, tape.read_text(encoding="utf-8").splitlines())
    assert head == {"tape": 1}
    assert first["new"] == [{"user": ["Look"]}]
    assert first["answer"] == [
        {"thinking": "Where?", "signature": "c2ln"},
        "I look.",
        {"call": "bash", "id": "", "arguments": {"command": "cat app.py"}},
    ]
    assert second["new"][-1] == {"user": [{"result": "call 1", "text": "v1"}]}
    assert "tools" in first
    assert "tools" not in second


def test_a_long_conversation_stays_small_on_its_tape(tape: Path) -> None:
    # Each request has the whole conversation: 100 of them, up to 200 kB.
    with ModelServer() as model:
        model.answer_with(lambda request: Answer((Call("", "bash", {"command": f"step {len(request.messages)}"}),)))
        model.tape(tape, "rewrite")
        said: list[Any] = ["Work"]
        for number in range(100):
            heard = ask(model.url, "chat", *said)
            said += results("chat", heard, f"{number} " * 500)
        model.check()
    assert len(json.dumps(said)) > 150_000
    assert tape.stat().st_size < 1_000_000
    assert len(Tape.read(tape).exchanges[99].form["messages"]) == 199


def test_another_question_is_not_answered_and_the_first_leaf_that_differs_is_named(tape: Path) -> None:
    record(tape)
    with replay(tape) as model:
        with pytest.raises(AssertionError, match="at messages"):
            work(model.url, "chat", output="v2")
        with pytest.raises(TapeMismatch, match=r"at messages\[2\]\.user\[0\]\.text\n  recorded: 'v1'\n  now:      'v2'") as failed:
            model.check()
    assert "record it again: pytest x --gittrix-model=rewrite" in str(failed.value)
    assert "bash gave: v2" in str(failed.value)


@pytest.mark.parametrize("protocol", ["anthropic", "responses"])
def test_another_image_is_another_question_and_how_it_may_be_cached_is_not(tape: Path, protocol: str) -> None:
    kind = "image" if protocol == "anthropic" else "input_image"

    def seen(model: ModelServer, contents: str, **more: str) -> str:
        return work(model.url, protocol, output=[{"type": kind, "data": contents, **more}])

    with ModelServer() as model:
        model.answer_with(two_steps())
        model.tape(tape, "rewrite")
        seen(model, "a cat")
        model.check()
    with replay(tape) as model:
        assert seen(model, "a cat", cache_control="brief") == "Seen."
        model.check()
    with ModelServer() as model, pytest.raises(AssertionError, match="does not have"):
        model.tape(tape, "replay")
        seen(model, "a dog")
    with pytest.raises(
        TapeMismatch, match=rf"(?s)recorded: '\[{kind} \w{{8}}\]'\n  now:      '\[{kind} \w{{8}}\]'.*tape\(path, \"rewrite\"\)"
    ):
        model.check()


def test_another_task_is_never_answered_by_order(tape: Path) -> None:
    record(tape)
    with replay(tape) as model, pytest.raises(AssertionError, match="does not have"):
        work(model.url, "chat", task="Delete all")


def test_what_is_left_over_fails(tape: Path) -> None:
    record(tape)
    with replay(tape) as model:
        ask(model.url, "chat", "Look")
        with pytest.raises(TapeMismatch, match=r"1 exchange of the tape work\.jsonl was not asked for"):
            model.check()


def test_asking_for_more_than_a_tape_has_fails(tape: Path) -> None:
    record(tape)
    with replay(tape) as model:
        work(model.url, "chat")
        with pytest.raises(AssertionError, match="is used up"):
            work(model.url, "chat")


def test_equal_requests_get_their_answers_in_order(tape: Path) -> None:
    with ModelServer() as model:
        model.script(fail(529, retry_after=2), "one", "two")
        model.tape(tape, "rewrite")
        heard = [ask(model.url, "chat", "Hello") for _ in range(3)]
        model.check()
    with replay(tape) as model:
        again = [ask(model.url, "chat", "Hello") for _ in range(3)]
        model.check()
    assert [(one.status, one.text) for one in again] == [(one.status, one.text) for one in heard] == [(529, ""), (200, "one"), (200, "two")]
    assert again[0].headers["retry-after"] == "2"


def test_conversations_at_the_same_time_are_told_apart(tape: Path) -> None:
    with ModelServer() as model:
        model.answer_with(two_steps())
        model.tape(tape, "rewrite")
        first, second = ask(model.url, "chat", "One"), ask(model.url, "chat", "Two")
        ask(model.url, "chat", "Two", *results("chat", second, "2"))
        ask(model.url, "chat", "One", *results("chat", first, "1"))
        model.check()
    with replay(tape) as model:
        assert work(model.url, "chat", "One", "1") == work(model.url, "chat", "Two", "2") == "Seen."
        model.check()


def test_a_conversation_that_the_agent_wrote_anew_is_on_the_tape_whole(tape: Path) -> None:
    with ModelServer() as model:
        model.answer_with(lambda _: "ok")
        model.tape(tape, "rewrite")
        ask(model.url, "chat", "Work", {"role": "assistant", "content": "x"}, "More")
        ask(model.url, "chat", "Work", {"role": "assistant", "content": "a summary"}, "And more")
        model.check()
    with replay(tape) as model:
        ask(model.url, "chat", "Work", {"role": "assistant", "content": "a summary"}, "And more")
        ask(model.url, "chat", "Work", {"role": "assistant", "content": "x"}, "More")
        model.check()


def test_paths_dates_and_secrets_are_placeholders_and_come_back(tape: Path) -> None:
    def answer(request: Request) -> str:
        return f"Write to {request.text.split()[-1]}/app.py"

    with ModelServer(places=lambda: {"workspace": "/tmp/one/workspace"}, now=lambda: 0.0) as model:
        model.answer_with(answer)
        model.tape(tape, "rewrite")
        ask(model.url, "chat", f"Today is Thursday, January 1, 1970, the key is {KEY}, work in /tmp/one/workspace")
        model.check()
    text = tape.read_text(encoding="utf-8")
    assert "/tmp/one" not in text
    assert KEY not in text
    assert "Today is {date-1}, the key is {secret:1}, work in {workspace}" in text
    day = 86_400.0
    with replay(tape, places=lambda: {"workspace": "/srv/other"}, now=lambda: 31 * day) as model:
        heard = ask(model.url, "chat", f"Today is Sunday, February 1, 1970, the key is {KEY[:-1]}H, work in /srv/other")
        assert heard.text == "Write to /srv/other/app.py"
        model.check()


def test_lenient_lets_words_differ_and_calls_not(tape: Path) -> None:
    record(tape)
    with replay(tape, lenient=True) as model:
        assert work(model.url, "chat", task="Look, in other words") == "Seen."
        model.check()
    with replay(tape, lenient=True) as model, pytest.raises(AssertionError, match="does not have"):
        work(model.url, "chat", output="v2")


def test_once_records_and_then_replays(tape: Path) -> None:
    for times in (1, 2):
        with ModelServer() as model:
            model.answer_with(partial(saying, f"answer {times}"))
            model.tape(tape, "once")
            assert ask(model.url, "chat", "Hello").text == "answer 1"
            model.check()


def test_new_records_what_the_tape_does_not_have(tape: Path) -> None:
    for asked in (["a"], ["a", "b"]):
        with ModelServer() as model:
            model.answer_with(partial(saying, f"in run {len(asked)}"))
            model.tape(tape, "new")
            heard = [ask(model.url, "chat", one).text for one in asked]
            model.check()
    assert heard == ["in run 1", "in run 2"]
    assert len(Tape.read(tape).exchanges) == 2


def test_a_test_that_failed_records_nothing(tape: Path) -> None:
    with ModelServer() as model:
        model.script("one", "two")
        model.tape(tape, "rewrite")
        ask(model.url, "chat", "Hello")
        with pytest.raises(Exception, match="1 step"):
            model.check()
    assert not tape.exists()


EXCHANGE = '{"n": 1, "conversation": 1, "protocol": "chat", "new": [{"user": ["Hi"]}], "answer": ["Ho"], "stop": "end"}'


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        ("", "line 1"),
        ("{", "line 1"),
        ('{"tape": 2}\n', "line 1"),
        ('{"tape": 1}\n{"n": 1}\n', "line 2"),
        ('{"tape": 1}\n[]\n', "line 2"),
        (f'{{"tape": 1}}\n# a note\n{EXCHANGE}\n<<<<<<< HEAD\n{EXCHANGE}\n=======\n', "line 4: a merge left a conflict there"),
        (f'{{"tape": 1}}\n{EXCHANGE}\n\n{{"n": 2}}\n{EXCHANGE}\n', "line 4"),
        (f'{{"tape": 1}}\n{EXCHANGE.replace("end", "bored")}\n', "line 2: 'bored' is no reason for an answer to stop"),
        (f'{{"tape": 1}}\n{EXCHANGE.replace("answer", "said")}\n', "line 2: A line of the tape has no answer"),
        ('{"tape": 1}\n' + "[" * 200_000, "line 2"),
        ('{"tape": 1}\n\udcff\n', "line 2: it is not UTF-8"),
    ],
    ids=lambda value: value[:40] if value.startswith("line") else "",
)
def test_what_is_no_tape_is_named_with_its_line(tape: Path, contents: str, named: str) -> None:
    tape.parent.mkdir()
    tape.write_bytes(contents.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInput, match=rf"work\.jsonl is not a valid tape: {named}"):
        ModelServer().tape(tape, "replay")


def test_a_directory_is_no_tape(tape: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        ModelServer().tape(tape.parent.parent, "replay")


def test_a_tape_that_is_not_there_is_named_with_how_to_record_it(tape: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no tape") as missing:
        ModelServer().tape(tape, "replay")
    assert "--gittrix-model=once" in missing.value.fix


def test_a_mode_that_is_none_is_refused(tape: Path) -> None:
    with pytest.raises(InvalidInput, match="replay, once, new, rewrite, live"):
        ModelServer().tape(tape, "always")  # type: ignore[arg-type]


# Real servers ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """What stands for the real servers: another server of the protocols, which sees what is sent to it."""
    with ModelServer() as server:
        server.answer_with(two_steps())
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_real_server_is_asked_once_and_then_never(tape: Path, upstream: ModelServer, protocol: str, stream: bool) -> None:
    with ModelServer() as model:
        model.tape(tape, "once")
        assert work(model.url, protocol, stream=stream) == "Seen."
        model.check()
    assert len(upstream.requests) == 2
    with ModelServer() as model:
        model.tape(tape, "once")
        assert work(model.url, protocol, stream=stream) == "Seen."
        model.check()
    assert len(upstream.requests) == 2
    assert [one.text for one in upstream.requests[-1].results] == ["v1"]


def test_an_error_of_a_real_server_is_recorded_and_played(tape: Path, upstream: ModelServer) -> None:
    upstream.script(fail(429, retry_after=3, message="Slow down."), "one")
    with ModelServer() as model:
        model.tape(tape, "once")
        assert [ask(model.url, "chat", "Hello").status for _ in range(2)] == [429, 200]
        model.check()
    with replay(tape) as model:
        refused = ask(model.url, "chat", "Hello")
        assert (refused.status, refused.headers["retry-after"], refused.error["error"]["message"]) == (429, "3", "Slow down.")
        assert ask(model.url, "chat", "Hello").text == "one"


def test_a_real_server_without_a_key_is_not_asked(tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ModelServer() as model:
        model.tape(tape, "once")
        assert ask(model.url, "chat", "Hello").status == 400
        with pytest.raises(Exception, match="OPENAI_API_KEY is not set"):
            model.check()


def test_a_real_server_that_cannot_be_reached_is_named(tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with ModelServer() as model:
        model.tape(tape, "live")
        assert ask(model.url, "chat", "Hello").status == 400
        with pytest.raises(AdapterUnavailable, match=r"http://127\.0\.0\.1:9 cannot be asked"):
            model.check()


# Normal forms ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Wall time: 0.0418 seconds", "Wall time: {duration}"),
        ("Chunk ID: 0a1b2c", "Chunk ID: {chunk}"),
        ("Process Group PGID: 4711", "Process Group PGID: {pid}"),
        ("1 passed in 0.12s", "1 passed in {duration}"),
        ("real\t0m0.004s", "real\t{duration}"),
        ("at 12:30:01.123", "at {time}"),
        ("Fri Nov 27 23:24:31 UTC 2026", "{now}"),
        ("id 12345678-1234-1234-1234-123456789abc", "id {uuid:1}"),
        ("total 8\n-rw-r--r-- 1 root root 46 Sep  9  2001 a", "total {total}\n-rw-r--r-- {owner} 46 {mtime} a"),
        ("drwxr-xr-x 2 ann staff 4096 Nov 27 23:23 tests", "drwxr-xr-x {owner} {size} {mtime} tests"),
        ("total 8 files", "total 8 files"),
        ("42 seconds", "42 seconds"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_what_differs_from_run_to_run_is_hidden_and_nothing_else(text: str, hidden: str) -> None:
    assert without_volatile()(text) == hidden


def test_numbered_placeholders_keep_identity() -> None:
    one, other = "12345678-1234-1234-1234-123456789abc", "87654321-1234-1234-1234-123456789abc"
    hide = without_volatile()
    assert hide(f"{one} {other} {one}") == "{uuid:1} {uuid:2} {uuid:1}"
    assert hide(other) == "{uuid:2}"


@given(st.text(alphabet="{}workspace-d0 /a", max_size=40))
def test_what_is_hidden_can_be_shown(text: str) -> None:
    known = Known({"workspace": "/a/d", "world": "/a"}, (date(2026, 11, 27),))
    assert known.show(known.hide(text)) == text


def test_today_is_shown_as_the_day_of_the_replay() -> None:
    recorded, now = Known({}, days(0.0)), Known({}, days(86_400.0 * 365))
    for form, text in enumerate(spelled(date(1970, 1, 1))):
        assert now.show(recorded.hide(f"on {text}!")) == f"on {spelled(date(1971, 1, 1))[form]}!"


def test_ids_of_calls_are_compared_by_their_order() -> None:
    def asked(id_: str) -> Request:
        said = Message("assistant", (Call(id_, "bash", {"command": "ls"}),))
        return Request("chat", "m", "", (said, Message("user", (ToolResult(id_, "a"),))))

    assert normal_form(asked("call_x"), NOBODY) == normal_form(asked("toolu_1"), NOBODY)


@pytest.mark.parametrize(
    ("recorded", "now", "path"),
    [
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, "a[1].b"),
        ({"a": 1}, {"a": 1, "b": 2}, "b"),
        ({"a": [1]}, {"a": [1, 2]}, "a[1]"),
        ({"a": [1, 2]}, {"a": [1]}, "a[1]"),
        ({"a": "x"}, {"a": {"b": 1}}, "a"),
    ],
)
def test_the_first_leaf_that_differs_has_a_path(recorded: Any, now: Any, path: str) -> None:
    found = first_difference(recorded, now)
    assert found is not None
    assert found.path == path
    assert first_difference(recorded, recorded) is None


def test_the_lenient_form_has_roles_tools_calls_and_results() -> None:
    asked = Message("assistant", (Text("y"), Call("1", "bash", {})))
    said = (Message("user", (Text("x"),)), asked, Message("user", (ToolResult("1", "z"),)))
    form = lenient_form(normal_form(Request("chat", "m", "system", said, (Tool("bash", "runs"),)), NOBODY))
    assert form == {
        "protocol": "chat",
        "tools": ["bash"],
        "messages": [
            {"user": []},
            {"assistant": [{"call": "bash", "id": "call 1", "arguments": {}}]},
            {"user": [{"result": "call 1", "text": "z"}]},
        ],
    }


def test_a_script_makes_a_tape(tape: Path) -> None:
    with ModelServer() as model:
        model.script(call("bash", command="ls"), stop())
        model.tape(tape, "once")
        work(model.url, "chat")
        model.check()
    with replay(tape) as model:
        assert work(model.url, "chat") == "Done."
