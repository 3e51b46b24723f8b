"""A session as a deepagents backend: the framework's own suite, an agent at work, and what the suite does not ask."""

from __future__ import annotations

import pytest

pytest.importorskip("deepagents", reason='needs pip install "pytest-gittrix[deepagents]"')

import asyncio
from collections.abc import Iterator
from pathlib import Path

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import SandboxIntegrationTests
from support.frameworks import ADDED, LEVELS, available, cancel, discard_while
from support.git import git

from pytest_gittrix import GitTrix, UserSession
from pytest_gittrix.backends import LocalDurable
from pytest_gittrix.errors import SessionExpired
from pytest_gittrix.integrations.deepagents import DIRECTORIES, GittrixBackend

OVERWRITES = "the suite is older than the framework, in which write() replaces a file"
FULL_PATHS = "the suite is older than the framework, in which glob() gives full paths, and files only"
MISSES = {
    "test_write_existing_file_fails": OVERWRITES,
    "test_glob": FULL_PATHS,
    "test_glob_basic_pattern": FULL_PATHS,
    "test_glob_with_directories": FULL_PATHS,
    "test_glob_hidden_files_explicitly": FULL_PATHS,
    "test_glob_with_character_class": FULL_PATHS,
    "test_glob_with_question_mark": FULL_PATHS,
}
"""What the framework's base class misses with any backend, a plain subprocess too."""


# The suite is of a time when class-scoped fixtures could be methods.
@pytest.mark.filterwarnings("ignore::pytest.PytestRemovedIn10Warning")
@pytest.mark.anyio
@pytest.mark.parametrize("level", LEVELS, indirect=True, scope="class")
class TestConformance(SandboxIntegrationTests):
    """The framework's suite, at each level of confinement, in the workspace."""

    @pytest.fixture(scope="class")
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(scope="class")
    def level(self, request: pytest.FixtureRequest) -> str:
        return available(request.param)

    @pytest.fixture(scope="class")
    def sandbox(self, level: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GittrixBackend]:
        root = tmp_path_factory.mktemp("deepagents")
        git("init", "-q", "--initial-branch=main", str(root / "project"), cwd=root)
        git("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", "first", "--allow-empty", cwd=root / "project")
        with GitTrix(LocalDurable(root / "project"), store=root / "store", sweep_interval=None) as engine:
            yield GittrixBackend(engine.start_session("the suite").for_agent(), confine=level)

    @pytest.fixture(autouse=True)
    def sandbox_test_root(self, request: pytest.FixtureRequest, sandbox: GittrixBackend) -> str:
        name = request.node.originalname
        if name in MISSES:
            request.applymarker(pytest.mark.xfail(strict=True, reason=MISSES[name]))
        return f"{sandbox.programs.workspace}/{name}"


class Scripted(GenericFakeChatModel):
    """A model that says what it was given, whatever tools there are."""

    def bind_tools(self, tools: object, **_: object) -> Scripted:
        return self


def call(name: str, **arguments: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name}])


def test_an_agent_works_in_a_session_and_a_person_promotes_it(session: UserSession, project: Path) -> None:
    backend = GittrixBackend(session.for_agent())
    app = f"{backend.programs.workspace}/app.py"
    script = [
        call("read_file", file_path=app),
        call("edit_file", file_path=app, old_string="a - b", new_string="a + b"),
        call("execute", command='python3 -B -c "import app; print(app.add(2, 3))"; yes | head -c 200000'),
        AIMessage("Mended."),
    ]

    agent = create_deep_agent(model=Scripted(messages=iter(script)), backend=backend)
    messages = agent.invoke({"messages": [("user", "Mend the sum.")]})["messages"]

    assert messages[-1].content == "Mended."
    assert "large_tool_results" in messages[-2].content  # too much for the model, so the framework put it there
    assert session.touched_files() == ["app.py"]
    assert git("show", "HEAD:app.py", cwd=project).decode() != ADDED
    session.promote()
    assert git("show", "HEAD:app.py", cwd=project).decode() == ADDED
    assert git("show", "--name-only", "--format=", "HEAD", cwd=project) == b"app.py\n"
    for late in (lambda: backend.execute("true"), lambda: backend.upload_files([("/a", b"")]), lambda: backend.download_files(["/a"])):
        with pytest.raises(SessionExpired):
            late()


def test_what_the_framework_puts_aside_stays_with_the_session(session: UserSession) -> None:
    backend = GittrixBackend(session.for_agent(), confine=available("jail"))
    notes = [f"{directory}/notes.md" for directory in DIRECTORIES]

    assert [one.error for one in backend.upload_files([(note, b"noted") for note in notes])] == [None] * 3
    again = GittrixBackend(session.for_agent(), confine="jail")

    assert [one.content for one in again.download_files(notes)] == [b"noted"] * 3
    assert session.touched_files() == []


@pytest.mark.parametrize("level", ["off", "guard", "jail"])
def test_a_command_that_takes_too_long_or_is_cancelled_ends_with_all_it_started(level: str, session: UserSession) -> None:
    backend = GittrixBackend(session.for_agent(), confine=available(level), timeout=0.3)

    late = backend.execute("echo out; echo err >&2; echo out; setsid sleep 600 & sleep 600")
    asyncio.run(cancel(session, backend.aexecute("setsid sleep 600 & touch started; sleep 600", timeout=0)))

    assert late.exit_code == 124
    assert late.output.startswith("out\nerr\nout\n")
    assert late.output.endswith("The command was ended: it did not end within 0.3 seconds.\n")


def test_a_command_that_ends_with_its_session_says_so(session: UserSession) -> None:
    backend = GittrixBackend(session.for_agent(), confine="off")

    assert isinstance(asyncio.run(discard_while(session, backend.aexecute("touch started; sleep 600"))), SessionExpired)


def test_a_limit_that_a_command_passes_is_named(session: UserSession) -> None:
    backend = GittrixBackend(session.for_agent(), confine=available("jail"), limits={"cpu_seconds": 1})

    done = backend.execute("while :; do :; done")

    assert (done.exit_code, done.output) == (124, "\nThe command was ended: it passed its limit of cpu.\n")


def test_each_file_has_its_own_answer_and_a_link_leads_out_of_no_jail(session: UserSession, tmp_path: Path) -> None:
    backend = GittrixBackend(session.for_agent(), confine=available("jail"))
    root = backend.programs.workspace
    (tmp_path / "secret").write_text("hunter2")
    backend.execute(f"ln -s {tmp_path}/secret link; mkdir directory")
    paths = [f"{root}/app.py", f"{root}/link", f"{root}/directory", "app.py", "/a\0b", f"{tmp_path}/secret"]

    read = backend.download_files(paths)
    written = backend.upload_files([(path, b"x") for path in [f"{root}/new/file", f"{root}/directory", "app.py", "/etc/passwd"]])

    assert [one.path for one in read] == paths
    assert [one.error for one in read] == [None, "file_not_found", "is_directory", "invalid_path", "invalid_path", "file_not_found"]
    assert [one.error for one in written] == [None, "is_directory", "invalid_path", "permission_denied"]
