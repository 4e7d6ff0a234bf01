"""What kinds of queues there are: order, exclusiveness, groups, last values, rings.

Owns: the settings of a queue's kind, as defaults of an address (`default-…`) and as properties of
one configured queue.
Never: says what a kind means for messages (that is the engine).
Called by: `addresses`, which has them as parts of its Structs.
"""

from typing import Annotated, Any

import msgspec

from vespiary_spec import limits
from vespiary_spec.lifecycle import LifecycleSettings
from vespiary_spec.model import Change, Unit, setting

_KEY_PATTERN = r"^[^\x00-\x20\x7f:\\]*$"
"""Names of headers: no blanks, control characters, colons and backslashes."""

_KEY_CHARACTERS_MAX = 256

_EXCLUSIVE = (
    "One consumer gets all messages of the queue; the others wait until it has gone. The one with "
    "the highest priority is taken, of several the one that came first."
)
_CONSUMERS_BEFORE = (
    "Consumers that must be there before the queue hands out its first message. When the last "
    "consumer has gone, it waits again."
)
_DELAY_BEFORE = (
    "Time that a queue waits for `consumers-before-dispatch` after its first consumer came, before "
    "it begins with fewer. -1 waits for all of them."
)
_GROUP_REBALANCE = "A new consumer makes all groups find their consumers anew."
_GROUP_PAUSE = (
    "Before groups find their consumers anew, the queue waits until everything that was handed out "
    "is acknowledged, so that no group is ever with two consumers. Only with `group-rebalance`."
)
_GROUP_BUCKETS = (
    "Groups share this many fates, by a hash of their ids, which bounds the memory that they take. "
    "-1 keeps each group apart, 0 switches groups off."
)
_GROUP_FIRST_KEY = (
    "Header, with the value `true`, that a message carries when it is the first of its group for "
    "its consumer. Without it there is none."
)

_LAST_VALUE = (
    "Of messages with the same value of `last-value-key` only the latest stays in the queue. An "
    "older one that a consumer holds stays with it, and goes if it comes back."
)
_LAST_VALUE_KEY = "Header whose value a last-value queue looks at."
_RING_SIZE = (
    "Messages that may wait in the queue; when there are more, the oldest go. What consumers hold "
    "does not count. -1 is any number."
)
_NON_DESTRUCTIVE = (
    "Consumers get every message of the queue, from the first one on, and take none: acknowledging "
    "removes nothing. Messages go when they expire, by `ring-size`, last values or a purge."
)


