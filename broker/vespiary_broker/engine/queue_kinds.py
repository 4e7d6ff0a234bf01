"""What kind a queue is: its properties, and where it has none the settings of its address.

Owns how the two are put together. What a kind means is told by those who act on it (`rota`,
`examined`). Called by `registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vespiary_spec.model import kebab
from vespiary_spec.queue_kinds import QueueKindProperties
from vespiary_spec.settings import AddressSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKind:
    """What kind a queue is; the defaults are those of an ordinary one.

    Attributes:
        exclusive: Whether one consumer gets everything.
        consumers_before_dispatch: Consumers that the queue waits for.
        delay_before_dispatch: Milliseconds that it waits for them; -1: without end.
        group_rebalance: Whether groups find their consumers anew when one comes.
        group_rebalance_pause_dispatch: Whether that waits for all acknowledgements.
        group_buckets: Fates that groups share; -1: each has its own, 0: there are no groups.
        group_first_key: Header of the first message of a group for its consumer; empty for none.
        last_value: Whether only the latest message of each value of a header stays.
        last_value_key: That header; empty for `_AMQ_LVQ_NAME`.
        ring_size: Messages that may wait, the oldest go; -1: any number.
        non_destructive: Whether consumers see all messages and take none.
    """

    exclusive: bool = False
    consumers_before_dispatch: int = 0
    delay_before_dispatch: int = -1
    group_rebalance: bool = False
    group_rebalance_pause_dispatch: bool = False
    group_buckets: int = -1
    group_first_key: str = ""
    last_value: bool = False
    last_value_key: str = ""
    ring_size: int = -1
    non_destructive: bool = False


ORDINARY: Final = QueueKind()
_NAMES: Final = tuple(QueueKind.__dataclass_fields__)
_DEFAULTS: Final = {
    "exclusive": "default_exclusive_queue",
    "last_value": "default_last_value_queue",
}
"""Settings of addresses that are called otherwise than `default_` and the property."""


KindProperties = tuple[tuple[str, Any], ...]
"""What a queue says of its kind: kebab-case names and values, in the order of `QueueKind`."""


def kind_properties_of(configured: QueueKindProperties) -> KindProperties:
    """Return what a queue of the configuration says of its kind."""
    return kind_properties_in({kebab(name): getattr(configured, name) for name in _NAMES})


def kind_properties_in(values: Mapping[str, Any]) -> KindProperties:
    """Return what values by kebab-case name say of a queue's kind; None says nothing."""
    said = ((kebab(name), values.get(kebab(name))) for name in _NAMES)
    return tuple((name, value) for name, value in said if value is not None)


def merged_kind(properties: KindProperties, changes: KindProperties) -> KindProperties:
    """Return what a queue says of its kind after changes."""
    return kind_properties_in(dict(properties) | dict(changes))


def kind_of(settings: AddressSettings, properties: KindProperties) -> QueueKind:
    """Return what kind a queue is.

    Args:
        settings: Settings of its address; no field is None.
        properties: What it says of itself.
    """
    said = dict(properties)
    values = {}
    for name in _NAMES:
        value = said.get(kebab(name))
        if value is None:
            value = getattr(settings, _DEFAULTS.get(name, f"default_{name}"))
        values[name] = value
    kind = QueueKind(**values)
    return ORDINARY if kind == ORDINARY else kind
