"""The index file, judged by git: what we write it reads, what we change is what ``git update-index`` would, the rest stays as it is."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.git import GitRepo, executable, intent_to_add, link, put

from pytest_gittrix.errors import UnsupportedRepository
from pytest_gittrix.git import index as index_module
from pytest_gittrix.git.index import IndexEntry, IndexFile, build_index, stat_numbers
from pytest_gittrix.git.objects import FORMATS, SHA1, ObjectFormat
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK

formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
EMPTY_BLOB = SHA1.hash_object("blob", b"")
LONG = "/".join(["d" * 200] * 21)
"""A name of more than 4095 bytes, whose length does not fit in an entry's flags."""


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    """A repository without a commit."""
    return GitRepo.make(tmp_path / "repo")


def write(repo: GitRepo, data: bytes) -> None:
    (repo.git_dir / "index").write_bytes(data)


def read(repo: GitRepo, format_: ObjectFormat = SHA1) -> IndexFile:
    return IndexFile((repo.git_dir / "index").read_bytes(), format_)


def staged(repo: GitRepo) -> list[bytes]:
    """Mode, id, stage, flags and name of every entry, as git reads the index."""
    lines = repo.git("ls-files", "-z", "--stage", "-t", "-v").split(b"\0")
    # `--debug` adds the flags git has for each entry, intent-to-add among them.
    flags = [line for line in repo.git("ls-files", "--debug").split(b"\n") if b"flags:" in line]
    return lines + [line.rsplit(b"flags:")[1].strip() for line in flags]


@formats
def test_an_index_built_from_nothing_is_what_git_would_have(tmp_path: Path, format_: ObjectFormat) -> None:
    repo = GitRepo.make(tmp_path / "repo", object_format=format_.name)
    files = {"a": "1", "a-b": "2", "a.x": "", "run": executable("r"), "link": link("a"), os.fsdecode(b"\xff"): "x"}
    put(repo.path, files)
    repo.git("add", "--all")
    wanted = staged(repo)
    entries = []
    for line in filter(None, repo.git("ls-files", "-z", "--stage").split(b"\0")):
        what, _, path = line.partition(b"\t")
        mode = int(what.split()[0], 8)
        entries.append(
            (path, IndexEntry(mode, what.split()[1].decode(), stat_numbers(os.lstat(os.fsencode(repo.path) + b"/" + path), mode)))
        )

    write(repo, build_index(entries, format_))

    assert staged(repo) == wanted
    assert repo.text("diff-files", "--raw") == ""
    repo.fsck()


def test_recorded_stats_are_the_ones_git_records(repo: GitRepo) -> None:
    put(repo.path, {"file": "1\n"})
    repo.git("add", "file")

    (entry,) = read(repo).entries("file")

    assert entry.matches((repo.path / "file").stat())
    assert entry.stat == stat_numbers((repo.path / "file").stat(), FILE)
    os.utime(repo.path / "file", ns=(0, 0))
    assert not entry.matches((repo.path / "file").stat())


def test_an_absent_index_is_an_empty_one(repo: GitRepo) -> None:
    index = IndexFile(b"", SHA1)

    assert index.entries("a") == []
    write(repo, index.with_changes({"a": IndexEntry(FILE, EMPTY_BLOB)}))
    assert repo.text("ls-files", "--stage") == f"100644 {EMPTY_BLOB} 0\ta"


@pytest.mark.parametrize("version", [2, 4])
def test_an_index_with_fewer_entries_than_it_says_is_damaged(version: int) -> None:
    data = b"DIRC" + version.to_bytes(4, "big") + (5).to_bytes(4, "big") + bytes(SHA1.size)  # zeros, as with index.skipHash

    with pytest.raises(UnsupportedRepository, match="fewer entries than it says"):
        IndexFile(data, SHA1)


def test_paths_below_a_directory_are_found_and_neighbours_are_not(repo: GitRepo) -> None:
    write(repo, IndexFile(b"", SHA1).with_changes({path: IndexEntry(FILE, EMPTY_BLOB) for path in ("a-b", "a/x/y", "a0")}))

    index = read(repo)

    assert [path for path in ("a", "a/x", "a/x/y", "a-", "a0", "b") if index.below(path)] == ["a", "a/x"]


