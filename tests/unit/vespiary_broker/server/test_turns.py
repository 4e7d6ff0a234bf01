"""Turns of the loop: who sends what takes long does not keep others from theirs."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable

import pytest

from vespiary_broker.engine.usage import DROPPED_MAX
from vespiary_broker.server.turns import BEGUN_MAX, HOLD_S, LOOK_FRAMES, TURN_S
from vespiary_codec.wire.mqtt import Connack, Connect, Pingreq, Pingresp, Property
from vespiary_testkit.mqtt_rig import V3, V5, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.server_rig import Peer
from vespiary_testkit.waiting import WAIT_S

SEND = b"SEND\ndestination:/queue/q\nreceipt:%d\n\n%d\0"
FRAMES = 5 * LOOK_FRAMES


def make_slow(rig: MqttRig, step_s: float = 1.0) -> None:
    """Have so much time pass between two looks at the clock."""
    rig.cycle.turns.clock = itertools.count(1.0, step_s).__next__


def bodies(rig: MqttRig, name: str = "q") -> list[bytes]:
    """Return what has been stored in a queue."""
    queue = rig.engine.registry.queues.get(name)
    if queue is None:
        return []
    views = rig.core.look(queue.id, 0, 10_000).messages
    return [rig.core.body(queue.id, view.sequence) for view in views]


def topics(rig: MqttRig) -> int:
    """Return how many of the topics of `subscribe` have a queue."""
    return sum(name.startswith("t") for name in rig.engine.registry.addresses)


def subscribe(peer: Peer, number: int, count: int) -> None:
    """Have many SUBSCRIBEs arrive in one piece, each for a topic of its own."""
    form = "SUBSCRIBE\nid:{0}\ndestination:/topic/t{1}.{0}\nreceipt:{0}\n\n\0"
    peer.send("".join(form.format(n, number) for n in range(count)).encode())


async def stomp_peers(rig: MqttRig, count: int) -> list[Peer]:
    peers = [rig.peer() for _ in range(count)]
    for peer in peers:
        await peer.login()
    return peers


async def turns_until(condition: Callable[[], bool]) -> int:
    """Return after how many turns of the loop something is so."""
    for turn in range(10_000):
        if condition():
            return turn
        await asyncio.sleep(0)
    raise AssertionError("it never was")


# --- the frames of one connection -----------------------------------------------------------------


@on_rig()
async def test_frames_that_take_long_let_others_have_their_turn(rig: MqttRig) -> None:
    one, other = await stomp_peers(rig, 2)
    make_slow(rig)
    begins = b"".join(b"BEGIN\ntransaction:%d\nreceipt:%d\n\n\0" % (n, n) for n in range(FRAMES))
    before = rig.cycle.frames
    one.send(begins + SEND % (FRAMES, 0))
    other.send(SEND % (1, 1))
    assert rig.cycle.frames - before <= LOOK_FRAMES + 1
    await turns_until(lambda: len(bodies(rig)) == 2)
    assert bodies(rig) == [b"1", b"0"], "all of one connection came first"
    await rig.flush()
    assert [f.get("receipt-id") for f in one.frames()] == [str(n) for n in range(FRAMES + 1)]


@on_rig()
async def test_after_a_read_that_took_long_others_are_read_first(rig: MqttRig) -> None:
    """Few frames as well: the loop reads on at once, as long as reads fill the buffer."""
    one, other = await stomp_peers(rig, 2)
    make_slow(rig)
    one.send(b"BEGIN\ntransaction:0\nreceipt:0\n\n\0")
    assert not one.transport.is_reading()
    assert other.transport.is_reading()
    await turns_until(one.transport.is_reading)
    await rig.flush()
    assert [f.get("receipt-id") for f in one.frames()] == ["0"]


@on_rig()
async def test_short_frames_of_one_read_are_taken_in_one_turn(rig: MqttRig) -> None:
    (one,) = await stomp_peers(rig, 1)
    make_slow(rig, 0.0)
    before = rig.cycle.frames
    one.send(b"".join(b"BEGIN\ntransaction:%d\n\n\0" % n for n in range(FRAMES)))
    assert rig.cycle.frames - before == FRAMES
    assert one.transport.is_reading()


@on_rig()
async def test_packets_of_mqtt_let_others_have_their_turn(rig: MqttRig) -> None:
    client = await rig.connected(version=V3)
    (other,) = await stomp_peers(rig, 1)
    make_slow(rig)
    client.send(*[Pingreq()] * FRAMES)
    other.send(SEND % (1, 1))
    await turns_until(lambda: bodies(rig) == [b"1"])
    assert len(client.all_of(Pingresp)) < FRAMES // 2
    await rig.settle(FRAMES)
    assert len(client.all_of(Pingresp)) > FRAMES // 2


# --- frames that need a task ----------------------------------------------------------------------


@on_rig()
async def test_subscriptions_of_many_let_others_have_their_turn(rig: MqttRig) -> None:
    *many, other = await stomp_peers(rig, 31)
    other.send(SEND % (0, 0))  # makes the queue
    await rig.settle()
    make_slow(rig)
    rig.cycle.turns.most = 1
    for number, peer in enumerate(many):
        subscribe(peer, number, 5)
    other.send(SEND % (1, 1) + SEND % (2, 2))
    await turns_until(lambda: bodies(rig) == [b"0", b"1", b"2"])
    assert topics(rig) < len(many) // 3
    await rig.flush()
    assert [frame.get("receipt-id") for frame in other.frames()] == ["0", "1", "2"]
    assert topics(rig) < 5 * len(many), "the journal was no faster than they"
    await turns_until(lambda: topics(rig) == 5 * len(many))
    await rig.flush()
    for peer in many:
        assert [frame.get("receipt-id") for frame in peer.frames()] == list("01234")
    assert not rig.cycle.turns.waiting_count


@on_rig()
async def test_each_connection_has_a_turn_before_one_has_the_next(rig: MqttRig) -> None:
    many = await stomp_peers(rig, 10)
    make_slow(rig)
    rig.cycle.turns.most = 1
    for number, peer in enumerate(many):
        subscribe(peer, number, 3)
    await turns_until(lambda: topics(rig) == len(many))
    await rig.flush()
    await turns_until(lambda: topics(rig) == 3 * len(many))
    made = [name for name in rig.engine.registry.addresses if name.startswith("t")]
    rounds = [[int(name.partition(".")[2]) for name in made[n : n + 10]] for n in (0, 10, 20)]
    assert rounds == [[0] * 10, [1] * 10, [2] * 10]


@on_rig()
async def test_a_write_of_the_journal_finds_the_loop_free_at_its_end(rig: MqttRig) -> None:
    """What begins in many turns would make those wait whom the write confirms."""
    many = await stomp_peers(rig, 10)
    make_slow(rig, 0.75 * TURN_S)  # `most` stays
    rig.cycle.turns.hold_s = 10 * WAIT_S
    rig.cycle.turns.most = 2
    rig.journal.is_writing = True
    for number, peer in enumerate(many):
        subscribe(peer, number, 1)
    await rig.settle()
    assert topics(rig) == 2
    await rig.flush()
    await turns_until(lambda: topics(rig) == 10)


@on_rig()
async def test_frames_of_one_connection_share_what_may_begin_while_the_journal_writes(
    rig: MqttRig,
) -> None:
    (one,) = await stomp_peers(rig, 1)
    make_slow(rig, 0.75 * TURN_S)  # `most` stays
    rig.cycle.turns.hold_s = 10 * WAIT_S
    rig.cycle.turns.most = 1
    rig.journal.is_writing = True
    subscribe(one, 0, 3)
    await turns_until(lambda: topics(rig) == 1)
    await rig.settle()
    assert topics(rig) == 1
    assert rig.cycle.turns.waiting_count == 1


@on_rig()
async def test_a_write_that_takes_long_holds_nobody_up_for_ever(rig: MqttRig) -> None:
    many = await stomp_peers(rig, 5)
    make_slow(rig, 0.75 * TURN_S)  # `most` stays
    rig.cycle.turns.most = 1
    rig.journal.is_writing = True
    for number, peer in enumerate(many):
        subscribe(peer, number, 1)
    for _ in range(2 * len(many)):
        await asyncio.sleep(HOLD_S)
    assert topics(rig) == len(many)
    assert rig.journal.is_writing


@pytest.mark.parametrize(("step_s", "most"), [(TURN_S * 2, 1), (TURN_S / 1000, BEGUN_MAX)])
def test_as_many_begin_as_turns_have_time_for(step_s: float, most: int) -> None:
    @on_rig()
    async def run(rig: MqttRig) -> None:
        many = await stomp_peers(rig, 20)
        make_slow(rig, step_s)
        rig.cycle.turns.most = 8
        for number, peer in enumerate(many):
            subscribe(peer, number, 10)
        await turns_until(lambda: topics(rig) == 200)
        assert rig.cycle.turns.most == most

    run()


@on_rig()
async def test_who_is_gone_before_its_turn_is_cut_off(rig: MqttRig) -> None:
    gone, *others = await stomp_peers(rig, 6)
    make_slow(rig)
    own, client = socket.socketpair()
    gone.connection.descriptor = own.fileno()
    rig.cycle.turns.most = 1
    for number, peer in enumerate(others):
        subscribe(peer, number, 10)
    subscribe(gone, 9, 10)
    client.close()
    await turns_until(lambda: gone.transport.is_aborted)
    gone.lose()
    await turns_until(lambda: not rig.tasks)
    assert topics(rig) == 10 * len(others)
    assert gone.connection not in rig.cycle.connections.values()
    own.close()


@on_rig()
async def test_who_is_gone_while_a_frame_takes_time_is_cut_off(rig: MqttRig) -> None:
    (gone,) = await stomp_peers(rig, 1)
    own, client = socket.socketpair()
    gone.connection.descriptor = own.fileno()
    rig.bindings.gate = asyncio.Event()  # a durable queue waits for it
    gone.send(b"SUBSCRIBE\nid:1\ndestination:/queue/q\n\n\0" + SEND % (1, 1))
    await rig.settle()
    assert not gone.transport.is_aborted
    client.close()
    await turns_until(lambda: gone.transport.is_aborted)
    gone.lose()
    rig.bindings.gate.set()
    await turns_until(lambda: not rig.tasks)
    assert bodies(rig) == []
    own.close()


@on_rig()
async def test_who_is_read_again_is_watched_no_more(rig: MqttRig) -> None:
    (peer,) = await stomp_peers(rig, 1)
    own, client = socket.socketpair()
    peer.connection.descriptor = own.fileno()
    rig.bindings.gate = asyncio.Event()
    peer.send(b"SUBSCRIBE\nid:1\ndestination:/queue/q\nreceipt:1\n\n\0")
    await rig.settle()
    rig.bindings.gate.set()
    await rig.flush()
    assert [frame.get("receipt-id") for frame in peer.frames()] == ["1"]
    client.close()
    await rig.settle()
    assert not peer.transport.is_aborted  # the loop reads its end
    own.close()


@on_rig()
async def test_what_waits_is_done_when_the_broker_stops(rig: MqttRig) -> None:
    many = await stomp_peers(rig, 5)
    make_slow(rig)
    rig.cycle.turns.most = 1
    for number, peer in enumerate(many):
        subscribe(peer, number, 2)
    assert rig.cycle.turns.waiting_count == 4
    rig.cycle.turns.close()
    assert rig.cycle.turns.waiting_count == 0
    await rig.settle()
    assert topics(rig) == 10


@on_rig()
async def test_what_a_client_sends_does_not_wait_for_the_disk_behind_what_others_began(
    rig: MqttRig,
) -> None:
    many = await stomp_peers(rig, 5)
    *many, other = many
    other.send(SEND % (0, 0))  # makes the queue
    await rig.flush()
    kicks: list[int] = []
    rig.journal.kick = lambda: kicks.append(topics(rig))  # type: ignore[method-assign]
    other.send(SEND % (1, 1))
    assert kicks == [], "with the turn: others may have sent as well"
    for number, peer in enumerate(many):
        subscribe(peer, number, 1)
    kicks.clear()
    other.send(SEND % (2, 2))
    assert len(kicks) == 1, "at once: the disk does not wait for what the subscriptions do next"


# --- clients that had much ------------------------------------------------------------------------


@on_rig()
async def test_the_queues_of_a_client_that_goes_are_dropped_in_many_turns(rig: MqttRig) -> None:
    (one,) = await stomp_peers(rig, 1)
    subscribe(one, 0, 5 * DROPPED_MAX)
    await turns_until(lambda: topics(rig) == 5 * DROPPED_MAX)
    one.lose()
    left = [5 * DROPPED_MAX]
    while rig.engine.registry.queues:
        left.append(len(rig.engine.registry.queues))
        await asyncio.sleep(0)
    assert all(a - b <= DROPPED_MAX for a, b in itertools.pairwise([*left, 0]))
    await turns_until(lambda: not rig.tasks)
    subscribe((await stomp_peers(rig, 1))[0], 1, 1)
    await turns_until(lambda: topics(rig) == 1)


@on_rig()
async def test_a_queue_that_is_used_again_before_its_turn_is_kept(rig: MqttRig) -> None:
    (one,) = await stomp_peers(rig, 1)
    subscribe(one, 0, 9 * DROPPED_MAX)
    await turns_until(lambda: topics(rig) == 9 * DROPPED_MAX)
    used = list(rig.engine.registry.queues)[6 * DROPPED_MAX]
    address = rig.engine.registry.queues[used].address.name
    one.frames()
    leave = "".join(f"UNSUBSCRIBE\nid:{number}\n\n\0" for number in range(9 * DROPPED_MAX))
    again = f"SUBSCRIBE\nid:again\ndestination:/topic/{address}::{used}\nreceipt:again\n\n\0"
    one.send((leave + again).encode())
    await turns_until(lambda: not rig.tasks)
    await rig.flush()
    assert list(rig.engine.registry.queues) == [used]
    assert "again" in [frame.get("receipt-id") for frame in one.frames()]


@on_rig()
async def test_a_session_of_mqtt_that_ends_takes_many_turns_for_its_queues(rig: MqttRig) -> None:
    client = await rig.connected(
        "c", properties={Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}, clean_start=False
    )
    for number in range(4 * DROPPED_MAX):
        await client.subscribe(f"t/{number}", 1)
    assert len(rig.engine.registry.queues) == 4 * DROPPED_MAX
    client.lose()
    await rig.flush()
    assert len(rig.engine.registry.queues) == 4 * DROPPED_MAX
    left = [4 * DROPPED_MAX]
    again = rig.client()
    again.send(Connect(V5, "c"))
    for _ in range(200):
        left.append(len(rig.engine.registry.queues))
        await asyncio.sleep(0)
    assert left[-1] == 0
    assert all(a - b <= DROPPED_MAX for a, b in itertools.pairwise(left))


# --- many connections that end at once ------------------------------------------------------------


@on_rig()
async def test_the_ends_of_many_connections_take_many_turns(rig: MqttRig) -> None:
    many = await stomp_peers(rig, 50)
    await rig.settle()
    rig.cycle.turns.most = 5
    make_slow(rig, 0.75 * TURN_S)  # `most` stays
    for peer in many:
        peer.lose()
    assert not rig.listener.connections, "nobody counts them any more"
    left = [50]
    while rig.cycle.connections:
        left.append(len(rig.cycle.connections))
        await asyncio.sleep(0)
    assert all(before - after <= 5 for before, after in itertools.pairwise([*left, 0]))


@on_rig()
async def test_who_comes_back_finds_given_back_what_it_had(rig: MqttRig) -> None:
    """Its subscription is in use by the connection that is gone, until that was seen to."""
    form = (
        "SUBSCRIBE\nid:1\ndestination:/topic/t\ndurable-subscription-name:s\nack:client\n"
        "receipt:s\n\n\0"
    )
    peers = [rig.peer() for _ in range(30)]
    for number, peer in enumerate(peers):
        await peer.login(client_id=f"c{number}")
        peer.send(form.encode())
        await rig.flush()
    rig.cycle.turns.most = 1
    make_slow(rig)
    for peer in peers:
        peer.lose()
    assert len(rig.cycle.connections) == 29
    again = rig.peer()
    await again.login(client_id="c29")
    again.send(form.encode())
    await turns_until(lambda: not rig.tasks)
    await rig.flush()
    assert [frame.get("receipt-id") for frame in again.frames()] == ["s"]


@on_rig()
async def test_a_session_of_mqtt_goes_on_though_its_last_connection_was_not_seen_to(
    rig: MqttRig,
) -> None:
    client = await rig.connected(version=V3, clean_start=False)
    await client.subscribe("a", 1)
    again = rig.client(V3)
    async with rig.hub.sessions.lock("c"):
        again.send(Connect(V3, "c", clean_start=False))
        await rig.settle()
        rig.cycle.turns.most = 0  # nobody's turn comes
        client.lose()
        assert len(rig.cycle.connections) == 2
    await rig.flush()
    assert again.one(Connack).session_present
    (handler,) = [each.handler for each in rig.cycle.connections.values() if each.is_open]
    assert handler is not None
    assert handler.subscriptions_count == 1
    rig.cycle.turns.most = 1
    (other,) = await stomp_peers(rig, 1)
    other.send(b"SEND\ndestination:/topic/a\npersistent:true\n\n1\0")
    await rig.flush()
    assert [each.payload for each in await again.received()] == [b"1"]
    assert len(rig.cycle.connections) == 2


@on_rig()
async def test_ends_that_wait_are_seen_to_when_the_broker_stops(rig: MqttRig) -> None:
    many = await stomp_peers(rig, 10)
    await rig.settle()
    rig.cycle.turns.most = 1
    make_slow(rig)
    for peer in many:
        peer.lose()
    assert len(rig.cycle.connections) == 9
    rig.cycle.turns.close()
    await rig.settle(2)
    assert not rig.cycle.connections
