"""The table of ``docs/reference/paths.md``: what each verb does at a path with links, in each kind of workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from support.engine import Site, open_site

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import PromoteFailed, WriteRejected

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "paths.md"
FILES = {"src/file": "behind\n", "other": "behind\n", "ln": ("120000", "src"), "to-file": ("120000", "other"), "out": ("120000", "/etc")}
PATHS = {"ln/file": "src/file", "to-file": "other", "out/hostname": None}
"""The paths of the columns, each with the file that it leads to."""

BEHIND, ITSELF, REFUSED, NOT_TOUCHED = "the file behind it", "the link", "refused", "not touched"


def read(session: UserSession, path: str, *, follow: bool = True) -> str:
    found = session.read(path, follow=follow)
    return BEHIND if found == b"behind\n" else "its target" if found == b"other" else repr(found)


def write(session: UserSession, path: str, *, follow: bool = True) -> str:
    session.write(path, "written\n", follow=follow)
    (touched,) = session.touched_files()
    return BEHIND if touched == PATHS[path] else "becomes a file" if touched == path else touched


def delete(session: UserSession, path: str) -> str:
    session.delete(path)
    (touched,) = session.touched_files()
    return BEHIND if touched == PATHS[path] else ITSELF if touched == path else touched


def listing(session: UserSession, path: str) -> str:
    found = [entry.path for entry in session.list("ln" if path == "ln/file" else path.partition("/")[0])]
    return BEHIND if found == ["src/file"] else repr(found)


def change(session: UserSession) -> None:
    """Change everything that the paths can mean."""
    session.write("src/file", "changed\n")
    session.delete("to-file")


def diff(session: UserSession, path: str) -> str:
    change(session)
    found = session.diff([path])
    return "nothing" if not found else BEHIND if "+++ b/src/file" in found else ITSELF if "--- a/to-file" in found else found


def review(session: UserSession, path: str) -> str:
    change(session)
    (touched,) = session.review([path]).changes
    return BEHIND if touched == PATHS[path] else ITSELF if touched == path else touched


def promote(session: UserSession, path: str) -> str:
    change(session)
    session.promote(files=[path])
    return "promoted"


VERBS: Mapping[str, Callable[[UserSession, str], str]] = {
    "read": read,
    "read(follow=False)": lambda session, path: read(session, path, follow=False),
    "write": write,
    "write(follow=False)": lambda session, path: write(session, path, follow=False),
    "exists": lambda session, path: "yes" if session.exists(path) else "no",
    "delete": delete,
    "list": listing,
    "diff": diff,
    "review": review,
    "promote": promote,
}


def rows() -> Mapping[str, list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("paths"), FILES, bare=True) as site:
        yield site


def cell(site: Site, kind: str, verb: str, path: str) -> str:
    session = site.start(workspace=kind)
    baseline = session.info().baseline_sha
    try:
        found = VERBS[verb](session, path)
    except WriteRejected:
        found = REFUSED
    except PromoteFailed as failure:
        found = NOT_TOUCHED if "not touched" in failure.fact else failure.fact
    if found == "promoted":
        (changed,) = site.durable.git("diff", "--name-only", baseline, "main").split()
        found = BEHIND if changed == PATHS[path] else ITSELF if changed == path else changed
        site.durable.git("update-ref", "refs/heads/main", baseline)
    return found


@pytest.mark.parametrize("kind", ["clone", "copy", "lazy", "worktree"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_does_what_the_page_says_in_every_kind_of_workspace(site: Site, verb: str, kind: str) -> None:
    assert [cell(site, kind, verb, path) for path in PATHS] == rows()[verb]


def test_the_page_has_a_row_for_each_verb() -> None:
    assert [*rows()] == [*VERBS]