def merge_stages(repo: GitRepo) -> None:
    stages = "".join(f"100644 {EMPTY_BLOB} {stage}\tconflict\n" for stage in (1, 2, 3))
    repo.git("update-index", "--index-info", stdin=stages.encode())


def skip_worktree(repo: GitRepo) -> None:
    repo.git("update-index", "--skip-worktree", "b")


def assume_unchanged(repo: GitRepo) -> None:
    repo.git("update-index", "--assume-unchanged", "b")


def long_name(repo: GitRepo) -> None:
    repo.git("update-index", "--add", "--cacheinfo", f"100644,{EMPTY_BLOB},{LONG}")


def version_3(repo: GitRepo) -> None:
    skip_worktree(repo)
    assert (repo.git_dir / "index").read_bytes()[7] == 3


def cached_tree(repo: GitRepo) -> None:
    repo.git("write-tree")
    assert b"TREE" in (repo.git_dir / "index").read_bytes()


def untracked_cache(repo: GitRepo) -> None:
    repo.git("config", "core.untrackedCache", "true")
    repo.git("status", env={"GIT_OPTIONAL_LOCKS": "1"})
    assert b"UNTR" in (repo.git_dir / "index").read_bytes()


def resolved_merge(repo: GitRepo) -> None:
    repo.git("config", "user.name", "a")
    repo.git("commit", "-qm", "first")
    blobs = [repo.text("hash-object", "-w", "--stdin", stdin=data) for data in (b"1\n", b"2\n", b"3\n")]
    stages = "".join(f"100644 {blob} {stage}\tz\n" for stage, blob in enumerate(blobs, 1))
    repo.git("update-index", "--index-info", stdin=stages.encode())
    put(repo.path, {"z": "resolved\n"})
    repo.git("add", "z")
    assert b"REUC" in (repo.git_dir / "index").read_bytes()


def version_4(repo: GitRepo) -> None:
    names = ["c/d/e", "c/d/f", "d" * 127, "d" * 300 + "x", "e", "e" * 200]
    repo.git("update-index", "--add", "--index-info", stdin="".join(f"100644 {EMPTY_BLOB} 0\t{name}\n" for name in names).encode())
    merge_stages(repo)
    skip_worktree(repo)
    repo.git("update-index", "--index-version", "4")


