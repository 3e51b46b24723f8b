"""What a clause is, and how it is expected, catalogued and waived."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("member_stage", "expect", "turn_kit", "workspace_facts")))
