"""A model on this machine that answers agents by a script, in four protocols, and fails when a test wants it to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.model.answers.delivery import ScriptFailed as ScriptFailed
    from pytest_gittrix.model.answers.faults import bad_arguments as bad_arguments
    from pytest_gittrix.model.answers.faults import bad_json as bad_json
    from pytest_gittrix.model.answers.faults import content_type as content_type
    from pytest_gittrix.model.answers.faults import cut as cut
    from pytest_gittrix.model.answers.faults import duplicate_id as duplicate_id
    from pytest_gittrix.model.answers.faults import empty as empty
    from pytest_gittrix.model.answers.faults import fail as fail
    from pytest_gittrix.model.answers.faults import refusal as refusal
    from pytest_gittrix.model.answers.faults import stall as stall
    from pytest_gittrix.model.answers.faults import token_limit as token_limit
    from pytest_gittrix.model.answers.faults import too_long as too_long
    from pytest_gittrix.model.answers.faults import twice as twice
    from pytest_gittrix.model.answers.faults import unknown_tool as unknown_tool
    from pytest_gittrix.model.answers.script import call as call
    from pytest_gittrix.model.answers.script import call_any as call_any
    from pytest_gittrix.model.answers.script import edit as edit
    from pytest_gittrix.model.answers.script import placed as placed
    from pytest_gittrix.model.answers.script import say as say
    from pytest_gittrix.model.answers.script import stop as stop
    from pytest_gittrix.model.answers.script import together as together
    from pytest_gittrix.model.answers.script import when as when
    from pytest_gittrix.model.protocols.values import Answer as Answer
    from pytest_gittrix.model.protocols.values import Call as Call
    from pytest_gittrix.model.protocols.values import Failure as Failure
    from pytest_gittrix.model.protocols.values import Other as Other
    from pytest_gittrix.model.protocols.values import Request as Request
    from pytest_gittrix.model.protocols.values import Text as Text
    from pytest_gittrix.model.protocols.values import Thinking as Thinking
    from pytest_gittrix.model.server import ModelServer as ModelServer

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.model.answers.delivery": ("ScriptFailed",),
        "pytest_gittrix.model.answers.faults": (
            "bad_arguments",
            "bad_json",
            "content_type",
            "cut",
            "duplicate_id",
            "empty",
            "fail",
            "refusal",
            "stall",
            "token_limit",
            "too_long",
            "twice",
            "unknown_tool",
        ),
        "pytest_gittrix.model.answers.script": ("call", "call_any", "edit", "placed", "say", "stop", "together", "when"),
        "pytest_gittrix.model.server": ("ModelServer",),
        "pytest_gittrix.model.protocols.values": ("Answer", "Call", "Failure", "Other", "Request", "Text", "Thinking"),
    },
)
