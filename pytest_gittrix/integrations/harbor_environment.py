"""The environment for Harbor (terminal-bench 2): trials without docker, each in a session, in a jail with Harbor's directories.

Written against ``BaseEnvironment`` of Harbor 0.24 (eval-anchors sections 0.6 and 1.5), which needs Python 3.12. Use it by its import path,
``pytest_gittrix.integrations.harbor_environment:GittrixEnvironment``. No image is built: programs are those of this machine, and what the
trial starts with is a repository, or the files beside the task's Dockerfile. It must not know agents.
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

import anyio.to_thread
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.integrations.waiting import run_cancellable
from pytest_gittrix.integrations.workbench import Workbench, exit_code

DIRECTORIES: Final = ("/logs", "/solution", "/tests", "/installed-agent")
"""What Harbor and the scripts of its tasks name by absolute paths, besides the working directory."""
KEPT: Final = "gittrix"
"""The directory of a trial that tells what became of its session."""

_WORKDIR: Final = re.compile(r"^\s*WORKDIR\s+(/[^\s]*)\s*$", re.MULTILINE | re.IGNORECASE)
_NO_SOURCE: Final = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore")
_DEFAULT_WORKDIR: Final = "/app"


class GittrixEnvironment(BaseEnvironment):
    """One trial's session."""

    def __init__(
        self,
        *arguments: Any,
        repository: str | None = None,
        commit: str | None = None,
        history: str | int = "none",
        promote: bool = True,
        **named: Any,
    ) -> None:
        """Say what trials start with; Harbor gives the rest (``environment.kwargs`` of a job).

        Args:
            arguments: of ``BaseEnvironment``.
            repository: a repository of this machine, which is cloned; by default the files beside the task's Dockerfile.
            commit: of it, by its full id.
            history: how much of the past is seen: ``none``, a number of commits, or ``full``.
            promote: whether the work of a trial is promoted at its end, in its own copy.
            named: of ``BaseEnvironment``.
        """
        self._repository = repository
        self._commit = commit
        self._history = history
        self._promote = promote
        self._bench: Workbench | None = None
        super().__init__(*arguments, **named)

    @staticmethod
    def type() -> str:
        """What kind of environment it is."""
        return "gittrix"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """It has no network, whatever a task asks for."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        if self._repository is None and not self.environment_dir.is_dir():
            raise FileNotFoundError(f"The task has no directory {self.environment_dir}, and no repository was given.")

    @property
    def bench(self) -> Workbench:
        """The world, the session and its programs.

        Raises:
            InvalidInput: the trial has not started, or is over.
        """
        if self._bench is None:
            raise InvalidInput("The trial is not running.", fix="Use it between start and stop.")
        return self._bench

    async def start(self, force_build: bool) -> None:  # noqa: ARG002  (nothing is built)
        """Start the session.

        Raises:
            CapabilityMissing: this machine has no jail.
        """
        self._bench = await anyio.to_thread.run_sync(self._opened)
        await self.ensure_dirs([*self._mount_targets(writable_only=True), "/logs/agent", "/logs/verifier", "/logs/artifacts"])

    def _opened(self) -> Workbench:
        return Workbench.open(
            f"Harbor task {self.environment_name}",
            repository=self._repository,
            commit=self._commit,
            files=None if self._repository is not None else sources(self.environment_dir),
            confine="jail",
            history=self._history,
            # The name of a trial ends in letters that are drawn anew each time; the same task is to give the same ids.
            seed=self.environment_name,
            at=workdir_of(self.environment_dir, self.task_env_config.workdir),
            beside=DIRECTORIES,
        )

    async def stop(self, delete: bool) -> None:
        """Keep the diff and what came of promoting it beside the trial's logs, and end the session."""
        if self._bench is None:
            return
        bench, self._bench = self._bench, None
        try:
            await anyio.to_thread.run_sync(partial(self._tell, bench))
        finally:
            if delete:
                await anyio.to_thread.run_sync(bench.close)
            else:
                self.logger.info("The session is kept in %s", bench.world.path)

    def _tell(self, bench: Workbench) -> None:
        kept = self.trial_paths.trial_dir / KEPT
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "diff.patch").write_text(bench.diff(), encoding="utf-8", errors="surrogateescape")
        baseline = bench.world.durable.head()
        came = bench.promote() if self._promote else None
        told = {
            "session": bench.session.id,
            "baseline": baseline,
            "confinement": str(bench.programs.confinement),
            "promotion": None if came is None else came.verdict,
            "sha": None if came is None else came.sha,
            "reason": None if came is None else came.reason,
        }
        (kept / "session.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a line of shell.

        Args:
            command: what ``bash -c`` gets.
            cwd: where; the working directory by default.
            env: more variables.
            timeout_sec: real seconds.
            user: there is only one, which is taken for root.

        Raises:
            CapabilityMissing: another user was asked for.
            TimeoutError: it took too long, and was ended with all it started.
        """
        wanted = self._resolve_user(user)
        if wanted not in (None, "root", 0, "0", os.geteuid(), str(os.geteuid())):
            raise CapabilityMissing(
                f"No program can be run as {wanted!r}.", why="A jail has one user.", fix="Leave out the user in the task's configuration."
            )
        call = partial(self.bench.run, ["bash", "-c", command], cwd=cwd or ".", environment=self._merge_env(env), timeout=timeout_sec)
        done = await run_cancellable(call)
        if done.timed_out:
            raise TimeoutError(f"The command did not end within {timeout_sec} seconds.")
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        return ExecResult(stdout=stdout, stderr=stderr, return_code=exit_code(done) or 0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file in, with its mode."""
        source = Path(source_path)
        target = PurePosixPath(target_path)
        await self._unpack(_packed([(source, target.name)]), str(target.parent))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a directory in."""
        root = Path(source_dir)
        await self._unpack(_packed([(path, path.relative_to(root).as_posix()) for path in sorted(root.rglob("*"))]), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out. Raises FileNotFoundError, IsADirectoryError or OSError as reading it would."""
        data = await run_cancellable(partial(self.bench.files.read, source_path))
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a directory out; links that lead elsewhere, and what is no file, are left behind."""
        argv = ["tar", "-C", source_dir, "-cf", "-", "."]
        done = await run_cancellable(partial(self.bench.programs.run, argv, most_output=1 << 30))
        if done.code != 0:
            raise FileNotFoundError(done.stderr.decode("utf-8", "replace").strip() or f"{source_dir} cannot be read")
        target = Path(target_dir)
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(target, filter=_safe)

    async def _unpack(self, data: bytes, target: str) -> None:
        argv = ["/bin/sh", "-c", 'mkdir -p -- "$1" && exec tar -C "$1" --no-same-owner -xf -', "sh", target]
        done = await run_cancellable(partial(self.bench.programs.run, argv, stdin=data))
        if done.code != 0:
            raise OSError(f"Nothing can be copied to {target}: {done.stderr.decode('utf-8', 'replace').strip()}")


def sources(directory: Path) -> dict[str, bytes]:
    """The files that a trial starts with, by path: those beside the Dockerfile, without what builds images.

    Args:
        directory: ``environment/`` of a task.
    """
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.relative_to(directory).as_posix() not in _NO_SOURCE
    }


def workdir_of(directory: Path, configured: str | None) -> str:
    """Where a task's programs start: as its configuration says, or else the last ``WORKDIR`` of its Dockerfile, or ``/app``."""
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


def _safe(member: tarfile.TarInfo, target: str) -> tarfile.TarInfo | None:
    """What may be unpacked on the machine; what an agent left there to lead elsewhere is not, and stops nothing."""
    if not (member.isfile() or member.isdir() or member.issym()):
        return None
    try:
        return tarfile.data_filter(member, target)
    except tarfile.FilterError:
        return None
