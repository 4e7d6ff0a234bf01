"""A transaction that fails half way is given up: nothing of it is left, and it can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vespiary_broker.engine.core import LargeBody, NoRoom
from vespiary_broker.engine.joint_staging import Taken, stage_jointly
from vespiary_broker.engine.open_transaction import aborted_on_failure
from vespiary_broker.engine.publishing import find_target
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Outgoing,
    Transaction,
    prepare,
    refer_to,
    stage,
    stage_branch,
)
from vespiary_codec.journal.branch import BranchName, Xid
from vespiary_native.choice import open_core
from vespiary_testkit.engine_rig import Rig, destination, do
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.refusing_core import RefusingCore

LARGE = LargeBody(5, 2_000_000, 9)


class Bodies:
    """Bodies in files that remembers what became of them."""

    def __init__(self) -> None:
        self.adopted: list[int] = []
        self.removed: list[int] = []

    def adopt(self, body: LargeBody) -> None:
        self.adopted.append(body.large_id)

    def remove(self, large_ids: list[int]) -> None:
        self.removed += large_ids


def outgoing(body: bytes) -> Outgoing:
    return Outgoing(
        destination=destination("/queue/q"),
        properties=b"destination:q\n",
        body=body,
        is_persistent=True,
    )


def locally(rig: Rig, work: Transaction) -> None:
    stage(rig.core, rig.registry, rig.duplicates, work)


def as_branch(rig: Rig, work: Transaction) -> None:
    name = BranchName(Xid(1, b"global", b"own"), 1, "")
    stage_branch(rig.core, rig.registry, work, 99, name)


def jointly(rig: Rig, work: Transaction) -> None:
    """As the protocols do with one message and what it depends on."""
    target = find_target(rig.registry, work.sends[-1].destination)
    assert target is not None
    taken = [Taken(one.consumer, one.sequence) for one in work.acknowledgements]
    stage_jointly(rig.core, rig.registry, (work.sends[-1], target), taken)


WAYS: list[tuple[Callable[[Rig, Transaction], None], str]] = [
    (locally, "publish"),
    (locally, "acknowledge"),
    (locally, "commit"),
    (as_branch, "publish"),
    (as_branch, "acknowledge"),
    (as_branch, "prepare"),
    (jointly, "publish"),
    (jointly, "acknowledge"),
    (jointly, "commit"),
]


@pytest.mark.parametrize("failure", [NoRoom("none"), ValueError("bad"), MemoryError("none")])
@pytest.mark.parametrize(("way", "step"), WAYS)
def test_it_leaves_nothing_and_can_be_repeated(
    way: Callable[[Rig, Transaction], None], step: str, failure: Exception
) -> None:
    core: Any = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = Rig(journal=MemoryJournal(core, files=8))
    bodies: Any = Bodies()
    rig.registry.large_bodies = bodies
    consumer = rig.subscribe(rig.output(), "/queue/in")
    for _ in range(3):
        rig.send("/queue/in", b"x")
    rig.turn()
    work = Transaction(
        sends=[outgoing(b"first"), refer_to(outgoing(b""), LARGE)],
        acknowledgements=[Acknowledgement(consumer, 1), Acknowledgement(consumer, 3)],
    )
    do(prepare(rig.registry, work))
    queue_id = rig.registry.queues["q"].id
    before = core.queue_statistics(queue_id), core.queue_statistics(consumer.queue.id)
    large = work.sends[-1].body
    core.failures[step] = lambda *arguments: (
        None if step == "publish" and arguments[2] != large else failure
    )
    with pytest.raises(type(failure)):
        way(rig, work)
    del core.failures[step]
    rig.turn()
    assert (core.queue_statistics(queue_id), core.queue_statistics(consumer.queue.id)) == before
    assert [one for one, _ in core.held(consumer.handle)] == [1, 2, 3]
    # The body is the sender's, to send it again or to remove it.
    assert (bodies.adopted, bodies.removed) == ([], [])
    assert core.take_done_large() == core.live_large() == []
    way(rig, work)
    rig.turn()
    assert bodies.adopted == [LARGE.large_id]
    assert core.live_large() == [LARGE]
    assert core.take_done_large() == []
    assert [one for one, _ in core.held(consumer.handle)] == [2]
    sent = 1 if way is jointly else 2
    statistics = core.queue_statistics(queue_id)
    assert statistics.prepared if way is as_branch else statistics.ready == sent


def test_one_that_its_commit_has_ended_is_not_missed() -> None:
    """A commit that finds no memory behind its record has ended the transaction."""
    core = MemoryJournal().core

    def committed() -> None:
        core.begin(7, 100, 1)
        with aborted_on_failure(core, 7):
            core.commit(7)
            raise MemoryError

    with pytest.raises(MemoryError):
        committed()
    core.begin(8, 100, 1)
    core.abort(8)
