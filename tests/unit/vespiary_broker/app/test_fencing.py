"""Fences: one try of a batch counts, whatever crashes in between, and nothing counts twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vespiary_broker.app.fencing import Fencing
from vespiary_broker.engine.branches import Branches
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.fences import (
    FENCE_PREFIX,
    FORMAT_ID,
    UNDECIDED_S_MAX,
    Fences,
    StagedTask,
    branch_xid,
    fence_and_batch,
)
from vespiary_broker.engine.xa_states import XaState
from vespiary_codec.journal.branch import PART_BYTES_MAX, Xid
from vespiary_spec.errors import JournalError, RemoteProtocolError, XaError
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import Peer, ServerRig

DAY_MS = 86_400_000
Scenario = Callable[["FenceRig"], Coroutine[Any, Any, None]]


class FenceRig(ServerRig):
    """A server with fences, and a client that stages."""

    peer_: Peer

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_700_000_000_000
        self.engine.branches._clock_ms = lambda: self.now_ms
        self.fencing = Fencing(self.engine, self.cycle)

    async def begin(self) -> None:
        self.peer_ = self.peer()
        await self.peer_.login()

    async def stage(self, batch: int, task: str, *bodies: str, fence: str = "f") -> None:
        """Prepare branches of a task: one for each body."""
        for number, body in enumerate(bodies):
            xid = str(branch_xid(fence, batch, task, number)).replace(":", "\\c")
            head = f"\ntransaction:t\nxid:{xid}"
            self.peer_.send(
                f"BEGIN{head}\n\n\0".encode()
                + f"SEND\ndestination:/queue/a\npersistent:true\ntransaction:t\n\n{body}\0".encode()
                + f"COMMIT{head}\nphase:prepare\nreceipt:r\n\n\0".encode()
            )
            await self.flush()
            (receipt,) = self.peer_.frames()
            assert receipt.get("xa") == "XA_OK", receipt

    async def decide(self, batch: int, *tasks: tuple[str, int], **options: Any) -> Any:
        return await self.done(
            self.fencing.decide("f", batch, tasks, is_last=options.get("is_last", False))
        )

    async def done(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have a call done, with the writes that it waits for."""
        task = asyncio.get_running_loop().create_task(work)
        while not task.done():
            await self.flush()
        return task.result()

    def restarted(self) -> Fences:
        """Return the fences as a start finds them: what is in memory alone is gone."""
        old = self.engine.branches
        branches = Branches(
            self.core, self.engine.registry, self.bindings, self.duplicates,
            clock_ms=lambda: self.now_ms, timeout_s=old.timeout_s,
        )  # fmt: skip
        branches.restore()
        fences = Fences(branches, self.bindings, lambda: self.now_ms)
        fences.restore()
        return fences

    async def bodies(self) -> list[str]:
        """Return what a consumer is given."""
        reader = self.peer()
        await reader.login()
        reader.send(b"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:client\n\n\0")
        await self.flush()
        found = [frame.body.decode() for frame in reader.frames()]
        reader.lose()
        await self.flush()
        return found


def on_loop(scenario: Scenario) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            rig = FenceRig()
            await rig.begin()
            await scenario(rig)
            await rig.close()

        product_loop.run(run())

    test.__doc__ = scenario.__doc__
    return test


# --- deciding -------------------------------------------------------------------------------------


