"""A session as a sandbox of the OpenAI Agents SDK: what the SDK's own tests ask of a sandbox, and who promotes.

The SDK ships no suite for sandboxes. Each test here is named after a behaviour that its repository tests.
"""

from __future__ import annotations

import pytest

pytest.importorskip("agents", reason='needs pip install "pytest-gittrix[openai-agents]"')

import asyncio
import io
import json
import signal
import tarfile
from pathlib import Path
from typing import Any

from agents import RunConfig, Runner
from agents.run_state import RunState
from agents.sandbox import (
    ExecTimeoutError,
    ExecTransportError,
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxRunConfig,
    User,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.capabilities import Filesystem, FilesystemToolSet, Shell, ShellToolSet, Skill, Skills
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import InvalidManifestPathError, PtySessionNotFoundError
from agents.sandbox.manifest import Environment
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall
from support.frameworks import ADDED, available, cancel, discard_while, programs_of
from support.git import git

from pytest_gittrix.engine import GitTrix
from pytest_gittrix.errors import InvalidInput, SessionExpired
from pytest_gittrix.integrations.openai_agents import GittrixSandboxClient, GittrixSandboxClientOptions

pytestmark = pytest.mark.anyio
PATCH = "*** Begin Patch\n*** Add File: marker.txt\n+patched\n*** End Patch\n"


@pytest.fixture(params=["off", "guard", "jail"])
def client(request: pytest.FixtureRequest, engine: GitTrix) -> GittrixSandboxClient:
    return GittrixSandboxClient(engine, confine=available(request.param))


async def contents(sandbox: Any, path: str) -> bytes:
    return bytes((await sandbox.read(Path(path))).read())


def shell(command: str) -> list[Any]:
    return [function_call("exec_command", {"cmd": command, "login": False}, call_id="shell")]


def patch() -> list[Any]:
    return [ResponseCustomToolCall(id="item", type="custom_tool_call", name="apply_patch", call_id="patch", input=PATCH)]


def agent(*steps: list[Any], capabilities: list[Any]) -> SandboxAgent:
    model = ScriptedModel([*steps, [assistant_message("done", item_id="message")]])
    return SandboxAgent(name="agent", model=model, capabilities=capabilities)


def within(sandbox: Any, cwd: str | None = None) -> RunConfig:
    return RunConfig(sandbox=SandboxRunConfig(session=sandbox, cwd=cwd), tracing_disabled=True)


async def test_an_agent_works_in_a_session_and_a_person_promotes_it(client: GittrixSandboxClient, engine: GitTrix, project: Path) -> None:
    sandbox = await client.create(options=GittrixSandboxClientOptions(task="mend the sum"))
    async with sandbox:
        done = await Runner.run(
            agent(shell("sed -i 's/a - b/a + b/' app.py"), capabilities=[Shell()]), "Mend it.", run_config=within(sandbox)
        )
    await client.delete(sandbox)
    session = engine.get_session(sandbox.state.gittrix_session)

    assert (done.final_output, session.info().task, session.touched_files()) == ("done", "mend the sum", ["app.py"])
    assert git("show", "HEAD:app.py", cwd=project).decode() != ADDED
    session.promote()
    assert git("show", "HEAD:app.py", cwd=project).decode() == ADDED
    with pytest.raises(SessionExpired):
        await client.resume(sandbox.state)
    with pytest.raises(ExecTransportError):
        await sandbox.exec("true")
    assert not await sandbox.running()


async def test_a_sandbox_lives_from_its_manifest_through_a_pause_to_a_new_run(client: GittrixSandboxClient, tmp_path: Path) -> None:
    manifest = Manifest(
        entries={"notes": Dir(children={"a.md": File(content=b"note\n")})}, environment=Environment(value={"GREETING": "hello"})
    )
    sandbox = await client.create(manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path / "snapshots"))
    async with sandbox:
        said = await sandbox.exec("cat notes/a.md; echo $GREETING; exit 3")
        await sandbox.write(Path("made/b.md"), io.BytesIO(b"b"))
        await sandbox.exec("ln -s /etc/passwd out; ln -s made/b.md inside; ln -s made linked")
        for path in ("/etc/passwd", "../up", "out"):
            with pytest.raises(InvalidManifestPathError):
                await sandbox.read(Path(path))
            with pytest.raises(InvalidManifestPathError):
                await sandbox.write(Path(path), io.BytesIO(b"x"))
        assert await contents(sandbox, "inside") == await contents(sandbox, "linked/b.md") == b"b"
        with pytest.raises(WorkspaceArchiveReadError):
            await sandbox.read(Path("made"))
        await sandbox.exec("rm out inside linked")
        state = client.serialize_session_state(sandbox.state)
    stopped = await sandbox.running()

    resumed = await client.resume(client.deserialize_session_state(json.loads(json.dumps(state))))
    async with resumed:
        again = await Runner.run(agent(patch(), capabilities=[Filesystem()]), "Go on.", run_config=within(resumed))
        listed = {Path(entry.path).name for entry in await resumed.ls(".")}

    assert (said.stdout, said.exit_code, stopped, again.final_output) == (b"note\nhello\n", 3, False, "done")
    assert {"notes", "made", "marker.txt", "app.py"} <= listed


