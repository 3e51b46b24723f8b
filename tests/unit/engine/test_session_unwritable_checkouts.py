"""A checkout that the system does not let be brought forward: the promotion is refused, or the next commit there takes nothing back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import Site, at_point, in_child, kill_at, open_site
from support.git import try_git

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import WorktreeUnwritable
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.os_level import linux
from pytest_gittrix.testing.faults.small_disks import run_on_small_disk, supported

with_mounts = pytest.mark.skipif(supported() is not None, reason=str(supported()))
FILES = {"app.py": "1\n", "src/a.py": "1\n", "src/b.py": "1\n"}
_GET_FLAGS, _SET_FLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10


def work(site: Site) -> UserSession:
    """A session with an edit, a new file and a deletion."""
    session = site.start()
    session.write("src/a.py", "2\n")
    session.write("src/new/c.py", "2\n")
    session.delete("src/b.py")
    return session


def refused(site: Site, session: UserSession, match: str) -> None:
    """The promotion is refused before anything changes, and lands elsewhere."""
    head, before = site.durable.head(), tree_of(site.durable.path)
    with pytest.raises(WorktreeUnwritable, match=match) as caught:
        session.promote()
    assert caught.value.stage == "staging"
    assert (site.durable.head(), tree_of(site.durable.path), site.durable.leftovers()) == (head, before, [])
    assert session.promote(strategy="branch").sha


def tree_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and ".git" not in path.parts}


def commit_there(path: Path) -> None:
    """A person's next plain commit, with nothing staged."""
    identity = ("-c", "user.name=P", "-c", "user.email=p@example.org")
    done = try_git(*identity, "commit", "-q", "--allow-empty", "-m", "next", cwd=path)
    assert done.returncode == 0, done.stderr


def in_site(directory: Path, use: Callable[[Site], None], **options: object) -> None:
    """Use a site in a process that permissions bind, also if root runs it."""

    def run() -> None:
        if os.geteuid() == 0:
            linux.drop_capabilities()
        with open_site(directory, FILES, **options) as site:  # type: ignore[arg-type]
            use(site)

    assert in_child(run) == 0


@pytest.mark.parametrize("place", [".", "src"])
def test_a_directory_without_permission_is_refused(tmp_path: Path, place: str) -> None:
    def use(site: Site) -> None:
        session = work(site)
        if place == ".":
            session.write("top.py", "2\n")
        os.chmod(site.durable.path / place, 0o555)
        refused(site, session, f"'{place}' cannot be written there")
        os.chmod(site.durable.path / place, 0o755)

    in_site(tmp_path, use)


def test_files_that_nobody_may_write_are_replaced_all_the_same(tmp_path: Path) -> None:
    def use(site: Site) -> None:
        session = work(site)
        os.chmod(site.durable.path / "src/a.py", 0o444)
        os.chmod(site.durable.git_dir / "index", 0o444)
        assert session.promote().warnings == ()
        assert site.durable.status() == []

    in_site(tmp_path, use)


