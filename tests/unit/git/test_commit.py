"""Commits as values: byte for byte what ``git commit-tree`` makes, and read as git reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git import GitRepo

from pytest_gittrix.git.commit import Signature, build_commit, parse_commit
from pytest_gittrix.git.objects import FORMATS, SHA1, ObjectFormat
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import FILE, Entry, TreeClash

WHO = Signature("A Person", "person@example.com", 1893456000, -330)
COMMITTER = Signature("An Engine", "engine@example.com", 1893459600)


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
def test_a_built_commit_is_the_one_git_would_make(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = GitRepo.make(tmp_path / "repo", {"a": "1\n", "d/b": "2\n"}, bare=True, object_format=format_.name)
    blob = format_.hash_object("blob", b"new\n")
    with Repository.open(repo.path) as opened:
        head = repo.head()
        built = build_commit(
            opened.trees.read, opened.tree(head), {"d/b": None, "new": Entry(FILE, blob)}, {blob: b"new\n", "0" * 40: b"not wanted"},
            parent=head, author=WHO, committer=COMMITTER, message="a message", format_=format_,
        )  # fmt: skip
        opened.write_objects(built.objects)

    dates = {"GIT_AUTHOR_DATE": "1893456000 -0530", "GIT_COMMITTER_DATE": "1893459600 +0000"}
    names = {
        "GIT_AUTHOR_NAME": WHO.name,
        "GIT_AUTHOR_EMAIL": WHO.email,
        "GIT_COMMITTER_NAME": COMMITTER.name,
        "GIT_COMMITTER_EMAIL": COMMITTER.email,
    }
    theirs = repo.git("commit-tree", built.tree, "-p", head, "-m", "a message", env=dates | names)
    assert theirs.decode().strip() == built.id
    assert sorted(repo.tree(built.id)) == ["a", "new"]
    assert len(built.objects) == 3
    repo.git("update-ref", "refs/heads/main", built.id)
    repo.fsck()


def test_a_first_commit_has_no_parent_and_the_author_commits() -> None:
    built = build_commit(lambda _: {}, None, {}, {}, parent=None, author=WHO, message="m\n", format_=SHA1)

    commit = parse_commit(built.id, built.objects[built.id][1])
    assert (commit.parents, commit.author, commit.committer, commit.message) == ((), WHO, WHO, "m\n")
    assert commit.tree == built.tree == SHA1.hash_object("tree", b"")


def test_changes_that_do_not_fit_make_no_commit() -> None:
    with pytest.raises(TreeClash):
        build_commit(
            lambda _: {}, None, {"a": Entry(FILE, "1" * 40), "a/b": Entry(FILE, "1" * 40)}, {},
            parent=None, author=WHO, message="m", format_=SHA1,
        )  # fmt: skip


def test_a_pack_of_it_is_made_once() -> None:
    built = build_commit(lambda _: {}, None, {}, {}, parent=None, author=WHO, message="m", format_=SHA1)

    assert built.pack is built.pack
    assert built.pack.data.startswith(b"PACK")


@pytest.mark.parametrize(
    ("name", "email", "encoded"),
    [
        ("Evil <x@y> 1 +0000\nparent 0", "e\n@x>", b"Evil x@y 1 +0000parent 0 <e@x> 5 +0000"),
        ("  Spaced  ", " s@x ", b"Spaced <s@x> 5 +0000"),
        ("Zoë", "z@x", "Zoë <z@x> 5 +0000".encode()),
        ("raw \udcff", "r@x", b"raw \xff <r@x> 5 +0000"),
    ],
)
def test_no_name_can_add_a_line_or_a_field(name: str, email: str, encoded: bytes) -> None:
    assert Signature(name, email, 5).encode() == encoded


@pytest.mark.parametrize(("offset", "text"), [(0, b"+0000"), (60, b"+0100"), (-330, b"-0530"), (765, b"+1245"), (-5, b"-0005")])
def test_time_zones_are_written_as_hours_and_minutes(offset: int, text: bytes) -> None:
    assert Signature("a", "b", 1, offset).encode().endswith(text)


def test_a_signature_knows_its_instant() -> None:
    assert WHO.when == datetime(2030, 1, 1, tzinfo=UTC)


@given(
    name=st.text(st.characters(exclude_characters="<>\n\0", exclude_categories=["Cs", "Zs", "Cc"]), max_size=12),
    email=st.text("ab@.x", max_size=8),
    seconds=st.integers(0, 2**40),
    offset=st.integers(-12 * 60, 14 * 60),
)
def test_what_is_encoded_is_read_back(name: str, email: str, seconds: int, offset: int) -> None:
    who = Signature(name.strip(), email, seconds, offset)
    built = build_commit(lambda _: {}, None, {}, {}, parent=None, author=who, message="m", format_=SHA1)

    assert parse_commit(built.id, built.objects[built.id][1]).author == who


def test_commits_that_git_made_are_read_whole(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "repo", {"a": "1\n"})
    message = "subject\n\nbody\n\n  indented, ünïcode\n"
    repo.git("commit", "-q", "--allow-empty", "--author=Someone Else <else@example.com>", "-F", "-", stdin=message.encode())
    raw = repo.git("cat-file", "commit", "HEAD")

    commit = parse_commit("x", raw)

    assert commit.message == message
    assert (commit.author.name, commit.author.email) == ("Someone Else", "else@example.com")
    assert commit.parents == (repo.text("rev-parse", "HEAD~1"),)
    assert commit.tree == repo.text("rev-parse", "HEAD^{tree}")


def test_signed_merges_and_damaged_signatures_are_read() -> None:
    raw = (
        b"tree " + b"1" * 40 + b"\nparent " + b"2" * 40 + b"\nparent " + b"3" * 40 + b"\nauthor nobody\ncommitter <> 5 +0000\n"
        b"gpgsig -----BEGIN\n tree x\n\n author y\n -----END\n\nmessage"
    ).replace(b"\n\n author", b"\n \n author")

    commit = parse_commit("x", raw)

    assert commit.parents == ("2" * 40, "3" * 40)
    assert commit.author == Signature("nobody", "", 0)
    assert commit.committer == Signature("", "", 5)
    assert commit.message == "message"
