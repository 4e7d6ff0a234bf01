from vespiary_broker.engine.reach import reach_of
from vespiary_spec.settings import RoutingType
from vespiary_testkit.engine_rig import Rig, do

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def _ready(rig: Rig, *names: str) -> list[int]:
    rig.journal.flush()
    return [rig.core.queue_statistics(rig.registry.queues[name].id).ready for name in names]


def _queues(rig: Rig, **kinds: RoutingType) -> None:
    for name, kind in kinds.items():
        do(rig.registry.create_queue(name, "x", kind))


def test_groups() -> None:
    rig = Rig()
    _queues(rig, a=ANYCAST, b=ANYCAST, m=MULTICAST, n=MULTICAST)
    queues = list(rig.registry.queues.values())
    a, b, m, n = (queue.id for queue in queues)
    assert reach_of(queues, None).groups() == [[m, n, a], [m, n, b]]
    assert reach_of(queues, ANYCAST).groups() == [[a], [b]]
    assert reach_of(queues, MULTICAST).groups() == [[m, n]]
    assert reach_of([], None).groups() == reach_of([], ANYCAST).groups() == [[]]


def test_anycast_takes_turns_and_multicast_gets_all() -> None:
    rig = Rig()
    _queues(rig, a=ANYCAST, b=ANYCAST, m=MULTICAST)
    for _ in range(10):
        rig.send("x", b"body")
    assert _ready(rig, "a", "b", "m") == [5, 5, 10]
    rig.send("/topic/x", b"body")
    rig.send("/queue/x", b"body")
    assert sum(_ready(rig, "a", "b")) == 11
    assert _ready(rig, "m") == [11]


def test_taught_senders_follow_a_changed_route() -> None:
    rig = Rig()
    _queues(rig, a=ANYCAST)
    route = rig.registry.route_of(rig.registry.addresses["x"], None)
    assert route.is_teachable
    taught = route.next_handle()
    _queues(rig, m=MULTICAST)
    assert route.is_teachable
    assert route.next_handle() == taught
    rig.core.publish(taught, b"", b"body", persistent=True)
    assert _ready(rig, "a", "m") == [1, 1]


def test_second_anycast_queue_makes_taught_senders_ask_again() -> None:
    rig = Rig()
    output = rig.output()
    buffer = bytearray(b"SEND\ndestination:x\n\nbody\0" * 2)
    handle = rig.core.attach_buffer(buffer)
    _queues(rig, a=ANYCAST)
    route = rig.registry.route_of(rig.registry.addresses["x"], None)
    rig.core.teach(output.handle, b"x", route.next_handle())
    status, position, _ = rig.core.scan_stomp(output.handle, handle, 0, len(buffer))
    assert (status, position) == (0, len(buffer))
    _queues(rig, b=ANYCAST)
    assert not route.is_teachable
    status, position, length = rig.core.scan_stomp(output.handle, handle, 0, len(buffer))
    assert (status, position, length) == (1, 0, len(buffer) // 2)
    rig.registry.drop_queue(rig.registry.queues["b"])
    assert route.is_teachable


def test_address_without_queues_discards() -> None:
    rig = Rig()
    rig.send("/topic/nobody", b"body")
    assert rig.registry.addresses["nobody"].queues == {}
