"""Pages of browsed messages: what they hold, where they end, and that nothing is taken."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from vespiary_broker.app import browsing
from vespiary_broker.app.browsing import BrowsedPage, Browsing
from vespiary_broker.engine.core import Core
from vespiary_broker.engine.users import User
from vespiary_spec.errors import InvalidSelector, RemoteProtocolError
from vespiary_spec.settings import RoutingType, SecuritySettings
from vespiary_testkit import product_loop
from vespiary_testkit.engine_rig import Rig, do


class Slabs:
    """Brings slabs back, for the part of a journal that browsing asks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.asked: list[tuple[int, int]] = []
        self.on_ask = lambda: None

    async def load_slab(self, file_id: int, slab: int) -> bool:
        self.asked.append((file_id, slab))
        self.on_ask()
        return True


def rig_with(count: int, *, persistent: bool = True) -> Rig:
    rig = Rig()
    for number in range(count):
        rig.send("/queue/orders", b"%d" % number, persistent=persistent)
    rig.journal.flush()
    return rig


def page(rig: Rig, name: str = "orders", **asked: object) -> BrowsedPage:
    values: dict[str, object] = {"after": 0, "limit": 100, "filter_text": "", "body_bytes": 100}
    browser = Browsing(rig.engine, Slabs(rig.core))  # type: ignore[arg-type]
    return product_loop.run(browser.page(name, **(values | asked)))  # type: ignore[arg-type]


def bodies(found: BrowsedPage) -> list[bytes]:
    return [message.body for message in found.items]


def test_messages_are_shown_and_stay():
    rig = rig_with(3)
    output = rig.output()
    rig.subscribe(output, "/queue/orders", credit=1)
    rig.turn()
    found = page(rig)
    assert bodies(found) == [b"0", b"1", b"2"]
    assert [message.state for message in found.items] == ["delivering", "ready", "ready"]
    first = found.items[0]
    assert first.id == output.frames()[0].get("message-id")
    assert first.headers == {"destination": "x"}
    assert (first.is_persistent, first.is_large, first.body_bytes) == (True, False, 1)
    assert found.next is None
    assert bodies(page(rig)) == bodies(found)


def test_messages_that_consumers_hold_are_shown_alone():
    rig = rig_with(3)
    rig.subscribe(rig.output(), "/queue/orders", credit=2)
    rig.turn()
    assert bodies(page(rig, states=frozenset({"delivering"}))) == [b"0", b"1"]
    assert bodies(page(rig, states=frozenset({"ready"}))) == [b"2"]


def test_pages_follow_each_other():
    rig = rig_with(5)
    first = page(rig, limit=2)
    assert bodies(first) == [b"0", b"1"]
    second = page(rig, limit=2, after=first.next)
    assert bodies(second) == [b"2", b"3"]
    assert bodies(page(rig, limit=2, after=second.next)) == [b"4"]


def test_what_is_not_durable_is_not_there_yet():
    rig = rig_with(1)
    rig.send("/queue/orders", b"later")
    assert bodies(page(rig)) == [b"0"]
    rig.journal.flush()
    assert bodies(page(rig)) == [b"0", b"later"]


def test_bodies_are_cut_where_asked():
    rig = Rig()
    rig.send("/queue/orders", b"abcdef", persistent=False)
    (message,) = page(rig, body_bytes=4).items
    assert (message.body, message.body_bytes) == (b"abcd", 6)
    assert not message.is_persistent


def test_a_page_ends_at_its_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(browsing, "_PAGE_BYTES_MAX", 40)
    found = page(rig_with(10))
    assert 1 < len(found.items) < 10
    assert found.next == found.items[-1].sequence


