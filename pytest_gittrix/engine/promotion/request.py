"""The arguments of one promotion, and what they allow, refuse or warn of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from pytest_gittrix.engine.operations.review import Review, filtered_of, hazards_of, suspects
from pytest_gittrix.engine.operations.validation import check_commit_text, check_paths, check_text, visible
from pytest_gittrix.engine.promotion.conflicts import OnOverlap
from pytest_gittrix.engine.promotion.pull_requests import Proposal
from pytest_gittrix.engine.promotion.selection import SelectedChanges
from pytest_gittrix.engine.promotion.strategy import Strategy
from pytest_gittrix.errors import Advice, FilteredContent, HazardousPath, InvalidInput, SecretsFound
from pytest_gittrix.git.refs import short_branch
from pytest_gittrix.record.state.fold import SessionState
from pytest_gittrix.workspaces.snapshot import Snapshot

OnHazard = Literal["warn", "refuse", "allow"]
ON_HAZARD: Final = get_args(OnHazard)
SHOWN: Final = 50
"""How many paths a message or a warning lists."""
MANY_FILES: Final = 200
"""A promotion of more files than so many, which were not selected, has a warning."""
_TITLE: Final = 200
_MOST_TOPS: Final = 3


def check_on_hazard(value: str) -> OnHazard:
    """Validate how hazards are treated. Raises InvalidInput, which lists the ways."""
    if value in ON_HAZARD:
        return value  # type: ignore[return-value]
    raise InvalidInput(f"on_hazard={value!r} is not a way to treat hazards.", fix=f"Use one of: {', '.join(ON_HAZARD)}.")


def check_many_files(value: object) -> int:
    """Validate how many files a promotion of everything may have without a warning. Raises InvalidInput, which says what is allowed."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InvalidInput(f"many_files={value!r} is no number of files.", fix="Give a whole number from 0; 0 turns the warning off.")


