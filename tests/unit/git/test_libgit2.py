"""The binding of libgit2 is loaded by its first use, whoever uses it first, and whatever else happens at that moment."""

from __future__ import annotations

import subprocess
import sys

_BESIDE = """
import sys, threading, time
from pytest_gittrix.git import libgit2
loading, failed = threading.Event(), []
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "pygit2":
            loading.set()
            time.sleep(0.1)
sys.meta_path.insert(0, Slow())
def use(name):
    try:
        getattr(libgit2, name)
    except BaseException as error:
        failed.append(error)
first = threading.Thread(target=use, args=("Odb",))
first.start()
loading.wait()
use("DiffOption")
first.join()
sys.exit(f"{failed}" if failed else 0)
"""

_FORK = """
import os, signal, sys, threading
from pytest_gittrix.git import libgit2
other = threading.Thread(target=lambda: libgit2.Config)
other.start()
while "pygit2" not in sys.modules and other.is_alive():
    pass
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    libgit2.Odb
    os._exit(0)
other.join()
sys.exit(f"the child ended with {status}" if (status := os.waitpid(pid, 0)[1]) else 0)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_two_threads_may_use_their_first_names_at_once() -> None:
    done = run(_BESIDE)

    assert done.returncode == 0, done.stderr


def test_a_fork_while_a_thread_loads_it_can_use_it() -> None:
    done = run(_FORK)

    assert done.returncode == 0, done.stderr
