from typing import Any

from vespiary_broker.server.buffers import HEADROOM_BYTES, PrivateBuffer, SharedBuffer
from vespiary_testkit.memory_journal import MemoryJournal


class CountingCore:
    """Counts attached buffers."""

    def __init__(self) -> None:
        self.attached: dict[int, Any] = {}
        self.made = 0

    def attach_buffer(self, buffer: bytearray) -> int:
        self.made += 1
        self.attached[self.made] = buffer
        return self.made

    def detach_buffer(self, handle: int) -> None:
        del self.attached[handle]


def test_shared_buffer_puts_the_rest_in_front() -> None:
    shared = SharedBuffer(MemoryJournal().core)
    shared.view[:5] = b"world"
    start = shared.place(b"hello ")
    assert bytes(shared.memory[start : HEADROOM_BYTES + 5]) == b"hello world"
    end = shared.put(b"other")
    assert bytes(shared.memory[HEADROOM_BYTES:end]) == b"other"


def test_private_buffer_never_holds_more_than_twice_what_came() -> None:
    core: Any = CountingCore()
    needed = 10_000_000
    buffer = PrivateBuffer(core, b"x" * 70_000, needed)
    while buffer.end < needed:
        assert len(buffer.memory) <= 2 * buffer.end
        view = buffer.free_view(needed)
        count = min(len(view), 33_333)
        view[:count] = b"y" * count
        view.release()
        buffer.end += count
        assert list(core.attached) == [buffer.handle]
        assert core.attached[buffer.handle] is buffer.memory
    assert len(buffer.memory) == needed
    assert buffer.memory.count(b"y") == needed - 70_000
    buffer.release()
    assert not core.attached


def test_private_buffer_drops_what_was_taken_when_it_grows() -> None:
    core: Any = CountingCore()
    buffer = PrivateBuffer(core, bytes(range(200)) * 10, 0)
    buffer.start = 1500
    buffer.append(memoryview(b"z" * 10_000), 0)
    assert bytes(buffer.memory[buffer.start : buffer.end]) == (
        (bytes(range(200)) * 10)[1500:] + b"z" * 10_000
    )
    assert buffer.start == 0
