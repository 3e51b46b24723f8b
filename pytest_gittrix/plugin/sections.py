"""The world of a failed test as short sections of pytest's report, and as a bundle of files.

Everything but the races is read from the disk, without the engine, so that reading changes nothing: no event, no sweep, no lock.
"""

from __future__ import annotations

import re
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from pytest_gittrix.clock.clock import FrozenClock
from pytest_gittrix.durations import format_duration, format_instant, instant_at, instant_text
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.expiry import unseen_activity
from pytest_gittrix.engine.operations.in_use import NO_USERS, users_of
from pytest_gittrix.git.commit import Commit
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.values import SessionState, deadline_ns
from pytest_gittrix.record.store.store import LOG, Store
from pytest_gittrix.report.world_page import patches, write_world_page
from pytest_gittrix.safe_text import visible_line
from pytest_gittrix.testing.repos.durable import DurableRepo

if TYPE_CHECKING:
    from pytest_gittrix.plugin.worlds import Opened

PAGE = "page.html"
_LONGEST_NAME = 100
_LONGEST_LINE = 160
_MOST_COMMITS = 5000
_MOST_LOST = 5
_EXCHANGES_SHOWN = 3
_SHOWN = {
    "gittrix durable log": 14,
    "gittrix session events": 30,
    "gittrix sessions": 20,
    "gittrix race": 30,
    "gittrix model": 40,
    "gittrix clock": 5,
    "gittrix diff": 60,
}
# The ends of logs matter most, and the beginnings of diffs.
_FROM_THE_END = frozenset({"gittrix durable log", "gittrix session events", "gittrix race", "gittrix model"})


@dataclass(frozen=True, slots=True)
class Scene:
    """The paths of a world that the sections are read from.

    Attributes:
        durable: the durable repository.
        branch: its branch.
        store: the directory of the sessions.
        clock: the clock of the test.
        races: what happened in its races, one line each.
        swept: what swept the sessions that were swept, by their ids.
        said: the last exchanges with the test's model, a line for each thing said.
    """

    durable: Path
    branch: str
    store: Path
    clock: FrozenClock
    races: Sequence[str] = ()
    swept: Mapping[str, str] = field(default_factory=dict)
    said: Sequence[str] = ()

    @classmethod
    def of(cls, worlds: Sequence[Opened], parts: Mapping[str, object]) -> Scene:
        """The scene of the last of a test's worlds, open or closed.

        Args:
            worlds: the worlds.
            parts: the fixtures of the test, by name. An engine or a durable repository that is none of its worlds' is shown instead.
        """
        world = worlds[-1].world
        gittrix, durable = parts.get("gittrix"), parts.get("gittrix_durable")
        if not isinstance(gittrix, GitTrix) or any(one.world.gittrix is gittrix for one in worlds):
            gittrix = world.gittrix
        if not isinstance(durable, DurableRepo) or any(one.world.durable is durable for one in worlds):
            durable = world.durable
        clock = gittrix.clock if isinstance(gittrix.clock, FrozenClock) else world.clock
        races = [line for race in world.races for line in race.story()]
        swept = {one.id: one.by for one in gittrix.services.swept}
        model = vars(world).get("model")  # made when it is first asked for
        said = model.conversation(last=_EXCHANGES_SHOWN).splitlines() if model is not None else []
        said += [problem.fix for problem in model.problems[:1]] if model is not None else []
        return cls(durable.path, durable.branch, gittrix.store.root, clock, races, swept, said)


def explain_failure(
    worlds: Sequence[Opened], nodeid: str, parts: Mapping[str, object], *, kept: bool, artifacts: Path | None
) -> list[tuple[str, str]]:
    """The sections of a failed test's report.

    Args:
        worlds: the worlds of the test; the last one is shown.
        nodeid: the node id of the test.
        parts: its fixtures, by name.
        kept: whether its worlds stay on disk.
        artifacts: the directory for a bundle, if one is wanted.
    """
    scene = Scene.of(worlds, parts)
    where = [f"kept in {worlds[-1].path}"] if kept else ["not kept; --gittrix-keep=failed keeps the worlds of failed tests"]
    where += [f"and {len(worlds) - 1} more of this test next to it"] if kept and len(worlds) > 1 else []
    if artifacts is not None:
        directory = artifacts / slug(nodeid)
        try:
            write_bundle(scene, directory, nodeid)
            where.append(f"bundle in {directory}")
            where += [f"page in {directory / PAGE}"] if (directory / PAGE).exists() else []
        except OSError as problem:
            where.append(f"no bundle could be written: {problem}")
    return [*sections(scene), ("gittrix world", "\n".join(_printable(line) for line in where))]


