"""The page of a run in a real browser: by mouse and keyboard, at a desk and on a telephone, light and dark, on paper, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.evals.inputs.sample_record import OUTCOMES
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.summary import rates
from pytest_gittrix.report.compare_report import write_comparison
from pytest_gittrix.report.page import PageRow, render, write_page

DESK = {"width": 1280, "height": 900}
TELEPHONE = {"width": 390, "height": 844}
ENOUGH = 4.5

# The contrast of every text that can be seen (WCAG 2, 1.4.3), against the colours behind it, laid over each other.
CONTRASTS = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(rgba(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!says || !element.checkVisibility() || element.closest("script")) continue;
    const ground = behind(element);
    const style = getComputedStyle(element);
    const ink = over(rgba(element instanceof SVGElement ? style.fill : style.color), ground);
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
    const named = (one) => one.getAttribute("class") || one.tagName.toLowerCase();
    const what = `${named(element)} in ${named(element.parentElement)}`;
    found.push([(high + 0.05) / (low + 0.05), what, element.textContent.trim().slice(0, 40)]);
  }
  return found;
}
"""
SPILLS = """
() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  const cut = (one) => one && (getComputedStyle(one).overflowX !== "visible" || cut(one.parentElement));
  const spilt = [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > wide + 1);
  return spilt.filter((one) => !cut(one.parentElement.closest("main *"))).map((one) => one.outerHTML.slice(0, 80));
}
"""


@pytest.fixture
def seen() -> dict[str, list[str]]:
    """What a page asked for, and what went wrong in it."""
    return {"requests": [], "errors": []}


def opened(chromium: Any, address: str, seen: dict[str, list[str]], **settings: Any) -> Any:
    """A page of its own, as a person just opened it."""
    page = chromium.new_page(**{"viewport": DESK, "color_scheme": "light", **settings})
    page.set_default_timeout(15_000)
    page.on("request", lambda request: seen["requests"].append(request.url))
    page.on("pageerror", lambda error: seen["errors"].append(str(error)))
    page.on("console", lambda message: seen["errors"].append(message.text) if message.type in ("error", "warning") else None)
    page.goto(address)
    return page


@pytest.fixture
def page(chromium: Any, address: str, seen: dict[str, list[str]]) -> Iterator[Any]:
    """The page at a desk, light. Whatever a test does, nothing goes wrong in it and nothing is fetched."""
    made = opened(chromium, address, seen)
    yield made
    made.close()
    assert seen["errors"] == []
    assert {url.partition("#")[0] for url in seen["requests"]} == {address}


def shown(page: Any, column: str = "id") -> list[str]:
    """A column of the rows that can be seen, in their order."""
    cells = page.locator(f"#table tr[data-key]:visible td.c-{column}").all_inner_texts()
    return [cell.strip() for cell in cells]


def expanded(page: Any) -> list[str]:
    """Ids of the samples that are open."""
    return [detail.get_attribute("id").removeprefix("d-") for detail in page.locator(".detail:visible").all()]


def open_by_address(page: Any, key: str) -> None:
    """Open a sample by its address, and all that can be unfolded in it."""
    page.evaluate("key => { location.hash = `d-${key}` }", key)
    page.wait_for_selector(f"#d-{key}")
    page.evaluate("document.querySelectorAll('.detail details').forEach(one => { one.open = true })")


def focus(page: Any) -> str:
    """What has the focus, by its id or its text."""
    return str(page.evaluate("document.activeElement.id || document.activeElement.innerText"))


# Finding ---------------------------------------------------------------------------------------------------------------------------


def test_every_sample_is_shown_at_first_failing_ones_above(page: Any, store: RunStore) -> None:
    outcomes = shown(page, "outcome")

    assert len(outcomes) == len(store.keys()) == 20
    assert set(outcomes) == set(OUTCOMES)
    assert outcomes[-4:] == ["pass"] * 4
    assert expanded(page) == []


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_chip_filters_by_its_outcome_and_lets_go_again(outcome: str, page: Any) -> None:
    chip = page.locator(f".legend button[data-group={outcome}]")

    chip.click()
    assert set(shown(page, "outcome")) == {outcome}
    assert chip.get_attribute("aria-pressed") == "true"
    assert page.locator("#shown").inner_text() == f"{len(shown(page))} shown"
    chip.click()

    assert len(shown(page)) == 20
    assert chip.get_attribute("aria-pressed") == "false"


def test_two_chips_show_both_and_the_box_narrows_them(page: Any) -> None:
    page.locator(".legend button[data-group=pass]").click()
    page.locator(".legend button[data-group=fail]").click()
    assert set(shown(page, "outcome")) == {"pass", "fail"}

    page.locator("#find").fill("PASS too.txt")

    assert set(shown(page)) == {"pass-too"}


