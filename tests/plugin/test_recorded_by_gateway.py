"""A tape is recorded by the gateway, from a server of TLS and from one of plain HTTP; the key is nowhere but there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trustme
from support.confined import available
from support.gateway import serving

KEY = "sk-that-the-server-alone-may-see"
ANSWER = json.dumps(
    {
        "model": "m",
        "choices": [{"message": {"role": "assistant", "content": "Blue."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
).encode()
TEST = '''
import os
import sys

import pytest

AGENT = """
import glob, json, os, urllib.request
seen = json.dumps(dict(os.environ))
for file in glob.glob("/proc/[0-9]*/environ"):
    try:
        seen += open(file, errors="replace").read()
    except OSError:
        pass
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Name a colour"}]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
answer = json.load(urllib.request.urlopen(request, timeout=60))
open("colour", "w").write(answer["choices"][0]["message"]["content"])
open("seen", "w").write(seen)
"""


@pytest.mark.gittrix(model="tape")
def test_it(gittrix, gittrix_agent, gittrix_session, gittrix_model, tmp_path):
    gittrix_model.keep_content = True
    done = gittrix_agent.run([sys.executable, "-I", "-c", AGENT], confine="LEVEL", network=[gittrix_model], timeout=60)
    assert done.code == 0, done.stderr
    assert gittrix_agent.read("colour") == b"Blue."
    assert len(gittrix_session.history(["model.exchange"])) == 1
    key = "KEY".encode()
    store = [path for path in gittrix.store.root.rglob("*") if path.is_file()]
    assert any(b"Name a colour" in path.read_bytes() for path in store)
    assert not [path for path in store if key in path.read_bytes()]
    if "LEVEL" == "jail":  # at guard a program sees other processes of its user, and so the one that has the key
        assert key not in gittrix_agent.read("seen")
    assert "KEY" not in gittrix_model.sent
'''


@pytest.mark.parametrize(("level", "tls"), [("jail by namespaces", True), ("guard by landlock", False)])
def test_a_tape_is_recorded_by_the_gateway_and_the_key_stays_outside(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: str, tls: bool
) -> None:
    available(level)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    pytester.makepyfile(test_recorded=TEST.replace("LEVEL", level.split()[0]).replace("KEY", KEY))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    with serving(authority if tls else None, [ANSWER[:30], ANSWER[30:]]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{'https' if tls else 'http'}://localhost:{server.port}/v1")
        recorded = pytester.runpytest_subprocess("-p", "no:randomly")
        recorded.assert_outcomes(passed=1)
    monkeypatch.delenv("OPENAI_API_KEY")
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=1)

    ((method, path, headers, _),) = server.heard
    assert (method, path, headers["authorization"]) == ("POST", "/v1/chat/completions", f"Bearer {KEY}")
    (tape,) = (pytester.path / "tapes").iterdir()
    assert '"answer": ["Blue."]' in tape.read_text()
    assert KEY not in tape.read_text()
    assert KEY not in recorded.stdout.str() + recorded.stderr.str()
