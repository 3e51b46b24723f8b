"""The program that runs hidden tests. It runs by itself, with nothing of the package.

As ``subject`` it loads no code of the result: an import of the result's modules gives a stand-in, and calls cross a pipe to a process of
their own. This process cannot be read or traced by that one (unless that one is root with all its powers), and has the text of the test
file in its memory only. As ``here`` the code under test is loaded into this process, for tests that cannot cross; then every answer of
this program may be forged, and only a canary tells.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import linecache
import os
import secrets
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

_PR_SET_DUMPABLE = 4


class Opaque(TypeError):
    """A test did something with an object of the code under test that cannot cross."""


class Gone(RuntimeError):
    """The process of the code under test is gone, or answered what is no answer."""


class Raised(Exception):
    """The code under test raised something that cannot cross."""


class Subject:
    """The process of the code under test."""

    def __init__(self, program: str, checkout: str, roots: list[str], scalar: Any) -> None:
        ask, self._ask = os.pipe()
        self._answers, tell = os.pipe()
        argv = [sys.executable, "-P", "-s", "-c", program, str(ask), str(tell), *roots]
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(argv, cwd=checkout, pass_fds=(ask, tell), stdin=nowhere, stdout=nowhere, stderr=nowhere)
        os.close(ask)
        os.close(tell)
        self._reader = os.fdopen(self._answers, "rb")
        self._scalar = scalar
        self.touched = self.decided = self.asked = self.gone = False
        self._copies = Copies(self)

    def do(self, what: str, *given: Any) -> Any:
        """Have something done there; return the value, or raise what was raised."""
        if self._copies.differ() or threading.current_thread() is not threading.main_thread():
            # One call after the other crosses: a thread that waits for another one there would wait for ever.
            self.touched = True
            raise Opaque("a call of another thread, or one after the test changed a value that both sides have, cannot cross")
        nonce = secrets.token_hex(8)
        place = {"environment": dict(os.environ), "directory": os.getcwd()}
        request = {"do": what, "nonce": nonce, "given": [self.encode(one) for one in given], **place}
        found = self._exchange(json.dumps(request).encode("utf-8", "surrogatepass") + b"\n")
        if found.get("nonce") != nonce:
            self._lost("an answer was forged")
        sys.stdout.write(str(found.get("out", "")))
        sys.stderr.write(str(found.get("err", "")))
        if what == "call":
            for argument, changed in zip(given[1], found.get("changed", []), strict=False):
                self._take_over(argument, changed)
            self._copies.watch(*given[1], *given[2].values())
        if "raised" in found:
            raise self._exception(found["raised"])
        value = self.decode(found.get("value"))
        self._copies.watch(value)
        return value

    def _exchange(self, line: bytes) -> dict[str, Any]:
        try:
            self._write_all(line)
            found: Any = json.loads(self._reader.readline())
        except (OSError, ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else self._lost("the code under test ended its process")

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._ask, data) :]

    def _lost(self, why: str) -> Any:
        self.gone = True
        raise Gone(why)

    def _exception(self, raised: list[Any]) -> BaseException:
        module, name, arguments, text = raised
        kind: Any = None
        if module == "builtins":
            kind = getattr(builtins, str(name), None)
        elif str(module).partition(".")[0] in sys.stdlib_module_names - {"bdb", "unittest"}:  # these two would end or skip the test
            kind = getattr(importlib.import_module(module), str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(TypeError):
                return kind(*self.decode(arguments))
        self.touched = self.touched or not (isinstance(kind, type) and kind.__module__ == "builtins")
        return Raised(f"the code under test raised {text}")

    def _take_over(self, argument: Any, changed: Any) -> None:
        if changed is None or type(argument) not in (list, dict, set, bytearray):
            return
        value = self.decode(changed)
        if type(value) is not type(argument):
            return
        if isinstance(argument, (list, bytearray)):
            argument[:] = value
        else:
            argument.clear()
            argument.update(value)

    def encode(self, value: Any) -> Any:
        """A value for the other process. Raises Opaque for one that cannot cross."""
        if isinstance(value, RemoteObject):
            self.decided = self.decided or object.__getattribute__(value, "_decides")
            return ["object", object.__getattribute__(value, "_number")]
        if isinstance(value, StandIn):
            return ["module", value.__name__]
        kind = type(value)
        if kind in (list, tuple, set, frozenset):
            return [kind.__name__, [self.encode(item) for item in value]]
        if kind is dict:
            return ["dict", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        encoded = self._scalar.encode(value)
        if isinstance(encoded, list) and encoded[0] in ("object", "function", "module"):
            self.touched = True
            raise Opaque(f"{kind.__name__} cannot cross to the code under test")
        return encoded

    def decode(self, value: Any) -> Any:
        """A value of the other process: a plain one, or an object by its number."""
        if not isinstance(value, list):
            return value if type(value) in (str, int, bool, type(None)) else self._lost("a value was forged")
        try:
            kind, *rest = value
            if kind in ("object", "decider", "function"):
                self.touched = self.touched or kind != "function"
                self.decided = self.decided or kind == "decider"
                return RemoteObject(self, int(rest[0]), kind == "decider")
            if kind == "module":
                return importlib.import_module(str(rest[0])) if _finder.has(str(rest[0])) else self._opaque_module()
            if kind == "dict":
                return {self.decode(key): self.decode(item) for key, item in rest[0]}
            if kind in ("list", "tuple", "set", "frozenset"):
                return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](self.decode(item) for item in rest[0])
            return self._scalar.decode_scalar(kind, rest)
        except (ValueError, TypeError, IndexError, RecursionError, ArithmeticError):
            if not self.gone:
                self._lost("a value was forged")
            raise

    def _opaque_module(self) -> Any:
        self.touched = True
        raise Opaque("a module that is not the result's cannot cross")


class Copies:
    """The containers of which both sides have one: what the test changes in its own is not changed in the other."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._watched: list[tuple[list[Any], Any]] = []

    def watch(self, *values: Any) -> None:
        """Watch the containers among some values from now on."""
        for value in values:
            parts = _parts(value)
            if parts:
                self._watched.append((parts, self._encoded(value)))

    def differ(self) -> bool:
        """Whether the test has changed one, or has too many to look at; those that it has no more are forgotten."""
        if any(self._encoded(parts[0]) != before for parts, before in self._watched):
            return True
        self._watched = [one for one in self._watched if _are_held(one[0])]
        return len(self._watched) > _MOST_COPIES

    def _encoded(self, value: Any) -> Any:
        decided = self._subject.decided
        encoded = self._subject.encode(value)
        self._subject.decided = decided
        return encoded


