"""What the API says of diverts.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `diverts` and
`routes`.
"""

from __future__ import annotations

from vespiary_broker.admin.records import Body, Name, Record
from vespiary_spec.settings import DivertRoutingType


class Divert(Record, frozen=True):
    """A divert.

    Attributes:
        name: Its name, unique in the broker.
        routing_name: Another name.
        address: Address whose messages it takes; may have wildcards.
        forwarding_address: Address that they go to.
        filter_string: Selector of the messages that it takes; empty for all.
        is_exclusive: Whether what it takes goes nowhere else.
        routing_type: Queues of the forwarding address that it leads to: STRIP, PASS, ANYCAST or
            MULTICAST.
    """

    name: str
    routing_name: str
    address: str
    forwarding_address: str
    filter_string: str
    is_exclusive: bool
    routing_type: str


class DivertPage(Record, frozen=True):
    """Some diverts, by name.

    Attributes:
        items: The diverts.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Divert, ...]
    next: str | None


class NewDivert(Body, frozen=True):
    """A divert to make.

    Attributes:
        name: Its name, unique in the broker.
        address: Address whose messages it takes; may have wildcards.
        forwarding_address: Address that they go to.
        routing_name: Another name; empty for the name.
        filter_string: Selector of the messages that it takes; empty for all.
        exclusive: Whether what it takes goes nowhere else.
        routing_type: STRIP: queues of both kinds. PASS: of the kind that its sender asked for.
            ANYCAST, MULTICAST: of that kind.
    """

    name: Name
    address: Name
    forwarding_address: Name
    routing_name: str = ""
    filter_string: str = ""
    exclusive: bool = False
    routing_type: DivertRoutingType = DivertRoutingType.STRIP
