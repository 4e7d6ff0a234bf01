"""What the HTTP listener needs of the broker, as a Protocol.

Owns the interface. `app.broker.BrokerApp` has it; tests have a named fake. The states that it
returns are read by attribute into `records`, so that neither side imports the other's classes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from vespiary_broker.engine.address_settings import EffectiveSetting
from vespiary_broker.engine.jms import JmsKind, JmsObject, JmsObjects
from vespiary_broker.engine.logins import Logins
from vespiary_broker.engine.permissions import Permissions
from vespiary_broker.engine.queue_changes import NO_WISHES, QueueWishes
from vespiary_broker.engine.transfers import Origin, Taken
from vespiary_broker.engine.wanted import Wanted
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_broker.store.volumes.report import Report
from vespiary_spec.errors import VespiaryError
from vespiary_spec.settings import Configuration, Divert, RoutingType


class Jms(Protocol):
    """Administration of JMS objects."""

    objects: JmsObjects

    async def create(
        self, kind: JmsKind, name: str, jndi_names: Iterable[str] = (), url: str = ""
    ) -> JmsObject:
        """Make an object, or give it more JNDI names."""

    async def delete(self, kind: JmsKind, name: str, *, is_forced: bool = False) -> int:
        """Delete an object; return how many messages went with it."""


class Naming(Protocol):
    """Changes of queues and addresses that exist."""

    async def pause_queue(self, name: str, *, is_kept: bool) -> object:
        """Give nothing more of a queue to its consumers; return what `records.Queue` has."""

    async def resume_queue(self, name: str) -> object:
        """Go on giving a queue's messages to its consumers; return what `records.Queue` has."""

    async def pause_address(self, name: str, *, is_kept: bool) -> object:
        """Give nothing more of an address' queues; return what `records.Address` has."""

    async def resume_address(self, name: str) -> object:
        """Go on giving the messages of an address; return what `records.Address` has."""

    async def change_queue(self, name: str, wishes: QueueWishes) -> object:
        """Change what is particular about a queue; return what `records.Queue` has."""

    async def change_address(self, name: str, routing_types: set[RoutingType]) -> object:
        """Give an address these routing types and no others."""


class Groups(Protocol):
    """Message groups of queues."""

    def owners(self, name: str, *, start: int, limit: int) -> Sequence[object]:
        """Return what `group_records.GroupOwner` has.

        Args:
            name: Name of the queue.
            start: How many to pass over.
            limit: Most of them.
        """

    def release(self, name: str) -> int:
        """Let all groups of a queue find their consumers anew; return how many had one."""


class Transactions(Protocol):
    """Distributed transactions that are in doubt or were decided."""

    def names(self) -> list[str]:
        """Return their XIDs, sorted."""

    def get(self, name: str) -> object | None:
        """Return what `records.Transaction` has, or None if there is none of that XID."""

    async def decide(self, name: str, *, is_commit: bool) -> object:
        """Commit or roll back a prepared one without its coordinator."""

    async def forget(self, name: str) -> None:
        """Forget what was decided."""


class Streams(Protocol):
    """Queues that are read by ranges; each call returns what `stream_records.Stream` has."""

    def names(self) -> list[str]:
        """Return their names, sorted."""

    def get(self, name: str) -> object | None:
        """Return the state of one, or None if there is none of that name."""

    async def claim(self, name: str, queue: str, owner: str, lease_s: float) -> object:
        """Make one, or claim one that is there."""

    async def head(self, name: str, epoch: int) -> object:
        """Return how far one can be read."""

    async def range(self, name: str, epoch: int, after: int, to: int, max_bytes: int) -> object:
        """Return `blocks`, `messages`, `through` and `gaps`.

        Args:
            name: The stream.
            epoch: That of the caller's claim.
            after: Begin behind this sequence.
            to: The last one.
            max_bytes: Bound of the blocks.
        """

    async def body(
        self, name: str, epoch: int, sequence: int, offset: int, max_bytes: int
    ) -> bytes:
        """Return a piece of a large message's body.

        Args:
            name: The stream.
            epoch: That of the caller's claim.
            sequence: The message.
            offset: First byte.
            max_bytes: Most bytes.
        """

    async def acknowledge(self, name: str, epoch: int, sequence: int) -> object:
        """Acknowledge all up to a sequence."""

    async def remove(self, name: str) -> None:
        """Delete one."""


class Fences(Protocol):
    """Which staged tries of a batch count; each call returns what `fence_records.Fence` has."""

    def names(self) -> list[str]:
        """Return their names, sorted."""

    def get(self, name: str) -> object | None:
        """Return the state of one, or None if there is none of that name."""

    async def decide(
        self, name: str, batch: int, tasks: tuple[tuple[str, int], ...], *, is_last: bool
    ) -> object:
        """Decide on a batch, if nobody has yet.

        Args:
            name: The fence.
            batch: The batch.
            tasks: Names of the tasks that count, and how many branches each has.
            is_last: No other batch comes.
        """

    async def remove(self, name: str) -> None:
        """Delete one."""


