"""Everyday tests that need more than plain values: correct code passes them, and wrong code of the same shape does not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from support.hidden_tests import verdict_on

from pytest_gittrix.evals.judging.verdict import Verdict


class Idiom(NamedTuple):
    """Correct code, what makes it wrong, the body of the test with its fixtures, and what judges the test when it passes."""

    code: str
    right: str
    wrong: str
    fixtures: str
    test: str
    judge: str = "canary"


IDIOMS = {
    "warns": Idiom(
        "import warnings\ndef old():\n    warnings.warn('use new()', KIND)\n    return 1",
        "DeprecationWarning",
        "UserWarning",
        "",
        "with pytest.warns(DeprecationWarning):\n        assert app.old() == 1",
    ),
    "recwarn": Idiom(
        "import warnings\ndef old():\n    warnings.warn('KIND')",
        "a",
        "b",
        "recwarn",
        "app.old()\n    assert str(recwarn[0].message) == 'a'",
    ),
    "caplog": Idiom(
        "import logging\ndef noisy():\n    logging.getLogger('app').warning('KIND')",
        "careful",
        "careless",
        "caplog",
        "app.noisy()\n    assert 'careful' in caplog.text",
    ),
    "logging": Idiom(
        "import logging\ndef quiet():\n    logging.getLogger('app').setLevel(KIND)",
        "30",
        "20",
        "",
        "app.quiet()\n    assert logging.getLogger('app').level == 30",
    ),
    "capsys": Idiom(
        "def hi():\n    print('KIND')", "hi", "ho", "capsys", "app.hi()\n    assert capsys.readouterr().out == 'hi\\n'", "subject"
    ),
    "capfd": Idiom(
        "import os\ndef hi():\n    os.write(1, b'KIND')", "hi", "ho", "capfd", "app.hi()\n    assert capfd.readouterr().out == 'hi'"
    ),
    "argv": Idiom(
        "import sys\ndef main():\n    return int(sys.argv[KIND])",
        "1",
        "2",
        "monkeypatch",
        "monkeypatch.setattr('sys.argv', ['app', '3', '4'])\n    assert app.main() == 3",
    ),
    "stdin": Idiom(
        "import sys\ndef text():\n    return sys.stdin.read().KIND()",
        "upper",
        "lower",
        "monkeypatch",
        "monkeypatch.setattr('sys.stdin', io.StringIO('aB'))\n    assert app.text() == 'AB'",
    ),
    "input": Idiom(
        "def name():\n    return input('name? ') + 'KIND'",
        "",
        "!",
        "monkeypatch",
        "monkeypatch.setattr('builtins.input', lambda _: 'Ada')\n    assert app.name() == 'Ada'",
    ),
    "open": Idiom(
        "def text():\n    with open('/no/such') as file:\n        return file.read().KIND()",
        "strip",
        "upper",
        "",
        "with mock.patch('builtins.open', mock.mock_open(read_data='x\\n')):\n        assert app.text() == 'x'",
    ),
    "time": Idiom(
        "import time\ndef age(since):\n    return time.time() KIND since",
        "-",
        "+",
        "monkeypatch",
        "monkeypatch.setattr('time.time', lambda: 100.0)\n    assert app.age(90) == 10",
    ),
    "program": Idiom(
        "import subprocess\ndef version():\n    return subprocess.check_output(['git', 'KIND'])",
        "-v",
        "-V",
        "",
        "with mock.patch('subprocess.check_output', return_value=b'2') as run:\n        assert app.version() == b'2'\n"
        "    run.assert_called_once_with(['git', '-v'])",
    ),
    "argparse": Idiom(
        "import argparse\ndef main():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('--n', required=KIND)\n"
        "    parser.parse_args([])",
        "True",
        "False",
        "",
        "with pytest.raises(SystemExit) as ended:\n        app.main()\n    assert ended.value.code == 2",
    ),
    "seed": Idiom(
        "import random\ndef dice():\n    return random.KINDrandint(1, 10**9)",
        "",
        "SystemRandom().",
        "",
        "random.seed(1)\n    one = app.dice()\n    random.seed(1)\n    assert one == app.dice()",
        "plain",
    ),
    "is": Idiom("def keep(it):\n    return KIND(it)", "", "list", "", "it = [1]\n    assert app.keep(it) is it"),
    "named argument": Idiom(
        "def fill(it):\n    it.append(KIND)", "1", "2", "", "given = []\n    app.fill(it=given)\n    assert given == [1]"
    ),
    "attribute": Idiom(
        "def go():\n    problem = ValueError('x')\n    problem.code = KIND\n    raise problem",
        "7",
        "8",
        "",
        "with pytest.raises(ValueError) as raised:\n        app.go()\n    assert raised.value.code == 7",
    ),
    "cause": Idiom(
        "def go():\n    try:\n        {}['a']\n    except KeyError as problem:\n        raise ValueError('x') from KIND",
        "problem",
        "None",
        "",
        "with pytest.raises(ValueError) as raised:\n        app.go()\n    assert isinstance(raised.value.__cause__, KeyError)",
    ),
    "environment": Idiom(
        "import os\ndef go():\n    os.environ['APP'] = 'KIND'", "1", "2", "", "app.go()\n    assert os.environ['APP'] == '1'"
    ),
    "directory": Idiom("import os\ndef go():\n    os.chdir('KIND')", "/", "/usr", "", "app.go()\n    assert os.getcwd() == '/'"),
    "reload": Idiom(
        "import os\nX = os.environ.get('X', 'KIND')",
        "no",
        "na",
        "monkeypatch",
        "monkeypatch.setenv('X', 'yes')\n    importlib.reload(app)\n    assert app.X == 'yes'\n"
        "    monkeypatch.delenv('X')\n    importlib.reload(app)\n    assert app.X == 'no'",
    ),
    "changed attribute": Idiom(
        "L = []\ndef count():\n    return len(L) + KIND", "0", "1", "", "app.L.append(1)\n    assert app.count() == 1"
    ),
    "pickle": Idiom("def more(n):\n    return n + KIND", "1", "2", "", "assert pickle.loads(pickle.dumps(app.more))(1) == 2"),
    "inspect": Idiom("def more(n):\n    KIND n", "yield", "return", "", "assert inspect.isgeneratorfunction(app.more)"),
    "docstring": Idiom("def more(n):\n    'KIND'", "Does it.", "Did it.", "", "assert app.more.__doc__ == 'Does it.'"),
}

IMPORTS = "import importlib, inspect, io, logging, os, pickle, random\nfrom unittest import mock\n\nimport pytest\n\nimport app\n\n\n"


@pytest.mark.parametrize("name", IDIOMS)
def test_correct_code_passes_and_wrong_code_does_not(name: str, tmp_path: Path) -> None:
    idiom = IDIOMS[name]
    tests = f"{IMPORTS}def test_it({idiom.fixtures}):\n    {idiom.test}\n"
    found: list[Verdict] = []
    for filling in (idiom.right, idiom.wrong):
        root = tmp_path / str(len(found))
        root.mkdir()
        found.append(verdict_on(idiom.code.replace("KIND", filling), root, "off", tests)[0])

    right, wrong = found
    assert (right.wrong, dict(right.judges)) == ("", {"test_it": idiom.judge})
    assert (wrong.wrong != "", dict(wrong.judges)) == (True, {})


def test_wrong_code_is_told_alike_each_time_where_plain_values_crossed(tmp_path: Path) -> None:
    reasons = set()
    for number in range(4):
        root = tmp_path / str(number)
        root.mkdir()
        # A changed expectation may be what wrong code gives: 3 for 2. That must not decide what the record says.
        reasons.add(
            verdict_on("def f():\n    return 3\n", root, "off", "import app\n\n\ndef test_it():\n    assert app.f() == 2\n")[0].wrong
        )

    assert reasons == {"status 1"}


@pytest.mark.parametrize(
    ("tests", "name"),
    [
        ("async def test_it():\n    assert await app.get() == 3\n", "test_it"),
        ("class TestIt:\n    async def test_it(self, tmp_path):\n        assert await app.get() == 3\n", "TestIt::test_it"),
        (
            "class TestIt(unittest.IsolatedAsyncioTestCase):\n    async def test_it(self):\n        self.assertEqual(await app.get(), 3)\n",
            "TestIt::test_it",
        ),
    ],
    ids=["function", "method", "unittest"],
)
def test_a_test_that_awaits_is_judged_by_a_canary_without_a_plugin(tests: str, name: str, tmp_path: Path) -> None:
    code, everything = "async def get():\n    return 3\n", "class All:\n    __eq__ = lambda *_: True\nasync def get():\n    return All()\n"
    found: list[Verdict] = []
    for result in (code, code.replace("3", "4"), everything):
        root = tmp_path / str(len(found))
        root.mkdir()
        found.append(verdict_on(result, root, "off", f"import unittest\n\nimport app\n\n\n{tests}")[0])

    assert (found[0].wrong, dict(found[0].judges)) == ("", {name: "canary"})
    assert found[1].wrong
    assert found[2].wrong == "a test passes whatever it expects"
