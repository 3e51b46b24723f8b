"""What is known of an agent that is a program: its words, the files among them, and what of the machine it sees where it is confined.

What a program reads is not seen. At ``guard`` and in a jail it can read no more than it is given: files among its words, the directories of
``--readable``, what is installed for this Python, and the system's programs. Each of these but the last counts by its content.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pytest_gittrix.confine.filesystem_layout import ROOT_LINKS, SYSTEM, toolchain
from pytest_gittrix.errors import Advice, InvalidInput
from pytest_gittrix.evals.agents.reads import SHARED_MEMORY, digest_of_file
from pytest_gittrix.evals.inputs.agent_code import search_path

UNCONFINED: Final = "A program that is not confined may read any file of this user."
"""Why it cannot be known what an agent that is a program depends on at ``off``."""

_INTERPRETER: Final = re.compile(r"(python|pypy)[0-9.]*|(ba|da|k|z)?sh|node|perl|ruby")
_TAKES_WORD: Final = frozenset({"-W", "-X"})
_RUNS_WORD: Final = re.compile(r"-[a-zA-Z]*[cme]|--(eval|print|require)")
_PATH: Final = re.compile(r"(?<![\w.])/[^\s:;,'\"()\[\]<>]+")
_NO_MODULE: Final = re.compile(r"No module named '([\w]+)")
_SYSTEM: Final = (SYSTEM, *ROOT_LINKS, "/etc", "/proc", "/dev")


def words_of(line: str) -> tuple[str, ...]:
    """Split a command line as a shell does, and give files their whole paths.

    A word with a slash that names a file means that file, and so does the script of an interpreter, as in ``python3 agent.py``.

    Raises:
        InvalidInput: it cannot be split, or is empty.
    """
    try:
        words = shlex.split(line)
    except ValueError as problem:
        raise InvalidInput(f"{line!r} is no command: {problem}.", fix="Quote it as for a shell.") from None
    if not words or any("\0" in word for word in words):
        raise InvalidInput(f"{line!r} is no command.", why="An agent is a program and its arguments.", fix="Give a program.")
    script = _script_among(words)
    return tuple(os.path.abspath(word) if ("/" in word or at == script) and os.path.isfile(word) else word for at, word in enumerate(words))


def _script_among(words: Sequence[str]) -> int | None:
    """Which word is the script of an interpreter; None if there is none, or the code is given in a word."""
    at = 0
    if words[0] == "env":
        at = next((number for number, word in enumerate(words) if number and "=" not in word), 0)
    if not _INTERPRETER.fullmatch(os.path.basename(words[at])):
        return None
    at += 1
    while at < len(words) and words[at].startswith("-"):
        if _RUNS_WORD.match(words[at]):
            return None
        at += 2 if words[at] in _TAKES_WORD else 1
    return at if at < len(words) else None


def is_file(word: str) -> bool:
    """Whether a word of a command is the whole path of a file."""
    return os.path.isabs(word) and os.path.isfile(word)


def programs_among(words: Sequence[str]) -> dict[str, str]:
    """The digests of the programs on the search path that words name, by name."""
    found = {}
    for word in words:
        file = shutil.which(word, path=search_path()) if word and "/" not in word and not word.startswith("-") else None
        if file is not None:
            found[word] = digest_of_file(file)
    return found


def is_shown(path: str | Path, shown: Iterable[Path]) -> bool:
    """Whether a confined program sees a path: it is the system's, or in what it is given."""
    name = os.path.abspath(path)
    system = () if name.startswith(SHARED_MEMORY) else _SYSTEM
    return any(name == one or name.startswith(f"{one}/") for one in (*system, *map(str, toolchain()), *map(str, shown)))


