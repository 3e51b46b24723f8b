"""Attachments of a session's messages: bytes stored next to its log, named by their digest, so that events can refer to them (Pixir).

They stay with the record when the workspace is removed.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import InvalidInput, LogDamaged, PathNotFound
from pytest_gittrix.os_level.files import link_or_copy, sync_directory, sync_tree, write_file

RESOURCES: Final = "resources"
_NAME: Final = re.compile(r"sha256:([0-9a-f]{64})")


def resource_name(data: bytes) -> str:
    """The name under which bytes are attached: ``sha256:`` and their digest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def attach(directory: Path, data: bytes, *, sync: bool) -> str:
    """Store bytes in a session's directory, if they are not there already; returns their name.

    Raises:
        OSError: the disk refused.
    """
    name = resource_name(data)
    path = directory / RESOURCES / name.partition(":")[2]
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_file(str(path), data, sync=sync)
        if sync:
            sync_directory(path.parent)
            sync_directory(directory)
    return name


def attached(directory: Path, name: str) -> bytes:
    """The bytes of that name.

    Raises:
        InvalidInput: it is no such name.
        PathNotFound: nothing of that name is attached to the session.
        LogDamaged: they are not what they were.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidInput(
            f"{name!r} is not the name of an attachment.", fix="Use the name that attach() returned: sha256: and 64 hex digits."
        )
    try:
        data = (directory / RESOURCES / found[1]).read_bytes()
    except FileNotFoundError:
        raise PathNotFound(f"The session has no attachment {name}.", fix="attach() it first.") from None
    if resource_name(data) != name:
        raise LogDamaged(f"{directory / RESOURCES / found[1]} is not the attachment that was stored.", why="Its digest has changed.")
    return data


def share(source: Path, target: Path, *, sync: bool) -> None:
    """Give one session the attachments of another, as hard links: attachments never change.

    Raises:
        OSError: the disk refused.
    """
    if not (source / RESOURCES).is_dir():
        return
    (target / RESOURCES).mkdir(exist_ok=True)
    for name in os.listdir(source / RESOURCES):
        if not _NAME.fullmatch(f"sha256:{name}"):
            continue  # half an attachment, which a kill left
        with suppress(FileExistsError):
            link_or_copy(source / RESOURCES / name, target / RESOURCES / name)
    if sync:
        sync_tree(str(target / RESOURCES))
        sync_directory(target)
