"""A name for the user that a container runs as: Hadoop, inside Spark, refuses one that has none.

Owns: the list of users that programs below this one see, by nss_wrapper, where the system's own
lacks the user: clusters that choose user ids, and Brokers with another `runAsUser`.
Must never change a file of the system. Called by `archive_run` and `executor`, before Java starts.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

NAME: Final = "vespiary"
_LIBRARY: Final = "libnss_wrapper.so"


def variables(
    uid: int, gid: int, folder: Path, users: Path = Path("/etc/passwd")
) -> dict[str, str]:
    """Return the variables by which programs find a name for a user; none if it has one.

    Args:
        uid: The user.
        gid: Its group.
        folder: Where a list of users may be written.
        users: The system's list.
    """
    try:
        pwd.getpwuid(uid)
    except KeyError:
        known = users.read_text("utf-8").splitlines()
        others = [line for line in known if line.partition(":")[0] != NAME]
        own = f"{NAME}:x:{uid}:{gid}::/nonexistent:/usr/sbin/nologin"
        path = folder / "passwd"
        path.write_text("\n".join([*others, own, ""]), "utf-8")
        return {
            "LD_PRELOAD": _LIBRARY,
            "NSS_WRAPPER_PASSWD": str(path),
            "NSS_WRAPPER_GROUP": "/etc/group",
        }
    return {}


def name_user(folder: Path) -> None:
    """Let what this process starts find a name for its user.

    Args:
        folder: Where a list of users may be written.
    """
    os.environ.update(variables(os.getuid(), os.getgid(), folder))
