"""The vendors' own clients talk to a model's server of ours: streamed and whole, blocking and not, with their retries and types."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from pydantic import BaseModel

from pytest_gittrix.model import ModelServer, call, cut, fail, say, stop, unknown_tool

# The clients leave connections to the collector of garbage, and use what others discourage.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)

SAID = "Hello there, this is a text of more than twenty-four letters."
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
ASKED = [{"role": "user", "content": "Hello"}]
ANTHROPIC_TOOLS: Any = [{"name": "bash", "description": "Run a command.", "input_schema": SCHEMA}]
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": SCHEMA}}]
RESPONSES_TOOLS: Any = [{"type": "function", "name": "bash", "description": "Run a command.", "parameters": SCHEMA, "strict": False}]
GEMINI_TOOLS: Any = [{"function_declarations": [{"name": "bash", "description": "Run a command.", "parameters_json_schema": SCHEMA}]}]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def checked(found: BaseModel) -> Any:
    """What a client parsed, once its own types accept it; the clients themselves accept whatever comes."""
    type(found).model_validate(found.model_dump(warnings="error"))
    return found


# Anthropic -----------------------------------------------------------------------------------------------------------------------


def by_anthropic(url: str, how: str, **given: Any) -> Any:
    request: dict[str, Any] = {"model": "any", "max_tokens": 500, "messages": ASKED, "tools": ANTHROPIC_TOOLS, **given}
    if not how.startswith("async"):
        client = anthropic.Anthropic(base_url=url, api_key="any")
        if how == "whole":
            return checked(client.messages.create(**request))
        with client.messages.stream(**request) as stream:
            return checked(stream.get_final_message())

    async def asked() -> Any:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            if how == "async whole":
                return checked(await client.messages.create(**request))
            async with client.messages.stream(**request) as stream:
                return checked(await stream.get_final_message())

    return asyncio.run(asked())


WAYS = pytest.mark.parametrize("how", ["whole", "streamed", "async whole", "async streamed"])


@WAYS
def test_anthropic_parses_texts_thinking_and_calls(how: str, model: ModelServer) -> None:
    model.script(say(SAID, thinking="Let me think."), [call("bash", command="ls"), call("bash", command="pwd")], stop())

    thinking, text = by_anthropic(model.url, how).content
    calls = by_anthropic(model.url, how)

    assert (thinking.thinking, text.text) == ("Let me think.", SAID)
    assert [(one.type, one.name, one.input) for one in calls.content] == [
        ("tool_use", "bash", {"command": "ls"}),
        ("tool_use", "bash", {"command": "pwd"}),
    ]
    assert (calls.stop_reason, calls.usage.output_tokens > 0) == ("tool_use", True)
    assert by_anthropic(model.url, how).stop_reason == "end_turn"
    model.check()


@WAYS
def test_anthropic_asks_again_by_itself_and_tells_what_failed(how: str, model: ModelServer) -> None:
    model.script(fail(529, retry_after=0), fail(500, retry_after=0), SAID, fail(401))

    assert by_anthropic(model.url, how).content[0].text == SAID
    with pytest.raises(anthropic.AuthenticationError):
        by_anthropic(model.url, how)
    assert len(model.exchanges) == 4


def test_anthropic_counts_tokens_and_lists_models(model: ModelServer) -> None:
    client = anthropic.Anthropic(base_url=model.url, api_key="any")

    assert checked(client.messages.count_tokens(model="any", messages=ASKED)).input_tokens > 0  # type: ignore[arg-type]
    assert [checked(one).id for one in client.models.list()] == ["test-model"]


# OpenAI --------------------------------------------------------------------------------------------------------------------------


def by_chat(url: str, how: str, **given: Any) -> Any:
    request: dict[str, Any] = {"model": "any", "messages": ASKED, "tools": CHAT_TOOLS, **given}
    if how == "whole":
        return checked(openai.OpenAI(base_url=f"{url}/v1", api_key="any").chat.completions.create(**request))
    if how == "streamed":
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any").chat.completions.stream(**request) as stream:
            return checked(stream.get_final_completion())

    async def asked() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            if how == "async whole":
                return checked(await client.chat.completions.create(**request))
            async with client.chat.completions.stream(**request) as stream:
                return checked(await stream.get_final_completion())

    return asyncio.run(asked())


def by_responses(url: str, how: str, **given: Any) -> Any:
    request: dict[str, Any] = {"model": "any", "input": "Hello", "tools": RESPONSES_TOOLS, **given}
    if how == "whole":
        return checked(openai.OpenAI(base_url=f"{url}/v1", api_key="any").responses.create(**request))
    if how == "streamed":
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any").responses.stream(**request) as stream:
            return checked(stream.get_final_response())

    async def asked() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            if how == "async whole":
                return checked(await client.responses.create(**request))
            async with client.responses.stream(**request) as stream:
                return checked(await stream.get_final_response())

    return asyncio.run(asked())


@WAYS
def test_chat_completions_parses_texts_and_calls(how: str, model: ModelServer) -> None:
    model.script(SAID, [call("bash", command="ls"), call("bash", command="pwd")], stop())

    assert by_chat(model.url, how).choices[0].message.content == SAID
    (choice,) = by_chat(model.url, how).choices

    assert choice.finish_reason == "tool_calls"
    assert [(one.function.name, one.function.arguments) for one in choice.message.tool_calls] == [
        ("bash", '{"command": "ls"}'),
        ("bash", '{"command": "pwd"}'),
    ]
    assert by_chat(model.url, how).choices[0].finish_reason == "stop"
    model.check()


@WAYS
def test_responses_parses_texts_reasoning_and_calls_and_goes_on_from_an_earlier_one(how: str, model: ModelServer) -> None:
    model.script(say(SAID, thinking="Let me think."), call("bash", command="ls"), "Done.")

    first = by_responses(model.url, how)
    second = by_responses(model.url, how, previous_response_id=first.id, input="Look")
    (called,) = [one for one in second.output if one.type == "function_call"]
    result = [{"type": "function_call_output", "call_id": called.call_id, "output": "app.py"}]
    third = by_responses(model.url, how, previous_response_id=second.id, input=result)

    assert first.output_text == SAID
    assert [one.type for one in first.output] == ["reasoning", "message"]
    assert (called.name, called.arguments) == ("bash", '{"command": "ls"}')
    assert (third.output_text, third.status) == ("Done.", "completed")
    assert "app.py" in str(model.requests[-1].messages)
    model.check()


@WAYS
def test_openai_asks_again_by_itself_and_tells_what_failed(how: str, model: ModelServer) -> None:
    model.script(fail(429, retry_after=0), fail(503, retry_after=0), SAID, fail(401))

    assert by_chat(model.url, how).choices[0].message.content == SAID
    with pytest.raises(openai.AuthenticationError):
        by_responses(model.url, how)
    assert len(model.exchanges) == 4


# Gemini --------------------------------------------------------------------------------------------------------------------------


def by_gemini(url: str, how: str) -> list[Any]:
    """The parts of an answer."""
    config = types.GenerateContentConfig(tools=GEMINI_TOOLS)
    client = genai.Client(api_key="any", http_options={"base_url": url})  # type: ignore[arg-type]
    if how == "whole":
        answers = [client.models.generate_content(model="any", contents="Hello", config=config)]
    elif how == "streamed":
        answers = [*client.models.generate_content_stream(model="any", contents="Hello", config=config)]
    else:

        async def asked() -> list[Any]:
            async with client.aio as far:
                if how == "async whole":
                    return [await far.models.generate_content(model="any", contents="Hello", config=config)]
                return [one async for one in await far.models.generate_content_stream(model="any", contents="Hello", config=config)]

        answers = asyncio.run(asked())
    return [part for one in answers for candidate in checked(one).candidates for part in candidate.content.parts or ()]


@WAYS
def test_gemini_parses_texts_and_calls(how: str, model: ModelServer) -> None:
    model.script(SAID, [call("bash", command="ls"), call("bash", command="pwd")])

    assert "".join(part.text or "" for part in by_gemini(model.url, how)) == SAID
    calls = [part.function_call for part in by_gemini(model.url, how) if part.function_call]

    assert [(one.name, one.args) for one in calls] == [("bash", {"command": "ls"}), ("bash", {"command": "pwd"})]
    model.check()


def test_gemini_counts_tokens_lists_models_and_tells_what_failed(model: ModelServer) -> None:
    client = genai.Client(api_key="any", http_options={"base_url": model.url})  # type: ignore[arg-type]
    model.script(fail(401))

    assert checked(client.models.count_tokens(model="any", contents="Hello")).total_tokens > 0
    assert [checked(one).name for one in client.models.list()] == ["models/test-model"]
    with pytest.raises(genai.errors.ClientError) as refused:
        by_gemini(model.url, "whole")
    assert refused.value.code == 401


# What is damaged -----------------------------------------------------------------------------------------------------------------


def heard(ask: Any, url: str) -> Any:
    """What a client gives, or raises: each has errors of its own, and of its library for HTTP."""
    try:
        return ask(url, "streamed")
    except Exception as problem:
        return problem


@pytest.mark.parametrize("ask", [by_anthropic, by_chat, by_responses])
def test_a_stream_that_is_cut_is_an_error_or_an_answer_without_an_end(ask: Any, model: ModelServer) -> None:
    model.script(cut("before stop"), SAID)

    found = heard(ask, model.url)

    assert not isinstance(found, (AssertionError, TypeError, KeyError, AttributeError)), found
    assert getattr(found, "stop_reason", None) != "end_turn", found
    assert getattr(found, "status", None) != "completed", found


def test_a_tool_that_nobody_has_is_parsed_like_any_other(model: ModelServer) -> None:
    model.script(unknown_tool(), call("bash", command="ls"))
    assert by_anthropic(model.url, "streamed").content[-1].name == "tool_that_nobody_offers"

    model.script(unknown_tool(), call("bash", command="ls"))
    assert by_chat(model.url, "streamed").choices[0].message.tool_calls[0].function.name == "tool_that_nobody_offers"


def test_bytes_of_an_image_come_through(model: ModelServer) -> None:
    model.script("I see.")
    image = base64.b64encode(b"\x89PNG").decode()
    content: Any = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}},
        {"type": "text", "text": "?"},
    ]

    by_anthropic(model.url, "whole", messages=[{"role": "user", "content": content}])

    assert image in model.sent
