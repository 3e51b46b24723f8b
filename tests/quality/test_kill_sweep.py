"""Killed at any call that changes a file: the next engine finds each session promoted or active, and the person notices nothing (rule 9).

A normal run plays faults at a sample of the calls; ``PYTEST_GITTRIX_SOAK=1`` at every one. Figures are printed (``pytest -rP``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from support.fault_sweep import sweep_scenes
from support.scene import FIRST, SOAK, TTL, WORK, Scene, Scenes, Where, did, do, one_session

from pytest_gittrix.engine.operations.in_use import ProgramLock
from pytest_gittrix.errors import BaselineConflict, GittrixError
from pytest_gittrix.git.consolidation import MOST_PACKS
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.testing.faults.supervisor import Fault, KillAt, SupervisedRun, supervise_function, supported

Durability = Literal["full", "fast"]

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))


@dataclass(frozen=True)
class Operation:
    """An operation that meets faults.

    Attributes:
        prepare: brings a new scene into the state before; meets no faults.
        act: the operation, in a separate process; what it prints is its answer.
        judge: checks what must hold afterwards; returns a word for what it found.
    """

    prepare: Callable[[Scene], None]
    act: Callable[[Scene], None]
    judge: Callable[[Scene, SupervisedRun], str]


GIVEN = {"given.txt": "given\n"}
KEPT = ("app.py", "src/b/two.txt")
"""The part of the work that a promotion takes after which the session goes on: a change, and a deletion that empties a directory."""
SECOND, THIRD = "session-1", "session-2"


def start(scene: Scene) -> None:
    with scene.engine() as engine:
        do(engine.start_session("do it", seed_files=GIVEN))


def promote(scene: Scene, session: str = FIRST) -> None:
    """Promote, and print what the caller was told."""
    try:
        with scene.engine(init=False) as engine:
            print(f"promoted {engine.get_session(session).promote().sha}")
    except GittrixError as refusal:
        print(f"refused {refusal.code}")


def promote_in_use(scene: Scene) -> None:
    """Promote while a program runs, and print what the caller was told; the workspace goes with a sweep after that."""
    with scene.engine(init=False) as engine:
        with ProgramLock(engine.store.directory(FIRST)):
            result = engine.get_session(FIRST).promote()
        assert len(result.warnings) == 1
        print(f"promoted {result.sha}")
        assert engine.sweep() == [FIRST]


def promote_and_keep(scene: Scene) -> None:
    """Promote a part, after which the session goes on, and print what the caller was told."""
    with scene.engine(init=False) as engine:
        print(f"kept {engine.get_session(FIRST).promote(files=[*KEPT], keep=True).sha}")


def rebase(scene: Scene) -> None:
    """Rebase, and print what the caller was told."""
    with scene.engine(init=False) as engine:
        print(f"rebased {engine.get_session(FIRST).rebase().baseline}")


def evict(scene: Scene) -> None:
    with scene.engine() as engine:
        engine.evict(FIRST)


def run_a_sweep(scene: Scene) -> None:
    with scene.engine(init=False) as engine:
        engine.sweep()


def run_impatient_sweeps(scene: Scene) -> None:
    """Postpone what is overdue, then keep it whole."""
    with scene.engine(init=False, budget=timedelta(0)) as engine:
        engine.sweep()
        engine.sweep()


def recover(scene: Scene) -> None:
    with scene.engine(init=False) as engine:
        engine.recover()


def append(scene: Scene) -> None:
    with scene.engine(init=False) as engine:
        engine.get_session(FIRST).write("app.py", WORK["app.py"] or b"")
        engine.get_session(FIRST).commit("struck")


def with_a_side_branch(scene: Scene) -> None:
    one_session(scene)
    space = scene.home / "sessions" / FIRST / "workspace"
    who = {name: "agent" for role in ("AUTHOR", "COMMITTER") for name in (f"GIT_{role}_NAME", f"GIT_{role}_EMAIL")}
    date = {"GIT_AUTHOR_DATE": "@1 +0000", "GIT_COMMITTER_DATE": "@1 +0000"}
    for arguments in (["checkout", "-q", "-b", "aside"], ["commit", "-q", "--allow-empty", "-m", "aside"], ["checkout", "-q", "main"]):
        run_git(arguments, cwd=space, env=hermetic_env(scene.root / "nobody") | who | date)


def with_staged_work(scene: Scene) -> None:
    """A linked work tree in which a file is staged and gone."""
    with scene.engine() as engine:
        session = engine.start_session("do it", workspace="worktree")
        do(session)
        space = session.workspace_path
    assert space is not None
    (space / "staged.txt").write_text("staged\n")
    run_git(["add", "staged.txt"], cwd=space, env=hermetic_env(scene.root / "nobody"))
    (space / "staged.txt").unlink()


def drifted(scene: Scene) -> None:
    one_session(scene)
    (scene.durable / "app.py").write_text("print('by the person')\n")
    scene.git("commit", "-qam", "drift")


_LINES = b"".join(b"%d\n" % number for number in range(20))
OURS, THEIRS = _LINES.replace(b"\n2\n", b"\nours\n"), _LINES.replace(b"\n17\n", b"\ntheirs\n")
BOTH = OURS.replace(b"\n17\n", b"\ntheirs\n")


def with_a_shared_file(scene: Scene) -> None:
    """A session, and a person's commit that changes another line of a file that the agent changed too."""
    (scene.durable / "long.txt").write_bytes(_LINES)
    scene.git("add", "long.txt")
    scene.git("commit", "-qm", "long")
    one_session(scene)
    with scene.engine() as engine:
        engine.get_session(FIRST).write("long.txt", OURS)
    (scene.durable / "long.txt").write_bytes(THEIRS)
    (scene.durable / "README.md").write_text("# By the person\n")
    scene.git("commit", "-qam", "shared")


