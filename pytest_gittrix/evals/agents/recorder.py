"""Writes down what the agents of this process read: files, directories, variables, modules. ``watching`` sees it.

What cannot be seen, such as the reads of a program that an agent starts by itself, is written down as unknown. What a module read when it
was loaded counts for each agent of the process that uses it.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pytest_gittrix.evals.agents.native_code import is_of_c, may_read, reads_by_itself
from pytest_gittrix.evals.agents.reads import Key, key_of_file, state_of
from pytest_gittrix.evals.inputs.suite_file import GENERATED

_STARTS_PROGRAMS: Final = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"}
)
_NETWORK: Final = frozenset({"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"})
_POPEN: Final = "multiprocessing.popen_"
_MAKES: Final = frozenset({"os.mkdir", "os.rename"})
_LISTS: Final = frozenset({"os.listdir", "os.scandir"})
_PROXIES: Final = "urllib.request"
"""Python's own module that looks through all variables for those that name a proxy."""
_IMPORTERS: Final = ("importlib._bootstrap_external", "_frozen_importlib_external")
_PYTEST: Final = "PYTEST_"
"""How the variables begin that a run of pytest sets or reads for itself."""
_FAR: Final = 8

_FINDS_LIBRARIES: Final = "ctypes.util"
"""Python's own module that asks programs of the system where a library of the system is."""
_CTYPES: Final = frozenset({"ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle"})
_OTHERS: Final = frozenset({"open", "import", "sqlite3.connect"})
EVENTS: Final = _OTHERS | _CTYPES | _MAKES | _LISTS | _STARTS_PROGRAMS | _NETWORK
"""The audit events of Python that say what is read, made or started."""

PROGRAMS: Final = "It starts programs by itself, and what these read is not seen; toolbox.run starts them confined."
C_CODE: Final = "It calls C code by ctypes, and what that reads is not seen."


@dataclass
class Seen:
    """What one agent has read, or the modules of one import."""

    states: dict[Key, str | None] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    network: bool = False

    def add(self, other: Seen) -> None:
        """Add what was read when a module was loaded; what was read again since counts as it was then."""
        self.states = {**other.states, **self.states}
        self.unknown |= other.unknown
        self.network |= other.network


class _Thread(threading.local):
    """Whose a thread is: the agent's of that name, or the run's (an empty text); and the imports that it is in."""

    agent = ""

    def __init__(self) -> None:
        self.imports: list[Seen] = []