@contextlib.contextmanager
def fixed(path: Path) -> Iterator[None]:
    """An immutable file or directory, where the file system knows that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flags = bytearray(8)
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        (before,) = struct.unpack_from("I", flags)
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("Q", before | _IMMUTABLE))
    except OSError as problem:
        os.close(descriptor)
        pytest.skip(f"no immutable files here: {problem}")
    try:
        yield
    finally:
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("Q", before))
        os.close(descriptor)


@pytest.mark.parametrize("what", ["src/a.py", "src", ".git/index"])
def test_what_is_immutable_is_refused(tmp_path: Path, what: str) -> None:
    with open_site(tmp_path, FILES) as site:
        session = work(site)
        with fixed(site.durable.path / what):
            refused(site, session, f"{os.path.basename(what)}' cannot be written there")


@with_mounts
@pytest.mark.parametrize("place", ["linked", "linked/src"])
def test_a_mount_that_is_read_only_is_refused(place: str) -> None:
    def use(disk: Path) -> None:
        with open_site(disk, FILES) as site:
            site.durable.git("branch", "side")
            site.durable.git("worktree", "add", "-q", str(disk / "linked"), "side")
            session = site.start(durable_branch="side")
            session.write("src/a.py", "2\n")
            mount = str(disk / place)
            linux.mount(mount, mount, None, linux.MS_BIND)
            linux.mount("none", mount, None, linux.MS_BIND | 32 | 1)  # remount, read-only
            head = site.durable.head("side")
            with pytest.raises(WorktreeUnwritable, match=r"cannot be written there"):
                session.promote()
            assert site.durable.head("side") == head
            linux.unmount(mount)
            session.promote()
            assert try_git("status", "--porcelain", cwd=disk / "linked").stdout == b""

    run_on_small_disk(use, "8m")


class TestAfterTheSwap:
    """What fails once the branch has moved is a warning, and the next plain commit keeps the promotion."""

    def test_a_file_that_cannot_be_written_is_staged(self, tmp_path: Path) -> None:
        def use(site: Site) -> None:
            session, durable = work(site), site.durable
            session.write("app.py", "2\n")
            with at_point("land:moved", lambda: os.chmod(durable.path / "src", 0o555)):
                result = session.promote()
            os.chmod(durable.path / "src", 0o755)
            (warning,) = result.warnings
            assert "'src/a.py' could not be written: Permission denied" in warning
            assert "`git commit -a` takes them back" in warning
            assert durable.status() == [" M src/a.py", " D src/new/c.py", "?? src/b.py"]
            commit_there(durable.path)
            assert durable.tree() == durable.tree(result.sha)
            durable.git("restore", ".")
            durable.git("clean", "-fdq")
            assert durable.status() == []
            assert site.types(session.id).count("worktree.stale") == 1

        in_site(tmp_path, use)

    def test_a_file_that_was_saved_meanwhile_stays_and_is_no_reversal(self, tmp_path: Path) -> None:
        with open_site(tmp_path, FILES) as site:
            session, durable = work(site), site.durable
            with at_point("land:moved", lambda: (durable.path / "src/a.py").write_text("mine\n")):
                result = session.promote()
            assert "'src/a.py' has changes that are not committed" in result.warnings[0]
            assert durable.status() == [" M src/a.py"]
            commit_there(durable.path)
            assert durable.read("src/a.py") == b"2\n"
            assert (durable.path / "src/a.py").read_text() == "mine\n"

    def test_an_index_that_cannot_be_written_is_told_with_what_mends_it(self, tmp_path: Path) -> None:
        with open_site(tmp_path, FILES) as site:
            session, durable = site.start(), site.durable
            session.write("app.py", "2\n")
            session.write("it's new", "2\n")
            index, aside = durable.git_dir / "index", durable.git_dir / "aside"
            with at_point("worktree:files-written", lambda: (index.rename(aside), index.mkdir())):
                (warning,) = session.promote().warnings
            index.rmdir()
            aside.rename(index)
            assert "so the next `git commit` there would take the promotion back" in warning
            command = warning.partition("run `")[2].partition("`")[0]
            assert command == """git reset -q -- app.py 'it'"'"'s new'"""
            subprocess.run(["sh", "-c", command], cwd=durable.path, env=hermetic_env(), check=True)
            assert durable.status() == []

    def test_a_lock_that_cannot_be_removed_is_left_to_a_recovery(self, tmp_path: Path) -> None:
        def use(site: Site) -> None:
            session, durable = work(site), site.durable
            with at_point("worktree:files-written", lambda: os.chmod(durable.git_dir, 0o555)):
                warnings = session.promote().warnings
            assert any("until `gittrix recover` finishes it" in warning for warning in warnings)
            os.chmod(durable.git_dir, 0o755)
            assert site.another().recover().rolled_forward == [session.id]
            assert (durable.status(), durable.leftovers()) == ([], [])

        in_site(tmp_path, use)

    @with_mounts
    def test_a_full_disk_is_told_with_what_mends_it(self) -> None:
        def use(disk: Path) -> None:
            with open_site(disk, FILES) as site:
                session = site.start()
                session.write("app.py", "2\n")
                filler = disk / "filler"

                def fill() -> None:
                    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                        while file.write(bytes(4096)):
                            pass

                with at_point("worktree:files-written", fill):
                    result = session.promote()
                filler.unlink()
                assert any("run `git reset -q -- app.py`" in warning for warning in result.warnings)
                assert site.durable.head() == result.sha
                assert try_git("reset", "-q", "--", "app.py", cwd=site.durable.path).returncode == 0
                assert site.durable.status() == []

        run_on_small_disk(use, "8m")

    def test_one_checkout_does_not_keep_another_behind(self, tmp_path: Path) -> None:
        def use(site: Site) -> None:
            durable = site.durable
            durable.git("worktree", "add", "-qf", str(tmp_path / "linked"), "main")
            session = site.start()
            session.write("src/a.py", "2\n")
            with at_point("land:moved", lambda: os.chmod(durable.path / "src", 0o555)):
                (warning,) = session.promote().warnings
            os.chmod(durable.path / "src", 0o755)
            assert f"the checkout {durable.path} was left behind" in warning
            assert try_git("status", "--porcelain", cwd=tmp_path / "linked").stdout == b""

        in_site(tmp_path, use)


def test_a_work_tree_that_is_away_takes_nothing_back_when_it_is_there_again(tmp_path: Path) -> None:
    with open_site(tmp_path, FILES) as site:
        site.durable.git("branch", "side")
        site.durable.git("worktree", "add", "-q", str(tmp_path / "linked"), "side")
        session = site.start(durable_branch="side")
        session.write("src/a.py", "2\n")
        away = (tmp_path / "linked").rename(tmp_path / "away")
        assert session.promote().warnings == ()
        away.rename(tmp_path / "linked")
        assert try_git("status", "--porcelain", cwd=tmp_path / "linked").stdout == b" M src/a.py\n"
        commit_there(tmp_path / "linked")
        assert site.durable.read("src/a.py", "side") == b"2\n"


def test_what_was_saved_after_a_kill_is_no_reversal_either(tmp_path: Path) -> None:
    with open_site(tmp_path, FILES) as site:
        session, durable = work(site), site.durable
        kill_at("land:moved", session.promote)
        (durable.path / "src/a.py").write_text("mine\n")
        assert site.another().recover().rolled_forward == [session.id]
        assert durable.status() == [" M src/a.py"]
        assert site.types(session.id).count("worktree.stale") == 1
        commit_there(durable.path)
        assert durable.read("src/a.py") == b"2\n"
