"""Why queues and addresses are not moving: each reason, and what is none. The clock is ours."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest

from vespiary_broker.engine.address_memory import MemoryLimits
from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.stall_watch import StallWatch
from vespiary_broker.engine.stalls import Stall, StallReason, Stalls
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_native.choice import open_core
from vespiary_spec.errors import JournalFull
from vespiary_spec.settings import AddressFullPolicy, AddressSettings, DiskFullPolicy, RoutingType
from vespiary_testkit.engine_rig import FakeOutput, Rig, do, sequence_of
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.refusing_core import RefusingCore

LOGGER = "vespiary_broker.engine.stall_watch"
FULL_DISK = JournalFull("no journal file can be made", measured="91 %", allowed="90 %")


class Watched:
    """An engine, what it says is stalled, and the watch over that."""

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        *,
        out: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        given = {"q": settings, "out": out}.items()
        matches = {name: AddressSettings(**values) for name, values in given if values}
        self.rig = Rig(matches or None, **options)
        self.disk: JournalFull | None = None
        self.producers = 0
        self.waiting: set[int] = set()  # handles of connections that wait for the journal
        self.stalls = Stalls(
            self.rig.engine,
            lambda _: self.producers,
            lambda: self.disk,
            lambda handle: handle in self.waiting,
        )
        self.watch = StallWatch(self.rig.engine, self.stalls, lambda: self.rig.now_s)

    def send(self, count: int = 1, properties: bytes = b"", queue: str = "q") -> None:
        for number in range(count):
            self.rig.send(f"/queue/{queue}", b"%d" % number, properties=properties)
        self.rig.turns()

    def scan(self, times: int = 1) -> None:
        for _ in range(times):
            self.rig.now_s += self.watch.period_s
            for _ in self.watch.scan():
                pass

    def settle(self) -> None:
        """Let so much time pass that nothing counts as moving."""
        self.rig.turns()
        self.scan(3)

    def reason(self, name: str = "q") -> StallReason | None:
        stall = self.stalls.why(self.rig.registry.queues[name])
        return None if stall is None else stall.reason

    def address_reason(self, name: str = "q") -> StallReason | None:
        self.rig.engine.memory.refresh()
        stall = self.stalls.why(self.rig.registry.addresses[name])
        return None if stall is None else stall.reason


def test_what_has_nothing_to_give_is_not_stalled() -> None:
    watched = Watched()
    output = watched.rig.output()
    consumer = watched.rig.subscribe(output, "/queue/q")
    watched.settle()
    assert (watched.reason(), watched.address_reason()) == (None, None)
    watched.send()
    watched.settle()
    assert watched.reason() is None, "the consumer has all of it"
    watched.rig.core.acknowledge(consumer.handle, sequence_of(output.frames()[0]))
    watched.settle()
    assert watched.reason() is None


def test_no_consumers() -> None:
    watched = Watched()
    watched.send()
    assert watched.reason() is StallReason.NO_CONSUMERS
    consumer = watched.rig.subscribe(watched.rig.output(), "/queue/q")
    watched.rig.turns()
    assert watched.reason() is None
    close_subscription(watched.rig.core, watched.rig.registry, consumer, counted=False)
    watched.rig.turns()
    assert watched.reason() is StallReason.NO_CONSUMERS


def test_too_few_consumers() -> None:
    watched = Watched({"default_consumers_before_dispatch": 2})
    watched.send()
    watched.rig.subscribe(watched.rig.output(), "/queue/q")
    stall = watched.stalls.why(watched.rig.registry.queues["q"])
    assert stall is not None
    assert stall.reason is StallReason.NO_CONSUMERS
    assert "it has 1 consumer and waits for 2" in stall.text


@pytest.mark.parametrize("is_address", [False, True])
def test_paused(*, is_address: bool) -> None:
    watched = Watched()
    watched.send()
    queue = watched.rig.registry.queues["q"]
    pausing = watched.rig.registry.pausing
    if is_address:
        do(pausing.pause_address(queue.address, is_paused=True))
    else:
        do(pausing.pause_queue(queue, is_paused=True))
    stall = watched.stalls.why(queue)
    assert stall is not None
    assert stall.reason is StallReason.PAUSED
    assert stall.cure == f"`vespiary {'address' if is_address else 'queue'} resume q`"
    assert watched.address_reason() is (StallReason.PAUSED if is_address else None)


def test_all_messages_scheduled() -> None:
    watched = Watched()
    watched.rig.subscribe(watched.rig.output(), "/queue/q")
    due = watched.rig.now_ms + 100_000
    watched.rig.send("/queue/q", b"x", properties=b"AMQ_SCHEDULED_TIME:%d\n" % due, priority=5)
    watched.rig.turns()
    stall = watched.stalls.why(watched.rig.registry.queues["q"])
    assert stall is not None
    assert stall.reason is StallReason.SCHEDULED
    assert "1 message is scheduled" in stall.text
    watched.rig.now_ms = due
    watched.rig.turns()
    assert watched.reason() is None


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.INDIVIDUAL])
def test_consumers_without_credit(mode: AckMode) -> None:
    watched = Watched()
    output = watched.rig.output()
    consumer = watched.rig.subscribe(output, "/queue/q", mode, credit=2)
    watched.send(5)
    assert watched.reason() is None, "it may be busy"
    watched.settle()
    assert watched.reason() is StallReason.NO_CREDIT
    watched.rig.core.acknowledge(consumer.handle, sequence_of(output.frames()[0]))
    watched.rig.turns()
    assert watched.reason() is None


def test_a_client_that_does_not_read() -> None:
    watched = Watched()
    output = watched.rig.output(room=1)
    watched.rig.subscribe(output, "/queue/q", AckMode.AUTO)
    watched.send(5)
    watched.settle()
    stall = watched.stalls.why(watched.rig.registry.queues["q"])
    assert stall is not None
    assert stall.reason is StallReason.NO_CREDIT
    assert "1 client does not read the connection" in stall.text


def test_a_credit_of_the_protocol_counts() -> None:
    watched = Watched()
    consumer = watched.rig.subscribe(watched.rig.output(room=1), "/queue/q", credit=1000)
    consumer.client_credit = lambda: 0
    watched.send(2)
    watched.settle()
    assert watched.reason() is StallReason.NO_CREDIT


def test_no_selector_matches() -> None:
    watched = Watched()
    watched.rig.subscribe(watched.rig.output(), "/queue/q", selector="a = 1")
    watched.send(3, b"a:2\n")
    watched.settle()
    stall = watched.stalls.why(watched.rig.registry.queues["q"])
    assert stall is not None
    assert stall.reason is StallReason.NO_SELECTOR_MATCH
    assert "no message matches" in stall.text
    assert stall.cure.startswith("start a consumer whose selector matches, or one without a sel")
    assert "a = 1" not in stall.text, "selectors are for administrators"
    output = watched.rig.output()
    watched.rig.subscribe(output, "/queue/q", selector="a = 2", credit=1)
    watched.settle()
    assert watched.reason() is StallReason.NO_CREDIT, "who wants the rest has no credit"


def queue_stall(watched: Watched, name: str) -> Stall:
    stall = watched.stalls.why(watched.rig.registry.queues[name])
    assert stall is not None
    return stall


@pytest.mark.parametrize("name", ["DLQ", "ExpiryQueue"])
def test_dead_letters_say_how_they_go_back(name: str) -> None:
    watched = Watched(
        {"dead_letter_address": "DLQ", "expiry_address": "ExpiryQueue"},
    )
    watched.send(queue=name)
    assert f"`vespiary queue retry {name}` moves them back" in queue_stall(watched, name).cure


def set_aside(watched: Watched, reason: Reason, queue: str = "q") -> None:
    """Have the messages of a queue leave it."""
    core, found = watched.rig.core, watched.rig.registry.queues[queue]
    if reason is Reason.DELIVERIES:
        consumer = watched.rig.subscribe(watched.rig.output(), f"/queue/{queue}")
        watched.rig.turns()
        watched.rig.registry.returns.give_back(consumer, 1)
    for view in core.look(found.id, 0, 100).messages:
        assert core.set_aside(found.id, view.sequence)
        watched.rig.engine.fates.mover.add(found, view.sequence, reason)
    watched.rig.turns()


def leaving(**options: Any) -> Watched:
    """Return an engine with a message that is to leave its queue q for a place named out."""
    places = {"dead_letter_address": "out", "expiry_address": "out"}
    watched = Watched({**places, "max_delivery_attempts": 1}, **options)
    do(watched.rig.registry.create_queue("out", "out", RoutingType.ANYCAST))
    watched.send()
    return watched


@pytest.mark.parametrize("reason", [Reason.DELIVERIES, Reason.EXPIRED])
@pytest.mark.parametrize("policy", [AddressFullPolicy.BLOCK, AddressFullPolicy.FAIL])
def test_messages_whose_place_is_full(policy: AddressFullPolicy, reason: Reason) -> None:
    watched = leaving(out=full(policy))
    watched.send(2, queue="out")
    watched.rig.engine.memory.refresh()
    set_aside(watched, reason)
    stall = queue_stall(watched, "q")
    assert stall.reason is StallReason.UNMOVABLE
    assert stall.text.startswith("1 message cannot be moved to out, which is full")
    assert stall.cure.startswith("consume messages of out, raise its limit")


@pytest.mark.parametrize("reason", [Reason.DELIVERIES, Reason.EXPIRED])
def test_messages_that_the_core_does_not_take_elsewhere(reason: Reason) -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    watched = leaving(journal=MemoryJournal(core, files=32))
    core.failures["publish"] = lambda *_: ValueError("the test does not take it")
    set_aside(watched, reason)
    stall = queue_stall(watched, "q")
    assert stall.reason is StallReason.UNMOVABLE
    assert stall.text == (
        "1 message cannot be moved to out: the test does not take it, and waits to be delivered "
        "again"
    )
    del core.failures["publish"]
    due_ms = watched.rig.engine.fates.redelivery.next_ms
    assert due_ms is not None
    watched.rig.now_ms = due_ms
    watched.rig.turns()
    again = StallReason.NO_CONSUMERS if reason is Reason.EXPIRED else None
    assert watched.reason() is again, "it is delivered again"
    if reason is Reason.EXPIRED:
        set_aside(watched, reason)
        assert watched.reason() is None


def test_messages_whose_move_finds_no_room() -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    watched = leaving(journal=MemoryJournal(core, files=32))
    core.refusals["begin"] = 1000
    set_aside(watched, Reason.EXPIRED)
    stall = queue_stall(watched, "q")
    assert stall.reason is StallReason.UNMOVABLE
    assert "the journal has no room" in stall.text
    assert "enlarge the volume" in stall.cure


def test_a_dead_letter_that_nothing_else_takes() -> None:
    watched = Watched({"dead_letter_address": "q", "max_delivery_attempts": 1})
    watched.send()
    set_aside(watched, Reason.DELIVERIES)
    stall = queue_stall(watched, "q")
    assert stall.reason is StallReason.UNMOVABLE
    assert "no other address takes them" in stall.text
    assert "set dead-letter-address" in stall.cure


def test_expired_messages_whose_address_cannot_be_made() -> None:
    watched = Watched({"expiry_address": "out"}, out={"auto_create_queues": False})
    watched.send()
    set_aside(watched, Reason.EXPIRED)
    stall = queue_stall(watched, "q")
    assert stall.reason is StallReason.UNMOVABLE
    assert "cannot be made" in stall.text


def test_messages_that_no_queue_of_their_place_takes() -> None:
    watched = Watched({"dead_letter_address": "out", "max_delivery_attempts": 1})
    traits = QueueTraits(selector=compile_filter("a = 1"))
    create = watched.rig.registry.create_queue
    do(create("picky", "out", RoutingType.MULTICAST, traits=traits))
    watched.send()
    set_aside(watched, Reason.DELIVERIES)
    stall = queue_stall(watched, "q")
    assert stall.reason is StallReason.UNMOVABLE
    assert "to out: no queue there takes them" in stall.text
    assert "give out a queue without a filter" in stall.cure


def test_a_subscription_whose_client_is_away() -> None:
    watched = Watched()
    output = watched.rig.output()
    kept = watched.rig.subscribe(output, "/topic/t", client_id="till", durable_name="s")
    name = kept.queue.name
    close_subscription(watched.rig.core, watched.rig.registry, kept, counted=False)
    watched.rig.send("/topic/t", b"x")
    watched.rig.turns()
    stall = queue_stall(watched, name)
    assert stall.reason is StallReason.NO_CONSUMERS
    assert stall.text == "its client (client id till) is not connected"
    assert stall.cure.startswith("start this client")


def test_a_consumer_that_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    output = watched.rig.output(room=1)
    consumer = watched.rig.subscribe(output, "/queue/q", AckMode.AUTO)
    consumer.client_credit = lambda: 0
    watched.send(5)
    watched.settle()
    monkeypatch.setattr(watched.rig.dispatcher, "is_output_full", lambda *_: False)
    stall = queue_stall(watched, "q")
    assert stall.text == "its consumer takes no message: the client has granted no credit"
    assert "connection close" not in stall.cure


def test_a_full_address_whose_messages_consumers_hold() -> None:
    watched = Watched(full())
    watched.rig.subscribe(watched.rig.output(), "/queue/q")
    watched.send(2)
    assert watched.address_reason() is StallReason.FULL
    stall = watched.stalls.why(watched.rig.registry.addresses["q"])
    assert stall is not None
    assert stall.cure.startswith(
        "its queue q has 2 messages delivered and not acknowledged; "
        "`vespiary consumer list --queue q` shows by whom; or raise its limit"
    )


def test_groups_whose_owner_takes_nothing() -> None:
    watched = Watched()
    owner, other = watched.rig.output(), watched.rig.output()
    watched.rig.subscribe(owner, "/queue/q", credit=1)
    watched.send(1, b"JMSXGroupID:g\n")
    assert len(owner.frames()) == 1
    watched.rig.subscribe(other, "/queue/q")
    watched.send(3, b"JMSXGroupID:g\n")
    watched.settle()
    stall = watched.stalls.why(watched.rig.registry.queues["q"])
    assert stall is not None
    assert stall.reason is StallReason.GROUP_OWNER
    assert f"of connection {owner.handle} " in stall.text


def test_an_exclusive_consumer() -> None:
    watched = Watched()
    alone = watched.rig.subscribe(watched.rig.output(), "/queue/q", credit=1, is_exclusive=True)
    watched.rig.subscribe(watched.rig.output(), "/queue/q")
    watched.send(3)
    watched.settle()
    assert watched.reason() is StallReason.EXCLUSIVE_CONSUMER
    close_subscription(watched.rig.core, watched.rig.registry, alone, counted=False)
    watched.rig.turns()
    assert watched.reason() is None


def full(policy: AddressFullPolicy = AddressFullPolicy.BLOCK) -> dict[str, Any]:
    return {"max_size_messages": 2, "address_full_policy": policy}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (AddressFullPolicy.BLOCK, "3 producers wait"),
        (AddressFullPolicy.FAIL, "are rejected"),
        (AddressFullPolicy.DROP, "are dropped"),
    ],
)
def test_a_full_address(policy: AddressFullPolicy, said: str) -> None:
    watched = Watched(full(policy))
    watched.send(1)
    assert watched.address_reason() is None
    watched.send(1)
    watched.producers = 3
    assert watched.address_reason() is StallReason.FULL
    stall = watched.stalls.why(watched.rig.registry.addresses["q"])
    assert stall is not None
    assert said in stall.text
    assert "2 messages, allowed max-size-messages 2" in stall.text
    assert "its queue q is stalled, it has no consumers: start a consumer" in stall.cure
    assert "raise its limit (address-settings q)" in stall.cure
    assert stall.blocked_producers == 3


def test_an_address_that_pages_is_not_full() -> None:
    watched = Watched(full(AddressFullPolicy.PAGE))
    watched.send(3)
    assert watched.address_reason() is None


def test_all_addresses_together_are_full() -> None:
    watched = Watched(
        {"address_full_policy": AddressFullPolicy.BLOCK}, limits=MemoryLimits(None, 2)
    )
    watched.send(2)
    assert watched.address_reason() is StallReason.MEMORY


@pytest.mark.parametrize("policy", list(DiskFullPolicy))
def test_a_full_disk(policy: DiskFullPolicy) -> None:
    watched = Watched({"disk_full_policy": policy})
    watched.send()
    watched.disk = FULL_DISK
    waits = policy is DiskFullPolicy.BLOCK
    assert watched.address_reason() is (StallReason.DISK if waits else None)


def test_deliveries_that_find_no_room() -> None:
    watched = Watched()
    watched.rig.subscribe(watched.rig.output(), "/queue/q")
    queue = watched.rig.registry.queues["q"]
    queue.is_paused = True
    watched.send(2)
    watched.settle()
    queue.is_paused = False
    watched.rig.dispatcher._outflow.starve(queue.id)
    assert watched.reason() is None
    watched.disk = FULL_DISK
    assert watched.reason() is StallReason.DISK


def test_acknowledgements_that_wait_for_room() -> None:
    """With and without more messages in the queue; what moves by other consumers is no stall."""
    watched = Watched()
    output = watched.rig.output()
    watched.rig.subscribe(output, "/queue/q", credit=2)
    watched.send(2)
    watched.settle()
    watched.disk = FULL_DISK
    assert watched.reason() is None, "its consumer holds all messages, and may be busy"
    watched.waiting.add(output.handle)
    assert watched.reason() is StallReason.DISK, "its consumer cannot acknowledge what it holds"
    watched.send(1)
    watched.settle()
    stall = watched.stalls.why(watched.rig.registry.queues["q"])
    assert stall is not None
    assert stall.reason is StallReason.DISK
    assert "acknowledgements of 1 consumer find no room in the journal" in stall.text
    assert "enlarge the volume" in stall.cure
    watched.disk = None
    assert watched.reason() is StallReason.NO_CREDIT


def test_what_an_operator_has_to_repair_is_not_hidden() -> None:
    watched = Watched(full())
    output = watched.rig.output()
    watched.rig.subscribe(output, "/queue/q", credit=1)
    watched.send(2)
    watched.settle()
    registry, watched.disk, watched.producers = watched.rig.registry, FULL_DISK, 3
    watched.waiting.add(output.handle)
    do(registry.pausing.pause_queue(registry.queues["q"], is_paused=True))
    stall = watched.stalls.why(registry.queues["q"])
    assert stall is not None
    assert stall.reason is StallReason.DISK
    assert "it is paused" in stall.text
    assert "`vespiary queue resume q`" in stall.cure
    watched.rig.engine.memory.refresh()
    stall = watched.stalls.why(registry.addresses["q"])
    assert stall is not None
    assert (stall.reason, stall.blocked_producers) == (StallReason.DISK, 3)
    assert "it is full" in stall.text


def test_a_message_that_is_being_read_back() -> None:
    watched = Watched()
    watched.rig.subscribe(watched.rig.output(), "/queue/q")
    queue = watched.rig.registry.queues["q"]
    queue.is_paused = True
    watched.send(2)
    watched.settle()
    queue.is_paused = False
    watched.rig.dispatcher.load((1, 0), queue.id)
    assert watched.reason() is StallReason.MEMORY


def test_producers_that_wait_for_a_rate() -> None:
    watched = Watched({"producer_message_rate": 1})
    watched.send()
    sends = watched.rig.registry.limits.sends
    with sends.holding("q"), sends.holding("q"):
        stall = watched.stalls.why(watched.rig.registry.addresses["q"])
    assert stall is not None
    assert (stall.reason, stall.blocked_producers) == (StallReason.RATE_LIMIT, 2)
    assert watched.address_reason() is None


def test_a_non_destructive_queue_is_stalled_only_with_unseen_messages() -> None:
    watched = Watched({"default_non_destructive": True})
    watched.send(3)
    watched.settle()
    assert watched.reason() is None, "nobody takes anything from it"
    output = watched.rig.output()
    consumer = watched.rig.subscribe(output, "/queue/q", credit=2)
    watched.settle()
    assert watched.reason() is StallReason.NO_CREDIT
    assert consumer.view is not None
    consumer.view.acknowledge(sequence_of(output.frames()[0]))
    watched.rig.dispatcher.poke(consumer.queue.id)
    watched.settle()
    assert watched.reason() is None


# --- the watch ------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the watch has logged; an end and a scheduled message are no reason to worry."""
    found = [record for record in caplog.records if record.name == LOGGER]
    caplog.clear()
    for record in found:
        text = record.getMessage()
        is_begin = "is stalled" in text or "are stalled" in text
        is_calm = not is_begin or "reason=scheduled" in text or "reasons='scheduled" in text
        assert record.levelno == (logging.INFO if is_calm else logging.WARNING)
    return [record.getMessage() for record in found]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_stall_is_logged_when_two_scans_found_it_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    watched.send()
    watched.scan()
    assert lines(caplog) == []
    watched.scan()
    (begun,) = lines(caplog)
    assert begun.startswith(
        "queue is stalled queue=q reason=no-consumers text='it has no consumers'"
    )
    watched.scan(20)
    assert lines(caplog) == []
    (place,) = watched.watch.stalled(10)
    assert (place.kind, place.name, place.address, place.age_s) == ("queue", "q", "q", 105.0)
    assert watched.watch.counts()[0] == {StallReason.NO_CONSUMERS: 1}
    watched.rig.subscribe(watched.rig.output(), "/queue/q")
    watched.rig.turns()
    assert watched.watch.stalled(10) == []
    watched.scan()
    (ended,) = lines(caplog)
    assert ended.startswith("queue is no longer stalled queue=q reason=no-consumers seconds=")
    assert watched.watch.counts()[0] == {}


