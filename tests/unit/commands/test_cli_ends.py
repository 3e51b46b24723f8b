"""How sessions end at the terminal: promoted whole or in part, refused with a reason, discarded, evicted, swept, recovered."""

from __future__ import annotations

import sys

import pytest
from support.cli import FILES, SPREAD, Cli, Terminal

from pytest_gittrix.cli.main import main


def test_a_promotion_is_one_commit_and_ends_the_session(cli: Cli) -> None:
    before = cli.git("rev-parse", "HEAD")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")

    sha, branch = cli.ok("promote", id_).text.split()

    assert (sha, branch) == (cli.git("rev-parse", "HEAD").strip(), "trunk")
    assert cli.git("rev-parse", "HEAD^") == before
    assert cli.git("log", "-1", "--format=%s %an") == "gittrix: say hello Ada\n"
    assert (cli.project / "app.py").read_text() == "hello\n"
    assert cli.git("status", "--porcelain") == ""
    assert "was promoted" in cli.refused("session", "read", id_, "app.py")
    assert "state       promoted" in cli.ok("session", "info", id_).lines


@pytest.mark.parametrize(
    "selection", [["--files", "app.py, new.py"], ["-f", "app.py", "-f", "new.py"], ["app.py", "new.py"], ["app.py", "--files=new.py"]]
)
def test_only_selected_files_are_promoted(cli: Cli, selection: list[str]) -> None:
    id_ = cli.start()
    for path in ("app.py", "new.py", "README.md"):
        cli.ok("session", "write", id_, path, stdin="x\n")

    cli.ok("promote", id_, *selection, "--message", "some")

    assert cli.git("diff", "--name-only", "HEAD^", "HEAD").split() == ["app.py", "new.py"]


def test_only_selected_hunks_are_promoted(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "src/util.py", stdin=SPREAD)
    cli.ok("session", "write", id_, "app.py", stdin="x\n")

    cli.ok("promote", id_, "--hunks", "src/util.py:1", "--hunks", "src/util.py:3")

    changed = [line for line in cli.git("diff", "-U0", "HEAD^", "HEAD").splitlines() if line.startswith("+")]
    assert changed == ["+++ b/src/util.py", "+line two", "+line 29!"]


def test_files_and_hunks_are_promoted_together(cli: Cli) -> None:
    id_ = cli.start()
    for path, contents in {"src/util.py": SPREAD, "app.py": "x\n", "README.md": "y\n"}.items():
        cli.ok("session", "write", id_, path, stdin=contents)

    cli.ok("promote", id_, "app.py", "--hunks", "src/util.py:2")

    assert cli.git("diff", "--name-only", "HEAD^", "HEAD").split() == ["app.py", "src/util.py"]
    assert "line fifteen" in cli.git("show", "HEAD:src/util.py")
    assert "line two" not in cli.git("show", "HEAD:src/util.py")


def test_a_conflict_names_the_paths_and_leaves_the_session_as_it_was(cli: Cli) -> None:
    id_ = cli.start()
    for path in ("app.py", "README.md"):
        cli.ok("session", "write", id_, path, stdin="ours\n")
    head = cli.commit({"app.py": "theirs\n"})

    refusal = cli.refused("promote", id_)

    assert "'app.py'" in refusal
    assert "README.md" not in refusal
    assert cli.git("rev-parse", "HEAD").strip() == head
    assert cli.ok("session", "touched", id_).lines == ["README.md", "app.py"]
    cli.ok("promote", id_, "README.md")


def test_secrets_are_told_of_or_refused(cli: Cli) -> None:
    id_, head = cli.start(), cli.git("rev-parse", "HEAD")
    cli.ok("session", "write", id_, "app.py", stdin="print('v2')\ntoken = 'ghp_" + "a1B2" * 9 + "'\n")

    refused = cli.error("promote", id_, "--refuse-secrets")

    assert (refused["code"], refused["secrets"]) == ("SECRETS_FOUND", {"app.py": ["line 2: GitHub token"]})
    assert "app.py: line 2: GitHub token" in cli.refused("promote", id_, "--refuse-secrets")
    assert cli.git("rev-parse", "HEAD") == head
    done = cli("promote", id_, "--no-refuse-secrets")
    assert (done.status, "app.py: line 2: GitHub token" in done.err) == (0, True)
    assert cli.git("rev-parse", "HEAD") != head


