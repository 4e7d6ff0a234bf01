"""The pager with very many addresses of which nothing can be moved: it is in front of consumers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from vespiary_broker.store.paging.flights import MOVES_MAX, MoveTurns
from vespiary_broker.store.paging.pauses import pause_s
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.paging_rig import PAGE_BYTES, PagingRig, RigAddress
from vespiary_testkit.virtual_time import run_virtual

ADDRESSES = 200


def test_the_more_addresses_wait_the_longer_each() -> None:
    assert {pause_s(f"held.{number}", 30) for number in range(1000)} == {0.1}
    pauses = [pause_s(f"held.{number}", 10_000) for number in range(10_000)]
    assert 10 <= min(pauses) < 11 < 29 < max(pauses) <= 30
    most = max(Counter(int(pause) for pause in pauses).values())
    assert most < 700, "they are spread"


class HeldAddress(RigAddress):
    """An address that has too much, all of it in front of its consumers."""

    def __init__(self, rig: PagingRig, number: int, looks: Counter[str]) -> None:
        super().__init__(rig.core)
        self.name = f"held.{number}"
        self.looks = looks

    def excess_bytes(self) -> int:
        return PAGE_BYTES if self.is_wanted else 0

    def queue_ids(self) -> list[int]:
        self.looks[self.name] += 1
        return []


def test_looks_at_what_cannot_be_moved_are_bounded_in_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = await PagingRig.open(tmp_path, MemoryDisk())
        looks: Counter[str] = Counter()
        held = [HeldAddress(rig, number, looks) for number in range(ADDRESSES)]
        for address in held:
            rig.pager.page(address)
        await asyncio.sleep(4)
        assert min(looks.values()) >= 4
        assert looks.total() <= 4 * 600 + ADDRESSES
        for address in held:
            address.is_wanted = False
        await rig.close()

    run_virtual(scenario())


def test_those_that_hold_most_have_their_turn_first_and_each_has_one() -> None:
    turns = MoveTurns()
    held = {"a": 3, "b": 9, "c": 1, "d": 5}
    assert turns.take(held, 2) == ["b", "d"]
    assert turns.take(held, 2) == ["a", "c"], "though those before still hold more"
    assert turns.take(held, 3) == ["b", "d", "a"]
    turns.forget("b")
    assert turns.take(held, 1) == ["b"], "it has begun to hold too much anew"
    assert turns.take(held, 0) == []
    assert turns.take({}, 5) == []


def test_very_many_addresses_are_moved_some_at_a_time_and_each_has_its_turn(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        rig = await PagingRig.open(tmp_path, MemoryDisk())
        looks: Counter[str] = Counter()
        held = [HeldAddress(rig, number, looks) for number in range(3 * MOVES_MAX)]
        for address in held:
            rig.pager.page(address)
        most = 0
        while len(looks) < len(held):
            await asyncio.sleep(0.01)
            most = max(most, len(rig.pager._moves))
        assert MOVES_MAX // 2 <= most <= MOVES_MAX
        for address in held:
            address.is_wanted = False
        await rig.close()

    run_virtual(scenario())
