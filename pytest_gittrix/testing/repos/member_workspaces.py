"""Workspaces of several repositories, in every state that an agent can leave them in.

A plan is data: the kind of each remote, and what the agent did in each repository. ``drawn`` gives one for a random seed. ``Member`` builds
it with real remotes and plain git at fixed times, so that the same plan gives the same commits everywhere. ``member_witness`` checks
whether anything of it gets lost.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, get_args

from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.testing.repos.templates import shared_templates
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, MultiRepoWorkspace, RepositorySpec, checkout_all

RemoteKind = Literal["plain", "trunk", "protected", "rejecting", "gone", "empty"]
"""How a remote behaves: accepts pushes; the same, with a default branch that is not ``main``; accepts only new branches with recovery
names; refuses all pushes; is gone when the session ends; has no commit yet."""

Deed = Literal[
    "branch",
    "default",
    "reflog",
    "dangling",
    "amended",
    "tagged",
    "stash",
    "diverged",
    "twins",
    "conflicting",
    "merged",
    "pushed",
    "secret",
]
"""What an agent committed: on a branch; on the default branch; on a detached HEAD that it left; unreachable commits; a commit that it
amended; under a tag; as stashes; on a branch to which another person pushed other files, the very same commit, the same file; the same with
a merge; on a branch that it pushed itself; a credential."""

End = Literal["clean", "dirty", "dirty-default", "dirty-detached", "detached", "unborn"]
"""How the agent left the work tree: unchanged; with uncommitted files on a branch, on the default branch, on a detached HEAD; with commits
on a detached HEAD; with files on a branch that has no commit."""

Extra = Literal["credentials", "runtime", "ignored", "nested", "worktree", "packed", "hostile", "knowledge"]
"""What else the workspace holds: credentials, runtime state, ignored files, a repository inside, a linked work tree next to it, packed
references and objects, a configuration that would run programs; in the team's repository, specifications and knowledge."""

SECRET: Final = b"SECRET-4711"
"""The text that every credential contains."""

_START: Final = 1_893_456_000
_KEEPING: Final[frozenset[str]] = frozenset({"dirty-default", "secret", "nested", "worktree"})
_IDLE: Final[frozenset[str]] = frozenset({"clean", "credentials", "runtime", "ignored", "hostile", "pushed", "packed"})


@dataclass(frozen=True)
class RepositoryPlan:
    """One repository: its name, the kind of its remote, and what was done in it."""

    name: str
    remote: RemoteKind = "plain"
    deeds: tuple[Deed, ...] = ()
    end: End = "clean"
    extras: tuple[Extra, ...] = ()
    team: bool = False

    @property
    def keeps(self) -> bool:
        """Whether something in it can only stay in the workspace."""
        done = {*self.deeds, self.end, *self.extras}
        if self.remote in ("gone", "rejecting"):
            return bool(done - _IDLE)
        if self.team and self.end in ("dirty", "dirty-detached", "unborn"):
            return True  # files of the team repository that are neither specifications nor knowledge
        return bool(done & _KEEPING)


Plan = tuple[RepositoryPlan, ...]


def drawn(random_seed: int) -> Plan:
    """Return the plan of a random seed: one to three repositories, with nested names and the team's repository among them."""
    chance = random.Random(random_seed)
    names = chance.sample(["app", "org/lib", "org/deep/tool", "web"], chance.randint(1, 3))
    plans = [_drawn(chance, name, team=False) for name in names]
    if chance.random() < 0.4:
        plans[-1] = _drawn(chance, "team", team=True)
    return tuple(plans)


def _drawn(chance: random.Random, name: str, *, team: bool) -> RepositoryPlan:
    remotes: Sequence[RemoteKind] = get_args(RemoteKind)
    remote = chance.choices(remotes, [8, 3, 2, 1, 1, 1])[0]
    if remote == "empty":
        return RepositoryPlan(name, remote, (), chance.choice(("clean", "unborn")), (), team)
    deeds = tuple(chance.sample(get_args(Deed), chance.choice((0, 1, 1, 2, 3))))
    if "secret" in deeds and chance.random() < 0.6:
        deeds = tuple(deed for deed in deeds if deed != "secret")
    extras = tuple(chance.sample([extra for extra in get_args(Extra) if extra != "knowledge" or team], chance.choice((0, 0, 1, 2))))
    return RepositoryPlan(name, remote, deeds, chance.choice(get_args(End)), extras, team)


