"""The state of a forge: pull requests, checks, reviews and issues of one real bare repository.

Heads and bases are branches of the repository, and a merge is a commit there. The test scripts what people and CI do. The JSON shapes are
those of GitHub's REST API (version 2022-11-28), as far as they are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import GitFailed, InvalidInput
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.testing.repos.durable import DurableRepo

Json = dict[str, Any]

_VERDICTS: Final = {"approved": "APPROVED", "changes_requested": "CHANGES_REQUESTED", "commented": "COMMENTED", "dismissed": "DISMISSED"}
_RUNNING: Final = ("queued", "in_progress", "waiting", "requested", "pending")


class ForgeRefusal(Exception):
    """A refused request, with its status and the reason in GitHub's form."""

    def __init__(self, status: int, message: str, *errors: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"message": message, "documentation_url": "https://docs.github.com/rest"}
        if errors:
            self.body["errors"] = [{"resource": "PullRequest", "code": "custom", "message": error} for error in errors]


@dataclass
class Pull:
    """A pull request.

    Attributes:
        number: its number, shared with issues.
        title, body, head, base, draft: as requested; ``head`` and ``base`` are branches.
        head_sha: the commit of the head when the pull request was last updated.
        state: ``open`` or ``closed``; one that was merged is closed, too.
        merged_at: when it was merged, if it was.
        merge_sha: the commit that merged it.
        reviews: verdicts in order: name and verdict.
        requested: the requested reviewers who have not answered.
        comments: the texts of the comments.
    """

    number: int
    title: str
    body: str
    head: str
    base: str
    draft: bool
    head_sha: str
    state: str = "open"
    merged_at: datetime | None = None
    merge_sha: str | None = None
    reviews: list[tuple[str, str]] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)


@dataclass
class ForgeIssue:
    """An issue and its comments."""

    number: int
    title: str
    body: str
    labels: list[str]
    comments: list[str] = field(default_factory=list)


