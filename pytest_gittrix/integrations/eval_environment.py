"""The environment of one sample of an eval, for other frameworks' harnesses: files, programs, and at the end a diff and a verdict.

An environment is a separate world (a durable repository, a frozen clock, an engine), one session in it, and programs in that session's
workspace. The same arguments and the same programs give the same commit ids, on every machine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.engine.agents.programs import MOST_OUTPUT, WORKSPACE, Programs, exit_code
from pytest_gittrix.errors import BaselineConflict, GittrixError, InvalidInput
from pytest_gittrix.integrations.adapter import SandboxAdapter
from pytest_gittrix.testing.world import World

if TYPE_CHECKING:
    from pytest_gittrix.backends.local import LocalEphemeral
    from pytest_gittrix.confine.started_program import Finished
    from pytest_gittrix.engine.user_session import UserSession

Verdict = Literal["promoted", "nothing", "conflict", "refused"]

TICK: Final = timedelta(seconds=1)
"""How far the clock advances before each program, so that two programs never commit at the same instant."""


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One program that was run.

    Attributes:
        argv: the program and its arguments.
        code: its exit status, 128 plus the number of the signal that ended it, or None if it took too long.
        output: SHA-256 of its standard output followed by its standard error.
        tree: the id of the workspace's tree afterwards; empty if it was not recorded or cannot be promoted.
    """

    argv: tuple[str, ...]
    code: int | None
    output: str
    tree: str


@dataclass(frozen=True, slots=True)
class PromotionOutcome:
    """The result of an attempt to promote.

    Attributes:
        verdict: ``promoted``, ``nothing`` (no file differs), ``conflict`` (durable drifted over it) or ``refused``.
        sha: the id of the commit in durable; empty if there is none.
        reason: why nothing was promoted; empty if it was.
    """

    verdict: Verdict
    sha: str = ""
    reason: str = ""


class EvalEnvironment:
    """The environment of one sample. ``EvalEnvironment.open`` makes it; as a context manager it closes itself.

    Attributes:
        world: durable, clock, engine and rival.
        session: the session, with the rights of the person in charge.
        programs: runs programs in the session's workspace.
        files: the files that these programs see.
        steps: every program that ``run`` ran, in order.
    """

    def __init__(self, world: World, session: UserSession, programs: Programs, closing: ExitStack, *, record: bool) -> None:
        self.world = world
        self.session = session
        self.programs = programs
        self.files = SandboxAdapter(programs)
        self.steps: list[ProgramStep] = []
        self._closing = closing
        self._record = record

    @classmethod
    def open(
        cls,
        task: str = "Improve the project",
        *,
        repository: str | os.PathLike[str] | None = None,
        commit: str | None = None,
        files: Mapping[str, str | bytes] | None = None,
        confine: str = "auto",
        workspace: str | LocalEphemeral = "clone",
        history: str | int = "none",
        clock_start: datetime = CLOCK_START,
        seed: str = "",
        path: str | os.PathLike[str] | None = None,
        keep: bool | None = None,
        record: bool = False,
        at: str = WORKSPACE,
        beside: Sequence[str] = (),
    ) -> EvalEnvironment:
        """Make an environment.

        Args:
            task: the session's task.
            repository: a repository on this machine to start from; it is cloned and only read.
            commit: the full id of the commit in it to start from; by default the one that it is on.
            files: the files of durable's single commit, instead of a repository; none by default.
            confine: ``auto``, ``off``, ``guard`` or ``jail``.
            workspace: the kind of the workspace, or a ``LocalEphemeral`` with all its options.
            history: how much of the history programs can see: ``none``, a number of commits, or ``full``.
            clock_start: the instant at which the clock starts.
            seed: determines the session's id; give each sample another one.
            path: the directory of the environment, made if it does not exist; a temporary one by default.
            keep: whether the directory stays after closing; by default a given one stays and a temporary one does not.
            record: whether ``steps`` has the tree after each program; that costs a snapshot for each.
            at: the path at which a jail shows the workspace.
            beside: as for ``Programs``.

        Raises:
            InvalidInput: an argument is not allowed.
            CapabilityMissing: the confinement cannot be had here.
            AdapterUnavailable: the repository cannot be used.
        """
        from pytest_gittrix.backends.local import LocalEphemeral

        if repository is not None and files is not None:
            raise InvalidInput("An environment was given a repository and its own files.", fix="Give one of them.")
        if commit is not None and repository is None:
            raise InvalidInput("An environment was given a commit and no repository.", fix="Say which repository it is of.")
        kind = LocalEphemeral(workspace, history, project_settings=False) if isinstance(workspace, str) else workspace  # type: ignore[arg-type]
        with ExitStack() as closing:
            world = closing.enter_context(
                World.open(
                    path,
                    files=None if repository is not None else files or {},
                    repository=repository,
                    workspace=kind,
                    clock_start=clock_start,
                    seed=int.from_bytes(hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()[:8], "big"),
                    keep=keep,
                    sweep_interval=None,
                )
            )
            if commit is not None:
                world.durable.rewind(commit)
            session = world.start(task)
            programs = closing.enter_context(
                Programs(session.for_agent(), world.clock, confine, at=at, beside=beside, directory=world.path)
            )
            return cls(world, session, programs, closing.pop_all(), record=record)

    def __enter__(self) -> EvalEnvironment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the session's engine and programs, and remove the directory unless it is kept. Closing twice does nothing."""
        self._closing.close()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
        most_output: int = MOST_OUTPUT,
        stop: int | None = None,
    ) -> Finished:
        """Advance the clock by a second and run a program of the agent. Arguments are those of ``Programs.run``.

        Raises:
            SessionExpired: the session ended, before the program or while it ran.
            GittrixError: as ``Programs.run``.
        """
        self.world.clock.advance(TICK)
        done = self.files.run(
            argv,
            stdin=stdin,
            cwd=cwd,
            environment=environment,
            timeout=timeout,
            most_output=most_output,
            stop=stop,
        )
        output = hashlib.sha256(done.stdout + done.stderr).hexdigest()
        self.steps.append(ProgramStep(tuple(argv), exit_code(done), output, self.tree() if self._record else ""))
        return done

    def tree(self) -> str:
        """The id of the workspace's current tree; empty if the workspace holds something that cannot be promoted."""
        try:
            return self.session.for_agent().checkpoint()
        except GittrixError:
            return ""

    def diff(self) -> str:
        """The changes in the workspace, as a patch for ``git apply``."""
        return self.session.diff()

    def promote(self, message: str | None = None, *, on_overlap: str = "refuse") -> PromotionOutcome:
        """Try to promote the work as one commit in durable, without directories that tools leave behind, such as ``__pycache__``.

        Args:
            message: the commit message; ``gittrix: <task>`` by default.
            on_overlap: as for ``UserSession.promote``.
        """
        from pytest_gittrix.evals.inputs.suite_file import GENERATED

        try:
            review = self.session.review().without_directories(GENERATED)
            if not review.changes:
                return PromotionOutcome("nothing", reason="Nothing differs from the baseline.")
            done = self.session.promote(review, message=message, on_overlap=on_overlap, allow_filtered=True)
        except BaselineConflict as error:
            return PromotionOutcome("conflict", reason=str(error))
        except GittrixError as error:
            return PromotionOutcome("refused", reason=f"{error.code}: {error}")
        return PromotionOutcome("promoted", sha=done.sha)
