"""A part of the package that is not installed is a typed error with the line that installs it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pytest_gittrix import extras
from pytest_gittrix.errors import CapabilityMissing, ExtraMissing, InvalidInput
from pytest_gittrix.extras import EXTRAS, Extra, missing, needs, required

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
FOR_THE_PACKAGES_OWN_WORK = {"test", "lint", "tools", "docs", "browser"}
EMPTY = {"evals"}
"""Extras of earlier versions, whose packages are requirements now."""

# What a user does that needs each extra. The names are blocked before anything is imported.
USES = """
import contextlib, io, json, sys

from pytest_gittrix.extras import EXTRAS

for extra in EXTRAS.values():
    for package in (*extra.packages, "starlette", "anyio"):
        sys.modules[package] = None

def conform():
    from pytest_gittrix.conformance.runner import RunSpec, run_clauses
    run_clauses(RunSpec(workers="2"))

def forge():
    from pytest_gittrix.backends import GitHubForge
    GitHubForge("owner/name")

def dask():
    from pytest_gittrix.evals.runs.executors import factory_of
    factory_of("dask")

def serve():
    from argparse import Namespace
    from pytest_gittrix.cli.serve import serve
    serve(Namespace())

def mcp():
    from pytest_gittrix.mcp.server import server
    server(None)

def acp():
    from pytest_gittrix.acp import acp_agent

def inspect():
    import pytest_gittrix.integrations.inspect.provider

def inspect_registry():
    import pytest_gittrix.integrations.inspect.registry

def inspect_scorer():
    import pytest_gittrix.integrations.inspect.scorer

def pydantic_ai():
    import pytest_gittrix.integrations.pydantic_ai_workspace

def deepagents():
    import pytest_gittrix.integrations.deepagents

def openai_agents():
    import pytest_gittrix.integrations.openai_agents

def claude():
    import pytest_gittrix.integrations.claude_agent

def harbor():
    import pytest_gittrix.integrations.harbor_environment

found = {}
uses = {"xdist": [conform], "forge": [forge], "dask": [dask], "serve": [serve], "mcp": [mcp], "acp": [acp],
        "inspect": [inspect, inspect_registry, inspect_scorer], "pydantic-ai": [pydantic_ai],
        "deepagents": [deepagents], "openai-agents": [openai_agents], "claude": [claude], "harbor": [harbor]}
for name, functions in uses.items():
    for function in functions:
        try:
            function()
        except Exception as error:
            found[function.__name__] = [name, type(error).__name__, getattr(error, "extra", ""), str(error)]

from pytest_gittrix.cli.main import main
with contextlib.redirect_stderr(io.StringIO()) as printed:
    status = main(["serve", "--port", "0"])
print(json.dumps([found, status, printed.getvalue()]))
"""


def test_every_extra_that_a_user_may_install_is_known() -> None:
    declared = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert declared.keys() - FOR_THE_PACKAGES_OWN_WORK - EMPTY == EXTRAS.keys()
    assert [declared[name] for name in EMPTY] == [[]]


def test_without_its_extra_each_part_says_how_to_install_it() -> None:
    done = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, timeout=60, check=True)
    found, status, printed = json.loads(done.stdout)

    assert {name for name, *_ in found.values()} == EXTRAS.keys()
    for name, kind, extra, message in found.values():
        assert (kind, extra) == ("ExtraMissing", name), message
        assert f"pip install 'pytest-gittrix[{name}]', or in a clone: pip install '.[{name}]'" in message
    assert status != 0
    assert printed.startswith("gittrix: The daemon is not available here. The package fastapi is not installed.")
    assert "pip install 'pytest-gittrix[serve]'" in printed


def test_a_missing_extra_is_an_import_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "EXTRAS", {"new": Extra(("no_such_framework",), "the new environment", opt_out="Use the old one.")})

    with pytest.raises(ImportError) as error:
        required("no_such_framework.module", "new")

    assert isinstance(error.value, CapabilityMissing)
    assert str(error.value).splitlines() == [
        "The new environment is not available here. The package no_such_framework is not installed.",
        "It is the extra 'new'; only users of that part have to install it.",
        "Install it: pip install 'pytest-gittrix[new]', or in a clone: pip install '.[new]'",
        "Use the old one.",
    ]


def test_a_framework_for_a_newer_python_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "EXTRAS", {"new": Extra(("json",), "the new environment", oldest=(4, 0))})

    assert missing("new") == f"json needs Python 4.0 or newer; this is {sys.version_info.major}.{sys.version_info.minor}."


def test_a_module_that_another_version_has_not_is_missing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "EXTRAS", {"json": Extra(("json",), "the environment")})

    assert required("json.decoder", "json").__name__ == "json.decoder"
    with pytest.raises(ExtraMissing, match=r"It cannot be loaded: No module named 'json\.new'"):
        required("json.new", "json")
    with pytest.raises(InvalidInput, match="no extra 'jsn'"), needs("jsn"):
        pytest.fail("the block is not run")
