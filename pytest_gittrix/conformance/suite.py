"""All clauses in one class, to be subclassed by those who write the tests of a session system."""

from __future__ import annotations

from pytest_gittrix.conformance.base.catalogue import families


class SessionSystemSuite(*families()):  # type: ignore[misc]  # the families are found, so that a new one is not forgotten
    """Every clause of every family.

    Subclass it in a test module, in a class whose name begins with ``Test``; say in the fixture ``gittrix_system`` which system is meant,
    and in ``waivers`` which promises it does not keep, and why::

        @pytest.fixture(scope="session")
        def gittrix_system():
            return AcmeSystem()

        class TestAcme(SessionSystemSuite):
            waivers = {"NAM-04": "names are folded to lower case on purpose"}

    A waived clause must fail. A clause that is overridden, or set to None, must be waived.
    """
