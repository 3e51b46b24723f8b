"""Two runs side by side: which exit status, which flips, where the ways part; rates and their differences, with intervals."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from support.evals import SOLVES, agent_file, ran, suite

from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.compare import Comparison, SamplePair, compare, first_divergence
from pytest_gittrix.evals.results.intervals import wilson
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import rates
from pytest_gittrix.evals.runs.run import Summary
from pytest_gittrix.evals.verification.determinism import check_determinism


def twice(tmp_path: Path, body: str) -> tuple[Summary, Summary]:
    """One agent, run twice; it takes the text ``first`` or ``second`` from the date of a file, which is no input that is recorded."""
    agent = agent_file(tmp_path, f"import os\nturn = ('first', 'second')[int(os.stat({str(tmp_path / 'turn')!r}).st_mtime)]\n{body}")
    (tmp_path / "turn").touch()
    found = []
    for number, turn in enumerate(("first", "second")):
        os.utime(tmp_path / "turn", (number, number))
        found.append(ran(suite(tmp_path, "a", "b"), tmp_path, agent, out=tmp_path / turn))
    return found[0], found[1]


def test_equal_runs_compare_as_the_same(tmp_path: Path) -> None:
    one, other = twice(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')")

    found = compare(one.store, other.store)

    assert (found.code, found.inputs, found.better, found.worse) == (0, (), (), ())
    assert {pair.difference for pair in found.pairs} == {"same"}


def test_a_flip_is_significant_with_the_event_where_the_ways_part(tmp_path: Path) -> None:
    one, other = twice(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n' if turn == 'first' or toolbox.case == 'b' else 'oops')")

    found = compare(one.store, other.store)
    (pair,) = [pair for pair in found.pairs if pair.difference != "same"]

    assert found.code == 1
    assert (pair.id, pair.flip, found.worse, found.better) == ("a", "pass -> fail", (pair,), ())
    assert pair.divergence is not None
    assert pair.divergence.a is not None
    assert pair.divergence.a["kind"] == "review.done"
    assert str(pair.divergence).startswith(f"event {pair.divergence.seq}: review.done (files 1, tree ")


def test_the_same_outcome_by_another_tree_is_significant_as_that(tmp_path: Path) -> None:
    one, other = twice(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')\ntoolbox.write('log', turn)")

    found = compare(one.store, other.store)

    assert found.code == 2
    assert [pair.difference for pair in found.pairs] == ["tree", "tree"]


def test_the_same_tree_by_another_way_is_significant_as_that(tmp_path: Path) -> None:
    one, other = twice(
        tmp_path, "if turn == 'second':\n    toolbox.write('app.py', 'VERSION = 9\\n')\ntoolbox.write('app.py', 'VERSION = 2\\n')"
    )

    found = compare(one.store, other.store)

    assert found.code == 2
    assert [pair.difference for pair in found.pairs] == ["log", "log"]


def test_runs_of_other_inputs_say_which(tmp_path: Path) -> None:
    one = ran(suite(tmp_path, "a"), tmp_path, SOLVES)
    other = ran(suite(tmp_path, "a"), tmp_path, SOLVES, out=tmp_path / "other", seed=1)

    found = compare(one.store, other.store)

    assert (found.code, found.inputs) == (3, ("setting.seed",))


def test_a_sample_that_only_one_of_them_has_is_a_difference(tmp_path: Path) -> None:
    one = ran(suite(tmp_path, "a", "b"), tmp_path, SOLVES)
    other = ran(suite(tmp_path, "a", "b"), tmp_path, SOLVES, out=tmp_path / "other", only=("a",))

    found = compare(one.store, other.store)

    assert found.code == 1
    assert [(pair.id, pair.difference, pair.flip) for pair in found.pairs] == [
        ("a", "same", "pass -> pass"),
        ("b", "missing", "pass -> missing"),
    ]


def test_an_infra_error_is_a_changed_outcome_and_no_flip(tmp_path: Path) -> None:
    one, other = twice(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')")
    record = other.records[0]
    other.store.save_record(replace(record, outcome="infra_error"))

    found = compare(one.store, other.store)

    assert (found.code, found.better, found.worse) == (1, (), ())
    assert [pair.flip for pair in found.pairs if pair.difference != "same"] == ["pass -> infra_error"]


def test_logs_part_where_one_is_over() -> None:
    lines = [{"seq": n, "kind": "x", "data": {}} for n in range(3)]

    assert first_divergence(lines, lines) is None
    parted = first_divergence(lines, lines[:2])
    assert parted is not None
    assert (parted.seq, parted.b) == (2, None)
    assert "nothing" in str(parted)


def test_a_suite_that_is_run_twice_names_what_is_not_the_same(tmp_path: Path) -> None:
    from support.evals import options

    good = check_determinism(Suite.load(suite(tmp_path, "a")), options(tmp_path, SOLVES, out=tmp_path / "good"))
    body = "import os\ntoolbox.write('app.py', 'VERSION = 2\\n')\ntoolbox.write('random', os.urandom(8).hex())"
    bad = check_determinism(Suite.load(suite(tmp_path, "a")), options(tmp_path, agent_file(tmp_path, body), out=tmp_path / "bad"))
    again = check_determinism(Suite.load(suite(tmp_path, "a")), options(tmp_path, SOLVES, out=tmp_path / "bad"))

    assert (good.code, bad.code, again.code) == (0, 2, 0)
    assert bad.pairs[0].divergence is not None


@pytest.mark.needs_root
def test_the_second_run_of_an_unconfined_suite_has_another_host_name(tmp_path: Path) -> None:
    from support.evals import options

    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user cannot give programs another host name")
    agent = agent_file(tmp_path, "toolbox.write('host', toolbox.run(['uname', '-n']).stdout)")

    found = check_determinism(Suite.load(suite(tmp_path, "a")), options(tmp_path, agent, out=tmp_path / "runs"))

    assert found.code == 2


# Rates -----------------------------------------------------------------------------------------------------------------------------


def outcomes(**by_id: str) -> list[Record]:
    """Records from letters: p pass, f fail, i infra_error, one an epoch."""
    names = {"p": "pass", "f": "fail", "i": "infra_error"}
    return [
        Record(f"{id_}{epoch}", id_, epoch, "", "", "", names[letter])  # type: ignore[arg-type]
        for id_, letters in by_id.items()
        for epoch, letter in enumerate(letters)
    ]


def test_pass_at_k_and_pass_all_k_are_the_unbiased_estimators() -> None:
    found = rates(outcomes(a="ppf", b="pff", c="fff"))

    assert found.samples == 9
    assert found.passed is not None
    assert found.passed.value == pytest.approx(3 / 9)
    # Of the three pairs of epochs: a has one pass in each, b in two, c in none; a passes in both of one pair alone.
    assert found.at[2].value == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found.all[2].value == pytest.approx((1 / 3 + 0 + 0) / 3)
    assert found.at[3].value == pytest.approx(2 / 3)
    assert found.all[3].value == 0
    assert found.at[1].value == found.all[1].value == pytest.approx((2 / 3 + 1 / 3) / 3)


def test_what_says_nothing_about_the_agent_is_left_out_and_told() -> None:
    found = rates(outcomes(a="pi", b="pf"))

    assert (found.samples, found.left_out) == (3, 1)
    assert found.at == {}  # every case has one epoch that counts, and not every one has two


def test_no_sample_has_no_rate() -> None:
    found = rates(outcomes(a="i"))

    assert (found.samples, found.passed, found.at) == (0, None, {})


def test_intervals_hold_the_rate_and_are_the_same_each_time() -> None:
    records = outcomes(a="ppfp", b="pffp", c="ffff", d="pppp")
    found = rates(records)

    for estimate in (found.passed, *found.at.values(), *found.all.values()):
        assert estimate is not None
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
        assert estimate.low < estimate.high
    assert rates(records) == found


def test_one_sample_a_case_gives_wilsons_interval() -> None:
    passed = rates(outcomes(**{f"c{n}": "p" if n < 81 else "f" for n in range(263)})).passed

    assert passed is not None
    assert (passed.low, passed.high) == wilson(81 / 263, 263)


def test_repetitions_that_are_all_alike_make_the_interval_no_narrower() -> None:
    once = rates(outcomes(**{f"c{n}": "p" if n < 8 else "f" for n in range(10)})).passed
    thrice = rates(outcomes(**{f"c{n}": "ppp" if n < 8 else "fff" for n in range(10)})).passed
    always = rates(outcomes(a="pppp", b="pppp")).passed

    assert once is not None
    assert thrice is not None
    assert always is not None
    assert (thrice.low, thrice.high) == (pytest.approx(once.low), pytest.approx(once.high))
    assert (always.low, always.high) == wilson(1, 2)


def test_cases_that_are_more_alike_than_chance_count_as_no_more_than_their_samples() -> None:
    passed = rates(outcomes(a="pf", b="fp", c="pf")).passed

    assert passed is not None
    assert (passed.low, passed.high) == wilson(0.5, 6)


def test_repetitions_of_a_single_case_count_as_samples() -> None:
    passed = rates(outcomes(a="ppppf")).passed

    assert passed is not None
    assert (passed.low, passed.high) == wilson(0.8, 5)


# Comparisons of pass rates ---------------------------------------------------------------------------------------------------------


def compared(ours: dict[str, str], theirs: dict[str, str]) -> Comparison:
    """Two runs from letters."""
    first, second = ({(one.id, one.epoch): one for one in outcomes(**side)} for side in (ours, theirs))
    pairs = [SamplePair(*sample, first.get(sample), second.get(sample), "same") for sample in sorted({*first, *second})]
    return Comparison(RunStore(Path("a")), RunStore(Path("b")), (), tuple(pairs))


def test_cases_are_compared_by_their_own_rates_worst_first() -> None:
    found = compared({"a": "pppp", "b": "ffff", "c": "ppff", "d": "p"}, {"a": "pppf", "b": "pfff", "c": "ffff", "e": "p"})

    assert [(case.id, case.change) for case in found.cases] == [
        ("c", Fraction(-1, 2)),
        ("a", Fraction(-1, 4)),
        ("b", Fraction(1, 4)),
        ("d", None),
        ("e", None),
    ]
    assert (found.difference.cases, found.difference.better, found.difference.worse) == (3, 1, 2)
    assert found.difference.difference == pytest.approx(-1 / 6)


def test_what_says_nothing_about_the_agent_is_left_out_of_the_comparison() -> None:
    found = compared({"a": "pp", "b": "p"}, {"a": "fi", "b": "i"})

    assert found.difference.cases == 1
    assert found.difference.difference == -1


def test_programs_get_the_numbers_of_the_sentences() -> None:
    data = compared({"a": "pp", "b": "pf"}, {"a": "pf", "b": "pf"}).difference.to_json()

    assert data["difference"] == -0.25
    assert data["sentences"][0].startswith("Pass rate of b minus a: -25.0 points")
    assert data["significant"] is False