def git(directory: Path, *arguments: str, stdin: bytes = b"", at: int | None = None) -> str:
    """Run plain git in a directory; return its output. ``at`` is the time of commits, in seconds since 1970."""
    env = hermetic_env() | {"GIT_AUTHOR_NAME": "An agent", "GIT_AUTHOR_EMAIL": "agent@example.com"}
    if at is not None:
        env |= {"GIT_AUTHOR_DATE": f"{at} +0000", "GIT_COMMITTER_DATE": f"{at} +0000"}
    return os.fsdecode(run_git(arguments, cwd=directory, env=env, stdin=stdin)).rstrip("\n")


@lru_cache(maxsize=64)
def _bare_repository(branch: str, history: str) -> str:
    """A bare repository with a history, to be copied: two processes of git make it once, and not for each workspace."""
    path = Path(tempfile.mkdtemp(prefix="remote-", dir=shared_templates().directory))
    git(path, "init", "-q", "--bare", f"--initial-branch={branch}", ".")
    if history:
        git(path, "fast-import", "--quiet", "--date-format=raw", stdin=history.encode())
    return str(path)


Fill = Callable[[Sequence[RepositorySpec]], MultiRepoWorkspace]
"""Creates a workspace of some repositories."""


class Member:
    """A plan that was built: a member's workspace and its remotes.

    Args:
        root: a new directory for it, which must not exist.
        plan: the plan to build.
        fill: creates the workspace; ``checkout_all``, below ``root``, by default.

    Attributes:
        root, plan: as given.
        workspace: the workspace.
        keeps: whether something in the workspace can only stay there.
    """

    def __init__(self, root: Path, plan: Plan, fill: Fill | None = None) -> None:
        self.root, self.plan = root, plan
        self._seconds = _START
        root.mkdir(parents=True)
        for one in plan:
            self._make_remote(one)
        specs = [RepositorySpec(one.name, str(self.remote(one.name)), team=one.team) for one in plan]
        self.workspace: MultiRepoWorkspace = self._checked_out(specs) if fill is None else fill(specs)
        for one, made in zip(plan, self.workspace.repositories, strict=True):
            _Agent(self, one, made).work()
        self.settle()
        self.keeps = any(one.keeps for one in plan)

    def _checked_out(self, specs: Sequence[RepositorySpec]) -> MultiRepoWorkspace:
        return checkout_all(specs, self.root / "workspace", self.root / "clones", marker={"session_id": "s1", "member": "alice"})

    def remote(self, name: str) -> Path:
        """Return the path of a bare repository."""
        return self.root / "remotes" / f"{name.replace('/', '-')}.git"

    def work_tree(self, repository: CheckedOutRepository) -> Path:
        """Return the work tree of a repository."""
        return Path(self.workspace.path, repository.directory)

    def _make_remote(self, plan: RepositoryPlan) -> None:
        branch = "trunk" if plan.remote == "trunk" else "main"
        history = "" if plan.remote == "empty" else self._history(plan, branch)
        shutil.copytree(_bare_repository(branch, history), self.remote(plan.name), symlinks=True)

    def _history(self, plan: RepositoryPlan, branch: str) -> str:
        """What a remote has at first, as ``git fast-import`` reads it."""
        files = {"a.txt": "one\ntwo\nthree\n", "src/b.txt": "b\n", "gone.txt": "g\n", "knowledge/k.md": "k\n", ".gitignore": "build/\n"}
        ref = f"refs/heads/{branch}"
        return self._commit(ref, files) + self._commit(ref, {"src/c.txt": f"of {plan.name}\n"}) + f"reset refs/heads/shared\nfrom {ref}\n"

    def tick(self) -> int:
        """Return the next instant, in seconds since 1970."""
        self._seconds += 60
        return self._seconds

    def commit_to(self, bare: Path, branch: str, files: Mapping[str, str]) -> None:
        """Commit files to a branch of a bare repository, as another person."""
        ref = f"refs/heads/{branch}"
        parent = git(bare, "for-each-ref", "--format=%(objectname)", ref)
        git(bare, "fast-import", "--quiet", "--date-format=raw", stdin=self._commit(ref, files, parent).encode())

    def _commit(self, ref: str, files: Mapping[str, str], parent: str = "") -> str:
        """A commit of another person, as ``git fast-import`` reads it; without a parent it follows the stream's last one of its branch."""
        head = f"commit {ref}\ncommitter Rival <rival@example.com> {self.tick()} +0000\ndata 5\nrival\n" + (
            f"from {parent}\n" if parent else ""
        )
        return head + "".join(f"M 100644 inline {path}\ndata {len(data.encode())}\n{data}\n" for path, data in files.items())

    def settle(self) -> None:
        """Set one time for every file of the workspace, and give each remote its final behaviour."""
        for parent, directories, names in os.walk(self.workspace.path):
            if ".git" in directories:
                directories.remove(".git")
            for name in names:
                os.utime(os.path.join(parent, name), (self._seconds, self._seconds), follow_symlinks=False)
        for one in self.plan:
            self.change_mood(one, one.remote)

    def change_mood(self, plan: RepositoryPlan, kind: RemoteKind) -> None:
        """Change the kind of a remote; one that is ``gone`` is moved aside and can come back."""
        path, aside = self.remote(plan.name), self.remote(plan.name).with_suffix(".aside")
        if aside.exists():
            aside.rename(path)
        hook = path / "hooks" / "update"
        hook.unlink(missing_ok=True)
        scripts = {"rejecting": "exit 1", "protected": 'case "$1" in refs/heads/recovery/*) exit 0;; esac\nexit 1'}
        if kind in scripts:
            hook.parent.mkdir(exist_ok=True)
            hook.write_text(f"#!/bin/sh\n{scripts[kind]}\n")
            hook.chmod(0o755)
        if kind == "gone":
            path.rename(aside)

    def refs(self) -> dict[str, dict[str, str]]:
        """Return every branch and tag of every existing remote, with its commit."""
        found = {}
        for one in self.plan:
            path = self.remote(one.name)
            lines = git(path, "for-each-ref", "--format=%(refname) %(objectname)").splitlines() if path.exists() else []
            found[one.name] = dict(line.split(" ", 1) for line in lines)
        return found


