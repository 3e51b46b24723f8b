"""The thirteen rules that may never break, each in its sharpest small form (docs/explanation has them in full)."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.engine import (
    EXECUTABLE,
    FILE,
    SUBMODULE,
    SYMLINK,
    Site,
    at_point,
    edited,
    in_child,
    kill_at,
    open_site,
    shell,
)

from pytest_gittrix.errors import (
    BaselineConflict,
    GittrixError,
    InvalidInput,
    LogDamaged,
    PathNotFound,
    PromoteFailed,
    SessionExpired,
    WorktreeDirty,
    WriteRejected,
)
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.record.state.records import EvictionPolicy


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path) as opened:
        yield opened


class TestRule1ExactlyOneCommit:
    def test_kinds_modes_and_bytes_are_the_workspace_s(self, site: Site) -> None:
        session, head = site.start(), site.durable.head()
        shell(session, "printf '\\0\\377' > bytes; chmod +x app.py; ln -sfn /etc/passwd link; rm README.md")
        result = session.promote()
        assert site.durable.parents(result.sha) == [head]
        changed = site.durable.changed(result.sha)
        assert {path: entry and entry[0] for path, entry in changed.items()} == {
            "README.md": None,
            "app.py": EXECUTABLE,
            "bytes": FILE,
            "link": SYMLINK,
        }
        assert (site.durable.read("bytes"), site.durable.read("link")) == (b"\0\xff", b"/etc/passwd")

    def test_a_submodule_pointer_of_another_s_survives(self, tmp_path: Path) -> None:
        with open_site(tmp_path, {"app.py": "v1\n", "lib": (SUBMODULE, "1" * 40)}) as site:
            session = site.start()
            session.write("app.py", "v2\n")
            site.durable.commit({"lib": (SUBMODULE, "2" * 40)})
            assert [*site.durable.changed(session.promote().sha)] == ["app.py"]
            assert site.durable.tree()["lib"] == (SUBMODULE, "2" * 40)

    @pytest.mark.parametrize(
        "human",
        [
            "git checkout -q --detach",
            "git checkout -q -b elsewhere; echo mine > app.py; git add app.py; echo more >> app.py",
            "echo mine > app.py",
            "echo mine > app.py; git add app.py; git show HEAD:app.py > app.py",
            "git rm -q --cached app.py",
            "rm .git/index",
            "git symbolic-ref HEAD refs/heads/unborn",
            "git update-index --assume-unchanged app.py; echo mine > app.py",
            "git config core.worktree ..; true",
            "echo x > .git/MERGE_HEAD",
        ],
    )
    def test_whatever_state_durable_is_in_it_does_this_or_nothing(self, site: Site, human: str) -> None:
        session, head = site.start(), site.durable.head()
        session.write("app.py", "v2\n")
        in_durable(site, human)
        index, work = site.durable.git_dir / "index", site.durable.path / "app.py"
        before = site.durable.fingerprint()
        mine = (index.read_bytes() if index.exists() else b"", work.read_bytes())
        try:
            result = session.promote()
        except GittrixError:
            assert site.durable.fingerprint() == before
        else:
            assert site.durable.git("rev-parse", "refs/heads/main^") == head
            assert site.durable.git("diff", "--name-only", head, result.sha) == "app.py"
            if (site.durable.git_dir / "HEAD").read_text() != "ref: refs/heads/main\n":
                assert (index.read_bytes() if index.exists() else b"", work.read_bytes()) == mine


def in_durable(site: Site, script: str) -> None:
    """What the human does in the checkout."""
    subprocess.run(["/bin/sh", "-ec", script], cwd=site.durable.path, env=hermetic_env(), check=True, timeout=60)


class TestRule2NoCommitIsLost:
    @pytest.mark.parametrize("point", ["promote:head-read", "promote:drift-checked", "promote:intent-logged"])
    @pytest.mark.parametrize("bare", [False, True])
    def test_whenever_the_rival_commits(self, tmp_path: Path, point: str, bare: bool) -> None:
        with open_site(tmp_path, bare=bare) as site:
            session = site.start()
            session.write("app.py", "v2\n")
            rivals: list[str] = []
            with at_point(point, lambda: rivals.append(site.durable.commit({"rival.txt": "r\n"}))):
                result = session.promote()
            assert site.durable.git("rev-list", "-2", "main").split() == [result.sha, *rivals]

    def test_with_many_promotions_at_once(self, site: Site) -> None:
        sessions = [site.another().start_session(f"task {number}") for number in range(4)]
        for number, session in enumerate(sessions):
            session.write(f"{number}.txt", "x\n")
        together, made = threading.Barrier(4), list[str]()

        def promote(number: int) -> None:
            together.wait()
            made.append(sessions[number].promote().sha)

        threads = [threading.Thread(target=promote, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(site.durable.git("rev-list", "-4", "main").split()) == sorted(made)
        assert len(set(made)) == 4
        assert site.durable.status() == []

    def test_a_tag_of_the_same_name_is_never_moved(self, site: Site) -> None:
        site.durable.git("tag", "main")
        tag = site.durable.git("rev-parse", "refs/tags/main")
        session = site.start()
        session.write("app.py", "v2\n")
        result = session.promote()
        assert site.durable.head() == result.sha
        assert site.durable.git("rev-parse", "refs/tags/main") == tag


class TestRule3Touched:
    def test_is_the_tree_difference_whatever_git_was_told(self, site: Site) -> None:
        session = site.start()
        shell(session, "mv app.py moved.py; echo x > run.sh; git add -A; git commit -qm x; echo '*' > .git/info-exclude")
        shell(session, "mkdir -p .git/info; echo '*' > .git/info/exclude; git update-index --skip-worktree run.sh; echo n > new")
        assert session.touched_files() == ["app.py", "moved.py", "new", "run.sh"]

    def test_a_vanished_workspace_is_an_error_and_no_deletion(self, site: Site) -> None:
        session, head = site.start(), site.durable.head()
        session.write("app.py", "v2\n")
        os.rename(site.store / session.id / "workspace", site.root / "elsewhere")
        with pytest.raises(GittrixError, match="gone"):
            session.promote()
        assert site.durable.head() == head

    def test_names_are_bytes(self, site: Site) -> None:
        session = site.start()
        raw = b"\xff\xfe not utf-8"
        with open(os.path.join(os.fsencode(session.workspace_path), raw), "wb") as file:  # type: ignore[arg-type]
            file.write(b"x")
        assert [os.fsencode(name) for name in session.touched_files()] == [raw]


class TestRule4ConflictIfAndOnlyIf:
    @pytest.mark.parametrize(
        ("rival", "conflict"),
        [
            ({"src/util.py": "rival\n"}, True),
            ({"src/util.py": None}, True),
            ({"src/util.py": (EXECUTABLE, edited())}, True),
            ({"src/util.py": edited(3)}, True),
            ({"src/util.py": None, "src/deep/er.txt": None, "src": "a file\n"}, True),
            ({"src/util.py": None, "src/util.py/inner": "x\n"}, True),
            ({"src/other.py": "x\n", "src/deep/er.txt": None}, False),
            ({"src/util.pyc": "x\n"}, False),
        ],
    )
    def test_baseline_and_head_differ_at_a_selected_path(self, site: Site, rival: dict, conflict: bool) -> None:  # type: ignore[type-arg]
        session = site.start()
        session.write("src/util.py", edited(3))
        head = site.durable.commit(rival)
        if not conflict:
            assert site.durable.parents(session.promote().sha) == [head]
            return
        with pytest.raises(BaselineConflict) as caught:
            session.promote()
        assert caught.value.kinds.keys() == {"src/util.py"}
        assert site.durable.head() == head

    def test_drift_that_ends_where_it_began_is_none(self, site: Site) -> None:
        session = site.start()
        session.write("src/util.py", edited(3))
        site.durable.commit({"src/util.py": None})
        site.durable.commit({"src/util.py": edited()})
        assert session.promote().sha == site.durable.head()


class TestRule5TheHumansFilesAreTheirOwn:
    def test_staged_unstaged_and_untracked_work_is_not_touched(self, site: Site) -> None:
        in_durable(site, "echo s > run.sh; git add run.sh; echo u > README.md; echo n > untracked; git stash list")
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        assert sorted(site.durable.status()) == [" M README.md", "?? untracked", "M  run.sh"]
        assert (site.durable.path / "app.py").read_text() == "v2\n"

    def test_work_in_the_way_refuses_before_anything_moves(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        in_durable(site, "echo mine > app.py")
        before = site.durable.fingerprint()
        with pytest.raises(WorktreeDirty, match=r"app\.py"):
            session.promote()
        assert site.durable.fingerprint() == before

    def test_no_hook_filter_or_signing_program_runs(self, site: Site) -> None:
        trap = site.root / "trapped"
        hooks = "pre-commit post-commit reference-transaction post-checkout update post-index-change"
        in_durable(site, f"mkdir -p .git/hooks; for h in {hooks}; do printf '#!/bin/sh\\ntouch {trap}\\n' > .git/hooks/$h; done")
        in_durable(site, "chmod +x .git/hooks/*; mkdir -p .git/info; echo '* filter=x' > .git/info/attributes")
        in_durable(site, f"git config commit.gpgSign true; git config gpg.program 'touch {trap}'")
        in_durable(site, f"git config filter.x.clean 'touch {trap}'; git config filter.x.smudge 'touch {trap}'")
        trap.unlink(missing_ok=True)
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote(allow_filtered=True)
        assert not trap.exists()


class TestRule6NothingReachesDurable:
    def test_whatever_the_agent_does_in_a_clone(self, site: Site) -> None:
        before = site.durable.fingerprint()
        session, other = site.start(), site.start()
        shell(
            session, "git config user.name x; git commit -q --allow-empty -m x; git tag t; git gc -q --prune=now; rm -rf src; ln -s / src"
        )
        shell(session, "echo 'ref: refs/heads/../../../x' > .git/HEAD; echo junk > .git/config; echo junk > .git/index")
        shell(session, "echo / > .git/objects/info/alternates")
        session.touched_files()
        session.discard()
        assert site.durable.fingerprint() == before
        assert other.touched_files() == []

    def test_a_reference_moved_without_a_promotion_is_reported(self, site: Site) -> None:
        session = site.start(workspace="worktree")
        shell(session, "git branch planted")
        assert [move.ref for move in session.moved_refs()] == ["refs/heads/planted"]


class TestRule7EndsAreAbsorbing:
    @pytest.mark.parametrize("end", ["promote", "discard", "evict"])
    def test_and_a_handle_resurrects_nothing(self, site: Site, end: str) -> None:
        session = site.start()
        agent = session.for_agent()
        session.write("app.py", "v2\n")
        {"promote": session.promote, "discard": session.discard, "evict": lambda: site.engine.evict(session.id)}[end]()
        log = (site.store / session.id / "events.jsonl").read_bytes()
        for act in (lambda: agent.write("app.py", "x"), agent.touched_files, lambda: session.extend(timedelta(days=1)), session.promote):
            with pytest.raises(SessionExpired):
                act()
        assert (site.store / session.id / "events.jsonl").read_bytes() == log
        assert not (site.store / session.id / "workspace").exists()

    def test_a_deleted_file_reads_as_absent(self, site: Site) -> None:
        session = site.start(workspace="lazy")
        session.delete("app.py")
        with pytest.raises(PathNotFound):
            session.read("app.py")

    def test_an_untouched_selection_is_an_error_that_names_it(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        with pytest.raises(PromoteFailed, match=r"README\.md"):
            session.promote(files=["app.py", "README.md"])


class TestRule8TheSweep:
    def test_is_exact_to_the_microsecond_and_not_stopped_by_a_bad_record(self, site: Site) -> None:
        bad, good = site.start(), site.start()
        (site.store / bad.id / "events.jsonl").write_text("broken\nbroken\n")
        site.clock.advance(hours=4)
        assert site.engine.sweep() == []
        site.clock.advance(microseconds=1)
        assert site.engine.sweep() == [good.id]

    def test_counts_file_changes_and_archives_first(self, site: Site) -> None:
        session = site.start()
        site.clock.advance(hours=3)
        shell(session, "echo v2 > app.py")
        site.clock.advance(hours=4)
        assert site.engine.sweep() == []
        site.clock.advance(microseconds=1)
        assert site.engine.sweep() == [session.id]
        assert sorted(os.listdir(site.store / session.id)) == ["archive.git", "archive.patch", "events.jsonl", "metadata.json"]


class TestRule9AfterAKill:
    @pytest.mark.parametrize(
        ("point", "state"), [("land:packed", "active"), ("land:moved", "promoted"), ("worktree:files-written", "promoted")]
    )
    def test_the_next_init_settles_it_without_help(self, site: Site, point: str, state: str) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        kill_at(point, session.promote)
        site.another().init()
        assert site.state(session.id).state == state
        assert site.durable.status() == []
        assert site.durable.leftovers() == []
        if state == "active":
            assert site.durable.contains(session.promote().sha)

    def test_the_intent_is_logged_before_the_swap(self, site: Site) -> None:
        session, head = site.start(), site.durable.head()
        session.write("app.py", "v2\n")
        kill_at("ref:locked", session.promote)
        assert site.durable.head() == head
        assert site.types(session.id)[-1] == "promote.intent"


class TestRule10TheLog:
    def test_shows_an_event_only_once_it_is_stored(self, site: Site) -> None:
        shown: list[bool] = []
        site.engine.on(
            "*", lambda event: shown.append(b'"seq":%d,' % event.seq in (site.store / event.stream / "events.jsonl").read_bytes())
        )
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        assert shown
        assert all(shown)

    def test_a_damaged_middle_is_reported_and_never_skipped(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.write("b", "b\n")
        log = site.store / session.id / "events.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"app.py"', b'"App.py"'))
        with pytest.raises(LogDamaged, match="line 3"):
            site.another().get_session(session.id)

    def test_a_torn_end_is_mended_by_appending(self, site: Site) -> None:
        session = site.start()
        with open(site.store / session.id / "events.jsonl", "ab") as log:
            log.write(b'{"v":1,"seq"')
        session.write("app.py", "v2\n")
        events = site.events(session.id)
        assert [event.type for event in events[-2:]] == ["log.recovered", "session.write"]
        assert [event.seq for event in events] == list(range(len(events)))


class TestRule11BadInput:
    @pytest.mark.parametrize(
        ("act", "error"),
        [
            (lambda site, session: session.write("../x", "x"), WriteRejected),
            (lambda site, session: session.write(b"x", "x"), InvalidInput),
            (lambda site, session: session.write(".git/config", "x"), WriteRejected),
            (lambda site, session: session.commit(" "), InvalidInput),
            (lambda site, session: session.extend(3600), InvalidInput),
            (lambda site, session: session.promote(strategy="x"), InvalidInput),
            (lambda site, session: session.promote(on_overlap="x"), InvalidInput),
            (lambda site, session: session.promote(files="app.py"), InvalidInput),
            (lambda site, session: session.promote(hunks={"app.py": [7]}), InvalidInput),
            (lambda site, session: site.start(workspace="x"), InvalidInput),
            (lambda site, session: site.start(durable_branch="no such"), InvalidInput),
            (lambda site, session: site.engine.get_session("../x"), InvalidInput),
            (lambda site, session: site.engine.evict(session.id, "gone"), InvalidInput),
            (lambda site, session: EvictionPolicy(ttl_idle=5), InvalidInput),
        ],
    )
    def test_gets_a_typed_error_and_changes_nothing(self, site: Site, act, error: type[GittrixError]) -> None:  # type: ignore[no-untyped-def]
        session = site.start()
        session.write("app.py", "v2\n")
        before, log = site.durable.fingerprint(), site.events(session.id)
        with pytest.raises(error) as caught:
            act(site, session)
        assert str(caught.value)
        assert (site.durable.fingerprint(), site.events(session.id)) == (before, log)
        assert session.touched_files() == ["app.py"]

    def test_a_record_under_another_s_name_is_refused(self, site: Site) -> None:
        session = site.start()
        os.rename(site.store / session.id, site.store / "sess_thief")
        with pytest.raises(GittrixError, match=session.id):
            site.engine.get_session("sess_thief")


class TestRule12WhatWasReviewed:
    def test_is_what_is_promoted(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "reviewed\n")
        review = session.review()
        shell(session, "echo sneaked > app.py; echo sneaked > new; rm run.sh")
        result = session.promote(review)
        assert site.durable.git("rev-parse", f"{result.sha}^{{tree}}") == review.tree
        assert site.durable.read("app.py") == b"reviewed\n"

    def test_or_nothing(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "reviewed\n")
        review = session.review()
        head = site.durable.commit({"app.py": "rival\n"})
        with pytest.raises(BaselineConflict):
            session.promote(review)
        assert site.durable.head() == head


class TestRule13Reproducible:
    def test_the_same_seed_and_clock_start_give_the_same_ids_commits_and_events(self, tmp_path: Path) -> None:
        def run(name: str) -> None:
            """A session from start to end, told in a file."""
            place = tmp_path / name
            (place / "world").mkdir(parents=True)
            with open_site(place / "world") as site:
                session = site.start()
                session.write("app.py", "v2\n")
                site.clock.advance(minutes=90)
                sha = session.commit("mine")
                shell(session, "echo n > new")
                result = session.promote(files=["app.py"])
                ids = [session.id, sha, result.sha, site.durable.git("rev-list", "main")]
                for event in site.events(session.id):
                    data = {key: value for key, value in event.data.items() if key != "owner"}
                    ids.append(f"{event.seq} {event.ts} {event.type} {event.actor} {data}".replace(str(place), ""))
                (place / "told").write_text("\n".join(ids))

        for name in ("one", "two"):
            assert in_child(lambda name=name: run(name)) == 0
        assert (tmp_path / "one/told").read_text() == (tmp_path / "two/told").read_text()
        assert len((tmp_path / "one/told").read_text().splitlines()) > 8
