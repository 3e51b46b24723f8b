"""What a look for work finds: each finding has a form, and a grade that says whether it would be lost."""

from __future__ import annotations

from typing import Literal, NamedTuple

Grade = Literal["only", "elsewhere", "again"]
"""``only``: it is nowhere else. ``elsewhere``: another reference, remote or file has it. ``again``: it can be made again."""


class FoundWork(NamedTuple):
    """A piece of work in a work tree or its repository.

    Attributes:
        form: the form of work, such as ``untracked`` or ``stash``.
        item: a path, or the id of an object.
        grade: whether it would be lost with the work tree.
        where: who else has it, or what it is; for people.
    """

    form: str
    item: str
    grade: Grade
    where: str