def test_what_fits_nothing_says_so_and_all_comes_back(page: Any) -> None:
    page.locator("#find").fill("no such thing")
    assert shown(page) == []
    assert page.locator("#none").is_visible()

    page.locator("#clear").click()

    assert len(shown(page)) == 20
    assert (page.locator("#none").is_visible(), page.locator("#find").input_value(), focus(page)) == (False, "", "find")


@pytest.mark.parametrize("column", ["id", "epoch", "outcome", "reason", "files", "lines", "time"])
def test_a_column_sorts_up_and_down(column: str, page: Any) -> None:
    heading = page.locator(f"#table th.c-{column}")

    def values() -> list[Any]:
        texts = shown(page, column)
        if column == "lines":
            return [sum(int(part[1:]) for part in text.split()) for text in texts]
        if column == "time":
            units = {"ms": 1, "s": 1000}
            return [float(text.split()[0]) * units[text.split()[1]] if text else -1 for text in texts]
        return [int(text) for text in texts] if column in ("epoch", "files") else [text.casefold() for text in texts]

    heading.locator("button").click()
    up, said = values(), heading.get_attribute("aria-sort")
    heading.locator("button").click()

    assert (said, heading.get_attribute("aria-sort")) == ("ascending", "descending")
    assert up[0] <= up[-1]
    if column not in ("reason", "outcome", "id"):
        assert values() == sorted(values(), reverse=True)
    assert values()[0] >= values()[-1]
    assert sorted(up) == sorted(values())
    assert page.locator("#table th[aria-sort=none]").count() == 6


# Opening ---------------------------------------------------------------------------------------------------------------------------


def test_a_click_opens_a_sample_and_the_address_leads_there(page: Any, store: RunStore) -> None:
    key = store.sample("conflict", 1).key

    page.locator(f"tr[data-key='{key}'] .open").click()

    assert expanded(page) == [key]
    assert page.url.endswith(f"#d-{key}")
    assert focus(page) == f"d-{key}"
    page.reload()
    assert expanded(page) == [key]
    page.locator(f"#d-{key} .close").click()
    assert expanded(page) == []
    assert "#" not in page.url
    assert focus(page) == "conflict"


def test_a_click_anywhere_in_a_row_opens_it_and_another_one_closes_it(page: Any, store: RunStore) -> None:
    key = store.sample("fail").key
    cell = page.locator(f"tr[data-key='{key}'] td.c-reason")

    cell.click()
    assert expanded(page) == [key]
    cell.click()

    assert expanded(page) == []


def test_the_details_open_under_their_row(page: Any, store: RunStore) -> None:
    key = store.sample("refused").key

    page.locator(f"tr[data-key='{key}'] .open").click()

    assert page.locator(f"tr[data-key='{key}'] + tr").get_attribute("id") == f"d-{key}"
    button = page.locator(f"tr[data-key='{key}'] .open")
    assert (button.get_attribute("aria-expanded"), button.get_attribute("aria-controls")) == ("true", f"d-{key}")


def test_the_address_of_a_row_that_is_filtered_out_shows_all_rows_again(page: Any, store: RunStore) -> None:
    page.locator("#find").fill("timeout")

    open_by_address(page, store.sample("pass").key)

    assert (expanded(page), page.locator("#find").input_value()) == ([store.sample("pass").key], "")


def test_another_address_opens_another_sample(page: Any, store: RunStore) -> None:
    keys = [store.sample("pass", epoch).key for epoch in (0, 1)]

    for key in keys:
        page.evaluate("key => { location.hash = `d-${key}` }", key)
        page.wait_for_selector(f"#d-{key}")

        assert expanded(page) == [key]


def test_an_address_of_nothing_opens_nothing(page: Any) -> None:
    page.evaluate("location.hash = 'd-0123'")

    assert expanded(page) == []


def test_everything_goes_by_keyboard(page: Any) -> None:
    ids = shown(page)
    keys = page.locator("#table tr[data-key]").evaluate_all("rows => rows.map(row => row.dataset.key)")

    page.keyboard.press("j")
    page.keyboard.press("j")
    assert focus(page) == ids[1]
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    assert (expanded(page), focus(page)) == ([keys[0]], f"d-{keys[0]}")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert (expanded(page), page.url.rpartition("#d-")[2]) == ([keys[2]], keys[2])
    page.keyboard.press("k")
    assert expanded(page) == [keys[1]]
    page.keyboard.press("Escape")
    assert (expanded(page), focus(page)) == ([], ids[1])
    page.keyboard.press("/")
    page.keyboard.type("jk")
    assert (focus(page), page.locator("#find").input_value(), shown(page)) == ("find", "jk", [])
    page.keyboard.press("Escape")
    assert len(shown(page)) == 20


