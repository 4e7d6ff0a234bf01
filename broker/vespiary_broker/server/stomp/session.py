"""A STOMP session: what each frame of a client means, for STOMP 1.0, 1.1 and 1.2.

Owns the login, the acknowledgements and the transactions of one connection; `sending` has its SEND
frames and `subscribing` its consumers. Must never read or write sockets, and sees only what the
core leaves to Python: plain SENDs and ACKs never come here. Called by `handler`, one frame after
the other; `handle` returns a coroutine when a frame has to wait (for the bindings, for room in the
journal, for a password), and no frame comes before it has ended.

Source: the specifications of STOMP 1.0, 1.1 and 1.2; headers beyond them are the reference system's
(`destination-type`, `subscription-type`, `durable-subscription-name`, …) and ActiveMQ's
(`activemq.*`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.duplicates import HEADER as DUPLICATE_ID
from vespiary_broker.engine.logins import Check, Principal
from vespiary_broker.engine.names import Sender
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Transaction,
    Transactions,
    find_duplicate,
    prepare,
    stage,
)
from vespiary_broker.server.message_sender import MessageSender
from vespiary_broker.server.protocol_handler import Work
from vespiary_broker.server.stomp.branch_frames import BranchFrames
from vespiary_broker.server.stomp.sending import Sending
from vespiary_broker.server.stomp.subscribing import Subscriptions
from vespiary_codec.wire.stomp import (
    Frame,
    HeartBeats,
    Login,
    Refusal,
    Version,
    connected_frame,
    encode,
    negotiate,
    parse_message_id,
    receipt_frame,
)
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.version import VERSION

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.server.stomp.handler import StompHandler
    from vespiary_broker.store.large_writer import LargeWriter

SERVER: Final = f"Vespiary/{VERSION}"


class StompSession:
    """One client's session.

    Owner: its connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
        handler: What it is part of.
    """

    def __init__(
        self, connection: Connection, cycle: Cycle, listener: Listener, handler: StompHandler
    ) -> None:
        self._handler = handler
        self.version: Version | None = None
        self.principal: Principal | None = None
        self._is_counted = False
        self.client_id = ""
        self.sender = Sender()
        self._is_leaving = False
        self.storing: LargeWriter | None = None  # a large body, all of it there, not yet stored
        self.transactions = Transactions(cycle.engine.transaction_bytes_max, cycle.drop_bodies)
        self._connection = connection
        self._cycle = cycle
        self._listener = listener
        self._core = cycle.core
        self.message_sender = MessageSender(connection, cycle, cycle.drop_bodies)
        self.full_addresses = self.message_sender.full_addresses
        self._registry = cycle.engine.registry
        self.branches = BranchFrames(self, connection, cycle)
        self.sending = Sending(self, connection, cycle, listener)
        self._subscriptions = Subscriptions(self, connection, cycle, listener)
        self._handlers: dict[str, Callable[[Frame], Work]] = {
            "CONNECT": self._connect,
            "STOMP": self._connect,
            "SEND": self.sending.send,
            "SUBSCRIBE": self._subscriptions.subscribe,
            "UNSUBSCRIBE": self._subscriptions.unsubscribe,
            "ACK": self._ack,
            "NACK": self._ack,
            "BEGIN": self._begin,
            "COMMIT": self._commit,
            "ABORT": self._abort,
            "DISCONNECT": self._disconnect,
        }

    def handle(self, frame: Frame) -> Work:
        """Do what a frame asks for.

        Args:
            frame: A frame that is well-formed for the session's version and state.

        Returns:
            What is left to do, to be awaited before the next frame; None when all is done.

        Raises:
            RemoteProtocolError: It cannot be done; the connection has to end with an ERROR frame.
        """
        return self._handlers[frame.command](frame)

    @property
    def is_open(self) -> bool:
        """Whether the connection still takes frames."""
        return self._connection.is_open

    def close(self) -> None:
        """Give back everything: held messages to their queues; open transactions are void."""
        if self.storing is not None:
            self.storing.discard()
        self._cycle.drop_bodies(self.transactions.large_ids)
        self.transactions = Transactions(
            self._cycle.engine.transaction_bytes_max, self._cycle.drop_bodies
        )
        self._cycle.engine.branches.closed(self._connection)
        is_orderly = self._is_leaving or self._cycle.is_stopping or bool(self._cycle.cordon)
        self._subscriptions.close_all(counted=not is_orderly)
        if self._is_counted:
            self._is_counted = False
            self._cycle.engine.registry.limits.end_session(self.user)

    def dismantle(self) -> None:
        """Let go of its parts, and of what it is part of: they refer to it."""
        del self._handler, self._handlers, self._subscriptions, self.branches, self.sending

    @property
    def user(self) -> str:
        """Name of the user that it acts for; empty before the login."""
        return self.principal.name if self.principal is not None else ""

    @property
    def subscriptions(self) -> Mapping[str, Consumer]:
        """The consumers by the id that the client gave them."""
        return self._subscriptions.by_name

    def expire_transactions(self, before_s: float) -> int:
        """Roll back what was begun before a time; return how many, branches not counted."""
        late = self.transactions.expire(before_s)
        return sum(not self.branches.is_branch(name) for name in late)

    def confirm(self, frame: Frame, xa_code: str = "", *, is_unrouted: bool = False) -> None:
        """Answer the `receipt` header of a frame, if it has one, when all before is durable.

        Args:
            frame: The frame.
            xa_code: Goes into the receipt's header `xa`; empty for none.
            is_unrouted: Whether it is a message that no queue accepted.
        """
        receipt_id = frame.get("receipt")
        if receipt_id is not None:
            receipt = self._receipt(receipt_id, xa_code, is_unrouted=is_unrouted)
            self._connection.confirm(receipt)

    def _receipt(self, receipt_id: str, xa_code: str = "", *, is_unrouted: bool = False) -> bytes:
        assert self.version is not None
        receipt = receipt_frame(receipt_id, is_unrouted=is_unrouted)
        if xa_code:
            receipt.headers.append(("xa", xa_code))
        return encode(receipt, self.version)

    async def _when_room(self, action: Callable[[], None]) -> None:
        """Do something that needs room in the journal, as soon as there is some."""
        while self._connection.is_open:
            try:
                action()
            except NoRoom:
                await self._cycle.space(self._connection)
            else:
                return

    # --- login ----------------------------------------------------------------------------------

    def _connect(self, frame: Frame) -> Work:
        limits = self._listener.acceptor.stomp
        answer = negotiate(frame, HeartBeats(limits.heart_beat_min, limits.heart_beat_min))
        if isinstance(answer, Refusal):
            self._cycle.count_error("no-common-version")
            self._connection.end(encode(answer.frame, "1.0"))
            return None
        now_s = self._cycle.loop.time()
        logins = self._cycle.engine.logins
        by_certificate = self._connection.certificate_login
        if by_certificate is not None and not answer.login and not answer.passcode:
            self._welcome(answer, by_certificate())
            return None
        outcome = logins.begin(answer.login, answer.passcode, self._connection.peer, now_s)
        if isinstance(outcome, Check):
            return self._check_password(answer, outcome)
        self._welcome(answer, outcome)
        return None

    async def _check_password(self, login: Login, check: Check) -> None:
        is_good = await self._cycle.passwords.is_good(check, lambda: self._connection.is_open)
        logins = self._cycle.engine.logins
        principal = logins.finish(check, is_good=is_good, now_s=self._cycle.loop.time())
        if self._connection.is_open:
            self._welcome(login, principal)

    def _welcome(self, login: Login, principal: Principal) -> None:
        self._cycle.engine.registry.limits.begin_session(principal.name)
        self._is_counted = True
        limits = self._listener.acceptor.stomp
        self.version = login.version
        self.principal = principal
        self.client_id = self.sender.client_id = login.client_id or ""
        beat_out_s = min(login.send_ms, limits.heart_beat_max) / 1000
        beat_in_s = login.receive_ms * limits.heart_beat_to_connection_ttl_modifier / 1000
        self._handler.logged_in(login.version, beat_out_s, beat_in_s)
        beats = (limits.heart_beat_min, limits.heart_beat_min)
        if not login.send_ms:
            beats = (0, beats[1])
        if not login.receive_ms:
            beats = (beats[0], 0)
        answer = connected_frame(
            login.version, server=SERVER, session=secrets.token_hex(8), heart_beat=beats
        )
        self._connection.write(encode(answer, login.version))

    # --- acknowledgements -----------------------------------------------------------------------

    def _ack(self, frame: Frame) -> Work:
        text = frame.get("id" if self.version == "1.2" else "message-id", "")
        queue_id, sequence = parse_message_id(text)
        handle = self._core.holder(self._connection.handle, queue_id, sequence)
        consumer = self._subscriptions.consumer(handle)
        if consumer is None:
            consumer = self._subscriptions.viewer(queue_id, sequence)
        wanted = frame.get("subscription") if self.version == "1.1" else None
        if consumer is None or wanted not in (None, consumer.subscription):
            raise RemoteProtocolError(
                f"{frame.command} names message {text[:40]!a}, which this connection does not hold",
                cure="acknowledge each message once, on the connection that it came by",
            )
        member = Acknowledgement(consumer, sequence, is_negative=frame.command == "NACK")
        transaction = frame.get("transaction")
        if transaction is not None:
            self.branches.check_member(transaction, member)
            self.transactions.add(transaction, member)
            self.confirm(frame)
            return None
        try:
            self._acknowledge(frame, member)
        except NoRoom:
            return self._when_room(lambda: self._acknowledge(frame, member))
        return None

    def _acknowledge(self, frame: Frame, member: Acknowledgement) -> None:
        if member.is_negative:
            self._registry.returns.give_back(member.consumer, member.sequence)
            self._cycle.engine.dispatcher.poke(member.consumer.queue.id)
        elif member.consumer.view is not None:
            member.consumer.view.acknowledge(member.sequence)
            self._cycle.engine.dispatcher.poke(member.consumer.queue.id)
            self._cycle.touch()
        else:
            self._core.acknowledge(member.consumer.handle, member.sequence)
        self.confirm(frame)

    # --- transactions ---------------------------------------------------------------------------

    def _begin(self, frame: Frame) -> Work:
        if frame.get("xid") is not None:
            self.branches.begin(frame)
            return None
        self.transactions.begin(frame.get("transaction", ""), self._cycle.loop.time())
        self.confirm(frame)
        return None

    def _commit(self, frame: Frame) -> Work:
        if frame.get("xid") is not None:
            return self.branches.commit(frame)
        self.branches.check_local(frame)
        return self._commit_all(frame, self.transactions.take(frame.get("transaction", "")))

    async def _commit_all(self, frame: Frame, transaction: Transaction) -> None:
        transaction.claims.release()  # it asks for no more messages
        is_staged = False
        try:
            is_staged = await self._stage(transaction)
        finally:
            if not is_staged:
                self._cycle.drop_bodies(transaction.large_ids)
        if is_staged:
            for member in transaction.acknowledgements:
                self._cycle.engine.dispatcher.poke(member.consumer.queue.id)
            self.confirm(frame)

    async def _stage(self, transaction: Transaction) -> bool:
        """Stage a transaction when there is room; False: the connection went before."""
        while self._connection.is_open:
            await prepare(self._registry, transaction)
            self._cycle.drop_bodies(await self.full_addresses.admit_all(transaction))
            if not self._connection.is_open:
                break
            again = find_duplicate(self._cycle.engine.duplicates, transaction)
            if again is not None:
                await self._cycle.durable()
                raise RemoteProtocolError(
                    f"the address {again.destination.address} has seen a {DUPLICATE_ID} of the "
                    "transaction before; nothing was committed",
                    measured=ascii(again.duplicate_id[:100].decode(errors="replace")),
                    cure="if the transaction was sent again, it was committed the first time",
                )
            try:
                stage(self._core, self._registry, self._cycle.engine.duplicates, transaction)
            except NoRoom:
                if not self.drop_without_room(transaction):
                    await self._cycle.space(self._connection)
                continue
            return True
        return False

    def drop_without_room(self, transaction: Transaction) -> bool:
        """Take out of a transaction for which there is no room what `disk-full-policy` drops.

        Returns:
            Whether anything was taken out; else it waits for room.

        Raises:
            JournalFull: One of its messages is refused, and so all of it.

        Durability: what is dropped is confirmed and lost, as `DROP` asks for.
        """
        kept = [send for send in transaction.sends if not self.message_sender.is_dropped(send)]
        if len(kept) == len(transaction.sends):
            return False
        bodies = set(transaction.large_ids)
        transaction.sends = kept
        self._cycle.drop_bodies(sorted(bodies.difference(transaction.large_ids)))
        return True

    def _abort(self, frame: Frame) -> Work:
        if frame.get("xid") is not None:
            return self.branches.abort(frame)
        self.branches.check_local(frame)
        self.transactions.abort(frame.get("transaction", ""))
        self.confirm(frame)
        return None

    # --- end ------------------------------------------------------------------------------------

    def _disconnect(self, frame: Frame) -> Work:
        receipt_id = frame.get("receipt")
        self._is_leaving = True
        receipt = b"" if receipt_id is None else self._receipt(receipt_id)
        self._connection.end(receipt, is_confirm=True)
        return None
