"""A promotion that is refused changes not a byte of durable, and the session goes on (DESIGN rules 1 and 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Site, edited, open_site, shell

from pytest_gittrix.errors import GittrixError, InvalidInput, PathCollision, PromoteFailed, WorktreeDirty, WriteRejected
from pytest_gittrix.session.session import UserSession


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path) as opened:
        yield opened


def work(session: UserSession) -> None:
    """An edit, a new file, an edit of an executable, a deletion."""
    session.write("src/util.py", edited(3))
    session.write("new/file.txt", b"\0binary\xff")
    session.write("run.sh", "#!/bin/sh\nexit 1\n")
    session.delete("README.md")


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

    @pytest.mark.parametrize("added", ["readme.md", "SRC/other.py"])
    def test_for_a_name_that_differs_only_by_case(self, site: Site, added: str) -> None:
        session = site.start()
        session.write(added, "x\n")
        self.refused(site, session, PathCollision, match="only by case")

    def test_for_half_of_a_file_that_became_a_directory(self, site: Site) -> None:
        session = site.start()
        session.delete("app.py")
        session.write("app.py/inner", "x\n")
        self.refused(site, session, PromoteFailed, match="both a file and a directory", files=["app.py/inner"])
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
