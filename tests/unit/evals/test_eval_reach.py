"""What an agent reaches beyond its workspace: files that it may read, a network; what it lacks is said with the cure."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.acp_program import agent_that
from support.cli import Cli
from support.confined import available
from support.evals import case, command_file, ran, suite, write

from pytest_gittrix.confine.network import ModelEndpoint
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.agents.programs import words_of
from pytest_gittrix.evals.agents.reach import check_readable, digests_of, network_of
from pytest_gittrix.evals.inputs.suite import Suite
from pytest_gittrix.evals.results.failure_output import failure_lines
from pytest_gittrix.evals.results.store import RunStore
from pytest_gittrix.evals.runs.agents import ProgramAgent
from pytest_gittrix.evals.runs.run import Summary
from pytest_gittrix.model import Answer, ModelServer, Text

WORK = "def work():\n    open('app.py', 'w').write('VERSION = 2\\n')\n"
ASKS = """
import json, os, urllib.request
body = {"model": "claude-test-1", "max_tokens": 9, "messages": [{"role": "user", "content": "What?"}]}
url, headers = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", {"content-type": "application/json"}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
with urllib.request.urlopen(request, timeout=60) as answer:
    text = json.load(answer)["content"][0]["text"]
"""


@pytest.fixture(autouse=True)
def jail() -> None:
    available("jail by namespaces")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(tmp_path, monkeypatch, capfdbinary)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A model's server that this process has the address and a key of."""
    with ModelServer() as server:
        server.answer_with(lambda request: Answer((Text("VERSION = 2\n"),)))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "the-real-key")
        yield server


def jailed(root: Path, agent: str, **changed: object) -> Summary:
    place = root / "suite" if (root / "suite").exists() else suite(root)
    return ran(place, root, agent, confine="jail", **changed)


def said(summary: Summary) -> str:
    return "\n".join(failure_lines(summary.store, summary.records[0]))


# Files -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "command", "lacking"),
    [
        ({"agent.py": "import helper\nhelper.work()\n", "helper.py": WORK}, "python {tools}/agent.py", "helper.py"),
        ({"agent.sh": '. "$(dirname "$0")/lib.sh"\n', "lib.sh": "echo 'VERSION = 2' > app.py\n"}, "sh {tools}/agent.sh", "lib.sh"),
    ],
)
def test_a_program_of_two_files_works_with_its_directory_and_says_so_without(
    tmp_path: Path, files: dict[str, str], command: str, lacking: str
) -> None:
    tools = write(tmp_path / "tools", files)
    agent = command.format(tools=tools)

    alone = jailed(tmp_path, agent)
    shown = jailed(tmp_path, agent, out=tmp_path / "shown", readable=(tools,))

    assert alone.records[0].outcome == "agent_error"
    assert f"{tools / lacking} is there, and the agent does not see it at jail: give --readable {tools}" in said(alone)
    assert shown.records[0].outcome == "pass", said(shown)


def test_a_program_of_its_own_environment_works_with_it_and_is_refused_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "venvs" / "my-agent"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    write(site, {"my_agent_lib.py": WORK})
    write(home / "bin", {"my-agent": f"#!{home}/bin/python\nimport my_agent_lib\nmy_agent_lib.work()\n"})
    (home / "bin" / "my-agent").chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "my-agent").symlink_to(home / "bin" / "my-agent")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)

    with pytest.raises(InvalidInput) as refused:
        jailed(tmp_path, "my-agent --yes")
    found = [
        jailed(tmp_path, agent, out=tmp_path / name, readable=(home,))
        for agent, name in (("my-agent --yes", "a"), (f"{home}/bin/my-agent", "b"))
    ]

    assert f"my-agent is in {home}, which the agent does not see at jail." in refused.value.fact
    assert str(home) in str(refused.value.fix)
    assert [one.records[0].outcome for one in found] == ["pass", "pass"], [said(one) for one in found]


