"""A system that refuses to open a file of some name, as where descriptors have run out or a disk is broken."""

from __future__ import annotations

import os
from typing import Any

import pytest


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Have the system refuse to open every file of a name, with an errno."""
    real = os.open

    def opened(path: Any, *arguments: Any, **keywords: Any) -> int:
        if os.path.basename(os.fsdecode(path)) == name:
            raise OSError(number, os.strerror(number), path)
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", opened)
