"""Write objects as one pack, and install the pack in a repository; a blob that is too large to hold is stored on its own.

A pack with a ``.keep`` file survives a concurrent ``git gc --prune=now``, and needs a constant number of syncs, while each loose object
needs one. Objects are stored whole, without deltas, since a promotion adds little data.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

from pytest_gittrix.errors import AdapterUnavailable
from pytest_gittrix.git.objects import ObjectFormat, object_header
from pytest_gittrix.os_level.files import Permit, make_directories, remove_left, sync_directory, write_file

_TYPES: Final = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
_PACK_HEADER: Final = struct.Struct(">4sII")
_FANOUT_END: Final = 8 + 4 * 256
_MAGIC: Final = b"\xfftOc" + struct.pack(">I", 2)
_DIFFERENCES: Final = (6, 7)
"""The types of objects that are stored as differences."""
_PIECE: Final = 1 << 20
_LARGE: Final = 0x80000000
_LEVEL: Final = 1
_LEAST_WINDOW: Final = 9
"""The binary logarithm of zlib's smallest window."""
_HASHED_LESS: Final = 7
"""By how much zlib's memory level is below the logarithm of its window by default: 8 and 15."""
_RETRIES: Final = 10
_KNOWN: Final[OrderedDict[tuple[int, int, int, int], None]] = OrderedDict()
"""The packs of whole objects that were written or looked through last, by what the system says of them: to hash one is half of a copy."""
_MOST_KNOWN: Final = 256


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack and its index, in memory.

    Attributes:
        name: the pack's checksum in hex, as in ``pack-<name>.pack``.
        data: the pack file.
        index: the index file (version 2).
    """

    name: str
    data: bytes
    index: bytes


def _header(kind: int, size: int) -> bytes:
    first = (kind << 4) | (size & 0x0F)
    size >>= 4
    header = bytearray()
    while size:
        header.append(first | 0x80)
        first = size & 0x7F
        size >>= 7
    header.append(first)
    return bytes(header)


def _packed(kind: str, data: bytes, level: int = _LEVEL) -> bytes:
    if kind == "tree":  # mostly ids, which nothing makes smaller: a third of its size is not worth what the look for it takes
        level = 0
    return _header(_TYPES[kind], len(data)) + _deflate(data, level)


def _deflate(data: bytes, level: int) -> bytes:
    """Compress data through a window that is no larger than it needs: to clear one of the usual 32 kB costs more than most objects do."""
    window = min(max(len(data).bit_length() + 1, _LEAST_WINDOW), zlib.MAX_WBITS)
    compressor = zlib.compressobj(level, zlib.DEFLATED, window, min(window - _HASHED_LESS, zlib.DEF_MEM_LEVEL))
    return compressor.compress(data) + compressor.flush()


def build_pack(objects: Mapping[str, tuple[str, bytes]], format_: ObjectFormat, *, level: int = _LEVEL) -> Pack:
    """Build a pack of objects (kind and data by hex id), in the order of their ids, so that the same objects give the same bytes."""
    return join_packed({id_: _packed(kind, data, level) for id_, (kind, data) in objects.items()}, format_)


def join_packed(packed: Mapping[str, bytes], format_: ObjectFormat) -> Pack:
    """Build a pack of objects that are packed already, as ``packed_objects`` gives them."""
    ids = sorted(packed)
    parts = [_PACK_HEADER.pack(b"PACK", 2, len(ids)), *(packed[id_] for id_ in ids)]
    *offsets, _ = accumulate(map(len, parts))
    body = b"".join(parts)
    checksum = format_.digest(body)
    checksums = [zlib.crc32(part) for part in parts[1:]]
    return Pack(checksum.hex(), body + checksum, _index([bytes.fromhex(id_) for id_ in ids], offsets, checksums, checksum, format_))


def packed_objects(data: bytes, index: bytes, format_: ObjectFormat) -> dict[str, bytes] | None:
    """Read the objects of a pack that ``build_pack`` made, by id, as they are stored there.

    Args:
        data: the pack file, which can hold anything.
        index: its index file, of the same kind.
        format_: the object format.

    Returns:
        None if another program made the pack, which shows in differences and in the order of the objects, or if it is damaged.
    """
    size = format_.size
    try:
        ids = ids_in_index(index, format_)
    except ValueError:
        return None
    if index[-2 * size : -size] != data[-size:] or not _ends_in_its_hash(data, format_):
        return None
    offsets = [*_read_index(index, format_)[2], len(data) - size]
    if offsets[0] != _PACK_HEADER.size or any(before >= after for before, after in pairwise(offsets)):
        return None
    if any(data[offset] >> 4 & 7 in _DIFFERENCES for offset in offsets[:-1]):
        return None
    return {id_: data[start:end] for id_, (start, end) in zip(ids, pairwise(offsets), strict=True)}


def _index(ids: Sequence[bytes], offsets: Sequence[int], checksums: Sequence[int], pack_checksum: bytes, format_: ObjectFormat) -> bytes:
    # For each value of the first byte, the number of ids whose first byte is not greater.
    begins = [0] * 256
    for id_ in ids:
        begins[id_[0]] += 1
    fanout = accumulate(begins)
    large = [offset for offset in offsets if offset >= _LARGE]
    positions = {offset: _LARGE | number for number, offset in enumerate(large)}
    small = [positions.get(offset, offset) for offset in offsets] if large else offsets
    body = b"".join(
        [
            _MAGIC,
            struct.pack(">256I", *fanout),
            *ids,
            struct.pack(f">{len(ids)}I", *checksums),
            struct.pack(f">{len(ids)}I", *small),
            struct.pack(f">{len(large)}Q", *large),
            pack_checksum,
        ]
    )
    return body + format_.digest(body)


def install_pack(
    objects_dir: str,
    pack: Pack,
    *,
    keep: str | None = None,
    promised: bool = False,
    sync: bool = False,
    mode: int = 0o400,
    permit: Permit | None = None,
) -> None:
    """Install a pack in an object directory. Git sees the pack once its index exists, and then it is complete.

    Args:
        objects_dir: the ``objects`` directory.
        pack: the pack, from ``build_pack``.
        keep: text of a ``.keep`` file, which stops gc from deleting the pack before a reference leads to it; None for no such file.
        promised: whether another repository has promised the objects that those of the pack name, so that they need not be here.
        sync: write through to the disk before returning.
        mode: permission bits of its files; by default only their owner reads them.
        permit: the repository's rule for modes, if it has one.

    Raises:
        OSError: the disk refused; git sees nothing of the pack.
    """
    directory = os.path.join(objects_dir, "pack")
    stem = os.path.join(directory, f"pack-{pack.name}")
    make_directories(directory, permit)
    if keep is not None:
        # Not synced: after a power cut its name alone counts, which the directory's sync covers.
        _write(stem + ".keep", keep.encode() + b"\n", f"tmp_keep_{_mark(pack.name)}", False, mode, permit)
    if promised:
        _write(stem + ".promisor", b"", f"tmp_promisor_{_mark(pack.name)}", sync, mode, permit)
    if not os.path.exists(stem + ".idx"):
        _write(stem + ".pack", pack.data, f"tmp_pack_{_mark(pack.name)}", sync, mode, permit)
        _write(stem + ".idx", pack.index, f"tmp_idx_{_mark(pack.name)}", sync, mode, permit)
    if sync:  # also for one that was there: its writer may have been killed before this
        sync_directory(directory)


def change_pack(
    source: str,
    directory: str,
    gone: Collection[str],
    added: Iterable[str],
    read: Callable[[str], tuple[str, bytes]],
    format_: ObjectFormat,
) -> bool:
    """Write what a pack becomes when some of its objects go and others come; those that stay are copied as they are.

    The cost is that of copying and hashing the pack.

    Args:
        source: the path of the pack, which ends in ``.pack``, with its index next to it.
        directory: where the new pack and its index are written; no other process writes there.
        gone: the ids of the objects that go.
        added: the ids of those that come; one that the pack has already stays.
        read: gives the kind and the data of one that comes.
        format_: the object format.

    Returns:
        False, with nothing written, if the pack lacks an object that is to go, is damaged or too large, or has objects that are stored as
        differences from others.

    Raises:
        MissingObject: one that comes cannot be read.
        OSError: the disk refused, or the pack is gone.
    """
    index = Path(source.removesuffix(".pack") + ".idx").read_bytes()
    with open(source, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        if len(data) >= _LARGE or not _ends_in_its_hash(index, format_):
            return False
        ids, checksums, offsets = _read_index(index, format_)
        if not _is_known(source):
            if not _ends_in_its_hash(data, format_) or any(data[offset] >> 4 & 7 in _DIFFERENCES for offset in offsets):
                return False
            _know(source)
        leaving = set(map(bytes.fromhex, gone))
        coming = sorted(set(map(bytes.fromhex, added)).difference(ids))
        if not leaving.issubset(ids):
            return False
        starts = sorted(offsets)
        end = len(data) - format_.size
        cut = sorted(offset for id_, offset in zip(ids, offsets, strict=True) if id_ in leaving)
        holes = [(offset, starts[after] if (after := bisect_right(starts, offset)) < len(starts) else end) for offset in cut]
        lost = [0, *accumulate(after - before for before, after in holes)]
        entries = [
            (id_, offset - lost[bisect_right(cut, offset)], checksum)
            for id_, offset, checksum in zip(ids, offsets, checksums, strict=True)
            if id_ not in leaving
        ]
        new = [_packed(*read(id_.hex())) for id_ in coming]
        *places, _ = accumulate(map(len, new), initial=end - lost[-1])
        entries += zip(coming, places, map(zlib.crc32, new), strict=True)
        entries.sort()
        names, at, sums = zip(*entries, strict=True) if entries else ((), (), ())
        stem = os.path.join(directory, f"pack-{format_.digest(b''.join(names)).hex()}")
        hasher = hashlib.new(format_.name, usedforsecurity=False)
        kept = zip([_PACK_HEADER.size, *(after for _, after in holes)], [*cut, end], strict=True)
        write_file(stem + ".pack", _hashed_pieces(hasher, len(entries), data, kept, new), mode=0o400)
        _know(stem + ".pack")
    write_file(stem + ".idx", _index(names, at, sums, hasher.digest(), format_), mode=0o400)
    return True


def _identity(path: str) -> tuple[int, int, int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_known(pack: str) -> bool:
    """Whether this process has written a pack of whole objects, or looked through it, and no process has written to it since."""
    return _identity(pack) in _KNOWN


def _know(pack: str) -> None:
    _KNOWN[_identity(pack)] = None
    while len(_KNOWN) > _MOST_KNOWN:
        _KNOWN.popitem(last=False)


def _ends_in_its_hash(data: bytes | mmap, format_: ObjectFormat) -> bool:
    """Whether a pack or its index is as it was written."""
    hasher = hashlib.new(format_.name, usedforsecurity=False)
    end = max(len(data) - format_.size, 0)
    for at in range(0, end, _PIECE):
        hasher.update(data[at : min(at + _PIECE, end)])
    return hasher.digest() == data[end:]


def _hashed_pieces(hasher: hashlib._Hash, count: int, data: mmap, kept: Iterable[tuple[int, int]], new: Iterable[bytes]) -> Iterator[bytes]:
    """The file of a pack in pieces: its header, parts of another pack, new objects, and their hash, which the hasher has at the end."""
    copied = (data[at : min(at + _PIECE, end)] for start, end in kept for at in range(start, end, _PIECE))
    for piece in chain([_PACK_HEADER.pack(b"PACK", 2, count)], copied, new):
        hasher.update(piece)
        yield piece
    yield hasher.digest()


def ids_in_index(data: bytes, format_: ObjectFormat) -> list[str]:
    """The ids of the objects in a pack, from the pack's index.

    Args:
        data: the index file, which can hold anything.
        format_: the object format.

    Raises:
        ValueError: it is damaged, or not of version 2.
    """
    size, count = format_.size, int.from_bytes(data[_FANOUT_END - 4 : _FANOUT_END])
    if (
        not data.startswith(_MAGIC)
        or len(data) < _FANOUT_END + count * (size + 8) + 2 * size
        or data[-size:] != format_.digest(data[:-size])
    ):
        raise ValueError("the index of a pack is damaged, or not of version 2")
    return [data[at : at + size].hex() for at in range(_FANOUT_END, _FANOUT_END + count * size, size)]


def _read_index(data: bytes, format_: ObjectFormat) -> tuple[list[bytes], tuple[int, ...], list[int]]:
    """The ids, checksums and offsets of an index of version 2."""
    count = int.from_bytes(data[_FANOUT_END - 4 : _FANOUT_END])
    size, end = format_.size, _FANOUT_END + count * format_.size
    ids = [data[at : at + size] for at in range(_FANOUT_END, end, size)]
    checksums = struct.unpack_from(f">{count}I", data, end)
    offsets = struct.unpack_from(f">{count}I", data, end + 4 * count)
    large = end + 8 * count
    return (
        ids,
        checksums,
        [offset if offset < _LARGE else int.from_bytes(data[(at := large + 8 * (offset - _LARGE)) : at + 8]) for offset in offsets],
    )


def _mark(name: str) -> str:
    """What the names of a pack's temporary files have in them, to identify those of a killed writer."""
    return f"{name[:20]}-"


