"""The same seed gives the same bytes: in one process, in two, on any executor, killed and gone on with; another seed does not."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.evals import SOLVES, agent_file, case, command_file, ran, suite, write

from pytest_gittrix.confine.levels import confinement, strongest
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.run import Summary, run_suite

DRAWS = """
import os, random, sys, time
from pathlib import Path
drawn = random.Random(os.environ["GITTRIX_SEED"])
for number in range(drawn.randint(1, 4)):
    Path(f"made-{drawn.randint(0, 9)}.txt").write_text(str(drawn.random()))
Path("app.py").write_text(f"VERSION = {drawn.choice([1, 2, 2, 3])}\\n")
Path("told.txt").write_text(f"{os.getcwd()} {os.environ['HOME']} {sorted(set('abcdef'))} {hash('a')}\\n" if len(sys.argv) > 1 else "")
"""
TEN = [f"case-{number}" for number in range(10)]


def puzzling(root: Path) -> Path:
    """Ten cases, of which some drift and some are refused."""
    place = suite(root, *TEN[:6])
    for id_ in TEN[6:8]:
        case(place, id_, more='[drift]\nfiles = "drift"\n', extra={"drift/app.py": "VERSION = 8\n"})
    for id_ in TEN[8:]:
        case(place, id_, more='[review]\ndeny = ["made-3*", "made-5*"]\n')
    return place


def same_bytes(one: Summary, other: Summary) -> None:
    """Everything of two runs that does not tell of the machine is equal, byte for byte."""
    assert one.digest == other.digest
    assert one.manifest.digest == other.manifest.digest
    assert one.store.keys() == other.store.keys()
    for key in one.manifest.keys.values():
        for part in ("events", "patches", "transcripts"):
            assert one.store.part(part, key) == other.store.part(part, key), (part, key)
    assert [record.encode() for record in one.records] == [record.encode() for record in other.records]
    assert compare(one.store, other.store).code == 0


def test_one_worker_and_two_come_to_the_same_bytes(tmp_path: Path) -> None:
    place, agent = puzzling(tmp_path), command_file(tmp_path, DRAWS)
    serial = ran(place, tmp_path, agent, out=tmp_path / "serial" / "run", seed=7, epochs=2)
    beside = ran(place, tmp_path, agent, out=tmp_path / "beside" / "run", seed=7, epochs=2, workers=2)

    same_bytes(serial, beside)
    counts = serial.counts
    assert counts["pass"]
    assert counts["fail"]
    assert counts["conflict"]
    assert counts["infra_error"] == 0


def test_any_executor_that_can_do_jobs_comes_to_the_same_bytes(tmp_path: Path) -> None:
    from support.evals import options

    place, agent = puzzling(tmp_path), command_file(tmp_path, DRAWS)
    serial = ran(place, tmp_path, agent, out=tmp_path / "serial" / "run")
    threads = run_suite(
        Suite.load(place), options(tmp_path, agent, out=tmp_path / "threads" / "run", workers=3), factory=ThreadPoolExecutor
    )

    same_bytes(serial, threads)


def test_another_seed_comes_to_another_digest_and_other_work(tmp_path: Path) -> None:
    place, agent = puzzling(tmp_path), command_file(tmp_path, DRAWS)
    one, other = (ran(place, tmp_path, agent, out=tmp_path / str(seed), seed=seed) for seed in (1, 2))

    assert one.digest != other.digest
    assert {record.key for record in one.records}.isdisjoint(record.key for record in other.records)
    assert [record.final for record in one.records] != [record.final for record in other.records]


def test_epochs_of_a_case_draw_differently(tmp_path: Path) -> None:
    summary = ran(suite(tmp_path), tmp_path, command_file(tmp_path, DRAWS), epochs=4)

    assert len({record.final for record in summary.records}) > 1
    assert len({record.session for record in summary.records}) == 4


def test_what_was_done_before_and_what_is_done_now_make_the_same_run(tmp_path: Path) -> None:
    place, agent = puzzling(tmp_path), command_file(tmp_path, DRAWS)
    whole = ran(place, tmp_path, agent, out=tmp_path / "whole" / "run")
    halves = ran(place, tmp_path, agent, out=tmp_path / "halves" / "run")
    for record in halves.records[::2]:
        (halves.store.path / "samples" / f"{record.key}.json").unlink()

    same_bytes(whole, ran(place, tmp_path, agent, out=tmp_path / "halves" / "run", resume=True, trust_agent=True, workers=2))


def test_where_the_suite_and_the_run_are_does_not_matter(tmp_path: Path) -> None:
    one, other = (
        ran(puzzling(tmp_path / name), tmp_path / name, command_file(tmp_path / name, DRAWS), seed=3)
        for name in ("here", "over-there/deep")
    )

    same_bytes(one, other)


def test_in_a_jail_even_the_paths_that_an_agent_sees_are_the_same(tmp_path: Path) -> None:
    if strongest().level != "jail":
        pytest.skip(f"there is no jail here: {confinement('auto').why}")
    place, agent = suite(tmp_path, "a", "b"), f"{command_file(tmp_path, DRAWS)} tell"
    one, other = (ran(place, tmp_path, agent, out=tmp_path / name / "run", confine="jail") for name in ("one", "other"))

    same_bytes(one, other)
    seen_by_agent = one.store.objects.file(one.records[0].final, "told.txt").decode()
    assert seen_by_agent.startswith("/workspace /home/agent ")


def test_in_a_jail_the_whole_environment_of_an_agent_is_the_same(tmp_path: Path) -> None:
    if strongest().level != "jail":
        pytest.skip(f"there is no jail here: {confinement('auto').why}")
    agent = "sh -c 'env | sort > told.txt; umask >> told.txt'"
    one, other = (ran(suite(tmp_path / name), tmp_path / name, agent, confine="jail") for name in ("one", "other"))

    same_bytes(one, other)
    assert str(tmp_path) not in one.store.objects.file(one.records[0].final, "told.txt").decode()


def test_the_umask_of_whoever_runs_it_does_not_matter_and_stays(tmp_path: Path) -> None:
    agent = "python -c \"import os; open('told.txt', 'w').write(str([oct(os.stat(name).st_mode) for name in ('app.py', '.', 'tests')]))\""
    place, found, before = suite(tmp_path), [], os.umask(0o022)
    try:
        for mask in (0o022, 0o077, 0o002):
            os.umask(mask)
            found.append(ran(place, tmp_path, agent, out=tmp_path / oct(mask) / "run"))
            assert os.umask(mask) == mask
    finally:
        os.umask(before)

    same_bytes(found[0], found[1])
    same_bytes(found[0], found[2])


@pytest.mark.parametrize("raises", ["open(toolbox.path / 'missing' / ('x' * 100))", "raise ValueError(object())"])
def test_a_reason_holds_no_place_and_no_address(tmp_path: Path, raises: str) -> None:
    place, agent = suite(tmp_path), agent_file(tmp_path, raises)
    one, other = (ran(place, tmp_path, agent, out=tmp_path / name / "run") for name in ("one", "other"))

    same_bytes(one, other)
    assert one.records[0].outcome == "agent_error"


def test_a_check_says_the_same_of_the_same_result(tmp_path: Path) -> None:
    place = suite(tmp_path, extra={"check.py": "def check(result):\n    raise ValueError(f'{result.path} {object()}')\n"})

    same_bytes(*(ran(place, tmp_path, SOLVES, out=tmp_path / name / "run") for name in ("one", "other")))


def test_equal_runs_hold_equal_objects(tmp_path: Path) -> None:
    place, agent = puzzling(tmp_path), command_file(tmp_path, DRAWS)
    listed = []
    for name in ("one", "other"):
        store = ran(place, tmp_path, agent, out=tmp_path / name / "run").store
        command = ["git", "-C", str(store.objects.path), "cat-file", "--batch-all-objects", "--batch-check"]
        listed.append(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)

    assert listed[0] == listed[1]
    assert listed[0]


def test_a_function_is_as_deterministic_as_a_program(tmp_path: Path) -> None:
    body = "import random\ndrawn = random.Random(toolbox.seed)\ntoolbox.write('app.py', f'VERSION = {drawn.choice([1, 2])}\\n')"
    place, agent = suite(tmp_path, *TEN[:4]), agent_file(tmp_path, body)

    same_bytes(*(ran(place, tmp_path, agent, out=tmp_path / str(n) / "run", workers=n) for n in (1, 2)))


def test_a_bundle_and_a_repository_give_the_same_commits_each_time(tmp_path: Path) -> None:
    from pytest_gittrix.git.environment import hermetic_env, run_git

    repository = write(tmp_path / "repository", {"app.py": "VERSION = 0\n"})
    environment = hermetic_env(tmp_path / "home")
    git = ["-C", str(repository)]
    run_git([*git, "init", "-q", "--initial-branch=main"], env=environment)
    for version in (0, 1, 5):
        write(repository, {"app.py": f"VERSION = {version}\n"})
        run_git([*git, "add", "-A"], env=environment)
        run_git([*git, "commit", "-q", "-m", f"version {version}"], env=environment)
    commit = run_git([*git, "rev-parse", "HEAD~1"], env=environment).decode().strip()
    place = suite(tmp_path, "by-bundle", "by-path")
    run_git([*git, "branch", "start", commit], env=environment)
    run_git([*git, "bundle", "create", "-q", str(place / "cases" / "by-bundle" / "it.bundle"), "start"], env=environment)
    for id_, durable in (
        ("by-bundle", 'bundle = "it.bundle"\nref = "start"\n'),
        ("by-path", f'path = "{repository}"\ncommit = "{commit}"\n'),
    ):
        file = place / "cases" / id_ / "case.toml"
        file.write_text(file.read_text().replace('files = "repo"\n', durable))
    body = "toolbox.run(['git', 'log', '--oneline'])\ntoolbox.write('app.py', toolbox.read('app.py').replace(b'1', b'2'))"

    one, other = (
        ran(place, tmp_path, agent_file(tmp_path, body), out=tmp_path / name / "run", workers=n) for name, n in (("a", 1), ("b", 2))
    )

    same_bytes(one, other)
    assert one.counts["pass"] == 2, [record.reason for record in one.records]
    assert {record.base for record in one.records} == {commit}
    seen = RunStore(one.store.path).lines("transcripts", one.records[0].key)[1]["stdout"]
    assert len(seen.splitlines()) == 1  # the agent sees no past, and no future
