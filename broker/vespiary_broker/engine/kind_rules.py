"""Giving a queue what its kind needs: the rules that keep it up, and the views of its consumers.

Owns the step from a kind (`queue_kinds`) to the objects that act on it. Must never write anything
down. Called by `registry` when a queue comes, or gets other traits; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queue_kinds import QueueKind, kind_of
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.upkeep import upkeeps_of
from vespiary_broker.engine.views import Views
from vespiary_spec.settings import AddressSettings


def set_kind(core: Core, queue: Queue, settings: AddressSettings) -> None:
    """Make a queue the kind that its traits and its address say; what is not concerned stays.

    Args:
        core: The core.
        queue: The queue, open in the core.
        settings: Of its address; no field is None.
    """
    before = queue.kind
    if queue.traits.is_internal and queue.traits.kind:
        # What the broker keeps for itself must not hang on what users set for `#`.
        queue.kind = QueueKind(**{name.replace("-", "_"): v for name, v in queue.traits.kind})
    elif queue.traits.is_internal:
        assert settings.retroactive_message_count is not None
        queue.kind = QueueKind(ring_size=settings.retroactive_message_count, non_destructive=True)
    else:
        queue.kind = kind_of(settings, queue.traits.kind)
    if _rules(queue.kind) != _rules(before):
        queue.upkeeps = upkeeps_of(core, queue.id, queue.kind)
    if queue.kind.non_destructive is (queue.views is None):
        queue.views = Views(core, queue.id) if queue.kind.non_destructive else None
    if queue.examined is not None:
        queue.examined.kind_changed(queue.kind)


def _rules(kind: QueueKind) -> tuple[object, ...]:
    """Return what of a kind its upkeep hangs on."""
    return kind.last_value, kind.last_value_key, kind.ring_size
