"""A broker without the command line: `python broker_main.py --data DIR --port N --set NAME=VALUE`.

Owns nothing; takes the options of `vespiary run` that tests use, and stands in for it until it is
there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import uvloop
from vespiary_broker.app import log_lines
from vespiary_broker.app.broker import BrokerApp
from vespiary_spec import configuration
from vespiary_spec.errors import VespiaryError


def main() -> int:
    """Run one broker until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, default=None)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    log_lines.set_up()
    overrides = list(arguments.set)
    if arguments.port is not None:
        overrides += [f"acceptors.{name}.port={arguments.port}" for name in ("all", "stomp")]

    def tell(event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    try:
        settings = configuration.load(None, overrides)
        app = BrokerApp(settings, base=arguments.data, on_event=tell)
        return uvloop.run(app.run())
    except VespiaryError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
