"""A baseline that moves: random commits of every kind of change, and branches that are put back; and what a directory made of it holds."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

from support.git import Content, GitRepo, executable, link, submodule

PLACES = ("a", "b", "d/a", "d/b", "d/e/f", "d/e/g", "z/a", "z/.gitignore", ".gitignore", "d.x", "d-", "twin/e/f", "twin/e/g")


def _content(draw: random.Random, path: str, id_size: int) -> Content:
    if path.endswith(".gitignore"):
        return draw.choice(["*.log\n", "!x\n*.o\n"])
    text = f"{draw.randrange(6)}\n"
    return draw.choice([text, text * 400, executable("x\n"), link("a"), submodule("1" * id_size)])


def edit(draw: random.Random, repo: GitRepo) -> None:
    """Commit some edits, or rewind the branch and forget what was there."""
    if draw.random() < 0.15 and repo.text("rev-list", "--count", "main") != "1":
        repo.git("update-ref", "refs/heads/main", "main~1")
        if draw.random() < 0.5:
            repo.git("reflog", "expire", "--expire=now", "--all")
            repo.git("gc", "-q", "--prune=now")
        return
    there = repo.tree()
    files: dict[str, Content] = {}
    for path in draw.sample(PLACES, draw.randint(1, 4)):
        files[path] = None if path in there and draw.random() < 0.4 else _content(draw, path, len(repo.head()))
    if draw.random() < 0.2:  # a directory becomes a file, or the reverse
        files |= dict.fromkeys((path for path in there if path.startswith("d/")), None)
        files = {path: new for path, new in files.items() if new is None or not path.startswith("d/")} | {"d": "a file\n"}
    elif "d" in there and any(path.startswith("d/") and new is not None for path, new in files.items()):
        files["d"] = None
    repo.commit({path: new for path, new in files.items() if new is not None or path in there})


def contents(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a directory: its mode, its time if it is no directory, and its bytes. Names of packs have no meaning."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        name = str(path.relative_to(root))
        if stat.S_ISDIR(status.st_mode):
            found[name] = status.st_mode, 0, b""
        elif ".git/objects/pack/" not in name:
            data = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            found[name] = status.st_mode, 0 if name.startswith(".git/") else status.st_mtime_ns, data
    return found
