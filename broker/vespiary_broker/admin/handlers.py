"""What the API does: one coroutine for each operation, without HTTP.

Owns the way from a call (names, query, body) to records. Must never know headers or sockets; the
table that leads here is `routes`, the shell around it `endpoints`. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from vespiary_broker.admin import records, statistics_records
from vespiary_broker.admin.ports import Broker
from vespiary_broker.admin.problems import Refused, refused, unknown_queue
from vespiary_broker.admin.queue_wishes import other_than, wishes_of
from vespiary_broker.admin.volumes import VolumePage, Volumes
from vespiary_broker.engine.names import check_new_name
from vespiary_broker.engine.subscription_names import check_chosen
from vespiary_broker.store.counters import FLUSH_BOUNDS_US
from vespiary_broker.store.volumes import aio_limits
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.version import VERSION

_STEP: Final = 128
"""States gathered in one go, before messages have their turn again."""

_STALLS_SHOWN: Final = 20
"""Queues and addresses that are not moving, as the broker's record names them."""

_CONVERTED: Final = frozenset(
    (
        *("asked_engine", "durability", "files", "image", "flush_bounds_us", "aio", "retention"),
        *("compaction", "append_us", "write_records", "write_bytes", "ownership"),
    )
)
"""Fields of the journal's record that are not copied as they are."""

