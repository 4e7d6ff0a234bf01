"""Branches of distributed transactions in the engine, over a real core."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_broker.engine.branches import Branches
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Outgoing,
    Transaction,
    Transactions,
    prepare,
)
from vespiary_broker.engine.xa_states import XaCall, XaCode, XaState
from vespiary_codec.journal.branch import Xid
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError, XaError
from vespiary_testkit import product_loop
from vespiary_testkit.engine_rig import Rig, destination, do
from vespiary_testkit.memory_journal import MemoryJournal

X = Xid(7, b"global", b"branch")
Y = Xid(7, b"global", b"other")
NOW_MS = 1_700_000_000_000


class BranchRig(Rig):
    """A rig whose branches have a clock that the test sets."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.now_ms = NOW_MS
        self.branches = self.fresh()

    def fresh(self, size_bytes_max: int = 10_000) -> Branches:
        """Return the branches as after a restart, of the same core and bindings."""
        made = Branches(
            self.core,
            self.registry,
            self.bindings,
            self.duplicates,
            clock_ms=lambda: self.now_ms,
            timeout_s=300.0,
            size_bytes_max=size_bytes_max,
        )
        made.restore()
        return made

    def idle(self, xid: Xid = X, *bodies: bytes, consumer: Consumer | None = None) -> None:
        """Do work in a branch and end it."""
        self.branches.start(xid, "amy", self, 0.0)
        work = Transaction([send(body) for body in bodies])
        if consumer is not None:
            work.acknowledgements.append(Acknowledgement(consumer, 1))
        do(prepare(self.registry, work))
        self.branches.end(xid, "amy", work)

    def prepared(self, xid: Xid = X, *bodies: bytes, consumer: Consumer | None = None) -> None:
        self.idle(xid, *bodies, consumer=consumer)
        assert self.branches.prepare(xid, "amy") is XaCode.OK
        self.journal.flush()

    def ready(self, queue: str = "a") -> int:
        return self.core.queue_statistics(self.registry.queues[queue].id).ready


def send(body: bytes, to: str = "/queue/a") -> Outgoing:
    return Outgoing(
        destination=destination(to),
        properties=b"destination:/queue/a\n",
        body=body,
        is_persistent=True,
    )


def code_of(caught: pytest.ExceptionInfo[XaError]) -> str:
    assert caught.value.where
    assert str(caught.value.what).startswith(caught.value.xa_code)
    return caught.value.xa_code


# --- two phases ---------------------------------------------------------------------------------


def test_two_phases() -> None:
    rig = BranchRig()
    rig.prepared(X, b"one", b"two")
    assert rig.branches.get(X).state is XaState.PREPARED
    assert rig.branches.recover("amy") == [X]
    assert rig.branches.recover("bob") == []
    assert rig.ready() == 0
    rig.branches.commit(X, "amy")
    assert rig.ready() == 0, "the commit is not durable"
    rig.journal.flush()
    assert rig.ready() == 2
    with pytest.raises(XaError) as caught:
        rig.branches.commit(X, "amy")
    assert code_of(caught) == "XAER_NOTA"


def test_a_branch_acknowledges_only_with_its_commit() -> None:
    rig = BranchRig()
    rig.send("/queue/a", b"first")
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/a")
    rig.turn()
    rig.prepared(X, b"answer", consumer=consumer)
    statistics = rig.core.queue_statistics(consumer.queue.id)
    assert (statistics.prepared, statistics.delivering) == (2, 0)
    rig.branches.rollback(X, "amy")
    rig.turn()
    output.frames()
    rig.turn()
    assert rig.core.queue_statistics(consumer.queue.id).delivering == 1
    assert rig.core.queue_statistics(consumer.queue.id).tail == 3


def test_another_user_knows_nothing_of_it() -> None:
    rig = BranchRig()
    rig.prepared(X, b"one")
    for act in (rig.branches.commit, rig.branches.rollback, rig.branches.prepare):
        with pytest.raises(XaError) as caught:
            act(X, "bob")
        assert code_of(caught) == "XAER_NOTA"
    with pytest.raises(XaError) as caught:
        rig.branches.start(X, "bob", rig, 0.0)
    assert code_of(caught) == "XAER_DUPID"


