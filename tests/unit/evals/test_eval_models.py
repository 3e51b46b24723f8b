"""Models of an eval's agents: recorded, replayed elsewhere to the same digest, counted, priced, and limited."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.acp_program import agent_that
from support.cli import Cli
from support.confined import available
from support.evals import SOLVES, agent_file, case, command_file, options, ran, suite

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.sample_record import Record
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.models.plan import ModelPlan
from pytest_gittrix.evals.results.compare import compare
from pytest_gittrix.evals.runs.run import Summary, run_suite
from pytest_gittrix.evals.spending.model_limits import ModelLimits
from pytest_gittrix.evals.spending.prices import Prices
from pytest_gittrix.evals.spending.spent import Spent
from pytest_gittrix.model import Answer, Failure, ModelServer, Request, Text
from pytest_gittrix.model.protocols.values import Usage

AGENT = """
import json, os, sys, urllib.request

def ask(*messages):
    body = {"model": "claude-test-1", "max_tokens": 100, "messages": [{"role": "user", "content": text} for text in messages]}
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-api-key": os.environ.get("ANTHROPIC_API_KEY", "")},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return "".join(part["text"] for part in json.load(answer)["content"])

task = sys.stdin.read()
said = ask(f"{task} You are in {os.getcwd()}.")
for _ in range(TIMES):
    said = ask(said, "Are you sure?")
open("app.py", "w").write(said)
"""
"""An agent that asks its model for the contents of ``app.py``, and some times whether that is right."""


def agent(root: Path, *, times: int = 0, more: str = "") -> str:
    return command_file(root, AGENT.replace("TIMES", str(times)) + more)


def answers(request: Request) -> Answer | Failure:
    return Answer((Text("VERSION = 2\n"),), usage=Usage(1_000, 200, 400))


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A model's server that this process has the address and a key of."""
    with ModelServer() as server:
        server.answer_with(answers)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "the-real-key")
        yield server


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path, monkeypatch, capfdbinary)


@pytest.fixture(params=["off", "jail"])
def confine(request: pytest.FixtureRequest) -> str:
    if request.param == "jail":
        available("jail by namespaces")
    return str(request.param)


def only(summary: Summary) -> Record:
    (record,) = summary.records
    return record


RECORD, LIVE = ModelPlan("record"), ModelPlan("live")


def test_a_recorded_run_is_replayed_elsewhere_offline_to_the_same_digest(tmp_path: Path, upstream: ModelServer, confine: str) -> None:
    place = suite(tmp_path, "one", "two", "three")
    command = agent(tmp_path, times=1)
    recorded = ran(place, tmp_path, command, model=RECORD, confine=confine)
    asked = len(upstream.exchanges)
    upstream.close()

    elsewhere = tmp_path / "another place"
    replayed = run_suite(
        Suite.load(place),
        options(elsewhere, "", model=ModelPlan("replay", tmp_path / "run"), confine=None, out=elsewhere / "replayed", workers=2),
    )

    assert [record.outcome for record in recorded.records] == ["pass"] * 3, [record.reason for record in recorded.records]
    assert (asked, len(upstream.exchanges)) == (6, 6)
    assert upstream.keys == {"the-real-key"}
    assert replayed.digest == recorded.digest
    assert replayed.store.manifest().core["tape"] == recorded.store.manifest().core["tape"]
    assert [record.model for record in replayed.records] == [record.model for record in recorded.records]
    assert compare(recorded.store, replayed.store).code == 0


def test_a_tape_reads_well_and_holds_neither_keys_nor_places(tmp_path: Path, upstream: ModelServer) -> None:
    summary = ran(suite(tmp_path), tmp_path, agent(tmp_path), model=RECORD)
    tape = summary.store.part("tapes", only(summary).key).decode()

    assert json.loads(tape.splitlines()[1]) == {
        "n": 1,
        "conversation": 1,
        "protocol": "anthropic",
        "new": [{"user": ["Make the version 2. You are in {workspace}."]}],
        "answer": ["VERSION = 2\n"],
        "stop": "end",
        "usage": [1000, 200, 400],
    }
    assert "the-real-key" not in tape


