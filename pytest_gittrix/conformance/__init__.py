"""The conformance suite: about a hundred promises of a session system, each a test with a stable code.

Run it on a system of your own without a line of code::

    pytest --pyargs pytest_gittrix.conformance --gittrix-system=acme.testing:system
"""

import pytest

FAMILY_MODULES = (
    "isolation",
    "overlay",
    "promotion",
    "conflict",
    "concurrency",
    "eviction",
    "durability",
    "identity",
    "names",
    "bad_input",
)

# Clauses are inherited by test classes, so pytest would not explain their assertions by itself.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in (*FAMILY_MODULES, "expect")))
