"""Patches as ``git apply`` takes them: each case is applied to its old tree and taken back, and the trees are compared."""

from __future__ import annotations

import os
import zlib
from base64 import b85decode
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.git.hunks import is_binary
from pytest_gittrix.git.objects import SHA1, SHA256, ObjectFormat
from pytest_gittrix.git.patch import FileChange, Side, patch_bytes, patch_text
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK

Files = Mapping[str, Side]

FIRST_COMMIT, SECOND_COMMIT = "1" * 40, "2" * 40
TWENTY = b"".join(b"line %d\n" % number for number in range(20))
BINARY = bytes(range(256)) * 9


def file(data: bytes, mode: int = FILE, format_: ObjectFormat = SHA1) -> Side:
    return Side(mode, data, format_.hash_object("blob", data))


def link(target: bytes) -> Side:
    return file(target, SYMLINK)


def submodule(commit: str) -> Side:
    return Side(SUBMODULE, b"Subproject commit %s\n" % commit.encode(), commit)


def changes(old: Files, new: Files) -> list[FileChange]:
    return [FileChange(path, old.get(path), new.get(path)) for path in {**old, **new} if old.get(path) != new.get(path)]


class Checkout:
    """A repository whose index and work tree hold what a test wrote into it."""

    def __init__(self, directory: Path, home: Path, format_: ObjectFormat = SHA1) -> None:
        self.root = directory
        self._environment = hermetic_env(home)
        directory.mkdir()
        self.git("init", "-q", f"--object-format={format_.name}")

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        return run_git(arguments, cwd=self.root, env=self._environment, stdin=stdin)

    def write(self, files: Files) -> str:
        """Write and stage these files, and name the tree they make."""
        for path, side in files.items():
            full = os.path.join(os.fsencode(self.root), os.fsencode(path))
            os.makedirs(full if side.mode == SUBMODULE else os.path.dirname(full), exist_ok=True)
            if side.mode == SYMLINK:
                os.symlink(side.data, full)
            elif side.mode == SUBMODULE:
                self.git("update-index", "--add", "--cacheinfo", f"{SUBMODULE:o},{side.id},{path}")
            else:
                with open(full, "xb") as opened:
                    opened.write(side.data)
                os.chmod(full, side.mode & 0o777)
        return self.stage()

    def stage(self) -> str:
        self.git("add", "--all", "--force")
        return self.index_tree()

    def index_tree(self) -> str:
        return self.git("write-tree").decode().strip()


