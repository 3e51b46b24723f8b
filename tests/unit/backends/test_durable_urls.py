"""A remote is named by its address alone, to an engine or to a start; its mirror is below the home, and no secret is anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine import Site
from support.remote import AUTHOR, TOKEN, Far

from pytest_gittrix.backends.remote import RemoteDurable
from pytest_gittrix.backends.transport import Transport, is_address
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.operations.resources import mirror_of
from pytest_gittrix.errors import AdapterUnavailable, AuthFailed, InvalidInput
from pytest_gittrix.testing.repos.remote_repos import BareRemote


def with_token(far: Far, token: str = TOKEN) -> str:
    """The address with credentials in it."""
    return far.url.replace("://", f"://git:{token}@")


def mirrors(site: Site) -> list[Path]:
    """The mirrors below the home."""
    directory = site.root / "mirrors"
    return sorted(directory.iterdir()) if directory.is_dir() else []


@pytest.mark.parametrize("ending", ["", "#main", "#"])
def test_an_engine_on_an_address_starts_and_promotes_there(near: Far, ending: str) -> None:
    session = near.site.another(durable=f"{near.url}{ending}").start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    sha = session.promote().sha

    assert near.git.head() == sha
    (mirror,) = mirrors(near.site)
    assert session.metadata()["durablePath"] == str(mirror)
    assert session.metadata()["durableRef"] == f"{near.url}#main"
    assert not near.mirror.exists()


def test_the_branch_of_an_address_is_the_engines(near: Far) -> None:
    near.git.commit({"next.txt": "next\n"}, branch="next", onto=near.git.head())

    engine = near.site.another(durable=f"{near.url}#next")

    assert engine.start_session("look").read("next.txt") == b"next\n"
    assert engine.start_session("look", durable_branch="main").exists("next.txt") is False


def test_a_start_can_name_another_remote_than_the_engines(near: Far, tmp_path: Path) -> None:
    with BareRemote.make(tmp_path / "other.git", files={"app.py": "other\n"}, branch="trunk") as other:
        session = near.site.start("fix the bug", durable_ref=f"{other.url}#trunk")
        session.write("app.py", "mine\n")
        assert session.metadata()["durableRef"] == f"{other.url}#trunk"

        sha = session.promote().sha

        assert other.repo.head() == sha
        assert near.git.branches() == ["main"]


def test_an_engine_without_a_repository_takes_one_with_each_start(near: Far) -> None:
    engine = GitTrix(None, store=near.site.store, clock=near.site.clock, sweep_interval=None, durability="fast", strategy="commit")
    with engine:
        first = engine.start_session("a", durable_ref=f"{near.url}#main")
        second = engine.start_session("b", durable_ref=near.url)
        first.write("a.txt", "a\n")
        first.promote()
        second.write("b.txt", "b\n")
        second.promote()
    assert {"a.txt", "b.txt"} <= set(near.git.tree())
    assert len(mirrors(near.site)) == 1


def test_the_reference_of_a_session_starts_another_one(near: Far) -> None:
    first = near.site.another(durable=near.url).start_session("first")

    second = near.site.another(durable=None).start_session("second", durable_ref=first.metadata()["durableRef"])

    assert second.metadata()["durablePath"] == first.metadata()["durablePath"]


def test_the_engines_own_remote_keeps_its_own_mirror(near: Far) -> None:
    session = near.site.start("look", durable_ref=f"{near.url}#main")

    assert session.metadata()["durablePath"] == str(near.mirror)
    assert mirrors(near.site) == []


def test_sessions_find_their_remote_again_in_another_engine(near: Far) -> None:
    session = near.site.another(durable=near.url).start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    with GitTrix(None, store=near.site.store, clock=near.site.clock, sweep_interval=None, durability="fast", strategy="commit") as later:
        sha = later.get_session(session.id).promote().sha

    assert near.git.head() == sha


def test_a_local_reference_names_an_engines_repository_too(near: Far, tmp_path: Path) -> None:
    with BareRemote.make(tmp_path / "local.git", files={"app.py": "local\n"}, branch="trunk") as local:
        engine = near.site.another(durable=f"local://{local.path}#trunk")
        session = engine.start_session("look")
        assert (session.read("app.py"), session.metadata()["durablePath"]) == (b"local\n", str(local.path))


# Credentials -------------------------------------------------------------------------------------------------------------------------


def test_credentials_of_an_address_are_used_and_written_nowhere(web: Far) -> None:
    session = web.site.another(durable=with_token(web)).start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    sha = session.promote().sha

    assert web.git.head() == sha
    assert session.metadata()["durableRef"] == f"{web.url}#main"
    kept = [path for path in web.site.root.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert kept == []


def test_a_start_can_bring_them(web: Far) -> None:
    engine = web.site.another(durable=None)
    with pytest.raises(AuthFailed):
        engine.start_session("look", durable_ref=web.url)

    assert engine.start_session("look", durable_ref=with_token(web)).exists("app.py")
    assert engine.start_session("look", durable_ref=web.url).exists("app.py")
    assert len(mirrors(web.site)) == 1


def test_an_engine_can_be_asked_for_them_by_address(web: Far) -> None:
    requested: list[str] = []

    def credentials(address: str) -> tuple[str, str]:
        requested.append(address)
        return "git", TOKEN

    session = web.site.another(durable=with_token(web)).start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    reopened = web.site.another(durable=None, credentials=credentials).get_session(session.id)

    sha = reopened.promote().sha

    assert web.git.head() == sha
    assert set(requested) == {web.url}


def test_a_refused_reference_shows_no_credentials(web: Far) -> None:
    with pytest.raises(InvalidInput) as caught:
        web.site.start(durable_ref=with_token(web), durable_path=web.site.root)

    assert TOKEN not in str(caught.value)
    with pytest.raises(AuthFailed) as refused:
        web.site.another(durable=with_token(web, "wrong-98765")).start_session("look")
    assert "wrong-98765" not in str(refused.value)


# Addresses ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/acme/app.git",
        "HTTP://host/x",
        "file:///srv/app.git",
        "ssh://git@host:22/x",
        "git://host/x",
        "github://acme/app",
        "git@github.com:acme/app.git",
        "host.example.com:x.git",
    ],
)
def test_what_git_takes_for_a_remote_is_an_address(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize("text", ["", ".", "/srv/app", "app", "app:x", "gitlab://o/r", "ext::sh -c x", "C:\\x", "a/b.c:d", "local:/x"])
def test_what_is_a_path_or_nothing_is_none(text: str) -> None:
    assert not is_address(text)


def test_a_directory_that_looks_like_an_address_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.host:app").mkdir()
    monkeypatch.chdir(tmp_path)

    assert not is_address("my.host:app")
    assert is_address("my.host:other")


def test_a_mirror_has_a_name_that_people_can_read_and_no_two_remotes_share(tmp_path: Path) -> None:
    addresses = ["https://host/acme/app.git", "https://host/other/app.git", "git@host:acme/app.git", "file:///srv/app.git", "https://host/"]
    paths = [mirror_of(tmp_path, address) for address in addresses]

    assert len(set(paths)) == len(paths)
    assert [Path(path).name.rpartition("-")[0] for path in paths] == ["app", "app", "app", "app", "host"]
    assert mirror_of(tmp_path, "https://me:secret@host/acme/app.git") == paths[0]


@pytest.mark.parametrize("durable", ["https:///", "file://", "ftp://host/x", "https://host/\nx"])
def test_what_cannot_be_a_repository_is_a_typed_error_at_the_latest_when_it_is_used(near: Far, durable: str) -> None:
    with pytest.raises((InvalidInput, AdapterUnavailable)):
        near.site.another(durable=durable).start_session("look")


@pytest.mark.parametrize("ref", ["{url}#a..b", "{url}#-x", "{url}#nowhere"])
def test_a_branch_that_is_none_is_refused(near: Far, ref: str) -> None:
    with pytest.raises(InvalidInput):
        near.site.another(durable=None).start_session("look", durable_ref=ref.format(url=near.url))


def test_a_directory_that_was_made_a_mirror_of_another_remote_is_refused(near: Far, tmp_path: Path) -> None:
    mirror = mirror_of(near.site.root, near.url)
    with BareRemote.make(tmp_path / "other.git") as other:
        RemoteDurable(other.url, mirror=mirror, author=AUTHOR).head("main")

    with pytest.raises(InvalidInput, match="is the mirror of"):
        near.site.another(durable=near.url).start_session("look")


@pytest.mark.parametrize(
    ("api", "address", "url"),
    [
        ("", "github://acme/app", "https://github.com/acme/app.git"),
        ("", "github://acme/app.git/", "https://github.com/acme/app.git"),
        ("https://git.example.com/api/v3", "github://acme/app", "https://git.example.com/acme/app.git"),
        ("http://127.0.0.1:8080/api/v3", "github://acme/app", "http://127.0.0.1:8080/acme/app.git"),
    ],
)
def test_a_repository_at_a_forge_has_an_address_for_git(monkeypatch: pytest.MonkeyPatch, api: str, address: str, url: str) -> None:
    monkeypatch.setenv("GITTRIX_FORGE_URL", api)

    assert Transport.to(address).url == url


@pytest.mark.parametrize("address", ["github://acme", "github://acme/app/more", "github://", "github://token@acme/app"])
def test_what_names_no_repository_at_a_forge_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="not the address of a repository"):
        Transport.to(address)
