"""Three ways to the clauses: a name on the command line, a fixture in a conftest.py, a subclass; and what keeps them honest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

# A run in this process forgets what it was the first to import.
import pytest_gittrix.conformance.reports.files
import pytest_gittrix.conformance.reports.text_report
import pytest_gittrix.conformance.suite
import pytest_gittrix.conformance.test_conformance
import pytest_gittrix.conformance.under_test
import pytest_gittrix.testing.systems.gittrix_system  # noqa: F401
from pytest_gittrix import plugin
from pytest_gittrix.conformance.base.catalogue import all_clauses
from pytest_gittrix.conformance.base.clause import PROPERTY, clause_of
from pytest_gittrix.plugin.evals.nodes import RUN
from pytest_gittrix.testing.systems.protocol import Capability

Run = Callable[..., pytest.RunResult]

PYARGS = ("--pyargs", "pytest_gittrix.conformance", "--gittrix-conformance-report=report.json")
ACME = """
from pytest_gittrix.testing.systems.gittrix_system import GitTrixEngine, GitTrixSystem


class Forgetful(GitTrixEngine):
    def promote(self, id, **selection):
        return "0" * 40


class Acme(GitTrixSystem):
    def __init__(self, name="acme"):
        super().__init__("lazy")
        self.name = name

    def open(self, place):
        return Forgetful(super().open(place).gittrix)
"""


@pytest.fixture
def conform(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs clauses in a project that has a session system whose promotions do nothing: ``acme.Acme``."""
    for name, text in {"acme.py": ACME, "pytest.ini": "[pytest]\npythonpath = .\n"}.items():
        Path(pytester.path, name).write_text(text, encoding="utf-8")
    base = pytester.path.parent / f"{pytester.path.name}-base"
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def conform(*arguments: str, plugins: Sequence[object] = ()) -> pytest.RunResult:
        always = ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:schemathesis", f"--basetemp={base}")
        return pytester.runpytest_inprocess(*always, *arguments, plugins=plugins)

    return conform


def statuses(pytester: pytest.Pytester, name: str = "report.json") -> dict[str, dict[str, str]]:
    """For each system of a report: the status of each clause that was run."""
    report: dict[str, Any] = json.loads(Path(pytester.path, name).read_text(encoding="utf-8"))
    return {
        system["name"]: {one["code"]: one["status"] for one in system["clauses"] if one["status"] != "not run"}
        for system in report["systems"]
    }


# By name --------------------------------------------------------------------------------------------------------------------------


def test_a_system_that_is_named_is_put_to_the_clauses(conform: Run, pytester: pytest.Pytester) -> None:
    result = conform("--gittrix-system=acme:Acme", *PYARGS, "-k", "cnf_01 or cap_01")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert statuses(pytester) == {"acme": {"CNF-01": "broken", "CAP-01": "kept"}}
    result.stdout.fnmatch_lines(["*gittrix conformance: acme*", "*again: gittrix conform acme:Acme --clause CNF-01"])


def test_without_a_name_it_is_our_own_engine(conform: Run, pytester: pytest.Pytester) -> None:
    result = conform(*PYARGS, "--gittrix-workspace=copy", "-k", "cnf_01")

    assert result.ret == 0
    assert statuses(pytester) == {"gittrix (copy)": {"CNF-01": "kept"}}


def test_a_name_can_stand_in_the_configuration(conform: Run, pytester: pytest.Pytester) -> None:
    Path(pytester.path, "pytest.ini").write_text("[pytest]\npythonpath = .\ngittrix_system = acme:Acme\n", encoding="utf-8")

    result = conform(*PYARGS, "-k", "cnf_01")

    result.stdout.fnmatch_lines(["*again: gittrix conform --clause CNF-01"])


def test_a_name_that_leads_nowhere_ends_the_run_before_a_test(run: Run) -> None:
    result = run("def test_it(): pass", "--gittrix-system=nowhere:system")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: nowhere cannot be imported: *('nowhere:system' is from --gittrix-system).", "The clauses *", "Install it*", "Without it *"]
    )


# By a fixture ---------------------------------------------------------------------------------------------------------------------


def test_a_fixture_says_which_system_is_meant(conform: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest
        from acme import Acme

        @pytest.fixture(scope="session", params=["b", "a"])
        def gittrix_system(request):
            return Acme(request.param)
    """)

    conform(*PYARGS, "-k", "cnf_01 or cap_01")

    both = {"CNF-01": "broken", "CAP-01": "kept"}
    assert statuses(pytester) == {"a": both, "b": both}
    assert [*statuses(pytester)] == ["a", "b"]


def test_tests_of_ones_own_open_sandboxes_with_the_named_system(conform: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_it(gittrix_system):
            with gittrix_system(files={"a.txt": "a"}) as sandbox:
                session = sandbox.start()
                assert (gittrix_system.name, session.read("a.txt")) == ("acme", b"a")
    """)

    conform("--gittrix-system=acme:Acme").assert_outcomes(passed=1)