class QueueKindDefaults(
    LifecycleSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Kinds of queues, in the settings of addresses; None takes the next wider match's value."""

    default_exclusive_queue: Annotated[
        bool | None, setting(_EXCLUSIVE, change=Change.RELOAD, default_text="false")
    ] = None
    default_consumers_before_dispatch: Annotated[
        int | None,
        setting(
            _CONSUMERS_BEFORE,
            change=Change.RELOAD,
            minimum=0,
            maximum=limits.CONSUMERS_BEFORE_DISPATCH_MAX,
            default_text="0",
        ),
    ] = None
    default_delay_before_dispatch: Annotated[
        int | None,
        setting(
            _DELAY_BEFORE,
            change=Change.RELOAD,
            unit=Unit.MILLISECONDS,
            minimum=0,
            maximum=limits.DELAY_BEFORE_DISPATCH_MS_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    default_group_rebalance: Annotated[
        bool | None, setting(_GROUP_REBALANCE, change=Change.RELOAD, default_text="false")
    ] = None
    default_group_rebalance_pause_dispatch: Annotated[
        bool | None, setting(_GROUP_PAUSE, change=Change.RELOAD, default_text="false")
    ] = None
    default_group_buckets: Annotated[
        int | None,
        setting(
            _GROUP_BUCKETS,
            change=Change.RELOAD,
            minimum=0,
            maximum=limits.GROUP_BUCKETS_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    default_group_first_key: Annotated[
        str | None,
        setting(
            _GROUP_FIRST_KEY,
            change=Change.RELOAD,
            pattern=_KEY_PATTERN,
            max_length=_KEY_CHARACTERS_MAX,
            default_text="none",
        ),
    ] = None
    default_last_value_queue: Annotated[
        bool | None, setting(_LAST_VALUE, change=Change.RELOAD, default_text="false")
    ] = None
    default_last_value_key: Annotated[
        str | None,
        setting(
            _LAST_VALUE_KEY,
            change=Change.RELOAD,
            pattern=_KEY_PATTERN,
            max_length=_KEY_CHARACTERS_MAX,
            default_text="`_AMQ_LVQ_NAME`",
        ),
    ] = None
    default_ring_size: Annotated[
        int | None,
        setting(
            _RING_SIZE,
            change=Change.RELOAD,
            unit=Unit.MESSAGES,
            minimum=0,
            maximum=limits.RING_SIZE_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    default_non_destructive: Annotated[
        bool | None, setting(_NON_DESTRUCTIVE, change=Change.RELOAD, default_text="false")
    ] = None


KIND_DEFAULTS: dict[str, Any] = {
    "default_exclusive_queue": False,
    "default_consumers_before_dispatch": 0,
    "default_delay_before_dispatch": -1,
    "default_group_rebalance": False,
    "default_group_rebalance_pause_dispatch": False,
    "default_group_buckets": -1,
    "default_group_first_key": "",
    "default_last_value_queue": False,
    "default_last_value_key": "",
    "default_ring_size": -1,
    "default_non_destructive": False,
}
"""What holds when no match says otherwise."""


class QueueKindProperties(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """The kind of one configured queue; None takes the setting of its address."""

    exclusive: Annotated[
        bool | None,
        setting(
            _EXCLUSIVE,
            change=Change.RELOAD,
            default_text="`default-exclusive-queue` of the address",
        ),
    ] = None
    consumers_before_dispatch: Annotated[
        int | None,
        setting(
            _CONSUMERS_BEFORE,
            change=Change.RELOAD,
            minimum=0,
            maximum=limits.CONSUMERS_BEFORE_DISPATCH_MAX,
            default_text="`default-consumers-before-dispatch` of the address",
        ),
    ] = None
    delay_before_dispatch: Annotated[
        int | None,
        setting(
            _DELAY_BEFORE,
            change=Change.RELOAD,
            unit=Unit.MILLISECONDS,
            minimum=0,
            maximum=limits.DELAY_BEFORE_DISPATCH_MS_MAX,
            special=-1,
            has_no_rule=True,
            default_text="`default-delay-before-dispatch` of the address",
        ),
    ] = None
    group_rebalance: Annotated[
        bool | None,
        setting(
            _GROUP_REBALANCE,
            change=Change.RELOAD,
            default_text="`default-group-rebalance` of the address",
        ),
    ] = None
    group_rebalance_pause_dispatch: Annotated[
        bool | None,
        setting(
            _GROUP_PAUSE,
            change=Change.RELOAD,
            default_text="`default-group-rebalance-pause-dispatch` of the address",
        ),
    ] = None
    group_buckets: Annotated[
        int | None,
        setting(
            _GROUP_BUCKETS,
            change=Change.RELOAD,
            minimum=0,
            maximum=limits.GROUP_BUCKETS_MAX,
            special=-1,
            default_text="`default-group-buckets` of the address",
        ),
    ] = None
    group_first_key: Annotated[
        str | None,
        setting(
            _GROUP_FIRST_KEY,
            change=Change.RELOAD,
            pattern=_KEY_PATTERN,
            max_length=_KEY_CHARACTERS_MAX,
            default_text="`default-group-first-key` of the address",
        ),
    ] = None
    last_value: Annotated[
        bool | None,
        setting(
            _LAST_VALUE,
            change=Change.RELOAD,
            default_text="`default-last-value-queue` of the address",
        ),
    ] = None
    last_value_key: Annotated[
        str | None,
        setting(
            _LAST_VALUE_KEY,
            change=Change.RELOAD,
            pattern=_KEY_PATTERN,
            max_length=_KEY_CHARACTERS_MAX,
            default_text="`default-last-value-key` of the address",
        ),
    ] = None
    ring_size: Annotated[
        int | None,
        setting(
            _RING_SIZE,
            change=Change.RELOAD,
            unit=Unit.MESSAGES,
            minimum=0,
            maximum=limits.RING_SIZE_MAX,
            special=-1,
            default_text="`default-ring-size` of the address",
        ),
    ] = None
    non_destructive: Annotated[
        bool | None,
        setting(
            _NON_DESTRUCTIVE,
            change=Change.RELOAD,
            default_text="`default-non-destructive` of the address",
        ),
    ] = None
