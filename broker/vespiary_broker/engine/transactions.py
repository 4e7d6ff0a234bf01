"""Transactions of one connection: buffered until COMMIT, then staged as one.

Owns what a client sent inside BEGIN … COMMIT; nothing of it reaches the core before COMMIT, so
ABORT and a lost connection only forget. The bytes that a connection may buffer are bounded.
Called by the server's sessions; owner: the connection.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Final

from vespiary_broker.engine.claims import Claims
from vespiary_broker.engine.core import AckMode, Core, LargeBody, NoRoom, NoSequenceLeft
from vespiary_broker.engine.duplicates import DuplicateIds, member_of
from vespiary_broker.engine.large_bodies import LargeBodies, reference_of
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.open_transaction import aborted_on_failure
from vespiary_broker.engine.original_headers import unrouted_properties
from vespiary_broker.engine.property_lines import is_escaped
from vespiary_broker.engine.publishing import Target, find_target, make_target
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.switching import Verdicts
from vespiary_broker.engine.turn_time import NEXT_TURN
from vespiary_codec.journal.branch import BranchName, encode_branch
from vespiary_codec.journal.duplicate import DuplicateRecord
from vespiary_codec.journal.record import ADD, PLACE, TRANSACTION, RecordType
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError, XaError

OVERHEAD_BYTES: Final = 256
"""Counted for each member beside its bytes, so that a million empty ones are bounded too."""
OPEN_TRANSACTIONS_MAX: Final = 100
PROPERTIES_BYTES_MAX: Final = 2**16 - 1
"""What the length of a record's properties can say."""


_RECORD_BYTES: Final = 128
_BLOCK_PAYLOAD_BYTES: Final = 64 * 1024
_BLOCK_OVERHEAD_BYTES: Final = 8 * 1024


def transaction_bytes(size_bytes: int, records: int) -> int:
    """Return the room in the journal that `Core.begin` asks for.

    Args:
        size_bytes: Sum of the members' properties and bodies.
        records: Upper bound of the number of member places.
    """
    blocks = size_bytes // _BLOCK_PAYLOAD_BYTES + 2
    return size_bytes + (records + 1) * _RECORD_BYTES + blocks * _BLOCK_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message as a client sent it.

    Attributes:
        destination: Where to.
        properties: Its headers in canonical form.
        body: Its body.
        is_persistent: Whether it goes to the journal.
        priority: 0 to 9.
        is_special: Whether Python looks at it before it is given to anybody.
        duplicate_id: Id by which a message that comes again is known; empty for none.
        large: Where the body is, if it is in a file; `body` is the reference then.
        protocol: Of its sender (journal-format.md §3.2).
        verdicts: What filters have said of it (`is_decided`).
        unrouted_verdicts: What those of its dead letter address have said of it as a dead letter.
    """

    destination: Destination
    properties: bytes
    body: bytes
    is_persistent: bool
    priority: int = 4
    is_special: bool = False
    duplicate_id: bytes = b""
    large: LargeBody | None = None
    protocol: int = 1
    verdicts: Verdicts = field(default_factory=dict, compare=False, repr=False)
    unrouted_verdicts: Verdicts = field(default_factory=dict, compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of properties and body."""
        return len(self.properties) + len(self.body) + len(self.duplicate_id)

    @property
    def is_escaped(self) -> bool:
        """Whether the properties contain escapes."""
        return is_escaped(self.properties)


def refer_to(message: Outgoing, body: LargeBody) -> Outgoing:
    """Return a message whose body is in a file."""
    return replace(message, body=reference_of(body), large=body, verdicts={}, unrouted_verdicts={})


