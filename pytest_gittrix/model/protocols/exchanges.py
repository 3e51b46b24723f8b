"""One exchange with a model, as it is remembered."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gittrix.model.protocols.values import Answer, Failure, Message, Request, Usage


@dataclass(repr=False)
class Exchange:
    """One request, and what it got.

    Attributes:
        number: from 1, in the order of arrival.
        request: what was asked.
        content: the answer or failure that was sent.
        usage: tokens.
        side: the kind of a side request, such as a title; None for the work.
        fault: what went wrong with it on purpose; None for nothing.
        seconds: from the request's arrival to the end of the answer.
        delivered: whether all of the answer was sent.
        origin: where the answer is from: ``tape``; empty for anything else.
        files: the tree of the session's files when the request came; None if it is not known.
        session: the id of the session whose program asked, if its address says so; None for a client that was given no session's.
    """

    number: int
    request: Request
    content: Answer | Failure
    usage: Usage
    side: str | None = None
    fault: str | None = None
    seconds: float = 0.0
    delivered: bool = False
    session: str | None = None
    origin: str = ""
    files: str | None = None

    def __repr__(self) -> str:
        if isinstance(self.content, Failure):
            given = f"model failed: {self.content.status} {self.content.message}"
        else:
            given = str(Message("assistant", self.content.parts)) or "model: (nothing)"
        return f"<Exchange {self.number}: {self.request.messages[-1] if self.request.messages else 'nothing said'}; {given}>"
