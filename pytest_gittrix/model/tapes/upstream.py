"""Asks a real model's server, as a gateway does: with the key of this process, which no agent has."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from pytest_gittrix.confine.network import MODELS, ModelEndpoint, check_network
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.model.protocols.codecs import CODECS
from pytest_gittrix.model.protocols.values import Answer, Failure, Protocol, Request

_SERVERS: Final[Mapping[Protocol, str]] = {"anthropic": "anthropic", "responses": "openai", "chat": "openai", "gemini": "gemini"}
_MODEL_IN_PATH: Final = re.compile(r"(?<=/models/)[^/:?]+(?=:)")
_NOT_PASSED: Final = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "content-encoding", "expect"}
)


class Upstream:
    """An answerer that is a model's real server: that of the protocol, or the one that its client's variable names.

    Args:
        seconds: how long an answer may take.
        servers: the servers that may be asked, each under the name that it has in ``network``, or a single one of another name; by default
            all that are known.
        model: the model that is asked, instead of the one that the agent names; that one if it is empty.
    """

    concurrent = True

    def __init__(self, seconds: float = 600.0, servers: Sequence[ModelEndpoint] = (), *, model: str = "") -> None:
        self._seconds, self._servers, self._model = seconds, servers, model

    def __call__(self, request: Request) -> Answer | Failure:
        """What the server answers.

        Raises:
            InvalidInput: this process has no key for it, or it is none of the servers that may be asked.
            AdapterUnavailable: it cannot be reached, or its answer is none.
        """
        endpoint = self._server_for(request)
        codec = CODECS[request.protocol]
        if self._model:
            path = _MODEL_IN_PATH.sub(self._model, request.path)
            body = request.body if request.protocol == "gemini" else {**request.body, "model": self._model}
            request = replace(request, model=self._model, path=path, body=body)
        try:
            status, headers, raw = self._post(endpoint, request)
            if status >= 400:
                return _failure(status, headers, raw)
            if "event-stream" in headers.get("content-type", ""):
                return codec.hear(codec.join(_events(raw)))
            return codec.hear(json.loads(raw))
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise AdapterUnavailable(
                f"The model's server at {endpoint.url} cannot be asked: {problem}.",
                why="An exchange is recorded by asking it.",
                fix=f"See that {endpoint.url} can be reached from this process, or replay: --gittrix-model=replay.",
            ) from None

    def _server_for(self, request: Request) -> ModelEndpoint:
        name = _SERVERS[request.protocol]
        fitting = [one for one in self._servers if one.name == name or (len(self._servers) == 1 and one.name not in MODELS)]
        if self._servers and not fitting:
            raise InvalidInput(
                f"The agent asks model:{name}, which is not among {', '.join(one.name for one in self._servers)}.",
                why="Only those servers may be asked.",
                fix=f"List it: --network model:{name}.",
            )
        return _with_key(fitting[0] if fitting else _endpoint(name))

    def _post(self, endpoint: ModelEndpoint, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(endpoint.url)
        headers = {name: text for name, text in request.headers.items() if name not in _NOT_PASSED}
        if endpoint.key is not None:
            name, _, value = endpoint.header.partition(":")
            headers[name.strip()] = value.strip().format(key=os.environ[endpoint.key])
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=endpoint.ca or os.environ.get("SSL_CERT_FILE"))
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(parts.netloc, timeout=self._seconds, context=context)
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=self._seconds)
        try:
            connection.request("POST", parts.path.rstrip("/") + request.path, json.dumps(request.body).encode(), headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
        finally:
            connection.close()


def _endpoint(name: str) -> ModelEndpoint:
    listed = check_network([f"model:{name}"])
    assert not isinstance(listed, str)
    [endpoint] = listed.models
    return endpoint


def _with_key(endpoint: ModelEndpoint) -> ModelEndpoint:
    if endpoint.key is not None and not os.environ.get(endpoint.key):
        raise InvalidInput(
            f"{endpoint.key} is not set.",
            why=f"An exchange is recorded by asking {endpoint.url} with it.",
            fix=f"Set {endpoint.key} for pytest. The agent does not get it.",
            opt_out="Replay what is recorded: --gittrix-model=replay.",
        )
    return endpoint


def _events(raw: bytes) -> Iterator[Mapping[str, Any]]:
    """The data of server-sent events. Source: the HTML standard, section 9.2."""
    for block in raw.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:"))
        if data and data != b"[DONE]":
            found = json.loads(data)
            if isinstance(found, dict):
                yield found


def _failure(status: int, headers: Mapping[str, str], raw: bytes) -> Failure:
    try:
        said = json.loads(raw)["error"]["message"]
    except (ValueError, KeyError, TypeError, IndexError):
        said = raw[:500].decode(errors="replace")
    try:
        waits = float(headers["retry-after"])
    except (KeyError, ValueError):
        waits = None
    return Failure.of_status(status, message=str(said), retry_after=waits)
