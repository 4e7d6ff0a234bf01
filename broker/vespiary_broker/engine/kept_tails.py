"""The next sequence of a queue, written down: no sequence below it is used again.

Messages that are not persistent leave no trace in the journal, and what is not flushed may be gone
after a crash; their sequences would be given to others at the next start. Whoever is told of a
sequence by its number (a reader of a stream, another broker) must not meet it twice.
"""

from __future__ import annotations

import struct
from typing import Final

from vespiary_broker.engine.core import Core
from vespiary_codec.journal.record import QUEUE_STATE
from vespiary_codec.journal.record_types import RecordType

_COUNT: Final = struct.Struct("<II")


def keep_tail(core: Core, queue_id: int) -> int:
    """Stage a record of a queue's next sequence; return that sequence.

    Args:
        core: The core.
        queue_id: A durable queue.

    Raises:
        NoRoom: There is none in the journal now; nothing was changed.

    Durability: none by itself; once the journal is flushed, no sequence below the returned one is
        given to another message, also not after a crash (docs/internals/journal-format.md, QUEUES).
    """
    statistics = core.queue_statistics(queue_id)
    state = QUEUE_STATE.pack(queue_id, 0, statistics.head, statistics.tail)
    core.append_record(RecordType.QUEUES, _COUNT.pack(1, 0) + state)
    return statistics.tail
