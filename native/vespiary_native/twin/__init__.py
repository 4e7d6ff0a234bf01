"""The core in pure Python: the specification of the C core, and its stand-in without a compiler.

Owns nothing itself; `core` has `TwinCore`, `blocks` has `verify_blocks`. Never imports the native
part. Chosen by `vespiary_native.choice`.

    image     slabs, files, eviction, loading
    blocks    where records go, how blocks are closed, what is written next
    state     queues, consumers, routes, connections
    core      the contract: `TwinCore`
    stomp     frames in
    recovery  restored blocks
    compaction  live messages of an old file, moved to the journal's end
"""

from vespiary_native.twin.blocks import verify_blocks
from vespiary_native.twin.core import TwinCore

__all__ = ["TwinCore", "verify_blocks"]
