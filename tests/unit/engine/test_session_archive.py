"""What is set aside of unpromoted work: a patch that applies, and a commit that can be fetched (rule 8)."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
from support.engine import EXECUTABLE, KINDS, SYMLINK, DurableGit, Site, at_point, edited, in_child, kill_at, open_site, shell
from support.git import git

from pytest_gittrix.engine.eviction.archive import Archive
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable


def work(session: UserSession) -> None:
    session.write("src/util.py", edited(3))
    session.write("bin", b"\0\1\2binary\n")
    session.write("run.sh", "#!/bin/sh\nexit 1\n")
    session.write("no newline", "at the end")
    session.delete("README.md")


def restored(site: Site, session: UserSession) -> dict[str, tuple[str, str]]:
    """The tree that comes of applying the patch to the baseline."""
    copy = DurableGit(site.root / "copy")
    site.durable.git("clone", "-q", str(site.durable.path), str(copy.path))
    copy.git("checkout", "-q", "--detach", site.state(session.id).baseline)
    copy.git("apply", "--index", str(site.directory(session) / "archive.patch"))
    return copy.tree(copy.git("write-tree"))


def fetched(site: Site, session: UserSession) -> dict[str, tuple[str, str]]:
    """The tree of the archive's commit, fetched into durable."""
    repository = site.directory(session) / "archive.git"
    site.durable.git("fetch", "-q", str(repository), f"refs/gittrix/archive/{session.id}:refs/heads/rescued")
    assert site.durable.git("rev-parse", "rescued^") == site.state(session.id).baseline
    assert site.durable.git("fsck", "--strict", "--no-dangling") == ""
    return site.durable.tree("rescued")