def test_a_request_that_drifts_from_the_tape_is_the_agents_error_with_the_first_leaf_that_differs(
    tmp_path: Path, upstream: ModelServer, cli: Cli
) -> None:
    place = suite(tmp_path)
    ran(place, tmp_path, agent(tmp_path), model=RECORD)
    changed = command_file(tmp_path, AGENT.replace("TIMES", "0").replace("You are in", "You work in"), "other.py")

    summary = ran(place, tmp_path, changed, model=ModelPlan("replay", tmp_path / "run"), out=tmp_path / "b")
    record = only(summary)
    shown = cli.ok("eval", "show", str(tmp_path / "b"), "one").text

    assert record.outcome == "agent_error"
    assert record.reason == (
        "The agent asks what the tape of one #0 does not have: at messages[0].user[0] "
        "recorded: 'Make the version 2. You are in {workspace}.' now: 'Make the version 2. You work in {workspace}.'"
    )
    assert record.files == ()
    assert "model, tape:\n  The agent asks what the tape of one #0 does not have: at messages[0].user[0]\n    recorded: 'Make" in shown
    assert "record it again: gittrix eval run --tape record" in shown


def test_an_agent_that_asks_less_than_its_tape_has_is_told(tmp_path: Path, upstream: ModelServer) -> None:
    place = suite(tmp_path)
    ran(place, tmp_path, agent(tmp_path, times=2), model=RECORD)
    less = command_file(tmp_path, AGENT.replace("TIMES", "0"), "less.py")

    record = only(ran(place, tmp_path, less, model=ModelPlan("replay", tmp_path / "run"), out=tmp_path / "b"))

    assert (record.outcome, record.reason) == (
        "agent_error", "2 exchanges of the tape were not asked for: the agent did less than when it was recorded"
    )  # fmt: skip


PRICES = 'schema = 1\n[models."claude-test-*"]\ninput = 3.00\noutput = 15\ncached = "0.30"\n'


def prices(root: Path, text: str = PRICES) -> Prices:
    (root / "prices.toml").write_text(text)
    return Prices.load(root / "prices.toml")


def test_tokens_and_cost_are_in_the_record_and_in_every_account(tmp_path: Path, upstream: ModelServer, cli: Cli) -> None:
    prices(tmp_path)
    place, command = suite(tmp_path, "one", "two"), agent(tmp_path, times=1)
    run = ["eval", "run", str(place), "--agent", command, "--confine", "off", "--tape", "live", "--prices", str(tmp_path / "prices.toml")]

    text = cli.ok(*run, "--out", str(tmp_path / "a")).text
    data = cli.data(*run, "--out", str(tmp_path / "b"))
    sample = cli.data("eval", "show", str(tmp_path / "a"), "one")
    compared = cli("eval", "compare", str(tmp_path / "a"), str(tmp_path / "b"))

    # For each of two exchanges: 600 fresh tokens, 400 of the cache, 200 of the answer.
    one = {
        "exchanges": 2,
        "input": 2000,
        "output": 400,
        "cached": 800,
        "estimated": 0,
        "cost": "0.00984",
        "currency": "USD",
        "unpriced": [],
        "uncounted": 0,
    }
    assert sample["model"] == one
    assert data["model"] == {**one, "exchanges": 4, "input": 4000, "output": 800, "cached": 1600, "cost": "0.01968"}
    line = "4 exchanges, 4,000 tokens in (1,600 cached), 800 out, 0.020 USD"
    assert f"  model       {line}\n" in text
    assert f"a  model       {line}\nb  model       {line}\n" in compared.text
    assert line in (tmp_path / "a" / "report.html").read_text()
    assert not (tmp_path / "a" / "tapes").exists()
    assert data["tape"] is None


def test_a_model_without_a_price_makes_the_cost_unknown_and_a_limit_of_it_impossible(tmp_path: Path, upstream: ModelServer) -> None:
    table = prices(tmp_path, "schema = 1\n[models.other]\ninput = 1\noutput = 1\n")
    place, plan = suite(tmp_path), ModelPlan("live", prices=table)

    unknown = only(ran(place, tmp_path, agent(tmp_path), model=plan))
    limited = only(ran(place, tmp_path, agent(tmp_path), model=plan, out=tmp_path / "b", model_limits=ModelLimits(max_cost="0.01")))

    assert unknown.spent is not None
    assert str(unknown.spent).endswith("cost unknown: no price of claude-test-1")
    assert (limited.outcome, limited.reason) == (
        "infra_error", "There is no price of the model 'claude-test-1', so that max_cost cannot be kept."
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="max_cost has no prices"):
        ran(place, tmp_path, agent(tmp_path), model=LIVE, out=tmp_path / "c", model_limits=ModelLimits(max_cost="0.01"))
    with pytest.raises(InvalidInput, match="max_tokens cannot be kept"):
        ran(place, tmp_path, agent(tmp_path), out=tmp_path / "d", model_limits=ModelLimits(max_tokens=1))


