"""STOMP clients and full addresses: who waits, who is refused, whose messages are dropped.

The cells of the table in docs/howto/paging.md, for STOMP.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_spec.settings import AddressFullPolicy, AddressSettings, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import Peer, ServerRig

BODY = b"x" * 1000
COST = len(BODY) + 24 + 40 + 100
"""A little more than what one message of `send` takes, its headers included."""


def settings(policy: str, **named: Any) -> dict[str, AddressSettings]:
    named = named or {"max_size_messages": 2}
    return {"full": AddressSettings(address_full_policy=AddressFullPolicy(policy), **named)}


def send(queue: str, receipt: object, headers: str = "persistent:true\n") -> bytes:
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


async def client(rig: ServerRig, **headers: str) -> Peer:
    peer = rig.peer()
    await peer.login(**headers)
    return peer


async def fill(rig: ServerRig, count: int = 2, headers: str = "persistent:true\n") -> Peer:
    """Return a producer whose messages have filled the address, by the fast path and the slow."""
    peer = await client(rig)
    peer.send(b"".join(send("full", number, headers) for number in range(count)))
    await rig.flush()
    assert receipts(peer) == [str(number) for number in range(count)]
    return peer


async def consume(rig: ServerRig, count: int, *, queue: str = "full") -> Peer:
    """Return a consumer that has acknowledged some messages."""
    peer = await client(rig)
    peer.send(f"SUBSCRIBE\nid:1\ndestination:/queue/{queue}\nack:client-individual\n\n\0".encode())
    await rig.flush()
    await acknowledge(rig, peer, count)
    return peer


async def acknowledge(rig: ServerRig, peer: Peer, count: int) -> None:
    messages = [frame for frame in peer.frames() if frame.command == "MESSAGE"]
    assert len(messages) >= count
    for frame in messages[:count]:
        peer.send(f"ACK\nid:{frame.get('ack')}\n\n\0".encode())
    await rig.flush()


def held(rig: ServerRig, address: str = "full") -> int:
    facts = rig.engine.memory.facts(address)
    assert facts is not None
    return facts.messages


PERSISTENT = pytest.mark.parametrize("headers", ["persistent:true\n", ""])


# --- BLOCK --------------------------------------------------------------------------------------


@PERSISTENT
def test_block_stops_reading_and_lets_go_by_itself(headers: str) -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig, headers=headers)
        producer.send(b"".join(send("full", number, headers) for number in (2, 3)))
        await rig.flush()
        assert receipts(producer) == []
        assert not producer.transport.is_reading_now
        assert held(rig) == 2, "nothing above the limit was taken"
        assert rig.cycle.producers.count == rig.cycle.producers.count_for("full") == 1
        consumer = await consume(rig, 1)
        assert receipts(producer) == ["2"], "one was consumed, so one more fits"
        assert not producer.transport.is_reading_now
        await acknowledge(rig, consumer, 1)
        assert receipts(producer) == ["3"]
        assert producer.transport.is_reading_now
        assert rig.cycle.producers.count == 0

    run(scenario, settings=settings("BLOCK"))


def test_block_touches_nobody_else() -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig)
        producer.send(send("full", 2))
        other = await client(rig)
        other.send(send("free", 3))
        await rig.flush()
        assert receipts(producer) == []
        assert receipts(other) == ["3"]
        assert other.transport.is_reading_now

    run(scenario, settings=settings("BLOCK"))


def test_a_blocked_producer_gets_its_messages_and_its_heart_beats() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        both = await client(rig, heart_beat="1000,1000")
        both.send(b"SUBSCRIBE\nid:1\ndestination:/queue/free\nack:auto\n\n\0")
        await rig.flush()
        both.send(send("full", 9))
        await rig.flush()
        assert rig.cycle.producers.count == 1
        other = await client(rig)
        other.send(send("free", 1))
        await rig.flush()
        assert [frame.command for frame in both.frames()] == ["MESSAGE"]
        beats = both.stomp.beats
        assert beats is not None
        both.connection.written_at_s = both.connection.heard_at_s = -1000.0
        beats.beat()
        beats.check(both.connection.now_s())
        await rig.settle()
        both.frames()
        assert both.heart_beats == 1
        assert not both.transport.is_eof, "who is not read is not silent"
        await consume(rig, 1)
        assert receipts(both) == ["9"]

    run(scenario, settings=settings("BLOCK"))


def test_what_stands_behind_a_blocked_message_waits_with_it() -> None:
    """An ACK on the same connection is not seen: use another one to consume (docs)."""

    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        both = await consume(rig, 0)
        frames = both.frames() or []
        assert frames == []  # `consume` has read them: two messages are held
        both.send(send("full", 2) + b"ACK\nid:1-1\n\n\0" + b"DISCONNECT\nreceipt:bye\n\n\0")
        await rig.flush()
        assert both.frames() == []
        assert held(rig) == 2
        both.lose()  # the way out: what it held goes to others
        await rig.flush()
        assert rig.cycle.producers.count == 0
        assert held(rig) == 2, "the blocked message was never taken"
        await consume(rig, 2)
        assert held(rig) == 0

    run(scenario, settings=settings("BLOCK"))


def test_many_blocked_producers_go_on_in_their_order() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        producers = [await client(rig) for _ in range(5)]
        for number, producer in enumerate(producers):
            producer.send(send("full", number))
            await rig.settle()
        assert rig.cycle.producers.count == 5
        consumer = await consume(rig, 1)
        for round_ in range(5):
            assert [receipts(producer) for producer in producers] == [
                [str(number)] if number == round_ else [] for number in range(5)
            ]
            await acknowledge(rig, consumer, 1)
        assert rig.cycle.producers.count == 0

    run(scenario, settings=settings("BLOCK"))


def test_a_broker_that_stops_lets_blocked_producers_go() -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig)
        producer.send(send("full", 2))
        await rig.settle()
        producer.connection.refuse("the broker is stopping")
        await rig.flush()
        assert rig.cycle.producers.count == 0
        assert [frame.command for frame in producer.frames()] == ["ERROR"]

    run(scenario, settings=settings("BLOCK"))


def test_a_deleted_queue_lets_its_producers_go() -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig)
        producer.send(send("full", 2))
        await rig.settle()
        rig.engine.registry.drop_queue(rig.engine.registry.queues["full"])
        rig.cycle.producers.let_go()
        await rig.flush()
        assert receipts(producer) == ["2"], "into a queue that was made anew"
        assert held(rig) == 1

    run(scenario, settings=settings("BLOCK"))


def test_above_the_reject_threshold_senders_are_refused_instead() -> None:
    named = {"max_size_bytes": 2 * COST, "max_size_bytes_reject_threshold": 4 * COST}

    async def scenario(rig: ServerRig) -> None:
        producer = await client(rig)
        many = b"".join(
            send("full", number, "transaction:t\npersistent:true\n") for number in range(5)
        )
        producer.send(b"BEGIN\ntransaction:t\n\n\0" + many)
        producer.send(b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
        await rig.flush()
        assert "c" in receipts(producer), "nothing was full when it was committed"
        producer.send(send("full", 9))
        await rig.flush()
        (error,) = producer.frames()
        assert error.command == "ERROR"
        assert f"max-size-bytes-reject-threshold {4 * COST}" in (error.get("message") or "")
        await consume(rig, 2)
        waiting = await client(rig)
        waiting.send(send("full", 10))
        await rig.flush()
        assert waiting.frames() == [], "between limit and threshold it waits"
        assert rig.cycle.producers.count == 1

    run(scenario, settings=settings("BLOCK", **named))


# --- FAIL and DROP ------------------------------------------------------------------------------


@PERSISTENT
def test_fail_tells_why_and_ends_the_connection(headers: str) -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig, headers=headers)
        producer.send(b"".join(send("full", number, headers) for number in (2, 3)))
        await rig.flush()
        (error,) = producer.frames()
        assert error.command == "ERROR"
        assert error.get("receipt-id") == "2"
        sentence = error.get("message") or ""
        assert "the address full is full, and its address-full-policy is FAIL" in sentence
        assert "in 2 messages" in sentence
        assert "max-size-messages 2" in sentence
        assert "Send again when messages were consumed" in sentence
        assert producer.transport.is_eof
        assert rig.cycle.errors["AddressFull"] == 1
        assert rig.engine.memory.counts.refused == 1
        assert held(rig) == 2
        await consume(rig, 1)
        again = await client(rig)
        again.send(send("full", 4, headers))
        await rig.flush()
        assert receipts(again) == ["4"]

    run(scenario, settings=settings("FAIL"))


@PERSISTENT
def test_drop_confirms_counts_and_logs_once_an_episode(
    headers: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(rig: ServerRig) -> None:
        producer = await fill(rig, headers=headers)
        producer.send(b"".join(send("full", number, headers) for number in range(2, 7)))
        await rig.flush()
        assert receipts(producer) == ["2", "3", "4", "5", "6"]
        assert producer.transport.is_reading_now
        assert held(rig) == 2
        assert rig.engine.memory.counts.dropped == {"full": 5}
        assert len(lines()) == 1
        assert "address=full" in lines()[0]
        await consume(rig, 2)
        producer.send(b"".join(send("full", number, headers) for number in range(7, 12)))
        await rig.flush()
        assert len(receipts(producer)) == 5
        assert rig.engine.memory.counts.dropped == {"full": 8}
        assert len(lines()) == 2, "it was free in between"

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if "are dropped" in r.getMessage()]

    with caplog.at_level(logging.WARNING):
        run(scenario, settings=settings("DROP"))


def test_page_takes_everything_and_says_when_it_begins_and_ends() -> None:
    async def scenario(rig: ServerRig) -> None:
        told: list[tuple[str, bool]] = []
        rig.engine.memory.on_paging = lambda state: told.append((state.name, state.is_paging))
        producer = await fill(rig, 5)
        assert producer.transport.is_reading_now
        assert told == [("full", True)]
        assert rig.engine.memory.paging_count == 1
        frames = rig.cycle.frames
        producer.send(send("full", 5))
        await rig.flush()
        assert rig.cycle.frames == frames, "the fast path goes on"
        await consume(rig, 6)
        assert told == [("full", True), ("full", False)]
        assert rig.engine.memory.counts.page_modes == 1

    run(scenario, settings=settings("PAGE"))


def test_an_address_of_no_bytes_always_pages() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig, 1)
        assert rig.engine.memory.paging_count == 1
        await consume(rig, 1)
        assert rig.engine.memory.paging_count == 1

    run(scenario, settings=settings("PAGE", max_size_bytes=0))


# --- transactions -------------------------------------------------------------------------------


def transaction(*sends: str, receipt: str = "c") -> bytes:
    members = b"".join(
        send(queue, f"{queue}{number}", "transaction:t\npersistent:true\n")
        for number, queue in enumerate(sends)
    )
    end = f"COMMIT\ntransaction:t\nreceipt:{receipt}\n\n\0".encode()
    return b"BEGIN\ntransaction:t\n\n\0" + members + end


def test_a_commit_fails_whole() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        producer = await client(rig)
        producer.send(transaction("free", "full"))
        await rig.flush()
        *earlier, error = producer.frames()
        assert [frame.get("receipt-id") for frame in earlier] == ["free0", "full1"]
        assert error.command == "ERROR"
        assert error.get("receipt-id") == "c"
        assert "the address full is full" in (error.get("message") or "")
        assert held(rig) == 2
        assert held(rig, "free") == 0

    run(scenario, settings=settings("FAIL"))


def test_a_commit_waits_whole() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        producer = await client(rig)
        producer.send(transaction("free", "full"))
        await rig.flush()
        assert "c" not in receipts(producer)
        assert held(rig, "free") == 0
        await consume(rig, 1)
        assert receipts(producer) == ["c"]
        assert held(rig) == 2
        assert held(rig, "free") == 1

    run(scenario, settings=settings("BLOCK"))


def test_a_commit_drops_what_is_for_the_full_address_alone() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        producer = await client(rig)
        producer.send(transaction("full", "free", "full"))
        await rig.flush()
        assert "c" in receipts(producer)
        assert held(rig) == 2
        assert held(rig, "free") == 1
        assert rig.engine.memory.counts.dropped == {"full": 2}

    run(scenario, settings=settings("DROP"))


def test_a_transaction_that_makes_room_itself_does_not_wait_for_it() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        both = await client(rig)
        both.send(b"SUBSCRIBE\nid:1\ndestination:/queue/full\nack:client-individual\n\n\0")
        await rig.flush()
        first = both.frames()[0]
        ack = f"ACK\nid:{first.get('ack')}\ntransaction:t\n\n\0".encode()
        both.send(
            b"BEGIN\ntransaction:t\n\n\0"
            + ack
            + send("full", "m", "transaction:t\npersistent:true\n")
            + b"COMMIT\ntransaction:t\nreceipt:c\n\n\0"
        )
        await rig.flush()
        assert [f.get("receipt-id") for f in both.frames() if f.command == "RECEIPT"] == ["m", "c"]
        assert held(rig) == 2

    run(scenario, settings=settings("BLOCK"))


def test_a_commit_whose_client_goes_while_it_waits_is_void() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        producer = await client(rig)
        producer.send(transaction("full"))
        await rig.flush()
        producer.lose()
        await rig.flush()
        await consume(rig, 2)
        assert held(rig) == 0

    run(scenario, settings=settings("BLOCK"))


def test_a_branch_is_rolled_back() -> None:
    async def scenario(rig: ServerRig) -> None:
        await fill(rig)
        producer = await client(rig)
        member = send("full", "m", "transaction:t\npersistent:true\n")
        producer.send(
            b"BEGIN\ntransaction:t\nxid:1:61:62\n\n\0"
            + member
            + b"COMMIT\ntransaction:t\nxid:1:61:62\nphase:prepare\nreceipt:p\n\n\0"
        )
        await rig.flush()
        error = producer.frames()[-1]
        assert error.command == "ERROR", error
        assert "XA_RBROLLBACK" in (error.get("message") or "")
        assert "the address full is full" in (error.get("message") or "")
        assert rig.core.branches() == []
        assert held(rig) == 2

    run(scenario, settings=settings("FAIL"))


# --- all addresses together -----------------------------------------------------------------------


def test_the_sum_blocks_addresses_that_have_messages() -> None:
    async def scenario(rig: ServerRig) -> None:
        lazy = await client(rig)
        for number in range(9):
            lazy.send(send("lazy", number))
        await rig.flush()
        receipts(lazy)
        producer = await fill(rig, 1)
        assert rig.engine.memory.total().is_full
        producer.send(send("full", 1))
        await rig.flush()
        assert receipts(producer) == []
        await consume(rig, 3, queue="lazy")
        assert receipts(producer) == ["1"]

    run(scenario, settings=settings("BLOCK", max_size_bytes=-1), global_max_bytes=9 * COST)


def test_a_blocked_address_that_becomes_empty_takes_messages_again() -> None:
    async def scenario(rig: ServerRig) -> None:
        lazy = await client(rig)
        for number in range(9):
            lazy.send(send("lazy", number))
        await rig.flush()
        producer = await fill(rig, 1)
        producer.send(send("full", 1))
        await rig.flush()
        assert rig.cycle.producers.count == 1
        await consume(rig, 1)
        rig.cycle._sweep_partial(rig.cycle.loop.time())
        await rig.flush()
        assert receipts(producer) == ["1"], "the others are full; this one has nothing"

    run(scenario, settings=settings("BLOCK", max_size_bytes=-1), global_max_bytes=9 * COST)


# --- wildcards -----------------------------------------------------------------------------------


def test_a_full_wildcard_address_holds_those_who_send_to_what_it_covers() -> None:
    matches = {
        "news.*": AddressSettings(address_full_policy=AddressFullPolicy.BLOCK, max_size_messages=1)
    }

    async def scenario(rig: ServerRig) -> None:
        slow = await client(rig)
        slow.send(b"SUBSCRIBE\nid:1\ndestination:/topic/news.*\nack:client\n\n\0")
        await rig.flush()
        producer = await client(rig)
        frame = b"SEND\ndestination:/topic/news.sport\nreceipt:%d\n\nx\0"
        producer.send(frame % 1 + frame % 2)
        await rig.flush()
        assert receipts(producer) == ["1"]
        message = slow.frames()[0]
        slow.send(f"ACK\nid:{message.get('ack')}\n\n\0".encode())
        await rig.flush()
        assert receipts(producer) == ["2"]

    run(scenario, settings=matches)


# --- filters -------------------------------------------------------------------------------------


def test_queues_with_filters_are_bounded_too() -> None:
    async def scenario(rig: ServerRig) -> None:
        await rig.engine.registry.create_queue(
            "full",
            "full",
            RoutingType.ANYCAST,
            traits=QueueTraits(selector=compile_filter("region = 'eu'")),
        )
        producer = await client(rig)
        producer.send(b"".join(send("full", number, "region:eu\n") for number in range(3)))
        await rig.flush()
        assert receipts(producer) == ["0", "1"]
        await consume(rig, 1)
        assert receipts(producer) == ["2"]

    run(scenario, settings=settings("BLOCK"))
