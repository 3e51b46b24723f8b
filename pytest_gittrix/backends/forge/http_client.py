"""Calls to a forge's REST API that end in a reply or a typed error within bounded time.

Temporary failures are retried: after a rate limit when the forge allows it, after 5xx and broken connections with growing pauses. A request
that may have been carried out is sent again only if repeating it does no harm. The token is in no message, no ``repr`` and no log.

The client is httpx: typed, small, pure Python, and it leaves waiting and retrying to this module, where a test can replace the clock.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.backends.forge.protocol import ForgeTimeout, ForgeUnavailable, RateLimited
from pytest_gittrix.errors import AuthFailed, GittrixError, InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.os_level.monotonic import real_wall_seconds

if TYPE_CHECKING:
    import ssl

    import httpx

Json = Any
"""A JSON value; the caller checks its shape."""

_LARGEST: Final = 32 << 20
_SHOWN: Final = 300
_MOST_PAGES: Final = 1000
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_SHORTEST: Final = 0.001
_DEFAULT_LIMIT: Final = 60.0  # GitHub: "wait for at least one minute" if a secondary limit gives no time
_SERVER_FAULTS: Final = (500, 502, 503, 504)
_LIMITS: Final = re.compile(r"rate limit|abuse detection", re.IGNORECASE)
_HARMLESS: Final = frozenset({"GET", "PATCH", "PUT", "DELETE"})
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class Patience:
    """How long a call may take, and how often it is tried.

    Attributes:
        timeout: seconds for each step of an exchange (connecting, sending, the first byte), and for a complete reply.
        waiting: total seconds that a call may wait, for rate limits and between tries.
        tries: how often a request is sent when the forge fails.
        sleep: waits for a number of seconds.
        now: returns seconds since 1970, to compare with the time at which the forge lifts a rate limit.
    """

    timeout: float = 30.0
    waiting: float = 120.0
    tries: int = 4
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = real_wall_seconds


@dataclass(frozen=True, slots=True)
class RestReply:
    """A reply with a status below 400: its JSON (None for an empty body) and the address of the next page, if there is one."""

    data: Json
    next: str | None


@dataclass
class _Failure:
    """A failed exchange.

    Attributes:
        error: the error to raise if the request is not tried again.
        pause: least seconds before the next try; None if the request may not be tried again.
        is_limit: whether the failure is a rate limit.
    """

    error: GittrixError
    pause: float | None
    is_limit: bool = False


@dataclass
class RestClient:
    """One API at one base address.

    Attributes:
        base_url: the address that paths are appended to, such as ``https://api.github.com``.
        patience: how long calls may take.
        deadline: when calls give up, regardless of ``patience``; by ``time.monotonic``.
    """

    base_url: str
    token: str | None = field(repr=False)
    patience: Patience = field(default_factory=Patience)
    deadline: float = math.inf
    _client: httpx.Client | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        if not re.fullmatch(r"https?://[^\s/@?#]+(?:/[^\s?#]*)?", self.base_url):
            raise InvalidInput(
                f"base_url={re.sub('//[^/@]*@', '//', self.base_url)!r} is not the address of an API.",
                why="The token is sent to that address only.",
                fix="Give one such as https://api.github.com or https://forge.example.com/api/v3, without credentials.",
            )
        if self.token is not None and not re.fullmatch(r"[\x21-\x7e]+", self.token):
            raise InvalidInput(
                "The token has a character that is not allowed in a header.", fix="Give it as the forge shows it, without line ends."
            )

    def close(self) -> None:
        """Release connections; a later call opens them again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def call(self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Json = None) -> RestReply:
        """Send a request, and retry it until the forge replies.

        Args:
            method: ``GET``, ``POST``, ``PATCH``, ``PUT`` or ``DELETE``.
            path: path below the base address, with a leading slash.
            query: query parameters.
            body: sent as JSON.

        Raises:
            AuthFailed: the forge refused the token (401, 403).
            InvalidInput: the forge rejected the request (404, 409, 410, 422 and so on); its reason is in the message.
            RateLimited: the rate limit lasts longer than the call may still wait.
            ForgeTimeout, ForgeUnavailable: there was no reply, or none that can be read; ``uncertain`` says whether the request may have
                been carried out.
        """
        waited, failures = 0.0, 0
        while True:
            result = self._exchange(method, path, query, body)
            if isinstance(result, RestReply):
                return result
            failures += not result.is_limit
            if result.pause is None or (failures >= self.patience.tries and not result.is_limit):
                raise result.error
            pause = max(result.pause, 0.0 if result.is_limit else min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE))
            if waited + pause > self.patience.waiting or pause > self._time_left():
                raise result.error
            self.patience.sleep(pause)
            waited += pause

    def within(self, seconds: float) -> RestClient:
        """A client of the same API, with its own connections, whose calls all give up once ``seconds`` have passed."""
        return RestClient(self.base_url, self.token, self.patience, deadline=time.monotonic() + min(seconds, self._time_left()))

    def _time_left(self) -> float:
        return self.deadline - time.monotonic()

    def pages(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Json]:
        """The data of every page of a list, in order. Raises what ``call`` raises."""
        reply = self.call("GET", path, query=query)
        for _ in range(_MOST_PAGES):
            yield reply.data
            if reply.next is None:
                return
            reply = self.call("GET", self._path_of(reply.next))
        raise ForgeUnavailable(
            f"{self.base_url} gave more than {_MOST_PAGES} pages of {path}.", why="A list of that length is taken for an endless one."
        )

    def _path_of(self, address: str) -> str:
        if not address.startswith(f"{self.base_url}/"):
            raise ForgeUnavailable(
                f"{self.base_url} says that a list goes on at {address[:_SHOWN]!r}.",
                why="That is another address, and the token is not sent there.",
                fix="Give the base_url that the forge uses in its own links.",
            )
        return address.removeprefix(self.base_url)

    # One exchange ----------------------------------------------------------------------------------------------------------------

    def _exchange(self, method: str, path: str, query: Mapping[str, str] | None, body: Json) -> RestReply | _Failure:
        with needs("forge"):
            import httpx

        harmless = method in _HARMLESS
        try:
            status, headers, data = self._send(method, path, query, body)
        except httpx.ConnectError as problem:
            return _Failure(self._unreachable(problem, uncertain=False), 0.0)
        except (httpx.TimeoutException, _TooSlow) as problem:
            waited = f"within {self.patience.timeout:g} s" if self._time_left() > 0 else "in the time there was for all"
            slow = ForgeTimeout(
                f"{self._request_text(method, path)} was not answered {waited}.",
                why="The engine waits for a limited time.",
                fix="Try again later, or give a longer timeout.",
            )
            slow.uncertain = not harmless and not isinstance(problem, (httpx.ConnectTimeout, httpx.PoolTimeout))
            return _Failure(slow, None if slow.uncertain else 0.0)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            return _Failure(self._unreachable(problem, uncertain=not harmless), 0.0 if harmless else None)
        return self._interpret(method, path, status, headers, data)

    def _send(self, method: str, path: str, query: Mapping[str, str] | None, body: Json) -> tuple[int, httpx.Headers, bytes]:
        timeout = min(self.patience.timeout, max(self._time_left(), _SHORTEST))
        deadline = time.monotonic() + timeout
        follow = method == "GET"  # for a renamed repository; httpx removes the token if the redirection leads to another host
        with self._open_client().stream(
            method, self.base_url + path, params=dict(query) if query else None, json=body, follow_redirects=follow, timeout=timeout
        ) as response:
            parts: list[bytes] = []
            size = 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if time.monotonic() > deadline or size > _LARGEST:
                    raise _TooSlow
            return response.status_code, response.headers, b"".join(parts)

    def _open_client(self) -> httpx.Client:
        if self._client is None:
            import httpx

            headers = {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28", "user-agent": "pytest-gittrix"}
            if self.token is not None:
                headers["authorization"] = f"Bearer {self.token}"
            self._client = httpx.Client(headers=headers, timeout=self.patience.timeout, verify=_tls_context())
        return self._client

    def _interpret(self, method: str, path: str, status: int, headers: httpx.Headers, data: bytes) -> RestReply | _Failure:
        request = self._request_text(method, path)
        message = self._error_message(data)
        if status == 429 or (status == 403 and _is_limit(headers, message)):
            seconds = self._limit_seconds(headers)
            return _Failure(_limit_error(request, seconds, self.patience.waiting, message), seconds, is_limit=True)
        if status in (401, 403):
            refused = AuthFailed(
                f"{request} was refused with status {status}: {message}.",
                why="The forge does not take the token, or the token may not do this." if self.token else "No token was given.",
                fix="Give a token that is valid and has the rights for this repository.",
            )
            return _Failure(refused, None)
        if status in _SERVER_FAULTS:
            harmless = method in _HARMLESS
            failed = ForgeUnavailable(
                f"{request} failed with status {status}: {message}.", why="The forge has an internal error.", fix="Try again later."
            )
            failed.uncertain = not harmless
            return _Failure(failed, _seconds(headers.get("retry-after"), self.patience.now()) or 0.0 if harmless else None)
        if 400 <= status < 500:
            hint = "The name or number is wrong, or the token may not see it." if status in (404, 410) else "Follow the forge's message."
            return _Failure(InvalidInput(f"{request} was refused with status {status}: {message}.", fix=hint), None)
        if not 200 <= status < 300:
            return _Failure(ForgeUnavailable(f"{request} was answered with status {status}.", fix="Check that base_url is right."), None)
        return self._parse(method, request, headers, data)

    def _parse(self, method: str, request: str, headers: httpx.Headers, data: bytes) -> RestReply | _Failure:
        import httpx

        try:
            parsed = json.loads(data) if data else None
        except ValueError:
            malformed = ForgeUnavailable(
                f"{request} was answered with something other than JSON: {self._clean(data[:80].decode(errors='replace'))!r}.",
                why="Something that is not the forge may be answering, such as a proxy or a login page.",
                fix="Check that base_url is right.",
            )
            malformed.uncertain = method not in _HARMLESS
            return _Failure(malformed, None)
        links = httpx.Response(200, headers=headers).links
        return RestReply(parsed, links.get("next", {}).get("url"))

    def _limit_seconds(self, headers: httpx.Headers) -> float:
        """Seconds until the forge lifts a rate limit, from the headers of its reply; a minute if they do not say."""
        retry_after = _seconds(headers.get("retry-after"), self.patience.now())
        if retry_after is not None:
            return retry_after
        reset = headers.get("x-ratelimit-reset", "")
        if headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
            return max(0.0, int(reset) - self.patience.now()) + 1  # the header has whole seconds
        return _DEFAULT_LIMIT

    def _error_message(self, data: bytes) -> str:
        """The message of an error reply, as one line."""
        try:
            body = json.loads(data)
        except ValueError:
            return self._clean(data[:_SHOWN].decode(errors="replace")) or "no reason given"
        if not isinstance(body, dict):
            return "no reason given"
        errors = body.get("errors")
        details = [error.get("message") or error.get("code") if isinstance(error, dict) else error for error in errors or ()]
        return self._clean("; ".join(str(part) for part in (body.get("message"), *details) if part)) or "no reason given"

    def _unreachable(self, problem: Exception, *, uncertain: bool) -> ForgeUnavailable:
        error = ForgeUnavailable(
            f"{self.base_url} cannot be reached: {self._clean(str(problem)) or type(problem).__name__}.",
            why="The connection failed before an answer was whole.",
            fix="Check that base_url is right and that the forge is up, then try again.",
        )
        error.uncertain = uncertain
        return error

    def _request_text(self, method: str, path: str) -> str:
        return f"{method} {self.base_url}{path.partition('?')[0]}"

    def _clean(self, text: str) -> str:
        hidden = text.replace(self.token, "***") if self.token else text
        return _UNPRINTABLE.sub(" ", hidden)[:_SHOWN].strip().removesuffix(".")


@cache
def _tls_context() -> ssl.SSLContext:
    """The certificates that this process trusts. To read them takes 25 ms, so they are read once, not for each client."""
    import httpx

    return httpx.create_ssl_context()


class _TooSlow(Exception):
    """A reply that arrived too slowly or was too large."""


def _is_limit(headers: httpx.Headers, message: str) -> bool:
    return "retry-after" in headers or headers.get("x-ratelimit-remaining") == "0" or bool(_LIMITS.search(message))


def _limit_error(request: str, seconds: float, waiting: float, message: str) -> RateLimited:
    return RateLimited(
        f"{request} met a rate limit, and the forge asks to wait {seconds:.0f} s: {message}.",
        seconds=seconds,
        why=f"A call waits {waiting:g} s at most; asking sooner makes such limits longer.",
        fix="Try again then, or ask less often.",
    )


def _seconds(text: str | None, now: float) -> float | None:
    """The seconds of a Retry-After header, which holds seconds or a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None
