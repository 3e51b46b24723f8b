"""An ``overlay`` workspace holds what changed alone, and everybody finds in it what a ``clone`` would have."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.engine import EXECUTABLE, SUBMODULE, SYMLINK, Content, Site, open_site
from support.git import git

from pytest_gittrix import confine
from pytest_gittrix.backends.local import LocalEphemeral
from pytest_gittrix.confine import Confinement, Layers, Place, confinement, levels, wrapped
from pytest_gittrix.confine.levels import missing, missing_layers
from pytest_gittrix.engine.agents.session_parts import parts_of
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, CapabilityMissing, GittrixError, WriteRejected
from pytest_gittrix.os_level.file_lock import locked_file
from pytest_gittrix.testing.repos.member_witness import everything_below
from pytest_gittrix.workspaces import layers as layers_module
from pytest_gittrix.workspaces import overlay
from pytest_gittrix.workspaces.finder.agent_archive import REPOSITORY
from pytest_gittrix.workspaces.seeds import on_disk
from pytest_gittrix.workspaces.seeds.on_disk import REPOSITORY_LAYER

FILES: dict[str, Content] = {
    ".gitignore": "*.log\nbuild/\n",
    "a": "1\n",
    "d/x": "1\n",
    "d/e/y": "2\n",
    "d/e/z": "3\n",
    "build/kept": "in the baseline, and ignored\n",
    "f/g/h": "4\n",
    "run.sh": (EXECUTABLE, "#!/bin/sh\n"),
    "ln": (SYMLINK, "a"),
    "sub": (SUBMODULE, "1" * 40),
}
SOAK = os.environ.get("PYTEST_GITTRIX_SOAK") == "1"

PROGRAM = """
import json, os, shutil, stat, sys
def clear(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
def put(path, mode, text):
    with open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # it may be a pipe
        file.write(text)
def do(kind, path, other):
    if kind == "write":
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        put(path, "w", other)
    elif kind == "append":
        put(path, "a", other)
    elif kind == "touch":
        put(path, "r+", "")
    elif kind == "remove":
        clear(path)
    elif kind == "again":
        clear(path)
        os.makedirs(path)
    elif kind == "move":
        if not os.path.lexists(other):
            shutil.move(path, other)
    elif kind == "over":
        if os.path.isfile(path):  # no overlay renames a directory of its lower layer over another
            os.replace(path, other)
    elif kind == "mode":
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) ^ 0o111)
    elif kind == "link":
        clear(path)
        os.symlink(other, path)
    elif kind == "hard":
        os.link(path, other)
    elif kind == "file":
        clear(path)
        put(path, "w", other)
    elif kind == "pipe":
        clear(path)
        os.mkfifo(path)
    elif kind == "nested":
        os.makedirs(os.path.join(path, ".git", "objects"))
for edit in json.load(sys.stdin):
    try:
        do(*edit)
    except OSError:
        pass
