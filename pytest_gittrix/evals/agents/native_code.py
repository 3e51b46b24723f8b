"""Whether C code that an agent loads may read what is not seen, as the functions say that it needs of the C library.

Python's audit events say what Python opens. A C extension reads by Python alone, and so is seen, if it needs no function that opens, lists
or looks for files, reads variables, starts programs or reaches a network, and no library but those of the C language. Source: elf(5).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_NAMES: Final = """
open open64 openat openat64 openat2 open_2 open64_2 openat_2 openat64_2 fopen fopen64 freopen freopen64 creat creat64 opendir
fdopendir scandir scandir64 glob glob64 ftw ftw64 nftw nftw64 fts_open realpath canonicalize_file_name readlink readlinkat stat
stat64 lstat lstat64 statx fstatat fstatat64 xstat xstat64 lxstat lxstat64 fxstatat fxstatat64 access faccessat euidaccess eaccess
statvfs statvfs64 statfs statfs64 environ getenv secure_getenv system popen fork vfork clone clone3 posix_spawn posix_spawnp execl
execle execlp execv execve execvp execvpe fexecve syscall dlopen dlmopen dlsym dlvsym mq_open shm_open sem_open connect sendto
sendmsg sendmmsg getaddrinfo gethostbyname gethostbyname2 gethostbyname_r gethostbyname2_r gethostbyaddr gethostbyaddr_r
getnameinfo getservbyname getservbyport getpwnam getpwnam_r getpwuid getpwuid_r getgrnam getgrnam_r getgrgid getgrgid_r getpwent
getgrent getlogin getlogin_r cuserid wordexp iconv_open setlocale newlocale catopen gettext dgettext dcgettext bindtextdomain
tzset localtime localtime_r mktime
"""
"""Functions of the C library that read a file, a variable, a program's answer or a network, or find functions that do."""
_READING: Final = frozenset(_NAMES.split())
_OF_C: Final = re.compile(r"(libc|libm|libpthread|libgcc_s|ld-linux[\w-]*)\.so(\.\d+)?")
_ELF64: Final = b"\x7fELF\x02\x01"
_DYNAMIC, _DYNAMIC_SYMBOLS, _NEEDED = 6, 11, 1
_Section = tuple[int, int, int, int]
"""Its type, its place, its size, and the number of the section with its texts."""


@lru_cache(maxsize=1024)
def reads_by_itself(file: str) -> bool:
    """Whether a C extension may read anything otherwise than by Python; also if that cannot be known."""
    try:
        with open(file, "rb", buffering=0) as stream:
            data = stream.read()
        needed, functions = _needs(data)
    except (OSError, ValueError, IndexError, struct.error):
        return True
    return not all(map(is_of_c, needed)) or any(map(may_read, functions))


def is_of_c(library: object) -> bool:
    """Whether a library is Python itself or one of the C language: the names of its functions say what they do."""
    return library is None or (isinstance(library, str) and bool(_OF_C.fullmatch(os.path.basename(library))))


def may_read(function: object) -> bool:
    """Whether a function of the C library may read anything; also if its name is not known."""
    return not isinstance(function, str) or function.lstrip("_").removesuffix("_chk") in _READING


def _needs(data: bytes) -> tuple[list[str], list[str]]:
    """The libraries that a file of shared code needs, and the names that it takes from them. Raises ValueError if there are none."""
    if not data.startswith(_ELF64):
        raise ValueError
    place, size, count = *struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HH", data, 0x3A)
    sections: list[_Section] = []
    for number in range(count):
        _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", data, place + number * size)
        sections.append((kind, offset, length, link))
    symbols, dynamic = ([one for one in sections if one[0] == kind] for kind in (_DYNAMIC_SYMBOLS, _DYNAMIC))
    if not symbols or not dynamic:
        raise ValueError
    taken = [name for name, _info, _other, section, *_ in _entries(data, symbols[0], "<IBBHQQ") if name and not section]
    libraries = [value for tag, value in _entries(data, dynamic[0], "<qQ") if tag == _NEEDED]
    texts = sections[symbols[0][3]][1]
    return [_text(data, texts + at) for at in libraries], [_text(data, texts + at) for at in taken]


def _entries(data: bytes, section: _Section, form: str) -> Iterator[tuple[int, ...]]:
    _, place, length, _ = section
    return struct.iter_unpack(form, data[place : place + length])


def _text(data: bytes, place: int) -> str:
    return data[place : data.index(b"\0", place)].decode("ascii", "replace")
