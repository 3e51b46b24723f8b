"""One sample of an eval, as the harnesses that people have ask for one: files, programs, and at the end a diff and a verdict.

A bench is a world of its own (a durable repository, a frozen clock, an engine), one session in it, and programs in that session's
workspace. The same arguments and the same programs give the same commit ids, on every machine. It must not know which framework asks.
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

from pytest_gittrix.clock.clock import EPOCH
from pytest_gittrix.errors import BaselineConflict, GittrixError, InvalidInput
from pytest_gittrix.integrations.files import SandboxFiles
from pytest_gittrix.integrations.programs import MOST_OUTPUT, WORKSPACE, Programs
from pytest_gittrix.testing.world import World

if TYPE_CHECKING:
    from pytest_gittrix.backends.local import LocalEphemeral
    from pytest_gittrix.confine.choose import Finished
    from pytest_gittrix.engine.user_session import UserSession

Verdict = Literal["promoted", "nothing", "conflict", "refused"]

TICK: Final = timedelta(seconds=1)
"""How far the clock goes with each program: what two of them commit is not committed at one instant."""


@dataclass(frozen=True, slots=True)
class Step:
    """One program that was run.

    Attributes:
        argv: its words.
        code: how it ended: its exit status, 128 and its signal's number, or None if it took too long.
        output: SHA-256 of what it wrote, both streams one after the other.
        tree: the workspace's tree afterwards; empty where it could not be told.
    """

    argv: tuple[str, ...]
    code: int | None
    output: str
    tree: str


@dataclass(frozen=True, slots=True)
class Promotion:
    """What came of an attempt to promote.

    Attributes:
        verdict: ``promoted``, ``nothing`` (no file differs), ``conflict`` (durable drifted over it) or ``refused``.
        sha: of the commit in durable, if it was promoted.
        reason: in words, if it was not.
    """

    verdict: Verdict
    sha: str = ""
    reason: str = ""


class Workbench:
    """Made by ``Workbench.open``; a context manager that closes it.

    Attributes:
        world: durable, clock, engine and rival.
        session: the one session, as the person in charge holds it.
        programs: what runs programs in its workspace.
        files: its files, and the others that its programs see.
        steps: every program that ``run`` ran, in order.
    """

    def __init__(self, world: World, session: UserSession, programs: Programs, closing: ExitStack, *, record: bool) -> None:
        self.world = world
        self.session = session
        self.programs = programs
        self.files = SandboxFiles(programs)
        self.steps: list[Step] = []
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
        epoch: datetime = EPOCH,
        seed: str = "",
        path: str | os.PathLike[str] | None = None,
        keep: bool | None = None,
        record: bool = False,
        at: str = WORKSPACE,
        beside: Sequence[str] = (),
    ) -> Workbench:
        """Make one.

        Args:
            task: what the session is for.
            repository: a repository of this machine to begin with; it is cloned and only read.
            commit: of it, by its full id, where the session starts; by default the one that it is on.
            files: what durable's one commit holds, instead of a repository; nothing by default.
            confine: ``auto``, ``off``, ``guard`` or ``jail``.
            workspace: kind of the workspace, or all there is to say about it.
            history: how much of the past programs can see: ``none``, a number of commits, or ``full``.
            epoch: where the clock stands.
            seed: what the session's id is drawn from; give each sample another.
            path: the directory of all this, made if need be; a temporary one by default.
            keep: whether the directory outlives the bench; by default a given one does and a temporary one does not.
            record: whether ``steps`` tells the tree after each program; that costs a snapshot each.
            at: where a jail shows the workspace.
            beside: as for ``Programs``.

        Raises:
            InvalidInput: an argument is not allowed.
            CapabilityMissing: the confinement cannot be had here.
            AdapterUnavailable: the repository cannot be used.
        """
        from pytest_gittrix.backends.local import LocalEphemeral

        if repository is not None and files is not None:
            raise InvalidInput("A bench was given a repository and its own files.", fix="Give one of them.")
        if commit is not None and repository is None:
            raise InvalidInput("A bench was given a commit and no repository.", fix="Say which repository it is of.")
        kind = LocalEphemeral(workspace, history) if isinstance(workspace, str) else workspace  # type: ignore[arg-type]
        with ExitStack() as closing:
            world = closing.enter_context(
                World.open(
                    path,
                    files=None if repository is not None else files or {},
                    repository=repository,
                    workspace=kind,
                    epoch=epoch,
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

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End what is in it, and remove its directory unless that is kept. Closing again does nothing."""
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
        """Run a program of the agent; the clock goes on by a second first. Arguments and errors are those of ``Programs.run``."""
        self.world.clock.advance(TICK)
        done = self.programs.run(argv, stdin=stdin, cwd=cwd, environment=environment, timeout=timeout, most_output=most_output, stop=stop)
        output = hashlib.sha256(done.stdout + done.stderr).hexdigest()
        self.steps.append(Step(tuple(argv), exit_code(done), output, self.tree() if self._record else ""))
        return done

    def tree(self) -> str:
        """The workspace as it is now, as a tree's id; empty where it holds what can never be promoted."""
        try:
            return self.session.for_agent().checkpoint()
        except GittrixError:
            return ""

    def diff(self) -> str:
        """What was changed, as ``git apply`` takes it."""
        return self.session.diff()

    def promote(self, message: str | None = None, *, on_overlap: str = "refuse") -> Promotion:
        """Try to make the work one commit in durable.

        Args:
            message: of the commit; ``gittrix: <task>`` by default.
            on_overlap: as for ``UserSession.promote``.
        """
        try:
            review = self.session.review()
            if not review.changes:
                return Promotion("nothing", reason="Nothing differs from the baseline.")
            done = self.session.promote(review, message=message, on_overlap=on_overlap)
        except BaselineConflict as error:
            return Promotion("conflict", reason=str(error))
        except GittrixError as error:
            return Promotion("refused", reason=f"{error.code}: {error}")
        return Promotion("promoted", sha=done.sha)


def exit_code(done: Finished) -> int | None:
    """How a program ended, as a shell tells it; None if it took too long."""
    if done.timed_out:
        return None
    return 128 + done.signal if done.signal is not None else done.code
