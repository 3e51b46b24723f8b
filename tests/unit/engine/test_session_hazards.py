"""Promotions of names and contents that other machines or programs cannot take, and repositories that are not where or what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Site, open_site, shell
from support.git import GitRepo

from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, HazardousPath, InvalidInput


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, {"app.py": "1\n", "aux.c": "old\n"}) as opened:
        yield opened


class TestHazards:
    def test_are_a_warning_for_each_new_path_and_in_the_review(self, site: Site) -> None:
        session = site.start()
        for path in ("nul", "lib/a:b", "plain", "aux.c"):
            session.write(path, "x\n")
        assert [*session.review().hazards] == ["lib/a:b", "nul"]
        assert [*session.review(["nul"]).hazards] == ["nul"]
        assert [line.partition(" ")[0] for line in session.promote().warnings] == ["'lib/a:b'", "'nul'"]
        assert site.durable.read("nul") == b"x\n"

    def test_are_refused_if_that_is_asked_for(self, site: Site) -> None:
        session = site.start()
        session.write("nul", "x\n")
        session.write("plain", "x\n")
        before = site.durable.fingerprint()
        with pytest.raises(HazardousPath, match="on Windows 'nul' is a device") as caught:
            session.promote(on_hazard="refuse")
        assert (caught.value.hazards.keys(), caught.value.stage) == ({"nul"}, "staging")
        assert site.durable.fingerprint() == before
        assert site.durable.changed(session.promote(["plain"], on_hazard="refuse").sha).keys() == {"plain"}

    def test_are_allowed_without_a_word(self, site: Site) -> None:
        session = site.start()
        session.write("nul", "x\n")
        assert session.promote(on_hazard="allow").warnings == ()

    def test_are_treated_in_a_way_that_there_is(self, site: Site) -> None:
        session = site.start()
        session.write("nul", "x\n")
        with pytest.raises(InvalidInput, match="on_hazard='ignore'"):
            session.promote(on_hazard="ignore")

    def test_are_repositories_in_the_workspace_too(self, site: Site) -> None:
        session = site.start()
        shell(
            session,
            "git init -q --bare off && git -C off hash-object -w --stdin < app.py; mv off .git_disabled; git init -q lib; echo x > lib/a",
        )
        with pytest.raises(HazardousPath, match=r"'\.git_disabled' is a hazard") as caught:
            session.promote(on_hazard="refuse")
        assert [*caught.value.hazards] == [".git_disabled", "lib"]
        assert sum("is a hazard" in line for line in session.promote().warnings) == 2

    def test_are_counted_where_there_are_many(self, site: Site) -> None:
        session = site.start()
        for number in range(60):
            session.write(f"a{number}.", "x\n")
        warnings = session.promote().warnings
        assert (len(warnings), warnings[-1]) == (51, "and 10 more")


class TestABareRepositoryWithAWorkTree:
    def test_is_told_and_its_checkout_follows(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "2\n")
        site.durable.git("config", "core.bare", "true")
        (warning,) = session.promote().warnings
        assert "core.bare is true" in warning
        assert "`git config core.bare false`" in warning
        site.durable.git("config", "core.bare", "false")
        assert (site.durable.status(), (site.durable.path / "app.py").read_text()) == ([], "2\n")

    def test_without_its_files_is_bare(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "2\n")
        site.durable.git("config", "core.bare", "true")
        for path in ("app.py", "aux.c"):
            (site.durable.path / path).unlink()
        assert session.promote().warnings == ()
        assert site.durable.read("app.py") == b"2\n"
        assert not (site.durable.path / "app.py").exists()


class TestARepositoryThatMoved:
    def test_is_named_by_the_error_with_what_works(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "2\n")
        moved = site.durable.path.rename(site.root / "moved")
        with pytest.raises(AdapterUnavailable, match=r"is not at .*durable any more") as caught:
            session.promote()
        assert f"gittrix session relocate {session.id}" in caught.value.command_message()
        session.relocate(moved)
        result = session.promote()
        assert GitRepo(moved).head() == result.sha
        assert GitRepo(moved).status() == []
        state = site.state(session.id)
        assert (state.durable_path, state.durable_ref) == (str(moved), f"local://{moved}#main")
        assert "session.relocated" in site.types(session.id)

    def test_is_found_again_by_another_engine(self, site: Site) -> None:
        session = site.start()
        session.write("app.py", "2\n")
        moved = site.durable.path.rename(site.root / "moved")
        session.relocate(moved / ".git")
        other = site.another(durable=str(moved))
        assert other.get_session(session.id).promote().sha == GitRepo(moved).head()

    def test_is_not_another_one(self, site: Site) -> None:
        session = site.start()
        other = GitRepo.make(site.root / "other", {"a": "b\n"})
        with pytest.raises(AdapterUnavailable, match="has no commit"):
            session.relocate(other.path)
        with pytest.raises(AdapterUnavailable, match="is not a directory"):
            session.relocate(site.root / "nowhere")
        assert site.state(session.id).durable_path == str(site.durable.path)

    def test_cannot_be_followed_by_a_linked_work_tree(self, site: Site) -> None:
        session = site.start(workspace="worktree")
        with pytest.raises(CapabilityMissing, match="cannot be given another path"):
            session.relocate(site.durable.path)
