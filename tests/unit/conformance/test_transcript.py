"""What was done on a stage becomes a shell script that does it again, with git and the program's own commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from pytest_gittrix.conformance.base import shell_lines
from pytest_gittrix.conformance.base.clauses import describe_end
from pytest_gittrix.conformance.base.outcome import SCRIPT, SHOWN, STATUS, properties_of
from pytest_gittrix.conformance.base.script_end import Accusation
from pytest_gittrix.conformance.base.shell_lines import MARK, run_script, shows_again
from pytest_gittrix.conformance.base.transcript import printf_of, shell_script
from pytest_gittrix.conformance.command_line import CommandRefused
from pytest_gittrix.conformance.command_system import CommandSystem
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.testing.repos.history import Executable, Symlink
from pytest_gittrix.testing.repos.journal import Journal, VerbCall
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem

PROGRAM = """\
import json, os, sys
what = sys.argv[1:3]
if what == ["session", "start"]:
    home = os.environ["GITTRIX_HOME"]
    os.makedirs(home + "/w", exist_ok=True)
    print(json.dumps({"ok": True, "data": {"id": f"made-{os.getpid()}", "workspacePath": home + "/w"}}))
else:
    print(json.dumps({"ok": True, "data": sys.argv[1:]}), file=open("said", "a"))
    print(json.dumps({"ok": True, "data": sys.stdin.read()}))
"""


def ran(script: str, directory: Path) -> Path:
    """Run a script; gives the directory that it made."""
    done = subprocess.run(
        ["sh", "-c", script], cwd=directory, env=os.environ | {"TMPDIR": str(directory)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return Path(done.stdout.partition("everything is in ")[2].splitlines()[0])


@pytest.mark.parametrize("data", [b"", b"100% 'quoted' \\n\n", bytes(range(256))])
def test_bytes_are_printed_as_they_are(data: bytes) -> None:
    assert subprocess.run(["sh", "-c", printf_of(data)], capture_output=True, check=True).stdout == data


def test_the_script_repeats_what_people_and_the_program_did(tmp_path: Path) -> None:
    system = CommandSystem([sys.executable, "-c", PROGRAM], name="fake")
    with Stage.open(system, files={"a.txt": "a\n", "run.sh": Executable("x\n")}) as stage:
        session = stage.start("it's a task")
        session.write("b c.txt", "bytes\n")
        stage.durable.commit({"a.txt": "owner\n", "link": Symlink("a.txt")})
        stage.rival.commit({"deep/b.txt": "rival\n"})
        stage.rival.rename("run.sh", "go.sh")
        stage.durable.stage({"staged.txt": "staged\n"})
        stage.durable.git("tag", "v1")
        expected = stage.judge.tree(stage.judge.head())
        script = shell_script(stage.journal)

    root = ran(script, tmp_path)
    git = ["git", "-C", str(root / "durable")]
    files = subprocess.run([*git, "ls-tree", "-r", "--name-only", "main"], capture_output=True, text=True, check=True).stdout.split()
    staged = subprocess.run([*git, "diff", "--cached", "--name-only", "v1"], capture_output=True, text=True, check=True).stdout

    assert sorted(files) == sorted(expected)
    assert "staged.txt" in staged
    assert "made-" in (root / "durable" / "said").read_text(encoding="utf-8")
    assert f"program() {{ {shlex.quote(system.command[0])}" in script
    assert "COMMIT1=" not in script


REFUSES: Final = """\
import json, os, sys
if sys.argv[1:3] == ["session", "start"]:
    home = os.environ["HOME"]
    print(json.dumps({"ok": True, "data": {"id": f"made-{os.getpid()}", "workspacePath": home}}))
elif "promote" in sys.argv:
    print(json.dumps({"ok": False, "error": {"code": "BASELINE_CONFLICT", "message": "no", "conflictingFiles": ["a b.txt"]}}))
    sys.exit(1)
else:
    print(json.dumps({"ok": True, "data": [sys.stdin.read(), os.environ["HOME"]]}))
