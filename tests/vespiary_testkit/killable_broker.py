"""A real broker that kills itself: `python -m vespiary_testkit.killable_broker`.

The broker is `BrokerApp` as `vespiary run --json` starts it; only its disk and rings are watched
(`failpoints`). Used by tests/crash/test_failpoints.py, in a process of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import msgspec

from vespiary_broker.app import event_loop, log_lines
from vespiary_broker.app.broker import BrokerApp
from vespiary_broker.cli import terminal
from vespiary_broker.cli.instance import load_instance
from vespiary_broker.store.bindings import BindingsParts
from vespiary_broker.store.opening import OpeningParts
from vespiary_testkit.failpoints import Failpoints, WatchedDisk, WatchedRing


def main() -> int:
    """Run until stopped, or until the chosen point is visited."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--point", default="")
    parser.add_argument("--visit", type=int, default=1)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    asked = parser.parse_args()
    points = Failpoints(asked.point, asked.visit, asked.log)
    journal = OpeningParts(disk=WatchedDisk(points, "messages"))
    bindings = BindingsParts(disk=WatchedDisk(points, "bindings"))

    def open_ring(*arguments: Any, **names: Any) -> tuple[Any, str | None]:
        ring, reason = OpeningParts().open_ring(*arguments, **names)
        return WatchedRing(ring, points, "messages"), reason

    def open_bindings_ring() -> Any:
        return WatchedRing(BindingsParts().open_ring(), points, "bindings")

    log_lines.set_up("INFO")
    instance = load_instance(asked.config, asked.data, port=0)
    app = BrokerApp(
        msgspec.structs.replace(instance.configuration, max_disk_usage=100),  # on any disk
        base=instance.data,
        on_event=terminal.show_json,
        journal_parts=dataclasses.replace(journal, open_ring=open_ring),
        bindings_parts=dataclasses.replace(bindings, open_ring=open_bindings_ring),
    )
    return event_loop.run(app.run())


if __name__ == "__main__":
    sys.exit(main())
