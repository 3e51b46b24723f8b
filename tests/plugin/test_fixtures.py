"""What each fixture gives, and that together they show one world."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., pytest.RunResult]

FIXTURES = [
    "gittrix_session",
    "gittrix_agent",
    "gittrix",
    "gittrix_durable",
    "gittrix_ephemeral",
    "gittrix_rival",
    "gittrix_clock",
    "gittrix_env",
    "gittrix_files",
    "gittrix_world_options",
    "gittrix_race",
    "gittrix_crash",
    "gittrix_model",
    "gittrix_eval",
    "gittrix_worlds",
    "gittrix_system",
]
MORE_FIXTURES = [
    "gittrix_agent_process",
    "gittrix_chain",
    "gittrix_forge",
    "gittrix_log",
    "gittrix_power_cuts",
    "gittrix_remote",
    "gittrix_session_in",
    "gittrix_small_disk",
    "gittrix_timeline",
    "gittrix_turns",
]


def test_all_fixtures_of_a_test_show_one_world(run: Run) -> None:
    source = """
        def test_world(gittrix_session, gittrix_agent, gittrix, gittrix_durable, gittrix_rival, gittrix_clock):
            assert gittrix_agent.id == gittrix_session.id
            assert [found.id for found in gittrix.list_sessions()] == [gittrix_session.id]
            assert gittrix_session.info().baseline_sha == gittrix_durable.head()
            gittrix_rival.commit({"theirs.txt": "x"}, message="theirs")
            assert gittrix_session.info().baseline_sha != gittrix_durable.head()
            assert gittrix.clock is gittrix_clock
    """
    run(source).assert_outcomes(passed=1)


def test_every_test_has_a_world_of_its_own(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("turn", [1, 2])
        def test_fresh(gittrix_durable, gittrix_session, turn):
            assert len(list(gittrix_durable.log())) == 1
            gittrix_session.write("new.txt", "x")
            gittrix_session.promote()
            assert "new.txt" in gittrix_durable.tree()
    """
    run(source).assert_outcomes(passed=2)


def test_the_same_test_gives_the_same_commits(run: Run) -> None:
    source = """
        import pytest
        seen = set()

        @pytest.mark.parametrize("turn", range(3))
        @pytest.mark.gittrix(task="same")
        def test_same(gittrix_session, gittrix_durable, turn):
            gittrix_session.write("new.txt", "x")
            seen.add((gittrix_session.id, gittrix_durable.head(), gittrix_session.promote().sha))
            assert len(seen) == 1
    """
    run(source).assert_outcomes(passed=3)


def test_the_agents_object_cannot_decide(run: Run) -> None:
    source = """
        def test_agent(gittrix_agent):
            gittrix_agent.write("a.txt", "x")
            assert not [name for name in ("promote", "discard", "extend") if hasattr(gittrix_agent, name)]
    """
    run(source).assert_outcomes(passed=1)


@pytest.mark.parametrize("kind", ["clone", "worktree", "copy", "lazy"])
def test_an_ephemeral_is_a_workspace_without_a_session(kind: str, run: Run) -> None:
    source = f"""
        import pytest

        @pytest.mark.gittrix(workspace="{kind}", files={{"a.txt": "a", "b.txt": "b"}})
        def test_ephemeral(gittrix_ephemeral, gittrix_durable, gittrix):
            assert gittrix_ephemeral.kind == "{kind}"
            assert gittrix_ephemeral.baseline == gittrix_durable.head()
            assert (gittrix_ephemeral.path / "a.txt").exists() is ("{kind}" != "lazy")
            assert gittrix_ephemeral.touched_files() == []
            (gittrix_ephemeral.path / "new.txt").write_text("new")
            assert gittrix_ephemeral.touched_files() == ["new.txt"]
            assert gittrix.list_sessions() == []
    """
    run(source).assert_outcomes(passed=1)


def test_the_environment_is_hermetic_and_read_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Nobody")
    source = """
        import subprocess
        import pytest

        def test_env(gittrix_env, gittrix_durable, gittrix_clock):
            assert "GIT_DIR" not in gittrix_env
            with pytest.raises(TypeError):
                gittrix_env["GIT_DIR"] = "x"
            gittrix_clock.advance(days=1)
            make = ["git", "commit", "--quiet", "--allow-empty", "--message=mine"]
            subprocess.run(make, cwd=gittrix_durable.path, env=gittrix_env, check=True)
            show = ["git", "show", "--no-patch", "--format=%aI %an"]
            shown = subprocess.run(show, cwd=gittrix_durable.path, env=gittrix_env, check=True, capture_output=True, text=True)
            assert shown.stdout.startswith("2030-01-02T00:00:00")
            assert "Nobody" not in shown.stdout
    """
    run(source, "--gittrix-freeze=none").assert_outcomes(passed=1)


def test_a_rival_can_be_slipped_into_a_promotion(run: Run) -> None:
    source = """
        import pytest
        from pytest_gittrix import BaselineConflict

        def test_race(gittrix_session, gittrix_rival, gittrix_race, gittrix_durable):
            gittrix_session.write("app.py", "agent")
            gittrix_race.before("promote:drift-checked", lambda: gittrix_rival.commit({"app.py": "human"}, message="hot fix"))
            with pytest.raises(BaselineConflict):
                gittrix_session.promote()
            assert gittrix_durable.read("app.py") == b"human"
    """
    run(source).assert_outcomes(passed=1)


