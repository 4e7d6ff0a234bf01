"""How far back message counters reach, as the configuration says it."""

from __future__ import annotations

import asyncio

import pytest

from vespiary_broker.app.counting_messages import CountingMessages
from vespiary_spec.configuration import from_plain
from vespiary_spec.errors import RemoteProtocolError
from vespiary_testkit.engine_rig import Rig
from vespiary_testkit.virtual_time import run_virtual

DAY_MS = 24 * 3_600_000
SETTINGS = {
    "message-counter-enabled": True,
    "message-counter-sample-period": 1000,
    "message-counter-max-day-history": 5,
    "address-settings": {
        "few.#": {"message-counter-history-day-limit": 2},
        "most": {"message-counter-history-day-limit": 9},
    },
}


def test_each_address_has_as_many_days_of_history_as_its_settings_say() -> None:
    configuration = from_plain(SETTINGS)
    rig = Rig(configuration.address_settings)
    now_ms = 20_000 * DAY_MS
    counting = CountingMessages(rig.engine, configuration, lambda: now_ms)

    async def count() -> None:
        nonlocal now_ms
        running = asyncio.create_task(counting.run())
        await asyncio.sleep(0.5)  # between two samples
        for _ in range(8):
            for name in ("few.a", "many", "most"):
                rig.send(f"/queue/{name}", b"x")
            rig.turns()
            await asyncio.sleep(1)
            now_ms += DAY_MS
        running.cancel()

    run_virtual(count())
    for name, days in (("few.a", 2), ("many", 5), ("most", 5)):
        for state in (counting.queue(name), counting.address(name)):
            assert state is not None
            assert (len(state.days), state.added) == (days, 8), name
            assert [day.counts.added for day in state.days] == [1] * days


def test_nothing_is_counted_unless_that_is_wished_for() -> None:
    configuration = from_plain({})
    rig = Rig()
    rig.send("/queue/q", b"x")
    counting = CountingMessages(rig.engine, configuration)
    with pytest.raises(TimeoutError):
        run_virtual(asyncio.wait_for(counting.run(), 3600))
    with pytest.raises(RemoteProtocolError, match="message-counter-enabled: false"):
        counting.queue("q")
