"""A durable repository behind ``file://`` and behind HTTP: sessions start from it, promote to it and never hide what it has become."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.engine import FILES, at_point, edited, kill_at
from support.git import git
from support.remote import Far, open_far
from support.secret_forms import github

from pytest_gittrix.engine.operations.ids import seeded_ids
from pytest_gittrix.errors import BaselineConflict, SecretsFound
from pytest_gittrix.git.consolidation import MOST_PACKS
from pytest_gittrix.git.objects import SHA1
from pytest_gittrix.git.pack import build_pack, install_pack
from pytest_gittrix.workspaces.kinds import WorkspaceKind

# Starting and promoting ------------------------------------------------------------------------------------------------------------


def test_a_promotion_is_one_commit_on_the_head_of_the_remote(far: Far) -> None:
    before = far.git.head()
    session = far.site.start("fix the bug")
    session.write("app.py", "print('v2')\n")
    session.delete("README.md")

    result = session.promote()

    assert far.git.head() == result.sha
    assert far.git.parents(result.sha) == [before]
    assert set(far.git.changed(result.sha)) == {"app.py", "README.md"}
    assert far.git.read("app.py") == b"print('v2')\n"
    assert far.git.git("log", "-1", "--format=%an <%ae> %s") == "Human <human@example.com> gittrix: fix the bug"
    assert far.git.git("fsck", "--strict") == ""
    assert far.git.leftovers() == []
    assert far.left_in_mirror() == []


def test_the_same_holds_where_objects_are_named_by_sha256(tmp_path: Path) -> None:
    with open_far(tmp_path, object_format="sha256") as far:
        session = far.site.start()
        session.write("app.py", "print('v2')\n")

        sha = session.promote().sha

        assert len(sha) == 64
        assert far.git.head() == sha
        assert far.git.read("app.py") == b"print('v2')\n"


def test_one_promotion_after_another_lands_without_fetching_its_own_commit_back(near: Far) -> None:
    for number in range(3):
        session = near.site.start()
        session.write("app.py", f"print({number})\n")
        sha = session.promote().sha
        assert near.site.options["durable"].commit(sha).id == sha

    assert int(near.git.git("rev-list", "--count", "main")) == 4


@pytest.mark.parametrize("killed", [False, True])
def test_the_mirror_has_few_packs_however_many_there_were(near: Far, killed: bool) -> None:
    session = near.site.start()
    session.write("app.py", "print(2)\n")
    objects = near.mirror / "repository/objects"
    earlier = {SHA1.hash_object("blob", b"%d" % number): ("blob", b"%d" % number) for number in range(MOST_PACKS)}
    for id_, blob in earlier.items():
        install_pack(str(objects), build_pack({id_: blob}, SHA1))

    if killed:
        kill_at("land:consolidated", session.promote)
        assert near.site.another().recover().rolled_forward == [session.id]
    else:
        session.promote()

    assert near.git.read("app.py") == b"print(2)\n"
    assert len([*(objects / "pack").glob("*.pack")]) < 5
    for id_, (_, data) in earlier.items():
        assert git("--git-dir", str(objects.parent), "cat-file", "blob", id_) == data


@pytest.mark.parametrize("kind", ["clone", "lazy", "copy"])
def test_every_kind_of_workspace_that_needs_no_local_repository_works(near: Far, kind: WorkspaceKind) -> None:
    session = near.site.start(workspace=kind)
    assert session.read("app.py") == b"print('v1')\n"
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "not selected\n")

    sha = session.promote(files=["app.py"]).sha

    assert set(near.git.changed(sha)) == {"app.py"}
    assert near.site.state(session.id).state == "promoted"


def test_a_session_can_be_forked_handed_on_and_discarded_far_from_its_repository(near: Far) -> None:
    session = near.site.start()
    session.write("app.py", "print('v2')\n")
    child = session.fork()
    heir = session.handoff()
    assert (child.read("app.py"), heir.read("app.py")) == (b"print('v2')\n", b"print('v2')\n")

    child.discard()
    sha = heir.promote().sha

    assert near.git.head() == sha
    assert {near.site.state(one.id).state for one in (session, child, heir)} == {"promoted", "discarded"}


def test_moves_of_the_remotes_branches_without_a_promotion_are_detected(near: Far) -> None:
    session = near.site.start()
    session.write("app.py", "print('v2')\n")
    new = near.git.commit({"x": "1"}, branch="next")

    assert [(move.ref, move.new) for move in near.site.engine.moved_refs(session.id)] == [("refs/heads/next", new)]


def test_what_others_pushed_meanwhile_is_seen_although_the_mirror_is_old(far: Far) -> None:
    session = far.site.start()
    session.write("app.py", "print('mine')\n")
    theirs = far.remote.diverge({"app.py": "print('theirs')\n"})

    with far.remote.repo.unchanged(objects=True), pytest.raises(BaselineConflict) as caught:
        session.promote()

    assert caught.value.conflicting_files == ["app.py"]
    assert caught.value.durable_sha == theirs


def test_a_promotion_goes_on_top_of_what_others_pushed_elsewhere(far: Far) -> None:
    session = far.site.start()
    session.write("app.py", "print('mine')\n")
    theirs = far.remote.diverge({"other.txt": "theirs\n"})

    sha = session.promote().sha

    assert far.git.parents(sha) == [theirs]
    assert far.git.read("other.txt") == b"theirs\n"


def test_a_race_lost_to_another_push_is_judged_anew(far: Far) -> None:
    session = far.site.start()
    session.write("app.py", "print('mine')\n")

    with at_point("ref:locked", lambda: far.remote.diverge({"other.txt": "theirs\n"})):
        sha = session.promote().sha

    assert far.git.git("log", "-3", "--format=%s").split("\n")[0] == "gittrix: fix the bug"
    assert far.git.head() == sha
    assert far.git.read("other.txt") == b"theirs\n"
    assert far.site.types(session.id).count("promote.aborted") == 1
    assert far.left_in_mirror() == []


def test_a_race_lost_to_the_same_file_is_a_conflict(far: Far) -> None:
    session = far.site.start()
    session.write("app.py", "print('mine')\n")

    with at_point("ref:locked", lambda: far.remote.diverge({"app.py": "print('theirs')\n"})), pytest.raises(BaselineConflict):
        session.promote()

    assert far.git.read("app.py") == b"print('theirs')\n"
    assert session.info().state == "active"


def test_edits_that_merge_as_text_are_merged_with_those_of_the_remote(near: Far) -> None:
    session = near.site.start()
    session.write("src/util.py", edited(2, text="mine"))
    near.remote.diverge({"src/util.py": edited(30, text="theirs")})

    session.promote(on_overlap="merge")

    merged = near.git.read("src/util.py").decode()
    assert "mine 2\n" in merged
    assert "theirs 30\n" in merged


def test_history_that_was_rewritten_at_the_remote_is_followed(near: Far) -> None:
    near.git.commit({"second.txt": "2\n"})
    session = near.site.start()
    session.write("app.py", "print('mine')\n")
    rewritten = near.remote.rewrite({"third.txt": "3\n"})

    sha = session.promote().sha

    assert near.git.parents(sha) == [rewritten]
    assert set(near.git.tree()) == {*FILES, "third.txt"}


def test_a_branch_of_its_own_is_pushed_and_the_base_stays(far: Far) -> None:
    before = far.git.head()
    session = far.site.start("fix the bug")
    session.write("app.py", "print('v2')\n")

    result = session.promote(strategy="branch")

    assert result.branch == "gittrix/fix-the-bug"
    assert far.git.head("gittrix/fix-the-bug") == result.sha
    assert far.git.head() == before


@pytest.mark.parametrize("strategy", ["commit", "branch"])
def test_what_looks_like_a_secret_is_not_pushed_unless_a_person_says_so(near: Far, strategy: str) -> None:
    session, before = near.site.start("fix the bug"), near.git.branches()
    session.write("app.py", f"token = '{github()}'\n")
    session.write("deploy.pem", "x\n")

    for refused, options in (("2 selected", {}), ("1 selected", {"allow_secrets": ["app.py"]})):
        with pytest.raises(SecretsFound, match=refused):
            session.promote(strategy=strategy, **options)
    assert near.git.branches() == before
    assert session.promote(strategy="patch").secrets.keys() == {"app.py", "deploy.pem"}


@pytest.mark.parametrize("options", [{"refuse_secrets": False}, {"allow_secrets": ["app.py"]}])
def test_what_looks_like_a_secret_is_pushed_if_a_person_lets_it_through(near: Far, options: dict[str, Any]) -> None:
    session = near.site.start("fix the bug")
    session.write("app.py", f"token = '{github()}'\n")

    result = session.promote(**options)

    assert near.git.head() == result.sha


def test_a_branch_name_that_somebody_took_meanwhile_is_not_taken_over(near: Far) -> None:
    session = near.site.start("fix the bug")
    session.write("app.py", "print('v2')\n")
    taken = near.git.head()

    with at_point("ref:locked", lambda: near.git.git("update-ref", "refs/heads/gittrix/fix-the-bug", taken)):
        result = session.promote(strategy="branch")

    assert result.branch == "gittrix/fix-the-bug-2"
    assert near.git.head("gittrix/fix-the-bug") == taken


def test_a_patch_is_made_for_the_remote_as_it_is_now(near: Far) -> None:
    session = near.site.start()
    session.write("app.py", "print('v2')\n")
    near.remote.diverge({"other.txt": "theirs\n"})

    patch = session.promote(strategy="patch").patch

    assert patch is not None
    assert "+print('v2')" in patch
    assert len(near.git.branches()) == 1


def test_engines_that_share_a_mirror_lose_no_commit(near: Far) -> None:
    def promote_thrice(number: int) -> list[str]:
        home = near.site.root / f"home{number}"
        engine = near.site.another(durable=near.durable(), home=home, ids=seeded_ids(number))
        found = []
        for turn in range(3):
            session = engine.start_session(f"task {number}")
            session.write(f"{number}-{turn}.txt", "done\n")
            found.append(session.promote().sha)
        return found

    with ThreadPoolExecutor(3) as pool:
        shas = [sha for found in pool.map(promote_thrice, range(3)) for sha in found]

    assert sorted(near.git.git("rev-list", "--first-parent", "main").split()[:-1]) == sorted(shas)
    assert {f"{number}-{turn}.txt" for number in range(3) for turn in range(3)} <= set(near.git.tree())
    assert near.left_in_mirror() == []
