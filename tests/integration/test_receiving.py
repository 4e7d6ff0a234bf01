"""`vespiary receive` with real brokers: what is printed is acknowledged, whatever happens next."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from vespiary_testkit.broker_calls import call
from vespiary_testkit.broker_process import BrokerProcess, environment
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

SETTINGS = (
    "address-settings.full.#.max-size-messages=10",
    "address-settings.full.#.address-full-policy=BLOCK",
    "address-settings.#.auto-delete-queues=false",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *SETTINGS) as process:
        yield process


def receiving(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vespiary_broker", "receive", *arguments]
    return subprocess.Popen(
        [*command, "--url", f"stomp://127.0.0.1:{broker.port()}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def send(peer: StompPeer, destination: str, count: int) -> None:
    for number in range(count):
        peer.send("SEND", {"destination": destination, "persistent": "true"}, b"%d" % number)


def fill(broker: BrokerProcess, queue: str, count: int) -> None:
    with StompPeer(broker.port()) as producer:
        producer.connect()
        send(producer, f"/queue/{queue}", count)
        producer.send("DISCONNECT", {"receipt": "bye"})
        assert producer.receive().command == "RECEIPT"


def state(broker: BrokerProcess, queue: str) -> tuple[int, int, int, int]:
    found = call(broker, "GET", f"/queues/{queue}")
    names = ("messages", "delivering", "acknowledged", "redelivered")
    return tuple(found[name] for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize("options", [[], ["--timeout", "20"]])
def test_a_full_address_drains_until_all_that_was_asked_for_came(
    broker: BrokerProcess, options: list[str]
) -> None:
    """The last messages come only when those before them have left the address."""
    name = f"full.queue.{len(options)}"
    with StompPeer(broker.port()) as producer:
        producer.connect()
        body = {"name": name, "address": name, "routingType": "ANYCAST"}
        call(broker, "POST", "/queues", body)
        send(producer, f"/queue/{name}", 40)
        wait_for(lambda: blocked(broker, name) == 1)
        receiver = receiving(broker, name, "-n", "30", *options)
        out, err = receiver.communicate(timeout=WAIT_S)
        assert (out.split(), err, receiver.returncode) == ([*map(str, range(30))], "", 0)
        assert state(broker, name)[1:] == (0, 30, 0)


def blocked(broker: BrokerProcess, address: str) -> int:
    found = call(broker, "GET", f"/addresses/{address}")["stall"]
    return 0 if found is None else int(found["blockedProducers"])


def test_a_full_topic_drains_too(broker: BrokerProcess) -> None:
    receiver = receiving(broker, "full.topic", "--topic", "-n", "30")
    wait_for(lambda: is_subscribed(broker, "full.topic"))
    with StompPeer(broker.port()) as producer:
        producer.connect()
        send(producer, "/topic/full.topic", 40)
        out, err = receiver.communicate(timeout=WAIT_S)
        assert (out.split(), err, receiver.returncode) == ([*map(str, range(30))], "", 0)


def is_subscribed(broker: BrokerProcess, address: str) -> bool:
    queues = call(broker, "GET", "/queues")["items"]
    return any(one["address"] == address and one["consumers"] for one in queues)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", [["-n", "5"], ["--follow"]])
def test_an_interrupted_receive_keeps_what_it_printed(
    broker: BrokerProcess, number: signal.Signals, mode: list[str]
) -> None:
    name = f"interrupted.{number.name}.{len(mode)}"
    fill(broker, name, 3)
    with receiving(broker, name, "--timeout", f"{WAIT_S:g}", *mode) as receiver:
        assert receiver.stdout is not None
        assert [receiver.stdout.readline() for _ in range(3)] == ["0\n", "1\n", "2\n"]
        receiver.send_signal(number)
        _, err = receiver.communicate(timeout=WAIT_S)
    assert "Traceback" not in err
    assert receiver.returncode == (0 if mode == ["--follow"] else 130)
    assert state(broker, name) == (0, 0, 3, 0)


def test_what_the_reader_of_the_output_did_not_get_stays(broker: BrokerProcess) -> None:
    fill(broker, "piped", 1)
    with receiving(broker, "piped", "-n", "3", "--timeout", f"{WAIT_S:g}") as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "0\n"
        receiver.stdout.close()
        fill(broker, "piped", 1)
        assert receiver.wait(WAIT_S) == 1
    assert state(broker, "piped")[:3] == (1, 0, 1)


def test_time_begins_when_the_broker_has_confirmed(broker: BrokerProcess) -> None:
    """So `--timeout` is about messages, however long the disk takes for an acknowledgement."""
    fill(broker, "hasty", 100)
    receiver = receiving(broker, "hasty", "-n", "100", "--json", "--timeout", "0.05")
    out, _ = receiver.communicate(timeout=WAIT_S)
    bodies = [json.loads(line)["body"] for line in out.splitlines()]
    assert bodies == [*map(str, range(100))]
