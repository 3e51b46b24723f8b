"""Scripted histories as git objects: the same everywhere, refused with a name where they do not fit, and believed by git itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.errors import InvalidInput, WriteRejected
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.objects import SHA1, SHA256
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry
from pytest_gittrix.testing.repos.history import AUTHOR, SMALL_PROJECT, Executable, History, Step, Submodule, Symlink

POINTER = "1234567890" * 4


def commits(history: History, **options: datetime) -> list[str]:
    return list(history.write(SHA1, **options).commits)


def test_the_small_project_has_the_same_commit_id_on_every_machine() -> None:
    assert commits(History.of()) == ["83aec192c6d05e3965ffbbbd4e6e6819eb5c151c"]


def test_a_scripted_history_has_the_same_ids_every_time() -> None:
    history = [{"a": "1\n"}, Step({"a": None, "b": Executable("2\n")}, "Second", ("Ada", "ada@example.com"))]

    first, second = History.of(history=history), History.of(history=list(history))

    assert commits(first) == commits(second)
    assert first.digest == second.digest
    assert len(set(commits(first))) == 2


def test_the_order_in_which_paths_are_given_does_not_matter() -> None:
    one, other = History.of({"a": "1", "b": "2"}), History.of({"b": "2", "a": "1"})

    assert one.digest == other.digest
    assert commits(one) == commits(other)


@pytest.mark.parametrize(
    "other",
    [
        [Step({"a": "2"}, "m")],
        [Step({"b": "1"}, "m")],
        [Step({"a": b"1"}, "n")],
        [Step({"a": Executable("1")}, "m")],
        [Step({"a": Symlink("1")}, "m")],
        [Step({"a": "1"}, "m", ("Ada", "ada@example.com"))],
        [Step({"a": "1"}, "m"), Step({}, "m")],
    ],
)
def test_what_differs_has_another_digest_and_other_commits(other: list[Step]) -> None:
    history, different = History.of(history=[Step({"a": "1"}, "m")]), History.of(history=other)

    assert history.digest != different.digest
    assert commits(history) != commits(different)


def test_a_history_ends_a_minute_before_clocks_start_and_has_a_commit_a_minute() -> None:
    written = History.of(history=[{"a": "1"}, {"a": "2"}, {"a": "3"}]).write(SHA1, clock_start=CLOCK_START)

    instants = [parse_commit(id_, written.objects[id_][1]).committer.when for id_ in written.commits]
    assert instants == [CLOCK_START - timedelta(minutes=left) for left in (3, 2, 1)]


def test_where_clocks_start_decides_the_ids() -> None:
    history = History.of({"a": "1"})

    assert commits(history) != commits(history, clock_start=datetime(2031, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidInput, match="no time zone"):
        history.write(SHA1, clock_start=datetime(2031, 1, 1))


def test_each_commit_says_who_wrote_it_and_what_came_before() -> None:
    written = History.of(history=[{"a": "1"}, Step({"a": "2"}, "Improve", ("Ada", "ada@example.com"))]).write()

    first, second = (parse_commit(id_, written.objects[id_][1]) for id_ in written.commits)
    assert (first.author.name, first.author.email, first.message, first.parents) == (*AUTHOR, "Step 1\n", ())
    assert (second.author.name, second.author.email, second.message) == ("Ada", "ada@example.com", "Improve\n")
    assert second.parents == (first.id,)


def test_every_kind_of_content_becomes_its_kind_of_entry() -> None:
    files = {"text": "héllo\n", "bytes": b"\0\xff", "run.sh": Executable("#!/bin/sh\n"), "link": Symlink("text"), "lib": Submodule(POINTER)}

    written = History.of(files).write()

    assert {path: entry.mode for path, entry in written.entries.items()} == {
        "bytes": FILE,
        "lib": SUBMODULE,
        "link": SYMLINK,
        "run.sh": EXECUTABLE,
        "text": FILE,
    }
    assert written.entries["lib"].id == POINTER
    assert written.objects[written.entries["text"].id] == ("blob", "héllo\n".encode())
    assert written.objects[written.entries["link"].id] == ("blob", b"text")
    assert POINTER not in written.objects


def test_an_entry_puts_a_known_object_at_another_path_with_another_mode() -> None:
    blob = SHA1.hash_object("blob", b"1")

    written = History.of(history=[{"a": "1"}, {"b/c": Entry(EXECUTABLE, blob)}]).write()

    assert written.entries == {"a": Entry(FILE, blob), "b/c": Entry(EXECUTABLE, blob)}


def test_a_directory_goes_with_its_last_file_and_may_become_a_file() -> None:
    written = History.of(history=[{"d/x": "1", "d/y": "2", "z": "3"}, {"d/x": None, "d/y": None, "d": "now a file", "z": None}]).write()

    assert list(written.entries) == ["d"]


def test_sha256_names_objects_by_sha256() -> None:
    written = History.of().write(SHA256)

    assert {len(id_) for id_ in [*written.commits, *written.objects]} == {64}


def test_an_empty_commit_is_a_history() -> None:
    assert History.of({}).write().entries == {}
    assert len(set(commits(History.of(history=[{"a": "1"}, {}])))) == 2


def test_no_argument_means_the_small_project() -> None:
    assert set(History.of().write().entries) == set(SMALL_PROJECT)


def test_a_step_keeps_its_changes_whatever_becomes_of_the_mapping_it_was_given() -> None:
    changes = {"a": "1"}
    step = Step(changes)

    changes["a"] = "2"

    assert step.changes == {"a": "1"}


def test_a_history_is_given_back_as_it_is() -> None:
    history = History.of({"a": "1"})

    assert History.of(history=history) is history


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([], "has no step"),
        ([{"a": 7}], "'a' is int"),
        ([{"a": Executable(None)}], "'a' is NoneType"),  # type: ignore[arg-type]
        ([{"a": "\ud800"}], "'a' is not UTF-8"),
        ([{"a": Symlink("")}], "'a' cannot link"),
        ([{"a": Submodule("main")}], "'a' cannot be"),
        ([{"a": Submodule("0" * 40)}], "'a' cannot be"),
        ([{"a": Entry(0o100600, POINTER)}], "one of the modes"),
        ([{"a": Entry(FILE, POINTER)}], "no blob of the repository"),
        ([{"a": None}], "'a' cannot be deleted"),
        ([{"a/b": "1"}, {"a": None}], "'a' cannot be deleted"),
        ([{"a": "1", "./a": "2"}], "given twice"),
        ([{"a": "1", "a/b": "2"}], "Step 1 of the history"),
        ([{"a/b": "1"}, Step({"a": "2"}, "Flatten")], r"Step 2 of the history \('Flatten'\) does not fit"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(history: list[dict[str, object]], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        History.of(history=history).write()  # type: ignore[arg-type]


def test_the_tree_of_an_earlier_commit_is_no_content_of_a_file() -> None:
    tree = parse_commit("", History.of({"a": "1"}).write().objects[commits(History.of({"a": "1"}))[0]][1]).tree

    with pytest.raises(InvalidInput, match="no blob"):
        History.of(history=[{"a": "1"}, {"b": Entry(FILE, tree)}]).write()


@pytest.mark.parametrize("name", ["../x", "/x", ".git/config", "a/.GIT/x", ""])
def test_a_name_that_may_not_be_written_is_refused(name: str) -> None:
    with pytest.raises(WriteRejected):
        History.of({name: "x"}).write()


def test_files_and_history_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="Both files= and history="):
        History.of({"a": "1"}, [{"b": "2"}])


def test_git_finds_the_very_ids_that_were_written(tmp_path: Path) -> None:
    from pytest_gittrix.git.environment import hermetic_env, run_git
    from pytest_gittrix.git.pack import build_pack, install_pack

    written = History.of({"d/a": "1\n", "e": Executable("2\n"), "l": Symlink("e")}).write()
    env = hermetic_env()
    run_git(["init", "-q", "--bare", str(tmp_path / "r")], env=env)
    install_pack(str(tmp_path / "r" / "objects"), build_pack(written.objects, SHA1))

    git_dir = f"--git-dir={tmp_path / 'r'}"
    run_git([git_dir, "fsck", "--strict", "--full"], env=env)
    listed = run_git([git_dir, "ls-tree", "-r", "-z", written.commits[-1]], env=env).decode()
    assert listed == "".join(f"{entry.mode:o} blob {entry.id}\t{path}\0" for path, entry in written.entries.items())
