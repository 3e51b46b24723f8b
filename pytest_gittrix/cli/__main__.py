"""``python -m pytest_gittrix.cli``: the ``gittrix`` command where its script is not on PATH."""

from __future__ import annotations

import sys

from pytest_gittrix.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
