"""What is refused before anything moved, and what a forge refuses once the commit is in: the promotion stays, and says what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, open_site
from support.remote import TOKEN, open_far

from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.backends.forge.http_client import Patience
from pytest_gittrix.backends.forge.protocol import PullRequest
from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AuthFailed, BaselineConflict, CapabilityMissing, InvalidInput, PromoteFailed
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote

OPEN = "POST /api/v3/repos/acme/app/pulls"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, bare=True) as opened:
        yield opened


@pytest.fixture
def server(site: Site) -> Iterator[ForgeServer]:
    with BareRemote(site.durable.path) as remote, ForgeServer(remote, tokens={TOKEN}) as served:
        yield served


@pytest.fixture
def forge(server: ForgeServer, site: Site) -> Iterator[GitHubForge]:
    with GitHubForge("acme/app", base_url=server.url, token=TOKEN, patience=Patience(timeout=60.0)) as opened:
        site.options["forge"] = opened
        yield opened


def started(site: Site, task: str = "fix the bug", **options: Any) -> UserSession:
    session = site.start(task, **options)
    session.write("app.py", "print('v2')\n")
    return session


class Stranger:
    """A forge of somebody else's making, that answers what a test says."""

    url = "https://forge.example"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    @contextmanager
    def within(self, seconds: float) -> Iterator[Stranger]:
        yield self

    def open_pr(self, *_: object, **__: object) -> object:
        return self.answer


ODD = PullRequest(7, "https://forge.example/7", "t", "", "open", False, None, "b", "main", "0" * 40)


@pytest.mark.parametrize("answer", [None, "https://forge.example/7", replace(ODD, url=None), replace(ODD, title=7)])  # type: ignore[arg-type]
def test_a_forge_that_answers_nonsense_is_told_of_once_the_commit_is_in(site: Site, answer: object) -> None:
    site.options["forge"] = Stranger(answer)
    session = started(site)
    result = session.promote(strategy="pr")

    assert (result.pr_url, site.state(session.id).state) == (None, "promoted")
    assert "the forge answered" in result.warnings[0]
    assert "the forge answered" in next(event for event in site.events(session.id) if event.type == "promote.done").data["pr_failed"]


@pytest.mark.parametrize("odd", [replace(ODD, state="ajar"), replace(ODD, number="7")])  # type: ignore[arg-type]
def test_what_a_forge_tells_of_a_pull_request_spoils_no_log(site: Site, odd: PullRequest) -> None:
    site.options["forge"] = Stranger(odd)
    session = started(site)

    assert session.promote(strategy="pr").pr_url == "https://forge.example/7"
    assert site.engine.view(session.id, "orchestrator")["pr"]["url"] == "https://forge.example/7"


# Before anything moved ---------------------------------------------------------------------------------------------------------------


@contextmanager
def nothing_moved(site: Site, session: UserSession) -> Iterator[None]:
    before = site.durable.fingerprint()
    yield
    assert site.durable.fingerprint() == before
    assert site.state(session.id).state == "active"
    assert "promote.intent" not in site.types(session.id)


def test_without_a_forge_the_error_says_how_to_give_one(site: Site) -> None:
    session = started(site)
    with nothing_moved(site, session), pytest.raises(CapabilityMissing, match="pull request") as caught:
        session.promote(strategy="pr")
    assert "forge=GitHubForge(" in caught.value.fix


def test_a_forge_is_of_the_engines_own_repository_only(site: Site, forge: GitHubForge, tmp_path: Path) -> None:
    with open_site(tmp_path / "another", bare=True) as other:
        session = started(site, durable_path=other.durable.path)
        before = other.durable.fingerprint()
        with pytest.raises(CapabilityMissing):
            session.promote(strategy="pr")
        assert other.durable.fingerprint() == before


@pytest.mark.parametrize("strategy", ["commit", "branch", "patch", "auto"])
@pytest.mark.parametrize(("name", "value"), [("title", "Fix"), ("body", ""), ("base", "main"), ("draft", True)])
def test_what_is_of_a_pull_request_needs_one(site: Site, forge: GitHubForge, strategy: str, name: str, value: Any) -> None:
    session = started(site)
    with nothing_moved(site, session), pytest.raises(InvalidInput, match=f"arguments of one: {name}"):
        session.promote(strategy=strategy, **{name: value})


