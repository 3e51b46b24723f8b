"""References against real git: who holds the lock wins, everyone else is excluded, and nothing anyone wrote is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.git import GitRepo, git, try_git

from pytest_gittrix import points
from pytest_gittrix.errors import DurableLocked, InvalidInput, UnsupportedRepository
from pytest_gittrix.git.objects import FORMATS, SHA1
from pytest_gittrix.git.refs import PackedReferences, References, RefMoved, branch_ref

MAIN = "refs/heads/main"


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    """A bare repository with two commits; ``main`` is at the first."""
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"}, bare=True)
    repo.git("branch", "second", "main")
    repo.commit({"a": "2\n"}, branch="second")
    return repo


def references(repo: GitRepo) -> References:
    return References(str(repo.git_dir), SHA1)


def swap(repo: GitRepo, ref: str, new: str, expected: str | None, **options: object) -> None:
    """Move a reference, as a promotion does."""
    references(repo).compare_and_swap(ref, new, expected=expected, **options)  # type: ignore[arg-type]


def loose(repo: GitRepo) -> None:
    """Leave it as it is."""


def packed(repo: GitRepo) -> None:
    repo.git("pack-refs", "--all")


def packed_and_behind(repo: GitRepo) -> None:
    """A packed entry that a loose one has overtaken."""
    repo.git("update-ref", MAIN, "second")
    repo.git("pack-refs", "--all")
    repo.git("update-ref", MAIN, "second~1")


storage = pytest.mark.parametrize("store", [loose, packed, packed_and_behind])


@storage
def test_reading_agrees_with_git(repo: GitRepo, store: Callable[[GitRepo], None]) -> None:
    store(repo)
    refs = references(repo)

    assert refs.read(MAIN) == repo.head()
    assert refs.read("refs/heads/none") is None
    listed = dict(line.split() for line in repo.text("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/").splitlines())
    assert refs.below("refs/heads/") == listed


@storage
def test_a_swap_moves_the_branch_and_leaves_no_file_behind(repo: GitRepo, store: Callable[[GitRepo], None]) -> None:
    store(repo)
    before = {path.name for path in repo.git_dir.iterdir()}

    swap(repo, MAIN, repo.head("second"), repo.head())

    assert repo.head() == repo.head("second")
    assert {path.name for path in repo.git_dir.iterdir()} == before
    assert not list(repo.git_dir.rglob("*.lock"))
    repo.fsck()


@storage
def test_a_stale_expectation_moves_nothing_and_says_where_the_branch_is(repo: GitRepo, store: Callable[[GitRepo], None]) -> None:
    store(repo)
    head, other = repo.head(), repo.head("second")

    for expected in (other, None):
        with pytest.raises(RefMoved) as caught:
            swap(repo, MAIN, other, expected)
        assert caught.value.current == head

    assert repo.head() == head
    assert not list(repo.git_dir.rglob("*.lock"))


@pytest.mark.parametrize("object_format", FORMATS)
@pytest.mark.parametrize("name", ["new", "feature/deep/down", "größe", "a@b", "@/x", "x{y", "1.0"])
def test_a_new_branch_appears_for_git(tmp_path: Path, name: str, object_format: str) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"}, bare=True, object_format=object_format)
    head = repo.head()

    References(str(repo.git_dir), FORMATS[object_format]).compare_and_swap(branch_ref(name), head, expected=None)

    assert repo.head(name) == head


def test_what_fails_in_the_preparation_moves_nothing(repo: GitRepo) -> None:
    head = repo.head()

    with pytest.raises(ZeroDivisionError):
        references(repo).compare_and_swap(MAIN, repo.head("second"), expected=head, prepare=lambda: 1 // 0)

    assert repo.head() == head
    assert not list(repo.git_dir.rglob("*.lock"))


def test_while_held_the_lock_says_whose_it_is_and_keeps_git_out(repo: GitRepo) -> None:
    new = repo.head("second")

    refusals = []

    def look() -> None:
        assert (repo.git_dir / f"{MAIN}.lock").read_text() == new + "\n"
        refusals.append(try_git("update-ref", MAIN, new, cwd=repo.path))

    references(repo).compare_and_swap(MAIN, new, expected=repo.head(), prepare=look)

    (refused,) = refusals
    assert refused.returncode != 0
    assert b"main.lock" in refused.stderr
    assert repo.head() == new


def test_a_lock_of_git_is_waited_for_and_then_named(repo: GitRepo) -> None:
    lock = repo.git_dir / f"{MAIN}.lock"
    lock.touch()

    with pytest.raises(DurableLocked, match=r"main\.lock is held by another program") as caught:
        swap(repo, MAIN, repo.head("second"), repo.head(), wait=0.0)

    assert caught.value.stage == "apply"
    assert lock.read_bytes() == b""


def test_a_lock_that_goes_away_in_time_is_no_obstacle(repo: GitRepo) -> None:
    lock = repo.git_dir / f"{MAIN}.lock"
    lock.touch()

    with points.listening(lambda name: lock.unlink(missing_ok=True) if name == "ref:busy" else None):
        swap(repo, MAIN, repo.head("second"), repo.head())

    assert repo.head() == repo.head("second")


def test_a_dead_owners_lock_is_taken_away_by_whoever_can_prove_it(repo: GitRepo) -> None:
    lock = repo.git_dir / f"{MAIN}.lock"
    lock.write_text(f"{repo.head('second')}\n")
    owners: list[str] = []

    def settle(held: str) -> bool:
        owners.append(held)
        lock.unlink()
        return True

    swap(repo, MAIN, repo.head("second"), repo.head(), settle=settle)

    assert owners == [repo.head("second")]
    assert repo.head() == repo.head("second")


@pytest.mark.parametrize("store", [loose, packed])
@pytest.mark.parametrize("name", ["refs/heads/main/below", "refs/heads/top"])
def test_a_branch_cannot_stand_where_another_ones_directory_is(repo: GitRepo, store: Callable[[GitRepo], None], name: str) -> None:
    repo.git("branch", "top/of/it", "main")
    store(repo)
    assert try_git("update-ref", name, repo.head(), cwd=repo.path).returncode != 0
    listed = repo.text("for-each-ref")

    with pytest.raises(InvalidInput, match=f"{name} cannot be made"):
        swap(repo, name, repo.head(), None)

    assert repo.text("for-each-ref") == listed
    assert not list(repo.git_dir.rglob("*.lock"))


def test_an_empty_directory_left_by_deleted_branches_is_no_obstacle(repo: GitRepo) -> None:
    (repo.git_dir / "refs/heads/top/of/it").mkdir(parents=True)

    swap(repo, "refs/heads/top", repo.head(), None)

    assert repo.head("top") == repo.head()


def test_a_packed_branch_below_an_empty_directory_is_swapped(repo: GitRepo) -> None:
    repo.git("branch", "top/leaf", "main")
    repo.git("pack-refs", "--all")

    swap(repo, "refs/heads/top/leaf", repo.head("second"), repo.head())

    assert repo.head("top/leaf") == repo.head("second")


def test_a_branch_that_points_at_a_branch_is_refused(repo: GitRepo) -> None:
    repo.git("symbolic-ref", "refs/heads/alias", MAIN)

    with pytest.raises(UnsupportedRepository, match="'ref: refs/heads/main', which is not an object id"):
        swap(repo, "refs/heads/alias", repo.head("second"), repo.head())

    assert repo.text("symbolic-ref", "refs/heads/alias") == MAIN
    assert repo.head() != repo.head("second")


@pytest.mark.parametrize(
    "name",
    [
        "", "-x", "HEAD", "@", ".x", "x.", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "a@{1}", "a//b", "a/", "/a",
        "a/.b", "a.lock", "a.lock/b", "a\n", "\x7f", "a\x00b", "main@{upstream}", "refs/heads/", "refs/heads/-x",
    ],
)  # fmt: skip
def test_what_is_no_branch_name_is_refused_and_shown(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        branch_ref(name)

    assert repr(name) in caught.value.fact


def test_a_full_name_and_a_short_name_are_one_branch() -> None:
    assert branch_ref("refs/heads/a/b") == branch_ref("a/b") == "refs/heads/a/b"


@given(st.text(st.sampled_from("a-b/.@{~^: *[\\\x7f\nloékHEAD"), min_size=1, max_size=8))
@example("x.lock")
@example("a/@")
def test_every_name_accepted_is_one_that_git_accepts(name: str) -> None:
    try:
        ref = branch_ref(name)
    except InvalidInput:
        assert try_git("check-ref-format", "--branch", name).returncode != 0
        return
    git("check-ref-format", ref)


WORKER = """
import sys
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.pack import install_pack
from pytest_gittrix.git.refs import PackedReferences, RefMoved
from pytest_gittrix.git.repository import Repository

