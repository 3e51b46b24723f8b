"""Promotion: one commit on the branch's head that is exactly the selection, or not a byte (rules 1, 2, 5, 12)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.engine import (
    EXECUTABLE,
    FILE,
    FILES,
    KINDS,
    SUBMODULE,
    SYMLINK,
    DurableGit,
    Site,
    at_point,
    edited,
    open_site,
    shell,
    work,
)

from pytest_gittrix import points
from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.errors import (
    BaselineConflict,
    InvalidInput,
    PromoteFailed,
    SessionExpired,
)
from pytest_gittrix.record.state.records import EvictionPolicy


@pytest.fixture(params=["sha1", "sha1-bare", "sha256", "sha256-bare"])
def any_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    object_format, _, bare = request.param.partition("-")
    with open_site(tmp_path, bare=bool(bare), object_format=object_format) as opened:
        yield opened


def packs(site: Site) -> list[Path]:
    return [*site.durable.git_dir.glob("objects/pack/*.pack")]


def mapped_indexes(site: Site) -> int:
    """How many indexes of durable's packs a new engine maps to read the whole history."""
    durable = LocalDurable(site.durable.path)
    assert len([*durable.repository.log(durable.head("main"))]) == 70
    return sum(".idx" in line and str(site.durable.git_dir) in line for line in Path("/proc/self/maps").read_text().splitlines())


