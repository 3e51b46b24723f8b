"""Where the home is: the default directory of sessions, and of everything else that an engine stores."""

from __future__ import annotations

import os
from collections.abc import Mapping


def home(environ: Mapping[str, str] | None = None) -> str:
    """``GITTRIX_HOME``, or ``~/.gittrix``, by its absolute path as it was written: ``..`` behind a symbolic link stays what it is."""
    given = (os.environ if environ is None else environ).get("GITTRIX_HOME")
    if not given:
        return os.path.expanduser("~/.gittrix")
    return given if os.path.isabs(given) else os.path.join(os.getcwd(), given)