def test_secrets_are_told_of_before_anything_lands(cli: Cli) -> None:
    """Here nothing lands after all, since durable changed the same file."""
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="token = 'ghp_" + "a1B2" * 9 + "'\n")
    cli.commit({"app.py": "theirs\n"})

    refused = cli("promote", id_)

    told, _, conflict = refused.err.partition("app.py: line 1: GitHub token")
    assert (refused.status, "About to land what looks like credentials:" in told, "'app.py'" in conflict) == (1, True, True)


def test_a_file_that_may_look_like_a_secret_is_promoted_in_silence(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "tests/key.pem", stdin="x\n")

    data = cli.data("promote", id_, "--refuse-secrets", "--allow-secret", "tests/key.pem")

    assert (data["secrets"], data["warnings"]) == ({}, [])


def test_overlap_can_be_merged(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "src/util.py", stdin=FILES["src/util.py"].replace("line 29\n", "ours\n"))
    cli.commit({"src/util.py": FILES["src/util.py"].replace("line 2\n", "theirs\n")})

    assert cli("promote", id_, "--on-overlap", "allow-identical").status == 1
    cli.ok("promote", id_, "--on-overlap", "merge")

    merged = cli.git("show", "HEAD:src/util.py").splitlines()
    assert (merged[1], merged[28]) == ("theirs", "ours")


def test_uncommitted_work_in_the_way_is_refused(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="ours\n")
    (cli.project / "app.py").write_text("the person's\n")

    assert cli.error("promote", id_)["code"] == "WORKTREE_DIRTY"
    assert (cli.project / "app.py").read_text() == "the person's\n"


def test_the_strategy_branch_leaves_the_branch_alone(cli: Cli) -> None:
    head = cli.git("rev-parse", "trunk")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="hello\n")

    sha, branch = cli.ok("promote", id_, "-s", "branch").text.split()

    assert branch == "gittrix/say-hello"
    assert cli.git("rev-parse", branch).strip() == sha
    assert cli.git("rev-parse", "trunk") == head


def test_the_strategy_patch_prints_a_patch_and_moves_nothing(cli: Cli) -> None:
    head = cli.git("rev-parse", "HEAD")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin=b"caf\xe9\n")

    patch = cli.ok("promote", id_, "--strategy", "patch").out

    assert cli.git("rev-parse", "HEAD") == head
    cli.git("apply", stdin=patch)
    assert (cli.project / "app.py").read_bytes() == b"caf\xe9\n"


def test_a_workspace_can_be_kept_after_the_promotion(cli: Cli) -> None:
    kept, gone = cli.start("--keep-after-promote"), cli.start()
    places = {id_: cli.workspace(id_) for id_ in (kept, gone)}
    for id_, path in ((kept, "a"), (gone, "b")):
        cli.ok("session", "write", id_, path, stdin="x\n")
        cli.ok("promote", id_)

    assert places[kept].is_dir()
    assert not places[gone].exists()


def test_discard_ends_a_session_and_keeps_its_work_aside(cli: Cli) -> None:
    id_ = cli.start()
    place = cli.workspace(id_)
    cli.ok("session", "write", id_, "app.py", stdin="unpromoted\n")

    assert cli.ok("session", "discard", id_).lines == [id_]

    assert not place.exists()
    assert "+unpromoted" in (cli.home / "sessions" / id_ / "archive.patch").read_text()
    assert "was discarded" in cli.refused("session", "discard", id_)


@pytest.mark.parametrize(("arguments", "state"), [([], "expired"), (["--state", "discarded"], "discarded")])
def test_evict_ends_a_session_as_told(cli: Cli, arguments: list[str], state: str) -> None:
    id_ = cli.start()

    assert cli.ok("session", "evict", id_, *arguments).lines == [id_]

    assert cli.data("session", "info", id_)["state"] == state
    assert cli.error("session", "evict", id_)["code"] == "SESSION_EXPIRED"


def test_a_sweep_evicts_what_is_past_its_time(cli: Cli) -> None:
    clock = cli.freeze()
    limits = ("--ttl", "none", "--ttl-absolute", "4h")
    due, manual = cli.start(*limits), cli.start(*limits, "--manual")
    clock.advance(hours=4)

    assert cli.ok("sweep").lines == []
    clock.advance(microseconds=1)
    assert cli.ok("sweep").lines == [due]
    assert cli.ok("sweep").lines == []

    assert cli.data("session", "info", due)["state"] == "expired"
    assert cli.data("session", "info", manual)["state"] == "active"