async def test_commands_see_the_variables_of_the_manifest_and_none_of_this_process(
    client: GittrixSandboxClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cr3t")
    async with await client.create(manifest=Manifest(environment=Environment(value={"GIVEN": "yes"}))) as sandbox:
        seen = (await sandbox.exec("env")).stdout

    assert b"GIVEN=yes" in seen
    assert b"s3cr3t" not in seen


async def test_an_archive_that_leads_out_is_refused(client: GittrixSandboxClient) -> None:
    async with await client.create() as sandbox:
        for name, target in (("../up", ""), ("link", "/etc/passwd")):
            made = io.BytesIO()
            with tarfile.open(fileobj=made, mode="w") as tar:
                member = tarfile.TarInfo(name)
                if target:
                    member.type, member.linkname = tarfile.SYMTYPE, target
                tar.addfile(member)
            with pytest.raises(WorkspaceArchiveWriteError):
                await sandbox.hydrate_workspace(io.BytesIO(made.getvalue()))


async def test_a_command_is_ended_by_its_time_a_cancelled_task_or_the_end_of_the_session(
    client: GittrixSandboxClient, engine: GitTrix
) -> None:
    async with await client.create() as sandbox:
        with pytest.raises(ExecTimeoutError):
            await sandbox.exec("setsid sleep 600 & sleep 600", timeout=0.2)
        session = engine.get_session(sandbox.state.gittrix_session)
        await cancel(session, sandbox.exec("setsid sleep 600 & touch started; sleep 600"))
        ended = await discard_while(session, sandbox.exec("touch started; sleep 600", timeout=600))

    assert isinstance(ended, ExecTransportError)
    assert isinstance(ended.cause, SessionExpired)


async def test_a_program_of_a_terminal_that_ends_with_its_session_says_so(client: GittrixSandboxClient, engine: GitTrix) -> None:
    async with await client.create() as sandbox:
        started = await sandbox.pty_exec_start("sleep", "600", shell=False, tty=True, yield_time_s=0.25)
        await asyncio.to_thread(engine.get_session(sandbox.state.gittrix_session).discard, force=True)
        with pytest.raises(ExecTransportError) as caught:
            await sandbox.pty_write_stdin(session_id=started.process_id, chars="", yield_time_s=5)

    assert isinstance(caught.value.cause, SessionExpired)


async def test_other_users_are_refused(client: GittrixSandboxClient) -> None:
    with pytest.raises(InvalidInput):
        await client.create(manifest=Manifest(users=[User(name="eve")]))
    async with await client.create() as sandbox:
        with pytest.raises(ExecTransportError):
            await sandbox.exec("true", user="root")
        with pytest.raises(ExecTransportError):
            await sandbox.read(Path("app.py"), user="root")


async def test_a_terminal_is_written_to_and_polled_and_an_unknown_one_is_an_error(client: GittrixSandboxClient) -> None:
    async with await client.create() as sandbox:
        started = await sandbox.pty_exec_start("sh", "-c", 'read -r line; echo "$line"', shell=False, tty=True, yield_time_s=0.25)
        written = await sandbox.pty_write_stdin(session_id=started.process_id, chars="typed\n", yield_time_s=5)

        assert started.exit_code is None
        assert (written.process_id, written.exit_code) == (None, 0)
        assert b"typed" in written.output
        for number in (started.process_id, 999_999):
            with pytest.raises(PtySessionNotFoundError):
                await sandbox.pty_write_stdin(session_id=number, chars="")


async def test_a_character_that_is_cut_by_the_end_of_a_wait_stays_whole(client: GittrixSandboxClient) -> None:
    async with await client.create() as sandbox:
        update = await sandbox.pty_exec_start(r"printf '\344\270'; sleep 0.6; printf '\255'", yield_time_s=0.25)
        output = update.output
        while update.exit_code is None:
            update = await sandbox.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=0.25)
            output += update.output

    assert output.decode() == "中"


async def test_ctrl_c_interrupts_a_program(client: GittrixSandboxClient) -> None:
    async with await client.create() as sandbox:
        started = await sandbox.pty_exec_start("sleep", "600", shell=False, tty=True, yield_time_s=0.25)
        ended = await sandbox.pty_write_stdin(session_id=started.process_id, chars="\x03", yield_time_s=5)

        assert (started.exit_code, ended.exit_code) == (None, -signal.SIGINT)
        assert programs_of(sandbox.state.gittrix_session) == []


@pytest.mark.parametrize(("number", "chars"), [(signal.SIGINT, "\x03"), (signal.SIGQUIT, "\x1c")])
async def test_ctrl_c_interrupts_even_if_this_process_ignores_the_signal(client: GittrixSandboxClient, number: int, chars: str) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        async with await client.create() as sandbox:
            started = await sandbox.pty_exec_start("sleep", "30", shell=False, tty=True, yield_time_s=0.25)
            ended = await sandbox.pty_write_stdin(session_id=started.process_id, chars=chars, yield_time_s=5.5)
    finally:
        signal.signal(number, before)

    assert (started.exit_code, ended.process_id, ended.exit_code) == (None, None, -number)


