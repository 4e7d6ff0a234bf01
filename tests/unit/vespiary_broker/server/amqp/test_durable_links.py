"""Durable links by which clients send: whose they are, how they go, and how many there may be."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.names import OWN_PREFIX
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.server.amqp import unsettled as module
from vespiary_codec.wire.amqp import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Released,
    Target,
)
from vespiary_codec.wire.amqp.values import UInt
from vespiary_spec.settings import RoutingType, SecuritySettings
from vespiary_testkit.amqp_peer import SENDER, with_rig
from vespiary_testkit.durable_sender import (
    ADDRESS,
    SECOND,
    DurableSender,
    notes,
    stored,
    tags,
)
from vespiary_testkit.server_rig import ServerRig


@with_rig()
async def test_a_closed_link_is_forgotten_and_a_detached_one_is_not(rig: ServerRig) -> None:
    client = DurableSender(rig)
    await client.open()
    await client.sent(b"1")
    await client.peer.detach(0, closed=False)
    assert client.peer.one(Detach).error is None
    assert set(tags(await client.attach({b"1": None}))) == {b"1"}
    await client.peer.detach(0, closed=True)
    detach = client.peer.one(Detach)
    assert (detach.closed, detach.error) == (True, None)
    assert notes(rig) == []
    assert (await client.attach({b"1": None})).unsettled == {}


@with_rig()
async def test_what_no_queue_accepted_is_not_remembered(rig: ServerRig) -> None:
    traits = QueueTraits(is_purged_when_unused=True)
    await rig.engine.registry.create_queue("a", "a", RoutingType.ANYCAST, traits=traits)
    client = DurableSender(rig)
    await client.open()
    client.send(b"1")
    await rig.flush()
    (told,) = client.peer.all(Disposition)
    assert (type(told.state), told.settled) == (Released, True)
    assert notes(rig) == [0]
    client.lose()
    assert (await DurableSender(rig).open({b"1": None})).unsettled == {}


@with_rig()
async def test_a_link_is_its_container_s(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    await before.sent(b"1")
    before.lose()
    assert (await DurableSender(rig).open({b"1": None}, container="other")).unsettled == {}
    assert (await DurableSender(rig).open({b"1": None}, name="other")).unsettled == {}
    assert set(tags(await DurableSender(rig).open({b"1": None}))) == {b"1"}


@with_rig()
async def test_another_connection_takes_the_link(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    await before.sent(b"1")
    again = DurableSender(rig)
    assert set(tags(await again.open({b"1": None}))) == {b"1"}
    assert before.peer.one(Detach).error.condition == "amqp:link:stolen"
    before.send(b"2")
    await rig.flush()
    assert (before.told(), stored(rig)) == ([], 1)
    before.lose()
    await again.sent(b"2")
    assert (stored(rig), notes(rig)) == (2, [2])


@with_rig()
async def test_a_message_that_waits_is_not_stored_behind_the_back_of_the_client(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its link was attached elsewhere meanwhile, and the client was told that it is not known."""
    before = DurableSender(rig)
    await before.open()
    is_full = True
    real = module.stage_jointly

    def stage(*args: Any) -> Any:
        if is_full:
            raise NoRoom("full")
        return real(*args)

    monkeypatch.setattr(module, "stage_jointly", stage)
    before.send(b"1")
    await rig.settle()
    again = DurableSender(rig)
    assert (await again.open({b"1": None})).unsettled == {}
    is_full = False
    rig.cycle.on_space()
    await rig.flush()
    assert stored(rig) == 0
    await again.sent(b"1")
    assert stored(rig) == 1


