"""A small real agent: it rewrites Python files so that long whole numbers are readable (``86400`` becomes ``86_400``,
``4096`` becomes ``4_096``).

Run it in a workspace: ``python codemod.py [PATH ...]``, with files or directories. It prints each file it changed. What a program means
never changes: the syntax tree before and after is compared, and a file where it would differ is left alone.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

SHORTEST = 4
"""Numbers with fewer digits are readable as they are."""
LONG = re.compile(rf"(?<![\w.])\d{{{SHORTEST},}}(?![\w.])")
"""A whole number that is long. Most files have none, and need not be read as Python."""


def group(number: str) -> str:
    """A decimal number with its digits in threes; anything else as it was."""
    if not number.isdigit() or len(number) < SHORTEST:
        return number
    return f"{int(number):_}"


def rewrite(source: str) -> str:
    """A program with every long whole number grouped."""
    lines = source.splitlines(keepends=True)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.NUMBER]
    for token in reversed(tokens):
        row, start, end = token.start[0] - 1, token.start[1], token.end[1]
        lines[row] = lines[row][:start] + group(token.string) + lines[row][end:]
    return "".join(lines)


def modernise(path: Path) -> bool:
    """Rewrite one file; whether it changed."""
    before = path.read_text(encoding="utf-8")
    if not LONG.search(before):
        return False
    after = rewrite(before)
    if after == before or ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)):
        return False
    path.write_text(after, encoding="utf-8")
    return True


def main(arguments: list[str]) -> int:
    """Rewrite the files given and every Python file below the directories given; below the working directory if nothing is given."""
    given = [Path(name) for name in arguments] or [Path()]
    paths = [path for one in given for path in (sorted(one.rglob("*.py")) if one.is_dir() else [one])]
    changed = [path for path in paths if ".git" not in path.parts and modernise(path)]
    for path in changed:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
