"""Programs of agents at each level of confinement: how they end, what they get, and what they leave. Real processes throughout."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.confined import JAILS, LONG, PATH, STRONGER, Confined, available
from support.escapes import CONFINEMENTS

from pytest_gittrix.confine.command_line import wrapped
from pytest_gittrix.confine.filesystem_layout import Place
from pytest_gittrix.confine.runner import run, start
from pytest_gittrix.engine.agents.start import start_agent
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.os_level.monotonic import pause, real_seconds

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="programs of agents run on Linux")

ROOT = Path(__file__).resolve().parents[3]
# A child that hears nothing, and a daemon that has left session, group and environment; both read from a fifo as long as they live.
LEAVES_BEHIND = """
mkfifo one two
(trap '' TERM HUP INT; exec sh -c 'read line <> one' sh) &
env -i setsid sh -c 'setsid sh -c "exec 9<> two; : > up; read line <&9" & ' > /dev/null 2>&1 < /dev/null &
until [ -e up ]; do :; done
: > ready
"""


@pytest.fixture(params=CONFINEMENTS)
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Confined:
    return Confined.make(tmp_path, available(request.param))


@pytest.fixture(params=STRONGER)
def stronger(request: pytest.FixtureRequest, tmp_path: Path) -> Confined:
    return Confined.make(tmp_path, available(request.param))


@pytest.fixture(params=JAILS)
def jailed(request: pytest.FixtureRequest, tmp_path: Path) -> Confined:
    return Confined.make(tmp_path, available(request.param))


@pytest.fixture(params=[name for name in CONFINEMENTS if name not in JAILS])
def unjailed(request: pytest.FixtureRequest, tmp_path: Path) -> Confined:
    return Confined.make(tmp_path, available(request.param))


def release(directory: Path) -> None:
    """Let those who read from the fifos of a directory read a line, at which they end."""
    for name in readers(directory):
        with open(directory / name, "w") as fifo:
            fifo.write("\n")


def readers(directory: Path) -> list[str]:
    """The fifos of a directory that somebody still has open."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.is_fifo():
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                found.append(path.name)
            except OSError:
                continue
    return found


def wait_until_there(path: Path) -> None:
    deadline = real_seconds() + LONG
    while not path.exists():
        assert real_seconds() < deadline, f"{path} does not come"
        pause(0.005)


