"""What ``suite.toml`` and ``case.toml`` may hold."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from pytest_gittrix.clock.clock import CLOCK_START
from pytest_gittrix.confine.network import check_network
from pytest_gittrix.durations import parse_instant
from pytest_gittrix.engine.promotion.conflicts import OnOverlap
from pytest_gittrix.evals.inputs.identity import check_id
from pytest_gittrix.evals.spending.prices import Amount
from pytest_gittrix.formats.toml_file import PlainText, TomlTable, Version1, checked_by
from pytest_gittrix.os_level.command import Level
from pytest_gittrix.workspaces.kinds import WorkspaceKind
from pytest_gittrix.workspaces.seeds.seed import History, check_history

DriftAt = Literal["after-start", "before-promote"]

GENERATED: Final = ("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache")
"""Directories that tools leave behind; their files are never part of a result."""

_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_BYTES: Final = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def path_in_case(directory: Path, text: str, *, is_directory: bool = False) -> Path | None:
    """The path of an existing file or directory in a case's own directory; None if it is missing or, perhaps by a link, elsewhere."""
    path = directory / text
    if not text or text.startswith("/") or ".." in Path(text).parts or "\0" in text:
        return None
    try:
        within = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))
        return path if within and (path.is_dir() if is_directory else path.is_file()) else None
    except OSError:  # a name that is too long, for one
        return None


def _path_of(kind: Literal["file", "directory"]) -> Callable[[Any, ValidationInfo], Path]:
    def validate(value: Any, info: ValidationInfo) -> Path:
        found = path_in_case(Path(str(info.context)), value, is_directory=kind == "directory") if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{value!r:.200} is not the path of an existing {kind} in the case's own directory")
        return found

    return validate


def _function(value: Any, info: ValidationInfo) -> tuple[Path, str]:
    file, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    found = path_in_case(Path(str(info.context)), file) if name.isidentifier() and file.endswith(".py") else None
    if found is None:
        raise ValueError(f"{value!r:.200} is not file.py:name of a function in the case's own directory")
    return found, name


def _scaled(units: Mapping[str, int], meant: str) -> Callable[[Any], int]:
    def validate(value: Any) -> int:
        match = re.fullmatch(r"([1-9][0-9]{0,8})([A-Za-z]+)", value) if isinstance(value, str) else None
        if match is None or match[2] not in units:
            raise ValueError(f"{value!r:.200} is not {meant}")
        return int(match[1]) * units[match[2]]

    return validate


def _instant(value: Any) -> datetime:
    found: datetime = value if isinstance(value, datetime) and value.tzinfo is not None else checked_by(parse_instant)(value)
    if found < _EARLIEST:
        raise ValueError(f"{value} is before 1970")
    return found


def _with_files(kind: WorkspaceKind) -> WorkspaceKind:
    if kind == "overlay":
        raise ValueError(
            "an overlay has only what changed in its directory, and agents and checks of evals work there; use clone, copy or worktree"
        )
    return kind


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


CaseFile = Annotated[Path, BeforeValidator(_path_of("file"))]
CaseDirectory = Annotated[Path, BeforeValidator(_path_of("directory"))]
Milliseconds = Annotated[int, BeforeValidator(_scaled(_MILLISECONDS, "a time such as 500ms, 90s, 2m or 1h"))]
Bytes = Annotated[int, BeforeValidator(_scaled(_BYTES, "a size such as 500kB or 10MB"))]
Count = Annotated[int, Field(ge=1)]
Id = Annotated[str, BeforeValidator(checked_by(check_id))]
Workspace = Annotated[WorkspaceKind, AfterValidator(_with_files)]
Reached = Annotated[list[str], AfterValidator(checked_by(check_network, keep=True)), BeforeValidator(_listed)]
Past = Annotated[History, BeforeValidator(checked_by(check_history))]


class Defaults(TomlTable):
    """``[defaults]`` of a suite: what its cases do not say themselves."""

    timeout: Milliseconds = 120_000
    output: Bytes = 10_000_000
    confine: Level = "auto"
    workspace: Workspace = "clone"
    history: Past = "none"
    on_overlap: OnOverlap = "refuse"
    max_tokens: Count | None = None
    max_cost: Amount | None = None
    max_exchanges: Count | None = None