def require_in_sight(argv: Sequence[str], level: str, shown: Iterable[Path]) -> None:
    """See that a confined agent's program and its interpreter are where it sees them.

    Args:
        argv: the program and its arguments.
        level: the level of confinement.
        shown: what it is given to read.

    Raises:
        InvalidInput: one is not; the message names the directory to give.
    """
    file = shutil.which(argv[0], path=search_path())
    if level == "off" or file is None:
        return
    given = [*shown]
    needed = [*_links(file), *(link for one in _interpreters(file) for link in _links(one))]
    ends = [os.path.realpath(file), *needed[len([*_links(file)]) :]]
    missing = list(dict.fromkeys(str(_home_of(one)) for one in ends if not is_shown(one, given)))
    if missing:
        options = " ".join(f"--readable {shlex.quote(one)}" for one in missing)
        raise InvalidInput(
            f"{argv[0]} is in {', '.join(missing)}, which the agent does not see at {level}.",
            why="A confined agent sees the files among its words, the system's programs and this Python, and nothing else.",
            fix=Advice(f"Give readable={missing!r}.", f"Give {options}."),
            opt_out=Advice("Give confine='off'.", "Give --confine off."),
        )


def in_sight(argv: Sequence[str], path: str, shown: Iterable[Path]) -> list[str]:
    """A command whose program is named by a path that a confined program sees, if a link on the search path leads there from elsewhere."""
    file = None if "/" in argv[0] else shutil.which(argv[0], path=path)
    given = [*shown]
    if file is None or is_shown(file, given):
        return [*argv]
    seen = next((link for link in _links(file) if is_shown(link, given)), None)
    return [*argv] if seen is None else [seen, *argv[1:]]


def unseen(argv: Sequence[str], text: str, level: str, shown: Iterable[Path]) -> str:
    """What a confined program that failed speaks of and cannot see, with the option that shows it; empty if there is nothing.

    Args:
        argv: the program and its arguments.
        text: what it printed.
        level: the level of confinement.
        shown: what it is given to read.
    """
    if level == "off":
        return ""
    given = [*shown]
    for path in dict.fromkeys([*_spoken_of(text), *_modules_beside(argv, text)]):
        if not is_shown(path, given) and os.path.exists(path):
            return f"{path} is there, and the agent does not see it at {level}: give --readable {shlex.quote(str(_home_of(path)))}"
    return ""


def _spoken_of(text: str) -> Iterator[str]:
    for match in _PATH.finditer(text):
        yield match[0].rstrip(".")


def _modules_beside(argv: Sequence[str], text: str) -> Iterator[str]:
    """Where modules that were not found could be: next to the files among the words, or in the environment that one of those is of."""
    for name in _NO_MODULE.findall(text):
        for word in filter(is_file, argv):
            directory = os.path.dirname(word)
            yield from (os.path.join(directory, one) for one in (f"{name}.py", name))
            if (environment := _environment_of(word)) is not None:
                yield str(environment)


def _links(file: str) -> list[str]:
    """A file, and each place that it leads to as a link."""
    found = [os.path.abspath(file)]
    while os.path.islink(found[-1]) and len(found) < 40:
        found.append(os.path.normpath(os.path.join(os.path.dirname(found[-1]), os.readlink(found[-1]))))
    return found


def _interpreters(file: str) -> Iterator[str]:
    """The interpreter that a script names in its first line, by its whole path."""
    try:
        with open(file, "rb") as stream:
            first = stream.readline(500)
    except OSError:
        return
    words = first.removeprefix(b"#!").split()
    if first.startswith(b"#!") and words and os.path.isfile(words[0]):
        yield os.fsdecode(words[0])


def _environment_of(path: str | Path) -> Path | None:
    """The virtual environment that a file is of."""
    return next((one for one in Path(os.path.abspath(path)).parents if (one / "pyvenv.cfg").is_file()), None)


def _home_of(path: str | Path) -> Path:
    """The directory to show for a file: its environment, what its ``bin`` is in, or the directory that it is in."""
    own = Path(path)
    if own.is_dir():
        return own
    above = own.parent.parent
    return _environment_of(own) or (above if own.parent.name == "bin" and (above / "lib").is_dir() and above != Path.home() else own.parent)
