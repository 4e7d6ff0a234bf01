"""Seeded faults of the places of queues: sequences that no core writes, and gaps between them.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_DISTANT: Final = "tests/unit/vespiary_native/test_core_distant.py::"
_REJECTED: Final = _DISTANT + "test_what_no_core_has_written_is_rejected"

NATIVE_SEQUENCES: Final[tuple[Mutant, ...]] = (
    Mutant(
        "sequence out of range taken",
        "Recovery takes a message with a sequence that no core writes.",
        "native/src/recovery.c",
        "        if (!is_sequence(sequence))\n            return -EBADMSG;\n        pending_member",
        "        pending_member",
        _REJECTED,
    ),
    Mutant(
        "segment missed behind a gap",
        "A walk ends at a gap between segments: messages behind it are neither given nor ended.",
        "native/src/segments.c",
        "            after = f->children[__builtin_ctzll(later)];\n",
        "            after = 0;\n",
        "C:test_segments",
    ),
    Mutant(
        "fork lost with its last but one segment",
        "A segment that is alone in its fork goes with the one before it.",
        "native/src/segments.c",
        "    *above = f->children[__builtin_ctzll(f->used)]; /* a single child needs no fork */\n",
        "    *above = 0;\n",
        "C:test_segments",
    ),
)
