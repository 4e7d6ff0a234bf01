"""Settings of paging: files of messages that were moved out of memory.

Owns: these fields of `AddressSettings` and of `BrokerSettings`.
Never: says when an address pages (`addresses` and `memory` have the limits).
Called by: `addresses`, `settings`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from vespiary_spec.memory import MESSAGES_MAX, MemorySettings
from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.queue_kinds import QueueKindDefaults

PAGE_BYTES_MIN: Final = 64 * 1024
PAGE_BYTES_MAX: Final = 1024 * 1024 * 1024
CACHED_PAGES_MAX: Final = 10_000
CONCURRENT_MAX: Final = 64


class PageSettings(
    QueueKindDefaults, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What `AddressSettings` has about paging."""

    page_size_bytes: Annotated[
        int | None,
        setting(
            "Size at which a page file is cut.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=PAGE_BYTES_MIN,
            maximum=PAGE_BYTES_MAX,
            default_text="10MiB",
        ),
    ] = None
    page_max_cache_size: Annotated[
        int | None,
        setting(
            "Pages of the address that are kept open for its consumers: the messages of an open "
            "page have their places in memory again (24 bytes each). One that a consumer waits for "
            "is opened in any case.",
            change=Change.RESTART,
            minimum=1,
            maximum=CACHED_PAGES_MAX,
            default_text="5",
        ),
    ] = None

    prefetch_page_bytes: Annotated[
        int | None,
        setting(
            "The next page of a queue is opened before its consumers ask for it, while less than "
            "this waits for them in memory. -1 takes twice `page-size-bytes`, 0 never does it.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None
    prefetch_page_messages: Annotated[
        int | None,
        setting(
            "As `prefetch-page-bytes`, by number of messages. -1 is no limit.",
            change=Change.RESTART,
            minimum=0,
            maximum=MESSAGES_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None


PAGE_DEFAULTS: Final[dict[str, Any]] = {
    "page_size_bytes": 10 * 1024 * 1024,
    "page_max_cache_size": 5,
    "prefetch_page_bytes": -1,
    "prefetch_page_messages": -1,
}
"""What holds for an address when no match says otherwise."""


class PagingSettings(MemorySettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `BrokerSettings` has about paging."""

    page_max_concurrent_io: Annotated[
        int,
        setting(
            "Page files that are written at a time, over all addresses; where there is little "
            "memory, one for each 48 MiB of `global-max-size`.",
            change=Change.RESTART,
            minimum=1,
            maximum=CONCURRENT_MAX,
        ),
    ] = 5
    purge_page_folders: Annotated[
        bool,
        setting(
            "Remove the folder of an address below `paging-directory` when its last page goes.",
            change=Change.RESTART,
        ),
    ] = False
