"""Power cuts: copies what a disk had received at each call of a program, mounts each copy, and checks it.

The program works on a real file system in an image file, or on two. At each of its calls that change a file, the process tree stops and the
image is copied. What was never synced is only in memory and therefore not in the copy. Each copy is then mounted where the first image was,
which replays its journal, and is checked. The simulated disk keeps everything it received, in order; a disk that loses or reorders what it
has not flushed is harsher. Needs root and loop devices; `supported` gives the reason where it does not work.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.os_level.files import sync_file_system
from pytest_gittrix.testing.faults import supervisor
from pytest_gittrix.testing.faults.fault_sweep import (
    Progress,
    Report,
    SweepFailure,
    check_problem,
    collect,
    describe_call,
    require_points,
    require_success,
)
from pytest_gittrix.testing.faults.faults import FileCall, SupervisedRun
from pytest_gittrix.testing.faults.supervisor import StrPath, call_of, exec_of, trace


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a file system is made and mounted so that it writes nothing by itself.

    A journal that commits by the clock would make the images depend on the speed of the machine.
    """

    megabytes: int
    make: tuple[str, ...]
    mount: str


FILESYSTEMS: Final = {
    "ext4": _Kind(32, ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard"), "commit=3000"),
    "xfs": _Kind(304, ("mkfs.xfs", "-q", "-f", "-K"), "noquota"),
    "btrfs": _Kind(128, ("mkfs.btrfs", "-q", "-f", "-K"), "commit=3000"),
}
"""The file systems that can be simulated, with their programs."""

_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Disk:
    """One file system of the program.

    Attributes:
        filesystem: its name.
        options: more mount options.
        number: 0 for the first disk, 1 for the one that is apart.
        directory: where it is mounted.
        writes_back: whether it has received everything at each call, synced or not.
    """

    filesystem: str
    options: str
    number: int
    directory: Path
    writes_back: bool

    def image(self, scratch: Path, at: int | str) -> Path:
        """The image of this disk at a point of the program."""
        return scratch / f"{at}-{self.number}.img"

    def mounted(self, image: Path) -> AbstractContextManager[None]:
        """Mount an image of this disk for a block."""
        return _mounted(self.filesystem, image, self.directory, self.options)


@dataclass(frozen=True, slots=True)
class Cut:
    """The moment of a power cut.

    Attributes:
        at: the number of the call before which the power went, from 1; after the program's end it is one more than the last.
        call: that call; None after the end.
        run: everything the program did, also after the cut.
    """

    at: int
    call: FileCall | None
    run: SupervisedRun

    @property
    def finished(self) -> bool:
        """Whether the program had ended: what it reported as done must be on the disk."""
        return self.call is None


def power_cuts(
    run: Callable[[Path], object] | Sequence[StrPath],
    check: Callable[[Path, Cut], object],
    *,
    prepare: Callable[[Path], object] | None = None,
    filesystem: str = "ext4",
    options: str = "",
    apart: str | None = None,
    written_back: str | None = None,
    points: Collection[int] | None = None,
    timeout: float = 120.0,
    progress: Progress | None = None,
) -> Report:
    """Cut the power at each call of a program that changes a file, and after its end, and check what the disk holds.

    Args:
        run: the program: ``run(directory)``, in a fork, or a command and its arguments, started in that directory.
        check: inspects what a cut left; called with the directory and the cut, in this process. Something is wrong if it raises an
            ``Exception`` or returns False. It may change what it finds, for instance by a recovery.
        prepare: makes the first state, which is on the disk when the program starts; None for an empty disk.
        filesystem: one of ``FILESYSTEMS``.
        options: more mount options, such as ``noauto_da_alloc``.
        apart: the name of a directory below the first one that is on a second disk; None for one disk. What was synced on one says nothing
            of the other.
        written_back: the disk that receives at each call what was written there, synced or not, as a disk may at any time: ``.`` for the
            first, or that of ``apart``. None for neither.
        points: the numbers of the cuts to check; all if None. Equal images in a row are checked once, with the first of them.
        timeout: seconds for the program, copies of the image included.
        progress: called after each image with the number of images so far, of all images, and of failures so far.

    Returns:
        A report of the images; ``calls`` counts the program's calls.

    Raises:
        InvalidInput: the file system is unknown, the program fails, or a point does not exist.
        CapabilityMissing: this machine cannot do it (see `supported`).
    """
    _require_known(filesystem)
    if written_back not in (None, ".", apart):
        raise InvalidInput(f"written_back={written_back!r} is neither disk.", fix="Use '.', or what apart= names.")
    if reason := supported(filesystem):
        raise CapabilityMissing(reason, fix="Run as root on a Linux with loop devices, or skip with what powercut.supported() returns.")
    with _scratch() as scratch:
        directory = scratch / "disk"
        names = [".", *([apart] if apart is not None else [])]
        disks = [_Disk(filesystem, options, number, directory / name, name == written_back) for number, name in enumerate(names)]
        with ExitStack() as mounts:
            for disk in disks:
                _make(filesystem, disk.image(scratch, "now"))
                mounts.enter_context(disk.mounted(disk.image(scratch, "now")))
            if prepare is not None:
                prepare(directory)
            for disk in disks:
                _sync(disk.directory)
            start = call_of(partial(run, directory)) if callable(run) else exec_of(run, cwd=directory)
            done = trace(start, None, directory, timeout, before=lambda call: _photograph(disks, scratch, call.index))
            require_success(done)
            end = len(done.calls) + 1
            _photograph(disks, scratch, end)
        cuts = [Cut(call.index, call, done) for call in done.calls] + [Cut(end, None, done)]
        meaning = "A point is a call that changes a file, counted from 1; the last one is after the end."
        require_points(points, [cut.at for cut in cuts], f"there are {len(cuts)}", meaning)
        given = {"options": options or None, "apart": apart, "written_back": written_back}
        more = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)

        def failure(cut: Cut) -> SweepFailure | None:
            problem = _mount_and_check(disks, scratch, cut.at, partial(check, directory, cut))
            if problem is None:
                return None
            call = describe_call(cut.call, directory) if cut.call is not None else "the end"
            prepared = ", prepare=prepare" if prepare is not None else ""
            replay = f"power_cuts(run, check{prepared}{more}, filesystem={filesystem!r}, points=[{cut.at}])"
            return SweepFailure(cut.at, "power cut", call, problem, replay)

        chosen = [cut for cut in cuts if points is None or cut.at in points]
        return collect("images", len(done.calls), list(_distinct(chosen, disks, scratch)), failure, progress)


