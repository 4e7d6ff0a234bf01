"""Settings of paging: files of messages that were moved out of memory.

Owns: these fields of `AddressSettings` and of `BrokerSettings`.
Never: says when an address pages (`addresses` and `memory` have the limits).
Called by: `addresses`, `settings`.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final

from vespiary_spec.memory import MESSAGES_MAX, MemorySettings
from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.queue_kinds import QueueKindDefaults

PAGE_BYTES_MIN: Final = 64 * 1024
PAGE_BYTES_MAX: Final = 1024 * 1024 * 1024
CACHED_PAGES_MAX: Final = 10_000
CONCURRENT_MAX: Final = 64


class PageFullPolicy(enum.StrEnum):
    """What becomes of a message to a full address whose pages may not grow."""

    DROP = "DROP"
    FAIL = "FAIL"


class PageSettings(
    QueueKindDefaults, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What `AddressSettings` has about paging."""

    page_size_bytes: Annotated[
        int | None,
        setting(
            "Size at which a page file is cut.",
            unit=Unit.BYTES,
            change=Change.RELOAD,
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
            change=Change.RELOAD,
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
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None
    prefetch_page_messages: Annotated[
        int | None,
        setting(
            "As `prefetch-page-bytes`, by number of messages. -1 is no limit.",
            change=Change.RELOAD,
            minimum=0,
            maximum=MESSAGES_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    max_read_page_bytes: Annotated[
        int | None,
        setting(
            "What a queue may have back in memory of its pages, waiting and held by consumers that "
            "have not acknowledged it. While another page does not fit into it, that page is not "
            "opened; one page is in any case. -1 is no limit.",
            unit=Unit.BYTES,
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="twice `page-size-bytes`",
        ),
    ] = None
    max_read_page_messages: Annotated[
        int | None,
        setting(
            "As `max-read-page-bytes`, by number of messages. -1 is no limit.",
            change=Change.RELOAD,
            minimum=0,
            maximum=MESSAGES_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    page_limit_bytes: Annotated[
        int | None,
        setting(
            "What the page files of the address may take on the disk. While another page of "
            "`page-size-bytes` does not fit into it, no page is written, and `page-full-policy` "
            "holds as soon as the address is full in memory; until there is room for a page below "
            "80 % of it. Only with `page-full-policy`. -1 is no limit.",
            unit=Unit.BYTES,
            change=Change.RELOAD,
            minimum=PAGE_BYTES_MIN,
            special=-1,
            default_text="-1",
        ),
    ] = None
    page_limit_messages: Annotated[
        int | None,
        setting(
            "Messages that a queue of the address may have in pages that are not open; as "
            "`page-limit-bytes`. The page that reaches it is still written. -1 is no limit.",
            change=Change.RELOAD,
            minimum=0,
            maximum=MESSAGES_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    page_full_policy: Annotated[
        PageFullPolicy | None,
        setting(
            "What becomes of a message to an address that is full while its pages are at "
            "`page-limit-bytes` or `page-limit-messages`: FAIL refuses it with an error; DROP "
            "takes it and forgets it (counted, and logged once each time that the address "
            "becomes full).",
            change=Change.RELOAD,
            default_text="none",
        ),
    ] = None


PAGE_DEFAULTS: Final[dict[str, Any]] = {
    "page_size_bytes": 10 * 1024 * 1024,
    "page_max_cache_size": 5,
    "prefetch_page_bytes": -1,
    "prefetch_page_messages": -1,
    "max_read_page_messages": -1,
    "page_limit_bytes": -1,
    "page_limit_messages": -1,
}
"""What holds for an address when no match says otherwise; None for those of `OPEN_DEFAULTS`."""

OPEN_DEFAULTS: Final = frozenset({"max_read_page_bytes", "page_full_policy"})
"""Settings for which None is a value: it follows from another setting, or there is none."""


class PagingSettings(MemorySettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `BrokerSettings` has about paging."""

    page_max_concurrent_io: Annotated[
        int,
        setting(
            "Pages that are filled and written at a time, over all addresses; together they take "
            "half of `global-max-size` at most, and one may go in any case.",
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
