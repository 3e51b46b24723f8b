"""The closed forms give the numbers of published examples, and what is said of a comparison follows from them."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import sqrt
from statistics import NormalDist

import pytest

from pytest_gittrix.evals.results.intervals import clustered, randomisation_p, student, wilson
from pytest_gittrix.evals.results.paired import paired_difference

YES, NO, HALF = Fraction(1), Fraction(0), Fraction(1, 2)


@pytest.mark.parametrize(
    ("passes", "samples", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_as_in_newcombe_1998(passes: int, samples: int, low: float, high: float) -> None:
    assert (wilson(0, 10)[0], wilson(1, 10)[1]) == (0, 1)
    assert wilson(passes / samples, samples) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (14, 2.145), (100, 1.984)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=5e-4)


def test_the_paired_interval_is_that_of_students_sleep_data() -> None:
    """Student 1908: the extra hours of sleep of ten patients by two drugs; t is -4.062 and the interval -2.46 to -0.70."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    # As rates, which lie between 0 and 1.
    found = paired_difference([(Fraction(str(b)) / 10, Fraction(str(a)) / 10) for a, b in zip(first, second, strict=True)])

    assert found.difference is not None
    assert found.standard_error is not None
    assert found.difference / found.standard_error == pytest.approx(-4.0621, abs=5e-5)
    assert (found.low, found.high) == (pytest.approx(-0.24599, abs=5e-6), pytest.approx(-0.07001, abs=5e-6))


def test_the_randomisation_test_is_that_of_darwins_maize() -> None:
    """Fisher 1935: of the 32 768 choices of signs, 1 726 give a sum as far from 0 as that of Darwin's fifteen pairs of plants."""
    eighths_of_an_inch = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]

    assert randomisation_p(eighths_of_an_inch) == 1726 / 32768


def test_differences_of_one_give_the_sign_test() -> None:
    """Zar 1999: of ten deer, eight have longer hind legs than forelegs; p is 0.109375."""
    assert randomisation_p([1] * 8 + [-1] * 2) == 0.109375


def test_every_choice_of_signs_is_counted() -> None:
    differences = [3, -1, 2, 0, 5, -2]
    sums = [sum(sign * one for sign, one in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=6)]

    assert randomisation_p(differences) == sum(abs(one) >= 7 for one in sums) / len(sums)
    assert randomisation_p([one * 20 for one in differences]) == randomisation_p(differences)
    assert randomisation_p([0, 0]) == 1


def test_very_many_differences_are_approximated() -> None:
    assert randomisation_p([1] * 550 + [-1] * 450) == pytest.approx(2 * (1 - NormalDist().cdf(100 / sqrt(1000))), abs=1e-12)
    deviations = (7 * 2000 - 6 * 2100) / sqrt(7**2 * 2000 + 6**2 * 2100)

    assert randomisation_p([7] * 2000 + [-6] * 2100) == pytest.approx(2 * (1 - NormalDist().cdf(deviations)))


def test_one_sample_a_case_is_agrestis_comparison_of_dependent_proportions() -> None:
    """Agresti 2002, approval of the prime minister: the difference is -0.04, its standard error 0.0095, its interval -0.06 to -0.02."""
    found = paired_difference([(YES, YES)] * 794 + [(YES, NO)] * 150 + [(NO, YES)] * 86 + [(NO, NO)] * 570)

    assert found.difference == pytest.approx(-0.04)
    assert found.standard_error == pytest.approx(0.0095, abs=1e-4)
    assert (found.low, found.high) == (pytest.approx(-0.06, abs=0.005), pytest.approx(-0.02, abs=0.005))
    assert (found.better, found.worse, found.is_significant) == (86, 150, True)


def test_the_standard_error_is_clustered_by_case() -> None:
    """Miller 2024: the products of the deviations of all samples of one cluster; a comparison has the factor for few clusters besides."""
    cases = [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]
    mean = 6 / 12
    by_hand = sqrt(sum((one - mean) * (other - mean) for case in cases for one in case for other in case)) / 12

    assert clustered(cases) == (mean, pytest.approx(by_hand))
    rates = [(NO, Fraction(int(sum(case)), 3)) for case in cases]
    assert paired_difference(rates).standard_error == pytest.approx(by_hand * sqrt(4 / 3))


