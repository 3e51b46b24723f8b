"""What the README and the docs show is run as shown. ``tests/README.md`` tells how to mark a block.

The blocks run in other processes, with the plugin as an installed user has it: through its entry point.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pytest

from pytest_gittrix import errors, more_fixtures

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# file: (?P<name>test_\w+\.py)(?P<continued>, continued)?\n")
BESIDE = re.compile(r"# file: (?P<name>\w[\w.-]*(/\w[\w.-]*)+)\n")
EXITS = re.compile(r"\s+# exits (?P<status>\d+)$")
SESSION_ID = re.compile(r"\bsess_[\w-]{12}(?![\w-])")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    where: str
    language: str
    body: str

    @property
    def file(self) -> str | None:
        """The test file the block is, if it says so in its first line."""
        named = FILE.match(self.body)
        return named["name"] if named and self.language == "python" else None

    @property
    def continues(self) -> bool:
        """Whether it goes on with a test file that the page began above."""
        named = FILE.match(self.body)
        return named is not None and named["continued"] is not None

    @property
    def beside(self) -> str | None:
        """The file in a directory that the block is, for the test files of its page."""
        named = BESIDE.match(self.body)
        return named["name"] if named else None

    @property
    def page(self) -> str:
        """Where it is shown."""
        return self.where.partition(":")[0]

    @property
    def commands(self) -> list[tuple[str, int]]:
        """What the block types and the exit status it expects, if it is a console block of ``gittrix``."""
        if self.language != "console" or not self.body.startswith("$ gittrix"):
            return []
        return [_command(line.removeprefix("$ ")) for line in self.body.splitlines() if line.startswith("$ ")]


@dataclass(frozen=True)
class Outcomes:
    """How the tests of a block ended, and what their run printed."""

    of_tests: Sequence[str]
    output: str


def _command(line: str) -> tuple[str, int]:
    said = EXITS.search(line)
    return (line[: said.start()], int(said["status"])) if said else (line, 0)


def blocks(text: str, name: str) -> Iterator[Block]:
    """The fenced blocks of a page, with the indentation of the fence taken off."""
    for found in FENCE.finditer(text):
        body = re.sub(rf"^{found['indent']}", "", found["body"], flags=re.MULTILINE)
        yield Block(f"{name}:{text.count(chr(10), 0, found.start()) + 1}", found["language"], body)


def whole_files(found: Sequence[Block]) -> list[Block]:
    """The test files among blocks, each with the blocks of its page that continue it."""
    files = [block for block in found if block.file and not block.continues]
    rest = [block for block in found if block.file and block.continues]
    joined = ["\n\n".join([one.body, *(more.body for more in rest if (more.page, more.file) == (one.page, one.file))]) for one in files]
    return [replace(one, body=body) for one, body in zip(files, joined, strict=True)]


BLOCKS = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())]
TEST_FILES = whole_files(BLOCKS)
CONSOLES = [block for block in BLOCKS if block.commands]


ASKS = 'pytest_plugins = ["pytest_gittrix.more_fixtures"]'
"""The line by which a project asks for the fixtures for special purposes."""


def files_beside(block: Block) -> list[Block]:
    """The files that are no tests, shown on the page of a block."""
    return [other for other in BLOCKS if other.page == block.page and other.beside]


def run_test_files(test_files: Sequence[Block], beside: Sequence[Block], root: Path) -> dict[str, Outcomes]:
    """Run test files in one run of pytest; gives how their tests ended, by where the files are shown."""
    folders = {}
    for number, block in enumerate(test_files):
        assert block.file
        folders[block.where] = root if beside else root / f"block_{number}"
        folders[block.where].mkdir(exist_ok=True)
        (folders[block.where] / block.file).write_text(block.body, encoding="utf-8")
    for other in beside:
        assert other.beside
        file = root / other.beside
        file.parent.mkdir(parents=True, exist_ok=True)
        # The first line of a file of syrupy has to be its version.
        file.write_text(other.body.partition("\n")[2] if file.suffix == ".ambr" else other.body, encoding="utf-8")
    junit = root / "junit.xml"
    others = [flag for plugin in ("schemathesis", "randomly", "anyio") for flag in ("-p", f"no:{plugin}")]
    # The root conftest that these pages show. Here each block has a directory below the root.
    others += ["-p", "pytest_gittrix.more_fixtures"] if any(ASKS in (ROOT / block.page).read_text("utf-8") for block in test_files) else []
    command = [sys.executable, "-m", "pytest", *others, "--import-mode=importlib", f"--junitxml={junit}"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GITTRIX_"))}
    environment = {**inherited, "HOME": str(root), "PYTEST_DEBUG_TEMPROOT": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert junit.exists(), done.stdout + done.stderr
    ended: dict[str, list[str]] = defaultdict(list)
    for case in ET.parse(junit).iter("testcase"):
        folder = case.get("classname", "").partition(".")[0] or case.get("name", "").partition(".")[0]
        ended[folder].append(next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed"))
    shown = done.stdout[-20_000:]
    return {where: Outcomes([*chain(*ended.values())] if beside else ended[folder.name], shown) for where, folder in folders.items()}


@pytest.mark.parametrize("block", TEST_FILES, ids=lambda block: block.where)
def test_a_page_whose_tests_name_special_fixtures_shows_how_to_ask_for_them(block: Block) -> None:
    special = [name for name in vars(more_fixtures) if name.startswith("gittrix_") and re.search(rf"\b{name}\b", block.body)]

    assert not special or ASKS in (ROOT / block.page).read_text(encoding="utf-8")


def test_the_test_files_shown_pass(tmp_path: Path) -> None:
    alone = [block for block in TEST_FILES if not files_beside(block)]

    ended = run_test_files(alone, [], tmp_path)

    for block in alone:
        assert {*ended[block.where].of_tests} == {"passed"}, f"{block.where}\n{ended[block.where].output}"


# A file beside a test may configure pytest: then each test file has a directory, and a run, of its own.
@pytest.mark.parametrize("block", [block for block in TEST_FILES if files_beside(block)], ids=lambda block: block.where)
def test_a_test_file_shown_with_others_passes(block: Block, tmp_path: Path) -> None:
    ended = run_test_files([block], files_beside(block), tmp_path)[block.where]

    assert {*ended.of_tests} == {"passed"}, ended.output


@pytest.mark.parametrize("block", CONSOLES, ids=lambda block: block.where)
def test_a_command_shown_exits_as_shown(block: Block, tmp_path: Path) -> None:
    environment = user_environment(tmp_path)
    repository = user_repository(tmp_path, environment)
    shown = list(dict.fromkeys(SESSION_ID.findall(block.body)))
    real: dict[str, str] = {}

    for command, status in block.commands:
        typed = SESSION_ID.sub(lambda found: real.get(found.group(), found.group()), command)
        done = subprocess.run(typed, shell=True, cwd=repository, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, f"$ {typed}\n{done.stdout}{done.stderr}"
        for new in SESSION_ID.findall(done.stdout):
            if new not in real.values() and len(real) < len(shown):
                real[shown[len(real)]] = new


def user_environment(home: Path) -> Mapping[str, str]:
    """The environment of a person with an empty home, this virtualenv on PATH and no git configuration but the repository's."""
    return {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]),
        "HOME": str(home / "home"),
        "GITTRIX_HOME": str(home / "gittrix"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(home / "no-gitconfig"),
        "LC_ALL": "C.UTF-8",
    }


