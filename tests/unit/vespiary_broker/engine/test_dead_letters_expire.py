"""Dead and expired messages that expire where they went, by what is said of that address alone."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.departures import leave
from vespiary_broker.engine.moves import Reason
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import Rig

COMMON: dict[str, Any] = {
    "dead_letter_address": "DLQ",
    "expiry_address": "EXPIRED",
    "max_delivery_attempts": 1,
}


def rig_with(common: dict[str, Any], **own: dict[str, Any]) -> Rig:
    settings = {"#": AddressSettings(**COMMON, **common)}
    settings |= {name: AddressSettings(**values) for name, values in own.items()}
    return Rig(settings, scan_period_ms=100)


def send_away(rig: Rig, reason: Reason) -> None:
    """Have all messages of the queue leave it."""
    rig.turns()
    queue = rig.registry.queues["q"]
    for view in rig.core.look(queue.id, 0, 100).messages:
        assert leave(rig.core, rig.engine.fates.mover, queue, view, reason)
    wait(rig, 0)


def wait(rig: Rig, ms: int) -> None:
    for _ in range(3):
        rig.now_ms += ms // 3 + 1
        for _ in range(5):
            rig.turns()


def count(rig: Rig, name: str) -> int:
    queue = rig.registry.queues.get(name)
    if queue is None:
        return 0
    facts = rig.core.queue_statistics(queue.id)
    return facts.ready + facts.aside


@pytest.mark.parametrize(
    ("place", "rule", "reason"),
    [
        ("DLQ", "expiry_delay", Reason.DELIVERIES),
        ("DLQ", "max_expiry_delay", Reason.DELIVERIES),
        ("DLQ", "min_expiry_delay", Reason.DELIVERIES),
        ("EXPIRED", "expiry_delay", Reason.EXPIRED),
    ],
)
def test_they_expire_by_the_rules_of_the_address_they_went_to(
    place: str, rule: str, reason: Reason
) -> None:
    rig = rig_with({}, **{place: {rule: 6000, "expiry_address": "GONE"}})
    rig.send("/queue/q", b"1")
    send_away(rig, reason)
    wait(rig, 3000)
    assert (count(rig, place), count(rig, "GONE")) == (1, 0)
    wait(rig, 4000)
    assert (count(rig, place), count(rig, "GONE")) == (0, 1)
    wait(rig, 20_000)
    assert count(rig, "GONE") == 1


def test_a_rule_for_all_addresses_is_not_one_for_dead_letters() -> None:
    rig = rig_with({"expiry_delay": 1000})
    rig.send("/queue/q", b"1")
    send_away(rig, Reason.DELIVERIES)
    wait(rig, 20_000)
    assert count(rig, "DLQ") == 1


def test_a_rule_of_their_own_for_ever_is_heeded_too() -> None:
    rig = rig_with({"expiry_delay": 1000}, DLQ={"no_expiry": True})
    rig.send("/queue/q", b"1")
    send_away(rig, Reason.DELIVERIES)
    wait(rig, 20_000)
    assert count(rig, "DLQ") == 1


def test_what_goes_back_lives_on() -> None:
    rig = rig_with({}, DLQ={"expiry_delay": 5000})
    rig.send("/queue/q", b"1")
    send_away(rig, Reason.DELIVERIES)
    dead = rig.registry.queues["DLQ"]
    (view,) = rig.core.look(dead.id, 0, 9).messages
    assert b"\nexpires:" in view.properties
    assert leave(rig.core, rig.engine.fates.mover, dead, view, Reason.RETRIED)
    wait(rig, 20_000)
    (view,) = rig.core.look(rig.registry.queues["q"].id, 0, 9).messages
    assert (b"expires:" in view.properties, view.is_special) == (False, False)
