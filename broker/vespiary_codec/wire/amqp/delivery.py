"""Terminuses, and what becomes of a delivery.

Owns the fields of sources, targets, outcomes and of the transactions' own. Must never parse or
print bytes. Used by `performatives`' fields and by their callers.

Source: AMQP 1.0 (OASIS, 2012) §3.4, §3.5 and §4.5.
"""

from __future__ import annotations

from typing import Any

from vespiary_codec.wire.amqp.composites import ANY, SYMBOLS, composite, of
from vespiary_codec.wire.amqp.performatives import Error


@composite(0x28, "source")
class Source:
    """Where messages of a link come from; `address` is null for a dynamic one."""

    address: Any = of(ANY)
    durable: int = of("uint", 0)
    expiry_policy: str = of("symbol", "session-end")
    timeout: int = of("uint", 0)
    dynamic: bool = of("boolean", False)
    dynamic_node_properties: dict[Any, Any] | None = of("map")
    distribution_mode: str | None = of("symbol")
    filter: dict[Any, Any] | None = of("map")
    default_outcome: Any = of(ANY)
    outcomes: tuple[str, ...] = of(SYMBOLS)
    capabilities: tuple[str, ...] = of(SYMBOLS)


@composite(0x29, "target")
class Target:
    """Where messages of a link go; `address` is null for the anonymous relay and a dynamic one."""

    address: Any = of(ANY)
    durable: int = of("uint", 0)
    expiry_policy: str = of("symbol", "session-end")
    timeout: int = of("uint", 0)
    dynamic: bool = of("boolean", False)
    dynamic_node_properties: dict[Any, Any] | None = of("map")
    capabilities: tuple[str, ...] = of(SYMBOLS)


@composite(0x30, "coordinator")
class Coordinator:
    """The target of a link that begins and ends transactions."""

    capabilities: tuple[str, ...] = of(SYMBOLS)


@composite(0x23, "received")
class Received:
    """So much of a delivery has arrived."""

    section_number: int = of("uint", mandatory=True)
    section_offset: int = of("ulong", mandatory=True)


@composite(0x24, "accepted")
class Accepted:
    """It was taken."""


@composite(0x25, "rejected")
class Rejected:
    """It cannot be taken by anybody."""

    error: Error | None = of("error")


@composite(0x26, "released")
class Released:
    """It was not looked at."""


@composite(0x27, "modified")
class Modified:
    """It was given back, changed."""

    delivery_failed: bool = of("boolean", False)
    undeliverable_here: bool = of("boolean", False)
    message_annotations: dict[Any, Any] | None = of("map")


@composite(0x31, "declare")
class Declare:
    """The body of a message that begins a transaction."""

    global_id: Any = of(ANY)


@composite(0x32, "discharge")
class Discharge:
    """The body of a message that ends a transaction; with `fail` nothing of it counts."""

    txn_id: bytes = of("binary", mandatory=True)
    fail: bool = of("boolean", False)


@composite(0x33, "declared")
class Declared:
    """The outcome of a declaration."""

    txn_id: bytes = of("binary", mandatory=True)


@composite(0x34, "transactional-state")
class TransactionalState:
    """A transfer or an outcome that counts when its transaction does."""

    txn_id: bytes = of("binary", mandatory=True)
    outcome: Any = of(ANY)


OUTCOMES = (Accepted, Rejected, Released, Modified)