_MOST_COPIES = 1000


def _parts(value: Any) -> list[Any]:
    """A value and all containers in it, if it can change or has one that can; nothing otherwise."""
    kind = type(value)
    items = [*value, *value.values()] if kind is dict else value if kind in (list, tuple, set, frozenset) else ()
    inner = [part for item in items for part in _parts(item)]
    return [value, *inner] if inner or kind in (list, dict, set, bytearray) else []


def _counts(parts: list[Any]) -> list[int]:
    return [sys.getrefcount(part) for part in parts]


_ALONE = _counts([[]])[0]


def _are_held(parts: list[Any]) -> bool:
    """Whether anything else than the list of these parts, and the parts themselves, refers to one of them."""
    return any(count > _ALONE + (number > 0) for number, count in enumerate(_counts(parts)))


class RemoteObject:
    """An object of the code under test, by its number. What the object would decide about itself (equality, truth) is refused."""

    def __init__(self, subject: Subject, number: int, decides: bool) -> None:
        object.__setattr__(self, "_subject", subject)
        object.__setattr__(self, "_decides", decides)
        object.__setattr__(self, "_number", number)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # What kind of object this is, another process says. Typeshed has a setter here, which isinstance does not need.
        object.__getattribute__(self, "_subject").asked = True
        return RemoteObject

    def _do(self, what: str, *given: Any) -> Any:
        subject: Subject = object.__getattribute__(self, "_subject")
        return subject.do(what, self, *given)

    def _refuse(self, *_: Any) -> Any:
        object.__getattribute__(self, "_subject").touched = True
        raise Opaque("an object of the code under test would decide about itself")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            object.__getattribute__(self, "_subject").touched = True
        return self._do("getattr", name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_subject").do("call", self, list(args), named)

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)

    def __str__(self) -> Any:
        return self._exact(self._do("str"), str)

    def __repr__(self) -> str:
        return "<an object of the code under test>"

    def _number_of(self, what: str, kind: Any) -> Any:
        object.__getattribute__(self, "_subject").decided = True
        return self._exact(self._do(what), kind)

    def _exact(self, value: Any, kind: Any) -> Any:
        return value if type(value) is kind else self._refuse()

    __iter__, __next__ = functools.partialmethod(_do, "iter"), functools.partialmethod(_do, "next")
    __len__, __int__ = functools.partialmethod(_number_of, "len", int), functools.partialmethod(_number_of, "int", int)
    __float__ = functools.partialmethod(_number_of, "float", float)
    __setattr__ = __delattr__ = __setitem__ = __contains__ = __bool__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __index__ = __enter__ = __mro_entries__ = _refuse