KINDS: dict[str, tuple[Files, Files]] = {
    "an edit": ({"a": file(TWENTY)}, {"a": file(TWENTY.replace(b"line 3\n", b"three\n").replace(b"line 17\n", b""))}),
    "no newline at the end before": ({"a": file(b"1\n2")}, {"a": file(b"1\n2\n")}),
    "no newline at the end after": ({"a": file(b"1\n2\n")}, {"a": file(b"1\n2")}),
    "no newline at either end": ({"a": file(b"1\n2")}, {"a": file(b"1\n3")}),
    "no newline in the context": ({"a": file(b"1\n2")}, {"a": file(b"0\n2")}),
    "carriage returns": ({"a": file(b"1\r\n2\r\n")}, {"a": file(b"1\r\n3\r\n")}),
    "carriage returns removed": ({"a": file(b"1\r\n2\r\n")}, {"a": file(b"1\n2\n")}),
    "lone carriage returns": ({"a": file(b"1\r2\r3")}, {"a": file(b"1\r2\r4")}),
    "trailing blanks": ({"a": file(b"x\n")}, {"a": file(b"x  \n\t\n\n\n")}),
    "not UTF-8": ({"a": file(b"caf\xe9\n\xff\xfe\n")}, {"a": file(b"th\xe9\n\xff\xfe\n")}),
    "lines that look like a patch": (
        {"a": file(b"-- a/x\n++ b/x\n@@ -1 +1 @@\n")},
        {"a": file(b"-- a/y\n++ b/y\n@@ -2 +2 @@\ndiff --git a/q b/q\n")},
    ),
    "an empty file created": ({}, {"a": file(b"")}),
    "an empty file deleted": ({"a": file(b"")}, {}),
    "a file emptied": ({"a": file(b"1\n2")}, {"a": file(b"")}),
    "an empty file filled": ({"a": file(b"")}, {"a": file(b"\n")}),
    "a file created in new directories": ({}, {"d/e/f": file(b"1\n")}),
    "the last file of a directory deleted": ({"d/e/f": file(b"1\n2")}, {}),
    "an executable created": ({}, {"a": file(b"#!/bin/sh\n", EXECUTABLE)}),
    "an executable deleted": ({"a": file(b"#!/bin/sh\n", EXECUTABLE)}, {}),
    "made executable": ({"a": file(b"1\n")}, {"a": file(b"1\n", EXECUTABLE)}),
    "an empty file made executable": ({"a": file(b"")}, {"a": file(b"", EXECUTABLE)}),
    "no longer executable, and edited": ({"a": file(b"1\n", EXECUTABLE)}, {"a": file(b"2\n")}),
    "a symlink created": ({}, {"a": link(b"nowhere at all")}),
    "a symlink retargeted": ({"a": link(b"b")}, {"a": link(b"../c\xff")}),
    "a symlink deleted": ({"a": link(b"b")}, {}),
    "a file becomes a symlink": ({"a": file(b"target")}, {"a": link(b"target")}),
    "a symlink becomes a file": ({"a": link(b"target")}, {"a": file(b"target\n", EXECUTABLE)}),
    "a binary file becomes a symlink": ({"a": file(BINARY)}, {"a": link(b"b")}),
    "a file becomes a directory": ({"a": file(b"1\n")}, {"a/b": file(b"1\n"), "a/c/d": file(b"")}),
    "a directory becomes a file": ({"a/b": file(b"1\n"), "a/c/d": file(b"2")}, {"a": file(b"1\n")}),
    "a symlink becomes a directory": ({"a": link(b"b")}, {"a/b": file(b"1\n")}),
    "a directory becomes a symlink": ({"a/b": file(b"1\n")}, {"a": link(b"b")}),
    "a binary file created": ({}, {"a": file(BINARY)}),
    "a binary file deleted": ({"a": file(BINARY)}, {}),
    "a binary file edited": ({"a": file(BINARY)}, {"a": file(BINARY[::-1])}),
    "a binary file edited and made executable": ({"a": file(BINARY)}, {"a": file(b"\0", EXECUTABLE)}),
    "a binary file made executable": ({"a": file(BINARY)}, {"a": file(BINARY, EXECUTABLE)}),
    "a binary file emptied": ({"a": file(BINARY)}, {"a": file(b"")}),
    "text becomes binary": ({"a": file(TWENTY)}, {"a": file(TWENTY + b"\0")}),
    "binary becomes text": ({"a": file(b"\0")}, {"a": file(TWENTY)}),
    "binary that does not shrink": ({}, {"a": file(b"\0" + b"".join(SHA1.digest(b"%d" % number) for number in range(99)))}),
    "a NUL after what git looks at": ({"a": file(b"x\n" * 4000 + b"\0\n")}, {"a": file(b"x\n" * 4000 + b"\0y\n\0")}),
    "many kinds at once": (
        {"a": file(b"1\n"), "b": link(b"a"), "c/d": file(b"3\n"), "e": file(BINARY), "same": file(b"same\n")},
        {"a": link(b"b"), "b/x": file(b"2"), "c": file(b"3\n", EXECUTABLE), "f": file(BINARY), "same": file(b"same\n")},
    ),
}

ODD_NAMES = [
    "with space",
    "trailing space ",
    " leading space",
    "tab\there",
    'quote"d',
    "back\\slash",
    "new\nline",
    "bell\a\b\v\f\r\x01\x7f",
    "é/ü ñ",
    os.fsdecode(b"latin-\xe9\xff"),
    "-n",
    "--cached",
    "-/-",
    "a b/a b",
    "x b/x",
    "a/a/a",
    "b/b",
    "/dev/null"[1:],
    "'single'",
    "$(id)",
    "*?[x]",
    "#comment",
    '"',
    "\t",
    " ",
]