class ReadUsers(Protocol):
    """The users file."""

    digest: str
    refused: str

    @property
    def path(self) -> Path:
        """The file."""


class ReloadState(Protocol):
    """What `configuration_records.Configuration` has of the last reload."""

    digests: dict[str, str]
    loaded_at_ms: int
    taken: int
    failed: int
    refused: str
    waits_for_restart: tuple[str, ...]
    kept: tuple[str, ...]


class Reloading(Protocol):
    """Takes what changed without a restart."""

    @property
    def state(self) -> ReloadState:
        """What holds now."""

    @property
    def users(self) -> ReadUsers:
        """The users file."""

    def certificates(self) -> Sequence[object]:
        """Return what `configuration_records.Certificate` has, of all acceptors with TLS."""

    async def reload(self) -> None:
        """Read everything again."""


class Browsing(Protocol):
    """Messages in queues, to be looked at."""

    async def page(
        self,
        name: str,
        *,
        after: int,
        limit: int | None,
        filter_text: str,
        body_bytes: int | None,
        states: frozenset[str] = frozenset(),
        user: str = "",
    ) -> object:
        """Return what `message_records.MessagePage` has, with bytes for bodies.

        Args:
            name: Name of the queue.
            after: Begin behind this sequence.
            limit: Most messages; None: as the settings say.
            filter_text: Selector that they match; empty for all.
            body_bytes: Bytes of each body; None: as the settings say.
            states: Those alone that are in one of these states; none: all of them.
            user: Whose permissions decide what of a wildcard's queue is shown; empty: nobody's.
        """

    async def count(self, name: str, *, after: int, filter_text: str) -> object:
        """Return what `message_records.MessageCount` has.

        Args:
            name: Name of the queue.
            after: Begin behind this sequence.
            filter_text: Selector that they match; empty for all.
        """


class Task(Protocol):
    """Work in the background; has what `task_records.Task` has."""

    failure: VespiaryError | None

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def ended_ms(self) -> int:
        """When it ended; 0 while it runs."""

    async def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, or until some time is over."""


class Tasks(Protocol):
    """Work in the background."""

    def all(self) -> Sequence[Task]:
        """Return those that run and those that ended last, oldest first."""

    def get(self, task_id: int) -> Task | None:
        """Return one; None: there is none of that number."""

    def cancel(self, task: Any) -> None:
        """Have one end soon."""


class Counters(Protocol):
    """Message counters; its calls raise `RemoteProtocolError` where there are none."""

    def queue(self, name: str) -> object | None:
        """Return what `counter_records.MessageCounter` has; None: no such queue."""

    def address(self, name: str) -> object | None:
        """Return what `counter_records.MessageCounter` has; None: no such address."""

    def reset_queue(self, name: str) -> bool:
        """Have a queue's begin anew; False: no such queue."""

    def reset_address(self, name: str) -> bool:
        """Have an address' begin anew; False: no such address."""

    def reset_all(self) -> None:
        """Have all begin anew."""


class MessageActs(Protocol):
    """Acts on messages that wait in queues."""

    def start(self, wanted: Wanted) -> Task:
        """Begin one."""


class Diverts(Protocol):
    """The diverts of the engine."""

    @property
    def names(self) -> list[str]:
        """Names of all diverts, sorted."""

    def get(self, name: str) -> object | None:
        """Return what `divert_records.Divert` has, or None if there is none of that name."""

    async def create(self, wanted: Divert) -> object:
        """Make a divert; one that exists just so is fine."""

    async def delete(self, name: str) -> None:
        """Delete a divert; on return it will not come back."""


class Draining(Protocol):
    """The drain of this broker into another one."""

    broker_id: str

    @property
    def is_cordoned(self) -> bool:
        """Whether no client comes in."""

    def state(self) -> object:
        """Return what `drain_records.Drain` has."""

    async def start(
        self, target: str, user: str, password: str, *, authorities: str, server_name: str
    ) -> object:
        """Let no client in any more, and move everything; return the state."""

    async def cancel(self) -> object:
        """Let clients in again; return the state."""


class Transfers(Protocol):
    """Messages that another broker hands over."""

    async def make_queue(self, binding: dict[str, Any], *, is_durable: bool) -> bool:
        """Make a queue as it is there; return whether it was made."""

    async def take(self, origin: Origin, queue: str, data: bytes) -> Taken:
        """Take a batch of messages."""

    async def take_large(
        self, origin: Origin, queue: str, data: bytes, body: AsyncIterator[bytes]
    ) -> Taken:
        """Take a large message."""


