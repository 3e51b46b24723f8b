"""One recorded sample done again, to look at or to see that it comes out the same. Must not know how it is shown."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.compare import SamplePair, compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.run import Options, run_suite
from pytest_gittrix.git.tree import SUBMODULE, SYMLINK


def replay_sample(
    store: RunStore, id_: str, epoch: int, scratch: Path, *, suite: Path | None = None, lenient: bool = False
) -> tuple[RunStore, SamplePair]:
    """Do a sample again from its transcript.

    Args:
        store: the run that has it.
        id_: of the case.
        epoch: which repetition.
        scratch: a directory for the new run.
        suite: where the suite is; where it was when the run was made by default.
        lenient: whether only actions are held against the transcript.

    Returns:
        The new run, and the sample on both sides.

    Raises:
        InvalidInput: there is no such sample or no transcript of it, or the suite is not there or has changed.
    """
    wanted = store.sample(id_, epoch)
    manifest = store.manifest()
    loaded = Suite.load(suite if suite is not None else manifest.host["suite"])
    if loaded.case(id_).digest != wanted.case:
        raise InvalidInput(
            f"The case {id_!r} is not as it was when the run was made.",
            why="Its replay would be of something else.",
            fix="Give the suite as it was by --suite.",
        )
    wanted_run = Options(agent="", out=scratch / "run", only=(id_,), replay=store.path, lenient=lenient, retries=0)
    again = run_suite(loaded, wanted_run).store
    return again, next(pair for pair in compare(store, again).pairs if (pair.id, pair.epoch) == (id_, epoch))


def keep_files(store: RunStore, record: Record | None, directory: Path) -> None:
    """Put the files of a sample, as they were in the end, into a new directory.

    Raises:
        InvalidInput: the directory is there already, or the sample did not come so far.
    """
    if record is None or not record.final:
        raise InvalidInput("The sample has no files to keep.", fix="See `gittrix eval show` for how it ended.")
    try:
        directory.mkdir(parents=True)
    except OSError as problem:
        raise InvalidInput(f"{directory} cannot be made: {problem.strerror}.", fix="Give a directory that is not there yet.") from None
    for path, entry in store.objects.tree(record.final).items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == SUBMODULE:
            continue
        data = store.objects.read(entry.id)[1]
        if entry.mode == SYMLINK:
            os.symlink(data, os.fsencode(place))
            continue
        place.write_bytes(data)
        place.chmod(entry.mode & 0o777)
