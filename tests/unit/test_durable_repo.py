"""A person's verbs on a durable repository, each checked by what git says afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pytest_gittrix.clock import EPOCH, FrozenClock
from pytest_gittrix.errors import CapabilityMissing, GitFailed, InvalidInput, PathNotFound, WriteRejected
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.tree import EXECUTABLE, FILE, SUBMODULE, SYMLINK, Entry
from pytest_gittrix.harness.durable import DurableRepo, Rival
from pytest_gittrix.harness.history import Executable, History, Submodule, Symlink
from pytest_gittrix.harness.templates import Templates

FILES = {"app.py": "one\n", "docs/guide.md": "guide\n", "run.sh": Executable("#!/bin/sh\n")}
POINTER = "1234567890" * 4


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(separate_files=False)


def make(tmp_path: Path, name: str = "durable", *, bare: bool = False, object_format: str = "sha1") -> Path:
    Templates(tmp_path / "templates").of(History.of(FILES), object_format=object_format).materialise(tmp_path / name, bare=bare)
    return tmp_path / name


@pytest.fixture
def durable(tmp_path: Path, clock: FrozenClock) -> Iterator[DurableRepo]:
    with DurableRepo(make(tmp_path), when=clock.now, home=tmp_path / "home") as repo:
        yield repo


@pytest.fixture
def rival(durable: DurableRepo, tmp_path: Path, clock: FrozenClock) -> Iterator[Rival]:
    with Rival(durable.path, when=clock.now, home=tmp_path / "home") as other:
        yield other


@pytest.fixture
def bare(tmp_path: Path, clock: FrozenClock) -> Iterator[DurableRepo]:
    with DurableRepo(make(tmp_path, "bare", bare=True), when=clock.now, home=tmp_path / "home") as repo:
        yield repo


def status(durable: DurableRepo) -> str:
    return durable.git("status", "--porcelain")


def kinds(durable: DurableRepo, at: str = "HEAD") -> dict[str, str]:
    rows = (line.split(None, 3) for line in durable.git("ls-tree", "-r", "--full-tree", at).splitlines())
    return {path: mode for mode, _, _, path in rows}


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
            assert repo.log()[0].committer.when == EPOCH + timedelta(hours=3)
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
    ],
)
def test_a_commit_that_does_not_fit_is_refused_and_changes_nothing(changes: dict[str, object], words: str, durable: DurableRepo) -> None:
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


# Looking -----------------------------------------------------------------------------------------------------------------------


def test_reading_is_of_the_branch_or_of_what_is_named(durable: DurableRepo) -> None:
    first = durable.head()
    second = durable.commit({"app.py": "two\n"}, "Second")

    assert (durable.read("app.py"), durable.read("app.py", first), durable.read("app.py", "main")) == (b"two\n", b"one\n", b"two\n")
    assert [(commit.id, commit.message) for commit in durable.log()] == [(second, "Second\n"), (first, "Start the project\n")]
    assert [commit.id for commit in durable.log(first)] == [first]
    assert durable.entry("docs") is None
    assert durable.entry("app.py", first) == durable.tree(first)["app.py"]
    with pytest.raises(PathNotFound):
        durable.read("docs")


def test_what_other_programs_do_is_seen_at_once(durable: DurableRepo, tmp_path: Path) -> None:
    with DurableRepo(durable.path, home=tmp_path / "home") as other:
        assert other.read("app.py") == b"one\n"
        (durable.path / "app.py").write_text("by hand\n")
        durable.git("commit", "-q", "-a", "-m", "By hand")

        assert other.read("app.py") == b"by hand\n"
        assert other.head() == durable.git("rev-parse", "HEAD")


def test_git_runs_as_this_person_at_the_clocks_instant_and_sees_nothing_of_the_users(
    durable: DurableRepo, rival: Rival, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    clock.advance(days=1)

    durable.git("commit", "-q", "--allow-empty", "-m", "mine")
    rival.git("commit", "-q", "--allow-empty", "-m", "theirs")

    assert durable.git("log", "-2", "--format=%an %ae %cd", "--date=iso-strict").splitlines() == [
        "Rival rival@example.com 2030-01-02T00:00:00+00:00",
        "Human human@example.com 2030-01-02T00:00:00+00:00",
    ]


def test_git_reads_input_and_says_why_it_failed(durable: DurableRepo) -> None:
    assert durable.git("hash-object", "--stdin", input="one\n") == durable.tree()["app.py"].id
    assert durable.git("hash-object", "--stdin", input=b"one\n") == durable.tree()["app.py"].id
    with pytest.raises(GitFailed, match="absent"):
        durable.git("rev-parse", "absent")


def test_the_gitpython_object_sees_the_repository_and_runs_hermetic(durable: DurableRepo, clock: FrozenClock) -> None:
    sha = durable.commit({"app.py": "two\n"})

    assert durable.repo.head.commit.hexsha == sha
    assert durable.repo is durable.repo
    assert durable.repo.git.var("GIT_AUTHOR_IDENT").startswith("Human <human@example.com> 1893456000")
    clock.advance(seconds=5)
    assert durable.repo.git.var("GIT_AUTHOR_IDENT").startswith("Human <human@example.com> 1893456005")


# The work tree -----------------------------------------------------------------------------------------------------------------


def test_dirty_changes_files_and_nothing_else(durable: DurableRepo) -> None:
    before = durable.fingerprint()

    durable.dirty({"app.py": "mine\n", "run.sh": "#!/bin/bash\n", "docs/guide.md": None, "new/x": b"\xff", "l": Symlink("x")})

    after = durable.fingerprint()
    assert {line.partition(":")[0] for line in before.diff(after)} == {"work tree"}
    assert status(durable).split("\n") == [" M app.py", " D docs/guide.md", " M run.sh", "?? l", "?? new/"]
    assert kinds(durable)["run.sh"] == "100755"
    assert os.access(durable.path / "run.sh", os.X_OK)


def test_stage_stages_what_it_writes(durable: DurableRepo) -> None:
    head = durable.head()

    durable.stage({"app.py": "mine\n", "docs/guide.md": None, "new/x": Executable("x"), "l": Symlink("x"), "lib": Submodule(POINTER)})

    assert status(durable).split("\n") == ["M  app.py", "D  docs/guide.md", "A  l", "A  lib", "A  new/x"]
    assert durable.git("ls-files", "-s", "lib", "l", "new/x").split()[::4] == ["120000", "160000", "100755"]
    assert durable.head() == head


def test_staging_a_file_in_place_of_a_directory_and_the_reverse(durable: DurableRepo) -> None:
    durable.stage({"docs/guide.md": None, "docs": "flat\n", "app.py": None, "app.py/inner": "in\n"})

    assert durable.git("diff", "--cached", "--name-status", "--no-renames").split() == [
        *("D", "app.py"),
        *("A", "app.py/inner"),
        *("A", "docs"),
        *("D", "docs/guide.md"),
    ]
    assert durable.git("diff", "--name-only") == ""


def test_what_cannot_be_in_a_work_tree_is_refused(durable: DurableRepo, bare: DurableRepo) -> None:
    with durable.unchanged():
        with pytest.raises(InvalidInput, match="'absent' cannot be removed"):
            durable.dirty({"absent": None})
        with pytest.raises(WriteRejected):
            durable.stage({"../outside": "x"})
    with pytest.raises(CapabilityMissing, match="is bare"):
        bare.dirty({"app.py": "x"})


# Unchanged ---------------------------------------------------------------------------------------------------------------------


def test_an_unchanged_block_passes_and_gives_the_fingerprint(durable: DurableRepo) -> None:
    with durable.unchanged() as fingerprint:
        durable.git("status")

    assert fingerprint == durable.fingerprint()


def test_a_change_in_an_unchanged_block_is_an_assertion_error_that_names_it(durable: DurableRepo) -> None:
    with pytest.raises(AssertionError, match=r"(?s)durable changed:.*index: new: nothing -> 100644.*work tree: new: nothing -> file"):
        with durable.unchanged():
            durable.stage({"new": "x"})


def test_an_error_does_not_hide_a_change(durable: DurableRepo) -> None:
    with pytest.raises(AssertionError, match="work tree: new") as caught:
        with durable.unchanged():
            durable.dirty({"new": "x"})
            raise ZeroDivisionError

    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_an_error_passes_through_where_nothing_changed(durable: DurableRepo) -> None:
    with pytest.raises(ZeroDivisionError):
        with durable.unchanged():
            raise ZeroDivisionError


# The rival, and other repositories ---------------------------------------------------------------------------------------------


def test_a_rival_writes_as_another_person_and_leaves_the_work_tree_alone(durable: DurableRepo, rival: Rival) -> None:
    before = durable.fingerprint()

    sha = rival.commit({"app.py": "theirs\n"})

    differences = before.diff(durable.fingerprint())
    assert {line.partition(":")[0] for line in differences} == {"refs", "reflogs"}
    assert durable.head() == sha
    assert durable.git("show", "-s", "--format=%an <%ae>|%cn", sha) == "Rival <rival@example.com>|Rival"


def test_a_rival_follows_in_the_work_tree_where_asked(durable: DurableRepo, rival: Rival) -> None:
    rival.commit({"app.py": "theirs\n"}, worktree=True)
    assert status(durable) == ""

    rival.rewind(durable.log()[1].id)
    assert status(durable) == "M  app.py"
    rival.rename("run.sh", "run", worktree=True)
    assert (durable.path / "run").exists()


def test_a_bare_repository_takes_commits_renames_and_rewinds(bare: DurableRepo) -> None:
    first = bare.head()

    bare.commit({"app.py": "two\n"})
    bare.rename("app.py", "main.py")

    assert bare.read("main.py") == b"two\n"
    bare.rewind(first)
    assert bare.git("rev-parse", "main") == first
    bare.git("fsck", "--strict")


def test_a_sha256_repository_has_the_same_verbs(tmp_path: Path, clock: FrozenClock) -> None:
    with DurableRepo(make(tmp_path, object_format="sha256"), when=clock.now) as repo:
        sha = repo.commit({"app.py": "two\n"})

        assert len(sha) == 64
        assert repo.read("app.py") == b"two\n"
        assert repo.git("rev-parse", "HEAD") == sha
        assert status(repo) == ""


def test_without_a_clock_commits_have_the_real_time(tmp_path: Path) -> None:
    with DurableRepo(make(tmp_path)) as repo:
        repo.commit({"app.py": "two\n"})

        written = repo.log()[0].committer.when
        assert abs(written - datetime.now(written.tzinfo)) < timedelta(minutes=5)


def test_a_closed_repository_opens_again_when_it_is_used(durable: DurableRepo) -> None:
    durable.repo.head.commit  # noqa: B018 - opens GitPython's own processes
    durable.close()
    durable.close()

    assert durable.read("app.py") == b"one\n"
    assert durable.repo.head.commit.hexsha == durable.head()


def test_a_name_that_is_no_branch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a branch name"):
        DurableRepo(make(tmp_path), "-x")
