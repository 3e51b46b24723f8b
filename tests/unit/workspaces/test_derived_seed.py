"""A seed that is derived from another one is, for all that leaves the engine, the seed that is made from nothing."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.git import FORMATS, Content, GitRepo, git, link, submodule
from support.moving import contents, edit

from pytest_gittrix import confine
from pytest_gittrix.confine import Layers, Place, confinement, toolchain
from pytest_gittrix.confine.levels import missing_layers
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import FILE, Entry
from pytest_gittrix.workspaces import layers as layers_module
from pytest_gittrix.workspaces.layers import MOST_LAYERED, lower_layers
from pytest_gittrix.workspaces.overlay import LayeredDir
from pytest_gittrix.workspaces.seeds import on_disk, prepare
from pytest_gittrix.workspaces.seeds import seed as seeds_module
from pytest_gittrix.workspaces.seeds.on_disk import MOST_ANCESTORS, MOST_CHANGES, ancestry
from pytest_gittrix.workspaces.seeds.prepare import SPARE_SEEDS, prepare_seed, prune_seeds
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.workspace import create

STEPS = int(os.environ.get("PYTEST_GITTRIX_STEPS", "25"))
"""How often the baseline moves; each time the seed, and now and then a workspace, is compared with one that is made from nothing."""


@pytest.fixture(autouse=True)
def small_seeds_are_derived_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repositories of a test are so small that a seed from nothing would be as cheap."""
    monkeypatch.setattr(on_disk, "_SMALL_INDEX", 0)
    monkeypatch.setattr(on_disk, "_MANY_OBJECTS", 5)


