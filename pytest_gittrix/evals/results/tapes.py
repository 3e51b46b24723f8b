"""The tapes of a run: one of each sample, and one digest of all, which is part of the manifest."""

from __future__ import annotations

from pathlib import Path

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.identity import digest_bytes, digest_of
from pytest_gittrix.evals.results.manifest import Manifest
from pytest_gittrix.evals.results.store import TAPES, RunStore


def tape_file(run: Path, id_: str, epoch: int) -> Path:
    """The tape of a sample.

    Raises:
        InvalidInput: the run has none of it.
    """
    store = RunStore.open(run)
    key = store.manifest().keys.get((id_, epoch))
    file = None if key is None else store.path / TAPES / f"{key}.jsonl"
    if file is None or not file.is_file():
        raise InvalidInput(
            f"{run} has no tape of {id_!r}, epoch {epoch}.",
            why="A replay answers what was recorded, and nothing else.",
            fix="Record it: gittrix eval run SUITE --tape record.",
        )
    return file


def tapes_digest(store: RunStore) -> str | None:
    """One digest of all tapes of a run, the same for any order of the samples; None if it has none."""
    files = {f"{id_} #{epoch}": store.part(TAPES, key) for (id_, epoch), key in store.manifest().keys.items()}
    found = {name: digest_bytes(data) for name, data in files.items() if data}
    return digest_of(found) if found else None


def note_tapes(store: RunStore) -> None:
    """Write the digest of a run's tapes into its manifest, once they are recorded. Raises AdapterUnavailable if the disk refused."""
    manifest = store.manifest()
    noted = manifest.with_tape(tapes_digest(store))
    if noted.digest != manifest.digest:
        store.write_manifest(noted)


def without_tapes(manifest: Manifest) -> Manifest:
    """A manifest as it was before anything was recorded."""
    return manifest.with_tape(None)
