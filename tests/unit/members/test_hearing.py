"""What a brain hears: which events become prompts, of whom, since when, and each once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.acp_program import MEMBER, agent_that
from support.daemon import wait_until
from support.members import Crew

from pytest_gittrix.backends.forge.http_client import Patience
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.record.state.lifecycle import Life
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents as processes run on Linux")
REPEATS = [f"acp:{sys.executable}", "-I", "-S", "-c", agent_that("say(task)")]


def brain(crew: Crew, member: str = "alice") -> Life:
    return crew.start(member=member, kind="brain", command=REPEATS)


def queued(crew: Crew, id_: str) -> list[tuple[str, str]]:
    return [(event.data["source"], event.data["text"]) for event in crew.events(id_) if event.type == "prompt.queued"]


def drop(crew: Crew, name: str, text: str = "news", member: str = "alice") -> Path:
    inbox = crew.engine.home / "inbox" / member
    inbox.mkdir(parents=True, exist_ok=True)
    (inbox / name).write_text(text)
    return inbox / name


def test_prompts_that_are_sent_are_taken_in_order_and_each_once(crew: Crew) -> None:
    life = brain(crew)
    texts = [f"prompt {number}\nand more" for number in range(20)]
    for text in texts:
        crew.members.send(life.id, text)
    wait_until(lambda: crew.types(life.id).count("turn.ended") == len(texts), "the last turn")

    assert [event.data["text"] for event in crew.events(life.id) if event.type == "assistant_message"] == texts
    assert queued(crew, life.id) == [("person", text) for text in texts]


def test_a_program_without_the_protocol_gets_a_line_and_no_events(crew: Crew) -> None:
    life = crew.start(crew.script().polite().at("up").read().hang(), kind="brain")
    crew.agents.step("up")
    crew.members.send(life.id, "look at it")
    drop(crew, "a.txt")

    assert [crew.members.hear() for _ in range(3)] == [[], [], []]
    assert (queued(crew, life.id), crew.types(life.id).count("user_message")) == ([], 1)


def test_who_takes_no_prompts_is_named(crew: Crew) -> None:
    loop = crew.start(command=MEMBER, task="receive()")
    with pytest.raises(InvalidInput, match="takes no prompts"):
        crew.members.send(loop.id, "more")
    with pytest.raises(InvalidInput, match="no agent that runs"):
        crew.members.send(crew.chat().id, "hello")
    life = brain(crew)
    with pytest.raises(InvalidInput):
        crew.members.send(life.id, 7)  # type: ignore[arg-type]
    crew.members.stop(life.id)
    with pytest.raises(InvalidInput, match="no agent that runs"):
        crew.members.send(life.id, "late")


def test_ends_of_other_members_since_its_start_are_heard_by_each_brain(crew: Crew) -> None:
    def ended(member: str) -> str:
        life = crew.ended(member=member)
        crew.members.observe()
        crew.clock.advance(seconds=1)
        return life.id

    ended("before")
    crew.clock.advance(seconds=1)
    alice, carol = brain(crew), brain(crew, "carol")
    ids = [ended("bob"), ended("bob")]
    ended("alice")
    told = crew.members.hear({"carol": ["inbox"]})

    assert (told, crew.members.hear({"carol": ["inbox"]})) == ([alice.id] * 2, [])
    assert queued(crew, alice.id) == [("members", f"Session {id_} of bob ended: completed.") for id_ in ids]
    assert queued(crew, carol.id) == []


def test_a_file_is_heard_once_it_rests_and_only_a_file(crew: Crew) -> None:
    life = brain(crew)
    first, hidden = drop(crew, "one.txt", "half"), drop(crew, ".two.txt")
    (first.parent / "link").symlink_to("/etc/hostname")
    os.mkfifo(first.parent / "pipe")
    drop(crew, "for-bob.txt", member="bob")
    assert crew.members.hear() == []
    drop(crew, "one.txt", "half and half")
    assert crew.members.hear() == []
    assert (crew.members.hear(), crew.members.hear()) == ([life.id], [])

    assert queued(crew, life.id) == [("inbox", "half and half")]
    assert sorted(path.name for path in first.parent.iterdir()) == sorted([hidden.name, "link", "pipe", "taken"])
    assert (crew.engine.home / "inbox/bob/for-bob.txt").exists()


def test_a_file_that_was_heard_before_a_kill_is_only_put_away(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    life = brain(crew)
    drop(crew, "one.txt")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        assert [crew.members.hear() for _ in range(3)] == [[], [life.id], []]
    with crew.restarted() as members:
        assert [members.hear() for _ in range(3)] == [[], [], []]

    assert queued(crew, life.id) == [("inbox", "news")]
    assert [path.name for path in (crew.engine.home / "inbox/alice").iterdir()] == ["taken"]


def test_a_forge_that_is_away_says_nothing_of_the_past_when_it_is_back(crew: Crew, tmp_path: Path) -> None:
    life = brain(crew)
    with BareRemote.make(tmp_path / "forge.git", files={"app.py": "v1\n"}) as remote, ForgeServer(remote) as server:
        with server.forge() as forge:
            forge.create_issue("An old one")
            members = crew.manager(forge=forge)
            away = crew.manager(forge=type(forge)("acme/app", base_url="http://127.0.0.1:9", patience=Patience(tries=1)))
            assert [away.hear() for _ in range(3)] == [[], [], []]
            assert "hearing.began" not in crew.types(life.id)
            assert members.hear() == []
            forge.create_issue("A new one", "It is red.")
            assert members.hear() == [], "it is asked every half minute"
            crew.clock.advance(seconds=30)
            assert (members.hear(), members.hear()) == ([life.id], [])
            away.close()
            members.close()
    assert [text.splitlines()[0] for _, text in queued(crew, life.id)] == ["Issue 2 is open: A new one"]
    assert queued(crew, life.id)[0][1].endswith("\n\nIt is red.")
