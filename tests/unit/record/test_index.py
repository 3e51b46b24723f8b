"""The index: right answers without opening logs, whatever happens to its file."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.record.state.fold import Policy, deadline_ns, metadata_of
from pytest_gittrix.record.store import index as index_module
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.index_tables import on_disk
from pytest_gittrix.record.store.store import Store

NOW = 1_893_456_000_000_000_000
HOUR = 3_600_000_000_000


def start(store: Store, id: str, *, ttl: int | None = HOUR, ts: int = NOW, durable: str = "/repo") -> None:
    """A session whose idle time is over ``ttl`` after ``ts``."""
    store.create(id)
    data: dict[str, Any] = {
        "task": "fix", "durable_ref": "local:///repo#main", "durable_path": durable, "durable_branch": "main", "baseline": "b" * 40,
        "ephemeral_ref": "local:///w", "workspace": "/w", "workspace_kind": "clone", "git_backed": True,
        "policy": Policy(ttl_idle_ns=ttl).to_data(), "format": "sha1",
    }  # fmt: skip
    append(store, id, "session.created", data, ts=ts)
    append(store, id, "workspace.ready", {"path": "/w"}, ts=ts)


def append(store: Store, id: str, type: str, data: dict[str, Any] | None = None, *, ts: int = NOW) -> None:
    """One more event of a session."""
    store.log(id).append(type, data or {}, ts=ts)


def ids(index: Index, **terms: Any) -> list[str]:
    """The ids of the rows, in their order."""
    return [row.id for row in index.rows(**terms)]


def test_a_row_says_what_the_fold_says(store: Store, index: Index) -> None:
    start(store, "a")
    index.sync()
    state, (row,) = store.load("a"), index.rows()
    assert row.metadata == metadata_of(state)
    assert (row.id, row.state, row.seq, row.workspace_present, row.legacy) == ("a", "active", 1, True, False)
    assert (row.created_ns, row.updated_ns, row.last_access_ns) == (NOW, NOW, NOW)
    assert row.deadline_ns == deadline_ns(state) == NOW + HOUR
    assert row.log_size == (store.directory("a") / "events.jsonl").stat().st_size


def test_rows_are_read_a_page_at_a_time(store: Store, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_PAGE", 2)
    for number, id in enumerate("edcba"):
        start(store, id, ts=NOW + number // 2 * 1000)
    append(store, "c", "session.ended", {"state": "discarded"})
    index.sync()
    assert [*index.each()] == index.rows()
    assert [row.id for row in index.each(state="active")] == ids(index, state="active")
    rows = index.each()
    first = next(rows)
    shutil.rmtree(store.directory("a"))
    index.sync()
    assert [first.id, *(row.id for row in rows)] == [first.id, *ids(index)[1:]]


def test_a_sync_sees_what_changed_what_came_and_what_went(store: Store, index: Index) -> None:
    start(store, "a")
    start(store, "b")
    index.sync()
    append(store, "a", "session.ended", {"state": "discarded"})
    shutil.rmtree(store.directory("b"))
    start(store, "c")
    index.sync()
    assert [(row.id, row.state) for row in index.rows()] == [("a", "discarded"), ("c", "active")]


def test_a_sync_opens_only_the_logs_that_changed(store: Store, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    start(store, "a")
    start(store, "b")
    index.sync()
    opened: list[str] = []
    really_load = store.load

    def load(id: str) -> Any:
        opened.append(id)
        return really_load(id)

    monkeypatch.setattr(store, "load", load)
    index.sync()
    assert opened == []
    append(store, "b", "session.accessed")
    index.sync()
    assert opened == ["b"]


@pytest.mark.parametrize(("ns", "due"), [(-1, []), (0, []), (1, ["a"]), (1000, ["a"])])
def test_a_session_is_due_strictly_after_its_time(store: Store, index: Index, ns: int, due: list[str]) -> None:
    start(store, "a")
    index.sync()
    assert index.due(NOW + HOUR + ns) == due


def test_a_limit_between_two_microseconds_does_not_come_early(store: Store, index: Index) -> None:
    start(store, "a", ttl=HOUR + 500)
    index.sync()
    assert index.due(NOW + HOUR + 400) == []
    assert index.due(NOW + HOUR + 1001) == ["a"]


def test_what_is_longest_overdue_comes_first(store: Store, index: Index) -> None:
    for id, ttl in {"d": 1, "c": 2, "b": None, "a": 2}.items():
        start(store, id, ttl=None if ttl is None else ttl * HOUR)
    index.sync()
    assert index.due(NOW + 9 * HOUR) == ["d", "a", "c"]


def test_only_active_sessions_and_promoted_ones_with_a_workspace_are_due(store: Store, index: Index) -> None:
    done = {"commit": "c", "ref": "refs/heads/main", "branch": "main", "strategy": "commit"}
    for id in ("active", "kept", "removed", "discarded"):
        start(store, id)
    append(store, "kept", "promote.done", done)
    append(store, "removed", "promote.done", done)
    append(store, "removed", "workspace.removed")
    append(store, "discarded", "session.ended", {"state": "discarded"})
    index.sync()
    assert index.due(NOW + 2 * HOUR) == ["active", "kept"]


def test_rows_can_be_chosen_by_state_repository_and_workspace(store: Store, index: Index) -> None:
    start(store, "b", durable="/repo")
    start(store, "a", durable="/other", ts=NOW + 1000)
    append(store, "a", "session.ended", {"state": "expired"})
    append(store, "a", "workspace.removed")
    index.sync()
    assert ids(index) == ["b", "a"]  # oldest first
    assert ids(index, state="active") == ["b"]
    assert ids(index, durable_path="/other") == ["a"]
    assert ids(index, workspace_present=False) == ["a"]
    assert ids(index, state="expired", durable_path="/repo") == []


def test_what_was_begun_and_not_finished_is_found(store: Store, index: Index) -> None:
    for id in ("calm", "promoting", "ended", "removed"):
        start(store, id)
    intent = {"commit": "c", "parent": "b", "ref": "r", "tree": "t", "paths_digest": "d", "count": 1, "owner": {}}
    append(store, "promoting", "promote.intent", intent)
    append(store, "ended", "session.ended", {"state": "expired"})
    append(store, "removed", "session.ended", {"state": "expired"})
    append(store, "removed", "workspace.removed")
    store.create("starting")
    store.log("starting").append("session.created", store.log("calm").read()[0].data, ts=NOW)
    index.sync()
    assert index.unsettled() == ["ended", "promoting", "starting"]


def test_a_path_that_is_not_utf8_can_be_asked_for(store: Store, index: Index) -> None:
    record = {"durable_path_b64": "L+k="}
    start(store, "a")
    path = store.directory("a") / "events.jsonl"
    event = store.log("a").read()[0]
    path.unlink()
    data = {key: value for key, value in event.data.items() if key != "durable_path"} | record
    append(store, "a", "session.created", data)
    index.sync()
    assert ids(index, durable_path="/\udce9") == ["a"]


def test_times_beyond_sqlites_integers_do_not_break_it(store: Store, index: Index) -> None:
    far = 253_402_300_799_999_999_000  # the last microsecond of the year 9999
    start(store, "late", ts=far - HOUR, ttl=HOUR)
    start(store, "never", ttl=10**30)
    index.sync()
    assert index.due(far) == []
    assert index.due(far + 1) == ["late"]
    assert [row.created_ns for row in index.rows()] == [NOW, far - HOUR]


def test_one_bad_record_does_not_hide_the_others_and_is_reported(store: Store, index: Index) -> None:
    for id in ("a", "bad", "c"):
        start(store, id)
    path = store.directory("bad") / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"garbage\n" + whole)
    index.sync()
    assert ids(index) == index.due(NOW + 2 * HOUR) == ["a", "c"]
    (problem,) = index.problems()
    assert problem.id == "bad"
    assert "line 1" in problem.message
    path.write_bytes(whole)
    index.sync()
    assert ids(index) == ["a", "bad", "c"]
    assert index.problems() == []


def test_what_could_not_be_read_is_tried_again(store: Store, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    start(store, "a")
    really_load = store.load

    def load(id: str) -> Any:
        raise AdapterUnavailable("no permission")

    monkeypatch.setattr(store, "load", load)
    index.sync()
    assert ids(index) == []
    monkeypatch.setattr(store, "load", really_load)
    index.sync()
    assert ids(index) == ["a"]


def test_a_session_of_a_typescript_store_is_indexed_by_its_record(store: Store, index: Index) -> None:
    start(store, "a")
    record = store.directory("a") / "metadata.json"
    record.write_text(json.dumps(metadata_of(store.load("a"))))
    (store.directory("a") / "events.jsonl").unlink()
    index.sync()
    (row,) = index.rows()
    assert (row.legacy, row.seq, row.state) == (True, -1, "active")
    record.write_text(record.read_text().replace('"active"', '"expired"'))
    index.sync()
    assert ids(index, state="expired") == ["a"]
    (store.directory("a") / "events.jsonl").write_bytes(b'{"v":1,"se')  # an import that was killed
    index.sync()
    record.write_text(record.read_text().replace('"expired"', '"discarded"'))
    index.sync()
    assert ids(index, state="discarded") == ["a"]


# The file --------------------------------------------------------------------------------------------------------------------------


def test_a_small_store_gets_no_file_and_a_large_one_does(store: Store) -> None:
    start(store, "a")
    small = Index(store, persist_from=2)
    small.sync()
    assert ids(small) == ["a"]
    assert not small.path.exists()
    start(store, "b")
    large = Index(store, persist_from=2)
    large.sync()
    assert ids(large) == ["a", "b"]
    assert large.path.exists()


def test_an_empty_store_has_nothing_and_gets_nothing(store: Store, index: Index) -> None:
    index.sync()
    assert (index.rows(), index.due(NOW), index.problems()) == ([], [], [])
    assert not store.root.exists()


def test_only_its_owner_can_read_the_file_and_what_sqlite_makes_beside_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with closing(on_disk(tmp_path / "index.sqlite")):
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("index.sqlite", "index.sqlite-wal", "index.sqlite-shm"), 0o600)


def test_a_question_before_the_first_sync_syncs(store: Store) -> None:
    start(store, "a")
    assert ids(Index(store)) == ["a"]


def test_a_file_of_another_process_is_taken_over_as_it_is(store: Store, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    start(store, "a")
    index.sync()
    index.close()
    second = Index(store)
    monkeypatch.setattr(store, "load", lambda id: pytest.fail(f"{id} was read again"))
    second.sync()
    assert ids(second) == ["a"]


def test_two_indexes_on_one_file_see_each_others_work(store: Store, index: Index) -> None:
    second = Index(store)
    start(store, "a")
    index.sync()
    second.sync()
    start(store, "b")
    second.sync()
    append(store, "a", "session.ended", {"state": "expired"})
    index.sync()
    second.sync()
    expected = [("a", "expired"), ("b", "active")]
    assert [(row.id, row.state) for row in index.rows()] == expected == [(row.id, row.state) for row in second.rows()]


def test_a_row_that_a_slower_index_wrote_back_is_noticed(store: Store, index: Index) -> None:
    start(store, "a")
    index.sync()
    with sqlite3.connect(index.path) as other:
        other.execute("UPDATE session SET size = 1, state = 'expired'")
    other.close()
    index.sync()
    assert ids(index, state="active") == ["a"]


def spoil(path: Path, how: str) -> None:
    """Do to an index what a crash, a person or another version could."""
    if how == "deleted":
        path.unlink()
    elif how == "garbage":
        path.write_bytes(b"garbage" * 1000)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        raw = bytearray(path.read_bytes())
        raw[100:4000] = b"\xff" * 3900
        path.write_bytes(raw)
    elif how == "a directory":
        path.unlink()
        path.mkdir()
    else:
        connection = sqlite3.connect(path)
        connection.executescript(
            {
                "another version": "UPDATE session SET deadline_us = NULL; PRAGMA user_version = 99",
                "no table": "DROP TABLE session",
            }[how]
        )
        connection.close()


@pytest.mark.parametrize("how", ["deleted", "garbage", "empty", "flipped", "another version", "no table", "a directory"])
def test_a_spoilt_file_is_built_anew_without_a_word(store: Store, index: Index, how: str) -> None:
    start(store, "a")
    start(store, "b")
    index.sync()
    index.close()
    spoil(index.path, how)
    again = Index(store, persist_from=0)
    again.sync()
    assert ids(again) == again.due(NOW + 2 * HOUR) == ["a", "b"]


def test_a_file_spoilt_while_in_use_is_built_anew(store: Store, index: Index) -> None:
    start(store, "a")
    index.sync()
    spoil(index.path, "no table")
    assert ids(index) == ["a"]
    start(store, "b")
    spoil(index.path, "no table")
    index.sync()
    assert ids(index) == ["a", "b"]


def test_a_store_that_cannot_be_written_is_indexed_in_memory(store: Store, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    start(store, "a")

    def refuse(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(index_module, "on_disk", refuse)
    index.sync()
    start(store, "b")
    index.sync()
    assert ids(index) == ["a", "b"]
    assert not index.path.exists()


def test_a_rebuilt_index_says_the_same(store: Store, index: Index) -> None:
    for id in "abc":
        start(store, id)
    index.sync()
    before = index.rows()
    index.rebuild()
    assert index.rows() == before


def test_a_store_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AdapterUnavailable, match="file"):
        Index(Store(tmp_path / "file")).sync()


def test_threads_may_share_an_index(store: Store, index: Index) -> None:
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(10):
                start(store, f"{name}{number}")
                index.sync()
                assert f"{name}{number}" in ids(index)
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(index.due(NOW + 2 * HOUR)) == 30


SYNCER = """
import sys
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store

