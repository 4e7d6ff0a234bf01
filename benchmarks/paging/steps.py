"""How long single calls of the core on pages take: each of them is a step of the event loop.

Owns: a core without a disk, and the clock around its calls. Must never: print, or judge. Called by
`benchmarks.paging`.
"""

import ctypes
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from vespiary_native.choice import open_core

T = TypeVar("T")

_SLAB_BYTES = 2 * 1024 * 1024
_FILE_BYTES = 16 * 1024 * 1024
_PAGE_BYTES = 10 * 1024 * 1024
_FILES = 64
_TURN_BYTES = 1024 * 1024
_TURN_PLACES = 4096
_MESSAGE_BYTES = 100
PLACES_MAX = 32768
_SMALL = 64
"""Messages of one of the pages that are there before."""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Calls for pages of messages of 100 bytes, as full as pages become.

    `most_ms` is, by name of the call, its longest time in the quickest of the rounds: what
    it takes, and not what the machine did to it meanwhile.
    """

    queues: int
    pages_before: int
    most_ms: dict[str, float]


class _Round:
    """Pages in a core whose queues share their messages, and how long each call took."""

    def __init__(self, queues: int) -> None:
        self.core = open_core(
            slab_bytes=_SLAB_BYTES,
            block_bytes=_SLAB_BYTES // 4,
            slabs_max=_FILES * _FILE_BYTES // _SLAB_BYTES,
            record_bytes_max=_SLAB_BYTES // 4,
        )
        self.most_ms: dict[str, float] = {}
        self.queue_ids = list(range(1, queues + 1))
        self._last_page = 0
        for file_id in range(1, _FILES):
            self.core.add_file(file_id, file_id, _FILE_BYTES)
        self.core.start(1, 0, 0)
        for queue_id in self.queue_ids:
            self.core.open_queue(queue_id)
        self._route = self.core.open_route(self.queue_ids)

    def timed(self, name: str, call: Callable[[], T]) -> T:
        """Make a call, and note how long it took."""
        begin = time.perf_counter()
        result = call()
        took_ms = (time.perf_counter() - begin) * 1000
        self.most_ms[name] = max(self.most_ms.get(name, 0.0), took_ms)
        return result

    def flush(self) -> None:
        """Have all that is staged durable."""
        while (request := self.core.seal_write()) is not None:
            self.core.write_done(request.sequence)

    def publish(self, count: int) -> None:
        """Have messages wait in all queues."""
        body = bytes(_MESSAGE_BYTES)
        for number in range(count):
            self.core.publish(self._route, b"destination:q\n", body, persistent=True)
            if not number % 1000:
                self.flush()
        self.flush()

    def move(self) -> tuple[int, bytes]:
        """Move what waits into a page; return its id and its footer."""
        self._last_page += 1
        page_id, core = self._last_page, self.core
        core.page_open(page_id, page_id, _PAGE_BYTES, self.queue_ids)
        sequence = 0
        while not self._fill(page_id, sequence):
            sequence += _TURN_PLACES
        pieces = self.timed("close", lambda: core.page_close(page_id))
        footer = ctypes.string_at(pieces[-1].address, pieces[-1].length)
        self.timed("commit", lambda: core.page_commit(page_id))
        self.flush()
        return page_id, footer

    def _fill(self, page_id: int, sequence: int) -> bool:
        """Copy one turn's messages; return whether that was all."""
        fill = self.timed(
            "fill",
            lambda: self.core.page_fill(page_id, 1, sequence, 1 << 40, _TURN_BYTES, _TURN_PLACES),
        )
        return fill.is_full or fill.next_sequence >= self.core.queue_statistics(1).available

    def all_calls(self, places: int) -> None:
        """Fill a page and move it; have it entered, left, named anew and purged."""
        core = self.core
        self.publish(places // len(self.queue_ids))
        page_id, footer = self.move()
        for queue_id in self.queue_ids:
            self.timed("enter", lambda: core.page_enter(page_id, queue_id, footer))  # noqa: B023
        self.timed("restage, open", lambda: core.page_restage(page_id))
        self.flush()
        for queue_id in self.queue_ids:
            self.timed("leave", lambda: core.page_leave(page_id, queue_id))  # noqa: B023
        self.timed("restage", lambda: core.page_restage(page_id))
        self.flush()


def measure_steps(
    queues: int, pages_before: int = 0, *, rounds: int = 5, places: int = PLACES_MAX
) -> Steps:
    """Measure the calls for one page that so many queues share.

    Args:
        queues: Queues that have the messages, 1 to 1000.
        pages_before: Pages that the queues have already.
        rounds: Cores that are made for it, each with one page that counts.
        places: Of all queues in that page; pages have 32768 at most.
    """
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        one = _Round(queues)
        for _ in range(pages_before):
            one.publish(_SMALL)
            one.move()
        one.most_ms.clear()
        one.all_calls(places)
        found.append(one.most_ms)
    return Steps(
        queues=queues,
        pages_before=pages_before,
        most_ms={name: min(each[name] for each in found) for name in found[0]},
    )
