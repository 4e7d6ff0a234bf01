"""The engine against a dictionary, and the power cut at every block that it writes.

Hypothesis chooses sends, consumers, acknowledgements, refusals, transactions, time that passes,
retries, purges and restarts. The model knows in which queues each message is. After every act
engine and model agree; so does what a start finds behind any block of that act: each message is
where it was before, or where it is now, once; a transaction is whole.

`EngineMachine` has what all queues share, `engine_machine_kinds` the kinds of queues, which is what
`tests/crash/test_engine_machine.py` runs.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from vespiary_broker.engine.core import AckMode, Core
from vespiary_broker.engine.departures import leave
from vespiary_broker.engine.duplicates import DuplicateIds
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
from vespiary_spec.settings import AddressSettings, Divert, RoutingType
from vespiary_testkit.cut_journal import CutJournal, KeptBlock, contents, restore
from vespiary_testkit.engine_rig import FakeOutput, Rig, destination, do, sequence_of

ATTEMPTS = 2
ID_CACHE = 3
LONG_BYTES = 1700
SCAN_MS = 100

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
    "shown": ("shown", ANYCAST),
    "DLQ": ("DLQ", ANYCAST),
    "EXPIRED": ("EXPIRED", ANYCAST),
}
"""Queues with their address."""
FLEETING = "fleeting"
"""A queue that comes by use and goes by itself."""
CONSUMED = ("q", "q", "short", "copied", "copy", "ring", "ring", "latest", "latest", "first")
CONSUMED += ("second", "DLQ", "EXPIRED")
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
        self.arrivals = 0
        self.ranks: dict[tuple[str, bytes], int] = {}  # which came first in its queue
        self.passing: set[bytes] = set()  # went in the act that brought them
        self.expires_ms: dict[bytes, int] = {}
        self.due_ms: dict[bytes, int] = {}
        self.given: Counter[tuple[str, bytes]] = Counter()
        self.rig = self.start(())
        for name, (address, kind) in QUEUES.items():
            do(self.rig.registry.create_queue(name, address, kind))
        divert = Divert(name="d", address="copied", forwarding_address="copy")
        do(self.rig.registry.diverts.create(divert))
        self.checked = 0
        self.acts = 0

    @property
    def is_holding(self) -> bool:
        return any(client.held for client in self.clients)

    @property
    def ids(self) -> dict[str, int]:
        """The queues that there are, with their numbers."""
        return {name: queue.id for name, queue in self.rig.registry.queues.items()}

    # --- what kinds of queues add -----------------------------------------------------------------

    def settings(self) -> dict[str, AddressSettings]:
        """Return the settings of addresses."""
        common = AddressSettings(
            auto_delete_queues=False,
            dead_letter_address="DLQ",
            expiry_address="EXPIRED",
            max_delivery_attempts=ATTEMPTS,
        )
        return {"#": common}

    def keep_up(self, after: Places) -> None:
        """Take out of `after` what queues give up by themselves."""

    def take_views(self) -> bool:
        """Take what those were given who take nothing out of a queue."""
        return False

    def check_kinds(self) -> None:
        """Compare what else there is with the model."""

    def check_kinds_cut(self, kept: DuplicateIds, found: Places) -> None:
        """Compare what a start finds besides messages."""

    def forget(self) -> None:
        """Forget what goes with the process."""
        for client in self.clients:
            for body in client.held.values():
                self.given[client.queue, body] -= 1  # nobody wrote down that it was given out
        self.clients.clear()

    def begin_life(self) -> None:
        """Know what holds right after a restart."""

    # --- lives ------------------------------------------------------------------------------------

    @staticmethod
    def new_kept() -> DuplicateIds:
        return DuplicateIds(lambda name: ID_CACHE if name == "q" else 0, is_persistent=True)

    def start(self, blocks: Iterable[KeptBlock], bindings: Any = None) -> Rig:
        kept = self.new_kept()
        queue_ids = durable_queue_ids(bindings.snapshot()) if bindings is not None else ()
        self.journal = CutJournal(type(self).make_core, blocks, queue_ids, kept)
        rig = Rig(
            self.settings(),
            journal=self.journal,
            bindings=bindings,
            duplicates=kept,
            scan_period_ms=SCAN_MS,
        )
        rig.registry.restore()
        return rig

    # --- the acts ---------------------------------------------------------------------------------

    def new(self, *, is_long: bool = False) -> bytes:
        """Return another body; of long ones two fill a block."""
        self.number += 1
        return b"%d" % self.number + b"." * (LONG_BYTES if is_long else 0)

    def arrive(self, after: Places, body: bytes, *names: str) -> None:
        """Have a message come to queues, behind all that is there."""
        self.arrivals += 1
        for name in names:
            after.setdefault(body, Counter())[name] += 1
            self.ranks[name, body] = self.arrivals

    def waiting(self, after: Places, name: str) -> list[bytes]:
        """Return what no client holds of a queue, the oldest first."""
        held = {b for c in self.clients if c.queue == name for b in c.held.values()}
        waits = [body for body, places in after.items() if places[name] and body not in held]
        return sorted(waits, key=lambda body: self.ranks[name, body])

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
            self.arrive(after, body := self.new(), *names)
            text = f"/topic/{to}" if to == "topic" else f"/queue/{to}"
            self.rig.send(text, body, priority=priority, properties=properties)
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
        self.arrive(after, body, name)
        self.settle(after)

    @rule(
        data=st.data(),
        credit=st.integers(1, 5),
        refusals=st.sampled_from((0, 0, 1, ATTEMPTS)),
    )
    def subscribe(self, data: Any, credit: int, refusals: int) -> None:
        """Consume a queue that has something, and refuse that."""
        if len(self.clients) < 5:
            filled = [name for name in CONSUMED if self.waiting(self.where, name)]
            self.open_client(data.draw(st.sampled_from(filled or CONSUMED)), credit)
            self.settle(self.copied())
        if refusals and self.is_holding:
            self.refuse(data, refusals, is_back=data.draw(st.booleans()))

    def open_client(self, name: str, credit: int) -> None:
        output = self.rig.output()
        address, kind = QUEUES.get(name, (name, ANYCAST))
        text = f"/{'topic' if kind is MULTICAST else 'queue'}/{address}::{name}"
        consumer = self.rig.subscribe(output, text, AckMode.INDIVIDUAL, credit=credit)
        self.rig.dispatcher.poke(consumer.queue.id)
        self.clients.append(Client(name, consumer, output))

    @precondition(lambda self: sum(c.queue != FLEETING for c in self.clients) > 2)
    @rule(data=st.data())
    def unsubscribe(self, data: Any) -> None:
        """Close a client; what it holds was given once more, and may be a dead letter then."""
        client = data.draw(st.sampled_from([c for c in self.clients if c.queue != FLEETING]))
        after = self.copied()
        self.close(client)
        self.give_back(after, client)
        self.settle(after)

    def close(self, client: Client) -> None:
        self.clients.remove(client)
        close_subscription(self.rig.core, self.rig.registry, client.consumer)

    def give_back(self, after: Places, client: Client) -> None:
        """Have what a client held be where it is when it was given back."""
        for body in client.held.values():
            if self.given[client.queue, body] >= ATTEMPTS and client.queue != "DLQ":
                after[body] -= Counter((client.queue,))
                self.arrive(after, body, "DLQ")
                self.given[client.queue, body] = 0
                self.expires_ms.pop(body, None)  # a dead letter has no times any more
                self.due_ms.pop(body, None)
                type(self).fates["dead"] += 1
        client.held.clear()

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
    @rule(data=st.data(), times=st.sampled_from((1, ATTEMPTS)), is_back=st.booleans())
    def refuse(self, data: Any, times: int, is_back: bool) -> None:
        """Give back all that a client holds; what was given too often is a dead letter then."""
        client = data.draw(st.sampled_from([each for each in self.clients if each.held]))
        for _ in range(times):
            self.refuse_all(client)
        if is_back and any(places["DLQ"] for places in self.where.values()):
            self.retry()

    def refuse_all(self, client: Client) -> None:
        after = self.copied()
        for sequence in client.held:
            assert self.rig.registry.returns.give_back(client.consumer, sequence) == 1
        self.give_back(after, client)
        self.rig.dispatcher.poke(client.consumer.queue.id)
        self.settle(after)

    @rule(ms=st.sampled_from((300, 1000, 6000)))
    def wait(self, ms: int) -> None:
        self.rig.now_ms += ms
        self.rig.now_s += ms / 1000
        self.settle(self.copied())

    @rule(
        data=st.data(),
        names=st.lists(st.sampled_from(("q", "copied", "DLQ", "ring", "latest")), max_size=3),
        ends=st.integers(0, 3),
    )
    def transact(self, data: Any, names: list[str], ends: int) -> None:
        after = self.copied()
        transaction = Transaction()
        changed: set[bytes] = set()
        for name in names:
            body = self.new(is_long=True)
            transaction.sends.append(
                Outgoing(
                    destination=destination(f"/queue/{name}"),
                    properties=b"destination:x\n",
                    body=body,
                    is_persistent=True,
                )
            )
            self.arrive(after, body, *(("copied", "copy") if name == "copied" else (name,)))
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
        """Send dead letters back to where they came from, those whose queue is there."""
        after = self.copied()
        queue, mover = self.rig.registry.queues["DLQ"], self.rig.engine.fates.mover
        taken: Counter[str] = Counter()
        for view in self.rig.core.look(queue.id, 0, 1000).messages:
            body = self.rig.core.body(queue.id, view.sequence)
            assert body is not None
            origins = [
                line.partition(b":")[2].decode()
                for line in view.properties.splitlines()
                if line.startswith(b"_AMQ_ORIG_QUEUE:")
            ]
            if not origins or taken[origins[0]] == 1:
                continue  # two for a ring: whether both wait at a time depends on the turns
            assert leave(self.rig.core, mover, queue, view, Reason.RETRIED)
            taken[origins[0]] += origins[0] in ("ring", "latest")
            if origins[0] in self.rig.registry.queues:
                after[body] -= Counter(("DLQ",))
                self.arrive(after, body, origins[0])
                self.given[origins[0], body] = self.given["DLQ", body] = 0
                type(self).fates["retried"] += 1
        self.settle(after)

    @rule(name=st.sampled_from(("copy", "first", "ring", "latest", "shown")))
    def purge(self, name: str) -> None:
        after = self.copied()
        held = {b for client in self.clients if client.queue == name for b in client.held.values()}
        self.rig.core.purge_queue(self.ids[name])
        for body in after:
            if after[body][name] and body not in held:
                after[body] -= Counter((name,))
        self.settle(after)

    @precondition(lambda self: self.acts > 12)
    @rule()
    def restart(self) -> None:
        """Kill the broker, and start it on what it has written."""
        self.acts = 0
        self.forget()
        now_ms, bindings = self.rig.now_ms, self.rig.bindings
        self.rig = self.start(self.journal.blocks, bindings)
        self.rig.now_ms = now_ms
        self.begin_life()
        type(self).fates["restarts"] += 1
        self.settle(self.copied())

    # --- what must hold ---------------------------------------------------------------------------

    def copied(self) -> Places:
        return {body: Counter(places) for body, places in self.where.items()}

    def settle(self, after: Places, *, together: set[bytes] | None = None) -> None:
        """Let the engine do all that is due, take what is given, and compare.

        Args:
            after: Where messages are now, but for those that expire or are given up.
            together: Messages of which all have changed their place, or none.
        """
        before = self.where
        self.acts += 1
        self.rig.now_ms += SCAN_MS + 1
        self.passing.clear()
        self.keep_up(after)
        self.run()
        self.where = self.expire(after)
        assert self.found() == self.where
        self.check_kinds()
        for block in range(self.checked, len(self.journal.blocks)):
            self.check_cut(block, before, together or set())
        self.checked = len(self.journal.blocks)

    def run(self) -> None:
        for _ in range(50):
            self.rig.turns()
            self.rig.engine.fates.arrived(self.rig.core.take_ready_queues())
            is_given = [self.take_views(), *map(self.take, self.clients)]
            if not self.rig.engine.fates.has_more and not any(is_given):
                self.rig.turns()
                is_given = [self.take_views(), *map(self.take, self.clients)]
                if not any(is_given):
                    self.journal.flush()  # what a queue gave up in its last turn
                    return
        raise AssertionError("the engine does not come to rest")

    def take(self, client: Client) -> bool:
        frames = client.output.frames()
        for frame in frames:
            places = self.due_ms.get(frame.body, 0), self.expires_ms.get(frame.body, 1 << 60)
            is_moved = client.queue in ("DLQ", "EXPIRED")
            assert is_moved or places[0] <= self.rig.now_ms, "before its time"
            assert client.queue != "short" or self.rig.now_ms < places[1], "after its time"
            bodies = [b for c in self.clients if c.queue == client.queue for b in c.held.values()]
            # Two queues of an address may both give one up: then it is a dead letter twice.
            is_twice = client.queue == "DLQ" and any(
                (name, frame.body) in self.ranks for name in ("copy", "second")
            )
            assert bodies.count(frame.body) <= is_twice, "given twice"
            client.held[sequence_of(frame)] = frame.body
            self.given[client.queue, frame.body] += 1
        return bool(frames)

    def expire(self, after: Places) -> Places:
        """Return where messages are when those that have expired are moved."""
        held = {b for c in self.clients if c.queue == "short" for b in c.held.values()}
        for body, places in after.items():
            is_late = self.expires_ms.get(body, 1 << 60) <= self.rig.now_ms
            if places["short"] and is_late and body not in held:
                after[body] -= Counter(("short",))
                self.arrive(after, body, "EXPIRED")
                self.expires_ms.pop(body)
                self.due_ms.pop(body, None)
                type(self).fates["expired"] += 1
        return {body: places for body, places in after.items() if +places}

    def found(self) -> Places:
        return contents(self.rig.core, self.ids)

    def check_cut(self, block: int, before: Places, together: set[bytes]) -> None:
        """Compare what a start finds behind a block with what was, and what is."""
        type(self).cuts += 1
        kept = self.new_kept()
        blocks = self.journal.blocks[: block + 1]
        core = restore(type(self).make_core, blocks, self.ids.values(), kept)
        kept.start(core, lambda _: True)
        found = contents(core, self.ids)
        none: Counter[str] = Counter()
        states = set()
        for body in before.keys() | self.where.keys() | found.keys():
            was, now = before.get(body, none), self.where.get(body, none)
            there = found.get(body, none)
            is_new = not was and body not in before
            if there not in (was, now):
                # Of a dead one that came from two queues each copy goes back by itself.
                is_between = was["DLQ"] > 1 and there.total() == was.total() and there <= was + now
                assert is_between or is_new or body in self.passing, (body, was, now, there)
                assert is_between or max(there.values()) == 1, f"doubled: {body!r} {there}"
            if body in together and was != now:
                states.add(there == now)
        assert len(states) <= 1, "half a transaction"
        if block == len(self.journal.blocks) - 1:
            wrong = {
                b: found.get(b) for b in found | self.where if found.get(b) != self.where.get(b)
            }
            assert found == self.where, f"found and not confirmed, confirmed and not found: {wrong}"
        self.check_kinds_cut(kept, found)
