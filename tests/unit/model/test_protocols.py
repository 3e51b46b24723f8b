"""One script, asked for in four protocols, streaming and not: every client understands the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_client import PROTOCOLS, ask, post, results

from pytest_gittrix.model.answers.script import call, say, stop
from pytest_gittrix.model.protocols.values import Answer, Call, Failure, Text, Thinking
from pytest_gittrix.model.server import ModelServer

ENDS = {"anthropic": "end_turn", "chat": "stop", "responses": "completed", "gemini": "STOP"}
ASKS = {"anthropic": "tool_use", "chat": "tool_calls", "responses": "completed", "gemini": "STOP"}
CUTS = {"anthropic": "max_tokens", "chat": "length", "responses": "max_output_tokens", "gemini": "MAX_TOKENS"}
LONG = "A text that is longer than one piece of a stream, with “quotes”, an emoji 🙂 and\na second line."


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_client_hears_what_the_model_says_and_thinks(model: ModelServer, protocol: str, stream: bool) -> None:
    model.script(say(LONG, thinking="I think that over."))
    heard = ask(model.url, protocol, "Hello", stream=stream)
    assert (heard.text, heard.thoughts, heard.calls, heard.stop) == (LONG, "I think that over.", [], ENDS[protocol])


def test_a_client_hears_which_tools_the_model_asks_for(model: ModelServer, protocol: str, stream: bool) -> None:
    model.script([call("bash", command="ls -l"), call("bash", command=f"echo '{LONG}'")])
    heard = ask(model.url, protocol, "Look", stream=stream)
    assert [(name, arguments) for _, name, arguments in heard.calls] == [
        ("bash", {"command": "ls -l"}),
        ("bash", {"command": f"echo '{LONG}'"}),
    ]
    assert len({id_ for id_, _, _ in heard.calls}) == 2
    assert heard.stop == ASKS[protocol]


def test_the_model_reads_what_tools_gave(model: ModelServer, protocol: str, stream: bool) -> None:
    model.script([call("bash", command="one"), call("bash", command="two")], stop())
    heard = ask(model.url, protocol, "Look", stream=stream)
    ask(model.url, protocol, "Look", *results(protocol, heard, "first", "second"), stream=stream)
    assert [result.text for result in model.requests[-1].results] == ["first", "second"]
    assert [result.id for result in model.requests[-1].results] == [id_ for id_, _, _ in heard.calls]
    assert model.conversation() == "\n".join(
        [
            "user: Look",
            "model calls bash(command='one')",
            "model calls bash(command='two')",
            "bash gave: first",
            "bash gave: second",
            "model: Done.",
        ]
    )


def test_an_answer_whose_tokens_are_used_up_says_so(model: ModelServer, protocol: str, stream: bool) -> None:
    model.script(Answer((Text("I began to"),), "length"))
    heard = ask(model.url, protocol, "Hello", stream=stream)
    assert (heard.text, heard.stop) == ("I began to", CUTS[protocol])


def test_a_refusal_is_told_from_an_answer(model: ModelServer, protocol: str, stream: bool) -> None:
    model.script(Answer((Text("I may not."),), "refusal"))
    heard = ask(model.url, protocol, "Hello", stream=stream)
    assert heard.text == "I may not."
    if protocol != "responses":  # which tells it by the kind of the part
        assert heard.stop == {"anthropic": "refusal", "chat": "content_filter", "gemini": "SAFETY"}[protocol]


def test_tokens_are_counted_and_grow_with_the_conversation(model: ModelServer, protocol: str, stream: bool) -> None:
    model.script("one", "two")
    first = ask(model.url, protocol, "Hello", stream=stream)
    second = ask(model.url, protocol, "Hello, this is a much longer message than the first one was.", stream=stream)
    assert first.usage is not None
    assert second.usage is not None
    assert 0 < first.usage[0] < second.usage[0]
    assert model.usage.input == first.usage[0] + second.usage[0]
    assert model.usage.output == first.usage[1] + second.usage[1]


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("anthropic", {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down."}, "request_id": "req_0"}),
        ("chat", {"error": {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}),
        ("responses", {"error": {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}),
        ("gemini", {"error": {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED"}}),
    ],
)
def test_an_error_has_the_form_of_its_protocol(model: ModelServer, protocol: str, said: object) -> None:
    model.script(Answer())
    model.answer_with(lambda _: Failure("rate limit", message="Slow down.", retry_after=1.5))
    heard = ask(model.url, protocol, "Hello")
    assert (heard.status, heard.error) == (429, said)
    assert (heard.headers["retry-after"], heard.headers["retry-after-ms"]) == ("2", "1500")


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x" * 400}]}, "input_tokens"),
        ("/v1/responses/input_tokens", {"input": "x" * 400}, "input_tokens"),
        ("/v1beta/models/m:countTokens", {"contents": [{"parts": [{"text": "x" * 400}]}]}, "totalTokens"),
    ],
)
def test_counting_tokens_spends_no_step_of_the_script(model: ModelServer, path: str, body: object, name: str) -> None:
    status, _, raw = post(model.url, path, body)
    assert (status, name.encode() in raw, b"100" in raw) == (200, True, True)
    assert model.exchanges == ()


def test_the_server_keeps_a_conversation_that_a_client_lets_it_keep(model: ModelServer) -> None:
    model.script("one", "two")
    _, _, raw = post(model.url, "/v1/responses", {"model": "m", "input": "Hello"})
    first = __import__("json").loads(raw)["id"]
    post(model.url, "/v1/responses", {"model": "m", "input": "Go on", "previous_response_id": first})
    assert [message.text for message in model.requests[-1].messages] == ["Hello", "one", "Go on"]


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v1/messages", b"{", {}),
        ("/v1/messages", b"[]", {}),
        ("/v1/messages", {"messages": 3}, {}),
        ("/v1/chat/completions", {"messages": ["no object"]}, {}),
        ("/v1/responses", {"input": [7]}, {}),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_9999"}, {}),
        ("/v1beta/models/m:generateContent", {"contents": {}}, {}),
        ("/v1/messages", b"\x28\xb5\x2f\xfd", {"content-encoding": "zstd"}),
        ("/v1/messages", b"no gzip", {"content-encoding": "gzip"}),
    ],
)
def test_what_is_no_request_is_answered_with_an_error_that_names_it(
    model: ModelServer, path: str, body: object, headers: dict[str, str]
) -> None:
    status, _, raw = post(model.url, path, body, headers)
    assert status == 400
    assert b'"message":"' in raw
    assert model.exchanges == ()


def test_a_packed_request_is_unpacked(model: ModelServer) -> None:
    import gzip

    model.script("one")
    body = gzip.compress(b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}')
    status, _, _ = post(model.url, "/v1/messages", body, {"content-encoding": "gzip"})
    assert (status, model.requests[0].text) == (200, "Hello")


TEXTS = st.text(max_size=80)
PARTS = st.one_of(
    st.builds(Text, TEXTS.filter(bool)),
    st.builds(Thinking, TEXTS.filter(bool), st.just("c2ln")),
    st.builds(Call, st.uuids().map(str), st.just("bash"), st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS), max_size=3)),
)


@given(parts=st.lists(PARTS, max_size=5))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_any_answer_is_heard_the_same_whole_and_streamed(protocol: str, parts: list[Text | Thinking | Call]) -> None:
    answer = Answer(tuple(parts))
    with ModelServer() as model:
        model.answer_with(lambda _: answer)
        heard = [ask(model.url, protocol, "Hello", stream=stream) for stream in (False, True)]
    assert [one.text for one in heard] == [answer.text] * 2
    assert [one.thoughts for one in heard] == ["".join(part.text for part in parts if isinstance(part, Thinking))] * 2
    assert [one.calls for one in heard] == [[(part.id, part.name, part.arguments) for part in answer.calls]] * 2
