"""CRC32C (Castagnoli), the checksum of journal and page blocks.

The native part computes it, or the PyPI package `crc32c` with `VESPIARY_NATIVE=0`; both give the
same numbers. Called by: the store and the Python twins. C code calls `vespiary_crc32c` itself.
"""

from __future__ import annotations

import importlib
from typing import Any

from vespiary_native import loader
from vespiary_native.abc_ring import BytesLike

if loader.is_native():
    _ffi, _lib = loader.ffi, loader.lib

    def crc32c(data: BytesLike, value: int = 0) -> int:
        """Return the CRC32C of `data`, carried on from `value`.

        Args:
            data: Contiguous bytes; may be empty.
            value: Result for what came before, 0 at the start, below 2**32.
        """
        view = _ffi.from_buffer(data)
        return int(_lib.vespiary_crc32c(value, view, len(view)))

else:
    _package: Any = importlib.import_module("crc32c")

    def crc32c(data: BytesLike, value: int = 0) -> int:
        """Return the CRC32C of `data`, carried on from `value`.

        Args:
            data: Contiguous bytes; may be empty.
            value: Result for what came before, 0 at the start, below 2**32.
        """
        return int(_package.crc32c(data, value))
