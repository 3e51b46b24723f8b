"""What goes wrong with a model: each fault as a client sees it, and the right answer for whoever asks again."""

from __future__ import annotations

import json
import socket
import struct
import threading

import pytest
from support.model_client import CutOff, ask, post, results

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.answers.faults import (
    FAULTS,
    AnswerFault,
    bad_arguments,
    bad_json,
    content_type,
    cut,
    duplicate_id,
    empty,
    fail,
    refusal,
    stall,
    token_limit,
    too_long,
    twice,
    unknown_tool,
)
from pytest_gittrix.model.answers.script import call, say, stop
from pytest_gittrix.model.server import ModelServer

COMMAND = "echo one >> app.py && echo two >> app.py"
STREAMS = {"anthropic": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 503, 529])
def test_an_error_comes_with_its_status_and_the_next_request_gets_the_answer(model: ModelServer, protocol: str, status: int) -> None:
    model.script(fail(status), "one")
    assert ask(model.url, protocol, "Hello").status == status
    assert ask(model.url, protocol, "Hello").text == "one"
    model.check()


def test_a_context_that_is_too_long_is_an_error_of_its_own(model: ModelServer) -> None:
    model.script(too_long(), "one")
    heard = ask(model.url, "chat", "Hello")
    assert (heard.status, heard.error["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("at", ["tool arguments", "text", "before stop", "before the end", 0.25, 0.9])
def test_a_cut_answer_ends_within_and_comes_whole_when_it_is_asked_for_again(
    model: ModelServer, protocol: str, at: object, stream: bool
) -> None:
    model.script(cut(at), call("bash", command=COMMAND), stop())  # type: ignore[arg-type]
    if (protocol, stream, at) == ("gemini", True, "before the end"):
        pytest.skip("this protocol has no event for an end")
    with pytest.raises(CutOff):
        ask(model.url, protocol, "Hello", stream=stream)
    heard = ask(model.url, protocol, "Hello", stream=stream)
    assert [arguments for _, _, arguments in heard.calls] == [{"command": COMMAND}]


def test_a_stream_that_is_cut_within_the_arguments_has_begun_the_call(model: ModelServer) -> None:
    model.script(cut("tool arguments"), call("bash", command=COMMAND))
    with pytest.raises(CutOff) as cut_off:
        ask(model.url, "anthropic", "Hello", stream=True)
    came = "".join(json.loads(line[6:])["delta"]["partial_json"] for line in str(cut_off.value).splitlines() if "partial_json" in line)
    assert 0 < len(came) < len(json.dumps({"command": COMMAND}))


def test_a_stream_that_is_cut_before_the_stop_has_the_whole_call(model: ModelServer) -> None:
    model.script(cut("before stop"), call("bash", command=COMMAND), stop())
    with pytest.raises(CutOff) as cut_off:
        ask(model.url, "chat", "Hello", stream=True)
    assert 'finish_reason":"tool_calls' not in str(cut_off.value)
    # Whoever takes the call for whole goes on, and so does the model.
    heard = type("Heard", (), {"calls": [("call_0001_0", "bash", {"command": COMMAND})]})
    assert ask(model.url, "chat", "Hello", *results("chat", heard, "")).text == "Done."  # type: ignore[arg-type]


def test_arguments_that_are_cut_at_the_token_limit_come_in_a_whole_answer(model: ModelServer, protocol: str) -> None:
    model.script(token_limit(), call("bash", command=COMMAND))
    _, _, raw = post(model.url, *_asked(protocol))
    assert (b"max_tokens" in raw) or (b'"length"' in raw) or (b"max_output_tokens" in raw) or (b"MAX_TOKENS" in raw)
    assert COMMAND.encode() not in raw
    heard = ask(model.url, protocol, "Hello")
    assert heard.calls[0][2] == {"command": COMMAND}


def test_a_text_is_cut_at_the_token_limit_too(model: ModelServer) -> None:
    model.script(token_limit(), say("A text that is too long."))
    heard = ask(model.url, "anthropic", "Hello")
    assert (heard.text, heard.stop) == ("A text that is t", "max_tokens")


def test_arguments_that_are_no_json_come_in_an_answer_that_claims_to_be_whole(model: ModelServer) -> None:
    model.script(bad_json(), call("bash", command=COMMAND))
    with pytest.raises(json.JSONDecodeError):
        ask(model.url, "chat", "Hello")
    assert ask(model.url, "chat", "Hello").calls[0][2] == {"command": COMMAND}


def test_arguments_that_break_the_schema(model: ModelServer, protocol: str) -> None:
    model.script(bad_arguments(), call("bash", command=COMMAND))
    assert ask(model.url, protocol, "Hello").calls[0][2] == {"unexpected": {"value": []}}


def test_a_tool_that_nobody_offers(model: ModelServer, protocol: str) -> None:
    model.script(unknown_tool(), call("bash", command=COMMAND), stop())
    first = ask(model.url, protocol, "Hello")
    assert first.calls[0][1] == "tool_that_nobody_offers"
    second = ask(model.url, protocol, "Hello", *results(protocol, first, "There is no such tool."))
    assert second.calls[0][1:] == ("bash", {"command": COMMAND})


def test_an_id_that_two_calls_have(model: ModelServer, protocol: str) -> None:
    model.script(duplicate_id(), call("bash", command=COMMAND), stop())
    first = ask(model.url, protocol, "Hello")
    assert [name for _, name, _ in first.calls] == ["bash", "tool_that_nobody_offers"]
    assert len({id_ for id_, _, _ in first.calls}) == 1
    assert ask(model.url, protocol, "Hello", *results(protocol, first, "", "no such tool")).text == "Done."


@pytest.mark.parametrize(("fault", "text"), [(empty(), ""), (refusal("No."), "No.")], ids=str)
def test_an_answer_that_is_none(model: ModelServer, protocol: str, fault: AnswerFault, text: str) -> None:
    model.script(fault, "one")
    heard = ask(model.url, protocol, "Hello", stream=True)
    assert (heard.text, heard.calls) == (text, [])
    assert ask(model.url, protocol, "Hello").text == "one"


def test_an_answer_of_another_content_type(model: ModelServer) -> None:
    model.script(content_type("text/html"), "one")
    heard = ask(model.url, "chat", "Hello")
    assert (heard.headers["content-type"], heard.text) == ("text/html", "one")


def test_an_answer_that_comes_twice(model: ModelServer) -> None:
    model.script(twice(), "one")
    _, _, raw = post(model.url, *_asked("anthropic", stream=True))
    assert raw.count(b'"type":"message_start"') == 2


@pytest.mark.parametrize("at", [0.0, "text"])
def test_an_answer_that_stalls_comes_whole(model: ModelServer, protocol: str, at: object) -> None:
    model.script(stall(0.01, at), "one")  # type: ignore[arg-type]
    heard = ask(model.url, protocol, "Hello", stream=True)
    assert heard.text == "one"
    assert model.exchanges[0].delivered


def test_whoever_gives_up_on_a_stall_gets_the_answer_when_it_asks_again(model: ModelServer) -> None:
    model.script(stall(0.2, "text"), "a text of several pieces, of which the client waits for none", "two")
    with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2]))) as impatient:
        path, body = _asked("anthropic", stream=True)
        raw = json.dumps(body).encode()
        impatient.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(raw), raw))
        impatient.recv(1)
        impatient.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for thread in threading.enumerate():
        if thread.name == "gittrix-model-client":
            thread.join()
    assert not model.exchanges[0].delivered
    assert ask(model.url, "anthropic", "Hello", tools=()).text.startswith("a text of several")
    assert ask(model.url, "anthropic", "Hello", tools=()).text == "two"


