"""The cycle: start a session, let the agent write twenty files, read the diff, promote, evict; for each kind and each baseline.

``cycle`` puts the branch back between rounds, so that everything is warm. ``moving`` does not: each session starts from the commit that the
one before promoted, and everything is written through to the disk, as in use. Also what a judgement of drift costs alone, since that must
grow with what changed and not with the repository.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.baselines import ByHand, GitCommands, Pygit2Floor
from benchmarks.measure import TOTAL, Measurement, Phases, Stopwatch, Variant, interleave, scratch, summarise, timed
from benchmarks.report import BY_HAND, GIT, PYGIT2
from benchmarks.sample import Copy, Sample
from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.pack import install_pack
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import FILE, Entry
from pytest_gittrix.workspaces.kinds import KINDS, WorkspaceKind

READ_TWICE: Final = "clone, diff() + promote()"
WITH_SPARE: Final = "clone, a spare"
WITH_PROGRAM: Final = "overlay, with .git"
"""An overlay whose start makes the repository that its first program sees, too; without a program nobody needs it."""
WITH_PROGRAM_AND_SPARE: Final = "overlay, with .git, a spare"
DELETE: Final = "delete"
"""Removing what was renamed away, and making spares: later in the engine and the floors, at once in git's ``worktree remove``."""

_ROUNDS: Final = {10: 61, 1_000: 25, 10_000: 9}
_SECONDS: Final = {10: 15.0, 1_000: 20.0, 10_000: 35.0}
_MOST_SECONDS: Final = 80.0
_LEAST_ROUNDS: Final = 5


class EngineCycle:
    """The engine's own cycle in one kind of workspace."""

    def __init__(
        self,
        kind: WorkspaceKind,
        sample: Sample,
        durable: Copy,
        directory: Path,
        home: Path,
        *,
        twice: bool = False,
        moving: bool = False,
        spares: int = 0,
        program: bool = False,
    ) -> None:
        self._program = program
        self._sample, self._durable, self._twice, self._moving = sample, durable, twice, moving
        self._trash = directory / ".trash"
        self._adapter = LocalDurable(durable.directory, sync=moving, author=("Bench", "bench@example.com"))
        self.engine = GitTrix(
            self._adapter,
            LocalEphemeral(kind, spares=spares),
            store=directory,
            home=home,  # shared, so that all kinds start from one seed
            clock=FrozenClock(separate_files=False),
            durability="full" if moving else "fast",
            strategy="commit",
            sweep_interval=None,
        ).init()

    def __call__(self, turn: int) -> Phases:
        """One cycle."""
        writes, before = self._sample.writes(turn), self._adapter.head("main")
        watch = Stopwatch()
        # A promotion removes the workspace by itself; where it is on record the one ends and the other begins.
        unsubscribe = self.engine.on("session.promote", lambda _event: watch.lap("promote"))
        watch.skip()
        session = self.engine.start_session("Edit twenty files")
        agent = session.for_agent()
        if self._program:
            parts_of(session).workspace.layers_for_programs()
        watch.lap("start")
        for path, data in writes.items():
            agent.write(path, data)
        watch.lap("write")
        if self._twice:
            text = session.diff()
            watch.lap("diff")
            session.promote()
        else:
            review = session.review()
            watch.lap("review")
            text = review.diff
            watch.lap("diff")
            session.promote(review)
        watch.lap("evict")
        if self._moving:
            self.engine.services.resources.spares.wait()
            self.engine.services.resources.trash.wait()
        else:
            shutil.rmtree(self._trash)
        watch.lap(DELETE)
        unsubscribe()
        if text.count("+# edited in turn") != len(writes) or before == self._adapter.head("main"):
            raise AssertionError("the cycle did not do its job")
        if not self._moving:
            self._durable.reset()
        return watch.phases


@dataclass
class _Drift:
    """Judging drift against heads that nobody has looked at yet, and promoting onto them."""

    durable: LocalDurable
    baseline: str
    heads: Iterator[str]

    def __call__(self, turn: int) -> Phases:
        """One judgement."""
        head = next(self.heads)
        watch = Stopwatch()
        drift = self.durable.drift(self.baseline, head)
        watch.lap(TOTAL)
        if len(drift) != 20 and turn >= 0:
            raise AssertionError(f"{len(drift)} paths drifted")
        return watch.phases


