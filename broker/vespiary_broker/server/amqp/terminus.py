"""Sources and targets: what a client writes there, as the engine has it.

Owns the meaning of addresses, capabilities, filters and durability. Pure, but for the registry that
is looked at. Called by `attaching`.

| terminus | meaning |
|---|---|
| capability `queue`, `temporary-queue`; prefix `anycast-prefix` | ANYCAST |
| capability `topic`, `temporary-topic`; prefix `multicast-prefix` | MULTICAST |
| source with durability or `expiry-policy` never, of a topic | durable subscription |
| source with the capability `shared`, of a topic | shared subscription |
| `global` beside that | shared by all containers |
| filter `apache.org:selector-filter:string`, `apache.org:no-local-filter:list` | as they say |
| `distribution-mode` copy | browses: it takes nothing |

Source: AMQP 1.0 (OASIS, 2012) §3.5; what Qpid JMS and the reference system do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vespiary_broker.engine.subscription_names import durable_queue_name
from vespiary_broker.server.amqp.conditions import Condition, Refused
from vespiary_codec.wire.amqp import Source, Target
from vespiary_codec.wire.amqp.values import Described, Symbol, ULong
from vespiary_spec.settings import RoutingType

SELECTOR_CODE: Final = ULong(0x0000_468C_0000_0004)
SELECTOR: Final = "apache.org:selector-filter:string"
NO_LOCAL_CODE: Final = ULong(0x0000_468C_0000_0003)
NO_LOCAL: Final = "apache.org:no-local-filter:list"
COPY: Final = "copy"
_ANYCAST: Final = frozenset({"queue", "temporary-queue"})
_MULTICAST: Final = frozenset({"topic", "temporary-topic"})
_JMS_KINDS: Final = (
    RoutingType.ANYCAST,
    RoutingType.MULTICAST,
    RoutingType.ANYCAST,
    RoutingType.MULTICAST,
)
_NEVER: Final = "never"
ADDRESS_CHARACTERS_MAX: Final = 4096


def kind_of(terminus: Source | Target) -> RoutingType | None:
    """Return the routing type that the capabilities of a terminus ask for; None: they do not."""
    names = set(terminus.capabilities)
    properties = terminus.dynamic_node_properties or {}
    supported = properties.get("supported-dist-modes")
    if names & _MULTICAST:
        return RoutingType.MULTICAST
    if names & _ANYCAST:
        return RoutingType.ANYCAST
    if terminus.dynamic and supported == COPY:
        return RoutingType.MULTICAST
    return None


def jms_kind(number: Any) -> RoutingType | None:
    """Return what `x-opt-jms-dest` says: 0 queue, 1 topic, 2 and 3 temporary ones."""
    is_known = isinstance(number, int) and 0 <= number < len(_JMS_KINDS)
    return _JMS_KINDS[number] if is_known else None


def address_of(terminus: Source | Target) -> str:
    """Return the address of a terminus; empty if it has none.

    Raises:
        Refused: It is no text, or too long.
    """
    address = terminus.address
    if address is None:
        return ""
    if not isinstance(address, str):
        raise Refused(Condition.INVALID_FIELD, "the address of a terminus is no string")
    if len(address) > ADDRESS_CHARACTERS_MAX:
        raise Refused(
            Condition.INVALID_FIELD,
            "the address of a terminus is too long",
            measured=f"{len(address)} characters",
            allowed=f"at most {ADDRESS_CHARACTERS_MAX}",
        )
    return str(address)


def is_durable(source: Source) -> bool:
    """Whether a source is to outlive its link."""
    return source.durable > 0 or source.expiry_policy == _NEVER


def filters_of(source: Source) -> tuple[str, bool, dict[Any, Any] | None]:
    """Return the selector of a source, whether it is no-local, and the filters that are in place.

    Raises:
        Refused: The selector is no string.
    """
    selector, is_no_local = "", False
    kept: dict[Any, Any] = {}
    for name, value in (source.filter or {}).items():
        descriptor = value.descriptor if isinstance(value, Described) else name
        if descriptor in (SELECTOR_CODE, SELECTOR):
            text = value.value if isinstance(value, Described) else value
            if not isinstance(text, str):
                raise Refused(
                    Condition.INVALID_FIELD,
                    "the selector of a source is no string",
                    info={Symbol("invalid-field"): Symbol("filter")},
                )
            selector, kept[name] = str(text).strip(), value
        elif descriptor in (NO_LOCAL_CODE, NO_LOCAL):
            is_no_local, kept[name] = True, value
    return selector, is_no_local, kept or None


def is_global(source: Source) -> bool:
    """Whether a shared subscription is that of all containers."""
    return "global" in source.capabilities


def shared_queue_name(
    container: str,
    link_name: str,
    source: Source,
    name_of: Callable[[str, str], str] = durable_queue_name,
) -> str:
    """Return the name of the queue of a shared subscription.

    Qpid JMS puts `|` and a number behind the subscription's name for one link after the other.

    Args:
        container: The container.
        link_name: Name of the link.
        source: Its source.
        name_of: Returns the name of one that only a container has.
    """
    name = link_name.partition("|")[0]
    made = name if is_global(source) else name_of(container, name)
    if not is_durable(source):
        made += ":shared-volatile"
    return f"{made}:global" if is_global(source) else made
