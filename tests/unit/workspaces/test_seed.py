"""Seeds: prepared once per baseline, whole in themselves, the same for every process that prepares them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.git import FORMATS, GitRepo, executable, git, link, submodule

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.objects import MissingObject
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.os_level.file_lock import locked_file, try_lock
from pytest_gittrix.workspaces.seeds import on_disk
from pytest_gittrix.workspaces.seeds import seed as seeds_module
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed, prune_seeds
from pytest_gittrix.workspaces.seeds.seed import History, Seed, check_history, open_seed

FILES = {
    "a": "1\n",
    "src/b": "2\n",
    "run": executable("x\n"),
    "link": link("a"),
    "sub": submodule("1" * 40),
    ".gitignore": "*.log\n",
    "src/.gitignore": "!x.log\n",
}


@pytest.fixture
def durable(tmp_path: Path) -> GitRepo:
    """A repository with two commits on each side of a merge."""
    repo = GitRepo.make(tmp_path / "durable", {"first": "1\n"}, bare=True)
    repo.git("branch", "side")
    repo.commit({"side": "s\n"}, "side", branch="side")
    repo.commit(FILES, "main")
    tree = repo.text("rev-parse", "main^{tree}")
    merge = repo.text("commit-tree", tree, "-p", "main", "-p", "side", "-m", "merge")
    repo.git("update-ref", "refs/heads/main", merge)
    return repo


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process remembers no seed, as a new one would not."""
    monkeypatch.setattr(seeds_module, "_recent", type(seeds_module._recent)())


def made(repo: GitRepo, seeds: Path, history: History = "none", *, sync: bool = False) -> Seed:
    with Repository.open(repo.path) as opened:
        return prepare_seed(str(seeds), opened, repo.head(), history, sync=sync)


def objects_in(seed: Seed) -> set[str]:
    """Every object a seed holds, as git lists them."""
    packs = [os.path.join(seed.objects_dir, "pack", name) for name in seed.packs if name.endswith(".idx")]
    lines = [git("show-index", f"--object-format={seed.format.name}", stdin=Path(pack).read_bytes()) for pack in packs]
    return {line.split()[1].decode() for listing in lines for line in listing.splitlines()}


@pytest.mark.parametrize(("history", "commits"), [("none", 1), (0, 1), (1, 3), (2, 4), (50, 4), ("full", 4)])
def test_a_seed_holds_exactly_what_its_commits_need(durable: GitRepo, tmp_path: Path, history: History, commits: int) -> None:
    seed = made(durable, tmp_path / "seeds", history)

    inside = objects_in(seed)
    kept = [id_ for id_ in durable.text("rev-list", "main").splitlines() if id_ in inside]
    assert len(kept) == commits
    needed = {
        id_ for commit in kept for id_ in durable.text("ls-tree", "-r", "-t", "--format=%(objecttype) %(objectname)", commit).splitlines()
    }
    trees = {durable.text("rev-parse", f"{commit}^{{tree}}") for commit in kept}
    assert inside == {*kept, *trees, *(line.split()[1] for line in needed if not line.startswith("commit"))}
    edge = [id_ for id_ in kept if not set(durable.text("rev-list", "--parents", "-1", id_).split()) <= inside]
    assert seed.shallow.split() == sorted(edge)


@pytest.mark.parametrize("object_format", FORMATS)
def test_git_finds_its_packs_sound(tmp_path: Path, object_format: str) -> None:
    durable = GitRepo.make(tmp_path / "durable", {"a": "1\n", "d/b": b"\0" * 70_000}, object_format=object_format)
    seed = made(durable, tmp_path / "seeds", "full")

    judge = GitRepo.make(tmp_path / "judge", object_format=object_format)
    for name in filter(lambda name: name.endswith(".pack"), seed.packs):
        judge.git("index-pack", "--strict", "--stdin", stdin=Path(seed.objects_dir, "pack", name).read_bytes())
    judge.git("update-ref", "refs/heads/main", seed.commit)
    judge.fsck()
    assert seed.blob(seed.entries["d/b"].id) == b"\0" * 70_000


def test_a_seed_knows_its_files_directories_and_rules(durable: GitRepo, tmp_path: Path) -> None:
    seed = made(durable, tmp_path / "seeds")

    assert dict(seed.entries) == durable.tree()
    assert seed.root == durable.text("rev-parse", "main^{tree}")
    assert seed.baseline.message == "merge\n"
    assert {name: sorted(files) for name, files in seed.directories.items()} == {
        "": sorted([".gitignore", "a", "first", "link", "run", "sub"]), "src": [".gitignore", "b"],
    }  # fmt: skip
    assert (seed.ignore.ignored("x.log"), seed.ignore.ignored("src/x.log")) == (True, False)


