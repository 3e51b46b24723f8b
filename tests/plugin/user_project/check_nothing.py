"""A test that has nothing to do with the plugin."""

from __future__ import annotations


def test_arithmetic() -> None:
    assert 1 + 1 == 2
