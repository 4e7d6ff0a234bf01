"""A small STOMP 1.2 server in memory that loses, doubles, reorders or corrupts on request.

Owns: queues in memory, for the tests of the load generator and its harness. Must never: be taken
for a broker (it is durable in no class) or grow features that no test asks for. Called by
`tests/unit/benchmarks`; run as a program it answers like `vespiary run --json`.
"""

import argparse
import asyncio
import json
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vespiary_testkit import product_loop


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong: each `..._every` counts messages, 0 means never."""

    lose_every: int = 0  # confirmed, then dropped
    duplicate_every: int = 0  # delivered twice
    swap_every: int = 0  # stored before its predecessor
    corrupt_every: int = 0  # one byte of the body changed
    misroute_every: int = 0  # stored in another queue
    resurrect_every: int = 0  # acknowledged, confirmed, and put back
    drop_receipt_every: int = 0
    double_receipt_every: int = 0
    error_after: int = 0  # an ERROR frame instead of this message's receipt
    close_after: int = 0  # every connection is cut at this message
    stall_after: int = 0  # the whole server stops for `stall_s` at this message
    stall_s: float = 0.0


@dataclass(eq=False, slots=True)
class _Subscription:
    connection: "_Connection"
    number: str
    ack: str
    credit: int
    unacked: dict[int, bytes] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Queue:
    name: str
    messages: deque[tuple[int, bytes]] = field(default_factory=deque)
    subscriptions: list[_Subscription] = field(default_factory=list)
    sequence: int = 0
    is_held: bool = False


def _hits(every: int, count: int) -> bool:
    return every > 0 and count % every == 0


class StompServer:
    """The server's state; owned by the loop that runs `serve`."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.queues: dict[str, _Queue] = {}
        self.connections: set[_Connection] = set()
        self.sends = 0
        self.acks = 0
        self.deliveries = 0
        self.logins: list[dict[str, str]] = []
        self.subscribes: list[dict[str, str]] = []

    def store(self, name: str, body: bytes) -> None:
        """Queue one body, or do to it what the faults say."""
        faults = self.faults
        if _hits(faults.lose_every, self.sends):
            return
        if _hits(faults.corrupt_every, self.sends):
            body = body[:-1] + bytes([body[-1] ^ 1])
        queue = self.queue(name)
        if _hits(faults.misroute_every, self.sends):
            queue = next((q for q in self.queues.values() if q is not queue), queue)
        queue.sequence += 1
        if _hits(faults.swap_every, self.sends) and queue.messages:
            queue.messages.insert(len(queue.messages) - 1, (queue.sequence, body))
        else:
            queue.messages.append((queue.sequence, body))
        # A pair to swap has to be seen together: hold delivery back for one message.
        queue.is_held = _hits(faults.swap_every, self.sends + 1)
        self.dispatch(queue)

    def queue(self, name: str) -> _Queue:
        """Return the queue of that name, made on first use."""
        return self.queues.setdefault(name, _Queue(name))

    def dispatch(self, queue: _Queue) -> None:
        """Hand messages to subscriptions in turn while any has credit."""
        while queue.messages and not queue.is_held:
            ready = [s for s in queue.subscriptions if len(s.unacked) < s.credit]
            if not ready:
                return
            sequence, body = queue.messages.popleft()
            chosen = ready[sequence % len(ready)]
            if chosen.ack != "auto":
                chosen.unacked[sequence] = body
            self.deliveries += 1
            copies = 2 if _hits(self.faults.duplicate_every, self.deliveries) else 1
            chosen.connection.deliver(queue, chosen, sequence, body, copies)

    def settle(self, ack_id: str, connection: "_Connection") -> None:
        """Take one ACK: alone, or with all before it in ack mode client."""
        name, _, number = ack_id.rpartition("-")
        queue, sequence = self.queue(name), int(number)
        for subscription in queue.subscriptions:
            if subscription.connection is not connection or sequence not in subscription.unacked:
                continue
            settled = [sequence]
            if subscription.ack == "client":
                settled = [n for n in subscription.unacked if n <= sequence]
            for n in settled:
                self.acks += 1
                body = subscription.unacked.pop(n)
                if _hits(self.faults.resurrect_every, self.acks):
                    queue.sequence += 1
                    queue.messages.append((queue.sequence, body))
        self.dispatch(queue)

    def forget(self, connection: "_Connection") -> None:
        """Put what a closed connection had not acknowledged back in front."""
        self.connections.discard(connection)
        for queue in self.queues.values():
            for subscription in [s for s in queue.subscriptions if s.connection is connection]:
                queue.subscriptions.remove(subscription)
                queue.messages.extendleft(reversed(subscription.unacked.items()))
            self.dispatch(queue)


