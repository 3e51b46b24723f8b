"""A session as a SWE-ReX runtime: what the framework's own tests ask of one, and that a shell's words are read inside only."""

from __future__ import annotations

import pytest

pytest.importorskip("swerex", reason="needs the environment of make tools")

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import SimpleQueue

import pexpect
from support.frameworks import available, begun, discard_while, programs_of
from swerex import exceptions
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from examples.integrations.swe_rex_deployment import GittrixDeployment, GittrixRuntime
from pytest_gittrix import UserSession
from pytest_gittrix.confine.running_program import Running
from pytest_gittrix.errors import CapabilityMissing, SessionExpired
from pytest_gittrix.integrations.adapter import AnsweringPython

SHELL = CreateBashSessionRequest(startup_timeout=10)


def within(session: UserSession, scenario: Callable[[GittrixRuntime], Awaitable[None]], level: str = "jail") -> None:
    """Run a scenario on a deployment; nothing is left of it."""
    deployment = GittrixDeployment(session.for_agent(), confine=available(level))

    async def run() -> None:
        with pytest.raises(exceptions.DeploymentNotStartedError):
            _ = deployment.runtime
        assert not await deployment.is_alive()
        await deployment.start()
        assert await deployment.is_alive()
        await scenario(deployment.runtime)
        await deployment.stop()
        assert not await deployment.is_alive()

    asyncio.run(run())
    assert programs_of(session.id) == []


async def said(runtime: GittrixRuntime, command: str, shell: str = "default", **settings: object) -> BashObservation:
    """What a shell makes of a command."""
    return await runtime.run_in_session(BashAction(command=command, session=shell, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["off", "jail"])
def test_a_shell_keeps_its_state_and_answers_as_the_frameworks_own(session: UserSession, level: str) -> None:
    async def scenario(runtime: GittrixRuntime) -> None:
        await runtime.create_session(SHELL)
        with pytest.raises(exceptions.SessionExistsError):
            await runtime.create_session(SHELL)
        for command, output in (
            ("printf '\n\n  x\n'", "\n\n  x\n"),
            ("\n\n echo one \n  \n echo two \n\n", "one\ntwo\n"),
            ("cat <<EOF\na\nb\nEOF", "a\nb\n"),
            ("for i in 1 2;\n do echo $i;\n done", "1\n2\n"),
            ("echo 'hw';A=();echo 'more'", "hw\nmore\n"),  # what the framework's parser cannot read
            ("# nothing", ""),
            ("x=42; cd /", ""),
            ("echo $x; pwd", "42\n/\n"),
        ):
            assert (await said(runtime, command)).output == output
        assert (await said(runtime, "exit_with() { return 3; }; exit_with", check="silent")).exit_code == 3
        with pytest.raises(exceptions.NonZeroExitCodeError):
            await said(runtime, "false")
        with pytest.raises(exceptions.BashIncorrectSyntaxError) as wrong:
            await said(runtime, "(a")
        assert "bash_stderr" in wrong.value.extra_info
        await said(runtime, "python3 -q", is_interactive_command=True, expect=[">>> "], timeout=20)
        assert "49" in (await said(runtime, "print(7 * 7)", is_interactive_command=True, expect=[">>> "], timeout=20)).output
        await said(runtime, "quit()", is_interactive_quit=True, timeout=20)
        with pytest.raises(exceptions.CommandTimeoutError):
            await said(runtime, "sleep 600", timeout=0.1)
        await runtime.run_in_session(BashInterruptAction(timeout=5))
        assert (await said(runtime, "echo again")).output == "again\n"

        await runtime.close_session(CloseBashSessionRequest())
        for gone in (said(runtime, "true"), runtime.close_session(CloseBashSessionRequest())):
            with pytest.raises(exceptions.SessionDoesNotExistError):
                await gone

    within(session, scenario, level)


def test_shells_work_beside_each_other_and_a_cancelled_one_is_gone_with_all_that_it_started(
    session: UserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, threads = AnsweringPython.end, []
    monkeypatch.setattr(AnsweringPython, "end", lambda shell: (threads.append(threading.current_thread()), end(shell))[1])

    async def scenario(runtime: GittrixRuntime) -> None:
        names = ("one", "two")
        await asyncio.gather(*(runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=10)) for name in names))
        hanging = asyncio.create_task(said(runtime, "setsid sleep 600 & sleep 600", "one"))
        await asyncio.gather(*(said(runtime, f"x={name}", name) for name in names[1:]))
        assert (await said(runtime, "echo $x", "two")).output == "two\n"
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        with pytest.raises(exceptions.SessionDoesNotExistError):
            await said(runtime, "true", "one")
        with pytest.raises(pexpect.EOF):
            await said(runtime, "exit", "two")
        assert threads
        assert threading.main_thread() not in threads

    within(session, scenario)


