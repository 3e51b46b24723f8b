"""Which session a process belongs to: every place that can tell it, in their order, over real pipes, terminals and files."""

from __future__ import annotations

import array
import fcntl
import json
import os
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from itertools import combinations
from pathlib import Path

import pytest

from pytest_gittrix.errors import InvalidInput, PathNotFound, WriteRejected
from pytest_gittrix.gastown.runtime_id import STARTS, VARIABLES, Hook, RuntimeId, persist, resolve
from pytest_gittrix.testing.faults.crash import Crash
from pytest_gittrix.testing.faults.faults import SupervisedRun
from pytest_gittrix.testing.faults.supervisor import supported

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOBODY = RuntimeId("made-up", "generated")
HOOK = b'{"session_id":"hooked","transcript_path":"/t.jsonl","source":"startup"}'


def made_up() -> str:
    return "made-up"


@contextmanager
def piped(data: bytes, *, ended: bool = True) -> Iterator[int]:
    """The reading end of a pipe with something in it; its writer is gone, or silent from then on."""
    read, write = os.pipe()
    try:
        os.write(write, data)
        if ended:
            os.close(write)
        yield read
    finally:
        os.close(read)
        if not ended:
            os.close(write)


def resolved(data: bytes, **environ: str) -> RuntimeId:
    """What is found when this stands on standard input, and nothing else is told but by the environment."""
    with piped(data) as stdin:
        return resolve(environ, stdin=stdin, generate=made_up)


def write_file(directory: Path, data: bytes) -> Path:
    """A persisted id, as somebody else may have left it."""
    path = directory / ".runtime" / "session_id"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


# The order ------------------------------------------------------------------------------------------------------------------------

PLACES = [*VARIABLES, "stdin", "file"]


def test_the_variables_are_asked_in_their_order() -> None:
    assert VARIABLES == ("GITTRIX_SESSION_ID", "GT_SESSION_UUID", "GT_SESSION_ID", "CLAUDE_SESSION_ID")


@pytest.mark.parametrize("telling", [list(some) for size in range(len(PLACES) + 1) for some in combinations(PLACES, size)], ids="+".join)
def test_the_first_place_that_tells_an_id_counts(tmp_path: Path, telling: list[str]) -> None:
    environ = {name: f"of-{name}" if name in telling else "" for name in VARIABLES}
    if "file" in telling:
        persist(tmp_path, "of-file", NOW)
    with piped(b'{"session_id":"of-stdin"}' if "stdin" in telling else b"") as stdin:
        found = resolve(environ, stdin=stdin, directory=tmp_path, generate=made_up)

    source = telling[0] if telling else "generated"
    assert found == RuntimeId(f"of-{source}" if telling else "made-up", source, Hook("of-stdin", None, None) if source == "stdin" else None)


def test_a_process_that_nobody_tells_anything_has_an_id_of_its_own() -> None:
    one, other = resolve({}), resolve({})

    assert one.source == "generated"
    assert len(one.id) == 36
    assert one.id != other.id


@pytest.mark.parametrize("empty", ["", " ", "\n", "\t "])
def test_an_empty_variable_tells_nothing(empty: str) -> None:
    assert resolve(dict.fromkeys(VARIABLES, empty), generate=made_up) == NOBODY


def test_a_variable_may_have_white_space_around_its_id() -> None:
    assert resolve({"GT_SESSION_ID": " abc \n"}).id == "abc"


def test_a_told_process_leaves_standard_input_to_others() -> None:
    with piped(HOOK) as stdin:
        resolve({"GT_SESSION_ID": "told"}, stdin=stdin)
        assert os.read(stdin, 1000) == HOOK


# What is no id --------------------------------------------------------------------------------------------------------------------

BAD = ["../up", "a/b", "a b", "é", ".", "x" * 129]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_tells_no_id_is_named(name: str, bad: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} gives"):
        resolve({name: bad, "CLAUDE_SESSION_ID": bad})


@pytest.mark.parametrize("bad", BAD)
def test_a_hook_that_tells_no_id_is_named(bad: str) -> None:
    with pytest.raises(InvalidInput, match="standard input gives"):
        resolved(json.dumps({"session_id": bad}).encode())


