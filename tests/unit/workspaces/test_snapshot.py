"""Snapshots: whatever is done in a workspace, and however it is hidden from git, is found; nothing else is."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.git import Content, Found, GitRepo, executable, found, git, link, make_workspace, moded, put, submodule

from pytest_gittrix.git.tree import EXECUTABLE, FILE, SYMLINK
from pytest_gittrix.os_level.files import temporary_name
from pytest_gittrix.workspaces.snapshot import latest_change, take_snapshot
from pytest_gittrix.workspaces.workspace import Workspace, create, open_workspace

FILES: Mapping[str, Content] = {
    "app.py": "value = 1\n",
    "run.sh": executable("#!/bin/sh\n"),
    "link": link("app.py"),
    "src/util.py": "x = 1\n",
    "src/deep/er.txt": "deeper\n",
    "lib/util.py": "y = 2\n",
    ".gitignore": "*.log\nbuild/\n",
    "kept.log": "tracked, though ignored\n",
    "build/made.txt": "tracked in an ignored directory\n",
    "vendor": submodule("1" * 40),
}


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> GitRepo:
    """A repository with a file of each kind; no test changes it."""
    return GitRepo.make(tmp_path_factory.mktemp("snapshot") / "durable", FILES)


def expected(changes: Mapping[str, Content]) -> Found:
    """Changes as ``found`` gives them."""
    return {path: None if content is None else moded(content) for path, content in sorted(changes.items())}


def test_a_fresh_workspace_has_no_changes_and_the_tree_of_its_baseline(workspace: Workspace) -> None:
    taken = workspace.snapshot()

    assert taken.changes == {}
    assert taken.refused == {}
    assert taken.tree == workspace.seed.root


def edit(root: Path) -> None:
    put(root, {"app.py": "value = 2\n"})


def edit_and_commit(root: Path) -> None:
    edit(root)
    git("commit", "-qam", "mine", cwd=root)


def edit_and_commit_and_go_back_softly(root: Path) -> None:
    edit_and_commit(root)
    git("update-ref", "-d", "HEAD", cwd=root)


def edit_what_git_is_told_to_assume_unchanged(root: Path) -> None:
    git("update-index", "--assume-unchanged", "app.py", cwd=root)
    edit(root)


def edit_what_git_is_told_to_skip(root: Path) -> None:
    git("update-index", "--skip-worktree", "app.py", cwd=root)
    edit(root)


def edit_and_restore_times(root: Path) -> None:
    before = (root / "app.py").stat()
    edit(root)
    os.utime(root / "app.py", ns=(before.st_atime_ns, before.st_mtime_ns))


def rename_over(root: Path) -> None:
    put(root, {"other": "value = 2\n"})
    os.utime(root / "other", ns=(0, 0))
    (root / "other").rename(root / "app.py")


def write_through_a_mapping(root: Path) -> None:
    with (root / "app.py").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[8:9] = b"2"


def edit_a_hard_link_elsewhere(root: Path) -> None:
    os.link(root / "app.py", root.parent / "elsewhere")
    with (root.parent / "elsewhere").open("r+b") as file:
        file.seek(8)
        file.write(b"2")


def edit_without_a_git_directory(root: Path) -> None:
    shutil.rmtree(root / ".git")
    edit(root)


def edit_with_a_git_directory_that_leads_elsewhere(root: Path) -> None:
    shutil.rmtree(root / ".git")
    (root / ".git").write_text("gitdir: /nowhere\n")
    edit(root)


def edit_with_attributes_and_configuration_that_normalise(root: Path) -> None:
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/attributes").write_text("* text=auto filter=erase\n")
    git("config", "filter.erase.clean", "git cat-file blob HEAD:app.py", cwd=root)
    git("config", "core.fileMode", "false", cwd=root)
    edit(root)


@pytest.mark.parametrize(
    "hide",
    [
        edit,
        edit_and_commit,
        edit_and_commit_and_go_back_softly,
        edit_what_git_is_told_to_assume_unchanged,
        edit_what_git_is_told_to_skip,
        edit_and_restore_times,
        rename_over,
        write_through_a_mapping,
        edit_a_hard_link_elsewhere,
        edit_without_a_git_directory,
        edit_with_a_git_directory_that_leads_elsewhere,
        edit_with_attributes_and_configuration_that_normalise,
    ],
)
def test_an_edit_is_seen_however_it_is_made(workspace: Workspace, hide: Callable[[Path], None]) -> None:
    hide(Path(workspace.path))

    assert found(workspace.snapshot()) == expected({"app.py": "value = 2\n"})


CHANGES: dict[str, Mapping[str, Content]] = {
    "a new file": {"new.py": "n\n"},
    "a new file deep down": {"one/two/three.py": "n\n"},
    "an empty file": {"src/__init__.py": ""},
    "bytes that are no text": {"image": bytes(range(256))},
    "line endings, as they are": {"app.py": "value = 1\r\n"},
    "a deletion": {"src/deep/er.txt": None},
    "all of a directory gone": {"src/util.py": None, "src/deep/er.txt": None},
    "a file made executable": {"app.py": executable("value = 1\n")},
    "a file made plain": {"run.sh": "#!/bin/sh\n"},
    "a link that leads elsewhere": {"link": link("run.sh")},
    "a link that leads out": {"link": link("/etc/passwd")},
    "a link to a directory": {"also": link("src")},
    "a file that became a link": {"app.py": link("run.sh")},
    "a link that became a file": {"link": "value = 1\n"},
    "a file that became a directory": {"app.py": None, "app.py/inner": "i\n"},
    "a directory that became a file": {"src/util.py": None, "src/deep/er.txt": None, "src": "flat\n"},
    "a tracked file that the rules would ignore": {"kept.log": "edited\n"},
    "its deletion": {"kept.log": None},
    "an edit in an ignored directory": {"build/made.txt": "edited\n"},
    "fewer ignore rules": {".gitignore": None},
    "a submodule that became a file": {"vendor": "plain\n"},
    "a submodule gone": {"vendor": None},
    "names git would quote": {"tab\there": "1", 'quo"te': "2", "new\nline": "3", " ": "4", "-rf": "5", "*": "6", "Größe": "7"},
    "names that are not UTF-8": {os.fsdecode(b"\xff\xfe"): "1", os.fsdecode(b"dir\xe9/x"): "2"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_with_its_kind_and_bytes(workspace: Workspace, name: str) -> None:
    put(Path(workspace.path), CHANGES[name])

    assert found(workspace.snapshot()) == expected(CHANGES[name])


def test_what_was_changed_and_changed_back_is_no_change(workspace: Workspace) -> None:
    root = Path(workspace.path)
    put(root, {"app.py": "value = 2\n", "src/util.py": None})
    put(root, {"app.py": "value = 1\n", "src/util.py": "x = 1\n"})

    assert workspace.snapshot().changes == {}


def test_directories_that_changed_places_are_looked_at_whole(workspace: Workspace) -> None:
    root = Path(workspace.path)
    (root / "src").rename(root / "aside")
    (root / "lib").rename(root / "src")
    (root / "aside").rename(root / "lib")

    changes = {"src/util.py": "y = 2\n", "src/deep/er.txt": None, "lib/util.py": "x = 1\n", "lib/deep/er.txt": "deeper\n"}
    assert found(workspace.snapshot()) == expected(changes)


def test_a_directory_prepared_long_before_is_looked_at_whole(durable: GitRepo, tmp_path: Path) -> None:
    put(tmp_path / "prepared", {"util.py": "x = 9\n", "deep/er.txt": "shallow\n"})
    workspace = make_workspace(durable, tmp_path)
    root = Path(workspace.path)
    shutil.rmtree(root / "src")
    (tmp_path / "prepared").rename(root / "src")

    assert found(workspace.snapshot()) == expected({"src/util.py": "x = 9\n", "src/deep/er.txt": "shallow\n"})


def test_a_directory_replaced_by_a_link_is_not_followed(workspace: Workspace, tmp_path: Path) -> None:
    root = Path(workspace.path)
    (root / "src").rename(tmp_path / "outside")
    (root / "src").symlink_to(tmp_path / "outside")

    changes = {"src": link(str(tmp_path / "outside")), "src/util.py": None, "src/deep/er.txt": None}
    assert found(workspace.snapshot()) == expected(changes)


def test_hard_links_are_files_of_their_own(workspace: Workspace) -> None:
    root = Path(workspace.path)
    os.link(root / "app.py", root / "copy.py")
    (root / "link").unlink()
    os.link(root / "run.sh", root / "link")

    assert found(workspace.snapshot()) == expected({"copy.py": "value = 1\n", "link": executable("#!/bin/sh\n")})


def test_only_the_owners_executable_bit_counts_as_git_has_it(workspace: Workspace) -> None:
    (Path(workspace.path) / "app.py").chmod(0o655)

    assert workspace.snapshot().changes == {}


def test_untracked_files_that_the_baseline_ignores_are_left_out_unless_named(workspace: Workspace) -> None:
    put(Path(workspace.path), {"debug.log": "l\n", "src/deep/debug.log": "l\n", "build/cache/x": "b\n", "seen.txt": "s\n"})

    assert found(workspace.snapshot()) == expected({"seen.txt": "s\n"})
    assert found(workspace.snapshot(named=["debug.log"])) == expected({"seen.txt": "s\n", "debug.log": "l\n"})


def test_a_named_file_is_found_below_an_ignored_directory(tmp_path: Path) -> None:
    workspace = make_workspace(GitRepo.make(tmp_path / "durable", {".gitignore": "out/\n"}), tmp_path)
    put(Path(workspace.path), {"out/deep/wanted": "w\n", "out/deep/other": "o\n"})

    assert found(workspace.snapshot(named=["out/deep/wanted"]))["out/deep/wanted"] == (FILE, b"w\n")
    assert workspace.snapshot().changes == {}


def test_empty_directories_are_nothing(workspace: Workspace) -> None:
    (Path(workspace.path) / "empty/inside").mkdir(parents=True)

    assert workspace.snapshot().tree == workspace.seed.root


def test_a_nested_repository_is_taken_as_files_without_its_git_directory(workspace: Workspace) -> None:
    nested = GitRepo.make(Path(workspace.path) / "nested", {"inner.py": "i\n"})

    assert nested.status() == []
    assert found(workspace.snapshot()) == expected({"nested/inner.py": "i\n"})


def test_files_in_a_submodules_place_are_reported_since_they_cannot_be_promoted(workspace: Workspace) -> None:
    put(Path(workspace.path), {"vendor/file": "v\n"})

    taken = workspace.snapshot()

    assert taken.changes == {}
    assert list(taken.refused) == ["vendor"]


def test_a_file_that_became_a_pipe_is_gone(workspace: Workspace) -> None:
    Path(workspace.path, "app.py").unlink()
    os.mkfifo(os.path.join(workspace.path, "app.py"))

    assert found(workspace.snapshot()) == {"app.py": None}


def test_the_engines_own_temporary_files_are_no_changes_but_a_baselines_file_of_such_a_name_is(tmp_path: Path) -> None:
    tracked = temporary_name()
    repo = GitRepo.make(tmp_path / "durable", {tracked: "1\n", "a": "1\n"})
    workspace = make_workspace(repo, tmp_path)
    put(Path(workspace.path), {temporary_name(): "half\n"})

    assert workspace.snapshot().changes == {}
    put(Path(workspace.path), {tracked: "2\n"})
    assert found(workspace.snapshot()) == expected({tracked: "2\n"})


def test_pipes_and_sockets_are_passed_over_without_waiting(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.path)  # a socket's address is a short name
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")

        assert workspace.snapshot().changes == {}


def test_a_stepped_clock_makes_every_file_suspect(workspace: Workspace) -> None:
    edit(Path(workspace.path))
    # A stamp from the future is what a clock that was set back looks like: every change seems older than the workspace.
    deceived = workspace.created._replace(stamp=workspace.created.stamp + 10**12)

    assert take_snapshot(workspace.path, workspace.seed, deceived, workspace.git()).changes == {}
    stepped = deceived._replace(boot=deceived.boot + 10**12)
    assert list(take_snapshot(workspace.path, workspace.seed, stepped, workspace.git()).changes) == ["app.py"]


def test_a_workspace_opened_again_gives_the_same_snapshot(workspace: Workspace, tmp_path: Path) -> None:
    put(Path(workspace.path), {"app.py": "value = 2\n", "lib/util.py": None})

    reopened = open_workspace(workspace.path, str(tmp_path / "workspace-state"))

    assert reopened.snapshot() == workspace.snapshot()


def test_in_a_lazy_workspace_absence_is_no_deletion_unless_it_was_told(durable: GitRepo, tmp_path: Path) -> None:
    workspace = make_workspace(durable, tmp_path, "lazy")
    put(Path(workspace.path), {"app.py": "value = 2\n", "run.sh": executable("#!/bin/sh\n")})

    assert found(workspace.snapshot()) == expected({"app.py": "value = 2\n"})
    changes = found(workspace.snapshot(deleted=["src/util.py", "app.py", "never/there"]))
    assert changes == expected({"app.py": "value = 2\n", "src/util.py": None})


def test_the_tree_and_its_objects_are_whole_for_git(workspace: Workspace, tmp_path: Path) -> None:
    put(Path(workspace.path), {"app.py": None, "app.py/inner": executable("i\n"), "src/util.py": None, "new": link("x")})
    taken = workspace.snapshot()
    judge = GitRepo.make(tmp_path / "judge", FILES)

    for id_, (kind, data) in taken.objects.items():
        assert judge.text("hash-object", "-t", kind, "-w", "--stdin", stdin=data) == id_

    tree = judge.tree(taken.tree)
    assert tree["app.py/inner"].mode == EXECUTABLE
    assert tree["new"].mode == SYMLINK
    assert "src/util.py" not in tree
    assert len(tree) == len(FILES)


def test_a_sha256_workspace_is_named_in_sha256(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"}, object_format="sha256")
    workspace = make_workspace(repo, tmp_path)
    put(Path(workspace.path), {"a": "2\n"})

    entry = workspace.snapshot().changes["a"]

    assert entry is not None
    assert entry.id == repo.text("hash-object", "--stdin", stdin=b"2\n")


def test_the_latest_change_is_the_newest_of_all_files_and_zero_for_nothing(workspace: Workspace) -> None:
    before = latest_change(workspace.path)
    put(Path(workspace.path), {"src/deep/new": "n\n"})
    os.utime(os.path.join(workspace.path, "src/deep/new"), ns=(0, 0))

    after = latest_change(workspace.path)

    assert after == os.stat(os.path.join(workspace.path, "src/deep/new")).st_ctime_ns
    assert after >= before
    assert latest_change(workspace.path + "-gone") == 0


def test_taking_a_snapshot_changes_nothing(workspace: Workspace) -> None:
    put(Path(workspace.path), {"app.py": "value = 2\n"})
    before = {path: path.lstat().st_ctime_ns for path in Path(workspace.path).rglob("*")}

    workspace.snapshot()

    assert {path: path.lstat().st_ctime_ns for path in Path(workspace.path).rglob("*")} == before
    assert stat.S_ISDIR(os.stat(workspace.path).st_mode)


def test_a_seed_can_serve_workspaces_that_do_not_see_each_other(durable: GitRepo, tmp_path: Path) -> None:
    one = make_workspace(durable, tmp_path, name="one")
    two = create("clone", str(tmp_path / "two"), str(tmp_path / "two-state"), one.seed)
    put(Path(one.path), {"app.py": "value = 2\n"})

    assert list(one.snapshot().changes) == ["app.py"]
    assert two.snapshot().changes == {}