path, worker, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Repository.open(path) as repository:
    for number in range(times):
        while True:
            head = repository.head("refs/heads/main")
            who = Signature(f"worker {worker}", "w@example.com", 1893456000)
            built = build_commit(repository.trees.read, repository.tree(head), {}, {}, parent=head, author=who,
                                 message=f"{worker}-{number}", format_=repository.format)
            try:
                repository.land("refs/heads/main", built, signature=who, note="n", keep="k", expected=head, wait=60)
                break
            except RefMoved:
                pass
"""


def test_no_commit_is_lost_between_processes_and_plain_git(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"})
    command = [sys.executable, "-c", WORKER, str(repo.path)]
    workers = [subprocess.Popen([*command, str(worker), "100"], stderr=subprocess.PIPE) for worker in range(4)]
    done = threading.Event()

    def keep_packing() -> None:
        while not done.wait(0.1):
            try_git("pack-refs", "--all", cwd=repo.path)

    packing = threading.Thread(target=keep_packing)
    packing.start()
    mine = 0
    try:
        while any(worker.poll() is None for worker in workers):
            mine += try_git("commit", "-q", "--allow-empty", "-m", f"person-{mine}", cwd=repo.path).returncode == 0
    finally:
        done.set()
        packing.join()
    assert [(worker.communicate()[1], worker.returncode) for worker in workers] == [(b"", 0)] * 4

    subjects = repo.text("log", "--format=%s").splitlines()
    wanted = {f"{worker}-{number}" for worker in range(4) for number in range(100)} | {f"person-{number}" for number in range(mine)}
    assert set(subjects) == wanted | {"first"}
    assert len(subjects) == len(wanted) + 1
    assert not list(repo.git_dir.rglob("*.lock"))
    repo.fsck()


def test_a_swap_of_a_branch_deleted_meanwhile_is_refused(repo: GitRepo) -> None:
    head = repo.head()
    repo.git("pack-refs", "--all")
    repo.git("update-ref", "-d", MAIN)

    with pytest.raises(RefMoved) as caught:
        swap(repo, MAIN, repo.head("second"), head)

    assert caught.value.current is None
    assert try_git("rev-parse", "--verify", MAIN, cwd=repo.path).returncode != 0


def test_packed_references_are_found_by_whole_names_and_by_their_beginnings() -> None:
    one, two = "1" * 40, "2" * 40
    lines = (f"{one} refs/heads/a", f"{two} refs/heads/a/b", f"{one} refs/tags/v1", f"^{two}", f"{two} refs/x")
    packed = PackedReferences("\n".join(["# pack-refs with: peeled refs/heads/no ", *lines]).encode())
    assert (packed.get("refs/heads/a"), packed.get("refs/tags/v1"), packed.get("refs/x")) == (one, one, two)
    assert packed.get("refs/heads") is packed.get("refs/heads/no") is packed.get("heads/a") is None
    assert packed.below("refs/heads/a/", "refs/tags/") == {"refs/heads/a/b": two, "refs/tags/v1": one}
    assert PackedReferences().below("refs/") == {}


def test_packed_references_are_read_again_when_git_replaced_them(repo: GitRepo) -> None:
    found = references(repo)
    repo.git("pack-refs", "--all")
    first = found.packed()
    assert found.packed() is first
    repo.git("update-ref", "refs/heads/later", "HEAD")
    repo.git("pack-refs", "--all")
    assert first.get("refs/heads/later") is None
    assert found.read("refs/heads/later") == found.packed().get("refs/heads/later") is not None
