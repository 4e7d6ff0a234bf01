"""Permissions of a STOMP session: each one, taught routes, changed rules and changed roles."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.publishing import find_target, make_target
from vespiary_broker.engine.subscriptions import SubscriptionRequest, open_subscription
from vespiary_broker.engine.users import User, make_user
from vespiary_codec.wire.stomp import Frame
from vespiary_spec.errors import NotPermitted
from vespiary_spec.settings import AddressSettings, RoutingType, SecuritySettings
from vespiary_testkit.journal_workload import run
from vespiary_testkit.large_rig import LargeRig
from vespiary_testkit.large_rig import rigged as on_large_rig
from vespiary_testkit.large_rig import send as large
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig
from vespiary_testkit.waiting import WAIT_S

PASSWORD = "secret"
ALICE = make_user("alice", PASSWORD, roles=("apps",), iterations=4096)
ALL = {name: ("apps",) for name in SecuritySettings.__struct_fields__ if name not in ("manage",)}


def allowed(*but: str, **more: tuple[str, ...]) -> SecuritySettings:
    """Return the settings that permit all to `apps` but what is named."""
    return SecuritySettings(**{n: r for n, r in {**ALL, **more}.items() if n not in but})


def rigged(
    security: dict[str, SecuritySettings], settings: AddressSettings | None = None
) -> ServerRig:
    return ServerRig(
        journal=MemoryJournal(is_automatic=True),
        users={"alice": ALICE},
        security=security,
        settings={"#": settings or AddressSettings()},
    )


async def come_in(rig: ServerRig, **headers: str) -> Peer:
    peer = rig.peer()
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    peer.send(
        f"CONNECT\naccept-version:1.2\nhost:x\nlogin:alice\npasscode:{PASSWORD}\n{lines}\n\0".encode()
    )
    async with asyncio.timeout(WAIT_S):
        await rig.settle()
        while not (frames := peer.frames()):
            await asyncio.sleep(0.001)
            await rig.settle()
    assert frames[0].command == "CONNECTED", frames
    peer.decoder.set_version("1.2")
    return peer


def send(to: str, **headers: str) -> bytes:
    lines = "".join(f"{n}:{v}\n" for n, v in {"receipt": "r", **headers}.items())
    return f"SEND\ndestination:{to}\n{lines}\nx\0".encode()


def subscribe(to: str, **headers: str) -> bytes:
    found = {"id": "1", "receipt": "s", **{n.replace("_", "-"): v for n, v in headers.items()}}
    lines = "".join(f"{n}:{v}\n" for n, v in found.items())
    return f"SUBSCRIBE\ndestination:{to}\n{lines}\n\0".encode()


async def answer(rig: ServerRig, peer: Peer, data: bytes) -> Frame:
    peer.send(data)
    await rig.flush()
    frames = [frame for frame in peer.frames() if frame.command != "MESSAGE"]
    assert len(frames) == 1, frames
    return frames[0]


def refuses(frame: Frame, permission: str, address: str, match: str = "#") -> bool:
    sentence = frame.get("message", "")
    assert frame.command == "ERROR", frame
    assert f"no permission {permission} at the address {address}: the match {match}" in sentence
    assert "alice" in sentence
    return True


@run
async def test_sending() -> None:
    rig = rigged({"#": allowed("send")})
    peer = await come_in(rig)
    assert refuses(await answer(rig, peer, send("/queue/orders")), "send", "orders")
    assert not rig.engine.registry.addresses, "nothing was made for it"
    assert rig.cycle.errors["NotPermitted"] == 1
    await rig.close()


@run
async def test_sending_to_a_queue_of_an_address() -> None:
    rig = rigged({"#": allowed("send")})
    await rig.engine.registry.create_queue("q", "orders", RoutingType.ANYCAST)
    peer = await come_in(rig)
    assert refuses(await answer(rig, peer, send("orders::q")), "send", "orders")
    await rig.close()


@run
async def test_sending_in_a_transaction_is_refused_with_the_frame() -> None:
    rig = rigged({"#": allowed("send")})
    peer = await come_in(rig)
    peer.send(b"BEGIN\ntransaction:t\n\n\0")
    assert refuses(await answer(rig, peer, send("/queue/q", transaction="t")), "send", "q")
    await rig.close()


@run
async def test_a_commit_asks_again() -> None:
    rig = rigged({"#": allowed()})
    peer = await come_in(rig)
    peer.send(b"BEGIN\ntransaction:t\n\n\0" + send("/queue/q", transaction="t"))
    await rig.flush()
    rig.engine.registry.permissions.replace({"#": allowed("send")})
    peer.frames()
    assert refuses(await answer(rig, peer, b"COMMIT\ntransaction:t\n\n\0"), "send", "q")
    assert "q" not in rig.engine.registry.queues
    await rig.close()


@run
@pytest.mark.parametrize("subscription", [{}, {"durable_subscription_name": "d"}])
async def test_consuming(subscription: dict[str, str]) -> None:
    for to in ("/queue/orders", "/topic/orders"):
        if subscription and to.startswith("/queue"):
            continue
        rig = rigged({"#": allowed("consume")})
        peer = await come_in(rig, **{"client-id": "c"})
        frame = await answer(rig, peer, subscribe(to, **subscription))
        assert refuses(frame, "consume", "orders")
        assert not rig.engine.registry.queues, "nothing was made for it"
        await rig.close()


@run
async def test_making_addresses() -> None:
    for data in (send("/topic/t"), send("/queue/t"), subscribe("/topic/t"), subscribe("/queue/t")):
        rig = rigged({"#": allowed("create_address")})
        peer = await come_in(rig)
        assert refuses(await answer(rig, peer, data), "create-address", "t")
        assert not rig.engine.registry.addresses
        await rig.close()


@run
async def test_widening_an_address_is_making_one() -> None:
    rig = rigged({"#": allowed("create_address")})
    await rig.engine.registry.create_address("t", {RoutingType.MULTICAST})
    peer = await come_in(rig)
    assert (await answer(rig, peer, send("/topic/t"))).command == "RECEIPT"
    assert refuses(await answer(rig, peer, send("/queue/t")), "create-address", "t")
    await rig.close()


@run
async def test_making_durable_queues() -> None:
    for data in (
        send("/queue/t"),
        send("t::q", **{"destination-type": "MULTICAST"}),
        subscribe("/queue/t"),
        subscribe("/topic/t", durable_subscription_name="d"),
    ):
        rig = rigged({"#": allowed("create_durable_queue")})
        peer = await come_in(rig, **{"client-id": "c"})
        assert refuses(await answer(rig, peer, data), "create-durable-queue", "t")
        assert not rig.engine.registry.queues
        await rig.close()


@run
async def test_making_queues_that_go_with_a_restart() -> None:
    rig = rigged({"#": allowed("create_non_durable_queue")})
    peer = await come_in(rig)
    frame = await answer(rig, peer, subscribe("/topic/t"))
    assert refuses(frame, "create-non-durable-queue", "t")
    await rig.close()


@run
async def test_ending_a_durable_subscription() -> None:
    rig = rigged({"#": allowed("delete_durable_queue")})
    peer = await come_in(rig, **{"client-id": "c"})
    name = {"durable_subscription_name": "d"}
    assert (await answer(rig, peer, subscribe("/topic/t", **name))).command == "RECEIPT"
    leave = b"UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0"
    assert (await answer(rig, peer, leave)).command == "RECEIPT"
    end = b"UNSUBSCRIBE\nid:1\ndurable-subscription-name:d\nreceipt:u\n\n\0"
    assert refuses(await answer(rig, peer, end), "delete-durable-queue", "t")
    assert "c.d" in rig.engine.registry.queues
    rig.engine.registry.permissions.replace({"#": allowed()})
    peer = await come_in(rig, **{"client-id": "c"})
    assert (await answer(rig, peer, end)).command == "RECEIPT"
    assert "c.d" not in rig.engine.registry.queues
    await rig.close()


@run
async def test_what_goes_by_itself_needs_no_permission() -> None:
    rig = rigged({"#": allowed("delete_non_durable_queue", "delete_address")})
    peer = await come_in(rig)
    assert (await answer(rig, peer, subscribe("/topic/t"))).command == "RECEIPT"
    leave = b"UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0"
    assert (await answer(rig, peer, leave)).command == "RECEIPT"
    assert not rig.engine.registry.queues
    await rig.close()


@run
async def test_who_has_the_role_does_all_of_it() -> None:
    rig = rigged({"#": allowed()})
    peer = await come_in(rig, **{"client-id": "c"})
    for data in (
        send("/queue/q"),
        send("/topic/t"),
        subscribe("/queue/q"),
        subscribe("/topic/t", id="2"),
        subscribe("/topic/t", id="3", durable_subscription_name="d"),
    ):
        assert (await answer(rig, peer, data)).command == "RECEIPT"
    await rig.close()


@run
async def test_a_subscription_with_wildcards_gets_what_its_user_may_have() -> None:
    rig = rigged({"#": allowed(), "news.secret": allowed("consume")})
    peer = await come_in(rig, **{"client-id": "c"})
    writer = await come_in(rig)
    wanted = (
        subscribe("/topic/news.*"),
        subscribe("/topic/news.#", id="2", durable_subscription_name="d"),
        subscribe("news.#\\c\\cshared", id="3", subscription_type="MULTICAST"),
    )
    for data in wanted:
        assert (await answer(rig, peer, data)).command == "RECEIPT"
    for name in ("secret", "open", "secret", "open"):
        assert (await answer(rig, writer, send(f"/topic/news.{name}"))).command == "RECEIPT"
    got = [frame for frame in peer.frames() if frame.command == "MESSAGE"]
    assert {frame.get("destination") for frame in got} == {"/topic/news.open"}
    assert Counter(frame.get("subscription") for frame in got) == {"1": 2, "2": 2, "3": 2}
    assert rig.engine.registry.withheld == 6
    await rig.close()


@run
@pytest.mark.parametrize("to", ["/queue/news.*", "news.*", "/queue/news.*\\c\\cown"])
async def test_an_anycast_queue_of_a_wildcard_needs_every_match(to: str) -> None:
    rig = rigged({"#": allowed(), "news.secret": allowed("consume")})
    registry = rig.engine.registry
    peer = await come_in(rig)
    frame = await answer(rig, peer, subscribe(to))
    assert refuses(frame, "consume", "news.*", "news.secret")
    assert not registry.queues
    assert "news.*" not in registry.addresses
    await registry.create_queue("own", "news.*", RoutingType.ANYCAST)
    peer = await come_in(rig)
    assert (await answer(rig, peer, subscribe(to))).command == "RECEIPT", "others made it"
    await rig.close()


@run
async def test_a_subscription_with_wildcards_needs_every_match_where_parts_are_rejected() -> None:
    rig = rigged({"#": allowed(), "news.secret": allowed("consume")})
    rig.engine.registry.permissions.is_filtering = False
    peer = await come_in(rig)
    assert (await answer(rig, peer, subscribe("/topic/sports.*"))).command == "RECEIPT"
    frame = await answer(rig, peer, subscribe("/topic/news.*", id="2"))
    assert refuses(frame, "consume", "news.*", "news.secret")
    await rig.close()


# --- rules and roles that change ------------------------------------------------------------------


async def taught(rig: ServerRig, to: str = "/queue/q") -> Peer:
    """Return a client whose messages to a queue Python does not see any more."""
    peer = await come_in(rig)
    assert (await answer(rig, peer, send(to, persistent="true"))).command == "RECEIPT"
    frames = rig.cycle.frames
    assert (await answer(rig, peer, send(to, persistent="true"))).command == "RECEIPT"
    assert rig.cycle.frames == frames, "the core was taught"
    return peer


@run
@pytest.mark.parametrize("to", ["/queue/q", "q"])
async def test_taught_routes_meet_rules_that_came_later(to: str) -> None:
    rig = rigged({})
    await rig.engine.registry.create_queue("q", "q", RoutingType.ANYCAST)
    peer = await taught(rig, to)
    rig.engine.registry.permissions.replace({"#": allowed("send")})
    rig.cycle.permissions_changed()
    assert refuses(await answer(rig, peer, send(to, persistent="true")), "send", "q")
    assert rig.core.queue_statistics(rig.engine.registry.queues["q"].id).added == 2
    await rig.close()


@run
async def test_taught_routes_meet_roles_that_were_taken() -> None:
    rig = rigged({"#": allowed()})
    peer = await taught(rig)
    rig.users = {"alice": User("alice", *_keys(ALICE), roles=frozenset({"other"}))}
    rig.cycle.permissions_changed()
    assert refuses(await answer(rig, peer, send("/queue/q", persistent="true")), "send", "q")
    await rig.close()


@run
async def test_a_user_that_is_gone_has_no_roles() -> None:
    rig = rigged({"#": allowed()})
    peer = await taught(rig)
    rig.users = {"other": ALICE}
    rig.cycle.permissions_changed()
    assert refuses(await answer(rig, peer, send("/queue/q", persistent="true")), "send", "q")
    await rig.close()


@run
async def test_who_keeps_its_permission_notices_nothing() -> None:
    rig = rigged({"#": allowed()})
    peer = await taught(rig)
    rig.engine.registry.permissions.replace({"#": allowed(), "other": SecuritySettings()})
    rig.cycle.permissions_changed()
    assert (await answer(rig, peer, send("/queue/q", persistent="true"))).command == "RECEIPT"
    frames = rig.cycle.frames
    assert (await answer(rig, peer, send("/queue/q", persistent="true"))).command == "RECEIPT"
    assert rig.cycle.frames == frames, "the core was taught again"
    await rig.close()


@run
async def test_consumers_that_may_not_any_more_are_ended() -> None:
    rig = rigged({"#": allowed()})
    await rig.engine.registry.create_queue("q", "q", RoutingType.ANYCAST)
    consumer, other = await come_in(rig), await come_in(rig)
    assert (await answer(rig, consumer, subscribe("/queue/q"))).command == "RECEIPT"
    assert (await answer(rig, consumer, subscribe("/queue/q", id="2"))).command == "RECEIPT"
    assert (await answer(rig, other, subscribe("/queue/free"))).command == "RECEIPT"
    rig.engine.registry.permissions.replace({"#": allowed(), "q": allowed("consume")})
    rig.cycle.permissions_changed()
    await rig.flush()
    (frame,) = consumer.frames()
    assert refuses(frame, "consume", "q", "q")
    assert not rig.engine.registry.queues["q"].consumers
    assert not other.frames()
    assert len(rig.engine.registry.queues["free"].consumers) == 1
    await rig.close()


# --- what a protocol may forget -------------------------------------------------------------------


@run
async def test_a_protocol_that_forgets_the_user_is_refused() -> None:
    rig = rigged({"#": allowed()})
    registry = rig.engine.registry
    place = Destination("x", None, RoutingType.ANYCAST)
    with pytest.raises(NotPermitted, match="a client without a login"):
        find_target(registry, place)
    with pytest.raises(NotPermitted):
        await make_target(registry, place)
    peer = await come_in(rig)
    request = SubscriptionRequest(
        destination=place, subscription="1", header=b"1", version=12, mode=AckMode.AUTO, credit=1
    )
    with pytest.raises(NotPermitted):
        await open_subscription(rig.core, registry, peer.connection, request)
    assert not registry.addresses
    await rig.close()


@run
async def test_dead_letters_need_no_permission() -> None:
    settings = AddressSettings(
        dead_letter_address="graves",
        max_delivery_attempts=1,
        auto_create_dead_letter_resources=True,
    )
    rig = rigged({"q": allowed()}, settings)
    peer = await come_in(rig)
    await answer(rig, peer, send("/queue/q", persistent="true"))
    peer.send(subscribe("/queue/q", ack="client-individual"))
    await rig.flush()
    message = next(frame for frame in peer.frames() if frame.command == "MESSAGE")
    await answer(rig, peer, f"NACK\nid:{message.get('ack')}\nreceipt:n\n\n\0".encode())
    for _ in range(5):
        await rig.flush()
    assert "graves" in rig.engine.registry.addresses
    await rig.close()


def _keys(user: User) -> tuple[bytes, int, bytes, bytes]:
    return user.salt, user.iterations, user.stored_key, user.server_key


def test_a_large_message_is_refused_before_its_body_goes_to_disk() -> None:
    @on_large_rig
    async def scenario(rig: LargeRig) -> None:
        rig.engine.registry.permissions.replace(
            {"#": SecuritySettings(send=("anonymous",)), "secret": SecuritySettings()}
        )
        peer = rig.peer()
        await peer.login()
        data = large("secret", "1")
        peer.send(data[: len(data) // 2])
        await rig.flush()
        assert rig.bodies() == []
        (frame,) = peer.frames()
        assert "no permission send at the address secret" in frame.get("message", "")
        assert frame.get("receipt-id") == "1"

    scenario()
