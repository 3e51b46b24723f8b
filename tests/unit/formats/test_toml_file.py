"""One loader of TOML: its errors name the file, the line, the key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.formats.toml_file import TomlTable, load_toml


class Part(TomlTable):
    colour: str
    size: int = 1


class Whole(TomlTable):
    parts: dict[str, Part]


@pytest.mark.parametrize(
    ("text", "fact", "fix"),
    [
        ('[parts.a]\ncolour = "red"\nsise = 2\n', ", line 3: parts.a.sise: no such key; there are: colour, size", "Did you mean size? "),
        ("[parts.a]\nsize = 2\n", ", line 1: parts.a.colour: must be given", "The keys are: colour, size. "),
        (
            '[parts.a]\ncolour = "red"\nsize = "2"\n',
            ", line 3: parts.a.size: Input should be a valid integer, not '2'",
            "Nothing of the file",
        ),
        ("[parts]\na = 3\n", ", line 2: parts.a: Input should be a table, not 3", "Nothing of the file"),
        ("[parts\n", " is not TOML: ", "See https://toml.io"),
        (f"parts = {'1' * 5000}\n", " is not TOML: ", "See https://toml.io"),
        (f"parts = {'[' * 5000}\n", " is not TOML: ", "See https://toml.io"),
    ],
)
def test_an_error_names_file_line_key_and_what_is_allowed(tmp_path: Path, text: str, fact: str, fix: str) -> None:
    file = tmp_path / "file.toml"
    file.write_text(text)

    with pytest.raises(InvalidInput) as refused:
        load_toml(file, Whole)

    assert refused.value.fact.startswith(f"{file}{fact}")
    assert refused.value.fix.startswith(fix)


def test_a_line_is_named_only_where_the_key_stands_once(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text('[parts.a]\ncolour = "red"\n[parts.b]\ncolour = 3\n')

    with pytest.raises(InvalidInput) as refused:
        load_toml(file, Whole)

    assert refused.value.fact.startswith(f"{file}, line 3: parts.b.colour: ")


def test_all_that_is_wrong_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text("[parts.a]\ncolour = 3\nsize = true\n")

    with pytest.raises(InvalidInput) as refused:
        load_toml(file, Whole)

    assert "parts.a.colour" in refused.value.fact
    assert "parts.a.size" in refused.value.why
