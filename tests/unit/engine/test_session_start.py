"""Starting a session: what it is told, what it notes, what it makes, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.engine import FILES, KINDS, LINES, SUBMODULE, DurableGit, Site, at_point, open_site, shell

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.ids import random_id, seeded_ids
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput, SessionExpired, SessionNotFound, UnsupportedRepository
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.record.state.records import EvictionPolicy
from pytest_gittrix.testing.repos.member_witness import everything_below
from pytest_gittrix.workspaces.seeds.prepare import SPARE_SEEDS


class TestAStart:
    @pytest.mark.parametrize("kind", KINDS)
    def test_changes_nothing_in_durable(self, site: Site, kind: str) -> None:
        before = site.durable.fingerprint()
        session = site.start(workspace=kind)
        after = site.durable.fingerprint()
        new = after.keys() - before.keys()
        assert all(name.startswith(f".git/worktrees/{session.id}") or name == ".git/worktrees" for name in new)
        assert bool(new) is (kind == "worktree")
        assert {name: after[name] for name in before} == before

    @pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
    def test_gives_a_workspace_that_is_the_baseline(self, site: Site, kind: str) -> None:
        session = site.start(workspace=kind)
        assert session.workspace_path is not None
        checkout = {name: what for name, what in everything_below(site.durable.path).items() if not name.startswith(".git")}
        assert {name: what for name, what in everything_below(session.workspace_path).items() if not name.startswith(".git")} == checkout
        assert session.touched_files() == []
        assert session.diff() == ""

    def test_of_a_lazy_workspace_writes_no_file_and_reads_all(self, site: Site) -> None:
        session = site.start(workspace="lazy")
        assert session.workspace_path is None
        assert os.listdir(site.directory(session) / "workspace") == []
        assert session.read("src/util.py") == LINES.encode()
        assert session.touched_files() == []

    @pytest.mark.parametrize("kind", ["clone", "worktree"])
    def test_of_a_git_workspace_is_clean_to_git(self, site: Site, kind: str) -> None:
        session = site.start(workspace=kind)
        assert shell(session, "git status --porcelain") == ""
        assert shell(session, "git rev-parse HEAD").strip() == site.durable.head()

    def test_of_a_clone_leads_nowhere(self, site: Site) -> None:
        site.durable.commit({"app.py": "second\n"})
        session = site.start()
        assert shell(session, "git remote") == ""
        assert shell(session, "git rev-list --count HEAD").strip() == "1"
        assert shell(session, "git for-each-ref --format='%(refname)'").split() == ["refs/heads/main"]
        assert not (site.directory(session) / "workspace/.git/objects/info/alternates").exists()
        future = site.durable.commit({"app.py": "third\n"})
        with pytest.raises(AssertionError):
            shell(session, f"git cat-file -e {future}")

    @pytest.mark.parametrize(("history", "count"), [("none", 1), (0, 1), (1, 2), (2, 3), ("full", 4)])
    def test_shows_as_much_history_as_it_was_told(self, tmp_path: Path, history: str | int, count: int) -> None:
        with open_site(tmp_path, ephemeral=LocalEphemeral(history=history)) as site:  # type: ignore[arg-type]
            for number in range(3):
                site.durable.commit({"app.py": f"{number}\n"})
            session = site.start()
            assert shell(session, "git rev-list --count HEAD").strip() == str(count)
            assert shell(session, "git fsck --strict") == ""

    @pytest.mark.parametrize("bare", [False, True])
    @pytest.mark.parametrize("object_format", ["sha1", "sha256"])
    def test_works_on_any_repository(self, tmp_path: Path, bare: bool, object_format: str) -> None:
        with open_site(tmp_path, bare=bare, object_format=object_format) as site:
            session = site.start()
            assert len(session.info().baseline_sha) == (64 if object_format == "sha256" else 40)
            assert shell(session, "git status --porcelain; git fsck --strict") == ""

    def test_works_from_a_linked_work_tree_and_a_subdirectory(self, site: Site) -> None:
        linked = site.root / "linked"
        site.durable.git("worktree", "add", "-q", "-b", "side", str(linked))
        for place, branch in ((linked, "side"), (site.durable.path / "src", "main")):
            session = site.start(durable_path=place, durable_branch=branch)
            assert session.read("app.py") == b"print('v1')\n"

    def test_keeps_submodules_as_pointers(self, tmp_path: Path) -> None:
        with open_site(tmp_path, FILES | {"lib": (SUBMODULE, "1" * 40)}) as site:
            session = site.start()
            assert session.touched_files() == []
            assert os.listdir(site.directory(session) / "workspace/lib") == []


class TestTheRecord:
    def test_is_the_documented_one(self, site: Site) -> None:
        session = site.start("update docs")
        record = json.loads((site.directory(session) / "metadata.json").read_text())
        now = "2030-01-01T00:00:00Z"
        assert {key: value for key, value in record.items() if not key.endswith("At")} == {
            "metadataVersion": 1,
            "id": session.id,
            "task": "update docs",
            "durableRef": f"local://{site.durable.path}#main",
            "durablePath": str(site.durable.path),
            "durableBranch": "main",
            "ephemeralRef": f"local://{site.directory(session)}/workspace",
            "ephemeralPath": f"{site.directory(session)}/workspace",
            "baselineSha": site.durable.head(),
            "workspaceKind": "clone",
            "isGitBacked": True,
            "state": "active",
            "evictionPolicy": {"ttlIdleMs": 14_400_000, "ttlAbsoluteMs": None, "untilPromote": True, "manual": False},
            "touchedFiles": [],
            "promote": {"strategy": "auto", "result": None},
            "log": "events.jsonl",
        }
        assert {key: record[key].replace(".000", "") for key in ("createdAt", "updatedAt", "lastAccessAt")} == dict.fromkeys(
            ("createdAt", "updatedAt", "lastAccessAt"), now
        )

    @pytest.mark.parametrize("task", ["", "line\nbreak", "ünïcödé \N{SNOWMAN}", "x" * 10_000, '"quotes" \\ and \0 nul'])
    def test_keeps_any_task_as_it_was(self, site: Site, task: str) -> None:
        session = site.start(task)
        assert session.info().task == task
        assert json.loads((site.directory(session) / "metadata.json").read_text())["task"] == task

    def test_holds_the_policy_of_the_session_or_of_the_engine(self, tmp_path: Path) -> None:
        with open_site(tmp_path, eviction=EvictionPolicy(ttl_idle="1h")) as site:
            assert site.start().metadata()["evictionPolicy"]["ttlIdleMs"] == 3_600_000
            own = site.start(eviction=EvictionPolicy(ttl_idle="2h", until_promote=False))
            assert own.metadata()["evictionPolicy"] == {
                "ttlIdleMs": 7_200_000,
                "ttlAbsoluteMs": None,
                "untilPromote": False,
                "manual": False,
            }

    def test_can_be_lost_and_is_written_again(self, site: Site) -> None:
        session = site.start()
        record = site.directory(session) / "metadata.json"
        record.unlink()
        assert [one.id for one in site.another().list_sessions()] == [session.id]
        session.info()
        assert json.loads(record.read_text())["id"] == session.id

    def test_in_a_directory_of_another_name_is_refused(self, site: Site) -> None:
        session = site.start()
        os.rename(site.directory(session), site.store / "sess_other")
        engine = site.another()
        assert engine.list_sessions() == []
        assert [problem.id for problem in engine.problems()] == ["sess_other"]
        with pytest.raises(Exception, match=session.id):
            engine.get_session("sess_other")


class TestTheBranch:
    def test_is_the_one_it_was_told(self, site: Site) -> None:
        side = site.durable.commit({"app.py": "side\n"}, branch="feature/x", onto=site.durable.head())
        session = site.start(durable_branch="feature/x")
        assert (session.info().baseline_sha, session.info().durable_branch) == (side, "feature/x")
        assert session.read("app.py") == b"side\n"
        assert shell(session, "git branch --show-current").strip() == "feature/x"

    def test_branch_is_the_branch_that_it_begins_at_and_is_promoted_to(self, site: Site) -> None:
        side = site.durable.commit({"app.py": "side\n"}, branch="side", onto=site.durable.head())
        main = site.durable.head()
        session = site.start(branch="side", topic_branch="fix/it")
        assert (session.info().durable_branch, session.info().baseline_sha) == ("side", side)
        assert session.info().identity == {"topic_branch": "fix/it"}
        session.write("app.py", "v2\n")
        result = session.promote(strategy="commit")
        assert (result.branch, site.durable.head("side"), site.durable.head()) == ("side", result.sha, main)

    def test_a_branch_that_is_not_there_is_refused_by_either_name(self, site: Site) -> None:
        for name in ("branch", "durable_branch"):
            with pytest.raises(InvalidInput, match="no branch 'nowhere'"):
                site.start(**{name: "nowhere"})
        assert site.engine.list_sessions() == []

    def test_two_branches_are_refused_and_one_twice_is_not(self, site: Site) -> None:
        site.durable.git("branch", "side")
        with pytest.raises(InvalidInput, match="durable_branch='main' and branch='side'"):
            site.start(durable_branch="main", branch="side")
        assert site.start(durable_branch="side", branch="side").info().durable_branch == "side"

    def test_where_a_session_has_its_branch_already_it_is_no_fact_of_its_identity(self, site: Site) -> None:
        session = site.start(topic_branch="fix/a")
        for change in (session.identify, session.handoff, session.fork):
            with pytest.raises(InvalidInput, match=r"Unknown identity field 'branch'\.\n.*topic_branch"):
                change(branch="fix/b")
        assert session.info().identity == {"topic_branch": "fix/a"}

    def test_can_be_named_in_a_reference(self, site: Site) -> None:
        side = site.durable.commit({"app.py": "side\n"}, branch="side", onto=site.durable.head())
        session = site.start(durable_ref=f"local://{site.durable.path}#side")
        assert session.info().baseline_sha == side
        assert session.info().durable_ref == f"local://{site.durable.path}#side"

    def test_is_never_a_tag_of_that_name(self, site: Site) -> None:
        first = site.durable.head()
        site.durable.commit({"app.py": "second\n"})
        site.durable.git("tag", "main", first)
        assert site.start().info().baseline_sha != first

    @pytest.mark.parametrize("branch", ["nowhere", "HEAD", "-x", "main~1", "main^{tree}", "refs/tags/x", "a..b", "@{-1}", "x.lock", "a b"])
    def test_that_is_none_is_refused_and_leaves_nothing(self, site: Site, branch: str) -> None:
        before = site.durable.fingerprint()
        with pytest.raises(InvalidInput):
            site.start(durable_branch=branch)
        assert site.durable.fingerprint() == before
        assert site.engine.store.ids() == []

    def test_without_a_commit_is_refused_by_name(self, site: Site) -> None:
        empty = site.root / "empty"
        DurableGit.make(empty)
        site_git = DurableGit(empty)
        site_git.git("checkout", "-q", "--orphan", "unborn")
        with pytest.raises(InvalidInput, match="unborn"):
            site.start(durable_path=empty, durable_branch="unborn")


class TestWhatIsRefused:
    @pytest.mark.parametrize("make", ["missing", "file", "plain directory"])
    def test_as_no_repository(self, site: Site, make: str) -> None:
        path = site.root / "other"
        if make == "file":
            path.touch()
        if make == "plain directory":
            path.mkdir()
        with pytest.raises(AdapterUnavailable):
            site.start(durable_path=path)
        with pytest.raises(AdapterUnavailable):
            LocalDurable(path)
        assert site.engine.store.ids() == []

    def test_as_shallow(self, site: Site) -> None:
        site.durable.commit({"app.py": "second\n"})
        subprocess.run(
            ["git", "clone", "-q", "--depth=1", f"file://{site.durable.path}", str(site.root / "shallow")], check=True, timeout=60
        )
        with pytest.raises(UnsupportedRepository, match="shallow"):
            site.start(durable_path=site.root / "shallow")

    @pytest.mark.parametrize("ref", ["gitlab://o/r#main", "nonsense", "ftp://x/y", "local:/x", "/x", ""])
    def test_as_no_reference(self, site: Site, ref: str) -> None:
        with pytest.raises(InvalidInput, match="local://"):
            site.start(durable_ref=ref)

    def test_as_naming_two_repositories(self, site: Site) -> None:
        with pytest.raises(InvalidInput):
            site.start(durable_ref=f"local://{site.durable.path}", durable_path=site.durable.path)

    def test_without_any_repository(self, site: Site) -> None:
        engine = GitTrix(None, store=site.store, clock=site.clock, sweep_interval=None, durability="fast")
        with pytest.raises(InvalidInput, match="no durable repository"):
            engine.start_session("x")
        session = engine.start_session("x", durable_path=site.durable.path)
        assert session.read("app.py") == b"print('v1')\n"
        engine.close()

    @pytest.mark.parametrize("kind", ["vm", "", "CLONE", "remote"])
    def test_as_no_kind_of_workspace(self, site: Site, kind: str) -> None:
        with pytest.raises(InvalidInput, match="clone, lazy, copy, worktree"):
            site.start(workspace=kind)
        assert site.engine.store.ids() == []

    def test_as_no_strategy(self, site: Site) -> None:
        with pytest.raises(InvalidInput, match="auto"):
            site.start(strategy="yolo")
        assert site.engine.store.ids() == []
        with pytest.raises(InvalidInput, match="auto"):
            GitTrix(site.durable.path, store=site.store, clock=site.clock, strategy="yolo")

    @pytest.mark.parametrize("argument", [{"history": "some"}, {"history": -1}, {"history": True}, {"confine": "bwrap"}, {"kind": "vm"}])
    def test_as_no_way_to_make_workspaces(self, argument: dict[str, object]) -> None:
        with pytest.raises(InvalidInput):
            LocalEphemeral(**argument)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "argument", [{"ttl_idle": 3600}, {"ttl_idle": "0m"}, {"ttl_absolute": "soon"}, {"manual": "yes"}, {"ttl": "4h"}]
    )
    def test_as_no_policy(self, argument: dict[str, object]) -> None:
        with pytest.raises(InvalidInput):
            EvictionPolicy(**argument)


class TestIds:
    def test_are_as_documented(self) -> None:
        ids = {random_id() for _ in range(200)}
        assert len(ids) == 200
        assert all(id_.startswith("sess_") and len(id_) == 17 for id_ in ids)

    def test_from_a_seed_are_the_same_again(self) -> None:
        one, two, other = seeded_ids(7), seeded_ids(7), seeded_ids(8)
        first = [one() for _ in range(10)]
        assert first == [two() for _ in range(10)]
        assert len(set(first)) == 10
        assert first[0] != other()

    def test_that_are_taken_are_passed_over(self, site: Site) -> None:
        ids = iter(["sess_one", "sess_one", "sess_two"])
        engine = site.another(ids=lambda: next(ids))
        assert [engine.start_session("x").id for _ in range(2)] == ["sess_one", "sess_two"]

    @pytest.mark.parametrize("id_", ["../x", "", "a b", "x" * 200])
    def test_that_are_none_are_refused(self, site: Site, id_: str) -> None:
        engine = site.another(ids=lambda: id_)
        with pytest.raises(InvalidInput):
            engine.start_session("x")


class TestGetSession:
    def test_finds_a_live_session_from_another_engine(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        again = site.another().get_session(session.id)
        assert again.read("app.py") == b"v2\n"
        assert again.info().created_at == CLOCK_START

    @pytest.mark.parametrize("kind", KINDS)
    def test_finds_every_kind_again(self, site: Site, kind: str) -> None:
        session = site.start(workspace=kind)
        session.write("new.txt", "n\n")
        session.delete("README.md")
        again = site.another().get_session(session.id)
        assert again.touched_files() == ["README.md", "new.txt"]
        assert site.durable.contains(again.promote().sha)

    def test_does_not_find_what_is_not_there_nor_make_it(self, site: Site) -> None:
        site.engine.init()
        with pytest.raises(SessionNotFound, match="sess_nowhere"):
            site.engine.get_session("sess_nowhere")
        assert not (site.store / "sess_nowhere").exists()

    @pytest.mark.parametrize("end", ["promoted", "discarded", "expired"])
    def test_of_an_ended_session_says_how_it_ended(self, site: Site, end: str) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        {"promoted": session.promote, "discarded": session.discard, "expired": lambda: site.engine.evict(session.id)}[end]()
        with pytest.raises(SessionExpired) as caught:
            site.engine.get_session(session.id)
        assert caught.value.state == end

    def test_after_the_seed_is_gone_says_so(self, site: Site) -> None:
        session = site.start()
        shutil.rmtree(site.store / ".seeds")
        with pytest.raises(AdapterUnavailable, match="seed"):
            site.another().get_session(session.id)


class TestListSessions:
    def test_gives_every_state_oldest_first(self, site: Site) -> None:
        made = []
        for number in range(4):
            made.append(site.start(f"task {number}"))
            site.clock.advance(minutes=1)
        made[1].discard()
        made[2].write("app.py", "x\n")
        made[2].promote()
        engine = site.another()
        assert [one.task for one in engine.list_sessions()] == [f"task {number}" for number in range(4)]
        assert [one.state for one in engine.list_sessions()] == ["active", "discarded", "promoted", "active"]
        assert [one.id for one in engine.list_sessions("promoted")] == [made[2].id]
        assert engine.list_sessions("promoted")[0].promote.result.sha == site.durable.head()  # type: ignore[union-attr]

    def test_of_an_empty_or_missing_store_is_empty(self, site: Site) -> None:
        assert site.engine.list_sessions() == []
        site.store.mkdir()
        (site.store / "a file").touch()
        (site.store / "empty").mkdir()
        assert site.engine.list_sessions() == []


def test_a_head_that_moves_while_the_session_starts_is_drift(site: Site) -> None:
    baseline = site.durable.head()
    with at_point("start:head-read", lambda: site.durable.commit({"app.py": "rival\n"})):
        session = site.start()
    assert session.info().baseline_sha == baseline
    assert session.read("app.py") == b"print('v1')\n"


@pytest.mark.parametrize("mode", [None, 0o755, 0o777])
def test_no_other_user_can_enter_the_store(tmp_path: Path, site: Site, mode: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITTRIX_HOME", str(tmp_path / "home"))
    store = tmp_path / "home" / "sessions"
    if mode is not None:
        store.mkdir(parents=True)
        store.chmod(mode)

    with GitTrix(LocalDurable(site.durable.path)) as engine:
        assert engine.store.root == store
        assert store.stat().st_mode & 0o777 == 0o700


def test_a_store_that_is_named_is_made_so_and_one_that_is_there_keeps_its_mode(tmp_path: Path, site: Site) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o1777)
    for name, mode in (("new", 0o700), ("there", 0o1777)):
        with GitTrix(LocalDurable(site.durable.path), store=tmp_path / name) as engine:
            assert engine.store.root.stat().st_mode & 0o7777 == mode


def test_no_seed_is_removed_while_a_record_cannot_be_read(site: Site) -> None:
    services = site.engine.services
    for number in range(2 * SPARE_SEEDS + 1):
        (site.store / ".seeds" / f"{number:040x}-none").mkdir(parents=True)
    damaged = site.store / "damaged"
    damaged.mkdir()
    (damaged / "events.jsonl").write_text("no event\nno event\n")

    services.tidy()
    assert len([*(site.store / ".seeds").glob("*-none")]) == 2 * SPARE_SEEDS + 1

    shutil.rmtree(damaged)
    services.tidy()
    assert len([*(site.store / ".seeds").glob("*-none")]) == SPARE_SEEDS


def test_seeds_that_could_not_be_removed_while_one_was_made_go_at_the_next_end(site: Site) -> None:
    seeds = site.store / ".seeds"
    for number in range(2 * SPARE_SEEDS + 1):
        (seeds / f"{number:040x}-none").mkdir(parents=True)

    with locked_file(seeds, shared=True):
        site.engine.services.tidy()
        assert len([*seeds.iterdir()]) == 2 * SPARE_SEEDS + 1

    site.engine.services.tidy()
    assert len([*seeds.iterdir()]) == SPARE_SEEDS


def test_a_day_of_promotions_leaves_a_few_seeds_and_those_that_sessions_need(site: Site) -> None:
    first = site.start()
    for number in range(40):
        session = site.start()
        session.write("app.py", f"print({number})\n")
        session.promote()

    seeds = [path.name for path in (site.store / ".seeds").iterdir()]
    assert len(seeds) <= 2 * SPARE_SEEDS + 1
    assert f"{first.info().baseline_sha}-none" in seeds
    first.write("README.md", "still at work\n")
    assert site.durable.read("README.md", first.promote().sha) == b"still at work\n"


def test_a_seed_that_another_engine_has_just_started_from_is_not_pruned(site: Site) -> None:
    first = site.start()
    baseline = first.info().baseline_sha
    for number in range(2 * SPARE_SEEDS):
        session = site.start()
        session.write("app.py", f"print({number})\n")
        session.promote()
    first.discard()
    site.engine.services.index.sync()
    site.durable.git("update-ref", "refs/heads/main", baseline)
    late = site.another().start_session("from an old baseline")

    site.engine.services.prune_seeds()

    assert f"{baseline}-none" in [path.name for path in (site.store / ".seeds").iterdir()]
    assert late.info().baseline_sha == baseline
