"""What a model's server sends is heard as what it means: for recordings of real ones, by the same codecs that answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.protocols.base import AnswerContext
from pytest_gittrix.model.protocols.codecs import CODECS
from pytest_gittrix.model.protocols.values import PROTOCOLS, Answer, Call, Message, Protocol, Request, Stop, Text, Thinking, Usage

WORDS = st.text(min_size=1, max_size=60)
PARTS = st.one_of(
    st.builds(Text, WORDS),
    st.builds(Thinking, WORDS, st.just("c2ln")),
    st.builds(Call, st.uuids().map(str), st.just("bash"), st.dictionaries(WORDS, WORDS | st.integers() | st.lists(WORDS), max_size=3)),
)
STOPS: st.SearchStrategy[Stop] = st.sampled_from(["end", "length"])


def events(raw: bytes) -> Iterator[Mapping[str, Any]]:
    for line in raw.decode().split("\n"):
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def said(answer: Answer) -> tuple[str, str, list[tuple[str, str, Any]]]:
    """What an answer says, however its text is cut into parts."""
    thoughts = "".join(part.text for part in answer.parts if isinstance(part, Thinking))
    return answer.text, thoughts, [(one.id, one.name, one.arguments) for one in answer.calls]


def answered(protocol: Protocol, answer: Answer, usage: Usage) -> AnswerContext:
    body = {"stream_options": {"include_usage": True}}
    return AnswerContext(Request(protocol, "m", "", (Message("user", (Text("Hello"),)),), body=body), answer, usage, 1, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(parts=st.lists(PARTS, max_size=5), stop=STOPS, counts=st.tuples(st.integers(10, 99), st.integers(0, 99), st.integers(0, 9)))
def test_what_is_encoded_is_heard(
    protocol: Protocol, parts: list[Text | Thinking | Call], stop: Stop, counts: tuple[int, int, int]
) -> None:
    answer = Answer(tuple(parts), "tool" if stop == "end" and any(isinstance(part, Call) for part in parts) else stop)
    sent = answered(protocol, answer, Usage(*counts))
    codec = CODECS[protocol]
    stream = b"".join(frame.data for frame in codec.frames(sent))
    for heard in (codec.hear(codec.encode(sent)), codec.hear(codec.join(events(stream)))):
        assert said(heard) == said(answer)
        assert (heard.stop, heard.model) == (answer.stop, "m")
        assert heard.usage is not None
        assert (heard.usage.input, heard.usage.output, heard.usage.cached) == counts


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refusal_is_heard(protocol: Protocol) -> None:
    sent = answered(protocol, Answer((Text("No."),), "refusal"), Usage())
    codec = CODECS[protocol]
    stream = b"".join(frame.data for frame in codec.frames(sent))
    for heard in (codec.hear(codec.encode(sent)), codec.hear(codec.join(events(stream)))):
        assert (heard.text, heard.stop) == ("No.", "refusal")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stream_that_ends_within_is_no_answer(protocol: Protocol) -> None:
    sent = answered(protocol, Answer((Text("A text"),)), Usage())
    frames = [frame.data for frame in CODECS[protocol].frames(sent) if frame.label not in ("stop", "end")]
    with pytest.raises(InvalidInput, match="ended early"):
        CODECS[protocol].join(events(b"".join(frames)))


def test_pieces_of_two_calls_come_mixed() -> None:
    def piece(index: int, **function: str) -> Mapping[str, Any]:
        return {"choices": [{"delta": {"tool_calls": [{"index": index, "id": f"call_{index}", "function": function}]}}]}

    chunks = [
        piece(0, name="bash", arguments='{"command": '),
        piece(1, name="read", arguments='{"path"'),
        piece(0, arguments='"ls"}'),
        piece(1, arguments=': "a"}'),
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    ]
    codec = CODECS["chat"]
    assert said(codec.hear(codec.join(chunks)))[2] == [("call_0", "bash", {"command": "ls"}), ("call_1", "read", {"path": "a"})]
