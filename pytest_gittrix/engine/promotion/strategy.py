"""Where a promotion lands: on the branch itself, on a branch of its own (perhaps with a pull request), or in a patch.

``auto`` is the contributor heuristic that GitTrix documents, under its order of overrides: branch protection, the session, the
repository's remembered preference, the engine's default, then the number of people who wrote the branch.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Literal, get_args

from pytest_gittrix.backends.protocol import Durable
from pytest_gittrix.errors import Advice, InvalidInput, PromoteFailed
from pytest_gittrix.git.refs import branch_ref
from pytest_gittrix.git.tree import parents
from pytest_gittrix.os_level.file_lock import exclusive
from pytest_gittrix.os_level.files import write_file

Strategy = Literal["auto", "commit", "branch", "pr", "patch"]
STRATEGIES: Final = get_args(Strategy)

_SEVERAL: Final = 2
_MANY: Final = 6
_SLUG: Final = 48


@dataclass(frozen=True, slots=True)
class Question:
    """The engine's question to a person, once per repository, when several people write the branch.

    Attributes:
        durable: URI of the repository.
        branch: the branch in question.
        contributors: how many people wrote it.
        default: the answer without ``ask``.
    """

    durable: str
    branch: str
    contributors: int
    default: Strategy = "branch"


Ask = Callable[[Question], str]


def check_strategy(value: str) -> Strategy:
    """Validate a strategy.

    Raises:
        InvalidInput: there is no such strategy; the message lists them.
    """
    if value in STRATEGIES:
        return value  # type: ignore[return-value]
    raise InvalidInput(f"strategy={value!r} is not a strategy.", fix=f"Use one of: {', '.join(STRATEGIES)}.")


class Preferences:
    """The strategy each durable repository was given, remembered in one small file.

    Args:
        path: the file; made when the first answer is remembered.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, uri: str) -> Strategy | None:
        """The remembered strategy of a repository; None if there is none, or the file cannot be read."""
        try:
            return check_strategy(json.loads(self._path.read_bytes())[uri])
        except (OSError, ValueError, KeyError, TypeError, InvalidInput):
            return None

    def remember(self, uri: str, strategy: Strategy) -> None:
        """Store an answer, and keep those that other processes store meanwhile.

        Raises:
            InvalidInput: it is no strategy.
            OSError: the disk refused; the answers that were stored before stay.
        """
        check_strategy(strategy)
        os.makedirs(self._path.parent, exist_ok=True)
        with exclusive(f"{self._path}.lock"):
            try:
                remembered = json.loads(self._path.read_bytes())
            except (FileNotFoundError, ValueError):
                remembered = {}
            write_file(str(self._path), json.dumps({**remembered, uri: strategy}, indent=2, sort_keys=True).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class StrategyPolicy:
    """How one engine chooses the strategy of a promotion.

    Attributes:
        default: the engine's default; ``auto`` leaves it to the contributor heuristic.
        preferences: the remembered strategies of repositories.
        ask: how to ask a person; None takes the default answer.
    """

    default: Strategy
    preferences: Preferences
    ask: Ask | None

    def choose(self, durable: Durable, branch: str, *, requested: Strategy, of_session: Strategy) -> Strategy:
        """The strategy that a promotion takes; never ``auto``.

        Args:
            durable: the repository.
            branch: the branch the session started from. If it is protected, ``auto`` is ``branch``, or ``pr`` where the session, the
                preference or the default says so.
            requested: the strategy of this promotion; anything but ``auto`` is taken.
            of_session: the strategy that the session was started with.

        Raises:
            PromoteFailed: a direct commit on a protected branch was requested.
            InvalidInput: the person's answer was no strategy.
        """
        candidates = (requested, of_session, self.preferences.get(durable.uri), self.default)
        configured = next((strategy for strategy in candidates if strategy not in (None, "auto")), None)
        if not durable.protected(branch):
            return configured or self._by_contributors(durable, branch)
        if requested == "commit":
            raise PromoteFailed(
                f"{branch!r} is protected, so the engine does not commit on it directly.",
                stage="staging",
                fix=Advice("Promote with strategy='branch'.", "Promote with --strategy branch."),
            )
        if requested != "auto":
            return requested
        return "pr" if configured == "pr" else "branch"

    def _by_contributors(self, durable: Durable, branch: str) -> Strategy:
        people = durable.contributors(branch, _MANY)
        if people < _SEVERAL:
            return "commit"
        if people >= _MANY:
            return "branch"
        question = Question(durable.uri, branch, people)
        if self.ask is None:
            return question.default
        answer = check_strategy(self.ask(question))
        self.preferences.remember(durable.uri, answer)
        return answer


def slug(task: str) -> str:
    """A task as the last part of a branch name: ``Fix the bug!`` gives ``fix-the-bug``."""
    plain = unicodedata.normalize("NFKD", task).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:_SLUG].strip("-") or "session"


def branch_names(task: str, references: Iterable[str], *, preferred: str | None = None) -> Iterator[str]:
    """Free names for the branch a promotion of a task makes: ``gittrix/<slug>``, ``gittrix/<slug>-2`` and so on, without end.

    Args:
        task: the session's task.
        references: full names of the existing references; a name that one of them needs as a directory is taken too.
        preferred: the name to begin with, if git takes it and it is free.
    """
    existing = set(references)
    taken = {name for reference in existing for name in (reference, *parents(reference))}
    if preferred is not None and _is_free(preferred, existing, taken):
        yield preferred
    base = f"gittrix/{slug(task)}"
    names = (base if number == 1 else f"{base}-{number}" for number in count(1))
    yield from (name for name in names if branch_ref(name) not in taken)


def _is_free(name: str, existing: Collection[str], taken: Collection[str]) -> bool:
    try:
        ref = branch_ref(name)
    except InvalidInput:
        return False
    return ref not in taken and not any(parent in existing for parent in parents(ref))
