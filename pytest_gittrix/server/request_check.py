"""The check that a request holds nothing that would be ignored: an unknown or repeated parameter or key, or a body where none is read.

Its sender would take the answer for one that heeds it: ``?membr=ada`` would list the sessions of all members.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Final

from fastapi import Request
from fastapi.routing import APIRoute

from pytest_gittrix.errors import InvalidInput

_NOTHING: Final = (b"", b"{}", b"null")
"""Bodies without content: some clients send one with every request."""


async def require_known(request: Request) -> None:
    """Refuse a request of which a part would be ignored.

    Raises:
        InvalidInput: a parameter is unknown or repeated, a key of the body is repeated, or there is a body that the request does not read.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            raise InvalidInput(f"Unknown parameter {name!r}.", fix=f"Use: {', '.join(known) or 'none'}.")
        if count > 1:
            raise InvalidInput(f"The parameter {name!r} is given {count} times.", fix="Give it once.")
    body = await request.body()
    if route.body_field is not None:
        _require_each_key_once(body)
    elif body.strip() not in _NOTHING:
        raise InvalidInput(f"{request.method} {request.url.path} takes no body.", fix="Send the request without a body.")


def _require_each_key_once(body: bytes) -> None:
    def once(pairs: list[tuple[str, object]]) -> None:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise InvalidInput(f"The key {name!r} is given {count} times.", fix="Give it once.")

    with suppress(ValueError, RecursionError):  # what is no JSON is refused when it is read
        json.loads(body, object_pairs_hook=once)
