"""Runs an agent's program in a session with a model whose exchanges are kept, from the beginning or another way from one of them."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.confine.started_program import Finished
from pytest_gittrix.engine.agents.exchanges import KeptExchanges
from pytest_gittrix.engine.agents.session_parts import SessionParts, parts_of
from pytest_gittrix.engine.lineage.exchange_point import ExchangePoint
from pytest_gittrix.engine.operations.checkpoints import CHECKPOINTS, files_at
from pytest_gittrix.engine.operations.recorder import Recorder
from pytest_gittrix.engine.operations.review import current_snapshot
from pytest_gittrix.engine.services import EngineServices
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import Advice, GittrixError, InvalidInput
from pytest_gittrix.model.named import model_named
from pytest_gittrix.model.server import ModelServer
from pytest_gittrix.model.tapes.placeholders import Known, days, known_here
from pytest_gittrix.model.tapes.player import TapeMismatch
from pytest_gittrix.os_level.monotonic import real_wall_seconds
from pytest_gittrix.safe_text import visible_line
from pytest_gittrix.workspaces.secrets import without_secrets

_SHOWN: Final = 8
_LONGEST_COMMAND: Final = 2_000

Hear = Callable[[bytes], object]


def kept_exchanges(services: EngineServices, id_: str, places: Callable[[], Mapping[str, str]] = dict) -> KeptExchanges:
    """What stores the exchanges of a session, with what was said and the files of each.

    Args:
        services: the engine's.
        id_: the session.
        places: gives further texts that a tape has under names.

    Raises:
        GittrixError: the session has no workspace whose files could be saved.
    """
    recorder = services.recorder(id_)
    state = recorder.read()
    workspace = services.resources.open_workspace(state)
    parts = SessionParts(recorder, workspace, services.resources.ephemeral_of(state).limits, "agent", deque())
    return KeptExchanges(parts, known_of(services, id_, str(workspace.path), places))


def known_of(
    services: EngineServices, id_: str, workspace: str, places: Callable[[], Mapping[str, str]] = dict
) -> Callable[[], Known]:  # fmt: skip
    """What gives the placeholders of a session: its workspace, and further places."""

    def known() -> Known:
        found = {**places(), "workspace": workspace, "session": id_}
        return known_here(tuple(found.items()), days(services.resources.clock.now_ns() / 1e9, real_wall_seconds()))

    return known


def require_files(parent: Recorder, point: ExchangePoint, child: UserSession) -> None:
    """See that a session that repeats a run has the files that the run had at an exchange.

    Args:
        parent: the record of the session whose run it is.
        point: the exchange.
        child: the session that repeats it; its agent waits for an answer.

    Raises:
        TapeMismatch: it has other files; the first are named.
    """
    parts = parts_of(child)
    with parts.recorder.twin().leased() as state, parts.workspace.operation():
        snapshot = current_snapshot(state, parts.workspace, parts.limits)
    if snapshot.tree == point.files:
        return
    paths: list[str] = []
    with suppress(GittrixError, OSError):  # its checkpoints are gone with its workspace
        then = files_at(parent.directory.joinpath(*CHECKPOINTS), snapshot.seed, point.files).changes
        paths = [path for path in sorted({*then, *snapshot.changes}) if then.get(path, ...) != snapshot.changes.get(path, ...)]
    named = f": {', '.join(map(visible_line, paths[:_SHOWN]))}{' and more' * (len(paths) > _SHOWN)}" if paths else ""
    raise TapeMismatch(
        f"The files differ from those at exchange {point.number} of session {parent.id}{named}.",
        why="Two models are compared from one state, or the comparison says nothing of them.",
        fix="Have what the agent runs write the same each time: no dates, no chance.",
        opt_out="Leniently, the run goes on with the files that are there.",
    )


@dataclass(frozen=True)
class AgentRun:
    """How a program of an agent ended that was run with a model.

    Attributes:
        ended: how it ended.
        exchanges: how many exchanges it had, without side requests.
        replayed: how many of them were answered as they were before.
        problem: what is wrong with the exchanges: one that nobody could answer, or a part of a tape or script that was not asked for.
    """

    ended: Finished
    exchanges: int
    replayed: int
    problem: GittrixError | None


@dataclass(frozen=True)
class ModelRun:
    """A program of an agent to run in a session, with a model whose exchanges are kept in the session.

    Attributes:
        services: the engine's.
        session: the session.
        model: who answers, by a name that ``model_named`` takes.
        parent: the session whose run is repeated up to ``point``; None for a run from the beginning.
        point: the exchange from which on ``model`` answers.
        lenient: whether a repeated run may say other words, and have other files.
        home: a directory whose files the program's home begins with; None for an empty one.
        settings: those of ``AgentSession.programs``: ``confine``, ``limits`` and ``readable``.
        network: what the program reaches beside the model.
    """

    services: EngineServices
    session: UserSession
    model: str
    parent: str | None = None
    point: ExchangePoint | None = None
    lenient: bool = False
    home: Path | None = None
    settings: Mapping[str, Any] | None = None
    network: Iterable[Any] = ()

    def run(self, command: Sequence[str], *, out: Hear | None = None, err: Hear | None = None, timeout: float | None = None) -> AgentRun:
        """Run the program to its end.

        Args:
            command: the program and its arguments.
            out: is called with what it prints, as it comes.
            err: the same for its errors.
            timeout: real seconds after which it is killed.

        Raises:
            InvalidInput: there is no such model, the repeated run began with other files in its home, or as for ``AgentSession.programs``.
            GittrixError: as for ``Programs.start``.
        """
        id_, clock = self.session.id, self.services.resources.clock
        home = "" if self.home is None else _digest_of(self.home)
        if self.point is not None and not self.lenient and self.point.home not in (None, home):
            raise _other_home(self.parent, self.point, given=bool(home))
        with ExitStack() as held:
            kept = kept_exchanges(self.services, id_)
            known = known_of(self.services, id_, str(self.session.workspace_path))
            server = ModelServer(
                now=lambda: clock.now_ns() / 1e9,
                on_request=lambda *_: kept.came(),
                on_exchange=kept.record,
                places=lambda: {"workspace": str(self.session.workspace_path), "session": id_},
            )
            self._let_answer(server, known)
            held.enter_context(server)
            agent = self.session.for_agent()
            settings = dict(self.settings or {})
            network: Any = "all" if settings.get("confine") == "off" else [server.endpoint, *self.network]
            programs = held.enter_context(agent.programs(network=network, **settings))
            if self.home is not None:
                shutil.copytree(self.home, programs.home, symlinks=True, dirs_exist_ok=True)
            name = kept.run = self._began(command, home)
            environment = server.env(id_) if programs.confinement.level == "off" else None
            running = held.enter_context(
                programs.start(command, stdin=b"", environment=environment, timeout=timeout, keep="unread" if out else "last")
            )
            hearing = [threading.Thread(target=_hear, args=pair) for pair in ((running.stdout, out), (running.stderr, err)) if pair[1]]
            for thread in hearing:
                thread.start()
            ended = running.wait()
            for thread in hearing:
                thread.join()
            self._ended(name, ended)
            problem = _problem_of(server)
            asked = [one for one in server.exchanges if one.side is None]
            return AgentRun(ended, len(asked), sum(one.origin == "tape" for one in asked) if self.point else 0, problem)

    def _let_answer(self, server: ModelServer, known: Callable[[], Known]) -> None:
        later = model_named(self.model, known)
        if self.point is None or self.parent is None:
            return server.answer_with(later)
        reached = partial(require_files, self.services.recorder(self.parent), self.point, self.session)
        return server.go_on(
            self.session.id,
            self.point.earlier,
            known,
            later=later,
            reached=(lambda: None) if self.lenient else reached,
            lenient=self.lenient,
        )

    def _began(self, command: Sequence[str], home: str) -> str:
        shown = without_secrets(shlex.join(command), lambda _: "{secret}")[:_LONGEST_COMMAND]
        data: dict[str, Any] = {"command": shown, "model": self.model, "home": home}
        if self.point is not None:
            data |= {"parent": self.parent, "at_seq": self.point.seq, "exchanges": len(self.point.earlier.exchanges)}
        recorder = self.services.recorder(self.session.id)
        with recorder.working("run", "agent") as state:
            name = f"r{state.seq + 1}"
            recorder.append("run.started", {"run": name, **data}, actor="agent")
        return name

    def _ended(self, name: str, ended: Finished) -> None:
        reason = "out of time" if ended.timed_out else ended.ended
        more = {name: value for name, value in (("code", ended.code), ("signal", ended.signal), ("reason", reason)) if value is not None}
        recorder = self.services.recorder(self.session.id)
        with suppress(GittrixError), recorder.leased():
            recorder.append("run.ended", {"run": name, **more}, actor="agent")


def _digest_of(home: Path) -> str:
    """The digest of the files that a home begins with, which may hold credentials and are not kept themselves."""
    found = hashlib.sha256()
    for path in sorted(home.rglob("*")):
        found.update(os.fsencode(path.relative_to(home)) + b"\0")
        if path.is_symlink():
            found.update(b"link " + os.fsencode(path.readlink()) + b"\0")
        elif path.is_file():
            found.update(b"file " + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _other_home(parent: str | None, point: ExchangePoint, *, given: bool) -> InvalidInput:
    began = "with files in its home" if point.home else "with an empty home"
    now = "this one is given others" if given and point.home else "this one is given some" if given else "this one is given none"
    return InvalidInput(
        f"The run of session {parent} began {began}, and {now}.",
        why="The agent has its settings and earlier conversations there, so it would not do the same again up to the exchange.",
        fix=Advice(
            "Give home= the directory as it was then; the session has its digest, not its files, which may hold credentials."
            if point.home
            else "Give no home=.",
            "Give --home the directory as it was then; the session has its digest, not its files, which may hold credentials."
            if point.home
            else "Leave --home out.",
        ),
        opt_out=Advice("lenient=True goes on all the same.", "--lenient goes on all the same."),
    )


def _hear(stream: Iterable[bytes], hear: Hear) -> None:
    for piece in stream:
        hear(piece)


def _problem_of(server: ModelServer) -> GittrixError | None:
    try:
        server.check()
    except GittrixError as problem:
        return problem
    return None