def test_a_late_answer_leaves_a_newer_shell_alone_and_a_wrong_one_ends_its_shell(session: UserSession) -> None:
    async def scenario(runtime: GittrixRuntime) -> None:
        await runtime.create_session(SHELL)
        late = await begun(session, said(runtime, "touch started; sleep 600"))
        await asyncio.gather(runtime.close_session(CloseBashSessionRequest()), runtime.create_session(SHELL))
        with pytest.raises(exceptions.SwerexException, match=r"is gone\. It ended its Python"):
            await late
        with pytest.raises(exceptions.SwerexException, match=r"is gone\. It sent something else than an answer\.\n.*\nCreate a session"):
            await said(runtime, """for file in /proc/$PPID/fd/*; do echo '{"answer": 5}' > $file; done""")
        with pytest.raises(exceptions.SessionDoesNotExistError):
            await said(runtime, "true")

    within(session, scenario)


def test_a_shell_whose_creation_is_cancelled_before_it_was_started_is_not_left(
    session: UserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_starting, may_start, started = threading.Event(), threading.Event(), SimpleQueue[Running]()

    async def scenario(runtime: GittrixRuntime) -> None:
        start = runtime.programs.start

        def start_late(argv: list[str]) -> Running:
            is_starting.set()
            may_start.wait(60)
            started.put(running := start(argv))
            return running

        monkeypatch.setattr(runtime.programs, "start", start_late)
        creating = asyncio.create_task(runtime.create_session(SHELL))
        await asyncio.to_thread(is_starting.wait, 60)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        may_start.set()
        running = await asyncio.to_thread(started.get, timeout=60)
        assert (await asyncio.to_thread(running.wait, 20)).timed_out

    within(session, scenario, "off")


def test_commands_have_limits_streams_and_a_directory(session: UserSession) -> None:
    async def scenario(runtime: GittrixRuntime) -> None:
        both = "echo out; echo err >&2; pwd; echo $WHO"
        apart = await runtime.execute(Command(command=both, shell=True, cwd="/", env={"WHO": "Ada"}))
        assert (apart.stdout, apart.stderr, apart.exit_code) == ("out\n/\nAda\n", "err\n", 0)
        assert (await runtime.execute(Command(command=both, shell=True, merge_output_streams=True))).stdout.startswith("out\nerr\n")
        assert (await runtime.execute(Command(command=["echo", "a  b"]))).stdout == "a  b\n"
        with pytest.raises(exceptions.NonZeroExitCodeError, match=r"why: .*exit code 3"):
            await runtime.execute(Command(command="exit 3", shell=True, check=True, error_msg="why"))
        with pytest.raises(exceptions.CommandTimeoutError, match="passed its time"):
            await runtime.execute(Command(command=["sleep", "600"], timeout=0.1))

    within(session, scenario)


def test_files_come_and_go_and_reach_no_file_outside(session: UserSession, tmp_path: Path) -> None:
    async def scenario(runtime: GittrixRuntime) -> None:
        (tmp_path / "kit" / "deep").mkdir(parents=True)
        (tmp_path / "kit" / "deep" / "tool").write_text("tool")
        (tmp_path / "kit" / "link").symlink_to("deep/tool")
        await runtime.write_file(WriteFileRequest(path="new/file", content="naïve"))
        await runtime.upload(UploadRequest(source_path=str(tmp_path / "kit"), target_path="/tmp/kit"))
        await runtime.upload(UploadRequest(source_path=str(tmp_path / "kit/link"), target_path="/tmp/one"))
        for path, content in (("new/file", "naïve"), ("/tmp/kit/deep/tool", "tool"), ("/tmp/kit/link", "tool"), ("/tmp/one", "tool")):
            assert (await runtime.read_file(ReadFileRequest(path=path))).content == content
        latin = ReadFileRequest(path="new/file", encoding="latin-1")
        assert (await runtime.read_file(latin)).content == "naÃ¯ve"
        for encoding, error in (("ascii", UnicodeDecodeError), ("no-such", LookupError)):
            with pytest.raises(error):
                await runtime.read_file(ReadFileRequest(path="new/file", encoding=encoding))
        for path in (str(tmp_path / "kit/link"), "no/file"):
            with pytest.raises(FileNotFoundError):
                await runtime.read_file(ReadFileRequest(path=path))
        with pytest.raises(OSError, match="was not uploaded"):
            await runtime.upload(UploadRequest(source_path=str(tmp_path / "kit"), target_path="app.py"))

    within(session, scenario)
    assert session.touched_files() == ["new/file"]


def test_an_upload_copies_links_as_links_and_keeps_modes(session: UserSession, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    kit = tmp_path / "kit"
    kit.mkdir()
    for name, target in (("secret", tmp_path / "secret"), ("dangling", Path("nowhere")), ("itself", Path("."))):
        (kit / name).symlink_to(target)
    (kit / "tool").write_text("#!/bin/sh\necho made\n")
    (kit / "tool").chmod(0o755)
    (tmp_path / "link").symlink_to("kit")

    async def scenario(runtime: GittrixRuntime) -> None:
        for source, target in ((tmp_path / "link", "/tmp/kit"), (kit / "tool", "/tmp/tool")):
            await runtime.upload(UploadRequest(source_path=str(source), target_path=target))
        listed = await runtime.execute(Command(command="cd /tmp/kit && find . -type l | sort; ./itself/tool; /tmp/tool", shell=True))
        assert listed.stdout == "./dangling\n./itself\n./secret\nmade\nmade\n"
        with pytest.raises(FileNotFoundError):
            await runtime.read_file(ReadFileRequest(path="/tmp/kit/secret"))

    within(session, scenario)


def test_no_word_of_a_command_is_read_by_a_shell_outside(session: UserSession, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    # The framework checks a command as a text that ends with such a line.
    ends_the_text = f"true\nSOUNIQUEEOF\ntouch /tmp/inside {outside}\n: <<SOUNIQUEEOF"

    async def scenario(runtime: GittrixRuntime) -> None:
        await runtime.create_session(SHELL)
        with pytest.raises(exceptions.CommandTimeoutError):
            await said(runtime, ends_the_text, timeout=0.5)
        assert (await runtime.execute(Command(command="test -e /tmp/inside", shell=True))).exit_code == 0

    within(session, scenario)
    assert not outside.exists()


def test_a_setting_that_there_is_not_is_refused_at_once(session: UserSession) -> None:
    with pytest.raises(TypeError, match="confin"):
        GittrixDeployment(session.for_agent(), confin="jail")  # type: ignore[call-arg]


def test_a_stop_that_nobody_waits_for_ends_all_shells(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    first_is_ending, end = threading.Event(), AnsweringPython.end

    def slow_end(python: AnsweringPython) -> None:
        first_is_ending.set()
        time.sleep(0.1)
        end(python)

    async def run() -> None:
        deployment = GittrixDeployment(session.for_agent(), confine=available("jail"))
        await deployment.start()
        for name in ("one", "two"):
            await deployment.runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=10))
        monkeypatch.setattr(AnsweringPython, "end", slow_end)
        stopping = asyncio.create_task(deployment.stop())
        await asyncio.to_thread(first_is_ending.wait)
        stopping.cancel()
        await asyncio.wait([stopping])

    asyncio.run(run())  # waits for its threads

    assert programs_of(session.id) == []


def test_guard_is_refused_and_an_ended_session_is_dead(session: UserSession) -> None:
    refused = GittrixDeployment(session.for_agent(), confine=available("guard"))
    with pytest.raises(CapabilityMissing, match="cannot work at the level guard"):
        asyncio.run(refused.start())

    async def scenario(runtime: GittrixRuntime) -> None:
        command = runtime.execute(Command(command="touch started; sleep 600", shell=True))
        assert isinstance(await discard_while(session, command), SessionExpired)
        assert not await runtime.is_alive()

    within(session, scenario, "off")
