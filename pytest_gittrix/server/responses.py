"""The daemon's responses: ASCII JSON, and for each error a status and the command line's envelope.

Every request ends here, so that no traceback and no other shape leaves the daemon.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from pytest_gittrix import errors
from pytest_gittrix.commands.output import error_data
from pytest_gittrix.errors import GittrixError, InvalidInput
from pytest_gittrix.formats.toml_file import key_of
from pytest_gittrix.server.schema import ErrorResponse

# The first class of which an error is an instance decides.
_STATUSES: Final[tuple[tuple[type[GittrixError], int], ...]] = (
    (errors.SessionNotFound, 404),
    (errors.PathNotFound, 404),
    (errors.WorkItemHeld, 409),
    (errors.SessionNotRestorable, 409),
    (errors.WorkspaceMissing, 409),
    (errors.SessionExpired, 409),
    (errors.PersonRequired, 403),
    (errors.BaselineConflict, 409),
    (errors.PromoteFailed, 409),
    (errors.EvictionRace, 409),
    (errors.SessionInUse, 409),
    (errors.TurnBusy, 409),
    (errors.TurnOver, 409),
    (errors.WriteRejected, 400),
    (errors.InvalidInput, 400),
    (errors.CapabilityMissing, 501),
)
_FAILED: Final = 500
_CODES: Final = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}

FAILURES: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": ErrorResponse, "description": "It was refused."},
    "5XX": {"model": ErrorResponse, "description": "It failed."},
}
"""The error responses of every request, for the schema."""


class Conflict(GittrixError):
    """The session's state does not allow the request."""

    code = "WRONG_STATE"


class AsciiResponse(Response):
    """A JSON response in ASCII: names that are not UTF-8 are sent as the escapes that they are stored as."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the response."""
        return json.dumps(content).encode("ascii")


def done(**facts: Any) -> AsciiResponse:
    """The response to a request that was done."""
    return AsciiResponse({"ok": True, **facts})


def failed(error: Exception) -> AsciiResponse:
    """The response to a request that raised an error."""
    status = next((number for kind, number in _STATUSES if isinstance(error, kind)), _FAILED)
    return refused(409 if isinstance(error, Conflict) else status, error_data(error))


def refused(status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> AsciiResponse:
    """A response with an error's data."""
    return AsciiResponse({"ok": False, "error": dict(error)}, status, dict(headers or {}))


def catch_all(app: FastAPI) -> None:
    """Make the application answer every exception with such a response."""

    def known(_request: Request, error: Exception) -> Response:
        return failed(error)

    def invalid(_request: Request, error: Exception) -> Response:
        first = error.errors()[0] if isinstance(error, RequestValidationError) else {"loc": (), "msg": "not understood"}
        where = key_of(tuple(part for part in first["loc"][1:] if isinstance(part, int | str))) if len(first["loc"]) > 1 else "the request"
        return refused(400, {"code": InvalidInput.code, "message": f"{where}: {first['msg']}"})

    def http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return failed(error)
        code = _CODES.get(error.status_code, InvalidInput.code)
        headers = {"allow": ", ".join(_methods(request))} if error.status_code == 405 else error.headers
        return refused(error.status_code, {"code": code, "message": str(error.detail)}, headers)

    app.add_exception_handler(GittrixError, known)
    app.add_exception_handler(OSError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, known)


def _methods(request: Request) -> list[str]:
    """The methods of all routes that match a request's path; the framework names those of the first route only."""
    found = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in getattr(route, "methods", None) or ()})