# How it ends -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 125, 126, 127, 255])
def test_the_status_is_the_program_s(confined: Confined, code: int) -> None:
    ended = confined.shell(f"exit {code}")

    # bubblewrap has one number for a status of 128 and more, and for a signal.
    assert (ended.code, ended.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_told_as_one(confined: Confined, number: int) -> None:
    ended = confined.shell(f"kill -{int(number)} $$")

    assert (ended.code, ended.signal) == (None, number)


def test_a_program_is_not_found_in_a_directory_that_may_not_be_searched(tmp_path: Path, unjailed: Confined) -> None:
    closed, other = tmp_path / "w" / "closed", tmp_path / "w" / "other"
    closed.mkdir(0)
    other.mkdir()
    (other / "no-program").touch()
    environment = {"PATH": os.pathsep.join([str(closed), PATH, str(other)])}

    missing, unfit = unjailed.run("no-such-program", environment=environment), unjailed.run("no-program", environment=environment)

    assert (missing.code, unfit.code) == (127, 126)
    assert b"No such file" in missing.stderr
    assert unjailed.run("true", environment=environment).code == 0
    on_terminal = start(["no-such-program"], unjailed.place(), unjailed.confinement, environment=environment, pty=True)
    assert on_terminal.wait(LONG).code == 127


@pytest.mark.parametrize("program", ["no-such-program", "./no-such-program", "no-such-directory/program"])
def test_a_program_that_is_not_there_gives_127(confined: Confined, program: str) -> None:
    ended = confined.run(program)

    assert (ended.code, ended.signal) == (127, None)
    assert program.encode() in ended.stderr


def test_a_file_that_is_no_program_gives_126(confined: Confined) -> None:
    (confined.workspace / "text").write_text("no program\n")
    (confined.workspace / "rubbish").write_bytes(b"\x7fELF")
    (confined.workspace / "rubbish").chmod(0o755)

    programs = ["./text", "/usr"]
    if confined.confinement.by != "bwrap":  # which lets a shell read what the kernel cannot execute
        programs.append("./rubbish")

    assert {confined.run(program).code for program in programs} == {126}


def test_input_and_output_are_bytes_and_kept_apart(confined: Confined) -> None:
    data = bytes(range(256)) * 1000
    ended = confined.shell("cat; echo problem >&2", stdin=data)

    assert ended.stdout == data
    assert ended.stderr == b"problem\n"
    assert not ended.truncated


def test_a_program_that_reads_nothing_is_no_problem(confined: Confined) -> None:
    assert confined.run("true", stdin=b"x" * 1_000_000).code == 0


def test_output_beyond_the_limit_is_thrown_away_and_the_program_goes_on(confined: Confined) -> None:
    ended = confined.shell("head -c 3000000 /dev/zero; echo end >&2; exit 4", most_output=1000)

    assert (ended.code, ended.stdout, ended.stderr, ended.truncated) == (4, bytes(1000), b"end\n", True)
    assert not confined.shell("head -c 1000 /dev/zero", most_output=1000).truncated


def test_arguments_arrive_as_they_are(confined: Confined) -> None:
    argv = ["a b", "", "'\"$HOME", "--", "-x", "\udcff", "é", "x" * 100_000]

    shown = confined.python("import os, sys; os.write(1, b'|'.join(map(os.fsencode, sys.argv[1:])))", *argv)

    assert shown.stdout == b"|".join(map(os.fsencode, argv)), shown.stderr


def test_a_program_has_the_time_that_it_is_given(confined: Confined) -> None:
    assert confined.run("sleep", "600", timeout=0.01).timed_out


def test_when_its_time_is_over_all_of_it_is_killed(confined: Confined) -> None:
    over, end = os.pipe()
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(confined.shell, f"{LEAVES_BEHIND} exec sleep 600", stop=over)
        wait_until_there(confined.workspace / "ready")
        os.write(end, b"!")
        ended = running.result()
    os.close(over)
    os.close(end)

    try:
        assert ended.timed_out
        # Without confinement a process that hides its descent and its environment is not found.
        assert set(readers(confined.workspace)) <= ({"two"} if confined.confinement.level == "off" else set())
    finally:
        release(confined.workspace)


def test_what_it_leaves_behind_ends_with_it(stronger: Confined) -> None:
    ended = stronger.shell(f"{LEAVES_BEHIND} exit 5")

    assert (ended.code, ended.timed_out) == (5, False)
    assert readers(stronger.workspace) == []


def test_a_child_with_its_environment_ends_with_it_without_confinement_too(tmp_path: Path) -> None:
    free = Confined.make(tmp_path, CONFINEMENTS["off"])
    script = "mkfifo one; setsid sh -c 'exec 9<> one; : > up; read line <&9' & until [ -e up ]; do :; done"

    assert free.shell(script).code == 0
    assert readers(free.workspace) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whoever_waits_for_it_takes_it_along(stronger: Confined, number: int) -> None:
    program = (
        "import sys; from pathlib import Path; from pytest_gittrix.confine.levels import *; place, level, by, script, path = sys.argv[1:];"
        "place = Place(Path(place, 'w'), Path(place, 'h'));"
        "run(['sh', '-c', script], place, Confinement(level, by), environment={'PATH': path})"
    )
    confinement = stronger.confinement
    argv = [sys.executable, "-c", program, str(stronger.root), confinement.level, confinement.by, f"{LEAVES_BEHIND} sleep 600", PATH]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as waiting:
        wait_until_there(stronger.workspace / "ready")
        waiting.send_signal(number)
        assert waiting.wait(LONG) != 0

    deadline = real_seconds() + LONG
    # After SIGKILL nobody waits any more until all is over.
    while readers(stronger.workspace) and number == signal.SIGKILL and real_seconds() < deadline:
        pause(0.005)
    assert readers(stronger.workspace) == []


def test_many_run_at_once(confined: Confined) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda number: confined.output(f"echo {number}"), range(8))]

    assert found == [f"{number}\n" for number in range(8)]


# What it gets ------------------------------------------------------------------------------------------------------------------


