"""Samples as test nodes: what they are called, what fails and how it reads, what is run and what is not run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.eval_tests import EvalTests
from support.evals import SOLVES, case, write

OFF = 'confine="off"'
CHECK = '[check]\nfunction = "check.py:check"\n'


def nodes(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


# What they are called --------------------------------------------------------------------------------------------------------------


def test_each_case_is_a_node_named_after_its_id_and_collecting_runs_nothing(evals: EvalTests) -> None:
    evals.suite("fix-add", "b.2")
    evals.tests()

    assert nodes(evals.run("--collect-only", "-q")) == ["test_case[b.2]", "test_case[fix-add]"]
    assert evals.runs() == []


def test_epochs_are_in_the_names_where_there_are_several(evals: EvalTests) -> None:
    evals.suite("a", "b")
    evals.tests(more=f"{OFF}, epochs=2")

    assert nodes(evals.run("--collect-only", "-q")) == ["test_case[a#0]", "test_case[b#0]", "test_case[a#1]", "test_case[b#1]"]
    assert nodes(evals.run("--collect-only", "-q", "--gittrix-eval-epochs=1")) == ["test_case[a]", "test_case[b]"]


def test_only_some_cases_are_chosen(evals: EvalTests) -> None:
    evals.suite("fix-a", "fix-b", "add")
    evals.tests(more=f"{OFF}, only=['*-b', 'a*']")

    assert nodes(evals.run("--collect-only", "-q")) == ["test_case[add]", "test_case[fix-b]"]


def test_shards_are_apart_and_together_the_whole(evals: EvalTests) -> None:
    evals.suite(*"abghij")
    evals.tests()

    parts = [nodes(evals.run("--collect-only", "-q", f"--gittrix-eval-shard={number}/2")) for number in (1, 2)]

    assert sorted(parts[0] + parts[1]) == [f"test_case[{id_}]" for id_ in "abghij"]
    assert parts[0]
    assert parts[1]


def test_tests_inside_a_suite_are_for_what_agents_make(evals: EvalTests) -> None:
    place = evals.suite("a")
    case(place, "b", files={"app.py": "VERSION = 1\n", "test_wrong.py": "def test_wrong(): assert False\n"})
    evals.tests()

    evals.run().assert_outcomes(passed=2)


# What fails ------------------------------------------------------------------------------------------------------------------------


def test_a_sample_that_did_not_pass_fails_with_all_that_helps(evals: EvalTests) -> None:
    check = '[check]\ncommand = ["sh", "-c", "echo seen by the check; exit 7"]\n'
    evals.suite("one", more=check)
    evals.tests(agent="sh -c 'echo y > new.py'", more=f"{OFF}, epochs=2")

    result = evals.run("test_it.py::test_case[one#1]")

    result.assert_outcomes(failed=1)
    key = evals.store().sample("one", 1).key
    shown = [
        "one #1 ended in fail: command: status 7",
        "  check command failed: status 7",
        "check command, stdout:",
        "  seen by the check",
        f"patch:  runs/suite/patches/{key}.diff (new.py)",
        "show:   gittrix eval show runs/suite one --epoch 1",
        "replay: gittrix eval replay runs/suite one --epoch 1",
    ]
    result.stdout.fnmatch_lines(shown, consecutive=True)
    assert (evals.root / "runs" / "suite" / "patches" / f"{key}.diff").read_bytes().startswith(b"diff --git a/new.py")


@pytest.mark.parametrize(
    ("more", "agent", "said"),
    [
        ("", "nop", "one #0 ended in fail: function: AssertionError: the version is not 2"),
        (f'[drift]\nfiles = "drift"\n{CHECK}', SOLVES, "one #0 ended in conflict: durable changed app.py"),
        (
            '[review]\ndeny = ["app.py"]\n[check]\nfunction = "check.py:check"\n',
            SOLVES,
            "one #0 ended in refused: app.py may not be touched",
        ),
        ("", "sh -c 'echo too hard; exit 3'", "one #0 ended in agent_error: the agent ended with status 3"),
        (f'[limits]\ntimeout = "200ms"\n{CHECK}', "sleep 60", "one #0 ended in timeout: *"),
    ],
    ids=["fail", "conflict", "refused", "agent_error", "timeout"],
)
def test_each_outcome_fails_by_its_name(more: str, agent: str, said: str, evals: EvalTests) -> None:
    evals.suite("one", more=more, extra={"drift/app.py": "VERSION = 3\n"})
    evals.tests(agent)

    result = evals.run()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])


def test_what_an_agent_printed_before_it_failed_is_shown(evals: EvalTests) -> None:
    evals.suite("one")
    evals.tests("sh -c 'echo too hard >&2; exit 3'")

    evals.run().stdout.fnmatch_lines(["agent, stderr:", "  too hard"], consecutive=True)


def test_what_could_not_be_run_is_an_error_and_is_run_again_when_asked(evals: EvalTests) -> None:
    flag = evals.root / "works"
    check = f'import os\nif not os.path.exists({str(flag)!r}):\n    raise OSError("the check is out of order")\ndef check(result): pass\n'
    evals.suite("one", extra={"check.py": check})
    evals.tests()

    first = evals.run()
    flag.touch()
    second = evals.run("--gittrix-eval-resume")

    first.assert_outcomes(errors=1)
    first.stdout.fnmatch_lines(["*one #0 ended in infra_error: *the check is out of order*", "*run again with --gittrix-eval-resume*"])
    second.assert_outcomes(passed=1)
    assert evals.outcomes() == {"one #0": "pass"}


def test_what_could_not_be_run_once_is_tried_again_at_once(evals: EvalTests) -> None:
    flag = evals.root / "tried"
    check = f"""
