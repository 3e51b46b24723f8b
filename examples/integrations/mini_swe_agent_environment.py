"""An environment for mini-swe-agent: every command runs in a session, and the trajectory has the tree that each command left.

Copy this file into your project, and name its class in a configuration. Written against mini-swe-agent 2, whose ``Environment`` is a
protocol: ``config``, ``execute``, ``get_template_vars``, ``serialize``.
"""

from __future__ import annotations

import platform
from datetime import datetime
from typing import Any, Final

from minisweagent.exceptions import Submitted
from pydantic import BaseModel, ConfigDict

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.integrations.adapter import exit_code
from pytest_gittrix.integrations.eval_environment import EvalEnvironment, PromotionOutcome

SUBMIT: Final = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line of output by which an agent submits its work."""


class GittrixEnvironmentConfig(BaseModel):
    """The repository that the agent starts with, and how its commands are run.

    Attributes:
        repository: a repository on this machine to clone; an empty one by default.
        commit: the full id of the commit in it to start from; by default the one that it is on.
        task: the session's task.
        confine: ``auto``, ``off``, ``guard`` or ``jail``.
        history: how much of the history the agent sees: ``none``, a number of commits, or ``full``.
        clock_start: the instant at which the clock starts; each command advances it by a second.
        seed: determines the session's id.
        cwd: the directory that commands run in, relative to the workspace's root.
        env: more environment variables.
        timeout: real seconds for each command.
        directory: the directory of the environment, which is kept; by default a temporary one that is removed at the end.
    """

    model_config = ConfigDict(extra="forbid")

    repository: str | None = None
    commit: str | None = None
    task: str = "mini-swe-agent"
    confine: str = "auto"
    history: int | str = "none"
    clock_start: datetime = CLOCK_START
    seed: str = ""
    cwd: str = "."
    env: dict[str, str] = {}
    timeout: float = 30
    directory: str | None = None


class GittrixEnvironment:
    """The environment of one agent. Call ``close`` at the end, or use it as a context manager.

    Attributes:
        config: its configuration.
        bench: the world, the session and its programs.
    """

    def __init__(self, *, config_class: type[GittrixEnvironmentConfig] = GittrixEnvironmentConfig, **settings: Any) -> None:
        """Start the session.

        Args:
            config_class: the class of ``config``.
            settings: the attributes of ``GittrixEnvironmentConfig``.

        Raises:
            CapabilityMissing: this machine cannot confine at that level.
            InvalidInput: a setting is not allowed.
        """
        try:
            self.config = config_class(**settings)
        except ValueError as error:
            raise InvalidInput(f"The environment cannot be set up so: {error}", fix="See GittrixEnvironmentConfig.") from None
        self.bench = EvalEnvironment.open(
            self.config.task,
            repository=self.config.repository,
            commit=self.config.commit,
            confine=self.config.confine,
            history=self.config.history,
            clock_start=self.config.clock_start,
            seed=self.config.seed,
            path=self.config.directory,
            record=True,
        )

    def __enter__(self) -> GittrixEnvironment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environment, and remove its directory unless one was given. Closing twice does nothing."""
        self.bench.close()

    def cleanup(self) -> None:
        """Close the environment: the name of ``close`` in mini-swe-agent's own environments."""
        self.close()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run a command by ``bash``.

        Args:
            action: a dictionary with the ``command``.
            cwd: the directory to run it in, instead of the configured one.
            timeout: real seconds, instead of the configured ones.

        Returns:
            ``output`` (both streams), ``returncode`` (-1 if it took too long), ``exception_info``, and in ``extra`` the tree that it left.

        Raises:
            Submitted: the command succeeded, and the first line of its output is ``SUBMIT``.
            SessionExpired: the session ended, before the command or while it ran.
            GittrixError: as ``Programs.run``.
        """
        seconds = timeout or self.config.timeout
        # Both streams go into one, in the order in which they are written.
        argv = ["/bin/sh", "-c", 'exec bash -c "$1" 2>&1', "sh", str(action.get("command", ""))]
        done = self.bench.run(argv, cwd=cwd or self.config.cwd, environment=self.config.env, timeout=seconds)
        code = exit_code(done)
        text = (done.stdout + done.stderr).decode("utf-8", "replace")
        late = f"The command did not end within {seconds:g} seconds, and was ended with all it started." if code is None else ""
        result = {
            "output": text,
            "returncode": -1 if code is None else code,
            "exception_info": late,
            "extra": {"tree": self.bench.steps[-1].tree},
        }
        self._check_submitted(result)
        return result

    def _check_submitted(self, result: dict[str, Any]) -> None:
        first, _, rest = str(result["output"]).lstrip().partition("\n")
        if result["returncode"] == 0 and first.strip() == SUBMIT:
            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})

    def promote(self, message: str | None = None) -> PromotionOutcome:
        """Try to promote the agent's work as one commit in durable; see ``EvalEnvironment.promote``."""
        return self.bench.promote(message)

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """The variables of prompts: the configuration and the kind of machine. No environment variables, since they may be secret."""
        machine = platform.uname()._asdict() | {"node": "gittrix"}
        return self.config.model_dump() | machine | {"cwd": self.bench.programs.workspace} | more

    def serialize(self) -> dict[str, Any]:
        """The entries for the trajectory: the configuration, and for each command its exit status, the hash of its output, and its tree."""
        kind = type(self)
        steps = [{"code": step.code, "output": step.output, "tree": step.tree} for step in self.bench.steps]
        return {
            "info": {
                "config": {
                    "environment": self.config.model_dump(mode="json"),
                    "environment_type": f"{kind.__module__}.{kind.__name__}",
                },
                "gittrix": {
                    "session": self.bench.session.id,
                    "confinement": str(self.bench.programs.confinement),
                    "steps": steps,
                },
            }
        }