def test_one_queue_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.send()
    queue = watched.rig.registry.queues["q"]
    begun = []
    for _ in range(24):  # 4 minutes, 10 s each
        queue.is_paused = True
        watched.scan()
        watched.scan()
        begun += [line for line in lines(caplog) if "reason=paused" in line]
        queue.is_paused = False
    starts = [line for line in begun if line.startswith("queue is stalled")]
    assert len(starts) <= 4


def test_many_stalls_are_counted_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    for number in range(100):
        watched.send(queue=f"q{number}")
    watched.scan(2)
    found = lines(caplog)
    assert len(found) == 21
    assert "count=80 reasons='no-consumers 80'" in found[-1]
    watched.scan(30)
    assert lines(caplog) == []
    assert len(watched.watch.stalled(5)) == 5
    for queue in list(watched.rig.registry.queues.values()):
        watched.rig.core.purge_queue(queue.id)
    watched.rig.turns()
    watched.scan()
    assert len(lines(caplog)) == 20, "those that were named"


def test_queues_do_not_keep_a_full_address_out_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched(full())
    for number in range(30):
        watched.send(queue=f"q{number}")
    watched.send(2)
    watched.rig.engine.memory.refresh()
    watched.scan(2)
    assert lines(caplog)[0].startswith("address is stalled address=q reason=full")