LIMITED = [
    (ModelLimits(max_exchanges=2), "max_exchanges: it asked its model once more than 2 times", 2),
    (ModelLimits(max_tokens=3_000), "max_tokens: it used 3,600 tokens of its model, of at most 3,000", 3),
    (ModelLimits(max_cost="0.005"), "max_cost: its model cost 0.0098 USD, of at most 0.0050", 2),
]


@pytest.mark.parametrize(("limits", "reason", "exchanges"), LIMITED, ids=["exchanges", "tokens", "cost"])
def test_an_agent_that_passes_a_limit_of_its_model_is_ended_and_says_which(
    tmp_path: Path, upstream: ModelServer, confine: str, limits: ModelLimits, reason: str, exchanges: int
) -> None:
    plan = ModelPlan("record", prices=prices(tmp_path))
    stubborn = agent(tmp_path, times=50, more="open('finished', 'w').close()\n")

    recorded = ran(suite(tmp_path), tmp_path, stubborn, model=plan, model_limits=limits, confine=confine)
    replayed = run_suite(
        Suite.load(tmp_path / "suite"), options(tmp_path / "b", "", model=ModelPlan("replay", tmp_path / "run"), confine=None)
    )
    record = only(recorded)

    assert (record.outcome, record.reason, record.files, record.promoted) == ("limit", reason, (), "")
    assert (record.model or {})["exchanges"] == len(upstream.exchanges) == exchanges
    assert replayed.digest == recorded.digest


@pytest.mark.parametrize(("limits", "reason", "exchanges"), LIMITED, ids=["exchanges", "tokens", "cost"])
def test_limits_hold_without_a_tape_where_the_network_lists_the_model(
    tmp_path: Path, upstream: ModelServer, limits: ModelLimits, reason: str, exchanges: int
) -> None:
    available("jail by namespaces")
    stubborn, known = agent(tmp_path, times=50, more="open('finished', 'w').close()\n"), prices(tmp_path)

    done = ran(
        suite(tmp_path), tmp_path, stubborn, model_limits=limits, confine="jail", network=("model:anthropic",), prices=known
    )  # fmt: skip
    record = only(done)

    assert (record.outcome, record.reason, record.files) == ("limit", reason, ())
    assert (record.model or {})["exchanges"] == len(upstream.exchanges) == exchanges
    assert upstream.keys == {"the-real-key"}
    assert not (done.store.path / "tapes").exists()


def test_limits_of_cases_hold_without_a_tape_where_the_suite_lists_the_model(tmp_path: Path, upstream: ModelServer, cli: Cli) -> None:
    available("jail by namespaces")
    place = suite(tmp_path, more="[limits]\nmax_exchanges = 2\n")
    run = ["eval", "run", str(place), "--agent", agent(tmp_path, times=50), "--confine", "jail", "--network", "model:anthropic"]

    ended = cli(*run, "--out", "a")

    assert "max_exchanges: it asked its model once more than 2 times" in ended.text + ended.err
    assert "Cases limit" not in ended.err
    assert len(upstream.exchanges) == 2


def test_limits_of_a_suite_hold_where_the_run_gives_none_and_an_agent_that_needs_no_more_passes(
    tmp_path: Path, upstream: ModelServer
) -> None:
    place = suite(tmp_path, "tight", more="[limits]\nmax_exchanges = 1\n")
    case(place, "wide", more="[limits]\nmax_exchanges = 2\nmax_cost = 0.50\n")
    command, plan = agent(tmp_path, times=1), ModelPlan("live", prices=prices(tmp_path))

    by_suite = ran(place, tmp_path, command, model=plan)
    by_run = ran(place, tmp_path, command, model=plan, out=tmp_path / "b", model_limits=ModelLimits(max_exchanges=2))

    assert [record.outcome for record in by_suite.records] == ["limit", "pass"]
    assert [record.outcome for record in by_run.records] == ["pass", "pass"]


