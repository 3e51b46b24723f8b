"""The agents of a town by terminal name and by address (Gas Town, docs/explanation/you-know-gas-town.md).

A name such as ``gt-crew-max`` begins with the prefix under which its rig is registered, an address such as ``gastown/crew/max`` with the
rig itself. Each can be computed from the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pytest_gittrix.errors import InvalidInput

_TOWN: Final[Mapping[str, str]] = {"hq-mayor": "mayor", "hq-deacon": "deacon", "hq-boot": "deacon/boot", "hq-overseer": "overseer"}
"""The agents that each town has one of."""
_OF_TOWN: Final[Mapping[str, str]] = {address: name for name, address in _TOWN.items()}
_DOG: Final = "hq-dog-"
_CREW: Final = "crew-"
_SINGLE: Final = ("witness", "refinery")
"""The agents that each rig has one of."""
# What one agent, or a rig's directory, is called: never a path, never hidden.
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def address_of(name: str, prefixes: Mapping[str, str]) -> str:
    """The address of the agent whose terminal has a name.

    Args:
        name: ``hq-mayor``, ``gt-witness``, ``gt-crew-max``, ``gt-Toast`` and so on.
        prefixes: each registered prefix, without its dash, with its rig. The longest that fits counts.

    Raises:
        InvalidInput: no prefix fits (the message lists them), or what comes after it is no agent's name.
    """
    address = _read(name, prefixes)
    if address is not None:
        return address
    if _prefix(name, prefixes) is None:
        raise InvalidInput(
            f"The name {name!r} begins with no prefix that is registered.",
            why="The prefix says which rig an agent belongs to.",
            fix=f"The prefixes are: {_listed(prefixes)}; those of the town are {_listed([*_TOWN, _DOG + '<name>'])}.",
        )
    raise InvalidInput(
        f"The name {name!r} has no agent's name after its prefix.",
        why="An agent's name is also that of its directory.",
        fix="It is made of letters, digits, _, - and ., and begins with none of the last two.",
    )


def name_of(address: str, prefixes: Mapping[str, str]) -> str:
    """The terminal name of the agent at an address; the inverse of ``address_of``.

    Args:
        address: ``mayor``, ``gastown/witness``, ``gastown/crew/max``, ``gastown/polecats/Toast``, ``deacon/dogs/rex`` and so on.
        prefixes: as for ``address_of``. Of several prefixes of a rig, the first that serves is taken.

    Raises:
        InvalidInput: it is no address, its rig has no prefix, or its name would be read as another agent's (a polecat called ``witness``).
    """
    candidates = list(_candidates(address, prefixes))
    for name in candidates:
        if _read(name, prefixes) == address:
            return name
    if candidates:
        raise InvalidInput(
            f"The agent {address!r} can have no name: {candidates[0]!r} would not be read as it.",
            why="Two agents would answer to one name.",
            fix="Give the agent another name, or register its rig under another prefix.",
        )
    rig, slash, _ = address.partition("/")
    if slash and rig not in prefixes.values():
        raise InvalidInput(
            f"No prefix is registered for the rig {rig!r} of {address!r}.",
            why="The names of a rig's agents begin with it.",
            fix=f"The rigs are: {_listed(prefixes.values())}.",
        )
    raise InvalidInput(
        f"{address!r} is not an address.",
        fix=f"Use {_listed(_OF_TOWN)}, deacon/dogs/<name>, <rig>/witness, <rig>/refinery, <rig>/crew/<name> or <rig>/polecats/<name>.",
    )


def _read(name: str, prefixes: Mapping[str, str]) -> str | None:
    """The address for a name, or None if no agent has it."""
    if name in _TOWN:
        return _TOWN[name]
    if name.startswith(_DOG) and _WORD.fullmatch(name, len(_DOG)):
        return f"deacon/dogs/{name.removeprefix(_DOG)}"
    prefix = _prefix(name, prefixes)
    if prefix is None:
        return None
    rig, rest = prefixes[prefix], name[len(prefix) + 1 :]
    if rest in _SINGLE:
        return f"{rig}/{rest}"
    kind = "crew" if rest.startswith(_CREW) else "polecats"
    member = rest.removeprefix(_CREW)
    return f"{rig}/{kind}/{member}" if _WORD.fullmatch(member) else None


def _prefix(name: str, prefixes: Mapping[str, str]) -> str | None:
    return max((prefix for prefix in prefixes if name.startswith(f"{prefix}-")), key=len, default=None)


def _candidates(address: str, prefixes: Mapping[str, str]) -> Iterator[str]:
    """The names an address could have, by its shape alone."""
    if address in _OF_TOWN:
        yield _OF_TOWN[address]
        return
    match address.split("/"):
        case ["deacon", "dogs", name]:
            yield _DOG + name
        case [rig, role] if role in _SINGLE:
            yield from (f"{prefix}-{role}" for prefix, of in prefixes.items() if of == rig)
        case [rig, "crew", name]:
            yield from (f"{prefix}-{_CREW}{name}" for prefix, of in prefixes.items() if of == rig)
        case [rig, "polecats", name]:
            yield from (f"{prefix}-{name}" for prefix, of in prefixes.items() if of == rig)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"
