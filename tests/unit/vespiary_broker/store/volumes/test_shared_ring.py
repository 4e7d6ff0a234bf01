"""Rings that one trial after another uses."""

from __future__ import annotations

from vespiary_broker.store.volumes.probe import Ring
from vespiary_broker.store.volumes.shared_ring import SharedRing


class CountedRing:
    """Completes what it is told to; counts how often it was closed."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.done: list[tuple[int, int]] = []
        self.closed = 0

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        /,
        *,
        durable: bool = True,
    ) -> None:
        self.token = token

    def fileno(self) -> int:
        return 0

    def completions(self) -> list[tuple[int, int]]:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        self.closed += 1


class Opened:
    """The rings that were opened, in order."""

    def __init__(self) -> None:
        self.rings: list[CountedRing] = []

    def __call__(self, depth: int) -> Ring:
        assert all(ring.closed for ring in self.rings), "the kernel may have room for one alone"
        self.rings.append(CountedRing(depth))
        return self.rings[-1]


def write(ring: Ring) -> None:
    ring.submit_write(1, 0, 4096, 0, 7, durable=True)


def test_a_ring_is_used_again_if_it_is_deep_enough():
    opened = Opened()
    shared = SharedRing(opened)
    for depth in (1, 500, 1, 1, 500):
        ring = shared.open(depth)
        write(ring)
        opened.rings[-1].done = [(7, 4096)]
        assert ring.completions() == [(7, 4096)]
        ring.close()
    assert [ring.depth for ring in opened.rings] == [1, 500]
    assert [ring.closed for ring in opened.rings] == [1, 0]
    shared.close()
    shared.close()
    assert [ring.closed for ring in opened.rings] == [1, 1]


def test_a_ring_with_a_write_under_way_is_closed_with_its_trial():
    """Closing waits for the write: its memory goes with the trial."""
    opened = Opened()
    shared = SharedRing(opened)
    ring = shared.open(1)
    write(ring)
    ring.close()
    assert opened.rings[0].closed == 1
    shared.open(1).close()
    assert len(opened.rings) == 2
    shared.close()
    assert [ring.closed for ring in opened.rings] == [1, 1]
