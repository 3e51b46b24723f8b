"""The environment of mini-swe-agent: every command runs in a session, and the trajectory tells which tree each of them left.

Written against mini-swe-agent 2 (its ``Environment`` is a protocol: ``config``, ``execute``, ``get_template_vars``, ``serialize``;
eval-anchors section 1.2). Use it by its name, ``pytest_gittrix.integrations.mini_swe_agent.GittrixEnvironment``. It must not know models.
"""

from __future__ import annotations

import platform
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from pytest_gittrix.clock.clock import EPOCH
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.integrations.extras import required
from pytest_gittrix.integrations.workbench import Promotion, Workbench, exit_code

SUBMIT: Final = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line by which an agent says that it is done."""


class GittrixEnvironmentConfig(BaseModel):
    """What the agent begins with, and how its commands are run.

    Attributes:
        repository: a repository of this machine, which is cloned; an empty one by default.
        commit: of it, by its full id; the one that it is on by default.
        task: what the session is for.
        confine: ``auto``, ``off``, ``guard`` or ``jail``.
        history: how much of the past the agent sees: ``none``, a number of commits, or ``full``.
        epoch: where the clock stands; each command moves it by a second.
        seed: what the session's id is drawn from.
        cwd: where commands start, from the workspace's root.
        env: more variables.
        timeout: real seconds for each command.
        directory: where all this is kept; by default it is removed with the environment.
    """

    model_config = ConfigDict(extra="forbid")

    repository: str | None = None
    commit: str | None = None
    task: str = "mini-swe-agent"
    confine: str = "auto"
    history: int | str = "none"
    epoch: datetime = EPOCH
    seed: str = ""
    cwd: str = "."
    env: dict[str, str] = {}
    timeout: float = 30
    directory: str | None = None


class GittrixEnvironment:
    """Where one agent works. ``close`` it, or use it as a context manager.

    Attributes:
        config: what it was made with.
        bench: the world, the session and its programs.
    """

    def __init__(self, *, config_class: type[GittrixEnvironmentConfig] = GittrixEnvironmentConfig, **settings: Any) -> None:
        """Start the session.

        Args:
            config_class: of ``config``.
            settings: see ``GittrixEnvironmentConfig``.

        Raises:
            CapabilityMissing: mini-swe-agent is not installed, or the confinement cannot be had.
            InvalidInput: a setting is not allowed.
        """
        self._submitted = required("minisweagent.exceptions", "mini").Submitted
        try:
            self.config = config_class(**settings)
        except ValueError as error:
            raise InvalidInput(f"The environment cannot be set up so: {error}", fix="See GittrixEnvironmentConfig.") from None
        self.bench = Workbench.open(
            self.config.task,
            repository=self.config.repository,
            commit=self.config.commit,
            confine=self.config.confine,
            history=self.config.history,
            epoch=self.config.epoch,
            seed=self.config.seed,
            path=self.config.directory,
            record=True,
        )

    def __enter__(self) -> GittrixEnvironment:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session's world, and remove it unless a directory was given. Closing again does nothing."""
        self.bench.close()

    def cleanup(self) -> None:
        """The same, by the name that mini-swe-agent's own environments give it."""
        self.close()

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run a command by ``bash``.

        Args:
            action: its ``command``.
            cwd: where, instead of where the configuration says.
            timeout: real seconds, likewise.

        Returns:
            ``output`` (both streams), ``returncode`` (-1 if it took too long), ``exception_info``; and as ``extra`` the tree it left.

        Raises:
            Submitted: it succeeded, and the first line of what it wrote is the sentinel.
        """
        seconds = timeout or self.config.timeout
        # Both streams in one, in the order in which they were written.
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
            raise self._submitted({"role": "exit", "content": rest, "extra": extra})

    def promote(self, message: str | None = None) -> Promotion:
        """Try to make the agent's work one commit in durable; see ``Workbench.promote``."""
        return self.bench.promote(message)

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """What prompts may tell: the configuration and the kind of machine. No variable of this process, so no secret either."""
        machine = platform.uname()._asdict() | {"node": "gittrix"}
        return self.config.model_dump() | machine | {"cwd": self.bench.programs.workspace} | more

    def serialize(self) -> dict[str, Any]:
        """What the trajectory keeps: the configuration, and of each command what it wrote, by its hash, and the tree it left."""
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
