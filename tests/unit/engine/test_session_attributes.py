"""What lands of a file with attributes, and what is refused because a filter would store it otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.engine import Site, open_site, shell

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import FilteredContent, PromoteFailed, WriteRejected

CRLF = {".gitattributes": "*.bat text eol=crlf\n", "r.bat": "a\nb\n"}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0a" * 32 + "\nsize 12\n"
UTF16 = {".gitattributes": "*.rc text working-tree-encoding=UTF-16 eol=crlf\n", "r.rc": "é\n"}


def site_with(path: Path, files: Mapping[str, str | bytes], **options: object) -> AbstractContextManager[Site]:
    return open_site(path, files, **options)  # type: ignore[arg-type]


def root(session: UserSession) -> Path:
    return Path(str(session.workspace_path))


@pytest.mark.parametrize("written", ["a\r\nB\r\n", "a\nB\n", "a\r\nB\n"])
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_text_lands_with_lf_and_is_checked_out_as_git_would(tmp_path: Path, written: str, object_format: str) -> None:
    with site_with(tmp_path, CRLF, object_format=object_format) as site:
        assert (site.durable.path / "r.bat").read_bytes() == b"a\r\nb\r\n"
        session = site.start()
        assert (root(session) / "r.bat").read_bytes() == b"a\nb\n"
        session.write("r.bat", written)
        review = session.review()
        assert review.hunks["r.bat"][0].text.endswith(" a\n-b\n+B\n")
        session.promote(review)
        assert site.durable.read("r.bat") == b"a\nB\n"
        assert (site.durable.path / "r.bat").read_bytes() == b"a\r\nB\r\n"
        assert site.durable.status() == []


def test_other_line_ends_alone_are_no_change(tmp_path: Path) -> None:
    with site_with(tmp_path, CRLF) as site:
        session = site.start()
        session.write("r.bat", "a\r\nb\r\n")
        assert session.touched_files() == []
        assert session.diff() == ""
        with pytest.raises(PromoteFailed, match="nothing to promote"):
            session.promote()


def test_a_file_that_is_not_edited_is_not_converted(tmp_path: Path) -> None:
    with site_with(tmp_path, {".gitattributes": "* text\n", "old": b"a\r\n", "other": "x\n"}) as site:
        session = site.start()
        shell(session, "chmod +x old; touch other; echo y > other")
        session.promote()
        assert site.durable.read("old") == b"a\r\n"
        assert site.durable.changed(site.durable.head()).keys() == {"old", "other"}


def test_an_encoded_file_lands_in_the_encoding_of_the_repository(tmp_path: Path) -> None:
    with site_with(tmp_path, UTF16) as site:
        assert (site.durable.path / "r.rc").read_bytes() == "\ufeffé\r\n".encode("utf-16-le")
        session = site.start()
        assert session.read("r.rc") == "é\n".encode()
        session.write("r.rc", "é\nè\n")
        session.promote(keep=True)
        assert (site.durable.read("r.rc"), site.durable.status()) == ("é\nè\n".encode(), [])
        assert (site.durable.path / "r.rc").read_bytes() == "\ufeffé\r\nè\r\n".encode("utf-16-le")
        session.write("r.rc", "\ufeffü\r\n".encode("utf-16-le"))
        session.promote()
        assert (site.durable.read("r.rc"), site.durable.status()) == ("ü\n".encode(), [])


def test_what_is_not_in_its_encoding_is_refused_by_name_and_kept(tmp_path: Path) -> None:
    with site_with(tmp_path, UTF16) as site:
        session = site.start()
        session.write("r.rc", b"\xff\n")
        session.write("new", "x\n")
        assert "needs a byte order mark" in session.review().refused["r.rc"]
        for files in (None, ["r.rc"]):
            with pytest.raises(WriteRejected, match=r"'r\.rc' cannot be promoted"):
                session.promote(files)
        session.promote(["new"])
        (kept,) = [Path(path) for path in site.engine.archives(session.id) if path.endswith("archive.workspace")]
        assert (kept / "r.rc").read_bytes() == b"\xff\n"


def test_an_identifier_is_stored_without_what_it_was_expanded_to(tmp_path: Path) -> None:
    with site_with(tmp_path, {".gitattributes": "*.c ident\n", "a.c": "/* $Id$ */\n"}) as site:
        session = site.start()
        session.write("a.c", "/* $Id: mine $ */\nint x;\n")
        session.promote()
        assert site.durable.read("a.c") == b"/* $Id$ */\nint x;\n"
        id_ = site.durable.git("rev-parse", "HEAD:a.c")
        assert (site.durable.path / "a.c").read_text() == f"/* $Id: {id_} $ */\nint x;\n"
        assert site.durable.status() == []


def test_attributes_of_the_agent_count_only_with_what_is_promoted_of_them(tmp_path: Path) -> None:
    with site_with(tmp_path, {"a": "1\n"}) as site:
        session = site.start()
        shell(
            session,
            "echo '* text' > .gitattributes; mkdir -p .git/info; echo '* -text' > .git/info/attributes; git config core.autocrlf true",
        )
        session.write("a", "1\r\n2\r\n")
        assert session.review().snapshot.blobs[session.review().changes["a"].id] == b"1\n2\n"  # type: ignore[union-attr]
        assert session.review(["a"]).diff.count("\r\n") == 2
        session.promote(["a"], keep=True)
        assert site.durable.read("a") == b"1\r\n2\r\n"
        session.write("b", "1\r\n")
        session.promote()
        assert site.durable.read("b") == b"1\n"


@pytest.mark.parametrize(("setting", "landed"), [("true", b"1\n2\n"), ("input", b"1\n2\n"), ("false", b"1\r\n2\r\n")])
def test_the_configuration_of_durable_counts(tmp_path: Path, setting: str, landed: bytes) -> None:
    with site_with(tmp_path, {"a": "1\n"}) as site:
        site.durable.git("config", "core.autocrlf", setting)
        session = site.start()
        session.write("a", "1\r\n2\r\n")
        session.promote()
        assert (site.durable.read("a"), site.durable.status()) == (landed, [])


def test_what_was_reviewed_lands_whatever_is_taken_of_it(tmp_path: Path) -> None:
    with site_with(tmp_path, {"a": "1\n"}) as site:
        session = site.start()
        session.write(".gitattributes", "* text\n")
        session.write("a", "2\r\n")
        session.promote(session.review(), files=["a"])
        assert site.durable.read("a") == b"2\n"


def test_a_session_that_goes_on_shows_nothing_of_what_it_promoted(tmp_path: Path) -> None:
    with site_with(tmp_path, CRLF) as site:
        session = site.start()
        session.write("r.bat", "a\r\nB\r\n")
        site.durable.commit({"other": "theirs\n"})
        session.promote(keep=True)
        assert session.touched_files() == []
        assert session.read("other") == b"theirs\n"
        site.durable.commit({"r.bat": "a\nB\nC\n"})
        session.write("x", "x\n")
        session.promote(keep=True)
        assert site.durable.read("r.bat") == b"a\nB\nC\n"


def test_a_merge_of_text_with_other_line_ends_is_brought_into_the_workspace(tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(20))
    with site_with(tmp_path, {".gitattributes": "* text=auto\n", "a": lines}) as site:
        session = site.start()
        session.write("a", lines.replace("19\n", "mine\n").replace("\n", "\r\n"))
        site.durable.commit({"a": lines.replace("0\n", "theirs\n", 1)})
        session.promote(on_overlap="merge", keep=True)
        merged = lines.replace("0\n", "theirs\n", 1).replace("19\n", "mine\n").encode()
        assert site.durable.read("a") == session.read("a") == merged
        assert session.touched_files() == []


def test_the_agent_s_own_git_is_clean_after_its_commit(tmp_path: Path) -> None:
    with site_with(tmp_path, CRLF) as site:
        session = site.start()
        session.write_and_commit({"r.bat": "a\r\nB\r\n"}, "mine")
        assert shell(session, "git status --porcelain; git show HEAD:r.bat") == "a\nB\n"


class TestAFilter:
    """Bytes where a filter's output belongs."""

    @pytest.fixture
    def files(self) -> Mapping[str, str]:
        return {".gitattributes": "*.bin filter=lfs -text\n*.nb filter=strip\n", "old.bin": POINTER, "old.nb": "{}\n"}

    def test_is_refused_by_path_and_let_through_if_that_is_asked_for(self, tmp_path: Path, files: Mapping[str, str]) -> None:
        with site_with(tmp_path, files) as site:
            session = site.start()
            session.write("m.bin", b"\0model")
            session.write("old.nb", "{1}\n")
            before = site.durable.fingerprint()
            with pytest.raises(FilteredContent, match=r"m\.bin: filter=lfs\nold\.nb: filter=strip") as caught:
                session.promote()
            assert caught.value.filters == session.review().filtered == {"m.bin": "lfs", "old.nb": "strip"}
            assert (caught.value.stage, site.durable.fingerprint()) == ("staging", before)
            session.promote(allow_filtered=True)
            assert (site.durable.read("m.bin"), site.durable.read("old.nb"), site.durable.status()) == (b"\0model", b"{1}\n", [])

    def test_passes_what_went_through_it_before(self, tmp_path: Path, files: Mapping[str, str]) -> None:
        with site_with(tmp_path, files) as site:
            session = site.start()
            shell(session, "mv old.nb new.nb; chmod +x old.bin; rm -f none; : > empty.nb")
            session.write("new.bin", POINTER.replace("0a", "0b"))
            assert session.review().filtered == {}
            session.promote()
            assert site.durable.changed(site.durable.head()).keys() == {"old.nb", "new.nb", "old.bin", "new.bin", "empty.nb"}

    def test_of_durable_alone_counts_too(self, tmp_path: Path) -> None:
        with site_with(tmp_path, {"a": "1\n"}) as site:
            (site.durable.git_dir / "info").mkdir(exist_ok=True)
            (site.durable.git_dir / "info/attributes").write_text("a filter=crypt\n")
            session = site.start()
            session.write("a", "plain\n")
            with pytest.raises(FilteredContent, match="a: filter=crypt"):
                session.promote(strategy="patch")

    def test_stays_in_a_checkout_where_only_the_mode_changes(self, tmp_path: Path, files: Mapping[str, str]) -> None:
        with site_with(tmp_path, files) as site:
            site.durable.git("config", "filter.lfs.clean", f"printf '%s' '{POINTER}'")
            (site.durable.path / "old.bin").write_bytes(b"\0the model itself")
            site.durable.git("add", "old.bin")
            assert site.durable.status() == []
            session = site.start()
            shell(session, "chmod +x old.bin")
            session.promote()
            assert (site.durable.path / "old.bin").read_bytes() == b"\0the model itself"
            assert site.durable.status() == []