# Git writes these in a way that it cannot read back itself.
UNREADABLE_NAMES = ["spaced /file", " / ", "a b/ /b"]


def assert_applies(directory: Path, old: Files, new: Files, *, context: int = 3) -> None:
    """The patch takes the old tree to the new one and back, with the index and without."""
    home = directory / "home"
    expected = Checkout(directory / "new", home).write(new)
    checkout = Checkout(directory / "old", home)
    before = checkout.write(old)
    assert before != expected
    patch = patch_bytes(changes(old, new), context=context)

    checkout.git("apply", "--index", stdin=patch)
    assert checkout.index_tree() == expected
    assert checkout.stage() == expected
    checkout.git("apply", "--index", "--reverse", stdin=patch)
    assert checkout.index_tree() == before
    checkout.git("apply", stdin=patch)
    assert checkout.index_tree() == before
    assert checkout.stage() == expected
    checkout.git("apply", "--reverse", stdin=patch)
    assert checkout.stage() == before


@pytest.mark.parametrize("case", KINDS)
def test_git_applies_the_patch_and_takes_it_back(case: str, tmp_path: Path) -> None:
    old, new = KINDS[case]
    assert_applies(tmp_path, old, new)


@pytest.mark.parametrize("name", ODD_NAMES + UNREADABLE_NAMES, ids=ascii)
def test_odd_names_are_understood_by_git(name: str, tmp_path: Path) -> None:
    edited = {"edited/" + name: file(b"1\n"), "linked/" + name: link(b"1"), "moded/" + name: file(b""), "gone/" + name: file(b"")}
    after = {
        "edited/" + name: file(b"2\n"),
        "linked/" + name: link(b"2"),
        "moded/" + name: file(b"", EXECUTABLE),
        "came/" + name: file(b""),
    }

    assert_applies(tmp_path, {name: file(b"1\n"), **edited}, {name: file(BINARY), **after})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param({}, {"sub": submodule(FIRST_COMMIT)}, id="added"),
        pytest.param({"sub": submodule(FIRST_COMMIT)}, {"sub": submodule(SECOND_COMMIT)}, id="moved"),
        pytest.param({"sub": submodule(FIRST_COMMIT)}, {}, id="deleted"),
        pytest.param({"sub": submodule(FIRST_COMMIT)}, {"sub": file(b"now a file\n")}, id="becomes a file"),
        pytest.param({"sub": file(b"a file\n")}, {"sub": submodule(FIRST_COMMIT)}, id="was a file"),
        pytest.param({"sub": submodule(FIRST_COMMIT)}, {"sub": link(b"there")}, id="becomes a symlink"),
    ],
)
def test_a_submodule_pointer_is_applied_to_the_index(old: Files, new: Files, tmp_path: Path) -> None:
    beside = {"beside": file(b"1\n")}
    expected = Checkout(tmp_path / "new", tmp_path / "home").write({**new, **beside})
    checkout = Checkout(tmp_path / "old", tmp_path / "home")
    before = checkout.write({**old, **beside})
    patch = patch_bytes(changes(old, new))

    checkout.git("apply", "--index", stdin=patch)
    assert checkout.index_tree() == expected
    checkout.git("apply", "--cached", "--reverse", stdin=patch)
    assert checkout.index_tree() == before


def test_ids_of_a_sha256_repository_are_understood(tmp_path: Path) -> None:
    old = {"bin": file(BINARY, format_=SHA256), "text": file(b"1\n", format_=SHA256)}
    new = {"bin": file(BINARY[1:], format_=SHA256), "made": file(b"\0", format_=SHA256)}
    expected = Checkout(tmp_path / "new", tmp_path / "home", SHA256).write(new)
    checkout = Checkout(tmp_path / "old", tmp_path / "home", SHA256)
    checkout.write(old)

    checkout.git("apply", "--index", stdin=patch_bytes(changes(old, new)))

    assert checkout.index_tree() == expected


