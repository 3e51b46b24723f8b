"""The local forge is a true stand-in: what it says and does is what git finds in its repository, over real HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.git import try_git

from pytest_gittrix.errors import Deadlock, InvalidInput
from pytest_gittrix.git.environment import run_git
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.forge_state import ForgeRefusal
from pytest_gittrix.testing.repos.remote_repos import BareRemote


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[BareRemote]:
    with BareRemote.make(tmp_path / "remote.git", history=[{"app.py": "1\n"}, {"app.py": "2\n"}]) as made:
        yield made


@pytest.fixture
def server(remote: BareRemote) -> Iterator[ForgeServer]:
    with ForgeServer(remote) as served:
        remote.repo.git("update-ref", "refs/heads/topic", remote.repo.head())
        remote.repo.commit({"new.py": "3\n"}, branch="topic")
        yield served


def asked(server: ForgeServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """What the server answers: status, JSON and headers."""
    connection = http.client.HTTPConnection(urlsplit(server.web).netloc, timeout=30)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def clone(server: ForgeServer, path: Path) -> Path:
    """A clone over HTTP, by git itself, with somebody's name."""
    allowed = {"GIT_ALLOW_PROTOCOL": "http"}
    assert try_git("clone", "-q", server.git_url, str(path), env=allowed).returncode == 0
    return path


def push(path: Path, files: dict[str, str], *, branch: str = "main") -> tuple[int, str]:
    """Commit files in a clone and push them; the status of the push, and what it said."""
    for name, text in files.items():
        (path / name).write_text(text)
    run_git(["add", "--all"], cwd=path)
    run_git(["commit", "-q", "-m", "pushed"], cwd=path)
    done = try_git("push", "-q", "origin", f"HEAD:{branch}", cwd=path, env={"GIT_ALLOW_PROTOCOL": "http"})
    return done.returncode, done.stderr.decode()


# Git over HTTP -----------------------------------------------------------------------------------------------------------------------


def test_git_clones_and_pushes_over_http(server: ForgeServer, remote: BareRemote, tmp_path: Path) -> None:
    here = clone(server, tmp_path / "clone")
    assert (here / "app.py").read_text() == "2\n"

    assert push(here, {"app.py": "3\n"})[0] == 0

    assert remote.repo.read("app.py") == b"3\n"
    assert remote.repo.git("fsck", "--strict", "--no-dangling") == ""


def test_a_large_push_arrives_whole(server: ForgeServer, remote: BareRemote, tmp_path: Path) -> None:
    here = clone(server, tmp_path / "clone")
    lines = "".join(f"{number * 7919 % 1000003}\n" for number in range(400_000))

    assert push(here, {"large.txt": lines})[0] == 0

    assert remote.repo.read("large.txt") == lines.encode()
    assert remote.repo.git("fsck", "--strict", "--no-dangling") == ""


def test_the_hooks_of_the_repository_run_on_a_push(server: ForgeServer, remote: BareRemote, tmp_path: Path) -> None:
    remote.reject("not on a Friday")

    status, said = push(clone(server, tmp_path / "clone"), {"app.py": "3\n"})

    assert status != 0
    assert "not on a Friday" in said
    assert remote.repo.read("app.py") == b"2\n"


def test_a_token_is_asked_for_where_there_are_any(remote: BareRemote) -> None:
    with ForgeServer(remote, tokens={"secret"}) as server:
        path = "/api/v3/repos/acme/app/pulls"
        assert asked(server, "GET", path)[0] == 401
        assert asked(server, "GET", path, authorization="Bearer wrong")[0] == 401
        assert asked(server, "GET", path, authorization="Bearer secret")[:2] == (200, [])
        assert asked(server, "GET", path, authorization="token secret")[0] == 200
        assert try_git("ls-remote", server.git_url, env={"GIT_ALLOW_PROTOCOL": "http"}).returncode != 0


# The API -----------------------------------------------------------------------------------------------------------------------------


def test_pages_lead_to_one_another_and_then_end(server: ForgeServer) -> None:
    server.state.checks("main", {f"c{number}": "success" for number in range(5)})
    seen: list[str] = []
    path: str | None = f"/api/v3/repos/acme/app/commits/{server.remote.repo.head()}/check-runs?per_page=2"
    pages = 0
    while path is not None:
        status, body, headers = asked(server, "GET", path)
        assert status == 200
        assert body["total_count"] == 5
        seen += [run["name"] for run in body["check_runs"]]
        pages += 1
        link = headers.get("link")
        path = urlsplit(link[1 : link.index(">")])._replace(scheme="", netloc="").geturl() if link else None

    assert (seen, pages) == (["c0", "c1", "c2", "c3", "c4"], 3)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/v3/repos/acme/other/pulls", None, 404),
        ("GET", "/api/v3/user", None, 404),
        ("DELETE", "/api/v3/repos/acme/app/pulls", None, 404),
        ("POST", "/api/v3/repos/acme/app/pulls", [], 422),
        ("POST", "/api/v3/repos/acme/app/pulls", {"head": "topic", "base": "main"}, 422),
        ("POST", "/api/v3/repos/acme/app/pulls", {"head": "stranger:topic", "base": "main", "title": "t"}, 422),
        ("POST", "/api/v3/repos/acme/app/issues", {}, 422),
        ("POST", "/api/v3/repos/acme/app/issues/9/comments", {"body": "x"}, 404),
        ("PUT", "/api/v3/repos/acme/app/pulls/9/merge", None, 404),
        ("GET", "/api/v3/repos/acme/app/commits/nothing/status", None, 422),
    ],
)
def test_what_it_does_not_grant_it_refuses_as_github_does(server: ForgeServer, method: str, path: str, body: Any, status: int) -> None:
    found, said, _ = asked(server, method, path, body)

    assert found == status
    assert said["message"]


