"""The options of a test run as a table. pytest loads this module in every run, so it imports little."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

FREEZES: Final = ("wall", "all", "none")
WORKSPACES: Final = ("clone", "lazy", "copy", "worktree", "overlay")
KEEPS: Final = ("failed", "all", "none")
MODELS: Final = ("auto", "replay", "once", "new", "rewrite", "live")
PROFILES: Final = ("quick", "default", "soak")
JUDGES: Final = ("subject", "canary", "plain")
REPORTS: Final = (".json", ".html", ".txt", ".xml", ".sarif", ".svg", ".jsonl")

MARKER: Final = "gittrix(*, files, history, repository, branch, bare, workspace, eviction, clock_start, task, freeze, autojump, \
object_format, model, max_seconds, max_files, max_tokens): what the gittrix fixtures of this test are made from, and what it may spend"
EVAL_MARKER: Final = "gittrix_eval(*, suite, agent, epochs, seed, confine, network, readable, only, tape, prices, max_tokens, max_cost, \
max_exchanges): the test is run once for each sample of a suite of evals"


class Option(NamedTuple):
    """One option: ``--gittrix-NAME``, ``PYTEST_GITTRIX_NAME``, ``gittrix_NAME``.

    Attributes:
        name: the last part of all three.
        default: the default value as text.
        help: the help text, one line.
        choices: the values it takes, where they can be listed.
        repeatable: whether it takes several values: as several flags, in one variable, or as lines of the configuration.
        switch: whether the flag takes no value and means ``yes``.
        separator: separates several values in a variable; as in PATH by default.
    """

    name: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    switch: bool = False
    separator: str = os.pathsep

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return f"--gittrix-{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"PYTEST_GITTRIX_{self.attribute.upper()}"

    @property
    def ini(self) -> str:
        """The key in the pytest configuration; also the attribute of ``config.option``."""
        return f"gittrix_{self.attribute}"

    @property
    def attribute(self) -> str:
        """The name in Python."""
        return self.name.replace("-", "_")


OPTIONS: Final = (
    Option("clock-start", "2030-01-01T00:00:00Z", "where clocks start: an instant of ISO 8601 with a time zone"),
    Option("freeze", "wall", "which of the test process's own clocks follow gittrix_clock", FREEZES),
    Option(
        "autojump", "no", "whether sleeps of a test whose process is frozen move its clock instead of waiting", ("no", "yes"), switch=True
    ),
    Option("freeze-children", "yes", "whether Python programs of a test see the clock that its process sees", ("yes", "no")),
    Option(
        "model",
        "auto",
        "what tests with a tape of a model do with it: auto replays under CI, and records what was never recorded elsewhere",
        MODELS,
    ),
    Option(
        "model-lenient",
        "no",
        "whether tapes compare roles, tools, calls and results only, and not what is said",
        ("no", "yes"),
        switch=True,
    ),
    Option("unconfined", "fail", "what becomes of tests whose programs nothing on this machine confines", ("fail", "skip")),
    Option("workspace", "clone", "what agents work in", WORKSPACES),
    Option("keep", "failed", "which tests' worlds stay on disk", KEEPS),
    Option("artifacts", "", "directory for a readable bundle of each failed test's world"),
    Option("git", "git", "the git program"),
    Option(
        "git-variables",
        "drop",
        "whether tests with gittrix fixtures have git's local variables, such as the GIT_DIR of a git hook",
        ("drop", "keep"),
    ),
    Option("profile", "default", "how much the package's own state machines try", PROFILES),
    Option("system", "", "the session system under test, as package.module:attribute"),
    Option(
        "conformance-report",
        "",
        "file for a report on the conformance clauses: .json, .html, .txt, .xml (JUnit), .sarif, .svg (badge) or .jsonl (each operation)",
        repeatable=True,
    ),
    Option(
        "waive", "", "a clause or an invariant that the system need not keep, and the reason: NAME=REASON", repeatable=True, separator="\n"
    ),
    Option("clauses", "", "the set of conformance clauses that is run, such as 2026.1: those that came later are left out"),
    Option("crash", "", "seconds in which clauses kill processes at as many of their calls as they can"),
    Option("race", "", "seconds in which clauses let two processes take turns in as many orders as they can"),
    Option("eval-run", "", "directory of the eval run, instead of one in runs/"),
    Option("eval-resume", "no", "whether to go on with the eval run that is there", ("no", "yes"), switch=True),
    Option("eval-from", "", "directory of an eval run whose samples are taken over where their inputs are the same"),
    Option("eval-trust-agent", "no", "whether results are taken over of an agent that cannot be known", ("no", "yes"), switch=True),
    Option(
        "eval-count-infra-errors", "no", "whether samples of an eval that could not be run count as not passed", ("no", "yes"), switch=True
    ),
    Option("eval-judge-at-least", "any", "the judge that a sample of an eval needs to count as passed", ("any", *JUDGES)),
    Option("eval-tape", "", "how agents of evals reach their models: record, live, or 'replay RUN', instead of the markers'"),
    Option("eval-prices", "", "table of what models cost, instead of the markers'"),
    Option("eval-seed", "", "seed of the eval run, instead of the markers'"),
    Option("eval-epochs", "", "how often each case of an eval is run, instead of the markers'"),
    Option("eval-shard", "", "the part of the samples that is run, such as 3/8"),
    Option("eval-fail-under", "", "percentage of the samples that must pass; failing ones are let through then"),
)
