"""The options of a test run, resolved once into one frozen object.

An option is looked for on the command line, then in the environment, then in the pytest configuration; the first one wins. pytest loads
this module in every run, so it imports little.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, TypeVar

import pytest

from pytest_gittrix.plugin.options import OPTIONS, REPORTS, Option

if TYPE_CHECKING:
    from pytest_gittrix.evals.runs.shards import Shard
    from pytest_gittrix.testing.systems.protocol import SessionSystem

T = TypeVar("T")


class Setting(NamedTuple):
    """The value of an option as text, and where it was found. Several values are on a line each."""

    option: Option
    text: str
    origin: str

    @property
    def given(self) -> bool:
        """Whether the value was given, and is not the default."""
        return self.origin != "default"


class GittrixConfig(NamedTuple):
    """The resolved options of a run.

    Attributes:
        clock_start: the aware instant that clocks start at.
        freeze: ``wall``, ``all`` or ``none``.
        autojump: ``yes`` or ``no``.
        freeze_children: ``yes`` or ``no``.
        model: ``auto``, ``replay``, ``once``, ``new``, ``rewrite`` or ``live``.
        model_lenient: ``yes`` or ``no``.
        workspace: the kind of workspace, unless a test's marker names another.
        keep: ``failed``, ``all`` or ``none``.
        artifacts: the absolute path of the directory for bundles of failed tests; None for no bundles.
        git: absolute path of the git program, or the plain name if PATH is to decide.
        git_variables: ``drop`` or ``keep``.
        unconfined: ``fail`` or ``skip``.
        profile: ``quick``, ``default`` or ``soak``.
        system: the session system under test, if one was named.
        conformance_report: the absolute paths of the reports on the conformance clauses.
        waive: the reasons of clauses and invariants that the system need not keep, by name.
        clauses: the set of conformance clauses that is run; empty for all.
        crash: the seconds in which clauses kill processes; 0 for a few kills only.
        race: the seconds in which clauses let two processes take turns; 0 for a few orders only.
        eval_run: the absolute path of the eval run's directory.
        eval_resume: ``yes`` or ``no``.
        eval_from: the absolute path of the run that samples are taken over from.
        eval_trust_agent: ``yes`` or ``no``.
        eval_count_infra_errors: ``yes`` or ``no``.
        eval_judge_at_least: ``any``, ``subject``, ``canary`` or ``plain``.
        eval_tape: a mode of tapes, with a run for ``replay``.
        eval_prices: the absolute path of the table of prices.
        eval_seed: the seed that replaces those of the markers.
        eval_epochs: the number of epochs that replaces those of the markers.
        eval_shard: the part of the samples that is run.
        eval_fail_under: percentage of the samples that must pass.
    """

    clock_start: datetime
    freeze: Literal["wall", "all", "none"]
    autojump: Literal["no", "yes"]
    freeze_children: Literal["yes", "no"]
    model: Literal["auto", "replay", "once", "new", "rewrite", "live"]
    model_lenient: Literal["no", "yes"]
    unconfined: Literal["fail", "skip"]
    workspace: Literal["clone", "lazy", "copy", "worktree", "overlay"]
    keep: Literal["failed", "all", "none"]
    artifacts: Path | None
    git: str
    git_variables: Literal["drop", "keep"]
    profile: Literal["quick", "default", "soak"]
    system: SessionSystem | None
    conformance_report: tuple[Path, ...]
    waive: Mapping[str, str]
    clauses: str
    crash: float
    race: float
    eval_run: Path | None
    eval_resume: Literal["no", "yes"]
    eval_from: Path | None
    eval_trust_agent: Literal["no", "yes"]
    eval_count_infra_errors: Literal["no", "yes"]
    eval_judge_at_least: Literal["any", "subject", "canary", "plain"]
    eval_tape: str | None
    eval_prices: Path | None
    eval_seed: int | None
    eval_epochs: int | None
    eval_shard: Shard | None
    eval_fail_under: float | None

    @property
    def judge_at_least(self) -> str | None:
        """The judge that a sample of an eval needs to count as passed; None for any."""
        return None if self.eval_judge_at_least == "any" else self.eval_judge_at_least


def add_options(parser: pytest.Parser) -> None:
    """Declare every option to pytest, on the command line and as a configuration value."""
    group = parser.getgroup("gittrix", "gittrix: sessions of agents on real git")
    for option in OPTIONS:
        values = f"{{{','.join(option.choices)}}}" if option.choices else option.attribute.upper()
        text = f"{option.help} (default: {option.default or 'none'}; also {option.variable} and ini {option.ini})"
        takes: dict[str, Any] = {"action": "append" if option.repeatable else "store", "metavar": values}
        if option.switch:
            takes = {"action": "store_const", "const": "yes"}
        group.addoption(option.flag, dest=option.ini, default=None, help=text, **takes)
        parser.addini(option.ini, f"{option.help}; see {option.flag}", default=None)
    group.addoption(
        "--gittrix-show-config", action="store_true", help="show each gittrix option, its value and where it comes from, and exit"
    )
    group.addoption(
        "--gittrix-init",
        action="store_true",
        help="write a conftest.py, a first test and a workflow of GitHub where there is none, exit",
    )


def settings(config: pytest.Config) -> Iterator[Setting]:
    """Every option with its value as given, in the order of ``OPTIONS``."""
    for option in OPTIONS:
        yield next(_given(option, config), Setting(option, option.default, "default"))


def _given(option: Option, config: pytest.Config) -> Iterator[Setting]:
    """Each value that an option was given, the one that counts first."""
    if (text := config.getoption(option.ini, None)) is not None:
        yield Setting(option, "\n".join(text) if option.repeatable else str(text), option.flag)
    if text := os.environ.get(option.variable):
        yield Setting(option, text.replace(option.separator, "\n") if option.repeatable else text, option.variable)
    where = config.inipath.name if config.inipath else "-o"
    if text := config.getini(option.ini):
        yield Setting(option, str(text), f"{option.ini} in {where}")


def resolve(config: pytest.Config) -> GittrixConfig:
    """Read and check every option.

    Raises:
        pytest.UsageError: a value is not allowed; the message says where it was given and lists those that are.
    """
    return GittrixConfig(**{setting.option.attribute: _value(setting, config) for setting in settings(config)})


def put_in_force(config: pytest.Config, options: GittrixConfig) -> None:
    """Apply the options to the engine, its child processes and state machines, until the run is over."""
    _use_git(config, options.git)
    # Without a requested profile, the settings of Hypothesis decide how much is tried.
    if any(setting.given and setting.option.name == "profile" for setting in settings(config)):
        from pytest_gittrix.testing.profiles import choose

        config.add_cleanup(_restorer(choose, choose(options.profile)))
    if options.waive:
        from pytest_gittrix.testing.waivers import waive_for_the_run

        config.add_cleanup(_restorer(waive_for_the_run, waive_for_the_run(options.waive)))
    if options.clauses:
        from pytest_gittrix.conformance.base.clauses import OnlyOfSet

        config.pluginmanager.register(OnlyOfSet(options.clauses))
    if options.crash or options.race:
        from pytest_gittrix.conformance.base.search import search_for
        from pytest_gittrix.testing.systems.driver import SearchBudget

        config.add_cleanup(_restorer(search_for, search_for(SearchBudget(options.crash, options.race))))


def _restorer(choose: Callable[[T], object], before: T) -> Callable[[], None]:
    def restore() -> None:
        choose(before)

    return restore


def _use_git(config: pytest.Config, git: str) -> None:
    """Make the engine and every child process use the requested git."""
    if not os.path.isabs(git):
        return
    from pytest_gittrix.git.environment import git_binary, git_version

    def forget() -> None:
        git_binary.cache_clear()
        git_version.cache_clear()

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTEST_GITTRIX_GIT", git)
    forget()
    config.add_cleanup(forget)
    config.add_cleanup(patch.undo)


def table(config: pytest.Config) -> list[str]:
    """What ``--gittrix-show-config`` prints: option, value and origin, one option a line.

    Raises:
        pytest.UsageError: as :func:`resolve`.
    """
    resolve(config)
    rows = [(setting.option.name, setting.text.strip().replace("\n", ", ") or "none", setting.origin) for setting in settings(config)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{name:{widths[0]}}  {value:{widths[1]}}  ({origin})" for name, value, origin in rows]


def _value(setting: Setting, config: pytest.Config) -> Any:
    choices = setting.option.choices
    if not choices:
        return _READERS[setting.option.name](setting, config)
    if setting.text not in choices:
        _refuse(setting, f"Valid values: {', '.join(choices)}.")
    return setting.text


def _clock_start(setting: Setting, _config: pytest.Config) -> datetime:
    from pytest_gittrix.durations import parse_instant
    from pytest_gittrix.errors import InvalidInput

    try:
        return parse_instant(setting.text)
    except InvalidInput as problem:
        _refuse(setting, f"{problem.fact} Valid values: instants with a time zone, such as 2030-01-01T00:00:00Z.")


def _artifacts(setting: Setting, config: pytest.Config) -> Path | None:
    if not setting.text:
        return None
    path = _path(setting, setting.text, config)
    if path.exists() and not path.is_dir():
        _refuse(setting, "Valid values: a directory, there or to be made.")
    return path


def _path(setting: Setting, text: str, config: pytest.Config) -> Path:
    """Make a path absolute. A relative one counts from the configuration file that has it, or from where pytest was started."""
    base = config.inipath.parent if config.inipath and setting.origin.startswith(setting.option.ini) else config.invocation_params.dir
    return Path(os.path.abspath(base / text))


def _git(setting: Setting, _config: pytest.Config) -> str:
    if not setting.given:
        return setting.text
    found = shutil.which(setting.text)
    if found is None:
        _refuse(setting, "Valid values: the name or path of a program that can be run.")
    return os.path.abspath(found)


def _system(setting: Setting, _config: pytest.Config) -> SessionSystem | None:
    if not setting.text:
        return None
    from pytest_gittrix.conformance.under_test import COMMAND_VARIABLE, load_system
    from pytest_gittrix.errors import InvalidInput

    try:
        return load_system(setting.text, setting.origin)
    except InvalidInput as problem:
        message = problem.command_message() if COMMAND_VARIABLE in os.environ else str(problem)
        raise pytest.UsageError(message) from problem


def _reports(setting: Setting, config: pytest.Config) -> tuple[Path, ...]:
    paths = tuple(_path(setting, text, config) for text in map(str.strip, setting.text.splitlines()) if text)
    for path in paths:
        if path.suffix not in REPORTS or path.is_dir():
            _refuse(setting._replace(text=str(path)), f"Valid values: files that end in {', '.join(REPORTS[:-1])} or {REPORTS[-1]}.")
    return paths


def _waivers(setting: Setting, _config: pytest.Config) -> Mapping[str, str]:
    if not setting.text:
        return {}
    from pytest_gittrix.conformance.base.waivers import check_waivers
    from pytest_gittrix.errors import InvalidInput

    pairs = [line.partition("=") for line in setting.text.splitlines() if line.strip()]
    try:
        return check_waivers({name.strip(): reason.strip() for name, _, reason in pairs}, "the run")
    except InvalidInput as problem:
        _refuse(setting, f"{problem.fact} {problem.fix} Valid values: NAME=REASON.")


def _clauses(setting: Setting, _config: pytest.Config) -> str:
    if not setting.text:
        return ""
    from pytest_gittrix.conformance.base.clause import SETS

    if setting.text not in SETS:
        _refuse(setting, f"Valid values: {', '.join(SETS)}.")
    return setting.text


def _seconds(setting: Setting, _config: pytest.Config) -> float:
    if setting.text and not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", setting.text):
        _refuse(setting, "Valid values: numbers of seconds.")
    return float(setting.text or 0)


def _directory(setting: Setting, config: pytest.Config) -> Path | None:
    return _path(setting, setting.text, config) if setting.text else None


def _tape(setting: Setting, config: pytest.Config) -> str | None:
    """The mode of tapes, with the absolute path of the run that is replayed."""
    mode, _, run = setting.text.partition(" ")
    if mode not in ("", "record", "live", "replay") or bool(run.strip()) != (mode == "replay"):
        _refuse(setting, "Valid values: record, live, and 'replay RUN'.")
    return f"{mode} {_path(setting, run.strip(), config)}" if run else mode or None


def _seed(setting: Setting, _config: pytest.Config) -> int | None:
    if setting.text and not re.fullmatch("[0-9]{1,18}", setting.text):
        _refuse(setting, "Valid values: whole numbers from 0.")
    return int(setting.text) if setting.text else None


def _epochs(setting: Setting, _config: pytest.Config) -> int | None:
    if setting.text and not re.fullmatch("[1-9][0-9]{0,5}", setting.text):
        _refuse(setting, "Valid values: whole numbers from 1.")
    return int(setting.text) if setting.text else None


def _shard(setting: Setting, _config: pytest.Config) -> Shard | None:
    if not setting.text:
        return None
    from pytest_gittrix.errors import InvalidInput
    from pytest_gittrix.evals.runs.shards import Shard

    try:
        return Shard.parse(setting.text)
    except InvalidInput as problem:
        _refuse(setting, f"{problem.fix}")


def _percentage(setting: Setting, _config: pytest.Config) -> float | None:
    if not setting.text:
        return None
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]+)?", setting.text) or float(setting.text) > 100:
        _refuse(setting, "Valid values: numbers from 0 to 100.")
    return float(setting.text)


_READERS: Final[Mapping[str, Callable[[Setting, pytest.Config], object]]] = {
    "clock-start": _clock_start,
    "artifacts": _artifacts,
    "git": _git,
    "system": _system,
    "conformance-report": _reports,
    "waive": _waivers,
    "clauses": _clauses,
    "crash": _seconds,
    "race": _seconds,
    "eval-run": _directory,
    "eval-from": _directory,
    "eval-tape": _tape,
    "eval-prices": _directory,
    "eval-seed": _seed,
    "eval-epochs": _epochs,
    "eval-shard": _shard,
    "eval-fail-under": _percentage,
}


def _refuse(setting: Setting, valid: str) -> NoReturn:
    raise pytest.UsageError(f"{setting.text!r} is not a valid gittrix {setting.option.name} (from {setting.origin}). {valid}")


def header(options: GittrixConfig) -> str:
    """The header: the version of git and the options that are in force."""
    from pytest_gittrix.durations import format_instant
    from pytest_gittrix.errors import GittrixError
    from pytest_gittrix.git.environment import git_version

    try:
        git = ".".join(map(str, git_version()))
    except GittrixError as problem:
        git = f"unusable ({problem.fact})"
    start = format_instant(options.clock_start)
    return f"gittrix: git {git}, workspace={options.workspace}, freeze={options.freeze}, clock_start={start}, keep={options.keep}"
