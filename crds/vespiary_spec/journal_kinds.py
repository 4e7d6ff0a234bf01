"""Values that settings of the journals take, and the folders that they name.

Owns: the spellings that users type.
Never: reads files or the machine.
Called by: `settings`, which everybody else imports them from.
"""

import enum
from pathlib import Path
from typing import NamedTuple


class JournalType(enum.StrEnum):
    """Journal engines, as users ask for them."""

    ASYNCIO = "ASYNCIO"
    NIO = "NIO"
    IO_URING = "IO_URING"

    @property
    def may_use_aio(self) -> bool:
        """Whether requests of `fs.aio-max-nr` may be needed: ASYNCIO, and IO_URING's fallback."""
        return self is not JournalType.NIO


class PreallocationStrategy(enum.StrEnum):
    """Ways to give a journal file its size before it is used."""

    ZEROS = "zeros"
    SPARSE_FILE = "sparse-file"
    OS_KERNEL_COPY = "os-kernel-copy"
    CHUNKED_ZEROS = "chunked-zeros"


class PreallocationScope(enum.StrEnum):
    """When journal files get their size."""

    ENTIRE_JOURNAL = "entire-journal"
    ENTIRE_JOURNAL_ASYNC = "entire-journal-async"
    NONE = "none"


class Directories(NamedTuple):
    """The folders of a broker, absolute; that of the JMS journal may be that of the bindings."""

    bindings: Path
    journal: Path
    paging: Path
    large_messages: Path
    jms: Path
