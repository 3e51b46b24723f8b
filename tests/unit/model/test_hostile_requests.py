"""Requests as clients of any kind send them: in odd forms, cut off, packed, too large, at the same time; the server goes on."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_gittrix.model import Answer, Call, cut, fail, say, stall
from pytest_gittrix.model.protocols.values import Request
from pytest_gittrix.model.server import ModelServer

BODY = json.dumps({"model": "any", "messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM = json.dumps({"stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()


def sent(model: ModelServer, *pieces: bytes, half: bool = False) -> bytes:
    """What the server answers to bytes, until it closes the connection; each request has to ask for that, or be one that it refuses."""
    with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])), timeout=20) as line:
        for piece in pieces:
            line.sendall(piece)
        if half:
            line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(65_536), b""))


def head(*headers: str, version: str = "1.1", path: str = "/v1/chat/completions") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/{version}", "Host: x", "Connection: close", *headers, "", ""]).encode()


def of_length(body: bytes, *headers: str, **more: str) -> bytes:
    return head(*headers, f"Content-Length: {len(body)}", **more) + body


CHUNKS = b"".join(b"%x;note=1\r\n%s\r\n" % (len(BODY[at : at + 7]), BODY[at : at + 7]) for at in range(0, len(BODY), 7))


@pytest.mark.parametrize(
    "asked",
    [
        of_length(BODY, version="1.0"),
        head(f"cOnTeNt-LeNgTh:{len(BODY)}") + BODY,
        head("Transfer-Encoding: Chunked") + CHUNKS + b"0\r\nTrailer: one\r\nAnd: another\r\n\r\n",
        of_length(gzip.compress(BODY), "Content-Encoding: GZIP"),
        of_length(gzip.compress(BODY), "Content-Encoding: x-gzip"),
        of_length(zlib.compress(BODY), "Content-Encoding: deflate"),
        of_length(zlib.compress(BODY)[2:-4], "Content-Encoding: deflate"),
        of_length(BODY, "Expect: 100-continue"),
        of_length(BODY, path="http://model.example/v1/chat/completions"),
        of_length(BODY, path="/v1/chat/completions/?a=b"),
    ],
    ids=["http-1.0", "case", "chunks", "gzip", "x-gzip", "deflate", "raw-deflate", "expect", "absolute", "slash"],
)
def test_a_request_in_an_odd_form_is_answered(model: ModelServer, asked: bytes) -> None:
    model.script(say("Hello"))

    answer = sent(model, asked)

    assert b" 200 OK\r\n" in answer
    assert b'"content":"Hello"' in answer
    model.check()


def test_a_client_that_sends_no_more_is_answered(model: ModelServer) -> None:
    model.script(say("Hello"))

    assert b'"content":"Hello"' in sent(model, of_length(BODY), half=True)


def test_a_stream_for_a_client_of_the_old_protocol_has_no_chunks(model: ModelServer) -> None:
    model.script(say("Hello"))

    headers, _, body = sent(model, of_length(STREAM, version="1.0")).partition(b"\r\n\r\n")

    assert b"transfer-encoding" not in headers.lower()
    assert body.startswith(b"data: ")
    assert body.endswith(b"data: [DONE]\n\n")


def test_requests_follow_one_another_on_a_line(model: ModelServer) -> None:
    model.script(say("One"), say("Two"))
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\nA: b\r\nC: d\r\n\r\n"

    answer = sent(model, chunked + of_length(BODY))

    assert b'"content":"One"' in answer
    assert b'"content":"Two"' in answer


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (head("Content-Length: -5"), b"no valid length"),
        (head("Content-Length: 5", "Content-Length: 6") + b"{}    ", b"no valid length"),
        (head("Content-Length: 999999999999999999999"), b"too long"),
        (head("Content-Length: 100000000"), b"too long"),
        (head("Transfer-Encoding: gzip, chunked") + CHUNKS, b"sent as 'gzip, chunked'"),
        (head("Transfer-Encoding: chunked") + b"zz\r\n", b"chunks of the request are malformed"),
        (head("Transfer-Encoding: chunked") + b"ffffffffff\r\n", b"too long"),
        (of_length(gzip.compress(b" " * (65 << 20)), "Content-Encoding: gzip"), b"too long"),
        (of_length(gzip.compress(BODY)[:-9], "Content-Encoding: gzip"), b"is cut off"),
        (of_length(b"\x28\xb5\x2f\xfd", "Content-Encoding: zstd"), b"packed by 'zstd'"),
        (of_length(b'{"messages": ' + b"[" * 200_000), b"not JSON"),
        (of_length(b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}"), b"nested more than"),
        (of_length(b"[1, 2]"), b"not a JSON object"),
    ],
    ids=lambda value: value.decode() if b"\r" not in value else "",
)
def test_what_is_no_request_is_refused_with_its_reason_and_the_server_goes_on(model: ModelServer, asked: bytes, said: bytes) -> None:
    model.script(say("Hello"))

    answer = sent(model, asked)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert said in answer
    assert b'"content":"Hello"' in sent(model, of_length(BODY))


def test_a_request_that_is_cut_off_is_none(model: ModelServer) -> None:
    model.script(say("Hello"))

    assert b"ends after" in sent(model, head(f"Content-Length: {len(BODY) + 50}") + BODY, half=True)
    assert model.exchanges == ()


def ask(model: ModelServer, task: str, *more: Mapping[str, Any]) -> bytes:
    return sent(model, of_length(json.dumps({"messages": [{"role": "user", "content": task}, *more]}).encode()))


def test_each_conversation_gets_again_what_it_did_not_get(model: ModelServer) -> None:
    model.script(fail(529), say("of one"), about="one")
    model.script(cut(0.5), say("of two"), about="two")

    refused, cut_off = ask(model, "one"), ask(model, "two")

    assert b" 529 " in refused
    assert b"total_tokens" not in cut_off
    assert b"of one" in ask(model, "one")
    assert b"of two" in ask(model, "two")


def test_a_conversation_does_not_get_what_another_one_did_not_get(model: ModelServer) -> None:
    def answer(request: Request) -> str:
        return f"to {request.opening}"

    model.answer_with(answer)
    with model.restarted(next_fault=lambda _, request: fail(500) if request.opening == "one" else None):
        ask(model, "one")

        assert b"to two" in ask(model, "two")
        assert b"to one" in ask(model, "one")


def test_many_clients_at_once_get_each_their_own(model: ModelServer) -> None:
    model.answer_with(lambda request: Answer((Call("", "bash", {"command": f"echo {request.opening}"}),)))
    answers: dict[int, bytes] = {}
    clients = [threading.Thread(target=lambda n=n: answers.update({n: ask(model, f"client-{n}-")})) for n in range(24)]

    for client in clients:
        client.start()
    for client in clients:
        client.join()

    assert [f"echo client-{n}-".encode() in answers[n] for n in range(24)] == [True] * 24
    assert sorted(one.number for one in model.exchanges) == [*range(1, 25)]


def test_a_client_that_leaves_in_the_middle_of_a_stream_gets_the_answer_again(model: ModelServer) -> None:
    model.script(say("word " * 200_000))
    asked = of_length(STREAM)
    with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])), timeout=20) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(asked)
        line.recv(100)

    assert sent(model, asked).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    model.check()


def test_who_gives_up_during_a_stall_gets_the_answer_at_once(model: ModelServer) -> None:
    model.script(stall(9), say("Hello"))
    asked = of_length(BODY)
    with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])), timeout=20) as line:
        line.sendall(asked)
        while not model.exchanges:
            threading.Event().wait(0.01)

    assert b'"content":"Hello"' in sent(model, asked)
    model.check()