def is_decided(message: Outgoing, target: Target, who: Hashable) -> bool:
    """Evaluate the filters that stand in the way of a message, as far as there is time.

    Args:
        message: The message; takes in what they say.
        target: Where it goes.
        who: Who comes again if there was no time.

    Returns:
        Whether `publish` has nothing left to evaluate; False: to be called again in a later turn
        of the loop.
    """
    if not target.dead_letter_address:
        if target.switch is None:
            return True
        if not target.switch.is_decided(message, message.verdicts, who):
            return False
        if target.instead is None:
            return True
        target = target.instead
    if target.switch is None:
        return True
    return target.switch.is_decided(_unrouted(message, target), message.unrouted_verdicts, who)


def _unrouted(message: Outgoing, target: Target) -> Outgoing:
    """Return a message as its dead letter address gets it, since no queue takes it."""
    properties = unrouted_properties(
        message.properties, message.destination.address, target.dead_letter_address
    )
    return replace(message, properties=properties)


def publish(
    core: Core,
    bodies: LargeBodies | None,
    message: Outgoing,
    target: Target,
    *,
    transaction: int = 0,
) -> int:
    """Stage a message; a large body is the core's from then on, or removed if nobody wants it.

    In a transaction the body stays the caller's: `settle_body` is for behind its commit.

    Returns:
        The number of its places.

    Raises:
        NoRoom: No slab or no file; nothing was staged.
        LimitExceeded: A queue has had its highest sequence; nothing was staged.
        ValueError: The record would be too large.
    """
    if not target.dead_letter_address:
        handle = target.route_for(message, message.verdicts)
        if target.is_nowhere(handle) and target.instead is not None:
            target = target.instead
    if target.dead_letter_address:
        message = _unrouted(message, target)
        handle = target.route_for(message, message.unrouted_verdicts)
    try:
        places = core.publish(
            handle,
            message.properties,
            message.body,
            persistent=message.is_persistent,
            protocol=message.protocol,
            priority=message.priority,
            escaped=message.is_escaped,
            large=message.large is not None,
            special=message.is_special,
            transaction=transaction,
        )
    except NoSequenceLeft as error:
        raise LimitExceeded(f"the message is rejected: {error}") from error
    if not transaction:
        settle_body(bodies, message, places)
    return places


def settle_body(bodies: LargeBodies | None, message: Outgoing, places: int) -> None:
    """Hand the large body of a staged message to the core, or remove it if nobody wants it.

    A transaction that is given up has no message, so its bodies are settled behind its commit: what
    is not committed is its caller's, to be staged again or removed.
    """
    if message.large is None or bodies is None:
        return
    if places:
        bodies.adopt(message.large)
    else:
        bodies.remove([message.large.large_id])


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An acknowledgement of a message that a consumer holds; CLIENT: of all up to it.

    Attributes:
        consumer: The consumer.
        sequence: The message's sequence in the consumer's queue.
        is_negative: Whether it is given back instead (NACK).
    """

    consumer: Consumer
    sequence: int
    is_negative: bool = False


@dataclass(slots=True)
class Transaction:
    """What a client did since BEGIN, in order.

    Attributes:
        sends: Messages to send.
        acknowledgements: Messages to acknowledge or to give back.
        size_bytes: What it counts as.
        begun_s: When, by the loop's clock.
        claims: What it acknowledges; whoever ends the transaction releases them.
    """

    sends: list[Outgoing] = field(default_factory=list)
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    size_bytes: int = 0
    begun_s: float = 0.0
    claims: Claims = field(default_factory=Claims)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was done."""
        return not self.sends and not self.acknowledgements

    def join(self, other: Transaction) -> None:
        """Take over what was done in another one."""
        self.sends += other.sends
        self.acknowledgements += other.acknowledgements
        self.size_bytes += other.size_bytes
        self.claims.join(other.claims)

    @property
    def large_ids(self) -> list[int]:
        """Bodies in files that its messages refer to."""
        return [send.large.large_id for send in self.sends if send.large is not None]


