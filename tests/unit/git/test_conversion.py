"""What git makes of a file's bytes on the way in and out, judged by ``git add`` and ``git checkout``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st
from support.git import FORMATS, GitRepo, put, try_git

from pytest_gittrix.git.git_directory import text_config
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.worktree.conversion import Conversion, Conversions, is_as_filtered
from pytest_gittrix.git.worktree.encodings import Unconvertible

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0a" * 32 + b"\nsize 12\n"


@dataclass(frozen=True)
class Case:
    """A file, the rules for it, and what the index has."""

    attributes: str
    autocrlf: str
    eol: str
    data: bytes
    before: bytes | None


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A repository whose rules each example sets."""
    return GitRepo.make(tmp_path_factory.mktemp("conversion") / "judge", {"other": "x\n"})


def set_rules(judge: GitRepo, case: Case) -> Conversions:
    """Give a repository the rules of a case, and return what they are here."""
    config = Path(judge.git_dir, "config")
    config.write_text(f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tautocrlf = {case.autocrlf}\n\teol = {case.eol}\n")
    put(judge.path, {".gitattributes": case.attributes})
    return Conversions(lambda directory: b"" if directory else case.attributes.encode(), str(judge.git_dir))


def added(judge: GitRepo, case: Case) -> bytes | None:
    """What ``git add`` stores; None if it fails."""
    judge.git("update-index", "--force-remove", "f.x")
    if case.before is not None:
        id_ = judge.text("hash-object", "-w", "--no-filters", "--stdin", stdin=case.before)
        judge.git("update-index", "--add", "--cacheinfo", f"100644,{id_},f.x")
    put(judge.path, {"f.x": case.data})
    if try_git("add", "f.x", cwd=judge.path).returncode:
        return None
    return judge.git("cat-file", "blob", ":f.x")


PIECES = st.sampled_from(
    [b"a", b"line", b"\r\n", b"\n", b"\r", b"\0", b"\x1a", b"\x07", b"\xff", "é".encode(), b"$Id$", b"$Id: x $", b"$", b" "]
)
RAW = st.lists(PIECES, max_size=8).map(b"".join)
TEXTS = st.text(st.sampled_from("aé\n\r€語$"), max_size=8)
ENCODINGS = st.sampled_from(
    ["UTF-16", "utf16", "UTF-16LE", "UTF-16BE-BOM", "utf-16le-bom", "UTF-32", "latin-1", "SHIFT-JIS", "none", "utf8"]
)
ATTRIBUTES = st.lists(
    st.sampled_from(["text", "-text", "!text", "text=auto", "text=input", "crlf", "-crlf", "crlf=input", "eol=crlf", "eol=lf", "ident"]),
    max_size=3,
    unique=True,
)
AUTOCRLF, EOL = st.sampled_from(["false", "true", "input", "1", "yes"]), st.sampled_from(["native", "lf", "crlf"])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any rules that git takes together, and any file."""
    autocrlf, eol = draw(AUTOCRLF), draw(EOL)
    assume((autocrlf, eol) != ("input", "crlf"))  # git refuses that
    attributes, data = draw(ATTRIBUTES), draw(RAW)
    if draw(st.booleans()):
        encoding = draw(ENCODINGS)
        attributes = [*attributes, f"working-tree-encoding={encoding}"]
        data = draw(st.one_of(RAW, TEXTS.map(lambda text: encoded(text, encoding))))
    return Case(f"*.x {' '.join(attributes)}\n", autocrlf, eol, data, draw(st.none() | RAW))


def encoded(text: str, encoding: str) -> bytes:
    """A text in an encoding that git knows by other names than Python."""
    names = {"UTF-16BE-BOM": "utf-16-be", "utf-16le-bom": "utf-16-le", "none": "utf-8"}
    bom = {"UTF-16BE-BOM": "\ufeff", "utf-16le-bom": "\ufeff"}.get(encoding, "")
    return (bom + text).encode(names.get(encoding, encoding), "replace")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
@example(case=Case("*.x text=auto\n", "false", "native", b"a\r\nb\r\n", b"a\r\n"))
@example(case=Case("*.x text=auto\n", "false", "native", b"a\r\nb\r\n", b"a\r\n\0"))
@example(case=Case("*.x text\n", "false", "native", b"a\r\r\n\rb\r\n", b"a\r\n"))
@example(case=Case("*.x\n", "true", "native", b"a\r\n\x1a", None))
@example(case=Case("*.x text=auto\n", "false", "native", b"a\r\n" + b"x" * 128 + b"\x01", None))
@example(case=Case("*.x text=auto\n", "false", "native", b"a\r\n" + b"x" * 127 + b"\x01", None))
@example(case=Case("*.x ident\n", "false", "native", b"$Id: a\n$Id: b $Id$ $Id:$", None))
@example(case=Case("*.x working-tree-encoding=UTF-16\n", "false", "native", b"\xff\xfea", None))
def test_a_file_is_stored_as_git_add_stores_it(judge: GitRepo, case: Case) -> None:
    conversion = set_rules(judge, case).of("f.x")
    try:
        stored: bytes | None = conversion.to_git(case.data, lambda: case.before)
    except Unconvertible:
        stored = None

    event("refused" if stored is None else "converted" if stored != case.data else "as it is")
    assert stored == added(judge, case)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
@example(case=Case("*.x eol=crlf\n", "false", "native", b"a\nb\r\n\r\r\n", None))
@example(case=Case("*.x text=auto eol=crlf\n", "false", "native", b"a\nb\r\n", None))
@example(case=Case("*.x text\n", "false", "crlf", b"a\n", None))
@example(case=Case("*.x ident\n", "false", "native", b"$Id: a b c $ $Id: x $ $Id:x $Id:$ $Id: y", None))
@example(case=Case("*.x ident\n", "false", "native", b"$Id:  $Id$", None))
@example(case=Case("*.x working-tree-encoding=latin-1 eol=crlf\n", "false", "native", "é\n".encode(), None))
@example(case=Case("*.x working-tree-encoding=latin-1\n", "false", "native", "語\n".encode(), None))
def test_a_file_is_written_as_git_checkout_writes_it(judge: GitRepo, case: Case) -> None:
    assume(b"$$" not in case.data)  # git's two ways to expand an identifier differ there
    conversion = set_rules(judge, case).of("f.x")
    id_ = judge.text("hash-object", "-w", "--no-filters", "--stdin", stdin=case.data)
    judge.git("update-index", "--add", "--cacheinfo", f"100644,{id_},f.x")
    put(judge.path, {"f.x": None})
    judge.git("checkout-index", "-q", "f.x")

    written = conversion.to_worktree(case.data, SHA1.hash_object("blob", case.data))

    event("converted" if written != case.data else "as it is")
    assert written == (judge.path / "f.x").read_bytes()


def test_a_workspace_may_have_the_encoding_of_the_repository() -> None:
    conversion = Conversion(encoding="UTF-16")
    assert conversion.to_git("é\n".encode(), lambda: None, lenient=True) == "é\n".encode()
    assert conversion.to_git("é\n".encode("utf-16"), lambda: None, lenient=True) == "é\n".encode()
    with pytest.raises(Unconvertible, match="byte order mark"):
        conversion.to_git(b"\xff", lambda: None, lenient=True)
    assert Conversion(encoding="UTF-16LE").to_git("a\n".encode("utf-16le"), lambda: None, lenient=True) == b"a\n"


@pytest.mark.parametrize(
    ("data", "is_pointer"),
    [
        (POINTER, True),
        (b"", True),
        (POINTER.replace(b"oid", b"ext-0-x sha256:00\noid"), True),
        (POINTER + b"more\n", False),
        (POINTER.replace(b"size 12\n", b""), False),
        (b"\0model", False),
        (POINTER * 20, False),
    ],
)
def test_a_pointer_of_git_lfs_passes_and_what_it_points_to_does_not(data: bytes, is_pointer: bool) -> None:
    assert is_as_filtered(data, "lfs") is is_pointer
    assert is_as_filtered(data, "other") is (data == b"")


@pytest.mark.parametrize("object_format", FORMATS)
def test_the_configuration_of_the_repository_alone_counts(tmp_path: Path, object_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = GitRepo.make(tmp_path / "repo", {"a": "a\n"}, object_format=object_format)
    put(tmp_path, {"home/.gitconfig": "[core]\n\tautocrlf = true\n"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert text_config(str(repo.git_dir)).autocrlf is False
    repo.git("config", "core.autocrlf", "INPUT")
    assert text_config(str(repo.git_dir)).autocrlf == "input"
