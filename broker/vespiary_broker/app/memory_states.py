"""The memory of messages as the admin API shows it.

Owns the joining of what the engine counts with who waits at the server. Must never change anything.
Called by `administration` and `states`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vespiary_broker.engine.engine import Engine
from vespiary_broker.server.cycle import Cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressMemoryState:
    """One address; see `admin.memory_records.AddressMemory`."""

    name: str
    policy: str
    size_bytes: int
    messages: int
    max_bytes: int | None
    max_messages: int | None
    is_full: bool
    is_paging: bool
    blocked_producers: int
    blocked_producers_closed: int
    dropped: int
    page_full_policy: str | None
    is_page_full: bool
    page_limit_bytes: int | None
    page_limit_messages: int | None
    pages_bytes: int | None
    pages_messages: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    """All addresses; see `admin.memory_records.Memory`."""

    size_bytes: int
    messages: int
    max_bytes: int | None
    max_messages: int | None
    is_full: bool
    paging_addresses: int
    page_full_addresses: int
    page_modes: int
    blocked_producers: int
    blocked_producers_closed: int
    waits: int
    refused: int
    dropped: int


def address_memory(engine: Engine, cycle: Cycle, name: str) -> AddressMemoryState | None:
    """Return what the messages of an address take; None for an address without queues."""
    facts = engine.memory.facts(name)
    if facts is None:
        return None
    pages = facts.pages
    return AddressMemoryState(
        name=name,
        policy=str(facts.policy),
        size_bytes=facts.size_bytes,
        messages=facts.messages,
        max_bytes=facts.max_bytes,
        max_messages=facts.max_messages,
        is_full=facts.is_full,
        is_paging=facts.is_paging,
        blocked_producers=cycle.producers.count_for(name),
        blocked_producers_closed=cycle.producers.closed_count_for(name),
        dropped=engine.memory.counts.dropped[name],
        page_full_policy=str(pages.policy) if pages is not None else None,
        is_page_full=pages is not None and pages.is_full,
        page_limit_bytes=pages.max_bytes if pages is not None else None,
        page_limit_messages=pages.max_messages if pages is not None else None,
        pages_bytes=pages.size_bytes if pages is not None else None,
        pages_messages=pages.messages if pages is not None else None,
    )


def memory_state(engine: Engine, cycle: Cycle) -> MemoryState:
    """Return what the messages of all addresses take."""
    memory = engine.memory
    facts = memory.total()
    return MemoryState(
        size_bytes=facts.size_bytes,
        messages=facts.messages,
        max_bytes=facts.max_bytes,
        max_messages=facts.max_messages,
        is_full=facts.is_full,
        paging_addresses=memory.paging_count,
        page_full_addresses=memory.page_full_count,
        page_modes=memory.counts.page_modes,
        blocked_producers=cycle.producers.count,
        blocked_producers_closed=cycle.producers.closed_count,
        waits=cycle.producers.waits,
        refused=memory.counts.refused,
        dropped=memory.counts.dropped.total(),
    )