class Transactions:
    """The open transactions of one connection.

    Args:
        size_bytes_max: Bytes that all of them together may buffer.
        drop_bodies: Called with the bodies in files of messages that are forgotten.
    """

    def __init__(
        self, size_bytes_max: int, drop_bodies: Callable[[list[int]], None] = lambda _: None
    ) -> None:
        self._drop_bodies = drop_bodies
        self._open: dict[str, Transaction] = {}
        self._timed_out: dict[str, None] = {}
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0

    def begin(self, name: str, now_s: float = 0.0) -> None:
        """Open a transaction.

        Args:
            name: Its name in the connection.
            now_s: The loop's clock.

        Raises:
            RemoteProtocolError: It is open already.
            LimitExceeded: Too many are.
        """
        if name in self._open:
            raise RemoteProtocolError(f"the transaction {name[:100]!a} has begun already")
        if len(self._open) >= OPEN_TRANSACTIONS_MAX:
            raise LimitExceeded(
                "the connection has too many open transactions",
                measured=len(self._open) + 1,
                allowed=f"at most {OPEN_TRANSACTIONS_MAX}",
            )
        self._open[name] = Transaction(begun_s=now_s)
        self._timed_out.pop(name, None)

    def expire(self, before_s: float) -> list[str]:
        """Roll back what was begun before a time; return the names.

        Their names are remembered, so that what still comes for them is told why.
        """
        late = [name for name, transaction in self._open.items() if transaction.begun_s < before_s]
        for name in late:
            self._forget(self.take(name))
            self._timed_out[name] = None
        while len(self._timed_out) > OPEN_TRANSACTIONS_MAX:
            del self._timed_out[next(iter(self._timed_out))]
        return late

    def abort(self, name: str) -> None:
        """Close a transaction and forget what it holds; one that has timed out is gone already.

        Raises:
            RemoteProtocolError: There is no such transaction.
        """
        if name in self._timed_out:
            del self._timed_out[name]
            return
        self._forget(self.take(name))

    def _forget(self, transaction: Transaction) -> None:
        transaction.claims.release()
        self._drop_bodies(transaction.large_ids)

    def add(self, name: str, member: Outgoing | Acknowledgement) -> None:
        """Put a message or an acknowledgement into a transaction.

        Raises:
            RemoteProtocolError: There is no such transaction.
            LimitExceeded: The connection's transactions hold too many bytes.
        """
        transaction = self._get(name)
        size_bytes = OVERHEAD_BYTES + (member.size_bytes if isinstance(member, Outgoing) else 0)
        if self._size_bytes + size_bytes > self._size_bytes_max:
            raise LimitExceeded(
                "the connection's open transactions hold too much",
                measured=f"{self._size_bytes + size_bytes} bytes",
                allowed=f"at most {self._size_bytes_max} bytes",
                cure="commit more often",
            )
        self._size_bytes += size_bytes
        transaction.size_bytes += size_bytes
        if isinstance(member, Outgoing):
            transaction.sends.append(member)
        else:
            transaction.acknowledgements.append(member)
            transaction.claims.add(member.consumer, member.sequence)

    def take(self, name: str) -> Transaction:
        """Close a transaction and return what it holds, to commit it or to forget it.

        Its claims are the caller's to release.

        Raises:
            RemoteProtocolError: There is no such transaction.
        """
        transaction = self._get(name)
        del self._open[name]
        self._size_bytes -= transaction.size_bytes
        return transaction

    @property
    def large_ids(self) -> list[int]:
        """Bodies in files that messages of open transactions refer to."""
        return [large_id for each in self._open.values() for large_id in each.large_ids]

    def _get(self, name: str) -> Transaction:
        transaction = self._open.get(name)
        if transaction is None and name in self._timed_out:
            raise XaError(
                f"XA_RBTIMEOUT: the transaction {name[:100]!a} was rolled back, because it was open"
                " for longer than transaction-timeout",
                cure="repeat it, in less time",
                xa_code="XA_RBTIMEOUT",
            )
        if transaction is None:
            raise RemoteProtocolError(
                f"there is no transaction {name[:100]!a}", cure="send BEGIN first"
            )
        return transaction


