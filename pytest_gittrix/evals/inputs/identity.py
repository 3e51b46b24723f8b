"""What makes two samples the same one: canonical JSON, digests, keys, and the seeds that everything random is drawn from.

Pure functions. The rules are those of the eval research, section 6: no floats, no sets, sorted keys; an id is told and never made up.
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
    """JSON that is the same bytes for the same value, on one line of ASCII.

    Args:
        value: see ``Json``; tuples are lists.

    Raises:
        InvalidInput: it holds a float, a set, a key that is no text, or what JSON has no word for.
    """
    _require_plain(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def digest_of(value: Json) -> str:
    """``sha256:`` and the digest of the canonical JSON of a value. Raises InvalidInput as ``canonical``."""
    return digest_bytes(canonical(value))


def digest_bytes(data: bytes) -> str:
    """``sha256:`` and the digest of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_id(id_: str, where: str) -> str:
    """Let an id pass that can be a file's name and a part of a reference's.

    Args:
        id_: of a case.
        where: what names it, for the message.

    Raises:
        InvalidInput: it cannot.
    """
    if isinstance(id_, str) and _ID.fullmatch(id_) and ".." not in id_ and not id_.endswith((".lock", ".")):
        return id_
    raise InvalidInput(
        f"{where}: {id_!r} is no id of a case.",
        why="Ids name files and git references, on every system.",
        fix="Use letters, digits, dot, dash and underscore; a letter or digit first, no two dots in a row, no .lock at the end.",
    )


def sample_key(setting: Mapping[str, Json], case_digest: str, id_: str, epoch: int) -> str:
    """The key of a sample: equal keys have equal inputs, so a record under the key stands for the sample.

    Args:
        setting: what the whole run has in common and results depend on; see ``manifest``.
        case_digest: of everything that belongs to the case.
        id_: of the case.
        epoch: which of the repetitions, from 0.
    """
    return digest_of([setting, case_digest, id_, epoch]).removeprefix("sha256:")[:KEY_SIZE]


def sample_seed(run_seed: int, id_: str, epoch: int) -> str:
    """The seed of a sample, 64 hex digits: it depends on nothing but the run's seed, the case's id and the epoch."""
    return hashlib.sha256(f"{run_seed}:{id_}:{epoch}".encode()).hexdigest()


def session_id(seed: str) -> str:
    """The session's id for the seed of a sample."""
    drawn = hashlib.sha256(f"session:{seed}".encode()).digest()
    return "sess_" + "".join(_LETTERS[byte % len(_LETTERS)] for byte in drawn[:12])


def result_digest(rows: Iterable[tuple[str, str, str, str, str]]) -> str:
    """One digest for all results of a run, whatever order they came in.

    Args:
        rows: key, outcome, promoted commit, its tree, and digest of the event log, of each sample; nothing is the empty text.
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