async def test_a_program_without_a_terminal_reads_nothing_and_is_polled(client: GittrixSandboxClient) -> None:
    async with await client.create() as sandbox:
        started = await sandbox.pty_exec_start("echo out; echo err >&2; sleep 1; exit 5", yield_time_s=0.4)
        with pytest.raises(RuntimeError, match="stdin is not available"):
            await sandbox.pty_write_stdin(session_id=started.process_id, chars="hello")
        ended = await sandbox.pty_write_stdin(session_id=started.process_id, chars="")

    assert {*started.output.split()} == {b"out", b"err"}
    assert (ended.output, ended.exit_code) == (b"", 5)


async def test_stopping_a_sandbox_ends_its_programs(client: GittrixSandboxClient) -> None:
    async with await client.create() as sandbox:
        started = await sandbox.pty_exec_start("sleep 600", tty=True, yield_time_s=0.25)
        await sandbox.stop()
        with pytest.raises(PtySessionNotFoundError):
            await sandbox.pty_write_stdin(session_id=started.process_id, chars="")

        assert programs_of(sandbox.state.gittrix_session) == []


async def test_two_runs_at_once_have_directories_of_their_own(client: GittrixSandboxClient) -> None:
    async with await client.create() as sandbox:
        for name in ("a", "b"):
            await sandbox.mkdir(f"tasks/{name}", parents=True)
        runs = (
            Runner.run(
                agent(shell(f"echo {name} > made"), patch(), capabilities=[Shell(), Filesystem()]),
                "Go",
                run_config=within(sandbox, f"tasks/{name}"),
            )
            for name in ("a", "b")
        )
        await asyncio.gather(*runs)

        for name in ("a", "b"):
            assert await contents(sandbox, f"tasks/{name}/made") == f"{name}\n".encode()
            assert await contents(sandbox, f"tasks/{name}/marker.txt") == b"patched"
        with pytest.raises(WorkspaceReadNotFoundError):
            await sandbox.read(Path("made"))


async def test_a_skill_is_found_by_its_absolute_path_from_another_directory(client: GittrixSandboxClient) -> None:
    script = b"import pathlib; pathlib.Path('out').write_text((pathlib.Path(__file__).parent.parent / 'assets/x').read_text())"
    skill = Skill(
        name="copy", description="Copies.", content="# Copy\n", scripts={"copy.py": File(content=script)}, assets={"x": File(content=b"x")}
    )
    skills = Skills(skills=[skill])
    async with await client.create(manifest=skills.process_manifest(Manifest())) as sandbox:
        await sandbox.mkdir("tasks")
        command = f"python3 {sandbox.state.manifest.root}/.agents/copy/scripts/copy.py"
        await Runner.run(agent(shell(command), capabilities=[Shell(), skills]), "Go", run_config=within(sandbox, "tasks"))

        assert await contents(sandbox, "tasks/out") == b"x"


async def test_a_command_that_waited_for_approval_runs_in_the_runs_directory(client: GittrixSandboxClient) -> None:
    def asks(tools: ShellToolSet) -> None:
        tools.exec_command.needs_approval = True

    worker = agent(shell("echo yes > marker.txt"), capabilities=[Shell(configure_tools=asks)])
    async with await client.create() as sandbox:
        await sandbox.mkdir("tasks")
        state = (await Runner.run(worker, "Go", run_config=within(sandbox, "tasks"))).to_state()
        state.approve(state.get_interruptions()[0])
        await Runner.run(worker, state, run_config=within(sandbox, "tasks"))

        assert await contents(sandbox, "tasks/marker.txt") == b"yes\n"


@pytest.mark.parametrize("through_json", [False, True])
async def test_a_patch_that_waited_for_approval_goes_to_the_directory_of_the_run_that_goes_on(
    client: GittrixSandboxClient, through_json: bool
) -> None:
    def asks(tools: FilesystemToolSet) -> None:
        tools.apply_patch.needs_approval = True

    worker = agent(patch(), capabilities=[Filesystem(configure_tools=asks)])
    async with await client.create() as sandbox:
        for name in ("a", "b"):
            await sandbox.mkdir(f"tasks/{name}", parents=True)
        state = (await Runner.run(worker, "Go", run_config=within(sandbox, "tasks/a"))).to_state()
        if through_json:
            state = await RunState.from_json(worker, state.to_json())
        state.approve(state.get_interruptions()[0])
        await Runner.run(worker, state, run_config=within(sandbox, "tasks/b"))

        assert await contents(sandbox, "tasks/b/marker.txt") == b"patched"
        with pytest.raises(WorkspaceReadNotFoundError):
            await sandbox.read(Path("tasks/a/marker.txt"))
