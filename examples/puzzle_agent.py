"""An agent for the suite in ``fixtures/evals/puzzles``: a function that reads a few files, edits them, and says what it thinks it did.

It knows ten tasks by heart and is no better than many that do not: seven of its answers are right, one forgets a file, one mends the wrong
thing, and one touches a file that somebody else changes meanwhile.

    gittrix eval run fixtures/evals/puzzles --agent python:examples/puzzle_agent.py:work
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_gittrix.evals import Desk


def work(desk: Desk) -> None:
    """Do one task.

    Args:
        desk: with the task, the files, and somewhere to run programs.
    """
    desk.note("user", desk.task.strip())
    said = ANSWERS[desk.case](desk)
    desk.run(["git", "diff", "--stat"])
    desk.note("assistant", said)


def edit(desk: Desk, path: str, *changes: tuple[str, str]) -> None:
    """Replace texts in a file; each must be there.

    Args:
        desk: whose file.
        path: of it.
        changes: what is there, and what shall be.
    """
    text = desk.read(path).decode()
    for old, new in changes:
        assert old in text, f"{path} has no {old!r}"
        text = text.replace(old, new)
    desk.write(path, text)


# Right -----------------------------------------------------------------------------------------------------------------------------


def add_a_flag(desk: Desk) -> str:
    """A flag goes through two modules, and into the README."""
    edit(
        desk,
        "tally/__main__.py",
        ("    options = ", '    parser.add_argument("--reverse", action="store_true", help="the rarest word first")\n    options = '),
        ('encoding="utf-8"))', 'encoding="utf-8"), reverse=options.reverse)'),
    )
    edit(
        desk,
        "tally/count.py",
        ("counted(text: str)", "counted(text: str, *, reverse: bool = False)"),
        ("the most frequent first;", "the most frequent first, or last;"),
        ("key=lambda item: (-item[1], item[0])", "key=lambda item: (item[1] if reverse else -item[1], item[0])"),
    )
    edit(desk, "README.md", ("tally words.txt\n", "tally words.txt\n    python -m tally --reverse words.txt\n"))
    return "Added --reverse to the program and to counted(), and told of it in the README."


def break_import_circle(desk: Desk) -> str:
    """What is imported for its type alone need not be imported."""
    edit(
        desk,
        "tree/walk.py",
        ("from collections.abc", "from __future__ import annotations\n\nfrom collections.abc"),
        ("import Iterator\n\nfrom tree.node import Node\n", "import Iterator\nfrom typing import TYPE_CHECKING\n"),
        ("TYPE_CHECKING\n", "TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from tree.node import Node\n"),
    )
    return "walk.py needs Node for its annotations only, so it imports it only where types are checked."


def conflict_with_drift(desk: Desk) -> str:
    """Somebody else changes another place of the same file, and this case says that such work is merged."""
    edit(
        desk,
        "settings.py",
        ('"port": 8000,\n', '"port": 8000,\n    "timeout_s": 30,\n'),
        (
            "    return {**DEFAULTS, **given}\n",
            "    settings = {**DEFAULTS, **given}\n"
            '    if settings["timeout_s"] <= 0:\n'
            '        raise ValueError("timeout_s is not positive")\n'
            "    return settings\n",
        ),
    )
    return "Added timeout_s, which load() refuses if it is not positive."


def delete_dead_code(desk: Desk) -> str:
    """A file, a function and two lines of the README."""
    desk.delete("legacy.py")
    edit(
        desk,
        "shapes.py",
        ('def old_area(radius: float) -> float:\n    """Use circle()."""\n    return 3.14 * radius * radius\n\n\n', ""),
    )
    edit(desk, "README.md", ("\nlegacy.py and old_area() are there for version 1.\n", ""))
    return "Deleted legacy.py, old_area(), and the line about them."


def fix_off_by_one(desk: Desk) -> str:
    """One bound was wrong."""
    edit(desk, "paging.py", ("range(0, len(items) - size + 1, size)", "range(0, len(items), size)"))
    return "pages() stopped before a last page that was not full."


def rename_across_modules(desk: Desk) -> str:
    """A class in six files, and the module it is in."""
    for path in ("README.md", "shop/__init__.py", "shop/receipt.py", "shop/till.py", "shop/cart.py"):
        edit(desk, path, ("Cart", "Basket"))
    edit(desk, "shop/__init__.py", ("shop.cart", "shop.basket"))
    edit(desk, "shop/receipt.py", ("import cart", "import basket"))
    edit(desk, "shop/till.py", ("shop.cart", "shop.basket"))
    desk.write("shop/basket.py", desk.read("shop/cart.py"))
    desk.delete("shop/cart.py")
    return "Cart is Basket everywhere, and so is its module."


def unique_in_one_pass(desk: Desk) -> str:
    """Dictionaries keep the order in which keys came."""
    text = desk.read("items.py").decode()
    desk.write("items.py", text.partition("    found: list")[0] + "    return list(dict.fromkeys(items))\n")
    return "A dictionary keeps the first of equal keys, in order."


# Wrong -----------------------------------------------------------------------------------------------------------------------------


def bump_version(desk: Desk) -> str:
    """The version is in two files, and it looks in one."""
    edit(desk, "pyproject.toml", ("1.2.4", "1.3.0"))
    edit(desk, "CHANGELOG.md", ("## Unreleased\n", "## Unreleased\n\n## 1.3.0\n"))
    return "Released 1.3.0."


def quote_file_names(desk: Desk) -> str:
    """It was told to do without a shell, and quotes for one; a name that begins with a dash is still an option."""
    edit(desk, "backup.py", ("import subprocess\n", "import shlex\nimport subprocess\n"), ("' '.join(names)", "shlex.join(names)"))
    return "File names are quoted now."


def compare_aware_times(desk: Desk) -> str:
    """Right, but it writes to the changelog too, as somebody else does meanwhile."""
    edit(
        desk,
        "log.py",
        ("import Iterable\n", "import Iterable\nfrom datetime import datetime\n"),
        (
            "    return max(stamps)\n",
            "    return max(stamps, key=_instant)\n\n\n"
            "def _instant(stamp: str) -> datetime:\n"
            "    found = datetime.fromisoformat(stamp)\n"
            "    if found.tzinfo is None:\n"
            '        raise ValueError(f"{stamp} has no time zone")\n'
            "    return found\n",
        ),
    )
    edit(desk, "CHANGELOG.md", ("# Changes\n\n", "# Changes\n\n- Timestamps are compared as instants.\n"))
    return "latest() compares instants and refuses what has no time zone; noted in the changelog."


ANSWERS: dict[str, Callable[[Desk], str]] = {
    "add-a-flag": add_a_flag,
    "break-import-circle": break_import_circle,
    "bump-version": bump_version,
    "compare-aware-times": compare_aware_times,
    "conflict-with-drift": conflict_with_drift,
    "delete-dead-code": delete_dead_code,
    "fix-off-by-one": fix_off_by_one,
    "quote-file-names": quote_file_names,
    "rename-across-modules": rename_across_modules,
    "unique-in-one-pass": unique_in_one_pass,
}
