"""A program for the tests of systems that are driven by a command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pytest_gittrix.conformance.command_system import CommandEngine, CommandSystem
from pytest_gittrix.testing.repos.place import Place

ID = "sess_aaaaaaaaaaaa"


class Program:
    """A small program that records its runs, and a system that is driven by it."""

    def __init__(self, root: Path, place: Place) -> None:
        self.script = root / "program.py"
        self.log = root / "runs"
        self.place = place

    def engine(self, body: str, **options: Any) -> CommandEngine:
        """An engine of a program that records its arguments, standard input and environment, then runs ``body``."""
        preamble = (
            "import json, os, sys\n"
            f"with open({str(self.log)!r}, 'a') as log:\n"
            "    stdin = sys.stdin.buffer.read().decode()\n"
            "    print(json.dumps({'argv': sys.argv[1:], 'stdin': stdin, 'cwd': os.getcwd(), 'env': dict(os.environ)}), file=log)\n"
        )
        self.script.write_text(preamble + body, encoding="utf-8")
        return CommandSystem([sys.executable, "-I", "-S", str(self.script)], **options).open(self.place)

    def answering(self, data: object, **options: Any) -> CommandEngine:
        """An engine of a program that gives the same answer to every command."""
        return self.engine(f"print({json.dumps({'ok': True, 'data': data})!r})", **options)

    def refusing(self, **error: object) -> CommandEngine:
        """An engine of a program that refuses every command."""
        return self.engine(f"print({json.dumps({'ok': False, 'error': error})!r}); sys.exit(1)")

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The arguments, standard input, directory and environment of each run, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @property
    def argv(self) -> list[str]:
        """The arguments of the program in its last run."""
        return self.runs[-1]["argv"]  # type: ignore[no-any-return]
