"""CAP: a system has exactly the capabilities that it declares."""

from __future__ import annotations

from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import EXTENDED, VERBS


class CapabilityClauses(Clauses):
    """Declared and undeclared capabilities."""

    def test_cap_01_every_declared_verb_is_there(self, stage: Stage) -> None:
        """Every declared verb exists. Otherwise a caller who relies on the declaration calls a verb that does not exist."""
        declared = {verb for capability, verbs in VERBS.items() if capability in stage.system.capabilities for verb in verbs}

        assert sorted(declared - _verbs(stage)) == []

    def test_cap_02_every_verb_that_is_there_is_declared(self, stage: Stage) -> None:
        """Every existing verb is declared. Otherwise the system does something that no clause checks."""
        declared = {verb for capability, verbs in VERBS.items() if capability in stage.system.capabilities for verb in verbs}

        assert sorted(_verbs(stage) - declared) == []

    def test_cap_03_every_declared_capability_is_put_to_the_test(self, stage: Stage) -> None:
        """Every declared capability is tested.

        Otherwise a capability is claimed although each of its clauses is skipped because another capability is missing.
        """
        from pytest_gittrix.conformance.base.catalogue import all_clauses

        declared = stage.system.capabilities & EXTENDED
        needed = [clause.needs for clause in all_clauses()]
        known = declared & frozenset[object]().union(*needed)
        tested = frozenset[object]().union(*(needs for needs in needed if needs <= declared))

        assert sorted(str(one) for one in known - tested) == []


def _verbs(stage: Stage) -> set[str]:
    """The optional verbs that the engine has; a verb that is set to None does not count."""
    return {verb for verbs in VERBS.values() for verb in verbs if callable(getattr(stage.gittrix.raw, verb, None))}
