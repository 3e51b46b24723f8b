"""What a remote refuses, and what becomes of a push whose end nobody saw: typed errors, nothing half done, nothing landed twice."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.engine import at_point, kill_at
from support.remote import AUTHOR, TOKEN, Far, open_far

from pytest_gittrix import points
from pytest_gittrix.backends.protocol import LandingResult
from pytest_gittrix.backends.remote import RemoteDurable
from pytest_gittrix.engine.engine import GitTrix
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import AdapterUnavailable, AuthFailed, BaselineConflict, DurableLocked, GittrixError, InvalidInput, PromoteFailed
from pytest_gittrix.testing.repos.forge_server import ForgeServer
from pytest_gittrix.testing.repos.remote_repos import Hook

PUSH = "POST /acme/app.git/git-receive-pack"
ASK_TO_PUSH = "service=git-receive-pack"


def edited(far: Far) -> UserSession:
    """A session with something to promote."""
    session = far.site.start("fix the bug")
    session.write("app.py", "print('v2')\n")
    return session


@contextmanager
def hasty_push(far: Far) -> Iterator[None]:
    """A block in which the engine waits a second for a push, and as long as ever for everything else."""
    transport = far.site.options["durable"]._transport
    patient = transport.timeout

    def listen(name: str) -> None:
        if name in ("ref:locked", "promote:failed"):
            object.__setattr__(transport, "timeout", 1.0 if name == "ref:locked" else patient)

    with points.listening(listen):
        yield


def commits(far: Far) -> int:
    """How many commits the remote's branch has."""
    return int(far.git.git("rev-list", "--count", "main"))


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is certain to happen."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


# Refusals --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["pre-receive", "update"])
def test_a_hook_that_refuses_is_quoted_and_leaves_nothing(far: Far, hook: Hook) -> None:
    session = edited(far)
    far.remote.reject("tickets only, please", hook=hook)

    # Before an update hook runs, git has already let the objects in; they are the remote's to tidy.
    with far.remote.repo.unchanged(objects=hook == "pre-receive"), pytest.raises(PromoteFailed, match="tickets only, please") as caught:
        session.promote()

    assert caught.value.stage == "apply"
    assert far.remote.leftovers() == []
    assert far.left_in_mirror() == []
    assert session.info().state == "active"
    far.remote.accept()
    session.promote()
    assert commits(far) == 2


def test_a_read_only_remote_is_refused(far: Far) -> None:
    session = edited(far)
    far.remote.read_only()

    with far.remote.repo.unchanged(objects=True), pytest.raises(GittrixError) as caught:
        session.promote()

    assert caught.value.code == ("AUTH_FAILED" if far.forge else "PROMOTE_FAILED")
    assert "403" in str(caught.value) if far.forge else "this repository is read-only" in str(caught.value)
    assert session.info().state == "active"
    assert far.site.types(session.id)[-1] == "promote.aborted"


def test_a_branch_that_the_remote_hides_is_a_refusal_and_no_race_without_end(near: Far) -> None:
    session = edited(near)
    near.git.git("config", "receive.hideRefs", "refs/heads")

    with pytest.raises(PromoteFailed, match="refused the commit"):
        session.promote()

    assert near.site.types(session.id).count("promote.intent") == 1


def test_a_lock_that_stays_at_the_remote_is_named_and_not_broken(far: Far) -> None:
    session = edited(far)
    lock = far.remote.path / "refs" / "heads" / "main.lock"
    lock.touch()

    with pytest.raises(DurableLocked, match=r"main\.lock") as caught:
        session.promote()

    assert caught.value.code == "DURABLE_LOCKED"
    assert lock.exists()
    lock.unlink()
    session.promote()
    assert commits(far) == 2


def test_a_lock_of_somebody_who_then_moves_the_branch_is_a_race_lost(near: Far) -> None:
    engine = near.site.another(durable=near.durable(grace=20.0))
    session = engine.start_session("fix the bug")
    session.write("app.py", "print('v2')\n")
    lock = near.remote.path / "refs" / "heads" / "main.lock"
    lock.touch()
    near.git.commit({"other.txt": "theirs\n"}, branch="side", onto=near.git.head())
    theirs = near.git.head("side")

    def move() -> None:
        lock.write_text(f"{theirs}\n")
        lock.rename(near.remote.path / "refs" / "heads" / "main")

    later = threading.Timer(0.3, move)
    later.start()
    result = session.promote()
    later.join()

    assert near.git.parents(result.sha) == [theirs]


