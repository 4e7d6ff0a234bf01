"""What administrators want a queue to be: made so, or changed while it is in use.

Owns the wishes, their contradictions, and what cannot change under consumers. Must never change
anything itself: the registry does. Called by `app` for the API; owner: the event loop.

What a consumer's place in a queue means hangs on `non-destructive` and on last values: these change
only while nobody consumes. Whoever looks at every message (a ring, last values) needs all of them
in memory's ring; a queue that has pages cannot become such a one. (The reference system changes
last values never, and says nothing when asked to.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from vespiary_broker.engine.automatic_deletion import can_go
from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queue_kinds import KindProperties, QueueKind, kind_of, merged_kind
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_spec.address_checks import check_queue_kind
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.model import Spelling, camel, kebab
from vespiary_spec.settings import AddressSettings
from vespiary_spec.settings import Queue as ConfiguredQueue

_AUTO_DELETION: Final = ("auto_delete", "auto_delete_delay_ms", "auto_delete_message_count")
_TAKEN_OVER: Final = ("max_consumers", "is_purged_when_unused", *_AUTO_DELETION)
_SETTLED: Final = ("last_value", "last_value_key", "non_destructive")
"""What does not change under consumers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWishes:
    """What somebody says of a queue; what is None, or not in `kind`, is left as it is.

    Attributes:
        max_consumers: Most consumers at a time, -1 for any number.
        is_purged_when_unused: Whether it is emptied when its last consumer goes.
        auto_delete: Whether it goes by itself when it is not used any more.
        auto_delete_delay_ms: How long it has to be without consumers for that.
        auto_delete_message_count: Messages that it may hold then, -1 for any number.
        filter_string: Selector that messages have to pass to come in; empty for none.
        kind: Its kind, by kebab-case name, within the bounds of the model.
    """

    max_consumers: int | None = None
    is_purged_when_unused: bool | None = None
    auto_delete: bool | None = None
    auto_delete_delay_ms: int | None = None
    auto_delete_message_count: int | None = None
    filter_string: str | None = None
    kind: KindProperties = ()


NO_WISHES: Final = QueueWishes()


def wished_traits(name: str, wishes: QueueWishes) -> QueueTraits:
    """Return the traits of a queue that is made.

    Args:
        name: Its name, for messages.
        wishes: What it is to be.

    Raises:
        ConfigError: The wishes contradict each other.
        InvalidSelector: The filter is none.
    """
    return _with_wishes(name, QueueTraits(), wishes)


def changed_traits(
    core: Core, queue: Queue, wishes: QueueWishes, settings: AddressSettings
) -> QueueTraits:
    """Return the traits that a queue gets; nothing has changed yet.

    Args:
        core: The core.
        queue: A queue that is there.
        wishes: What to change.
        settings: Of its address; no field is None.

    Raises:
        ConfigError: What the queue would be contradicts itself.
        InvalidSelector: The filter is none.
        RemoteProtocolError: That cannot change now, or not in such a queue.
    """
    if queue.traits.is_internal:
        raise RemoteProtocolError(
            f"the queue {queue.name} is the broker's own",
            cure="change the settings of its address",
        )
    traits = _with_wishes(queue.name, queue.traits, wishes)
    if traits.filter_string != queue.traits.filter_string:
        _check_filter(queue)
    if not can_go(queue) and any(getattr(wishes, name) is not None for name in _AUTO_DELETION):
        raise RemoteProtocolError(
            f"the queue {queue.name} never goes by itself: it is configured, or a subscription",
            cure="take it out of the configuration, or unsubscribe",
        )
    check_kind(core, queue, kind_of(settings, traits.kind))
    return traits


def check_kind(core: Core, queue: Queue, after: QueueKind) -> None:
    """Refuse a kind that a queue cannot become as it is now.

    Args:
        core: The core.
        queue: A queue that is there.
        after: What it is to be.

    Raises:
        RemoteProtocolError: It has consumers, or messages in pages, that stand against it.
    """
    _check_consumers(queue, after)
    _check_pages(core, queue, after)


def differences(kind: QueueKind, wishes: QueueWishes) -> list[str]:
    """Return what of a kind is otherwise than somebody says, as `ringSize: -1`.

    Args:
        kind: What kind a queue is.
        wishes: What it is said to be.
    """
    said = dict(wishes.kind)
    found = []
    for name in QueueKind.__dataclass_fields__:
        value = getattr(kind, name)
        if said.get(kebab(name), value) != value:
            found.append(f"{camel(name)}: {_shown(value)}")
    return found


def _with_wishes(name: str, traits: QueueTraits, wishes: QueueWishes) -> QueueTraits:
    said = {name: getattr(wishes, name) for name in _TAKEN_OVER}
    traits = replace(traits, **{name: own for name, own in said.items() if own is not None})
    if wishes.filter_string is not None:
        traits = replace(traits, selector=compile_filter(wishes.filter_string))
    if wishes.kind:
        kept = traits.kind
        if dict(wishes.kind).get("last-value") is False:  # nobody looks at its header any more
            kept = tuple(pair for pair in kept if pair[0] != "last-value-key")
        traits = replace(traits, kind=merged_kind(kept, wishes.kind))
    kind = {name.replace("-", "_"): value for name, value in traits.kind}
    whole = ConfiguredQueue(name=name, max_consumers=traits.max_consumers, **kind)
    check_queue_kind(whole, f"queues[{name}]", Spelling.CAMEL)
    return traits


def _check_filter(queue: Queue) -> None:
    if queue.client_id or queue.is_temporary:
        raise RemoteProtocolError(
            f"the filter of the queue {queue.name} is the selector of its subscription",
            cure="unsubscribe, and subscribe with another selector",
        )


def _check_consumers(queue: Queue, after: QueueKind) -> None:
    for name in _SETTLED:
        if queue.consumers and getattr(queue.kind, name) != getattr(after, name):
            raise RemoteProtocolError(
                f"the queue {queue.name} has consumers, under whom {camel(name)} cannot change",
                measured=f"{len(queue.consumers)} consumers",
                cure="close them first (`vespiary connection close --queue`)",
            )


def _check_pages(core: Core, queue: Queue, after: QueueKind) -> None:
    if queue.upkeeps or not (after.last_value or after.ring_size >= 0):
        return
    paged = core.queue_statistics(queue.id).paged
    if paged:
        name = "lastValue" if after.last_value else "ringSize"
        raise RemoteProtocolError(
            f"the queue {queue.name} has messages in pages, and with {name} all have to be in "
            "memory",
            measured=f"{paged} messages in pages",
            cure="purge it, or have consumers take what is in pages, first",
        )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