def _write(path: str, data: bytes, prefix: str, sync: bool, mode: int, permit: Permit | None) -> None:
    """Write one file of a pack. Retry if a concurrent ``git gc --prune=now`` deleted the temporary file before its rename."""
    for _ in range(_RETRIES):
        try:
            write_file(path, data, mode=mode, sync=sync, prefix=prefix, permit=permit)
        except FileNotFoundError:
            continue
        return
    write_file(path, data, mode=mode, sync=sync, prefix=prefix, permit=permit)


def store_object(objects_dir: str, size: int, pieces: Callable[[], Iterable[bytes]], format_: ObjectFormat, *, sync: bool = False) -> str:
    """Store a blob of any size as a loose object; its data is read twice and never held.

    Args:
        objects_dir: the ``objects`` directory.
        size: its size in bytes.
        pieces: gives its data from the beginning.
        format_: the repository's object format.
        sync: write through to the disk (the directory is the caller's to sync).

    Returns:
        Its id.

    Raises:
        AdapterUnavailable: the data changed meanwhile.
        OSError: the disk refused.
    """
    id_ = _hashed(format_, size, pieces())
    path = os.path.join(objects_dir, id_[:2], id_[2:])
    if not os.path.exists(path):
        make_directories(os.path.dirname(path))
        # A name of its own, so that a second try writes over what a killed one left.
        write_file(path, _deflated(format_, size, pieces(), id_), sync=sync, temporary=os.path.join(objects_dir, f"tmp_obj_{id_}"))
    return id_


