"""The engine against a dictionary, and the power cut at every block that it writes.

Hypothesis chooses sends to queues of all kinds, consumers, acknowledgements, refusals,
transactions, time that passes, retries, purges and restarts. The model knows in which queues each
message is. After every act engine and model agree; so does what a start finds behind any block of
that act: each message is where it was before, or where it is now, once; a transaction is whole.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from vespiary_broker.engine.core import AckMode, Core
from vespiary_broker.engine.departures import leave
from vespiary_broker.engine.message_times import MessageTimes, stamp
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Outgoing,
    Transaction,
    prepare,
    stage,
)
from vespiary_native.choice import open_core
from vespiary_native.loader import is_wanted
from vespiary_native.twin import TwinCore
from vespiary_spec.settings import AddressSettings, Divert, RoutingType
from vespiary_testkit.cut_journal import CutJournal, contents, restore
from vespiary_testkit.engine_rig import FakeOutput, Rig, destination, do, sequence_of

EXAMPLES = int(os.environ.get("VESPIARY_ENGINE_EXAMPLES", "100"))
STEPS = 30
ATTEMPTS = 2
RING = 3
SCAN_MS = 100

pytestmark = pytest.mark.crash

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST
QUEUES = {
    "q": ("q", ANYCAST),
    "short": ("short", ANYCAST),
    "ring": ("ring", ANYCAST),
    "latest": ("latest", ANYCAST),
    "copied": ("copied", ANYCAST),
    "copy": ("copy", ANYCAST),
    "first": ("topic", MULTICAST),
    "second": ("topic", MULTICAST),
    "DLQ": ("DLQ", ANYCAST),
    "EXPIRED": ("EXPIRED", ANYCAST),
}
"""Queues with their address."""
CONSUMED = ("q", "short", "copied", "copy", "first", "second", "DLQ", "EXPIRED")
Places = dict[bytes, Counter[str]]


@dataclasses.dataclass(eq=False)
class Client:
    """A consumer, and what it holds: body by sequence."""

    queue: str
    consumer: Consumer
    output: FakeOutput
    held: dict[int, bytes] = dataclasses.field(default_factory=dict)


class EngineMachine(RuleBasedStateMachine):
    """One engine over restarts; see the module's docstring."""

    make_core: ClassVar[Callable[[], Core]]
    cuts: ClassVar[int] = 0
    fates: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.where: Places = {}
        self.clients: list[Client] = []
        self.number = 0
        self.ring: list[bytes] = []
        self.latest: dict[str, bytes] = {}
        self.expires_ms: dict[bytes, int] = {}
        self.due_ms: dict[bytes, int] = {}
        self.given: Counter[tuple[str, bytes]] = Counter()
        self.unsure: set[tuple[str, bytes]] = set()
        self.rig = self.start(CutJournal(type(self).make_core))
        for name, (address, kind) in QUEUES.items():
            do(self.rig.registry.create_queue(name, address, kind))
        divert = Divert(name="d", address="copied", forwarding_address="copy")
        do(self.rig.registry.diverts.create(divert))
        self.ids = {name: self.rig.registry.queues[name].id for name in QUEUES}
        self.checked = 0
        self.acts = 0

    @property
    def is_holding(self) -> bool:
        return any(client.held for client in self.clients)

    def start(self, journal: CutJournal, bindings: Any = None) -> Rig:
        common = AddressSettings(
            auto_delete_queues=False,
            dead_letter_address="DLQ",
            expiry_address="EXPIRED",
            max_delivery_attempts=ATTEMPTS,
        )
        kinds = {
            "ring": msgspec.structs.replace(common, default_ring_size=RING),
            "latest": msgspec.structs.replace(
                common, default_last_value_queue=True, default_last_value_key="stock"
            ),
        }
        self.journal = journal
        rig = Rig(
            {"#": common, **kinds}, journal=journal, bindings=bindings, scan_period_ms=SCAN_MS
        )
        rig.registry.restore()
        return rig

    # --- the acts ---------------------------------------------------------------------------------

    def new(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    @rule(
        to=st.sampled_from(("q", "q", "copied", "topic")),
        priority=st.sampled_from((4, 4, 0, 9)),
        group=st.sampled_from(("", "", "g")),
        count=st.integers(1, 4),
    )
    def send(self, to: str, priority: int, group: str, count: int) -> None:
        after = self.copied()
        names = {"copied": ("copied", "copy"), "topic": ("first", "second")}.get(to, (to,))
        properties = b"JMSXGroupID:%b\n" % group.encode() if group else b""
        for _ in range(count):
            after[body := self.new()] = Counter(names)
            text = f"/topic/{to}" if to == "topic" else f"/queue/{to}"
            self.rig.send(text, body, priority=priority, properties=properties)
        self.settle(after)

    @rule(count=st.integers(1, 5))
    def send_to_ring(self, count: int) -> None:
        after = self.copied()
        for _ in range(count):
            after[body := self.new()] = Counter(("ring",))
            self.rig.send("/queue/ring", body)
            self.ring.append(body)
        for gone in self.ring[:-RING]:
            after.pop(gone)
        self.ring = self.ring[-RING:]
        self.settle(after)

    @rule(keys=st.lists(st.sampled_from(("a", "b", "c")), min_size=1, max_size=4))
    def send_latest(self, keys: list[str]) -> None:
        after = self.copied()
        for key in keys:
            after[body := self.new()] = Counter(("latest",))
            self.rig.send("/queue/latest", body, stock=key)
            after.pop(self.latest.get(key, b""), None)
            self.latest[key] = body
        self.settle(after)

    @rule(lives_ms=st.sampled_from((0, 500, 5000)), waits_ms=st.sampled_from((0, 700, 5000)))
    def send_with_times(self, lives_ms: int, waits_ms: int) -> None:
        after, body, now_ms = self.copied(), self.new(), self.rig.now_ms
        name = "short" if lives_ms else "q"
        times = MessageTimes(
            now_ms + lives_ms if lives_ms else 0, now_ms + waits_ms if waits_ms else 0
        )
        self.expires_ms[body] = times.expires_ms or 1 << 60
        self.due_ms[body] = times.deliver_at_ms
        route = self.rig.registry.queue_route(self.rig.registry.queues[name]).next_handle()
        self.rig.engine.fates.special_sent()
        properties = stamp(b"destination:q\n", times)
        self.rig.core.publish(route, properties, body, persistent=True, special=True)
        after[body] = Counter((name,))
        self.settle(after)

    @rule(name=st.sampled_from(CONSUMED), credit=st.integers(1, 5))
    def subscribe(self, name: str, credit: int) -> None:
        if len(self.clients) == 5:
            return
        output = self.rig.output()
        address, kind = QUEUES[name]
        text = f"/{'topic' if kind is MULTICAST else 'queue'}/{address}::{name}"
        consumer = self.rig.subscribe(output, text, AckMode.INDIVIDUAL, credit=credit)
        self.rig.dispatcher.poke(consumer.queue.id)
        self.clients.append(Client(name, consumer, output))
        self.settle(self.copied())

    @precondition(lambda self: len(self.clients) > 2)
    @rule(data=st.data())
    def unsubscribe(self, data: Any) -> None:
        idle = [client for client in self.clients if not client.held]
        if idle:
            client = data.draw(st.sampled_from(idle))
            self.clients.remove(client)
            close_subscription(self.rig.core, self.rig.registry, client.consumer)
            self.settle(self.copied())

    def draw_held(self, data: Any) -> tuple[Client, int, bytes] | None:
        clients = [client for client in self.clients if client.held]
        if not clients:
            return None
        client = data.draw(st.sampled_from(clients))
        sequence = data.draw(st.sampled_from(sorted(client.held)))
        return client, sequence, client.held.pop(sequence)

    @precondition(lambda self: self.is_holding)
    @rule(data=st.data(), count=st.integers(1, 4))
    def acknowledge(self, data: Any, count: int) -> None:
        after = self.copied()
        for _ in range(count):
            if (held := self.draw_held(data)) is not None:
                client, sequence, body = held
                assert self.rig.core.acknowledge(client.consumer.handle, sequence) == 1
                after[body] -= Counter((client.queue,))
        self.settle(after)

    @precondition(lambda self: self.is_holding)
    @rule(data=st.data(), times=st.integers(1, ATTEMPTS))
    def refuse(self, data: Any, times: int) -> None:
        """Give back all that a client holds; what was given too often is a dead letter then."""
        client = data.draw(st.sampled_from([each for each in self.clients if each.held]))
        for _ in range(times):
            after: Places | None = self.copied()
            for sequence, body in client.held.items():
                assert self.rig.registry.returns.give_back(client.consumer, sequence) == 1
                key = (client.queue, body)
                if key in self.unsure:
                    after = None  # how often it was given before the restart, only the engine knows
                elif self.given[key] >= ATTEMPTS and after is not None and client.queue != "DLQ":
                    after[body] = after[body] - Counter((client.queue,)) + Counter(("DLQ",))
                    self.given[key] = 0
                    type(self).fates["dead"] += 1
            client.held.clear()
            self.rig.dispatcher.poke(client.consumer.queue.id)
            self.settle(after)

    @rule(ms=st.sampled_from((300, 1000, 6000)))
    def wait(self, ms: int) -> None:
        self.rig.now_ms += ms
        self.settle(self.copied())

    @rule(data=st.data(), sends=st.integers(0, 3), ends=st.integers(0, 3))
    def transact(self, data: Any, sends: int, ends: int) -> None:
        after = self.copied()
        transaction = Transaction()
        changed: set[bytes] = set()
        for number in range(sends):
            name = ("q", "copied", "DLQ")[number]
            body = self.new()
            transaction.sends.append(
                Outgoing(
                    destination=destination(f"/queue/{name}"),
                    properties=b"destination:x\n",
                    body=body,
                    is_persistent=True,
                )
            )
            after[body] = Counter(("copied", "copy") if name == "copied" else (name,))
            changed.add(body)
        for _ in range(ends):
            if (held := self.draw_held(data)) is not None:
                client, sequence, body = held
                transaction.acknowledgements.append(Acknowledgement(client.consumer, sequence))
                after[body] -= Counter((client.queue,))
                changed.add(body)
        if transaction.is_empty:
            return
        do(prepare(self.rig.registry, transaction))
        stage(self.rig.core, self.rig.registry, self.rig.duplicates, transaction)
        self.settle(after, together=changed)

    @precondition(lambda self: any(places["DLQ"] for places in self.where.values()))
    @rule()
    def retry(self) -> None:
        """Send dead letters back to where they came from."""
        after = self.copied()
        queue, mover = self.rig.registry.queues["DLQ"], self.rig.engine.fates.mover
        for view in self.rig.core.look(queue.id, 0, 1000).messages:
            body = self.rig.core.body(queue.id, view.sequence)
            assert body is not None
            if leave(self.rig.core, mover, queue, view, Reason.RETRIED):
                (origin,) = [
                    line.partition(b":")[2].decode()
                    for line in view.properties.splitlines()
                    if line.startswith(b"_AMQ_ORIG_QUEUE:")
                ]
                after[body] += Counter((origin,))
                after[body] -= Counter(("DLQ",))
                self.given[origin, body] = 0
                type(self).fates["retried"] += 1
        self.settle(after)

    @rule(name=st.sampled_from(("copy", "first")))
    def purge(self, name: str) -> None:
        after = self.copied()
        held = {b for client in self.clients if client.queue == name for b in client.held.values()}
        self.rig.core.purge_queue(self.ids[name])
        for body in after:
            if after[body][name] and body not in held:
                after[body] -= Counter((name,))
        self.settle(after)

    @precondition(lambda self: self.acts > 8)
    @rule()
    def restart(self) -> None:
        """Kill the broker, and start it on what it has written."""
        self.acts = 0
        for client in self.clients:
            for body in client.held.values():
                self.unsure.add((client.queue, body))
        self.unsure.update(key for key, count in self.given.items() if count)
        self.clients.clear()
        now_ms, bindings = self.rig.now_ms, self.rig.bindings
        queue_ids = durable_queue_ids(bindings.snapshot())
        blocks = self.journal.blocks
        self.rig = self.start(CutJournal(type(self).make_core, blocks, queue_ids), bindings)
        self.rig.now_ms = now_ms
        type(self).fates["restarts"] += 1
        self.settle(self.copied())

    # --- what must hold ---------------------------------------------------------------------------

    def copied(self) -> Places:
        return {body: Counter(places) for body, places in self.where.items()}

    def settle(self, after: Places | None, *, together: set[bytes] | None = None) -> None:
        """Let the engine do all that is due, take what is given, and compare.

        Args:
            after: Where messages are now, but for those that expire; None: as the engine says.
            together: Messages of which all have changed their place, or none.
        """
        before = self.where
        self.acts += 1
        self.rig.now_ms += SCAN_MS + 1
        self.run()
        self.where = self.found() if after is None else self.expire(after)
        assert self.found() == self.where
        for block in range(self.checked, len(self.journal.blocks)):
            self.check_cut(block, before, together or set())
        self.checked = len(self.journal.blocks)

    def run(self) -> None:
        for _ in range(50):
            self.rig.turns()
            self.rig.engine.fates.arrived(self.rig.core.take_ready_queues())
            is_given = [self.take(client) for client in self.clients]
            if not self.rig.engine.fates.has_more and not any(is_given):
                self.rig.turns()
                is_given = [self.take(client) for client in self.clients]
                if not any(is_given):
                    return
        raise AssertionError("the engine does not come to rest")

    def take(self, client: Client) -> bool:
        frames = client.output.frames()
        for frame in frames:
            places = self.due_ms.get(frame.body, 0), self.expires_ms.get(frame.body, 1 << 60)
            is_moved = client.queue in ("DLQ", "EXPIRED")
            assert is_moved or places[0] <= self.rig.now_ms, "before its time"
            assert client.queue != "short" or self.rig.now_ms < places[1], "after its time"
            holders = [c for c in self.clients if c.queue == client.queue]
            assert all(frame.body not in c.held.values() for c in holders), "given twice"
            client.held[sequence_of(frame)] = frame.body
            self.given[client.queue, frame.body] += 1
        return bool(frames)

    def expire(self, after: Places) -> Places:
        """Return where messages are when those that have expired are moved."""
        held = {b for c in self.clients if c.queue == "short" for b in c.held.values()}
        for body, places in after.items():
            is_late = self.expires_ms.get(body, 1 << 60) <= self.rig.now_ms
            if places["short"] and is_late and body not in held:
                after[body] = places - Counter(("short",)) + Counter(("EXPIRED",))
                type(self).fates["expired"] += 1
        return {body: places for body, places in after.items() if +places}

    def found(self) -> Places:
        return contents(self.rig.core, self.ids)

    def check_cut(self, block: int, before: Places, together: set[bytes]) -> None:
        """Compare what a start finds behind a block with what was, and what is."""
        type(self).cuts += 1
        core = restore(type(self).make_core, self.journal.blocks[: block + 1], self.ids.values())
        found = contents(core, self.ids)
        none: Counter[str] = Counter()
        states = set()
        for body in before.keys() | self.where.keys() | found.keys():
            was, now = before.get(body, none), self.where.get(body, none)
            there = found.get(body, none)
            is_new = not was and body not in before
            if there not in (was, now):
                assert is_new, (body, was, now, there)
                assert max(there.values()) == 1, f"doubled: {body!r} {there}"
            if body in together and was != now:
                states.add(there == now)
        assert len(states) <= 1, "half a transaction"
        if block == len(self.journal.blocks) - 1:
            assert found == self.where, "what is confirmed is there"


@pytest.mark.parametrize("core", ["native", "twin"])
def test_any_order_of_acts_and_power_cuts(core: str) -> None:
    if core == "native" and not is_wanted():
        pytest.skip("the native part is switched off")

    def make_core() -> Core:
        options: dict[str, int] = {"slabs_max": 16, "record_bytes_max": 490 * 1024}
        return TwinCore(**options) if core == "twin" else open_core(**options)

    parts = {"make_core": staticmethod(make_core), "cuts": 0, "fates": Counter()}
    machine = type(f"{core.title()}Engine", (EngineMachine,), parts)
    chosen = settings(
        max_examples=EXAMPLES if core == "native" else max(EXAMPLES // 4, 1),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=True,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        # In CI what failed is told at once; making it small takes minutes.
        phases=[Phase.generate, *([] if os.environ.get("CI") else [Phase.shrink])],
    )
    run_state_machine_as_test(machine, settings=chosen)
    print(f"{core}: {machine.cuts} cuts, {dict(machine.fates)}")
    assert machine.cuts >= EXAMPLES
    if core == "native":
        assert {"expired", "restarts", "dead"} <= machine.fates.keys()
