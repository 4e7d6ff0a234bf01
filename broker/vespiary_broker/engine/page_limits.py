"""What an address may have in pages, and whether that is reached.

Owns the limits of one address and the fact that its pages are full. Must never look at files: the
pager says what they are. Called by `address_memory`; owner: the event loop.

Pages are full while another one of `page-size-bytes` does not fit into `page-limit-bytes`, until
one fits below 80 % of it (or, where that is less than a page, until there is none left); and from
`page-limit-messages` on, until they are down to 80 % of it. Then no page is written, and once the
address is full in memory too, `page-full-policy` takes the place of PAGE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vespiary_spec.paging import PageFullPolicy

if TYPE_CHECKING:
    from vespiary_spec.settings import AddressSettings

LOW_PERCENT: Final = 80
"""Share of a limit at which a full address is no longer full."""


@dataclass(eq=False, slots=True)
class PageLimits:
    """Limits on the pages of one address, and what it has.

    Attributes:
        policy: What becomes of messages while memory and pages are full.
        page_bytes: Size at which a page is cut.
        max_bytes: What its page files may take; None for no limit.
        max_messages: What a queue may have in pages that are not open; None for no limit.
        size_bytes: What its page files take.
        messages: The most that one of its queues has in pages that are not open.
        is_full: Whether no page may be written.
    """

    policy: PageFullPolicy
    page_bytes: int
    max_bytes: int | None
    max_messages: int | None
    size_bytes: int = 0
    messages: int = 0
    is_full: bool = False

    def note(self, size_bytes: int, messages: int) -> bool:
        """Take note of what stands in pages; return whether they became full, or are no longer."""
        self.size_bytes, self.messages = size_bytes, messages
        was = self.is_full
        self.is_full = self._is_above_low() if was else self._is_above_limit()
        return self.is_full != was

    def _is_above_limit(self) -> bool:
        if self.max_bytes is not None and self.size_bytes + self.page_bytes > self.max_bytes:
            return True
        return self.max_messages is not None and self.messages >= self.max_messages

    def _is_above_low(self) -> bool:
        if self.max_bytes is not None:
            low = max(self.max_bytes * LOW_PERCENT // 100, self.page_bytes)
            if self.size_bytes + self.page_bytes > low:
                return True
        if self.max_messages is None:
            return False
        low_messages = self.max_messages * LOW_PERCENT // 100
        return self.messages > low_messages or self.messages >= self.max_messages

    def facts_text(self) -> str:
        """Return what stands in pages, as an error measures it."""
        return f"{self.size_bytes} bytes of pages with {self.messages} messages"

    def limits_text(self) -> str:
        """Return the limits as an error names them."""
        parts = [] if self.max_bytes is None else [f"page-limit-bytes {self.max_bytes}"]
        if self.max_messages is not None:
            parts.append(f"page-limit-messages {self.max_messages}")
        return ", ".join(parts)


def page_limits_of(settings: AddressSettings) -> PageLimits | None:
    """Return the limits that settings give; None if they give none, or no policy."""
    assert settings.page_size_bytes is not None
    sizes = (settings.page_limit_bytes, settings.page_limit_messages)
    max_bytes, max_messages = (None if size is None or size < 0 else size for size in sizes)
    policy = settings.page_full_policy
    if policy is None or (max_bytes is None and max_messages is None):
        return None
    return PageLimits(policy, settings.page_size_bytes, max_bytes, max_messages)