class TestASuccessfulPromotion:
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_one_commit_on_the_head_with_exactly_the_selection(self, any_site: Site, kind: str) -> None:
        session, head = any_site.start(workspace=kind), any_site.durable.head()
        work(session)
        result = session.promote()
        durable = any_site.durable
        assert (result.branch, result.pr_url, result.patch, result.warnings) == ("main", None, None, ())
        assert durable.head() == result.sha
        assert durable.parents(result.sha) == [head]
        changed = durable.changed(result.sha)
        assert {path: entry and entry[0] for path, entry in changed.items()} == {
            "README.md": None,
            "new/file.txt": FILE,
            "run.sh": EXECUTABLE,
            "src/util.py": FILE,
        }
        assert durable.read("src/util.py") == edited(3).encode()
        assert durable.read("new/file.txt") == b"\0binary\xff"
        assert durable.git("fsck", "--strict", "--no-dangling") == ""
        assert durable.leftovers() == []

    @pytest.mark.parametrize("kind", ["clone", "copy", "worktree"])
    def test_keeps_kinds_and_modes_that_a_shell_made(self, site: Site, kind: str) -> None:
        session = site.start(workspace=kind)
        shell(
            session,
            "chmod +x app.py; chmod -x run.sh; rm link; ln -s src/util.py link; ln -s nowhere dangling; rm README.md; mkdir README.md",
        )
        shell(session, "echo inner > README.md/inner; printf '' > empty")
        changed = site.durable.changed(session.promote().sha)
        assert {path: entry and entry[0] for path, entry in changed.items()} == {
            "README.md": None,
            "README.md/inner": FILE,
            "app.py": EXECUTABLE,
            "dangling": SYMLINK,
            "empty": FILE,
            "link": SYMLINK,
            "run.sh": FILE,
        }
        assert site.durable.read("link") == b"src/util.py"
        assert site.durable.status() == []
        assert os.readlink(site.durable.path / "dangling") == "nowhere"

    def test_brings_the_checkout_forward_and_leaves_everything_else_alone(self, site: Site) -> None:
        durable = site.durable
        (durable.path / "untracked").write_text("mine\n")
        (durable.path / "app.py").write_text("staged\n")
        durable.git("add", "app.py")
        (durable.path / "src/deep/er.txt").write_text("unstaged\n")
        session = site.start()
        session.write("src/util.py", edited(3))
        session.delete("README.md")
        session.promote()
        assert sorted(durable.status()) == [" M src/deep/er.txt", "?? untracked", "M  app.py"]
        assert (durable.path / "src/util.py").read_text() == edited(3)
        assert not (durable.path / "README.md").exists()

    def test_goes_to_a_branch_that_is_not_checked_out_without_touching_a_file(self, site: Site) -> None:
        site.durable.git("branch", "side")
        before = {path: data for path, data in site.durable.fingerprint().items() if not path.startswith(".git")}
        session = site.start(durable_branch="side")
        session.write("app.py", "side\n")
        assert session.promote().branch == "side"
        assert site.durable.read("app.py", "side") == b"side\n"
        assert site.durable.status() == []
        assert {path: data for path, data in site.durable.fingerprint().items() if not path.startswith(".git")} == before

    def test_brings_a_linked_checkout_forward(self, site: Site) -> None:
        site.durable.git("branch", "side")
        linked = site.root / "linked"
        site.durable.git("worktree", "add", "-q", str(linked), "side")
        session = site.start(durable_branch="side")
        session.write("app.py", "side\n")
        session.promote()
        assert (linked / "app.py").read_text() == "side\n"
        assert DurableGit(linked).status() == []

    def test_goes_in_beside_a_detached_head(self, site: Site) -> None:
        site.durable.git("checkout", "-q", "--detach")
        session = site.start()
        session.write("app.py", "v2\n")
        result = session.promote()
        assert site.durable.head() == result.sha
        assert (site.durable.path / "app.py").read_text() == FILES["app.py"]
        assert site.durable.status() == []

    @pytest.mark.parametrize(("task", "message", "subject"), [("fix", None, "gittrix: fix"), ("fix", "Own words", "Own words")])
    def test_has_the_message_it_was_given_or_the_task(self, site: Site, task: str, message: str | None, subject: str) -> None:
        session = site.start(task)
        session.write("app.py", "v2\n")
        session.promote(message=message)
        assert site.durable.git("log", "-1", "--format=%s") == subject

    def test_without_a_task_names_the_session(self, site: Site) -> None:
        session = site.start("")
        session.write("app.py", "v2\n")
        session.promote()
        assert site.durable.git("log", "-1", "--format=%s") == f"gittrix: promote session {session.id}"

    def test_is_by_the_human_at_the_time_of_the_clock(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        site.clock.advance(hours=1)
        session.promote()
        when = int(site.clock.now().timestamp())
        expected = f"Human <human@example.com> {when}"
        assert site.durable.git("log", "-1", "--format=%an <%ae> %at") == expected
        assert site.durable.git("log", "-1", "--format=%cn <%ce> %ct") == expected
        reflog = site.durable.git("reflog", "-1", "--date=unix", "--format=%gd %gs", "main")
        assert reflog == f"main@{{{when}}} promote: session {session.id}"

    def test_survives_a_repack_that_runs_before_the_branch_leads_to_it(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        shields: list[str] = []

        def repack() -> None:
            shields.extend(path.read_text() for path in site.durable.git_dir.glob("objects/pack/*.keep"))
            site.durable.git("repack", "-a", "-d", "-q")

        with at_point("land:packed", repack):
            result = session.promote()
        assert shields == [f"gittrix-{session.id}\n"]
        assert site.durable.read("app.py", result.sha) == b"v2\n"
        assert site.durable.git("fsck", "--strict", "--no-dangling") == ""
        assert site.durable.leftovers() == []

    @pytest.mark.parametrize("anew", [True, False], ids=["an engine each", "one engine"])
    def test_leaves_few_packs_however_many_there_were(self, site: Site, anew: bool) -> None:
        for number in range(69):
            engine = site.another() if anew else site.engine
            session = engine.start_session("go")
            session.write("app.py", f"{number}\n")
            assert session.promote().warnings == ()
            if anew:
                engine.close()
        assert len(packs(site)) <= 48
        assert 0 < mapped_indexes(site) <= 48
        assert site.durable.git("rev-list", "--count", "main") == "70"
        assert site.durable.git("fsck", "--strict", "--full") == ""

    def test_deletes_no_pack_where_objects_are_precious(self, site: Site) -> None:
        site.durable.git("config", "core.repositoryFormatVersion", "1")
        site.durable.git("config", "extensions.preciousObjects", "true")
        for number in range(40):
            session = site.start()
            session.write("app.py", f"{number}\n")
            session.promote()
        assert len(packs(site)) >= 40

    @pytest.mark.parametrize("name", ["sp ace", "tab\there", "-dash", "ünï", 'quo"te', "new\nline", "a/b/c/d/e"])
    def test_takes_any_name_that_git_takes(self, site: Site, name: str) -> None:
        session = site.start()
        session.write(name, "odd\n")
        result = session.promote()
        assert [*site.durable.changed(result.sha)] == [name]
        assert site.durable.status() == []

    def test_takes_a_name_that_is_not_utf8(self, site: Site) -> None:
        session = site.start()
        name = os.fsdecode(b"caf\xe9")
        session.write(name, "latin\n")
        assert session.touched_files() == [name]
        result = session.promote(files=[name])
        assert [*site.durable.changed(result.sha)] == [name]

    def test_passes_a_submodule_through_untouched(self, tmp_path: Path) -> None:
        with open_site(tmp_path, FILES | {"vendor/lib": (SUBMODULE, "1" * 40)}) as site:
            session = site.start()
            session.write("app.py", "v2\n")
            assert session.touched_files() == ["app.py"]
            session.promote()
            assert site.durable.tree()["vendor/lib"] == (SUBMODULE, "1" * 40)


class TestAReview:
    """What is promoted is what was reviewed (rule 12)."""

    def test_promotes_its_bytes_though_the_agent_went_on(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "reviewed\n")
        review = session.review()
        session.write("app.py", "sneaked in\n")
        session.write("extra.py", "sneaked in\n")
        result = session.promote(review)
        assert [*site.durable.changed(result.sha)] == ["app.py"]
        assert site.durable.read("app.py") == b"reviewed\n"
        assert b"sneaked in" in (site.directory(session) / "archive.patch").read_bytes()

    def test_of_some_files_promotes_those(self, site: Site) -> None:
        session = site.start()
        work(session)
        review = session.review(["run.sh", "README.md"])
        assert [*review.changes] == ["run.sh", "README.md"]
        assert [*site.durable.changed(session.promote(review).sha)] == ["README.md", "run.sh"]

    def test_shows_what_it_holds(self, site: Site) -> None:
        session = site.start()
        work(session)
        review = session.review()
        assert (review.session_id, review.baseline) == (session.id, site.durable.head())
        assert review.diff == session.diff()
        assert {path: len(hunks) for path, hunks in review.hunks.items()} == {"run.sh": 1, "src/util.py": 1}
        session.promote(review)
        assert site.durable.git("rev-parse", "main^{tree}") == review.tree

    def test_can_be_promoted_in_part(self, site: Site) -> None:
        session = site.start()
        session.write("src/util.py", edited(3, 30))
        session.write("app.py", "v2\n")
        review = session.review()
        session.write("src/util.py", "later\n")
        result = session.promote(review, hunks={"src/util.py": [2]})
        assert [*site.durable.changed(result.sha)] == ["src/util.py"]
        assert site.durable.read("src/util.py") == edited(30).encode()

    def test_of_another_session_is_refused(self, site: Site) -> None:
        one, two = site.start(), site.start()
        one.write("app.py", "1\n")
        two.write("app.py", "2\n")
        with pytest.raises(InvalidInput, match=one.id):
            two.promote(one.review())
        assert site.state(two.id).state == "active"

    def test_of_an_untouched_path_is_refused(self, site: Site) -> None:
        with pytest.raises(PromoteFailed, match=r"app\.py"):
            site.start().review(["app.py"])


class TestDrift:
    def test_that_is_disjoint_is_built_upon(self, any_site: Site) -> None:
        session = any_site.start()
        work(session)
        rival = any_site.durable.commit({"other.txt": "o\n", "app.py": "rival\n"})
        result = session.promote()
        assert any_site.durable.parents(result.sha) == [rival]
        assert any_site.durable.read("app.py") == b"rival\n"
        assert len(any_site.durable.changed(result.sha)) == 4

    def test_that_overlaps_is_refused_and_can_be_left_out(self, any_site: Site) -> None:
        session, baseline = any_site.start(), any_site.durable.head()
        work(session)
        rival = any_site.durable.commit({"run.sh": (EXECUTABLE, "rival\n"), "app.py": "rival\n"})
        before = any_site.durable.fingerprint()
        with pytest.raises(BaselineConflict) as caught:
            session.promote()
        conflict = caught.value
        assert (conflict.conflicting_files, conflict.durable_sha, conflict.baseline_sha) == (["run.sh"], rival, baseline)
        assert any_site.durable.fingerprint() == before
        result = session.promote(files=["src/util.py", "README.md", "new/file.txt"])
        assert any_site.durable.parents(result.sha) == [rival]
        assert any_site.durable.read("run.sh") == b"rival\n"

    @pytest.mark.parametrize("point", ["promote:head-read", "promote:drift-checked", "promote:intent-logged"])
    def test_that_comes_in_between_is_judged_anew(self, site: Site, point: str) -> None:
        session = site.start()
        session.write("app.py", "agent\n")
        with at_point(point, lambda: site.durable.commit({"other.txt": "o\n"})):
            result = session.promote()
        assert site.durable.read("other.txt", f"{result.sha}^") == b"o\n"
        assert [*site.durable.changed(result.sha)] == ["app.py"]
        assert site.durable.git("rev-list", "--count", "main") == "3"
        assert site.durable.status() == []

    @pytest.mark.parametrize("point", ["promote:head-read", "promote:drift-checked", "promote:intent-logged"])
    def test_that_comes_in_between_and_overlaps_is_a_conflict(self, site: Site, point: str) -> None:
        session = site.start()
        session.write("app.py", "agent\n")
        rivals: list[str] = []
        with pytest.raises(BaselineConflict) as caught, at_point(point, lambda: rivals.append(site.durable.commit({"app.py": "rival\n"}))):
            session.promote()
        assert caught.value.durable_sha == rivals[0] == site.durable.head()
        assert site.state(session.id).intent is None
        assert site.durable.status() == []
        assert site.durable.leftovers() == []

    def test_of_many_rivals_in_a_row_loses_none(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "agent\n")
        commits: list[str] = []

        def rival(name: str) -> None:
            if name == "promote:drift-checked" and len(commits) < 5:
                commits.append(site.durable.commit({f"rival{len(commits)}.txt": "r\n"}))

        with points.listening(rival):
            result = session.promote()
        log = site.durable.git("rev-list", "main").split()
        assert log[:6] == [result.sha, *reversed(commits)]

    @pytest.mark.parametrize("path", ["other.txt", "app.py"])
    def test_that_comes_in_between_shows_at_a_point_of_its_own(self, site: Site, path: str) -> None:
        session = site.start()
        session.write("app.py", "agent\n")
        names: list[str] = []

        def rival(name: str) -> None:
            names.append(name)
            if names.count(name) == 1 and name == "promote:intent-logged":
                site.durable.commit({path: "rival\n"})

        with points.listening(rival), suppress(BaselineConflict):
            session.promote()
        assert names.count("promote:lost-race") == 1
        assert names.index("promote:intent-logged") < names.index("promote:lost-race")

    def test_that_never_stops_is_given_up_on_in_the_end(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_gittrix.engine.promotion.promotion._ATTEMPTS", 3)
        session = site.start()
        session.write("app.py", "agent\n")
        commits: list[str] = []

        def rival(name: str) -> None:
            if name == "promote:drift-checked":
                commits.append(site.durable.commit({f"rival{len(commits)}.txt": "r\n"}))

        with points.listening(rival), pytest.raises(PromoteFailed) as caught:
            session.promote()
        assert len(commits) == 3
        assert site.durable.head() == commits[-1]
        assert caught.value.stage == "apply"
        assert caught.value.fact == "'main', or the branch that the promotion was to make, moved 3 times while it was made."
        assert (caught.value.why, caught.value.fix) == (
            "Each time drift had to be judged again.",
            "Promote again when fewer programs write to it.",
        )
        assert site.state(session.id).state == "active"


class TestAfterwards:
    def test_the_handle_can_do_nothing_any_more(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        session.promote()
        for act in (
            session.promote,
            session.discard,
            session.touched_files,
            session.review,
            session.archive,
            lambda: session.write("app.py", "again\n"),
            lambda: session.commit("again"),
        ):
            with pytest.raises(SessionExpired) as caught:
                act()
            assert caught.value.state == "promoted"
        assert not (site.directory(session) / "workspace").exists()

    def test_another_handle_is_dead_too(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "v2\n")
        other = site.another().get_session(session.id)
        session.promote()
        with pytest.raises(SessionExpired):
            other.write("app.py", "again\n")
        with pytest.raises(SessionExpired):
            other.promote()
        assert site.durable.read("app.py") == b"v2\n"

    def test_of_two_sessions_with_the_same_edit_the_second_conflicts(self, site: Site) -> None:
        one, two = site.start(), site.start()
        one.write("app.py", "same\n")
        two.write("app.py", "same\n")
        one.promote()
        with pytest.raises(BaselineConflict, match=r"app\.py"):
            two.promote()
        with pytest.raises(PromoteFailed, match="already has"):
            two.promote(on_overlap="allow-identical")
        assert site.durable.git("rev-list", "--count", "main") == "2"

    def test_without_until_promote_the_workspace_stays_until_its_ttl(self, site: Site) -> None:
        session = site.start(eviction=EvictionPolicy(until_promote=False))
        session.write("app.py", "v2\n")
        session.write("b.txt", "b\n")
        session.promote(files=["app.py"])
        workspace = site.directory(session) / "workspace"
        assert (workspace / "b.txt").exists()
        with pytest.raises(SessionExpired):
            session.write("app.py", "v3\n")
        site.another().init()
        assert workspace.exists()
        assert site.engine.info(session.id).workspace_path == str(workspace)
        for refused in (lambda: session.read("b.txt"), lambda: site.engine.get_session(session.id)):
            with pytest.raises(SessionExpired, match="its workspace is kept in ") as caught:
                refused()
            kept = Path(str(caught.value).partition("kept in ")[2].partition(", where")[0])
            assert (kept / "b.txt").read_text() == "b\n"
        site.clock.advance(hours=4, microseconds=1)
        assert site.engine.sweep() == [session.id]
        assert not workspace.exists()
        assert site.state(session.id).state == "promoted"
        assert site.engine.info(session.id).workspace_path is None
        with pytest.raises(SessionExpired, match="in its archive"):
            session.read("b.txt")
