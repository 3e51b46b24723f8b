"""A server of workspaces: a directory for each, served over HTTP by a process of its own, which a test can kill and start again.

``python workspace_server.py DIRECTORY TOKEN PORT`` prints the port that it listens on.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

Files = dict[str, list[str]]


def listing(root: Path) -> Files:
    """Mode and SHA-256 of each file of a workspace, by path."""
    found: Files = {}
    for directory, names, files in os.walk(root):
        for name in (*files, *(name for name in names if os.path.islink(os.path.join(directory, name)))):
            path = Path(directory, name)
            data = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            mode = "120000" if path.is_symlink() else "100755" if path.stat().st_mode & 0o100 else "100644"
            found[os.fsencode(path.relative_to(root)).decode("latin-1")] = [mode, hashlib.sha256(data).hexdigest()]
    return found


def put(path: Path, mode: str, data: bytes) -> None:
    """Put a file or a link at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if mode == "120000":
        path.symlink_to(os.fsdecode(data))
    else:
        path.write_bytes(data)
        path.chmod(0o755 if mode == "100755" else 0o644)


def tag_of(files: Files) -> str:
    """The tag of a workspace in one state."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def trouble_of(root: Path) -> Path:
    """The file beside a server's directory that says what it is to do wrongly."""
    return root.with_name(f"{root.name}.trouble")


def requests_of(root: Path) -> Path:
    """The file beside a server's directory with a line for each request: its connection and its method."""
    return root.with_name(f"{root.name}.requests")


class Handler(BaseHTTPRequestHandler):
    """Answers for one directory."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root: Path
    token: str

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self) -> None:
        """Answer one request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with requests_of(self.root).open("a") as log:
            log.write(f"{self.client_address[1]} {self.command}\n")
        parts = urlsplit(self.path)
        _, name, *below = parts.path.split("/", 3)
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send(401, b"no such token")
        elif below:
            self.on_file(self.root / name / os.fsdecode(unquote_to_bytes(below[-1])), parse_qs(parts.query).get("mode", [""])[0], body)
        else:
            self.on_workspace(self.root / name, body)

    do_GET = do_PUT = do_DELETE = answer  # noqa: N815 - the names that the base class looks for

    def on_file(self, path: Path, mode: str, body: bytes) -> None:
        """Give, put or delete one file."""
        if self.command == "PUT":
            put(path, mode, body)
        elif not os.path.lexists(path):
            return self.send(404, b"no such file")
        elif self.command == "DELETE":
            path.unlink()
        else:
            return self.send(200, os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes())
        return self.send(204)

    def on_workspace(self, root: Path, body: bytes) -> None:
        """Make, list or remove one workspace."""
        if self.command == "PUT":
            if root.exists():
                return self.send(412, b"there is one of that name")
            root.mkdir()
            for path, (mode, data) in json.loads(body)["files"].items():
                put(root / os.fsdecode(path.encode("latin-1")), mode, base64.b64decode(data))
            return self.send(201)
        if not root.is_dir():
            return self.send(204 if self.command == "DELETE" else 404)
        files = listing(root)
        if self.command == "GET":
            unchanged = self.headers.get("If-None-Match") == tag_of(files)
            return self.send(304 if unchanged else 200, b"" if unchanged else json.dumps({"files": files}).encode(), tag_of(files))
        if self.headers.get("If-Match") not in (None, tag_of(files)):
            return self.send(412, b"changed meanwhile")
        shutil.rmtree(root)
        return self.send(204)

    def send(self, status: int, body: bytes = b"", tag: str = "") -> None:
        """Send an answer, or what the trouble is to be."""
        trouble = trouble_of(self.root).read_text() if trouble_of(self.root).exists() else ""
        if trouble == f"lost answer to {self.command}":
            trouble_of(self.root).unlink()
            self.close_connection = True
            return
        if tag and status == 200 and trouble.startswith("list "):
            body = trouble.removeprefix("list ").encode()
        if tag and trouble == "no tag":
            tag = ""
        if tag and trouble == "304":
            status = 304
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status not in (204, 304):
            for at in range(len(body) if trouble == "drip" else 1):
                self.wfile.write(body[at : at + 1] if trouble == "drip" else body)
                time.sleep(0.05 if trouble == "drip" else 0)


@dataclass
class WorkspaceServer:
    """The process that serves workspaces.

    Attributes:
        root: the directory of the workspaces.
        token: what it wants.
        port: where it listens; the same after a restart.
    """

    root: Path
    token: str = "hush-workspaces"
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def trouble(self, what: str) -> Iterator[None]:
        """In a block, the server fails: ``lost answer to METHOD`` (once), ``no tag``, ``304``, ``drip``, or ``list`` and what it lists."""
        trouble_of(self.root).write_text(what)
        try:
            yield
        finally:
            trouble_of(self.root).unlink(missing_ok=True)

    def requests(self) -> list[str]:
        """The connection and the method of each request so far."""
        return requests_of(self.root).read_text().splitlines()

    @property
    def address(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on the port that it had."""
        command = [sys.executable, "-I", __file__, str(self.root), self.token, str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def workspace_server(root: Path) -> Iterator[WorkspaceServer]:
    """A server of workspaces on a directory, which is made."""
    root.mkdir()
    server = WorkspaceServer(root)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def main(directory: str, token: str, port: str) -> None:
    """Serve for ever."""
    Handler.root, Handler.token = Path(directory), token
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:4])
