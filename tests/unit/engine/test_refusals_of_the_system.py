"""What the system refuses to show is not taken for what is not there: of each such call, by every refusal."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from support.engine import Site

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable

REFUSALS = (errno.EIO, errno.EACCES, errno.EMFILE, errno.ELOOP)
refused = pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.__getitem__)


def refuse(patch: pytest.MonkeyPatch, call: str, ending: str, number: int) -> None:
    """Have a call of ``os`` or of Python refuse every path with an ending."""
    where: Any = os if hasattr(os, call) else "builtins.open"
    real: Callable[..., Any] = getattr(os, call) if where is os else open

    def called(path: Any, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(path, int) and os.fsdecode(path).endswith(ending):
            raise OSError(number, os.strerror(number), path)
        return real(path, *arguments, **keywords)

    patch.setattr(where, call, called) if where is os else patch.setattr(where, called)


@refused
@pytest.mark.parametrize("name", ["events.jsonl", "metadata.json"])
def test_a_session_that_cannot_be_looked_at_is_a_problem_and_not_gone(
    site: Site, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, other = site.start(), site.start()
    log = site.directory(hidden) / "events.jsonl"
    if name == "metadata.json":
        log.unlink()
    with monkeypatch.context() as patch:
        refuse(patch, "stat", f"{hidden.id}/{name}", number)
        refuse(patch, "open", f"{hidden.id}/{name}", number)
        refuse(patch, "builtins", f"{hidden.id}/{name}", number)
        engine = site.another()
        found, problems = engine.list_sessions(), engine.problems()

    assert [one.id for one in found] == [other.id]
    assert [problem.id for problem in problems] == [hidden.id]


@refused
def test_branches_that_cannot_be_listed_are_not_taken_for_deleted_ones(site: Site, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.start()
    assert session.moved_refs() == []
    refuse(monkeypatch, "scandir", "refs/heads", number)

    with pytest.raises(AdapterUnavailable, match="cannot be listed"):
        session.moved_refs()


@refused
def test_a_work_tree_whose_entry_cannot_be_read_is_not_worked_on(site: Site, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session: UserSession = site.start(workspace="worktree")
    with monkeypatch.context() as patch:
        refuse(patch, "builtins", "/gitdir", number)
        with pytest.raises(AdapterUnavailable, match="cannot be read"):
            site.another().get_session(session.id)

    assert site.another().get_session(session.id).touched_files() == []
