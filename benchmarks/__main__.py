"""``python -m benchmarks``: run the benchmarks and print them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.measure import Measurement, memory_directory
from benchmarks.report import Run, environment, text, to_json

_SIZES: Final = (10, 1_000, 10_000, 50_000)
_QUICK_SIZES: Final = (10, 1_000)


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; gives the exit status."""
    asked = _parser().parse_args(arguments)
    sizes = asked.sizes or list(_QUICK_SIZES if asked.quick else _SIZES)
    surroundings = environment(memory_directory(), tempfile.gettempdir())
    benches = parts(sizes, quick=asked.quick)
    found: list[Measurement] = []
    for name in asked.only or benches:
        began = time.monotonic()
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        found += benches[name]()
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    run = Run(found)
    if asked.json is not None:
        asked.json.write_text(to_json(run, surroundings))
    print(text(run, surroundings), end="")
    return 0


def parts(sizes: list[int], *, quick: bool = False) -> dict[str, Callable[[], list[Measurement]]]:
    """The parts of a run by name."""
    from benchmarks.confine import confine
    from benchmarks.contention import contention
    from benchmarks.cycle import cycle, moving
    from benchmarks.diffs import diffs
    from benchmarks.eval_page import eval_page
    from benchmarks.evals import evals
    from benchmarks.exponents import exponents
    from benchmarks.fixtures_cost import fixtures_cost
    from benchmarks.history import history
    from benchmarks.ignore import ignore
    from benchmarks.machine import machine
    from benchmarks.model import model
    from benchmarks.overlaps import overlaps
    from benchmarks.programs import programs
    from benchmarks.query import query
    from benchmarks.startup import command_line, in_use, startup
    from benchmarks.store import record, store
    from benchmarks.unfinished import unfinished

    return {
        "cycle": lambda: cycle(sizes, quick=quick),
        "moving": lambda: moving(sizes, quick=quick),
        "exponents": lambda: exponents(quick=quick),
        "contention": lambda: contention(quick=quick),
        "fixtures": lambda: fixtures_cost(quick=quick),
        "startup": lambda: startup(quick=quick),
        "command line": lambda: [*command_line(quick=quick), *in_use(quick=quick)],
        "unfinished": lambda: unfinished(quick=quick),
        "store": lambda: store(quick=quick),
        "record": lambda: record(quick=quick),
        "history": lambda: history(quick=quick),
        "query": lambda: query(quick=quick),
        "diffs": lambda: diffs(quick=quick),
        "machine": lambda: machine(quick=quick),
        "evals": lambda: evals(quick=quick),
        "eval page": lambda: eval_page(quick=quick),
        "confine": lambda: confine(quick=quick),
        "model": lambda: model(quick=quick),
        "programs": lambda: programs(quick=quick),
        "overlaps": lambda: overlaps(quick=quick),
        "ignore": lambda: ignore(quick=quick),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the engine beside git and floors, in one run.")
    parser.add_argument("--quick", action="store_true", help="less than a minute: sizes 10 and 1000, few rounds")
    parser.add_argument("--sizes", type=_numbers, metavar="N,N", help=f"files of the cycle (default: {','.join(map(str, _SIZES))})")
    parser.add_argument("--only", action="append", choices=[*parts([])], help="run this one alone; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there too")
    return parser


def _numbers(value: str) -> list[int]:
    return [int(part) for part in value.split(",")]


if __name__ == "__main__":
    sys.exit(main())
