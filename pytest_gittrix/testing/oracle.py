"""The oracle: reads real repositories independently, and checks the rules (docs/explanation/rules.md) as assertions.

It reads with the git binary (one ``cat-file --batch`` per repository) and the operating system, never through the system under test or
its readers. Each ``invariant_*`` checks one rule, can be called on its own, and raises AssertionError with what is wrong.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.testing.repos.edits import Edits, Tree
from pytest_gittrix.testing.repos.fingerprint import REFS_OF_PEOPLE, Fingerprint, linked_work_tree
from pytest_gittrix.testing.repos.history import Content, Executable, Submodule, Symlink
from pytest_gittrix.testing.session_model import overlapping
from pytest_gittrix.testing.waivers import how_to_waive, is_waived

_SHOWN: Final = 12
_NOTHING: Final = object()


@dataclass(frozen=True)
class Facts:
    """A commit, as its object says.

    Attributes:
        id: the id of the commit.
        tree: the id of its tree.
        parents: the ids of its parents.
        message: the commit message.
    """

    id: str
    tree: str
    parents: tuple[str, ...]
    message: str


class Judge:
    """Reads one repository with its own git process. Close it, or use it as a context manager.

    Args:
        path: a work tree's root, or a bare repository.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._git_dir = git_dir if os.path.isdir(git_dir := os.path.join(self.path, ".git")) else self.path
        self._process: subprocess.Popen[bytes] | None = None
        self._trees: dict[str, Tree] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the git process; a later call starts another one."""
        if self._process is not None:
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None

    def head(self, branch: str = "main") -> str:
        """Return the commit that a branch is at. Raises AssertionError if there is none."""
        return self._object(f"refs/heads/{branch}")[0]

    def commit(self, id_: str) -> Facts:
        """Read a commit. Raises AssertionError if the object is missing or is no commit."""
        name, kind, data = self._object(id_)
        if kind != "commit":
            raise AssertionError(f"{id_} is a {kind}, not a commit")
        head, _, message = data.decode(errors="replace").partition("\n\n")
        lines = [line.split(" ", 1) for line in head.splitlines()]
        parents = tuple(value for key, value in lines if key == "parent")
        return Facts(name, next(value for key, value in lines if key == "tree"), parents, message)

    def tree(self, commit: str) -> Tree:
        """Return the files of a commit, by path."""
        root = self.commit(commit).tree
        if root not in self._trees:
            self._trees[root] = Tree(dict(sorted(self._below(root, b"").items())))
        return self._trees[root]

    def changes(self, old: str, new: str) -> Edits:
        """Return what differs between two commits. Files that are the same in both may be missing, as they are in a partial clone."""
        fields = self._run("diff-tree", "-r", "--raw", "-z", "--no-renames", old, new).split(b"\0")[:-1]
        entries = [
            (os.fsdecode(path), *map(os.fsdecode, entry.split()[1:4:2])) for entry, path in zip(fields[::2], fields[1::2], strict=True)
        ]
        return Edits({path: self._content(int(mode, 8), id_) if int(mode) else None for path, mode, id_ in entries})

    def history(self, commit: str) -> list[str]:
        """List a commit and all its ancestors, through all parents."""
        found: dict[str, None] = {}
        pending = [commit]
        while pending:
            here = pending.pop()
            if here not in found:
                found[here] = None
                pending.extend(self.commit(here).parents)
        return [*found]

    def has(self, id_: str) -> bool:
        """Whether the repository can read an object."""
        return self._query(id_) is not None

    def index(self) -> Tree:
        """Return the files in the index of the main work tree."""
        found = Fingerprint.of(self.path).sections["index"]
        staged = [
            (path, *entry.split(",")[0].split()) for path, entry in found.items() if path != "(bytes)" and not path.startswith("worktrees/")
        ]
        if not staged and "(bytes)" in found:  # none, or an index of another version
            lines = [line.partition(b"\t") for line in self._run("ls-files", "--stage", "-z").split(b"\0")[:-1]]
            staged = [(os.fsdecode(path), *map(os.fsdecode, entry.split()[:2])) for entry, _, path in lines]
        return Tree({path: self._content(int(mode, 8), id_) for path, mode, id_ in staged})

    def _below(self, tree: str, prefix: bytes) -> dict[str, Content]:
        raw = self._object(tree)[2]
        size = len(tree) // 2
        files: dict[str, Content] = {}
        at = 0
        while at < len(raw):
            space, nul = raw.index(b" ", at), raw.index(b"\0", at)
            mode, path, after = int(raw[at:space], 8), prefix + raw[space + 1 : nul], nul + 1 + size
            id_ = raw[nul + 1 : after].hex()
            if stat.S_ISDIR(mode):
                files.update(self._below(id_, path + b"/"))
            else:
                files[os.fsdecode(path)] = self._content(mode, id_)
            at = after
        return files

    def _content(self, mode: int, id_: str) -> Content:
        if mode == 0o160000:
            return Submodule(id_)
        data = self._object(id_)[2]
        return Symlink(data) if stat.S_ISLNK(mode) else Executable(data) if mode & 0o100 else data

    def _object(self, name: str) -> tuple[str, str, bytes]:
        found = self._query(name)
        if found is None:
            raise AssertionError(f"{name} is missing from {self.path}")
        return found

    def _query(self, name: str) -> tuple[str, str, bytes] | None:
        if self._process is None:
            command = self._command("cat-file", "--batch")
            self._process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, env=hermetic_env())
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(os.fsencode(name) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        header = self._process.stdout.readline().split()
        if len(header) != 3:
            return None
        data = self._process.stdout.read(int(header[2]) + 1)[:-1]
        return header[0].decode(), header[1].decode(), data

    def _command(self, *arguments: str) -> list[str]:
        return [git_binary(), f"--git-dir={self._git_dir}", *arguments]

    def _run(self, *arguments: str) -> bytes:
        return subprocess.run(self._command(*arguments), env=hermetic_env(), capture_output=True, check=True).stdout


def files_in(directory: str | os.PathLike[str]) -> Tree:
    """Return the files and links below a directory, without its top ``.git``. Links are not followed."""
    root = os.fspath(directory)
    files: dict[str, Content] = {}
    for parent, directories, names in os.walk(root):
        if parent == root:
            directories[:] = [name for name in directories if name != ".git"]
            names = [name for name in names if name != ".git"]
        for name in (*names, *(name for name in directories if os.path.islink(os.path.join(parent, name)))):
            full = os.path.join(parent, name)
            status = os.lstat(full)
            if stat.S_ISLNK(status.st_mode):
                files[os.path.relpath(full, root)] = Symlink(os.fsencode(os.readlink(full)))
            elif stat.S_ISREG(status.st_mode):
                with open(full, "rb") as file:
                    data = file.read()
                files[os.path.relpath(full, root)] = Executable(data) if status.st_mode & 0o100 else data
    return Tree(dict(sorted(files.items())))


# Messages of broken rules ----------------------------------------------------------------------------------------------


def require(holds: object, rule: str, *lines: str, name: str = "") -> None:
    """Raise AssertionError unless a condition holds, or is waived.

    Args:
        holds: the condition.
        rule: the first line of the message.
        lines: what was found, a line each.
        name: the name of the invariant in ``waivers.INVARIANTS``; empty if it cannot be waived.
    """
    __tracebackhide__ = True  # a test runner shows where the rule was broken, and not this line
    if not holds and not is_waived(name):
        raise AssertionError("\n  ".join([rule, *lines, *how_to_waive(name)]))


def differences(expected: Mapping[str, object], found: Mapping[str, object], absent: str = "no file", none: str = "no file") -> list[str]:
    """A line for each of the first paths at which two mappings differ.

    Args:
        expected, found: facts by path.
        absent, none: what it means that a mapping does not have a path, and that the fact is None.
    """

    def shown(facts: Mapping[str, object], path: str) -> str:
        return absent if path not in facts else none if facts[path] is None else f"{facts[path]!r:.120}"

    paths = sorted(path for path in expected.keys() | found.keys() if expected.get(path, _NOTHING) != found.get(path, _NOTHING))
    lines = [f"{path!r}: expected {shown(expected, path)}, found {shown(found, path)}" for path in paths[:_SHOWN]]
    return [*lines, f"and {len(paths) - _SHOWN} more"] if len(paths) > _SHOWN else lines


# The rules -----------------------------------------------------------------------------------------------------------------------


def invariant_promote_is_one_commit(judge: Judge, sha: str, *, onto: str, selection: Mapping[str, Content | None]) -> None:
    """A promote is one commit on the head it met, and its difference to that is exactly the selection: bytes, modes, kinds (rule 1).

    Args:
        judge: reads durable.
        sha: the commit that the promotion returned.
        onto: the branch head at the moment of the swap.
        selection: new contents of the selected paths, None for a deletion.
    """
    parents = judge.commit(sha).parents
    require(parents == (onto,), "A promotion is one commit on the head it met.", f"parent {onto} was expected, found {parents}")
    made = judge.tree(onto).to(judge.tree(sha))
    wanted = {path: content for path, content in selection.items() if judge.tree(onto).get(path) != content}
    require(
        dict(made) == wanted,
        "A promotion changes exactly its selection.",
        *differences(wanted, made, absent="no change", none="a deletion"),
    )


def invariant_no_commit_is_lost(judge: Judge, head: str, commits: Iterable[str]) -> None:
    """Every commit that was on the branch, by any writer, is still reachable from its head, unless a person rewound it (rule 2)."""
    reachable = set(judge.history(head))
    lost = [commit for commit in commits if commit not in reachable]
    require(not lost, "No commit of durable is ever lost.", *(f"{commit}: {judge.commit(commit).message.strip()!r}" for commit in lost))


def invariant_touched_is_the_difference(reported: Iterable[str], baseline: Tree, workspace: Tree) -> None:
    """Touched is the difference of two trees, whatever the agent did to its HEAD, index or ignore rules (rule 3)."""
    wanted, found = dict.fromkeys(baseline.to(workspace), "touched"), dict.fromkeys(reported, "touched")
    require(
        wanted == found,
        "Touched is exactly what differs from the baseline.",
        *differences(wanted, found, absent="no change"),
        name="touched",
    )


def invariant_conflict_iff_overlap(conflicting: Collection[str] | None, selected: Iterable[str], baseline: Tree, head: Tree) -> None:
    """A strict promotion conflicts if and only if durable drifted at, above or below a selected path, and names each (rule 4).

    Args:
        conflicting: the paths in the error, or None if there was no conflict.
        selected: the paths that were promoted.
        baseline, head: what durable held when the session started, and when the promotion met it.
    """
    met = overlapping(selected, baseline.to(head))
    wanted, found = dict.fromkeys(met, "conflict"), dict.fromkeys(conflicting or (), "conflict")
    require(
        wanted == found,
        "A promotion conflicts exactly where durable drifted over the selection.",
        *differences(wanted, found, absent="no conflict"),
        name="conflicting-files",
    )


def invariant_untouched(before: Fingerprint, after: Fingerprint, *, by: str) -> None:
    """Nothing that a person could notice in durable is different: references, HEAD, index, configuration, hooks, files (rules 5, 6)."""
    changes = before.diff(after)
    require(not changes, f"Durable is not to be changed by {by}.", *changes[:_SHOWN], name="durable-untouched")


def invariant_checkout(judge: Judge, *, files: Tree | None = None, staged: Tree | None = None) -> None:
    """The human's work tree and index hold the human's own work, and the promoted paths that were clean there (rule 5).

    Args:
        judge: reads durable.
        files: what the work tree is to hold; None leaves it out.
        staged: what the index is to hold; None leaves it out.
    """
    if files is not None:
        found = files_in(judge.path)
        require(
            found == files, "The human's work tree is the human's.", *differences(files, found, absent="no file"), name="human-work-tree"
        )
    if staged is not None:
        index = judge.index()
        require(index == staged, "The human's index is the human's.", *differences(staged, index, absent="no file"), name="human-index")


def invariant_workspace_stands_alone(workspace: str | os.PathLike[str], durable: Judge, hidden: Iterable[str]) -> None:
    """A workspace's repository is independent: no alternates, no remote, nothing of durable that the session may not see (rule 6).

    Args:
        workspace: its root. One without ``.git`` is independent already.
        durable: reads durable.
        hidden: commits of durable that the session may not see.
    """
    git_dir = os.path.join(workspace, ".git")
    if not os.path.lexists(git_dir):
        return
    require(
        os.path.isdir(git_dir), "A workspace has a git directory of its own.", f"{git_dir} is no directory", name="workspace-own-repository"
    )
    if not os.path.isdir(git_dir):
        return
    for borrowed in ("objects/info/alternates", "objects/info/http-alternates", "commondir"):
        borrows = os.path.exists(os.path.join(git_dir, borrowed))
        require(not borrows, "A workspace borrows nothing.", f".git/{borrowed} is there", name="workspace-borrows-nothing")
    with open(os.path.join(git_dir, "config"), "rb") as file:
        config = file.read()
    knows_one = b"[remote" in config or os.fsencode(durable.path) in config
    require(not knows_one, "A workspace knows no remote.", repr(config), name="workspace-no-remote")
    hidden = list(hidden)
    if not hidden:
        return
    with Judge(workspace) as own:
        visible = [commit for commit in hidden if own.has(commit)]
        require(not visible, "A workspace shows no commit of durable but those it was given.", *visible, name="workspace-no-other-commits")


def invariant_ended_stays(before: str, after: str) -> None:
    """Ended states are absorbing: what was promoted, discarded or expired stays so (rule 7)."""
    require(before == "active" or before == after, "An ended session stays as it ended.", f"it was {before}, now it is {after}")


def invariant_sweep_is_exact(
    evicted: Collection[str], now: datetime, active: Iterable[str], deadlines: Mapping[str, datetime | None]
) -> None:
    """A sweep evicts every session that is strictly past its deadline, and none inside it (rule 8).

    Args:
        evicted: the sessions that the sweep reported as evicted.
        now: the instant of the sweep.
        active: the sessions that were active before.
        deadlines: the last instant at which each of them may be used, None for no limit.
    """
    due = {id_ for id_ in active if (deadline := deadlines[id_]) is not None and now > deadline}
    wrong = sorted(due.symmetric_difference(evicted))
    lines = [f"{id_} was {'kept' if id_ in due else 'evicted'}: its deadline is {deadlines.get(id_)}, and it is {now}" for id_ in wrong]
    require(not wrong, "A sweep evicts exactly the sessions past their deadline.", *lines)


def invariant_eviction_leaves_nothing(workspace: str | os.PathLike[str], lock: str | os.PathLike[str] | None = None) -> None:
    """After an eviction the workspace and the session's lock are gone (rule 8)."""
    left = [os.fspath(path) for path in (workspace, lock) if path is not None and os.path.lexists(path)]
    require(not left, "An eviction leaves no workspace and no lock.", *left, name="eviction-leaves-nothing")


