"""The plot is drawn from the numbers it is given, to scale, with axes, and with a text for who cannot see it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pytest_gittrix.report.plots import histogram


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def percent(one: ET.Element, name: str) -> float:
    return float((one.get(name) or "0").removesuffix("%"))


def bars(svg: str) -> list[tuple[str, float, float]]:
    """Class, place and height of each bar."""
    return [(one.get("class") or "", percent(one, "x"), percent(one, "height")) for one in parsed(svg).iter("rect")]


def counts(svg: str) -> list[tuple[int, float]]:
    """The counts that the axis names, each with its height above the bottom."""
    return [(int(one.text or ""), 100 - percent(one, "y")) for one in parsed(svg).iter("text") if one.get("class") == "count"]


def test_nothing_is_no_plot() -> None:
    assert histogram({}, label="x") == histogram({"o-pass": [0.0]}, label="x") == ""


def test_heights_are_as_the_counts() -> None:
    found = bars(histogram({"o-pass": [0.1] * 4 + [10.0] * 2}, label="x"))

    assert [round(height / found[1][2], 3) for _, _, height in found] == [2.0, 1.0]
    assert found[0][1] < found[1][1]


@pytest.mark.parametrize(("most", "named"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (12, [0, 5, 10, 15]), (393, [0, 100, 200, 300, 400])])
def test_an_axis_names_round_counts_and_bars_stand_at_them(most: int, named: list[int]) -> None:
    svg = histogram({"o-pass": [1.0] * most}, label="x")

    assert [count for count, _ in counts(svg)] == named
    assert all(place == pytest.approx(count / named[-1] * 100, abs=0.01) for count, place in counts(svg))
    assert bars(svg)[0][2] == pytest.approx(most / named[-1] * 100, abs=0.01)
    assert {"samples", "time of the agent"} <= {one.text for one in parsed(svg).iter("text")}


def test_classes_are_stacked_and_none_is_lost() -> None:
    svg = histogram({"o-pass": [1.0], "o-fail": [1.0, 1.0]}, label="x")
    lower, upper = parsed(svg).iter("rect")

    assert [(name, round(height)) for name, _, height in bars(svg)] == [("o-pass", 33), ("o-fail", 67)]
    assert percent(lower, "y") == pytest.approx(percent(upper, "y") + percent(upper, "height"), abs=0.02)


@pytest.mark.parametrize("times", [[1e-9], [1e9], [1.0], [0.001, 1000.0]])
def test_any_times_fit(times: list[float]) -> None:
    svg = histogram({"o-pass": times}, label="x")

    assert sum(1 for _ in bars(svg)) == len(times)
    assert all(0 <= place < 100 for _, place, _ in bars(svg))


def test_a_label_is_text_and_not_markup() -> None:
    assert parsed(histogram({"o-pass": [1.0]}, label='a "label" <b>')).get("aria-label") == 'a "label" <b>'
