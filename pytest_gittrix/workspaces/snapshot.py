"""A workspace at one moment, as its difference from the baseline: the changes, and what can never be promoted."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pytest_gittrix import points
from pytest_gittrix.errors import AdapterUnavailable, GittrixError
from pytest_gittrix.git.tree import SUBMODULE, Changes, parents, write_trees
from pytest_gittrix.workspaces.creation_note import CreationState
from pytest_gittrix.workspaces.provided import NOTHING, Provided
from pytest_gittrix.workspaces.seeds.seed import Seed
from pytest_gittrix.workspaces.visibility import WorkspaceGit, sized
from pytest_gittrix.workspaces.walk import DIRECTORY_FLAGS, REPLACED, ChangedDuringWalk, LargeFile, Limits, Walk

_TRIES: Final = 5


@dataclass(frozen=True)
class Snapshot:
    """A workspace at one moment, as its difference from the baseline.

    Attributes:
        seed: the baseline.
        changes: new entry by path, None where the baseline's file was deleted; sorted by path.
        blobs: bytes of the new entries, by id.
        refused: paths that exist but can never be promoted, each with the reason.
        latest: the newest kernel change time of its files and directories, in nanoseconds.
        large: those of ``refused`` that are refused for their size alone; sorted by path.
        nested: directories with a git repository of their own, whose files are among the changes and whose history is not; sorted.
        given: files that the session was given at its start and that are as they were then: in the workspace, and no changes.
        bases: as ``Workspace.bases``.
        withheld: untracked files that only the workspace's own ignore rules ignore, or that were included from durable's checkout and
            changed since, with their sizes in bytes. They were not read. A snapshot for which one is named has it among the changes.
        ignored: untracked paths that the baseline's and the workspace's rules ignore; the name of a directory ends in ``/``.
        provided: what was put into the workspace at its start; what of it is unchanged is neither work nor ignored.
        raw: the bytes in the workspace of the changed files that git would store otherwise (``checkin``), by path.
    """

    seed: Seed
    changes: Changes
    blobs: Mapping[str, bytes] = field(repr=False)
    refused: Mapping[str, str]
    latest: int
    large: Mapping[str, LargeFile] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    given: Changes = field(default_factory=dict)
    bases: Changes = field(default_factory=dict)
    withheld: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    raw: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    provided: Provided = NOTHING

    @property
    def touched(self) -> list[str]:
        """Every path that differs from the baseline, sorted: the changes, what can never be promoted, and what is withheld."""
        return sorted({*self.changes, *self.refused, *self.withheld})

    @property
    def left_out(self) -> tuple[str, ...]:
        """A line for each path that can never be promoted, and for each uppermost path that is withheld."""
        return (*map(self.refusal, self.refused), *self.withheld_lines)

    def refusal(self, path: str) -> str:
        """A line for one of ``refused``."""
        return f"{path!r}: {self.refused[path]}"

    @cached_property
    def withheld_tops(self) -> Mapping[str, list[int]]:
        """The uppermost paths below which there is nothing but withheld files, with the sizes of these; a directory ends in ``/``."""
        mixed = {parent for path in (*self.changes, *self.refused, *self.ignored, *self.given) for parent in parents(path)}
        tops: dict[str, list[int]] = {}
        for path, size in self.withheld.items():
            top = next((f"{parent}/" for parent in parents(path) if parent not in mixed and parent not in self.seed.directories), path)
            tops.setdefault(top, []).append(size)
        return tops

    @property
    def withheld_lines(self) -> tuple[str, ...]:
        """A line for each of ``withheld_tops``, with the reason."""
        return tuple(f"{sized(top, len(sizes), sum(sizes))}: {self.why_withheld(top)}" for top, sizes in self.withheld_tops.items())

    def why_withheld(self, top: str) -> str:
        """Why one of ``withheld_tops`` is kept out of a promotion of everything, as a clause."""
        included = any(self.provided.includes(path) for path in self.withheld if path == top or (top[-1] == "/" and path.startswith(top)))
        return "it was included from durable's checkout" if included else "only the workspace's own ignore rules ignore it"

    @property
    def files(self) -> Changes:
        """Every path of the work tree that differs from the baseline: the changes, and what was given."""
        return {**self.changes, **self.given} if self.given else self.changes

    def with_given(self, paths: Collection[str]) -> Snapshot:
        """The snapshot in which some of the changes are files that were given."""
        if not paths:
            return self
        changes = {path: entry for path, entry in self.changes.items() if path not in paths}
        needed = {entry.id for entry in changes.values() if entry is not None}
        blobs = {id_: data for id_, data in self.blobs.items() if id_ in needed}
        return replace(self, changes=changes, blobs=blobs, given={path: self.changes[path] for path in paths})

    def since(self, seed: Seed) -> Snapshot:
        """The same files as their difference from another baseline of the session."""
        if seed.commit == self.seed.commit:
            return self
        between = {path: new for path, (_, new) in seed.differences(self.seed).items() if path not in self.given}
        changes = {path: entry for path, entry in {**between, **self.changes}.items() if entry != seed.entries.get(path)}
        new = {entry.id for entry in changes.values() if entry is not None and entry.mode != SUBMODULE}
        blobs = {id_: self.blobs[id_] if id_ in self.blobs else self.seed.blob(id_) for id_ in new}
        return replace(self, seed=seed, changes=dict(sorted(changes.items())), blobs=blobs)

    @cached_property
    def _written(self) -> tuple[str, dict[str, bytes]]:
        return write_trees(self.seed.trees.read, self.seed.root, self.changes, self.seed.format.hash_object)

    @property
    def tree(self) -> str:
        """Id of the tree object of the whole workspace."""
        return self._written[0]

    @property
    def objects(self) -> dict[str, tuple[str, bytes]]:
        """Every object of the tree that the baseline may lack: kind and data by id."""
        objects = {id_: ("tree", data) for id_, data in self._written[1].items()}
        objects.update((id_, ("blob", data)) for id_, data in self.blobs.items())
        return objects


def take_snapshot(
    path: str,
    seed: Seed,
    created: CreationState,
    git: WorkspaceGit,
    *,
    provided: Provided = NOTHING,
    limits: Limits | None = None,
    named: Collection[str] = (),
    deleted: Collection[str] = (),
    on_step: Callable[[], object] = lambda: None,
) -> Snapshot:
    """Take a complete snapshot of a workspace.

    Args:
        path: the workspace.
        seed: its baseline.
        created: what was noted when it was made.
        git: what its git says.
        provided: what was put into it at its start.
        limits: the size that the snapshot may have.
        named: paths that were written through the session or selected, which are included whatever ignore rules say.
        deleted: paths deleted through the session, for a workspace where a missing file alone is no deletion (``lazy``).
        on_step: called for each directory and each file that is looked into; may raise to end the snapshot.

    Raises:
        AdapterUnavailable: the workspace is gone, cannot be read, or keeps changing.
        WriteRejected: it is over a limit.
    """
    for _ in range(_TRIES):
        try:
            root = os.open(path, DIRECTORY_FLAGS)
        except OSError as error:
            raise (workspace_gone(path, error.strerror) if error.errno in REPLACED else _unreadable(path, error)) from error
        walk = Walk(seed, created, limits or Limits(), named, deleted, git, provided, on_step)
        try:
            walk.run(root)
        except (ChangedDuringWalk, FileNotFoundError):
            points.reached("snapshot:moved")
            continue
        except GittrixError:
            raise  # some of these are OSErrors too
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            os.close(root)
        changes = dict(sorted(walk.changes.items()))
        refused, large = dict(sorted(walk.refused.items())), dict(sorted(walk.large.items()))
        return Snapshot(
            seed,
            changes,
            walk.blobs,
            refused,
            walk.latest,
            large,
            tuple(sorted(walk.nested)),
            withheld=dict(sorted(walk.withheld.items())),
            ignored=tuple(sorted(walk.ignored)),
            provided=provided,
        )
    raise AdapterUnavailable(
        f"The workspace {path} did not stand still while it was read, {_TRIES} times.",
        why="A snapshot of moving files would promote a state that never was.",
        fix="Let the agent's programs end, then try again.",
    )


def _unreadable(path: str, error: OSError) -> AdapterUnavailable:
    return AdapterUnavailable(
        f"{error.filename or path!r} in the workspace {path} cannot be read: {error.strerror}.",
        why="A snapshot without it would pass it over, or promote its deletion.",
        fix="Make it readable, or remove it, then try again.",
    )


def workspace_gone(path: str, reason: str | None) -> AdapterUnavailable:
    """The error for a workspace whose directory is gone."""
    return AdapterUnavailable(
        f"The workspace {path} is gone ({reason}).",
        why="A vanished workspace is not a deletion of every file, so nothing is promoted from it.",
        fix="Restore the directory, or discard the session.",
    )


def latest_change(path: str, on_step: Callable[[], object] = lambda: None) -> int:
    """The newest kernel change time of anything in a workspace, its git directory included, in nanoseconds; 0 if the workspace is gone.

    Links are not followed, and files that vanish during the walk are skipped. ``Clock.instant_of`` converts the result.

    Args:
        path: the workspace.
        on_step: called for each directory; may raise to end the walk.
    """
    latest = 0
    # Only times are read, so a directory that is replaced by a link during the walk can at worst make the session look busier.
    for parent, directories, names in os.walk(path):
        on_step()
        for name in (*directories, *names, "."):
            try:
                latest = max(latest, os.lstat(os.path.join(parent, name)).st_ctime_ns)
            except OSError:
                continue
    return latest
