"""Git directories: found from a path, read for what their configuration says, and small bare ones, made without git."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from pytest_gittrix.errors import AdapterUnavailable, UnsupportedRepository
from pytest_gittrix.git import libgit2
from pytest_gittrix.git.environment import quote_config
from pytest_gittrix.git.objects import ObjectFormat, object_format
from pytest_gittrix.os_level.files import read_text, sync_directory, sync_tree, write_file

_CONFIG_FILES: Final = ("config", "config.worktree", "shallow")
_SHARED: Final = {"umask": 0, "group": 0o660} | dict.fromkeys(("all", "world", "everybody"), 0o664)
_OLD_SHARED: Final = {0: 0, 1: 0o660, 2: 0o664}
_BOOLEANS: Final = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)
_KNOWN_EXTENSIONS: Final = {
    "noop",
    "noop-v1",
    "objectformat",
    "preciousobjects",
    "worktreeconfig",
    "relativeworktrees",
    "refstorage",
    "partialclone",
}


class TextConfig(NamedTuple):
    """What a repository's own configuration says of the text in its work trees.

    Attributes:
        autocrlf: ``core.autocrlf``: True or False, or ``input``.
        crlf: whether text that no attribute says more of ends its lines in CRLF there (``core.autocrlf`` and ``core.eol``).
    """

    autocrlf: bool | str = False
    crlf: bool = False


class GitConfig(NamedTuple):
    """What the engine needs of a repository's configuration."""

    format: ObjectFormat
    bare: bool
    worktree: str | None
    trusts_modes: bool
    shared: str | None
    log_all_updates: str | None
    identity: tuple[str | None, str | None]
    text: TextConfig
    precious: bool


class Location(NamedTuple):
    """A repository that was discovered from a path: its git directory, and the work tree that the path is in, if it is in one."""

    git_dir: str
    work_tree: str | None

    @property
    def common_dir(self) -> str:
        """The directory of objects and branches, which a linked work tree shares with others."""
        pointer = read_text(os.path.join(self.git_dir, "commondir"))
        return os.path.normpath(os.path.join(self.git_dir, pointer)) if pointer else self.git_dir


def discover(start: str) -> Location:
    """Find the repository that ``start`` is, or the nearest one above it. Raises AdapterUnavailable where there is none."""
    here = start
    while True:
        dotgit = os.path.join(here, ".git")
        if os.path.isdir(dotgit):
            return Location(dotgit, here)
        pointer = read_text(dotgit) if os.path.isfile(dotgit) else None
        if pointer is not None and pointer.startswith("gitdir:"):
            return Location(os.path.normpath(os.path.join(here, pointer.removeprefix("gitdir:").strip())), here)
        if all(os.path.exists(os.path.join(here, name)) for name in ("HEAD", "objects", "refs")):
            return Location(here, None)
        above = os.path.dirname(here)
        if above == here:
            raise AdapterUnavailable(
                f"{start} is not in a git repository.",
                why="The durable side of a session is a real git repository; nothing was found there or above it.",
                fix="Give the path of a repository, or make one with `git init`.",
            )
        here = above


def _values(path: str) -> dict[str, str]:
    return {entry.name.lower(): "true" if entry.value is None else entry.value for entry in libgit2.Config(path)}


def _flag(names: Mapping[str, str], name: str, default: bool = False) -> bool:
    return names[name].lower() in ("true", "yes", "on", "1") if name in names else default


def _read_config(common_dir: str) -> GitConfig:
    try:
        names = _values(os.path.join(common_dir, "config"))
        own = os.path.join(common_dir, "config.worktree")
        if _flag(names, "extensions.worktreeconfig") and os.path.exists(own):
            # `git sparse-checkout` moves core.bare and core.worktree there.
            names |= _values(own)
    except (libgit2.GitError, OSError, UnicodeDecodeError) as error:
        raise AdapterUnavailable(
            f"The configuration of {common_dir} cannot be read: {error}.", fix="Repair it with `git config -e`."
        ) from error
    extensions = {name.removeprefix("extensions.") for name in names if name.startswith("extensions.")}
    partial = "partialclone" in extensions or any(name.startswith("remote.") and name.endswith(".promisor") for name in names)
    storage = names.get("extensions.refstorage", "files")
    reasons = [
        (
            os.path.exists(os.path.join(common_dir, "shallow")),
            "shallow: part of its history is missing",
            "run `git fetch --unshallow` there",
        ),
        (partial, "a partial clone: part of its objects is missing", "use a full clone"),
        (storage != "files", f"one that keeps references as {storage!r}", "convert it with `git refs migrate --ref-format=files`"),
        (
            bool(extensions - _KNOWN_EXTENSIONS),
            f"using unknown extensions {sorted(extensions - _KNOWN_EXTENSIONS)}",
            "use a repository without them",
        ),
    ]
    for refused, name, fix in reasons:
        if refused:
            raise UnsupportedRepository(
                f"{common_dir} is {name}.",
                why="A promotion there could lose or misread commits, so the engine refuses it by name.",
                fix=f"To go on, {fix}.",
            )
    return GitConfig(
        object_format(names.get("extensions.objectformat") or "sha1"),
        _flag(names, "core.bare"),
        names.get("core.worktree"),
        _flag(names, "core.filemode", True),
        _checked_shared(names.get("core.sharedrepository")),
        names.get("core.logallrefupdates"),
        (names.get("user.name"), names.get("user.email")),
        _text_config(names),
        _flag(names, "extensions.preciousobjects"),
    )


