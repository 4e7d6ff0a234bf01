"""Bodies in files of transactions: gone as soon as nothing can commit them.

A body that stays is no lost message, but it fills the disk until the next restart of the broker.
Each test runs for transactions of STOMP, for branches of STOMP, and for transactions of AMQP.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Source,
    TransactionalState,
)
from vespiary_codec.wire.amqp.composites import write
from vespiary_spec.errors import JournalFull
from vespiary_spec.settings import AddressFullPolicy, AddressSettings
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import SENDER, AmqpPeer, amqp_acceptor, message
from vespiary_testkit.journal_workload import until
from vespiary_testkit.large_rig import BODY, LargeRig, send

ADDRESSES = {
    name: AddressSettings(max_size_messages=1, address_full_policy=policy)
    for name, policy in (("refused", AddressFullPolicy.FAIL), ("lost", AddressFullPolicy.DROP))
}
FULL = JournalFull("no journal file can be made", measured="96 %", allowed="at most 90 %")
QUEUES = ("refused", "lost", "failing", "dropping", "a")


class StompClient:
    """A client of STOMP with one transaction.

    Args:
        rig: The rig.
        branch: Headers that make the transaction a branch.
        phase: Header that says how the branch is committed.
    """

    def __init__(self, rig: LargeRig, branch: str = "", phase: str = "") -> None:
        self.rig = rig
        self.peer = rig.peer()
        self.connection = self.peer.connection
        self.branch = branch
        self._phase = phase

    async def begin(self) -> None:
        await self.peer.login()
        self.peer.send(f"BEGIN\ntransaction:t\n{self.branch}\n\0".encode())

    async def put(self, queue: str) -> None:
        self.peer.send(send(queue, queue, extra="transaction:t\n"))
        await self.rig.flush()
        assert [frame.command for frame in self.peer.frames()] == ["RECEIPT"]

    async def end(self, *, commit: bool) -> None:
        command = f"COMMIT\n{self._phase}" if commit else "ABORT\n"
        frame = f"{command}transaction:t\n{self.branch}receipt:end\n\n\0"
        self.peer.send(frame.encode())
        await self.rig.settle()

    async def is_done(self) -> bool:
        await self.rig.flush()
        return [frame.command for frame in self.peer.frames()] == ["RECEIPT"]

    def lose(self) -> None:
        self.peer.lose()


class BranchClient(StompClient):
    """A client of STOMP with one distributed transaction, committed in one phase."""

    def __init__(self, rig: LargeRig) -> None:
        super().__init__(rig, branch="xid:7\\c0a0b\\c01\n", phase="phase:one\n")


class AmqpClient:
    """A client of AMQP with one transaction; a link for each queue."""

    def __init__(self, rig: LargeRig) -> None:
        self.rig = rig
        self.peer = AmqpPeer(rig)
        self._number = b""

    async def begin(self) -> None:
        peer = self.peer
        await peer.open()
        await peer.begin()
        await peer.attach(SENDER, len(QUEUES), target=Coordinator(), source=Source())
        peer.one(Attach)
        for handle, queue in enumerate(QUEUES):
            await peer.sender(f"/queue/{queue}", handle)
        self._control(Declare())
        await self.rig.settle()
        state = peer.one(Disposition).state
        assert isinstance(state, Declared)
        self._number = state.txn_id

    def _control(self, body: Any) -> None:
        self.peer.send(b"\0\x53\x77" + write(body), handle=len(QUEUES))

    async def put(self, queue: str) -> None:
        state = TransactionalState(txn_id=self._number)
        self.peer.send(message(BODY), handle=QUEUES.index(queue), state=state)
        await self.rig.flush()
        assert isinstance(self.peer.one(Disposition).state.outcome, Accepted)

    async def end(self, *, commit: bool) -> None:
        self._control(Discharge(txn_id=self._number, fail=not commit))
        await self.rig.settle()

    async def is_done(self) -> bool:
        await self.rig.flush()
        return [type(each.state) for each in self.peer.all(Disposition)] == [Accepted]

    def lose(self) -> None:
        self.peer.peer.lose()


Client = StompClient | AmqpClient
Test = Callable[[LargeRig, Client], Coroutine[Any, Any, None]]


def with_each_client(test: Test) -> Any:
    """Run a test with a rig and a client of each kind that has begun a transaction."""

    @pytest.mark.parametrize("kind", [StompClient, BranchClient, AmqpClient])
    def run(kind: Callable[[LargeRig], Client]) -> None:
        async def scenario() -> None:
            rig = LargeRig(ADDRESSES, acceptor=amqp_acceptor())
            rig.disk.capacity_bytes = 1 << 30
            first = rig.peer()
            await first.login()
            for queue in QUEUES:
                first.send(f"SEND\ndestination:/queue/{queue}\nreceipt:1\n\nx\0".encode())
                await rig.flush()
            client = kind(rig)
            await client.begin()
            await test(rig, client)
            await rig.close()

        product_loop.run(scenario())

    run.__doc__ = test.__doc__
    return run


@with_each_client
async def test_a_commit_keeps_them(rig: LargeRig, client: Client) -> None:
    await client.put("a")
    await client.put("a")
    await client.end(commit=True)
    assert await client.is_done()
    assert rig.bodies() == [BODY, BODY]


@with_each_client
async def test_a_rollback_drops_them(rig: LargeRig, client: Client) -> None:
    await client.put("a")
    await client.end(commit=False)
    assert await client.is_done()
    assert rig.bodies() == []


@with_each_client
async def test_a_timeout_drops_them(rig: LargeRig, client: Client) -> None:
    await client.put("a")
    rig.cycle.expire_transactions(rig.cycle.loop.time() + 1e6)
    await rig.settle()
    assert rig.bodies() == []


@with_each_client
async def test_a_lost_connection_drops_them(rig: LargeRig, client: Client) -> None:
    await client.put("a")
    client.lose()
    await rig.settle()
    assert rig.bodies() == []


@with_each_client
async def test_a_commit_that_is_refused_drops_them(rig: LargeRig, client: Client) -> None:
    await client.put("a")
    await client.put("refused")
    await client.end(commit=True)
    assert not await client.is_done()
    assert rig.bodies() == []


@with_each_client
async def test_what_a_full_address_drops_is_dropped(rig: LargeRig, client: Client) -> None:
    await client.put("a")
    await client.put("lost")
    await client.end(commit=True)
    assert await client.is_done()
    assert rig.bodies() == [BODY]


def fill_the_journal(rig: LargeRig) -> None:
    rig.core.hold_adds(held=True)
    rig.journal.blocked = FULL
    rig.cycle.on_blocked()


@with_each_client
async def test_what_a_full_journal_drops_is_dropped(rig: LargeRig, client: Client) -> None:
    await client.put("a")
    await client.put("dropping")
    fill_the_journal(rig)
    await client.end(commit=True)
    assert rig.bodies() == [BODY], "the body that waits for room"
    rig.journal.blocked = None
    rig.core.hold_adds(held=False)
    rig.journal.add_file()
    assert await client.is_done()
    assert rig.bodies() == [BODY]


@with_each_client
async def test_a_commit_that_a_full_journal_refuses_drops_them(
    rig: LargeRig, client: Client
) -> None:
    await client.put("a")
    await client.put("failing")
    fill_the_journal(rig)
    await client.end(commit=True)
    assert not await client.is_done()
    assert rig.bodies() == []


@with_each_client
async def test_a_connection_that_is_lost_in_its_commit_drops_them(
    rig: LargeRig, client: Client
) -> None:
    await client.put("a")
    fill_the_journal(rig)
    await client.end(commit=True)
    assert rig.bodies() == [BODY]
    client.lose()
    await rig.settle()
    if isinstance(client, BranchClient):
        assert rig.bodies() == [BODY], "another connection may commit the branch"
        rig.cycle.expire_transactions(rig.cycle.loop.time() + 1e6)
        await rig.settle()
    assert rig.bodies() == []


def test_work_for_a_branch_that_has_timed_out_drops_them() -> None:
    """The branch is older than the work on it, which joins it: the two do not expire together."""

    async def scenario() -> None:
        rig = LargeRig()
        rig.disk.capacity_bytes = 1 << 30
        client = BranchClient(rig)
        await client.begin()
        client.peer.send(f"COMMIT\ntransaction:t\n{client.branch}phase:end\n\n\0".encode())
        await rig.settle()
        loop = rig.cycle.loop
        begun_s = loop.time()
        await until(lambda: loop.time() > begun_s)  # uvloop's clock has whole milliseconds
        ended_s = loop.time()
        client.peer.send(f"BEGIN\ntransaction:t\n{client.branch}join:true\n\n\0".encode())
        await client.put("a")
        rig.cycle.expire_transactions(ended_s + rig.engine.branches.timeout_s)
        await rig.settle()
        assert rig.bodies() == [BODY]
        await client.end(commit=True)
        assert not await client.is_done()
        assert rig.bodies() == []
        await rig.close()

    product_loop.run(scenario())
