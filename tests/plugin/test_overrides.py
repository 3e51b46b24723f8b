"""The fixtures are a chain: what a project, a module or a class overrides reaches every fixture that is built on it."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

Run = Callable[..., pytest.RunResult]

HOUSE = """
    import pytest

    @pytest.fixture
    def gittrix_durable(gittrix_durable):
        gittrix_durable.commit({"house.md": "rules\\n"})
        return gittrix_durable
"""


def test_an_override_reaches_every_fixture_in_whatever_order_they_are_named(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(HOUSE)
    source = """
        def test_session(gittrix_session):
            assert gittrix_session.exists("house.md")

        def test_agent(gittrix_agent):
            assert gittrix_agent.exists("house.md")

        def test_engine(gittrix):
            assert gittrix.start_session("x").exists("house.md")

        def test_durable_first(gittrix_durable, gittrix_session):
            assert gittrix_session.exists("house.md")

        def test_durable_second(gittrix_session, gittrix_durable):
            assert gittrix_session.exists("house.md")

        def test_rival(gittrix_rival):
            assert gittrix_rival.read("house.md") == b"rules\\n"

        def test_ephemeral(gittrix_ephemeral):
            assert (gittrix_ephemeral.path / "house.md").exists()

        def test_remote(gittrix_remote):
            assert gittrix_remote().repo.read("house.md") == b"rules\\n"

        def test_forge(gittrix_forge):
            assert gittrix_forge.remote.repo.read("house.md") == b"rules\\n"

        def test_line(gittrix_chain, gittrix):
            line = gittrix_chain("ada", ["handoff", "active"])
            assert gittrix.get_session(line[-1].id).exists("house.md")

        def test_state(gittrix_session_in, gittrix):
            assert gittrix.get_session(gittrix_session_in("active", of="gittrix").id).exists("house.md")
    """
    run(source).assert_outcomes(passed=11)


def test_the_override_that_is_nearest_to_the_test_counts(run: Run, pytester: pytest.Pytester) -> None:
    extends = """
        import pytest

        @pytest.fixture
        def gittrix_durable(gittrix_durable):
            gittrix_durable.commit({{"{name}": "x"}})
            return gittrix_durable
    """
    test = """
        def test_it(gittrix_session):
            assert [path for path in ("project", "package", "module") if gittrix_session.exists(path)] == {expected}
    """
    pytester.makeconftest(dedent(extends).format(name="project"))
    package = pytester.mkpydir("package")
    (package / "conftest.py").write_text(dedent(extends).format(name="package"))
    (package / "test_inside.py").write_text(dedent(test).format(expected=["project", "package"]))
    (package / "test_module.py").write_text(
        dedent(extends).format(name="module") + dedent(test).format(expected=["project", "package", "module"])
    )

    run(test.format(expected=["project"])).assert_outcomes(passed=3)


def test_a_class_has_an_engine_of_its_own(run: Run) -> None:
    source = """
        import pytest
        from pytest_gittrix import GitTrix, LocalDurable, LocalEphemeral

        class TestOwn:
            @pytest.fixture
            def gittrix(self, gittrix_durable, gittrix_clock, tmp_path):
                durable = LocalDurable(gittrix_durable.path)
                with GitTrix(durable, LocalEphemeral("copy"), home=tmp_path / "h", clock=gittrix_clock, sweep_interval=None) as engine:
                    yield engine

            def test_session(self, gittrix_session, gittrix, gittrix_clock, tmp_path):
                assert gittrix_session.info().workspace_kind == "copy"
                assert gittrix_session.workspace_path.is_relative_to(tmp_path)
                gittrix_clock.advance(days=3)
                assert gittrix.sweep() == [gittrix_session.id]

            def test_agent(self, gittrix_agent, gittrix, gittrix_env):
                assert [one.id for one in gittrix.list_sessions()] == [gittrix_agent.id]
                assert gittrix_env["GITTRIX_HOME"] != str(gittrix.home)

            def test_kits(self, gittrix_chain, gittrix_session_in, gittrix_timeline, gittrix):
                gittrix_chain("ada", ["handoff", "done"])
                gittrix_session_in("expired", of="gittrix")
                gittrix_timeline().at("0", runtime="alive").play()
                assert len(gittrix.list_sessions()) == 4

        class TestPlugins:
            @pytest.fixture
            def gittrix(self, gittrix):
                gittrix.start_session("always there")
                return gittrix

            def test_it(self, gittrix_session, gittrix):
                assert {one.task for one in gittrix.list_sessions()} == {"always there", "test_it"}

        def test_outside(gittrix_session, gittrix):
            assert [one.task for one in gittrix.list_sessions()] == ["test_outside"]
    """
    run(source, "--gittrix-freeze=none").assert_outcomes(passed=5)


def test_a_session_of_the_projects_own_is_the_agents_too(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture
        def gittrix_session(gittrix_session):
            gittrix_session.write("AGENTS.md", "rules")
            return gittrix_session
    """)
    source = """
        def test_it(gittrix_agent, gittrix_session):
            assert gittrix_agent.id == gittrix_session.id
            assert gittrix_agent.touched_files() == ["AGENTS.md"]
    """
    run(source).assert_outcomes(passed=1)