STATES = [
    merge_stages,
    skip_worktree,
    assume_unchanged,
    intent_to_add,
    long_name,
    version_3,
    version_4,
    cached_tree,
    untracked_cache,
    resolved_merge,
]
CHANGES: list[Mapping[str, IndexEntry | None]] = [
    {"a": IndexEntry(EXECUTABLE, EMPTY_BLOB)},
    {"a": None},
    {"new": IndexEntry(SYMLINK, EMPTY_BLOB), "a": None, "0": IndexEntry(FILE, EMPTY_BLOB), "zz/z": IndexEntry(SUBMODULE, "1" * 40)},
    {"not/there": None},
    {"conflict": IndexEntry(FILE, EMPTY_BLOB)},
    {},
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_changing_some_paths_is_what_update_index_does_and_copies_the_rest(
    repo: GitRepo, state: Callable[[GitRepo], None], number: int
) -> None:
    put(repo.path, {"a": "1\n", "b": "2\n", "c/d": "3\n"})
    repo.git("add", "--all")
    state(repo)
    changes = CHANGES[number]
    if "zz/z" in changes and state is resolved_merge:
        changes = {path: entry for path, entry in changes.items() if path != "zz/z"}

    theirs = by_update_index(repo, changes)
    ours = read(repo).with_changes(changes)
    write(repo, ours)

    assert staged(repo) == theirs
    assert (ours[7] == 4) == (state is version_4)
    assert (b"REUC" in ours) == (state is resolved_merge)
    assert not any(name in ours for name in (b"TREE", b"UNTR"))


def by_update_index(repo: GitRepo, changes: Mapping[str, IndexEntry | None]) -> list[bytes]:
    """What the index would hold had git made the changes, in a copy of it."""
    other = repo.git_dir / "other-index"
    shutil.copy(repo.git_dir / "index", other)
    lines = []
    for path, entry in changes.items():
        lines.append(f"0 {'0' * 40}\t{path}\n")
        lines += [f"{entry.mode:o} {entry.id} 0\t{path}\n"] if entry is not None else []
    environment = {"GIT_INDEX_FILE": str(other)}
    repo.git("update-index", "--index-info", stdin="".join(lines).encode(), env=environment)
    index, kept = repo.git_dir / "index", (repo.git_dir / "index").read_bytes()
    index.write_bytes(other.read_bytes())
    try:
        return staged(repo)
    finally:
        index.write_bytes(kept)


def test_what_was_resolved_can_still_be_taken_back(repo: GitRepo) -> None:
    put(repo.path, {"a": "1\n", "b": "2\n"})
    repo.git("add", "--all")
    resolved_merge(repo)
    kept = repo.text("ls-files", "--resolve-undo")
    assert kept.count("\tz") == 3

    write(repo, read(repo).with_changes({"a": IndexEntry(EXECUTABLE, EMPTY_BLOB)}))

    assert repo.text("ls-files", "--resolve-undo") == kept


def test_a_path_in_conflict_has_all_its_stages_and_one_entry_replaces_them(repo: GitRepo) -> None:
    merge_stages(repo)
    index = read(repo)

    assert [entry.stage for entry in index.entries("conflict")] == [1, 2, 3]
    write(repo, index.with_changes({"conflict": IndexEntry(FILE, EMPTY_BLOB)}))
    assert repo.text("ls-files", "--stage") == f"100644 {EMPTY_BLOB} 0\tconflict"


def test_a_skipped_entry_is_written_so_that_git_skips_it(repo: GitRepo) -> None:
    write(
        repo, IndexFile(b"", SHA1).with_changes({"a": IndexEntry(FILE, EMPTY_BLOB, skip_worktree=True), "b": IndexEntry(FILE, EMPTY_BLOB)})
    )

    assert repo.text("ls-files", "-t") == "S a\nH b"
    assert [read(repo).entries(path)[0].skip_worktree for path in "ab"] == [True, False]


def test_an_index_of_version_4_is_written_byte_for_byte_as_git_writes_it(repo: GitRepo) -> None:
    put(repo.path, {"a": "1\n", "b": "2\n", "c/d": "3\n"})
    repo.git("add", "--all")
    version_4(repo)

    assert read(repo).with_changes({}) == (repo.git_dir / "index").read_bytes()


def split(repo: GitRepo) -> None:
    repo.git("update-index", "--split-index")


def sparse(repo: GitRepo) -> None:
    repo.git("commit", "-qm", "first")
    repo.git("sparse-checkout", "set", "--cone", "--sparse-index")


@pytest.mark.parametrize(("make", "message"), [(split, "extension 'link'"), (sparse, "extension 'sdir'")])
def test_a_format_that_is_not_written_here_is_refused_by_name(repo: GitRepo, make: Callable[[GitRepo], None], message: str) -> None:
    put(repo.path, {"a": "1\n", "c/d": "3\n"})
    repo.git("add", "--all")
    make(repo)

    with pytest.raises(UnsupportedRepository, match=message) as caught:
        read(repo)

    assert "git update-index" in str(caught.value)


@pytest.mark.parametrize("harm", [lambda data: data[:4], lambda data: data[:90], lambda data: data[:-1], lambda data: b"JUNK" + data[4:],
                                  lambda data: data[:70] + b"?" + data[71:]])  # fmt: skip
def test_a_damaged_index_is_refused(repo: GitRepo, harm: Callable[[bytes], bytes]) -> None:
    put(repo.path, {"a": "1\n", "b": "2\n"})
    repo.git("add", "--all")

    with pytest.raises(UnsupportedRepository, match="damaged"):
        IndexFile(harm((repo.git_dir / "index").read_bytes()), SHA1)


def test_an_index_without_a_hash_is_read(repo: GitRepo) -> None:
    put(repo.path, {"a": "1\n"})
    repo.git("add", "--all")
    data = (repo.git_dir / "index").read_bytes()

    assert len(IndexFile(data[:-20] + bytes(20), SHA1).entries("a")) == 1


names = st.sampled_from(["a", "b", "b-c", "b/c", "b/d/e", "é", "z" * 70, os.fsdecode(b"\xff"), "x y", "n\n"])
modes, blobs = st.sampled_from([FILE, EXECUTABLE, SYMLINK]), st.sampled_from([EMPTY_BLOB, "2" * 40])
new_entries = st.tuples(modes, blobs).map(lambda parts: IndexEntry(*parts))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    standing=st.dictionaries(
        names.filter(lambda name: name != "b"), st.tuples(new_entries, st.sampled_from([(0,), (1, 2, 3), (2, 3), (1,)])), max_size=6
    ),
    changes=st.dictionaries(names.filter(lambda name: name != "b"), st.none() | new_entries, max_size=5),
)
def test_random_changes_to_random_indexes_agree_with_git(
    tmp_path_factory: pytest.TempPathFactory,
    standing: dict[str, tuple[IndexEntry, tuple[int, ...]]],
    changes: dict[str, IndexEntry | None],
) -> None:
    repo = GitRepo(tmp_path_factory.getbasetemp() / "random-index")
    if not repo.path.exists():
        GitRepo.make(repo.path)
    repo.git("read-tree", "--empty")
    lines = [
        b"%o %s %d\t%s\0" % (entry.mode, entry.id.encode(), stage, os.fsencode(path))
        for path, (entry, stages) in standing.items()
        for stage in stages
    ]
    repo.git("update-index", "-z", "--index-info", stdin=b"".join(lines))
    before = read(repo)
    edits = []
    for path, entry in changes.items():
        edits.append(b"0 %s\t%s\0" % (b"0" * 40, os.fsencode(path)))
        edits += [b"%o %s 0\t%s\0" % (entry.mode, entry.id.encode(), os.fsencode(path))] if entry is not None else []
    repo.git("update-index", "-z", "--index-info", stdin=b"".join(edits))
    theirs = staged(repo)

    write(repo, before.with_changes(changes))

    assert staged(repo) == theirs


