"""Suites from released wheels: a real history, tasks that can be done, drift from the next release, and nothing believed of a wheel."""

from __future__ import annotations

import filecmp
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.evals import agent_file, ran
from support.git import git

from pytest_gittrix.cli.main import main
from pytest_gittrix.errors import AdapterUnavailable, InvalidInput
from pytest_gittrix.evals.inputs.releases import Expected, Release, ReleaseSuite, expected_of, make_releases, surprises, write_suite
from pytest_gittrix.evals.inputs.wheels import Pin, Pins, fetch, read
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.testing.repos.history import Executable

ATTRS = Path(__file__).resolve().parents[3] / "fixtures" / "evals" / "releases" / "attrs.toml"
VERSIONS = ("1.0", "1.1", "1.2", "2.0")
FILES: Mapping[str, Mapping[str, str]] = {
    "1.0": {
        "sums/__init__.py": "from sums.add import add\n",
        "sums/add.py": "def add(a, b):\n    return a - b\n",
        "sums/old.py": "OLD = 1\n",
    },
    "1.1": {
        "sums/__init__.py": "from sums.add import add\n",
        "sums/add.py": "def add(a, b):\n    return a + b\n",
        "sums/old.py": "OLD = 1\n",
    },
    "1.2": {"sums/__init__.py": '"""Sums."""\n', "sums/add.py": "def add(a, b):\n    return a + b\n", "sums/old/new.py": "crlf\r\n"},
    "2.0": {"sums/__init__.py": '"""Sums."""\n', "sums/add.py": "def add(*all):\n    return sum(all)\n", "sums/more.py": "ä = 1\n"},
}
APPLIES_WHAT_IT_IS_TOLD = """
    patch = toolbox.task.partition("```diff\\n")[2].rpartition("```")[0]
    done = toolbox.run(["git", "apply", "--whitespace=nowarn"], stdin=patch)
    assert done.code == 0, done.stderr
"""


def wheel(place: Path, version: str, *, name: str = "sums", more: Mapping[str | zipfile.ZipInfo, str | bytes] | None = None) -> Path:
    """A wheel of a release, as an index has it."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in FILES.get(version, {}).items():
            archive.writestr(path, text)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", f"sums/__init__.py,,\n{about}/RECORD,,\n")
        for path, data in (more or {}).items():
            archive.writestr(path, data)
    return file


def said(*words: str) -> str:
    """What git prints, without the end of its last line."""
    return git(*words).decode().rstrip()


def special(path: str, mode: int) -> zipfile.ZipInfo:
    """A member of a zip file that is no plain file."""
    member = zipfile.ZipInfo(path)
    member.external_attr = mode << 16
    return member


def made(root: Path, name: str = "suite") -> ReleaseSuite:
    """A suite of all releases."""
    releases = [Release(version, read(wheel(root / "wheels", version), "sums", version)) for version in VERSIONS]
    return write_suite(Pins.of("sums", [Pin(version) for version in VERSIONS]), releases, root / name)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with all wheels, and a pip that looks nowhere else."""
    for version in VERSIONS:
        found = wheel(tmp_path / "index", version)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(found.parent))
    return found.parent


# The suite -------------------------------------------------------------------------------------------------------------------------


def test_each_release_is_a_commit_and_a_case_starts_from_the_one_before_it(tmp_path: Path) -> None:
    suite = made(tmp_path).suite
    history = str(suite.directory / "history.git")

    log = said("-C", history, "log", "--reverse", "--format=%H %an %ct %s").splitlines()
    assert [line.split(" ", 3)[1:] for line in log] == [
        ["Release", str(1893456000 - 60 * (4 - number)), f"sums {version}"] for number, version in enumerate(VERSIONS)
    ]
    starts = {case.id.split("-")[1]: case.source.ref for case in suite.cases}
    assert starts == {"1.1": log[0].split()[0], "1.2": log[1].split()[0]}
    names = said("-C", history, "ls-tree", "-r", "--name-only", starts["1.2"]).split()
    assert names == ["sums.dist-info/METADATA", "sums.dist-info/WHEEL", *sorted(FILES["1.1"])]