async def prepare(registry: Registry, transaction: Transaction) -> None:
    """Make the addresses and queues that a transaction's messages need, and evaluate filters.

    Raises:
        RemoteProtocolError: One of them does not exist and may not be made.
    """
    for destination in {send.destination for send in transaction.sends}:
        if find_target(registry, destination) is None:
            await make_target(registry, destination)
    for send in transaction.sends:
        while (target := find_target(registry, send.destination)) is not None:
            if is_decided(send, target, id(transaction)):
                break
            await NEXT_TURN


def find_duplicate(duplicates: DuplicateIds, transaction: Transaction) -> Outgoing | None:
    """Return a message of a transaction whose id its address has seen, in or before it.

    Such a transaction must not be committed, and nobody be told so before what is staged is
    durable: its client takes the answer for the proof that the first message is safe.
    """
    own: set[tuple[str, bytes]] = set()
    for send in transaction.sends:
        if not send.duplicate_id or not duplicates.is_on(send.destination.address):
            continue
        key = (send.destination.address, send.duplicate_id)
        if key in own or duplicates.is_seen(*key):
            return send
        own.add(key)
    return None


def stage(
    core: Core, registry: Registry, duplicates: DuplicateIds, transaction: Transaction
) -> None:
    """Stage a transaction's messages and acknowledgements, all or nothing.

    Args:
        core: The core.
        registry: What exists; `prepare` was called.
        duplicates: Ids that were seen; `find_duplicate` found none.
        transaction: The transaction.

    Raises:
        NoRoom: It does not fit into the journal now; nothing was changed.
        LimitExceeded: It will never fit; nothing was changed.
        RemoteProtocolError: A message is not held any more, or a queue was deleted; nothing was
            changed.

    Durability: none by itself. A receipt that is staged after it is released when all of it is
        durable.
    """
    sends, records = _plan(core, registry, transaction)
    _stage(core, registry, duplicates, sends, transaction.acknowledgements, records)


def stage_branch(
    core: Core, registry: Registry, transaction: Transaction, number: int, name: BranchName
) -> int:
    """Stage a transaction's messages and acknowledgements as a prepared branch, all or nothing.

    Args:
        core: The core.
        registry: What exists; `prepare` was called.
        transaction: The transaction; it gives nothing back, and its messages have no duplicate ids.
        number: Id of the branch in the journal, never used before.
        name: What its PREPARE record says of it.

    Returns:
        The block that has to be durable before the branch is prepared.

    Raises:
        NoRoom: As for `stage`.
        LimitExceeded: As for `stage`.
        RemoteProtocolError: As for `stage`.

    Durability: as for `stage`.
    """
    data = encode_branch(name)
    sends, records = _plan(core, registry, transaction)
    size_bytes = len(data) + sum(send.size_bytes for send, _ in sends)
    begin_staging(core, registry, number, size_bytes, records, is_branch=True)
    with aborted_on_failure(core, number):
        placed = _publish(core, registry.large_bodies, sends, number)
        _acknowledge(core, transaction.acknowledgements, number)
        block = core.prepare(number, data)
    _settle(registry.large_bodies, sends, placed)
    _see(transaction.acknowledgements)
    return block


def _plan(
    core: Core, registry: Registry, transaction: Transaction
) -> tuple[list[tuple[Outgoing, Target]], int]:
    """Return where each message goes and how many records there are at most; refuse what cannot."""
    targets = [_target(registry, send.destination) for send in transaction.sends]
    for acknowledgement in transaction.acknowledgements:
        _check_held(core, acknowledgement)
    records = 1 + _most_acknowledged(core, transaction.acknowledgements)
    for send, target in zip(transaction.sends, targets, strict=True):
        places = max(most_places(registry, send.destination), target.places)
        records += places
        check_size(core, send, places)
    return list(zip(transaction.sends, targets, strict=True)), records


