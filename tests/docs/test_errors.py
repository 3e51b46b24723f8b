"""Every sentence of the page on errors is provoked: each code, in each case that its row names, and each attribute that the page promises.

A provocation quotes the words of the page that it stands for. A row with words that nothing provokes fails, and so does a quotation that
the page does not have.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from freezegun import freeze_time
from support.at_work import stranger
from support.cli import Cli
from support.clock import hurry
from support.daemon import http_answer, impostor, listener
from support.engine import DurableGit, Site, at_point, edited, in_child, open_site
from support.members import Crew
from support.orchestrator import open_fleet
from support.remote import open_far

from pytest_gittrix import GitTrix, LocalDurable, LocalEphemeral, errors
from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.clock import FrozenClock, process_freeze
from pytest_gittrix.engine.agents.turns import TurnContext
from pytest_gittrix.engine.operations.requester import make_mark, on_behalf_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import (
    BaselineConflict,
    ConfinementMissing,
    ExtraMissing,
    FilteredContent,
    GittrixError,
    HazardousPath,
    PromoteFailed,
    SecretsFound,
    SessionExpired,
    SessionInUse,
    WorkItemHeld,
    WorkspaceMissing,
    WorktreeUnwritable,
    WriteRejected,
)
from pytest_gittrix.extras import required
from pytest_gittrix.git import environment
from pytest_gittrix.git.environment import hermetic_env
from pytest_gittrix.os_level import linux
from pytest_gittrix.os_level.lease import Lease
from pytest_gittrix.os_level.process_tree import MARK
from pytest_gittrix.record.state.retention import Selector
from pytest_gittrix.server.run import Serving, Settings
from pytest_gittrix.testing.faults import crash_at
from pytest_gittrix.testing.repos import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import BareRemote
from pytest_gittrix.testing.schedules import Race
from pytest_gittrix.testing.systems.driver import DrivenEngine
from pytest_gittrix.workspaces.walk import Limits

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
GLUE: Final = {"a", "also", "an", "and", "as", "by", "is", "it", "of", "or", "so", "that", "the", "to", "which"}


@dataclass
class Bench:
    """What a provocation works with.

    Attributes:
        site: a durable repository and an engine that many provocations share; none may change the branch or its checkout.
        path: a directory of its own.
        patch: changes of this process that end with it.
        request: for fixtures that few need.
    """

    site: Site
    path: Path
    patch: pytest.MonkeyPatch
    request: pytest.FixtureRequest

    def session(self, **options: Any) -> UserSession:
        """A session with a change."""
        session = self.site.start(**options)
        session.write("new.py", "new\n")
        return session

    def own(self, **options: Any) -> Site:
        """A site that only this provocation has."""
        site = Site(self.path, DurableGit.make(self.path / "durable"), FrozenClock(), options)
        self.request.addfinalizer(site.close)
        return site

    def repository(self, change: Callable[[Path], object]) -> GitTrix:
        """An engine on a repository of its own whose git directory was changed."""
        site = self.own()
        change(site.durable.git_dir)
        return site.engine

    @property
    def cli(self) -> Cli:
        """The command line, in a project of its own."""
        return Cli(self.path, self.patch, self.request.getfixturevalue("capsysbinary"))


Act = Callable[[Bench], object]


class Provocation(NamedTuple):
    """One way to an error.

    Attributes:
        code: the error's code.
        words: the words of the code's row that stand for this.
        act: raises the error, or returns the code that a command printed.
    """

    code: str
    words: tuple[str, ...]
    act: Act


PROVOCATIONS: Final[list[Provocation]] = []


def provokes(code: str, *words: str) -> Callable[[Act], Act]:
    """Register a provocation of a code under the words of the page that it stands for."""

    def register(act: Act) -> Act:
        PROVOCATIONS.append(Provocation(code, words, act))
        return act

    return register


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("shared")) as site:
        assert site.engine.init().list_sessions() == []
        yield site


@pytest.fixture
def bench(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bench:
    return Bench(site, tmp_path, monkeypatch, request)


# Backends ----------------------------------------------------------------------------------------------------------------------------


@provokes("ADAPTER_UNAVAILABLE", "a backend cannot be reached")
def _a_remote_where_nobody_listens(bench: Bench) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return bench.site.another(durable=f"http://127.0.0.1:{port}/app.git").start_session("fix the bug")


@provokes("ADAPTER_UNAVAILABLE", "is not what the caller named", "no repository")
def _a_directory_without_a_repository(bench: Bench) -> object:
    return bench.site.another(durable=str(bench.path)).start_session("fix the bug")


@provokes("ADAPTER_UNAVAILABLE")
def _a_durable_that_was_moved_away(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    session.write("app.py", "v2\n")
    site.durable.path.rename(bench.path / "away")
    return session.promote()


@provokes("INVALID_INPUT")
def _a_store_below_a_device(bench: Bench) -> object:
    return bench.cli.error("session", "list", "--store", "/dev/null/x")["code"]


@provokes("ADAPTER_UNAVAILABLE", "a vanished workspace")
def _a_workspace_that_was_removed(bench: Bench) -> object:
    session = bench.session()
    shutil.rmtree(bench.site.directory(session) / "workspace")
    return session.touched_files()


@provokes("ADAPTER_UNAVAILABLE", "a full disk")
def _an_attachment_on_a_full_disk(bench: Bench) -> object:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    session = bench.session()
    bench.patch.setattr(os, "write", full)
    try:
        return session.attach(b"a picture")
    finally:
        bench.patch.undo()


@provokes("UNSUPPORTED_REPOSITORY", "a repository of a kind the engine refuses by name", "shallow")
def _a_shallow_clone(bench: Bench) -> object:
    return bench.repository(lambda git_dir: (git_dir / "shallow").write_text(f"{'0' * 40}\n")).start_session("fix the bug")


def _configured(text: str) -> Callable[[Path], object]:
    def append(git_dir: Path) -> None:
        with (git_dir / "config").open("a") as config:
            config.write(text)

    return append


@provokes("UNSUPPORTED_REPOSITORY", "partial")
def _a_partial_clone(bench: Bench) -> object:
    return bench.repository(_configured("[extensions]\n\tpartialClone = origin\n")).start_session("fix the bug")


@provokes("UNSUPPORTED_REPOSITORY", "unknown ref storage")
def _a_repository_with_reftable(bench: Bench) -> object:
    return bench.repository(_configured("[extensions]\n\trefStorage = reftable\n")).start_session("fix the bug")


@provokes("UNSUPPORTED_REPOSITORY", "extension")
def _a_repository_with_an_unknown_extension(bench: Bench) -> object:
    return bench.repository(_configured("[extensions]\n\tquantum = yes\n")).start_session("fix the bug")


@provokes("UNSUPPORTED_REPOSITORY", "a checkout whose index is split")
def _a_checkout_with_a_split_index(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    session.write("app.py", "v2\n")
    site.durable.git("update-index", "--split-index")
    return session.promote()


@provokes("UNSUPPORTED_REPOSITORY", "sparse")
def _a_checkout_with_a_sparse_index(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    session.write("app.py", "v2\n")
    site.durable.git("sparse-checkout", "set", "--cone", "--sparse-index", "src/deep")
    return session.promote()


@contextmanager
def _git_is(bench: Bench, program: str) -> Iterator[None]:
    bench.patch.setenv("PYTEST_GITTRIX_GIT", program)
    for answer in (environment.git_binary, environment.git_version):
        answer.cache_clear()
        bench.request.addfinalizer(answer.cache_clear)
    yield


@provokes("GIT_FAILED", "the git program is missing")
def _no_git(bench: Bench) -> object:
    with _git_is(bench, str(bench.path / "nothing")):
        return environment.run_git(["init", "-q", "repo"], cwd=bench.path)


@provokes("GIT_FAILED", "too old")
def _an_old_git(bench: Bench) -> object:
    program = bench.path / "git"
    program.write_text("#!/bin/sh\necho git version 2.31.8\n")
    program.chmod(0o755)
    with _git_is(bench, str(program)):
        return environment.git_version()


@provokes("GIT_FAILED", "timed out")
def _a_git_that_hangs(bench: Bench) -> object:
    os.mkfifo(bench.path / "pipe")
    return environment.run_git(["hash-object", "--no-filters", "--", "pipe"], cwd=bench.path, timeout=0.02)


@provokes("GIT_FAILED", "refused a command")
def _a_git_that_fails(bench: Bench) -> object:
    return environment.run_git(["rev-parse", "--git-dir"], cwd=bench.path)


@provokes("AUTH_FAILED", "a remote")
def _a_remote_that_knows_another_password(bench: Bench) -> object:
    with open_far(bench.path, "http") as far:
        return far.site.another(durable=far.durable(credentials=("git", "wrong"))).start_session("fix the bug")


@provokes("AUTH_FAILED", "a forge refused the credentials")
def _a_forge_that_knows_another_token(bench: Bench) -> object:
    with (
        BareRemote(DurableGit.make(bench.path / "far.git", bare=True).path) as remote,
        ForgeServer(remote, tokens={"right"}) as server,
        GitHubForge("acme/app", base_url=server.url, token="wrong") as forge,
    ):
        return forge.open_pr("topic", "main", "Fix the bug")


@provokes("AUTH_FAILED", "a daemon would listen beyond this machine and have no token")
def _a_daemon_for_everybody(bench: Bench) -> object:
    return Serving(Settings(host="0.0.0.0", port=0, store=bench.path / "sessions"))


# Who may do what ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def _as_an_agent(store: Path) -> Iterator[None]:
    """What is done in the body, a process of an agent of the store asks for."""
    agent = subprocess.Popen(
        ["cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={MARK: make_mark(store, "sess_agent"), "PATH": os.environ["PATH"]},
    )
    with agent, on_behalf_of(lambda: agent.pid):
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(b".")
        assert agent.stdout.read(1) == b"."  # it runs, so the system shows its environment
        yield


SESSION_DEEDS: Final[dict[str, Callable[[UserSession, GitTrix], object]]] = {
    "promote": lambda session, _: session.promote(),
    "discard": lambda session, _: session.discard(),
    "extend": lambda session, _: session.extend(timedelta(hours=1)),
    "evict": lambda session, engine: engine.evict(session.id),
    "change the role of a session": lambda session, _: session.identify(role="orchestrator"),
}


@provokes("PERSON_REQUIRED", "an agent's process asked", "only a person may", *SESSION_DEEDS)
def _what_becomes_of_work(bench: Bench) -> None:
    session = bench.session()
    with _as_an_agent(bench.site.store):
        _every(partial(deed, session, bench.site.engine) for deed in SESSION_DEEDS.values())


@provokes("PERSON_REQUIRED", "spawn, kill, restore", "send to a session")
def _what_becomes_of_orchestrated_sessions(bench: Bench) -> None:
    with open_fleet(bench.path) as fleet, _as_an_agent(fleet.site.store):
        deeds: list[Callable[[], object]] = [
            fleet.spawn,
            lambda: fleet.lead.kill("app-1"),
            lambda: fleet.lead.restore("app-1"),
            lambda: fleet.lead.send("app-1", "go on"),
        ]
        _every(deeds)


@provokes("PERSON_REQUIRED", "start, stop, finalize", "clean up members' sessions")
def _what_becomes_of_members_sessions(bench: Bench) -> None:
    with Crew.open(bench.path) as crew, _as_an_agent(crew.engine.store.root):
        members = crew.members
        deeds = [
            crew.chat,
            lambda: members.stop("x"),
            lambda: members.stop_all(),
            lambda: members.finalize("x"),
            lambda: members.cleanup(Selector(all=True)),
        ]
        _every(deeds)


def _every(deeds: Iterable[Callable[[], object]]) -> None:
    """Do everything; all of it must be refused alike. Raises the last refusal."""
    refusals: list[GittrixError] = []
    for deed in deeds:
        with pytest.raises(GittrixError) as caught:
            deed()
        refusals.append(caught.value)
    assert len({refusal.code for refusal in refusals}) == 1
    raise refusals[-1]


@provokes("CAPABILITY_MISSING", "the system")
def _a_system_that_declares_no_turns(bench: Bench) -> object:
    return DrivenEngine(bench.site.engine, frozenset()).rules


@provokes("CAPABILITY_MISSING", "adapter")
def _a_durable_without_a_forge(bench: Bench) -> object:
    return bench.session().promote(strategy="pr")


@provokes("CAPABILITY_MISSING", "workspace kind cannot do what the caller requested")
def _a_program_in_a_workspace_without_files(bench: Bench) -> object:
    return bench.session(workspace="lazy").for_agent().run(["true"])


@provokes(
    "CAPABILITY_MISSING",
    "as `ConfinementMissing`, nothing on this machine confines programs as requested, and the message says what is in the way",
)
def _a_jail_where_there_is_none(bench: Bench) -> object:
    bench.patch.setattr("pytest_gittrix.confine.levels.missing", lambda means: f"{means} does not work")
    with pytest.raises(ConfinementMissing, match="no jail by bubblewrap: bwrap does not work") as missing:
        bench.session().for_agent().run(["true"], confine="jail")
    raise missing.value


@provokes(
    "CAPABILITY_MISSING",
    "as `ExtraMissing` (`.extra`), which is an `ImportError` too, an extra of the package is not installed: the message has the line that "
    "installs it",
)
def _an_extra_that_is_not_installed(bench: Bench) -> object:
    bench.patch.setitem(sys.modules, "distributed.no_such_module", None)
    with pytest.raises(ImportError, match="pip install 'pytest-gittrix") as missing:
        required("distributed.no_such_module", "dask")
    assert isinstance(missing.value, ExtraMissing)
    assert missing.value.extra == "dask"
    raise missing.value


# Input -------------------------------------------------------------------------------------------------------------------------------


@provokes("INVALID_INPUT", "an argument")
def _an_empty_branch(bench: Bench) -> object:
    return bench.site.start(durable_branch="")


@provokes("INVALID_INPUT")
def _hunks_that_are_a_text(bench: Bench) -> object:
    return bench.session().promote(hunks="new.py:1")  # type: ignore[arg-type]


@provokes("INVALID_INPUT")
def _a_message_with_a_nul(bench: Bench) -> object:
    return bench.session().promote(message="half\0a message")


@provokes("INVALID_INPUT", "option")
def _an_unknown_strategy(bench: Bench) -> object:
    return bench.site.another(strategy="hope")


@provokes("INVALID_INPUT", "file")
def _a_team_file_with_an_unknown_key(bench: Bench) -> object:
    (bench.path / "team.toml").write_text("nmae = 'typo'\n")
    return bench.cli.error("member", "list", "--team", str(bench.path / "team.toml"))["code"]


@provokes("INVALID_INPUT", "record has a value that is not allowed")
def _an_event_with_a_key_too_much(bench: Bench) -> object:
    return bench.session().record("user_message", {"text": "look", "mood": "sunny"})


@provokes("SESSION_NOT_FOUND", "no session of that id is in the store")
def _an_unknown_session(bench: Bench) -> object:
    return bench.site.engine.get_session("sess_nobody")


ENDED: Final[dict[str, Callable[[Site, UserSession], object]]] = {
    "promoted": lambda _, session: session.promote(),
    "discarded": lambda _, session: session.discard(),
    "expired": lambda site, session: site.engine.evict(session.id),
}


@provokes("SESSION_EXPIRED", "the session has ended", "`state` is `promoted`, `discarded` or `expired`")
def _a_session_after_its_end(bench: Bench) -> object:
    site = bench.own()
    for state, end in ENDED.items():
        session = site.start()
        session.write(f"{state}.txt", "new\n")
        end(site, session)
        with pytest.raises(SessionExpired) as caught:
            site.engine.get_session(session.id)
        assert caught.value.state == state
    raise caught.value


@provokes("SESSION_EXPIRED")
def _the_moved_references_of_a_session_after_its_end(bench: Bench) -> object:
    session = bench.session()
    session.discard()
    return session.moved_refs()


@provokes("SESSION_EXPIRED", "its time is up")
def _a_session_after_its_deadline(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    site.clock.advance(hours=5)
    return session.read("app.py")


@provokes("SESSION_EXPIRED", "a `parent` that has not crashed")
def _a_parent_that_lives(bench: Bench) -> object:
    return bench.site.start(parent=bench.session().id)


@provokes("SESSION_EXPIRED", "has a successor")
def _a_parent_that_was_continued(bench: Bench) -> object:
    session = bench.session()
    bench.site.engine.evict(session.id, outcome="crash")
    bench.site.start(parent=session.id)
    return bench.site.start(parent=session.id)


# Promotion ---------------------------------------------------------------------------------------------------------------------------


@provokes("BASELINE_CONFLICT", "durable changed at a path that is being promoted")
def _a_promotion_over_somebodys_commit(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    session.write("app.py", "ours\n")
    site.durable.commit({"app.py": "theirs\n"})
    return session.promote()


@provokes("PROMOTE_FAILED", "a promotion could not be made", "`stage` is `staging`")
def _a_promotion_of_nothing(bench: Bench) -> object:
    return _staged_wrong(bench.site.start().promote, "staging")


@provokes("PROMOTE_FAILED", "`apply`")
def _a_promotion_to_a_branch_that_is_held(bench: Bench) -> object:
    session = bench.session()
    return _staged_wrong(lambda: _while_the_branch_is_held(bench, session), "apply")


def _staged_wrong(promote: Callable[[], object], stage: str) -> object:
    with pytest.raises(PromoteFailed) as caught:
        promote()
    assert caught.value.stage == stage
    # A kind of PROMOTE_FAILED has its own code; here the page speaks of all of them.
    caught.value.__class__ = PromoteFailed
    raise caught.value


def _while_the_branch_is_held(bench: Bench, session: UserSession) -> object:
    lock = bench.site.durable.git_dir / "refs" / "heads" / "main.lock"
    lock.touch()
    hurry(bench.patch)
    try:
        return session.promote()
    finally:
        lock.unlink()
        bench.patch.undo()


@provokes("WORKTREE_DIRTY", "uncommitted work of the person's is in the way")
def _a_promotion_over_uncommitted_work(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    session.write("app.py", "ours\n")
    (site.durable.path / "app.py").write_text("mine\n")
    return session.promote()


@provokes("WORKTREE_DIRTY", "a merge is in progress")
def _a_promotion_into_a_merge(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    session.write("app.py", "ours\n")
    (site.durable.git_dir / "MERGE_HEAD").write_text(f"{site.durable.head()}\n")
    return session.promote()


@provokes("WORKTREE_UNWRITABLE", "the checkout of the branch may not be written", "no permission", "a read-only mount", "an immutable file")
def _a_directory_without_permission(bench: Bench) -> object:
    site = bench.own()
    session = site.start()
    session.write("src/util.py", "x\n")

    def promote() -> None:
        if os.geteuid() == 0:
            linux.drop_capabilities()
        (site.durable.path / "src").chmod(0o555)
        with pytest.raises(WorktreeUnwritable):
            session.promote()

    assert in_child(promote) == 0
    return WorktreeUnwritable.code


@provokes("PATH_COLLISION", "a promoted path would differ from another only by case")
def _a_name_in_capitals(bench: Bench) -> object:
    session = bench.site.start()
    session.write("APP.PY", "shout\n")
    return session.promote()


@provokes("PATH_COLLISION", "unicode form")
def _a_name_in_two_forms(bench: Bench) -> object:
    session = bench.site.start()
    for form in ("NFC", "NFD"):
        session.write(unicodedata.normalize(form, "café.txt"), "x\n")
    return session.promote()


@provokes("SECRETS_FOUND", "or one with `refuse_secrets=True`, has files", "look like credentials")
def _a_file_of_credentials(bench: Bench) -> object:
    session = bench.site.start()
    session.write("id_rsa", "anything\n")
    return session.promote(refuse_secrets=True)


@provokes("SECRETS_FOUND", "a promotion whose commit leaves this machine,")
def _a_file_of_credentials_for_a_remote(bench: Bench) -> object:
    with open_far(bench.path, "file") as far:
        session = far.site.start()
        session.write("id_rsa", "anything\n")
        return session.promote()


@provokes("SECRETS_FOUND", "lines", "`secrets` gives for each path what was found, such as `line 2: GitHub token`")
def _a_line_with_a_token(bench: Bench) -> object:
    session = bench.site.start()
    session.write("new.py", f"x = 1\ntoken = 'ghp_{'0aB1cD2eF3' * 3}123456'\n")
    with pytest.raises(SecretsFound) as caught:
        session.promote(refuse_secrets=True)
    assert caught.value.secrets == {"new.py": ["line 2: GitHub token"]}
    raise caught.value


@provokes(
    "FILTERED_CONTENT",
    "selected files go through a filter such as Git LFS, which might store something else",
    "`filters` gives its name for each path",
)
def _a_file_where_its_pointer_belongs(bench: Bench) -> object:
    session = bench.site.start()
    session.write(".gitattributes", "*.bin filter=lfs\n")
    session.write("m.bin", "model\n")
    with pytest.raises(FilteredContent) as caught:
        session.promote()
    assert caught.value.filters == {"m.bin": "lfs"}
    raise caught.value


@provokes(
    "HAZARDOUS_PATH",
    'a promotion with `on_hazard="refuse"` adds paths that other machines or programs cannot take',
    "`hazards` gives the reason for each path",
)
def _a_name_that_is_a_device(bench: Bench) -> object:
    session = bench.site.start()
    session.write("nul", "x\n")
    with pytest.raises(HazardousPath) as caught:
        session.promote(on_hazard="refuse")
    assert "device" in caught.value.hazards["nul"]
    raise caught.value


@provokes("DURABLE_LOCKED", "another program holds a git lock of durable")
def _a_branch_that_is_locked(bench: Bench) -> object:
    return _while_the_branch_is_held(bench, bench.session())


# Files -------------------------------------------------------------------------------------------------------------------------------


@provokes("WRITE_REJECTED", "a path")
def _a_path_that_leaves_the_workspace(bench: Bench) -> None:
    bench.site.start().write("../outside", "x")


@provokes("WRITE_REJECTED", "its contents may not be written")
def _a_file_over_the_limit(bench: Bench) -> None:
    engine = bench.site.another(ephemeral=LocalEphemeral(limits=Limits(max_file=4)))
    engine.start_session("fix the bug").write("new.py", "12345")


@provokes("PATH_IS_DIRECTORY", "a directory was to be read as a file", "it is a `WriteRejected` too")
def _a_directory_that_is_read(bench: Bench) -> object:
    session = bench.site.start()
    session.write("lib/new.py", "x\n")
    with pytest.raises(WriteRejected) as caught:
        session.read("lib")
    raise caught.value


@provokes("PATH_NOT_FOUND", "no such file in the workspace", "a `FileNotFoundError`")
def _a_file_that_is_not_there(bench: Bench) -> object:
    with pytest.raises(FileNotFoundError) as caught:
        bench.site.start().read("nothing")
    raise caught.value


# Others at work ----------------------------------------------------------------------------------------------------------------------


def _taken(bench: Bench, session: UserSession) -> None:
    with bench.site.engine.store.lease(session.id, wait=0):
        raise AssertionError("two had it")


@provokes(
    "SESSION_IN_USE", "processes work", "in the workspace that was to be removed", "`processes` has the number and the program of each"
)
def _a_session_that_a_process_is_in(bench: Bench) -> None:
    session = bench.session()
    with stranger(cwd=session.workspace_path) as process:
        with pytest.raises(SessionInUse) as refused:
            session.discard()
        assert refused.value.processes == ((process.pid, "sleep"),)
    raise refused.value


@provokes("EVICTION_RACE", "another thread", "works on the session and did not let go in time")
def _a_session_that_a_thread_works_on(bench: Bench) -> object:
    session = bench.session()
    with ThreadPoolExecutor(1) as pool, bench.site.engine.store.lease(session.id):
        return pool.submit(_taken, bench, session).result()


@provokes("EVICTION_RACE", "process")
def _a_session_that_a_process_works_on(bench: Bench) -> None:
    session = bench.session()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException), bench.site.engine.store.lease(session.id):
            os.write(writes, b".")
            threading.Event().wait(60)
        os._exit(0)
    try:
        os.read(reads, 1)
        _taken(bench, session)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)


@provokes("LEASE_LOST", "a lease was taken away from its owner", "had sent no heartbeat for too long")
def _a_lease_that_was_broken(bench: Bench) -> None:
    clock = FrozenClock()

    def lease() -> Lease:
        return Lease(bench.path / "lock", wait=0, stale_after=10, on_stale="break", now=lambda: clock.now().timestamp())

    with lease() as owner:
        owner.beat()
        clock.advance(seconds=11)
        with ThreadPoolExecutor(1) as pool, suppress(GittrixError):
            pool.submit(lease().acquire).result().release()
        owner.check()


@provokes("TURN_BUSY", "the session has a turn running")
def _a_second_turn(bench: Bench) -> object:
    session, over = bench.session(), threading.Event()
    turn = session.start_turn(lambda _: over.wait(60), runs="thread")
    try:
        return session.start_turn(lambda _: None, runs="thread")
    finally:
        over.set()
        turn.wait()


@provokes("TURN_OVER", "the turn was interrupted", "can do nothing more")
def _a_turn_after_its_interrupt(bench: Bench) -> object:
    session, refusals = bench.session(), []
    begun, over = threading.Event(), threading.Event()

    def go_on(context: TurnContext) -> None:
        begun.set()
        context.cancelled.wait()
        try:
            context.session.write("late.txt", "x")
        except GittrixError as refusal:
            refusals.append(refusal)
        over.set()

    session.start_turn(go_on, runs="thread")
    begun.wait(60)
    session.interrupt()
    over.wait(60)
    raise refusals[0]


@provokes("TURN_OVER", "ended by its caller")
def _a_turn_after_its_end(bench: Bench) -> object:
    with bench.session().turn() as context:
        pass
    return context.record("user_message", {"text": "late"})


@provokes("WORK_ITEM_HELD", "another session works on the item already")
def _an_item_that_is_taken(bench: Bench) -> object:
    with Crew.open(bench.path) as crew:
        life = crew.chat(work_item="app#1")
        with pytest.raises(WorkItemHeld) as caught:
            crew.chat(member="bob", work_item="app#1")
        assert caught.value.holder == life.id
        raise caught.value


@provokes("SESSION_NOT_RESTORABLE", "the session has not ended", "cannot be restored")
def _a_session_that_works_and_one_that_was_merged(bench: Bench) -> None:
    with open_fleet(bench.path) as fleet:
        id_ = fleet.spawn().id
        recorder = fleet.site.engine.services.recorder(id_)

        def merged() -> None:
            with recorder.leased():
                recorder.append("pr.observed", {"state": "merged", "number": 1})
            fleet.lead.restore(id_)

        _every([lambda: fleet.lead.restore(id_), merged])


@provokes("WORKSPACE_MISSING", "the session's workspace is gone", "the operation needs it")
def _a_session_whose_workspace_was_moved_away(bench: Bench) -> object:
    with open_fleet(bench.path) as fleet:
        session = fleet.spawn()
        fleet.lead.kill(session.id)
        Path(session.workspace_path or "").rename(bench.path / "away")
        with pytest.raises(WorkspaceMissing) as caught:
            fleet.lead.restore(session.id)
        assert caught.value.path == session.workspace_path
        raise caught.value


# Records -----------------------------------------------------------------------------------------------------------------------------


@provokes("METADATA_VERSION_UNSUPPORTED", "a record of a version", "this engine does not know")
def _a_record_of_another_version(bench: Bench) -> object:
    return _of_record(bench, {"version": 99})


@provokes("METADATA_VERSION_UNSUPPORTED", "shape", "it was left untouched")
def _a_record_of_another_shape(bench: Bench) -> object:
    return _of_record(bench, ["a", "list"])


def _of_record(bench: Bench, record: object) -> object:
    directory = bench.site.directory("sess_foreign0000")
    directory.mkdir()
    bench.request.addfinalizer(lambda: shutil.rmtree(directory))
    (directory / "metadata.json").write_text(json.dumps(record))
    try:
        return bench.site.engine.info("sess_foreign0000")
    finally:
        assert json.loads((directory / "metadata.json").read_text()) == record


@provokes("LOG_DAMAGED", "an event log is damaged in the middle")
def _a_log_with_an_edited_line(bench: Bench) -> object:
    session = bench.session()
    log = bench.site.directory(session) / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b"fix the bug", b"add the bug", 1))
    bench.request.addfinalizer(lambda: shutil.rmtree(log.parent))
    return bench.site.another().info(session.id)


# Daemons, clocks, races --------------------------------------------------------------------------------------------------------------


@provokes("DAEMON_RUNS", "another [daemon](../how-to/run-the-daemon.md) manages the same home already")
def _a_second_daemon(bench: Bench) -> object:
    impostor(bench.path, 1)
    return Serving(Settings(port=0, store=bench.path / "sessions"))


@provokes("DAEMON_LOST", "the daemon died before it reported the result of a command")
def _a_daemon_that_dies(bench: Bench) -> object:
    cli = bench.cli
    id_ = cli.start()
    with listener(b"", greeting=http_answer("200 OK", {"ok": True, "store": str(cli.home / "sessions")})) as port:
        impostor(cli.home, port)
        return cli.error("session", "record", id_, "user_message", stdin='{"text": "once"}')["code"]


@provokes("CLOCK_CONFLICT", "another time library already holds this process's clock")
def _a_clock_within_freezegun(_: Bench) -> object:
    with freeze_time("2020-01-01"), process_freeze(FrozenClock()):
        return None


@provokes("DEADLOCK", "actors of a race wait for each other")
def _two_actors_that_wait(bench: Bench) -> object:
    here, there = threading.Event(), threading.Event()
    with Race(bench.path, hermetic_env, timeout=0.02) as race:
        try:
            return race.run([], A=lambda: here.wait(60), B=lambda: there.wait(60))
        finally:
            here.set()
            there.set()


@provokes("DEADLOCK", "a step that a test named was never reached")
def _a_point_that_is_not_passed(_: Bench) -> object:
    with crash_at("promote:done"):
        return None


# The page ----------------------------------------------------------------------------------------------------------------------------


def _rows() -> dict[str, tuple[str, str]]:
    """The class and the cases of each code, as the page has them."""
    found = re.findall(r"^\| `([A-Z_]+)` \| `(\w+)`(?: \([^)]*\))? \| (.*) \|$", PAGE, re.MULTILINE)
    return {code: (name, cases) for code, name, cases in found}


@pytest.mark.parametrize("provocation", PROVOCATIONS, ids=lambda one: f"{one.code}-{one.act.__name__.strip('_')}")
def test_what_the_page_says_ends_in_that_error(bench: Bench, provocation: Provocation) -> None:
    name, cases = _rows()[provocation.code]
    assert [words for words in provocation.words if words not in cases] == []

    error, code = None, None
    try:
        code = provocation.act(bench)
    except GittrixError as raised:
        error, code = raised, raised.code

    assert code == provocation.code, error
    assert error is None or (isinstance(error, getattr(errors, name)) and error.fact and (error.why or error.fix))


@pytest.mark.parametrize("code", _rows())
def test_a_row_says_nothing_that_is_not_provoked(code: str) -> None:
    _, cases = _rows()[code]
    for words in sorted((words for one in PROVOCATIONS if one.code == code for words in one.words), key=len, reverse=True):
        cases = cases.replace(words, " ")
    cases = re.sub(r"\]\([^)]*\)", "]", cases)

    assert set(re.findall(r"\w+", cases.lower())) <= GLUE


def test_every_code_has_a_row_and_every_row_a_class() -> None:
    known = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, GittrixError)]
    classes = {one.code: one.__name__ for one in known if not any(one.code == above.code for above in known if above in one.__mro__[1:])}
    del classes[GittrixError.code]

    assert {code: name for code, (name, _) in _rows().items()} == classes


# Attributes --------------------------------------------------------------------------------------------------------------------------


def _names(heading: str, *, before: str = "\n## ") -> set[str]:
    """The first cells of the tables of a section."""
    section = PAGE.partition(heading)[2].partition(before)[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) - {"attribute", "kind", "stage"}


def test_a_conflict_says_what_overlaps_and_how(bench: Bench) -> None:
    site = bench.own()
    baseline = site.durable.head()
    session = site.start()
    for path, text in {"src/util.py": edited(2), "app.py": "ours\n", "gone.txt": "ours\n"}.items():
        session.write(path, text)
    head = site.durable.commit({"src/util.py": edited(30), "app.py": "theirs\n", "gone.txt": "theirs\n"})
    with pytest.raises(BaselineConflict) as caught:
        session.promote()
    error = caught.value

    assert error.conflicting_files == ["app.py", "gone.txt", "src/util.py"]
    assert (error.durable_sha, error.baseline_sha) == (head, baseline)
    assert error.kinds == {"app.py": "text", "gone.txt": "tree", "src/util.py": "path"}
    assert (session.info().state, session.read("app.py")) == ("active", b"ours\n")
    assert _names("## BASELINE_CONFLICT") == {"conflicting_files", "durable_sha", "baseline_sha", "kinds", "path", "text", "tree"}
    assert session.promote(["src/util.py"], on_overlap="merge").sha == site.durable.head()


def _half_of_a_clash(session: UserSession, _: Path) -> object:
    session.delete("app.py")
    session.write("app.py/x", "x")
    return session.promote(["app.py/x"])


def _with_a_key(session: UserSession, _: Path) -> object:
    session.write("id_rsa", "x")
    return session.promote(refuse_secrets=True)


def _with_a_device(session: UserSession, _: Path) -> object:
    session.write("nul", "x")
    return session.promote(on_hazard="refuse")


def _under_a_filter(session: UserSession, _: Path) -> object:
    session.write(".gitattributes", "* filter=x\n")
    return session.promote()


def _beside_an_untracked_file(session: UserSession, durable: Path) -> object:
    (durable / "new.py").write_text("mine")
    return session.promote()


def _with_a_twin(session: UserSession, _: Path) -> object:
    session.write("README.MD", "x")
    return session.promote()


def _while_locked(session: UserSession, durable: Path) -> object:
    (durable / ".git/refs/heads/main.lock").touch()
    return session.promote()


def _without_a_place_for_objects(session: UserSession, durable: Path) -> object:
    shutil.rmtree(durable / ".git/objects/pack")
    (durable / ".git/objects/pack").touch()
    return session.promote()


STAGES: Final[dict[str, tuple[str, Callable[[UserSession, Path], object]]]] = {
    "nothing": ("staging", lambda session, _: session.promote([])),
    "an untouched path": ("staging", lambda session, _: session.promote(["README.md"])),
    "one half of a clash": ("staging", _half_of_a_clash),
    "secrets that are refused": ("staging", _with_a_key),
    "hazards that are refused": ("staging", _with_a_device),
    "files under a filter": ("staging", _under_a_filter),
    "a checkout in the way": ("staging", _beside_an_untracked_file),
    "names that collide": ("staging", _with_a_twin),
    "a protected branch": ("staging", lambda session, _: session.promote(strategy="commit")),
    "another program holds the branch": ("apply", _while_locked),
    "the disk refused": ("apply", _without_a_place_for_objects),
}
"""Ways to a failed promotion, by the words of the page: the stage, and what leads to it."""


@pytest.mark.parametrize("words", STAGES)
def test_a_failed_promotion_says_at_which_stage_and_durable_is_as_it_was(bench: Bench, words: str) -> None:
    stage, act = STAGES[words]
    row = re.search(rf"^\| `{stage}` \| (.*) \|$", PAGE, re.MULTILINE)
    assert row is not None
    assert words in row[1]
    site = bench.own()
    if words == "a protected branch":
        site.options["durable"] = LocalDurable(site.durable.path, protected=["main"], sync=False)
    session = site.start()
    session.write("new.py", "new\n")
    head = site.durable.head()

    hurry(bench.patch)
    with pytest.raises(PromoteFailed) as caught:
        act(session, site.durable.path)

    assert caught.value.stage == stage
    assert site.durable.head() == head


def test_no_failure_of_a_promotion_is_of_the_stage_that_the_engine_does_not_use() -> None:
    assert _names("## PROMOTE_FAILED") == {"staging", "apply", "cleanup"}
    source = Path(errors.__file__).parent.rglob("*.py")
    assert [path for path in source if "cleanup" in re.findall(r'stage="(\w+)"', path.read_text(encoding="utf-8"))] == []


def test_an_operation_that_was_refused_half_way_says_that_it_had_begun(bench: Bench) -> None:
    assert _names("Two attributes of every error", before="\nA discard") == {"outcome", "session"}
    site = bench.own()
    session, handed_on = site.start(), site.start()
    session.write("new.py", "kept\n")
    in_the_way = site.directory(session) / "archive.patch"
    in_the_way.mkdir()

    with pytest.raises(GittrixError) as caught:
        session.discard()
    assert (caught.value.outcome, caught.value.session) == ("unknown", None)
    assert site.engine.info(session.id).state == "discarded"
    in_the_way.rmdir()
    site.engine.recover()
    assert "kept" in in_the_way.read_text()

    def refuse() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with at_point("handoff:child-created", refuse), pytest.raises(GittrixError) as caught:
        handed_on.handoff(id="child")
    assert (caught.value.outcome, caught.value.session) == ("unknown", "child")
    with pytest.raises(GittrixError) as caught:
        site.start(durable_branch="")
    assert (caught.value.outcome, caught.value.session) == (None, None)


def test_the_command_line_has_two_codes_more(bench: Bench) -> None:
    cli = bench.cli
    assert cli("session", "nothing", "--json").envelope["error"]["code"] == "USAGE"

    bench.patch.setattr(GitTrix, "sweep", lambda *_: 1 / 0)
    assert cli.error("sweep")["code"] == "UNKNOWN"