def cycle(sizes: list[int], *, quick: bool = False) -> list[Measurement]:
    """The cycle at each size, for each kind and baseline; and drift alone."""
    found: list[Measurement] = []
    for size in sizes:
        with scratch() as root:
            sample = Sample.make(root / "sample.git", size)
            rounds = _ROUNDS.get(size, _LEAST_ROUNDS)
            seconds = _SECONDS.get(size, _MOST_SECONDS)
            if quick:
                rounds, seconds = max(_LEAST_ROUNDS, rounds // 4), seconds / 4
            turns = interleave(_variants(sample, root), rounds=rounds, seconds=seconds)
            found += summarise("cycle", turns, size=size, outside=(DELETE,))
            found += _drift(sample, root, size)
    return found


def moving(sizes: list[int], *, quick: bool = False) -> list[Measurement]:
    """The cycle on a baseline that each promotion moves, written through to the disk."""
    found: list[Measurement] = []
    for size in sizes:
        with scratch() as root:
            sample = Sample.make(root / "sample.git", size)
            rounds, seconds = _ROUNDS.get(size, _LEAST_ROUNDS), _SECONDS.get(size, _MOST_SECONDS)
            if quick:
                rounds, seconds = max(_LEAST_ROUNDS, rounds // 4), seconds / 4
            variants: dict[str, Variant] = {GIT: GitCommands(sample, sample.copy(root / "git.git"), root / "git", moving=True)}
            for kind in ("clone", "lazy", "copy", "overlay"):
                variants[kind] = EngineCycle(kind, sample, sample.copy(root / f"{kind}.git"), root / kind, root / "home", moving=True)
            variants[WITH_SPARE] = EngineCycle(
                "clone", sample, sample.copy(root / "spare.git"), root / "spare", root / "home", moving=True, spares=1
            )
            for name, spares in ((WITH_PROGRAM, 0), (WITH_PROGRAM_AND_SPARE, 1)):
                place, copy = root / f"program{spares}", sample.copy(root / f"program{spares}.git")
                variants[name] = EngineCycle("overlay", sample, copy, place, root / "home", moving=True, spares=spares, program=True)
            turns = interleave(variants, rounds=rounds, seconds=seconds)
            found += summarise("moving", turns, size=size, outside=(DELETE,))
    return found


def _variants(sample: Sample, root: Path) -> dict[str, Variant]:
    def durable(name: str) -> Copy:
        return sample.copy(root / f"{name}.git")

    home = root / "home"
    found: dict[str, Variant] = {GIT: GitCommands(sample, durable("git"), root / "git")}
    found[PYGIT2] = Pygit2Floor(sample, durable("pygit2"), root / "pygit2")
    found[BY_HAND] = ByHand(sample, durable("by-hand"), root / "by-hand")
    for kind in KINDS:
        found[kind] = EngineCycle(kind, sample, durable(kind), root / kind, home)
    found[READ_TWICE] = EngineCycle("clone", sample, durable("twice"), root / "twice", home, twice=True)
    return found


def _drift(sample: Sample, root: Path, size: int) -> list[Measurement]:
    rounds = 15
    copy = sample.copy(root / "drift.git")
    heads = [_rival_commit(copy, sample.writes(1000 + number)) for number in range(rounds + 1)]
    durable = LocalDurable(copy.directory, sync=False)
    unmoved = interleave({"head not moved": lambda _turn: timed(lambda: durable.drift(copy.commit, copy.commit))}, rounds=rounds, seconds=5)
    if size < 20:
        return summarise("drift", unmoved, size=size)
    moved = interleave({"20 files drifted": _Drift(durable, copy.commit, iter(heads))}, rounds=rounds, seconds=5)
    return summarise("drift", unmoved | moved, size=size)


def _rival_commit(copy: Copy, writes: dict[str, bytes]) -> str:
    with Repository.open(copy.directory) as repository:
        blobs = {SHA1.hash_object("blob", data): data for data in writes.values()}
        built = build_commit(
            repository.trees.read,
            repository.tree(copy.commit),
            {path: Entry(FILE, SHA1.hash_object("blob", data)) for path, data in writes.items()},
            blobs,
            parent=copy.commit,
            author=Signature("Rival", "rival@example.com", 1893456000),
            message="rival",
            format_=SHA1,
        )
        install_pack(repository.objects_dir, built.pack)
        return built.id
