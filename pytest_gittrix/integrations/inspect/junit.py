"""JUnit XML from a log of Inspect AI, so that CI shows each sample as a test: ``python -m pytest_gittrix.integrations.inspect.junit LOG``.

Inspect itself writes no JUnit XML. The log may be of any sandbox. A sample that passed becomes a passed test, one that did not a failure,
one with an error an error, and one without a score a skipped test.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.extras import required
from pytest_gittrix.formats.junit import JUnitCase, JUnitSuite, junit_xml

_MOST: Final = 20_000
_SHOWN: Final = ("outcome", "promotion", "sha", "session", "confinement")


def junit(log: str | Path | Any, *, scorer: str | None = None, threshold: float = 1.0) -> str:
    """Convert a log into a JUnit suite with one test for each sample and epoch.

    Args:
        log: the path of a ``.eval`` or ``.json`` log, or an ``EvalLog``.
        scorer: the name of the score that decides; the first score of each sample by default.
        threshold: the least value that passes, where ``C`` is 1 and ``I`` is 0.

    Raises:
        CapabilityMissing: Inspect is not installed.
        InvalidInput: the file is no log, or no sample has a score of that name.
    """
    read = required("inspect_ai.log", "inspect").read_eval_log
    if isinstance(log, str | Path):
        try:
            log = read(str(log))
        except Exception as error:
            raise InvalidInput(f"{str(log)!r} is no log of Inspect: {error}", fix="Give the path of a .eval or .json log.") from error
    samples = log.samples or []
    if scorer is not None and not any(scorer in (sample.scores or {}) for sample in samples):
        names = sorted({name for sample in samples for name in sample.scores or {}})
        raise InvalidInput(f"No sample has a score {scorer!r}.", fix=f"There are {', '.join(names) or 'none'}.")
    properties = {"status": log.status, "model": log.eval.model, "run_id": log.eval.run_id, "created": log.eval.created}
    cases = [_case(log.eval.task, sample, scorer, threshold) for sample in samples]
    return junit_xml([JUnitSuite(log.eval.task, cases, _properties(properties))])


def main(argv: Sequence[str] | None = None) -> int:
    """Write the JUnit XML of a log to standard output or a file; 0 if it was written, 1 if it could not be."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_gittrix.integrations.inspect.junit", description="JUnit XML from a log of Inspect."
    )
    parser.add_argument("log", help="a .eval or .json log")
    parser.add_argument("-o", "--output", type=Path, help="where to write it; standard output by default")
    parser.add_argument("--scorer", help="whose score tells; the first of each sample by default")
    parser.add_argument("--threshold", type=float, default=1.0, help="the least value that passes (%(default)s)")
    options = parser.parse_args(argv)
    try:
        text = junit(options.log, scorer=options.scorer, threshold=options.threshold)
        if options.output is None:
            sys.stdout.write(text)
        else:
            options.output.write_text(text, encoding="utf-8")
    except (GittrixError, OSError) as error:
        print(f"gittrix: {error}", file=sys.stderr)
        return 1
    return 0


def _case(task: str, sample: Any, scorer: str | None, threshold: float) -> JUnitCase:
    """A sample as a test."""
    scores = sample.scores or {}
    score = scores.get(scorer) if scorer is not None else next(iter(scores.values()), None)
    metadata = (score.metadata if score is not None else None) or {}
    values = {f"score.{name}": one.value for name, one in scores.items()} | {name: metadata[name] for name in _SHOWN if metadata.get(name)}
    passed = JUnitCase(task, f"{sample.id}[{sample.epoch}]", seconds=sample.total_time or 0, properties=_properties(values))
    if sample.error is not None:
        return _ended(passed, "error", sample.error.message, sample.error.traceback)
    if score is None:
        return _ended(passed, "skipped", f"limit: {sample.limit.type}" if sample.limit is not None else "no score")
    if required("inspect_ai.scorer", "inspect").value_to_float()(score.value) >= threshold:
        return passed
    return _ended(passed, "failure", score.explanation or f"score {score.value!r}", score.explanation or "")


def _ended(case: JUnitCase, result: Literal["failure", "error", "skipped"], message: str, text: str = "") -> JUnitCase:
    first = (str(message).splitlines() or [""])[0]
    return replace(case, result=result, message=first[:500], text=str(text)[:_MOST])


def _properties(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: (value if isinstance(value, str) else json.dumps(value))[:_MOST] for name, value in values.items()}


if __name__ == "__main__":
    sys.exit(main())