def test_new_stalls_of_a_minute_are_counted_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    for number in range(20):
        watched.send(queue=f"first{number}")
    watched.scan(2)
    assert len(lines(caplog)) == 20
    for number in range(5):
        watched.send(queue=f"then{number}")
        watched.scan()
    assert [line for line in lines(caplog) if "count=" not in line] == []
    watched.scan(12)
    assert sum("count=" in line for line in lines(caplog)) == 1


def test_a_deleted_queue_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    watched.send()
    watched.scan(2)
    assert len(lines(caplog)) == 1
    watched.rig.registry.drop_queue(watched.rig.registry.queues["q"])
    assert watched.watch.stalled(10) == []
    watched.scan()
    assert watched.watch.counts()[0] == {}
    (ended,) = lines(caplog)
    assert ended.startswith("stalled queue was deleted queue=q reason=no-consumers seconds=")


def test_a_queue_that_is_made_again_is_named_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    found = []
    for _ in range(24):  # 4 minutes, 10 s each
        watched.send()
        watched.scan(2)
        found += lines(caplog)
        watched.rig.registry.drop_queue(watched.rig.registry.queues["q"])
    watched.scan()
    found += lines(caplog)
    begun = [line.startswith("queue is stalled queue=q") for line in found]
    assert 2 <= sum(begun) <= 4
    assert begun == [True, False] * sum(begun), "each that is named has its end"


