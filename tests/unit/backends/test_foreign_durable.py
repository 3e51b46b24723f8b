"""A durable adapter of somebody else's: it works if it has every member, and is refused by the names of those that it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.engine import open_site

from pytest_gittrix import GitTrix, LocalDurable
from pytest_gittrix.backends import Durable
from pytest_gittrix.errors import InvalidInput

MEMBERS = sorted(name for name in vars(Durable) if not name.startswith("_"))


class Delegating:
    """Has what another adapter has, but for one member."""

    def __init__(self, inner: LocalDurable, without: str | None = None) -> None:
        self._inner, self._without = inner, without

    def __getattr__(self, name: str) -> Any:
        if name == self._without:
            raise AttributeError(name)
        return getattr(self._inner, name)


def test_one_that_has_everything_works(tmp_path: Path) -> None:
    with open_site(tmp_path) as site, site.another(durable=Delegating(LocalDurable(site.durable.path, sync=False))) as engine:
        session = engine.start_session("fix the bug")
        session.write("app.py", "v2\n")
        assert session.promote(strategy="commit").sha == site.durable.head()


@pytest.mark.parametrize("name", MEMBERS)
def test_one_without_a_member_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    with open_site(tmp_path) as site:
        with pytest.raises(InvalidInput, match=rf"^Delegating is not an adapter of a durable repository: it lacks {name}\.\n"):
            GitTrix(Delegating(LocalDurable(site.durable.path), without=name), store=tmp_path / "s")  # type: ignore[arg-type]
        assert not (tmp_path / "s").exists()


def test_what_a_subclass_inherits_from_the_protocol_counts_as_missing(tmp_path: Path) -> None:
    members = {name: (lambda *_args, **_options: None) for name in MEMBERS if name not in ("land", "uri")}
    partial = type("Partial", (Durable,), {"__init__": lambda _self: None, **members})
    with pytest.raises(InvalidInput, match=r"Partial is not an adapter of a durable repository: it lacks land, uri\."):
        GitTrix(partial(), store=tmp_path / "s")


def test_no_member_is_called_to_find_out(tmp_path: Path) -> None:
    def fail(_self: object) -> None:
        raise RuntimeError("called")

    members: dict[str, Any] = {**dict.fromkeys(MEMBERS, property(fail)), "close": lambda _self: None}
    durable = type("Silent", (), members)()
    assert GitTrix(durable, store=tmp_path / "s").durable is durable


def test_what_is_no_adapter_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"int is not an adapter of a durable repository: it lacks blob, branch, bring_forward"):
        GitTrix(5, store=tmp_path / "s")  # type: ignore[arg-type]
