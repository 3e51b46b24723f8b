"""What programs see: one object for each command, with the keys of the TypeScript CLI, and a code for whatever goes wrong."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest
from support.cli import FILES, Cli

from pytest_gittrix.commands import engine_context
from pytest_gittrix.git.environment import run_git

METADATA_KEYS = {
    "metadataVersion",
    "id",
    "task",
    "durableRef",
    "durablePath",
    "durableBranch",
    "ephemeralRef",
    "ephemeralPath",
    "baselineSha",
    "workspaceKind",
    "isGitBacked",
    "state",
    "createdAt",
    "updatedAt",
    "lastAccessAt",
    "evictionPolicy",
    "touchedFiles",
    "promote",
}


def test_start_gives_the_session_under_both_names_of_its_id(cli: Cli) -> None:
    cli.freeze()
    head = cli.git("rev-parse", "HEAD").strip()

    data = cli.data("session", "start", "--task", "say hello", "--ttl", "2d")

    assert data["id"] == data["sessionId"]
    assert (data["task"], data["state"], data["baselineSha"]) == ("say hello", "active", head)
    assert (data["durablePath"], data["durableBranch"]) == (str(cli.project), "trunk")
    assert Path(data["workspacePath"], "app.py").read_text() == FILES["app.py"]
    assert (data["createdAt"], data["deadline"]) == ("2030-01-01T12:00:00.000Z", "2030-01-03T12:00:00.000Z")
    assert data["touchedFiles"] == []
    assert data["capabilities"]["promote"] is True


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ([], {"ttlIdleMs": 14_400_000, "ttlAbsoluteMs": None, "untilPromote": True, "manual": False}),
        (["--ttl", "30m"], {"ttlIdleMs": 1_800_000, "ttlAbsoluteMs": None, "untilPromote": True, "manual": False}),
        (
            ["--ttl", "none", "--ttl-absolute", "2d"],
            {"ttlIdleMs": None, "ttlAbsoluteMs": 172_800_000, "untilPromote": True, "manual": False},
        ),
        (["--manual", "--keep-after-promote"], {"ttlIdleMs": 14_400_000, "ttlAbsoluteMs": None, "untilPromote": False, "manual": True}),
    ],
)
def test_the_eviction_policy_is_as_given(cli: Cli, arguments: list[str], policy: dict[str, object]) -> None:
    cli.start(*arguments)

    (listed,) = cli.data("session", "list")

    assert listed["evictionPolicy"] == policy


def test_list_gives_the_documented_records(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "app.py", stdin="x\n")
    cli.start()

    data = cli.data("session", "list")

    assert {one["id"] for one in data} > {id_}
    assert [one.keys() for one in data] == [METADATA_KEYS, METADATA_KEYS]
    assert {one["id"]: one["touchedFiles"] for one in data}[id_] == ["app.py"]


def test_info_tells_of_live_and_ended_sessions(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "app.py", stdin="x\n")
    live = cli.data("session", "info", id_)
    cli.ok("session", "discard", id_)
    ended = cli.data("session", "info", id_)

    assert (live["id"], live["state"], live["touchedFiles"]) == (id_, "active", ["app.py"])
    assert (ended["id"], ended["state"], ended["touchedFiles"]) == (id_, "discarded", ["app.py"])
    assert "workspacePath" not in ended
    assert ended["capabilities"]["promote"] is False


def test_info_tells_what_happened_when_asked(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "app.py", stdin="x\n")
    cli.ok("session", "discard", id_)

    plain, with_events = cli.data("session", "info", id_), cli.data("session", "info", id_, "--events")

    assert plain == {name: value for name, value in with_events.items() if name != "events"}
    assert [event["seq"] for event in with_events["events"]] == list(range(len(with_events["events"])))
    assert {"session.created", "session.write", "session.ended"} <= {event["type"] for event in with_events["events"]}
    write = next(event for event in with_events["events"] if event["type"] == "session.write")
    assert (write["actor"], write["data"]) == ("human", {"path": "app.py", "op": "write"})
    assert "session.write" in cli.ok("session", "info", id_, "--events").text


def test_read_gives_any_bytes_in_base64(cli: Cli, id_: str) -> None:
    contents = bytes(range(256))
    cli.ok("session", "write", id_, "raw.bin", stdin=contents)

    data = cli.data("session", "read", id_, "raw.bin")

    assert data.keys() == {"path", "contentBase64"}
    assert data["path"] == "raw.bin"
    assert b64decode(data["contentBase64"], validate=True) == contents


def test_write_and_delete_give_the_path(cli: Cli, id_: str) -> None:
    assert cli.data("session", "write", id_, "app.py", stdin=b"\x00\xff\n") == {"path": "app.py", "size": 3}
    assert cli.data("session", "delete", id_, "README.md") == {"path": "README.md"}
    assert cli.data("session", "touched", id_) == ["README.md", "app.py"]


def test_list_files_gives_paths_and_types(cli: Cli, id_: str) -> None:
    (cli.workspace(id_) / "link").symlink_to("app.py")

    assert cli.data("session", "list-files", id_) == [
        {"path": "README.md", "type": "file"},
        {"path": "app.py", "type": "file"},
        {"path": "link", "type": "symlink"},
        {"path": "src", "type": "dir"},
        {"path": "src/util.py", "type": "file"},
    ]


def test_diff_gives_the_patch(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")

    data = cli.data("session", "diff", id_)

    assert data.keys() == {"diff", "refused", "secrets", "hazards", "filtered"}
    assert data["diff"].encode() == cli.ok("session", "diff", id_).out
    assert "-print('v1')\n+hello\n" in data["diff"]


def test_diff_gives_hunks_by_path_and_number(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "src/util.py", stdin=FILES["src/util.py"].replace("line 2\n", "").replace("line 29\n", "29\n"))
    cli.ok("session", "write", id_, "new.py", stdin="x\n")

    data = cli.data("session", "diff", id_, "--hunks")

    assert data.keys() == {"diff", "hunks", "refused", "secrets", "beside", "hazards", "filtered"}
    assert (data["refused"], data["secrets"], data["beside"]) == ({}, {}, [])
    (first, second) = data["hunks"]["src/util.py"]
    assert data["hunks"].get("new.py", []) == []
    assert first.keys() == {"index", "id", "oldStart", "oldLines", "newStart", "newLines", "text"}
    assert (first["index"], second["index"]) == (1, 2)
    assert (second["oldStart"], second["oldLines"], second["newStart"], second["newLines"]) == (26, 5, 25, 5)
    assert second["text"].endswith("-line 29\n+29\n line 30\n")


def test_diff_says_what_a_person_should_know_before_promoting(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "app.py", stdin="token = 'ghp_" + "a1B2" * 9 + "'\n")
    aside = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "aside"]
    for arguments in (["checkout", "-q", "-b", "aside"], aside, ["checkout", "-q", "-"]):
        run_git(arguments, cwd=cli.workspace(id_))

    data, shown = cli.data("session", "diff", id_, "--hunks"), cli("session", "diff", id_)
    info = cli.data("session", "info", id_)

    assert data["secrets"] == {"app.py": ["line 1: GitHub token"]}
    assert data["beside"][0].startswith("branch 'aside' is at ")
    assert info["beside"] == data["beside"]
    assert f"not part of this  {data['beside'][0]}" in cli.ok("session", "info", id_).text
    assert "app.py: line 1: GitHub token" in shown.err
    assert "Not part of this: branch 'aside' is at " in shown.err


def test_commit_and_log_tell_of_the_agents_commits(cli: Cli) -> None:
    cli.freeze()
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="x\n")

    sha = cli.data("session", "commit", id_, "-m", "one\n\nbody")["sha"]

    assert cli.data("session", "log", id_) == [
        {
            "sha": sha,
            "authorName": "agent",
            "authorEmail": "agent@localhost",
            "timestamp": "2030-01-01T12:00:00.000Z",
            "message": "one\n\nbody",
        }
    ]


def test_ends_name_the_session(cli: Cli) -> None:
    clock = cli.freeze()
    discarded, evicted, swept = cli.start(), cli.start(), cli.start("--ttl-absolute", "1h")
    clock.advance(hours=2)

    assert cli.data("sweep") == {"evicted": [swept], "archives": {swept: []}, "postponed": [], "inUse": []}
    assert cli.data("session", "discard", discarded) == {"discarded": discarded, "archives": []}
    assert cli.data("session", "evict", evicted) == {"evicted": evicted, "archives": []}
    assert cli.data("sweep") == {"evicted": [], "archives": {}, "postponed": [], "inUse": []}


def test_ends_say_where_the_work_is(cli: Cli) -> None:
    clock = cli.freeze()
    discarded, evicted, swept = cli.start(), cli.start(), cli.start("--ttl-absolute", "1h")
    for id_ in (discarded, evicted, swept):
        cli.ok("session", "write", id_, "new.txt", stdin=b"work\n")
    clock.advance(hours=2)

    archives = {
        swept: cli.data("sweep")["archives"][swept],
        discarded: cli.data("session", "discard", discarded)["archives"],
        evicted: cli.data("session", "evict", evicted)["archives"],
    }
    for id_, paths in archives.items():
        assert [Path(path).name for path in paths] == ["archive.patch", "archive.git"]
        assert "+work" in Path(paths[0]).read_text()
        assert Path(paths[0]).parent.name == id_
    started = cli.start()
    cli.ok("session", "write", started, "new.txt", stdin=b"work\n")
    assert f"{started}/archive.patch" in cli("session", "discard", started).err


def test_extend_gives_the_session_with_its_new_deadline(cli: Cli) -> None:
    cli.freeze()
    id_ = cli.start()

    data = cli.data("session", "extend", id_, "1d")

    assert (data["id"], data["deadline"]) == (id_, "2030-01-02T12:00:00.000Z")


def test_recover_gives_a_report(cli: Cli, id_: str) -> None:
    (cli.home / "sessions" / "sess_halfastarted").mkdir()
    (cli.home / "sessions" / id_ / "events.jsonl").write_text("not an event\nnor this\n")

    data = cli.data("recover")

    assert data.keys() == {"rolledForward", "rolledBack", "removed", "postponed", "inUse", "problems"}
    assert data["removed"] == ["sess_halfastarted"]
    assert id_ in {problem["id"] for problem in data["problems"]}


def test_promote_gives_the_commit(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "app.py", stdin="x\n")

    data = cli.data("promote", id_, "--message", "hello")

    assert data == {"sha": cli.git("rev-parse", "HEAD").strip(), "branch": "trunk", "warnings": [], "secrets": {}}


def test_promote_gives_the_patch_and_no_commit(cli: Cli, id_: str) -> None:
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")

    data = cli.data("promote", id_, "-s", "patch")

    assert (data["sha"], data["branch"], data["warnings"]) == (None, "trunk", [])
    cli.git("apply", stdin=data["patch"].encode())
    assert (cli.project / "app.py").read_text() == "hello\n"


def test_a_conflict_carries_what_a_program_needs_to_decide(cli: Cli, id_: str) -> None:
    baseline = cli.git("rev-parse", "HEAD").strip()
    cli.ok("session", "write", id_, "app.py", stdin="ours\n")
    cli.ok("session", "write", id_, "src/util.py", stdin=FILES["src/util.py"].replace("line 29\n", "ours\n"))
    cli.ok("session", "write", id_, "README.md", stdin="ours\n")
    cli.commit({"app.py": "theirs\n", "src/util.py": FILES["src/util.py"].replace("line 2\n", "theirs\n")})
    cli.git("rm", "-q", "README.md")
    cli.git("commit", "-q", "--message=gone")

    error = cli.error("promote", id_)

    assert error["code"] == "BASELINE_CONFLICT"
    assert error["conflictingFiles"] == ["README.md", "app.py", "src/util.py"]
    assert error["kinds"] == {"README.md": "tree", "app.py": "text", "src/util.py": "path"}
    assert (error["baselineSha"], error["durableSha"]) == (baseline, cli.git("rev-parse", "HEAD").strip())
    assert "'app.py'" in error["message"]


def test_an_ended_session_tells_how_it_ended(cli: Cli, id_: str) -> None:
    cli.ok("session", "discard", id_)

    for line in (["read", id_, "app.py"], ["touched", id_], ["diff", id_], ["log", id_], ["extend", id_, "2h"], ["discard", id_]):
        error = cli.error("session", *line)
        assert (error["code"], error["state"]) == ("SESSION_EXPIRED", "discarded")


def test_a_failed_promotion_tells_the_stage(cli: Cli, id_: str) -> None:
    error = cli.error("promote", id_)

    assert (error["code"], error["stage"]) == ("PROMOTE_FAILED", "staging")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["session", "info", "sess_nobody"], "SESSION_NOT_FOUND"),
        (["session", "info", "../.."], "INVALID_INPUT"),
        (["session", "start", "x", "--branch", "gone"], "INVALID_INPUT"),
        (["session", "start", "x", "--ttl", "0s"], "INVALID_INPUT"),
        (["session", "start", "x", "--durable", "/"], "ADAPTER_UNAVAILABLE"),
        (["session", "read", "sess", "nothing.py"], "PATH_NOT_FOUND"),
        (["session", "diff", "sess", "app.py"], "INVALID_INPUT"),
        (["session", "write", "sess", "../x"], "WRITE_REJECTED"),
        (["promote", "sess", "--files", "app.py"], "PROMOTE_FAILED"),
        (["promote", "sess", "--strategy", "pr"], "CAPABILITY_MISSING"),
    ],
)
def test_what_goes_wrong_has_a_code(cli: Cli, id_: str, line: list[str], code: str) -> None:
    error = cli.error(*line)

    assert error["code"] == code
    assert error["message"]


def test_a_broken_clock_file_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_GITTRIX_CLOCK", str(cli.root / "no-clock"))

    error = cli.error("session", "list")

    assert error["code"] == "INVALID_INPUT"
    assert "no-clock" in error["message"]


def test_what_was_not_raised_on_purpose_is_unknown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine_context, "engine", broken)

    assert cli.error("sweep") == {"code": "UNKNOWN", "message": "ZeroDivisionError"}


def test_the_answer_is_one_line_of_plain_ascii(cli: Cli) -> None:
    ran = cli.ok("session", "start", "--task", "Grüße\n\x1b[1m", "--json")

    assert ran.out.count(b"\n") == 1
    assert ran.out.isascii()
    assert ran.envelope["data"]["task"] == "Grüße\n\x1b[1m"


def test_a_process_of_its_own_says_the_same(cli: Cli, id_: str) -> None:
    listed = cli.process("session", "list", "--json")
    missing = cli.process("session", "info", "sess_nobody", "--json")
    misused = cli.process("session", "info", "--json")
    out, err = listed.communicate(timeout=60)

    assert (listed.returncode, err) == (0, b"")
    assert [one["id"] for one in json.loads(out)["data"]] == [id_]
    assert json.loads(missing.communicate(timeout=60)[0])["error"]["code"] == "SESSION_NOT_FOUND"
    assert json.loads(misused.communicate(timeout=60)[0])["error"]["code"] == "USAGE"
    assert (missing.returncode, misused.returncode) == (1, 2)
