"""A repository that a group shares: what a promotion writes there has git's modes, so that others can commit after it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.engine import DurableGit, Site, open_site

from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.errors import AdapterUnavailable, GitFailed
from pytest_gittrix.git.git_directory import shared_mode

SETTINGS = ("true", "all", "0640", "umask", None)
GROUP, MEMBER = 54321, 54322


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def share(repository: DurableGit, setting: str | None) -> None:
    if setting is not None:
        repository.git("config", "core.sharedRepository", setting)
    shutil.rmtree(repository.git_dir / "objects/pack")
    shutil.rmtree(repository.git_dir / "logs", ignore_errors=True)


def modes(repository: DurableGit) -> dict[str, str]:
    """The mode of each file and directory that a commit and a fetch write, by a name without the pack's checksum."""
    paths = [repository.git_dir / "index", *(path for top in ("refs/heads", "logs") for path in (repository.git_dir / top).rglob("*"))]
    paths += [repository.git_dir / "objects/pack", *(repository.git_dir / "objects/pack").iterdir()]
    kept = [path for path in paths if path.suffix != ".rev" and path.exists()]
    return {re.sub(r"-[0-9a-f]{40,}", "-*", str(path.relative_to(repository.git_dir))): stat.filemode(path.stat().st_mode) for path in kept}


def promote(site: Site, durable: LocalDurable) -> str:
    """Promote a change to the branch that is checked out and one to a new branch, whose name is returned, with the default durability."""
    engine = site.another(durable=durable, durability="full")
    session = engine.start_session("on the branch")
    session.write("app.py", "an agent's\n")
    session.promote(strategy="commit")
    beside = engine.start_session("beside it")
    beside.write("new.py", "an agent's\n")
    branch = beside.promote(strategy="branch").branch
    assert branch is not None
    return branch


def as_git_does(repository: DurableGit, other: DurableGit, branch: str) -> None:
    """A commit on the branch that is checked out, and a fetch of a new branch as a pack."""
    (repository.path / "app.py").write_text("app.py of a person\n")
    repository.git("-c", "user.name=P", "-c", "user.email=p@example.com", "commit", "-qam", "change")
    other.commit({"x": "y"}, branch="other")
    repository.git("-c", "fetch.unpackLimit=1", "fetch", "-q", str(other.path), f"other:{branch}")


@pytest.mark.parametrize("mask", [0o022, 0o077])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_promotion_writes_with_the_modes_of_git(tmp_path: Path, setting: str | None, mask: int) -> None:
    twin, other = DurableGit.make(tmp_path / "twin"), DurableGit.make(tmp_path / "other")
    with open_site(tmp_path) as site:
        for repository in (site.durable, twin):
            share(repository, setting)
        with umask(mask):
            branch = promote(site, LocalDurable(site.durable.path, author=("Human", "human@example.com")))
            as_git_does(twin, other, branch)

        ours, theirs = modes(site.durable), modes(twin)

    written = {"index", "refs/heads/main", f"refs/heads/{branch}", f"logs/refs/heads/{branch}", "objects/pack", "objects/pack/pack-*.idx"}
    assert written <= ours.keys()
    assert ours == theirs


def test_a_linked_work_tree_leaves_the_others_room_for_theirs(tmp_path: Path) -> None:
    twin = DurableGit.make(tmp_path / "twin")
    with open_site(tmp_path) as site:
        for repository in (site.durable, twin):
            share(repository, "group")
        with umask(0o077):
            site.start(workspace="worktree")
            twin.git("worktree", "add", "-q", "--detach", str(tmp_path / "linked"))

        entries = [repository.git_dir / "worktrees" for repository in (site.durable, twin)]

        assert [stat.filemode(path.stat().st_mode) for path in entries] == ["drwxrws---"] * 2


@pytest.fixture
def shared_place() -> Iterator[Path]:
    """A directory that every user may pass through, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.needs_root
def test_another_member_of_the_group_commits_after_a_promotion(shared_place: Path) -> None:
    (shared_place / "config").write_text("[safe]\n\tdirectory = *\n[user]\n\tname = M\n\temail = m@example.com\n")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    environment["GIT_CONFIG_GLOBAL"] = str(shared_place / "config")

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(site.durable.path), *arguments]
        done = subprocess.run(command, env=environment, user=MEMBER, group=MEMBER, extra_groups=[GROUP], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    with open_site(shared_place) as site:
        share(site.durable, "group")
        for path in (site.durable.path, *site.durable.path.rglob("*")):
            os.chown(path, -1, GROUP, follow_symlinks=False)
            if path.is_dir():
                path.chmod(0o2775)
        with umask(0o077):
            branch = promote(site, LocalDurable(site.durable.path, author=("Human", "human@example.com")))
        (site.durable.path / "by the member").touch()

        git("add", "by the member")
        git("commit", "-qm", "the member's")
        git("branch", f"{branch}-again", branch)
        git("fsck", "--strict")

        assert site.durable.git("log", "-1", "--format=%an", "main") == "M"


class TestTheRuleForModes:
    """``core.sharedRepository`` of ``git help config``, of a file, of a directory and of a pack."""

    FILE, PRIVATE, PACK, DIRECTORY = stat.S_IFREG | 0o644, stat.S_IFREG | 0o600, stat.S_IFREG | 0o400, stat.S_IFDIR | 0o700

    @pytest.mark.parametrize(
        ("setting", "file", "private", "pack", "directory"),
        [
            (None, 0o644, 0o600, 0o400, 0o700),
            ("umask", 0o644, 0o600, 0o400, 0o700),
            ("group", 0o664, 0o660, 0o440, 0o2770),
            ("all", 0o664, 0o664, 0o444, 0o2775),
            ("0640", 0o640, 0o640, 0o440, 0o2750),
            ("0600", 0o600, 0o600, 0o400, 0o700),
        ],
    )
    def test_adds_or_replaces_bits(self, setting: str | None, file: int, private: int, pack: int, directory: int) -> None:
        given = [shared_mode(setting, mode) for mode in (self.FILE, self.PRIVATE, self.PACK, self.DIRECTORY)]

        assert [stat.S_IMODE(mode) for mode in given] == [file, private, pack, directory]
        assert [stat.S_IFMT(mode) for mode in given] == [stat.S_IFREG, stat.S_IFREG, stat.S_IFREG, stat.S_IFDIR]

    @pytest.mark.parametrize(
        ("setting", "same"),
        [("true", "group"), ("1", "group"), ("world", "all"), ("everybody", "all"), ("2", "all"), ("0", "umask"), ("No", "umask")],
    )
    def test_knows_the_other_spellings(self, setting: str, same: str) -> None:
        assert shared_mode(setting, self.DIRECTORY) == shared_mode(same, self.DIRECTORY)

    @pytest.mark.parametrize("setting", ["everyone", "0440", "group,"])
    def test_refuses_a_value_that_git_refuses(self, tmp_path: Path, setting: str) -> None:
        repository = DurableGit.make(tmp_path / "durable")
        share(repository, setting)

        with pytest.raises(GitFailed):
            repository.git("update-ref", "refs/heads/other", "main")
        with pytest.raises(AdapterUnavailable, match=r"core\.sharedRepository"):
            LocalDurable(repository.path)
