"""A session as the executor of a smolagents agent: code that stays, tools, a final answer, and what code cannot do."""

from __future__ import annotations

import pytest

pytest.importorskip("smolagents", reason="needs the environment of make tools")

from typing import Any

from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool
from smolagents.utils import AgentExecutionError
from support.frameworks import LEVELS, available, programs_of

from examples.integrations.smolagents_executor import GittrixExecutor
from pytest_gittrix import UserSession
from pytest_gittrix.errors import SessionExpired

ANSWERS = "import sys, time; answers = sys._getframe(1).f_globals['answers']"
"""Code that finds the stream on which its Python answers."""


class Scripted(Model):
    """A model that answers with pieces of code."""

    def __init__(self, *codes: str) -> None:
        super().__init__(model_id="scripted")
        self.codes = [*codes]

    def generate(self, messages: Any, **_: Any) -> ChatMessage:
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on.\n<code>\n{self.codes.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number.
    """
    return number * 2


@pytest.mark.parametrize("level", LEVELS)
def test_an_agent_works_with_tools_and_names_that_stay(session: UserSession, level: str) -> None:
    executor = GittrixExecutor(session.for_agent(), confine=available(level))
    model = Scripted("x = double(21)\nprint('made', x)", "open('new.py', 'w').write(str(x))\nfinal_answer({'x': x})")

    assert CodeAgent(tools=[double], model=model, executor=executor).run("Go.") == {"x": 42}
    executor.cleanup()

    assert session.for_agent().read("new.py") == b"42"
    assert programs_of(session.id) == []


def test_code_that_fails_hangs_or_ends_its_python_is_an_error_and_the_next_goes_on(session: UserSession) -> None:
    executor = GittrixExecutor(session.for_agent(), timeout=2)
    executor("import subprocess; subprocess.run('head -c 12000000 /dev/zero >&2; cat', shell=True, check=True)")  # nobody reads all that
    for code, said in (
        ("print('before'); 1 / 0", "ZeroDivisionError"),
        ("import no_such_package", "No module named"),
        ("import os; os._exit(3)", "ended its Python"),
        (f"{ANSWERS}\nwhile True: answers.write('x'); answers.flush(); time.sleep(0.05)", "within 2 seconds"),
        (f"{ANSWERS}\nwhile True: answers.write('x' * 2**16)", f"more than {1 << 26} bytes"),
        (f"{ANSWERS}\nanswers.write('[1]\\n'); answers.flush(); time.sleep(60)", "something else than an answer"),
        (f"{ANSWERS}\nanswers.write('{{}}\\n'); answers.flush(); time.sleep(60)", "something else than an answer"),
        (f'{ANSWERS}\nanswers.write(\'{{"final": 5, "logs": ""}}\\n\'); answers.flush(); time.sleep(60)', "something else than an answer"),
    ):
        with pytest.raises(AgentExecutionError, match=said):
            executor(code)
    done = executor("print('more')\n[1, 2]")
    assert (done.output, done.logs, done.is_final_answer) == ("[1, 2]", "more\n", False)

    session.discard(force=True)
    with pytest.raises(SessionExpired):
        executor("1")
    assert programs_of(session.id) == []


def test_after_cleanup_no_code_starts_another_python(session: UserSession) -> None:
    executor = GittrixExecutor(session.for_agent(), confine=available("jail"))
    executor("1")
    executor.cleanup()

    with pytest.raises(AgentExecutionError, match="It was ended"):
        executor("1")

    assert programs_of(session.id) == []


def test_unconfined_code_that_closes_its_answers_is_ended(session: UserSession) -> None:
    executor = GittrixExecutor(session.for_agent(), confine="off", timeout=60)

    with pytest.raises(AgentExecutionError, match="ended its Python"):
        executor(f"{ANSWERS}\nanswers.close(); time.sleep(600)")
