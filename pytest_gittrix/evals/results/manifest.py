"""The inputs of a run: the core, which decides its results and is digested, and the host, which does not.

Runs of a scripted agent with equal core digests have equal results.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pytest_gittrix import __version__
from pytest_gittrix.confine.limits import ResourceLimits
from pytest_gittrix.durations import format_instant
from pytest_gittrix.errors import InvalidInput, MetadataVersionUnsupported
from pytest_gittrix.evals.inputs.identity import Json, canonical, digest_of, sample_key
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.git.environment import git_version

SCHEMA: Final = 1

PINNED: Final[Mapping[str, str]] = {
    "LC_ALL": "C.UTF-8",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONIOENCODING": "utf-8",
    "TZ": "UTC",
}
"""Variables of every program of a sample. Each of them can change a promoted commit where it is not pinned."""


@dataclass(frozen=True)
class Manifest:
    """The inputs of a run.

    Attributes:
        core: what results depend on: ``schema``, ``suite``, ``setting``, ``epochs`` and ``samples`` (id and digest of every case);
            ``tape``, if models answered from tapes, or these were recorded.
        host: where and how it ran: argv, host name, workers, when, which part of the samples. Results do not depend on it.
    """

    core: Mapping[str, Json]
    host: Mapping[str, Json]

    @property
    def digest(self) -> str:
        """The digest of the core."""
        return digest_of(self.core)

    @property
    def keys(self) -> dict[tuple[str, int], str]:
        """The key of every sample of the whole suite, by id and epoch."""
        setting = self.core["setting"]
        return {
            (case["id"], epoch): sample_key(setting, case["digest"], case["id"], epoch)
            for case in self.core["samples"]
            for epoch in range(self.core["epochs"])
        }

    def encode(self) -> bytes:
        """The manifest as ``manifest.json`` holds it."""
        return canonical({"core": self.core, "digest": self.digest, "host": self.host}) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read ``manifest.json``.

        Raises:
            InvalidInput: it is damaged.
            MetadataVersionUnsupported: it is of another version.
        """

        try:
            fields = json.loads(data)
            found = cls(fields["core"], fields["host"])
            whole = found.digest == fields["digest"]
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            raise InvalidInput("The manifest of the run is damaged.", why="The inputs of its results are unknown.", fix="Start a new run.")
        if found.core.get("schema") != SCHEMA:
            raise MetadataVersionUnsupported(f"The run is of version {found.core.get('schema')!r}.", why=f"This version reads {SCHEMA}.")
        return found

    def with_tape(self, tape: str | None) -> Manifest:
        """The same with the digest of the tapes that its models answered from, or without. Keys of samples do not depend on it."""
        core = {name: value for name, value in self.core.items() if name != "tape"}
        return Manifest(core if tape is None else {**core, "tape": tape}, self.host)

    @property
    def work(self) -> dict[str, str]:
        """The digest of what the agent worked on in each case; not of runs of earlier versions."""
        return {case["id"]: case["work"] for case in self.core["samples"] if case.get("work")}

    def judging_again(self, run: Manifest) -> Manifest:
        """The same for the results of another run: its samples, which these checks judge, with the setting in which its agent worked."""
        judged = {"confine": self.core["setting"]["confine"], "gittrix": __version__, "manifest": run.digest, "system": system()}
        core = {**self.core, "epochs": run.core["epochs"], "setting": {**run.core["setting"], "rescored": judged}}
        return Manifest(core, self.host)

    @property
    def counts_infra_errors(self) -> bool:
        """Whether samples that ended in ``infra_error`` count in the rates of the run, as not passed."""
        return bool(self.host.get("count_infra_errors", False))

    def differences(self, other: Manifest) -> list[str]:
        """The keys of the core that differ, such as ``setting.seed``; sorted."""
        return sorted(set(_differing(self.core, other.core, "")))


def core_of(
    suite: Suite,
    *,
    agent: Mapping[str, Json],
    random_seed: int,
    epochs: int,
    confine: str,
    passed: Mapping[str, str | None],
    timeout_ms: int | None,
    limits: ResourceLimits | None = None,
    model: Mapping[str, Json] | None = None,
    reach: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    """The core of a manifest.

    Args:
        suite: the whole suite, even if only a part of it is run.
        agent: the identity of the agent.
        random_seed: what everything random of the run is drawn from.
        epochs: how often each case is run.
        confine: the level of confinement that is really used.
        passed: the environment variables that are passed to the agent: names with digests of their values, see ``digest_of_values``.
        timeout_ms: the time limit in milliseconds that replaces those of the cases.
        limits: what each program may use.
        model: how agents reach their model, and what they may use of it; None if the run has no part in that.
        reach: what agents reach beyond their workspaces, ``network`` and ``readable``; None for nothing.
    """
    setting: dict[str, Json] = {
        "agent": dict(agent),
        "clock": {"epoch": format_instant(suite.clock_start), "rule": "frozen"},
        "confine": confine,
        "environment": dict(PINNED),
        "gittrix": __version__,
        "passed": sorted(passed),
        "passed_values": dict(passed),
        "seed": random_seed,
        "system": system(),
        "timeout_ms": timeout_ms,
    }
    if limits is not None:
        setting["limits"] = str(limits).split()
    if model is not None:
        setting["model"] = dict(model)
    setting |= reach or {}
    samples = [{"digest": case.digest, "id": case.id, "work": case.work} for case in suite.cases]
    return {"epochs": epochs, "samples": samples, "schema": SCHEMA, "setting": setting, "suite": suite.name}


@lru_cache(maxsize=1)
def system() -> dict[str, Json]:
    """The facts about this machine that results may depend on."""
    return {
        "arch": platform.machine(),
        "filesystem": _traits(),
        "git": ".".join(map(str, git_version())),
        "os": platform.system(),
        "pytest": version("pytest"),
        "python": platform.python_version(),
    }


def host(**more: Json) -> dict[str, Json]:
    """The facts about this machine that results do not depend on, and further fields."""
    return {"argv": list(sys.argv), "name": platform.node(), "release": platform.release(), **more}


def taken_from(run: Path | None) -> dict[str, Json]:
    """The field of the host that names the run which samples are taken over from, if there is one."""
    return {} if run is None else {"from": str(run)}


def _traits() -> dict[str, bool]:
    """Which features the file system of samples has."""
    with tempfile.TemporaryDirectory(prefix="gittrix-traits-") as directory:
        root = Path(directory)
        (root / "a").write_bytes(b"")
        (root / "a").chmod(0o755)
        try:
            os.symlink("a", root / "link")
            links = True
        except OSError:
            links = False
        return {"case": not (root / "A").exists(), "executable": bool((root / "a").stat().st_mode & 0o100), "symlinks": links}


def _differing(one: Any, other: Any, at: str) -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {*one, *other}:
            yield from _differing(one.get(key), other.get(key), f"{at}.{key}" if at else key)
    elif at == "samples" and isinstance(one, list) and isinstance(other, list):
        first, second = ({case["id"]: case["digest"] for case in side} for side in (one, other))
        yield from (f"samples.{id_}" for id_ in {*first, *second} if first.get(id_) != second.get(id_))
    elif one != other:
        yield at
