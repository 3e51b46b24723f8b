"""What only the entry of a linked work tree leads to: the commits that git itself lists, and a repository of them that git finds whole."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest
from support.git import FORMATS, GitRepo, git, make_workspace

from pytest_gittrix.os_level.monotonic import OutOfTime
from pytest_gittrix.workspaces.finder import agent_archive
from pytest_gittrix.workspaces.finder.agent_archive import archive_agent_work
from pytest_gittrix.workspaces.finder.agent_work import AgentWork, ToCopy, find_linked_work
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.workspace import Workspace

OLD = 1100


def history(repo: GitRepo, parents: list[list[int]], dates: list[int], *, onto: str | None = None) -> list[str]:
    """Make a commit with a file of its own for each list of the numbers of its parents; ``onto`` is the parent of those without one."""
    start = f"from {onto}\n" if onto else ""
    parts = []
    for number, (above, date) in enumerate(zip(parents, dates, strict=True)):
        lines = "".join(f"{'merge' if at else 'from'} :{one + 1}\n" for at, one in enumerate(above)) or start
        name = f"M 100644 inline f{number % 5}\ndata <<E\n{number}\nE\n"
        parts.append(f"commit refs/made/{number}\nmark :{number + 1}\ncommitter a <a> {date} +0000\ndata 0\n{lines}{name}\n")
    marks = repo.path.parent / "marks"
    repo.git("fast-import", "--quiet", "--force", f"--export-marks={marks}", stdin="".join(parts).encode())
    ids = {int(mark[1:]): id_ for mark, id_ in (line.split() for line in marks.read_text().splitlines())}
    return [ids[number + 1] for number in range(len(parents))]


def linked(workspace: Workspace, head: str, **options: object) -> tuple[AgentWork, ToCopy]:
    assert workspace.linked_git_dir is not None
    Path(workspace.linked_git_dir, "HEAD").write_text(f"{head}\n")
    work = find_linked_work(workspace.linked_git_dir, workspace.seed, {}, promoted=False, **options)  # type: ignore[arg-type]
    assert work is not None
    assert work.to_copy is not None
    return work, work.to_copy


def listed(repo: GitRepo, head: str, baseline: str) -> tuple[set[str], set[str]]:
    """The commits, and those on their edge without the baseline, as git lists them."""
    lines = repo.text("rev-list", "--boundary", head, f"^{baseline}").split()
    commits = {line for line in lines if not line.startswith("-")}
    parents = {one for line in repo.text("rev-list", "--parents", head, f"^{baseline}").splitlines() for one in line.split()}
    return commits, parents - commits - {baseline}


def assert_whole(directory: Path, seed: Seed, work: AgentWork) -> Path:
    """Keep the work in a repository, and see that git finds nothing missing there."""
    kept = archive_agent_work(directory, seed, work, sync=False)
    assert git("--git-dir", str(kept), "fsck", "--strict", "--no-dangling") == b""
    assert work.to_copy is not None
    assert set(work.to_copy.commits) <= set(git("--git-dir", str(kept), "rev-list", "refs/gittrix/agent/HEAD").decode().split())
    return kept


@pytest.mark.parametrize("dates", ["rising", "equal", "wrong"])
def test_the_commits_of_a_detached_head_are_those_that_git_lists(tmp_path: Path, dates: str) -> None:
    draw = random.Random(dates)
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"})
    size = 60
    parents = [draw.sample(range(max(0, number - 9), number), min(number, draw.choice([1, 1, 1, 2, 3]))) for number in range(size)]
    times = {"rising": range(10**9, 10**9 + size), "equal": [10**9] * size, "wrong": [draw.randrange(10**9) for _ in range(size)]}[dates]
    ids = history(repo, parents, list(times))
    repo.git("update-ref", "refs/heads/main", ids[size // 2])
    workspace = make_workspace(repo, tmp_path / "space", "worktree")
    number_of = count()
    for head in draw.sample([id_ for id_ in ids if id_ != ids[size // 2]], 8):
        commits, edge = listed(repo, head, workspace.seed.commit)
        work, found = linked(workspace, head)
        if dates == "wrong":
            assert commits <= set(found.commits)
        else:
            assert (set(found.commits), set(found.edge)) == (commits, edge)
        if found.commits:
            assert found.commits[0] == head
            target = tmp_path / f"kept{next(number_of)}"
            target.mkdir()
            assert_whole(target, workspace.seed, work)


@pytest.mark.parametrize("object_format", FORMATS)
def test_a_merge_of_old_history_takes_along_no_history_of_the_baseline(tmp_path: Path, object_format: str) -> None:
    old = OLD if object_format == "sha1" else 20
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"}, object_format=object_format)
    ids = history(
        repo, [[number - 1] if number else [] for number in range(old)] + [[old - 1], [old, 3]], list(range(1000, 1000 + old + 2))
    )
    *_, baseline, first, merge = ids
    repo.git("update-ref", "refs/heads/main", baseline)
    workspace = make_workspace(repo, tmp_path / "space", "worktree")

    work, found = linked(workspace, merge)

    assert found.commits == (merge, first)
    assert list(found.edge) == [ids[3]]
    kept = assert_whole(tmp_path, workspace.seed, work)
    assert set(git("--git-dir", str(kept), "rev-list", "--all").decode().split()) == {merge, first, baseline, ids[3]}


def test_more_commits_than_a_thousand_are_kept_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_archive, "_BATCH", 50_000)
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"})
    workspace = make_workspace(repo, tmp_path / "space", "worktree")
    ids = history(repo, [[number - 1] if number else [] for number in range(OLD)], [1000] * OLD, onto=workspace.seed.commit)

    work, found = linked(workspace, ids[-1])

    assert found.commits == tuple(reversed(ids))
    kept = assert_whole(tmp_path, workspace.seed, work)
    assert 2 < len(list((kept / "objects" / "pack").glob("*.pack"))) < 20


def test_a_search_and_a_copy_end_where_their_time_is_over_and_leave_nothing(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"})
    workspace = make_workspace(repo, tmp_path / "space", "worktree")
    work, found = linked(workspace, repo.commit({"b": "2\n"}, branch="aside"))

    def late() -> None:
        raise OutOfTime

    with pytest.raises(OutOfTime):
        linked(workspace, found.commits[0], on_step=late)
    with pytest.raises(OutOfTime):
        archive_agent_work(tmp_path, workspace.seed, work, sync=False, on_step=late)
    assert not list(tmp_path.glob("archive.agent.*"))


def test_a_commit_that_names_what_is_no_commit_is_kept_as_far_as_it_goes(tmp_path: Path) -> None:
    repo = GitRepo.make(tmp_path / "durable", {"a": "1\n"})
    workspace = make_workspace(repo, tmp_path / "space", "worktree")
    tree = repo.git("hash-object", "-t", "tree", "--literally", "-w", "--stdin", stdin=b"no tree").decode().strip()
    data = (
        f"tree {tree}\nparent {workspace.seed.commit}\nparent {tree}\nparent none\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nodd\n"
    )
    odd = repo.git("hash-object", "-t", "commit", "--literally", "-w", "--stdin", stdin=data.encode()).decode().strip()

    work, found = linked(workspace, odd)
    kept = archive_agent_work(tmp_path, workspace.seed, work, sync=False)

    assert (found.commits, found.edge) == ((odd,), {})
    assert git("--git-dir", str(kept), "cat-file", "tree", tree) == b"no tree"
