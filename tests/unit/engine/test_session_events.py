"""What listeners are told, in which order, and that nothing they do reaches the engine (rule 10)."""

from __future__ import annotations

import os
import threading

import pytest
from support.engine import Site, at_point, shell

from pytest_gittrix.engine.promotion.promotion import digest_of
from pytest_gittrix.errors import BaselineConflict
from pytest_gittrix.record.eventlog import log as log_module
from pytest_gittrix.record.eventlog.events import Event
from pytest_gittrix.record.state.records import EvictionPolicy

PUBLIC = ("session.start", "session.write", "session.commit", "session.promote", "session.evict")


def heard(site: Site, *names: str) -> list[str]:
    """The names of the events that listeners of those names hear, in order."""
    seen: list[str] = []
    for name in names:
        site.engine.on(name, lambda event, name=name: seen.append(name))
    return seen


class TestGitTrixNames:
    def test_tell_a_session_s_life_in_order(self, site: Site) -> None:
        seen = heard(site, *PUBLIC)
        session = site.start()
        session.write("app.py", "v2\n")
        session.delete("README.md")
        session.commit("mine")
        session.promote()
        assert seen == ["session.start", "session.write", "session.write", "session.commit", "session.promote", "session.evict"]

    def test_of_a_discard_are_one_evict(self, site: Site) -> None:
        session = site.start()
        seen = heard(site, *PUBLIC)
        session.discard()
        assert seen == ["session.evict"]

    def test_without_until_promote_end_with_the_promotion(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(until_promote=False))
        session.write("app.py", "v2\n")
        seen = heard(site, *PUBLIC)
        session.promote()
        assert seen == ["session.promote"]

    def test_are_silent_for_reads(self, site: Site) -> None:
        session = site.start()
        seen = heard(site, *PUBLIC)
        session.read("app.py"), session.list(), session.touched_files(), session.diff(), session.info(), session.log()
        shell(session, "echo x > app.py")
        assert seen == []

    def test_are_silent_for_a_refused_promotion(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        site.durable.commit({"app.py": "rival\n"})
        seen = heard(site, *PUBLIC, "promote.conflict")
        with pytest.raises(BaselineConflict):
            session.promote()
        assert seen == ["promote.conflict"]

    def test_carry_what_happened(self, site: Site) -> None:
        events: dict[str, Event] = {}
        for name in PUBLIC:
            site.engine.on(name, lambda event, name=name: events.__setitem__(name, event))
        session = site.start()
        session.write("app.py", "v2\n")
        sha = session.commit("mine")
        result = session.promote()
        assert {event.stream for event in events.values()} == {session.id}
        assert events["session.write"].data == {"path": "app.py", "op": "write"}
        assert events["session.commit"].data["sha"] == sha
        assert (events["session.promote"].data["commit"], events["session.promote"].data["branch"]) == (result.sha, "main")


class TestListeners:
    def test_hear_after_it_is_stored(self, site: Site) -> None:
        stored: list[bool] = []
        site.engine.on("*", lambda event: stored.append(event in site.events(event.stream)))
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        assert len(stored) > 5
        assert all(stored)

    def test_of_a_star_hear_everything_once_and_in_order(self, site: Site) -> None:
        seen: list[int] = []
        site.engine.on("*", lambda event: seen.append(event.seq))
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        assert seen == list(range(len(site.events(session.id))))

    def test_can_stop_listening_twice(self, site: Site) -> None:
        seen: list[str] = []
        stop = site.engine.on("session.write", lambda event: seen.append(event.data["path"]))
        session = site.start()
        session.write("one", "1")
        stop()
        stop()
        session.write("two", "2")
        assert seen == ["one"]

    def test_can_stop_listening_while_they_are_told(self, site: Site) -> None:
        seen: list[str] = []
        stops = [site.engine.on("session.write", lambda event: (seen.append("a"), stops[0]()))]
        site.engine.on("session.write", lambda event: seen.append("b"))
        session = site.start()
        session.write("one", "1")
        session.write("two", "2")
        assert seen == ["a", "b", "b"]

    @pytest.mark.parametrize("name", ["promote.intent", "promote.done", "session.promote", "*"])
    def test_that_raise_undo_nothing_and_are_reported(self, site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        reported: list[type[BaseException]] = []
        monkeypatch.setattr("sys.unraisablehook", lambda unraisable: reported.append(unraisable.exc_type))
        monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))
        heard_too: list[str] = []

        def raising(event: Event) -> None:
            raise ZeroDivisionError

        session = site.start()
        session.write("app.py", "v2\n")
        site.engine.on(name, raising)
        site.engine.on("session.promote", lambda event: heard_too.append(event.type))
        result = session.promote()
        assert site.durable.head() == result.sha
        assert site.state(session.id).state == "promoted"
        assert heard_too == ["promote.done"]
        assert set(reported) == {ZeroDivisionError}

    def test_of_one_engine_do_not_hear_another(self, site: Site) -> None:
        seen = heard(site, "*")
        site.another().start_session("elsewhere")
        assert seen == []


