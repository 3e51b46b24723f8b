"""Every clause, for ``pytest --pyargs pytest_gittrix.conformance``: a class of tests for each family."""

from __future__ import annotations

from pytest_gittrix.conformance.base.catalogue import families

for _family in families():
    globals()[f"Test{_family.__name__.removesuffix('Clauses')}"] = type(f"Test{_family.__name__.removesuffix('Clauses')}", (_family,), {})
