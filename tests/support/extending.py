"""A package of somebody else's with hooks, for one test."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from pytest_gittrix import extensions


def install_package(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> None:
    """Let the package ``acme_extends`` be installed, with hooks and what they lead to as its attributes."""
    module = ModuleType("acme_extends")
    module.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, "acme_extends", module)
    monkeypatch.setattr(extensions, "declared", lambda: [EntryPoint("acme", "acme_extends", "gittrix")])
    for cached in (extensions.registered, extensions.hooks):
        monkeypatch.setattr(extensions, cached.__name__, cache(cached.__wrapped__))