def test_the_default_system_is_a_system_and_opens_worlds(run: Run) -> None:
    source = """
        from pytest_gittrix import World
        from pytest_gittrix.testing.systems.protocol import check_system

        def test_it(gittrix_system):
            assert check_system(gittrix_system).name == "gittrix (lazy)"
            with gittrix_system(files={"a.txt": "a"}) as world:
                assert isinstance(world, World)
                assert world.start().info().workspace_kind == "lazy"
    """
    run(source, "--gittrix-workspace=lazy").assert_outcomes(passed=1)


# By a subclass --------------------------------------------------------------------------------------------------------------------


def suite(body: str, base: str = "SessionSystemSuite") -> str:
    """A test module with a subclass of the suite."""
    return f"""
import pytest
from acme import Acme
from pytest_gittrix.conformance import SessionSystemSuite
from pytest_gittrix.conformance.families.conflict import ConflictClauses

class TestAcme({base}):
    @pytest.fixture
    def gittrix_system(self):
        return Acme()
{body}
"""


def test_a_subclass_runs_all_families_with_its_waivers(conform: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_acme=suite('    waivers = {"CNF-01": "acme never promotes"}'))

    result = conform("--gittrix-conformance-report=report.json", "-k", "cnf_01 or cnf_02 or cap_01 or iso_01")

    assert statuses(pytester)["acme"] == {"CNF-01": "waived", "CNF-02": "broken", "CAP-01": "kept", "ISO-01": "kept"}
    result.assert_outcomes(passed=2, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(["waived, on purpose CNF-01: *", "*acme never promotes"])
    result.stdout.fnmatch_lines(["*again: pytest test_acme.py::TestAcme::test_cnf_02_an_edit_elsewhere_is_none"])


def test_a_waived_clause_that_is_kept_fails(conform: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_acme=suite('    waivers = {"CAP-01": "acme declares too much"}'))

    result = conform("-k", "cap_01")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  broken CAP-01: *", "*it is kept now: remove its waiver (acme declares too much)"])


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('    waivers = {"CNF-99": "no"}', "*TestAcme waives 'CNF-99', which is no clause and no invariant.*"),
        ('    waivers = {"CNF-01": ""}', "*The waiver of CNF-01 by TestAcme has no reason.*"),
        ("    test_cnf_01_an_edit_of_the_same_file_is_a_conflict = None", "*TestAcme leaves out CNF-01 and does not waive it.*"),
    ],
)
def test_what_is_left_out_in_silence_is_an_error(body: str, line: str, conform: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_acme=suite(body, "ConflictClauses"))

    result = conform()

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([line])


def test_a_clause_that_is_left_out_with_a_reason_is_in_the_report(conform: Run, pytester: pytest.Pytester) -> None:
    left_out = "    test_cnf_01_an_edit_of_the_same_file_is_a_conflict = None"
    pytester.makepyfile(test_acme=suite(f'    waivers = {{"CNF-01": "it hangs"}}\n{left_out}', "ConflictClauses"))

    conform("--gittrix-conformance-report=report.json", "-k", "cnf_01").assert_outcomes(xfailed=1)

    assert statuses(pytester) == {"acme": {"CNF-01": "waived"}}


def test_a_system_can_bring_its_waivers(conform: Run, pytester: pytest.Pytester) -> None:
    acme = Path(pytester.path, "acme.py")
    acme.write_text(f'{ACME}\n    waivers = {{"CNF-01": "acme never promotes"}}\n', encoding="utf-8")

    result = conform("--gittrix-system=acme:Acme", *PYARGS, "-k", "cnf_01")

    assert (result.ret, statuses(pytester)) == (0, {"acme": {"CNF-01": "waived"}})


def test_a_mark_is_no_waiver(conform: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_acme=suite('    pytestmark = pytest.mark.xfail(reason="later")', "ConflictClauses"))

    result = conform("-k", "cnf_01")

    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["  broken CNF-01: *", "*it is marked xfail, and not waived"])


# Drift ----------------------------------------------------------------------------------------------------------------------------

DRIFTING = """
class More(Acme):
    def open(self, place):
        engine = super().open(place)
        engine.workspace = lambda id: place.path
        return engine


class Less(Acme):
    def open(self, place):
        engine = super().open(place)
        engine.events = None
        return engine


class Untested(Acme):
    def __init__(self):
        super().__init__()
        self.capabilities = self.capabilities - {"clock"}
"""


@pytest.mark.parametrize(
    ("drifting", "code", "named"), [("More", "CAP-02", "workspace"), ("Less", "CAP-01", "events"), ("Untested", "CAP-03", "absolute")]
)
def test_what_is_declared_and_what_is_there_are_the_same(
    drifting: str, code: str, named: str, conform: Run, pytester: pytest.Pytester
) -> None:
    Path(pytester.path, "acme.py").write_text(ACME + DRIFTING, encoding="utf-8")

    result = conform(f"--gittrix-system=acme:{drifting}", *PYARGS, "-k", "cap_")

    assert {one for one, status in statuses(pytester)["acme"].items() if status == "broken"} == {code}
    result.stdout.fnmatch_lines([f"*broken {code}: *", "*", f"*{named}*"])


