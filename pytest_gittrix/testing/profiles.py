"""Profiles: how many examples the state machines try, by the names of ``--gittrix-profile``.

A profile changes nothing else of the user's Hypothesis settings. Hypothesis is imported only when settings are used.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pytest_gittrix.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hypothesis import settings

EXTENT: Final[Mapping[str, tuple[int, int]]] = {"quick": (50, 20), "default": (100, 50), "soak": (5_000, 100)}
"""The number of examples and of the steps of each, by profile."""

SHRINKING: Final = 30.0
"""Real seconds after which the example of a machine that failed is short enough; Hypothesis alone takes five minutes."""

_chosen: str | None = None


def choose(name: str | None) -> str | None:
    """Choose the profile of machines that are created from now on; None uses Hypothesis' own. Return the previous one.

    Raises:
        InvalidInput: there is no such profile.
    """
    global _chosen
    before, _chosen = _chosen, name if name is None else _known(name)
    return before


def profile(name: str) -> settings:
    """Return the settings of a profile.

    ``quick`` tries the same 50 examples of 20 steps each time, ``default`` 100 of 50 steps, ``soak`` 5 000 of 100 steps. None has a
    deadline, since an example works on real repositories; none explains single values, which would hide the steps.

    Raises:
        InvalidInput: there is no such profile.
    """
    from hypothesis import HealthCheck, settings

    examples, steps = EXTENT[_known(name)]
    return settings(
        plain(settings()),
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=name == "quick",
        print_blob=name != "quick",
        suppress_health_check=[HealthCheck.too_slow],
    )


def in_use() -> settings:
    """Return the default settings of a machine: the chosen profile, otherwise the current ones of Hypothesis."""
    from hypothesis import settings

    return profile(_chosen) if _chosen is not None else plain(settings())


def plain(given: settings) -> settings:
    """Return settings without a deadline and without the phase that explains single values."""
    from hypothesis import Phase, settings

    return settings(given, deadline=None, phases=[phase for phase in given.phases if phase != Phase.explain])


@contextmanager
def shrinking_for(seconds: float) -> Iterator[None]:
    """A block in which Hypothesis shrinks a failing example for at most so many real seconds.

    Hypothesis has no setting for it, only a constant, which is read when the shrinking begins.
    """
    from hypothesis.internal.conjecture import engine

    before = engine.MAX_SHRINKING_SECONDS
    engine.MAX_SHRINKING_SECONDS = seconds  # type: ignore[assignment]
    try:
        yield
    finally:
        engine.MAX_SHRINKING_SECONDS = before


def _known(name: str) -> str:
    if name in EXTENT:
        return name
    raise InvalidInput(
        f"{name!r} is no profile.", why="A profile says how much the state machines try.", fix=f"Use one of: {', '.join(EXTENT)}."
    )
