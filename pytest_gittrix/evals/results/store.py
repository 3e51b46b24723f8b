"""A run on disk: a manifest, and a record with its artifacts for each sample.

A record is written last and in one step, so a sample with a record is complete, and a kill loses at most the samples in flight.
Layout: ``manifest.json``, ``samples/<key>.json``, ``events/<key>.jsonl``, ``timing/<key>.jsonl``, ``patches/<key>.diff``,
``transcripts/<key>.jsonl``, ``tapes/<key>.jsonl``, ``objects.git``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.evals.inputs.identity import KEY_SIZE, canonical
from pytest_gittrix.evals.inputs.sample_record import Record, damaged, decode
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.evals.results.run_repository import ObjectStore
from pytest_gittrix.os_level.file_lock import exclusive
from pytest_gittrix.os_level.files import PUBLIC, write_file

TAPES: Final = "tapes"
PARTS: Final = {"events": ".jsonl", "timing": ".jsonl", "patches": ".diff", "transcripts": ".jsonl", TAPES: ".jsonl"}
"""The directories of a sample's artifacts, with the suffix of the files in each. A sample without a tape has no file there."""

MANIFEST: Final = "manifest.json"
TAKEN_OVER: Final = "taken_over_from"
"""The key of a line of a sample's timing that names the run which the sample was taken over from."""
RESCORED: Final = "rescored_from"
"""The key of a line of a sample's timing that names the run whose result was judged again; its ``before`` is the verdict there."""
TRIED: Final = "tried"
"""The key of a line of a sample's timing that says why an earlier try of the sample did not count."""

_MIXED: Final = "agent-changed"
_WRITTEN_LATER: Final = (MANIFEST, "report.html", "summary.md", "junit.xml", ".test-run", _MIXED)
_KEY: Final = re.compile(rf"[0-9a-f]{{{KEY_SIZE}}}")


@dataclass(frozen=True)
class Artifacts:
    """The files of a sample other than its record.

    Attributes:
        events: the event log, as ``json_lines`` gives it; no wall time is in it.
        timing: when things happened and how long they took.
        patch: from base to final, as ``git apply`` takes it.
        transcript: what the agent did, one mapping a step.
        tape: what was said to its model and by it.
        packs: packs to copy, by their paths without the ends.
        objects: git objects, kind and data by id, that a reference will lead to.
        references: ids by ``base``, ``final`` and ``promoted``.
    """

    events: bytes = b""
    timing: Sequence[Mapping[str, Any]] = ()
    patch: bytes = b""
    transcript: Sequence[Mapping[str, Any]] = ()
    packs: Sequence[str] = ()
    objects: Mapping[str, tuple[str, bytes]] | None = None
    references: Mapping[str, str] | None = None
    tape: bytes = b""


