"""A STOMP session: what each frame of a client means, for STOMP 1.0, 1.1 and 1.2.

Owns the login, the subscriptions and the transactions of one connection. Must never read or write
sockets, and sees only what the core leaves to Python: plain SENDs and ACKs never come here. Called
by `connection`, one frame after the other; `handle` returns a coroutine when a frame has to wait
(for the bindings, for room in the journal, for a password), and no frame comes before it has ended.

Source: the specifications of STOMP 1.0, 1.1 and 1.2; headers beyond them are the reference system's
(`destination-type`, `subscription-type`, `durable-subscription-name`, …) and ActiveMQ's
(`activemq.*`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.duplicates import HEADER as DUPLICATE_ID
from vespiary_broker.engine.duplicates import ID_BYTES_MAX
from vespiary_broker.engine.logins import Check, Principal
from vespiary_broker.engine.names import Destination, parse_destination, parse_routing_type
from vespiary_broker.engine.publishing import Target, find_target, make_target
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import (
    SubscriptionRequest,
    close_subscription,
    delete_durable_subscription,
    open_subscription,
)
from vespiary_broker.engine.transactions import (
    Acknowledgement,
    Outgoing,
    Transaction,
    Transactions,
    find_duplicate,
    prepare,
    publish,
    stage,
    stage_once,
)
from vespiary_broker.server.branch_frames import BranchFrames
from vespiary_broker.server.large_sending import send_from_memory
from vespiary_codec.wire.stomp import (
    Frame,
    HeartBeats,
    Login,
    Refusal,
    Version,
    canonical_properties,
    connected_frame,
    encode,
    negotiate,
    parse_ack_mode,
    parse_message_id,
    receipt_frame,
)
from vespiary_codec.wire.stomp.escapes import escape
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError
from vespiary_spec.version import VERSION

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.store.large_writer import LargeWriter

Work = Coroutine[Any, Any, None] | None
"""What is left to do for a frame; None when it is done."""

SERVER: Final = f"Vespiary/{VERSION}"
CREDIT_MAX: Final = 1_000_000
SUBSCRIPTIONS_MAX: Final = 10_000
_TAUGHT_MAX: Final = 1000
"""Destinations that a connection is taught; more go the slow way."""
_WINDOW_BYTES_PER_MESSAGE: Final = 1024
_DURABLE_NAMES: Final = (
    "durable-subscription-name",
    "durable-subscriber-name",
    "activemq.subscriptionName",
)
_SUBSCRIPTION_TYPES: Final = ("subscription-type", "destination-type", "routing-type")
_UNSUPPORTED: Final = ("selector", "no-local", "activemq.noLocal", "activemq.exclusive")
_OFF: Final = frozenset({"", "false"})
_MODES: Final = {
    "auto": AckMode.AUTO,
    "client": AckMode.CLIENT,
    "client-individual": AckMode.INDIVIDUAL,
}


class StompSession:
    """One client's session.

    Owner: its connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """

    def __init__(self, connection: Connection, cycle: Cycle, listener: Listener) -> None:
        self.version: Version | None = None
        self.principal: Principal | None = None
        self.client_id = ""
        self.storing: LargeWriter | None = None  # a large body, all of it there, not yet stored
        self.subscriptions: dict[str, Consumer] = {}
        self.transactions = Transactions(cycle.engine.transaction_bytes_max, self.drop_bodies)
        self._connection = connection
        self._cycle = cycle
        self._listener = listener
        self._core = cycle.core
        self._registry = cycle.engine.registry
        self._branches = BranchFrames(self, connection, cycle)
        self._consumers: dict[int, Consumer] = {}
        self._taught = 0
        self._handlers: dict[str, Callable[[Frame], Work]] = {
            "CONNECT": self._connect,
            "STOMP": self._connect,
            "SEND": self._send,
            "SUBSCRIBE": self._subscribe,
            "UNSUBSCRIBE": self._unsubscribe,
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
        consumers = list(self.subscriptions.values())
        self.subscriptions.clear()
        self._consumers.clear()
        if self.storing is not None:
            self.storing.discard()
        self.drop_bodies(self.transactions.large_ids)
        self.transactions = Transactions(self._cycle.engine.transaction_bytes_max, self.drop_bodies)
        self._cycle.engine.branches.closed(self._connection)
        for consumer in consumers:
            self._close_consumer(consumer)
        if consumers:
            self._cycle.touch()

    def _close_consumer(self, consumer: Consumer) -> None:
        queue = consumer.queue
        close_subscription(self._core, self._registry, consumer)
        if queue.consumers:
            self._cycle.engine.dispatcher.poke(queue.id)

    def expire_transactions(self, before_s: float) -> int:
        """Roll back what was begun before a time; return how many, branches not counted."""
        late = self.transactions.expire(before_s)
        return sum(not self._branches.is_branch(name) for name in late)

    def confirm(self, frame: Frame, xa_code: str = "") -> None:
        """Answer the `receipt` header of a frame, if it has one, when all before is durable.

        Args:
            frame: The frame.
            xa_code: Goes into the receipt's header `xa`; empty for none.
        """
        receipt_id = frame.get("receipt")
        if receipt_id is not None:
            self._connection.confirm(self._receipt(receipt_id, xa_code))

    def _receipt(self, receipt_id: str, xa_code: str = "") -> bytes:
        assert self.version is not None
        receipt = receipt_frame(receipt_id)
        if xa_code:
            receipt.headers.append(("xa", xa_code))
        return encode(receipt, self.version)

    async def _when_room(self, action: Callable[[], None]) -> None:
        """Do something that needs room in the journal, as soon as there is some."""
        while self._connection.is_open:
            try:
                action()
            except NoRoom:
                await self._cycle.space()
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
        outcome = logins.begin(answer.login, answer.passcode, self._connection.peer, now_s)
        if isinstance(outcome, Check):
            return self._check_password(answer, outcome)
        self._welcome(answer, outcome)
        return None

    async def _check_password(self, login: Login, check: Check) -> None:
        is_good = await self._cycle.in_thread(check.is_good)
        logins = self._cycle.engine.logins
        principal = logins.finish(check, is_good=is_good, now_s=self._cycle.loop.time())
        if self._connection.is_open:
            self._welcome(login, principal)

    def _welcome(self, login: Login, principal: Principal) -> None:
        limits = self._listener.acceptor.stomp
        self.version = login.version
        self.principal = principal
        self.client_id = login.client_id or ""
        beat_out_s = min(login.send_ms, limits.heart_beat_max) / 1000
        beat_in_s = login.receive_ms * limits.heart_beat_to_connection_ttl_modifier / 1000
        self._connection.logged_in(login.version, beat_out_s, beat_in_s)
        beats = (limits.heart_beat_min, limits.heart_beat_min)
        if not login.send_ms:
            beats = (0, beats[1])
        if not login.receive_ms:
            beats = (beats[0], 0)
        answer = connected_frame(
            login.version, server=SERVER, session=secrets.token_hex(8), heart_beat=beats
        )
        self._connection.write(encode(answer, login.version))

    # --- sending --------------------------------------------------------------------------------

    def _send(self, frame: Frame) -> Work:
        message = self.outgoing(frame)
        if self._is_large(message):
            return send_from_memory(self, self._cycle, frame, message.body)
        transaction = frame.get("transaction")
        if transaction is not None:
            self.add_member(transaction, message)
            self.confirm(frame)
            return None
        target = find_target(self._registry, message.destination)
        if target is None:
            return self._send_waiting(frame, message)
        try:
            self._publish(message, target)
        except NoRoom:
            return self._send_waiting(frame, message)
        self._teach(frame, target)
        self.confirm(frame)
        return None

    def add_member(self, transaction: str, message: Outgoing) -> None:
        """Put a message into a transaction.

        Raises:
            RemoteProtocolError: There is no such transaction, or it cannot hold the message.
        """
        self._branches.check_member(transaction, message)
        self.transactions.add(transaction, message)

    def _is_large(self, message: Outgoing) -> bool:
        """Whether a body that is in memory has to go to a file."""
        large = self._listener.large
        return large is not None and large.is_large(len(message.body), message.size_bytes)

    async def _send_waiting(self, frame: Frame, message: Outgoing) -> None:
        await self.send_later(frame, message)

    async def send_later(self, frame: Frame, message: Outgoing) -> bool:
        """Send once destination and room are there, or do what the policy of a full disk says.

        Returns:
            False if it was not sent: dropped by that policy, or the connection went before.
        """
        registry = self._registry
        while self._connection.is_open:
            target = find_target(registry, message.destination)
            if target is None:
                target = await make_target(registry, message.destination)
            try:
                self._publish(message, target)
            except NoRoom:
                if self._is_dropped(message):
                    self.confirm(frame)
                    return False
                await self._cycle.space()
                continue
            self._teach(frame, target)
            self.confirm(frame)
            return True
        return False

    def _is_dropped(self, message: Outgoing) -> bool:
        """Return whether a message that found no room is dropped; False: its sender waits.

        Raises:
            JournalFull: It is refused.
        """
        full = self._cycle.full_disk
        if full is None or not message.is_persistent:
            return False
        return self._cycle.engine.full_disk.is_dropped(message.destination.address, full)

    def _publish(self, message: Outgoing, target: Target) -> None:
        duplicates = self._cycle.engine.duplicates
        if message.duplicate_id and duplicates.is_on(message.destination.address):
            is_new = stage_once(self._core, self._registry, duplicates, message, target)
            if not is_new and message.large is not None:
                self.drop_bodies([message.large.large_id])
            return
        try:
            publish(self._core, self._registry.large_bodies, message, target)
        except ValueError as error:
            raise LimitExceeded(
                f"the message is too large for the journal: {error}",
                cure="send a smaller one, or raise journal-buffer-size",
            ) from error

    def _teach(self, frame: Frame, target: Target) -> None:
        """Let the core take the next messages to this destination by itself."""
        key = frame.get("destination", "")
        kind = frame.get("destination-type")
        if kind is not None:
            key = f"{key}\0{kind}"
        if (
            target.is_teachable
            and self._taught < _TAUGHT_MAX
            and key.isascii()
            and not any(character in key for character in "\\\r\n")
        ):
            self._taught += 1
            self._core.teach(self._connection.handle, key.encode(), target.route)

    def outgoing(self, frame: Frame) -> Outgoing:
        """Return the message of a SEND frame.

        Raises:
            RemoteProtocolError: A header is wrong.
        """
        kind = frame.get("destination-type")
        routing_type = None if kind is None else parse_routing_type(kind, "destination-type")
        priority = frame.get("priority", "4")
        if priority not in tuple("0123456789"):
            raise RemoteProtocolError(
                "SEND has a wrong priority", measured=ascii(priority[:40]), allowed="0 to 9"
            )
        return Outgoing(
            destination=self._destination(frame, routing_type),
            properties=canonical_properties(frame),
            body=frame.body,
            is_persistent=frame.get("persistent") == "true",
            priority=int(priority),
            duplicate_id=_duplicate_id(frame),
        )

    def _destination(self, frame: Frame, routing_type: Any) -> Destination:
        acceptor = self._listener.acceptor
        return parse_destination(
            frame.get("destination", ""),
            anycast_prefix=acceptor.anycast_prefix,
            multicast_prefix=acceptor.multicast_prefix,
            routing_type=routing_type,
        )

    # --- subscriptions --------------------------------------------------------------------------

    def _subscribe(self, frame: Frame) -> Work:
        name = frame.get("id") or frame.get("destination", "")
        if name in self.subscriptions:
            raise RemoteProtocolError(f"the subscription {name[:100]!a} exists already")
        if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise LimitExceeded(
                "the connection has too many subscriptions",
                measured=len(self.subscriptions) + 1,
                allowed=f"at most {SUBSCRIPTIONS_MAX}",
            )
        for header in _UNSUPPORTED:
            if (frame.get(header) or "").strip().lower() not in _OFF:
                raise RemoteProtocolError(
                    f"this version does not support the header {header} of SUBSCRIBE",
                    cure="leave it out",
                )
        return self._open(frame, self._request(frame, name))

    def _request(self, frame: Frame, name: str) -> SubscriptionRequest:
        assert self.version is not None
        kinds = [(header, frame.get(header)) for header in _SUBSCRIPTION_TYPES]
        routing_type = next((parse_routing_type(k, h) for h, k in kinds if k is not None), None)
        header = frame.get("id")
        return SubscriptionRequest(
            destination=self._destination(frame, routing_type),
            subscription=name,
            header=escape(name if header is None else header, self.version).encode(),
            version=int(self.version.replace(".", "")),
            mode=_MODES[parse_ack_mode(frame)],
            credit=self._credit(frame),
            client_id=self.client_id,
            durable_name=_first(frame, _DURABLE_NAMES),
        )

    def _credit(self, frame: Frame) -> int:
        """Return how many messages may be out unacknowledged."""
        for header, divisor in (
            ("prefetch-count", 1),
            ("activemq.prefetchSize", 1),
            ("consumer-window-size", _WINDOW_BYTES_PER_MESSAGE),
        ):
            text = frame.get(header)
            if text is None:
                continue
            digits = text.strip()
            if digits == "-1":
                return CREDIT_MAX
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
                raise RemoteProtocolError(
                    f"SUBSCRIBE has a wrong {header}",
                    measured=ascii(text[:40]),
                    allowed="a number, or -1 for no limit",
                )
            return max(1, min(int(digits) // divisor, CREDIT_MAX))
        return self._listener.acceptor.stomp.prefetch

    async def _open(self, frame: Frame, request: SubscriptionRequest) -> None:
        consumer = await open_subscription(self._core, self._registry, self._connection, request)
        self.subscriptions[request.subscription] = consumer
        self._consumers[consumer.handle] = consumer
        if not self._connection.is_open:
            self.close()
            return
        self._cycle.engine.dispatcher.poke(consumer.queue.id)
        self.confirm(frame)

    def _unsubscribe(self, frame: Frame) -> Work:
        name = frame.get("id") or frame.get("destination", "")
        durable_name = _first(frame, _DURABLE_NAMES)
        consumer = self.subscriptions.pop(name, None)
        if consumer is None and not durable_name:
            raise RemoteProtocolError(f"there is no subscription {name[:100]!a}")
        if consumer is not None:
            del self._consumers[consumer.handle]
            self._close_consumer(consumer)
        if durable_name:
            delete_durable_subscription(self._registry, self.client_id, durable_name)
            return self._confirm_removed(frame)
        self.confirm(frame)
        return None

    async def _confirm_removed(self, frame: Frame) -> None:
        await self._registry.wait_removed()
        self.confirm(frame)

    # --- acknowledgements -----------------------------------------------------------------------

    def _ack(self, frame: Frame) -> Work:
        text = frame.get("id" if self.version == "1.2" else "message-id", "")
        queue_id, sequence = parse_message_id(text)
        handle = self._core.holder(self._connection.handle, queue_id, sequence)
        consumer = self._consumers.get(handle)
        wanted = frame.get("subscription") if self.version == "1.1" else None
        if consumer is None or wanted not in (None, consumer.subscription):
            raise RemoteProtocolError(
                f"{frame.command} names message {text[:40]!a}, which this connection does not hold",
                cure="acknowledge each message once, on the connection that it came by",
            )
        member = Acknowledgement(consumer, sequence, is_negative=frame.command == "NACK")
        transaction = frame.get("transaction")
        if transaction is not None:
            self._branches.check_member(transaction, member)
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
            self._core.give_back(member.consumer.handle, member.sequence)
            self._cycle.engine.dispatcher.poke(member.consumer.queue.id)
        else:
            self._core.acknowledge(member.consumer.handle, member.sequence)
        self.confirm(frame)

    # --- transactions ---------------------------------------------------------------------------

    def _begin(self, frame: Frame) -> Work:
        if frame.get("xid") is not None:
            self._branches.begin(frame)
            return None
        self.transactions.begin(frame.get("transaction", ""), self._cycle.loop.time())
        self.confirm(frame)
        return None

    def _commit(self, frame: Frame) -> Work:
        if frame.get("xid") is not None:
            return self._branches.commit(frame)
        self._branches.check_local(frame)
        return self._commit_all(frame, self.transactions.take(frame.get("transaction", "")))

    async def _commit_all(self, frame: Frame, transaction: Transaction) -> None:
        is_staged = False
        try:
            is_staged = await self._stage(transaction)
        finally:
            if not is_staged:
                self.drop_bodies(transaction.large_ids)
        if is_staged:
            for member in transaction.acknowledgements:
                self._cycle.engine.dispatcher.poke(member.consumer.queue.id)
            self.confirm(frame)

    async def _stage(self, transaction: Transaction) -> bool:
        """Stage a transaction when there is room; False: the connection went before."""
        while self._connection.is_open:
            await prepare(self._registry, transaction)
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
                kept = [send for send in transaction.sends if not self._is_dropped(send)]
                if len(kept) == len(transaction.sends):
                    await self._cycle.space()
                bodies = set(transaction.large_ids)
                transaction.sends = kept
                self.drop_bodies(sorted(bodies.difference(transaction.large_ids)))
                continue
            return True
        return False

    def drop_bodies(self, large_ids: list[int]) -> None:
        """Remove bodies of messages that were never staged."""
        if large_ids and self._cycle.large is not None:
            self._cycle.large.remove(large_ids)

    def _abort(self, frame: Frame) -> Work:
        if frame.get("xid") is not None:
            return self._branches.abort(frame)
        self._branches.check_local(frame)
        self.transactions.abort(frame.get("transaction", ""))
        self.confirm(frame)
        return None

    # --- end ------------------------------------------------------------------------------------

    def _disconnect(self, frame: Frame) -> Work:
        receipt_id = frame.get("receipt")
        self._connection.end(b"" if receipt_id is None else self._receipt(receipt_id))
        return None


def _duplicate_id(frame: Frame) -> bytes:
    """Return the id by which a message that comes again is known; empty for none."""
    text = (frame.get(DUPLICATE_ID) or "").encode()
    if len(text) > ID_BYTES_MAX:
        raise RemoteProtocolError(
            f"SEND has a {DUPLICATE_ID} that is too long",
            measured=f"{len(text)} bytes",
            allowed=f"at most {ID_BYTES_MAX} bytes",
        )
    return text


def _first(frame: Frame, names: tuple[str, ...]) -> str:
    """Return the value of the first of several headers that a frame has, or an empty text."""
    return next((value for name in names if (value := frame.get(name))), "")