# The clock ---------------------------------------------------------------------------------------------------------------------


def test_a_clock_of_the_modules_own_is_that_of_the_whole_test(run: Run) -> None:
    source = """
        from datetime import UTC, datetime
        import pytest
        from pytest_gittrix import FrozenClock

        START = datetime(2035, 5, 5, tzinfo=UTC)

        @pytest.fixture
        def gittrix_clock():
            clock = FrozenClock(START)
            yield clock
            clock.close()

        def test_durable(gittrix_durable):
            assert gittrix_durable.log()[0].committer.when.isoformat() == "2035-05-04T23:59:00+00:00"

        def test_engine(gittrix, gittrix_clock, gittrix_session):
            assert gittrix.clock is gittrix_clock
            assert gittrix_session.info().created_at == START
            gittrix_clock.advance(days=1)
            assert gittrix.swept() == [gittrix_session.id]

        def test_environment(gittrix_env, gittrix_clock):
            gittrix_clock.advance(seconds=1)
            assert gittrix_env["GIT_COMMITTER_DATE"].startswith(str(int(START.timestamp()) + 1))

        def test_other_people(gittrix_rival):
            gittrix_rival.commit({"x": "x"})
            assert gittrix_rival.log()[0].committer.when == START

        def test_the_process_is_frozen_by_its_owner(gittrix_clock):
            assert datetime.now(UTC).year < 2030

        @pytest.mark.gittrix(freeze="wall")
        def test_or_by_the_marker(gittrix_durable):
            assert datetime.now(UTC) == START
    """
    run(source).assert_outcomes(passed=6)


EXTENDED_CLOCK = """
    import time
    from datetime import UTC, datetime
    import pytest

    @pytest.fixture
    def gittrix_clock(gittrix_clock):
        gittrix_clock.advance(hours=7)
        return gittrix_clock

    def hour():
        return datetime.now(UTC).hour

    def test_durable(gittrix_durable):
        assert gittrix_durable.log()[0].committer.when.isoformat() == "2030-01-01T06:59:00+00:00"
        assert datetime.now(UTC).year == 2030

    def test_clock(gittrix_clock, gittrix_session):
        assert gittrix_session.info().created_at == gittrix_clock.now() == datetime.now(UTC)
        gittrix_clock.advance(hours=1)
        assert hour() == 8

    def test_clock_alone(gittrix_clock):
        assert hour() == 7

    @pytest.mark.gittrix(clock_start="2031-01-01T00:00:00Z", freeze="none")
    def test_marker(gittrix_session):
        assert gittrix_session.info().created_at.isoformat() == "2031-01-01T07:00:00+00:00"
        assert datetime.now(UTC).year < 2030

    class TestTwice:
        @pytest.fixture
        def gittrix_clock(self, gittrix_clock):
            gittrix_clock.advance(hours=1)
            return gittrix_clock

        def test_it(self, gittrix_session):
            assert gittrix_session.info().created_at.hour == hour() == 8

    class TestPromotes:
        def test_it(self, gittrix_session, gittrix_durable, gittrix_race, gittrix_env):
            gittrix_session.write("new", "x")
            gittrix_session.promote()
            assert gittrix_durable.log()[0].committer.when.hour == 7
            assert gittrix_durable.repo.head.commit.committed_datetime.hour == 7
"""


