"""What all integrations stand on: programs and files of a session as a framework asks for them, and what is said where one is missing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frameworks import discard_while
from support.git import git

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.confine.levels import missing_layers, strongest
from pytest_gittrix.engine.agents.programs import Programs, exit_code
from pytest_gittrix.errors import CapabilityMissing, InvalidInput, SessionExpired
from pytest_gittrix.evals.runs.work_dirs import make_work_dir, sweep
from pytest_gittrix.integrations.adapter import AnsweringPython, NoAnswer, TooLarge
from pytest_gittrix.integrations.eval_environment import EvalEnvironment
from pytest_gittrix.mcp.request import MOST_CHARACTERS, promotion_request
from pytest_gittrix.mcp.tools import SessionTools
from pytest_gittrix.testing.world import World

FILES = {"app.py": "v1\n", "README.md": "# A project\n"}
STRONGEST = strongest().level


@pytest.fixture
def environment() -> Iterator[EvalEnvironment]:
    with EvalEnvironment.open("fix it", files=FILES, confine="off", record=True) as environment:
        yield environment


@pytest.fixture
def confined() -> Iterator[EvalEnvironment]:
    with EvalEnvironment.open("fix it", files=FILES, confine="auto") as environment:
        yield environment


def test_equal_work_is_an_equal_commit_whatever_caches_programs_leave(environment: EvalEnvironment) -> None:
    code = "import os, app; open('app.py', 'a').write('v = 2\\n'); os.makedirs('pkg/__pycache__')"
    environment.session.for_agent().write("app.py", "v = 1\n")
    environment.run([sys.executable, "-c", f"{code}; open('pkg/__pycache__/x.pyc', 'wb').write(os.urandom(9))"])

    workspace = environment.session.workspace_path
    assert workspace is not None
    assert [path.parent.name for path in workspace.rglob("__pycache__")] == ["pkg"]

    assert environment.promote().verdict == "promoted"
    assert git("ls-tree", "-r", "--name-only", "main", cwd=environment.world.durable.path).split() == [b"README.md", b"app.py"]


def test_a_program_that_ends_with_its_session_is_no_late_one(environment: EvalEnvironment) -> None:
    program = asyncio.to_thread(environment.run, ["sh", "-c", "touch started; sleep 600"])

    assert isinstance(asyncio.run(discard_while(environment.session, program)), SessionExpired)
    assert environment.steps == []


@pytest.mark.parametrize("data", [None, b"x"])
def test_a_file_that_is_read_or_written_while_the_session_ends_is_no_broken_one(
    environment: EvalEnvironment, monkeypatch: pytest.MonkeyPatch, data: bytes | None
) -> None:
    run, hangs = environment.programs.run, ["sh", "-c", "touch started; sleep 600"]
    monkeypatch.setattr(environment.programs, "run", lambda _, **options: run(hangs, **options))
    call = partial(environment.files.read, "app.py") if data is None else partial(environment.files.write, "app.py", data)

    assert isinstance(asyncio.run(discard_while(environment.session, asyncio.to_thread(call))), SessionExpired)


# A Python that answers -----------------------------------------------------------------------------------------------------------------

ECHO = "for line in questions: print(json.dumps({'answer': json.loads(line), 'pid': os.getpid()}), file=answers, flush=True)"


def test_a_python_that_answers_starts_again_unless_it_is_ended_for_good(environment: EvalEnvironment) -> None:
    python = AnsweringPython(environment.programs, ECHO)

    first = python.ask({"a": [1]}, 60)
    assert (first["answer"], python.ask(2, 60)["pid"]) == ({"a": [1]}, first["pid"])
    python.kill()
    assert python.ask(3, 60)["pid"] != first["pid"]
    python.end()
    with pytest.raises(NoAnswer, match="was ended"):
        python.ask(4, 60)


def test_a_python_that_is_ended_while_it_starts_does_not_stay(environment: EvalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    python = AnsweringPython(environment.programs, ECHO)
    start, started = environment.programs.start, []
    monkeypatch.setattr(environment.programs, "start", lambda argv: (python.end(), started.append(start(argv)), started[0])[-1])

    for _ in range(2):
        with pytest.raises(NoAnswer, match="was ended"):
            python.ask(1, 60)

    [running] = started
    assert running.poll() is not None


def test_a_python_that_ends_with_its_session_is_told_from_one_that_ended_itself(environment: EvalEnvironment) -> None:
    python = AnsweringPython(environment.programs, "for line in questions: open('started', 'w').close(); import time; time.sleep(600)")

    assert isinstance(asyncio.run(discard_while(environment.session, asyncio.to_thread(python.ask, 1))), SessionExpired)


def test_after_a_question_that_was_interrupted_the_next_one_gets_its_own_answer(
    environment: EvalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = AnsweringPython(environment.programs, ECHO)
    python.ask("first", 60)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(python, "_line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            python.ask("interrupted", 60)

    assert python.ask("next", 60)["answer"] == "next"


# Programs and files --------------------------------------------------------------------------------------------------------------------


def test_the_same_programs_give_the_same_trees_and_commit_at_every_level() -> None:
    results = []
    for level in sorted({"off", STRONGEST}):
        with EvalEnvironment.open("fix it", files=FILES, confine=level, record=True) as environment:
            environment.run(["sh", "-c", "echo v2 > app.py && git commit -qam two && git rev-parse HEAD"])
            environment.run(["rm", "README.md"])
            results.append(
                ([step.tree for step in environment.steps], [step.output for step in environment.steps], environment.promote("Two"))
            )

    assert all(one == results[0] for one in results)
    assert results[0][2].verdict == "promoted"


def test_what_a_program_leaves_in_its_home_and_temporary_directory_the_next_one_finds(confined: EvalEnvironment) -> None:
    confined.run(["sh", "-c", 'echo one > "$HOME/one"; echo two > "$TMPDIR/two"'])

    done = confined.run(["sh", "-c", 'cat "$HOME/one" "$TMPDIR/two"'])

    assert done.stdout == b"one\ntwo\n"
    assert confined.session.touched_files() == []


def test_a_program_sees_its_session_and_the_clock_and_no_other_variable(
    environment: EvalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")

    variables = dict(line.split("=", 1) for line in environment.run(["env"], environment={"GIVEN": "yes"}).stdout.decode().splitlines())

    assert "SECRET_TOKEN" not in variables
    assert (variables["GITTRIX_SESSION_ID"], variables["GIVEN"]) == (environment.session.id, "yes")
    assert variables["GIT_COMMITTER_DATE"] == f"{environment.world.clock.now_ns() // 10**9} +0000"


@pytest.mark.parametrize(("path", "data"), [("new/deep/file", b"x\r\n\x00\xff"), ("app.py", b""), ("with space", b"y")])
def test_a_file_that_is_written_is_read_back_and_a_program_sees_it(confined: EvalEnvironment, path: str, data: bytes) -> None:
    confined.files.write(path, data)

    assert confined.files.read(path) == data
    assert confined.files.read(f"{confined.programs.workspace}/{path}") == data
    assert confined.run(["cat", path]).stdout == data
    assert confined.session.read(path) == data


def test_files_fail_as_a_program_would(confined: EvalEnvironment) -> None:
    files = confined.files
    confined.run(["sh", "-c", "mkdir dir && mkfifo pipe"])

    with pytest.raises(FileNotFoundError, match="nowhere"):
        files.read("nowhere")
    with pytest.raises(IsADirectoryError):
        files.read("dir")
    with pytest.raises(IsADirectoryError):
        files.write("dir", b"x")
    with pytest.raises(NotADirectoryError):
        files.write("app.py/below/it", b"x")
    with pytest.raises(OSError, match="Invalid argument"):
        files.read("pipe")
    with pytest.raises(OSError, match="Invalid argument"):
        files.write("pipe", b"x")
    with pytest.raises(TooLarge):
        files.read("app.py", most=2)
    for path in ("", "a\0b"):
        with pytest.raises(InvalidInput):
            files.read(path)


@pytest.mark.skipif(STRONGEST == "off", reason="nothing confines programs here")
def test_a_link_that_an_agent_made_leads_nobody_out_of_the_sandbox(confined: EvalEnvironment, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t")
    confined.run(["ln", "-s", str(secret), "link"])
    confined.run(["ln", "-s", str(tmp_path), "directory"])

    with pytest.raises(OSError, match="link"):
        confined.files.read("link")
    with pytest.raises(OSError):
        confined.files.read(str(secret))
    with contextlib.suppress(OSError):
        confined.files.write("directory/new", b"x")
    assert secret.read_text() == "s3cr3t"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_where_a_program_starts_and_that_it_cannot_start_there(confined: EvalEnvironment) -> None:
    confined.run(["mkdir", "sub"])

    assert confined.run(["pwd"], cwd="sub").stdout.decode().strip() == f"{confined.programs.workspace}/sub"
    assert confined.run(["pwd"], cwd="/usr").stdout == b"/usr\n"
    assert exit_code(confined.run(["pwd"], cwd="nowhere")) not in (0, None)
    assert exit_code(confined.run(["no-such-program"])) == 127
    assert exit_code(confined.run(["sh", "-c", "kill -9 $$"])) == 137
    assert exit_code(confined.run(["sleep", "600"], timeout=0.2)) is None


def test_a_call_is_ended_by_its_descriptor(environment: EvalEnvironment) -> None:
    watched, other = os.pipe()
    os.write(other, b"x")
    try:
        assert environment.run(["sleep", "600"], stop=watched).timed_out
    finally:
        os.close(watched)
        os.close(other)


@pytest.mark.skipif(STRONGEST != "jail", reason="this machine has no jail")
def test_programs_and_files_work_in_an_overlay(tmp_path: Path) -> None:
    if why := missing_layers(str(tmp_path)):
        pytest.skip(why)
    with EvalEnvironment.open("fix it", files=FILES, workspace="overlay", confine="jail") as environment:
        environment.files.write("pkg/new.py", b"v = 2\n")
        assert environment.run(["sh", "-c", "cat pkg/new.py app.py; git status --short"]).stdout == b"v = 2\nv1\n?? pkg/\n"
        assert environment.run(["pwd"], cwd="pkg").stdout == b"/workspace/pkg\n"
        assert environment.session.touched_files() == ["pkg/new.py"]
        assert environment.promote().verdict == "promoted"


@pytest.mark.skipif(STRONGEST != "jail", reason="this machine has no jail")
def test_a_jail_has_the_directories_that_a_framework_names() -> None:
    with EvalEnvironment.open(files=FILES, confine="jail", at="/app", beside=("/logs", "/tests")) as environment:
        done = environment.run(["sh", "-c", "pwd; mkdir -p /logs/verifier && echo 1 > /logs/verifier/reward.txt; touch /elsewhere"])

        assert done.stdout == b"/app\n"
        assert exit_code(done) != 0
        assert environment.files.read("/logs/verifier/reward.txt") == b"1\n"
        assert environment.session.touched_files() == []
    for wrong in ("/etc/x", "logs", "/usr"):
        with pytest.raises(InvalidInput, match="cannot be shown"):
            EvalEnvironment.open(files=FILES, confine="jail", beside=(wrong,))


def test_nothing_runs_in_a_lazy_workspace() -> None:
    with World.open(files=FILES, workspace="lazy") as world:
        with pytest.raises(CapabilityMissing, match="lazy"):
            Programs(world.start().for_agent(), FrozenClock(), "off")


# What comes of it ------------------------------------------------------------------------------------------------------------------------


def test_a_promotion_says_what_became_of_it(environment: EvalEnvironment) -> None:
    assert environment.promote().verdict == "nothing"
    environment.files.write("app.py", b"v2\n")
    environment.world.rival.commit({"app.py": "v3\n"})

    conflict = environment.promote()

    assert (conflict.verdict, conflict.sha) == ("conflict", "")
    assert "app.py" in conflict.reason
    environment.session.discard()
    assert environment.promote().verdict == "refused"


def test_a_bench_begins_at_any_commit_of_a_repository_and_leaves_that_alone(tmp_path: Path) -> None:
    with World.open(tmp_path / "origin", files=FILES) as origin:
        first = origin.durable.head()
        origin.durable.commit({"app.py": "v2\n"})
        before = origin.durable.fingerprint()
        with EvalEnvironment.open(repository=origin.durable.path, commit=first, confine="off", seed="x") as environment:
            assert environment.files.read("app.py") == b"v1\n"
            environment.files.write("app.py", b"mine\n")
            assert environment.promote().verdict == "promoted"
            directory = environment.world.path
        assert origin.durable.fingerprint() == before
    assert not directory.exists()


def test_an_environment_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvalidInput, match="its own files"):
        EvalEnvironment.open(repository=".", files=FILES)
    with pytest.raises(InvalidInput, match="no repository"):
        EvalEnvironment.open(commit="0" * 40)
    with pytest.raises(InvalidInput, match="level"):
        EvalEnvironment.open(files=FILES, confine="prison")


def test_the_directory_of_a_sample_is_private_and_goes_with_the_sample(tmp_path: Path) -> None:
    one, two = make_work_dir(tmp_path, "one"), make_work_dir(tmp_path, "two")

    assert stat.S_IMODE(one.path.stat().st_mode) == 0o700
    assert sweep(tmp_path).removed == ()
    one.release()
    assert two.path.is_dir()
    two.release()
    assert [*tmp_path.iterdir()] == []


# Asking for a promotion -------------------------------------------------------------------------------------------------------------------


@given(message=st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"), include_characters="\n"), min_size=1, max_size=200))
def test_whatever_a_message_says_it_is_one_word_of_the_command(message: str) -> None:
    if not message.strip():
        with pytest.raises(InvalidInput):
            promotion_request("sess_x", Path("/s"), message)
        return

    request = promotion_request("sess_x", Path("/a store/it's"), message)

    assert shlex.split(request.command) == ["gittrix", "promote", "sess_x", "--store", "/a store/it's", f"--message={message}"]
    assert shlex.split(request.review) == ["gittrix", "session", "diff", "sess_x", "--store", "/a store/it's"]


@pytest.mark.parametrize("steering", ["\x1b", "\r", "\x00", "\x7f", "\x9b", "\u202e", "\u2066", "\u200f", "\ud800", "\u2028", "\t"])
def test_a_message_that_a_terminal_would_obey_or_hide_is_refused(steering: str) -> None:
    with pytest.raises(InvalidInput):
        promotion_request("sess_x", Path("/s"), f"a{steering}b")


def test_a_message_that_nobody_reads_is_refused() -> None:
    promotion_request("sess_x", Path("/s"), "x" * MOST_CHARACTERS)
    with pytest.raises(InvalidInput, match="the limit"):
        promotion_request("sess_x", Path("/s"), "x" * (MOST_CHARACTERS + 1))


def test_an_agent_asks_by_its_tools_and_durable_does_not_move(environment: EvalEnvironment) -> None:
    tools = SessionTools(environment.session.for_agent(), environment.world.gittrix.store.root)
    before = git("rev-parse", "HEAD", cwd=environment.world.durable.path)

    tools.write_file("app.py", "v2\n")
    request = tools.request_promotion("Two")

    assert not [tool.__name__ for tool in tools.tools if tool.__name__ in ("promote", "run")]
    assert git("rev-parse", "HEAD", cwd=environment.world.durable.path) == before
    [call] = environment.session.history(["tool_call"])
    [result] = environment.session.history(["tool_result"])
    assert (call.data["name"], call.data["args"], result.data["output"]) == ("request_promotion", {"message": "Two"}, request.command)
