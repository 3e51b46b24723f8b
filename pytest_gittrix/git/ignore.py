"""Which untracked files the baseline's own ``.gitignore`` files leave out.

The rules are the baseline's, never the workspace's: an agent that edits ``.gitignore`` cannot hide what it wrote
(DESIGN rule 3). Reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pathspec import GitIgnoreSpec


class Ignore:
    """The ignore rules of one tree.

    Args:
        sources: contents of each ``.gitignore``, by the directory it stands in ('' is the root).
    """

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self._sources = sources

    def __bool__(self) -> bool:
        return bool(self._sources)

    @cached_property
    def _specs(self) -> dict[str, GitIgnoreSpec]:
        return {
            directory: GitIgnoreSpec.from_lines(data.decode(errors="surrogateescape").splitlines())
            for directory, data in self._sources.items()
        }

    def ignored(self, path: str, *, directory: bool = False) -> bool:
        """Whether the rules leave out ``path``, judged by the nearest ``.gitignore`` that says anything about it.

        A directory that is left out is left out with all below it; asking about each level on the way down is the caller's part.
        """
        if not self._sources:
            return False
        base = path
        while base:
            base = base.rpartition("/")[0]
            spec = self._specs.get(base)
            if spec is None:
                continue
            relative = path[len(base) + 1 :] if base else path
            verdict = spec.check_file(relative + "/" if directory else relative).include
            if verdict is not None:
                return verdict
        return False
