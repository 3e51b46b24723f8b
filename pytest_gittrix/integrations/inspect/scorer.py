"""A scorer for Inspect AI: a sample is correct if its work passes a check and can be promoted.

The score's metadata has the sample's diff and the result of promoting it, so a log can be read without the sandbox.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pytest_gittrix.engine.agents.programs import exit_code
from pytest_gittrix.extras import needs
from pytest_gittrix.integrations.adapter import run_cancellable
from pytest_gittrix.integrations.eval_environment import EvalEnvironment, PromotionOutcome
from pytest_gittrix.integrations.inspect.provider import GittrixSandbox

with needs("inspect"):
    import anyio.to_thread
    from inspect_ai.scorer import CORRECT, INCORRECT, Score, Target, accuracy, scorer, stderr
    from inspect_ai.solver import TaskState
    from inspect_ai.util import SandboxEnvironment, sandbox

Outcome = Literal["pass", "fail", "conflict", "refused", "timeout"]

MOST_DIFF = 200_000
"""How many characters of a diff a score has at most, since a log is read as a whole."""


@scorer(metrics=[accuracy(), stderr()])
def promotion(
    check: Sequence[str] | None = None,
    *,
    message: str | None = None,
    on_overlap: str = "refuse",
    timeout: float = 120,
) -> Any:
    """Score a sample by a check that runs in its workspace, and by a promotion.

    Args:
        check: a program and its arguments, which must exit with 0; no check by default.
        message: the commit message.
        on_overlap: what a promotion does if durable changed the same files: ``refuse``, ``allow-identical`` or ``merge``.
        timeout: real seconds for the check.

    Returns:
        A scorer. Its score is ``C`` for the outcome ``pass``, else ``I``; the answer is the diff; metadata has ``outcome``, ``diff``,
        ``touched``, ``promotion``, ``sha``, ``session``, ``confinement``, and of the check ``code`` and ``output``.
    """

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001  (of the protocol)
        environment = _sandbox_of(sandbox()).bench
        diff = await anyio.to_thread.run_sync(environment.diff)
        touched = await anyio.to_thread.run_sync(environment.session.touched_files)
        checked = None if check is None else await _run_check(environment, check, timeout)
        # Work that does not pass the check is not promoted.
        result = PromotionOutcome("refused", reason="The check did not pass.")
        if checked is None or checked["code"] == 0:
            result = await anyio.to_thread.run_sync(partial(environment.promote, message, on_overlap=on_overlap))
        outcome = _outcome(checked, result)
        return Score(
            value=CORRECT if outcome == "pass" else INCORRECT,
            answer=diff[:MOST_DIFF],
            explanation=result.reason or f"Promoted as {result.sha}.",
            metadata={
                "outcome": outcome,
                "diff": diff[:MOST_DIFF],
                "touched": touched,
                "promotion": result.verdict,
                "sha": result.sha,
                "session": environment.session.id,
                "confinement": str(environment.programs.confinement),
                "check": checked,
            },
        )

    return score


async def _run_check(environment: EvalEnvironment, check: Sequence[str], timeout: float) -> dict[str, Any]:
    done = await run_cancellable(partial(environment.programs.run, [*check], timeout=timeout))
    output = (done.stdout + done.stderr).decode("utf-8", "replace")
    return {"code": exit_code(done), "output": output[-20_000:], "timed_out": done.timed_out}


def _outcome(checked: dict[str, Any] | None, result: PromotionOutcome) -> Outcome:
    if checked is not None and checked["timed_out"]:
        return "timeout"
    if checked is not None and checked["code"] != 0:
        return "fail"
    match result.verdict:
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
