"""A page with a table whose rows are made when they are seen, and whose details open under their row.

A page holds its rows as JSON and their details as lines of JSON, in two script elements that no browser runs. So the elements of a page are
few, however many rows it has. The templates escape every text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gittrix.formats.html import templates
from pytest_gittrix.os_level.files import PUBLIC, write_file
from pytest_gittrix.safe_text import in_script

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER: Final = Path(__file__).parent / "templates"
_MINUTE: Final = 60


@dataclass(frozen=True, slots=True)
class PageRow:
    """A row of the table of a page.

    Attributes:
        key: what the address of the page names to open the row; unique on its page.
        group: what the buttons above the table choose rows by.
        find: the text that the search looks through, in lower case.
        values: what each column is sorted by.
        cells: the cells, as HTML.
        details: what opens under the row, as HTML.
    """

    key: str
    group: str
    find: str
    values: tuple[str | float, ...]
    cells: str
    details: str


def render(template: str, rows: Sequence[PageRow], **names: Any) -> str:
    """A page as HTML.

    Args:
        template: the name of its template, which extends ``layout.html``.
        rows: the rows of its table, in the order in which they are shown at first.
        names: what the template prints.
    """
    return (
        _templates()
        .get_template(template)
        .render(
            rows=in_script(_json([(row.key, row.group, row.find, row.values, row.cells) for row in rows])),
            details=in_script("\n".join(_json(row.details) for row in rows)),
            count=len(rows),
            css=_file("report.css") + _colours(),
            script=_file("report.js"),
            **names,
        )
    )


def render_plain(template: str, **names: Any) -> str:
    """A page without a table of rows as HTML.

    Args:
        template: the name of its template.
        names: what the template prints.
    """
    return _templates().get_template(template).render(css=_file("report.css") + _colours(), **names)


def part(name: str, *arguments: Any) -> str:
    """The HTML of a macro in ``parts.html``."""
    return str(getattr(_templates().get_template("parts.html").module, name)(*arguments))


def write_page(file: Path, page: str) -> Path:
    """Write a page in one step, and return where it is. Raises OSError if the file cannot be written."""
    write_file(str(file), page.encode("utf-8", "replace"), mode=PUBLIC)
    return file


def duration(seconds: float) -> str:
    """A duration for people, such as ``12 ms``, ``3.4 s`` or ``2 min 5 s``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@cache
def _templates() -> Environment:
    environment = templates("pytest_gittrix.report")
    environment.filters["duration"] = duration
    return environment


def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _colours() -> str:
    """The colours of code, for light pages and dark ones."""
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="xcode").get_style_defs(".diff")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".dark .diff")
    return "\n".join(line for line in f"{light}\n{dark}".splitlines() if ".diff ." in line)