def test_wrong_credentials_are_refused_and_not_shown(web: Far) -> None:
    engine = web.site.another(durable=web.durable(credentials=("git", "wrong-secret"), mirror=web.site.root / "other"))

    with pytest.raises(AuthFailed) as caught:
        engine.start_session("fix the bug")

    assert caught.value.code == "AUTH_FAILED"
    assert "wrong-secret" not in str(caught.value)
    assert engine.list_sessions() == []


def test_credentials_that_stop_working_while_a_session_lives_leave_it_alive(web: Far) -> None:
    assert web.forge is not None
    session = edited(web)
    web.forge.tokens.clear()
    web.forge.tokens.add("another")

    with pytest.raises(AuthFailed):
        session.promote()

    web.forge.tokens.add(TOKEN)
    session.promote()
    assert commits(web) == 2


def test_a_push_alone_that_is_refused_says_so(web: Far) -> None:
    assert web.forge is not None
    session = edited(web)
    web.forge.fail("status", status=403, on=ASK_TO_PUSH)

    with pytest.raises(AuthFailed, match="does not let you write"):
        session.promote()

    assert web.site.types(session.id)[-1] == "promote.aborted"


def test_no_file_event_or_message_holds_the_credentials(web: Far) -> None:
    assert web.forge is not None
    url = web.url.replace("//", f"//git:{TOKEN}@")
    with_secret = RemoteDurable(url, mirror=web.mirror, author=AUTHOR)
    engine = web.site.another(durable=with_secret)
    session = engine.start_session("fix the bug")
    session.write("app.py", "print('v2')\n")
    web.remote.reject(f"your token {TOKEN} may not")

    with pytest.raises(PromoteFailed) as caught:
        session.promote()

    files = [path for path in web.site.root.rglob("*") if path.is_file() and web.remote.path not in path.parents]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN not in f"{caught.value!r} {caught.value} {with_secret!r} {with_secret.uri} {with_secret._transport!r}"


def test_a_redirection_is_not_followed_with_credentials(web: Far) -> None:
    assert web.forge is not None
    with ForgeServer(web.remote) as elsewhere:
        web.forge.fail("redirect", to=elsewhere.web, times=None)

        with pytest.raises(AdapterUnavailable, match="302"):
            web.durable().head("main")

        assert elsewhere.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c 'touch hacked'",
        "--upload-pack=touch hacked",
        "-oProxyCommand=hacked",
        "ftp://host/x.git",
        "fd::17",
        "",
        "file:///x\nhttp://y",
    ],
)
def test_an_address_that_git_would_run_or_misread_is_refused(near: Far, url: str) -> None:
    with pytest.raises(InvalidInput, match="is not the address"):
        RemoteDurable(url, mirror=near.mirror)


def test_credentials_are_refused_where_they_cannot_be_used(near: Far) -> None:
    with pytest.raises(InvalidInput, match="cannot be used with file"):
        near.durable(credentials=("git", "x"))
    with pytest.raises(InvalidInput, match="not allowed in a header"):
        RemoteDurable("https://forge.example.com/x.git", mirror=near.mirror, credentials=("git", "x\ny"))


def test_a_remote_that_is_not_there_is_unavailable_and_nothing_is_left(tmp_path: Path) -> None:
    with open_far(tmp_path, "http") as far:
        assert far.forge is not None
        far.forge.close()

        with pytest.raises(AdapterUnavailable, match="cannot be read"):
            far.site.start()

        assert far.site.engine.list_sessions() == []
        assert not far.site.store.exists()


def test_a_remote_that_does_not_answer_is_given_up(web: Far) -> None:
    assert web.forge is not None
    web.forge.fail("slow", seconds=60, times=None)

    with pytest.raises(AdapterUnavailable, match=r"did not answer within 0\.5 s"):
        web.durable(timeout=0.5).head("main")


# Ends that nobody saw ----------------------------------------------------------------------------------------------------------------


def test_a_push_that_landed_before_the_connection_was_cut_is_a_promotion(web: Far) -> None:
    assert web.forge is not None
    session = edited(web)
    web.forge.fail("cut_after", on=PUSH, times=None)

    result = session.promote()

    assert web.git.head() == result.sha
    assert commits(web) == 2
    assert web.site.types(session.id).count("promote.done") == 1


