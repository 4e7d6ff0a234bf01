"""When a message came in, as a header of it, where the settings of its address want that.

Owns the header's name (the reference system's, for STOMP) and the rule which addresses have their
messages stamped one by one. Pure. Called by `publishing` and by the server's sessions.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.message_times import has_expiry_rules
from vespiary_broker.engine.property_lines import with_lines, without
from vespiary_spec.settings import AddressSettings

INGRESS_TIMESTAMP: Final = "ingress-timestamp"


def has_stamps(settings: AddressSettings) -> bool:
    """Whether messages of an address get a header from the broker, so that Python sees each."""
    return bool(settings.enable_ingress_timestamp) or has_expiry_rules(settings)


def ingress_stamp(properties: bytes, settings: AddressSettings, now_ms: int) -> bytes:
    """Return the properties of a message with the time when it came, if its address wants that.

    Args:
        properties: Its header lines; a stamp that its sender gave it is taken off.
        settings: Of its address.
        now_ms: Milliseconds since 1970.
    """
    if not settings.enable_ingress_timestamp:
        return properties
    rest = without(properties, (INGRESS_TIMESTAMP.encode(),))
    return with_lines(rest, [(INGRESS_TIMESTAMP, str(now_ms))])