def test_rules_are_read_from_files_only(tmp_path: Path) -> None:
    files = {"rules": "*.log\n", ".gitignore": link("rules"), "d/.gitignore": submodule("1" * 40), "e/.gitignore": executable("*.log\n")}
    seed = made(GitRepo.make(tmp_path / "durable", files, bare=True), tmp_path / "seeds")

    assert [path for path in ("x.log", "d/x.log", "e/x.log") if seed.ignore.ignored(path)] == ["e/x.log"]


def test_directories_come_before_what_is_in_them(tmp_path: Path) -> None:
    seed = made(
        GitRepo.make(tmp_path / "durable", {"x/y/z/file": "1", "x/y-/file": "2", "x": "3"} | {"x": None}, bare=True), tmp_path / "seeds"
    )

    order = list(seed.directories)
    assert set(order) == {"", "x", "x/y", "x/y/z", "x/y-"}
    assert all(order.index(name.rpartition("/")[0]) < order.index(name) for name in order if name)


def test_a_second_preparation_is_the_first(durable: GitRepo, tmp_path: Path) -> None:
    first = made(durable, tmp_path / "seeds")

    assert made(durable, tmp_path / "seeds") is first


@pytest.mark.usefixtures("forgetful")
def test_a_seed_on_disk_needs_no_repository(durable: GitRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = made(durable, tmp_path / "seeds", 1).commit
    seeds_module._recent.clear()
    os.rename(durable.path, tmp_path / "away")

    seed = open_seed(str(tmp_path / "seeds"), commit, 1, "sha1")

    assert seed is not None
    assert seed.blob(seed.entries["a"].id) == b"1\n"
    assert open_seed(str(tmp_path / "seeds"), commit, "full", "sha1") is None


def test_its_files_are_those_of_its_trees_with_and_without_a_whole_index(durable: GitRepo, tmp_path: Path) -> None:
    seed = made(durable, tmp_path / "seeds")
    index = Path(seed.directory, "index")

    def listed() -> list[tuple[str, Entry]]:
        return [*replace(seed).entries.items()]

    by_trees = listed()
    assert not index.exists()
    whole = seed.index
    assert index.read_bytes() == whole
    assert listed() == by_trees
    for damaged in (b"", whole[:-1], whole.replace(b"src/b", b"src/c")):
        index.write_bytes(damaged)
        assert listed() == by_trees


def test_a_removed_seed_is_made_anew(durable: GitRepo, tmp_path: Path) -> None:
    seed = made(durable, tmp_path / "seeds")
    os.rename(seed.directory, tmp_path / "away")

    assert os.path.exists(made(durable, tmp_path / "seeds").directory)


WORKER = """
import sys
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.os_level.file_lock import locked_file, try_lock
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed
with Repository.open(sys.argv[1]) as repository:
    sys.stdin.readline()
    seed = prepare_seed(sys.argv[2], repository, repository.head("refs/heads/main"), "full")
    print(len(seed.entries), len(seed.index))
"""


def test_processes_that_prepare_at_once_agree_and_leave_nothing_else(durable: GitRepo, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(durable.path), str(tmp_path / "seeds")]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]

    answers = {worker.communicate(b"go\n") for worker in workers}

    assert len(answers) == 1
    assert [error for _, error in answers] == [b""]
    assert os.listdir(tmp_path / "seeds") == [f"{durable.head()}-full"]


@pytest.mark.usefixtures("forgetful")
def test_the_same_baseline_gives_the_same_bytes(durable: GitRepo, tmp_path: Path) -> None:
    one, two = made(durable, tmp_path / "one"), made(durable, tmp_path / "two", sync=True)

    def files(seed: Seed) -> dict[str, bytes]:
        root = Path(seed.directory)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    assert files(one) == files(two)


def test_a_large_seed_is_packed_by_git_and_nothing_is_written_to_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "_MANY_OBJECTS", 2)
    durable = GitRepo.make(tmp_path / 'durable: "é"\n', FILES, bare=True)
    before = {path: path.stat().st_mtime_ns for path in durable.path.rglob("*")}

    seed = made(durable, tmp_path / "seeds")

    assert objects_in(seed) == set(durable.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())
    assert dict(seed.entries) == durable.tree()
    assert {path: path.stat().st_mtime_ns for path in durable.path.rglob("*")} == before


