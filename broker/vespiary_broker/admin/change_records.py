"""What the API takes to change queues and addresses that exist.

Owns the bodies. Must never hold logic. Called by `changes`, `routes`, `openapi`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from vespiary_broker.admin import records
from vespiary_broker.admin.kind_records import QueueFields
from vespiary_spec.settings import RoutingType


class QueueChanges(QueueFields, frozen=True):
    """What to change about a queue; what is left out stays.

    Attributes:
        max_consumers: Most consumers at a time; -1 for any number.
        purge_on_no_consumers: Whether it is emptied when its last consumer goes, and takes nothing
            until the next one comes.
        filter_string: Selector that messages have to pass to come in from now on; empty for none.
    """

    filter_string: str | None = None


class AddressChanges(records.Body, frozen=True):
    """What to change about an address.

    Attributes:
        routing_types: Routing types to serve, and no others.
    """

    routing_types: Annotated[tuple[RoutingType, ...], msgspec.Meta(min_length=1)]
