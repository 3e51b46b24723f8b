"""Suites are read strictly: what is wrong is told with file and key, and a case is what it holds."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.evals import case, suite, write

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.case_repo import contents_of
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.git.environment import hermetic_env, run_git


def test_a_suite_is_its_cases_by_id_with_the_defaults(tmp_path: Path) -> None:
    place = suite(tmp_path, "b", "a")
    write(
        place,
        {"suite.toml": 'schema = 1\nname = "two"\nclock_start = 2031-05-06T07:08:09Z\n[defaults]\ntimeout = "90s"\nconfine = "off"\n'},
    )

    found = Suite.load(place)

    assert (found.name, found.confine, found.clock_start) == ("two", "off", datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC))
    assert [one.id for one in found.cases] == ["a", "b"]
    assert {one.timeout_ms for one in found.cases} == {90_000}
    assert found.case("a").task == "Make the version 2."
    assert Suite.load(place / "suite.toml") == found


def test_a_case_can_have_its_task_in_a_file_of_its_own_and_other_limits(tmp_path: Path) -> None:
    place = suite(tmp_path, more='[limits]\ntimeout = "500ms"\noutput = "2MB"\n') / "cases" / "one"
    text = (place / "case.toml").read_text().replace('task = "Make the version 2."\n', "")
    write(place, {"case.toml": text, "task.md": "\n# Do\n\nit\n"})

    found = Suite.load(tmp_path / "suite").cases[0]

    assert (found.task, found.timeout_ms, found.output) == ("# Do\n\nit", 500, 2_000_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 2\n", "schema: 2 is not 1"),
        ("", "schema: must be given"),
        ("schema = 1\nspeed = 3\n", "speed: no such key; there are: agent, clock_start, defaults, name, schema"),
        ("schema = 1\n[defaults]\nworkers = 3\n", "defaults.workers: no such key"),
        ('schema = 1\n[defaults]\ntimeout = "soon"\n', "defaults.timeout: 'soon' is not a time such as"),
        ('schema = 1\nclock_start = "yesterday"\n', "clock_start: 'yesterday' is"),
        ('schema = 1\nname = "a/b"\n', "'a/b' is not a valid case id"),
        ("schema = [\n", "is not TOML"),
        ("schema = 1\nclock_start = 2031-05-06\n", "clock_start: "),
        ("schema = 1\nclock_start = 1969-12-31T23:59:59Z\n", "clock_start: "),
        ("schema = true\n", "schema: Input should be a valid integer, not True"),
        (
            'schema = 1\n[defaults]\nconfine = "airtight"\n',
            "'auto', 'off', 'guard' or 'jail', not 'airtight'",
        ),
    ],
)
def test_a_wrong_suite_file_is_told_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    place = suite(tmp_path)
    write(place, {"suite.toml": text})

    with pytest.raises(InvalidInput) as refused:
        Suite.load(place)

    assert message in refused.value.fact
    assert "suite.toml" in refused.value.fact
    assert refused.value.fix


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[check]\ncommand = []\n", "check.command: "),
        ('[check]\ncommand = "make test"\n', "check.command: Input should be a valid list, not 'make test'"),
        ('[check]\nfunction = "check.py"\n', "check.function: 'check.py' is not file.py:name"),
        ('[check]\nfunction = "../check.py:check"\n', "check.function: "),
        ('[check]\ntree = "nowhere"\n', "check.tree: 'nowhere' is not the path"),
        ('[check]\npytest = "/etc/passwd"\n', "check.pytest: '/etc/passwd'"),
        ("[check]\nlucky = true\n", "check.lucky: no such key"),
        ('[drift]\nat = "noon"\npatch = "check.py"\n', "drift.at: Input should be 'after-start' or 'before-promote', not 'noon'"),
        ('[drift]\nat = "after-start"\n', "drift: it needs files or patch"),
        ('gold = "../gold.patch"\n', "gold: '../gold.patch'"),
        ('id = "a b"\n', "'a b' is not a valid case id"),
        ("task = 3\n", "is not TOML"),
        ('workspace = "cloud"\n', "cloud"),
        ("history = -1\n", "-1"),
        ('on_overlap = "hope"\n', "hope"),
        ("[limits]\ntimeout = 3\n", "limits.timeout: 3 is not"),
        ('[limits]\noutput = "10 MB"\n', "limits.output: '10 MB' is not"),
        ('[review]\ndeny = "tests"\n', "review.deny: Input should be a valid list, not 'tests'"),
        (f'gold = "{"a" * 5000}"\n', "gold: 'aaaa"),
        ('gold = "loop"\n', "gold: 'loop'"),
        ('gold = "out"\n', "gold: 'out'"),
        ('[check]\ntree = "out-there"\n', "check.tree: 'out-there'"),
        ('[check]\nfunction = "out.py:check"\n', "check.function: 'out.py:check'"),
    ],
)
def test_a_wrong_case_is_told_with_file_and_key(tmp_path: Path, more: str, message: str) -> None:
    place = suite(tmp_path, more=more)
    for name, leads in {"loop": "loop", "out": tmp_path / "elsewhere", "out.py": tmp_path / "elsewhere", "out-there": tmp_path}.items():
        (place / "cases" / "one" / name).symlink_to(leads)
    write(tmp_path, {"elsewhere": "x"})

    with pytest.raises(InvalidInput) as refused:
        Suite.load(place)

    assert message in refused.value.fact


@pytest.mark.parametrize(
    ("durable", "message"),
    [
        ("", "no source"),
        ('files = "repo"\nbundle = "x"\n', "durable.bundle: 'x'"),
        ('files = "nowhere"\n', "durable.files: 'nowhere'"),
        ('path = "."\n', "durable: commit must be given with path"),
        ('path = "/nowhere"\ncommit = "main"\n', "is not a commit of"),
        ('path = "/nowhere"\ncommit = "--help"\n', "durable: commit is '--help'"),
        ('path = "loop"\ncommit = "main"\n', "is not a commit of"),
        ('files = "repo"\nref = "main"\n', "durable: ref must be left out, because files has none"),
        ('files = "repo"\ncommit = 3\n', "durable.commit: Input should be a valid string, not 3"),
        ('bundle = "case.toml"\nref = 3\n', "durable.ref: Input should be a valid string, not 3"),
    ],
)
def test_a_durable_that_is_not_there_is_told(tmp_path: Path, durable: str, message: str) -> None:
    file = suite(tmp_path) / "cases" / "one" / "case.toml"
    file.write_text(file.read_text().replace('files = "repo"\n', durable))
    (file.parent / "loop").symlink_to("loop")

    with pytest.raises(InvalidInput) as refused:
        Suite.load(tmp_path / "suite")

    assert message in refused.value.fact


def test_two_cases_cannot_have_ids_that_a_file_system_takes_for_one(tmp_path: Path) -> None:
    place = suite(tmp_path, "one")
    case(place, "two", more='id = "ONE"\n')

    with pytest.raises(InvalidInput, match="have the ids"):
        Suite.load(place)


@pytest.mark.parametrize("path", ["nowhere", "suite\0x"])
def test_a_suite_that_is_not_there_is_told(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInput):
        Suite.load(f"{tmp_path}/{path}")


def test_a_suite_without_cases_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no case"):
        Suite.load(write(tmp_path, {"suite.toml": "schema = 1\n"}))


def test_the_digest_of_a_case_changes_with_each_file_and_setting_and_not_with_its_place(tmp_path: Path) -> None:
    place = suite(tmp_path)
    one = place / "cases" / "one"
    first = Suite.load(place).cases[0].digest
    moved = Path(shutil.copytree(place, tmp_path / "elsewhere", symlinks=True))
    (one / "repo" / "__pycache__").mkdir()
    write(one, {"repo/__pycache__/app.pyc": b"\0", "repo/old.pyc": b"\0"})
    assert Suite.load(moved).cases[0].digest == Suite.load(place).cases[0].digest == first

    seen = {first}
    for change in (
        lambda: write(one, {"repo/app.py": "VERSION = 3\n"}),
        lambda: (one / "repo" / "app.py").chmod(0o755),
        lambda: (one / "repo" / "link").symlink_to("app.py"),
        lambda: write(one, {"check.py": "def check(result):\n    pass\n"}),
        lambda: write(one, {"case.toml": (one / "case.toml").read_text() + '[limits]\ntimeout = "7s"\n'}),
        lambda: write(place, {"suite.toml": 'schema = 1\n[defaults]\nworkspace = "copy"\n'}),
    ):
        change()
        seen.add(Suite.load(place).cases[0].digest)

    assert len(seen) == 7


def test_what_is_in_the_repository_of_a_case_is_in_its_digest(tmp_path: Path) -> None:
    """Files that tools leave behind are in neither, a link to a directory is in both."""
    place = suite(tmp_path)
    repo = place / "cases" / "one" / "repo"
    plain = Suite.load(place).cases[0].digest
    write(repo, {"old.pyc": b"x", ".pytest_cache/v": "x"})
    assert Suite.load(place).cases[0].digest == plain
    assert set(contents_of(repo)) == {"app.py", "README.md", "tests/test_app.py"}

    (repo / "link").symlink_to("tests")
    first = Suite.load(place).cases[0].digest
    (repo / "link").unlink()
    (repo / "link").symlink_to(".")
    assert len({plain, first, Suite.load(place).cases[0].digest}) == 3
    assert "link" in contents_of(repo)


def test_a_directory_without_a_case_is_no_reason_to_run_fewer(tmp_path: Path) -> None:
    place = suite(tmp_path)
    write(place / "cases", {"README.md": "", ".hidden/x": "", "__pycache__/x": ""})
    assert [case.id for case in Suite.load(place).cases] == ["one"]

    write(place / "cases", {"two/Case.toml": ""})
    with pytest.raises(InvalidInput, match=r"two/case\.toml cannot be read"):
        Suite.load(place)


def test_a_commit_of_a_repository_is_settled_to_its_full_id(tmp_path: Path) -> None:
    repository = write(tmp_path / "repository", {"app.py": "VERSION = 1\n"})
    environment = hermetic_env(tmp_path / "home")
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        run_git(["-C", str(repository), *arguments], env=environment)
    head = run_git(["-C", str(repository), "rev-parse", "HEAD"], env=environment).decode().strip()
    file = suite(tmp_path) / "cases" / "one" / "case.toml"
    file.write_text(file.read_text().replace('files = "repo"\n', 'path = "../../../repository"\ncommit = "HEAD"\n'))

    found = Suite.load(tmp_path / "suite").cases[0]

    assert (found.source.kind, found.source.ref) == ("path", head)
