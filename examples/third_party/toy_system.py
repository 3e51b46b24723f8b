"""A small session system: what agents write stays in memory until git commits it. It does what every session system must, and no more."""

import os
import subprocess
import uuid
from types import SimpleNamespace

from pytest_gittrix.conformance import BASE

SETTINGS = ("-c", f"core.hooksPath={os.devnull}", "-c", "user.name=Toy", "-c", "user.email=toy@example.org")
ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class Refused(Exception):
    def __init__(self, code, *paths):
        super().__init__(code, *paths)
        self.code, self.conflicting_files = code, paths


class ToyEngine:
    def __init__(self, place):
        self.repository, self.ref = place.durable.path, f"refs/heads/{place.durable.branch}"
        self.environment = ENVIRONMENT | {"GIT_INDEX_FILE": str(place.path / "toy-index")}
        self.work, self.states = {}, {}

    def git(self, *words, stdin=b""):
        command = ["git", "-C", self.repository, *SETTINGS, *words]
        done = subprocess.run(command, input=stdin, env=self.environment, capture_output=True, check=False)
        if done.returncode:
            raise Refused("PROMOTE_FAILED", *words)
        return done.stdout

    def session(self, id):
        if self.states.get(id) != "active":
            raise Refused("SESSION_EXPIRED" if id in self.states else "SESSION_NOT_FOUND", id)
        return self.work[id]

    def start(self, task, _policy):
        id, head = uuid.uuid4().hex, self.git("rev-parse", self.ref).strip()
        rows = [os.fsdecode(row).partition("\t") for row in self.git("ls-tree", "-r", "-z", head).split(b"\0")[:-1]]
        tree = {path: entry.split() for entry, _, path in rows}
        self.work[id], self.states[id] = SimpleNamespace(task=task, baseline=head, tree=tree, written={}), "active"
        return id

    def read(self, id, path):
        session = self.session(id)
        if path not in session.tree and path not in session.written:
            raise Refused("PATH_NOT_FOUND", path)
        return session.written[path] if path in session.written else self.git("cat-file", "blob", session.tree[path][2])

    def write(self, id, path, data):
        clash = any(path.startswith(f"{file}/") or file.startswith(f"{path}/") for file in self.list(id))
        if clash or "\0" in path or {"", ".", "..", ".git"} & {*path.lower().split("/")}:
            raise Refused("WRITE_REJECTED", path)
        self.session(id).written[path] = data

    def list(self, id):
        return {*self.session(id).tree, *self.session(id).written}

    def touched(self, id):
        tree, written = self.session(id).tree, self.session(id).written
        return {path for path, data in written.items() if path not in tree or self.git("cat-file", "blob", tree[path][2]) != data}

    def promote(self, id, files=None, message=None):
        session, touched, head = self.session(id), self.touched(id), self.git("rev-parse", self.ref).strip()
        chosen = touched if files is None else {*files}
        if not chosen or chosen - touched:
            raise Refused("PROMOTE_FAILED", *(chosen - touched))
        drift = os.fsdecode(self.git("diff-tree", "-r", "-z", "--no-renames", "--name-only", session.baseline, head)).split("\0")[:-1]
        if both := [one for one in chosen if any(f"{one}/".startswith(f"{path}/") or path.startswith(f"{one}/") for path in drift)]:
            raise Refused("BASELINE_CONFLICT", *both)
        blobs = {path: self.git("hash-object", "-w", "--stdin", stdin=session.written[path]).strip().decode() for path in chosen}
        rows = [f"{session.tree.get(path, ['100644'])[0]} {blob}\t{path}\0" for path, blob in blobs.items()]
        self.git("read-tree", head)
        self.git("update-index", "-z", "--index-info", stdin=os.fsencode("".join(rows)))
        made = self.git("commit-tree", self.git("write-tree").strip(), "-p", head, stdin=(message or session.task).encode()).strip()
        self.git("update-ref", self.ref, made, head)
        self.states[id] = "promoted"
        return made.decode()

    def evict(self, id):
        self.session(id)
        self.states[id] = "expired"

    def sweep(self):
        return []

    def sessions(self):
        return self.states

    def close(self):
        self.work.clear()


system = SimpleNamespace(name="toy 0.1", capabilities=BASE, open=ToyEngine)
