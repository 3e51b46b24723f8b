"""The document of sessions that GitTrix publishes, from top to bottom: each numbered step, each file, each field, each default."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.engine import DurableGit, Site, open_site, shell
from support.remote import TOKEN, Far, open_far
from support.workspace_server import workspace_server

from pytest_gittrix import AgentSession, BaselineConflict, EvictionPolicy, GitTrix, LocalDurable, LocalEphemeral, UserSession
from pytest_gittrix.backends import RemoteEphemeral
from pytest_gittrix.clock import CLOCK_START, FrozenClock
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, SessionExpired
from pytest_gittrix.record.store.store import default_home


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path) as opened:
        yield opened


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    with open_far(tmp_path, "http") as opened:
        assert opened.forge is not None
        monkeypatch.setenv("GITTRIX_FORGE_URL", opened.forge.url)
        client = opened.forge.forge()
        del opened.site.options["durable"]  # the engine's own is a repository of this machine
        opened.site.options |= {"credentials": lambda _address: ("git", TOKEN), "forge": lambda _durable: client}
        yield opened


class TestWhatASessionIs:
    def test_it_is_the_container_of_one_unit_of_agent_work_from_its_start_to_its_end(self, site: Site) -> None:
        session = site.start(task="greet")
        agent = session.for_agent()
        agent.write_and_commit({"hello.txt": "hello\n"}, "greet")
        assert (session.info().task, session.info().state, session.touched_files()) == ("greet", "active", ["hello.txt"])
        session.promote()
        assert site.engine.info(session.id).state == "promoted"
        with pytest.raises(SessionExpired):
            agent.write("more.txt", "another unit is another session\n")

    def test_its_workspace_is_isolated(self, site: Site) -> None:
        session, neighbour = site.start(), site.start()
        before = site.durable.fingerprint()
        shell(session, "echo mine > app.py; echo new > new.txt; git add --all; git -c user.name=a -c user.email=a@b commit -qm mine")
        assert site.durable.fingerprint() == before
        assert neighbour.read("app.py") == b"print('v1')\n"
        assert neighbour.touched_files() == []
        assert session.touched_files() == ["app.py", "new.txt"]


class TestTheTwelveSteps:
    def test_1_the_consumer_creates_gittrix_with_one_durable_and_one_ephemeral_adapter(self, tmp_path: Path) -> None:
        durable = LocalDurable(DurableGit.make(tmp_path / "durable").path)
        engine = GitTrix(durable, LocalEphemeral(), store=tmp_path / "sessions", clock=FrozenClock())
        assert engine.durable is durable
        assert not (tmp_path / "sessions").exists()

    def test_2_the_consumer_calls_init(self, site: Site) -> None:
        assert site.engine.init() is site.engine
        assert site.store.is_dir()
        assert site.engine.init() is site.engine
        site.engine.close()
        site.engine.close()

    def test_2_or_uses_it_as_a_context_manager(self, site: Site) -> None:
        with site.another(sweep_interval=timedelta(minutes=5)) as engine:
            session = engine.start_session("x", eviction=EvictionPolicy(ttl_idle="1h"))
            site.clock.advance(hours=2)
            assert site.state(session.id).state == "expired"

    def test_3_the_consumer_starts_a_session_with_task_path_ref_branch_and_eviction(self, site: Site) -> None:
        side = site.durable.commit({"app.py": "side\n"}, branch="side", onto=site.durable.head())
        policy = EvictionPolicy(ttl_idle="1h")
        by_path = site.start(task="t", durable_path=site.durable.path, durable_branch="side", eviction=policy)
        by_ref = site.start(task="t", durable_ref=f"local://{site.durable.path}#side", eviction=policy)
        for session in (by_path, by_ref):
            assert isinstance(session, UserSession)
            info = session.info()
            assert (info.task, info.durable_path, info.durable_branch, info.baseline_sha) == ("t", str(site.durable.path), "side", side)
            assert info.deadline == CLOCK_START + timedelta(hours=1)

    def test_3_a_durable_ref_names_a_repository_of_the_forge(self, far: Far) -> None:
        session = far.site.start(durable_ref="github://acme/app#main")
        assert session.metadata()["durableRef"] == "github://acme/app#main"
        assert session.metadata()["durableBranch"] == "main"
        session.write("app.py", "v2\n")
        head = far.git.head()
        result = session.promote(strategy="pr")
        assert result.pr_url is not None
        written = json.loads((far.site.store / session.id / "metadata.json").read_text())
        assert written["promote"] == {"strategy": "pr", "result": {"sha": result.sha, "branch": result.branch, "prUrl": result.pr_url}}
        assert far.git.parents(result.sha) == [head]
        assert far.site.another().info(session.id).state == "promoted"

    def test_4_gittrix_records_the_durable_branch_head_as_baseline(self, site: Site) -> None:
        head = site.durable.head()
        session = site.start()
        site.durable.commit({"app.py": "moved on\n"})
        assert session.metadata()["baselineSha"] == session.info().baseline_sha == head

    def test_5_gittrix_initialises_a_workspace_from_the_baseline(self, site: Site) -> None:
        session = site.start()
        site.durable.commit({"app.py": "moved on\n"})
        assert session.read("app.py") == b"print('v1')\n"
        assert shell(session, "cat app.py") == "print('v1')\n"

    def test_6_the_agent_receives_the_agent_s_session(self, site: Site) -> None:
        agent = site.start().for_agent()
        assert type(agent) is AgentSession
        assert not hasattr(agent, "promote")

    def test_7_the_agent_reads_writes_deletes_lists_diffs_and_commits(self, site: Site) -> None:
        agent = site.start().for_agent()
        assert agent.read("app.py") == b"print('v1')\n"
        agent.write("app.py", b"v2\n")
        agent.delete("README.md")
        listed = [entry.path for entry in agent.list()]
        assert "app.py" in listed
        assert "README.md" not in listed
        assert "+v2" in agent.diff()
        assert agent.commit("done") == agent.log()[0].sha

    def test_8_the_app_promotes_selected_files(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.write("later.txt", "later\n")
        assert "later.txt" in session.diff()
        assert [*site.durable.changed(session.promote(files=["app.py"]).sha)] == ["app.py"]

    def test_8_or_all_touched_files(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.write("later.txt", "later\n")
        assert [*site.durable.changed(session.promote().sha)] == session_touched(site, session.id)

    def test_9_gittrix_checks_drift_against_the_baseline(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        rival = site.durable.commit({"README.md": "rival\n"})
        assert site.durable.parents(session.promote().sha) == [rival]

    def test_10_overlap_fails_with_baseline_conflict(self, site: Site) -> None:
        session, baseline = site.start(), site.durable.head()
        session.write_and_commit({"app.py": "v2\n", "later.txt": "later\n"}, "both")
        rival = site.durable.commit({"app.py": "rival\n"})
        with pytest.raises(BaselineConflict) as caught:
            session.promote(files=["app.py"])
        assert site.durable.head() == rival, "drift is checked before the commit"
        conflict = caught.value
        assert conflict.code == "BASELINE_CONFLICT"
        assert (conflict.conflicting_files, conflict.durable_sha, conflict.baseline_sha) == (["app.py"], rival, baseline)
        assert session.info().state == "active"
        assert [*site.durable.changed(session.promote(files=["later.txt"]).sha)] == ["later.txt"], "what is not selected is no overlap"

    def test_11_success_is_one_synthetic_commit_and_state_promoted(self, site: Site) -> None:
        session, head = site.start(), site.durable.head()
        for number in range(3):
            session.write_and_commit({"app.py": f"v{number}\n"}, f"step {number}")
        result = session.promote()
        assert site.durable.git("rev-list", f"{head}..main").split() == [result.sha]
        assert site.durable.git("log", "-1", "--format=%s") == "gittrix: fix the bug"
        assert site.engine.info(session.id).state == "promoted"

    @pytest.mark.parametrize("until_promote", [True, False])
    def test_12_until_promote_evicts_the_workspace(self, site: Site, until_promote: bool) -> None:
        session = site.start(eviction=EvictionPolicy(until_promote=until_promote))
        session.write("app.py", "v2\n")
        session.promote()
        assert (site.store / session.id / "workspace").exists() is not until_promote
        assert (site.store / session.id / "metadata.json").exists()


def session_touched(site: Site, id_: str) -> list[str]:
    return sorted(site.engine.info(id_).touched_files)


def recorded(site: Site, id_: str) -> dict[str, Any]:
    """The record of a session, as its file has it."""
    record: dict[str, Any] = json.loads((site.store / id_ / "metadata.json").read_text())
    return record


class TestTheStore:
    def test_of_an_engine_that_nobody_tells_one_is_in_the_person_s_home(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(site.root / "person"))
        monkeypatch.delenv("GITTRIX_HOME", raising=False)
        with GitTrix(site.durable.path, clock=site.clock, durability="fast") as engine:
            session = engine.start_session("x")
            files = site.root / "person/.gittrix/sessions" / session.id
            assert json.loads((files / "metadata.json").read_text())["id"] == session.id
            assert (files / ".lock").is_file()
            assert (files / "workspace/app.py").is_file()

    def test_of_an_engine_is_there_too(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITTRIX_HOME", str(site.root / "home"))
        engine = GitTrix(site.durable.path, clock=site.clock)
        assert engine.home == default_home() == site.root / "home"
        assert engine.store.root == site.root / "home/sessions"


class TestTheRecord:
    def test_has_every_field_with_its_type(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        record = json.loads((site.store / session.id / "metadata.json").read_text())
        texts = ("id", "task", "durableRef", "durablePath", "durableBranch", "ephemeralRef", "ephemeralPath", "baselineSha")
        assert all(isinstance(record[key], str) for key in texts)
        assert record["metadataVersion"] == 1
        assert record["workspaceKind"] in ("worktree", "clone", "copy", "remote")
        assert record["isGitBacked"] is True
        assert record["state"] in ("active", "promoted", "discarded", "expired")
        assert all(record[key].endswith("Z") for key in ("createdAt", "updatedAt", "lastAccessAt"))
        assert record["evictionPolicy"].keys() == {"ttlIdleMs", "ttlAbsoluteMs", "untilPromote", "manual"}
        assert record["touchedFiles"] == ["app.py"]
        assert record["promote"].keys() == {"strategy", "result"}
        assert record["promote"]["result"].keys() >= {"sha", "branch"}

    def test_touched_files_are_those_that_the_agent_s_programs_changed(self, site: Site) -> None:
        promoted, discarded = site.start(), site.start()
        shell(promoted, "echo v2 > app.py; echo new > new.txt")
        shell(discarded, "rm app.py")
        promoted.promote(files=["app.py"])
        discarded.discard()
        for session, touched in ((promoted, ["app.py", "new.txt"]), (discarded, ["app.py"])):
            assert json.loads((site.store / session.id / "metadata.json").read_text())["touchedFiles"] == touched
            assert [*site.engine.info(session.id).touched_files] == touched

    def test_of_the_documented_example_is_read(self, site: Site) -> None:
        example = {
            "metadataVersion": 1,
            "id": "sess_abc123",
            "task": "update docs",
            "durableRef": "github://owner/repo#main",
            "durableBranch": "main",
            "ephemeralRef": "cloudflare://default/gittrix-eph-sess_abc123",
            "ephemeralPath": "/Users/jack/.gittrix/cf-artifacts-ephemeral/sess_abc123",
            "baselineSha": "<durable-head-sha>",
            "workspaceKind": "remote",
            "isGitBacked": True,
            "state": "active",
            "touchedFiles": [],
            "promote": {"strategy": "auto", "result": None},
        }  # word for word: it has no times, and no policy
        (site.store / "sess_abc123").mkdir(parents=True)
        (site.store / "sess_abc123/metadata.json").write_text(json.dumps(example))
        (listed,) = site.engine.list_sessions()
        assert (listed.id, listed.durable_ref, listed.durable_path, listed.workspace_kind) == (
            "sess_abc123",
            "github://owner/repo#main",
            None,
            "remote",
        )
        assert (listed.state, listed.eviction_policy.ttl_idle_ms, site.engine.problems()) == ("active", 4 * 60 * 60 * 1000, [])

    def test_names_a_policy_of_numbers_or_null_and_two_switches(self, site: Site) -> None:
        policy = EvictionPolicy(ttl_idle=None, ttl_absolute="1h", until_promote=False, manual=True)
        record = json.loads((site.store / site.start(eviction=policy).id / "metadata.json").read_text())
        assert record["evictionPolicy"] == {"ttlIdleMs": None, "ttlAbsoluteMs": 3_600_000, "untilPromote": False, "manual": True}

    @pytest.mark.parametrize("kind", ["worktree", "clone", "copy"])
    def test_workspace_kind_is_that_of_its_adapter(self, site: Site, kind: str) -> None:
        assert site.start(workspace=kind).metadata()["workspaceKind"] == kind

    def test_of_a_remote_durable_with_a_remote_ephemeral_names_both(self, far: Far, tmp_path: Path) -> None:
        with workspace_server(tmp_path / "workspaces") as server:
            engine = far.site.another(ephemeral=RemoteEphemeral(server.address, server.token))
            session = engine.start_session("update docs", durable_ref="github://acme/app#main")
            record = session.metadata()
            assert (record["durableRef"], record["workspaceKind"]) == ("github://acme/app#main", "remote")
            assert record["ephemeralRef"] == f"{server.address}/{session.id}"
            assert Path(record["durablePath"]).is_relative_to(engine.home / "mirrors")
            assert (Path(record["ephemeralPath"]) / "app.py").read_text() == "print('v1')\n"
            with pytest.raises(CapabilityMissing):
                session.run(["true"])
            session.write("app.py", "v2\n")
            assert session.promote(strategy="commit").sha == far.git.head()

    @pytest.mark.parametrize("strategy", ["auto", "commit", "branch", "patch"])
    def test_each_strategy_of_the_document_promotes(self, site: Site, strategy: str) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote(strategy=strategy)
        written = json.loads((site.store / session.id / "metadata.json").read_text())
        assert (written["state"], written["promote"]["strategy"]) == ("promoted", "commit" if strategy == "auto" else strategy)

    def test_a_session_of_a_typescript_store_begins_with_its_touched_files(self, site: Site) -> None:
        started = site.start(workspace="copy")
        record = {key: value for key, value in started.metadata().items() if key != "log"}
        directory = site.store / "sess_V1StGXR8_Z5j"
        shutil.copytree(site.store / started.id / "workspace", directory / "workspace", symlinks=True)
        changed = {"id": directory.name, "ephemeralPath": str(directory / "workspace"), "touchedFiles": ["app.py"]}
        (directory / "metadata.json").write_text(json.dumps(record | changed))
        (directory / "workspace/app.py").write_text("v2\n")
        session = site.engine.get_session(directory.name)
        assert session.metadata()["touchedFiles"] == session.touched_files() == ["app.py"]
        assert "touched.seen" not in site.types(session.id)
        shell(session, "echo new > new.txt")
        session.touched_files()
        assert session.metadata()["touchedFiles"] == ["app.py", "new.txt"]

    @pytest.mark.parametrize("kind", ["worktree", "clone", "copy", "remote"])
    def test_live_sessions_of_a_typescript_store_open_or_say_why_not(self, site: Site, kind: str) -> None:
        session = site.start(workspace="copy")
        record = session.metadata() | {"id": "sess_V1StGXR8_Z5j", "workspaceKind": kind}
        directory = site.store / "sess_V1StGXR8_Z5j"
        record["ephemeralPath"] = str(directory / "workspace")
        directory.mkdir()
        shutil.copytree(site.store / session.id / "workspace", directory / "workspace", symlinks=True)
        (directory / "metadata.json").write_text(json.dumps({key: value for key, value in record.items() if key != "log"}))
        if kind == "remote":
            with pytest.raises(AdapterUnavailable, match="not on this machine"):
                site.engine.get_session("sess_V1StGXR8_Z5j")
        else:
            assert site.engine.get_session("sess_V1StGXR8_Z5j").read("app.py") == b"print('v1')\n"


class TestStates:
    def test_are_four_and_three_of_them_are_ends(self, site: Site) -> None:
        def promote(session: UserSession) -> None:
            session.write("app.py", f"{session.id}\n")
            session.promote()

        ends = {"promoted": promote, "discarded": UserSession.discard, "expired": lambda session: site.engine.evict(session.id)}
        for state, end in ends.items():
            session = site.start()
            assert recorded(site, session.id)["state"] == session.info().state == "active"
            end(session)
            assert recorded(site, session.id)["state"] == site.engine.info(session.id).state == state
            for again in (session.discard, session.promote, session.touched_files):
                with pytest.raises(SessionExpired):
                    again()
            assert site.engine.info(session.id).state == state


class TestDefaults:
    def test_of_the_policy(self, site: Site) -> None:
        assert EvictionPolicy().model_dump() == {
            "ttl_idle": timedelta(hours=4),
            "ttl_absolute": None,
            "until_promote": True,
            "manual": False,
        }
        assert site.start().metadata()["evictionPolicy"] == {
            "ttlIdleMs": 4 * 60 * 60 * 1000,
            "ttlAbsoluteMs": None,
            "untilPromote": True,
            "manual": False,
        }

    def test_of_the_sweep_interval_are_five_minutes(self, tmp_path: Path) -> None:
        clock = FrozenClock()
        durable = DurableGit.make(tmp_path / "durable")
        with GitTrix(durable.path, store=tmp_path / "sessions", clock=clock, durability="fast") as engine:
            ended: list[int] = []
            engine.on("session.evict", lambda event: ended.append(event.ts))
            start = clock.now_ns()
            engine.start_session("x", eviction=EvictionPolicy(ttl_idle="1s"))
            clock.advance(minutes=5)
            assert [at - start for at in ended] == [5 * 60 * 1000 * 10**6]

    def test_of_the_strategy_is_auto(self, site: Site) -> None:
        assert site.start().metadata()["promote"] == {"strategy": "auto", "result": None}


class TestTheTwoHandles:
    def test_the_user_can_review_promote_discard_and_extend(self, site: Site) -> None:
        """Each by a new engine on the store."""
        ids = [site.start(eviction=EvictionPolicy(ttl_idle="1h")).id for _ in range(3)]
        for id_ in ids:
            site.engine.get_session(id_).write("app.py", f"{id_}\n")
        site.engine.close()
        promoted, discarded, evicted = ids
        user = site.another().get_session(promoted)
        assert isinstance(user, UserSession)
        assert [*user.review().changes] == ["app.py"]
        assert f"+{promoted}" in user.diff()
        user.extend("2h")
        assert user.info().deadline == site.clock.now() + timedelta(hours=2)
        assert site.durable.read("app.py", user.promote().sha) == f"{promoted}\n".encode()
        site.another().get_session(discarded).discard()
        site.another().evict(evicted)
        assert [recorded(site, id_)["state"] for id_ in ids] == ["promoted", "discarded", "expired"]

    def test_the_agent_cannot_promote(self, site: Site) -> None:
        agent = site.start().for_agent()
        assert not any(hasattr(agent, verb) for verb in ("promote", "discard", "extend"))
