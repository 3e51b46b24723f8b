"""Limits of what an agent may use of its model: tokens, money, exchanges. A sample that passes one ends in ``limit``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.spending.prices import amount
from pytest_gittrix.evals.spending.spent import Spent, money, plain


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The most that an agent may use of its model in one sample; None for no limit.

    Attributes:
        max_tokens: tokens of requests and answers together.
        max_cost: in the currency of the table of prices.
        max_exchanges: requests that are answered.

    Raises:
        InvalidInput: a limit is no number, or is less than 1; a cost is negative.
    """

    max_tokens: int | None = None
    max_cost: Decimal | None = None
    max_exchanges: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_exchanges"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"{name}={value!r} is no limit.", fix="Give a whole number from 1, or leave it out.")
        if self.max_cost is not None:
            try:
                object.__setattr__(self, "max_cost", amount(self.max_cost))
            except ValueError as problem:
                raise InvalidInput(f"max_cost: {problem}.", fix="Give an amount such as 0.25, or leave it out.") from None

    def __bool__(self) -> bool:
        return any(getattr(self, one.name) is not None for one in fields(self))

    def over(self, other: ModelLimits) -> ModelLimits:
        """These limits, and those of another where these say nothing."""
        return ModelLimits(*(getattr(other if getattr(self, one.name) is None else self, one.name) for one in fields(self)))

    def before_another(self, spent: Spent) -> str:
        """The limit that one more exchange would pass, in a sentence; empty if none."""
        if self.max_exchanges is not None and spent.exchanges >= self.max_exchanges:
            return f"max_exchanges: it asked its model once more than {self.max_exchanges:,} times"
        return ""

    def passed(self, spent: Spent) -> str:
        """The limit that was passed, in a sentence; empty if none was."""
        if self.max_tokens is not None and spent.tokens > self.max_tokens:
            return f"max_tokens: it used {spent.tokens:,} tokens of its model, of at most {self.max_tokens:,}"
        if self.max_cost is not None and spent.cost is not None and spent.cost > self.max_cost:
            return f"max_cost: its model cost {money(spent.cost)} {spent.currency}, of at most {money(self.max_cost)}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """The limits that there are, for manifests and digests."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: plain(value) if isinstance(value, Decimal) else value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ModelLimits:
        """The inverse of ``to_json``."""
        return cls(value.get("max_tokens"), amount(value["max_cost"]) if "max_cost" in value else None, value.get("max_exchanges"))


NO_LIMITS: Final = ModelLimits()
