"""Assertions that clauses share, so that each clause reads as the promise that it is."""

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
"""Error codes for a path that must not be written."""

NOT_READABLE: Final = ("PATH_NOT_FOUND", *NOT_WRITABLE)
"""Error codes for a path at which no file can be."""

NOT_SELECTABLE: Final = ("PROMOTE_FAILED", "PATH_NOT_FOUND", "INVALID_INPUT")
"""Error codes for a selection that cannot be promoted."""

IN_THE_WAY: Final = ("PROMOTE_FAILED", "WORKTREE_DIRTY")
"""Error codes for a promotion that would overwrite unsaved work of the person."""


def refused(codes: str | tuple[str, ...], act: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call a function that the system must refuse; gives the error.

    Args:
        codes: the error's code, or the codes that it may have.
        act: the function; ``args`` and ``kwargs`` are its arguments.

    Raises:
        pytest.fail.Exception: the function returned, or its error has another code or none.
    """
    __tracebackhide__ = True
    allowed = (codes,) if isinstance(codes, str) else codes
    error = _error_of(lambda: act(*args, **kwargs))
    if error is None:
        pytest.fail(f"expected {' or '.join(allowed)}, but it was done")
    if getattr(error, "code", None) in allowed:
        return error
    pytest.fail(f"expected {' or '.join(allowed)}, got {_description(error)}")


def allowed_to_refuse(codes: str | tuple[str, ...], act: Callable[..., object], *args: object, **kwargs: object) -> str | None:
    """Call a function that the system may refuse; gives the error's code, or None if the function returned.

    Args:
        codes: the error's code, or the codes that it may have.
        act: the function; ``args`` and ``kwargs`` are its arguments.

    Raises:
        pytest.fail.Exception: the error has another code or none.
    """
    __tracebackhide__ = True
    allowed = (codes,) if isinstance(codes, str) else codes
    error = _error_of(lambda: act(*args, **kwargs))
    code = getattr(error, "code", None)
    if error is None or code in allowed:
        return code
    pytest.fail(f"expected it to be done or {' or '.join(allowed)}, got {_description(error)}")


def _error_of(act: Callable[[], object]) -> Exception | None:
    """The exception that a call raises, None if it returns. It is returned and not re-raised, so that no report shows its context."""
    try:
        act()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _description(error: Exception) -> str:
    return f"{getattr(error, 'code', None) or type(error).__name__}: {error}"


def lands(stage: Stage, session: DrivenSession, selection: Mapping[str, Content | None], **options: Any) -> Promoted:
    """Promote, and check that this made one commit on durable's head with exactly the selection; gives what ``promote`` returned.

    Args:
        stage: the stage that the session is on.
        session: the session to promote.
        selection: the expected new contents by path, as bytes or a kind of bytes; None for a deletion.
        options: as for ``DrivenSession.promote``.
    """
    __tracebackhide__ = True
    branch = stage.durable.branch
    before = stage.judge.head(branch)
    made = session.promote(**options)
    assert stage.judge.head(branch) == made.sha, "the branch is at the commit that was made"
    invariant_promote_is_one_commit(stage.judge, made.sha, onto=before, selection=selection)
    return made


def run(stage: Stage, session: DrivenSession, script: str) -> str:
    """Run a shell script in the workspace, as the agent does; gives its output. Fails the test if a command of it fails."""
    __tracebackhide__ = True
    done = subprocess.run(["sh", "-euc", script], cwd=session.workspace_path, env=dict(stage.env), capture_output=True, check=False)
    assert done.returncode == 0, f"{script!r} failed in the workspace: {done.stderr!r}"
    return done.stdout.decode(errors="surrogateescape")


@contextmanager
def personal_things_unchanged(stage: Stage, *, but: tuple[str, ...] = ()) -> Iterator[None]:
    """A block that changes nothing of the person's in durable; other than ``DurableRepo.unchanged``, it allows a system its own references.

    Args:
        stage: the stage of the durable repository.
        but: prefixes of facts (``section: name``) that may change.
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
    """Make programs that git runs if its configuration names them, and a file ``config`` to append to such a configuration.

    Args:
        directory: the directory for all of this; it is made.
        kinds: ``hooks``, ``signing``, ``monitor``, ``filter``; all of them by default.

    Returns:
        The file to which each program writes its name when it runs.
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
