"""Which untracked files are work, are withheld, or are ignored: by the baseline's rules, the workspace's, and the agent's own git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.git import Content, GitRepo, make_workspace

from pytest_gittrix.workspaces.snapshot import Snapshot
from pytest_gittrix.workspaces.workspace import Workspace

Standings = Mapping[str, list[str]]


def workspace_with(tmp_path: Path, baseline: Mapping[str, Content], kind: str = "clone") -> Workspace:
    return make_workspace(GitRepo.make(tmp_path / "durable", dict(baseline)), tmp_path, kind=kind)


def standings(taken: Snapshot) -> Standings:
    """What a snapshot has among the changes, withholds, and passes over."""
    return {"work": [*taken.changes], "withheld": [*taken.withheld], "ignored": [*taken.ignored]}


def shell(workspace: Workspace, script: str) -> None:
    subprocess.run(["sh", "-ec", script], cwd=workspace.path, check=True, capture_output=True)


CASES: Mapping[str, tuple[Mapping[str, Content], str, Standings]] = {
    "a rule that is taken away shows what it ignored": (
        {".gitignore": "lib/\n"},
        ": > .gitignore; mkdir lib; echo x > lib/core.py",
        {"work": [".gitignore", "lib/core.py"], "withheld": [], "ignored": []},
    ),
    "rules that are deleted show what they ignored": (
        {".gitignore": "lib/\n"},
        "rm .gitignore; mkdir lib; echo x > lib/core.py",
        {"work": [".gitignore", "lib/core.py"], "withheld": [], "ignored": []},
    ),
    "a rule that is added withholds what it ignores": (
        {".gitignore": "build/\n"},
        "echo node_modules/ >> .gitignore; mkdir -p node_modules/p build; echo x > node_modules/p/1.js; echo x > build/o",
        {"work": [".gitignore"], "withheld": ["node_modules/p/1.js"], "ignored": ["build/"]},
    ),
    "rules that an added directory brings along withhold it": (
        {"app.py": "x\n"},
        "mkdir .cache; echo '*' > .cache/.gitignore; echo x > .cache/data",
        {"work": [], "withheld": [".cache/.gitignore", ".cache/data"], "ignored": []},
    ),
    "rules in a directory below are read too": (
        {"src/.gitignore": "*.o\n", "src/a.c": "x\n"},
        "echo '!keep.o' >> src/.gitignore; echo x > src/keep.o; echo x > src/other.o",
        {"work": ["src/.gitignore", "src/keep.o"], "withheld": [], "ignored": ["src/other.o"]},
    ),
    "an exclude file withholds": (
        {"app.py": "x\n"},
        "mkdir -p .git/info; echo '*.tmp' > .git/info/exclude; echo x > a.tmp; echo x > b",
        {"work": ["b"], "withheld": ["a.tmp"], "ignored": []},
    ),
    "a file that is added by force is work": (
        {".gitignore": "*.log\nout/\n"},
        "mkdir out; echo x > a.log; echo x > b.log; echo x > out/c; echo x > out/d; git add -f a.log out/c",
        {"work": ["a.log", "out/c"], "withheld": [], "ignored": ["b.log", "out/d"]},
    ),
    "a file that is committed by force is work, whatever the index says now": (
        {".gitignore": "*.log\nout/\n"},
        "mkdir out; echo x > a.log; echo x > out/c; git add -f a.log out/c; git commit -qm x; git rm -q --cached a.log out/c",
        {"work": ["a.log", "out/c"], "withheld": [], "ignored": []},
    ),
    "a forced file in a packed commit is work": (
        {".gitignore": "out/\n"},
        "mkdir out; echo x > out/c; git add -f out/c; git commit -qm x; git gc -q; git rm -q --cached out/c",
        {"work": ["out/c"], "withheld": [], "ignored": []},
    ),
    "a forced file in a directory that only the workspace ignores is work": (
        {"app.py": "x\n"},
        "echo out/ > .gitignore; mkdir out; echo x > out/c; echo x > out/d; git add -f out/c",
        {"work": [".gitignore", "out/c"], "withheld": ["out/d"], "ignored": []},
    ),
    "rules that are a link are none": (
        {".gitignore": "*.o\n"},
        "printf '*.c\\n' > rules; rm .gitignore; ln -s rules .gitignore; echo x > a.o; echo x > a.c",
        {"work": [".gitignore", "a.c", "a.o", "rules"], "withheld": [], "ignored": []},
    ),
    "rules that are a directory are none": (
        {".gitignore": "*.o\n"},
        "rm .gitignore; mkdir .gitignore; echo x > .gitignore/x; echo x > a.o",
        {"work": [".gitignore", ".gitignore/x", "a.o"], "withheld": [], "ignored": []},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_untracked_file_stands_as_its_rules_say(tmp_path: Path, name: str) -> None:
    baseline, script, expected = CASES[name]
    workspace = workspace_with(tmp_path, baseline)
    shell(workspace, script)

    assert standings(workspace.snapshot()) == expected


@pytest.mark.parametrize("kind", ["clone", "worktree", "copy"])
def test_a_repository_of_the_agents_own_counts_in_every_kind_of_workspace(tmp_path: Path, kind: str) -> None:
    workspace = workspace_with(tmp_path, {".gitignore": "*.log\n"}, kind)
    shell(workspace, "git init -q 2>/dev/null || true; echo x > a.log; echo x > b.log; git add -f a.log")

    assert standings(workspace.snapshot()) == {"work": ["a.log"], "withheld": [], "ignored": ["b.log"]}


def test_a_named_file_is_work_whatever_the_rules_say(tmp_path: Path) -> None:
    workspace = workspace_with(tmp_path, {".gitignore": "out/\n"})
    shell(workspace, "echo new/ >> .gitignore; mkdir out new; echo x > out/a; echo x > new/b; echo x > new/c")

    taken = workspace.snapshot(named=["out/a", "new/b"])

    assert standings(taken) == {"work": [".gitignore", "new/b", "out/a"], "withheld": ["new/c"], "ignored": []}
    assert taken.touched == [".gitignore", "new/b", "new/c", "out/a"]


def test_what_is_withheld_is_named_by_its_uppermost_directory_and_size(tmp_path: Path) -> None:
    workspace = workspace_with(tmp_path, {"src/a.py": "x\n"})
    shell(workspace, "printf 'deps/\\n*.tmp\\n' > .gitignore; mkdir -p deps/a/b src/deps; printf 123 > deps/a/b/c; printf 4 > deps/d")
    shell(workspace, "printf 56 > src/deps/e; printf 7 > src/f.tmp")

    assert [*workspace.snapshot().withheld_lines] == [
        "'deps/' (2 files, 4 bytes): only the workspace's own ignore rules ignore it",
        "'src/deps/' (1 file, 2 bytes): only the workspace's own ignore rules ignore it",
        "'src/f.tmp' (1 byte): only the workspace's own ignore rules ignore it",
    ]


def closed(path: Path) -> None:
    path.chmod(0)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def filled(path: Path) -> None:
    path.write_bytes(b"DIRC" + os.urandom(4096))


@pytest.mark.parametrize("spoil", [closed, piped, linked, filled])
@pytest.mark.parametrize("file", [".git/index", ".git/HEAD", ".git/info/exclude", ".gitignore"])
def test_a_file_that_the_agent_spoiled_neither_hides_work_nor_stops_a_look(
    tmp_path: Path, file: str, spoil: Callable[[Path], None]
) -> None:
    workspace = workspace_with(tmp_path, {"app.py": "x\n"})
    shell(workspace, "mkdir -p .git/info; echo '*.tmp' | tee .git/info/exclude > .gitignore; echo x > new.py; echo x > a.tmp")
    spoil(Path(workspace.path, file))
    if file == ".gitignore" and spoil is closed and os.geteuid() != 0:
        pytest.skip("a file that its owner closed is refused by name, as any other")

    assert "new.py" in workspace.snapshot().touched


def test_a_pipe_among_the_agents_packs_is_not_waited_for(tmp_path: Path) -> None:
    workspace = workspace_with(tmp_path, {".gitignore": "*.log\n"})
    shell(workspace, "echo x > a.log; git add -f a.log; git commit -qm x; git rm -q --cached a.log; mkfifo .git/objects/pack/pack-1.idx")
    shell(workspace, "rm -r .git/objects/??")  # now the commit could be in a pack alone

    assert standings(workspace.snapshot())["ignored"] == ["a.log"]
