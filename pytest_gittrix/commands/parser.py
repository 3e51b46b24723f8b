"""The parser of the command line: its verbs, flags and values.

Verbs and flags are those of the TypeScript CLI, and more. Loads nothing but the standard library.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NoReturn, Self

from pytest_gittrix import __version__
from pytest_gittrix.commands import find_verbs, forge_options, lineage_verbs, log_verbs, member_verbs, orchestrator_verbs, session_verbs
from pytest_gittrix.commands.output import CommandResult, put
from pytest_gittrix.commands.values import POSITIONAL_MARK, duration, history, hunks, limit, names, unmarked
from pytest_gittrix.errors import did_you_mean, nearest

Run = Callable[[argparse.Namespace], CommandResult]

STATES = ("active", "promoted", "discarded", "expired")
STRATEGIES = ("auto", "commit", "branch", "patch", "pr")
WORKSPACES = ("clone", "lazy", "copy", "worktree", "overlay")
OUTCOMES = ("done", "crash", "killed")
ON_OVERLAP = ("refuse", "allow-identical", "merge")
ON_HAZARD = ("warn", "refuse", "allow")

COMMANDS: Final = {
    "sessions": ("session", "promote", "sweep", "recover"),
    "agents that stay": ("member", "serve", "mcp", "acp", "agent"),
    "tests": ("eval", "conform", "torture"),
    "worktrees": ("unfinished",),
}
VERBS_OF_SESSIONS: Final = {
    "work": ("start", "read", "write", "delete", "commit", "record", "extend", "relocate"),
    "look": ("list", "find", "info", "list-files", "touched", "diff", "log", "history"),
    "end (to promote: gittrix promote)": ("discard", "evict"),
    "lineage": ("handoff", "fork", "chain", "tree", "identify"),
    "other systems (Gas Town, Pixir)": ("show", "export"),
    "other systems (BotMinter: sessions of gittrix member)": ("inspect", "finalize", "cleanup"),
    "other systems (agent-orchestrator)": ("spawn", "restore", "kill", "retire", "send", "claim-pr", "report"),
}

_EXAMPLES = {
    "": ['gittrix session start --task "fix the bug"', "gittrix session diff sess_V1St", 'gittrix promote sess_V1St -m "Fix the bug"'],
    "start": [
        'gittrix session start --task "fix the bug" --ttl 4h',
        'gittrix session start -t "fix the bug" --agent gastown/polecats/Toast --work-unit td-7',
        'id=$(gittrix session start -t "fix the bug" | head -1)',
        'gittrix session start -t "try it" -d ~/project -b main --workspace lazy --json',
    ],
    "info": ["gittrix session info sess_V1St", "gittrix session info sess_V1St --events --json"],
    "read": ["gittrix session read sess_V1St app.py > app.py"],
    "write": ["gittrix session write sess_V1St app.py < new.py"],
    "delete": ["gittrix session delete sess_V1St old.py"],
    "list-files": ["gittrix session list-files sess_V1St", "gittrix session list-files sess_V1St src"],
    "touched": ["gittrix session touched sess_V1St"],
    "diff": ["gittrix session diff sess_V1St | git apply --check", "gittrix session diff sess_V1St app.py --hunks"],
    "log": ["gittrix session log sess_V1St", "gittrix session log sess_V1St --timeline"],
    "commit": ['gittrix session commit sess_V1St -m "First half"'],
    "discard": [
        "gittrix session discard --outcome done",
        "gittrix session discard sess_V1St",
        "gittrix session discard sess_V1St --outcome crash",
    ],
    "extend": ["gittrix session extend sess_V1St 2h"],
    "relocate": ["gittrix session relocate sess_V1St ~/projects/app"],
    "evict": ["gittrix session evict sess_V1St", "gittrix session evict sess_V1St --state discarded"],
    "promote": [
        "gittrix promote sess_V1St",
        'gittrix promote sess_V1St --files app.py,README.md -m "Fix the bug"',
        'gittrix promote sess_V1St --hunks "app.py:1,3" --on-overlap merge',
        "gittrix promote sess_V1St --strategy patch > work.patch",
        "gittrix promote sess_V1St --files app.py --keep",
        "gittrix promote sess_V1St --refuse-secrets --allow-secret tests/key.pem",
        'gittrix promote sess_V1St --strategy pr --forge-repo acme/app --title "Fix the bug" --draft',
    ],
    "sweep": ["gittrix sweep"],
    "recover": ["gittrix recover --json"],
    **find_verbs.EXAMPLES,
    **lineage_verbs.EXAMPLES,
    **log_verbs.EXAMPLES,
    **member_verbs.EXAMPLES,
    **orchestrator_verbs.EXAMPLES,
}


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
    """An argument parser that raises :class:`Misuse` and prints as all output is printed."""

    def __init__(self, line: frozenset[str] | None = None, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._line = line
        self._intermixing = False
        self._verbs: Any = None
        self._groups: Mapping[str, Sequence[str]] = {}
        self.everything: Callable[[], Parser] = lambda: self
        self.color = False  # Python 3.14 would colour what is shown as text
        self.register("type", None, unmarked)

    def add_verbs(self, metavar: str, groups: Mapping[str, Sequence[str]]) -> Any:
        """Add subparsers: each is a Parser if the line that will be parsed names its verb, and takes declarations in vain if not.

        Args:
            metavar: what a verb is called in the usage.
            groups: the verbs in the order of the help, by the title they stand under; without any, they stand under one.
        """
        make: Any = partial(_verb_parser, self._line, self.everything)  # typeshed knows classes alone
        self._groups = groups
        self._verbs = self.add_subparsers(title=f"{metavar.lower()}s", metavar=metavar, required=True, parser_class=make)
        return self._verbs

    def format_help(self) -> str:
        """The help, with the verbs in their groups."""
        if self._groups and self._subparsers is not None:
            listed = {verb.dest: verb for verb in self._verbs._choices_actions}
            for title, verbs in self._groups.items():
                self.add_argument_group(title)._group_actions.extend(listed.pop(verb) for verb in verbs if verb in listed)
            if listed:
                self.add_argument_group("of other packages")._group_actions.extend(listed.values())
            self._subparsers._group_actions.clear()
            self._groups = {}
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
        here, all_verbs = nearest(word, verbs), dict(reversed([*_runnable(self.everything())]))  # of two verbs of one name, the first
        there = nearest(word, all_verbs)
        if there is not None and (here is None or there == word):
            return f"Did you mean `{all_verbs[there]}`?"
        return f"Did you mean {here}?" if here is not None else ""

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002  (help and version go to standard output)
        if message:
            put(message.encode())


class _Unused:
    """The parser of a verb that the command line does not name: it takes every declaration, and keeps none."""

    def __getattr__(self, _name: str) -> Self:
        return self

    def __call__(self, *_arguments: object, **_settings: object) -> Self:
        return self

    def __getitem__(self, _key: object) -> Self:
        return self


def _verb_parser(line: frozenset[str] | None, everything: Callable[[], Parser], *, words: tuple[str, ...], **settings: Any) -> Any:
    if line is not None and line.isdisjoint(words):
        return _Unused()
    made = Parser(line, parents=[_common()], **settings)
    made.everything = everything
    return made


def parser(add_more: Callable[[Any], None] | None = None, line: Iterable[str] | None = None) -> Parser:
    """The command line: every verb of sessions and members. Parsing sets ``run``, the command, and an attribute for each flag.

    Args:
        add_more: adds further commands, by ``add_command`` and ``add_group``, to the subparsers that it is given.
        line: the arguments that will be parsed. Only the flags of verbs that stand among them are made, because those of all verbs
            take several times as long as a command does; by default all are made.

    Returns:
        A parser whose ``parse_args`` raises Misuse.
    """
    root = Parser(
        prog="gittrix",
        description="Sessions of coding agents on real git: start, look, promote.",
        epilog=_epilog(_EXAMPLES[""]),
        parents=[_common()],
        line=None if line is None else frozenset(line),
    )
    root.everything = lambda: parser(add_more)
    root.add_argument("--version", action="version", version=f"gittrix {__version__}")
    root.set_defaults(json=False, store=None, direct=False)
    areas = root.add_verbs("COMMAND", COMMANDS)
    _session_verbs(add_group(areas, "session", "start, look into, change and end sessions", "s", "sessions", groups=VERBS_OF_SESSIONS))
    _promote(add_command(areas, "promote", session_verbs.promote, "make one commit of a session's work on durable", "p", of_session=True))
    add_command(areas, "sweep", session_verbs.sweep, "evict every session past its time")
    add_command(areas, "recover", session_verbs.recover, "put sessions in order after a kill")
    _member_verbs(areas)
    if add_more is not None:
        add_more(areas)
    return root


def _member_verbs(areas: Any) -> None:
    verbs = add_group(areas, "member", "start, stop and look at the agents of a team's members")
    member_verbs.arguments(
        lambda name, *rest, **settings: add_command(verbs, name, *rest, examples=_EXAMPLES[f"member {name}"], **settings)
    )


def _session_verbs(verbs: Any) -> None:
    _start(add_command(verbs, "start", session_verbs.start, "start a session; prints its id, then its workspace"))
    _list(add_command(verbs, "list", find_verbs.list_sessions, "list sessions", "ls"))
    any_verb = partial(add_command, verbs)
    find_verbs.arguments(any_verb)
    lineage_verbs.arguments(any_verb)
    log_verbs.arguments(any_verb)
    member_verbs.session_arguments(any_verb)
    orchestrator_verbs.arguments(any_verb)
    one = partial(add_command, verbs, of_session=True)
    one("info", session_verbs.info, "how a session stands; ended ones too").add_argument(
        "--events", action="store_true", help="also its events, in order"
    )
    _path(one("read", session_verbs.read, "print a file, byte for byte"))
    _path(one("write", session_verbs.write, "write standard input to a file"))
    _path(one("delete", session_verbs.delete, "delete a file"))
    one("list-files", session_verbs.list_files, "list files and directories").add_argument(
        "path", nargs="?", default=".", metavar="DIRECTORY", help="where to start; the workspace's root by default"
    )
    one("touched", session_verbs.touched, "list the paths that differ from the baseline")
    _diff(one("diff", session_verbs.diff, "print what was changed, as git apply takes it"))
    one("log", session_verbs.log, "list the agent's own commits, newest first").add_argument(
        "--timeline",
        action="store_true",
        help="tell all that happened instead, in order: files, commits, exchanges with the model; ended ones too",
    )
    one("commit", session_verbs.commit, "commit in the workspace, as the agent").add_argument(
        "-m", "--message", required=True, metavar="TEXT", help="the commit message"
    )
    _end(
        any_verb(
            "discard",
            session_verbs.discard,
            "end a session without a promotion, and remove its workspace; its work is archived",
            of_session="own",
        )
    )
    one("extend", session_verbs.extend, "replace the time a session may lie idle").add_argument(
        "ttl", type=duration, metavar="DURATION", help="such as 2h, 30m or 1d"
    )
    one("relocate", session_verbs.relocate, "name the place where a session's durable repository is now").add_argument(
        "durable_now", metavar="PATH", help="the repository"
    )
    evict = one("evict", session_verbs.evict, "end a session and remove its workspace; its work is archived")
    evict.add_argument("--state", choices=("expired", "discarded"), default="expired", help="how it ends (%(default)s)")
    _end(evict)


def _start(verb: Parser) -> None:
    verb.add_argument("-t", "--task", metavar="TEXT", help="what the session is for")
    where = "the durable repository, or the address of a remote; by default the one around the current directory"
    verb.add_argument("-d", "--durable", metavar="PATH", help=where)
    verb.add_argument("-b", "--branch", metavar="NAME", help="the durable branch; by default the one the repository is on")
    kinds = "what the agent works in; in a worktree HEAD is on no branch (%(default)s)"
    verb.add_argument("--workspace", choices=WORKSPACES, default="clone", help=kinds)
    verb.add_argument(
        "--history", type=history, default="none", metavar="none|N|full", help="how much of the past the agent may see (%(default)s)"
    )
    # Only what was given is there afterwards: the engine has its own defaults.
    policy = verb.add_argument_group("eviction", argument_default=argparse.SUPPRESS)
    policy.add_argument("--ttl", dest="ttl_idle", type=limit, metavar="TIME", help="how long it may be idle: 4h by default, or none")
    policy.add_argument("--ttl-absolute", type=limit, metavar="TIME", help="how long it may last in all; no limit by default")
    policy.add_argument("--manual", action="store_true", help="never evict it by time")
    policy.add_argument("--keep-after-promote", dest="until_promote", action="store_false", help="keep the workspace after a promotion")
    lineage_verbs.identity_arguments(verb.add_argument_group("who works in it, and on what"))
    lineage = verb.add_argument_group("lineage")
    lineage.add_argument(
        "--id", dest="chosen_id", metavar="ID", help="its id, if the caller chooses one; CLAUDE_SESSION_ID or generated by default"
    )
    lineage.add_argument("--parent", metavar="ID", help="a crashed session whose work this one continues")
    _by_position(verb, "task", "durable", "branch", required="task")


def _list(verb: Parser) -> None:
    verb.add_argument("-s", "--status", choices=(*STATES, "all"), help="only sessions in this state")
    verb.add_argument("-d", "--durable", metavar="PATH", help="only sessions of this repository")
    find_verbs.list_arguments(verb)
    _by_position(verb, "status", choices=(*STATES, "all"))


def _end(verb: Parser) -> None:
    verb.add_argument("--outcome", choices=OUTCOMES, help="the result of its agent")
    verb.add_argument("--force", action="store_true", help="do so although processes work in it; those of the engine are ended")


def _diff(verb: Parser) -> None:
    verb.add_argument("paths", nargs="*", default=(), metavar="PATH", help="only these")
    verb.add_argument("--hunks", action="store_true", help="show each hunk under the name that promote --hunks takes")


def _promote(verb: Parser) -> None:
    verb.add_argument("paths", nargs="*", default=(), metavar="PATH", help="promote only these; everything touched by default")
    verb.add_argument("-f", "--files", type=names, action="extend", metavar="A,B", help="the same, separated by commas; repeatable")
    verb.add_argument(
        "--hunks",
        type=hunks,
        action="append",
        metavar="PATH:1,3",
        help="only these hunks of a file, as session diff --hunks names them; repeatable",
    )
    verb.add_argument("-m", "--message", metavar="TEXT", help="the commit message; by default 'gittrix: <task>'")
    verb.add_argument("-s", "--strategy", choices=STRATEGIES, default="auto", help="where the work lands (%(default)s)")
    verb.add_argument(
        "--on-overlap", choices=ON_OVERLAP, default="refuse", help="what to do where durable changed a selected file too (%(default)s)"
    )
    verb.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        help="go on with the session, or end it; by default as it was started",
    )
    verb.add_argument(
        "--refuse-secrets",
        action=argparse.BooleanOptionalAction,
        help="promote nothing if a file or a new line looks like credentials; by default where the commit leaves this machine",
    )
    verb.add_argument(
        "--allow-secret", action="append", default=[], metavar="PATH", help="a file that may look like credentials; repeatable"
    )
    verb.add_argument("--allow-filtered", action="store_true", help="promote files as they are that a filter such as Git LFS would change")
    verb.add_argument(
        "--on-hazard", choices=ON_HAZARD, default="warn", help="what to do about new names that other machines cannot have (%(default)s)"
    )
    forge_options.arguments(verb)


def _by_position(verb: Parser, *flags: str, required: str | None = None, **settings: Any) -> None:
    """Let flags be given as positional arguments too, as the TypeScript CLI does; a value given twice is misuse."""
    for flag in flags:
        verb.add_argument(f"{flag}_by_position", nargs="?", metavar=flag.upper(), help=f"as --{flag}", **settings)
    run: Run = verb.get_default("run")

    def settled(options: argparse.Namespace) -> CommandResult:
        for flag in flags:
            given = getattr(options, f"{flag}_by_position")
            if given is not None and getattr(options, flag) is not None:
                verb.error(f"{flag.upper()} is given twice, by place and as --{flag}")
            if given is not None:
                setattr(options, flag, given)
        if required is not None and getattr(options, required) is None:
            verb.error(f"the following arguments are required: --{required}")
        return run(options)

    verb.set_defaults(run=settled)


def _path(verb: Parser) -> None:
    verb.add_argument("path", metavar="PATH", help="from the workspace's root")


def add_group(areas: Any, name: str, what: str, *aliases: str, groups: Mapping[str, Sequence[str]] | None = None) -> Any:
    """Add a command that has verbs, and return the subparsers that its verbs are added to; ``groups`` is as in ``Parser.add_verbs``."""
    group = areas.add_parser(name, aliases=aliases, words=(name, *aliases), help=what, description=_sentence(what))
    return group.add_verbs("VERB", groups or {})


def add_command(
    verbs: Any,
    name: str,
    run: Run | None,
    what: str,
    *aliases: str,
    examples: Sequence[str] | None = None,
    of_session: bool | Literal["own"] = False,
) -> Parser:
    """Add a command.

    Args:
        verbs: the subparsers that it is added to.
        name: the word that is typed.
        run: the function that runs it; None for a command that the line does not name.
        what: what it does, for the help.
        aliases: further words for it.
        examples: command lines for the help.
        of_session: whether its first argument is the id of a session; with ``own`` it may be left out in a process of a session.

    Returns:
        Its parser, to add arguments to.
    """
    verb: Parser = verbs.add_parser(
        name,
        aliases=aliases,
        words=(name, *aliases),
        help=what,
        description=_sentence(what),
        epilog=_epilog(_EXAMPLES[name] if examples is None else examples),
    )
    if of_session == "own":
        which = "the session's id, or enough of its beginning; by default the one that the environment names"
        verb.add_argument("id", nargs="?", metavar="ID", help=which)
    elif of_session:
        verb.add_argument("id", metavar="ID", help="the session's id, or enough of its beginning")
    verb.set_defaults(run=run, command_name=verb.prog.partition(" ")[2])
    return verb


def _common() -> Parser:
    """The flags that may stand anywhere; their defaults must not override a flag that stood before the verb."""
    common = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("-j", "--json", action="store_true", help="answer with one JSON object")
    common.add_argument("--store", metavar="PATH", help="where sessions are kept; by default sessions in GITTRIX_HOME or ~/.gittrix")
    common.add_argument("--no-daemon", dest="direct", action="store_true", help="work on the store directly, even if a daemon runs")
    return common


def _sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}."


def _epilog(examples: Sequence[str]) -> str:
    return "\n".join(["examples:", *(f"  {example}" for example in examples)])


def _marked(arguments: Sequence[str]) -> list[str]:
    start = _dashes(arguments) + 1
    return [*arguments[:start], *(POSITIONAL_MARK + argument for argument in arguments[start:])]


def _dashes(arguments: Sequence[str]) -> int:
    """The place of the ``--`` among arguments; behind them all if there is none."""
    return [*arguments, "--"].index("--")


def _runnable(of: Parser) -> Iterator[tuple[str, str]]:
    """Each word that runs a command, with the whole of what is typed for it."""
    if of._subparsers is None:
        yield of.prog.rpartition(" ")[2], of.prog
        return
    for action in of._subparsers._group_actions:
        verbs: Any = action.choices
        for verb in dict.fromkeys(verbs.values()):
            yield from _runnable(verb)
