"""The model of a correct system says what the design says: about overlap, touched paths, deadlines, checkouts and promotions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pytest_gittrix.testing.repos.edits import Edits, Tree
from pytest_gittrix.testing.repos.history import Content, Executable, Symlink
from pytest_gittrix.testing.session_model import FINE, Model, ModelCheckout, ModelSession, colliding, fits, overlapping

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
BASE = Tree({"a": b"1\n", "lib/b": b"2\n"})


def a_session(**changed: Content | None) -> ModelSession:
    """A session of an hour on ``BASE``; ``lib__b`` is the path ``lib/b``."""
    edits = {path.replace("__", "/"): content for path, content in changed.items()}
    return ModelSession(BASE, BASE.apply(edits), NOW, NOW, HOUR)


def a_model(tree: Tree = BASE, *, checkout: ModelCheckout | None = None) -> Model:
    return Model("one", {"one": tree}, checkout)


@pytest.mark.parametrize(
    ("selected", "drift", "met"),
    [
        (["a"], ["a"], ["a"]),
        (["a", "b"], ["b", "c"], ["b"]),
        (["a/b"], ["a"], ["a/b"]),
        (["a"], ["a/b"], ["a"]),
        (["ab"], ["a"], []),
        (["a/b"], ["a/c"], []),
        (["a"], ["A"], []),
        ([], ["a"], []),
    ],
)
def test_drift_overlaps_at_a_path_above_it_and_below_it(selected: list[str], drift: list[str], met: list[str]) -> None:
    assert overlapping(selected, drift) == met


def test_edits_fit_where_no_file_becomes_a_directory_of_another() -> None:
    assert fits(BASE, Edits({"a": None, "a/b": b""}))
    assert not fits(BASE, Edits({"a/b": b""}))
    assert not fits(BASE, Edits({"lib": b""}))


@pytest.mark.parametrize(
    ("tree", "added", "clashes"),
    [
        (["a", "A"], ["A"], ["A"]),
        (["lib/a", "LIB/b"], ["LIB/b"], ["LIB/b"]),
        (["é", "e\u0301"], ["é"], ["é"]),
        (["a", "b"], ["b"], []),
        (["a", "x/A"], ["x/A"], []),
        (["a", "A", "b"], ["b"], []),
    ],
)
def test_names_collide_by_case_and_unicode_form_at_any_level(tree: list[str], added: list[str], clashes: list[str]) -> None:
    assert colliding(Tree(dict.fromkeys(tree, b"")), added) == clashes


def test_touched_is_the_difference_of_two_trees() -> None:
    session = a_session(a=Executable(b"1\n"), lib__b=None, new=b"")

    assert dict(session.touched) == {"a": Executable(b"1\n"), "lib/b": None, "new": b""}
    assert dict(a_session(a=b"1\n").touched) == {}


def test_a_session_is_due_strictly_after_its_deadline() -> None:
    session = a_session()

    assert session.deadline == NOW + HOUR
    assert not session.due(NOW + HOUR)
    assert session.due(NOW + HOUR + MICROSECOND)


@pytest.mark.parametrize(
    ("changes", "deadline"),
    [
        ({"used": NOW + HOUR}, NOW + 2 * HOUR),
        ({"absolute": timedelta(minutes=1)}, NOW + timedelta(minutes=1)),
        ({"absolute": timedelta(days=1)}, NOW + HOUR),
        ({"idle": None}, None),
        ({"manual": True, "absolute": HOUR}, None),
    ],
)
def test_the_sooner_limit_counts_and_manual_has_none(changes: dict[str, object], deadline: datetime | None) -> None:
    assert replace(a_session(), **changes).deadline == deadline  # type: ignore[arg-type]


def test_over_is_over() -> None:
    model, session = a_model(), a_session()
    expired = frozenset({"SESSION_EXPIRED"})

    assert model.refusal(session, NOW + HOUR) == FINE
    assert model.refusal(session, NOW + HOUR + MICROSECOND) == expired
    model.ended(session, "discarded")
    model.ended(session, "expired")
    assert (session.state, session.present) == ("discarded", False)
    assert model.refusal(session, NOW) == expired
    assert not session.due(NOW + 2 * HOUR)


def test_an_agent_cannot_put_a_file_where_a_directory_is_nor_below_a_file() -> None:
    model, session = a_model(), a_session()
    rejected = frozenset({"WRITE_REJECTED"})

    assert model.write(session, "lib", b"") == rejected
    assert model.write(session, "a/b", b"") == rejected
    assert model.delete(session, "lib") == rejected
    assert session.files == BASE
    assert model.delete(session, "nothing") == FINE
    assert model.delete(session, "a/nothing") == FINE | rejected


def test_a_file_that_is_written_over_stays_executable() -> None:
    model, session = a_model(), a_session(a=Executable(b"1\n"))

    model.write(session, "a", b"2\n")

    assert session.files["a"] == Executable(b"2\n")


@pytest.mark.parametrize(
    "head",
    [
        {"a": b"theirs\n"},
        {"a": None},
        {"a": None, "moved": b"1\n"},
        {"a": None, "a/inside": b""},
        {"a": Executable(b"1\n")},
        {"a": Symlink(b"lib/b")},
        {"a": None, "A": b"1\n"},
        {"a": b"agent\n"},
    ],
    ids=["edit", "delete", "rename", "directory", "mode", "link", "case", "same"],
)
def test_any_drift_at_a_selected_path_is_a_conflict(head: dict[str, Content | None]) -> None:
    model, session = a_model(BASE.apply(head)), a_session(a=b"agent\n")

    assert "BASELINE_CONFLICT" in model.promotion(session, session.touched)[0]


def test_drift_elsewhere_or_there_and_back_is_none() -> None:
    session = a_session(a=b"agent\n")

    assert a_model(BASE.apply({"lib/b": b"theirs\n"})).promotion(session, session.touched) == (FINE, session.touched)
    assert a_model().promotion(session, session.touched)[0] == FINE


def test_identical_edits_pass_where_they_may_and_leave_nothing_to_promote_if_they_are_all() -> None:
    session = a_session(a=b"agent\n", lib__b=b"agent\n")
    model = a_model(BASE.apply({"a": b"agent\n"}))

    answers, landing = model.promotion(session, session.touched, on_overlap="allow-identical")

    assert (answers, dict(landing)) == (FINE, {"lib/b": b"agent\n"})
    assert model.promotion(session, session.touched.only(["a"]), on_overlap="allow-identical")[0] == {"PROMOTE_FAILED"}


def test_half_of_a_file_that_became_a_directory_cannot_be_promoted() -> None:
    model, session = a_model(), a_session(a=None, a__x=b"")

    assert model.promotion(session, session.touched.only(["a/x"]))[0] == {"PROMOTE_FAILED"}
    assert model.promotion(session, session.touched.only(["a"]))[0] == FINE
    assert model.promotion(session, session.touched.only([]))[0] == {"PROMOTE_FAILED"}


def test_a_new_name_that_another_file_system_takes_for_an_old_one_is_refused() -> None:
    session = a_session(A=b"")

    assert a_model().promotion(session, session.touched)[0] == {"PATH_COLLISION"}


@pytest.mark.parametrize(
    ("staged", "files", "clean"),
    [
        ({}, {}, True),
        ({}, {"a": b"mine\n"}, False),
        ({"a": b"mine\n"}, {"a": b"mine\n"}, False),
        ({"a": b"mine\n"}, {}, False),
        ({"lib/b": b"mine\n"}, {"lib/b": b"mine\n"}, True),
        ({}, {"new": b"mine\n"}, False),
        ({}, {"new/below": b"mine\n"}, False),
        ({"new/below": b"mine\n"}, {}, False),
        ({}, {"newer": b"mine\n"}, True),
    ],
)
def test_a_checkout_stands_in_the_way_where_the_human_has_work(staged: dict[str, Content], files: dict[str, Content], clean: bool) -> None:
    checkout = ModelCheckout(BASE.apply(staged), BASE.apply(files))
    session = a_session(a=b"agent\n", new=b"agent\n")

    answers, _ = a_model(checkout=checkout).promotion(session, session.touched)

    assert answers == (FINE if clean else {"WORKTREE_DIRTY"})


def test_a_promotion_brings_the_checkout_forward_and_a_rival_does_not() -> None:
    model = a_model(checkout=ModelCheckout(BASE, BASE))
    assert model.checkout is not None

    model.committed("two", Edits({"lib/b": None}), in_checkout=False)
    model.promoted(a_session(a=b"agent\n"), "three", {"a": b"agent\n"})

    assert model.tree == {"a": b"agent\n"}
    assert model.checkout.files == model.checkout.staged == {"a": b"agent\n", "lib/b": b"2\n"}


def test_a_rewind_in_the_checkout_keeps_untracked_files() -> None:
    model = a_model(checkout=ModelCheckout(BASE, BASE.apply({"mine": b"", "a": b"unsaved\n"})))
    assert model.checkout is not None
    model.committed("two", Edits({"c": b""}), in_checkout=True)

    model.moved("one", in_checkout=True)

    assert model.checkout.staged == BASE
    assert model.checkout.files == BASE.apply({"mine": b""})
