"""The checkpoint of a long log's fold: it saves the reading, and it never counts for more than the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from pytest_gittrix.errors import LogDamaged
from pytest_gittrix.record.eventlog.events import Event, encode
from pytest_gittrix.record.state.fold import SessionState, fold
from pytest_gittrix.record.store import fold_checkpoint
from pytest_gittrix.record.store.fold_checkpoint import FILE, WORTH
from pytest_gittrix.record.store.listing import is_temporary
from pytest_gittrix.record.store.store import Store
from pytest_gittrix.testing.faults.supervisor import KillAt, supervise_function, supported
from tests.unit.record.test_fold import CREATED, SAMPLES

ID = "sess_a"
CREATION = {**CREATED, "policy": {"ttl_idle_ns": 5, "ttl_absolute_ns": None, "until_promote": False, "manual": True}}
LINEAGE = {"parent": "p", "relation": "fork", "chain": "c", "root": "r", "at_seq": 3, "said": 2}
GIVEN = [{"path": "notes", "resource": "sha256:0"}, {"path_b64": "/w==", "resource": "sha256:1"}]
RICH = (
    ("session.created", {**CREATION, "lineage": LINEAGE, "seed_files": GIVEN}),
    *((name, SAMPLES[name]) for name in ("workspace.ready", "step.started", "tool_call", "handoff.intent", "promote.intent")),
    ("session.write", {"path_b64": "/w==", "op": "delete"}),
    ("session.write", {"path": "a", "op": "write"}),
    *((name, SAMPLES[name]) for name in ("session.commit", "turn.started", "archive.written", "promote.done")),
)


def events_of(*steps: tuple[str, dict[str, object]]) -> list[Event]:
    return [Event(seq, (seq + 1) * 1000, ID, type_, "agent", data) for seq, (type_, data) in enumerate(steps)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one session that has read twice as many files as are worth a checkpoint."""
    store = Store(tmp_path, durability="fast")
    store.create(ID)
    steps = [RICH[0], *RICH[1:6], *(("session.write", {"path": f"{number % 40}", "op": "write"}) for number in range(WORTH))]
    log(store).write_bytes(b"".join(encode(event) + b"\n" for event in events_of(*steps)))
    return store


def log(store: Store) -> Path:
    return store.directory(ID) / "events.jsonl"


def checkpoint(store: Store) -> Path:
    return store.directory(ID) / FILE


def without(store: Store) -> SessionState | str:
    """What the log alone says: a state, or the error's message."""
    try:
        return store.located(fold(store.log(ID).read()))
    except LogDamaged as problem:
        return str(problem)


def with_it(store: Store) -> SessionState | str:
    try:
        return store.load(ID)
    except LogDamaged as problem:
        return str(problem)


def rewrite(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Change a checkpoint and seal it again."""
    known = json.loads(path.read_bytes().partition(b"\n")[2])
    change(known)
    body = json.dumps(known).encode()
    path.write_bytes(sha256(body).hexdigest().encode() + b"\n" + body)


def append(store: Store, count: int) -> None:
    for _ in range(count):
        store.log(ID).append("session.write", {"path": "later", "op": "write"}, ts=10**15, actor="agent")


@pytest.mark.parametrize("count", range(1, len(RICH) + 1))
def test_a_state_is_read_back_as_it_was(count: int) -> None:
    state = fold(events_of(*RICH[:count]))
    assert fold_checkpoint.from_data(json.loads(json.dumps(fold_checkpoint.to_data(state)))) == state


def test_a_long_log_gets_a_checkpoint_and_a_short_one_none(store: Store) -> None:
    whole = log(store).read_bytes()
    log(store).write_bytes(b"".join(whole.splitlines(keepends=True)[: WORTH - 1]))
    assert with_it(store) == without(store)
    assert not checkpoint(store).exists()

    log(store).write_bytes(whole)
    assert with_it(store) == without(store)
    assert checkpoint(store).exists()


def test_a_state_is_folded_from_its_checkpoint_and_the_events_after_it(store: Store) -> None:
    store.load(ID)
    append(store, 3)
    assert with_it(store) == without(store)
    rewrite(checkpoint(store), lambda known: known["state"].update(task="from the checkpoint"))  # type: ignore[index, attr-defined]
    state = store.load(ID)
    assert (state.task, state.seq, "later" in state.api_touched) == ("from the checkpoint", WORTH + 8, True)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.999])
def test_damage_before_the_checkpoint_is_found_as_without_it(store: Store, part: float) -> None:
    store.load(ID)
    append(store, 3)
    raw = bytearray(log(store).read_bytes())
    at = int(part * checkpoint_end(store))
    raw[at] ^= 1
    log(store).write_bytes(raw)
    assert isinstance(without(store), str)
    assert with_it(store) == without(store)


def checkpoint_end(store: Store) -> int:
    return int(json.loads(checkpoint(store).read_bytes().partition(b"\n")[2])["offset"])


def test_damage_after_the_checkpoint_is_named_by_its_line_in_the_whole_log(store: Store) -> None:
    store.load(ID)
    append(store, 3)
    raw = bytearray(log(store).read_bytes())
    raw[checkpoint_end(store) + 40] ^= 1
    log(store).write_bytes(raw)
    assert f"in line {WORTH + 7}" in str(with_it(store))
    assert with_it(store) == without(store)


def test_a_log_that_is_another_one_now_counts_for_itself(store: Store) -> None:
    store.load(ID)
    raw = log(store).read_bytes()
    log(store).write_bytes(b"".join(raw.splitlines(keepends=True)[:7]))
    assert with_it(store) == without(store)
    log(store).write_bytes(b"".join(encode(event) + b"\n" for event in events_of(RICH[0], *[("session.accessed", {})] * 2000)))
    assert with_it(store) == without(store)
    log(store).write_bytes(raw + b'{"v":1,"seq":')
    assert with_it(store) == without(store)


def test_a_checkpoint_that_was_cut_short_or_changed_does_not_count(store: Store) -> None:
    right = store.load(ID)
    whole = checkpoint(store).read_bytes()
    for end in range(0, len(whole), 97):
        checkpoint(store).write_bytes(whole[:end] + b"\0" * (len(whole) - end) * (end % 2))
        assert with_it(store) == right
    assert checkpoint(store).read_bytes() == whole  # written again


@pytest.mark.parametrize(
    "change",
    [
        lambda known: known.update(version=0),
        lambda known: known.update(digest="0" * 64),
        lambda known: known.update(offset=known["offset"] - 1),
        lambda known: known["state"].pop("commits"),
        lambda known: known["state"].update(unknown=1),
        lambda known: known.update(state=None),
    ],
)
def test_a_checkpoint_of_another_version_or_log_does_not_count(store: Store, change: Callable[[dict[str, object]], object]) -> None:
    right = store.load(ID)
    rewrite(checkpoint(store), change)
    assert with_it(store) == right


def test_a_store_that_cannot_be_written_is_read_without_checkpoints(store: Store) -> None:
    (store.directory(ID) / FILE).mkdir()
    assert with_it(store) == without(store)


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
def test_whoever_is_killed_while_it_is_written_leaves_it_whole_or_not_there(store: Store) -> None:
    right, kills = without(store), 0
    while supervise_function(lambda: store.load(ID), fault=KillAt(kills + 1), within=store.root).killed:
        kills += 1
        assert with_it(store) == right
        checkpoint(store).unlink()
    assert kills >= 3
    assert with_it(store) == right
    assert {path.name for path in store.directory(ID).iterdir() if not is_temporary(path.name)} == {"events.jsonl", FILE}
