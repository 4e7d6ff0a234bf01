"""Rules about names and counts as a configuration wants them.

Owns the way from the settings to the engine's values. Must never hold state. Called by `broker`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from vespiary_broker.app.memory import QUEUE_BYTES, bound, memory_limit_bytes
from vespiary_broker.engine.delivery_counts import CountRules
from vespiary_broker.engine.naming import NamingRules, UserLimit
from vespiary_broker.engine.wildcards import WildcardSyntax
from vespiary_spec.settings import Configuration

_SUBSCRIPTION_BYTES: Final = 1024
"""What a consumer takes without a queue of its own: 600 to 800 bytes measured."""
_ADDRESS_BYTES: Final = 2048
"""What an address with a route takes: 1.1 KB measured, and its binding if it has one."""


def wildcard_syntax(configuration: Configuration) -> WildcardSyntax:
    """Return what wildcards look like in this broker."""
    wanted = configuration.wildcard_addresses
    return WildcardSyntax(
        delimiter=wanted.delimiter,
        any_words=wanted.any_words,
        single_word=wanted.single_word,
        is_routing_enabled=wanted.routing_enabled,
    )


def count_rules(configuration: Configuration) -> CountRules:
    """Return which deliveries are counted in the journal, and when."""
    most = configuration.max_redelivery_records
    return CountRules(
        is_ahead=configuration.persist_delivery_count_before_delivery
        and configuration.persistence_enabled,
        records_max=None if most < 0 else most,
    )


def naming_rules(configuration: Configuration, memory_bytes: int | None = None) -> NamingRules:
    """Return the rules about names in this broker.

    Args:
        configuration: Its configuration.
        memory_bytes: Memory that the process may use; None asks the system.
    """
    memory_bytes = memory_limit_bytes() if memory_bytes is None else memory_bytes
    return NamingRules(
        syntax=wildcard_syntax(configuration),
        prefixes=tuple(
            (each.anycast_prefix, each.multicast_prefix) for each in configuration.acceptors
        ),
        scan_period_s=configuration.address_queue_scan_period / 1000,
        addresses_max=bound(configuration.max_addresses, memory_bytes, _ADDRESS_BYTES),
        queues_max=bound(configuration.max_queues, memory_bytes, QUEUE_BYTES),
        subscriptions_max=bound(configuration.max_subscriptions, memory_bytes, _SUBSCRIPTION_BYTES),
        users={
            entry.match: UserLimit(
                sessions_max=entry.max_sessions,
                durable_sessions_max=entry.max_mqtt_sessions,
                queues_max=entry.max_queues,
                bytes_per_s=entry.producer_byte_rate,
                messages_per_s=entry.producer_message_rate,
            )
            for entry in configuration.resource_limit_settings
        },
        pause=_next_turn,
    )


async def _next_turn() -> None:
    await asyncio.sleep(0)
