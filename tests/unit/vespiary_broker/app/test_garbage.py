"""What the garbage collector looks at, and when it looks at everything."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from vespiary_broker.app.garbage import GROWTH_BLOCKS, THRESHOLDS, Garbage


class Memory:
    """Says how large it is."""

    def __init__(self) -> None:
        self.blocks = 1000

    def __call__(self) -> int:
        return self.blocks


class Knot:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def soon() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def garbage(memory: Memory, soon: list[Callable[[], None]]) -> Iterator[Garbage]:
    thresholds = gc.get_threshold()
    made = Garbage(soon.append, memory)
    made.start()
    try:
        yield made
    finally:
        made.stop()
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@pytest.mark.usefixtures("garbage")
def test_no_collection_looks_at_many_objects() -> None:
    """Whatever number of objects live: each generation stays as small as its threshold has it."""
    most = 0

    def look(phase: str, info: dict[str, int]) -> None:
        nonlocal most
        if phase == "start":
            seen = sum(
                len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)
            )
            most = max(most, seen)

    frozen = gc.get_freeze_count()
    gc.callbacks.append(look)
    try:
        kept: list[object] = [[] for _ in range(40 * THRESHOLDS[0])]
    finally:
        gc.callbacks.remove(look)

    old = len(gc.get_objects(2))
    assert 0 < most < 4 * THRESHOLDS[0]
    assert old < THRESHOLDS[0]
    assert gc.get_freeze_count() - frozen > len(kept) - 4 * THRESHOLDS[0]


@pytest.mark.usefixtures("garbage")
def test_cycles_that_end_young_are_freed() -> None:
    knot = Knot()
    gone = weakref.ref(knot)

    del knot
    kept = [[] for _ in range(4 * THRESHOLDS[0])]  # type: ignore[var-annotated]

    assert kept
    assert gone() is None


@pytest.mark.usefixtures("garbage")
def test_all_is_collected_when_memory_has_grown(
    memory: Memory, soon: list[Callable[[], None]]
) -> None:
    """A cycle that ends when it is old is found by a full collection, and by nothing before."""
    knot = Knot()
    gone = weakref.ref(knot)
    gc.collect(1)  # it is old now
    del knot
    memory.blocks += GROWTH_BLOCKS - 1
    gc.collect(1)
    assert soon == []
    assert gone() is not None

    memory.blocks += 1
    gc.collect(1)
    gc.collect(1)
    [collect_all] = soon
    soon.clear()
    collect_all()

    assert gone() is None
    gc.collect(1)
    assert soon == []  # until it has grown by as much again


def test_a_broker_that_ended_collects_no_more(
    garbage: Garbage, memory: Memory, soon: list[Callable[[], None]]
) -> None:
    memory.blocks += GROWTH_BLOCKS
    gc.collect(1)
    garbage.stop()
    before = gc.get_freeze_count()

    soon.pop()()
    gc.collect(1)

    assert gc.get_freeze_count() <= before
    assert soon == []
