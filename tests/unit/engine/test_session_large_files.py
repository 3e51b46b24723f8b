"""A file over the limit of a snapshot: named wherever changes are shown, refused by a promotion, and set aside with the other work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import EXECUTABLE, FILE, Site, kill_at, open_site, shell
from support.git import FORMATS

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.engine.eviction import archive
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, WriteRejected
from pytest_gittrix.workspaces import walk
from pytest_gittrix.workspaces.walk import Limits

LIMIT, SIZE = 1000, 1_500_000
SMALL = LocalEphemeral(limits=Limits(max_file=LIMIT))
REASON = f"it has {SIZE} bytes; the limit is {LIMIT}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, ephemeral=SMALL) as opened:
        yield opened


@pytest.fixture
def session(site: Site) -> UserSession:
    """A small change, and a large new file that may be run."""
    started = site.start()
    started.write("app.py", "mine\n")
    shell(started, f"mkdir data; head -c {SIZE} /dev/urandom > data/big; chmod +x data/big")
    return started


def large_file(session: UserSession) -> bytes:
    assert session.workspace_path is not None
    return (session.workspace_path / "data/big").read_bytes()


def archived(site: Site, session: UserSession) -> dict[str, tuple[str, str]]:
    """What the archive's commit changes, fetched into durable and checked by git."""
    site.durable.git("fetch", "-q", str(site.directory(session) / "archive.git"), f"refs/gittrix/archive/{session.id}:refs/heads/rescued")
    assert site.durable.git("fsck", "--strict", "--no-dangling") == ""
    return {path: entry for path, entry in site.durable.changed("rescued").items() if entry is not None}


class TestIsNamed:
    def test_among_the_touched_files(self, session: UserSession) -> None:
        assert session.touched_files() == ["app.py", "data/big"]
        assert session.info().touched_files == ("app.py", "data/big")

    def test_before_the_diff_which_git_still_applies(self, site: Site, session: UserSession, tmp_path: Path) -> None:
        note = f"Not in this patch: 'data/big': {REASON}.\n"
        for diff in (session.diff(), session.review().diff):
            assert diff.startswith(note)
            (tmp_path / "diff").write_text(diff)
            site.durable.git("apply", "--check", str(tmp_path / "diff"))

        assert session.diff(["data/big"]) == note
        assert "Not in this patch" not in session.diff(["app.py"])

    def test_where_the_agent_commits_and_where_its_files_are_put_by(self, site: Site, session: UserSession) -> None:
        line = f"'data/big': {REASON}"
        session.commit("without it")
        forked = session.fork(files="now")
        session.write("app.py", "more\n")
        session.checkpoint()

        assert session.history(["session.commit"])[0].data["left_out"] == [line]
        assert session.history(["workspace.kept"])[-1].data["left_out"] == [line]
        assert [event.data["left_out"] for event in forked.history(["workspace.kept"])] == [[line]]
        assert (forked.read("app.py"), forked.exists("data/big")) == (b"mine\n", False)

    def test_by_a_fork_that_has_nothing_else(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "print('v1')\n")

        forked = session.fork(files="now")

        assert forked.touched_files() == []
        assert [event.data["left_out"] for event in forked.history(["workspace.kept"])] == [[f"'data/big': {REASON}"]]

    def test_by_a_review_with_the_reason(self, session: UserSession) -> None:
        review = session.review()

        assert review.touched == ["app.py", "data/big"]
        assert review.refused == {"data/big": REASON}
        assert list(review.changes) == ["app.py"]

    def test_by_the_refusal_of_a_promotion(self, session: UserSession) -> None:
        for files in (None, ["data/big"]):
            with pytest.raises(WriteRejected, match="'data/big' cannot be promoted: it has"):
                session.promote(files=files)


