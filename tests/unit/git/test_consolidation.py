"""The packs of many promotions become one; nothing that they held is lost, and no pack of anybody else is touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine import at_point, kill_at
from support.git import FORMATS, GitRepo

from pytest_gittrix.git.consolidation import MOST_PACKS, consolidate, finish
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.git.objects import SHA1, object_format
from pytest_gittrix.git.pack import build_pack, install_pack, join_packed, packed_objects
from pytest_gittrix.os_level.monotonic import real_wall_seconds

LANDED = "1" * 40
PERSONS = {f"src/{number}": f"{number}\n" * 50 for number in range(20)}


class Packed:
    """A repository with packs as promotions leave them, one object each.

    Attributes:
        repo: the repository.
        ids: what the packs hold.
    """

    def __init__(self, root: Path, count: int = MOST_PACKS + 1, object_format_name: str = "sha1") -> None:
        self.repo = GitRepo.make(root / "durable", PERSONS, object_format=object_format_name)
        self.format = object_format(object_format_name)
        self.objects = str(self.repo.git_dir / "objects")
        self.ids = [self.add(b"%d\n" % number) for number in range(count)]

    def add(self, data: bytes) -> str:
        """Install one more pack, as a promotion does."""
        id_ = self.format.hash_object("blob", data)
        install_pack(self.objects, build_pack({id_: ("blob", data)}, self.format), mode=0o444)
        return id_

    def packs(self) -> set[str]:
        """The names of the packs without suffix. Each must be whole."""
        found = {suffix: {path.stem for path in Path(self.objects, "pack").glob(f"*{suffix}")} for suffix in (".pack", ".idx")}
        assert found[".pack"] == found[".idx"]
        return found[".pack"]

    def consolidate(self, landed: str = LANDED) -> bool:
        return consolidate(self.objects, landed, self.format)

    def judge(self) -> None:
        """Fail unless git has every object, and finds the repository sound."""
        self.repo.fsck()
        for number, id_ in enumerate(self.ids):
            assert self.repo.git("cat-file", "blob", id_) == b"%d\n" % number


@pytest.mark.parametrize("object_format_name", FORMATS)
def test_many_packs_become_one_that_holds_all(tmp_path: Path, object_format_name: str) -> None:
    packed = Packed(tmp_path, object_format_name=object_format_name)
    before = packed.packs()
    assert packed.consolidate()
    assert len(packed.packs()) == len(before) - MOST_PACKS
    assert len(packed.packs() - before) == 1
    packed.judge()
    assert {path.stat().st_mode & 0o777 for path in Path(packed.objects, "pack").iterdir()} == {0o444}


def test_few_packs_stay(tmp_path: Path) -> None:
    packed = Packed(tmp_path, MOST_PACKS)
    before = packed.packs()
    assert not packed.consolidate()
    assert packed.packs() == before


def test_what_became_one_pack_becomes_one_with_the_next_ones(tmp_path: Path) -> None:
    packed = Packed(tmp_path)
    assert packed.consolidate()
    packed.ids += [packed.add(b"%d\n" % number) for number in range(MOST_PACKS + 1, 2 * MOST_PACKS + 1)]
    assert packed.consolidate("2" * 40)
    assert len(packed.packs()) == 1
    packed.judge()


def test_a_pack_of_that_name_is_never_taken_for_the_new_one(tmp_path: Path) -> None:
    packed = Packed(tmp_path)
    assert packed.consolidate()
    packed.ids += [packed.add(b"%d\n" % number) for number in range(MOST_PACKS + 1, 2 * MOST_PACKS + 1)]
    before = packed.packs()
    assert not packed.consolidate()
    assert packed.packs() == before
    packed.judge()


def beside(suffix: str) -> Callable[[Packed, str], None]:
    def put(packed: Packed, name: str) -> None:
        Path(packed.objects, "pack", name + suffix).write_bytes(b"")

    return put


def listed(packed: Packed, name: str) -> None:
    Path(packed.objects, "info").mkdir(exist_ok=True)
    Path(packed.objects, "info/packs").write_text(f"P {name}.pack\n\n")


def damaged(packed: Packed, name: str) -> None:
    path = Path(packed.objects, "pack", f"{name}.pack")
    data = bytearray(path.read_bytes())
    data[-25] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("make", [*map(beside, (".keep", ".bitmap", ".rev", ".mtimes", ".promisor")), listed, damaged])
def test_a_pack_that_something_else_refers_to_and_a_damaged_one_stay(tmp_path: Path, make: Callable[[Packed, str], None]) -> None:
    packed = Packed(tmp_path, MOST_PACKS + 2)
    name = min(packed.packs())
    make(packed, name)
    assert packed.consolidate()
    assert name in packed.packs()
    assert len(packed.packs()) == 2


def test_large_packs_and_those_that_git_made_stay(tmp_path: Path) -> None:
    packed = Packed(tmp_path)
    ours = packed.packs()
    packed.repo.git("repack", "-dnq")  # the person's own commit
    packed.add(os.urandom(1 << 20))
    others = packed.packs() - ours
    assert packed.consolidate()
    assert (len(others), packed.packs() & (ours | others)) == (2, others)
    packed.judge()


@pytest.mark.needs_root
def test_a_pack_of_another_user_stays(tmp_path: Path) -> None:
    packed = Packed(tmp_path, MOST_PACKS + 2)
    theirs = min(Path(packed.objects, "pack").glob("*.pack"))
    os.chown(theirs, 65534, 65534)
    assert packed.consolidate()
    assert theirs.exists()


def an_index_of_several(packed: Packed) -> None:
    packed.repo.git("multi-pack-index", "write")


def a_running_gc(packed: Packed) -> None:
    (packed.repo.git_dir / "gc.pid").write_text("1 host")


@pytest.mark.parametrize("make", [an_index_of_several, a_running_gc])
def test_where_git_is_at_work_or_has_an_index_of_several_packs_all_stay(tmp_path: Path, make: Callable[[Packed], None]) -> None:
    packed = Packed(tmp_path)
    make(packed)
    before = packed.packs()
    assert not packed.consolidate()
    assert packed.packs() == before


def test_the_note_of_a_gc_that_died_holds_up_nothing(tmp_path: Path) -> None:
    packed = Packed(tmp_path)
    a_running_gc(packed)
    yesterday = real_wall_seconds() - 24 * 3600
    os.utime(packed.repo.git_dir / "gc.pid", (yesterday, yesterday))
    assert packed.consolidate()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_reader_that_has_the_packs_open_finds_everything(tmp_path: Path, moment: str) -> None:
    packed = Packed(tmp_path)
    command = [git_binary(), "cat-file", "--batch-check"]
    with subprocess.Popen(
        command, cwd=packed.repo.path, env=hermetic_env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def ask(id_: str) -> str:
            print(id_, file=reader.stdin, flush=True)
            return reader.stdout.readline() if reader.stdout else ""

        if moment == "before":
            assert all("blob" in ask(id_) for id_ in packed.ids[:5])
        else:
            assert "missing" in ask("0" * 40)  # it has listed the packs, and mapped each index
        assert packed.consolidate()
        assert all("blob" in ask(id_) for id_ in packed.ids)
        reader.stdin.close()


def test_a_gc_in_the_middle_loses_nothing_that_a_branch_leads_to(tmp_path: Path) -> None:
    packed = Packed(tmp_path)
    commit = packed.repo.commit({f"blob{number}": f"{number}\n" for number in range(len(packed.ids))})
    with at_point("land:consolidated", lambda: packed.repo.git("gc", "-q", "--prune=now")):
        assert packed.consolidate()
    assert packed.repo.head() == commit
    packed.judge()


@pytest.mark.parametrize("half", ["none", "data", "whole"])
def test_a_killed_consolidation_is_finished(tmp_path: Path, half: str) -> None:
    packed = Packed(tmp_path)
    before = packed.packs()
    kill_at("land:consolidated", packed.consolidate)
    assert len(packed.packs()) == len(before) + 1
    name = min(before)
    for suffix in {"none": (), "data": (".pack",), "whole": (".pack", ".idx")}[half]:
        Path(packed.objects, "pack", name + suffix).unlink()
    finish(packed.objects, LANDED, SHA1)
    assert len(packed.packs()) == len(before) - MOST_PACKS
    packed.judge()


def test_a_pack_that_was_not_finished_is_removed_and_its_sources_stay(tmp_path: Path) -> None:
    packed = Packed(tmp_path)
    before = packed.packs()
    kill_at("land:consolidated", packed.consolidate)
    (name,) = packed.packs() - before
    Path(packed.objects, "pack", f"{name}.idx").unlink()
    Path(packed.objects, "pack", f"tmp_idx_{name.removeprefix('pack-')[:20]}-x").write_bytes(b"half")
    finish(packed.objects, LANDED, SHA1)
    assert packed.packs() == before
    assert not [*Path(packed.objects, "pack").glob("tmp_*")]
    packed.judge()


def test_a_damaged_result_takes_nothing_away(tmp_path: Path) -> None:
    packed = Packed(tmp_path)
    before = packed.packs()
    kill_at("land:consolidated", packed.consolidate)
    (name,) = packed.packs() - before
    damaged(packed, name)
    finish(packed.objects, LANDED, SHA1)
    assert packed.packs() == before | {name}


@pytest.mark.parametrize("count", [0, 1, 40])
def test_what_a_pack_of_ours_holds_makes_the_same_pack_again(count: int) -> None:
    blobs = [b"%d" % number * number for number in range(count)]
    pack = build_pack({SHA1.hash_object("blob", data): ("blob", data) for data in blobs}, SHA1)
    packed = packed_objects(pack.data, pack.index, SHA1)
    assert packed is not None
    assert join_packed(packed, SHA1) == pack
    assert packed_objects(pack.data, pack.index[:-1] + bytes([pack.index[-1] ^ 1]), SHA1) is None
    assert packed_objects(pack.data[:-1] + bytes([pack.data[-1] ^ 1]), pack.index, SHA1) is None
