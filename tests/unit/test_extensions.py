"""Registrations by name: ours without a look at other packages, and theirs by entry points, through the same hooks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest

from pytest_gittrix import extensions
from pytest_gittrix.commands.declaration import Later
from pytest_gittrix.errors import CapabilityMissing, InvalidInput
from pytest_gittrix.evals.runs.agents import agent_of
from pytest_gittrix.evals.runs.executors import factory_of
from pytest_gittrix.extensions import OURS, Extension, Names, find, made, registered


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two packages that extend this one."""
    (tmp_path / "theirs.py").write_text(
        "def gittrix_views(): return {'gittrix': ('builtins:dict',), 'acme': ('acme.view', 'first')}\n"
        "def gittrix_executors(): return {'acme': ('theirs:executor',)}\n"
        "def gittrix_agents(): return {'acme': ('theirs:agent',)}\n"
        "def executor(address): return lambda workers: (address, workers)\n"
        "def agent(text): return ('agent', text)\n"
    )
    (tmp_path / "later.py").write_text("def gittrix_views(): return {'acme': ('later.view',), 'lost': ('no_such_module',)}\n")
    (tmp_path / "extra-1.dist-info").mkdir()
    (tmp_path / "extra-1.dist-info" / "METADATA").write_text("Name: extra\nVersion: 1\n")
    (tmp_path / "extra-1.dist-info" / "entry_points.txt").write_text("[gittrix]\na = theirs\nb = later\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield
    forget()
    sys.modules.pop("theirs", None)
    sys.modules.pop("later", None)


def forget() -> None:
    registered.cache_clear()
    extensions.declared.cache_clear()
    extensions.hooks.cache_clear()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OURS.items() for name in names])
def test_each_of_ours_is_found_without_a_look_at_other_packages(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = OURS[kind][name].load()
    forget()
    monkeypatch.setattr(extensions, "declared", lambda: pytest.fail("other packages were looked at"))

    assert find(kind, name) == loaded
    assert name in Names(kind)


@pytest.mark.usefixtures("others")
def test_names_of_other_packages_come_after_ours_and_replace_none() -> None:
    assert [*Names("views")] == [*OURS["views"], "acme", "lost"]
    assert registered("views")["gittrix"] == OURS["views"]["gittrix"]
    assert registered("views")["acme"] == Extension("acme.view", "first")
    assert "nothing" not in Names("views")


@pytest.mark.usefixtures("others")
def test_executors_and_agents_get_the_text_behind_their_name() -> None:
    made: list[object] = [factory_of("acme:tcp://x")(2), factory_of("acme")(2)]
    assert made == [("tcp://x", 2), (None, 2)]
    agent: object = agent_of("acme:do it")
    assert agent == ("agent", "do it")


@pytest.mark.usefixtures("others")
def test_a_name_that_nothing_has_and_one_that_cannot_be_loaded_are_errors() -> None:
    with pytest.raises(InvalidInput, match=r"There is no view 'acm'\.\nDid you mean acme\?"):
        find("views", "acm")
    with pytest.raises(CapabilityMissing, match="no_such_module cannot be loaded: No module named 'no_such_module'"):
        find("views", "lost")


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("broken", ["import no_such_module", "def", "raise OSError('no disk')"])
def test_a_package_whose_hooks_cannot_be_loaded_is_left_out_with_a_warning(broken: str, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(broken)

    with pytest.warns(RuntimeWarning, match="the entry point 'a' registers is missing: ") as warned:
        assert [*Names("views")] == [*OURS["views"], "acme", "lost"]
    assert registered("views")["acme"] == Extension("later.view")
    assert len(warned) == 1


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("returned", ["1 / 0", "5", "{'acme': 5}", "{'acme': (5,)}", "{5: ('a',)}", "{'acme': ()}"])
def test_a_hook_that_fails_or_returns_something_else_takes_away_its_own_package_alone(returned: str, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(f"def gittrix_views(): return {returned}\n")

    with pytest.warns(RuntimeWarning, match="the entry point 'a=theirs' registers is missing: "):
        assert [*Names("views")] == [*OURS["views"], "acme", "lost"]
    assert registered("views")["acme"] == Extension("later.view")


@pytest.mark.usefixtures("others")
def test_a_function_of_a_package_that_fails_is_named_by_its_address(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(
        "def gittrix_workspaces(): return {'a': ('builtins:object',), 'b': ('broken',)}\ndef gittrix_commands(): return {'c': ('os',)}\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")

    with pytest.raises(CapabilityMissing, match=r"The extension builtins:object cannot be called: object\(\) takes no arguments"):
        made("workspaces", "a", "a")
    with pytest.raises(CapabilityMissing, match="The extension broken cannot be loaded: division by zero"):
        made("workspaces", "b", "b")
    with pytest.raises(CapabilityMissing, match="The extension os cannot be used: module 'os' has no attribute 'c'"):
        Later("c", "", registered("commands")["c"].address).load()


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("form", ["dist-info", "egg-info", "hidden", "zip", "finder", "malformed", "malformed, by a finder"])
def test_packages_are_found_in_every_form_that_importlib_knows(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site"
    metadata_directory = installed / f"Its_own.name-1.{'egg-info' if form == 'egg-info' else 'dist-info'}"
    metadata_directory.mkdir(parents=True)
    (metadata_directory / "METADATA").write_text("Name: its-own-name\nVersion: 1\n")
    (metadata_directory / "entry_points.txt").write_text("[gittrix]\nz = late\n" if "malformed" not in form else "[gittrix]\nz\n")
    (installed / "late.py").write_text("def gittrix_views(): return {'late': ('late.view',)}\n")
    if form == "hidden":
        (tmp_path / "its.own_NAME-2.dist-info").mkdir()
        (tmp_path / "its.own_NAME-2.dist-info" / "METADATA").write_text("Name: its-own-name\nVersion: 2\n")
        sys.path.append(str(installed))
    elif form == "zip":
        monkeypatch.syspath_prepend(shutil.make_archive(str(tmp_path / "packed"), "zip", installed))
    else:
        monkeypatch.syspath_prepend(installed)
    if "finder" in form:
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, metadata.MetadataPathFinder()])
    forget()

    with nullcontext() if "malformed" not in form else pytest.warns(RuntimeWarning, match="Entry points of the group gittrix are missing"):
        assert [*Names("views")] == [*OURS["views"], "acme", "lost", *(["late"] if form != "hidden" and "malformed" not in form else [])]
    if "malformed" not in form:
        assert sorted(extensions.declared()) == sorted(metadata.entry_points(group="gittrix"))
    sys.modules.pop("late", None)


def test_a_command_of_ours_loads_no_manager_of_plugins() -> None:
    program = (
        "import sys; from pytest_gittrix.cli.verbs import command_line; line = {line}; command_line(line).{use}; "
        "print({{'pluggy', 'importlib.metadata'}} & {{*sys.modules}})"
    )

    for line, use in ((["session", "list", "--as", "pixir"], "parse_args(line)"), (["--help"], "format_help()")):
        ran = subprocess.run([sys.executable, "-c", program.format(line=line, use=use)], capture_output=True, text=True, check=True)
        assert ran.stdout == "set()\n"
