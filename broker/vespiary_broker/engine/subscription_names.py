"""Names of the queues of subscriptions that outlive their connection, in every protocol.

Owns how such a name is made of a client id and what the client calls its subscription. Pure. Called
by `subscriptions`, `server.mqtt` and `server.amqp`.

    client shop, durable subscription prices      shop.prices
    client shop, durable subscription eu.prices   shop.eu%2Eprices
    client shop.eu, durable subscription prices   shop%2Eeu.prices
    client shop, filter sensors/# of MQTT         shop.sensors.#

Dots and other signs are written as %2E and so on, so no two subscriptions of a protocol have one
name. Where a queue of another kind has that name already, `shop=prices` is the name of the second.
A name that is longer than names may be is one with the SHA-256 of it, `~HASH.` and how it begins;
no other begins with a tilde.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Sequence
from typing import Final

from vespiary_spec.limits import ADDRESS_NAME_CHARACTERS_MAX

SHORTENED: Final = "~"
_BEGINNING_CHARACTERS: Final = 200
"""What a long name has of what it stands for; for people alone."""
_SIGNS: Final = re.compile(r"[^A-Za-z0-9_-]")


def word(text: str) -> str:
    """Return a text as one word of a name."""
    return _SIGNS.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def short(name: str, before_bytes: int = 0) -> str:
    """Return a name that is no longer than names may be.

    Args:
        name: The name.
        before_bytes: Bytes that are to stand in front of it.
    """
    data = name.encode()
    if before_bytes + len(data) <= ADDRESS_NAME_CHARACTERS_MAX:
        return name
    beginning = name[:_BEGINNING_CHARACTERS].rstrip(" ")
    return f"{SHORTENED}{hashlib.sha256(data).hexdigest()}.{beginning}"


def queue_names(client_id: str, subscription: str) -> tuple[str, str]:
    """Return the names that the queue of a subscription may have, the usual one first.

    Args:
        client_id: Name of the client.
        subscription: What stands for its subscription in the name.
    """
    client = word(client_id)
    return short(f"{client}.{subscription}"), short(f"{client}={subscription}")


def free_name(names: Sequence[str], taken: Container[str]) -> str:
    """Return the first name that no queue has; the first one if all are taken."""
    return next((name for name in names if name not in taken), names[0])


def durable_queue_name(client_id: str, durable_name: str) -> str:
    """Return the usual name of the queue of a durable subscription."""
    return queue_names(client_id, word(durable_name))[0]


def former_durable_queue_name(client_id: str, durable_name: str) -> str:
    """Return the name that the queue of a durable subscription had in earlier versions.

    Other subscriptions, of other clients, had the same one.
    """
    return f"{client_id}.{durable_name}"