def test_who_applies_exactly_what_is_told_meets_what_was_foreseen(tmp_path: Path) -> None:
    suite = made(tmp_path)

    gold = ran(suite.suite.directory, tmp_path, "gold", out=tmp_path / "gold")
    summary = ran(suite.suite.directory, tmp_path, agent_file(tmp_path, APPLIES_WHAT_IT_IS_TOLD), out=tmp_path / "told")

    assert surprises(suite.expected, gold.records) == []
    assert surprises(suite.expected, summary.records) == []
    assert {record.id: record.outcome for record in gold.records} == {
        "sums-1.1-over": "conflict",
        "sums-1.1-apart": "pass",
        "sums-1.2-over": "conflict",
        "sums-1.2-apart": "pass",
    }


def test_who_does_nothing_or_half_or_more_than_was_told_does_not_pass(tmp_path: Path) -> None:
    suite = made(tmp_path)
    half = """
        patch = toolbox.task.partition("```diff\\n")[2].rpartition("```")[0]
        toolbox.run(["git", "apply", "--whitespace=nowarn", "--include=*/METADATA"], stdin=patch)
    """
    more = APPLIES_WHAT_IT_IS_TOLD + '    toolbox.write("mine.txt", "mine")\n'
    outcomes = {}
    for name, agent in (
        ("nop", "nop"),
        ("half", agent_file(tmp_path / "half", half)),
        ("more", agent_file(tmp_path / "more", more)),
    ):
        done = ran(suite.suite.directory, tmp_path, agent, out=tmp_path / f"run-{name}", only=("*-apart",))
        outcomes[name] = {record.outcome for record in done.records}
        assert len(surprises(suite.expected, done.records)) == 2

    assert outcomes == {"nop": {"fail"}, "half": {"fail"}, "more": {"fail"}}


def test_the_drift_is_a_part_of_the_next_release_and_is_there_in_the_end(tmp_path: Path) -> None:
    suite = made(tmp_path).suite

    record = ran(suite.directory, tmp_path, "gold", only=("sums-1.1-apart",)).records[0]

    objects = RunStore.open(tmp_path / "run").path / "objects.git"
    drifted = (suite.case("sums-1.1-apart").directory / "drift.patch").read_text()
    names = [line.split(" b/")[1] for line in drifted.splitlines() if line.startswith("diff --git")]
    assert names
    assert set(names) <= {"sums/__init__.py", "sums/old.py"}
    for name in names:
        there = said("-C", str(objects), "ls-tree", "-r", "--name-only", record.promoted).split()
        assert (name in there) is (name in FILES["1.2"])
        if name in there:
            assert said("-C", str(objects), "show", f"{record.promoted}:{name}") == FILES["1.2"][name].strip()


def test_an_agent_sees_the_past_and_not_what_is_to_come(tmp_path: Path) -> None:
    suite = made(tmp_path).suite
    later = said("-C", str(suite.directory / "history.git"), "rev-parse", "HEAD~1")
    looks = f"""
        seen = toolbox.run(["git", "log", "--all", "--format=%s"]).stdout.decode().splitlines()
        assert seen == ["sums 1.1", "sums 1.0"], seen
        assert toolbox.run(["git", "cat-file", "-e", "{later}"]).code != 0, "it is there"
    """

    record = ran(suite.directory, tmp_path, agent_file(tmp_path, looks), only=("sums-1.2-over",)).records[0]

    assert record.outcome == "fail", record.reason  # and not agent_error


def test_the_same_wheels_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b", "elsewhere")

    def files(root: Path) -> list[str]:
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())

    assert first.digest == second.digest
    names = files(first.suite.directory)
    assert names == files(second.suite.directory)
    assert filecmp.cmpfiles(first.suite.directory, second.suite.directory, names, shallow=False)[1:] == ([], [])
    assert expected_of(first.suite.directory) == first.expected


