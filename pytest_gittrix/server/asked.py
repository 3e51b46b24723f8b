"""What a request says that nobody asked it: a parameter that is not known, or told twice, and a body where none is read.

Its sender means something by it, and would take the answer for one to it: ``?membr=ada`` would list the sessions of everybody. It must not
know any request; each tells by itself what it takes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from fastapi import Request
from fastapi.routing import APIRoute

from pytest_gittrix.errors import InvalidInput

_NOTHING: Final = (b"", b"{}", b"null")
"""Bodies that say nothing: some clients send one with every request."""


async def require_known(request: Request) -> None:
    """Refuse a request that says more than is taken of it.

    Raises:
        InvalidInput: a parameter is not known, or there twice; or there is a body.
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
