"""Finding sessions: lists, queries and lines, from the index and never from a workspace. It changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pytest_gittrix.record.index import Index, Query, Row
from pytest_gittrix.record.state import StateName
from pytest_gittrix.record.store import Problem
from pytest_gittrix.timetext import ns_of

if TYPE_CHECKING:
    from pytest_gittrix.record.model import SessionMetadata


@dataclass(frozen=True)
class Records:
    """What there is in a store, as of now.

    Attributes:
        index: of the store.
    """

    index: Index

    def every(self, state: StateName | None = None) -> list[SessionMetadata]:
        """Every session that can be read, or those in a state, oldest first."""
        self.index.sync()
        return _read(self.index.rows(state=state))

    def problems(self) -> list[Problem]:
        """The records that cannot be read."""
        self.index.sync()
        return self.index.problems()

    def query(
        self,
        *,
        agent: str | None = None,
        rig: str | None = None,
        work_unit: str | None = None,
        chain: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        outcome: str | None = None,
        limit: int = 0,
    ) -> list[SessionMetadata]:
        """The sessions for which everything given holds, newest first (Gas Town, session-systems 2.3).

        Args:
            agent, rig, work_unit, chain, outcome: equal to this.
            since: started then or later.
            until: started before.
            limit: how many at most; 0 for all.

        Raises:
            InvalidInput: a time is naive.
        """
        times = (ns_of(since) if since else None, ns_of(until) if until else None)
        self.index.sync()
        return _read(self.index.query(Query(agent, rig, work_unit, chain, outcome, *times, limit)))


def _read(rows: Iterable[Row]) -> list[SessionMetadata]:
    from pytest_gittrix.record.model import SessionMetadata

    return [SessionMetadata.model_validate(json.loads(row.metadata)) for row in rows]
