"""Any session system behind one protocol, driven by its API or its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gittrix.lazy_exports import door

if TYPE_CHECKING:
    from pytest_gittrix.testing.systems.driver import Stage as Stage
    from pytest_gittrix.testing.systems.gittrix_system import GitTrixSystem as GitTrixSystem
    from pytest_gittrix.testing.systems.protocol import Engine as Engine
    from pytest_gittrix.testing.systems.protocol import OptionalVerbs as OptionalVerbs
    from pytest_gittrix.testing.systems.protocol import SessionSystem as SessionSystem
    from pytest_gittrix.testing.systems.protocol import TurnContext as TurnContext

__getattr__ = door(
    __name__,
    {
        "pytest_gittrix.testing.systems.protocol": (
            "Engine",
            "OptionalVerbs",
            "SessionSystem",
            "TurnContext",
        ),
        "pytest_gittrix.testing.systems.driver": ("Stage",),
        "pytest_gittrix.testing.systems.gittrix_system": ("GitTrixSystem",),
    },
)