class TestTheArchiveOfAnEndedSession:
    @pytest.mark.parametrize("object_format", ["sha1", "sha256"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_holds_everything_as_patch_and_as_commit(self, tmp_path: Path, kind: str, object_format: str) -> None:
        with open_site(tmp_path, object_format=object_format) as site:
            session = site.start(workspace=kind)
            work(session)
            tree = session.review().tree
            session.discard()
            expected = fetched(site, session)
            assert site.durable.git("rev-parse", "rescued^{tree}") == tree
            assert restored(site, session) == expected

    def test_holds_kinds_and_modes(self, site: Site) -> None:
        session = site.start()
        shell(session, "chmod +x app.py; rm link; ln -s run.sh link; ln -s nowhere new-link; rm -r src")
        session.discard()
        tree = fetched(site, session)
        assert {path: mode for path, (mode, _) in tree.items()} == {
            "README.md": "100644",
            "app.py": EXECUTABLE,
            "link": SYMLINK,
            "new-link": SYMLINK,
            "run.sh": EXECUTABLE,
        }
        assert restored(site, session) == tree

    def test_is_made_before_the_sweep_takes_the_workspace(self, site: Site) -> None:
        session = site.start()
        work(session)
        site.clock.advance(hours=5)
        site.engine.sweep()
        assert fetched(site, session)["bin"]

    def test_holds_what_the_agent_committed(self, site: Site) -> None:
        session = site.start()
        shell(session, "echo v2 > app.py; git add -A; git commit -qm mine; git checkout -q --detach; echo v3 > run.sh")
        session.discard()
        tree = fetched(site, session)
        assert site.durable.read("app.py", "rescued") == b"v2\n"
        assert site.durable.read("run.sh", "rescued") == b"v3\n"
        assert restored(site, session) == tree

    def test_holds_what_durable_ignores_in_the_commit_and_in_the_patch_what_was_written_by_name(self, site: Site) -> None:
        site.durable.commit({".gitignore": "*.log\n"})
        session = site.start()
        session.write("by-name.log", "mine\n")
        shell(session, "echo noise > by-shell.log")
        session.discard()
        patch = (site.directory(session) / "archive.patch").read_text()
        fetched(site, session)
        assert [*site.durable.changed("rescued")] == ["by-name.log", "by-shell.log"]
        assert "+mine" in patch
        assert "noise" not in patch
        assert patch.startswith("Not in this patch: 'by-shell.log', which is ignored. The commit has it.\n")

    def test_is_made_where_the_agent_cannot_reach_any_more(self, site: Site) -> None:
        session = site.start()
        work(session)
        seen: list[set[str]] = []
        with at_point("evict:apart", lambda: seen.append(set(os.listdir(site.directory(session))))):
            session.discard()
        assert "leaving" in seen[0]
        assert "workspace" not in seen[0]
        assert fetched(site, session)["bin"]

    def test_is_not_made_of_nothing(self, site: Site) -> None:
        session = site.start()
        session.discard()
        assert not (site.directory(session) / "archive.patch").exists()
        assert not (site.directory(session) / "archive.git").exists()
        assert not site.state(session.id).archived

    def test_survives_gc_of_durable(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.discard()
        site.durable.git("gc", "-q", "--prune=now")
        assert fetched(site, session)["bin"]

    def test_is_never_in_durable(self, site: Site) -> None:
        before = site.durable.fingerprint()
        session = site.start()
        work(session)
        session.discard()
        assert site.durable.fingerprint() == before

    def test_is_recorded(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.discard()
        archive = site.state(session.id).archive
        assert archive is not None
        assert archive["touched"] == 5
        repository = DurableGit(site.directory(session) / "archive.git", bare=True)
        assert archive["commit"] == repository.git("rev-parse", archive["ref"])
        when = int(site.clock.now().timestamp())
        assert repository.git("log", "-1", "--format=%an %at %s", archive["ref"]) == f"agent {when} gittrix: set aside from fix the bug"

    @pytest.mark.parametrize(("durability", "written_through"), [("full", True), ("fast", False)])
    def test_is_on_the_disk_before_the_workspace_goes_where_that_was_asked_for(
        self, site: Site, durability: str, written_through: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = site.another(durability=durability).start_session("fix the bug")
        work(session)
        synced: list[str] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
        session.discard()
        assert any("/archive.git/" in path for path in synced) == written_through

    def test_is_as_large_as_the_work(self, tmp_path: Path) -> None:
        with open_site(tmp_path, {"large": os.urandom(3 << 20).hex(), "app.py": "1\n", "src/util.py": "2\n"}) as site:
            session = site.start()
            session.write("app.py", "mine\n")
            session.discard()
            archive = site.directory(session) / "archive.git"
            assert sum(file.stat().st_size for file in archive.rglob("*")) < 20_000
            assert git("fsck", "--strict", "--full", cwd=archive) == b""

    def test_has_the_other_files_from_durable_when_git_asks_for_them(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.discard()
        place = site.root / "whole"
        place.mkdir()
        archive = site.directory(session) / "archive.git"
        asks = {"GIT_NO_LAZY_FETCH": "0"}  # as the git of a person does
        git("--work-tree", str(place), "checkout", f"refs/gittrix/archive/{session.id}", "--", ".", cwd=archive, env=asks)
        there = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()}
        assert there == set(fetched(site, session))

    def test_has_what_changed_where_durable_has_gone_and_says_what_else_there_was(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.discard()
        baseline = site.state(session.id).baseline
        shutil.rmtree(site.durable.path)
        archive = site.directory(session) / "archive.git"
        ref = f"refs/gittrix/archive/{session.id}"
        assert git("show", f"{ref}:src/util.py", cwd=archive) == edited(3).encode()
        assert git("diff", "--name-only", f"{ref}^", ref, cwd=archive).split() == [
            b"README.md",
            b"bin",
            b"no",
            b"newline",
            b"run.sh",
            b"src/util.py",
        ]
        assert git("show", f"{ref}^:README.md", cwd=archive)
        assert git("fsck", "--strict", "--full", cwd=archive) == b""
        assert f"commit {baseline} in durable" in (archive / "description").read_text()


class TestAnEvictionThatIsInterrupted:
    @pytest.mark.parametrize("step", ["evict:archived", "evict:workspace-gone"])
    def test_stores_once_that_work_was_set_aside(self, site: Site, step: str) -> None:
        session = site.start()
        work(session)
        session.archive()
        kill_at(step, session.discard)
        site.clock.advance(minutes=5)
        with site.another() as engine:
            archives = engine.history(session.id, ["archive.written"])
        assert len(archives) == 2  # one before the end, and one after it
        repository = DurableGit(site.directory(session) / "archive.git", bare=True)
        assert archives[-1].data["commit"] == repository.git("rev-parse", archives[-1].data["ref"])

    def test_stores_that_a_workspace_was_kept_whole_though_killed_right_after(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        session = site.start()
        session.write("big.bin", "x" * 100)
        kept = site.directory(session) / "archive.workspace"
        (site.directory(session) / "engine/workspace.json").write_text("{")  # so that it cannot be archived as a change

        def discard_until_kept() -> None:
            rename = os.rename

            def last_rename(source: str, target: str, **where: int) -> None:
                rename(source, target, **where)
                if os.fspath(target) == os.fspath(kept):
                    os.kill(os.getpid(), signal.SIGKILL)

            monkeypatch.setattr(os, "rename", last_rename)
            session.discard()

        assert in_child(discard_until_kept) == -signal.SIGKILL
        with site.another() as engine:
            assert [event.data["patch"] for event in engine.history(session.id, ["archive.written"])] == ["archive.workspace"]
        assert (kept / "big.bin").exists()

    def test_by_a_full_disk_says_that_a_recovery_goes_on(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        session = site.start()
        work(session)

        rename = os.rename

        def full(source: str, target: str, **where: int) -> None:
            if os.fspath(target).endswith("archive.patch"):
                raise OSError(errno.ENOSPC, "No space left on device")
            rename(source, target, **where)

        with monkeypatch.context() as filling, pytest.raises(AdapterUnavailable, match="No space left") as refused:
            filling.setattr(os, "rename", full)
            session.discard()
        assert (refused.value.outcome, refused.value.session) == ("unknown", None)
        assert site.state(session.id).state == "discarded"
        site.engine.recover()
        assert (site.directory(session) / "archive.patch").exists()


class TestAPartialPromotion:
    def test_archives_the_rest(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.promote(files=["bin", "README.md"])
        assert site.state(session.id).archive["touched"] == 3  # type: ignore[index]
        tree = fetched(site, session)
        assert "bin" not in tree
        assert "README.md" in tree
        assert site.durable.read("src/util.py", "rescued") == edited(3).encode()
        assert restored(site, session) == tree

    def test_of_hunks_archives_the_whole_file(self, site: Site) -> None:
        session = site.start()
        session.write("src/util.py", edited(3, 30))
        session.promote(hunks={"src/util.py": [1]})
        fetched(site, session)
        assert site.durable.read("src/util.py", "rescued") == edited(3, 30).encode()

    def test_of_everything_archives_nothing(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.promote()
        assert not (site.directory(session) / "archive.patch").exists()


class TestAnArchiveOnRequest:
    def test_leaves_the_session_active(self, site: Site) -> None:
        session = site.start()
        work(session)
        archive = session.archive()
        assert isinstance(archive, Archive)
        assert archive.touched == ("README.md", "bin", "no newline", "run.sh", "src/util.py")
        assert archive.patch.read_text(errors="surrogateescape").startswith("diff --git")
        assert session.touched_files() == [*archive.touched]

    def test_is_replaced_by_the_next(self, site: Site) -> None:
        session = site.start()
        work(session)
        first = session.archive()
        session.write("later.txt", "later\n")
        second = session.archive()
        assert first is not None
        assert second is not None
        assert first.commit != second.commit
        assert "later.txt" in fetched(site, session)

    def test_of_an_untouched_session_is_none(self, site: Site) -> None:
        assert site.start().archive() is None


class TestAWorkspaceThatCannotBeArchived:
    """It is kept whole, as ``archive.workspace``, beside what of it could be."""

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        """One of its two files has a name that no commit may have."""
        session = site.start()
        session.write("app.py", "mine\n")
        shell(session, "echo strange > .GIT")
        return session

    def test_is_recorded_with_the_path_and_the_reason(self, site: Site, session: UserSession) -> None:
        session.discard()
        archived, whole = (event.data for event in site.events(session.id) if event.type == "archive.written")
        assert archived["patch"] == "archive.patch"
        assert (whole["touched"], whole["patch"]) == (1, "archive.workspace")
        assert whole["reason"].startswith("'.GIT' is not archived: ")

    def test_for_want_of_what_the_engine_noted_about_it_says_so_in_one_line(self, site: Site, session: UserSession) -> None:
        noted = site.directory(session) / "engine/workspace.json"
        noted.write_text("{")
        site.another().evict(session.id)
        (whole,) = (event.data for event in site.events(session.id) if event.type == "archive.written")
        assert whole["reason"].startswith("What the engine noted about the workspace ")
        assert "\n" not in whole["reason"]
        assert (site.directory(session) / "archive.workspace/app.py").read_text() == "mine\n"

    def test_because_the_disk_cannot_be_read_is_kept_with_all_that_is_in_it(
        self, site: Site, session: UserSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unreadable(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr("pytest_gittrix.workspaces.workspace.take_snapshot", unreadable)
        session.discard()
        monkeypatch.undo()
        (whole,) = (event.data for event in site.events(session.id) if event.type == "archive.written")
        assert whole == {"touched": 1, "patch": "archive.workspace", "reason": "[Errno 5] Input/output error"}
        assert {"app.py", ".GIT", "src"} < set(os.listdir(site.directory(session) / "archive.workspace"))
        assert site.state(session.id).state == "discarded"

    def test_is_still_there_after_a_kill_right_then(self, site: Site, session: UserSession) -> None:
        kill_at("evict:kept-whole", session.discard)
        site.another().init()
        state = site.state(session.id)
        assert (state.state, state.workspace_present) == ("discarded", False)
        assert (site.directory(session) / "archive.workspace/.GIT").read_text() == "strange\n"
        assert not (site.directory(session) / "leaving").exists()


@pytest.mark.parametrize(
    ("before", "deleted", "then", "promoted"),
    [
        ({"lib/b": "1\n", "x": "x\n"}, "lib/b", {"lib": "now a file\n"}, ["lib/b"]),
        ({"lib": "1\n", "x": "x\n"}, "lib", {"lib/b": "now a directory\n", "lib/c": "c\n"}, ["lib"]),
    ],
)
def test_what_stands_where_something_promoted_was_deleted_is_set_aside_whole(
    tmp_path: Path, before: dict[str, str], deleted: str, then: dict[str, str], promoted: list[str]
) -> None:
    with open_site(tmp_path, before) as site:
        session = site.start()
        session.delete(deleted)
        for path, text in then.items():
            session.write(path, text)

        session.promote(files=promoted)

        archive = site.directory(session) / "archive.git"
        kept = git("ls-tree", "-r", "--name-only", f"refs/gittrix/archive/{session.id}", cwd=archive).decode().split()
        assert kept == sorted([*then, "x"])


def test_a_promoted_deletion_beside_what_was_kept_is_not_set_aside(tmp_path: Path) -> None:
    with open_site(tmp_path, {"lib/a": "1\n", "lib/b": "2\n"}) as site:
        session = site.start()
        session.delete("lib/a")
        session.write("lib/b", "changed\n")

        session.promote(files=["lib/a"])

        (archived,) = (event.data for event in site.events(session.id) if event.type == "archive.written")
        assert archived["touched"] == 1
