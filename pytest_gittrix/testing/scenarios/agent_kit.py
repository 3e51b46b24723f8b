"""Agents as real processes that follow a script, stop where a test wants them to, and end with the test whatever they do.

A script becomes a program on the disk, which any engine can start by its command or by a name in the ``PATH``. Test and program meet
through named pipes (``rendezvous``), without a sleep.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.process_tree import ProcessTree
from pytest_gittrix.testing.scenarios import agent_program
from pytest_gittrix.testing.scenarios.agent_program import MARK
from pytest_gittrix.testing.scenarios.rendezvous import Rendezvous, ScriptKit

_NAP: Final = 0.005
_GRACE: Final = 0.5  # seconds without a message after which the test no longer waits for processes that are all gone
_ROUNDS: Final = 3
ACTIVITY: Final = ".ao/activity.jsonl"
"""The file in which an agent records its activity (docs/explanation/you-know-agent-orchestrator.md)."""


@dataclass(frozen=True, slots=True)
class ScriptedProcess:
    """A process that follows a script, or did.

    Attributes:
        name: the name of its script.
        owner: its identity.
    """

    name: str
    owner: Owner

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.owner.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs, stopped or not."""
        return self.owner.alive() is not False


class AgentKit(ScriptKit):
    """Scripts for agents, and the test's side of them.

    Args:
        directory: for its programs and pipes; by default a temporary one, which is removed with the kit.
        timeout: real seconds to wait for a process before it counts as stuck.

    Attributes:
        bin: a directory for the ``PATH`` with the programs that ``install`` made.

    Raises:
        CapabilityMissing: the system has no named pipes.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, timeout: float = 30.0) -> None:
        super().__init__(directory, "gittrix-agents-")
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        self._lines_read: list[str] = []
        self._signals: list[str] = []
        self._mark = os.urandom(8).hex()
        self._numbers = count()
        self._processes: list[ScriptedProcess] = []
        self._agents: list[AgentProcess] = []
        self._rendezvous = Rendezvous(
            self.directory,
            timeout=timeout,
            grace=_GRACE,
            receive=self._receive,
            over=lambda: self._gone(None),
            all_over="Every process is gone",
            report=lambda: "See what the processes printed before they ended.",
        )

    def script(self, name: str = "agent") -> AgentScript:
        """A script without steps, to add some to: ``agents.script().say("hello").at("said").exits(3)``."""
        return AgentScript(self, name)

    def install(self, name: str, script: AgentScript) -> Path:
        """Write a program of a name into ``bin`` that follows a script, replacing an earlier one; gives its path."""
        return script._write(self.bin / name)

    def start(self, script: AgentScript, *, workspace: Path | str | None = None, env: Mapping[str, str] | None = None) -> AgentProcess:
        """Start a script as an agent, as the engine starts agents (``start_agent``); the kit stops it at the end.

        Args:
            script: the script of the agent.
            workspace: its working directory; a new empty directory by default.
            env: variables on top of a hermetic environment.
        """
        number = next(self._numbers)
        directory = Path(workspace) if workspace is not None else self.directory / f"workspace-{number}"
        if workspace is None:
            directory.mkdir()
        home = hermetic_env(self.directory / "home", base={"PATH": os.environ.get("PATH", os.defpath)})
        agent = start_agent(
            script.command, directory=self.directory / f"agent-{number}", workspace=directory, environment={**home, **(env or {})}
        )
        self._agents.append(agent)
        return agent

    def processes(self, name: str | None = None) -> list[ScriptedProcess]:
        """The processes that began a script, of a name or of any, in the order in which they began; dead ones too."""
        self._listen()
        return [one for one in self._processes if name in (None, one.name)]

    @property
    def heard(self) -> list[str]:
        """The lines that scripts have read from their input, in order."""
        self._listen()
        return [*self._lines_read]

    @property
    def asked(self) -> list[str]:
        """The names of the signals by which polite scripts were ended, in order."""
        self._listen()
        return [*self._signals]

    def alive(self, name: str | None = None) -> list[int]:
        """The ids of the processes that still run."""
        return [one.pid for one in self.processes(name) if one.alive]

    def gone(self, name: str | None = None, timeout: float | None = None) -> bool:
        """Wait until at least one script of a name (or of any) has begun and none of them runs; whether that happened in time."""
        return self._wait_until(lambda: self._gone(name), timeout)

    def _gone(self, name: str | None) -> bool:
        if name is None and any(agent.observe().state == "alive" for agent in self._agents):
            return False  # one that was just started is not heard of yet
        return bool(self.processes(name)) and not self.alive(name)

    def _end(self) -> None:
        """Kill every process that follows a script, and all that it started."""
        self._rendezvous.dismiss()
        for agent in self._agents:
            agent.stop(grace=0)
        for _ in range(_ROUNDS):  # a process that was about to begin is found in the next round
            ProcessTree(mark=self._mark, variable=MARK).end()
            for one in self.processes():
                if one.alive:
                    ProcessTree(one.owner).end()
            if not self.alive():
                break

    def _receive(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"begun": name, "pid": pid, "start_time": start_time}:
                self._processes.append(ScriptedProcess(name, Owner.here(pid, start_time)))
            case {"heard": line}:
                self._lines_read.append(line)
            case {"asked": name}:
                self._signals.append(name)


class AgentScript:
    """The steps of an agent, added one by one; ``command`` makes a program of them.

    Args:
        kit: the kit that the script belongs to.
        name: the name of its processes in the kit.
    """

    def __init__(self, kit: AgentKit, name: str) -> None:
        self.name = name
        self._kit = kit
        self._steps: list[tuple[str, dict[str, Any]]] = []
        self._code = 0

    @property
    def command(self) -> list[str]:
        """The command of a new program with the steps so far; more arguments can be added."""
        return [str(self._write(self._kit.directory / f"program-{next(self._kit._numbers)}"))]

    def at(self, point: str) -> Self:
        """Stop here until the test says ``agents.go(point)``; ``agents.wait_for(point)`` returns when the agent is here."""
        return self._add("at", point=point, pipe=self._kit._rendezvous.point(point))

    def hang(self) -> Self:
        """Do nothing until the kit is closed, or the process of the test is gone."""
        return self._add("hang")

    def deaf(self) -> Self:
        """Ignore SIGTERM, SIGINT, SIGHUP and SIGQUIT from here on."""
        return self._add("deaf")

    def polite(self, code: int = 0) -> Self:
        """From here on, exit with a status on one of these signals, and report the signal (``agents.asked``)."""
        return self._add("polite", code=_status(code))

    def say(self, text: str, *, error: bool = False) -> Self:
        """Write a line to standard output, or to standard error."""
        return self._add("say", text=text, error=error)

    def fill(self, size: int) -> Self:
        """Write so many bytes to standard output, in numbered lines of 64 bytes."""
        return self._add("fill", size=size)

    def read(self) -> Self:
        """Wait for a line of input, and report it (``agents.heard``)."""
        return self._add("read")

    def write(self, path: str, text: str) -> Self:
        """Write a file; a relative path is in its workspace."""
        return self._add("write", path=path, text=text, more=False)

    def append(self, path: str, text: str) -> Self:
        """Append to a file."""
        return self._add("write", path=path, text=text, more=True)

    def line(self, path: str, **fields: Any) -> Self:
        """Append a line of JSON to a file, a heartbeat; ``ts`` is the real time unless it is given."""
        return self._add("line", path=path, fields=fields)

    def activity(self, state: str, path: str = ACTIVITY, **fields: Any) -> Self:
        """Append a line to its activity log: ``activity("waiting_input")``."""
        return self.line(path, state=state, source="native", **fields)

    def facts(self, path: str = "facts.json") -> Self:
        """Write its facts as JSON: ``pid``, ``parent``, ``group``, ``session``, ``directory``, ``arguments``, ``environment``."""
        return self._add("facts", path=path)

    def run(self, *command: str) -> Self:
        """Run a program in its working directory; if that fails, exit with its status."""
        return self._add("run", command=[*command])

    def commit(self, message: str = "Work", files: Mapping[str, str] | None = None) -> Self:
        """Write files and commit them with git in its working directory; without files, commit everything that changed."""
        return self._add("commit", message=message, files=dict(files or {}), git=git_binary())

    def spawn_child(self, script: AgentScript | None = None, *, scrub: bool = False) -> Self:
        """Start another script as a child, and go on once the child waits for something or has ended.

        By default, the child is deaf and hangs. With ``scrub``, it has an empty environment.
        """
        return self._spawn(script or self._kit.script("child").deaf().hang(), daemon=False, scrub=scrub)

    def spawn_daemon(self, script: AgentScript | None = None, *, scrub: bool = False) -> Self:
        """As ``spawn_child``, but the other script leaves the session, the process group, the parent and the output."""
        return self._spawn(script or self._kit.script("daemon").deaf().hang(), daemon=True, scrub=scrub)

    def kill_itself(self, number: int = signal.SIGKILL) -> Self:
        """Die by a signal."""
        return self._add("kill", number=int(number))

    def exits(self, code: int) -> Self:
        """Set the status with which it exits after its last step; 0 by default."""
        self._code = _status(code)
        return self

    def _spawn(self, script: AgentScript, *, daemon: bool, scrub: bool) -> Self:
        return self._add("spawn", script=str(script._write_spec()), daemon=daemon, scrub=scrub)

    def _add(self, step: str, /, **arguments: Any) -> Self:
        self._steps.append((step, arguments))
        return self

    def _write_spec(self) -> Path:
        file = self._kit.directory / f"script-{next(self._kit._numbers)}.json"
        spec = {"name": self.name, "kit": str(self._kit.directory), "steps": self._steps, "code": self._code}
        file.write_text(json.dumps(spec), encoding="utf-8")
        return file

    def _write(self, program: Path) -> Path:
        argv = [sys.executable, "-I", "-S", os.path.abspath(agent_program.__file__), str(self._write_spec())]
        text = f'#!/bin/sh\n{MARK}={self._kit._mark} exec {shlex.join(argv)} "$@"\n'
        # Put in its place whole, so that a program that already runs is not disturbed.
        write_file(program, text.encode(), mode=0o755, prefix=f".{program.name}.")
        return program


Script = AgentScript
"""The older name of ``AgentScript``."""


def _status(code: int) -> int:
    if not 0 <= code <= 255:
        raise InvalidInput(f"{code} is no exit status.", fix="Use 0 to 255; kill_itself() ends by a signal.")
    return code
