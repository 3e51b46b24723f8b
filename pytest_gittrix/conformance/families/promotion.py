"""PRM: a promotion is one commit of exactly the selection, and nothing else changes (rules 1 and 5, docs/explanation/rules.md)."""

from __future__ import annotations

import os
from typing import Final

from pytest_gittrix.conformance.base.clause import needs, protects_work
from pytest_gittrix.conformance.base.clauses import Clauses
from pytest_gittrix.conformance.base.expect import (
    IN_THE_WAY,
    at_work,
    beyond_a_script,
    by_hand,
    called_from,
    lands,
    personal_things_unchanged,
    refused,
    run,
    set_traps,
)
from pytest_gittrix.testing.oracle import files_in, invariant_checkout
from pytest_gittrix.testing.repos.history import Contents, Executable, Submodule, Symlink
from pytest_gittrix.testing.systems.driver import Stage
from pytest_gittrix.testing.systems.protocol import Capability

EVERY_BYTE: Final = bytes(range(256)) * 4
GONE: Final = ("ADAPTER_UNAVAILABLE", "PROMOTE_FAILED", "SESSION_EXPIRED", "SESSION_NOT_FOUND")
"""Error codes of a promotion whose workspace was removed."""

WORK: Final = {"app.py": b"agent\n", "new.txt": b"agent\n"}


