"""The models of a run in its manifest: what results depend on, and what is only noted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.suite import Case
from pytest_gittrix.evals.models.plan import ModelPlan, lists_models
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.results.tapes import tapes_digest
from pytest_gittrix.evals.spending.model_limits import ModelLimits
from pytest_gittrix.evals.spending.prices import Prices


def as_recorded(plan: ModelPlan, limits: ModelLimits) -> tuple[ModelPlan, ModelLimits]:
    """A replay with the prices and limits of the run that it replays, where it has none of its own.

    Raises:
        InvalidInput: the run does not exist, or has no tapes.
    """
    assert plan.run is not None
    recorded = RunStore.open(plan.run).manifest()
    model = recorded.core["setting"].get("model")
    if model is None:
        raise InvalidInput(
            f"{plan.run} has no tapes.", why="A replay answers what was recorded.", fix="Record it: gittrix eval run SUITE --tape record."
        )
    prices = recorded.host.get("prices")
    known = replace(plan, prices=plan.prices or (Prices.from_json(prices) if prices else None))
    return known, limits.over(ModelLimits.from_json(model.get("limits", {})))


def kept_live(
    plan: ModelPlan | None, limits: ModelLimits, cases: Sequence[Case], network: object, prices: Prices | None
) -> ModelPlan | None:
    """How agents reach their model, where limits need it: through the run as with ``--tape live``, and not past it by their gateway.

    Args:
        plan: what was asked for; None if agents are to reach the models of their network past the run.
        limits: what an agent may use of its model, in place of what cases say.
        cases: all cases of the suite.
        network: what the agent reaches. Where it lists no model, the run knows of none.
        prices: what models cost, if that is known.

    Raises:
        InvalidInput: it is no network.
    """
    if plan is not None or not (limits or any(case.model_limits for case in cases)) or not lists_models(network):
        return plan
    return ModelPlan("live", prices=prices)


def model_setting(plan: ModelPlan | None, limits: ModelLimits, cases: Sequence[Case]) -> dict[str, Any] | None:
    """What results depend on. A replay has that of the run that it replays, so that its samples have the same keys.

    Args:
        plan: how agents reach their model; None if the run has no part in that.
        limits: what an agent may use of it, in place of what cases say.
        cases: all cases of the suite.

    Raises:
        InvalidInput: a limit cannot be kept: it has no model to limit, or no prices to reckon with.
    """
    if plan is None:
        if limits:
            raise InvalidInput(
                f"{', '.join(limits.to_json())} cannot be kept.",
                why="What an agent uses of its model is known only where it reaches the model through the run.",
                fix="Give --tape record, --tape live or --tape replay RUN; or --network model:NAME, for an agent that is confined.",
            )
        return None
    costs = [limits.over(case.model_limits).max_cost is not None for case in cases]
    if any(costs) and plan.prices is None:
        raise InvalidInput(
            "max_cost has no prices.", why="What an exchange costs is unknown.", fix="Give a table of prices: --prices prices.toml."
        )
    found = plan.identity()
    if plan.run is not None:
        recorded: dict[str, Any] = RunStore.open(plan.run).manifest().core["setting"]["model"]
        found = {"servers": recorded["servers"]}
    if limits:
        found["limits"] = limits.to_json()
    if any(costs) and plan.prices is not None:
        found["prices"] = plan.prices.to_json()
    return found


def model_host(plan: ModelPlan | None, agent: str, readable: Sequence[Path] = ()) -> dict[str, Any]:
    """What is noted of the models of a run: the agent as it was given, what it reads, where tapes came from, and the prices."""
    if plan is None:
        return {}
    tape = plan.mode if plan.run is None else f"{plan.mode} {plan.run}"
    reads = {"readable": list(map(str, readable))} if readable else {}
    return {"agent": agent, "tape": tape, **reads, **({} if plan.prices is None else {"prices": plan.prices.to_json()})}


def with_replayed(manifest: Manifest, plan: ModelPlan | None) -> Manifest:
    """The manifest of a run with the digest of the tapes that it replays, if it does, and the network that these stand for."""
    if plan is None or plan.run is None:
        return manifest
    store = RunStore.open(plan.run)
    network = {name: value for name, value in store.manifest().core["setting"].items() if name == "network"}
    setting = {**manifest.core["setting"], **network}
    return Manifest({**manifest.core, "setting": setting}, manifest.host).with_tape(tapes_digest(store))


def as_done(manifest: Manifest, done: Manifest) -> Manifest:
    """The manifest of a run that repeats what agents did in another, with the models of that one: no agent asks any here."""
    model = {name: value for name, value in done.core["setting"].items() if name in ("model", "network", "readable")}
    setting = {**manifest.core["setting"], **model}
    return Manifest({**manifest.core, "setting": setting}, manifest.host).with_tape(done.core.get("tape"))


def unkept(manifest: Manifest, cases: Sequence[Case]) -> str:
    """A note that limits of cases are not kept in a run; empty if they are, or there are none."""
    if manifest.core["setting"].get("model") is not None or not any(case.model_limits for case in cases):
        return ""
    return "Cases limit what agents use of their models, and this run does not know that: give --tape, or --network model:NAME."


def changed_since(recorded: Manifest, now: Manifest) -> str:
    """A note on what is not as it was when the tapes were recorded; empty if all is."""
    differing = recorded.with_tape(None).differences(now.with_tape(None))
    if not differing:
        return ""
    return f"The tapes were recorded with other inputs, so that digests differ: {', '.join(differing)}."
