"""Repositories made by hand from templates: git, GitPython and libgit2 must take each for one of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gittrix.errors import InvalidInput, UnsupportedRepository
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.testing.repos.history import Executable, History, Submodule, Symlink
from pytest_gittrix.testing.repos.templates import WRITTEN_AT, Template, Templates, shared_templates

POINTER = "1234567890" * 4
FILES = {
    "README.md": "# Read me\n",
    "a.txt": "sorts before a/\n",
    "a/deep/er/file": b"\0binary\xff",
    "a/run.sh": Executable("#!/bin/sh\n"),
    "a-b": "sorts before a/ too\n",
    "empty": "",
    "lib": Submodule(POINTER),
    "link": Symlink("a/deep"),
    "caf\u00e9": "utf-8\n",
    "raw-\udcff": "not utf-8\n",
    "with space\nand line": "odd\n",
}


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    return Templates(tmp_path / "templates")


@pytest.fixture
def template(templates: Templates) -> Template:
    return templates.of(History.of(FILES))


def git(path: Path, *arguments: str) -> str:
    return os.fsdecode(run_git(["-C", str(path), *arguments], env=hermetic_env()))


def test_git_takes_it_for_a_sound_and_clean_repository(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r")

    git(tmp_path / "r", "fsck", "--strict", "--full")
    assert git(tmp_path / "r", "status", "--porcelain", "--ignored") == ""
    assert git(tmp_path / "r", "symbolic-ref", "HEAD") == "refs/heads/main\n"
    assert git(tmp_path / "r", "rev-parse", "HEAD").strip() == template.head


def test_git_needs_to_read_no_file_to_find_it_clean(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r")

    # diff-files goes by recorded stat data alone; a racy index would make it read.
    assert git(tmp_path / "r", "diff-files", "--raw") == ""
    files = [path for path in (tmp_path / "r").rglob("*") if path.is_file() and ".git" not in path.parts and not path.is_symlink()]
    assert {path.stat().st_mtime for path in files} == {WRITTEN_AT}
    assert (tmp_path / "r" / ".git" / "index").stat().st_mtime > WRITTEN_AT


def test_the_work_tree_has_the_bytes_kinds_and_modes_that_were_asked_for(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r")

    root = tmp_path / "r"
    assert (root / "a/deep/er/file").read_bytes() == b"\0binary\xff"
    assert (root / "empty").read_bytes() == b""
    assert os.access(root / "a/run.sh", os.X_OK)
    assert not os.access(root / "README.md", os.X_OK)
    assert os.readlink(root / "link") == "a/deep"
    assert os.listdir(root / "lib") == []
    assert set(os.listdir(root)) == {".git", "a", *(name for name in FILES if "/" not in name)}


def test_the_index_is_the_one_git_would_write(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r")
    staged = git(tmp_path / "r", "ls-files", "-s", "-z")

    git(tmp_path / "r", "read-tree", "HEAD")

    assert staged == git(tmp_path / "r", "ls-files", "-s", "-z")
    assert len(staged.split("\0")) == len(FILES) + 1


def test_gitpython_and_libgit2_read_it(template: Template, tmp_path: Path) -> None:
    import git as gitpython
    import pygit2

    template.materialise(tmp_path / "r")

    with gitpython.Repo(tmp_path / "r") as repo:
        assert repo.head.commit.hexsha == template.head
        assert repo.active_branch.name == "main"
        assert (repo.head.commit.tree / "README.md").data_stream.read() == b"# Read me\n"
    opened = pygit2.Repository(str(tmp_path / "r"))
    assert str(opened.head.target) == template.head
    assert opened.status() == {}


def test_a_person_can_work_in_it(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r")
    root = tmp_path / "r"

    (root / "README.md").write_text("# Changed\n")
    git(root, "commit", "-q", "-a", "-m", "Change")
    git(root, "gc", "-q", "--prune=now")

    assert git(root, "log", "-1", "--format=%an <%ae>") == "Human <human@example.com>\n"
    assert git(root, "rev-parse", "HEAD^").strip() == template.head
    git(root, "fsck", "--strict")


def test_a_bare_one_has_no_work_tree(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r.git", bare=True)

    git_dir = f"--git-dir={tmp_path / 'r.git'}"
    assert git(tmp_path, git_dir, "rev-parse", "--is-bare-repository") == "true\n"
    git(tmp_path, git_dir, "fsck", "--strict")
    assert not (tmp_path / "r.git" / "index").exists()
    assert not (tmp_path / "r.git" / "README.md").exists()


def test_the_branch_can_have_another_name(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r", branch="feature/x")

    assert git(tmp_path / "r", "branch", "--format=%(refname)") == "refs/heads/feature/x\n"
    with pytest.raises(InvalidInput, match="not a branch name"):
        template.materialise(tmp_path / "s", branch="a..b")
    assert not (tmp_path / "s").exists()


def test_a_sha256_repository_is_one_to_git(templates: Templates, tmp_path: Path) -> None:
    files = {name: content for name, content in FILES.items() if name != "lib"}
    template = templates.of(History.of(files), object_format="sha256")

    template.materialise(tmp_path / "r")

    assert git(tmp_path / "r", "rev-parse", "--show-object-format", "HEAD").split() == ["sha256", template.head]
    git(tmp_path / "r", "fsck", "--strict")
    assert git(tmp_path / "r", "status", "--porcelain") == ""


def test_an_unknown_object_format_is_refused(templates: Templates) -> None:
    with pytest.raises(UnsupportedRepository, match="md5"):
        templates.of(History.of(), object_format="md5")


def test_a_long_history_is_one_pack(templates: Templates, tmp_path: Path) -> None:
    template = templates.of(History.of(history=[{f"f{number % 7}": f"{number}\n"} for number in range(100)]))

    template.materialise(tmp_path / "r")

    assert git(tmp_path / "r", "rev-list", "--reverse", "HEAD").split() == list(template.commits)
    assert sorted(path.suffix for path in (tmp_path / "r/.git/objects").rglob("*") if path.is_file()) == [".idx", ".pack"]
    git(tmp_path / "r", "fsck", "--strict")


def test_a_template_is_made_once(templates: Templates) -> None:
    assert templates.of(History.of({"a": "1"})) is templates.of(History.of({"a": "1"}))
    assert templates.of(History.of({"a": "1"})) is not templates.of(History.of({"a": "2"}))
    assert templates.of(History.of({"a": "1"})) is not templates.of(History.of({"a": "1"}), object_format="sha256")


def test_only_the_templates_used_last_are_remembered(templates: Templates) -> None:
    first = templates.of(History.of({"a": "first"}))
    for number in range(64):
        templates.of(History.of({"a": str(number)}))

    again = templates.of(History.of({"a": "first"}))

    assert again is not first
    assert again.head == first.head


def test_spoiling_one_repository_in_place_spoils_no_other(template: Template, tmp_path: Path) -> None:
    template.materialise(tmp_path / "r")
    template.materialise(tmp_path / "s")
    for path in (tmp_path / "r").rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o644)
            path.write_bytes(b"spoiled")

    template.materialise(tmp_path / "t")

    for name in "st":
        git(tmp_path / name, "fsck", "--strict", "--full")
        assert git(tmp_path / name, "status", "--porcelain") == ""


def large(seed: int = 0) -> History:
    return History.of({f"f{number}": b"".join((number * seed + i).to_bytes(2, "big") * 3 for i in range(40_000)) for number in range(20)})


def test_a_large_pack_is_linked_and_not_written_again(templates: Templates, tmp_path: Path) -> None:
    history = large(7)

    templates.of(history).materialise(tmp_path / "r")
    Templates(templates.directory).of(history).materialise(tmp_path / "s")

    (pack,) = (tmp_path / "r/.git/objects/pack").glob("*.pack")
    assert pack.stat().st_nlink == 3  # the template's own, and one in each repository
    git(tmp_path / "s", "fsck", "--strict", "--full")


def test_a_large_pack_is_copied_where_it_cannot_be_linked(templates: Templates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)

    template = templates.of(large(7))
    template.materialise(tmp_path / "r")
    shutil.rmtree(templates.directory)

    git(tmp_path / "r", "fsck", "--strict", "--full")


def test_what_is_there_already_is_left_alone(template: Template, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mine").write_text("mine")

    with pytest.raises(FileExistsError):
        template.materialise(tmp_path / "r")

    assert os.listdir(tmp_path / "r") == ["mine"]


def test_the_templates_of_a_process_go_when_it_ends_and_not_when_its_child_does() -> None:
    program = """
import os, sys
from pytest_gittrix.testing.repos.templates import shared_templates
directory = shared_templates().directory
if os.fork() == 0:
    sys.exit()
os.wait()
print(directory, os.path.isdir(directory))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    directory, survived_the_child = done.stdout.split()
    assert survived_the_child == "True"
    assert not os.path.exists(directory)
    assert shared_templates() is shared_templates()
