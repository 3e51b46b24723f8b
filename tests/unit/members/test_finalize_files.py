"""Which files of a workspace are committed, which stay, and which may never leave it: the document's table, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.members.finalize_files import Disposition, classify, is_runtime
from pytest_gittrix.workspaces.secrets import is_credential_file

PATHS = st.lists(
    st.sampled_from(
        ["src", "logs", ".ralph", ".config", "gh", "specs", "knowledge", "members", "alice", "a.py", ".env", "x.log", "token.txt"]
    )
    | st.text(min_size=1, max_size=6).filter(lambda text: "/" not in text),
    min_size=1,
    max_size=5,
).map("/".join)
BRANCHES = st.sampled_from([None, "main", "work", "trunk"])


def of(path: str, *, team: bool = False, branch: str | None = "work", default: str | None = "main", **known: bool) -> Disposition:
    return classify(path, team=team, branch=branch, default=default, **known)


@pytest.mark.parametrize(
    "path",
    [
        *(".config/gh/hosts.yml", "home/.config/gh/hosts.yml", ".env", "deep/er/.env", ".env.local", ".env.production.bak", "token.txt"),
        *("conf/token.txt", "id_rsa", ".ssh/id_ed25519", "id_ecdsa_sk", ".netrc", ".git-credentials", ".pypirc", ".aws/credentials"),
        *("tls/server.pem", "server.key", "a.p12", "a.pfx", ".ENV", "Token.TXT", "ID_RSA", ".Config/GH/hosts.yml"),
    ],
)
def test_credentials_are_never_committed_wherever_they_are(path: str) -> None:
    assert is_credential_file(path)
    for team in (False, True):
        for place in ("", "specs/", "knowledge/", ".ralph/"):
            assert of(place + path, team=team) == "never"
            assert of(place + path, team=team, uncommitted=False, ahead=True) == "never"


@pytest.mark.parametrize(
    "path",
    [
        "env",
        ".envrc",
        "my.env",
        "environment.py",
        "token.txt.py",
        "tokens.txt",
        "id_rsa.pub",
        ".config/ghx/a",
        "keys/README",
        "gh/hosts.yml",
    ],
)
def test_names_that_only_look_like_credentials_are_files_like_any_other(path: str) -> None:
    assert not is_credential_file(path)
    assert of(path) == "commit"


@pytest.mark.parametrize(
    "path",
    [
        *(".ralph/state.json", "sub/.ralph/deep/er", "logs/today", "locks/loop", "diagnostics/a/b", "run.log", "sub/x.log"),
        *("agent.pid", "run/agent.pid", "app.lock", "sub/db.lock", "SingletonLock.lock", "locks/cargo.lock"),
        *("pkg/logs/x", "pkg/logs/deep/run.out", "pkg/logs/errors.txt", "app.log.1", "app.log.2.gz", "pkg/locks/loop"),
    ],
)
def test_runtime_state_is_left_in_place(path: str) -> None:
    assert is_runtime(path, tracked=False)
    assert of(path, tracked=False) == of(path, tracked=False, team=True) == "runtime"


@pytest.mark.parametrize("path", ["logs/parser.py", "diagnostics/tests.py", "fixtures/sample.log"])
def test_what_a_commit_has_is_no_runtime_state_unless_it_is_below_ralph(path: str) -> None:
    assert of(path, tracked=True) == "commit"
    assert of(f".ralph/{path}", tracked=True) == "runtime"


@pytest.mark.parametrize(
    "path",
    [
        *("src/logs/a.py", "src/logs/README.md", "pid", "my.pid.py", ".ralph", "src/.ralphy/x", "log", "catalog/x"),
        *("Cargo.lock", "deep/poetry.lock", "uv.lock", "yarn.lock", "flake.lock", "MODULE.bazel.lock", "build-requirements.lock"),
        *("gradle-dependencies.lock", ".terraform.lock.hcl", "gradle.lockfile"),
    ],
)
def test_names_that_only_look_like_runtime_state_are_committed(path: str) -> None:
    assert of(path, tracked=False) == "commit"


@pytest.mark.parametrize(
    ("branch", "default", "what"),
    [
        ("work", "main", "commit"),
        ("main", "main", "left"),
        ("main", "trunk", "commit"),
        ("trunk", "trunk", "left"),
        (None, "main", "commit"),
    ],
)
def test_a_projects_files_are_committed_on_every_branch_but_the_default_one(branch: str | None, default: str, what: Disposition) -> None:
    assert of("src/a.py", branch=branch, default=default) == what
    assert of("specs/s.md", branch=branch, default=default) == what


@pytest.mark.parametrize("branch", [None, "main", "work"])
@pytest.mark.parametrize(
    ("path", "what"),
    [
        *(("specs/a.md", "commit"), ("knowledge/b/c.md", "commit"), ("members/alice/knowledge/d.md", "commit")),
        *(("README.md", "left"), ("members/alice/PROMPT.md", "left"), ("members/knowledge/d.md", "left"), ("specs", "left")),
        *(("sub/specs/a.md", "left"), ("members/alice/bob/knowledge/d.md", "left")),
    ],
)
def test_of_the_teams_repository_specifications_and_knowledge_are_committed(path: str, what: Disposition, branch: str | None) -> None:
    assert of(path, team=True, branch=branch) == what


@pytest.mark.parametrize(("ahead", "what"), [(True, "push"), (False, "left")])
def test_what_is_committed_is_pushed_if_its_branch_is_ahead(ahead: bool, what: Disposition) -> None:
    assert of("src/a.py", uncommitted=False, ahead=ahead) == what
    assert of("src/a.py", uncommitted=False, ahead=ahead, branch="main") == what


@given(PATHS, st.booleans(), BRANCHES, st.sampled_from(["main", "trunk"]), st.booleans(), st.booleans(), st.booleans())
def test_the_first_rule_that_fits_decides(
    path: str, team: bool, branch: str | None, default: str, tracked: bool, uncommitted: bool, ahead: bool
) -> None:
    what = classify(path, team=team, branch=branch, default=default, tracked=tracked, uncommitted=uncommitted, ahead=ahead)
    assert (what == "never") == is_credential_file(path)
    assert (what == "runtime") == (is_runtime(path, tracked=tracked) and not is_credential_file(path))
    if what == "commit":
        assert uncommitted
        assert team or branch is None or branch != default
    if what == "push":
        assert ahead
        assert not uncommitted
