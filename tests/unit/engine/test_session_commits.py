"""The agent's commits: real, its own, and no part of what is promoted."""

from __future__ import annotations

import errno
from datetime import timedelta
from pathlib import Path

import pytest
from support.engine import KINDS, Site, edited, open_site, shell
from support.refusals import refuse_to_open

from pytest_gittrix.clock import CLOCK_START
from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput, SessionExpired, WriteRejected
from pytest_gittrix.workspaces.seeds import on_disk

EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@pytest.fixture(params=KINDS)
def session(request: pytest.FixtureRequest, site: Site) -> UserSession:
    return site.start(workspace=request.param)


class TestACommit:
    def test_is_logged_newest_first(self, site: Site, session: UserSession) -> None:
        session.write("app.py", "v2\n")
        first = session.commit("first")
        site.clock.advance(minutes=1)
        second = session.write_and_commit({"b.txt": "b\n", "c.txt": b"c\n"}, "second\n\nwith a body\n")
        assert [(entry.sha, entry.message) for entry in session.log()] == [(second, "second\n\nwith a body"), (first, "first")]
        newest = session.log()[0]
        assert (newest.author_name, newest.author_email) == ("agent", "agent@localhost")
        assert newest.timestamp == CLOCK_START + timedelta(minutes=1)

    def test_does_not_change_what_is_touched_or_promoted(self, site: Site, session: UserSession) -> None:
        head = site.durable.head()
        session.write_and_commit({"app.py": "v2\n"}, "one")
        session.write("b.txt", "b\n")
        assert session.touched_files() == ["app.py", "b.txt"]
        assert site.durable.head() == head
        result = session.promote()
        assert site.durable.parents(result.sha) == [head]
        assert [*site.durable.changed(result.sha)] == ["app.py", "b.txt"]

    def test_is_not_in_durable(self, site: Site, session: UserSession) -> None:
        sha = session.write_and_commit({"app.py": "v2\n"}, "one")
        assert sha not in site.durable.git("cat-file", "--batch-all-objects", "--batch-check")

    @pytest.mark.parametrize("message", ["", "  ", "\n\t"])
    def test_without_a_message_is_refused(self, session: UserSession, message: str) -> None:
        with pytest.raises(InvalidInput, match="empty"):
            session.commit(message)
        assert session.log() == []

    def test_of_an_ended_session_is_refused(self, session: UserSession) -> None:
        session.discard()
        with pytest.raises(SessionExpired):
            session.commit("late")
        with pytest.raises(SessionExpired):
            session.write_and_commit({"a": "a"}, "late")

    def test_is_found_by_another_handle(self, site: Site, session: UserSession) -> None:
        sha = session.write_and_commit({"app.py": "v2\n"}, "one")
        assert [entry.sha for entry in site.another().get_session(session.id).log()] == [sha]
        assert [entry.sha for entry in session.for_agent().log()] == [sha]

    def test_is_announced_with_its_sha(self, site: Site, session: UserSession) -> None:
        seen: list[object] = []
        site.engine.on("session.commit", lambda event: seen.append(event.data["sha"]))
        sha = session.write_and_commit({"app.py": "v2\n"}, "one")
        assert seen == [sha]


class TestTheLog:
    def test_is_empty_at_first(self, session: UserSession) -> None:
        assert session.log() == []

    def test_holds_nothing_of_durable(self, site: Site, session: UserSession) -> None:
        site.durable.commit({"app.py": "rival\n"})
        session.write_and_commit({"b.txt": "b\n"}, "mine")
        assert [entry.message for entry in session.log()] == ["mine"]