class ForgeState:
    """One repository at a forge. Its methods may be called while the forge serves.

    Args:
        repo: the bare repository.
        name: ``owner/name`` at the forge.
        when: returns the instant of merges.

    Attributes:
        pulls: pull requests by number.
        issues: issues by number.
    """

    def __init__(self, repo: DurableRepo, name: str, when: Callable[[], datetime]) -> None:
        self.repo = repo
        self.name = name
        self.pulls: dict[int, Pull] = {}
        self.issues: dict[int, ForgeIssue] = {}
        self.lock = threading.RLock()
        self._when = when
        self._runs: dict[str, dict[str, str]] = {}
        self._statuses: dict[str, dict[str, str]] = {}

    @property
    def owner(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    # What people and CI do -----------------------------------------------------------------------------------------------------

    def checks(self, at: str, runs: Mapping[str, str]) -> None:
        """Add check runs at a commit or a branch's head: by name ``queued``, ``in_progress``, or a conclusion such as ``success``."""
        with self.lock:
            self._runs.setdefault(self._commit(at), {}).update(runs)

    def statuses(self, at: str, states: Mapping[str, str]) -> None:
        """Add statuses at a commit or a branch's head: by context ``pending``, ``success``, ``failure`` or ``error``."""
        with self.lock:
            self._statuses.setdefault(self._commit(at), {}).update(states)

    def review(self, number: int, name: str, verdict: str) -> None:
        """Add a review: ``approved``, ``changes_requested``, ``commented`` or ``dismissed``. Raises InvalidInput for another."""
        if verdict not in _VERDICTS:
            raise InvalidInput(f"{verdict!r} is no verdict.", fix=f"Use one of: {', '.join(_VERDICTS)}.")
        with self.lock:
            pull = self._pull(number)
            pull.reviews.append((name, _VERDICTS[verdict]))
            pull.requested = [other for other in pull.requested if other != name]

    def request_review(self, number: int, *names: str) -> None:
        """Request a review from people."""
        with self.lock:
            self._pull(number).requested.extend(names)

    def merge(self, number: int) -> str:
        """Merge a pull request, as its button does, with a merge commit on the base; return that commit.

        Raises:
            Refusal: it is not open, is a draft, or does not merge (405); the base moved meanwhile (409).
        """
        with self.lock:
            pull = self.updated(self._pull(number))
            if pull.state != "open" or pull.draft:
                raise ForgeRefusal(405, "Pull Request is not mergeable")
            base = self.repo.head(pull.base)
            tree = self._merged_tree(base, pull.head_sha)
            if tree is None:
                raise ForgeRefusal(405, "Pull Request is not mergeable")
            message = f"Merge pull request #{number} from {self.owner}/{pull.head}\n\n{pull.title}"
            commit = self.repo.git("commit-tree", tree, "-p", base, "-p", pull.head_sha, input=message)
            try:
                self.repo.git("update-ref", branch_ref(pull.base), commit, base)
            except GitFailed as error:
                raise ForgeRefusal(409, "Base branch was modified. Review and try the merge again.") from error
            pull.state, pull.merged_at, pull.merge_sha = "closed", self._when(), commit
            return commit

    def updated(self, pull: Pull) -> Pull:
        """Update a pull request: its head follows its branch, and it is merged if a push brought it onto its base."""
        head = self._head(pull.head)
        if pull.state == "open":
            pull.head_sha = head or pull.head_sha
            base = self._head(pull.base)
            if base is not None and self._is_ancestor(pull.head_sha, base):
                pull.state, pull.merged_at, pull.merge_sha = "closed", self._when(), base
        return pull

    # Requests of clients -------------------------------------------------------------------------------------------------------

    def open_pull(self, body: Json) -> Pull:
        """Open a pull request. Raises Refusal: it has no title, there is no such branch, nothing to merge, or one is open already."""
        title, base = body.get("title"), str(body.get("base") or "")
        owner, _, head = str(body.get("head") or "").rpartition(":")
        if not isinstance(title, str) or not title.strip():
            raise ForgeRefusal(422, "Validation Failed", "title can't be blank")
        sha, target = (self._head(head) if owner in ("", self.owner) else None), self._head(base)
        if sha is None or target is None:
            raise ForgeRefusal(422, "Validation Failed", f"The field {'head' if sha is None else 'base'} is invalid")
        if any(one.head == head and one.base == base and self.updated(one).state == "open" for one in self.pulls.values()):
            raise ForgeRefusal(422, "Validation Failed", f"A pull request already exists for {self.owner}:{head}.")
        if self._is_ancestor(sha, target):
            raise ForgeRefusal(422, "Validation Failed", f"No commits between {base} and {head}")
        pull = Pull(self._next(), title, str(body.get("body") or ""), head, base, bool(body.get("draft")), sha)
        self.pulls[pull.number] = pull
        return pull

    def edit_pull(self, number: int, body: Json) -> Pull:
        """Change a pull request. Raises Refusal: there is none, or the change is not possible."""
        pull = self.updated(self._pull(number))
        if "base" in body and self._head(str(body["base"])) is None:
            raise ForgeRefusal(422, "Validation Failed", "The field base is invalid")
        if body.get("state") == "open" and (pull.merged_at is not None or self._head(pull.head) is None):
            raise ForgeRefusal(422, "Validation Failed", "state cannot be changed.")
        for name in ("title", "body", "base", "state"):
            if body.get(name) is not None:
                setattr(pull, name, str(body[name]))
        return pull

    def list_pulls(self, query: Mapping[str, str]) -> list[Pull]:
        """List pull requests, newest first, by ``state``, ``head`` (``owner:branch``) and ``base``."""
        wanted = query.get("state", "open")
        head, base = query.get("head"), query.get("base")
        found = [self.updated(pull) for _, pull in sorted(self.pulls.items(), reverse=True)]
        return [
            pull
            for pull in found
            if wanted in ("all", pull.state) and base in (None, pull.base) and head in (None, f"{self.owner}:{pull.head}")
        ]

    def open_issue(self, body: Json) -> ForgeIssue:
        """Open an issue. Raises Refusal: it has no title."""
        if not isinstance(body.get("title"), str) or not body["title"].strip():
            raise ForgeRefusal(422, "Validation Failed", "title can't be blank")
        issue = ForgeIssue(self._next(), body["title"], str(body.get("body") or ""), [str(label) for label in body.get("labels") or ()])
        self.issues[issue.number] = issue
        return issue

    def comment(self, number: int, body: Json) -> int:
        """Comment on an issue or a pull request; return its number of comments. Raises Refusal: there is neither."""
        if not isinstance(body.get("body"), str) or not body["body"].strip():
            raise ForgeRefusal(422, "Validation Failed", "body can't be blank")
        comments = self._pull(number).comments if number in self.pulls else self._issue(number).comments
        comments.append(body["body"])
        return len(comments)

    def runs_at(self, at: str) -> Sequence[tuple[str, str]]:
        """Return the check runs of a commit: name, and status or conclusion."""
        return list(self._runs.get(self._commit(at), {}).items())

    def statuses_at(self, at: str) -> Sequence[tuple[str, str]]:
        """Return the statuses of a commit: context and state."""
        return list(self._statuses.get(self._commit(at), {}).items())

    def pull(self, number: int) -> Pull:
        """Return a pull request, updated. Raises Refusal: there is none."""
        return self.updated(self._pull(number))

    # GitHub's shapes -------------------------------------------------------------------------------------------------------------

    def pull_json(self, pull: Pull, web: str, *, whole: bool) -> Json:
        """Return a pull request as JSON; ``whole`` with the fields that a list leaves out."""
        shown: Json = {
            "number": pull.number,
            "state": pull.state,
            "title": pull.title,
            "body": pull.body or None,
            "draft": pull.draft,
            "html_url": f"{web}/{self.name}/pull/{pull.number}",
            "user": {"login": self.owner},
            "head": {"ref": pull.head, "sha": pull.head_sha, "label": f"{self.owner}:{pull.head}", "repo": {"full_name": self.name}},
            "base": {"ref": pull.base, "sha": self._head(pull.base), "repo": {"full_name": self.name}},
            "merged_at": format_instant(pull.merged_at) if pull.merged_at else None,
            "merge_commit_sha": pull.merge_sha,
            "requested_reviewers": [{"login": name} for name in pull.requested],
            "requested_teams": [],
        }
        if whole:
            base = self._head(pull.base)
            fits = pull.state == "open" and base is not None and self._merged_tree(base, pull.head_sha) is not None
            shown |= {
                "merged": pull.merged_at is not None,
                "mergeable": fits,
                "mergeable_state": ("draft" if pull.draft else "clean") if fits else "dirty",
            }
        return shown

    def issue_json(self, issue: ForgeIssue, web: str) -> Json:
        """Return an issue as JSON."""
        return {
            "number": issue.number,
            "state": "open",
            "title": issue.title,
            "body": issue.body or None,
            "labels": [{"name": label} for label in issue.labels],
            "html_url": f"{web}/{self.name}/issues/{issue.number}",
        }

    def topics_json(self, web: str) -> list[Json]:
        """Return all issues and pull requests as JSON, newest first, as GitHub lists them together."""
        pulls = [self.pull_json(self.updated(pull), web, whole=False) for pull in self.pulls.values()]
        marked = [{**pull, "pull_request": {"merged_at": pull["merged_at"]}} for pull in pulls]
        issues = [self.issue_json(issue, web) for issue in self.issues.values()]
        return sorted([*marked, *issues], key=lambda one: int(one["number"]), reverse=True)

    @staticmethod
    def run_json(number: int, name: str, state: str, web: str) -> Json:
        """Return a check run as JSON."""
        running = state in _RUNNING
        return {
            "id": number,
            "name": name,
            "status": state if running else "completed",
            "conclusion": None if running else state,
            "html_url": f"{web}/runs/{number}",
        }

    # Parts -----------------------------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        return max([0, *self.pulls, *self.issues]) + 1

    def _pull(self, number: int) -> Pull:
        if number not in self.pulls:
            raise ForgeRefusal(404, "Not Found")
        return self.pulls[number]

    def _issue(self, number: int) -> ForgeIssue:
        if number not in self.issues:
            raise ForgeRefusal(404, "Not Found")
        return self.issues[number]

    def _head(self, branch: str) -> str | None:
        try:
            return self.repo.head(branch)
        except InvalidInput:
            return None

    def _commit(self, at: str) -> str:
        sha = self._head(at) or at
        if len(sha) != 40:
            raise ForgeRefusal(422, f"No commit found for SHA: {at}")
        return sha

    def _is_ancestor(self, commit: str, of: str) -> bool:
        return commit == of or bool(libgit2.Repository(str(self.repo.path)).descendant_of(of, commit))

    def _merged_tree(self, base: str, head: str) -> str | None:
        """Return the tree of the merge of two commits, or None if they conflict."""
        repository = libgit2.Repository(str(self.repo.path))
        index = repository.merge_commits(base, head)
        return None if index.conflicts else str(index.write_tree(repository))
