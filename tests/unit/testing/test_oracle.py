"""The judge reads real repositories with git's own plumbing, and every rule passes what is right and names what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pytest_gittrix.testing import oracle
from pytest_gittrix.testing.oracle import Judge, files_in
from pytest_gittrix.testing.repos.edits import Edits, Tree
from pytest_gittrix.testing.repos.history import Content, Executable, Submodule, Symlink
from pytest_gittrix.testing.world import World

FILES = Tree({"a": b"1\n", "bad\udcff": b"\0", "dir/deep/link": Symlink(b"../a"), "run": Executable(b"#!/bin/sh\n")})
NOW = datetime(2030, 1, 1, tzinfo=UTC)
POINTER = "1234567890" * 4


@pytest.fixture
def judge(world: World) -> Iterator[Judge]:
    with Judge(world.durable.path) as opened:
        yield opened


# Reading -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("bare", [False, True])
def test_the_judge_reads_every_kind_of_file_in_both_formats(object_format: str, bare: bool, tmp_path: Path) -> None:
    pointer = Submodule(POINTER if object_format == "sha1" else POINTER + "0" * 24)
    files = {**FILES, "sub": pointer}
    with World.open(tmp_path / "world", files=files, object_format=object_format, bare=bare) as opened:
        with Judge(opened.durable.path) as judge:
            assert judge.tree(judge.head()) == files
            assert judge.commit(judge.head()).parents == ()


def test_the_judge_sees_what_was_committed_after_it_began(world: World, judge: Judge) -> None:
    first = judge.head()
    second = world.rival.commit({"a": b"2\n", "run": None}, "Subject\n\nBody")

    assert judge.head() == second
    assert judge.commit(second).message.strip() == "Subject\n\nBody"
    assert judge.history(second) == [second, first]
    assert judge.tree(first).to(judge.tree(second)) == {"a": b"2\n", "run": None}


def test_the_judge_reads_the_index_and_the_work_tree(world: World, judge: Judge) -> None:
    world.durable.stage({"new": b"staged\n"})
    world.durable.dirty({"a": b"dirty\n", "run": None})

    assert judge.index() == FILES.apply({"new": b"staged\n"})
    assert files_in(world.durable.path) == FILES.apply({"new": b"staged\n", "a": b"dirty\n", "run": None})


def test_what_is_missing_is_said_to_be(world: World, judge: Judge, tmp_path: Path) -> None:
    assert not judge.has(POINTER)
    with pytest.raises(AssertionError, match=POINTER):
        judge.tree(POINTER)
    with pytest.raises(AssertionError, match="is a blob, not a commit"):
        judge.commit(world.durable.tree()["a"].id)
    with Judge(tmp_path / "nowhere") as nowhere, pytest.raises(AssertionError, match="refs/heads/main is missing"):
        nowhere.head()


# Rules -------------------------------------------------------------------------------------------------------------------------


def test_a_promote_is_one_commit_of_exactly_the_selection(world: World, judge: Judge) -> None:
    onto = judge.head()
    sha = world.durable.commit({"a": Executable(b"1\n"), "new": b""})
    right: dict[str, Content | None] = {"a": Executable(b"1\n"), "new": b""}

    oracle.invariant_promote_is_one_commit(judge, sha, onto=onto, selection=right)
    oracle.invariant_promoted_is_reviewed(judge, sha, onto, Edits(right))
    for wrong in ({"a": b"1\n", "new": b""}, {"a": Executable(b"1\n")}, right | {"run": None}):
        with pytest.raises(AssertionError, match=r"changes exactly its selection.\n  '(a|new|run)'"):
            oracle.invariant_promote_is_one_commit(judge, sha, onto=onto, selection=wrong)
    with pytest.raises(AssertionError, match="one commit on the head it met"):
        oracle.invariant_promote_is_one_commit(judge, world.durable.commit({"x": b""}), onto=onto, selection=right)


def test_a_commit_that_is_not_reachable_any_more_is_lost(world: World, judge: Judge) -> None:
    first = judge.head()
    second = world.durable.commit({"a": b"2\n"}, "Precious")
    oracle.invariant_no_commit_is_lost(judge, second, [first, second])

    world.durable.rewind(first)

    with pytest.raises(AssertionError, match=f"{second}: 'Precious'"):
        oracle.invariant_no_commit_is_lost(judge, judge.head(), [first, second])


def test_touched_is_neither_more_nor_less_than_what_differs() -> None:
    workspace = FILES.apply({"a": None, "new": b""})

    oracle.invariant_touched_is_the_difference(["new", "a"], FILES, workspace)
    for wrong in (["new"], ["a", "new", "run"]):
        with pytest.raises(AssertionError, match="differs from the baseline"):
            oracle.invariant_touched_is_the_difference(wrong, FILES, workspace)


def test_a_conflict_is_where_drift_overlaps_and_nowhere_else() -> None:
    head = FILES.apply({"a": None, "moved": b"1\n"})

    oracle.invariant_conflict_iff_overlap(["a"], ["a", "run"], FILES, head)
    oracle.invariant_conflict_iff_overlap(None, ["run"], FILES, head)
    with pytest.raises(AssertionError, match="'a': expected 'conflict', found no conflict"):
        oracle.invariant_conflict_iff_overlap(None, ["a"], FILES, head)
    with pytest.raises(AssertionError, match="'run': expected no conflict, found 'conflict'"):
        oracle.invariant_conflict_iff_overlap(["run"], ["run"], FILES, head)


def test_a_changed_byte_of_durable_is_named_with_who_did_it(world: World) -> None:
    before = world.durable.fingerprint()
    oracle.invariant_untouched(before, world.durable.fingerprint(), by="an agent")

    world.durable.git("update-ref", "refs/heads/planted", "HEAD")

    with pytest.raises(AssertionError, match=r"changed by an agent\.\n(.*\n)*  refs: refs/heads/planted: nothing"):
        oracle.invariant_untouched(before, world.durable.fingerprint(), by="an agent")


def test_the_checkout_is_judged_by_files_and_by_index(world: World, judge: Judge) -> None:
    oracle.invariant_checkout(judge, files=FILES, staged=FILES)
    world.durable.stage({"a": b"2\n"})
    world.durable.dirty({"a": b"1\n"})

    oracle.invariant_checkout(judge, files=FILES)
    with pytest.raises(AssertionError, match="index is the human's"):
        oracle.invariant_checkout(judge, staged=FILES)
    with pytest.raises(AssertionError, match="work tree is the human's"):
        oracle.invariant_checkout(judge, files=FILES.apply({"a": None}))


def test_a_workspace_that_borrows_or_shows_too_much_is_found(world: World, judge: Judge) -> None:
    session = world.start()
    later = world.durable.commit({"a": b"later\n"})
    workspace = session.workspace_path
    assert workspace is not None
    oracle.invariant_workspace_stands_alone(workspace, judge, [later])

    with pytest.raises(AssertionError, match="shows no commit"):
        oracle.invariant_workspace_stands_alone(workspace, judge, [session.info().baseline_sha])
    (workspace / ".git/objects/info").mkdir()
    (workspace / ".git/objects/info/alternates").write_text(f"{world.durable.path}/.git/objects\n")
    with pytest.raises(AssertionError, match="borrows nothing"):
        oracle.invariant_workspace_stands_alone(workspace, judge, [])
    (workspace / ".git/objects/info/alternates").unlink()
    with (workspace / ".git/config").open("a") as config:
        config.write('[remote "origin"]\n')
    with pytest.raises(AssertionError, match="knows no remote"):
        oracle.invariant_workspace_stands_alone(workspace, judge, [])


def test_a_workspace_without_a_repository_stands_alone(judge: Judge, tmp_path: Path) -> None:
    oracle.invariant_workspace_stands_alone(tmp_path, judge, [])

    (tmp_path / ".git").write_text("gitdir: elsewhere\n")

    with pytest.raises(AssertionError, match="of its own"):
        oracle.invariant_workspace_stands_alone(tmp_path, judge, [])


@pytest.mark.parametrize("before", ["promoted", "discarded", "expired"])
def test_an_ended_state_may_not_change(before: str) -> None:
    oracle.invariant_ended_stays(before, before)
    oracle.invariant_ended_stays("active", before)

    with pytest.raises(AssertionError, match=f"it was {before}, now it is active"):
        oracle.invariant_ended_stays(before, "active")


@pytest.mark.parametrize(
    ("evicted", "late", "complaint"),
    [([], 0, None), (["s"], 1, None), (["s"], 0, "s was evicted"), ([], 1, "s was kept"), (["s", "other"], 1, "other was evicted")],
)
def test_a_sweep_is_exact_to_the_microsecond(evicted: list[str], late: int, complaint: str | None) -> None:
    deadlines = {"s": NOW, "other": None}

    def judged() -> None:
        oracle.invariant_sweep_is_exact(evicted, NOW + timedelta(microseconds=late), ["s", "other"], deadlines)

    if complaint is None:
        judged()
        return
    with pytest.raises(AssertionError, match=complaint):
        judged()


def test_what_an_eviction_left_is_named(tmp_path: Path) -> None:
    oracle.invariant_eviction_leaves_nothing(tmp_path / "workspace", tmp_path / ".lock")
    (tmp_path / ".lock").touch()

    with pytest.raises(AssertionError, match=r"\.lock"):
        oracle.invariant_eviction_leaves_nothing(tmp_path / "workspace", tmp_path / ".lock")


def test_an_archive_holds_all_that_was_not_promoted(world: World, judge: Judge) -> None:
    sha = world.durable.commit({"a": b"kept\n", "run": None})

    oracle.invariant_work_is_archived(judge, sha, {"a": b"kept\n", "run": None})
    with pytest.raises(AssertionError, match="'new': expected b'', found no change"):
        oracle.invariant_work_is_archived(judge, sha, {"new": b""})
    with pytest.raises(AssertionError, match="'dir/deep/link': expected no file, found no change"):
        oracle.invariant_work_is_archived(judge, sha, {"dir/deep/link": None})


def test_half_done_states_are_found(world: World, judge: Judge, tmp_path: Path) -> None:
    head = judge.head()
    oracle.invariant_nothing_is_half_done(judge, "promoted", head, tmp_path / "gone")
    oracle.invariant_nothing_is_half_done(judge, "active", None, tmp_path)
    oracle.invariant_nothing_is_half_done(judge, "expired", None, tmp_path / "gone")

    with pytest.raises(AssertionError, match="commit is on the branch"):
        oracle.invariant_nothing_is_half_done(judge, "promoted", POINTER, tmp_path)
    with pytest.raises(AssertionError, match="has its workspace"):
        oracle.invariant_nothing_is_half_done(judge, "active", None, tmp_path / "gone")
    Path(world.durable.path, ".git/index.lock").touch()
    with pytest.raises(AssertionError, match=r"index\.lock"):
        oracle.invariant_nothing_is_half_done(judge, "active", None, tmp_path)


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        (b'{"seq": 0}\n{"seq": 1}\n', None),
        (b'{"seq": 0}\n{"seq": 2}\n', "without a gap"),
        (b'{"seq": 0}\n{"seq": 0}\n', "without a gap"),
        (b'{"seq": 0}\n{"se', "whole line"),
    ],
)
def test_a_log_has_neither_gaps_nor_torn_lines(log: bytes, complaint: str | None, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(log)

    if complaint is None:
        oracle.invariant_log_has_no_gap(path)
        return
    with pytest.raises(AssertionError, match=complaint):
        oracle.invariant_log_has_no_gap(path)


def test_an_answer_must_be_one_of_those_that_are_right() -> None:
    oracle.invariant_answer("OK", {"OK"}, to="s1.promote()")

    with pytest.raises(AssertionError, match=r"s1.promote\(\) must answer BASELINE_CONFLICT or OK, not INVALID_INPUT.\n  because"):
        oracle.invariant_answer("INVALID_INPUT", {"OK", "BASELINE_CONFLICT"}, to="s1.promote()", said="because")


def test_two_worlds_of_one_seed_are_equal_and_of_two_are_not(tmp_path: Path) -> None:
    def run(name: str, seed: int) -> dict[str, object]:
        with World.open(tmp_path / name, files=FILES, seed=seed) as opened:
            session = opened.start()
            session.write("a", b"2\n")
            return {"id": session.id, "sha": session.promote().sha}

    oracle.invariant_runs_are_equal([run("one", 0), run("two", 0)])
    with pytest.raises(AssertionError, match="'id': expected"):
        oracle.invariant_runs_are_equal([run("three", 0), run("four", 1)])


def test_the_oracle_does_not_read_with_the_readers_of_what_it_judges() -> None:
    imported = {line.split()[1] for line in Path(oracle.__file__).read_text().splitlines() if line.startswith("from pytest_gittrix")}
    allowed = ("pytest_gittrix.testing.", "pytest_gittrix.git.environment")

    assert [module for module in imported if not module.startswith(allowed)] == []
    assert os.path.basename(oracle.__file__) == "oracle.py"
