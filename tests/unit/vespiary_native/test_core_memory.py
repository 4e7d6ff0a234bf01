"""What queues take of memory, by the allocator: many with little in them, one of long life."""

from __future__ import annotations

import ctypes

import pytest

from vespiary_testkit.core_rig import DESTINATION, IMPLEMENTATIONS, CoreRig

QUEUES = 2000
MESSAGES = 200_000
BATCH = 2000


class _Allocated(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated_bytes() -> int:
    """Return what this process has from malloc and has not given back."""
    look = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if look is None:
        pytest.skip("this C library does not count what is allocated (glibc 2.33 does)")
    look.restype = _Allocated
    found = look()
    return int(found.uordblks + found.hblkhd)


@pytest.fixture
def native_rig() -> CoreRig:
    """The core in C: what objects of Python take is not counted in bytes of a queue."""
    if "native" not in IMPLEMENTATIONS:
        pytest.skip("the native part is not built")
    core, verify = IMPLEMENTATIONS["native"]
    return CoreRig(core, verify).begin()


def test_a_queue_with_a_message_takes_little(native_rig: CoreRig) -> None:
    core = native_rig.core
    for queue_id in range(10, 10 + QUEUES):
        core.open_queue(queue_id)
    before = allocated_bytes()
    for queue_id in range(10, 10 + QUEUES):
        route = core.open_route([queue_id])
        core.publish(route, DESTINATION, b"body", persistent=True)
        core.close_route(route)
    each = (allocated_bytes() - before) / QUEUES
    assert each < 2500, f"a message took {each:.0f} bytes of its queue"


def test_a_queue_that_lives_long_does_not_grow(native_rig: CoreRig) -> None:
    core = native_rig.core

    def go(count: int) -> None:
        for _ in range(count // BATCH):
            for _ in range(BATCH):
                native_rig.publish(persistent=False)
            native_rig.flush()
            core.purge_queue(1)

    go(BATCH)
    before = allocated_bytes()
    go(MESSAGES)
    assert core.queue_statistics(1).acknowledged == MESSAGES + BATCH
    grown = allocated_bytes() - before
    assert grown < MESSAGES / 64 * 8 / 2, f"{grown} bytes stayed behind {MESSAGES} messages"
