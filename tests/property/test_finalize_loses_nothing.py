"""Generated workspaces are finalized, with kills and faults in between: every commit and every file is found again, and no credential.

The normal run draws a few; ``PYTEST_GITTRIX_SOAK=1`` draws 300. The judge (``member_witness``) is plain git on copies. What shows that
it sees losses is at the end: defects, each of which it must find.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from support.scene import SOAK, scratch

from pytest_gittrix.git.environment import run_git
from pytest_gittrix.members import finalize as finalize_module
from pytest_gittrix.members import finalize_repository
from pytest_gittrix.members.finalize import finalize
from pytest_gittrix.members.finalize_files import classify
from pytest_gittrix.members.finalize_record import Finalized, Notes
from pytest_gittrix.members.finalize_remote import Remote
from pytest_gittrix.members.finalize_repository import Saving
from pytest_gittrix.testing.faults.faults import Errno, Fault, KillAt
from pytest_gittrix.testing.faults.supervisor import supervise_function, supported
from pytest_gittrix.testing.repos.member_witness import FinalizationWitness
from pytest_gittrix.testing.repos.member_workspaces import Member, RepositoryPlan, drawn
from pytest_gittrix.workspaces.finder import opened_repository
from pytest_gittrix.workspaces.repositories.agent_repository import read_repository
from pytest_gittrix.workspaces.repositories.scratch_repository import ScratchRepository
from pytest_gittrix.workspaces.repositories.uncommitted import Uncommitted, find_uncommitted

SEEDS: Final = range(300 if SOAK else 12)
CALLS: Final = 250
"""About as many calls that change a file as the finalization of a middling workspace makes."""

pytestmark = pytest.mark.skipif(supported() is not None, reason=str(supported()))


def attempt(member: Member, fault: Fault | None) -> None:
    """A finalization in a process of its own that something happens to, and the remotes' owners tidying up after a crash of theirs."""
    supervise_function(lambda: finalize(member.workspace, "s1"), fault=fault, within=member.root)
    for left in (member.root / "remotes").rglob("*.lock"):
        left.unlink()


def killed(member: Member, chance: random.Random) -> None:
    attempt(member, KillAt(chance.randint(1, CALLS)))


def disk_full(member: Member, chance: random.Random) -> None:
    attempt(member, Errno(chance.randint(1, CALLS), 28, sticky=chance.random() < 0.5))


def disk_broken(member: Member, chance: random.Random) -> None:
    attempt(member, Errno(chance.randint(1, CALLS), 5))


def out_of_time(member: Member, chance: random.Random) -> None:
    ticks = itertools.count()
    ended = finalize(member.workspace, "s1", monotonic=lambda: float(next(ticks)), deadline=chance.randint(5, 120))
    assert ended.status in ("Failed", "Completed", "CompletedDegraded", "Skipped")


def unreachable(member: Member, chance: random.Random) -> None:
    one = chance.choice(member.plan)
    member.change_mood(one, "gone")
    finalize(member.workspace, "s1")
    member.change_mood(one, one.remote)


GENTLE: Final = (killed, killed, out_of_time, unreachable)
ROUGH: Final = (disk_full, disk_broken, killed)


def saved(member: Member, witness: FinalizationWitness) -> Finalized:
    """Finalize twice; the second time does nothing more, and nothing is lost if the workspace goes when it may."""
    ended = finalize(member.workspace, "s1")
    before = member.refs()
    again = finalize(member.workspace, "s1")
    assert again == ended
    assert member.refs() == before
    assert witness.losses(collected=not ended.unsaved) == []
    assert (ended.status == "Failed") <= ended.unsaved
    return ended


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_whatever_comes_in_between(seed: int) -> None:
    chance = random.Random(f"troubles of {seed}")
    with scratch() as place:
        member = Member(place / "member", drawn(seed))
        witness = FinalizationWitness.of(member)
        for trouble in chance.sample(GENTLE if seed % 2 else ROUGH, chance.randint(1, 2)):
            trouble(member, chance)
            assert witness.losses(collected=False) == []
        ended = saved(member, witness)
        assert ended.unsaved == member.keeps
        if seed % 2:
            smooth = Member(place / "smooth", member.plan)
            assert finalize(smooth.workspace, "s1").status == ended.status
            assert smooth.refs() == member.refs()  # the same commits on the same branches as if nothing had happened
            shutil.rmtree(smooth.root)

        # The remotes that took nothing take it now.
        for one in member.plan:
            member.change_mood(one, "plain")
        assert saved(member, witness).unsaved == any(replace(one, remote="plain").keeps for one in member.plan if one.remote != "empty")


