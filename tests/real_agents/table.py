"""Published coding agents as a table: how each is installed, and how it finds our model.

    python -m tests.real_agents.table [NAME ...]

installs them, each into a directory of its own under ``.venv-agents``; ``make agents`` does so, and runs the tests here. Together they have
1.4 GB, and none of it is part of the repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Final, Protocol

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.programs import Programs
from pytest_gittrix.model import call_any, edit, stop

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALLED: Final = ROOT / ".venv-agents"

TASK: Final = "Make new.py, and let app.py say v2"
FILES: Final = {"app.py": "v1\n"}
SCRIPT: Final = (call_any(shell="cat app.py && echo 'x = 1' > new.py"), edit("app.py", "v2\n"), stop("Both are done."))
"""What the model answers to any of them."""
RESULT: Final = {"app.py": "v2\n", "new.py": "x = 1\n"}
"""The files after it."""


class Model(Protocol):
    """A model that programs reach by ``network=[model]``."""


class AgentSession(Protocol):
    """A session as an agent has it."""

    def programs(self, **options: object) -> Programs:
        """What runs its programs."""


@dataclass(frozen=True, eq=False)
class Agent:
    """A published agent.

    Attributes:
        name: what its makers call it.
        package: the npm package.
        version: the one that is installed.
        protocol: in which it asks its model.
        program: the command that the package installs.
        arguments: that make it do a task without a person; ``$TASK`` is the task and ``$URL`` the model's address.
        variables: that it gets beside those of ``gittrix_model``.
        files: in its home, by path, for agents that take the model's address from a file; written as ``arguments`` are.
    """

    name: str
    package: str
    version: str
    protocol: str
    program: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """Where it is installed."""
        return INSTALLED / f"{self.program}-{self.version}"

    @property
    def executable(self) -> Path:
        """Its command."""
        return self.directory / "node_modules" / ".bin" / self.program

    @property
    def missing(self) -> str | None:
        """Why it cannot be run here; None if it can."""
        if shutil.which("node") is None:
            return "there is no node"
        return None if self.executable.exists() else f"{self.name} {self.version} is not installed: make agents"

    @property
    def row(self) -> str:
        """How it finds a model, as a row of the page but for its last cell, which has the seconds that a run took."""
        command = " ".join([self.program, *("TASK" if one == "$TASK" else one for one in self.arguments)])
        needs = ", ".join(f"`{one}`" for one in (*(f"{name}={value}" for name, value in self.variables.items()), *self.files))
        return f"| {self.name} {self.version} | {self.protocol} | `{command}` | {needs} |"

    def install(self) -> None:
        """Install it, unless it is. Raises CalledProcessError: that failed."""
        if not self.executable.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(self.directory)]
            subprocess.run([*command, f"{self.package}@{self.version}"], stdin=subprocess.DEVNULL, timeout=900, check=True)

    def run(self, session: AgentSession, model: Model) -> Finished:
        """Have it do the task in a jail, from which it reaches the model and nothing else."""
        node = Path(shutil.which("node") or "").resolve().parent.parent
        with session.programs(confine="jail", network=[model], readable=[self.directory, node]) as programs:
            url = programs.run(["printenv", "ANTHROPIC_BASE_URL"]).stdout.decode().strip()

            def filled(text: str) -> str:
                return Template(text).substitute(URL=url, TASK=TASK)

            for path, text in self.files.items():
                file = programs.home / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(filled(text), encoding="utf-8")
            return programs.run([str(self.executable), *map(filled, self.arguments)], environment=self.variables, timeout=300)


AGENTS: Final = (
    Agent(
        name="Claude Code",
        package="@anthropic-ai/claude-code",
        version="2.1.197",
        protocol="Anthropic Messages",
        program="claude",
        arguments=("--bare", "-p", "$TASK", "--dangerously-skip-permissions"),
        variables={"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    ),
    Agent(
        name="Codex",
        package="@openai/codex",
        version="0.171.0",
        protocol="OpenAI Responses",
        program="codex",
        arguments=("exec", "--dangerously-bypass-approvals-and-sandbox", "$TASK"),
        files={
            ".codex/config.toml": """\
model = "test-model"
model_provider = "test"
check_for_update_on_startup = false
[model_providers.test]
name = "test"
base_url = "$URL/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
[analytics]
enabled = false
[features]
plugins = false
apps = false
"""
        },
    ),
    Agent(
        name="Gemini CLI",
        package="@google/gemini-cli",
        version="0.61.0",
        protocol="Gemini",
        program="gemini",
        arguments=("-m", "gemini-2.5-pro", "--yolo", "-p", "$TASK"),
        variables={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
        files={
            ".gemini/settings.json": """\
{"security": {"auth": {"selectedType": "gemini-api-key"}},
 "privacy": {"usageStatisticsEnabled": false},
 "general": {"enableAutoUpdate": false}}
"""
        },
    ),
    Agent(
        name="opencode",
        package="opencode-ai",
        version="1.18.33",
        protocol="Chat Completions",
        program="opencode",
        arguments=("run", "$TASK"),
        variables={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
        files={
            ".config/opencode/opencode.json": """\
{"model": "test/test-model",
 "small_model": "test/test-model",
 "provider": {"test": {"npm": "@ai-sdk/openai-compatible",
                       "options": {"baseURL": "$URL/v1", "apiKey": "any"},
                       "models": {"test-model": {}}}}}
"""
        },
    ),
    Agent(
        name="pi",
        package="@mariozechner/pi-coding-agent",
        version="0.73.1",
        protocol="Chat Completions",
        program="pi",
        arguments=("-p", "--provider", "test", "--model", "test-model", "$TASK"),
        files={
            ".pi/agent/models.json": """\
{"providers": {"test": {"baseUrl": "$URL/v1", "api": "openai-completions", "apiKey": "OPENAI_API_KEY",
                        "models": [{"id": "test-model"}]}}}
"""
        },
    ),
    Agent(
        name="Qwen Code",
        package="@qwen-code/qwen-code",
        version="0.15.10",
        protocol="Chat Completions",
        program="qwen",
        arguments=("--yolo", "-m", "test-model", "-p", "$TASK"),
        files={
            ".qwen/settings.json": """\
{"security": {"auth": {"selectedType": "openai"}},
 "privacy": {"usageStatisticsEnabled": false}}
"""
        },
    ),
)


def named(program: str) -> Agent:
    """The agent of a command."""
    return next(one for one in AGENTS if one.program == program)


if __name__ == "__main__":
    for agent in [named(name) for name in sys.argv[1:]] or AGENTS:
        print(f"{agent.name} {agent.version}: {agent.directory}", flush=True)
        agent.install()
