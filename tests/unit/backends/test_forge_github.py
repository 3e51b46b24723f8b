"""GitHub's API through the adapter, against a real local server over a real repository: pull requests, CI, reviews, issues."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.backends.forge.protocol import CiFacts, Forge, ForgeUnavailable, PrReview, ReviewFacts, Verdict
from pytest_gittrix.errors import AuthFailed, CapabilityMissing, GittrixError, InvalidInput
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote

TOKEN = "hush-0123456789"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForgeServer]:
    with BareRemote.make(tmp_path / "remote.git", files={"app.py": "print('v1')\n"}) as remote:
        with ForgeServer(remote, tokens={TOKEN}) as served:
            branch(served, "topic", {"app.py": "print('v2')\n"})
            yield served


@pytest.fixture
def forge(server: ForgeServer) -> Iterator[GitHubForge]:
    with GitHubForge("acme/app", base_url=server.url, token=TOKEN) as opened:
        yield opened


def branch(server: ForgeServer, name: str, files: Mapping[str, str], *, at: str = "main") -> str:
    """A branch from another one's head, with a commit of these files."""
    repo = server.remote.repo
    repo.git("update-ref", f"refs/heads/{name}", repo.head(at))
    return repo.commit(files, branch=name)


# Pull requests -----------------------------------------------------------------------------------------------------------------------


def test_the_adapter_is_a_forge(forge: GitHubForge, server: ForgeServer) -> None:
    protocol: Forge = forge

    assert protocol.url == f"{server.url}/repos/acme/app"


def test_a_pull_request_is_opened_between_two_branches(forge: GitHubForge, server: ForgeServer) -> None:
    pr = forge.open_pr("topic", "main", "Fix the bug", "It was broken.", draft=True)

    assert (pr.number, pr.title, pr.body, pr.state, pr.draft) == (1, "Fix the bug", "It was broken.", "open", True)
    assert (pr.head, pr.base, pr.head_sha) == ("topic", "main", server.remote.repo.head("topic"))
    assert pr.url.endswith("/acme/app/pull/1")
    assert pr.mergeable is True
    assert forge.pr(1) == pr


def test_a_second_pull_request_of_the_same_branches_is_the_first_one(forge: GitHubForge, server: ForgeServer) -> None:
    first = forge.open_pr("topic", "main", "Fix the bug")

    assert forge.open_pr("topic", "main", "Again") == first
    assert list(server.state.pulls) == [1]