@cache
def supported(filesystem: str = "ext4") -> str | None:
    """Return None if `power_cuts` works on this machine, or else the reason why not. It is tried once for each file system.

    Raises:
        InvalidInput: the file system is unknown.
    """
    kind = _require_known(filesystem)
    if sys.platform != "linux":
        return f"power cuts need Linux; this is {sys.platform}"
    if missing := [program for program in (kind.make[0], "mount", "umount") if shutil.which(program, path=_path()) is None]:
        return f"power cuts on {filesystem} need {', '.join(missing)}, which is not installed"
    if os.geteuid() != 0:
        return "power cuts need root, to mount an image"
    if reason := supervisor.supported():
        return reason
    try:
        with _scratch() as scratch:
            _make(filesystem, scratch / "disk.img")
            with _mounted(filesystem, scratch / "disk.img", scratch / "disk", ""):
                return None
    except CapabilityMissing as error:
        return error.fact


class PowerCuts:
    """`power_cuts` for tests that are skipped where the machine cannot do it.

    Args:
        cannot: called with the reason why not; raises, as ``pytest.skip`` does.
    """

    def __init__(self, cannot: Callable[[str], object]) -> None:
        self._cannot = cannot

    def __call__(
        self,
        run: Callable[[Path], object] | Sequence[StrPath],
        check: Callable[[Path, Cut], object],
        *,
        filesystem: str = "ext4",
        prepare: Callable[[Path], object] | None = None,
        options: str = "",
        apart: str | None = None,
        written_back: str | None = None,
        points: Collection[int] | None = None,
        timeout: float = 120.0,
    ) -> Report:
        """Call `power_cuts`; skips where the machine cannot."""
        if reason := supported(filesystem):
            self._cannot(reason)
        return power_cuts(
            run,
            check,
            filesystem=filesystem,
            prepare=prepare,
            options=options,
            apart=apart,
            written_back=written_back,
            points=points,
            timeout=timeout,
        )


