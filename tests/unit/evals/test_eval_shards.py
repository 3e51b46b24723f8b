"""Parts of a run make up the whole, and samples whose inputs are the same need not be done twice."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.evals import SOLVES, agent_file, ran, suite, write

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.shards import Shard, merge

IDS = [f"case-{n}" for n in range(6)]


@given(st.text(min_size=1), st.integers(0, 50), st.integers(1, 12))
def test_each_sample_is_in_exactly_one_shard(id_: str, epoch: int, of: int) -> None:
    assert [Shard(number, of).has(id_, epoch) for number in range(1, of + 1)].count(True) == 1


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "a/b", "1 / 3", "01/3"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no shard"):
        Shard.parse(text)


def test_shards_merge_to_what_one_run_of_everything_is(tmp_path: Path) -> None:
    place = suite(tmp_path, *IDS)
    whole = ran(place, tmp_path, SOLVES, epochs=2)
    parts = [ran(place, tmp_path, SOLVES, epochs=2, out=tmp_path / f"part-{n}", shard=Shard(n, 3)) for n in (1, 2, 3)]
    assert sum(len(part.records) for part in parts) == len(whole.records) == 12

    merged = merge([part.store.path for part in reversed(parts)], tmp_path / "merged")

    assert compare(whole.store, merged).code == 0
    assert merged.manifest().digest == whole.manifest.digest
    assert merged.objects.file(merged.records()[0].promoted, "app.py") == b"VERSION = 2\n"
    for part in ("events", "patches", "transcripts"):
        assert all(merged.part(part, key) == whole.store.part(part, key) for key in whole.manifest.keys.values())
    fsck = subprocess.run(["git", "-C", str(merged.objects.path), "fsck", "--no-dangling"], capture_output=True, timeout=60, check=False)
    assert fsck.returncode == 0, fsck.stderr


def test_overlapping_shards_count_each_sample_once(tmp_path: Path) -> None:
    place = suite(tmp_path, "a", "b")
    one, other = (ran(place, tmp_path, SOLVES, out=tmp_path / name) for name in ("one", "other"))

    assert len(merge([one.store.path, other.store.path], tmp_path / "merged").records()) == 2


def test_runs_that_were_moved_since_are_merged_and_taken_over_from(tmp_path: Path) -> None:
    place = suite(tmp_path, "a", "b")
    first = ran(place, tmp_path, SOLVES)
    moved = first.store.path.rename(tmp_path / "downloaded")

    merged = merge([moved], tmp_path / "merged")
    again = ran(place, tmp_path, SOLVES, out=tmp_path / "again", reuse=moved, trust_agent=True)

    for store in (merged, again.store):
        assert compare(RunStore.open(moved), store).code == 0
        assert store.objects.file(first.records[0].promoted, "app.py") == b"VERSION = 2\n"
    assert [one.reused for one in again.reused.values()] == [True, True]


def test_a_merge_that_is_cut_short_is_no_run_and_can_be_done_again(tmp_path: Path) -> None:
    first = ran(suite(tmp_path, "a", "b"), tmp_path, SOLVES)
    events = first.store.path / "events" / f"{first.records[1].key}.jsonl"
    events.rename(tmp_path / "kept")
    events.mkdir()
    with pytest.raises(AdapterUnavailable, match="directory"):
        merge([first.store.path], tmp_path / "merged")
    assert not RunStore(tmp_path / "merged").exists

    events.rmdir()
    with pytest.raises(InvalidInput, match="is damaged"):
        merge([first.store.path], tmp_path / "merged")
    (tmp_path / "kept").rename(events)
    assert len(merge([first.store.path], tmp_path / "merged").records()) == 2


def test_two_results_for_one_sample_are_not_merged(tmp_path: Path) -> None:
    place = suite(tmp_path, "a")
    agent = agent_file(tmp_path, "import os\ntoolbox.write('app.py', os.urandom(4).hex())")
    one, other = (ran(place, tmp_path, agent, out=tmp_path / name) for name in ("one", "other"))

    with pytest.raises(InvalidInput, match="different results for 'a', epoch 0"):
        merge([one.store.path, other.store.path], tmp_path / "merged")


def test_a_result_counts_before_an_infra_error_on_either_side(tmp_path: Path) -> None:
    place = suite(tmp_path, "a", "b")
    one, other = (ran(place, tmp_path, SOLVES, out=tmp_path / name) for name in ("one", "other"))
    one.store.save_record(replace(one.records[0], outcome="infra_error"))
    other.store.save_record(replace(other.records[1], outcome="infra_error"))

    merged = merge([one.store.path, other.store.path], tmp_path / "merged")

    assert [record.outcome for record in merged.records()] == ["pass", "pass"]


def test_runs_of_different_inputs_are_not_merged(tmp_path: Path) -> None:
    place = suite(tmp_path, "a")
    one, other = (ran(place, tmp_path, SOLVES, out=tmp_path / str(seed), seed=seed) for seed in (1, 2))

    with pytest.raises(InvalidInput, match=r"setting\.seed differ"):
        merge([one.store.path, other.store.path], tmp_path / "merged")
    with pytest.raises(InvalidInput, match="nothing to merge"):
        merge([], tmp_path / "merged")
    with pytest.raises(InvalidInput, match="holds no run"):
        merge([tmp_path / "nowhere"], tmp_path / "merged")


def test_a_shard_of_nothing_is_no_error(tmp_path: Path) -> None:
    place = suite(tmp_path, "a")
    empty = next(number for number in (1, 2) if not Shard(number, 2).has("a", 0))

    assert ran(place, tmp_path, SOLVES, shard=Shard(empty, 2)).records == ()


def test_samples_are_taken_over_where_their_inputs_are_the_same_and_the_rest_says_why_not(tmp_path: Path) -> None:
    place = suite(tmp_path, "a", "b")
    first = ran(place, tmp_path, SOLVES)
    write(place / "cases" / "b", {"repo/README.md": "# Changed\n"})

    again = ran(place, tmp_path, SOLVES, out=tmp_path / "again", reuse=first.store.path, trust_agent=True, epochs=2)

    assert {sample: (one.reused, one.why) for sample, one in again.reused.items()} == {
        ("a", 0): (True, "its inputs are the same"),
        ("b", 0): (False, "the case has changed"),
        ("a", 1): (False, "that run has fewer epochs"),
        ("b", 1): (False, "the case has changed"),
    }
    assert again.records[0].promoted == first.records[0].promoted
    assert again.store.objects.file(again.records[0].promoted, "app.py") == b"VERSION = 2\n"
    assert again.counts["pass"] == 4


def test_an_infra_error_is_not_taken_over(tmp_path: Path) -> None:
    place = suite(tmp_path, "a")
    first = ran(place, tmp_path, SOLVES)
    first.store.save_record(replace(first.records[0], outcome="infra_error"))

    again = ran(place, tmp_path, SOLVES, out=tmp_path / "again", reuse=first.store.path, trust_agent=True)

    assert [(one.reused, one.why) for one in again.reused.values()] == [(False, "it ended in infra_error there")]
    assert again.counts["pass"] == 1


def test_another_setting_takes_over_nothing_and_names_the_setting(tmp_path: Path) -> None:
    place = suite(tmp_path, "a")
    first = ran(place, tmp_path, SOLVES)

    again = ran(place, tmp_path, SOLVES, out=tmp_path / "again", reuse=first.store.path, trust_agent=True, seed=5)

    assert [one.why for one in again.reused.values()] == ["setting.seed differ"]


def test_a_run_does_not_take_over_from_itself(tmp_path: Path) -> None:
    place = suite(tmp_path, "a")
    first = ran(place, tmp_path, SOLVES)

    with pytest.raises(InvalidInput, match="is the run itself"):
        ran(place, tmp_path, SOLVES, reuse=first.store.path, trust_agent=True, resume=True)