@pytest.mark.parametrize(
    ("head", "base", "title", "message"),
    [
        ("nowhere", "main", "t", "field head is invalid"),
        ("topic", "nowhere", "t", "field base is invalid"),
        ("topic", "main", " ", "title can't be blank"),
        ("main", "main", "t", "No commits between main and main"),
    ],
)
def test_what_cannot_be_a_pull_request_is_refused_in_the_forges_words(
    forge: GitHubForge, head: str, base: str, title: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        forge.open_pr(head, base, title)


def test_a_pull_request_that_does_not_exist_is_refused(forge: GitHubForge) -> None:
    with pytest.raises(InvalidInput, match="status 404: Not Found"):
        forge.pr(7)


@pytest.mark.parametrize("number", [0, -1, True, "1"])
def test_what_is_no_number_is_refused_before_anything_is_asked(forge: GitHubForge, server: ForgeServer, number: int) -> None:
    with pytest.raises(InvalidInput, match="is not the number"):
        forge.pr(number)

    assert server.requests == []


def test_title_body_and_base_change_by_themselves(forge: GitHubForge, server: ForgeServer) -> None:
    forge.open_pr("topic", "main", "Fix the bug", "text")
    branch(server, "next", {"x": "1"})

    assert forge.update_pr(1, title="Better").title == "Better"
    changed = forge.update_pr(1, base="next")

    assert (changed.title, changed.body, changed.base) == ("Better", "text", "next")
    assert forge.update_pr(1) == changed


def test_closing_is_not_merging_and_closing_again_is_no_error(forge: GitHubForge) -> None:
    forge.open_pr("topic", "main", "Fix the bug")

    assert forge.close_pr(1).state == "closed"
    assert forge.close_pr(1).state == "closed"
    assert forge.find_prs() == []
    assert [pr.number for pr in forge.find_prs(state="closed")] == [1]


def test_a_pull_request_that_was_merged_says_so(forge: GitHubForge, server: ForgeServer) -> None:
    forge.open_pr("topic", "main", "Fix the bug")
    before = server.remote.repo.head()

    merge = server.state.merge(1)

    assert forge.pr(1).state == "merged"
    assert forge.find_prs(state="all")[0].state == "merged"
    assert server.remote.repo.head() == merge
    assert server.remote.repo.log()[0].parents == (before, server.remote.repo.head("topic"))
    assert server.remote.repo.read("app.py") == b"print('v2')\n"


def test_a_head_that_is_pushed_to_is_followed(forge: GitHubForge, server: ForgeServer) -> None:
    forge.open_pr("topic", "main", "Fix the bug")

    new = server.remote.repo.commit({"app.py": "print('v3')\n"}, branch="topic")

    assert forge.pr(1).head_sha == new


def test_a_conflict_with_the_base_makes_it_not_mergeable(forge: GitHubForge, server: ForgeServer) -> None:
    forge.open_pr("topic", "main", "Fix the bug")
    server.remote.diverge({"app.py": "print('theirs')\n"})

    assert forge.pr(1).mergeable is False


def test_pull_requests_are_found_by_head_base_and_state_over_all_pages(tmp_path: Path) -> None:
    with BareRemote.make(tmp_path / "remote.git", files={"app.py": "1\n"}) as remote, ForgeServer(remote, page=2) as server:
        forge = GitHubForge("acme/app", base_url=server.url)
        for number in range(5):
            branch(server, f"topic{number}", {"app.py": f"{number}\n"})
            forge.open_pr(f"topic{number}", "main", f"t{number}")
        forge.close_pr(2)
        server.requests.clear()

        assert [pr.number for pr in forge.find_prs(state="all")] == [5, 4, 3, 2, 1]
        assert len(server.requests) == 3
        assert [pr.number for pr in forge.find_prs()] == [5, 4, 3, 1]
        assert [pr.number for pr in forge.find_prs(head="topic3")] == [4]
        assert forge.find_prs(head="topic3", base="other") == []
        assert forge.find_prs(head="topic1") == []
        forge.close()


def test_states_that_are_none_are_not_looked_for(forge: GitHubForge) -> None:
    with pytest.raises(InvalidInput, match="open, closed, all"):
        forge.find_prs(state="merged")  # type: ignore[arg-type]


# CI and reviews ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "statuses", "state"),
    [
        ({}, {}, "none"),
        ({"build": "success", "lint": "neutral", "docs": "skipped"}, {}, "passing"),
        ({"build": "success"}, {"legacy": "pending"}, "pending"),
        ({"build": "queued"}, {"legacy": "success"}, "pending"),
        ({"build": "in_progress", "lint": "failure"}, {}, "failing"),
        ({"build": "success"}, {"legacy": "error"}, "failing"),
        ({"build": "timed_out"}, {}, "failing"),
        ({"build": "cancelled"}, {}, "failing"),
        ({"build": "action_required"}, {}, "failing"),
        ({}, {"legacy": "success"}, "passing"),
        ({}, {"legacy": "failure"}, "failing"),
    ],
)
def test_check_runs_and_statuses_are_one_state(
    forge: GitHubForge, server: ForgeServer, runs: Mapping[str, str], statuses: Mapping[str, str], state: str
) -> None:
    server.state.checks("topic", runs)
    server.state.statuses("topic", statuses)

    facts = forge.ci(server.remote.repo.head("topic"))

    assert facts.state == state
    assert [check.name for check in facts.checks] == sorted([*runs, *statuses])


def test_checks_on_a_later_page_count(tmp_path: Path) -> None:
    with BareRemote.make(tmp_path / "remote.git", files={"app.py": "1\n"}) as remote, ForgeServer(remote, page=2) as server:
        server.state.checks("main", {f"c{number}": "success" for number in range(4)} | {"z": "failure"})
        server.state.statuses("main", {f"s{number}": "success" for number in range(3)})
        with GitHubForge("acme/app", base_url=server.url) as forge:
            facts = forge.ci(remote.repo.head())

    assert len(facts.checks) == 8
    assert facts.state == "failing"


def test_what_ci_says_is_of_one_commit(forge: GitHubForge, server: ForgeServer) -> None:
    server.state.checks("topic", {"build": "failure"})
    new = server.remote.repo.commit({"app.py": "print('v3')\n"}, branch="topic")

    assert forge.ci(new) == CiFacts(new)


@pytest.mark.parametrize("sha", ["main", "abc", "", "../../x"])
def test_ci_is_asked_for_by_a_whole_commit_id(forge: GitHubForge, sha: str) -> None:
    with pytest.raises(InvalidInput, match="is not a commit id"):
        forge.ci(sha)