def with_a_rival(scene: Scene) -> None:
    """A session, and a person's commit at paths that the agent did not touch."""
    one_session(scene)
    (scene.durable / "README.md").write_text("# By the person\n")
    (scene.durable / "run.sh").unlink()
    (scene.durable / "rival").mkdir()
    (scene.durable / "rival/new.txt").write_text("new\n")
    scene.git("add", "--all")
    scene.git("commit", "-qm", "rival")


EARLIER = {SHA1.hash_object("blob", b"%d" % number): ("blob", b"%d" % number) for number in range(MOST_PACKS)}


def with_many_packs(scene: Scene) -> None:
    """As many packs as there may be; the one of the next promotion is one too many."""
    one_session(scene)
    for id_, blob in EARLIER.items():
        install_pack(str(scene.git_dir / "objects"), build_pack({id_: blob}, SHA1), mode=0o444)


def overdue(scene: Scene) -> None:
    assert (scene.session(), scene.session()) == (FIRST, SECOND)
    scene.clock.advance(2 * TTL)
    with scene.engine(init=False) as engine:
        third = engine.start_session("do it")
        do(third)
        assert third.id == THIRD


def judge_promote(scene: Scene, run: SupervisedRun) -> str:
    printed = run.stdout.decode().split()
    assert run.killed or printed, run.stderr.decode()[-600:]
    assert not printed or (printed[0] == "promoted") == (scene.promoted() == 1), f"told {printed}, but {scene.promoted()} are in"
    with scene.engine():
        pass
    scene.judge_repository()
    return scene.judge_session(FIRST)


def judge_consolidation(scene: Scene, run: SupervisedRun) -> str:
    """Whatever becomes of the packs, their objects are there, and no part of a pack is left."""
    state = judge_promote(scene, run)
    files = {suffix: {path.stem for path in (scene.git_dir / "objects/pack").glob(f"*{suffix}")} for suffix in (".pack", ".idx")}
    assert files[".pack"] == files[".idx"]
    for id_, (_, data) in EARLIER.items():
        assert scene.git("cat-file", "blob", id_).encode() == data
    return state


def judge_keep(scene: Scene, run: SupervisedRun) -> str:
    """The session goes on, before its promotion or after it; the rest can be promoted, and the person's commit is not undone."""
    assert run.killed or run.stdout, run.stderr.decode()[-600:]
    rival = scene.git("rev-parse", "main:README.md")
    with scene.engine() as engine:
        session = engine.get_session(FIRST)
        kept = sum(event.type == "promote.kept" for event in session.history())
        assert scene.promoted() == kept <= 1
        assert not run.stdout or kept
        left = {path: data for path, data in WORK.items() if not (kept and path in KEPT)}
        assert did(session) == left
        assert not kept or (session.read("README.md") == b"# By the person\n" and not session.exists("run.sh"))
        assert session.promote().warnings == ()
    assert scene.promoted() == kept + 1
    assert scene.git("rev-parse", "main:README.md") == rival
    assert scene.git("ls-tree", "--name-only", "main", "run.sh", "rival/new.txt") == "rival/new.txt"
    scene.judge_repository()
    return "kept" if kept else "active"


