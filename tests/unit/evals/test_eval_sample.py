"""What becomes of a sample: each outcome class, what is promoted and checked, and that nothing of it is left where it was done."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.evals import FILES, SOLVES, agent_file, case, command_file, left_in, ran, suite
from support.patience import long_enough

from pytest_gittrix import points
from pytest_gittrix.cli.evals_output import sample_text
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.evals.inputs.sample_record import OUTCOMES, Record
from pytest_gittrix.evals.runs.run import Summary
from pytest_gittrix.report.eval_report import page_of

GOLD = "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-VERSION = 1\n+VERSION = 2\n"


def only(summary: Summary) -> Record:
    (record,) = summary.records
    return record


def test_work_that_is_right_is_promoted_and_passes(tmp_path: Path) -> None:
    summary = ran(suite(tmp_path), tmp_path, SOLVES)
    record = only(summary)

    assert (record.outcome, record.reason, record.exit) == ("pass", "", 0)
    assert record.files == ("app.py",)
    assert summary.store.objects.file(record.promoted, "app.py") == b"VERSION = 2\n"
    assert summary.store.objects.tree(record.promoted) == summary.store.objects.tree(record.final)
    assert b"+VERSION = 2" in summary.store.part("patches", record.key)
    assert left_in(tmp_path / "scratch") == []


def test_work_that_is_wrong_fails_with_the_reason_of_the_check(tmp_path: Path) -> None:
    record = only(ran(suite(tmp_path), tmp_path, agent_file(tmp_path, "toolbox.write('app.py', 'VERSION = 3')")))

    assert (record.outcome, record.reason) == ("fail", "function: AssertionError: the version is not 2")
    assert record.promoted


def test_no_work_is_checked_as_it_is(tmp_path: Path) -> None:
    record = only(ran(suite(tmp_path), tmp_path, "nop"))

    assert (record.outcome, record.promoted, record.files) == ("fail", "", ())


def test_the_gold_patch_passes_and_a_case_without_one_says_so(tmp_path: Path) -> None:
    place = suite(tmp_path, "one", more='gold = "gold.patch"\n', extra={"gold.patch": GOLD})
    assert only(ran(place, tmp_path, "gold")).outcome == "pass"

    other = ran(suite(tmp_path / "other"), tmp_path / "other", "gold")
    assert (only(other).outcome, only(other).reason) == ("agent_error", "the case has no gold patch")


def test_durable_changed_under_the_agent_is_a_conflict_and_nothing_is_promoted(tmp_path: Path) -> None:
    place = suite(tmp_path, more='[drift]\nfiles = "drift"\n', extra={"drift/app.py": "VERSION = 7\n"})

    summary = ran(place, tmp_path, SOLVES)
    record = only(summary)

    assert record.outcome == "conflict"
    assert record.conflict is not None
    assert set(record.conflict) == {"app.py"}
    assert record.promoted == ""
    kinds = [event["kind"] for event in summary.store.lines("events", record.key)]
    assert kinds.index("agent.done") < kinds.index("durable.drifted") < kinds.index("promote.conflict") < kinds.index("sample.done")


def test_drift_elsewhere_is_under_the_promoted_commit(tmp_path: Path) -> None:
    patch = "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-# App\n+# The app\n"
    place = suite(tmp_path, more='[drift]\npatch = "drift.patch"\nat = "after-start"\n', extra={"drift.patch": patch})

    summary = ran(place, tmp_path, SOLVES)
    record = only(summary)

    assert record.outcome == "pass"
    assert record.head != record.base
    assert summary.store.objects.file(record.promoted, "README.md") == b"# The app\n"
    assert summary.store.objects.file(record.promoted, "app.py") == b"VERSION = 2\n"
    assert summary.store.objects.file(record.final, "README.md") == b"# App\n"


@pytest.mark.parametrize("rule", ['deny = ["tests/*"]', 'allow = ["app.py"]'])
def test_a_review_that_says_no_refuses(tmp_path: Path, rule: str) -> None:
    agent = agent_file(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')\ntoolbox.write('tests/test_app.py', '')")

    record = only(ran(suite(tmp_path, more=f"[review]\n{rule}\n"), tmp_path, agent))

    assert (record.outcome, record.reason) == ("refused", "tests/test_app.py may not be touched")
    assert record.promoted == ""


@pytest.mark.parametrize(
    ("body", "reason", "exit_"),
    [
        ("import sys; sys.exit(3)", "the agent ended with status 3", 3),
        ("import os; os.kill(os.getpid(), 9)", "the agent ended with signal 9", None),
    ],
)
def test_an_agent_that_fails_is_an_agent_error_and_its_work_is_kept(tmp_path: Path, body: str, reason: str, exit_: int | None) -> None:
    agent = command_file(tmp_path, f"open('app.py', 'w').write('half')\n{body}\n")

    summary = ran(suite(tmp_path), tmp_path, agent)
    record = only(summary)

    assert (record.outcome, record.reason, record.exit, record.promoted) == ("agent_error", reason, exit_, "")
    assert summary.store.objects.file(record.final, "app.py") == b"half"


def test_a_function_that_raises_is_an_agent_error_with_what_it_said(tmp_path: Path) -> None:
    record = only(ran(suite(tmp_path), tmp_path, agent_file(tmp_path, "raise ValueError('no idea\\nat all')")))

    assert (record.outcome, record.reason) == ("agent_error", "the agent raised ValueError: no idea")


def test_a_program_that_is_not_there_is_an_agent_error(tmp_path: Path) -> None:
    assert only(ran(suite(tmp_path), tmp_path, "no-such-program-here")).reason == "the agent ended with status 127"


def test_an_agent_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    body = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open("pid", "w").write(str(child.pid))
    time.sleep(600)
    """

    def run_for(seconds: float) -> tuple[str, Summary]:
        root = tmp_path / str(seconds)
        return f"{seconds:g}", ran(suite(root), root, command_file(root, body), timeout_ms=round(seconds * 1000))

    seconds, summary = long_enough(run_for, lambda found: _has(found[1], "pid"), first=0.75)
    record = only(summary)
    pid = int(summary.store.objects.file(record.final, "pid"))

    assert (record.outcome, record.reason, record.exit) == ("timeout", f"the agent's {seconds} s were up", None)
    assert not _sleeps(pid)


