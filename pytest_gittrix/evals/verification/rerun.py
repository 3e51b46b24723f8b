"""The replay of one recorded sample, to look at it or to see that its result is the same."""

from __future__ import annotations

from pathlib import Path

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.compare import SamplePair, compare
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.options import Options
from pytest_gittrix.evals.runs.replay import write_files
from pytest_gittrix.evals.runs.run import run_suite


def replay_sample(
    store: RunStore, id_: str, epoch: int, scratch: Path, *, suite: Path | None = None, lenient: bool = False
) -> tuple[RunStore, SamplePair]:
    """Replay a sample from its transcript.

    Args:
        store: the run that has it.
        id_: the id of the case.
        epoch: the number of the repetition.
        scratch: a directory for the new run.
        suite: the path of the suite; by default its path when the run was made.
        lenient: whether to compare only actions with the transcript, not their results.

    Returns:
        The new run, and the sample of both runs.

    Raises:
        InvalidInput: there is no such sample or no transcript of it, or the suite is missing or has changed.
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
    options = Options(agent="", out=scratch / "run", only=(id_,), replay=store.path, lenient=lenient, retries=0)
    rerun = run_suite(loaded, options).store
    return rerun, next(pair for pair in compare(store, rerun).pairs if (pair.id, pair.epoch) == (id_, epoch))


def keep_files(store: RunStore, record: Record | None, directory: Path) -> None:
    """Write the final files of a sample into a new directory.

    Raises:
        InvalidInput: the directory exists already, or the sample has no final files.
    """
    if record is None or not record.final:
        raise InvalidInput("The sample has no files to keep.", fix="See `gittrix eval show` for how it ended.")
    try:
        directory.mkdir(parents=True)
    except OSError as problem:
        raise InvalidInput(f"{directory} cannot be made: {problem.strerror}.", fix="Give a directory that is not there yet.") from None
    write_files(store.objects, store.objects.tree(record.final), directory)
