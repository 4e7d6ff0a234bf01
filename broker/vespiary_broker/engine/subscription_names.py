"""Names of the queues of subscriptions that outlive their connection, in every protocol.

Owns how such a name is made of a client id and what the client calls its subscription, and which
names clients may not choose. Pure. Called by `subscriptions`, `registry`, the HTTP API, and the
servers of MQTT and AMQP.

    client shop, durable subscription prices      shop.prices
    client shop, durable subscription eu.prices   shop.eu%2Eprices
    client shop.eu, durable subscription prices   shop%2Eeu.prices
    client shop, filter sensors/# of MQTT         shop.sensors.#

Dots and other signs are written as %2E and so on, so no two subscriptions of a protocol have one
name. Where a queue of another kind has that name already, `shop=prices` is the name of the second.
A name that is longer than names may be is one with the SHA-256 of it, `~HASH.` and how it begins.

All users have one namespace of queues, and a client id is no secret: any user could take both names
before the client that needs them. So each subscription has a last name that no other queue has,
`~HASH.shop.prices`, with a hash of its user as well. No client may choose a name that begins with a
tilde, so that one is free, and the client finds it again whatever becomes of the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Sequence
from typing import Final

from vespiary_broker.engine.names import InvalidName
from vespiary_spec.limits import ADDRESS_NAME_CHARACTERS_MAX

SHORTENED: Final = "~"
SHARE_PREFIX: Final = "$share."
"""Of the queues of MQTT's shared subscriptions."""
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
    return _hashed(data, name)


def _hashed(data: bytes, name: str) -> str:
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


def last_name(protocol: str, user: str, usual: str) -> str:
    """Return the name of a subscription that nobody else's queue can have.

    Args:
        protocol: Protocol whose own subscription it is (`QueueTraits.protocol`); empty: none's.
        user: Whose it is; empty where the client id says so, as of MQTT's sessions.
        usual: Its usual name.
    """
    return _hashed(json.dumps([protocol, user, usual]).encode(), usual)


def is_last_name(name: str, user: str, other: str) -> bool:
    """Return whether a name is the last one of the durable subscription that has another name.

    Args:
        name: A name.
        user: Whose subscription it is.
        other: One of the other names of today.
    """
    if not name.startswith(SHORTENED) or other.startswith(SHORTENED):
        return False
    return name == last_name("", user, other.replace("=", ".", 1))


def free_name(names: Sequence[str], taken: Container[str]) -> str:
    """Return the first name that no queue has; the last one if all are taken.

    Args:
        names: Those that the queue of a subscription may have, its `last_name` at the end.
        taken: Names of all queues.
    """
    return next((name for name in names if name not in taken), names[-1])


def check_chosen(name: str) -> None:
    """Refuse a name of a queue that a client may not choose.

    Args:
        name: The name.

    Raises:
        InvalidName: The broker has such names for subscriptions.
    """
    for prefix in (SHORTENED, SHARE_PREFIX):
        if name.startswith(prefix):
            raise InvalidName(
                f"the queue {name[:100]} cannot be made: names that begin with {prefix} are for "
                "the queues of subscriptions",
                cure="take another name, or have an administrator make it",
            )


def durable_queue_name(client_id: str, durable_name: str) -> str:
    """Return the usual name of the queue of a durable subscription."""
    return queue_names(client_id, word(durable_name))[0]


def former_durable_queue_name(client_id: str, durable_name: str) -> str:
    """Return the name that the queue of a durable subscription had in earlier versions.

    Other subscriptions, of other clients, had the same one.
    """
    return f"{client_id}.{durable_name}"