store = Store(sys.argv[1], durability="fast")
sys.stdin.read(1)
index = Index(store, persist_from=0)
for round in range(20):
    index.sync()
    store.log(sys.argv[2]).append("session.accessed", {}, ts=round)
index.sync()
print([row.id for row in index.rows()])
"""


def test_processes_may_meet_over_one_file(store: Store, index: Index) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        start(store, name)
    command = [sys.executable, "-c", SYNCER, str(store.root)]
    children = [subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in names]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("g")
        child.stdin.flush()
    for child in children:
        assert child.communicate()[0] == f"{names}\n"
    index.sync()
    assert [row.seq for row in index.rows()] == [21] * 4


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to see what is open")
def test_a_forked_child_opens_the_file_for_itself(store: Store, index: Index) -> None:
    script = """
import os, sys
from pytest_gittrix.record.store.index import Index
from pytest_gittrix.record.store.store import Store

index = Index(Store(sys.argv[1]), persist_from=0)
def opened():
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(link.endswith("index.sqlite") for link in links)

index.sync()
before = opened()
if not os.fork():
    index.sync()
    print([row.id for row in index.rows()], opened() > before, flush=True)
    index.close()
    os._exit(0)
os.wait()
index.sync()
print([row.id for row in index.rows()])
"""
    start(store, "a")
    done = subprocess.run([sys.executable, "-c", script, str(store.root)], capture_output=True, text=True, check=True)
    assert done.stdout == "['a'] True\n['a']\n"
