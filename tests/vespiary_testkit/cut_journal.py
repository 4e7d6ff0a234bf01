"""`CutJournal`: a journal in memory that keeps its blocks, and can be had as it was at any of them.

For tests of the engine over power cuts: `MemoryJournal` confirms, and this one remembers in which
order the blocks came. `restored` is what a start finds when the power went behind one of them.
"""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from vespiary_broker.store.kept import KeptRecords, KeptSink, NothingKept
from vespiary_native.abc import Core
from vespiary_native.choice import block_verifier
from vespiary_testkit.memory_journal import MemoryJournal

SALT = 7
_BLOCK_BYTES = 64 * 1024


class KeptBlock(NamedTuple):
    """A block that was written."""

    file_id: int
    offset: int
    data: bytes
    sequence: int
    crc: int


class CutJournal(MemoryJournal):
    """See the module's docstring.

    Args:
        make_core: Makes a core.
        blocks: What a start finds; none for a new journal.
        queue_ids: The queues that there are then.
        kept: Takes the records that the core does not keep.
    """

    def __init__(
        self,
        make_core: Callable[[], Core],
        blocks: Iterable[KeptBlock] = (),
        queue_ids: Iterable[int] = (),
        kept: KeptRecords | None = None,
    ) -> None:
        self.blocks = list(blocks)
        self._make_core = make_core
        if not self.blocks:
            super().__init__(make_core(), file_bytes=1 << 20)
            for queue_id in queue_ids:
                self.core.open_queue(queue_id)
            return
        core = restore(make_core, self.blocks, queue_ids, kept)
        super().__init__(_Begun(core), file_bytes=1 << 20, files=0)  # type: ignore[arg-type]
        self.core = core
        last = self.blocks[-1]
        core.start(last.sequence + 1, last.crc, last.sequence)
        self._files = last.file_id
        for _ in range(8):
            self.add_file()
        core.grow(2)

    def flush(self) -> None:
        """Have everything that is staged written, block by block."""
        is_written = False
        while (request := self.core.seal_write()) is not None:
            data = ctypes.string_at(request.address, request.length)
            self._keep(request.file_id, request.offset, data)
            self.core.write_done(request.sequence)
            is_written = True
        if self._written is not None:
            self._written.set()
            self._written = None
        if is_written:
            self.on_durable()

    def _keep(self, file_id: int, offset: int, data: bytes) -> None:
        view = memoryview(data)
        for facts in block_verifier()(view, offset, SALT, file_id, _BLOCK_BYTES):
            at = facts.offset - offset
            block = data[at : at + facts.length]
            self.blocks.append(KeptBlock(file_id, facts.offset, block, facts.sequence, facts.crc))


class _Begun:
    """Stands for a core while `MemoryJournal` is made: it starts behind its last block, later."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def start(self, *_: int) -> None:
        pass

    def grow(self, slabs: int) -> None:
        pass


def restore(
    make_core: Callable[[], Core],
    blocks: Iterable[KeptBlock],
    queue_ids: Iterable[int],
    kept: KeptRecords | None = None,
) -> Core:
    """Return a core with what stands in blocks, all of it in memory."""
    core = make_core()
    for queue_id in queue_ids:
        core.open_queue(queue_id)
    sink = KeptSink(core, kept or NothingKept())
    files: dict[int, bytearray] = defaultdict(lambda: bytearray(1 << 20))
    for block in blocks:
        if block.file_id not in files:
            sink.restore_file(block.file_id, SALT, 1 << 20)
        files[block.file_id][block.offset : block.offset + len(block.data)] = block.data
        sink.restore_block(block.file_id, block.offset, memoryview(block.data))
    core.restore_done()
    core.grow(8)
    for file_id, data in files.items():
        begun = core.load_begin(file_id, 0)
        if begun is not None:
            address, length, offset = begun
            ctypes.memmove(address, bytes(data[offset : offset + length]), length)
            core.load_done(file_id, 0, good=True)
    return core


def contents(core: Core, queues: Mapping[str, int]) -> dict[bytes, Counter[str]]:
    """Return in which queues each body is, held, set aside or waiting."""
    found: dict[bytes, Counter[str]] = defaultdict(Counter)
    for name, queue_id in queues.items():
        sequence = 0
        while True:
            look = core.look(queue_id, sequence, 1000, everything=True)
            assert look.absent is None, f"{look.absent} is not in memory"
            for view in look.messages:
                body = core.body(queue_id, view.sequence)
                assert body is not None
                found[body][name] += 1
            if look.next_sequence <= sequence or not look.messages:
                break
            sequence = look.next_sequence
    return dict(found)
