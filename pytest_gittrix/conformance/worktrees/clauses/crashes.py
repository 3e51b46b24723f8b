"""WSRV: crashes and races. Commands are killed, or met by another one, at calls that change files; see ``testing.faults.supervisor``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_gittrix.conformance.worktrees.base.clause import clause, named
from pytest_gittrix.conformance.worktrees.base.forms import finish_by_hand
from pytest_gittrix.conformance.worktrees.base.world import PRECIOUS, NoVerdict, PromiseBroken, ToolWorld, token
from pytest_gittrix.os_level.monotonic import real_seconds
from pytest_gittrix.testing.faults.faults import FileCall, Kill
from pytest_gittrix.testing.faults.supervisor import supervise, supported
from pytest_gittrix.testing.schedules.blackbox import Command, intrude

STRUCK: Final = ("create", "delete", "finish")
"""The commands that are killed."""
MOST_POINTS: Final = 32
"""The number of calls that one case tries at most; those that tell most come first."""
BUDGET: Final = 60.0
"""Seconds after which a case of a slow command tries no further call. The report says how many it tried."""

# Not fsck, which takes the HEAD of a worktree that is not finished yet for damage.
_READ: Final = (
    "{ git rev-list --objects --branches --tags --stdin </dev/null && git status && git worktree list; } >/dev/null 2>&1 || echo damaged"
)


def spread(count: int, most: int) -> list[int]:
    """Some of the calls from 1 to ``count``: the last and the middle first, then the middles of what is left between them."""
    order, step = [count], count
    while step > 1 and len(order) < most:
        step = (step + 1) // 2
        order += [at for at in range(step, count, step) if at not in order]
    return order[:most] if count else []


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
        begun = real_seconds()
        argv, env = ["sh", "-c", line], world.environment()
        clean = supervise(argv, within=world.root, env=env, cwd=where, timeout=world.tool.timeout)
        for at in spread(len(clean.calls), MOST_POINTS):
            if real_seconds() - begun > BUDGET and reached:
                break
            restore()
            run = supervise(argv, fault=Kill(at), within=world.root, env=env, cwd=where, timeout=world.tool.timeout)
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
)
def killed_anywhere(world: ToolWorld, case: str) -> None:
    """After each kill the work can be found, and git reads the repository."""
    for text, call in _killed(world, case):
        world.findable(text, f"lost: the work, after {case} was killed at {call}")
        problem = world.look(
            "git fsck --connectivity-only --no-dangling >/dev/null 2>&1 && git worktree list >/dev/null 2>&1 || echo damaged"
        )
        if problem.strip():
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
)
def again_after_a_kill(world: ToolWorld, case: str) -> None:
    """After each kill the command is run once more, and what it is for is there."""
    for text, call in _killed(world, case):
        again, where = world.prepared(case)
        ran = world.typed(again, where)
        if not _is_done(world, case, text):
            raise PromiseBroken(f"{case} was killed at {call}, and the same command again does not finish: {ran.last_line}")


@clause(
    "WSRV-03",
    "of two finishes at once, each lands or is refused, and the main checkout is clean",
    "the second finish takes back what the first one landed",
    "finish",
    applies=named,
)
def two_finishes(world: ToolWorld, _case: str) -> None:
    """One finish is held at each of its calls, while the other one runs."""
    if reason := supported():
        raise NoVerdict(f"inconclusive: {reason}")
    works = {}
    for name in ("alpha", "beta"):
        works[name] = token(f"finished-{name}")
        world.sh(f"echo {works[name]} > {name}.txt; git add {name}.txt; git commit -qm {name}", world.create(name))
    lines = [world.prepared("finish", name) for name in works]
    first, second = (Command(["sh", "-c", line], world.environment(), where) for line, where in lines)
    begun, reached = real_seconds(), 0
    with world.saved() as restore:
        whole = supervise(first.argv, within=world.root, env=first.env, cwd=first.cwd, timeout=world.tool.timeout)
        for at in spread(len(whole.calls), MOST_POINTS):
            if real_seconds() - begun > BUDGET and reached:
                break
            restore()
            met = intrude(first, second, at=at, within=world.root, timeout=world.tool.timeout)
            if met.held is None:
                continue
            reached += 1
            landed = world.look(f"git grep -h {PRECIOUS} {world.base}")
            for (name, text), ended in zip(works.items(), (met.action, met.intruder), strict=True):
                world.findable(text, f"lost: the work of {name}, since two finishes met at {_named(world, met.held)}")
                if ended.code is None and text not in landed:
                    raise PromiseBroken(
                        f"the finish of {name} exits with 0, and its work is not on the base: the other came at {_named(world, met.held)}"
                    )
            if world.look("git status --porcelain").strip():
                raise PromiseBroken(f"the main checkout differs from its branch after two finishes met at {_named(world, met.held)}")
    _tried(world, reached, len(whole.calls), lines[0][0])
