"""An agent for the suite in ``fixtures/evals/puzzles``: a function that reads a few files, edits them, and says what it thinks it did.

It knows ten of the tasks by heart and is no better than many that do not: seven of its answers are right, one forgets a file, one mends the
wrong thing, and one touches a file that somebody else changes meanwhile. It does nothing about the other twenty.

    gittrix eval run fixtures/evals/puzzles --agent python:examples/puzzle_agent.py:work
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_gittrix.evals import Toolbox


def work(toolbox: Toolbox) -> None:
    """Do one task.

    Args:
        toolbox: with the task, the files, and somewhere to run programs.
    """
    toolbox.note("user", toolbox.task.strip())
    said = ANSWERS.get(toolbox.case, does_not_know)(toolbox)
    toolbox.run(["git", "diff", "--stat"])
    toolbox.note("assistant", said)


def edit(toolbox: Toolbox, path: str, *changes: tuple[str, str]) -> None:
    """Replace texts in a file; each must be there.

    Args:
        toolbox: whose file.
        path: of it.
        changes: the old text, and the new one.
    """
    text = toolbox.read(path).decode()
    for old, new in changes:
        assert old in text, f"{path} has no {old!r}"
        text = text.replace(old, new)
    toolbox.write(path, text)


# Right -----------------------------------------------------------------------------------------------------------------------------


def add_a_flag(toolbox: Toolbox) -> str:
    """A flag goes through two modules, and into the README."""
    edit(
        toolbox,
        "tally/__main__.py",
        ("    options = ", '    parser.add_argument("--reverse", action="store_true", help="the rarest word first")\n    options = '),
        ('encoding="utf-8"))', 'encoding="utf-8"), reverse=options.reverse)'),
    )
    edit(
        toolbox,
        "tally/count.py",
        ("counted(text: str)", "counted(text: str, *, reverse: bool = False)"),
        ("the most frequent first;", "the most frequent first, or last;"),
        ("key=lambda item: (-item[1], item[0])", "key=lambda item: (item[1] if reverse else -item[1], item[0])"),
    )
    edit(toolbox, "README.md", ("tally words.txt\n", "tally words.txt\n    python -m tally --reverse words.txt\n"))
    return "Added --reverse to the program and to counted(), and documented it in the README."


def break_import_circle(toolbox: Toolbox) -> str:
    """What is imported for its type alone need not be imported."""
    edit(
        toolbox,
        "tree/walk.py",
        ("from collections.abc", "from __future__ import annotations\n\nfrom collections.abc"),
        ("import Iterator\n\nfrom tree.node import Node\n", "import Iterator\nfrom typing import TYPE_CHECKING\n"),
        ("TYPE_CHECKING\n", "TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from tree.node import Node\n"),
    )
    return "walk.py needs Node for its annotations only, so it imports it only where types are checked."


def conflict_with_drift(toolbox: Toolbox) -> str:
    """Somebody else changes another place of the same file, and this case says that such work is merged."""
    edit(
        toolbox,
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


def delete_dead_code(toolbox: Toolbox) -> str:
    """A file, a function and two lines of the README."""
    toolbox.delete("legacy.py")
    edit(
        toolbox,
        "shapes.py",
        ('def old_area(radius: float) -> float:\n    """Use circle()."""\n    return 3.14 * radius * radius\n\n\n', ""),
    )
    edit(toolbox, "README.md", ("\nlegacy.py and old_area() are there for version 1.\n", ""))
    return "Deleted legacy.py, old_area(), and the line about them."


def fix_off_by_one(toolbox: Toolbox) -> str:
    """One bound was wrong."""
    edit(toolbox, "paging.py", ("range(0, len(items) - size + 1, size)", "range(0, len(items), size)"))
    return "pages() stopped before a last page that was not full."


def rename_across_modules(toolbox: Toolbox) -> str:
    """A class in six files, and the module it is in."""
    for path in ("README.md", "shop/__init__.py", "shop/receipt.py", "shop/till.py", "shop/cart.py"):
        edit(toolbox, path, ("Cart", "Basket"))
    edit(toolbox, "shop/__init__.py", ("shop.cart", "shop.basket"))
    edit(toolbox, "shop/receipt.py", ("import cart", "import basket"))
    edit(toolbox, "shop/till.py", ("shop.cart", "shop.basket"))
    toolbox.write("shop/basket.py", toolbox.read("shop/cart.py"))
    toolbox.delete("shop/cart.py")
    return "Cart is Basket everywhere, and so is its module."


def unique_in_one_pass(toolbox: Toolbox) -> str:
    """Dictionaries keep the order in which keys came."""
    text = toolbox.read("items.py").decode()
    toolbox.write("items.py", text.partition("    found: list")[0] + "    return list(dict.fromkeys(items))\n")
    return "A dictionary keeps the first of equal keys, in order."


# Wrong -----------------------------------------------------------------------------------------------------------------------------


def bump_version(toolbox: Toolbox) -> str:
    """The version is in two files, and it looks in one."""
    edit(toolbox, "pyproject.toml", ("1.2.4", "1.3.0"))
    edit(toolbox, "CHANGELOG.md", ("## Unreleased\n", "## Unreleased\n\n## 1.3.0\n"))
    return "Released 1.3.0."


def quote_file_names(toolbox: Toolbox) -> str:
    """It was asked to do without a shell, and quotes for one; a name that begins with a dash is still an option."""
    edit(toolbox, "backup.py", ("import subprocess\n", "import shlex\nimport subprocess\n"), ("' '.join(names)", "shlex.join(names)"))
    return "File names are quoted now."


def compare_aware_times(toolbox: Toolbox) -> str:
    """Right, but it writes to the changelog too, as somebody else does meanwhile."""
    edit(
        toolbox,
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
    edit(toolbox, "CHANGELOG.md", ("# Changes\n\n", "# Changes\n\n- Timestamps are compared as instants.\n"))
    return "latest() compares instants and refuses what has no time zone; noted in the changelog."


def does_not_know(_toolbox: Toolbox) -> str:
    """A task that is new to it."""
    return "I have not learnt this one."


ANSWERS: dict[str, Callable[[Toolbox], str]] = {
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