"""


def test_a_script_says_whether_the_system_did_it_again(tmp_path: Path) -> None:
    system = CommandSystem([sys.executable, "-c", REFUSES], name="fake", home_variable="HOME")
    with Stage.open(system, files={"a.txt": "a\n"}) as stage:
        session = stage.start()
        session.touched_files()
        stage.rival.commit({"a.txt": "rival\n"})
        with pytest.raises(CommandRefused) as refusal:
            session.promote()
        accused = Accusation("it is refused", lost=True, of_call=True)
        script = shell_script(stage.journal, accused)

        assert "then echo 'LOST: it is refused'\n" in script
        assert shows_again(script, stage.journal) is True
        assert shows_again(script.replace('"conflictingFiles":["ab.txt"]', '"conflictingFiles":["other"]'), stage.journal) is False
        assert shows_again(script.replace("git init", "git no-such-command"), stage.journal) is False
        assert shows_again(shell_script(stage.journal), stage.journal) is None
        assert refusal.value.conflicting_files == ["a b.txt"]

        for name in ("scene", "beyond"):
            setattr(stage.journal, name, "Another process was killed.")
            assert shows_again(shell_script(stage.journal, accused), stage.journal) is None
            setattr(stage.journal, name, "")


def test_a_script_compares_what_the_clause_looked_at_last() -> None:
    system = CommandSystem([sys.executable, "-c", REFUSES], name="fake", home_variable="HOME")
    with Stage.open(system, files={"a.txt": "a\n"}) as stage:
        session = stage.start()
        assert stage.judge.tree(stage.judge.head())
        stage.note_end()
        durable = shell_script(stage.journal, Accusation("durable is not as it was"))
        session.touched_files()
        answer = shell_script(stage.journal, Accusation("it names other files"))

        assert "WRONG: durable is not as it was" in durable
        assert "WRONG: it names other files" in answer
        assert [shows_again(one, stage.journal) for one in (durable, answer)] == [True, True]
        assert shows_again(durable.replace("printf 'a\\n' > a.txt", "printf 'b\\n' > a.txt"), stage.journal) is False


def test_a_script_says_the_promise_where_an_assertion_says_nothing_to_a_reader() -> None:
    system = CommandSystem([sys.executable, "-c", REFUSES], name="fake", home_variable="HOME")
    with Stage.open(system, files={"a.txt": "a\n"}) as stage:
        stage.start().touched_files()
        said = dict(properties_of(AssertionError("assert False"), stage.journal, protects_work=False, promise="it names all files"))

    assert "then echo 'WRONG: This is not so: it names all files'\n" in said[SCRIPT]


def test_the_home_of_the_system_is_not_that_of_the_people(tmp_path: Path) -> None:
    system = CommandSystem([sys.executable, "-c", REFUSES], name="fake", home_variable="HOME")
    with Stage.open(system, files={"a.txt": "a\n"}) as stage:
        stage.start()
        stage.rival.commit({"a.txt": "rival\n"})
        script = shell_script(stage.journal)

    root = ran(script, tmp_path)

    author = ["git", "-C", str(root / "durable"), "log", "-1", "--format=%an", "main"]
    assert subprocess.run(author, capture_output=True, text=True, check=True).stdout == "Human\n"
    assert 'program() { HOME="$ROOT"/gittrix ' in script


def test_a_clock_that_was_moved_is_beyond_a_script() -> None:
    with Stage.open(CommandSystem([sys.executable, "-c", PROGRAM], name="fake"), files={}) as stage:
        stage.start()
        stage.clock.advance(hours=1)
        stage.note_end()

        assert "# The clock of the place was moved meanwhile.\n" in shell_script(stage.journal)
        assert "WRONG: " not in shell_script(stage.journal, Accusation("it is late", of_call=True))


def test_a_script_that_does_not_end_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_lines, "_LONGEST_SCRIPT", 0.01)
    with Stage.open(CommandSystem([sys.executable, "-c", PROGRAM], name="fake"), files={}) as stage:
        stage.start()

        assert shows_again("sleep 60\nthen echo 'WRONG: it'", stage.journal) is None


def test_a_clause_has_its_report_whatever_becomes_of_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> bool:
        raise FileNotFoundError("sh")

    monkeypatch.setattr("pytest_gittrix.conformance.base.clauses.shows_again", fails)
    with Stage.open(GitTrixSystem("lazy"), files={}) as stage:
        item = SimpleNamespace(funcargs={"stage": stage}, function=None, user_properties=[])

        describe_end(item, AssertionError("what the clause said"))

        assert dict(item.user_properties)[STATUS] == "broken"
        assert SHOWN not in dict(item.user_properties)


def test_a_script_is_run_as_it_is_in_a_place_of_any_name(tmp_path: Path) -> None:
    place = tmp_path / "it's a $(touch pwned) place"
    place.mkdir()
    journal = Journal(opened_with={"files": {"a.txt": "mktemp -d\n"}})

    ran = run_script(f'{shell_script(journal)}cat a.txt; cd "$ROOT/.."; pwd -P', place, hermetic_env(tmp_path) | {MARK: "a mark"})

    assert ran.output.splitlines()[-2:] == ["mktemp -d", str(place.resolve())]
    assert not [*tmp_path.rglob("pwned")]


def test_a_script_that_gets_no_directory_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", shell_script(Journal())], env=os.environ | {"TMPDIR": str(tmp_path / "none")}, capture_output=True, check=False
    )

    assert (done.returncode, done.stdout) == (3, b"")


def test_a_script_of_verbs_is_not_run() -> None:
    with Stage.open(GitTrixSystem("lazy"), files={"a.txt": "a\n"}) as stage:
        stage.start()

        assert shows_again(shell_script(stage.journal), stage.journal) is None


def test_a_system_without_commands_is_shown_by_its_verbs(tmp_path: Path) -> None:
    with Stage.open(GitTrixSystem("lazy"), files={"a.txt": "a\n"}) as stage:
        session = stage.start()
        session.write("a.txt", "agent\n")
        with pytest.raises(Exception, match=r"missing\.txt"):
            session.read("missing.txt")
        refusals, script = stage.journal.refusals(), shell_script(stage.journal)

    assert refusals == ["read: PATH_NOT_FOUND"]
    assert "# the system: write(SESSION1, 'a.txt', b'agent\\n') returned" in script
    assert ran(script, tmp_path).is_dir()


def test_what_a_system_answers_cannot_run_in_the_script(tmp_path: Path) -> None:
    error = type("Refused", (Exception,), {"code": "X\ntouch PWNED\n#\r\x1b]52;"})()
    journal = Journal([VerbCall("read", "'a',\n'b'", error=error)])

    script = shell_script(journal)

    assert "# the system: read('a', 'b') raised Refused X touch PWNED # \\x1b]52;\n" in script
    assert not [*ran(script, tmp_path).rglob("PWNED")]


def test_the_values_of_variables_that_may_be_secret_are_asked_for(tmp_path: Path) -> None:
    system = CommandSystem([sys.executable, "-c", PROGRAM], env={"API_TOKEN": "hunter2", "PLACE": "{home}/x"})
    with Stage.open(system, files={}) as stage:
        stage.start("")
        script = shell_script(stage.journal)

    assert "hunter2" not in script
    assert 'API_TOKEN="${API_TOKEN:?}" ' in script
    assert 'PLACE="$ROOT"/' in script
    done = subprocess.run(["sh", "-c", script], env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert "API_TOKEN" in done.stderr
    assert done.returncode != 0


def test_names_and_messages_are_kept_as_they_are_and_the_readers_configuration_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = tmp_path / "config" / "git" / "config"
    configuration.parent.mkdir(parents=True)
    configuration.write_text("[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = false\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    names = ["a\n", ":x", "*", "\n\x1b\n\n", "-n"]
    with Stage.open(GitTrixSystem("lazy"), files={"other": "1"}) as stage:
        stage.durable.dirty({"other": "2"})
        stage.durable.commit(dict.fromkeys(names, ""), "a\n\nb; COMMIT9=c; d\n")
        script = shell_script(stage.journal)

    git = ["git", "-C", str(ran(script, tmp_path) / "durable")]
    changed = subprocess.run([*git, "diff", "-z", "--name-only", "HEAD^", "HEAD"], capture_output=True, text=True, check=True).stdout
    message = subprocess.run([*git, "show", "-s", "--format=%B", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert sorted(changed.split("\0")[:-1]) == sorted(names)
    assert message.strip() == "a\n\nb; COMMIT9=c; d"
    assert configuration.read_text().count("\n") == 4