def test_repetitions_that_are_all_alike_tell_no_more_than_one() -> None:
    once = [(YES, NO)] * 3 + [(NO, YES)] * 2 + [(YES, YES)] * 20

    assert paired_difference(once) == paired_difference([(Fraction(5 * a, 5), Fraction(5 * b, 5)) for a, b in once])


# What is said ----------------------------------------------------------------------------------------------------------------------


def test_six_cases_that_all_get_worse_are_told_and_five_are_not() -> None:
    six, five = paired_difference([(YES, NO)] * 6), paired_difference([(YES, NO)] * 5)

    assert (six.is_significant, six.p, six.low, six.high) == (True, 2 / 64, None, None)
    assert six.sentences[1] == "b is worse than a: chance alone seldom makes such a difference."
    assert (five.is_significant, five.p, five.detectable) == (False, 2 / 32, None)
    assert five.sentences[1].startswith("Not enough samples to tell: chance alone makes such differences.")
    assert five.sentences[-1] == "Fewer than 6 cases never suffice to tell a difference from chance."


def test_a_difference_that_chance_explains_says_how_many_cases_would_show_it() -> None:
    found = paired_difference([(YES, NO)] * 6 + [(NO, YES)] * 2 + [(YES, YES)] * 32)

    assert found.sentences == (
        "Pass rate of b minus a: -10.0 points (95 % interval -24.1 to +4.1, p = 0.289); 2 of 40 cases better, 6 worse.",
        "Not enough samples to tell: chance alone makes such differences.",
        "About 153 cases would show a difference of this size.",
        "Minimal detectable difference: 19.6 points, which are noticed in 4 of 5 comparisons on such cases.",
    )


def test_the_needed_cases_have_the_seen_difference_as_their_minimal_detectable_one() -> None:
    block = [(YES, NO)] * 6 + [(NO, YES)] * 2 + [(YES, YES)] * 32
    needed = paired_difference(block).needed
    assert needed is not None

    many = paired_difference(block * round(needed / len(block)))

    assert many.difference == pytest.approx(-0.1)
    assert many.standard_error is not None
    assert many.detectable == pytest.approx(0.1, rel=0.1)
    assert many.detectable == pytest.approx(2.80 * many.standard_error, rel=1e-3)


@pytest.mark.parametrize(("better", "count"), [(5, 10), (5, 9), (5, 7), (5, 12), (3, 8), (2, 6), (1, 3)])
def test_more_cases_are_needed_than_those_that_do_not_show_a_difference(better: int, count: int) -> None:
    found = paired_difference([(NO, YES)] * better + [(YES, YES)] * (count - better))

    assert not found.is_significant
    assert found.needed is not None
    assert found.needed > count
    assert found.needed * better / count >= 6


def test_where_interval_and_p_disagree_p_decides() -> None:
    found = paired_difference([(NO, YES)] * 5 + [(YES, YES)] * 5)

    assert found.sentences == (
        "Pass rate of b minus a: +50.0 points (95 % interval +12.3 to +87.7, p = 0.062); 5 of 10 cases better, 0 worse.",
        "Not enough samples to tell: chance alone makes such differences.",
        "The interval is approximate on so few cases: p decides.",
        "About 12 cases would show a difference of this size.",
        "Minimal detectable difference: 60.0 points, which are noticed in 4 of 5 comparisons on such cases.",
    )


def test_runs_without_a_change_have_a_minimal_detectable_difference_too() -> None:
    found = paired_difference([(YES, YES), (HALF, HALF)] * 10)

    assert found.sentences[1] == "Not enough samples to tell: no case passes more or less often."
    assert found.detectable == 6 * 0.5 / 20
    assert (found.p, found.low, found.needed) == (1, None, None)


def test_a_small_p_is_significant_as_such_and_no_case_is_said() -> None:
    assert "p < 0.001" in paired_difference([(NO, YES)] * 20).sentences[0]
    assert paired_difference([(NO, YES)] * 20).sentences[1].startswith("b is better than a")
    assert paired_difference([]).sentences == ("No case was judged in both runs.",)
    assert "0 of 1 case better, 1 worse" in paired_difference([(YES, NO)]).sentences[0]
