"""Calls to a forge's REST API that come to an answer or to a typed error, in bounded time.

What passes by itself is waited for and asked again: rate limits for as long as the forge says, 5xx and broken connections with
growing pauses. What may have been carried out is never sent twice unless sending it twice does no harm. The token is in no message,
no ``repr`` and no log. Knows HTTP and JSON, not what is asked.

The client is httpx: typed, small, pure Python, and it leaves waiting and repeating to us, where the clock can be the test's.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.backends.forge.protocol import ForgeTimeout, ForgeUnavailable, RateLimited
from pytest_gittrix.errors import AuthFailed, CapabilityMissing, GittrixError, InvalidInput

if TYPE_CHECKING:
    import httpx

Json = Any
"""What JSON holds; its shape is looked at where it is used."""

_LARGEST: Final = 32 << 20
_SHOWN: Final = 300
_MOST_PAGES: Final = 1000
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_SHORTEST: Final = 0.001
_UNTOLD_LIMIT: Final = 60.0  # GitHub: "wait for at least one minute" where a secondary limit says nothing
_SERVER_FAULTS: Final = (500, 502, 503, 504)
_LIMITS: Final = re.compile(r"rate limit|abuse detection", re.IGNORECASE)
_HARMLESS: Final = frozenset({"GET", "PATCH", "PUT", "DELETE"})
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]+")


def real_time() -> float:
    """Seconds since 1970, whatever a test does to the clock of this process."""
    return time.clock_gettime(time.CLOCK_REALTIME)


@dataclass(frozen=True)
class Patience:
    """How long a call may take, and how often it is tried.

    Attributes:
        timeout: seconds for each step of an exchange (connecting, sending, the first byte), and for an answer to be whole.
        waiting: seconds that a call may wait altogether, for limits and between tries.
        tries: how often a request is sent when the forge fails.
        sleep: waits for some seconds.
        now: seconds since 1970, as the forge counts them when it says until when it is to be left alone.
    """

    timeout: float = 30.0
    waiting: float = 120.0
    tries: int = 4
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = real_time


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status below 400: its JSON (None for an empty one) and the address of the next page, if there is one."""

    data: Json
    next: str | None


@dataclass
class _Try:
    """An exchange that came to no reply: the error to raise, and how long to wait before another try, if there may be one."""

    error: GittrixError
    pause: float | None
    is_limit: bool = False


