import asyncio

import pytest

from vespiary_broker.engine import automatic_deletion
from vespiary_broker.engine.automatic_deletion import Reaper
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.server.reaping import Reaping
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.virtual_time import run_virtual

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def _rig(**settings: object) -> Rig:
    return Rig({"#": AddressSettings(**settings)})  # type: ignore[arg-type]


def _use(rig: Rig, name: str = "/queue/q") -> None:
    """Have a consumer come and go."""
    close_subscription(rig.core, rig.registry, rig.subscribe(rig.output(), name, AckMode.AUTO))


def _scan(rig: Rig) -> int:
    return sum(rig.engine.reaper.scan())


def test_a_queue_goes_after_its_delay_and_for_good() -> None:
    rig = _rig(auto_delete_queues_delay=5000)
    _use(rig)
    rig.now_s += 4.9
    assert _scan(rig) == 0
    assert list(rig.bindings.values) == ["counter/queue-id", "queue/1"]
    rig.now_s += 0.2
    assert _scan(rig) == 1
    assert not rig.registry.queues
    assert not rig.registry.addresses
    assert list(rig.bindings.values) == ["counter/queue-id"]
    assert rig.engine.reaper.queues_deleted == 1


def test_a_consumer_in_time_keeps_the_queue_and_starts_the_delay_again() -> None:
    rig = _rig(auto_delete_queues_delay=5000)
    _use(rig)
    rig.now_s += 4
    _use(rig)
    rig.now_s += 4
    assert _scan(rig) == 0
    rig.subscribe(rig.output(), "/queue/q")
    rig.now_s += 60
    assert _scan(rig) == 0


def test_messages_keep_a_queue_until_they_are_purged() -> None:
    rig = Rig()
    rig.send("/queue/q", b"x")
    rig.journal.flush()
    _use_without_taking(rig)
    assert _scan(rig) == 0
    rig.core.purge_queue(rig.registry.queues["q"].id)
    rig.journal.flush()
    assert _scan(rig) == 1


@pytest.mark.parametrize(
    ("allowed", "is_kept"), [(0, True), (1, True), (2, False), (3, False), (-1, False)]
)
def test_message_count_at_which_a_queue_goes(allowed: int, is_kept: bool) -> None:
    rig = _rig(auto_delete_queues_message_count=allowed)
    for _ in range(2):
        rig.send("/queue/q", b"x")
    rig.journal.flush()
    _use_without_taking(rig)
    assert ("q" in rig.registry.queues) is is_kept


def _use_without_taking(rig: Rig) -> None:
    consumer = rig.subscribe(rig.output(), "/queue/q")
    close_subscription(rig.core, rig.registry, consumer)


def test_a_queue_without_use_goes_only_without_the_usage_check() -> None:
    for is_skipped in (False, True):
        rig = _rig(auto_delete_queues_skip_usage_check=is_skipped, auto_delete_queues_delay=1000)
        do(rig.registry.create_queue("q", "q", ANYCAST, is_auto_created=True))
        rig.now_s += 10
        assert _scan(rig) == is_skipped


@pytest.mark.parametrize("is_on", [False, True])
def test_queues_made_by_hand(is_on: bool) -> None:
    rig = _rig(auto_delete_created_queues=is_on)
    do(rig.registry.create_queue("q", "q", ANYCAST))
    do(
        rig.registry.create_queue(
            "configured", "c", ANYCAST, traits=QueueTraits(is_configured=True)
        )
    )
    rig.subscribe(rig.output(), "/topic/t", client_id="me", durable_name="d")
    for name in ("/queue/q", "/queue/c"):
        _use(rig, name)
    close_subscription(rig.core, rig.registry, rig.registry.queues["me.d"].consumers[0])
    rig.now_s += 60
    _scan(rig)
    assert set(rig.registry.queues) == {"configured", "me.d"} | (set() if is_on else {"q"})


def test_an_address_goes_after_its_own_delay() -> None:
    rig = _rig(auto_delete_addresses_delay=5000)
    _use(rig)
    assert not rig.registry.queues
    assert list(rig.registry.addresses) == ["q"]
    assert _scan(rig) == 0
    rig.now_s += 5
    assert _scan(rig) == 1
    assert not rig.registry.addresses
    assert rig.engine.reaper.addresses_deleted == 1


