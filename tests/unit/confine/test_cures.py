"""What a machine on which nothing confines programs is said to lack: by the files of the kernel that say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gittrix.confine.levels import CONTAINER, cures


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("file", "value", "cure"),
    [
        ("proc__sys__kernel__apparmor_restrict_unprivileged_userns", "1\n", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        ("proc__sys__kernel__unprivileged_userns_clone", "0\n", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("proc__sys__user__max_user_namespaces", "0\n", "sysctl -w user.max_user_namespaces=16384"),
        ("_dot_dockerenv", "", CONTAINER),
        ("run___dot_containerenv", "", "unmask=ALL"),
        ("sys__kernel__security__lsm", "lockdown,capability,yama", "`landlock` is not in the list after `lsm=`"),
    ],
)
def test_what_is_in_the_way_is_named_with_its_cure_and_only_where_it_is(file: str, value: str, cure: str, tmp_path: Path) -> None:
    assert cure in cures("linux", machine(tmp_path / "here", **{file: value}))
    assert cure not in cures("linux", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("proc__sys__kernel__apparmor_restrict_unprivileged_userns", "0\n"),
        ("proc__sys__kernel__unprivileged_userns_clone", "1\n"),
        ("proc__sys__user__max_user_namespaces", "31000\n"),
        ("sys__kernel__security__lsm", "capability,landlock,yama"),
    ],
)
def test_a_setting_that_is_not_in_the_way_is_not_mentioned(file: str, value: str, tmp_path: Path) -> None:
    assert cures("linux", machine(tmp_path / "here", **{file: value})) == cures("linux", tmp_path / "nothing")


def test_elsewhere_the_cure_is_linux() -> None:
    assert cures("darwin") == "Run it on Linux, such as in a virtual machine."
