"""A session as a pydantic-ai workspace: the framework's own conformance suite, and what it does not ask."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_ai", reason='needs pip install "pytest-gittrix[pydantic-ai]"')

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
from pydantic_ai import Agent, RunContext, models
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import Workspace, WorkspaceOutputLimitError, WorkspaceRef, WorkspaceTimeoutError, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite
from support.frameworks import ADDED, LEVELS, available, programs_of
from support.git import git

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.integrations.pydantic_ai_workspace import GittrixWorkspaceBackend

DAEMONS_DIE = "test_a_backend_attached_by_ref_reaches_a_detached_process"
BACKGROUND = "test_background_child_does_not_hold_up_completed_command"
KILL_BY_NUMBER = "test_cancellation_stops_foreground_work"
MISSES = {"off": {DAEMONS_DIE}, "guard": {DAEMONS_DIE}, "jail": {DAEMONS_DIE, KILL_BY_NUMBER}}

Make = Callable[..., GittrixWorkspaceBackend]

models.ALLOW_MODEL_REQUESTS = False


@pytest.fixture
def make(project: Path, tmp_path: Path) -> Iterator[Make]:
    made: list[GittrixWorkspaceBackend] = []

    def make(**settings: object) -> GittrixWorkspaceBackend:
        made.append(GittrixWorkspaceBackend(project, store=tmp_path / "store", **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.mark.parametrize("level", LEVELS, indirect=True)
class TestConformance(WorkspaceBackendSuite):
    """The framework's suite, at each level of confinement. Why it misses what it misses is in ``docs/reference/integrations.md``."""

    @pytest.fixture
    def level(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        level = available(request.param)
        name = request.node.originalname
        if name in MISSES[level]:
            request.applymarker(pytest.mark.xfail(strict=True, reason=f"a known miss at level {level}"))
        if name in MISSES[level] | {BACKGROUND}:
            shorten(monkeypatch)
        return level

    @pytest.fixture
    def backend(self, make: Make, level: str) -> GittrixWorkspaceBackend:
        return make(confine=level)

    @pytest.fixture
    def fresh_backend(self, make: Make, level: str) -> Callable[[], GittrixWorkspaceBackend]:
        return lambda: make(confine=level)

    @pytest.fixture
    def attach_backend(self, make: Make, level: str) -> Callable[[WorkspaceRef], GittrixWorkspaceBackend]:
        return lambda ref: make(confine=level, ref=ref)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[GittrixWorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: GittrixWorkspaceBackend) -> None:
            assert backend.session is not None
            await asyncio.to_thread(backend.session.discard, force=True)

        return destroy


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the suite wait seconds and not minutes for what is known never to come."""
    fail_after, move_on_after = anyio.fail_after, anyio.move_on_after

    def failing(delay: float, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        return fail_after(min(delay, 10), shield=shield)

    def moving_on(delay: float, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        return move_on_after(min(delay, 2), shield=shield)

    monkeypatch.setattr("pydantic_ai.workspaces.conformance.anyio.fail_after", failing)
    monkeypatch.setattr("pydantic_ai.workspaces.conformance.anyio.move_on_after", moving_on)


@pytest.mark.anyio
@pytest.mark.parametrize("level", ["off", "guard", "jail"])
async def test_a_cancelled_command_is_ended_with_all_it_started(level: str, make: Make) -> None:
    workspace = Workspace(make(confine=available(level)))
    await workspace.working_dir()

    async with anyio.create_task_group() as group:
        group.start_soon(workspace.run, ["sh", "-c", "setsid sleep 600 & touch started; sleep 600"])
        while not await workspace.exists("started"):
            await anyio.sleep(0.05)
        group.cancel_scope.cancel()

    ref = workspace.backend.ref
    assert ref is not None
    assert programs_of(ref.id) == []


@pytest.mark.anyio
async def test_what_a_command_wrote_before_its_time_was_up_or_beyond_its_limit_is_told(make: Make) -> None:
    backend = make(confine="off")

    with pytest.raises(WorkspaceTimeoutError) as late:
        await backend.run("echo begun; sleep 600", shell=True, timeout=1)
    with pytest.raises(WorkspaceOutputLimitError) as much:
        await backend.run(["head", "-c", "11000000", "/dev/zero"])

    assert late.value.stdout == "begun\n"
    assert 0 < len(much.value.stdout) < much.value.limit


@pytest.mark.anyio
async def test_commands_of_an_ended_session_are_refused_and_a_backend_needs_somewhere_to_work(make: Make) -> None:
    backend = make(confine="off")
    await backend.working_dir()
    assert backend.session is not None
    backend.session.discard()

    with pytest.raises(WorkspaceUnavailableError):
        await backend.run(["true"])
    with pytest.raises(WorkspaceUnavailableError):
        await make(ref=WorkspaceRef(provider="gittrix", id="sess_nobody")).working_dir()
    with pytest.raises(InvalidInput):
        GittrixWorkspaceBackend()
    with pytest.raises(InvalidInput):
        GittrixWorkspaceBackend(ref=WorkspaceRef(provider="local", id="x"))


def test_an_agent_works_in_a_session_and_a_person_promotes_it(make: Make, project: Path) -> None:
    backend = make(confine="off")

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("shell", {"command": "sed -i 's/a - b/a + b/' app.py"})])
        return ModelResponse(parts=[TextPart("Mended.")])

    agent = Agent(FunctionModel(model))

    @agent.tool
    async def shell(context: RunContext[None], command: str) -> str:
        """Run a line of shell."""
        return (await context.workspace.run(command, shell=True)).stdout

    done = agent.run_sync("Mend the sum.", workspace=backend)
    session = backend.session
    assert session is not None

    assert done.output == "Mended."
    assert session.touched_files() == ["app.py"]
    assert git("show", "HEAD:app.py", cwd=project).decode() != ADDED
    session.promote()
    assert git("show", "HEAD:app.py", cwd=project).decode() == ADDED