def test_a_maker_of_what_is_no_id_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"generate\(\) gives ''"):
        resolve({}, generate=str)


# Standard input -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", STARTS)
def test_a_hook_tells_what_began(source: str) -> None:
    found = resolved(json.dumps({"session_id": "s", "transcript_path": "/t", "source": source, "cwd": "/w", "more": [1]}).encode())

    assert found == RuntimeId("s", "stdin", Hook("s", "/t", source))


@pytest.mark.parametrize(
    ("more", "hook"),
    [
        ({}, Hook("s", None, None)),
        ({"source": "teatime"}, Hook("s", None, None)),
        ({"source": ["startup"]}, Hook("s", None, None)),
        ({"source": None, "transcript_path": ""}, Hook("s", None, None)),
        ({"transcript_path": 1, "source": "clear"}, Hook("s", None, "clear")),
    ],
)
def test_of_a_hook_only_what_is_understood_counts(more: dict[str, object], hook: Hook) -> None:
    assert resolved(json.dumps({"session_id": "s", **more}).encode()).hook == hook


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"   \n",
        b"hello",
        b"\xff\xfe",
        b"null",
        b'"s"',
        b"12",
        b'[{"session_id":"s"}]',
        b'x{"session_id":"s"}',
        b"{}",
        b"{session_id:1}",
        b'{"session_id":"s"',
        b'{"session_id":""}',
        b'{"session_id":"  "}',
        b'{"session_id":null}',
        b'{"session_id":7}',
        b'{"session_id":{"session_id":"s"}}',
        b'{"SESSION_ID":"s"}',
        b'{"a":' * 5_000 + b"}" * 5_000,
    ],
    ids=lambda said: repr(said[:24]),
)
def test_anything_else_on_standard_input_is_passed_over(tmp_path: Path, said: bytes) -> None:
    persist(tmp_path, "of-file", NOW)
    assert resolved(said) == NOBODY
    with piped(said) as stdin:
        assert resolve({}, stdin=stdin, directory=tmp_path) == RuntimeId("of-file", "file")


@pytest.mark.parametrize("around", [(b"", b""), (b"\n  ", b"\n"), (b"", b"\n{"), (b"", b'{"session_id":"other"}'), (b"", b" garbage \xff")])
def test_the_first_object_counts_and_nothing_after_it(around: tuple[bytes, bytes]) -> None:
    assert resolved(HOOK.join(around)).id == "hooked"


def test_an_object_may_be_on_several_lines_and_hold_names_that_are_not_utf8() -> None:
    assert resolved(b'{\n "transcript_path": "/\xe9",\n "session_id": "s"\n}\n').hook == Hook("s", "/\udce9", None)


def test_a_runtime_that_leaves_the_pipe_open_is_not_waited_for() -> None:
    with piped(HOOK, ended=False) as stdin:
        assert resolve({}, stdin=stdin, wait=3600).id == "hooked"


@pytest.mark.parametrize("wait", [0, -1])
def test_what_was_said_already_needs_no_waiting(wait: float) -> None:
    with piped(HOOK, ended=False) as stdin:
        assert resolve({}, stdin=stdin, wait=wait).id == "hooked"


@pytest.mark.parametrize("said", [b"", b'{"session_id":"ho', b"{}"])
@pytest.mark.parametrize("wait", [0.02, 0, -1])
def test_a_runtime_that_says_nothing_is_not_waited_for_long(said: bytes, wait: float) -> None:
    with piped(said, ended=False) as stdin:
        assert resolve({}, stdin=stdin, wait=wait, generate=made_up) == NOBODY


def test_what_is_no_object_is_known_at_once() -> None:
    with piped(b"hello", ended=False) as stdin:
        assert resolve({}, stdin=stdin, wait=3600, generate=made_up) == NOBODY


def test_an_object_may_come_in_pieces() -> None:
    read, write = os.pipe()
    over = threading.Event()

    def speak() -> None:
        for place in range(0, len(HOOK), 10):
            os.write(write, HOOK[place : place + 10])
            while unread(read) and not over.wait(0.0005):
                pass  # until the piece was taken

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        assert resolve({}, stdin=read, wait=60).id == "hooked"
    finally:
        over.set()
        speaker.join()
        os.close(read)
        os.close(write)


