"""The parser of the command line, made from the declarations of its verbs. Loads nothing but the standard library."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NoReturn

from pytest_gittrix import __version__
from pytest_gittrix.commands.declaration import Group, Later, Sections, Verb, declared
from pytest_gittrix.commands.output import put
from pytest_gittrix.commands.values import POSITIONAL_MARK, unmarked
from pytest_gittrix.errors import did_you_mean, nearest

_EXAMPLES: Final = (
    'gittrix session start --task "fix the bug"',
    "gittrix session diff sess_V1St",
    'gittrix promote sess_V1St -m "Fix the bug"',
)
_LIKENESS_OF_FLAGS: Final = 0.7
_OTHER_NAMES: Final = {"--ttl-idle": "--ttl", "--idle": "--ttl", "--eviction": "--ttl"}
"""What the library calls an option, and the flag for it."""


def _missing(names: str) -> str:
    flags = [name.rpartition("/")[2] for name in names.split(", ")]
    return f"{' and '.join(flags)} {'is' if len(flags) == 1 else 'are'} missing."


_SENTENCES: Final[Mapping[str, Callable[[str], str]]] = {
    r"unrecognized arguments: (-[^\s=]*).*": "There is no flag {}.".format,
    r"unrecognized arguments: (\S+).*": "{} is one argument too many.".format,
    r"argument (?:\S+/)?(\S+): expected one argument": "{} needs a value.".format,
    r"the following arguments are required: (.*)": _missing,
}
"""For what argparse says: the pattern of its sentence, and what is made of the group in it."""


class Misuse(Exception):
    """The command line cannot be parsed; the message says why."""

    def __init__(self, message: str, verb: Parser) -> None:
        super().__init__(message)
        self._verb = verb

    @property
    def usage(self) -> str:
        """How the verb is used, in short, and what shows all of it; a line each."""
        return self._verb.short_usage()


class Parser(argparse.ArgumentParser):
    """An argument parser that raises :class:`Misuse` and prints as all output is printed.

    Args:
        commands: the whole command line, of which it may be a part.
        line: the words of the line that will be parsed; only the verbs that they name get arguments. None gives them to all.
        on_terminal: whether it is of a command that only a terminal has.
        settings: what ``ArgumentParser`` takes.
    """

    def __init__(self, commands: Sections, line: frozenset[str] | None, *, on_terminal: bool = False, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._commands = commands
        self._line = line
        self._on_terminal = on_terminal
        self._intermixing = False
        self._verbs: Any = None
        self._sections: Sections = {}
        self._verb: Verb | None = None
        self.color = False  # Python 3.14 would colour what is shown as text
        self.register("type", None, unmarked)

    def add_verbs(self, metavar: str, sections: Sections) -> None:
        """Add commands, in the order and under the headings of the help.

        Args:
            metavar: what a command is called in the usage.
            sections: the commands.
        """
        self._sections = sections
        make: Any = self._below  # typeshed knows classes alone
        self._verbs = self.add_subparsers(title=f"{metavar.lower()}s", metavar=metavar, required=True, parser_class=make)
        for entry in chain.from_iterable(sections.values()):
            self._verbs.add_parser(entry.name, aliases=entry.aliases, help=entry.what, entry=entry)

    def _below(self, *, entry: Verb | Group | Later, **settings: Any) -> Parser | _Unnamed:
        """The parser of a command, if the line names it."""
        if self._line is not None and self._line.isdisjoint((entry.name, *entry.aliases)):
            return _Unnamed()
        found = declared(entry)
        description = f"{found.what[0].upper()}{found.what[1:]}."
        on_terminal = self._on_terminal or isinstance(entry, Later)
        made = Parser(self._commands, self._line, on_terminal=on_terminal, parents=[_common()], description=description, **settings)
        if isinstance(found, Group):
            made.add_verbs("VERB", found.sections)
        else:
            made._declare(found)
        return made

    def _declare(self, verb: Verb) -> None:
        """Take the arguments of a verb."""
        self._verb = verb
        self.epilog = _epilog(verb.examples)
        groups: dict[str, Any] = {"": self}
        for one in verb.arguments:
            name = one.group or one.excludes
            if name not in groups:
                groups[name] = self.add_argument_group(name) if one.group else self.add_mutually_exclusive_group()
            groups[name].add_argument(*one.names, **one.settings)
        for flag, one in self._by_place(verb):
            place, choices = f"{flag}_by_place", one.settings.get("choices")
            self.add_argument(place, nargs="?", metavar=flag.upper(), help=f"as --{flag}", choices=choices)
        self.set_defaults(**verb.defaults, run=verb.run, verb=verb, misuse=self.error)
        if self._on_terminal or verb.terminal_only:
            self.set_defaults(direct=True)

    def _settle(self, verb: Verb, options: argparse.Namespace) -> None:
        """Take the values that were given by place for those of flags; a value given twice is misuse."""
        for flag, one in self._by_place(verb):
            given = getattr(options, f"{flag}_by_place")
            delattr(options, f"{flag}_by_place")
            if given is not None and getattr(options, flag) is not None:
                self.error(f"{flag.upper()} is given twice, by place and as --{flag}")
            if given is not None:
                setattr(options, flag, given)
            if one.needed and getattr(options, flag) is None:
                self.error(f"the following arguments are required: --{flag}")

    @staticmethod
    def _by_place(verb: Verb) -> Iterator[tuple[str, Any]]:
        return ((one.names[-1].removeprefix("--"), one) for one in verb.arguments if one.by_place)

    def format_help(self) -> str:
        """The help, with the verbs in their sections."""
        if self._sections and self._subparsers is not None:
            listed = {verb.dest: verb for verb in self._verbs._choices_actions}
            for title, entries in self._sections.items():
                self.add_argument_group(title)._group_actions.extend(listed[entry.name] for entry in entries)
            self._subparsers._group_actions.clear()
            self._sections = {}
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse flags and positional arguments in any order.

        argparse's own way takes optional positional arguments only before the first flag. Its intermixed way forgets a ``--`` before all
        of them, so the arguments behind ``--`` are marked, and no longer look like flags.
        """
        if self._intermixing:
            return super().parse_known_args(args, namespace)
        self._refuse_unknown_flags(args)
        if self._verbs is not None and not args:
            self.print_help()
            self.exit()
        if self._verbs is not None:
            return super().parse_known_args(args, namespace)
        self._intermixing = True
        try:
            parsed, left_over = self.parse_known_intermixed_args(_marked(args), namespace)
        finally:
            self._intermixing = False
        if left_over:
            self.error(f"unrecognized arguments: {' '.join(left_over)}")
        if self._verb is not None:
            self._settle(self._verb, parsed)
        return parsed, []

    def error(self, message: str) -> NoReturn:
        """Raise Misuse, with this verb's usage, and a sentence of this package's in the place of argparse's."""
        for pattern, worded in _SENTENCES.items():
            if match := re.fullmatch(pattern, message):
                message = worded(match[1])
                break
        raise Misuse(message.replace(POSITIONAL_MARK, ""), self)

    def short_usage(self) -> str:
        """The usage line without the flags that may be left out, and below it the command for the whole help."""
        usage = self._get_formatter()
        usage._prog = f"{self.prog} [FLAGS]"
        usage.add_usage(None, [action for action in self._actions if action.required or not action.option_strings], [])
        return f"{usage.format_help().strip()}\n`{self.prog} --help` shows all of it."

    def _refuse_unknown_flags(self, args: Sequence[str]) -> None:
        """argparse finds an unknown flag last, after everything that seems to be missing because of it."""
        flags = self._option_string_actions
        for argument in args[: _dashes(args)]:
            if self._verbs is not None and not argument.startswith("-"):
                return  # what follows is the verb's
            flag = argument.partition("=")[0]
            if flag.startswith("--") and " " not in argument and flag not in flags:
                known = {one.removeprefix("--"): one for one in flags if one.startswith("--")}
                word = _OTHER_NAMES.get(flag, flag).removeprefix("--")
                near = nearest(word, known, _LIKENESS_OF_FLAGS)
                self.error(f"There is no flag {flag}.{f'{chr(10)}Did you mean {known[near]}?' if near is not None else ''}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is none of the choices, with the one that was probably meant, and all others on a line of their own."""
        if action.choices is None or value in action.choices:
            return
        word = str(value)
        if action is self._verbs:
            verbs = [verb.dest for verb in action._choices_actions]
            more = self._meant(word, verbs) or f"There are: {', '.join(verbs)}."
            self.error(f"There is no {action.metavar.lower()} {word!r}.\n{more}")
        choices = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(action, f"invalid choice: {word!r}\n{did_you_mean(word, choices)}Choose from: {', '.join(choices)}.")

    def _meant(self, word: str, verbs: Iterable[str]) -> str:
        """The question for the verb that was probably meant, here or of another command."""
        here, all_verbs = (
            nearest(word, verbs),
            dict(reversed([*_runnable(self._commands, "gittrix")])),
        )  # of two verbs of one name, the first
        there = nearest(word, all_verbs)
        if there is not None and (here is None or there == word):
            return f"Did you mean `{all_verbs[there]}`?"
        return f"Did you mean {here}?" if here is not None else ""

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002  (help and version go to standard output)
        if message:
            put(message.encode())


class _Unnamed:
    """Stands for the parser of a command that the line does not name."""

    def _check_help(self, action: argparse.Action) -> None:
        """Accept the command's line in the help, which argparse has checked from Python 3.14 on."""


def parser(commands: Sections, line: Iterable[str] | None = None) -> Parser:
    """Make the parser of a command line. Parsing sets ``run``, the command, ``verb``, its declaration, and an attribute for each argument.

    Args:
        commands: the commands, by the headings of the help.
        line: the words that will be parsed. Only the verbs among them get their arguments, because those of all verbs take several times
            as long as a command does; by default all do.

    Returns:
        A parser whose ``parse_args`` raises Misuse.
    """
    root = Parser(
        commands,
        None if line is None else frozenset(line),
        prog="gittrix",
        description="Sessions of coding agents on real git: start, look, promote.",
        epilog=_epilog(_EXAMPLES),
        parents=[_common()],
    )
    root.add_argument("--version", action="version", version=f"gittrix {__version__}")
    root.set_defaults(json=False, store=None, direct=False)
    root.add_verbs("COMMAND", commands)
    return root


def _common() -> argparse.ArgumentParser:
    """The flags that may stand anywhere; their defaults must not override a flag that stood before the verb."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("-j", "--json", action="store_true", help="answer with one JSON object")
    common.add_argument("--store", metavar="PATH", help="where sessions are kept; by default sessions in GITTRIX_HOME or ~/.gittrix")
    common.add_argument("--no-daemon", dest="direct", action="store_true", help="work on the store directly, even if a daemon runs")
    return common


def _epilog(examples: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  {example}" for example in examples)])


def _marked(arguments: Sequence[str]) -> list[str]:
    start = _dashes(arguments) + 1
    return [*arguments[:start], *(POSITIONAL_MARK + argument for argument in arguments[start:])]


def _dashes(arguments: Sequence[str]) -> int:
    """The place of the ``--`` among arguments; behind them all if there is none."""
    return [*arguments, "--"].index("--")


def _runnable(commands: Sections, before: str) -> Iterator[tuple[str, str]]:
    """Each word that runs a command, with the whole of what is typed for it."""
    for entry in map(declared, chain.from_iterable(commands.values())):
        if isinstance(entry, Group):
            yield from _runnable(entry.sections, f"{before} {entry.name}")
        else:
            yield entry.name, f"{before} {entry.name}"
