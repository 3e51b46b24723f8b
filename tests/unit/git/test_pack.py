"""Packs, each judged by ``git index-pack --strict`` and by the index git makes of the same bytes."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest
from support.engine import in_child
from support.git import GitRepo

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.git.objects import FORMATS, SHA1, ObjectFormat
from pytest_gittrix.git.pack import build_pack, change_pack, install_pack, release_pack, store_object
from pytest_gittrix.git.tree import FILE, Entry, write_trees

formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
Objects = dict[str, tuple[str, bytes]]

# The sizes at which the length in an entry's header takes one byte more, and their neighbours.
SIZES = sorted({max(0, (1 << bits) + by) for bits in (0, 4, 11, 18) for by in (-1, 0, 1)} | {300_000})


def blobs(format_: ObjectFormat, *contents: bytes) -> Objects:
    return {format_.hash_object("blob", data): ("blob", data) for data in contents}


def repository(path: Path, format_: ObjectFormat = SHA1) -> GitRepo:
    return GitRepo.make(path, bare=True, object_format=format_.name)


def a_commit(format_: ObjectFormat) -> tuple[str, Objects]:
    """A commit of a few files, and every object it needs."""
    objects = blobs(format_, b"1\n", b"2\n")
    one, two = objects
    root, trees = write_trees(lambda _: {}, None, {"a": Entry(FILE, one), "d/b": Entry(FILE, two)}, format_.hash_object)
    objects.update((id_, ("tree", data)) for id_, data in trees.items())
    raw = f"tree {root}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nmessage\n".encode()
    commit = format_.hash_object("commit", raw)
    return commit, objects | {commit: ("commit", raw)}


@formats
def test_git_accepts_a_pack_strictly_and_makes_the_same_index(tmp_path: Path, format_: ObjectFormat) -> None:
    _, objects = a_commit(format_)
    pack = build_pack(objects, format_)
    (tmp_path / "x.pack").write_bytes(pack.data)

    repository(tmp_path / "repo", format_).git("index-pack", "--strict", str(tmp_path / "x.pack"))

    assert (tmp_path / "x.idx").read_bytes() == pack.index
    assert pack.data.endswith(bytes.fromhex(pack.name))


def test_trees_are_stored_as_they_are_and_other_objects_are_compressed() -> None:
    tree, text = b"".join(b"100644 %d.py\0" % number + bytes(range(20)) for number in range(20)), b"a line of text\n" * 40
    objects = {SHA1.hash_object(kind, data): (kind, data) for kind, data in (("tree", tree), ("blob", text), ("commit", text))}

    pack = build_pack(objects, SHA1)

    assert tree in pack.data
    assert text not in pack.data


@formats
def test_an_installed_pack_is_part_of_a_sound_repository(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = repository(tmp_path / "repo", format_)
    commit, objects = a_commit(format_)

    install_pack(str(repo.git_dir / "objects"), build_pack(objects, format_), sync=True)

    repo.git("update-ref", "refs/heads/main", commit)
    repo.fsck()
    assert sorted(repo.tree()) == ["a", "d/b"]


@pytest.mark.parametrize("size", SIZES)
def test_objects_of_every_size_are_read_back(tmp_path: Path, size: int) -> None:
    repo = repository(tmp_path / "repo")
    data = os.urandom(size)
    objects = blobs(SHA1, data)

    install_pack(str(repo.git_dir / "objects"), build_pack(objects, SHA1))

    (id_,) = objects
    assert repo.git("cat-file", "blob", id_) == data


def test_the_same_objects_give_the_same_bytes_in_any_order() -> None:
    _, objects = a_commit(SHA1)

    assert build_pack(objects, SHA1) == build_pack(dict(reversed(objects.items())), SHA1)


@formats
def test_a_pack_of_nothing_is_one_too(tmp_path: Path, format_: ObjectFormat) -> None:
    pack = build_pack({}, format_)
    (tmp_path / "x.pack").write_bytes(pack.data)

    repository(tmp_path / "repo", format_).git("index-pack", "--strict", str(tmp_path / "x.pack"))

    assert (tmp_path / "x.idx").read_bytes() == pack.index


def test_many_objects_are_found_by_their_first_byte(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    objects = blobs(SHA1, *(b"%d" % number for number in range(1000)))

    install_pack(str(repo.git_dir / "objects"), build_pack(objects, SHA1))

    listed = repo.git("cat-file", "--batch", stdin="\n".join(objects).encode())
    assert listed == b"".join(b"%s blob %d\n%s\n" % (id_.encode(), len(data), data) for id_, (_, data) in objects.items())


def test_a_kept_pack_survives_a_gc_and_a_released_one_does_not(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "repo", {"other": "o\n"}, bare=True)
    objects = blobs(SHA1, b"nobody refers to this")
    pack = build_pack(objects, SHA1)
    (id_,) = objects
    directory = str(repo.git_dir / "objects")

    install_pack(directory, pack, keep="a promotion of session s1")
    assert (repo.git_dir / f"objects/pack/pack-{pack.name}.keep").read_text() == "a promotion of session s1\n"
    repo.git("gc", "-q", "--prune=now")
    assert repo.git("cat-file", "blob", id_) == b"nobody refers to this"

    release_pack(directory, pack.name)
    repo.git("gc", "-q", "--prune=now")
    assert id_ not in repo.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()


def test_releasing_twice_or_what_was_never_there_is_no_error(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    pack = build_pack(blobs(SHA1, b"1"), SHA1)
    directory = str(repo.git_dir / "objects")
    install_pack(directory, pack, keep="k")

    release_pack(directory, pack.name)
    release_pack(directory, pack.name)
    release_pack(directory, "e" * 40)

    assert sorted(os.listdir(f"{directory}/pack")) == [f"pack-{pack.name}.idx", f"pack-{pack.name}.pack"]


def test_a_pack_that_was_never_finished_is_released_whole(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    pack = build_pack(blobs(SHA1, b"1"), SHA1)
    directory = repo.git_dir / "objects/pack"
    install_pack(str(directory.parent), pack, keep="k")
    (directory / f"pack-{pack.name}.idx").unlink()

    release_pack(str(directory.parent), pack.name)

    assert os.listdir(directory) == []


def test_installing_again_changes_nothing_but_keeps(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    pack = build_pack(blobs(SHA1, b"1"), SHA1)
    directory = str(repo.git_dir / "objects")
    install_pack(directory, pack)
    before = os.stat(f"{directory}/pack/pack-{pack.name}.pack").st_ino

    install_pack(directory, pack, keep="k")

    assert os.stat(f"{directory}/pack/pack-{pack.name}.pack").st_ino == before
    assert os.path.exists(f"{directory}/pack/pack-{pack.name}.keep")


def test_installed_files_are_read_only_and_nothing_else_is_left(tmp_path: Path) -> None:
    pack = build_pack(blobs(SHA1, b"1"), SHA1)

    install_pack(str(tmp_path / "objects"), pack)

    files = list((tmp_path / "objects/pack").iterdir())
    assert sorted(file.suffix for file in files) == [".idx", ".pack"]
    assert all(not stat.S_IMODE(file.stat().st_mode) & 0o222 for file in files)


@formats
def test_a_blob_of_any_size_is_stored_piece_by_piece(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = repository(tmp_path / "repo", format_)
    pieces = [b"first\n" * 1000, b"", b"\0\xff" * 70_000]
    size = sum(map(len, pieces))

    stored = [store_object(str(repo.git_dir / "objects"), size, lambda: pieces, format_, sync=sync) for sync in (True, False)]

    assert stored == [format_.hash_object("blob", b"".join(pieces))] * 2
    assert repo.git("cat-file", "blob", stored[0]) == b"".join(pieces)
    repo.fsck()


@pytest.mark.parametrize("second", [b"other", b"longer than it was", b"", b"12345"])
def test_a_blob_that_changes_while_it_is_stored_is_not_stored(tmp_path: Path, second: bytes) -> None:
    states = iter([b"12345" if second != b"12345" else b"1234", second])

    with pytest.raises(AdapterUnavailable, match="changed while it was read"):
        store_object(str(tmp_path), 5, lambda: [next(states)], SHA1)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_a_killed_writer_of_a_pack_left_goes_with_it_and_a_stranger_s_file_stays(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    pack = build_pack(blobs(SHA1, b"1\n"), SHA1)
    packs = repo.git_dir / "objects/pack"

    def killed() -> None:
        os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        install_pack(str(packs.parent), pack)

    assert in_child(killed) == -signal.SIGKILL
    (packs / "tmp_pack_gIt123").write_bytes(b"git's own")
    assert len(os.listdir(packs)) == 2
    release_pack(str(packs.parent), pack.name, killed=True)
    assert os.listdir(packs) == ["tmp_pack_gIt123"]


def written(directory: Path, objects: Objects, format_: ObjectFormat = SHA1) -> str:
    """The path of a pack of some objects, with its index beside it; ``to`` in the directory is for another one."""
    pack = build_pack(objects, format_)
    (directory / "one.pack").write_bytes(pack.data)
    (directory / "one.idx").write_bytes(pack.index)
    (directory / "to").mkdir()
    return str(directory / "one.pack")


@formats
@pytest.mark.parametrize("gone", [(), (0,), (6,), (2, 3), (0, 1, 2, 3, 4, 5, 6)], ids=str)
def test_a_changed_pack_has_what_stays_and_what_comes_alone(tmp_path: Path, format_: ObjectFormat, gone: tuple[int, ...]) -> None:
    there = blobs(format_, *(b"%d\n" % size * size for size in (0, 1, 9, 700, 5000)), b"dropped first", b"dropped last")
    leaving = {sorted(there)[number] for number in gone}
    staying = {id_: found for id_, found in there.items() if id_ not in leaving}
    new = blobs(format_, b"new", b"another") | dict([*staying.items()][:1])

    assert change_pack(written(tmp_path, there, format_), str(tmp_path / "to"), leaving, new, new.__getitem__, format_)

    repo = repository(tmp_path / "repo", format_)
    (changed,) = (tmp_path / "to").glob("*.pack")
    repo.git("index-pack", "--strict", "-o", str(tmp_path / "judged.idx"), str(changed))
    assert (tmp_path / "judged.idx").read_bytes() == changed.with_suffix(".idx").read_bytes()
    repo.git("index-pack", "--stdin", stdin=changed.read_bytes())
    listed = repo.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert sorted(listed) == sorted(staying | new)


def test_a_changed_pack_can_be_changed_again(tmp_path: Path) -> None:
    objects = blobs(SHA1, *(b"%d" % number for number in range(20)))
    source, (first, *_, last) = written(tmp_path, objects), sorted(objects)
    for turn, (gone, data) in enumerate(((first, b"one more"), (last, b"another one"))):
        (to := tmp_path / f"turn-{turn}").mkdir()
        new = blobs(SHA1, data)
        assert change_pack(source, str(to), [gone], new, new.__getitem__, SHA1)
        (found,) = to.glob("*.pack")
        source = str(found)
    repo = repository(tmp_path / "repo")
    repo.git("index-pack", "--stdin", stdin=Path(source).read_bytes())
    listed = repo.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    assert {*listed} == {*objects, *blobs(SHA1, b"one more", b"another one")} - {first, last}


def test_a_pack_is_not_changed_if_it_lacks_what_is_to_go(tmp_path: Path) -> None:
    source = written(tmp_path, blobs(SHA1, b"there"))

    assert not change_pack(source, str(tmp_path / "to"), blobs(SHA1, b"not there"), (), {}.__getitem__, SHA1)
    assert not [*(tmp_path / "to").iterdir()]


@pytest.mark.parametrize("suffix", ["pack", "idx"])
def test_a_damaged_pack_is_not_changed(tmp_path: Path, suffix: str) -> None:
    source = written(tmp_path, blobs(SHA1, b"there", b"there too"))
    damaged = bytearray((tmp_path / f"one.{suffix}").read_bytes())
    damaged[len(damaged) // 2] ^= 1

    for data in (bytes(damaged), b"short"):
        (tmp_path / f"one.{suffix}").write_bytes(data)
        assert not change_pack(source, str(tmp_path / "to"), blobs(SHA1, b"there"), (), {}.__getitem__, SHA1)
        assert not [*(tmp_path / "to").iterdir()]


def test_a_pack_of_differences_is_not_changed(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "repo", {"a": "".join(f"line {n}\n" for n in range(200))})
    repo.commit({"a": "".join(f"line {n}\n" for n in range(201))})
    repo.git("repack", "-adq", "--depth=5", "--window=5")
    (source,) = (repo.git_dir / "objects" / "pack").glob("*.pack")
    assert b"chain length" in repo.git("verify-pack", "-v", str(source))
    (tmp_path / "to").mkdir()

    assert not change_pack(str(source), str(tmp_path / "to"), [repo.head()], (), {}.__getitem__, SHA1)
    assert not [*(tmp_path / "to").iterdir()]
