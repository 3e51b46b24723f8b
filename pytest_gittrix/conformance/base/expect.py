"""Assertions that clauses share, so that each clause reads as the promise that it is."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_gittrix.conformance.base.outcome import ClauseFailure, NotExpressible, refusal_is_incomplete
from pytest_gittrix.testing.oracle import invariant_promote_is_one_commit
from pytest_gittrix.testing.repos.fingerprint import REFS_OF_PEOPLE, linked_work_tree
from pytest_gittrix.testing.repos.history import Content
from pytest_gittrix.testing.repos.journal import CommandRun, PersonCall
from pytest_gittrix.testing.systems.driver import DrivenSession, Stage
from pytest_gittrix.testing.systems.protocol import Promoted

NOT_WRITABLE: Final = ("WRITE_REJECTED", "INVALID_INPUT")
"""Error codes for a path that must not be written."""

NOT_READABLE: Final = ("PATH_NOT_FOUND", "PATH_IS_DIRECTORY", *NOT_WRITABLE)
"""Error codes for a path at which no file can be."""

NOT_SELECTABLE: Final = ("PROMOTE_FAILED", "PATH_NOT_FOUND", "INVALID_INPUT")
"""Error codes for a selection that cannot be promoted."""

IN_THE_WAY: Final = ("PROMOTE_FAILED", "WORKTREE_DIRTY")
"""Error codes for a promotion that would overwrite unsaved work of the person."""


def at_work(stage: Stage, *paths: str) -> DrivenSession:
    """Start a session whose agent has written ``agent`` to these files, ``app.py`` by default."""
    session = stage.start()
    for path in paths or ("app.py",):
        session.write(path, "agent\n")
    return session


def refused(codes: str | tuple[str, ...], act: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Call a function that the system must refuse; gives the error.

    A refusal with another code is a refusal: the clause goes on, and fails at its end with nothing worse than an incomplete refusal.

    Args:
        codes: the error's code, or the codes that it may have.
        act: the function; ``args`` and ``kwargs`` are its arguments.

    Raises:
        ClauseFailure: the function returned; outside of a clause, also if its error has another code or none.
    """
    __tracebackhide__ = True
    allowed = (codes,) if isinstance(codes, str) else codes
    error = _error_of(lambda: act(*args, **kwargs))
    verb = getattr(act, "__name__", str(act))
    if error is None:
        never = "\n".join(f"{verb}: {code}" for code in allowed)
        raise ClauseFailure(f"expected {' or '.join(allowed)}, but it was done: {verb}{_written(args, kwargs)}", never=never)
    if getattr(error, "code", None) not in allowed:
        wanted = " or ".join(allowed)
        refusal_is_incomplete(f"it was refused, but not with {wanted}: {_description(error)}", f"{verb} refuses without {wanted}")
    return error


def conflict(act: Callable[..., object], *paths: str, **kwargs: object) -> None:
    """Call a promotion that the system must refuse as a conflict over exactly these paths.

    Args:
        act: the promotion; ``kwargs`` are its arguments.
        paths: the paths that the error must name, in any order.

    Raises:
        ClauseFailure: as for ``refused``.
    """
    __tracebackhide__ = True
    error = refused("BASELINE_CONFLICT", act, **kwargs)
    named = sorted(getattr(error, "conflicting_files", None) or ())
    if getattr(error, "code", None) == "BASELINE_CONFLICT" and named != sorted(paths):
        refusal_is_incomplete(
            f"it was refused, but the error names {named or 'no conflicting files'} instead of {sorted(paths)}",
            "promote refuses, and does not name the conflicting files"
            if not named
            else "promote names other files than those that conflict",
        )


