"""The files that ``pytest --gittrix-init`` writes: what tests share, a first test, and a workflow of GitHub. It replaces none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

CONFTEST: Final = '''"""What the tests of this directory share."""

import pytest


@pytest.fixture(scope="session")
def gittrix_files():
    """The files of the repository that agents work on, by path; a test's own `@pytest.mark.gittrix(files=...)` wins."""
    return {"app.py": "v1\\n"}
'''
TEST: Final = '''"""Put your agent in the place of my_agent, and run pytest."""

import pytest

from pytest_gittrix import BaselineConflict


def my_agent(workspace):
    (workspace / "app.py").write_text("v2\\n")


def test_it_does_its_task(gittrix_agent):
    my_agent(gittrix_agent.workspace_path)
    assert gittrix_agent.touched_files() == ["app.py"]


def test_it_does_not_touch_the_repository(gittrix_agent, gittrix_durable):
    with gittrix_durable.unchanged():
        my_agent(gittrix_agent.workspace_path)


def test_a_colleagues_work_is_kept(gittrix_session, gittrix_rival):
    my_agent(gittrix_session.workspace_path)
    gittrix_rival.commit({"app.py": "hot fix\\n"})
    with pytest.raises(BaselineConflict):
        gittrix_session.promote()
'''
WORKFLOW: Final = """name: agent tests
on: [push, pull_request]
permissions:
  contents: read
jobs:
  test:
    runs-on: ubuntu-latest
    timeout-minutes: 15
{defaults}    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      # Add what your agent needs.
      - run: python -m pip install pytest-gittrix
      # Programs of agents are confined by namespaces, which Ubuntu keeps from programs without a profile.
      - run: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0
      - run: python -m pytest {tests} --gittrix-artifacts=artifacts
      # The world of each test that failed, and a page of it.
      - uses: actions/upload-artifact@v4
        if: failure()
        with:
          name: failed-worlds
          path: {artifacts}
"""


def first_files(root: Path, testpaths: Sequence[str] = ()) -> Mapping[Path, str]:
    """The contents of the files of a project, by path.

    Args:
        root: the root directory of its tests.
        testpaths: the directories in which pytest looks for tests; the first one is taken, and ``tests`` by default.
    """
    named = [path for path in testpaths if not any(sign in path for sign in "*?[") and not path.endswith(".py")]
    tests = Path(named[0] if named else "tests")
    top = next((one for one in (root, *root.parents) if (one / ".git").exists()), root)  # GitHub reads workflows at the top alone
    inner = root.relative_to(top)
    defaults = "" if top == root else f"    defaults:\n      run:\n        working-directory: {inner.as_posix()}\n"
    workflow = WORKFLOW.format(defaults=defaults, tests=tests.as_posix(), artifacts=(inner / "artifacts").as_posix())
    return {
        root / tests / "conftest.py": CONFTEST,
        root / tests / "test_my_agent.py": TEST,
        top / ".github" / "workflows" / "agent-tests.yml": workflow,
    }


def write_missing(files: Mapping[Path, str]) -> Iterator[str]:
    """Write those of some files that are not there, and say of each what became of it; the last line says what to do next.

    Raises:
        OSError: a file cannot be written.
    """
    written = 0
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            yield f"left as it is: {path}"
            continue
        written += 1
        yield f"wrote {path}"
    yield "Now run pytest, and put your agent into test_my_agent.py." if written else "Nothing was written: every file is there already."
