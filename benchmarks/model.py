"""What an exchange with the model of a world costs: the server's own processor time, from a script and from a tape.

The client is another process, so that its time is not counted. Each request brings the whole conversation again, as agents send it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import TOTAL, Measurement, Phases, interleave, summarise
from pytest_gittrix.model import ModelServer

SIZES: Final = (5_000, 50_000, 200_000)
"""Bytes of a request."""
EXCHANGES: Final = 20

_CLIENT: Final = """
import http.client, json, sys
port, size, exchanges = map(int, sys.argv[1:])
line = http.client.HTTPConnection("127.0.0.1", port)
messages = [{"role": "user", "content": "x" * size}]
for number in range(exchanges):
    body = json.dumps({"model": "any", "stream": True, "messages": messages}).encode()
    line.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    text = ""
    for data in line.getresponse().read().decode().splitlines():
        if data.startswith("data: {"):
            for choice in json.loads(data[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"and {number}"}]
"""


def model(*, quick: bool = False) -> list[Measurement]:
    """Some exchanges of one conversation at each size of a request."""
    found: list[Measurement] = []
    for size in SIZES[: 2 if quick else None]:
        with _variants(size) as variants:
            turns = interleave(variants, rounds=5 if quick else 20, seconds=20 if quick else 60)
            found += summarise("an exchange with a model", turns, size=size)
    return found


@contextmanager
def _variants(size: int) -> Iterator[dict[str, Callable[[int], Phases]]]:
    with tempfile.TemporaryDirectory(prefix="gittrix-bench-") as root:
        tape = Path(root, "tape.jsonl")
        with ModelServer() as server:
            server.tape(tape, "rewrite")
            server.script(*_answers())
            _ask(server, size)
            server.check()
        yield {"script": partial(_turn, size, None), "tape": partial(_turn, size, tape)}


def _turn(size: int, tape: Path | None, _: int) -> Phases:
    with ModelServer() as server:
        if tape is None:
            server.script(*_answers())
        else:
            server.tape(tape, "replay")
        began, at = time.process_time(), time.perf_counter()
        _ask(server, size)
        took, waited = time.process_time() - began, time.perf_counter() - at
        server.check()
    return {TOTAL: took * 1e3 / EXCHANGES, "by the clock, with its client": waited * 1e3 / EXCHANGES}


def _answers() -> list[str]:
    return [json.dumps({"number": number, "text": "word " * 50}) for number in range(EXCHANGES)]


def _ask(server: ModelServer, size: int) -> None:
    port = server.url.rpartition(":")[2]
    subprocess.run([sys.executable, "-c", _CLIENT, port, str(size), str(EXCHANGES)], check=True)
