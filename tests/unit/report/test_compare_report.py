"""The page of a comparison shows cases in pairs, the worst regressions first, and says the numbers of the text."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.evals import agent_file, ran, suite

from pytest_gittrix.cli.evals_output import comparison_text
from pytest_gittrix.evals.results.compare import Comparison, compare
from pytest_gittrix.report.compare_report import GROUPS, comparison_page, group_of

AGENT = """
    worse = TURN == "b" and toolbox.case == "worse"
    better = TURN == "a" and toolbox.case == "better"
    if toolbox.case == "other" and TURN == "b":
        raise RuntimeError("<b>no</b>")
    toolbox.write("app.py", "VERSION = 1  # <script>\\n" if worse or better or toolbox.case == "other" else "VERSION = 2\\n")
    toolbox.write("log.txt", TURN if toolbox.case == "tree" else "x")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two runs of two epochs: one case became worse, one better, one has another outcome, one another tree, one is the same."""
    root = tmp_path_factory.mktemp("compared")
    place = suite(root, "better", "other", "same", "tree", "worse")
    runs = []
    for turn in "ab":
        (root / turn).mkdir()
        agent = agent_file(root / turn, AGENT.replace("TURN", repr(turn)))
        runs.append(ran(place, root / turn, agent, epochs=2).store)
    return compare(*runs)


@pytest.fixture(scope="module")
def page(found: Comparison) -> str:
    return comparison_page(found)


def data(page: str, name: str) -> str:
    parts = re.search(rf'id="{name}">(.*?)</script>', page, re.DOTALL)
    assert parts is not None
    return parts[1]


def text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def test_the_worst_regressions_come_first(page: str) -> None:
    rows = [(text(cells), group) for _, group, _, _, cells in json.loads(data(page, "rows"))]

    assert rows[0] == ("worse 2 of 2 0 of 2 -100 pass -> fail", "worse")
    assert rows[-1] == ("better 0 of 2 2 of 2 +100 fail -> pass", "better")
    assert {group for _, group in rows} == {"worse", "better", "outcomes", "results", "same"}


def test_every_group_of_cases_has_its_phrase_and_its_button(found: Comparison, page: str) -> None:
    groups = {group_of(case) for case in found.cases}

    assert groups < GROUPS.keys()
    assert all(f'data-group="{group}"' in page and GROUPS[group] in page for group in groups)


def test_the_results_of_a_sample_stand_beside_each_other(found: Comparison, page: str) -> None:
    details = {case.id: json.loads(line) for case, line in zip(found.cases, data(page, "details").split("\n"), strict=True)}

    assert "VERSION = 2" in text(details["worse"])
    assert "VERSION = 1 # <script>" in text(details["worse"])
    assert "the version is not 2" in text(details["worse"])
    assert "RuntimeError: <b>no</b>" in text(details["other"])
    assert "log.txt" in text(details["tree"])
    assert re.search(r"The logs differ from event \d+ on: .+ -> ", text(details["tree"]))
    assert text(details["same"]) == "#0 the same in both runs: pass #1 the same in both runs: pass"


def test_the_page_the_text_and_the_json_say_the_same_numbers(found: Comparison, page: str) -> None:
    printed, shown = comparison_text(found), text(page.partition("<script")[0])

    for sentence in found.to_json()["statistics"]["sentences"]:
        assert sentence in printed.splitlines()
        assert sentence in shown
    for rate in (str(found.rates[0].passed), str(found.rates[1].at[2]), str(found.rates[0].all[2])):
        assert rate in printed
        assert rate in shown


def test_a_sample_that_one_run_lacks_and_objects_that_are_gone_leave_the_rest(found: Comparison, tmp_path: Path) -> None:
    pairs = [pair for pair in found.pairs if pair.id != "worse" or pair.epoch == 0]
    (whole,) = [pair for pair in found.pairs if (pair.id, pair.epoch) == ("worse", 1)]
    lacks = type(whole)(whole.id, whole.epoch, whole.a, None, "missing")
    page = comparison_page(Comparison(found.a, type(found.b)(tmp_path), (), (*pairs, lacks)))

    assert "has no such sample" in page
    assert "pass -> missing" in html.unescape(page)


def test_samples_that_do_not_count_stand_beside_the_share_of_those_that_do(found: Comparison) -> None:
    (pair, other) = [pair for pair in found.pairs if pair.id == "worse"]
    assert pair.a is not None
    lost = replace(pair, a=replace(pair.a, outcome="infra_error"))
    page = comparison_page(replace(found, pairs=(lost, other)))

    assert next(text(cells) for *_, cells in json.loads(data(page, "rows"))).startswith("worse 1 of 1, 1 left out 0 of 2 -100")
