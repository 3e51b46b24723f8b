"""git run as root in an environment that the project made changes nothing of the machine's, its null device least of all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PRIVATE_DEVICES = """\
mount -t tmpfs devices /dev &&
mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 && mknod -m 666 /dev/urandom c 1 9 && mknod -m 666 /dev/random c 1 8 &&
mkdir /dev/shm && mount -t tmpfs shm /dev/shm && ln -s /proc/self/fd /dev/fd"""


def in_private_devices(*command: str) -> list[str]:
    """A command line that runs a command as root where ``/dev`` is a directory of its own."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{PRIVATE_DEVICES} && exec "$@"', "sh", *command]


@pytest.mark.needs_root
def test_configuring_the_system_in_any_environment_of_ours_leaves_the_null_device_alone(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only on Linux can there be a device directory of one's own")
    tried = subprocess.run(in_private_devices("true"), capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no device directory of its own: {tried.stderr.strip()}")
    before = os.lstat(os.devnull)

    done = subprocess.run(
        in_private_devices(sys.executable, "-m", "support.system_config", str(tmp_path)),
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    outlived = json.loads(done.stdout.splitlines()[-1])
    # The last one shows that a device which is replaced would be seen; the program stops at the first that replaces it.
    assert [name for name, stands in outlived.items() if not stands] == ["one that names the null device"]
    assert {"level off", "the place", "the fixtures", "an agent of the harness", "an eval"} <= outlived.keys()
    assert os.path.samestat(os.lstat(os.devnull), before)
