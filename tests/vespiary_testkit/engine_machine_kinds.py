"""The engine's machine over kinds of queues: what each keeps, shows, refuses, and gives up.

Adds to `engine_machine`: a ring and last values with consumers, a non-destructive queue with those
who look at it, duplicate ids, and a queue that goes by itself. What the model knows of each is its
rule as `docs/howto` tells it, written a second time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from vespiary_broker.engine.automatic_deletion import Reaper
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.publishing import find_target
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Outgoing,
    Transaction,
    find_duplicate,
    stage,
    stage_once,
)
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_machine import (
    ATTEMPTS,
    FLEETING,
    ID_CACHE,
    QUEUES,
    EngineMachine,
    Places,
)
from vespiary_testkit.engine_rig import FakeOutput, destination, sequence_of

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
    """See the module's docstring."""

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
            is_new = stage_once(rig.core, rig.registry, rig.duplicates, message, target)
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
