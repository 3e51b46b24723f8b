"""WSRV: crashes and races. Commands are killed, or met by another one, at calls that change files; see ``testing.faults.supervisor``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from pytest_gittrix.conformance.worktrees.base.clause import clause, named
from pytest_gittrix.conformance.worktrees.base.forms import finish_by_hand
from pytest_gittrix.conformance.worktrees.base.world import PRECIOUS, NoVerdict, PromiseBroken, ToolWorld, token
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.testing.faults.faults import FileCall, KillAt
from pytest_gittrix.testing.faults.supervisor import supervise, supported
from pytest_gittrix.testing.schedules.blackbox import Command, OrderSearch, ProcessInterleaving

T = TypeVar("T")

STRUCK: Final = ("create", "delete", "finish")
"""The commands that are killed."""
MOST_POINTS: Final = 32
"""The number of calls that one case always tries; those that tell most come first."""

MOST_ORDERS: Final = 16
"""The number of orders that one case of two commands always tries; those that tell most come first."""
BUDGET: Final = 60.0
"""Seconds after which a case of slow commands tries no further call or order. The report says how many it tried."""
MOST_SWITCHES: Final = 2
"""How often the commands of an order may take turns before one of them ends or waits."""


_READ: Final = "git fsck --connectivity-only --no-dangling && git worktree list"
_DAMAGED: Final = f"git worktree prune >/dev/null 2>&1; {{ {_READ}; }} >/dev/null 2>&1 || echo damaged"
"""Says something where git cannot read the repository. Before that, git drops what it keeps about worktrees that are gone."""


def spread(count: int) -> list[int]:
    """The calls from 1 to ``count``: the last and the middle first, then the middles of what is left between them."""
    order = dict.fromkeys([count] if count else [])
    step = count
    while step > 1:
        step = (step + 1) // 2
        order |= dict.fromkeys(range(step, count, step))
    return [*order]


def trials(points: Iterable[T], most: int, seconds: float) -> Iterator[T]:
    """The calls or orders that a case tries: always the first ``most``, if the commands are not slow, and more while the user's last."""
    begun, beyond = real_seconds(), None
    for tried, point in enumerate(points, 1):
        yield point
        now = real_seconds()
        if beyond is None and (tried >= most or now - begun >= BUDGET):
            beyond = now
        if beyond is not None and now - beyond >= seconds:
            return


def _tried(world: ToolWorld, reached: int, calls: int, line: str) -> None:
    """Note how many calls were tried of how many. Raises NoVerdict if it was none."""
    world.note = f"tried at {reached} of the {calls} calls of `{world.portable(line)}` that change files"
    if not reached:
        raise NoVerdict(f"inconclusive: {world.note}")


def _scene(world: ToolWorld, case: str) -> str:
    """Prepare what a command is to be killed in, and give the text of the work."""
    text = token(f"killed-{case}")
    if case == "create":
        world.sh(f"echo {text} >> file.txt")
        return text
    path = world.create()
    if case == "delete":
        finish_by_hand(world, text=text)
    else:
        world.sh(f"echo {text} > new.txt; git add new.txt; git commit -qm work", path)
    return text


def _named(world: ToolWorld, call: FileCall) -> str:
    """A call, for people: ``rename $R/app/.git/HEAD``."""
    return f"{call.name} {world.portable(call.path or '')}"


def _killed(world: ToolWorld, case: str) -> Iterator[tuple[str, str]]:
    """Kill a command at one call after the other, in the same state: the text of the work, and the call."""
    if reason := supported():
        raise NoVerdict(f"inconclusive: {reason}")
    text = _scene(world, case)
    line, where = world.prepared(case)
    reached = 0
    with world.saved() as restore:
        argv, env = ["sh", "-c", line], world.environment()
        clean = supervise(argv, within=world.root, env=env, cwd=where, timeout=world.tool.timeout)
        for at in trials(spread(len(clean.calls)), MOST_POINTS, world.search.crash):
            restore()
            run = supervise(argv, fault=KillAt(at), within=world.root, env=env, cwd=where, timeout=world.tool.timeout)
            if run.fired is not None:
                reached += 1
                yield text, _named(world, run.fired)
    _tried(world, reached, len(clean.calls), line)


