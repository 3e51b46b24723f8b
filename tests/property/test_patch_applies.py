"""For any two small trees, of any names and contents, ``git apply`` takes the first to the second by our patch, and back."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.patch import FileChange, Side, patch_bytes, patch_text
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SYMLINK, parents

Files = Mapping[str, Side]

# Few letters, so that names meet as equal, prefix and directory; the rest is what quoting and parsing have to survive.
NAMES = st.text(st.sampled_from(["a", "b", " ", "\t", '"', "\\", "\n", "-", "é", "\x7f", "\udcff", "\udcc3"]), min_size=1, max_size=3)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)

LINES = st.sampled_from(
    [b"a", b"b", b"", b"c\r", b"\xff", b"d\re", b" ", b"-- a", b"++ b", b"@@ -1 +1 @@", b"\\ No newline at end of file"]
)
TEXTS = st.builds(lambda lines, end: b"\n".join(lines) + end, st.lists(LINES, max_size=20), st.sampled_from([b"", b"\n"]))
BINARIES = st.binary(max_size=200).map(lambda data: b"\0" + data)


def _side(mode: int, data: bytes) -> Side:
    return Side(mode, data, SHA1.hash_object("blob", data))


SIDES = st.one_of(
    st.none(),
    st.builds(_side, st.sampled_from([FILE, EXECUTABLE]), TEXTS | BINARIES),
    st.builds(_side, st.just(SYMLINK), PATHS.map(os.fsencode)),
)


@st.composite
def states(draw: st.DrawFn) -> tuple[Files, Files]:
    """Two trees over the same few paths; no path is a file and a directory in one tree."""
    paths = draw(st.lists(PATHS, min_size=1, max_size=5, unique=True))
    olds = {path: draw(SIDES) for path in paths}
    news = {path: draw(SIDES | st.just(olds[path]) | _touched(olds[path])) for path in paths}
    return _tree(olds), _tree(news)


def _touched(side: Side | None) -> st.SearchStrategy[Side | None]:
    """A small change of what was there: its mode, or one line of it."""
    if side is None or side.mode == SYMLINK:
        return st.just(side)
    lines = side.data.split(b"\n")
    edited = st.builds(
        lambda at, line: b"\n".join([*lines[:at], line, *lines[at + 1 :]]),
        st.integers(0, len(lines)),
        LINES,
    )
    return st.builds(_side, st.sampled_from([FILE, EXECUTABLE]), edited | st.just(side.data))


def _tree(sides: Mapping[str, Side | None]) -> Files:
    files: dict[str, Side] = {}
    for path, side in sides.items():
        above = set(parents(path))
        if side is not None and not any(other in above or path in parents(other) for other in files):
            files[path] = side
    return files


class Checkout:
    """One repository, emptied and written anew for each example."""

    def __init__(self, root: Path) -> None:
        self.root = root / "checkout"
        self.root.mkdir()
        self._environment = hermetic_env(root / "home")
        self.git("init", "-q")

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return run_git(arguments, cwd=self.root, env=self._environment, stdin=stdin)

    def become(self, files: Files) -> str:
        """Hold exactly these files, staged; their tree."""
        root = os.fsencode(self.root)
        for name in os.listdir(root):
            full = os.path.join(root, name)
            if name == b".git":
                continue
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)
        for path, side in files.items():
            full = os.path.join(root, os.fsencode(path))
            os.makedirs(os.path.dirname(full), exist_ok=True)
            if side.mode == SYMLINK:
                os.symlink(side.data, full)
                continue
            with open(full, "xb") as opened:
                opened.write(side.data)
            os.chmod(full, side.mode & 0o777)
        return self.stage()

    def stage(self) -> str:
        self.git("add", "--all", "--force")
        return self.git("write-tree").decode().strip()


@pytest.fixture(scope="module")
def checkout() -> Iterator[Checkout]:
    with tempfile.TemporaryDirectory(prefix="gittrix-patch-") as root:
        yield Checkout(Path(root))


@settings(deadline=None, max_examples=40)
@given(states=states(), context=st.sampled_from([3, 1]))
def test_a_patch_takes_any_tree_to_any_other_and_back(checkout: Checkout, states: tuple[Files, Files], context: int) -> None:
    old, new = states
    changes = [FileChange(path, old.get(path), new.get(path)) for path in {**new, **old}]
    expected = checkout.become(new)
    before = checkout.become(old)
    patch = patch_bytes(changes, context=context)
    event("no change" if not patch else "binary" if b"GIT binary patch" in patch else "text")
    assert patch_text(changes, context=context).encode("utf-8", "surrogateescape") == patch
    assert (patch == b"") == (before == expected)
    if not patch:
        return

    checkout.git("apply", "--index", stdin=patch)
    assert checkout.git("write-tree").decode().strip() == expected
    assert checkout.stage() == expected

    checkout.git("apply", "--reverse", stdin=patch)
    assert checkout.stage() == before