def test_a_branch_without_work_is_read_only() -> None:
    rig = BranchRig()
    rig.idle(X)
    assert rig.branches.prepare(X, "amy") is XaCode.RDONLY
    assert rig.branches.get(X) is None
    assert not rig.core.has_unwritten()


def test_one_phase_needs_no_prepare() -> None:
    rig = BranchRig()
    rig.idle(X, b"one")
    rig.branches.commit_one_phase(X, "amy")
    rig.journal.flush()
    assert rig.ready() == 1
    assert rig.core.branches() == []


def test_work_can_be_joined_and_resumed() -> None:
    rig = BranchRig()
    rig.idle(X, b"one")
    rig.branches.start(X, "amy", "another connection", 1.0, XaCall.JOIN)
    rig.branches.end(X, "amy", Transaction([send(b"two")]), XaCall.SUSPEND)
    rig.branches.start(X, "amy", "another connection", 1.0, XaCall.RESUME)
    rig.branches.end(X, "amy", Transaction([send(b"three")]))
    rig.branches.prepare(X, "amy")
    rig.journal.flush()
    rig.branches.commit(X, "amy")
    rig.journal.flush()
    assert rig.ready() == 3


def test_a_failed_branch_can_only_be_rolled_back() -> None:
    rig = BranchRig()
    rig.branches.start(X, "amy", rig, 0.0)
    rig.branches.end(X, "amy", Transaction([send(b"one")]), XaCall.FAIL)
    with pytest.raises(XaError) as caught:
        rig.branches.prepare(X, "amy")
    assert code_of(caught) == "XA_RBROLLBACK"
    assert rig.branches.get(X) is None


def test_a_message_that_is_held_no_more_rolls_the_branch_back() -> None:
    rig = BranchRig()
    rig.send("/queue/a", b"first")
    consumer = rig.subscribe(rig.output(), "/queue/a")
    rig.turn()
    rig.idle(X, b"two", consumer=consumer)
    rig.core.acknowledge(consumer.handle, 1)
    with pytest.raises(XaError, match="not held") as caught:
        rig.branches.prepare(X, "amy")
    assert code_of(caught) == "XA_RBROLLBACK"
    assert rig.core.branches() == []


def test_the_work_of_a_connection_that_is_gone_is_void() -> None:
    rig = BranchRig()
    rig.branches.start(X, "amy", rig, 0.0)
    rig.prepared(Y, b"one")
    rig.branches.closed(rig)
    assert rig.branches.get(X) is None
    assert rig.branches.get(Y).state is XaState.PREPARED


def test_without_room_nothing_changes() -> None:
    rig = BranchRig(journal=MemoryJournal(files=1, file_bytes=64 * 1024))
    rig.idle(X, b"one")
    rig.core.hold_adds(held=True)
    with pytest.raises(NoRoom):
        rig.branches.prepare(X, "amy")
    assert rig.branches.get(X).state is XaState.IDLE
    rig.core.hold_adds(held=False)
    assert rig.branches.prepare(X, "amy") is XaCode.OK


def test_a_queue_that_a_branch_needs_is_not_deleted() -> None:
    rig = BranchRig()
    rig.prepared(X, b"one")
    with pytest.raises(RemoteProtocolError, match="prepared transactions"):
        rig.registry.check_deletable(rig.registry.queues["a"])
    rig.branches.rollback(X, "amy")
    rig.journal.flush()
    rig.registry.check_deletable(rig.registry.queues["a"])


def test_work_is_bounded_over_all_branches() -> None:
    rig = BranchRig()
    rig.branches = rig.fresh(size_bytes_max=1000)
    work = Transactions(10_000)
    work.begin("t")
    work.add("t", send(bytes(600)))
    rig.branches.start(X, "amy", rig, 0.0)
    rig.branches.end(X, "amy", work.take("t"))
    work.begin("t")
    work.add("t", send(bytes(600)))
    rig.branches.start(Y, "amy", rig, 0.0)
    with pytest.raises(LimitExceeded):
        rig.branches.end(Y, "amy", work.take("t"))
    assert rig.branches.get(Y) is None


