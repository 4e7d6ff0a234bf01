"""`python -m vespiary_operator.node_tuning`: raise `fs.aio-max-nr` of one node, never lower it.

Owns: the one file that is mounted from the host, and the arithmetic of its value. It runs as uid 0
without any capability, which is what the kernel asks for and no more, and has no token: its orders
come from a mounted ConfigMap, and its answer is read from `GET /status` by the operator.
Never: lowers the value; touches any other file; imports anything but the standard library.
Called by: the DaemonSet that `builders.tuning` makes.

The orders (`nodes.json`): {"floor": N, "margin": N, "max": N, "nodes": {NODE: {"demand": N,
"reserved": N, "excluded": BOOL}}}. Demand is what the brokers of the node ask for together,
reserved the part of it that they hold already, so `fs.aio-nr` less that is what others use. A node
that is excluded is another BrokerNodeTuning's. The report has the digest of the orders that it goes
by, so that the operator knows when new ones have arrived.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PERIOD_S = 1.0
STALE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one node needs.

    Attributes:
        floor: Lowest value to have.
        margin: Requests kept free beyond what is used and asked for.
        maximum: Never raised above this.
        demand: What the brokers of the node ask for.
        reserved: What they hold already.
        is_excluded: Whether another BrokerNodeTuning looks after the node.
    """

    floor: int
    margin: int
    maximum: int
    demand: int
    reserved: int
    is_excluded: bool = False

    @property
    def digest(self) -> str:
        """Short name of these orders."""
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found and done; `GET /status` answers with it as JSON.

    Attributes:
        node: Name of the node.
        aio_max_nr: The value as last read, after any change; None if it could not be read.
        aio_nr: Requests in use by everyone.
        target: What the value should be at least.
        raised_from: Lowest value that this process raised it from; None if it never did.
        message: One sentence.
        is_satisfied: Whether the value is enough.
        orders: Digest of the orders that this is about.
    """

    node: str
    aio_max_nr: int | None = None
    aio_nr: int | None = None
    target: int | None = None
    raised_from: int | None = None
    message: str = "Nothing was looked at yet."
    is_satisfied: bool = False
    orders: str = ""


def target_of(order: Order, *, current: int, in_use: int) -> int:
    """Return what `fs.aio-max-nr` should be; never less than it is.

    Args:
        order: What the node needs.
        current: The value now.
        in_use: `fs.aio-nr` now.
    """
    return max(current, min(wanted_of(order, in_use=in_use), order.maximum))


def wanted_of(order: Order, *, in_use: int) -> int:
    """Return what the node's brokers and others need together; 0 for an excluded node."""
    if order.is_excluded:
        return 0
    others = max(0, in_use - order.reserved)
    return max(order.floor, others + order.demand + order.margin)


def order_of(text: str, node: str) -> Order:
    """Read the orders for a node; a node without an entry has no brokers.

    Raises:
        ValueError: They are not of the form that the module describes.
    """
    try:
        orders = json.loads(text)
        own = orders["nodes"].get(node, {})
        return Order(
            floor=int(orders["floor"]),
            margin=int(orders["margin"]),
            maximum=int(orders["max"]),
            demand=int(own.get("demand", 0)),
            reserved=int(own.get("reserved", 0)),
            is_excluded=own.get("excluded") is True,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the orders are not of the expected form: {error!r}") from error


class Tuner:
    """Looks at the value every few seconds and raises it where it is too low.

    Owned by the main thread; `report` may be read from others.

    Args:
        node: Name of the node.
        orders: The mounted `nodes.json`.
        knob: The host's `fs.aio-max-nr`.
        in_use: `fs.aio-nr`.
    """

    def __init__(self, *, node: str, orders: Path, knob: Path, in_use: Path) -> None:
        self._orders = orders
        self._knob = knob
        self._in_use = in_use
        self.report = Report(node=node)
        self.looked_at = time.monotonic()

    def look(self) -> Report:
        """Read, raise if needed, read back; return and keep the report."""
        before = self.report
        try:
            order = order_of(self._orders.read_text("utf-8"), before.node)
            current = int(self._knob.read_text("ascii"))
            in_use = int(self._in_use.read_text("ascii"))
        except (OSError, ValueError) as error:
            self.report = dataclasses.replace(
                before, message=f"It could not be looked at: {error}.", is_satisfied=False
            )
            return self.report
        target = target_of(order, current=current, in_use=in_use)
        raised_from, message = before.raised_from, f"fs.aio-max-nr={current} is enough."
        if target > current:
            message = self._raise(current, target)
            found = int(self._knob.read_text("ascii"))
            if found > current:
                # The first value counts, not those on the way that were raised here as well.
                raised_from = current if raised_from is None else min(raised_from, current)
                current = found
        elif raised_from is not None:
            message = f"fs.aio-max-nr was raised from {raised_from} to {current}."
        wanted = wanted_of(order, in_use=in_use)
        if wanted > order.maximum:
            message += f" {wanted} would be needed, but spec.max is {order.maximum}."
        self.report = Report(
            node=before.node,
            aio_max_nr=current,
            aio_nr=in_use,
            target=max(target, wanted),
            raised_from=raised_from,
            message=message,
            is_satisfied=current >= wanted,
            orders=order.digest,
        )
        self.looked_at = time.monotonic()
        return self.report

    def _raise(self, current: int, target: int) -> str:
        """Write the value; return a sentence about it."""
        try:
            self._knob.write_text(f"{target}\n", "ascii")
        except OSError as error:
            return (
                f"fs.aio-max-nr={current} could not be raised to {target}: {error.strerror}. The "
                "kernel wants uid 0 of the host: it does not work in a user namespace, and where "
                "SELinux enforces, the pod needs the type spc_t."
            )
        found = int(self._knob.read_text("ascii"))
        if found < target:
            return f"fs.aio-max-nr was set to {target}, but {found} was read back."
        return f"fs.aio-max-nr was raised from {current} to {found}."


def handler_of(tuner: Tuner) -> type[http.server.BaseHTTPRequestHandler]:
    """Return a request handler that answers `/status` and `/healthz`, and nothing else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body: dict[str, Any]
            if self.path == "/status":
                code, body = 200, dataclasses.asdict(tuner.report)
            elif self.path == "/healthz":
                age_s = time.monotonic() - tuner.looked_at
                code, body = (200 if age_s < STALE_S else 500), {"age_s": round(age_s, 1)}
            else:
                code, body = 404, {"error": "only /status and /healthz are here"}
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base has it
            """Say nothing about requests."""

    return Handler


def main() -> int:
    """Run until SIGTERM; return the exit code."""
    environment = os.environ
    tuner = Tuner(
        node=environment["NODE_NAME"],
        orders=Path(environment.get("VESPIARY_ORDERS", "/etc/vespiary/node-tuning/nodes.json")),
        knob=Path(environment.get("VESPIARY_KNOB", "/host/aio-max-nr")),
        in_use=Path("/proc/sys/fs/aio-nr"),
    )
    port = int(environment.get("VESPIARY_PORT", "8083"))
    server = http.server.ThreadingHTTPServer(("", port), handler_of(tuner))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    said = ""
    while True:
        report = tuner.look()
        if report.message != said:
            said = report.message
            print(f"{report.node}: {said}", file=sys.stderr, flush=True)
        if ended.wait(PERIOD_S):
            server.shutdown()
            return 0


if __name__ == "__main__":
    sys.exit(main())