def test_an_agent_that_speaks_the_protocol_reads_what_it_is_shown_and_asks_its_model(tmp_path: Path, model: ModelServer) -> None:
    tools = write(tmp_path / "tools", {"asks.py": ASKS})
    work = f'''
import runpy
ask("fs/write_text_file", path=cwd + "/app.py", content=runpy.run_path("{tools}/asks.py")["text"])
say("done")
'''
    (tmp_path / "agent.py").write_text(agent_that(work))
    agent = f"acp:{sys.executable} {tmp_path / 'agent.py'}"

    alone = jailed(tmp_path, agent)
    shown = jailed(tmp_path, agent, out=tmp_path / "shown", readable=(tools,), network=("model:anthropic",))

    assert alone.records[0].outcome == "agent_error"
    assert f"give --readable {tools}" in said(alone)
    assert shown.records[0].outcome == "pass", said(shown)


def test_what_an_agent_may_read_counts_by_its_content_and_holds_no_solutions(tmp_path: Path) -> None:
    tools = write(tmp_path / "tools", {"a.py": "1", "__pycache__/a.pyc": "x"})
    place = suite(tmp_path)
    first = jailed(tmp_path, "nop", readable=(tools,))
    before = digests_of([tools])
    write(tools, {"__pycache__/a.pyc": "y"})
    same = digests_of([tools])
    write(tools, {"a.py": "2"})

    assert before == same == {"tools": first.manifest.core["setting"]["readable"]["tools"]}
    with pytest.raises(InvalidInput, match=r"setting\.readable\.tools differ"):
        jailed(tmp_path, "nop", readable=(tools,), resume=True)
    for path in (tmp_path, place, place / "cases"):
        with pytest.raises(InvalidInput, match="are in one another, so the agent may not read it"):
            check_readable([path], [("suite", place)])
    with pytest.raises(InvalidInput, match="There is nothing to read at"):
        check_readable([tmp_path / "nothing"], [])


# Network -----------------------------------------------------------------------------------------------------------------------------


def test_an_agent_in_a_jail_reaches_the_model_that_is_listed_and_nothing_without(tmp_path: Path, model: ModelServer) -> None:
    agent = command_file(tmp_path, f"{ASKS}open('app.py', 'w').write(text)\n")

    alone = jailed(tmp_path, agent)
    listed = jailed(tmp_path, agent, out=tmp_path / "listed", network=("model:anthropic",))

    assert (alone.records[0].outcome, listed.records[0].outcome) == ("agent_error", "pass"), said(listed)
    assert len(model.requests) == 1
    assert listed.manifest.core["setting"]["network"] == ["model:anthropic at http://127.0.0.1"]
    assert "network" not in alone.manifest.core["setting"]


def test_the_check_has_a_network_of_its_own(tmp_path: Path, model: ModelServer) -> None:
    place = tmp_path / "suite"
    write(place, {"suite.toml": 'schema = 1\n[agent]\nnetwork = "model:anthropic"\n'})
    for id_, more in (("with", 'network = ["model:anthropic"]\n'), ("without", "")):
        extra = {
            "tests/test_model.py": f"def test_it():\n{''.join('    ' + line + chr(10) for line in ASKS.splitlines())}    assert text\n"
        }
        case(place, id_, more=f'[check]\npytest = "tests/test_model.py"\n{more}', extra=extra)

    summary = ran(place, tmp_path, "nop", confine="jail")

    assert {record.id: record.outcome for record in summary.records} == {"with": "pass", "without": "fail"}


def test_a_suite_says_what_agents_reach_and_the_run_has_the_last_word(tmp_path: Path) -> None:
    tools = write(tmp_path / "tools", {"a": "1"})
    place = suite(tmp_path)
    write(place, {"suite.toml": 'schema = 1\n[agent]\nnetwork = ["packages.example.org:443"]\nreadable = ["../tools"]\n'})

    by_suite = ran(place, tmp_path, "nop", confine="jail")
    by_run = ran(
        place, tmp_path, "nop", confine="jail", out=tmp_path / "b", network="none", readable=(write(tmp_path / "more", {"b": ""}),)
    )

    assert by_suite.manifest.core["setting"]["network"] == ["packages.example.org:443"]
    assert [*by_suite.manifest.core["setting"]["readable"]] == [tools.name]
    assert "network" not in by_run.manifest.core["setting"]
    assert [*by_run.manifest.core["setting"]["readable"]] == ["more"]


