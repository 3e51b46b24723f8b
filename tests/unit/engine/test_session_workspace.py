"""What an agent's programs leave in a workspace that is no ordinary file, and what becomes of a session whose directory is swapped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import FILES, KINDS, SUBMODULE, Site, open_site, shell

from pytest_gittrix.engine.user_session import ListEntry, UserSession
from pytest_gittrix.errors import AdapterUnavailable, WriteRejected
from pytest_gittrix.git.objects import ObjectFormat, Objects, open_objects
from pytest_gittrix.os_level.files import temporary_name


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, {**FILES, "vendor": (SUBMODULE, "1" * 40)}) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def any_kind(request: pytest.FixtureRequest, site: Site) -> UserSession:
    return site.start(workspace=request.param)


class TestADirectoryThatWasSwapped:
    def test_for_a_copy_is_worked_on_where_the_path_leads_now(self, site: Site, any_kind: UserSession) -> None:
        path = site.directory(any_kind) / "workspace"
        any_kind.write("app.py", "before\n")
        path.rename(site.root / "old")
        shutil.copytree(site.root / "old", path, symlinks=True)

        any_kind.write("new", "after\n")

        assert (path / "new").read_text() == "after\n"
        assert not (site.root / "old" / "new").exists()
        assert any_kind.read("app.py") == b"before\n"
        assert any_kind.touched_files() == ["app.py", "new"]

    def test_and_is_gone_is_an_error_of_every_call(self, site: Site, any_kind: UserSession) -> None:
        any_kind.write("app.py", "before\n")
        (site.directory(any_kind) / "workspace").rename(site.root / "old")

        for call in (
            lambda: any_kind.read("app.py"),
            lambda: any_kind.write("new", "x"),
            lambda: any_kind.delete("app.py"),
            lambda: any_kind.exists("app.py"),
            any_kind.list,
            any_kind.touched_files,
        ):
            with pytest.raises(AdapterUnavailable, match="is gone"):
                call()
        assert not (site.root / "old" / "new").exists()

    def test_for_a_link_is_not_followed(self, site: Site, any_kind: UserSession) -> None:
        path = site.directory(any_kind) / "workspace"
        any_kind.read("app.py")
        path.rename(site.root / "old")
        path.symlink_to(site.durable.path)

        with pytest.raises(AdapterUnavailable, match="is gone"):
            any_kind.write("app.py", "planted\n")
        assert site.durable.status() == []


class TestWhatNoCommitHolds:
    def test_a_pipe_in_a_file_s_place_is_the_file_s_deletion(self, site: Site) -> None:
        session = site.start()
        shell(session, "rm app.py; mkfifo app.py other")

        assert session.touched_files() == ["app.py"]
        assert not {"app.py", "other"} & {entry.path for entry in session.list()}
        session.promote()
        assert "app.py" not in site.durable.tree()

    def test_files_in_a_submodule_s_directory_keep_a_promotion_of_everything_from_passing_over_them(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        shell(session, "echo hours of work > vendor/work.py")

        assert session.review().refused == {"vendor": "it is a submodule; what is inside it is not looked at"}
        with pytest.raises(WriteRejected, match="vendor"):
            session.promote()
        assert site.durable.contains(session.promote(files=["app.py"]).sha)

    def test_an_empty_submodule_is_in_nobody_s_way(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        assert site.durable.contains(session.promote().sha)

    def test_git_directories_are_not_listed_wherever_they_are(self, site: Site) -> None:
        session = site.start()
        shell(session, "git init -q nested; echo x > nested/file; mkdir plain; echo 'gitdir: ../nested/.git' > plain/.git")

        assert [entry for entry in session.list() if entry.path.startswith(("nested", "plain"))] == [
            ListEntry("nested", "dir"),
            ListEntry("nested/file", "file"),
            ListEntry("plain", "dir"),
        ]
        assert not any(".git" in Path(entry.path).parts for entry in session.list())

    def test_a_half_written_file_is_not_listed(self, site: Site) -> None:
        session = site.start()
        before = session.list()
        shell(session, f"echo half > {temporary_name()}")
        assert session.list() == before
        assert session.touched_files() == []

    def test_a_file_that_is_only_named_like_a_half_written_one_is_work_like_any_other(self, tmp_path: Path) -> None:
        with open_site(tmp_path, {".gittrix-tmp-old": "1\n"}) as site:
            session = site.start()
            shell(session, "echo 1 > .gittrix-tmp-0123; mkdir .gittrix-tmp-d; echo 2 > .gittrix-tmp-d/x")
            session.write(".gittrix-tmp-api", "3\n")

            assert session.read(".gittrix-tmp-old") == b"1\n"
            work = [".gittrix-tmp-0123", ".gittrix-tmp-api", ".gittrix-tmp-d/x"]
            assert session.touched_files() == work
            sha = session.promote().sha
            assert sha is not None
            assert [*site.durable.changed(sha)] == work


class TestTheLog:
    def test_has_the_agent_s_own_commits_between_those_made_through_the_session(self, site: Site) -> None:
        session = site.start()
        session.write_and_commit({"one": "1"}, "first")
        shell(session, "echo 2 > two; git add two; git commit -qm second")
        session.write_and_commit({"three": "3"}, "third")

        assert [entry.message for entry in session.log()] == ["third", "second", "first"]

    def test_opens_its_objects_once_however_many_commits_there_are(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        session = site.start()
        for number in range(5):
            session.write_and_commit({"file": str(number)}, f"commit {number}")
        opened: list[str] = []

        def counting(directory: Path, format_: ObjectFormat) -> Objects:
            opened.append(os.fspath(directory))
            return open_objects(directory, format_)

        monkeypatch.setattr("pytest_gittrix.engine.operations.agent_commits.open_objects", counting)

        assert [entry.message for entry in session.log()] == [f"commit {number}" for number in reversed(range(5))]
        assert len(opened) == 1


class TestABranchOfItsOwn:
    def test_gets_the_first_free_number_in_one_try(self, site: Site) -> None:
        head = site.durable.head()
        names = ["gittrix/fix-the-bug", *(f"gittrix/fix-the-bug-{number}" for number in range(2, 251)), "gittrix/fix-the-bug-251/below"]
        site.durable.git("update-ref", "--stdin", stdin="".join(f"create refs/heads/{name} {head}\n" for name in names).encode())
        session = site.start("Fix the bug!")
        session.write("app.py", "v2\n")

        assert session.promote(strategy="branch").branch == "gittrix/fix-the-bug-252"
        assert site.types(session.id).count("promote.intent") == 1
