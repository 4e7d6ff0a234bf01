"""SEND with `_AMQ_DUPL_ID`: discarded when it comes again, confirmed when the first is durable."""

from __future__ import annotations

from vespiary_broker.engine.duplicates import ID_BYTES_MAX, DuplicateIds
from vespiary_testkit.journal_workload import run
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig


def send(text: str, *, receipt: str = "", transaction: str = "", body: str = "x") -> bytes:
    lines = ["SEND", "destination:/queue/q", "persistent:true", f"_AMQ_DUPL_ID:{text}"]
    lines += [f"receipt:{receipt}"] if receipt else []
    lines += [f"transaction:{transaction}"] if transaction else []
    return ("\n".join(lines) + f"\n\n{body}\0").encode()


async def logged_in(rig: ServerRig) -> Peer:
    peer = rig.peer()
    await peer.login()
    return peer


def receipts(peer: Peer) -> list[str | None]:
    return [frame.get("receipt-id") for frame in peer.frames() if frame.command == "RECEIPT"]


def count(rig: ServerRig) -> int:
    return rig.core.queue_statistics(rig.engine.registry.queues["q"].id).added


@run
async def test_what_comes_again_is_discarded_and_confirmed():
    rig = ServerRig(journal=MemoryJournal(is_automatic=True))
    peer = await logged_in(rig)
    peer.send(send("a", receipt="1") + send("a", receipt="2") + send("b", receipt="3"))
    await rig.settle()
    assert receipts(peer) == ["1", "2", "3"]
    assert count(rig) == 2
    assert rig.duplicates.discarded == 1
    peer.lose()
    await rig.close()


@run
async def test_no_retransmission_is_confirmed_before_the_first_is_durable():
    rig = ServerRig()
    peer, other = await logged_in(rig), await logged_in(rig)
    peer.send(send("warm up"))
    await rig.flush()
    peer.send(send("a", receipt="1"))
    await rig.settle()
    other.send(send("a", receipt="2"))
    await rig.settle()
    assert receipts(peer) == receipts(other) == [], "nothing is written yet"
    assert rig.duplicates.discarded == 1
    await rig.flush()
    assert (receipts(peer), receipts(other)) == (["1"], ["2"])
    await rig.close()


@run
async def test_a_retransmission_is_not_confirmed_while_the_first_finds_no_room():
    rig = ServerRig(journal=MemoryJournal(files=1, file_bytes=64 * 1024))
    peer, other = await logged_in(rig), await logged_in(rig)
    big = "y" * 9000
    for number in range(10):
        peer.send(send(f"{number}", body=big, receipt=f"{number}"))
        await rig.flush()
    taken = count(rig)
    assert taken < 10, "the file is full"
    waiting = f"{taken}"
    other.send(send(waiting, body=big, receipt="again"))
    await rig.flush()
    assert waiting not in receipts(peer)
    assert receipts(other) == []
    rig.journal.add_file()
    await rig.flush()
    await rig.flush()
    assert waiting in receipts(peer)
    assert receipts(other) == ["again"]
    assert rig.duplicates.discarded == 1, "whoever of the two came in, the other did not"
    await rig.close()


@run
async def test_a_commit_with_an_id_that_was_seen_fails_when_the_first_is_durable():
    rig = ServerRig()
    peer, other = await logged_in(rig), await logged_in(rig)
    begin, commit = b"BEGIN\ntransaction:t\n\n\0", b"COMMIT\ntransaction:t\nreceipt:c\n\n\0"
    both = send("a", transaction="t") + send("b", transaction="t")
    peer.send(begin + both + commit)
    await rig.settle()
    other.send(begin + both + commit)
    await rig.settle()
    assert other.connection.is_open, "no clock that an ERROR waits for runs yet"
    assert other.frames() == [], "the answer is the proof that the first is safe, so it waits"
    await rig.flush()
    assert receipts(peer) == ["c"]
    (error,) = other.frames()
    assert error.command == "ERROR"
    assert "nothing was committed" in error.get("message", "") + error.body.decode()
    assert count(rig) == 2
    await rig.close()


@run
async def test_an_id_that_is_too_long_is_refused():
    rig = ServerRig(journal=MemoryJournal(is_automatic=True))
    peer = await logged_in(rig)
    peer.send(send("x" * ID_BYTES_MAX, receipt="1"))
    await rig.settle()
    assert receipts(peer) == ["1"]
    peer.send(send("x" * (ID_BYTES_MAX + 1)))
    await rig.settle()
    (error,) = peer.frames()
    assert "_AMQ_DUPL_ID" in error.get("message", "") + error.body.decode()
    await rig.close()


@run
async def test_without_detection_the_header_is_a_header_like_any_other():
    rig = ServerRig(
        journal=MemoryJournal(is_automatic=True),
        duplicates=DuplicateIds(lambda _: 0, is_persistent=True),
    )
    peer = await logged_in(rig)
    peer.send(send("a") + send("a", receipt="1"))
    await rig.settle()
    assert receipts(peer) == ["1"]
    assert count(rig) == 2
    await rig.close()


@run
async def test_an_empty_id_is_none():
    rig = ServerRig(journal=MemoryJournal(is_automatic=True))
    peer = await logged_in(rig)
    peer.send(send("") + send("", receipt="1"))
    await rig.settle()
    assert receipts(peer) == ["1"]
    assert count(rig) == 2
    await rig.close()
