"""The native layer: C for bytes and I/O, and a pure-Python twin for each part of it.

Import the module that you need: `ring` (open_ring), `abc_ring` (the contract of a ring), `memory`
(AlignedBuffer), `crc32c`, `loader` (ffi, lib, is_native), `abc` (the contract of the core),
`choice` (open_core, block_verifier), `twin`. Importing the package loads nothing; `open_core` and
`block_verifier` are also here, and load what they need at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vespiary_native.choice import block_verifier as block_verifier
    from vespiary_native.choice import open_core as open_core


def __getattr__(name: str) -> Any:
    """Import `choice` when something of it is first asked for (PEP 562)."""
    if name in ("block_verifier", "open_core"):
        from vespiary_native import choice

        return getattr(choice, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
