"""A session of any engine as an object: every call of the handle is a call of the engine with the session's id in front."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Handle:
    """One session of an engine.

    Args:
        engine: an engine of any system, with the verbs of ``protocol.Engine`` or ``protocol_members.MemberVerbs``.
        id_: the session's id.

    Attributes:
        id: the session's id.
    """

    def __init__(self, engine: Any, id_: str) -> None:
        self.id = id_
        self._engine = engine

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def _call(self, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a verb of the engine for this session."""
        return getattr(self._engine, verb)(self.id, *args, **kwargs)


def forwarded(verb: Callable[Concatenate[Any, str, P], R]) -> Callable[Concatenate[Handle, P], R]:
    """A verb of an engine as a method of its handles.

    Args:
        verb: the verb as a protocol describes it; the method has its name, its arguments after the id, and its docstring.
    """
    return forwarded_as(_unchanged, verb)


def forwarded_as(convert: Callable[[R], T], verb: Callable[Concatenate[Any, str, P], R]) -> Callable[Concatenate[Handle, P], T]:
    """As ``forwarded``, for a verb whose answer the method converts."""

    @wraps(verb)
    def method(handle: Handle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return convert(handle._call(verb.__name__, *args, **kwargs))

    return method


def _unchanged(answer: R) -> R:
    return answer