def test_any_command_sweeps_first(cli: Cli) -> None:
    clock = cli.freeze()
    id_ = cli.start("--ttl-absolute", "30m", "--ttl", "none")
    clock.advance(minutes=31)

    assert "has expired" in cli.refused("session", "read", id_, "app.py")


def test_extend_replaces_the_idle_time(cli: Cli) -> None:
    clock = cli.freeze()
    id_ = cli.start("--ttl", "1d")
    clock.advance(minutes=5)

    assert cli.ok("session", "extend", id_, "2h").text == f"{id_} may now lie idle for 2h\n"

    assert cli.data("session", "info", id_)["deadline"] == "2030-01-01T14:05:00.000Z"


def test_what_a_filter_would_store_otherwise_is_refused_or_let_through(cli: Cli) -> None:
    cli.commit({".gitattributes": "*.bin filter=lfs\n"})
    id_ = cli.start()
    cli.ok("session", "write", id_, "m.bin", stdin=b"\0model")

    refused = cli.error("promote", id_)

    assert (refused["code"], refused["filters"], refused["stage"]) == ("FILTERED_CONTENT", {"m.bin": "lfs"}, "staging")
    assert cli.refused("promote", id_).endswith("Promote the bytes as they are with --allow-filtered.\n")
    assert cli.data("session", "diff", id_)["filtered"] == {"m.bin": "lfs"}
    assert "m.bin: not known to be as the filter lfs would store it" in cli("session", "diff", id_).err
    assert cli.data("session", "diff", id_, "m.bin")["filtered"] == {"m.bin": "lfs"}
    cli.ok("promote", id_, "--allow-filtered")


def test_names_that_other_machines_cannot_have_are_told_of_or_refused(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "nul", stdin="x\n")

    refused = cli.error("promote", id_, "--on-hazard", "refuse")

    assert (refused["code"], refused["hazards"]) == ("HAZARDOUS_PATH", {"nul": "on Windows 'nul' is a device"})
    assert cli.data("session", "diff", id_)["hazards"] == refused["hazards"]
    assert "nul: on Windows 'nul' is a device" in cli("session", "diff", id_).err
    assert "'nul' is a hazard: on Windows 'nul' is a device" in cli("promote", id_).err


def test_a_promotion_of_more_files_than_expected_says_so_on_standard_error_unless_that_is_turned_off(cli: Cli) -> None:
    first, second = cli.start(), cli.start()
    for id_ in (first, second):
        for path in ("env/a", "env/b"):
            cli.ok("session", "write", id_, path, stdin=id_)

    said = cli("promote", first, "--many-files", "1", "--strategy", "patch")

    assert (said.status, said.err.count("all 2 files that the session touched: 2 in env/")) == (0, 1)
    assert cli.data("promote", second, "--many-files", "0")["warnings"] == []
    assert "is not a whole number" in cli("promote", second, "--many-files=-1").err


def test_the_diff_of_one_path_is_what_a_promotion_of_it_alone_would_land(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, ".gitattributes", stdin="* text\n")
    cli.ok("session", "write", id_, "app.py", stdin=b"print('v2')\r\n")

    assert "\r\n" not in cli.data("session", "diff", id_)["diff"]
    assert "\r\n" in cli.data("session", "diff", id_, "app.py")["diff"]


def test_a_rebase_prints_the_new_baseline_and_what_was_merged(cli: Cli) -> None:
    text = "".join(f"{number}\n" for number in range(20))
    (cli.project / "long.txt").write_text(text)
    cli.git("add", "long.txt")
    cli.git("commit", "-qm", "long")
    first, second = cli.start(), cli.start()
    for id_ in (first, second):
        cli.ok("session", "write", id_, "long.txt", stdin=text.replace("2\n3\n", "ours\n3\n"))
    (cli.project / "long.txt").write_text(text.replace("17\n", "theirs\n"))
    cli.git("commit", "-qam", "theirs")
    before, head = (cli.git("rev-parse", name).strip() for name in ("HEAD^", "HEAD"))

    told = cli.data("session", "rebase", first)
    kept = told.pop("checkpoint")
    shown = cli("session", "rebase", second)

    assert told == {"baseline": head, "before": before, "changed": ["long.txt"], "merged": ["long.txt"], "warnings": []}
    assert shown.text == f"{head}\nmerged long.txt\n"
    assert f"gittrix session fork {second} --at " in shown.err
    assert cli.data("session", "rebase", first)["checkpoint"] is None
    old = cli.data("session", "fork", first, "--at", str(kept))["sessionId"]
    assert cli.ok("session", "read", old, "long.txt").text == text.replace("2\n3\n", "ours\n3\n")
    (cli.project / "long.txt").write_text(text.replace("2\n3\n", "theirs\n3\n"))
    cli.git("commit", "-qam", "again")
    assert "'long.txt' would not merge as text" in cli.refused("session", "rebase", first)


