"""Rules about names as a configuration wants them.

Owns the way from the settings to the engine's values. Must never hold state. Called by `broker`.
"""

from __future__ import annotations

from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.wildcards import WildcardSyntax
from vespiary_spec.settings import Configuration


def wildcard_syntax(configuration: Configuration) -> WildcardSyntax:
    """Return what wildcards look like in this broker."""
    wanted = configuration.wildcard_addresses
    return WildcardSyntax(
        delimiter=wanted.delimiter,
        any_words=wanted.any_words,
        single_word=wanted.single_word,
        is_routing_enabled=wanted.routing_enabled,
    )


def naming_rules(configuration: Configuration) -> NamingRules:
    """Return the rules about names in this broker."""
    return NamingRules(
        syntax=wildcard_syntax(configuration),
        scan_period_s=configuration.address_queue_scan_period / 1000,
    )
