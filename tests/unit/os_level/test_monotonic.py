"""A block that takes too long is ended, and one that does not leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_gittrix.os_level.monotonic import interrupt_after, pause


class TooLong(Exception):
    """The block took too long."""


def test_a_block_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TooLong), interrupt_after(0.01, TooLong):
        while True:
            pass


def test_a_block_that_swallows_the_error_goes_on() -> None:
    with interrupt_after(0.3, TooLong):  # long enough for a busy machine to come as far as the next line
        try:
            while True:
                pass
        except TooLong:
            ended = True

    assert ended


def test_no_error_arrives_after_the_block() -> None:
    arrived = 0
    for number in range(40):
        try:
            with interrupt_after(0.0001 * (number % 8), TooLong):
                pause(0.0004)
        except TooLong:
            arrived += 1
        for _ in range(50):
            pass

    assert 0 < arrived <= 40


TRACED = """
import sys
from pytest_gittrix.os_level.monotonic import interrupt_after

with interrupt_after(60, TimeoutError):
    pass

def traced():
    return [number for number in range(3)]

sys.settrace(lambda *_: None)
traced()
"""


def test_a_thread_that_is_traced_afterwards_goes_on() -> None:
    assert subprocess.run([sys.executable, "-c", TRACED], timeout=20, check=False).returncode == 0
