"""Whatever remains in a journal, its files in use are bounded by what is live in it.

A seed draws some of the things that can remain: messages that wait, in memory and in pages, that
are held, scheduled or retained, wills, last values, duplicate ids, prepared transactions, streams.
Then traffic that is fully acknowledged passes through another queue, twenty times as much as the
journal may keep. The broker is killed, and after the restart everything is still there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.generator import Load, build, run_load
from vespiary_testkit.broker_calls import call
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import PROTOCOLS, MqttClient
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import wait_for

SEEDS = 4
FILE_BYTES = 512 * 1024
MIN_FILES = 3
LIVE_PERCENT = 30
"""Of the files in use as much must be live, above `MIN_FILES`: `journal-compact-percentage`."""
CONSTANT = MIN_FILES + 3
"""Files in use besides: one is filled, and one more is being emptied or freed."""
ROUNDS = 20
SETTINGS = (
    PROTOCOLS,
    "journal-file-size=512KiB",
    f"journal-compact-min-files={MIN_FILES}",
    f"journal-compact-percentage={LIVE_PERCENT}",
    "address-settings.lazy.max-size-bytes=64KiB",
    "address-settings.lazy.page-size-bytes=64KiB",
    "address-settings.latest.default-last-value-queue=true",
    "address-settings.unique.id-cache-size=100",
)

pytestmark = [pytest.mark.ci, pytest.mark.once]


class World(NamedTuple):
    """What those who leave something have.

    Attributes:
        broker: The broker.
        chance: Chooses amounts.
        stomp: A client that lives until the broker is killed.
        mqtt: The same.
        left: Clients that live until then too.
    """

    broker: BrokerProcess
    chance: random.Random
    stomp: Client
    mqtt: MqttClient
    left: list[Any]

    def send(self, destination: str, *, count: int, size_bytes: int = 1000, **named: str) -> None:
        """Send messages to a destination and wait for the confirm of the last one."""
        for number in range(count):
            body = f"{number}".ljust(size_bytes, ".")
            if number + 1 < count:
                headers = {"persistent": "true", **named}
                self.stomp.connection.send(destination, body, headers=headers)
            else:
                self.stomp.send(destination, body, **named)


def leave_waiting(world: World) -> None:
    world.send("/queue/waiting", count=world.chance.randint(1, 30))


def leave_in_pages(world: World) -> None:
    world.send("/queue/lazy", count=world.chance.randint(150, 400))


def leave_acknowledged_in_pages(world: World) -> None:
    """Acknowledgements of messages in pages need the files they are in."""
    world.send("/queue/lazy", count=300)
    reader = Client(world.broker.port("all"), "1.2")
    reader.connect()
    reader.subscribe("/queue/lazy", ack="client-individual")
    for message in reader.recorder.take(world.chance.randint(5, 40)):
        reader.ack(message)
    world.left.append(reader)


def leave_held(world: World) -> None:
    world.send("/queue/held", count=10)
    reader = Client(world.broker.port("all"), "1.2")
    reader.connect()
    reader.subscribe("/queue/held", ack="client-individual")
    reader.recorder.take(10)
    world.left.append(reader)


def leave_scheduled(world: World) -> None:
    world.send("/queue/later", count=5, AMQ_SCHEDULED_DELAY="86400000")


def leave_retained(world: World) -> None:
    for number in range(world.chance.randint(1, 20)):
        world.mqtt.own.publish(f"kept/{number}", b"x" * 500, qos=1, retain=True).wait_for_publish()


def leave_a_will(world: World) -> None:
    client = MqttClient(world.broker.port("all"), "dying", expiry_s=86_400)
    client.own.will_set("wills/dying", b"x" * 500, qos=1)
    client.connect()
    client.subscribe("wills/#", 1)
    world.left.append(client)


def leave_last_values(world: World) -> None:
    for key in ("a", "b", "c"):
        world.send("/queue/latest", count=5, _AMQ_LVQ_NAME=key)


def leave_duplicate_ids(world: World) -> None:
    for number in range(world.chance.randint(1, 50)):
        world.send("/queue/unique", count=1, _AMQ_DUPL_ID=f"id-{number}")


def leave_a_prepared_transaction(world: World) -> None:
    xid = "4660:0a0b:01"
    world.send("/queue/to-take", count=2)
    client = Client(world.broker.port("all"), "1.2")
    client.connect()
    client.subscribe("/queue/to-take", ack="client-individual")
    message = client.recorder.take(1)[0]
    client.connection.begin(transaction="t", headers={"xid": xid})
    for number in range(world.chance.randint(1, 5)):
        client.connection.send(
            "/queue/in-doubt", f"{number}".ljust(2000, "."), headers={"persistent": "true"},
            transaction="t",
        )  # fmt: skip
    client.ack(message, transaction="t")
    for phase in ("end", "prepare"):
        receipt = client.receipt()
        headers = {"xid": xid, "phase": phase, "receipt": receipt}
        client.connection.commit(transaction="t", headers=headers)
        client.recorder.wait_receipt(receipt)
    world.left.append(client)


def leave_a_stream(world: World) -> None:
    world.send("/queue/streamed", count=20)
    stream = {"name": "reader", "queue": "streamed", "owner": "test", "leaseS": 60}
    epoch = call(world.broker, "POST", "/streams", stream)["epoch"]
    done = {"epoch": epoch, "sequence": world.chance.randint(1, 19)}
    call(world.broker, "POST", "/streams/reader/acknowledge", done)


LEAVERS: list[Callable[[World], None]] = [
    leave_waiting,
    leave_in_pages,
    leave_acknowledged_in_pages,
    leave_held,
    leave_scheduled,
    leave_retained,
    leave_a_will,
    leave_last_values,
    leave_duplicate_ids,
    leave_a_prepared_transaction,
    leave_a_stream,
]


@pytest.fixture(scope="module")
def stompload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stompload") / "stompload")


def files_in_use(broker: BrokerProcess) -> list[dict[str, Any]]:
    found = call(broker, "GET", "/journal/files?limit=1000")["items"]
    return [file for file in found if file["state"] != "ahead"]


def is_bounded(broker: BrokerProcess) -> bool:
    """Whether the files in use are no more than what is live asks for, and some."""
    live_bytes = call(broker, "GET", "/journal")["liveBytes"]
    wanted = live_bytes * 100 / LIVE_PERCENT / FILE_BYTES
    return len(files_in_use(broker)) <= wanted + CONSTANT


def what_remains(broker: BrokerProcess) -> dict[str, Any]:
    """Return the messages of each queue, and the transactions in doubt."""
    queues = call(broker, "GET", "/queues?limit=1000")["items"]
    found = {each["name"]: each["messages"] for each in queues if each["name"] != "bench.0"}
    if "$mqtt.wills" in found:  # it is published when its client is gone: to itself
        found["dying.wills.#"] += found.pop("$mqtt.wills")
    transactions = call(broker, "GET", "/transactions")["items"]
    return {**found, "transactions": [each["xid"] for each in transactions]}


def drawn(seed: int) -> list[Callable[[World], None]]:
    """Return what one seed leaves; any `len(LEAVERS)` seeds in a row leave everything once."""
    first = LEAVERS[seed % len(LEAVERS)]
    others = [each for each in LEAVERS if each is not first]
    chance = random.Random(seed)
    return [first, *chance.sample(others, chance.randint(0, 4))]


@pytest.mark.parametrize("number", range(SEEDS))
def test_files_in_use_are_bounded_by_what_is_live(
    tmp_path: Path, stompload: Path, number: int
) -> None:
    seed = seed_for("journal bound") * SEEDS + number
    left_by = drawn(seed)
    print("left:", ", ".join(each.__name__ for each in left_by))
    broker = BrokerProcess(tmp_path / "data", *SETTINGS)
    broker.start()
    port = broker.port("all")
    world = World(broker, random.Random(seed), Client(port, "1.2"), MqttClient(port, "lives"), [])
    world.stomp.connect()
    world.mqtt.connect()
    for leave in left_by:
        leave(world)
    before = what_remains(broker)
    load = Load(
        consumers=1, window=64, prefetch=64, warmup=0, seconds=60,
        messages=ROUNDS * CONSTANT * FILE_BYTES // 1024, body_size=1024,
    )  # fmt: skip
    assert run_load(stompload, port, load).totals.delivered == load.messages
    wait_for(lambda: is_bounded(broker), lambda: files_in_use(broker))
    assert what_remains(broker) == before
    broker.kill()
    with BrokerProcess(tmp_path / "data", *SETTINGS) as again:
        wait_for(lambda: is_bounded(again), lambda: files_in_use(again))
        after = what_remains(again)
    assert {name: after[name] for name in before} == before
    for client in itertools.chain([world.mqtt], world.left):
        if isinstance(client, MqttClient):
            client.own.loop_stop()