import pathlib
flag = pathlib.Path({str(flag)!r})
if not flag.exists():
    flag.touch()
    raise OSError
def check(result): pass
"""
    evals.suite("one", extra={"check.py": check})
    evals.tests()

    evals.run().assert_outcomes(passed=1)
    assert flag.exists()


# Tests that judge for themselves ---------------------------------------------------------------------------------------------------


def test_a_test_that_looks_at_the_outcome_judges_for_itself(evals: EvalTests) -> None:
    evals.suite("one")
    evals.source("""
        import pytest
        pytestmark = pytest.mark.gittrix_eval(suite="suite", agent="nop", confine="off")

        def test_outcome(gittrix_eval):
            assert gittrix_eval.outcome == "fail"

        class TestMore:
            def test_record(self, gittrix_eval):
                assert gittrix_eval.record.reason.endswith("the version is not 2")

            def test_passed(self, gittrix_eval):
                assert gittrix_eval.passed
    """)

    result = evals.run()

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*Captured gittrix eval call*", "one #0 ended in fail: *"])


def test_a_test_that_looks_at_other_things_only_fails_all_the_same(evals: EvalTests) -> None:
    evals.suite("one")
    evals.source("""
        import pytest

        @pytest.mark.gittrix_eval(suite="suite", agent="nop", confine="off")
        def test_patch(gittrix_eval):
            assert (gittrix_eval.id, gittrix_eval.epoch, gittrix_eval.patch) == ("one", 0, b"")
            assert gittrix_eval.events[0]["kind"] == "session.created"
            assert gittrix_eval.transcript[0]["do"] == "begin"
    """)

    evals.run().assert_outcomes(failed=1)


def test_the_fixture_asks_for_the_marker(evals: EvalTests) -> None:
    evals.source("def test_it(gittrix_eval): pass")

    result = evals.run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gittrix_eval is for tests with @pytest.mark.gittrix_eval(suite=..., agent=...)*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('suite="suite"', "agent is missing.*"),
        ('agent="nop"', "suite is missing.*"),
        ('suite="suite", agent="nop", epoch=2', "There is no argument 'epoch'.*"),
        ('suite="suite", agent="nop", epochs=0', "epochs was given 0.*"),
        ('suite="suite", agent="nop", seed="x"', "seed was given 'x'.*"),
        ('suite="suite", agent="nop", confine="box"', "confine was given 'box'.*"),
        ('suite="suite", agent="nop", only=3', "only was given 3.*"),
        ('suite="suite", agent="nop", only="z*"', "No case of suite fits z*"),
        ('suite="nowhere", agent="nop"', "*There is no suite in*nowhere*"),
        ('suite="suite", agent=3', "agent was given 3.*"),
        ('suite="suite", agent="python:no_such_module:work"', "'no_such_module' cannot be loaded*"),
        ('"suite", "nop"', "*keyword arguments only*"),
    ],
)
def test_a_wrong_marker_points_at_the_test(arguments: str, said: str, evals: EvalTests) -> None:
    evals.suite("one")
    evals.source(f"import pytest\n@pytest.mark.gittrix_eval({arguments})\ndef test_it(): pass")

    result = evals.run()

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["test_it.py:2: the gittrix_eval marker of test_it *"])
    result.stdout.fnmatch_lines([said if said.startswith("*") else f"*{said}"])
    result.stdout.no_fnmatch_line("During handling of*")


# What is run, and where it is kept -------------------------------------------------------------------------------------------------


def test_options_win_over_the_marker(evals: EvalTests) -> None:
    evals.suite("one")
    evals.tests(more=f"{OFF}, seed=1, epochs=1")

    evals.run("--gittrix-eval-seed=5", "--gittrix-eval-epochs=2").assert_outcomes(passed=2)

    core = evals.store().manifest().core
    assert (core["setting"]["seed"], core["epochs"]) == (5, 2)


def test_a_run_that_is_there_is_kept_and_the_next_one_stands_beside_it(evals: EvalTests) -> None:
    evals.suite("one")
    evals.tests()

    evals.run().assert_outcomes(passed=1)
    evals.run().assert_outcomes(passed=1)

    assert evals.runs() == ["suite", "suite-2"]


def test_each_agent_has_a_run_of_its_own(evals: EvalTests) -> None:
    evals.suite("one")
    evals.source(f"""
        import pytest

        @pytest.mark.gittrix_eval(suite="suite", agent={SOLVES!r}, confine="off")
        def test_solver(): pass

        @pytest.mark.gittrix_eval(suite="suite", agent="nop", confine="off")
        def test_nobody(): pass
    """)

    evals.run().assert_outcomes(passed=1, failed=1)

    assert (evals.outcomes("suite"), evals.outcomes("suite-2")) == ({"one #0": "pass"}, {"one #0": "fail"})


def test_one_directory_takes_one_run(evals: EvalTests) -> None:
    evals.suite("one")
    evals.source("""
        import pytest

        @pytest.mark.gittrix_eval(suite="suite", agent="nop", confine="off")
        def test_one(): pass

        @pytest.mark.gittrix_eval(suite="suite", agent="true", confine="off")
        def test_other(): pass
    """)

    result = evals.run("--gittrix-eval-run=runs/mine")

    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*need more than one eval run*setting.agent*differ.", "*choose the tests of one suite and agent with -k*"])


def test_a_directory_that_was_asked_for_and_is_taken_is_refused(evals: EvalTests) -> None:
    evals.suite("one")
    evals.tests()
    evals.run("--gittrix-eval-run=runs/mine").assert_outcomes(passed=1)

    again = evals.run("--gittrix-eval-run=runs/mine")
    other = evals.run("--gittrix-eval-run=runs/mine", "--gittrix-eval-resume", "--gittrix-eval-seed=3")

    again.assert_outcomes(errors=1)
    again.stdout.fnmatch_lines(["*runs/mine holds a run already.", "*--gittrix-eval-resume*"])
    other.assert_outcomes(errors=1)
    other.stdout.fnmatch_lines(["*runs/mine was made from something else: setting.seed differ."])


def test_only_what_is_missing_is_done_when_a_run_is_gone_on_with(evals: EvalTests) -> None:
    evals.suite("x1", "x2", "x3")
    agent, calls = evals.counting()
    evals.tests(agent)

    evals.run("-k", "x1 or x3").assert_outcomes(passed=2, deselected=1)
    evals.run("--gittrix-eval-resume").assert_outcomes(passed=3)

    assert calls.read_text().splitlines() == ["x1 #0", "x3 #0", "x2 #0"]
    assert evals.runs() == ["suite"]


def test_samples_are_taken_over_where_their_inputs_are_the_same(evals: EvalTests) -> None:
    place = evals.suite("a", "b")
    agent, calls = evals.counting()
    evals.tests(agent)
    evals.run("--gittrix-eval-run=runs/old").assert_outcomes(passed=2)
    write(place, {"cases/b/note.txt": "changed"})

    result = evals.run("--gittrix-eval-run=runs/new", "--gittrix-eval-from=runs/old", "--junitxml=junit.xml")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["1 of 2 taken over"])

    assert calls.read_text().splitlines() == ["a #0", "b #0", "b #0"]
    assert evals.store("new").sample("a") == evals.store("old").sample("a")
    assert "taken over: its inputs are the same" in Path(evals.root, "junit.xml").read_text()


def test_two_functions_that_carry_other_values_are_two_agents(evals: EvalTests) -> None:
    evals.suite("one")
    evals.source("""
        import pytest

        def made(version):
            return lambda toolbox: toolbox.write("app.py", f"VERSION = {version}\\n")

        @pytest.mark.gittrix_eval(suite="suite", agent=made(2), confine="off")
        def test_right(): pass

        @pytest.mark.gittrix_eval(suite="suite", agent=made(3), confine="off")
        def test_wrong(): pass
    """)

    evals.run().assert_outcomes(passed=1, failed=1)
    assert evals.runs() == ["suite", "suite-2"]


def test_tests_of_one_suite_and_agent_share_its_samples(evals: EvalTests) -> None:
    evals.suite("one")
    agent, calls = evals.counting()
    evals.source(f"""
        import pytest
        pytestmark = pytest.mark.gittrix_eval(suite="suite", agent={agent!r}, confine="off")

        def test_first(): pass
        def test_second(gittrix_eval): assert gittrix_eval.passed
    """)

    evals.run().assert_outcomes(passed=2)
    assert calls.read_text().splitlines() == ["one #0"]


def test_a_function_is_an_agent_and_nothing_is_left_where_samples_work(evals: EvalTests) -> None:
    evals.suite("one")
    evals.source("""
        import pytest

        def work(toolbox):
            toolbox.write("app.py", "VERSION = 2\\n")

        @pytest.mark.gittrix_eval(suite="suite", agent=work, confine="off")
        def test_it(gittrix_eval):
            assert gittrix_eval.record.files == ("app.py",)
    """)

    evals.run().assert_outcomes(passed=1)

    agent = evals.store().manifest().core["setting"]["agent"]
    assert (agent["kind"], agent["name"], len(agent["source"])) == ("callable", "test_it.py:work", 64)
    assert evals.left() == []