@dataclass
class RestClient:
    """One API at one base address.

    Attributes:
        base_url: the address that paths are below, such as ``https://api.github.com``.
        patience: how long calls may take.
        ends: when calls give up, whatever patience says, by ``time.monotonic``.
    """

    base_url: str
    token: str | None = field(repr=False)
    patience: Patience = field(default_factory=Patience)
    ends: float = math.inf
    _client: httpx.Client | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        if not re.fullmatch(r"https?://[^\s/@?#]+(?:/[^\s?#]*)?", self.base_url):
            raise InvalidInput(
                f"base_url={re.sub('//[^/@]*@', '//', self.base_url)!r} is no address of an API.",
                why="The token goes there, and nowhere else.",
                fix="Give one such as https://api.github.com or https://forge.example.com/api/v3, without credentials.",
            )
        if self.token is not None and not re.fullmatch(r"[\x21-\x7e]+", self.token):
            raise InvalidInput("The token holds a character that no header can.", fix="Give it as the forge shows it, without line ends.")

    def close(self) -> None:
        """Give back connections; a later call opens them again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def call(self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Json = None) -> Reply:
        """Send a request until it is answered.

        Args:
            method: ``GET``, ``POST``, ``PATCH``, ``PUT`` or ``DELETE``.
            path: below the base address, with a slash first; or a whole address below it.
            query: parameters.
            body: what is sent as JSON.

        Raises:
            AuthFailed: the token does not do (401, 403).
            InvalidInput: the forge does not take the request (404, 409, 410, 422 and so on); its reason is in the message.
            RateLimited: it asks to be left alone for longer than is left to wait.
            ForgeTimeout, ForgeUnavailable: it did not answer, or not with what can be read; ``uncertain`` says whether it may have
                done what was asked.
        """
        waited, failed = 0.0, 0
        while True:
            came = self._exchange(method, path, query, body)
            if isinstance(came, Reply):
                return came
            failed += not came.is_limit
            if came.pause is None or (failed >= self.patience.tries and not came.is_limit):
                raise came.error
            pause = max(came.pause, 0.0 if came.is_limit else min(_FIRST_PAUSE * 2 ** (failed - 1), _LONGEST_PAUSE))
            if waited + pause > self.patience.waiting or pause > self._left():
                raise came.error
            self.patience.sleep(pause)
            waited += pause

    def within(self, seconds: float) -> RestClient:
        """The same API through connections of its own, where no call goes on when these seconds are over."""
        return RestClient(self.base_url, self.token, self.patience, ends=time.monotonic() + min(seconds, self._left()))

    def _left(self) -> float:
        return self.ends - time.monotonic()

    def pages(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Json]:
        """The data of every page of a list, in order. Raises as ``call``."""
        reply = self.call("GET", path, query=query)
        for _ in range(_MOST_PAGES):
            yield reply.data
            if reply.next is None:
                return
            reply = self.call("GET", self._below(reply.next))
        raise ForgeUnavailable(f"{self.base_url} gave more than {_MOST_PAGES} pages of {path}.", why="Such a list has no end.")

    def _below(self, address: str) -> str:
        if not address.startswith(f"{self.base_url}/"):
            raise ForgeUnavailable(
                f"{self.base_url} says that a list goes on at {address[:_SHOWN]!r}.",
                why="That is another place, which is not given the token.",
                fix="Give the base_url that the forge itself calls its API by.",
            )
        return address.removeprefix(self.base_url)

    # One exchange ----------------------------------------------------------------------------------------------------------------

    def _exchange(self, method: str, path: str, query: Mapping[str, str] | None, body: Json) -> Reply | _Try:
        import_client()
        import httpx

        harmless = method in _HARMLESS
        try:
            status, headers, data = self._sent(method, path, query, body)
        except httpx.ConnectError as problem:
            return _Try(self._unreachable(problem, uncertain=False), 0.0)
        except (httpx.TimeoutException, _TooSlow) as problem:
            waited = f"within {self.patience.timeout:g} s" if self._left() > 0 else "in the time there was for all"
            slow = ForgeTimeout(
                f"{self._shown(method, path)} was not answered {waited}.",
                why="The engine does not wait for ever.",
                fix="Try again later, or give a longer timeout.",
            )
            slow.uncertain = not harmless and not isinstance(problem, (httpx.ConnectTimeout, httpx.PoolTimeout))
            return _Try(slow, None if slow.uncertain else 0.0)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            return _Try(self._unreachable(problem, uncertain=not harmless), 0.0 if harmless else None)
        return self._judged(method, path, status, headers, data)

    def _sent(self, method: str, path: str, query: Mapping[str, str] | None, body: Json) -> tuple[int, httpx.Headers, bytes]:
        timeout = min(self.patience.timeout, max(self._left(), _SHORTEST))
        deadline = time.monotonic() + timeout
        follow = method == "GET"  # a repository that was renamed; httpx takes the token off where that leads elsewhere
        with self._opened().stream(
            method, self.base_url + path, params=dict(query) if query else None, json=body, follow_redirects=follow, timeout=timeout
        ) as answer:
            parts: list[bytes] = []
            size = 0
            for part in answer.iter_bytes():
                parts.append(part)
                size += len(part)
                if time.monotonic() > deadline or size > _LARGEST:
                    raise _TooSlow
            return answer.status_code, answer.headers, b"".join(parts)

    def _opened(self) -> httpx.Client:
        if self._client is None:
            import httpx

            headers = {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28", "user-agent": "pytest-gittrix"}
            if self.token is not None:
                headers["authorization"] = f"Bearer {self.token}"
            self._client = httpx.Client(headers=headers, timeout=self.patience.timeout)
        return self._client

    def _judged(self, method: str, path: str, status: int, headers: httpx.Headers, data: bytes) -> Reply | _Try:
        shown = self._shown(method, path)
        said = self._said(data)
        if status == 429 or (status == 403 and _is_limit(headers, said)):
            seconds = self._asked_to_wait(headers)
            return _Try(_limited(shown, seconds, self.patience.waiting, said), seconds, is_limit=True)
        if status in (401, 403):
            refused = AuthFailed(
                f"{shown} was refused with status {status}: {said}.",
                why="The forge does not take the token, or the token may not do this." if self.token else "No token was given.",
                fix="Give a token that is valid and has the rights for this repository.",
            )
            return _Try(refused, None)
        if status in _SERVER_FAULTS:
            harmless = method in _HARMLESS
            failed = ForgeUnavailable(
                f"{shown} failed with status {status}: {said}.", why="The forge itself is in trouble.", fix="Try again later."
            )
            failed.uncertain = not harmless
            return _Try(failed, _seconds(headers.get("retry-after"), self.patience.now()) or 0.0 if harmless else None)
        if 400 <= status < 500:
            hint = "The name or number is wrong, or the token may not see it." if status in (404, 410) else "See to what the forge says."
            return _Try(InvalidInput(f"{shown} was refused with status {status}: {said}.", fix=hint), None)
        if not 200 <= status < 300:
            return _Try(ForgeUnavailable(f"{shown} was answered with status {status}.", fix="See that base_url is right."), None)
        return self._read(method, shown, headers, data)

    def _read(self, method: str, shown: str, headers: httpx.Headers, data: bytes) -> Reply | _Try:
        import httpx

        try:
            parsed = json.loads(data) if data else None
        except ValueError:
            malformed = ForgeUnavailable(
                f"{shown} was answered with what is no JSON: {self._clean(data[:80].decode(errors='replace'))!r}.",
                why="Something that is not the forge may be answering, such as a proxy or a login page.",
                fix="See that base_url is right.",
            )
            malformed.uncertain = method not in _HARMLESS
            return _Try(malformed, None)
        links = httpx.Response(200, headers=headers).links
        return Reply(parsed, links.get("next", {}).get("url"))

    def _asked_to_wait(self, headers: httpx.Headers) -> float:
        """Seconds until the forge takes requests again, as it says itself; a minute if it does not."""
        told = _seconds(headers.get("retry-after"), self.patience.now())
        if told is not None:
            return told
        reset = headers.get("x-ratelimit-reset", "")
        if headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
            return max(0.0, int(reset) - self.patience.now()) + 1  # the reset is told in whole seconds
        return _UNTOLD_LIMIT

    def _said(self, data: bytes) -> str:
        """The forge's reason, as one line."""
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
            fix="See that base_url is right and that the forge is up, then try again.",
        )
        error.uncertain = uncertain
        return error

    def _shown(self, method: str, path: str) -> str:
        return f"{method} {self.base_url}{path.partition('?')[0]}"

    def _clean(self, text: str) -> str:
        hidden = text.replace(self.token, "***") if self.token else text
        return _UNPRINTABLE.sub(" ", hidden)[:_SHOWN].strip().removesuffix(".")


class _TooSlow(Exception):
    """An answer that came drop by drop, or without end."""


def import_client() -> None:
    """See that the client is installed.

    Raises:
        CapabilityMissing: it is not.
    """
    try:
        import httpx  # noqa: F401
    except ImportError as problem:
        raise CapabilityMissing(
            "Talking to a forge needs httpx, which is not installed.",
            why="It is an extra, so that those who use no forge need not have it.",
            fix="Install pytest-gittrix[forge].",
        ) from problem


def _is_limit(headers: httpx.Headers, said: str) -> bool:
    return "retry-after" in headers or headers.get("x-ratelimit-remaining") == "0" or bool(_LIMITS.search(said))


def _limited(shown: str, seconds: float, waiting: float, said: str) -> RateLimited:
    return RateLimited(
        f"{shown} met a rate limit, and the forge asks to wait {seconds:.0f} s: {said}.",
        seconds=seconds,
        why=f"A call waits {waiting:g} s at most; asking sooner makes such limits longer.",
        fix="Try again then, or ask less often.",
    )


def _seconds(text: str | None, now: float) -> float | None:
    """What a Retry-After says, in seconds or as a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None