class TestIsSetAside:
    def test_by_an_archive_of_a_session_that_goes_on(self, site: Site, session: UserSession) -> None:
        content = large_file(session)
        kept = session.archive()

        assert kept is not None
        assert (kept.touched, kept.large) == (("app.py", "data/big"), ("data/big",))
        assert kept.patch.read_text().startswith("Not in this patch: 'data/big'")
        assert {path: mode for path, (mode, _) in archived(site, session).items()} == {"app.py": FILE, "data/big": EXECUTABLE}
        assert site.durable.read("data/big", "rescued") == content

    def test_when_the_session_ends(self, site: Site, session: UserSession) -> None:
        content = large_file(session)
        session.discard()

        assert set(archived(site, session)) == {"app.py", "data/big"}
        assert site.durable.read("data/big", "rescued") == content
        assert not (site.directory(session) / "archive.workspace").exists()
        (event,) = (event.data for event in site.events(session.id) if event.type == "archive.written")
        assert event["touched"] == 2

    @pytest.mark.parametrize("object_format", FORMATS)
    def test_when_it_alone_was_changed(self, tmp_path: Path, object_format: str) -> None:
        with open_site(tmp_path, object_format=object_format, ephemeral=SMALL) as site:
            session = site.start()
            shell(session, f"head -c {SIZE} /dev/zero > app.py")
            session.discard()

            assert set(archived(site, session)) == {"app.py"}
            assert site.durable.read("app.py", "rescued") == bytes(SIZE)

    def test_when_the_rest_is_promoted(self, site: Site, session: UserSession) -> None:
        session.promote(files=["app.py"])

        assert set(archived(site, session)) == {"data/big"}

    def test_with_the_deletion_that_made_room_for_it(self, site: Site) -> None:
        session = site.start()
        shell(session, f"rm app.py; mkdir app.py; echo small > app.py/small; head -c {SIZE} /dev/zero > app.py/big")
        session.promote(files=["app.py", "app.py/small"])

        assert set(archived(site, session)) == {"app.py/big"}
        assert "app.py" not in site.durable.tree("rescued")

    def test_after_a_kill_as_well(self, site: Site, session: UserSession) -> None:
        kill_at("evict:apart", session.discard)
        site.another().init()

        assert set(archived(site, session)) == {"app.py", "data/big"}

    def test_as_a_whole_workspace_if_it_is_more_than_is_copied(
        self, site: Site, session: UserSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive, "_MOST_COPIED", SIZE - 1)
        content = large_file(session)
        with pytest.raises(AdapterUnavailable, match="'data/big' is not archived"):
            session.archive()
        session.discard()

        assert (site.directory(session) / "archive.workspace/data/big").read_bytes() == content
        whole: Any = next(event.data for event in site.events(session.id) if event.data.get("patch") == "archive.workspace")
        assert "'data/big' is not archived" in whole["reason"]


def test_one_that_durable_has_is_no_change_until_it_differs(tmp_path: Path) -> None:
    with open_site(tmp_path, {"big": b"x" * 5000, "d/big": b"y" * 5000}, ephemeral=SMALL) as site:
        session = site.start()
        shell(session, "cp big copy; mv copy big; mv d e; mv e d; touch d/big")
        assert (session.touched_files(), session.review().refused) == ([], {})

        shell(session, "echo more >> big; chmod +x d/big")
        assert session.touched_files() == ["big", "d/big"]


def test_one_of_another_size_is_not_read_and_one_of_the_same_size_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "_SETTLED_NS", -1)
    hashed: list[str] = []
    real = walk._hash_file

    def hash_file(parent: int, name: str, *rest: Any) -> str:
        hashed.append(name)
        return real(parent, name, *rest)

    monkeypatch.setattr(walk, "_hash_file", hash_file)
    with open_site(tmp_path, {"grown": b"x" * 5000, "edited": b"y" * 5000, "rewritten": b"z" * 5000}, ephemeral=SMALL) as site:
        session = site.start()
        shell(session, "echo more >> grown; tr y w < edited > e; cat e > edited; rm e; cp rewritten r; mv r rewritten")
        for _ in range(3):
            assert session.touched_files() == ["edited", "grown"]

        assert sorted(hashed) == ["edited", "rewritten"]
        shell(session, "tr w v < edited > e; cat e > edited; rm e")
        assert session.touched_files() == ["edited", "grown"]
        assert hashed.count("edited") == 2
        monkeypatch.setattr(walk, "_MOST_HASHED", 1)
        shell(session, "tr v u < edited > e; cat e > edited; rm e")
        assert session.touched_files() == ["edited", "grown"]
        assert len(walk._HASHED) == 1
