"""The system under test, found by its name; what is wrong with a name is said in four parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gittrix.conformance import BASE, Capability
from pytest_gittrix.conformance.under_test import SystemUnderTest, load_system, source_of
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.repos.place import Place
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem

SOURCE = """
from types import SimpleNamespace

from pytest_gittrix.conformance import BASE


class Acme:
    name, capabilities = "acme", BASE

    def open(self, place):
        return None


system = Acme()
box = SimpleNamespace(inner=Acme())
number = 7
lacking = SimpleNamespace(name="lacking", capabilities=frozenset(), open=print)


def make():
    return Acme()


def fail():
    raise OSError("no server")


def needy(server):
    return Acme()
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of somebody's, and one that cannot be imported."""
    (tmp_path / "acme_testing.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "acme_broken.py").write_text("import acme_missing\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("acme_testing", "acme_broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("path", ["system", "Acme", "make", "box.inner"])
@pytest.mark.usefixtures("acme")
def test_a_name_leads_to_a_system_or_to_what_gives_one(path: str) -> None:
    assert load_system(f"acme_testing:{path}", "--gittrix-system").name == "acme"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("acme_testing", "is not the name of a session system (from --gittrix-system)"),
        ("acme_testing:", "is not the name of a session system"),
        ("acme_testing.system", "is not the name of a session system"),
        ("acme testing:system", "is not the name of a session system"),
        ("acme_nowhere:system", "acme_nowhere cannot be imported: ModuleNotFoundError"),
        ("acme_broken:system", "acme_broken cannot be imported: ModuleNotFoundError: No module named 'acme_missing'"),
        ("acme_testing:sytem", "acme_testing has no 'sytem' (from --gittrix-system)"),
        ("acme_testing:box.outer", "acme_testing has no 'box.outer'"),
        ("acme_testing:number", "gives no session system (from --gittrix-system): 7 is not a session system"),
        ("acme_testing:lacking", "lacking does not declare start, read"),
        ("acme_testing:fail", "gives no session system (from --gittrix-system): OSError: no server"),
        ("acme_testing:needy", "TypeError: needy() missing 1 required positional argument"),
    ],
)
@pytest.mark.usefixtures("acme")
def test_a_name_that_leads_nowhere_is_refused_in_four_parts(text: str, fact: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_system(text, "--gittrix-system")

    assert fact in refused.value.fact
    assert all((refused.value.why, refused.value.fix, refused.value.opt_out))


@pytest.mark.usefixtures("acme")
def test_a_missing_module_and_a_broken_one_are_mended_differently() -> None:
    fixes = []
    for name in ("acme_nowhere", "acme_broken"):
        with pytest.raises(InvalidInput) as refused:
            load_system(f"{name}:system", "--gittrix-system")
        fixes.append(refused.value.fix)

    assert ["python -m pytest" in fix for fix in fixes] == [True, False]


def test_a_system_under_test_is_a_system_and_opens_sandboxes(tmp_path: Path) -> None:
    system = SystemUnderTest(GitTrixSystem("lazy"))

    assert (system.name, Capability.SHELL in system.capabilities) == ("gittrix (lazy)", False)
    with Place.open(tmp_path / "place") as place:
        engine = system.open(place)
        assert engine.sessions() == {}
        engine.close()
    with system(files={"a.txt": "a"}) as sandbox:
        assert isinstance(sandbox, Stage)
        assert sandbox.start().read("a.txt") == b"a"


def test_what_calling_it_does_can_be_said() -> None:
    system = SystemUnderTest(GitTrixSystem(), lambda **arguments: nullcontext(arguments))

    with system(files={}) as sandbox:
        assert sandbox == {"files": {}}


def test_whatever_else_a_system_has_is_found() -> None:
    system = SystemUnderTest(SimpleNamespace(name="acme", capabilities=BASE, open=print, waivers={"CNF-01": "why"}))  # type: ignore[arg-type]

    assert system.waivers == {"CNF-01": "why"}
    assert not hasattr(system, "other")
    assert not hasattr(system, "_private")


def test_the_source_of_a_system_is_the_file_of_its_module_where_that_is_in_the_project() -> None:
    here = Path(__file__).resolve()

    assert source_of(f"{__name__}:system", here.parent) == here.name
    assert source_of(f"{__name__}:system", here.parents[1]) == f"{here.parent.name}/{here.name}"
    assert source_of(f"{__name__}:system", here.parent / "elsewhere") == ""
    assert source_of("no.such.module:system", here.parent) == ""
