"""The code of agents and of checks: modules by their name or their file, and the path that programs are looked for on."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final

from pytest_gittrix.errors import InvalidInput

UNKNOWN: Final = "unknown"
"""The key of an identity with the parts of the agent that cannot be known, one sentence each."""


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
