"""Transactions of one connection: declared and discharged by its coordinators.

Owns what a client did in each of them, and the end. Nothing of it reaches the core before the
discharge, so a lost connection only forgets (`engine.transactions`). Called by `coordinating`,
`receiving` and `outcomes`; owner: the connection.

Acknowledgements count with the commit; what was released, rejected or modified in a transaction is
given back right behind it. What a client has settled in a transaction that is rolled back is given
out again; what it has not settled it keeps.

Source: AMQP 1.0 (OASIS, 2012) part 4.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Outgoing,
    Transaction,
    Transactions,
    find_duplicate,
    prepare,
    stage,
)
from vespiary_broker.server.amqp.conditions import Condition, Refused, SessionRefused
from vespiary_broker.server.amqp.outcomes import apply
from vespiary_broker.server.full_addresses import FullAddresses
from vespiary_broker.server.protocol_handler import sentence_of
from vespiary_codec.wire.amqp import SENDER, Accepted, Disposition, TransactionalState
from vespiary_codec.wire.amqp.values import UInt
from vespiary_spec.errors import VespiaryError, XaError
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.handler import AmqpHandler
    from vespiary_broker.server.amqp.sending import OutgoingLink
    from vespiary_broker.server.amqp.session import AmqpSession


@dataclass(slots=True)
class _Told:
    """What a client said in one transaction about messages that it was given.

    Attributes:
        settled: Those that it has settled: link, message, outcome.
        unsettled: Those that it has not: session, id of the delivery, outcome.
        is_doomed: Whether something of it could not be done, so that it cannot be committed.
    """

    settled: list[tuple[OutgoingLink, int, Any]] = field(default_factory=list)
    unsettled: list[tuple[AmqpSession, int, Any]] = field(default_factory=list)
    is_doomed: bool = False


class TransactionBook:
    """The transactions of one connection.

    Args:
        handler: Of the connection.
    """

    def __init__(self, handler: AmqpHandler) -> None:
        self._handler = handler
        self._cycle = handler.cycle
        self._connection = handler.connection
        self._registry = handler.cycle.engine.registry
        self._full = FullAddresses(handler.connection, handler.cycle)
        self._open = Transactions(
            handler.cycle.engine.transaction_bytes_max, handler.cycle.drop_bodies
        )
        self._told: dict[str, _Told] = {}

    def declare(self) -> bytes:
        """Begin a transaction; return its id.

        Raises:
            LimitExceeded: Too many are open.
        """
        number = secrets.token_bytes(16)
        self._open.begin(number.hex(), self._cycle.loop.time())
        self._told[number.hex()] = _Told()
        return number

    def add(self, number: bytes, message: Outgoing) -> None:
        """Put a message into a transaction.

        Raises:
            SessionRefused: There is no such transaction.
            NotPermitted: The user may not send there; the commit asks again.
            LimitExceeded: It cannot hold the message.
        """
        destination = message.destination
        self._registry.permissions.check(destination.user, Permission.SEND, destination.address)
        self._open.add(self._known(number), message)

    def doom(self, number: bytes) -> None:
        """Have a transaction never be committed: something of it was refused."""
        told = self._told.get(number.hex())
        if told is not None:
            told.is_doomed = True

    def _known(self, number: bytes) -> str:
        name = number.hex()
        if name not in self._told:
            raise SessionRefused(
                Condition.UNKNOWN_TRANSACTION, f"there is no transaction {name[:64]}"
            )
        return name

    def settle(self, session: AmqpSession, asked: Disposition, ids: list[int]) -> None:
        """Take what a client says of messages in a transaction.

        Args:
            session: The session.
            asked: The disposition; its state is a transactional one.
            ids: The deliveries.

        Raises:
            SessionRefused: There is no such transaction.
            LimitExceeded: It cannot hold more.
        """
        state: TransactionalState = asked.state
        name = self._known(state.txn_id)
        told, outcome = self._told[name], state.outcome
        for delivery_id in ids:
            link, sequence = session.unsettled[delivery_id]
            if link.consumer is None or not link.consumer.is_open:
                continue
            if isinstance(outcome, Accepted):
                self._open.add(name, Acknowledgement(link.consumer, sequence))
            if asked.settled:
                told.settled.append((link, sequence, outcome))
                del session.unsettled[delivery_id]
            else:
                told.unsettled.append((session, delivery_id, outcome))

    # --- the end ----------------------------------------------------------------------------------

    def roll_back(self, number: bytes) -> None:
        """End a transaction so that nothing of it counts.

        Raises:
            SessionRefused: There is none.
        """
        name = self._known(number)
        self._open.abort(name)
        self._give_back(self._told.pop(name))

    def _give_back(self, told: _Told) -> None:
        """Have what was settled in a transaction that is void be given out again."""
        returns, dispatcher = self._registry.returns, self._cycle.engine.dispatcher
        for link, sequence, _ in told.settled:
            consumer = link.consumer
            if consumer is not None and consumer.is_open:
                returns.give_back(consumer, sequence)
                dispatcher.poke(consumer.queue.id)
            link.settled(sequence)
        self._cycle.touch()

    async def commit(self, number: bytes) -> bool:
        """Stage a transaction; return whether that was done, False if the connection went.

        Raises:
            SessionRefused: There is no such transaction.
            VespiaryError: It cannot be committed; nothing of it counts.

        Durability: none by itself. What is told after it leaves when all of it is durable.
        """
        name = self._known(number)
        told = self._told.pop(name)
        try:
            transaction = self._open.take(name)
        except XaError:
            self._give_back(told)
            raise
        transaction.claims.release()
        is_staged = False
        try:
            if told.is_doomed:
                raise Refused(
                    Condition.TRANSACTION_ROLLBACK,
                    "a message of the transaction was refused before; nothing was committed",
                )
            is_staged = await self._stage(transaction)
        finally:
            if not is_staged:
                self._cycle.drop_bodies(transaction.large_ids)
                self._give_back(told)
        if is_staged:
            self._end(told)
        return is_staged

    async def _stage(self, transaction: Transaction) -> bool:
        """Stage a transaction when there is room; False: the connection went before."""
        core, duplicates = self._cycle.core, self._cycle.engine.duplicates
        while self._connection.is_open:
            await prepare(self._registry, transaction)
            self._cycle.drop_bodies(await self._full.admit_all(transaction))
            if not self._connection.is_open:
                break
            again = find_duplicate(duplicates, transaction)
            if again is not None:
                await self._cycle.durable()
                raise Refused(
                    Condition.TRANSACTION_ROLLBACK,
                    f"the address {again.destination.address} has seen a duplicate id of the "
                    "transaction before; nothing was committed",
                )
            try:
                stage(core, self._registry, duplicates, transaction)
            except NoRoom:
                if not self._drop_without_room(transaction):
                    await self._cycle.space(self._connection)
                continue
            return True
        return False

    def _drop_without_room(self, transaction: Transaction) -> bool:
        """Take out what `disk-full-policy` drops; return whether that was anything."""
        full = self._cycle.full_disk
        if full is None:
            return False
        policy = self._cycle.engine.full_disk
        kept = [
            send
            for send in transaction.sends
            if not (send.is_persistent and policy.is_dropped(send.destination.address, full))
        ]
        if len(kept) == len(transaction.sends):
            return False
        bodies = set(transaction.large_ids)
        transaction.sends = kept
        self._cycle.drop_bodies(sorted(bodies.difference(transaction.large_ids)))
        return True

    def _end(self, told: _Told) -> None:
        """Settle what a transaction that is staged has settled."""
        for link, sequence, outcome in told.settled:
            if not isinstance(outcome, Accepted):
                apply(link, sequence, outcome)
            elif link.consumer is not None:
                self._cycle.engine.dispatcher.poke(link.consumer.queue.id)
            link.settled(sequence)
        for session, delivery_id, outcome in told.unsettled:
            found = session.unsettled.pop(delivery_id, None)
            if found is None:
                continue
            link, sequence = found
            if not isinstance(outcome, Accepted):
                apply(link, sequence, outcome)
            link.settled(sequence)
            self._handler.confirm(
                session.channel,
                Disposition(role=SENDER, first=UInt(delivery_id), settled=True, state=outcome),
            )
        self._cycle.touch()

    def expire(self, before_s: float) -> int:
        """Roll back what was declared before a time; return how many."""
        late = self._open.expire(before_s)
        for name in late:
            told = self._told.get(name)
            if told is not None:
                self._give_back(told)
                self._told[name] = _Told(is_doomed=True)
        return len(late)

    def forget(self) -> None:
        """Forget all: the connection is gone, and its links give back what they hold."""
        self._cycle.drop_bodies(self._open.large_ids)
        self._open = Transactions(self._cycle.engine.transaction_bytes_max, self._cycle.drop_bodies)
        self._told.clear()


def rollback_of(error: VespiaryError) -> VespiaryError:
    """Return an error as that of a transaction that was not committed."""
    if isinstance(error, Refused | XaError):
        return error
    return Refused(Condition.TRANSACTION_ROLLBACK, sentence_of(error))