@pytest.mark.parametrize(
    ("reviews", "requested", "state"),
    [
        ([], [], "none"),
        ([], ["ann"], "pending"),
        ([("ann", "commented")], [], "none"),
        ([("ann", "commented")], ["bob"], "pending"),
        ([("ann", "approved")], ["bob"], "approved"),
        ([("ann", "changes_requested"), ("bob", "approved")], [], "changes_requested"),
        ([("ann", "changes_requested"), ("ann", "approved")], [], "approved"),
        ([("ann", "approved"), ("ann", "changes_requested")], [], "changes_requested"),
        ([("ann", "changes_requested"), ("ann", "commented")], [], "changes_requested"),
        ([("ann", "approved"), ("ann", "dismissed")], [], "none"),
    ],
)
def test_the_last_verdict_of_each_reviewer_counts(
    forge: GitHubForge, server: ForgeServer, reviews: list[tuple[str, Verdict]], requested: list[str], state: str
) -> None:
    forge.open_pr("topic", "main", "Fix the bug")
    server.state.request_review(1, *requested)
    for name, verdict in reviews:
        server.state.review(1, name, verdict)

    facts = forge.reviews(1)

    assert facts.state == state
    assert facts == ReviewFacts(tuple(PrReview(name, verdict) for name, verdict in reviews), tuple(requested))


# Issues ------------------------------------------------------------------------------------------------------------------------------


def test_an_issue_and_comments_are_made(forge: GitHubForge, server: ForgeServer) -> None:
    forge.open_pr("topic", "main", "Fix the bug")

    issue = forge.create_issue("Work was kept", "On recovery/1/main", labels=["recovery"])
    forge.comment(issue.number, "Look there.")
    forge.comment(1, "And here.")

    assert (issue.number, issue.title) == (2, "Work was kept")
    made = server.state.issues[2]
    assert (made.body, made.labels, made.comments) == ("On recovery/1/main", ["recovery"], ["Look there."])
    assert server.state.pulls[1].comments == ["And here."]


# The adapter itself ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repo", ["app", "acme/app/x", "acme/..", "../app", "acme/app?x", "", "acme/a b"])
def test_what_names_no_repository_is_refused(repo: str) -> None:
    with pytest.raises(InvalidInput, match="not a repository at a forge"):
        GitHubForge(repo)


@pytest.mark.parametrize("base", ["ftp://x", "https://user:secret@x", "https://x/?q=1", "x", "https://x/#f"])
def test_what_is_no_address_of_an_api_is_refused_without_showing_secrets(base: str) -> None:
    with pytest.raises(InvalidInput, match="not the address of an API") as caught:
        GitHubForge("acme/app", base_url=base)

    assert "secret" not in str(caught.value)


def test_the_token_is_in_no_message_log_or_repr(forge: GitHubForge, server: ForgeServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    messages = []
    forge.find_prs()
    server.tokens.clear()
    server.tokens.add("another")
    for kind in ("garbage", "truncated", "cut"):
        server.fail(kind, times=None)
        with pytest.raises(GittrixError) as caught:
            forge.comment(1, TOKEN)
        messages.append(str(caught.value))
        server.recover()
    with pytest.raises(GittrixError) as caught:
        forge.pr(1)

    assert TOKEN not in " ".join([*messages, str(caught.value), repr(forge), repr(vars(forge)), caplog.text])
    assert caplog.text != ""


def test_a_token_that_the_forge_itself_repeats_is_hidden(forge: GitHubForge, server: ForgeServer) -> None:
    branch(server, TOKEN, {"x": "1"})

    with pytest.raises(InvalidInput, match=r"No commits between \*\*\* and \*\*\*"):
        forge.open_pr(TOKEN, TOKEN, "t")


def test_a_token_is_not_sent_where_a_redirection_leads(forge: GitHubForge, server: ForgeServer) -> None:
    forge.open_pr("topic", "main", "t")
    with ForgeServer(server.remote, tokens={TOKEN}) as elsewhere:
        server.fail("redirect", to=elsewhere.web)

        with pytest.raises(AuthFailed, match="status 401"):
            forge.pr(1)

        assert elsewhere.requests == ["GET /api/v3/repos/acme/app/pulls/1"]


def test_an_answer_of_another_form_is_typed(server: ForgeServer) -> None:
    with GitHubForge("acme/app", base_url=f"{server.url}", token=TOKEN) as forge:
        forge.open_pr("topic", "main", "t")
        server.state.pulls[1].state = "sleeping"

        with pytest.raises(ForgeUnavailable, match="in another form than GitHub's"):
            forge.pr(1)


def test_without_the_client_installed_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "httpx", None)

    with pytest.raises(CapabilityMissing, match=r"pytest-gittrix\[forge\]"):
        GitHubForge("acme/app")


def test_importing_the_adapter_does_not_load_the_client() -> None:
    import subprocess
    import sys

    program = "import sys, pytest_gittrix.backends.forge.github; sys.exit('httpx' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