def judge_rebase(scene: Scene, run: SupervisedRun) -> str:
    """The session has its old baseline or its new one, with all of its work; both edits of the file that both sides changed land."""
    assert run.killed or run.exit_code or run.stdout, run.stderr.decode()[-600:]
    head = scene.git("rev-parse", "main")
    with scene.engine() as engine:
        session = engine.get_session(FIRST)
        moved = any(event.type == "session.rebased" for event in session.history())
        assert not run.stdout or moved
        assert session.info().baseline_sha == (head if moved else scene.git("rev-parse", "main^"))
        assert {path: data for path, data in did(session).items() if path != "long.txt"} == WORK
        assert session.read("long.txt") == (BOTH if moved else OURS)
        assert session.read("README.md") == (b"# By the person\n" if moved else scene.git("show", "main^:README.md").encode() + b"\n")
        assert scene.git("rev-parse", "main") == head
        session.rebase()
        assert session.read("long.txt") == BOTH
        assert session.promote().warnings == ()
    assert scene.git("rev-parse", "main^") == head
    assert scene.git("show", "main:long.txt").encode() + b"\n" == BOTH
    scene.judge_repository()
    return "rebased" if moved else "active"


def judge_start(scene: Scene, _run: SupervisedRun) -> str:
    with scene.engine() as engine:
        found = [(one.id, one.state) for one in engine.list_sessions()]
        for id_, state in found:
            assert state in ("active", "discarded")
            if state == "active":
                assert engine.get_session(id_).read("README.md").startswith(b"# Greeter")
                assert engine.get_session(id_).read("given.txt") == b"given\n"
                assert set(engine.get_session(id_).touched_files()) <= set(WORK)
        assert {path.name for path in engine.store.root.iterdir() if not path.name.startswith(".")} == {id_ for id_, _ in found}
    scene._ids = iter(range(100, 200))  # type: ignore[assignment]
    assert scene.judge_session(scene.session()) == "active"
    return found[0][1] if found else "nothing"


def judge_conflict(scene: Scene, run: SupervisedRun) -> str:
    assert not run.stdout or run.stdout == b"refused BASELINE_CONFLICT\n"
    with scene.engine() as engine:
        with pytest.raises(BaselineConflict):
            engine.get_session(FIRST).promote()
        assert scene.promoted() == 0
        engine.get_session(FIRST).promote(files=[path for path in WORK if path != "app.py"])
    assert scene.promoted() == 1
    scene.judge_repository()
    return "active"


def judge_evict(scene: Scene, _run: SupervisedRun) -> str:
    with scene.engine() as engine:
        state = engine.info(FIRST).state
        if state == "active":
            return scene.judge_session(FIRST)
        judge_ended(scene, FIRST)
    scene.judge_repository()
    return state


def judge_evict_with_a_side_branch(scene: Scene, run: SupervisedRun) -> str:
    state = judge_evict(scene, run)
    directory = scene.home / "sessions" / FIRST
    whole = directory / "archive.workspace" / ".git"
    kept = next((place for place in (directory / "archive.agent.git", whole) if (place / "objects").is_dir()), None)
    if state != "active":
        assert kept is not None
        name = "refs/heads/aside" if kept == whole else "refs/gittrix/agent/heads/aside"
        message = run_git(["--git-dir", str(kept), "log", "-1", "--format=%s", name], env=hermetic_env(scene.root / "nobody"))
        assert message == b"aside\n"
        events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
        assert kept == whole or [one["data"].get("patch") for one in events].count(kept.name) == 1
    return state


def judge_evict_with_staged_work(scene: Scene, _run: SupervisedRun) -> str:
    with scene.engine() as engine:
        state = engine.info(FIRST).state
        if state == "active":
            assert engine.info(FIRST).beside == ("'staged.txt' is staged with other contents",)
            return state
    kept = scene.home / "sessions" / FIRST / "archive.agent.git"
    assert run_git(["--git-dir", str(kept), "cat-file", "blob", ":staged.txt"], env=hermetic_env(scene.root / "nobody")) == b"staged\n"
    judge_ended(scene, FIRST)
    return state


def judge_ended(scene: Scene, session: str) -> None:
    directory = scene.home / "sessions" / session
    assert not (directory / "workspace").exists()
    assert not (directory / "engine").exists()
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    patches = [event["data"].get("patch") for event in events if event["type"] == "archive.written"]
    assert sorted(patches) == sorted(set(patches)), "what was set aside is told once"
    whole = directory / "archive.workspace"  # what could not be archived as a change is kept as it was
    if whole.exists():
        assert all((whole / path).read_bytes() == data if data is not None else not (whole / path).exists() for path, data in WORK.items())
    else:
        scene.git("apply", "--check", str(directory / "archive.patch"))


