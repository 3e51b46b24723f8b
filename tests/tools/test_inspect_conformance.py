"""Inspect's own checks of a sandbox, on ours. What is expected to miss stands here, and why in ``docs/reference/integrations.md``."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("inspect_ai", reason='needs pip install "pytest-gittrix[inspect]"')

from collections.abc import AsyncIterator

from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from support.frameworks import LEVELS, available

from pytest_gittrix.integrations.inspect.provider import GittrixSandbox, GittrixSandboxConfig

NO_OTHER_USER = {"test_exec_as_user"}
NO_PRIVATE_TMP = {
    "test_cwd_absolute",
    "test_read_and_write_file_including_directory_absolute",
    "test_write_binary_file_is_directory",
    "test_write_text_file_is_directory",
}
ROOT_MAY = {
    "test_read_file_not_allowed",
    "test_write_binary_file_without_permissions",
    "test_write_text_file_without_permissions",
}
MISSES = {
    "jail": NO_OTHER_USER,
    "guard": NO_OTHER_USER | NO_PRIVATE_TMP,
    "off": NO_OTHER_USER | (ROOT_MAY if os.geteuid() == 0 else set()),
}

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LEVELS)
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[GittrixSandbox]:
    level = available(request.param)
    if request.node.originalname in MISSES[level]:
        request.applymarker(pytest.mark.xfail(strict=True, reason=f"a known miss at level {level}"))
    config = GittrixSandboxConfig(confine=level)
    environments = await GittrixSandbox.sample_init("self_check", config, {"__sample_id__": "1"})
    yield environments["default"]
    await GittrixSandbox.sample_cleanup("self_check", config, environments, False)