def slug(nodeid: str) -> str:
    """Make a node id the name of a directory; different ids have different names."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid).strip("-.")
    if len(name) <= _LONGEST_NAME and re.fullmatch(r"[A-Za-z0-9_./:]+", nodeid):
        return name
    return f"{name[-_LONGEST_NAME:]}-{crc32(nodeid.encode(errors='surrogatepass')):08x}"


def sections(scene: Scene) -> list[tuple[str, str]]:
    """The title and the shortened text of each section that has any; a section that cannot be read says why."""
    readers: Mapping[str, Callable[[Scene], list[str]]] = {
        "gittrix durable log": durable_log,
        "gittrix session events": session_events,
        "gittrix sessions": deadlines,
        "gittrix race": race_lines,
        "gittrix model": lambda scene: [*scene.said],
        "gittrix clock": lambda scene: clock_lines(scene) if scene.clock.elapsed_ns else [],
        "gittrix diff": lambda scene: _lines(b"".join(patch for _, patch in patches(Store(scene.store)))),
    }
    found = {title: _attempt(read, scene) for title, read in readers.items()}
    return [(title, "\n".join(_shortened(title, lines))) for title, lines in found.items() if lines]


def write_bundle(scene: Scene, directory: Path, title: str = "The world of a test") -> None:
    """Write all files of the bundle into a directory, which is replaced.

    ``durable.log``, ``clock.txt``, ``sessions.txt`` and ``race.txt`` if there was any, and for each session ``<id>/events.jsonl`` as stored
    and, if it is active, ``<id>/changes.patch`` for ``git apply``. ``page.html`` shows all of it in a browser, under ``title``.

    Raises:
        OSError: the directory cannot be written.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    readers = (("durable.log", durable_log), ("clock.txt", clock_lines), ("sessions.txt", deadlines), ("race.txt", race_lines))
    for name, read in readers:
        if lines := _attempt(read, scene):
            (directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    store = Store(scene.store)
    for id_ in store.ids():
        (directory / id_).mkdir()
        log = store.directory(id_) / LOG
        if log.exists():
            shutil.copyfile(log, directory / id_ / LOG)
    try:
        for id_, patch in patches(store):
            (directory / id_ / "changes.patch").write_bytes(patch)
        parts = {"durable": durable_log, "clock": clock_lines, "sessions": deadlines, "race": race_lines}
        write_world_page(title, store, {name: "\n".join(_attempt(read, scene)) for name, read in parts.items()}, directory / PAGE)
    except Exception as problem:  # noqa: BLE001 - the rest of the bundle is worth having
        (directory / "problem.txt").write_text(f"{type(problem).__name__}: {problem}\n", encoding="utf-8")


def durable_log(scene: Scene) -> list[str]:
    """The commits of durable's branch, newest last: short id, time, author, subject; then those that the branch had and lost."""
    with Repository.open(scene.durable) as repository:
        head = repository.head(branch_ref(scene.branch))
        commits = list(repository.log(head, limit=_MOST_COMMITS)) if head else []
        lines = [_commit_line(commit) for commit in reversed(commits)] or [f"{scene.branch} has no commit"]
        return [*lines, *_lost_commits(scene, repository, head)]


def _lost_commits(scene: Scene, repository: Repository, head: str | None) -> list[str]:
    """The commits that were on the branch, by its reflog and by the logs of sessions, and are no ancestors of its head any more."""
    moves = [*_reflog(repository, branch_ref(scene.branch))]
    promoted = _promoted(scene)
    kept = {commit.id for commit in _ancestors(repository, [head] if head else [])}
    if len(kept) == _MOST_COMMITS:
        return []  # the history is longer than is read here, so an old commit may well be on the branch
    tips = [id_ for id_ in dict.fromkeys([*(move.new for move in moves), *promoted]) if id_ not in kept and id_.strip("0")]
    lost = sorted(_ancestors(repository, tips, kept), key=lambda commit: commit.committer.when)
    if not lost:
        return []
    by = {commit.id: f" (promoted by {promoted[commit.id]})" if commit.id in promoted else "" for commit in lost}
    dropped = [move for move in moves if move.old in by and move.new not in by]
    return [
        f"no longer on {scene.branch}:",
        *(_commit_line(commit) + by[commit.id] for commit in lost[:_MOST_LOST]),
        *([f"... {len(lost) - _MOST_LOST} more"] if len(lost) > _MOST_LOST else []),
        *(f"{scene.branch} went from {move.old[:10]} to {move.new[:10]} by {move.who}: {move.note}" for move in dropped),
    ]


class _Move(NamedTuple):
    """A line of a reflog."""

    old: str
    new: str
    who: str
    note: str


def _reflog(repository: Repository, ref: str) -> Iterator[_Move]:
    file = Path(repository.common_dir, "logs", ref)
    for line in file.read_text("utf-8", "surrogateescape").splitlines() if file.is_file() else ():
        ids, _, note = line.partition("\t")
        old, new, who = ids.split(" ", 2)
        yield _Move(old, new, who.partition(" <")[0], note)


def _promoted(scene: Scene) -> dict[str, str]:
    """The ids of the sessions that were promoted to the branch, by the id of their commit."""
    store = Store(scene.store)
    return {
        event.data["commit"]: id_
        for id_ in store.ids()
        for event in store.log(id_).salvage().events
        if event.type in ("promote.done", "promote.kept") and event.data.get("branch") == scene.branch and event.data.get("commit")
    }


def _ancestors(repository: Repository, tips: Sequence[str], known: Collection[str] = ()) -> Iterator[Commit]:
    """Commits with all their ancestors, but for known ones and those that are not stored any more."""
    pending, visited = deque(tips), {*known}
    most = len(visited) + _MOST_COMMITS
    while pending and len(visited) < most:
        id_ = pending.popleft()
        if id_ in visited:
            continue
        visited.add(id_)
        with suppress(MissingObject):
            commit = repository.commit(id_)
            yield commit
            pending.extend(commit.parents)


def _commit_line(commit: Commit) -> str:
    subject = commit.message.partition("\n")[0]
    return f"{commit.id[:10]}  {format_instant(commit.author.when)}  {commit.author.name}: {subject}"


def session_events(scene: Scene) -> list[str]:
    """The events of every session, oldest first, one a line."""
    store = Store(scene.store)
    lines: list[str] = []
    for id_ in store.ids():
        scan = store.log(id_).salvage()
        lines += [f"session {id_}", *(_event_line(event) for event in scan.events)]
        lines += [f"  line {damage.line} cannot be believed: {damage.reason}" for damage in scan.damaged]
        lines += [f"  then {scan.torn} bytes of an unfinished line"] if scan.torn else []
    return lines


def _event_line(event: Event) -> str:
    data = " ".join(f"{name}={_short(value)}" for name, value in event.data.items())
    return f"  {event.seq:>3}  {format_instant(instant_at(event.ts))}  {event.type} ({event.actor})  {data}"


def deadlines(scene: Scene) -> list[str]:
    """When each session was last used, and when its time is or was up, by the clock of the test."""
    now = scene.clock.now_ns()
    states = sorted(Store(scene.store).scan()[0], key=lambda state: (state.created_ns, state.id))
    lines = [_deadline_line(state, scene.clock, scene.store / state.id, scene.swept.get(state.id)) for state in states]
    return [f"now {instant_text(now)}; a session expires once that is past its deadline", *lines] if lines else []


def _deadline_line(state: SessionState, clock: FrozenClock, directory: Path, swept_by: str | None) -> str:
    touched = None if state.ended or state.life is not None else unseen_activity(state, clock, directory)
    if touched is not None:
        state = replace(state, last_access_ns=touched)
    used = f"last used {instant_text(state.last_access_ns)}{' by a change of its files' if touched is not None else ''}"
    deadline, now = deadline_ns(state), clock.now_ns()
    if not state.ended or state.ended_ns is None:
        place = "no deadline" if deadline is None else f"deadline {instant_text(deadline)} is {_from_now(deadline - now)}"
        users = users_of(state, directory, turns=True) if deadline is not None and deadline < now else NO_USERS
        return f"{state.id} {state.state}, {place}; {used}{f'; in use by {users}' if users else ''}"
    place = "" if swept_by is None else f", swept by {swept_by}"
    place += "" if deadline is None else f", {_beside(state.ended_ns - deadline)} its deadline {instant_text(deadline)}"
    return f"{state.id} {state.state} at {instant_text(state.ended_ns)}{place}; {used}"


def _from_now(ns: int) -> str:
    return f"{_span(ns)} from now" if ns > 0 else f"{_span(ns)} ago" if ns < 0 else "now, which is not past it"


def _beside(ns: int) -> str:
    return f"{_span(ns)} after" if ns > 0 else f"{_span(ns)} before" if ns < 0 else "at"


def _span(ns: int) -> str:
    return format_duration(timedelta(microseconds=abs(ns) // 1000))


def _short(value: Any) -> str:
    text = str(value)
    is_id = len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)
    return text[:10] if is_id else text if len(text) <= 60 else f"{text[:57]}..."


def clock_lines(scene: Scene) -> list[str]:
    """The time of the clock, and how far the test moved it."""
    return [format_instant(scene.clock.now()), f"advanced by {scene.clock.elapsed_ns / 1e9:,.6f} s, skews not counted"]


def race_lines(scene: Scene) -> list[str]:
    """What happened in the races of the test; see ``Race.story``."""
    return [*scene.races]


def _attempt(read: Callable[[Scene], list[str]], scene: Scene) -> list[str]:
    try:
        return [_printable(line) for line in read(scene)]
    except Exception as problem:  # noqa: BLE001 - a second failure must not hide the first
        return [_printable(line) for line in f"cannot be read: {type(problem).__name__}: {problem}".splitlines()]


def _lines(raw: bytes) -> list[str]:
    return raw.decode("utf-8", "surrogateescape").splitlines()


def _printable(line: str) -> str:
    """Escape what steers a terminal and what is not Unicode, so that any terminal, file and process can take the line."""
    return visible_line(line.expandtabs(4))


def _shortened(title: str, lines: list[str]) -> list[str]:
    lines = [line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines]
    left_out = len(lines) - _SHOWN[title]
    if left_out <= 0:
        return lines
    if title in _FROM_THE_END:
        return [f"... {left_out} earlier lines", *lines[left_out:]]
    return [*lines[:-left_out], f"... {left_out} more lines"]
