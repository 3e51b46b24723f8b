"""What the engine is measured against: the same cycle by git's own commands, and by the least code that gives the same commit.

(a) ``git``: one command after the other, as a script would. (b) ``pygit2``: plain files, pygit2 for objects and the branch. (c)
``by hand``: plain files, a repository around them, one pack, a lock file. (b) and (c) are floors and not systems: they record nothing,
lock nothing against each other, check no path, find no conflict and survive no kill.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pygit2

from benchmarks.measure import Phases, Stopwatch
from benchmarks.sample import BRANCH, Copy, Sample
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.git.objects import SHA1, Libgit2Objects, Trees
from pytest_gittrix.git.pack import build_pack
from pytest_gittrix.git.tree import FILE, Entry, write_trees

_PERSON: Final = "Bench <bench@example.com> 1893456000 +0000"


class GitCommands:
    """(a) The cycle by git commands: a linked work tree, and an index of its own to look and promote through."""

    def __init__(self, sample: Sample, durable: Copy, directory: Path, *, moving: bool = False) -> None:
        self._sample, self._durable, self._directory, self._moving = sample, durable, directory, moving
        directory.mkdir()
        self._env = hermetic_env() | {
            "GIT_AUTHOR_NAME": "Bench",
            "GIT_AUTHOR_EMAIL": "bench@example.com",
            "GIT_COMMITTER_NAME": "Bench",
            "GIT_COMMITTER_EMAIL": "bench@example.com",
        }

    def _git(self, *arguments: str, index: str | None = None, cwd: str | None = None) -> bytes:
        env = self._env if index is None else self._env | {"GIT_INDEX_FILE": index}
        place = cwd or str(self._durable.directory)
        return subprocess.run([git_binary(), "-C", place, *arguments], env=env, check=True, stdout=subprocess.PIPE).stdout

    def __call__(self, turn: int) -> Phases:
        """One cycle."""
        work = str(self._directory / "work")
        index = str(self._directory / "index")
        writes = self._sample.writes(turn)
        watch = Stopwatch()
        base = self._git("rev-parse", BRANCH).decode().strip()
        self._git("worktree", "add", "--quiet", "--detach", work, base)
        watch.lap("start")
        _write(work, writes)
        watch.lap("write")
        shutil.copyfile(self._durable.directory / "worktrees" / "work" / "index", index)
        self._git("add", "--all", index=index, cwd=work)
        watch.lap("review")
        text = self._git("diff", "--cached", "--no-renames", base, index=index, cwd=work)
        watch.lap("diff")
        tree = self._git("write-tree", index=index).decode().strip()
        commit = self._git("commit-tree", tree, "-p", base, "-m", "promote").decode().strip()
        self._git("update-ref", BRANCH, commit, base)
        watch.lap("promote")
        self._git("worktree", "remove", "--force", work)
        watch.lap("evict")
        _check(text, writes)
        if not self._moving:
            self._durable.reset()
        return watch.phases


class Floor:
    """What (b) and (c) share: files written plainly from memory, seen by their change time, and renamed away."""

    def __init__(self, sample: Sample, durable: Copy, directory: Path) -> None:
        self._sample, self._durable, self._directory = sample, durable, directory
        directory.mkdir()
        self._by_directory: dict[str, list[str]] = {}
        for path in sample.files:
            self._by_directory.setdefault(os.path.dirname(path), []).append(path)
        self.prepare()

    def prepare(self) -> None:
        """Whatever is made once per baseline."""

    def start(self, work: str) -> None:
        """Make the workspace."""
        _write_all(work, self._by_directory, self._sample.files)

    def promote(self, changed: Mapping[str, bytes]) -> None:
        """Put the changed files on the branch."""
        raise NotImplementedError

    def __call__(self, turn: int) -> Phases:
        """One cycle."""
        work, trash = str(self._directory / "work"), str(self._directory / "trash")
        stamp = self._directory / "stamp"
        writes = self._sample.writes(turn)
        watch = Stopwatch()
        self.start(work)
        stamp.write_bytes(b"")
        since = os.stat(stamp).st_ctime_ns
        watch.lap("start")
        _write(work, writes)
        watch.lap("write")
        changed = {path: data for path, data in _touched(work, since) if data != self._sample.files[path]}
        watch.lap("review")
        text = "".join(_diff(path, self._sample.files[path], data) for path, data in changed.items())
        watch.lap("diff")
        self.promote(changed)
        watch.lap("promote")
        os.rename(work, trash)
        watch.lap("evict")
        shutil.rmtree(trash)
        watch.lap("delete")
        _check(text.encode(), writes)
        self._durable.reset()
        return watch.phases


class Pygit2Floor(Floor):
    """(b) Objects, trees and the branch through pygit2."""

    def promote(self, changed: Mapping[str, bytes]) -> None:
        """Put the changed files on the branch."""
        repository = pygit2.Repository(str(self._durable.directory))
        branch = repository.references[BRANCH]
        parent = repository[branch.target]
        blobs = {path: repository.create_blob(data) for path, data in changed.items()}
        tree = _rebuild(repository, parent.tree, blobs)
        person = pygit2.Signature("Bench", "bench@example.com", 1893456000, 0)
        branch.set_target(repository.create_commit(None, person, person, "promote", tree, [parent.id]))
        repository.free()


class ByHand(Floor):
    """(c) A repository around the files that borrows the baseline, and one pack on the branch."""

    def prepare(self) -> None:
        """Read the trees once, and have git make the index once."""
        self._trees = Trees(Libgit2Objects(self._durable.directory / "objects"))
        self._root = str(pygit2.Repository(str(self._durable.directory))[self._durable.commit].tree.id)
        index = self._directory / "template-index"
        env = hermetic_env() | {"GIT_DIR": str(self._durable.directory), "GIT_INDEX_FILE": str(index)}
        subprocess.run([git_binary(), "read-tree", self._durable.commit], env=env, check=True)
        self._repository = {
            "HEAD": f"{self._durable.commit}\n".encode(),
            "config": b"[core]\n\trepositoryformatversion = 0\n\tcheckStat = minimal\n",
            "index": index.read_bytes(),
            "objects/info/alternates": os.fsencode(self._durable.directory / "objects") + b"\n",
        }

    def start(self, work: str) -> None:
        """Files, and a repository around them."""
        super().start(work)
        os.makedirs(os.path.join(work, ".git/objects/info"))
        os.mkdir(os.path.join(work, ".git/refs"))
        _write(os.path.join(work, ".git"), self._repository)

    def promote(self, changed: Mapping[str, bytes]) -> None:
        """Put the changed files on the branch."""
        ref = self._durable.directory / BRANCH
        head = ref.read_text().strip()
        blobs = {path: SHA1.hash_object("blob", data) for path, data in changed.items()}
        root, trees = write_trees(self._trees.read, self._root, {path: Entry(FILE, id_) for path, id_ in blobs.items()}, SHA1.hash_object)
        commit = f"tree {root}\nparent {head}\nauthor {_PERSON}\ncommitter {_PERSON}\n\npromote\n".encode()
        id_ = SHA1.hash_object("commit", commit)
        objects = {id_: ("commit", commit)} | {tree: ("tree", data) for tree, data in trees.items()}
        objects |= {blob: ("blob", changed[path]) for path, blob in blobs.items()}
        pack = build_pack(objects, SHA1)
        stem = os.path.join(self._durable.directory, "objects", "pack", f"pack-{pack.name}")
        _write("", {f"{stem}.pack": pack.data, f"{stem}.idx": pack.index})
        with open(f"{ref}.lock", "x") as lock:
            if ref.read_text().strip() != head:
                raise RuntimeError("the branch moved")
            lock.write(f"{id_}\n")
        os.rename(f"{ref}.lock", ref)


def _write(root: str, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        with open(os.path.join(root, path), "wb", buffering=0) as file:
            file.write(data)


def _write_all(root: str, directories: Mapping[str, list[str]], files: Mapping[str, bytes]) -> None:
    os.mkdir(root)
    for directory, paths in directories.items():
        os.makedirs(os.path.join(root, directory), exist_ok=True)
        for path in paths:
            descriptor = os.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(descriptor, files[path])
            os.close(descriptor)


def _touched(root: str, since: int, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != ".git":
                    yield from _touched(root, since, f"{prefix}{entry.name}/")
            elif entry.stat(follow_symlinks=False).st_ctime_ns >= since:
                with open(entry.path, "rb", buffering=0) as file:
                    yield prefix + entry.name, file.read()


def _diff(path: str, old: bytes, new: bytes) -> str:
    return pygit2.Patch.create_from(old, new, path, path).text or ""


def _rebuild(repository: pygit2.Repository, tree: pygit2.Object, blobs: Mapping[str, pygit2.Oid]) -> pygit2.Oid:
    """The tree with some blobs replaced; every path is there already."""
    assert isinstance(tree, pygit2.Tree)
    builder = repository.TreeBuilder(tree)
    below: dict[str, dict[str, pygit2.Oid]] = {}
    for path, id_ in blobs.items():
        name, _, rest = path.partition("/")
        if rest:
            below.setdefault(name, {})[rest] = id_
        else:
            builder.insert(name, id_, pygit2.enums.FileMode.BLOB)
    for name, inside in below.items():
        builder.insert(name, _rebuild(repository, tree[name], inside), pygit2.enums.FileMode.TREE)
    return builder.write()


def _check(text: bytes, writes: Mapping[str, bytes]) -> None:
    """A variant that did not do the job must not win."""
    if text.count(b"+# edited in turn") != len(writes):
        raise AssertionError(f"the diff shows {text.count(b'+# edited in turn')} edits of {len(writes)}")