class TestTheStoredLog:
    def test_of_a_promotion_is_complete(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        types = site.types(session.id)
        assert types[:4] == ["session.created", "workspace.ready", "session.write", "promote.intent"]
        assert sorted(types[4:]) == ["promote.done", "workspace.removed", "worktree.updated"]
        assert types[-1] == "workspace.removed"

    def test_has_no_gap(self, site: Site) -> None:
        session = site.start()
        other = site.another().get_session(session.id)
        for number in range(5):
            session.write(f"a{number}", "a")
            other.write(f"b{number}", "b")
        session.discard()
        assert [event.seq for event in site.events(session.id)] == list(range(len(site.events(session.id))))

    def test_says_who_did_it(self, site: Site) -> None:
        session = site.start()
        session.write("one", "1")
        session.for_agent().write("two", "2")
        assert [(event.data["path"], event.actor) for event in site.events(session.id) if event.type == "session.write"] == [
            ("one", "human"),
            ("two", "agent"),
        ]

    def test_says_that_a_person_promoted(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        actors = {event.type: event.actor for event in site.events(session.id)}
        assert (actors["promote.intent"], actors["promote.done"]) == ("human", "human")

    @pytest.mark.parametrize(
        ("end", "types"),
        [
            (lambda session: session.promote(), ["promote.intent", "promote.done"]),
            (lambda session: session.promote(strategy="patch"), ["promote.done"]),
            (lambda session: session.discard(), ["session.ended"]),
        ],
        ids=["promoted", "patch", "discarded"],
    )
    def test_of_an_end_is_on_the_disk_before_anything_is_built_on_it(  # type: ignore[no-untyped-def]
        self, site: Site, end, types: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = site.another(durability="full").start_session("fix the bug")
        session.write("app.py", "v2\n")
        synced: list[str] = []
        monkeypatch.setattr(log_module, "_sync_data", lambda _fd: synced.append(site.types(session.id)[-1]))
        end(session)
        assert synced == types

    def test_says_that_a_person_met_a_conflict_and_where(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        rival = site.durable.commit({"app.py": "rival\n"})
        with pytest.raises(BaselineConflict):
            session.promote()
        last = site.events(session.id)[-1]
        assert (last.type, last.actor) == ("promote.conflict", "human")
        assert last.data == {"paths_digest": digest_of(["app.py"]), "count": 1, "head": rival}

    def test_calls_a_set_of_paths_the_same_whatever_their_order(self) -> None:
        assert digest_of(["b", "a"]) == digest_of(["a", "b"])
        assert digest_of(["a", "b"]) != digest_of(["ab"])
        assert len(digest_of([os.fsdecode(b"\xff")])) == 32

    def test_of_writers_at_once_is_whole(self, site: Site) -> None:
        session = site.start()
        handles = [site.another().get_session(session.id) for _ in range(4)]
        together = threading.Barrier(4)

        def write(number: int) -> None:
            together.wait()
            for turn in range(5):
                handles[number].write(f"{number}-{turn}", "x")

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len([event for event in site.events(session.id) if event.type == "session.write"]) == 20
        assert len(session.touched_files()) == 20

    def test_names_a_stale_checkout(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")

        def spoil() -> None:
            # After everything was judged clean, the work tree becomes a place where nothing can be written.
            (site.durable.path / "app.py").unlink()
            (site.durable.path / "app.py").mkdir()
            (site.durable.path / "app.py" / "occupied").touch()

        with at_point("land:moved", spoil):
            result = session.promote()
        assert site.durable.head() == result.sha
        assert any(str(site.durable.path) in warning for warning in result.warnings)
        assert "worktree.stale" in site.types(session.id)
