"""Calls to a forge that is in trouble: what passes is waited for, what does not is a typed error, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.backends.forge.http_client import Patience
from pytest_gittrix.backends.forge.protocol import ForgeTimeout, ForgeUnavailable, RateLimited
from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.errors import AuthFailed, InvalidInput
from pytest_gittrix.testing.repos.forge_server import FaultKind, ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote

CALLS: dict[str, Callable[[GitHubForge], object]] = {
    "read": lambda forge: forge.pr(1),
    "list": lambda forge: forge.find_prs(),
    "edit": lambda forge: forge.update_pr(1, title="Better"),
    "open": lambda forge: forge.open_pr("topic", "main", "Fix the bug"),
    "issue": lambda forge: forge.create_issue("Work was kept"),
    "comment": lambda forge: forge.comment(1, "Hello."),
}
HARMLESS = ("read", "list", "edit")
ONCE = ("issue", "comment")


@dataclass
class Trouble:
    """A forge that can be told to fail, on a clock that moves when somebody waits.

    Attributes:
        server: the forge.
        forge: the adapter.
        clock: the time of both.
        waits: the seconds that the adapter waited, each time.
    """

    server: ForgeServer
    clock: FrozenClock
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        """Wait, on the clock."""
        self.waits.append(seconds)
        self.clock.advance(seconds=seconds)

    @property
    def patience(self) -> Patience:
        """How long the adapter waits."""
        return Patience(timeout=20.0, waiting=120.0, tries=4, sleep=self.sleep, now=lambda: self.clock.now().timestamp())

    def forge(self, patience: Patience | None = None) -> GitHubForge:
        """The adapter."""
        return GitHubForge("acme/app", base_url=self.server.url, token="hush-0123", patience=patience or self.patience)


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[Trouble]:
    clock = FrozenClock()
    with BareRemote.make(tmp_path / "remote.git", files={"app.py": "1\n"}) as remote:
        with ForgeServer(remote, when=clock.now) as server:
            for name in ("topic", "ready"):
                remote.repo.git("update-ref", f"refs/heads/{name}", remote.repo.head())
                remote.repo.commit({"app.py": f"{name}\n"}, branch=name)
            server.state.open_pull({"title": "Ready", "head": "ready", "base": "main"})
            yield Trouble(server, clock)
    clock.close()


@pytest.fixture
def forge(trouble: Trouble) -> Iterator[GitHubForge]:
    with trouble.forge() as opened:
        yield opened


# Limits ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["rate_limit", "secondary_limit"])
def test_a_limit_is_waited_for_as_long_as_the_forge_says(trouble: Trouble, forge: GitHubForge, name: str, kind: FaultKind) -> None:
    trouble.server.fail(kind, seconds=30)

    CALLS[name](forge)

    assert len(trouble.waits) == 1
    assert 30 <= trouble.waits[0] <= 31


@pytest.mark.parametrize("kind", ["rate_limit", "secondary_limit"])
def test_a_limit_beyond_all_patience_is_told_at_once(trouble: Trouble, forge: GitHubForge, kind: FaultKind) -> None:
    trouble.server.fail(kind, seconds=3600)

    with pytest.raises(RateLimited, match="rate limit") as caught:
        forge.pr(1)

    assert trouble.waits == []
    assert caught.value.code == "ADAPTER_UNAVAILABLE"
    assert 3600 <= caught.value.seconds <= 3601


def test_limits_that_go_on_are_given_up_when_patience_is_used_up(trouble: Trouble, forge: GitHubForge) -> None:
    trouble.server.fail("secondary_limit", seconds=50, times=None)

    with pytest.raises(RateLimited):
        forge.pr(1)

    assert trouble.waits == [50, 50]


def test_a_limit_that_does_not_say_how_long_is_waited_for_a_minute(trouble: Trouble, forge: GitHubForge) -> None:
    trouble.server.fail("status", status=429)

    forge.pr(1)

    assert trouble.waits == [60]


# Failures ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_what_does_no_harm_is_asked_again_after_growing_pauses(trouble: Trouble, forge: GitHubForge, name: str, status: int) -> None:
    trouble.server.fail("status", status=status, times=3)

    CALLS[name](forge)

    assert trouble.waits == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_forge_that_keeps_failing_is_given_up(trouble: Trouble, forge: GitHubForge, name: str) -> None:
    trouble.server.fail("status", status=502, times=None)
    trouble.server.requests.clear()

    with pytest.raises(ForgeUnavailable, match="status 502") as caught:
        CALLS[name](forge)

    assert len(trouble.server.requests) == 4
    assert not caught.value.uncertain


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("kind", ["status", "cut_after", "garbage", "truncated"])
def test_what_may_have_been_done_is_not_done_again(trouble: Trouble, forge: GitHubForge, name: str, kind: FaultKind) -> None:
    trouble.server.fail(kind, on="POST")
    trouble.server.requests.clear()

    with pytest.raises(ForgeUnavailable) as caught:
        CALLS[name](forge)

    assert caught.value.uncertain
    assert len(trouble.server.requests) == 1
    assert len(trouble.server.state.issues) <= 1
    assert len(trouble.server.state.pulls[1].comments) <= 1


@pytest.mark.parametrize("kind", ["cut_after", "garbage", "truncated"])
def test_a_pull_request_whose_opening_nobody_saw_is_found(trouble: Trouble, forge: GitHubForge, kind: FaultKind) -> None:
    trouble.server.fail(kind, on="POST")

    pr = forge.open_pr("topic", "main", "Fix the bug")

    assert (pr.number, pr.title) == (2, "Fix the bug")
    assert sorted(trouble.server.state.pulls) == [1, 2]


def test_a_pull_request_that_was_not_opened_is_not_found_and_can_be_opened(trouble: Trouble, forge: GitHubForge) -> None:
    trouble.server.fail("status", status=500, on="POST")

    with pytest.raises(ForgeUnavailable):
        forge.open_pr("topic", "main", "Fix the bug")

    assert forge.open_pr("topic", "main", "Fix the bug").number == 2


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("kind", ["cut", "cut_after", "truncated"])
def test_a_connection_that_breaks_is_made_again(trouble: Trouble, forge: GitHubForge, name: str, kind: FaultKind) -> None:
    trouble.server.fail(kind)

    CALLS[name](forge)

    assert trouble.waits == [0.5]


def test_a_forge_that_is_not_there_is_unavailable(trouble: Trouble, forge: GitHubForge) -> None:
    trouble.server.close()

    with pytest.raises(ForgeUnavailable, match="cannot be reached") as caught:
        forge.create_issue("Work was kept")

    assert not caught.value.uncertain
    assert trouble.waits == [0.5, 1.0, 2.0]


def test_an_answer_that_does_not_come_is_a_timeout(trouble: Trouble) -> None:
    trouble.server.fail("slow", seconds=60, times=None)

    with trouble.forge(replace(trouble.patience, timeout=0.2, tries=1)) as hasty:
        with pytest.raises(ForgeTimeout, match=r"not answered within 0\.2 s"):
            hasty.pr(1)


def test_a_slow_answer_within_the_time_is_an_answer(trouble: Trouble, forge: GitHubForge) -> None:
    trouble.server.fail("slow", seconds=0.05)

    assert forge.pr(1).number == 1
    assert trouble.waits == []


def test_an_answer_that_is_no_json_is_typed(trouble: Trouble, forge: GitHubForge) -> None:
    trouble.server.fail("garbage")

    with pytest.raises(ForgeUnavailable, match="something other than JSON"):
        forge.pr(1)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("name", CALLS)
def test_a_token_that_does_not_do_is_an_authentication_failure(trouble: Trouble, forge: GitHubForge, name: str, status: int) -> None:
    trouble.server.fail("status", status=status)

    with pytest.raises(AuthFailed, match=f"status {status}") as caught:
        CALLS[name](forge)

    assert caught.value.code == "AUTH_FAILED"
    assert trouble.waits == []


@pytest.mark.parametrize("status", [400, 409, 410, 422])
def test_what_the_forge_does_not_take_is_invalid(trouble: Trouble, forge: GitHubForge, status: int) -> None:
    trouble.server.fail("status", status=status)

    with pytest.raises(InvalidInput, match=f"status {status}: as scripted"):
        forge.pr(1)


def test_a_failure_in_the_middle_of_a_list_loses_no_page(trouble: Trouble, forge: GitHubForge) -> None:
    forge.open_pr("topic", "main", "Fix the bug")
    trouble.server._page = 1
    trouble.server.fail("status", status=502, on="page=2")

    assert [pr.number for pr in forge.find_prs()] == [2, 1]


def test_a_list_that_goes_on_elsewhere_is_not_followed(trouble: Trouble) -> None:
    port = trouble.server.web.rpartition(":")[2]
    trouble.server._page = 1
    trouble.server.state.open_pull({"title": "Two", "head": "topic", "base": "main"})
    with GitHubForge("acme/app", base_url=f"http://localhost:{port}/api/v3", token="hush-0123", patience=trouble.patience) as forge:
        with pytest.raises(ForgeUnavailable, match="goes on at"):
            forge.find_prs()


@pytest.mark.parametrize("token", ["a\nb", "ü", " secret"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidInput, match="The token has a character") as caught:
        GitHubForge("acme/app", token=token)

    assert token not in str(caught.value)
