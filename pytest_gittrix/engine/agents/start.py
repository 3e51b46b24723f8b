"""Starting an agent's process: by its own supervisor, and not before its identity is on the disk.

The supervisor (``supervisor``) starts nothing if this process ends meanwhile, so no agent runs without a record of it. Linux only.
"""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.engine.agents.processes import AgentProcess
from pytest_gittrix.engine.agents.supervisor import GO, INPUT, OUTPUT, RECORD, clear
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.command import check_command
from pytest_gittrix.os_level.files import write_file
from pytest_gittrix.os_level.lock_owner import Owner
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.os_level.process_tree import MARK, ProcessTree, process

_START_WAIT: Final = 30.0
_LOADER: Final = ("LD_", "LC_", "LANG", "PYTHONHOME")
_SUPERVISOR: Final = (
    "import sys; sys.path.append(sys.argv[2]); from pytest_gittrix.engine.agents.supervisor import main; main(*sys.argv[1::2])"
)


def start_agent(
    command: Sequence[str],
    *,
    directory: Path | str,
    workspace: Path | str,
    environment: Mapping[str, str],
    confirm: Callable[[Owner], object] | None = None,
    mark: str | None = None,
    attendance: int | None = None,
    terminal: int | None = None,
    leads: bool = True,
) -> AgentProcess:
    """Start an agent: a command that leads a new POSIX session and process group.

    Its output and errors go to one file, its input comes from ``AgentProcess.send``. It is no child of this process, which may end; it
    gets no signal of this process's terminal and has none of its open files.

    Args:
        command: the program, looked for in the ``PATH`` of the environment, and its arguments.
        directory: for its files; made here.
        workspace: its working directory.
        environment: all its variables; one is added, ``GITTRIX_AGENT_MARK``, which identifies its processes.
        confirm: called with its process before that does anything, to store it; if it raises, nothing was started.
        mark: the value of that variable, which no other agent has; a random one by default. By one of ``make_mark`` the engine knows
            the agent, and refuses it what only a person decides.
        attendance: an open file whose lock shows that the agent runs; its supervisor holds that too, and touches the file at the end.
        terminal: the descriptor of a terminal that it gets as its standard streams, in the place of that file and of ``send``.
        leads: whether the terminal is its controlling one; a launcher gives it to the program that it confines.

    Raises:
        InvalidInput: there is no such program or workspace, the directory is there already, or a text has a null byte.
        CapabilityMissing: this system does not show its processes in ``/proc``.
        AdapterUnavailable: the system refused. Whatever is raised, no process and no file is left.
    """
    if not sys.platform.startswith("linux") or process(os.getpid()) is None:
        raise CapabilityMissing(
            "Agents as processes need Linux and its /proc.",
            why="Elsewhere an agent could not be told from a later process with its number.",
            fix="Run them on Linux.",
        )
    files, working_dir = Path(os.path.abspath(directory)), os.path.abspath(workspace)
    check_command(command, environment)
    if not os.path.isdir(working_dir):
        raise InvalidInput(f"There is no workspace {working_dir}.", why="An agent works in one.", fix="Make it first.")
    mark = mark or os.urandom(8).hex()
    spec = {
        "command": [*command],
        "executable": find_program(command[0], working_dir, environment.get("PATH", os.defpath)),
        "environment": {**environment, MARK: mark},
        "workspace": working_dir,
        "terminal": terminal,
        "leads": leads,
    }
    _make_files(files)
    try:
        return _Starting(files, spec, mark, attendance).run(confirm)
    except BaseException:
        clear(str(files))
        raise