class AgentTable(TomlTable):
    """``[agent]`` of a suite: what agents reach beyond their workspaces, unless the run says it."""

    network: Reached = Field(default_factory=list)
    readable: list[PlainText] = Field(default_factory=list)


class SuiteFile(TomlTable):
    """``suite.toml``."""

    schema_version: Version1
    name: Id | None = None
    clock_start: Annotated[datetime, BeforeValidator(_instant)] = CLOCK_START
    defaults: Defaults = Defaults()
    agent: AgentTable = AgentTable()


class DurableTable(TomlTable):
    """``[durable]`` of a case: where its repository comes from."""

    files: CaseDirectory | None = None
    bundle: CaseFile | None = None
    path: PlainText | None = None
    ref: PlainText | None = None
    commit: PlainText | None = None

    @model_validator(mode="after")
    def _one_source(self) -> DurableTable:
        given = [key for key in ("files", "bundle", "path") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"it has {' and '.join(given) or 'no source'}; give exactly one of files, bundle and path")
        further = {"bundle": "ref", "path": "commit"}.get(given[0])
        for key in ("ref", "commit"):
            if getattr(self, key) is not None and key != further:
                raise ValueError(f"{key} must be left out, because {given[0]} has none")
        if further == "commit" and self.commit is None:
            raise ValueError("commit must be given with path")
        if self.commit is not None and (not self.commit or self.commit.startswith("-")):
            raise ValueError(f"commit is {self.commit!r}, not a commit of that repository")
        return self


class DriftTable(TomlTable):
    """``[drift]`` of a case: what a rival commits while the agent works."""

    files: CaseDirectory | None = None
    patch: CaseFile | None = None
    at: DriftAt = "before-promote"

    @model_validator(mode="after")
    def _one_change(self) -> DriftTable:
        if (self.files is None) == (self.patch is None):
            raise ValueError("it needs files or patch, and not both")
        return self


class CheckTable(TomlTable):
    """``[check]`` of a case: the conditions for a sample to pass."""

    command: Annotated[list[PlainText], Field(min_length=1)] | None = None
    tree: CaseDirectory | None = None
    diff: CaseFile | None = None
    function: Annotated[tuple[Path, str], BeforeValidator(_function)] | None = None
    pytest: CaseFile | None = None
    tests: CaseDirectory | None = None
    must_pass: list[PlainText] = Field(default_factory=list)
    network: Reached = Field(default_factory=list)

    @model_validator(mode="after")
    def _some_check(self) -> CheckTable:
        kinds = [name for name in CheckTable.model_fields if name not in ("must_pass", "network")]
        if all(getattr(self, kind) is None for kind in kinds):
            raise ValueError(f"without a check, no sample can pass or fail; give at least one of {', '.join(kinds)}")
        if self.tests is not None:
            missing = [one for one in self.must_pass if not (self.tests / one.partition("::")[0]).is_file()]
            if missing or not self.must_pass:
                raise ValueError(f"must_pass is {missing or self.must_pass!r}, not pytest's ids, or files, in the directory of tests")
        return self


class LimitsTable(TomlTable):
    """``[limits]`` of a case."""

    timeout: Milliseconds | None = None
    output: Bytes | None = None
    max_tokens: Count | None = None
    max_cost: Amount | None = None
    max_exchanges: Count | None = None


class ReviewTable(TomlTable):
    """``[review]`` of a case: what may be promoted."""

    exclude: list[PlainText] = Field(default_factory=lambda: [*GENERATED])
    allow: list[PlainText] = Field(default_factory=list)
    deny: list[PlainText] = Field(default_factory=list)


class CaseTable(TomlTable):
    """``case.toml``."""

    id: Id | None = None
    task: PlainText | None = None
    durable: DurableTable
    drift: DriftTable | None = None
    check: CheckTable
    gold: CaseFile | None = None
    limits: LimitsTable = LimitsTable()
    review: ReviewTable = ReviewTable()
    workspace: Workspace | None = None
    history: Past | None = None
    on_overlap: OnOverlap | None = None
