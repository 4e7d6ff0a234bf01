"""SENDs to addresses with filters and diverts: batches of a read, beside everything else."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_spec.settings import AddressFullPolicy, AddressSettings, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig


def run(test: Callable[[ServerRig], Awaitable[None]], **named: Any) -> None:
    async def scenario() -> None:
        rig = ServerRig(**named)
        await test(rig)
        await rig.close()

    product_loop.run(scenario())


async def queue(rig: ServerRig, name: str, filter_string: str = "") -> None:
    traits = QueueTraits(selector=compile_filter(filter_string))
    await rig.engine.registry.create_queue(name, "x", RoutingType.MULTICAST, traits=traits)


async def client(rig: ServerRig) -> Peer:
    peer = rig.peer()
    await peer.login()
    return peer


def send(receipt: int, headers: str = "", to: str = "/topic/x", size: int = 1) -> bytes:
    head = f"SEND\ndestination:{to}\npersistent:true\n{headers}receipt:{receipt}\n\n"
    return head.encode() + b"b" * size + b"\0"


def receipts(peer: Peer) -> list[int]:
    return [int(frame.get("receipt-id", "-1")) for frame in peer.frames()]


def ready(rig: ServerRig, *names: str) -> list[int]:
    return [rig.core.queue_statistics(rig.engine.registry.queues[name].id).ready for name in names]


def test_one_read_of_many_messages_is_no_frame_of_python() -> None:
    async def scenario(rig: ServerRig) -> None:
        await queue(rig, "red", "colour = 'red'")
        await queue(rig, "high", "JMSPriority > 4")
        peer = await client(rig)
        peer.send(send(0))
        await rig.flush()
        frames = rig.cycle.frames
        colours = ("colour:red\n", "colour:blue\n", "priority:9\n", "colour:red\npriority:8\n")
        peer.send(b"".join(send(1 + number, colours[number % 4]) for number in range(400)))
        assert receipts(peer) == [0], "the rest is not durable"
        await rig.flush()
        assert rig.cycle.frames == frames
        assert receipts(peer) == list(range(1, 401))
        assert ready(rig, "red", "high") == [200, 200]
        assert rig.engine.registry.unrouted_messages.total == 101

    run(scenario)


def test_receipts_keep_the_order_of_a_connection() -> None:
    """Through the switch, on the fast path, by Python's frames, in one read and cut anywhere."""

    async def scenario(rig: ServerRig) -> None:
        await queue(rig, "red", "colour = 'red'")
        peer = await client(rig)
        stream = b""
        for number in range(0, 60, 6):
            stream += send(number, "colour:red\n") + send(number + 1)
            stream += send(number + 2, to="/queue/plain") + send(number + 3, "colour:red\n")
            stream += send(number + 4, "colour:re\\nd\n") + send(number + 5, to="/queue/plain")
        for cut in (len(stream), 1000, 77, 13):
            for at in range(0, len(stream), cut):
                peer.send(stream[at : at + cut])
            await rig.flush()
            assert receipts(peer) == list(range(60))
        assert ready(rig, "red", "plain") == [80, 80]

    run(scenario)


def test_what_finds_no_room_waits_with_all_that_is_behind_it() -> None:
    async def scenario(rig: ServerRig) -> None:
        await queue(rig, "all", "TRUE OR colour = 'red'")
        peer = await client(rig)
        peer.send(send(0, size=1000))
        await rig.flush()
        assert receipts(peer) == [0]
        count = 60
        peer.send(b"".join(send(1 + number, size=4000) for number in range(count)))
        await rig.flush()
        assert rig.journal.space_requests > 0
        taken = receipts(peer)
        assert taken == list(range(1, 1 + len(taken)))
        assert 0 < len(taken) < count
        while len(taken) < count:
            rig.journal.add_file()
            await rig.flush()
            taken += receipts(peer)
        assert taken == list(range(1, 1 + count))
        assert ready(rig, "all") == [count + 1]

    run(scenario, journal=MemoryJournal(files=2, file_bytes=64 * 1024))


def test_a_full_address_drops_what_its_filters_let_in() -> None:
    async def scenario(rig: ServerRig) -> None:
        await queue(rig, "red", "colour = 'red'")
        peer = await client(rig)
        peer.send(b"".join(send(number, "colour:red\n") for number in range(6)))
        await rig.flush()
        assert receipts(peer) == list(range(6))
        assert ready(rig, "red") == [2]

    settings = AddressSettings(address_full_policy=AddressFullPolicy.DROP, max_size_messages=2)
    run(scenario, settings={"x": settings})


