"""A promotion that is refused changes not a byte of durable, and the session goes on (rules 1 and 5)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine import Site, at_point, open_site, shell, work

from pytest_gittrix import points
from pytest_gittrix.backends import local
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError, InvalidInput, PathCollision, PromoteFailed, SecretsFound, WorktreeDirty, WriteRejected
from pytest_gittrix.record.eventlog import log as log_module


class TestARefusedPromotion:
    """Not a byte changes, and the session goes on."""

    def refused(self, site: Site, session: UserSession, error: type[GittrixError], *, match: str, **how: object) -> GittrixError:
        before = site.durable.fingerprint()
        with pytest.raises(error, match=match) as caught:
            session.promote(**how)  # type: ignore[arg-type]
        assert site.durable.fingerprint() == before
        assert site.state(session.id).state == "active"
        return caught.value

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        session = site.start()
        work(session)
        return session

    def test_for_want_of_changes(self, site: Site) -> None:
        error = self.refused(site, site.start(), PromoteFailed, match="nothing to promote")
        assert error.stage == "staging"  # type: ignore[attr-defined]

    def test_for_its_secrets_if_that_is_asked_for(self, site: Site) -> None:
        token = "ghp_" + "a1B2" * 9
        session = site.start()
        session.write("src/util.py", f"first\ntoken = '{token}'\n")
        session.write("deploy.pem", "x\n")
        session.write("plain.txt", "password\n")

        error = self.refused(site, session, SecretsFound, match="src/util.py: line 2: GitHub token", refuse_secrets=True)

        assert error.secrets == {  # type: ignore[attr-defined]
            "deploy.pem": ["holds credentials by its name"],
            "src/util.py": ["line 2: GitHub token"],
        }
        assert token not in str(error)
        self.refused(site, session, SecretsFound, match="1 selected file", refuse_secrets=True, allow_secrets=["deploy.pem"])
        assert session.promote(["plain.txt"], refuse_secrets=True).secrets == {}

    def test_after_create_and_delete_has_nothing_to_promote(self, site: Site) -> None:
        session = site.start()
        session.write("fleeting.txt", "x\n")
        session.delete("fleeting.txt")
        assert session.touched_files() == []
        self.refused(site, session, PromoteFailed, match="nothing to promote")

    @pytest.mark.parametrize("path", ["src/util.py", "run.sh"])
    def test_over_an_edit_that_is_not_committed(self, site: Site, session: UserSession, path: str) -> None:
        (site.durable.path / path).write_text("mine\n")
        self.refused(site, session, WorktreeDirty, match=path)

    def test_over_a_staged_edit(self, site: Site, session: UserSession) -> None:
        (site.durable.path / "src/util.py").write_text("mine\n")
        site.durable.git("add", "src/util.py")
        self.refused(site, session, WorktreeDirty, match="staged")

    def test_over_an_untracked_file(self, site: Site, session: UserSession) -> None:
        (site.durable.path / "new").mkdir()
        (site.durable.path / "new/file.txt").write_text("mine\n")
        self.refused(site, session, WorktreeDirty, match="untracked")

    def test_below_an_untracked_file(self, site: Site, session: UserSession) -> None:
        (site.durable.path / "new").write_text("mine\n")
        self.refused(site, session, WorktreeDirty, match="new")

    def test_over_a_file_the_human_deleted(self, site: Site, session: UserSession) -> None:
        (site.durable.path / "src/util.py").unlink()
        self.refused(site, session, WorktreeDirty, match=r"src/util\.py")

    def test_over_a_changed_mode(self, site: Site, session: UserSession) -> None:
        (site.durable.path / "src/util.py").chmod(0o755)
        self.refused(site, session, WorktreeDirty, match=r"src/util\.py")

    @pytest.mark.parametrize("state", ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge"])
    def test_while_something_is_under_way(self, site: Site, session: UserSession, state: str) -> None:
        path = site.durable.git_dir / state
        path.mkdir() if "-" in state else path.write_text(site.durable.head() + "\n")
        self.refused(site, session, WorktreeDirty, match="in progress")

    def test_when_a_linked_checkout_is_dirty(self, site: Site) -> None:
        site.durable.git("branch", "side")
        linked = site.root / "linked"
        site.durable.git("worktree", "add", "-q", str(linked), "side")
        session = site.start(durable_branch="side")
        session.write("app.py", "side\n")
        (linked / "app.py").write_text("mine\n")
        self.refused(site, session, WorktreeDirty, match="linked")

    @pytest.mark.parametrize("strategy", ["branch", "patch"])
    def test_for_a_dirty_checkout_can_land_elsewhere(self, site: Site, session: UserSession, strategy: str) -> None:
        (site.durable.path / "src/util.py").write_text("mine\n")
        session.promote(strategy=strategy)
        assert (site.durable.path / "src/util.py").read_text() == "mine\n"

    @pytest.mark.parametrize(("added", "twin"), [("readme.md", "README.md"), ("SRC/other.py", "src")])
    def test_for_a_name_that_differs_only_by_case(self, site: Site, added: str, twin: str) -> None:
        session = site.start()
        session.write(added, "x\n")
        error = self.refused(site, session, PathCollision, match="only by case")
        assert error.stage == "staging"  # type: ignore[attr-defined]
        assert error.fact == f"{added!r} differs from {twin!r} only by case or unicode form."
        assert error.why == "On many file systems the two are one file, and a checkout there loses one of them."
        assert error.fix == "Rename it in the workspace, or leave it out of the selection."

    def test_is_not_for_two_names_that_durable_has_already(self, tmp_path: Path) -> None:
        with open_site(tmp_path / "both", {"notes": "1\n", "NOTES": "2\n"}) as site:
            session = site.start()
            session.write("notes", "edited\n")
            assert [*site.durable.changed(session.promote().sha)] == ["notes"]

    def test_for_half_of_a_file_that_became_a_directory(self, site: Site) -> None:
        session = site.start()
        session.delete("app.py")
        session.write("app.py/inner", "x\n")
        error = self.refused(site, session, PromoteFailed, match="both a file and a directory", files=["app.py/inner"])
        assert error.stage == "staging"  # type: ignore[attr-defined]
        assert error.why == "The selection has only one half of a change from a file to a directory, or the reverse."
        assert error.fix == "Select the other half too."
        assert sorted(site.durable.changed(session.promote().sha)) == ["app.py", "app.py/inner"]

    def test_for_a_name_that_could_be_a_git_directory(self, site: Site, session: UserSession) -> None:
        shell(session, "mkdir -p 'git~1' && echo x > 'git~1/config'")
        self.refused(site, session, WriteRejected, match="git~1")
        session.promote(files=["run.sh"])
        assert site.durable.read("run.sh") == b"#!/bin/sh\nexit 1\n"

    def test_when_the_branch_is_gone(self, site: Site) -> None:
        site.durable.git("branch", "side")
        session = site.start(durable_branch="side")
        session.write("app.py", "x\n")
        site.durable.git("branch", "-D", "side")
        self.refused(site, session, InvalidInput, match="side")

    @pytest.mark.parametrize(
        ("how", "match"),
        [
            ({"strategy": "force"}, "auto, commit, branch, pr, patch"),
            ({"on_overlap": "ours"}, "refuse, allow-identical, merge"),
            ({"files": "run.sh"}, "not a list of paths"),
            ({"what": ["run.sh"], "files": ["run.sh"]}, "twice"),
            ({"hunks": {"src/util.py": [9]}}, "9"),
            ({"hunks": {"src/util.py": []}}, "No hunk"),
            ({"hunks": {"README.md": [1]}}, "no hunks"),
        ],
    )
    def test_for_an_argument_that_is_not_allowed(self, site: Site, session: UserSession, how: dict[str, object], match: str) -> None:
        self.refused(site, session, InvalidInput, match=match, **how)


def failing(number: int) -> Callable[[], None]:
    """A disk that refuses with this error."""

    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def refuse_events(monkeypatch: pytest.MonkeyPatch, *types: str) -> None:
    """From now on there is no room in the log for events of these types."""
    write = log_module.write_all

    def write_some(fd: int, line: bytes) -> None:
        if any(f'"{type_}"'.encode() in line for type_ in types):
            failing(errno.ENOSPC)()
        write(fd, line)

    monkeypatch.setattr(log_module, "write_all", write_some)


class TestADiskThatFailsWhileTheCommitLands:
    """Only the branch knows whether the commit is in: before it moved nothing happened, afterwards nothing may raise."""

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        session = site.start()
        work(session)
        return session

    @pytest.mark.parametrize(
        ("number", "fix"),
        [
            (errno.ENOSPC, "Free disk space, then promote again."),
            (errno.EROFS, "Check that you may write to the repository, then promote again."),
            (errno.EMFILE, "Close files that this process holds open, or raise its limit of them (ulimit -n), then promote again."),
            (errno.EIO, "Fix the cause, then promote again."),
        ],
    )
    def test_before_the_branch_moved_refuses_the_promotion(self, site: Site, session: UserSession, number: int, fix: str) -> None:
        before = site.durable.fingerprint()
        with pytest.raises(PromoteFailed) as caught, at_point("land:packed", failing(number)):
            session.promote()
        assert (caught.value.stage, caught.value.fact) == ("apply", f"Durable refused the commit: {os.strerror(number)}.")
        assert (caught.value.why, caught.value.fix) == ("The branch did not move.", fix)
        assert isinstance(caught.value.__cause__, OSError)
        assert {path: data for path, data in site.durable.fingerprint().items() if "objects" not in path} == {
            path: data for path, data in before.items() if "objects" not in path
        }
        last = site.events(session.id)[-1]
        assert (last.type, last.data["reason"]) == ("promote.aborted", os.strerror(number))
        assert site.durable.contains(session.promote().sha)
        assert site.durable.leftovers() == []

    def test_before_the_branch_moved_raises_what_says_itself_what_to_do(self, site: Site, session: UserSession) -> None:
        def refuse() -> None:
            raise WriteRejected("The pack is too large.", fix="Leave something out.")

        with pytest.raises(WriteRejected) as caught, at_point("land:packed", refuse):
            session.promote()
        assert caught.value.fix == "Leave something out."
        last = site.events(session.id)[-1]
        assert (last.type, last.data["reason"]) == ("promote.aborted", "The pack is too large.")

    def test_with_an_error_that_has_no_number_is_told_in_its_words(self, site: Site, session: UserSession) -> None:
        names: list[str] = []

        def refuse(name: str) -> None:
            names.append(name)
            if name == "land:packed":
                raise OSError("the disk is odd")

        with points.listening(refuse), pytest.raises(PromoteFailed) as caught:
            session.promote()
        assert (caught.value.fact, caught.value.fix) == (
            "Durable refused the commit: the disk is odd.",
            "Fix the cause, then promote again.",
        )
        assert names.index("land:packed") < names.index("promote:failed")

    @pytest.mark.parametrize(
        ("point", "warnings"),
        [
            ("land:moved", ("Input/output error",)),
            ("worktree:files-written", ()),  # the index is written again
            ("land:forwarded", ("Input/output error",)),
        ],
    )
    def test_after_the_branch_moved_ends_the_promotion_with_a_warning(
        self, site: Site, session: UserSession, point: str, warnings: tuple[str, ...]
    ) -> None:
        with at_point(point, failing(errno.EIO)):
            result = session.promote()
        assert result.warnings == warnings
        assert site.durable.head() == result.sha
        assert site.durable.status() == []
        assert site.durable.leftovers() == []
        state = site.state(session.id)
        assert (state.state, state.intent, state.workspace_present) == ("promoted", None, False)
        assert {"promote.done", "worktree.updated"} < set(site.types(session.id))

    def test_after_the_branch_moved_tells_of_a_checkout_it_could_not_bring_forward(self, site: Site, session: UserSession) -> None:
        def fail() -> None:
            (site.durable.git_dir / "index.lock").write_text("somebody's\n")
            failing(errno.EIO)()

        with at_point("land:moved", fail):
            result = session.promote()
        assert site.durable.head() == result.sha
        assert result.warnings[0] == "Input/output error"
        assert result.warnings[1].startswith(f"the checkout {site.durable.path} was left behind: ")
        assert [warning for warning in result.warnings if "\n" in warning] == []
        (stale,) = [event for event in site.events(session.id) if event.type == "worktree.stale"]
        assert stale.data["commit"] == result.sha
        assert "index.lock" in stale.data["reason"]

    @pytest.mark.parametrize(("point", "landed"), [("land:packed", False), ("land:moved", True)])
    def test_again_while_it_is_tidied_leaves_the_rest_to_a_recovery(
        self, site: Site, session: UserSession, point: str, landed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local, "release_pack", lambda *_, **__: failing(errno.EROFS)())
        with at_point(point, failing(errno.EIO)):
            if landed:
                remains, reason = session.promote().warnings
                assert remains.startswith("what the failed landing left could not be removed yet (Read-only file system)")
                assert "until `gittrix recover` finishes it" in remains
                assert reason == "Input/output error"
            else:
                with pytest.raises(PromoteFailed, match="Input/output error"):
                    session.promote()
        assert site.types(session.id)[-1] == "promote.intent"
        monkeypatch.undo()
        report = site.another().recover()
        assert (report.rolled_forward, report.rolled_back) == (([session.id], []) if landed else ([], [session.id]))
        assert site.state(session.id).intent is None
        assert site.durable.leftovers() == []


class TestALogThatIsFull:
    """What cannot be recorded undoes nothing and hides nothing; whoever comes next finds the open intent and ends it."""

    @pytest.fixture
    def session(self, site: Site) -> UserSession:
        session = site.start()
        session.write("app.py", "print('v2')\n")
        return session

    def test_hides_no_refusal(self, site: Site, session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
        (site.durable.path / "app.py").write_text("mine\n")
        refuse_events(monkeypatch, "promote.aborted")
        with pytest.raises(WorktreeDirty, match=r"app\.py"):
            session.promote()
        monkeypatch.undo()
        assert site.another().recover().rolled_back == [session.id]

    @pytest.mark.parametrize(
        ("type_", "warning"),
        [("promote.done", "the promotion is in, but could not be recorded yet: The event log "), ("worktree.updated", "The event log ")],
    )
    def test_turns_no_promotion_into_a_failure(
        self, site: Site, session: UserSession, type_: str, warning: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse_events(monkeypatch, type_)
        result = session.promote()
        assert site.durable.head() == result.sha
        (warned,) = result.warnings
        assert warned.startswith(warning)
        assert "No space left on device" in warned
        monkeypatch.undo()
        site.another().init()
        assert site.state(session.id).state == "promoted"
