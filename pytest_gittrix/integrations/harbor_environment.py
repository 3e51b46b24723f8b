"""The environment for Harbor (terminal-bench 2): trials without docker, each in a session, in a jail with Harbor's directories.

Written against ``BaseEnvironment`` of Harbor 0.24, which needs Python 3.12. Use it by its import path,
``pytest_gittrix.integrations.harbor_environment:GittrixEnvironment``. No image is built: a trial has the programs of this machine, and
starts with a repository or with the files next to the task's Dockerfile.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pytest_gittrix.engine.agents.programs import exit_code
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.adapter import run_cancellable
from pytest_gittrix.integrations.archives import unpack
from pytest_gittrix.integrations.eval_environment import EvalEnvironment

with needs("harbor"):
    import anyio.to_thread
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import EnvironmentCapabilities

DIRECTORIES: Final = ("/logs", "/solution", "/tests", "/installed-agent")
"""The directories that Harbor and its tasks' scripts name by absolute paths, in addition to the working directory."""
KEPT: Final = "gittrix"
"""The name of the directory in a trial's own directory that holds the session's diff and result."""

_WORKDIR: Final = re.compile(r"^\s*WORKDIR\s+(/[^\s]*)\s*$", re.MULTILINE | re.IGNORECASE)
_NO_SOURCE: Final = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore")
_DEFAULT_WORKDIR: Final = "/app"


