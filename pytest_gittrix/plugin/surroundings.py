"""The surroundings of a test run: git's local variables, dropped for tests with gittrix fixtures, and the checkout that they do not change.

The fixtures of a test may be set up and end in any order, so both are looked after around the whole of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_gittrix.testing.local_variables import GitVariables, withheld
from pytest_gittrix.testing.repos.checkout_watch import CheckoutWatch


class Surroundings:
    """The surroundings of one process of a test run.

    Args:
        directory: where the run was started.
        git_variables: ``drop`` or ``keep``; as for ``World.open``.

    Attributes:
        notes: what the end of the run says of them.
    """

    def __init__(self, directory: Path, git_variables: GitVariables) -> None:
        self.notes: list[str] = []
        self._git_variables = git_variables
        self._watch = CheckoutWatch.around(directory)

    @contextmanager
    def around(self, test: str) -> Iterator[None]:
        """The block that a test with gittrix fixtures runs in, its set-up and tear-down included.

        Args:
            test: its node id.
        """
        with withheld(self._git_variables) as names:
            if names:
                self._note(_of_variables(names, self._git_variables))
            self._changes()  # of before: a test without gittrix fixtures, or a person, may have made some
            try:
                yield
            finally:
                for change in self._changes():
                    self._note(f"gittrix: the checkout of this run changed while {test} ran, by its doing or another program's: {change}")

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _changes(self) -> list[str]:
        return [] if self._watch is None else self._watch.changes()

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _of_variables(names: Collection[str], git_variables: GitVariables) -> str:
    began = f"gittrix: this run was started with {', '.join(sorted(names))} set, perhaps from a git hook"
    if git_variables == "keep":
        return (
            f"{began}, and --gittrix-git-variables=keep let it through: git commands of these tests act on that repository, "
            "whatever their working directory."
        )
    return f"{began}. Tests with gittrix fixtures ran without; --gittrix-git-variables=keep lets it through."
