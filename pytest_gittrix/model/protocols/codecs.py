"""The codec of each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_gittrix.model.protocols.anthropic import AnthropicCodec
from pytest_gittrix.model.protocols.base import Codec
from pytest_gittrix.model.protocols.chat import ChatCodec
from pytest_gittrix.model.protocols.gemini import GeminiCodec
from pytest_gittrix.model.protocols.responses import ResponsesCodec
from pytest_gittrix.model.protocols.values import Protocol

CODECS: Final[Mapping[Protocol, Codec]] = {
    "anthropic": AnthropicCodec(),
    "responses": ResponsesCodec(),
    "chat": ChatCodec(),
    "gemini": GeminiCodec(),
}
