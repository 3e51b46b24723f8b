"""A spare is the workspace that a start would have made, and one start alone gets it."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine import FILES, Site, open_site
from support.git import GitRepo, git
from support.moving import contents, edit

from pytest_gittrix.backends.local import MOST_SPARES, LocalEphemeral
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import InvalidInput, WriteRejected
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.os_level.forks import in_fork
from pytest_gittrix.workspaces import spares as spares_module
from pytest_gittrix.workspaces.kinds import KINDS, WorkspaceKind
from pytest_gittrix.workspaces.seeds import on_disk
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.spares import KINDS_WITH_SPARES, LEAST_FREE, MOST_ORDERS, SpareOrder, Spares, bring_forward
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.workspace import create, open_workspace


def prepared(repo: GitRepo, root: Path) -> Seed:
    with Repository.open(repo.path) as opened:
        return prepare_seed(str(root / "seeds"), opened, repo.head())


def made(spares: Spares, order: SpareOrder) -> None:
    """Order spares, and have them made."""
    spares.order(order)
    spares.refill()
    spares.wait()


def end_a_session(site: Site, kind: WorkspaceKind = "clone") -> None:
    """Start a session and end it, and wait for what is made then."""
    site.engine.start_session("ended at once", workspace=kind).discard()
    site.engine.services.resources.spares.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, ephemeral=LocalEphemeral(spares=1)) as site:
        yield site


@pytest.fixture
def large_site(tmp_path: Path) -> Iterator[Site]:
    """A site with more files than a start looks at."""
    files = {**FILES, **{f"many/{number}.txt": f"{number}\n" for number in range(600)}}
    with open_site(tmp_path, files, ephemeral=LocalEphemeral(spares=1)) as site:
        yield site


@pytest.mark.parametrize("kind", KINDS_WITH_SPARES)
def test_brought_forward_a_workspace_is_the_one_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: WorkspaceKind) -> None:
    monkeypatch.setattr(on_disk, "_SMALL_INDEX", 0)
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n", "d/a": "2\n", "d/e/f": "3\n", "twin/e/f": "3\n"}, bare=True)
    draw = random.Random(kind)
    spare = create(kind, str(tmp_path / "spare"), str(tmp_path / "spare-state"), prepared(repo, tmp_path))
    for number in range(20):
        edit(draw, repo)
        seed = prepared(repo, tmp_path)
        bring_forward(spare, str(tmp_path / "spare-state"), seed, "main")
        spare = open_workspace(str(tmp_path / "spare"), str(tmp_path / "spare-state"))
        create(kind, str(tmp_path / f"new{number}"), str(tmp_path / f"new-state{number}"), seed)

        assert contents(tmp_path / "spare") == contents(tmp_path / f"new{number}")
        made = seed.directories if spare.created.complete else [""]
        assert spare.created.directories == {name: os.stat(os.path.join(spare.path, name)).st_ino for name in made}
        assert not spare.snapshot().touched
        if kind == "clone":
            objects = ("cat-file", "--batch-all-objects", "--batch-check")
            assert git(*objects, cwd=tmp_path / "spare") == git(*objects, cwd=tmp_path / f"new{number}")
            assert git("status", "--porcelain", cwd=tmp_path / "spare") == b""


def test_a_start_gets_the_spare_that_was_made_when_a_session_had_ended(site: Site) -> None:
    end_a_session(site)
    (spare,) = (site.store / ".spares").iterdir()
    inode = (spare / "workspace").stat().st_ino

    session = site.start()

    assert session.workspace_path.stat().st_ino == inode
    assert session.touched_files() == []
    session.write("app.py", "print('of a spare')\n")
    assert site.durable.read("app.py", session.promote().sha) == b"print('of a spare')\n"
    assert sorted(path.name for path in site.directory(session).iterdir() if "spare" in path.name) == []


def test_when_a_session_ends_the_spare_is_brought_forward_to_the_head_of_the_branch(site: Site) -> None:
    end_a_session(site)
    (before,) = (site.store / ".spares").iterdir()
    unchanged = (before / "workspace" / "README.md").stat().st_ino
    site.durable.commit({"app.py": "print('v2')\n"})
    end_a_session(site, kind="lazy")

    second = site.start()

    assert second.read("app.py") == b"print('v2')\n"
    assert (second.workspace_path / "README.md").stat().st_ino == unchanged
    assert second.touched_files() == []


def test_a_start_makes_no_spare(site: Site) -> None:
    session = site.start()
    site.engine.services.resources.spares.wait()
    assert not (site.store / ".spares").exists()

    session.write("app.py", "print('v2')\n")
    session.promote()
    site.engine.services.resources.spares.wait()
    assert len([*(site.store / ".spares").iterdir()]) == 1


def test_an_agent_that_changes_a_spare_of_its_own_is_seen(site: Site) -> None:
    end_a_session(site)
    session = site.start()

    (session.workspace_path / "app.py").write_text("print('changed')\n")
    (session.workspace_path / "README.md").unlink()

    assert session.touched_files() == ["README.md", "app.py"]


def test_of_many_starts_one_gets_a_spare(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"}, bare=True)
    seed = prepared(repo, tmp_path)
    spares = Spares(str(tmp_path / "spares"), Trash(str(tmp_path / "trash")), sync=False)
    order = SpareOrder("clone", "main", "durable", lambda: seed, most=3)
    made(spares, order)
    others = [Spares(str(tmp_path / "spares"), Trash(str(tmp_path / "trash")), sync=False) for _ in range(8)]
    taken: list[object] = []
    start = threading.Barrier(len(others))

    def take(number: int) -> None:
        start.wait()
        taken.append(others[number].take(order, seed, str(tmp_path / f"w{number}"), str(tmp_path / f"s{number}")))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(others))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len([one for one in taken if one is not None]) == 3
    assert not [*(tmp_path / "spares").iterdir()]
    assert len([*tmp_path.glob("w*")]) == 3


MAKER = """
import sys
from pathlib import Path
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed
from pytest_gittrix.workspaces.spares import SpareOrder, Spares
from pytest_gittrix.workspaces.trash import Trash
root = Path(sys.argv[1])
with Repository.open(root / "durable") as repository:
    spares = Spares(str(root / "spares"), Trash(str(root / "trash")), sync=False)
    print("ready", flush=True)
    sys.stdin.readline()
    seed = lambda: prepare_seed(str(root / "seeds"), repository, repository.head("refs/heads/main"))
    spares.order(SpareOrder("clone", "main", "durable", seed, 2))
    spares.refill()
    spares.wait()
