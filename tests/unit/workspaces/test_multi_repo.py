"""Workspaces of several repositories: whole or not at all, up to date, and the agent's own in every way."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.git import GitRepo, try_git

from pytest_gittrix.errors import AdapterUnavailable, GittrixError, InvalidInput, WriteRejected
from pytest_gittrix.workspaces.multi_repo import (
    MARKER,
    REFETCH_AFTER,
    CheckedOutRepository,
    MultiRepoWorkspace,
    RepositorySpec,
    checkout_all,
    clone_path,
)

FILES = {"a.txt": "one\n", "src/b.txt": "two\n"}


class Site:
    """Remotes, a directory of clones, and a clock that the test moves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seconds = 1_000_000.0
        self.steps: list[tuple[str, str]] = []

    def remote(self, name: str = "app", **options: str) -> GitRepo:
        return GitRepo.make(self.root / "remotes" / f"{name}.git", FILES, bare=True, **options)

    def checkout(self, *specs: RepositorySpec, name: str = "w", marker: dict[str, str] | None = None) -> MultiRepoWorkspace:
        def report(repository: str, step: str) -> None:
            self.steps.append((repository, step))

        return checkout_all(specs, self.root / name, self.root / "clones", now=lambda: self.seconds, marker=marker, progress=report)

    def repo(self, directory: str = "projects/app", name: str = "w") -> GitRepo:
        return GitRepo(self.root / name / directory)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def spec(remote: GitRepo, name: str = "app", branch: str | None = None, *, team: bool = False) -> RepositorySpec:
    return RepositorySpec(name, str(remote.path), branch, team)


# What is there -----------------------------------------------------------------------------------------------------------------


def test_every_repository_stands_in_its_place_detached_at_the_default_head(site: Site) -> None:
    app, deep, team = site.remote(), site.remote("deep"), site.remote("team")

    made = site.checkout(spec(app), spec(deep, "org/deep"), spec(team, "team", team=True), marker={"session_id": "s1", "member": "alice"})

    assert [(one.directory, one.branch, one.commit) for one in made.repositories] == [
        ("projects/app", "main", app.head()),
        ("projects/org/deep", "main", deep.head()),
        ("team", "main", team.head()),
    ]
    for one in made.repositories:
        repo = site.repo(one.directory)
        assert repo.text("rev-parse", "HEAD") == one.commit
        assert try_git("symbolic-ref", "-q", "HEAD", cwd=repo.path).returncode == 1
        assert repo.status() == []
        assert (repo.path / "src" / "b.txt").read_text() == "two\n"
        assert repo.text("config", "remote.origin.url") == one.url
        repo.fsck()
    assert (site.root / "w" / MARKER).read_text().splitlines()[1:] == ["session_id: s1", "member: alice"]
    assert (site.root / "w" / MARKER).read_text().startswith("#")
    assert [step for name, step in site.steps if name == "org/deep"] == ["clone", "checkout", "ready"]


def test_what_a_workspace_will_have_is_told_before_anything_of_it_is_made(site: Site) -> None:
    app, team = site.remote(), site.remote("team")
    specs = [spec(app), spec(team, "team", team=True)]
    seen: list[tuple[object, list[str]]] = []

    def planned(repositories: tuple[CheckedOutRepository, ...]) -> None:
        seen.append((repositories, sorted(path.name for path in site.root.iterdir())))

    made = checkout_all(specs, site.root / "w", site.root / "clones", planned=planned)
    assert seen == [(made.repositories, ["clones", "remotes"])]


def test_a_plan_that_is_refused_is_not_carried_out(site: Site) -> None:
    def planned(_repositories: object) -> None:
        raise InvalidInput("Not these.")

    with pytest.raises(InvalidInput, match="Not these"):
        checkout_all([spec(site.remote())], site.root / "w", site.root / "clones", planned=planned)
    assert sorted(path.name for path in site.root.iterdir()) == ["clones", "remotes"]


def test_one_bare_clone_is_kept_for_each_address(site: Site) -> None:
    app = site.remote()
    site.checkout(spec(app), name="w1")
    site.checkout(spec(app), spec(app, "again"), name="w2")

    clones = [path.name for path in (site.root / "clones").iterdir() if path.is_dir()]
    assert clones == [os.path.basename(clone_path(site.root / "clones", str(app.path)))]
    assert len(clones[0]) == 16
    assert GitRepo(site.root / "clones" / clones[0]).text("config", "remote.origin.fetch") == "+refs/heads/*:refs/remotes/origin/*"
    assert [step for step in site.steps if step[1] in ("clone", "fetch")] == [("app", "clone")]


def test_the_agent_can_commit_branch_fetch_and_push_by_itself(site: Site) -> None:
    app = site.remote()
    site.checkout(spec(app))
    repo = site.repo()
    app.commit({"later.txt": "later\n"})

    repo.git("fetch", "-q")
    repo.git("checkout", "-q", "-b", "feature", "origin/main")
    (repo.path / "mine.txt").write_text("mine\n")
    repo.git("add", "mine.txt")
    repo.git("commit", "-q", "-m", "mine")
    repo.git("push", "-q", "origin", "feature")

    assert app.head("feature") == repo.text("rev-parse", "HEAD")
    assert repo.text("rev-parse", "HEAD^") == app.head()


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_objects_of_either_format_will_do(site: Site, object_format: str) -> None:
    app = site.remote(object_format=object_format)
    made = site.checkout(spec(app))
    assert made.repositories[0].commit == app.head()
    assert site.repo().status() == []


