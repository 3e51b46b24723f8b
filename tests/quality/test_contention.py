"""Many processes promote to one branch while a person commits, pushes and collects garbage: nothing is lost, nothing doubled (rule 2).
Many processes record what is said, in one session or in several: their logs have no gap and no double (rule 10).

``PYTEST_GITTRIX_SOAK=1`` makes it 4 processes with 500 promotions each; the normal run has 20 each.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import cycle

import pytest
from support.scene import SOAK, Scene, person, scratch

PROCESSES = 4
EACH = 500 if SOAK else 20

# Every promotion is a session of its own; half of them are started before any of their rivals lands, so that drift is real.
PROMOTER = """
    import sys
    from pathlib import Path
    from pytest_gittrix.engine.engine import GitTrix

    root, name, each = Path(sys.argv[1]), "p" + sys.argv[2], int(sys.argv[3])
    ids = (f"{name}-{number}" for number in range(10**6))
    settings = {"durability": "fast", "strategy": "commit", "sweep_interval": None, "ids": ids.__next__}
    with GitTrix(root / "durable", home=root / "home", **settings) as engine:
        print("ready", flush=True)
        sys.stdin.readline()
        for first in range(0, each, 2):
            sessions = [engine.start_session(f"{name} {number}") for number in (first, first + 1)]
            for number, session in enumerate(sessions, first):
                session.write(f"{name}/{number % 7}/{number}.txt", f"{name} {number}\\n")
                print(session.promote().sha, flush=True)
"""


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scratch() as directory:
        yield Scene(directory, "elsewhere")


@contextmanager
def beside(*actions: Callable[[int], object]) -> Iterator[list[int]]:
    """Have a person do one action after another, over and over, while the block runs; gives how often each was done.

    Not two at once: ``git gc --prune=now`` can take what another git has just written, as its manual says.
    """
    over = threading.Event()
    done = [0] * len(actions)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for which in cycle(range(len(actions))):
                if over.is_set() and all(done):
                    return
                actions[which](done[which])
                done[which] += 1
        except BaseException as problem:
            problems.append(problem)

    person_at_work = threading.Thread(target=work)
    person_at_work.start()
    try:
        yield done
    finally:
        over.set()
        person_at_work.join()
    if problems:
        raise problems[0]


def all_at_once(scene: Scene, program: str, *arguments: object) -> list[list[str]]:
    """Run a program in several processes, let them go when all are ready, and give the lines each printed.

    Args:
        scene: where; its root is the program's first argument, the number of the process the second.
        program: Python; prints ``ready``, then reads a line, then works.
        arguments: further arguments.
    """
    with ExitStack() as running:
        processes = []
        for number in range(PROCESSES):
            command = [sys.executable, "-c", textwrap.dedent(program), str(scene.root), str(number), *map(str, arguments)]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = running.enter_context(subprocess.Popen(command, text=True, env=person(scene.root / "person"), **pipes))
            running.callback(process.kill)
            processes.append(process)
        ready = [process.stdout.readline() for process in processes if process.stdout is not None]
        assert ready == ["ready\n"] * PROCESSES
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        with ThreadPoolExecutor(PROCESSES) as readers:
            ends = [*readers.map(lambda process: process.communicate(timeout=1800), processes)]
        codes = [process.returncode for process in processes]
        assert codes == [0] * PROCESSES, "\n".join(error[-3000:] for _, error in ends)
    return [out.splitlines() for out, _ in ends]


def test_every_promotion_and_every_commit_is_there_once(scene: Scene) -> None:
    clone = scene.root / "clone"
    scene.git("clone", "-q", "-b", "main", str(scene.durable), str(clone))
    by_hand: list[str] = []
    pushed: list[str] = []

    def commit_by_plumbing(number: int) -> None:
        head = scene.git("rev-parse", "main")
        tip = scene.git("commit-tree", "-p", head, "-m", f"by hand {number}", f"{head}^{{tree}}")
        moved = subprocess.run(
            ["git", "update-ref", "refs/heads/main", tip, head], cwd=scene.durable, env=person(scene.root), capture_output=True, check=False
        )
        if moved.returncode == 0:
            by_hand.append(tip)

    def commit_and_push(number: int) -> None:
        (clone / f"pushed-{number}.txt").write_text(f"{number}\n")
        scene.git("-C", str(clone), "add", ".")
        scene.git("-C", str(clone), "commit", "-qm", f"pushed {number}")
        for _ in range(200):
            scene.git("-C", str(clone), "pull", "-q", "--rebase")
            if subprocess.run(["git", "push", "-q"], cwd=clone, env=person(scene.root), capture_output=True, check=False).returncode == 0:
                pushed.append(scene.git("-C", str(clone), "rev-parse", "HEAD"))
                return

    def tidy(number: int) -> None:
        # Another git may hold the lock that these need; then they give up, as gc does for a person.
        for command in (["pack-refs", "--all"], ["gc", "-q", "--prune=now"]):
            scene.git(*command, fails=True)

    with beside(commit_by_plumbing, commit_and_push, tidy) as done:
        printed = all_at_once(scene, PROMOTER, EACH)

    history = scene.git("rev-list", "main").split()
    promoted = [sha for shas in printed for sha in shas]
    subjects = Counter(scene.git("log", "--format=%s", "main").splitlines())
    wanted = {f"gittrix: p{process} {number}": 1 for process in range(PROCESSES) for number in range(EACH)}
    print(
        f"{len(promoted)} promotions by {PROCESSES} processes, {len(by_hand)} commits by update-ref, {len(pushed)} pushed, "
        f"{done[2]} times gc and pack-refs: {len(set(history) & {*promoted, *by_hand, *pushed})} of "
        f"{len(promoted) + len(by_hand) + len(pushed)} in the history"
    )
    assert set(promoted) <= set(history)
    assert set(by_hand) <= set(history)
    assert len(pushed) == done[1]
    assert set(pushed) <= set(history)
    assert {subject: count for subject, count in subjects.items() if subject.startswith("gittrix: ")} == wanted
    assert len(history) == 2 + len(promoted) + len(by_hand) + len(pushed)
    assert all(len(line.split()) <= 2 for line in scene.git("rev-list", "--parents", "main").splitlines())
    for process in range(PROCESSES):
        names = scene.git("ls-tree", "-r", "--name-only", "main", f"p{process}/").splitlines()
        assert len(names) == EACH
    scene.judge_repository()
    assert done[2] > 0


WINNER = """
    import sys
    from pathlib import Path
    from pytest_gittrix.errors import BaselineConflict
    from pytest_gittrix.engine.engine import GitTrix

    root, name = Path(sys.argv[1]), "rival " + sys.argv[2]
    with GitTrix(root / "durable", home=root / "home", durability="fast", strategy="commit", sweep_interval=None) as engine:
        session = engine.start_session(name)
        session.write("app.py", name)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            print("promoted", session.promote().sha)
        except BaselineConflict as conflict:
            print("conflict", *conflict.conflicting_files)
