"""Large messages of STOMP clients on a full disk: that of the bodies, and that of the journal."""

from __future__ import annotations

import asyncio
from typing import Any

from vespiary_broker.store.large_messages import LargeMessageOptions
from vespiary_spec.errors import JournalFull
from vespiary_testkit import product_loop
from vespiary_testkit.large_rig import BODY, FOLDER, LargeRig, receipts, rigged, send
from vespiary_testkit.server_rig import Peer

FULL = JournalFull("no journal file can be made", measured="96 %", allowed="at most 90 %")


async def arrive(rig: LargeRig, peer: Peer, data: bytes) -> bytes:
    """Have bytes arrive in pieces while the connection is read; return what it did not take."""
    while data and peer.transport.is_reading():
        piece, data = data[:3000], data[3000:]
        peer.send(piece)
        await rig.settle()
    return data


@rigged
async def test_who_waits_is_not_read_and_goes_on_with_what_is_there(rig: LargeRig) -> None:
    peer = rig.peer()
    await peer.login()
    rig.make_full()
    rest = await arrive(rig, peer, send("waiting", 1))
    assert len(rest) > len(BODY) // 3, "it was read although nothing can be stored"
    assert peer.frames() == []
    (path,) = rig.disk.files
    inode = rig.disk.files[path].number
    assert rig.disk.files[path].data, "what was written is kept"
    await rig.make_room()
    assert peer.transport.is_reading()
    assert await arrive(rig, peer, rest + send("waiting", 2)) == b""
    await rig.flush()
    assert receipts(peer) == ["1", "2"]
    assert rig.bodies() == [BODY, BODY]
    assert rig.disk.files[path].number == inode
    assert rig.large.statistics().waiting == 0


@rigged
async def test_who_waits_with_a_whole_body_goes_on(rig: LargeRig) -> None:
    peer = rig.peer()
    await peer.login()
    rig.make_full()
    peer.send(send("waiting", 1))
    await rig.until_waiting(1)
    assert peer.frames() == []
    assert not peer.transport.is_reading()
    await rig.make_room()
    assert receipts(peer) == ["1"]
    assert rig.bodies() == [BODY]
    assert peer.transport.is_reading()


@rigged
async def test_who_waits_goes_on_when_a_body_is_acknowledged(rig: LargeRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(send("waiting", 1))
    await rig.flush()
    rig.make_full()
    peer.send(send("waiting", 2))
    await rig.settle()
    assert receipts(peer) == ["1"]
    rig.large.options = LargeMessageOptions(directory=FOLDER, retry_s=1000)
    body = next(iter(rig.large._live))
    rig.large.remove([body])
    await rig.flush()
    assert receipts(peer) == ["2"]


@rigged
async def test_who_goes_while_it_waits_leaves_nothing(rig: LargeRig) -> None:
    begun, whole = rig.peer(), rig.peer()
    for peer in (begun, whole):
        await peer.login()
    rig.make_full()
    await arrive(rig, begun, send("waiting", 1)[:-10_000])
    whole.send(send("waiting", 1))
    await rig.until_waiting(2)
    begun.lose()
    whole.lose()
    await rig.settle()
    assert rig.disk.files == {}
    assert rig.large.statistics().waiting == 0


@rigged
async def test_who_is_refused_is_told_why_and_nobody_else(rig: LargeRig) -> None:
    failing, other = rig.peer(), rig.peer()
    for peer in (failing, other):
        await peer.login()
    rig.make_full()
    await arrive(rig, failing, send("failing", 1))
    other.send(send("waiting", 2))
    await rig.settle()
    (error,) = failing.frames()
    assert (error.command, error.get("receipt-id")) == ("ERROR", "1")
    assert "the disk-full-policy of the address failing is FAIL" in (error.get("message") or "")
    assert rig.cycle.errors["JournalFull"] == 1
    assert other.frames() == []
    await rig.make_room()
    assert receipts(other) == ["2"]
    assert rig.bodies() == [BODY]


@rigged
async def test_what_is_dropped_is_confirmed_counted_and_logged_once(
    rig: LargeRig,
) -> None:
    peer = rig.peer()
    await peer.login()
    rig.make_full()
    data = b"".join(send("dropping", number, has_length=number % 2 == 0) for number in range(4))
    assert await arrive(rig, peer, data) == b""
    await rig.flush()
    assert receipts(peer) == ["0", "1", "2", "3"]
    assert rig.engine.full_disk.dropped == {"dropping": 4}
    assert rig.disk.files == {}
    await rig.make_room()
    peer.send(send("dropping", 4))
    await rig.flush()
    assert receipts(peer) == ["4"]
    assert rig.bodies() == [BODY]
    assert rig.engine.full_disk.dropped == {"dropping": 4}


@rigged
async def test_members_of_a_transaction_follow_the_policy_when_they_are_sent(
    rig: LargeRig,
) -> None:
    peer = rig.peer()
    await peer.login()
    rig.make_full()
    member = "transaction:t\n"
    peer.send(b"BEGIN\ntransaction:t\n\n\0" + send("dropping", 1, extra=member))
    await rig.flush()
    assert receipts(peer) == ["1"]
    peer.send(send("waiting", 2, extra=member) + b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
    await rig.flush()
    assert receipts(peer) == []
    await rig.make_room()
    assert receipts(peer) == ["2", "c"]
    assert rig.bodies() == [BODY]


@rigged
async def test_a_full_journal_beside_a_folder_with_room(rig: LargeRig) -> None:
    peers = {queue: rig.peer() for queue in ("failing", "dropping", "waiting")}
    for queue, peer in peers.items():
        await peer.login()
        peer.send(f"SEND\ndestination:/queue/{queue}\nreceipt:0\n\n\0".encode())
        await rig.flush()
        assert receipts(peer) == ["0"]
    rig.core.hold_adds(held=True)
    rig.journal.blocked = FULL
    rig.cycle.on_blocked()
    rig.disk.capacity_bytes = 1 << 30
    for queue, peer in peers.items():
        peer.send(send(queue, 1))
        await rig.settle()
    assert [frame.command for frame in peers["failing"].frames()] == ["ERROR"]
    assert receipts(peers["dropping"]) == ["1"]
    assert rig.engine.full_disk.dropped == {"dropping": 1}
    assert peers["waiting"].frames() == []
    assert rig.bodies() == [BODY], "the body that waits, and none of the others"
    rig.journal.blocked = None
    rig.core.hold_adds(held=False)
    rig.journal.add_file()
    await rig.flush()
    assert receipts(peers["waiting"]) == ["1"]


def test_drops_are_logged_once_each_time_the_disk_is_full(caplog: Any) -> None:
    async def scenario() -> None:
        rig = LargeRig()
        peer = rig.peer()
        await peer.login()
        for _ in range(2):
            rig.make_full()
            for number in range(3):
                peer.send(send("dropping", number))
                await rig.flush()
            await asyncio.sleep(0.003)
            await rig.make_room()
            peer.send(send("dropping", 4))
            await rig.flush()
        await rig.close()

    product_loop.run(scenario())
    lines = [record.getMessage() for record in caplog.records]
    assert sum("messages are dropped" in line for line in lines) == 2
    assert sum("the disk for large messages is full" in line for line in lines) >= 2
    assert sum("there is room for large messages again" in line for line in lines) == 2
