"""Which core the broker runs on: C, or its twin in Python.

Owns the choice, by `VESPIARY_NATIVE` (see `loader`). Never falls back on its own: a native part
that should be there and is not is an error. Called by the store, and by whoever reads journals.
"""

from __future__ import annotations

from vespiary_native import loader
from vespiary_native.abc import BLOCK_BYTES, SLAB_BYTES, BlockVerifier, Core


def open_core(
    *,
    slab_bytes: int = SLAB_BYTES,
    block_bytes: int = BLOCK_BYTES,
    slabs_max: int,
    record_bytes_max: int,
) -> Core:
    """Make a core: `NativeCore`, or `TwinCore` if `VESPIARY_NATIVE=0`.

    Args:
        slab_bytes: Unit of memory, a power of two.
        block_bytes: Largest block with more than one record.
        slabs_max: Largest number of slabs, 2 or more; 6 leave room to evict.
        record_bytes_max: Largest record, at most `slab_bytes - 8192`.

    Raises:
        NativeError: The native part is wanted and does not load.
        ValueError: An argument is out of its range.
    """
    if loader.is_native():
        from vespiary_native.core import NativeCore

        return NativeCore(
            slab_bytes=slab_bytes,
            block_bytes=block_bytes,
            slabs_max=slabs_max,
            record_bytes_max=record_bytes_max,
        )
    from vespiary_native.twin import TwinCore

    return TwinCore(
        slab_bytes=slab_bytes,
        block_bytes=block_bytes,
        slabs_max=slabs_max,
        record_bytes_max=record_bytes_max,
    )


def block_verifier() -> BlockVerifier:
    """Return the implementation of `verify_blocks` that goes with `open_core`.

    Raises:
        NativeError: The native part is wanted and does not load.
    """
    if loader.is_native():
        from vespiary_native.core import verify_blocks as native_verify_blocks

        return native_verify_blocks
    from vespiary_native.twin import verify_blocks

    return verify_blocks
