"""Which files and lines hold credentials."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from support.secret_corpus import FILES, HEX, LINES, TYPICAL, text
from support.secret_forms import FORMS, github, noise, password, zipped

import pytest_gittrix
from pytest_gittrix.workspaces.credentials.wrappings import UNPACKED, unpacked
from pytest_gittrix.workspaces.secrets import Candidate, Secret, find_secrets, is_credential_file, masked, suspect, suspects_among

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
    # A line for each place where credentials stand, with what stands there in ordinary code
    "headers = {'Authorization': f'Bearer {access_token_of_the_user}'}",
    "Authorization: Bearer YOUR-ACCESS-TOKEN-GOES-HERE",
    "curl -H 'Authorization: token '$GITHUB_TOKEN_OF_THE_RUN",
    '{"token": "the-token-of-the-next-request"}',
    '{"d": "a-sentence-that-is-rather-long-and-has-no-digit-in-it", "k": "another-one-of-these-sentences"}',
    "curl -u deploy:$DEPLOY_PASSWORD_2 https://acme.example",
    "curl -u alice:password-of-alice https://acme.example",
    "docker run -u 1000:1000 -p 127.0.0.1:8080:8080 -w /usr/src/app2 image",
    "mysql -u root -pchangemeplease app",
    "mysqldump -p -h db.acme.example app",
    "tool --token TOKEN_OF_THE_ROBOT --password correct-horse-battery",
    '$password = ConvertTo-SecureString -String "Password" -AsPlainText -Force',
    "https://a.blob.core.windows.net/b?sv=2022-11-02&sig=SIGNATURE",
    "Endpoint=sb://a.example/;SharedAccessKey=<your-shared-access-key>",
    'password = "correct-horse"',
    "password = getPassword2(user)",
    "newPassword: confirmPassword1",
    "bypass=AllowAllOrigins2FA",
    "compass = NorthByNorthWest42",
    'user = "ci:the-robot-of-ci"',
    'BUNDLE_GEMS__ACME__EXAMPLE: "ci:the-robot-of-ci"',
    "openssl rsa -passin pass:changemeplease",
    "https://conda.acme.example/t/the-channel-of-the-team/main",
    "CREATE USER app IDENTIFIED BY 'changemeplease';",
    '{"key": "token", "value": "{{the_token_of_the_collection}}"}',
    "re_compile_the_pattern, sl.dropbox, pat-na1-eu, sq0idp-application, EZTKey, tfp_file, CFPAT-token, bkua_, duffel_live_",
    "image@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "ya29.example, nvapi-key, tvly-YOUR_API_KEY, cfut_token, CLOJARS_TOKEN, ABSK, EAAC, sk.eyJ, lin_oauth_token, 1//0token",
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
    line, other = (f"token = {text(27)}aB7\n".encode() for _ in range(2))  # whatever was drawn, it has all three kinds

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


@pytest.mark.parametrize("path", FORMS)
def test_a_form_that_a_tool_documents_is_suspect_and_is_not_repeated(path: str) -> None:
    found = suspect(path, FORMS[path])

    assert found is not None
    assert not any(word in str(found) for word in re.findall(r"[\w+/]{12,}", FORMS[path].decode("latin-1")) if word not in path)
    assert [one.found for one in suspects_among([Candidate("a", b"a"), Candidate(path, FORMS[path]), Candidate("b", b"b")])] == [
        found.found
    ]


@pytest.mark.parametrize(
    "path", ["my.curlrc", ".config/hub/a", "credentials", "auth.toml", ".snowsql/log", "vault_pass.py", "clone.conf", ".ftpconfig.md"]
)
def test_the_name_of_no_tools_file_holds_nothing_up(path: str) -> None:
    assert suspect(path, b"[a]\nuser = ci\n") is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_text_in_utf_16_has_lines(encoding: str) -> None:
    old, new = "first line\n", f"first line\nkey = {github()}\n"

    assert [str(one) for one in find_secrets(new.encode(encoding), [old.encode(encoding)])] == ["line 2: GitHub token"]
    assert find_secrets((new + "third line").encode(encoding), [new.encode(encoding)]) == []
    assert find_secrets(("first line\n" * 2 + "ordinary text").encode(encoding)) == []


def test_bytes_that_are_no_text_have_keys_with_a_prefix_and_whole_private_keys() -> None:
    """A program that reads keys has their first line in it, and random bytes have anything that is short."""
    program = b"\x7fELF\0\1" + noise(9000)

    assert find_secrets(program + b"\0-----BEGIN RSA PRIVATE KEY-----\0-----END RSA PRIVATE KEY-----\0") == []
    assert find_secrets(program + b"\0https://user:%s@example.org/\0") == []
    assert find_secrets(program + b"a" + b"task-of-the-program-that-comes-after-the-other-one") == []
    for before in (b"\0", b"(", b"a"):
        assert find_secrets(program + before + github().encode()) == [Secret(0, "GitHub token", "among its bytes")]
    assert find_secrets(program + FORMS["keys.zip"] + FORMS["core.bin"]) == [Secret(0, "private key", "among its bytes")]


def test_what_bytes_had_in_them_before_was_not_gained() -> None:
    one, two = f"a={github()}\n", f"b={github()}\n"

    assert find_secrets(b"\x7fELF\0\1\2\3" + one.encode() + noise(900), [noise(900) + b"\0\1\2" + one.encode()]) == []
    assert find_secrets(zipped("a.txt", one + "more\n"), [zipped("a.txt", one)]) == []
    assert [str(found) for found in find_secrets(zipped("a.txt", one + two), [zipped("a.txt", one)])] == ["'a.txt', line 2: GitHub token"]
    assert find_secrets(gzip.compress(f"more\n{one}".encode()), [gzip.compress(one.encode())]) == []


def test_an_archive_without_secrets_holds_nothing_up() -> None:
    digest = f"app/__init__.py,sha256=abc_{text(39)},12\n"  # as each wheel has them

    assert find_secrets(zipped("app-1.dist-info/RECORD", digest * 20)) == []
    assert find_secrets(gzip.compress(b"ordinary\n" * 100)) == []


def test_what_is_unpacked_has_a_limit_and_damage_is_no_error() -> None:
    bomb = gzip.compress(bytes(UNPACKED * 4))
    many = zipped("b", "x" * (UNPACKED - 1000))

    assert [len(content) for _, content in unpacked(bomb * 3)] == [UNPACKED]
    assert sum(len(content) for _, content in unpacked(many)) <= UNPACKED
    for whole in (FORMS["bundle.zip"], FORMS["log.gz"]):
        for end in range(0, len(whole), 7):
            find_secrets(whole[:end])
            find_secrets(whole[:end] + noise(9) + whole[end + 9 :])
    assert find_secrets(FORMS["bundle.zip"] + b"PK\x01\x02" * 3000) == []


def test_a_name_can_be_a_secret_and_is_masked_for_people() -> None:
    name, hidden = f"notes/{github()}.txt", github()

    found = suspect(name, b"ordinary\n")

    assert found is not None
    assert found.found == ("its path: GitHub token",)
    assert [one.path for one in suspects_among([Candidate(name, b""), Candidate("notes/plain.txt", b"")])] == [name]
    assert suspect(name, b"ordinary\n", by_name=False) is None
    assert masked(f"notes/{hidden}.txt") == "notes/…"
    assert masked("notes/plain-\udcff.txt") == "notes/plain-\udcff.txt"
    assert suspect(f"cache/{text(40, HEX)}.txt", b"") is None


def test_most_passwords_of_a_generator_are_found_and_made_up_ones_are_not() -> None:
    """Of 12 characters chance gives some that look like words."""
    drawn = [f"DB_PASSWORD={password(length)}\n".encode() for length in range(12, 25) for _ in range(20)]

    assert sum(find_secrets(line) != [] for line in drawn) >= 0.9 * len(drawn)
    for made in ("changeMePlease", "testPassword1", "my-secret-pass-1", "CorrectHorse12", "ADMIN_PASSWORD_1", "hunter2hunter2"):
        assert find_secrets(f"password = {made!r}\n".encode()) == [], made


def test_the_projects_own_source_has_none() -> None:
    """What is committed here is ordinary code: each line that is held against it would be a false alarm."""
    for file in Path(pytest_gittrix.__file__).parent.rglob("*.py"):
        assert find_secrets(file.read_bytes()) == [], file


def test_the_projects_tests_have_hardly_any() -> None:
    """28 lines, in files that test this or how passwords in addresses are treated."""
    tests = Path(__file__).resolve().parents[2]
    assert sum(len(find_secrets(file.read_bytes())) for file in tests.rglob("*.py")) <= 32


def test_the_standard_librarys_modules_have_none() -> None:
    """With its own tests it has 67 in 37 MB: 51 lines of ``.netrc`` and 16 keys, in files that test these. Here is the part without."""
    for file in Path(json.__file__).parents[1].glob("*.py"):
        assert find_secrets(file.read_bytes()) == [], file
