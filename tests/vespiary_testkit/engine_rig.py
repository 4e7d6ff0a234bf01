"""An engine over a real core and a journal without a disk, for unit tests.

`Rig` has the parts; `FakeOutput` stands for a connection: its room is what the test says, and what
it is given can be read back as frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from vespiary_broker.engine.address_memory import NO_LIMITS, MemoryLimits
from vespiary_broker.engine.clocks import Clocks
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.delivery_counts import CountRules
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.engine import make_engine
from vespiary_broker.engine.names import Destination, parse_destination
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.ports import Lock, Spawn
from vespiary_broker.engine.publishing import find_target, make_target
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import SubscriptionRequest, open_subscription
from vespiary_broker.engine.transactions import Outgoing, publish
from vespiary_broker.engine.users import User
from vespiary_codec.wire.stomp import NEED_DATA, Frame, StompDecoder
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.memory_journal import MemoryBindings, MemoryJournal, NoLock

LIMITS = (100, 8192, 65536, 480 * 1024)


class FakeOutput:
    """A connection without a socket."""

    def __init__(self, core: Any, room: int = 1 << 20) -> None:
        self.handle: int = core.open_connection()
        self.room = room
        self.data = b""
        self.refusal = ""
        core.set_ready(self.handle, 12, LIMITS)

    def room_bytes(self) -> int:
        return self.room

    def write(self, data: bytes) -> None:
        self.data += data
        self.room -= len(data)

    def refuse(self, sentence: str) -> None:
        self.refusal = sentence

    def displace(self, consumer: Consumer, sentence: str) -> bool:
        self.refusal = sentence
        return False

    def frames(self) -> list[Frame]:
        """Return the frames written since the last call."""
        decoder = StompDecoder(role="client")
        decoder.set_version("1.2")
        decoder.feed(self.data)
        self.data = b""
        frames = []
        while (event := decoder.next_event()) is not NEED_DATA:
            assert isinstance(event, Frame)
            frames.append(event)
        return frames

    def bodies(self) -> list[bytes]:
        """Return the bodies of the frames written since the last call."""
        return [frame.body for frame in self.frames()]


class Rig:
    """An engine and what it stands on. Its monotonic clock is `now_s`, which tests move."""

    def __init__(
        self,
        settings: Mapping[str, AddressSettings] | None = None,
        *,
        bindings: MemoryBindings | None = None,
        users: Mapping[str, User] | None = None,
        journal: MemoryJournal | None = None,
        duplicates: DuplicateIds | None = None,
        scan_period_ms: int = 30_000,
        naming: NamingRules | None = None,
        count_rules: CountRules | None = None,
        limits: MemoryLimits = NO_LIMITS,
        lock: Lock | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        self.now_s = 1000.0
        self.journal = journal or MemoryJournal()
        self.core = self.journal.core
        self.bindings = bindings or MemoryBindings()
        self.now_ms = 1_000_000
        self.set_ahead_ms = 0  # how much of that is because somebody has set the clock
        self.loads: list[tuple[int, int]] = []
        self.duplicates = duplicates or DuplicateIds(lambda _: 100, is_persistent=True)
        self.engine = make_engine(
            self.core,
            self.bindings,
            lock=lock or NoLock(),
            make_event=asyncio.Event,
            duplicates=self.duplicates,
            spawn=spawn or do,
            load_slab=lambda *place: self.loads.append(place),
            users=lambda: users or {},
            address_settings=settings or {},
            transaction_bytes_max=100_000,
            transaction_room_bytes=self.journal.transaction_room_bytes,
            clocks=Clocks(lambda: self.now_ms, lambda: self.now_ms - self.set_ahead_ms),
            expiry_scan_period_ms=scan_period_ms,
            count_rules=count_rules or CountRules(),
            memory_limits=limits,
            naming=replace(naming or NamingRules(), clock_s=lambda: self.now_s),
        )
        self.registry = self.engine.registry
        self.dispatcher = self.engine.dispatcher
        self.dispatcher.clock_s = lambda: 0.0  # a turn takes as long as it takes

    def output(self, room: int = 1 << 20) -> FakeOutput:
        return FakeOutput(self.core, room)

    def send(
        self,
        text: str,
        body: bytes,
        *,
        persistent: bool = True,
        routing_type: RoutingType | None = None,
        priority: int = 4,
        properties: bytes = b"",
        **headers: str,
    ) -> None:
        """Send as a session does, with automatic creation."""
        where = destination(text, routing_type)
        target = find_target(self.registry, where) or do(make_target(self.registry, where))
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        message = Outgoing(
            destination=where,
            properties=f"destination:x\n{lines}".encode() + properties,
            body=body,
            is_persistent=persistent,
            priority=priority,
            is_special=priority != 4 or b"JMSXGroupID:" in properties,
        )
        publish(self.core, None, message, target)

    def subscribe(
        self,
        output: FakeOutput,
        text: str,
        mode: AckMode = AckMode.INDIVIDUAL,
        *,
        credit: int = 1000,
        client_id: str = "",
        durable_name: str = "",
        selector: str = "",
        priority: int = 0,
        is_exclusive: bool = False,
        version: int = 12,
        user: str = "",
    ) -> Consumer:
        request = SubscriptionRequest(
            destination=replace(destination(text), user=user),
            subscription="s",
            header=b"s",
            version=version,
            mode=mode,
            credit=credit,
            client_id=client_id,
            durable_name=durable_name,
            selector=selector,
            priority=priority,
            is_exclusive=is_exclusive,
        )
        return do(open_subscription(self.core, self.registry, output, request))

    def turn(self) -> None:
        """Write what is staged, do what is due, and deliver what became ready."""
        self.journal.flush()
        self.engine.fates.work()
        self.dispatcher.dispatch(self.core.take_ready_queues())

    def turns(self, most: int = 1000) -> int:
        """Turn until there is nothing more to do; return how many turns it took."""
        for count in range(1, most):
            self.turn()
            if not self.dispatcher.has_more:
                return count
        raise AssertionError(f"{most} turns were not enough")


def destination(text: str, routing_type: RoutingType | None = None) -> Destination:
    """Return a destination with the default prefixes."""
    return parse_destination(
        text, anycast_prefix="/queue/", multicast_prefix="/topic/", routing_type=routing_type
    )


def do(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing; return its result."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise AssertionError("it waits for something")


def sequence_of(frame: Frame) -> int:
    """Return the sequence, in its queue, of the message of a MESSAGE frame."""
    return int(frame.get("message-id", "").rpartition("-")[2])