def _text_config(names: Mapping[str, str]) -> TextConfig:
    is_input = names.get("core.autocrlf", "").lower() == "input"
    autocrlf = "input" if is_input else _flag(names, "core.autocrlf")
    crlf = autocrlf is True or (not autocrlf and names.get("core.eol", "").lower() == "crlf")
    return TextConfig(autocrlf, crlf)


def common_dir_at(path: str | None) -> str | None:
    """The directory of objects and branches of the repository at a path; None if there is none."""
    if path is None or not os.path.isdir(path):
        return None
    try:
        return discover(os.path.realpath(path)).common_dir
    except AdapterUnavailable:
        return None


def text_config(common_dir: str | None) -> TextConfig:
    """What the configuration of a repository says of text; nothing, where it cannot be read."""
    try:
        return TextConfig() if common_dir is None else config_of(common_dir).text
    except AdapterUnavailable:
        return TextConfig()


def info_attributes(common_dir: str | None) -> bytes:
    """The contents of a repository's ``info/attributes``; empty where there is none."""
    try:
        return b"" if common_dir is None else Path(common_dir, "info", "attributes").read_bytes()
    except OSError:
        return b""


def shared_mode(setting: str | None, mode: int) -> int:
    """The mode that git gives to what it writes into a repository, by the repository's ``core.sharedRepository``.

    Args:
        setting: its value: ``group`` or ``true``, ``all``, ``world`` or ``everybody``, ``umask`` or ``false``, or an octal mode such as
            ``0640``; None if it is not set.
        mode: the mode of a new file or directory after the umask, with the bits of its kind, as ``st_mode``.

    Returns:
        The mode to give to it, with the same bits of its kind.

    Raises:
        AdapterUnavailable: git knows no such value.
    """
    bits, instead = _shared_bits(setting)
    if not bits:
        return mode
    if not mode & stat.S_IWUSR:
        bits &= ~0o222
    if mode & stat.S_IXUSR:
        bits |= (bits & 0o444) >> 2
    shared = mode & ~0o777 | bits if instead else mode | bits
    if stat.S_ISDIR(mode):
        shared |= (shared & 0o444) >> 2
        shared |= stat.S_ISGID if shared & 0o060 else 0
    return shared


def _shared_bits(setting: str | None) -> tuple[int, bool]:
    """The permission bits that a value of ``core.sharedRepository`` means, and whether they replace the file's own."""
    if setting is None or setting in _SHARED:
        return _SHARED[setting or "umask"], False
    if re.fullmatch(r"[0-7]*", setting):
        bits = int(setting or "0", 8)
        if bits in _OLD_SHARED:
            return _OLD_SHARED[bits], False
        if bits & 0o600 == 0o600:
            return bits & 0o666, True
    elif setting.lower() in _BOOLEANS or re.fullmatch(r"[0-9]+", setting):
        return (_SHARED["group"] if _BOOLEANS.get(setting.lower(), True) else 0), False
    raise AdapterUnavailable(
        f"core.sharedRepository is {setting[:80]!r}, which git does not know.",
        why="It says who may read and write what is written into the repository, and git itself stops at such a value.",
        fix="Set it right, for example `git config core.sharedRepository group`.",
    )


def _checked_shared(setting: str | None) -> str | None:
    _shared_bits(setting)
    return setting


def shared_setting(common_dir: str) -> str | None:
    """``core.sharedRepository`` of the repository with this common git directory. Raises what ``Repository.open`` raises."""
    return config_of(common_dir).shared


def config_of(common_dir: str) -> GitConfig:
    """Return the configuration of a common git directory, read again when one of its files has changed.

    Raises:
        AdapterUnavailable: it cannot be read.
        UnsupportedRepository: the repository is shallow, partial, or of a storage that the engine does not know.
    """
    return _config_as_of(common_dir, *(_stamp(os.path.join(common_dir, name)) for name in _CONFIG_FILES))


@lru_cache(maxsize=64)
def _config_as_of(common_dir: str, *_stamps: tuple[int, ...]) -> GitConfig:
    """The configuration. The stamps are part of the cache's key, so that it is read again when one of its files has changed."""
    return _read_config(common_dir)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_ctime_ns, status.st_size


def open_bare(path: Path, format_name: str, borrow: str | None = None, *, promised_by: str | None = None, sync: bool = False) -> None:
    """Make a small bare repository, if it is not there yet. Its HEAD comes last.

    Args:
        path: its directory.
        format_name: its object format.
        borrow: an object directory whose objects it has too; one more each time.
        promised_by: the address of a repository that git fetches objects from which are missing here; None where none may be missing.
        sync: write through to the disk.
    """
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
    if promised_by:  # libgit2 refuses a repository with git's extension for partial clones, and git needs the remote alone
        # Who fetches from here is sent what differs along the paths that changed: no other tree is looked at.
        config += f'[pack]\n\tuseSparse = true\n[remote "durable"]\n\turl = {quote_config(promised_by)}\n\tpromisor = true\n'
    write_file(path / "config", config.encode())
    if lender:
        write_file(alternates, lender)
    if sync:
        sync_tree(str(path))
        sync_directory(str(path.parent))
    write_file(str(path / "HEAD"), b"ref: refs/heads/main\n", sync=sync)
