"""Where each form of an agent's work is once its workspace is gone, for each way in which a workspace goes.

``docs/reference/where-work-goes.md`` shows the table. Each row is found anew here, by looking for the bytes of the work in every place.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.engine import FILES, Site, kill_at, open_site, shell
from support.members import Crew

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import GittrixError
from pytest_gittrix.git.environment import hermetic_env, run_git
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.workspaces.walk import Limits

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "where-work-goes.md"
WORK = "the only copy of this line"
RULES = {".gitignore": "build/\n", "vendor": ("160000", "1" * 40)}

FORMS: Mapping[str, str] = {
    "a tracked file": f"echo {WORK} > app.py",
    "a staged file, which was deleted since": f"echo {WORK} > new.py; git add new.py; rm new.py",
    "an untracked file": f"echo {WORK} > new.py",
    "a file that the baseline ignores": f"mkdir build; echo {WORK} > build/x",
    "a file that only the agent ignores": f"echo out/ >> .gitignore; mkdir out; echo {WORK} > out/x",
    "an ignored file that was added by force": f"mkdir build; echo {WORK} > build/x; git add -f build/x",
    "a commit on another branch": f"git checkout -qb side; echo {WORK} > new.py; git add .; git commit -qm side; git checkout -q main",
    "a commit on a detached HEAD": f"git checkout -q --detach; echo {WORK} > new.py; git add .; git commit -qm x",
    "a stash": f"echo {WORK} > app.py; git stash -q",
    "a commit that was reset": f"echo {WORK} > new.py; git add .; git commit -qm x; git reset -q --hard HEAD~1",
    "a tag": f"echo {WORK} > new.py; git add .; git commit -qm x; git tag v1; git reset -q --hard HEAD~1; rm -rf .git/logs .git/ORIG_HEAD",
    "a repository inside": f"mkdir in; cd in; git init -q; echo {WORK} > x; git add .; git commit -qm x; git rm -q x; git commit -qm y",
    "a file in the place of a submodule": f"echo {WORK} > vendor/x",
    "a file that is too large to be promoted": f"(echo {WORK}; head -c 200000 /dev/zero) > large.bin",
}

ENDS: Mapping[str, Callable[[Site, UserSession], object]] = {
    "promote everything": lambda _site, session: session.promote(),
    "promote another file": lambda _site, session: session.promote(files=["README.md"]),
    "promote and keep": lambda _site, session: session.promote(keep=True),
    "discard": lambda _site, session: session.discard(),
    "evict": lambda site, session: site.engine.evict(session.id),
    "expire": lambda site, _session: (site.clock.advance(hours=5), site.engine.sweep()),
    "discard, killed, recover": lambda site, session: (kill_at("evict:apart", session.discard), site.another().init()),
}
FINALIZE = "stop a member, clean up"
IDENTITY = {f"GIT_{who}_{what}": "agent@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def objects_with_work(git_dir: Path) -> bool:
    """Whether any object of a repository has the work."""
    if not git_dir.exists():
        return False
    found = run_git(["--git-dir", str(git_dir), "cat-file", "--batch-all-objects", "--batch"])
    return WORK.encode() in found


def files_with_work(directory: Path) -> bool:
    """Whether a file below a directory has the work, one of a git directory too."""
    if not directory.exists():
        return False
    found = subprocess.run(["grep", "-rqa", WORK, str(directory)], check=False).returncode == 0
    return found or any(objects_with_work(path) for path in directory.rglob(".git") if path.is_dir())


def branch_has_work(repository: Path) -> bool:
    """Whether a commit of any branch has the work."""
    commits = run_git(["rev-list", "--branches"], cwd=repository).decode().split()
    return subprocess.run(["git", "grep", "-qa", WORK, *commits], cwd=repository, env=hermetic_env(), check=False).returncode == 0


def places(durable: Path, store: Path) -> list[str]:
    """Every place where the work is, in the words of the page."""
    patch = store / "archive.patch"
    found = {
        "durable": branch_has_work(durable),
        "archive.patch": patch.exists() and f"+{WORK}" in patch.read_text(errors="replace"),
        "archive.git": objects_with_work(store / "archive.git"),
        "archive.agent.git": objects_with_work(store / "archive.agent.git"),
        "archive.workspace": files_with_work(store / "archive.workspace"),
        "the workspace": files_with_work(store / "workspace"),
    }
    return [place for place, there in found.items() if there]


def shown(found: list[str]) -> str:
    """A cell of the page."""
    short = [place for place in found if place != "archive.git" or "archive.patch" not in found]
    return ", ".join(f"`{place}`" if place.startswith("archive") else place for place in short) or "nowhere"


def row(root: Path, form: str) -> list[str]:
    """Where one form of work is after each end."""
    cells = []
    for number, act in enumerate(ENDS.values()):
        (root / str(number)).mkdir()
        with open_site(root / str(number), FILES | RULES, ephemeral=LocalEphemeral(limits=Limits(max_file=100_000))) as site:
            session = site.start()
            shell(session, FORMS[form])
            shell(session, "echo changed > README.md")
            refused = ""
            try:
                act(site, session)
            except GittrixError as refusal:
                refused = f"refused ({refusal.code}), "
            cells.append(refused + shown(places(site.durable.path, site.directory(session))))
    return [*cells, finalized(root / "crew", form)]


def finalized(root: Path, form: str) -> str:
    """Where one form of work is once a member's session was finalized and its workspace cleaned up."""
    if "vendor" in FORMS[form]:
        return "-"
    root.mkdir()
    with Crew.open(root) as crew:
        crew.app.commit({".gitignore": "build/\n"})
        life = crew.chat()
        subprocess.run(["sh", "-ec", FORMS[form]], cwd=crew.repo(life.id), env=hermetic_env() | IDENTITY, check=True)
        crew.members.stop(life.id)
        crew.members.cleanup(Selector(id=life.id))
        found = places(crew.app.path, crew.directory(life.id))
        return shown(["the remote" if place == "durable" else place for place in found])


def rows_of_the_page() -> Mapping[str, list[str]]:
    table = PAGE.read_text(encoding="utf-8").partition("\n## The table\n")[2]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {first: rest for first, *rest in cells}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_work_is_where_the_page_says_and_none_is_nowhere(tmp_path: Path, form: str) -> None:
    found = row(tmp_path, form)

    assert not [cell for cell in found if "nowhere" in cell]
    assert rows_of_the_page()[form] == found


def test_the_page_has_a_row_for_each_form_and_a_column_for_each_end() -> None:
    heading, *rows = rows_of_the_page().items()
    assert [*heading[1]] == [*ENDS, FINALIZE]
    assert [name for name, _ in rows if not name.startswith("--")] == [*FORMS]
