"""A user's git configuration, variables leaked by a hook, no home, another time library: the engine's results are the same in all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from support.bytes import changed, everything_below
from support.hostile import HOOKS
from support.scene import Scene, person, scratch

# The whole of a session's life; prints everything of it that could depend on what is around.
LIFE = """
    import hashlib, json, os, sys
    from datetime import timedelta
    from pathlib import Path
    from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
    from pytest_gittrix.clock import FrozenClock
    from pytest_gittrix.record.state.records import EvictionPolicy
    from pytest_gittrix.engine.engine import GitTrix

    root, kind = Path(sys.argv[1]), sys.argv[2]
    clock, ids = FrozenClock(), (f"session-{number}" for number in range(99))
    durable = LocalDurable(root / "durable", author=("Promoter", "promoter@example.com"))
    account = {}
    with GitTrix(
        durable, LocalEphemeral(kind=kind), home=root / "home", clock=clock, eviction=EvictionPolicy(ttl_idle=timedelta(hours=4)),
        sweep_interval=timedelta(minutes=5), durability="fast", strategy="commit", ids=ids.__next__,
    ) as engine:
        session, other = engine.start_session("a task"), engine.start_session("left alone")
        other.write("other.txt", b"one\\r\\ntwo\\n")
        session.write("app.py", b"print(1)\\r\\n")
        session.write("new/\\u00e9.txt", "new\\n")
        session.delete("README.md")
        account["diff"] = session.diff()
        account["touched"] = session.touched_files()
        if kind == "clone":
            account["commit"] = session.commit("work")
            account["log"] = [(entry.sha, entry.author_name, str(entry.timestamp)) for entry in session.log()]
        clock.advance(minutes=7)
        account["promoted"] = session.promote().sha
        clock.advance(hours=5)
        account["ended"] = [(record.id, record.state) for record in engine.list_sessions()]
        events = [(engine.store.directory(id_) / "events.jsonl").read_text() for id_ in engine.store.ids()]
        account["archive"] = (engine.store.directory("session-1") / "archive.patch").read_bytes().decode()
        account["now"] = str(clock.now())

    def neutral(line):
        event = json.loads(line)
        event.pop("crc", None)
        for key in ("owner", "observed_ns"):
            event["data"].pop(key, None)
        return event

    account["events"] = [neutral(line) for text in events for line in text.splitlines()]
    print(json.dumps(account, sort_keys=True, default=str))
