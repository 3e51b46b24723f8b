"""The check that a request holds nothing that would be ignored: an unknown or repeated parameter, or a body where none is read.

Its sender would take the answer for one that heeds it: ``?membr=ada`` would list the sessions of all members.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from fastapi import Request
from fastapi.routing import APIRoute

from pytest_gittrix.errors import InvalidInput

_NOTHING: Final = (b"", b"{}", b"null")
"""Bodies without content: some clients send one with every request."""


async def require_known(request: Request) -> None:
    """Refuse a request of which a part would be ignored.

    Raises:
        InvalidInput: a parameter is unknown or repeated, or there is a body that the request does not read.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            raise InvalidInput(f"There is no parameter {name!r} here.", fix=f"There are: {', '.join(known) or 'none'}.")
        if count > 1:
            raise InvalidInput(f"The parameter {name!r} is there {count} times.", fix="Give it once.")
    if route.body_field is None and (await request.body()).strip() not in _NOTHING:
        raise InvalidInput(f"{request.method} {request.url.path} reads no body, and there is one.", fix="Leave it away.")
