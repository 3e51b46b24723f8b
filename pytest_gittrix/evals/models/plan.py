"""How the agents of a run reach their model: recorded, replayed from another run, or live; and what they may use of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from pytest_gittrix.confine.network import MODELS, ModelEndpoint, Reachable, check_network
from pytest_gittrix.errors import InvalidInput, did_you_mean
from pytest_gittrix.evals.spending.prices import Prices

TapeMode = Literal["record", "replay", "live"]
TAPE_MODES: Final[tuple[TapeMode, ...]] = get_args(TapeMode)


@dataclass(frozen=True)
class ModelPlan:
    """How the agents of a run reach their model.

    Attributes:
        mode: ``record`` asks the real servers and keeps a tape of each sample, ``live`` asks them and keeps none, ``replay`` asks nobody:
            the tapes of another run answer.
        run: the directory of that other run.
        servers: the endpoints that are asked; those of ``model:anthropic``, ``model:openai`` and ``model:gemini`` by default.
        prices: the table of prices; None for unknown costs.

    Raises:
        InvalidInput: there is no such mode; or a replay has no run, or anything else has one.
    """

    mode: TapeMode
    run: Path | None = None
    servers: tuple[ModelEndpoint, ...] = ()
    prices: Prices | None = None

    def __post_init__(self) -> None:
        if self.mode not in TAPE_MODES:
            near = did_you_mean(str(self.mode), TAPE_MODES)
            raise InvalidInput(f"{self.mode!r} is not a mode of tapes.", fix=f"{near}Use one of {', '.join(TAPE_MODES)}.")
        if self.mode == "replay" and self.run is None:
            raise InvalidInput(
                "There is no run to replay the tapes of.",
                why="A replay answers what was recorded.",
                fix="Name the recorded run: --tape replay RUN.",
            )
        if self.mode != "replay" and self.run is not None:
            raise InvalidInput(
                f"--tape {self.mode} takes no run, and was given {self.run}.",
                why="What is recorded goes into the directory of --out.",
                fix=f"Leave it out; if it is the suite, write it first: gittrix eval run {self.run} --tape {self.mode}.",
            )

    def absolute(self) -> ModelPlan:
        """The same for processes that work in another directory."""
        return self if self.run is None else replace(self, run=self.run.absolute())

    def with_network(self, network: object) -> ModelPlan:
        """The same, which asks the servers of the models that a network lists, where it names none of its own.

        Args:
            network: as for ``check_network``.

        Raises:
            InvalidInput: it is no network.
        """
        listed = check_network(network or "none")
        if self.servers or not self.asks or not isinstance(listed, Reachable):
            return self
        return replace(self, servers=listed.models)

    @property
    def asks(self) -> bool:
        """Whether the real servers are asked."""
        return self.mode != "replay"

    def check_keys(self) -> None:
        """See that this process can ask a server, before each sample finds that it cannot.

        Raises:
            InvalidInput: the key of a server that was named is not set, or that of none is.
        """
        if not self.asks:
            return
        missing = [one.key for one in self.servers if one.key and not os.environ.get(one.key)]
        known = [one.key for one in MODELS.values() if one.key]
        if missing or (not self.servers and not any(os.environ.get(key) for key in known)):
            raise InvalidInput(
                f"{missing[0] if missing else ' or '.join(known)} is not set.",
                why="The model is asked with it, outside of the confinement; the agent does not get it.",
                fix="Set it for gittrix.",
                opt_out="--tape replay RUN asks no server.",
            )

    def identity(self) -> dict[str, Any]:
        """What of it results depend on, for the manifest. A replay has that of the run that it replays."""
        return {"servers": sorted(one.name for one in self.servers) or ["any"]}


def lists_models(network: object) -> bool:
    """Whether a network lists models, which agents that are confined then reach by a gateway.

    Raises:
        InvalidInput: it is no network.
    """
    listed = check_network(network or "none")
    return isinstance(listed, Reachable) and bool(listed.models)


def check_prices(plan: ModelPlan | None, prices: Prices | None, network: object) -> None:
    """See that there is something to reckon with prices. Raises InvalidInput: there is not."""
    if prices is None or plan is not None or lists_models(network):
        return
    raise InvalidInput(
        "There is nothing to reckon with prices.",
        why="What an agent uses of its model is known only where it reaches it through the run, or by the gateway of its confinement.",
        fix="Give --tape record, --tape live or --tape replay RUN, or --network model:NAME.",
    )


def plan_of(words: Sequence[str] | None, prices: Prices | None = None) -> ModelPlan | None:
    """The plan of the words after ``--tape``: a mode, and for ``replay`` a run. None without words.

    Raises:
        InvalidInput: as ``ModelPlan``, or there are too many words.
    """
    if not words:
        return None
    mode, *rest = words
    if len(rest) > 1:
        raise InvalidInput(
            f"--tape takes a mode and a run, and was given {' '.join(words)}.",
            why="Which of the words is the suite is unknown.",
            fix="Write the suite first: gittrix eval run SUITE --tape replay RUN.",
        )
    return ModelPlan(cast(TapeMode, mode), Path(rest[0]) if rest else None, (), prices)
