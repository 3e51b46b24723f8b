"""The declaration of a verb: the function that runs it, its arguments, and where it may run.

The parser of the command line, its help, and the commands that a daemon runs for other processes are made from these declarations.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, cast

from pytest_gittrix.commands.output import FAILED, CommandResult
from pytest_gittrix.extensions import OURS, Extension, Names
from pytest_gittrix.os_level.command import LEVELS


class Argument(NamedTuple):
    """An argument of a verb; :func:`arg` makes one.

    Attributes:
        names: its flags, or the name of a positional argument.
        settings: what ``ArgumentParser.add_argument`` takes: ``type``, ``help``, ``default``, ``choices`` and so on.
        group: the heading of the help that it is listed under.
        excludes: the name of a set of arguments of which one at most may be given.
        by_place: whether the value may be given as a positional argument too, as the TypeScript CLI does.
        needed: whether it must be given, in one way or the other.
    """

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    group: str = ""
    excludes: str = ""
    by_place: bool = False
    needed: bool = False


def arg(
    *names: str, group: str = "", excludes: str = "", by_place: bool = False, needed: bool = False, **settings: Any
) -> Argument:  # fmt: skip
    """Declare an argument; see :class:`Argument`."""
    return Argument(names, settings, group, excludes, by_place, needed)


class Verb(NamedTuple):
    """A verb of the command line; :func:`verb` makes one of a function. Calling it runs it.

    Attributes:
        name: the word that is typed.
        run: the function that runs it.
        what: what it does, for the help.
        arguments: in the order of the help.
        examples: command lines for the help.
        aliases: further words for it.
        defaults: values of options that it has no argument for.
        only_looks: whether it changes nothing, so that it may be repeated after a daemon was lost.
        reads_stdin: whether it takes standard input.
        terminal_only: whether only a terminal can have it, and no daemon runs it.
        failure: the exit status where it fails.
    """

    name: str
    run: Callable[[Namespace], CommandResult]
    what: str
    arguments: Sequence[Argument] = ()
    examples: Sequence[str] = ()
    aliases: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}
    only_looks: bool = False
    reads_stdin: bool = False
    terminal_only: bool = False
    failure: int = FAILED

    def __call__(self, options: Namespace) -> CommandResult:
        """Run the verb."""
        return self.run(options)

    def is_of_own_session(self, options: Namespace) -> bool:
        """Whether the options leave it to the environment of the process which session is meant."""
        return OWN_SESSION in self.arguments and options.id is None


def verb(*arguments: Argument, name: str = "", **more: Any) -> Callable[[Callable[[Namespace], CommandResult]], Verb]:
    """Declare the function below to be a verb. The first line of its docstring says in the help what it does.

    Args:
        arguments: its arguments, in the order of the help.
        name: the word that is typed; that of the function by default.
        more: further fields of the :class:`Verb`.
    """

    def declare(run: Callable[[Namespace], CommandResult]) -> Verb:
        sentence = (run.__doc__ or run.__name__).partition("\n")[0].rstrip(".")
        return Verb(name or run.__name__.replace("_", "-"), run, f"{sentence[0].lower()}{sentence[1:]}", arguments, **more)

    return declare


class Group(NamedTuple):
    """A command that has verbs, listed in sections by the help."""

    name: str
    what: str
    sections: Sections
    aliases: tuple[str, ...] = ()


class Later(NamedTuple):
    """A command that is loaded only when it is typed.

    Attributes:
        address: where its Verb or Group is, ``module:attribute``; or a module with a verb of the command's name.
    """

    name: str
    what: str
    address: str
    aliases: tuple[str, ...] = ()

    def load(self) -> Verb | Group:
        """Load the declaration. Raises CapabilityMissing if it cannot be imported."""
        registered = Extension(self.address)
        found = registered.load()
        with registered.at_fault():
            run = getattr(found, self.name.replace("-", "_")) if isinstance(found, ModuleType) else found
            return cast("Verb | Group", run._replace(name=self.name, what=self.what))


Sections = Mapping[str, Sequence["Verb | Group | Later"]]
"""Commands by the heading of the help that they are listed under."""


def declared(entry: Verb | Group | Later) -> Verb | Group:
    """The declaration of a command, loaded if need be."""
    return entry.load() if isinstance(entry, Later) else entry


_ID: Final = "the session's id, or enough of its beginning"

SESSION: Final = arg("id", metavar="ID", help=_ID)
OPTIONAL_SESSION: Final = arg("id", nargs="?", metavar="ID", help=_ID)
OWN_SESSION: Final = arg("id", nargs="?", metavar="ID", help=f"{_ID}; by default the one that this process belongs to")
WORKSPACE: Final = arg(
    "--workspace",
    choices=Names("workspaces"),
    metavar=f"{{{','.join(OURS['workspaces'])}}}",
    default="clone",
    # argparse of Python 3.14 reads all choices for a help with a percent sign.
    help="what the agent works in; in a worktree HEAD is on no branch (clone)",
)
TEAM: Final = arg("--team", metavar="FILE", help="who is managed; team.toml in GITTRIX_HOME or ~/.gittrix by default")
DRY_RUN: Final = arg("--dry-run", action="store_true", help="only say what would be removed")


def limit_of(whose: str) -> Argument:
    """``--limit``, which may be given several times."""
    return arg(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=MOST",
        help=f"a limit {whose}: processes=200, memory=2GB, disk=5GB or cpu_seconds=600",
    )


CONFINED: Final = (
    arg(
        "--confine",
        choices=LEVELS,
        help="how the agent is confined; by default as the team file says, or auto: as strongly as this machine and user can",
    ),
    limit_of("of the agent; the team file's hold, too"),
)
"""The arguments of a verb that starts an agent that stays."""
