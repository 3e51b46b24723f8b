"""Workspaces of each kind, judged by git: whole in themselves, telling nothing they should not, gone without a trace."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.engine import in_child
from support.git import FORMATS, Content, GitRepo, executable, link, make_workspace, put, submodule, try_git

from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput, PathNotFound
from pytest_gittrix.git.repository import Repository
from pytest_gittrix.workspaces.creation_note import json_name
from pytest_gittrix.workspaces.kinds import CAPABILITIES, KINDS, WorkspaceKind, check_kind
from pytest_gittrix.workspaces.seeds.prepare import prepare_seed
from pytest_gittrix.workspaces.trash import Trash
from pytest_gittrix.workspaces.workspace import adopt_workspace, create, open_workspace

FILES: Mapping[str, Content] = {
    "app.py": "value = 1\n",
    "run.sh": executable("#!/bin/sh\n"),
    "link": link("app.py"),
    "dangling": link("/nowhere/at/all"),
    "src/deep/er.txt": "deeper\n",
    "empty": "",
    "image": bytes(range(256)),
    "crlf.txt": "one\r\ntwo\r\n",
    ".gitattributes": "*.txt text=auto eol=lf\n",
    ".gitignore": "*.log\n",
    "kept.log": "tracked\n",
    "vendor/lib": submodule("1" * 40),
    "tab\there": "1\n",
    os.fsdecode(b"\xff\xfe"): "2\n",
    "-rf": "3\n",
    " ": "4\n",
}
WITH_FILES: tuple[WorkspaceKind, ...] = ("clone", "copy", "worktree")


@pytest.fixture
def durable(tmp_path: Path) -> GitRepo:
    """A repository with three commits and another branch that holds a secret."""
    repo = GitRepo.make(tmp_path / "durable", {"old.txt": "old\n", "app.py": "value = 0\n"})
    repo.commit({"old.txt": None, "middle.txt": "m\n"}, "second")
    repo.commit({**FILES, "middle.txt": None}, "third")
    repo.git("branch", "secret", "main")
    repo.commit({"secret.txt": "password\n"}, branch="secret")
    return repo


def modes(root: Path) -> dict[str, tuple[str, bytes]]:
    """Kind and bytes of every file below a directory, its git directory left out."""
    found = {}
    for path in root.rglob("*"):
        name, status = str(path.relative_to(root)), path.lstat()
        if name.split("/")[0] == ".git" or stat.S_ISDIR(status.st_mode):
            continue
        if path.is_symlink():
            found[name] = ("120000", os.fsencode(os.readlink(path)))
        else:
            found[name] = ("100755" if status.st_mode & 0o100 else "100644", path.read_bytes())
    return found


@pytest.mark.parametrize("kind", WITH_FILES)
def test_every_file_is_there_byte_for_byte(durable: GitRepo, tmp_path: Path, kind: WorkspaceKind) -> None:
    workspace = make_workspace(durable, tmp_path, kind)

    wanted = {
        path: (f"{entry.mode:o}", durable.git("cat-file", "blob", entry.id))
        for path, entry in durable.tree().items()
        if entry.kind != "submodule"
    }
    assert modes(Path(workspace.path)) == wanted
    assert (Path(workspace.path) / "vendor/lib").is_dir()


def test_a_lazy_workspace_starts_empty_and_a_copy_has_no_git(durable: GitRepo, tmp_path: Path) -> None:
    lazy = make_workspace(durable, tmp_path, "lazy", name="lazy")
    copy = make_workspace(durable, tmp_path, "copy", name="copy")

    assert os.listdir(lazy.path) == []
    assert not os.path.lexists(os.path.join(copy.path, ".git"))


@pytest.mark.parametrize("kind", ["clone", "worktree"])
def test_git_finds_a_fresh_workspace_clean_and_sound(durable: GitRepo, tmp_path: Path, kind: WorkspaceKind) -> None:
    workspace = GitRepo(Path(make_workspace(durable, tmp_path, kind).path))

    # The attributes ask git to normalise `crlf.txt`; that is the human's choice, and no change of the agent's.
    assert workspace.status() == []
    assert workspace.text("rev-parse", "HEAD") == durable.head()
    assert workspace.text("write-tree") == durable.text("rev-parse", "main^{tree}")
    workspace.fsck()


def test_a_clone_is_on_its_branch_and_the_agent_can_commit(durable: GitRepo, tmp_path: Path) -> None:
    with Repository.open(durable.path) as opened:
        seed = prepare_seed(str(tmp_path / "seeds"), opened, durable.head())
    create("clone", str(tmp_path / "workspace"), str(tmp_path / "state"), seed, branch="feature/x")
    workspace = GitRepo(tmp_path / "workspace")
    put(workspace.path, {"app.py": "value = 2\n"})

    workspace.git("commit", "-qam", "mine", env={"GIT_CONFIG_GLOBAL": str(tmp_path / "no-gitconfig")})

    assert workspace.text("symbolic-ref", "HEAD") == "refs/heads/feature/x"
    assert workspace.text("log", "--format=%an %s", "-1") == "agent mine"
    workspace.fsck()


def test_a_clone_borrows_nothing_and_leads_nowhere(durable: GitRepo, tmp_path: Path) -> None:
    workspace = GitRepo(Path(make_workspace(durable, tmp_path).path))

    assert workspace.text("remote") == ""
    assert not (workspace.git_dir / "objects/info/alternates").exists()
    everything = b"".join(path.read_bytes() for path in workspace.git_dir.rglob("*") if path.is_file())
    assert os.fsencode(durable.path) not in everything
    assert all(path.stat().st_nlink == 1 for path in workspace.git_dir.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("history", "subjects"),
    [
        ("none", ["third"]),
        (1, ["third", "second"]),
        (2, ["third", "second", "first"]),
        (9, ["third", "second", "first"]),
        ("full", ["third", "second", "first"]),
    ],
)
def test_history_reaches_as_far_as_it_may_and_no_further(durable: GitRepo, tmp_path: Path, history: int, subjects: list[str]) -> None:
    workspace = GitRepo(Path(make_workspace(durable, tmp_path, history=history).path))

    assert workspace.text("log", "--format=%s").splitlines() == subjects
    assert workspace.text("rev-parse", "--is-shallow-repository") == str(len(subjects) < 3).lower()
    workspace.fsck()
    assert workspace.status() == []
    readable = set(workspace.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())
    allowed = set(durable.text("rev-list", "--objects", "--no-object-names", f"--max-count={len(subjects)}", "main").split())
    commits = set(durable.text("rev-list", "main").splitlines()[: len(subjects)])
    assert readable == {id_ for id_ in allowed if durable.text("cat-file", "-t", id_) != "commit"} | commits


def test_neither_other_branches_nor_later_commits_can_be_read(durable: GitRepo, tmp_path: Path) -> None:
    workspace = GitRepo(Path(make_workspace(durable, tmp_path, history="full").path))
    later = durable.commit({"app.py": "from the future\n"})

    for hidden in (later, durable.head("secret"), durable.text("rev-parse", "secret:secret.txt"), f"{later}:app.py"):
        assert try_git("cat-file", "-e", hidden, cwd=workspace.path).returncode != 0


@pytest.mark.parametrize("kind", ["clone", "copy", "lazy"])
def test_a_rewind_and_a_gc_in_durable_take_nothing_away(durable: GitRepo, tmp_path: Path, kind: WorkspaceKind) -> None:
    workspace = make_workspace(durable, tmp_path, kind, history="full" if kind == "clone" else "none")
    baseline = durable.head()

    for branch in ("main", "secret"):
        durable.git("update-ref", f"refs/heads/{branch}", "main~2" if branch == "main" else "main")
    durable.git("reset", "-q", "--hard")
    durable.git("reflog", "expire", "--expire=now", "--all")
    durable.git("gc", "-q", "--prune=now")

    assert try_git("cat-file", "-e", baseline, cwd=durable.path).returncode != 0
    put(Path(workspace.path), {"app.py": "value = 2\n"})
    taken = workspace.snapshot()
    assert list(taken.changes) == ["app.py"]
    assert workspace.seed.blob(workspace.seed.entries["kept.log"].id) == b"tracked\n"
    if kind == "clone":
        GitRepo(Path(workspace.path)).fsck()


@pytest.mark.parametrize("object_format", FORMATS)
@pytest.mark.parametrize("bare", [False, True])
def test_both_object_formats_and_bare_repositories_serve(tmp_path: Path, object_format: str, bare: bool) -> None:
    files = {path: content for path, content in FILES.items() if path != "vendor/lib"}
    durable = GitRepo.make(tmp_path / "durable", files, bare=bare, object_format=object_format)
    durable.commit({"more": "m\n"})

    workspace = GitRepo(Path(make_workspace(durable, tmp_path, history=1).path))

    assert workspace.text("rev-parse", "--show-object-format") == object_format
    assert workspace.status() == []
    assert workspace.text("rev-list", "--count", "HEAD") == "2"
    workspace.fsck()


def test_a_linked_work_tree_is_listed_and_vanishes(durable: GitRepo, tmp_path: Path) -> None:
    before = durable.text("for-each-ref")
    workspace = make_workspace(durable, tmp_path, "worktree")
    assert f"worktree {workspace.path}" in durable.text("worktree", "list", "--porcelain")
    assert "HEAD " + durable.head() in durable.text("worktree", "list", "--porcelain")
    durable.fsck()

    workspace.remove(Trash(str(tmp_path / "trash")))

    assert workspace.path not in durable.text("worktree", "list", "--porcelain")
    assert durable.text("worktree", "prune", "--dry-run", "--verbose") == ""
    assert durable.text("for-each-ref") == before


def test_a_linked_work_tree_needs_a_local_repository_and_leaves_nothing_without(durable: GitRepo, tmp_path: Path) -> None:
    with Repository.open(durable.path) as opened:
        seed = prepare_seed(str(tmp_path / "seeds"), opened, durable.head())

    with pytest.raises(CapabilityMissing, match="'clone', 'lazy' or 'copy'"):
        create("worktree", str(tmp_path / "workspace"), str(tmp_path / "state"), seed)

    assert not (tmp_path / "workspace").exists()


def test_only_a_linked_work_tree_is_said_to_share_with_durable() -> None:
    assert [kind for kind in KINDS if not CAPABILITIES[kind].isolated] == ["worktree"]
    assert [kind for kind in KINDS if CAPABILITIES[kind].warning] == ["worktree"]
    assert [kind for kind in KINDS if CAPABILITIES[kind].git] == ["clone", "worktree", "overlay"]


@pytest.mark.parametrize("kind", ["Clone", "", None, 1])
def test_an_unknown_kind_is_refused_with_the_list_of_known_ones(kind: object) -> None:
    with pytest.raises(InvalidInput, match="clone, lazy, copy, worktree"):
        check_kind(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_workspace_is_opened_again_as_it_was_made(durable: GitRepo, tmp_path: Path, kind: WorkspaceKind) -> None:
    made = make_workspace(durable, tmp_path, kind, history=1)

    opened = open_workspace(made.path, str(tmp_path / "workspace-state"))

    assert (opened.kind, opened.path, opened.seed.commit, opened.seed.history) == (kind, made.path, made.seed.commit, 1)
    assert opened.created == made.created
    assert opened._admin == made._admin


def emptied(state: Path) -> None:
    (state / "workspace.json").write_text("")


def incomplete(state: Path) -> None:
    (state / "workspace.json").write_text("{}")


def another_kind_of_json(state: Path) -> None:
    (state / "workspace.json").write_text("[1]")


def gone(state: Path) -> None:
    (state / "workspace.json").unlink()


def seed_gone(state: Path) -> None:
    os.rename(state.parent / "seeds", state.parent / "elsewhere")


@pytest.mark.parametrize("harm", [emptied, incomplete, another_kind_of_json, gone, seed_gone])
def test_what_is_known_of_a_workspace_being_damaged_is_a_typed_error(
    durable: GitRepo, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    made = make_workspace(durable, tmp_path)
    harm(tmp_path / "workspace-state")

    with pytest.raises(AdapterUnavailable):
        open_workspace(made.path, str(tmp_path / "workspace-state"))


def test_a_workspace_that_another_system_made_is_looked_at_whole(durable: GitRepo, tmp_path: Path) -> None:
    made = make_workspace(durable, tmp_path)
    put(Path(made.path), {"app.py": "value = 2\n", "kept.log": None})

    assert adopt_workspace(made.path, "clone", made.seed).snapshot().changes == made.snapshot().changes
    with pytest.raises(AdapterUnavailable, match="not on this machine"):
        adopt_workspace(made.path, "cloud", made.seed)


def test_the_files_of_a_workspace_do_not_lead_out_and_close_with_it(durable: GitRepo, tmp_path: Path) -> None:
    workspace = make_workspace(durable, tmp_path)
    before = len(os.listdir("/proc/self/fd"))

    assert workspace.files.read("app.py")[0] == b"value = 1\n"
    with pytest.raises(PathNotFound):
        workspace.files.read("nothing")
    workspace.close()
    workspace.close()

    assert len(os.listdir("/proc/self/fd")) == before
    assert workspace.files.read("app.py")[0] == b"value = 1\n"
    workspace.close()


def test_names_survive_being_written_as_json() -> None:
    assert json_name("plain/ascii.txt") == "plain/ascii.txt"
    for name in ("é", os.fsdecode(b"\xff\xfe"), "日本"):
        assert os.fsdecode(json_name(name).encode("latin-1")) == name


def test_removing_is_a_rename_and_can_be_done_twice(durable: GitRepo, tmp_path: Path) -> None:
    trash = Trash(str(tmp_path / "trash"))
    workspace = make_workspace(durable, tmp_path)

    workspace.remove(trash)
    workspace.remove(trash)

    assert not os.path.lexists(workspace.path)
    (heap,) = os.listdir(tmp_path / "trash")
    assert (tmp_path / "trash" / heap / "app.py").exists()
    trash.empty_soon()
    trash.wait()
    assert os.listdir(tmp_path / "trash") == []


def test_what_was_made_read_only_is_removed_too(durable: GitRepo, tmp_path: Path) -> None:
    trash = Trash(str(tmp_path / "trash"))
    workspace = make_workspace(durable, tmp_path)
    put(Path(workspace.path), {"locked/deep/file": "f\n", "outside": link(str(durable.path))})
    for name in ("locked/deep", "locked", "src/deep", "src"):
        os.chmod(os.path.join(workspace.path, name), 0)

    workspace.remove(trash)
    trash.empty()

    assert os.listdir(tmp_path / "trash") == []
    assert (durable.path / "app.py").exists()


def test_an_empty_or_absent_trash_is_no_error(tmp_path: Path) -> None:
    trash = Trash(str(tmp_path / "trash"))

    trash.discard(str(tmp_path / "never"))
    trash.empty()
    trash.empty_soon()
    trash.wait()

    assert os.listdir(tmp_path / "trash") == []


def thrown_away(trash: Trash, tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    trash.discard(str(tmp_path / "thing"))
    trash.empty_soon()


def is_empty_soon(directory: Path) -> bool:
    end = time.monotonic() + 60
    while os.listdir(directory) and time.monotonic() < end:
        time.sleep(0.001)
    return os.listdir(directory) == []


def test_what_is_thrown_away_while_the_thread_ends_is_deleted_too(tmp_path: Path) -> None:
    trash = Trash(str(tmp_path / "trash"))
    for number in range(100):
        thrown_away(trash, tmp_path)
        time.sleep(number % 10 * 0.0001)
        thrown_away(trash, tmp_path)
        trash.wait()
        assert os.listdir(tmp_path / "trash") == []


def test_a_forked_process_empties_its_trash_with_a_thread_of_its_own(tmp_path: Path) -> None:
    trash = Trash(str(tmp_path / "trash"))
    thrown_away(trash, tmp_path)
    assert is_empty_soon(tmp_path / "trash")

    def child() -> None:
        for _ in range(2):
            thrown_away(trash, tmp_path)
            trash.wait()
            assert os.listdir(tmp_path / "trash") == []

    assert in_child(child) == 0
    trash.wait()


def test_a_trash_empties_directories_that_are_deeper_than_any_walk_goes(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    trash = Trash(str(tmp_path / "trash"))

    trash.discard(str(deep))
    trash.empty()

    assert list(tmp_path.iterdir()) == [tmp_path / "trash"]
    assert list((tmp_path / "trash").iterdir()) == []
