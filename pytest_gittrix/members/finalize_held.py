"""Files that a finalization holds back because they seem to hold credentials: it archives them, and reports what lets them through.

A person lets a file through by its path, or by the fingerprint in the report, which is of just what was found. Neither is ever read from
the workspace, where the agent writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.git_directory import open_bare
from pytest_gittrix.git.objects import ObjectFormat
from pytest_gittrix.git.pack import install_pack
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.os_level.files import sync_directory, write_file
from pytest_gittrix.workspaces.secrets import Suspect, masked

_WORD: Final = re.compile(r"[A-Za-z0-9_./@%+=:,-]+")
"""A path that any shell reads as it is written. The agent chose it, and a person is to paste it; so it is no secret either."""
_SHOWN: Final = 10


@dataclass(frozen=True)
class HeldBack:
    """What is done about the files that one finalization holds back.

    Attributes:
        session: id of the session.
        archive: the directory of their archives, a bare repository for each repository of the workspace.
        allowed: paths and fingerprints that a person lets through.
    """

    session: str
    archive: Path
    allowed: frozenset[str] = frozenset()

    def keep(self, name: str, files: Mapping[str, Entry], blobs: Mapping[str, bytes], author: Signature, format_: ObjectFormat) -> str:
        """Archive files of a repository as the commit on ``main`` of a bare repository; an earlier one is replaced. Returns where it is.

        Args:
            name: the repository's.
            files: their entries by path.
            blobs: bytes of the entries by id.
            author: whose commit it is.
            format_: the repository's object format.
        """
        path = self.archive / f"{name}.git"
        message = f"Held back by the finalization of session {self.session}"
        built = build_commit(lambda _tree: {}, None, files, blobs, parent=None, author=author, message=message, format_=format_)
        open_bare(path, format_.name, sync=True)
        install_pack(str(path / "objects"), built.pack, sync=True)
        write_file(path / "packed-refs", f"# pack-refs with: sorted \n{built.id} refs/heads/main\n".encode(), sync=True)
        sync_directory(str(path))
        return f"{self.archive.name}/{name}.git"

    def way_through(self, suspects: Iterable[Suspect], *, by_path: bool = False) -> str:
        """What a person types to let files through: by their fingerprints, or by their paths as far as these are plain words."""
        names = list(dict.fromkeys(one.path if by_path and _is_plain(one) else one.fingerprint for one in suspects))
        options = " ".join(f"--allow-secret={name}" for name in names[:_SHOWN])
        more = f" (and {len(names) - _SHOWN} more, by their paths)" if len(names) > _SHOWN else ""
        return f"to let {'it' if len(names) == 1 else 'them'} through: gittrix session finalize {self.session} {options}{more}"


def _is_plain(one: Suspect) -> bool:
    return one.has_telling_path and _WORD.fullmatch(one.path) is not None and masked(one.path) == one.path
