"""Files that git ignores and a new workspace gets from durable's checkout: they are there, and are work only once they were changed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.engine import FILES, KINDS, Site, archived, as_ordinary_user, open_site, shell

from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput, PromoteFailed
from pytest_gittrix.testing.repos.member_witness import everything_below
from pytest_gittrix.workspaces.finder.worktree import unfinished_work

RULES = ".env*\n/config/local/\n*.key\nnode_modules/\n"
SECRET = "TOKEN=of-the-person\n"
IGNORED = {".env": SECRET, "config/local/db.json": "{}\n", "node_modules/a/index.js": "1\n", "src/a.key": "k\n"}
ALL_KINDS = (*KINDS, "overlay")

Start = Callable[..., UserSession]


@pytest.fixture
def checkout(site: Site) -> Path:
    """A checkout with ignored files."""
    site.durable.commit({".gitignore": RULES})
    for path, text in IGNORED.items():
        put(site.durable.path, path, text)
    return site.durable.path


@pytest.fixture
def start(site: Site, checkout: Path) -> Start:
    """Start a session in it, with patterns."""

    def started(*patterns: str, kind: Any = "clone", **options: Any) -> UserSession:
        return site.another(ephemeral=LocalEphemeral(kind, include=patterns)).start_session("fix", **options)

    return started


def put(root: Path, path: str, text: str) -> None:
    at = root / path
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text)


def files_of(checkout: Path) -> dict[str, tuple[int, bytes]]:
    return {path: found for path, found in everything_below(checkout).items() if path != ".git/worktrees"}


def ready(session: UserSession) -> Mapping[str, Any]:
    return session.history(["workspace.ready"])[0].data


def included(session: UserSession) -> list[str]:
    return [one["path"] for one in ready(session).get("included", ())]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_they_are_there_and_nothing_of_them_is_work(site: Site, checkout: Path, start: Start, kind: str) -> None:
    before = files_of(checkout)
    session = start(".env", "/config/local/", kind=kind)

    assert session.read(".env") == SECRET.encode()
    assert session.read("config/local/db.json") == b"{}\n"
    assert not session.exists("src/a.key")
    assert session.touched_files() == []
    assert session.diff() == ""
    with pytest.raises(PromoteFailed, match="nothing to promote"):
        session.promote(strategy="commit")
    with pytest.raises(PromoteFailed, match="not touched"):
        session.promote([".env"], strategy="commit")
    assert ready(session)["included"] == [{"path": ".env", "files": 1, "size": 20}, {"path": "config/local/", "files": 1, "size": 3}]
    assert "left_out" not in ready(session)
    record = [path.read_bytes() for path in site.directory(session).glob("*") if path.is_file()]
    assert record
    assert not any(b"of-the-person" in data for data in record)

    session.discard()
    assert site.engine.archives(session.id) == ()
    assert files_of(checkout) == before


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_promotion_takes_none_of_them_whatever_the_agent_does_to_the_rules(site: Site, start: Start, kind: str) -> None:
    session = start(".env", "/config/local/", kind=kind)
    session.write(".gitignore", "")
    session.write("app.py", "v2\n")
    session.write("config/local/own.json", "[]\n")
    assert session.touched_files() == [".gitignore", "app.py", "config/local/own.json"]

    result = session.promote(strategy="commit")

    assert [*site.durable.changed(result.sha)] == [".gitignore", "app.py"]
    assert [one for one in result.warnings if "included from durable's checkout" in one and "'config/' (1 file, 3 bytes)" in one]


@pytest.mark.parametrize("kind", ["clone", "worktree"])
def test_what_the_agents_git_tracks_by_force_is_not_promoted_with_everything(site: Site, start: Start, kind: str) -> None:
    session = start(".env", kind=kind)
    shell(session, "git add --force .env && echo v2 > app.py")
    assert session.touched_files() == ["app.py"]
    assert [*site.durable.changed(session.promote(strategy="commit").sha)] == ["app.py"]


def test_one_that_the_agent_changed_is_archived_and_never_lost_without_a_word(site: Site, checkout: Path, start: Start) -> None:
    session = start(".env", "/config/local/")
    assert session.workspace_path is not None
    put(session.workspace_path, ".env", "TOKEN=of-the-agent\n")
    put(session.workspace_path, "config/local/new.json", "[1]\n")
    found = unfinished_work(session.workspace_path)
    assert sorted(path for path, _ in found.ignored) == [".env", "config/local/"]
    assert sum(size for _, size in found.ignored) == len("TOKEN=of-the-agent\n") + len("[1]\n")
    assert [(one.item, one.grade, one.where) for one in found.noted] == [("config/local/db.json", "elsewhere", "durable's checkout")]

    session.discard()

    assert archived(site, session) == {".env": b"TOKEN=of-the-agent\n", "config/local/new.json": b"[1]\n"}
    assert (checkout / ".env").read_text() == SECRET


def test_unfinished_work_is_none_while_they_are_as_they_were(start: Start) -> None:
    session = start(".env", "/config/local/")
    assert session.workspace_path is not None
    found = unfinished_work(session.workspace_path)
    assert not found
    assert {(one.item, one.grade) for one in found.noted} == {(".env", "elsewhere"), ("config/local/db.json", "elsewhere")}
    assert [path for path, _ in unfinished_work(session.workspace_path, strict=True).ignored] == [".env", "config/local/"]


def test_one_that_was_written_through_the_session_is_promoted_only_by_its_name(site: Site, start: Start) -> None:
    session = start(".env")
    session.write(".env", "TOKEN=another\n")
    session.write("app.py", "v2\n")
    assert session.touched_files() == [".env", "app.py"]
    sha = session.promote(strategy="commit", keep=True).sha
    assert [*site.durable.changed(sha)] == ["app.py"]
    sha = session.promote([".env"], strategy="branch").sha
    assert [*site.durable.changed(sha)] == [".env"]


def test_the_copies_are_independent_and_keep_modes_and_times(checkout: Path, start: Start) -> None:
    (checkout / ".env").chmod(0o600)
    put(checkout, "config/local/run.sh", "#!/bin/sh\n")
    (checkout / "config/local/run.sh").chmod(0o755)
    os.utime(checkout / ".env", (1_000_000_000, 1_000_000_000))
    session = start(".env", "/config/local/")
    root = session.workspace_path
    assert root is not None
    assert stat.S_IMODE((root / ".env").stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "config/local/run.sh").stat().st_mode) == 0o755
    assert (root / ".env").stat().st_mtime == 1_000_000_000
    shell(session, "echo agent >> .env")
    assert (checkout / ".env").read_text() == SECRET
    (checkout / "config/local/db.json").write_text("person\n")
    assert session.read("config/local/db.json") == b"{}\n"


def test_worktreeinclude_and_pyproject_of_the_checkout_count_as_they_are_now(site: Site, checkout: Path) -> None:
    site.durable.commit({"pyproject.toml": '[tool.gittrix]\ninclude = ["*.key"]\n'})
    put(checkout, ".worktreeinclude", "# secrets\n.env*\n!.env.prod\n")
    put(checkout, ".env.prod", "no\n")
    session = site.start()
    assert included(session) == [".env", "src/a.key"]
    assert session.touched_files() == []
    off = site.another(ephemeral=LocalEphemeral(project_settings=False)).start_session("fix")
    assert included(off) == []
    assert not off.exists(".env")


@pytest.mark.parametrize("value", ['"x"', "[1]", "3", '["a\\nb"]'])
def test_a_setting_that_is_no_list_of_patterns_is_refused_and_leaves_nothing(site: Site, checkout: Path, value: str) -> None:
    put(checkout, "pyproject.toml", f"[tool.gittrix]\ninclude = {value}\n")
    with pytest.raises(InvalidInput, match=r"tool\.gittrix\.include in pyproject\.toml"):
        site.start()
    put(checkout, "pyproject.toml", "[tool.gittrix\n")
    with pytest.raises(InvalidInput, match="cannot be read"):
        site.start()
    assert [one for one in site.store.iterdir() if one.name.startswith("sess_")] == []
    put(checkout, "pyproject.toml", "[tool.other\n")
    assert site.start().touched_files() == []
    with pytest.raises(InvalidInput, match="include is no list"):
        LocalEphemeral(include=".env")


def test_an_ignored_directory_is_entered_only_for_a_pattern_that_names_a_way_into_it(checkout: Path, start: Start) -> None:
    put(checkout, "node_modules/a/.env", "x\n")
    put(checkout, "node_modules/b/c.js", "y\n")
    assert included(start(".env", "index.js")) == [".env"]
    assert included(start("node_modules/a/*.js")) == ["node_modules/a/index.js"]
    assert included(start("node_modules/*/c.js")) == ["node_modules/b/c.js"]
    assert ready(start("node_modules"))["included"] == [{"path": "node_modules/", "files": 3, "size": 6}]


def test_what_cannot_be_included_is_named_and_the_start_goes_on(checkout: Path, start: Start, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    put(outside, "secret.key", "s\n")
    local = checkout / "config/local"
    (local / "out.json").symlink_to(outside / "secret.key")
    (local / "own").symlink_to(checkout / ".env")
    (local / "up").symlink_to("../../../outside/secret.key")
    (local / "twice").symlink_to("../../../durable/.env")
    (local / "dangling").symlink_to("nowhere")
    (local / "sibling").symlink_to("db.json")
    os.mkfifo(local / "pipe")
    put(local, "nested/.git/HEAD", "ref: refs/heads/main\n")
    put(checkout, "notes.local", "mine\n")
    session = start("/config/local/", "notes.local")
    root = session.workspace_path
    assert root is not None
    assert sorted(path.name for path in (root / "config/local").iterdir()) == ["dangling", "db.json", "sibling"]
    assert os.readlink(root / "config/local/sibling") == "db.json"
    left = ready(session)["left_out"]
    assert sorted(line.partition(":")[0] for line in left) == [
        *(f"'config/local/{name}'" for name in ("nested/", "out.json", "own", "pipe", "twice", "up")),
        "'notes.local'",
    ]
    assert "the baseline's .gitignore does not ignore it" in next(line for line in left if "notes" in line)
    assert session.touched_files() == []


def test_a_bare_durable_has_nothing_to_include_and_says_so(tmp_path: Path) -> None:
    with open_site(tmp_path, {**FILES, ".gitignore": RULES, ".worktreeinclude": ".env\n"}, bare=True) as site:
        session = site.start()
        assert ready(session)["left_out"] == ["durable has no checkout on this machine, so there are no ignored files to include"]
        assert not session.exists(".env")


def test_a_store_in_the_checkout_is_not_included(checkout: Path, site: Site) -> None:
    put(checkout, ".git/info/exclude", "")
    site.durable.commit({".gitignore": f"{RULES}/state/\n"})
    put(checkout, "state/more.txt", "m\n")
    moved = Site(checkout / "state", site.durable, site.clock, {"home": checkout / "state" / "home"})
    try:
        session = moved.another(ephemeral=LocalEphemeral(include=["/state/"])).start_session("fix")
        assert ready(session)["included"] == [{"path": "state/", "files": 1, "size": 2}]
    finally:
        moved.close()


def test_a_fork_gets_them_as_they_are_now_and_a_handoff_takes_them_along(site: Site, checkout: Path, start: Start) -> None:
    session = start(".env")
    put(checkout, ".env", "TOKEN=newer\n")
    fork = session.fork()
    assert fork.read(".env") == b"TOKEN=newer\n"
    assert fork.touched_files() == []
    child = session.handoff()
    assert child.read(".env") == SECRET.encode()
    assert child.touched_files() == []
    child.discard()
    assert site.engine.archives(child.id) == ()


def test_a_seed_file_at_the_path_of_one_wins(start: Start) -> None:
    session = start(".env", seed_files={".env": "seed\n"})
    assert session.read(".env") == b"seed\n"
    assert session.touched_files() == []


def test_an_ordinary_user_is_told_of_a_file_that_only_another_may_read(start: Start) -> None:
    start(".env", "missing")  # loads what the user below may not be allowed to load

    def run() -> None:
        with open_site(Path.cwd(), {**FILES, ".gitignore": RULES}) as site:
            put(site.durable.path, ".env", SECRET)
            put(site.durable.path, "config/local/db.json", "{}\n")
            put(site.durable.path, "config/local/closed/x.json", "{}\n")
            (site.durable.path / ".env").chmod(0)
            (site.durable.path / "config/local/closed").chmod(0)
            session = site.another(ephemeral=LocalEphemeral(include=[".env", "/config/local/"]), durability="full").start_session("fix")
            (site.durable.path / "config/local/closed").chmod(0o700)
            assert included(session) == ["config/local/"]
            assert ready(session)["left_out"] == [
                "'.env': it cannot be read: Permission denied",
                "'config/local/closed/': it cannot be listed: Permission denied",
            ]
            assert session.touched_files() == []

    with tempfile.TemporaryDirectory() as open_to_all:  # tmp_path is below a directory of its owner's alone
        assert as_ordinary_user(run, Path(open_to_all)) == 0
