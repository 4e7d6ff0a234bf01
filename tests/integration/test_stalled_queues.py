"""Why queues and addresses are not moving, with stock clients: each reason, everywhere it shows."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stomp.exception import StompException

from vespiary_testkit.broker_calls import call, get, metrics, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import MqttClients
from vespiary_testkit.numbered_messages import send_numbered
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.ci

SETTINGS = (
    "acceptors.all.protocols=STOMP,AMQP,MQTT",
    "address-settings.full.#.max-size-messages=3",
    "address-settings.full.#.address-full-policy=BLOCK",
    "address-settings.slow.producer-message-rate=0",
)
Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("stalls") / "data", *SETTINGS) as process:
        yield process


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[Client] = []

    def make(broker: BrokerProcess) -> Client:
        client = Client(broker.port(), "1.2")
        made.append(client)
        client.connect()
        return client

    yield make
    for client in made:
        with contextlib.suppress(OSError, StompException):
            if client.connection.is_connected():
                client.connection.disconnect()


def stall(broker: BrokerProcess, kind: str, name: str) -> dict[str, Any]:
    """Return why something is not moving; nothing if it is, or is not there."""
    found = call(broker, "GET", f"/{kind}")["items"]
    return next((one["stall"] for one in found if one["name"] == name and one["stall"]), {})


def wait_for_stall(broker: BrokerProcess, kind: str, name: str, reason: str) -> dict[str, Any]:
    wait_for(
        lambda: stall(broker, kind, name).get("reason") == reason,
        lambda: f"{name}: {stall(broker, kind, name)}",
    )
    return stall(broker, kind, name)


def check_shown(broker: BrokerProcess, kind: str, name: str, reason: str) -> None:
    """Check that metrics, log and lists say the same."""
    label = "queue" if kind == "queues" else "address"

    def is_logged() -> bool:
        return f"{label} is stalled {label}={name} reason={reason}" in broker.log_text()

    wait_for(is_logged, broker.log_text)
    found = metrics(broker)
    assert found[f'vespiary_stalled_{kind}{{reason="{reason}"}}'] >= 1
    of_one = f'address="{name}",queue="{name}"' if kind == "queues" else f'address="{name}"'
    assert found[f'vespiary_{label}_stalled{{{of_one},reason="{reason}"}}'] == 1
    (line,) = (
        line for line in run_command(broker, label, "list").splitlines() if line.split()[0] == name
    )
    assert reason in line.split()
    assert "stalled" in run_command(broker, label, "show", name)


def blocked_stomp(broker: BrokerProcess, address: str, stack: contextlib.ExitStack) -> None:
    client = Client(broker.port(), "1.2")
    client.connect()
    client.connection.send(f"/queue/{address}", "x", headers={"persistent": "true"})

    def leave() -> None:
        with contextlib.suppress(OSError, StompException):
            client.connection.disconnect()

    stack.callback(leave)


def blocked_amqp(broker: BrokerProcess, address: str, stack: contextlib.ExitStack) -> None:
    pytest.importorskip("proton", reason="python-qpid-proton is not there")
    from proton.utils import BlockingConnection

    url = f"amqp://127.0.0.1:{broker.port()}"
    connection = stack.enter_context(contextlib.closing(BlockingConnection(url, timeout=WAIT_S)))
    connection.create_sender(f"/queue/{address}")  # which gets no credit


def blocked_mqtt(broker: BrokerProcess, address: str, stack: contextlib.ExitStack) -> None:
    clients = stack.enter_context(MqttClients(broker.port()))
    client = clients("blocked")
    client.send(address.replace(".", "/"), "x", 1)

    def leave() -> None:  # by its socket: the thread of paho ends no sooner than the answer comes
        with contextlib.suppress(OSError):
            client.own.socket().shutdown(socket.SHUT_RDWR)
        client.ended.get(timeout=WAIT_S)

    stack.callback(leave)


@pytest.mark.parametrize("block", [blocked_stomp, blocked_amqp, blocked_mqtt])
def test_a_full_address_names_its_blocked_producers_and_what_to_do(
    broker: BrokerProcess,
    connect: Connect,
    block: Callable[[BrokerProcess, str, contextlib.ExitStack], None],
) -> None:
    name = f"full.{block.__name__.rpartition('_')[2]}"
    kind, queue = ("topic", f"{name}.queue") if block is blocked_mqtt else ("queue", name)
    if kind == "topic":
        body = {"name": queue, "address": name, "routingType": "MULTICAST"}
        call(broker, "POST", "/queues", body)
    producer = connect(broker)
    for _ in range(3):
        producer.send(f"/{kind}/{name}", "x")
    with contextlib.ExitStack() as stack:
        block(broker, name, stack)
        wait_for(lambda: stall(broker, "addresses", name).get("blockedProducers") == 1)
        found = stall(broker, "addresses", name)
        assert found["reason"] == "full"
        assert "allowed max-size-messages 3" in found["text"]
        assert "1 producer waits" in found["text"]
        said = run_command(broker, "status", code=1)
        (line,) = (line for line in said.splitlines() if f"address {name} (full" in line)
        assert line.startswith("full ")
        assert "1 producer waits" in line
        assert "start a consumer" in line
        assert "address-settings full.#" in line
        assert not any(line.startswith("ready ") for line in said.splitlines())
        shown = run_command(broker, "address", "show", name)
        assert "BLOCK, full" in shown
        if block is blocked_stomp:
            check_shown(broker, "addresses", name, "full")
        run_command(broker, "queue", "purge", queue, "--yes")
        wait_for(lambda: not stall(broker, "addresses", name))
    if block is blocked_stomp:
        ended = f"address is no longer stalled address={name} reason=full"
        wait_for(lambda: ended in broker.log_text(), broker.log_text)


def test_paused_scheduled_and_unconsumed_queues(broker: BrokerProcess, connect: Connect) -> None:
    client = connect(broker)
    for name in ("paused", "unconsumed"):
        client.send(f"/queue/{name}", "x")
    client.send("/queue/scheduled", "x", AMQ_SCHEDULED_DELAY="3600000")
    client.subscribe("/queue/scheduled")
    run_command(broker, "queue", "pause", "paused")
    reasons = {"paused": "paused", "scheduled": "scheduled", "unconsumed": "no-consumers"}
    for name, reason in reasons.items():
        wait_for_stall(broker, "queues", name, reason)
    wait_for(lambda: "`vespiary queue resume paused`" in run_command(broker, "status"))
    assert "ready       producers go on" in run_command(broker, "status")
    run_command(broker, "queue", "resume", "paused")
    assert stall(broker, "queues", "paused")["reason"] == "no-consumers"
    run_command(broker, "address", "pause", "paused")
    assert "`vespiary address resume paused`" in stall(broker, "addresses", "paused")["cure"]
    assert stall(broker, "queues", "paused")["text"] == "the address paused is paused"
    check_shown(broker, "addresses", "paused", "paused")
    run_command(broker, "address", "resume", "paused")
    for name, reason in list(reasons.items())[1:]:
        check_shown(broker, "queues", name, reason)
    assert client.recorder.messages.empty()
    for name in reasons:
        run_command(broker, "queue", "purge", name, "--yes")


def test_consumers_that_take_nothing(broker: BrokerProcess, connect: Connect) -> None:
    """All at once, as each counts as moving until it was quiet for a while."""
    proton = pytest.importorskip("proton", reason="python-qpid-proton is not there")
    from proton.utils import BlockingConnection

    one = {"prefetch-count": "1"}
    sender = connect(broker)
    slow, picky = connect(broker), connect(broker)
    slow.subscribe("/queue/slow.stomp", "client-individual", **one)
    picky.subscribe("/queue/picky", "client-individual", selector="kind = 'a'")
    owner, other = connect(broker), connect(broker)
    owner.subscribe("/queue/groups", "client-individual", **one)
    sender.send("/queue/groups", "x", JMSXGroupID="g")
    owner.recorder.take(1)
    other.subscribe("/queue/groups", "client-individual")
    alone, late = connect(broker), connect(broker)
    alone.subscribe("/queue/alone", "client-individual", **one, **{"activemq.exclusive": "true"})
    late.subscribe("/queue/alone", "client-individual")
    for _ in range(3):
        sender.send("/queue/slow.stomp", "x")
        sender.send("/queue/picky", "x", kind="b")
        sender.send("/queue/groups", "x", JMSXGroupID="g")
        sender.send("/queue/alone", "x")
    url = f"amqp://127.0.0.1:{broker.port()}"
    with (
        contextlib.closing(BlockingConnection(url, timeout=WAIT_S)) as connection,
        MqttClients(broker.port()) as clients,
    ):
        connection.create_receiver("/queue/slow.amqp", credit=0)
        connection.create_sender("/queue/slow.amqp").send(proton.Message(body="x"))
        reader = clients("slow-mqtt", is_manual=True, ReceiveMaximum=1)
        reader.subscribe("slow/mqtt", 1)
        for _ in range(3):
            reader.publish("slow/mqtt", "x")
        (mqtt_queue,) = (
            consumer["queue"]
            for consumer in call(broker, "GET", "/consumers")["items"]
            if consumer["subscription"] == "slow/mqtt"
        )
        reasons = {
            "slow.stomp": "no-credit",
            "slow.amqp": "no-credit",
            mqtt_queue: "no-credit",
            "picky": "no-selector-match",
            "groups": "group-owner",
            "alone": "exclusive-consumer",
        }
        for name, reason in reasons.items():
            wait_for_stall(broker, "queues", name, reason)
        for name in ("slow.amqp", "picky", "groups", "alone"):
            check_shown(broker, "queues", name, reasons[name])
    assert other.recorder.messages.empty()
    assert late.recorder.messages.empty()


def test_producers_that_wait_for_a_rate(broker: BrokerProcess, connect: Connect) -> None:
    client = connect(broker)
    body = {"name": "slow", "address": "slow", "routingType": "ANYCAST"}
    call(broker, "POST", "/queues", body)
    client.connection.send("/queue/slow", "x", headers={"persistent": "true"})
    found = wait_for_stall(broker, "addresses", "slow", "rate-limit")
    assert found["blockedProducers"] == 1
    assert "producer-message-rate 0" in found["text"]
    check_shown(broker, "addresses", "slow", "rate-limit")
    wait_for(lambda: "but those that wait for a rate" in run_command(broker, "status"))


def test_all_addresses_together_are_full(tmp_path: Path, connect: Connect) -> None:
    settings = ("global-max-messages=3", "address-settings.#.address-full-policy=BLOCK")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        producer = connect(broker)
        for _ in range(3):
            producer.send("/queue/orders", "x")
        producer.connection.send("/queue/orders", "x", headers={"persistent": "true"})
        found = wait_for_stall(broker, "addresses", "orders", "memory")
        assert "global-max-messages 3" in found["text"]
        check_shown(broker, "addresses", "orders", "memory")
        assert "address orders (memory" in run_command(broker, "status", code=1)


def test_a_full_disk(tmp_path: Path, connect: Connect) -> None:
    free = shutil.disk_usage(tmp_path).free
    data = tmp_path / "data"
    with BrokerProcess(data, "journal-file-size=1MiB", "journal-min-files=2") as broker:
        connect(broker).send("/queue/orders", "x")
    settings = (f"min-disk-free={free * 2}", "disk-scan-period=100", "max-disk-usage=100")
    sizes = ("journal-file-size=1MiB", "journal-min-files=2")
    with BrokerProcess(data, *settings, *sizes) as broker:
        producer = connect(broker)
        for _ in range(30):  # more than the journal takes; the rest fits into the socket
            producer.connection.send("/queue/orders", "x" * 90_000, headers={"persistent": "true"})
        wait_for_stall(broker, "addresses", "orders", "disk")
        check_shown(broker, "addresses", "orders", "disk")
        assert "no journal file can be made" in run_command(broker, "status", code=1)


def test_acknowledgements_that_find_no_room_on_a_full_disk(
    tmp_path: Path, connect: Connect
) -> None:
    """Each of them a block, they take the room that producers leave to them."""
    data, free = tmp_path / "data", shutil.disk_usage(tmp_path).free
    sizes = ("journal-file-size=1MiB", "journal-min-files=2", "journal-compact-min-files=0")
    with BrokerProcess(data, *sizes) as broker:
        send_numbered(broker.port(), "/queue/orders", range(2000))
    settings = (f"min-disk-free={free * 2}", "disk-scan-period=100", "max-disk-usage=100")
    with BrokerProcess(data, *settings, *sizes) as broker:
        producer = connect(broker)
        for _ in range(30):  # more than the journal takes; the rest fits into the socket
            producer.connection.send("/queue/kept", "x" * 90_000, headers={"persistent": "true"})
        wait_for_stall(broker, "addresses", "orders", "disk")
        consumer = connect(broker)
        consumer.subscribe("/queue/orders", "client-individual", **{"prefetch-count": "2000"})
        acknowledged = call(broker, "GET", "/queues/orders")["acknowledged"]

        def is_taken_or_stalled(count: int) -> bool:
            now = call(broker, "GET", "/queues/orders")
            return bool(now["acknowledged"] > count or now["stall"])

        # Nothing waits for an answer to an acknowledgement, which may never come.
        for frame in consumer.recorder.take(2000):
            consumer.connection.ack(frame.headers["ack"])
            wait_for(lambda: is_taken_or_stalled(acknowledged))  # noqa: B023 (called right here)
            found = call(broker, "GET", "/queues/orders")
            if found["stall"]:
                break
            acknowledged = found["acknowledged"]
        stalled = wait_for_stall(broker, "queues", "orders", "disk")
        assert "acknowledgements of 1 consumer find no room in the journal" in stalled["text"]
        assert "no journal file can be made" in stalled["text"]
        assert "enlarge the volume" in stalled["cure"]
        assert found["delivering"], "the consumer cannot acknowledge what it holds"
        check_shown(broker, "queues", "orders", "disk")
        assert "queue orders (disk" in run_command(broker, "status", code=1)


def test_messages_of_the_journal_that_cannot_be_read_into_memory(
    tmp_path: Path, connect: Connect
) -> None:
    """More of them than memory is for, and the files rot under the broker."""
    data, sizes = tmp_path / "data", ("address-settings.#.address-full-policy=BLOCK",)
    with BrokerProcess(data, *sizes) as broker:
        producer = connect(broker)
        for _ in range(699):
            producer.connection.send("/queue/orders", "x" * 90_000, headers={"persistent": "true"})
        producer.send("/queue/orders", "last", persistent="true")
    with BrokerProcess(data, *sizes, "global-max-size=32MiB") as broker:
        for file in data.glob("journal/*"):
            with file.open("r+b", buffering=0) as content:
                for at in range(65_536, file.stat().st_size, 65_536):
                    content.seek(at)
                    content.write(b"\xff" * 64)
        consumer = connect(broker)
        consumer.subscribe("/queue/orders", "client-individual", **{"prefetch-count": "1000"})
        found = wait_for_stall(broker, "queues", "orders", "memory")
        assert "was not read into memory" in found["text"]
        assert "the log says whether the file can be read" in found["cure"]
        check_shown(broker, "queues", "orders", "memory")
        assert "messages cannot be read, and stay where they are" in broker.log_text()


def test_expired_messages_that_their_address_makes_too_large(
    tmp_path: Path, connect: Connect
) -> None:
    """Each queue of the expiry address needs room in the record of a message that goes there."""
    settings = (
        "min-large-message-size=1MiB",
        "acceptors.all.stomp.max-body-size=489KiB",
        "message-expiry-scan-period=100",
        "address-settings.#.expiry-address=expired",
        "address-settings.#.dead-letter-address=expired",
        "address-settings.#.max-delivery-attempts=1",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        names = [f"expired.{number}" for number in range(90)]
        for name in names:
            queue = {"name": name, "address": "expired", "routingType": "MULTICAST"}
            call(broker, "POST", "/queues", queue)
        body = "x" * (489 * 1024 - 300)  # 490 KiB less room for 80 queues
        producer = connect(broker)
        producer.send("/queue/orders", body, expires="1")
        found = wait_for_stall(broker, "queues", "orders", "unmovable")
        assert "1 message cannot be moved to expired: its record has no room" in found["text"]
        assert "raise journal-buffer-size, or leave expired fewer queues" in found["cure"]
        check_shown(broker, "queues", "orders", "unmovable")
        said = run_command(broker, "status")
        assert "stalled     queue orders (unmovable" in said
        assert "unmovable   1 move of messages failed" in said
        consumer = connect(broker)
        consumer.subscribe("/queue/rejected", "client-individual")
        producer.send("/queue/rejected", body)
        consumer.connection.nack(consumer.recorder.take(1)[0].headers["ack"])
        wait_for(lambda: call(broker, "GET", "/queues/rejected")["unmovable"] == 1)
        for name in names[1:]:
            call(broker, "DELETE", f"/queues/{name}")
        consumer.connection.nack(consumer.recorder.take(1)[0].headers["ack"])
        wait_for(lambda: call(broker, "GET", "/queues/expired.0")["messages"] == 1)
        assert not stall(broker, "queues", "rejected")


def test_pages_that_cannot_be_read(tmp_path: Path, connect: Connect) -> None:
    data = tmp_path / "data"
    settings = (
        "address-settings.#.max-size-bytes=256KiB",
        "address-settings.#.page-size-bytes=128KiB",
        "max-disk-usage=100",
    )
    with BrokerProcess(data, *settings) as broker:
        send_numbered(broker.port(), "/queue/orders", range(900))
        wait_for(lambda: call(broker, "GET", "/queues/orders")["paged"] > 400)
        for page in data.glob("paging/*/*.page"):
            content = bytearray(page.read_bytes())
            for at in range(0, len(content), 512):
                content[at + 100] ^= 0xFF
            page.write_bytes(content)
        consumer = connect(broker)
        consumer.subscribe("/queue/orders", "client-individual", **{"prefetch-count": "1000"})
        wait_for_stall(broker, "queues", "orders", "paged")
        check_shown(broker, "queues", "orders", "paged")


def test_an_oldest_message_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = (
        "address-settings.#.max-size-bytes=256KiB",
        "address-settings.#.page-size-bytes=128KiB",
    )
    with BrokerProcess(data, *settings) as broker:
        send_numbered(broker.port(), "/queue/orders", range(900))
        wait_for(lambda: call(broker, "GET", "/queues/orders")["paged"] > 400)
    with BrokerProcess(data, *settings) as broker:
        for page in data.glob("paging/*/*.page"):
            content = bytearray(page.read_bytes())
            content[9000] ^= 1
            page.write_bytes(content)
        for _ in range(3):
            found = call(broker, "GET", "/queues/orders")
            assert found["oldestAgeS"] is None
            assert "`vespiary page verify`" in found["oldestDamage"]
        call(broker, "GET", "/queues")
        assert broker.log_text().count("the oldest message of a queue cannot be read") == 1
        label = 'address="orders",queue="orders"'
        assert metrics(broker)[f"vespiary_queue_oldest_message_damaged{{{label}}}"] == 1
        assert "page verify" in run_command(broker, "queue", "show", "orders")


def test_every_reason_has_a_metric_even_while_nothing_is_stalled(broker: BrokerProcess) -> None:
    found = get(broker, "/metrics")
    reasons = (
        *("full", "paused", "scheduled", "paged", "no-consumers", "no-credit", "disk", "memory"),
        *("no-selector-match", "group-owner", "exclusive-consumer", "rate-limit", "unmovable"),
    )
    for kind in ("queues", "addresses"):
        for reason in reasons:
            assert f'vespiary_stalled_{kind}{{reason="{reason}"}}' in found
