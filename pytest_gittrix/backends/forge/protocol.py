"""What the engine and views ask of a forge (GitHub and its like): pull requests, what CI and reviewers say of them, issues.

Facts are plain values that know no wire. ``Forge`` is the protocol; ``forge_github`` speaks it to GitHub's REST API. Knows no session
and no git.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput

PrState = Literal["open", "merged", "closed"]
CheckState = Literal["pending", "passing", "failing"]
CiState = Literal["none", "pending", "passing", "failing"]
ReviewState = Literal["none", "pending", "approved", "changes_requested"]
Verdict = Literal["approved", "changes_requested", "commented", "dismissed", "pending"]
PrFilter = Literal["open", "closed", "all"]

PR_FILTERS: Final = get_args(PrFilter)


class ForgeUnavailable(AdapterUnavailable):
    """The forge cannot be reached, fails, or answers what cannot be read.

    Attributes:
        uncertain: the request may have been carried out all the same.
    """

    uncertain: bool = False


class ForgeTimeout(ForgeUnavailable):
    """The forge did not answer in time."""


class RateLimited(ForgeUnavailable):
    """The forge takes no more requests for a while.

    Attributes:
        seconds: how long it asks to be left alone.
    """

    def __init__(self, fact: str, *, seconds: float, why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request as the forge tells of it.

    Attributes:
        number: its number.
        url: address of its page.
        title, body: its text.
        state: ``open``, ``merged`` or ``closed`` (without having been merged).
        draft: whether it is not meant to be merged yet.
        mergeable: whether it would merge without conflict; None if the forge has not found out yet, or was asked for a list.
        head, base: the branch it comes from and the one it goes to.
        head_sha: the commit that the head is at.
        requested: who was asked for a review and has not answered: users, and teams as ``team/<name>``.
    """

    number: int
    url: str
    title: str
    body: str
    state: PrState
    draft: bool
    mergeable: bool | None
    head: str
    base: str
    head_sha: str
    requested: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a commit; ``url`` is where it tells more."""

    name: str
    state: CheckState
    url: str | None = None


@dataclass(frozen=True, slots=True)
class CiFacts:
    """What CI says of a commit.

    Attributes:
        sha: the commit.
        checks: each check, by name.
        state: of them all: ``failing`` if one fails, else ``pending`` if one still runs, else ``passing``; ``none`` without any.
    """

    sha: str
    checks: tuple[Check, ...] = ()

    @property
    def state(self) -> CiState:
        """See the class."""
        found = {check.state for check in self.checks}
        order: Sequence[CheckState] = ("failing", "pending", "passing")
        return next((state for state in order if state in found), "none")


@dataclass(frozen=True, slots=True)
class Review:
    """One review; ``author`` is empty if that person is gone from the forge."""

    author: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ReviewFacts:
    """What reviewers say of a pull request.

    Attributes:
        reviews: every review, oldest first.
        requested: who was asked and has not answered.
        state: by each person's last verdict (a mere comment is none, a dismissal takes one back): ``changes_requested`` if one asks
            for changes, else ``approved`` if one approves, else ``pending`` if somebody was asked, else ``none``.
    """

    reviews: tuple[Review, ...] = ()
    requested: tuple[str, ...] = ()

    @property
    def state(self) -> ReviewState:
        """See the class."""
        last = {review.author: review.verdict for review in self.reviews if review.verdict not in ("commented", "pending")}
        if "changes_requested" in last.values():
            return "changes_requested"
        if "approved" in last.values():
            return "approved"
        return "pending" if self.requested else "none"


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue that was opened; ``url`` is its page."""

    number: int
    url: str
    title: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment that was made; ``url`` is where it stands."""

    id: int
    url: str


class Forge(Protocol):
    """One repository at a forge.

    Each method may raise ``AuthFailed`` (the token does not do), ``ForgeTimeout``, ``RateLimited`` and ``ForgeUnavailable``, and
    ``InvalidInput`` for what the forge does not take, such as a number or a branch that it does not have.
    """

    @property
    def url(self) -> str:
        """Address of the repository at the forge, without credentials."""

    def close(self) -> None:
        """Give back connections."""

    def within(self, seconds: float) -> AbstractContextManager[Forge]:
        """The same repository, for a block whose calls give up when these seconds are over, all of them together."""

    def open_pr(self, head: str, base: str, title: str, body: str = "", *, draft: bool = False) -> PullRequest:
        """Open a pull request of a branch that is at the forge already. If one is open for both branches, it is given instead."""

    def find_prs(self, *, head: str | None = None, base: str | None = None, state: PrFilter = "open") -> list[PullRequest]:
        """Pull requests by head, base and state, newest first."""

    def pr(self, number: int) -> PullRequest:
        """A pull request as it is now."""

    def update_pr(self, number: int, *, title: str | None = None, body: str | None = None, base: str | None = None) -> PullRequest:
        """Change what is given, and nothing else."""

    def close_pr(self, number: int) -> PullRequest:
        """Close a pull request without merging it. One that is closed already is no error."""

    def ci(self, sha: str) -> CiFacts:
        """What CI says of a commit, such as a pull request's ``head_sha``."""

    def reviews(self, number: int) -> ReviewFacts:
        """What reviewers say of a pull request."""

    def create_issue(self, title: str, body: str = "", *, labels: Iterable[str] = ()) -> Issue:
        """Open an issue. When it cannot be known whether that was done, it is not done again: see ``ForgeUnavailable.uncertain``."""

    def comment(self, number: int, body: str) -> Comment:
        """Say something to an issue or a pull request. As for ``create_issue``, never twice."""


def check_pr_filter(state: str) -> PrFilter:
    """Validate which pull requests are wanted. Raises InvalidInput for none of ``PR_FILTERS``."""
    if state in PR_FILTERS:
        return state  # type: ignore[return-value]
    raise InvalidInput(f"state={state!r} is no state to look for.", fix=f"Use one of: {', '.join(PR_FILTERS)}.")
