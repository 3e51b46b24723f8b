"""Where a promotion lands: on the branch, on one of its own, in a patch; and how ``auto`` decides (GitTrix)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import SUBMODULE, DurableGit, Site, edited, open_site, shell

from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.engine.promotion.strategy import Preferences, Question, slug
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import BaselineConflict, CapabilityMissing, InvalidInput, PromoteFailed


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, strategy="auto") as opened:
        yield opened


def populate(site: Site, people: int) -> None:
    """Have that many people in the history, the first commit's author among them."""
    for number in range(1, people):
        site.durable.commit({f"by{number}.txt": "x\n"}, author=f"Person {number} <person{number}@example.com>")


def started(site: Site, engine: object = None, **options: object) -> UserSession:
    session = (engine or site.engine).start_session("Fix the bug!", **options)  # type: ignore[attr-defined]
    session.write("app.py", "v2\n")
    return session


class TestABranchOfItsOwn:
    def test_is_named_after_the_task_and_leaves_main_alone(self, site: Site) -> None:
        session, head = started(site), site.durable.head()
        before = {path: what for path, what in site.durable.fingerprint().items() if not path.startswith(".git")}
        result = session.promote(strategy="branch")
        assert result.branch == "gittrix/fix-the-bug"
        assert site.durable.head(result.branch) == result.sha
        assert site.durable.parents(result.sha) == [head] == [site.durable.head()]
        assert {path: what for path, what in site.durable.fingerprint().items() if not path.startswith(".git")} == before
        assert session.metadata()["promote"] == {"strategy": "branch", "result": {"sha": result.sha, "branch": result.branch}}
        (intent,) = [event.data for event in site.events(session.id) if event.type == "promote.intent"]
        assert (intent["branch"], intent["strategy"]) == ("gittrix/fix-the-bug", "branch")

    def test_gets_a_number_while_the_name_is_taken(self, site: Site) -> None:
        assert [started(site).promote(strategy="branch").branch for _ in range(3)] == [
            "gittrix/fix-the-bug",
            "gittrix/fix-the-bug-2",
            "gittrix/fix-the-bug-3",
        ]

    def test_is_not_stopped_by_packed_branches(self, site: Site) -> None:
        started(site).promote(strategy="branch")
        site.durable.git("pack-refs", "--all", "--prune")
        assert started(site).promote(strategy="branch").branch == "gittrix/fix-the-bug-2"

    def test_is_refused_where_a_branch_stands_in_its_directory_s_place(self, site: Site) -> None:
        site.durable.git("branch", "gittrix")
        session, before = started(site), site.durable.fingerprint()
        with pytest.raises(InvalidInput, match="gittrix"):
            session.promote(strategy="branch")
        assert site.durable.fingerprint() == before
        assert site.state(session.id).intent is None

    def test_still_refuses_overlap(self, site: Site) -> None:
        session = started(site)
        site.durable.commit({"app.py": "rival\n"})
        with pytest.raises(BaselineConflict):
            session.promote(strategy="branch")
        assert site.durable.branches() == ["main"]

    @pytest.mark.parametrize(
        ("task", "expected"),
        [
            ("Fix the bug!", "fix-the-bug"),
            ("", "session"),
            ("ünïcode", "unicode"),
            ("…", "session"),
            ("a" * 99, "a" * 48),
            ("..//x.lock", "x-lock"),
        ],
    )
    def test_has_a_name_git_takes(self, site: Site, task: str, expected: str) -> None:
        assert slug(task) == expected
        assert site.durable.git("check-ref-format", "--branch", f"gittrix/{slug(task)}") == f"gittrix/{expected}"


