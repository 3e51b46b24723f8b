"""The clauses themselves, a family a module."""

from __future__ import annotations

import pytest

from pytest_gittrix.extensions import registered

# Clauses are inherited by test classes, so pytest would not explain their assertions by itself.
pytest.register_assert_rewrite(*(family.address for family in registered("clauses").values()))
