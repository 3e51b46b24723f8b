"""Whatever becomes of the file of an index, its questions are answered, and an index that is made anew answers them right."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from support.engine import open_site

from pytest_gittrix.record.store.index import Index, IndexRow, Query
from pytest_gittrix.record.store.store import Store

PAGE = 4096
FAR = 4 * 10**18


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Sessions in several states, and an index of them in a file."""
    root = tmp_path_factory.mktemp("damage")
    with open_site(root) as site:
        for number in range(9):
            session = site.start(task=f"task {number}", agent=f"agent {number % 3}", rig="rig", work_unit=f"unit {number}")
            session.write("app.py", f"{number}\n")
            if number % 3 == 0:
                session.promote()
            elif number % 3 == 1:
                session.discard()
    store = Store(root / "sessions")
    index = Index(store, persist_from=1)
    index.sync()
    index._opened().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index.close()
    return store


def answers(index: Index) -> tuple[Any, ...]:
    """What an index says to every question."""
    index.sync()
    rows = index.rows()
    assert all(isinstance(row, IndexRow) and isinstance(row.metadata, dict) for row in rows)
    return (
        rows,
        [index.row(row.id) for row in rows],
        [*index.each()],
        [*index.each(promoted=True)],
        index.due(FAR),
        index.ahead(0),
        index.unsettled(),
        index.ids_from("sess", 99),
        index.query(Query(agent="agent 1")),
        index.query(Query(rig="rig", since_ns=0, limit=2)),
        index.lives(),
        index.problems(),
    )


PLACES = st.floats(0, 1, exclude_max=True)
DAMAGES = st.one_of(
    st.tuples(st.just("flip"), PLACES, st.integers(0, 7)),
    st.tuples(st.just("byte"), PLACES, st.integers(0, 255)),
    st.tuples(st.just("zero a page"), PLACES, st.just(0)),
    st.tuples(st.just("noise"), PLACES, st.integers(0, 2**31)),
    st.tuples(st.just("truncate"), PLACES, st.just(0)),
    st.tuples(st.just("move a page"), PLACES, st.integers(0, 20)),
)


def damaged(whole: bytes, how: str, place: float, value: int) -> bytes:
    """A file after one damage."""
    data, at = bytearray(whole), int(place * len(whole))
    page = at // PAGE * PAGE
    if not data:
        return whole
    if how == "flip":
        data[at] ^= 1 << value
    elif how == "byte":
        data[at] = value
    elif how == "zero a page":
        data[page : page + PAGE] = bytes(PAGE)
    elif how == "noise":
        data[at : at + 64] = (value.to_bytes(4, "big") * 16)[: len(data) - at]
    elif how == "truncate":
        del data[at:]
    else:
        other = value * PAGE % len(data)
        data[page : page + PAGE] = data[other : other + PAGE]
    return bytes(data)


@given(damages=st.lists(DAMAGES, min_size=1, max_size=4))
@example(damages=[("byte", 0.03, 0xF8)])
@example(damages=[("zero a page", 0.0, 0)])
@example(damages=[("truncate", 0.5, 0)])
def test_every_question_has_an_answer_and_a_rebuilt_index_the_right_one(store: Store, damages: list[tuple[str, float, int]]) -> None:
    index = Index(store, persist_from=1)
    whole = index.path.read_bytes()
    data = whole
    for one in damages:
        data = damaged(data, *one)
    try:
        put(index.path, data)
        said = answers(index)
        index.rebuild()
        right = answers(index)
        event("right" if said == right else "wrong, which nothing in the file tells")
        assert [row.state for row in right[0]].count("promoted") == 3
        assert len(right[0]) == len(right[1]) == len(right[2]) == 9
    finally:
        index.close()
        put(index.path, whole)


def put(path: Path, data: bytes) -> None:
    """Write a file of SQLite's in place of another one."""
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")
    path.write_bytes(data)


@pytest.mark.parametrize("at", range(37, 100, 9))
def test_a_byte_that_is_no_utf8_in_the_schema_is_a_damage_like_any_other(store: Store, at: int) -> None:
    index = Index(store, persist_from=1)
    whole = index.path.read_bytes()
    place = whole.index(b"CREATE TABLE session")
    try:
        put(index.path, whole[: place + at] + b"\xf8" + whole[place + at + 1 :])
        assert len(answers(index)[0]) == 9
    finally:
        index.close()
        put(index.path, whole)
