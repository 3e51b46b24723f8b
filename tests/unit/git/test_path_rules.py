"""Which names may be written: a table judged by hand, and every verdict held against git itself."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gittrix.errors import InvalidInput, WriteRejected
from pytest_gittrix.git.path_rules import MAX_COMPONENT, MAX_PATH, check_path, collision_key, is_safe_component, may_be_link

# name -> why it is a file like any other, however odd
ALLOWED = {
    "README.md": "ordinary",
    "src/pkg/app.py": "nested",
    "with space": "spaces are legal",
    " leading": "so is a leading space",
    "trailing ": "and a trailing one",
    "-rf": "an option to a careless shell, a name to us",
    "line\nbreak": "newlines are legal; listings use NUL",
    "tab\there": "control characters too",
    "quo\"te'd": "quotes",
    "caf\u00e9": "composed Unicode",
    "re\u0301sume\u0301": "decomposed Unicode",
    "latin-\udce9": "a byte that is not UTF-8",
    ".gitignore": "an ordinary file to git",
    ".gitattributes": "an ordinary file to git",
    ".gitmodules": "legal here; whether it may change is policy",
    ".github/workflows/ci.yml": "only starts like .git",
    ".git-blame-ignore-revs": "only starts like .git",
    ".gitx": "only starts like .git",
    "git": "no dot",
    "a.git": "a bare repository's usual name",
    "x.git/HEAD": "the same as a directory",
    "...": "three dots are a name",
    "..a": "only starts like the parent",
    ".hidden": "hidden",
    "a:b": "a stream of a file called 'a', not of .git",
    "git~": "no number, no short name",
    "git~x": "no number, no short name",
    "mygit~1": "not the short name of .git",
    "a\\b": "a backslash is a character here, and hides nothing there",
    "CON": "a device on Windows; git accepts it elsewhere",
    "g\u200cit": "an ignorable character, but no dot",
    ".g\u0131t": "a dotless i is another letter",
    "n" * MAX_COMPONENT: "as long as a name may be",
    "\u00e9" * 127: "254 bytes",
}

# name -> why it may not be written
REFUSED = {
    "": "empty",
    "/etc/passwd": "absolute",
    "//a": "absolute, with a doubled slash",
    ".": "the directory itself",
    "..": "the parent",
    "../a": "leaves the workspace",
    "a/../b": "parent inside",
    "a/./b": "dot inside",
    "a/..": "parent at the end",
    "a/": "only names of directories do",
    "./": "the directory itself",
    "a\0b": "NUL",
    "\ud800": "a surrogate that stands for no byte",
    ".git": "the git directory",
    ".git/config": "inside it",
    "a/.git/hooks/x": "of a nested repository",
    ".GIT/config": "case-folding file systems",
    ".Git": "case-folding file systems",
    ".git.": "NTFS drops trailing dots",
    ".git ": "NTFS drops trailing spaces",
    ".git . .": "NTFS drops both",
    "git~1": "NTFS short name of .git",
    "GIT~1/config": "NTFS short name, upper case",
    "git~2": "its short name where git~1 is taken",
    "git~12": "likewise",
    "git~1.": "short name and trailing dot",
    ".git::$INDEX_ALLOCATION": "NTFS stream syntax for the directory itself",
    ".git:config": "NTFS stream of it",
    ".git...:alternate": "trailing dots, then a stream",
    ".g\u200cit/config": "HFS+ ignores zero-width non-joiner",
    "\ufeff.git": "HFS+ ignores byte order marks",
    ".git\u202e": "HFS+ ignores direction marks",
    ".G\u206aI\u200fT": "several, and case",
    ".git\udcff": "git's HFS+ reading stops at a byte that is not UTF-8",
    ".git\uffff": "and at a noncharacter",
    ".git\\config": "Windows separates at the backslash",
    "a\\.git": "Windows separates at the backslash",
    "a\\..\\b": "parent by backslash",
    "..\\a": "parent by backslash",
    "a\\git~1\\x": "short name by backslash",
    "n" * (MAX_COMPONENT + 1): "longer than a name may be",
    "\u00e9" * 128: "256 bytes in 128 characters",
    "/".join(["d" * 200] * 21): "longer than a path may be",
}


@pytest.mark.parametrize("name", ALLOWED, ids=ascii)
def test_legal_names_are_allowed_however_odd(name: str) -> None:
    assert check_path(name) == name


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_dangerous_names_are_refused(name: str) -> None:
    with pytest.raises(WriteRejected):
        check_path(name)


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [("./a", "a"), ("././a/b", "a/b"), ("a//b", "a/b"), (".//a///b", "a/b"), ("./...", "...")],
)
def test_one_file_has_one_spelling(spelled: str, canonical: str) -> None:
    assert check_path(spelled) == canonical
    assert check_path(canonical) == canonical


@pytest.mark.parametrize("value", [b"a", None, 3, Path("a")])
def test_only_text_is_a_path(value: object) -> None:
    with pytest.raises(InvalidInput, match="patch target"):
        check_path(value, what="patch target")  # type: ignore[arg-type]


def test_a_message_shows_the_path_without_letting_it_act() -> None:
    hostile = "\x1b[2J\u202e\udcff/../secret\nOK: written"
    with pytest.raises(WriteRejected) as caught:
        check_path(hostile)
    message = str(caught.value)
    assert message.isprintable() or all(line.isprintable() for line in message.split("\n"))
    assert "secret" in message
    assert len(message.splitlines()) == 4
    message.encode()


def test_a_message_about_a_huge_path_is_short() -> None:
    with pytest.raises(WriteRejected) as caught:
        check_path("a/" * MAX_PATH + "b")
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("name", [name for name in {**ALLOWED, **REFUSED} if "/" not in name and name != "\ud800"], ids=ascii)
def test_a_component_and_a_path_of_one_get_the_same_verdict(name: str) -> None:
    assert is_safe_component(os.fsencode(name)) == (name in ALLOWED)


@pytest.mark.parametrize("name", [b"a/b", b"/", b"a\0", b"a/"])
def test_a_component_has_no_separator(name: bytes) -> None:
    assert not is_safe_component(name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("README", "readme"),
        ("caf\u00e9", "cafe\u0301"),
        ("CAF\u00c9/x", "cafe\u0301/X"),
        ("stra\u00dfe", "STRASSE"),
        ("\u01f0", "J\u030c"),
        ("A\udcff", "a\udcff"),
    ],
)
def test_names_that_collide_elsewhere_share_a_key(one: str, other: str) -> None:
    assert collision_key(one) == collision_key(other)


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a\udcfe", "a\udcff"), ("a/b", "ab"), ("e", "\u00e9")])
def test_names_that_can_stand_together_have_their_own_keys(one: str, other: str) -> None:
    assert collision_key(one) != collision_key(other)


class Git:
    """A repository with git's own protections for foreign file systems switched on, for judging names in bulk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run("init", "-q")
        self.blob = self.run("hash-object", "-w", "--stdin").decode().strip()

    def run(self, *args: str, stdin: bytes = b"") -> bytes:
        keep = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
        nowhere = str(self.root / ".no-gitconfig")
        env = keep | {"HOME": str(self.root), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": nowhere, "LC_ALL": "C"}
        command = ["git", "-C", str(self.root), "-c", "core.protectHFS=true", "-c", "core.protectNTFS=true", *args]
        return subprocess.run(command, input=stdin, env=env, check=True, capture_output=True, timeout=60).stdout

    def accepts(self, names: list[str], mode: str = "100644") -> set[str]:
        """Those of ``names`` that git takes into an index (it leaves the others out silently), each below a directory of its own."""
        entries = (f"{mode} {self.blob}\tn{number}/".encode() + os.fsencode(name) + b"\0" for number, name in enumerate(names))
        self.run("read-tree", "--empty")
        self.run("update-index", "-z", "--add", "--index-info", stdin=b"".join(entries))
        return {os.fsdecode(line.split(b"/", 1)[1]) for line in self.run("ls-files", "-z").split(b"\0") if line}


@pytest.fixture
def git(tmp_path: Path) -> Git:
    return Git(tmp_path)


def test_git_adds_every_allowed_name_and_its_fsck_finds_no_fault(git: Git) -> None:
    entries = [argument for name in ALLOWED for argument in ("--cacheinfo", f"100644,{git.blob},{name}")]
    git.run("update-index", "--add", *entries)
    tree = git.run("write-tree").decode().strip()
    listed = git.run("ls-tree", "-r", "-z", "--name-only", tree).split(b"\0")[:-1]
    assert sorted(map(os.fsdecode, listed)) == sorted(ALLOWED)
    commit = git.run("-c", "user.name=n", "-c", "user.email=e@x", "commit-tree", "-m", "names", tree).decode().strip()
    git.run("update-ref", "refs/heads/names", commit)
    assert git.run("fsck", "--strict", "--no-dangling") == b""


def test_git_protections_refuse_nothing_that_is_allowed(git: Git) -> None:
    assert git.accepts(list(ALLOWED)) == set(ALLOWED)


def test_the_table_has_every_kind_of_name_that_git_refuses(git: Git) -> None:
    judged = [name for name in REFUSED if "\0" not in name and name != "\ud800" and not name.startswith("/")]
    refused_by_git = set(judged) - git.accepts(judged)
    assert {".git", "../a", ".git ", "git~1", ".git:config", ".g\u200cit/config", ".git\udcff", "a\\.git"} <= refused_by_git


def test_no_mixture_of_dangerous_pieces_is_allowed_that_git_would_refuse(git: Git) -> None:
    pieces = [".", "git", "GIT", ".git", "g", "i", "t", "~1", "~2", " ", "\u200c", "\ufeff", "\u202e", "\udcff", "\uffff", "\ufffe"]
    pieces += ["\\", ":", "/", "a", "~", "1", "\u0130", "\u0131", "\n"]
    draw = random.Random(20300101)
    names = {"".join(draw.choices(pieces, k=draw.randint(1, 6))) for _ in range(8000)}
    allowed = sorted({canonical for name in names if (canonical := _verdict(name)) is not None})
    assert len(allowed) > 1000
    assert set(allowed) - git.accepts(allowed) == set()


def test_no_link_is_allowed_that_git_would_refuse(git: Git) -> None:
    pieces = [".gitmodules", ".GitModules", "gitmod", "GITMOD", "gi7eba", "gi7eb", "gi7e", "gi", "g", "~1", "~4", "~5", "~10", "~123456"]
    pieces += ["~", "1", "99", ".", " ", "::$DATA", ":", "\u200c", "\ufeff", "\udcff", "\uffff", "\\", "/", "a", "_", "\u0131", "\n"]
    draw = random.Random(20300102)
    links = {".gitmodules", ".gitmodules ", ".gitmodules.", "GITMOD~1", "gi7eba~1", "gi7eb~10", ".gitmodules::$DATA"}
    names = links | {"".join(draw.choices(pieces, k=draw.randint(1, 4))) for _ in range(8000)}
    named = sorted({canonical for name in names if (canonical := _verdict(name)) is not None})
    allowed = [name for name in named if may_be_link(name)]
    refused = {*named} - {*allowed}

    assert len(allowed) > 1000
    assert {*allowed} - git.accepts(allowed, mode="120000") == set()
    assert links <= refused
    assert git.accepts([*links], mode="120000") == set()


def _verdict(name: str) -> str | None:
    try:
        return check_path(name)
    except WriteRejected:
        return None


def test_a_name_that_only_the_locale_cannot_write_is_refused_with_the_locales_encoding() -> None:
    script = "from pytest_gittrix.git.path_rules import check_path; check_path(chr(228) + '.txt')"
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}

    refused = subprocess.run([sys.executable, "-c", script], env=ascii_only, capture_output=True, text=True, check=False)

    assert "the locale of this process has the encoding ascii, which cannot write it" in refused.stderr
    assert "LC_ALL=C.UTF-8" in refused.stderr
    with pytest.raises(WriteRejected, match="no file name can hold"):
        check_path("half a pair \ud800")
