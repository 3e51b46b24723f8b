"""A person's verbs on a durable repository, each checked by what git says afterwards."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from support.durable_repo import FILES, POINTER, kinds, make, status

from pytest_gittrix.clock import CLOCK_START, FrozenClock
from pytest_gittrix.errors import InvalidInput, WriteRejected
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry
from pytest_gittrix.testing.repos.durable import DurableRepo, Rival
from pytest_gittrix.testing.repos.history import Executable, Submodule, Symlink

# Committing --------------------------------------------------------------------------------------------------------------------


def test_a_commit_is_what_git_would_have_made_there(durable: DurableRepo) -> None:
    before = durable.head()

    sha = durable.commit({"app.py": "two\n", "new/file": b"\0", "docs/guide.md": None}, "Improve")

    assert durable.git("rev-parse", "refs/heads/main", "main^").split() == [sha, before]
    assert (
        durable.git("show", "-s", "--format=%an <%ae>|%cn <%ce>|%s", sha) == "Human <human@example.com>|Human <human@example.com>|Improve"
    )
    assert durable.git("diff-tree", "-r", "--no-renames", "--name-status", before, sha).split() == [
        *("M", "app.py"),
        *("D", "docs/guide.md"),
        *("A", "new/file"),
    ]
    durable.git("fsck", "--strict", "--full")


def test_a_commit_has_the_clocks_date_and_the_same_id_each_time(tmp_path: Path, clock: FrozenClock) -> None:
    ids = []
    clock.advance(hours=3)
    for name in ("one", "other"):
        with DurableRepo(make(tmp_path, name), when=clock.now, home=tmp_path / "home") as repo:
            ids.append(repo.commit({"app.py": "two\n"}))
            assert repo.log()[0].committer.when == CLOCK_START + timedelta(hours=3)
            assert repo.git("log", "-1", "--format=%ai") == "2030-01-01 03:00:00 +0000"

    assert ids[0] == ids[1]


def test_the_checkout_follows_a_commit_made_in_it(durable: DurableRepo) -> None:
    durable.commit({"app.py": "two\n", "docs/guide.md": None, "new/run": Executable("x"), "l": Symlink("app.py")})

    assert status(durable) == ""
    assert (durable.path / "app.py").read_text() == "two\n"
    assert not (durable.path / "docs").exists()
    assert os.access(durable.path / "new/run", os.X_OK)
    assert os.readlink(durable.path / "l") == "app.py"


def test_a_checkout_with_work_in_the_way_stays_as_it_is(durable: DurableRepo) -> None:
    durable.dirty({"app.py": "mine\n"})

    durable.commit({"app.py": "two\n"})

    assert (durable.path / "app.py").read_text() == "mine\n"
    assert durable.read("app.py") == b"two\n"


def test_work_elsewhere_is_not_in_the_way(durable: DurableRepo) -> None:
    durable.dirty({"docs/guide.md": "mine\n", "untracked": "u\n"})

    durable.commit({"app.py": "two\n"})

    assert (durable.path / "app.py").read_text() == "two\n"
    assert status(durable).split("\n") == [" M docs/guide.md", "?? untracked"]


def test_a_commit_can_leave_the_checkout_alone(durable: DurableRepo) -> None:
    durable.commit({"app.py": "two\n"}, worktree=False)

    assert (durable.path / "app.py").read_text() == "one\n"
    assert status(durable) == "M  app.py"


def test_every_kind_of_content_can_be_committed(durable: DurableRepo) -> None:
    durable.commit({"app.py": Executable("x"), "l": Symlink("nowhere"), "lib": Submodule(POINTER), "run.sh": "plain now\n"})

    assert durable.tree() == {
        "app.py": Entry(EXECUTABLE, durable.git("rev-parse", "main:app.py")),
        "docs/guide.md": Entry(FILE, durable.git("rev-parse", "main:docs/guide.md")),
        "l": Entry(SYMLINK, durable.git("rev-parse", "main:l")),
        "lib": Entry(SUBMODULE, POINTER),
        "run.sh": Entry(FILE, durable.git("rev-parse", "main:run.sh")),
    }
    assert durable.read("l") == b"nowhere"
    assert status(durable) == ""


def test_an_entry_changes_a_mode_and_keeps_the_bytes(durable: DurableRepo) -> None:
    entry = durable.entry("app.py")
    assert entry is not None

    durable.commit({"app.py": Entry(EXECUTABLE, entry.id)})

    assert kinds(durable)["app.py"] == "100755"
    assert durable.read("app.py") == b"one\n"
    assert status(durable) == ""


def test_a_file_becomes_a_directory_and_a_directory_a_file(durable: DurableRepo) -> None:
    durable.commit({"app.py": None, "app.py/inner": "in\n", "docs/guide.md": None, "docs": "flat\n"})

    assert sorted(durable.tree()) == ["app.py/inner", "docs", "run.sh"]
    assert status(durable) == ""


def test_an_empty_commit_moves_the_branch(durable: DurableRepo) -> None:
    before = durable.head()

    sha = durable.commit({})

    assert sha != before
    assert durable.tree(sha) == durable.tree(before)


def test_a_commit_can_have_another_author_and_another_branch(durable: DurableRepo) -> None:
    durable.git("branch", "topic")

    sha = durable.commit({"app.py": "two\n"}, branch="topic", author=("Ada", "ada@example.com"))

    assert durable.git("show", "-s", "--format=%an|%cn", sha) == "Ada|Human"
    assert durable.head("topic") == sha
    assert durable.head() != sha
    assert durable.read("app.py") == b"one\n"
    assert durable.read("app.py", "topic") == b"two\n"
    assert status(durable) == ""


def test_a_branch_checked_out_in_a_linked_work_tree_is_followed_there(durable: DurableRepo) -> None:
    durable.git("worktree", "add", "-q", "../linked", "-b", "topic")

    durable.commit({"app.py": "two\n"}, branch="topic")

    assert (durable.path.parent / "linked" / "app.py").read_text() == "two\n"
    assert (durable.path / "app.py").read_text() == "one\n"


def test_a_rename_is_one_commit_and_keeps_bytes_and_kind(durable: DurableRepo) -> None:
    before = durable.tree()

    sha = durable.rename("run.sh", "bin/run")

    assert durable.tree() == {path: entry for path, entry in before.items() if path != "run.sh"} | {"bin/run": before["run.sh"]}
    assert len(durable.log()) == 2
    assert durable.log()[0].id == sha
    assert status(durable) == ""


def test_a_commit_writes_the_reflog(durable: DurableRepo) -> None:
    durable.commit({"app.py": "two\n"}, "Improve\n\nAt length.")

    assert durable.git("reflog", "--format=%gs %gn", "main") == "commit: Improve Human"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"absent": None}, "'absent' cannot be deleted"),
        ({"docs": None}, "'docs' cannot be deleted"),
        ({"app.py/x": "1"}, "'app.py' would be both"),
        ({"docs": "1"}, "'docs' would be both"),
        ({"app.py": 1}, "'app.py' is int"),
        ("app.py", "'app.py', which maps no path to a content"),
    ],
)
def test_a_commit_that_does_not_fit_is_refused_and_changes_nothing(changes: object, words: str, durable: DurableRepo) -> None:
    with durable.unchanged(objects=True), pytest.raises(InvalidInput, match=words):
        durable.commit(changes)  # type: ignore[arg-type]


def test_bad_names_are_refused(durable: DurableRepo) -> None:
    with durable.unchanged(objects=True):
        with pytest.raises(WriteRejected):
            durable.commit({".git/config": "x"})
        with pytest.raises(InvalidInput, match="no branch 'absent'"):
            durable.commit({"app.py": "x"}, branch="absent")
        with pytest.raises(InvalidInput, match="there is no file there"):
            durable.rename("absent", "b")
        with pytest.raises(MissingObject):
            durable.commit({"a": Entry(FILE, POINTER)})
        with pytest.raises(InvalidInput, match="no blob"):
            durable.commit({"a": Entry(FILE, durable.head())})


def test_no_commit_is_lost_when_several_people_commit_at_once(durable: DurableRepo) -> None:
    def work(person: DurableRepo, name: str) -> None:
        for number in range(15):
            person.commit({f"{name}-{number}": "x\n"}, worktree=False)

    people = [Rival(durable.path) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(person, f"p{number}")) for number, person in enumerate(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(durable.log()) == 1 + 3 * 15
    assert len(durable.tree()) == len(FILES) + 3 * 15
    durable.git("fsck", "--strict")


# Rewinding ---------------------------------------------------------------------------------------------------------------------


def test_a_rewind_takes_the_branch_and_its_checkout_back(durable: DurableRepo) -> None:
    first = durable.head()
    durable.commit({"app.py": "two\n", "new": "n\n"})
    durable.dirty({"app.py": "mine\n"})

    durable.rewind(first)

    assert durable.head() == first
    assert status(durable) == ""
    assert (durable.path / "app.py").read_text() == "one\n"
    assert not (durable.path / "new").exists()


def test_a_rewound_branch_grows_again_in_another_direction(durable: DurableRepo) -> None:
    first = durable.head()
    lost = durable.commit({"app.py": "two\n"})
    durable.rewind(first)

    durable.commit({"app.py": "other\n"})
    durable.git("reflog", "expire", "--expire=now", "--all")
    durable.git("gc", "-q", "--prune=now")

    assert [commit.parents for commit in durable.log()] == [(first,), ()]
    with pytest.raises(MissingObject):
        durable.tree(lost)


def test_a_rewind_to_nothing_is_refused(durable: DurableRepo) -> None:
    with durable.unchanged(), pytest.raises(MissingObject):
        durable.rewind(POINTER)
