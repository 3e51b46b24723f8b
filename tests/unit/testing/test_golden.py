"""A history as text: the same in another place and at another time, another if anything else differs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from support.engine import Site, open_site

from pytest_gittrix.engine.operations.ids import random_id
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.testing.scenarios.golden_log import golden
from pytest_gittrix.testing.scenarios.log_kit import LogKit


@pytest.fixture
def log(tmp_path: Path) -> LogKit:
    """One without events."""
    return LogKit(tmp_path)


def work(site: Site) -> UserSession:
    """A handoff with something done before and after, with values that differ each time."""
    first = site.start(agent="toast")
    call = str(uuid4())
    first.write("app.py", f"{uuid4()}\n")
    first.record("tool_call", {"call_id": call, "name": "read", "args": {"path": f"{first.workspace_path}/app.py"}})
    first.record("tool_result", {"call_id": call, "ok": True, "output": f"{site.clock.now().isoformat()} {first.id} {uuid4()}"})
    first.checkpoint()
    site.clock.advance(seconds=1)
    return first.handoff()


def test_what_is_done_again_elsewhere_and_later_is_the_same_text(tmp_path: Path) -> None:
    texts = []
    for name, year in (("a", 0), ("much/longer", 3)):
        (tmp_path / name).mkdir(parents=True)
        with open_site(tmp_path / name, {"app.py": "v1\n"}, ids=random_id) as site:
            site.clock.advance(days=365 * year)
            child = work(site)
            parent = site.state(child.id).lineage
            assert parent is not None
            texts.append(golden([*site.events(parent.parent), *site.events(child.id)]))

    assert texts[0] == texts[1]
    assert str(tmp_path) not in texts[0]
    assert "sess_" not in texts[0]
    assert '"child": "<session-2>"' in texts[0]
    assert '"path": "<workspace-1>/app.py"' in texts[0]
    assert '"output": "<time-1> <session-1> <uuid-1>"' in texts[0]


def test_the_same_value_has_the_same_stand_in(log: LogKit) -> None:
    sha, other = "a" * 40, "b" * 64
    log.append("user_message", text=f"{sha} {other} {sha}, sha256:{other}")
    log.append("session.commit", sha=sha, message="x")

    lines = log.golden().splitlines()[-2:]
    assert lines[0].endswith('{"text": "<sha-2> <sha-3> <sha-2>, sha256:<sha-3>"}')
    assert lines[1].endswith('{"message": "x", "sha": "<sha-2>"}')


def test_equal_times_are_equal_however_they_are_written(log: LogKit) -> None:
    when = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    log.put("user_message", {"text": "2031-05-06T09:08:09+02:00, 2031-05-06 07:08:09.000Z; 2031-99-99T00:00:00Z"}, at=when)

    text = '{"text": "<time-1>, <time-1>; 2031-99-99T00:00:00Z"}'
    assert log.golden().splitlines()[-1] == f"2 <time-1> agent user_message {text}"


def test_a_call_and_its_answer_are_known_by_one_name(log: LogKit) -> None:
    log.append("tool_call", call_id="toolu_01xyz", name="shell", args={})
    log.append("tool_result", call_id="toolu_01xyz", ok=True)

    assert [line.partition("<call-")[2][:2] for line in log.golden().splitlines()[-2:]] == ["1>", "1>"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see /usr/lib/python3/x.py and /etc/hosts", "see <path-1> and <path-2>"),
        ("either/or, 1/2/3, src/app.py", "either/or, 1/2/3, src/app.py"),
        ("https://example.org/a/b/c", "https://example.org/a/b/c"),
        ("main mainly", "main mainly"),
        ("abc123", "abc123"),
        ("a\u2028b\x00", r"a\u2028b\u0000"),
    ],
)
def test_only_what_differs_from_run_to_run_is_replaced(log: LogKit, text: str, shown: str) -> None:
    log.append("user_message", text=text)

    assert log.golden().splitlines()[-1].endswith(f'{{"text": "{shown}"}}')


def test_a_short_id_is_not_taken_for_a_word(tmp_path: Path) -> None:
    log = LogKit(tmp_path, "main")
    log.append("user_message", text="main is the branch")
    log.append("handoff.intent", child="main")

    assert '"durable_branch": "main"' not in log.golden()
    assert '"text": "main is the branch"' in log.golden()
    assert '{"child": "<session-1>"}' in log.golden()


def test_another_history_is_another_text(tmp_path: Path) -> None:
    one, other = LogKit(tmp_path / "a"), LogKit(tmp_path / "b")
    for log, text in ((one, "yes"), (other, "no")):
        log.build(10)
        log.append("user_message", text=text)

    assert one.golden().splitlines()[:-1] == other.golden().splitlines()[:-1]
    assert one.golden() != other.golden()


def test_of_a_damaged_log_there_is_none(log: LogKit) -> None:
    log.build(5)
    log.drop(2)

    with pytest.raises(GittrixError):
        log.golden()
