"""A spare is the workspace that a start would have made, and one start alone gets it."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Site, open_site
from support.git import GitRepo, git
from support.moving import edit

from pytest_gittrix.backends.local import MOST_SPARES, LocalEphemeral
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.workspaces import seed_files
from pytest_gittrix.workspaces.seed import Seed, prepare_seed
from pytest_gittrix.workspaces.spares import KINDS_WITH_SPARES, SpareOrder, Spares, bring_forward
from pytest_gittrix.workspaces.workspace import Trash, WorkspaceKind, create, open_workspace


def prepared(repo: GitRepo, root: Path) -> Seed:
    with Repository.open(repo.path) as opened:
        return prepare_seed(str(root / "seeds"), opened, repo.head())


def contents(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a directory: its mode, its time if it is no directory, and its bytes. Names of packs have no meaning."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        name = str(path.relative_to(root))
        if stat.S_ISDIR(status.st_mode):
            found[name] = status.st_mode, 0, b""
        elif ".git/objects/pack/" not in name:
            data = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            found[name] = status.st_mode, 0 if name.startswith(".git/") else status.st_mtime_ns, data
    return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, ephemeral=LocalEphemeral(spares=1)) as site:
        yield site


@pytest.mark.parametrize("kind", KINDS_WITH_SPARES)
def test_brought_forward_a_workspace_is_the_one_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: WorkspaceKind) -> None:
    monkeypatch.setattr(seed_files, "_SMALL_INDEX", 0)
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
        assert spare.created.directories == {name: os.stat(os.path.join(spare.path, name)).st_ino for name in seed.directories}
        assert not spare.snapshot().touched
        if kind == "clone":
            objects = ("cat-file", "--batch-all-objects", "--batch-check")
            assert git(*objects, cwd=tmp_path / "spare") == git(*objects, cwd=tmp_path / f"new{number}")
            assert git("status", "--porcelain", cwd=tmp_path / "spare") == b""


def test_a_second_start_gets_the_spare_that_was_made_since_the_first(site: Site) -> None:
    site.start()
    site.engine.services.resources.spares.wait()
    (spare,) = (site.store / ".spares").iterdir()
    inode = (spare / "workspace").stat().st_ino

    session = site.start()

    assert session.workspace_path.stat().st_ino == inode
    assert session.touched_files() == []
    session.write("app.py", "print('of a spare')\n")
    assert site.durable.read("app.py", session.promote().sha) == b"print('of a spare')\n"
    assert sorted(path.name for path in site.directory(session).iterdir() if "spare" in path.name) == []


def test_a_promotion_brings_the_spare_forward(site: Site) -> None:
    session = site.start()
    spares = site.engine.services.resources.spares
    spares.wait()
    (before,) = (site.store / ".spares").iterdir()
    unchanged = (before / "workspace" / "README.md").stat().st_ino
    session.write("app.py", "print('v2')\n")
    session.promote()
    spares.wait()

    second = site.start()

    assert second.read("app.py") == b"print('v2')\n"
    assert (second.workspace_path / "README.md").stat().st_ino == unchanged
    assert second.touched_files() == []


def test_an_agent_that_changes_a_spare_of_its_own_is_seen(site: Site) -> None:
    site.start()
    site.engine.services.resources.spares.wait()
    session = site.start()

    (session.workspace_path / "app.py").write_text("print('changed')\n")
    (session.workspace_path / "README.md").unlink()

    assert session.touched_files() == ["README.md", "app.py"]


def test_of_many_starts_one_gets_a_spare(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"}, bare=True)
    seed = prepared(repo, tmp_path)
    spares = Spares(str(tmp_path / "spares"), Trash(str(tmp_path / "trash")), sync=False)
    order = SpareOrder("clone", "main", "durable", lambda: seed, most=3)
    spares.order(order)
    spares.wait()
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
from pytest_gittrix.workspaces.seed import prepare_seed
from pytest_gittrix.workspaces.spares import SpareOrder, Spares
from pytest_gittrix.workspaces.workspace import Trash
root = Path(sys.argv[1])
with Repository.open(root / "durable") as repository:
    spares = Spares(str(root / "spares"), Trash(str(root / "trash")), sync=False)
    print("ready", flush=True)
    sys.stdin.readline()
    seed = lambda: prepare_seed(str(root / "seeds"), repository, repository.head("refs/heads/main"))
    spares.order(SpareOrder("clone", "main", "durable", seed, 2))
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


@pytest.mark.parametrize("spares", [-1, MOST_SPARES + 1, True, 1.5, "two"])
def test_what_is_no_number_of_spares_is_refused(spares: object) -> None:
    with pytest.raises(InvalidInput, match=f"from 0 to {MOST_SPARES}"):
        LocalEphemeral(spares=spares)  # type: ignore[arg-type]
