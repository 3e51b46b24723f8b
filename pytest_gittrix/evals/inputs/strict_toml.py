"""TOML files read strictly: an error names the file, the key, and what is allowed there.

pydantic would make neither this module nor its users shorter, and every process that reads a suite would load it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from pytest_gittrix.errors import InvalidInput

_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_BYTES: Final = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def toml_text(text: str) -> str:
    """Write a text as TOML on one line."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_list(texts: Iterable[str]) -> str:
    """Write texts as a TOML list, each on a line of its own."""
    return "[\n" + "".join(f"  {toml_text(text)},\n" for text in texts) + "]"


class TomlTable:
    """A table of a TOML file.

    Args:
        file: the file, for messages.
        values: the content of the table.
        keys: the allowed keys.
        name: the name of the table; empty for the whole file.

    Raises:
        InvalidInput: the table has another key.
    """

    def __init__(self, file: Path, values: dict[str, Any], keys: Collection[str], name: str = "") -> None:
        self.file = file
        self._values = values
        self._name = name
        for key in values:
            if key not in keys:
                raise InvalidInput(
                    f"{file}: there is no key {self._called(key)!r}.",
                    why="A key that is not read would be a silent mistake.",
                    fix=f"Use {', '.join(sorted(keys))}.",
                )

    @classmethod
    def read(cls, file: Path, keys: Collection[str]) -> TomlTable:
        """Read a file.

        Raises:
            InvalidInput: the file cannot be read, is not TOML, or has an unknown key.
        """
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as problem:
            raise InvalidInput(f"{file} cannot be read: {problem.strerror}.", fix="Give the path of a file that is there.") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise InvalidInput(f"{file} is no TOML: {problem}.", fix="See https://toml.io for how it is written.") from None
        return cls(file, values, keys)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def table(self, key: str, keys: Collection[str]) -> TomlTable:
        """A table in this one; an empty one if the key is missing."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            self.wrong(key, "a table", value)
        return TomlTable(self.file, value, keys, self._called(key))

    def text(self, key: str, default: str | None = None, *, among: Collection[str] = ()) -> str:
        """A text without NUL.

        Args:
            key: the key.
            default: the text of a missing key; None if the key is required.
            among: the allowed texts; all by default.

        Raises:
            InvalidInput: the key is missing and required, or its value is not such a text.
        """
        value = self._values.get(key, default)
        if value is None:
            raise InvalidInput(f"{self.file}: {self._called(key)} is missing.", fix=f"Add `{key} = ...`.")
        if not isinstance(value, str) or "\0" in value:
            self.wrong(key, "a text without NUL", value)
        if among and value not in among:
            self.wrong(key, f"one of {', '.join(among)}", value)
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of texts."""
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
            self.wrong(key, "a list of texts", value)
        return tuple(value)

    def whole(self, key: str, default: int, *, least: int = 0) -> int:
        """A whole number."""
        value = self._values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.wrong(key, f"a whole number from {least}", value)
        return value

    def raw(self, key: str) -> Any:
        """The value as TOML has it; None if the key is missing."""
        return self._values.get(key)

    def milliseconds(self, key: str, default: int) -> int:
        """A time such as ``90s`` or ``2m``, in milliseconds."""
        return self._scaled(key, default, _MILLISECONDS, "a time such as 500ms, 90s, 2m or 1h")

    def size(self, key: str, default: int) -> int:
        """A size such as ``10MB``, in bytes."""
        return self._scaled(key, default, _BYTES, "a size such as 500kB or 10MB")

    def _scaled(self, key: str, default: int, units: dict[str, int], meant: str) -> int:
        value = self._values.get(key)
        if value is None:
            return default
        match = re.fullmatch(r"([1-9][0-9]{0,8})([A-Za-z]+)", value) if isinstance(value, str) else None
        if match is None or match[2] not in units:
            self.wrong(key, meant, value)
        return int(match[1]) * units[match[2]]

    def inside(self, key: str, *, directory: bool) -> Path | None:
        """The path of an existing file or directory beside this file or below; None if the key is missing.

        Args:
            key: the key of the path, which is relative, with ``/``.
            directory: whether it must be a directory, or a file.

        Raises:
            InvalidInput: the path leads elsewhere, or does not exist.
        """
        if key not in self._values:
            return None
        text = self.text(key)
        path = self.beside(text, directory=directory)
        if path is None:
            self.wrong(key, f"the path of a {'directory' if directory else 'file'} that is there, inside the case's own directory", text)
        return path

    def beside(self, text: str, *, directory: bool) -> Path | None:
        """An existing file or directory beside this file or below; None if it is missing or, perhaps by a link, elsewhere."""
        root, path = self.file.parent, self.file.parent / text
        if not text or text.startswith("/") or ".." in Path(text).parts:
            return None
        try:
            within = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
            return path if within and (path.is_dir() if directory else path.is_file()) else None
        except OSError:  # a name that is too long, for one
            return None

    def wrong(self, key: str, meant: str, value: object) -> NoReturn:
        """Refuse a value. Raises InvalidInput."""
        raise InvalidInput(
            f"{self.file}: {self._called(key)} is {value!r:.200}, not {meant}.",
            why="A suite says exactly what is run, or its results say nothing.",
            fix=f"Give {meant}.",
        )

    def _called(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key
