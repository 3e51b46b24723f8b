"""The Inspect AI sandbox ``gittrix``: each sample works in a session of its own, and its result is a diff that can be promoted.

Written against the protocol ``SandboxEnvironment`` of inspect_ai 0.3. ``docs/reference/integrations.md`` lists which of Inspect's own
checks it passes.
"""

from __future__ import annotations

import os
import pwd
import shlex
import tomllib
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, overload

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.engine.agents.programs import exit_code
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.evals.runs.work_dirs import WorkDir, make_work_dir, scratch_root, sweep
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.adapter import TooLarge, run_cancellable
from pytest_gittrix.integrations.eval_environment import EvalEnvironment

with needs("inspect"):
    import anyio.to_thread
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        concurrency,
    )

NAME: Final = "gittrix"
_AT_ONCE: Final = max(os.cpu_count() or 1, 2)


class GittrixSandboxConfig(BaseModel):
    """The repository that a sample starts with, and how its programs are confined.

    Attributes:
        repository: a repository on this machine to clone; an empty one by default.
        commit: the full id of the commit in it to start from; by default the one that it is on.
        confine: ``auto``, ``off``, ``guard`` or ``jail``.
        workspace: ``clone`` or ``copy``.
        history: how much of the history programs see: ``none``, a number of commits, or ``full``.
        clock_start: the instant at which the sample's clock starts.
        directory: the directory in which samples are kept; by default each is removed at its end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repository: str | None = None
    commit: str | None = None
    confine: Literal["auto", "off", "guard", "jail"] = "auto"
    workspace: Literal["clone", "copy"] = "clone"
    history: int | Literal["none", "full"] = "none"
    clock_start: datetime = CLOCK_START
    directory: str | None = None


class GittrixSandbox(SandboxEnvironment):
    """The session of one sample.

    Attributes:
        bench: the world, the session and its programs.
    """

    _open: dict[GittrixSandbox, str] = {}  # noqa: RUF012  (of the class: what no sample_cleanup came for is closed with the task)

    def __init__(self, bench: EvalEnvironment, work_dir: WorkDir | None) -> None:
        super().__init__()
        self.bench = bench
        self._work_dir = work_dir

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # noqa: ARG002  (retrying a command that changed files would change them twice)
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program. Arguments, result and errors are those of ``SandboxEnvironment.exec``."""
        if user is not None and not _is_this_user(user):
            raise SandboxUserUnsupportedError(f"The sandbox gittrix runs programs as the user of this process, not as {user!r}.")
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        call = partial(
            self.bench.run,
            cmd,
            stdin=input.encode() if isinstance(input, str) else input or b"",
            cwd=cwd or ".",
            environment=env,
            timeout=timeout,
            most_output=limit,
        )
        try:
            done = await (_throttled(call) if concurrency else run_cancellable(call))
        except GittrixError as error:
            raise SandboxUnavailableError(str(error)) from error
        if done.timed_out:
            raise TimeoutError(f"{cmd[0]!r} did not end within {timeout} seconds.")
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        if done.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
        code = exit_code(done)
        if code == 126 and stderr in (f"{cmd[0]}: Permission denied\n", f"bwrap: execvp {cmd[0]}: Permission denied\n"):
            raise PermissionError(f"{cmd[0]!r} may not be executed.")
        return ExecResult(code == 0, code if code is not None else -1, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file. Errors are those of ``SandboxEnvironment.write_file``."""
        data = contents.encode() if isinstance(contents, str) else contents
        await self.bench.files.write_async(file, data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file. Errors are those of ``SandboxEnvironment.read_file``."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.bench.files.read_async(file, most=limit)
        except TooLarge as error:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode("utf-8") if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """A command by which a person looks into the workspace: a shell, which is not confined."""
        if user is not None and not _is_this_user(user):
            raise NotImplementedError(f"There is no shell as {user!r}.")
        workspace = self.bench.session.workspace_path
        if workspace is None or not workspace.is_dir():
            raise ConnectionError("The workspace is gone.")
        return SandboxConnection(type=NAME, command=f"cd {shlex.quote(str(workspace))} && exec sh")

    def default_polling_interval(self) -> float:
        """How often Inspect polls a service of the sandbox, in seconds; short, since the sandbox is on this machine."""
        return 0.2

    async def close(self) -> None:
        """End the sample, and remove its directory unless the configuration names one."""
        self._open.pop(self, None)
        await anyio.to_thread.run_sync(self.bench.close)
        if self._work_dir is not None:
            await anyio.to_thread.run_sync(self._work_dir.release)

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:  # noqa: ARG003
        """Check the configuration before the first sample, and remove the directories that killed processes left."""
        settled(config)
        await anyio.to_thread.run_sync(_sweep)

    @classmethod
    async def sample_init(cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Start the session of one sample."""
        checked = settled(config)
        sample = _sample_named(task_name, metadata)
        bench, work_dir = await anyio.to_thread.run_sync(_open_sample, checked, sample)
        made = cls(bench, work_dir)
        cls._open[made] = _short(task_name)
        return {"default": made}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: BaseModel | str | None,  # noqa: ARG003
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,  # noqa: ARG003
    ) -> None:
        """End a sample."""
        for environment in environments.values():
            await environment.as_type(GittrixSandbox).close()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: BaseModel | str | None, cleanup: bool) -> None:  # noqa: ARG003
        """End the samples of a task that are still open; without cleanup, only print their directories."""
        left = [made for made, task in cls._open.items() if task == _short(task_name)]
        for made in left:
            if cleanup:
                await made.close()
            else:
                print(f"gittrix: the sample's session is kept in {made.bench.world.path}")

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Remove the directories that killed processes left (``inspect sandbox cleanup gittrix``)."""
        if id is None:
            for path in await anyio.to_thread.run_sync(_sweep):
                print(f"removed {path}")

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a configuration from a log."""
        return GittrixSandboxConfig.model_validate(config)