@with_rig()
async def test_a_note_ends_once_there_is_room(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = DurableSender(rig)
    await client.open()
    await client.sent(b"1")
    links = rig.cycle.durable_links
    core = links._core

    class Full:
        queue_statistics = core.queue_statistics

        def finish(self, *_: Any) -> None:
            raise NoRoom("full")

    monkeypatch.setattr(links, "_core", Full())
    await client.settle(0)
    assert notes(rig) == [1]
    monkeypatch.setattr(links, "_core", core)
    rig.cycle.on_space()
    await rig.flush()
    assert notes(rig) == [0]


@with_rig(max_durable_links=2)
async def test_the_links_of_a_user_are_bounded(
    rig: ServerRig, caplog: pytest.LogCaptureFixture
) -> None:
    clients = []
    for name in ("one", "two"):
        client = DurableSender(rig)
        await client.open(name=name)
        await client.sent(b"1")
        clients.append(client)
    refused = DurableSender(rig)
    await refused.open(name="three")
    error = refused.peer.one(Detach).error
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "3 links" in error.description
    clients[1].lose()
    clients[0].lose()
    with caplog.at_level(logging.WARNING):
        await DurableSender(rig).open(name="three")
    assert "max-durable-links is 2" in caplog.text
    assert len(notes(rig)) == 2
    assert set(tags(await DurableSender(rig).open({b"1": None}, name="one"))) == {b"1"}


@with_rig()
async def test_the_tags_of_links_that_were_left_are_bounded(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEFT_TAGS_MAX", 3)
    for name in ("one", "two"):
        client = DurableSender(rig)
        await client.open(name=name)
        await client.sent(b"1", b"2")
        client.lose()
    assert len(notes(rig)) == 1
    assert set(tags(await DurableSender(rig).open({b"1": None}, name="two"))) == {b"1"}
    assert (await DurableSender(rig).open({b"1": None}, name="one")).unsettled == {}


@with_rig()
async def test_the_tags_of_a_link_that_came_back_do_not_count(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEFT_TAGS_MAX", 3)
    for name in ("one", "two", "three"):
        client = DurableSender(rig)
        await client.open(name=name)
        await client.sent(b"1", b"2")
        client.lose()
        again = DurableSender(rig)
        assert set(tags(await again.open({b"1": None, b"2": None}, name=name))) == {b"1", b"2"}
    await again.peer.detach(0, closed=True)
    again.lose()
    assert notes(rig) == [2, 2]
    assert rig.cycle.durable_links._idle_tags.total() == 0, "both are attached"


@with_rig(max_durable_links=1)
async def test_links_of_a_former_run_count(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open(name="one")
    await before.sent(b"1")
    before.lose()
    rig.cycle.durable_links = module.DurableLinks(rig.cycle)
    await DurableSender(rig).open(name="two")
    assert notes(rig) == [0]


@with_rig(max_unsettled=2, amqp_credits=2, amqp_low_credits=1)
async def test_what_a_client_leaves_unsettled_over_many_attaches_is_bounded(
    rig: ServerRig,
) -> None:
    names: list[bytes] = []
    for round_number in range(5):
        client = DurableSender(rig)
        await client.open(dict.fromkeys(names))
        new = [b"%d.%d" % (round_number, number) for number in range(2)]
        for name in new:
            client.send(name)
        await rig.flush()
        names += new
        if round_number == 4:
            error = client.peer.one(Detach).error
            assert error.condition == "amqp:resource-limit-exceeded"
            assert "8 deliveries" in error.description
        client.lose()
    assert stored(rig) == 8


@with_rig()
async def test_a_queue_of_notes_that_somebody_deletes(rig: ServerRig) -> None:
    client = DurableSender(rig)
    await client.open()
    await client.sent(b"0")
    (name,) = [one for one in rig.engine.registry.queues if one.startswith(OWN_PREFIX)]
    rig.engine.registry.drop_queue(rig.engine.registry.queues[name])
    client.send(b"1")
    await rig.flush()
    (told,) = client.peer.all(Disposition)
    assert told.state.error.condition == "amqp:resource-deleted"
    assert stored(rig) == 1
    client.lose()
    assert (await DurableSender(rig).open({b"0": None})).unsettled == {}


@with_rig(security={"#": SecuritySettings(send=("writers",))})
async def test_who_may_not_send_has_nothing_made(rig: ServerRig) -> None:
    await rig.engine.registry.create_queue("a", "a", RoutingType.ANYCAST)
    client = DurableSender(rig)
    await client.open()
    assert client.peer.one(Detach).error.condition == "amqp:unauthorized-access"
    assert notes(rig) == []


@with_rig()
async def test_the_notes_are_read_again_after_a_restart(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    await before.sent(b"1", bytes(range(32)), b"")
    before.lose()
    rig.cycle.durable_links = module.DurableLinks(rig.cycle)
    assert len(notes(rig)) == 1
    names = {b"1": None, bytes(range(32)): None, b"": None, b"4": None}
    assert set(tags(await DurableSender(rig).open(names))) == {b"1", bytes(range(32)), b""}


@with_rig()
async def test_a_session_takes_a_link_again_that_it_has(rig: ServerRig) -> None:
    client = DurableSender(rig)
    await client.open()
    await client.sent(b"1")
    target = Target(address=ADDRESS, durable=UInt(2))
    await client.peer.attach(
        SENDER, 5, name="link", target=target, rcv_settle_mode=SECOND, unsettled={b"1": None}
    )
    await rig.flush()
    assert client.peer.one(Detach).error.condition == "amqp:link:stolen"
    assert set(tags(client.peer.one(Attach))) == {b"1"}
    assert client.peer.all(Flow)