"""


def test_a_maker_that_is_killed_leaves_no_spare_that_is_half_made(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {f"d{number}/f": f"{number}\n" for number in range(60)}, bare=True)
    for delay in (0.002, 0.006, 0.01, 60):
        maker = subprocess.Popen([sys.executable, "-c", MAKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert maker.stdout is not None
        maker.stdout.readline()
        try:
            maker.communicate(b"go\n", timeout=delay)
        except subprocess.TimeoutExpired:
            maker.kill()
            maker.communicate()
        for path in (tmp_path / "spares").glob("[!t]*"):
            spare = open_workspace(str(path / "workspace"), str(path / "engine"))
            assert not spare.snapshot().touched
            assert git("status", "--porcelain", cwd=path / "workspace") == b""
        repo.commit({"d1/f": f"{delay}\n"})
    assert len([*(tmp_path / "spares").glob("[!t]*")]) == 2


def test_what_nobody_comes_for_is_removed_after_a_day(tmp_path: Path) -> None:
    spares = Spares(str(tmp_path / "spares"), Trash(str(tmp_path / "trash")), sync=False)
    for name, age in (("tmp_killed", 90_000), ("fresh", 0)):
        (tmp_path / "spares" / name).mkdir(parents=True)
        then = (tmp_path / "spares").stat().st_mtime - age
        os.utime(tmp_path / "spares" / name, (then, then))

    spares.prune()

    assert [path.name for path in (tmp_path / "spares").iterdir()] == ["fresh"]


def ordered(root: Path, *branches: str, sync: bool = False) -> tuple[Spares, Seed, dict[str, SpareOrder]]:
    """Spares of a small repository, one made for each branch, the last of them ordered last."""
    if not (root / "durable").exists():
        GitRepo.make(root / "durable", {"a": "1\n"}, bare=True)
    seed = prepared(GitRepo(root / "durable", bare=True), root)
    spares = Spares(str(root / "spares"), Trash(str(root / "trash")), sync=sync)
    orders = {branch: SpareOrder("clone", branch, "durable", lambda: seed, most=1) for branch in branches}
    for order in orders.values():
        made(spares, order)
    return spares, seed, orders


def taken(spares: Spares, order: SpareOrder, seed: Seed, root: Path) -> bool:
    path = root / f"taken-{len([*root.iterdir()])}"
    return spares.take(order, seed, str(path), f"{path}-state") is not None


def damage_the_note(spare: Path) -> None:
    (spare / "engine" / "workspace.json").write_bytes(b"")


def lose_the_note(spare: Path) -> None:
    shutil.rmtree(spare / "engine")


def lose_the_files(spare: Path) -> None:
    shutil.rmtree(spare / "workspace")


def be_a_file(spare: Path) -> None:
    shutil.rmtree(spare)
    spare.touch()


@pytest.mark.parametrize("damage", [damage_the_note, lose_the_note, lose_the_files, be_a_file])
def test_a_damaged_spare_goes_to_the_trash_and_the_next_one_is_taken(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    _, seed, orders = ordered(tmp_path, "main")
    damage(next((tmp_path / "spares").iterdir()))
    other = Spares(str(tmp_path / "spares"), Trash(str(tmp_path / "trash")), sync=False)
    (path, state) = (tmp_path / "sessions" / name for name in ("workspace", "engine"))
    path.parent.mkdir()

    assert other.take(orders["main"], seed, str(path), str(state)) is None
    assert not [*path.parent.iterdir()]
    assert not [*(tmp_path / "spares").iterdir()]
    made(other, orders["main"])
    assert other.take(orders["main"], seed, str(path), str(state)) is not None


def test_a_start_that_finds_a_damaged_spare_makes_its_own_workspace(site: Site) -> None:
    end_a_session(site)
    damage_the_note(next((site.store / ".spares").iterdir()))

    with closing(GitTrix(site.durable.path, LocalEphemeral(spares=1), store=site.store, sweep_interval=None)) as engine:
        session = engine.start_session("another process")
        assert session.touched_files() == []
        assert session.read("app.py")


def test_a_spare_that_was_not_written_through_is_nobodys_after_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sync in (False, True):
        spares, seed, orders = ordered(tmp_path, "main", sync=sync)
        with monkeypatch.context() as patch:
            patch.setattr(spares_module, "_boot", lambda: "the next boot")
            assert taken(spares, orders["main"], seed, tmp_path) is sync
        assert taken(spares, orders["main"], seed, tmp_path) is not sync


def test_spares_are_private_to_their_owner(site: Site) -> None:
    (site.store / ".spares").mkdir(mode=0o755, parents=True)
    end_a_session(site)

    assert stat.S_IMODE((site.store / ".spares").stat().st_mode) == 0o700


def test_the_spares_of_the_branches_that_were_ordered_last_stay(tmp_path: Path) -> None:
    branches = [f"b{number}" for number in range(MOST_ORDERS)]
    spares, seed, orders = ordered(tmp_path, *branches)
    spares.order(orders["b0"])
    one_more = SpareOrder("clone", "one more", "durable", lambda: seed, most=1)
    made(spares, one_more)

    assert len([*(tmp_path / "spares").iterdir()]) == MOST_ORDERS
    assert not taken(spares, orders["b1"], seed, tmp_path)
    assert taken(spares, orders["b0"], seed, tmp_path)
    assert taken(spares, one_more, seed, tmp_path)


def test_the_spares_of_a_branch_that_is_gone_go_too(tmp_path: Path) -> None:
    spares, seed, orders = ordered(tmp_path, "main")
    asked: list[str] = []

    def refused() -> Seed:
        asked.append("topic")
        if len(asked) > 1:
            raise InvalidInput("There is no branch topic.")
        return seed

    made(spares, SpareOrder("clone", "topic", "durable", refused, most=1))
    assert len([*(tmp_path / "spares").iterdir()]) == 2

    for _ in range(3):
        spares.refill()
        spares.wait()

    assert len(asked) == 2, "it is forgotten"
    assert len([*(tmp_path / "spares").iterdir()]) == 1
    assert taken(spares, orders["main"], seed, tmp_path)


def test_what_is_remembered_of_a_spare_goes_with_it(tmp_path: Path) -> None:
    spares, seed, orders = ordered(tmp_path, "main")
    other = Spares(str(tmp_path / "spares"), Trash(str(tmp_path / "trash")), sync=False)
    for _ in range(3):
        assert taken(other, orders["main"], seed, tmp_path)
        spares.refill()
        spares.wait()

    assert {*spares._created} == {path.name for path in (tmp_path / "spares").iterdir()}


def test_a_spare_that_is_being_brought_forward_is_not_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spares, _, orders = ordered(tmp_path, "main")
    os.utime(next((tmp_path / "spares").iterdir()), (0, 0))
    repo = GitRepo(tmp_path / "durable", bare=True)
    repo.commit({"a": "2\n"})
    seed = prepared(repo, tmp_path)

    def pruned_meanwhile(*arguments: Any) -> None:
        spares.prune()
        bring_forward(*arguments)

    monkeypatch.setattr(spares_module, "bring_forward", pruned_meanwhile)
    inode = next((tmp_path / "spares").iterdir()).stat().st_ino
    made(spares, replace(orders["main"], seed=lambda: seed))

    assert [path.stat().st_ino for path in (tmp_path / "spares").iterdir()] == [inode]
    assert taken(spares, orders["main"], seed, tmp_path)


def test_after_close_nothing_is_made(tmp_path: Path) -> None:
    spares, seed, orders = ordered(tmp_path, "main")
    spares.close()

    assert taken(spares, orders["main"], seed, tmp_path)
    made(spares, orders["main"])
    assert not [*(tmp_path / "spares").iterdir()]


def test_a_forked_process_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held(tmp_path: Path) -> None:
    spares, _, orders = ordered(tmp_path, "main")

    def in_child() -> None:
        spares.order(orders["main"])
        spares.refill()
        spares.close()

    with spares._lock:
        assert not in_fork(in_child, timeout=20).timed_out


def test_no_spare_is_made_while_the_disk_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: space._replace(free=LEAST_FREE - 1))
    spares, _, orders = ordered(tmp_path, "main")
    assert not [*(tmp_path / "spares").iterdir()]

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: space._replace(free=LEAST_FREE))
    made(spares, orders["main"])
    assert len([*(tmp_path / "spares").iterdir()]) == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in KINDS_WITH_SPARES])
def test_no_spare_is_made_of_the_other_kinds(site: Site, kind: WorkspaceKind) -> None:
    end_a_session(site, kind)

    assert not (site.store / ".spares").exists()


def test_no_spare_is_made_of_a_remote_repository(site: Site) -> None:
    session = site.engine.start_session("of a remote", durable_ref=f"file://{site.durable.git_dir}#main")
    assert session.read("app.py")
    session.discard()
    site.engine.services.resources.spares.wait()

    assert not (site.store / ".spares").exists()


@pytest.mark.parametrize("spares", [-1, MOST_SPARES + 1, True, 1.5, "two"])
def test_what_is_no_number_of_spares_is_refused(spares: object) -> None:
    with pytest.raises(InvalidInput, match=f"from 0 to {MOST_SPARES}"):
        LocalEphemeral(spares=spares)  # type: ignore[arg-type]


def remove_a_file(work: Path) -> None:
    (work / "src/util.py").unlink()


def add_a_file(work: Path) -> None:
    (work / "src/sitecustomize.py").write_text("print('hello')\n")


def rename_a_file(work: Path) -> None:
    (work / "app.py").rename(work / "application.py")


def replace_a_directory(work: Path) -> None:
    shutil.move(work / "src", work / "other")
    (work / "src").mkdir()


def remove_everything(work: Path) -> None:
    for path in work.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def change_the_branch(work: Path) -> None:
    (work / ".git/HEAD").write_text("ref: refs/heads/other\n")


def cut_the_pack(work: Path) -> None:
    (pack,) = (work / ".git/objects/pack").glob("*.pack")
    pack.chmod(0o600)
    os.truncate(pack, 20)


def empty_the_index(work: Path) -> None:
    os.truncate(work / ".git/index", 0)


def empty_the_note(work: Path) -> None:
    os.truncate(work.parent / "engine/workspace.json", 0)


def lose_the_state(work: Path) -> None:
    shutil.rmtree(work.parent / "engine")


def empty_a_file(work: Path) -> None:
    os.truncate(work / "app.py", 0)


def edit_a_file(work: Path) -> None:
    with (work / "src/util.py").open("a") as file:
        file.write("more\n")


def make_a_file_executable(work: Path) -> None:
    (work / "app.py").chmod(0o755)


def spare_of(site: Site) -> Path:
    """The workspace of the only spare, once whoever changes it does so later than it was made."""
    (spare,) = (site.store / ".spares").iterdir()
    stamp, probe = (spare / "engine/stamp").stat().st_ctime_ns, site.root / "probe"
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_ctime_ns > stamp:
            return spare / "workspace"


def take_the_spare(site: Site, *, in_the_same_engine: bool) -> GitTrix:
    """The engine that finds the spare: the one that made it, or another one, once the kernel's time has moved on."""
    latest = max(
        os.lstat(os.path.join(parent, name)).st_ctime_ns for parent, _, names in os.walk(site.store / ".spares") for name in [*names, "."]
    )
    while (site.root / "probe").stat().st_ctime_ns <= latest:
        (site.root / "probe").write_bytes(b"x")
    return site.engine if in_the_same_engine else site.another()


