"""Every cell of the policy tables in docs/howto/{paging,engines}.md, as the pages have them.

A row or a column that is added to a page without a test here fails, and so does a cell whose word
means nothing. Full addresses are tried with a real broker; a full disk with the server over a
journal in memory (`tests/fault/test_full_disk.py` fills real volumes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from vespiary_broker.server.listener import LargeLimits
from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_codec.wire.stomp import Frame
from vespiary_spec.errors import JournalFull
from vespiary_spec.settings import AddressSettings, DiskFullPolicy
from vespiary_testkit import product_loop
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.full_addresses import (
    BODY,
    COLUMNS,
    DURABLE,
    FILLED,
    Cell,
    Consumer,
    Lines,
    Served,
    cells,
    check_gone,
    fill,
    served_with,
)
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

ADDRESS_CELLS = cells("paging.md", "What a full address does")
DISK_CELLS = cells("engines.md", "What a full disk does to a message")


MOVES = frozenset(
    {
        "dead letter, from another address",
        "expired message, from another address",
        "message that queue retry puts back",
    }
)
"""Rows of what the broker moves: `test_policy_of_moves.py` has them."""


def name_of(cell: Cell) -> str:
    return f"{cell.column}: {cell.row}"


def test_the_tables_have_the_cells_that_a_broker_has() -> None:
    """Fewer would be a table that hides something."""
    policies = {"PAGE", "BLOCK", "FAIL", "DROP", "pages full: FAIL", "pages full: DROP"}
    assert {cell.column for cell in ADDRESS_CELLS} == policies == set(COLUMNS)
    assert {cell.row for cell in ADDRESS_CELLS} == {*SENDS, ABOVE, *MOVES}
    assert len(ADDRESS_CELLS) == (len(SENDS) + len(MOVES)) * len(COLUMNS) + 1
    assert {cell.column for cell in DISK_CELLS} == {str(policy) for policy in DiskFullPolicy}
    assert {cell.row for cell in DISK_CELLS} == {*DISK_SENDS, "acknowledgement"}
    assert len(DISK_CELLS) == (len(DISK_SENDS) + 1) * 3


# --- what is sent ---------------------------------------------------------------------------------

LARGE = b"late" + bytes(range(1, 251)) * 800
XID = "1:61:62"


class Step(NamedTuple):
    """A frame that a client sends."""

    command: str
    headers: Lines
    body: bytes = b""


class Sending(NamedTuple):
    """What a client sends to a full address.

    Attributes:
        steps: Its frames; `X` stands for the address, `free` for one that is not full. The last
            one is what waits or is refused.
        then: What makes the messages available once it was taken.
    """

    steps: tuple[Step, ...]
    then: tuple[Step, ...] = ()

    @property
    def is_receipted(self) -> bool:
        return "receipt" in self.steps[-1].headers

    @property
    def free(self) -> int:
        """Number of messages to the address that is not full."""
        return sum(step.headers.get("destination") == "free" for step in self.steps)


def message(receipt: bool = True, body: bytes = BODY, **headers: str) -> Step:
    more = {"receipt": "late"} if receipt else {}
    return Step("SEND", {"destination": "X", **headers, **more}, body)


def members(begin: Lines, end: Lines) -> tuple[Step, ...]:
    """Two messages of a transaction, the first to an address that is not full."""
    inside = DURABLE | {"transaction": "t"}
    return (
        Step("BEGIN", {"transaction": "t", **begin}),
        Step("SEND", {"destination": "free", **inside}, BODY),
        Step("SEND", {"destination": "X", **inside}, BODY),
        Step("COMMIT", {"transaction": "t", "receipt": "late", **end}),
    )


_XID: Final[Lines] = {"xid": XID}
SENDS: Final[dict[str, Sending]] = {
    "durable message, with receipt": Sending((message(**DURABLE),)),
    "durable message, without receipt": Sending((message(receipt=False, **DURABLE),)),
    "message that is not durable": Sending((message(),)),
    "large message": Sending((message(body=LARGE, **DURABLE),)),
    "transaction, at COMMIT": Sending(members({}, {})),
    "branch, at prepare": Sending(
        members(_XID, _XID | {"phase": "prepare"}),
        (Step("COMMIT", _XID | {"transaction": "t", "phase": "commit", "receipt": "then"}),),
    ),
    "branch, in one phase": Sending(members(_XID, _XID | {"phase": "one"})),
}
ABOVE: Final = "message above max-size-bytes-reject-threshold"
# --- full addresses -------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(COLUMNS))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A broker with the policy of one column for all addresses but those that begin with `free`."""
    with served_with(request.param, tmp_path_factory.mktemp("policy") / "data") as served:
        yield served


