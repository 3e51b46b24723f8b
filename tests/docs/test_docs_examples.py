"""What the README and the docs show is run as shown. ``tests/README.md`` tells how to mark a block.

The blocks run in other processes, with the plugin as an installed user has it: through its entry point.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gittrix import errors

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# file: (?P<name>test_\w+\.py)\n")
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


def _command(line: str) -> tuple[str, int]:
    said = EXITS.search(line)
    return (line[: said.start()], int(said["status"])) if said else (line, 0)


def blocks(text: str, name: str) -> Iterator[Block]:
    """The fenced blocks of a page, with the indentation of the fence taken off."""
    for found in FENCE.finditer(text):
        body = re.sub(rf"^{found['indent']}", "", found["body"], flags=re.MULTILINE)
        yield Block(f"{name}:{text.count(chr(10), 0, found.start()) + 1}", found["language"], body)


BLOCKS = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())]
TEST_FILES = [block for block in BLOCKS if block.file]
CONSOLES = [block for block in BLOCKS if block.commands]


@pytest.mark.parametrize("block", TEST_FILES, ids=lambda block: block.where)
def test_a_test_file_shown_passes(block: Block, pytester: pytest.Pytester) -> None:
    assert block.file
    (pytester.path / block.file).write_text(block.body, encoding="utf-8")
    for other in BLOCKS:
        if other.page == block.page and other.beside:
            file = pytester.path / other.beside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(other.body, encoding="utf-8")

    result = pytester.runpytest_subprocess("-p", "no:schemathesis", timeout=120)

    assert result.ret == 0
    assert set(result.parseoutcomes()) == {"passed"}


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


def test_every_error_code_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.GittrixError)]

    assert [one.code for one in kinds if f"`{one.code}`" not in page and one is not errors.GittrixError] == []