# Defects that the judge must find ------------------------------------------------------------------------------------------------


def without_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Saving, "_save_others", lambda self: None)


def without_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Saving, "_save_head", lambda self, fresh, files: None)


def careless_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Saving, "_holds_credentials", lambda self, what, tip, missing: False)


def by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    def push(self: Remote, commit: str, branch: str) -> Any:
        run_git(["push", "-q", "--force", self.transport.url, f"{commit}:refs/heads/{branch}"], env={"GIT_DIR": self.scratch.path})
        self.heads[branch] = commit
        return type("Landed", (), {"outcome": "landed", "reason": ""})()

    monkeypatch.setattr(Remote, "push", push)
    monkeypatch.setattr(ScratchRepository, "replay", lambda self, tip, onto: tip)


def replaying_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScratchRepository, "replay", lambda self, tip, onto: onto)


def silent_about_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = classify
    monkeypatch.setattr(finalize_repository, "classify", lambda path, **known: plain(path, **known).replace("left", "runtime"))


def blind_to_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalize_module, "find_repositories", lambda root: [])


def blind_to_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(root: str, entries: Mapping[str, Any], *rest: Any, **named: Any) -> Uncommitted:
        found = find_uncommitted(root, entries, *rest, **named)
        found.changes = {path: entry for path, entry in found.changes.items() if path in entries}
        return found

    monkeypatch.setattr(opened_repository, "find_uncommitted", look)


def running_git_in_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:

    def run_and_read(root: str, *rest: Any, **named: Any) -> Any:
        run_git(["status"], cwd=Path(root))
        return read_repository(root, *rest, **named)

    monkeypatch.setattr(opened_repository, "read_repository", run_and_read)


def committing_at_another_time_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(1_900_000_000)
    monkeypatch.setattr(Notes, "time_of", lambda self, key, seconds: next(ticks))


@pytest.mark.parametrize(
    ("defect", "plan"),
    [
        (without_others, RepositoryPlan("app", deeds=("dangling",))),
        (without_others, RepositoryPlan("app", deeds=("amended",))),
        (without_others, RepositoryPlan("app", deeds=("tagged",))),
        (without_others, RepositoryPlan("app", deeds=("reflog",))),
        (without_head, RepositoryPlan("app", end="dirty-detached")),
        (without_head, RepositoryPlan("app", end="unborn")),
        (careless_of_credentials, RepositoryPlan("app", deeds=("secret",))),
        (by_force, RepositoryPlan("app", deeds=("diverged",))),
        (replaying_nothing, RepositoryPlan("app", deeds=("diverged",))),
        (replaying_nothing, RepositoryPlan("app", deeds=("twins",))),
        (replaying_nothing, RepositoryPlan("app", deeds=("conflicting",))),
        (silent_about_what_is_left, RepositoryPlan("app", end="dirty-default")),
        (blind_to_strangers, RepositoryPlan("app", deeds=("branch",), extras=("nested",))),
        (blind_to_strangers, RepositoryPlan("app", deeds=("branch",), extras=("worktree",))),
        (blind_to_new_files, RepositoryPlan("app", end="dirty")),
        (blind_to_new_files, RepositoryPlan("team", extras=("knowledge",), team=True)),
        (running_git_in_the_workspace, RepositoryPlan("app", extras=("hostile",))),
        (committing_at_another_time_each_time, RepositoryPlan("app", end="dirty")),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join([*value.deeds, value.end, *value.extras]),
)
def test_the_judge_finds_what_would_be_lost(
    defect: Callable[[pytest.MonkeyPatch], None], plan: RepositoryPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scratch() as place:
        member = Member(place / "member", (plan,))
        witness = FinalizationWitness.of(member)
        defect(monkeypatch)
        with pytest.raises(AssertionError):
            assert saved(member, witness).unsaved == member.keeps
        monkeypatch.undo()
        if plan.extras != ("hostile",) and "secret" not in plan.deeds and defect is not by_force:
            assert saved(member, witness).unsaved == member.keeps  # nothing is wrong with the plan itself, and nothing was lost for good