def limited(root: Path, seconds: float, agent: str, **options: Any) -> Record:
    """The record of a sample whose review, promotion and check have so many seconds each, and its agent a minute."""
    place = suite(root, more=f'[limits]\ntimeout = "{round(seconds * 1000)}ms"\n', **options)
    return only(ran(place, root, agent, timeout_ms=60_000))


def test_a_time_limit_covers_a_check(tmp_path: Path) -> None:
    endless = {"check.py": "def check(result):\n    while True:\n        pass\n"}

    # On a busy machine, what comes before the check may take as long.
    record = long_enough(lambda seconds: limited(tmp_path / str(seconds), seconds, "nop", extra=endless), lambda one: one.outcome == "fail")

    assert (record.outcome, record.reason) == ("fail", "function: its time was up")


def test_a_time_limit_covers_the_review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: UserSession) -> None:
        while True:
            pass

    monkeypatch.setattr(UserSession, "review", endless)

    record = limited(tmp_path, 0.01, agent_file(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')"))

    assert (record.outcome, record.reason, record.promoted) == ("timeout", "the 0.01 s of the review were up", "")


def test_a_time_limit_covers_the_promotion_which_leaves_durable_as_it_was(tmp_path: Path) -> None:
    def endless(name: str) -> None:
        while name == "promote:head-read":
            pass

    def run_for(seconds: float) -> tuple[float, Record]:
        root = tmp_path / str(seconds)
        return seconds, limited(root, seconds, agent_file(root, "toolbox.write('app.py', 'VERSION = 2\\n')"))

    with points.listening(endless):
        seconds, record = long_enough(run_for, lambda found: "promotion" in found[1].reason)

    assert (record.outcome, record.reason, record.promoted) == ("timeout", f"the {seconds:g} s of the promotion were up", "")


def test_a_machine_that_fails_in_a_check_does_not_count_against_the_agent(tmp_path: Path) -> None:
    full = {"check.py": "import errno\ndef check(result):\n    raise OSError(errno.ENOSPC, 'No space left on device')\n"}

    record = only(ran(suite(tmp_path, extra=full), tmp_path, "nop"))

    assert record.outcome == "infra_error"
    assert "The machine failed in a check" in record.reason


def _has(summary: Summary, path: str) -> bool:
    """Whether the agent of the only sample left a file."""
    try:
        return bool(summary.store.objects.file(only(summary).final, path))
    except GittrixError:
        return False


def _sleeps(pid: int) -> bool:
    try:
        return b"time.sleep(600)" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_what_lies_too_deep_to_be_reviewed_is_left_out_and_removed(tmp_path: Path) -> None:
    body = """
    import os
    for _ in range(3000):
        os.mkdir("d")
        os.chdir("d")
    """
    summary = ran(suite(tmp_path, "one", "two"), tmp_path, command_file(tmp_path, body))

    assert summary.counts["fail"] == 2
    (review,) = [event for event in summary.store.lines("events", summary.records[0].key) if event["kind"] == "review.done"]
    assert (review["data"]["files"], review["data"]["left_out"]) == (0, ["/".join("d" * 401) + "/"])
    assert left_in(tmp_path / "scratch") == []


def test_an_agent_that_gets_at_durable_is_found_out(tmp_path: Path) -> None:
    durable = '"$(git rev-parse --show-toplevel)/../../../../durable"'
    agent = f"sh -c 'git -C {durable} commit -q --allow-empty -m sneaked && echo VERSION = 2 > app.py'"

    record = only(ran(suite(tmp_path), tmp_path, agent))

    assert (record.outcome, record.reason, record.promoted) == ("agent_error", "durable moved behind the run's back", "")


def test_a_function_finds_out_that_its_time_is_up_at_the_next_program(tmp_path: Path) -> None:
    agent = agent_file(tmp_path, "toolbox.run(['sleep', '600'])\nraise AssertionError('went on')")

    assert only(ran(suite(tmp_path), tmp_path, agent, timeout_ms=300)).outcome == "timeout"


def test_what_is_nobodys_doing_is_an_infra_error_that_is_tried_again_and_kept(tmp_path: Path) -> None:
    place = suite(tmp_path, more='[check]\ndiff = "expected.diff"\n', extra={"expected.diff": "this is no diff\n"})

    summary = ran(place, tmp_path, SOLVES)
    record = only(summary)

    assert record.outcome == "infra_error"
    assert "expected.diff does not apply" in record.reason
    assert "Traceback" in summary.store.lines("timing", record.key)[0]["traceback"]
    assert summary.counts["infra_error"] == 1
    assert summary.store.earlier_tries(record.key) == [record.reason]


def test_a_sample_that_passes_in_a_second_try_says_why_the_first_did_not_count(tmp_path: Path) -> None:
    lines = ["import errno", "from pathlib import Path", "def check(result):", f"    mark = Path({str(tmp_path / 'tried')!r})"]
    lines += ["    if not mark.exists():", "        mark.touch()", "        raise OSError(errno.ENOSPC, 'No space left on device')"]

    summary = ran(suite(tmp_path, extra={"check.py": "\n".join(lines)}), tmp_path, "nop")
    record = only(summary)

    assert record.outcome == "pass"
    (why,) = summary.store.earlier_tries(record.key)
    assert "No space left on device" in why
    assert f"  try 1 ended in infra_error and does not count: {why}\n" in sample_text(summary.store, record)
    assert "(try 2)" in page_of(summary.store)


def test_what_tools_leave_behind_is_no_part_of_the_result(tmp_path: Path) -> None:
    body = """
    toolbox.write('app.py', 'VERSION = 2\\n')
    for name in ('__pycache__/app.pyc', 'deep/.pytest_cache/x', '.ruff_cache/y'):
        (toolbox.path / name).parent.mkdir(parents=True, exist_ok=True)
        (toolbox.path / name).write_text('junk')
    """
    with_junk = only(ran(suite(tmp_path), tmp_path, agent_file(tmp_path, body)))
    without = only(ran(suite(tmp_path / "b"), tmp_path / "b", agent_file(tmp_path / "b", "toolbox.write('app.py', 'VERSION = 2\\n')")))

    assert with_junk.files == ("app.py",)
    assert (with_junk.final, with_junk.tree) == (without.final, without.tree)


CHECKS = [
    ('command = ["grep", "-q", "VERSION = 2", "app.py"]', {}),
    ('tree = "expected"', {f"expected/{path}": data for path, data in (FILES | {"app.py": "VERSION = 2\n"}).items()}),
    ('diff = "expected.diff"', {"expected.diff": GOLD}),
    ('function = "check.py:check"', {}),
    ('pytest = "test_it.py"', {"test_it.py": "import app\n\n\ndef test_it():\n    assert app.VERSION == 2\n"}),
]  # fmt: skip


@pytest.mark.parametrize(("check", "extra"), CHECKS, ids=lambda value: value.split()[0] if isinstance(value, str) else "")
def test_each_kind_of_check_tells_right_from_wrong(tmp_path: Path, check: str, extra: dict[str, str]) -> None:
    place = suite(tmp_path, more=f"[check]\n{check}\n", extra=extra)
    right = agent_file(tmp_path / "good", "toolbox.write('app.py', 'VERSION = 2\\n')")
    wrong = agent_file(tmp_path / "bad", "toolbox.write('app.py', 'VERSION = 3\\n')")

    good, bad = (only(ran(place, tmp_path, agent, out=tmp_path / name)) for name, agent in (("right", right), ("wrong", wrong)))

    assert (good.outcome, [one.ok for one in good.checks]) == ("pass", [True]), good.reason
    assert (bad.outcome, [one.ok for one in bad.checks]) == ("fail", [False])
    assert bad.reason.startswith(check.split()[0])


def test_all_checks_must_be_satisfied_and_each_is_told(tmp_path: Path) -> None:
    more = '[check]\ncommand = ["false"]\nfunction = "check.py:check"\n'

    record = only(ran(suite(tmp_path, more=more), tmp_path, SOLVES))

    assert record.outcome == "fail"
    assert [(one.kind, one.ok) for one in record.checks] == [("command", False), ("function", True)]
    assert record.reason == "command: status 1"


def test_a_checks_output_is_kept_beside_the_record_and_not_in_the_log(tmp_path: Path) -> None:
    more = '[check]\ncommand = ["sh", "-c", "date +%N; echo said >&2"]\n'

    summary = ran(suite(tmp_path, more=more), tmp_path, SOLVES)
    record = only(summary)
    timings = [line for line in summary.store.lines("timing", record.key) if "check" in line]

    assert timings[0]["stderr"] == "said\n"
    assert b"said" not in summary.store.part("events", record.key)


@pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
def test_an_agent_works_in_each_kind_of_workspace_that_has_files(tmp_path: Path, kind: str) -> None:
    assert only(ran(suite(tmp_path, more=f'workspace = "{kind}"\n'), tmp_path, SOLVES)).outcome == "pass"


def test_a_lazy_workspace_is_for_functions_and_a_command_is_told(tmp_path: Path) -> None:
    place = suite(tmp_path, more='workspace = "lazy"\n')
    by_function = only(ran(place, tmp_path, agent_file(tmp_path, "toolbox.write('app.py', 'VERSION = 2\\n')")))
    by_command = only(ran(place, tmp_path, SOLVES, out=tmp_path / "other"))

    assert by_function.outcome == "pass"
    assert by_command.outcome == "infra_error"
    assert "workspace without files" in by_command.reason


def test_every_outcome_is_counted_even_where_there_is_none(tmp_path: Path) -> None:
    counts = ran(suite(tmp_path), tmp_path, SOLVES).counts

    assert list(counts) == list(OUTCOMES)
    assert sum(counts.values()) == counts["pass"] == 1


def test_the_objects_of_a_run_are_whole_and_reached_by_references(tmp_path: Path) -> None:
    place = suite(tmp_path, "one")
    case(place, "two", more='[drift]\nfiles = "drift"\n', extra={"drift/lib/new/deep.py": "x = 1\n", "drift/README.md": "# Drifted\n"})
    summary = ran(place, tmp_path, SOLVES, epochs=2)
    git = ["git", "-C", str(summary.store.objects.path)]

    checked = subprocess.run([*git, "fsck", "--strict", "--no-dangling"], capture_output=True, text=True, timeout=60, check=False)
    listed = subprocess.run([*git, "for-each-ref", "--format=%(refname)"], capture_output=True, text=True, timeout=60, check=True)

    assert checked.returncode == 0, checked.stderr
    assert len(listed.stdout.split()) == 4 * 3
    assert "refs/gx/run/two/1/promoted" in listed.stdout
