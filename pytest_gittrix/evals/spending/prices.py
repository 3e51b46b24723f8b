"""A table of prices of models, which the user gives: nobody else knows what a model costs today."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from pytest_gittrix.confine.gateway.usage import exchanges_in
from pytest_gittrix.evals.spending.spent import Spent, plain
from pytest_gittrix.formats.toml_file import PlainText, TomlTable, Version1, load_toml
from pytest_gittrix.model.protocols.values import Usage

_MILLION: Final = 1_000_000
_DIGITS: Final = 12


def amount(value: object) -> Decimal:
    """Read an amount of money, or a price. Raises ValueError: it is none, or is negative."""
    try:
        found = Decimal(str(value)) if isinstance(value, (int, float, str, Decimal)) and not isinstance(value, bool) else None
    except InvalidOperation:
        found = None
    if found is None or not found.is_finite() or found < 0 or abs(found.adjusted()) > _DIGITS:
        raise ValueError(f"{value!r:.80} is not an amount of money, such as 0.25")
    return found


Amount = Annotated[Decimal, BeforeValidator(amount)]


class PriceTable(TomlTable):
    """``[models."NAME"]`` of a table of prices."""

    input: Amount
    output: Amount
    cached: Amount | None = None


class PriceFile(TomlTable):
    """``prices.toml``."""

    schema_version: Version1
    currency: PlainText = "USD"
    models: dict[str, PriceTable] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, for a million tokens.

    Attributes:
        input: of the requests.
        output: of the answers.
        cached: of the requests' tokens that a cache had.
    """

    input: Decimal
    output: Decimal
    cached: Decimal

    def cost(self, usage: Usage) -> Decimal:
        """What an exchange costs."""
        fresh = max(usage.input - usage.cached, 0)
        return (fresh * self.input + usage.cached * self.cached + usage.output * self.output) / _MILLION


@dataclass(frozen=True)
class Prices:
    """A table of prices.

    Attributes:
        currency: of all prices.
        models: the price by the name of a model, or by a shell pattern of names.
    """

    currency: str
    models: Mapping[str, Price]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Prices:
        """Read a file. Raises InvalidInput: it cannot be read, or something in it is not allowed; the message names the key."""
        fix = 'Give a file such as: schema = 1, then [models."NAME"] with input and output for a million tokens.'
        table = load_toml(Path(path), PriceFile, fix=fix)
        found = {name: Price(one.input, one.output, one.input if one.cached is None else one.cached) for name, one in table.models.items()}
        return cls(table.currency, found)

    def of(self, model: str) -> Price | None:
        """The price of a model: by its name, or by the longest pattern that fits it; None if there is none."""
        if model in self.models:
            return self.models[model]
        fitting = [pattern for pattern in self.models if fnmatchcase(model, pattern)]
        return self.models[max(fitting, key=len)] if fitting else None

    def to_json(self) -> dict[str, Any]:
        """The table for a manifest."""
        rows = {
            name: {"input": plain(one.input), "output": plain(one.output), "cached": plain(one.cached)} for name, one in self.models.items()
        }
        return {"currency": self.currency, "models": rows}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Prices:
        """The inverse of ``to_json``."""
        rows = {name: Price(**{kind: Decimal(text) for kind, text in row.items()}) for name, row in value["models"].items()}
        return cls(value["currency"], rows)


def nothing_spent(prices: Prices | None) -> Spent:
    """What was used of a model before the first exchange."""
    return Spent() if prices is None else Spent(cost=Decimal(0), currency=prices.currency)


def spent_on(prices: Prices | None, model: str, usage: Usage, *, was_estimated: bool = False) -> Spent:
    """What one exchange used of a model, and what that cost."""
    price = None if prices is None else prices.of(model)
    unpriced = (model,) if prices is not None and price is None else ()
    cost = None if price is None else price.cost(usage)
    return Spent(1, usage.input, usage.output, usage.cached, int(was_estimated), cost, "", unpriced)


def spent_by_gateway(prices: Prices | None, lines: Iterable[str]) -> Spent:
    """What programs used of their models that a gateway led to them.

    Args:
        prices: the table of prices; None for unknown costs.
        lines: of the gateways' logs.
    """
    found = (
        Spent(1, uncounted=1) if one.tokens is None else spent_on(prices, one.model, Usage(*one.tokens)) for one in exchanges_in(lines)
    )
    return sum(found, nothing_spent(prices))
