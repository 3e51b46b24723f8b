"""Pages and pictures from templates of Jinja, which escape every text."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from pytest_gittrix.safe_text import visible

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def templates(package: str) -> Environment:
    """The templates in the directory ``templates`` of a package. Jinja is loaded here, by who writes a page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package, "templates"),
        finalize=_shown,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> object:
    """What a template prints of a value: no character of a text reorders or hides what is around it."""
    return visible(value) if type(value) is str else value
