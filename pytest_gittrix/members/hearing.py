"""What a brain hears: texts of people, and events that become prompts, each once and in their order.

A prompt is an event of the session's log, and the agent's driver takes it from there. So it is not lost with the daemon, and one that has a
key is not stored a second time. See docs/explanation/you-know-botminter.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.acp.driver import speaks_acp
from pytest_gittrix.errors import Advice, GittrixError, InvalidInput
from pytest_gittrix.members.record import MemberRecord, TeamSettings
from pytest_gittrix.os_level.files import link_or_copy
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.lifecycle import Life

if TYPE_CHECKING:
    from pytest_gittrix.backends.forge.protocol import Topic, Topics

SOURCES: Final = ("members", "forge", "inbox")
"""What a brain can hear of: ends of other members' sessions, issues and pull requests, and files that are put into its inbox."""
INBOX: Final = "inbox"
"""The directory in the home with a directory of each member, whose files become prompts."""
TAKEN: Final = "taken"
"""The directory in an inbox with the files that have become prompts."""

QUEUED: Final = "prompt.queued"
BEGAN: Final = "hearing.began"
_OVER: Final = ("retained", "removed")
_EVERY_NS: Final = 30 * 10**9
_LONGEST: Final = 256 << 10

Heard = tuple[str, str, str]
"""A source, a key that no other prompt of the session has, and a text."""


def queue(team: TeamSettings, id_: str, text: str, source: str, key: str | None = None) -> bool:
    """Store a prompt for the agent of a session, which speaks the Agent Client Protocol and stays.

    Returns:
        Whether it was stored; False for a key that the session has had.

    Raises:
        InvalidInput: the session's agent does not run, or takes no prompts.
        GittrixError: as ``MemberRecord.locked``.
    """
    with team.record(id_).locked() as session:
        events = team.record(id_).events()
        if session.life.state != "active" or not _takes_prompts(session.life, events):
            raise InvalidInput(
                f"Session {id_} is {session.life.kind}, {session.life.state}, and takes no prompts.",
                why="An agent that stays and speaks the Agent Client Protocol takes them.",
                fix=Advice('Start one: kind="brain", and a command that begins with acp:.', "Start one: `--kind brain -- acp:PROGRAM`."),
            )
        if key is not None and key in _keys(events):
            return False
        session.add(QUEUED, {"text": text, "source": source, "key": key}, commit_point=True)
        return True


def send(team: TeamSettings, id_: str, text: str) -> None:
    """Give a session's agent a text, as ``Members.send`` documents."""
    record = team.record(id_)
    life = record.life()
    process = record.process(life)
    if life.state != "active" or process is None or process.observe().state != "alive":
        raise InvalidInput(f"Session {id_} has no agent that runs.", why="No program would read it.", fix="Start another session.")
    if _takes_prompts(life, record.events()):
        queue(team, id_, text, "person")
        return
    if _speaks(record.events()):
        raise InvalidInput(
            f"The agent of session {id_} takes no prompts.",
            why="A loop ends with the turn of its task.",
            fix=Advice('Start the member as kind="brain".', "Start the member with `--kind brain`."),
        )
    with record.locked() as session:
        session.add("user_message", {"text": text})
    process.send(text if text.endswith("\n") else f"{text}\n")


def _takes_prompts(life: Life, events: Sequence[Event]) -> bool:
    return life.kind != "loop" and _speaks(events)


def _speaks(events: Sequence[Event]) -> bool:
    commands = [event.data.get("command") or [""] for event in events if event.type == "agent.launched"]
    return bool(commands) and speaks_acp([*map(str, commands[0])])


def _keys(events: Sequence[Event]) -> frozenset[str]:
    return frozenset(str(event.data["key"]) for event in events if event.type == QUEUED and event.data.get("key") is not None)


