"""Routes that change in steps against a model, with messages sent in between.

Acts of clients overlap: each is a task on the product's loop, and a change of routes does one
address a turn. After each message the model says which queues had to get it, and which might while
something changed. At rest each route is as a new one. Runs on both cores; `VESPIARY_ROUTING_WORLDS`
sets the number of worlds. `routing_model` has the rules, `World` the acts and what must hold.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.queue_traits import RETIRED, QueueTraits
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_native.choice import open_core
from vespiary_native.loader import is_wanted
from vespiary_native.twin import TwinCore
from vespiary_spec.diverts import Divert
from vespiary_spec.errors import VespiaryError
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.engine_rig import Rig
from vespiary_testkit.memory_journal import MemoryBindings, MemoryJournal
from vespiary_testkit.routing_model import SELECTORS, Model, ModelQueue, judge
from vespiary_testkit.seeds import seed_for

WORLDS = int(os.environ.get("VESPIARY_ROUTING_WORLDS", "40"))
ACTS, QUEUES_MAX, TURNS_MAX = 200, 20, 3000
PLAIN = [f"{first}.{second}.{third}" for first in "ak" for second in "bc" for third in "de"]
WILD = ["a.#", "*.b.*", "a.b.*", "*.c.#", "k.#", "*.*.d", "t.*"]
TARGETS = ["t.1", "t.2"]
LOST = "lost"
"""Queue and address of what no queue of k.# takes, in half of the worlds."""
KEEPS = {"k.#": AddressSettings(send_to_dla_on_no_route=True, dead_letter_address=LOST)}
M = RoutingType.MULTICAST
DIVERTS = {
    "wide": Divert(name="wide", address="a.#", forwarding_address="t.1"),
    "some": Divert(name="some", address="*.b.*", forwarding_address="t.2", filter_string="n = '1'"),
    "all": Divert(name="all", address="k.c.d", forwarding_address="t.1", exclusive=True),
    "next": Divert(name="next", address="t.1", forwarding_address="t.2"),
}

pytestmark = pytest.mark.ci


# --- the acts -------------------------------------------------------------------------------------


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class SlowBindings(MemoryBindings):
    async def put(self, key: str, value: dict[str, Any]) -> None:
        await turns(len(self.puts) % 4)
        await super().put(key, value)