def placed(step: Step, address: str) -> Lines:
    where = {"X": f"/queue/{address}", "free": f"/queue/free.{address}"}
    target = step.headers.get("destination")
    return step.headers | ({"destination": where.get(target, target)} if target else {})


Outcome = Callable[[Served, ExitStack, str, Sending, StompPeer], None]


def receive_answer(served: Served, stack: ExitStack, sending: Sending, peer: StompPeer) -> None:
    """Wait until what was sent is confirmed; without a receipt of its own, by one behind it."""
    if not sending.is_receipted:
        peer.send("SEND", {"destination": "/queue/free.other", "receipt": "late"}, b"x")
    peer.receive_receipt("late")
    for step in sending.then:
        peer.send(step.command, step.headers, step.body)
        peer.receive_receipt("then")


def check_taken(
    served: Served, stack: ExitStack, address: str, sending: Sending, peer: StompPeer
) -> None:
    receive_answer(served, stack, sending, peer)
    consumer = Consumer(served, stack, address)
    assert consumer.take(FILLED) == [b"0", b"1", b"2"]
    assert consumer.take(1) == [sending.steps[-1].body or BODY]
    check_free(served, stack, address, sending.free)


def check_free(served: Served, stack: ExitStack, address: str, count: int) -> None:
    if not count:
        return
    free = Consumer(served, stack, f"free.{address}")
    assert free.take(count) == [BODY] * count


def check_waits(
    served: Served, stack: ExitStack, address: str, sending: Sending, peer: StompPeer
) -> None:
    blocked = f'vespiary_address_blocked_producers{{address="{address}"}}'
    wait_for(lambda: served.metric(blocked) == 1)
    free = Consumer(served, stack, f"free.{address}")
    free.check_empty()  # nothing of a transaction is there before all of it
    peer.check_silent()
    consumer = Consumer(served, stack, address)
    assert consumer.take(FILLED) == [b"0", b"1", b"2"]
    receive_answer(served, stack, sending, peer)
    wait_for(lambda: served.metric(blocked) == 0)
    assert consumer.take(1) == [sending.steps[-1].body or BODY]
    if sending.free:
        assert free.take(sending.free) == [BODY]


def check_refused(
    served: Served, stack: ExitStack, address: str, sending: Sending, peer: StompPeer
) -> Frame:
    error = peer.receive_error()
    sentence = error.get("message") or ""
    policy = "page-full-policy" if served.column.startswith("pages") else "address-full-policy"
    assert f"the address {address} is full, and its {policy} is" in sentence
    assert error.get("receipt-id") == ("late" if sending.is_receipted else None)
    check_gone(served, stack, address)
    if sending.free:
        Consumer(served, stack, f"free.{address}").check_empty()
    return error


def check_dropped(
    served: Served, stack: ExitStack, address: str, sending: Sending, peer: StompPeer
) -> None:
    receive_answer(served, stack, sending, peer)
    dropped = f'vespiary_address_full_dropped_total{{address="{address}"}}'
    assert served.metric(dropped) == 1
    check_gone(served, stack, address)
    log = served.broker.log_text()
    assert (
        sum("are dropped" in line and f"address={address} " in line for line in log.splitlines())
        == 1
    )


def check_dropped_in_part(
    served: Served, stack: ExitStack, address: str, sending: Sending, peer: StompPeer
) -> None:
    assert sending.free
    check_dropped(served, stack, address, sending, peer)
    check_free(served, stack, address, sending.free)


def check_rolled_back(
    served: Served, stack: ExitStack, address: str, sending: Sending, peer: StompPeer
) -> None:
    error = check_refused(served, stack, address, sending, peer)
    assert "XA_RBROLLBACK" in (error.get("message") or "")


OUTCOMES: Final[dict[str, Outcome]] = {
    "taken": check_taken,
    "waits": check_waits,
    "refused": check_refused,
    "dropped": check_dropped,
    "dropped in part": check_dropped_in_part,
    "rolled back": check_rolled_back,
}


TEXTS: Final = {(cell.row, cell.column): cell.text for cell in ADDRESS_CELLS}


@pytest.mark.ci
@pytest.mark.parametrize("row", SENDS)
def test_a_full_address(served: Served, row: str) -> None:
    address = f"full.row{[*SENDS].index(row)}"
    with ExitStack() as stack:
        fill(served, stack, address)
        send_to_full(served, stack, address, SENDS[row], TEXTS[row, served.column])


