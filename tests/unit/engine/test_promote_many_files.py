"""The warning of a promotion of more files than expected, of which none was selected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine import Site, open_site

from pytest_gittrix.engine.user_session import UserSession
from pytest_gittrix.errors import InvalidInput


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, {"app.py": "1\n"}) as opened:
        yield opened


def _session_of(site: Site, files: int) -> UserSession:
    """A session that touched so many files, one in the root and all others in ``env``."""
    session = site.start()
    workspace = session.workspace_path
    assert workspace is not None
    (workspace / "env").mkdir()
    for path in ("new.py", *(f"env/{number}.txt" for number in range(files - 1))):
        (workspace / path).write_text(path)
    return session


def test_a_promotion_of_everything_is_warned_of_with_the_places_of_the_most_files(site: Site) -> None:
    result = _session_of(site, 201).promote()

    assert result.warnings == (
        "no path was selected, so the promotion has all 201 files that the session touched: 200 in env/, 1 in the root",
    )
    assert len(site.durable.changed(result.sha)) == 201


def test_as_many_files_as_are_expected_are_no_warning(site: Site) -> None:
    assert _session_of(site, 200).promote().warnings == ()


@pytest.mark.parametrize(("most", "warnings"), [(0, 0), (2, 1), (3, 0)])
def test_the_number_is_an_argument_and_zero_turns_the_warning_off(site: Site, most: int, warnings: int) -> None:
    assert len(_session_of(site, 3).promote(many_files=most).warnings) == warnings


def test_files_that_were_named_or_reviewed_are_no_warning(site: Site) -> None:
    named, reviewed = _session_of(site, 3), _session_of(site, 4)

    assert named.promote(["new.py", "env/0.txt", "env/1.txt"], many_files=1).warnings == ()
    assert reviewed.promote(reviewed.review(), many_files=1, on_overlap="allow-identical").warnings == ()


@pytest.mark.parametrize("most", [-1, True, "200", None, 1.5])
def test_no_number_of_files_is_refused(site: Site, most: object) -> None:
    session = _session_of(site, 1)

    with pytest.raises(InvalidInput, match="is no number of files"):
        session.promote(many_files=most)  # type: ignore[arg-type]
    assert session.info().state == "active"
