"""What would be lost with a worktree is named by form, and work that is on the base in another shape is not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import git
import pytest
from support.engine import open_site, shell
from support.git import GitRepo, put

from pytest_gittrix import unfinished_work
from pytest_gittrix.cli.main import main
from pytest_gittrix.confine.levels import missing_layers
from pytest_gittrix.conformance.worktrees.base.forms import FORMS, finish_by_hand, plant
from pytest_gittrix.conformance.worktrees.base.plain_git import PLAIN_GIT
from pytest_gittrix.conformance.worktrees.base.world import ToolWorld, opened_world
from pytest_gittrix.errors import GitFailed, InvalidInput

NAMED = {
    "modified": ("modified", "file.txt"),
    "staged": ("staged", "new.txt"),
    "untracked": ("untracked", "notes.txt"),
    "untracked-setting": ("untracked", "notes.txt"),
    "ignored": ("ignored", (".env", 22)),
    "assume-unchanged": ("hidden", "file.txt"),
    "skip-worktree": ("hidden", "file.txt"),
    "nested": ("nested", "nested"),
    "nested-ignored": ("nested", "build/tool"),
    "submodule": ("submodules", "lib"),
    "detached": ("detached", ""),
    "unmerged": ("unmerged", ""),
    "other-branch": ("unmerged", ""),
    "rebase": ("operations", "rebase"),
    "merge": ("operations", "merge"),
    "bisect": ("operations", "bisect"),
    "stash": ("stashes", "stash@{0}"),
    "locked": ("locked", "keep this"),
    "live": ("processes", ""),
}
ELSEWHERE = {"stash"}  # it stays with the repository


@pytest.fixture
def world(template: Path, tmp_path: Path) -> Iterator[ToolWorld]:
    with opened_world(PLAIN_GIT, template, tmp_path) as made:
        yield made


def test_every_form_that_the_clauses_know_is_named_somewhere() -> None:
    assert {*NAMED} == {*FORMS}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_named(world: ToolWorld, name: str) -> None:
    plant(world, FORMS[name], name)
    form, expected = NAMED[name]

    strict, work = (unfinished_work(world.path_of(), strict=strict) for strict in (True, False))

    assert expected in ("", *dict(strict.forms())[form])
    noted = {(note.form, note.item): note.grade for note in work.noted}
    assert bool(work) != (name in ELSEWHERE)
    assert noted == ({(form, expected): "elsewhere"} if name in ELSEWHERE else {})


def test_every_form_at_once_is_named_by_the_command(world: ToolWorld, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.create()
    for name in ("unmerged", "stash", "modified", "staged", "untracked", "ignored", "nested", "nested-ignored", "locked", "live"):
        world.sh(FORMS[name].plant.replace("@", name), path)
    world.sh("git update-index --skip-worktree other.txt; echo hidden >> other.txt", path)
    world.sh("cd $(git rev-parse --git-dir); touch MERGE_HEAD; mkdir sequencer", path)

    assert main(["unfinished", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["data"]

    empty = {form for form in (*(form for form, _ in NAMED.values()), "unfinished") if not found[form]}
    assert empty == {"submodules", "detached", "unmerged", "stashes"}
    assert {note["form"] for note in found["noted"]} == {"unmerged", "stashes"}  # a stash leads to the commit that it was made on
    assert found["operations"] == ["merge", "sequence of picks"]
    assert main(["unfinished", str(path)]) == 1
    assert "ignored     .env (8 bytes), build/ (" in capsys.readouterr().out


def test_finished_work_is_not_named(world: ToolWorld, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.create()
    finish_by_hand(world)

    assert not unfinished_work(path)
    assert main(["unfinished", str(path)]) == 0
    assert capsys.readouterr().out == "nothing would be lost\n"


def commits(world: ToolWorld, count: int = 2) -> Path:
    path = world.create()
    for number in range(count):
        world.sh(f"echo {number} > {number}.txt; git add .; git commit -qm {number}", path)
    return path


@pytest.mark.parametrize(
    "landing",
    [
        "git merge -q --squash demo >/dev/null; git commit -qm all",
        "echo x > x.txt; git add .; git commit -qm x; git cherry-pick main..demo",
    ],
    ids=["squash", "rebase"],
)
def test_what_the_base_has_in_another_shape_is_merged(world: ToolWorld, landing: str) -> None:
    path = commits(world)
    assert len(unfinished_work(path).unmerged) == 2

    world.sh(f"{{ {landing}; }} >/dev/null")
    assert unfinished_work(path).unmerged == ()

    world.sh("echo later > later.txt; git add .; git commit -qm later", path)
    assert len(unfinished_work(path).unmerged) == 3


def test_work_that_was_reverted_on_its_own_branch_is_not_merged(world: ToolWorld) -> None:
    path = commits(world, 1)
    world.sh("git revert --no-edit HEAD >/dev/null", path)
    world.sh("echo x > x.txt; git add .; git commit -qm x")

    assert len(unfinished_work(path).unmerged) == 2


def test_work_of_its_own_in_a_merge_commit_is_not_merged(world: ToolWorld) -> None:
    path = world.create()
    world.sh("echo x > x.txt; git add .; git commit -qm x")
    world.sh("git merge -q --no-ff --no-commit main >/dev/null; echo work > precious.txt; git add .; git commit -qm merged", path)

    assert len(unfinished_work(path).unmerged) == 1
    world.sh("git merge -q --squash demo >/dev/null; git commit -qm all")
    assert unfinished_work(path).unmerged == ()


@pytest.mark.parametrize(
    ("before", "ours", "theirs"),
    [
        (r"printf '\0one' > f", r"printf '\0two' > f", r"printf '\0six' > f"),
        (r"printf 'if a:\n  b\nc\n' > f", r"printf 'if a:\n  b\n  c\n' > f", r"printf 'if a:\n  b\n    c\n' > f"),
        ("touch f", "chmod +x f; echo x > f", "echo x > f"),
    ],
    ids=["binary", "white space", "mode"],
)
def test_two_edits_of_one_file_are_two_changes(world: ToolWorld, before: str, ours: str, theirs: str) -> None:
    world.sh(f"{before}; git add .; git commit -qm before")
    path = world.create()
    world.sh(f"{ours}; git add .; git commit -qm ours", path)
    world.sh(f"{theirs}; git add .; git commit -qm theirs")

    assert len(unfinished_work(path).unmerged) == 1
    world.sh("git reset -q --hard HEAD~1; echo x > x.txt; git add .; git commit -qm x; git cherry-pick demo >/dev/null")
    assert unfinished_work(path).unmerged == ()


def test_without_a_base_what_no_other_reference_has_is_named(world: ToolWorld) -> None:
    path = commits(world, 1)
    world.sh("git symbolic-ref refs/remotes/origin/HEAD refs/remotes/origin/gone")
    work = unfinished_work(path)
    assert work.base == "refs/heads/main"
    assert len(work.unmerged) == 1

    world.sh("git branch -qm main trunk")
    work = unfinished_work(path)
    assert work.base == ""
    assert len(work.unmerged) == 1
    world.sh("git tag kept demo")
    assert unfinished_work(path).unmerged == ()


def test_what_gitpython_staged_is_named(tmp_path: Path) -> None:
    """It leaves the ids of earlier trees in the index."""
    repo = GitRepo.make(tmp_path / "repo", {"file": "1\n", "deep/file": "1\n"})
    repo.git("read-tree", "HEAD")
    put(repo.path, {"file": "2\n", "deep/file": "2\n"})
    with git.Repo(repo.path) as opened:
        index = opened.index
        index.add(["file", "deep/file"], write=False)
        index.write()

    assert unfinished_work(repo.path).staged == ("deep/file", "file")


def test_main_itself_is_not_compared_with_nothing(world: ToolWorld) -> None:
    world.sh("git remote remove origin 2>/dev/null; true")
    work = unfinished_work(world.repo)
    assert (work.base, work.unmerged) == ("refs/heads/main", ())


def test_a_commit_that_only_a_reference_of_the_worktree_has_is_named(world: ToolWorld) -> None:
    path = commits(world, 1)
    world.sh("git update-ref refs/worktree/saved HEAD; git reset -q --hard main", path)

    work = unfinished_work(path)
    assert work.unmerged == ()
    assert len(work.detached) == 1


def test_no_number_of_commits_cuts_the_list(world: ToolWorld) -> None:
    path = world.create()
    commit = r"commit refs/heads/demo\ncommitter a <a@b> 0 +0000\ndata 1\nx\n%s\n"
    world.sh(f"""seq 2100 | awk '{{printf "{commit}", NR == 1 ? "from refs/heads/main\\n" : ""}}' | git fast-import --quiet""")

    assert len(unfinished_work(path).unmerged) == 2100


def test_submodules_are_looked_into(world: ToolWorld) -> None:
    world.sh(FORMS["submodule"].before)
    path = world.create()
    (path / "lib" / "early").write_text("before it is there")
    assert unfinished_work(path).untracked == ("lib/early",)
    world.sh("rm lib/early; git submodule --quiet update --init; git config diff.ignoreSubmodules all", path)
    assert not unfinished_work(path)
    world.sh("echo x > x; git add x; git commit -qm x; git tag only; git reset -q --hard HEAD~1", path / "lib")
    assert dict(unfinished_work(path).forms()) == {"submodules": ("lib",)}

    world.sh(
        "git tag -d only >/dev/null; echo .env >> $(git rev-parse --git-path info/exclude); echo 1 > .env; echo notes > notes; "
        "echo 1 > hidden; git add hidden; git commit -qm 2; git push -q origin HEAD:refs/heads/two; git fetch -q; "
        "git update-index --assume-unchanged hidden; echo 2 > hidden; touch $(git rev-parse --git-dir)/MERGE_HEAD",
        path / "lib",
    )
    found = dict(unfinished_work(path).forms())
    assert (found["untracked"], found["ignored"], found["hidden"]) == (("lib/notes",), (("lib/.env", 2),), ("lib/hidden",))
    assert (found["operations"], found.get("submodules")) == (("lib/merge",), None)

    world.sh("rm $(git rev-parse --git-dir)/MERGE_HEAD; git stash push -qu", path / "lib")
    assert unfinished_work(path).submodules == ("lib",)
    world.sh("git submodule --quiet deinit -f lib", path)
    assert unfinished_work(path).submodules == ("lib",)


def test_a_hidden_path_is_compared_as_git_would(world: ToolWorld) -> None:
    world.sh(
        r"ln -s nowhere link; ln -s nowhere moved; echo 1 > shape; echo 1 > mode; printf 'a\nb\n' > lines; "
        "echo 'lines text eol=crlf' > .gitattributes; git add .; git commit -qm kinds"
    )
    path = world.create()
    world.sh("git update-index --assume-unchanged link moved shape mode lines; touch lines", path)
    assert unfinished_work(path).hidden == ()
    assert b"\r\n" in (path / "lines").read_bytes()

    world.sh("ln -sfn elsewhere moved; rm shape; mkdir shape; chmod +x mode", path)
    assert unfinished_work(path).hidden == ("mode", "moved", "shape")


def test_what_cannot_be_looked_at_exits_with_another_status_than_work(world: ToolWorld, capsys: pytest.CaptureFixture[str]) -> None:
    path = commits(world, 1)
    assert main(["unfinished", str(path), "--base", "HEAD~1"]) == 2
    assert main(["unfinished", str(world.root / "nothing")]) == 2
    capsys.readouterr()
    world.sh("git update-index --split-index", path)
    assert main(["unfinished", str(path)]) == 2
    said = capsys.readouterr().err
    assert "git update-index --no-split-index" in said
    assert "promote" not in said.lower()

    world.sh('echo nothing > "$(git rev-parse --git-dir)/HEAD"', path)
    assert main(["unfinished", str(path)]) == 2


def test_the_base_can_be_named(world: ToolWorld) -> None:
    path = commits(world, 1)
    world.sh("git branch develop demo")

    assert unfinished_work(path, "develop").unmerged == ()
    with pytest.raises(InvalidInput, match="no branch 'nowhere'"):
        unfinished_work(path, "nowhere")


def test_a_place_without_a_worktree_is_refused(tmp_path: Path, world: ToolWorld) -> None:
    with pytest.raises(InvalidInput, match="is in no git repository"):
        unfinished_work(tmp_path / "nothing")
    world.sh('git clone -q --bare . "$R/bare"')
    with pytest.raises(InvalidInput, match="is a bare repository"):
        unfinished_work(world.root / "bare")


# What would not be lost ------------------------------------------------------------------------------------------------------------


def noted(path: Path, **options: Any) -> list[tuple[str, str, str]]:
    """What is noted of a worktree where nothing would be lost."""
    work = unfinished_work(path, **options)
    assert not work, dict(work.forms())
    return [(note.form, note.item, note.where) for note in work.noted]


@pytest.mark.parametrize(
    ("before", "work", "where"),
    [
        ("git branch develop", "git push -q origin demo", "refs/remotes/origin/demo"),
        ("true", "git tag v1", "refs/tags/v1"),
        ("true", "git branch other", "refs/heads/other"),
        ("true", "git update-ref refs/checkpoints/1 HEAD", "refs/checkpoints/1"),
        ("true", "git push -q origin demo:main; git -C ../app fetch -q", "refs/remotes/origin/main"),
    ],
    ids=["pushed", "tagged", "another branch", "a private reference", "merged at the remote"],
)
def test_a_commit_that_another_reference_has_is_elsewhere(remote: ToolWorld, before: str, work: str, where: str) -> None:
    remote.sh(before)
    path = commits(remote, 1)
    assert len(unfinished_work(path).unmerged) == 1
    remote.sh(work, path)

    found = noted(path)
    assert found == [] or [(form, there) for form, _, there in found] == [("unmerged", where)]
    assert bool(unfinished_work(path, strict=True)) == (found != [])


@pytest.fixture
def remote(world: ToolWorld) -> ToolWorld:
    """A repository with a remote whose HEAD is not known here."""
    world.sh('git init -q --bare "$R/o.git"; git remote add origin "$R/o.git"; git push -q origin main; git fetch -q')
    return world


def test_a_branch_that_began_at_another_one_than_main_has_no_work(remote: ToolWorld) -> None:
    remote.sh("git checkout -q -b develop; echo d > d; git add d; git commit -qm d; git checkout -q main")
    remote.sh("git worktree add -q ../demo -b demo develop")

    assert noted(remote.repo.parent / "demo") == [("unmerged", remote.sh("git rev-parse develop").strip()[:12], "refs/heads/develop")]


@pytest.mark.parametrize(
    "landing", ["git merge -q --squash demo >/dev/null; git commit -qm all", "git checkout -q demo -- .; git commit -qm tree"]
)
def test_a_branch_that_was_squashed_into_a_branch_of_the_remote_is_elsewhere(remote: ToolWorld, landing: str) -> None:
    remote.sh("git checkout -q -b develop; git checkout -q main")
    path = commits(remote)
    remote.sh(f"git checkout -q develop; {landing}; git push -q origin develop; git checkout -q main; git branch -qD develop")

    assert {where for _, _, where in noted(path)} == {"refs/remotes/origin/develop"}


def test_what_can_be_made_again_is_noted_by_its_uppermost_directory(world: ToolWorld) -> None:
    path = world.create()
    world.sh(
        "mkdir -p node_modules/a/b build/__pycache__ build/cache sub/.venv; echo x > node_modules/a/b/c.js; echo x > node_modules/d", path
    )
    world.sh("echo x > build/__pycache__/x.pyc; echo y > build/__pycache__/y.pyc; echo x > sub/.venv/x; ln -s /etc/hosts build/link", path)
    world.sh("rmdir build/cache", path)

    assert {item for _, item, _ in noted(path)} == {
        "node_modules/",
        "build/__pycache__/x.pyc",
        "build/__pycache__/y.pyc",
        "sub/.venv/",
        "build/link",
    }
    world.sh("echo work > build/kept", path)
    assert unfinished_work(path).ignored == (("build/", 5),)


def test_a_directory_that_a_program_marked_can_be_made_again(world: ToolWorld) -> None:
    world.sh("printf 've/\\ncache/\\n' >> .gitignore; git commit -qam rules")
    path = world.create()
    world.sh("mkdir ve cache; echo x > ve/pyvenv.cfg; echo x > ve/a; echo x > cache/a", path)
    assert unfinished_work(path).ignored == (("cache/", 2),)

    world.sh("printf 'Signature: 8a477f597d28d172789f06886806bc55' > cache/CACHEDIR.TAG", path)
    assert [item for _, item, _ in noted(path)] == ["cache/", "ve/"]
    assert [one for one, _ in unfinished_work(path, keep=["ve/"]).ignored] == ["ve/"]

    world.sh("rm cache/*; mv ve cache", path)
    assert [item for _, item, _ in noted(path)] == ["cache/ve/"]
    assert unfinished_work(path, keep=["ve/", "!ve/"]).ignored == (("cache/", 4),)


@pytest.mark.parametrize("environment", [".venv", "ve"], ids=["by name", "by mark"])
def test_a_package_that_is_edited_in_a_virtual_environment_is_work(world: ToolWorld, environment: str) -> None:
    world.sh("printf 've/\\n.venv/\\n' >> .gitignore; git commit -qam rules")
    path = world.create()
    world.sh(
        f"mkdir -p {environment}/src/plain {environment}/lib/x/.git; echo x > {environment}/pyvenv.cfg; echo x > {environment}/src/plain/a",
        path,
    )
    assert not unfinished_work(path)

    world.sh(f"git init -q {environment}/src/edited", path)
    work = unfinished_work(path)
    assert (work.nested, work.ignored, work.untracked) == ((f"{environment}/src/edited",), (), ())
    assert [(note.item, note.where) for note in work.noted] == [(f"{environment}/", "can be made again")]


def test_a_repository_says_what_can_be_made_again_and_a_person_what_counts(world: ToolWorld) -> None:
    path = world.create()
    world.sh("mkdir build node_modules; echo x > build/a; echo x > node_modules/b; printf '*\\n' > .gittrix-unfinished", path)
    assert [one for one, _ in unfinished_work(path).ignored] == ["build/"]  # what the worktree itself says counts for nothing

    world.sh("printf 'build/\\n!node_modules/\\n' > .gittrix-unfinished; git add .; git commit -qm settings")
    world.sh("rm .gittrix-unfinished; git merge -q main", path)
    assert unfinished_work(path).untracked == ("node_modules/b",)
    toml = '[tool.gittrix]\\nunfinished = ["node_modules/"]\\n'
    world.sh(f"printf '{toml}' > pyproject.toml; git rm -q .gittrix-unfinished; git add .; git commit -qm toml")
    world.sh("git merge -q main", path)
    assert [one for one, _ in unfinished_work(path).ignored] == ["build/"]
    assert unfinished_work(path, keep=["node_modules/"]).untracked == ("node_modules/b",)

    world.sh("printf '[tool.gittrix]\\nunfinished = 1\\n' > pyproject.toml; git commit -qam wrong")
    with pytest.raises(InvalidInput, match="list of patterns"):
        unfinished_work(path)


def test_the_command_takes_patterns_and_can_be_strict(world: ToolWorld, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.create()
    world.sh("mkdir node_modules; echo x > node_modules/b", path)
    assert main(["unfinished", str(path)]) == 0
    assert capsys.readouterr().out == "nothing would be lost\nnot lost:\nuntracked   node_modules/: can be made again\n"
    assert main(["unfinished", str(path), "--strict"]) == 1
    assert main(["unfinished", str(path), "--keep", "node_modules/"]) == 1


# Which directory is looked at ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cp -r demo other", "mv demo other", "mv demo other; mkdir demo"])
def test_a_directory_that_git_takes_for_another_one_is_refused(world: ToolWorld, how: str) -> None:
    path = world.create()
    world.sh(how.replace("demo", path.name), path.parent)
    there = path.parent / "other"
    (there if there.exists() else path).joinpath("new.txt").write_text("the only copy")

    with pytest.raises(InvalidInput, match="is not the worktree of its git directory") as refusal:
        unfinished_work(there if there.exists() else path)
    assert "git worktree repair" in refusal.value.fix


def test_a_directory_that_holds_the_repository_takes_all_references_with_it(remote: ToolWorld) -> None:
    assert noted(remote.repo) == []
    remote.sh("git checkout -q -b a; echo a > a; git add a; git commit -qm a; git tag t; git checkout -q main; git push -q origin t")
    remote.sh(
        "echo b > b; git add b; git stash -q; git worktree add -q --detach ../linked a; git commit -q --allow-empty -m c", remote.repo
    )

    work = unfinished_work(remote.repo)
    assert work.unpushed == ("refs/heads/a (1 commit)", "refs/heads/main (1 commit)")
    assert work.stashes == ("stash@{0}",)


def test_a_sparse_checkout_lacks_files_and_loses_none(world: ToolWorld) -> None:
    world.sh("mkdir d e; echo 1 > d/1; echo 2 > e/2; git add .; git commit -qm d")
    path = world.create()
    world.sh("git sparse-checkout set --cone --no-sparse-index d", path)
    assert noted(path) == []
    world.sh("mkdir e; echo work > e/2", path)
    assert unfinished_work(path).hidden == ("e/2",)


@pytest.mark.parametrize(
    "script",
    [
        "git config include.path ../../pipe",
        "printf '\\357\\273\\277[include]\\n\\tpath = ../../pipe\\n' | cat - .git/config > new; mv new .git/config",
        "printf '[core] [Include] path = ../../pipe\\n' >> .git/config",
        "git config core.excludesFile $PWD/../pipe",
        "git config core.attributesFile $PWD/../pipe",
        "git config extensions.worktreeConfig true; printf '[include]\\n\\tpath = ../../pipe\\n' > .git/config.worktree",
        "mkdir -p .git/modules/x; printf '[include]\\n\\tpath = ../../../../pipe\\n' > .git/modules/x/config",
        "echo $PWD/../pipe > .git/objects/info/alternates",
        "rmdir .git/objects/info; ln -s $PWD/.. .git/objects/info",
        "git init -q ../other; echo $PWD/../other/.git > .git/commondir",
        "mv .git ../moved; echo gitdir: ../moved > .git; git --git-dir=../moved config core.worktree $PWD",
        "mkfifo .git/shallow",
        "rm .git/refs/heads/*; mkfifo .git/$(git symbolic-ref HEAD)",
    ],
    ids=lambda script: script[:24],
)
def test_the_workspace_of_a_session_leads_nowhere_else(tmp_path: Path, script: str) -> None:
    with open_site(tmp_path) as site:
        session = site.start()
        path = session.workspace_path
        assert path is not None
        session.write("new.txt", "the only copy")
        shell(session, "git worktree add -q ../linked; mkdir -p .git/hooks; ln -s ../../hook .git/hooks/pre-commit")
        assert unfinished_work(path).untracked == ("new.txt",)

        os.mkfifo(path.parent / "pipe")  # who reads it waits for ever
        shell(session, f"mkdir -p .git/objects/info; {script}")
        with pytest.raises(GitFailed, match=r"names other files|leads to|neither a file nor"):
            unfinished_work(path)


@pytest.mark.parametrize(
    "script",
    [
        "rm .gitignore; mkfifo .gitignore",
        "mkfifo .gitattributes",
        "mkfifo .gitmodules",
        "mkdir new; mkfifo new/.gitignore",
        "git init -q new; mkfifo new/.gitignore",
        "mkfifo pipe; ln -sf pipe .gitignore",
        "ln -sf /dev/zero .gitignore",
        "mkdir d; touch d/x; git add .; echo d > .gitignore; mkfifo d/.gitignore",
        "mkdir -p $COMMON/info; rm -f $COMMON/info/exclude; mkfifo $COMMON/info/exclude",
        "mkfifo $COMMON/shallow",
        "mkfifo $OWN/locked",
        "mkfifo $COMMON/refs/heads/other",
        "mkfifo pipe; git config include.path $PWD/pipe",
        "mkfifo pipe; git config core.excludesFile $PWD/pipe",
        'mkfifo pipe; printf \'[include]\\npath = "pi"\\\\\\np"e"\\n\' > c; git config include.path $PWD/c',
        "mkdir -p other/pack; mkfifo other/pack/pack-1.idx; echo $PWD/other > $COMMON/objects/info/alternates",
    ],
)
def test_what_would_make_git_wait_is_refused(world: ToolWorld, script: str) -> None:
    path = world.create()
    world.sh(f'OWN="$(git rev-parse --absolute-git-dir)"; COMMON="$OWN/../.."; {script}', path)

    with pytest.raises(GitFailed, match=r"is a (named pipe|character device)"):
        unfinished_work(path)


@pytest.mark.parametrize("name", [".gitignore", "new.idx", "HEAD"])
def test_a_pipe_in_a_submodule_is_refused(world: ToolWorld, name: str) -> None:
    world.sh("git init -q lib; git -C lib commit -q --allow-empty -m lib; git add lib; git commit -qm lib")
    world.sh(f"rm -f lib/.git/{name}; mkfifo {'lib' if name == '.gitignore' else 'lib/.git'}/{name}")

    with pytest.raises(GitFailed, match=r"is a named pipe|is no file|is no repository"):
        unfinished_work(world.repo)


def test_a_pipe_that_git_does_not_read_is_no_hindrance(world: ToolWorld) -> None:
    path = world.create()
    world.sh("echo out > .gitignore; git add .; git commit -qm out; mkdir out; mkfifo out/.gitignore out/.gitattributes pipe", path)
    world.sh("git config core.excludesFile /dev/null; git config include.path nowhere; ln -s /dev/null .gitattributes", path)

    work = unfinished_work(path)
    assert (work.untracked, [note.item for note in work.noted]) == ((), [".gitattributes"])


def test_directories_of_any_name_and_depth_are_looked_into_or_refused(world: ToolWorld) -> None:
    path = world.create()
    for name in (b"\xff\xfe", b"a b\n", b"[x]*?!", b"!not", b"-x"):
        (path / os.fsdecode(name)).mkdir()
        (path / os.fsdecode(name) / "f").touch()
    assert len(unfinished_work(path).untracked) == 5
    os.mkfifo(path / os.fsdecode(b"\xff\xfe") / ".gitignore")
    with pytest.raises(GitFailed, match="is a named pipe"):
        unfinished_work(path)
    (path / os.fsdecode(b"\xff\xfe") / ".gitignore").unlink()

    os.makedirs(path / "/".join(["d"] * 200))
    with pytest.raises(GitFailed, match="nesting too deep"):
        unfinished_work(path)


def test_the_note_of_a_workspace_that_is_a_pipe_is_not_waited_for(world: ToolWorld) -> None:
    path = world.create()
    moved = path.parent / "workspace"
    world.sh(f"git worktree move {path} {moved}; mkdir ../engine; mkfifo ../engine/workspace.json")
    assert unfinished_work(moved).untracked == ()


@pytest.mark.parametrize("kind", ["lazy", "copy", "overlay"])
def test_a_workspace_without_a_whole_repository_of_its_own_is_refused_with_what_to_ask_instead(tmp_path: Path, kind: str) -> None:
    with open_site(tmp_path) as site:
        if kind == "overlay" and (why := missing_layers(str(tmp_path))):
            pytest.skip(why)
        session = site.start(workspace=kind)
        session.write("new.txt", "the only copy")

        with pytest.raises(InvalidInput, match=f"of the kind '{kind}', which has no whole git repository") as refusal:
            unfinished_work(site.directory(session) / "workspace")
    assert "session diff" in refusal.value.fix
