"""GitHub, and what speaks its REST API (version 2022-11-28): GitHub Enterprise, Gitea and Forgejo as far as they are like it.

Turns verbs into calls and answers into facts; an answer of another shape than documented is an error that says so. Must not know how
calls are repeated (``forge_http``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, Final, TypeVar, cast

from pytest_gittrix.backends.forge.http_client import Json, Patience, RestClient, import_client
from pytest_gittrix.backends.forge.protocol import (
    Check,
    CheckState,
    CiFacts,
    Comment,
    ForgeUnavailable,
    Issue,
    PrFilter,
    PullRequest,
    Review,
    ReviewFacts,
    Verdict,
    check_pr_filter,
)
from pytest_gittrix.errors import InvalidInput

__all__ = ["GITHUB", "GitHubForge"]

T = TypeVar("T")

GITHUB: Final = "https://api.github.com"

_REPO: Final = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_SHA: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PER_PAGE: Final = "100"
_PASSING: Final = frozenset({"success", "neutral", "skipped"})
_VERDICTS: Final[Mapping[str, Verdict]] = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "changes_requested",
    "COMMENTED": "commented",
    "DISMISSED": "dismissed",
    "PENDING": "pending",
}


class GitHubForge:
    """One repository at GitHub or behind its API.

    Nothing is asked of it before the first call.

    Args:
        repo: ``owner/name``.
        base_url: address of the API; that of github.com by default, ``https://<host>/api/v3`` for GitHub Enterprise.
        token: sent to ``base_url`` and nowhere else; never shown. None for what everybody may read.
        patience: how long calls may take and wait; see ``Patience``.

    Raises:
        InvalidInput: an argument cannot be what it says.
        CapabilityMissing: the client is not installed (``pytest-gittrix[forge]``).
    """

    def __init__(self, repo: str, *, base_url: str = GITHUB, token: str | None = None, patience: Patience | None = None) -> None:
        if not _REPO.fullmatch(repo) or ".." in repo or any(part in (".", "..") for part in repo.split("/")):
            raise InvalidInput(f"repo={repo!r} is no repository at a forge.", fix="Give owner/name.")
        import_client()
        self.repo = repo
        self._rest = RestClient(base_url, token, patience if patience is not None else Patience())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.repo} at {self._rest.base_url}>"

    def __enter__(self) -> GitHubForge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Address of the repository in the API."""
        return f"{self._rest.base_url}{self._place}"

    @property
    def _place(self) -> str:
        return f"/repos/{self.repo}"

    def close(self) -> None:
        """Give back connections; a later call opens them again."""
        self._rest.close()

    @contextmanager
    def within(self, seconds: float) -> Iterator[GitHubForge]:
        """The same repository, for a block whose calls give up when these seconds are over, all of them together.

        Args:
            seconds: real seconds from now. Each call is patient as ever within them.
        """
        hasty = copy(self)
        hasty._rest = self._rest.within(seconds)
        with hasty:
            yield hasty

    # Pull requests -------------------------------------------------------------------------------------------------------------

    def open_pr(self, head: str, base: str, title: str, body: str = "", *, draft: bool = False) -> PullRequest:
        """Open a pull request; if one is open for both branches already, give that one as it is.

        So it may be called again after any failure, and opens one pull request only.
        """
        asked = {"head": head, "base": base, "title": title, "body": body, "draft": draft}
        try:
            return self._made("POST", "/pulls", asked, _pull)
        except ForgeUnavailable as error:
            found = self.find_prs(head=head, base=base) if error.uncertain else []
            if not found:
                raise
        except InvalidInput as refusal:
            found = self.find_prs(head=head, base=base) if "already exists" in refusal.fact else []
            if not found:
                raise
        return self.pr(found[0].number)

    def find_prs(self, *, head: str | None = None, base: str | None = None, state: PrFilter = "open") -> list[PullRequest]:
        """Pull requests by head (a branch of this repository), base and state, newest first."""
        query = {"state": check_pr_filter(state), "per_page": _PER_PAGE, "sort": "created", "direction": "desc"}
        if head is not None:
            query["head"] = f"{self.repo.partition('/')[0]}:{head}"
        if base is not None:
            query["base"] = base
        found = [pull for page in self._rest.pages(f"{self._place}/pulls", query) for pull in self._read(_pulls, page)]
        # Servers that are like GitHub do not all know these filters.
        return [pull for pull in found if head in (None, pull.head) and base in (None, pull.base)]

    def pr(self, number: int) -> PullRequest:
        """A pull request as it is now."""
        return self._read(_pull, self._rest.call("GET", f"{self._place}/pulls/{_number(number)}").data)

    def update_pr(self, number: int, *, title: str | None = None, body: str | None = None, base: str | None = None) -> PullRequest:
        """Change title, body or base, as far as they are given."""
        changes = {name: value for name, value in (("title", title), ("body", body), ("base", base)) if value is not None}
        return self._made("PATCH", f"/pulls/{_number(number)}", changes, _pull) if changes else self.pr(number)

    def close_pr(self, number: int) -> PullRequest:
        """Close a pull request without merging it; one that is closed or merged stays as it is."""
        return self._made("PATCH", f"/pulls/{_number(number)}", {"state": "closed"}, _pull)

    # What is said of them --------------------------------------------------------------------------------------------------------

    def ci(self, sha: str) -> CiFacts:
        """What CI says of a commit: its check runs and its commit statuses together."""
        if not _SHA.fullmatch(sha):
            raise InvalidInput(f"{sha[:80]!r} is no commit id.", fix="Give the whole id, such as a pull request's head_sha.")
        place, query = f"{self._place}/commits/{sha}", {"per_page": _PER_PAGE}
        runs = [run for page in self._rest.pages(f"{place}/check-runs", query) for run in self._read(_runs, page)]
        states = [state for page in self._rest.pages(f"{place}/status", query) for state in self._read(_statuses, page)]
        return CiFacts(sha, tuple(sorted([*runs, *states], key=lambda check: check.name)))

    def reviews(self, number: int) -> ReviewFacts:
        """What reviewers say of a pull request."""
        pages = self._rest.pages(f"{self._place}/pulls/{_number(number)}/reviews", {"per_page": _PER_PAGE})
        reviews = tuple(review for page in pages for review in self._read(_reviews, page))
        return ReviewFacts(reviews, self.pr(number).requested)

    # Issues ----------------------------------------------------------------------------------------------------------------------

    def create_issue(self, title: str, body: str = "", *, labels: Iterable[str] = ()) -> Issue:
        """Open an issue, once; an error with ``uncertain`` leaves it to a person to look whether it is there."""
        asked = {"title": title, "body": body, "labels": list(labels)}
        return self._made("POST", "/issues", asked, lambda data: Issue(int(data["number"]), str(data["html_url"]), str(data["title"])))

    def comment(self, number: int, body: str) -> Comment:
        """Say something to an issue or a pull request, once; as for ``create_issue``."""
        place = f"/issues/{_number(number)}/comments"
        return self._made("POST", place, {"body": body}, lambda data: Comment(int(data["id"]), str(data["html_url"])))

    # Parts -----------------------------------------------------------------------------------------------------------------------

    def _made(self, method: str, place: str, body: Json, read: Callable[[Json], T]) -> T:
        return self._read(read, self._rest.call(method, f"{self._place}{place}", body=body).data)

    def _read(self, read: Callable[[Json], T], data: Json) -> T:
        try:
            return read(data)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise ForgeUnavailable(
                f"{self.url} answered in another form than GitHub's: {type(problem).__name__}: {problem}.",
                why="A fact that was misread would decide what happens to a session.",
                fix="See that base_url is that of an API like GitHub's.",
            ) from problem


