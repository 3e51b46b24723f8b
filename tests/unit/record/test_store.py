"""The layout on disk: the log is the truth, the record is derived, and a store of the TypeScript GitTrix opens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.events import CREATED, NOW

from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, LogDamaged, MetadataVersionUnsupported, SessionNotFound
from pytest_gittrix.record.state.fold import SessionState, metadata_of
from pytest_gittrix.record.store.store import Problem, Store, default_home, default_store

BAD_IDS = ["", ".", "..", "../a", "a/b", "a b", "é", "a\n", "a\0", "x" * 129, ".hidden", "index.sqlite"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store whose directory does not exist yet."""
    return Store(tmp_path / "home" / "sessions", durability="fast")


def start(store: Store, id: str = "sess_a") -> SessionState:
    """A session in the store."""
    store.create(id)
    store.log(id).append("session.created", CREATED, ts=NOW)
    return store.load(id)


def foreign(store: Store, id: str = "sess_ts", **changes: object) -> dict[str, Any]:
    """A session as the TypeScript GitTrix leaves it: a record and nothing else."""
    record = metadata_of(start(store, "template")) | {"id": id, "workspaceKind": "worktree"} | changes
    for name in ("events.jsonl",):
        (store.directory("template") / name).unlink()
    store.directory("template").rmdir()
    directory = store.root / id
    directory.mkdir()
    (directory / "metadata.json").write_text(json.dumps(record, indent=2))
    return record


def test_a_store_makes_nothing_before_its_first_session(store: Store) -> None:
    assert store.ids() == []
    assert store.scan() == ([], [])
    with pytest.raises(SessionNotFound, match="'sess_a'"):
        store.load("sess_a")
    assert not store.root.exists()
    assert start(store).id == "sess_a"
    assert store.ids() == ["sess_a"]


def test_an_id_is_used_once(store: Store) -> None:
    start(store)
    with pytest.raises(InvalidInput, match="'sess_a' already"):
        store.create("sess_a")


@pytest.mark.parametrize("id", BAD_IDS)
def test_an_id_that_could_lead_elsewhere_is_refused(store: Store, id: str) -> None:
    for act in (store.create, store.load, store.directory, store.log, store.lease):
        with pytest.raises(InvalidInput, match="not a session id"):
            act(id)


def test_what_is_no_session_is_passed_over(store: Store) -> None:
    start(store, "b")
    start(store, "a")
    (store.root / "empty").mkdir()
    (store.root / "begun").mkdir()
    (store.root / "begun" / "events.jsonl").touch()
    (store.root / "index.sqlite").touch()
    (store.root / "file").touch()
    (store.root / "with space").mkdir()
    (store.root / "with space" / "metadata.json").write_text("{}")
    assert store.ids() == ["a", "b"]


def test_a_session_is_loaded_from_its_log_whatever_its_record_says(store: Store) -> None:
    state = start(store)
    record = store.directory("sess_a") / "metadata.json"
    for content in (b"", b"garbage", json.dumps({**metadata_of(state), "state": "expired"}).encode()):
        record.write_bytes(content)
        assert store.load("sess_a") == state
    record.unlink()
    assert store.load("sess_a") == state


def test_the_record_is_written_whole_and_leaves_nothing_beside_it(store: Store) -> None:
    state = start(store)
    for _ in range(2):
        store.write_metadata("sess_a", state)
        assert sorted(os.listdir(store.directory("sess_a"))) == ["events.jsonl", "metadata.json"]
    assert json.loads((store.directory("sess_a") / "metadata.json").read_bytes()) == metadata_of(state) | {"log": "events.jsonl"}


def test_a_record_can_hold_names_that_are_not_utf8(store: Store) -> None:
    start(store)
    store.log("sess_a").append("session.write", {"path_b64": "6Q==", "op": "write"}, ts=NOW)
    store.write_metadata("sess_a", store.load("sess_a"))
    assert json.loads((store.directory("sess_a") / "metadata.json").read_text("ascii"))["touchedFiles"] == ["\udce9"]


@pytest.mark.parametrize("left", [None, b"", b'{"seq":0,"ty'])
def test_a_record_without_the_log_that_it_is_derived_from_is_no_session(store: Store, left: bytes | None) -> None:
    store.write_metadata("sess_a", start(store))
    log = store.directory("sess_a") / "events.jsonl"
    log.unlink() if left is None else log.write_bytes(left)

    for read in (store.load, lambda id: store.import_legacy(id, ts=NOW)):
        with pytest.raises(LogDamaged, match="missing or empty"):
            read("sess_a")
    assert [problem.id for problem in store.scan()[1]] == ["sess_a"]


def test_a_record_goes_only_where_it_belongs(store: Store) -> None:
    state = start(store)
    start(store, "sess_b")
    with pytest.raises(InvalidInput, match="'sess_a' is not the record of 'sess_b'"):
        store.write_metadata("sess_b", state)


def test_a_record_that_cannot_be_written_leaves_the_old_one(store: Store) -> None:
    state = start(store)
    (store.directory("sess_a") / "metadata.json").mkdir()
    with pytest.raises(AdapterUnavailable, match=r"metadata\.json cannot be used"):
        store.write_metadata("sess_a", state)
    assert sorted(os.listdir(store.directory("sess_a"))) == ["events.jsonl", "metadata.json"]


