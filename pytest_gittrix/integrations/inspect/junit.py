"""JUnit XML from a log of Inspect AI, so that CI shows each sample as a test: ``python -m pytest_gittrix.integrations.inspect.junit LOG``.

Inspect itself writes no JUnit XML. The log may be of any sandbox. A sample that passed becomes a passed test, one that did not a failure,
one with an error an error, and one without a score a skipped test.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.extras import required

_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
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
    suite = ElementTree.Element("testsuite", name=_text(log.eval.task), tests=str(len(samples)))
    properties = {"status": log.status, "model": log.eval.model, "run_id": log.eval.run_id, "created": log.eval.created}
    _properties(suite, properties)
    kinds = [_case(suite, log.eval.task, sample, scorer, threshold) for sample in samples]
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(kinds.count(kind)))
    suite.set("time", f"{sum(sample.total_time or 0 for sample in samples):.3f}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


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


def _case(suite: ElementTree.Element, task: str, sample: Any, scorer: str | None, threshold: float) -> str:
    """Add a sample as a test; gives the kind of its result in JUnit, empty if it passed."""
    case = ElementTree.SubElement(
        suite, "testcase", classname=_text(task), name=_text(f"{sample.id}[{sample.epoch}]"), time=f"{sample.total_time or 0:.3f}"
    )
    scores = sample.scores or {}
    score = scores.get(scorer) if scorer is not None else next(iter(scores.values()), None)
    values = {f"score.{name}": one.value for name, one in scores.items()}
    metadata = (score.metadata if score is not None else None) or {}
    _properties(case, values | {name: metadata[name] for name in _SHOWN if metadata.get(name)})
    if sample.error is not None:
        return _result(case, "error", sample.error.message, sample.error.traceback)
    if score is None:
        reason = f"limit: {sample.limit.type}" if sample.limit is not None else "no score"
        return _result(case, "skipped", reason, "")
    if _value(score.value) >= threshold:
        return ""
    return _result(case, "failure", score.explanation or f"score {score.value!r}", score.explanation or "")


def _result(case: ElementTree.Element, kind: str, message: str, text: str) -> str:
    first = (message.splitlines() or [""])[0]
    ElementTree.SubElement(case, kind, message=_text(first)[:500]).text = _text(text)[:_MOST]
    return kind


def _value(value: Any) -> float:
    found: float = required("inspect_ai.scorer", "inspect").value_to_float()(value)
    return found


def _properties(element: ElementTree.Element, values: dict[str, Any]) -> None:
    parent = ElementTree.SubElement(element, "properties")
    for name, value in values.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        ElementTree.SubElement(parent, "property", name=_text(name), value=_text(shown)[:_MOST])


def _text(text: str) -> str:
    """A text without the characters that XML cannot hold."""
    return _NOT_IN_XML.sub("\ufffd", str(text))


if __name__ == "__main__":
    sys.exit(main())
