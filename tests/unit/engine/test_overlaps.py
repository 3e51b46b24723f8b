"""``GitTrix.overlaps()``: what live sessions have in common, and with what durable changed, before anybody promotes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.engine import KINDS, Site, edited

from pytest_gittrix.engine.overlaps import SessionOverlap
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import BaselineConflict


def seen(site: Site, *, look: bool = False) -> dict[str, SessionOverlap]:
    """The overlaps of all live sessions, by id, as another process sees them."""
    return {one.id: one for one in site.another().overlaps(look=look)}


def behind(session: UserSession, path: str) -> Path:
    """A file of a session's workspace, for what a program in it does behind the session's back."""
    return Path(str(session.workspace_path)) / path


@pytest.mark.parametrize("kind", [*KINDS, "overlay"])
@pytest.mark.parametrize(
    ("work", "drift", "conflict", "ends"),
    [
        ({"app.py": "print('ours')\n"}, {"README.md": "# Theirs\n"}, None, "lands"),
        ({}, {"README.md": "# Theirs\n"}, None, "nothing"),
        ({"src/util.py": edited(3)}, {"src/util.py": edited(30)}, "path", "merges"),
        ({"src/util.py": edited(3)}, {"src/util.py": edited(3)}, "path", "merges"),
        ({"src/util.py": edited(3)}, {"src/util.py": edited(3, text="theirs")}, "text", "conflict"),
        ({"app.py": None}, {"app.py": "print('theirs')\n"}, "tree", "conflict"),
        ({"new.txt": "ours\n"}, {"new.txt": "theirs\n"}, "tree", "conflict"),
        ({"new": "ours\n"}, {"new/deep.txt": "theirs\n"}, "tree", "conflict"),
    ],
)
def test_it_foresees_how_a_promotion_ends(
    site: Site, kind: str, work: dict[str, str | None], drift: dict[str, str | None], conflict: str | None, ends: str
) -> None:
    session = site.start(workspace=kind)
    for path, text in work.items():
        session.delete(path) if text is None else session.write(path, text)
    site.durable.commit(drift)
    types = site.types(session.id)

    one = seen(site)[session.id]

    assert (one.durable, one.ends) == (dict.fromkeys(work, conflict) if conflict else {}, ends)
    assert seen(site, look=True)[session.id] == one
    assert site.types(session.id) == types
    if conflict is not None:
        with pytest.raises(BaselineConflict) as refused:
            session.promote()
        assert refused.value.kinds == one.durable
    if ends == "conflict":
        with pytest.raises(BaselineConflict):
            session.promote(on_overlap="merge")
    elif ends == "lands":
        assert session.promote().sha


def test_sessions_that_touch_the_same_paths_name_each_other(site: Site) -> None:
    one, two, three, four = (site.start() for _ in range(4))
    one.write("app.py", "print('one')\n")
    one.write("dir", "a file\n")
    two.write("app.py", "print('two')\n")
    three.write("dir/deep.txt", "three\n")
    four.write("README.md", "# Four\n")

    found = seen(site)

    assert {id_: dict(each.sessions) for id_, each in found.items()} == {
        one.id: {two.id: ("app.py",), three.id: ("dir",)},
        two.id: {one.id: ("app.py",)},
        three.id: {one.id: ("dir/deep.txt",)},
        four.id: {},
    }
    two.discard()
    assert dict(seen(site)[one.id].sessions) == {three.id: ("dir",)}


def test_what_a_program_changed_is_seen_at_durables_paths_and_elsewhere_by_a_look(site: Site) -> None:
    one, two = site.start(), site.start()
    for session in (one, two):
        behind(session, "src/util.py").write_text(edited(3))
        behind(session, "app.py").write_text("print('a program')\n")
    site.durable.commit({"src/util.py": edited(30)})

    quick, whole = seen(site), seen(site, look=True)

    assert quick[one.id].durable == whole[one.id].durable == {"src/util.py": "path"}
    assert quick[one.id].sessions == {two.id: ("src/util.py",)}
    assert whole[one.id].sessions == {two.id: ("app.py", "src/util.py")}
    one.touched_files(), two.touched_files()
    assert seen(site) == whole


def test_an_ignored_file_that_durable_added_is_no_work(site: Site) -> None:
    site.durable.commit({".gitignore": "*.env\n"})
    session = site.start()
    behind(session, "local.env").write_text("KEY=1\n")
    site.durable.commit({"local.env": "KEY=2\n"})
    assert (seen(site)[session.id].durable, seen(site)[session.id].ends) == ({}, "nothing")


def test_other_branches_and_repositories_are_apart(site: Site, tmp_path: Path) -> None:
    site.durable.git("branch", "side")
    other = tmp_path / "other"
    shutil.copytree(site.durable.path, other)
    sessions = [site.start(), site.start(durable_branch="side"), site.start(durable_path=str(other))]
    for session in sessions:
        session.write("app.py", "print('mine')\n")
    assert all(one.sessions == {} for one in seen(site).values())


def test_after_a_rebase_the_overlap_with_durable_is_gone(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3))
    site.durable.commit({"src/util.py": edited(30)})
    assert seen(site)[session.id].ends == "merges"
    session.rebase()
    assert (seen(site)[session.id].durable, seen(site)[session.id].ends) == ({}, "lands")


def test_a_session_that_cannot_be_looked_at_says_why_and_hides_no_other(site: Site) -> None:
    broken, whole = site.start(), site.start()
    whole.write("app.py", "print('whole')\n")
    (site.directory(broken) / "engine/workspace.json").write_text("{")

    found = seen(site)

    assert found[broken.id].ends == "unknown"
    assert found[broken.id].problem
    assert found[whole.id].ends == "lands"


def test_it_changes_no_log_no_workspace_and_nothing_of_durables(site: Site) -> None:
    session = site.start()
    session.write("src/util.py", edited(3))
    site.durable.commit({"src/util.py": edited(30)})
    before, durable = files_of(site, session), site.durable.fingerprint()
    site.engine.overlaps(look=True)
    assert files_of(site, session) == before
    assert site.durable.fingerprint() == durable


def files_of(site: Site, session: UserSession) -> dict[Path, bytes]:
    """Every file of a session's directory, but for the record that is derived from its log."""
    files = (path for path in site.directory(session).rglob("*") if path.is_file() and path.name != "metadata.json")
    return {path: path.read_bytes() for path in files}