def test_a_surprise_is_told_with_what_was_foreseen(tmp_path: Path) -> None:
    suite = made(tmp_path)
    records = ran(suite.suite.directory, tmp_path, "gold", only=("sums-1.1-*",)).records

    foreseen = {"sums-1.1-over": Expected("conflict", ("other.py",)), "sums-1.1-apart": Expected("conflict", ("sums/add.py",))}

    overlap = ", ".join(suite.expected["sums-1.1-over"].overlap)
    assert surprises(foreseen, records) == [
        "sums-1.1-apart #0: pass instead of conflict",
        f"sums-1.1-over #0: conflict in {overlap} instead of other.py",
    ]


def test_nothing_is_written_over_and_a_change_that_is_no_text_leaves_nothing(tmp_path: Path) -> None:
    suite = made(tmp_path)
    before = sorted(tmp_path.iterdir())
    releases = [Release(version, {"a.txt": data}) for version, data in (("1", b"a\n"), ("2", b"\xe4\n"), ("3", b"c\n"))]
    pins = Pins.of("latin", [Pin("1"), Pin("2"), Pin("3")])

    with pytest.raises(InvalidInput, match="already exists"):
        make_releases(pins, suite.suite.directory)
    with pytest.raises(InvalidInput, match="is not a path"):
        make_releases(pins, f"{tmp_path}/a\0b")
    with pytest.raises(InvalidInput, match="2 is not UTF-8"):
        write_suite(pins, releases, tmp_path / "latin")
    assert sorted(tmp_path.iterdir()) == before


# Wheels ----------------------------------------------------------------------------------------------------------------------------


def test_a_wheel_is_read_without_its_version_in_names_and_without_its_list(tmp_path: Path) -> None:
    run = special("sums-1.0.data/scripts/sums", stat.S_IFREG | 0o755)

    found = read(wheel(tmp_path, "1.0", more={run: "#!python\n"}), "Sums", "1.0")

    assert sorted(found) == ["sums.data/scripts/sums", "sums.dist-info/METADATA", "sums.dist-info/WHEEL", *sorted(FILES["1.0"])]
    assert found["sums.data/scripts/sums"] == Executable(b"#!python\n")
    assert found["sums/old.py"] == b"OLD = 1\n"


@pytest.mark.parametrize(
    "path", ["../out.py", "sums/../../out.py", "/out.py", "sums/../../../out/", ".git/hooks/x", "a/.GIT/x", "a\\..\\..\\b"]
)
def test_a_name_that_leads_out_or_into_git_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="so none of it is unpacked"):
        read(wheel(tmp_path / "in", "1.0", more={zipfile.ZipInfo(path): "x"}), "sums", "1.0")

    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_links_and_names_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    link = special("sums/link", stat.S_IFLNK | 0o777)
    with pytest.raises(InvalidInput, match="sums/link"):
        read(wheel(tmp_path / "a", "1.0", more={link: "/etc/passwd"}), "sums", "1.0")
    with pytest.raises(InvalidInput, match="appears twice"):
        read(wheel(tmp_path / "b", "1.0", more={"./sums//add.py": "x"}), "sums", "1.0")


def test_what_is_too_large_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gittrix.evals.inputs.wheels._MOST_BYTES", 100_000)

    with pytest.raises(InvalidInput, match="100000 bytes are not taken"):
        read(wheel(tmp_path, "1.0", more={"zeros": b"\0" * 200_000}), "sums", "1.0")


@pytest.mark.parametrize(("package", "version"), [("other", "1.0"), ("sums", "1.1")])
def test_a_wheel_of_something_else_is_refused(package: str, version: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"{package} {version}"):
        read(wheel(tmp_path, "1.0"), package, version)


def test_what_is_no_wheel_or_damaged_is_refused(tmp_path: Path) -> None:
    whole = wheel(tmp_path, "1.0")
    data = bytearray(whole.read_bytes())
    data[60] ^= 0xFF
    whole.write_bytes(data)
    (tmp_path / "text.whl").write_text("no zip")

    for file in (whole, tmp_path / "text.whl", tmp_path / "nowhere.whl"):
        with pytest.raises(InvalidInput, match="cannot be read"):
            read(file, "sums", "1.0")


