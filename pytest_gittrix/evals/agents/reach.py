"""What an agent may reach beyond its workspace: a network, and directories that it may read. Both are inputs of its results."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pytest_gittrix.confine.network import MODELS, ModelEndpoint, Network, Reachable, check_network
from pytest_gittrix.errors import InvalidInput
from pytest_gittrix.evals.inputs.identity import Json, digest_of
from pytest_gittrix.evals.inputs.suite import is_left_out

_LOOPBACK: Final = ("localhost", "127.0.0.1")


def network_of(given: object) -> list[str]:
    """A network for the manifest: the entries of a list, with the server of a model that is not its usual one.

    The port of a server of this machine is left out, for it is another one each time.

    Args:
        given: as for ``check_network``.

    Raises:
        InvalidInput: it is no network.
    """
    network = check_network(given)
    if not isinstance(network, Reachable):
        return [] if network == "none" else [network]
    return sorted([*map(_model, network.models), *network.addresses])


def _model(model: ModelEndpoint) -> str:
    parts = urlsplit(model.url)
    known = MODELS.get(model.name)
    if known is not None and known.url == model.url:
        return f"model:{model.name}"
    place = model.url if parts.hostname not in _LOOPBACK else f"{parts.scheme}://{parts.hostname}{parts.path}"
    return f"model:{model.name} at {place}"


def check_readable(paths: Iterable[str | os.PathLike[str]], hidden: Sequence[tuple[str, Path]]) -> tuple[Path, ...]:
    """The files and directories that an agent may read, by their whole paths.

    Args:
        paths: what it may read.
        hidden: what no agent may see, by what it is: the suite, which has the solutions, and the run.

    Raises:
        InvalidInput: one is not there, or holds something that is hidden, or is in it.
    """
    found = tuple(Path(os.path.abspath(os.path.expanduser(path))) for path in paths)
    for path in found:
        if not path.exists():
            raise InvalidInput(
                f"There is nothing to read at {path}.", why="The agent would not find it.", fix="Give an existing directory."
            )
        for what, place in hidden:
            ours, theirs = os.path.realpath(path), os.path.realpath(place)
            if f"{theirs}/".startswith(f"{ours}/") or f"{ours}/".startswith(f"{theirs}/"):
                raise InvalidInput(
                    f"{path} and the {what} {place} are in one another, so the agent may not read it.",
                    why="It would find solutions there, or the results of other samples.",
                    fix="Give a directory apart from both, or move what the agent needs.",
                )
    return tuple(dict.fromkeys(found))


def reach_setting(network: object, readable: Iterable[Path]) -> dict[str, Json]:
    """What an agent reaches for the core of a manifest; what is empty is left out.

    Raises:
        InvalidInput: it is no network, or a file cannot be read.
    """
    found: dict[str, Json] = {"network": network_of(network or "none"), "readable": digests_of(readable)}
    return {name: value for name, value in found.items() if value}


def with_more(network: Network, endpoint: ModelEndpoint) -> object:
    """A network whose models are reached by one endpoint, which asks them."""
    return [endpoint, *network.addresses] if isinstance(network, Reachable) else [endpoint]


def digests_of(paths: Iterable[Path]) -> dict[str, Json]:
    """The digests of what an agent may read, by the names of the directories, so that they are the same in another place.

    Raises:
        InvalidInput: a file cannot be read.
    """
    found: dict[str, Json] = {}
    for path in paths:
        name = path.name if path.name not in found else str(path)
        found[name] = digest_of(_tree(path))
    return found


def _tree(root: Path) -> list[list[str]]:
    if root.is_file():
        return [["file", "", _content(root)]]
    found = []
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not is_left_out(name))
        for name in sorted([*files, *(one for one in names if os.path.islink(os.path.join(directory, one)))]):
            path = Path(directory, name)
            if path.is_symlink():
                found.append(["link", os.path.relpath(path, root), os.fsencode(os.readlink(path)).hex()])
            elif path.is_file() and not is_left_out(name):
                found.append(["file", os.fsencode(os.path.relpath(path, root)).hex(), _content(path)])
    return found


def _content(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            executable = "x" if os.fstat(stream.fileno()).st_mode & 0o100 else "-"
            return f"{executable}{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    except OSError as problem:
        raise InvalidInput(
            f"{path} cannot be read: {problem.strerror}.",
            why="What an agent may read counts by its content.",
            fix="Let this user read it, or give another directory.",
        ) from None
