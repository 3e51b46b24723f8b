"""A system behind a command line as a whole, and our own command line as one."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.command_system import ID, Program

from pytest_gittrix.clock import propagation
from pytest_gittrix.conformance.base.expect import refused
from pytest_gittrix.conformance.base.outcome import ClauseEnd, NotExpressible, Status
from pytest_gittrix.conformance.command_line import CommandBroken, CommandRefused
from pytest_gittrix.conformance.command_system import UNSUPPORTED, CommandSystem
from pytest_gittrix.conformance.families.eviction import EvictionClauses
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import BASE, VERBS, Capability, check_system

# The system ------------------------------------------------------------------------------------------------------------------------


def test_a_system_does_what_every_system_does_unless_more_is_declared(place: Place) -> None:
    plain = CommandSystem([sys.executable])

    assert check_system(plain).capabilities == BASE
    spoken = {verb for capability, verbs in VERBS.items() if capability not in UNSUPPORTED for verb in verbs}
    verbs = {verb for verbs in VERBS.values() for verb in verbs}
    assert [verb for verb in verbs if callable(getattr(plain.open(place), verb))] == []
    assert {verb for verb in verbs if callable(getattr(CommandSystem.own().open(place), verb))} == spoken


def test_a_command_may_be_one_text_that_is_taken_apart_without_a_shell() -> None:
    system = CommandSystem(f"{sys.executable} -c 'print(1); $HOME'")

    assert system.command == (sys.executable, "-c", "print(1); $HOME")
    assert system.name == f"{sys.executable} -c 'print(1); $HOME'"


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"command": "no-such-program-at-all --flag"}, "no-such-program-at-all"),
        ({"command": ""}, "empty"),
        ({"command": [sys.executable], "clock": "sundial"}, "clock='sundial'"),
        ({"command": [sys.executable], "dialect": "latin"}, "dialect='latin'"),
    ],
)
def test_a_system_that_cannot_be_is_refused_where_it_is_made(arguments: dict[str, Any], fact: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CommandSystem(**arguments)

    assert fact in caught.value.fact


def test_without_libfaketime_no_clock_is_declared_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagation, "FAKETIME_LIBRARIES", ())

    system = CommandSystem.typescript([sys.executable])

    assert Capability.CLOCK not in system.capabilities
    assert "libfaketime is not installed" in system.reasons[Capability.CLOCK]


def test_with_libfaketime_programs_that_know_nothing_of_us_follow_the_clock(
    monkeypatch: pytest.MonkeyPatch, place: Place, tmp_path: Path
) -> None:
    library = tmp_path / "libfaketimeMT.so.1"
    library.touch()
    monkeypatch.setattr(propagation, "FAKETIME_LIBRARIES", (str(library),))

    system = CommandSystem.typescript([sys.executable])

    assert Capability.CLOCK in system.capabilities
    assert not system.reasons
    assert system.environment(place)["LD_PRELOAD"] == str(library)
    assert Path(system.environment(place)["FAKETIME_TIMESTAMP_FILE"]).read_text() == "1893456000.000000\n"


def test_a_program_on_the_real_time_claims_no_clock(place: Place) -> None:
    system = CommandSystem([sys.executable], capabilities=frozenset(Capability), clock="none")

    assert frozenset(Capability) - system.capabilities == {Capability.CLOCK} | UNSUPPORTED
    assert "real time" in system.reasons[Capability.CLOCK]
    assert "PYTEST_GITTRIX_CLOCK" not in system.environment(place)


def test_opening_a_place_again_puts_in_order_what_a_kill_left(program: Program, place: Place) -> None:
    program.answering([], capabilities=BASE | {Capability.CRASH})
    assert program.runs == []

    place.home.mkdir()
    program.answering([], capabilities=BASE)
    assert program.runs == []

    program.answering([], capabilities=BASE | {Capability.CRASH})
    assert program.argv == ["recover", "--json"]


def test_the_typescript_command_line_sweeps_with_each_command(program: Program) -> None:
    old, new = {"id": "sess_old", "state": "expired"}, {"id": "sess_new", "state": "active"}
    engine = program.answering([old, new, {"id": "sess_done", "state": "promoted"}], dialect="typescript")

    assert (engine.sweep(), engine.sweep()) == (["sess_old"], [])
    assert program.argv == ["session", "list", "--json"]


def test_what_the_typescript_command_line_has_no_words_for_is_not_asked_of_it(program: Program) -> None:
    engine = program.answering({}, dialect="typescript")

    with pytest.raises(CapabilityMissing, match="--ttl=2h"):
        engine.start("work", EvictionPolicy(ttl_idle=timedelta(hours=2)))
    with pytest.raises(CapabilityMissing, match="a,b"):
        engine.promote(ID, files=["a,b"])

    assert program.runs == []


# Our own command line --------------------------------------------------------------------------------------------------------------


def test_our_own_command_line_has_every_verb(tmp_path: Path) -> None:
    with Stage.open(
        CommandSystem.own(), tmp_path / "stage", files={"app.py": "".join(f"{n}\n" for n in range(30)), "json.py": "1/0\n"}
    ) as stage:
        session = stage.start("a day's work")
        session.write("app.py", "".join(f"{n}{'!' * (n in (3, 25))}\n" for n in range(30)))
        session.write("-x,y", b"\0\xff")
        session.delete("json.py")
        assert session.touched_files() == ["-x,y", "app.py", "json.py"]
        assert session.files() == ["-x,y", "app.py"]
        assert session.read("-x,y") == b"\0\xff"
        assert session.hunks()["app.py"] == [1, 2]
        assert len(session.commit("half of it")) == 40
        assert session.workspace_path is not None
        assert (session.workspace_path / "-x,y").is_file()
        session.extend(timedelta(hours=9))
        stage.clock.advance(hours=8)
        made = session.promote(files=["-x,y", "json.py"], hunks={"app.py": [2]}, message="all of it")
        tree = stage.judge.tree(made.sha)

        assert sorted(tree) == ["-x,y", "app.py"]
        assert (b"3\n" in tree["app.py"], b"25!\n" in tree["app.py"]) == (True, True)  # type: ignore[operator]
        assert [event["seq"] for event in session.events()] == list(range(len(session.events())))
        assert session.state == "promoted"


def test_our_own_command_line_ends_sessions_in_every_way(tmp_path: Path) -> None:
    with Stage.open(CommandSystem.own(), tmp_path / "stage", files={"app.py": "one\n"}) as stage:
        idle, unwanted, gone = (stage.start(task) for task in ("idle", "unwanted", "gone"))
        unwanted.discard()
        gone.evict()
        stage.clock.advance(hours=5)

        assert stage.gittrix.sweep() == [idle.id]
        assert stage.gittrix.states() == {idle.id: "expired", unwanted.id: "discarded", gone.id: "expired"}
        with pytest.raises(CommandRefused) as caught:
            idle.read("app.py")
        assert caught.value.code == "SESSION_EXPIRED"


def test_a_command_names_the_place_and_where_it_runs(program: Program, place: Place, tmp_path: Path) -> None:
    engine = program.answering([], cwd="{durable}/..", env={"BRANCH": "{branch} of {durable}", "PLAIN": "{other}"}, separator="")

    engine.sessions()
    with pytest.raises(CommandBroken):
        engine.promote(ID, ["a,b.txt", " c "])

    ran = program.runs[0]
    assert (ran["cwd"], ran["env"]["BRANCH"], ran["env"]["PLAIN"]) == (str(place.path), f"main of {place.durable.path}", "{other}")
    assert [word for word in program.argv if word.startswith("--files")] == ["--files=a,b.txt", "--files= c "]


def test_our_own_script_is_not_judged_under_the_others_name(tmp_path: Path) -> None:
    script = tmp_path / "gittrix"
    script.write_text("#!/usr/bin/env python\nfrom pytest_gittrix.cli.main import main\n", encoding="utf-8")
    script.chmod(0o755)

    with pytest.raises(InvalidInput, match=re.escape(f"{script} is the command of this package")):
        CommandSystem.typescript([str(script)])


def test_a_clause_that_an_adapter_cannot_put_to_a_program_is_not_claimed() -> None:
    terse = CommandSystem(["sh", "-c", "exit 1"], capabilities=BASE | {Capability.SHELL}, dialect="typescript")
    suite = EvictionClauses()

    with Stage.open(terse, files=suite.files()) as stage, pytest.raises(ClauseEnd, match="has no flags for an eviction policy") as ended:
        suite.test_evc_07_a_promoted_session_keeps_its_workspace_only_if_asked_to(stage)

    assert ended.value.status is Status.NOT_CLAIMED


def test_what_an_adapter_cannot_ask_is_no_refusal_of_the_program() -> None:
    def lacking() -> None:
        raise NotExpressible("It has no words for it.")

    with pytest.raises(NotExpressible):
        refused("CAPABILITY_MISSING", lacking)
