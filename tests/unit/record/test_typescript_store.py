"""A store written by the TypeScript GitTrix: only ``metadata.json``, a work tree made by git, and the locks it leaves behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, shell

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import CapabilityMissing, GittrixError, InvalidInput, MetadataVersionUnsupported, SessionExpired

ID = "sess_V1StGXR8_Z5j"


def record(site: Site, **changed: Any) -> dict[str, Any]:
    """What TypeScript writes."""
    then = "2030-01-01T00:00:00.000Z"
    return {
        "metadataVersion": 1,
        "id": ID,
        "task": "update docs",
        "durableRef": f"local://{site.durable.path}#main",
        "durablePath": str(site.durable.path),
        "durableBranch": "main",
        "ephemeralRef": f"local://{site.store / ID / 'workspace'}",
        "ephemeralPath": str(site.store / ID / "workspace"),
        "baselineSha": site.durable.head(),
        "workspaceKind": "worktree",
        "isGitBacked": True,
        "state": "active",
        "createdAt": then,
        "updatedAt": then,
        "lastAccessAt": then,
        "evictionPolicy": {"ttlIdleMs": 14400000, "ttlAbsoluteMs": None, "untilPromote": True, "manual": False},
        "touchedFiles": [],
        "promote": {"strategy": "auto", "result": None},
    } | changed


def put(site: Site, contents: object, id_: str = ID) -> Path:
    """Put a record into the store; gives the session's directory."""
    directory = site.store / id_
    directory.mkdir(parents=True, exist_ok=True)
    text = contents if isinstance(contents, str) else json.dumps(contents, indent=2)
    (directory / "metadata.json").write_text(text)
    return directory


def made(site: Site, **changed: Any) -> UserSession:
    """A session as TypeScript leaves it, opened."""
    directory = put(site, record(site, **changed))
    site.durable.git("worktree", "add", "-q", "--detach", str(directory / "workspace"))
    (directory / "touched.json").write_text('{"files":[]}')
    (directory / "workspace.json").write_text("{}")
    return site.engine.get_session(ID)


class TestASession:
    def test_cannot_be_handed_on_and_stays_as_it_is(self, site: Site) -> None:
        session = made(site, workspaceKind="clone")
        with pytest.raises(CapabilityMissing, match="started by another system"):
            session.handoff()
        assert site.state(ID).handoff is None
        assert session.read("app.py") == b"print('v1')\n"

    def test_opens_lists_and_tells_of_itself(self, site: Site) -> None:
        session = made(site)
        info = session.info()
        assert (info.session_id, info.task, info.state, info.workspace_kind) == (ID, "update docs", "active", "worktree")
        assert [one.id for one in site.engine.list_sessions()] == [ID]
        assert session.read("app.py") == b"print('v1')\n"
        assert session.touched_files() == []

    def test_sees_everything_that_changed(self, site: Site) -> None:
        session = made(site)
        shell(session, "echo v2 > app.py; rm README.md; chmod -x run.sh; echo new > new; git add app.py; git commit -qm hidden")
        assert session.touched_files() == ["README.md", "app.py", "new", "run.sh"]

    def test_is_promoted_and_its_work_tree_goes(self, site: Site) -> None:
        session, head = made(site), site.durable.head()
        session.write("app.py", "v2\n")
        shell(session, "echo new > new")
        result = session.promote()
        assert site.durable.parents(result.sha) == [head]
        assert [*site.durable.changed(result.sha)] == ["app.py", "new"]
        assert not (site.store / ID / "workspace").exists()
        assert len(site.durable.git("worktree", "list").splitlines()) == 1
        written = json.loads((site.store / ID / "metadata.json").read_text())
        assert written["promote"]["result"] == {"sha": result.sha, "branch": "main"}

    def test_is_swept_and_archived(self, site: Site) -> None:
        session = made(site)
        shell(session, "echo v2 > app.py")
        site.clock.advance(hours=4)
        assert site.engine.sweep() == []
        site.clock.advance(microseconds=1)
        assert site.engine.sweep() == [ID]
        assert not (site.store / ID / "workspace").exists()
        assert b"v2" in (site.store / ID / "archive.patch").read_bytes()
        assert len(site.durable.git("worktree", "list").splitlines()) == 1
        assert json.loads((site.store / ID / "metadata.json").read_text())["state"] == "expired"

    def test_keeps_keys_this_engine_does_not_know(self, site: Site) -> None:
        session = made(site, futureKey={"a": [1]})
        session.commit("mine")
        session.discard()
        assert json.loads((site.store / ID / "metadata.json").read_text())["futureKey"] == {"a": [1]}

    def test_is_not_written_to_by_looking(self, site: Site) -> None:
        directory = put(site, record(site))
        before = (directory / "metadata.json").read_bytes()
        site.engine.init()
        assert [one.id for one in site.engine.list_sessions()] == [ID]
        assert sorted(path.name for path in directory.iterdir()) == ["metadata.json"]
        assert (directory / "metadata.json").read_bytes() == before

    def test_with_a_lock_left_behind_goes_on(self, site: Site) -> None:
        session = made(site)
        (site.store / ID / ".lock").write_text("12345")
        session.write("app.py", "v2\n")
        assert site.durable.contains(session.promote().sha)

    def test_without_optional_keys_opens(self, site: Site) -> None:
        bare = record(site, state="discarded")
        for key in ("durablePath", "durableBranch", "ephemeralPath", "workspaceKind", "isGitBacked"):
            del bare[key]
        put(site, bare)
        assert site.engine.info(ID).state == "discarded"

    def test_of_a_copy_is_promoted(self, site: Site) -> None:
        directory = put(site, record(site, workspaceKind="copy", isGitBacked=False))
        shutil.copytree(site.durable.path, directory / "workspace", symlinks=True, ignore=shutil.ignore_patterns(".git"))
        session = site.engine.get_session(ID)
        session.write("app.py", "v2\n")
        assert [*site.durable.changed(session.promote().sha)] == ["app.py"]

    @pytest.mark.parametrize("state", ["promoted", "discarded", "expired"])
    def test_that_ended_is_listed_and_refused(self, site: Site, state: str) -> None:
        put(site, record(site, state=state))
        assert [one.id for one in site.engine.list_sessions(state)] == [ID]  # type: ignore[arg-type]
        with pytest.raises(SessionExpired):
            site.engine.get_session(ID)

    def test_whose_workspace_is_elsewhere_is_listed_and_refused(self, site: Site) -> None:
        put(site, record(site, workspaceKind="remote", ephemeralRef="cloudflare://default/x"))
        assert [one.id for one in site.engine.list_sessions()] == [ID]
        with pytest.raises(GittrixError, match="remote"):
            site.engine.get_session(ID)

    def test_whose_durable_is_elsewhere_is_listed_and_refused(self, site: Site) -> None:
        gone = record(site, durableRef="github://o/r#main")
        del gone["durablePath"]
        put(site, gone)
        assert [one.id for one in site.engine.list_sessions()] == [ID]
        with pytest.raises(GittrixError, match="github://o/r#main"):
            site.engine.get_session(ID)

    def test_whose_work_tree_was_removed_by_hand_still_ends(self, site: Site) -> None:
        session = made(site)
        shutil.rmtree(site.store / ID / "workspace")
        session.discard()
        assert site.state(ID).state == "discarded"
        assert len(site.durable.git("worktree", "list").splitlines()) == 1


