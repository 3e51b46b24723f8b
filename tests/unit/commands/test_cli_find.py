"""Sessions found at the terminal: by who worked in them, when and on what; as a line, and as a tree."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from support.cli import TOAST, WHO, Cli, cells, handed_on, ids

from pytest_gittrix.commands.render import record_table


class TestList:
    def test_finds_the_sessions_for_which_all_holds_newest_first(self, cli: Cli) -> None:
        clock = cli.freeze()
        first = cli.start(*WHO)
        clock.advance(minutes=1)
        cli.start("--agent", TOAST, "--rig", "other")
        cli.start("--agent", "mayor", "--rig", "gastown")
        clock.advance(minutes=1)
        last = cli.start(*WHO)

        assert ids(cli.data("session", "list", "--agent", TOAST, "--rig", "gastown")) == [last, first]
        assert ids(cli.data("session", "list", "--work-unit", "td-7", "--limit", "1")) == [last]
        assert ids(cli.data("session", "list", "--limit", "0"))[0] == last
        assert ids(cli.data("session", "list"))[0] == first

    def test_shows_agent_and_rig_where_a_session_has_one(self, cli: Cli) -> None:
        cli.start()
        assert cells(cli.ok("session", "list").lines[0])[-1] == "TOUCHED"
        cli.start(*WHO)
        heading, first, last = cli.ok("session", "list").lines
        assert cells(heading)[-2:] == ["AGENT", "RIG"]
        assert "gastown" not in first
        assert cells(last)[-2:] == [TOAST, "gastown"]
        heading, only = cli.ok("session", "list", "--agent", TOAST, "--rig", "gastown", "--since", "1h").lines
        assert (cells(heading)[-2:], cells(only)[-2:]) == (["AGENT", "RIG"], [TOAST, "gastown"])

    def test_shows_every_field_of_the_records_of_another_packages_view(self) -> None:
        table = record_table(
            [{"ticket": "a", "since": "monday"}, {"ticket": "b", "closed": True}], "acme", datetime(2030, 1, 1, tzinfo=UTC)
        )

        assert tuple(table.headings) == ("ticket", "since", "closed")
        assert [*table.rows] == [("a", "monday", ""), ("b", "", "yes")]

    def test_looks_into_live_workspaces_when_it_is_asked_to(self, cli: Cli) -> None:
        ended, stashed, tidy, gone = (cli.start() for _ in range(4))
        cli.ok("session", "discard", ended)
        (cli.workspace(stashed) / "app.py").write_text("in a stash\n")
        cli.git("-c", "user.name=agent", "-c", "user.email=a@localhost", "stash", cwd=cli.workspace(stashed))
        cli.workspace(gone).rename(cli.root / "away")

        listed = cli("session", "list", "--beside", "--json").envelope["data"]
        notes = cli("session", "list", "--beside").err

        beside = {one["id"]: one.get("beside") for one in listed}
        assert beside[ended] is None
        assert beside[tidy] == []
        assert [line.partition(" is ")[0] for line in beside[stashed]] == ["stash 0"]
        assert "cannot be looked into" in beside[gone][0]
        assert f"Not part of {stashed}: stash 0 is " in notes
        assert all("beside" not in one for one in cli.data("session", "list"))
        assert cli.data("session", "list", "--agent", "nobody") == []

    def test_since_takes_in_its_moment_and_until_does_not(self, cli: Cli) -> None:
        clock = cli.freeze()
        first = cli.start()
        clock.advance(hours=1)
        second = cli.start()

        assert ids(cli.data("session", "list", "--since", "1h")) == [second, first]
        assert ids(cli.data("session", "list", "--until", "1h")) == []
        assert ids(cli.data("session", "list", "--since", "59m")) == [second]
        assert ids(cli.data("session", "list", "--until", "2030-01-01T13:00:00Z")) == [first]
        assert ids(cli.data("session", "list", "--since", "2030-01-01T14:00:00.000+01:00")) == [second]
        assert ids(cli.data("session", "list", "--since", "9999999d")) == [second, first]

    def test_a_limit_counts_what_is_left_after_all_else(self, cli: Cli) -> None:
        clock = cli.freeze()
        gone = cli.start()
        cli.ok("session", "discard", gone)
        clock.advance(minutes=1)
        cli.repository("other")
        cli.start("-d", "../other")

        assert ids(cli.data("session", "list", "--limit", "1", "--status", "discarded")) == [gone]
        assert ids(cli.data("session", "list", "--limit", "1", "-d", ".")) == [gone]

    def test_an_outcome_is_what_somebody_said_or_what_became_of_the_work(self, cli: Cli) -> None:
        clock = cli.freeze()
        said, crashed, promoted = cli.start(), cli.start(), cli.start()
        cli.ok("session", "discard", said, "--outcome", "done")
        cli.ok("session", "discard", crashed, "--outcome", "crash")
        cli.ok("session", "write", promoted, "app.py", stdin="x\n")
        cli.ok("promote", promoted)
        clock.advance(minutes=1)

        assert sorted(ids(cli.data("session", "list", "--outcome", "done"))) == sorted([said, promoted])
        assert sorted(ids(cli.data("session", "list", "--outcome", "done", "--as", "gastown"))) == sorted([said, promoted])
        assert len(cli.data("session", "list", "--outcome", "done", "--as", "gastown", "--limit", "1")) == 1
        assert ids(cli.data("session", "list", "--outcome", "crash", "--as", "gastown")) == [crashed]

    def test_gas_town_sees_agents_their_work_and_how_long_they_are_silent(self, cli: Cli) -> None:
        clock = cli.freeze()
        done, red, yellow = cli.start(*WHO), cli.start("--agent", "mayor"), cli.start()
        cli.ok("session", "discard", done, "--outcome", "done")
        clock.advance(minutes=5)
        cli.ok("session", "record", yellow, "user_message", stdin='{"text": "hello"}')
        clock.advance(minutes=5)
        green = cli.start()

        heading, *rows = cli.ok("session", "list", "--as", "gastown").lines

        assert cells(heading) == ["ID", "AGENT", "STARTED", "OUTCOME", "WORK", "UNIT", "ACTIVITY"]
        assert sorted(map(cells, rows)) == sorted(
            [
                [done, TOAST, "2030-01-01T12:00:00Z", "done", "td-7"],
                [red, "mayor", "2030-01-01T12:00:00Z", "red"],
                [yellow, "2030-01-01T12:00:00Z", "yellow"],
                [green, "2030-01-01T12:10:00Z", "green"],
            ]
        )

    def test_gas_town_gets_its_own_records(self, cli: Cli) -> None:
        id_ = cli.start(*WHO)

        (record,) = cli.data("session", "list", "--as", "gastown")

        assert record == cli.data("session", "show", id_, "--as", "gastown")

    def test_pixir_sees_conversations(self, cli: Cli) -> None:
        id_ = cli.start()
        cli.ok("session", "record", id_, "user_message", stdin='{"text": "hello"}')

        heading, row = cli.ok("session", "list", "--as", "pixir").lines

        assert cells(heading) == ["ID", "ROLE", "SEQ", "TURN", "RUNNING", "FORK", "ROOT", "WORKSPACE"]
        assert cells(row) == [id_, "build", "1", "no", id_, str(cli.workspace(id_))]

    def test_an_orchestrator_sees_where_its_issues_stand(self, cli: Cli) -> None:
        cli.freeze()
        id_ = cli.start("--work-unit", "INT-7")
        cli.ok("session", "identify", id_, "project=web", "topic_branch=fix/int-7")

        heading, row = cli.ok("session", "list", "--as", "orchestrator").lines
        (record,) = cli.data("session", "list", "--as", "orchestrator")

        assert cells(heading) == ["ID", "PROJECT", "STATUS", "ACTIVITY", "SINCE", "ISSUE", "BRANCH", "WORKSPACE"]
        assert cells(row) == [id_, "web", record["status"], "0s", "INT-7", "fix/int-7", str(cli.workspace(id_))]
        assert record == cli.data("session", "show", id_, "--as", "orchestrator")

    def test_botminter_sees_members_at_work(self, cli: Cli) -> None:
        id_ = cli.start("--agent", "alice")

        heading, row = cli.ok("session", "list", "--as", "botminter").lines
        (record,) = cli.data("session", "list", "--as", "botminter")

        assert cells(heading) == ["ID", "MEMBER", "TYPE", "STATE", "CREATED", "WORKSPACE"]
        assert cells(row) == [id_, "alice", "Interactive", "Active", record["created_at"], str(cli.workspace(id_))]
        assert record == cli.data("session", "show", id_, "--as", "botminter")

    @pytest.mark.parametrize("view", ["gastown", "pixir", "orchestrator"])
    def test_a_session_of_a_typescript_store_is_in_each_list(self, cli: Cli, view: str) -> None:
        id_ = cli.start()
        cli.ok("session", "discard", id_)
        (cli.home / "sessions" / id_ / "events.jsonl").unlink()
        record = cli.home / "sessions" / id_ / "metadata.json"
        record.write_text(json.dumps({key: value for key, value in json.loads(record.read_text()).items() if key != "log"}))

        assert ids(cli.data("session", "list", "--as", view)) == [id_]
        assert cli.data("session", "show", id_, "--as", view)["id"] == id_


class TestFind:
    def test_finds_the_sessions_of_an_agent_newest_first(self, cli: Cli) -> None:
        clock = cli.freeze()
        old = cli.start(*WHO)
        cli.start("--agent", "mayor")
        clock.advance(hours=2)
        new = cli.start("--agent", TOAST, "--rig", "other")

        assert ids(cli.data("session", "find", "--agent", TOAST)) == [new, old]
        assert ids(cli.data("session", "find", "--agent", TOAST, "-n", "1")) == [new]
        assert ids(cli.data("session", "find", "--agent", TOAST, "--since", "1h")) == [new]
        assert ids(cli.data("session", "find", "--agent", TOAST, "--rig", "gastown")) == [old]
        assert cells(cli.ok("session", "find", "--agent", TOAST).lines[2])[:2] == [old, TOAST]

    def test_gives_the_records_of_gas_town(self, cli: Cli) -> None:
        id_ = cli.start(*WHO)

        assert cli.data("session", "find", "--agent", TOAST) == [cli.data("session", "show", id_, "--as", "gastown")]

    def test_of_an_agent_without_sessions_finds_none(self, cli: Cli) -> None:
        assert cli.ok("session", "find", "--agent", "nobody").text == "There are no sessions.\n"


class TestChain:
    def test_draws_a_line_oldest_first(self, cli: Cli) -> None:
        clock = cli.freeze()
        line = [cli.start(*WHO)]
        for _ in range(2):
            clock.advance(minutes=1)
            line.append(handed_on(cli, line[-1]))

        _, *rows = cli.ok("session", "chain", "td-7").lines

        assert [cells(row)[:2] for row in rows] == [["┌", line[0]], ["├", line[1]], ["└", line[2]]]
        assert "handoff" in rows[0]
        assert "green" in rows[2]

    def test_is_named_by_its_id_by_any_of_its_sessions_or_by_their_work(self, cli: Cli) -> None:
        clock = cli.freeze()
        first = cli.start(*WHO)
        clock.advance(minutes=1)
        second = handed_on(cli, first)

        for name in (first, second, second[:9], "td-7"):
            assert ids(cli.data("session", "chain", name)) == [first, second]

    def test_is_found_by_its_id_when_its_first_session_is_gone(self, cli: Cli) -> None:
        first = cli.start()
        second = handed_on(cli, first)
        (cli.home / "sessions" / first).rename(cli.root / "gone")

        assert ids(cli.data("session", "chain", first)) == [second]

    def test_the_lines_of_a_work_unit_are_drawn_apart(self, cli: Cli) -> None:
        clock = cli.freeze()
        first = cli.start(*WHO)
        clock.advance(minutes=1)
        alone = cli.start(*WHO)
        clock.advance(minutes=1)
        second = handed_on(cli, first)

        _, *rows = cli.ok("session", "chain", "td-7").lines

        assert [cells(row)[:2] for row in rows] == [["┌", first], ["└", second], ["─", alone]]
        assert ids(cli.data("session", "chain", "td-7")) == [first, alone, second]

    def test_a_session_comes_before_a_work_unit_and_that_before_a_beginning(self, cli: Cli) -> None:
        clock = cli.freeze()
        cli.start("--id", "td-7")
        other = cli.start("--work-unit", "td-7")
        clock.advance(minutes=1)
        worked = cli.start("--work-unit", "td")

        assert ids(cli.data("session", "chain", "td-7")) == ["td-7"]
        assert ids(cli.data("session", "chain", "td")) == [worked]
        assert ids(cli.data("session", "chain", "td-")) == ["td-7"]
        assert ids(cli.data("session", "chain", other)) == [other]

    @pytest.mark.parametrize("name", ["nothing", "owner/repo#12", "../x"])
    def test_what_is_no_line_is_not_found(self, cli: Cli, name: str) -> None:
        cli.start()

        assert cli.error("session", "chain", name)["code"] == "SESSION_NOT_FOUND"


class TestTree:
    def test_draws_what_came_of_a_session(self, cli: Cli) -> None:
        clock = cli.freeze()
        first = cli.start()
        second = handed_on(cli, first)
        cli.ok("session", "discard", second, "--outcome", "crash")
        clock.advance(minutes=1)
        third = cli.start("--parent", second)
        clock.advance(minutes=1)
        forked = cli.ok("session", "fork", second, "--at", "1", "--files", "baseline").lines[0]

        assert cli.ok("session", "tree", first).lines == [
            f"{first}  discarded (handoff)",
            f"└─ {second}  by a handoff, discarded (crash)",
            f"   ├─ {third}  after a crash, active",
            f"   └─ {forked}  fork at 1, active",
        ]
        assert cli.ok("session", "tree", first, "--depth", "1").lines[1].endswith(", there is more below")
        data = cli.data("session", "tree", first)
        assert (data["id"], ids(data["children"][0]["children"])) == (first, [third, forked])

    def test_marks_what_is_not_there(self, cli: Cli) -> None:
        first = cli.start()
        second = handed_on(cli, first)
        (cli.home / "sessions" / first).rename(cli.root / "gone")

        assert cli.ok("session", "tree", second).lines == [f"{second}  by a handoff, active, its parent {first} is not in the store"]


@pytest.mark.parametrize(
    "words",
    [
        ("session", "list", "--agent"),
        ("session", "list", "--rig"),
        ("session", "list", "--work-unit"),
        ("session", "find", "--agent"),
        ("session", "chain"),
        ("member", "list", "--member"),
        ("member", "history", "--member"),
        ("member", "stop", "--member"),
    ],
)
def test_a_name_that_is_no_utf_8_is_refused_by_its_code(cli: Cli, words: tuple[str, ...]) -> None:
    cli.start("--agent", "caf\u00e9")

    assert cli.error(*words, "caf\udce9")["code"] == "INVALID_INPUT"
    assert "Traceback" not in cli.refused(*words, "caf\udce9")


def test_overlaps_of_live_sessions_are_shown_and_the_list_has_a_column_of_them(cli: Cli) -> None:
    one, two, three = (cli.start() for _ in range(3))
    assert "overlaps" not in cli.ok("session", "list").text
    for id_ in (one, two):
        cli.ok("session", "write", id_, "app.py", stdin=f"print({id_!r})\n")
    cli.commit({"app.py": "print('theirs')\n"})

    found = {each["id"]: each for each in cli.data("session", "overlaps")}
    shown = cli.ok("session", "overlaps").text

    assert {id_: each["ends"] for id_, each in found.items()} == {one: "conflict", two: "conflict", three: "nothing"}
    assert found[one]["durable"] == {"app.py": "text"}
    assert found[one]["sessions"] == {two: ["app.py"]}
    assert cli.data("session", "overlaps", "--look") == [*found.values()]
    assert f"{two}: app.py" in shown
    assert "app.py (text)" in shown
    assert cli.ok("session", "list").text.count("  1 session") == cli.ok("session", "list", "--limit", "0").text.count("  1 session") == 2
    cli.ok("session", "discard", one, "--force")
    cli.ok("session", "discard", two, "--force")
    cli.ok("session", "discard", three, "--force")
    assert cli.data("session", "overlaps") == []
