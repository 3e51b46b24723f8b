"""Every clause, for ``pytest --pyargs pytest_gittrix.conformance``."""

from __future__ import annotations

from pytest_gittrix.conformance.bad_input import BadInputClauses
from pytest_gittrix.conformance.capabilities import CapabilityClauses
from pytest_gittrix.conformance.concurrency import ConcurrencyClauses
from pytest_gittrix.conformance.conflict import ConflictClauses
from pytest_gittrix.conformance.durability import DurabilityClauses
from pytest_gittrix.conformance.eviction import EvictionClauses
from pytest_gittrix.conformance.finalization import FinalizationClauses
from pytest_gittrix.conformance.identity import IdentityClauses
from pytest_gittrix.conformance.isolation import IsolationClauses
from pytest_gittrix.conformance.lifecycle import LifeClauses
from pytest_gittrix.conformance.lines import LineClauses
from pytest_gittrix.conformance.log import LogClauses
from pytest_gittrix.conformance.names import NamesClauses
from pytest_gittrix.conformance.overlay import OverlayClauses
from pytest_gittrix.conformance.promotion import PromotionClauses
from pytest_gittrix.conformance.retention import RetentionClauses
from pytest_gittrix.conformance.status import StatusClauses
from pytest_gittrix.conformance.turns import TurnClauses


class TestConflict(ConflictClauses):
    """CNF."""


class TestCapabilities(CapabilityClauses):
    """CAP."""


class TestIsolation(IsolationClauses):
    """ISO."""


class TestOverlay(OverlayClauses):
    """OVL."""


class TestPromotion(PromotionClauses):
    """PRM."""


class TestNames(NamesClauses):
    """NAM."""


class TestBadInput(BadInputClauses):
    """ERR."""


class TestConcurrency(ConcurrencyClauses):
    """LCK."""


class TestDurability(DurabilityClauses):
    """DUR."""


class TestLog(LogClauses):
    """LOG."""


class TestTurns(TurnClauses):
    """TRN."""


class TestLines(LineClauses):
    """LIN."""


class TestLife(LifeClauses):
    """LIF."""


class TestFinalization(FinalizationClauses):
    """FIN."""


class TestRetention(RetentionClauses):
    """RET."""


class TestStatus(StatusClauses):
    """STA."""


class TestEviction(EvictionClauses):
    """EVC."""


class TestIdentity(IdentityClauses):
    """IDS."""