# Pins and pip ----------------------------------------------------------------------------------------------------------------------


def test_pins_are_read_as_they_are_written_and_some_can_be_taken(tmp_path: Path) -> None:
    pins = Pins.of("sums", [Pin(version, digit * 64) for version, digit in zip(VERSIONS, "abcd", strict=True)])
    (tmp_path / "pins.toml").write_text(pins.encode())

    assert Pins.read(tmp_path / "pins.toml") == pins
    assert [one.version for one in pins.only(["1.0", "1.2", "2.0"]).releases] == ["1.0", "1.2", "2.0"]
    with pytest.raises(InvalidInput, match=r"3\.0 of sums is not pinned"):
        pins.only(["1.0", "1.1", "3.0"])
    assert len(Pins.read(ATTRS).releases) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('schema = 2\npackage = "a"', "schema"),
        ('schema = 1\npackage = "a"\nrelease = 3', "release"),
        ('schema = 1\npackage = "--pre"\nrelease = []', "--pre"),
        ('schema = 1\npackage = "a"\nrelease = [{version = "1", sha256 = ""}]', "1 different release"),
        ('schema = 1\npackage = "a"\nrelease = [{version = "1", sha256 = ""}, {version = "2", sha256 = "x"}]', "SHA-256"),
        ('schema = 1\npackage = "a"\nrelease = [{version = "1 --pre", sha256 = ""}]', "version"),
        ('schema = 1\npackage = "a"\nrelease = [{version = "1"}]', "sha256"),
        ('schema = 1\npackage = "a"\nurl = "x"', "url"),
    ],
)
def test_pins_that_are_none_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pins.toml").write_text(text)

    with pytest.raises(InvalidInput, match=message):
        Pins.read(tmp_path / "pins.toml")


def test_releases_are_fetched_by_pip_and_their_hashes_are_written_down(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["eval", "make-releases", "sums", "--versions", "1.0,1.1,1.2", "--out", str(tmp_path / "suite")])

    captured = capsys.readouterr()
    assert (status, captured.out) == (0, f"{tmp_path}/suite\n")
    assert "2 cases, 1 of them with a conflict" in captured.err
    assert "taken as they came" in captured.err
    pins = Pins.read(tmp_path / "suite" / "releases.toml")
    assert all(len(one.sha256) == 64 for one in pins.releases)
    assert sorted(expected_of(tmp_path / "suite")) == ["sums-1.1-apart", "sums-1.1-over"]


def test_a_wheel_that_is_not_what_was_pinned_leaves_nothing(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pins = Pins.of("sums", [Pin(version, "0" * 64) for version in VERSIONS])
    (tmp_path / "pins.toml").write_text(pins.encode())
    options = ["--pins", str(tmp_path / "pins.toml"), "--out", str(tmp_path / "suite")]

    assert main(["eval", "make-releases", "sums", *options]) == 1
    assert f"not {'0' * 64}" in capsys.readouterr().err
    assert main(["eval", "make-releases", "other", *options]) == 1
    assert "pins releases of sums" in capsys.readouterr().err
    assert not (tmp_path / "suite").exists()


def test_a_release_that_is_not_there_is_told(index: Path) -> None:
    with pytest.raises(AdapterUnavailable, match=r"pip got no wheel of sums 9\.9"):
        fetch("sums", Pin("9.9"))


@pytest.mark.skipif(
    "PYTEST_GITTRIX_NETWORK" not in os.environ, reason="PYTEST_GITTRIX_NETWORK is not set: nothing is fetched from an index"
)
def test_releases_of_attrs_are_what_was_pinned_and_end_as_foreseen(tmp_path: Path) -> None:
    suite = make_releases(Pins.read(ATTRS), tmp_path / "suite")

    done = ran(suite.suite.directory, tmp_path, "gold")

    assert len(suite.expected) == 10
    assert {one.outcome for one in suite.expected.values()} == {"pass", "conflict"}
    assert surprises(suite.expected, done.records) == []
