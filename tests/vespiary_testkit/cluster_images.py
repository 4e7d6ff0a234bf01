"""Images that earlier e2e sessions have left in the cluster's node: chosen by name, and removed.

Owns which names are the tests' own: `vespiary/TARGET:e2e-HASH`, and `NAME-e2e-HASH` for other
versions made from them. Each change of the tree makes another hash, and hundreds of megabytes; on
a full disk brokers take no messages. Must never choose what somebody else has put there. Called by
`kubernetes_cluster` before images are built.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

_OWN: Final = re.compile(
    r"docker\.io/vespiary/(?:operator|broker|pipeline):(?:[\w.]+-)*e2e-(?P<hash>[0-9a-f]{12})"
)
_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
"""Under which the kubelet knows an image, whatever names it has."""
_REMOVAL_S: Final = 300.0


def stale_images(listing: str, kept: Collection[str]) -> list[str]:
    """Return the names by which images of earlier sessions are known.

    With the last name of an image goes its id, or its layers would stay.

    Args:
        listing: What `ctr images ls` prints: a line of titles, then name, type and digest.
        kept: Hashes of this session.
    """
    names: dict[str, list[str]] = {}
    for line in listing.splitlines()[1:]:
        words = line.split()
        if len(words) >= 3:
            names.setdefault(words[2], []).append(words[0])
    stale: list[str] = []
    for known in names.values():
        old = [name for name in known if _is_of_another_session(name, kept)]
        ids = [name for name in known if _ID.fullmatch(name)]
        stale += old + (ids if old and len(old) + len(ids) == len(known) else [])
    return stale


def _is_of_another_session(name: str, kept: Collection[str]) -> bool:
    own = _OWN.fullmatch(name)
    return own is not None and own["hash"] not in kept


def remove_stale_images(script: Path, kept: Collection[str]) -> list[str]:
    """Remove what earlier sessions have left in the node; return the names.

    What cannot be removed stays, and is told: it fails no test.

    Args:
        script: The script that made the cluster.
        kept: Hashes of this session.
    """
    ctr = (str(script), "enter", "ctr", "-n", "k8s.io", "images")
    listed = _run(*ctr, "ls")
    stale = stale_images(listed.stdout, kept) if listed.returncode == 0 else []
    if stale:
        done = _run(*ctr, "rm", "--sync", *stale)
        if done.returncode:
            print(f"images of earlier sessions could not be removed:\n{done.stderr}")
    return stale


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_REMOVAL_S, check=False)
