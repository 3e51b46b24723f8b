"""Edits, hunks and their choice, and the three-way merge of texts against git's own."""

from __future__ import annotations

import random
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.git.environment import git_binary, hermetic_env
from pytest_gittrix.git.hunks import choose, hunks_of, is_binary, merge_text, unified_body

FAR_APART = b"".join(b"line %d\n" % number for number in range(1, 31))
THREE_CHANGES = FAR_APART.replace(b"line 2\n", b"second\n").replace(b"line 15\n", b"").replace(b"line 30\n", b"line 30\nmore")

LINES = [b"a", b"b", b"c\r", b"", b"\xff\xfe", b"d\re", b"@@ -1 +1 @@", b"\\ No newline at end of file"]


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A short text of few different lines, ended by a newline or not."""
    joined = b"\n".join(draw(st.lists(st.sampled_from(LINES), max_size=12)))
    return joined + draw(st.sampled_from([b"", b"\n"]))


# Hunks as displayed


def test_hunks_are_numbered_from_one_and_say_where_they_are() -> None:
    hunks = hunks_of("src/app.py", FAR_APART, THREE_CHANGES)

    assert [(hunk.index, hunk.path) for hunk in hunks] == [(1, "src/app.py"), (2, "src/app.py"), (3, "src/app.py")]
    assert [(hunk.old_start, hunk.old_lines, hunk.new_start, hunk.new_lines) for hunk in hunks] == [
        (1, 5, 1, 5),
        (12, 7, 12, 6),
        (28, 3, 27, 4),
    ]
    assert hunks[1].header == "@@ -12,7 +12,6 @@ line 11"


def test_the_texts_of_the_hunks_are_the_displayed_difference() -> None:
    hunks = hunks_of("a", FAR_APART, THREE_CHANGES)

    assert "".join(hunk.text for hunk in hunks).encode() == unified_body(FAR_APART, THREE_CHANGES)
    assert hunks[0].text == "@@ -1,5 +1,5 @@\n line 1\n-line 2\n+second\n line 3\n line 4\n line 5\n"
    assert hunks[2].text.endswith("+more\n\\ No newline at end of file\n")


def test_equal_texts_have_no_hunks() -> None:
    assert hunks_of("a", b"same\n", b"same\n") == []
    assert unified_body(b"same", b"same") == b""


def test_a_created_and_a_deleted_text_is_one_hunk() -> None:
    (created,) = hunks_of("a", b"", b"one\ntwo\n")
    (deleted,) = hunks_of("a", b"one\ntwo\n", b"")

    assert (created.old_start, created.old_lines, created.new_start, created.new_lines) == (0, 0, 1, 2)
    assert (deleted.old_start, deleted.old_lines, deleted.new_start, deleted.new_lines) == (1, 2, 0, 0)


def test_bytes_that_are_not_utf8_survive_the_text_of_a_hunk() -> None:
    (hunk,) = hunks_of("a", b"caf\xe9\r\n", b"th\xe9\r\n")

    assert hunk.text.encode("utf-8", "surrogateescape") == b"@@ -1 +1 @@\n-caf\xe9\r\n+th\xe9\r\n"


def test_content_that_looks_like_a_hunk_header_makes_no_hunk() -> None:
    (hunk,) = hunks_of("a", b"@@ -1,9 +1,9 @@\n", b"@@ -2 +2 @@\n@@ -3 +3 @@\n")

    assert (hunk.old_lines, hunk.new_lines) == (1, 2)


def test_the_id_of_a_hunk_does_not_depend_on_its_neighbours() -> None:
    grown_at_the_top = THREE_CHANGES.replace(b"second\n", b"second\nand a half\n")

    before, after = hunks_of("a", FAR_APART, THREE_CHANGES), hunks_of("a", FAR_APART, grown_at_the_top)

    assert [hunk.id for hunk in before[1:]] == [hunk.id for hunk in after[1:]]
    assert before[0].id != after[0].id
    assert before[1].new_start != after[1].new_start


def test_the_id_of_a_hunk_depends_on_path_place_and_lines() -> None:
    variants = [
        hunks_of("a", b"x\n", b"y\n"),
        hunks_of("b", b"x\n", b"y\n"),
        hunks_of("a", b"x\n", b"z\n"),
        hunks_of("a", b"w\n", b"y\n"),
        hunks_of("a", b"x\nx\nx\nx\nx\n", b"x\nx\nx\nx\ny\n"),
    ]
    ids = {hunk.id for hunks in variants for hunk in hunks}

    assert len(ids) == len(variants)
    assert all(len(id_) == 8 and int(id_, 16) >= 0 for id_ in ids)


# Choosing


def test_a_chosen_hunk_alone_is_applied() -> None:
    assert choose(FAR_APART, THREE_CHANGES, {1}) == FAR_APART.replace(b"line 2\n", b"second\n")
    assert choose(FAR_APART, THREE_CHANGES, [2]) == FAR_APART.replace(b"line 15\n", b"")
    assert choose(FAR_APART, THREE_CHANGES, (3,)) == FAR_APART + b"more"


def test_choices_compose_in_any_combination() -> None:
    expected = {1: (b"line 2\n", b"second\n"), 2: (b"line 15\n", b""), 3: (b"line 30\n", b"line 30\nmore")}
    for size in range(4):
        for wanted in combinations(expected, size):
            text = FAR_APART
            for index in wanted:
                text = text.replace(*expected[index])
            assert choose(FAR_APART, THREE_CHANGES, wanted) == text


def test_an_unknown_hunk_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"no hunk 0, 4(.|\n)*Choose from 1, 2, 3\.") as refused:
        choose(FAR_APART, THREE_CHANGES, {4, 2, 0})
    assert refused.value.code == "INVALID_INPUT"


def test_a_hunk_of_equal_texts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nothing to choose"):
        choose(b"same\n", b"same\n", {1})


@pytest.mark.parametrize(("old", "new"), [(b"a\0", b"a"), (b"a", b"a\0")])
def test_binary_contents_have_no_hunks(old: bytes, new: bytes) -> None:
    with pytest.raises(InvalidInput, match="Hunks need text"):
        hunks_of("a", old, new)
    with pytest.raises(InvalidInput, match="Hunks need text"):
        choose(old, new, [])


def test_a_nul_counts_as_binary_only_where_git_looks() -> None:
    assert is_binary(b"x" * 7999 + b"\0")
    assert not is_binary(b"x" * 8000 + b"\0")
    assert not is_binary(b"")


@given(old=texts(), new=texts(), context=st.integers(0, 4))
def test_choosing_all_gives_the_new_text_and_none_the_old(old: bytes, new: bytes, context: int) -> None:
    every = [hunk.index for hunk in hunks_of("a", old, new, context)]

    assert choose(old, new, every, context) == new
    assert choose(old, new, [], context) == old


@given(old=texts(), new=texts(), choice=st.sets(st.integers(1, 8)), context=st.integers(0, 1))
def test_choosing_is_replacing_the_range_each_chosen_hunk_names(old: bytes, new: bytes, choice: set[int], context: int) -> None:
    hunks = hunks_of("a", old, new, context)
    wanted = {hunk.index for hunk in hunks} & choice
    lines = old.split(b"\n")
    expected = [line + b"\n" for line in lines[:-1]] + [lines[-1]] * bool(lines[-1])
    for hunk in reversed(hunks):
        if hunk.index in wanted:
            start = hunk.old_start - (1 if hunk.old_lines else 0)
            expected[start : start + hunk.old_lines] = _new_lines(hunk.text.encode("utf-8", "surrogateescape"))

    assert choose(old, new, wanted, context) == b"".join(expected)


def _new_lines(hunk: bytes) -> list[bytes]:
    """The lines a hunk leaves, read from its display."""
    kept: list[bytes] = []
    last = b""
    for line in hunk.split(b"\n")[1:-1]:
        if line[:1] in (b" ", b"+"):
            kept.append(line[1:] + b"\n")
        elif line[:1] == b"\\" and last in (b" ", b"+"):
            kept[-1] = kept[-1][:-1]
        last = line[:1]
    return kept


# Merging


BASE = b"1\n2\n3\n4\n5\n6\n"


def test_edits_with_an_unchanged_line_between_them_merge() -> None:
    assert merge_text(BASE, b"1\nours\n3\n4\n5\n6\n", b"1\n2\n3\ntheirs\n5\n6\n") == b"1\nours\n3\ntheirs\n5\n6\n"


def test_several_edits_of_both_sides_interleave() -> None:
    ours = b"0\n1\n2\n3\n5\n6\n"
    theirs = b"1\ntwo\n3\n4\n5\n6\n7"

    assert merge_text(BASE, ours, theirs) == merge_text(BASE, theirs, ours) == b"0\n1\ntwo\n3\n5\n6\n7"


def test_the_same_edit_on_both_sides_is_made_once() -> None:
    assert merge_text(BASE, b"1\nsame\n3\n4\n5\n6\n", b"1\nsame\n3\n4\nfive\n6\n") == b"1\nsame\n3\n4\nfive\n6\n"
    assert merge_text(BASE, b"1\nsame\n3\n4\nfive\n6\n", b"1\nsame\n3\n4\n5\n6\n") == b"1\nsame\n3\n4\nfive\n6\n"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(b"1\n2\nours\n4\n5\n6\n", b"1\n2\ntheirs\n4\n5\n6\n", id="the same line"),
        pytest.param(b"1\nours\n3\n4\n5\n6\n", b"1\n2\ntheirs\n4\n5\n6\n", id="adjacent lines"),
        pytest.param(b"1\n2\nours\n3\n4\n5\n6\n", b"1\n2\ntheirs\n3\n4\n5\n6\n", id="two insertions at one place"),
        pytest.param(b"1\n4\n5\n6\n", b"1\n2\n3\n", id="touching deletions"),
        pytest.param(b"", b"1\n2\n3\n4\n5\nsix\n", id="emptied against an edit"),
        pytest.param(b"1\n2\n3\n4\n5\n6", b"1\n2\n3\n4\n5\n6\n7\n", id="last newline gone against lines added"),
    ],
)
def test_edits_that_overlap_or_touch_conflict(ours: bytes, theirs: bytes) -> None:
    assert merge_text(BASE, ours, theirs) is None
    assert merge_text(BASE, theirs, ours) is None


@pytest.mark.parametrize("other", [b"text\n", b"bin\0ary"])
def test_a_side_that_changed_nothing_takes_the_other_even_if_binary(other: bytes) -> None:
    assert merge_text(b"\0base", b"\0base", other) == other
    assert merge_text(b"\0base", other, b"\0base") == other
    assert merge_text(b"\0base", other, other) == other


def test_three_different_contents_do_not_merge_if_one_is_binary() -> None:
    text, ours, theirs = BASE, BASE.replace(b"1\n", b"one\n"), BASE.replace(b"6\n", b"six\n")

    assert merge_text(text, ours, theirs) is not None
    assert merge_text(b"\0" + text, ours, theirs) is None
    assert merge_text(text, b"\0" + ours, theirs) is None
    assert merge_text(text, ours, theirs + b"\0") is None


@given(base=texts(), ours=texts(), theirs=texts())
def test_a_merge_does_not_depend_on_which_side_is_ours(base: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge_text(base, ours, theirs) == merge_text(base, theirs, ours)


@given(old=texts(), new=texts())
def test_hunks_chosen_apart_merge_into_both(old: bytes, new: bytes) -> None:
    marked = [b"".join(b"%d %s\n" % named for named in enumerate(text.split(b"\n"))) for text in (old, new)]
    # Numbered, all lines of a text differ, so that a difference can be written in one way only.
    before, after = marked
    every = [hunk.index for hunk in hunks_of("a", before, after, 0)]
    odd, even = every[::2], every[1::2]

    assert merge_text(before, choose(before, after, odd, 0), choose(before, after, even, 0)) == after


def test_git_merges_to_the_same_bytes_and_conflicts_where_we_do(tmp_path: Path) -> None:
    environment = hermetic_env(tmp_path / "home")
    dice = random.Random(20300101)
    agreed = disagreed = merged = 0
    for _ in range(250):
        base = _random_lines(dice)
        ours, theirs = _edited(dice, base), _edited(dice, base)
        texts_ = [_serialised(dice, lines) for lines in (ours, base, theirs)]
        status, git_says = _merge_file(tmp_path, environment, *texts_)
        we_say = merge_text(texts_[1], texts_[0], texts_[2])
        if we_say is not None:
            assert (status, git_says) == (0, we_say), texts_
            merged += 1
        elif status:
            agreed += 1
        else:
            disagreed += 1

    assert merged > 50
    assert agreed > 50
    assert disagreed <= 0.05 * agreed


_Lines = list[bytes]


def _random_lines(dice: random.Random) -> _Lines:
    alphabet = dice.choice([[b"x", b"y", b"z\r"], [b"%d" % number for number in range(40)]])
    return [dice.choice(alphabet) for _ in range(dice.randrange(16))]


def _edited(dice: random.Random, base: _Lines) -> _Lines:
    lines = list(base)
    for _ in range(dice.randrange(3)):
        at = dice.randint(0, len(lines))
        lines[at : at + dice.randrange(3)] = [dice.choice([b"x", b"y", b"new", b""]) for _ in range(dice.randrange(3))]
    return lines


def _serialised(dice: random.Random, lines: _Lines) -> bytes:
    text = b"".join(line + b"\n" for line in lines)
    return text[:-1] if dice.random() < 0.2 else text


def _merge_file(directory: Path, environment: dict[str, str], ours: bytes, base: bytes, theirs: bytes) -> tuple[int, bytes]:
    for name, text in (("ours", ours), ("base", base), ("theirs", theirs)):
        (directory / name).write_bytes(text)
    command = [git_binary(), "merge-file", "-p", "--", "ours", "base", "theirs"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode < 128, done.stderr
    return done.returncode, done.stdout


def test_a_file_rewritten_from_end_to_end_is_one_hunk() -> None:
    old = b"".join(b"old line %d\n" % number for number in range(8000))
    new = b"".join(b"new line %d\n" % number for number in range(8000))

    (hunk,) = hunks_of("a", old, new)

    assert (hunk.old_lines, hunk.new_lines) == (8000, 8000)
    assert choose(old, new, [1]) == new