@dataclass(frozen=True)
class PromoteRequest:
    """The arguments of one ``UserSession.promote``, which says what each means."""

    what: Review | Iterable[str] | None
    files: Iterable[str] | None
    hunks: Mapping[str, Collection[int]] | None
    strategy: Strategy
    message: str | None
    on_overlap: OnOverlap
    base: str | None
    title: str | None
    body: str | None
    draft: bool
    refuse_secrets: bool | None
    allow_secrets: Iterable[str]
    keep: bool | None
    allow_filtered: bool
    on_hazard: OnHazard
    many_files: int

    def checked(self, relative: Callable[[str], str]) -> PromoteRequest:
        """The same request with checked texts, and with paths from the workspace's root.

        Args:
            relative: gives a path from the workspace's root.

        Raises:
            InvalidInput: a text is none that a commit or a pull request can have, or paths are no list.
        """
        if self.message is not None:
            check_commit_text(self.message)
        allowed = frozenset(map(relative, check_paths(self.allow_secrets, "allow_secrets")))

        def listed(paths: Iterable[str] | None) -> list[str] | None:
            return None if paths is None else [relative(path) for path in check_paths(paths, "files")]

        what = self.what if isinstance(self.what, Review) else listed(self.what)
        hunks = None if self.hunks is None else {relative(path): numbers for path, numbers in self.hunks.items()}
        for name, text in (("title", self.title), ("body", self.body)):
            if text is not None and "\0" in check_text(text, name):
                raise InvalidInput(f"{name} holds a NUL.", why="Forges do not accept it.", fix="Leave it out.")
        if self.title is not None and (not self.title.strip() or "\n" in self.title or visible(self.title) != self.title):
            raise InvalidInput(
                f"{self.title[:80]!r} cannot be the title of a pull request.", fix="Give one line of text without control characters."
            )
        if self.base is not None:
            short_branch(check_text(self.base, "base"))
        return replace(self, what=what, files=listed(self.files), hunks=hunks, allow_secrets=allowed)

    def selection(self, state: SessionState) -> tuple[Snapshot | None, Iterable[str] | None]:
        """The snapshot that was reviewed, if one was, and the paths.

        Raises:
            InvalidInput: they contradict each other, or the review is of another session or of its baseline before the last promotion.
        """
        if not isinstance(self.what, Review):
            if self.what is not None and self.files is not None:
                raise InvalidInput("Paths were given twice, as the first argument and as files=.", fix="Give them once.")
            return None, self.files if self.what is None else self.what
        if self.what.session_id != state.id:
            raise InvalidInput(f"The review is of session {self.what.session_id}, not {state.id}.", fix="Review this session first.")
        if self.what.baseline != state.baseline:
            raise InvalidInput(
                f"The review is of the changes since {self.what.baseline[:12]}, and the session's baseline is {state.baseline[:12]} now.",
                why="A promotion or a rebase moved the baseline, so the reviewed changes differ from those that would be promoted.",
                fix="Review the session again.",
            )
        return self.what.snapshot, self.what.choice(self.files, self.hunks)

    def secrets(self, snapshot: Snapshot, selection: SelectedChanges, *, leaves: bool) -> dict[str, tuple[str, ...]]:
        """Selected files that look like credentials, by path, without the allowed ones.

        Args:
            snapshot: the workspace.
            selection: what is promoted of it.
            leaves: whether the commit leaves this machine; then secrets are refused unless the caller says otherwise.

        Raises:
            SecretsFound: they are to be refused.
        """
        found = suspects(snapshot.seed, selection.changes, selection.blobs)
        held = {one.path: one.found for one in found if not one.is_among(frozenset(self.allow_secrets))}
        if not held or not (leaves if self.refuse_secrets is None else self.refuse_secrets):
            return held
        raise SecretsFound(
            f"{_counted(held, 'selected file looks', 'selected files look')} like credentials.",
            secrets=held,
            stage="staging",
            why=_listed(secret_lines(held)),
            fix="Remove them from the workspace, or select the other files. Nothing was promoted.",
            opt_out=Advice(
                "Let a file through by its path, with allow_secrets=[...], or all with refuse_secrets=False.",
                "Let a file through by its path, with --allow-secret PATH, or all with --no-refuse-secrets.",
            ),
        )

    def require_filtered(self, state: SessionState, snapshot: Snapshot, selection: SelectedChanges) -> None:
        """Refuse files that a filter would store otherwise. Raises FilteredContent."""
        found = {} if self.allow_filtered else filtered_of(state, snapshot, selection.changes, selection.blobs)
        if not found:
            return
        raise FilteredContent(
            f"{_counted(found, 'selected file goes', 'selected files go')} through a filter, which might store something else.",
            filters=found,
            stage="staging",
            why=_listed(f"{path}: filter={name}" for path, name in found.items()) + "\nThe engine does not run filters.",
            fix="Put what the filter would store into the workspace, such as a pointer of Git LFS, or select the other files.",
            opt_out=Advice(
                "Promote the bytes as they are with allow_filtered=True.", "Promote the bytes as they are with --allow-filtered."
            ),
        )

    def hazards(self, snapshot: Snapshot, selection: SelectedChanges) -> list[str]:
        """A warning of each hazard among the paths of a selection. Raises HazardousPath if they are to be refused."""
        found = {} if self.on_hazard == "allow" else hazards_of(snapshot, selection.changes)
        lines = [f"{path!r} is a hazard: {reason}" for path, reason in found.items()]
        if not found or self.on_hazard == "warn":
            return [*lines[:SHOWN], *more_than_shown(lines)]
        raise HazardousPath(
            f"{_counted(found, 'new path is a hazard', 'new paths are hazards')} to other machines or programs.",
            hazards=found,
            stage="staging",
            why=_listed(lines),
            fix="Rename them in the workspace, or leave them out of the selection. Nothing was promoted.",
            opt_out=Advice("Promote them with a warning of each, with on_hazard='warn'.", "Promote them with --on-hazard warn."),
        )

    def many(self, changes: Collection[str]) -> list[str]:
        """A warning of a promotion of everything that has more files than the request allows, with the places of the most of them."""
        if not 0 < self.many_files < len(changes):
            return []
        tops = Counter(path.partition("/")[0] + "/" if "/" in path else "the root" for path in changes).most_common(_MOST_TOPS)
        places = ", ".join(f"{number} in {top}" for top, number in tops)
        return [f"no path was selected, so the promotion has all {len(changes)} files that the session touched: {places}"]

    def keeps(self, state: SessionState, branch: str, strategy: str) -> bool:
        """Whether the session goes on after the promotion.

        Raises:
            InvalidInput: a patch moves no baseline; or the session's branch has a pull request.
        """
        if self.keep and strategy == "patch":
            raise InvalidInput(
                "A promotion by the strategy 'patch' cannot keep the session.",
                why="It makes no commit that could be the session's next baseline.",
                fix=Advice("Promote with another strategy, or without keep=True.", "Promote with another strategy, or without --keep."),
            )
        before = state.kept if state.kept is not None and state.kept.branch == branch else None
        if strategy == "pr" and self.base is None and before is not None and before.pr_url is not None:
            raise InvalidInput(
                f"The session's branch {branch!r} has a pull request: {before.pr_url}",
                why="A second one would be merged into that branch.",
                fix=Advice(
                    "Promote with strategy='commit', which adds to that pull request.", "Promote with --strategy commit, which adds to it."
                ),
                opt_out=Advice("Name the base of a second one with base=.", "Name the base of a second one with --base."),
            )
        if self.keep is not None:
            return self.keep
        return state.keep_after_promote and (strategy == "pr" or (strategy == "commit" and before is not None))

    def commit_message(self, state: SessionState) -> str:
        """The caller's message, or one from the session's task."""
        return self.message or (f"gittrix: {visible(state.task)}" if state.task else f"gittrix: promote session {state.id}")

    def proposal(self, state: SessionState, branch: str, strategy: Strategy) -> Proposal | None:
        """The pull request to open; None with any strategy but ``pr``.

        Args:
            state: the session.
            branch: the branch that it is promoted to.
            strategy: where the commit lands.

        Raises:
            InvalidInput: arguments of a pull request were given without one; the message names them.
        """
        arguments = {"base": self.base, "title": self.title, "body": self.body, "draft": self.draft or None}
        given = [name for name, value in arguments.items() if value is not None]
        if strategy != "pr" and given:
            raise InvalidInput(
                f"A promotion by the strategy {strategy!r} opens no pull request, but was given arguments of one: {', '.join(given)}.",
                why="The arguments would have no effect.",
                fix=Advice("Promote with strategy='pr', or leave it out.", "Promote with --strategy pr, or leave it out."),
            )
        if strategy != "pr":
            return None
        message = self.commit_message(state).strip()
        first, _, rest = message.partition("\n")
        title = first if len(first) <= _TITLE else f"{first[: _TITLE - 1]}…"
        paragraphs = [rest.strip() if title == first else message, f"Promoted by gittrix from session `{state.id}`."]
        return Proposal(
            short_branch(self.base) if self.base is not None else branch,
            self.title if self.title is not None else title or visible(state.task).strip()[:_TITLE] or f"Session {state.id}",
            self.body if self.body is not None else "\n\n".join(filter(None, paragraphs)),
            self.draft,
        )


def secret_lines(found: Mapping[str, Collection[str]]) -> list[str]:
    """A line for each file that looks like credentials, with secrets in its name masked."""
    from pytest_gittrix.workspaces.secrets import masked  # as in operations.review: most promotions have none

    return [f"{masked(path)}: {'; '.join(of_path)}" for path, of_path in found.items()]


def _counted(found: Collection[object], one: str, many: str) -> str:
    return f"{len(found)} {one if len(found) == 1 else many}"


def _listed(lines: Iterable[str]) -> str:
    """The first of some lines, and how many there are more."""
    every = [*lines]
    return "\n".join([*every[:SHOWN], *more_than_shown(every)])


def more_than_shown(lines: Collection[str]) -> list[str]:
    """A line with the number of those that are not shown, if there are any."""
    return [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