def test_the_keys_skip_what_is_not_shown_and_stop_at_the_ends(page: Any) -> None:
    page.locator("#find").fill("pass-too")
    page.locator("h1").click()

    page.keyboard.press("k")
    for _ in range(5):
        page.keyboard.press("j")

    assert page.evaluate("document.activeElement.closest('tr').dataset.place") == str(len(shown(page)) - 1)


def test_the_tab_key_reaches_every_control_and_the_focus_is_seen(page: Any) -> None:
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(focus(page))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'"), reached[-1]

    assert reached[0] == "Skip to the samples"
    assert [name for name in ("theme", "find", "Case", "Why") if name not in reached] == []


def test_an_open_sample_shows_the_conflict_the_difference_and_what_happened(page: Any, store: RunStore) -> None:
    key = store.sample("conflict").key
    page.locator(f"tr[data-key='{key}'] .open").click()

    text = page.locator(f"#d-{key}").inner_text()

    for said in (
        "Somebody changed the same files in durable",
        "app.py",
        "What happened",
        "VERSION",
        f"gittrix eval replay {store.path} conflict",
    ):
        assert said in text
    assert page.locator(f"#d-{key} table.diff :is(.new, .changed)").count() > 1


def test_what_an_agent_printed_can_be_read(page: Any, store: RunStore) -> None:
    key = store.sample("pass").key
    page.locator(f"tr[data-key='{key}'] .open").click()
    page.locator(f"#d-{key} summary", has_text="Transcript").click()

    assert page.locator(f"#d-{key}").get_by_text("looked around", exact=True).is_visible()


# How it looks ----------------------------------------------------------------------------------------------------------------------


def test_the_button_changes_light_for_dark_and_back(page: Any) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = ground()
    page.locator("#theme").click()
    dark = ground()
    page.locator("#theme").click()

    assert light != dark
    assert ground() == light


