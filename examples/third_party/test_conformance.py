"""Which promises the toy keeps: pytest test_conformance.py."""

import pytest
from toy_system import system

from pytest_gittrix.conformance import SessionSystemSuite

CHECKOUT = "the toy moves the branch, and never looks at what is checked out"


class TestToy(SessionSystemSuite):
    waivers = dict.fromkeys(["PRM-14", "PRM-18", "PRM-19", "PRM-20", "PRM-21", "PRM-22", "PRM-23", "PRM-27"], CHECKOUT) | {
        "PRM-33": CHECKOUT,
        "PRM-37": "the toy stores the bytes that an agent wrote, whatever .gitattributes says",
        **dict.fromkeys(["CNF-20", "CNF-21", "CNF-22", "NAM-18"], CHECKOUT),
        "ERR-10": "a branch that is gone ends in an error of pygit2, which has no code",
    }

    @pytest.fixture
    def gittrix_system(self):
        return system
