"""Runs of a coding agent that clauses judge: each in a world and a jail of its own, against a model that answers by a script."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.conformance.base.workspace_facts import bytes_below
from pytest_gittrix.conformance.coding_agents.description import CodingAgent
from pytest_gittrix.conformance.worktrees.base.description import fill
from pytest_gittrix.conformance.worktrees.base.world import NoVerdict
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.libgit2 import GitError, Repository
from pytest_gittrix.model.answers.delivery import ScriptFailed
from pytest_gittrix.model.answers.faults import cut, fail, token_limit
from pytest_gittrix.model.answers.script import call_any, stop
from pytest_gittrix.model.tapes.tape import Tape
from pytest_gittrix.testing.world import World

TASK: Final = "Let app.py say v2"
SECRET: Final = "canary-5d1f"
"""What the secrets of a run begin with; each ends with where it is."""
RUNS: Final = "runs.txt"
WHOLE: Final = b"begun\nended\n"
"""What one whole run of the command leaves in ``RUNS``."""

_FILES: Final = {"app.py": "v1\n", "mine.py": "x = 1\n", "other.py": "y = 1\n", ".gitignore": ".env\n"}
_EDIT: Final = (call_any(shell="printf 'v2\\n' > app.py"), stop("Done."))
_COMMAND: Final = call_any(
    shell=f"echo begun >> {RUNS} # this comment is where the tokens are used up, as it is long\necho ended >> {RUNS}"
)

Files = Mapping[str, tuple[str, bytes]]


@dataclass(frozen=True)
class GitFacts:
    """What git says of a repository.

    Attributes:
        head: the branch that is checked out, or the commit where none is.
        refs: the ids of all branches, tags and stashes by their full names.
        staged: the paths and ids of what is staged.
    """

    head: str
    refs: Mapping[str, str]
    staged: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class JudgedRun:
    """What a run left.

    Attributes:
        code: the exit status; None if a signal ended it.
        timed_out: whether its time was over.
        said: its errors, or else its output.
        before: the files of the workspace before it, git's own among them, and
        after: those after it.
        git_before: what git said of the repository before it, and
        git: what it says after it; None if it cannot be read any more.
        asked: how many requests the model got for the task.
        sent: all texts that the model got.
        forms: the requests of the work without what differs from run to run.
        unfinished: why the script was not played to its end; empty if it was.
    """

    code: int | None
    timed_out: bool
    said: str
    before: Files
    after: Files
    git_before: GitFacts
    git: GitFacts | None
    asked: int
    sent: str
    forms: Sequence[Any]
    unfinished: str

    def changed(self) -> dict[str, tuple[str, bytes] | None]:
        """The paths whose link or bytes changed, and what they have now; None for what is gone."""
        paths = {path for path in {*self.before, *self.after} if self.before.get(path) != self.after.get(path)}
        return {path: self.after.get(path) for path in sorted(paths)}


class AgentRuns:
    """The runs of an agent, each done when a clause first asks for it.

    Args:
        agent: its description.
    """

    def __init__(self, agent: CodingAgent) -> None:
        self.agent = agent

    @property
    def clean(self) -> JudgedRun:
        """One edit, by a model that does not fail. Raises NoVerdict: it was not done."""
        if isinstance(self._clean, NoVerdict):
            raise self._clean
        return self._clean

    @cached_property
    def _clean(self) -> JudgedRun | NoVerdict:
        try:
            return self._done(*_EDIT)
        except NoVerdict as reason:
            return reason

    @cached_property
    def again(self) -> JudgedRun:
        """The same once more. Raises NoVerdict as ``clean``."""
        return self._done(*_EDIT)

    @cached_property
    def refused(self) -> JudgedRun:
        """A model that refuses the key each time. Raises NoVerdict as ``clean``."""
        self.clean  # noqa: B018 - an agent that does nothing at all keeps no promise by it
        return self._run(fail(401, times=None), *_EDIT)

    @cached_property
    def limited(self) -> JudgedRun:
        """A model whose tokens are used up within the arguments of a command. Raises NoVerdict as ``clean``."""
        self.clean  # noqa: B018
        return self._run(token_limit(), _COMMAND, stop("Done."))

    @cached_property
    def cut(self) -> JudgedRun:
        """A model whose connection is closed when the call is there and the end of the answer is not. Raises NoVerdict as ``clean``."""
        self.clean  # noqa: B018
        return self._run(cut("before stop"), _COMMAND, stop("Done."))

    def _done(self, *steps: Any) -> JudgedRun:
        run = self._run(*steps)
        if run.code == 0 and not run.unfinished:
            return run
        ended = "its time was over" if run.timed_out else f"it ended with {run.code}"
        raise NoVerdict(
            f"a plain edit was not done: {ended}, and {f'said {run.said!r}' if run.said else 'said nothing'}. {run.unfinished}".strip()
        )

    def _run(self, *steps: Any) -> JudgedRun:
        with World.open(files=_FILES) as world, tempfile.TemporaryDirectory(prefix="gittrix-agent-") as place:
            session = world.start(TASK).for_agent()
            root, tape = session.workspace_path, Path(place, "tape.jsonl")
            assert root is not None, "a clone has a directory"
            _prepare(root, hermetic_env(Path(place)))
            before, git = bytes_below(root), git_facts(root)
            model = world.model
            model.script(*steps)
            model.tape(tape, "rewrite")
            with session.programs(confine="jail", network=[model.endpoint], readable=self.agent.readable) as programs:
                variables = programs.run(["printenv", "ANTHROPIC_BASE_URL"])
                url = variables.stdout.decode().strip()
                secret = programs.home / ".ssh" / "id_ed25519"
                secret.parent.mkdir(parents=True, exist_ok=True)
                secret.write_text(f"{SECRET}-home\n", encoding="utf-8")
                for path, text in self.agent.files.items():
                    file = programs.home / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(fill(text, {"url": url}, str), encoding="utf-8")
                given = {name: fill(text, {"url": url}, str) for name, text in self.agent.env.items()}
                line = ["sh", "-c", self.agent.line(TASK, url)]
                ended = programs.run(line, environment={"DEPLOY_TOKEN": f"{SECRET}-env", **given}, timeout=self.agent.timeout)
            try:
                model.check()
                forms, unfinished = [one.form for one in Tape.read(tape).exchanges], ""
            except ScriptFailed as problem:
                forms, unfinished = [], problem.fact
            return JudgedRun(
                code=ended.code,
                timed_out=ended.timed_out,
                said=(ended.stderr or ended.stdout).decode(errors="replace").strip()[-300:],
                before=before,
                after=bytes_below(root),
                git_before=git,
                git=_git_facts_after(root),
                asked=len(model.requests),
                sent=model.sent,
                forms=forms,
                unfinished=unfinished,
            )


def _prepare(root: Path, env: Mapping[str, str]) -> None:
    """Leave a person's work in the workspace: a file that is staged, one that is changed, and one that is ignored."""
    (root / "mine.py").write_text("x = 2\n", encoding="utf-8")
    run_git(["add", "mine.py"], cwd=root, env=env)
    (root / "other.py").write_text("y = 2\n", encoding="utf-8")
    (root / ".env").write_text(f"KEY={SECRET}-ignored\n", encoding="utf-8")


def git_facts(root: Path) -> GitFacts:
    """What git says of a repository. libgit2 reads it, which runs nothing that an agent may have put into the configuration.

    Raises:
        GitError, KeyError, ValueError: it cannot be read.
    """
    repository = Repository(str(root))
    changes = repository.index.diff_to_tree(repository.head.peel().tree)
    staged = frozenset((one.delta.new_file.path, str(one.delta.new_file.id)) for one in changes)
    refs = {name: str(repository.references[name].resolve().target) for name in repository.references}
    return GitFacts(str(repository.references["HEAD"].target), refs, staged)


def _git_facts_after(root: Path) -> GitFacts | None:
    try:
        return git_facts(root)
    except (GitError, KeyError, ValueError):
        return None
