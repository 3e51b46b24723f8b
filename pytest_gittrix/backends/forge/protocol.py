"""The protocol of a forge (such as GitHub), with its pull requests, CI checks, reviews and issues as plain values.

``github`` implements the protocol ``Forge`` by GitHub's REST API.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args, runtime_checkable

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput

PrState = Literal["open", "merged", "closed"]
CheckState = Literal["pending", "passing", "failing"]
CiState = Literal["none", "pending", "passing", "failing"]
ReviewState = Literal["none", "pending", "approved", "changes_requested"]
Verdict = Literal["approved", "changes_requested", "commented", "dismissed", "pending"]
PrFilter = Literal["open", "closed", "all"]

PR_FILTERS: Final = get_args(PrFilter)


class ForgeUnavailable(AdapterUnavailable):
    """The forge cannot be reached, fails, or replies with something that cannot be read.

    Attributes:
        uncertain: whether the request may have been carried out all the same.
    """

    uncertain: bool = False


class ForgeTimeout(ForgeUnavailable):
    """The forge did not reply in time."""


class RateLimited(ForgeUnavailable):
    """The forge accepts no more requests for a while.

    Attributes:
        seconds: how long, in seconds, the forge asks the caller to wait.
    """

    def __init__(self, fact: str, *, seconds: float, why: str = "", fix: str = "", opt_out: str = "") -> None:
        super().__init__(fact, why=why, fix=fix, opt_out=opt_out)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A pull request as the forge reports it.

    Attributes:
        number: its number.
        url: address of its page.
        title, body: its text.
        state: ``open``, ``merged`` or ``closed`` (without having been merged).
        draft: whether it is a draft, not meant to be merged yet.
        mergeable: whether it would merge without conflict; None if the forge does not know yet, or in a list of pull requests.
        head, base: the branch with the changes, and the branch to merge them into.
        head_sha: the commit that the head branch is at.
        requested: reviewers who were requested and have not reviewed yet: users, and teams as ``team/<name>``.
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
class CiCheck:
    """One check of a commit; ``url`` is the page with its details."""

    name: str
    state: CheckState
    url: str | None = None


@dataclass(frozen=True, slots=True)
class CiFacts:
    """The CI checks of a commit.

    Attributes:
        sha: the commit.
        checks: every check, sorted by name.
        state: ``failing`` if one check fails, else ``pending`` if one still runs, else ``passing``; ``none`` without checks.
    """

    sha: str
    checks: tuple[CiCheck, ...] = ()

    @property
    def state(self) -> CiState:
        """The state of all checks together; see the class."""
        states = {check.state for check in self.checks}
        order: Sequence[CheckState] = ("failing", "pending", "passing")
        return next((state for state in order if state in states), "none")


@dataclass(frozen=True, slots=True)
class PrReview:
    """One review; ``author`` is empty if that user no longer exists at the forge."""

    author: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ReviewFacts:
    """The reviews of a pull request.

    Attributes:
        reviews: every review, oldest first.
        requested: reviewers who were requested and have not reviewed yet.
        state: by each reviewer's last verdict (a comment is no verdict, a dismissal revokes one): ``changes_requested`` if one requests
            changes, else ``approved`` if one approves, else ``pending`` if a review is requested, else ``none``.
    """

    reviews: tuple[PrReview, ...] = ()
    requested: tuple[str, ...] = ()

    @property
    def state(self) -> ReviewState:
        """The state of all reviews together; see the class."""
        last = {review.author: review.verdict for review in self.reviews if review.verdict not in ("commented", "pending")}
        if "changes_requested" in last.values():
            return "changes_requested"
        if "approved" in last.values():
            return "approved"
        return "pending" if self.requested else "none"


@dataclass(frozen=True, slots=True)
class OpenedIssue:
    """An issue that was opened; ``url`` is its page."""

    number: int
    url: str
    title: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment that was made; ``url`` is its address."""

    id: int
    url: str


@dataclass(frozen=True, slots=True)
class Topic:
    """An issue or a pull request, in a list of what is new."""

    number: int
    url: str
    title: str
    body: str
    state: PrState
    is_pull: bool


@runtime_checkable
class Topics(Protocol):
    """A forge that lists what is new."""

    def topics(self) -> list[Topic]:
        """The issues and pull requests that changed last, of any state, at most a hundred. Raises as the methods of ``Forge``."""


class Forge(Protocol):
    """One repository at a forge.

    Each method may raise ``AuthFailed`` (the forge refused the token), ``ForgeTimeout``, ``RateLimited`` and ``ForgeUnavailable``, and
    ``InvalidInput`` for a request that the forge rejects, such as one with an unknown number or branch.
    """

    @property
    def url(self) -> str:
        """Address of the repository at the forge, without credentials."""

    def close(self) -> None:
        """Release connections."""

    def within(self, seconds: float) -> AbstractContextManager[Forge]:
        """A context with the same repository, whose calls all give up once ``seconds`` have passed."""

    def open_pr(self, head: str, base: str, title: str, body: str = "", *, draft: bool = False) -> PullRequest:
        """Open a pull request for a branch that was pushed before. If one is open for both branches already, return that one."""

    def find_prs(self, *, head: str | None = None, base: str | None = None, state: PrFilter = "open") -> list[PullRequest]:
        """Pull requests by head, base and state, newest first."""

    def pr(self, number: int) -> PullRequest:
        """A pull request as it is now."""

    def update_pr(self, number: int, *, title: str | None = None, body: str | None = None, base: str | None = None) -> PullRequest:
        """Change the given attributes, and no others."""

    def close_pr(self, number: int) -> PullRequest:
        """Close a pull request without merging it. One that is closed already is no error."""

    def ci(self, sha: str) -> CiFacts:
        """The CI checks of a commit, such as a pull request's ``head_sha``."""

    def reviews(self, number: int) -> ReviewFacts:
        """The reviews of a pull request."""

    def create_issue(self, title: str, body: str = "", *, labels: Iterable[str] = ()) -> OpenedIssue:
        """Open an issue. If it is unknown whether that succeeded, it is not tried again; see ``ForgeUnavailable.uncertain``."""

    def comment(self, number: int, body: str) -> Comment:
        """Comment on an issue or a pull request. As with ``create_issue``, never twice."""


def check_pr_filter(state: str) -> PrFilter:
    """Validate the state to filter pull requests by. Raises InvalidInput for a value not in ``PR_FILTERS``."""
    if state in PR_FILTERS:
        return state  # type: ignore[return-value]
    raise InvalidInput(f"state={state!r} is not a state to filter by.", fix=f"Use one of: {', '.join(PR_FILTERS)}.")
