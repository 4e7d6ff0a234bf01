"""Addresses that are paused: what their queues give, and what a restart makes of them."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import Rig, do


def pause(rig: Rig, name: str, *, is_paused: bool = True, is_kept: bool = False) -> None:
    address = rig.registry.addresses[name]
    do(rig.registry.pausing.pause_address(address, is_paused=is_paused, is_kept=is_kept))
    for queue in address.queues.values():
        rig.dispatcher.poke(queue.id)


def restarted(rig: Rig) -> Rig:
    again = Rig(bindings=rig.bindings)
    for queue_id in durable_queue_ids(rig.bindings.snapshot()):
        again.core.open_queue(queue_id)
    again.registry.restore()
    return again


def test_all_queues_of_a_paused_address_give_nothing_also_those_to_come() -> None:
    rig = Rig()
    first, second, other = rig.output(), rig.output(), rig.output()
    rig.subscribe(first, "/topic/t", AckMode.AUTO)
    rig.subscribe(other, "/topic/other", AckMode.AUTO)
    pause(rig, "t")
    rig.subscribe(second, "/topic/t", AckMode.AUTO)
    for name in ("t", "other"):
        rig.send(f"/topic/{name}", b"1")
    rig.turns()
    assert (first.bodies(), second.bodies(), other.bodies()) == ([], [], [b"1"])
    pause(rig, "t", is_paused=False)
    rig.turns()
    assert (first.bodies(), second.bodies()) == ([b"1"], [b"1"])


def test_a_queue_that_was_paused_itself_stays_so_when_its_address_goes_on() -> None:
    rig = Rig()
    output = rig.output()
    queue = rig.subscribe(output, "/queue/q", AckMode.AUTO).queue
    do(rig.registry.pausing.pause_queue(queue, is_paused=True))
    pause(rig, "q")
    rig.send("/queue/q", b"1")
    pause(rig, "q", is_paused=False)
    rig.turns()
    assert output.bodies() == []
    do(rig.registry.pausing.pause_queue(queue, is_paused=False))
    rig.dispatcher.poke(queue.id)
    rig.turns()
    assert output.bodies() == [b"1"]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_restart_leaves_an_address_paused_if_that_is_wished_for(*, is_kept: bool) -> None:
    rig = Rig()
    rig.subscribe(rig.output(), "/queue/q")
    pause(rig, "q", is_kept=is_kept)
    again = restarted(rig)
    assert again.registry.queues["q"].is_held is is_kept
    pause(again, "q", is_paused=False)
    assert not restarted(again).registry.queues["q"].is_held


def test_a_paused_address_does_not_go_with_its_last_queue() -> None:
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/topic/t")
    pause(rig, "t")
    close_subscription(rig.core, rig.registry, consumer)
    assert (list(rig.registry.queues), list(rig.registry.addresses)) == ([], ["t"])
    assert sum(rig.engine.reaper.scan()) == 0
    pause(rig, "t", is_paused=False)
    assert sum(rig.engine.reaper.scan()) == 1
    assert not rig.registry.addresses


def test_one_that_stays_paused_over_restarts_stays() -> None:
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/topic/t")
    pause(rig, "t", is_kept=True)
    close_subscription(rig.core, rig.registry, consumer)
    again = restarted(rig)
    assert again.registry.addresses["t"].is_paused
    output = again.output()
    again.subscribe(output, "/topic/t", AckMode.AUTO)
    again.send("/topic/t", b"1")
    again.turns()
    assert output.bodies() == []


def test_an_address_that_has_gone_is_not_written_down() -> None:
    rig = Rig({"#": AddressSettings(auto_delete_addresses=False)})
    consumer = rig.subscribe(rig.output(), "/topic/t")
    address = consumer.queue.address
    close_subscription(rig.core, rig.registry, consumer)
    rig.registry.drop_address(address)
    with pytest.raises(RemoteProtocolError, match="there is no address t"):
        do(rig.registry.pausing.pause_address(address, is_paused=True, is_kept=True))
    assert "address/t" not in rig.bindings.snapshot()