class HarborEnvironment(BaseEnvironment):
    """The session of one trial."""

    def __init__(
        self,
        *arguments: Any,
        repository: str | None = None,
        commit: str | None = None,
        history: str | int = "none",
        promote: bool = True,
        **named: Any,
    ) -> None:
        """Configure the environment, by ``environment.kwargs`` of a job; Harbor adds its own arguments.

        Args:
            arguments: for ``BaseEnvironment``.
            repository: a repository on this machine to clone; by default a trial starts with the files next to the task's Dockerfile.
            commit: the full id of the commit in it to start from.
            history: how much of the history is visible: ``none``, a number of commits, or ``full``.
            promote: whether the work of a trial is promoted at its end, in the trial's copy of the repository.
            named: for ``BaseEnvironment``.
        """
        self._repository = repository
        self._commit = commit
        self._history = history
        self._promote = promote
        self._eval_environment: EvalEnvironment | None = None
        super().__init__(*arguments, **named)

    @staticmethod
    def type() -> str:
        """The name of this kind of environment."""
        return "gittrix"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """The environment never has a network, even if a task requests one."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        if self._repository is None and not self.environment_dir.is_dir():
            raise FileNotFoundError(f"The task has no directory {self.environment_dir}, and no repository was given.")

    @property
    def bench(self) -> EvalEnvironment:
        """The trial's environment: its world, session and programs.

        Raises:
            InvalidInput: the trial has not started, or has ended.
        """
        if self._eval_environment is None:
            raise InvalidInput("The trial is not running.", fix="Use it between start and stop.")
        return self._eval_environment

    async def start(self, force_build: bool) -> None:  # noqa: ARG002  (nothing is built)
        """Start the session.

        Raises:
            CapabilityMissing: this machine has no jail.
        """
        self._eval_environment = await anyio.to_thread.run_sync(self._open_eval_environment)
        await self.ensure_dirs([*self._mount_targets(writable_only=True), "/logs/agent", "/logs/verifier", "/logs/artifacts"])

    def _open_eval_environment(self) -> EvalEnvironment:
        return EvalEnvironment.open(
            f"Harbor task {self.environment_name}",
            repository=self._repository,
            commit=self._commit,
            files=None if self._repository is not None else sources(self.environment_dir),
            confine="jail",
            history=self._history,
            # The name of the task, since that of a trial has a random end: the same task gives the same ids.
            seed=self.environment_name,
            at=workdir_of(self.environment_dir, self.task_env_config.workdir),
            beside=DIRECTORIES,
        )

    async def stop(self, delete: bool) -> None:
        """Write the diff and the result of promoting it next to the trial's logs, and end the session."""
        if self._eval_environment is None:
            return
        environment, self._eval_environment = self._eval_environment, None
        try:
            await anyio.to_thread.run_sync(partial(self._write_session_result, environment))
        finally:
            if delete:
                await anyio.to_thread.run_sync(environment.close)
            else:
                self.logger.info("The session is kept in %s", environment.world.path)

    def _write_session_result(self, environment: EvalEnvironment) -> None:
        directory = self.trial_paths.trial_dir / KEPT
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "diff.patch").write_text(environment.diff(), encoding="utf-8", errors="surrogateescape")
        baseline = environment.world.durable.head()
        promotion = environment.promote() if self._promote else None
        result = {
            "session": environment.session.id,
            "baseline": baseline,
            "confinement": str(environment.programs.confinement),
            "promotion": None if promotion is None else promotion.verdict,
            "sha": None if promotion is None else promotion.sha,
            "reason": None if promotion is None else promotion.reason,
        }
        (directory / "session.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command line by ``bash -c``.

        Args:
            command: the command line.
            cwd: the directory to run it in; the working directory by default.
            env: more environment variables.
            timeout_sec: real seconds after which it is killed.
            user: the user to run it as; there is only one, who counts as root.

        Raises:
            CapabilityMissing: another user was requested.
            TimeoutError: the command took too long, and was killed with every process that it started.
            SessionExpired: the session ended, before the command or while it ran.
            GittrixError: as ``Programs.run``.
        """
        requested = self._resolve_user(user)
        if requested not in (None, "root", 0, "0", os.geteuid(), str(os.geteuid())):
            raise CapabilityMissing(
                f"No program can be run as {requested!r}.",
                why="A jail has one user.",
                fix="Leave out the user in the task's configuration.",
            )
        call = partial(self.bench.run, ["bash", "-c", command], cwd=cwd or ".", environment=self._merge_env(env), timeout=timeout_sec)
        done = await run_cancellable(call)
        if done.timed_out:
            raise TimeoutError(f"The command did not end within {timeout_sec} seconds.")
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        return ExecResult(stdout=stdout, stderr=stderr, return_code=exit_code(done) or 0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the environment, with its mode."""
        source = Path(source_path)
        target = PurePosixPath(target_path)
        await self._unpack(_packed([(source, target.name)]), str(target.parent))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a directory into the environment."""
        root = Path(source_dir)
        await self._unpack(_packed([(path, path.relative_to(root).as_posix()) for path in sorted(root.rglob("*"))]), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the environment. Raises FileNotFoundError, IsADirectoryError or OSError, as a program that reads it would."""
        data = await self.bench.files.read_async(source_path)
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the contents of a directory out of the environment, without links that lead out of it and without special files."""
        argv = ["tar", "-C", source_dir, "-cf", "-", "."]
        done = await self.bench.files.run_async(argv, most_output=1 << 30)
        if done.code != 0:
            raise FileNotFoundError(done.stderr.decode("utf-8", "replace").strip() or f"{source_dir} cannot be read")
        target = Path(target_dir)
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            unpack(archive, target)

    async def _unpack(self, data: bytes, target: str) -> None:
        argv = ["/bin/sh", "-c", 'mkdir -p -- "$1" && exec tar -C "$1" --no-same-owner -xf -', "sh", target]
        done = await self.bench.files.run_async(argv, stdin=data)
        if done.code != 0:
            raise OSError(f"Nothing can be copied to {target}: {done.stderr.decode('utf-8', 'replace').strip()}")


GittrixEnvironment = HarborEnvironment
"""The name under which jobs and the documentation import the environment."""


def sources(directory: Path) -> dict[str, bytes]:
    """The files that a trial starts with, by path: those next to the Dockerfile, without the files that build images.

    Args:
        directory: the directory ``environment/`` of a task.
    """
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.relative_to(directory).as_posix() not in _NO_SOURCE
    }


def workdir_of(directory: Path, configured: str | None) -> str:
    """The working directory of a task: from its configuration, or else the last ``WORKDIR`` of its Dockerfile, or ``/app``."""
    if configured:
        return configured
    dockerfile = directory / "Dockerfile"
    found = _WORKDIR.findall(dockerfile.read_text(encoding="utf-8", errors="replace")) if dockerfile.is_file() else []
    return str(PurePosixPath(found[-1])) if found else _DEFAULT_WORKDIR


def _packed(files: list[tuple[Path, str]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, name in files:
            archive.add(path, name, recursive=False)
    return buffer.getvalue()
