"""Paths that a commit can hold and other machines or programs cannot take."""

from __future__ import annotations

import os

import pytest

from pytest_gittrix.git.worktree.hazards import hazards, unportable


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nul", "'nul' is a device"),
        ("lib/CON", "'CON' is a device"),
        ("aux.txt", "'aux.txt' is a device"),
        ("aux .tar.gz", "is a device"),
        ("com1/x", "'com1' is a device"),
        ("LPT²", "is a device"),
        ("conin$", "is a device"),
        ("a:b", "no ':' in a name"),
        ("what?", "no '?' in a name"),
        ("back\\slash", "no '\\\\' in a name"),
        ("a\nb", "no '\\n' in a name"),
        ("dot.", "drops the last character of 'dot.'"),
        ("space /x", "drops the last character of 'space '"),
        (os.fsdecode(b"caf\xe9"), "only names in UTF-8"),
    ],
)
def test_a_name_that_windows_or_macos_cannot_have_is_told_with_its_reason(path: str, reason: str) -> None:
    assert reason in unportable(path)
    assert [*hazards({path, "plain"})] == [path]


@pytest.mark.parametrize(
    "path", ["null", "console", "auxiliary.c", "com", "com10", "lpt", ".gitignore", "a b/c.d", "é", "..x", "nul-1.txt"]
)
def test_a_name_that_only_looks_alike_is_fine(path: str) -> None:
    assert unportable(path) == ""


REPOSITORY = ("HEAD", "config", "objects/pack/pack-1.pack", "objects/pack/pack-1.idx", "refs/heads/main")


CONFIG_AND_PACKS = ("config", "objects/pack/pack-1.pack", "objects/pack/pack-2.pack")


@pytest.mark.parametrize("names", [REPOSITORY, CONFIG_AND_PACKS])
@pytest.mark.parametrize("above", [".git_disabled", "deep/down/bare.git", ""])
def test_the_files_of_a_bare_repository_are_told_once(above: str, names: tuple[str, ...]) -> None:
    found = hazards({f"{above}/{name}".lstrip("/") for name in names})
    assert [*found] == [above or "."]
    assert "files of a git repository" in found[above or "."]


@pytest.mark.parametrize(
    "names",
    [
        ("HEAD", "config", "refs/heads/main", "index"),
        ("HEAD", "objects/x"),
        ("objects/x", "config"),
        ("a/config", "b/objects/pack/pack-1.pack"),
        ("config/x", "objects/pack/pack-1.pack"),
    ],
)
def test_a_part_of_a_repository_is_none(names: tuple[str, ...]) -> None:
    assert hazards({*names}) == {}


def test_a_repository_inside_is_told_if_its_files_are_added() -> None:
    assert [*hazards({"lib/a", "x"}, ["lib", "other"])] == ["lib"]