@pytest.mark.parametrize("in_the_same_engine", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        remove_a_file,
        add_a_file,
        rename_a_file,
        replace_a_directory,
        remove_everything,
        change_the_branch,
        cut_the_pack,
        empty_the_index,
        empty_the_note,
        lose_the_state,
        empty_a_file,
        edit_a_file,
        make_a_file_executable,
    ],
)
def test_a_spare_that_was_changed_is_thrown_away(site: Site, damage: Callable[[Path], None], in_the_same_engine: bool) -> None:
    end_a_session(site)
    work = spare_of(site)
    inode = work.stat().st_ino
    damage(work)

    session = take_the_spare(site, in_the_same_engine=in_the_same_engine).start_session("the next")

    root = Path(str(session.workspace_path))
    assert root.stat().st_ino != inode
    assert session.touched_files() == []
    assert git("status", "--porcelain", "--branch", cwd=root) == b"## main\n"
    git("fsck", "--full", "--no-dangling", cwd=root)


@pytest.mark.parametrize("in_the_same_engine", [True, False])
@pytest.mark.parametrize(("damage", "path"), [(empty_a_file, "app.py"), (edit_a_file, "src/util.py"), (make_a_file_executable, "app.py")])
def test_a_file_that_was_changed_in_a_large_spare_is_never_promoted(
    large_site: Site, damage: Callable[[Path], None], path: str, in_the_same_engine: bool
) -> None:
    site = large_site
    end_a_session(site)
    work = spare_of(site)
    inode = work.stat().st_ino
    damage(work)

    session = take_the_spare(site, in_the_same_engine=in_the_same_engine).start_session("the next")

    assert Path(str(session.workspace_path)).stat().st_ino == inode
    session.write("new.py", "new\n")
    assert session.touched_files() == sorted(["new.py", path])
    assert "it was changed before its session began" in session.review().refused[path]
    with pytest.raises(WriteRejected, match=path):
        session.promote()
    reopened = site.another().get_session(session.id)
    assert reopened.review().refused.keys() == {path}
    reopened.write(path, "mended\n")
    assert reopened.review().refused == {}
    assert site.durable.changed(reopened.promote().sha).keys() == {"new.py", path}
    assert site.durable.read(path) == b"mended\n"


def test_a_store_that_was_copied_takes_no_work_for_damage(site: Site) -> None:
    end_a_session(site)
    session = site.start()
    (work := Path(str(session.workspace_path))).joinpath("app.py").write_text("work\n")
    shutil.copytree(site.store, site.root / "copy", symlinks=True)
    with closing(GitTrix(site.durable.path, LocalEphemeral(), store=site.root / "copy", clock=site.clock, sweep_interval=None)) as engine:
        assert engine.get_session(session.id).touched_files() == ["app.py"]
    os.chmod(work / "app.py", 0o600)
    assert session.touched_files() == ["app.py"]
