"""More results that cheat: what passes is what the page says; and none of them can change a file that is not its own.

A few run always, all of them with ``PYTEST_GITTRIX_SOAK=1``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from support.cheat_trials import believed, verdicts
from support.new_cheats import NEW, Cheat
from support.throwaway import ROOT, in_throwaway

from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.errors import CapabilityMissing
from tests.quality.cheats_page import cell, in_jail, names_of, rows

SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"
USUAL = ["texts, lists and numbers that equal all", "modules of Python's own names"]
"""The cheats that run always."""
WRITES = """
import os
for path in {paths!r}:
    try:
        with open(path, "a") as file: print("written", file.write({text!r}), path)
    except OSError as problem: print(type(problem).__name__, path)
for place in {places!r}:
    for directory, _, names in os.walk(place):
        for name in names:
            if name.startswith("test_"):
                try: open(os.path.join(directory, name), "w").write("def test_nothing(): pass")
                except OSError: pass
def add(*_): return 0
names = read = add
"""


def have(level: str) -> None:
    try:
        confinement(level)
    except CapabilityMissing as problem:
        pytest.skip(problem.fact)


def writer(root: Path, mark: str) -> tuple[str, Path, list[Path]]:
    """A program that writes to a file of ours, in the project and at home, and over tests that it finds; that file; and the others."""
    ours = root / "neighbour" / "test_ours.py"
    ours.parent.mkdir()
    ours.write_text("ours")
    new = [Path(place) / mark for place in (ROOT, Path.home(), "/var/tmp", "/dev/shm", "/tmp")]
    return WRITES.format(paths=[str(ours), *map(str, new)], text="theirs", places=[str(root), str(ROOT / "tests" / "support")]), ours, new


def test_the_page_lists_every_cheat() -> None:
    assert [*rows()] == [*NEW]
    assert all(not NEW[name].app.count("/tmp") for name in NEW)


def test_a_cheat_that_plain_pytest_runs_in_a_jail_changes_no_file_outside(tmp_path: Path) -> None:
    have("jail")
    program, ours, new = writer(tmp_path, f"trial-{uuid4().hex}")
    (tmp_path / "trial").mkdir()

    assert not believed(Cheat(program), tmp_path / "trial")
    assert ours.read_text() == "ours"
    assert [path for path in new if path.exists()] == []


@pytest.mark.needs_root
@pytest.mark.parametrize("ordinary", [False, True], ids=["root", "ordinary"])
def test_a_program_on_a_throwaway_machine_changes_no_file_outside(tmp_path: Path, ordinary: bool) -> None:
    program, ours, new = writer(tmp_path, f"trial-{uuid4().hex}")
    done = in_throwaway([sys.executable, "-c", f"{program}\nprint(os.getuid(), os.getpid(), os.listdir('/tmp'))"], ordinary=ordinary)

    assert done.returncode == 0, done.stderr
    assert b"written 6 /dev/shm" in done.stdout
    assert ours.read_text() == "ours"
    assert [path for path in new if path.exists()] == []
    assert (ROOT / "tests/support/throwaway.py").stat().st_size > 1000


@pytest.mark.parametrize("name", [*NEW] if SOAK else USUAL)
def test_a_cheat_in_a_jail_passes_only_as_the_page_says(name: str) -> None:
    have("jail")

    assert cell([in_jail(one) for one in names_of(name)]) == rows()[name]["jail"]


@pytest.mark.needs_root
@pytest.mark.parametrize("ordinary", [False, True], ids=["root", "ordinary"])
def test_cheats_at_guard_pass_only_as_the_page_says(ordinary: bool) -> None:
    have("guard")
    names = [*NEW] if SOAK else USUAL
    found = verdicts([one for name in names for one in names_of(name)], "guard", ordinary=ordinary)
    column = "guard, ordinary user" if ordinary else "guard, root"

    assert {name: cell([found[one] for one in names_of(name)]) for name in names} == {name: rows()[name][column] for name in names}


@pytest.mark.skipif(not SOAK, reason="takes a minute: PYTEST_GITTRIX_SOAK=1")
@pytest.mark.parametrize("name", [name for name in NEW if "thread" not in name])  # it is a race whether a thread is in time
def test_a_cheat_deceives_plain_pytest_as_the_page_says(name: str, tmp_path: Path) -> None:
    have("jail")

    assert believed(NEW[name], tmp_path) == (rows()[name]["plain pytest"] == "passes")
