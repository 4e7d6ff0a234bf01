"""By which id another broker knows one that is drained, and when it is another one."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from vespiary_broker.app.draining import Draining
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import ServerRig


class Idle:
    """Another broker, to which nothing is sent."""

    def __init__(self, target: Any) -> None:
        self.target = target

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def draining(rig: ServerRig, journal_id: str) -> Draining:
    """Return what a start makes of the bindings."""
    return Draining(
        rig.engine,
        rig.cycle,
        rig.journal,  # type: ignore[arg-type]
        None,
        rig.bindings,
        listeners=lambda: (),
        spawn=lambda work: asyncio.get_running_loop().create_task(work),  # type: ignore[arg-type]
        journal_id=journal_id,
        make_client=Idle,  # type: ignore[arg-type]
    )


async def drained(rig: ServerRig, journal_id: str) -> str:
    """Drain what is empty; return the id."""
    own = draining(rig, journal_id)
    await own.start("http://other:8161", "", "")
    await own.stop()
    return own.broker_id


def test_a_broker_keeps_its_id_as_long_as_it_keeps_its_journal():
    async def check() -> None:
        rig = ServerRig()
        first = await drained(rig, "a")
        assert first
        assert draining(rig, "a").broker_id == first
        await draining(rig, "a").cancel()
        assert await drained(rig, "a") == first
        other = await drained(rig, "b")  # whose sequences begin anew
        assert other not in ("", first)
        assert draining(rig, "b").broker_id == other
        await rig.close()

    product_loop.run(check())


def test_an_id_that_an_earlier_version_has_written_goes_on():
    async def check() -> None:
        rig = ServerRig()
        rig.bindings.values["drain"] = {"broker-id": "0123", "cordoned": True}
        assert await drained(rig, "a") == "0123"
        assert await drained(rig, "b") != "0123"
        await rig.close()

    product_loop.run(check())