def _photograph(disks: Sequence[_Disk], scratch: Path, at: int) -> None:
    """Copy what the disks hold at a point of the program."""
    for disk in disks:
        if disk.writes_back:
            sync_file_system(str(disk.directory))
    for disk in disks:
        _copy(disk.image(scratch, "now"), disk.image(scratch, at), scratch)


def _copy(image: Path, name: Path, scratch: Path) -> None:
    """Copy an image. Equal ones are links to one file."""
    digest = hashlib.blake2b(digest_size=16)
    with open(image, "rb") as source:
        for start, length in _extents(source.fileno()):
            for at in range(start, start + length, _BLOCK):
                digest.update(b"%d:" % at)
                digest.update(os.pread(source.fileno(), min(_BLOCK, start + length - at), at))
        known = scratch / digest.hexdigest()
        if not known.exists():
            with open(known, "wb") as copy:
                for start, length in _extents(source.fileno()):
                    for at in range(start, start + length, _BLOCK):
                        os.pwrite(copy.fileno(), os.pread(source.fileno(), min(_BLOCK, start + length - at), at), at)
                copy.truncate(os.fstat(source.fileno()).st_size)
    name.unlink(missing_ok=True)
    os.link(known, name)


def _extents(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield where a sparse file holds data: start and length of each extent."""
    end = os.fstat(descriptor).st_size
    at = 0
    while at < end:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # ENXIO: a hole up to the end
            return
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, at - start


def _distinct(cuts: list[Cut], disks: Sequence[_Disk], scratch: Path) -> Iterator[Cut]:
    before = None
    for cut in cuts:
        inodes = [disk.image(scratch, cut.at).stat().st_ino for disk in disks]
        if inodes != before or cut.finished:
            yield cut
        before = inodes


def _mount_and_check(disks: Sequence[_Disk], scratch: Path, at: int, check: Callable[[], object]) -> str | None:
    mounts = ExitStack()
    try:
        for disk in disks:
            # Mounting the same file twice would show the earlier mount while a process still uses it, so each check gets a copy.
            copy = disk.image(scratch, f"copy-of-{at}")
            subprocess.run(["cp", "--sparse=always", "--", disk.image(scratch, at), copy], check=True, env=_environment())
            mounts.callback(copy.unlink)
            mounts.enter_context(disk.mounted(copy))
    except CapabilityMissing as error:
        mounts.close()
        return f"the file system cannot be mounted any more: {error.fact}"
    with mounts:
        return check_problem(check)


@contextmanager
def _scratch() -> Iterator[Path]:
    memory = "/dev/shm"  # an image in memory takes a sync without waiting for a real disk
    parent = memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gittrix-power-", dir=parent, ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def _make(filesystem: str, image: Path) -> None:
    kind = FILESYSTEMS[filesystem]
    with open(image, "wb") as file:
        file.truncate(kind.megabytes << 20)
    _do(*kind.make, str(image))


@contextmanager
def _mounted(filesystem: str, image: Path, directory: Path, options: str) -> Iterator[None]:
    directory.mkdir(exist_ok=True)
    all_options = ",".join(filter(None, ("loop", FILESYSTEMS[filesystem].mount, options)))
    _do("mount", "-t", filesystem, "-o", all_options, str(image), str(directory))
    with ExitStack() as closing:
        # Lazily: a file that a check leaves open must not keep the next image from being mounted.
        closing.callback(_do, "umount", "--lazy", str(directory))
        yield


def _sync(directory: Path) -> None:
    _do("sync", "--file-system", str(directory))


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False, env=_environment())
    if done.returncode != 0:
        message = os.fsdecode(done.stderr or done.stdout).strip().partition("\n")[0]
        raise CapabilityMissing(f"{command[0]} failed: {message}")


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _environment() -> dict[str, str]:
    return {"PATH": _path(), "LC_ALL": "C"}


def _require_known(filesystem: str) -> _Kind:
    if filesystem not in FILESYSTEMS:
        raise InvalidInput(f"{filesystem!r} is no file system that can be played.", fix=f"Use one of {', '.join(FILESYSTEMS)}.")
    return FILESYSTEMS[filesystem]