def test_a_merge_is_a_commit_in_the_repository(server: ForgeServer, remote: BareRemote) -> None:
    server.state.open_pull({"title": "t", "head": "topic", "base": "main"})
    before, head = remote.repo.head(), remote.repo.head("topic")

    status, body, _ = asked(server, "PUT", "/api/v3/repos/acme/app/pulls/1/merge")

    assert (status, body["sha"]) == (200, remote.repo.head())
    assert remote.repo.log()[0].parents == (before, head)
    assert set(remote.repo.tree()) == {"app.py", "new.py"}
    with pytest.raises(ForgeRefusal):
        server.state.merge(1)


def test_a_draft_and_a_conflict_are_not_merged(server: ForgeServer, remote: BareRemote) -> None:
    server.state.open_pull({"title": "t", "head": "topic", "base": "main", "draft": True})
    before = remote.repo.head()
    with pytest.raises(ForgeRefusal):
        server.state.merge(1)

    server.state.pulls[1].draft = False
    moved = remote.diverge({"new.py": "theirs\n"})
    with pytest.raises(ForgeRefusal):
        server.state.merge(1)

    assert (remote.repo.head(), before) == (moved, remote.repo.log()[1].id)


def test_a_head_that_is_pushed_onto_its_base_is_merged(server: ForgeServer, remote: BareRemote) -> None:
    server.state.open_pull({"title": "t", "head": "topic", "base": "main"})

    remote.repo.git("update-ref", "refs/heads/main", remote.repo.head("topic"))

    assert asked(server, "GET", "/api/v3/repos/acme/app/pulls/1")[1]["merged"] is True


def test_a_pull_request_outlives_its_branch(server: ForgeServer, remote: BareRemote) -> None:
    server.state.open_pull({"title": "t", "head": "topic", "base": "main"})
    head = remote.repo.head("topic")
    remote.repo.git("update-ref", "-d", "refs/heads/topic")

    body = asked(server, "GET", "/api/v3/repos/acme/app/pulls/1")[1]

    assert (body["state"], body["head"]["sha"]) == ("open", head)


def test_faults_are_used_up_in_order_by_the_requests_they_are_meant_for(server: ForgeServer) -> None:
    server.fail("status", status=503, on="/issues")
    server.fail("status", status=500, times=2)
    path = "/api/v3/repos/acme/app/pulls"

    statuses = [asked(server, "GET", path)[0] for _ in range(3)]

    assert statuses == [500, 500, 200]
    assert asked(server, "POST", "/api/v3/repos/acme/app/issues", {"title": "t"})[0] == 503
    assert asked(server, "POST", "/api/v3/repos/acme/app/issues", {"title": "t"})[0] == 201


def test_closing_does_not_wait_for_slow_requests_and_can_be_done_twice(remote: BareRemote) -> None:
    server = ForgeServer(remote)
    server.fail("slow", seconds=600)
    connection = http.client.HTTPConnection(urlsplit(server.web).netloc, timeout=30)
    connection.request("GET", "/api/v3/repos/acme/app/pulls")
    while not server.requests:
        time.sleep(0.001)

    server.close()
    server.close()

    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()


def test_verdicts_that_are_none_are_refused(server: ForgeServer) -> None:
    server.state.open_pull({"title": "t", "head": "topic", "base": "main"})

    with pytest.raises(InvalidInput, match="approved, changes_requested"):
        server.state.review(1, "ann", "meh")


# Bare remotes ------------------------------------------------------------------------------------------------------------------------


def test_a_remote_that_was_rewritten_has_lost_its_last_commit(remote: BareRemote) -> None:
    first, last = [commit.id for commit in reversed(remote.repo.log())]

    new = remote.rewrite()

    assert [commit.id for commit in remote.repo.log()] == [new, first]
    assert last != new
    assert remote.repo.log()[0].author.email != remote.repo.log()[1].author.email


def test_a_remote_of_one_commit_cannot_be_rewritten(tmp_path: Path) -> None:
    with BareRemote.make(tmp_path / "one.git", files={"a": "1"}) as one, pytest.raises(InvalidInput, match="one commit only"):
        one.rewrite()


def test_a_read_only_remote_takes_no_push_until_it_does_again(server: ForgeServer, remote: BareRemote, tmp_path: Path) -> None:
    here = clone(server, tmp_path / "clone")
    remote.read_only()
    assert "403" in push(here, {"app.py": "3\n"})[1]

    remote.accept()

    assert push(here, {"app.py": "4\n"})[0] == 0


def test_a_slow_remote_takes_its_time_and_the_push(server: ForgeServer, remote: BareRemote, tmp_path: Path) -> None:
    remote.slow(0.05)

    assert push(clone(server, tmp_path / "clone"), {"app.py": "3\n"})[0] == 0
    assert remote.repo.read("app.py") == b"3\n"


def test_nobody_waits_for_a_push_that_does_not_come(remote: BareRemote) -> None:
    with remote.held() as held, pytest.raises(Deadlock, match="No push came"):
        held.wait(timeout=0.05)

    assert list((remote.path / "hooks").iterdir()) == []
    assert not (remote.path / "held").exists()


def test_a_place_that_is_taken_and_a_hook_that_is_none_are_refused(remote: BareRemote) -> None:
    with pytest.raises(InvalidInput, match="is there already"):
        BareRemote.make(remote.path)
    with pytest.raises(InvalidInput, match="is no hook of a push"):
        remote.hook("pre-commit", "exit 1")  # type: ignore[arg-type]