@pytest.mark.parametrize(
    "asked",
    [
        {"title": ""},
        {"title": "  "},
        {"title": "two\nlines"},
        {"title": "\x1b[2Jtitle"},
        {"title": "nul\0"},
        {"title": "\ud800"},
        {"title": 7},
        {"body": "nul\0"},
        {"body": b"bytes"},
        {"body": "\udfff"},
        {"base": ""},
        {"base": "a..b"},
        {"base": "nul\0"},
        {"base": "nowhere"},
    ],
    ids=repr,
)
def test_texts_that_cannot_be_what_they_say_are_refused(site: Site, forge: GitHubForge, asked: dict[str, Any]) -> None:
    session = started(site)
    with nothing_moved(site, session), pytest.raises(InvalidInput):
        session.promote(strategy="pr", **asked)


def test_drift_is_judged_as_ever_and_the_forge_is_not_asked(site: Site, forge: GitHubForge, server: ForgeServer) -> None:
    session = started(site)
    site.durable.commit({"app.py": "theirs\n"})
    with pytest.raises(BaselineConflict):
        session.promote(strategy="pr")
    assert server.requests == []
    assert site.state(session.id).state == "active"


def test_what_is_no_forge_is_refused_when_the_engine_is_made(site: Site) -> None:
    with pytest.raises(InvalidInput, match="is not a forge"):
        site.another(forge="acme/app")


@pytest.mark.parametrize("trouble", ["reject", "read-only", "auth"])
def test_a_push_that_is_refused_leaves_no_branch_and_no_request(tmp_path: Path, trouble: str) -> None:
    with open_far(tmp_path, "http") as far:
        assert far.forge is not None
        with GitHubForge("acme/app", base_url=far.forge.url, token=TOKEN) as forge:
            far.site.options["forge"] = forge
            session = started(far.site)
            if trouble == "auth":
                far.forge.tokens.clear()
                far.forge.tokens.add("another")
            elif trouble == "reject":
                far.remote.reject("branches are frozen")
            else:
                far.remote.read_only()
            with pytest.raises(AuthFailed if trouble in ("auth", "read-only") else PromoteFailed):
                session.promote(strategy="pr")
            far.forge.tokens.add(TOKEN)
            assert far.git.branches() == ["main"]
            assert far.forge.state.pulls == {}
            far.remote.accept()
            assert session.promote(strategy="pr").pr_url is not None


def test_a_protected_branch_is_refused_to_a_commit_and_not_to_a_request(site: Site, forge: GitHubForge) -> None:
    durable = LocalDurable(site.durable.path, protected=["main"], sync=False)
    session = site.another(durable=durable).start_session("fix the bug")
    session.write("app.py", "print('v2')\n")
    with pytest.raises(PromoteFailed, match="protected"):
        session.promote(strategy="commit")

    assert session.promote(strategy="pr").pr_url is not None


# Once the commit is in ---------------------------------------------------------------------------------------------------------------


def wrong_token(server: ForgeServer) -> None:
    server.tokens.clear()
    server.tokens.add("another")