"""


@dataclass(frozen=True)
class Surroundings:
    """What a process finds around it.

    Attributes:
        prepare: changes the scene and the home before the engine runs; gives further environment variables.
        before: Python run first in the same process.
    """

    prepare: Callable[[Scene, Path], Mapping[str, str]] = lambda _scene, _home: {}
    before: str = field(default="")


def configured(*lines: str) -> Callable[[Scene, Path], Mapping[str, str]]:
    def prepare(scene: Scene, home: Path) -> Mapping[str, str]:
        hooks = scene.root / "template" / "hooks"
        hooks.mkdir(parents=True)
        for name in HOOKS:
            (hooks / name).write_text(f"#!/bin/sh\necho {name} >> '{scene.root}/mark'\nexit 1\n")
            (hooks / name).chmod(0o755)
        (home / ".gitconfig").write_text("\n".join(lines).replace("TEMPLATE", str(scene.root / "template")) + "\n")
        (scene.root / "template" / "attributes").write_text("* text=auto eol=crlf ident filter=x\n")
        return {}

    return prepare


def leaking(**variables: str) -> Callable[[Scene, Path], Mapping[str, str]]:
    def prepare(scene: Scene, _home: Path) -> Mapping[str, str]:
        victim = scene.root / "victim"
        scene.git("init", "-q", str(victim))
        return {name: value.replace("VICTIM", str(victim)) for name, value in variables.items()}

    return prepare


def homeless(scene: Scene, home: Path) -> Mapping[str, str]:
    home.rmdir()
    return {"XDG_CONFIG_HOME": str(scene.root / "nowhere")}


def unwritable(_scene: Scene, home: Path) -> Mapping[str, str]:
    # A home that even root cannot write to.
    return {"HOME": "/proc/1", "XDG_CONFIG_HOME": "/proc/1"}


SURROUNDINGS: Final[Mapping[str, Surroundings]] = {
    "signing": Surroundings(
        configured(
            "[commit]\ngpgSign=true", "[tag]\ngpgSign=true", "[gpg]\nprogram=/bin/false", "[user]\nname=Somebody\nemail=s@example.com"
        )
    ),
    "hooksPath": Surroundings(configured("[core]\nhooksPath=TEMPLATE/hooks\nfsmonitor=TEMPLATE/hooks/post-commit")),
    "line endings": Surroundings(configured("[core]\nautocrlf=true\neol=crlf\nsafecrlf=true\nattributesFile=TEMPLATE/attributes")),
    "filters": Surroundings(configured("[core]\nattributesFile=TEMPLATE/attributes", '[filter "x"]\nclean=/bin/false\nsmudge=/bin/false')),
    "templates": Surroundings(configured("[init]\ntemplateDir=TEMPLATE\ndefaultBranch=trunk", "[clone]\ndefaultRemoteName=up")),
    "formats": Surroundings(configured("[core]\nabbrev=4\nquotePath=false\nprecomposeUnicode=true\nignoreCase=true\nfileMode=false")),
    "diffs": Surroundings(
        configured("[diff]\nnoprefix=true\nexternal=/bin/false\nrenames=copies\nalgorithm=patience", "[color]\nui=always")
    ),
    "a broken configuration": Surroundings(configured("[core", "nonsense")),
    "GIT_DIR": Surroundings(leaking(GIT_DIR="VICTIM/.git", GIT_WORK_TREE="VICTIM")),
    "GIT_INDEX_FILE": Surroundings(leaking(GIT_INDEX_FILE="VICTIM/.git/index.lock", GIT_PREFIX="sub/")),
    "GIT_OBJECT_DIRECTORY": Surroundings(
        leaking(GIT_OBJECT_DIRECTORY="VICTIM/.git/objects", GIT_COMMON_DIR="VICTIM/.git", GIT_NAMESPACE="x", GIT_QUARANTINE_PATH="VICTIM")
    ),
    "GIT_CONFIG_*": Surroundings(
        leaking(
            GIT_CONFIG_COUNT="1",
            GIT_CONFIG_KEY_0="core.fsmonitor",
            GIT_CONFIG_VALUE_0="/bin/false",
            GIT_CONFIG_PARAMETERS="'core.bare=true'",
        )
    ),
    "identity": Surroundings(
        leaking(GIT_AUTHOR_NAME="Nobody", GIT_AUTHOR_DATE="1 +0000", GIT_COMMITTER_DATE="2 +0000", GIT_COMMITTER_EMAIL="n@x", EMAIL="e@x")
    ),
    "place and time": Surroundings(leaking(LC_ALL="tr_TR.UTF-8", LANG="tr_TR.UTF-8", TZ="Pacific/Chatham")),
    "tracing and paging": Surroundings(
        leaking(GIT_TRACE="1", GIT_PAGER="/bin/false", GIT_EDITOR="/bin/false", GIT_EXTERNAL_DIFF="/bin/false")
    ),
    "no home": Surroundings(homeless),
    "an unwritable home": Surroundings(unwritable),
    "another umask": Surroundings(before="import os; os.umask(0o077)"),
    "another time library": Surroundings(before="import freezegun; freezegun.freeze_time('1999-12-31 23:59:59', tick=True).start()"),
    "a frozen time library": Surroundings(before="import freezegun; freezegun.freeze_time('2040-01-01').start()"),
    "random hashing": Surroundings(leaking(PYTHONHASHSEED="12345")),
}


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scratch() as directory:
        place = directory / "always the same length"
        place.mkdir()
        yield Scene(place)


def lived(scene: Scene, surroundings: Surroundings, kind: str = "clone") -> dict[str, Any]:
    """Live a session's life in those surroundings; gives what it printed, with the place left out."""
    home = scene.root / "user"
    home.mkdir()
    environment = {**person(home), "PYTHONPATH": os.pathsep.join(sys.path), **surroundings.prepare(scene, home)}
    program = f"{surroundings.before}\n{textwrap.dedent(LIFE)}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(scene.root), kind], env=environment, cwd="/", capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    account: dict[str, Any] = json.loads(done.stdout.decode().replace(str(scene.root), "ROOT"))
    return account


_clean: dict[str, dict[str, Any]] = {}


def undisturbed(kind: str = "clone") -> dict[str, Any]:
    """What is told where nothing is in the way; once for each kind."""
    if kind not in _clean:
        with scratch() as directory:
            place = directory / "always the same length"
            place.mkdir()
            _clean[kind] = lived(Scene(place), Surroundings(), kind)
    return _clean[kind]


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_surroundings_change_no_result(scene: Scene, name: str) -> None:
    account = lived(scene, SURROUNDINGS[name])
    assert account == undisturbed()
    assert not (scene.root / "mark").exists()
    assert scene.git("rev-parse", "main") == account["promoted"]
    scene.judge_repository()
    victim = scene.root / "victim"
    if victim.exists():
        fresh = scene.root / "fresh"
        scene.git("init", "-q", str(fresh))
        assert changed(contents_of(victim), contents_of(fresh)) == set()


def contents_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    return {path: (mode, 0, data) for path, (mode, _, data) in everything_below(root).items()}


@pytest.mark.parametrize("kind", ["lazy", "copy"])
@pytest.mark.parametrize("name", ["GIT_DIR", "line endings", "another time library"])
def test_other_workspaces_are_as_calm(scene: Scene, name: str, kind: str) -> None:
    assert lived(scene, SURROUNDINGS[name], kind) == undisturbed(kind)


def test_what_is_told_holds_what_could_differ() -> None:
    account = undisturbed()
    assert account["touched"] == ["README.md", "app.py", "new/\u00e9.txt"]
    assert "+print(1)\r\n" in account["diff"]
    assert account["ended"] == [["session-0", "promoted"], ["session-1", "expired"]]
    assert [event["type"] for event in account["events"]].count("promote.done") == 1
    assert "+one\r\n" in account["archive"]
