"""What is selected, and when drift forbids it: files, hunks, and the three ways to treat overlap (rules 4, 7)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine import EXECUTABLE, FILES, LINES, SUBMODULE, SYMLINK, Content, Site, edited, open_site, shell

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import BaselineConflict, InvalidInput, PromoteFailed


class TestFiles:
    def test_are_taken_whole_and_no_others(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "v2\n")
        session.write("b.txt", "b\n")
        assert [*site.durable.changed(session.promote(["b.txt"]).sha)] == ["b.txt"]

    @pytest.mark.parametrize(("files", "named"), [(["app.py", "run.sh"], r"run\.sh"), (["nowhere"], "nowhere"), (["src"], "'src'")])
    def test_that_were_not_touched_are_an_error_that_names_them(
        self, site: Site, session: UserSession, files: list[str], named: str
    ) -> None:
        session.write("app.py", "v2\n")
        head = site.durable.head()
        with pytest.raises(PromoteFailed, match=named) as caught:
            session.promote(files=files)
        assert caught.value.stage == "staging"
        assert "app.py" in caught.value.fix
        assert site.durable.head() == head

    def test_may_be_named_twice(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "v2\n")
        assert [*site.durable.changed(session.promote(["app.py", "app.py"]).sha)] == ["app.py"]

    def test_none_at_all_is_nothing_to_promote(self, session: UserSession) -> None:
        session.write("app.py", "v2\n")
        with pytest.raises(PromoteFailed, match="nothing"):
            session.promote(files=[])

    def test_that_are_ignored_count_if_they_were_written_by_name(self, tmp_path: Path) -> None:
        with open_site(tmp_path, FILES | {".gitignore": "*.log\n", "kept.log": "tracked\n"}) as site:
            session = site.start()
            session.write("named.log", "n\n")
            shell(session, "echo s > shell.log; echo changed > kept.log")
            assert session.touched_files() == ["kept.log", "named.log"]
            assert [*site.durable.changed(session.promote().sha)] == ["kept.log", "named.log"]


class TestHunks:
    def test_are_taken_by_number_and_the_rest_stays(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3, 20, 38))
        assert len(session.review().hunks["src/util.py"]) == 3
        session.promote(hunks={"src/util.py": [1, 3]})
        assert site.durable.read("src/util.py") == edited(3, 38).encode()
        assert (site.durable.path / "src/util.py").read_text() == edited(3, 38)
        assert site.durable.status() == []

    def test_go_together_with_whole_files(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3, 38))
        session.write("app.py", "v2\n")
        session.write("b.txt", "b\n")
        result = session.promote(files=["app.py"], hunks={"src/util.py": [2]})
        assert [*site.durable.changed(result.sha)] == ["app.py", "src/util.py"]
        assert site.durable.read("src/util.py") == edited(38).encode()

    def test_not_taken_are_archived(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3, 38))
        session.promote(hunks={"src/util.py": [1]})
        assert "changed 38" in (site.directory(session) / "archive.patch").read_text()

    @pytest.mark.parametrize("path", ["new.txt", "README.md", "link"])
    def test_of_what_has_none_are_an_error(self, site: Site, session: UserSession, path: str) -> None:
        shell(session, "echo n > new.txt; rm README.md link; ln -s run.sh link")
        assert not session.review().hunks
        with pytest.raises(InvalidInput, match="no hunks"):
            session.promote(hunks={path: [1]})

    @pytest.mark.parametrize("numbers", [[0], [2], [-1], [1, 5]])
    def test_that_there_are_not_are_an_error(self, session: UserSession, numbers: list[int]) -> None:
        session.write("src/util.py", edited(3))
        with pytest.raises(InvalidInput):
            session.promote(hunks={"src/util.py": numbers})

    def test_of_a_file_that_was_not_touched_are_an_error(self, session: UserSession) -> None:
        session.write("app.py", "v2\n")
        with pytest.raises(PromoteFailed, match=r"run\.sh"):
            session.promote(hunks={"run.sh": [1]})


def clash(session: UserSession, **how: str) -> BaselineConflict:
    with pytest.raises(BaselineConflict) as caught:
        session.promote(**how)  # type: ignore[arg-type]
    return caught.value


AGENT_EDIT = "cp /dev/stdin src/util.py <<X\nagent\nX"


class TestConflict:
    @pytest.mark.parametrize(
        ("agent", "rival", "kinds"),
        [
            ("echo agent > app.py", {"app.py": "rival\n"}, {"app.py": "text"}),
            ("sed -i 's/^line 3$/agent/' src/util.py", {"src/util.py": edited(38)}, {"src/util.py": "path"}),
            ("sed -i 's/^line 3$/agent/' src/util.py", {"src/util.py": edited(3)}, {"src/util.py": "text"}),
            ("echo agent > app.py", {"app.py": None}, {"app.py": "tree"}),
            ("rm app.py", {"app.py": "rival\n"}, {"app.py": "tree"}),
            ("rm app.py", {"app.py": None}, {"app.py": "tree"}),
            ("echo agent > new", {"new": "rival\n"}, {"new": "tree"}),
            ("mkdir new; echo agent > new/inner", {"new": "rival\n"}, {"new/inner": "tree"}),
            ("echo agent > new", {"new/inner": "rival\n"}, {"new": "tree"}),
            ("echo agent > src/util.py", {"src/util.py": None, "src/deep/er.txt": None, "src": "now a file\n"}, {"src/util.py": "tree"}),
            ("chmod +x app.py", {"app.py": "rival\n"}, {"app.py": "path"}),
            ("echo agent > app.py", {"app.py": (EXECUTABLE, "print('v1')\n")}, {"app.py": "path"}),
            ("rm link; ln -s run.sh link", {"link": (SYMLINK, "src")}, {"link": "tree"}),
            ("echo agent > app.py", {"app.py": (SYMLINK, "run.sh")}, {"app.py": "tree"}),
            ("echo agent > app.py", {"app.py": (SUBMODULE, "2" * 40)}, {"app.py": "tree"}),
            ("mv app.py moved.py", {"app.py": "rival\n"}, {"app.py": "tree"}),
            ("echo agent > app.py", {"app.py": None, "moved.py": "print('v1')\n"}, {"app.py": "tree"}),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_is_named_with_its_kind(
        self, site: Site, session: UserSession, agent: str, rival: dict[str, Content], kinds: dict[str, str]
    ) -> None:
        shell(session, agent)
        head = site.durable.commit(rival)
        conflict = clash(session)
        assert conflict.kinds == kinds
        assert conflict.conflicting_files == sorted(kinds)
        assert all(path in conflict.fact for path in kinds)
        assert site.durable.head() == head

    @pytest.mark.parametrize(
        ("agent", "rival"),
        [
            ("echo agent > app.py", {"run.sh": (EXECUTABLE, "rival\n")}),
            ("echo agent > src/new.py", {"src/util.py": "rival\n"}),
            ("echo agent > src/util.py", {"src/deep/er.txt": None}),
            ("rm src/util.py", {"src/other.py": "rival\n"}),
            ("echo agent > src.py", {"src/util.py": "rival\n"}),
        ],
    )
    def test_is_none_where_nothing_selected_changed(self, site: Site, session: UserSession, agent: str, rival: dict[str, Content]) -> None:
        shell(session, agent)
        head = site.durable.commit(rival)
        assert site.durable.parents(session.promote().sha) == [head]

    def test_is_none_if_the_drift_ends_where_it_began(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "agent\n")
        site.durable.commit({"app.py": "there\n"})
        back = site.durable.commit({"app.py": FILES["app.py"]})
        assert site.durable.parents(session.promote().sha) == [back]

    def test_is_none_for_what_is_not_selected(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "agent\n")
        session.write("run.sh", "agent\n")
        site.durable.commit({"app.py": "rival\n"})
        session.promote(files=["run.sh"])
        assert site.durable.read("app.py") == b"rival\n"

    def test_is_judged_on_trees_when_history_was_rewritten(self, site: Site) -> None:
        first = site.durable.head()
        site.durable.commit({"app.py": "second\n"})
        session = site.start()
        session.write("app.py", "agent\n")
        session.write("b.txt", "b\n")
        head = site.durable.commit({"run.sh": "rewritten\n"}, onto=first)
        assert clash(session).conflicting_files == ["app.py"]
        assert site.durable.parents(session.promote(files=["b.txt"]).sha) == [head]
        assert site.durable.read("app.py") == b"print('v1')\n"

    def test_is_found_after_a_rewind(self, site: Site) -> None:
        first = site.durable.head()
        site.durable.commit({"app.py": "second\n"})
        session = site.start()
        session.write("app.py", "agent\n")
        site.durable.git("reset", "-q", "--hard", first)
        assert clash(session).durable_sha == first

    def test_with_an_unrelated_history_is_judged_on_trees_too(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "agent\n")
        site.durable.git("checkout", "-q", "--orphan", "other")
        site.durable.git("rm", "-rqf", "src")
        site.durable.git("commit", "-qm", "orphan")
        site.durable.git("branch", "-M", "other", "main")
        root = site.durable.head()
        assert site.durable.parents(session.promote().sha) == [root]
        assert "src/util.py" not in site.durable.tree()

    def test_names_every_path(self, tmp_path: Path) -> None:
        names = [f"file{number:02}" for number in range(30)]
        with open_site(tmp_path, dict.fromkeys(names, "v1\n")) as site:
            session = site.start()
            shell(session, "for f in file*; do echo agent > $f; done")
            site.durable.commit(dict.fromkeys(names, "rival\n"))
            conflict = clash(session)
            assert conflict.conflicting_files == names
            assert "22 more" in conflict.fact

    def test_is_stored_as_an_event_and_the_session_goes_on(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "agent\n")
        site.durable.commit({"app.py": "rival\n"})
        clash(session)
        assert site.types(session.id)[-1] == "promote.conflict"
        session.write("b.txt", "b\n")
        assert session.touched_files() == ["app.py", "b.txt"]


class TestAllowIdentical:
    def test_lets_equal_bytes_pass_and_promotes_the_rest(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "same\n")
        session.write("b.txt", "b\n")
        head = site.durable.commit({"app.py": "same\n"})
        assert clash(session).conflicting_files == ["app.py"]
        result = session.promote(on_overlap="allow-identical")
        assert site.durable.parents(result.sha) == [head]
        assert [*site.durable.changed(result.sha)] == ["b.txt"]

    def test_lets_the_same_deletion_pass(self, site: Site, session: UserSession) -> None:
        session.delete("app.py")
        session.write("b.txt", "b\n")
        site.durable.commit({"app.py": None})
        assert [*site.durable.changed(session.promote(on_overlap="allow-identical").sha)] == ["b.txt"]

    @pytest.mark.parametrize("rival", ["same\nbut\n", (EXECUTABLE, "same\n")])
    def test_refuses_what_differs_in_bytes_or_mode(self, site: Site, session: UserSession, rival: Content) -> None:
        session.write("app.py", "same\n")
        site.durable.commit({"app.py": rival})
        assert clash(session, on_overlap="allow-identical").conflicting_files == ["app.py"]

    def test_with_nothing_left_promotes_nothing(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "same\n")
        head = site.durable.commit({"app.py": "same\n"})
        with pytest.raises(PromoteFailed, match="already has"):
            session.promote(on_overlap="allow-identical")
        assert site.durable.head() == head
        assert site.state(session.id).state == "active"


class TestMerge:
    def test_merges_what_merges_as_text(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3))
        head = site.durable.commit({"src/util.py": edited(38)})
        result = session.promote(on_overlap="merge")
        assert site.durable.parents(result.sha) == [head]
        assert site.durable.read("src/util.py") == edited(3, 38).encode()
        assert (site.durable.path / "src/util.py").read_text() == edited(3, 38)
        assert site.durable.status() == []

    def test_takes_the_mode_from_one_side_and_the_bytes_from_the_other(self, site: Site, session: UserSession) -> None:
        shell(session, "chmod +x app.py")
        site.durable.commit({"app.py": "rival\n"})
        result = session.promote(on_overlap="merge")
        assert site.durable.changed(result.sha)["app.py"][0] == EXECUTABLE  # type: ignore[index]
        assert site.durable.read("app.py") == b"rival\n"

    def test_lets_equal_bytes_pass_too(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "same\n")
        session.write("b.txt", "b\n")
        site.durable.commit({"app.py": "same\n"})
        assert [*site.durable.changed(session.promote(on_overlap="merge").sha)] == ["b.txt"]

    def test_refuses_all_if_one_path_does_not_merge(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3))
        session.write("app.py", "agent\n")
        head = site.durable.commit({"src/util.py": edited(38), "app.py": "rival\n"})
        conflict = clash(session, on_overlap="merge")
        assert conflict.kinds == {"app.py": "text"}
        assert site.durable.head() == head

    def test_that_makes_no_difference_is_no_commit(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3))
        head = site.durable.commit({"src/util.py": edited(3, 38)})
        with pytest.raises(PromoteFailed, match="already has"):
            session.promote(on_overlap="merge")
        assert site.durable.head() == head

    def test_refuses_binary_files(self, site: Site, session: UserSession) -> None:
        session.write("app.py", b"\0agent")
        site.durable.commit({"app.py": b"\0rival"})
        assert clash(session, on_overlap="merge").kinds == {"app.py": "text"}

    def test_of_chosen_hunks_merges_those(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3, 20))
        site.durable.commit({"src/util.py": edited(38)})
        session.promote(hunks={"src/util.py": [1]}, on_overlap="merge")
        assert site.durable.read("src/util.py") == edited(3, 38).encode()

    def test_is_only_offered_where_it_would_work(self, site: Site, session: UserSession) -> None:
        session.write("src/util.py", edited(3))
        site.durable.commit({"src/util.py": edited(38)})
        assert "merge" in clash(session).opt_out
        site.durable.commit({"src/util.py": LINES.replace("line 3\n", "rival\n")})
        assert "merge" not in clash(session).opt_out