@on_loop
async def test_nothing_is_seen_before_the_decision_and_all_of_it_afterwards(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one", "two")
    await rig.stage(0, "b", "three")
    assert await rig.bodies() == []
    state = await rig.decide(0, ("a", 2), ("b", 1))
    assert (state.batch, state.accepted, state.pending, state.undecided) == (0, True, 0, 0)
    assert sorted(await rig.bodies()) == ["one", "three", "two"]


@on_loop
async def test_a_batch_is_decided_once(rig: FenceRig) -> None:
    await rig.stage(4, "a", "first")
    await rig.decide(4, ("a", 1))
    for batch in (4, 3):
        await rig.stage(batch, f"again{batch}", "second")
        state = await rig.decide(batch, (f"again{batch}", 1))
        assert (state.batch, state.accepted, state.undecided) == (4, False, 0)
    assert await rig.bodies() == ["first"]
    assert rig.core.branches() == []


@on_loop
async def test_tries_that_are_not_named_are_rolled_back(rig: FenceRig) -> None:
    await rig.stage(0, "failed", "no", "neither")
    await rig.stage(0, "good", "yes")
    await rig.stage(1, "next", "later")
    await rig.stage(0, "other", "kept", fence="another")
    await rig.decide(0, ("good", 1))
    assert await rig.bodies() == ["yes"]
    left = {str(branch.xid) for branch in rig.engine.branches.all()}
    assert left == {
        str(branch_xid("f", 1, "next", 0)),
        str(branch_xid("another", 0, "other", 0)),
    }


@on_loop
async def test_a_zombie_that_stages_after_the_decision_is_swept(rig: FenceRig) -> None:
    await rig.stage(0, "a", "yes")
    await rig.decide(0, ("a", 1))
    await rig.stage(0, "zombie", "no")
    rig.cycle.expire_transactions(0.0)
    await rig.flush()
    assert rig.core.branches() == []
    assert await rig.bodies() == ["yes"]


@on_loop
async def test_a_batch_that_is_not_whole_is_refused_and_changes_nothing(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    for tasks in ((("a", 2),), (("a", 1), ("b", 1)), (("a", 1), ("a", 1))):
        with pytest.raises(RemoteProtocolError):
            await rig.decide(0, *tasks)
    assert FENCE_PREFIX + "f" not in rig.bindings.values
    assert (await rig.decide(0, ("a", 1))).accepted
    assert await rig.bodies() == ["one"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 44, "ä"])
@pytest.mark.parametrize("is_task", [False, True])
def test_names_that_fit_into_no_xid_are_refused(name: str, is_task: bool) -> None:
    async def run() -> None:
        rig = FenceRig()
        fences = rig.engine.fences
        if is_task:
            name_ = name * 2 if name.startswith("x") else name
            with pytest.raises(RemoteProtocolError):
                fences.check("f", 0, (StagedTask(name_, 0),))
        else:
            with pytest.raises(RemoteProtocolError):
                fences.check(name, 0, ())
        await rig.close()

    product_loop.run(run())


def test_the_longest_names_fit_into_an_xid() -> None:
    xid = branch_xid("n" * 43, 2**63 - 1, "t" * 53, 999_999)
    assert max(len(xid.global_id), len(xid.qualifier)) <= PART_BYTES_MAX
    assert fence_and_batch(xid) == ("n" * 43, 2**63 - 1)


@pytest.mark.parametrize(
    "xid",
    [
        Xid(7, b"f:1", b"a.0"),
        Xid(FORMAT_ID, b"f", b"a.0"),
        Xid(FORMAT_ID, b"f:x", b"a.0"),
        Xid(FORMAT_ID, b":1", b"a.0"),
        Xid(FORMAT_ID, b"f:1\xff", b"a.0"),
    ],
)
def test_branches_of_others_belong_to_no_fence(xid: Xid) -> None:
    assert fence_and_batch(xid) is None


# --- order and crashes ----------------------------------------------------------------------------


@on_loop
async def test_no_decision_is_written_before_its_branches_are_durable(rig: FenceRig) -> None:
    xid = str(branch_xid("f", 0, "a", 0)).replace(":", "\\c")
    head = f"\ntransaction:t\nxid:{xid}"
    rig.peer_.send(
        f"BEGIN{head}\n\n\0SEND\ndestination:/queue/a\npersistent:true\ntransaction:t\n\nx\0"
        f"COMMIT{head}\nphase:prepare\n\n\0".encode()
    )
    await rig.settle()
    work = asyncio.get_running_loop().create_task(
        rig.fencing.decide("f", 0, (("a", 1),), is_last=False)
    )
    await rig.settle()
    assert FENCE_PREFIX + "f" not in rig.bindings.puts
    await rig.done(asyncio.wait_for(work, 10))
    assert rig.bindings.puts[-1] == FENCE_PREFIX + "f"


@on_loop
async def test_nothing_is_committed_before_the_decision_is_written(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    rig.bindings.gate = asyncio.Event()
    work = asyncio.get_running_loop().create_task(
        rig.fencing.decide("f", 0, (("a", 1),), is_last=False)
    )
    await rig.flush()
    assert len(rig.core.branches()) == 1
    rig.cycle.expire_transactions(0.0)
    with pytest.raises(XaError):  # a coordinator cannot end it meanwhile
        rig.engine.branches.rollback(branch_xid("f", 0, "a", 0), "anonymous")
    with pytest.raises(RemoteProtocolError):
        rig.engine.fences.check("f", 0, (StagedTask("a", 1),))
    await rig.flush()
    assert await rig.bodies() == []
    rig.bindings.gate.set()
    await rig.done(asyncio.wait_for(work, 10))
    assert await rig.bodies() == ["one"]


@on_loop
async def test_a_decision_that_a_crash_interrupts_is_carried_out_by_the_next_start(
    rig: FenceRig,
) -> None:
    await rig.stage(0, "a", "one", "two")
    await rig.stage(0, "failed", "no")
    work = rig.engine.fences.decide("f", 0, (StagedTask("a", 2),))
    assert await rig.done(work)  # decided; the crash comes before anything is committed
    fences = rig.restarted()
    with pytest.raises(XaError):
        await fences._branches.decide(branch_xid("f", 0, "a", 0), is_commit=False)
    rig.now_ms += 2 * DAY_MS
    fences.carry_out()
    rig.journal.flush()
    assert rig.core.branches() == []
    assert sorted(await rig.bodies()) == ["one", "two"]


@on_loop
async def test_a_decision_whose_write_fails_keeps_its_branches(rig: FenceRig) -> None:
    """It may be in the journal: nobody may roll them back until a start has looked."""
    await rig.stage(0, "a", "one")
    rig.bindings.put_failure = JournalError("the disk is gone")
    with pytest.raises(JournalError):
        await rig.decide(0, ("a", 1))
    with pytest.raises(XaError):
        rig.engine.branches.rollback(branch_xid("f", 0, "a", 0), "anonymous")
    rig.now_ms += 2 * DAY_MS
    rig.cycle.expire_transactions(0.0)
    await rig.flush()
    assert len(rig.core.branches()) == 1


@on_loop
async def test_a_decision_is_kept_until_its_commits_are_durable(rig: FenceRig) -> None:
    """The next decision is written over it, and a crash would bring the branches back."""
    await rig.stage(0, "a", "one")
    await rig.stage(1, "b", "two")
    await rig.done(rig.engine.fences.decide("f", 0, (StagedTask("a", 1),)))
    rig.engine.fences.tick()  # the commit is staged, and not written
    rig.bindings.gate = asyncio.Event()
    rig.bindings.gate.set()
    await rig.engine.fences.decide("f", 1, (StagedTask("b", 1),))
    assert set(rig.bindings.values[FENCE_PREFIX + "f"]["pending"]) == {"0", "1"}
    state = await rig.decide(1)
    assert state.pending == 0
    await rig.stage(2, "c", "three")
    await rig.decide(2, ("c", 1))
    assert set(rig.bindings.values[FENCE_PREFIX + "f"]["pending"]) == {"2"}


@on_loop
async def test_the_end_of_a_decision_waits_for_the_flush_of_its_commits(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    work = asyncio.get_running_loop().create_task(
        rig.fencing.decide("f", 0, (("a", 1),), is_last=True)
    )
    await rig.settle()
    assert rig.engine.branches.all() == [], "the commit is staged"
    assert rig.engine.fences.by_name["f"].pending
    assert FENCE_PREFIX + "f" in rig.bindings.values
    assert not work.done()
    await rig.flush()
    assert work.done()
    assert FENCE_PREFIX + "f" not in rig.bindings.values


@on_loop
async def test_what_finds_no_room_is_committed_when_there_is_some(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    resolve, rooms = rig.core.resolve, iter([False, False, True])

    def crowded(*arguments: Any, **named: Any) -> int:
        if not next(rooms, True):
            raise NoRoom
        return resolve(*arguments, **named)

    rig.engine.branches._core = CrowdedCore(rig.core, crowded)  # type: ignore[assignment]
    work = asyncio.get_running_loop().create_task(
        rig.fencing.decide("f", 0, (("a", 1),), is_last=False)
    )
    for _ in range(3):
        await rig.flush()
        rig.cycle.on_space()
    state = await rig.done(asyncio.wait_for(work, 10))
    assert state.pending == 0
    assert await rig.bodies() == ["one"]


class CrowdedCore:
    """A core whose `resolve` is another one."""

    def __init__(self, core: Any, resolve: Callable[..., int]) -> None:
        self._core = core
        self.resolve = resolve

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


# --- ends -----------------------------------------------------------------------------------------


@on_loop
async def test_a_last_batch_leaves_nothing_behind(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    state = await rig.decide(0, ("a", 1), is_last=True)
    assert state.accepted
    assert rig.bindings.values.keys().isdisjoint({FENCE_PREFIX + "f"})
    assert rig.fencing.get("f") is None
    assert await rig.bodies() == ["one"]


@on_loop
async def test_a_last_batch_that_a_crash_interrupts_leaves_nothing_behind(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    work = rig.engine.fences.decide("f", 0, (StagedTask("a", 1),), is_last=True)
    await rig.done(work)
    await rig.done(rig.fencing.finish())
    assert FENCE_PREFIX + "f" not in rig.bindings.values
    assert await rig.bodies() == ["one"]


@on_loop
async def test_what_nobody_decides_goes_after_a_day(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    rig.now_ms += round(UNDECIDED_S_MAX * 1000)
    rig.cycle.expire_transactions(0.0)
    assert rig.fencing.get("f") is not None
    assert rig.fencing.names() == ["f"]
    rig.now_ms += 1
    rig.cycle.expire_transactions(0.0)
    await rig.flush()
    assert rig.core.branches() == []
    assert rig.engine.fences.timed_out == 1
    assert rig.fencing.names() == []
    with pytest.raises(RemoteProtocolError):
        await rig.decide(0, ("a", 1))


@on_loop
async def test_a_branch_of_somebody_else_never_goes_by_itself(rig: FenceRig) -> None:
    xid = "7\\c0a0b\\c01"
    head = f"\ntransaction:t\nxid:{xid}"
    rig.peer_.send(
        f"BEGIN{head}\n\n\0SEND\ndestination:/queue/a\npersistent:true\ntransaction:t\n\nx\0"
        f"COMMIT{head}\nphase:prepare\n\n\0".encode()
    )
    await rig.flush()
    rig.now_ms += 10 * DAY_MS
    rig.cycle.expire_transactions(0.0)
    await rig.flush()
    (branch,) = rig.engine.branches.all()
    assert branch.state is XaState.PREPARED


@on_loop
async def test_deleting_rolls_back_what_is_staged_alone(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    await rig.decide(0, ("a", 1))
    await rig.stage(1, "b", "two")
    await rig.done(rig.fencing.remove("f"))
    assert rig.core.branches() == []
    assert FENCE_PREFIX + "f" not in rig.bindings.values
    assert await rig.bodies() == ["one"]
    with pytest.raises(RemoteProtocolError):
        await rig.done(rig.fencing.remove("f"))


@on_loop
async def test_a_fence_whose_commits_wait_is_not_deleted(rig: FenceRig) -> None:
    await rig.stage(0, "a", "one")
    await rig.done(rig.engine.fences.decide("f", 0, (StagedTask("a", 1),)))
    with pytest.raises(RemoteProtocolError, match="not committed yet"):
        await rig.done(rig.fencing.remove("f"))
