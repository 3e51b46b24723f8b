"""A promotion that becomes a pull request: one commit on a branch of its own, one request of it at the forge, and the record says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.engine import Site, at_point, kill_at, open_site, passed
from support.remote import TOKEN, WIRES, Far, Wire, open_far

from pytest_gittrix.backends.forge.github import GitHubForge
from pytest_gittrix.backends.local import LocalDurable
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.promotion.strategy import branch_names
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput, SecretsFound, SessionExpired
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.forge_state import Pull
from pytest_gittrix.testing.repos.remote_repos import BareRemote


@dataclass
class Shop:
    """Engines on a durable repository that a forge serves.

    Attributes:
        site: the engines; ``site.durable`` is the repository as git sees it.
        server: the forge.
        forge: the adapter to it, which every engine has.
    """

    site: Site
    server: ForgeServer
    forge: GitHubForge

    def session(self, task: str = "fix the bug", **options: Any) -> UserSession:
        """A session with something to promote."""
        session: UserSession = self.site.start(task, **options)
        session.write("app.py", "print('v2')\n")
        return session

    def pulls(self) -> list[Pull]:
        """The pull requests at the forge."""
        return [*self.server.state.pulls.values()]

    def data(self, session: UserSession, type_: str) -> dict[str, Any]:
        """What the one event of a type says."""
        (event,) = [event for event in self.site.events(session.id) if event.type == type_]
        return dict(event.data)


def open_shop(root: Path, held: ExitStack, where: str) -> Shop:
    if where == "local":
        site = held.enter_context(open_site(root, bare=True))
        remote = held.enter_context(BareRemote(site.durable.path))
        server = held.enter_context(ForgeServer(remote, tokens={TOKEN}))
    else:
        wire: Wire = "http" if where == "http" else "file"
        far: Far = held.enter_context(open_far(root, wire))
        site = far.site
        server = far.forge or held.enter_context(ForgeServer(far.remote, tokens={TOKEN}))
    forge = held.enter_context(GitHubForge("acme/app", base_url=server.url, token=TOKEN))
    site.options["forge"] = forge
    return Shop(site, server, forge)


@pytest.fixture(params=[*WIRES, "local"])
def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as held:
        yield open_shop(tmp_path, held, request.param)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as held:
        yield open_shop(tmp_path, held, "local")


def test_the_work_is_one_commit_on_a_branch_with_a_pull_request(everywhere: Shop) -> None:
    durable, before = everywhere.site.durable, everywhere.site.durable.head()
    session = everywhere.session()

    result = session.promote(strategy="pr")

    assert (result.branch, result.warnings) == ("gittrix/fix-the-bug", ())
    assert durable.head(result.branch) == result.sha
    assert durable.parents(result.sha) == [before]
    assert set(durable.changed(result.sha)) == {"app.py"}
    assert durable.head() == before
    (pull,) = everywhere.pulls()
    assert (pull.head, pull.base, pull.head_sha, pull.draft) == (result.branch, "main", result.sha, False)
    assert result.pr_url == everywhere.forge.pr(pull.number).url
    assert everywhere.site.state(session.id).state == "promoted"


def test_a_session_whose_branch_was_deleted_with_its_merge_opens_another_pull_request(everywhere: Shop) -> None:
    durable, state = everywhere.site.durable, everywhere.server.state
    session = everywhere.session()
    first = session.promote(strategy="pr", keep=True)
    merge = state.merge(1)
    durable.git("update-ref", "-d", f"refs/heads/{first.branch}")
    session.write("app.py", "print('v3')\n")

    second = session.promote(keep=True)

    assert second.pr_url == everywhere.forge.pr(2).url
    assert "goes by 'main' again" in second.warnings[0]
    assert durable.parents(second.sha) == [merge]
    assert durable.changed(second.sha).keys() == {"app.py"}
    session.write("app.py", "print('v4')\n")
    third = session.promote()
    assert (durable.parents(third.sha), third.branch, len(everywhere.pulls())) == ([second.sha], second.branch, 2)


def test_what_looks_like_a_secret_opens_no_pull_request_unless_a_person_lets_it_through(shop: Shop) -> None:
    session, before = shop.session(keep_after_promote=True), shop.site.durable.branches()
    session.write("deploy.pem", "x\n")

    with pytest.raises(SecretsFound, match=r"deploy\.pem: holds credentials by its name"):
        session.promote(strategy="pr")
    assert (shop.pulls(), shop.site.durable.branches()) == ([], before)

    first = session.promote(["app.py"], strategy="pr")
    with pytest.raises(SecretsFound):
        session.promote(strategy="commit")
    assert shop.site.durable.head(first.branch) == first.sha
    added = session.promote(strategy="commit", allow_secrets=["deploy.pem"])
    assert shop.site.durable.head(first.branch) == added.sha


def test_the_record_says_what_was_asked_and_what_came_of_it(shop: Shop) -> None:
    session = shop.session()

    result = session.promote(strategy="pr", message="Fix it\n\nIt was broken.", draft=True)

    asked = shop.data(session, "promote.intent")
    body = f"It was broken.\n\nPromoted by gittrix from session `{session.id}`."
    assert {name: asked[name] for name in ("base", "title", "body", "draft", "strategy", "branch")} == {
        "base": "main",
        "title": "Fix it",
        "body": body,
        "draft": True,
        "strategy": "pr",
        "branch": "gittrix/fix-the-bug",
    }
    done = shop.data(session, "promote.done")
    assert (done["commit"], done["strategy"], done["pr_url"]) == (result.sha, "pr", result.pr_url)
    assert shop.data(session, "pr.observed") == {
        "state": "open",
        "number": 1,
        "url": result.pr_url,
        "title": "Fix it",
        "branch": "gittrix/fix-the-bug",
        "base_branch": "main",
        "draft": True,
    }
    assert session.metadata()["promote"] == {
        "strategy": "pr",
        "result": {"sha": result.sha, "branch": "gittrix/fix-the-bug", "prUrl": result.pr_url},
    }


def test_the_orchestrators_view_shows_the_pull_request(shop: Shop) -> None:
    session = shop.session(agent="app-1")

    url = session.promote(strategy="pr", draft=True).pr_url

    seen = shop.site.engine.view(session.id, "orchestrator")
    assert seen["status"] == "pr_open"
    assert seen["pr"] == {
        "number": 1,
        "url": url,
        "title": "gittrix: fix the bug",
        "owner": "acme",
        "repo": "app",
        "branch": "gittrix/fix-the-bug",
        "baseBranch": "main",
        "isDraft": True,
    }


def test_what_is_told_of_it_is_taken_as_it_is(shop: Shop) -> None:
    shop.site.durable.commit({"old.txt": "old\n"}, branch="release", onto=shop.site.durable.head())

    shop.session().promote(strategy="pr", base="release", title="Backport", body="See there.")

    (pull,) = shop.pulls()
    assert (pull.base, pull.title, pull.body) == ("release", "Backport", "See there.")


@pytest.mark.parametrize(
    ("message", "title", "said"),
    [
        (None, "gittrix: fix the bug", ""),
        ("Fix it", "Fix it", ""),
        ("\n\nFix it\n", "Fix it", ""),
        ("x" * 300, "x" * 199 + "…", "x" * 300 + "\n\n"),
        ("Ünïcode ✓\nand more", "Ünïcode ✓", "and more\n\n"),
    ],
)
def test_title_and_body_come_from_the_message(shop: Shop, message: str | None, title: str, said: str) -> None:
    session = shop.session()
    session.promote(strategy="pr", message=message)

    (pull,) = shop.pulls()
    assert (pull.title, pull.body) == (title, f"{said}Promoted by gittrix from session `{session.id}`.")


def test_a_session_of_another_branch_asks_to_be_merged_there(shop: Shop) -> None:
    shop.site.durable.commit({"new.txt": "new\n"}, branch="next", onto=shop.site.durable.head())

    shop.session(durable_branch="next").promote(strategy="pr")

    assert [pull.base for pull in shop.pulls()] == ["next"]


def test_the_branch_that_a_session_was_told_of_is_used_if_it_is_free(shop: Shop) -> None:
    assert shop.session(topic_branch="session/app-1").promote(strategy="pr").branch == "session/app-1"
    assert shop.session(topic_branch="session/app-1").promote(strategy="pr").branch == "gittrix/fix-the-bug"
    assert shop.session(topic_branch="main").promote(strategy="pr").branch == "gittrix/fix-the-bug-2"
    assert len(shop.pulls()) == 3


@pytest.mark.parametrize("wanted", ["main/x", "gittrix", "a..b", "-x", "", "HEAD", "refs/heads/main"])
def test_a_name_that_cannot_be_made_a_branch_is_passed_over(wanted: str) -> None:
    known = ["refs/heads/main", "refs/heads/gittrix/fix"]
    assert next(branch_names("fix", known, preferred=wanted)) == "gittrix/fix-2"


@pytest.mark.parametrize("who", ["session", "engine"])
def test_auto_is_a_pull_request_where_that_is_settled(shop: Shop, who: str) -> None:
    if who == "engine":
        session = shop.site.another(strategy="pr").start_session("fix the bug")
        session.write("app.py", "print('v2')\n")
    else:
        session = shop.session(strategy="pr")

    assert session.promote(title="Mine").pr_url is not None
    assert [pull.title for pull in shop.pulls()] == ["Mine"]


def test_auto_on_a_protected_branch_is_a_pull_request_where_that_is_settled(shop: Shop) -> None:
    durable = LocalDurable(shop.site.durable.path, protected=["main"], sync=False)
    session = shop.site.another(durable=durable, strategy="pr").start_session("fix the bug")
    session.write("app.py", "print('v2')\n")

    assert session.promote().pr_url is not None


def test_a_forge_can_be_told_by_repository(shop: Shop) -> None:
    asked: list[str] = []

    def forge_of(durable: Any) -> GitHubForge:
        asked.append(durable.uri)
        return shop.forge

    session = shop.site.another(forge=forge_of).start_session("fix the bug")
    session.write("app.py", "print('v2')\n")
    before = list(asked)
    session.promote(strategy="pr")

    assert before == []
    assert set(asked) == {f"local://{shop.site.durable.path}#main"}


def test_others_promote_while_the_forge_takes_its_time(shop: Shop) -> None:
    slow, quick = shop.session("slow"), shop.site.another().start_session("quick")
    quick.write("b.txt", "b\n")

    with at_point("pr:opening", lambda: quick.promote(strategy="commit")):
        result = slow.promote(strategy="pr")

    assert result.pr_url is not None
    assert shop.site.durable.read("b.txt") == b"b\n"
    assert "app.py" in shop.site.durable.changed(result.sha)


def test_the_forge_is_asked_after_the_branch_moved_and_before_it_is_recorded(shop: Shop) -> None:
    session = shop.session()

    steps = passed(lambda: session.promote(strategy="pr"))

    wanted = ["promote:intent-logged", "land:moved", "promote:swapped", "pr:opening", "pr:opened", "promote:recorded"]
    assert [step for step in steps if step in wanted] == wanted


@pytest.mark.parametrize("point", ["land:moved", "promote:swapped", "pr:opening", "pr:opened", "promote:recorded"])
def test_after_a_kill_the_next_engine_sees_to_it_that_there_is_one(everywhere: Shop, point: str) -> None:
    session = everywhere.session()
    kill_at(point, lambda: session.promote(strategy="pr", title="Fix it", draft=True))

    recovered = everywhere.site.another()
    recovered.recover()

    state = everywhere.site.state(session.id)
    assert state.state == "promoted"
    assert state.result is not None
    (pull,) = everywhere.pulls()
    assert state.result.pr_url == everywhere.forge.pr(pull.number).url
    assert (pull.title, pull.draft, pull.head_sha) == ("Fix it", True, state.result.sha)
    assert recovered.recover().problems == []
    assert len(everywhere.pulls()) == 1


def test_after_a_kill_a_request_that_was_merged_meanwhile_is_the_one(shop: Shop) -> None:
    session = shop.session()
    kill_at("pr:opened", lambda: session.promote(strategy="pr"))
    shop.server.state.merge(1)

    shop.site.another().recover()

    assert len(shop.pulls()) == 1
    assert shop.data(session, "pr.observed")["state"] == "merged"


def test_after_a_kill_a_merged_request_whose_branch_is_gone_is_promoted(shop: Shop) -> None:
    session = shop.session()
    kill_at("pr:opened", lambda: session.promote(strategy="pr"))
    shop.server.state.merge(1)
    shop.site.durable.git("branch", "-D", "gittrix/fix-the-bug")

    assert shop.site.another().recover().rolled_forward == [session.id]

    assert len(shop.pulls()) == 1
    assert shop.data(session, "pr.observed")["state"] == "merged"


def test_after_a_kill_a_squashed_request_whose_branch_is_gone_is_not_seen(shop: Shop) -> None:
    session = shop.session()
    kill_at("pr:opened", lambda: session.promote(strategy="pr"))
    landed = shop.site.durable.changed("gittrix/fix-the-bug")
    shop.site.durable.commit({path: shop.site.durable.read(path, "gittrix/fix-the-bug") for path in landed}, "squashed")
    shop.site.durable.git("branch", "-D", "gittrix/fix-the-bug")

    assert shop.site.another().recover().rolled_back == [session.id]
    assert shop.site.state(session.id).state == "active"


def test_an_interrupt_while_the_forge_is_asked_leaves_it_to_the_next_who_comes(shop: Shop) -> None:
    session = shop.session()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), at_point("pr:opening", interrupt):
        session.promote(strategy="pr")
    assert shop.site.state(session.id).intent is not None

    with pytest.raises(SessionExpired):
        session.promote(strategy="pr")

    assert len(shop.pulls()) == 1
    assert shop.site.state(session.id).state == "promoted"


def test_after_a_kill_an_engine_without_a_forge_promotes_and_says_what_is_missing(shop: Shop) -> None:
    session = shop.session()
    kill_at("pr:opening", lambda: session.promote(strategy="pr"))

    report = shop.site.another(forge=None).recover()

    assert report.rolled_forward == [session.id]
    done = shop.data(session, "promote.done")
    assert "pr_url" not in done
    assert "knows no forge" in done["pr_failed"]
    assert "by hand" in done["pr_failed"]


def test_a_kill_before_the_branch_moved_leaves_no_branch_and_no_request(everywhere: Shop) -> None:
    session = everywhere.session()
    kill_at("promote:intent-logged", lambda: session.promote(strategy="pr"))

    assert everywhere.site.another().recover().rolled_back == [session.id]

    assert everywhere.site.durable.branches() == ["main"]
    assert everywhere.pulls() == []
    with GitTrix(None, store=everywhere.site.store, clock=everywhere.site.clock, sweep_interval=None, durability="fast") as again:
        assert again.info(session.id).state == "active"


def test_a_race_for_the_branchs_name_gives_one_request_each(shop: Shop) -> None:
    first, second = shop.session(), shop.site.another().start_session("fix the bug")
    second.write("b.txt", "b\n")

    with at_point("promote:intent-logged", lambda: shop.site.durable.commit({"x": "1"}, branch="gittrix/fix-the-bug")):
        result = first.promote(strategy="pr")

    assert result.branch == "gittrix/fix-the-bug-2"
    assert second.promote(strategy="pr").branch == "gittrix/fix-the-bug-3"
    assert [pull.head for pull in shop.pulls()] == ["gittrix/fix-the-bug-2", "gittrix/fix-the-bug-3"]


def test_a_session_that_is_kept_after_its_promotion_adds_to_its_pull_request(everywhere: Shop) -> None:
    session = everywhere.session(keep_after_promote=True)
    session.write("left.txt", "left\n")
    opened = session.promote(files=["app.py"], strategy="pr")
    (pull,) = everywhere.pulls()
    assert (opened.pr_url, opened.warnings) == (everywhere.forge.pr(pull.number).url, ())
    assert session.touched_files() == ["left.txt"]
    with pytest.raises(InvalidInput, match=r"has a pull request: http"):
        session.promote(strategy="pr")

    added = session.promote()

    assert (added.branch, added.pr_url, everywhere.forge.pr(pull.number).head_sha) == (opened.branch, None, added.sha)
    assert (session.info().state, session.touched_files()) == ("active", [])
    session.write("app.py", "print('v3')\n")
    session.promote(keep=False)
    assert everywhere.site.state(session.id).state == "promoted"
    assert len(everywhere.pulls()) == 1


def test_after_a_kill_at_the_forge_the_session_goes_on_with_one_pull_request(shop: Shop) -> None:
    session = shop.session()
    kill_at("pr:opened", lambda: session.promote(strategy="pr", keep=True))

    shop.site.another().init()

    (pull,) = shop.pulls()
    kept = shop.site.state(session.id).kept
    assert kept is not None
    assert kept.pr_url == shop.forge.pr(pull.number).url
    assert session.touched_files() == []
