"""Addresses that git takes, what is shown of them, and how the output of a push is parsed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_gittrix.backends.remote import RemoteDurable
from pytest_gittrix.backends.transport import GitResult, Outcome, Transport, parse_push
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.testing.repos.remote_repos import BareRemote

REF = "refs/heads/main"
ZERO, NEW = "0" * 40, "1" * 40


@pytest.mark.parametrize(
    ("address", "protocol", "shown"),
    [
        ("https://host.example/a/b.git", "https", "https://host.example/a/b.git"),
        ("https://ann:pa%40ss@host.example:8443/a/b.git", "https", "https://host.example:8443/a/b.git"),
        ("http://tok@127.0.0.1:80/x", "http", "http://127.0.0.1:80/x"),
        ("ssh://git@host.example/a.git", "ssh", "ssh://git@host.example/a.git"),
        ("git@host.example:a/b.git", "ssh", "git@host.example:a/b.git"),
        ("git://host.example/a.git", "git", "git://host.example/a.git"),
        ("file:///srv/a.git", "file", "file:///srv/a.git"),
        ("/srv/a b%.git", "file", "file:///srv/a b%25.git"),
    ],
)
def test_an_address_is_known_by_its_protocol_and_shown_without_credentials(address: str, protocol: str, shown: str) -> None:
    transport = Transport.to(address)

    assert (transport.protocol, transport.url) == (protocol, shown)


def test_what_could_give_credentials_away_is_hidden() -> None:
    transport = Transport.to("https://ann:pa%40ss@host.example/a.git")

    assert transport.redact("remote: \x1b[31mpa@ss, pa%40ss, YW5uOnBhQHNz\x07") == "remote: ***, ***, ***"
    assert "pa@ss" not in repr(transport)


@pytest.mark.parametrize("name", ["plain.git", "with space.git", "per%41cent.git", "quo'te\".git", "hash#and?.git", "ünï.git"])
def test_a_remote_in_an_odd_directory_is_found(tmp_path: Path, name: str) -> None:
    with BareRemote.make(tmp_path / name) as remote:
        for address in (remote.path, remote.url):
            durable = RemoteDurable(address, mirror=tmp_path / f"mirror-{address == remote.url}")

            assert durable.head("main") == remote.repo.head()


def test_a_path_that_is_not_absolute_is_so_from_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BareRemote.make(tmp_path / "remote.git") as remote:
        monkeypatch.chdir(tmp_path)
        durable = RemoteDurable("remote.git", mirror="mirror")
        monkeypatch.chdir(os.sep)

        assert durable.head("main") == remote.repo.head()
        assert durable.path == str(tmp_path / "mirror")


@pytest.mark.parametrize(
    ("status", "line", "stderr", "outcome", "reason"),
    [
        (0, f" \t{NEW}:{REF}\t{ZERO}..{NEW}", "", "landed", f"{ZERO}..{NEW}"),
        (0, f"*\t{NEW}:{REF}\t[new branch]", "", "landed", "[new branch]"),
        (0, f"=\t{NEW}:{REF}\t[up to date]", "", "landed", "[up to date]"),
        (1, f"!\t{NEW}:{REF}\t[rejected] (stale info)", "error: failed to push some refs", "rejected", "stale info"),
        (1, f"!\t{NEW}:{REF}\t[remote rejected] (hook declined)", "remote: no\nremote: way", "rejected", "hook declined: no; way"),
        (1, f"!\t{NEW}:{REF}\t[remote failure] (remote failed to report status)", "", "unknown", "remote failed to report status"),
        (1, f"!\t{NEW}:refs/heads/other\t[rejected] (stale info)", "odd", "unknown", "odd"),
        (None, "", "it did not answer within 1 s", "unknown", "it did not answer within 1 s"),
        (128, "", "error: RPC failed; curl 52 Empty reply\nfatal: the remote end hung up", "unknown", None),
        (128, "", "error: RPC failed; HTTP 500 curl 22 The requested URL returned error: 500", "unknown", None),
        (128, "", "error: RPC failed; HTTP 413 curl 22 error: 413\nfatal: the remote end hung up unexpectedly", "refused", None),
        (128, "", "fatal: unable to access 'http://x/': Could not resolve host: x", "refused", None),
        (128, "", "fatal: Could not read from remote repository.", "unknown", None),
        (1, "", "Everything up-to-date", "unknown", "Everything up-to-date"),
    ],
)
def test_the_output_of_a_push_is_parsed(status: int | None, line: str, stderr: str, outcome: Outcome, reason: str | None) -> None:
    parsed = parse_push(GitResult(status, f"To somewhere\n{line}\nDone\n", stderr), REF)

    assert parsed.outcome == outcome
    assert not parsed.auth
    assert reason in (None, parsed.reason)


@pytest.mark.parametrize(
    "stderr",
    [
        "fatal: Authentication failed for 'https://x/'",
        "fatal: could not read Username for 'https://x': terminal prompts disabled",
        "fatal: unable to access 'https://x/': The requested URL returned error: 403",
        "git@x: Permission denied (publickey).\nfatal: Could not read from remote repository.",
        "error: RPC failed; HTTP 403 curl 22 The requested URL returned error: 403\nfatal: the remote end hung up unexpectedly",
    ],
)
def test_refused_credentials_are_known_for_what_they_are(stderr: str) -> None:
    parsed = parse_push(GitResult(128, "", stderr), REF)

    assert (parsed.outcome, parsed.auth) == ("refused", True)


@pytest.mark.parametrize("url", ["ssh://git:hidden@host.example/a.git", "git://me:hidden@host.example/a.git"])
def test_a_password_where_none_is_taken_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match="password") as refused:
        Transport.to(url)
    assert "hidden" not in str(refused.value)
