"""The engine against a dictionary, over all kinds of queues, and a power cut at every block.

Hypothesis chooses sends, consumers, acknowledgements, refusals, transactions, time that passes,
retries, purges and restarts. The model knows in which queues each message is. After every act
engine and model agree; so does what a start finds after any block of that act: each message is
where it was before, or where it is now, once; a transaction is whole. Runs on both cores.

`CutJournal` keeps the blocks in memory, `EngineMachine` has what all queues share, `KindsMachine`
the kinds of queues.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from vespiary_broker.engine.automatic_deletion import Reaper
from vespiary_broker.engine.core import AckMode, Core
from vespiary_broker.engine.departures import leave
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.message_times import MessageTimes, stamp
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.publishing import find_target
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Outgoing,
    Transaction,
    find_duplicate,
    prepare,
    stage,
    stage_once,
)
from vespiary_broker.store.kept import KeptRecords, KeptSink, NothingKept
from vespiary_native.choice import block_verifier, open_core
from vespiary_native.loader import is_wanted
from vespiary_native.twin import TwinCore
from vespiary_spec.settings import AddressSettings, Divert, RoutingType
from vespiary_testkit.engine_rig import FakeOutput, Rig, destination, do, sequence_of
from vespiary_testkit.journal_model import Model
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.seeds import seed_for

EXAMPLES = int(os.environ.get("VESPIARY_ENGINE_EXAMPLES", "50"))
STEPS = 30
SERIES_MAX = 12
"""A series of examples without one of the fates is followed by another."""
FATES = {
    "dead",
    "discarded",
    "expired",
    "given up by latest",
    "given up by ring",
    "given up by shown",
    "restarts",
    "retried",
    "shown again",
    "went by itself",
    "went with messages",
}

pytestmark = pytest.mark.ci

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


# --- a journal that can be cut --------------------------------------------------------------------

# `MemoryJournal` confirms, and `CutJournal` remembers in which order the blocks came. `restore`
# returns what a start finds if the power went after one of them.

SALT = 7
_BLOCK_BYTES = 64 * 1024


class KeptBlock(NamedTuple):
    """A block that was written."""

    file_id: int
    offset: int
    data: bytes
    sequence: int
    crc: int


class CutJournal(MemoryJournal):
    """A journal in memory that keeps its blocks.

    Args:
        make_core: Makes a core.
        blocks: What a start finds; none for a new journal.
        queue_ids: The queues that there are then.
        kept: Takes the records that the core does not keep.
    """

    def __init__(
        self,
        make_core: Callable[[], Core],
        blocks: Iterable[KeptBlock] = (),
        queue_ids: Iterable[int] = (),
        kept: KeptRecords | None = None,
    ) -> None:
        self.blocks = list(blocks)
        self._make_core = make_core
        if not self.blocks:
            super().__init__(make_core(), file_bytes=1 << 20)
            for queue_id in queue_ids:
                self.core.open_queue(queue_id)
            return
        core = restore(make_core, self.blocks, queue_ids, kept)
        super().__init__(_Begun(core), file_bytes=1 << 20, files=0)  # type: ignore[arg-type]
        self.core = core
        last = self.blocks[-1]
        core.start(last.sequence + 1, last.crc, last.sequence)
        self._files = last.file_id
        for _ in range(8):
            self.add_file()
        core.grow(2)

    def flush(self) -> None:
        """Have everything that is staged written, block by block."""
        is_written = False
        while (request := self.core.seal_write()) is not None:
            data = ctypes.string_at(request.address, request.length)
            self._keep(request.file_id, request.offset, data)
            self.core.write_done(request.sequence)
            is_written = True
        if self._written is not None:
            self._written.set()
            self._written = None
        if is_written:
            self.on_durable()

    def _keep(self, file_id: int, offset: int, data: bytes) -> None:
        view = memoryview(data)
        for facts in block_verifier()(view, offset, SALT, file_id, _BLOCK_BYTES):
            at = facts.offset - offset
            block = data[at : at + facts.length]
            self.blocks.append(KeptBlock(file_id, facts.offset, block, facts.sequence, facts.crc))


class _Begun:
    """Stands for a core while `MemoryJournal` is made: it starts behind its last block, later."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def start(self, *_: int) -> None:
        pass

    def grow(self, slabs: int) -> None:
        pass


