"""What it costs to match one name against a line of an ignore file that is made to be slow, by the length of the name.

Each size is a name without the letter that the line ends with, so that every way to read the stars fails. In a linear matcher the time
doubles with the name.
"""

from __future__ import annotations

from typing import Final

from benchmarks.measure import Measurement, Variant, interleave, summarise, timed
from pytest_gittrix.git.ignore import Ignore

_LINE: Final = b"*a" * 20 + b"b\n"
_LETTERS: Final = (50, 100, 200)
_TIMES: Final = 100


def ignore(*, quick: bool = False) -> list[Measurement]:
    """A hundred matches of a name, by wall clock; the size is its letters."""
    rules = Ignore({"": _LINE})
    found: list[Measurement] = []
    for letters in _LETTERS:
        variants: dict[str, Variant] = {f"a line of {_LINE.count(b'*')} stars": _matching(rules, letters)}
        found += summarise("ignore", interleave(variants, rounds=5 if quick else 50, seconds=5), size=letters)
    return found


def _matching(rules: Ignore, letters: int) -> Variant:
    def job() -> None:
        for number in range(_TIMES):
            if rules.ignored("a" * letters + str(number)):
                raise RuntimeError("it does not match")

    return lambda _turn: timed(job)
