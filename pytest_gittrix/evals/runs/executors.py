"""The executors of jobs: this process, processes of this machine, or a cluster; each is a ``concurrent.futures.Executor``.

Any other executor works as well, if it can pickle a job and its workers see the run's directory.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, ParamSpec, TypeVar

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.runs.worker import begin_worker
from pytest_gittrix.extensions import find
from pytest_gittrix.extras import needs

P = ParamSpec("P")
T = TypeVar("T")

Factory = Callable[[int], Executor]
"""Makes an executor with a number of workers."""


class InProcessExecutor(Executor):
    """Runs each job at once, in this process."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a job. KeyboardInterrupt is raised instead of stored in the future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as problem:  # noqa: BLE001  (the future raises it to its caller)
            future.set_exception(problem)
        return future


def local(workers: int) -> Executor:
    """Use this process for one worker, and new processes for more."""
    if workers == 1:
        return InProcessExecutor()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest_gittrix.evals.runs.worker"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=begin_worker)


def dask(address: str | None = None) -> Factory:
    """Use workers of Dask distributed: those of a running cluster, or of one that is started on this machine for the run.

    Args:
        address: the address of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        CapabilityMissing: the library is not installed.
    """
    with needs("dask"):
        import distributed

    def make(workers: int) -> Executor:
        connect: Any = distributed.Client
        if address is not None:
            return DaskExecutor(connect(address))
        return DaskExecutor(connect(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None))

    return make


class DaskExecutor(Executor):
    """A Dask client as an executor that reports dead workers and never retries a job by itself.

    Args:
        client: a ``distributed.Client``; closed with the executor.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor: Executor = client.get_executor(retries=0, pure=False)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a job to a worker."""
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Release the workers; a cluster that was started for this run ends."""
        # A client's executor cancels what has not begun when it is not waited for.
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close()


def on_this_machine(address: str | None = None) -> Factory:
    """Return ``local``, which has no address. Raises InvalidInput if one is given."""
    if address is not None:
        raise InvalidInput("There is no executor 'local' with an address.", fix="Use local, and --workers for the number of processes.")
    return local


def factory_of(name: str) -> Factory:
    """Return the factory of a name: ``local``, ``dask``, ``dask:ADDRESS``, or a registered name with or without an address.

    Raises:
        InvalidInput: there is no such executor.
        CapabilityMissing: its library is not installed.
    """
    kind, _, address = name.partition(":")
    factory: Factory = find("executors", kind)(address or None)
    return factory
