"""All clauses in one class, to be subclassed in the tests of a session system."""

from __future__ import annotations

from pytest_gittrix.conformance.base.catalogue import families


class SessionSystemSuite(*families()):  # type: ignore[misc]  # the families are looked up, so that none is forgotten
    """Every clause of every family.

    Subclass it in a test module, with a name that begins with ``Test``. The fixture ``gittrix_system`` gives the system, and ``waivers``
    names the promises that it does not keep, with reasons::

        @pytest.fixture(scope="session")
        def gittrix_system():
            return AcmeSystem()

        class TestAcme(SessionSystemSuite):
            waivers = {"NAM-04": "names are folded to lower case on purpose"}

    A waived clause must fail. A clause that is overridden, or set to None, must be waived.
    """
