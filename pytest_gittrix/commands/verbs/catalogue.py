"""All commands that work on a store, in the sections of ``gittrix --help`` and ``gittrix session --help``.

A daemon runs them too, but for those that only a terminal can have.
"""

from __future__ import annotations

from typing import Final

from pytest_gittrix.commands.declaration import Group, Sections
from pytest_gittrix.commands.verbs import find, lineage, log, members, orchestrator, page, runs, sessions

SESSION: Final = Group(
    "session",
    "start, look into, change and end sessions",
    {
        "everyday work (to promote: gittrix promote)": (
            lineage.start,
            find.list_sessions,
            sessions.info,
            sessions.list_files,
            sessions.read,
            sessions.write,
            sessions.delete,
            sessions.touched,
            sessions.diff,
            sessions.commit,
            log.log,
            sessions.discard,
        ),
        "more": (find.overlaps, sessions.rebase, sessions.extend, sessions.relocate, sessions.evict, lineage.show),
        "an agent and its model": (runs.run, runs.tape, page.page),
        "Gas Town": (lineage.handoff, find.chain, find.find, lineage.identify, log.export),
        "Pixir": (log.history, log.record, lineage.fork, find.tree),
        "BotMinter (sessions of gittrix member)": members.VERBS,
        "agent-orchestrator": orchestrator.VERBS,
    },
    aliases=("s", "sessions"),
)

SESSIONS: Final = (SESSION, sessions.promote, sessions.sweep, sessions.recover)
COMMANDS: Final[Sections] = {"sessions": SESSIONS, "BotMinter": (members.MEMBER,)}