def _publish(
    core: Core, bodies: LargeBodies | None, sends: list[tuple[Outgoing, Target]], number: int
) -> list[int]:
    return [publish(core, bodies, send, target, transaction=number) for send, target in sends]


def _settle(
    bodies: LargeBodies | None, sends: list[tuple[Outgoing, Target]], placed: list[int]
) -> None:
    for (send, _), places in zip(sends, placed, strict=True):
        settle_body(bodies, send, places)


def _acknowledge(core: Core, acknowledgements: list[Acknowledgement], number: int) -> None:
    for acknowledgement in acknowledgements:
        consumer, sequence = acknowledgement.consumer, acknowledgement.sequence
        if consumer.view is None and not acknowledgement.is_negative:
            core.acknowledge(consumer.handle, sequence, transaction=number)


def _see(acknowledgements: list[Acknowledgement]) -> None:
    """Apply what takes nothing out of its queue, once the transaction is staged."""
    for acknowledgement in acknowledgements:
        view = acknowledgement.consumer.view
        if view is not None and not acknowledgement.is_negative:
            view.acknowledge(acknowledgement.sequence)


def stage_once(
    core: Core, registry: Registry, duplicates: DuplicateIds, message: Outgoing, target: Target
) -> int | None:
    """Stage a message that has a duplicate id, together with that.

    Returns:
        The number of its places; None if it was seen before, so it was not staged.

    Raises:
        NoRoom: It does not fit into the journal now; nothing was changed.
        LimitExceeded: It is too large for the journal; nothing was changed.

    Durability: none by itself. A receipt that is staged after it is released when the message is
        durable, also where this one was discarded: the first one was staged before.
    """
    address = message.destination.address
    if duplicates.is_seen(address, message.duplicate_id):
        duplicates.discard(address)
        return None
    places = max(most_places(registry, message.destination), target.places)
    check_size(core, message, places)
    (placed,) = _stage(core, registry, duplicates, [(message, target)], [], places + 1)
    return placed


def _stage(
    core: Core,
    registry: Registry,
    duplicates: DuplicateIds,
    sends: list[tuple[Outgoing, Target]],
    acknowledgements: list[Acknowledgement],
    records: int,
) -> list[int]:
    """Stage messages, their ids and acknowledgements as one transaction.

    Returns:
        The number of places of each message.
    """
    number = secrets.randbits(63) + 1
    members = _members(duplicates, [send for send, _ in sends], number)
    size_bytes = sum(send.size_bytes for send, _ in sends)
    size_bytes += sum(len(member[0]) for _, member in members if member is not None)
    begin_staging(core, registry, number, size_bytes, records + len(members))
    with aborted_on_failure(core, number):
        placed = _publish(core, registry.large_bodies, sends, number)
        if 0 in placed:  # what no queue accepted may be sent again, with the same id
            kept = [send for (send, _), places in zip(sends, placed, strict=True) if places]
            members = _members(duplicates, kept, number)
        entered = [(record, _append_member(core, member)) for record, member in members]
        _acknowledge(core, acknowledgements, number)
        core.commit(number)
    _settle(registry.large_bodies, sends, placed)
    duplicates.enter(entered)
    _see(acknowledgements)
    for acknowledgement in acknowledgements:
        if acknowledgement.is_negative:
            registry.returns.give_back(acknowledgement.consumer, acknowledgement.sequence)
    return placed


def _members(
    duplicates: DuplicateIds, sends: list[Outgoing], number: int
) -> list[tuple[DuplicateRecord, tuple[bytes, int] | None]]:
    """Return the ids of messages, with the record of each for the journal; None: it has none."""
    numbered = duplicates.numbered(
        (send.destination.address, send.duplicate_id, send.is_persistent)
        for send in sends
        if send.duplicate_id and duplicates.is_on(send.destination.address)
    )
    return [(record, member_of(record, number) if stays else None) for record, stays in numbered]


