"""The pull request of a promotion: what it says, and opening it once the commit is on its branch.

The commit is in by then, and the forge may fail. So opening raises nothing, ends in bounded time, and may be repeated by a recovery or by
hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.errors import Advice, CapabilityMissing, GittrixError, InvalidInput
from pytest_gittrix.os_level.monotonic import pause, real_seconds

if TYPE_CHECKING:
    # Loaded where a pull request is opened: few promotions are proposed at a forge.
    from pytest_gittrix.backends.forge.protocol import Forge, PullRequest

ForgeOf = Callable[[Durable], "Forge | None"]

PATIENCE: Final = 20.0
"""Real seconds that a promotion, or a recovery, waits for the forge, over all tries."""

_PAUSES: Final = (0.5, 1.0)
_REASON: Final = 500


class Proposal(NamedTuple):
    """A pull request to open: the branch it goes to, its text, and whether it is a draft."""

    base: str
    title: str
    body: str
    draft: bool

    def to_data(self) -> dict[str, Any]:
        """The data of ``promote.intent`` from which a recovery opens the same pull request."""
        return {"base": self.base, "title": self.title, "body": self.body, "draft": self.draft}

    @classmethod
    def of_intent(cls, data: Mapping[str, Any]) -> Proposal | None:
        """The proposal that a logged intent holds; None if its promotion opens no pull request."""
        if "base" not in data:
            return None
        return cls(data["base"], data.get("title", ""), data.get("body", ""), bool(data.get("draft", False)))


class PrOutcome(NamedTuple):
    """The result of trying to open a pull request.

    Attributes:
        pull: the pull request; None if it could not be opened.
        problem: why it could not be opened, and what to do.
    """

    pull: PullRequest | None = None
    problem: str | None = None

    @property
    def url(self) -> str | None:
        """Address of its page."""
        return self.pull.url if self.pull is not None else None

    def done_fields(self) -> dict[str, str]:
        """The data of ``promote.done`` about the pull request."""
        if self.pull is not None:
            return {"pr_url": _plain(self.pull.url)}
        return {"pr_failed": _plain(self.problem or "")[:_REASON]}

    def observation(self) -> dict[str, Any] | None:
        """The data of ``pr.observed``; None without a pull request."""
        pull = self.pull
        if pull is None:
            return None
        texts = {"url": pull.url, "title": pull.title, "branch": pull.head, "base_branch": pull.base}
        return {"state": pull.state, "number": pull.number, "draft": pull.draft} | {name: _plain(text) for name, text in texts.items()}


@dataclass(frozen=True, slots=True)
class PullRequests:
    """Opening pull requests for the durable repositories of one engine.

    Attributes:
        forge_of: finds the forge of a repository; None where it has none.
    """

    forge_of: ForgeOf = lambda _durable: None

    def require(self, durable: Durable) -> Forge:
        """The forge of a repository.

        Raises:
            CapabilityMissing: it has none, or the client of a forge is not installed.
        """
        forge = self.forge_of(durable)
        if forge is not None:
            return forge
        raise CapabilityMissing(
            "This durable repository cannot open pull requests: the engine knows no forge of it.",
            why="A pull request is a forge's, not git's.",
            fix=Advice(
                "Give the engine one, such as GitTrix(..., forge=GitHubForge('owner/name', token=...)), or use strategy='branch' and open "
                "the pull request by hand.",
                "Name its repository with --forge-repo OWNER/NAME, or use --strategy branch and open the pull request by hand.",
            ),
        )

    def open(self, durable: Durable, branch: str, proposal: Proposal) -> PrOutcome:
        """Open the pull request of a branch that has its commit. Raises nothing: a failure is in the result."""
        return self._call_forge(durable, branch, proposal, lambda forge: _open(forge, branch, proposal))

    def find_or_open(self, durable: Durable, branch: str, proposal: Proposal, commit: str) -> PrOutcome:
        """As ``open``, after a kill that left unknown whether the pull request was opened; one that is found may have been merged since.

        Args:
            durable: the repository.
            branch: the branch.
            proposal: the pull request.
            commit: what the promotion put on the branch.
        """

        def find_or_open(forge: Forge) -> PullRequest:
            existing = forge.find_prs(head=branch, base=proposal.base, state="all")
            return next((pull for pull in existing if pull.head_sha == commit), None) or _open(forge, branch, proposal)

        return self._call_forge(durable, branch, proposal, find_or_open)

    def _call_forge(self, durable: Durable, branch: str, proposal: Proposal, call: Callable[[Forge], PullRequest]) -> PrOutcome:
        points.reached("pr:opening")
        where = ""
        try:
            forge = self.require(durable)
            where = f" at {forge.url}"
            with forge.within(PATIENCE) as limited:
                pull = _checked(call(limited))
        except Exception as problem:  # noqa: BLE001  (the commit is in: whatever a forge raises must not say that it is not)
            reason = problem.fact if isinstance(problem, GittrixError) else f"{type(problem).__name__}: {problem}."
            push = f"push {branch!r} there, then " if durable.objects_dir is not None and isinstance(problem, InvalidInput) else ""
            by_hand = f"{push}open it by hand from {branch!r} to {proposal.base!r}{where}"
            return PrOutcome(problem=f"the commit is on {branch!r}, but no pull request of it is known: {reason} To have one, {by_hand}.")
        points.reached("pr:opened")
        return PrOutcome(pull)


def forges_of(forge: Forge | ForgeOf | None, is_own: Callable[[Durable], bool]) -> ForgeOf:
    """A function that finds the forge of a repository, from the engine's argument.

    Args:
        forge: a forge, which is that of the engine's own repository; or a function that finds one by repository; or None.
        is_own: whether a repository is the engine's own.

    Raises:
        InvalidInput: it is neither.
    """
    if forge is None:
        return lambda _durable: None
    if hasattr(forge, "open_pr"):
        given = cast("Forge", forge)
        return lambda durable: given if is_own(durable) else None
    if not callable(forge):
        raise InvalidInput(
            f"forge={forge!r} is not a forge.", fix="Give a Forge, such as GitHubForge('owner/name'), or a function from a durable to one."
        )
    return forge


def _checked(pull: PullRequest) -> PullRequest:
    """Validate the answer of a forge. Raises TypeError if it is not a pull request that can be stored."""
    from pytest_gittrix.backends.forge.protocol import PullRequest

    if not isinstance(pull, PullRequest) or not all(isinstance(text, str) for text in (pull.url, pull.title, pull.head, pull.base)):
        raise TypeError(f"the forge answered {str(pull)[:200]!r}")
    return pull


def _plain(text: str) -> str:
    """A forge's text as valid UTF-8."""
    return text.encode(errors="replace").decode()


def _open(forge: Forge, branch: str, proposal: Proposal) -> PullRequest:
    """Open a pull request, with retries while the forge fails in ways that pass; a forge opens only one for a branch."""
    from pytest_gittrix.backends.forge.protocol import ForgeUnavailable

    deadline = real_seconds() + PATIENCE
    for wait in _PAUSES:
        try:
            return forge.open_pr(branch, proposal.base, proposal.title, proposal.body, draft=proposal.draft)
        except ForgeUnavailable as problem:
            if not problem.uncertain or real_seconds() + wait > deadline:
                raise
        pause(wait)
    return forge.open_pr(branch, proposal.base, proposal.title, proposal.body, draft=proposal.draft)
