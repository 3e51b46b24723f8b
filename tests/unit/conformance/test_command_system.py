"""Any program that speaks the documented command line is driven by it: what it is told, and what becomes of every kind of answer.

The programs here are a few lines of Python that answer, or misbehave, as a test says.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.command_system import ID, Program
from support.patience import long_enough

from pytest_gittrix.conformance.command_line import CommandBroken, CommandRefused
from pytest_gittrix.conformance.command_system import CommandSystem
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.protocol import BASE, Capability, Promoted

# What a program may do wrong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        ("print('done')", "not JSON"),
        ('print(\'{"ok": true, "data": []}\\n{}\')', "not JSON"),
        ("pass", "no answer"),
        ("print('[]')", "no object"),
        ("print('{\"data\": []}')", "neither"),
        ('print(\'{"ok": 1, "data": []}\')', "neither"),
        ("print('{\"ok\": true}')", "neither"),
        ("print('{\"ok\": false}'); sys.exit(1)", "neither"),
        ('print(\'{"ok": false, "error": {"code": 7, "message": "no"}}\'); sys.exit(1)', "neither"),
        ('print(\'{"ok": false, "error": {"code": "X"}}\'); sys.exit(1)', "neither"),
        ('print(\'{"ok": false, "error": {"code": "X", "message": "no", "conflictingFiles": "a"}}\'); sys.exit(1)', "neither"),
        ('print(\'{"ok": true, "data": []}\'); sys.exit(1)', "exit status"),
        ('print(\'{"ok": false, "error": {"code": "X", "message": "no"}}\')', "exit status"),
        ('print(\'{"ok": true, "data": []}\', flush=True); os.kill(os.getpid(), 9)', "by itself"),
    ],
)
def test_what_is_no_answer_is_an_error_of_its_own_kind(program: Program, body: str, fact: str) -> None:
    with pytest.raises(CommandBroken) as caught:
        program.engine(body).touched(ID)

    assert caught.value.code == "COMMAND_BROKEN"
    assert fact in caught.value.fact


def test_the_error_shows_the_command_its_end_and_both_streams(program: Program) -> None:
    engine = program.engine("print('on the one'); print('on the other', file=sys.stderr); sys.exit(3)")

    with pytest.raises(CommandBroken) as caught:
        engine.read(ID, "a file")

    message = str(caught.value)
    assert f"{program.script} session read --json -- {ID} 'a file'" in message
    assert "exited with status 3" in message
    assert "on the one" in message
    assert "on the other" in message
    assert (caught.value.ran.status, caught.value.ran.out, caught.value.ran.err) == (3, b"on the one\n", b"on the other\n")


def test_a_signal_is_told_by_its_name(program: Program) -> None:
    with pytest.raises(CommandBroken, match="SIGSEGV"):
        program.engine("os.kill(os.getpid(), 11)").touched(ID)


def test_a_program_that_hangs_is_ended_with_all_it_started(program: Program) -> None:
    hanging = "import time; print('started', flush=True); time.sleep(3600)"

    def run_for(seconds: float) -> CommandBroken:
        script = f"import subprocess; subprocess.run([sys.executable, '-I', '-S', '-c', {hanging!r}])"
        with pytest.raises(CommandBroken, match=f"did not end within {seconds:g} seconds") as caught:
            program.engine(script, timeout=seconds).touched(ID)
        return caught.value

    broken = long_enough(run_for, lambda found: found.ran.out)

    # All of it is there, so nobody held the other end of the pipe any more.
    assert broken.ran.out == b"started\n"
    assert broken.ran.status is None


def test_a_program_that_does_not_read_what_it_is_told_is_none_the_worse(program: Program) -> None:
    engine = program.engine("")
    program.script.write_text('import os; os.close(0); print(\'{"ok": true, "data": {}}\')', encoding="utf-8")

    engine.write(ID, "big.bin", bytes(1_000_000))


def test_a_program_that_cannot_be_started_is_no_answer(program: Program, place: Place) -> None:
    program.script.write_text("not a program", encoding="utf-8")
    program.script.chmod(0o755)
    engine = CommandSystem(str(program.script)).open(place)

    with pytest.raises(CommandBroken, match="could not be started"):
        engine.touched(ID)


@pytest.mark.parametrize(
    ("data", "act", "missing"),
    [
        ({"name": ID}, lambda engine: engine.start("work", EvictionPolicy()), "data.id or data.sessionId"),
        ({"id": 7}, lambda engine: engine.start("work", EvictionPolicy()), "data.id or data.sessionId"),
        ({"contentBase64": None}, lambda engine: engine.read(ID, "app.py"), "data.contentBase64"),
        ({"contentBase64": "?"}, lambda engine: engine.read(ID, "app.py"), "base64"),
        ({"files": []}, lambda engine: engine.touched(ID), "array of texts"),
        (["app.py", 7], lambda engine: engine.touched(ID), "array of texts"),
        ([{"path": "app.py"}], lambda engine: engine.list(ID), "data.type"),
        ([{"id": ID}], lambda engine: engine.sessions(), "data.state"),
        ([], lambda engine: engine.promote(ID), "data.branch"),
        ({"sha": None, "branch": "main"}, lambda engine: engine.promote(ID), "data.sha"),
        ({}, lambda engine: engine.sweep(), "data.evicted"),
    ],
)
def test_an_answer_without_what_was_asked_for_names_what_is_missing(program: Program, data: object, act: Any, missing: str) -> None:
    with pytest.raises(CommandBroken) as caught:
        act(program.answering(data))

    assert missing in caught.value.fact


# Refusals --------------------------------------------------------------------------------------------------------------------------


def test_a_refusal_has_the_programs_own_code_known_or_not(program: Program) -> None:
    with pytest.raises(CommandRefused, match="not on a Monday") as caught:
        program.refusing(code="NOT_TODAY", message="not on a Monday", day=1).touched(ID)

    assert caught.value.code == "NOT_TODAY"
    assert caught.value.details["day"] == 1


def test_a_misused_command_is_to_clauses_what_a_wrong_argument_is(program: Program) -> None:
    with pytest.raises(CommandRefused) as caught:
        program.refusing(code="USAGE", message="no such strategy").promote(ID, strategy="brunch")

    assert caught.value.code == "INVALID_INPUT"
    assert caught.value.details["code"] == "USAGE"


def test_a_conflict_names_its_files(program: Program) -> None:
    with pytest.raises(CommandRefused) as caught:
        program.refusing(code="BASELINE_CONFLICT", message="drift", conflictingFiles=["app.py"]).promote(ID)

    assert (caught.value.code, caught.value.conflicting_files) == ("BASELINE_CONFLICT", ["app.py"])


def test_a_conflict_that_names_no_file_says_so(program: Program) -> None:
    with pytest.raises(CommandRefused, match="conflictingFiles") as caught:
        program.refusing(code="BASELINE_CONFLICT", message="drift").promote(ID)

    assert caught.value.conflicting_files == []


# What a program is told ------------------------------------------------------------------------------------------------------------


def test_what_others_chose_is_never_taken_for_an_option(program: Program, place: Place) -> None:
    engine = program.answering({"id": ID, "sha": "1" * 40, "branch": "main"}, capabilities=frozenset(Capability))

    engine.start("--help", EvictionPolicy())
    assert program.argv == ["session", "start", "--task=--help", f"--durable={place.durable.path}", "--branch=main", "--json"]
    engine.write("-j", "--store", b"")
    assert program.argv == ["session", "write", "--json", "--", "-j", "--store"]
    engine.commit(ID, "--json")
    assert program.argv == ["session", "commit", "--message=--json", "--json", "--", ID]
    engine.promote(ID, files=["-f", "$(reboot)"], message="-s pr", hunks={"-x:y": [1, 3]})
    assert program.argv[1:-3] == ["--strategy=commit", "--files=-f,$(reboot)", "--hunks=-x:y:1,3", "--message=-s pr"]


@pytest.mark.parametrize("files", [["a,b", "c"], [" a"], ["a\n"], [""]])
def test_paths_that_a_list_would_change_are_given_by_place(program: Program, files: list[str]) -> None:
    program.answering({"sha": "1" * 40, "branch": "main"}).promote(ID, files=files)

    assert program.argv == ["promote", "--strategy=commit", "--json", "--", ID, *files]


def test_contents_go_through_standard_input(program: Program) -> None:
    program.answering({}).write(ID, "app.py", b"--json\n")

    assert program.runs[-1]["stdin"] == "--json\n"


def test_a_policy_is_told_where_it_is_not_the_usual_one(program: Program) -> None:
    engine = program.answering({"id": ID})

    engine.start("work", EvictionPolicy(ttl_idle=None, ttl_absolute=timedelta(hours=36), until_promote=False, manual=True))

    assert program.argv[5:-1] == ["--ttl=none", "--ttl-absolute=1d12h", "--manual", "--keep-after-promote"]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 300_000])
def test_what_no_command_line_can_carry_is_refused_without_a_run(program: Program, text: str) -> None:
    with pytest.raises(InvalidInput, match="No command line can carry this"):
        program.answering({}).write(ID, text, b"")

    assert program.runs == []


def test_bytes_that_are_no_text_go_there_and_back(program: Program) -> None:
    engine = program.answering(["caf\udce9"])

    assert engine.touched("caf\udce9") == ["caf\udce9"]
    assert program.argv[-1] == "caf\udce9"


def test_commands_run_in_durable_and_see_the_instant_of_the_place(program: Program, place: Place) -> None:
    engine = program.answering([], env={"EXTRA": "1"})
    engine.touched(ID)
    place.clock.advance(hours=1)
    engine.touched(ID)

    first, second = program.runs
    assert first["cwd"] == str(place.durable.path)
    assert (first["env"]["EXTRA"], first["env"]["GITTRIX_HOME"]) == ("1", str(place.home))
    assert Path(first["env"]["PYTEST_GITTRIX_CLOCK"]).read_text() == "2030-01-01T01:00:00.000000Z\n"
    assert int(second["env"]["GIT_COMMITTER_DATE"].split()[0]) - int(first["env"]["GIT_COMMITTER_DATE"].split()[0]) == 3600


def test_the_home_can_be_told_by_another_variable(place: Place) -> None:
    env = CommandSystem([sys.executable], home_variable="HOME").environment(place)

    assert env["HOME"] == str(place.home)
    assert "GITTRIX_HOME" not in env


# Answers ---------------------------------------------------------------------------------------------------------------------------


def test_bytes_come_in_base64(program: Program) -> None:
    contents = bytes(range(256))

    assert program.answering({"contentBase64": b64encode(contents).decode()}).read(ID, "raw.bin") == contents


def test_directories_are_no_files(program: Program) -> None:
    entries = [{"path": "lib", "type": "dir"}, {"path": "lib/a", "type": "file"}, {"path": "link", "type": "symlink"}]

    assert program.answering(entries).list(ID) == ["lib/a", "link"]


@pytest.mark.parametrize(("data", "runs"), [({"id": ID, "workspacePath": "/there"}, 1), ({"sessionId": ID}, 2)])
def test_where_a_workspace_is_is_asked_once(program: Program, data: dict[str, str], runs: int) -> None:
    engine = program.answering(data, capabilities=BASE | {Capability.SHELL})
    engine.start("work", EvictionPolicy())
    program.answering({"workspacePath": "/there"})

    assert (engine.workspace(ID), engine.workspace(ID)) == (Path("/there"), Path("/there"))
    assert len(program.runs) == runs


@pytest.mark.parametrize(
    ("data", "promoted"),
    [
        ({"sha": "1" * 40, "branch": "main"}, Promoted("1" * 40)),
        ({"sha": "1" * 40, "branch": "side"}, Promoted("1" * 40, "side")),
        ({"sha": None, "branch": "main", "patch": "diff"}, Promoted("", None, "diff")),
    ],
)
def test_a_promotion_tells_where_it_landed(program: Program, data: object, promoted: Promoted) -> None:
    assert program.answering(data).promote(ID) == promoted
