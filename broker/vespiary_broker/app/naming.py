"""Names as a configuration wants them: which characters are wildcards.

Owns the way from the settings to the engine's values. Must never hold state. Called by `broker`.
"""

from __future__ import annotations

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