def _is_text(files: Files) -> bool:
    return not any(is_binary(side.data) for side in files.values())


# Binary contents are left out: git writes them as a delta where that is shorter.
@pytest.mark.parametrize("case", [case for case, (old, new) in KINDS.items() if _is_text(old) and _is_text(new)])
def test_a_patch_of_text_reads_as_git_writes_it(case: str, tmp_path: Path) -> None:
    old, new = KINDS[case]

    assert patch_bytes(changes(old, new)) == _diff_by_git(tmp_path, old, new)


def test_odd_names_read_as_git_writes_them(tmp_path: Path) -> None:
    old = {name: file(b"1\n") for name in ODD_NAMES}
    new = {name: file(b"2\n", EXECUTABLE) for name in ODD_NAMES}

    assert patch_bytes(changes(old, new)) == _diff_by_git(tmp_path, old, new)


def _diff_by_git(directory: Path, old: Files, new: Files) -> bytes:
    checkout = Checkout(directory / "both", directory / "home")
    before = checkout.write(old)
    checkout.git("rm", "-rfq", "--ignore-unmatch", ".")
    after = checkout.write(new)
    return checkout.git("diff-tree", "-p", "--full-index", "--no-renames", "--binary", before, after)


def test_files_come_in_the_order_of_their_bytes() -> None:
    names = ["é", "b", "a/b", "a.b", "a", "B", os.fsdecode(b"\xff"), "￿"]
    patch = patch_bytes(FileChange(name, None, file(b"")) for name in names)

    headers = [line for line in patch.splitlines() if line.startswith(b"diff ")]
    assert [header.partition(b" b/")[2] or header for header in headers[:5]] == [b"B", b"a", b"a.b", b"a/b", b"b"]
    assert b"\\303\\251" in headers[5]
    assert b"\\357\\277\\277" in headers[6]
    assert b"\\377" in headers[7]


def test_a_binary_patch_holds_both_contents_whole() -> None:
    old, new = file(BINARY), file(b"\0new")

    patch = patch_bytes([FileChange("a", old, new)])

    head, *directions = patch.split(b"literal ")
    assert head.splitlines()[1:] == [b"index %s..%s 100644" % (old.id.encode(), new.id.encode()), b"GIT binary patch"]
    assert [_inflated(direction) for direction in directions] == [new.data, old.data]


def _inflated(direction: bytes) -> bytes:
    size, *rows = direction.rstrip(b"\n").split(b"\n")
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    data = zlib.decompress(b"".join(b85decode(row[1:])[: letters.index(row[:1]) + 1] for row in rows))
    assert len(data) == int(size)
    return data


def test_unchanged_sides_and_no_changes_make_no_patch() -> None:
    assert patch_bytes([]) == b""
    assert patch_bytes([FileChange("a", file(b"1"), file(b"1")), FileChange("b", None, None)]) == b""


def test_the_text_of_a_patch_gives_its_bytes_back() -> None:
    change = FileChange("caf\xe9", file(b"\xe9\r\n"), file("\u2028é\n".encode() + b"\xff"))

    text = patch_text([change])

    assert "é" in text
    assert text.encode("utf-8", "surrogateescape") == patch_bytes([change])


def test_the_context_is_as_wide_as_asked(tmp_path: Path) -> None:
    old, new = {"a": file(TWENTY)}, {"a": file(TWENTY.replace(b"line 9\n", b"nine\n"))}

    shown = {context: patch_bytes(changes(old, new), context=context).count(b"\n line") for context in (0, 1, 3, 99)}

    assert shown == {0: 0, 1: 2, 3: 6, 99: 19}
    assert_applies(tmp_path, old, new, context=1)


def test_a_rewritten_file_of_many_lines_applies(tmp_path: Path) -> None:
    old = b"".join(b"old line %d\n" % number for number in range(8000))
    new = b"".join(b"new line %d\n" % number for number in range(8000))

    assert_applies(tmp_path, {"a": file(old)}, {"a": file(new)})