def _append_member(core: Core, member: tuple[bytes, int] | None) -> int:
    """Stage a record of ids in the open transaction; return its file, 0 if it is not journalled."""
    if member is None:
        return 0
    body, flags = member
    core.append_record(RecordType.DUPLICATE, body, flags=flags)
    return core.current_file()


def check_size(core: Core, message: Outgoing, places: int) -> None:
    """Refuse what no record can hold, before the core has an open transaction.

    Raises:
        LimitExceeded: It is too large, or has too many bytes of properties.
    """
    if len(message.properties) > PROPERTIES_BYTES_MAX:
        raise LimitExceeded(
            "the headers of the message are too large for the journal",
            measured=f"{len(message.properties)} bytes",
            allowed=f"at most {PROPERTIES_BYTES_MAX} bytes",
            cure="send fewer or shorter ones",
        )
    size_bytes = len(message.properties) + len(message.body) + places * PLACE.size
    size_bytes += ADD.size + TRANSACTION.size
    if size_bytes > core.record_bytes_max:
        raise LimitExceeded(
            "the message is too large for the journal",
            measured=f"{size_bytes} bytes with its properties",
            allowed=f"at most {core.record_bytes_max} bytes",
            cure="send a smaller one, or raise journal-buffer-size",
        )


def _target(registry: Registry, destination: Destination) -> Target:
    target = find_target(registry, destination)
    if target is None:
        raise RemoteProtocolError(
            f"the destination {destination.address} was deleted before the commit",
            cure="repeat the transaction",
        )
    return target


def _check_held(core: Core, acknowledgement: Acknowledgement) -> None:
    consumer = acknowledgement.consumer
    if consumer.view is not None:
        is_held = consumer.view.holds(acknowledgement.sequence)
    else:
        handle, queue_id = consumer.output.handle, consumer.queue.id
        is_held = core.holder(handle, queue_id, acknowledgement.sequence) == consumer.handle
    if not (consumer.is_open and is_held):
        raise RemoteProtocolError(
            f"the message {consumer.queue.id}-{acknowledgement.sequence} of the transaction is not "
            f"held by subscription {consumer.subscription[:100]!a} any more; nothing was committed"
        )


def begin_staging(
    core: Core,
    registry: Registry,
    number: int,
    size_bytes: int,
    records: int,
    *,
    is_branch: bool = False,
) -> None:
    """Open a transaction in the core, or refuse one that would wait for room for ever.

    Raises:
        NoRoom: It does not fit now.
        LimitExceeded: It never will.
    """
    try:
        core.begin(number, size_bytes, records, branch=is_branch)
    except NoRoom:
        needed_bytes = transaction_bytes(size_bytes, records)
        if needed_bytes > registry.transaction_room_bytes:
            raise LimitExceeded(
                f"the transaction is too large for the journal: {records - 1} messages to write "
                "and to acknowledge; nothing was committed",
                measured=f"{needed_bytes} bytes",
                allowed=f"at most {registry.transaction_room_bytes} bytes",
                cure="commit more often, or raise journal-file-size",
            ) from None
        raise


def _most_acknowledged(core: Core, acknowledgements: list[Acknowledgement]) -> int:
    """Return how many messages there are at most behind acknowledgements.

    Cumulative ones of one queue cover no more than all that it has given out, however many they
    are.
    """
    cumulative = {
        each.consumer.queue.id for each in acknowledgements if each.consumer.mode is AckMode.CLIENT
    }
    single = sum(each.consumer.mode is not AckMode.CLIENT for each in acknowledgements)
    return single + sum(max(1, core.queue_statistics(each).delivering) for each in cumulative)


def most_places(registry: Registry, destination: Destination) -> int:
    """Return how many queues a message may get to at most."""
    address = registry.addresses.get(destination.address)
    if address is None or destination.queue is not None:
        return 1
    return max(1, registry.route_of(address, destination.routing_type).places_max)