def test_an_object_that_durable_lacks_is_named(tmp_path: Path) -> None:
    durable = GitRepo.make(tmp_path / "durable", bare=True)
    tree = durable.text("mktree", "--missing", stdin=b"100644 blob " + b"e" * 40 + b"\tlost\n")
    durable.git("update-ref", "refs/heads/main", durable.text("commit-tree", tree, "-m", "broken"))

    with pytest.raises(MissingObject, match="e" * 40):
        made(durable, tmp_path / "seeds")

    assert not [name for name in os.listdir(tmp_path / "seeds") if not name.startswith("tmp_")]


@pytest.mark.parametrize("history", ["some", -1, 1.5, True, None, "1"])
def test_a_history_that_means_nothing_is_refused(history: object) -> None:
    with pytest.raises(InvalidInput, match=r"'none'.*a number.*'full'"):
        check_history(history)


def test_pruning_takes_only_old_seeds_that_nobody_wants(durable: GitRepo, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    wanted = made(durable, seeds)
    durable.commit({"a": "2\n"})
    old = made(durable, seeds)
    durable.commit({"a": "3\n"})
    fresh = made(durable, seeds)
    (seeds / "tmp_killed").mkdir()
    for directory in (wanted.directory, old.directory, seeds / "tmp_killed"):
        os.utime(directory, (0, 0))

    removed = prune_seeds(str(seeds), lambda: [wanted.commit], remove=shutil.rmtree)

    assert removed == sorted([os.path.basename(old.directory), "tmp_killed"])
    assert sorted(os.listdir(seeds)) == sorted(os.path.basename(seed.directory) for seed in (wanted, fresh))


def test_pruning_asks_who_wants_what_only_if_something_is_old(durable: GitRepo, tmp_path: Path) -> None:
    made(durable, tmp_path / "seeds")

    def never() -> list[str]:
        raise AssertionError("asked")

    assert prune_seeds(str(tmp_path / "seeds"), never, remove=shutil.rmtree) == []
    assert prune_seeds(str(tmp_path / "nowhere"), never, remove=shutil.rmtree) == []


def test_pruning_passes_over_what_is_gone_by_the_time_it_looks(durable: GitRepo, tmp_path: Path) -> None:
    """Another process makes a seed under a temporary name, which goes when the seed gets its own. A link to nothing is as gone as that."""
    seeds = tmp_path / "seeds"
    old = made(durable, seeds)
    os.utime(old.directory, (0, 0))
    (seeds / "tmp_0123456789abcdef").symlink_to("renamed")

    assert prune_seeds(str(seeds), list, remove=shutil.rmtree) == [os.path.basename(old.directory)]


def test_of_the_seeds_that_nobody_wants_the_youngest_stay(durable: GitRepo, tmp_path: Path) -> None:
    seeds, made_seeds = tmp_path / "seeds", []
    for number in range(5):
        durable.commit({"a": f"{number}\n"})
        made_seeds.append(made(durable, seeds))
        os.utime(made_seeds[-1].directory, (2_000_000_000 + number, 2_000_000_000 + number))
    names = [os.path.basename(seed.directory) for seed in made_seeds]

    removed = prune_seeds(str(seeds), lambda: [made_seeds[0].commit], remove=shutil.rmtree, spare=2)

    assert sorted(removed) == sorted(names[1:3])
    assert sorted(os.listdir(seeds)) == sorted([names[0], *names[3:]])


def test_nothing_is_pruned_while_somebody_makes_a_seed(durable: GitRepo, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    made(durable, seeds)

    with locked_file(seeds, shared=True):
        assert prune_seeds(str(seeds), list, remove=shutil.rmtree, spare=0) == []
    assert len(prune_seeds(str(seeds), list, remove=shutil.rmtree, spare=0)) == 1


def test_who_needs_which_seed_is_asked_when_no_session_can_start_from_one(durable: GitRepo, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    made(durable, seeds)
    busy: list[bool] = []

    def wanted() -> None:
        descriptor = os.open(seeds, os.O_RDONLY | os.O_DIRECTORY)
        busy.append(not try_lock(descriptor, shared=True))
        os.close(descriptor)

    assert prune_seeds(str(seeds), wanted, remove=shutil.rmtree, spare=0) == []
    assert busy == [True]