def an_entry(digit: str, mode: int = FILE, **more: bool) -> IndexEntry:
    return IndexEntry(mode, digit * 40, (0,) * 10, **more)


NAMES = ["a", "b/c", "b/d", "e", "f" * 300]
ENTRIES = st.sampled_from([an_entry("1"), an_entry("2", EXECUTABLE), an_entry("3", SYMLINK), an_entry("4", skip_worktree=True), None])


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), ENTRIES, max_size=3), max_size=6))
def test_an_index_that_is_remembered_is_the_one_that_is_read(changes: list[dict[str, IndexEntry | None]]) -> None:
    remembered = forgotten = build_index([(b"a", an_entry("1")), (b"e", an_entry("2"))], SHA1)
    with pytest.MonkeyPatch.context() as patch:
        for change in changes:
            patch.setattr(index_module, "_LARGE", 0)
            remembered = IndexFile(remembered, SHA1).with_changes(change)
            known = IndexFile(remembered, SHA1)
            patch.setattr(index_module, "_RECENT", deque(maxlen=2))
            patch.setattr(index_module, "_LARGE", 1 << 30)
            forgotten = IndexFile(forgotten, SHA1).with_changes(change)
            read_anew = IndexFile(forgotten, SHA1)
            patch.undo()

            assert remembered == forgotten
            assert known.listing() == read_anew.listing()
            assert [*known.hidden()] == [*read_anew.hidden()]
            assert [known.entries(name) for name in NAMES] == [read_anew.entries(name) for name in NAMES]


def test_a_large_index_is_not_read_through_again_where_only_contents_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build_index(((b"%06d" % number, an_entry("1")) for number in range(5000)), SHA1)
    read_through: list[int] = []
    scan = IndexFile._scan
    monkeypatch.setattr(IndexFile, "_scan", lambda self: (read_through.append(1), scan(self))[1])
    index = IndexFile(data, SHA1)

    for digit in "23":
        data = index.with_changes({"000007": an_entry(digit), "004999": an_entry(digit, EXECUTABLE)})
        index = IndexFile(data, SHA1)
        assert [entry.id[0] for entry in index.entries("000007")] == [digit]
    assert len(read_through) == 1

    by_another_program = build_index(((b"%06d" % number, an_entry("5")) for number in range(5000)), SHA1)
    assert [entry.id[0] for entry in IndexFile(by_another_program, SHA1).entries("000007")] == ["5"]
    assert IndexFile(index.with_changes({"000007": None}), SHA1).entries("000007") == []
    assert len(read_through) == 3
