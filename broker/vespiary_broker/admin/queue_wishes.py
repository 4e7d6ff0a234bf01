"""What a body says of a queue, on its way to the engine.

Owns the way from the fields of `kind_records` to `QueueWishes`, within the bounds of the model and
with its sentences. Called by `handlers` and `changes`.
"""

from __future__ import annotations

from vespiary_broker.admin.kind_records import QueueFields
from vespiary_broker.engine.queue_changes import QueueWishes, differences
from vespiary_broker.engine.queue_kinds import QueueKind, kind_properties_of
from vespiary_spec.conversion import convert
from vespiary_spec.model import Spelling, camel
from vespiary_spec.queue_kinds import QueueKindProperties


def wishes_of(name: str, said: QueueFields, *, filter_string: str | None) -> QueueWishes:
    """Return what a body says of a queue.

    Args:
        name: Name of the queue.
        said: The body.
        filter_string: Its filter; empty for none, None leaves it.

    Raises:
        ConfigError: A value is out of bounds.
    """
    values = {camel(field): getattr(said, field) for field in QueueKind.__dataclass_fields__}
    kind = convert(values, QueueKindProperties, spelling=Spelling.CAMEL, path=f"queues[{name}]")
    return QueueWishes(
        max_consumers=said.max_consumers,
        is_purged_when_unused=said.purge_on_no_consumers,
        auto_delete=said.auto_delete,
        auto_delete_delay_ms=said.auto_delete_delay,
        auto_delete_message_count=said.auto_delete_message_count,
        filter_string=filter_string,
        kind=kind_properties_of(kind),
    )


def other_than(wishes: QueueWishes, state: QueueKind) -> str:
    """Return what a queue that is there has otherwise than a body says; empty for nothing.

    Args:
        wishes: What the body says.
        state: The queue, with all that a body may say.
    """
    found = differences(state, wishes)
    limits = (
        ("max_consumers", wishes.max_consumers),
        ("purge_on_no_consumers", wishes.is_purged_when_unused),
        ("auto_delete", wishes.auto_delete),
        ("auto_delete_delay", wishes.auto_delete_delay_ms),
        ("auto_delete_message_count", wishes.auto_delete_message_count),
    )
    for field, wanted in limits:
        own = getattr(state, field)
        if wanted is not None and wanted != own:
            found.append(f"{camel(field)}: {str(own).lower()}")
    return ", ".join(found)
