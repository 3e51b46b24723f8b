"""What a trial takes for a system under test: how a sandbox is opened, what it has, and how one more engine joins it.

Must know no Hypothesis and no pytest, and nothing of how a system is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gittrix.adapters.local import LocalDurable
from pytest_gittrix.harness.durable import DurableRepo, Rival
from pytest_gittrix.session.ids import seeded_ids
from pytest_gittrix.session.manager import GitTrix

if TYPE_CHECKING:
    from pytest_gittrix.clock import FrozenClock


class Sandbox(Protocol):
    """What a trial needs of the system under test: ``World`` has it.

    A system that is not GitTrix gives the same verbs and signals errors by exceptions with a ``code``. ``reopen``, where there is one,
    gives one more engine on the same sessions, as a second process would have.
    """

    durable: DurableRepo
    rival: Rival
    clock: FrozenClock
    gittrix: Any


System = Callable[..., AbstractContextManager[Sandbox]]
"""Opens a sandbox; takes ``files=``, ``workspace=``, ``bare=`` and ``sweep_interval=`` as ``World.open`` does."""


@dataclass(eq=False)
class Held:
    """A session as its user holds it, alive or not.

    Attributes:
        name: ``s1``, ``s2`` and so on, in the order of their starts.
        id: its id.
        handle: the object to work with.
        workspace: where its files are, or would be; None where it has none to work on.
        baseline: the commit it started from.
        hidden: commits of durable made since, which it may not see.
    """

    name: str
    id: str
    handle: Any
    workspace: Path | None
    baseline: str
    hidden: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        return self.name


def another_engine(world: Any, number: int) -> Any:
    """One more engine on the sessions of a sandbox, initialised, as another process would have.

    Args:
        world: the sandbox; what its ``reopen`` gives, if it has one, otherwise a ``GitTrix`` like that of a ``World``.
        number: which one it is, from 1, so that it makes ids of its own.
    """
    if hasattr(world, "reopen"):
        return world.reopen()
    first: GitTrix = world.gittrix
    return GitTrix(
        LocalDurable(world.durable.path, world.durable.branch, sync=False),
        first.ephemeral,
        store=first.store.root,
        home=first.home,
        clock=world.clock,
        sweep_interval=None,
        durability="fast",
        strategy="commit",
        ids=seeded_ids(number),
    ).init()
