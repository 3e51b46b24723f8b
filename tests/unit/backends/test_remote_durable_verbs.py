"""The adapter to a remote by itself, and its mirror."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.remote import Far

from pytest_gittrix.backends.local import LocalDurable, LocalEphemeral
from pytest_gittrix.backends.remote import RemoteDurable
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.errors import CapabilityMissing, InvalidInput, UnsupportedRepository
from pytest_gittrix.git.environment import run_git
from pytest_gittrix.git.refs import RefMoved
from pytest_gittrix.git.tree import Entry
from pytest_gittrix.testing.repos.remote_repos import BareRemote


def blob(far: Far, text: str) -> tuple[Entry, dict[str, bytes]]:
    """A file of this text, and its bytes by id."""
    data = text.encode()
    id_ = far.git.git("hash-object", "--stdin", stdin=data)
    return Entry(0o100644, id_), {id_: data}


# The adapter by itself -------------------------------------------------------------------------------------------------------------


def test_a_landing_that_expects_another_head_moves_nothing_and_says_where_the_branch_is(far: Far) -> None:
    durable = far.durable()
    old = durable.head("main")
    entry, blobs = blob(far, "mine\n")
    built = durable.build(old, {"app.py": entry}, blobs, message="late", seconds=1893456000)
    current = far.remote.diverge()

    with far.remote.repo.unchanged(objects=True), pytest.raises(RefMoved) as caught:
        durable.land("main", built, {"app.py": entry}, expected=old, note="", keep="", seconds=1893456000, settle=lambda _text: False)

    assert caught.value.current == current
    assert not durable.contains("main", built.id)
    assert far.left_in_mirror() == []


def test_a_landing_on_a_branch_that_should_not_exist_refuses_to_take_it(near: Far) -> None:
    durable = near.durable()
    head = durable.head("main")
    entry, blobs = blob(near, "mine\n")
    built = durable.build(head, {"app.py": entry}, blobs, message="new", seconds=1893456000)

    with pytest.raises(RefMoved) as caught:
        durable.land("main", built, {"app.py": entry}, expected=None, note="", keep="", seconds=1893456000, settle=lambda _text: False)

    assert caught.value.current == head
    assert near.git.head() == head


def test_a_remote_that_knows_no_atomic_push_is_pushed_to_all_the_same(near: Far) -> None:
    near.git.git("config", "receive.advertiseAtomic", "false")
    session = near.site.start()
    session.write("app.py", "print('v2')\n")

    assert session.promote().sha == near.git.head()


def test_the_remote_is_asked_for_its_branches_and_tags(far: Far) -> None:
    far.git.git("tag", "v1", "main")
    far.git.git("-c", "user.name=A", "-c", "user.email=a@b", "tag", "-a", "-m", "annotated", "v2", "main")
    durable = far.durable()
    assert set(durable.references()) == {"refs/heads/main", "refs/tags/v1", "refs/tags/v2"}

    new = far.git.commit({"x": "1"}, branch="next")

    assert durable.references()["refs/heads/next"] == new
    assert durable.references()["refs/tags/v2"] == far.git.git("rev-parse", "refs/tags/v2")


def test_commits_are_found_on_the_branch_that_holds_them_and_on_no_other(far: Far) -> None:
    durable = far.durable()
    first = far.git.head()
    second = far.git.commit({"x": "1"})
    side = far.git.commit({"y": "1"}, branch="side", onto=first)

    assert durable.contains("main", first)
    assert durable.contains("main", second)
    assert not durable.contains("main", side)
    assert not durable.contains("nowhere", first)
    assert not durable.contains("main", "f" * 40)
    assert not durable.contains("main", "--all")


def test_branches_whose_names_stand_in_each_others_way_can_follow_one_another(near: Far) -> None:
    durable = near.durable()
    near.git.commit({"x": "1"}, branch="topic")
    assert durable.head("topic") == near.git.head("topic")

    near.git.git("branch", "-D", "topic")
    new = near.git.commit({"x": "2"}, branch="topic/part")

    assert durable.head("topic/part") == new
    with pytest.raises(InvalidInput, match="no branch 'topic'"):
        durable.head("topic")


def test_a_branch_that_is_not_there_is_refused_with_those_that_are(far: Far) -> None:
    with pytest.raises(InvalidInput, match="Branches there: main"):
        far.site.start(durable_branch="nowhere")

    assert far.site.engine.list_sessions() == []


def test_people_are_counted_and_declared_branches_are_protected(near: Far) -> None:
    near.git.commit({"x": "1"}, author="Ann <ann@example.com>")
    durable = near.durable(protected=["main"])

    assert durable.contributors("main", 6) == 2
    assert durable.protected("main")
    assert not durable.protected("next")


def test_a_protected_branch_gets_the_work_on_a_branch_of_its_own(near: Far) -> None:
    engine = near.site.another(durable=near.durable(protected=["main"]), strategy="auto")
    session = engine.start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    assert session.promote().branch == "gittrix/fix-the-bug"


# The mirror ------------------------------------------------------------------------------------------------------------------------


def test_a_mirror_is_no_repository_to_anybody_else(near: Far) -> None:
    near.durable().head("main")

    with pytest.raises(UnsupportedRepository, match="openwithremotedurable"):
        LocalDurable(near.mirror)


def test_a_mirror_holds_no_branch_that_could_be_taken_for_the_remotes(near: Far) -> None:
    near.durable().head("main")

    names = run_git(["for-each-ref", "--format=%(refname)"], cwd=near.mirror / "repository").decode().split()

    assert len(names) == 1
    assert names[0].startswith("refs/gittrix/")


def test_one_mirror_is_of_one_remote_only(near: Far, tmp_path: Path) -> None:
    near.durable().head("main")
    with BareRemote.make(tmp_path / "another.git") as other:
        with pytest.raises(InvalidInput, match="is the mirror of"):
            RemoteDurable(other.url, mirror=near.mirror).head("main")


def test_a_directory_with_something_in_it_is_not_made_a_mirror(near: Far, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine\n")

    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        near.durable(mirror=tmp_path / "full").head("main")

    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_what_a_killed_git_left_in_the_mirror_is_no_obstacle(near: Far) -> None:
    near.durable().head("main")
    repository = near.mirror / "repository"
    (reference,) = (repository / "refs" / "gittrix").iterdir()
    for left in (f"{reference}.lock", repository / "objects" / "pack" / "tmp_pack_dead", repository / "config.lock"):
        Path(left).write_text("half")
    new = near.remote.diverge()

    assert near.durable().head("main") == new
    assert near.left_in_mirror() == []


def test_a_mirror_that_was_thrown_away_is_made_again(near: Far) -> None:
    near.site.start()
    near.mirror.rename(near.site.root / "gone")
    new = near.remote.diverge()
    session = near.site.another(durable=near.durable(), home=near.site.root / "elsewhere").start_session("again")
    session.write("app.py", "print('v2')\n")

    assert near.git.parents(session.promote().sha) == [new]


def test_a_linked_work_tree_of_a_remote_is_refused(near: Far) -> None:
    engine = near.site.another(ephemeral=LocalEphemeral(kind="worktree"))

    with pytest.raises(CapabilityMissing):
        engine.start_session("fix the bug")


def test_nothing_of_the_users_git_is_used(near: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "users-home"
    home.mkdir()
    lines = f'[credential]\n\thelper = "!touch {tmp_path}/asked"\n[url "{tmp_path}/elsewhere"]\n\tinsteadOf = {near.url}\n'
    (home / ".gitconfig").write_text(lines)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {tmp_path}/asked")

    assert near.durable().head("main") == near.git.head()
    assert not (tmp_path / "asked").exists()


def test_an_engine_that_was_told_of_no_repository_finds_the_remote_of_a_session(near: Far) -> None:
    session = near.site.start("fix the bug")
    session.write("app.py", "print('v2')\n")
    assert session.metadata()["durableRef"].endswith("#main")
    assert session.metadata()["durableRef"].startswith("file://")

    with GitTrix(None, store=near.site.engine.store.root, clock=near.site.clock, sweep_interval=None, durability="fast") as engine:
        result = engine.get_session(session.id).promote()

    assert near.git.head() == result.sha
