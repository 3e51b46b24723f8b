"""Which of the tests that pytest collects in a file are run: those that are chosen, by their names or by their places.

A canary may change the rows of a test, and with them the names that pytest makes of them; the place of a row among those of its test stays.
It runs with nothing of the package: ``verifier_program`` is given its text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest


class CollectedTests:
    """A plugin of pytest that leaves out the tests that are not chosen.

    Args:
        chosen: names such as ``TestIt::test_it[1]``, of rows, functions or classes; none for all.
        places: the places of the rows to run, by function; they count instead of names where they are given.

    Attributes:
        places: the place of each test that is run among the rows of its function, by name.
    """

    def __init__(self, chosen: Sequence[str], places: Mapping[str, Sequence[int]]) -> None:
        self._chosen = chosen
        self._wanted = places
        self.places: dict[str, int] = {}

    @property
    def functions(self) -> list[str]:
        """The functions and classes to collect tests of."""
        return [*dict.fromkeys(one.partition("[")[0] for one in self._chosen)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out what is not chosen."""
        seen: Counter[str] = Counter()
        kept = []
        for item in items:
            name = item.nodeid.partition("::")[2]
            function = name.partition("[")[0]
            if self._is_wanted(name, function, seen[function]):
                kept.append(item)
                self.places[name] = seen[function]
            seen[function] += 1
        items[:] = kept

    def _is_wanted(self, name: str, function: str, place: int) -> bool:
        if function in self._wanted:
            return place in self._wanted[function]
        return not self._chosen or any(name == one or name.startswith((f"{one}[", f"{one}::")) for one in self._chosen)
