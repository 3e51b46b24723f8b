"""A forge on this machine: a real HTTP server with the needed part of GitHub's REST API, which also serves its repository to git.

Its state is in ``forge_state``. Git fetches from and pushes to its real bare repository through ``git http-backend`` at ``git_url``. It can
fail as forges do: rate limits, 5xx, slowness, cut connections, refused tokens, small pages, invalid answers. It listens on loopback only.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import parse_qsl, quote, urlsplit

from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.backends.forge.http_client import Patience
from pytest_gittrix.clock.clock import SystemClock
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.testing.repos.durable import DurableRepo
from pytest_gittrix.testing.repos.forge_state import ForgeRefusal, ForgeState, Json
from pytest_gittrix.testing.repos.remote_repos import BareRemote

FaultKind = Literal["rate_limit", "secondary_limit", "status", "redirect", "slow", "cut", "cut_after", "garbage", "truncated"]

_PER_PAGE: Final = 30
_MOST_PER_PAGE: Final = 100
_LONGEST: Final = 600.0
_TEXT: Final = "text/html; charset=utf-8"


@dataclass
class ForgeFault:
    """A failure of some of the next requests.

    Attributes:
        kind: ``rate_limit`` (403, spent until ``seconds`` from now), ``secondary_limit`` (403 with Retry-After), ``status`` (with
            ``status``), ``redirect`` (302, to the same path below ``to``), ``slow`` (answers after ``seconds``), ``cut`` (no answer,
            nothing done), ``cut_after`` (done, no answer), ``garbage`` (200, and no JSON), ``truncated`` (half of the answer).
        times: how many requests; None for all.
        on: text that the request line must contain, such as ``POST /`` or ``git-receive-pack``.
        seconds, status, to: see ``kind``.
    """

    kind: FaultKind
    times: int | None = 1
    on: str = ""
    seconds: float = 0.0
    status: int = 503
    to: str = ""


@dataclass
class HttpAnswer:
    """The answer to a request: status, body, content type and more headers."""

    status: int
    body: bytes
    kind: str = "application/json; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
        """Create an answer in JSON."""
        return cls(status, json.dumps(payload).encode(), headers=dict(headers or {}))


class ForgeServer:
    """A forge with one repository, served until it is closed. A context manager.

    Args:
        remote: the bare repository behind it.
        name: ``owner/name`` at the forge.
        tokens: the tokens it accepts; empty accepts every request.
        page: how many items a page has, whatever is requested; as requested by default.
        when: returns the instant of merges and the start of rate limits; the real time by default.

    Attributes:
        state: its pull requests, checks, reviews and issues, and the methods to script them.
        remote: as given.
        requests: ``"<method> <path and query>"`` of each request, in order.
    """

    def __init__(
        self,
        remote: BareRemote,
        name: str = "acme/app",
        *,
        tokens: Collection[str] = (),
        page: int | None = None,
        when: Callable[[], datetime] | None = None,
    ) -> None:
        self.remote = remote
        self.tokens = set(tokens)
        self.requests: list[str] = []
        self._when = when if when is not None else SystemClock().now
        # The server reads in other threads, so it has its own object.
        self._repo = DurableRepo(remote.path, remote.repo.branch, when=self._when)
        self.state = ForgeState(self._repo, name, self._when)
        self._page = page
        self._faults: list[ForgeFault] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._clients = ExitStack()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="gittrix-forge", daemon=True)
        self._thread.start()

    @property
    def web(self) -> str:
        """Address of its web pages, which do not exist."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """Address of its REST API, the base URL of a client."""
        return f"{self.web}/api/v3"

    @property
    def git_url(self) -> str:
        """Address of the repository for git."""
        return f"{self.web}/{self.state.name}.git"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; requests under way are cut. Closing again does nothing."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._clients.close()
        self._repo.close()

    def forge(self, *, token: str | None = None, patience: Patience | None = None) -> GitHubForge:
        """Return a client of this forge, which is closed with it.

        Args:
            token: the token of the client; an accepted one by default.
            patience: how long its calls may take; shorter than usual by default, since the forge is on this machine.

        Raises:
            CapabilityMissing: the client of a forge is not installed (``pytest-gittrix[forge]``).
        """
        used = token if token is not None else next(iter(sorted(self.tokens)), None)
        given = patience if patience is not None else Patience(timeout=10.0, waiting=2.0)
        return self._clients.enter_context(GitHubForge(self.state.name, base_url=self.url, token=used, patience=given))

    def fail(
        self, kind: FaultKind, *, times: int | None = 1, on: str = "", seconds: float = 0.0, status: int = 503, to: str = ""
    ) -> ForgeFault:
        """Let the next requests fail; see ``ForgeFault``. Faults are used up in the order in which they were added."""
        fault = ForgeFault(kind, times, on, seconds, status, to)
        with self._lock:
            self._faults.append(fault)
        return fault

    def recover(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    # Serving -------------------------------------------------------------------------------------------------------------------

    def fault_for(self, line: str) -> ForgeFault | None:
        """Record a request, and return the fault that it meets, or None."""
        with self._lock:
            self.requests.append(line)
            for fault in self._faults:
                if fault.on in line and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def pause(self, seconds: float) -> bool:
        """Wait for so many seconds; whether the forge was closed meanwhile."""
        return self._closing.wait(min(seconds, _LONGEST))

    def limited(self, fault: ForgeFault, path: str) -> HttpAnswer | None:
        """Return the answer of a fault that is a status; None for other faults."""
        if fault.kind == "rate_limit":
            reset = int(self._when().timestamp() + fault.seconds)
            headers = {"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "0", "x-ratelimit-reset": str(reset)}
            return HttpAnswer.of({"message": "API rate limit exceeded for user ID 1."}, 403, headers)
        if fault.kind == "secondary_limit":
            message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
            return HttpAnswer.of({"message": message}, 403, {"retry-after": f"{fault.seconds:g}"})
        if fault.kind == "redirect":
            return HttpAnswer.of({"message": "Found"}, 302, {"location": f"{fault.to}{path}"})
        return HttpAnswer.of({"message": "as scripted"}, fault.status) if fault.kind == "status" else None

    def allowed(self, authorization: str | None) -> str | None:
        """Return the user of a request, or None if its token is refused: ``Bearer``, ``token``, or the password of ``Basic``."""
        if not self.tokens:
            return "somebody"
        scheme, _, value = (authorization or "").partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                value = base64.b64decode(value).decode().partition(":")[2]
        return "somebody" if value in self.tokens else None

    def rest(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> HttpAnswer:
        """Answer a request to the API."""
        inside = path.removeprefix("/api/v3")
        try:
            for verb, pattern, serve in _ROUTES:
                match = re.fullmatch(pattern.replace("REPO", re.escape(f"/repos/{self.state.name}")), inside)
                if verb == method and match is not None:
                    given = _parsed(body)
                    with self.state.lock:
                        return serve(self, match, query, given, path)
        except ForgeRefusal as refusal:
            return HttpAnswer.of(refusal.body, refusal.status)
        return HttpAnswer.of({"message": "Not Found"}, 404)

    def paged(self, items: list[Json], query: Mapping[str, str], path: str, *, below: str | None = None) -> HttpAnswer:
        """Return one page of a list, with the address of the next one in ``Link``."""
        size = self._page or max(1, min(int(query.get("per_page", _PER_PAGE)), _MOST_PER_PAGE))
        page = max(1, int(query.get("page", 1)))
        here = items[(page - 1) * size : page * size]
        headers = {}
        if page * size < len(items):
            parameters = "&".join(f"{name}={quote(value)}" for name, value in {**query, "page": str(page + 1)}.items())
            headers["link"] = f'<{self.web}{path}?{parameters}>; rel="next"'
        return HttpAnswer.of(here if below is None else {"total_count": len(items), below: here}, headers=headers)

    def git(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, user: str) -> HttpAnswer:
        """Answer a request of git through ``git http-backend``."""
        environment = hermetic_env() | {
            "GIT_PROJECT_ROOT": os.path.dirname(self.remote.path),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_HTTP_MAX_REQUEST_BUFFER": "100M",
            # Only the hooks of the repository itself run.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "core.hooksPath",
            "GIT_CONFIG_VALUE_0": str(self.remote.path / "hooks"),
            "REQUEST_METHOD": method,
            "PATH_INFO": f"/{self.remote.path.name}{path.removeprefix(f'/{self.state.name}.git')}",
            "QUERY_STRING": query,
            "REMOTE_USER": user,
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_TYPE": headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
            "GIT_PROTOCOL": headers.get("git-protocol", ""),
        }
        done = subprocess.run([git_binary(), "http-backend"], input=body, env=environment, cwd="/", capture_output=True, check=False)
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n") if ": " in line)
        status = int(fields.pop("Status", "200" if done.returncode == 0 else "500").split()[0])
        return HttpAnswer(status, rest, fields.pop("Content-Type", _TEXT), {**fields, "Cache-Control": "no-cache"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The forge ends waiting threads itself; closing does not wait for a client that went away.
    block_on_close = False

    def __init__(self, forge: ForgeServer) -> None:
        self.forge = forge
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; ``ForgeServer.requests`` records the requests."""

    def _answer(self) -> None:
        forge, parts = self.server.forge, urlsplit(self.path)
        body = self._body()
        fault = forge.fault_for(f"{self.command} {self.path}")
        if fault is not None and (fault.kind == "cut" or (fault.kind == "slow" and forge.pause(fault.seconds))):
            return self._cut()
        limited = forge.limited(fault, self.path) if fault is not None else None
        answer = limited if limited is not None else self._served(parts.path, parts.query, body)
        if fault is not None and fault.kind == "cut_after":
            return self._cut()
        if fault is not None and fault.kind == "garbage":
            answer = HttpAnswer(200, b'<html>{"number": 1', _TEXT)
        self._send(answer, half=fault is not None and fault.kind == "truncated")
        return None

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - named by the standard library

    def _served(self, path: str, query: str, body: bytes) -> HttpAnswer:
        forge = self.server.forge
        user = forge.allowed(self.headers.get("authorization"))
        is_git = path.startswith(f"/{forge.state.name}.git/")
        if user is None:
            challenge = {"www-authenticate": 'Basic realm="forge"'} if is_git else {}
            return HttpAnswer.of({"message": "Bad credentials"}, 401, challenge)
        if is_git:
            headers = {name.lower(): value for name, value in self.headers.items()}
            return forge.git(self.command, path, query, headers, body, user)
        return forge.rest(self.command, path, dict(parse_qsl(query, keep_blank_values=True)), body)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, answer: HttpAnswer, *, half: bool) -> None:
        self.send_response(answer.status)
        for name, value in {"content-type": answer.kind, **answer.headers, "content-length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) // 2] if half else answer.body)
        if half:
            self._cut()

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


Serve = Callable[[ForgeServer, re.Match[str], Mapping[str, str], Json, str], HttpAnswer]


def _parsed(body: bytes) -> Json:
    try:
        given = json.loads(body) if body else {}
    except ValueError as error:
        raise ForgeRefusal(400, "Problems parsing JSON") from error
    if not isinstance(given, dict):
        raise ForgeRefusal(422, "Body should be a JSON object")
    return given


def _list_pulls(forge: ForgeServer, _match: re.Match[str], query: Mapping[str, str], _body: Json, path: str) -> HttpAnswer:
    found = [forge.state.pull_json(pull, forge.web, whole=False) for pull in forge.state.list_pulls(query)]
    return forge.paged(found, query, path)


def _open_pull(forge: ForgeServer, _match: re.Match[str], _query: Mapping[str, str], body: Json, _path: str) -> HttpAnswer:
    return HttpAnswer.of(forge.state.pull_json(forge.state.open_pull(body), forge.web, whole=True), 201)


def _get_pull(forge: ForgeServer, match: re.Match[str], _query: Mapping[str, str], _body: Json, _path: str) -> HttpAnswer:
    return HttpAnswer.of(forge.state.pull_json(forge.state.pull(int(match[1])), forge.web, whole=True))


def _edit_pull(forge: ForgeServer, match: re.Match[str], _query: Mapping[str, str], body: Json, _path: str) -> HttpAnswer:
    return HttpAnswer.of(forge.state.pull_json(forge.state.edit_pull(int(match[1]), body), forge.web, whole=True))


def _merge_pull(forge: ForgeServer, match: re.Match[str], _query: Mapping[str, str], _body: Json, _path: str) -> HttpAnswer:
    return HttpAnswer.of({"sha": forge.state.merge(int(match[1])), "merged": True, "message": "Pull Request successfully merged"})


def _reviews(forge: ForgeServer, match: re.Match[str], query: Mapping[str, str], _body: Json, path: str) -> HttpAnswer:
    given = enumerate(forge.state.pull(int(match[1])).reviews, start=1)
    return forge.paged([{"id": number, "user": {"login": name}, "state": verdict} for number, (name, verdict) in given], query, path)


def _check_runs(forge: ForgeServer, match: re.Match[str], query: Mapping[str, str], _body: Json, path: str) -> HttpAnswer:
    runs = enumerate(forge.state.runs_at(match[1]), start=1)
    found = [forge.state.run_json(number, name, state, forge.web) for number, (name, state) in runs]
    return forge.paged(found, query, path, below="check_runs")


def _statuses(forge: ForgeServer, match: re.Match[str], query: Mapping[str, str], _body: Json, path: str) -> HttpAnswer:
    states = forge.state.statuses_at(match[1])
    found = [{"context": name, "state": state, "target_url": None} for name, state in states]
    return forge.paged(found, query, path, below="statuses")


def _list_issues(forge: ForgeServer, _match: re.Match[str], query: Mapping[str, str], _body: Json, path: str) -> HttpAnswer:
    return forge.paged(forge.state.topics_json(forge.web), query, path)


def _open_issue(forge: ForgeServer, _match: re.Match[str], _query: Mapping[str, str], body: Json, _path: str) -> HttpAnswer:
    return HttpAnswer.of(forge.state.issue_json(forge.state.open_issue(body), forge.web), 201)


def _comment(forge: ForgeServer, match: re.Match[str], _query: Mapping[str, str], body: Json, _path: str) -> HttpAnswer:
    number = forge.state.comment(int(match[1]), body)
    return HttpAnswer.of({"id": number, "body": body["body"], "html_url": f"{forge.web}/comments/{match[1]}-{number}"}, 201)


_ROUTES: Final[tuple[tuple[str, str, Serve], ...]] = (
    ("GET", "REPO/pulls", _list_pulls),
    ("POST", "REPO/pulls", _open_pull),
    ("GET", "REPO/pulls/([0-9]+)", _get_pull),
    ("PATCH", "REPO/pulls/([0-9]+)", _edit_pull),
    ("PUT", "REPO/pulls/([0-9]+)/merge", _merge_pull),
    ("GET", "REPO/pulls/([0-9]+)/reviews", _reviews),
    ("GET", "REPO/commits/([^/]+)/check-runs", _check_runs),
    ("GET", "REPO/commits/([^/]+)/status", _statuses),
    ("GET", "REPO/issues", _list_issues),
    ("POST", "REPO/issues", _open_issue),
    ("POST", "REPO/issues/([0-9]+)/comments", _comment),
)