class PromotionClauses(Clauses):
    """What becomes of the agent's work, and of the person's."""

    def test_prm_01_a_promotion_is_one_commit_of_the_work_on_the_head(self, stage: Stage) -> None:
        """Otherwise a person cannot tell later what was promoted and on top of what, or revert it."""
        session = at_work(stage, "app.py", "new/deep/file.txt")

        lands(stage, session, {"app.py": b"agent\n", "new/deep/file.txt": b"agent\n"})

    def test_prm_02_a_promotion_takes_the_selected_files_only(self, stage: Stage) -> None:
        """Otherwise a person cannot take the good half of the work and leave the rest."""
        session = at_work(stage, "app.py", "README.md", "new.txt", "other.txt")

        lands(stage, session, WORK, files=["new.txt", "app.py"])

    @needs(Capability.DELETE)
    def test_prm_03_a_deletion_is_promoted(self, stage: Stage) -> None:
        """Otherwise a file that an agent removed, such as a leaked password, stays in the project."""
        session = stage.start()
        session.delete("lib/util.py")
        session.delete("README.md")

        lands(stage, session, {"lib/util.py": None}, files=["lib/util.py"])

    @protects_work
    def test_prm_04_bytes_arrive_as_they_were_written(self, stage: Stage) -> None:
        """Bytes are promoted as they were written.

        Otherwise images, archives and files for other machines are damaged on their way into history.
        """
        contents = {
            "all.bin": EVERY_BYTE,
            "crlf.txt": b"one\r\ntwo\r\n",
            "empty.txt": b"",
            "latin.txt": b"caf\xe9\n",
            "mixed.txt": b"one\r\ntwo\nthree\rfour",
            "nul.bin": b"\0",
            "utf-16.txt": "text\n".encode("utf-16"),
        }
        session = stage.start()
        for path, data in contents.items():
            session.write(path, data)

        lands(stage, session, contents)

    @protects_work
    def test_prm_05_no_attribute_changes_a_byte_of_what_is_no_text(self, stage: Stage) -> None:
        """Otherwise images and archives are damaged on their way into history, in the projects that say what they are."""
        with Stage.open(
            stage.system, files={".gitattributes": "*.txt text eol=lf ident\n*.bin -text\n", "a.bin": "a\n"}, bare=True
        ) as bare:
            session = bare.start()
            session.write("a.bin", b"one\r\n$Id: mine $\r\n")

            lands(bare, session, {"a.bin": b"one\r\n$Id: mine $\r\n"})

    def test_prm_06_an_executable_file_that_is_edited_stays_executable(self, stage: Stage) -> None:
        """Otherwise every script that an agent improves loses its executable bit."""
        stage.durable.commit({"run.sh": Executable("#!/bin/sh\n")})
        session = stage.start()
        session.write("run.sh", "#!/bin/sh\necho agent\n")

        lands(stage, session, {"run.sh": Executable(b"#!/bin/sh\necho agent\n")})

    @needs(Capability.SHELL)
    def test_prm_07_a_change_of_mode_alone_is_promoted(self, stage: Stage) -> None:
        """Otherwise a script that an agent made executable arrives without its executable bit."""
        session = stage.start()
        run(stage, session, "chmod +x app.py && echo new > new.sh && chmod +x new.sh")

        lands(stage, session, {"app.py": Executable(b"one\ntwo\nthree\n"), "new.sh": Executable(b"new\n")})

    @needs(Capability.SHELL)
    def test_prm_08_a_link_is_promoted_as_a_link(self, stage: Stage) -> None:
        """Otherwise the target of the link is committed in its place, even if it is one of the person's secrets."""
        session = stage.start()
        run(stage, session, "ln -s app.py inside; ln -s /etc/hostname outside; ln -s nowhere dangling; ln -sf lib README.md")

        links = {"inside": b"app.py", "outside": b"/etc/hostname", "dangling": b"nowhere", "README.md": b"lib"}
        lands(stage, session, {path: Symlink(target) for path, target in links.items()})

    @needs(Capability.DELETE)
    def test_prm_09_a_file_can_become_a_directory_and_the_reverse(self, stage: Stage) -> None:
        """Otherwise a module that an agent split into a package cannot be promoted."""
        session = stage.start()
        session.delete("app.py")
        session.write("app.py/part.py", "agent\n")
        session.delete("lib/util.py")
        session.delete("lib/deep/data.txt")
        session.write("lib", "agent\n")

        gone = dict.fromkeys(("app.py", "lib/util.py", "lib/deep/data.txt"))
        lands(stage, session, {**gone, "app.py/part.py": b"agent\n", "lib": b"agent\n"})

    @protects_work
    def test_prm_10_an_ignored_file_that_was_written_by_name_is_promoted(self, stage: Stage) -> None:
        """Otherwise an ignore rule makes the promotion fail, or leave out a file that was reviewed."""
        stage.durable.commit({".gitignore": "*.log\n"})
        session = at_work(stage, "expected.log", "app.py")

        lands(stage, session, {"expected.log": b"agent\n", "app.py": b"agent\n"})

    @needs(Capability.DELETE)
    def test_prm_11_a_file_that_was_made_and_deleted_again_does_no_harm(self, stage: Stage) -> None:
        """A file that was created and deleted again does no harm.

        Otherwise a scratch file that no longer exists blocks the promotion of a day's work.
        """
        session = at_work(stage, "app.py", "scratch/note.txt")
        session.delete("scratch/note.txt")

        lands(stage, session, {"app.py": b"agent\n"})

    @protects_work
    def test_prm_12_what_was_not_selected_stays_whatever_it_is(self, stage: Stage) -> None:
        """Paths that were not selected stay as they are.

        Otherwise submodules, links and ignored files that the project tracks disappear after an edit of something else.
        """
        kept: Contents = {
            "vendor/lib": Submodule("1" * 40),
            "link": Symlink("app.py"),
            "run.sh": Executable("#!/bin/sh\n"),
            "kept.log": "kept\n",
        }
        stage.durable.commit({**kept, ".gitignore": "*.log\n"})
        session = at_work(stage)

        lands(stage, session, {"app.py": b"agent\n"})

    def test_prm_13_the_message_is_kept(self, stage: Stage) -> None:
        """The commit has the message that was given. Otherwise the reason that a person gave is missing when somebody looks for it."""
        message = "Fix the café's menu\n\n# 1: not a comment\n\nSigned-off-by: Ada <ada@example.com>"
        session = at_work(stage, *WORK)

        made = session.promote(message=message)

        assert stage.judge.commit(made.sha).message.startswith(message)

    @protects_work
    def test_prm_14_a_clean_checkout_shows_the_promotion(self, stage: Stage) -> None:
        """Otherwise the person's next commit reverts the agent's work."""
        session = at_work(stage, *WORK)

        made = session.promote()

        expected = stage.judge.tree(made.sha)
        invariant_checkout(stage.judge, files=expected, staged=expected)
        assert stage.durable.git("status", "--porcelain") == ""

    def test_prm_15_it_lands_on_the_branch_whatever_is_checked_out(self, stage: Stage) -> None:
        """A promotion lands on the branch whatever is checked out.

        Otherwise the work lands on the branch that the person has checked out, while the report names another.
        """
        session = at_work(stage, *WORK)
        stage.durable.git("checkout", "-q", "-b", "topic")
        stage.durable.commit({"topic.txt": "human\n"}, branch="topic")
        topic, files = stage.judge.head("topic"), files_in(stage.durable.path)

        lands(stage, session, WORK)

        assert stage.judge.head("topic") == topic
        assert stage.durable.git("symbolic-ref", "HEAD") == "refs/heads/topic"
        invariant_checkout(stage.judge, files=files, staged=files)

    @protects_work
    def test_prm_16_a_detached_head_stays_where_it_is(self, stage: Stage) -> None:
        """Otherwise the work is committed to no branch at all, and lost with the next checkout."""
        session = at_work(stage, *WORK)
        stage.durable.git("checkout", "-q", "--detach")
        head, files = stage.durable.git("rev-parse", "HEAD"), files_in(stage.durable.path)

        lands(stage, session, WORK)

        assert stage.durable.git("rev-parse", "HEAD") == head
        invariant_checkout(stage.judge, files=files, staged=files)

    def test_prm_17_a_bare_repository_is_promoted_to(self, stage: Stage) -> None:
        """A promotion works in a bare repository. Otherwise agents cannot work on a server's repository, which has no checkout."""
        with stage.another(files=self.files(), bare=True) as bare:
            lands(bare, at_work(bare, *WORK), WORK)

    @protects_work
    def test_prm_18_the_persons_other_work_stays_as_it_is(self, stage: Stage) -> None:
        """The person's other work stays as it is. Otherwise staged or unsaved work of the person is committed with the agent's, or lost."""
        session = at_work(stage, *WORK)
        stage.durable.stage({"lib/util.py": "staged\n", "added.txt": "staged\n"})
        stage.durable.dirty({"lib/util.py": "further\n", "README.md": "unsaved\n", "untracked.txt": "mine\n"})
        files, staged = files_in(stage.durable.path), stage.judge.index()

        lands(stage, session, WORK)

        invariant_checkout(stage.judge, files=files.apply(WORK), staged=staged.apply(WORK))

    @protects_work
    def test_prm_19_unsaved_work_on_a_selected_file_refuses_it_all(self, stage: Stage) -> None:
        """Unsaved work on a selected file refuses the whole promotion.

        Otherwise a person's edits are overwritten, or only some files of the work are committed.
        """
        session = at_work(stage, *WORK)
        stage.durable.dirty({"app.py": "unsaved\n"})

        with stage.durable.unchanged():
            refused(IN_THE_WAY, session.promote)

    @protects_work
    def test_prm_20_staged_work_on_a_selected_file_refuses_it_all(self, stage: Stage) -> None:
        """Staged work on a selected file refuses the whole promotion.

        Otherwise what a person staged is replaced in the index, or becomes part of the agent's commit.
        """
        session = at_work(stage, *WORK)
        stage.durable.stage({"app.py": "staged\n"})
        stage.durable.dirty({"app.py": "one\ntwo\nthree\n"})

        with stage.durable.unchanged():
            refused(IN_THE_WAY, session.promote)

    @protects_work
    def test_prm_21_an_untracked_file_in_the_way_refuses_it_all(self, stage: Stage) -> None:
        """An untracked file at a selected path refuses the whole promotion.

        Otherwise a file of which there is no other copy is overwritten.
        """
        session = at_work(stage, *WORK)
        stage.durable.dirty({"new.txt": "mine\n"})

        with stage.durable.unchanged():
            refused(IN_THE_WAY, session.promote)

    def test_prm_22_a_merge_in_progress_refuses_it_all(self, stage: Stage) -> None:
        """A merge in progress refuses the whole promotion.

        Otherwise the agent's work becomes part of the merge, or the merge part of the agent's commit.
        """
        session = at_work(stage, *WORK)
        stage.durable.git("branch", "side")
        stage.durable.commit({"side.txt": "human\n"}, branch="side", worktree=False)
        stage.durable.git("merge", "-q", "--no-ff", "--no-commit", "side")

        with stage.durable.unchanged():
            refused(IN_THE_WAY, session.promote)

    @protects_work
    def test_prm_23_a_refused_promotion_can_be_made_once_the_way_is_clear(self, stage: Stage) -> None:
        """A refused promotion can be repeated once the obstacle is removed.

        Otherwise unsaved work in the person's checkout costs them the agent's work.
        """
        session = at_work(stage, *WORK)
        stage.durable.dirty({"app.py": "unsaved\n"})
        refused(IN_THE_WAY, session.promote)
        assert session.state == "active"

        stage.durable.git("checkout", "-q", "app.py")

        lands(stage, session, WORK)

    def test_prm_24_no_hook_and_no_signing_program_runs(self, stage: Stage) -> None:
        """Otherwise a promotion waits for a passphrase, sends mail, or commits what a formatter made of the reviewed work."""
        session = at_work(stage, *WORK)
        beyond_a_script(stage, "Hooks and a signing program are set in the configuration.")
        mark = set_traps(stage.path / "traps", "hooks", "signing")
        with (stage.durable.path / ".git" / "config").open("a") as config:
            config.write((stage.path / "traps" / "config").read_text())

        lands(stage, session, WORK)

        assert not mark.exists(), mark.read_text()

    @protects_work
    def test_prm_25_only_the_branch_moves(self, stage: Stage) -> None:
        """Otherwise a tag, another branch, the stash or the configuration changes at an unknown time."""
        stage.durable.dirty({"README.md": "stashed\n"})
        stage.durable.git("stash", "-q")
        stage.durable.git("branch", "other")
        stage.durable.git("tag", "-m", "the first", "v1")
        session = at_work(stage, *WORK)

        with personal_things_unchanged(stage, but=("refs: refs/heads/main", "work tree: ", "index: ")):
            session.promote()

    def test_prm_26_a_tag_of_the_same_name_is_not_the_branch(self, stage: Stage) -> None:
        """A tag of the same name is not mistaken for the branch.

        Otherwise the work lands on an old release, because a tag has the same name as the branch.
        """
        stage.durable.git("tag", "main")
        stage.durable.commit({"README.md": "later\n"})
        tagged = stage.durable.git("rev-parse", "refs/tags/main")
        session = at_work(stage, *WORK)
        assert session.read("README.md") == b"later\n"

        lands(stage, session, WORK)

        assert stage.durable.git("rev-parse", "refs/tags/main") == tagged

    @protects_work
    def test_prm_27_a_second_checkout_is_a_checkout_too(self, stage: Stage) -> None:
        """A second work tree is treated as a checkout.

        Otherwise the branch moves under a person who has it checked out in another work tree, and they seem to have undone the
        work.
        """
        session = at_work(stage, *WORK)
        linked = stage.path / "linked"
        stage.durable.git("checkout", "-q", "-b", "topic")
        stage.durable.git("worktree", "add", "-q", str(linked), "main")

        made = session.promote()

        assert files_in(linked) == stage.judge.tree(made.sha)
        assert stage.durable.git("-C", str(linked), "status", "--porcelain") == ""

    @needs(Capability.SHELL)
    @protects_work
    def test_prm_28_a_workspace_that_is_gone_deletes_nothing(self, stage: Stage) -> None:
        """A missing workspace deletes nothing. Otherwise a cleaned-up disk is taken for a request to delete the whole project."""
        session = at_work(stage, *WORK)
        run(stage, session, 'rm -rf "$PWD"')

        with stage.durable.unchanged():
            refused(GONE, session.promote)

    @needs(Capability.COMMITS)
    @protects_work
    def test_prm_29_what_the_agent_committed_is_promoted_as_one_commit_of_durable(self, stage: Stage) -> None:
        """The agent's commits are promoted as one commit of durable.

        Otherwise work that an agent commits is lost, or its drafts become part of the project's history.
        """
        session = at_work(stage, *WORK)
        drafts = [session.commit("half of it")]
        session.write("app.py", "finished\n")
        drafts.append(session.commit("all of it"))
        head = stage.judge.head()

        made = session.promote()

        assert stage.judge.commit(made.sha).parents == (head,)
        assert stage.judge.tree(made.sha)["app.py"] == b"finished\n"
        assert not {*drafts} & {*stage.judge.history(made.sha)}

    @needs(Capability.SHELL)
    @protects_work
    def test_prm_30_a_file_that_was_moved_with_git_is_promoted_as_moved(self, stage: Stage) -> None:
        """A file that was moved with ``git mv`` is promoted as moved. Otherwise the project has the file twice, or under neither name."""
        session = stage.start()
        run(stage, session, "git init -q; git add --all; mkdir -p src; git mv app.py src/main.py; git mv lib/util.py util.py")

        moved = {"app.py": None, "src/main.py": b"one\ntwo\nthree\n", "lib/util.py": None, "util.py": b"util\n"}
        assert session.touched_files() == sorted(moved)
        lands(stage, session, moved)

    @needs(Capability.SHELL)
    def test_prm_31_a_link_to_another_target_is_promoted(self, stage: Stage) -> None:
        """Otherwise a link goes on to point where the agent found that it must not."""
        stage.durable.commit({"current": Symlink("lib")})
        session = stage.start()
        run(stage, session, "ln -sfn app.py current")

        assert session.touched_files() == ["current"]
        lands(stage, session, {"current": Symlink(b"app.py")})

    @needs(Capability.DELETE)
    @protects_work
    def test_prm_32_a_deletion_respects_the_persons_unsaved_work(self, stage: Stage) -> None:
        """A deletion respects unsaved work: of the same file it is refused, of other files it changes nothing.

        Otherwise unsaved edits of a file that an agent deletes are gone, with no other copy.
        """
        session = stage.start()
        session.delete("lib/util.py")
        stage.durable.dirty({"lib/util.py": "unsaved\n"})
        with stage.durable.unchanged():
            refused(IN_THE_WAY, session.promote)

        stage.durable.dirty({"lib/util.py": "util\n", "app.py": "unsaved\n", "lib/notes.txt": "mine\n"})
        files, staged = files_in(stage.durable.path), stage.judge.index()
        lands(stage, session, {"lib/util.py": None})

        gone: Contents = {"lib/util.py": None}
        invariant_checkout(stage.judge, files=files.apply(gone), staged=staged.apply(gone))

    @protects_work
    def test_prm_33_a_promotion_that_fails_halfway_leaves_nothing(self, stage: Stage) -> None:
        """A promotion that meets a locked index leaves nothing staged, locked or half written, and can be repeated.

        Otherwise another git program that runs for a second costs the agent's work, or leaves a repository that a person must repair.
        """
        session = at_work(stage, *WORK)
        lock = stage.durable.path / ".git" / "index.lock"
        by_hand(stage, ": > .git/index.lock")

        with stage.durable.unchanged():
            refused((*IN_THE_WAY, "DURABLE_LOCKED"), session.promote)

        assert lock.read_bytes() == b"", "the lock of another program stays"
        by_hand(stage, "rm .git/index.lock")
        assert list((stage.durable.path / ".git").rglob("*.lock")) == []
        lands(stage, session, WORK)

    @protects_work
    def test_prm_34_variables_of_git_do_not_lead_elsewhere(self, stage: Stage) -> None:
        """Environment variables that point git elsewhere have no effect.

        Otherwise a promotion from a hook, or from a shell with ``GIT_DIR`` set, commits to another repository or through another index.
        """
        elsewhere = stage.path / "elsewhere"
        stage.durable.git("init", "-q", str(elsewhere))
        index = stage.path / "an-index"
        session = at_work(stage, *WORK)

        lead = {"GIT_DIR": str(elsewhere / ".git"), "GIT_WORK_TREE": str(elsewhere), "GIT_INDEX_FILE": str(index)}
        with called_from(stage, stage.durable.path, **lead):
            lands(stage, session, WORK)

        assert not index.exists()
        assert [path.name for path in elsewhere.iterdir()] == [".git"]
        assert stage.durable.git("-C", str(elsewhere), "for-each-ref") == ""

    def test_prm_35_it_does_not_matter_where_the_system_is_called_from(self, stage: Stage) -> None:
        """The working directory does not matter.

        Otherwise a promotion from a subdirectory takes only what is below it, and one from another directory fails or lands elsewhere.
        """
        session = stage.start()
        with called_from(stage, stage.durable.path / "lib"):
            session.write("app.py", "agent\n")
            assert session.read("lib/util.py") == b"util\n"

        session.write("lib/util.py", "agent\n")
        with called_from(stage, stage.path):
            lands(stage, session, {"app.py": b"agent\n"}, files=["app.py"])

    def test_prm_36_a_promotion_needs_no_identity_and_no_home(self, stage: Stage) -> None:
        """A promotion works without a configured identity, and with an empty home directory.

        Otherwise agents can work on a server, and nothing of it can be promoted there.
        """
        session = at_work(stage, *WORK)
        home = stage.path / "empty-home"
        by_hand(stage, f"mkdir '{home}'")
        variables = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_CONFIG_GLOBAL": os.devnull}
        with called_from(stage, stage.durable.path, **variables):
            lands(stage, session, WORK)

    def test_prm_37_attributes_of_the_project_do_what_git_add_does(self, stage: Stage) -> None:
        """Otherwise each file that an agent writes with other line ends shows as changed from its first line to its last."""
        with stage.another(files={".gitattributes": "*.txt text eol=lf\n", "a.txt": "a\n"}, bare=True) as bare:
            session = bare.start()
            session.write("a.txt", b"one\r\ntwo\r\n")

            lands(bare, session, {"a.txt": b"one\ntwo\n"})
