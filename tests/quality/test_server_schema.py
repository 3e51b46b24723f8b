"""The daemon does what its OpenAPI description says, whatever it is sent: no request ends in a server error or in a shape that is not told.

Schemathesis makes the requests, as a program of its own against a daemon as a process. With ``PYTEST_GITTRIX_SOAK=1`` it makes many more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.daemon import DaemonProcess, Staff

from pytest_gittrix.git.environment import hermetic_env

EXAMPLES = "200" if os.environ.get("PYTEST_GITTRIX_SOAK") == "1" else "1"
# What is well formed may still ask for what there is not; and the stream of events ends only with the daemon.
LEFT_OUT = ("--exclude-checks", "positive_data_acceptance", "--exclude-path", "/api/events")
PROJECT = """
[[projects]]
id = "0"
durable = {durable!r}
agents = {{ stub = ["true"] }}
"""


def test_every_request_is_answered_as_the_description_says(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    with Staff.open(tmp_path / "staff") as staff:
        file = staff.hires()
        file.write_text(file.read_text() + PROJECT.format(durable=str(staff.app.path)))
        with DaemonProcess(staff.home) as daemon:
            # The id that schemathesis tries first; so some requests find something.
            made = daemon.command("member", "start", "ada", "--kind", "interactive", "--id", "0", cwd=tmp_path)
            assert made.json["status"] == 0, made.json
            ran = subprocess.run(
                [
                    program,
                    "run",
                    f"http://127.0.0.1:{daemon.file.port}/openapi.json",
                    *("--header", f"Authorization: Bearer {daemon.file.key}"),
                    *("--checks", "all", *LEFT_OUT),
                    *("--phases", "coverage,fuzzing,stateful", "--max-examples", EXAMPLES, "--seed", "1", "--no-color"),
                ],
                cwd=tmp_path,
                env=hermetic_env(tmp_path / "nobody"),
                capture_output=True,
                text=True,
                timeout=3000,
                check=False,
            )
            assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr
            assert " passed" in ran.stdout
            assert daemon.end() == (0, "")


def test_the_description_tells_of_every_request_and_its_refusals(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "home") as daemon:
        schema = daemon.request("GET", "/openapi.json").json

    paths = {f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods}
    assert {"GET /health", "GET /api/events", "POST /api/command", "POST /api/sessions/start", "GET /api/orchestrator/sessions"} <= paths
    for methods in schema["paths"].values():
        for operation in methods.values():
            assert "422" not in operation["responses"]
            assert "4XX" in operation["responses"]