@clause(
    "WSRV-01",
    "killed at any call, a command loses no work and leaves the repository whole",
    "a machine that goes down takes the work with it",
    "delete",
    "finish",
    cases=STRUCK,
    searches="crash",
)
def killed_anywhere(world: ToolWorld, case: str) -> None:
    """After each kill the work can be found, and git reads the repository, once it has dropped worktrees that are gone."""
    for text, call in _killed(world, case):
        world.findable(text, f"lost: the work, after {case} was killed at {call}")
        if world.look(_DAMAGED).strip():
            raise PromiseBroken(f"git cannot read the repository after {case} was killed at {call}")


def _is_done(world: ToolWorld, case: str, text: str) -> bool:
    """Whether what a command is for is there."""
    if case == "delete":
        return not world.path_of().is_dir()
    if case == "finish":
        return text in world.look(f"git grep -h {text} {world.base}")
    return any(path.is_dir() and "fatal" not in world.look("git status 2>&1", path) for path in world.worktrees())


@clause(
    "WSRV-02",
    "killed at any call, the same command again finishes the job",
    "somebody has to repair by hand what a crash left",
    "delete",
    "finish",
    cases=STRUCK,
    searches="crash",
)
def again_after_a_kill(world: ToolWorld, case: str) -> None:
    """After each kill the command is run once more, and what it is for is there."""
    for text, call in _killed(world, case):
        again, where = world.prepared(case)
        ran = world.typed(again, where)
        if not _is_done(world, case, text):
            raise PromiseBroken(f"{case} was killed at {call}, and the same command again does not finish: {ran.last_line}")


Job: TypeAlias = tuple[str, str]
"""A command, and the name of the worktree that it is for."""

PAIRS: Final[Mapping[str, tuple[Job, Job]]] = {
    "create and create": (("create", "gamma"), ("create", "delta")),
    "create and delete": (("create", "gamma"), ("delete", "alpha")),
    "create and finish": (("create", "gamma"), ("finish", "beta")),
    "delete and finish": (("delete", "alpha"), ("finish", "beta")),
    "delete and finish of one": (("delete", "beta"), ("finish", "beta")),
    "delete and delete of one": (("delete", "alpha"), ("delete", "alpha")),
}
"""The commands that run at once. The work of alpha is finished, that of beta is not, and the others are not there yet."""


Before: TypeAlias = tuple[Mapping[Path, str], str]
"""The worktrees, and the status of the main checkout, before two commands run."""

_STATUS: Final = "git status --porcelain --untracked-files=no"
"""What differs in the main checkout; without untracked files, since a tool may put its worktrees inside."""


def _race(world: ToolWorld, jobs: Sequence[Job], works: Mapping[str, str]) -> None:
    """Let two commands run at once from the same state, in one order after the other, and judge each order.

    Each command runs alone first.

    Raises:
        NoVerdict: a command is wrong by the same judgement where it runs alone; that is no matter of two commands.
        PromiseBroken: an order is wrong.
    """
    if reason := supported():
        raise NoVerdict(f"inconclusive: {reason}")
    before = world.worktrees(), world.look(_STATUS)
    lines = [world.prepared(*job) for job in jobs]
    actors = [Command(["sh", "-c", line], world.environment(), where) for line, where in lines]
    with world.saved() as restore:
        for job, line in zip(jobs, lines, strict=True):
            restore()
            try:
                _check_jobs(world, [job] if world.typed(*line).done else [], works, before, f"{job[0]} of {job[1]} ran alone")
            except PromiseBroken as broken:
                raise NoVerdict(f"inconclusive: {broken}") from None

        @contextmanager
        def restored() -> Iterator[ToolWorld]:
            restore()
            yield world

        search = OrderSearch(
            restored,
            lambda _world: actors,
            bound=MOST_SWITCHES,
            limit=sys.maxsize,
            within=lambda _world: world.root,
            timeout=world.tool.timeout,
        )
        with closing(search.orders()) as orders:
            for _, order in trials(orders, MOST_ORDERS, world.search.race):
                where = _turns_of(world, jobs, order)
                if order.finding is not None:
                    raise PromiseBroken(f"{order.finding}: {where}")
                done = [job for job, ended in zip(jobs, order.ended, strict=True) if ended.code is None]
                _check_jobs(world, done, works, before, where)
    explored = search.explored()
    rest = f"; {explored.left} more are known" if explored.left else ", which are all"
    world.note = f"tried {explored.executions} orders with at most {MOST_SWITCHES} switches{rest}"