class World:
    """An engine whose acts overlap, and the model of what they do."""

    def __init__(self, chance: random.Random, core: str) -> None:
        self.chance, self.model = chance, Model()
        self.is_keeping, self.is_diverting = chance.random() < 0.5, chance.random() < 0.5
        self.log: deque[str] = deque(maxlen=40)
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.errors: list[BaseException] = []
        self._number = 0
        make_core = TwinCore if core == "twin" else open_core
        self.rig = Rig(
            KEEPS if self.is_keeping else {},
            bindings=SlowBindings(),
            journal=MemoryJournal(make_core(slabs_max=16, record_bytes_max=490 * 1024)),
            naming=NamingRules(pause=lambda: turns(chance.randrange(1, 5))),
            lock=asyncio.Lock(),
            spawn=lambda work: self._start("background", work),
        )
        self.registry = self.rig.registry
        self.registry._table.step_addresses = 1

    def _start(
        self, what: str, work: Coroutine[Any, Any, Any], ended: Callable[[], None] = lambda: None
    ) -> None:
        """Begin something that takes turns, and have `ended` called behind it."""
        self._number += 1
        name = f"{self._number} {what}"

        def end(task: asyncio.Task[Any]) -> None:
            del self.tasks[name]
            error = None if task.cancelled() else task.exception()
            self.log.append(f"ended: {name} {error or ''}")
            if error is not None and not isinstance(error, VespiaryError):
                self.errors.append(error)
            ended()

        self.log.append(name)
        self.tasks[name] = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(end)

    def make_queue(self) -> None:
        queue = ModelQueue(self._number, self.chance.choice([*WILD * 3, *PLAIN, *TARGETS]))
        if self.chance.random() < 0.6:
            queue.rank = self.chance.randrange(3)
        else:
            queue.selector = self.chance.choice([*SELECTORS])
        name = f"q{self._number}"

        def ended() -> None:
            queue.is_coming = False
            if name not in self.registry.queues:
                self.model.queues.pop(name, None)

        if len(self.model.queues) < QUEUES_MAX:
            self.model.queues[name] = queue
            self._start(f"make {queue}", self._make(name, queue), ended)

    async def _make(self, name: str, queue: ModelQueue) -> None:
        made = await self.registry.create_queue(
            *(name, queue.address, M),
            is_durable=self.chance.random() < 0.7,
            client_id="" if queue.rank is None else "c",
            traits=QueueTraits(rank=queue.rank, selector=compile_filter(queue.selector)),
            is_early=self.chance.random() < 0.7,
        )
        await self.registry.write_queue(made)
        queue.is_confirmed = True

    def _choose_queue(self) -> str | None:
        """Choose a queue that is there; often one that is being made, or may come before it."""
        there = {name: q for name, q in self.model.queues.items() if name in self.registry.queues}
        coming = [name for name, queue in there.items() if queue.is_coming]
        rivals = [name for name, queue in there.items() if queue.rank is not None]
        return self.chance.choice(self.chance.choice([coming, rivals]) or [*there] or [None])

    def drop_queue(self) -> None:
        if (name := self._choose_queue()) is not None:
            self.log.append(f"drop {self.model.queues.pop(name)}")
            self.registry.drop_queue(self.registry.queues[name])

    def change_queue(self) -> None:
        self._start("change", self._change())

    async def _change(self) -> None:
        if (name := self._choose_queue()) is not None:
            queue, real = self.model.queues[name], self.registry.queues[name]
            former = queue.rank
            if queue.rank is None:
                queue.selector = self.chance.choice([*SELECTORS])
            else:
                queue.rank = self.chance.choice([RETIRED, 0, 1, 2])
            self.log.append(f"change {queue}")
            selector = compile_filter(queue.selector)
            traits = replace(real.traits, rank=queue.rank, selector=selector)
            queue.former.append(former)
            try:
                await self.registry.change_traits(real, traits)
            finally:
                queue.former.remove(former)

    def replace_address(self) -> None:
        addresses = self.registry.addresses
        if unused := sorted(name for name, each in addresses.items() if not each.queues):
            name = self.chance.choice(unused)
            self.registry.drop_address(addresses[name])
            self._start(f"replace {name}", self.registry.create_address(name, {M}))

    def change_diverts(self) -> None:
        before, diverts = self.model.diverts[-1], self.registry.diverts
        if len(self.model.diverts) > 1 or not self.is_diverting:
            return
        name = self.chance.choice([*DIVERTS])
        after = {key: divert for key, divert in before.items() if key != name}
        if name not in before:
            after[name] = DIVERTS[name]

        def ended() -> None:
            is_there = diverts.get(name) is not None
            self.model.diverts = [after if is_there == (name in after) else before]

        self.model.diverts = [before, after]
        work = diverts.create(DIVERTS[name]) if name in after else diverts.delete(name)
        self._start(f"diverts {sorted(after)}", work, ended)

    def cancel(self) -> None:
        if names := sorted(name for name in self.tasks if "background" not in name):
            self.log.append(f"cancel: {(name := self.chance.choice(names))}")
            self.tasks[name].cancel()

    # --- what must hold ---------------------------------------------------------------------------

    def send(self) -> None:
        """Send a message, and compare who got it with the model."""
        address = self.chance.choice([*PLAIN, "t.1"])
        if address not in self.registry.addresses:
            return
        headers = {name: self.chance.choice("12") for name in "nm" if self.chance.random() < 0.5}
        before = self._added()
        self.rig.send(f"/topic/{address}", b"x", **headers)
        self.rig.journal.flush()
        got = {name: added - before[name] for name, added in self._added().items()}
        taken = {name for name, times in got.items() if times and name != LOST}
        is_lost = self.is_keeping and address.startswith("k.") and not taken
        assert got == dict.fromkeys(got, 0) | dict.fromkeys(taken, 1) | {LOST: is_lost}, address
        choices = [list(self.model.choices(address, headers, each)) for each in self.model.diverts]
        wrong = [judge(taken, each) for each in choices]
        assert "" in wrong, f"{address} {headers} got to {sorted(taken)}: {wrong}"

    def _added(self) -> dict[str, int]:
        statistics = self.rig.core.queue_statistics
        return {name: statistics(each.id).added for name, each in self.registry.queues.items()}

    async def rest(self) -> None:
        """Let all come to its end; messages and routes are as if all had been made at once."""
        for _ in range(TURNS_MAX):
            await turns(1)
            if not self.tasks:
                break
        assert not self.tasks, "it comes to no end"
        registry = self.registry
        for address in registry.addresses.values():
            for kind, route in address.routes.items():
                reach = registry._table._reach(address, kind)
                counts = registry.switches, registry.unrouted_messages
                fresh = Route(self.rig.core, reach, address.name, *counts)
                assert _shape(route) == _shape(fresh), address.name
                fresh.close()

    async def run(self) -> None:
        await self.registry.create_queue(LOST, LOST, RoutingType.ANYCAST)
        for name in [*PLAIN, *TARGETS]:
            await self.registry.create_address(name, {M})
        weights = {
            self.make_queue: 8, self.drop_queue: 6, self.change_queue: 4, self.replace_address: 3,
            self.change_diverts: 4, self.cancel: 1, self.send: 6,
        }  # fmt: skip
        for act in self.chance.choices([*weights], [*weights.values()], k=ACTS):
            act()
            await turns(self.chance.choice([0, 0, 1, 1, 3]))
            for _ in range(self.chance.randrange(4)):
                self.send()
            if self.chance.random() < 0.05:
                await self.rest()
            if self.errors:
                raise self.errors[0]
        await self.rest()


def _shape(route: Route) -> list[Any]:
    """Return what is the same in two routes that lead to the same queues."""
    switch = route.switch
    if switch is None:
        return [route.places_max]
    return [route.places_max, {*switch._queues}, +switch._selectors, +switch._names]


@pytest.mark.parametrize("core", ["native", "twin"])
def test_each_message_gets_to_its_queues(core: str) -> None:
    if core == "native" and not is_wanted():
        pytest.skip("the native part is switched off")

    async def live(number: int) -> None:
        world = World(random.Random(seed_for(f"routes {number}")), core)
        try:
            await world.run()
        except BaseException as error:
            error.add_note("\n".join([f"in world {number}, after", *world.log]))
            raise

    for number in range(WORLDS if core == "native" else max(WORLDS // 2, 1)):
        product_loop.run(live(number))