def invariant_nothing_stays(first: Fingerprint, now: Fingerprint) -> None:
    """When every session has ended, durable has no reference, work tree or lock that it did not have before (rule 8)."""
    stays = _of_systems(now) - _of_systems(first)
    require(not stays, "Nothing of the system's stays in durable when all sessions have ended.", *sorted(stays), name="nothing-stays")


def _of_systems(found: Fingerprint) -> set[str]:
    """The parts of a repository that no person makes: references of other kinds than a person's, linked work trees, locks."""
    refs = {f"refs: {name}" for name in found.sections["refs"] if not name.startswith(REFS_OF_PEOPLE)}
    trees = {
        f"work tree: {tree}" for section, facts in found.sections.items() for name in facts if (tree := linked_work_tree(section, name))
    }
    return refs | trees | {f"lock: {name}" for name in found.sections["state"] if name.endswith(".lock")}


def invariant_work_is_archived(archive: Judge, ref: str, unpromoted: Mapping[str, Content | None]) -> None:
    """Unpromoted work is archived before its workspace is removed: the archive's commit holds all of it (rule 8).

    Args:
        archive: reads the repository that holds the archive.
        ref: the reference, or the commit, of the archive.
        unpromoted: contents by path, None for a deletion.
    """
    require(archive.has(ref), "What was not promoted is set aside whole.", f"{ref} is missing from {archive._git_dir}")
    archived = archive.changes(f"{ref}^", ref)
    found = {path: archived[path] for path in unpromoted if path in archived}
    require(found == dict(unpromoted), "What was not promoted is set aside whole.", *differences(unpromoted, found, absent="no change"))


