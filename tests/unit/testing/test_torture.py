"""``gittrix torture``: programs of anybody's, in any language, struck at each call and judged by their owner's own command."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import Terminal

from pytest_gittrix.cli import torture as command
from pytest_gittrix.cli.main import main
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.testing.faults import torture as harness
from pytest_gittrix.testing.faults.supervisor import supervise, supported
from pytest_gittrix.testing.faults.torture import torture

IN_PLACE = "echo new > notes.txt\n"
RENAMED = "echo new > notes.tmp && mv notes.tmp notes.txt\n"
LONG = 60.0
"""Real seconds after which a program counts as stuck."""
OLD_OR_NEW = "grep -qx -e old -e new notes.txt"

needs_supervision = pytest.mark.skipif(supported() is not None, reason=str(supported()))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file and two programs that save it, as the current directory."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "notes.txt").write_text("old\n")
    (directory / "save.sh").write_text(IN_PLACE)
    (directory / "safe.sh").write_text(RENAMED)
    monkeypatch.chdir(directory)
    for name, value in {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": str(tmp_path / "no-gitconfig")}.items():
        monkeypatch.setenv(name, value)
    return directory


Said = pytest.CaptureFixture[str]


def gittrix(line: str, said: Said) -> tuple[int, str, str]:
    """Run a command in this process: exit status, standard output, standard error."""
    said.readouterr()
    status = main(shlex.split(line))
    out, err = said.readouterr()
    return status, out, err


def data(line: str, said: Said) -> Any:
    """The data of a command that answers."""
    status, out, err = gittrix(f"torture --json {line}", said)
    envelope = json.loads(out)
    assert (envelope["ok"], err) == (True, "")
    assert status == (1 if envelope["data"]["failures"] else 0)
    return envelope["data"]


@needs_supervision
def test_a_save_in_place_is_found_out_with_lines_to_see_it_again(project: Path, capsys: Said) -> None:
    status, out, err = gittrix(f"torture --oracle {shlex.quote(OLD_OR_NEW)} --kinds kill,torn -- sh save.sh", capsys)

    assert (status, err) == (1, "")
    first, failure, replay, *_ = out.splitlines()
    assert first == "points tried 5, survived 2, failed 3 (2 calls that change something)"
    assert failure == "  2 kill at write notes.txt (4 bytes): the oracle exited with 1"
    assert replay.strip() == f"replay: gittrix torture --oracle {shlex.quote(OLD_OR_NEW)} --points 2 --kinds kill -- sh save.sh"


@needs_supervision
def test_each_replay_line_plays_that_failure_again(project: Path, capsys: Said) -> None:
    found = data(f"--oracle {shlex.quote(OLD_OR_NEW)} --kinds torn,ENOSPC -- sh save.sh", capsys)

    assert len(found["failures"]) == 3
    for failure in found["failures"]:
        again = data(failure["replay"].removeprefix("gittrix torture "), capsys)
        assert again["tried"] == 1
        assert [one["kind"] for one in again["failures"]] == [failure["kind"]]


@needs_supervision
def test_a_save_by_renaming_survives_every_default_fault(project: Path, capsys: Said) -> None:
    status, out, _ = gittrix(f"torture --oracle {shlex.quote(OLD_OR_NEW)} 'sh safe.sh && true'", capsys)

    assert (status, out) == (0, "points tried 15, survived 15, failed 0 (4 calls that change something)\n")


@needs_supervision
def test_git_update_ref_never_lies_but_leaves_its_locks_behind(project: Path, capsys: Said) -> None:
    setup = "git init -q -b main && git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m one"
    moved = "git update-ref refs/heads/other main"

    whole = data(f"--setup {shlex.quote(setup)} --kinds kill --oracle 'git rev-parse -q --verify main' -- {moved}", capsys)
    blocked = data(f"--setup {shlex.quote(setup)} --kinds kill --oracle {shlex.quote(moved)} -- {moved}", capsys)

    assert whole["failures"] == []
    assert blocked["failures"]
    assert "cannot lock ref" in blocked["failures"][0]["problem"]


@needs_supervision
def test_the_directory_itself_is_never_written_to(project: Path, capsys: Said) -> None:
    before = {path.name: path.read_bytes() for path in project.iterdir()}

    gittrix("torture --setup 'echo made > setup.txt' --oracle 'rm -f notes.txt; true' -- sh save.sh", capsys)

    assert {path.name: path.read_bytes() for path in project.iterdir()} == before


@needs_supervision
def test_each_run_starts_from_the_state_that_the_setup_made(project: Path, capsys: Said) -> None:
    once = "--setup 'mkdir d && echo 1 > d/count && chmod 500 .' --oracle 'test $(wc -l < d/count) -le 2' -- sh -c 'echo 2 >> d/count'"

    assert data(once, capsys)["survived"] == data(once, capsys)["tried"] > 0


@needs_supervision
def test_the_oracle_is_told_what_the_command_said_and_how_it_ended(project: Path, capsys: Said) -> None:
    oracle = 'echo "$GITTRIX_EXIT $GITTRIX_POINT $GITTRIX_KIND $(cat)" >> "$LOG"'
    os.environ["LOG"] = str(project.parent / "log")
    try:
        data(f"--oracle {shlex.quote(oracle)} --kinds kill,ENOSPC -- sh -c 'echo begun; echo x > a || exit 9; echo done'", capsys)
    finally:
        del os.environ["LOG"]

    lines = (project.parent / "log").read_text().split("\n")
    assert lines[0:2] == ["0   begun", "done"]
    assert "killed 2 kill begun" in lines
    assert "9 1 ENOSPC begun" in lines


@needs_supervision
def test_variables_that_lead_git_elsewhere_are_dropped(project: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(project.parent / "elsewhere"))
    status, out, err = gittrix("torture --kinds kill --limit 1 --oracle 'test -z \"$GIT_DIR\"' -- mkdir a", capsys)

    assert (status, err) == (0, "")
    assert out.startswith("points tried 1, survived 1")


@needs_supervision
def test_a_limit_and_a_directory_can_be_given(project: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent)
    found = data("--within project --kinds kill --limit 2 --oracle 'test -d project && exit 1; true' -- mkdir a b c d", capsys)

    assert (found["calls"], found["tried"]) == (4, 2)
    assert found["failures"] == []


@needs_supervision
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--oracle true --within nowhere -- sh save.sh", "nowhere is no directory"),
        ("--oracle true -- sh -c 'echo why >&2; exit 3'", "The program exited with 3 without any fault"),
        ("--oracle true -- no-such-program", "The program exited with 127"),
        ("--oracle 'echo no >&2; false' -- sh save.sh", "after a run without any fault: the oracle exited with 1: no"),
        ("--oracle true -- true", "no call changes a file"),
        ("--oracle true --points 99 -- sh save.sh", "There is no point 99"),
        ("--oracle true --setup 'exit 4' -- sh save.sh", "The setup exited with 4"),
        ("--oracle true --timeout 0.2 -- sleep 600", "ran out of time"),
    ],
)
def test_what_cannot_be_tried_is_an_input_error_with_status_2(project: Path, capsys: Said, line: str, message: str) -> None:
    status, out, err = gittrix(f"torture {line}", capsys)
    assert (status, out) == (2, "")
    assert message in err
    status, out, err = gittrix(f"torture --json {line}", capsys)
    assert (status, json.loads(out)["error"]["code"], err) == (2, "INVALID_INPUT", "")


@needs_supervision
def test_an_oracle_that_does_not_end_in_its_time_is_an_input_error(project: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    # The command has as long as the oracle; on a busy machine it would need longer.
    monkeypatch.setattr(harness, "supervise", lambda argv, timeout, **options: supervise(argv, timeout=LONG, **options))

    status, _, err = gittrix("torture --oracle 'sleep 600' --timeout 0.2 -- sh save.sh", capsys)

    assert status == 2
    assert "the oracle did not end within 0.2 s" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-- sh save.sh", "--oracle"),
        ("--oracle true", "COMMAND"),
        ("--oracle true --kinds explode -- x", "'explode' is no kind of fault"),
        ("--oracle true --kinds '' -- x", "is no kind of fault"),
        ("--oracle true --points 0 -- x", "'0' names no points"),
        ("--oracle true --points 9-3 -- x", "'9-3' names no points"),
        ("--oracle true --limit 0 -- x", "'0' is not a whole number"),
        ("--oracle true --timeout nan -- x", "'nan' is no time"),
        ("--oracle true --timeout -1 -- x", "--timeout"),
    ],
)
def test_what_cannot_be_read_is_misuse(project: Path, capsys: Said, line: str, message: str) -> None:
    status, out, err = gittrix(f"torture {line}", capsys)

    assert (status, out) == (2, "")
    assert "\n  usage: gittrix torture [FLAGS] --oracle CHECK" in err
    assert message in err


def test_a_machine_that_cannot_says_why(project: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "supported", lambda: "no seccomp here")

    status, _, err = gittrix("torture --oracle true -- sh save.sh", capsys)
    assert (status, err.splitlines()[0]) == (2, "gittrix: no seccomp here")
    status, out, _ = gittrix("torture --json --oracle true -- sh save.sh", capsys)
    assert (status, json.loads(out)["error"]["code"]) == (2, "CAPABILITY_MISSING")


def test_a_linked_work_tree_is_refused_because_its_repository_would_be_changed(project: Path) -> None:
    (project / ".git").write_text("gitdir: /somewhere/else\n")

    with pytest.raises(InvalidInput, match="linked work tree"):
        torture(["true"], "true", replay=str)  # type: ignore[arg-type]


def test_a_directory_too_large_to_be_copied_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "LARGEST", 10)

    with pytest.raises(InvalidInput, match="holds more than"):
        torture(["true"], "true", replay=str)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command_words", "arguments", "message"),
    [([], {}, "no command"), (["true"], {"timeout": 0}, "timeout"), (["true"], {"kinds": ["explode"]}, "no kind")],
)
def test_arguments_that_mean_nothing_are_refused(command_words: list[str], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidInput, CapabilityMissing), match=message):
        torture(command_words, "true", replay=str, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "numbers"), [("3", [3]), ("3,7", [3, 7]), ("7-9,3, 8", [3, 7, 8, 9])])
def test_points_are_numbers_and_stretches_of_numbers(text: str, numbers: list[int]) -> None:
    assert command.points(text) == numbers


@needs_supervision
def test_a_person_at_a_terminal_sees_how_far_it_is(project: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")

    assert main(["torture", "--oracle", OLD_OR_NEW, "--kinds", "kill", "--", "sh", "save.sh"]) == 1
    assert "Striking, 1 not survived" in terminal.shown
    assert capsys.readouterr().out.startswith("points tried 2, survived 1")


@needs_supervision
def test_it_works_as_a_program_of_its_own(project: Path) -> None:
    line = [sys.executable, "-m", "pytest_gittrix.cli", "torture", "--oracle", OLD_OR_NEW, "--kinds", "kill", "sh", "save.sh"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (1, "")
    assert "--points 2 --kinds kill -- sh save.sh" in done.stdout
