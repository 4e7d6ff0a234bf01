"""Addresses and queues as the bindings have them, read back at a start.

Owns what a binding's value means. Must never enter anything into a table: `registry` does that with
what is made here. Called by `registry` and `app`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.ports import Bindings, JsonObject
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import QUEUE_ID_COUNTER, Queue, QueueIds
from vespiary_spec.errors import InvalidSelector
from vespiary_spec.settings import RoutingType

_ADDRESS: Final = "address/"
_QUEUE: Final = "queue/"


def durable_queue_ids(snapshot: Mapping[str, JsonObject]) -> list[int]:
    """Return the numbers of the queues that the bindings know, for the journal's recovery."""
    return sorted(int(key.removeprefix(_QUEUE)) for key in snapshot if key.startswith(_QUEUE))


def bound_addresses(snapshot: Mapping[str, JsonObject]) -> list[str]:
    """Return the names of the addresses that the bindings know, in order."""
    return sorted(key.removeprefix(_ADDRESS) for key in snapshot if key.startswith(_ADDRESS))


def restored_ids(bindings: Bindings, snapshot: Mapping[str, JsonObject]) -> QueueIds:
    """Return the numbers of queues, from behind the last that may have been given out."""
    return QueueIds(bindings, snapshot.get(QUEUE_ID_COUNTER, {"next": 1})["next"])


@contextmanager
def reading(key: str) -> Iterator[None]:
    """Name the binding that is read, if it is not what this version writes.

    Raises:
        ValueError: It is not.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, InvalidSelector) as error:
        raise ValueError(f"binding {key} cannot be understood: {error}") from error


def restored_address(name: str, snapshot: Mapping[str, JsonObject]) -> Address:
    """Return an address that the bindings know.

    Raises:
        ValueError: Its binding is not what this version writes.
    """
    key = f"{_ADDRESS}{name}"
    with reading(key):
        value = snapshot[key]
        kinds = {RoutingType(kind) for kind in value["routing-types"]}
        address = Address(name, kinds, bool(value["auto-created"]), is_bound=True)
        address.is_configured = bool(value.get("configured", False))
        address.is_paused = address.is_pause_kept = bool(value.get("paused", False))
        return address


def restored_queue(queue_id: int, value: JsonObject, address: Address) -> Queue:
    """Return a queue as its binding says it is.

    Raises:
        KeyError: The binding says too little.
        TypeError: A part of it is of another type.
        ValueError: A part of it is out of range.
    """
    queue = Queue(
        queue_id,
        value["name"],
        address,
        RoutingType(value["routing-type"]),
        is_durable=True,
        is_auto_created=bool(value["auto-created"]),
        client_id=value.get("client-id", ""),
        traits=QueueTraits.from_binding(value),
    )
    queue.is_paused = queue.is_pause_kept = bool(value.get("paused", False))
    return queue
