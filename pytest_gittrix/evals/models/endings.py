"""What became of an agent's talk with its model, as far as it decides how the sample ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pytest_gittrix.confine.command_line import Confinement
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.agents.reach import with_more
from pytest_gittrix.evals.inputs.sample_record import Outcome
from pytest_gittrix.evals.models.sample_model import ModelOfSample, SampleModel


class ModelEnding(NamedTuple):
    """How a sample ends because of its model.

    Attributes:
        outcome: of the sample.
        reason: why.
        said: the same on several lines, for people; empty if the reason says all.
    """

    outcome: Outcome
    reason: str
    said: str = ""


@contextmanager
def serving(made_of: ModelOfSample | None, session: str, places: dict[str, str]) -> Iterator[SampleModel | None]:
    """A block in which the model of a sample serves; None for a sample whose agent does not reach one through the run."""
    if made_of is None:
        yield None
        return
    with SampleModel(made_of, session, places) as model:
        yield model


def confined_with(model: SampleModel | None, level: Confinement) -> Confinement:
    """A confinement whose programs reach the model, too. At ``off`` there is no gateway, and they find it by its variables.

    Raises:
        CapabilityMissing: this machine has no confinement of the level that has a gateway.
    """
    if model is None or level.level == "off":
        return level
    return confinement(level.level, with_more(level.network, model.endpoint), level.limits)


def kept_tape(made_of: ModelOfSample | None, model: SampleModel) -> bytes:
    """The tape that is kept with the sample: what was recorded, or what was replayed; empty if nothing is kept."""
    if made_of is None or made_of.plan.mode == "live":
        return b""
    return model.tape.text.encode(errors="surrogatepass") if made_of.tape is None else made_of.tape.read_bytes()


def ending_of(model: SampleModel, *, failed: bool, decided: bool) -> ModelEnding | None:
    """How the model has a sample end; None if it has no part in that.

    Args:
        model: that of the sample; its agent has ended.
        failed: whether the agent failed, or its time was up.
        decided: whether how the sample ends is decided already.

    Raises:
        GittrixError: the agent did not get the answer that it waited for, which is not its failure.
    """
    if model.over:
        return ModelEnding("limit", model.over)
    if model.drift is not None:
        return ModelEnding("agent_error", model.drift.fact, f"{model.drift.fact}\n{model.drift.why}\n{model.drift.fix}")
    if model.outage is not None and (failed or isinstance(model.outage, InvalidInput)):
        raise model.outage
    if model.left_over and not decided:
        return ModelEnding("agent_error", f"{model.left_over}: the agent did less than when it was recorded")
    return None
