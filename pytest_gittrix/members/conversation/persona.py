"""Files of the team's repository about one member: its persona, and what makes a brain of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import Advice, InvalidInput
from pytest_gittrix.git.commit import parse_commit
from pytest_gittrix.git.objects import MissingObject, Trees, open_objects
from pytest_gittrix.git.tree import Kind, entry_at
from pytest_gittrix.workspaces.multi_repo import CheckedOutRepository, clone_format, clone_path

PERSONA: Final = "PERSONA.md"
"""A file of the team's repository, below ``members/<member>/`` or at its root, that says who a member is."""
BRAIN: Final = "brain-prompt.md"
"""Such a file that makes a brain of a loop."""

TEXT: Final = "{persona}"
"""The placeholder in a command's argument for the text of the persona."""
FILE: Final = "{persona_file}"
"""The placeholder for its path, from the workspace."""


def team_file(repositories: Sequence[CheckedOutRepository], clones: Path, member: str, name: str) -> tuple[str, Kind, str] | None:
    """A file about a member in the commit of the team's repository that is checked out.

    Args:
        repositories: those of the workspace.
        clones: the directory of their clones.
        member: the member; a file below ``members/<member>/`` goes before one at the root.
        name: the name of the file.

    Returns:
        Its path from the workspace, its kind, and its text, or where it leads if it is a link; None if there is none.
    """
    for one in repositories:
        if not one.team or one.commit is None:
            continue
        clone = clone_path(clones, one.url)
        with closing(open_objects(Path(clone, "objects"), clone_format(clone, one.commit))) as objects:
            try:
                tree = parse_commit(one.commit, objects.read(one.commit)[1]).tree
                reading = Trees(objects)
                for path in (f"members/{member}/{name}", name):
                    entry = entry_at(reading.read, tree, path)
                    if entry is not None and entry.kind != "submodule":
                        return f"{one.directory}/{path}", entry.kind, objects.read(entry.id)[1].decode("utf-8", "replace")
            except MissingObject:
                return None
    return None


def with_persona(command: Sequence[str], repositories: Sequence[CheckedOutRepository], clones: Path, member: str) -> list[str]:
    """A command with the persona of a member in the places of ``{persona}`` and ``{persona_file}``.

    Raises:
        InvalidInput: the command has such a place, and the team's repository has no persona of the member.
    """
    if not any(place in argument for argument in command for place in (TEXT, FILE)):
        return [*command]
    found = team_file(repositories, clones, member, PERSONA)
    if found is None or found[1] == "symlink":
        raise InvalidInput(
            f"The team's repository has no persona of {member}, which its command is to get.",
            why=f"The command has {TEXT} or {FILE} in it.",
            fix=Advice(
                f"Commit members/{member}/{PERSONA} there, and see that a repository has team=True.",
                f"Commit members/{member}/{PERSONA} there, and see that a repository of the team file has team = true.",
            ),
        )
    path, _, text = found
    return [argument.replace(FILE, path).replace(TEXT, text.replace("\0", "")) for argument in command]
