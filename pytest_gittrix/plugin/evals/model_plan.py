"""The model of an eval's agents as a test names it: by arguments of its marker, and by options of the run, which come before them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.models.plan import ModelPlan, plan_of
from pytest_gittrix.evals.models.setting import as_recorded
from pytest_gittrix.evals.spending.model_limits import ModelLimits
from pytest_gittrix.evals.spending.prices import Prices

MODEL_ARGUMENTS: Final[Mapping[str, str]] = {
    "tape": "record, live, or replay and the directory of a run, from the test's file",
    "prices": "the path of a table of prices, from the test's file",
    "max_tokens": "a whole number from 1",
    "max_cost": "an amount such as 0.25",
    "max_exchanges": "a whole number from 1",
}
"""The marker's arguments about models, and what each takes."""


class ModelOptions(Protocol):
    """The options of a test run that its evals' models read."""

    @property
    def eval_tape(self) -> str | None:
        """How agents reach their models, in place of the markers' ways."""

    @property
    def eval_prices(self) -> Path | None:
        """The table of prices, in place of the markers' tables."""


def model_of(arguments: Mapping[str, Any], options: ModelOptions, base: Path) -> tuple[ModelPlan | None, ModelLimits, Prices | None]:
    """How the agents of a test reach their model, what they may use of it, and what it costs.

    Args:
        arguments: those of the marker.
        options: those of the run.
        base: the directory that the marker's paths are relative to.

    Raises:
        InvalidInput: one of them is wrong, the prices cannot be read, or there is no such run.
    """
    limits = ModelLimits(*(arguments.get(name) for name in ("max_tokens", "max_cost", "max_exchanges")))
    words, root = (options.eval_tape, Path()) if options.eval_tape else (arguments.get("tape"), base)
    prices = _prices(arguments, options, base)
    if words is None:
        return None, limits, prices
    if not isinstance(words, str):
        raise InvalidInput(f"tape was given {words!r:.80}.", fix=f"It takes {MODEL_ARGUMENTS['tape']}.")
    mode, _, run = words.partition(" ")
    found = plan_of([mode, *([os.path.join(root, run.strip())] if run.strip() else [])], prices)
    return (*(as_recorded(found, limits) if found is not None and found.run is not None else (found, limits)), prices)


def _prices(arguments: Mapping[str, Any], options: ModelOptions, base: Path) -> Prices | None:
    if options.eval_prices is not None:
        return Prices.load(options.eval_prices)
    given = arguments.get("prices")
    return None if given is None else Prices.load(os.path.join(base, given))
