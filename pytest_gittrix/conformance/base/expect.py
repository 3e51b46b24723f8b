"""What clauses expect of a system, so that each reads as the promise it is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_gittrix.testing.oracle import invariant_promote_is_one_commit
from pytest_gittrix.testing.repos.history import Content
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Promoted

NOT_WRITABLE: Final = ("WRITE_REJECTED", "INVALID_INPUT")
"""What a path that may not be written is answered with."""

NOT_READABLE: Final = ("PATH_NOT_FOUND", *NOT_WRITABLE)
"""What a path that no file can be at is answered with."""

NOT_SELECTABLE: Final = ("PROMOTE_FAILED", "PATH_NOT_FOUND", "INVALID_INPUT")
"""What a selection that cannot be promoted is answered with."""

IN_THE_WAY: Final = ("PROMOTE_FAILED", "WORKTREE_DIRTY")
"""What a promotion is answered with when the person's own work is in its way."""


def refused(codes: str | tuple[str, ...], act: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Do something that the system must refuse; gives the error.

    Args:
        codes: the error's code, or those of which it may be one.
        act: what to do, with its arguments.

    Raises:
        pytest.fail.Exception: it was done, or the error has another code, or none.
    """
    __tracebackhide__ = True
    allowed = (codes,) if isinstance(codes, str) else codes
    error = _error_of(lambda: act(*args, **kwargs))
    if error is None:
        pytest.fail(f"expected {' or '.join(allowed)}, but it was done")
    if getattr(error, "code", None) in allowed:
        return error
    pytest.fail(f"expected {' or '.join(allowed)}, got {_said(error)}")


def allowed_to_refuse(codes: str | tuple[str, ...], act: Callable[..., object], *args: object, **kwargs: object) -> str | None:
    """Do something that the system may do or refuse; gives the error's code, or None if it was done.

    Args:
        codes: the error's code, or those of which it may be one.
        act: what to do, with its arguments.

    Raises:
        pytest.fail.Exception: the error has another code, or none.
    """
    __tracebackhide__ = True
    allowed = (codes,) if isinstance(codes, str) else codes
    error = _error_of(lambda: act(*args, **kwargs))
    code = getattr(error, "code", None)
    if error is None or code in allowed:
        return code
    pytest.fail(f"expected it to be done or {' or '.join(allowed)}, got {_said(error)}")


def _error_of(act: Callable[[], object]) -> Exception | None:
    """What the system signals, by any exception; it is no longer on its way when it is looked at, so no report tells how it came about."""
    try:
        act()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _said(error: Exception) -> str:
    return f"{getattr(error, 'code', None) or type(error).__name__}: {error}"


def lands(stage: Stage, session: DrivenSession, selection: Mapping[str, Content | None], **options: Any) -> Promoted:
    """Promote, and see that it made one commit on durable's head that is exactly the selection; gives what was promised.

    Args:
        stage: where.
        session: whose work.
        selection: new contents by path, as bytes or a kind of bytes, None for a deletion.
        options: as for ``DrivenSession.promote``.
    """
    __tracebackhide__ = True
    branch = stage.durable.branch
    met = stage.judge.head(branch)
    made = session.promote(**options)
    assert stage.judge.head(branch) == made.sha, "the branch is at the commit that was made"
    invariant_promote_is_one_commit(stage.judge, made.sha, onto=met, selection=selection)
    return made


def run(stage: Stage, session: DrivenSession, script: str) -> str:
    """Run a shell script in the workspace as the agent does, up to its first failure; gives what it printed."""
    __tracebackhide__ = True
    done = subprocess.run(["sh", "-euc", script], cwd=session.workspace_path, env=dict(stage.env), capture_output=True, check=False)
    assert done.returncode == 0, f"{script!r} failed in the workspace: {done.stderr!r}"
    return done.stdout.decode(errors="surrogateescape")


@contextmanager
def personal_things_unchanged(stage: Stage, *, but: tuple[str, ...] = ()) -> Iterator[None]:
    """A block that changes nothing of the person's: ``DurableRepo.unchanged``, but for what a system may keep for itself in durable.

    Args:
        stage: whose durable.
        but: beginnings of facts (``section: name``) that may change.
    """
    before = _personal_things(stage)
    try:
        yield
    finally:
        after = _personal_things(stage)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name) and not name.startswith(but))
        assert not changed, f"changed in durable: {', '.join(changed)}"


def _personal_things(stage: Stage) -> dict[str, str]:
    sections = stage.durable.fingerprint().sections
    own = ("refs/heads/", "refs/tags/", "refs/stash")
    facts = {f"refs: {name}": value for name, value in sections["refs"].items() if name.startswith(own)}
    facts["HEAD"] = sections["HEAD"]["HEAD"]
    for section in ("config", "hooks", "index", "work tree"):
        facts |= {f"{section}: {name}": value for name, value in sections[section].items()}
    return facts


_HOOKS: Final = (
    "applypatch-msg",
    "commit-msg",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-rewrite",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "prepare-commit-msg",
    "reference-transaction",
    "update",
)
_TRAPS: Final[Mapping[str, str]] = {
    "hooks": "[core]\nhooksPath = {0}\n",
    "signing": "[commit]\ngpgSign = true\n[gpg]\nprogram = {0}/signer\n",
    "monitor": "[core]\nfsmonitor = {0}/monitor\n",
    "filter": '[core]\nattributesFile = {0}/attributes\n[filter "trap"]\nclean = {0}/filter\nsmudge = {0}/filter\n',
}


def set_traps(directory: Path, *kinds: str) -> Path:
    """Make programs that git runs where a repository's configuration names them, and ``config``, which does and is to be added to one.

    Args:
        directory: where; it is made.
        kinds: ``hooks``, ``signing``, ``monitor``, ``filter``; all of them by default.

    Returns:
        The file that exists once one of the programs ran, and says which.
    """
    directory.mkdir()
    mark = directory / "mark"
    for name in (*_HOOKS, "monitor", "filter", "signer"):
        program = directory / name
        program.write_text(f"#!/bin/sh\necho {name} >> '{mark}'\nexit 1\n")
        program.chmod(0o755)
    (directory / "attributes").write_text("* filter=trap\n")
    (directory / "config").write_text("".join(_TRAPS[kind].format(directory) for kind in kinds or _TRAPS))
    return mark
