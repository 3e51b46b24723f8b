"""The diagrams of the pages are those of the tables that the engine and the architecture are checked by, in the sources and on the site."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs.drawing import INSIDE, STATES, Legal, block, groups, layers, on_page_content, on_page_markdown, states
from tests.quality.house import STOREYS

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
TABLES = pytest.mark.parametrize(("page", "legal", "start"), [(page, *table) for page, table in STATES.items()], ids=[*STATES])


def texts(figure: str) -> list[str]:
    """What an SVG says in its boxes."""
    return [text.text or "" for text in ET.fromstring(figure).iter(f"{SVG}text")]


def page(name: str) -> SimpleNamespace:
    """A page as MkDocs gives it to a hook."""
    return SimpleNamespace(file=SimpleNamespace(src_uri=name))


@TABLES
def test_a_page_shows_the_diagram_of_its_table(page: str, legal: Legal, start: str) -> None:
    assert block(legal, start=start) in (DOCS / page).read_text(encoding="utf-8")


@TABLES
def test_a_drawing_has_every_state_and_every_step(page: str, legal: Legal, start: str) -> None:
    figure = states(legal, start=start)
    together = groups(legal)
    home = {state: group for group in together for state in group}
    steps = {(home[old], home[new]) for old, allowed in legal.items() for new in allowed}
    ends = [group for group in together if not legal[group[0]]]

    assert sorted(text for text in texts(figure) if INSIDE not in text) == sorted(legal)
    assert figure.count(INSIDE) == len([old for old, new in steps if old == new])
    assert figure.count('class="step"') == 1 + len([old for old, new in steps if old != new]) + len(ends)
    assert not re.search(r'\b[cxy]+="-', figure), "something lies outside of the picture"


@pytest.mark.parametrize("name", [*STATES, "explanation/architecture.md"])
def test_the_site_has_pictures_in_the_place_of_the_text(name: str) -> None:
    drawn = on_page_markdown((DOCS / name).read_text(encoding="utf-8"), page=page(name))

    assert "```mermaid" not in drawn
    assert drawn.count('<div class="diagram">') == 1


def test_the_layers_are_those_of_the_house() -> None:
    assert {*texts(layers(STOREYS))} >= {room for rooms in STOREYS.values() for room in rooms}


def test_a_diagram_from_no_table_fails_the_build() -> None:
    with pytest.raises(ValueError, match="no table gives"):
        on_page_markdown("```mermaid\ngraph LR\n```\n", page=page("index.md"))


def test_a_code_span_that_is_a_name_is_kept_whole() -> None:
    html = on_page_content("<code>--gittrix-freeze</code> <code>fork(id, task)</code>")

    assert html == '<code class="name">--gittrix-freeze</code> <code>fork(id, task)</code>'


def test_no_page_loads_anything_from_elsewhere() -> None:
    config = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    styles = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.css"))

    assert "font: false" in config
    assert not re.search(r"extra_javascript|https?:|@import|url\(", config.replace("site_url", "") + styles)
