"""Names in forms of other brokers, in a configuration and in what was stored before: told."""

from __future__ import annotations

import logging

import pytest

from vespiary_broker.app.configured import configure
from vespiary_broker.engine.reconfiguration import apply
from vespiary_spec.settings import (
    Address,
    AddressSettings,
    Configuration,
    Divert,
    RoutingType,
    SecuritySettings,
)
from vespiary_testkit.engine_rig import Rig, do


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [
        record.getMessage().partition(" kind=")[2].partition(" cure=")[0]
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    caplog.clear()
    return found


@pytest.mark.parametrize("is_start", [True, False])
def test_they_are_named(caplog: pytest.LogCaptureFixture, is_start: bool) -> None:
    rig = Rig()
    do(rig.registry.create_address("/temp-queue/x", {RoutingType.ANYCAST}))
    wanted = Configuration(
        addresses=(Address(name="jms.queue.a"), Address(name="orders")),
        address_settings={"#": AddressSettings(), "jms.queue.#": AddressSettings()},
        security_settings={"queue://b": SecuritySettings()},
        diverts=(Divert(name="d", address="orders", forwarding_address="jms.topic.c"),),
    )
    do(configure(rig.engine, wanted, lambda *_: None) if is_start else apply(rig.engine, wanted))
    assert told(caplog) == [
        "addresses names=2 first='/temp-queue/x', 'jms.queue.a'",
        "diverts names=1 first='jms.topic.c'",
        "address-settings names=1 first='jms.queue.#'",
        "security-settings names=1 first='queue://b'",
    ]


def test_one_line_tells_of_many(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for number in range(7):
        do(rig.registry.create_address(f"jms.queue.{number}", {RoutingType.ANYCAST}))
    do(configure(rig.engine, Configuration(), lambda *_: None))
    shown = ", ".join(f"'jms.queue.{number}'" for number in range(5))
    assert told(caplog) == [f"addresses names=7 first={shown}"]


def test_other_names_are_not(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    addresses = (Address(name="orders"), Address(name="jms.orders"))
    do(configure(rig.engine, Configuration(addresses=addresses), lambda *_: None))
    assert told(caplog) == []
