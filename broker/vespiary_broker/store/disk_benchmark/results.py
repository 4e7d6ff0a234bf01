"""Records of a disk benchmark, as `--json` prints them.

Owns: the records alone. Must never measure or judge. Called by all of `disk_benchmark` and by the
CLI.
"""

from __future__ import annotations

import msgspec

FIRST_WRITE = "first-write"
REWRITE = "rewrite"
BLOCK_SIZE = "block-size"
"""Groups of phases. Those of one group and kind took turns and may be compared; so may flushed
writes and rewrites."""

GROWING = "none"
"""Preallocation of the file that grows: the name of the scope that makes such files."""


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """How a file got its size.

    Attributes:
        preallocation: The strategy.
        seconds: From creation to the end of its flush.
        bytes_per_s: Of its size.
        note: Why another strategy was used; empty if none was.
    """

    preallocation: str
    seconds: float
    bytes_per_s: float
    note: str = ""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One way of writing or reading, one operation in flight.

    Attributes:
        group: `first-write` (each block written once), `rewrite` (blocks that have their place)
            or `block-size`.
        kind: `synced-write` (flushed before it counts), `write` (one flush at the end of each
            turn, its time included) or `read`.
        engine: Effective engine.
        preallocation: Strategy of the file, or `none` for one that grows.
        block_bytes: Bytes of one operation.
        operations: Operations measured.
        seconds: Time that they took.
        operations_per_s: Their rate.
        bytes_per_s: Their bytes by time.
        p50_us: Median of one operation in microseconds.
        p90_us: 90th percentile.
        p99_us: 99th percentile.
        max_us: The longest.
    """

    group: str
    kind: str
    engine: str
    preallocation: str
    block_bytes: int
    operations: int
    seconds: float
    operations_per_s: float
    bytes_per_s: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


class DiskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the system tells of the disk; None is unknown.

    Attributes:
        folder: Where the files were made.
        filesystem: Type of the filesystem.
        mount_options: Its options.
        device: Device that holds it.
        disks: Devices at the bottom.
        is_rotational: Whether any of them spins.
        write_cache: `write back` when any has a volatile cache.
        has_fua: Whether it writes through the cache on request.
        scheduler: I/O scheduler.
        alignment_bytes: Unit of direct writes; 0 where there are none.
        is_direct: Whether direct I/O works.
        hypervisor: Name of the hypervisor, `yes` if only its presence is known; empty if none is.
        cores: Processors that this process may use.
        kernel: Release of the kernel.
    """

    folder: str
    filesystem: str
    mount_options: tuple[str, ...]
    device: str | None
    disks: tuple[str, ...]
    is_rotational: bool | None
    write_cache: str | None
    has_fua: bool | None
    scheduler: str | None
    alignment_bytes: int | None
    is_direct: bool
    hypervisor: str
    cores: int
    kernel: str


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What follows.

    Attributes:
        is_good: Whether the disk keeps what it was told to, as far as can be seen.
        sentences: What was found, in words; the gravest first.
        settings: Settings to use, by name; only those that differ from the default or that
            somebody may have set otherwise.
    """

    is_good: bool
    sentences: tuple[str, ...]
    settings: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run.

    Attributes:
        facts: The disk.
        file_bytes: Size of each file.
        block_bytes: Bytes of one operation, where the phase does not say otherwise.
        seconds: Time for each phase.
        making: How the files were made.
        phases: What was measured.
        missing_engines: Engines that could not be had, and why.
        judgement: What follows.
    """

    facts: DiskFacts
    file_bytes: int
    block_bytes: int
    seconds: float
    making: tuple[Making, ...]
    phases: tuple[Phase, ...]
    missing_engines: dict[str, str]
    judgement: Judgement
