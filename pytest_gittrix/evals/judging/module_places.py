"""Which file a module's name means to hidden tests: their own ones are taken, and not files of the result that have their names.

It runs with nothing of the package: ``verifier_program`` is given its text.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class ModulePlaces(importlib.abc.MetaPathFinder):
    """Finds the modules of the tests, and says where those of the result are.

    Args:
        directory: the directory of the hidden files.
        test: the file of tests in it.
        roots: the directories of the result that modules are imported from, the checkout itself last.
        known: the modules that the repository had at first. What is installed does not stand for one that the result lacks.
    """

    def __init__(self, directory: str, test: str, roots: list[str], known: list[str]) -> None:
        self._directory, self._test, self._result = directory, test, roots
        self._known = {*known} - {"conftest", *sys.stdlib_module_names}
        self._roots = _roots_of(Path(test), Path(directory))
        self.collisions: set[str] = set()
        self._above = _packages_above(Path(test).parent, Path(directory), roots)
        # pytest names a test module by the packages that it is in, and looks for these on the disk.
        for package in self._above.values():
            package.touch()

    def own(self, name: str) -> Path | None:
        """The file of a module of the tests; none if it is not theirs. The test file stays theirs when it is gone."""
        files = (file for root in self._roots for file in _files(root, name) if file.is_file() or str(file) == self._test)
        return None if name in self._above else next(files, None)

    def of_result(self, name: str) -> Path | None:
        """The place of a module of the result, without its suffix; none if the module is the tests' or the library's."""
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or self.own(top) or self.own(name):
            return None
        # The tests may lie in a directory of a package of the result.
        packages = any(Path(root, top, "__init__.py").is_file() for root in self._result)
        if Path(self._directory, top).is_dir() and not packages:
            return None
        places = [Path(root, *name.split(".")) for root in self._result]
        return next((place for place in places if place.is_dir() or place.with_name(f"{place.name}.py").is_file()), None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  (part of the protocol)
        """The specification of a module of the tests. Python finds a ``conftest`` itself: there may be several."""
        if name in self._above:
            return importlib.machinery.PathFinder.find_spec(name, path or self._result)
        file = self.own(name)
        if file is None and name in self._known and self.of_result(name) is None and not os.path.isdir(os.path.join(self._directory, name)):
            raise ModuleNotFoundError(f"No module named {name!r} in the result", name=name)
        if file is None or name == "conftest" or name.partition(".")[0] in sys.stdlib_module_names:
            return None
        # A file of the result at the path of the tests' own is an earlier version of it.
        others = {os.path.relpath(one, self._result[-1]) for root in self._result for one in _files(root, name) if one.is_file()}
        self.collisions |= others - {os.path.relpath(file, self._directory)}
        above = file.parent.parent if file.name == "__init__.py" else file.parent
        return importlib.machinery.PathFinder.find_spec(name, [str(above)])

    def taken(self, loaded: Iterable[str]) -> list[str]:
        """The modules, of those that are loaded already, that tests would mean the result's by."""
        own = {name for name in loaded if any(one.is_file() for root in self._result for one in _files(root, name))}
        return sorted(name for name in own | self._known.intersection(loaded) if name not in sys.stdlib_module_names)


def _files(root: str, name: str) -> tuple[Path, Path]:
    """The files that a module may be in, the one that Python prefers first."""
    place = Path(root, *name.split("."))
    return place / "__init__.py", place.with_name(f"{place.name}.py")


def _roots_of(test: Path, directory: Path) -> list[str]:
    """The directories that pytest imports modules of a test from, and that of all hidden files: the nearest ones first."""
    found = []
    for place in [one for one in test.parents if one.is_relative_to(directory)]:
        if place in (test.parent, directory) or (place / "conftest.py").is_file():
            while (place / "__init__.py").is_file() and place != directory:
                place = place.parent
            found.append(str(place))
    return [*dict.fromkeys(found)]


def _packages_above(place: Path, directory: Path, result: list[str]) -> dict[str, Path]:
    """The packages of the result that a package of the tests lies in, by name, each with the file that marks it among the tests."""
    found: dict[str, Path] = {}
    while (place / "__init__.py").is_file() and place != directory:
        place = place.parent
    while place != directory:
        inside = place.relative_to(directory)
        if not any(Path(root, inside, "__init__.py").is_file() for root in result):
            return {}
        found[".".join(inside.parts)] = place / "__init__.py"
        place = place.parent
    return found