def _hashed(format_: ObjectFormat, size: int, pieces: Iterable[bytes]) -> str:
    hasher, left = format_.hasher("blob", size), size
    for piece in pieces:
        hasher.update(piece)
        left -= len(piece)
    if left:
        raise _changed()
    return hasher.hexdigest()


def _deflated(format_: ObjectFormat, size: int, pieces: Iterable[bytes], id_: str) -> Iterator[bytes]:
    """The file of a loose object, in pieces. Raises AdapterUnavailable at the end if the data is not that of the id."""
    compressor, hasher = zlib.compressobj(_LEVEL), format_.hasher("blob", size)
    yield compressor.compress(object_header("blob", size))
    for piece in pieces:
        hasher.update(piece)
        yield compressor.compress(piece)
    yield compressor.flush()
    if hasher.hexdigest() != id_:
        raise _changed()


def _changed() -> AdapterUnavailable:
    return AdapterUnavailable(
        "A large file changed while it was read.",
        why="It is read piece by piece, and what was read would be no state that it ever had.",
        fix="Let the agent's programs end, then try again.",
    )


def release_pack(objects_dir: str, name: str, *, sync: bool = False, killed: bool = False) -> None:
    """Remove a pack's ``.keep`` file, once a reference leads to its objects or never will; gc may then delete the pack.

    An unfinished pack is removed too, since gc would not delete it.

    Args:
        objects_dir: the ``objects`` directory.
        name: the pack's name.
        sync: write the removal through to the disk.
        killed: whether its writer was killed, and may have left temporary files.
    """
    directory = os.path.join(objects_dir, "pack")
    stem = os.path.join(directory, f"pack-{name}")
    if killed:
        remove_left(directory, lambda found: found.startswith("tmp_") and _mark(name) in found)
    if not os.path.exists(stem + ".idx"):
        with suppress(FileNotFoundError):
            os.unlink(stem + ".pack")
    with suppress(FileNotFoundError):
        os.unlink(stem + ".keep")
    if sync and os.path.isdir(directory):
        sync_directory(directory)
