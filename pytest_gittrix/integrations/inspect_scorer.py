"""A scorer for Inspect AI: a sample is right if its work could be promoted, and if what was asked of the result is so.

It reads what the sandbox ``gittrix`` kept: the diff of the sample, and what came of promoting it. Both are in the score's metadata, so a
log tells them without the sandbox. It must not know how programs are confined.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import anyio.to_thread
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState
from inspect_ai.util import SandboxEnvironment, sandbox

from pytest_gittrix.integrations.inspect_provider import GittrixSandbox
from pytest_gittrix.integrations.waiting import run_cancellable
from pytest_gittrix.integrations.workbench import Promotion, Workbench, exit_code

Outcome = Literal["pass", "fail", "conflict", "refused", "timeout"]

MOST_DIFF = 200_000
"""Characters of a diff that a score keeps; a log is read whole."""


@scorer(metrics=[accuracy(), stderr()])
def promotion(
    check: Sequence[str] | None = None,
    *,
    message: str | None = None,
    on_overlap: str = "refuse",
    timeout: float = 120,
) -> Any:
    """Score by a check that is run in the workspace, and by a promotion.

    Args:
        check: a program and its words, which must end with 0; none by default.
        message: of the commit.
        on_overlap: what promotion does where durable changed the same files: ``refuse``, ``allow-identical`` or ``merge``.
        timeout: real seconds for the check.

    Returns:
        A scorer. Its score is ``C`` for the outcome ``pass``, else ``I``; the answer is the diff; metadata has ``outcome``, ``diff``,
        ``touched``, ``promotion``, ``sha``, ``session``, ``confinement``, and of the check ``code`` and ``output``.
    """

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001  (of the protocol)
        bench = _sandbox_of(sandbox()).bench
        diff = await anyio.to_thread.run_sync(bench.diff)
        touched = await anyio.to_thread.run_sync(bench.session.touched_files)
        checked = None if check is None else await _checked(bench, check, timeout)
        # What does not pass is not promoted: in an eval as elsewhere durable gets only what is right.
        came = Promotion("refused", reason="The check did not pass.")
        if checked is None or checked["code"] == 0:
            came = await anyio.to_thread.run_sync(partial(bench.promote, message, on_overlap=on_overlap))
        outcome = _outcome(checked, came)
        return Score(
            value=CORRECT if outcome == "pass" else INCORRECT,
            answer=diff[:MOST_DIFF],
            explanation=came.reason or f"Promoted as {came.sha}.",
            metadata={
                "outcome": outcome,
                "diff": diff[:MOST_DIFF],
                "touched": touched,
                "promotion": came.verdict,
                "sha": came.sha,
                "session": bench.session.id,
                "confinement": str(bench.programs.confinement),
                "check": checked,
            },
        )

    return score


async def _checked(bench: Workbench, check: Sequence[str], timeout: float) -> dict[str, Any]:
    done = await run_cancellable(partial(bench.programs.run, [*check], timeout=timeout))
    output = (done.stdout + done.stderr).decode("utf-8", "replace")
    return {"code": exit_code(done), "output": output[-20_000:], "timed_out": done.timed_out}


def _outcome(checked: dict[str, Any] | None, came: Promotion) -> Outcome:
    if checked is not None and checked["timed_out"]:
        return "timeout"
    if checked is not None and checked["code"] != 0:
        return "fail"
    match came.verdict:
        case "promoted":
            return "pass"
        case "nothing":
            return "fail"
        case "conflict":
            return "conflict"
        case _:
            return "refused"


def _sandbox_of(environment: SandboxEnvironment) -> GittrixSandbox:
    made: GittrixSandbox = environment.as_type(GittrixSandbox)
    return made