def _written(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    return f"({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"


def allowed_to_refuse(codes: str | tuple[str, ...], act: Callable[..., object], *args: object, **kwargs: object) -> str | None:
    """Call a function that the system may refuse; gives the error's code, or None if the function returned.

    Args:
        codes: the error's code, or the codes that it may have.
        act: the function; ``args`` and ``kwargs`` are its arguments.

    Raises:
        ClauseFailure: the error has another code or none.
    """
    __tracebackhide__ = True
    allowed = (codes,) if isinstance(codes, str) else codes
    error = _error_of(lambda: act(*args, **kwargs))
    code = getattr(error, "code", None)
    if error is None or code in allowed:
        return code
    raise ClauseFailure(f"expected it to be done or {' or '.join(allowed)}, got {_description(error)}", of_call=True)


def _error_of(act: Callable[[], object]) -> Exception | None:
    """The exception that a call raises, None if it returns. It is returned and not re-raised, so that no report shows its context."""
    try:
        act()
    except NotExpressible:
        raise
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
    _reverts_nobody(stage, made.sha, before, selection)
    assert stage.judge.head(branch) == made.sha, "the branch is at the commit that was made"
    invariant_promote_is_one_commit(stage.judge, made.sha, onto=before, selection=selection)
    return made


def _reverts_nobody(stage: Stage, made: str, head: str, selection: Mapping[str, Content | None]) -> None:
    """Check that a promotion does not revert paths outside its selection to their state before the last commit."""
    __tracebackhide__ = True
    judge = stage.judge
    parents = judge.commit(head).parents
    if made == head or not parents:
        return
    now, theirs, old = judge.tree(made), judge.tree(head), judge.tree(parents[0])
    paths = (now.keys() | theirs.keys()) - selection.keys()
    reverted = sorted(path for path in paths if now.get(path) != theirs.get(path) and now.get(path) == old.get(path))
    if not reverted:
        return
    without = _was_committed_without_the_checkout(stage)
    raise ClauseFailure(
        f"the promotion takes back what a person committed {'without the checkout' if without else 'since the session started'}: "
        f"{', '.join(reverted)}",
        cause="promote takes back what is committed without the checkout, by a push or by `git update-ref`"
        if without
        else "promote takes back what people committed since the session started",
    )


def _was_committed_without_the_checkout(stage: Stage) -> bool:
    """Whether the last commit of a person's moved the branch below the checkout, whose index and files stayed behind."""
    people = [step.person for step in stage.journal.steps if isinstance(step, PersonCall) and step.method in ("commit", "rename", "git")]
    return people[-1:] == ["rival"]


def run(stage: Stage, session: DrivenSession, script: str) -> str:
    """Run a shell script in the workspace, as the agent does; gives its output. Fails the test if a command of it fails."""
    __tracebackhide__ = True
    stage.journal.steps.append(CommandRun(("sh", "-euc", script), str(session.workspace_path)))
    done = subprocess.run(["sh", "-euc", script], cwd=session.workspace_path, env=dict(stage.env), capture_output=True, check=False)
    assert done.returncode == 0, f"{script!r} failed in the workspace: {done.stderr!r}"
    return done.stdout.decode(errors="surrogateescape")


def by_hand(stage: Stage, script: str) -> None:
    """Run a shell script in durable, as a person does at a terminal. Fails the test if a command of it fails."""
    __tracebackhide__ = True
    stage.journal.steps.append(CommandRun(("sh", "-euc", script), str(stage.durable.path)))
    done = subprocess.run(["sh", "-euc", script], cwd=stage.durable.path, env=dict(stage.env), capture_output=True, check=False)
    assert done.returncode == 0, f"{script!r} failed in durable: {done.stderr!r}"


def beyond_a_script(stage: Stage, what: str) -> None:
    """Note that a clause does what no script can repeat, so that none is said to show its failure; ``what`` is a sentence."""
    stage.journal.beyond = what


@contextmanager
def called_from(stage: Stage, directory: Path, **variables: str) -> Iterator[None]:
    """A block in which a person calls the system from another directory, and with other environment variables.

    Args:
        stage: the stage of the system.
        directory: the working directory of this process, and of the system's commands.
        variables: environment variables of both.
    """
    with pytest.MonkeyPatch.context() as patch, stage.place.called_from(directory, **variables):
        patch.chdir(directory)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@contextmanager
def personal_things_unchanged(stage: Stage, *, but: tuple[str, ...] = ()) -> Iterator[None]:
    """A block that changes nothing of the person's in durable.

    Other than ``DurableRepo.unchanged``, it allows a system its own references, and the entries of its own work trees.

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
    facts = {f"refs: {name}": value for name, value in sections["refs"].items() if name.startswith(REFS_OF_PEOPLE)}
    facts["HEAD"] = sections["HEAD"]["HEAD"]
    own_trees = _own_work_trees(stage)
    for section in ("config", "hooks", "index", "work tree"):
        found = sections[section].items()
        facts |= {f"{section}: {name}": value for name, value in found if linked_work_tree(section, name) not in own_trees}
    return facts


def _own_work_trees(stage: Stage) -> set[str]:
    """The linked work trees of durable that are in the system's own directory, as git names their entries."""
    home, git_dir = stage.place.home.resolve(), stage.durable.path / ".git"
    listed = ((git_dir if git_dir.is_dir() else stage.durable.path) / "worktrees").glob("*/gitdir")
    return {one.parent.name for one in listed if Path(one.read_text().strip()).resolve().is_relative_to(home)}


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