def judge_sweep(scene: Scene, _run: SupervisedRun) -> str:
    with scene.engine() as engine:
        assert [engine.info(one).state for one in (FIRST, SECOND)] == ["expired", "expired"]
    for session in (FIRST, SECOND):
        judge_ended(scene, session)
    return scene.judge_session(THIRD)


def judge_append(scene: Scene, _run: SupervisedRun) -> str:
    with scene.engine() as engine:
        log = engine.store.log(FIRST).read("strict")
        assert [event.seq for event in log] == list(range(len(log)))
    return scene.judge_session(FIRST)


OPERATIONS = {
    "start": Operation(lambda _: None, start, judge_start),
    "promote": Operation(one_session, promote, judge_promote),
    "promote-in-use": Operation(one_session, promote_in_use, judge_promote),
    "promote-consolidating": Operation(with_many_packs, promote, judge_consolidation),
    "promote-conflict": Operation(drifted, promote, judge_conflict),
    "promote-keep": Operation(with_a_rival, promote_and_keep, judge_keep),
    "rebase": Operation(with_a_shared_file, rebase, judge_rebase),
    "evict": Operation(one_session, evict, judge_evict),
    "evict-side-work": Operation(with_a_side_branch, evict, judge_evict_with_a_side_branch),
    "evict-staged-work": Operation(with_staged_work, evict, judge_evict_with_staged_work),
    "sweep": Operation(overdue, run_a_sweep, judge_sweep),
    "sweep-postponed": Operation(overdue, run_impatient_sweeps, judge_sweep),
    "append": Operation(one_session, append, judge_append),
}


def sweep_operation(
    operation: Operation,
    place: Path,
    *,
    where: Where = "clean",
    durability: Durability = "fast",
    kinds: tuple[str, ...] = ("kill",),
    points: slice | Collection[int] | None = None,
    label: bool = True,
) -> Counter[str]:
    """Play faults in an operation at many points, and check each; result and errors as for ``sweep_scenes``."""

    def run(scene: Scene, fault: Fault | None) -> SupervisedRun:
        operation.prepare(scene)
        return supervise_function(lambda: operation.act(scene), fault=fault, within=scene.root)

    figures = f"{operation.act.__name__} ({', '.join(kinds)}; {where}, {durability})" if label else ""
    make = partial(Scene, where=where, durability=durability)
    return sweep_scenes(place, make, run, operation.judge, kinds=kinds, points=points, label=figures)


def some(step: int, first: int = 0) -> slice | None:
    """Every ``step``-th point; all of them in a soak."""
    return None if SOAK else slice(first, None, step)