class StandIn(types.ModuleType):
    """A module of the result, in whose place its attributes are asked for."""

    def __getattr__(self, name: str) -> Any:
        subject = _finder.subject()
        if _finder.owns(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        if name.startswith("__") and name not in ("__version__", "__doc__", "__all__"):
            raise AttributeError(name)
        try:
            return subject.do("getattr", self, name)
        except AttributeError:
            subject.touched = subject.touched or name == "__all__"
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or _finder.owns(f"{self.__name__}.{name}"):
            super().__setattr__(name, value)
            return
        if _finder.has(f"{self.__name__}.{name}"):
            return  # the import system sets a submodule
        _finder.subject().touched = True
        raise Opaque("an attribute of the code under test cannot be set from outside")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the result, and makes stand-ins for them."""

    def __init__(self) -> None:
        self._test = ""
        self._text = -1
        self._make: Any = None
        self._places: Any = None
        self._subject: Subject | None = None
        self.keeps: Any = lambda: True  # whether no program could read the files beside the tests

    def begin(self, places: Any, make: Any, test: str) -> None:
        """Look for modules of the result in ``places``; ``make`` starts the subject when the first one is imported."""
        self._places, self._make, self._test = places, make, test
        # A fixture of a conftest may start the subject before pytest has read the test file: only this process can open that.
        self._text = os.memfd_create("test")
        os.write(self._text, Path(test).read_bytes())
        os.unlink(test)
        os.symlink(f"/dev/fd/{self._text}", test)

    def owns(self, name: str) -> bool:
        """Whether a module of that name is the tests'."""
        return self._places.own(name) is not None

    def hide(self) -> None:
        """Forget the test file, which pytest has read by now."""
        linecache.getlines(self._test)
        os.unlink(self._test)
        os.close(self._text)

    def subject(self) -> Subject:
        """The process of the code under test, which is started when it is needed."""
        if self._subject is None:
            self._subject = self._make()
        return self._subject

    @property
    def started(self) -> Subject | None:
        """The process if it was started."""
        return self._subject

    def has(self, name: str) -> bool:
        """Whether a module of that name is the result's."""
        return self._places.of_result(name) is not None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  (part of the protocol)
        """The specification of a stand-in."""
        place = self._places.of_result(name)
        if place is not None and name.partition(".")[0] not in _LOADED_BEFORE:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [str(place)] if place.is_dir() else []
            file = place / "__init__.py" if place.is_dir() else place.with_name(f"{place.name}.py")
            spec.origin, spec.has_location = str(file), file.is_file()
            return spec
        return None

    def create_module(self, spec: Any) -> Any:
        """The stand-in; the module is imported in the other process."""
        self.subject().do("import", spec.name)
        return StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        """Nothing: the module already exists."""


_finder = Finder()
_LOADED_BEFORE: set[str] = set()


def main() -> None:
    """Run the tests that standard input describes, and write the answer."""
    request = json.loads(sys.stdin.buffer.read())
    home = os.environ["HOME"]
    answer = os.open(os.path.join(home, request["answer"]), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    write, leave, dumps = os.write, sys.exit, json.dumps
    checkout = os.path.realpath(os.getcwd())
    secrecy = _module_of(request["secrecy"])
    directory, test, settings = secrecy.write_hidden_files(request, home)
    roots = [os.path.normpath(os.path.join(checkout, one)) for one in request["roots"] if os.path.isdir(os.path.join(checkout, one))]
    import pytest

    secrecy.keep_names()
    witness = _module_of(request["recorder"]).OutcomeRecorder(_finder if request["way"] == "subject" else None, checkout, directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)
    places = _module_of(request["places"]).ModulePlaces(directory, test, roots, request["known"])
    taken = places.taken([*sys.modules])
    sys.meta_path.insert(0, places)
    if request["way"] == "subject":
        kept = secrecy.Secrecy(directory)
        _finder.keeps = lambda: kept.kept or not request["support"]
        _begin_subject(request, checkout, roots, places, test)
    else:
        sys.path[:0] = roots
    reads = _module_of(request["reads"]).watched(request, directory, checkout, secrecy)
    collected = _module_of(request["collected"]).CollectedTests(request["chosen"], request["rows"])
    chosen = [f"{test}::{name}" for name in collected.functions] or [test]
    # Tests with support files import these as in their own project.
    mode = "prepend" if request["support"] else "importlib"
    os.environ["PY_IGNORE_IMPORTMISMATCH"] = "1"  # in this mode pytest would look for the test file again, which is gone by then
    options = ["-q", "-p", "no:cacheprovider", f"--import-mode={mode}", "-c", settings, "--rootdir", directory]
    status = int(pytest.main([*options, *chosen], plugins=[witness, collected]))
    subject = _finder.started
    if subject is not None:
        subject.process.kill()
        subject.process.wait()
    found = {
        "secret": request["secret"],
        "status": status,
        "tests": witness.tests,
        "rows": collected.places,
        "taken": taken,
        "looked": sorted(reads.found) if reads is not None else [],
        "given_up": witness.given_up,
        "collisions": sorted(places.collisions),
        "missing": witness.ended != witness.collected,
        "ended": [witness.ended, witness.collected],
        "touched": subject is not None and subject.touched,
        "gone": subject is not None and subject.gone,
    }
    write(answer, dumps(found).encode())
    leave(status)


def _module_of(text: str) -> Any:
    module = types.ModuleType("part")
    exec(compile(text, "<part>", "exec"), module.__dict__)
    return module


def _begin_subject(request: dict[str, Any], checkout: str, roots: list[str], places: Any, test: str) -> None:
    scalar = _module_of(request["subject"])

    def make() -> Subject:
        return Subject(request["subject"], checkout, roots, scalar)

    _finder.begin(places, make, test)
    _LOADED_BEFORE.update(name.partition(".")[0] for name in sys.modules)
    sys.meta_path.insert(0, _finder)


if __name__ == "__main__":
    main()
