"""What an agent used of its model: exchanges, tokens, and what these cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used of a model.

    Attributes:
        exchanges: how many requests it answered, or failed to answer.
        input: tokens of the requests, with those that a cache had.
        output: tokens of the answers.
        cached: tokens of the requests that a cache had.
        estimated: of how many exchanges the tokens are estimated, since the model's server did not count them.
        cost: what all that costs, by the table of prices; None if it is unknown.
        currency: of the cost; empty without a table.
        unpriced: the models that were asked and have no price.
        uncounted: of how many exchanges the tokens are unknown, since the model's server did not count them and nobody else read along.
    """

    exchanges: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    estimated: int = 0
    cost: Decimal | None = None
    currency: str = ""
    unpriced: tuple[str, ...] = ()
    uncounted: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of requests and answers."""
        return self.input + self.output

    def __add__(self, other: Spent) -> Spent:
        unknown = self.cost is None or other.cost is None
        return Spent(
            self.exchanges + other.exchanges,
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.estimated + other.estimated,
            None if unknown else (self.cost or Decimal(0)) + (other.cost or Decimal(0)),
            self.currency or other.currency,
            tuple(sorted({*self.unpriced, *other.unpriced})),
            self.uncounted + other.uncounted,
        )

    def to_json(self) -> dict[str, Any]:
        """The same for files and programs; the cost is a text, so that it is exact."""
        return {
            "exchanges": self.exchanges,
            "input": self.input,
            "output": self.output,
            "cached": self.cached,
            "estimated": self.estimated,
            "cost": None if self.cost is None else plain(self.cost),
            "currency": self.currency,
            "unpriced": list(self.unpriced),
            "uncounted": self.uncounted,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Spent:
        """The inverse of ``to_json``."""
        cost = value["cost"]
        return cls(**{**value, "cost": None if cost is None else Decimal(cost), "unpriced": tuple(value["unpriced"])})

    def __str__(self) -> str:
        many = "exchange" if self.exchanges == 1 else "exchanges"
        cached = f" ({self.cached:,} cached)" if self.cached else ""
        guessed = f", tokens of {self.estimated} estimated" if self.estimated else ""
        guessed += f", tokens of {self.uncounted} unknown" if self.uncounted else ""
        cost = ""
        if self.unpriced:
            cost = f", cost unknown: no price of {', '.join(self.unpriced)}"
        elif self.uncounted and self.currency:
            cost = ", cost unknown"
        elif self.cost is not None:
            cost = f", {money(self.cost)} {self.currency}"
        return f"{self.exchanges:,} {many}, {self.input:,} tokens in{cached}, {self.output:,} out{guessed}{cost}"


def total(spent: Iterable[Spent]) -> Spent | None:
    """The sum; None of nothing."""
    found = [*spent]
    return reduce(Spent.__add__, found) if found else None


def plain(cost: Decimal) -> str:
    """An amount as an exact text without an exponent."""
    text = f"{cost:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def money(cost: Decimal) -> str:
    """An amount for people: two digits after the point, or as many as show two that are not 0."""
    digits = 2 if cost == 0 or cost >= 1 else max(2, 1 - cost.adjusted())
    return f"{cost:,.{digits}f}"