class TestAPatch:
    def test_moves_nothing_and_applies_to_the_head(self, site: Site) -> None:
        session = site.start()
        session.write("src/util.py", edited(3))
        session.write("bin", b"\0\1")
        session.delete("README.md")
        head = site.durable.commit({"app.py": "rival\n"})
        before = site.durable.fingerprint()
        result = session.promote(strategy="patch")
        assert site.durable.fingerprint() == before
        assert (result.sha, result.branch) == ("", "main")
        assert result.patch is not None
        assert (site.directory(session) / "promote.patch").read_text() == result.patch
        site.durable.git("apply", "--index", str(site.directory(session) / "promote.patch"))
        assert sorted(site.durable.status()) == ["A  bin", "D  README.md", "M  src/util.py"]
        assert site.durable.head() == head
        assert site.state(session.id).state == "promoted"

    def test_is_recorded_as_one_a_person_made_of_no_commit(self, site: Site) -> None:
        session = started(site)
        session.promote(strategy="patch")
        (done,) = [event for event in site.events(session.id) if event.type == "promote.done"]
        assert done.actor == "human"
        assert done.data == {"commit": "", "ref": "refs/heads/main", "branch": "main", "strategy": "patch", "patch": "promote.patch"}

    def test_holds_text_that_is_not_utf8(self, site: Site) -> None:
        session = site.start()
        session.write("latin.txt", b"caf\xe9\n")
        session.promote(strategy="patch")
        site.durable.git("apply", str(site.directory(session) / "promote.patch"))
        assert (site.durable.path / "latin.txt").read_bytes() == b"caf\xe9\n"

    def test_holds_a_copy_of_a_file_that_did_not_change(self, site: Site) -> None:
        session = site.start()
        session.write("copy.py", session.read("app.py"))
        session.promote(strategy="patch")
        site.durable.git("apply", str(site.directory(session) / "promote.patch"))
        assert (site.durable.path / "copy.py").read_bytes() == site.durable.read("app.py")

    def test_holds_a_submodule_that_went(self, tmp_path: Path) -> None:
        with open_site(tmp_path / "with", {"app.py": "v1\n", "vendor": (SUBMODULE, "1" * 40)}) as site:
            session = site.start()
            shell(session, "rmdir vendor && echo mine > vendor")
            session.promote(strategy="patch")
            site.durable.git("apply", "--cached", str(site.directory(session) / "promote.patch"))
            assert site.durable.git("diff", "--cached", "--raw", "--no-abbrev").split()[:3] == [":160000", "100644", "1" * 40]

    def test_of_chosen_hunks_holds_those(self, site: Site) -> None:
        session = site.start()
        session.write("src/util.py", edited(3, 30))
        patch = session.promote(strategy="patch", hunks={"src/util.py": [2]}).patch
        assert patch is not None
        assert "changed 30" in patch
        assert "changed 3\n" not in patch

    def test_merged_with_drift_applies_to_the_head(self, site: Site) -> None:
        session = site.start()
        session.write("src/util.py", edited(3))
        site.durable.commit({"src/util.py": edited(38)})
        session.promote(strategy="patch", on_overlap="merge")
        site.durable.git("apply", str(site.directory(session) / "promote.patch"))
        assert (site.durable.path / "src/util.py").read_text() == edited(3, 38)

    def test_still_refuses_overlap(self, site: Site) -> None:
        session = started(site)
        site.durable.commit({"app.py": "rival\n"})
        with pytest.raises(BaselineConflict):
            session.promote(strategy="patch")
        assert site.state(session.id).state == "active"


def test_a_pull_request_needs_a_forge(site: Site) -> None:
    session, before = started(site), site.durable.fingerprint()
    with pytest.raises(CapabilityMissing, match="pull request") as caught:
        session.promote(strategy="pr")
    assert "branch" in caught.value.fix
    assert site.durable.fingerprint() == before
    assert site.state(session.id).state == "active"