def settled(config: BaseModel | str | None) -> GittrixSandboxConfig:
    """The configuration that a task gave: the model itself, the path of a repository, or that of a TOML file.

    Raises:
        InvalidInput: it is none of these, or has an unknown setting or a wrong value.
    """
    if config is None:
        return GittrixSandboxConfig()
    if isinstance(config, GittrixSandboxConfig):
        return config
    if isinstance(config, BaseModel):
        raise InvalidInput(f"A {type(config).__name__} configures no gittrix sandbox.", fix="Give a GittrixSandboxConfig.")
    path = Path(config).absolute()
    if path.is_dir():
        return GittrixSandboxConfig(repository=str(path))
    try:
        return GittrixSandboxConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise InvalidInput(
            f"{config!r} configures no gittrix sandbox: {error}",
            fix=f"Give the path of a repository, or of a TOML file with {', '.join(GittrixSandboxConfig.model_fields)}.",
        ) from None


def _open_sample(config: GittrixSandboxConfig, sample: str) -> tuple[EvalEnvironment, WorkDir | None]:
    """Start a sample's session in a new directory. Gives the directory only if it is to be removed at the sample's end."""
    if config.directory is None:
        root = scratch_root()
    else:
        root = Path(os.path.realpath(config.directory))
        root.mkdir(parents=True, exist_ok=True)
    work_dir = make_work_dir(root, f"Inspect sample {sample}")
    try:
        environment = EvalEnvironment.open(
            f"Inspect sample {sample}",
            repository=config.repository,
            commit=config.commit,
            confine=config.confine,
            workspace=config.workspace,
            history=config.history,
            clock_start=config.clock_start,
            seed=sample,
            path=work_dir.make_sample_dir() / "world",
            keep=config.directory is not None,
        )
    except BaseException:
        work_dir.release()
        raise
    return environment, work_dir if config.directory is None else None


def _sweep() -> list[Path]:
    """Remove the directories of samples whose processes were killed; gives what was removed."""
    root = scratch_root()
    return [root / name for name in sweep(root).removed]


async def _throttled(call: Any) -> Any:
    async with concurrency("gittrix programs", _AT_ONCE):
        return await run_cancellable(call)


def _sample_named(task_name: str, metadata: dict[str, str]) -> str:
    """The name of a sample, unique within its task. The epoch is in no public attribute of inspect_ai 0.3."""
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    epoch = active.epoch if active is not None else 1
    return f"{_short(task_name)}/{metadata.get('__sample_id__', '')}/{epoch}"


def _short(task_name: str) -> str:
    return task_name.rpartition("/")[2]


def _is_this_user(user: str) -> bool:
    try:
        number = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return False
    return number == os.geteuid()