def test_the_page_follows_the_system_until_told_otherwise(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.classList.contains('dark')")

    page.locator("#theme").click()
    page.emulate_media(color_scheme="light")
    page.emulate_media(color_scheme="dark")

    assert not page.evaluate("document.documentElement.classList.contains('dark')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, TELEPHONE], ids=["desk", "telephone"])
def test_every_text_stands_out_from_what_is_behind_it(
    scheme: str, viewport: dict[str, int], chromium: Any, address: str, store: RunStore, seen: dict[str, list[str]]
) -> None:
    page = opened(chromium, address, seen, color_scheme=scheme, viewport=viewport)
    found = []
    for outcome in ("pass", "fail", "conflict", "agent-error"):
        open_by_address(page, store.sample(outcome).key)
        found += page.evaluate(CONTRASTS)
    page.close()

    assert len(found) > 200
    assert {what for _, what, _ in found} >= {f"chip o-{outcome} in text c-outcome" for outcome in OUTCOMES}
    assert sorted({(round(ratio, 2), what, text) for ratio, what, text in found if ratio < ENOUGH}) == []


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_is_never_wider_than_the_screen(
    width: int, chromium: Any, address: str, store: RunStore, seen: dict[str, list[str]]
) -> None:
    page = opened(chromium, address, seen, viewport={"width": width, "height": 844})
    spilt = {"closed": page.evaluate(SPILLS)}
    for record in store.records():
        open_by_address(page, record.key)
        spilt[record.id] = page.evaluate(SPILLS)
    page.close()

    assert {name: what for name, what in spilt.items() if what} == {}


def test_it_works_without_scripts(chromium: Any, address: str, store: RunStore, seen: dict[str, list[str]]) -> None:
    page = opened(chromium, address, seen, java_script_enabled=False)

    assert page.locator("h1").inner_text() == "4 of 20 samples passed."
    assert page.locator(".plot").is_visible()
    assert f"gittrix eval show {store.path} prints it." in page.locator("#samples").inner_text()
    assert not any(page.locator(control).first.is_visible() for control in ("#theme", "#find", "#table", "footer"))
    page.close()
    assert seen["errors"] == []


def test_the_page_is_read_out_in_order(page: Any) -> None:
    headings = page.locator("h1, h2").all_inner_texts()

    assert headings[0] == "4 of 20 samples passed."
    assert "Samples" in headings
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("th:not([scope])").count() == 0


def test_nothing_that_can_be_pressed_is_without_a_name(page: Any) -> None:
    names = page.locator("button").evaluate_all(
        "all => all.map(one => one.innerText.trim() || one.getAttribute('aria-label') || one.textContent.trim())"
    )

    assert all(names)


def test_the_file_is_all_there_is(store: RunStore, address: str) -> None:
    text = Path(store.path, "report.html").read_text(encoding="utf-8")

    assert address.endswith("/report.html")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


# Many rows -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """The page of a thousand rows, by its address, and their keys."""
    rows = [
        PageRow(f"{number:x}", "pass", f"case-{number}", (f"case-{number}", number), cells(number), f"<p>details of {number}</p>")
        for number in range(1000)
    ]
    page = render(
        "report.html",
        rows,
        what="samples",
        find="id",
        without_script="",
        columns=(("id", "Case", "text"), ("epoch", "Epoch", "number")),
        **dict.fromkeys(("run", "suite", "digest", "result", "times", "taken_over"), ""),
        **dict.fromkeys(("planned", "case_count"), 0),
        **dict.fromkeys(("cases", "facts"), ()),
        is_mixed=False,
        verdict=("1000 samples.", ""),
        bar="",
        short=0,
        counts={},
        outcome_texts={},
        rates=rates([]),
    )
    file = write_page(tmp_path_factory.mktemp("many") / "page.html", page)
    return file.as_uri(), [row.key for row in rows]


def cells(number: int) -> str:
    return f'<td class="c-id"><button type="button" class="open">case-{number}</button></td><td class="number c-epoch">{number}</td>'


@pytest.fixture
def long_page(chromium: Any, many: tuple[str, list[str]], seen: dict[str, list[str]]) -> Iterator[Any]:
    made = opened(chromium, many[0], seen)
    yield made
    made.close()
    assert seen["errors"] == []


def test_only_rows_that_are_near_are_in_the_document_and_all_can_be_reached(long_page: Any) -> None:
    assert len(shown(long_page)) < 200
    tall = long_page.evaluate("document.documentElement.scrollHeight")

    long_page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    long_page.wait_for_selector("tr[data-place='999']")

    assert shown(long_page)[-1] == "case-999"
    assert len(shown(long_page)) < 300
    assert long_page.evaluate("document.documentElement.scrollHeight") == pytest.approx(tall, rel=0.05)
    assert long_page.locator("#table").get_attribute("aria-rowcount") == "1001"


def test_a_row_that_is_far_is_opened_by_its_address_found_sorted_and_reached_by_key(long_page: Any, many: tuple[str, list[str]]) -> None:
    open_by_address(long_page, many[1][700])
    assert "details of 700" in long_page.locator(".detail").inner_text()
    assert long_page.locator(".detail").evaluate("one => one.getBoundingClientRect().top < innerHeight")

    long_page.keyboard.press("j")
    assert "details of 701" in long_page.locator(".detail").inner_text()
    long_page.keyboard.press("Escape")
    assert focus(long_page) == "case-701"

    long_page.locator("th.c-epoch button").click()
    long_page.locator("th.c-epoch button").click()
    assert shown(long_page)[0] == "case-999"
    long_page.locator("#find").fill("case-55")
    assert sorted(shown(long_page)) == sorted(["case-55", *(f"case-55{digit}" for digit in range(10))])


def test_on_paper_there_is_every_row(long_page: Any) -> None:
    long_page.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert len(shown(long_page)) == 1000


# A comparison ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("viewport", [DESK, TELEPHONE], ids=["desk", "telephone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_comparison_opens_its_pairs_fits_the_screen_and_can_be_read(
    scheme: str, viewport: dict[str, int], chromium: Any, store: RunStore, tmp_path: Path, seen: dict[str, list[str]]
) -> None:
    found = compare(store, store)
    failed = replace(store.sample("fail"), id="pass")
    pairs = [replace(pair, b=failed, difference="outcome") if pair.id == "pass" else pair for pair in found.pairs]
    file = write_comparison(replace(found, pairs=tuple(pairs)), tmp_path / "page.html")
    page = opened(chromium, file.as_uri(), seen, color_scheme=scheme, viewport=viewport)

    assert shown(page)[0] == "pass"
    page.locator(".open").first.click()
    page.evaluate("document.querySelectorAll('.detail details').forEach(one => { one.open = true })")
    contrasts, spills = page.evaluate(CONTRASTS), page.evaluate(SPILLS)
    page.close()

    assert sorted({(round(ratio, 2), what) for ratio, what, _ in contrasts if ratio < ENOUGH}) == []
    assert (spills, seen["errors"]) == ([], [])
