"""The model of a test: agents find it from wherever they run, its script is held to, and a failure shows what was said."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from pytest_gittrix.confine import strongest
from pytest_gittrix.model import server
from pytest_gittrix.model.answers.faults import stall
from pytest_gittrix.model.answers.script import call, stop
from pytest_gittrix.testing.world import World

Run = Callable[..., pytest.RunResult]

ASK = '''
        import json, os, sys, urllib.error, urllib.request

        CLIENT = """
        import json, os, sys, urllib.request
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
        said = json.load(urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body))
        print(said["choices"][0]["message"]["content"], os.environ["ANTHROPIC_API_KEY"])
        """

        def ask(url, text):
            body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
            return json.load(urllib.request.urlopen(url + "/v1/chat/completions", body))["choices"][0]["message"]["content"]
'''


def test_a_client_in_the_process_and_a_program_ask_the_same_model(run: Run) -> None:
    source = f"""
        import subprocess
        {ASK}
        def test_it(gittrix_model, gittrix_env):
            gittrix_model.script("one", "two")
            assert ask(gittrix_model.url, "Hello") == "one"
            variables = {{**gittrix_env, **gittrix_model.env()}}
            said = subprocess.check_output([sys.executable, "-c", CLIENT, "And now"], env=variables, text=True)
            assert said == "two key-of-a-test\\n"
    """
    run(source).assert_outcomes(passed=1)


@pytest.mark.skipif(strongest().level == "off", reason="nothing to confine with")
@pytest.mark.parametrize("level", ["guard", "jail"])
def test_a_confined_program_reaches_the_model_and_nothing_else(run: Run, level: str) -> None:
    from support.frameworks import available

    source = f"""
        import pytest, socket
        {ASK}
        def test_it(gittrix_model, gittrix_agent):
            gittrix_model.script("one")
            how = {{"confine": "{available(level)}", "network": [gittrix_model], "timeout": 60}}
            done = gittrix_agent.run([sys.executable, "-c", CLIENT, "Hello"], **how)
            assert done.stdout == b"one key-of-a-test\\n", done.stderr
            other = socket.create_server(("127.0.0.1", 0))
            port = other.getsockname()[1]
            reach = f"import socket; socket.create_connection(('127.0.0.1', {{port}}), 5)"
            gittrix_agent.run([sys.executable, "-c", reach], **how)
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.accept()
            other.close()
    """
    run(source).assert_outcomes(passed=1)


def test_a_test_that_passed_fails_if_the_script_is_not_used_up(run: Run) -> None:
    source = f"""
        {ASK}
        def test_it(gittrix_model):
            gittrix_model.script("one", "two", "three")
            ask(gittrix_model.url, "Hello")
    """
    result = run(source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*2 steps of the model's script were not asked for.*", "*user: Hello", "*model: one"])


def test_a_failure_shows_the_last_exchanges(run: Run) -> None:
    source = f"""
        {ASK}
        def test_it(gittrix_model):
            gittrix_model.answer_with(lambda request: request.text.upper())
            for _ in range(4):
                ask(gittrix_model.url, "Hello")
            assert False
    """
    result = run(source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- gittrix model -*", "(1 exchange before)", "model: HELLO", "model: HELLO", "model: HELLO"])


SHOWN = {
    '"secret" not in gittrix_model.sent': ["*'secret' is contained here:", "*re it is: secret app.py"],
    '"rm -rf" in gittrix_model.conversation()': [
        "*assert 'rm -rf' in the conversation",
        "*user: Look at the project",
        "*calls bash(command='ls')",
    ],
    'gittrix_model.conversation() == "user: Look"': ["*- user: Look", "*+ user: Look at the project", "*+ model calls bash(command='ls')"],
    'gittrix_model.calls("bash") == ()': ["*contains one more item: <Call call_0001_0: bash(command='ls')>"],
    "len(gittrix_model.requests) == 3": [
        "*assert 2 == 3",
        "*2 = len((<Request chat m: message 1, user: Look at the project>, <Request chat m: message 3, user: Here it is: secret app.py>))",
        "*= <WorldModel http://127.0.0.1:*, exchanges: 2>.requests",
    ],
    "not gittrix_model.exchanges[:1]": ["*assert not (<Exchange 1: user: Look at the project; model calls bash(command='ls')>,)"],
    "gittrix_model.requests[0].messages == ()": ["*one more item: <user: Look at the project>"],
}


@pytest.mark.parametrize("assertion", SHOWN)
def test_a_failed_assertion_about_a_model_shows_what_was_said_and_no_json(run: Run, assertion: str) -> None:
    source = f"""
        {ASK}
        from pytest_gittrix.model import call, stop

        def test_it(gittrix_model):
            gittrix_model.script(call("bash", command="ls"), stop())
            for said in (["Look at the project"], ["Look at the project", "Go on", "Here it is: secret app.py"]):
                messages = [{{"role": ("user", "assistant")[n % 2], "content": text}} for n, text in enumerate(said)]
                body = json.dumps({{"model": "m", "messages": messages}}).encode()
                urllib.request.urlopen(gittrix_model.url + "/v1/chat/completions", body).read()
            assert {assertion}
    """
    result = run(source)
    result.assert_outcomes(failed=1)
    explained = [line for line in result.outlines if line.startswith("E ")]
    assert not [line for line in explained if '{"' in line or "Request(" in line or " object at " in line]
    result.stdout.fnmatch_lines([f"E {line}" for line in SHOWN[assertion]])


def test_a_failure_of_the_test_itself_is_shown_and_not_that_of_the_script(run: Run) -> None:
    source = """
        def test_it(gittrix_model):
            gittrix_model.script("one")
            assert 1 == 2
    """
    result = run(source)
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*was not asked for*")


def test_dates_of_answers_are_those_of_the_clock(run: Run) -> None:
    source = f"""
        {ASK}
        def test_it(gittrix_model, gittrix_clock):
            gittrix_model.script("one")
            gittrix_clock.advance(days=1)
            body = b'{{"model": "m", "messages": []}}'
            with urllib.request.urlopen(gittrix_model.url + "/v1/chat/completions", body) as answer:
                assert answer.headers["date"] == "Wed, 02 Jan 2030 00:00:00 GMT"
                assert json.load(answer)["created"] == 1893542400
    """
    run(source).assert_outcomes(passed=1)


def test_a_stall_is_over_when_the_clock_is_so_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.model_client import ask

    monkeypatch.setattr(server, "LONGEST_STALL", 3600)  # else real time ends it, as it does for programs
    with World.open() as world, ThreadPoolExecutor() as client:
        world.model.script(stall(3600, "text"), "one")
        answer = client.submit(ask, world.model.url, "chat", "Hello", stream=True)
        while not answer.done():
            world.clock.advance(minutes=20)
            wait([answer], timeout=0.01)
        assert answer.result().text == "one"


def test_a_world_without_pytest_has_a_model_that_ends_with_it() -> None:
    from support.model_client import ask

    with World.open() as world:
        world.model.script(call("bash", command="ls"), stop())
        assert ask(world.model.url, "chat", "Hello").calls[0][2] == {"command": "ls"}
        url = world.model.url
    with pytest.raises(OSError, match="refused"):
        ask(url, "chat", "Hello")


def test_a_sweep_runs_in_sessions_of_the_tests_engine(run: Run) -> None:
    source = f"""
        {ASK}
        from pytest_gittrix.model import fail

        def test_it(gittrix_model, gittrix, gittrix_durable):
            gittrix_model.script("v2")
            seen = []

            def once(session):
                seen.append(session.id)
                session.write("app.py", ask(gittrix_model.url, "Improve it"))

            report = gittrix_model.sweep(once, faults=[fail(500)]).verify()
            assert report.tried == 1
            assert {{one.id for one in gittrix.list_sessions()}} == set(seen)
    """
    run(source).assert_outcomes(passed=1)


def test_exchanges_are_events_of_the_session_whose_program_asked(run: Run) -> None:
    levels = ["off"] if strongest().level == "off" else ["off", "auto"]
    source = f"""
        import pytest
        from pytest_gittrix.model import call_any
        {ASK}
        @pytest.mark.parametrize("level", {levels})
        def test_it(gittrix, gittrix_session, gittrix_model, level):
            other = gittrix.start_session("another one")
            gittrix_model.script("one")
            agent = gittrix_session.for_agent()
            how = {{"confine": level, "timeout": 60}}
            how |= {{"network": [gittrix_model]}} if level == "auto" else {{"environment": gittrix_model.env(gittrix_session.id)}}
            done = agent.run([sys.executable, "-c", CLIENT, "Hello"], **how)
            assert done.stdout == b"one key-of-a-test\\n", done.stderr

            (told,) = gittrix_session.history(["model.exchange"])
            assert (told.data["number"], told.data["calls"], told.data["delivered"]) == (1, [], True)
            assert "content" not in told.data
            assert len(told.data["digest"]) == 64
            assert other.history(["model.exchange"]) == []
            assert gittrix_session.id not in gittrix_model.sent
    """
    run(source).assert_outcomes(passed=len(levels))


def test_a_client_of_the_test_is_the_only_session_s_and_what_is_said_is_kept_if_that_is_asked_for(run: Run) -> None:
    source = f"""
        {ASK}
        def test_it(gittrix, gittrix_session, gittrix_model):
            gittrix_model.script("one", "two", "three")
            ask(gittrix_model.url, "Hello")
            gittrix_model.keep_content = True
            ask(gittrix_model.url, "Again")
            gittrix.start_session("another one")
            ask(gittrix_model.url, "Whose?")

            first, second = gittrix_session.history(["model.exchange"])
            assert "content" not in first.data
            assert b"Again" in gittrix_session.attached(second.data["content"])
    """
    run(source).assert_outcomes(passed=1)