@pytest.mark.parametrize("durability", ["fast", "full"] if SOAK else ["fast"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_at_any_call_is_survived(place: Path, name: str, durability: Durability) -> None:
    assert sweep_operation(OPERATIONS[name], place, durability=durability, points=some(7, 3))


def with_a_spare(scene: Scene) -> None:
    with scene.engine(spares=1) as engine:
        engine.start_session("first").discard()
        engine.services.resources.spares.wait()
    assert len([*(scene.home / "sessions/.spares").iterdir()]) == 1


def start_with_the_spare(scene: Scene) -> None:
    with scene.engine(init=False, spares=1) as engine:
        engine.services.resources.spares.close()  # it makes no other in the background
        do(engine.start_session("do it"))


def judge_start_with_the_spare(scene: Scene, run: SupervisedRun) -> str:
    judge_start(scene, run)
    assert not [*(scene.home / "sessions").glob("*/*.spare")]
    with scene.engine() as engine:
        return "nothing" if SECOND not in engine.store.ids() else engine.info(SECOND).state


def test_a_kill_of_a_start_that_takes_a_spare_is_survived(place: Path) -> None:
    scene = Scenes(place, Scene).next()
    with_a_spare(scene)
    calls = supervise_function(lambda: start_with_the_spare(scene), within=scene.root).calls
    taking = [call.index for call in calls if ".spare" in str(call.path)]
    # From the rename that takes it to the call after all of it is in place.
    points = None if SOAK else range(taking[0], taking[-1] + 2)

    found = sweep_operation(Operation(with_a_spare, start_with_the_spare, judge_start_with_the_spare), place, points=points)

    assert found["discarded"] >= 5
    assert not SOAK or found["active"]


@pytest.mark.parametrize("where", ["elsewhere", "bare"])
def test_a_kill_of_a_promotion_is_survived_wherever_the_person_is(place: Path, where: Where) -> None:
    found = sweep_operation(OPERATIONS["promote"], place, where=where, points=some(6))
    assert set(found) == {"active", "promoted"}


@pytest.mark.parametrize("kind", ["ENOSPC", "sticky ENOSPC", "EIO", "sticky EIO", "torn", "short"])
def test_a_failing_disk_never_makes_a_promotion_lie(place: Path, kind: str) -> None:
    assert sweep_operation(OPERATIONS["promote"], place, kinds=(kind,), points=some(12, 5))


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO", "sticky ENOSPC"])
@pytest.mark.parametrize("name", ["start", "rebase", "evict", "evict-side-work", "evict-staged-work", "append"])
def test_a_failing_disk_is_a_typed_error_and_harms_nothing(place: Path, name: str, kind: str) -> None:
    operation = OPERATIONS[name]

    def judge(scene: Scene, run: SupervisedRun) -> str:
        error = run.stderr.decode().strip().rpartition("\nTraceback ")[2]
        assert run.exit_code == 0 or "\npytest_gittrix.errors." in error, error[-600:]
        return operation.judge(scene, run)

    assert sweep_operation(Operation(operation.prepare, operation.act, judge), place, kinds=(kind,), points=some(15, 8))


def killed_at(scene: Scene, at: int) -> SupervisedRun:
    return supervise_function(lambda: promote(scene), fault=KillAt(at), within=scene.root)


def points_of_a_promotion(place: Path) -> list[str]:
    """Where each call of a promotion that nothing disturbs leads."""
    scene = Scenes(place, Scene).next()
    one_session(scene)
    return [str(call.path) for call in supervise_function(lambda: promote(scene), within=scene.root).calls]


def test_a_kill_of_the_recovery_of_a_killed_promotion_is_survived(place: Path) -> None:
    tried = 0
    for at in range(1, len(points_of_a_promotion(place)) + 1)[some(16, 6) or slice(None)]:

        def prepare(scene: Scene, at: int = at) -> None:
            one_session(scene)
            killed_at(scene, at)

        tried += sum(sweep_operation(Operation(prepare, recover, judge_promote_again), place, points=some(7), label=False).values())
    print(f"double faults: tried {tried}, survived {tried}")
    assert tried


def judge_promote_again(scene: Scene, _run: SupervisedRun) -> str:
    with scene.engine():
        pass
    scene.judge_repository()
    return scene.judge_session(FIRST)


def test_a_killed_promotion_never_stops_another_one(place: Path) -> None:
    survived = 0
    points = range(1, len(points_of_a_promotion(place)) + 1)[some(5) or slice(None)]
    for at in points:
        scene = Scenes(place, Scene).next()
        one_session(scene)
        other = scene.session({"other.txt": b"other\n"})
        killed_at(scene, at)
        with scene.engine(init=False) as engine:
            result = engine.get_session(other).promote()
        assert result.warnings == ()
        assert scene.git("rev-parse", "main") == result.sha
        with scene.engine():
            pass
        scene.judge_repository()
        scene.judge_session(FIRST)
        survived += 1
    print(f"peers of a killed promotion: tried {len(points)}, survived {survived}")
    assert survived == len(points)


@pytest.mark.parametrize("landed", [False, True], ids=["not-landed", "landed"])
def test_a_kill_of_a_promotion_that_meets_a_dead_ones_locks_is_survived(place: Path, landed: bool) -> None:
    paths = points_of_a_promotion(place)
    reached = str(place / "durable/app.py" if landed else place / "durable/.git/objects/pack")
    at = next(number for number, path in enumerate(paths, 1) if path.startswith(reached))

    def prepare(scene: Scene) -> None:
        one_session(scene)
        assert scene.session({"other.txt": b"other\n"}) == SECOND
        killed_at(scene, at)
        assert (scene.git_dir / "index.lock").exists()

    def judge(scene: Scene, _run: SupervisedRun) -> str:
        with scene.engine():
            pass
        scene.judge_repository()
        assert scene.judge_session(FIRST) == ("promoted" if landed else "active")
        return scene.judge_session(SECOND, {"other.txt": b"other\n"})

    def promote_second(scene: Scene) -> None:
        promote(scene, SECOND)

    operation = Operation(prepare, promote_second, judge)
    scene = Scenes(place, Scene).next()
    prepare(scene)
    # How much of the trash goes in the background meanwhile differs from run to run.
    calls = supervise_function(lambda: promote_second(scene), within=scene.root).calls
    lasting = sum("/.trash/" not in str(call.path) for call in calls)
    found = sweep_operation(operation, place, points=range(1, lasting + 1)[some(9) or slice(None)])
    assert "active" in found
