"""Which files and lines hold credentials."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.secret_corpus import FILES, LINES, TYPICAL, text

import pytest_gittrix
from pytest_gittrix.workspaces.secrets import Secret, find_secrets, is_credential_file, suspect

HARMLESS = [
    "password = os.environ['PASSWORD']",
    "token: str = field(repr=False)",
    "https://user:password@example.org",
    "postgres://app:${PASSWORD}@db/app",
    "//npm.example.org/:_authToken=${NPM_TOKEN}",
    "sha256 = 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "-----BEGIN PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----",
    "git+ssh://git@github.com/acme/app.git",
    "see skeleton-key-of-the-module",
    '"integrity": "sha512-' + "a" * 86 + '=="',
    "def test_a_token_is_asked_for(self): ...",
    "token = tokenizer.next_token_of_the_line()",
    "private_key: ed25519.Ed25519PrivateKey, comment: str",
    "PASSWORD=${DB_PASSWORD_OF_PRODUCTION_1234}",
    "password: correct-horse-battery-staple",
    "TOKEN_URL = https://auth.example.org/oauth2/v1/token",
    "class TestHTTP2Connection_ThatIsClosedByThePeer: ...",
    "Server=db;Database=app;User Id=sa;Password=${PASSWORD};",
    "<password>${env.CI_PASSWORD}</password>",
]


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_such_a_name_holds_credentials(path: str) -> None:
    assert is_credential_file(path)
    assert is_credential_file(f"deep/er/{path.upper()}")


@pytest.mark.parametrize(
    "path", ["id_rsa.pub", ".ssh/config", ".ssh/known_hosts", "package.json", ".npmrc", "env.py", "state.tf", "keys/README"]
)
def test_a_file_of_another_name_need_not(path: str) -> None:
    assert not is_credential_file(path)


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_such_a_shape_is_a_secret_and_is_not_repeated(name: str) -> None:
    (found,) = find_secrets(f"first\n{LINES[name]}\nlast\n".encode())

    assert found.line == 2
    assert LINES[name][-8:] not in str(found)


@pytest.mark.parametrize("line", HARMLESS)
def test_ordinary_lines_are_none(line: str) -> None:
    assert find_secrets(f"{line}\n".encode()) == []


@pytest.mark.parametrize("path", TYPICAL)
def test_a_file_as_people_leave_it_is_suspect(path: str) -> None:
    """The rules were not made from these files: they found 25 of the 64 when they first met them."""
    found = suspect(path, TYPICAL[path].encode())

    assert found is not None
    assert not any(word in str(found) for word in re.findall(r"[\w+/]{16,}", TYPICAL[path]) if word not in path)


def test_a_fingerprint_is_of_the_path_and_of_what_was_found() -> None:
    """So a person lets through what they saw, and not what comes to the same place later."""
    line, other = f"token = {text(30)}\n".encode(), f"token = {text(30)}\n".encode()

    def fingerprint(path: str, new: bytes, old: bytes = b"") -> str:
        found = suspect(path, new, [old])
        assert found is not None
        return found.fingerprint

    seen = fingerprint("app.py", line)
    assert re.fullmatch("[0-9a-f]{16}", seen)
    assert fingerprint("app.py", b"more\n" + line, b"more\n") == seen
    assert len({seen, fingerprint("b.py", line), fingerprint("app.py", other), fingerprint("app.py", line + other)}) == 4
    assert fingerprint("id_rsa", b"one") != fingerprint("id_rsa", b"two")


def test_a_fingerprint_that_is_allowed_lets_no_file_of_that_name_through() -> None:
    harmless = suspect("a.py", LINES["GitHub"].encode())
    assert harmless is not None
    named_like_it = suspect(harmless.fingerprint, LINES["GitHub"].encode())
    assert named_like_it is not None

    assert harmless.is_among({harmless.fingerprint})
    assert not named_like_it.is_among({harmless.fingerprint})
    assert named_like_it.is_among({named_like_it.fingerprint})


def test_what_was_there_before_was_not_gained() -> None:
    old = f"{LINES['GitHub']}\nrest\n".encode()

    assert find_secrets(b"new\n" + old, [old]) == []
    assert [one.line for one in find_secrets(old + LINES["Stripe"].encode(), [b"other\n", old])] == [3]


@pytest.mark.parametrize("before", [0, 3500, 4090, 100_000])
def test_in_a_line_of_any_length_a_secret_is_found(before: int) -> None:
    """Minified code is one line; and the longest runs of what a pattern begins with are looked at once, not once for each place in them."""
    line = b"eyJ-" * (before // 4) + b" " + LINES["GitHub"].encode() + b" " + b"x" * 9000

    assert find_secrets(line) == [Secret(1, "GitHub token")]


def test_each_line_of_many_is_found_under_its_number() -> None:
    line = f"{LINES['GitHub']}\n".encode()
    assert find_secrets(line * 5000) == [Secret(number, "GitHub token") for number in range(1, 5001)]
    assert [one.line for one in find_secrets(b"old\n" + line + b"new\n" + line[:-2], [b"old\n"])] == [2, 4]


def test_a_binary_file_has_no_lines() -> None:
    assert find_secrets(b"\0" + LINES["GitHub"].encode()) == []


def test_the_projects_own_source_has_none() -> None:
    """What is committed here is ordinary code: each line that is held against it would be a false alarm."""
    for file in Path(pytest_gittrix.__file__).parent.rglob("*.py"):
        assert find_secrets(file.read_bytes()) == [], file


def test_the_projects_tests_have_hardly_any() -> None:
    """14 lines, in files that test this or how passwords in addresses are treated."""
    tests = Path(__file__).resolve().parents[2]
    assert sum(len(find_secrets(file.read_bytes())) for file in tests.rglob("*.py")) <= 20


def test_the_standard_librarys_modules_have_none() -> None:
    """With its own tests it has 67 in 37 MB: 51 lines of ``.netrc`` and 16 keys, in files that test these. Here is the part without."""
    for file in Path(json.__file__).parents[1].glob("*.py"):
        assert find_secrets(file.read_bytes()) == [], file