TROUBLES: dict[str, tuple[Callable[[ForgeServer], object], str]] = {
    "auth": (wrong_token, "status 401"),
    "limit": (lambda server: server.fail("rate_limit", times=None, seconds=3600), "rate limit"),
    "second limit": (lambda server: server.fail("secondary_limit", times=None, seconds=60), "secondary rate limit"),
    "5xx": (lambda server: server.fail("status", times=None, status=503), "status 503"),
    "gone": (lambda server: server.fail("status", times=None, status=404), "status 404"),
    "garbage": (lambda server: server.fail("garbage", times=None), "other than JSON"),
    "redirect": (lambda server: server.fail("redirect", times=None, to="http://127.0.0.1:1", on="POST"), "status 302"),
    "down": (lambda server: server.close(), "cannot be reached"),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_the_promotion_is_in_when_the_forge_fails(site: Site, forge: GitHubForge, server: ForgeServer, name: str) -> None:
    trouble, said = TROUBLES[name]
    session = started(site)
    trouble(server)

    result = session.promote(strategy="pr")

    assert (result.pr_url, result.branch) == (None, "gittrix/fix-the-bug")
    assert site.durable.head(result.branch) == result.sha
    (warning,) = result.warnings
    assert said in warning
    assert "open it by hand from 'gittrix/fix-the-bug' to 'main'" in warning
    assert TOKEN not in warning
    (done,) = [event.data for event in site.events(session.id) if event.type == "promote.done"]
    assert done["pr_failed"] == warning[:500]
    assert "pr_url" not in done
    assert "pr.observed" not in site.types(session.id)
    assert site.state(session.id).state == "promoted"
    assert (name == "garbage") is bool(server.state.pulls)


def test_a_forge_that_answers_too_late_is_given_up(site: Site, server: ForgeServer) -> None:
    with GitHubForge("acme/app", base_url=server.url, token=TOKEN, patience=Patience(timeout=0.2, tries=1)) as forge:
        session = site.another(forge=forge).start_session("fix the bug")
        session.write("app.py", "print('v2')\n")
        server.fail("slow", times=None, seconds=60)
        result = session.promote(strategy="pr")
    assert result.pr_url is None
    assert "not answered within 0.2 s" in result.warnings[0]


@pytest.mark.parametrize("kind", ["status", "cut", "cut_after", "garbage", "truncated"])
def test_trouble_that_passes_is_got_over_and_one_request_is_opened(site: Site, forge: GitHubForge, server: ForgeServer, kind: Any) -> None:
    session = started(site)
    server.fail(kind, on="POST", status=502)

    result = session.promote(strategy="pr")

    assert result.warnings == ()
    assert len(server.state.pulls) == 1
    assert result.pr_url == forge.pr(1).url


def test_by_hand_means_what_the_warning_says(site: Site, forge: GitHubForge, server: ForgeServer) -> None:
    session = started(site)
    server.fail("status", times=None, status=500)
    result = session.promote(strategy="pr")
    server.recover()

    assert forge.open_pr(result.branch, "main", "By hand").head_sha == result.sha


def test_a_local_repository_that_is_not_the_forges_is_told_to_be_pushed(site: Site, tmp_path: Path) -> None:
    with BareRemote.make(tmp_path / "other.git") as remote, ForgeServer(remote) as server:
        with GitHubForge("acme/app", base_url=server.url) as forge:
            session = site.another(forge=forge).start_session("fix the bug")
            session.write("app.py", "print('v2')\n")
            (warning,) = session.promote(strategy="pr").warnings
    assert "push 'gittrix/fix-the-bug' there, then open it by hand" in warning


class Rude:
    """A forge of somebody's own that does what no contract foresees."""

    def __init__(self, forge: GitHubForge, act: Callable[[PullRequest], PullRequest]) -> None:
        self.forge = forge
        self.url = forge.url
        self.act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forge, name)

    @contextmanager
    def within(self, seconds: float) -> Iterator[Rude]:
        """Without any haste."""
        assert 0 < seconds <= 60
        yield self

    def open_pr(self, *arguments: Any, **named: Any) -> PullRequest:
        """Open it, and give something else."""
        return self.act(self.forge.open_pr(*arguments, **named))


def test_what_no_contract_foresees_does_not_undo_what_is_in(site: Site, forge: GitHubForge) -> None:
    def act(pull: PullRequest) -> PullRequest:
        raise ZeroDivisionError("rude")

    session = site.another(forge=Rude(forge, act)).start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    result = session.promote(strategy="pr")

    assert "ZeroDivisionError: rude." in result.warnings[0]
    assert site.state(session.id).state == "promoted"


def test_text_that_no_log_can_hold_is_stored_as_near_as_can_be(site: Site, forge: GitHubForge) -> None:
    session = site.another(forge=Rude(forge, lambda pull: replace(pull, title="half \ud800"))).start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    session.promote(strategy="pr")

    (seen,) = [event.data for event in site.events(session.id) if event.type == "pr.observed"]
    assert seen["title"] == "half ?"


# Patience ----------------------------------------------------------------------------------------------------------------------------


def test_all_calls_together_are_given_up_when_the_time_is_over(forge: GitHubForge, server: ForgeServer) -> None:
    server.fail("status", times=None, status=503)

    with forge.within(0.01) as hasty, pytest.raises(Exception, match=r"503|in the time there was"):
        hasty.find_prs()

    assert len(server.requests) <= 1


def test_patience_ends_with_the_block_and_is_never_longer_than_the_one_around_it(forge: GitHubForge, server: ForgeServer) -> None:
    with forge.within(60.0) as outer, outer.within(600.0) as inner:
        assert inner._rest.deadline <= outer._rest.deadline
        assert inner.find_prs() == []
    server.fail("status", status=503)

    assert forge.find_prs() == []
