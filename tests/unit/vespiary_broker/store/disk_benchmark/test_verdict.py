"""What is said of a disk, by what it says of itself and how long it takes."""

from __future__ import annotations

import msgspec
import pytest

from vespiary_broker.store.disk_benchmark.results import (
    BLOCK_SIZE,
    FIRST_WRITE,
    GROWING,
    REWRITE,
    DiskFacts,
    Phase,
)
from vespiary_broker.store.disk_benchmark.verdict import judge

FACTS = DiskFacts(
    folder="/data",
    filesystem="ext4",
    mount_options=("rw", "relatime"),
    device="sda1",
    disks=("sda",),
    is_rotational=False,
    write_cache="write back",
    has_fua=False,
    scheduler="none",
    alignment_bytes=512,
    is_direct=True,
    hypervisor="",
    cores=2,
    kernel="6.1",
)


def phase(group: str, kind: str, p50_us: float, **changes) -> Phase:
    values = {
        "group": group,
        "kind": kind,
        "engine": "ASYNCIO",
        "preallocation": "zeros",
        "block_bytes": 4096,
        "operations": 1000,
        "seconds": 1.0,
        "operations_per_s": 1e6 / p50_us,
        "bytes_per_s": 4096e6 / p50_us,
        "p50_us": p50_us,
        "p90_us": p50_us * 1.5,
        "p99_us": p50_us * 3,
        "max_us": p50_us * 9,
    }
    return Phase(**(values | changes))


def phases(flushed_us: float = 120, plain_us: float = 60, growing_us: float = 400, **nio) -> list:
    return [
        phase(FIRST_WRITE, "synced-write", flushed_us),
        phase(FIRST_WRITE, "synced-write", growing_us, preallocation="sparse-file"),
        phase(FIRST_WRITE, "synced-write", growing_us, preallocation=GROWING),
        phase(FIRST_WRITE, "synced-write", nio.get("nio_us", flushed_us * 1.1), engine="NIO"),
        phase(FIRST_WRITE, "synced-write", growing_us, engine="NIO", preallocation=GROWING),
        phase(REWRITE, "write", plain_us),
        phase(REWRITE, "read", 50),
        phase(BLOCK_SIZE, "synced-write", 300, block_bytes=1 << 20, bytes_per_s=3e9),
    ]


def facts(**changes) -> DiskFacts:
    return msgspec.structs.replace(FACTS, **changes)


def said(judgement) -> str:
    return "\n".join(judgement.sentences)


def test_an_honest_disk_is_good():
    found = judge(FACTS, phases(), {})
    assert found.is_good
    assert "is on ext4" in found.sentences[0]
    assert "volatile write cache (write back, without FUA)" in said(found)
    assert found.settings == {
        "journal-type": "ASYNCIO",
        "journal-preallocation-strategy": "zeros",
    }


@pytest.mark.parametrize(
    ("changes", "flushed_us", "plain_us", "words"),
    [
        ({}, 12.0, 8.0, "no disk behind a volatile cache is that fast"),
        ({"write_cache": None}, 12.0, 8.0, "no disk behind a volatile cache is that fast"),
        ({"is_rotational": True}, 200.0, 50.0, "a spinning disk needs several milliseconds"),
        ({}, 61.0, 60.0, "flushes seem to be skipped"),
        ({"filesystem": "tmpfs"}, 60.0, 50.0, "This is memory"),
        ({"filesystem": "nfs4"}, 600.0, 50.0, "nfs4"),
        ({"mount_options": ("rw", "nobarrier")}, 600.0, 50.0, "nobarrier"),
        ({"mount_options": ("rw", "barrier=0")}, 600.0, 50.0, "barrier=0"),
    ],
)
def test_disks_that_are_not_fit(changes, flushed_us: float, plain_us: float, words: str):
    found = judge(facts(**changes), phases(flushed_us, plain_us), {})
    assert not found.is_good
    assert words in said(found)


@pytest.mark.parametrize(
    ("changes", "flushed_us", "plain_us", "words"),
    [
        ({"write_cache": "write through"}, 12.0, 11.9, "a write is durable at once"),
        ({"is_rotational": True}, 8000.0, 50.0, "only a flush makes a write durable"),
        # A hypervisor calls its disks rotational without a thought.
        ({"is_rotational": True, "hypervisor": "QEMU"}, 120.0, 60.0, "virtual machine (QEMU)"),
        ({"hypervisor": "yes"}, 120.0, 60.0, "This is a virtual machine:"),
        ({"write_cache": None}, 120.0, 60.0, "Nothing tells whether"),
        ({"has_fua": True}, 120.0, 60.0, "with FUA"),
    ],
)
def test_disks_that_are_fit(changes, flushed_us: float, plain_us: float, words: str):
    found = judge(facts(**changes), phases(flushed_us, plain_us), {})
    assert found.is_good
    assert words in said(found)


def test_another_engine_has_to_be_clearly_better():
    assert judge(FACTS, phases(nio_us=110), {}).settings["journal-type"] == "ASYNCIO"
    faster = judge(FACTS, phases(nio_us=60), {})
    assert faster.settings["journal-type"] == "NIO"
    assert "measure again with quiet processors before you leave ASYNCIO" in said(faster)
    few = [msgspec.structs.replace(p, operations=50) for p in phases(nio_us=60)]
    found = judge(FACTS, few, {})
    assert found.settings["journal-type"] == "ASYNCIO"
    assert "too few operations" in said(found)


def test_an_engine_that_is_missing_is_named_with_its_reason():
    only = [p for p in phases() if p.engine == "ASYNCIO"]
    found = judge(FACTS, only, {"IO_URING": "the kernel forbids it"})
    assert "IO_URING can't be had here: the kernel forbids it" in said(found)
    assert found.settings["journal-type"] == "ASYNCIO"


def test_what_preallocation_gains_is_said_as_a_number():
    assert "3.3 times as long" in said(judge(FACTS, phases(), {}))
    flat = said(judge(FACTS, phases(growing_us=121), {}))
    assert "Preallocation changes little here" in flat


def test_a_strategy_that_is_clearly_better_is_recommended():
    more = [
        *phases(),
        phase(FIRST_WRITE, "synced-write", 60, preallocation="chunked-zeros"),
    ]
    found = judge(FACTS, more, {})
    assert found.settings["journal-preallocation-strategy"] == "chunked-zeros"


def test_slow_and_uneven_flushes_are_said():
    assert "Flushes are slow here" in said(judge(FACTS, phases(9000.0, 60.0), {}))
    uneven = phases()
    uneven[0] = msgspec.structs.replace(uneven[0], p99_us=9000.0)
    assert "Give the journal a disk of its own" in said(judge(FACTS, uneven, {}))


def test_units_and_direct_io():
    assert "units of 16384 bytes" in said(judge(facts(alignment_bytes=16384), phases(), {}))
    assert "no direct I/O here" in said(judge(facts(is_direct=False), phases(), {}))
