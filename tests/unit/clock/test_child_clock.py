"""Python programs that are started for a test: what time they show, and that nothing else of them is different."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import pytest
from support.freeze import FROZEN, HOUR, TIMEOUT, run

from pytest_gittrix.clock import FrozenClock
from pytest_gittrix.clock.propagation import FOR_PYTHON, python_path

VERSIONS = ("2.7", *(f"3.{minor}" for minor in range(6, 16)))
PYENV = Path("~/.pyenv/versions").expanduser()
PYTHONS = [*map(str, sorted(PYENV.glob("*/bin/python"))), *(found for version in VERSIONS if (found := shutil.which(f"python{version}")))]


@pytest.fixture
def clock(tmp_path: Path) -> FrozenClock:
    clock = FrozenClock(separate_files=False)
    clock.attach_file(tmp_path / "clock")
    return clock


def environment(clock: FrozenClock, tmp_path: Path, *paths: Path | str) -> dict[str, str]:
    before = os.pathsep.join(map(str, paths)) if paths else None
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1"}
    return plain | clock.environment() | python_path(before, frozen=True)


def python(script: str, env: Mapping[str, str], *options: str, interpreter: str = sys.executable) -> list[str]:
    command = [interpreter, *options, "-c", dedent(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


READINGS = """
import datetime, time
from datetime import date, datetime as imported
from time import time as read
utc = datetime.timezone.utc
print([round(seconds) for seconds in (
    time.time(), read(), time.time_ns() / 1e9, time.clock_gettime(time.CLOCK_REALTIME), time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9,
    time.mktime(time.localtime()), time.mktime(time.gmtime()), time.mktime(time.strptime(time.ctime())),
    time.mktime(time.strptime(time.asctime())), time.mktime(time.strptime(time.strftime("%c"))),
    imported.now().timestamp(), imported.now(utc).timestamp(), imported.now(tz=utc).timestamp(), imported.today().timestamp(),
)])
print(date.today(), imported.now().date(), time.monotonic() < 1.8e9)
"""


def test_every_reading_of_the_wall_clock_shows_the_file_and_monotonic_time_is_real(clock: FrozenClock, tmp_path: Path) -> None:
    clock.advance(hours=25)
    assert python(READINGS, environment(clock, tmp_path), "-W", "error") == [str([FROZEN + 25 * HOUR] * 14), "2030-01-02 2030-01-02 True"]


def test_a_program_that_runs_follows_each_move_to_the_microsecond(clock: FrozenClock, tmp_path: Path) -> None:
    program = "import sys, time, datetime\nfor _ in sys.stdin: print(time.time_ns(), datetime.datetime.now().isoformat(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment(clock, tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for move in (clock.advance, clock.skew, clock.advance):
            move(microseconds=7_777_777)
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == f"{clock.now_ns()} {clock.now().replace(tzinfo=None).isoformat()}\n"


def test_its_own_children_follow_too_unless_they_are_isolated(clock: FrozenClock, tmp_path: Path) -> None:
    script = """
        import subprocess, sys
        for options in ([], ["-I"], ["-E"], ["-S"]):
            subprocess.run([sys.executable, *options, "-c", "import time; print(time.gmtime().tm_year)"], check=True)
    """
    years = [int(year) for year in python(script, environment(clock, tmp_path))]
    assert years[0] == 2030
    assert max(years[1:]) < 2030


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_a_python_of_any_version_follows_or_is_left_alone(clock: FrozenClock, tmp_path: Path, interpreter: str) -> None:
    year = "import sys, time; assert not [path for path in sys.path if 'child' in path]; print(time.gmtime().tm_year)"
    if "shims" in interpreter:
        pytest.skip("a script of pyenv's, which starts the Python that a directory is set to")
    version = python("import sys; print(sys.version_info[:2] >= (3, 6))", os.environ, interpreter=interpreter)
    (shown,) = python(year, environment(clock, tmp_path), interpreter=interpreter)
    assert (shown == "2030") == (version == ["True"])


def test_what_they_load_is_written_for_old_versions() -> None:
    source = (Path(FOR_PYTHON) / "sitecustomize.py").read_text(encoding="ascii")
    tree = ast.parse(source, feature_version=(3, 7))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr | ast.arg) and note(node)]
    assert "pytest_gittrix" not in {name.partition(".")[0] for node in ast.walk(tree) for name in imported(node)}


def note(node: ast.AST) -> bool:
    """Whether a node is of a kind that Python 2 does not read."""
    return node.annotation is not None if isinstance(node, ast.arg) else True


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_a_sitecustomize_of_the_users_own_is_loaded_and_sees_the_clock(clock: FrozenClock, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import time\nLOADED = time.gmtime().tm_year\n")
    script = """
        import sitecustomize, sys
        print(sitecustomize.LOADED, sitecustomize.__file__, sys.path.count(sitecustomize.__file__.rpartition("/")[0]))
    """
    assert python(script, environment(clock, tmp_path, own)) == [f"2030 {own}/sitecustomize.py 1"]


@pytest.mark.parametrize("body", ["raise ValueError('the users')", "import no_such_module", "raise SystemExit(3)"])
def test_a_sitecustomize_that_fails_fails_as_if_ours_were_not_there(clock: FrozenClock, tmp_path: Path, body: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(body)
    ours = environment(clock, tmp_path, own)

    def ended(env: Mapping[str, str]) -> tuple[int, list[str]]:
        done = subprocess.run([sys.executable, "-c", "pass"], env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        return done.returncode, done.stderr.splitlines()[-1:]

    assert ended(ours) == ended(ours | {"PYTHONPATH": str(own)})


@pytest.mark.parametrize("content", [None, "", "garbage\n", "2030-01-01T00:00:00\n", "2030-01-01T00:00:00+01:00\n", "\xff\n"])
def test_without_a_usable_file_a_program_runs_on_real_time(clock: FrozenClock, tmp_path: Path, content: str | None) -> None:
    (tmp_path / "clock").unlink()
    if content is not None:
        (tmp_path / "clock").write_text(content, encoding="latin-1")
    before = datetime.now(UTC).timestamp()
    (shown,) = python("import time; print(time.time())", environment(clock, tmp_path))
    assert abs(float(shown) - before) < HOUR


def test_a_file_that_is_lost_leaves_the_last_instant(clock: FrozenClock, tmp_path: Path) -> None:
    script = "import os, time; os.remove(os.environ['PYTEST_GITTRIX_CLOCK']); print(time.time())"
    assert python(script, environment(clock, tmp_path)) == [f"{FROZEN}.0"]


def test_an_instant_without_a_fraction_is_read(clock: FrozenClock, tmp_path: Path) -> None:
    (tmp_path / "clock").write_text("2030-01-01T00:00:00Z\n")
    assert python("import time; print(time.time())", environment(clock, tmp_path)) == [f"{FROZEN}.0"]


def test_functions_and_classes_behave_as_before(clock: FrozenClock, tmp_path: Path) -> None:
    script = """
        import copy, datetime, pickle, time
        from typing import Optional
        import pydantic

        class Uses:
            read, now = time.time, datetime.datetime.now

        class Model(pydantic.BaseModel):
            at: datetime.datetime
            day: Optional[datetime.date] = None

        class Moment(datetime.datetime):
            pass

        def refused(function, *arguments):
            try:
                function(*arguments)
            except Exception as problem:
                return type(problem).__name__

        now = datetime.datetime.now()
        print(Uses().read(), Uses().now() == now == Model(at=now, day=now.date()).at, type(now) is datetime.datetime)
        print(type(Moment.now()) is type(Moment.today()) is Moment, type(datetime.date.today()) is datetime.date)
        print([pickle.loads(pickle.dumps(read)) is copy.deepcopy(read) is read for read in (time.time, time.localtime)])
        print(time.gmtime(0).tm_year, time.localtime(0.5).tm_year, time.strftime("%Y", time.gmtime(0)), time.ctime(0), time.time.__name__)
        print([refused(time.gmtime, "x"), refused(time.localtime, 1e30), refused(time.strftime), refused(time.time, 1),
               refused(datetime.datetime.now, "x"), refused(time.strftime, "%Y", 3), refused(time.clock_gettime, "x")])
    """
    kinds = ["TypeError", "OverflowError", *["TypeError"] * 5]
    assert python(script, environment(clock, tmp_path)) == [
        f"{FROZEN}.0 True True",
        "True True",
        "[True, True]",
        "1970 1970 1970 Thu Jan  1 00:00:00 1970 time",
        str(kinds),
    ]


def test_an_id_made_from_the_time_has_the_machines(clock: FrozenClock, tmp_path: Path) -> None:
    (year,) = python("import uuid, time; print(time.gmtime(uuid.uuid1().time / 1e7 - 12219292800).tm_year)", environment(clock, tmp_path))
    assert int(year) < 2030


def test_utcnow_warns_as_it_does_without_us(clock: FrozenClock, tmp_path: Path) -> None:
    script = """
        import datetime, sys, warnings
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            year = datetime.datetime.utcnow().year
        print(year, [one.filename for one in found] == (["<string>"] if sys.version_info >= (3, 12) else []))
    """
    assert python(script, environment(clock, tmp_path)) == ["2030 True"]


def test_time_libraries_of_the_program_work_and_time_stands_where_it_did_afterwards(clock: FrozenClock, tmp_path: Path) -> None:
    script = """
        import datetime, time
        def years():
            return datetime.datetime.now().year, datetime.datetime.today().year, datetime.date.today().year, time.gmtime().tm_year
        print(years())
        import time_machine
        with time_machine.travel("2040-01-01T00:00:00+00:00"):
            print(years(), time.gmtime(time.clock_gettime(0)).tm_year, time.strftime("%Y"))
        import freezegun
        with freezegun.freeze_time("2041-01-01"):
            print(years())
        from pytest_gittrix.clock import FrozenClock, SystemClock, process_freeze
        for mode in ("wall", "all"):
            with process_freeze(FrozenClock(datetime.datetime(2042, 1, 1, tzinfo=datetime.timezone.utc)), mode):
                print(years())
        print(years(), SystemClock().now().year < 2030)
    """
    package = Path(__file__).resolve().parents[3]
    assert python(script, environment(clock, tmp_path, package)) == [
        f"{(2030,) * 4}",
        f"{(2040,) * 4} 2040 2040",
        f"{(2041,) * 4}",
        *[f"{(2042,) * 4}"] * 2,
        f"{(2030,) * 4} True",
    ]


def test_a_run_of_pytest_is_on_the_clock_with_all_its_plugins(clock: FrozenClock, tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(
        dedent(
            """
            import datetime, time

            def test_now():
                assert datetime.datetime.now().year == time.gmtime().tm_year == 2030

            def test_travelling(time_machine):
                time_machine.move_to("2040-01-01T00:00:00+00:00")
                assert datetime.datetime.now().year == time.gmtime().tm_year == 2040
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    package = Path(__file__).resolve().parents[3]
    done = subprocess.run(command, env=environment(clock, tmp_path, package), cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


# --- who gets it ------------------------------------------------------------------------------------------------------

WORLD = """
import os, subprocess
from pytest_gittrix import World

YEAR = [sys.executable, "-c", "import time; print(time.gmtime().tm_year)"]

def year(env, **more):
    return int(subprocess.run(YEAR, env={**env, **more}, capture_output=True, check=True).stdout)

def year_of_agent(session, **options):
    done = session.run(YEAR, **options)
    assert done.code == 0, done
    return int(done.stdout)
"""


def in_world(script: str, tmp_path: Path) -> dict[str, object]:
    found: dict[str, object] = run(WORLD + dedent(script), tmp_path, PYTHONPATH=str(Path(__file__).resolve().parents[3]))
    return found


def test_programs_of_a_world_see_what_the_process_sees(tmp_path: Path) -> None:
    out = in_world(
        """
        start = datetime.datetime(2030, 12, 31, 23, tzinfo=datetime.timezone.utc)
        with World.open("world", files={"app.py": "v1"}, clock_start=start) as world:
            session = world.start()
            out["before"] = [year(world.env), year_of_agent(session)]
            with process_freeze(world.clock):
                out["frozen"] = [year(world.env), year_of_agent(session), year_of_agent(session.for_agent())]
                out["left out"] = [
                    year(world.env, PYTEST_GITTRIX_CLOCK=""), year_of_agent(session, environment={"PYTEST_GITTRIX_CLOCK": ""})
                ]
                out["users"] = world.env["PYTHONPATH"].split(os.pathsep)[1:] == [os.environ["PYTHONPATH"]]
                world.clock.advance(hours=1)
                out["moved"] = [year(world.env), year_of_agent(session)]
            with process_freeze(world.clock, children=False):
                out["children=False"] = [year(world.env), year_of_agent(session)]
            with process_freeze(clock):
                out["another clock"] = [year(world.env), year_of_agent(session)]
            out["after"] = [year(world.env), year_of_agent(session), world.env["PYTHONPATH"] == os.environ["PYTHONPATH"]]
        """,
        tmp_path,
    )
    assert out["frozen"] == [2030] * 3
    assert out["moved"] == [2031] * 2
    assert out["users"] is True
    real = [years for name, years in out.items() if name not in ("frozen", "moved", "users")]
    assert all(year < 2030 for years in real for year in years)  # type: ignore[attr-defined]


@pytest.mark.parametrize("level", ["guard", "jail"])
def test_a_confined_program_keeps_the_instant_at_which_it_was_started(tmp_path: Path, level: str) -> None:
    out = in_world(
        f"""
        from pytest_gittrix.errors import CapabilityMissing
        ASKED = [sys.executable, "-c", "import time\\nfor _ in range(2): print(time.time(), flush=True); input()"]
        with World.open("world", files={{"app.py": "v1"}}) as world, process_freeze(world.clock):
            try:
                programs = world.start().programs(confine={level!r})
            except CapabilityMissing as missing:
                out["missing"] = missing.fact
            else:
                with programs, programs.start(ASKED) as running:
                    out["start"] = float(running.stdout.read())
                    world.clock.advance(hours=1)
                    running.write(b"\\n")
                    out["later"] = float(running.stdout.read())
                    out["another"] = float(programs.run([sys.executable, "-c", "import time; print(time.time())"]).stdout)
        """,
        tmp_path,
    )
    if "missing" in out:
        pytest.skip(str(out["missing"]))
    assert out == {"start": FROZEN, "later": FROZEN, "another": FROZEN + HOUR}
