"""What lands is what ``git add`` would make of the workspace, and the person's checkout is what ``git checkout`` would write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hypothesis import event, example, given
from hypothesis import strategies as st
from support.engine import DurableGit, Site, open_site
from support.git import put, try_git

from pytest_gittrix.errors import PromoteFailed

PATHS = ("a.txt", "b.x", "lib/a.txt", "lib/b.x")
RULES = (".gitattributes", "lib/.gitattributes")
CONTENTS = st.sampled_from(
    [
        b"one\n",
        b"one\r\n",
        b"one\r\ntwo\n",
        b"one\rtwo\r\n",
        b"\x00\r\n",
        b"",
        b"one",
        "é\r\n".encode(),
        b"\xef\xbb\xbfone\r\n",
        "one\r\n".encode("utf-16"),
        b"$Id: 1 $\r\n",
        b"$Id$\n",
        b"two\ntwo\r\n",
        b"x" * 200 + b"\x01\r\n",
        b"\xff\r\n",
    ]
)
LINES = st.lists(
    st.tuples(
        st.sampled_from(["*", "*.txt", "a.txt", "/b.x", "lib/*"]),
        st.sampled_from(["text", "-text", "text=auto", "eol=crlf", "eol=lf", "text eol=crlf", "ident", "binary", "text=auto eol=crlf"]),
    ).map(" ".join),
    max_size=3,
).map(lambda lines: "".join(f"{line}\n" for line in lines).encode())
FILES = st.dictionaries(st.sampled_from(PATHS), CONTENTS, min_size=1)
ATTRIBUTES = st.dictionaries(st.sampled_from(RULES), LINES, max_size=2)
CONFIG = st.sampled_from(["false", "true", "input"])
INFO = st.just(b"") | LINES


def made(root: Path, files: Mapping[str, bytes], autocrlf: str, info: bytes) -> Site:
    """A site whose durable has a configuration, checked out by git with it."""
    site = open_site(root, {"README": "x\n"}).__enter__()
    site.durable.git("config", "core.autocrlf", autocrlf)
    put(site.durable.git_dir / "info", {"attributes": info})
    site.durable.commit(files)
    site.durable.git("rm", "-rq", "--cached", ".")
    site.durable.git("reset", "-q", "--hard")
    return site


def as_added(durable: DurableGit, edits: Mapping[str, bytes | None], baseline: Mapping[str, bytes]) -> str:
    """The tree that git makes of a work tree with these edits, on top of durable's head."""
    with tempfile.TemporaryDirectory() as work:
        variables = {"GIT_DIR": str(durable.git_dir), "GIT_WORK_TREE": work, "GIT_INDEX_FILE": f"{work}.index"}
        put(Path(work), {path: data for path, data in {**baseline, **edits}.items() if data is not None})
        changed = [path for path, data in edits.items() if baseline.get(path) != data]
        for arguments in (["read-tree", "HEAD"], *([["add", "-A", "--", *changed]] if changed else []), ["write-tree"]):
            done = try_git(*arguments, cwd=Path(work), env=variables)
            assert done.returncode == 0, done.stderr
        os.unlink(f"{work}.index")
        return done.stdout.decode().strip()


def as_checked_out(durable: DurableGit) -> dict[str, bytes]:
    """The files that git writes for durable's head."""
    with tempfile.TemporaryDirectory() as work:
        variables = {"GIT_DIR": str(durable.git_dir), "GIT_WORK_TREE": work, "GIT_INDEX_FILE": f"{work}.index"}
        for arguments in (["read-tree", "HEAD"], ["checkout-index", "-aq"]):
            assert try_git(*arguments, cwd=Path(work), env=variables).returncode == 0
        os.unlink(f"{work}.index")
        return files_in(Path(work))


def files_in(root: Path) -> dict[str, bytes]:
    """The files of a work tree."""
    return {
        str(at.relative_to(root)): at.read_bytes() for at in root.rglob("*") if at.is_file() and ".git" not in at.relative_to(root).parts
    }


@given(
    files=FILES,
    rules=ATTRIBUTES,
    edits=st.dictionaries(st.sampled_from(PATHS), CONTENTS | st.none(), min_size=1),
    new_rules=st.just({}) | ATTRIBUTES,
    autocrlf=CONFIG,
    info=INFO,
)
@example(
    files={"a.txt": b"one\n"},
    rules={".gitattributes": b"* eol=crlf\n"},
    edits={"a.txt": b"1\r\n2\r\n"},
    new_rules={},
    autocrlf="false",
    info=b"",
)
@example(
    files={"a.txt": b"one\r\n"},
    rules={".gitattributes": b"* text=auto\n"},
    edits={"a.txt": b"1\r\n"},
    new_rules={},
    autocrlf="false",
    info=b"",
)
@example(files={"a.txt": b"one\n"}, rules={}, edits={"a.txt": b"1\r\n"}, new_rules={}, autocrlf="input", info=b"")
@example(
    files={"a.txt": b"one\n"},
    rules={},
    edits={"b.x": b"1\r\n"},
    new_rules={".gitattributes": b"* text\n"},
    autocrlf="false",
    info=b"",
)
def test_what_lands_is_what_git_add_makes(
    files: Mapping[str, bytes],
    rules: Mapping[str, bytes],
    edits: Mapping[str, bytes | None],
    new_rules: Mapping[str, bytes],
    autocrlf: str,
    info: bytes,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        site = made(Path(directory), {**files, **rules}, autocrlf, info)
        try:
            promoted_as_git_would(site, {**files, **rules}, {**edits, **new_rules})
        finally:
            site.close()


def promoted_as_git_would(site: Site, baseline: Mapping[str, bytes], edits: Mapping[str, bytes | None]) -> None:
    """Promote edits, and compare with git."""
    durable = site.durable
    before, session = durable.head(), site.start()
    workspace = Path(str(session.workspace_path))
    put(workspace, edits)
    wanted = as_added(durable, edits, baseline)
    review = session.review()
    with suppress(PromoteFailed):
        session.promote(review)
    event("promoted" if durable.head() != before else "nothing to promote")
    assert durable.git("rev-parse", "HEAD^{tree}") == wanted
    written, forwarded = as_checked_out(durable), review.changes
    # A file that was stored with CRLF although its attributes make it text is modified to git, whoever looks.
    differing = [*durable.git("diff-files", "--name-only").split(), *durable.git("diff-index", "--name-only", "HEAD").split()]
    assert [path for path in differing if path in forwarded] == []
    assert [line for line in durable.status() if line[3:] in forwarded or line[:2] != " M"] == []
    assert {path: data for path, data in files_in(durable.path).items() if path in forwarded} == {
        path: data for path, data in written.items() if path in forwarded
    }
    assert applied(durable, before, review.diff) == wanted


def applied(durable: DurableGit, commit: str, patch: str) -> str:
    """The tree that a patch makes of a commit."""
    with tempfile.TemporaryDirectory() as work:
        variables = {"GIT_DIR": str(durable.git_dir), "GIT_INDEX_FILE": f"{work}/index"}
        commands = [["read-tree", commit], *([["apply", "--cached", "--whitespace=nowarn", "-"]] if patch else []), ["write-tree"]]
        for arguments in commands:
            done = try_git(*arguments, cwd=Path(work), env=variables, stdin=patch.encode(errors="surrogateescape"))
            assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()