def test_a_landing_whose_answer_was_lost_has_landed(web: Far) -> None:
    assert web.forge is not None
    durable = web.durable(grace=0.0)
    head = durable.head("main")
    built = durable.build(head, {"README.md": None}, {}, message="mine", seconds=1893456000)
    web.forge.fail("cut_after", on=PUSH, times=None)

    landed = durable.land("main", built, {}, expected=head, note="", keep="", seconds=1893456000, settle=lambda _text: False)

    assert landed == LandingResult()
    assert web.git.head() == built.id


def test_a_push_that_was_cut_before_it_landed_is_none_and_can_be_made_again(web: Far) -> None:
    assert web.forge is not None
    session = edited(web)
    web.forge.fail("status", status=502, on=PUSH, times=None)

    with pytest.raises(AdapterUnavailable, match="did not report the result of the push"):
        session.promote()

    assert commits(web) == 1
    web.forge.recover()
    session.promote()
    assert commits(web) == 2


def test_where_the_remote_is_gone_after_the_push_the_promotion_stays_open_until_it_is_back(web: Far) -> None:
    forge = web.forge
    assert forge is not None
    session = edited(web)

    def cut_off() -> None:
        forge.fail("cut_after", on=PUSH, times=None)
        forge.fail("status", status=500, on="git-upload-pack", times=None)

    with at_point("ref:locked", cut_off), pytest.raises(AdapterUnavailable):
        session.promote()

    assert web.site.types(session.id)[-1] == "promote.intent"
    forge.recover()
    assert web.site.another(durable=web.durable()).recover().rolled_forward == [session.id]
    assert commits(web) == 2


def test_a_push_that_lands_after_it_was_given_up_is_not_made_twice(web: Far) -> None:
    session = edited(web)
    with web.remote.held() as held:
        with hasty_push(web), pytest.raises(AdapterUnavailable, match="did not report"):
            session.promote()
        held.wait()
        held.release()
        until(lambda: commits(web) == 2)

    with pytest.raises(BaselineConflict):
        session.promote()

    assert commits(web) == 2


def test_a_push_that_takes_too_long_is_ended_with_all_that_it_started(near: Far) -> None:
    session = edited(near)
    with near.remote.held() as held:
        with hasty_push(near), pytest.raises(AdapterUnavailable, match="did not answer within 1 s"):
            session.promote()
        until(lambda: not [pid for pid in held._waiting() if Path(f"/proc/{pid}").exists()])

    assert commits(near) == 1
    session.promote()
    assert commits(near) == 2


# Kills -------------------------------------------------------------------------------------------------------------------------------

POINTS = ("promote:intent-logged", "ref:locked", "land:moved", "land:forwarded", "promote:swapped")


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_the_session_is_promoted_once_or_active(far: Far, point: str) -> None:
    session = edited(far)

    kill_at(point, session.promote)

    report = far.site.another(durable=far.durable()).recover()
    landed = point not in ("promote:intent-logged", "ref:locked")
    assert (report.rolled_forward, report.rolled_back) == (([session.id], []) if landed else ([], [session.id]))
    assert commits(far) == (2 if landed else 1)
    assert far.left_in_mirror() == []
    if not landed:
        far.site.another(durable=far.durable()).get_session(session.id).promote()
        assert commits(far) == 2


def test_recovery_waits_for_a_push_that_outlived_its_engine(near: Far) -> None:
    session = edited(near)
    with near.remote.held() as held:
        engine = forked(session.promote)
        held.wait()
        os.kill(engine, signal.SIGKILL)
        os.waitpid(engine, 0)
        later = threading.Timer(0.5, held.release)
        later.start()

        report = near.site.another(durable=near.durable()).recover()
        later.join()

    assert report.rolled_forward == [session.id]
    assert commits(near) == 2


def forked(action: Callable[[], object]) -> int:
    """Run an action in a forked process; gives its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside other threads; this child uses none
        pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return pid


def test_an_engine_that_cannot_find_the_remote_leaves_an_open_promotion_alone(near: Far) -> None:
    session = edited(near)
    kill_at("land:moved", session.promote)
    mirror = Path(near.durable().path)
    away = mirror.rename(mirror.with_name("away"))
    with GitTrix(None, store=near.site.store, clock=near.site.clock, sweep_interval=None) as stranger:
        (problem,) = stranger.recover().problems
        assert problem.id == session.id

    assert near.site.types(session.id)[-1] == "promote.intent"
    away.rename(mirror)
    GitTrix(None, store=near.site.store, clock=near.site.clock, sweep_interval=None).init().close()
    assert near.site.types(session.id)[-1] != "promote.intent"
    assert near.git.head() == near.site.state(session.id).result.sha  # type: ignore[union-attr]
