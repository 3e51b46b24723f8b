"""Workspaces whose files are behind another process, and adapters of somebody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, at_point, kill_at, open_site
from support.extending import install_package
from support.workspace_server import WorkspaceServer, workspace_server

from pytest_gittrix import extensions
from pytest_gittrix.backends import Ephemeral, LocalEphemeral, RemoteEphemeral, Workspace
from pytest_gittrix.engine.eviction.archive import WHOLE
from pytest_gittrix.engine.operations.ids import random_id
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, AuthFailed, CapabilityMissing, GittrixError, InvalidInput
from pytest_gittrix.os_level.safe_dir import SafeDir
from pytest_gittrix.workspaces.walk import Limits

LONG = "".join(f"{number}\n" for number in range(20))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkspaceServer]:
    with workspace_server(tmp_path_factory.mktemp("server") / "workspaces") as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, server: WorkspaceServer) -> Iterator[Site]:
    with open_site(tmp_path, ephemeral=RemoteEphemeral(server.address, server.token), ids=random_id) as opened:
        yield opened


def there(server: WorkspaceServer, session: UserSession) -> Path:
    """The directory of a session's workspace at the server."""
    return server.root / session.id


def test_its_files_are_at_the_server_from_the_start(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    root = there(server, session)

    assert (root / "app.py").read_text() == "print('v1')\n"
    assert (root / "link").readlink() == Path("app.py")
    assert (root / "run.sh").stat().st_mode & 0o100
    record = session.metadata()
    assert (record["workspaceKind"], record["isGitBacked"]) == ("remote", False)
    assert record["ephemeralRef"] == f"{server.address}/{session.id}"
    assert server.token not in json.dumps(record)


def test_a_promotion_that_keeps_it_brings_a_rivals_change_to_the_server(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    session.write("app.py", "print('v2')\n")
    session.write("left.txt", "left\n")
    site.durable.commit({"README.md": "# By a rival\n", "run.sh": None})

    session.promote(files=["app.py"], keep=True)

    assert (there(server, session) / "README.md").read_text() == "# By a rival\n"
    assert not (there(server, session) / "run.sh").exists()
    assert session.touched_files() == site.another().get_session(session.id).touched_files() == ["left.txt"]


def test_it_begins_with_files_that_it_is_given(site: Site, server: WorkspaceServer) -> None:
    session = site.start(seed_files={"NOTES.md": "begin here\n"})
    assert (there(server, session) / "NOTES.md").read_text() == "begin here\n"
    assert session.touched_files() == []

    (there(server, session) / "NOTES.md").write_text("done\n")
    assert session.touched_files() == ["NOTES.md"]


def test_what_is_written_is_there_and_what_is_there_is_read(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    root = there(server, session)

    session.write("new/file.txt", "here\n")
    session.delete("README.md")
    assert (root / "new/file.txt").read_text() == "here\n"
    assert not (root / "README.md").exists()

    (root / "app.py").write_text("there\n")
    (root / "src/util.py").unlink()
    assert session.read("app.py") == b"there\n"
    assert "src/util.py" not in [entry.path for entry in session.list()]
    assert session.touched_files() == ["README.md", "app.py", "new/file.txt", "src/util.py"]
    assert "+there" in session.diff()


def test_the_agent_commits_and_looks_back_without_git(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    agent = session.for_agent()
    (there(server, session) / "app.py").write_text("there\n")

    assert agent.commit("from elsewhere") == agent.log()[0].sha
    assert [entry.message for entry in agent.log()] == ["from elsewhere"]
    capabilities = session.info().capabilities
    assert [capabilities[name] for name in ("git", "shell", "isolated", "apiReadWrite")] == [False, False, True, True]
    assert session.review().touched == ["app.py"]


def test_it_is_promoted_and_evicted_at_the_server_too(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    (there(server, session) / "app.py").write_text("there\n")

    assert [*site.durable.changed(session.promote().sha)] == ["app.py"]
    assert not there(server, session).exists()
    assert not (site.store / session.id / "workspace").exists()


def test_what_is_not_promoted_is_archived(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    (there(server, session) / "app.py").write_text("there\n")
    session.discard()

    assert b"+there" in (site.store / session.id / "archive.patch").read_bytes()
    assert not there(server, session).exists()


def test_another_engine_with_the_adapter_goes_on(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    with site.another() as other:
        assert other.get_session(session.id).read("app.py") == b"v2\n"


def test_a_rebase_brings_what_others_changed_to_the_server(site: Site, server: WorkspaceServer) -> None:
    site.durable.commit({"long.txt": LONG})
    session = site.start()
    session.write("long.txt", LONG.replace("2\n3\n", "ours\n3\n"))
    head = site.durable.commit({"long.txt": LONG.replace("17\n", "theirs\n"), "README.md": "# By a rival\n", "run.sh": None})

    assert session.rebase().merged == ("long.txt",)

    root = there(server, session)
    assert (root / "README.md").read_text() == "# By a rival\n"
    assert not (root / "run.sh").exists()
    assert session.touched_files() == ["long.txt"]
    both = LONG.replace("2\n3\n", "ours\n3\n").replace("17\n", "theirs\n")
    assert (root / "long.txt").read_text() == both
    done = session.promote()
    assert site.durable.parents(done.sha) == [head]
    assert site.durable.read("long.txt").decode() == both


def test_a_fork_and_a_handoff_keep_the_files(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    fork = session.fork()
    assert (there(server, fork) / "app.py").read_text() == "v2\n"

    successor = session.handoff()
    successor.write("app.py", "v3\n")
    assert (server.root / session.id / "app.py").read_text() == "v3\n"
    assert successor.metadata()["ephemeralRef"] == session.metadata()["ephemeralRef"]
    assert fork.read("app.py") == b"v2\n"


def test_a_workspace_of_the_same_name_is_not_written_over(site: Site, server: WorkspaceServer) -> None:
    (server.root / "taken").mkdir()
    with pytest.raises(AdapterUnavailable, match="412"):
        site.start(id="taken")
    assert [*(server.root / "taken").iterdir()] == []


def test_an_engine_without_the_adapter_does_not_touch_it(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    with site.another(ephemeral=LocalEphemeral()) as other:
        with pytest.raises(CapabilityMissing, match="this engine makes 'clone'"):
            other.get_session(session.id)
    session.write("app.py", "v2\n")
    assert session.read("app.py") == b"v2\n"


def test_no_program_runs_in_it_and_no_other_kind_is_made(site: Site) -> None:
    session = site.start()
    assert session.workspace_path is None
    with pytest.raises(CapabilityMissing, match="the files of a remote one are elsewhere"):
        session.run(["true"])
    with pytest.raises(CapabilityMissing, match="'clone' was asked for"):
        site.engine.start_session("x", workspace="clone")


def test_a_wrong_token_is_refused_and_not_shown(tmp_path: Path, server: WorkspaceServer) -> None:
    with open_site(tmp_path, ephemeral=RemoteEphemeral(server.address, "wrong-token")) as site:
        with pytest.raises(AuthFailed) as caught:
            site.start()
        assert "wrong-token" not in f"{caught.value} {site.engine.ephemeral!r}"
        assert site.engine.list_sessions() == []


@pytest.mark.parametrize("address", ["ftp://host", "http://user:pw@host", "/a/path", "http://host/?q", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="needs the address of a server"):
        RemoteEphemeral(address)


@pytest.mark.parametrize(
    "listed",
    [
        {},
        {"files": []},
        {"files": {"a": ["100644"]}},
        {"files": {"a": ["40000", "0"]}},
        {"files": {".git/config": ["100644", "0"]}},
    ],
)
def test_a_list_that_is_none_is_an_error_and_writes_nothing(
    site: Site, server: WorkspaceServer, listed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.start()
    monkeypatch.setattr("json.loads", lambda _text, **_options: listed)
    with pytest.raises(GittrixError):
        session.read("app.py")
    assert not (site.store / session.id / "a").exists()


class Elsewhere(Ephemeral):
    """The adapter of somebody else: directories of its own, with the rest as the protocol has it."""

    kind = "copy"

    def __init__(self) -> None:
        self.made: list[str] = []

    def create(self, path: str, state_dir: str, seed: Any, **options: Any) -> Workspace:
        self.made.append(options["name"])
        return LocalEphemeral("copy").create(path, state_dir, seed, **options)

    def open(self, path: str, state_dir: str, seeds: str | None = None) -> Workspace:
        return LocalEphemeral("copy").open(path, state_dir, seeds)


def test_an_adapter_without_a_way_to_make_or_open_workspaces_cannot_be_made() -> None:
    class Unfinished(Ephemeral):
        kind = "elsewhere"

    with pytest.raises(TypeError, match=r"abstract methods create, open|abstract methods 'create', 'open'"):
        Unfinished()  # type: ignore[abstract]


def test_an_adapter_of_somebody_else_s_works(tmp_path: Path) -> None:
    adapter = Elsewhere()
    with open_site(tmp_path, ephemeral=adapter) as site:
        session = site.start()
        session.write("app.py", "v2\n")
        with site.another() as other:
            assert other.get_session(session.id).diff() == session.diff()
        assert session.promote().sha == site.durable.head()
        assert adapter.made == [session.id]
        with pytest.raises(CapabilityMissing, match="Elsewhere makes workspaces of the kind 'copy' only"):
            site.start(workspace="worktree")


@pytest.fixture
def registered_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of workspace that a package registers."""

    class Acme(Elsewhere):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind

    install_package(monkeypatch, Acme=Acme, gittrix_workspaces=lambda: {"acme": ("acme_extends:Acme",), "lost": ("acme_lost",)})


@pytest.mark.usefixtures("registered_kind")
def test_a_kind_that_a_package_registers_is_made_and_opened_by_its_name(tmp_path: Path) -> None:
    with open_site(tmp_path) as site:
        session = site.start(workspace="acme")
        session.write("app.py", "v2\n")
        assert session.info().workspace_kind == "acme"
        with site.another() as other:
            again = other.get_session(session.id)
            assert again.read("app.py") == b"v2\n"
            assert again.metadata()["workspaceKind"] == "acme"
            other.fork(session.id).discard(force=True)
        assert session.promote().sha == site.durable.head()
        with pytest.raises(CapabilityMissing, match="acme_lost cannot be loaded"):
            site.start(workspace="lost")
        with pytest.raises(InvalidInput, match="workspace='nothing' is not a kind of workspace"):
            site.start(workspace="nothing")


@pytest.mark.usefixtures("registered_kind")
def test_a_session_whose_kind_is_not_registered_any_more_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_site(tmp_path) as site:
        session = site.start(workspace="acme")
        monkeypatch.setattr(extensions, "registered", lambda kind: extensions.OURS[kind])
        with site.another() as other, pytest.raises(CapabilityMissing, match="'acme', and this engine makes 'clone'") as refusal:
            other.get_session(session.id).read("app.py")
        assert "Install the package that registers this kind" in refusal.value.fix


def test_what_is_no_adapter_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    with open_site(tmp_path, ephemeral=object()) as site:
        with pytest.raises(InvalidInput, match="object is not an adapter of workspaces: it lacks address, confine, create"):
            site.start()


def test_a_server_that_is_killed_loses_nothing(site: Site, tmp_path: Path) -> None:
    with workspace_server(tmp_path / "workspaces") as server:
        with site.another(ephemeral=RemoteEphemeral(server.address, server.token)) as engine:
            session = engine.start_session("fix the bug")
            session.write("app.py", "v2\n")
            server.kill()

            for attempt in (lambda: session.write("app.py", "v3\n"), lambda: session.read("app.py"), session.promote, session.diff):
                with pytest.raises(AdapterUnavailable, match="cannot be reached"):
                    attempt()
            assert engine.list_sessions("active")[0].id == session.id

            server.start()
            assert session.read("app.py") == b"v2\n"
            session.write("new.txt", "kept\n")
            server.kill()
            with pytest.raises(AdapterUnavailable, match="cannot be reached") as caught:
                session.discard()
            assert caught.value.outcome == "unknown"
            assert (server.root / session.id / "new.txt").exists()

            server.start()
            engine.recover()
            assert not (server.root / session.id).exists()
            assert b"+kept" in (engine.store.root / session.id / "archive.patch").read_bytes()


def test_what_is_added_while_a_session_ends_is_not_removed(site: Site, server: WorkspaceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.start()
    late = there(server, session) / "late.txt"
    with at_point("evict:apart", lambda: late.write_text("late\n")), pytest.raises(AdapterUnavailable, match="412"):
        session.discard()
    assert late.exists()

    site.engine.recover()
    assert not late.exists()
    assert b"+late" in (site.store / session.id / "archive.patch").read_bytes()


HASH = "0" * 64
HOSTILE = ("../x", "/etc/x", "a\0b", ".GIT/config", "sub/.git/HEAD", "a//b", "n" * 300, "app.py/below")


@pytest.mark.parametrize("path", HOSTILE)
def test_a_listed_path_that_no_workspace_may_have_is_refused_before_anything_is_put(site: Site, server: WorkspaceServer, path: str) -> None:
    session = site.start()
    listed = {"files": {"app.py": ["100644", HASH], path: ["100644", HASH]}}
    with (
        server.trouble(f"list {json.dumps(listed)}"),
        pytest.raises(AdapterUnavailable, match="which cannot be stored in the session") as caught,
    ):
        session.read("app.py")
    assert server.address in str(caught.value)
    assert (site.store / session.id / "workspace/app.py").read_text() == "print('v1')\n"


@pytest.mark.parametrize("trouble", ["list " + "[" * 200_000, "list {}", "no tag", "304"])
def test_an_answer_that_is_none_is_refused_and_removes_nothing(site: Site, server: WorkspaceServer, trouble: str) -> None:
    session = site.start()
    (there(server, session) / "late.txt").write_text("late\n")
    with server.trouble(trouble):
        with pytest.raises(AdapterUnavailable):
            session.read("app.py")
        with pytest.raises(AdapterUnavailable):
            session.discard()
    assert (there(server, session) / "late.txt").exists()

    site.engine.recover()
    assert not there(server, session).exists()


def test_what_cannot_be_taken_does_not_keep_a_session_from_ending(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    root = there(server, session)
    (root / "app.py").write_text("there\n")
    (root / "sub/.git").mkdir(parents=True)
    (root / "sub/.git/HEAD").write_text("ref: refs/heads/main\n")
    with pytest.raises(AdapterUnavailable, match=r"sub/\.git/HEAD"):
        session.read("app.py")
    session.discard()

    assert not root.exists()
    record = site.store / session.id
    assert b"+there" in (record / "archive.patch").read_bytes()
    assert (record / WHOLE / "app.py").read_text() == "there\n"
    assert "sub/.git/HEAD" in (record / "events.jsonl").read_text()


def test_a_hostile_list_does_not_keep_a_session_from_ending(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    session.write("kept.txt", "kept\n")
    listed = {"files": {key: ["100644", HASH] for key in ("app.py", "kept.txt", *HOSTILE)}}
    with server.trouble(f"list {json.dumps(listed)}"):
        session.discard()

    assert not there(server, session).exists()
    record = site.store / session.id
    assert (record / WHOLE / "kept.txt").read_text() == "kept\n"
    assert f"{len(HOSTILE) + 2} of its files" in (record / "events.jsonl").read_text()


def test_a_removal_whose_answer_was_lost_is_finished(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    (there(server, session) / "app.py").write_text("there\n")
    with server.trouble("lost answer to DELETE"), pytest.raises(AdapterUnavailable, match="cannot be reached"):
        session.discard()
    assert not there(server, session).exists()
    record = site.store / session.id
    assert (record / "leaving").exists()

    site.engine.recover()
    assert not (record / "leaving").exists()
    assert b"+there" in (record / "archive.patch").read_bytes()


def test_a_start_whose_answer_was_lost_leaves_nothing_at_the_server(site: Site, server: WorkspaceServer) -> None:
    with server.trouble("lost answer to PUT"), pytest.raises(AdapterUnavailable, match="cannot be reached"):
        site.start(id="lost-start")
    assert not (server.root / "lost-start").exists()


def test_a_start_that_was_killed_leaves_nothing_at_the_server_after_a_recovery(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    before = {*server.root.iterdir()}
    kill_at("start:filled", session.fork)
    (made,) = {*server.root.iterdir()} - before

    with server.trouble("lost answer to DELETE"):
        site.engine.recover()  # the removal is done, and its answer is lost: the next recovery goes on
    assert site.engine.recover().removed == [made.name]
    assert {*server.root.iterdir()} == before
    assert session.read("app.py") == b"v2\n"


@pytest.mark.parametrize("is_baseline", [True, False])
def test_a_workspace_that_may_be_another_s_is_removed_only_if_it_is_the_baseline(
    site: Site, server: WorkspaceServer, is_baseline: bool
) -> None:
    session = site.start()
    note = site.store / session.id / "engine/remote.json"
    note.write_text(json.dumps({"name": session.id, "made": False}))
    if not is_baseline:
        (there(server, session) / "app.py").write_text("another's\n")
    opened = site.engine.ephemeral.open(str(site.store / session.id / "workspace"), str(note.parent))
    opened.withdraw()  # type: ignore[attr-defined]
    assert there(server, session).exists() is not is_baseline


def test_an_operation_asks_once_over_one_connection(site: Site, server: WorkspaceServer) -> None:
    session = site.start()
    session.read("app.py")
    for operation, methods in ((lambda: session.read("link"), ["GET"]), (lambda: session.write("app.py", "v2\n"), ["GET", "PUT"])):
        before = len(server.requests())
        operation()
        connections, asked = zip(*(line.split() for line in server.requests()[before:]), strict=True)
        assert ([*asked], len({*connections})) == (methods, 1)


def test_a_file_that_was_not_changed_is_not_read_again(site: Site, server: WorkspaceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    session = site.start()
    session.write("app.py", "v2\n")
    session.read("app.py")
    session.write("app.py", "v3\n")
    read: list[str] = []
    monkeypatch.setattr(SafeDir, "read", lambda files, path, **options: (read.append(path), real(files, path, **options))[1])
    assert session.list()
    assert read == ["app.py"]


real = SafeDir.read


def test_an_answer_has_to_be_whole_in_time_and_not_too_large(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with workspace_server(tmp_path / "workspaces") as server:
        limits = Limits(max_total=100)
        patient, hasty = (RemoteEphemeral(server.address, server.token, timeout=seconds, limits=limits) for seconds in (60, 0.3))
        with site.another(ephemeral=patient) as engine, site.another(ephemeral=hasty) as other:
            session = engine.start_session("x")
            with server.trouble("drip"), pytest.raises(AdapterUnavailable, match="timed out"):
                other.get_session(session.id).read("app.py")
            (server.root / session.id / "app.py").write_text("x" * 101)
            with pytest.raises(AdapterUnavailable, match="more than 100 bytes"):
                session.read("app.py")
            monkeypatch.setattr("pytest_gittrix.backends.remote_workspace._LARGEST_LIST", 20)
            with pytest.raises(AdapterUnavailable, match="more than 20 bytes"):
                session.read("app.py")
            session.discard()
            assert not (server.root / session.id).exists()


def test_a_token_that_no_header_can_have_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidInput, match="not allowed in a header") as caught:
        RemoteEphemeral("http://host", "hush\nword")
    assert "hush" not in str(caught.value)