def test_a_branch_that_is_joined_again_and_again_is_bounded_as_one_transaction_is() -> None:
    """Beyond that it would fit into no journal, and its PREPARE would never have room."""
    limit = 100_000  # of the rig
    rig = BranchRig()
    branches = rig.engine.branches
    work = Transactions(limit)

    def join(call: XaCall) -> None:
        work.begin("t")
        work.add("t", send(bytes(30_000)))
        branches.start(X, "amy", rig, 0.0, call)
        branches.end(X, "amy", work.take("t"))

    for call in (XaCall.START, XaCall.JOIN, XaCall.JOIN):
        join(call)
    with pytest.raises(LimitExceeded, match="the branch holds too much"):
        join(XaCall.JOIN)
    assert branches.get(X) is None


# --- time ---------------------------------------------------------------------------------------


def test_only_what_is_not_prepared_times_out() -> None:
    rig = BranchRig()
    rig.prepared(Y, b"one")
    rig.idle(X, b"two")
    rig.branches.tick(300.0)
    assert rig.branches.get(X).state is XaState.IDLE
    rig.branches.tick(300.1)
    assert rig.branches.statistics().timed_out == 1
    with pytest.raises(XaError) as caught:
        rig.branches.prepare(X, "amy")
    assert code_of(caught) == "XA_RBTIMEOUT"
    rig.branches.tick(1e9)
    assert rig.branches.get(Y).state is XaState.PREPARED
    assert rig.branches.statistics().prepared == 1


def test_a_branch_that_timed_out_is_forgotten_in_the_end() -> None:
    rig = BranchRig()
    rig.idle(X, b"one")
    rig.branches.tick(301.0)
    rig.branches.tick(599.0)
    assert rig.branches.get(X) is not None
    rig.branches.tick(601.0)
    assert rig.branches.get(X) is None


def test_a_local_transaction_times_out_and_says_so() -> None:
    transactions = Transactions(1000)
    transactions.begin("t", 10.0)
    transactions.add("t", send(b"x"))
    transactions.begin("later", 11.0)
    assert transactions.expire(10.0) == []
    assert transactions.expire(10.5) == ["t"]
    with pytest.raises(XaError, match="transaction-timeout"):
        transactions.take("t")
    with pytest.raises(XaError, match="transaction-timeout"):
        transactions.add("t", send(b"y"))
    transactions.abort("t")
    with pytest.raises(RemoteProtocolError, match="no transaction"):
        transactions.abort("t")
    transactions.begin("t", 12.0)
    assert transactions.take("t").is_empty
    assert transactions.take("later").is_empty


def test_the_oldest_prepared_branch_has_its_age() -> None:
    rig = BranchRig()
    rig.prepared(X, b"one")
    rig.now_ms += 2500
    rig.prepared(Y, b"two")
    assert rig.branches.statistics().oldest_prepared_s == 2.5
    assert rig.branches.age_s(rig.branches.get(Y)) == 0.0


# --- administrators -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_commit", "code", "ready"), [(True, "XA_HEURCOM", 1), (False, "XA_HEURRB", 0)]
)
def test_a_decision_is_remembered_until_it_is_forgotten(
    is_commit: bool, code: str, ready: int
) -> None:
    rig = BranchRig()
    rig.prepared(X, b"one")
    do(rig.branches.decide(X, is_commit=is_commit))
    rig.journal.flush()
    assert rig.ready() == ready
    rig.branches = rig.fresh()  # a restart
    for act in (rig.branches.commit, rig.branches.rollback):
        with pytest.raises(XaError) as caught:
            act(X, "amy")
        assert code_of(caught) == code
    assert rig.branches.recover("amy") == [X]
    assert rig.branches.statistics().heuristic == 1
    do(rig.branches.forget(X))
    assert rig.fresh().all() == []


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_decision_that_a_crash_cut_off_is_carried_out_at_the_next_start(is_copied: bool) -> None:
    """Also when compaction had copied the branch, which then comes back under another number."""
    rig = BranchRig()
    rig.prepared(X, b"one")
    number = rig.branches.get(X).number + is_copied
    value = {
        "state": "heuristic-commit",
        "transaction": str(number),
        "user": "amy",
        "prepared-ms": NOW_MS,
        "decided-ms": NOW_MS,
    }
    rig.bindings.values[f"heuristic/{X}"] = value
    again = rig.fresh()
    assert again.get(X).state is XaState.HEURISTIC_COMMIT
    with pytest.raises(XaError, match="not carried out"):
        do(again.forget(X))
    assert again.tick(0.0)
    rig.journal.flush()
    assert rig.ready() == 1
    do(again.forget(X))


