"""Operations of the API on message counters.

Owns the operations. Must never count. Called through `counter_routes`; owner: the event loop.
"""

from __future__ import annotations

from typing import Any

from vespiary_broker.admin import counter_records
from vespiary_broker.admin.handlers import Answer, Api, Call
from vespiary_broker.admin.problems import Refused


async def show_queue_counter(api: Api, call: Call) -> Answer:
    """Show the message counter of a queue, and its history."""
    return _shown(api.broker.counters.queue(call.name), "queue", call.name)


async def reset_queue_counter(api: Api, call: Call) -> Answer:
    """Have the message counter of a queue begin anew, without history."""
    return _reset(api.broker.counters.reset_queue(call.name), "queue", call.name)


async def show_address_counter(api: Api, call: Call) -> Answer:
    """Show the message counter of an address, and its history."""
    return _shown(api.broker.counters.address(call.name), "address", call.name)


async def reset_address_counter(api: Api, call: Call) -> Answer:
    """Have the message counter of an address begin anew, without history."""
    return _reset(api.broker.counters.reset_address(call.name), "address", call.name)


async def reset_all_counters(api: Api, _: Call) -> Answer:
    """Have all message counters begin anew, without history."""
    api.broker.counters.reset_all()
    return Answer(None, 204)


def _shown(state: Any, kind: str, name: str) -> Answer:
    if state is None:
        raise Refused(404, f"There is no {kind} {name[:200]!r}.")
    values = {
        field: getattr(state, field)
        for field in counter_records.MessageCounter.__struct_fields__
        if field != "days"
    }
    days = tuple(
        counter_records.DayCounts(
            date=day.date,
            counts=counter_records.Counts(**day.counts._asdict()),
            hours=tuple(
                counter_records.HourCounts(
                    hour=hour.hour, counts=counter_records.Counts(**hour.counts._asdict())
                )
                for hour in day.hours
            ),
        )
        for day in state.days
    )
    return Answer(counter_records.MessageCounter(days=days, **values))


def _reset(is_known: bool, kind: str, name: str) -> Answer:
    if not is_known:
        raise Refused(404, f"There is no {kind} {name[:200]!r}.")
    return Answer(None, 204)
