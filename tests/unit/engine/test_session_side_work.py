"""Work that an agent left beside its files outlives the workspace: on other branches, in stashes, in the index, in the reflog."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.engine import Site, kill_at, open_site, shell
from support.git import FORMATS
from support.refusals import refuse_to_open

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.git.environment import run_git
from pytest_gittrix.workspaces.finder import agent_archive
from pytest_gittrix.workspaces.seeds import on_disk

NAME = ("-c", "user.name=Agent", "-c", "user.email=agent@localhost")


def git(session: UserSession, *arguments: str) -> str:
    return os.fsdecode(run_git([*NAME, *arguments], cwd=session.workspace_path)).strip()


def commit(session: UserSession, text: str) -> str:
    assert session.workspace_path is not None
    (session.workspace_path / "work.txt").write_text(text)
    git(session, "add", "work.txt")
    git(session, "commit", "-q", "-m", text)
    return git(session, "rev-parse", "HEAD")


def on_a_side_branch(session: UserSession) -> None:
    git(session, "checkout", "-q", "-b", "feature")
    commit(session, "the work")
    git(session, "checkout", "-q", "main")


def in_a_stash(session: UserSession) -> None:
    assert session.workspace_path is not None
    (session.workspace_path / "work.txt").write_text("the work")
    git(session, "stash", "push", "-q", "--include-untracked")


def in_the_index(session: UserSession) -> None:
    assert session.workspace_path is not None
    (session.workspace_path / "work.txt").write_text("the work")
    git(session, "add", "work.txt")
    (session.workspace_path / "work.txt").unlink()


def in_the_reflog(session: UserSession) -> None:
    commit(session, "the work")
    git(session, "reset", "-q", "--hard", "HEAD~1")


def on_a_branch_that_was_packed(session: UserSession) -> None:
    on_a_side_branch(session)
    git(session, "gc", "-q")


def named(*script: str) -> Callable[[UserSession], None]:
    """A commit that only what the script makes leads to: neither HEAD nor a branch nor a reflog does."""

    def do(session: UserSession) -> None:
        id_ = commit(session, "the work")
        shell(session, "; ".join(script).replace("COMMIT", id_))
        git(session, "reset", "-q", "--hard", "HEAD~1")
        shell(
            session,
            'rm -rf .git/logs .git/COMMIT_EDITMSG; [ -n "$KEEP" ] || rm -f .git/ORIG_HEAD'.replace("$KEEP", "1" * ("ORIG" in script[0])),
        )

    return do


def in_a_linked_work_tree(session: UserSession) -> None:
    git(session, "worktree", "add", "-q", "--detach", "inner")
    shell(session, "cd inner; echo the work | tr -d '\\n' > work.txt; git add work.txt; git commit -qm inner; git rm -qf work.txt")
    shell(session, "rm -rf inner .git/worktrees/inner/logs")


def in_the_index_of_a_linked_work_tree(session: UserSession) -> None:
    git(session, "worktree", "add", "-q", "--detach", "inner")
    shell(session, "cd inner; printf 'the work' > work.txt; git add work.txt; cd ..; rm -rf inner")


def in_a_stash_that_was_dropped(session: UserSession) -> None:
    in_a_stash(session)
    git(session, "stash", "drop", "-q")


def in_a_tree_that_nothing_names(session: UserSession) -> None:
    in_the_index(session)
    git(session, "write-tree")
    git(session, "reset", "-q", "--mixed")


def in_contents_that_were_staged_over(session: UserSession) -> None:
    in_the_index(session)
    git(session, "reset", "-q", "--mixed")


DEEDS: dict[str, tuple[Callable[[UserSession], None], str]] = {
    "a lightweight tag": (named("git tag light COMMIT"), "refs/gittrix/agent/references/0:work.txt"),
    "an annotated tag": (named("git tag -am x heavy COMMIT"), "refs/gittrix/agent/references/0^{commit}:work.txt"),
    "a private reference": (named("git update-ref refs/checkpoints/1 COMMIT"), "refs/gittrix/agent/references/0:work.txt"),
    "a packed private reference": (
        named("git update-ref refs/checkpoints/1 COMMIT", "git pack-refs --all"),
        "refs/gittrix/agent/references/0:work.txt",
    ),
    "notes": (named("git update-ref refs/notes/commits COMMIT"), "refs/gittrix/agent/references/0:work.txt"),
    "a remote branch": (named("git update-ref refs/remotes/origin/x COMMIT"), "refs/gittrix/agent/references/0:work.txt"),
    "ORIG_HEAD": (named("echo ORIG"), "refs/gittrix/agent/heads-of-git/0:work.txt"),
    "a file of a fetch": (named("printf 'COMMIT\\t\\tbranch x\\n' > .git/FETCH_HEAD"), "refs/gittrix/agent/heads-of-git/0:work.txt"),
    "nothing but an object": (named("true"), "refs/gittrix/agent/lost/0:work.txt"),
    "a linked work tree": (in_a_linked_work_tree, "refs/gittrix/agent/work-trees/0:work.txt"),
    "the index of a linked work tree": (in_the_index_of_a_linked_work_tree, "refs/gittrix/agent/staged/0"),
    "a dropped stash": (in_a_stash_that_was_dropped, "refs/gittrix/agent/lost/0^3:work.txt"),
    "a tree": (in_a_tree_that_nothing_names, "refs/gittrix/agent/lost/0:work.txt"),
    "a side branch": (on_a_side_branch, "refs/gittrix/agent/heads/feature:work.txt"),
    "a packed side branch": (on_a_branch_that_was_packed, "refs/gittrix/agent/heads/feature:work.txt"),
    "a stash": (in_a_stash, "refs/gittrix/agent/stash/0^3:work.txt"),
    "the index": (in_the_index, ":work.txt"),
    "the reflog": (in_the_reflog, "refs/gittrix/agent/reflog/0:work.txt"),
}
ENDS: dict[str, Callable[[Site, UserSession], object]] = {
    "discarded": lambda _site, session: session.discard(),
    "evicted": lambda site, session: site.engine.evict(session.id),
    "expired": lambda site, _session: (site.clock.advance(hours=5), site.engine.sweep()),
    "promoted": lambda _site, session: (session.write("other.txt", "x"), session.promote()),
}


def kept(site: Site, session: UserSession, name: str) -> str:
    """What the archive holds under a name, as git in another directory gets it."""
    return subprocess.run(
        ["git", "--git-dir", str(site.directory(session) / "archive.agent.git"), "cat-file", "blob", name],
        cwd=site.root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("deed", DEEDS)
def test_what_is_in_no_file_is_kept_whole(site: Site, deed: str, end: str) -> None:
    session = site.start()
    do, name = DEEDS[deed]
    do(session)
    assert session.touched_files() == []

    ENDS[end](site, session)

    assert kept(site, session, name) == "the work"
    (event,) = [event for event in site.events(session.id) if event.data.get("patch") == "archive.agent.git"]
    assert event.data["reason"].startswith("beside the work tree: ")
    assert (site.directory(session) / "archive.agent.git" / "archive.txt").read_text().splitlines() != []
    assert not (site.directory(session) / "workspace").exists()


@pytest.mark.parametrize("end", ENDS)
def test_what_is_only_staged_in_a_linked_work_tree_is_kept(site: Site, end: str) -> None:
    session = site.start(workspace="worktree")
    in_the_index(session)
    git(session, "add", "--all")
    in_the_index(session)
    assert session.touched_files() == []
    assert session.info().beside == session.review().beside == ("'work.txt' is staged with other contents",)

    ENDS[end](site, session)
    site.durable.git("gc", "-q", "--prune=now")

    assert kept(site, session, ":work.txt") == "the work"
    assert (site.directory(session) / "archive.agent.git" / "archive.txt").read_text() == "'work.txt' is staged with other contents\n"
    assert not (site.durable.git_dir / "worktrees" / session.id).exists()


def derive_seeds(site: Site, patch: pytest.MonkeyPatch) -> None:
    """Let the next session start from a seed that is derived from another one."""
    patch.setattr(on_disk, "_SMALL_INDEX", 0)
    site.start().discard()
    site.durable.commit({"moved.txt": "moved\n"})


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("object_format", FORMATS)
def test_commits_on_the_detached_head_of_a_linked_work_tree_are_kept_unless_they_were_promoted(
    tmp_path: Path, object_format: str, derived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_site(tmp_path, object_format=object_format) as site:
        if derived:
            derive_seeds(site, monkeypatch)
        discarded, promoted = site.start(workspace="worktree"), site.start(workspace="worktree")
        first = commit(discarded, "one")
        commit(discarded, "two")
        commit(promoted, "one")
        assert promoted.review().beside == ()

        discarded.discard()
        promoted.promote()
        site.durable.git("gc", "-q", "--prune=now")

        assert kept(site, discarded, "refs/gittrix/agent/HEAD:work.txt") == "two"
        assert kept(site, discarded, f"{first}:work.txt") == "one"
        archive = str(site.directory(discarded) / "archive.agent.git")
        assert run_git(["--git-dir", archive, "fsck", "--strict", "--no-dangling"]) == b""
        assert not (site.directory(promoted) / "archive.agent.git").exists()


def test_a_linked_work_tree_that_is_elsewhere_in_durable_says_where(site: Site) -> None:
    site.durable.commit({"old.txt": "old\n"})
    old = site.durable.git("rev-parse", "HEAD~1")
    session = site.start(workspace="worktree")
    git(session, "checkout", "-q", "--detach", old)
    session.discard()

    contents = (site.directory(session) / "archive.agent.git" / "archive.txt").read_text()
    assert contents == f"a detached HEAD is at {old}, which is in durable alone\n"


@pytest.mark.parametrize("object_format", FORMATS)
def test_a_linked_work_tree_whose_end_is_killed_keeps_it_too(tmp_path: Path, object_format: str) -> None:
    with open_site(tmp_path, object_format=object_format) as site:
        session, plain = site.start(workspace="worktree"), site.start(workspace="worktree")
        in_the_index(session)
        (site.directory(session) / "archive.agent.tmp" / "objects").mkdir(parents=True)  # of an attempt that was killed
        kill_at("evict:apart", session.discard)
        site.another().init()
        plain.discard()

        assert kept(site, session, ":work.txt") == "the work"
        assert not (site.directory(plain) / "archive.agent.git").exists()


def work_in_no_file(session: UserSession) -> tuple[str, str]:
    """Two commits on a detached HEAD and a staged file, all of which are in no file; the second commit, and the id of what is staged."""
    commit(session, "one")
    second = commit(session, "two")
    git(session, "rm", "-q", "work.txt")
    in_the_index(session)
    return second, git(session, "rev-parse", ":work.txt")


def forget_everything(site: Site) -> None:
    """Delete from durable what neither a reference nor a work tree leads to."""
    site.durable.git("worktree", "prune", "--expire=now")
    site.durable.git("reflog", "expire", "--expire=now", "--all")
    site.durable.git("gc", "-q", "--prune=now")


def test_a_linked_work_tree_that_is_kept_whole_keeps_its_commits_and_its_index_beside_it(site: Site) -> None:
    session = site.start(workspace="worktree")
    second, _ = work_in_no_file(session)
    shell(session, "git init -q vendor; cd vendor; echo one > one.txt; git add .; git commit -qm one")
    kill_at("evict:kept-whole", session.discard)
    site.another().init()
    forget_everything(site)

    assert (site.directory(session) / "archive.workspace" / "vendor" / "one.txt").read_text() == "one\n"
    assert kept(site, session, "refs/gittrix/agent/HEAD:work.txt") == "two"
    assert kept(site, session, f"{second}~1:work.txt") == "one"
    assert kept(site, session, ":work.txt") == "the work"
    events = [event.data for event in site.events(session.id) if event.type == "archive.written"]
    assert [event["patch"] for event in events] == ["archive.patch", "archive.agent.git", "archive.workspace"]
    assert not (site.durable.git_dir / "worktrees" / session.id).exists()


def test_the_entry_of_a_linked_work_tree_stays_in_durable_where_time_is_over_for_the_second_time(site: Site) -> None:
    session = site.start(workspace="worktree")
    second, staged = work_in_no_file(session)
    site.clock.advance(hours=5)
    impatient = site.another(sweep_budget=timedelta(0))
    assert (impatient.sweep(), impatient.sweep()) == ([], [session.id])
    forget_everything(site)

    assert site.durable.git("cat-file", "blob", f"{second}~1:work.txt") == "one"
    assert site.durable.git("cat-file", "blob", staged) == "the work"
    (event,) = [event.data for event in site.events(session.id) if event.type == "archive.written"]
    assert "stays in durable, locked" in event["reason"]
    whole = site.directory(session) / "archive.workspace"
    assert f"\nlocked Its files are in {whole}. To archive" in site.durable.git("worktree", "list", "--porcelain")
    site.durable.git("worktree", "repair", str(whole))
    assert run_git(["log", "-1", "--format=%s"], cwd=whole) == b"two\n"
    assert not (site.directory(session) / "archive.agent.tmp").exists()


def test_what_is_missing_ends_a_linked_work_tree_and_what_a_disk_refuses_is_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, refused = site.start(workspace="worktree"), site.start(workspace="worktree")
    for session in (missing, refused):
        work_in_no_file(session)

    def fail(problem: OSError) -> Callable[..., object]:
        def link(*_: object) -> object:
            raise problem

        return link

    with monkeypatch.context() as patch:
        patch.setattr(agent_archive, "link_files", fail(FileNotFoundError(errno.ENOENT, "No such file")))
        missing.discard()
        patch.setattr(agent_archive, "link_files", fail(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(AdapterUnavailable, match="No space left"):
            refused.discard()
        assert (site.directory(refused) / "leaving").is_dir()
    assert site.another().recover().removed == [refused.id]

    assert not (site.directory(missing) / "leaving").exists()
    assert (site.durable.git_dir / "worktrees" / missing.id / "locked").exists()
    assert kept(site, refused, "refs/gittrix/agent/HEAD:work.txt") == "two"
    assert not (site.durable.git_dir / "worktrees" / refused.id).exists()


def test_of_a_copy_out_of_a_linked_work_tree_that_fails_at_its_index_nothing_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.start(workspace="worktree")
    work_in_no_file(session)
    monkeypatch.setattr(agent_archive, "_LARGEST_INDEX", 1)
    session.discard()

    left = sorted(path.name for path in site.directory(session).iterdir() if path.name.startswith("archive."))
    assert left == ["archive.workspace"]


def test_an_index_of_a_linked_work_tree_that_is_gone_or_no_index_ends_no_session_badly(site: Site) -> None:
    gone, odd = site.start(workspace="worktree"), site.start(workspace="worktree")
    for session, spoil in ((gone, lambda index: index.unlink()), (odd, lambda index: index.write_bytes(b"no index"))):
        in_the_index(session)
        spoil(next((site.durable.git_dir / "worktrees").glob(f"*{session.id}*")) / "index")
        session.discard()

    assert not (site.directory(gone) / "archive.agent.git").exists()
    assert (site.directory(odd) / "archive.agent.git" / "index").read_bytes() == b"no index"
    assert "only git reads" in (site.directory(odd) / "archive.agent.git" / "archive.txt").read_text()


def test_the_archive_is_a_sound_repository_without_anything_of_the_agents_configuration(site: Site) -> None:
    session = site.start()
    on_a_side_branch(session)
    assert session.workspace_path is not None
    own = session.workspace_path / ".git"
    (own / "config").write_text("[core]\n\tfsmonitor = touch /mark\n")
    (own / "objects" / "info").mkdir(exist_ok=True)
    (own / "objects" / "info" / "alternates").write_text("/somewhere/else\n")
    session.discard()
    archive = site.directory(session) / "archive.agent.git"

    assert sorted(path.name for path in archive.iterdir()) == ["HEAD", "archive.txt", "config", "index", "objects", "packed-refs", "refs"]
    assert "fsmonitor" not in (archive / "config").read_text()
    assert not (archive / "objects" / "info").exists()
    done = subprocess.run(["git", "--git-dir", str(archive), "fsck", "--strict"], cwd=site.root, capture_output=True, text=True, check=True)
    assert "missing" not in done.stdout + done.stderr


def test_a_branch_that_was_promoted_is_not_kept_a_second_time(site: Site) -> None:
    session = site.start()
    commit(session, "one")
    commit(session, "two")
    session.promote()

    assert not (site.directory(session) / "archive.agent.git").exists()


def test_a_branch_that_was_not_promoted_is_kept_with_its_history(site: Site) -> None:
    session = site.start()
    first = commit(session, "one")
    commit(session, "two")
    session.discard()

    assert kept(site, session, "refs/gittrix/agent/heads/main:work.txt") == "two"
    assert kept(site, session, f"{first}:work.txt") == "one"


def test_commits_that_were_made_through_the_session_are_kept_like_others(site: Site) -> None:
    discarded, promoted = site.start(), site.start()
    for session in (discarded, promoted):
        session.write("work.txt", "first")
        session.commit("through the session")
        session.write("work.txt", f"second of {session.id}")  # what the commit had is in no file
    discarded.discard()
    promoted.promote()

    assert kept(site, discarded, "refs/gittrix/agent/heads/main:work.txt") == "first"
    assert not (site.directory(promoted) / "archive.agent.git").exists()


def test_contents_that_were_staged_over_are_kept_and_nobody_is_told(site: Site) -> None:
    session = site.start()
    in_contents_that_were_staged_over(session)
    session.write("other.txt", "x")
    assert session.review().beside == ()

    assert session.promote().warnings == ()

    assert kept(site, session, "refs/gittrix/agent/lost/0") == "the work"
    assert (site.directory(session) / "archive.agent.git" / "archive.txt").read_text() == "nothing names the contents of 1 file\n"


def test_names_of_what_was_promoted_are_not_kept(site: Site) -> None:
    session = site.start()
    commit(session, "one")
    shell(
        session,
        "git tag light; git tag -am x heavy; git update-ref refs/checkpoints/1 HEAD; git worktree add -q --detach inner; rm -r inner",
    )
    session.promote()

    lines = (site.directory(session) / "archive.agent.git" / "archive.txt").read_text().splitlines()
    assert [line.partition(" is at ")[0] for line in lines] == ["refs/tags/heavy"]  # the tag has a message of its own


@pytest.mark.parametrize("where", ["loose", "packed"])
def test_a_damaged_object_is_named_and_the_rest_is_kept(site: Site, where: str) -> None:
    session = site.start()
    on_a_side_branch(session)
    tree = git(session, "rev-parse", "feature^{tree}")
    assert session.workspace_path is not None
    if where == "loose":
        file = session.workspace_path / ".git" / "objects" / tree[:2] / tree[2:]
        file.chmod(0o644)
        file.write_bytes(b"damaged")
    else:
        git(session, "repack", "-adq")
        pack = next((session.workspace_path / ".git" / "objects" / "pack").glob("*.pack"))
        pack.chmod(0o644)
        pack.write_bytes(pack.read_bytes()[:40] + b"damaged" + pack.read_bytes()[47:])
    session.discard()

    lines = (site.directory(session) / "archive.agent.git" / "archive.txt").read_text()
    assert "branch 'feature' is at" in lines
    assert "is damaged" in lines


def test_objects_that_lead_elsewhere_are_kept_with_the_whole_workspace(site: Site, tmp_path: Path) -> None:
    session = site.start()
    on_a_side_branch(session)
    assert session.workspace_path is not None
    own = session.workspace_path / ".git" / "objects"
    own.rename(tmp_path / "objects")
    own.symlink_to(tmp_path / "objects")
    session.discard()

    assert (site.directory(session) / "archive.workspace" / ".git" / "objects").is_symlink()
    assert (tmp_path / "objects").is_dir()


@pytest.mark.parametrize("deed", DEEDS)
def test_a_review_and_the_info_say_what_is_no_part_of_the_changes(site: Site, deed: str) -> None:
    session = site.start()
    session.write("other.txt", "x")
    assert session.review().beside == session.info().beside == ()
    DEEDS[deed][0](session)

    (line,) = session.review().beside
    assert session.info().beside == (line,)
    known = ("branch 'feature' is at", "stash 0 is", "'work.txt' is staged", "is in the reflog", "refs/", "HEAD", "nothing names the ")
    assert any(word in line for word in known)


def test_a_review_of_commits_on_the_agents_branch_is_all_there_is(site: Site) -> None:
    session = site.start()
    commit(session, "one")

    assert session.review().beside == ()


def test_a_review_of_a_repository_that_cannot_be_read_says_so(site: Site) -> None:
    session = site.start()
    on_a_side_branch(session)
    assert session.workspace_path is not None
    (session.workspace_path / ".git").rename(session.workspace_path / "moved")
    (session.workspace_path / ".git").symlink_to("moved")

    (line,) = session.review().beside
    assert line.startswith("The agent's repository cannot be read: ")


def test_a_review_names_files_and_lines_that_look_like_secrets(site: Site) -> None:
    token = "ghp_" + "a1B2" * 9
    session = site.start()
    session.write("app.py", f"print('v1')\ntoken = '{token}'\n")
    session.write(".npmrc", "registry=https://example.org\n")
    session.write("deploy.pem", "x\n")
    session.write("plain.txt", "password\n")

    assert session.review().secrets == {"app.py": ("line 2: GitHub token",), "deploy.pem": ("holds credentials by its name",)}
    assert token not in str(session.review().secrets)
    assert session.review(["plain.txt"]).secrets == {}
    promoted = session.promote(allow_secrets=["deploy.pem"])
    assert promoted.secrets == {"app.py": ("line 2: GitHub token",)}


def test_a_local_promotion_tells_of_secrets_before_it_lands(site: Site) -> None:
    token, before = "ghp_" + "a1B2" * 9, site.durable.head()
    told: list[tuple[list[str], str]] = []
    session = site.start()
    session.subscribe(lambda event: told.append((event.data["found"], site.durable.head())), ["promote.secrets"])
    session.write("app.py", f"token = '{token}'\n")
    session.write(f"notes-{token}", "x\n")

    result = session.promote()

    assert told == [(["app.py: line 1: GitHub token", "notes-…: its path: GitHub token"], before)]
    assert site.durable.head() == result.sha
    harmless = site.start()
    harmless.subscribe(lambda event: told.append(([], "")), ["promote.secrets"])
    harmless.write("plain.txt", "password\n")
    harmless.promote()
    assert len(told) == 1


def test_a_promotion_tells_of_secrets_in_the_hunks_that_it_takes(site: Site) -> None:
    session = site.start()
    lines = [f"line {number}" for number in range(30)]
    session.write("src/long.py", "\n".join(lines))
    session.promote()
    session = site.start()
    session.write("src/long.py", "\n".join(["harmless", *lines, "ghp_" + "a1B2" * 9]))

    assert session.promote(hunks={"src/long.py": [1]}, refuse_secrets=True).secrets == {}


@pytest.mark.parametrize("closed", [".git", ".git/objects", ".git/objects/pack", ".git/refs/heads", ".git/logs/HEAD"])
def test_a_repository_that_the_agent_closed_is_kept_with_the_whole_workspace(site: Site, closed: str) -> None:
    session = site.start()
    on_a_side_branch(session)
    assert session.workspace_path is not None
    (session.workspace_path / closed).chmod(0)
    session.discard()

    whole = site.directory(session) / "archive.workspace" / closed
    archive = site.directory(session) / "archive.agent.git"
    whole.chmod(0o700) if whole.exists() else None
    at, name = (archive, "refs/gittrix/agent/heads/feature") if archive.exists() else (whole.parents[closed.count("/")] / ".git", "feature")
    assert run_git(["--git-dir", str(at), "cat-file", "blob", f"{name}:work.txt"]) == b"the work"


def test_an_index_that_only_git_reads_is_kept_as_it_is(site: Site) -> None:
    session = site.start()
    git(session, "update-index", "--split-index")
    in_the_index(session)
    session.discard()

    assert kept(site, session, ":work.txt") == "the work"


@pytest.mark.parametrize("name", ["index", "sharedindex.12ab"])
def test_an_index_that_is_too_large_is_said_and_kept_with_the_workspace(site: Site, name: str) -> None:
    session = site.start()
    in_the_index(session)
    assert session.workspace_path is not None
    large = session.workspace_path / ".git" / name
    large.touch()
    os.truncate(large, (256 << 20) + 1)
    assert name != "index" or "268435457 bytes" in session.info().beside[0]
    session.discard()

    assert (site.directory(session) / "archive.workspace" / ".git" / name).stat().st_size == (256 << 20) + 1
    (event,) = (event.data for event in site.events(session.id) if event.type == "archive.written")
    assert name in event["reason"]
    assert "268435457" in event["reason"]


def test_a_name_that_is_taken_in_the_agents_repository_stops_nothing(site: Site) -> None:
    session = site.start()
    on_a_side_branch(session)
    assert session.workspace_path is not None
    taken = session.workspace_path / ".git" / "info-of-objects" / "x"
    taken.mkdir(parents=True)
    session.discard()

    assert kept(site, session, "refs/gittrix/agent/heads/feature:work.txt") == "the work"


def test_an_index_that_the_system_refuses_to_read_is_kept_with_the_workspace(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.start()
    in_the_index(session)
    with monkeypatch.context() as refusing:
        refuse_to_open(refusing, "index", errno.EIO)
        session.discard()
    assert run_git(["show", ":work.txt"], cwd=site.directory(session) / "archive.workspace") == b"the work"


@pytest.mark.parametrize("end", ENDS)
def test_a_repository_below_the_root_is_kept_with_its_history(site: Site, end: str) -> None:
    session = site.start()
    shell(session, "git init -q vendor; cd vendor; echo one > one.txt; git add .; git commit -qm one")

    ENDS[end](site, session)

    nested = site.directory(session) / "archive.workspace" / "vendor"
    assert run_git(["show", "HEAD:one.txt"], cwd=nested) == b"one\n"


def test_a_repository_below_the_root_in_which_nothing_was_stored_needs_no_keeping(site: Site) -> None:
    session = site.start()
    shell(session, "git init -q vendor")
    session.discard()

    assert not (site.directory(session) / "archive.workspace").exists()


def test_commits_in_a_submodule_of_the_agents_are_kept(site: Site, tmp_path: Path) -> None:
    session = site.start()
    other = tmp_path / "other"
    shell(session, f"git init -q {other}; cd {other}; git commit -q --allow-empty -m first")
    shell(
        session,
        f"git -c protocol.file.allow=always submodule --quiet add {other} lib; cd lib; echo one > one.txt; git add .; git commit -qm one",
    )
    assert session.review().beside[-1] == "'.git/modules' has a repository and a history of its own"
    session.discard()

    modules = site.directory(session) / "archive.workspace" / ".git" / "modules" / "lib"
    assert run_git(["--git-dir", str(modules), "-c", "core.worktree=", "show", "HEAD:one.txt"], cwd=tmp_path) == b"one\n"


def test_commits_of_a_linked_work_tree_that_only_its_reflog_names_are_kept(site: Site) -> None:
    site.durable.commit({"develop.txt": "d\n"}, branch="develop")
    discarded, promoted = site.start(workspace="worktree"), site.start(workspace="worktree")
    for session in (discarded, promoted):
        git(session, "checkout", "-q", "--detach", "develop")  # what durable's own branches have stays there
        git(session, "checkout", "-q", "--detach", session.info().baseline_sha)
        commit(session, "forgotten")
        git(session, "reset", "-q", "--hard", "HEAD~1")
        shell(session, f"echo x > {session.id}.txt")
    discarded.discard()
    promoted.promote()
    forget_everything(site)

    for session in (discarded, promoted):
        assert kept(site, session, "refs/gittrix/agent/reflog/0:work.txt") == "forgotten"
        assert (site.directory(session) / "archive.agent.git" / "archive.txt").read_text().count("\n") == 1