def user_repository(home: Path, environment: Mapping[str, str]) -> Path:
    """A repository as the console blocks find it: branch ``main``, one commit of ``app.py`` and ``README.md``, an identity."""
    repository = home / "project"
    repository.mkdir()
    (repository / "app.py").write_text("print('v1')\n", encoding="utf-8")
    (repository / "README.md").write_text("# A project\n", encoding="utf-8")
    for arguments in (
        ("init", "--quiet", "--initial-branch=main"),
        ("config", "user.name", "Ada"),
        ("config", "user.email", "ada@example.org"),
        ("add", "--all"),
        ("commit", "--quiet", "--message=first"),
    ):
        subprocess.run(["git", *arguments], cwd=repository, env=environment, timeout=60, check=True)
    return repository


def test_the_first_page_shows_a_test_and_the_command_line() -> None:
    assert [block.where for block in TEST_FILES if block.where.startswith("README.md:")]
    assert [block.where for block in CONSOLES if block.where.startswith("README.md:")]


def test_a_page_is_read_block_by_block() -> None:
    page = """\
Text.

```python
# file: test_it.py
x = 1
```

1. Item

    ```console
    $ gittrix session list
    nothing
    $ gittrix session read sess_aaaaaaaaaaaa app.py  # exits 1
    ```
"""
    first, second = blocks(page, "page.md")

    assert (first.where, first.file, first.body) == ("page.md:3", "test_it.py", "# file: test_it.py\nx = 1\n")
    assert second.where == "page.md:10"
    assert second.commands == [("gittrix session list", 0), ("gittrix session read sess_aaaaaaaaaaaa app.py", 1)]


def test_a_test_file_is_shown_in_parts() -> None:
    shown = [("test_a.py", "1"), ("test_b.py", "2"), ("test_a.py, continued", "3")]
    page = "".join(f"```python\n# file: {name}\nx = {value}\n```\n" for name, value in shown)

    assert [re.findall(r"x = (\d)", block.body) for block in whole_files([*blocks(page, "page.md")])] == [["1", "3"], ["2"]]


def test_the_front_door_is_eight_tests_in_eighty_lines() -> None:
    [block] = [block for block in TEST_FILES if block.page == "docs/test-your-agent.md"]

    lines = [line for line in block.body.splitlines() if line and not line.startswith("# file:")]
    assert block.body.count("\ndef test_") == 8
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80, "wider than a page of the site, which then hides the end of the line"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_keeps_sessions_in_a_checkout(page: Path) -> None:
    assert not re.search(r"GITTRIX_HOME=\"?(\$PWD|\$\(pwd\)|\.)/?[\w.]", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_says_how_to_install_before_there_is_a_release(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    extras = set(re.findall(r"pip install [\"']pytest-gittrix\[([\w-]+)\]", text))

    assert extras == set(re.findall(r"pip install [\"']\.\[([\w-]+)\]", text)) & extras
    assert not re.search(r"pip install pytest-gittrix\[", text), "the shell reads these brackets: quote them"


def test_every_error_code_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.GittrixError)]

    assert [one.code for one in kinds if f"`{one.code}`" not in page and one is not errors.GittrixError] == []
