"""A JMS journal that kills itself: `python -m vespiary_testkit.killable_jms`.

Says what it read back, then does what its input says, one line for one change: `[key, value]` puts,
`[key]` removes; each is answered when it is durable. Its disk and ring are watched (`failpoints`).
Used by tests/crash/test_jms_failpoints.py, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from vespiary_broker.store.bindings import BindingsParts
from vespiary_broker.store.jms import JmsJournal
from vespiary_testkit import product_loop
from vespiary_testkit.failpoints import Failpoints, WatchedDisk, WatchedRing


async def _serve(folder: Path, points: Failpoints) -> None:
    def open_ring() -> Any:
        return WatchedRing(BindingsParts().open_ring(), points, "jms")

    parts = BindingsParts(disk=WatchedDisk(points, "jms"), open_ring=open_ring)
    journal = JmsJournal(folder, parts=parts)
    await journal.open_existing()
    print(json.dumps(journal.snapshot()), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        key, *value = json.loads(line)
        await (journal.put(key, value[0]) if value else journal.remove(key))
        print("durable", flush=True)
    await journal.close()


def main() -> None:
    """Run until the input ends, or until the chosen point is visited."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--point", default="")
    parser.add_argument("--visit", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True)
    asked = parser.parse_args()
    product_loop.run(_serve(asked.data, Failpoints(asked.point, asked.visit, asked.log)))


if __name__ == "__main__":
    main()