class RunStore:
    """The directory of a run. Made by ``create`` or ``open``.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | os.PathLike[str], manifest: Manifest) -> RunStore:
        """Make the directory of a run.

        Raises:
            InvalidInput: the directory holds a run already, or other files.
            AdapterUnavailable: the disk refused.
        """
        store = cls.prepare(path)
        store.write_manifest(manifest)
        return store

    @classmethod
    def prepare(cls, path: str | os.PathLike[str]) -> RunStore:
        """Make a directory that becomes a run by ``write_manifest``. Raises as ``create`` does."""
        store = cls(_run_path(path))
        if store.exists:
            raise InvalidInput(
                f"{store.path} holds a run already.",
                why="Two runs in one directory would be mixed.",
                fix="Go on with it by --resume, or give another --out.",
            )
        with _disk(store.path):
            if store.path.is_dir() and any(not _is_left_by_preparing(name) for name in os.listdir(store.path)):
                raise InvalidInput(f"{store.path} is not empty.", why="A run needs a directory of its own.", fix="Give an empty directory.")
            for part in ("samples", *(part for part in PARTS if part != TAPES)):
                (store.path / part).mkdir(parents=True, exist_ok=True)
            ObjectStore.create(store.path / "objects.git")
        return store

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunStore:
        """Open an existing run.

        Raises:
            InvalidInput: the directory holds no run.
        """
        store = cls(_run_path(path))
        if store.exists:
            return store
        raise InvalidInput(
            f"{store.path} holds no run.", why="It has no manifest.json.", fix="Give the directory that `gittrix eval run --out` was given."
        )

    @property
    def name(self) -> str:
        """The name of the run's directory, made fit for a git reference."""
        return re.sub(r"[^A-Za-z0-9_-]+", "-", self.path.name).strip("-") or "run"

    @property
    def exists(self) -> bool:
        """Whether the directory holds a run."""
        return (self.path / MANIFEST).is_file()

    @cached_property
    def objects(self) -> ObjectStore:
        """The git objects of the run."""
        return ObjectStore(self.path / "objects.git")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A block in which no other process writes to the run. The lock of a process that dies is released.

        Raises:
            AdapterUnavailable: another process holds the lock, or the disk refused.
        """
        with ExitStack() as held:
            with _disk(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                held.enter_context(exclusive(_run_path(self.path) / ".lock", wait=0, refusal=self._busy))
            yield

    def _busy(self) -> AdapterUnavailable:
        return AdapterUnavailable(
            f"Another process writes to the run {self.path}.",
            why="Two would do each sample twice.",
            fix="Wait for it, or give another --out.",
        )

    def manifest(self) -> Manifest:
        """The manifest. Raises InvalidInput if it is damaged, AdapterUnavailable if it cannot be read."""
        file = self.path / MANIFEST
        with _disk(file):
            data = file.read_bytes()
        return Manifest.decode(data)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest. Raises AdapterUnavailable if the disk refused."""
        with _disk(self.path):
            write_file(str(self.path / MANIFEST), manifest.encode(), mode=PUBLIC, sync=True)

    def count_infra_errors(self, counts: bool) -> None:
        """Write into the manifest whether samples in ``infra_error`` count as not passed. Raises AdapterUnavailable if the disk refused."""
        begun = self.manifest()
        if begun.counts_infra_errors != counts:
            self.write_manifest(Manifest(begun.core, {**begun.host, "count_infra_errors": counts}))

    def note_unknown(self, sentences: Sequence[str]) -> None:
        """Write into the manifest what cannot be known of the inputs of samples. Raises AdapterUnavailable if the disk refused."""
        manifest = self.manifest()
        if [*sentences] != manifest.host.get("unknown", []):
            self.write_manifest(Manifest(manifest.core, {**manifest.host, "unknown": [*sentences]}))

    @property
    def is_mixed(self) -> bool:
        """Whether the agent changed while the run went on, so that its samples are of unknown agents."""
        return (self.path / _MIXED).exists()

    def mark_mixed(self) -> None:
        """Write down that the agent changed while the run went on. Raises AdapterUnavailable if the disk refused."""
        with _disk(self.path):
            write_file(str(self.path / _MIXED), b"", mode=PUBLIC)

    def check_not_mixed(self) -> None:
        """Raise InvalidInput if the agent changed while the run went on."""
        if self.is_mixed:
            raise InvalidInput(
                f"The agent changed while the run {self.path} went on.",
                why="It is unknown which agent made which of its samples.",
                fix="Run the suite again, into a new directory.",
            )

    def is_taken_over(self, key: str) -> bool:
        """Whether a sample was taken over from another run."""
        return any(TAKEN_OVER in line for line in self.lines("timing", key))

    def earlier_tries(self, key: str) -> list[str]:
        """Why each try of a sample before the one that counts ended in ``infra_error``. Raises InvalidInput if the file is damaged."""
        return [str(line[TRIED]) for line in self.lines("timing", key) if TRIED in line]

    def verdict_before(self, key: str) -> dict[str, Any] | None:
        """The outcome, the reason and the checks of a sample before it was judged again; None if it was not."""
        found: list[dict[str, Any]] = [line["before"] for line in self.lines("timing", key) if RESCORED in line]
        return found[-1] if found else None

    @property
    def taken_over(self) -> int:
        """The number of samples that were taken over from another run."""
        return sum(map(self.is_taken_over, self.keys()))

    def has(self, key: str) -> bool:
        """Whether there is a record of a key, even a damaged one."""
        return os.path.exists(self._file("samples", key))

    def record(self, key: str) -> Record:
        """The record of a key.

        Raises:
            InvalidInput: there is none, or it is damaged.
            MetadataVersionUnsupported: it is of another version.
        """
        file = Path(self._file("samples", key))
        try:
            found = decode(file.read_bytes(), file)
        except OSError:
            raise InvalidInput(f"{self.path} has no sample {key!r}.", fix="`gittrix eval show RUN` lists them.") from None
        if found.key != key:
            raise damaged(file)
        return found

    def keys(self) -> list[str]:
        """The keys of all records, sorted."""
        try:
            names = os.listdir(self.path / "samples")
        except FileNotFoundError:
            return []
        return sorted(stem for name in names if (stem := name.removesuffix(".json")) != name and _KEY.fullmatch(stem))

    def records(self) -> list[Record]:
        """All records, by id and epoch. Raises as ``record`` does."""
        return sorted((self.record(key) for key in self.keys()), key=lambda record: (record.id, record.epoch))

    def sample(self, id_: str, epoch: int = 0) -> Record:
        """The record of a case and an epoch. Raises InvalidInput if there is none."""
        for record in self.records():
            if (record.id, record.epoch) == (id_, epoch):
                return record
        raise InvalidInput(f"{self.path} has no sample of {id_!r}, epoch {epoch}.", fix="`gittrix eval show RUN` lists them.")

    def replay_command(self, record: Record) -> str:
        """The command line that repeats a sample, from any directory."""
        epoch = ["--epoch", str(record.epoch)] if record.epoch else []
        return shlex.join(["gittrix", "eval", "replay", str(self.path.absolute()), record.id, *epoch])

    def save(self, record: Record, artifacts: Artifacts) -> None:
        """Save a sample: its artifacts first, the record last.

        Raises:
            AdapterUnavailable: the disk refused; then there is no record.
        """
        timing = b"".join(json.dumps(line, sort_keys=True).encode() + b"\n" for line in artifacts.timing)
        with _disk(self.path):
            self.objects.add_packs(artifacts.packs)
            self.objects.add(artifacts.objects or {})
            self.objects.point(f"{self.name}/{record.id}/{record.epoch}", artifacts.references or {})
            # No reader looks at these before there is a record, so they need not appear in one step.
            self._put("events", record.key, artifacts.events)
            self._put("timing", record.key, timing)
            self._put("patches", record.key, artifacts.patch)
            self._put("transcripts", record.key, json_lines(artifacts.transcript))
            self._put(TAPES, record.key, artifacts.tape)
            points.reached("eval:record-ready")
            write_file(self._file("samples", record.key), record.encode(), mode=PUBLIC)

    def save_record(self, record: Record) -> None:
        """Save a record whose artifacts are saved already. Raises AdapterUnavailable as ``save`` does."""
        with _disk(self.path):
            write_file(self._file("samples", record.key), record.encode(), mode=PUBLIC)

    def put_part(self, part: str, key: str, data: bytes) -> None:
        """Save one artifact of a sample. Raises AdapterUnavailable as ``save`` does."""
        with _disk(self.path):
            self._put(part, key, data)

    def set_aside(self, key: str) -> None:
        """Rename a record that is to be made again, because it is damaged or an ``infra_error``."""
        file = self._file("samples", key)
        if os.path.exists(file):
            os.replace(file, f"{file}.aside")

    def part(self, part: str, key: str) -> bytes:
        """The bytes of an artifact; empty if there is none.

        Args:
            part: one of ``PARTS``.
            key: the key of the sample.

        Raises:
            AdapterUnavailable: the file cannot be read.
        """
        file = Path(self._file(part, key))
        with _disk(file), suppress(FileNotFoundError):
            return file.read_bytes()
        return b""

    def lines(self, part: str, key: str) -> list[dict[str, Any]]:
        """The lines of a sample's ``events``, ``timing`` or ``transcripts``. Raises InvalidInput if they are damaged."""
        try:
            return [json.loads(line) for line in self.part(part, key).splitlines()]
        except ValueError:
            raise damaged(Path(self._file(part, key))) from None

    def _put(self, part: str, key: str, data: bytes) -> None:
        if part == TAPES:
            if not data:
                return
            (self.path / TAPES).mkdir(exist_ok=True)  # runs of earlier versions have none
        with open(self._file(part, key), "wb") as file:
            file.write(data)

    def _file(self, part: str, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"{key!r} is not the key of a sample.", fix=f"A key has {KEY_SIZE} hex digits.")
        return f"{self.path}/{part}/{key}{PARTS.get(part, '.json')}"

    def files(self) -> Iterator[tuple[str, int]]:
        """Every file of the run: its path in the run, and its size in bytes."""
        for directory, _, names in os.walk(self.path):
            for name in names:
                path = os.path.join(directory, name)
                yield os.path.relpath(path, self.path), os.lstat(path).st_size


def belongs_to_run(name: str) -> bool:
    """Whether an entry of that name in the directory of a run belongs to the run."""
    return _is_left_by_preparing(name) or name in _WRITTEN_LATER


def _is_left_by_preparing(name: str) -> bool:
    """Whether ``prepare`` makes an entry of that name, so that a killed one may have left it."""
    return name in (".lock", "samples", "objects.git", *PARTS) or name.startswith("tmp_")


def json_lines(items: Sequence[Mapping[str, Any]]) -> bytes:
    """Mappings as lines of canonical JSON."""
    return b"".join(canonical(item) + b"\n" for item in items)


def _run_path(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidInput(f"{text!r} is not the path of a run.", fix="Give the path of a directory.")
    return Path(text).absolute()


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """A block that uses a file of the run. Raises AdapterUnavailable if the disk refuses it."""
    try:
        yield
    except OSError as problem:
        raise AdapterUnavailable(
            f"{path} cannot be used: {problem.strerror or problem}.", fix="Free disk space, or give another --out."
        ) from None
