"""`AlignedBuffer`."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from vespiary_native.memory import AlignedBuffer


@pytest.mark.parametrize("size_bytes", [1, 4096, 4097, 4 << 20])
@pytest.mark.parametrize("populate", [False, True])
@pytest.mark.parametrize("huge_pages", [False, True])
def test_it_is_zeroed_aligned_and_at_its_address(size_bytes: int, populate: bool, huge_pages: bool):
    buffer = AlignedBuffer(size_bytes, populate=populate, huge_pages=huge_pages)
    assert buffer.size_bytes == len(buffer.memoryview) == size_bytes
    assert buffer.address % 4096 == 0
    assert buffer.memoryview.tobytes() == bytes(size_bytes)
    buffer.memoryview[size_bytes - 1] = 77
    assert ctypes.string_at(buffer.address + size_bytes - 1, 1) == b"M"
    buffer.close()


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="buffer size 0 is out of range"):
        AlignedBuffer(0)


def test_it_is_not_freed_under_a_view():
    buffer = AlignedBuffer(4096)
    part = buffer.memoryview[10:20]
    with pytest.raises(BufferError):
        buffer.close()
    part[0] = 5
    assert buffer.memoryview[10] == 5
    part.release()
    buffer.close()
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        _ = buffer.memoryview


def test_a_kernel_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # an advice that no kernel knows: EINVAL
    memory = AlignedBuffer(2 * 1024 * 1024, populate=True, huge_pages=True).memoryview
    assert not any(memory[:: mmap.PAGESIZE])
