"""Gas Town's names: a terminal's and an agent's address are read from one another, and a directory says whose it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.views.gastown_names import address_of, name_of

PREFIXES = {"gt": "gastown", "gt-x": "extra", "bd": "beads"}

PAIRS = [
    ("hq-mayor", "mayor"),
    ("hq-deacon", "deacon"),
    ("hq-boot", "deacon/boot"),
    ("hq-overseer", "overseer"),
    ("hq-dog-rex", "deacon/dogs/rex"),
    ("hq-dog-boot", "deacon/dogs/boot"),
    ("gt-witness", "gastown/witness"),
    ("gt-refinery", "gastown/refinery"),
    ("gt-crew-max", "gastown/crew/max"),
    ("gt-crew-max-2", "gastown/crew/max-2"),
    ("gt-crew", "gastown/polecats/crew"),
    ("gt-Toast", "gastown/polecats/Toast"),
    ("gt-Toast-2", "gastown/polecats/Toast-2"),
    ("bd-witness-2", "beads/polecats/witness-2"),
    ("gt-x-Toast", "extra/polecats/Toast"),
    ("gt-x-witness", "extra/witness"),
    ("gt-x", "gastown/polecats/x"),
]


@pytest.mark.parametrize(("name", "address"), PAIRS)
def test_a_name_and_an_address_are_read_from_one_another(name: str, address: str) -> None:
    assert address_of(name, PREFIXES) == address
    assert name_of(address, PREFIXES) == name


@pytest.mark.parametrize("name", ["zz-Toast", "gt", "mayor", "", "hq-janitor", "hq-dog-", "hq-dog-a/b"])
def test_an_unknown_prefix_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InvalidInput, match="bd, gt, gt-x"):
        address_of(name, PREFIXES)


def test_a_town_without_rigs_says_so() -> None:
    with pytest.raises(InvalidInput, match="The prefixes are: none"):
        address_of("gt-Toast", {})
    assert address_of("hq-mayor", {}) == "mayor"


@pytest.mark.parametrize("name", ["gt-", "gt-crew-", "gt-a/b", "gt-..", "gt--x", "gt-a b", "gt-crew-.x", "gt-x\n"])
def test_what_names_nobody_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="has no agent's name"):
        address_of(name, PREFIXES)


@pytest.mark.parametrize(
    "address", ["", "Toast", "gastown", "gastown/mayor", "gastown/crew", "gastown/polecats/a/b", "hq-mayor", "gastown/Toast", "/gastown"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not an address|No prefix is registered for the rig ''"):
        name_of(address, PREFIXES)


def test_a_rig_without_a_prefix_is_refused_with_the_rigs_there_are() -> None:
    with pytest.raises(InvalidInput, match="beads, extra, gastown"):
        name_of("moon/polecats/Toast", PREFIXES)


@pytest.mark.parametrize(
    "address",
    [
        "gastown/polecats/witness",
        "gastown/polecats/refinery",
        "gastown/polecats/crew-max",
        "gastown/polecats/x-Toast",
        "gastown/polecats/../x",
        "gastown/polecats/",
        "gastown/crew/.hidden",
        "deacon/dogs/..",
    ],
)
def test_an_agent_whose_name_would_be_read_as_anothers_has_none(address: str) -> None:
    with pytest.raises(InvalidInput, match=r"can have no name|is not an address"):
        name_of(address, PREFIXES)


def test_a_rig_may_have_several_prefixes() -> None:
    prefixes = {"gt": "gastown", "gt-old": "gastown"}

    assert address_of("gt-old-Toast", prefixes) == address_of("gt-Toast", prefixes) == "gastown/polecats/Toast"
    assert name_of("gastown/polecats/Toast", prefixes) == "gt-Toast"


def test_of_several_prefixes_one_is_taken_that_serves() -> None:
    prefixes = {"gt": "gastown", "w": "gastown", "gt-x": "extra"}

    assert name_of("gastown/polecats/x-Toast", prefixes) == "w-x-Toast"
    assert address_of("w-x-Toast", prefixes) == "gastown/polecats/x-Toast"


WORDS = ("gt", "x", "crew", "dog", "hq", "witness", "refinery", "max", "Toast", "deacon", "mayor", "dogs", "polecats", "2")
words = st.sampled_from(WORDS)
dashed = st.lists(words, min_size=1, max_size=3).map("-".join)


@st.composite
def towns(draw: st.DrawFn) -> tuple[dict[str, str], str, str]:
    """Prefixes that begin one another, each of a rig of its own; one of them, and a word for what comes after it."""
    prefixes = draw(st.lists(dashed, min_size=1, max_size=5, unique=True))
    rigs = draw(st.permutations(WORDS))
    return dict(zip(prefixes, rigs, strict=False)), draw(st.sampled_from(prefixes)), draw(dashed)


@given(towns())
def test_whatever_can_be_read_is_written_again_as_it_was(town: tuple[dict[str, str], str, str]) -> None:
    prefixes, prefix, rest = town
    for name in (f"{prefix}-{rest}", f"{prefix}-crew-{rest}", f"hq-dog-{rest}"):
        assert name_of(address_of(name, prefixes), prefixes) == name


@given(towns(), st.sampled_from(["{0}/polecats/{1}", "{0}/crew/{1}", "{0}/witness", "deacon/dogs/{1}"]))
def test_whatever_can_be_written_is_read_again_as_it_was(town: tuple[dict[str, str], str, str], shape: str) -> None:
    prefixes, prefix, rest = town
    address = shape.format(prefixes[prefix], rest)
    try:
        name = name_of(address, prefixes)
    except InvalidInput:
        return  # refused, as shown above; what is not must be read as it was meant
    assert address_of(name, prefixes) == address


@pytest.mark.parametrize("address", ["gastown/crew/max", "gastown/polecats/Toast", "gastown/witness", "deacon/dogs/rex", "mayor", "deacon"])
def test_the_name_of_an_address_leads_back_to_it(address: str) -> None:
    assert address_of(name_of(address, PREFIXES), PREFIXES) == address