def _number(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidInput(f"{number!r} is no number of a pull request or an issue.", fix="Give a number from 1.")
    return number


def _pull(data: Json) -> PullRequest:
    merged = data.get("merged_at") is not None
    state = cast("str", data["state"])
    if state not in ("open", "closed"):
        raise ValueError(f"state {state!r}")
    users = [str(user["login"]) for user in data.get("requested_reviewers") or ()]
    teams = [f"team/{team['slug']}" for team in data.get("requested_teams") or ()]
    mergeable = data.get("mergeable")
    return PullRequest(
        number=int(data["number"]),
        url=str(data["html_url"]),
        title=str(data["title"]),
        body=str(data.get("body") or ""),
        state="merged" if merged else "open" if state == "open" else "closed",
        draft=bool(data.get("draft")),
        mergeable=mergeable if isinstance(mergeable, bool) else None,
        head=str(data["head"]["ref"]),
        base=str(data["base"]["ref"]),
        head_sha=str(data["head"]["sha"]),
        requested=(*users, *teams),
    )


def _pulls(data: Json) -> list[PullRequest]:
    return [_pull(one) for one in _list(data)]


def _runs(data: Json) -> list[Check]:
    return [Check(str(run["name"]), _run_state(run), run.get("html_url")) for run in _list(data["check_runs"])]


def _run_state(run: Mapping[str, Any]) -> CheckState:
    if run["status"] != "completed":
        return "pending"
    return "passing" if run["conclusion"] in _PASSING else "failing"


def _statuses(data: Json) -> list[Check]:
    states: Mapping[str, CheckState] = {"success": "passing", "pending": "pending", "failure": "failing", "error": "failing"}
    return [Check(str(one["context"]), states[one["state"]], one.get("target_url")) for one in _list(data["statuses"])]


def _reviews(data: Json) -> list[Review]:
    return [Review(str((one.get("user") or {}).get("login") or ""), _VERDICTS[one["state"]]) for one in _list(data)]


def _list(data: Json) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"a list was expected, not {type(data).__name__}")
    return data
