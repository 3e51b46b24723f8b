"""Reads the help of a command line: its commands with what each line says of them, how one is typed, and its options."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

_FRAME: Final = " \t│|"
# A command of a list: a word at the beginning of an indented line, with other names for it, and what it does.
_LISTED: Final = re.compile(r"^(\s{1,8})([a-z][\w-]*)((?:, [a-z][\w-]*)*)(?: \(([a-z][\w, -]*)\))?(?:\s{2,}(\S.*))?$")
_BRACED: Final = re.compile(r"\{([a-z][\w,-]*)\}")
_OPTION: Final = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
_NAMES_A_START: Final = re.compile(r"base|source|from|ref|start|commit", re.IGNORECASE)
_IS_NO_NAME: Final = re.compile(r"\[?(options?|args|command|flags)\]?(\.\.\.)?", re.IGNORECASE)
_WORD: Final = re.compile(r"""\[[^\]]*\]|<[^>]*>|\{[^}]*\}|"[^"]*"|\S+""")


@dataclass(frozen=True)
class HelpLine:
    """A command that a help tells of.

    Attributes:
        typed: how it is typed after the tool, such as ``ws new``.
        names: its last word, and others for it.
        text: what the help says of it.
        follows: what the help has after it, such as ``[base-branch]``.
    """

    typed: str
    names: tuple[str, ...]
    text: str = ""
    follows: str = ""


def help_lines(text: str, tools: Collection[str]) -> list[HelpLine]:
    """The commands that a help tells of: those of its lists, with their texts, and those that it shows as they are typed.

    Args:
        text: the help.
        tools: the words that its examples begin with.
    """
    lines = [line.strip("│|").rstrip(_FRAME) for line in text.splitlines()]
    found = [*_shown(lines, tools), *_listed(lines)]
    known = {name for one in found for name in one.names}
    words = [word for braces in _BRACED.findall(text) for word in braces.split(",")]
    return found + [HelpLine(word, (word,)) for word in dict.fromkeys(words) if word not in known]


def _listed(lines: list[str]) -> Iterator[HelpLine]:
    for line in lines:
        if found := _LISTED.match(line):
            _, word, others, more, says = found.groups()
            yield HelpLine(word, (word, *re.findall(r"[a-z][\w-]*", f"{others} {more or ''}")), says or "")


def _shown(lines: list[str], tools: Collection[str]) -> Iterator[HelpLine]:
    """Lines such as ``tool ws new [base-branch]``, each with the deeper line below it or the comment behind it."""
    begins = re.compile(rf"^\s*(?:{'|'.join(map(re.escape, tools))})((?: [a-z][\w-]*)+)((?: +[^#\s].*?)?)(?:\s+#\s*(.*))?$")
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        found = begins.match(line)
        if found is None or "Example" in line:
            continue
        deeper = len(below) - len(below.lstrip()) > len(line) - len(line.lstrip())
        says = found[3] or (below.strip() if deeper and not below.lstrip().startswith(tuple(tools)) else "")
        typed = found[1].strip()
        yield HelpLine(typed, (typed.split()[-1],), says, found[2].strip())


def usage_of(text: str, typed: str) -> str | None:
    """What the usage of a command has after the command; None if the help is not one of this command."""
    found = re.search(r"^[\s│|]*usage:(.*?)(?:^[\s│|]*$|\Z)", text, re.IGNORECASE | re.MULTILINE | re.DOTALL)
    words = " ".join(found[1].split()) if found else ""
    last = typed.split()[-1]
    _, named, after = words.partition(f" {last} ")
    if named or words.endswith(f" {last}"):
        return after
    # One of the names of a command may be shown for another of them, with nothing before its options but two words.
    short = re.match(r"\S+ [a-z][\w-]*(?: |$)(?![a-z]\S* \[)(.*)", words)
    return short[1] if short and "COMMAND" not in words and not _BRACED.search(words) else None


def options_of(text: str) -> set[str]:
    """The long options that a help tells of."""
    return {*_OPTION.findall(text)}


def arguments(usage: str, *, named: bool = True) -> list[str]:
    """What a usage asks for, with placeholders: the name of a worktree, and where it starts or is; options only where they must be given.

    Args:
        usage: what the help has after the command.
        named: whether a first argument that may be left out is the name of a worktree too.
    """
    given: list[str] = []
    words = _WORD.findall(usage)
    for at, word in enumerate(words):
        bare, may_be_left_out = word.strip("[]<>{}\"'."), word.startswith("[")
        if not bare or _IS_NO_NAME.fullmatch(word) or "..." in word or (at and words[at - 1].startswith("-")):
            continue
        if bare.startswith("-"):
            if not may_be_left_out:
                given.append(f"{word} {_placeholder(bare)}")
        elif _NAMES_A_START.search(bare):
            given += [] if may_be_left_out else ["{base}"]
        elif "{name}" not in given:
            given += ["{name}"] if named or not may_be_left_out else []
        elif not may_be_left_out:
            given.append("../wt-{name}")
    return given


def _placeholder(option: str) -> str:
    return "{base}" if _NAMES_A_START.search(option) else "{path}" if "path" in option else "{name}"


def shown_arguments(follows: str) -> str:
    """The arguments of an example, with placeholders in the place of a name, of a branch, or of one of several words."""
    words = [found for found in follows.split("[")[0].split() if found]
    made = []
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        bare = word.strip("<>\"'")
        if word.startswith("-"):
            made.append(word)
        elif before in ("-s", "--source", "--from", "--base") or bare == "main":
            made.append("{base}")
        elif before.startswith("-") or word[0] in "<\"'":
            made.append(bare.split("|")[0] if "|" in bare else "{name}")
        elif word.isupper() or "-" in word:
            made.append("{name}")
        else:
            made.append(word)
    return " ".join(made)
