"""STOMP clients while no journal file can be made: who waits, who is refused, whose is dropped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from vespiary_spec.errors import JournalFull
from vespiary_spec.settings import AddressSettings, DiskFullPolicy
from vespiary_testkit import product_loop
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig

BODY = b"x" * 9000
POLICIES = {
    "failing": AddressSettings(disk_full_policy=DiskFullPolicy.FAIL),
    "dropping": AddressSettings(disk_full_policy=DiskFullPolicy.DROP),
}
FULL = JournalFull("no journal file can be made", measured="96 %", allowed="at most 90 %")


def send(queue: str, receipt: object, *, headers: str = "persistent:true\n") -> bytes:
    head = f"SEND\ndestination:/queue/{queue}\n{headers}receipt:{receipt}\n\n"
    return head.encode() + BODY + b"\0"


def receipts(peer: Peer) -> list[str]:
    return [frame.get("receipt-id", "") for frame in peer.frames()]


def on_full_disk(
    settings: dict[str, AddressSettings],
) -> Callable[[Callable[[ServerRig], Awaitable[None]]], Any]:
    """Run a test on a loop of its own, on a journal that has no room for messages any more."""

    def decorate(test: Callable[[ServerRig], Awaitable[None]]) -> Any:
        @wraps(test)
        def run() -> None:
            async def scenario() -> None:
                rig = ServerRig(journal=MemoryJournal(files=2), settings=settings)
                for queue in ("failing", "dropping", "waiting"):
                    teacher = rig.peer()
                    await teacher.login()
                    teacher.send(send(queue, 0))
                    await rig.flush()
                    assert receipts(teacher) == ["0"]
                    teacher.lose()
                rig.core.hold_adds(held=True)
                await test(rig)
                await rig.close()

            product_loop.run(scenario())

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for a fixture `rig`
        return run

    return decorate


async def make_full(rig: ServerRig) -> None:
    rig.journal.blocked = FULL
    rig.cycle.on_blocked()
    await rig.settle()


async def make_room(rig: ServerRig) -> None:
    rig.journal.blocked = None
    rig.core.hold_adds(held=False)
    rig.journal.add_file()
    await rig.flush()


@on_full_disk(POLICIES)
async def test_who_is_refused_is_told_why_and_others_are_not_touched(rig: ServerRig) -> None:
    failing, other = rig.peer(), rig.peer()
    await failing.login()
    await other.login()
    await make_full(rig)
    failing.send(send("failing", 1) + send("failing", 2))
    await rig.settle()
    (error,) = failing.frames()
    assert error.command == "ERROR"
    assert error.get("receipt-id") == "1"
    assert "the disk-full-policy of the address failing is FAIL" in (error.get("message") or "")
    assert failing.transport.is_eof
    assert rig.cycle.errors["JournalFull"] == 1
    other.send(send("waiting", 3))
    await rig.settle()
    assert other.frames() == []
    assert not other.transport.is_eof
    await make_room(rig)
    assert receipts(other) == ["3"]


@on_full_disk(POLICIES)
async def test_what_is_dropped_is_confirmed_and_counted(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    await make_full(rig)
    queue = rig.engine.registry.queues["dropping"]
    before = rig.core.queue_statistics(queue.id).added
    peer.send(b"".join(send("dropping", number) for number in range(50)))
    await rig.settle(200)
    assert receipts(peer) == [str(number) for number in range(50)]
    assert rig.engine.full_disk.dropped == {"dropping": 50}
    assert rig.core.queue_statistics(queue.id).added == before
    await make_room(rig)
    peer.send(send("dropping", 51))
    await rig.flush()
    assert receipts(peer) == ["51"]
    assert rig.engine.full_disk.dropped_count == 50
    assert rig.core.queue_statistics(queue.id).added == before + 1


@on_full_disk(POLICIES)
async def test_who_waited_before_the_disk_was_known_to_be_full_is_decided_then(
    rig: ServerRig,
) -> None:
    peers = [rig.peer() for _ in range(3)]
    for peer, queue in zip(peers, ("failing", "dropping", "waiting"), strict=True):
        await peer.login()
        peer.send(send(queue, 1) + send(queue, 2))
    await rig.settle()
    assert [peer.frames() for peer in peers] == [[], [], []]
    await make_full(rig)
    failing, dropping, waiting = peers
    assert [frame.command for frame in failing.frames()] == ["ERROR"]
    assert receipts(dropping) == ["1", "2"]
    assert waiting.frames() == []
    await make_room(rig)
    assert receipts(waiting) == ["1", "2"]


@on_full_disk(POLICIES)
async def test_one_connection_with_several_policies_keeps_its_order(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    await make_full(rig)
    peer.send(send("dropping", 1) + send("waiting", 2) + send("dropping", 3))
    await rig.settle()
    assert receipts(peer) == ["1"]
    assert not peer.transport.is_reading()
    await make_room(rig)
    assert receipts(peer) == ["2", "3"]
    assert rig.engine.full_disk.dropped == {"dropping": 1}


@on_full_disk(POLICIES)
async def test_acknowledgements_go_on(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(b"SUBSCRIBE\nid:1\ndestination:/queue/failing\nack:client-individual\n\n\0")
    await rig.flush()
    (message,) = peer.frames()
    await make_full(rig)
    peer.send(f"ACK\nid:{message.get('ack')}\nreceipt:a\n\n\0".encode())
    await rig.flush()
    assert receipts(peer) == ["a"]


@on_full_disk(POLICIES)
async def test_messages_that_are_not_stored_need_no_disk(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    await make_full(rig)
    peer.send(send("failing", 1, headers="") + send("dropping", 2, headers=""))
    await rig.flush()
    assert receipts(peer) == ["1", "2"]
    assert rig.engine.full_disk.dropped_count == 0


@on_full_disk(POLICIES)
async def test_a_commit_drops_and_fails_by_the_policies_of_its_messages(rig: ServerRig) -> None:
    dropping, failing = rig.peer(), rig.peer()
    await dropping.login()
    await failing.login()
    await make_full(rig)
    headers = "persistent:true\ntransaction:t\n"
    begin, commit = b"BEGIN\ntransaction:t\n\n\0", b"COMMIT\ntransaction:t\nreceipt:c\n\n\0"
    dropping.send(begin + send("dropping", 1, headers=headers) + commit)
    failing.send(begin + send("failing", 1, headers=headers) + commit)
    await rig.flush()
    assert [frame.command for frame in failing.frames()] == ["RECEIPT", "ERROR"]
    assert receipts(dropping) == ["1"], "an empty transaction needs room as well"
    assert rig.engine.full_disk.dropped == {"dropping": 1}
    await make_room(rig)
    assert receipts(dropping) == ["c"]


@on_full_disk({})
async def test_without_policies_everybody_waits_on_the_fast_path(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    frames = rig.cycle.frames
    await make_full(rig)
    peer.send(send("waiting", 0))
    await rig.settle()
    assert peer.frames() == []
    assert rig.cycle.frames == frames + 1  # taught by the first of this connection
    await make_room(rig)
    assert receipts(peer) == ["0"]
    rig.core.hold_adds(held=True)
    await make_full(rig)
    peer.send(send("waiting", 1) + send("waiting", 2))
    await rig.settle()
    assert rig.cycle.frames == frames + 1
    assert peer.frames() == []
    await make_room(rig)
    assert receipts(peer) == ["1", "2"]
