"""Puts a tape in the model of a test: where it is, and what is done with it, by the test's marker and the options of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.plugin.config import GittrixConfig
from pytest_gittrix.plugin.options import MODELS
from pytest_gittrix.plugin.sections import slug

if TYPE_CHECKING:
    import pytest

    from pytest_gittrix.model.server import ModelServer


def put_tape_in(model: ModelServer, item: pytest.Item, marker: Mapping[str, Any], options: GittrixConfig) -> None:
    """Let a model answer from the tape of a test, or record it, if the marker has ``model=``.

    The tape is ``tapes/<module>-<test>.jsonl`` next to the test's file, or the path that the marker gives, relative to that file.

    Args:
        model: the model.
        item: the test.
        marker: its merged arguments.
        options: those of the run.

    Raises:
        InvalidInput: ``model=`` is no tape and no mode; or there is no such tape to replay.
    """
    asked = marker.get("model")
    if asked is None:
        return
    if asked not in ("tape", *MODELS) and not asked.endswith(".jsonl"):
        raise InvalidInput(
            f"model={asked!r} is no tape.",
            why="The model of the test answers from it.",
            fix=f'Use "tape", the path of one that ends in .jsonl, or one of {", ".join(MODELS)}.',
        )
    path = item.path.parent / (asked if asked.endswith(".jsonl") else Path("tapes", f"{slug(_name_of(item))}.jsonl"))
    mode = asked if asked in MODELS else options.model
    if mode == "auto":
        mode = "replay" if os.environ.get("CI") else "once"
    again = f"pytest '{item.nodeid}' --gittrix-model=rewrite"
    model.tape(path, mode, lenient=options.model_lenient == "yes", again=again)


def _name_of(item: pytest.Item) -> str:
    return f"{item.path.stem}::{item.nodeid.partition('::')[2]}"
