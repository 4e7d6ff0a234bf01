"""A broker as if on another machine: `python -m vespiary_testkit.other_kernel run …`.

It is `vespiary` with another boot id. `part_locks` does the rest: locks of one kernel mean nothing
to another one, so their files are replaced.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vespiary_broker.cli import main
from vespiary_broker.store import ownership

BOOT_ID = b"another kernel.."


def part_locks(data: Path) -> None:
    """Have whoever starts from now on find no lock of those who run."""
    for path in data.rglob("*.lock"):
        path.unlink()


if __name__ == "__main__":
    ownership.boot_id = lambda: BOOT_ID
    sys.exit(main())
