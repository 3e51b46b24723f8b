"""Scripts of what a model answers, in words that are no protocol's and no agent's.

A step is a generator: it gets the request that is to be answered, yields an answer, is sent the request that follows, and returns the
first request that it does not answer. So a step may take several answers, and a script is its steps one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.model.answers.faults import AnswerFault
from pytest_gittrix.model.answers.replies import ModelReply
from pytest_gittrix.model.answers.tools import read_call, shell_call, write_call, written_by_shell
from pytest_gittrix.model.protocols.values import Answer, Call, Request, Text, Thinking

Turns: TypeAlias = Generator[Answer | AnswerFault, Request, Request]
Step: TypeAlias = Callable[[Request], Turns]
"""A part of a script."""

_MAGIC_END: Final = re.compile(r"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
_ENDINGS: Final = ("attempt_completion", "finish", "submit", "complete", "task_complete", "final_answer")
_BLOCK_EDITS: Final = "<<<<<<< SEARCH"


def say(text: str, *, thinking: str = "") -> Step:
    """The model says something, and asks for no tool. Most agents end their turn there.

    Args:
        text: what it says.
        thinking: what it thinks before, where the protocol carries thoughts.
    """

    def step(_: Request) -> Turns:
        return (yield Answer((*_thoughts(thinking), Text(text))))

    return step


def call(name: str, /, **arguments: Any) -> Step:
    """The model asks for one tool.

    Args:
        name: of the tool; the agent need not offer it.
        arguments: of the call, by name.
    """
    return _calling(lambda _: Call("", name, arguments))


def call_any(*, shell: str | None = None, read: str | None = None, write: Mapping[str, str] | None = None) -> Step:
    """The model asks for whichever tool of the agent does what is wanted. Exactly one argument is given.

    Args:
        shell: a command that is to run.
        read: a file that is to be read.
        write: contents by path, for one file that is to be written.

    Raises:
        InvalidInput: not one of the arguments is given. The step raises CapabilityMissing where the agent offers no such tool.
    """
    if [shell, read, write].count(None) != 2 or (write is not None and len(write) != 1):
        raise InvalidInput(
            "call_any() takes one thing to do.", fix='Give one of shell="ls", read="app.py" or write={"app.py": "contents"}, of one file.'
        )
    if shell is not None:
        return _calling(lambda request: shell_call(request, shell))
    if read is not None:
        return _calling(lambda request: read_call(request, read))
    [(path, contents)] = (write or {}).items()
    return _calling(lambda request: write_call(request, path, contents))


def edit(path: str, contents: str) -> Step:
    """The model gives a file new contents, in the way of the agent that asks.

    It asks for a tool that writes files, or for a shell. Agents that want a file to be read before it is written say so; then it asks for
    that first, as a model does. Where such a tool takes only absolute paths, the shell writes the file. An agent without tools that takes
    edits as blocks of text gets such a block.

    Args:
        path: of the file, as the agent's tools take it.
        contents: all of them.
    """

    def step(request: Request) -> Turns:
        if not request.tools and _BLOCK_EDITS in _all_text(request):
            return (yield Answer((Text(_block_edit(request, path, contents)),)))
        request = yield _asking(write_call(request, path, contents))
        if any("read" in one.text.lower() and ("first" in one.text.lower() or "not been read" in one.text) for one in request.results):
            request = yield _asking(read_call(request, path))
            request = yield _asking(write_call(request, path, contents))
        if any("must be absolute" in one.text.lower() for one in request.results):
            request = yield _asking(shell_call(request, written_by_shell(path, contents)))
        return request

    return step


def together(*steps: Step) -> Step:
    """The model asks for several tools in one answer. A list in a script is the same.

    Args:
        steps: each a call of one answer.
    """

    def step(request: Request) -> Turns:
        answers = [next(one(request)) for one in steps]
        return (yield Answer(tuple(part for answer in answers if isinstance(answer, Answer) for part in answer.parts), "tool"))

    return step


def placed(*steps: Step | str | Answer | Sequence[Step]) -> Step:
    """Steps whose answers name places by the placeholders of tapes, such as ``{workspace}``; the agent gets the places of the run.

    Args:
        steps: the steps.
    """

    def step(request: Request) -> Turns:
        for one in steps:
            turns = as_step(one)(request)
            given = next(turns)
            while True:
                try:
                    answered = yield (replace(given, placed=True) if isinstance(given, Answer) else given)
                    given = turns.send(answered)
                except StopIteration as ended:
                    request = ended.value
                    break
        return request

    return step


def when(
    predicate: Callable[[Request], bool], *steps: Step | str | AnswerFault, otherwise: Sequence[Step | str | AnswerFault] = ()
) -> Step:
    """Steps that are taken if the request that is to be answered is of a kind. Without steps, the script fails if it is not.

    Args:
        predicate: tells by the request.
        steps: that are taken if it is.
        otherwise: those that are taken if it is not.
    """

    def step(request: Request) -> Turns:
        held = predicate(request)
        if not steps and not otherwise and not held:
            raise InvalidInput(
                f"The script expected another request at this place ({_name(predicate)}).",
                why=f"The request says: {request.text[-200:]!r}.",
                fix="See the conversation below, and mend the script or the agent.",
            )
        return (yield from play(steps if held else otherwise, request))

    return step


def stop(text: str = "Done.") -> Step:
    """The model ends the task in the way of the agent that asks: by a tool that ends it, by a command that means it, or by saying so.

    Args:
        text: what it says.
    """

    def step(request: Request) -> Turns:
        for name in _ENDINGS:
            tool = request.tool(name)
            if tool is not None:
                return (yield _asking(Call("", name, dict.fromkeys(tool.required, text))))
        ending = _MAGIC_END.search(_all_text(request))
        if ending is not None:
            return (yield _asking(shell_call(request, f"echo {ending[0]}")))
        return (yield Answer((Text(text),)))

    return step


class ScriptEnded(Exception):
    """Thrown into a script at the end, to learn whether it is used up."""


class LeftOver(Exception):
    """Unused steps of a script.

    Attributes:
        steps: how many.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(f"{steps} steps are left over")
        self.steps = steps