class TestACorruptedRecord:
    @pytest.mark.parametrize(
        ("contents", "error"),
        [
            ("", MetadataVersionUnsupported),
            ("{", MetadataVersionUnsupported),
            ("[]", MetadataVersionUnsupported),
            ('{"metadataVersion": 2}', MetadataVersionUnsupported),
            ('{"metadataVersion": 1}', MetadataVersionUnsupported),
            ({"state": "paused"}, MetadataVersionUnsupported),
            ({"createdAt": "yesterday"}, MetadataVersionUnsupported),
            ({"evictionPolicy": {"ttlIdleMs": "4h"}}, MetadataVersionUnsupported),
            ({"id": "sess_somebodyelse"}, InvalidInput),
        ],
    )
    def test_is_named_and_left_alone_and_stops_nobody(self, site: Site, contents: Any, error: type[GittrixError]) -> None:
        directory = put(site, contents if isinstance(contents, str) else record(site, **contents))
        before = (directory / "metadata.json").read_bytes()
        session = site.start()
        site.clock.advance(hours=5)
        assert site.engine.init().list_sessions("active") == []
        assert site.state(session.id).state == "expired"
        with pytest.raises(error):
            site.engine.get_session(ID)
        assert [problem.id for problem in site.engine.problems()] == [ID]
        assert (directory / "metadata.json").read_bytes() == before


@pytest.mark.parametrize("state", ["active", "discarded"])
def test_it_has_a_history_and_every_view_before_it_has_a_log_and_the_same_afterwards(site: Site, state: str) -> None:
    directory = put(site, record(site, state=state))
    before = site.engine.history(ID)
    views = {name: site.engine.view(ID, name) for name in ("gastown", "orchestrator", "botminter", "pixir")}

    assert [(event.seq, event.type) for event in before] == [(0, "session.imported")]
    assert before[0].data["metadata"]["task"] == "update docs"
    assert site.engine.history(ID, ["session.write"]) == []
    assert not (directory / "events.jsonl").exists()
    site.engine.store.import_legacy(ID, ts=before[0].ts)
    assert site.engine.history(ID) == before
    assert {name: site.engine.view(ID, name) for name in views} == views
