"""A person's checkout, in any state: a promotion brings clean selected files forward, or is refused and changes no byte (rule 5)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from support.bytes import changed, everything_below
from support.git import git, stream
from support.hostile import HOOKS
from support.scene import SOAK, WORK, Scene, scratch

from pytest_gittrix.errors import WorktreeDirty

SELECTED: Final = [*WORK]
MARKED: Final = "a hook ran"


def modify(tree: Path, path: str) -> None:
    (tree / path).write_text("by the person\n")


def stage(tree: Path, path: str, git: Callable[..., str]) -> None:
    modify(tree, path)
    git("add", path)


def stage_partly(tree: Path, path: str, git: Callable[..., str]) -> None:
    stage(tree, path, git)
    (tree / path).write_text("by the person, further\n")


def touch(tree: Path, path: str) -> None:
    os.utime(tree / path, ns=(1, 1))


TRACKED: Final[Mapping[str, Callable[[Path, str, Callable[..., str]], object]]] = {
    "clean": lambda tree, path, git: None,
    "touched": lambda tree, path, git: touch(tree, path),
    "dirty": lambda tree, path, git: modify(tree, path),
    "staged": stage,
    "partly staged": stage_partly,
    "deleted": lambda tree, path, git: (tree / path).unlink(),
    "deletion staged": lambda tree, path, git: git("rm", "-q", path),
    "untracked by the index": lambda tree, path, git: git("rm", "-q", "--cached", path),
    "executable": lambda tree, path, git: (tree / path).chmod(0o755),
    "a link": lambda tree, path, git: ((tree / path).unlink(), (tree / path).symlink_to("README.md")),
    "a directory": lambda tree, path, git: ((tree / path).unlink(), (tree / path).mkdir()),
}


def write_new(tree: Path, path: str, data: bytes = b"by the person\n") -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_bytes(data)


def stage_new(tree: Path, path: str, git: Callable[..., str]) -> None:
    write_new(tree, path)
    git("add", path)


def ignored(tree: Path, path: str, git: Callable[..., str]) -> None:
    write_new(tree, path)
    exclude = Path(git("rev-parse", "--path-format=absolute", "--git-path", "info/exclude"))
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("new/\n")


NEW: Final[Mapping[str, Callable[[Path, str, Callable[..., str]], object]]] = {
    "absent": lambda tree, path, git: None,
    "beside": lambda tree, path, git: write_new(tree, "new/other.py"),
    "untracked": lambda tree, path, git: write_new(tree, path),
    "untracked, the same bytes": lambda tree, path, git: write_new(tree, path, WORK[path] or b""),
    "staged": stage_new,
    "ignored": ignored,
    "a file for its directory": lambda tree, path, git: (tree / "new").write_text("by the person\n"),
    "a link for its directory": lambda tree, path, git: (tree / "new").symlink_to("src"),
    "a directory": lambda tree, path, git: write_new(tree, f"{path}/inner.txt"),
    "an empty directory": lambda tree, path, git: (tree / path).mkdir(parents=True),
}

UNDER_WAY: Final[Mapping[str, list[list[str]]]] = {
    "nothing": [],
    "a stash": [["stash", "push", "-q", "-u"]],
    "another branch": [["checkout", "-q", "-b", "elsewhere"]],
    "detached": [["checkout", "-q", "--detach"]],
    "a merge": [["merge", "-q", "side"]],
    "a merge to be committed": [["merge", "-q", "--no-commit", "--no-ff", "quiet"]],
    "a squash": [["merge", "-q", "--squash", "quiet"]],
    "a cherry-pick": [["cherry-pick", "side"]],
    "a revert": [["revert", "--no-edit", "main~1"]],
    "a rebase": [["rebase", "-q", "side"]],
    "a rebase that stopped to edit": [["rebase", "-q", "-i", "main~1"]],
    "a patch series": [["am", "-q", "../side.patch"]],
    "a bisect": [["bisect", "start"], ["bisect", "bad"], ["bisect", "good", "main~2"]],
}

STATES = st.fixed_dictionaries(
    {
        "app.py": st.sampled_from([*TRACKED]),
        "src/b/two.txt": st.sampled_from([*TRACKED]),
        "new/deep.py": st.sampled_from([*NEW]),
        "README.md": st.sampled_from([*TRACKED]),
        "run.sh": st.sampled_from([*TRACKED]),
    }
)


def prepared(root: Path) -> tuple[Scene, str]:
    """A scene with history to merge, pick and rebase, and a session that has worked; and the session."""
    scene = Scene(root)
    commits = [("side", "conflict.txt", "side\n"), ("quiet", "quiet.txt", "quiet\n")]
    commits += [("main", "conflict.txt", "main\n"), ("main", "conflict.txt", "main\nmain\n")]
    tips: dict[str, str] = {}
    history = b""
    for mark, (branch, path, text) in enumerate(commits, start=1):
        parent = tips.get(branch, scene.baseline)
        history += stream(f"refs/heads/{branch}", {path: text}, parent=parent, message=f"on {branch}", mark=mark)
        tips[branch] = f":{mark}"
    git("fast-import", "--quiet", "--date-format=raw", cwd=scene.durable, stdin=history)
    scene.git("reset", "-q", "--hard")
    (root / "side.patch").write_text(scene.git("format-patch", "--stdout", "-1", "side") + "\n")
    return scene, scene.session()


def put_into_state(scene: Scene, tree: Path, under_way: str, states: Mapping[str, str]) -> Callable[..., str]:
    """Start what is under way, then change files; gives a git that runs there. What does not go together is left out."""

    def run(*arguments: str, fails: bool = False) -> str:
        return scene.git("-C", str(tree), *arguments, fails=fails, GIT_SEQUENCE_EDITOR="sed -i s/^pick/edit/", GIT_EDITOR=":")

    if under_way == "a stash":
        modify(tree, "src/a/one.txt")
        write_new(tree, "new/stashed.txt")
    for command in UNDER_WAY[under_way]:
        run(*command, fails=True)
    for path, state in states.items():
        (NEW if path.startswith("new/") else TRACKED)[state](tree, path, run)
    return run


def is_refused(git: Callable[..., str]) -> bool:
    """What must come of a promotion, by git's own account of the checkout."""
    git_dir = Path(git("rev-parse", "--absolute-git-dir"))
    head = git("rev-parse", "--symbolic-full-name", "HEAD")
    operations = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "BISECT_LOG", "sequencer")
    under_way = [name for name in operations if (git_dir / name).exists()]
    if head != "refs/heads/main":
        return bool({"rebase-merge", "rebase-apply", "BISECT_LOG"} & {*under_way})  # of main: it is main that they will move
    entries = git("status", "--porcelain", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames").split("\0")
    named = {entry[3:].rstrip("/") for entry in entries if entry}
    related = {path for path in named for ours in SELECTED if path == ours or ours.startswith(path + "/") or path.startswith(ours + "/")}
    # Git passes empty directories over; one in the place of a file could only be removed.
    return bool(under_way or related) or any((Path(git("rev-parse", "--show-toplevel")) / path).is_dir() for path in SELECTED)


def account(git: Callable[..., str]) -> dict[str, str]:
    """What a person sees."""
    commands = {
        "status": ["status", "--porcelain", "--untracked-files=all", "--ignored", "--branch"],
        "staged": ["diff", "--cached", "--binary", "--", ".", *(f":!{path}" for path in SELECTED)],
        "dirty": ["diff", "--binary"],
        "stash": ["stash", "list", "--format=%H"],
        "stashed": ["stash", "show", "-p", "--include-untracked", "--binary"],
        "index": ["ls-files", "-s", "-v", "--", ".", *(f":!{path}" for path in SELECTED)],
    }
    return {name: git(*command, fails=True) for name, command in commands.items()}


def install_hooks(scene: Scene) -> Path:
    marker = scene.root / MARKED
    for name in HOOKS:
        hook = scene.git_dir / "hooks" / name
        hook.write_text(f"#!/bin/sh\necho {name} >> '{marker}'\nexit 1\n")
        hook.chmod(0o755)
    return marker


def check_promotion(scene: Scene, session: str, tree: Path, git: Callable[..., str]) -> str:
    """Promote, and compare everything; gives what came of it."""
    refused = is_refused(git)
    on_branch = git("symbolic-ref", "-q", "HEAD", fails=True) == "refs/heads/main"
    listed = account(git)
    marker = install_hooks(scene)
    head = scene.git("rev-parse", "main")
    before, tree_before = everything_below(scene.durable), everything_below(tree)
    with scene.engine(init=False) as engine:
        try:
            result = engine.get_session(session).promote()
        except WorktreeDirty:
            assert refused, "refused although everything selected was clean"
            assert changed(before, everything_below(scene.durable)) == set()
            assert changed(tree_before, everything_below(tree)) == set()
            assert engine.info(session).state == "active"
            return "refused"
    assert not refused, "landed although the person had work in the way"
    assert not marker.exists()
    assert result.warnings == ()
    assert scene.git("rev-list", f"{head}..main").split() == [result.sha]
    moved = changed(tree_before, everything_below(tree))
    allowed = {*SELECTED, "new", "src/b"} if on_branch else set()
    assert {path for path in moved if path.split("/")[0] != ".git"} <= allowed
    known = ("refs/heads", "logs/refs", "objects/pack", *(["index", "logs/HEAD", "worktrees/"] if on_branch else []))
    inside = {path.removeprefix(".git/") for path in changed(before, everything_below(scene.durable)) if path.startswith(".git/")}
    assert {path for path in inside if not path.startswith(known) and path != "logs"} == set()
    for name in HOOKS:
        (scene.git_dir / "hooks" / name).unlink()
    assert account(git) == listed
    return "landed, checkout brought forward" if on_branch else "landed"


@pytest.mark.parametrize("linked", [False, True], ids=["main-work-tree", "linked-work-tree"])
def test_a_promotion_brings_clean_files_forward_or_changes_no_byte(linked: bool) -> None:
    found: Counter[str] = Counter()

    @settings(max_examples=600 if SOAK else 25, suppress_health_check=[HealthCheck.too_slow], deadline=None, derandomize=not SOAK)
    @given(states=STATES, under_way=st.sampled_from([*UNDER_WAY]), dirty=st.sets(st.sampled_from(SELECTED), max_size=1))
    def check(states: Mapping[str, str], under_way: str, dirty: set[str]) -> None:
        # Most examples have at most one selected file that is not clean, or hardly any would land.
        kept = {path: state for path, state in states.items() if path not in SELECTED or path in dirty}
        with scratch() as root:
            scene, session = prepared(root)
            tree = scene.durable
            if linked:
                tree = root / "linked"
                scene.git("checkout", "-q", "-b", "desk")
                modify(scene.durable, "app.py")
                scene.git("worktree", "add", "-q", str(tree), "main")
            git = put_into_state(scene, tree, under_way, kept)
            note(git("status"))
            found[check_promotion(scene, session, tree, git)] += 1

    check()
    print(f"{'linked' if linked else 'main'} work tree: {sum(found.values())} states, {dict(found)}")
    assert set(found) == {"refused", "landed", "landed, checkout brought forward"}


@pytest.mark.parametrize("under_way", UNDER_WAY)
def test_a_promotion_during(under_way: str) -> None:
    with scratch() as root:
        scene, session = prepared(root)
        git = put_into_state(scene, scene.durable, under_way, {})
        lands = under_way in ("nothing", "a stash", "another branch", "detached", "a squash")
        assert (check_promotion(scene, session, scene.durable, git) != "refused") == lands


@pytest.mark.parametrize(("path", "state"), [(path, state) for path in SELECTED for state in (NEW if path.startswith("new/") else TRACKED)])
def test_a_promotion_over(path: str, state: str) -> None:
    with scratch() as root:
        scene, session = prepared(root)
        git = put_into_state(scene, scene.durable, "nothing", {path: state})
        lands = state in ("clean", "touched", "absent", "beside")
        assert (check_promotion(scene, session, scene.durable, git) != "refused") == lands
