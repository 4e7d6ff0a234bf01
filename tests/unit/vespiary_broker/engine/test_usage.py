import pytest

from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Address, AddressSettings, Queue, RoutingType
from vespiary_testkit.engine_rig import Rig, do

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def _messages(rig: Rig, name: str) -> int:
    rig.journal.flush()
    counters = rig.core.queue_statistics(rig.registry.queues[name].id)
    return counters.ready + counters.delivering


def test_consumers_are_bounded_by_settings_and_by_the_queue_itself() -> None:
    rig = Rig({"#": AddressSettings(default_max_consumers=2)})
    do(rig.registry.create_queue("one", "one", ANYCAST, traits=QueueTraits(max_consumers=1)))
    do(rig.registry.create_queue("any", "any", ANYCAST, traits=QueueTraits(max_consumers=-1)))
    output = rig.output()
    first = rig.subscribe(output, "/queue/q")
    rig.subscribe(output, "/queue/q")
    with pytest.raises(RemoteProtocolError, match=r"q has as many .*got 3, allowed: at most 2"):
        rig.subscribe(output, "/queue/q")
    close_subscription(rig.core, rig.registry, first)
    rig.subscribe(output, "/queue/q")
    rig.subscribe(output, "/queue/one")
    with pytest.raises(RemoteProtocolError, match="allowed: at most 1"):
        rig.subscribe(output, "/queue/one")
    for _ in range(5):
        rig.subscribe(output, "/queue/any")


def test_shared_subscription_by_name() -> None:
    rig = Rig()
    mine, yours, other = rig.output(), rig.output(), rig.output()
    rig.subscribe(mine, "/topic/prices::desk", credit=2)
    rig.subscribe(yours, "/topic/prices::desk", credit=2)
    rig.subscribe(other, "/topic/prices", AckMode.AUTO)
    for number in range(4):
        rig.send("/topic/prices", str(number).encode())
    rig.turn()
    assert len(other.bodies()) == 4
    shared = [mine.bodies(), yours.bodies()]
    assert sorted(shared[0] + shared[1]) == [b"0", b"1", b"2", b"3"]
    assert all(shared)


def test_a_queue_is_purged_when_its_last_consumer_goes_and_takes_nothing_without() -> None:
    rig = Rig({"#": AddressSettings(default_purge_on_no_consumers=True, auto_delete_queues=False)})
    output = rig.output()
    first = rig.subscribe(output, "/queue/q", credit=1)
    second = rig.subscribe(output, "/queue/q", credit=1)
    for _ in range(5):
        rig.send("/queue/q", b"x")
    rig.turn()
    close_subscription(rig.core, rig.registry, first)
    assert _messages(rig, "q") == 5
    close_subscription(rig.core, rig.registry, second)
    assert _messages(rig, "q") == 0
    rig.send("/queue/q", b"lost")
    rig.send("q::q", b"lost too")
    assert _messages(rig, "q") == 0
    rig.subscribe(output, "/queue/q", credit=1)
    rig.send("/queue/q", b"kept")
    rig.send("q::q", b"kept too")
    assert _messages(rig, "q") == 2


def test_what_found_no_room_to_be_purged_goes_with_the_next_scan() -> None:
    rig = Rig()
    traits = QueueTraits(is_purged_when_unused=True)
    queue = do(rig.registry.create_queue("q", "q", ANYCAST, traits=traits))
    consumer = rig.subscribe(rig.output(), "/queue/q", credit=1)
    rig.send("/queue/q", b"x")
    rig.journal.flush()
    purge = rig.core.purge_queue

    def refuse(_: int) -> int:
        raise NoRoom

    rig.core.purge_queue = refuse  # type: ignore[method-assign]
    close_subscription(rig.core, rig.registry, consumer)
    rig.core.purge_queue = purge  # type: ignore[method-assign]
    assert _messages(rig, "q") == 1
    sum(rig.engine.reaper.scan())
    assert _messages(rig, "q") == 0
    assert not queue.is_deleted


def test_traits_and_pauses_come_back_with_a_restart() -> None:
    rig = Rig()
    wanted = Queue(name="q", max_consumers=3, purge_on_no_consumers=False)
    do(rig.registry.configure([Address(name="a", queues=(wanted,))]))
    do(rig.registry.create_queue("plain", "b", ANYCAST))
    do(rig.registry.pausing.pause_queue(rig.registry.queues["q"], is_paused=True, is_kept=True))
    do(rig.registry.pausing.pause_queue(rig.registry.queues["plain"], is_paused=True))
    again = Rig(bindings=rig.bindings)
    for queue_id in durable_queue_ids(rig.bindings.snapshot()):
        again.core.open_queue(queue_id)
    again.registry.restore()
    queue, plain = again.registry.queues["q"], again.registry.queues["plain"]
    assert queue.traits == QueueTraits(
        is_configured=True, max_consumers=3, is_purged_when_unused=False
    )
    assert (queue.is_paused, plain.is_paused) == (True, False)
    assert again.registry.addresses["a"].is_configured
    do(again.registry.configure([Address(name="a", queues=(Queue(name="q", max_consumers=4),))]))
    assert queue.traits.max_consumers == 4
    assert again.bindings.values["queue/1"]["max-consumers"] == 4
    do(again.registry.pausing.pause_queue(queue, is_paused=False))
    assert "paused" not in again.bindings.values["queue/1"]


def test_a_paused_queue_gives_nothing_until_it_goes_on() -> None:
    rig = Rig()
    output = rig.output()
    queue = rig.subscribe(output, "/queue/q", AckMode.AUTO).queue
    do(rig.registry.pausing.pause_queue(queue, is_paused=True))
    rig.send("/queue/q", b"1")
    rig.turn()
    assert output.bodies() == []
    assert _messages(rig, "q") == 1
    do(rig.registry.pausing.pause_queue(queue, is_paused=False))
    rig.dispatcher.poke(queue.id)
    rig.turn()
    assert output.bodies() == [b"1"]
