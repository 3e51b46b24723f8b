"""Who works in a directory, as the system tells."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.at_work import stranger

from pytest_gittrix.os_level.proc import program_of, running_in, working_below

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

Options = dict[str, Any]


def _in_it(place: Path) -> Options:
    return {"cwd": place / "below"}


def _by_a_file(place: Path) -> Options:
    return {"cwd": "/", "stdout": os.open(place / "below" / "log", os.O_WRONLY | os.O_CREAT)}


def _by_the_directory_alone(place: Path) -> Options:
    return {"cwd": "/", "stdin": os.open(place / "below", os.O_RDONLY)}


def _in_a_neighbour(place: Path) -> Options:
    return {"cwd": place.with_name("place-2")}


@pytest.mark.parametrize(
    ("options", "works"), [(_in_it, True), (_by_a_file, True), (_by_the_directory_alone, False), (_in_a_neighbour, False)]
)
def test_who_is_in_a_directory_or_has_a_file_of_it_open_works_there(
    tmp_path: Path, options: Callable[[Path], Options], works: bool
) -> None:
    place = tmp_path / "place"
    (place / "below").mkdir(parents=True)
    (tmp_path / "place-2").mkdir()
    given = options(place)
    with stranger(**given) as process:
        for descriptor in given.values():
            if isinstance(descriptor, int):
                os.close(descriptor)
        assert (process.pid in running_in(str(place)), program_of(process.pid)) == (works, "sleep")

    assert [*working_below(str(place))] == []
