"""What an agent consists of: modules of the project, installed distributions, programs, and files next to its code.

Sources are read and never run. What cannot be known from them is listed, so that results of another agent are not taken for this one's.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.agent_values import bound_values
from pytest_gittrix.evals.inputs.identity import Json

UNKNOWN: Final = "unknown"
"""The key of an identity with the parts of the agent that cannot be known, one sentence each."""

_TOOLS: Final = """
[ awk basename bunzip2 bzip2 cat chmod chown cksum clear cmp comm cp csplit cut date dd df diff diff3 dirname du echo ed egrep expand
expr factor false fgrep file fmt fold gawk git grep gunzip gzip head hexdump id install join kill less link ln ls md5sum mkdir mkfifo
mktemp more mv nl nproc od paste patch pathchk pr printenv printf ps pwd readlink realpath rev rm rmdir sed seq sha1sum
sha256sum shuf sleep sort split stat strings sync tac tail tar tee test touch tr true truncate tsort tty uname unexpand uniq
unlink unxz unzip wc which whoami xxd xz yes zip
"""
PLAIN_TOOLS: Final = frozenset(_TOOLS.split())
"""Programs that read nothing but what their arguments name; the digest of such a program is all there is to know of it."""

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_BUILT_IN: Final = """
! : [[ break case cd continue do done echo elif else esac exit export false fi for function if in local printf pwd read readonly return
set shift then trap true type ulimit umask unset until wait while
"""
_SHELL_WORDS: Final = frozenset(_BUILT_IN.split())
_BEFORE_A_COMMAND: Final = frozenset({"!", "do", "then", "else", "if", "elif", "while", "until", "exec", "time"})
_PYTHON_OPTION_WITH_VALUE: Final = frozenset({"-W", "-X"})
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_STARTS_PROGRAMS: Final = frozenset({"run", "Popen", "call", "check_call", "check_output", "execv", "execvp", "create_subprocess_exec"})
_RUNS_CODE: Final = frozenset({"exec", "eval", "runpy.run_path", "runpy.run_module"})
_SUFFIXES: Final = ".cfg .csv .html .ini .j2 .jinja .jinja2 .json .md .prompt .rst .sql .tmpl .toml .txt .xml .yaml .yml"
_DATA: Final = frozenset(_SUFFIXES.split())
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_PACKAGE: Final = __name__.partition(".")[0]
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class AgentCode:
    """The parts of an agent, collected by following imports and names of programs.

    Args:
        path: the search path of programs.

    Attributes:
        modules: the digests of modules of the project, by name.
        files: the digests of data files that the code names, by name.
        distributions: the versions of installed distributions that are imported, and of those that they require.
        programs: the digests of programs found on the search path, by name.
        unknown: what cannot be known, one sentence each.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._directories: list[str] = []
        self._examined: set[str] = set()
        self.modules: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.distributions: dict[str, str] = {}
        self.programs: dict[str, str] = {}
        self.unknown: list[str] = []
        importlib.invalidate_caches()

    def to_json(self) -> dict[str, Json]:
        """The parts as fields of an identity; a field without content is left out."""
        fields: dict[str, Json] = {
            "modules": self.modules,
            "data": self.files,
            "distributions": self.distributions,
            "programs": self.programs,
            UNKNOWN: sorted(set(self.unknown)),
        }
        return {name: value for name, value in fields.items() if value}

    def add_script(self, file: Path, *, adjacent: bool = True) -> None:
        """Add what a Python file uses; the file itself is not added.

        Args:
            file: the file, or a zip file of modules.
            adjacent: whether modules are looked for in the file's directory first, as Python does for a script.
        """
        if adjacent:
            self._directories.insert(0, str(file.parent))
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                inside = [name for name in archive.namelist() if name.endswith(".py")]
                own = {name.split("/")[0].removesuffix(".py") for name in inside}
                for name in inside:
                    self._add_source(archive.read(name), name, package="", place=None, own=own)
            return
        self._add_source(file.read_bytes(), file.name, package="", place=file.parent)

    def add_module(self, name: str) -> None:
        """Add a module and what it uses, by its dotted name."""
        if name in self._examined:
            return
        self._examined.add(name)
        spec = self._spec_of(name)
        if spec is None:
            return
        top = name.partition(".")[0]
        origin = spec.origin if spec.has_location else None
        if origin is None:  # a namespace package, or a module that is built in
            return
        if not _INSTALLED.isdisjoint(Path(origin).parts) and self._add_distribution(top):
            return
        file = Path(origin)
        with suppress(OSError):
            data = file.read_bytes()
            self.modules[name] = _sha256(data)
            if file.suffix == ".py":
                package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
                self._add_source(data, f"{name} ({file.name})", package=package, place=file.parent)

    def _spec_of(self, name: str) -> importlib.machinery.ModuleSpec | None:
        parent, _, _ = name.rpartition(".")
        if parent:
            self.add_module(parent)
            above = self._spec_of(parent)
            places = above.submodule_search_locations if above is not None else None
            return importlib.machinery.PathFinder.find_spec(name, [*places]) if places is not None else None
        found = importlib.machinery.PathFinder.find_spec(name, self._directories) if self._directories else None
        if found is not None or name in sys.stdlib_module_names or name == _PACKAGE:
            return found
        with suppress(ValueError, ImportError, AttributeError):
            return importlib.util.find_spec(name)
        return None

    def _add_source(self, data: bytes, where: str, *, package: str, place: Path | None, own: Collection[str] = ()) -> None:
        try:
            tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError):
            self.unknown.append(f"{where} is not Python that can be read.")
            return
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    self._add_modules((alias.name for alias in names), own)
                case ast.ImportFrom(module=module, names=names, level=level):
                    base = _absolute(module, level, package)
                    self._add_modules((base, *(f"{base}.{alias.name}" for alias in names)), own)
                case ast.Call():
                    self._add_call(node, where, own)
                case ast.Constant(value=str() as text) if place is not None:
                    self._add_data(text, place)

    def _add_modules(self, names: Iterable[str], own: Collection[str]) -> None:
        for name in names:
            if name and not name.startswith(".") and name.partition(".")[0] not in own:
                self.add_module(name)

    def _add_call(self, call: ast.Call, where: str, own: Collection[str]) -> None:
        name, given = ast.unparse(call.func), call.args[0] if call.args else None
        last = name.rpartition(".")[2]
        if last in ("import_module", "__import__"):
            if isinstance(given, ast.Constant) and isinstance(given.value, str) and not given.value.startswith("."):
                self._add_modules([given.value], own)
            else:
                self.unknown.append(f"{where} imports modules by names that it computes.")
        elif name in _RUNS_CODE or last == "spec_from_file_location":
            self.unknown.append(f"{where} runs code by {last}.")
        elif last in _STARTS_PROGRAMS:
            words = given.elts if isinstance(given, ast.List | ast.Tuple) else [given]
            texts = [word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else "$" for word in words]
            if texts and "$" not in texts[0]:
                self.add_command(texts if isinstance(given, ast.List | ast.Tuple) else ["sh", "-c", texts[0]])

    def _add_data(self, text: str, place: Path) -> None:
        if len(text) > 200 or "\n" in text or "\0" in text or os.path.splitext(text)[1] not in _DATA or os.path.isabs(text):
            return
        file = place / text
        with suppress(OSError):
            if file.is_file():
                self.files[text] = _sha256(file.read_bytes())

    def _add_distribution(self, top: str) -> bool:
        waiting = [*_distributions().get(top, ())]
        known = bool(waiting)
        while waiting:
            name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
            if name in self.distributions:
                continue
            with suppress(importlib.metadata.PackageNotFoundError):
                found = importlib.metadata.distribution(name)
                self.distributions[name] = found.version
                needed = [one for one in found.requires or () if "extra" not in one.partition(";")[2]]
                waiting += [match[0] for one in needed if (match := _REQUIREMENT.match(one))]
        return known

    def add_command(self, argv: Sequence[str]) -> None:
        """Add what a command uses: its program, what an interpreter is given to run, and the programs that its words name."""
        for word in argv:
            self._add_program(word)
        name = os.path.basename(argv[0])
        if name == "env" and "/" not in argv[0]:
            rest = [word for word in argv[1:] if "=" not in word]
            if rest and not rest[0].startswith("-"):
                self.add_command(rest)
            return
        file = shutil.which(argv[0], path=self._path)
        if file is None:
            self.unknown.append(f"{name} is not a program on the search path.")
        elif _is_this_python(file):
            self._add_python(argv[1:])
        elif name in _SHELLS:
            self._add_shell(argv[1:])
        elif "/" in argv[0] or name not in PLAIN_TOOLS:
            self._add_interpreted(Path(file), name)

    def _add_program(self, word: str) -> None:
        file = shutil.which(word, path=self._path) if word and "/" not in word and not word.startswith("-") else None
        if file is not None and not _is_this_python(file):
            with suppress(OSError):
                self.programs[word] = _digest_of_program(file, os.stat(file).st_mtime_ns)

    def _add_interpreted(self, file: Path, name: str) -> None:
        """Add a program by its first line: a script of this Python or of a shell can be read, anything else cannot."""
        try:
            with file.open("rb") as stream:
                first = stream.readline(200)
        except OSError:
            first = b""
        interpreter = os.path.basename(first.removeprefix(b"#!").split()[-1].decode(errors="replace")) if first.startswith(b"#!") else ""
        if _PYTHON.fullmatch(interpreter) and (b"env " in first or _is_this_python(first[2:].split()[0].decode(errors="replace"))):
            self.add_script(file)
        elif interpreter in _SHELLS:
            self._add_shell([str(file)])
        else:
            self.unknown.append(f"{name} is a program whose parts cannot be known.")

    def _add_python(self, arguments: Sequence[str]) -> None:
        words = iter(arguments)
        for word in words:
            if word == "-c":
                self._add_source(next(words, "").encode(errors="surrogatepass"), "the code of -c", package="", place=None)
            elif word == "-m":
                name = next(words, "")
                self._add_modules([name, f"{name}.__main__"], ())
            elif word in _PYTHON_OPTION_WITH_VALUE:
                next(words, None)
                continue
            elif word.startswith("-") and word != "-":
                continue
            elif os.path.isfile(word):
                self.add_script(Path(word))
            else:
                self.unknown.append(f"{word} is not a file that Python can be seen to run.")
            return

    def _add_shell(self, arguments: Sequence[str]) -> None:
        rest = [word for word in arguments if not re.fullmatch(r"-[eux]+", word)]
        if rest[:1] == ["-c"] and len(rest) > 1:
            self._add_shell_text(rest[1])
        elif rest and os.path.isfile(rest[0]):
            self._add_shell_text(Path(rest[0]).read_text(errors="replace"))
        else:
            self.unknown.append("A shell reads commands that cannot be known.")

    def _add_shell_text(self, text: str) -> None:
        if text in self._examined:
            return
        self._examined.add(text)
        for segment in re.split(r"[;&|()`{}\n]+|\$\(", re.sub(r"(?m)(^|\s)#.*$", "", text).replace("\\\n", " ")):
            try:
                words = shlex.split(segment)
            except ValueError:
                words = ["$"]
            while words and (words[0] in _BEFORE_A_COMMAND or re.match(r"[A-Za-z_]\w*=", words[0])):
                words.pop(0)
            if not words or (words[0] in _SHELL_WORDS and words[0] not in (".", "source", "eval")):
                continue
            if "$" in words[0] or words[0] in (".", "source", "eval"):
                self.unknown.append("A shell script runs what its text does not name.")
            else:
                self.add_command(words)


def load(name: str, *, adjacent: bool = False) -> ModuleType:
    """Load a module by its name or by the path of its file.

    Args:
        name: the name, or a path that ends with ``.py``.
        adjacent: whether the module may import those in its file's directory, which is the last on Python's path from then on, so that they
            replace no module of the standard library or of a distribution.

    Raises:
        InvalidInput: there is no such module, or loading it raised.
    """
    try:
        if name.endswith(".py"):
            path = Path(name)
            if adjacent and str(path.parent) not in sys.path:
                sys.path.append(str(path.parent))
            return _from_source(str(path), path.read_bytes())
        return importlib.import_module(name)
    except Exception as problem:
        raise InvalidInput(
            f"{name!r} cannot be loaded: {type(problem).__name__}: {problem}.", fix="Give a module, or the path of a .py file."
        ) from problem


@lru_cache(maxsize=64)
def _from_source(path: str, source: bytes) -> ModuleType:
    # A unique name, since many cases have a check.py.
    name = f"gittrix_eval_{hashlib.sha256(path.encode() + source).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def search_path() -> str:
    """The search path of the programs of a run: the directory of this Python first, so that ``python`` means this one."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


def _absolute(module: str | None, level: int, package: str) -> str:
    if not level:
        return module or ""
    above = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*above, *([module] if module else [])])


def _is_this_python(file: str) -> bool:
    same = os.path.dirname(os.path.abspath(file)) == os.path.dirname(os.path.abspath(sys.executable))
    return bool(_PYTHON.fullmatch(os.path.basename(file))) and (same or os.path.realpath(file) == os.path.realpath(sys.executable))


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()


@lru_cache(maxsize=256)
def _digest_of_program(file: str, _changed_ns: int) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def code_of_function(spec: str, name: str, function: Callable[..., Any] | None = None) -> dict[str, Json]:
    """The parts of an agent that is a Python function, as fields of its identity.

    Args:
        spec: the absolute path of its file, or the name of its module; empty if it has no source.
        name: the name of the function's file or module for people.
        function: the function itself, if its values count too.
    """
    code = AgentCode(search_path())
    if spec.endswith(".py"):
        code.add_script(Path(spec), adjacent=False)
    elif spec:
        code.add_module(spec)
    else:
        code.unknown.append(f"{name} has no source.")
    fields = code.to_json()
    if function is not None:
        bound, unknown = bound_values(function)
        if bound:
            fields["values"] = bound
        if unknown:
            fields[UNKNOWN] = sorted({*fields.get(UNKNOWN, []), *unknown})
    return fields