def test_it_has_the_variables_it_is_given_and_a_home_and_nothing_else(confined: Confined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of this process")

    lines = confined.run("env", environment={"GIVEN": "yes", "ODD": "a\nb"}).stdout.decode().split("\n")

    names = {line.partition("=")[0] for line in lines if "=" in line}
    # Without confinement the mark is how its processes are found.
    # Under guard git would end at the system's configuration, which it must not read.
    added = {"off": {"GITTRIX_AGENT_MARK"}, "guard": {"GIT_CONFIG_NOSYSTEM"}, "jail": set()}[confined.confinement.level]
    assert names == {"PATH", "GIVEN", "ODD", "HOME", "TMPDIR", "PWD"} | added


def test_what_the_loader_is_told_reaches_the_program_and_not_whoever_confines_it(confined: Confined) -> None:
    ended = confined.run("true", environment={"LD_PRELOAD": "/no/such/library.so"})

    assert ended.code == 0
    assert ended.stderr.count(b"/no/such/library.so") == 1


def test_home_and_temporary_directory_are_its_own_and_stay_while_the_place_does(confined: Confined) -> None:
    confined.output("echo kept > ~/file; echo kept > $TMPDIR/file")

    assert confined.output("cat ~/file $TMPDIR/file") == "kept\nkept\n"
    assert (confined.root / "h/file").read_text() == "kept\n"


def test_a_home_that_nobody_gave_is_gone_afterwards(confined: Confined) -> None:
    place = confined.place(home=None)
    home = confined.output("echo x > ~/file; echo $HOME", place=place).strip()

    assert confined.output("ls ~", place=place) == ""
    assert not Path(home).exists() or confined.confinement.level == "jail"


def test_a_jail_shows_the_workspace_at_a_fixed_place_and_tells_paths_so(jailed: Confined) -> None:
    place = jailed.place(at="/workspace")
    (jailed.workspace / "sub").mkdir()
    variables = {"FILE": str(jailed.workspace / "sub/x"), "LIST": f"{jailed.workspace}:/usr", "OTHER": f"{jailed.workspace}er"}

    shown = jailed.output("pwd; echo $FILE $LIST $OTHER $HOME $TMPDIR; echo new > made", place=place, environment=variables, cwd="sub")

    assert shown == f"/workspace/sub\n/workspace/sub/x /workspace:/usr {variables['OTHER']} /home/agent /tmp\n"
    assert (jailed.workspace / "sub/made").read_text() == "new\n"
    above_it = {jailed.root.parts[1]} - {"dev"}  # which every jail has
    assert sorted(jailed.output("ls /", place=place).split()) == sorted({*jailed.output("ls /").split(), "workspace"} - above_it | {"tmp"})


def test_what_is_readable_is_shown_and_cannot_be_changed(stronger: Confined) -> None:
    tools = stronger.root / "tools"
    tools.mkdir()
    (tools / "say").write_text("#!/bin/sh\necho said\n")
    (tools / "say").chmod(0o755)
    place = stronger.place(readable=(tools,))

    assert stronger.output(f"{tools}/say", place=place) == "said\n"
    assert stronger.shell(f"echo changed > {tools}/say", place=place).code != 0
    assert stronger.shell(f"echo new > {tools}/new", place=place).code != 0
    assert stronger.shell(f"{tools}/say").code in (126, 127)
    assert (tools / "say").read_text() == "#!/bin/sh\necho said\n"


@pytest.mark.parametrize("path", ["/usr/made", "/etc/made", "/made", "/dev/made", "/proc/sys/kernel/core_pattern", "/etc/passwd"])
def test_nothing_of_the_system_can_be_changed(stronger: Confined, path: str) -> None:
    existed = Path(path).exists()
    code = "import os, sys; os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)"

    ended = stronger.python(code, path)

    assert ended.code == 1, ended
    assert Path(path).exists() == existed


def test_it_has_no_capability_and_gains_none(stronger: Confined) -> None:
    status = dict(line.split(":\t") for line in stronger.output("cat /proc/self/status").splitlines() if ":\t" in line)

    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_it_has_no_open_file_of_ours(confined: Confined) -> None:
    shown = confined.python("import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])")

    assert shown.stdout == b"[0, 1, 2]\n", shown


def test_processes_of_a_jail_talk_to_each_other(jailed: Confined) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); print('met')"

    assert jailed.run(sys.executable, "-I", "-c", code).stdout == b"met\n"


