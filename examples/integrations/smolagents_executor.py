"""An executor for smolagents: the code of an agent runs in a Python that stays, confined in a session, and a person promotes the result.

Copy this file into your project. Written against ``smolagents.remote_executors`` of version 1.26, whose base class sends tools and
variables as code. Values come back as JSON.
"""

from __future__ import annotations

from typing import Any, Final

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentExecutionError

from pytest_gittrix.engine import AgentSession
from pytest_gittrix.integrations.adapter import AnsweringPython, NoAnswer

_PYTHON: Final = """
import ast, contextlib, io, traceback
sys.path.insert(0, "")
names = {"__name__": "__main__"}

def value_of(code):
    tree = ast.parse(code)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), names)
    return None if last is None else eval(compile(last, "<code>", "eval"), names)

for line in questions:
    shown, answer = io.StringIO(), {}
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            value = value_of(json.loads(line))
            answer["value"] = None if value is None else repr(value)
        except BaseException as problem:
            final = type(problem).__name__ == "FinalAnswerException"
            answer["final" if final else "error"] = str(problem) if final else traceback.format_exc()
    print(json.dumps({**answer, "logs": shown.getvalue()}), file=answers, flush=True)
"""


class GittrixExecutor(RemotePythonExecutor):
    """Runs the code of a ``CodeAgent`` in a session: ``CodeAgent(executor=...)``. Nothing that the agent is given can promote.

    The names that code defines are there for later code, until a call takes too long, which ends the Python.
    """

    def __init__(self, session: AgentSession, *, timeout: float | None = 120, **settings: Any) -> None:
        """Choose how code is confined; none is run yet.

        Args:
            session: the agent's side of a session, as ``for_agent()`` gives it.
            timeout: real seconds for each piece of code; None for no limit.
            settings: ``confine``, ``network``, ``limits`` and ``readable``, as for ``AgentSession.programs``.

        Raises:
            GittrixError: as ``AgentSession.programs``.
        """
        super().__init__([], AgentLogger(level=LogLevel.ERROR))
        self.programs = session.programs(**settings)
        self._timeout = timeout
        self._python = AnsweringPython(self.programs, _PYTHON)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a piece of code.

        Raises:
            AgentExecutionError: it raised, took too long, ended the Python, or sent something else than an answer.
            SessionExpired: the session ended, before the code or while it ran.
            GittrixError: as ``Programs.start``.
        """
        try:
            answer = self._python.ask(code, self._timeout)
        except NoAnswer as problem:
            raise AgentExecutionError(f"{problem} The names that code defined are gone.", self.logger) from None
        try:
            if "error" in answer:
                raise AgentExecutionError(f"{answer['logs']}{answer['error']}", self.logger)
            if "final" in answer:
                return CodeOutput(self._deserialize_final_answer(answer["final"], self.allow_pickle), answer["logs"], True)
            return CodeOutput(answer["value"], answer["logs"], False)
        except (KeyError, TypeError, AttributeError, ValueError):
            self._python.kill()  # its other answers are no better
            raise AgentExecutionError("The code sent something else than an answer.", self.logger) from None

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Install nothing: by default there is no network. Code that imports a package which is not there says so."""
        return additional_imports

    def cleanup(self) -> None:
        """End the Python, with everything that it started. The session stays, for a person to review."""
        self._python.end()
        self.programs.close()
