"""Hypothesis strategies for tests of session systems: awkward names, trees, edits, histories, deadlines, schedules, hostile settings.

Everything drawn is valid by construction, so no example is thrown away, and shrinks to the plainest of its kind. ``durable_edits`` is in
``drift_strategies``.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_gittrix.errors import InvalidInput, WriteRejected
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.tree import parents
from pytest_gittrix.testing.repos.edits import Edits, Tree
from pytest_gittrix.testing.repos.history import Content, Executable, History, Step, Symlink, retyped

if TYPE_CHECKING:
    from pytest_gittrix.record.state.records import EvictionPolicy

_MICROSECOND: Final = timedelta(microseconds=1)

# Names -------------------------------------------------------------------------------------------------------------------------

_PLAIN: Final = ("a", "b", "c", "lib", "app.py")
# Each is legal in git and on Linux, and each has broken some tool: quoting, options, globs, refs, folding, encodings.
_ODD: Final = (
    "A",
    "a b",
    "-r",
    "--",
    "a\tb",
    "a\nb",
    'a"b',
    "a'b",
    "a*",
    "[a]",
    "?",
    "~",
    "#a",
    "!a",
    "$a",
    "{a,b}",
    ":(top)a",
    "HEAD",
    "a.lock",
    "...",
    "a.",
    "a ",
    "é",  # one code point
    "e\u0301",  # the same letter in two
    "ß",
    "İ",
    "\u202ea",
    "日本",
    "con",
    "a\\b",
    "\udcff",
    "a\udce9b",
    "n" * 200,
)


def _name_of(letters: bytes) -> str:
    # A first letter keeps it from being ".", ".." or a git directory, whatever follows.
    return "n" + os.fsdecode(letters.translate(None, b"/\0\\"))


def _names() -> SearchStrategy[str]:
    return st.sampled_from(_PLAIN) | st.sampled_from(_ODD) | st.binary(max_size=6).map(_name_of)


def paths(*, near: Collection[str] = ()) -> SearchStrategy[str]:
    """Paths that may be written, plain ones first, with names that are awkward on purpose.

    Args:
        near: paths to collide with: most of what is drawn then is one of these, a directory of one, a path below one, a name that starts
            like one, or one that differs only by case or Unicode form.

    Returns:
        Canonical relative paths with ``/``; bytes that are not UTF-8 by surrogateescape.

    Raises:
        InvalidInput: ``near`` is one text instead of several paths.
        WriteRejected: a path in ``near`` may not be written.
    """
    check_collection("near", near)
    return _paths(tuple(near))


# Strategies that depend on a machine's state are made for every draw: making and validating one costs more than drawing from it.
@lru_cache(maxsize=256)
def _paths(near: tuple[str, ...]) -> SearchStrategy[str]:
    fresh = st.lists(_names(), min_size=1, max_size=3).map("/".join)
    close = neighbours(near)
    return st.sampled_from(close) | fresh if close else fresh


def neighbours(near: Collection[str]) -> list[str]:
    """The paths that ``paths(near=...)`` collides with: those given first, then paths that resemble one of them."""
    check_collection("near", near)
    found: dict[str, None] = dict.fromkeys(check_path(path) for path in near)
    for path in [*found]:
        above, _, name = path.rpartition("/")
        prefix = f"{above}/" if above else ""
        variants = [
            *parents(path),
            f"{path}/a",
            f"{path}x",
            path[:-1],
            f"{prefix}{name.swapcase()}",
            path.swapcase(),
            unicodedata.normalize("NFC", path),
            unicodedata.normalize("NFD", path),
            f"{prefix}other",
            name,
        ]
        found.update(dict.fromkeys(variant for variant in variants if _may_be_written(variant)))
    return [*found]


def _may_be_written(path: str) -> bool:
    try:
        return check_path(path) == path
    except WriteRejected:
        return False


def hostile_paths() -> SearchStrategy[str]:
    """Paths that must be refused wherever a path is taken: they leave the workspace, name a git directory, or are no path at all."""
    escapes = st.sampled_from(["..", ".", "../a", "a/../../b", "a/..", "./..", "/", "/a", "//a", "a/./b", "a\\..\\..\\b", "..\\a"])
    git_directories = st.sampled_from(
        [".git", ".GIT", ".git ", ".git.", ".git...", "git~1", "GIT~2", ".g\u200cit", ".git\u200d", ".git::$INDEX_ALLOCATION", ".git\udcff"]
    )
    inside = st.builds("{}{}{}".format, st.sampled_from(["", "a/", "a/b/", "a\\"]), git_directories, st.sampled_from(["", "/config", "/x"]))
    no_paths = st.sampled_from(["", "a/", "a\0b", "\0", "n" * 256, "a/" + "n" * 300, "a/" * 2100 + "a", "\ud800"])
    return escapes | inside | no_paths


# Files -------------------------------------------------------------------------------------------------------------------------

_TEXTS: Final = tuple(f"{word}\n".encode() for word in ("one", "two", "three", "four"))


def contents(*, kinds: Collection[str] = ("file", "executable", "symlink")) -> SearchStrategy[Content]:
    """Contents of a path: short files (text, empty, without final newline, CRLF, binary), executables, symbolic links.

    Args:
        kinds: which of ``file``, ``executable`` and ``symlink`` to draw.

    Raises:
        InvalidInput: no kind, or an unknown one.
    """
    return _contents(tuple(check_choices("kinds", kinds, ("file", "executable", "symlink"))))


@lru_cache
def _contents(kinds: tuple[str, ...]) -> SearchStrategy[Content]:
    lines = st.lists(st.sampled_from(_TEXTS), max_size=4).map(b"".join)
    data = lines | st.sampled_from([b"one", b"one\r\ntwo\r\n", b"\0\xff", b"<<<<<<< ours\n"]) | st.binary(max_size=16)
    links = st.sampled_from([b"a", b"..", b"/nowhere", b"../../outside", b"\xff", b".git/config"])
    known: Mapping[str, SearchStrategy[Content]] = {
        "file": data,
        "executable": data.map(Executable),
        "symlink": links.map(Symlink),
    }
    return st.one_of([known[kind] for kind in kinds])


def _with_unclashing(names: list[str]) -> list[str]:
    """The names that can exist together in a tree; of two that clash, the earlier one."""
    chosen: dict[str, None] = {}
    directories: set[str] = set()
    for name in names:
        above = list(parents(name))
        if name not in directories and chosen.keys().isdisjoint(above):
            chosen[name] = None
            directories.update(above)
    return [*chosen]


def trees(*, near: Collection[str] = (), min_files: int = 0, max_files: int = 4) -> SearchStrategy[Tree]:
    """Small trees. Names that differ only by case or Unicode form may be in one tree, as they can on Linux.

    Args:
        near: as for ``paths``.
        min_files: 1 draws no empty tree; a larger number is a goal that is missed when drawn names clash.
        max_files: the most files.

    Raises:
        InvalidInput: the numbers contradict each other; and as ``paths``.
    """
    _check_sizes(min_files, max_files)
    names = st.lists(paths(near=near), min_size=min_files, max_size=max_files, unique=True).map(_with_unclashing)

    def filled(chosen: list[str]) -> SearchStrategy[Tree]:
        files = st.tuples(*(contents() for _ in chosen))
        return files.map(lambda drawn: Tree(dict(sorted(zip(chosen, drawn, strict=True)))))

    return names.flatmap(filled)


def edits(tree: Mapping[str, Content], *, min_size: int = 0, max_size: int = 3) -> SearchStrategy[Edits]:
    """Changes that can be made to a tree: files written, deleted, moved, made executable or plain, and turned into directories or back.

    Args:
        tree: the files before the changes.
        min_size: the fewest changes to make; each may change several paths, and two may cancel out.
        max_size: the most.

    Raises:
        InvalidInput: the sizes contradict each other.
    """
    _check_sizes(min_size, max_size)
    return _edits(Tree(tree), min_size, max_size)


@st.composite
def _edits(draw: st.DrawFn, tree: Tree, min_size: int, max_size: int) -> Edits:
    now = tree
    for _ in range(draw(st.integers(min_size, max_size))):
        doing = draw(st.sampled_from(["write", "delete", "move", "flip"] if now else ["write"]))
        if doing == "write":
            now = now.apply(now.placing(draw(paths(near=tuple(now))), draw(contents())))
            continue
        path = draw(st.sampled_from(list(now)))
        moved = now[path]
        if doing == "flip":
            now = now.apply({path: draw(st.sampled_from(retyped(moved)))})
            continue
        now = now.apply({path: None})
        if doing == "move":
            now = now.apply(now.placing(draw(paths(near=[path, *now])), moved))
    return tree.to(now)


def histories(*, min_size: int = 1, max_size: int = 4) -> SearchStrategy[History]:
    """Histories of a few commits, as data: ``World.open(history=...)`` writes one in one go.

    Args:
        min_size: the fewest commits, at least 1.
        max_size: the most.

    Raises:
        InvalidInput: the sizes contradict each other.
    """
    _check_sizes(min_size, max_size, least=1)
    return _histories(min_size, max_size)


@st.composite
def _histories(draw: st.DrawFn, min_size: int, max_size: int) -> History:
    people = st.none() | st.sampled_from([("Ada", "ada@example.com"), ("José Ñ", "jose@example.com")])
    now = Tree({})
    steps = []
    for number in range(1, draw(st.integers(min_size, max_size)) + 1):
        changes = draw(edits(now, min_size=0 if number > 1 else 1))
        now = now.apply(changes)
        steps.append(Step(changes, draw(st.sampled_from([f"Step {number}", "Ünïcode", "Subject\n\nBody"])), draw(people)))
    return History(tuple(steps))


# Time --------------------------------------------------------------------------------------------------------------------------


def eviction_policies(
    *, manual: bool | None = None, until_promote: bool | None = None, absolute: bool | None = None
) -> SearchStrategy[EvictionPolicy]:
    """Eviction policies: GitTrix's own first, then short, long and missing limits in every combination.

    Args:
        manual: draw only policies with this value of ``manual``; None draws both.
        until_promote: the same, for policies that end with the promotion.
        absolute: draw only policies with an absolute limit, or without; None draws both.
    """
    from pytest_gittrix.record.state.records import EvictionPolicy

    def switch(value: bool | None, default: bool) -> SearchStrategy[bool]:
        return st.sampled_from([default, not default]) if value is None else st.just(value)

    spans = [timedelta(hours=1), timedelta(seconds=1), timedelta(milliseconds=1), timedelta(days=400), None]
    return st.builds(
        EvictionPolicy,
        ttl_idle=st.sampled_from([timedelta(hours=4), *spans]),
        ttl_absolute=st.none() if absolute is False else st.sampled_from([None, *spans[:-1]][bool(absolute) :]),
        until_promote=switch(until_promote, default=True),
        manual=switch(manual, default=False),
    )


def instants_around(deadline: datetime, *, not_before: datetime | None = None) -> SearchStrategy[datetime]:
    """The instants at which a deadline can be judged wrongly: at it, a microsecond and a second to either side, far away.

    The first one is the deadline itself: at it, a TTL has not passed yet (GitTrix: strictly greater). All are in UTC.

    Args:
        deadline: aware.
        not_before: the earliest instant to draw, for a clock that only moves forward; earlier ones become it.

    Raises:
        InvalidInput: an instant is naive.
    """
    for instant in (deadline, not_before):
        if instant is not None and instant.tzinfo is None:
            raise InvalidInput(f"{instant!r} is naive.", why="It would mean another instant on each machine.", fix="Give it a time zone.")
    shifts = [timedelta(0), _MICROSECOND, -_MICROSECOND, timedelta(seconds=1), timedelta(seconds=-1), timedelta(days=1), timedelta(days=-1)]
    instants = [deadline.astimezone(UTC) + shift for shift in shifts]
    if not_before is not None:
        instants = list(dict.fromkeys(max(instant, not_before.astimezone(UTC)) for instant in instants))
    return st.sampled_from(instants)


# Schedules ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interleaving:
    """Which actor goes next at each step: the first one until another takes over. Iterating gives a name a step, as ``Race.run`` takes it.

    Attributes:
        actors: their names.
        steps: how many steps are scheduled; afterwards the actors finish in turn.
        preemptions: ``(step, actor)``: the actor goes next from that step on; steps count from 0.
    """

    actors: tuple[str, ...]
    steps: int
    preemptions: tuple[tuple[int, str], ...] = ()

    def __iter__(self) -> Iterator[str]:
        taking_over = dict(self.preemptions)
        going = self.actors[0]
        for step in range(self.steps):
            going = taking_over.get(step, going)
            yield going


def interleavings(actors: Sequence[str], steps: int, *, max_preemptions: int = 3) -> SearchStrategy[Interleaving]:
    """Schedules for a race, as a short list of preemptions instead of a choice per step: what fails shrinks to the one that matters.

    Args:
        actors: their names; the first one starts.
        steps: how many steps are scheduled; the sum of all actors' points is enough.
        max_preemptions: how often another actor may take over. Most races need one or two.

    Raises:
        InvalidInput: an argument is empty or negative, or two actors have one name.
    """
    names = tuple(actors)
    if not names or len(set(names)) != len(names):
        raise InvalidInput(
            f"actors={actors!r} are not different names.", why="A schedule names the actor that goes next.", fix='Give ("A", "B").'
        )
    if steps < 1 or max_preemptions < 0:
        raise InvalidInput(f"steps={steps}, max_preemptions={max_preemptions}: there is nothing to draw.", fix="Give 1 and 0 or more.")
    preemption = st.tuples(st.integers(0, steps - 1), st.sampled_from(names))
    drawn = st.lists(preemption, max_size=max_preemptions, unique_by=lambda one: one[0])
    return drawn.map(lambda chosen: Interleaving(names, steps, tuple(sorted(chosen))))


# Settings ----------------------------------------------------------------------------------------------------------------------

# Each of these settings is in use somewhere, and each changes what a git command prints, asks, runs or writes.
_HOSTILE_SETTINGS: Final = (
    ("commit", "gpgSign", "true"),
    ("tag", "gpgSign", "true"),
    ("gpg", "program", "false"),
    ("user", "useConfigOnly", "true"),
    ("init", "defaultBranch", "trunk"),
    ("init", "templateDir", "/nonexistent"),
    ("core", "hooksPath", "/nonexistent"),
    ("core", "autocrlf", "true"),
    ("core", "eol", "crlf"),
    ("core", "fileMode", "false"),
    ("core", "ignoreCase", "true"),
    ("core", "symlinks", "false"),
    ("core", "quotePath", "false"),
    ("core", "precomposeUnicode", "true"),
    ("core", "excludesFile", "/dev/null"),
    ("core", "attributesFile", "/nonexistent"),
    ("core", "fsmonitor", "false"),
    ("core", "untrackedCache", "true"),
    ("core", "splitIndex", "true"),
    ("core", "abbrev", "4"),
    ("core", "pager", "false"),
    ("core", "editor", "false"),
    ("color", "ui", "always"),
    ("diff", "noprefix", "true"),
    ("diff", "external", "false"),
    ("diff", "renames", "copies"),
    ("log", "showSignature", "true"),
    ("format", "pretty", "oneline"),
    ("status", "showUntrackedFiles", "no"),
    ("index", "version", "4"),
    ("feature", "manyFiles", "true"),
    ("i18n", "commitEncoding", "ISO-8859-1"),
    ("safe", "bareRepository", "explicit"),
    ("merge", "conflictStyle", "diff3"),
    ("gc", "auto", "1"),
    ("alias", "status", "!false"),
    ("protocol", "allow", "never"),
)


def hostile_gitconfigs() -> SearchStrategy[str]:
    """Texts of a ``.gitconfig`` that a user may have: signing, hooks, line endings, colours, renames, each able to break a careless caller.

    Git accepts every one. Point ``HOME`` at a directory that holds the text as ``.gitconfig``.
    """
    chosen = st.lists(st.sampled_from(_HOSTILE_SETTINGS), min_size=1, max_size=6, unique_by=lambda setting: setting[:2])
    return chosen.map(lambda settings: "".join(f"[{section}]\n\t{name} = {_quoted(value)}\n" for section, name, value in settings))


def _quoted(value: str) -> str:
    return f'"{value}"' if value.startswith("!") else value


# Arguments ---------------------------------------------------------------------------------------------------------------------


def check_collection(argument: str, values: Collection[str]) -> None:
    """Refuse one text where several are meant. Raises InvalidInput, which names the argument."""
    if isinstance(values, str):
        raise InvalidInput(f"{argument}={values!r} is one text, not several.", fix=f"Give [{values!r}].")


def check_choices(argument: str, values: Collection[str], known: tuple[str, ...]) -> list[str]:
    """The values without repeats, in their order. Raises InvalidInput for none at all and for one that is not known, and lists those."""
    check_collection(argument, values)
    unknown = [value for value in values if value not in known]
    if unknown or not values:
        raise InvalidInput(
            f"{argument}={tuple(values)!r} {f'has {unknown[0]!r}, which is not known' if unknown else 'is empty'}.",
            fix=f"Choose from: {', '.join(known)}.",
        )
    return list(dict.fromkeys(values))


def _check_sizes(min_size: int, max_size: int, *, least: int = 0) -> None:
    if not least <= min_size <= max_size:
        raise InvalidInput(f"min_size={min_size}, max_size={max_size}: no size fits.", fix=f"Give {least} <= min_size <= max_size.")