def test_a_jail_has_the_files_that_programs_expect(jailed: Confined) -> None:
    script = (
        "echo x > /dev/null; head -c 4 /dev/urandom | wc -c; echo /dev/fd/1; : > /dev/shm/x; hostname || uname -n; id -u; ls /proc/self/exe"
    )

    assert jailed.output(script).split()[:4] == ["4", "/dev/fd/1", "gittrix", str(os.geteuid())]


# A program that stays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["off", "guard by landlock", "jail by namespaces"])
def test_an_agent_that_stays_hears_that_it_is_to_end(name: str, tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, available(name))
    # Without confinement what does not listen would be waited for.
    more = "" if name == "off" else LEAVES_BEHIND.replace(": > ready", "")
    script = f"{more} trap 'echo asked; exit 7' TERM; : > ready; while :; do sleep 0.01; done"
    launch = wrapped(["sh", "-c", script], confined.place(), confined.confinement, environment={"PATH": PATH})

    agent = start_agent(launch.argv, directory=tmp_path / "agent", workspace=launch.directory, environment=launch.environment)
    try:
        wait_until_there(confined.workspace / "ready")
    finally:
        stopped = agent.stop(grace=LONG, poll=0.01)

    assert stopped.left == ()
    assert (stopped.observation.code, agent.capture()) == (7, "asked\n")
    assert readers(confined.workspace) == []


def test_an_agent_that_stays_ends_by_bubblewrap_too(tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, available("jail by bwrap"))
    launch = wrapped(["sh", "-c", f"{LEAVES_BEHIND} sleep 600"], confined.place(), confined.confinement, environment={"PATH": PATH})

    agent = start_agent(launch.argv, directory=tmp_path / "agent", workspace=launch.directory, environment=launch.environment)
    try:
        wait_until_there(confined.workspace / "ready")
    finally:
        stopped = agent.stop(grace=0)

    assert stopped.left == ()
    assert readers(confined.workspace) == []


def test_a_program_that_stays_needs_a_home(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="home"):
        wrapped(["true"], Place(tmp_path), CONFINEMENTS["off"], environment={})


# What is refused ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cwd", ["..", "/", "no-such-directory", "file", "out", "a\0b"])
def test_a_program_starts_in_the_workspace(confined: Confined, cwd: str) -> None:
    (confined.workspace / "file").write_text("")
    (confined.workspace / "out").symlink_to("/usr")

    with pytest.raises(InvalidInput, match="cwd"):
        confined.run("true", cwd=cwd)


@pytest.mark.parametrize("at", ["workspace", "/", "/a/../b", "/a/", "//a", "/tmp", "/usr/x", "/proc/x", "/etc", "/home/agent", "/a\0b"])
def test_a_workspace_is_shown_where_nothing_else_has_to_be(tmp_path: Path, at: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be shown"):
        Place(tmp_path, at=at)


def test_no_directory_of_a_program_is_where_a_program_can_replace_it(tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, CONFINEMENTS["off"])
    for path in (inside := confined.root / "h" / "inside", confined.workspace / "inside"):
        path.mkdir()
    (tmp_path / "link").symlink_to(inside)
    wrong = ({"home": confined.workspace / "inside"}, {"workspace": inside}, {"beside": ((tmp_path / "link" / "x", "/x"),)})

    for other in wrong:
        with pytest.raises(InvalidInput, match="which programs may change"):
            confined.run("true", place=confined.place(**other))


def test_what_is_beside_a_home_is_a_directory_of_this_user(tmp_path: Path) -> None:
    confined = Confined.make(tmp_path, CONFINEMENTS["off"])
    confined.root.joinpath("h", ".tmp").mkdir()  # as earlier versions made it
    confined.root.joinpath("h", ".tmp", "old").touch()
    assert confined.output("ls $TMPDIR") == "old\n"

    shutil.rmtree(confined.root / "h.tmp")
    (confined.root / "h" / ".tmp").symlink_to(tmp_path)
    assert confined.output("ls $TMPDIR") == ""
    (confined.root / "h.tmp").rmdir()
    (confined.root / "h.tmp").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match="no directory of this user"):
        confined.run("true")


def test_a_link_above_a_directory_that_is_shown_makes_nothing_outside(jailed: Confined) -> None:
    (extra := jailed.root / "extra").mkdir()
    (victim := jailed.root / "victim").mkdir()
    jailed.output(f"ln -s /old{victim} /tmp/deep")

    with pytest.raises(AdapterUnavailable):
        jailed.run("true", place=jailed.place(beside=((extra, "/tmp/deep/er"),)))
    assert os.listdir(victim) == []