class _Starting:
    """The engine's side of a start."""

    def __init__(self, directory: Path, spec: Mapping[str, Any], mark: str, attendance: int | None) -> None:
        self.attendance = [] if attendance is None else [attendance]
        self.directory = directory
        self.spec = spec
        self.mark = mark
        self._rest = b""

    def run(self, confirm: Callable[[Owner], object] | None) -> AgentProcess:
        """Start the supervisor, and by it the agent; when this raises, both are gone."""
        root = Path(__file__).absolute().parents[3]
        argv = [sys.executable, "-I", "-S", "-c", _SUPERVISOR, str(self.directory), str(root), *map(str, self.attendance)]
        try:
            supervisor = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**_supervisor_environment(os.environ), MARK: self.mark},
                cwd="/",
                pass_fds=[*self.attendance, *(() if self.spec["terminal"] is None else (self.spec["terminal"],))],
            )
        except OSError as problem:
            raise self._refused(f"its supervisor could not be started: {problem.strerror}") from problem
        agent: AgentProcess | None = None
        with supervisor:  # this process ends at once; its child goes on as the supervisor, and is no child of ours
            assert supervisor.stdin is not None
            assert supervisor.stdout is not None
            requests, reports = supervisor.stdin.fileno(), supervisor.stdout.fileno()
            try:
                self._send(requests, json.dumps(self.spec).encode() + b"\n")
                agent = self._record(self._receive(reports))
                if confirm is not None:
                    assert agent.owner is not None
                    confirm(agent.owner)
                self._send(requests, GO)
                self._check_executed(self._receive(reports))
                return agent
            except BaseException:
                supervisor.stdin.close()
                self._await_end(reports, agent)
                raise

    def _record(self, report: Mapping[str, Any]) -> AgentProcess:
        owner = Owner.here(report["pid"], report["start_time"])
        supervisor = Owner.here(report["keeper"], report["keeper_start_time"])
        record = {"version": 1, "owner": owner.to_json(), "keeper": supervisor.to_json(), "mark": self.mark}
        try:
            write_file(str(self.directory / RECORD), json.dumps(record, indent=2).encode() + b"\n", sync=True)
        except OSError as problem:
            raise self._refused(f"{self.directory / RECORD} cannot be written: {problem.strerror}") from problem
        return AgentProcess(self.directory, owner)

    def _send(self, requests: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(requests, view) :]
        except OSError as problem:
            raise self._refused("its supervisor ended early") from problem

    def _receive(self, reports: int) -> dict[str, Any]:
        deadline = real_seconds() + _START_WAIT
        while b"\n" not in self._rest:
            if not select.select([reports], [], [], max(0, deadline - real_seconds()))[0]:
                raise self._refused(f"its supervisor said nothing for {_START_WAIT:g} s")
            chunk = os.read(reports, 65536)
            if not chunk:
                raise self._refused("its supervisor ended early")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report

    def _await_end(self, reports: int, agent: AgentProcess | None) -> None:
        """Return when the supervisor has removed everything, or can do so no more."""
        deadline = real_seconds() + _START_WAIT
        while select.select([reports], [], [], max(0, deadline - real_seconds()))[0] and os.read(reports, 65536):
            pass
        if agent is not None:
            agent.stop(grace=0)
        ProcessTree(mark=self.mark).end()

    def _check_executed(self, report: Mapping[str, Any]) -> None:
        if "failed" not in report:
            return
        number, text = report["failed"]["errno"], report["failed"]["text"]
        if number not in (errno.ENOENT, errno.ENOEXEC, errno.EACCES, errno.ENOTDIR, errno.E2BIG):
            raise self._refused(str(text))
        raise InvalidInput(
            f"{self.spec['executable']} cannot be executed: {text}.",
            why="The agent was not started.",
            fix="See that it is a program for this machine, and that the one in its first line is there.",
        )

    def _refused(self, what: str) -> AdapterUnavailable:
        return AdapterUnavailable(
            f"The agent in {self.directory} was not started: {what}.",
            why="Nothing of it runs.",
            fix="Check the memory, processes and disk of this machine, and try again.",
        )


def _supervisor_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables without which a supervisor cannot run. It gets no others, since its agent can read them."""
    return {name: value for name, value in environment.items() if name == "PATH" or name.startswith(_LOADER)}


def _make_files(directory: Path) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(0o700)
    except OSError as problem:
        if os.path.lexists(directory):
            raise InvalidInput(
                f"{directory} is there already.", why="The files of two agents would be one.", fix="Name a directory for this agent alone."
            ) from None
        raise AdapterUnavailable(f"{directory} cannot be made: {problem.strerror}.", fix="See that the disk is writable.") from problem
    try:
        os.mkfifo(directory / INPUT, 0o600)
        os.close(os.open(directory / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as problem:
        clear(str(directory))
        raise AdapterUnavailable(
            f"The files of an agent cannot be made in {directory}: {problem.strerror}.", fix="Keep them on a local file system with space."
        ) from problem


def find_program(program: str, workspace: str, path: str) -> str:
    """The file of a program, looked for in a ``PATH`` and, if it is named by a path, from the workspace.

    Raises:
        InvalidInput: there is none that can be executed.
    """
    folders = [""] if os.sep in program else path.split(os.pathsep)
    for folder in folders:
        found = os.path.join(workspace, folder, program)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    where = "in the workspace" if os.sep in program else f"in the PATH {path}"
    raise InvalidInput(
        f"There is no program {program!r} {where}.", why="The agent was not started.", fix="Install it, or name it by its whole path."
    )
