"""Our engine by session ids, as the conformance suite and users' comparisons drive it; ``gittrix_members`` adds members and statuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pytest_gittrix.engine.agents.turns import Turn
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.oracle import Judge
from pytest_gittrix.testing.repos.history import stored_bytes
from pytest_gittrix.testing.systems.protocol import Promoted
from pytest_gittrix.workspaces.finder.agent_archive import REPOSITORY


class GitTrixEngine:
    """``GitTrix`` by session ids. Each docstring names the method of ``UserSession`` or ``GitTrix`` that the verb calls.

    Attributes:
        gittrix: the engine.
    """

    def __init__(self, gittrix: GitTrix) -> None:
        self.gittrix = gittrix
        self._handles: dict[str, UserSession] = {}

    def _session(self, id: str) -> UserSession:
        if id not in self._handles:
            self._handles[id] = self.gittrix.get_session(id)
        return self._handles[id]

    def _keep(self, session: UserSession) -> str:
        self._handles[session.id] = session
        return session.id

    def start(self, task: str, policy: EvictionPolicy, **identity: Any) -> str:
        """``GitTrix.start_session``."""
        return self._keep(self.gittrix.start_session(task, eviction=policy, **identity))

    def read(self, id: str, path: str) -> bytes:
        """``AgentSession.read``; a link gives its target, since a system's files are compared as git stores them."""
        return self._session(id).read(path, follow=False)

    def write(self, id: str, path: str, data: bytes) -> None:
        """``AgentSession.write``; a link becomes a file, as for ``read``."""
        self._session(id).write(path, data, follow=False)

    def list(self, id: str) -> Iterable[str]:
        """``AgentSession.list``, without directories."""
        return [entry.path for entry in self._session(id).list() if entry.type != "dir"]

    def touched(self, id: str) -> Iterable[str]:
        """``AgentSession.touched_files``."""
        return self._session(id).touched_files()

    def delete(self, id: str, path: str) -> None:
        """``AgentSession.delete``."""
        self._session(id).delete(path)

    def commit(self, id: str, message: str) -> str:
        """``AgentSession.commit``."""
        return self._session(id).commit(message)

    def hunks(self, id: str) -> Mapping[str, Sequence[int]]:
        """``Review.hunks``, by number."""
        return {path: [hunk.index for hunk in found] for path, found in self._session(id).review().hunks.items()}

    def promote(
        self,
        id: str,
        files: Sequence[str] | None = None,
        message: str | None = None,
        hunks: Mapping[str, Sequence[int]] | None = None,
        strategy: str = "commit",
    ) -> Promoted:
        """``UserSession.promote``."""
        made = self._session(id).promote(files=files, message=message, hunks=hunks, strategy=strategy)
        branch = None if made.branch == getattr(self.gittrix.durable, "branch", None) else made.branch
        return Promoted(made.sha, branch, made.patch)

    def discard(self, id: str) -> None:
        """``UserSession.discard``."""
        self._session(id).discard()

    def extend(self, id: str, ttl: timedelta) -> None:
        """``UserSession.extend``."""
        self._session(id).extend(ttl)

    def archived(self, id: str) -> Mapping[str, bytes | None]:
        """``GitTrix.archives``: what the commit of the archive changes."""
        repository = next((path for path in self.gittrix.archives(id) if path.endswith("archive.git")), None)
        if repository is None:
            return {}
        with Judge(Path(repository)) as judge:
            tip = f"refs/gittrix/archive/{id}"
            return {path: stored_bytes(new) for path, new in judge.changes(f"{tip}^", tip).items()}

    def evict(self, id: str) -> None:
        """``GitTrix.evict``."""
        self.gittrix.evict(id)

    def sweep(self) -> Iterable[str]:
        """``GitTrix.sweep``."""
        return self.gittrix.sweep()

    def sessions(self) -> Mapping[str, str]:
        """``GitTrix.list_sessions``, the states."""
        return {record.id: record.state for record in self.gittrix.list_sessions()}

    def events(self, id: str) -> Sequence[Mapping[str, Any]]:
        """The stored events of the session's log."""
        return [_fields(event) for event in self.gittrix.store.log(id).read()]

    def record(self, id: str, type: str, data: Mapping[str, Any]) -> int:
        """``AgentSession.record``."""
        return self._session(id).record(type, data).seq

    def emit(self, id: str, type: str, data: Mapping[str, Any]) -> None:
        """``AgentSession.emit``."""
        self._session(id).emit(type, data)

    def subscribe(self, id: str, listener: Callable[[Mapping[str, Any]], object], types: Iterable[str] | None = None) -> Callable[[], None]:
        """``UserSession.subscribe``."""
        return self._session(id).subscribe(lambda event: listener(_fields(event)), types)

    def start_turn(self, id: str, fn: Callable[[Any], object]) -> Turn:
        """``UserSession.start_turn``, in a process."""
        return self._session(id).start_turn(fn, runs="process")

    def interrupt(self, id: str) -> bool:
        """``UserSession.interrupt``."""
        return self._session(id).interrupt()

    def turn_running(self, id: str) -> bool:
        """``UserSession.turn_running``."""
        return self._session(id).turn_running

    def fork(self, id: str, at_seq: int | None = None) -> str:
        """``UserSession.fork``."""
        return self._keep(self._session(id).fork(at_seq))

    def handoff(self, id: str, **identity: Any) -> str:
        """``UserSession.handoff``."""
        return self._keep(self._session(id).handoff(**identity))

    def finish(self, id: str, outcome: str) -> None:
        """``UserSession.discard``."""
        self._session(id).discard(outcome)

    def succeed(self, id: str, **identity: Any) -> str:
        """``GitTrix.start_session``, with the task of the one that crashed."""
        return self._keep(self.gittrix.start_session(self.gittrix.store.load(id).task, parent=id, **identity))

    def lineage(self, id: str) -> Mapping[str, Any]:
        """The lineage in the session's log."""
        state = self.gittrix.store.load(id)
        parent = state.lineage.parent if state.lineage is not None else None
        relatives = {"parent": parent, "child": state.successor, "chain": state.chain, "root": state.root}
        return {**relatives, "outcome": state.outcome, "state": state.state}

    def query(self, **filters: Any) -> Iterable[str]:
        """``GitTrix.query``, the ids."""
        return [record.id for record in self.gittrix.query(**filters)]

    def chain(self, chain: str) -> Iterable[str]:
        """``GitTrix.chain``, the ids."""
        return [record.id for record in self.gittrix.chain(chain)]

    def close(self) -> None:
        """``GitTrix.close``."""
        self.gittrix.close()


class ShellEngine(GitTrixEngine):
    """An engine whose workspaces are directories."""

    def workspace(self, id: str) -> Path:
        """``AgentSession.workspace_path``."""
        path = self._session(id).workspace_path
        assert path is not None, "a workspace of this kind has no directory"
        return path

    def side_work(self, id: str) -> Path | None:
        """``GitTrix.archives``: the agent's own repository."""
        return next((Path(path) for path in self.gittrix.archives(id) if path.endswith(REPOSITORY)), None)


def _fields(event: Event) -> Mapping[str, Any]:
    return {"seq": event.seq, "type": event.type, "data": event.data}