"""
NAMES = (
    "a",
    "d",
    "d/x",
    "d/e",
    "d/e/y",
    "d/e/z",
    "d/e/new",
    "d/new",
    "f",
    "f/g",
    "f/g/h",
    "build",
    "build/kept",
    "build/out",
    "n",
    "n/m",
    "t.log",
)
KINDS = ("write", "write", "append", "touch", "remove", "remove", "again", "move", "over", "mode", "link", "hard", "file", "pipe", "nested")


@pytest.fixture(autouse=True)
def _overlays(tmp_path: Path) -> None:
    if why := missing_layers(str(tmp_path)):
        pytest.skip(why)


@pytest.fixture
def session(site: Site) -> UserSession:
    return site.start(workspace="overlay")


def run(session: UserSession, script: str) -> str:
    done = session.for_agent().run(["/bin/sh", "-ec", script], confine="jail")
    assert done.code == 0, done.stderr.decode()
    return done.stdout.decode()


def edits(draw: random.Random, count: int) -> list[tuple[str, str, str]]:
    return [(draw.choice(KINDS), draw.choice(NAMES), draw.choice(NAMES)) for _ in range(count)]


def by_program(session: UserSession, wanted: list[tuple[str, str, str]]) -> None:
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM]
    assert session.for_agent().run(argv, confine="jail", stdin=json.dumps(wanted).encode()).code == 0


def by_session(session: UserSession, wanted: list[tuple[str, str, str]]) -> list[str]:
    """The error code of each edit, or nothing."""
    codes = []
    for kind, path, text in wanted:
        try:
            session.delete(path) if kind in ("remove", "again") else session.write(path, text)
            codes.append("")
        except GittrixError as error:
            codes.append(error.code)
    return codes


def shown(session: UserSession) -> dict[str, Any]:
    """All that a session says of its files."""
    review = session.review()
    files = {entry.path: entry.type for entry in session.list() if entry.path != "sub"}
    contents = {path: session.read(path, follow=False) for path, type_ in files.items() if type_ != "dir"}
    return {"tree": review.tree, "diff": review.diff, "refused": dict(review.refused), "touched": review.touched, "contents": contents}


@pytest.mark.parametrize("number", range(400 if SOAK else 2))
def test_any_edits_give_the_same_review_diff_and_commit_as_in_a_clone(tmp_path: Path, number: int) -> None:
    draw = random.Random(number)
    steps = [(draw.random() < 0.4, edits(draw, 6)) for _ in range(3)]
    found = []
    for kind in ("clone", "overlay"):
        (tmp_path / kind).mkdir()
        with open_site(tmp_path / kind, FILES) as site:
            session = site.start(workspace=kind)
            said: list[Any] = []
            for through_session, wanted in steps:
                if through_session:
                    said.append(by_session(session, wanted))
                else:
                    by_program(session, wanted)
                said.append(shown(session))
            said.append(session.promote().sha if said[-1]["touched"] else None)
            found.append(said)

    for of_clone, of_overlay in zip(*found, strict=True):
        assert of_overlay == of_clone, steps


def test_a_start_puts_nothing_of_the_baseline_into_the_session(site: Site, session: UserSession) -> None:
    upper = site.directory(session) / "workspace"

    assert sorted(str(path.relative_to(upper)) for path in upper.rglob("*") if path.is_file()) == [
        ".git/HEAD",
        ".git/config",
        ".git/packed-refs",
    ]
    assert session.workspace_path is None
    assert session.info().capabilities.items() >= {"git": True, "shell": True, "isolated": True}.items()


def test_git_works_and_its_commits_are_where_those_of_a_clone_are(site: Site, session: UserSession) -> None:
    known = run(session, "git cat-file --batch-all-objects --batch-check='%(objectname)'").split()
    said = run(
        session, "git status --short; git rm -qr f; echo 9 > a; git add a; git commit -qm mine; git fsck --strict; git log --format=%s"
    )

    assert sorted(known) == sorted(site.durable.git("rev-list", "--objects", "--no-object-names", "main").split())
    assert said.splitlines() == ["mine", "Start"] or said.splitlines()[0] == "mine"
    assert [one.message for one in session.log()] == ["mine"]
    session.write("d/x", "session\n")
    sha = session.commit("through the session")
    assert run(session, "git status --short; git log --format=%s -2; git rev-parse HEAD").splitlines() == [
        "through the session",
        "mine",
        sha,
    ]
    assert session.touched_files() == ["a", "d/x", "f/g/h"]


def test_a_program_sees_neither_the_lower_layer_nor_another_session(site: Site, session: UserSession) -> None:
    other = site.start(workspace="overlay")
    lower = Path(parts_of(session).workspace.seed.directory, "lower")
    before = everything_below(lower)
    run(session, f"test ! -e {lower}; chmod +w a; echo mine >> a; rm -r d; ln ln hard; echo more >> .git/config; rm -f .git/objects/pack/*")

    assert everything_below(lower) == before
    assert run(other, "cat a d/x; git status --short; git fsck") == "1\n1\n"
    assert other.touched_files() == []


@pytest.mark.parametrize(("level", "by"), [("off", "off by none"), ("guard", "guard by landlock")])
def test_a_program_outside_of_a_jail_is_refused(session: UserSession, level: str, by: str) -> None:
    if level == "guard" and missing("landlock"):
        pytest.skip(missing("landlock"))
    with pytest.raises(CapabilityMissing, match=f"need a jail by namespaces, not {by}"):
        session.for_agent().run(["true"], confine=level)


def test_where_no_overlay_can_be_mounted_a_start_says_why(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.store.mkdir(exist_ok=True)
    monkeypatch.setitem(levels._layered, site.store.stat().st_dev, "user namespaces are switched off")

    with pytest.raises(CapabilityMissing, match="user namespaces are switched off"):
        site.start(workspace="overlay")
    assert site.engine.list_sessions() == []


def test_while_a_program_is_at_work_the_session_reads_and_does_not_write(site: Site, session: UserSession) -> None:
    with locked_file(site.directory(session) / "engine" / "work"):  # as every jail does
        with pytest.raises(WriteRejected, match="a program is at work"):
            session.write("a", "2\n")
        with pytest.raises(WriteRejected, match="a program is at work"):
            session.delete("a")
        with pytest.raises(AdapterUnavailable, match=r"(?s)another program is at work.*Wait until the other.*'clone'"):
            session.for_agent().run(["true"], confine="jail")
        assert (session.read("a"), session.touched_files()) == (b"1\n", [])
    session.write("a", "2\n")
    assert run(session, "cat a") == "2\n"


def test_a_write_through_a_link_of_either_layer_writes_the_file_behind_it(tmp_path: Path) -> None:
    files: dict[str, Content] = {"app.py": "old\n", "d/a": "a\n", "below": (SYMLINK, "app.py"), "e": (SYMLINK, "d")}
    with open_site(tmp_path, files) as site:
        session = site.start(workspace="overlay")
        parts_of(session).workspace.files.make_link("above", b"d/a")

        session.write("below", "one\n")
        session.write("above", "two\n")
        session.write("e/b", "three\n")

        assert session.touched_files() == ["above", "app.py", "d/a", "d/b"]
        session.write("below", "a file\n", follow=False)
        assert (session.read("app.py"), session.read("below", follow=False)) == (b"one\n", b"a file\n")


def test_a_directory_of_the_baseline_is_not_renamed_and_can_be_moved_by_copying(session: UserSession) -> None:
    rename = f'{sys.executable} -I -S -c \'import os; os.rename("d", "n")\' 2>&1 | tail -1'
    said = run(session, f"{rename}; git mv d p 2> /dev/null || echo $?; mv d n; mkdir m; mv m o; find n o | sort").splitlines()

    assert said[0].startswith(f"OSError: [Errno {errno.EXDEV}]")
    assert said[1:] == ["128", "n", "n/e", "n/e/y", "n/e/z", "n/x", "o"]
    assert session.touched_files() == ["d/e/y", "d/e/z", "d/x", "n/e/y", "n/e/z", "n/x"]


def test_above_another_overlay_none_can_be_mounted(tmp_path: Path) -> None:
    mount = "mkdir l u w m; mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w,userxattr m"
    ask = f"from pytest_gittrix.confine.levels import missing_layers; print(missing_layers('{tmp_path}/m'))"
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", f'{mount}; exec {sys.executable} -c "{ask}"']
    done = subprocess.run(inside, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert "mount(/new/" in done.stdout, done.stderr
    assert "Invalid argument" in done.stdout


def test_a_program_that_is_killed_leaves_what_it_wrote_and_the_next_one_goes_on(site: Site, session: UserSession) -> None:
    with session.for_agent().programs(confine="jail") as programs:
        running = programs.start(["/bin/sh", "-c", "rm -r d; echo 2 > a; echo done; sleep 60"])
        assert running.stdout.read(1)
        running.kill()

    assert site.another().get_session(session.id).touched_files() == ["a", "d/e/y", "d/e/z", "d/x"]
    assert run(session, "cat a; ls") == "2\na\nbuild\nf\nln\nrun.sh\nsub\n"


@pytest.mark.parametrize("call", ["os.rename", "os.unlink", "os.rmdir"])
def test_an_engine_that_is_killed_while_it_changes_layers_brings_nothing_back(site: Site, session: UserSession, call: str) -> None:
    run(session, "rm -r d f")
    files = parts_of(session).workspace.files
    pid = os.fork()
    if pid == 0:
        setattr(os, call.removeprefix("os."), lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        with suppress(BaseException):
            files.write("d/new", b"1")
            files.delete("d/new")
            files.delete("a")
        os._exit(0)
    os.waitpid(pid, 0)

    touched = site.another().get_session(session.id).touched_files()
    assert {"d/e/y", "d/e/z", "d/x", "f/g/h"} <= set(touched) <= {"a", "d/e/y", "d/e/z", "d/x", "d/new", "f/g/h"}
    session.write("d/x", "again\n")
    assert run(session, "find d -type f -name x") == "d/x\n"


def test_handoffs_and_forks_take_the_changes_and_archives_the_commits_beside_them(site: Site, session: UserSession) -> None:
    run(session, "git checkout -qb side; echo side > s; git add s; git commit -qm side; git checkout -q main; git gc -q --prune=now")
    run(session, "rm -r d; mkdir d; echo 5 > d/new")
    touched = session.touched_files()
    fork = session.fork()
    child = session.handoff()
    assert fork.touched_files() == child.touched_files() == touched == ["d/e/y", "d/e/z", "d/new", "d/x"]
    assert run(child, "cat d/new; git branch --format='%(refname:short)'") == "5\nmain\nside\n"

    child.discard()
    beside = site.directory(child) / REPOSITORY
    assert git("fsck", "--strict", "--full", cwd=beside) == b""
    assert git("show", "refs/gittrix/agent/heads/side:s", cwd=beside) == b"side\n"
    assert git("show", "refs/gittrix/agent/heads/side:a", cwd=beside) == b"1\n"


def test_a_workspace_that_is_kept_whole_has_the_files_of_the_baseline_too(site: Site, session: UserSession) -> None:
    run(session, "rm -r d/e; echo 2 > a; mkdir n; cd n; git init -q; git -c user.name=a -c user.email=b commit -q --allow-empty -m nested")
    session.discard()
    whole = site.directory(session) / "archive.workspace"

    assert (whole / "a").read_text() == "2\n"
    assert (whole / "run.sh").stat().st_mode & stat.S_IXUSR
    assert not (whole / "d" / "e").exists()
    assert (whole / "d" / "x").read_text() == "1\n"
    assert git("status", "--short", cwd=whole).splitlines() == [b" M a", b" D d/e/y", b" D d/e/z", b"?? n/"]


def test_a_look_at_what_changed_costs_what_changed(tmp_path: Path) -> None:
    steps = []
    for count in (2, 200):
        (tmp_path / str(count)).mkdir()
        with open_site(tmp_path / str(count), {f"d{number}/f": f"{number}\n" for number in range(count)}) as site:
            session = site.start(workspace="overlay")
            session.write("d1/f", "changed\n")
            session.delete("d0/f")
            seen: list[None] = []
            assert parts_of(session).workspace.snapshot(on_step=lambda seen=seen: seen.append(None)).touched == ["d0/f", "d1/f"]
            steps.append(len(seen))
    assert steps[0] == steps[1]


@pytest.mark.parametrize("format_", ["sha1", "sha256"])
def test_git_has_the_objects_of_a_baseline_that_moved_or_was_rewound_and_no_others(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_disk, "_SMALL_INDEX", 0)  # each seed is derived from the one before
    monkeypatch.setattr(layers_module, "_WORTH_A_LAYER", 0)
    files = {path: content for path, content in FILES.items() if path != "sub"}
    objects = "git cat-file --batch-all-objects --batch-check='%(objectname)'"
    with open_site(tmp_path, files, object_format=format_) as site:
        first = site.durable.head()
        for number in range(2):
            session = site.start(workspace="overlay")
            run(session, f"echo {number} > a; rm -rf d; mkdir -p f; echo {number} > f/{number}")
            session.promote()
        for commit in (site.durable.head(), first):
            site.durable.git("update-ref", "refs/heads/main", commit)
            session = site.start(workspace="overlay")
            layers = parts_of(session).workspace.layers
            assert layers is not None
            below = [Path(layer).name for layer in (layers[0], *layers[2]) if Path(layer).name != REPOSITORY_LAYER]
            assert below == ["lower"] if commit == first else ["files", "lower"]  # the moved baseline lies above the checkout of the first
            known = run(session, f"git status --short; git fsck --strict; {objects}").split()
            wanted = site.durable.git("rev-list", "--objects", "--no-object-names", f"{commit}^{{tree}}").split()
            assert sorted(known) == sorted([commit, *wanted])
            assert session.touched_files() == []


@pytest.mark.parametrize("spares", [0, 1])
def test_the_repository_of_an_overlay_is_made_for_its_first_program_or_with_a_spare(tmp_path: Path, spares: int) -> None:
    with open_site(tmp_path, FILES, ephemeral=LocalEphemeral("overlay", spares=spares)) as site:
        before = site.start()
        before.write("a", "2\n")
        before.promote()
        site.engine.services.resources.spares.wait()
        session = site.start()
        seed = parts_of(session).workspace.seed.directory

        assert (REPOSITORY_LAYER in os.listdir(seed)) == bool(spares)
        assert run(session, "git status --short; git log --format=%H").split() == [session.info().baseline_sha]
        assert REPOSITORY_LAYER in os.listdir(seed)


def test_a_file_that_appears_in_a_directory_just_deleted_stays_and_shows(session: UserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = overlay._exchange

    def exchange_late(parent: int, one: str, other: str) -> None:
        monkeypatch.setattr(overlay, "_exchange", exchange)
        os.close(os.open(f"{other}/late", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=parent))
        exchange(parent, one, other)

    monkeypatch.setattr(overlay, "_exchange", exchange_late)
    session.delete("d/e/y")
    session.delete("d/e/z")

    assert [one.path for one in session.list("d")] == ["d/e", "d/e/late", "d/x"]


def test_a_workspace_with_a_git_of_its_own_is_on_the_branch_that_it_is_given(site: Site) -> None:
    for kind in ("clone", "overlay"):
        session = site.start(workspace=kind)
        parts_of(session).workspace.name_branch("feature")

        git_dir = site.directory(session) / "workspace" / ".git"
        assert (git_dir / "HEAD").read_text() == "ref: refs/heads/feature\n", kind
        assert (git_dir / "packed-refs").read_text().endswith(" refs/heads/feature\n"), kind


def test_any_directory_can_be_laid_above_another_in_a_jail(tmp_path: Path) -> None:
    workspace, lower, work, home = (tmp_path / name for name in ("long, name: of a workspace" + "x" * 200, "lower,:", "work", "home"))
    for path in (workspace, lower / "d", work, home):
        path.mkdir(parents=True)
    (lower / "d" / "f").write_text("below\n")
    place = Place(workspace, home, layers=Layers(lower, work))

    assert confine.run(["cat", "f"], place, confinement("jail", layers=True), environment={}, cwd="d").stdout == b"below\n"
    for other in (confinement("off"), Confinement("jail", "bwrap")):
        with pytest.raises(CapabilityMissing, match="need a jail by namespaces"):
            wrapped(["cat", "f"], place, other, environment={})