def test_a_function_reaches_the_model_and_its_next_program_ends_at_a_limit(tmp_path: Path, upstream: ModelServer) -> None:
    asks = command_file(tmp_path, AGENT.replace("TIMES", "1"), "asks.py").split()
    function = agent_file(tmp_path, f"assert toolbox.model_url\ntoolbox.run({asks!r}, stdin=toolbox.task)\ntoolbox.write('late', '')")

    fits = only(ran(suite(tmp_path), tmp_path, function, model=LIVE))
    ended = only(ran(tmp_path / "suite", tmp_path, function, model=LIVE, out=tmp_path / "b", model_limits=ModelLimits(max_exchanges=1)))

    assert (fits.outcome, fits.files) == ("pass", ("app.py", "late")), fits.reason
    assert (ended.outcome, ended.files) == ("limit", ())


@pytest.mark.parametrize(
    ("failure", "outcome", "reason"),
    [
        (Failure("overloaded"), "infra_error", "The model's server failed: 529 The model is overloaded. Try again later."),
        (Failure("unauthorized"), "infra_error", "The model's server failed: 401 The API key is invalid."),
        (Failure("context"), "agent_error", "the agent ended with status 1"),
    ],
    ids=["overloaded", "unauthorized", "too long a prompt"],
)
def test_a_server_that_fails_is_not_the_agents_failure_but_a_request_that_is_refused_is(
    tmp_path: Path, upstream: ModelServer, failure: Failure, outcome: str, reason: str
) -> None:
    upstream.answer_with(lambda _: failure)

    record = only(ran(suite(tmp_path), tmp_path, agent(tmp_path), model=RECORD, retries=0))

    assert (record.outcome, record.reason) == (outcome, reason)


def test_a_server_that_cannot_be_reached_is_an_infra_error(tmp_path: Path, upstream: ModelServer) -> None:
    upstream.close()

    record = only(ran(suite(tmp_path), tmp_path, agent(tmp_path), model=LIVE, retries=0))

    assert record.outcome == "infra_error"
    assert "cannot be asked" in record.reason


def test_a_run_without_a_key_is_refused_before_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(InvalidInput, match="ANTHROPIC_API_KEY or OPENAI_API_KEY or GEMINI_API_KEY is not set"):
        ran(suite(tmp_path), tmp_path, agent(tmp_path), model=RECORD)


def test_recorded_samples_are_resumed_and_other_tapes_are_other_inputs(tmp_path: Path, upstream: ModelServer) -> None:
    place, command = suite(tmp_path, "one", "two"), agent(tmp_path)
    part = ran(place, tmp_path, command, model=RECORD, only=("one",))
    whole = ran(place, tmp_path, command, model=RECORD, resume=True, trust_agent=True)
    other = ran(place, tmp_path, command, model=RECORD, out=tmp_path / "other")

    assert (whole.already, len(upstream.exchanges)) == (1, 4)
    assert part.manifest.digest != whole.manifest.digest
    assert whole.manifest.digest == other.manifest.digest
    upstream.answer_with(lambda _: "VERSION = 2 \n")
    differing = ran(place, tmp_path, command, model=RECORD, out=tmp_path / "differing")
    assert compare(whole.store, differing.store).inputs == ("tape",)


WRONG = [
    (["--tape", "replay"], "There is no run to replay the tapes of."),
    (["--tape", "recrod"], "'recrod' is not a mode of tapes."),
    (["--tape", "record", "runs/live"], "--tape record takes no run"),
    (["--tape", "replay", "a", "b"], "--tape takes a mode and a run"),
    (["--tape", "replay", "no-such-run"], "holds no run"),
    (["--tape", "live", "--prices", "none.toml"], "none.toml cannot be read"),
    (["--max-cost", "much"], "'much' is not an amount of money"),
    (["--max-tokens", "10"], "max_tokens cannot be kept"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_what_cannot_be_meant_is_refused(cli: Cli, upstream: ModelServer, given: list[str], said: str) -> None:
    done = cli("eval", "run", str(suite(cli.root)), "--agent", "nop", "--confine", "off", *given)

    assert (done.status != 0, said in done.err) == (True, True), done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 1\n[models.a]\ninput = -1\noutput = 1\n", "is not an amount of money"),
        ("schema = 1\n[models.a]\ninput = 1\n", "output"),
        ("schema = 1\n", "models"),
        ("schema = 1\n[models.a]\ninput = nan\noutput = 1\n", "is not an amount of money"),
    ],
)
def test_a_table_of_prices_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        prices(tmp_path, text)


