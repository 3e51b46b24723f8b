"""Every clause, for ``pytest --pyargs pytest_gittrix.conformance``."""

from __future__ import annotations

from pytest_gittrix.conformance.families.bad_input import BadInputClauses
from pytest_gittrix.conformance.families.capabilities import CapabilityClauses
from pytest_gittrix.conformance.families.concurrency import ConcurrencyClauses
from pytest_gittrix.conformance.families.conflict import ConflictClauses
from pytest_gittrix.conformance.families.durability import DurabilityClauses
from pytest_gittrix.conformance.families.eviction import EvictionClauses
from pytest_gittrix.conformance.families.finalization import FinalizationClauses
from pytest_gittrix.conformance.families.identity import IdentityClauses
from pytest_gittrix.conformance.families.isolation import IsolationClauses
from pytest_gittrix.conformance.families.lifecycle import LifeClauses
from pytest_gittrix.conformance.families.lineage import LineClauses
from pytest_gittrix.conformance.families.log import LogClauses
from pytest_gittrix.conformance.families.names import NamesClauses
from pytest_gittrix.conformance.families.overlay import OverlayClauses
from pytest_gittrix.conformance.families.promotion import PromotionClauses
from pytest_gittrix.conformance.families.retention import RetentionClauses
from pytest_gittrix.conformance.families.status import StatusClauses
from pytest_gittrix.conformance.families.turns import TurnClauses


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
