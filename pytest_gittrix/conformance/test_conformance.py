"""Every clause, for ``pytest --pyargs pytest_gittrix.conformance``: a class of tests for each family."""

from __future__ import annotations

from pytest_gittrix.conformance.base.catalogue import families

for _family in families():
    _name = f"Test{_family.__name__.removesuffix('Clauses')}"
    while _name in globals():  # families of two packages may have classes of one name
        _name += "Too"
    globals()[_name] = type(_name, (_family,), {})
