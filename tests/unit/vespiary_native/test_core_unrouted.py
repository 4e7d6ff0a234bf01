"""Messages to routes without queues: counted by route, and told in receipts; on both cores."""

from __future__ import annotations

from vespiary_native.abc import ScanStatus
from vespiary_testkit.core_rig import CoreRig, send


def receipts(rig: CoreRig) -> bytes:
    return dict(rig.core.take_receipts()).get(rig.connection, b"")


def publish(rig: CoreRig, route: int, count: int = 1) -> None:
    for _ in range(count):
        assert rig.core.publish(route, b"a:1\n", b"x", persistent=True) == 0


def test_they_are_counted_by_route(rig: CoreRig) -> None:
    first, second, third = (rig.core.open_route([]) for _ in range(3))
    assert rig.core.take_unrouted() == []
    publish(rig, third, 2)
    publish(rig, first)
    rig.publish()
    assert rig.core.take_unrouted() == [(first, 1), (third, 2)]
    assert rig.core.take_unrouted() == []
    publish(rig, second)
    publish(rig, first)
    assert rig.core.take_unrouted() == [(first, 1), (second, 1)]


def test_more_routes_than_one_call_of_the_core_tells_of(rig: CoreRig) -> None:
    routes = [rig.core.open_route([]) for _ in range(600)]
    for route in routes:
        publish(rig, route)
    assert rig.core.take_unrouted() == [(route, 1) for route in routes]


def test_a_route_that_loses_its_queues_counts(rig: CoreRig) -> None:
    rig.core.open_queue(2)
    route = rig.core.open_route([2])
    assert rig.core.publish(route, b"", b"x", persistent=False) == 1
    rig.core.drop_queue(2)
    publish(rig, route)
    assert rig.core.take_unrouted() == [(route, 1)]
    rig.core.set_route(route, [1])
    assert rig.core.publish(route, b"", b"x", persistent=False) == 1
    assert rig.core.take_unrouted() == []


def test_a_closed_route_is_forgotten_with_its_count(rig: CoreRig) -> None:
    first, second = (rig.core.open_route([]) for _ in range(2))
    publish(rig, first)
    publish(rig, second)
    rig.core.close_route(first)
    assert rig.core.take_unrouted() == [(second, 1)]
    again = rig.core.open_route([])
    assert again == first
    assert rig.core.take_unrouted() == []
    publish(rig, again)
    assert rig.core.take_unrouted() == [(again, 1)]


def test_a_receipt_says_that_no_queue_took_the_message(rig: CoreRig) -> None:
    route = rig.core.open_route([])
    rig.core.teach(rig.connection, b"/topic/n", route)
    lost = b"SEND\ndestination:/topic/n\npersistent:true\nreceipt:%d\n\nx\0"
    data = lost % 1 + send(b"receipt:2\n") + lost % 3
    assert rig.scan(data) == (ScanStatus.NEED_DATA, len(data), 0)
    rig.flush()
    assert receipts(rig) == (
        b"RECEIPT\nreceipt-id:1\nqueues:0\n\n\0"
        b"RECEIPT\nreceipt-id:2\n\n\0"
        b"RECEIPT\nreceipt-id:3\nqueues:0\n\n\0"
    )
    assert rig.core.take_unrouted() == [(route, 2)]


def test_what_a_switch_lets_into_no_queue_counts(rig: CoreRig) -> None:
    switch, nowhere = rig.core.open_switch(), rig.core.open_route([])
    somewhere = rig.core.open_route([1])
    rig.core.teach(rig.connection, b"/topic/n", switch)
    sent = b"SEND\ndestination:/topic/n\nreceipt:%d\n\nx\0"
    rig.scan(sent % 1 + sent % 2)
    rig.core.send_switched([nowhere, somewhere])
    rig.flush()
    assert receipts(rig) == (b"RECEIPT\nreceipt-id:1\nqueues:0\n\n\0RECEIPT\nreceipt-id:2\n\n\0")
    assert rig.core.take_unrouted() == [(nowhere, 1)]
