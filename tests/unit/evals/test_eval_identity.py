"""Canonical JSON, keys and seeds: the same for the same inputs, on every machine and in every order."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.identity import (
    KEY_SIZE,
    canonical,
    check_id,
    digest_of,
    result_digest,
    sample_key,
    sample_random_seed,
    session_id,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_canonical_json_reads_back_as_what_was_written(value: object) -> None:
    assert json.loads(canonical(value)) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value)


@pytest.mark.parametrize("value", [1.0, {"a": 0.5}, {1, 2}, [{1: "a"}], b"bytes", object(), {"deep": [{"set": frozenset()}]}])
def test_what_has_no_one_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="no canonical form"):
        canonical(value)


def test_a_digest_is_the_same_in_another_process_with_another_hash_seed() -> None:
    program = "from pytest_gittrix.evals.inputs.identity import digest_of; print(digest_of({'b': [1, 'ü'], 'a': None}))"
    printed = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=60, check=True
        )
        for seed in ("1", "2")
    ]

    assert {done.stdout.strip() for done in printed} == {digest_of({"a": None, "b": [1, "ü"]})}


@pytest.mark.parametrize("id_", ["a", "fix-bug_2.1", "A" * 100])
def test_ids_that_can_name_files_and_references_pass(id_: str) -> None:
    assert check_id(id_, "here") == id_


@pytest.mark.parametrize("id_", ["", ".hidden", "-x", "a/b", "a b", "a..b", "a.lock", "a.", "ü", "a\0b", "a\n", "A" * 101])
def test_other_ids_are_refused_by_name(id_: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid case id") as refused:
        check_id(id_, "suite.toml")

    assert repr(id_) in str(refused.value)
    assert refused.value.fix


def test_a_key_changes_with_each_of_its_inputs_and_with_nothing_else() -> None:
    inputs = ({"seed": 1}, "sha256:aa", "fix", 0)
    others = [({"seed": 2}, "sha256:aa", "fix", 0), ({"seed": 1}, "sha256:bb", "fix", 0), ({"seed": 1}, "sha256:aa", "fax", 0)]
    others.append(({"seed": 1}, "sha256:aa", "fix", 1))
    keys = {sample_key(*other) for other in [inputs, *others]}

    assert len(keys) == len(others) + 1
    assert sample_key(*inputs) == sample_key({"seed": 1}, "sha256:aa", "fix", 0)
    assert all(len(key) == KEY_SIZE for key in keys)


def test_seeds_and_session_ids_differ_from_sample_to_sample() -> None:
    seeds = {sample_random_seed(seed, id_, epoch) for seed in range(3) for id_ in ("a", "b") for epoch in range(3)}

    assert len(seeds) == 18
    assert len({session_id(seed) for seed in seeds}) == 18


def test_the_result_digest_does_not_know_who_was_done_first() -> None:
    rows = [(f"key{n}", "pass", f"sha{n}", f"tree{n}", f"log{n}") for n in range(5)]

    assert result_digest(rows) == result_digest(reversed(rows))
    assert result_digest(rows) != result_digest(rows[1:])