def test_scheduled_messages_do_not_keep_others_out_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    for number in range(30):
        due = b"AMQ_SCHEDULED_TIME:%d\n" % (watched.rig.now_ms + 3_600_000)
        watched.rig.send(f"/queue/later{number}", b"x", properties=due, priority=5)
    for _ in range(30):
        watched.rig.turn()
    watched.scan(2)
    watched.send()
    watched.scan(2)
    found = lines(caplog)
    assert sum("reason=scheduled" in line for line in found) == 20
    assert sum("is stalled queue=q reason=no-consumers" in line for line in found) == 1


def test_addresses_come_first() -> None:
    watched = Watched(full())
    watched.send(queue="other")
    watched.send(2)
    watched.scan(2)
    kinds = [place.kind for place in watched.watch.stalled(10)]
    assert kinds == ["address", "queue", "queue"]
    assert [place.kind for place in watched.watch.stalled(1)] == ["address"]


def test_full_addresses_come_first_and_a_full_disk_last() -> None:
    watched = Watched(full())
    for name in ("paused", "other", "later"):
        watched.send(queue=name)
        queue = watched.rig.registry.queues[name]
        do(watched.rig.registry.pausing.pause_address(queue.address, is_paused=True))
    watched.scan()
    watched.send(2)
    watched.rig.engine.memory.refresh()
    watched.scan()
    names = [(place.kind, place.name) for place in watched.watch.stalled(4)]
    addresses = [("address", name) for name in ("q", "paused", "other", "later")]
    assert names == addresses
    watched.disk, watched.producers = FULL_DISK, 1
    watched.scan()
    kinds = [place.kind for place in watched.watch.stalled(8)]
    assert kinds == ["address", *["queue"] * 4, *["address"] * 3]