R = TypeVar("R", bound=records.Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that was let in.

    Attributes:
        name: Name of the path; empty if the path has none.
        query: Query parameters, converted, with defaults.
        body: The body; None if the operation has none.
        user: Who asks, if rules decide what that user may do and see; empty: an administrator.
    """

    name: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    user: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operation answers with.

    Attributes:
        value: Record for the body, or its text or bytes; None for no body.
        status: HTTP status.
        location: Path of what was made; empty if nothing was.
        headers: Further headers.
    """

    value: object
    status: int = 200
    location: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def shown(state: object, kind: type[R]) -> R:
    """Return a record with the attributes of a state."""
    if isinstance(state, tuple):  # msgspec takes a named tuple for an array
        return kind(**{name: getattr(state, name) for name in kind.__struct_fields__})
    return msgspec.convert(state, kind, from_attributes=True)


def journal_record(broker: Broker) -> records.Journal:
    """Return the state of the journal."""
    statistics: Any = broker.statistics()
    journal = statistics.journal
    aio = _aio(broker)
    values = {
        name: getattr(journal, name)
        for name in records.Journal.__struct_fields__
        if name not in _CONVERTED
    }
    retention, ownership = journal.retention, journal.ownership
    return records.Journal(
        asked_engine=str(broker.configuration.journal_type),
        durability=str(journal.durability),
        files=shown(journal.files, records.Files),
        compaction=shown(journal.compaction, records.Compaction),
        image=shown(broker.image_statistics(), records.Image),
        flush_bounds_us=FLUSH_BOUNDS_US,
        aio=aio,
        retention=None if retention is None else shown(retention, records.Retention),
        ownership=None if ownership is None else shown(ownership, records.Ownership),
        append_us=shown(journal.append_us, records.Histogram),
        write_records=shown(journal.write_records, records.Histogram),
        write_bytes=shown(journal.write_bytes, records.Histogram),
        **values,
    )


def _aio(broker: Broker) -> records.Aio:
    demand = broker.report.answer.aio.demand if broker.report is not None else 0
    numbers = aio_limits.read(demand)
    return records.Aio(max_nr=numbers.maximum, nr=numbers.in_use, demand=demand)


def broker_record(broker: Broker) -> records.Broker:
    """Return the state of the whole broker."""
    raw: Any = broker.statistics()
    statistics = shown(raw, statistics_records.Statistics)
    stalled_queues, stalled_addresses = broker.stall_counts()
    return records.Broker(
        version=VERSION,
        is_ready=statistics.is_ready,
        not_ready_reason=statistics.not_ready_reason,
        journal_failed_reason=broker.failed_reason,
        journal_blocked_reason=raw.journal.blocked_reason or "",
        journal_blocked_producers=statistics.journal_waiters,
        uptime_s=statistics.uptime_s,
        data_directory=str(broker.data_directory),
        engine=raw.journal.engine,
        durability=str(raw.journal.durability),
        listeners=statistics.listeners,
        addresses=len(broker.address_names()),
        queues=len(broker.queue_names()),
        connections_total=statistics.connections_total,
        messages_in=statistics.messages_in,
        messages_out=statistics.messages_out,
        messages_acknowledged=statistics.messages_acknowledged,
        client_errors=statistics.errors,
        logins_refused=statistics.logins_refused,
        messages_dropped=statistics.messages_dropped,
        messages_dropped_address_full=statistics.memory.dropped,
        messages_unmovable=statistics.fates.unmovable,
        messages_unrouted=statistics.messages_unrouted,
        messages_unrouted_by_address=statistics.messages_unrouted_by_address,
        large_messages=statistics.large,
        paging=statistics.paging,
        stalled_queues=stalled_queues,
        stalled_addresses=stalled_addresses,
        stalls=tuple(shown(each, records.StalledPlace) for each in broker.stalls(_STALLS_SHOWN)),
    )


async def queue_records(broker: Broker, names: list[str]) -> list[records.Queue]:
    """Return the states of queues; messages have their turn in between.

    Args:
        broker: The broker.
        names: Names; those that are gone by then are left out.
    """
    found = []
    for index, name in enumerate(names):
        if index % _STEP == _STEP - 1:
            await asyncio.sleep(0)
        state = broker.queue(name)
        if state is not None:
            found.append(shown(state, records.Queue))
    return found


class Api:
    """The operations.

    Attributes:
        broker: The broker.
        space: How full its volumes are.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.space = Volumes(broker)

    # --- looking --------------------------------------------------------------------------------

    async def brokers(self, _: Call) -> Answer:
        """List the brokers that this one knows."""
        return Answer(records.BrokerPage(items=(broker_record(self.broker),)))

    async def volumes(self, _: Call) -> Answer:
        """List the volumes, and how full they are now."""
        return Answer(VolumePage(items=await self.space.records()))

    async def journal(self, _: Call) -> Answer:
        """Show the message journal."""
        return Answer(journal_record(self.broker))

    async def journal_files(self, call: Call) -> Answer:
        """List the files of the message journal, and what keeps each of them."""
        limit = call.query["limit"]
        found = self.broker.journal_files(number(call.query["after"]) or 0, limit + 1)
        items = tuple(shown(each, records.JournalFile) for each in found[:limit])
        following = str(items[-1].id) if len(found) > limit else None
        return Answer(records.JournalFilePage(items=items, next=following))

    async def queues(self, call: Call) -> Answer:
        """List queues."""
        names, following = cut(self.broker.queue_names(), call)
        await self.broker.read_oldest(names)
        items = await queue_records(self.broker, names)
        return Answer(records.QueuePage(items=tuple(items), next=following))

    async def queue(self, call: Call) -> Answer:
        """Show one queue."""
        await self.broker.read_oldest([call.name])
        return Answer(shown(self._queue(call.name), records.Queue))

    async def addresses(self, call: Call) -> Answer:
        """List addresses."""
        names, following = cut(self.broker.address_names(), call)
        items = []
        for index, name in enumerate(names):
            if index % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            state = self.broker.address(name)
            if state is not None:
                items.append(shown(state, records.Address))
        return Answer(records.AddressPage(items=tuple(items), next=following))

    async def address(self, call: Call) -> Answer:
        """Show one address."""
        return Answer(shown(self._address(call.name), records.Address))

    async def address_settings(self, call: Call) -> Answer:
        """Show the settings that hold for an address, and where each is from."""
        self._address(call.name)
        settings = self.broker.address_settings(call.name)
        items = (
            records.EffectiveSetting(
                name=setting.name, value=_shown_value(setting.value), match=setting.match
            )
            for setting in settings
        )
        return Answer(records.EffectiveSettings(items=tuple(items)))

    async def duplicates(self, call: Call) -> Answer:
        """Show the duplicate ids that an address remembers."""
        return Answer(self._duplicates(call.name, call.query["limit"]))

    def _duplicates(self, name: str, limit: int) -> records.DuplicateIds:
        """Return the ids of an address; one that went by itself may still have some."""
        state = shown(self.broker.duplicates(name, limit), records.DuplicateIds)
        if not state.ids:
            self._address(name)
        return state

    async def connections(self, call: Call) -> Answer:
        """List connections."""
        items = [shown(state, records.Connection) for state in self.broker.connections()]
        items.sort(key=lambda item: item.id)
        after = number(call.query["after"])
        if after is not None:
            items = [item for item in items if item.id > after]
        kept = tuple(items[: call.query["limit"]])
        following = str(kept[-1].id) if len(kept) < len(items) else None
        return Answer(records.ConnectionPage(items=kept, next=following))

    async def consumers(self, call: Call) -> Answer:
        """List consumers."""
        items = [shown(state, records.Consumer) for state in self.broker.consumers()]
        queue, after = call.query["queue"], call.query["after"]
        if queue is not None:
            self._queue(queue)
        items.sort(key=lambda item: (item.connection, item.subscription))
        if queue is not None:
            items = [item for item in items if item.queue == queue]
        if after is not None:
            connection, _, subscription = after.partition("/")
            last = (number(connection) or 0, subscription)
            items = [item for item in items if (item.connection, item.subscription) > last]
        kept = tuple(items[: call.query["limit"]])
        is_all = len(kept) == len(items)
        following = None if is_all else f"{kept[-1].connection}/{kept[-1].subscription}"
        return Answer(records.ConsumerPage(items=kept, next=following))

    # --- changing -------------------------------------------------------------------------------

    async def create_address(self, call: Call) -> Answer:
        """Make an address, or widen it by routing types."""
        wanted: records.NewAddress = call.body
        check_name(wanted.name, "address")
        is_new = self.broker.address(wanted.name) is None
        state = await self.broker.create_address(wanted.name, set(wanted.routing_types))
        value = shown(state, records.Address)
        return Answer(value, 201 if is_new else 200, _path("addresses", value.name))

    async def delete_address(self, call: Call) -> Answer:
        """Delete an address that has no queues."""
        self._address(call.name)
        await self.broker.delete_address(call.name)
        return Answer(None, 204)

    async def clear_duplicates(self, call: Call) -> Answer:
        """Forget the duplicate ids of an address."""
        self._duplicates(call.name, 1)
        return Answer(records.Forgotten(ids=await self.broker.clear_duplicates(call.name)))

    async def create_queue(self, call: Call) -> Answer:
        """Make a queue, and its address if need be."""
        wanted: records.NewQueue = call.body
        address = wanted.name if wanted.address is None else wanted.address
        check_name(wanted.name, "queue")
        check_name(address, "address")
        if call.user:
            check_chosen(wanted.name)
        wishes = wishes_of(wanted.name, wanted, filter_string=wanted.filter_string)
        is_new = self.broker.queue(wanted.name) is None
        state: Any = await self.broker.create_queue(
            wanted.name,
            address,
            wanted.routing_type,
            is_durable=wanted.durable,
            wishes=wishes,
        )
        value = shown(state, records.Queue)
        if value.is_durable is not wanted.durable:
            raise Refused(
                409, f"The queue {wanted.name} exists, but with durable: {value.is_durable}."
            )
        if value.filter_string != wanted.filter_string.strip():
            own = repr(value.filter_string[:200]) if value.filter_string else "no filter"
            raise Refused(409, f"The queue {wanted.name} exists, but with {own}.")
        otherwise = other_than(wishes, state)
        if otherwise:
            raise Refused(409, f"The queue {wanted.name} exists, but with {otherwise}.")
        return Answer(value, 201 if is_new else 200, _path("queues", value.name))

    async def delete_queue(self, call: Call) -> Answer:
        """Delete a queue and everything in it."""
        self._queue(call.name)
        count = await self.broker.delete_queue(call.name, is_forced=call.query["force"])
        return Answer(records.Removed(messages=count))

    async def purge_queue(self, call: Call) -> Answer:
        """Remove the messages that wait in a queue; those given out stay."""
        self._queue(call.name)
        return Answer(records.Removed(messages=await self.broker.purge_queue(call.name)))

    def _queue(self, name: str) -> object:
        state = self.broker.queue(name)
        if state is None:
            raise unknown_queue(name, self.broker.queue)
        return state

    def _address(self, name: str) -> object:
        state = self.broker.address(name)
        if state is None:
            raise Refused(404, f"There is no address {name[:200]!r}.")
        return state


Handler = Callable[[Api, Call], Awaitable[Answer]]
"""An operation."""


def cut(names: list[str], call: Call) -> tuple[list[str], str | None]:
    """Return the page of sorted names that a call asks for, and where the next one begins."""
    after, limit = call.query["after"], call.query["limit"]
    start = bisect.bisect_right(names, after) if after is not None else 0
    page = names[start : start + limit]
    return page, page[-1] if start + limit < len(names) else None


def number(text: str | None) -> int | None:
    """Return the number that `after` stands for in lists by number; None if it was left out.

    Raises:
        Refused: It is no number.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(400, f"The query parameter after is not one of this list: {text[:100]!r}.")
    return int(text)


def _shown_value(value: object) -> records.SettingValue:
    """Return the value of a setting as the API shows it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def check_name(name: str, kind: str) -> None:
    """Refuse a name that an address or a queue may not be given.

    Raises:
        Refused: It is no name, or clients would take it for another one.
    """
    try:
        check_new_name(name, kind)
    except RemoteProtocolError as error:
        raise refused(error, 400) from error


def _path(collection: str, name: str) -> str:
    from urllib.parse import quote

    return f"/api/v1/{collection}/{quote(name, safe='')}"
