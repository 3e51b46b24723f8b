"""Finds credentials in what is about to leave a workspace: by the names of files, and by what has the shape of a secret.

``credentials.shapes`` says what that is: hardly ever anything else. A word such as "password" in a line proves nothing, so ordinary code is
not held up. Only what was added is looked at: what a remote has already cannot be kept from it. ``credentials.wrappings`` opens what the
bytes are wrapped in.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final, NamedTuple

from pytest_gittrix.workspaces.credentials.shapes import PREFIXED, fixed_matches, is_credential_file, matches
from pytest_gittrix.workspaces.credentials.wrappings import as_text, base64_words, unpacked

__all__ = ["Candidate", "Secret", "Suspect", "find_secrets", "is_credential_file", "masked", "suspect", "suspects_among", "without_secrets"]

_FINGERPRINT: Final = 16
_IS_FINGERPRINT: Final = re.compile(rf"[0-9a-f]{{{_FINGERPRINT}}}")
_NAMED: Final = "holds credentials by its name"
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY")
_PRIVATE_KEY_END: Final = re.compile(rb"-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----")
_REST_OF_WORD: Final = re.compile(rb"[^\s\"'`<>(){}\[\],;\\]*")


@dataclass(frozen=True, slots=True)
class Secret:
    """A line that has the shape of a secret, or a place in bytes that are no text. The secret itself is not in here, so that this can be
    logged.

    Attributes:
        line: its number in the text, from 1; 0 in what is no text.
        rule: what it is.
        within: the file of an archive that it is in, or what else is not the file itself; empty in the file's own text.
    """

    line: int
    rule: str
    within: str = ""

    def __str__(self) -> str:
        places = [self.within, f"line {self.line}" if self.line else ""]
        return f"{', '.join(filter(None, places))}: {self.rule}"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A file that seems to hold credentials, without them.

    Attributes:
        path: the file.
        found: what was found in it, each as text; the lines in order.
        fingerprint: 16 hexadecimal digits, of the path and of what was found. They change with either.
    """

    path: str
    found: tuple[str, ...]
    fingerprint: str

    @property
    def has_telling_path(self) -> bool:
        """Whether the path can stand for the file: an agent may give a file the name of another one's fingerprint."""
        return _IS_FINGERPRINT.fullmatch(self.path) is None

    def is_among(self, allowed: Collection[str]) -> bool:
        """Whether a person let the file through, by its fingerprint or by its path."""
        return self.fingerprint in allowed or (self.has_telling_path and self.path in allowed)


def suspect(path: str, new: bytes, old: Iterable[bytes] = (), *, by_name: bool = True) -> Suspect | None:
    """Why a file seems to hold credentials; None if it does not.

    Args:
        path: the file, ``/``-separated.
        new: its bytes.
        old: what it was made from, as in ``find_secrets``.
        by_name: whether its name alone is a reason, and what the name has the shape of.
    """
    named = by_name and is_credential_file(path)
    in_path = by_name and next(matches(os.fsencode(path)), None)
    secrets = [*([Secret(0, in_path[2], "its path")] if in_path else []), *find_secrets(new, old)]
    if not named and not secrets:
        return None
    lines = [one.line for one in secrets if not one.within]
    evidence = [new]
    if not named and len(lines) == len(secrets) and (text := as_text(new)) is not None:
        every = text.split(b"\n")
        evidence = [every[line - 1] for line in lines]
    digest = hashlib.sha256(b"\n".join([os.fsencode(path), *evidence])).hexdigest()
    return Suspect(path, (_NAMED,) * named + tuple(map(str, secrets)), digest[:_FINGERPRINT])


class Candidate(NamedTuple):
    """A file that may hold credentials: what ``suspect`` is asked."""

    path: str
    new: bytes
    old: Sequence[bytes] = ()
    by_name: bool = True


def suspects_among(files: Iterable[Candidate]) -> list[Suspect]:
    """The files that seem to hold credentials. Mostly none does, and one look at what all of them gained shows that."""
    candidates = [*files]
    suspicious, plain, gained = set(), [], []
    for number, one in enumerate(candidates):
        text = as_text(one.new)
        if text is None or (one.by_name and is_credential_file(one.path)):
            suspicious.add(number)
        else:
            plain.append(number)
            gained.append(_without(text, _lines_of(one.old)))
    suspicious |= {plain[index] for index in _hits(gained)}
    named = [number for number, one in enumerate(candidates) if one.by_name]
    suspicious |= {named[index] for index in _hits([os.fsencode(candidates[number].path) for number in named])}
    found = (suspect(one.path, one.new, one.old, by_name=one.by_name) for one in (candidates[number] for number in sorted(suspicious)))
    return [one for one in found if one is not None]


