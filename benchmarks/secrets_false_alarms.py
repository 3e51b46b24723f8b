"""Which files of a release the rules for secrets hold against it: ``python -m benchmarks.secrets_false_alarms OLD NEW [OLD NEW ...]``.

Each pair of archives, as package indexes have them, is a stretch of a published project's work that is hundreds of commits long. Who reads
what is printed sees which of the lines are keys that a test made, and which are false alarms.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

from pytest_gittrix.workspaces.secrets import Candidate, suspects_among


def files_of(archive: str) -> dict[str, bytes]:
    """The files of a release by their paths, without the directory that is named after it."""
    with tarfile.open(archive) as opened:
        read = ((one.name.partition("/")[2], opened.extractfile(one)) for one in opened if one.isfile())
        return {path: file.read() for path, file in read if file is not None}


def main(archives: list[str]) -> None:
    """Print for each pair how many files changed, how many of them are suspect, and what was found."""
    for older, newer in zip(archives[::2], archives[1::2], strict=True):
        before, after = files_of(older), files_of(newer)
        changed = {path: content for path, content in after.items() if before.get(path) != content}
        candidates = [Candidate(path, new, [before[path]] if path in before else [], path not in before) for path, new in changed.items()]
        suspects = suspects_among(candidates)
        print(f"{Path(newer).name}: {len(changed)} files changed, {len(suspects)} suspect")
        for one in suspects:
            print(f"  {one.path}: {'; '.join(one.found)}")


if __name__ == "__main__":
    main(sys.argv[1:])
