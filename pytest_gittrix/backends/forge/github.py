"""GitHub and servers with its REST API (version 2022-11-28): GitHub Enterprise, and Gitea and Forgejo as far as they are compatible.

A reply in another form than documented raises ``ForgeUnavailable``. ``http_client`` sends the requests and retries them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from itertools import islice
from typing import Any, Final, TypeVar, cast

from pytest_gittrix.backends.forge.http_client import Json, Patience, RestClient
from pytest_gittrix.backends.forge.protocol import (
    CheckState,
    CiCheck,
    CiFacts,
    Comment,
    ForgeUnavailable,
    OpenedIssue,
    PrFilter,
    PrReview,
    PrState,
    PullRequest,
    ReviewFacts,
    Topic,
    Verdict,
    check_pr_filter,
)
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.extras import required

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
    """One repository at GitHub or a compatible server. The server is not contacted before the first call.

    Args:
        repo: ``owner/name``.
        base_url: address of the API; github.com's by default, ``https://<host>/api/v3`` for GitHub Enterprise.
        token: sent to ``base_url`` and nowhere else; never shown. None for public data.
        patience: how long calls may take and wait; see ``Patience``.

    Raises:
        InvalidInput: an argument is not valid.
        CapabilityMissing: the HTTP client is not installed (``pytest-gittrix[forge]``).
    """

    def __init__(self, repo: str, *, base_url: str = GITHUB, token: str | None = None, patience: Patience | None = None) -> None:
        if not _REPO.fullmatch(repo) or ".." in repo or any(part in (".", "..") for part in repo.split("/")):
            raise InvalidInput(f"repo={repo!r} is not a repository at a forge.", fix="Give owner/name.")
        required("httpx", "forge")
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
        return f"{self._rest.base_url}{self._path}"

    @property
    def _path(self) -> str:
        return f"/repos/{self.repo}"

    def close(self) -> None:
        """Release connections; a later call opens them again."""
        self._rest.close()

    @contextmanager
    def within(self, seconds: float) -> Iterator[GitHubForge]:
        """A context with the same repository, whose calls all give up once ``seconds`` have passed.

        Args:
            seconds: real seconds from now. Within them each call retries as usual.
        """
        limited = copy(self)
        limited._rest = self._rest.within(seconds)
        with limited:
            yield limited

    # Pull requests -------------------------------------------------------------------------------------------------------------

    def open_pr(self, head: str, base: str, title: str, body: str = "", *, draft: bool = False) -> PullRequest:
        """Open a pull request; if one is open for both branches already, return that one unchanged.

        It may therefore be called again after any failure, and opens only one pull request.
        """
        request = {"head": head, "base": base, "title": title, "body": body, "draft": draft}
        try:
            return self._change("POST", "/pulls", request, _pull)
        except (ForgeUnavailable, InvalidInput) as error:
            may_exist = error.uncertain if isinstance(error, ForgeUnavailable) else "already exists" in error.fact
            found = self.find_prs(head=head, base=base) if may_exist else []
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
        pulls = [pull for page in self._rest.pages(f"{self._path}/pulls", query) for pull in self._parse(_pulls, page)]
        # Not every compatible server supports these filters.
        return [pull for pull in pulls if head in (None, pull.head) and base in (None, pull.base)]

    def pr(self, number: int) -> PullRequest:
        """A pull request as it is now."""
        return self._parse(_pull, self._rest.call("GET", f"{self._path}/pulls/{_number(number)}").data)

    def update_pr(self, number: int, *, title: str | None = None, body: str | None = None, base: str | None = None) -> PullRequest:
        """Change title, body or base, whichever are given."""
        changes = {name: value for name, value in (("title", title), ("body", body), ("base", base)) if value is not None}
        return self._change("PATCH", f"/pulls/{_number(number)}", changes, _pull) if changes else self.pr(number)

    def close_pr(self, number: int) -> PullRequest:
        """Close a pull request without merging it; one that is closed or merged stays as it is."""
        return self._change("PATCH", f"/pulls/{_number(number)}", {"state": "closed"}, _pull)

    # CI and reviews --------------------------------------------------------------------------------------------------------------

    def ci(self, sha: str) -> CiFacts:
        """The CI checks of a commit: its check runs and its commit statuses together."""
        if not _SHA.fullmatch(sha):
            raise InvalidInput(f"{sha[:80]!r} is not a commit id.", fix="Give the whole id, such as a pull request's head_sha.")
        path, query = f"{self._path}/commits/{sha}", {"per_page": _PER_PAGE}
        runs = [run for page in self._rest.pages(f"{path}/check-runs", query) for run in self._parse(_runs, page)]
        statuses = [status for page in self._rest.pages(f"{path}/status", query) for status in self._parse(_statuses, page)]
        return CiFacts(sha, tuple(sorted([*runs, *statuses], key=lambda check: check.name)))

    def reviews(self, number: int) -> ReviewFacts:
        """The reviews of a pull request."""
        pages = self._rest.pages(f"{self._path}/pulls/{_number(number)}/reviews", {"per_page": _PER_PAGE})
        reviews = tuple(review for page in pages for review in self._parse(_reviews, page))
        return ReviewFacts(reviews, self.pr(number).requested)

    # Issues ----------------------------------------------------------------------------------------------------------------------

    def create_issue(self, title: str, body: str = "", *, labels: Iterable[str] = ()) -> OpenedIssue:
        """Open an issue, once. After an error with ``uncertain`` set, a person has to look whether the issue exists."""
        request = {"title": title, "body": body, "labels": list(labels)}
        return self._change("POST", "/issues", request, _issue)

    def topics(self) -> list[Topic]:
        """The hundred issues and pull requests that changed last."""
        query = {"state": "all", "sort": "updated", "direction": "desc", "per_page": _PER_PAGE}
        return [topic for page in islice(self._rest.pages(f"{self._path}/issues", query), 1) for topic in self._parse(_topics, page)]

    def comment(self, number: int, body: str) -> Comment:
        """Comment on an issue or a pull request, once; as with ``create_issue``."""
        path = f"/issues/{_number(number)}/comments"
        return self._change("POST", path, {"body": body}, lambda data: Comment(int(data["id"]), str(data["html_url"])))

    # Parts -----------------------------------------------------------------------------------------------------------------------

    def _change(self, method: str, path: str, body: Json, parser: Callable[[Json], T]) -> T:
        return self._parse(parser, self._rest.call(method, f"{self._path}{path}", body=body).data)

    def _parse(self, parser: Callable[[Json], T], data: Json) -> T:
        try:
            return parser(data)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise ForgeUnavailable(
                f"{self.url} answered in another form than GitHub's: {type(problem).__name__}: {problem}.",
                why="A misread answer could decide what happens to a session.",
                fix="Check that base_url is the address of an API like GitHub's.",
            ) from problem


def _number(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidInput(f"{number!r} is not the number of a pull request or an issue.", fix="Give a number from 1.")
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


def _issue(data: Json) -> OpenedIssue:
    return OpenedIssue(int(data["number"]), str(data["html_url"]), str(data["title"]))


def _pulls(data: Json) -> list[PullRequest]:
    return [_pull(one) for one in _list(data)]


def _topics(data: Json) -> list[Topic]:
    return [_topic(one) for one in _list(data)]


def _topic(data: Json) -> Topic:
    pull = data.get("pull_request")
    merged = pull is not None and pull.get("merged_at") is not None
    state = "merged" if merged else "open" if data["state"] == "open" else "closed"
    body = str(data.get("body") or "")
    return Topic(int(data["number"]), str(data["html_url"]), str(data["title"]), body, cast("PrState", state), pull is not None)


def _runs(data: Json) -> list[CiCheck]:
    return [CiCheck(str(run["name"]), _run_state(run), run.get("html_url")) for run in _list(data["check_runs"])]


def _run_state(run: Mapping[str, Any]) -> CheckState:
    if run["status"] != "completed":
        return "pending"
    return "passing" if run["conclusion"] in _PASSING else "failing"


def _statuses(data: Json) -> list[CiCheck]:
    states: Mapping[str, CheckState] = {"success": "passing", "pending": "pending", "failure": "failing", "error": "failing"}
    return [CiCheck(str(one["context"]), states[one["state"]], one.get("target_url")) for one in _list(data["statuses"])]


def _reviews(data: Json) -> list[PrReview]:
    return [PrReview(str((one.get("user") or {}).get("login") or ""), _VERDICTS[one["state"]]) for one in _list(data)]


def _list(data: Json) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"a list was expected, not {type(data).__name__}")
    return data