def test_a_filter_that_nothing_matches_ends_a_page_and_not_the_walk(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(browsing, "_LOOKED_MAX", 3)
    monkeypatch.setattr(browsing, "_BATCH", 2)
    rig = rig_with(9)
    found = page(rig, filter_text="colour = 'red'")
    assert found.items == ()
    after = found.next
    assert after == 4
    pages = 1
    while after is not None:
        found = page(rig, filter_text="colour = 'red'", after=after)
        assert found.items == ()
        after, pages = found.next, pages + 1
    assert pages == 3


def test_only_what_matches_is_shown():
    rig = Rig()
    queue = do(rig.registry.create_queue("orders", "orders", RoutingType.ANYCAST))
    handle = rig.core.open_route([queue.id])
    for number in range(6):
        line = b"parity:%d\n" % (number % 2)
        rig.core.publish(handle, line, b"%d" % number, persistent=False, priority=number)
    found = page(rig, filter_text="parity = 1 AND JMSPriority > 1")
    assert bodies(found) == [b"3", b"5"]
    assert [message.priority for message in found.items] == [3, 5]


def test_what_is_wrong_is_said():
    rig = rig_with(1)
    with pytest.raises(RemoteProtocolError, match="no queue nowhere"):
        page(rig, "nowhere")
    with pytest.raises(InvalidSelector):
        page(rig, filter_text="colour = ")


class AwayCore:
    """A core that misses a slab until it was asked for."""

    def __init__(self, core: Core, slabs: Slabs) -> None:
        self._core = core
        self._slabs = slabs

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)

    def look(self, queue_id: int, sequence: int, count: int, **kinds: Any) -> object:
        look = self._core.look(queue_id, sequence, count, **kinds)
        if self._slabs.asked:
            return look
        return look._replace(messages=[], next_sequence=sequence, absent=(1, 0))


def test_what_is_not_in_memory_is_brought_back():
    rig = rig_with(2)
    slabs = Slabs(rig.core)
    browser = Browsing(rig.engine, slabs)  # type: ignore[arg-type]
    browser._core = AwayCore(rig.core, slabs)  # type: ignore[assignment]
    found = product_loop.run(browser.page("orders", after=0, limit=9, filter_text="", body_bytes=9))
    assert bodies(found) == [b"0", b"1"]
    assert slabs.asked == [(1, 0)]


def test_a_queue_that_is_deleted_meanwhile_is_told():
    rig = rig_with(2)
    slabs = Slabs(rig.core)
    queue = rig.registry.queues["orders"]
    slabs.on_ask = lambda: rig.registry.drop_queue(queue)
    browser = Browsing(rig.engine, slabs)  # type: ignore[arg-type]
    browser._core = AwayCore(rig.core, slabs)  # type: ignore[assignment]
    with pytest.raises(RemoteProtocolError, match="deleted meanwhile"):
        product_loop.run(browser.page("orders", after=0, limit=9, filter_text="", body_bytes=9))


def test_who_may_see_a_part_of_a_wildcard_is_shown_that():
    rig = Rig(users={"bob": User("bob", b"", 4096, b"", b"", frozenset(("bob",)))})
    kind = RoutingType.MULTICAST
    do(rig.registry.create_queue("all", "#", kind))
    for name in ("open", "secret"):
        do(rig.registry.create_address(name, {kind}, is_auto_created=True))
        route = rig.registry.route_of(rig.registry.addresses[name], kind).next_handle()
        rig.core.publish(route, f"destination:{name}\n".encode(), name.encode(), persistent=True)
    rig.journal.flush()
    seen = SecuritySettings(browse=("bob",))
    rig.registry.permissions.replace({"#": seen, "secret": SecuritySettings()})
    assert bodies(page(rig, "all", user="bob")) == [b"open"]
    assert bodies(page(rig, "all")) == [b"open", b"secret"]
    rig.registry.permissions.replace({"#": seen})
    assert bodies(page(rig, "all", user="bob")) == [b"open", b"secret"]


def test_a_filter_takes_a_part_of_a_turn():
    rig = Rig()
    for _ in range(40):  # what filters cost depends on the headers' length
        rig.send("/queue/orders", b"x", filler="x" * 5000)
    rig.journal.flush()
    rig.engine.turn_time.clock_s = itertools.count(0.0, 0.002).__next__
    costly = " OR ".join(f"a LIKE '%{number}_x%'" for number in range(30))
    browser = Browsing(rig.engine, Slabs(rig.core))  # type: ignore[arg-type]

    async def browse(filter_text: str) -> tuple[BrowsedPage, int, int]:
        loop, turns, is_done = asyncio.get_running_loop(), 0, False
        rig.engine.turn_time.next_turn = loop.call_soon

        async def count_turns() -> None:
            nonlocal turns
            while not is_done:
                turns += 1
                await asyncio.sleep(0)

        counting = loop.create_task(count_turns())
        found = await browser.page(
            "orders", after=0, limit=100, filter_text=filter_text, body_bytes=9
        )
        counted = await browser.count("orders", after=0, filter_text=filter_text)
        is_done = True
        await counting
        return found, counted.messages, turns

    found, count, _ = product_loop.run(browse("destination = 'x'"))
    assert len(found.items) == count == 40
    found, count, turns = product_loop.run(browse(f"destination = 'x' OR {costly}"))
    assert len(found.items) == count == 40
    assert turns > 20