class NotHere:
    """Skips each clause that needs a capability, as one does that this machine cannot play."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Function) -> None:
        clause = clause_of(item.function)
        if clause is not None and Capability.DISCARD in clause.needs:
            pytest.skip("not here")


def test_a_declared_capability_that_nothing_was_put_to_fails_the_run(conform: Run) -> None:
    codes = [clause.code for clause in all_clauses() if Capability.DISCARD in clause.needs]
    selected = " or ".join(f"test_{code.lower().replace('-', '_')}_" for code in codes)

    result = conform(*PYARGS, "-k", f"cap_01 or {selected}", plugins=[NotHere()])

    assert (result.parseoutcomes()["skipped"], result.parseoutcomes().get("failed", 0)) == (len(codes), 0)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["declared, and never tested: discard *"])


# Reports --------------------------------------------------------------------------------------------------------------------------


def test_the_same_report_comes_from_one_process_and_from_several(conform: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_acme=suite('    waivers = {"CNF-01": "acme never promotes"}', "ConflictClauses"))
    for name, arguments in {"one": (), "several": ("-n", "2")}.items():
        conform(
            *arguments, f"--gittrix-conformance-report={name}.json", f"--gittrix-conformance-report={name}.html", "-k", "cnf_01 or cnf_02"
        )

    for suffix in ("json", "html"):
        one, several = (Path(pytester.path, f"{name}.{suffix}").read_text(encoding="utf-8") for name in ("one", "several"))
        assert one == several


def test_reports_are_named_in_the_configuration_and_the_environment(
    conform: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ini = Path(pytester.path, "pytest.ini")
    ini.write_text(f"{ini.read_text(encoding='utf-8')}gittrix_conformance_report =\n    a.json\n    deep/b.html\n", encoding="utf-8")
    conform("--pyargs", "pytest_gittrix.conformance", "-k", "cap_01")
    monkeypatch.setenv("PYTEST_GITTRIX_CONFORMANCE_REPORT", "c.json:d.html")
    conform("--pyargs", "pytest_gittrix.conformance", "-k", "cap_01")

    assert [Path(pytester.path, name).exists() for name in ("a.json", "deep/b.html", "c.json", "d.html")] == [True] * 4


def test_a_report_that_cannot_be_written_fails_the_run_and_spoils_no_other(conform: Run, pytester: pytest.Pytester) -> None:
    Path(pytester.path, "file").write_text("in the way\n", encoding="utf-8")

    result = conform("--gittrix-conformance-report=file/report.json", *PYARGS, "-k", "cap_01")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gittrix: the conformance report cannot be written: *file*", "level reached: *"])
    assert statuses(pytester) == {"gittrix (clone)": {"CAP-01": "kept"}}


def test_a_run_without_clauses_says_nothing_of_them(run: Run, pytester: pytest.Pytester) -> None:
    result = run("def test_it(gittrix_session): pass", "--gittrix-conformance-report=report.json")

    result.stdout.no_fnmatch_line("*conformance*:*")
    assert not Path(pytester.path, "report.json").exists()


def test_the_plugin_knows_reports_of_ours_by_the_names_of_their_properties() -> None:
    assert {PROPERTY, RUN} == plugin._OURS


def test_a_set_leaves_out_what_came_later(conform: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gittrix.conformance.base.clause.SETS", {"2025.9": {"CAP": 2}})

    conform("--gittrix-system=acme:Acme", "--gittrix-clauses=2025.9", *PYARGS)

    (seen,) = statuses(pytester).values()
    assert [*seen] == ["CAP-01", "CAP-02"]


def test_a_set_that_is_none_is_refused_with_the_names_of_those_that_are(conform: Run) -> None:
    result = conform("--gittrix-clauses=2026.0", *PYARGS)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'2026.0' is not a valid gittrix clauses (from --gittrix-clauses). Valid values: 2026.1.*"])


def test_a_search_for_crashes_judges_who_does_not_claim_to_survive_them(conform: Run, pytester: pytest.Pytester) -> None:
    Path(pytester.path, "acme.py").write_text(
        "from fixtures.broken_systems.zoo import ZOO\n"
        "from pytest_gittrix.testing.systems.protocol import Capability\n"
        "acme = ZOO['writes in place'].system()\n"
        "acme.capabilities -= {Capability.CRASH}\n",
        encoding="utf-8",
    )

    conform("--gittrix-system=acme:acme", "--gittrix-crash=600", *PYARGS, "-k", "dur_09").assert_outcomes(failed=1)

    (system,) = json.loads(Path(pytester.path, "report.json").read_text(encoding="utf-8"))["systems"]
    [broken] = [one for one in system["clauses"] if one["status"] == "broken"]
    assert broken["code"] == "DUR-09"
    assert "Another process, which was to write, met " in broken["reason"]
    assert broken["replay"] == "gittrix conform acme:acme --clause DUR-09 --crash 600"
    assert "kills at calls that change a file were tried" in broken["reason"]