def _turns_of(world: ToolWorld, jobs: Sequence[Job], order: ProcessInterleaving) -> str:
    """Where the commands of an order took turns, for people."""
    turns = zip(order.turns, order.turns[1:], strict=False)
    held = [_named(world, one.came_to) for one, after in turns if one.actor != after.actor and one.came_to is not None]
    met = f"took turns at {', '.join(held)}" if held else "ran one after the other"
    return f"{' and '.join(command for command, _ in jobs)} {met}"


def _check_jobs(world: ToolWorld, done: Sequence[Job], works: Mapping[str, str], before: Before, where: str) -> None:
    """Judge the result: all work, what the commands that exit with 0 are for, and the main checkout as it was."""
    listed, status = before
    for name, text in works.items():
        world.findable(text, f"lost: the work of {name}, since {where}")
    now = world.worktrees()
    created = [name for command, name in done if command == "create"]
    new = sum(path.is_dir() and listed.get(path) != head for path, head in now.items())
    if new < len(created):
        raise PromiseBroken(f"create exits with 0 for {' and for '.join(created)}, and the number of new worktrees is {new}, since {where}")
    for command, name in done:
        path = world.path_of(name) if command == "delete" else None
        stays = path is not None and path.is_dir() and now.get(path) in (None, listed.get(path))
        if stays or (command == "finish" and works[name] not in world.look(f"git grep -h {PRECIOUS} {world.base}")):
            raise PromiseBroken(f"the {command} of {name} exits with 0, and has not done it, since {where}")
    if {*world.look(_STATUS).splitlines()} - {*status.splitlines()}:
        raise PromiseBroken(f"the main checkout differs from its branch, since {where}")


def _unfinished(world: ToolWorld, name: str) -> str:
    """Create a worktree with a commit, and give the text of the work."""
    text = token(f"finished-{name}")
    world.sh(f"echo {text} > {name}.txt; git add {name}.txt; git commit -qm {name}", world.create(name))
    return text


@clause(
    "WSRV-03",
    "of two finishes at once, each lands or is refused, and the main checkout is clean",
    "the second finish takes back what the first one landed",
    "finish",
    applies=named,
    searches="race",
)
def two_finishes(world: ToolWorld, _case: str) -> None:
    """Two branches without a conflict between them."""
    works = {name: _unfinished(world, name) for name in ("alpha", "beta")}
    _race(world, [("finish", name) for name in works], works)


@clause(
    "WSRV-04",
    "of two different commands at once, or two creations or removals, each does its job or is refused, and no work is lost",
    "one agent's start is another one's end",
    "delete",
    "finish",
    cases=tuple(PAIRS),
    applies=lambda tool: named(tool) and not tool.pool,
    searches="race",
)
def two_commands(world: ToolWorld, case: str) -> None:
    """One worktree's work is finished, and another one's is not."""
    world.create("alpha")
    finish_by_hand(world, "alpha", text=token("finished-alpha"))
    works = {"alpha": token("finished-alpha"), "beta": _unfinished(world, "beta")}
    _race(world, PAIRS[case], works)
