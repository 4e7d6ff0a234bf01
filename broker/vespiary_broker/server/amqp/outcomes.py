"""What clients say of messages that they were given: accepted, rejected, released, modified.

Owns the meaning of the outcomes. Must never settle before it is done with what an outcome asks for:
a client that settles last is answered when that is durable. Called by `session`.

| outcome | what becomes of the message |
|---|---|
| accepted | it is acknowledged |
| rejected | a dead letter, with the error in two header lines |
| released | given out again, not counted as delivered |
| modified | likewise; counted with `delivery-failed`; with `undeliverable-here` not to this link |
| none, but settled | what the source says (`default-outcome`); released if it does not |

Source: AMQP 1.0 (OASIS, 2012) §3.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.property_lines import lines_of
from vespiary_broker.server.amqp.conditions import Condition, SessionRefused
from vespiary_broker.server.amqp.exclusion import exclude
from vespiary_broker.server.amqp.restoring import REJECTED
from vespiary_broker.server.amqp.transfers import serial_distance
from vespiary_broker.server.protocol_handler import Work
from vespiary_codec.wire.amqp import (
    SENDER,
    Accepted,
    Disposition,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from vespiary_codec.wire.amqp.values import UInt

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.sending import OutgoingLink
    from vespiary_broker.server.amqp.session import AmqpSession

_TEXT_CHARACTERS_MAX: Final = 500


def settle_outgoing(session: AmqpSession, asked: Disposition) -> Work:
    """Do what a client says of deliveries; what is returned is left to do.

    Raises:
        SessionRefused: It says what nobody can say of a delivery.
    """
    state = asked.state
    if state is None and not asked.settled:
        return None
    if isinstance(state, Received):
        return None
    session.take_over(int(asked.first), int(asked.first if asked.last is None else asked.last))
    if isinstance(state, TransactionalState):
        session.handler.transactions.settle(session, asked, _named(session, asked))
        return None
    if not isinstance(state, Accepted | Rejected | Released | Modified | None):
        raise SessionRefused(
            Condition.INVALID_FIELD, f"{type(state).__name__.lower()} is no outcome of a delivery"
        )
    ids = _named(session, asked)
    done = _settle_all(session, ids, asked)
    if done == len(ids):
        return None
    return _settle_later(session, ids[done:], asked)


def _named(session: AmqpSession, asked: Disposition) -> list[int]:
    """Return the deliveries that a disposition names, of those that are not settled."""
    first = int(asked.first)
    last = first if asked.last is None else int(asked.last)
    unsettled = session.unsettled
    reach = serial_distance(last, first)
    if reach < 0:
        return []
    if reach < len(unsettled):
        every: Iterable[int] = ((first + step) % 2**32 for step in range(reach + 1))
        return [one for one in every if one in unsettled]
    found = [one for one in unsettled if 0 <= serial_distance(one, first) <= reach]
    return sorted(found, key=lambda one: serial_distance(one, first))


def _settle_all(session: AmqpSession, ids: list[int], asked: Disposition) -> int:
    """Settle deliveries in order until there is no room; return how many."""
    done = 0
    try:
        for delivery_id in ids:
            link, sequence = session.unsettled[delivery_id]
            outcome = link.default_outcome if asked.state is None else asked.state
            apply(link, sequence, outcome)
            del session.unsettled[delivery_id]
            link.settled(sequence)
            done += 1
    except NoRoom:
        pass  # the rest follows when there is some
    if done:
        if not asked.settled:
            _answer(session, ids[:done], asked.state)
        session.cycle.touch()
    return done


async def _settle_later(session: AmqpSession, ids: list[int], asked: Disposition) -> None:
    while ids and session.connection.is_open:
        await session.cycle.space(session.connection)
        ids = [one for one in ids if one in session.unsettled]
        ids = ids[_settle_all(session, ids, asked) :]


def _answer(session: AmqpSession, ids: list[int], state: Any) -> None:
    """Settle what a client wants to have settled by its sender, once it is durable."""
    at = 0
    while at < len(ids):
        end = at
        while end + 1 < len(ids) and (ids[end] + 1) % 2**32 == ids[end + 1]:
            end += 1
        session.handler.confirm(
            session.channel,
            Disposition(
                role=SENDER, first=UInt(ids[at]), last=UInt(ids[end]), settled=True, state=state
            ),
        )
        at = end + 1


def apply(link: OutgoingLink, sequence: int, outcome: Any) -> None:
    """Do what an outcome says with a message.

    Args:
        link: The link that holds it.
        sequence: The message.
        outcome: What its client says.

    Raises:
        NoRoom: There is no room for the acknowledgement; nothing was done.
    """
    consumer = link.consumer
    if consumer is None or not consumer.is_open:
        return
    engine, core = link.session.cycle.engine, link.session.cycle.core
    changed = link.session.cycle.annotations
    returns = engine.registry.returns
    place = (consumer.queue.id, sequence)
    if isinstance(outcome, Accepted):
        if consumer.view is None:
            core.acknowledge(consumer.handle, sequence)
        else:
            consumer.view.acknowledge(sequence)
        changed.forget(place)
    elif isinstance(outcome, Rejected):
        returns.reject(consumer, sequence, _why(outcome))
        changed.forget(place)
    elif isinstance(outcome, Modified):
        _modify(link, sequence, outcome)
    else:
        returns.release(consumer, sequence)
    engine.dispatcher.poke(consumer.queue.id)


def _modify(link: OutgoingLink, sequence: int, outcome: Modified) -> None:
    consumer = link.consumer
    assert consumer is not None
    cycle = link.session.cycle
    returns = cycle.engine.registry.returns
    place = (consumer.queue.id, sequence)
    if outcome.message_annotations:
        cycle.annotations.note(place, outcome.message_annotations)
    if outcome.undeliverable_here:
        if consumer.view is not None:
            consumer.view.acknowledge(sequence)
            return
        exclude(cycle.core, cycle.engine.registry.judge, consumer, sequence)
    if outcome.delivery_failed:
        returns.give_back(consumer, sequence)
    else:
        returns.release(consumer, sequence)


def _why(outcome: Rejected) -> bytes:
    """Return header lines that say why a message was rejected."""
    if outcome.error is None:
        return b""
    texts = (str(outcome.error.condition), outcome.error.description or "")
    return lines_of(
        (name, text[:_TEXT_CHARACTERS_MAX].replace("\0", "\ufffd"))
        for name, text in zip(REJECTED, texts, strict=True)
        if text
    )
