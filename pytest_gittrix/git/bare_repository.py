"""Makes small bare repositories of the engine, without git: nothing of a template or of a person's configuration is in them."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gittrix.os_level.files import sync_directory, sync_tree, write_file


def open_bare(path: Path, format_name: str, borrow: str | None = None, *, sync: bool = False) -> None:
    """Make a small bare repository, if it is not there yet; it may borrow objects of others, of one more each time. Its HEAD comes last."""
    alternates = path / "objects" / "info" / "alternates"
    lender = b"" if borrow is None else os.fsencode(borrow) + b"\n"
    if (path / "HEAD").exists():
        lenders = alternates.read_bytes() if alternates.exists() else b""
        if lender not in lenders:
            write_file(alternates, lenders + lender, sync=sync)
        return
    (path / "objects" / "info").mkdir(parents=True, exist_ok=True)
    (path / "refs").mkdir(exist_ok=True)
    sha256 = format_name != "sha1"
    extensions = f"[extensions]\n\tobjectFormat = {format_name}\n" if sha256 else ""
    config = f"[core]\n\trepositoryformatversion = {int(sha256)}\n\tbare = true\n{extensions}[gc]\n\tauto = 0\n"
    write_file(path / "config", config.encode())
    if lender:
        write_file(alternates, lender)
    if sync:
        sync_tree(str(path))
        sync_directory(str(path.parent))
    write_file(str(path / "HEAD"), b"ref: refs/heads/main\n", sync=sync)
