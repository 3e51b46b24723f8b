"""What is set aside of unpromoted work: a patch that applies, and a commit that can be fetched (DESIGN rule 8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import EXECUTABLE, KINDS, SYMLINK, DurableGit, Site, edited, open_site, shell

from pytest_gittrix.session.archive import Archive
from pytest_gittrix.session.session import UserSession


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path) as opened:
        yield opened


def work(session: UserSession) -> None:
    session.write("src/util.py", edited(3))
    session.write("bin", b"\0\1\2binary\n")
    session.write("run.sh", "#!/bin/sh\nexit 1\n")
    session.write("no newline", "at the end")
    session.delete("README.md")


def restored(site: Site, session: UserSession) -> dict[str, tuple[str, str]]:
    """The tree that comes of applying the patch to the baseline."""
    copy = DurableGit(site.root / "copy")
    site.durable.git("clone", "-q", str(site.durable.path), str(copy.path))
    copy.git("checkout", "-q", "--detach", site.state(session.id).baseline)
    copy.git("apply", "--index", str(site.directory(session) / "archive.patch"))
    return copy.tree(copy.git("write-tree"))


def fetched(site: Site, session: UserSession) -> dict[str, tuple[str, str]]:
    """The tree of the archive's commit, fetched into durable."""
    repository = site.directory(session) / "archive.git"
    site.durable.git("fetch", "-q", str(repository), f"refs/gittrix/archive/{session.id}:refs/heads/rescued")
    assert site.durable.git("rev-parse", "rescued^") == site.state(session.id).baseline
    assert site.durable.git("fsck", "--strict", "--no-dangling") == ""
    return site.durable.tree("rescued")


class TestTheArchiveOfAnEndedSession:
    @pytest.mark.parametrize("object_format", ["sha1", "sha256"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_holds_everything_as_patch_and_as_commit(self, tmp_path: Path, kind: str, object_format: str) -> None:
        with open_site(tmp_path, object_format=object_format) as site:
            session = site.start(workspace=kind)
            work(session)
            tree = session.review().tree
            session.discard()
            expected = fetched(site, session)
            assert site.durable.git("rev-parse", "rescued^{tree}") == tree
            assert restored(site, session) == expected

    def test_holds_kinds_and_modes(self, site: Site) -> None:
        session = site.start()
        shell(session, "chmod +x app.py; rm link; ln -s run.sh link; ln -s nowhere new-link; rm -r src")
        session.discard()
        tree = fetched(site, session)
        assert {path: mode for path, (mode, _) in tree.items()} == {
            "README.md": "100644",
            "app.py": EXECUTABLE,
            "link": SYMLINK,
            "new-link": SYMLINK,
            "run.sh": EXECUTABLE,
        }
        assert restored(site, session) == tree

    def test_is_made_before_the_sweep_takes_the_workspace(self, site: Site) -> None:
        session = site.start()
        work(session)
        site.clock.advance(hours=5)
        site.engine.sweep()
        assert fetched(site, session)["bin"]

    def test_holds_what_the_agent_committed(self, site: Site) -> None:
        session = site.start()
        shell(session, "echo v2 > app.py; git add -A; git commit -qm mine; git checkout -q --detach; echo v3 > run.sh")
        session.discard()
        tree = fetched(site, session)
        assert site.durable.read("app.py", "rescued") == b"v2\n"
        assert site.durable.read("run.sh", "rescued") == b"v3\n"
        assert restored(site, session) == tree

    def test_is_not_made_of_nothing(self, site: Site) -> None:
        session = site.start()
        session.discard()
        assert not (site.directory(session) / "archive.patch").exists()
        assert not (site.directory(session) / "archive.git").exists()
        assert not site.state(session.id).archived

    def test_survives_gc_of_durable(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.discard()
        site.durable.git("gc", "-q", "--prune=now")
        assert fetched(site, session)["bin"]

    def test_is_never_in_durable(self, site: Site) -> None:
        before = site.durable.fingerprint()
        session = site.start()
        work(session)
        session.discard()
        assert site.durable.fingerprint() == before

    def test_is_recorded(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.discard()
        archive = site.state(session.id).archive
        assert archive is not None
        assert archive["touched"] == 5
        assert archive["commit"] == DurableGit(site.directory(session) / "archive.git", bare=True).git("rev-parse", archive["ref"])


class TestAPartialPromotion:
    def test_archives_the_rest(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.promote(files=["bin", "README.md"])
        assert site.state(session.id).archive["touched"] == 3  # type: ignore[index]
        tree = fetched(site, session)
        assert "bin" not in tree
        assert "README.md" in tree
        assert site.durable.read("src/util.py", "rescued") == edited(3).encode()
        assert restored(site, session) == tree

    def test_of_hunks_archives_the_whole_file(self, site: Site) -> None:
        session = site.start()
        session.write("src/util.py", edited(3, 30))
        session.promote(hunks={"src/util.py": [1]})
        fetched(site, session)
        assert site.durable.read("src/util.py", "rescued") == edited(3, 30).encode()

    def test_of_everything_archives_nothing(self, site: Site) -> None:
        session = site.start()
        work(session)
        session.promote()
        assert not (site.directory(session) / "archive.patch").exists()


class TestAnArchiveOnRequest:
    def test_leaves_the_session_active(self, site: Site) -> None:
        session = site.start()
        work(session)
        archive = session.archive()
        assert isinstance(archive, Archive)
        assert archive.touched == ("README.md", "bin", "no newline", "run.sh", "src/util.py")
        assert archive.patch.read_text(errors="surrogateescape").startswith("diff --git")
        assert session.touched_files() == [*archive.touched]

    def test_is_replaced_by_the_next(self, site: Site) -> None:
        session = site.start()
        work(session)
        first = session.archive()
        session.write("later.txt", "later\n")
        second = session.archive()
        assert first is not None
        assert second is not None
        assert first.commit != second.commit
        assert "later.txt" in fetched(site, session)

    def test_of_an_untouched_session_is_none(self, site: Site) -> None:
        assert site.start().archive() is None
