"""Trials of results that cheat. No cheat runs where it could change a file that is not the trial's.

A jail and the program's place in it are such a sandbox. For less confinement, this module runs by itself on a throwaway machine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from support.cheats import INSIDE, OUTSIDE
from support.hidden_tests import verdict_on_files
from support.new_cheats import MARK, NEW, Cheat
from support.throwaway import in_throwaway

from pytest_gittrix.confine.filesystem_layout import Place, toolchain
from pytest_gittrix.confine.levels import confinement
from pytest_gittrix.confine.runner import run

EARLIER = {name: Cheat(app, lures=name in INSIDE) for name, app in {**INSIDE, **OUTSIDE}.items()}
ALL = {**EARLIER, **NEW}
LURED = ", lured"
"""The end of the name of a cheat that is lured."""


def named(name: str) -> Cheat:
    """The cheat of a name, which may end in ``LURED``."""
    return ALL[name.removesuffix(LURED)].lured if name.endswith(LURED) else ALL[name]


def files_of(cheat: Cheat, root: Path, place: Path) -> None:
    """Write the result into its checkout."""
    for path, text in {**cheat.files, "app.py": cheat.app, MARK: ""}.items():
        file, text = place / path, text.replace("{root}", str(root))
        file.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            file.symlink_to(text[2:])
        else:
            file.write_text(text)


def verdict(cheat: Cheat, root: Path, level: str) -> dict[str, Any]:
    """The verdict on a cheat, at a level at which this process may run it: why it does not pass, and what judged its tests."""
    found = verdict_on_files(lambda place: files_of(cheat, root, place), root, level, cheat.tests, cheat.support)
    return {"wrong": found.wrong, "judges": sorted({*found.judges.values()}), "failed": sorted({*found.failed.values()})}


def believed(cheat: Cheat, root: Path) -> bool:
    """Whether pytest's exit status says that a result passes, where pytest runs in a jail with all of it."""
    checkout, home = root / "checkout", root / "home"
    checkout.mkdir()
    home.mkdir()
    files_of(cheat, Path("/workspace"), checkout)
    for path, text in {**cheat.support, "test_it.py": cheat.tests}.items():
        (checkout / path).write_text(text)
    (home / MARK).touch()
    variables = {"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    # Some of the cheats end the parent of the process that they are in.
    argv = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    place = Place(checkout, home, toolchain(), "/workspace")
    return run(argv, place, confinement("jail"), environment=variables, timeout=60).code == 0


def verdicts(names: Collection[str], level: str, *, ordinary: bool) -> Mapping[str, dict[str, Any]]:
    """The verdicts on cheats, on a throwaway machine, as root or as an ordinary user."""
    request = json.dumps({"names": [*names], "level": level}).encode()
    done = in_throwaway([sys.executable, "-P", "-m", "support.cheat_trials"], stdin=request, ordinary=ordinary)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    """Give verdicts on a throwaway machine, which is asserted."""
    assert os.getcwd() == os.environ["HOME"] == "/tmp/own", "cheats run on a throwaway machine only"
    request = json.load(sys.stdin)
    found = {}
    for name in request["names"]:
        with tempfile.TemporaryDirectory(dir=os.getcwd()) as root:
            found[name] = verdict(named(name), Path(root), request["level"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