def test_while_an_administrator_decides_nobody_else_does() -> None:
    async def decide() -> None:
        rig = BranchRig()
        rig.prepared(X, b"one")
        rig.bindings.gate = asyncio.Event()
        deciding = asyncio.create_task(rig.branches.decide(X, is_commit=True))
        await asyncio.sleep(0)
        with pytest.raises(XaError, match="deciding"):
            rig.branches.rollback(X, "amy")
        assert rig.ready() == 0
        rig.bindings.gate.set()
        assert await deciding is XaState.HEURISTIC_COMMIT

    product_loop.run(decide())


def test_only_prepared_branches_can_be_decided() -> None:
    rig = BranchRig()
    rig.idle(X, b"one")
    for xid, code in ((X, "XAER_PROTO"), (Y, "XAER_NOTA")):
        with pytest.raises(XaError) as caught:
            do(rig.branches.decide(xid, is_commit=True))
        assert code_of(caught) == code
    assert rig.bindings.values == {k: v for k, v in rig.bindings.values.items() if "heur" not in k}


def test_a_binding_that_is_not_understood_is_named() -> None:
    rig = BranchRig()
    rig.bindings.values[f"heuristic/{X}"] = {"state": "active"}
    with pytest.raises(ValueError, match=f"heuristic/{X}"):
        rig.fresh()


# --- a model ------------------------------------------------------------------------------------

XIDS = [Xid(1, bytes([n]), b"") for n in (1, 2, 3)]
ACTS = ["start", "end", "prepare", "commit", "one", "rollback", "decide", "forget", "flush"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(XIDS)), max_size=30))
def test_branches_against_a_dictionary(acts: list[tuple[str, Xid]]) -> None:
    """What is in the queue is what the branches sent that were committed, each once."""
    rig = BranchRig()
    do(prepare(rig.registry, Transaction([send(b"")])))
    states: dict[Xid, str] = {}
    bodies: dict[Xid, bytes] = {}
    committed: list[bytes] = []
    numbers = itertools.count(1)
    for act, xid in acts:
        before = states.get(xid, "none")
        expected = {
            ("start", "none"): "active",
            ("end", "active"): "idle",
            ("prepare", "idle"): "prepared",
            ("commit", "prepared"): "none",
            ("one", "idle"): "none",
            ("rollback", "idle"): "none",
            ("rollback", "prepared"): "none",
            ("decide", "prepared"): "decided",
            ("forget", "decided"): "none",
        }.get((act, before))
        try:
            perform(rig, act, xid, bodies, numbers)
        except XaError:
            assert expected is None, (act, before)
            continue
        if act == "flush":
            continue
        assert expected is not None, (act, before)
        states[xid] = expected
        if (act, before) in (("commit", "prepared"), ("one", "idle"), ("decide", "prepared")):
            committed.append(bodies[xid])
    rig.journal.flush()
    output = rig.output()
    rig.subscribe(output, "/queue/a")
    rig.turn()
    assert sorted(output.bodies()) == sorted(committed)
    prepared = sum(state == "prepared" for state in states.values())
    assert len(rig.core.branches()) == prepared
    assert rig.branches.statistics().prepared == prepared


def perform(rig: BranchRig, act: str, xid: Xid, bodies: dict[Xid, bytes], numbers: Any) -> None:
    branches = rig.branches
    if act == "flush":
        rig.journal.flush()
    elif act == "start":
        branches.start(xid, "amy", rig, 0.0)
        bodies[xid] = b"%d" % next(numbers)
    elif act == "end":
        branches.end(xid, "amy", Transaction([send(bodies.get(xid, b""))]))
    elif act == "prepare":
        branches.prepare(xid, "amy")
        rig.journal.flush()
    elif act == "commit":
        branches.commit(xid, "amy")
    elif act == "one":
        branches.commit_one_phase(xid, "amy")
    elif act == "rollback":
        branches.rollback(xid, "amy")
    elif act == "decide":
        do(branches.decide(xid, is_commit=True))
        rig.journal.flush()
    else:
        do(branches.forget(xid))
