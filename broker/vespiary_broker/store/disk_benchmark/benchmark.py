"""The course of a disk benchmark: files made, measured, all of it judged.

Owns: the order, the choice of engines and the time that each part gets. Must never judge (that is
`verdict`). Called by the CLI.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import msgspec

from vespiary_broker.store.disk_benchmark import disk_facts, verdict
from vespiary_broker.store.disk_benchmark.measuring import (
    READ,
    SYNCED_WRITE,
    WRITE,
    Cursor,
    Stream,
    take_turns,
)
from vespiary_broker.store.disk_benchmark.results import (
    BLOCK_SIZE,
    FIRST_WRITE,
    REWRITE,
    Phase,
    Report,
)
from vespiary_broker.store.disk_benchmark.workfiles import WorkFiles, place_of
from vespiary_native.abc_ring import Ring, RingKind
from vespiary_native.ring import open_ring
from vespiary_spec.errors import EngineUnavailable, StorageError
from vespiary_spec.settings import PreallocationStrategy

BLOCK_BYTES_DEFAULT = 4096
FILE_BYTES_DEFAULT = 64 * 1024 * 1024
SECONDS_DEFAULT = 0.3
LARGE_BLOCKS = (64 * 1024, 256 * 1024, 1024 * 1024)
"""What messages in flight turn a write into."""

_ENGINES: tuple[RingKind, ...] = get_args(RingKind)
_FAVOURITES: tuple[RingKind, ...] = ("ASYNCIO", "NIO")
"""Order in which the engine of the other groups is chosen: the broker's own."""
_DEPTH = 2


class BenchmarkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure.

    Attributes:
        target: A folder, or a name that is not taken.
        block_bytes: Bytes of one operation, a multiple of 512.
        file_bytes: Size of each file, a multiple of 4096 and of `block_bytes`.
        seconds: Time for each phase, above 0.
    """

    target: Path
    block_bytes: int = BLOCK_BYTES_DEFAULT
    file_bytes: int = FILE_BYTES_DEFAULT
    seconds: float = SECONDS_DEFAULT

    def check(self) -> None:
        """Refuse numbers that no disk could be measured with.

        Raises:
            StorageError: Measured against allowed.
        """
        if self.block_bytes < 512 or self.block_bytes % 512:
            raise StorageError(
                "no disk writes blocks of that size",
                measured=f"--bs {self.block_bytes}",
                allowed="multiples of 512",
            )
        if self.file_bytes % 4096 or self.file_bytes % self.block_bytes:
            raise StorageError(
                "the file's size must be a multiple of 4096 and of the block's",
                measured=f"--size {self.file_bytes}, --bs {self.block_bytes}",
            )


def run(
    request: BenchmarkRequest, *, on_progress: Callable[[float], None] = lambda _: None
) -> Report:
    """Measure a disk; blocks for about `phases_max` times the seconds asked for.

    Args:
        request: What to measure.
        on_progress: Called with seconds done, of `phases_max() * request.seconds` in all.

    Raises:
        StorageError: A number or the place can't be used; nothing was made.
        DiskFull: There is not room enough; nothing was made.
        NativeError: A call failed; nothing is left behind.
    """
    request.check()
    with ExitStack() as stack:
        work = stack.enter_context(WorkFiles(place_of(request.target), request.file_bytes))
        work.make()
        rings, missing = _open_rings(stack, is_direct=work.is_direct)
        phases = _measure(request, work, rings, on_progress)
        facts = disk_facts.of(
            work.folder.parent,
            work.folder / PreallocationStrategy.ZEROS,
            is_direct=work.is_direct,
        )
        making = tuple(work.making)
    return Report(
        facts=facts,
        file_bytes=request.file_bytes,
        block_bytes=request.block_bytes,
        seconds=request.seconds,
        making=making,
        phases=tuple(phases),
        missing_engines=missing,
        judgement=verdict.judge(facts, phases, missing),
    )


def phases_max() -> int:
    """Return the most phases that a run has."""
    return (3 * (len(PreallocationStrategy) + 1) + 1) * len(_ENGINES) + len(LARGE_BLOCKS)


def _open_rings(stack: ExitStack, *, is_direct: bool) -> tuple[list[Ring], dict[str, str]]:
    """Open every engine that can be had, the broker's favourite first; say why others can't."""
    rings: list[Ring] = []
    missing: dict[str, str] = {}
    for kind in sorted(_ENGINES, key=lambda kind: (*_FAVOURITES, kind).index(kind)):
        if kind != "NIO" and not is_direct:
            missing[kind] = "direct I/O does not work on this filesystem"
            continue
        try:
            ring, _ = open_ring(kind, _DEPTH, strict=True)
        except EngineUnavailable as error:
            missing[kind] = error.what
            continue
        stack.callback(ring.close)
        rings.append(ring)
    return rings, missing


def _measure(
    request: BenchmarkRequest,
    work: WorkFiles,
    rings: list[Ring],
    on_progress: Callable[[float], None],
) -> list[Phase]:
    """Measure flushed writes, then plain ones, reads, and larger blocks; each group in turns."""
    cursors = {name: Cursor(request.file_bytes, is_wrapping=False) for name in work.files}
    again = Cursor(request.file_bytes, is_wrapping=True)

    def stream(
        group: str,
        ring: Ring,
        kind: str = SYNCED_WRITE,
        *,
        name: str = PreallocationStrategy.ZEROS,
        block_bytes: int = request.block_bytes,
        cursor: Cursor = again,
    ) -> Stream:
        return Stream(
            group=group,
            kind=kind,
            ring=ring,
            file=work.files[name],
            preallocation=str(name),
            block_bytes=block_bytes,
            cursor=cursors[name] if group == FIRST_WRITE else cursor,
        )

    def turns(streams: list[Stream], *, is_room_uncertain: bool = False) -> list[Phase]:
        return take_turns(
            streams,
            request.seconds,
            on_progress=on_progress,
            is_room_uncertain=is_room_uncertain,
        )

    pairs = [(ring, name) for ring in rings for name in work.files]
    phases = turns(
        [
            *(stream(FIRST_WRITE, ring, name=name) for ring, name in pairs),
            *(stream(REWRITE, ring, WRITE) for ring in rings),
        ]
    )
    # In what the flushed writes have left of the files, if anything.
    plain = [stream(FIRST_WRITE, ring, WRITE, name=name) for ring, name in pairs]
    phases += turns(plain, is_room_uncertain=True)
    written = {
        name: Cursor(
            file.size_bytes() // request.block_bytes * request.block_bytes, is_wrapping=True
        )
        for name, file in work.files.items()
    }
    phases += turns(
        [stream(REWRITE, ring, READ, name=name, cursor=written[name]) for ring, name in pairs]
    )
    return phases + turns(
        [
            stream(BLOCK_SIZE, rings[0], block_bytes=size)
            for size in LARGE_BLOCKS
            if request.block_bytes < size <= request.file_bytes
        ]
    )
