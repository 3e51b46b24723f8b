"""What a clause is, and how it is expected, catalogued and waived."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(f"{__name__}.member_stage", f"{__name__}.expect")