class _Agent:
    """The agent that worked in one repository."""

    def __init__(self, member: Member, plan: RepositoryPlan, made: CheckedOutRepository) -> None:
        self._member, self._plan, self._made = member, plan, made
        self._root = member.work_tree(made)

    def work(self) -> None:
        """Do everything in the plan."""
        for deed in self._plan.deeds:
            self._git("checkout", "-q", "--detach", str(self._made.commit))
            self._do(deed)
        self._end()
        for extra in sorted(self._plan.extras, key="hostile".__eq__):
            self._extra(extra)

    def _do(self, deed: Deed) -> None:
        match deed:
            case "branch":
                self._commits("x1", "x2", branch="feature/x")
            case "default":
                self._commits("on-default", branch=self._made.branch)
            case "reflog":
                self._commits("seen-once", "seen-twice")
            case "dangling":
                self._dangle()
            case "amended":
                self._commits("first", branch="amended")
                self._put("first.txt", "amended\n")
                self._git("commit", "-q", "-a", "--amend", "-m", "amended")
            case "tagged":
                self._commits("tagged")
                self._git("tag", "-a", "-m", "a tag", "v1")
            case "stash":
                self._stash()
            case "diverged":
                self._share({"rival.txt": "rival\n"})
            case "conflicting":
                self._share({"both.txt": "rival's\n"})
            case "twins":
                self._twins()
            case "merged":
                self._merge()
            case "pushed":
                self._commits("pushed", branch="pushed")
                self._git("push", "-q", "origin", "pushed")
            case "secret":
                self._branch("leaky")
                self._put(".env", f"{SECRET.decode()}\n")
                self._commit("leak", ".env")

    def _git(self, *arguments: str) -> str:
        return git(self._root, *arguments, at=self._member.tick())

    def _put(self, path: str, text: str) -> None:
        at = self._root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)

    def _branch(self, name: str, at: str | None = None) -> None:
        self._git("checkout", "-q", "-B", name, at or str(self._made.commit))

    def _commits(self, *names: str, branch: str | None = None) -> None:
        if branch is not None:
            self._branch(branch)
        for name in names:
            self._commit(name)

    def _commit(self, name: str, path: str | None = None) -> None:
        if path is None:
            path = f"{name}.txt"
            self._put(path, f"{name} in {self._plan.name}\n")
        self._git("add", "-f", path)
        self._git("commit", "-q", "-m", name)

    def _dangle(self) -> None:
        for name in ("lost-1", "lost-2"):
            self._git("checkout", "-q", "--detach", str(self._made.commit))
            self._commit(name)
        self._git("checkout", "-q", "--detach", str(self._made.commit))
        self._git("reflog", "expire", "--expire=now", "--all")

    def _stash(self) -> None:
        for name in ("older", "newer"):
            self._put("a.txt", f"stashed {name}\n")
            self._put(f"stash-{name}.txt", name)
            self._git("stash", "-q", "-u")

    def _share(self, rival: Mapping[str, str]) -> None:
        """Work on a branch to which another person pushes meanwhile."""
        self._branch("shared")
        self._put("both.txt", "the agent's\n")
        self._commit("both", "both.txt")
        self._commit("more")
        self._member.commit_to(self._member.remote(self._plan.name), "shared", rival)

    def _twins(self) -> None:
        """Work on a branch to which another person pushed the first commit, replayed onto another one."""
        bare = self._member.remote(self._plan.name)
        git(bare, "branch", "-f", "twins", str(self._made.commit))
        self._branch("twins")
        self._commit("twin")
        mine = self._git("rev-parse", "HEAD")
        self._member.commit_to(bare, "twins", {"rival.txt": "rival\n"})
        self._git("fetch", "-q", "origin")
        self._git("checkout", "-q", "--detach", "origin/twins")
        self._git("cherry-pick", mine)
        self._git("push", "-q", "origin", "HEAD:twins")
        self._git("checkout", "-q", "twins")
        self._commit("second")

    def _merge(self) -> None:
        self._branch("side")
        self._commit("side")
        self._branch("merging")
        self._commit("before")
        self._git("merge", "-q", "--no-ff", "-m", "merged", "side")
        bare = self._member.remote(self._plan.name)
        git(bare, "branch", "-f", "merging", str(self._made.commit))
        self._member.commit_to(bare, "merging", {"rival.txt": "rival\n"})

    def _end(self) -> None:
        end = self._plan.end
        if self._made.commit is None:
            if end == "unborn":
                self._git("checkout", "-q", "--orphan", "fresh")
                self._put("fresh.txt", "fresh\n")
            return
        self._git("checkout", "-q", "--detach", str(self._made.commit))
        if end == "dirty":
            self._branch("unfinished")
        elif end == "dirty-default":
            self._branch(self._made.branch)
        elif end == "detached":
            self._commit("detached")
        elif end == "unborn":
            self._git("checkout", "-q", "--orphan", "fresh")
            self._put("fresh.txt", "fresh\n")
        if end.startswith("dirty"):
            self._change_files()

    def _change_files(self) -> None:
        """Change files of every kind without committing them."""
        self._put("a.txt", "one\nTWO\nthree\n")
        self._put("new/deep/file.txt", f"new in {self._plan.name}\n")
        self._put("run.sh", "#!/bin/sh\n")
        (self._root / "run.sh").chmod(0o755)
        (self._root / "link").symlink_to("a.txt")
        (self._root / "gone.txt").unlink()
        self._put("staged.txt", "staged\n")
        self._git("add", "staged.txt")
        self._put("staged.txt", "and changed again\n")
        (self._root / "src" / "b.txt").unlink()
        self._put("src/b.txt/now-a-directory.txt", "x\n")
        Path(os.fsdecode(os.fsencode(self._root) + b"/caf\xe9.txt")).write_bytes(b"latin-1\n")

    def _extra(self, extra: Extra) -> None:
        match extra:
            case "credentials":
                for path in (".env", "conf/.env.local", "token.txt", ".config/gh/hosts.yml", "keys/id_ed25519"):
                    self._put(path, f"{SECRET.decode()} {path}\n")
            case "runtime":
                for path in (".ralph/state.json", "run.log", "logs/today"):
                    self._put(path, "ran\n")
            case "ignored":
                self._put("build/out.o", "ignored\n")
            case "nested":
                (self._root / "vendor" / "inner").mkdir(parents=True)
                git(self._root / "vendor" / "inner", "init", "-q")
                self._put("vendor/inner/x", "x")
                git(self._root / "vendor" / "inner", "add", "x")
                git(self._root / "vendor" / "inner", "commit", "-q", "-m", "inner", at=self._member.tick())
            case "worktree":
                linked = self._root.parent / f"{self._root.name}-linked"
                self._git("worktree", "add", "-q", "--detach", str(linked), str(self._made.commit))
                (linked / "linked.txt").write_text("linked\n")
                git(linked, "add", "linked.txt")
                git(linked, "commit", "-q", "-m", "linked", at=self._member.tick())
            case "packed":
                self._git("pack-refs", "--all")
                self._git("repack", "-q", "-d", "-l")
            case "hostile":
                self._plant_programs()
            case "knowledge":
                for path in ("knowledge/new.md", "specs/s.md", "members/alice/knowledge/m.md"):
                    self._put(path, f"{path}\n")

    def _plant_programs(self) -> None:
        """Plant programs that leave a trace if git runs here."""
        trace = self._member.root / "trace"
        script = self._root / ".git" / "harm"
        script.write_text(f"#!/bin/sh\necho ran >>{trace}\n")
        script.chmod(0o755)
        for hook in ("pre-push", "reference-transaction", "post-index-change", "pre-commit"):
            at = self._root / ".git" / "hooks" / hook
            at.parent.mkdir(exist_ok=True)
            shutil.copy2(script, at)
        with (self._root / ".git" / "config").open("a") as config:
            config.write(f"[core]\n\tfsmonitor = {script}\n\tsshCommand = {script}\n")