def test_the_nearest_price_counts(tmp_path: Path) -> None:
    table = prices(
        tmp_path,
        'schema = 1\ncurrency = "EUR"\n[models."a-*"]\ninput = 1\noutput = 1\n'
        '[models."a-b-*"]\ninput = 2\noutput = 1\n[models."a-b-c"]\ninput = 3\noutput = 1\n',
    )

    found = {name: table.of(name) for name in ("a-x", "a-b-x", "a-b-c", "b")}

    assert {name: price and int(price.input) for name, price in found.items()} == {"a-x": 1, "a-b-x": 2, "a-b-c": 3, "b": None}
    assert Prices.from_json(table.to_json()) == table


ACP = f"""
{AGENT.partition("task = ")[0]}
for _ in range(2):
    said = ask(task)
ask_editor("fs/write_text_file", path=cwd + "/app.py", content=said)
"""


@pytest.mark.parametrize("confine", ["off", "jail"])
def test_an_agent_that_speaks_acp_reaches_the_model_and_ends_at_a_limit(tmp_path: Path, upstream: ModelServer, confine: str) -> None:
    if confine == "jail":
        available("jail by namespaces")
    (tmp_path / "agent.py").write_text(agent_that(ACP).replace("def ask(method", "def ask_editor(method"))
    command, place = f"acp:{sys.executable} {tmp_path / 'agent.py'}", suite(tmp_path)

    fits = ran(place, tmp_path, command, model=RECORD, confine=confine)
    ended = ran(place, tmp_path, command, model=LIVE, confine=confine, out=tmp_path / "b", model_limits=ModelLimits(max_exchanges=1))
    again = ran(place, tmp_path, "", model=ModelPlan("replay", tmp_path / "run"), confine=None, out=tmp_path / "c")

    assert only(fits).outcome == "pass", only(fits).reason
    assert only(ended).outcome == "limit", only(ended).reason
    assert again.digest == fits.digest


def test_what_an_agent_did_is_repeated_without_it_and_without_its_model(tmp_path: Path, upstream: ModelServer) -> None:
    place, command = suite(tmp_path), agent(tmp_path, times=1)
    passed = ran(place, tmp_path, command, model=RECORD)
    limited = ran(place, tmp_path, command, model=LIVE, out=tmp_path / "limited", model_limits=ModelLimits(max_exchanges=1))
    upstream.close()

    for number, done in enumerate((passed, limited)):
        again = ran(place, tmp_path, "", replay=done.store.path, out=tmp_path / str(number), confine=None)
        found = compare(done.store, again.store)
        assert (found.inputs, [pair.flip for pair in found.pairs]) == ((), [f"{only(done).outcome} -> {only(done).outcome}"])
        assert only(again).reason == only(done).reason


def test_what_a_server_was_still_busy_with_at_the_end_is_counted_by_an_estimate(tmp_path: Path, upstream: ModelServer) -> None:
    came, over = threading.Event(), threading.Event()

    def slow(_: Request) -> str:
        came.set()
        over.wait(60)
        return "late"

    upstream.answer_with(slow)
    leaves = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", ASK])
while not os.path.exists({str(tmp_path / "it came")!r}):
    time.sleep(0.01)