def play(steps: Sequence[Step | str | AnswerFault | Answer | Sequence[Step]], request: Request) -> Turns:
    """Take steps one after the other; gives the first request that none of them answers.

    Raises:
        LeftOver: ``ScriptEnded`` is thrown into it, and steps are left.
    """
    for number, one in enumerate(steps, 1):
        try:
            request = (yield one) if isinstance(one, AnswerFault) else (yield from as_step(one)(request))
        except ScriptEnded:
            if number < len(steps):
                raise LeftOver(len(steps) - number) from None
            raise
    return request


def as_step(given: object) -> Step:
    """A part of a script as a step: a text is said, a list is several calls of one answer.

    Raises:
        InvalidInput: it is no part of a script.
    """
    if isinstance(given, str):
        return say(given)
    if isinstance(given, (list, tuple)):
        return together(*map(as_step, given))
    if isinstance(given, Answer):
        return _saying(given)
    if callable(given) and not isinstance(given, (type, ModelReply)):
        return given
    raise InvalidInput(
        f"{given!r} is not a step of a model's script.",
        fix="Use say(), call(), call_any(), edit(), when(), stop(), a text, a list of calls or a fault.",
    )


def _calling(chosen: Callable[[Request], Call]) -> Step:
    def step(request: Request) -> Turns:
        return (yield _asking(chosen(request)))

    return step


def _saying(answer: Answer) -> Step:
    def step(_: Request) -> Turns:
        return (yield answer)

    return step


def _asking(call_: Call) -> Answer:
    return Answer((call_,), "tool")


def _thoughts(text: str) -> tuple[Thinking, ...]:
    return (Thinking(text, "c2lnbmF0dXJl"),) if text else ()


def _all_text(request: Request) -> str:
    return "\n".join([request.system, *(message.text for message in request.messages)])


def _block_edit(request: Request, path: str, contents: str) -> str:
    """An edit as the block of text that agents without tools take: what is searched for, and what replaces it."""
    found = re.findall(rf"^{re.escape(path)}\n(`{{3,}})\w*\n(.*?)^\1", _all_text(request), re.MULTILINE | re.DOTALL)
    before = found[-1][1] if found else ""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", before + contents) if len(run) >= 3), 3)
    return f"{path}\n{fence}\n<<<<<<< SEARCH\n{before}=======\n{contents}>>>>>>> REPLACE\n{fence}\n"


def _name(predicate: Callable[[Request], bool]) -> str:
    return getattr(predicate, "__qualname__", repr(predicate)).replace(".<locals>", "")