@pytest.mark.parametrize("more", ['[agent]\nnetwork = "somewhere"\n', "[agent]\nnetwork = 1\n", "[agent]\nhosts = []\n"])
def test_a_suite_with_another_network_is_refused(tmp_path: Path, more: str) -> None:
    write(suite(tmp_path), {"suite.toml": f"schema = 1\n{more}"})

    with pytest.raises(InvalidInput, match="agent"):
        Suite.load(tmp_path / "suite")


def test_the_command_line_gives_both(cli: Cli, model: ModelServer) -> None:
    tools = write(cli.root / "tools", {"asks.py": ASKS})
    agent = command_file(cli.root, f"import sys\nsys.path.append({str(tools)!r})\nfrom asks import text\nopen('app.py', 'w').write(text)\n")
    reach = ["--network", "model:anthropic", "--readable", str(tools), "--confine", "jail", "--no-report"]

    done = cli.ok("eval", "run", str(suite(cli.root)), "--agent", agent, "--out", str(cli.root / "a"), *reach)

    assert "pass             1" in done.text
    compared = cli("eval", "compare", str(cli.root / "a"), str(cli.root / "a")).text
    assert "inputs: not known to be the same" in compared
    assert "What the network answered is not compared." in compared


def test_a_network_is_named_without_the_port_of_this_machine() -> None:
    assert network_of("none") == []
    assert network_of("all") == ["all"]
    assert network_of(["host.example:443", "model:openai"]) == ["host.example:443", "model:openai"]
    assert network_of(ModelEndpoint("mine", "http://127.0.0.1:4711/v1", ())) == ["model:mine at http://127.0.0.1/v1"]
    assert network_of(ModelEndpoint("mine", "https://models.example/v1", ())) == ["model:mine at https://models.example/v1"]


# Words of a command ------------------------------------------------------------------------------------------------------------------


def test_the_script_of_an_interpreter_needs_no_slash_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path, {"agent.py": WORK + "work()\n", "app.py": ""}))

    assert jailed(tmp_path, "python3 agent.py").records[0].outcome == "pass"
    assert [*ProgramAgent.of("python3 agent.py").identity["files"]] == ["agent.py"]


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("python3 agent.py app.py", [1]),
        ("python3 -u -W error agent.py", [4]),
        ("env A=1 python3.12 agent.py", [3]),
        ("sh agent.py", [1]),
        ("node agent.py", [1]),
        ("sh -c agent.py", []),
        ("python3 -m agent.py", []),
        ("perl -i -pe s/1/2/ app.py", []),
        ("sed -i s/1/2/ app.py", []),
        ("agent.py", []),
        ("./agent.py app.py", [0]),
    ],
)
def test_a_word_is_a_file_of_this_directory_only_where_it_can_be_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, whole: list[int]
) -> None:
    monkeypatch.chdir(write(tmp_path, {"agent.py": "", "app.py": ""}))

    assert [at for at, word in enumerate(words_of(line)) if word.startswith(str(tmp_path))] == whole


def test_a_case_of_kind_overlay_is_refused_with_the_reason(tmp_path: Path) -> None:
    case(suite(tmp_path), "over", more='workspace = "overlay"\n')

    with pytest.raises(InvalidInput, match="overlay") as refused:
        Suite.load(tmp_path / "suite")
    assert "clone" in str(refused.value)


def test_a_test_of_pytest_gives_both(pytester: pytest.Pytester, model: ModelServer) -> None:
    tools = write(pytester.path / "tools", {"asks.py": ASKS})
    agent = command_file(
        pytester.path, f"import sys\nsys.path.append({str(tools)!r})\nfrom asks import text\nopen('app.py', 'w').write(text)\n"
    )
    suite(pytester.path)
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.gittrix_eval(suite="suite", agent={agent!r}, confine="jail", network="model:anthropic", readable="tools")
        def test_case():
            pass
        """
    )

    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=120)

    done.assert_outcomes(passed=1)
    setting = RunStore.open(pytester.path / "runs" / "suite").manifest().core["setting"]
    assert (setting["network"], [*setting["readable"]]) == (["model:anthropic at http://127.0.0.1"], ["tools"])