class _Connection(asyncio.Protocol):
    def __init__(self, server: StompServer) -> None:
        self.transport: asyncio.Transport
        self.ended = asyncio.Event()
        self._server = server
        self._buffer = b""
        self._has_failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while True:
            while self._buffer[at : at + 1] == b"\n":
                at += 1
            end = self._buffer.find(b"\n\n", at)
            if end < 0:
                break
            command, *lines = self._buffer[at:end].decode().split("\n")
            headers = dict(line.split(":", 1) for line in reversed(lines))
            size = int(headers.get("content-length", 0))
            if len(self._buffer) < end + 2 + size + 1:
                break
            self._on_frame(command, headers, self._buffer[end + 2 : end + 2 + size])
            at = end + 2 + size + 1
        self._buffer = self._buffer[at:]

    def _on_frame(self, command: str, headers: dict[str, str], body: bytes) -> None:
        server = self._server
        if self._has_failed:
            return
        if command in ("CONNECT", "STOMP"):
            server.logins.append(headers)
            self.transport.write(b"CONNECTED\nversion:1.2\nheart-beat:0,0\n\n\0\n")
            return
        if command == "SEND" and not self._on_send(headers, body):
            return
        if command == "SUBSCRIBE":
            server.subscribes.append(headers)
            queue = server.queue(headers["destination"])
            credit = int(headers.get("prefetch-count", 1000))
            queue.subscriptions.append(_Subscription(self, headers["id"], headers["ack"], credit))
            server.dispatch(queue)
        if command == "ACK":
            server.settle(headers["id"], self)
        if "receipt" in headers:
            copies = 1
            if command == "SEND" and _hits(server.faults.drop_receipt_every, server.sends):
                copies = 0
            if command == "SEND" and _hits(server.faults.double_receipt_every, server.sends):
                copies = 2
            self.transport.write(
                b"RECEIPT\nreceipt-id:%b\n\n\0" % headers["receipt"].encode() * copies
            )
        if command == "DISCONNECT":
            self.transport.close()

    def _on_send(self, headers: dict[str, str], body: bytes) -> bool:
        server, faults = self._server, self._server.faults
        server.sends += 1
        if server.sends == faults.stall_after:
            time.sleep(faults.stall_s)  # blocks the loop on purpose: all of the server stalls
        if server.sends == faults.error_after:
            # Half-close, then read on: closing with unread input would send a reset, which may
            # overtake the ERROR frame.
            self.transport.write(b"ERROR\nmessage:the disk is full\n\n\0")
            self.transport.write_eof()
            self._has_failed = True
            return False
        if server.sends == faults.close_after:
            for connection in list(server.connections):
                connection.transport.abort()
            return False
        server.store(headers["destination"], body)
        return True

    def deliver(
        self, queue: _Queue, to: _Subscription, sequence: int, body: bytes, copies: int
    ) -> None:
        ack = "" if to.ack == "auto" else f"ack:{queue.name}-{sequence}\n"
        head = (
            f"MESSAGE\nsubscription:{to.number}\nmessage-id:{queue.name}-{sequence}\n"
            f"destination:{queue.name}\n{ack}content-length:{len(body)}\n\n"
        )
        self.transport.write((head.encode() + body + b"\0") * copies)


async def _serve(
    server: StompServer, port: int, started: "asyncio.Future[int]", stopped: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: _Connection(server), "127.0.0.1", port)
    started.set_result(listener.sockets[0].getsockname()[1])
    await stopped.wait()
    await product_loop.close_server(listener, server.connections)


@contextmanager
def running_stomp_server(faults: Faults | None = None) -> Iterator[tuple[StompServer, int]]:
    """Run a server in a thread of its own; yields it and its port."""
    server = StompServer(faults)
    ready = threading.Event()
    state: dict[str, object] = {}

    def publish(done: "asyncio.Future[int]") -> None:
        state["port"] = done.result()
        ready.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        started: asyncio.Future[int] = loop.create_future()
        stopped = asyncio.Event()
        state["stop"] = lambda: loop.call_soon_threadsafe(stopped.set)
        started.add_done_callback(publish)
        await _serve(server, 0, started, stopped)

    thread = threading.Thread(target=lambda: product_loop.run(main()), name="stomp-server")
    thread.start()
    assert ready.wait(60), "the server did not start within 60 s"
    port, stop = state["port"], state["stop"]
    assert isinstance(port, int)
    assert callable(stop)
    try:
        yield server, port
    finally:
        stop()
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop within 60 s"


def _print_event(**event: object) -> None:
    print(json.dumps(event), flush=True)


async def _main(port: int, engine: str, durability: str) -> None:
    begin = time.monotonic()
    loop = asyncio.get_running_loop()
    started: asyncio.Future[int] = loop.create_future()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)

    def ready(done: "asyncio.Future[int]") -> None:
        names = ["stomp"]
        _print_event(
            event="listening", name="all", protocols=names, host="127.0.0.1", port=done.result()
        )
        _print_event(
            event="ready", seconds=time.monotonic() - begin, engine=engine, durability=durability
        )

    started.add_done_callback(ready)
    await _serve(StompServer(), port, started, stopped)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run"])
    parser.add_argument("--data")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    product_loop.run(_main(arguments.port, "MEMORY", "D0"))
