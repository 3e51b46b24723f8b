"""Objects: the same answers as ``git cat-file`` and ``git hash-object``, for both hashes, wherever the objects are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git import GitRepo, git

from pytest_gittrix.errors import UnsupportedRepository
from pytest_gittrix.git.objects import FORMATS, SHA1, MissingObject, ObjectFormat, ParsedTrees, Trees, object_format, open_objects
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.git.tree import FILE, Item

formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))


def make(path: Path, format_: ObjectFormat) -> GitRepo:
    return GitRepo.make(path, {"a": "1\n", "d/b": b"\0binary\xff\n"}, bare=True, object_format=format_.name)


def all_ids(repo: GitRepo) -> list[str]:
    return repo.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()


@formats
def test_hashes_are_the_ones_git_gives(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = make(tmp_path / "repo", format_)

    for kind, data in (("blob", b""), ("blob", b"x" * 1000), ("tree", b"")):
        assert format_.hash_object(kind, data) == repo.text("hash-object", "-t", kind, "--stdin", stdin=data)
    assert len(format_.hash_object("blob", b"")) == format_.hex_size == format_.size * 2
    assert format_.zero == "0" * format_.hex_size


@formats
@pytest.mark.parametrize("layout", ["loose", "packed", "borrowed"])
def test_every_object_is_read_as_git_reads_it(tmp_path: Path, format_: ObjectFormat, layout: str) -> None:
    repo = make(tmp_path / "repo", format_)
    repo.git("tag", "-a", "-m", "a tag", "v1")
    if layout == "packed":
        repo.git("repack", "-adq")
    if layout == "loose":
        packs = [path.read_bytes() for path in repo.git_dir.glob("objects/pack/*.pack")]
        for path in repo.git_dir.glob("objects/pack/*"):
            path.unlink()
        for pack in packs:
            repo.git("unpack-objects", "-q", stdin=pack)
    read_from = repo
    if layout == "borrowed":
        git("clone", "-q", "--bare", "--shared", str(repo.path), str(tmp_path / "borrower"))
        read_from = GitRepo(tmp_path / "borrower", bare=True)
    objects = open_objects(read_from.git_dir / "objects", format_)
    try:
        ids = all_ids(repo)
        assert len(ids) == 6
        for id_ in ids:
            kind = repo.text("cat-file", "-t", id_)
            assert objects.read(id_) == (kind, repo.git("cat-file", kind, id_))
    finally:
        objects.close()


@formats
def test_a_missing_object_is_named_with_its_place_and_others_are_still_read(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = make(tmp_path / "repo", format_)
    objects = open_objects(repo.git_dir / "objects", format_)
    try:
        with pytest.raises(MissingObject, match="e" * format_.hex_size) as caught:
            objects.read("e" * format_.hex_size)
        assert str(repo.git_dir / "objects") in caught.value.fact
        assert objects.read(repo.head())[0] == "commit"
    finally:
        objects.close()


@formats
def test_what_was_written_after_opening_is_seen(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = make(tmp_path / "repo", format_)
    objects = open_objects(repo.git_dir / "objects", format_)
    try:
        objects.read(repo.head())
        loose = repo.text("hash-object", "-w", "--stdin", stdin=b"loose")
        assert objects.read(loose) == ("blob", b"loose")
        packed = format_.hash_object("blob", b"packed")
        install_pack(str(repo.git_dir / "objects"), build_pack({packed: ("blob", b"packed")}, format_))
        assert objects.read(packed) == ("blob", b"packed")
        repo.git("repack", "-adq")
        assert objects.read(repo.tree()["a"].id) == ("blob", b"1\n")
    finally:
        objects.close()


@formats
def test_a_closed_reader_opens_again_and_gives_everything_back(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = make(tmp_path / "repo", format_)
    objects = open_objects(repo.git_dir / "objects", format_)
    objects.read(repo.head())
    objects.close()
    before = len(os.listdir("/proc/self/fd"))

    assert objects.read(repo.head())[0] == "commit"
    objects.close()
    objects.close()

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_reader_is_closed_though_a_forked_process_still_has_its_pipes(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", FORMATS["sha256"])
    objects = open_objects(repo.path / "objects", FORMATS["sha256"])
    objects.read(repo.text("rev-parse", "main"))
    held, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        os.read(held, 1)  # until the parent lets go
        os._exit(0)

    objects.close()

    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.close(release)
    os.close(held)
    assert os.waitpid(child, 0) == (child, 0)


@formats
def test_threads_can_read_at_once(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = make(tmp_path / "repo", format_)
    objects = open_objects(repo.git_dir / "objects", format_)
    entries = repo.tree()
    wrong: list[object] = []

    def read() -> None:
        for _ in range(50):
            for path, data in (("a", b"1\n"), ("d/b", b"\0binary\xff\n")):
                got = objects.read(entries[path].id)
                wrong.extend([] if got == ("blob", data) else [got])

    threads = [threading.Thread(target=read) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        objects.close()
    assert wrong == []


def test_a_blob_is_no_tree(tmp_path: Path) -> None:
    repo = make(tmp_path / "repo", SHA1)
    objects = open_objects(repo.git_dir / "objects", SHA1)

    with pytest.raises(MissingObject, match="is a blob, not a tree"):
        Trees(objects).read(repo.tree()["a"].id)


def test_parsed_trees_are_limited_by_their_lines_and_not_by_their_number() -> None:
    small = {b"a": (FILE, "1" * 40)}
    large = {b"%d" % number: (FILE, "1" * 40) for number in range(7)}
    parsed = ParsedTrees(most_lines=10)

    for name in "abcdefghijkl":
        parsed.put(name, small)
    assert [name for name in "abcdefghijkl" if parsed.get(name) is not None] == [*"cdefghijkl"]

    parsed.put("large", large)
    parsed.put("large", large)
    assert [name for name in "cdefghijkl" if parsed.get(name) is not None] == [*"jkl"]

    parsed.put("too large", large | {b"more %d" % number: (FILE, "1" * 40) for number in range(9)})
    assert (parsed.get("large"), parsed.get("l"), len(parsed.get("too large") or ())) == (None, None, 16)


def test_a_tree_that_is_put_while_another_one_is_does_not_count_wrongly() -> None:
    parsed = ParsedTrees(most_lines=4)

    class PutsAnother(dict[bytes, Item]):
        """A tree whose lines are counted at the moment in which another thread puts one."""

        def __len__(self) -> int:
            thread = threading.Thread(target=parsed.put, args=("rival", dict.fromkeys((b"a", b"b", b"c"), (FILE, "1" * 40))))
            thread.start()
            thread.join()
            return super().__len__()

    parsed.put("first", PutsAnother({b"a": (FILE, "1" * 40)}))
    for name in "abcdef":
        parsed.put(name, {b"a": (FILE, "1" * 40)})

    assert [name for name in ("first", "rival", *"abcdef") if parsed.get(name) is not None] == [*"cdef"]


def test_the_configuration_of_the_repository_is_never_read(tmp_path: Path) -> None:
    for format_ in FORMATS.values():
        repo = make(tmp_path / format_.name, format_)
        head = repo.head()
        (repo.git_dir / "config").write_text("[broken\n")
        objects = open_objects(repo.git_dir / "objects", format_)
        try:
            assert objects.read(head)[0] == "commit"
        finally:
            objects.close()


def test_an_unknown_hash_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedRepository, match=r"'md5'.*\n.*\n.*sha1, sha256"):
        object_format("md5")
    assert [object_format(name) for name in FORMATS] == list(FORMATS.values())


@given(st.binary(max_size=40))
def test_plain_digests_are_the_hash_of_the_bytes(data: bytes) -> None:
    assert {len(format_.digest(data)) for format_ in FORMATS.values()} == {20, 32}
    assert SHA1.hash_object("blob", data) == SHA1.digest(b"blob %d\0" % len(data) + data).hex()
