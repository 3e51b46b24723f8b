"""Released wheels of a package, pinned by hash, fetched by pip, and read without running or installing them.

A wheel is a zip file from a stranger, so nothing in it is trusted: names, kinds and sizes are checked before a byte is read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, InvalidInput, WriteRejected
from pytest_gittrix.formats.toml_file import TomlTable, Version1, load_toml
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.testing.repos.history import Executable

LEAST: Final = 3
"""The number of releases that a suite needs at least: one to start from, one to apply, one to drift."""

Files = Mapping[str, bytes | Executable]
"""The files of a wheel, by path."""

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]{0,98}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TIMEOUT: Final = 300.0
_MOST_FILES: Final = 50_000
_MOST_BYTES: Final = 500_000_000
# Files about an installation, not about the package: digests of all other files, and signatures of those.
_OF_AN_INSTALLATION: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")


class _PinTable(TomlTable):
    version: str
    sha256: str


class _PinsFile(TomlTable):
    schema_version: Version1
    package: str
    release: list[_PinTable]


@dataclass(frozen=True, slots=True)
class Pin:
    """A release and the hash of its wheel.

    Attributes:
        version: the version as the index names it.
        sha256: the SHA-256 of the wheel, 64 hex digits; empty if it is not known yet.
    """

    version: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Pins:
    """The chosen releases of a package, oldest first. Made by ``Pins.of`` and ``Pins.read``.

    Attributes:
        package: the name of the package.
        releases: at least ``LEAST`` releases.
    """

    package: str
    releases: tuple[Pin, ...]

    @classmethod
    def of(cls, package: str, releases: Sequence[Pin]) -> Pins:
        """Make pins and check them.

        Raises:
            InvalidInput: the name, a version or a hash is malformed, there are too few releases, or one is given twice.
        """
        _require(_NAME, package, "the name of a package")
        for release in releases:
            _require(_VERSION, release.version, "a version")
            if release.sha256:
                _require(_SHA256, release.sha256, "a SHA-256 in hex digits")
        versions = [release.version for release in releases]
        if len(versions) < LEAST or len(set(versions)) < len(versions):
            raise InvalidInput(
                f"Of {package} there are {len(set(versions))} different releases: {', '.join(versions) or 'none was given'}.",
                why="A case starts from one release, applies the next one, and meets what the one after that changes.",
                fix=f"Give at least {LEAST} versions, each once, in the order in which they were made.",
            )
        return cls(package, tuple(releases))

    @classmethod
    def read(cls, file: Path) -> Pins:
        """Read pins from a file as ``encode`` writes it.

        Raises:
            InvalidInput: it is not such a file; the message names file and key.
        """
        found = load_toml(file, _PinsFile)
        return cls.of(found.package, [Pin(one.version, one.sha256) for one in found.release])

    def only(self, versions: Sequence[str]) -> Pins:
        """Some of the releases, in the given order. Raises InvalidInput if one is not pinned, or there are too few."""
        known = {release.version: release for release in self.releases}
        missing = [version for version in versions if version not in known]
        if missing:
            raise InvalidInput(
                f"{', '.join(missing)} of {self.package} is not pinned.",
                why="Only what is pinned is known to be what it was.",
                fix=f"Use some of {', '.join(known)}.",
            )
        return Pins.of(self.package, [known[version] for version in versions])

    def encode(self) -> str:
        """The pins as the text of a file."""
        lines = [f'schema = 1\npackage = "{self.package}"\n']
        lines += [f'\n[[release]]\nversion = "{one.version}"\nsha256 = "{one.sha256}"\n' for one in self.releases]
        return "".join(lines)


def fetch(package: str, pin: Pin) -> tuple[str, Files]:
    """Download the wheel of a release from pip's index, and refuse it if its hash is not the pinned one.

    Args:
        package: the name of the package.
        pin: the release; with an empty hash any wheel is accepted.

    Returns:
        The SHA-256 of the wheel, and its files, see ``read``.

    Raises:
        CapabilityMissing: this Python has no pip.
        AdapterUnavailable: pip could not download it.
        InvalidInput: the wheel is not the pinned one, or cannot be read.
    """
    if importlib.util.find_spec("pip") is None:
        raise CapabilityMissing(
            f"{sys.executable} has no pip.", why="Wheels are fetched by pip, with its settings.", fix="Run python -m ensurepip."
        )
    with tempfile.TemporaryDirectory(prefix="gittrix-wheel-") as directory:
        _download(package, pin.version, directory)
        wheels = sorted(Path(directory).iterdir())
        if len(wheels) != 1:
            raise AdapterUnavailable(f"pip gave {len(wheels)} files for {package} {pin.version}.", fix="Try again, or update pip.")
        found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
        if pin.sha256 not in ("", found):
            raise InvalidInput(
                f"The wheel of {package} {pin.version} has the SHA-256 {found}, not {pin.sha256}.",
                why="It is not the file that was pinned, so nothing in it is used.",
                fix="Find out which of the two is right: another index, another platform's wheel, or a wheel that was replaced.",
            )
        return found, read(wheels[0], package, pin.version)


def read(wheel: Path, package: str, version: str) -> Files:
    """Read the files of a wheel.

    ``.dist-info`` and ``.data`` lose the version in their names, so that releases can be compared. The list of installed files is left
    out.

    Args:
        wheel: the file.
        package: the package that it must be of.
        version: the release that it must be of.

    Raises:
        InvalidInput: it is not a wheel of that release, it is damaged or too large, or a name or a kind in it is not allowed.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _checked_members(wheel.name, archive.infolist())
            raw = {name: archive.read(member) for name, member in members.items()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as problem:
        raise InvalidInput(f"{wheel.name} cannot be read: {problem}.", why="A wheel is a zip file.", fix="Get it again.") from None
    directory = _metadata_directory(wheel.name, raw, package, version)
    stem = directory.removesuffix(".dist-info")
    renamed = {f"{stem}{ending}": f"{_normal(package)}{ending}" for ending in (".dist-info", ".data")}
    found: dict[str, bytes | Executable] = {}
    for name, data in raw.items():
        top, slash, rest = name.partition("/")
        if top == directory and rest in _OF_AN_INSTALLATION:
            continue
        path = f"{renamed.get(top, top)}{slash}{rest}"
        found[path] = Executable(data) if members[name].external_attr >> 16 & 0o111 else data
    return found


def _checked_members(wheel: str, members: Sequence[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """The files among the members of a zip file, by canonical path."""
    if len(members) > _MOST_FILES or sum(member.file_size for member in members) > _MOST_BYTES:
        raise InvalidInput(
            f"{wheel} holds {len(members)} files of {sum(member.file_size for member in members)} bytes.",
            why=f"More than {_MOST_FILES} files or {_MOST_BYTES} bytes are not taken.",
            fix="Use a smaller package.",
        )
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        try:
            path = check_path(member.filename.removesuffix("/") if member.is_dir() else member.filename)
        except WriteRejected as problem:
            raise _not_allowed(wheel, member.filename, problem.fact) from None
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _not_allowed(wheel, member.filename, "It is neither a file nor a directory.")
        if path in found:
            raise _not_allowed(wheel, member.filename, "It appears twice.")
        if not member.is_dir():
            found[path] = member
    return found


def _not_allowed(wheel: str, name: str, why: str) -> InvalidInput:
    return InvalidInput(f"{wheel} holds {name!r:.200}, so none of it is unpacked.", why=why, fix="Do not use that wheel.")


def _metadata_directory(wheel: str, files: Mapping[str, bytes], package: str, version: str) -> str:
    """The ``.dist-info`` of a wheel, checked to be of that release (PEP 427)."""
    found = {name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA") and name.count("/") == 1}
    if len(found) == 1:
        directory = found.pop()
        metadata = BytesHeaderParser().parsebytes(files[f"{directory}/METADATA"])
        if _normal(str(metadata["Name"])) == _normal(package) and str(metadata["Version"]) == version:
            return directory
    raise InvalidInput(
        f"{wheel} does not say that it is {package} {version}.",
        why="Its METADATA is missing, or has another name or version.",
        fix="Give the version as the release itself writes it.",
    )


def _normal(name: str) -> str:
    """A package's name in the one form of all its spellings (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _download(package: str, version: str, directory: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:", "--no-deps", "--dest", directory]
    command = [sys.executable, "-P", "-m", "pip", "download", *options, f"{package}=={version}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise AdapterUnavailable(
            f"pip took longer than {_TIMEOUT:g} s for {package} {version}.", fix="Check that the index responds."
        ) from None
    if done.returncode != 0:
        output = done.stderr.decode(errors="replace").strip().splitlines() or [f"It ended with status {done.returncode}."]
        raise AdapterUnavailable(
            f"pip got no wheel of {package} {version}.",
            why=output[-1][:300],
            fix="See that `pip download` works here, and has that release.",
        )


def _require(pattern: re.Pattern[str], value: str, meant: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidInput(f"{value!r:.100} is not {meant}.", why="It goes to pip as it is.", fix=f"Give {meant}.")
