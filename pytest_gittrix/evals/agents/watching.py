"""Sees what Python functions read while they work as agents in this process, and hands it to the recorder.

Python's audit events say which files are opened. What has no event (variables, questions whether a file exists, imports of modules that are
loaded already) is asked through here for as long as an agent works.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from pytest_gittrix.evals.agents.reads import Reads
from pytest_gittrix.evals.agents.recorder import EVENTS, ReadRecorder, Seen, packages_above

_recorder: Final = ReadRecorder()
_hooked = threading.Event()


class _Watch:
    """What is in the place of Python's own while an agent works."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._restore: list[Callable[[], None]] = []

    @contextmanager
    def of(self, agent: str) -> Iterator[None]:
        """A block in which this thread is an agent's."""
        _add_hook()
        with self._lock:
            if not _recorder.working:
                self._install()
            _recorder.working[agent] += 1
        try:
            with _recorder.as_(agent):
                yield
        finally:
            with self._lock:
                _recorder.working -= Counter([agent])
                while self._restore and not _recorder.working:
                    self._restore.pop()()

    def _install(self) -> None:
        self._watch_environment(os.environ)
        self._watch_imports()
        self._watch_threads()
        for name in ("stat", "lstat", "access"):
            self._watch_questions(name)

    def _watch_environment(self, environment: Any) -> None:
        kind = type(environment)

        def get(variables: Any, name: Any) -> Any:
            _recorder.note_variable(name)
            return kind.__getitem__(variables, name)

        def put(variables: Any, name: Any, value: Any) -> None:
            _recorder.made(("variable", name))
            kind.__setitem__(variables, name, value)

        def restore() -> None:
            environment.__class__ = kind

        environment.__class__ = type(kind.__name__, (kind,), {"__getitem__": get, "__setitem__": put, "__module__": kind.__module__})
        self._restore.append(restore)

    def _watch_imports(self) -> None:
        original = builtins.__import__

        def watched(name: str, globals: Mapping[str, Any] | None = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            if not _recorder.sees:
                return original(name, globals, locals, fromlist, level)
            whole = _whole_name(name, globals, level)
            names = [whole, *(f"{whole}.{one}" for one in fromlist or () if isinstance(one, str))]
            try:
                with nullcontext() if whole in sys.modules else _recorder.importing(lambda: [*packages_above(whole), *names]):
                    return original(name, globals, locals, fromlist, level)
            finally:
                _recorder.imported(names)

        def restore() -> None:
            if builtins.__import__ is watched:
                builtins.__import__ = original

        builtins.__import__ = watched
        self._restore.append(restore)

    def _watch_threads(self) -> None:
        original = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if agent := _recorder.thread.agent:
                run = thread.run

                def watched() -> None:
                    with _recorder.as_(agent):
                        run()

                thread.run = watched  # type: ignore[method-assign]
            original(thread)

        def restore() -> None:
            if threading.Thread.start is start:
                threading.Thread.start = original  # type: ignore[method-assign]

        threading.Thread.start = start  # type: ignore[method-assign, assignment]
        self._restore.append(restore)

    def _watch_questions(self, name: str) -> None:
        original: Any = getattr(os, name)
        sets = [
            one for one in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids) if original in one
        ]

        def watched(path: Any, *args: Any, **options: Any) -> Any:
            if _recorder.sees and options.get("dir_fd") is None:
                _recorder.note_path("exists", path)
            return original(path, *args, **options)

        def restore() -> None:
            if getattr(os, name) is watched:
                setattr(os, name, original)
            for one in sets:
                one.discard(watched)

        for one in sets:
            one.add(watched)
        setattr(os, name, watched)
        self._restore.append(restore)


_watch: Final = _Watch()


def _add_hook() -> None:
    """Add the audit hook, once a process; it can never be removed, and does nothing while no agent works."""
    if not _hooked.is_set():
        _hooked.set()
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _recorder.working and event in EVENTS and _recorder.sees:
        with suppress(Exception):
            _recorder.audit(event, args)


@contextmanager
def recording(agent: str) -> Iterator[None]:
    """A block in which what this thread reads, and threads that it starts, is read by an agent.

    Args:
        agent: the agent's name in this process.
    """
    with _watch.of(agent):
        yield


@contextmanager
def not_recording() -> Iterator[None]:
    """A block of an agent's thread in which the run works for it, so that nothing counts as read by the agent."""
    with _recorder.as_(""):
        yield


@contextmanager
def loading(names: Callable[[], Iterable[str]]) -> Iterator[None]:
    """A block of ``recording`` that loads modules otherwise than by an import.

    Args:
        names: the names of the modules; called at the end.
    """
    with _recorder.importing(names):
        yield
    for name in names():
        _recorder.used(name)


def module_used(name: str) -> None:
    """Write down, in a block of ``recording``, that the agent's code is in a module, which may have been loaded before."""
    _recorder.used(name)


def leave_out(directory: Path) -> None:
    """Count nothing that is read in the directory of the sample that this thread does, until it does another one."""
    _recorder.leave_out(os.path.realpath(directory))


def runs_program(*, confined: bool) -> None:
    """Write down that the agent runs a program in its workspace, which may import what is installed.

    Args:
        confined: whether the program can read no more than the run gives it.
    """
    if _recorder.sees:
        _recorder.note(("installed", ""))
        if not confined:
            _recorder.note_unknown("It runs programs that are not confined, which may read any file of this user.")


def reads_so_far(agent: str, root: str) -> Reads:
    """What an agent has read in this process.

    Args:
        agent: its name, as for ``recording``.
        root: the directory that files are named from.
    """
    seen = _recorder.agents.get(agent, Seen())
    return Reads.of(dict(seen.states), root, set(seen.unknown), network=seen.network)


def _whole_name(name: str, globals: Mapping[str, Any] | None, level: int) -> str:
    """The whole name of a module that is imported, perhaps from within a package."""
    if not level:
        return name
    with suppress(ImportError, ValueError, TypeError):
        return importlib.util.resolve_name("." * level + name, (globals or {}).get("__package__"))
    return name