class ReadRecorder:
    """What the agents of this process have read so far, by their names."""

    def __init__(self) -> None:
        self.agents: dict[str, Seen] = {}
        self.modules: dict[str, Seen] = {}
        self.working: Counter[str] = Counter()
        self.thread = _Thread()
        self._own: set[tuple[str, Key]] = set()  # what agents made themselves, with their names
        self._own_places: set[tuple[str, str]] = set()
        self._places: dict[int, str] = {}  # whose files are no inputs: of the sample of each thread, by its number

    # Whose thread it is ------------------------------------------------------------------------------------------------------------

    @property
    def sees(self) -> bool:
        """Whether what this thread reads is read by an agent."""
        return bool(self.thread.agent)

    @property
    def _now(self) -> list[Seen]:
        """What is being written down: of this thread's agent, and of the imports that it is in."""
        return [self.agents.setdefault(self.thread.agent, Seen()), *self.thread.imports]

    @contextmanager
    def as_(self, agent: str) -> Iterator[None]:
        """A block in which this thread is an agent's, or the run's."""
        before = self.thread.agent
        self.thread.agent = agent
        try:
            yield
        finally:
            self.thread.agent = before

    def leave_out(self, directory: str) -> None:
        """Count nothing of the directory of the sample that this thread does: it is made from the case."""
        self._places[threading.get_ident()] = f"{directory}/"

    # What is read ----------------------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> Key | None:
        with self.as_(""):  # to find a distribution takes reads
            return key_of_file(path)

    def note(self, key: Key | None) -> None:
        """Write down something that is read now, unless an agent made it."""
        if key is None or (self.thread.agent, key) in self._own:
            return
        now = self._now
        if key[0] == "exists" and all(("file", key[1]) in one.states or ("listing", key[1]) in one.states for one in now):
            return
        with self.as_(""):
            state = state_of(key)
        for one in now:
            one.states[key] = state

    def note_unknown(self, sentence: str) -> None:
        """Write down what may be read and cannot be seen."""
        for one in self._now:
            one.unknown.add(sentence)

    def note_path(self, kind: Literal["file", "listing", "exists"], path: object) -> None:
        """Write down that a file is opened or asked for, or a directory listed."""
        name = _absolute(path)
        if not name or any(f"{name}/".startswith(place) for place in (*self._places.values(), *self._made_places())):
            return
        key = self._key(_source_of(name) if kind != "listing" else f"{name}/x")
        if kind == "file":
            self.note(key)
        elif key is not None and key[0] == "file":
            self.note((kind, name))

    def _made_places(self) -> list[str]:
        return [place for agent, place in self._own_places if agent == self.thread.agent]

    def note_variable(self, name: object) -> None:
        """Write down that a variable is read."""
        if self.sees and isinstance(name, str) and not name.startswith(_PYTEST) and not _looks_for_proxies(name):
            with suppress(ValueError):
                self.note(("variable", name))

    def made(self, key: Key) -> None:
        """Write down that an agent makes something, whose state is no input of it from then on; what it read before is."""
        if self.sees:
            self._own.add((self.thread.agent, key))

    def opened(self, path: object, mode: object, flags: object) -> None:
        """Write down that a file is opened."""
        how = flags if isinstance(flags, int) else 0
        makes = mode[:1] in ("w", "x") if isinstance(mode, str) else bool(how & (os.O_TRUNC | os.O_EXCL)) and bool(how & os.O_CREAT)
        name = _absolute(path)
        if makes:
            if name:
                self.made(("file", name))
        elif isinstance(mode, str) and mode[:1] == "a" and "+" not in mode:
            return
        elif not how & os.O_DIRECTORY:
            self.note_path("file", path)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """One audit event of an agent's thread."""
        if event == "open":
            self.opened(*args)
        elif event in _LISTS:
            if not _called_by(*_IMPORTERS):
                self.note_path("listing", "." if args[0] is None else args[0])
        elif event == "import":
            self.loaded_library(args[0], args[1])
        elif event in _MAKES:
            self.renamed_or_made(event, args)
        elif event == "sqlite3.connect":
            self.note_path("file", args[0])
        elif event in _NETWORK:
            for one in self._now:
                one.network = True
        elif event in _CTYPES:
            if _may_read_by_ctypes(event, args):
                self.note_unknown(C_CODE)
        elif not _called_by(_FINDS_LIBRARIES):
            self.note_unknown(PROGRAMS)

    def renamed_or_made(self, event: str, args: tuple[Any, ...]) -> None:
        """Write down that an agent makes a directory, or puts a file that it made elsewhere."""
        if event == "os.mkdir":
            made = _absolute(args[0])
            with self.as_(""):
                if not made or os.path.exists(made):
                    return
            self._own_places.add((self.thread.agent, f"{made}/"))
        elif (self.thread.agent, ("file", _absolute(args[0]))) in self._own:
            self.made(("file", _absolute(args[1])))

    def loaded_library(self, name: object, file: object) -> None:
        """Write down that a C extension is loaded, unless it is one of Python's own."""
        path = _absolute(file)
        key = self._key(path) if path else None
        if key is not None:
            self.note(key)
            if reads_by_itself(path):
                self.note_unknown(f"{name} is a C extension that can read files and variables by itself, and these are not seen.")

    # Modules ---------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def importing(self, names: Callable[[], Iterable[str]]) -> Iterator[None]:
        """A block that may load modules: what it reads is read by whoever uses them later, too.

        Args:
            names: the modules that are asked for; called at the end.
        """
        before = {*sys.modules}
        self.thread.imports.append(seen := Seen())
        try:
            yield
        finally:
            self.thread.imports.pop()
            for name in names():
                if name in sys.modules and name not in before:
                    self.modules.setdefault(name, seen)

    def used(self, name: str) -> None:
        """Count a module that is loaded, with what it read then; that is unknown if nothing was watched."""
        known = self.modules.get(name)
        if known is not None:
            for one in self._now:
                if one is not known:
                    one.add(known)
            return
        file = getattr(sys.modules.get(name), "__file__", None)
        key = self._key(os.path.abspath(file)) if file else None
        if key is None or all(key in one.states for one in self._now):
            return
        self.note(key)
        if key[0] == "file":
            self.note_unknown(f"{name} was imported before the agent, and what it read then was not seen.")

    def imported(self, names: Sequence[str]) -> None:
        """Write down that modules are asked for, which may have been loaded already."""
        top = names[0].partition(".")[0]
        if names[0].startswith(_POPEN):
            self.note_unknown(PROGRAMS)
        if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
            return
        self.note_import(top)
        for name in dict.fromkeys([*packages_above(names[0]), *names]):
            self.used(name)

    def note_import(self, top: str) -> None:
        """Write down where a module is found; one that is installed counts by its distribution."""
        file = getattr(sys.modules.get(top), "__file__", None)
        if not file or self._key(file) == ("file", file):
            self.note(("import", top))


def packages_above(name: str) -> list[str]:
    """The packages that a module is in, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _absolute(path: object) -> str:
    """A path as an absolute text; empty for what is none, such as a descriptor."""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    name = os.fsdecode(path)
    return os.path.normpath(os.path.join(os.getcwd(), name)) if name and "\0" not in name else ""


def _source_of(path: str) -> str:
    """The source of a compiled module; any other path as it is."""
    directory, name = os.path.split(path)
    if os.path.basename(directory) == GENERATED[0] and name.endswith(".pyc"):
        return os.path.join(os.path.dirname(directory), f"{name.partition('.')[0]}.py")
    return path


def _may_read_by_ctypes(event: str, args: tuple[Any, ...]) -> bool:
    """Whether a library that is loaded, or a function that is looked up in one, may read anything: one of the C library, by its name."""
    if event == "ctypes.dlopen":
        return not is_of_c(args[0])
    return may_read(args[1]) or (event == "ctypes.dlsym" and not is_of_c(getattr(args[0], "_name", "")))


def _called_by(*names: str) -> bool:
    """Whether one of the nearest callers is of a module of these names."""
    frame = inspect.currentframe()
    for _ in range(_FAR):
        frame = frame.f_back if frame is not None else None
        if frame is not None and frame.f_globals.get("__name__") in names:
            return True
    return False


def _looks_for_proxies(name: str) -> bool:
    """Whether a variable is only passed on the way to those that name a proxy."""
    return not name.lower().endswith("_proxy") and _called_by(_PROXIES)
