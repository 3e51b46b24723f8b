"""The fixtures for remotes and a forge: they belong to the world of the test, and nothing of them is left."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.testing.repos.remote_kit import forge_at, remotes
from pytest_gittrix.testing.world import World

Run = Callable[..., pytest.RunResult]


def test_a_remote_is_beside_the_world_and_on_its_clock(run: Run) -> None:
    source = """
        from datetime import UTC, datetime

        def test_it(gittrix_remote, gittrix_durable, gittrix_clock):
            remote = gittrix_remote(files={"a.txt": "a"}, name="mine")
            gittrix_clock.advance(days=1)
            remote.diverge({"b.txt": "b"})
            assert remote.path.name == "mine.git"
            assert remote.path.parents[1] == gittrix_durable.path.parent
            assert set(remote.repo.tree()) == {"a.txt", "b.txt"}
            assert remote.repo.log()[0].author.when == datetime(2030, 1, 2, tzinfo=UTC)
    """
    run(source).assert_outcomes(passed=1)


def test_without_files_it_has_the_commits_of_durable(run: Run) -> None:
    source = """
        import pytest

        @pytest.mark.gittrix(files={"mine.txt": "mine"}, branch="trunk")
        def test_it(gittrix_remote, gittrix_forge, gittrix_durable):
            remotes = [gittrix_remote(), gittrix_remote(), gittrix_forge.remote]
            assert [remote.repo.head() for remote in remotes] == [gittrix_durable.head()] * 3
            assert [remote.repo.branch for remote in remotes] == ["trunk"] * 3
            assert len({remote.path for remote in remotes}) == 3
            assert gittrix_remote.made == remotes[:2]
    """
    run(source).assert_outcomes(passed=1)


def test_the_same_test_gives_the_same_commits(run: Run) -> None:
    source = """
        import pytest
        seen = set()

        @pytest.mark.parametrize("turn", range(2))
        def test_same(gittrix_remote, turn):
            remote = gittrix_remote(history=[{"a": "1"}, {"a": "2"}])
            seen.add((remote.repo.head(), remote.diverge(), remote.rewrite()))
            assert len(seen) == 1
    """
    run(source).assert_outcomes(passed=2)


def test_a_forge_that_a_test_leaves_in_trouble_ends_with_it(run: Run) -> None:
    source = """
        import socket
        import pytest

        ports = []

        def test_left(gittrix_forge):
            gittrix_forge.fail("slow", times=None, seconds=600)
            ports.append(int(gittrix_forge.web.rpartition(":")[2]))
            with socket.create_connection(("127.0.0.1", ports[0])) as asking:
                asking.sendall(b"GET /api/v3/repos/acme/app/pulls HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
            raise ValueError

        def test_next():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", ports[0]))
    """
    run(source, "-p", "no:randomly").assert_outcomes(failed=1, passed=1)


def test_a_session_becomes_a_pull_request_with_ci_and_a_review(run: Run) -> None:
    source = """
        from pytest_gittrix import GitTrix

        def test_it(gittrix_forge, gittrix_clock, tmp_path):
            gittrix_forge.tokens.add("secret")
            url = gittrix_forge.git_url.replace("://", "://git:secret@")
            forge = gittrix_forge.forge()
            with GitTrix(url, home=tmp_path, clock=gittrix_clock, forge=forge) as gittrix:
                session = gittrix.start_session("fix the bug")
                session.write("app.py", "v2")
                result = session.promote(strategy="pr")
            gittrix_forge.state.checks(result.branch, {"build": "failure"})
            gittrix_forge.state.review(1, "ann", "changes_requested")
            assert (forge.ci(result.sha).state, forge.reviews(1).state) == ("failing", "changes_requested")
            gittrix_forge.state.merge(1)
            assert forge.pr(1).state == "merged"
    """
    run(source).assert_outcomes(passed=1)


def test_nothing_is_made_for_those_who_ask_for_neither(run: Run) -> None:
    source = """
        def test_it(gittrix_durable):
            assert not (gittrix_durable.path.parent / "remotes").exists()
    """
    run(source).assert_outcomes(passed=1)


def test_inside_given_the_context_managers_do_the_same() -> None:
    with World.open(files={"a.txt": "a"}) as world, remotes(world) as make, forge_at(world, tokens={"secret"}) as server:
        assert make().repo.head() == server.remote.repo.head() == world.durable.head()
        assert server.forge().find_prs() == []
        assert world.path in server.remote.path.parents


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "nul\0", "-x", "a b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with World.open() as world, remotes(world) as make, pytest.raises(InvalidInput):
        make(name=name)


@pytest.mark.parametrize("files", [None, {"a": "1"}])
def test_two_remotes_of_one_name_are_refused(files: dict[str, str] | None) -> None:
    with World.open() as world, remotes(world) as make:
        make(name="app", files=files)
        with pytest.raises(InvalidInput, match="is there already"):
            make(name="app", files=files)


def test_without_the_client_the_adapter_is_refused_and_the_server_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with World.open() as world, forge_at(world) as server:
        with pytest.raises(CapabilityMissing, match="httpx"):
            server.forge()
        assert server.git_url.endswith("/acme/app.git")
