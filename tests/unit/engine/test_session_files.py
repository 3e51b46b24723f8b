"""The agent's files through the session: the same answers for every kind of workspace, and nothing outside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.engine import FILES, KINDS, LINES, Site, edited, open_site, shell

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.engine.operations.shown_files import ListEntry, ShownFiles
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, GittrixError, PathIsDirectory, PathNotFound, WriteRejected
from pytest_gittrix.workspaces.walk import Limits


@pytest.fixture(params=KINDS)
def session(request: pytest.FixtureRequest, site: Site) -> UserSession:
    return site.start(workspace=request.param)


ESCAPES = ["../out", "/etc/passwd", "a/../../out", "..", "", ".", "./", "a/./b", "a/", "nul\0", ".git/config", "a/.GIT/hooks/x", "git~1/x"]


class TestRead:
    def test_gives_the_baseline_then_what_was_written(self, session: UserSession) -> None:
        assert session.read("src/util.py") == LINES.encode()
        session.write("src/util.py", "new\n")
        assert session.read("src/util.py") == b"new\n"

    def test_of_a_deleted_file_finds_nothing(self, session: UserSession) -> None:
        session.delete("app.py")
        with pytest.raises(PathNotFound, match=r"app\.py"):
            session.read("app.py")
        with pytest.raises(FileNotFoundError):
            session.read("app.py")
        assert not session.exists("app.py")
        assert ListEntry("app.py", "file") not in session.list()

    def test_is_stable_whatever_durable_does(self, site: Site, session: UserSession) -> None:
        site.durable.commit({"app.py": "rival\n", "src/util.py": None, "added": "x\n"})
        assert session.read("app.py") == b"print('v1')\n"
        assert session.read("src/util.py") == LINES.encode()
        assert not session.exists("added")

    def test_of_a_link_gives_the_file_behind_it_or_its_target(self, session: UserSession) -> None:
        assert session.read("link") == session.read("app.py")
        assert session.read("link", follow=False) == b"app.py"

    @pytest.mark.parametrize("path", ["nowhere", "src/nowhere", "app.py/below", "nowhere/at/all"])
    def test_of_what_is_not_there_finds_nothing(self, session: UserSession, path: str) -> None:
        with pytest.raises(PathNotFound):
            session.read(path)
        assert not session.exists(path)

    def test_of_a_directory_is_refused(self, session: UserSession) -> None:
        with pytest.raises(PathIsDirectory, match="src"):
            session.read("src")
        assert not session.exists("src")


class TestWrite:
    def test_through_a_link_writes_the_file_behind_it(self, session: UserSession) -> None:
        session.write("link", "new\n")
        assert session.touched_files() == ["app.py"]
        session.write("link", "a file\n", follow=False)
        assert session.touched_files() == ["app.py", "link"]
        assert (session.read("app.py"), session.read("link")) == (b"new\n", b"a file\n")

    @pytest.mark.parametrize("data", [b"", b"\0\xff\n", b"a\r\nb\r", b"x" * 100_000, "text \N{SNOWMAN}"])
    def test_keeps_bytes_as_they_are(self, site: Site, session: UserSession, data: bytes | str) -> None:
        expected = data.encode() if isinstance(data, str) else data
        session.write("new/deep/file", data)
        assert session.read("new/deep/file") == expected
        session.promote()
        assert site.durable.read("new/deep/file") == expected

    def test_of_the_same_bytes_is_no_change(self, session: UserSession) -> None:
        session.write("src/util.py", LINES)
        session.write("run.sh", "#!/bin/sh\n")
        assert session.touched_files() == []

    def test_back_to_the_baseline_is_no_change(self, session: UserSession) -> None:
        session.write("src/util.py", "new\n")
        session.delete("app.py")
        session.write("src/util.py", LINES)
        session.write("app.py", "print('v1')\n")
        assert session.touched_files() == []

    def test_keeps_an_executable_executable(self, site: Site, session: UserSession) -> None:
        session.write("run.sh", "#!/bin/sh\nexit 1\n")
        session.promote()
        assert site.durable.tree()["run.sh"][0] == "100755"

    @pytest.mark.parametrize("path", ESCAPES)
    def test_outside_or_into_git_is_refused(self, site: Site, session: UserSession, path: str) -> None:
        before = site.durable.fingerprint()
        for act in (lambda: session.write(path, "x"), lambda: session.delete(path), lambda: session.read(path)):
            with pytest.raises(GittrixError) as caught:
                act()
            assert caught.value.code in ("WRITE_REJECTED", "INVALID_INPUT")
        assert site.durable.fingerprint() == before
        assert session.touched_files() == []

    def test_onto_a_directory_is_refused(self, session: UserSession) -> None:
        session.write("dir/file", "x")
        with pytest.raises(WriteRejected):
            session.write("dir", "x")
        assert session.read("dir/file") == b"x"

    def test_below_a_file_is_refused(self, session: UserSession) -> None:
        session.write("file", "x")
        with pytest.raises(WriteRejected):
            session.write("file/below", "x")
        assert session.read("file") == b"x"

    def test_over_the_limit_is_refused(self, site: Site) -> None:
        engine = site.another(ephemeral=LocalEphemeral(limits=Limits(max_file=10)))
        session = engine.start_session("x")
        session.write("small", "x" * 10)
        with pytest.raises(WriteRejected, match="limit is 10"):
            session.write("large", "x" * 11)
        assert session.touched_files() == ["small"]

    def test_of_many_files_at_once_is_all_or_none_where_it_can_tell(self, session: UserSession) -> None:
        with pytest.raises(GittrixError):
            session.write_and_commit({"good.txt": "x", "../bad.txt": "x"}, "message")
        assert session.touched_files() == []


class TestDelete:
    def test_of_what_is_not_there_is_no_error_and_no_change(self, site: Site, session: UserSession) -> None:
        events = len(site.events(session.id))
        session.delete("nowhere")
        session.delete("nowhere/below")
        assert session.touched_files() == []
        assert len(site.events(session.id)) == events

    def test_of_a_new_file_leaves_nothing(self, session: UserSession) -> None:
        session.write("new.txt", "x\n")
        session.delete("new.txt")
        assert session.touched_files() == []
        assert not session.exists("new.txt")

    def test_of_a_link_removes_the_link_only(self, site: Site, session: UserSession) -> None:
        session.delete("link")
        assert session.touched_files() == ["link"]
        assert session.exists("app.py")

    def test_of_a_directory_is_refused(self, session: UserSession) -> None:
        session.write("dir/file", "x")
        with pytest.raises(WriteRejected):
            session.delete("dir")
        assert session.exists("dir/file")

    def test_then_a_directory_in_its_place(self, site: Site, session: UserSession) -> None:
        session.delete("app.py")
        session.write("app.py/inner", "x\n")
        assert session.touched_files() == ["app.py", "app.py/inner"]
        assert session.read("app.py/inner") == b"x\n"
        session.promote()
        assert site.durable.read("app.py/inner") == b"x\n"


class TestList:
    def test_gives_everything_sorted_with_its_type(self, session: UserSession) -> None:
        session.write("new/file.txt", "x\n")
        session.delete("README.md")
        assert session.list() == [
            ListEntry("app.py", "file"),
            ListEntry("link", "symlink"),
            ListEntry("new", "dir"),
            ListEntry("new/file.txt", "file"),
            ListEntry("run.sh", "file"),
            ListEntry("src", "dir"),
            ListEntry("src/deep", "dir"),
            ListEntry("src/deep/er.txt", "file"),
            ListEntry("src/util.py", "file"),
        ]

    def test_of_a_directory_gives_what_is_below_it(self, session: UserSession) -> None:
        assert [entry.path for entry in session.list("src")] == ["src/deep", "src/deep/er.txt", "src/util.py"]

    @pytest.mark.parametrize("path", ["nowhere", "app.py"])
    def test_of_what_is_no_directory_is_an_error(self, session: UserSession, path: str) -> None:
        with pytest.raises(GittrixError, match=path):
            session.list(path)

    @pytest.mark.parametrize("path", ["..", "/", ".git", "../durable"])
    def test_never_leaves_the_workspace(self, session: UserSession, path: str) -> None:
        with pytest.raises(GittrixError):
            session.list(path)


class TestTouchedFiles:
    @pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
    def test_are_the_difference_whatever_made_it(self, site: Site, kind: str) -> None:
        session = site.start(workspace=kind)
        shell(session, "echo x >> app.py; chmod -x run.sh; rm README.md; ln -sfn src link")
        shell(session, "mkdir -p d; echo n > d/new; touch -d 2001-01-01 src/util.py")
        assert session.touched_files() == ["README.md", "app.py", "d/new", "link", "run.sh"]

    @pytest.mark.parametrize("kind", ["clone", "worktree"])
    @pytest.mark.parametrize(
        "trick",
        [
            "git add -A; git commit -qm hidden",
            "git add -A; git reset -q --mixed",
            "git checkout -q -b other; git commit -qam hidden",
            "git update-index --assume-unchanged app.py",
            "git update-index --skip-worktree app.py",
            "echo '*' > .git-ignore-all; git config core.excludesFile $PWD/.git-ignore-all; rm .git-ignore-all",
            "touch -r src/util.py app.py",
            "git config core.fileMode false; git config core.bare true || true",
        ],
    )
    def test_are_not_hidden_by_what_the_agent_does_to_git(self, site: Site, kind: str, trick: str) -> None:
        before = site.durable.head()
        session = site.start(workspace=kind)
        shell(session, f"echo changed > app.py; {trick}")
        assert session.touched_files() == ["app.py"]
        assert site.durable.head() == before

    @pytest.mark.parametrize("ruin", ["rm -rf .git", "rm .git/index; rm .git/HEAD", "echo x > .git/HEAD; chmod 0 .git/index"])
    def test_survive_the_loss_of_the_agent_s_git(self, site: Site, ruin: str) -> None:
        session = site.start()
        shell(session, f"echo changed > app.py; {ruin}")
        assert session.touched_files() == ["app.py"]
        assert site.durable.contains(session.promote().sha)

    def test_of_a_vanished_workspace_are_an_error(self, site: Site) -> None:
        session = site.start()
        os.rename(site.directory(session) / "workspace", site.root / "stolen")
        with pytest.raises(AdapterUnavailable, match="gone"):
            session.touched_files()

    def test_leave_out_what_both_sets_of_ignore_rules_ignore(self, tmp_path: Path) -> None:
        with open_site(tmp_path, FILES | {".gitignore": "build/\n*.o\n"}) as site:
            session = site.start()
            shell(session, "mkdir build; echo x > build/out; echo x > a.o; echo x > a.c")
            assert session.touched_files() == ["a.c"]
            shell(session, "echo build/ > .gitignore")
            assert session.touched_files() == [".gitignore", "a.c", "a.o"]

    def test_do_not_contain_sockets_or_pipes(self, site: Site) -> None:
        session = site.start()
        shell(session, "mkfifo pipe; echo x > file")
        assert session.touched_files() == ["file"]


class TestDiff:
    def test_is_what_git_applies(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3, 30))
        session.write("new", "no newline at the end")
        session.write("bin", bytes(range(256)))
        session.delete("README.md")
        patch = site.root / "diff.patch"
        patch.write_text(session.diff(), errors="surrogateescape")
        tree = session.review().tree
        site.durable.git("apply", "--cached", str(patch))
        assert site.durable.git("write-tree") == tree

    def test_of_some_paths_holds_those(self, session: UserSession) -> None:
        session.write("app.py", "v2\n")
        session.write("src/util.py", edited(3))
        diff = session.diff(["app.py", "README.md"])
        assert "app.py" in diff
        assert "util.py" not in diff

    def test_refuses_paths_that_lead_out(self, session: UserSession) -> None:
        with pytest.raises(GittrixError):
            session.diff(["../x"])


def test_a_session_s_files_are_no_other_session_s(site: Site) -> None:
    one, two = site.start(), site.start()
    one.write("app.py", "one\n")
    two.delete("app.py")
    assert one.read("app.py") == b"one\n"
    assert two.touched_files() == ["app.py"]
    assert not two.exists("app.py")


def test_absolute_paths_below_the_workspace_name_its_files(site: Site) -> None:
    session = site.start()
    root = session.workspace_path
    session.write(f"{root}/src/new", "x\n")
    assert session.read(f"{root}/src/new") == session.read("src/new") == b"x\n"
    assert session.exists(f"{root}/src/new")
    assert session.list(str(root)) == session.list()
    assert session.diff([f"{root}/src/new"]) == session.diff(["src/new"]) != ""
    for outside in ("/etc/passwd", f"{root}/../outside", f"{root}x/file", f"{root}/.git/config"):
        with pytest.raises(WriteRejected):
            session.read(outside)
    assert [*session.review([f"{root}/src/new"]).changes] == ["src/new"]
    assert session.promote([f"{root}/src/new"], allow_secrets=[f"{root}/src/new"], strategy="patch").patch is not None


def test_links_are_followed_as_programs_follow_them(site: Site) -> None:
    session = site.start()
    shell(session, f"mkdir d && ln -s ../src d/up && ln -s d/up/util.py far && ln -s {session.workspace_path}/app.py absolute")
    shell(session, "ln -s nothing dangling; ln -s one two; ln -s two one; ln -s .git git; ln -s src/../../x out")
    assert session.read("d/up/util.py") == session.read("far") == session.read("src/util.py")
    assert session.read("absolute") == session.read("app.py")
    session.write("dangling", "made\n")
    assert session.read("nothing") == b"made\n"
    for wrong in ("one", "git/config", "out"):
        with pytest.raises(WriteRejected):
            session.read(wrong)
        with pytest.raises(WriteRejected):
            session.write(wrong, "x")


def test_two_dots_after_a_link_lead_above_the_place_behind_it(site: Site) -> None:
    session = site.start()
    shell(session, "mkdir -p d/e && echo right > d/x && echo wrong > x && ln -s d/e dl && ln -s dl/../x l")
    shell(session, "ln -s nothing/../x through-nothing; ln -s x/ slash; ln -s x/../x through-a-file; ln -s dl/../../../x out")
    assert session.read("l") == b"right\n"
    session.write("l", "new\n")
    assert (session.read("d/x"), session.read("x")) == (b"new\n", b"wrong\n")
    for wrong in ("through-nothing", "slash", "through-a-file", "out"):
        with pytest.raises(WriteRejected, match="leads out of the workspace, in a circle or nowhere"):
            session.read(wrong)


def test_a_path_without_links_is_found_at_the_first_look(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_arguments: object) -> None:
        raise AssertionError("the path was walked")

    session.write("src/util.py", "new\n")  # a lazy workspace has it on the disk from now on
    monkeypatch.setattr(ShownFiles, "_target_of", walk)
    assert session.read("src/util.py") == b"new\n"
    session.write("src/util.py", "newer\n")
    with pytest.raises(AssertionError, match="walked"):
        session.read("link")


@pytest.mark.parametrize("target", ["/etc", "..", "../../durable"])
def test_a_link_out_of_the_workspace_is_not_followed(site: Site, target: str) -> None:
    session = site.start()
    shell(session, f"rm -r src; ln -s {target} src")
    before = site.durable.fingerprint()
    with pytest.raises(GittrixError):
        session.write("src/planted", "x")
    with pytest.raises(GittrixError):
        session.read("src/passwd")
    assert session.touched_files() == ["src", "src/deep/er.txt", "src/util.py"]
    assert site.durable.fingerprint() == before