def restore(
    make_core: Callable[[], Core],
    blocks: Iterable[KeptBlock],
    queue_ids: Iterable[int],
    kept: KeptRecords | None = None,
) -> Core:
    """Return a core with what stands in blocks, all of it in memory."""
    core = make_core()
    for queue_id in queue_ids:
        core.open_queue(queue_id)
    sink = KeptSink(core, kept or NothingKept())
    files: dict[int, bytearray] = defaultdict(lambda: bytearray(1 << 20))
    for block in blocks:
        if block.file_id not in files:
            sink.restore_file(block.file_id, SALT, 1 << 20)
        files[block.file_id][block.offset : block.offset + len(block.data)] = block.data
        sink.restore_block(block.file_id, block.offset, memoryview(block.data))
    core.restore_done()
    core.grow(8)
    for file_id, data in files.items():
        begun = core.load_begin(file_id, 0)
        if begun is not None:
            address, length, offset = begun
            ctypes.memmove(address, bytes(data[offset : offset + length]), length)
            core.load_done(file_id, 0, good=True)
    return core


def contents(core: Core, queues: Mapping[str, int]) -> dict[bytes, Counter[str]]:
    """Return in which queues each body is, held, set aside or waiting."""
    found: dict[bytes, Counter[str]] = defaultdict(Counter)
    for name, queue_id in queues.items():
        sequence = 0
        while True:
            look = core.look(queue_id, sequence, 1000, everything=True)
            assert look.absent is None, f"{look.absent} is not in memory"
            for view in look.messages:
                body = core.body(queue_id, view.sequence)
                assert body is not None
                found[body][name] += 1
            if look.next_sequence <= sequence or not look.messages:
                break
            sequence = look.next_sequence
    return dict(found)


# --- the engine over restarts ---------------------------------------------------------------------


def places_of(body: bytes, places: Counter[str]) -> set[tuple[str, bytes, int]]:
    """Return where copies of a message are, as keys of a `Model`."""
    return {(name, body, copy) for name, count in places.items() for copy in range(count)}


def judge_act(
    before: Places, now: Places, found: Places, *, together: set[bytes], passing: set[bytes]
) -> list[str]:
    """Return what is wrong with what a start finds after any block of an act.

    Args:
        before: Where messages were before the act.
        now: Where they are after it.
        found: Where a start finds them.
        together: Messages of which all have changed their place, or none.
        passing: Messages that went in the act that brought them.
    """
    model, wrong, none = Model(), [], Counter[str]()
    for number, body in enumerate(before.keys() | now.keys() | found.keys(), 1):
        there, is_free = found.get(body, none), body in passing or body not in before
        was, then = places_of(body, before.get(body, none)), places_of(body, now.get(body, none))
        for key in was:
            model.found(key)
        for key in then - was:
            model.sent(key)
        for key in was if is_free else was - then:
            model.acking(key)
        is_apart = False
        if is_free:
            for name in there:
                model.sent((name, body, 0))  # in any queue, but once
        elif before[body]["DLQ"] > 1:
            # Of a dead one that came from two queues each copy goes back by itself.
            is_apart = True
            if there != now.get(body, none) and there.total() != len(was):
                wrong.append(f"{body!r} is there {there.total()} times, not {len(was)}")
        if was != then and (body in together or not (is_free or is_apart)):
            group = model.groups[0 if body in together else number]
            group.adds |= then - was
            group.acks |= was - then
    return wrong + model.judge({key for body in found for key in places_of(body, found[body])})


@dataclasses.dataclass(eq=False)
class Client:
    """A consumer, and what it holds: body by sequence."""

    queue: str
    consumer: Consumer
    output: FakeOutput
    held: dict[int, bytes] = dataclasses.field(default_factory=dict)


class EngineMachine(RuleBasedStateMachine):
    """One engine over restarts."""

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
        wrong = judge_act(before, self.where, found, together=together, passing=self.passing)
        assert not wrong, wrong
        if block == len(self.journal.blocks) - 1:
            wrong = judge_act(self.where, self.where, found, together=set(), passing=set())
            assert not wrong, wrong
            assert found == self.where
        self.check_kinds_cut(kept, found)


