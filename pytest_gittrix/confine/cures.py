"""Says how a machine on which nothing confines programs comes to confine them.

What keeps namespaces from a user stands in files of the kernel, one for each mechanism, so the advice names the one that is in the way
here. ``docs/how-to/confine-in-ci.md`` has the same for the usual machines of continuous integration.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CONTAINER: Final = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
"""What lets a container of Docker make namespaces of its own, with a proc file system in them."""

_IN_THE_WAY: Final = {
    "proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "kernel.apparmor_restrict_unprivileged_userns=0", "AppArmor"),
    "proc/sys/kernel/unprivileged_userns_clone": ("0", "kernel.unprivileged_userns_clone=1", "the kernel's setting"),
    "proc/sys/user/max_user_namespaces": ("0", "user.max_user_namespaces=16384", "the kernel's limit"),
}
_CONTAINERS: Final = (".dockerenv", "run/.containerenv")
_LSM: Final = "sys/kernel/security/lsm"


def cures(platform: str = sys.platform, root: Path = Path("/")) -> str:
    """What to do on this machine so that programs can be confined, in sentences; the likeliest cure comes first.

    Args:
        platform: as ``sys.platform``.
        root: where the files of the machine are.
    """
    return " ".join(_cures(platform, root))


def _cures(platform: str, root: Path) -> Iterator[str]:
    if not platform.startswith("linux"):
        yield "Run it on Linux, such as in a virtual machine."
        return
    for name, (value, setting, who) in _IN_THE_WAY.items():
        if _read(root / name) == value:
            yield f"{who[0].upper()}{who[1:]} keeps namespaces from users: run `sudo sysctl -w {setting}`."
            if who == "AppArmor":
                yield "Or install bubblewrap with a profile for it (AppArmor's bwrap-userns-restrict)."
    if any((root / name).exists() for name in _CONTAINERS):
        yield f"Start the container with `{CONTAINER}` (Podman: `--security-opt unmask=ALL`)."
    if not {"landlock", ""} & {*_read(root / _LSM).split(",")}:
        yield "Or boot Linux 6.2 or newer with Landlock: `landlock` is not in the list after `lsm=` of the kernel's command line."
    else:
        yield "Or use Linux 6.2 or newer, whose Landlock needs no namespaces."


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