def test_places_are_whole_paths(tmp_path: Path) -> None:
    for wrong in ({"workspace": Path("w")}, {"home": Path("h")}, {"readable": (Path("r"),)}, {"home": Path("/a\0b")}):
        with pytest.raises(InvalidInput, match="absolute"):
            Place(**{"workspace": tmp_path} | wrong)


def test_a_place_that_is_not_there_is_an_error(confined: Confined) -> None:
    for wrong in ({"workspace": confined.root / "none"}, {"home": confined.root / "none"}):
        with pytest.raises(InvalidInput, match="There is no"):
            confined.run("true", place=confined.place(**wrong))


@pytest.mark.parametrize("options", [{"timeout": -1}, {"timeout": float("nan")}, {"most_output": -1}])
def test_limits_are_numbers_from_0(confined: Confined, options: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="limits"):
        confined.run("true", **options)


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"], "text"])
def test_what_is_no_command_is_refused(confined: Confined, argv: list[str]) -> None:
    with pytest.raises(InvalidInput):
        run(argv, confined.place(), confined.confinement, environment={"PATH": PATH})


@pytest.mark.parametrize("stays", [False, True])
def test_a_jail_has_no_socket_to_whoever_runs_the_machine(jailed: Confined, stays: bool) -> None:
    code = "import socket, sys; socket.socket(int(sys.argv[1]), socket.SOCK_STREAM); print('made')"
    vsock = [sys.executable, "-I", "-c", code, "40"]
    free = Confined(jailed.root, CONFINEMENTS["off"])
    if free.run(*vsock).code != 0:
        pytest.skip("this machine has no such sockets")

    if stays:
        launch = wrapped(vsock, jailed.place(), jailed.confinement, environment={"PATH": PATH})
        ended = free.run(*launch.argv, environment=launch.environment)
        assert (ended.code, ended.stdout) == (1, b""), ended
        assert b"Address family not supported" in ended.stderr
    else:
        ended = jailed.run(*vsock)
        assert (ended.code, ended.stdout) == (1, b""), ended
    assert jailed.run(sys.executable, "-I", "-c", code, "2").stdout == b"made\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="set-user-id bits of another user than root give nobody anything")
@pytest.mark.parametrize("name", STRONGER)
def test_no_file_of_a_program_of_root_keeps_a_bit_that_lets_others_be_root(name: str, tmp_path: Path) -> None:
    place = Confined.make(tmp_path, available(name))
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o4755)
    (place.workspace / "link").symlink_to(outside)
    deep = "/".join(["d"] * 60)
    script = f"mkdir -p {deep} shared && chmod g+s shared && for f in user group {deep}/both plain; do echo x > $f; done"
    script += f" && chmod 4755 user && chmod 2755 group && chmod 6755 {deep}/both && chmod 755 plain && ls -l user >&2"

    ended = place.run("sh", "-c", script)

    assert (ended.code, ended.stderr[:10]) == (0, b"-rwsr-xr-x")
    modes = [stat.S_IMODE((place.workspace / file).stat().st_mode) for file in ("user", "group", f"{deep}/both", "plain")]
    assert modes == [0o755] * 4
    assert stat.S_IMODE((place.workspace / "shared").stat().st_mode) & stat.S_ISGID, "what is made in a directory gives nobody a right"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o4755


@pytest.mark.skipif(os.geteuid() != 0, reason="set-user-id bits of another user than root give nobody anything")
@pytest.mark.parametrize("name", STRONGER)
def test_nor_of_one_that_stays_or_runs_too_long(name: str, tmp_path: Path) -> None:
    place = Confined.make(tmp_path, available(name))
    launch = wrapped(["sh", "-c", "touch one; chmod 4755 one"], place.place(), place.confinement, environment={"PATH": os.defpath})
    done = subprocess.run(launch.argv, env=launch.environment, cwd=launch.directory, timeout=LONG, check=False)
    ended = place.run("sh", "-c", "touch two; chmod 4755 two; sleep 600", timeout=3)

    assert (done.returncode, ended.timed_out) == (0, True)
    assert [stat.S_IMODE((place.workspace / file).stat().st_mode) for file in ("one", "two")] == [0o755] * 2