def unread(pipe: int) -> int:
    """How many bytes wait in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_an_object_without_end_does_not_fill_memory() -> None:
    read, write = os.pipe()

    def speak() -> None:
        try:
            while True:
                os.write(write, b'{"a":' + b"." * 65_536)
        except BrokenPipeError:
            pass

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        assert resolve({}, stdin=read, wait=3600, generate=made_up) == NOBODY
    finally:
        os.close(read)
        speaker.join()
        os.close(write)


def test_a_large_object_is_read_whole() -> None:
    program = 'import sys; sys.stdout.write(\'{"pad":"\' + \'}\' * 500_000 + \'","session_id":"large"}\')'
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as runtime:
        assert resolve({}, stdin=runtime.stdout, wait=60).id == "large"


def test_a_person_at_a_terminal_is_not_asked() -> None:
    master, terminal = os.openpty()
    try:
        os.write(master, HOOK + b"\n")
        assert resolve({}, stdin=terminal, wait=3600, generate=made_up) == NOBODY
    finally:
        os.close(master)
        os.close(terminal)


def test_standard_input_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "hook.json").write_bytes(HOOK)
    for mode in ("r", "rb"):
        with open(tmp_path / "hook.json", mode) as stdin:
            assert resolve({}, stdin=stdin).id == "hooked"


def test_standard_input_may_be_nothing_or_gone(tmp_path: Path) -> None:
    with open(os.devnull, "rb") as stdin:
        assert resolve({}, stdin=stdin, generate=made_up) == NOBODY
    assert resolve({}, stdin=stdin, generate=made_up) == NOBODY
    assert resolve({}, stdin=2**20, generate=made_up) == NOBODY
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        assert resolve({}, stdin=directory, generate=made_up) == NOBODY
    finally:
        os.close(directory)


# The file -------------------------------------------------------------------------------------------------------------------------


def test_what_was_persisted_is_found_and_has_the_documented_lines(tmp_path: Path) -> None:
    persist(tmp_path, "sess_a", datetime(2030, 1, 1, 2, 0, 59, 999_999, tzinfo=timezone(timedelta(hours=2))))

    assert (tmp_path / ".runtime" / "session_id").read_bytes() == b"sess_a\n2030-01-01T00:00:59Z\n"
    assert resolve({}, directory=tmp_path) == RuntimeId("sess_a", "file")


def test_what_is_persisted_anew_replaces_the_old_and_leaves_nothing_else(tmp_path: Path) -> None:
    persist(tmp_path, "sess_a", NOW)
    persist(tmp_path, "b", NOW)

    assert resolve({}, directory=tmp_path).id == "b"
    assert os.listdir(tmp_path / ".runtime") == ["session_id"]


@pytest.mark.parametrize(
    "data", [b"abc\n2026-01-17T01:00:00Z", b"abc\r\n2026-01-17T01:00:00+02:00\r\n", b" abc \n2026-01-17T01:00:00Z\nmore\n"]
)
def test_a_file_of_another_writer_is_read(tmp_path: Path, data: bytes) -> None:
    write_file(tmp_path, data)

    assert resolve({}, directory=tmp_path).id == "abc"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"abc",
        b"abc\n",
        b"abc\nyesterday\n",
        b"abc\n2026-01-17T01:00:00\n",
        b"\n2026-01-17T01:00:00Z\n",
        b"../up\n2026-01-17T01:00:00Z\n",
        b"a b\n2026-01-17T01:00:00Z\n",
        b"\xff\n2026-01-17T01:00:00Z\n",
        b"a\0\n2026-01-17T01:00:00Z\n",
        b"x" * 129 + b"\n2026-01-17T01:00:00Z\n",
        b"abc\n2026-01-17T01:00:00Z\n" + b"x" * 10_000,
    ],
)
def test_a_damaged_file_tells_nothing(tmp_path: Path, data: bytes) -> None:
    write_file(tmp_path, data)

    assert resolve({}, directory=tmp_path, generate=made_up) == NOBODY


def test_a_file_cut_short_anywhere_tells_its_id_or_nothing(tmp_path: Path) -> None:
    persist(tmp_path, "sess_abc", NOW)
    whole = (tmp_path / ".runtime" / "session_id").read_bytes()
    found = []
    for size in range(len(whole) + 1):
        write_file(tmp_path, whole[:size])
        found.append(resolve({}, directory=tmp_path, generate=made_up).id)

    assert set(found) == {"made-up", "sess_abc"}


def test_a_directory_without_a_file_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".runtime").touch()
    (tmp_path / "third" / ".runtime" / "session_id").mkdir(parents=True)
    (tmp_path / "fourth" / ".runtime").mkdir(parents=True)
    os.mkfifo(tmp_path / "fourth" / ".runtime" / "session_id")

    for directory in (tmp_path, tmp_path / "none", *(tmp_path / name for name in ("other", "third", "fourth"))):
        assert resolve({}, directory=directory, generate=made_up) == NOBODY


@pytest.mark.parametrize("link", [".runtime", ".runtime/session_id"])
def test_a_link_tells_nothing_and_is_not_written_through(tmp_path: Path, link: str) -> None:
    desk, elsewhere = tmp_path / "desk", tmp_path / "elsewhere"
    desk.mkdir()
    elsewhere.mkdir()
    target = write_file(elsewhere, b"abc\n2026-01-17T01:00:00Z\n")
    (desk / link).parent.mkdir(exist_ok=True)
    (desk / link).symlink_to(target if link.endswith("_id") else target.parent)

    assert resolve({}, directory=desk, generate=made_up) == NOBODY
    with pytest.raises(WriteRejected, match=rf"{link} is a symbolic link"):
        persist(desk, "sess_a", NOW)
    assert (desk / link).is_symlink()
    assert target.read_bytes() == b"abc\n2026-01-17T01:00:00Z\n"


def test_a_link_to_nowhere_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / ".runtime").mkdir()
    (tmp_path / ".runtime" / "session_id").symlink_to(tmp_path / "made")

    with pytest.raises(WriteRejected, match="symbolic link"):
        persist(tmp_path, "sess_a", NOW)
    assert not (tmp_path / "made").exists()


def test_the_work_directory_may_be_known_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "desk").symlink_to(tmp_path / "real")
    persist(tmp_path / "desk", "sess_a", NOW)

    assert resolve({}, directory=tmp_path / "desk").id == resolve({}, directory=tmp_path / "real").id == "sess_a"


def test_what_cannot_be_persisted_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    persist(tmp_path, "sess_a", NOW)
    for bad in BAD:
        with pytest.raises(InvalidInput, match="not a session id"):
            persist(tmp_path, bad, NOW)
    with pytest.raises(InvalidInput, match="no time zone"):
        persist(tmp_path, "sess_b", NOW.replace(tzinfo=None))
    with pytest.raises(PathNotFound):
        persist(tmp_path / "none", "sess_b", NOW)
    (tmp_path / "busy" / ".runtime" / "session_id").mkdir(parents=True)
    with pytest.raises(WriteRejected):
        persist(tmp_path / "busy", "sess_b", NOW)

    assert resolve({}, directory=tmp_path).id == "sess_a"
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(supported() is not None, reason=str(supported()))
def test_a_writer_that_is_killed_or_has_no_space_leaves_the_old_id_or_the_new(tmp_path: Path) -> None:
    def reset() -> None:
        persist(tmp_path, "old", NOW)

    def check(_run: SupervisedRun) -> None:
        assert resolve({}, directory=tmp_path).id in ("old", "new")

    Crash().sweep(lambda: persist(tmp_path, "new", NOW), reset, check, kinds=("kill", "torn", "ENOSPC"), within=tmp_path).verify()


def test_a_reader_beside_writers_sees_a_whole_id(tmp_path: Path) -> None:
    persist(tmp_path, "a" * 100, NOW)
    program = (
        "import sys; from datetime import UTC, datetime; from pytest_gittrix.gastown.runtime_id import persist\n"
        "for id in 'ab' * 100: persist(sys.argv[1], id * 100, datetime(2030, 1, 1, tzinfo=UTC))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(2)]
    found = set()
    while any(writer.poll() is None for writer in writers):
        found.add(resolve({}, directory=tmp_path, generate=made_up).id)

    assert [writer.returncode for writer in writers] == [0, 0]
    assert found <= {"a" * 100, "b" * 100}
    assert found