def test_a_server_that_is_closed_waits_for_no_stall() -> None:
    with ModelServer() as model:
        model.script(stall(10), "one")
        gone = threading.Thread(target=_hears_nothing, args=(model.url,), daemon=True)
        gone.start()
        while not model.exchanges:
            pass
    gone.join(5)
    assert not gone.is_alive()


def test_a_fault_at_the_end_of_a_script_is_an_exchange_of_its_own(model: ModelServer) -> None:
    model.script("one", fail(401))
    ask(model.url, "chat", "Hello")
    assert ask(model.url, "chat", "And now?").status == 401
    model.check()


def test_faults_of_a_sweep_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_what_is_no_status_and_no_place_is_refused() -> None:
    with pytest.raises(InvalidInput, match="200 is not an error status"):
        fail(200)
    with pytest.raises(InvalidInput, match="'somewhere' is not a place in an answer"):
        cut("somewhere")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"at=1\.0 is not a place"):
        cut(1.0)


def test_exchanges_remember_what_went_wrong(model: ModelServer) -> None:
    model.script(fail(503), cut("before stop"), "one")
    ask(model.url, "chat", "Hello")
    with pytest.raises(CutOff):
        ask(model.url, "chat", "Hello", stream=True)
    ask(model.url, "chat", "Hello")
    assert [(one.fault, one.delivered) for one in model.exchanges] == [("fail(503)", True), ("cut('before stop')", False), (None, True)]


def _hears_nothing(url: str) -> None:
    with pytest.raises(OSError, match="closed connection without response"):
        ask(url, "chat", "Hello")


def _asked(protocol: str, *, stream: bool = False) -> tuple[str, dict[str, object]]:
    if protocol == "gemini":
        return "/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
    if protocol == "responses":
        return STREAMS[protocol], {"model": "m", "input": "Hello", "stream": stream}
    return STREAMS[protocol], {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