def test_a_session_follows_a_repository_that_moved(cli: Cli) -> None:
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="print('v2')\n")
    moved = cli.project.rename(cli.project.with_name("moved"))

    refusal = cli.refused("promote", id_)

    assert f"`gittrix session relocate {id_} PATH`" in refusal
    assert cli.data("session", "relocate", id_, str(moved))["durablePath"] == str(moved)
    assert cli.ok("session", "relocate", id_, str(moved)).text == f"{id_} is of {moved} now\n"
    sha = cli.data("promote", id_)["sha"]
    assert cli.git("rev-parse", "HEAD", cwd=moved).strip() == sha


def test_recover_has_nothing_to_do_in_a_store_in_order(cli: Cli) -> None:
    cli.start()

    assert cli.ok("recover").text == "Everything was in order.\n"


def test_recover_removes_a_start_that_was_killed_and_reports_what_it_cannot_mend(cli: Cli) -> None:
    damaged = cli.start()
    (cli.home / "sessions" / "sess_halfastarted").mkdir()
    (cli.home / "sessions" / damaged / "events.jsonl").write_text("not an event\nnor this\n")

    ran = cli("recover")

    assert ran.status == 0
    assert ran.lines == ["removed         sess_halfastarted"]
    assert damaged in ran.err


def test_another_store_has_other_sessions(cli: Cli) -> None:
    here = cli.start()
    there = cli.ok("--store", "../elsewhere/sessions", "session", "start", "x").lines[0]

    assert [one["id"] for one in cli.data("session", "list")] == [here]
    assert [one["id"] for one in cli.data("session", "list", "--store", "../elsewhere/sessions")] == [there]


def test_several_people_are_asked_once_where_work_shall_land(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.git("-c", "user.email=bob@example.org", "commit", "-q", "--allow-empty", "--message=Bob's")
    first, second = cli.start(), cli.start()
    cli.ok("session", "write", first, "app.py", stdin="one\n")
    cli.ok("session", "write", second, "README.md", stdin="two\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(b"nonsense\ncommit\n"))
    monkeypatch.setattr(sys, "stderr", terminal)

    assert main(["promote", first]) == 0
    assert terminal.shown.count("commit, branch, patch [branch]: ") == 2
    assert "2 people wrote 'trunk'" in terminal.shown
    assert cli.ok("promote", second).text.split()[1] == "trunk"


def test_nobody_is_asked_without_a_terminal(cli: Cli) -> None:
    cli.git("-c", "user.email=bob@example.org", "commit", "-q", "--allow-empty", "--message=Bob's")
    id_ = cli.start()
    cli.ok("session", "write", id_, "app.py", stdin="one\n")

    assert cli.ok("promote", id_).text.split()[1] == "gittrix/say-hello"


class TestASweep:
    def test_postpones_what_takes_too_long_and_says_so(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = cli.freeze()
        id_ = cli.start()
        cli.ok("session", "write", id_, "app.py", stdin="the work\n")
        clock.advance(hours=5)
        monkeypatch.setenv("GITTRIX_SWEEP_BUDGET", "0s")

        ran = cli("sweep")

        assert (ran.status, ran.lines) == (0, [])
        assert ran.err == f"gittrix: Session {id_} is postponed: to archive its work takes longer than one session may take.\n"
        assert cli.data("recover")["postponed"] == [id_]
        assert cli.ok("recover").lines == [f"postponed       {id_}"]
        monkeypatch.setenv("GITTRIX_SWEEP_BUDGET", "none")
        assert cli.data("sweep") == {
            "evicted": [id_],
            "archives": {id_: [str(cli.home / "sessions" / id_ / name) for name in ("archive.patch", "archive.git")]},
            "postponed": [],
            "inUse": [],
        }

    @pytest.mark.parametrize("budget", ["30", "soon", "-1s"])
    def test_refuses_a_budget_that_is_no_time(self, cli: Cli, budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITTRIX_SWEEP_BUDGET", budget)

        error = cli.error("sweep")

        assert error["code"] == "INVALID_INPUT"
        assert error["message"].startswith(f"GITTRIX_SWEEP_BUDGET: {budget!r} is not a duration.")