def test_an_empty_remote_gives_an_unborn_branch(site: Site) -> None:
    empty = GitRepo.make(site.root / "remotes" / "empty.git", bare=True)
    made = site.checkout(spec(empty))
    assert (made.repositories[0].branch, made.repositories[0].commit) == ("main", None)
    assert site.repo().text("symbolic-ref", "HEAD") == "refs/heads/main"


def test_files_are_those_of_the_commit_byte_for_byte_whatever_their_attributes_say(site: Site) -> None:
    app = site.remote()
    app.commit({".gitattributes": "* text eol=crlf\n*.id ident\n", "x.id": "$Id$\n"})
    site.checkout(spec(app))
    assert site.repo().path.joinpath("a.txt").read_bytes() == b"one\n"
    assert site.repo().path.joinpath("x.id").read_bytes() == b"$Id$\n"
    assert not (site.repo().git_dir / "info" / "attributes").exists()


# Branches ----------------------------------------------------------------------------------------------------------------------


def test_the_default_branch_is_the_one_that_the_remote_names_now(site: Site) -> None:
    app = site.remote()
    app.commit({"t.txt": "t\n"}, branch="trunk")
    app.git("symbolic-ref", "HEAD", "refs/heads/trunk")
    assert site.checkout(spec(app), name="w1").repositories[0].branch == "trunk"

    app.git("symbolic-ref", "HEAD", "refs/heads/main")
    site.seconds += REFETCH_AFTER
    assert site.checkout(spec(app), name="w2").repositories[0].branch == "main"


def test_a_branch_that_was_made_since_the_last_fetch_is_found(site: Site) -> None:
    app = site.remote()
    site.checkout(spec(app), name="w1")
    app.commit({"new.txt": "new\n"}, branch="new")
    made = site.checkout(spec(app, branch="new"), name="w2")
    assert (made.repositories[0].branch, made.repositories[0].commit) == ("new", app.head("new"))


def test_a_branch_that_gave_way_to_a_directory_of_branches_does_not_stop_a_fetch(site: Site) -> None:
    app = site.remote()
    app.commit({"x": "x"}, branch="topic")
    site.checkout(spec(app), name="w1")
    app.git("branch", "-q", "-D", "topic")
    app.commit({"y": "y"}, branch="topic/one")
    site.seconds += REFETCH_AFTER
    assert site.checkout(spec(app, branch="topic/one"), name="w2").repositories[0].commit == app.head("topic/one")


def test_a_branch_that_nobody_has_is_an_error_and_leaves_nothing(site: Site) -> None:
    with pytest.raises(AdapterUnavailable, match="has no branch 'nowhere'"):
        site.checkout(spec(site.remote(), branch="nowhere"))
    assert not (site.root / "w").exists()


# Growing old -------------------------------------------------------------------------------------------------------------------


def test_rule_10_a_clone_that_is_fetched_again_really_moves_on(site: Site) -> None:
    app = site.remote()
    first = site.checkout(spec(app), name="w1").repositories[0].commit
    for number in range(2, 4):
        later = app.commit({"later.txt": f"{number}\n"})
        site.seconds += REFETCH_AFTER
        made = site.checkout(spec(app), name=f"w{number}")
        assert made.repositories[0].commit == later != first
        assert site.repo(name=f"w{number}").path.joinpath("later.txt").read_text() == f"{number}\n"
        assert site.repo(name=f"w{number}").text("log", "--format=%H", "HEAD", "--not", "--remotes") == ""


@pytest.mark.parametrize(("later", "fetches"), [(0, 0), (299.9, 0), (300, 1), (301, 1), (-1, 1)])
def test_a_clone_is_fetched_again_when_it_is_old_or_from_the_future(site: Site, later: float, fetches: int) -> None:
    app = site.remote()
    site.checkout(spec(app), name="w1")
    site.seconds += later
    site.checkout(spec(app), name="w2")
    assert [step for _, step in site.steps].count("fetch") == fetches


def test_a_damaged_note_of_the_last_fetch_means_that_it_was_long_ago(site: Site) -> None:
    app = site.remote()
    site.checkout(spec(app), name="w1")
    Path(clone_path(site.root / "clones", str(app.path)), ".bm_last_fetch").write_text("yesterday")
    site.checkout(spec(app), name="w2")
    assert ("app", "fetch") in site.steps


def test_what_a_workspace_borrows_is_never_thrown_away(site: Site) -> None:
    app = site.remote()
    old = app.commit({"old.txt": "old\n"})
    site.checkout(spec(app), name="w1")
    app.git("update-ref", "refs/heads/main", f"{old}^")
    app.commit({"other.txt": "other\n"})
    site.seconds += REFETCH_AFTER
    site.checkout(spec(app), name="w2")

    clone = GitRepo(Path(clone_path(site.root / "clones", str(app.path))), bare=True)
    clone.git("gc", "-q")
    site.repo(name="w1").fsck()
    assert site.repo(name="w1").text("rev-parse", "HEAD") == old