@dataclass
class Hearing:
    """Watches the sources of events for a team's brains.

    Attributes:
        team: the team.
        topics: lists what is new at the forge; None for none.
    """

    team: TeamSettings
    topics: Topics | None = None
    _ended: dict[str, Life] = field(default_factory=dict)
    _files: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _asked_ns: int | None = None
    _news: Sequence[Topic] | None = None
    _read: dict[str, tuple[int, list[Event], Life | None]] = field(default_factory=dict)

    def look(self, sources: Mapping[str, Sequence[str]]) -> list[str]:
        """Look once at all sources, and store what is new as prompts of the brains that run.

        Args:
            sources: those that a member hears, by member; all by default.

        Returns:
            The ids of the sessions that got a prompt, once for each.
        """
        prompted = []
        for record, events, life in self._brains():
            wanted, known = sources.get(life.member, SOURCES), _keys(events)
            for source in (one for one in SOURCES if one in wanted):
                try:
                    for name, key, text in self._heard(source, record, events, life):
                        if key not in known and queue(self.team, life.id, text, name, key):
                            prompted.append(life.id)
                except (GittrixError, OSError) as problem:  # one source must not keep the others from being heard
                    self.team.complain(life.id, problem)
        return prompted

    def _brains(self) -> Iterator[tuple[MemberRecord, list[Event], Life]]:
        index = self.team.engine.services.index
        index.sync()
        active = index.lives(("active",))
        self._read = {id_: read for id_, read in self._read.items() if id_ in active}
        for id_ in active:
            with suppress(GittrixError, OSError):  # reading it by its id raises the reason
                record = self.team.record(id_)
                events, life = self._events(record)
                if life is not None and life.kind == "brain" and _takes_prompts(life, events):
                    yield record, events, life

    def _events(self, record: MemberRecord) -> tuple[list[Event], Life | None]:
        """The events of a session, read again only if its log has grown."""
        size = record.recorder.log.path.stat().st_size
        if self._read.get(record.id, (-1,))[0] != size:
            events, state = record.history()
            self._read[record.id] = size, events, state.life
        _, events, life = self._read[record.id]
        return events, life

    def _heard(self, source: str, record: MemberRecord, events: Sequence[Event], life: Life) -> Iterator[Heard]:
        if source == "members":
            return self._ends(life)
        return self._at_forge(record, events) if source == "forge" else self._dropped(life.member, _keys(events))

    # Ends of other members ---------------------------------------------------------------------------------------------------------

    def _ends(self, brain: Life) -> Iterator[Heard]:
        """The ends of other members' sessions since a brain was started; each log is read once."""
        for id_ in self.team.engine.services.index.lives(_OVER):
            if id_ not in self._ended:
                with suppress(GittrixError):
                    self._ended[id_] = self.team.record(id_).life()
        since = [one for one in self._ended.values() if one.member != brain.member and one.ended_ns and one.ended_ns >= brain.created_ns]
        for one in sorted(since, key=lambda one: (one.ended_ns or 0, one.id)):
            task = f" Its task: {one.task}" if one.task else ""
            yield "members", f"end:{one.id}", f"Session {one.id} of {one.member} ended: {one.ended}.{task}"

    # The forge ---------------------------------------------------------------------------------------------------------------------

    def _at_forge(self, record: MemberRecord, events: Sequence[Event]) -> Iterator[Heard]:
        """The issues and pull requests that were opened since a brain first looked, and what became of the pull requests."""
        if self.topics is None:
            return
        self._ask()
        if self._news is None:
            return
        after = next((event.data["after"] for event in events if event.type == BEGAN), None)
        if after is None:
            with record.locked() as session:
                session.add(BEGAN, {"source": "forge", "after": max((one.number for one in self._news), default=0)}, commit_point=True)
            return
        for one in sorted(self._news, key=lambda one: one.number):
            if one.number > after:
                what = "Pull request" if one.is_pull else "Issue"
                body = f"\n\n{one.body}" if one.body and one.state == "open" else ""
                yield "forge", f"forge:{one.number}:{one.state}", f"{what} {one.number} is {one.state}: {one.title}\n{one.url}{body}"

    def _ask(self) -> None:
        """Ask the forge, every half minute of the engine's clock."""
        assert self.topics is not None
        now = self.team.engine.clock.now_ns()
        if self._asked_ns is None or not 0 <= now - self._asked_ns < _EVERY_NS:
            self._asked_ns, self._news = now, None  # a forge that is away is not asked all the time
            self._news = self.topics.topics()

    # The inbox ---------------------------------------------------------------------------------------------------------------------

    def _dropped(self, member: str, known: frozenset[str]) -> Iterator[Heard]:
        """The files in a member's inbox that have not changed since the last look, oldest first; each is put away once it is stored."""
        place = self.team.engine.home / INBOX / member
        if "/" in member or member.startswith(".") or not place.is_dir():
            return
        for path, status in self._settled(place):
            key = f"inbox:{path.name}:{status.st_ino}:{status.st_mtime_ns}"
            if key not in known:  # else it was stored by a daemon that was killed before it put the file away
                with SafeDir.open(place) as directory:
                    data, _ = directory.part(path.name, _LONGEST, end=_LONGEST)
                yield "inbox", key, data.decode("utf-8", "replace").strip() or f"{path.name} is here, and empty."
            (place / TAKEN).mkdir(exist_ok=True)
            with suppress(FileExistsError):
                link_or_copy(path, place / TAKEN / f"{status.st_mtime_ns}-{path.name}")
            path.unlink()

    def _settled(self, place: Path) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        for path in place.iterdir():
            status: Any = path.lstat()
            now = (status.st_size, status.st_mtime_ns)
            if path.name.startswith(".") or not S_ISREG(status.st_mode):
                continue
            if self._files.get(path) == now:
                found.append((path, status))
                del self._files[path]
            else:
                self._files[path] = now  # it may still be written
        return sorted(found, key=lambda one: (one[1].st_mtime_ns, one[0].name))