@pytest.mark.ci
def test_an_address_above_its_reject_threshold(tmp_path: Path) -> None:
    settings = (
        "address-settings.full.#.address-full-policy=BLOCK",
        "address-settings.full.#.max-size-bytes-reject-threshold=300",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker, ExitStack() as stack:
        served = Served(broker, "BLOCK")
        fill(served, stack, "full.above")
        sending = SENDS["durable message, with receipt"]
        send_to_full(served, stack, "full.above", sending, TEXTS[ABOVE, "BLOCK"])


def send_to_full(
    served: Served, stack: ExitStack, address: str, sending: Sending, text: str
) -> None:
    peer = served.peer(stack)
    for step in sending.steps:
        peer.send(step.command, placed(step, address), step.body)
    OUTCOMES[text](served, stack, address, sending, peer)


# --- a full disk ----------------------------------------------------------------------------------

LIMITS = LargeLimits(over_bytes=10_000, record_bytes_max=100_000, size_bytes_max=1 << 30)
FULL_DISK = JournalFull("no journal file can be made", measured="96 %", allowed="at most 90 %")
DISK_SENDS: Final = SENDS
ADDRESS: Final = "orders"


class FullDiskRig(ServerRig):
    """A server whose journal has no room for messages, and knows why."""

    def __init__(self, policy: str) -> None:
        self.disk = MemoryDisk()
        options = LargeMessageOptions(directory=Path("/large"), retry_s=0.001)
        self.bodies = LargeMessages(options, self.disk, InlineExecutor())
        settings = {"#": AddressSettings(disk_full_policy=DiskFullPolicy(policy))}
        super().__init__(
            journal=MemoryJournal(files=2, is_automatic=True),
            settings=settings,
            large=self.bodies,
            large_limits=LIMITS,
        )

    async def login(self) -> Peer:
        peer = self.peer()
        await peer.login()
        return peer

    async def make_full(self) -> None:
        self.core.hold_adds(held=True)
        self.journal.blocked = FULL_DISK
        self.cycle.on_blocked()
        await self.settle()

    async def make_room(self) -> None:
        self.journal.blocked = None
        self.core.hold_adds(held=False)
        self.journal.add_file()
        await self.flush()

    async def close(self) -> None:
        await super().close()
        await self.bodies.close()

    def ready(self, address: str) -> int:
        """Return how many messages of an address may be delivered."""
        queue = self.engine.registry.queues.get(address)
        return 0 if queue is None else self.core.queue_statistics(queue.id).ready


def encoded(step: Step, address: str) -> bytes:
    lines = placed(step, address) | ({"content-length": str(len(step.body))} if step.body else {})
    head = "".join(f"{name}:{value}\n" for name, value in lines.items())
    return f"{step.command}\n{head}\n".encode() + step.body + b"\0"


async def answers(rig: FullDiskRig, peer: Peer) -> list[Frame]:
    """Return what a client gets, once nothing more happens by itself."""
    await rig.flush()
    await rig.flush()
    return peer.frames()


def receipts(frames: list[Frame]) -> list[str]:
    assert {frame.command for frame in frames} <= {"RECEIPT"}, frames
    return [frame.get("receipt-id", "") for frame in frames]


async def send_on_full_disk(rig: FullDiskRig, cell: Cell) -> None:
    sending = DISK_SENDS[cell.row]
    peer = await rig.login()
    for queue in (ADDRESS, f"free.{ADDRESS}"):
        headers = {"destination": f"/queue/{queue}", "persistent": "true", "receipt": "first"}
        peer.send(encoded(Step("SEND", headers, b"first"), ADDRESS))
        assert receipts(await answers(rig, peer)) == ["first"]
    await rig.make_full()
    for step in sending.steps:
        peer.send(encoded(step, ADDRESS))
    if not sending.is_receipted:
        peer.send(encoded(message(), ADDRESS))  # it is not durable: it needs no disk
    frames = await answers(rig, peer)
    check = {
        "taken": check_disk_taken,
        "waits": check_disk_waits,
        "refused": check_disk_refused,
        "rolled back": check_disk_rolled_back,
        "dropped": check_disk_dropped,
        "dropped, the rest waits": check_disk_dropped_in_part,
        "dropped, `XA_RDONLY`": check_disk_read_only,
    }[cell.text]
    await check(rig, peer, sending, frames)


def taken(sending: Sending) -> int:
    """Return how many messages come to the address, the first one included, if all are taken."""
    return 2 + (not sending.is_receipted)


async def check_disk_taken(
    rig: FullDiskRig, _peer: Peer, sending: Sending, frames: list[Frame]
) -> None:
    assert receipts(frames) == ["late"]
    assert rig.ready(ADDRESS) == taken(sending)
    assert rig.engine.full_disk.dropped_count == 0


async def check_disk_waits(
    rig: FullDiskRig, peer: Peer, sending: Sending, frames: list[Frame]
) -> None:
    assert frames == []
    assert not peer.transport.is_reading_now
    assert rig.ready(ADDRESS) == rig.ready(f"free.{ADDRESS}") == 1
    await rig.make_room()
    assert receipts(await answers(rig, peer)) == ["late"]
    for step in sending.then:
        peer.send(encoded(step, ADDRESS))
        assert receipts(await answers(rig, peer)) == ["then"]
    assert peer.transport.is_reading_now
    assert rig.ready(ADDRESS) == taken(sending)
    assert rig.ready(f"free.{ADDRESS}") == 1 + sending.free


async def check_disk_refused(
    rig: FullDiskRig, peer: Peer, sending: Sending, frames: list[Frame]
) -> None:
    (error,) = frames
    assert error.command == "ERROR"
    assert "and the disk-full-policy of the address" in (error.get("message") or "")
    assert "is FAIL" in (error.get("message") or "")
    assert error.get("receipt-id") == ("late" if sending.is_receipted else None)
    assert peer.transport.is_eof
    await rig.make_room()
    assert rig.ready(ADDRESS) == rig.ready(f"free.{ADDRESS}") == 1
    assert not rig.disk.files, "no body is left"


async def check_disk_rolled_back(
    rig: FullDiskRig, peer: Peer, sending: Sending, frames: list[Frame]
) -> None:
    await check_disk_refused(rig, peer, sending, frames)
    assert "XA_RBROLLBACK" in (frames[0].get("message") or "")
    assert rig.core.branches() == []


async def check_disk_dropped(
    rig: FullDiskRig, _peer: Peer, sending: Sending, frames: list[Frame]
) -> None:
    assert receipts(frames) == ["late"]
    assert rig.engine.full_disk.dropped == {ADDRESS: 1}
    await rig.make_room()
    assert rig.ready(ADDRESS) == taken(sending) - 1
    assert not rig.disk.files, "no body is left"


async def check_disk_dropped_in_part(
    rig: FullDiskRig, peer: Peer, sending: Sending, frames: list[Frame]
) -> None:
    assert frames == []
    assert rig.engine.full_disk.dropped == {ADDRESS: 1, f"free.{ADDRESS}": 1}
    await rig.make_room()
    assert receipts(await answers(rig, peer)) == ["late"]
    for step in sending.then:
        peer.send(encoded(step, ADDRESS))
        assert receipts(await answers(rig, peer)) == ["then"]
    assert rig.ready(ADDRESS) == rig.ready(f"free.{ADDRESS}") == 1


async def check_disk_read_only(
    rig: FullDiskRig, _peer: Peer, _sending: Sending, frames: list[Frame]
) -> None:
    assert receipts(frames) == ["late"]
    assert frames[0].get("xa") == "XA_RDONLY"
    assert rig.engine.full_disk.dropped == {ADDRESS: 1, f"free.{ADDRESS}": 1}
    assert rig.core.branches() == []
    await rig.make_room()
    assert rig.ready(ADDRESS) == rig.ready(f"free.{ADDRESS}") == 1


async def acknowledge_on_full_disk(rig: FullDiskRig, cell: Cell) -> None:
    assert cell.text == "taken"
    peer = await rig.login()
    headers = {"destination": f"/queue/{ADDRESS}", "persistent": "true"}
    peer.send(encoded(Step("SEND", headers, b"first"), ADDRESS))
    subscription = {"id": "1", "destination": f"/queue/{ADDRESS}", "ack": "client-individual"}
    peer.send(encoded(Step("SUBSCRIBE", subscription), ADDRESS))
    (given,) = await answers(rig, peer)
    await rig.make_full()
    peer.send(encoded(Step("ACK", {"id": given.get("ack") or "", "receipt": "a"}), ADDRESS))
    assert receipts(await answers(rig, peer)) == ["a"]


@pytest.mark.parametrize("cell", DISK_CELLS, ids=name_of)
def test_a_full_disk(cell: Cell) -> None:
    async def scenario() -> None:
        rig = FullDiskRig(cell.column)
        act = acknowledge_on_full_disk if cell.row == "acknowledgement" else send_on_full_disk
        await act(rig, cell)
        await rig.close()

    product_loop.run(scenario())