sys.exit(3)
"""
    program = f"ASK = {AGENT.partition('task = ')[0] + 'ask(chr(120) * 400)'!r}\n{leaves}"
    found: list[Summary] = []
    wanted = options(tmp_path, command_file(tmp_path, program), model=LIVE)
    running = threading.Thread(target=lambda: found.append(run_suite(Suite.load(suite(tmp_path)), wanted)))
    running.start()
    assert came.wait(60)
    (tmp_path / "it came").touch()
    running.join(60)
    over.set()

    spent = only(found[0]).spent
    assert spent is not None
    assert (only(found[0]).outcome, spent.exchanges, spent.estimated, spent.output) == ("agent_error", 1, 1, 0)
    assert spent.input >= 100


def test_a_run_says_that_limits_of_cases_are_not_kept_and_that_inputs_are_not_those_of_the_tapes(
    tmp_path: Path, upstream: ModelServer, cli: Cli
) -> None:
    place, command = suite(tmp_path, more="[limits]\nmax_exchanges = 5\n"), agent(tmp_path)
    run = ["eval", "run", str(place), "--agent", command, "--confine", "off"]

    recorded = cli.ok(*run, "--tape", "record", "--out", "a")
    without = cli("eval", "run", str(place), "--agent", SOLVES, "--confine", "off", "--out", "b")
    other = cli(*run, "--tape", "replay", "a", "--out", "c", "--seed", "4")
    same = cli.ok(*run, "--tape", "replay", "a", "--out", "d")

    assert "Cases limit what agents use of their models" in without.err
    assert "The tapes were recorded with other inputs, so that digests differ: setting.seed." in other.err
    assert [("Cases limit" in one.err, "with other inputs" in one.err) for one in (recorded, same)] == [(False, False)] * 2


@pytest.mark.parametrize("level", ["jail by namespaces", "guard by landlock"])
def test_what_an_agent_says_to_a_model_by_the_gateway_is_counted_and_priced(
    tmp_path: Path, upstream: ModelServer, cli: Cli, level: str
) -> None:
    available(level)
    place, command = suite(tmp_path), agent(tmp_path, times=2)
    (tmp_path / "prices.toml").write_text('schema = 1\n[models."claude-*"]\ninput = 1\noutput = 2\n')
    words = ["eval", "run", str(place), "--agent", command, "--confine", level.split()[0], "--network", "model:anthropic", "--out"]

    counted = cli(*words, str(tmp_path / "counted"))
    priced = cli(*words, str(tmp_path / "priced"), "--prices", str(tmp_path / "prices.toml"))

    assert "model       3 exchanges, 3,000 tokens in (1,200 cached), 600 out\n" in counted.text
    assert "model       3 exchanges, 3,000 tokens in (1,200 cached), 600 out, 0.0042 USD\n" in priced.text
    assert len(upstream.exchanges) == 6
    assert upstream.keys == {"the-real-key"}


def test_an_agent_that_speaks_acp_is_counted_by_the_gateway(tmp_path: Path, upstream: ModelServer) -> None:
    available("jail by namespaces")
    (tmp_path / "agent.py").write_text(agent_that(ACP).replace("def ask(method", "def ask_editor(method"))

    done = ran(suite(tmp_path), tmp_path, f"acp:{sys.executable} {tmp_path / 'agent.py'}", confine="jail", network=("model:anthropic",))

    assert only(done).outcome == "pass", only(done).reason
    assert done.spent == Spent(2, 2_000, 400, 800)


def test_prices_and_limits_are_refused_where_the_run_knows_of_no_model(tmp_path: Path, cli: Cli) -> None:
    place, prices = suite(tmp_path), tmp_path / "prices.toml"
    prices.write_text('schema = 1\n[models."claude-*"]\ninput = 1\noutput = 2\n')

    alone = cli("eval", "run", str(place), "--agent", "nop", "--prices", str(prices))
    limited = cli("eval", "run", str(place), "--agent", "nop", "--max-tokens", "9")

    assert "There is nothing to reckon with prices." in alone.err
    assert "max_tokens cannot be kept." in limited.err


def test_a_network_names_the_servers_that_are_asked_and_a_replay_has_none(tmp_path: Path, upstream: ModelServer) -> None:
    available("jail by namespaces")
    place, command = suite(tmp_path), agent(tmp_path)
    recorded = ran(place, tmp_path, command, model=RECORD, confine="jail", network=("model:anthropic", "packages.example.org:443"))
    replayed = ran(place, tmp_path, "", model=ModelPlan("replay", tmp_path / "run"), confine=None, out=tmp_path / "c")

    assert (only(recorded).outcome, len(upstream.exchanges)) == ("pass", 1), only(recorded).reason
    assert recorded.manifest.core["setting"]["model"] == {"servers": ["anthropic"]}
    assert replayed.digest == recorded.digest
    with pytest.raises(InvalidInput, match="A replay of tapes has no network"):
        ran(place, tmp_path, "", model=ModelPlan("replay", tmp_path / "run"), confine=None, out=tmp_path / "d", network="model:anthropic")
    with pytest.raises(InvalidInput, match="GEMINI_API_KEY is not set"):
        ran(place, tmp_path, command, model=LIVE, confine="jail", out=tmp_path / "e", network=("model:gemini",))
