"""Plots are drawn from the numbers they are given, to scale, with a text for who cannot see them, and whatever names there are."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from pytest_gittrix.report.plots import Share, histogram, shares


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def bars(svg: str) -> list[tuple[str, float, float]]:
    """Class, place and height of each bar."""
    return [(one.get("class") or "", float(one.get("x") or 0), float(one.get("height") or 0)) for one in parsed(svg).iter("rect")]


def test_nothing_is_no_plot() -> None:
    assert histogram({}, label="x") == histogram({"o-pass": [0.0]}, label="x") == shares([], label="x") == ""


def test_heights_are_as_the_counts() -> None:
    found = bars(histogram({"o-pass": [0.1] * 4 + [10.0] * 2}, label="x"))

    assert [round(height / found[1][2], 3) for _, _, height in found] == [2.0, 1.0]
    assert found[0][1] < found[1][1]


def test_classes_are_stacked_and_none_is_lost() -> None:
    found = bars(histogram({"o-pass": [1.0], "o-fail": [1.0, 1.0]}, label="x"))

    assert [(name, round(height)) for name, _, height in found] == [("o-pass", 37), ("o-fail", 75)]


@pytest.mark.parametrize("times", [[1e-9], [1e9], [1.0], [0.001, 1000.0]])
def test_any_times_fit(times: list[float]) -> None:
    svg = histogram({"o-pass": times}, label="x")

    assert sum(1 for _ in bars(svg)) == len(times)
    assert all(0 <= place <= 640 for _, place, _ in bars(svg))


def test_a_share_stands_where_it_is_between_its_ends() -> None:
    svg = shares(
        [Share("a", 0.0, 0.0, 0.5, "0 of 4"), Share("b", 1.0, None, None, "4 of 4"), Share("c", 0.5, 0.2, 0.8, "2 of 4")], label="x"
    )
    dots = [float(one.get("cx") or 0) for one in parsed(svg).iter("circle")]
    whiskers = [one for one in parsed(svg).iter("line") if one.get("class") == "whisker"]

    assert dots[0] < dots[2] < dots[1]
    assert dots[2] == (dots[0] + dots[1]) / 2
    assert len(whiskers) == 2


def test_names_are_text_and_not_markup() -> None:
    svg = shares([Share("<b>&", 1.0, None, None, "<i>")], label='a "label"')

    assert parsed(svg).get("aria-label") == 'a "label"'
    assert [one.text for one in parsed(svg).iter("text")][-2:] == ["<b>&", "<i>"]
    assert re.search("<b>|<i>", svg) is None
