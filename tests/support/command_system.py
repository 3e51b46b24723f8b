"""What the tests of systems behind a command line share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pytest_gittrix.conformance.command_system import CommandEngine, CommandSystem
from pytest_gittrix.testing.repos.place import Place

ID = "sess_aaaaaaaaaaaa"


class Program:
    """A program of a few lines, a system that runs it, and what it was told."""

    def __init__(self, root: Path, place: Place) -> None:
        self.script = root / "program.py"
        self.log = root / "told"
        self.place = place

    def engine(self, body: str, **options: Any) -> CommandEngine:
        """An engine over a program that notes what it is told, then does as ``body`` says."""
        note = (
            "import json, os, sys\n"
            f"with open({str(self.log)!r}, 'a') as log:\n"
            "    stdin = sys.stdin.buffer.read().decode()\n"
            "    print(json.dumps({'argv': sys.argv[1:], 'stdin': stdin, 'cwd': os.getcwd(), 'env': dict(os.environ)}), file=log)\n"
        )
        self.script.write_text(note + body, encoding="utf-8")
        return CommandSystem([sys.executable, "-I", "-S", str(self.script)], **options).open(self.place)

    def answering(self, data: object, **options: Any) -> CommandEngine:
        """An engine over a program that has one answer to everything."""
        return self.engine(f"print({json.dumps({'ok': True, 'data': data})!r})", **options)

    def refusing(self, **error: object) -> CommandEngine:
        """An engine over a program that refuses everything."""
        return self.engine(f"print({json.dumps({'ok': False, 'error': error})!r}); sys.exit(1)")

    @property
    def told(self) -> list[dict[str, Any]]:
        """What each run of it was told, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @property
    def argv(self) -> list[str]:
        """The arguments of the last run."""
        return self.told[-1]["argv"]  # type: ignore[no-any-return]
