"""What clauses expect of a system, so that each reads as the promise it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refused(codes: str | tuple[str, ...], act: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Do something that the system must refuse; gives the error.

    Args:
        codes: the error's code, or those of which it may be one.
        act: what to do, with its arguments.

    Raises:
        pytest.fail.Exception: it was done, or the error has another code, or none.
    """
    allowed = (codes,) if isinstance(codes, str) else codes
    try:
        act(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (a system signals by any exception, as long as it has a code)
        code = getattr(error, "code", None)
        if code in allowed:
            return error
        pytest.fail(f"expected {' or '.join(allowed)}, got {code or type(error).__name__}: {error}")
    pytest.fail(f"expected {' or '.join(allowed)}, but it was done")
