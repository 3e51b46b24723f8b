"""Unpacks what comes out of a sandbox as an archive: an agent decided what is in it, so nothing of it may leave its directory."""

from __future__ import annotations

import os
import tarfile

from pytest_gittrix.os_level.open_below import tolerating_shape
from pytest_gittrix.os_level.safe_dir import SafeDir


def unpack(archive: tarfile.TarFile, target: str | os.PathLike[str]) -> None:
    """Make the files, directories and links of an archive in a directory. Only the executable bit of their modes is kept.

    Left out are special files, and whatever would be outside of the directory or leads out of it. No link is followed, neither one of the
    archive nor one that was there before. It works on every Python: the filters of ``tarfile`` came with 3.11.4.

    Args:
        archive: open for reading.
        target: the directory.

    Raises:
        WriteRejected: the system refused, as for want of room.
        tarfile.TarError: the archive is damaged.
    """
    links = []
    with SafeDir.open(target) as directory:
        for member in archive:
            path = _inside(member.name)
            if not path:
                continue
            with tolerating_shape():
                if member.isdir():
                    directory.make_directory(path)
                elif member.issym():
                    directory.make_link(path, os.fsencode(member.linkname))
                    links.append(os.path.join(target, path))
                elif (data := _data(archive, member)) is not None:
                    directory.write(path, data, executable=bool(member.mode & 0o100))
    root = os.path.realpath(target)
    # All are judged before one goes, since one can lead out by way of another.
    for link in [link for link in links if _leads_out(link, root)]:
        os.unlink(link)


def _inside(name: str) -> str:
    """The canonical path of a name in an archive; empty for the directory itself, and where it is outside."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "" if ".." in parts else "/".join(parts)


def _data(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    """The contents of a file, or of the file that a hard link is another name of; None for anything else."""
    try:
        stream = archive.extractfile(member) if member.isfile() or member.islnk() else None
    except KeyError:  # the file is not in the archive
        return None
    return None if stream is None else stream.read()


def _leads_out(link: str, root: str) -> bool:
    if not os.path.islink(link):
        return False  # a later member took its place
    try:
        real = os.path.realpath(link, strict=True)
    except FileNotFoundError:
        real = os.path.realpath(link)
    except OSError:  # a circle, or one that is too long to be followed to its end
        return True
    return os.path.commonpath([real, root]) != root
