"""Subscriptions with `no-local`: they do not get what their own session sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vespiary_broker.engine.core import AckMode, ScanStatus
from vespiary_broker.engine.names import Destination, Sender
from vespiary_broker.engine.publishing import find_target, make_target
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import (
    SubscriptionRequest,
    close_subscription,
    open_subscription,
)
from vespiary_broker.engine.transactions import Outgoing, Transaction, prepare, publish, stage
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import FakeOutput, Rig, destination, do
from vespiary_testkit.memory_journal import MemoryBindings


def where(text: str, sender: Sender | None) -> Destination:
    return replace(destination(text), sender=sender)


def subscribe(
    rig: Rig,
    output: FakeOutput,
    text: str,
    sender: Sender,
    *,
    is_no_local: bool = True,
    durable_name: str = "",
    selector: str = "",
) -> Consumer:
    request = SubscriptionRequest(
        destination=where(text, sender),
        subscription="s",
        header=b"s",
        version=12,
        mode=AckMode.AUTO,
        credit=10,
        client_id=sender.client_id,
        durable_name=durable_name,
        selector=selector,
        is_no_local=is_no_local,
    )
    return do(open_subscription(rig.core, rig.registry, output, request))


def outgoing(text: str, sender: Sender | None, body: bytes, **headers: str) -> Outgoing:
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return Outgoing(
        destination=where(text, sender),
        properties=f"destination:x\n{lines}".encode(),
        body=body,
        is_persistent=True,
    )


def send(rig: Rig, text: str, sender: Sender | None, body: bytes, **headers: str) -> bool:
    """Send; return whether the sender may be taught where it went."""
    message = outgoing(text, sender, body, **headers)
    found = find_target(rig.registry, message.destination)
    target = found or do(make_target(rig.registry, message.destination))
    publish(rig.core, None, message, target)
    return target.is_teachable


def test_it_gets_what_others_send_and_others_get_what_it_sends() -> None:
    rig, own, other = Rig(), Sender(), Sender()
    mine, theirs = rig.output(), rig.output()
    subscribe(rig, mine, "/topic/t", own)
    subscribe(rig, theirs, "/topic/t", other, is_no_local=False)
    assert send(rig, "/topic/t", own, b"own")
    assert send(rig, "/topic/t", other, b"other")
    send(rig, "/topic/t", None, b"nobody's")
    rig.turns()
    assert mine.bodies() == [b"other", b"nobody's"]
    assert theirs.bodies() == [b"own", b"other", b"nobody's"]


def test_two_with_no_local_get_each_others() -> None:
    rig, first, second = Rig(), Sender(), Sender()
    outputs = rig.output(), rig.output()
    for output, sender in zip(outputs, (first, second), strict=True):
        subscribe(rig, output, "/topic/t", sender)
    send(rig, "/topic/t", first, b"1")
    send(rig, "/topic/t", second, b"2")
    rig.turns()
    assert [output.bodies() for output in outputs] == [[b"2"], [b"1"]]


def test_a_route_that_was_taught_before_is_not_used_any_more() -> None:
    rig, own = Rig(), Sender()
    other = rig.output()
    rig.subscribe(other, "/topic/t", AckMode.AUTO)
    sending = rig.output()
    target = find_target(rig.registry, where("/topic/t", own))
    assert target is not None
    rig.core.teach(sending.handle, b"/topic/t", target.route)
    frame = b"SEND\ndestination:/topic/t\n\nx\0"
    buffer = bytearray(frame)
    at = rig.core.attach_buffer(buffer)

    def scan() -> int:
        return rig.core.scan_stomp(sending.handle, at, 0, len(frame))[0].value

    assert scan() == 0  # taken
    subscribe(rig, rig.output(), "/topic/t", own)
    assert scan() == 1  # asks
    rig.core.detach_buffer(at)


def test_a_switch_that_was_taught_before_is_not_used_any_more() -> None:
    rig, own = Rig(), Sender()
    subscribe(rig, rig.output(), "/topic/t", Sender(), is_no_local=False, selector="a IS NULL")
    sending = rig.output()
    buffer = bytearray(b"SEND\ndestination:/topic/t\n\nx\0")
    at = rig.core.attach_buffer(buffer)

    def teach() -> None:
        target = find_target(rig.registry, where("/topic/t", own))
        assert target is not None
        rig.core.teach(sending.handle, b"/topic/t", target.taught_handle)

    def scan() -> ScanStatus:
        status, _, switch = rig.core.scan_stomp(sending.handle, at, 0, len(buffer))
        if status == ScanStatus.SWITCHED:
            rig.registry.switches.send(rig.core, switch, sending.handle)
        return ScanStatus(status)

    teach()
    assert scan() is ScanStatus.SWITCHED
    mine = rig.output()
    subscribe(rig, mine, "/topic/t", own)
    assert scan() is ScanStatus.FRAME, "what it was taught leads to its own subscription"
    teach()
    assert scan() is ScanStatus.SWITCHED
    rig.turns()
    assert mine.bodies() == []
    rig.core.detach_buffer(at)


def test_wildcards_diverts_and_filters() -> None:
    rig, own = Rig(), Sender()
    wild, filtered = rig.output(), rig.output()
    subscribe(rig, wild, "/topic/news.#", own)
    subscribe(rig, filtered, "/topic/news.eu", own, selector="n = 1")
    plain = rig.output()
    rig.subscribe(plain, "/topic/news.eu", AckMode.AUTO)
    send(rig, "/topic/news.eu", own, b"own", n="1")
    send(rig, "/topic/news.eu", None, b"other", n="1")
    rig.turns()
    assert wild.bodies() == filtered.bodies() == [b"other"]
    assert plain.bodies() == [b"own", b"other"]


def test_in_transactions_too() -> None:
    rig, own = Rig(), Sender()
    mine = rig.output()
    subscribe(rig, mine, "/topic/t", own)
    sends = [outgoing("/topic/t", own, b"own"), outgoing("/topic/t", None, b"other")]
    work = Transaction(sends=sends)
    do(prepare(rig.registry, work))
    stage(rig.core, rig.registry, rig.duplicates, work)
    rig.turns()
    assert mine.bodies() == [b"other"]


def test_when_it_has_gone_everything_is_as_before() -> None:
    rig, own = Rig(), Sender()
    consumer = subscribe(rig, rig.output(), "/topic/t", own)
    plain = rig.output()
    rig.subscribe(plain, "/topic/t", AckMode.AUTO)
    send(rig, "/topic/t", own, b"1")
    close_subscription(rig.core, rig.registry, consumer)
    again = rig.output()
    subscribe(rig, again, "/topic/t", own, is_no_local=False)
    send(rig, "/topic/t", own, b"2")
    rig.turns()
    assert plain.bodies() == [b"1", b"2"]
    assert again.bodies() == [b"2"]


def test_a_durable_one_is_closed_to_its_client_while_it_is_away_and_over_a_restart() -> None:
    bindings = MemoryBindings()
    rig = Rig(bindings=bindings)
    first, again, other = Sender("amy"), Sender("amy"), Sender("bob")
    consumer = subscribe(rig, rig.output(), "/topic/t", first, durable_name="d")
    close_subscription(rig.core, rig.registry, consumer)
    send(rig, "/topic/t", again, b"own")
    send(rig, "/topic/t", other, b"other")
    out = rig.output()
    subscribe(rig, out, "/topic/t", again, durable_name="d")
    rig.turns()
    assert out.bodies() == [b"other"]
    restarted = Rig(bindings=bindings)
    for queue_id in rig.registry.queues_by_id:
        restarted.core.open_queue(queue_id)
    restarted.registry.restore()
    assert restarted.registry.queues["amy.d"].is_closed_to(Sender("amy"))
    assert not restarted.registry.queues["amy.d"].is_closed_to(Sender("bob"))


def test_a_durable_one_keeps_what_it_was_made_with() -> None:
    rig, amy = Rig(), Sender("amy")
    consumer = subscribe(rig, rig.output(), "/topic/t", amy, durable_name="d")
    close_subscription(rig.core, rig.registry, consumer)
    with pytest.raises(RemoteProtocolError, match="another no-local"):
        subscribe(rig, rig.output(), "/topic/t", amy, durable_name="d", is_no_local=False)


@pytest.mark.parametrize("text", ["/queue/q", "t::shared"])
def test_consumers_that_share_a_queue_cannot_have_it(text: str) -> None:
    rig = Rig({"t": AddressSettings(default_queue_routing_type=RoutingType.MULTICAST)})
    with pytest.raises(RemoteProtocolError, match="no-local"):
        subscribe(rig, rig.output(), text, Sender())
