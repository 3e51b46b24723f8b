"""Released wheels of a package, pinned by hash: which, fetched by pip, and read without running or installing anything of them.

A wheel is a zip file that somebody else made, so nothing in it is believed: names, kinds and sizes are judged before a byte is read.
Must not know what is done with the files.
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
from pytest_gittrix.evals.inputs.strict_toml import Table
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.testing.repos.history import Executable

SCHEMA: Final = 1
LEAST: Final = 3
"""Releases that a suite needs: one to start from, one to apply, one to drift."""

Files = Mapping[str, bytes | Executable]
"""What a wheel holds, by path."""

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]{0,98}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TIMEOUT: Final = 300.0
_MOST_FILES: Final = 50_000
_MOST_BYTES: Final = 500_000_000
# What tells of an installation and not of the package: digests of all other files, and signatures of those.
_OF_AN_INSTALLATION: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True, slots=True)
class Pin:
    """A release and what its wheel must be.

    Attributes:
        version: as the index knows it.
        sha256: of the wheel, 64 hex digits; empty where nobody has said yet.
    """

    version: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Pins:
    """The releases of a package that are meant, in the order in which they were made. Made by ``Pins.of`` and ``Pins.read``.

    Attributes:
        package: its name.
        releases: at least three.
    """

    package: str
    releases: tuple[Pin, ...]

    @classmethod
    def of(cls, package: str, releases: Sequence[Pin]) -> Pins:
        """Pins, judged.

        Raises:
            InvalidInput: a name, a version or a hash is none, there are too few releases, or one is there twice.
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
        """Pins from a file, as ``encode`` writes it.

        Raises:
            InvalidInput: it is no such file; the message names it and the key.
        """
        top = Table.read(file, ("schema", "package", "release"))
        if top.raw("schema") != SCHEMA:
            top.wrong("schema", f"{SCHEMA}, the version that is known", top.raw("schema"))
        releases = top.raw("release")
        if not isinstance(releases, list) or not all(isinstance(one, dict) for one in releases):
            top.wrong("release", "a list of [[release]] tables", releases)
        tables = [Table(file, one, ("version", "sha256"), "release") for one in releases]
        return cls.of(top.text("package"), [Pin(one.text("version"), one.text("sha256")) for one in tables])

    def only(self, versions: Sequence[str]) -> Pins:
        """Some of them, in the order given. Raises InvalidInput if one is not pinned, or they are too few."""
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
        """The pins as a file holds them."""
        lines = [f'schema = {SCHEMA}\npackage = "{self.package}"\n']
        lines += [f'\n[[release]]\nversion = "{one.version}"\nsha256 = "{one.sha256}"\n' for one in self.releases]
        return "".join(lines)


def fetch(package: str, pin: Pin) -> tuple[str, Files]:
    """The wheel of a release, from the index that pip is set to, and from nowhere if its hash is another one.

    Args:
        package: its name.
        pin: which release; with an empty hash, whatever comes is taken.

    Returns:
        The SHA-256 of the wheel, and what it holds, see ``read``.

    Raises:
        CapabilityMissing: this Python has no pip.
        AdapterUnavailable: pip could not get it.
        InvalidInput: it is not what was pinned, or no wheel to be read.
    """
    if importlib.util.find_spec("pip") is None:
        raise CapabilityMissing(
            f"{sys.executable} has no pip.", why="Wheels are fetched by pip, with its settings.", fix="Run python -m ensurepip."
        )
    with tempfile.TemporaryDirectory(prefix="gittrix-wheel-") as place:
        _download(package, pin.version, place)
        wheels = sorted(Path(place).iterdir())
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
    """What a wheel holds. Its ``.dist-info`` and ``.data`` lose the version in their names, so that releases can be compared; the list
    of what is installed is left out.

    Args:
        wheel: the file.
        package: whose it must be.
        version: of which release.

    Raises:
        InvalidInput: it is no wheel of that release, it is damaged or too large, or a name or a kind in it is not allowed.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _judged(wheel.name, archive.infolist())
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


def _judged(wheel: str, members: Sequence[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
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
            raise _not_allowed(wheel, member.filename, "It is there twice.")
        if not member.is_dir():
            found[path] = member
    return found


def _not_allowed(wheel: str, name: str, why: str) -> InvalidInput:
    return InvalidInput(f"{wheel} holds {name!r:.200}, so nothing of it is unpacked.", why=why, fix="Do not use that wheel.")


def _metadata_directory(wheel: str, files: Mapping[str, bytes], package: str, version: str) -> str:
    """The one ``.dist-info`` of a wheel, which says that it is of that release (the wheel format, PEP 427)."""
    found = {name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA") and name.count("/") == 1}
    if len(found) == 1:
        directory = found.pop()
        told = BytesHeaderParser().parsebytes(files[f"{directory}/METADATA"])
        if _normal(str(told["Name"])) == _normal(package) and str(told["Version"]) == version:
            return directory
    raise InvalidInput(
        f"{wheel} does not say that it is {package} {version}.",
        why="Its METADATA is missing, or has another name or version.",
        fix="Give the version as the release itself writes it.",
    )


def _normal(name: str) -> str:
    """A package's name as all spellings of it come to (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _download(package: str, version: str, place: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:", "--no-deps", "--dest", place]
    command = [sys.executable, "-P", "-m", "pip", "download", *options, f"{package}=={version}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise AdapterUnavailable(
            f"pip took longer than {_TIMEOUT:g} s for {package} {version}.", fix="See whether the index answers."
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"It ended with status {done.returncode}."]
        raise AdapterUnavailable(
            f"pip got no wheel of {package} {version}.", why=said[-1][:300], fix="See that `pip download` works here, and has that release."
        )


def _require(pattern: re.Pattern[str], value: str, meant: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidInput(f"{value!r:.100} is not {meant}.", why="It goes to pip as it is.", fix=f"Give {meant}.")
