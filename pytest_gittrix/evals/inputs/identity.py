"""The identity of samples: canonical JSON, digests, keys, and the seeds that everything random is drawn from.

Pure functions. Canonical values have no floats and no sets, and their keys are sorted. Ids come from the suite and are never made up.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pytest_gittrix.errors import InvalidInput

Json = Any
"""None, a truth value, a whole number, a text, a list of these, or a mapping from texts to these."""

KEY_SIZE: Final = 32
"""Hex digits of a sample's key."""

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LETTERS: Final = string.ascii_letters + string.digits


def canonical(value: Json) -> bytes:
    """Write a value as JSON on one line of ASCII; equal values give equal bytes.

    Args:
        value: see ``Json``; tuples are written as lists.

    Raises:
        InvalidInput: it holds a float, a set, a key that is no text, or a value that JSON cannot hold.
    """
    _require_plain(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def digest_of(value: Json) -> str:
    """``sha256:`` and the digest of a value's canonical JSON. Raises InvalidInput as ``canonical`` does."""
    return digest_bytes(canonical(value))


def digest_bytes(data: bytes) -> str:
    """``sha256:`` and the digest of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def suite_name(directory: str) -> str:
    """The name of a suite that is made in a directory of that name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", directory).strip(".-") or "suite"


def check_id(id_: str, where: str = "") -> str:
    """Check that an id of a case can be the name of a file and a part of a git reference; return it.

    Args:
        id_: the id.
        where: where it was found, for the message.

    Raises:
        InvalidInput: it cannot be such a name.
    """
    if isinstance(id_, str) and _ID.fullmatch(id_) and ".." not in id_ and not id_.endswith((".lock", ".")):
        return id_
    raise InvalidInput(
        f"{where}{id_!r} is not a valid case id.",
        why="Ids name files and git references, on every system.",
        fix="Use letters, digits, dot, dash and underscore; a letter or digit first, no two dots in a row, no .lock at the end.",
    )


def sample_key(setting: Mapping[str, Json], case_digest: str, id_: str, epoch: int) -> str:
    """The key of a sample. Samples with equal keys have equal inputs, so the record of one is valid for the other.

    Args:
        setting: the settings of the run that results depend on; see ``manifest.core_of``.
        case_digest: the digest of everything that belongs to the case.
        id_: the id of the case.
        epoch: the number of the repetition, from 0.
    """
    return digest_of([setting, case_digest, id_, epoch]).removeprefix("sha256:")[:KEY_SIZE]


def sample_random_seed(run_random_seed: int, id_: str, epoch: int) -> str:
    """The seed of a sample, 64 hex digits. It depends on the run's seed, the case's id and the epoch, and on nothing else."""
    return hashlib.sha256(f"{run_random_seed}:{id_}:{epoch}".encode()).hexdigest()


def session_id(random_seed: str) -> str:
    """The id of the session for the seed of a sample."""
    drawn = hashlib.sha256(f"session:{random_seed}".encode()).digest()
    return "sess_" + "".join(_LETTERS[byte % len(_LETTERS)] for byte in drawn[:12])


def result_digest(rows: Iterable[tuple[str, str, str, str, str]]) -> str:
    """One digest of all results of a run, the same for any order of the rows.

    Args:
        rows: for each sample its key, outcome, promoted commit, the tree of that commit, and the digest of its event log; what is
            missing is the empty text.
    """
    return digest_of(sorted(list(row) for row in rows))


def _require_plain(value: Json) -> None:
    match value:
        case None | bool() | int() | str():
            return
        case list() | tuple():
            for item in value:
                _require_plain(item)
        case Mapping() if all(isinstance(name, str) for name in value):
            for item in value.values():
                _require_plain(item)
        case _:
            raise InvalidInput(
                f"{value!r:.80} is {type(value).__name__}, which has no canonical form.",
                why="Floats and sets are written differently by different programs, and a digest of them says nothing.",
                fix="Give whole numbers (of milliseconds, for instance), texts, sorted lists and mappings with texts as keys.",
            )