def _hits(texts: Sequence[bytes]) -> set[int]:
    """Which of some texts may have a secret in them, by one look at all."""
    starts = [0, *accumulate(len(text) + 1 for text in texts)]
    return {bisect_right(starts, at) - 1 for at, _, _ in _all_matches(b"\n".join(texts))}


def find_secrets(new: bytes, old: Iterable[bytes] = ()) -> list[Secret]:
    """The secrets that a file gained, one a line; and those in bytes that are no text.

    Args:
        new: the file.
        old: what it was made from: a line that one of these has was not gained.
    """
    text = as_text(new)
    if text is None:
        return _in_bytes(new, old)
    known = _lines_of(old)
    gained = _without(text, known)
    found: dict[int, Secret] = {}
    numbers: list[int] = []
    ends: list[int] = []
    for at, _, rule in _all_matches(gained):
        if not numbers:
            numbers = [number for number, line in enumerate(text.split(b"\n"), 1) if line not in known]
            ends = [end.start() for end in re.finditer(b"\n", gained)]
        number = numbers[bisect_left(ends, at)]
        found.setdefault(number, Secret(number, rule))
    return [found[number] for number in sorted(found)]


def masked(text: str) -> str:
    """A name for people to read, with an ellipsis for each secret in it."""
    return os.fsdecode(_replaced(os.fsencode(text), lambda _: b"\xe2\x80\xa6"))


def _all_matches(text: bytes) -> Iterator[tuple[int, int, str]]:
    """As ``shapes.matches``, and those in words in base64, each as its whole word."""
    yield from matches(text)
    words = [*base64_words(text)]
    starts = [0, *accumulate(len(content) + 1 for _, _, content in words)]
    for at, _, rule in matches(b"\n".join(content for _, _, content in words)):
        start, end, _ = words[bisect_right(starts, at) - 1]
        yield start, end, f"{rule}, in base64"


def _in_bytes(new: bytes, old: Iterable[bytes]) -> list[Secret]:
    """The secrets in a file that is no text, one a place; what one of the files that it was made from has in it was not gained."""
    found = [*_values(new)]
    known = {value for one in old for value, _ in _values(one)} if found else set()
    return [*{(one.within, one.line): one for value, one in reversed(found) if value not in known}.values()][::-1]


def _values(data: bytes) -> Iterator[tuple[bytes, Secret]]:
    """What has the shape of a secret in bytes that are no text, and where: in the files that are packed in them, and in themselves."""
    for name, packed in unpacked(data):
        within = repr(masked(name)) if name else "unpacked"
        if name and is_credential_file(name):
            yield packed, Secret(0, _NAMED, within)
        text = as_text(packed)
        for start, end, rule in fixed_matches(packed) if text is None else _all_matches(text):
            if rule == PREFIXED:
                continue  # each wheel has a list of its files' digests
            line = 0 if text is None else text.count(b"\n", 0, start) + 1
            yield (packed if text is None else text)[start:end], Secret(line, rule, within)
    for start, end, rule in fixed_matches(data):
        yield data[start:end], Secret(0, rule, "among its bytes")


def _lines_of(files: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(chain.from_iterable((as_text(one) or b"").split(b"\n") for one in files))


def _without(data: bytes, known: Collection[bytes]) -> bytes:
    """The lines of a file that are not known."""
    return b"\n".join([line for line in data.split(b"\n") if line not in known]) if known else data


def without_secrets(text: str, stand_in: Callable[[str], str]) -> str:
    """The text with something else for each secret, up to the end of its word; a private key is replaced as a whole.

    Args:
        text: any text.
        stand_in: gives the text that replaces a secret.
    """
    raw = text.encode("utf-8", "surrogatepass")
    shown = _replaced(raw, lambda secret: stand_in(secret.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass"))
    return shown.decode("utf-8", "surrogatepass")


def _replaced(raw: bytes, stand_in: Callable[[bytes], bytes]) -> bytes:
    shown, at = [], 0
    for start, end in sorted((start, _end_of_secret(raw, start, end)) for start, end, _ in matches(raw)):
        if start >= at:
            shown += [raw[at:start], stand_in(raw[start:end])]
            at = end
    return b"".join([*shown, raw[at:]])


def _end_of_secret(text: bytes, start: int, end: int) -> int:
    closing = _PRIVATE_KEY_END.search(text, end) if _PRIVATE_KEY.match(text, start) else None
    rest = _REST_OF_WORD.match(text, end)
    return closing.end() if closing is not None else rest.end() if rest is not None else end