"""


def test_one_file_that_everybody_wants_goes_to_exactly_one(scene: Scene) -> None:
    printed = all_at_once(scene, WINNER)
    assert sorted(printed) == [["conflict app.py"]] * (PROCESSES - 1) + [[f"promoted {scene.git('rev-parse', 'main')}"]]
    scene.judge_repository()


STARTER = """
    import sys
    from pathlib import Path
    from pytest_gittrix.engine.engine import GitTrix

    root, name = Path(sys.argv[1]), sys.argv[2]
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[3])):
        with GitTrix(root / "durable", home=root / "home", durability="fast", sweep_interval=None) as engine:
            engine.start_session(name).write("app.py", name)
"""


def test_engines_that_recover_do_not_take_a_start_beside_them_for_remains(scene: Scene) -> None:
    each = 200 if SOAK else 30
    assert all_at_once(scene, STARTER, each) == [[]] * PROCESSES
    with scene.engine() as engine:
        assert len(engine.list_sessions("active")) == PROCESSES * each
        assert engine.problems() == []


RECORDER = """
    import sys
    from pathlib import Path
    from pytest_gittrix.engine.engine import GitTrix

    root, name, each, ids = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    with GitTrix(root / "durable", home=root / "home", durability="fast", sweep_interval=None) as engine:
        session = engine.get_session(ids[int(name) % len(ids)])
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(each):
            print(session.record("user_message", {"text": f"{name} {number}"}).seq, flush=True)
"""


@pytest.mark.parametrize("sessions", [1, PROCESSES], ids=["one-session", "a-session-each"])
def test_everything_that_is_recorded_at_once_is_there_once_and_in_its_place(scene: Scene, sessions: int) -> None:
    each = 5000
    with scene.engine() as engine:
        ids = [engine.start_session("talk").id for _ in range(sessions)]

    printed = all_at_once(scene, RECORDER, each, *ids)

    with scene.engine() as engine:
        logs = [engine.store.log(id).read("strict") for id in ids]
        assert engine.problems() == []
    for log in logs:
        assert [event.seq for event in log] == list(range(len(log)))
    said = [[(event.seq, event.data["text"]) for event in log if event.type == "user_message"] for log in logs]
    assert sum(map(len, said)) == each * PROCESSES
    for process in range(PROCESSES):
        mine = [(seq, text) for seq, text in said[process % sessions] if text.split()[0] == str(process)]
        assert mine == [(int(seq), f"{process} {number}") for number, seq in enumerate(printed[process])]
        assert len(mine) == each
