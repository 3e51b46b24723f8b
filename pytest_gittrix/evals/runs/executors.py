"""Who does jobs: this process, processes of this machine, or a cluster; all of them ``concurrent.futures.Executor``.

Any other executor does as well, if it can pickle a job and its workers see the run's directory. Must not know what jobs are.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.evals.runs.worker import begin_worker

P = ParamSpec("P")
T = TypeVar("T")

Factory = Callable[[int], Executor]
"""Makes an executor for a number of workers."""

DASK: Final = "dask"
NAMES: Final = ("local", DASK)


class InProcessExecutor(Executor):
    """Does each job at once, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it. Ctrl-C is raised and not kept in the future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:  # noqa: BLE001  (it is raised by whoever asks for the result)
            future.set_exception(problem)
        return future


def local(workers: int) -> Executor:
    """This process for one worker, processes of their own for more."""
    if workers == 1:
        return InProcessExecutor()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest_gittrix.evals.runs.worker"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=begin_worker)


def dask(address: str | None = None) -> Factory:
    """Workers of Dask distributed: a cluster that runs at an address, or one of this machine for as long as the run lasts.

    Args:
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        CapabilityMissing: the library is not installed.
    """
    try:
        import distributed
    except ImportError:
        raise CapabilityMissing(
            "Dask distributed is not installed.",
            why="--executor dask hands samples to its workers.",
            fix="pip install pytest-gittrix[dask]",
        ) from None

    def make(workers: int) -> Executor:
        connect: Any = distributed.Client
        if address is not None:
            return DaskExecutor(connect(address))
        return DaskExecutor(connect(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None))

    return make


class DaskExecutor(Executor):
    """A Dask client as an executor that tells of dead workers and never does a job twice by itself.

    Args:
        client: a ``distributed.Client``; closed with the executor.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor: Executor = client.get_executor(retries=0, pure=False)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Hand it to a worker."""
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let go of the workers; those of a cluster that was started for this run end."""
        # A client's executor cancels what has not begun when it is not waited for.
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close()


def factory_of(name: str) -> Factory:
    """A factory by its name: ``local``, ``dask``, or ``dask:ADDRESS``.

    Raises:
        InvalidInput: there is no such executor.
        CapabilityMissing: its library is not installed.
    """
    kind, _, address = name.partition(":")
    if kind == "local" and not address:
        return local
    if kind == DASK:
        return dask(address or None)
    raise InvalidInput(f"{name!r} is no executor.", fix=f"Use {', '.join(NAMES)} or dask:tcp://HOST:PORT.")