def test_locks_that_a_killed_fetch_left_are_taken_away(site: Site) -> None:
    app = site.remote()
    site.checkout(spec(app), name="w1")
    clone = Path(clone_path(site.root / "clones", str(app.path)))
    (clone / "packed-refs.lock").touch()
    (clone / "refs" / "remotes" / "origin" / "main.lock").touch()
    later = app.commit({"later.txt": "later\n"})
    site.seconds += REFETCH_AFTER
    assert site.checkout(spec(app), name="w2").repositories[0].commit == later


def test_many_at_once_share_one_clone(site: Site) -> None:
    app = site.remote()
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda number: site.checkout(spec(app), name=f"w{number}"), range(6)))
    assert {one.repositories[0].commit for one in made} == {app.head()}
    assert [step for _, step in site.steps].count("clone") == 1
    for number in range(6):
        assert site.repo(name=f"w{number}").status() == []


# Failing -----------------------------------------------------------------------------------------------------------------------


def test_one_bad_address_leaves_nothing_of_the_workspace_and_no_half_of_a_clone(site: Site) -> None:
    app = site.remote()
    with pytest.raises(AdapterUnavailable, match="cannot be read"):
        site.checkout(spec(app), RepositorySpec("gone", str(site.root / "remotes" / "gone.git")))

    assert sorted(path.name for path in site.root.iterdir()) == ["clones", "remotes"]
    assert [path for path in (site.root / "clones").iterdir() if path.is_dir()] == [Path(clone_path(site.root / "clones", str(app.path)))]
    assert site.checkout(spec(app)).repositories[0].commit == app.head()


def test_a_remote_that_went_away_is_an_error_once_the_clone_is_old(site: Site) -> None:
    app = site.remote()
    site.checkout(spec(app), name="w1")
    shutil.rmtree(app.path)
    site.seconds += REFETCH_AFTER
    with pytest.raises(AdapterUnavailable):
        site.checkout(spec(app), name="w2")
    assert not (site.root / "w2").exists()


def test_what_a_killed_one_left_is_gone_after_the_next(site: Site) -> None:
    app = site.remote()
    clone = clone_path(site.root / "clones", str(app.path))
    for left in (site.root / "w.hydrating-0011", Path(f"{clone}.tmp-0011")):
        (left / "half").mkdir(parents=True)
    site.checkout(spec(app))
    assert sorted(path.name for path in site.root.iterdir()) == ["clones", "remotes", "w"]
    assert not Path(f"{clone}.tmp-0011").exists()


def test_a_workspace_that_is_there_is_never_replaced(site: Site) -> None:
    app = site.remote()
    site.checkout(spec(app))
    (site.repo().path / "a.txt").write_text("work\n")
    with pytest.raises(InvalidInput, match="is there already"):
        site.checkout(spec(app))
    assert (site.repo().path / "a.txt").read_text() == "work\n"


@pytest.mark.parametrize("name", ["", "/app", "../app", "a/../b", "a//b", "./a", ".git", "a/.GIT/b", "a/", "a\0b"])
def test_a_name_that_could_leave_its_place_is_refused(site: Site, name: str) -> None:
    remote = site.remote()
    with pytest.raises((InvalidInput, WriteRejected)):
        site.checkout(spec(remote, name))
    assert not (site.root / "w").exists()


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_repositories_in_each_others_way_are_refused(site: Site, names: tuple[str, str]) -> None:
    remote = site.remote()
    with pytest.raises(InvalidInput, match="in each other's way"):
        site.checkout(*(spec(remote, name) for name in names))


@pytest.mark.parametrize("url", ["", "ext::sh -c true", "-uevil", "--upload-pack=evil", "relative/path", "gopher://x/y", "file://a\nb"])
def test_an_address_that_git_could_run_is_refused(site: Site, url: str) -> None:
    with pytest.raises(InvalidInput, match="no address"):
        site.checkout(RepositorySpec("app", url))
    assert not (site.root / "w").exists()


def test_credentials_in_an_address_are_in_no_message(site: Site) -> None:
    with pytest.raises(GittrixError) as caught:
        site.checkout(RepositorySpec("app", "http://alice:hunter2@127.0.0.1:1/app.git"))
    assert "hunter2" not in str(caught.value)


def test_no_hook_or_configuration_of_the_person_is_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = site.root / "trace"
    template = site.root / "template" / "hooks"
    template.mkdir(parents=True)
    (template / "post-checkout").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (template / "post-checkout").chmod(0o755)
    home = site.root / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[init]\n\ttemplateDir = {template.parent}\n[core]\n\tfsmonitor = touch {trace}; false\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(site.root / "elsewhere"))
    site.checkout(spec(site.remote()))
    assert not trace.exists()
    assert not (site.repo().git_dir / "hooks").exists()
