"""State diagrams, drawn from the tables of legal state changes, so that the documentation shows what the engine checks.

A diagram is text that Mermaid renders. States with the same predecessors and successors are drawn as one node; the sixteen statuses of
agent-orchestrator could not be read otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

Legal = Mapping[str, frozenset[str]]
"""Which state may follow which."""


def groups(legal: Legal) -> list[tuple[str, ...]]:
    """The states in groups whose members have the same predecessors and successors, each other aside.

    Args:
        legal: for each state, those that may follow.

    Returns:
        The groups in the order of the table, each with its states in that order.
    """
    order = {state: number for number, state in enumerate(legal)}
    found: list[list[str]] = []
    for state in legal:
        home = next((group for group in found if _alike(legal, group[0], state)), None)
        if home is None:
            found.append([state])
        else:
            home.append(state)
    return [tuple(sorted(group, key=order.__getitem__)) for group in found]


def mermaid(legal: Legal, *, start: str) -> str:
    """The diagram of a table.

    Args:
        legal: for each state, those that may follow.
        start: the state that everything begins in.

    Returns:
        A Mermaid ``stateDiagram-v2``, which ends in a line break. A group that can change among its own members has an arrow to itself.
    """
    together = groups(legal)
    node = {state: number for number, group in enumerate(together) for state in group}
    lines = ["stateDiagram-v2", "    direction LR"]
    lines += ['    state "{}" as s{}'.format(", ".join(group), number) for number, group in enumerate(together)]
    lines.append(f"    [*] --> s{node[start]}")
    edges = sorted({(node[old], node[new]) for old, allowed in legal.items() for new in allowed})
    for old, ends in groupby(edges, key=lambda edge: edge[0]):
        lines += [f"    s{old} --> s{new}{': any to any other' if new == old else ''}" for _, new in ends]
    lines += [f"    s{number} --> [*]" for number, group in enumerate(together) if not any(legal[state] for state in group)]
    return "".join(f"{line}\n" for line in lines)


def block(legal: Legal, *, start: str) -> str:
    """The same as a fenced block of a Markdown page."""
    return f"```mermaid\n{mermaid(legal, start=start)}```\n"


def _alike(legal: Legal, one: str, other: str) -> bool:
    pair = {one, other}
    if legal[one] - pair != legal[other] - pair or (other in legal[one]) != (one in legal[other]):
        return False
    if (one in legal[one]) != (other in legal[other]):
        return False
    return _before(legal, one) - pair == _before(legal, other) - pair


def _before(legal: Legal, state: str) -> frozenset[str]:
    return frozenset(old for old, allowed in legal.items() if state in allowed)