def test_a_scan_looks_at_few_places_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    for number in range(200):
        watched.send(queue=f"q{number}")
    looks = 0
    why = watched.stalls.why

    def counted(place: Queue | Address) -> Stall | None:
        nonlocal looks
        looks += 1
        return why(place)

    monkeypatch.setattr(watched.stalls, "why", counted)
    counts = [0, *(looks for _ in watched.watch.scan()), looks]
    assert looks == 400, "each queue and each address once"
    assert max(after - before for before, after in pairwise(counts)) <= 32


def test_a_scan_does_not_ask_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cure of a full address takes a look at its queues and at all settings."""
    watched = Watched(full())
    watched.send(2)
    watched.rig.engine.memory.refresh()
    watched.scan(2)  # which logs it

    def match_of(*_: str) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(watched.rig.registry, "match_of", match_of)
    watched.scan(2)
    assert watched.address_reason() is StallReason.FULL


def test_an_address_with_waiting_producers_is_shown_before_a_scan() -> None:
    watched = Watched(full())
    watched.send(2)
    watched.rig.engine.memory.refresh()
    assert watched.watch.stalled(10) == []
    (place,) = watched.watch.stalled(10, ["q", "gone"])
    assert (place.kind, place.stall.reason) == ("address", StallReason.FULL)


def test_every_output_is_asked_without_side_effects() -> None:
    """`room_bytes` has a duty: whoever asks is told of room later. The watch must not ask."""
    watched = Watched()
    output = watched.rig.output()
    watched.rig.subscribe(output, "/queue/q", credit=1)
    watched.send(3)

    def room_bytes() -> int:
        raise AssertionError("asked")

    output.room_bytes = room_bytes  # type: ignore[method-assign]
    assert isinstance(output, FakeOutput)
    watched.scan(3)
    assert watched.reason() is StallReason.NO_CREDIT