# --- kinds of queues ------------------------------------------------------------------------------

# A ring and last values with consumers, a non-destructive queue and its viewers, duplicate ids, and
# a queue that is deleted automatically. The model has the rules of each as `docs/howto` gives them,
# written a second time.

IDS = tuple(b"%c" % letter for letter in b"abcdefgh")
RING = 3
SHOWN = 6
FLEETING_MESSAGES = 2
FLEETING_DELAY_MS = 1000


@dataclasses.dataclass(eq=False)
class Viewer:
    """A consumer of the non-destructive queue: what it was given, gave back, and holds."""

    consumer: Consumer
    output: FakeOutput
    credit: int
    held: dict[int, bytes] = dataclasses.field(default_factory=dict)
    given: Counter[bytes] = dataclasses.field(default_factory=Counter)
    refused: Counter[bytes] = dataclasses.field(default_factory=Counter)
    last: int = 0  # rank of the newest that it was given


class KindsMachine(EngineMachine):
    """Adds what kinds of queues keep, show, refuse and drop."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}  # rank of the newest message of a value
        self.stocks: dict[bytes, str] = {}  # value of a message
        self.viewers: list[Viewer] = []
        self.seen: list[bytes] = []  # ids that count, the newest last
        self.seen_before: list[bytes] = []
        self.sent_ids: dict[bytes, bytes] = {}  # of this act: id to body
        self.is_there = self.is_used = False  # the queue that goes by itself
        self.idle_since_s = 0.0
        super().__init__()

    def settings(self) -> dict[str, AddressSettings]:
        settings = super().settings()
        common = settings["#"]

        def but(**values: Any) -> AddressSettings:
            return msgspec.structs.replace(common, **values)

        return settings | {
            "ring": but(default_ring_size=RING),
            "latest": but(default_last_value_queue=True, default_last_value_key="stock"),
            "shown": but(default_ring_size=SHOWN, default_non_destructive=True),
            FLEETING: but(
                auto_delete_queues=True,
                auto_delete_queues_delay=FLEETING_DELAY_MS,
                auto_delete_queues_message_count=FLEETING_MESSAGES,
            ),
        }

    # Few rules with much in each: Hypothesis takes them with like chances, and a run has 30 acts.

    @rule(data=st.data(), kind=st.sampled_from(("ring", "shown", "latest", "ids", "ids")))
    def send_to_kind(self, data: Any, kind: str) -> None:
        if kind == "latest":
            keys = st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=4)
            self.send_latest(data.draw(keys))
            holders = [each for each in self.clients if each.queue == "latest" and each.held]
            if not holders and len(self.clients) < 6:
                self.open_client("latest", 1)
                self.settle(self.copied())
            elif holders and data.draw(st.booleans()):
                self.refuse_all(holders[0])
        elif kind == "ids":
            ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=4)
            self.send_with_ids(data.draw(ids), together=data.draw(st.booleans()))
        else:
            self.send_to_ring(kind, data.draw(st.integers(1, 5)))

    # --- rings and last values --------------------------------------------------------------------

    def send_to_ring(self, name: str, count: int) -> None:
        after = self.copied()
        for _ in range(count):
            self.arrive(after, body := self.new(), name)
            self.rig.send(f"/queue/{name}", body)
        self.settle(after)

    def send_latest(self, keys: list[str]) -> None:
        after = self.copied()
        for key in keys:
            self.arrive(after, body := self.new(), "latest")
            self.stocks[body] = key
            self.rig.send("/queue/latest", body, stock=key)
        self.settle(after)

    def keep_up(self, after: Places) -> None:
        for name, size in (("ring", RING), ("shown", SHOWN)):
            for body in self.waiting(after, name)[:-size]:
                self.give_up(after, name, body)
        for body, places in after.items():
            if places["latest"] and body in self.stocks:
                key = self.stocks[body]
                self.newest[key] = max(self.newest.get(key, 0), self.ranks["latest", body])
        for body in self.waiting(after, "latest"):
            key = self.stocks.get(body, "")
            if key and self.ranks["latest", body] < self.newest[key]:
                self.give_up(after, "latest", body)

    def give_up(self, after: Places, name: str, body: bytes) -> None:
        after[body] -= Counter((name,))
        self.passing.add(body)
        type(self).fates[f"given up by {name}"] += 1

    # --- who looks and takes nothing --------------------------------------------------------------

    @rule(
        data=st.data(),
        credit=st.integers(1, 8),
        how=st.sampled_from(("ack", "ack", "nack", "nack", "transaction", "close")),
    )
    def view(self, data: Any, credit: int, how: str) -> None:
        """Begin to look if nobody does; acknowledge or refuse some of what is shown."""
        if not self.waiting(self.where, "shown"):
            self.send_to_ring("shown", 2)
        if not any(viewer.held for viewer in self.viewers):
            output = self.rig.output()
            consumer = self.rig.subscribe(output, "/queue/shown", credit=credit)
            self.rig.dispatcher.poke(consumer.queue.id)
            self.viewers.append(Viewer(consumer, output, credit))
            self.settle(self.copied())
        if any(viewer.held for viewer in self.viewers):
            self.answer(data, how)

    def answer(self, data: Any, how: str) -> None:
        """Acknowledge or refuse some of what is held; nothing of it leaves the queue."""
        viewer = data.draw(st.sampled_from([each for each in self.viewers if each.held]))
        view = viewer.consumer.view
        assert view is not None
        count = data.draw(st.integers(1, len(viewer.held)))
        transaction = Transaction()
        for sequence in list(viewer.held)[:count]:
            body = viewer.held.pop(sequence)
            if how == "ack":
                assert view.acknowledge(sequence) == 1
            elif how == "nack":
                assert self.rig.registry.returns.give_back(viewer.consumer, sequence) == 1
                viewer.refused[body] += 1
            elif how == "transaction":
                transaction.acknowledgements.append(Acknowledgement(viewer.consumer, sequence))
        if how == "close":
            self.viewers.remove(viewer)
            close_subscription(self.rig.core, self.rig.registry, viewer.consumer)
        elif not transaction.is_empty:
            stage(self.rig.core, self.rig.registry, self.rig.duplicates, transaction)
        self.rig.dispatcher.poke(viewer.consumer.queue.id)
        self.settle(self.copied())

    def take_views(self) -> bool:
        is_given = False
        for viewer in self.viewers:
            for frame in viewer.output.frames():
                is_given = True
                body, rank = frame.body, self.ranks["shown", frame.body]
                assert body not in viewer.held.values(), "shown twice"
                viewer.given[body] += 1
                if viewer.given[body] == 1:
                    assert rank > viewer.last, "shown out of order"
                    viewer.last = rank
                else:
                    assert viewer.given[body] == viewer.refused[body] + 1, "shown again"
                    assert viewer.given[body] <= ATTEMPTS, "shown too often"
                    type(self).fates["shown again"] += 1
                viewer.held[sequence_of(frame)] = body
            assert len(viewer.held) <= viewer.credit
        return is_given

    # --- duplicate ids ----------------------------------------------------------------------------

    def send_with_ids(self, ids: list[bytes], *, together: bool) -> None:
        after = self.copied()
        target = find_target(self.rig.registry, destination("/queue/q"))
        assert target is not None
        rig, transaction = self.rig, Transaction()
        for text in ids:
            message = Outgoing(
                destination=destination("/queue/q"),
                properties=b"destination:q\n",
                body=self.new(is_long=True),
                is_persistent=True,
                duplicate_id=text,
            )
            if together:
                transaction.sends.append(message)
                continue
            placed = stage_once(rig.core, rig.registry, rig.duplicates, message, target)
            is_new = placed is not None
            assert is_new == (text not in self.seen)
            if is_new:
                self.note_id(after, message)
            type(self).fates["discarded"] += not is_new
        changed: set[bytes] = set()
        if together:
            is_refused = find_duplicate(rig.duplicates, transaction) is not None
            assert is_refused == (len(set(ids)) < len(ids) or bool(set(ids) & set(self.seen)))
            if not is_refused:
                stage(rig.core, rig.registry, rig.duplicates, transaction)
                for message in transaction.sends:
                    self.note_id(after, message)
                    changed.add(message.body)
        self.settle(after, together=changed)

    def note_id(self, after: Places, message: Outgoing) -> None:
        self.arrive(after, message.body, "q")
        self.sent_ids[message.duplicate_id] = message.body
        self.seen = [*self.seen, message.duplicate_id][-ID_CACHE:]

    def check_kinds_cut(self, kept: DuplicateIds, found: Places) -> None:
        for text in self.seen:
            is_seen = kept.is_seen("q", text)
            if text not in self.sent_ids:
                assert is_seen, f"the id {text!r} is forgotten"
            elif text not in self.seen_before:
                is_found = self.sent_ids[text] in found
                assert is_seen == is_found, f"id {text!r} {is_seen}, its message {is_found}"

    # --- a queue that goes by itself --------------------------------------------------------------

    @rule(
        count=st.integers(0, 2),
        credit=st.integers(0, 2),
        leaves=st.sampled_from((True, True, False)),
        waits_ms=st.sampled_from((500, FLEETING_DELAY_MS, FLEETING_DELAY_MS)),
        acknowledges=st.booleans(),
    )
    def come_and_go(
        self, count: int, credit: int, leaves: bool, waits_ms: int, acknowledges: bool
    ) -> None:
        self.use_fleeting(count, credit)
        if self.is_there and leaves:
            self.leave_fleeting(waits_ms, acknowledges=acknowledges)

    def use_fleeting(self, count: int, credit: int) -> None:
        """Send to the queue, and consume it; whichever comes first makes it."""
        after = self.copied()
        for _ in range(count):
            self.arrive(after, body := self.new(), FLEETING)
            self.rig.send(f"/queue/{FLEETING}", body)
            self.make_fleeting()
            self.is_used = True
        if credit and len(self.clients) < 6:
            self.open_client(FLEETING, credit)
            self.make_fleeting()
            self.is_used = True
        self.settle(after)

    def arrive(self, after: Places, body: bytes, *names: str) -> None:
        """Note that the queue that goes by itself is used: a dead letter may come back to it."""
        super().arrive(after, body, *names)
        self.is_used = self.is_used or FLEETING in names

    def make_fleeting(self) -> None:
        if not self.is_there:
            self.is_there = True
            self.idle_since_s = self.rig.now_s

    def leave_fleeting(self, waits_ms: int, *, acknowledges: bool) -> None:
        """Close all its consumers, wait, and have it looked at whether it goes."""
        after = self.copied()
        for client in [each for each in self.clients if each.queue == FLEETING]:
            if acknowledges:
                for sequence, body in client.held.items():
                    assert self.rig.core.acknowledge(client.consumer.handle, sequence) == 1
                    after[body] -= Counter((FLEETING,))
                client.held.clear()
            self.close(client)
            self.give_back(after, client)
            self.idle_since_s = self.rig.now_s
        self.settle(after)
        after = self.copied()
        self.rig.now_s += waits_ms / 1000
        for _ in Reaper(self.rig.registry, lambda: self.rig.now_s).scan():
            pass
        is_late = self.rig.now_s - self.idle_since_s >= FLEETING_DELAY_MS / 1000
        messages = self.waiting(after, FLEETING)
        if is_late and self.is_used and len(messages) <= FLEETING_MESSAGES:
            for body in messages:
                after[body] -= Counter((FLEETING,))
            self.is_there = self.is_used = False
            type(self).fates["went by itself"] += 1
            type(self).fates["went with messages"] += bool(messages)
        self.settle(after)

    # --- what must hold ---------------------------------------------------------------------------

    def settle(self, after: Places, *, together: set[bytes] | None = None) -> None:
        super().settle(after, together=together)
        self.sent_ids.clear()
        self.seen_before = list(self.seen)

    def check_kinds(self) -> None:
        assert self.ids.keys() == QUEUES.keys() | ({FLEETING} if self.is_there else set())
        for text in IDS:
            assert self.rig.duplicates.is_seen("q", text) == (text in self.seen)
        for viewer in self.viewers:
            if len(viewer.held) < viewer.credit:
                for body in self.waiting(self.where, "shown"):
                    refused = viewer.refused[body]
                    least = min(refused + 1, ATTEMPTS)
                    assert viewer.given[body] >= least, f"{body!r} is not shown"

    def forget(self) -> None:
        super().forget()
        self.viewers.clear()
        self.newest.clear()
        self.is_used = False

    def begin_life(self) -> None:
        # Not before: each life has a monotonic clock of its own, which begins anew.
        self.idle_since_s = self.rig.now_s


# --- the tests ------------------------------------------------------------------------------------


def _wrong(before: dict[str, int], now: dict[str, int], found: dict[str, int], **how: Any) -> str:
    states = [{b"m": Counter(each)} if each else {} for each in (before, now, found)]
    return "\n".join(judge_act(*states, **({"together": set(), "passing": set()} | how)))


def test_a_message_is_where_it_was_or_where_it_is() -> None:
    for found in ({"q": 1}, {"DLQ": 1}):
        assert not _wrong({"q": 1}, {"DLQ": 1}, found)
    assert "half" in _wrong({"q": 1}, {"DLQ": 1}, {"q": 1, "DLQ": 1})
    assert "half" in _wrong({"q": 1}, {"DLQ": 1}, {})
    assert "back" in _wrong({"q": 1}, {"DLQ": 1}, {"copy": 1})
    assert "lost" in _wrong({"q": 1}, {"q": 1}, {})
    assert "back" in _wrong({"q": 1}, {"q": 1}, {"q": 2})


def test_a_message_that_passes_is_anywhere_once() -> None:
    for passing in (set(), {b"m"}):
        assert not _wrong({}, {"EXPIRED": 1}, {"short": 1}, passing=passing)
        assert "back" in _wrong({}, {"EXPIRED": 1}, {"short": 2}, passing=passing)
    assert not _wrong({"ring": 1}, {}, {"ring": 1}, passing={b"m"})


def test_copies_of_a_dead_message_go_back_one_by_one() -> None:
    two, back = {"DLQ": 2}, {"first": 1, "second": 1}
    for found in (two, back, {"DLQ": 1, "first": 1}):
        assert not _wrong(two, back, found)
    assert "1 times" in _wrong(two, back, {"first": 1})
    assert "3 times" in _wrong(two, back, {"DLQ": 2, "first": 1})


def test_a_transaction_is_whole() -> None:
    before, now = {b"a": Counter("q")}, {b"b": Counter("q")}
    both = {"together": {b"a", b"b"}, "passing": set[bytes]()}
    for found in (before, now):
        assert judge_act(before, now, found, **both) == []
    for found in ({}, before | now):
        assert "half" in judge_act(before, now, found, **both)[0]


@pytest.mark.parametrize("core", ["native", "twin"])
def test_any_order_of_acts_and_power_cuts(core: str) -> None:
    if core == "native" and not is_wanted():
        pytest.skip("the native part is switched off")

    def make_core() -> Core:
        # Small blocks: a transaction takes several.
        options = {"slabs_max": 16, "record_bytes_max": 490 * 1024, "block_bytes": 4096}
        return TwinCore(**options) if core == "twin" else open_core(**options)

    parts = {"make_core": staticmethod(make_core), "cuts": 0, "fates": Counter()}
    machine = type(f"{core.title()}Engine", (KindsMachine,), parts)
    chosen = settings(
        max_examples=EXAMPLES if core == "native" else max(EXAMPLES // 4, 1),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        # In CI what failed is told at once; making it small takes minutes.
        phases=[Phase.generate, *([] if os.environ.get("CI") else [Phase.shrink])],
    )
    for number in range(SERIES_MAX):
        seeded = seed(seed_for(f"engine machine {number}"))(machine)
        run_state_machine_as_test(seeded, settings=chosen)
        if core == "twin" or (+machine.fates).keys() >= FATES:
            break
    print(f"{core}: {machine.cuts} cuts, {dict(machine.fates)}")
    assert machine.cuts >= EXAMPLES
    if core == "native":
        assert (+machine.fates).keys() >= FATES, "what it is for did not happen"
