"""What an agent of each framework tries at its default: nothing gets out, and nothing is promoted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from support.agent_processes import on_linux
from support.gate import FOR_PEOPLE, ROOT, Gate

from pytest_gittrix.confine import confinement
from pytest_gittrix.engine import UserSession
from pytest_gittrix.extras import missing

pytestmark = on_linux


def by_deepagents(gate: Gate, session: UserSession) -> None:
    from pytest_gittrix.integrations.deepagents import GittrixBackend

    GittrixBackend(session.for_agent(), readable=[ROOT]).execute(shlex.join(gate.command))


LAUNCHERS: Final[Mapping[str, Callable[[Gate, UserSession], None]]] = {"deepagents": by_deepagents}
"""By the extra: runs the gate's agent in a session, as a tool of the framework does."""


@pytest.mark.skipif(confinement().level == "off", reason=confinement().why)
@pytest.mark.parametrize("extra", LAUNCHERS)
def test_by_default_nothing_gets_through(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing(extra) or missing("serve"):
        pytest.skip(reason)
    for name, value in FOR_PEOPLE.items():
        monkeypatch.setenv(name, value)
    with Gate.open(tmp_path, None) as gate:
        session = gate.engine.start_session("the gate")
        LAUNCHERS[extra](gate, session)
        got = gate.got(str(session.workspace_path))

    assert len(got) == 12
    assert not any(got.values()), got
