"""Leader election with a clock by hand: never two lead at a time, and in the end one does."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vespiary_operator import kinds, rbac
from vespiary_operator.api_errors import ApiRefusedError
from vespiary_operator.kinds import Kind
from vespiary_operator.leadership import LEASE_S, RENEW_S, RETRY_S, Election
from vespiary_spec.errors import TemporaryReconcileError
from vespiary_testkit.virtual_time import run_virtual


class World:
    """An API server with one Lease, and a clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away: set[str] = set()
        self.loses_answers: set[str] = set()
        self.stopped_s: dict[str, float] = {}
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def candidate(self, name: str) -> Election:
        return Election(
            Door(self, name),
            name="vespiary",
            namespace="system",
            identity=name,
            clock=lambda: self.now,
            moment=lambda: f"{self.now:.0f}",
            sleep=self.sleep,
        )

    async def sleep(self, seconds: float) -> None:
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, waits))
        await waits

    async def pass_time(self, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        """Let time go on in steps, and everybody act whose pause ends."""
        end = self.now + seconds
        while self.now < end:
            await self.settle()
            self.now = min(end, self.now + 0.25)
            for due, waits in list(self._sleepers):
                if due <= self.now:
                    self._sleepers.remove((due, waits))
                    if not waits.done():
                        waits.set_result(None)
            await self.settle()
            check()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""


class Door:
    """The API server as one candidate reaches it."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def _pass(self) -> None:
        if self._name in self._world.away:
            raise TemporaryReconcileError("the API server did not answer", where="lease")

    async def _answer(self) -> dict[str, Any]:
        answer = copy.deepcopy(self._world.lease or {})
        if self._name in self._world.loses_answers:
            raise TemporaryReconcileError("the answer was lost", where="lease")
        if self._name in self._world.stopped_s:
            await self._world.sleep(self._world.stopped_s.pop(self._name))
        return answer

    async def get(
        self, kind: Kind, name: str, namespace: str = "", *, timeout_s: float = 0
    ) -> dict[str, Any] | None:
        assert (kind, name, namespace) == (kinds.LEASE, "vespiary", "system")
        assert rbac.is_allowed("get", kind)
        self._pass()
        return copy.deepcopy(self._world.lease)

    async def create(self, manifest: dict[str, Any], *, timeout_s: float = 0) -> dict[str, Any]:
        assert rbac.is_allowed("create", kinds.of(manifest))
        self._pass()
        if self._world.lease is not None:
            raise ApiRefusedError("it is there", where="lease", status=409)
        return await self._write(manifest)

    async def replace(self, manifest: dict[str, Any], *, timeout_s: float = 0) -> dict[str, Any]:
        self._pass()
        assert self._world.lease is not None
        read = manifest["metadata"]["resourceVersion"]
        if read != self._world.lease["metadata"]["resourceVersion"]:
            raise ApiRefusedError("it was changed", where="lease", status=409)
        return await self._write(manifest)

    async def _write(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self._world.version += 1
        self._world.lease = copy.deepcopy(manifest)
        self._world.lease["metadata"]["resourceVersion"] = str(self._world.version)
        return await self._answer()


def run(test: Callable[[World], Awaitable[None]]) -> None:
    asyncio.run(test(World()))  # type: ignore[arg-type]


async def life(election: Election) -> None:
    await election.acquire()
    await election.hold()


def test_one_leads_and_the_other_follows_when_it_is_gone() -> None:
    async def test(world: World) -> None:
        first, second = world.candidate("first"), world.candidate("second")
        one, two = asyncio.create_task(life(first)), asyncio.create_task(life(second))
        await world.pass_time(60)
        assert [first.is_leader, second.is_leader] == [True, False]
        lease = world.lease
        assert lease is not None
        assert lease["spec"]["leaseDurationSeconds"] == LEASE_S
        assert lease["spec"]["leaseTransitions"] == 0
        assert float(lease["spec"]["renewTime"]) > float(lease["spec"]["acquireTime"]) + 50

        one.cancel()  # kill -9
        killed_at = world.now
        while not second.is_leader:
            await world.pass_time(0.25)
            assert world.now - killed_at <= LEASE_S + 2 * RETRY_S
        assert world.now - killed_at >= LEASE_S - RETRY_S
        assert world.holder == "second"
        assert world.lease is not None
        assert world.lease["spec"]["leaseTransitions"] == 1
        two.cancel()

    run(test)


@pytest.mark.parametrize("fault", ["away", "loses_answers"])
def test_a_holder_that_cannot_renew_stops_before_another_may_begin(fault: str) -> None:
    async def test(world: World) -> None:
        first, second = world.candidate("first"), world.candidate("second")
        one = asyncio.create_task(life(first))
        await world.pass_time(20)
        two = asyncio.create_task(life(second))
        await world.pass_time(5)
        getattr(world, fault).add("first")
        lost_at = world.now

        def never_both() -> None:
            assert not (first.is_leader and second.is_leader)

        await world.pass_time(RENEW_S + RETRY_S, never_both)
        assert not first.is_leader
        assert one.done(), "the process ends"
        await world.pass_time(3 * LEASE_S, never_both)
        assert second.is_leader
        assert lost_at < world.now
        two.cancel()

    run(test)


def test_a_short_outage_changes_nothing() -> None:
    async def test(world: World) -> None:
        first, second = world.candidate("first"), world.candidate("second")
        one, two = asyncio.create_task(life(first)), asyncio.create_task(life(second))
        await world.pass_time(20)
        world.away |= {"first", "second"}
        await world.pass_time(RENEW_S - 2 * RETRY_S)
        world.away.clear()
        await world.pass_time(30)
        assert first.is_leader
        assert not one.done()
        assert not second.is_leader
        one.cancel()
        two.cancel()

    run(test)


def test_a_holder_that_stood_still_does_not_write_when_it_wakes() -> None:
    async def test(world: World) -> None:
        first = world.candidate("first")
        one = asyncio.create_task(life(first))
        await world.pass_time(10)
        assert first.is_leader
        world.now += 60  # the machine slept, or the process was stopped
        assert not first.is_leader, "before its loop had a chance to notice"
        await world.pass_time(2 * RETRY_S)
        assert one.done()
        assert world.holder == "first", "it did not renew what may be another's by now"

    run(test)


@pytest.mark.parametrize("led_s", [0, 20], ids=["taking", "renewing"])
def test_a_renewal_counts_from_its_request_not_from_its_answer(led_s: float) -> None:
    """A process is stopped between its request and the answer, and wakes when another leads."""

    async def test(world: World) -> None:
        first, second = world.candidate("first"), world.candidate("second")
        if led_s == 0:
            world.stopped_s["first"] = 2 * LEASE_S
        one = asyncio.create_task(life(first))
        await world.pass_time(led_s + 1)
        two = asyncio.create_task(life(second))
        await world.pass_time(1)
        if led_s:
            assert first.is_leader
            world.stopped_s["first"] = 2 * LEASE_S

        def never_both() -> None:
            assert not (first.is_leader and second.is_leader)

        await world.pass_time(2 * LEASE_S + 2 * RETRY_S, never_both)
        assert not world.stopped_s, "the answer came"
        assert second.is_leader
        await world.pass_time(RETRY_S, never_both)
        assert one.done(), "the process that was stopped ends"
        two.cancel()

    run(test)


def test_what_is_given_back_is_taken_at_once() -> None:
    async def test(world: World) -> None:
        first, second = world.candidate("first"), world.candidate("second")
        one, two = asyncio.create_task(life(first)), asyncio.create_task(life(second))
        await world.pass_time(10)
        one.cancel()
        await first.release()
        assert world.holder == ""
        assert not first.is_leader
        await world.pass_time(1.5 * RETRY_S)
        assert second.is_leader
        await first.release()
        assert world.holder == "second", "nobody gives back what another holds"
        two.cancel()

    run(test)


def test_of_two_that_come_at_once_one_leads() -> None:
    async def test(world: World) -> None:
        elections = [world.candidate(name) for name in "abc"]
        tasks = [asyncio.create_task(life(election)) for election in elections]

        def one_at_most() -> None:
            assert sum(election.is_leader for election in elections) <= 1

        await world.pass_time(10, one_at_most)
        assert sum(election.is_leader for election in elections) == 1
        for task in tasks:
            task.cancel()

    run(test)


def test_clocks_of_other_machines_do_not_matter() -> None:
    async def test(world: World) -> None:
        world.candidate("other")
        world.lease = {
            "metadata": {"name": "vespiary", "resourceVersion": "1"},
            "spec": {
                "holderIdentity": "other",
                "leaseDurationSeconds": LEASE_S,
                "renewTime": "2001-01-01T00:00:00.000000Z",
            },
        }
        second = world.candidate("second")
        two = asyncio.create_task(life(second))
        await world.pass_time(LEASE_S - 1)
        assert not second.is_leader, "a time in the Lease that looks old says nothing"
        await world.pass_time(2 * RETRY_S)
        assert second.is_leader
        two.cancel()

    run(test)


@pytest.mark.parametrize("is_silent", [True, False])
def test_who_gets_no_answer_does_not_lead(is_silent: bool) -> None:
    """The request ends, at the latest when its time is up; the candidate asks again."""

    async def test() -> None:
        is_answering = asyncio.Event()

        class ClosedDoor(Door):
            async def get(self, *what: Any, **limits: Any) -> dict[str, Any] | None:
                if not is_silent and not is_answering.is_set():
                    raise TemporaryReconcileError("there is no server", where="lease")
                await is_answering.wait()
                return await super().get(*what, **limits)

        election = Election(
            ClosedDoor(World(), "first"),
            name="vespiary",
            namespace="system",
            identity="first",
            clock=asyncio.get_running_loop().time,
            moment=lambda: "now",
            sleep=asyncio.sleep,
        )
        acquiring = asyncio.create_task(election.acquire())
        await asyncio.sleep(RENEW_S + RETRY_S / 2)
        assert not acquiring.done()
        is_answering.set()
        await acquiring
        assert election.is_leader

    run_virtual(test())
