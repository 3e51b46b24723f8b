"""A session as the person in charge holds it: everything that its agent has, and the decisions."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pytest_gittrix.engine.agents.agent_session import AgentSession
from pytest_gittrix.engine.eviction.archive import Archive, archives_in
from pytest_gittrix.engine.lineage.fork import ForkRequest
from pytest_gittrix.engine.lineage.handoff import Handoff
from pytest_gittrix.engine.lineage.start import check_identity
from pytest_gittrix.engine.operations.agent_commits import CommitEntry
from pytest_gittrix.engine.operations.conversation import check_types
from pytest_gittrix.engine.operations.info import SessionInfo
from pytest_gittrix.engine.operations.moved_refs import moved_references
from pytest_gittrix.engine.operations.recorder import require_live
from pytest_gittrix.engine.operations.requester import require_person
from pytest_gittrix.engine.operations.resources import durable_ref
from pytest_gittrix.engine.operations.review import Review, filtered_of, narrowed
from pytest_gittrix.engine.operations.shown_files import ListEntry
from pytest_gittrix.engine.operations.validation import check_hunks, check_paths, check_ttl, policy_of
from pytest_gittrix.engine.promotion.conflicts import check_on_overlap
from pytest_gittrix.engine.promotion.promotion import Promotion
from pytest_gittrix.engine.promotion.rebasing import Rebase
from pytest_gittrix.engine.promotion.request import MANY_FILES, PromoteRequest, check_many_files, check_on_hazard
from pytest_gittrix.engine.promotion.selection import select
from pytest_gittrix.engine.promotion.strategy import check_strategy
from pytest_gittrix.engine.services import EngineServices
from pytest_gittrix.engine.session_with_turns import SessionWithTurns
from pytest_gittrix.engine.sweep import evict
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.record.eventlog.events import Event, path_fields
from pytest_gittrix.record.state.fold import metadata_of
from pytest_gittrix.views import view

if TYPE_CHECKING:
    from pytest_gittrix.engine.lineage.fork import FilesOf
    from pytest_gittrix.engine.operations.moved_refs import MovedRef
    from pytest_gittrix.engine.promotion.promotion import PromoteResult
    from pytest_gittrix.engine.promotion.rebasing import RebaseResult
    from pytest_gittrix.record.state.records import Eviction

__all__ = ["AgentSession", "CommitEntry", "ListEntry", "Review", "SessionInfo", "UserSession"]


class UserSession(SessionWithTurns):
    """What the person in charge gets: everything the agent has, and the decisions."""

    def review(self, files: Iterable[str] | None = None) -> Review:
        """Fix a snapshot to review; ``promote(review)`` promotes exactly its bytes.

        Args:
            files: touched paths to review; everything touched by default.

        Raises:
            PromoteFailed: a path was not touched.
        """
        files = None if files is None else [self._relative(path) for path in check_paths(files, "files")]
        with self._working("review") as state:
            snapshot = self._snapshot(state, files or ())
            if files is not None:
                files = [self._shown(state).touched_name(snapshot, path) for path in files]
            snapshot = narrowed(state, snapshot, files or ())
            changes = snapshot.changes if files is None else select(snapshot, files, None).changes
            kept_raw = filtered_of(state, snapshot, changes, snapshot.blobs)
            return Review(self.id, state.baseline, changes, snapshot, self._beside(state, snapshot), kept_raw)

    def promote(
        self,
        what: Review | Iterable[str] | None = None,
        *,
        files: Iterable[str] | None = None,
        hunks: Mapping[str, Collection[int]] | None = None,
        strategy: str = "auto",
        message: str | None = None,
        on_overlap: str = "refuse",
        base: str | None = None,
        title: str | None = None,
        body: str | None = None,
        draft: bool = False,
        refuse_secrets: bool | None = None,
        allow_secrets: Iterable[str] = (),
        keep: bool | None = None,
        allow_filtered: bool = False,
        on_hazard: str = "warn",
        many_files: int = MANY_FILES,
    ) -> PromoteResult:
        """Make the selection one commit in durable, or change nothing.

        With ``pr``, a pull request is opened once the commit is in. That the forge fails then is a warning of the result, and its
        ``pr_url`` is None.

        Args:
            what: a review, whose bytes are promoted; or paths, as ``files``; everything touched by default.
            files: touched paths to promote.
            hunks: for a path, numbers (from 1) of the hunks to promote; the rest of that file stays as durable has it.
            strategy: ``commit`` on the branch, ``branch`` (``gittrix/<task>``), ``pr`` (such a branch, by the session's ``topic_branch``
                if that name is free, and a pull request), ``patch``, or ``auto``.
            message: the commit message; ``gittrix: <task>`` by default.
            on_overlap: ``refuse`` if durable drifted over the selection, ``allow-identical`` bytes, or ``merge`` as text.
            base: only with ``pr``: the branch it goes to; the session's durable branch by default.
            title: only with ``pr``: its title; the first line of the message by default.
            body: only with ``pr``: its text; the rest of the message and the session's id by default.
            draft: only with ``pr``: not to be merged yet.
            refuse_secrets: promote nothing if a selected file looks like credentials, or gained lines that do. By default that is so where
                the commit leaves this machine: durable is elsewhere, or a pull request is opened. Otherwise listeners of
                ``promote.secrets`` hear of them before anything lands, and the result tells of them, in ``.secrets``.
            allow_secrets: paths of files that may look so.
            keep: go on with the session: the commit is its baseline then, and what was not promoted stays touched. With ``branch`` and
                ``pr`` the new branch is the session's too, so that the next promotion adds to it. By default a promotion ends the session,
                unless it was started with ``keep_after_promote`` and this is to a pull request.
            allow_filtered: promote the bytes of files that a filter such as Git LFS would store otherwise.
            on_hazard: ``warn`` of new paths that other machines or programs cannot take, or take for something else, ``refuse`` them, or
                ``allow`` them without a word.
            many_files: warn where more files than so many are promoted and neither paths, hunks nor a review were given; 0 for never.

        Raises:
            BaselineConflict: durable drifted over the selection, or with ``keep`` over work that is not promoted; the session stays
                active.
            PromoteFailed: nothing is selected, a path was not touched, a checkout is in the way (``WorktreeDirty``), names collide
                (``PathCollision``), durable is locked (``DurableLocked``), there are secrets or hazards to be refused (``SecretsFound``,
                ``HazardousPath``), or files that a filter would store otherwise (``FilteredContent``).
            InvalidInput: an argument has a value that is not allowed.
            CapabilityMissing: strategy ``pr``, and the engine has no forge of the repository.
            PersonRequired: an agent's process asks.
        """
        require_person(self._services.store.root, "promote")
        request = PromoteRequest(
            what,
            files,
            check_hunks(hunks),
            check_strategy(strategy),
            message,
            check_on_overlap(on_overlap),
            base,
            title,
            body,
            draft,
            refuse_secrets,
            allow_secrets,
            keep,
            allow_filtered,
            check_on_hazard(on_hazard),
            check_many_files(many_files),
        ).checked(self._relative)
        services = self._services
        result = Promotion(services.promoting, services.settled(self._recorder), self._workspace, request).run()
        services.tidy()
        return result

    def rebase(self) -> RebaseResult:
        """Move the session's baseline to durable's head; what the agent did stays, on top of it.

        Where both sides changed a file, the two edits are merged as by ``promote(on_overlap="merge")``. Files that git ignores stay as they
        are. The files of before are kept as a checkpoint: ``fork(result.checkpoint)`` starts a session with them.

        Returns:
            What came of it; nothing was done where durable has not changed.

        Raises:
            BaselineConflict: two edits do not merge, or what durable changed is in the way of work; nothing was changed.
            SessionInUse: programs work in the workspace; nothing was changed.
            TurnBusy: a turn is running.
            CapabilityMissing: another system started the session, so it cannot get another baseline.
            PersonRequired: an agent's process asks.
        """
        services = self._services
        require_person(services.store.root, "rebase")
        recorder = services.settled(self._recorder)
        with services.turns.pausing(recorder):
            result = Rebase(services.resources, recorder, self._workspace).run()
        services.tidy()
        return result

    def discard(self, outcome: str | None = None, *, force: bool = False) -> None:
        """End the session without promoting; its work is archived and its workspace removed.

        Args:
            outcome: how its agent did, for later queries: ``done``, ``crash`` or ``killed`` (Gas Town).
            force: do so although processes work in its workspace. Programs that the engine runs get SIGTERM, and five seconds later what is
                left of them is killed; their results have ``ended``. Other processes go on in a directory that is gone.

        Raises:
            SessionInUse: processes work in its workspace; nothing was changed.
            AdapterUnavailable: the system refused something. If ``outcome`` is ``unknown``, the session has ended, and the next recovery
                archives its work and removes its workspace.
            PersonRequired: an agent's process asks.
        """
        require_person(self._services.store.root, "discard")
        evict(self._services, self.id, "discarded", outcome=outcome, force=force)
        self._workspace.close()

    def handoff(self, task: str | None = None, *, eviction: Eviction | None = None, id: str | None = None, **identity: str) -> UserSession:
        """End this session and go on in a new one of the same chain, with this one's workspace as it is (Gas Town).

        Args:
            task: of the new session; this one's by default.
            eviction: its policy; this one's by default.
            id: its id, if another program chose it; see ``GitTrix.start_session``.
            identity: who works in it, and on what, as for ``start_session``; other facts are as in this session. Another agent has
                neither its terminal nor its working directory.

        Raises:
            TurnBusy: a turn is running.
            CapabilityMissing: the workspace is a ``worktree``, which durable refers to by its path.
            InvalidInput: an argument is not allowed.
            AdapterUnavailable: the system refused something. If ``outcome`` is ``unknown``, the next recovery finishes the handoff, and
                ``session`` is the id of the new session, or undoes it. If it is None, the handoff is done, and only the new session
                cannot be opened.
        """
        services = self._services
        recorder = services.settled(self._recorder)
        policy = policy_of(eviction, None)
        with services.turns.pausing(recorder):
            child = Handoff(services.resources, recorder, task, policy, identity, id).run()
        self._workspace.close()
        try:
            return open_session(services, child)
        except GittrixError as problem:
            problem.session = child  # the handoff is done
            raise

    def fork(
        self,
        at_seq: int | None = None,
        *,
        task: str | None = None,
        summary: str | bool | None = None,
        files: FilesOf = "then",
        eviction: Eviction | None = None,
        id: str | None = None,
        **identity: str,
    ) -> UserSession:
        """Start another session that begins as this one was after an event. This one is only read (Pixir).

        Args:
            at_seq: the event; the last one by default. ``history()`` shows their numbers.
            task: of the new session; this one's by default.
            summary: of the events that are left out, as its last ``branch_summary``; True has the engine count them.
            files: ``then`` (as they were after the event), ``now``, or ``baseline`` (without the agent's changes). Commits of the agent
                come along as changed files.
            eviction: its policy; this one's by default.
            id: its id, if another program chose it; see ``GitTrix.start_session``.
            identity: who works in it, and on what; other facts are as they were in this session then.

        Raises:
            InvalidInput: there is no such event, its files were not saved then (the message says after which they were), or an argument is
                not allowed.
            AdapterUnavailable: this session has ended, and its files are gone with its workspace.
        """
        request = ForkRequest(at_seq, task, summary, files, policy_of(eviction, None), id, identity)
        return fork_session(self._services, self.id, request)

    def identify(self, **identity: str | None) -> None:
        """Change who works in the session, or on what; None removes a fact (Gas Town).

        Args:
            identity: ``agent``, ``rig``, ``role``, ``work_unit`` and so on; see ``values.IDENTITY``.

        Raises:
            InvalidInput: there is no such fact, or it is no text.
            PersonRequired: an agent's process asks for another ``role``, by which it could be the one that leads others.
        """
        if "role" in identity:
            require_person(self._services.store.root, "change the role of a session")
        self._note("session.identified", {"identity": check_identity(identity)})

    def subscribe(self, listener: Callable[[Event], object], types: Iterable[str] | None = None) -> Callable[[], None]:
        """Have ``listener(event)`` called for each event of this session from now on, once it is stored, in order.

        Args:
            listener: also called for events that are only announced. Its exceptions are reported and change nothing.
            types: only these; all by default.

        Returns:
            A function that ends the subscription.

        Raises:
            InvalidInput: there is no such type.
        """
        wanted = check_types(types)

        def call_listener(event: Event) -> None:
            if event.stream == self.id and (wanted is None or event.type in wanted):
                listener(event)

        return self._services.emitter.on("*", call_listener)

    def view(self, name: str) -> dict[str, Any]:
        """The session's record in another system's own schema; ``views.VIEWS`` has the names.

        Raises:
            InvalidInput: there is no such view.
        """
        return view(self.history(), name)

    def extend(self, ttl: timedelta | str) -> None:
        """Replace the idle TTL, which starts again now.

        Args:
            ttl: a timedelta, or a text such as ``"30m"``.

        Raises:
            InvalidInput: it is neither, not positive, or longer than a hundred years.
            PersonRequired: an agent's process asks.
        """
        idle_ns = check_ttl(ttl) // timedelta(microseconds=1) * 1000
        require_person(self._services.store.root, "extend")
        with self._recorder.working("extend", self._actor):
            self._recorder.append("session.extended", {"ttl_idle_ns": idle_ns}, actor=self._actor)

    def relocate(self, path: str | os.PathLike[str]) -> None:
        """Name the place where the durable repository is now, after it was moved on this machine.

        Args:
            path: the repository, or a directory inside its work tree.

        Raises:
            AdapterUnavailable: there is no repository, or it is another one.
            CapabilityMissing: durable is behind an address, or the workspace is a ``worktree``.
            PersonRequired: an agent's process asks.
        """
        require_person(self._services.store.root, "relocate")
        with self._recorder.working("relocate", self._actor) as state:
            durable = self._services.resources.moved_durable(state, os.fspath(path))
            place = {
                "durable_ref": durable_ref(durable, state.durable_branch or durable.branch),
                **path_fields(durable.path or "", "durable_path"),
            }
            self._recorder.append("session.relocated", place, actor=self._actor)

    @property
    def archives(self) -> tuple[str, ...]:
        """The paths of what was archived of its work, also after its end; none if nothing was."""
        return archives_in(self._services.store.directory(self.id))

    def archive(self) -> Archive | None:
        """Archive the session's changes, without ending it; None if nothing differs from the baseline."""
        services = self._services
        recorder = services.recorder(self.id)
        with recorder.working("archive", "human") as state:
            return services.evictor.set_aside(recorder, state, services.resources.open_workspace(state))

    def moved_refs(self) -> list[MovedRef]:
        """The branches and tags of durable that moved since the session started and that no promotion moved."""
        return moved_refs(self._services, self.id)

    def metadata(self) -> dict[str, Any]:
        """The documented version-1 record, as JSON."""
        return metadata_of(self._recorder.read())


def open_session(services: EngineServices, id_: str) -> UserSession:
    """A live session by its id; ``GitTrix.get_session`` says what is raised."""
    recorder = services.recorder(id_)
    state = recorder.read()
    require_live(state)
    return UserSession(services, recorder, services.resources.open_workspace(state))


def fork_session(services: EngineServices, id_: str, request: ForkRequest) -> UserSession:
    """A session that begins as another one, perhaps ended, was after an event; ``UserSession.fork`` says how and what it raises."""
    start = request.start_from(services.recorder(id_), services.resources)
    return UserSession(services, *start.run(services.resources))


def moved_refs(services: EngineServices, id_: str) -> list[MovedRef]:
    """The references of durable that moved since a live session started, and by no promotion; see ``GitTrix.moved_refs``."""
    state = services.recorder(id_).read()
    require_live(state)
    durable = services.resources.durable_of(state)
    return moved_references(services.store.directory(id_) / "engine", durable, services.records.promoted())
