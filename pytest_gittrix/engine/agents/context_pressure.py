"""Warnings that a model's context fills up, each given once (Pixir, ADR 20)."""

from __future__ import annotations

from pytest_gittrix.engine.operations.validation import check_text
from pytest_gittrix.errors import InvalidInput


class Pressure:
    """The warnings that a model's context fills up; remembered in memory only, by design."""

    def __init__(self) -> None:
        self._given: set[tuple[str, int | None, str]] = set()

    def register(self, id_: str, checkpoint_to_seq: int | None, tier: str) -> str:
        """``warn`` the first time, then ``already_warned``. Raises InvalidInput for arguments of other types."""
        check_text(tier, "tier")
        if checkpoint_to_seq is not None and type(checkpoint_to_seq) is not int:
            raise InvalidInput(f"checkpoint_to_seq={checkpoint_to_seq!r} is no event's number.", fix="Give a whole number, or None.")
        warning = (id_, checkpoint_to_seq, tier)
        if warning in self._given:
            return "already_warned"
        self._given.add(warning)
        return "warn"
