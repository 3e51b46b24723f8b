"""Tries results that cheat, and writes ``docs/reference/evals-cheats.md``: ``make cheats``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from support.cheat_trials import LURED, believed, named, verdict, verdicts
from support.new_cheats import NEW

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "evals-cheats.md"
COLUMNS: Final = ("plain pytest", "jail", "guard, root", "guard, ordinary user")
_HEAD: Final = """\
# Results that cheat

More results that do not do what their [hidden tests](evals.md#hidden-tests) ask for, and try to pass all the same: with more files of
their own, with data of the tests, and for tests of other kinds than those of the [first table](evals.md#hidden-tests). `make cheats` tries
each of them and writes this page; it takes ten minutes, and root. *Lured* has the meaning that it has there: a result that may be lured is
tried both ways, and passes if it does so in one of them. Where one passes, the table says by which judge.

Of these {all} results, {plain} pass where pytest runs them in one process with the tests, and {open} pass here:

"""
_TAIL: Final = """
Three results read the data in the memory of the process that they share with the tests, by Python's table of modules, by the garbage
collector, or by the frames of their callers. What a test expects is data there and not written in the test, so that no canary can change
it, and nothing keeps two parts of one process apart: Python tells of a call of the garbage collector, but of no look at a module. They pass
as `plain`, which `--judge-at-least canary` refuses. A right result loses nothing by that bar: where it returns plain values, the same tests
are judged by `subject`.

`an exception of three kinds` raises what its test asks for, and so may a right result; one of more kinds is refused, one of four in four
of five tries. To keep all these out, let tests expect plain values that are written in them.
"""


def names_of(name: str) -> list[str]:
    """The trials of a cheat: as it is, and lured."""
    return [name, name + LURED] if NEW[name].lures else [name]


def in_jail(name: str) -> Mapping[str, Any]:
    """The verdict on one trial in a jail."""
    with tempfile.TemporaryDirectory() as root:
        return verdict(named(name), Path(root), "jail")


def cell(found: list[Mapping[str, Any]]) -> str:
    """What the table says of the trials of a cheat: ``stopped``, or the judges that let it pass."""
    judges = sorted({f"`{judge}`" for one in found if not one["wrong"] for judge in one["judges"]})
    return f"passes: {', '.join(judges)}" if judges else "stopped"


def rows() -> dict[str, dict[str, str]]:
    """The table of the page."""
    lines = PAGE.read_text(encoding="utf-8").partition("| what the result does |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[one.strip() for one in line.strip("|").split("|")] for line in lines]
    return {name: dict(zip(COLUMNS, rest, strict=True)) for name, *rest in cells}


def tried(name: str) -> list[str]:
    """One row: the cells of a cheat."""
    with tempfile.TemporaryDirectory() as root:
        plain = "passes" if believed(NEW[name], Path(root)) else "fails"
    own = names_of(name)
    as_user: Callable[[bool], str] = lambda ordinary: cell([*verdicts(own, "guard", ordinary=ordinary).values()])  # noqa: E731
    found = [plain, cell([in_jail(one) for one in own]), as_user(False), as_user(True)]
    print(name, found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Try all of them, and write the page."""
    if os.geteuid():
        sys.exit("Only root can have a machine that is thrown away. Run `make cheats` as root.")
    with ThreadPoolExecutor(2) as threads:
        table = dict(zip(NEW, threads.map(tried, NEW), strict=True))
    plain = sum(one[0] == "passes" for one in table.values())
    still_open = sum(any("passes" in part for part in one[1:]) for one in table.values())
    lines = [["what the result does", *COLUMNS], ["---"] * 5, *([name, *one] for name, one in table.items())]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- | --- | --- | --- | --- |", "|---|---|---|---|---|")
    PAGE.write_text(_HEAD.format(all=len(table), plain=plain, open=still_open or "none") + text + "\n" + _TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
