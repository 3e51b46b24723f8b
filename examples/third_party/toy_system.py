"""A small session system: what agents write stays in memory until it is committed. It does what every session system must, and no more."""

import uuid
from types import SimpleNamespace

import pygit2

from pytest_gittrix.conformance import BASE

TOY = pygit2.Signature("Toy", "toy@example.org")


class Refused(Exception):
    def __init__(self, code, *paths):
        super().__init__(code, *paths)
        self.code, self.conflicting_files = code, paths


class ToyEngine:
    def __init__(self, place):
        self.repo, self.ref, self.made = pygit2.Repository(str(place.durable.path)), f"refs/heads/{place.durable.branch}", {}

    def index(self, commit):
        index = pygit2.Index()
        index.read_tree(self.repo[commit].tree)
        return index

    def session(self, id):
        if self.sessions().get(id) != "active":
            raise Refused("SESSION_EXPIRED" if id in self.made else "SESSION_NOT_FOUND", id)
        return self.made[id]

    def start(self, task, _policy):
        id, head = uuid.uuid4().hex, self.repo.references[self.ref].target
        tree = {entry.path: entry for entry in self.index(head)}
        self.made[id] = SimpleNamespace(task=task, baseline=head, tree=tree, written={}, state="active")
        return id

    def read(self, id, path):
        if path not in self.list(id):
            raise Refused("PATH_NOT_FOUND", path)
        session = self.session(id)
        return session.written[path] if path in session.written else self.repo[session.tree[path].id].data

    def write(self, id, path, data):
        clash = any(path.startswith(f"{file}/") or file.startswith(f"{path}/") for file in self.list(id))
        if clash or "\0" in path or {"", ".", "..", ".git"} & {*path.lower().split("/")}:
            raise Refused("WRITE_REJECTED", path)
        self.session(id).written[path] = data

    def list(self, id):
        return {*self.session(id).tree, *self.session(id).written}

    def touched(self, id):
        tree = self.session(id).tree
        return {path for path, data in self.made[id].written.items() if path not in tree or self.repo[tree[path].id].data != data}

    def promote(self, id, files=None, message=None):
        session, touched, head = self.session(id), self.touched(id), self.repo.references[self.ref].target
        chosen = touched if files is None else {*files}
        if not chosen or chosen - touched:
            raise Refused("PROMOTE_FAILED", *(chosen - touched))
        index = self.index(head)
        ours, theirs = session.tree, {entry.path: entry for entry in index}
        drift = [path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path)]
        if both := [one for one in chosen if any(f"{one}/".startswith(f"{path}/") or path.startswith(f"{one}/") for path in drift)]:
            raise Refused("BASELINE_CONFLICT", *both)
        for path in chosen:
            mode = ours[path].mode if path in ours else pygit2.enums.FileMode.BLOB
            index.add(pygit2.IndexEntry(path, self.repo.create_blob(session.written[path]), mode))
        made = self.repo.create_commit(self.ref, TOY, TOY, message or session.task, index.write_tree(self.repo), [head])
        session.state = "promoted"
        return str(made)

    def evict(self, id):
        self.session(id).state = "expired"

    def sweep(self):
        return []

    def sessions(self):
        return {id: session.state for id, session in self.made.items()}

    def close(self):
        self.repo.free()


system = SimpleNamespace(name="toy 0.1", capabilities=BASE, open=ToyEngine)
