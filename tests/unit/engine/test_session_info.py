"""What a session says of itself: ``info``, its wire form, its record, its handles."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from support.engine import KINDS, Site, shell

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.confine.levels import missing_layers
from pytest_gittrix.engine.user_session import AgentSession, UserSession
from pytest_gittrix.errors import SessionNotFound
from pytest_gittrix.record.state.records import SessionMetadata


class TestInfo:
    @pytest.mark.parametrize("kind", KINDS)
    def test_says_what_the_session_is(self, site: Site, kind: str) -> None:
        session = site.start("fix it", workspace=kind)
        site.clock.advance(hours=1)
        session.write("app.py", "v2\n")
        info = session.info()
        workspace = str(site.directory(session) / "workspace")
        assert (info.session_id, info.task, info.state, info.workspace_kind) == (session.id, "fix it", "active", kind)
        assert (info.durable_path, info.durable_branch) == (str(site.durable.path), "main")
        assert info.durable_ref == f"local://{site.durable.path}#main"
        assert (info.workspace_path, info.ephemeral_ref) == (workspace, f"local://{workspace}")
        assert info.baseline_sha == site.durable.head()
        assert info.touched_files == ("app.py",)
        assert info.created_at == CLOCK_START
        assert info.updated_at == info.last_access_at == CLOCK_START + timedelta(hours=1)
        assert info.deadline == CLOCK_START + timedelta(hours=5)

    @pytest.mark.parametrize(
        ("kind", "capabilities"),
        [
            ("clone", {"git", "shell", "isolated"}),
            ("worktree", {"git", "shell"}),
            ("copy", {"shell", "isolated"}),
            ("lazy", {"isolated"}),
            ("overlay", {"git", "shell", "isolated"}),
        ],
    )
    def test_says_what_the_workspace_can_do(self, site: Site, kind: str, capabilities: set[str]) -> None:
        if kind == "overlay" and (why := missing_layers(str(site.root))):
            pytest.skip(why)
        can = site.start(workspace=kind).info().capabilities
        assert {name for name in ("git", "shell", "isolated") if can[name]} == capabilities
        assert {name: can[name] for name in ("filesystem", "apiReadWrite", "patchImport", "promote")} == {
            "filesystem": True,
            "apiReadWrite": True,
            "patchImport": False,
            "promote": True,
        }

    def test_sees_what_a_shell_did(self, site: Site) -> None:
        session = site.start()
        shell(session, "echo x > by-shell; rm app.py")
        assert session.info().touched_files == ("app.py", "by-shell")

    def test_on_the_wire_is_json_in_camel_case(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        wire = session.info().to_wire()
        assert json.loads(json.dumps(wire)) == wire
        assert wire.keys() >= {
            "sessionId",
            "durableRef",
            "workspacePath",
            "baselineSha",
            "touchedFiles",
            "createdAt",
            "deadline",
            "capabilities",
        }
        assert wire["touchedFiles"] == ["app.py"]
        assert wire["deadline"].startswith("2030-01-01T04:00:00")

    @pytest.mark.parametrize("end", ["promoted", "discarded", "expired"])
    def test_of_an_ended_session_comes_from_the_engine(self, site: Site, end: str) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        {"promoted": session.promote, "discarded": session.discard, "expired": lambda: site.engine.evict(session.id)}[end]()
        info = site.another().info(session.id)
        assert (info.state, info.workspace_path, info.deadline, info.touched_files) == (end, None, None, ("app.py",))
        assert not any(info.capabilities[name] for name in ("promote", "filesystem", "apiReadWrite", "git", "shell"))
        assert "deadline" not in info.to_wire()

    def test_of_an_unknown_session_is_an_error(self, site: Site) -> None:
        site.engine.init()
        with pytest.raises(SessionNotFound):
            site.engine.info("sess_nowhere")


class TestTheRecord:
    def test_is_kept_up_to_date(self, site: Site) -> None:
        session = site.start()
        session.commit("empty")
        path = site.directory(session) / "metadata.json"
        session.extend(timedelta(hours=1))
        assert json.loads(path.read_text())["evictionPolicy"]["ttlIdleMs"] == 3_600_000
        session.write("app.py", "v2\n")
        result = session.promote()
        record = json.loads(path.read_text())
        assert record.pop("log") == "events.jsonl"
        assert record == session.metadata()
        assert (record["state"], record["touchedFiles"]) == ("promoted", ["app.py"])
        assert record["promote"] == {"strategy": "commit", "result": {"sha": result.sha, "branch": "main"}}
        assert SessionMetadata.model_validate(record).wire() == record

    def test_that_cannot_be_written_stops_nothing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        session = site.start()
        monkeypatch.setattr("sys.unraisablehook", lambda unraisable: None)
        monkeypatch.setattr("threading.excepthook", lambda args: None)
        path = site.directory(session) / "metadata.json"
        path.unlink()
        (path / "occupied").mkdir(parents=True)
        session.write("app.py", "v2\n")
        session.extend(timedelta(hours=9))
        assert session.info().deadline == CLOCK_START + timedelta(hours=9)
        assert site.durable.contains(session.promote().sha)


class TestTheHandles:
    def test_say_which_session_they_are_of(self, site: Site) -> None:
        session = site.start()
        assert repr(session) == f"<UserSession {session.id} in {site.directory(session)}/workspace>"
        assert repr(session.for_agent()).startswith(f"<AgentSession {session.id}")

    def test_of_the_agent_have_exactly_the_names_they_should(self, site: Site) -> None:
        session = site.start()
        public = {name for name in dir(session.for_agent()) if not name.startswith("_")}
        verbs = "id info read write delete list exists touched_files diff commit write_and_commit log workspace_path"
        verbs += " record emit history checkpoint step attach attached environment run programs"
        assert public == set(verbs.split())
        more = {name for name in dir(session) if not name.startswith("_")} - public
        decisions = "review promote discard extend for_agent archive archives moved_refs metadata handoff start_turn turn_running interrupt"
        decisions += " turn begin_turn end_turn rebase fork identify subscribe view register_pressure_warning relocate"
        assert more == set(decisions.split())
        assert not isinstance(session.for_agent(), UserSession)
        assert isinstance(session, AgentSession)

    @pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
    def test_tell_a_workspace_fit_to_work_in(self, site: Site, kind: str) -> None:
        session = site.start(workspace=kind)
        assert session.workspace_path == session.for_agent().workspace_path == site.directory(session) / "workspace"
        assert shell(session, "pwd").strip() == str(session.workspace_path)