def invariant_nothing_is_half_done(
    judge: Judge, state: str, sha: str | None, workspace: str | os.PathLike[str], branch: str = "main"
) -> None:
    """After a recovery a session has ended, with its commit on the branch if promoted, or is active with its workspace (rule 9)."""
    if state == "promoted":
        require(sha is not None and sha in judge.history(judge.head(branch)), "A promoted session's commit is on the branch.", f"{sha}")
    if state == "active":
        require(os.path.isdir(workspace), "An active session has its workspace.", f"{os.fspath(workspace)} is gone")
    locks = [os.path.join(parent, name) for parent, _, names in os.walk(judge._git_dir) for name in names if name.endswith(".lock")]
    require(not locks, "No lock is left for a person to delete.", *locks, name="no-lock-left")


def invariant_log_has_no_gap(log: str | os.PathLike[str]) -> None:
    """A session's event log is whole lines of JSON whose ``seq`` counts from 0 without a gap (rule 10)."""
    with open(log, "rb") as file:
        lines = file.read().split(b"\n")
    require(lines[-1] == b"", "An event log ends with a whole line.", f"{lines[-1]!r:.120}")
    numbers = [json.loads(line)["seq"] for line in lines[:-1]]
    require(numbers == list(range(len(numbers))), "Events are numbered without a gap.", f"found {numbers}", name="events-without-gap")


def invariant_answer(answer: str, allowed: Collection[str], *, to: str, said: str = "") -> None:
    """An operation answers as it must: it succeeds where it may, and fails with the documented code where it must (rules 7, 11).

    Args:
        answer: ``OK``, or the code of the error.
        allowed: the correct answers.
        to: the operation, for the message.
        said: the message of the error.
    """
    require(answer in allowed, f"{to} must answer {' or '.join(sorted(allowed))}, not {answer}.", *filter(None, [said]))


def invariant_promoted_is_reviewed(judge: Judge, sha: str, onto: str, reviewed: Edits) -> None:
    """A promotion of a review lands what the review showed, whatever the agent wrote afterwards (rule 12)."""
    invariant_promote_is_one_commit(judge, sha, onto=onto, selection=reviewed)


def invariant_runs_are_equal(runs: Iterable[Mapping[str, object]]) -> None:
    """The same random seed and start of the clock give the same facts in every run: ids, commits, events (rule 13).

    Args:
        runs: the facts of each run, by name.
    """
    first, *others = runs
    for other in others:
        require(first == other, "Equal seeds give equal runs.", *differences(first, other, absent="nothing", none="None"))