class TestInAClone:
    """The engine's commits and the agent's own git agree."""

    @pytest.mark.parametrize("object_format", ["sha1", "sha256"])
    def test_the_agent_s_git_sees_the_commit_and_a_clean_tree(self, tmp_path: Path, object_format: str) -> None:
        with open_site(tmp_path, object_format=object_format) as site:
            session = site.start()
            session.write("src/util.py", edited(3))
            session.delete("README.md")
            sha = session.commit("mine")
            assert shell(session, "git rev-parse HEAD").strip() == sha
            assert shell(session, "git log --format=%s -1").strip() == "mine"
            assert shell(session, "git status --porcelain") == ""
            assert shell(session, "git fsck --strict --no-dangling") == ""
            assert sorted(shell(session, "git show --format= --name-only").split()) == ["README.md", "src/util.py"]

    def test_commits_follow_those_of_the_agent_s_git(self, site: Site) -> None:
        session = site.start()
        shell(session, "echo v2 > app.py; git commit -qam 'by git'")
        by_git = shell(session, "git rev-parse HEAD").strip()
        session.write("b.txt", "b\n")
        sha = session.commit("by session")
        assert shell(session, "git rev-parse HEAD^").strip() == by_git
        assert [(entry.sha, entry.message) for entry in session.log()] == [(sha, "by session"), (by_git, "by git")]
        assert session.touched_files() == ["app.py", "b.txt"]

    def test_commits_go_to_the_branch_the_agent_is_on(self, site: Site) -> None:
        session = site.start()
        shell(session, "git checkout -qb topic/x")
        sha = session.write_and_commit({"app.py": "v2\n"}, "on topic")
        assert shell(session, "git rev-parse topic/x").strip() == sha
        assert shell(session, "git rev-parse main").strip() == site.durable.head()

    @pytest.mark.parametrize("ruin", ["rm -rf .git", "echo 'ref: ../../../etc/x' > .git/HEAD", "rm .git/index", "echo junk > .git/index"])
    def test_commits_are_kept_though_the_agent_ruined_its_git(self, site: Site, ruin: str) -> None:
        session = site.start()
        before = site.durable.fingerprint()
        shell(session, ruin)
        sha = session.write_and_commit({"app.py": "v2\n"}, "kept")
        assert site.state(session.id).commits == [sha]
        assert site.durable.fingerprint() == before

    @pytest.mark.parametrize(
        "forged",
        [
            "nothing at all",
            "tree 1\nparent 2\n\nx",
            f"tree {EMPTY}\nauthor a <a> 99999999999999999 +0000\ncommitter a <a> 99999999999999999 +0000\n\nfar",
            f"tree {EMPTY}\nparent nonsense\nauthor a <a> 1 +0000\ncommitter a <a> 1 +0000\n\nfar",
        ],
    )
    def test_a_forged_commit_stops_nothing(self, site: Site, forged: str) -> None:
        session = site.start()
        (session.workspace_path / "forged").write_text(forged)  # type: ignore[operator]
        shell(session, "sha=$(git hash-object -t commit -w --literally forged); mkdir -p .git/refs/heads; echo $sha > .git/refs/heads/main")
        assert all(entry.sha for entry in session.log())
        session.write("app.py", "v2\n")
        sha = session.commit("after")
        assert session.log()[0].sha == sha
        assert site.durable.contains(session.promote(files=["app.py"]).sha)

    def test_its_log_tells_nothing_of_earlier_baselines(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(on_disk, "_SMALL_INDEX", 0)
        site.start()
        before = site.durable.head()
        site.durable.commit({"app.py": "print('moved')\n"}, "moved")
        session = site.start()
        assert (site.store / ".seeds" / f"{session.info().baseline_sha}-none" / "ancestry").exists()
        session.write_and_commit({"app.py": "v2\n"}, "one")

        (session.workspace_path / ".git" / "refs" / "heads").mkdir(parents=True, exist_ok=True)
        (session.workspace_path / ".git" / "refs" / "heads" / "main").write_text(f"{before}\n")

        assert session.log() == []

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
    def test_a_head_that_the_system_refuses_to_read_is_no_broken_one(
        self, site: Site, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = site.start()
        first = session.write_and_commit({"app.py": "v2\n"}, "first")
        with monkeypatch.context() as refusing:
            refuse_to_open(refusing, "HEAD", number)
            for operation in (session.log, lambda: session.commit("second")):
                with pytest.raises(WriteRejected, match="HEAD"):
                    operation()
        assert [entry.sha for entry in session.log()] == [first]
        assert shell(session, "git rev-parse --abbrev-ref HEAD").strip() == "main"

    def test_a_commit_that_its_log_would_not_show_is_refused(self, site: Site) -> None:
        session = site.start()
        shell(session, "rm .git/index; mkdir .git/index; touch .git/index/x")
        session.write("app.py", "v2\n")
        with pytest.raises(WriteRejected, match="index"):
            session.commit("nowhere to be seen")
        assert session.log() == site.state(session.id).commits == []

    def test_no_hook_of_the_agent_s_runs(self, site: Site) -> None:
        session = site.start()
        trap = site.root / "trapped"
        hooks = "pre-commit post-commit reference-transaction"
        shell(
            session,
            f"mkdir -p .git/hooks; for h in {hooks}; do printf '#!/bin/sh\\ntouch {trap}\\n' > .git/hooks/$h; done; chmod +x .git/hooks/*",
        )
        shell(
            session,
            f"git config core.fsmonitor 'touch {trap}'; git config filter.x.clean 'touch {trap}'; echo '* filter=x' > .gitattributes",
        )
        session.write_and_commit({"app.py": "v2\n"}, "quiet")
        session.touched_files()
        session.diff()
        session.promote(allow_filtered=True)
        assert not trap.exists()