@pytest.fixture(params=["the same process", "another process"])
def remembers(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Called before each start: a new process knows of earlier seeds only what is on the disk."""
    return (lambda: None) if request.param == "the same process" else seeds_module._recent.clear


def prepared(repo: GitRepo, seeds: Path) -> Seed:
    with Repository.open(repo.path) as opened:
        return prepare_seed(str(seeds), opened, repo.head())


def packed(directory: str, format_name: str) -> list[str]:
    """The objects in a directory of packs, as git lists them."""
    indexes = [name for name in os.listdir(directory) if name.endswith(".idx")]
    listed = [git("show-index", f"--object-format={format_name}", stdin=Path(directory, name).read_bytes()) for name in indexes]
    return sorted(line.split()[1].decode() for listing in listed for line in listing.splitlines())


def assert_equal(one: Seed, other: Seed) -> None:
    assert list(one.entries.items()) == list(other.entries.items())
    assert one.directories == other.directories
    order = list(one.directories)
    assert all(order.index(name.rpartition("/")[0]) < order.index(name) for name in order if name)
    assert (one.index, one.shallow, one.root) == (other.index, other.shallow, other.root)
    names = ("x.log", "z/x", "z/m.o")
    assert [one.ignore.ignored(name) for name in names] == [other.ignore.ignored(name) for name in names]
    assert packed(one.pack_dir, one.format.name) == packed(other.pack_dir, other.format.name)
    assert {entry.id: one.blob(entry.id) for entry in one.entries.values() if entry.kind != "submodule"} == {
        entry.id: other.blob(entry.id) for entry in other.entries.values() if entry.kind != "submodule"
    }


@pytest.mark.parametrize("object_format", FORMATS)
def test_on_a_moving_baseline_every_seed_is_the_one_made_from_nothing(
    tmp_path: Path, remembers: Callable[[], None], object_format: str
) -> None:
    files: dict[str, Content] = {"a": "1\n", "d/a": "2\n", "d/e/f": "3\n", "twin/e/f": "3\n"}
    repo = GitRepo.make(tmp_path / "durable", files, bare=True, object_format=object_format)
    draw = random.Random(object_format)
    derived = 0
    for number in range(STEPS if object_format == "sha1" else 6):
        if number:
            edit(draw, repo)
        remembers()
        seed = prepared(repo, tmp_path / "seeds")
        assert_equal(seed, prepared(repo, tmp_path / "cold"))
        shutil.rmtree(tmp_path / "cold")
        derived += bool(ancestry(seed.directory))
        if number % 5 == 4:
            path = tmp_path / f"clone{number}"
            create("clone", str(path), str(tmp_path / f"state{number}"), seed)
            git("fsck", "--strict", "--no-dangling", cwd=path)
            assert git("status", "--porcelain", cwd=path) == b""
            shutil.rmtree(path)
        prune_seeds(str(tmp_path / "seeds"), list, remove=shutil.rmtree)
    assert derived > 3


def test_a_large_baseline_is_not_listed_to_look_at_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, Content] = {f"{top}/{middle}/file": f"{top}{middle}\n" for top in "abcdefgh" for middle in "xyz"}
    files |= {".gitignore": "*.log\n", "c/.gitignore": "!kept.log\n*.o\n", "d/.gitignore": link("../c/.gitignore")}
    repo = GitRepo.make(tmp_path / "durable", files, bare=True)
    at_once = prepared(repo, tmp_path / "seeds")
    monkeypatch.setattr(on_disk, "_LARGE_INDEX", 0)
    seeds_module._recent.clear()
    seed = prepared(repo, tmp_path / "seeds")
    read: list[str] = []
    trees = seed.trees
    monkeypatch.setattr(trees, "read", lambda id_, read_tree=trees.read: (read.append(id_), read_tree(id_))[1])

    assert seed.entries["c/y/file"] == at_once.entries["c/y/file"]
    assert "c/y/other" not in seed.entries
    assert seed.ignore.ignored("c/y/x.o")
    assert len(set(read)) == 3

    paths = ("x.log", "c/x.log", "c/kept.log", "c/x.o", "d/x.o", "d/kept.log", "c/y/kept.log", "q/x.log")
    assert [seed.ignore.ignored(path) for path in paths] == [at_once.ignore.ignored(path) for path in paths]
    assert {path for path in paths if not seed.ignore.ignored(path)} == {"c/kept.log", "c/y/kept.log", "d/x.o"}
    assert list(seed.entries.items()) == list(at_once.entries.items())
    assert seed.directories == at_once.directories


SHOWN = """
import json, os, stat
def described(path):
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        return [status.st_mode, 0, ""]
    data = os.readlink(path) if stat.S_ISLNK(status.st_mode) else open(path).read()
    return [status.st_mode, status.st_mtime_ns, data]
print(json.dumps({path: described(path) for base, *names in os.walk(".") for path in (os.path.join(base, n) for part in names for n in part)
                  if path.split("/")[1] != ".git"}))
"""


def shown(layers: tuple[str, ...], root: Path) -> dict[str, tuple[int, int, bytes]]:
    """What a program in a jail finds in a fresh workspace above some layers."""
    upper, work, home = (root / name for name in ("upper", "work", "home"))
    for path in (upper, work, home):
        path.mkdir(parents=True)
    lower, *below = map(Path, layers)
    place = Place(upper, home, readable=toolchain(), layers=Layers(lower, work, tuple(below)))
    done = confine.run([sys.executable, "-I", "-S", "-c", SHOWN], place, confinement("jail", layers=True), environment={})
    found = json.loads(done.stdout)
    return {path[2:]: (mode, time, os.fsencode(data)) for path, (mode, time, data) in sorted(found.items())}


def read_by_the_engine(layers: tuple[str, ...], root: Path) -> dict[str, tuple[int, int, bytes]]:
    """What the engine finds there."""
    (root / "upper").mkdir(parents=True)
    lower, *below = layers
    with closing(LayeredDir.above(str(root / "upper"), lower, "", below)) as files:
        found = {}
        for one in files.scan():
            is_link = stat.S_ISLNK(one.stat.st_mode)
            data = b"" if one.is_dir else files.read_link(one.path) if is_link else files.read(one.path)[0]
            found[one.path] = one.stat.st_mode, 0 if one.is_dir else one.stat.st_mtime_ns, data
    return dict(sorted(found.items()))


def test_on_a_moving_baseline_the_lower_layers_show_the_checkout_that_is_made_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers_module, "_WORTH_A_LAYER", 0)
    can_mount = not missing_layers(str(tmp_path))
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n", "d/a": "2\n", "d/e/f": "3\n", "twin/e/f": "3\n"}, bare=True)
    draw = random.Random(0)
    above = 0
    for number in range(STEPS):
        layers = lower_layers(prepared(repo, tmp_path / "seeds"))
        [whole] = lower_layers(prepared(repo, tmp_path / "cold"))
        fresh = {path: found for path, found in contents(Path(whole)).items() if path.split("/")[0] != ".git"}
        above += len(layers) > 1
        assert read_by_the_engine(layers, tmp_path / f"read{number}") == fresh
        if can_mount and len(layers) > 1 and number % 3 == 0:
            assert shown(layers, tmp_path / f"shown{number}") == fresh
        shutil.rmtree(tmp_path / "cold")
        edit(draw, repo)
    assert above > STEPS // 4


def test_lower_layers_share_the_files_at_which_they_do_not_differ(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"d/same": "1\n", "d/changed": "1\n"}, bare=True)
    [before] = map(Path, lower_layers(prepared(repo, tmp_path / "seeds")))
    repo.commit({"d/changed": "2\n"})

    [after] = map(Path, lower_layers(prepared(repo, tmp_path / "seeds")))

    assert (before / "d/same").samefile(after / "d/same")
    assert (before / "d/changed").read_text() == "1\n"


def test_a_lower_layer_of_what_differs_keeps_the_checkout_below_it(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    repo = GitRepo.make(tmp_path / "durable", {f"d{n}/f": f"{n}\n" for n in range(12)}, bare=True)
    [checkout] = lower_layers(prepared(repo, seeds))
    repo.commit({"d1/f": "changed\n", "d2/f": None})
    seed = prepared(repo, seeds)

    layer, below = lower_layers(seed)

    assert below == checkout
    assert {str(path.relative_to(layer)) for path in Path(layer).glob("**/*") if ".git" not in path.parts} == {"d1", "d1/f", "d2"}
    assert prune_seeds(str(seeds), lambda: [seed.commit], remove=shutil.rmtree, spare=0, older_than=0) == []
    shutil.rmtree(checkout)
    assert [Path(whole, "d1/f").read_text() for whole in lower_layers(seed)] == ["changed\n"]
    assert prune_seeds(str(seeds), list, remove=shutil.rmtree, spare=0, older_than=-60) != []
    assert os.listdir(seeds) == []


def layered_repo(tmp_path: Path) -> tuple[GitRepo, Seed]:
    """A repository of twelve files that has moved by one file since a checkout of it was made, and the seed of where it is now."""
    repo = GitRepo.make(tmp_path / "durable", {f"f{number}": f"{number}\n" for number in range(12)}, bare=True)
    lower_layers(prepared(repo, tmp_path / "seeds"))
    repo.commit({"f0": "changed\n"})
    return repo, prepared(repo, tmp_path / "seeds")


@pytest.mark.parametrize(("place", "name"), [(layers_module, "locked_file"), (Seed, "nearest_with")])
def test_of_two_that_need_a_layer_at_once_the_slower_one_takes_that_of_the_faster_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, name: str
) -> None:
    _, seed = layered_repo(tmp_path)
    step = getattr(place, name)

    def after_a_rival(*arguments: object, **named: object) -> object:
        monkeypatch.setattr(place, name, step)
        lower_layers(seed)
        return step(*arguments, **named)

    monkeypatch.setattr(place, name, after_a_rival)

    assert len(lower_layers(seed)) == 2
    assert "lower" not in os.listdir(seed.directory)


def test_a_seed_with_a_checkout_of_its_own_keeps_no_other_seed(tmp_path: Path) -> None:
    _, seed = layered_repo(tmp_path)
    _, below = lower_layers(seed)
    Path(seed.directory, "lower").mkdir()

    removed = prune_seeds(str(tmp_path / "seeds"), lambda: [seed.commit], remove=shutil.rmtree, spare=0)

    assert removed == [os.path.basename(os.path.dirname(below))]


def test_nothing_lies_above_a_checkout_that_shows_the_repository_of_an_earlier_baseline(tmp_path: Path) -> None:
    _, seed = layered_repo(tmp_path)
    found = seed.nearest_with("lower")
    assert found is not None
    Path(found[0], ".git").mkdir()  # as an earlier version made it

    [checkout] = lower_layers(seed)

    assert checkout == os.path.join(seed.directory, "lower")
    assert ".git" not in os.listdir(checkout)


def test_a_layer_is_made_where_what_killed_makers_leave_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, seed = layered_repo(tmp_path)
    write = layers_module._write_changes
    places = []

    def write_and_look(root: str, *arguments: Any) -> None:
        places.append(Path(root).parent.parent)
        write(root, *arguments)

    monkeypatch.setattr(layers_module, "_write_changes", write_and_look)
    lower_layers(seed)

    assert places == [tmp_path / "seeds"]


def test_a_checkout_takes_the_place_of_a_layer_only_where_there_are_no_whiteouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, seed = layered_repo(tmp_path)

    def refuse(number: int) -> None:
        def write(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(layers_module, "_write_changes", write)

    refuse(errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        lower_layers(seed)
    assert not {"layer", "lower"}.intersection(os.listdir(seed.directory))

    refuse(errno.EPERM)
    assert lower_layers(seed) == (os.path.join(seed.directory, "lower"),)


@pytest.mark.parametrize(
    ("most", "edits", "layers"),
    [(500, 3, 2), (500, 4, 1), (2, 2, 2), (2, 3, 1)],
    ids=["a quarter differs", "more than a quarter differs", "as many as may differ", "one more"],
)
def test_a_layer_is_made_where_few_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, edits: int, layers: int
) -> None:
    monkeypatch.setattr(layers_module, "MOST_LAYERED", most)
    repo, _ = layered_repo(tmp_path)
    repo.commit({f"f{number}": "changed\n" for number in range(edits)})

    assert len(lower_layers(prepared(repo, tmp_path / "seeds"))) == layers


def test_a_new_checkout_is_made_for_a_submodule_and_for_a_seed_that_is_not_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo, seed = layered_repo(tmp_path)
    with Repository.open(repo.path) as opened:
        assert len(lower_layers(prepare_seed(str(tmp_path / "seeds"), opened, seed.commit, 1))) == 1
    repo.commit({"sub": submodule("1" * 40)})
    assert len(lower_layers(prepared(repo, tmp_path / "seeds"))) == 1
    monkeypatch.setattr(on_disk, "_SMALL_INDEX", 1 << 20)
    repo.commit({"sub": None})
    assert len(lower_layers(prepared(repo, tmp_path / "seeds"))) == 1


def test_a_clone_gets_nothing_of_earlier_or_later_baselines(tmp_path: Path) -> None:
    repo = GitRepo.make(
        tmp_path / "durable", {"a": "first\n", "d/b": "the same\n" * 50, **{f"f{n}": f"{n}\n" for n in range(6)}}, bare=True
    )
    first = repo.head()
    prepared(repo, tmp_path / "seeds")
    repo.commit({"a": "a secret, rewound later\n"})
    prepared(repo, tmp_path / "seeds")
    secret = repo.tree()["a"].id
    repo.git("update-ref", "refs/heads/main", first)
    repo.commit({"d/b": "third\n"})

    seed = prepared(repo, tmp_path / "seeds")
    create("clone", str(tmp_path / "clone"), str(tmp_path / "state"), seed)

    objects = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=tmp_path / "clone").decode().split()
    needed = git("rev-list", "--objects", "--all", cwd=tmp_path / "clone").decode().split("\n")
    assert sorted(objects) == sorted(line.split()[0] for line in needed if line)
    assert secret not in objects


def test_what_a_derived_seed_writes_is_what_differs(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {f"d{n % 5}/f{n}": f"{n}\n" * 99 for n in range(50)}, bare=True)
    first = prepared(repo, tmp_path / "seeds")
    repo.commit({"d1/f1": "changed\n"})

    second = prepared(repo, tmp_path / "seeds")

    packs = {path.name: path.stat() for path in Path(second.objects_dir, "pack").iterdir() if path.suffix == ".pack"}
    assert sorted(status.st_nlink for status in packs.values()) == [1, 2]
    (own,) = (name for name, status in packs.items() if status.st_nlink == 1)
    shutil.copy(Path(second.objects_dir, "pack", own).with_suffix(".idx"), tmp_path / "own.idx")
    new = git("show-index", stdin=(tmp_path / "own.idx").read_bytes()).splitlines()
    assert len(new) == 4  # the commit, its root, the directory and the file
    assert sorted(os.listdir(second.directory)) == ["ancestry", "objects", "shallow"]
    assert ancestry(second.directory) == (os.path.basename(first.directory),)


@pytest.mark.parametrize("torn", [b"", b"DIRC" + bytes(400)], ids=["empty", "zeros at its end"])
def test_an_index_that_a_power_cut_left_torn_is_made_again_and_not_derived_from(tmp_path: Path, torn: bytes) -> None:
    repo = GitRepo.make(tmp_path / "durable", {f"d{n}/f": f"{n}\n" for n in range(9)}, bare=True)
    first = prepared(repo, tmp_path / "seeds")
    whole = first.index
    Path(first.directory, "index").write_bytes(torn)
    seeds_module._recent.clear()
    repo.commit({"d1/f": "changed\n"})

    assert_equal(prepared(repo, tmp_path / "seeds"), prepared(repo, tmp_path / "cold"))

    with Repository.open(repo.path) as opened:
        assert prepare_seed(str(tmp_path / "seeds"), opened, first.commit).index == whole


@pytest.mark.parametrize("object_format", FORMATS)
def test_a_seed_takes_the_pack_of_the_commit_that_was_landed_last(tmp_path: Path, object_format: str) -> None:
    repo = GitRepo.make(tmp_path / "durable", {f"d{n}/f": f"{n}\n" for n in range(9)}, bare=True, object_format=object_format)
    who = Signature("A", "a@example.com", 0)
    with Repository.open(repo.path) as opened:
        prepare_seed(str(tmp_path / "seeds"), opened, repo.head())
        data = b"changed\n" * 99
        blob = opened.format.hash_object("blob", data)
        built = build_commit(
            opened.trees.read, opened.tree(repo.head()), {"d1/f": Entry(FILE, blob)}, {blob: data},
            parent=repo.head(), author=who, message="m", format_=opened.format,
        )  # fmt: skip
        opened.land("refs/heads/main", built, signature=who, note="n", keep="k", expected=built.parent)

        seed = prepare_seed(str(tmp_path / "seeds"), opened, built.id)

    assert f"pack-{built.pack.name}.pack" in os.listdir(Path(seed.objects_dir, "pack"))
    assert_equal(seed, prepared(repo, tmp_path / "cold"))


def test_a_long_line_of_seeds_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "MOST_ANCESTORS", 2)
    repo = GitRepo.make(tmp_path / "durable", {"a": "0\n"}, bare=True)
    lengths = []
    for number in range(5):
        lengths.append(len(ancestry(prepared(repo, tmp_path / "seeds").directory)))
        repo.commit({"a": f"{number + 1}\n"})

    assert lengths == [0, 1, 2, 0, 1]


def test_too_much_that_differs_makes_a_seed_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "MOST_CHANGES", 2)
    repo = GitRepo.make(tmp_path / "durable", {"a": "0\n"}, bare=True)
    prepared(repo, tmp_path / "seeds")
    repo.commit({"b": "1\n", "c": "1\n"})
    few = prepared(repo, tmp_path / "seeds")
    repo.commit({"b": "2\n", "c": "2\n", "e": "2\n"})

    assert [len(ancestry(seed.directory)) for seed in (few, prepared(repo, tmp_path / "seeds"))] == [1, 0]


def test_the_seed_of_another_repository_is_not_derived_from(tmp_path: Path) -> None:
    for name in ("one", "two"):
        seed = prepared(GitRepo.make(tmp_path / name, {"a": f"{name}\n"}, bare=True), tmp_path / "seeds")

    assert ancestry(seed.directory) == ()


def test_a_derived_seed_outlives_those_it_comes_from(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {f"f{n}": f"{n}\n" for n in range(9)}, bare=True)
    prepared(repo, tmp_path / "seeds")
    repo.commit({"f0": "changed\n"})
    seed = prepared(repo, tmp_path / "seeds")
    seeds_module._recent.clear()
    for name in os.listdir(tmp_path / "seeds"):
        os.utime(tmp_path / "seeds" / name, (0, 0))

    removed = prune_seeds(str(tmp_path / "seeds"), lambda: [seed.commit], remove=shutil.rmtree)

    assert len(removed) == 1
    assert_equal(prepared(repo, tmp_path / "seeds"), prepared(repo, tmp_path / "cold"))


def test_an_ancestor_that_durable_has_lost_does_not_keep_a_seed_from_being_made(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "0\n"}, bare=True)
    other = GitRepo.make(tmp_path / "other", {"a": "other\n"}, bare=True)
    lost = repo.head()
    repo.commit({"a": "1\n"})
    repo.commit({"a": "2\n"})
    prepared(other, tmp_path / "seeds")
    (repo.path / "objects" / lost[:2] / lost[2:]).unlink()

    assert_equal(prepared(repo, tmp_path / "seeds"), prepared(repo, tmp_path / "cold"))


def test_a_damaged_seed_is_not_derived_from(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "0\n"}, bare=True)
    shutil.rmtree(prepared(repo, tmp_path / "seeds").objects_dir)
    seeds_module._recent.clear()
    repo.commit({"a": "1\n"})

    assert ancestry(prepared(repo, tmp_path / "seeds").directory) == ()


def test_a_damaged_pack_is_not_copied_into_the_next_clone(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {f"f{n}": f"{n}\n" * 50 for n in range(9)}, bare=True)
    (pack,) = Path(prepared(repo, tmp_path / "seeds").pack_dir).glob("*.pack")
    repo.commit({"f1": "new\n"})
    seed = prepared(repo, tmp_path / "seeds")
    (before,) = Path(seed.pack_dir).glob("*.pack")
    before.chmod(0o600)
    data = bytearray(before.read_bytes())
    data[len(data) // 2] ^= 1
    before.write_bytes(data)
    assert before != pack, "what is damaged is the pack that the next one would be copied from, and no other seed needs"
    repo.commit({"f2": "new\n"})

    create("clone", str(tmp_path / "clone"), str(tmp_path / "state"), prepared(repo, tmp_path / "seeds"))

    git("fsck", "--strict", "--full", cwd=tmp_path / "clone")


def test_a_seed_that_was_removed_and_made_again_is_another_one(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "0\n"}, bare=True)
    first = prepared(repo, tmp_path / "seeds")
    assert first.small_files is not None
    shutil.rmtree(first.directory)
    remembered = dict(seeds_module._recent)
    prepared(repo, tmp_path / "seeds")
    seeds_module._recent.update(remembered)  # as a process that has not looked since

    again = prepared(repo, tmp_path / "seeds")

    assert again is not first
    create("clone", str(tmp_path / "clone"), str(tmp_path / "state"), again)


MAKER = """
import sys
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.git.tree import FILE, Entry
from pytest_gittrix.workspaces.seeds import on_disk
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed
from pytest_gittrix.workspaces.layers import lower_layers, make_repository_layer
on_disk._SMALL_INDEX, on_disk._MANY_OBJECTS = 0, 5
with Repository.open(sys.argv[1]) as repository:
    print("ready", flush=True)
    sys.stdin.readline()
    seed = prepare_seed(sys.argv[2], repository, repository.head("refs/heads/main"))
    seed.index, seed.packs
    lower_layers(seed)
    make_repository_layer(seed)
"""


def test_makers_that_are_killed_leave_no_bad_seed(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {f"f{n}": f"{n}\n" for n in range(40)}, bare=True)
    lower_layers(prepared(repo, tmp_path / "seeds"))
    draw = random.Random(7)
    for number in range(3):
        repo.commit({"f0": f"changed {number}\n"})
        command = [sys.executable, "-c", MAKER, str(repo.path), str(tmp_path / "seeds")]
        makers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
        for maker in makers:
            assert maker.stdout is not None
            assert maker.stdin is not None
            maker.stdout.readline()
            maker.stdin.write(b"go\n")
            maker.stdin.flush()
        for maker in makers[:2]:
            try:
                maker.wait(timeout=draw.uniform(0, 0.01))
            except subprocess.TimeoutExpired:
                maker.kill()
        for maker in makers:
            maker.communicate()
        assert makers[2].returncode == 0
        seed, cold = prepared(repo, tmp_path / "seeds"), prepared(repo, tmp_path / f"cold{number}")
        assert_equal(seed, cold)
        found = [read_by_the_engine(lower_layers(one), tmp_path / f"{name}{number}") for name, one in (("read", seed), ("fresh", cold))]
        assert found[0] == found[1]


def test_the_pages_say_these_numbers() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    page, guide = (" ".join((docs / name).read_text().split()) for name in ("reference/store.md", "how-to/choose-a-workspace.md"))

    assert f"{MOST_CHANGES:,} paths differ".replace(",", " ") in page
    assert f"After {MOST_ANCESTORS} of them" in page
    assert f"all but the {SPARE_SEEDS} youngest, as soon as there are more than {2 * SPARE_SEEDS} seeds" in page
    assert f"where more than {MOST_LAYERED} files differ, or more than a quarter of all" in guide
    assert f"{MOST_CHANGES:,} files differ from the baseline before, and after {MOST_ANCESTORS} baselines".replace(",", " ", 1) in guide