def test_two_promotions_in_every_order_lose_nothing(run: Run) -> None:
    source = """
        from itertools import product
        import pytest

        @pytest.mark.parametrize("schedule", ["".join(order) for order in product("AB", repeat=3)])
        def test_race(gittrix, gittrix_race, gittrix_durable, schedule):
            sessions = {name: gittrix.start_session(name) for name in "AB"}
            for name, session in sessions.items():
                session.write(f"{name}.txt", name)
            outcomes = gittrix_race.run(schedule, A=sessions["A"].promote, B=sessions["B"].promote)
            assert [outcome.error for outcome in outcomes.values()] == [None, None]
            assert {"A.txt", "B.txt"} <= set(gittrix_durable.tree())
            assert len(list(gittrix_durable.log())) == 3
    """
    run(source).assert_outcomes(passed=8)


def test_another_programs_git_is_raced_through_the_environment(run: Run) -> None:
    source = """
        import subprocess

        def test_shim(gittrix_durable, gittrix_rival, gittrix_race):
            before = gittrix_durable.head()
            gittrix_race.before("rev-parse", lambda: gittrix_rival.commit({"a": "rival"}, message="in between"))
            read = ["git", "rev-parse", "main"]
            done = subprocess.run(read, cwd=gittrix_durable.path, env=gittrix_race.env, check=True, capture_output=True, text=True)
            assert done.stdout.strip() == gittrix_durable.head() != before
    """
    run(source).assert_outcomes(passed=1)


def test_a_step_that_was_never_reached_fails_the_test(run: Run) -> None:
    source = """
        def test_race(gittrix_race):
            gittrix_race.before("promote:haed-read", lambda: None)
    """
    result = run(source)

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*Never reached, or less often than asked: promote:haed-read.*"])


def test_worlds_can_be_opened_under_hypothesis(run: Run) -> None:
    source = """
        from hypothesis import given, settings, strategies as st

        @settings(max_examples=5, deadline=None, database=None)
        @given(data=st.binary(min_size=1, max_size=8))
        def test_property(gittrix_worlds, data):
            with gittrix_worlds.open(files={"app.py": ""}, workspace="lazy") as world:
                session = world.start(task="write")
                session.write("app.py", data)
                session.promote()
                assert world.durable.read("app.py") == data
    """
    run(source).assert_outcomes(passed=1)


def test_a_world_refuses_an_argument_that_it_does_not_know(run: Run) -> None:
    source = """
        import pytest
        from pytest_gittrix.errors import InvalidInput

        @pytest.mark.parametrize("wrong", ["fils", "path", "name", "self"])
        def test_it(gittrix_worlds, wrong):
            with pytest.raises(InvalidInput) as refused, gittrix_worlds.open(**{wrong: 1}):
                pass
            assert refused.value.fact == f"A world has no argument {wrong!r}."
            assert "Arguments: files, history, repository, workspace," in refused.value.fix
            assert ("Did you mean files?" in refused.value.fix) == (wrong == "fils")
    """
    run(source).assert_outcomes(passed=4)


def test_the_system_under_test_can_be_overridden(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        from contextlib import contextmanager
        import pytest

        @pytest.fixture(scope="session")
        def gittrix_system(gittrix_system):
            @contextmanager
            def mine(**arguments):
                with gittrix_system(branch="mine", **arguments) as world:
                    yield world
            return mine
    """)
    source = """
        def test_system(gittrix_system):
            with gittrix_system(files={"a": "1"}) as world:
                assert world.durable.branch == "mine"
    """
    run(source).assert_outcomes(passed=1)


def test_fixtures_are_listed_with_what_they_give(run: Run) -> None:
    listed = run("", "--fixtures").outlines

    first_lines = {line.split()[0]: listed[at + 1].strip() for at, line in enumerate(listed) if line.startswith("gittrix")}
    assert sorted(first_lines) == sorted(FIXTURES + MORE_FIXTURES)
    assert all(len(said) > 20 and said.endswith((".", "``.", ":")) for said in first_lines.values())


def test_fixtures_for_special_purposes_are_listed_to_projects_that_ask_for_them(pytester: pytest.Pytester) -> None:
    listed = pytester.runpytest("--fixtures").outlines
    assert sorted(line.split()[0] for line in listed if line.startswith("gittrix")) == sorted(FIXTURES)

    pytester.makeconftest('pytest_plugins = ["pytest_gittrix.more_fixtures"]')
    listed = pytester.runpytest("-W", "error", "--fixtures").outlines
    assert {line.split()[0] for line in listed if line.startswith("gittrix")} == {*FIXTURES, *MORE_FIXTURES}


@pytest.mark.parametrize("name", MORE_FIXTURES)
def test_a_fixture_that_was_not_asked_for_says_which_line_asks_for_it(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(
        f"def test_named({name}): pass\ndef test_called(request): request.getfixturevalue('{name}')\ndef test_other(none): pass"
    )

    result = pytester.runpytest_inprocess("-p", "no:randomly")

    result.assert_outcomes(errors=2, failed=1)
    said = [line.lstrip("E> ") for line in result.outlines]
    assert said.count(f"fixture '{name}' not found") == 2
    assert said.count('Add this line to the conftest.py of your root directory: pytest_plugins = ["pytest_gittrix.more_fixtures"]') == 2
    assert said.count("Or for one run: pytest -p pytest_gittrix.more_fixtures") == 2


def test_no_fixture_is_autouse(run: Run) -> None:
    source = """
        def test_it(request):
            assert not [name for name in request.fixturenames if "gittrix" in name]
    """
    run(source).assert_outcomes(passed=1)
