"""What kind a queue is, as the API takes and shows it.

Owns the fields; their bounds are those of the settings (`vespiary_spec.queue_kinds`). Must never
hold logic. Called by `records` and `change_records`, which have them as parts of theirs.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from vespiary_broker.admin.journal_records import Body, Record
from vespiary_spec import limits

MaxConsumers = Annotated[int, msgspec.Meta(ge=-1, le=limits.CONSUMERS_MAX)]
_EXCLUSIVE = msgspec.Meta(description="Whether one consumer gets everything.")
_BEFORE = msgspec.Meta(description="Consumers that the queue waits for.")
_DELAY = msgspec.Meta(description="Milliseconds that it waits for them; -1 waits for all.")
_REBALANCE = msgspec.Meta(description="Whether groups find consumers anew when one comes.")
_PAUSE = msgspec.Meta(description="Whether that waits for all acknowledgements.")
_BUCKETS = msgspec.Meta(description="Fates that groups share; -1: none is shared, 0: no groups.")
_FIRST = msgspec.Meta(description="Header on the first message of a group; empty for none.")
_LAST_VALUE = msgspec.Meta(description="Whether only the latest message of each value stays.")
_KEY = msgspec.Meta(description="Header with that value; empty for `_AMQ_LVQ_NAME`.")
_RING = msgspec.Meta(description="Messages that may wait, the oldest go; -1 for any number.")
_AUTO_DELETE = msgspec.Meta(description="Whether it goes by itself when it is not used any more.")
_AUTO_DELAY = "Milliseconds that it has to be without consumers for that."
_AUTO_COUNT = "Messages that it may hold then, which are lost; -1 for any number."
_NON_DESTRUCTIVE = msgspec.Meta(description="Whether consumers see all messages and take none.")


class QueueFields(Body, frozen=True):
    """What a body says of a queue; what is null is left to the settings, or as it is.

    Attributes:
        max_consumers: Most consumers at a time; -1 for any number.
        purge_on_no_consumers: Whether it is emptied when its last consumer goes, and takes nothing
            until the next one comes.
    """

    max_consumers: MaxConsumers | None = None
    purge_on_no_consumers: bool | None = None
    exclusive: Annotated[bool | None, _EXCLUSIVE] = None
    consumers_before_dispatch: Annotated[int | None, _BEFORE] = None
    delay_before_dispatch: Annotated[int | None, _DELAY] = None
    group_rebalance: Annotated[bool | None, _REBALANCE] = None
    group_rebalance_pause_dispatch: Annotated[bool | None, _PAUSE] = None
    group_buckets: Annotated[int | None, _BUCKETS] = None
    group_first_key: Annotated[str | None, _FIRST] = None
    last_value: Annotated[bool | None, _LAST_VALUE] = None
    last_value_key: Annotated[str | None, _KEY] = None
    ring_size: Annotated[int | None, _RING] = None
    non_destructive: Annotated[bool | None, _NON_DESTRUCTIVE] = None
    auto_delete: Annotated[bool | None, _AUTO_DELETE] = None
    auto_delete_delay: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=limits.WHOLE_NUMBER_MAX)] | None,
        msgspec.Meta(description=_AUTO_DELAY),
    ] = None
    auto_delete_message_count: Annotated[
        Annotated[int, msgspec.Meta(ge=-1, le=limits.WHOLE_NUMBER_MAX)] | None,
        msgspec.Meta(description=_AUTO_COUNT),
    ] = None


class QueueKindShown(Record, frozen=True):
    """What kind a queue is, its own properties and the settings of its address together."""

    exclusive: Annotated[bool, _EXCLUSIVE]
    consumers_before_dispatch: Annotated[int, _BEFORE]
    delay_before_dispatch: Annotated[int, _DELAY]
    group_rebalance: Annotated[bool, _REBALANCE]
    group_rebalance_pause_dispatch: Annotated[bool, _PAUSE]
    group_buckets: Annotated[int, _BUCKETS]
    group_first_key: Annotated[str, _FIRST]
    last_value: Annotated[bool, _LAST_VALUE]
    last_value_key: Annotated[str, _KEY]
    ring_size: Annotated[int, _RING]
    non_destructive: Annotated[bool, _NON_DESTRUCTIVE]
    auto_delete: Annotated[bool, _AUTO_DELETE]
    auto_delete_delay: Annotated[int, msgspec.Meta(description=_AUTO_DELAY)]
    auto_delete_message_count: Annotated[int, msgspec.Meta(description=_AUTO_COUNT)]