class Broker(Protocol):
    """The broker, from its start on."""

    configuration: Configuration
    data_directory: Path
    report: Report | None

    @property
    def tasks(self) -> Tasks:
        """Work in the background."""

    @property
    def not_ready_reason(self) -> str:
        """Why the broker takes no messages now, as one sentence; empty while it does."""

    @property
    def failed_reason(self) -> str:
        """The sentence of the failure that fenced the journal; empty while it works."""

    @property
    def blocked_reason(self) -> str:
        """Why producers wait for the disk, as one sentence; empty while there is room."""

    @property
    def logins(self) -> Logins | None:
        """Who comes in; None until the journal was read."""

    def count_error(self, kind: str) -> None:
        """Count an error that a client caused, by its kind, once the broker has started."""

    @property
    def passwords(self) -> PasswordChecks:
        """Checks passwords; only once `logins` is there."""

    @property
    def permissions(self) -> Permissions:
        """Who may do what where; only once `logins` is there."""

    async def compile_filter(self, text: str) -> None:
        """Compile the filter of a request, when the event loop has time; empty: there is none.

        Raises:
            InvalidSelector: It is none.
        """

    def check_owner(self, queue: str, user: str) -> None:
        """Refuse a queue that belongs to another user; one that is not there belongs to nobody."""

    @property
    def naming(self) -> Naming:
        """Changes of queues and addresses; only once `logins` is there."""

    @property
    def groups(self) -> Groups:
        """Message groups of queues; only once `logins` is there."""

    @property
    def transactions(self) -> Transactions:
        """Distributed transactions; only once `logins` is there."""

    @property
    def streams(self) -> Streams:
        """Queues that are read by ranges; only once `logins` is there."""

    @property
    def fences(self) -> Fences:
        """Which staged tries of a batch count; only once `logins` is there."""

    @property
    def browsing(self) -> Browsing:
        """Messages in queues; only once `logins` is there."""

    @property
    def counters(self) -> Counters:
        """Message counters; only once `logins` is there."""

    @property
    def reloading(self) -> Reloading:
        """What takes another configuration; only once `logins` is there."""

    @property
    def message_acts(self) -> MessageActs:
        """Acts on messages of queues; only once `logins` is there."""

    @property
    def draining(self) -> Draining:
        """The drain of this broker into another one; only once `logins` is there."""

    @property
    def transfers(self) -> Transfers:
        """Messages that another broker hands over; only once `logins` is there."""

    @property
    def diverts(self) -> Diverts:
        """Diverts; only once `logins` is there."""

    @property
    def jms(self) -> Jms:
        """JMS objects; only once `logins` is there."""

    def statistics(self) -> object:
        """Return what `statistics_records.Statistics` has; only once `logins` is there."""

    def image_statistics(self) -> object:
        """Return what `records.Image` has; only once `logins` is there."""

    def journal_files(self, after_id: int, limit: int) -> Sequence[object]:
        """Return what `records.JournalFile` has, by id; only once `logins` is there.

        Args:
            after_id: Begin behind this file.
            limit: Most of them.
        """

    def queue_names(self) -> list[str]:
        """Return the names of all queues, sorted."""

    def queue(self, name: str) -> object | None:
        """Return what `records.Queue` has, or None if there is no such queue."""

    def address_names(self) -> list[str]:
        """Return the names of all addresses, sorted."""

    def address(self, name: str) -> object | None:
        """Return what `records.Address` has, or None if there is no such address."""

    def address_settings(self, name: str) -> Sequence[EffectiveSetting]:
        """Return the settings that hold for an address, and the match that each is from."""

    def stalls(self, limit: int) -> Sequence[object]:
        """Return what `records.StalledPlace` has of what is not moving, at most `limit` of them."""

    def stall_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many queues, and how many addresses, are not moving, by reason."""

    async def read_oldest(self, names: Iterable[str]) -> None:
        """Find out when the oldest messages of some of these queues came, where a read has to."""

    def has_metrics(self, address: str) -> bool:
        """Return whether an address and its queues have series of their own in the metrics."""

    def address_memory(self, name: str) -> object | None:
        """Return what `memory_records.AddressMemory` has; None for an address without queues."""

    def duplicates(self, name: str, limit: int) -> object:
        """Return what `records.DuplicateIds` has, with at most `limit` ids."""

    async def clear_duplicates(self, name: str) -> int:
        """Forget the duplicate ids of an address; return how many."""

    def connections(self) -> Sequence[object]:
        """Return what `records.Connection` has, of all connections."""

    def close_connection(self, number: int) -> object | None:
        """Close a connection; return what `records.Connection` had, None if there is none."""

    def consumers(self) -> Sequence[object]:
        """Return what `records.Consumer` has, of all consumers."""

    async def create_address(self, name: str, routing_types: set[RoutingType]) -> object:
        """Make an address, or widen it by routing types."""

    async def delete_address(self, name: str) -> None:
        """Delete an address that has no queues; on return it will not come back."""

    async def create_queue(
        self,
        name: str,
        address: str,
        routing_type: RoutingType = RoutingType.ANYCAST,
        *,
        is_durable: bool = True,
        wishes: QueueWishes = NO_WISHES,
    ) -> object:
        """Make a queue, and its address if need be."""

    async def delete_queue(self, name: str, *, is_forced: bool = False) -> int:
        """Delete a queue for good, with everything in it; return how many messages that was."""

    async def purge_queue(self, name: str) -> int:
        """Acknowledge every message that waits in a queue; return how many."""