class TestAuto:
    @pytest.mark.parametrize(
        ("people", "branch"), [(1, "main"), (2, "gittrix/fix-the-bug"), (5, "gittrix/fix-the-bug"), (6, "gittrix/fix-the-bug")]
    )
    def test_goes_by_the_number_of_people(self, site: Site, people: int, branch: str) -> None:
        populate(site, people)
        assert started(site).promote().branch == branch

    def test_counts_people_not_commits_nor_spellings(self, site: Site) -> None:
        for name in ("Rival", "rival", "R. Ival"):
            site.durable.commit({f"{name}.txt": "x\n"}, author=f"{name} <RIVAL@example.com>")
        assert started(site).promote().branch == "main"

    @pytest.mark.parametrize("people", [2, 5])
    def test_asks_once_and_remembers_per_repository(self, site: Site, people: int) -> None:
        asked: list[Question] = []

        def ask(question: Question) -> str:
            asked.append(question)
            return "commit"

        populate(site, people)
        engine = site.another(ask=ask)
        assert started(site, engine).promote().branch == "main"
        assert asked == [Question(f"local://{site.durable.path}#main", "main", people)]
        second = engine.start_session("second")
        second.write("b.txt", "b\n")
        assert second.promote().branch == "main"
        third = site.another(ask=ask).start_session("third")
        third.write("c.txt", "c\n")
        assert third.promote().branch == "main"
        assert len(asked) == 1
        other = DurableGit.make(site.root / "other")
        other.commit({"x.txt": "x\n"}, author="Else <else@example.com>")
        fourth = engine.start_session("fourth", durable_path=other.path)
        fourth.write("d.txt", "d\n")
        fourth.promote()
        assert len(asked) == 2

    @pytest.mark.parametrize("people", [1, 6])
    def test_does_not_ask_one_person_nor_many(self, site: Site, people: int) -> None:
        def ask(question: Question) -> str:
            raise AssertionError(question)

        populate(site, people)
        assert started(site, site.another(ask=ask)).promote().sha

    def test_refuses_an_answer_that_is_no_strategy_and_forgets_it(self, site: Site) -> None:
        populate(site, 2)
        session = started(site, site.another(ask=lambda _question: "maybe"))
        head = site.durable.head()
        with pytest.raises(InvalidInput, match="maybe"):
            session.promote()
        assert site.durable.head() == head
        assert not (site.root / "preferences.json").exists()

    def test_with_a_damaged_memory_asks_again(self, site: Site) -> None:
        populate(site, 2)
        (site.root / "preferences.json").write_text("{")
        assert started(site, site.another(ask=lambda _question: "commit")).promote().branch == "main"
        assert "commit" in (site.root / "preferences.json").read_text()

    def test_with_a_memory_that_the_system_refuses_forgets_nothing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = Preferences(site.root / "preferences.json")
        memory.remember("local://first", "branch")
        read = Path.read_bytes

        def refused(path: Path) -> bytes:
            if path.name == "preferences.json":
                raise OSError(errno.EMFILE, "Too many open files")
            return read(path)

        with monkeypatch.context() as refusing:
            refusing.setattr(Path, "read_bytes", refused)
            with pytest.raises(OSError, match="Too many"):
                memory.remember("local://second", "commit")
        assert memory.get("local://first") == "branch"


class TestTheOrderOfOverrides:
    def test_the_call_beats_the_session_beats_the_engine(self, site: Site) -> None:
        engine = site.another(strategy="patch")
        assert started(site, engine).promote().sha == ""
        assert started(site, engine, strategy="branch").promote().branch == "gittrix/fix-the-bug"
        assert started(site, engine, strategy="branch").promote(strategy="commit").branch == "main"

    def test_what_is_remembered_beats_the_engine(self, site: Site) -> None:
        populate(site, 2)
        started(site, site.another(ask=lambda _question: "branch")).promote()
        assert started(site, site.another(strategy="commit")).promote().branch == "gittrix/fix-the-bug-2"

    def test_protection_beats_them_all(self, site: Site) -> None:
        durable = LocalDurable(site.durable.path, protected=["main"], sync=False)
        engine = site.another(durable=durable, strategy="commit")
        assert started(site, engine).promote().branch == "gittrix/fix-the-bug"
        assert started(site, engine, strategy="commit").promote().branch == "gittrix/fix-the-bug-2"
        session, head = started(site, engine), site.durable.head()
        with pytest.raises(PromoteFailed, match="protected"):
            session.promote(strategy="commit")
        assert site.durable.head() == head
        assert session.promote(strategy="patch").patch