def test_a_clock_that_extends_the_plugins_is_moved_before_the_world_is_opened_on_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(EXTENDED_CLOCK)

    pytester.runpytest_subprocess("-p", "no:schemathesis").assert_outcomes(
        passed=6
    )  # alone, so that modules are loaded on the frozen clock


# Repositories of one's own -----------------------------------------------------------------------------------------------------

OWN = """
    import subprocess
    import pytest
    from pytest_gittrix import DurableRepo

    @pytest.fixture{scope}
    def gittrix_durable({takes}):
        {path}
        def git(*arguments):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)
        git("init", "-q", "-b", "trunk", str(path))
        (path / "mine.txt").write_text("mine\\n")
        git("-C", str(path), "add", "-A")
        git("-C", str(path), "commit", "-q", "-m", "mine")
        with DurableRepo(path, "trunk") as durable:
            yield durable
"""


def own(*, scope: str = "", takes: str = "tmp_path", path: str = 'path = tmp_path / "own"') -> str:
    return dedent(OWN).format(scope=scope, takes=takes, path=path)


def test_a_repository_of_the_projects_own_is_promoted_to(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(own())
    source = """
        def test_session(gittrix_session, gittrix_durable, gittrix_rival, gittrix):
            assert gittrix_durable.path.name == "own"
            assert gittrix_session.info().durable_branch == "trunk"
            assert gittrix.durable.branch == "trunk"
            gittrix_session.write("new", "x")
            gittrix_rival.commit({"theirs": "y"})
            result = gittrix_session.promote()
            assert gittrix_durable.head() == result.sha
            assert sorted(gittrix_durable.tree()) == ["mine.txt", "new", "theirs"]

        def test_ephemeral(gittrix_ephemeral, gittrix_durable):
            assert gittrix_ephemeral.baseline == gittrix_durable.head()
            assert (gittrix_ephemeral.path / "mine.txt").exists()

        def test_rival_alone(gittrix_rival):
            assert gittrix_rival.log()[0].message == "mine\\n"

        def test_remote(gittrix_remote, gittrix_forge):
            assert gittrix_remote().repo.branch == gittrix_forge.remote.repo.branch == "trunk"

        def test_in_order(gittrix, gittrix_clock, gittrix_chain, gittrix_session_in):
            assert gittrix.durable.path.endswith("own")
            assert len(gittrix_chain("ada", ["handoff", "done"])) == 2
            assert len(gittrix.list_sessions()) == 2
    """
    run(source, "--gittrix-freeze=none").assert_outcomes(passed=5)


def test_the_report_of_a_failing_test_is_of_its_own_repository_and_engine(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(own())
    source = """
        import pytest
        from pytest_gittrix import GitTrix, LocalDurable

        def test_durable(gittrix_session):
            gittrix_session.write("new", "x")
            assert False

        class TestEngine:
            @pytest.fixture
            def gittrix(self, gittrix_durable, tmp_path):
                with GitTrix(LocalDurable(gittrix_durable.path), home=tmp_path / "home", durability="fast") as engine:
                    yield engine

            def test_engine(self, gittrix_session, gittrix_env):
                gittrix_session.write("other", "x")
                assert False
    """
    shown = run(source).stdout.str()

    assert shown.count(": mine\n") == 2, shown
    assert "path=new op=write" in shown
    assert "path=other op=write" in shown
    assert "cannot be read" not in shown


def test_the_checkout_of_the_run_is_watched_beside_a_repository_of_the_projects_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(own())
    pytester.makepyfile("""
        import subprocess

        COMMIT = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m agent"

        def test_it(gittrix_session, gittrix_durable):
            with gittrix_durable.unchanged():
                subprocess.run(f"git init -q && {COMMIT}", shell=True, check=True)

        def test_again(gittrix_session, gittrix_durable):
            with gittrix_durable.unchanged():
                subprocess.run(COMMIT, shell=True, check=True)
    """)

    result = pytester.runpytest_inprocess("-p", "no:schemathesis", "-p", "no:cacheprovider", "-p", "no:randomly")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E *, where this test run was started, changed:"])


def test_a_wider_scope_shares_one_repository_between_tests(run: Run) -> None:
    takes, path = "tmp_path_factory", 'path = tmp_path_factory.mktemp("shared") / "own"'
    source = own(scope='(scope="module")', takes=takes, path=path) + dedent("""
        @pytest.mark.parametrize("turn", [1, 2, 3])
        def test_it(gittrix_session, gittrix_durable, turn):
            gittrix_session.write(f"{turn}.txt", "x")
            gittrix_session.promote()
            assert len(gittrix_durable.log()) == turn + 1
    """)
    run(source, "-p", "no:randomly").assert_outcomes(passed=3)


def test_an_engine_with_a_wider_scope_opens_no_world_of_the_tests_own(run: Run) -> None:
    source = """
        import pytest

        class TestShared:
            @pytest.fixture(scope="class")
            def shared(self, gittrix_worlds):
                with gittrix_worlds.open(files={"a": "1"}) as world:
                    yield world

            @pytest.fixture(scope="class")
            def gittrix(self, shared):
                return shared.gittrix

            @pytest.fixture(scope="class")
            def gittrix_durable(self, shared):
                return shared.durable

            @pytest.mark.parametrize("turn", [1, 2])
            def test_it(self, gittrix_session, gittrix_rival, gittrix, gittrix_worlds, shared, turn):
                assert gittrix_session.exists("a")
                gittrix_rival.commit({f"{turn}": "x"})
                assert len(shared.durable.log()) == turn + 1
                assert len(gittrix.list_sessions()) == len(shared.sessions) == turn
                assert len(gittrix_worlds.opened) == 1
    """
    run(source, "-p", "no:randomly").assert_outcomes(passed=2)


def test_an_override_may_ask_for_what_is_not_built_on_it(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import subprocess
        import pytest
        from pytest_gittrix import DurableRepo

        @pytest.fixture
        def gittrix_durable(gittrix_env, gittrix_clock, gittrix_remote, tmp_path):
            remote = gittrix_remote(files={"from.txt": "remote\\n"}, name="app")
            subprocess.run(["git", "clone", "-q", remote.url, str(tmp_path / "clone")], env=gittrix_env, check=True)
            with DurableRepo(tmp_path / "clone", when=gittrix_clock.now) as durable:
                yield durable
    """)
    source = """
        def test_it(gittrix_session, gittrix_durable, gittrix_env):
            assert gittrix_session.exists("from.txt")
            gittrix_durable.commit({"x": "x"})
            assert gittrix_durable.log()[0].committer.when.year == 2030
    """
    run(source, "--gittrix-freeze=none").assert_outcomes(passed=1)


def test_an_override_that_asks_for_what_is_built_on_it_is_refused_by_pytest(run: Run) -> None:
    source = """
        import pytest

        @pytest.fixture
        def gittrix_durable(gittrix_durable, gittrix_session):
            return gittrix_durable

        def test_it(gittrix_session):
            pass
    """
    result = run(source)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*recursive dependency involving fixture 'gittrix_*' detected"])


REFUSED = {
    "gittrix_session, gittrix_durable": (
        "gittrix_durable",
        'tmp_path / "own"',
        "gittrix_durable gives PosixPath(*), which is no DurableRepo.",
    ),
    "gittrix_rival": ("gittrix_durable", "None", "gittrix_durable gives None, which is no DurableRepo."),
    "gittrix_ephemeral": ("gittrix_durable", "3", "gittrix_durable gives 3, which is no DurableRepo."),
    "gittrix": ("gittrix_clock", "SystemClock()", "gittrix_clock gives <*SystemClock*>, which is no FrozenClock."),
    "gittrix_durable": ("gittrix_clock", "datetime(2030, 1, 1)", "gittrix_clock gives datetime.datetime(2030, 1, 1, 0, 0), which is no *"),
    "gittrix_agent": ("gittrix", '"engine"', "gittrix gives 'engine', which starts no sessions."),
    "gittrix_chain": ("gittrix", "GitTrix(None, home=tmp_path)", "gittrix runs on <*SystemClock*>, which is no FrozenClock."),
    "gittrix_session": ("gittrix_durable", 'DurableRepo(tmp_path / "absent")', "*absent* is not a directory."),
}


@pytest.mark.parametrize("asks", REFUSED)
def test_what_does_not_fit_is_refused_with_a_reason(asks: str, run: Run) -> None:
    name, value, message = REFUSED[asks]
    source = f"""
        from datetime import datetime
        import pytest
        from pytest_gittrix import DurableRepo, GitTrix
        from pytest_gittrix.clock import SystemClock

        @pytest.fixture
        def {name}(tmp_path):
            return {value}

        def test_it({asks}):
            pass
    """
    result = run(source)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{message.replace('[', '[[]')}"])
    result.stdout.no_fnmatch_line("*gittrix marker*")


# The project's own files and options -------------------------------------------------------------------------------------------


def test_files_of_the_project_are_those_of_every_test_unless_something_nearer_says(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def gittrix_files():
            return {"project.py": "1\\n"}
    """)
    source = """
        import pytest

        def test_project(gittrix_session):
            assert [one.path for one in gittrix_session.list()] == ["project.py"]

        @pytest.mark.gittrix(files={"marked.py": "2\\n"})
        def test_marker(gittrix_durable):
            assert list(gittrix_durable.tree()) == ["marked.py"]

        @pytest.mark.gittrix(history=[{"a": "1"}, {"b": "2"}], branch="trunk")
        def test_history(gittrix_durable):
            assert list(gittrix_durable.tree()) == ["a", "b"]

        @pytest.mark.gittrix(branch="trunk")
        def test_another_argument(gittrix_durable):
            assert (gittrix_durable.branch, list(gittrix_durable.tree())) == ("trunk", ["project.py"])

        class TestClass:
            @pytest.fixture
            def gittrix_files(self, gittrix_files, request):
                return {**gittrix_files, request.node.name: ""}

            def test_class(self, gittrix_durable):
                assert list(gittrix_durable.tree()) == ["project.py", "test_class"]

        class TestNone:
            @pytest.fixture
            def gittrix_files(self):
                return None

            def test_sample(self, gittrix_durable):
                assert "pyproject.toml" in gittrix_durable.tree()

        def test_worlds(gittrix_worlds):
            with gittrix_worlds.open() as world:
                assert "pyproject.toml" in world.durable.tree()
    """
    run(source).assert_outcomes(passed=7)


def test_options_of_the_project_are_those_of_every_world_unless_a_marker_says(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def gittrix_world_options():
            return {"workspace": "copy", "clock_start": "2040-01-01T00:00:00Z", "sweep_interval": None, "history": [{"h": "1"}], "seed": 7}
    """)
    source = """
        import pytest

        def test_project(gittrix_session, gittrix_clock, gittrix):
            info = gittrix_session.info()
            assert (info.workspace_kind, info.created_at.year) == ("copy", 2040)
            assert gittrix_session.exists("h")
            gittrix_clock.advance(days=3)
            assert gittrix.sweep() == [gittrix_session.id]

        @pytest.mark.gittrix(workspace="lazy", files={"f": "1"}, clock_start="2041-01-01T00:00:00Z")
        def test_marker(gittrix_session):
            info = gittrix_session.info()
            assert (info.workspace_kind, info.created_at.year) == ("lazy", 2041)
            assert [one.path for one in gittrix_session.list()] == ["f"]

        class TestClock:
            @pytest.fixture
            def gittrix_clock(self, gittrix_clock):
                gittrix_clock.advance(days=1)
                return gittrix_clock

            def test_extended(self, gittrix_session):
                assert gittrix_session.info().created_at.isoformat() == "2040-01-02T00:00:00+00:00"
    """
    run(source, "--gittrix-workspace=clone", "--gittrix-freeze=none").assert_outcomes(passed=3)


WRONG = {
    '{"fils": {}}': ("the world of test_it has a wrong value for fils= of gittrix_world_options.", "A world has no argument 'fils'."),
    '{"workspace": "zip"}': (
        "the world of test_it has a wrong value for workspace= of gittrix_world_options.",
        "workspace='zip' is not a kind of workspace.",
    ),
    '{"clock_start": "soon"}': ("the world of test_it has a wrong value for clock_start= of gittrix_world_options.", "'soon' is *"),
    '["copy"]': (
        "the world of test_it has a wrong value for gittrix_world_options.",
        "gittrix_world_options gives ['copy'], which is no mapping.",
    ),
}


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_option_of_the_project_is_an_error_at_the_test(options: str, run: Run) -> None:
    first, second = WRONG[options]
    source = f"""
        import pytest

        @pytest.fixture
        def gittrix_world_options():
            return {options}

        def test_it(gittrix):
            pass
    """
    result = run(source)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_it.py:7: {first}", second.replace("[", "[[]")])


def test_a_wrong_file_of_the_project_is_an_error_at_the_test_beside_its_marker(run: Run) -> None:
    source = """
        import pytest

        @pytest.fixture
        def gittrix_files():
            return {"../x": ""}

        @pytest.mark.gittrix(branch="trunk")
        def test_it(gittrix_durable):
            pass
    """
    result = run(source)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*the gittrix marker of test_it has a wrong value for branch= or gittrix_files.", "path '../x' is refused*"]
    )


def test_every_world_is_prepared_by_the_hook_before_an_override_extends_it(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        dedent(HOUSE)
        + dedent("""
            def pytest_gittrix_world(world):
                world.durable.commit({"hook.md": "x"})
        """)
    )
    source = """
        def test_it(gittrix_session, gittrix_durable):
            assert [commit.message for commit in gittrix_durable.log()][:2] == ["Change house.md\\n", "Change hook.md\\n"]
            assert gittrix_session.exists("hook.md") and gittrix_session.exists("house.md")
    """
    run(source).assert_outcomes(passed=1)


def test_a_wider_scope_is_told_how_to_have_a_world(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.fixture(scope="module")
        def mine(gittrix_session):
            return gittrix_session

        @pytest.fixture(scope="module")
        def world(gittrix_worlds):
            with gittrix_worlds.open(files={"app.py": "v1\\n"}) as world:
                yield world

        def test_mine(mine): pass

        class TestWorld:
            def test_one(self, world):
                world.start("first")

            def test_two(self, world):
                assert [session.info().task for session in world.sessions] == ["first"]
    """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ScopeMismatch*gittrix_session*", "*with gittrix_worlds.open(*", "*world.start*starts a session.*"])
