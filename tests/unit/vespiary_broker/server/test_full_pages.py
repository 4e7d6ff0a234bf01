"""STOMP clients and addresses whose memory and pages are full: `page-full-policy`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vespiary_spec.paging import PageFullPolicy
from vespiary_spec.settings import AddressSettings
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import Peer, ServerRig

BODY = b"x" * 1000
LIMIT = 1 << 20
PERSISTENT = pytest.mark.parametrize("headers", ["persistent:true\n", ""])


def settings(policy: str, **named: Any) -> dict[str, AddressSettings]:
    named = {"max_size_messages": 2, "page_limit_bytes": LIMIT, "page_size_bytes": 65536} | named
    return {"full": AddressSettings(page_full_policy=PageFullPolicy(policy), **named)}


def send(receipt: object, headers: str = "persistent:true\n", queue: str = "full") -> bytes:
    head = f"SEND\ndestination:/queue/{queue}\n{headers}receipt:{receipt}\n\n"
    return head.encode() + BODY + b"\0"


def receipts(peer: Peer) -> list[str]:
    return [frame.get("receipt-id", "") for frame in peer.frames()]


def run(test: Callable[[ServerRig], Awaitable[None]], **named: Any) -> None:
    async def scenario() -> None:
        rig = ServerRig(**named)
        await test(rig)
        await rig.close()

    product_loop.run(scenario())


async def client(rig: ServerRig) -> Peer:
    peer = rig.peer()
    await peer.login()
    return peer


def note(rig: ServerRig, size_bytes: int, messages: int = 0) -> bool:
    """Say what stands in pages, as the pager does; return whether another may be written."""
    (state,) = rig.engine.memory.states(["full"])
    return rig.engine.memory.note_pages(state, size_bytes, messages)


async def fill(rig: ServerRig, headers: str = "persistent:true\n") -> Peer:
    """Return a producer whose messages are more than the address may have in memory."""
    peer = await client(rig)
    peer.send(b"".join(send(number, headers) for number in range(4)))
    await rig.flush()
    assert receipts(peer) == ["0", "1", "2", "3"], "its pages may grow, so it takes all"
    return peer


async def consume(rig: ServerRig, count: int) -> None:
    peer = await client(rig)
    peer.send(b"SUBSCRIBE\nid:1\ndestination:/queue/full\nack:client-individual\n\n\0")
    await rig.flush()
    for frame in peer.frames()[:count]:
        peer.send(f"ACK\nid:{frame.get('ack')}\n\n\0".encode())
    await rig.flush()


def held(rig: ServerRig) -> int:
    facts = rig.engine.memory.facts("full")
    assert facts is not None
    return facts.messages


@PERSISTENT
def test_fail_tells_of_memory_and_pages(headers: str) -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig, headers)
        assert not note(rig, LIMIT, 7)
        producer.send(send(4, headers) + send(5, headers))
        await rig.flush()
        (error,) = producer.frames()
        assert error.command == "ERROR"
        assert error.get("receipt-id") == "4"
        sentence = error.get("message") or ""
        assert "the address full is full, and its page-full-policy is FAIL" in sentence
        assert f"in 4 messages, {LIMIT} bytes of pages with 7 messages" in sentence
        assert f"max-size-messages 2, page-limit-bytes {LIMIT}" in sentence
        assert producer.transport.is_eof
        assert held(rig) == 4
        assert rig.engine.memory.counts.refused == 1
        assert rig.engine.memory.page_full_count == 1

    run(scenario, settings=settings("FAIL"))


@PERSISTENT
def test_drop_confirms_counts_and_logs_once(headers: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig, headers)
        note(rig, LIMIT)
        producer.send(b"".join(send(number, headers) for number in range(4, 9)))
        await rig.flush()
        assert receipts(producer) == ["4", "5", "6", "7", "8"]
        assert held(rig) == 4
        assert rig.engine.memory.counts.dropped == {"full": 5}
        (line,) = lines("are dropped")
        assert "its page-full-policy is DROP address=full" in line
        assert note(rig, 0)
        producer.send(send(9, headers))
        await rig.flush()
        assert receipts(producer) == ["9"]
        assert held(rig) == 5, "its pages may grow again"
        note(rig, LIMIT)
        producer.send(send(10, headers))
        await rig.flush()
        assert rig.engine.memory.counts.dropped == {"full": 6}
        assert len(lines("are dropped")) == 2, "they had room in between"

    def lines(text: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if text in r.getMessage()]

    with caplog.at_level(logging.WARNING):
        run(scenario, settings=settings("DROP"))
    assert len(lines("the pages of an address are full")) == 2
    assert len(lines("the pages of an address have room again")) == 1


def test_full_pages_alone_refuse_nothing() -> None:
    """Only an address that is full in memory as well refuses: what fits there is taken."""

    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig)
        note(rig, LIMIT)
        await consume(rig, 4)
        frames = rig.cycle.frames
        producer.send(send(4))
        await rig.flush()
        assert receipts(producer) == ["4"]
        assert rig.cycle.frames == frames, "by the fast path"
        assert rig.engine.memory.is_full(rig.engine.memory.states(["full"])[0]) is False
        producer.send(send(5))
        await rig.flush()
        assert receipts(producer) == ["5"]
        producer.send(send(6))
        await rig.flush()
        assert [frame.command for frame in producer.frames()] == ["ERROR"]

    run(scenario, settings=settings("FAIL"))


def test_a_transaction_fails_whole() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        note(rig, LIMIT)
        producer = await client(rig)
        members = send("a", "transaction:t\n", "free") + send("b", "transaction:t\n")
        producer.send(b"BEGIN\ntransaction:t\n\n\0" + members)
        producer.send(b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
        await rig.flush()
        *_, error = producer.frames()
        assert error.command == "ERROR"
        assert "page-full-policy is FAIL" in (error.get("message") or "")
        assert held(rig) == 4
        free = rig.engine.memory.facts("free")
        assert free is None or free.messages == 0

    run(scenario, settings=settings("FAIL"))


def test_a_transaction_drops_what_is_for_the_full_address_alone() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        note(rig, LIMIT)
        producer = await client(rig)
        members = send("a", "transaction:t\n", "free") + send("b", "transaction:t\n")
        producer.send(b"BEGIN\ntransaction:t\n\n\0" + members)
        producer.send(b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
        await rig.flush()
        assert "c" in receipts(producer)
        assert held(rig) == 4
        free = rig.engine.memory.facts("free")
        assert free is not None
        assert free.messages == 1

    run(scenario, settings=settings("DROP"))


def test_the_sum_of_all_addresses_counts_as_full_memory() -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await client(rig)
        producer.send(send(0) + b"".join(send(n, queue="lazy") for n in range(1, 9)))
        await rig.flush()
        assert rig.engine.memory.total().is_full
        assert len(receipts(producer)) == 9
        note(rig, LIMIT)
        producer.send(send(9))
        await rig.flush()
        (error,) = producer.frames()
        assert "global-max-size 9000 bytes, page-limit-bytes" in (error.get("message") or "")

    run(scenario, settings=settings("FAIL", max_size_messages=-1), global_max_bytes=9000)


def test_an_address_that_was_deleted_and_made_anew_may_grow() -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig)
        (old,) = rig.engine.memory.states(["full"])
        note(rig, LIMIT)
        rig.engine.registry.drop_queue(rig.engine.registry.queues["full"])
        assert rig.engine.memory.note_pages(old, LIMIT, 0), "nobody is left to be refused"
        producer.send(send(4) + send(5) + send(6))
        await rig.flush()
        assert receipts(producer) == ["4", "5", "6"]

    run(scenario, settings=settings("FAIL"))
