"""From the agent's object no chain of references leads to durable or to a decision (rule 6)."""

from __future__ import annotations

import gc
import os
import types
from datetime import timedelta
from pathlib import Path

import pytest
from support.engine import KINDS, Site, open_site, shell

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.lineage.recovery import Recovery
from pytest_gittrix.engine.operations.resources import Resources
from pytest_gittrix.engine.promotion.promotion import Promotion, PromotionParts
from pytest_gittrix.engine.promotion.strategy import Preferences
from pytest_gittrix.engine.services import EngineServices
from pytest_gittrix.engine.user_session import AgentSession, UserSession
from pytest_gittrix.git.repository import Repository

FORBIDDEN = (
    LocalDurable,
    LocalEphemeral,
    Repository,
    GitTrix,
    EngineServices,
    UserSession,
    Promotion,
    PromotionParts,
    Recovery,
    Resources,
    Preferences,
)


def reachable(start: object) -> dict[int, tuple[object, object]]:
    """Every object that references lead to, with the one it was reached from; not through modules, classes and globals."""
    found: dict[int, tuple[object, object]] = {id(start): (start, None)}
    pending = [start]
    while pending:
        here = pending.pop()
        passed_over = {id(here.__globals__)} if isinstance(here, types.FunctionType) else set()
        for there in gc.get_referents(here):
            if id(there) in found or id(there) in passed_over or isinstance(there, (types.ModuleType, type, types.FrameType)):
                continue
            found[id(there)] = (there, here)
            pending.append(there)
    return found


def assert_isolated(agent: AgentSession) -> None:
    found = reachable(agent)
    assert len(found) > 50
    for there, origin in found.values():
        assert not isinstance(there, FORBIDDEN), f"{there!r}, from {origin!r:.200}"


def test_the_walk_finds_what_is_there(site: Site) -> None:
    kinds = {type(there) for there, _ in reachable(site.start()).values()}
    assert {EngineServices, PromotionParts, LocalDurable, Repository} <= kinds


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_forbidden_is_reached_from_a_fresh_agent(site: Site, kind: str) -> None:
    assert_isolated(site.start(workspace=kind).for_agent())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_forbidden_is_reached_after_work(site: Site, kind: str) -> None:
    site.engine.init()
    session = site.start(workspace=kind)
    agent = session.for_agent()
    agent.write_and_commit({"app.py": "v2\n"}, "mine")
    agent.info(), agent.log(), agent.diff(), agent.list(), agent.read("src/util.py")
    session.review()
    session.archive()
    site.another().get_session(session.id).touched_files()
    assert_isolated(agent)


def test_nothing_forbidden_is_reached_after_a_program_ran(site: Site) -> None:
    agent = site.start().for_agent()
    assert agent.run(["true"], confine="auto").code == 0
    assert_isolated(agent)


def test_nothing_forbidden_is_reached_while_timers_and_listeners_run(tmp_path: Path) -> None:
    with open_site(tmp_path, sweep_interval=timedelta(minutes=5)) as site:
        site.engine.init()
        agent = site.start().for_agent()
        site.clock.advance(minutes=11)
        assert_isolated(agent)


def test_nothing_forbidden_is_reached_from_an_error_the_agent_gets(site: Site) -> None:
    session = site.start()
    agent = session.for_agent()
    session.discard()
    with pytest.raises(Exception, match="discarded") as caught:
        agent.write("app.py", "x")
    error = caught.value.with_traceback(None)
    assert not any(isinstance(there, FORBIDDEN) for there, _ in reachable(error).values())


@pytest.mark.parametrize(
    "name", ["promote", "rebase", "discard", "extend", "relocate", "for_agent", "review", "archive", "moved_refs", "evict", "sweep"]
)
def test_the_agent_has_no_verb_that_decides(site: Site, name: str) -> None:
    assert not hasattr(site.start().for_agent(), name)


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_the_workspace_s_own_git_does_not_lead_to_durable(tmp_path: Path, object_format: str) -> None:
    with open_site(tmp_path, object_format=object_format) as site:
        session = site.start()
        durable = os.fsencode(site.durable.path)
        git_dir = site.directory(session) / "workspace/.git"
        for path in git_dir.rglob("*"):
            if path.is_file():
                assert path.stat().st_nlink == 1
                assert durable not in path.read_bytes()
            assert not path.is_symlink()
        assert shell(session, "git config --get-regexp 'remote|url|alternate|include' || true") == ""
        assert shell(session, "git rev-parse --git-common-dir").strip() == ".git"


def test_the_agent_s_own_git_cannot_see_durable_s_later_commits(site: Site) -> None:
    session = site.start()
    later = site.durable.commit({"secret.txt": "later\n"})
    blob = site.durable.git("rev-parse", "main:secret.txt")
    listed = shell(session, "git cat-file --batch-all-objects --batch-check")
    assert later not in listed
    assert blob not in listed


@pytest.mark.parametrize("kind", ["clone", "copy"])
def test_hostile_configuration_never_runs_nor_reaches_durable(site: Site, kind: str) -> None:
    trap, before = site.root / "trapped", site.durable.fingerprint()
    session = site.start(workspace=kind)
    config = "\n".join(
        f"[{section}]\n\t{key} = {value}"
        for section, key, value in [
            ("core", "fsmonitor", f"touch {trap}"),
            ("core", "hooksPath", "hooks"),
            ("core", "worktree", str(site.durable.path)),
            ("include", "path", "/etc/passwd"),
            ('filter "x"', "clean", f"touch {trap}"),
            ('diff "x"', "textconv", f"touch {trap}"),
            ("gpg", "program", f"touch {trap}"),
        ]
    )
    shell(session, "mkdir -p .git; printf '* filter=x diff=x\\n' > .gitattributes; echo v2 > app.py")
    (session.workspace_path / ".git/config").write_text(config + "\n[core]\n\trepositoryformatversion = 0\n")  # type: ignore[operator]
    assert session.touched_files() == [".gitattributes", "app.py"]
    session.commit("quiet")
    session.diff()
    assert site.durable.fingerprint() == before
    assert [*site.durable.changed(session.promote(files=["app.py"]).sha)] == ["app.py"]
    assert not trap.exists()