def test_full_durability_syncs_the_record_and_the_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    really_sync = os.fsync

    def sync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        really_sync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    store = Store(tmp_path)
    store.create("sess_a")
    assert synced == [tmp_path.stat().st_ino]
    store.log("sess_a").append("session.created", CREATED, ts=NOW)
    store.write_metadata("sess_a", store.load("sess_a"))
    assert (store.directory("sess_a") / "metadata.json").stat().st_ino in synced


def test_a_directory_that_was_renamed_or_copied_is_refused(store: Store) -> None:
    start(store)
    os.rename(store.root / "sess_a", store.root / "sess_b")
    with pytest.raises(LogDamaged, match="belongs to the session 'sess_a'"):
        store.load("sess_b")
    foreign(store, "sess_ts")
    os.rename(store.root / "sess_ts", store.root / "sess_moved")
    with pytest.raises(InvalidInput, match="record of session 'sess_ts'"):
        store.load("sess_moved")


def test_a_scan_goes_on_past_what_it_cannot_read(store: Store) -> None:
    start(store, "a")
    start(store, "z")
    start(store, "damaged")
    with (store.directory("damaged") / "events.jsonl").open("ab") as file:
        file.write(b"garbage\nmore\n")
    start(store, "torn")
    whole = (store.directory("torn") / "events.jsonl").read_bytes()
    (store.directory("torn") / "events.jsonl").write_bytes(whole[:-9])
    foreign(store, "later", metadataVersion=2)
    states, problems = store.scan()
    assert [state.id for state in states] == ["a", "z"]
    assert [problem.id for problem in problems] == ["damaged", "later", "torn"]
    assert isinstance(problems[0], Problem)
    assert "line 2" in problems[0].message


def test_a_store_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file")
    with pytest.raises(AdapterUnavailable, match="file"):
        store.ids()
    with pytest.raises(AdapterUnavailable, match="file"):
        store.create("sess_a")


# A store of the TypeScript GitTrix ---------------------------------------------------------------------------------------------------


def test_a_session_with_only_a_record_loads(store: Store) -> None:
    record = foreign(store, vendor="kept")
    state = store.load("sess_ts")
    assert (state.legacy, state.seq, state.workspace_kind) == (True, -1, "worktree")
    assert metadata_of(state) == record
    assert store.scan() == ([state], [])
    assert os.listdir(store.directory("sess_ts")) == ["metadata.json"]


def test_its_workspace_is_where_that_system_keeps_it_unless_it_says_otherwise(store: Store) -> None:
    record = foreign(store)
    del record["ephemeralPath"]
    (store.directory("sess_ts") / "metadata.json").write_text(json.dumps(record))
    where = str(store.directory("sess_ts") / "workspace")
    assert store.load("sess_ts").workspace == where
    assert store.import_legacy("sess_ts", ts=NOW).workspace == where


def test_importing_gives_it_a_log_and_changes_nothing_else(store: Store) -> None:
    record = foreign(store, vendor={"x": [1]})
    before = store.load("sess_ts")
    state = store.import_legacy("sess_ts", ts=NOW + 5)
    assert not state.legacy
    assert metadata_of(state) == metadata_of(before) == record
    (event,) = store.log("sess_ts").read()
    assert (event.type, event.data) == ("session.imported", {"metadata": record})
    assert store.load("sess_ts") == state


def test_importing_twice_or_what_has_a_log_does_nothing(store: Store) -> None:
    state = start(store)
    assert store.import_legacy("sess_a", ts=NOW) == state
    foreign(store)
    store.import_legacy("sess_ts", ts=NOW)
    store.import_legacy("sess_ts", ts=NOW)
    assert len(store.log("sess_ts").read()) == 1


def test_an_import_killed_in_the_middle_leaves_the_session_as_it_was(store: Store) -> None:
    foreign(store)
    before = store.load("sess_ts")
    (store.directory("sess_ts") / "events.jsonl").write_bytes(b'{"v":1,"seq":0,')
    assert store.load("sess_ts") == before
    assert store.import_legacy("sess_ts", ts=NOW).seq == 0


def test_an_import_of_what_cannot_be_read_leaves_it_alone(store: Store) -> None:
    foreign(store, state="sleeping")
    with pytest.raises(MetadataVersionUnsupported, match="state"):
        store.import_legacy("sess_ts", ts=NOW)
    assert os.listdir(store.directory("sess_ts")) == ["metadata.json"]


# Where -----------------------------------------------------------------------------------------------------------------------------


def test_the_home_is_where_the_environment_says_or_in_the_users() -> None:
    assert default_home({"GITTRIX_HOME": "/somewhere"}) == Path("/somewhere")
    assert default_store({"GITTRIX_HOME": "/somewhere"}) == Path("/somewhere/sessions")
    assert default_home({}) == Path.home() / ".gittrix"
    assert default_home({"GITTRIX_HOME": ""}) == Path.home() / ".gittrix"


def test_a_relative_home_does_not_move_with_the_working_directory() -> None:
    assert default_home({"GITTRIX_HOME": "here"}) == Path.cwd() / "here"


def test_working_with_the_store_does_not_load_pydantic_or_sqlite() -> None:
    script = "import sys; import pytest_gittrix.record.store.store; print(sorted({'pydantic', 'sqlite3', 'pytest'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
