"""The detector: branches and tags of durable that moved, and that no promotion explains (rule 6)."""

from __future__ import annotations

import json

import pytest
from support.engine import Site, shell

from pytest_gittrix.engine.operations.moved_refs import MovedRef
from pytest_gittrix.errors import SessionExpired


def test_nothing_moved_at_first(site: Site) -> None:
    session = site.start()
    session.write("app.py", "x\n")
    session.commit("mine")
    assert session.moved_refs() == []


@pytest.mark.parametrize("strategy", ["commit", "branch"])
def test_a_promotion_explains_its_move(site: Site, strategy: str) -> None:
    session = site.start()
    for number in range(3):
        other = site.start(f"task {number}")
        other.write(f"{number}.txt", "x\n")
        other.promote(strategy=strategy)
    assert session.moved_refs() == []


def test_a_promotion_of_another_engine_of_the_store_explains_its_move(site: Site) -> None:
    session = site.start()
    other = site.another().start_session("other")
    other.write("b.txt", "b\n")
    other.promote()
    assert session.moved_refs() == []


def test_a_commit_is_reported_with_where_it_was_and_is(site: Site) -> None:
    session, old = site.start(), site.durable.head()
    new = site.durable.commit({"app.py": "rival\n"})
    assert session.moved_refs() == [MovedRef("refs/heads/main", old, new)]


def test_new_and_lost_branches_and_tags_are_reported(site: Site) -> None:
    site.durable.git("branch", "doomed")
    head = site.durable.head()
    session = site.start()
    site.durable.git("branch", "-D", "doomed")
    site.durable.git("branch", "new/one")
    site.durable.git("tag", "v1")
    assert session.moved_refs() == [
        MovedRef("refs/heads/doomed", head, None),
        MovedRef("refs/heads/new/one", None, head),
        MovedRef("refs/tags/v1", None, head),
    ]


def test_a_commit_between_promotions_is_not_explained_by_them(site: Site) -> None:
    session, old = site.start(), site.durable.head()
    for number in range(2):
        other = site.start()
        other.write(f"{number}.txt", "x\n")
        other.promote()
        if not number:
            site.durable.commit({"rival.txt": "r\n"})
    assert session.moved_refs() == [MovedRef("refs/heads/main", old, site.durable.head())]


def test_a_rewind_is_reported_though_promotions_came_before(site: Site) -> None:
    site.durable.commit({"app.py": "second\n"})
    session, old = site.start(), site.durable.head()
    site.durable.git("reset", "-q", "--hard", "HEAD~1")
    assert session.moved_refs() == [MovedRef("refs/heads/main", old, site.durable.head())]


def test_packing_references_moves_nothing(site: Site) -> None:
    site.durable.git("branch", "side")
    session = site.start()
    site.durable.git("pack-refs", "--all", "--prune")
    assert session.moved_refs() == []


def test_an_agent_that_reaches_durable_through_a_worktree_is_found_out(site: Site) -> None:
    session, old = site.start(workspace="worktree"), site.durable.head()
    shell(session, "echo x > app.py; git commit -qam escaped; git branch -f planted; git tag trophy")
    escaped = shell(session, "git rev-parse HEAD").strip()
    assert session.moved_refs() == [MovedRef("refs/heads/planted", None, escaped), MovedRef("refs/tags/trophy", None, escaped)]
    assert site.durable.head() == old


def test_an_agent_in_a_clone_moves_nothing_whatever_it_does(site: Site) -> None:
    before = site.durable.fingerprint()
    session = site.start()
    shell(
        session,
        "echo x > app.py; git commit -qam mine; git branch -f planted; git tag trophy; git gc -q --prune=now; git push -q . HEAD:main2",
    )
    assert session.moved_refs() == []
    assert site.durable.fingerprint() == before


def test_after_the_end_it_is_not_known_any_more(site: Site) -> None:
    session = site.start()
    session.discard()
    with pytest.raises(SessionExpired):
        session.moved_refs()


def test_many_packed_references_are_stored_once_for_all_sessions_that_begin_with_them(site: Site) -> None:
    head = site.durable.head()
    packed = "".join(f"{head} refs/tags/v{number:03}\n" for number in range(400))
    (site.durable.path / ".git" / "packed-refs").write_text(f"# pack-refs with: peeled fully-peeled sorted \n{packed}")
    one, other = site.start("one"), site.start("other")
    notes = [site.store / session.id / "engine" for session in (one, other)]
    (shared,) = (site.store / ".references").iterdir()
    assert all((note / "refs.packed").samefile(shared) for note in notes)
    assert all((note / "refs.json").stat().st_size < 100 for note in notes)

    site.durable.git("tag", "-d", "v007")
    site.durable.git("tag", "v400")
    moved = [MovedRef("refs/tags/v007", head, None), MovedRef("refs/tags/v400", None, head)]
    assert one.moved_refs() == other.moved_refs() == moved

    one.discard()
    other.discard()
    site.engine.services.resources.trash.wait()
    site.engine.services.resources.trash.empty()
    later = site.start("later")
    assert (site.store / later.id / "engine" / "refs.packed").samefile(next((site.store / ".references").iterdir()))
    assert len(list((site.store / ".references").iterdir())) == 1  # the first file had no session left
    assert later.moved_refs() == []


def test_notes_that_hold_every_reference_are_read_as_before(site: Site) -> None:
    session, head = site.start(), site.durable.head()
    (site.store / session.id / "engine" / "refs.json").write_text(json.dumps({"refs/heads/main": head, "refs/tags/gone": head}))
    assert session.moved_refs() == [MovedRef("refs/tags/gone", head, None)]