@pytest.mark.parametrize("is_skipped", [False, True])
def test_an_address_that_nobody_used(is_skipped: bool) -> None:
    rig = _rig(auto_delete_addresses_skip_usage_check=is_skipped, auto_delete_addresses_delay=1000)
    rig.send("/topic/t", b"x")
    do(rig.registry.create_address("made", {MULTICAST}))
    rig.now_s += 1
    assert _scan(rig) == is_skipped
    assert ("t" in rig.registry.addresses) is not is_skipped
    assert "made" in rig.registry.addresses


@pytest.mark.parametrize("counter", ["prepared", "paged_prepared"])
def test_prepared_messages_keep_their_queue(counter: str) -> None:
    rig = _rig(auto_delete_queues_message_count=-1)
    rig.send("/queue/q", b"x")
    queue = rig.registry.queues["q"]
    counters = rig.core.queue_statistics(queue.id)
    settings = rig.registry.settings_for("q")
    assert automatic_deletion.is_queue_due(queue, settings, counters, rig.now_s)
    prepared = counters._replace(**{counter: 1})
    assert not automatic_deletion.is_queue_due(queue, settings, prepared, rig.now_s)


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("act", ["send", "acknowledge"])
def test_what_a_prepared_branch_holds_keeps_its_queue(
    act: str, *, is_written: bool, is_durable: bool
) -> None:
    rig = _rig(auto_delete_queues_message_count=-1)
    queue = do(
        rig.registry.create_queue("q", "q", ANYCAST, is_durable=is_durable, is_auto_created=True)
    )
    rig.send("/queue/q", b"x")
    rig.journal.flush()
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.turn()
    rig.core.begin(5, 100, 1, branch=True)
    if act == "send":
        route = rig.registry.queue_route(queue).next_handle()
        rig.core.publish(route, b"destination:q\n", b"y", persistent=True, transaction=5)
    else:
        assert rig.core.acknowledge(consumer.handle, 1, transaction=5) == 1
    rig.core.prepare(5, bytes(40))
    if is_written:
        rig.journal.flush()
    close_subscription(rig.core, rig.registry, consumer)
    _scan(rig)
    assert "q" in rig.registry.queues
    if is_durable:
        with pytest.raises(RemoteProtocolError, match="prepared"):
            rig.registry.check_deletable(queue)
    rig.journal.flush()
    rig.core.resolve(5, commit=True)
    assert _scan(rig) == 0, "its end is not durable yet"
    rig.journal.flush()
    assert _scan(rig) == 1


def test_a_scan_is_cut_into_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic_deletion, "STEP_ITEMS", 2)
    rig = _rig(auto_delete_queues_skip_usage_check=True, auto_delete_addresses=False)
    for number in range(5):
        do(rig.registry.create_queue(f"q{number}", "a", ANYCAST, is_auto_created=True))
    scan = rig.engine.reaper.scan()
    assert next(scan) == 2
    rig.registry.drop_queue(rig.registry.queues["q2"])  # meanwhile
    assert list(scan) == [1, 1, 0]


def test_the_timer_scans_every_period() -> None:
    rig = _rig(auto_delete_queues_delay=45_000)
    touched = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        rig.now_s = 0.0
        _use(rig)
        reaper = Reaper(rig.registry, loop.time, period_s=30)
        reaping = Reaping(reaper, loop, lambda: touched.append(loop.time()))
        reaping.start()
        await asyncio.sleep(59)
        assert "q" in rig.registry.queues
        await asyncio.sleep(2)
        assert "q" not in rig.registry.queues
        reaping.close()
        await asyncio.sleep(100)

    run_virtual(scenario())
    assert touched == [pytest.approx(60, abs=0.01)]


def test_no_period_means_no_scan() -> None:
    rig = _rig(auto_delete_queues_delay=1)

    async def scenario() -> None:
        reaper = Reaper(rig.registry, lambda: rig.now_s, period_s=0)
        reaping = Reaping(reaper, asyncio.get_running_loop(), lambda: None)
        _use(rig)
        rig.now_s += 1000
        reaping.start()
        await asyncio.sleep(500)
        assert "q" in rig.registry.queues

    run_virtual(scenario(), limit_s=2000)
