"""Why no queue of an address accepts messages, and what to do about it.

Owns the rules and their sentences, as of now: what was sent is not looked at. Must never count or
log anything: that is `unrouted_messages`. Used by `registry`; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.unrouted_messages import Explanation
from vespiary_spec.settings import RoutingType


def explain_unrouted(name: str, address: Address | None, *, is_diverted: bool) -> Explanation:
    """Return why no queue of an address accepts messages.

    Args:
        name: The address.
        address: It; None: it does not exist any more.
        is_diverted: Whether an exclusive divert takes its messages.
    """
    queues = [] if address is None else list(address.sources())
    showing = f"`vespiary address show {name}` names the queues"
    if is_diverted:
        return Explanation(
            "an exclusive divert sends them to an address without a queue for them",
            "`vespiary divert list` shows where to; create a queue there, or delete the divert",
        )
    if not queues:
        return _without_queues(name, address)
    kinds = {queue.routing_type for queue in queues}
    others = [kind for kind in RoutingType if kind not in kinds]
    filtered = [queue for queue in queues if queue.traits.selector is not None]
    if not others and not filtered:
        return Explanation("none of its queues takes what this sender sends", showing)
    (kind, *_), other = kinds, others[0] if others else None
    only = f"{name} has only {kind} queues"
    sending = f"send them as {kind}"
    if other is not None:
        sending += f", or `vespiary queue create QUEUE --address {name} --routing-type "
        sending += str(other).lower() + "`"
    if len(filtered) < len(queues) and other is not None:
        return Explanation(f"{only}, and they were sent as {other}", f"{sending}; {showing}")
    rejected = f"the filter of {_named(filtered[0].name, len(filtered))} rejected them"
    change = "send what a filter accepts, or create a queue without a filter"
    if other is None or (address is not None and address.routing_types == kinds):
        return Explanation(rejected, f"{change}; {showing}")
    return Explanation(
        f"{rejected}, or they were sent as {other}: {only}", f"{change}; or {sending}; {showing}"
    )


def _named(queue: str, count: int) -> str:
    return f"the queue {queue}" if count == 1 else f"each of {count} queues"


def _without_queues(name: str, address: Address | None) -> Explanation:
    if address is not None and address.routing_types == {RoutingType.ANYCAST}:
        return Explanation("the address has no queues", f"`vespiary queue create {name}`")
    return Explanation(
        "nobody has subscribed to the topic",
        f"subscribe to the topic, or `vespiary queue create {name} --routing-type multicast`",
        is_expected=address is None or RoutingType.ANYCAST not in address.routing_types,
    )
