"""What the daemon and the engine write is its owner's alone: after a whole story no other user can read any of it."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon import DaemonClient, Staff, serving, wait_until
from support.git import GitRepo

OF_AGENTS = {"workspace", "archive.workspace", "home"}
"""Directories of a session that hold what its agent made; nobody else can enter the session's."""
PROJECT = """
[[projects]]
id = "parser"
durable = {durable}
prefix = "par"
[projects.agents]
shell = ["sh", "-c", "echo said; sleep 1000", "sh"]
"""


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(path: Path) -> bool:
    return not path.is_symlink() and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def files_below(directory: Path, *, without: set[str]) -> list[Path]:
    found = []
    for parent, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name not in without]
        found += [Path(parent, name) for name in names]
    return found


class Story:
    """Sessions of every kind, driven through a daemon."""

    def __init__(self, daemon: DaemonClient, staff: Staff, durable: Path) -> None:
        self.daemon, self.staff, self.durable = daemon, staff, durable

    def command(self, *argv: str, stdin: str = "") -> dict[str, str]:
        answer = self.daemon.command(*argv, cwd=self.durable, stdin=base64.b64encode(stdin.encode()).decode()).json
        assert answer["status"] == 0, answer
        data: dict[str, str] = answer["answer"]["data"]
        return data

    def session(self) -> str:
        id_ = self.command("session", "start", "task", "-d", str(self.durable))["id"]
        self.command("session", "write", id_, "new.txt", stdin="new\n")
        return id_

    def of_a_person(self) -> None:
        talked = self.session()
        self.command("session", "commit", talked, "-m", "work")
        self.command("session", "record", talked, "user_message", stdin='{"text": "hello"}')
        self.command("session", "handoff", talked)
        self.command("session", "discard", self.session())
        self.command("promote", self.session(), "--strategy", "patch")
        self.command("promote", self.session())

    def of_projects(self) -> None:
        for purge in ([], ["--purge"]):
            self.command("session", "kill", self.command("session", "spawn", "parser")["id"], *purge)

    def of_members(self) -> None:
        id_ = self.staff.start(self.daemon, "ada")
        wait_until(lambda: self.daemon.state(id_) == "Retained")
        chat = self.staff.start(self.daemon, "bob", "Interactive")
        self.daemon.ok("POST", f"/api/sessions/{chat}/locks", {"work_item_id": "td-7"})
        (self.staff.workspace(chat) / "new.txt").write_text("new\n")
        self.daemon.ok("POST", f"/api/sessions/{chat}/stop", {"force": True})
        self.daemon.ok("DELETE", f"/api/sessions/{chat}")
        self.daemon.ok("POST", f"/api/sessions/{self.staff.start(self.daemon, 'bob', 'Interactive')}/locks", {"work_item_id": "td-8"})


def test_nobody_else_can_read_what_a_store_holds(tmp_path: Path, usual_umask: None) -> None:
    durable = GitRepo.make(tmp_path / "durable", {"a.txt": "one\n"}).path
    with Staff.open(tmp_path) as staff:
        team = staff.hires(PROJECT.format(durable=json.dumps(str(durable))), ada=staff.commits("made.txt"))
        with serving(staff.settings) as daemon:
            story = Story(daemon, staff, durable)
            story.of_a_person()
            story.of_projects()
            story.of_members()
            files = [path for path in files_below(staff.home, without=OF_AGENTS) if path != team]
            sessions = [path for path in (staff.home / "sessions").iterdir() if (path / "events.jsonl").exists()]
            apart = [staff.home / name for name in ("sessions", "clones", "locks", "work-locks", "orchestrator/parser/sessions")]

    names = {path.name for path in files}
    assert names >= {
        "events.jsonl",
        "daemon.json",
        "archive.patch",
        "promote.patch",
        "output",
        "agent.json",
        "par-1",
        ".lock",
        "notes.json",
    }
    assert len(sessions) >= 9
    assert [str(path) for path in files if path.exists() and open_to_others(path)] == []
    assert [str(path) for path in (*apart, *sessions) if open_to_others(path)] == []
    assert not stat.S_IMODE((durable / "new.txt").stat().st_mode) ^ 0o644, "a person's files follow their umask"