def test_the_filters_of_now_count() -> None:
    async def scenario(rig: ServerRig) -> None:
        registry = rig.engine.registry
        await queue(rig, "red", "colour = 'red'")
        peer = await client(rig)
        peer.send(send(0, "colour:red\n") * 3)
        await queue(rig, "blue", "colour = 'blue'")
        peer.send(send(0, "colour:blue\n") * 3)
        for name in ("red", "blue"):
            registry.drop_queue(registry.queues[name])
        await queue(rig, "all")
        peer.send(send(0, "colour:red\n") * 3)
        await rig.flush()
        assert receipts(peer) == [0] * 9
        assert ready(rig, "all") == [3]
        assert not registry.switches.by_handle

    run(scenario)


COSTLY = " OR ".join(f"colour LIKE '%{number}_x%'" for number in range(25))


def _slow(rig: ServerRig, step_s: float = 0.002) -> None:
    """Let the clock of filters go on with each look at it."""
    rig.engine.turn_time.clock_s = itertools.count(0.0, step_s).__next__


def test_filters_take_a_part_of_a_turn_and_others_come_in_between() -> None:
    async def scenario(rig: ServerRig) -> None:
        await queue(rig, "costly", f"colour = 'red' OR {COSTLY}")
        sender, other = await client(rig), await client(rig)
        sender.send(send(0, "colour:red\n"))
        other.send(send(0, to="/queue/plain"))
        await rig.flush()
        assert receipts(sender) == receipts(other) == [0]
        _slow(rig)
        # What filters cost depends on the headers' length: short ones are not worth a look.
        red = f"colour:red\nfiller:{'x' * 1500}\n"
        sender.send(b"".join(send(1 + number, red) for number in range(100)))
        assert not sender.transport.is_reading_now, "it has had its part of this turn"
        tail = rig.core.queue_statistics(rig.engine.registry.queues["costly"].id).tail
        other.send(send(1, to="/queue/plain"))
        other.send(send(2, red))  # for the same filter: it waits as well
        plain = rig.core.queue_statistics(rig.engine.registry.queues["plain"].id).tail
        assert plain == 3, "what needs no filter does not wait"
        assert tail < 20
        for _ in range(40):
            await rig.flush()
        assert receipts(sender) == list(range(1, 101))
        assert receipts(other) == [1, 2]
        assert ready(rig, "costly") == [102]
        assert sender.transport.is_reading_now
        assert rig.engine.turn_time.waits > 10

    run(scenario)


def test_a_message_with_very_many_filters_takes_several_turns() -> None:
    async def scenario(rig: ServerRig) -> None:
        for number in range(60):
            await queue(rig, f"q{number}", f"n = {number} OR n > {90 + number} OR {COSTLY}")
        peer = await client(rig)
        peer.send(send(0, "n:0\n"))
        await rig.flush()
        assert receipts(peer) == [0]
        _slow(rig)
        filler = "".join(f"filler{n}:{'x' * 4000}\n" for n in range(3))
        for number in range(1, 6):
            peer.send(send(number, f"n:{number}\n{filler}"))
        assert not peer.transport.is_reading_now
        for _ in range(100):
            await rig.flush()
        assert receipts(peer) == [1, 2, 3, 4, 5]
        assert ready(rig, *(f"q{number}" for number in range(7))) == [1, 1, 1, 1, 1, 1, 0]
        # As frames of Python, and in a transaction, the same holds.
        peer.send(send(6, f"n:6\nno\\cw:1\n{filler}"))
        peer.send(b"BEGIN\ntransaction:t\n\n\0")
        for number in (7, 8):
            peer.send(send(number, f"n:{number}\ntransaction:t\n{filler}"))
        peer.send(b"COMMIT\ntransaction:t\nreceipt:9\n\n\0")
        waits = rig.engine.turn_time.waits
        for _ in range(100):
            await rig.flush()
        assert receipts(peer) == [6, 7, 8, 9]
        assert ready(rig, "q6", "q7", "q8", "q9") == [1, 1, 1, 0]
        assert rig.engine.turn_time.waits > waits

    run(scenario)
