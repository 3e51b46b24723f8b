"""What a gateway notes of the answers of models that it passes on: status, model and tokens, and nothing of what was said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.gateway import OpenGateway, model_at, open_gateway
from support.model_client import PROTOCOLS, CutOff, ask, post

from pytest_gittrix.confine.gateway import server as gateway_server
from pytest_gittrix.confine.gateway.usage import AnswerReader, exchanges_in, is_exchange, tokens_of
from pytest_gittrix.engine.agents.launch import network_summary
from pytest_gittrix.model import Answer, ModelServer, Text, cut, fail
from pytest_gittrix.model.protocols.values import Usage

SAID = "a sentence that nobody else is to read"
USAGE = Usage(1_000, 200, 400)
REQUESTS = ("POST /v1/messages", "POST /v1/responses", "POST /v1/chat/completions", "POST /v1beta/models/*")


@contextmanager
def leading_to(model: ModelServer, root: Path) -> Iterator[tuple[OpenGateway, str]]:
    """A gateway that leads to a model's server, and its address there."""
    with open_gateway(root, [model_at(model.url, *REQUESTS)]) as gateway:
        yield gateway, f"http://127.0.0.1:{gateway.port}/mine"


def noted(gateway: OpenGateway) -> list[tuple[str, Any]]:
    return [(one.model, one.tokens) for one in exchanges_in(gateway.log.read_text().splitlines())]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        server.answer_with(lambda _: Answer((Text(SAID),), usage=USAGE))
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tokens_are_noted_in_each_protocol_and_what_was_said_is_not(
    tmp_path: Path, model: ModelServer, protocol: str, stream: bool
) -> None:
    with leading_to(model, tmp_path) as (gateway, url):
        heard = ask(url, protocol, "What is the secret word?", stream=stream)

    assert heard.text == SAID
    assert noted(gateway) == [("m", (1_000, 200, 400))]
    assert not any(words in gateway.log.read_text() for words in ("secret word", SAID))
    assert network_summary(tmp_path) == {
        "passed": 1,
        "refused": 0,
        "refused_targets": [],
        "model": {"exchanges": 1, "input": 1_000, "output": 200, "cached": 400, "uncounted": 0},
    }


def test_an_answer_that_says_no_tokens_counts_as_an_exchange_of_unknown_tokens(tmp_path: Path, model: ModelServer) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    with leading_to(model, tmp_path) as (gateway, url):
        post(url, "/v1/chat/completions", body)

    assert noted(gateway) == [("m", None)]


def test_an_error_used_no_tokens_and_an_answer_that_was_cut_off_unknown_ones(tmp_path: Path, model: ModelServer) -> None:
    model.script(fail(500), cut(at=0.3), "Hello")
    with leading_to(model, tmp_path) as (gateway, url):
        assert ask(url, "anthropic", "Hello?").status == 500
        with pytest.raises(CutOff):
            ask(url, "anthropic", "Hello?")

    assert noted(gateway) == [("m", (0, 0, 0)), ("m", None)]


def test_an_exchange_that_was_cut_off_with_its_gateway_is_one_of_unknown_tokens(tmp_path: Path) -> None:
    lines = [
        json.dumps({"decision": "passed", "target": "POST /mine/v1/messages?beta=true"}),
        json.dumps({"decision": "passed", "target": "POST /mine/v1/messages/count_tokens"}),
        "{half a li",
    ]

    assert [(one.model, one.tokens) for one in exchanges_in(lines)] == [("", None)]


def test_a_program_that_fills_the_log_is_counted_all_the_same(tmp_path: Path, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "MOST_LOGGED", 3)
    with leading_to(model, tmp_path) as (gateway, url):
        for _ in range(5):
            assert post(url, "/v1/files", {})[0] == 403
        ask(url, "anthropic", "Hello?")

    assert [decision for decision, _ in gateway.decisions()] == ["refused"] * 3 + ["passed", "answered"]
    assert noted(gateway) == [("m", (1_000, 200, 400))]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n\r\n"
EVENTS = b'data: {"type":"message_start","message":{"model":"x","usage":{"input_tokens":3}}}\n\ndata: {"usage":{"output_tokens":4}}\n\n'
ANSWERS = {
    "chunks": HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked") + b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(EVENTS), EVENTS),
    "small chunks": HEAD % (b"text/event-stream", b"Transfer-Encoding: chunked")
    + b"".join(b"1\r\n%c\r\n" % byte for byte in EVENTS)
    + b"0\r\n\r\n",
    "its end": HEAD % (b"text/event-stream", b"X: y") + EVENTS,
    "after others": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD % (b"text/event-stream", b"X: y") + EVENTS,
    "a list": HEAD % (b"application/json", b"X: y")
    + b'[{"usageMetadata":{"promptTokenCount":1}},{"modelVersion":"x","usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":4}}]',
}


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_read_in_pieces_of_any_length(answer: str, step: int) -> None:
    reader, raw = AnswerReader("/v1/messages"), ANSWERS[answer]
    for at in range(0, len(raw), step):
        reader.feed(raw[at : at + step])

    assert reader.note() == {"status": 200, "model": "x", "input": 3, "output": 4, "cached": 0}
    assert reader.ended is ("chunk" in answer)


@pytest.mark.parametrize(
    "raw",
    [
        b"no HTTP at all\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x00",
        b'HTTP/1.1 200 OK\r\n\r\n{"usage": {"input_tokens": "many"}}',
        b'HTTP/1.1 200 OK\r\n\r\n{"usage": {"input_tokens": 3, "input_tokens_details": 5}}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"usage": \ndata: 3\ndata: "usage"\n\n',
    ],
)
def test_what_is_no_answer_of_a_model_has_no_tokens(raw: bytes) -> None:
    reader = AnswerReader("/v1/messages")
    reader.ask(b"\xff no JSON")
    reader.feed(raw)

    assert "input" not in reader.note()


@pytest.mark.parametrize(
    ("path", "asks"),
    [
        ("/v1/messages", True),
        ("/openai/deployments/mine/chat/completions", True),
        ("/v1beta/models/m:streamGenerateContent", True),
        ("/v1/messages/count_tokens", False),
        ("/v1/embeddings", False),
    ],
)
def test_requests_for_answers_are_told_from_others(path: str, asks: bool) -> None:
    assert is_exchange("POST", path) is asks
    assert not is_exchange("GET", path)


def test_counts_that_are_null_are_none() -> None:
    assert tokens_of({"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None}) == (5, 0, 0)
