"""Ways for an agent to have a sample pass without the work, or not counted: none of them does it."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from support.evals import agent_file, command_file, left_in, ran, suite

from pytest_gittrix.confine.levels import confinement, strongest
from pytest_gittrix.evals.inputs.sample_record import Record

TEST = "import app\n\n\ndef test_it():\n    assert app.VERSION == 2\n"
EXITS = "import os\nos._exit(0)\n"
ATTRIBUTE = "def __getattr__(name):\n    if name == 'VERSION':\n        {}\n    raise AttributeError(name)\n"
GIVEN_UP = "pytest: the result gave up test_it.py::test_it"


def tried(root: Path, agent: str, **changed: object) -> Record:
    """The record of the one sample of a case that a hidden test checks."""
    extra = {"test_it.py": TEST, "gold.patch": "the solution"}
    (record,) = ran(suite(root, more='gold = "gold.patch"\n[check]\npytest = "test_it.py"\n', extra=extra), root, agent, **changed).records
    return record


def writing(root: Path, path: str, text: str) -> str:
    """An agent that writes one file."""
    return agent_file(root, f"toolbox.write({path!r}, {text!r})")


def jailed() -> str:
    level = strongest().level
    if level != "jail":
        pytest.skip(f"there is no jail here: {confinement('auto').why}")
    return level


@pytest.mark.parametrize(
    "path",
    ["pytest.py", "_pytest/__init__.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "tests/conftest.py", "json.py", "os.py"],
)
def test_no_module_of_the_result_takes_the_place_of_pytest_or_starts_before_it(tmp_path: Path, path: str) -> None:
    record = tried(tmp_path, writing(tmp_path, path, EXITS))

    assert (record.outcome, record.checks[0].ok) == ("fail", False)
    assert record.files == (path,)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pytest.ini", "[pytest]\naddopts = --collect-only\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '--deselect=test_it.py'\n"),
        ("tox.ini", "[pytest]\npython_functions = nothing\n"),
        ("setup.cfg", "[tool:pytest]\naddopts = --co\n"),
    ],
)
def test_no_setting_of_the_result_counts(tmp_path: Path, path: str, text: str) -> None:
    assert tried(tmp_path, writing(tmp_path, path, text)).reason == "pytest: status 1"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (EXITS, "pytest: the result ended its process"),
        (f"import atexit, os\natexit.register(os._exit, 0)\n{ATTRIBUTE.format('return 3')}", "pytest: status 1"),
        (ATTRIBUTE.format("import pytest; pytest.skip('no')"), GIVEN_UP),
        (ATTRIBUTE.format("import pytest; pytest.xfail('no')"), GIVEN_UP),
        (ATTRIBUTE.format("import unittest; raise unittest.SkipTest"), GIVEN_UP),
        (ATTRIBUTE.format("import pytest; pytest.exit('no', returncode=0)"), "pytest: only 0 of 1 tests came to an end"),
        ("import pytest\npytest.skip('no', allow_module_level=True)\n", "pytest: status 5"),
        ("raise SystemExit(0)\n", "pytest: status 2"),
    ],
    ids=["exit", "atexit", "skip", "xfail", "unittest", "pytest-exit", "skip-module", "system-exit"],
)
def test_code_under_test_cannot_end_or_give_up_the_test_in_its_favour(tmp_path: Path, code: str, reason: str) -> None:
    record = tried(tmp_path, writing(tmp_path, "app.py", code))

    assert record.outcome == "fail"
    assert record.reason.startswith(reason)


def test_a_test_that_its_author_marked_may_be_skipped_if_another_passes(tmp_path: Path) -> None:
    marked = (
        "import app, pytest\n\n\n@pytest.mark.skip\ndef test_later():\n    pass\n\n\n@pytest.mark.xfail\ndef test_never():\n    assert 0\n"
    )
    itself = "\n\ndef test_elsewhere():\n    pytest.skip('not here')\n"
    found = {}
    for name, text in {"marked": marked + itself, "passing": marked + itself + "\n\ndef test_it():\n    assert app.VERSION == 2\n"}.items():
        place = suite(tmp_path / name, more='[check]\npytest = "test_it.py"\n', extra={"test_it.py": text})
        (record,) = ran(place, tmp_path / name, writing(tmp_path, "app.py", "VERSION = 2\n")).records
        found[name] = (record.outcome, record.reason)

    assert found == {"marked": ("fail", "pytest: no test passed"), "passing": ("pass", "")}


def test_a_test_can_start_programs_that_find_the_result(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys\n\n\ndef test_it():\n    subprocess.run([sys.executable, '-P', '-c', 'import app'], check=True, cwd='/')\n"
    )
    place = suite(tmp_path, more='[check]\npytest = "test_it.py"\n', extra={"test_it.py": text})

    assert ran(place, tmp_path, "nop").counts["pass"] == 1


def test_a_jailed_agent_kept_beside_suite_and_run_sees_nothing_of_them(tmp_path: Path) -> None:
    body = """
    import os
    seen = [os.path.join(place, name) for place, below, names in os.walk("/") if not place.startswith(("/proc", "/sys"))
            for name in [*below, *names] if name in ("gold.patch", "test_it.py", "manifest.json", "suite", "run")]
    open("seen", "w").write(repr([path for path in seen if not path.startswith(("/usr", "/run"))]))
    """
    agent = command_file(tmp_path, body)
    summary = ran(
        suite(tmp_path, extra={"gold.patch": "x", "test_it.py": TEST}, more='gold = "gold.patch"\n'), tmp_path, agent, confine=jailed()
    )

    seen = summary.store.objects.file(summary.records[0].final, "seen").decode()
    assert str(tmp_path) not in seen


def test_a_function_does_not_read_through_links_that_lead_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("VERSION = 2")
    body = f"import os\nos.remove('app.py')\nos.symlink({str(secret)!r}, 'app.py')\nos.symlink('app.py', 'again')\n"
    body += "os.symlink('..', 'above')\nos.symlink('README.md', 'inside')\n"
    check = """
    def check(result):
        found = [name for name in ("app.py", "again", "above/durable", "inside") if (result.path / name).exists()]
        assert found == [], found
    """
    place = suite(tmp_path, extra={"check.py": textwrap.dedent(check)})

    (record,) = ran(place, tmp_path, command_file(tmp_path, body)).records

    assert record.reason == "function: AssertionError: ['inside']"


def test_no_check_sees_what_code_of_the_result_did_in_another(tmp_path: Path) -> None:
    code = "open('app.py', 'w').write('VERSION = 2\\n')\nopen('conftest.py', 'w').write('')\n"
    check = "def check(result):\n    assert (result.path / 'app.py').read_text() == 'VERSION = 2\\n'\n"
    more = '[check]\ncommand = ["python", "-c", "import app"]\nfunction = "check.py:check"\n'
    place = suite(tmp_path, more=more, extra={"check.py": check})

    (record,) = ran(place, tmp_path, writing(tmp_path, "app.py", code)).records

    assert [(one.kind, one.ok) for one in record.checks] == [("command", True), ("function", False)]


def test_jailed_code_under_test_does_not_find_the_solution(tmp_path: Path) -> None:
    code = """
    import os
    names = [name for place, _, names in os.walk("/") if not place.startswith(("/proc", "/sys")) for name in names]
    VERSION = 2 if "gold.patch" in names or "case.toml" in names else 3
    """
    record = tried(tmp_path, agent_file(tmp_path, f"import textwrap\ntoolbox.write('app.py', textwrap.dedent({code!r}))"), confine=jailed())

    assert (record.outcome, record.reason) == ("fail", "pytest: status 1")


def test_the_solution_is_on_nobodys_desk_but_the_gold_agents(tmp_path: Path) -> None:
    assert tried(tmp_path, agent_file(tmp_path, "assert toolbox.gold is None")).outcome == "fail"


@pytest.mark.parametrize(
    "body",
    [
        "import os, shutil\nshutil.rmtree(os.getcwd())\n",
        "import os\nhere = os.getcwd()\nos.rename(here, here + '-')\nos.symlink('/', here)\n",
    ],
    ids=["removed", "replaced"],
)
def test_an_agent_that_takes_its_workspace_away_is_counted(tmp_path: Path, body: str) -> None:
    record = tried(tmp_path, command_file(tmp_path, body))

    assert (record.outcome, record.reason) == ("agent_error", "the agent took its workspace away")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize(("path", "locked"), [("app.py", "app.py"), ("tests", "tests"), (".", "its workspace")])
def test_an_agent_that_locks_its_workspace_is_counted(tmp_path: Path, path: str, locked: str) -> None:
    record = tried(tmp_path, agent_file(tmp_path, f"(toolbox.path / {path!r}).chmod(0)"))

    assert (record.outcome, record.reason) == ("agent_error", f"the agent locked {locked} (chmod 000 {path})")
    assert left_in(tmp_path / "scratch") == []


def test_what_an_agent_left_where_checks_work_changes_nothing(tmp_path: Path) -> None:
    body = """
    import os
    place = os.path.dirname(os.environ["HOME"])
    for name in ("check", "check-home"):
        os.makedirs(os.path.join(place, name, ".local"))
    """
    record = tried(tmp_path, command_file(tmp_path, body))

    assert (record.outcome, record.reason) == ("fail", "pytest: status 1")


def test_a_program_in_the_result_is_not_taken_for_one_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", ".:bin::/usr/bin:/bin")
    body = "for name in ('grep', 'bin/grep'):\n    toolbox.write(name, '#!/bin/sh\\n')\n    (toolbox.path / name).chmod(0o755)\n"
    place = suite(tmp_path, more='[check]\ncommand = ["grep", "-q", "VERSION = 2", "app.py"]\n')

    (record,) = ran(place, tmp_path, agent_file(tmp_path, body)).records

    assert (record.outcome, record.reason) == ("fail", "command: status 1")


@pytest.mark.parametrize(
    ("agent", "check", "outcome", "reason"),
    [
        ("raise SystemExit(0)", "pass", "agent_error", "the agent raised SystemExit: 0"),
        ("import pytest\npytest.fail('no')", "pass", "agent_error", "the agent raised Failed: no"),
        ("pass", "raise SystemExit(0)", "fail", "function: SystemExit: 0"),
        ("pass", "import pytest; pytest.fail('no')", "fail", "function: Failed: no"),
        ("pass", "import pytest; pytest.skip('no')", "fail", "function: Skipped: no"),
    ],
)
def test_no_exception_ends_the_run_in_the_middle(tmp_path: Path, agent: str, check: str, outcome: str, reason: str) -> None:
    place = suite(tmp_path, "one", "two", extra={"check.py": f"def check(result):\n    {check}\n"})
    records = ran(place, tmp_path, agent_file(tmp_path, agent)).records

    assert [(record.outcome, record.reason) for record in records] == [(outcome, reason)] * 2


def test_a_replay_fails_an_agent_that_hides_an_extra_step(tmp_path: Path) -> None:
    place = suite(tmp_path)
    step = "toolbox.write('app.py', 'VERSION = 2\\n')\n"
    ran(place, tmp_path, agent_file(tmp_path, step), record=True)
    hiding = agent_file(tmp_path / "b", f"{step}try:\n    toolbox.run(['true'])\nexcept Exception:\n    pass\n")

    (record,) = ran(place, tmp_path, hiding, out=tmp_path / "again", replay=tmp_path / "run").records

    assert record.outcome == "agent_error"
    assert "no further step was recorded" in record.reason
