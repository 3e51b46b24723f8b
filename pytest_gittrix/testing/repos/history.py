"""Histories of durable repositories as plain data: contents by path, in steps, and the git objects of those steps.

The same history gives the same commit ids on every machine and in every process (rule 13, docs/explanation/rules.md). Where clocks
start is an argument.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property, partial
from typing import Final

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.durations import ns_of
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.commit import Signature, build_commit
from pytest_gittrix.git.objects import SHA1, ObjectFormat
from pytest_gittrix.git.path_rules import check_path
from pytest_gittrix.git.tree import EXECUTABLE, FILE, KINDS, SUBMODULE, SYMLINK, Entry, Item, TreeClash, entry_at, flatten, parse_tree

AUTHOR: Final = ("Durable Author", "durable@example.com")
"""Name and address of the default author of a step."""

_SECONDS_APART: Final = 60
_HEX: Final = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Executable:
    """An executable file; text is written as UTF-8."""

    data: str | bytes


@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link; the target is stored as given and never followed."""

    target: str | bytes


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule pointer: the commit that another repository should be at. That repository is not needed."""

    sha: str


Content = str | bytes | Executable | Symlink | Submodule | Entry
"""The content of a path. Text is UTF-8. An ``Entry`` names an object that the repository has already."""

Contents = Mapping[str, Content | None]
"""Contents by path; None deletes."""


def stored_bytes(content: Content | None) -> bytes | None:
    """The bytes of a file as git stores it, of a link its target; None for no file, and for a pointer to another repository."""
    match content:
        case Executable(data=stored) | Symlink(target=stored) | (str(stored) | bytes(stored)):
            return stored.encode() if isinstance(stored, str) else stored
    return None


def retyped(content: Content) -> list[Content]:
    """The contents of other kinds with the same bytes: plain or executable files, then a link, if it can lead to such a place."""
    data = stored_bytes(content) or b""
    files: list[Content] = [Executable(data), data] if isinstance(content, bytes) else [data, Executable(data)]
    links: list[Content] = [Symlink(data)] if data and b"\0" not in data else []
    return [one for one in files + links if one != content]


SMALL_PROJECT: Final[Contents] = {
    ".gitignore": "__pycache__/\n*.pyc\n.venv/\nnode_modules/\n",
    "README.md": "# Greeter\n\nSays hello.\n\n    python app.py Ada\n",
    "app.py": (
        "import sys\n\n\n"
        "def greet(name: str) -> str:\n"
        '    return f"Hello, {name}!"\n\n\n'
        'if __name__ == "__main__":\n'
        '    print(greet(sys.argv[1] if len(sys.argv) > 1 else "world"))\n'
    ),
    "pyproject.toml": '[project]\nname = "greeter"\nversion = "1.0.0"\n',
    "tests/test_app.py": 'from app import greet\n\n\ndef test_greets_by_name():\n    assert greet("Ada") == "Hello, Ada!"\n',
}
"""The default contents of a world."""


@dataclass(frozen=True, slots=True)
class Step:
    """One commit of a history.

    Attributes:
        changes: new contents by path, None to delete; the step stores a copy.
        message: the commit message.
        author: name and address of the author; ``AUTHOR`` by default.

    Raises:
        InvalidInput: an argument is of another type.
    """

    changes: Contents
    message: str = "Change the project"
    author: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.changes, Mapping):
            raise _no_step(self.changes)
        object.__setattr__(self, "changes", dict(self.changes))
        if not isinstance(self.message, str):
            raise InvalidInput(f"The message of a step is {type(self.message).__name__}: {self.message!r}.", fix="Pass a str.")
        if self.author is not None and not _is_person(self.author):
            raise InvalidInput(f"The author of a step is {self.author!r}.", fix='Give name and address: ("Ada", "ada@example.org").')


@dataclass(frozen=True)
class Written:
    """A history as git objects.

    Attributes:
        commits: the ids of the commits, oldest first.
        entries: the entries of the last commit, by path, in git's order.
        objects: kind and data of every object, by id.
        format: the format of the objects.
    """

    commits: tuple[str, ...]
    entries: Mapping[str, Entry]
    objects: Mapping[str, tuple[str, bytes]]
    format: ObjectFormat


@dataclass(frozen=True)
class History:
    """The commits that a durable repository starts with, oldest first. Created by ``History.of``."""

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, files: Contents | None = None, history: History | Iterable[Step | Contents] | None = None) -> History:
        """Create a history from one of the two arguments of worlds; from neither, one commit of ``SMALL_PROJECT``.

        Args:
            files: the contents of a single commit; may be empty.
            history: steps, or plain contents for a step with the default message.

        Raises:
            InvalidInput: both were given, or a history that is no list of steps, or has none.
        """
        if files is not None and history is not None:
            raise InvalidInput(
                "Both files= and history= were given.",
                why="files= is a history of one commit, so the two contradict each other.",
                fix="Give one of them; the first step of history= may hold the files.",
            )
        if isinstance(history, History):
            return history
        if isinstance(history, str | bytes):
            raise InvalidInput(
                f"history= is a text, {history!r:.80}; it must be a list of steps.",
                why="A history is the commits of a repository, the oldest first.",
                fix='Give a list of steps: [{"app.py": "v1\\n"}, Step({"app.py": "v2\\n"}, message="Improve it")].',
            )
        if history is not None and (isinstance(history, Mapping) or not isinstance(history, Iterable)):
            raise InvalidInput(
                f"history= is {type(history).__name__}: {history!r:.80}.",
                why="A history is the commits of a repository, the oldest first.",
                fix='Give a list of steps: [{"app.py": "v1\\n"}, Step({"app.py": "v2\\n"}, message="Improve it")].',
            )
        if history is None:
            return cls((Step(SMALL_PROJECT if files is None else files, "Start the project"),))
        steps = tuple(step if isinstance(step, Step) else Step(step, f"Step {number}") for number, step in enumerate(history, 1))
        if not steps:
            raise InvalidInput(
                "history= has no step.",
                why="A session starts from a commit.",
                fix="Give at least one step; history=[{}] is an empty commit.",
            )
        return cls(steps)

    @cached_property
    def digest(self) -> str:
        """A digest that is equal for equal histories."""
        hasher = hashlib.sha256()
        for step in self.steps:
            hasher.update(repr((step.message, step.author, sorted(step.changes.items(), key=_by_path))).encode(errors="surrogatepass"))
        return hasher.hexdigest()

    def write(self, format_: ObjectFormat = SHA1, *, clock_start: datetime = CLOCK_START) -> Written:
        """Build every commit of the history, in memory.

        Args:
            format_: the object format.
            clock_start: the last commit is made one minute before it, each other one a minute before its successor, so that no clock that
                starts there is ever behind the history.

        Raises:
            InvalidInput: a step does not fit on the one before it, or a content is not allowed; the message names path and step.
            WriteRejected: a path may not be written (``git.path_rules``).
        """
        objects: dict[str, tuple[str, bytes]] = {}

        @cache
        def read_tree(id_: str) -> Mapping[bytes, Item]:
            return parse_tree(objects[id_][1], format_.size)

        def is_blob(id_: str) -> bool:
            return id_ in objects and objects[id_][0] == "blob"

        first = ns_of(clock_start) // 10**9 - _SECONDS_APART * len(self.steps)
        commits: list[str] = []
        tree: str | None = None
        for number, step in enumerate(self.steps):
            try:
                changes, blobs = resolve(step.changes, format_)
                objects.update((id_, ("blob", data)) for id_, data in blobs.items())
                check_fit(changes, partial(entry_at, read_tree, tree), is_blob)
                built = build_commit(
                    read_tree,
                    tree,
                    changes,
                    blobs,
                    parent=commits[-1] if commits else None,
                    author=Signature(*(step.author or AUTHOR), first + number * _SECONDS_APART),
                    message=step.message,
                    format_=format_,
                )
            except TreeClash as clash:
                raise InvalidInput(
                    f"Step {number + 1} of the history ({step.message!r}) does not fit: {clash}.",
                    why="Git holds a file or a directory at a path, not both.",
                    fix="Delete the one (None) in the step that adds the other.",
                ) from clash
            objects.update(built.objects)
            commits.append(built.id)
            tree = built.tree
        return Written(tuple(commits), flatten(read_tree, tree), objects, format_)


def _by_path(item: tuple[str, object]) -> str:
    return item[0]


def resolve(contents: Contents, format_: ObjectFormat) -> tuple[dict[str, Entry | None], dict[str, bytes]]:
    """Translate contents into tree entries by canonical path, and the bytes of their blobs by id.

    Raises:
        InvalidInput: ``contents`` is no mapping, a content is of an unknown type or not allowed, or two paths are one.
        WriteRejected: a path may not be written (``git.path_rules``).
    """
    if not isinstance(contents, Mapping):
        raise InvalidInput(
            f"The files are given as {contents!r}, which maps no path to a content.",
            why="A commit may change several files, so it takes a mapping.",
            fix='Give a mapping, such as {"app.py": "v2\\n"}; None deletes a file.',
        )
    changes: dict[str, Entry | None] = {}
    blobs: dict[str, bytes] = {}
    for given, content in contents.items():
        path = check_path(given)
        if path in changes:
            raise InvalidInput(f"{path!r} is given twice, once as {given!r}.", why="A path has one content.", fix="Give it once.")
        match content:
            case None:
                changes[path] = None
            case Entry():
                changes[path] = _checked(path, content, format_)
            case Submodule(sha):
                changes[path] = _checked(path, Entry(SUBMODULE, sha), format_)
            case _:
                mode, data = _mode_and_data(path, content)
                changes[path] = entry = Entry(mode, format_.hash_object("blob", data))
                blobs[entry.id] = data
    return changes, blobs


def check_fit(changes: Mapping[str, Entry | None], before: Callable[[str], Entry | None], is_blob: Callable[[str], bool]) -> None:
    """Refuse what ``git`` would silently ignore: the deletion of nothing, and an entry without an object.

    Args:
        changes: resolved contents.
        before: returns the entry at a path before the changes.
        is_blob: whether an id is that of a known blob.

    Raises:
        InvalidInput: the message names the path.
    """
    for path, entry in changes.items():
        if entry is None:
            if before(path) is None:
                raise InvalidInput(
                    f"{path!r} cannot be deleted: there is no file there.",
                    why="A test that deletes nothing does not test what it says.",
                    fix="Name a file that is there; a directory goes when its last file does.",
                )
        elif entry.mode != SUBMODULE and not is_blob(entry.id):
            raise InvalidInput(
                f"The entry for {path!r} names {entry.id}, which is no blob of the repository.",
                why="The commit would be damaged.",
                fix="Give the bytes instead of an Entry.",
            )


def _no_step(given: object) -> InvalidInput:
    return InvalidInput(
        f"A step of a history is {type(given).__name__}: {given!r:.80}.",
        why="A step is a commit: the contents that it changes, by path.",
        fix='Give a mapping such as {"app.py": "v2\\n"}, None for a path to delete; or Step({...}, message="Improve it").',
    )


def _is_person(author: object) -> bool:
    return isinstance(author, tuple | list) and len(author) == 2 and all(isinstance(part, str) for part in author)


def _mode_and_data(path: str, content: str | bytes | Executable | Symlink) -> tuple[int, bytes]:
    match content:
        case str() | bytes():
            return FILE, _encoded(path, content)
        case Executable(data):
            return EXECUTABLE, _encoded(path, data)
        case Symlink(target):
            data = _encoded(path, target)
            if data and b"\0" not in data:
                return SYMLINK, data
            raise InvalidInput(
                f"{path!r} cannot link to {target!r}.", why="A link needs a target without NUL.", fix="Give where it points."
            )
        case _:
            raise _wrong_type(path, content)


def _encoded(path: str, data: str | bytes) -> bytes:
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise _wrong_type(path, data)
    try:
        return data.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"The text for {path!r} is not UTF-8: {error}.", fix="Give its bytes.") from error


def _wrong_type(path: str, content: object) -> InvalidInput:
    return InvalidInput(
        f"The content of {path!r} is {type(content).__name__}: {content!r:.80}.",
        why="A content is text, bytes or one of the types below.",
        fix="Give str (UTF-8), bytes, Executable(...), Symlink(...), Submodule(...), an Entry, or None to delete.",
    )


def _checked(path: str, entry: Entry, format_: ObjectFormat) -> Entry:
    if entry.mode in KINDS and len(entry.id) == format_.hex_size and _HEX.fullmatch(entry.id) and entry.id != format_.zero:
        return entry
    raise InvalidInput(
        f"{path!r} cannot be {entry!r}.",
        why="A tree holds known modes and whole object ids only.",
        fix=f"Give {format_.hex_size} lowercase hex digits, and one of the modes {', '.join(f'0o{mode:o}' for mode in KINDS)}.",
    )
