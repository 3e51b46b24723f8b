"""Who may write: one owner at a time, across threads and processes, released by the system when the owner dies.

A lease is a ``flock`` on a file. The file itself means nothing: one left behind by a killed process, by eviction or by the
TypeScript GitTrix (which creates ``.lock`` and can leave it for ever) is free as soon as it is not locked.

A dead owner needs no heartbeat, since the system frees what it held. One that is stopped or hangs does: ``stale_after`` says how long
it may be silent. Its lock cannot be taken from it, but the file can be removed, so that the next owner locks another one; the old
owner learns that from ``lost`` and ``check``.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, EvictionRace, InvalidInput, LeaseLost
from pytest_gittrix.os_level.file_lock import retry, try_lock, unlock
from pytest_gittrix.os_level.files import OWNERS
from pytest_gittrix.os_level.lock_owner import (
    SECOND_NS,
    LeaseState,
    LockSnapshot,
    OnStale,
    Owner,
    about_of,
    look,
    named,
    owner_of,
    time_text,
    turnstile,
    write_evidence,
)
from pytest_gittrix.os_level.monotonic import pause, real_seconds, real_wall_seconds

__all__ = ["RELEASES", "Lease", "LeaseState", "OnStale", "Owner"]

_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_SECOND_LOOK = 0.02
RELEASES = "releases"
"""The directory next to a lock file where ``on_stale="break"`` keeps its evidence."""
_MOST_ABOUT = 100
_NOTE_SIZE = 512  # always overwritten whole, so the note of a longer-named owner never shows through


class Lease:
    """The right to change one thing, held by one owner at a time.

    Every acquisition locks a descriptor of its own, so threads exclude each other as processes do, whether they share this object
    or not. Not re-entrant: a thread that acquires it twice gets an error at once.

    Args:
        path: the lock file; made when needed, removed only when a lease is taken away.
        wait: real seconds to wait for another owner; 0 tries once.
        stale_after: seconds without a heartbeat after which an owner counts as gone; None for never. All who use one lease must say
            the same, and the owner must ``beat`` more often than that.
        on_stale: what to do about a stale owner: ``block`` refuses as for any owner, ``break`` takes the lease away from it.
        now: seconds since 1970 UTC, for heartbeats.
        about: the owner's purpose, in a few words, for the message to those that wait.
        waiting: called once with a text that says who has the lease, since when and for what, if that takes longer than ``patience``.
        patience: real seconds.

    Raises:
        InvalidInput: ``stale_after`` is not above 0, or ``on_stale`` is neither.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        wait: float = 10.0,
        stale_after: float | None = None,
        on_stale: OnStale = "block",
        now: Callable[[], float] = real_wall_seconds,
        about: str = "",
        waiting: Callable[[str], object] | None = None,
        patience: float = 2.0,
    ) -> None:
        if stale_after is not None and not stale_after > 0:
            raise InvalidInput(f"stale_after is {stale_after!r}.", why="Every owner would be stale.", fix="Use seconds above 0, or None.")
        if on_stale not in ("block", "break"):
            raise InvalidInput(f"{on_stale!r} is nothing to do about a stale lease.", fix="Use block or break.")
        self.wait = wait
        self.stale_after = stale_after
        self.on_stale: OnStale = on_stale
        self.now = now
        self._about, self._waiting, self._patience = about[:_MOST_ABOUT], waiting, patience
        self._file = os.fspath(path)
        self._fd: int | None = None
        self._holder: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        """The lock file."""
        return Path(self._file)

    @property
    def held(self) -> bool:
        """Whether this object holds the lease (in whichever thread); ``lost`` says whether it was taken away since."""
        return self._fd is not None

    @property
    def lost(self) -> bool:
        """Whether the lease was taken away from this object: the file it locked was removed or replaced since."""
        fd = self._fd
        return fd is not None and not _same_file(fd, self._file)

    def acquire(self) -> Self:
        """Wait for the lease and take it.

        Between tries the point ``lease:busy`` is passed, where a test's scheduler can let the holder go on. With ``on_stale="break"`` a
        stale owner's lease is taken away as by ``force_release``, with the evidence in ``releases`` next to the lock file.

        Raises:
            EvictionRace: another owner did not let go in time, or this thread already holds it; the message names the owner if known.
            AdapterUnavailable: the directory is missing or read-only, or the file system has no locks.
        """
        here = (os.getpid(), threading.get_ident())
        if self._holder == here:
            raise EvictionRace(
                f"{self._file} is already held by this very thread.", why="It would wait for itself.", fix="Release the lease first."
            )
        attempt = self._attempt if self._waiting is None else self._telling(self._waiting)
        self._fd, self._holder = retry(attempt, wait=self.wait, refusal=self._refused), here
        return self

    def _telling(self, waiting: Callable[[str], object]) -> Callable[[], int | None]:
        """As ``_attempt``; once it has failed for longer than the patience, tell who has the lease."""
        tell_at = real_seconds() + self._patience

        def attempt() -> int | None:
            nonlocal tell_at
            fd = self._attempt()
            if fd is None and real_seconds() >= tell_at:
                tell_at = float("inf")
                waiting(f"{self._file} is held by {self._owner_text()}")
            return fd

        return attempt

    def release(self) -> None:
        """Give the lease back; does nothing when it is not held."""
        fd, holder = self._fd, self._holder
        self._fd = self._holder = None
        if fd is None or holder is None:
            return
        try:
            # Unlocked by name: a forked child may have the descriptor too, and closing ours alone would leave it locked. For the same
            # reason such a child must not unlock what its parent holds.
            if holder[0] == os.getpid():
                unlock(fd)
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Delete the lock file while holding it; waiters notice and reopen it."""
        if self.held and not self.lost:
            with suppress(OSError):
                os.unlink(self._file)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def owner(self) -> Owner | None:
        """Who wrote its name into the file last: for messages only, since a holder may have died or not have written yet."""
        try:
            return named(self.path.read_bytes())
        except OSError:
            return None

    def check(self) -> None:
        """Make sure that this object still has the lease, before doing what only its owner may.

        Raises:
            LeaseLost: it has not: it was taken away, or never taken.
        """
        if self._fd is not None and not self.lost:
            return
        what = "was taken away from this process" if self.held else "is not held"
        raise LeaseLost(
            f"{self._file} {what}.",
            why="Another owner may be at work; two at once would lose one's work.",
            fix="Stop here, release it, and acquire it again; beating() keeps a lease from going stale.",
        )

    def beat(self) -> None:
        """Show that the owner lives. Raises LeaseLost as ``check``."""
        self.check()
        assert self._fd is not None
        self._beat(self._fd)

    @contextmanager
    def beating(self, interval: float = 1.0) -> Iterator[Self]:
        """Beat every ``interval`` seconds, from a thread, for as long as the block runs or until the lease is lost or released.

        A process that is stopped beats no more; a block that hangs does not stop the beating.

        Raises:
            LeaseLost: as ``check``, at the start; whoever works in the block calls ``check`` itself.
            InvalidInput: the interval is not above 0, or so long that the lease would go stale in between.
        """
        if not 0 < interval < (self.stale_after or float("inf")):
            raise InvalidInput(
                f"A heartbeat every {interval!r} s does not keep a lease.", fix="Use seconds above 0 and well below stale_after."
            )
        self.beat()
        held = self._fd
        assert held is not None
        over = threading.Event()
        # A descriptor of its own, so that a release in the block cannot leave it beating on a file opened since under that number.
        own = os.dup(held)

        def keep_beating() -> None:
            while not over.wait(interval) and self._fd == held and _same_file(own, self._file):
                with suppress(OSError):
                    self._beat(own)

        thread = threading.Thread(target=keep_beating, name=f"heartbeat of {self._file}", daemon=True)
        try:
            thread.start()
            yield self
        finally:
            over.set()
            thread.join()
            os.close(own)

    def state(self) -> LeaseState:
        """Whether the lease is held, without taking it; an attempt to acquire it in that very instant finds it busy.

        Returns:
            ``available`` when it is not held. ``active`` when its owner has. ``stale`` when that has not beaten for longer than
            ``stale_after``. ``ambiguous`` when it is held, but the note does not say who, or the last heartbeat is more than 5
            seconds in the future.

        Raises:
            AdapterUnavailable: the file cannot be read.
        """
        return self._seen()[0]

    def force_release(self, reason: str, evidence: Path | str) -> Path | None:
        """Take the lease away from an owner that does not seem to work any more, and keep evidence of it.

        The evidence is written first; then the lock file is removed, so that the next owner locks another one.

        Args:
            reason: why, for people.
            evidence: the directory for it; made if needed.

        Returns:
            The file of the evidence; None when the lease was not held, and nothing was done.

        Raises:
            EvictionRace: its owner is active, or others were taking it, or taking it away, for longer than ``wait``.
            AdapterUnavailable: the evidence cannot be written, or the file not be read or removed.
        """
        if self._seen(again=False)[0] == "available":
            return None
        return self._take_away(reason, Path(evidence), ("stale", "ambiguous"), wait=self.wait)

    def _broke_stale(self) -> bool:
        """Whether the lease may be free now, because it was stale."""
        if self._seen(again=False, met=True)[0] != "stale":
            return False
        try:
            self._take_away("A stale lease was in the way of one that breaks them.", self.path.parent / RELEASES, ("stale",), wait=0)
        except EvictionRace:
            return False
        return True

    def _take_away(self, reason: str, evidence: Path, states: tuple[LeaseState, ...], *, wait: float) -> Path | None:
        try:
            with turnstile(self._file, alone=True, wait=wait) as ours:
                if not ours:
                    raise EvictionRace(
                        f"{self._file} is being taken, or taken away, by others.",
                        why="Of two who take it away, one could take it from the wrong owner.",
                        fix="Try again in a moment.",
                    )
                state, seen = self._seen()
                if state == "available":
                    return None
                if state not in states:
                    raise EvictionRace(
                        f"{self._file} is {state}: its last heartbeat was at {time_text(seen.beat_ns)}.",
                        why="Its owner may be in the middle of its work.",
                        fix="Let it finish, or stop it; a lease is free as soon as its owner is dead.",
                        opt_out="A shorter stale_after calls it stale sooner.",
                    )
                written = write_evidence(evidence, self._file, self._facts(reason, state, seen), now_ns=self._now_ns())
                os.unlink(self._file)
                return written
        except OSError as problem:
            raise self._unavailable(problem) from problem

    def _facts(self, reason: str, state: LeaseState, seen: LockSnapshot) -> dict[str, Any]:
        owner = seen.owner
        return {
            "state": state,
            "reason": reason,
            "owner": owner.to_json() if owner else None,
            "note": None if owner else seen.note.decode("utf-8", "replace").strip(),
            "last_heartbeat": time_text(seen.beat_ns),
            "last_heartbeat_ns": seen.beat_ns,
            "stale_after_s": self.stale_after,
            "released_at": time_text(self._now_ns()),
            "released_by": Owner.current().to_json(),
        }

    def _seen(self, *, again: bool = True, met: bool = False) -> tuple[LeaseState, LockSnapshot]:
        try:
            seen = look(self._file, met=met)
        except OSError as problem:
            raise self._unavailable(problem) from problem
        state = seen.judged(now_ns=self._now_ns(), stale_after=self.stale_after)
        if state in ("available", "active") or not again:
            return state, seen
        # A new owner writes its name just after it has the lock; until then the file tells of the one before.
        pause(_SECOND_LOOK)
        return self._seen(again=False, met=met)

    def _now_ns(self) -> int:
        return int(self.now() * SECOND_NS)

    def _beat(self, fd: int) -> None:
        if self.now is real_wall_seconds:
            os.utime(fd)  # the system's own now may be written by others than the file's owner
            return
        at = self._now_ns()
        os.utime(fd, ns=(at, at))

    def _attempt(self) -> int | None:
        """Try once, and once more for each stale owner whose lease was taken away."""
        while (fd := self._try() if self.stale_after is None else self._try_beating()) is None:
            points.reached("lease:busy")
            if self.on_stale != "break" or not self._broke_stale():
                return None
        return fd

    def _try_beating(self) -> int | None:
        """As ``_try``, for a lease that can go stale: it is not taken away before its owner has shown itself."""
        try:
            with turnstile(self._file, alone=False) as ours:
                fd = self._try() if ours else None
                if fd is not None:
                    with suppress(OSError):  # the note has just dated the file, if less exactly
                        self._beat(fd)
                return fd
        except OSError as problem:
            raise self._unavailable(problem) from problem

    def _try(self) -> int | None:
        """A locked descriptor of the file the path names, or None when another owner has it."""
        while True:
            fd, ours = None, False
            try:
                fd = os.open(self._file, _OPEN, OWNERS)
                if not try_lock(fd):
                    return None
                # Not so if eviction removed the file between our open and our lock: then we locked a file without a name.
                ours = _same_file(fd, self._file)
                if ours:
                    with suppress(OSError):  # a full disk must not keep anybody from making room on it
                        os.pwrite(fd, _note(os.getpid(), self._about), 0)
                    return fd
            except OSError as problem:
                raise self._unavailable(problem) from problem
            finally:
                if fd is not None and not ours:
                    os.close(fd)

    def _refused(self) -> EvictionRace:
        holder = self._owner_text()
        if self.stale_after is not None:
            state, seen = self._seen(met=True)
            if state == "stale":
                return EvictionRace(
                    f"{self._file} is stale: {holder} has it, and its last heartbeat was at {time_text(seen.beat_ns)}, "
                    f"more than {self.stale_after:g} s ago.",
                    why="An owner that was only stopped can come back and go on with its work.",
                    fix="Check that process; if it is of no use any more, end it, or force_release() its lease.",
                    opt_out='Take stale leases without asking with on_stale="break".',
                )
        return EvictionRace(
            f"{self._file} is held by {holder}, which did not let go within {self.wait:g} s.",
            why="Two owners at once would lose one's work.",
            fix="Let it finish and try again. `kill -CONT` lets a stopped process go on; of one that is dead, a child has the lock.",
        )

    def _owner_text(self) -> str:
        """Who has the lease, for what and since when, as far as the lock file and the system tell."""
        try:
            note, since = self.path.read_bytes(), os.stat(self._file).st_mtime_ns
        except OSError:
            return "another process"
        owner = named(note)
        if owner is None:
            return "another process"
        about = about_of(note)
        stopped = ", which is stopped" if owner.stopped() else ""
        return f"process {owner.pid} on {owner.host}{stopped}{f', for {about}' if about else ''}, since {time_text(since)}"

    def _unavailable(self, problem: OSError) -> AdapterUnavailable:
        if problem.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            return AdapterUnavailable(
                f"The file system of {self._file} has no file locks: {problem.strerror}.",
                why="Without them two processes could write one session.",
                fix="Keep the store on a local file system (GITTRIX_HOME).",
            )
        return AdapterUnavailable(
            f"The lock file {self._file} cannot be used: {problem.strerror}.",
            why="Nothing is changed without the lease.",
            fix="See that its directory exists and is writable.",
        )


def _same_file(fd: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


@lru_cache(maxsize=16)
def _note(pid: int, about: str) -> bytes:
    purpose = {"about": about} if about else {}
    return json.dumps(owner_of(pid).to_json() | purpose).encode().ljust(_NOTE_SIZE - 1) + b"\n"
