"""What docs/howto/clients tells of Python's stock clients under "What to know", each shown.

A relay in front of the broker holds back what it says, or cuts clients off.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiomqtt
import paho.mqtt.client as paho
import pytest
import stomp

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import FOR_EVER_S, MqttClient, properties
from vespiary_testkit.relay import Relay
from vespiary_testkit.waiting import WAIT_S, wait_for

pytestmark = [pytest.mark.ci, pytest.mark.once]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = "acceptors.all.protocols=STOMP,MQTT,AMQP"
    with BrokerProcess(tmp_path_factory.mktemp("advice") / "data", settings) as process:
        yield process


@pytest.fixture
def relay(broker: BrokerProcess) -> Iterator[Relay]:
    with Relay(broker.port()) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"advice-{uuid4().hex[:8]}"


def see_whether_it_waits(relay: Relay, call: Callable[[], Any], *, is_waiting: bool = True) -> None:
    """Check whether a call is over only when the broker's answer has come, or without it."""
    relay.hold()
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        try:
            if is_waiting:
                relay.wait_until_held()
                assert not called.done()
            else:
                called.result(WAIT_S)
        finally:
            relay.release()
        called.result(WAIT_S)


# --- stomp.py -------------------------------------------------------------------------------------


class Inbox(stomp.ConnectionListener):
    """Notes what happens, and in which thread; what it is given is called for each message."""

    def __init__(self, work: Callable[[], Any] = lambda: None) -> None:
        self.work = work
        self.events: queue.Queue[str] = queue.Queue()
        self.bodies: queue.Queue[Any] = queue.Queue()
        self.threads: set[str] = set()

    def on_connected(self, frame: Any) -> None:
        self.events.put("connected")

    def on_message(self, frame: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.bodies.put(frame.body)
        self.work()

    def on_heartbeat_timeout(self) -> None:
        self.events.put("timeout")

    def on_disconnected(self) -> None:
        self.events.put("disconnected")


def stomp_client(port: int, inbox: Inbox, **options: Any) -> stomp.Connection12:
    connection = stomp.Connection12([("127.0.0.1", port)], **options)
    connection.set_listener("inbox", inbox)
    return connection


@pytest.mark.parametrize("is_waiting", [True, False])
def test_stomp_py_waits_for_the_login_if_it_is_told_to(relay: Relay, is_waiting: bool) -> None:
    inbox = Inbox()
    connection = stomp_client(relay.port, inbox)
    see_whether_it_waits(relay, lambda: connection.connect(wait=is_waiting), is_waiting=is_waiting)
    assert inbox.events.get(timeout=WAIT_S) == "connected"
    connection.disconnect()


def test_stomp_py_calls_back_in_a_thread_of_its_own_which_hears_no_heart_beats_meanwhile(
    relay: Relay, name: str
) -> None:
    ended = threading.Event()
    inbox = Inbox(lambda: ended.wait(WAIT_S))
    # It may be silent for long, and finds out soon that the broker is.
    connection = stomp_client(relay.port, inbox, heartbeats=(4000, 1000))
    connection.connect(wait=True)
    assert inbox.events.get(timeout=WAIT_S) == "connected"
    connection.subscribe(f"/queue/{name}", id="1")
    connection.send(f"/queue/{name}", "work")
    seen = {inbox.events.get(timeout=WAIT_S) for _ in range(2)}
    ended.set()
    assert seen == {"timeout", "disconnected"}
    assert threading.current_thread().name not in inbox.threads


def test_stomp_py_sends_no_heart_beats_and_stays_away_unless_it_is_told(
    broker: BrokerProcess, relay: Relay, name: str
) -> None:
    inbox = Inbox()
    connection = stomp_client(relay.port, inbox)
    heart_beats: list[str] = []
    inbox.on_connected = lambda frame: heart_beats.append(frame.headers["heart-beat"])  # type: ignore[method-assign]
    connection.connect(wait=True)
    assert heart_beats == ["0,0"]
    relay.cut()
    assert inbox.events.get(timeout=WAIT_S) == "disconnected"
    wait_for(lambda: not connection.transport.io_thread.is_alive())  # nothing of it runs any more
    assert inbox.events.empty()
    assert (relay.accepted, connection.is_connected()) == (1, False)


def test_stomp_py_comes_back_by_on_disconnected(relay: Relay, name: str) -> None:
    inbox = Inbox()
    connection = stomp_client(relay.port, inbox)

    def again() -> None:
        if relay.accepted == 1:
            connection.connect(wait=True)
            connection.subscribe(f"/queue/{name}", id="1")
            connection.send(f"/queue/{name}", "back")

    inbox.on_disconnected = again  # type: ignore[method-assign]
    connection.connect(wait=True)
    relay.cut()
    assert inbox.bodies.get(timeout=WAIT_S) == "back"
    connection.disconnect()


@pytest.mark.parametrize(("options", "body"), [({}, "a\ufffd"), ({"auto_decode": False}, b"a\xff")])
def test_stomp_py_has_texts_unless_it_is_told(
    relay: Relay, name: str, options: dict[str, Any], body: Any
) -> None:
    inbox = Inbox()
    connection = stomp_client(relay.port, inbox, **options)
    connection.connect(wait=True)
    connection.subscribe(f"/queue/{name}", id="1")
    connection.send(f"/queue/{name}", b"a\xff")
    assert inbox.bodies.get(timeout=WAIT_S) == body
    connection.disconnect()


# --- paho-mqtt ------------------------------------------------------------------------------------


class Paho:
    """A client as its page has it, whose session stays. Use as a context manager."""

    def __init__(self, port: int, name: str, work: Callable[[], Any], **options: Any) -> None:
        self.messages: queue.Queue[bytes] = queue.Queue()
        self.connected: queue.Queue[bool] = queue.Queue()
        self.own = paho.Client(
            paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv311, clean_session=False,
            **options,
        )  # fmt: skip
        self.own.reconnect_delay_set(1, 1)
        self.own.on_connect = lambda _c, _d, flags, *_: self.connected.put(flags.session_present)

        def on_message(_client: Any, _data: Any, message: Any) -> None:
            self.messages.put(message.payload)
            work()

        self.own.on_message = on_message
        self.own.connect("127.0.0.1", port)
        self.own.loop_start()
        self.connected.get(timeout=WAIT_S)

    def __enter__(self) -> Paho:
        return self

    def __exit__(self, *_: object) -> None:
        self.own.disconnect()
        self.own.loop_stop()
        self.own._reset_sockets()


@pytest.mark.parametrize(
    "of_5", [{"clean_start": True}, {"properties": properties(1, {"ReceiveMaximum": 1})}]
)
def test_paho_for_3_1_1_takes_nothing_of_5(relay: Relay, name: str, of_5: dict[str, Any]) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv311)
    with pytest.raises(ValueError, match="only appl"):
        client.connect("127.0.0.1", relay.port, **of_5)
    client._reset_sockets()


@pytest.mark.parametrize(("qos", "is_waiting"), [(0, False), (1, True), (2, True)])
def test_paho_waits_for_the_confirm(relay: Relay, name: str, qos: int, is_waiting: bool) -> None:
    with Paho(relay.port, name, lambda: None) as client:
        see_whether_it_waits(
            relay,
            lambda: client.own.publish(name, "x", qos).wait_for_publish(2 * WAIT_S),
            is_waiting=is_waiting,
        )


def test_paho_says_that_it_was_not_connected_and_sends_it_later(
    broker: BrokerProcess, name: str
) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, name)
    sent = client.publish(name, "x", 1)
    with pytest.raises(RuntimeError, match="not currently connected"):
        sent.wait_for_publish(WAIT_S)
    with MqttClient(broker.port(), f"{name}-other") as other:
        other.subscribe(name, 1)
        client.connect("127.0.0.1", broker.port())
        client.loop_start()
        assert other.payloads() == [b"x"]
    client.disconnect()
    client.loop_stop()
    client._reset_sockets()


@pytest.mark.parametrize("is_cut", [True, False])
def test_paho_acknowledges_when_on_message_returns(
    broker: BrokerProcess, relay: Relay, name: str, is_cut: bool
) -> None:
    work = relay.cut if is_cut else (lambda: None)
    with Paho(relay.port, name, lambda: work()) as client:
        client.own.subscribe(name, 1)
        client.own.publish(name, "work", 1)
        assert client.messages.get(timeout=WAIT_S) == b"work"
        work = lambda: None  # noqa: E731
        if is_cut:  # before it returned: nobody has acknowledged it
            assert client.messages.get(timeout=WAIT_S) == b"work"
        else:
            client.own.publish(name, "behind", 1)
            assert client.messages.get(timeout=WAIT_S) == b"behind"
            for _ in range(2):  # the acknowledgement goes before the second
                client.own.publish("elsewhere", "", 1).wait_for_publish(WAIT_S)
            relay.cut()
            client.connected.get(timeout=WAIT_S)
            client.own.publish(name, "end", 1)
            assert client.messages.get(timeout=WAIT_S) == b"end"


def test_paho_comes_back_and_sends_again_what_was_not_confirmed(
    broker: BrokerProcess, relay: Relay, name: str
) -> None:
    with (
        MqttClient(broker.port(), f"{name}-other") as other,
        Paho(relay.port, name, lambda: None) as client,
    ):
        other.subscribe(name, 1)
        relay.hold()
        sent = client.own.publish(name, "x", 1)
        assert other.payloads() == [b"x"]
        assert not sent.is_published()
        relay.cut()
        relay.release()
        sent.wait_for_publish(WAIT_S)
        assert other.payloads() == [b"x"]  # again
        assert relay.accepted == 2


@pytest.mark.ci
def test_paho_comes_back_to_a_broker_that_was_restarted(tmp_path: Path, name: str) -> None:
    settings = "acceptors.all.protocols=MQTT"
    with (
        BrokerProcess(tmp_path / "data", settings) as broker,
        Relay(broker.port()) as relay,
        Paho(relay.port, name, lambda: None) as client,
    ):
        client.own.subscribe(name, 1)
        client.own.publish("elsewhere", "", 1).wait_for_publish(WAIT_S)
        relay.hold()
        sent = client.own.publish(name, "x", 1)
        broker.kill()
        broker.start()
        relay.target = broker.port()
        relay.release()
        sent.wait_for_publish(WAIT_S)
        assert client.messages.get(timeout=WAIT_S) == b"x"


# --- aiomqtt --------------------------------------------------------------------------------------


def aio(port: int, name: str, level: str = "5") -> aiomqtt.Client:
    if level == "5":
        expiry = properties(1, {"SessionExpiryInterval": FOR_EVER_S})
        options: dict[str, Any] = {"clean_start": False, "properties": expiry}
        version = aiomqtt.ProtocolVersion.V5
    else:
        options, version = {"clean_session": False}, aiomqtt.ProtocolVersion.V311
    return aiomqtt.Client("127.0.0.1", port, identifier=name, protocol=version, **options)


def test_aiomqtt_acknowledges_before_anybody_has_looked(
    broker: BrokerProcess, relay: Relay, name: str
) -> None:
    async def lose() -> int:
        """Let messages come, and look at none of them; return how many wait."""
        client = aio(relay.port, name)
        await client.__aenter__()
        await client.subscribe(name, 1)
        for _ in range(3):
            await client.publish(name, "lost", 1)
        await client.publish("elsewhere", "", 1)  # the acknowledgements go before the second
        await client.publish("elsewhere", "", 1)
        relay.cut()
        with pytest.raises(aiomqtt.MqttError):
            await client._disconnected
        with suppress(aiomqtt.MqttError):  # it is not there any more
            await client.__aexit__(None, None, None)
        return len(client.messages)

    async def look() -> bytes:
        async with aio(relay.port, name) as client:
            await client.publish(name, "next", 1)
            return (await anext(client.messages)).payload

    assert asyncio.run(asyncio.wait_for(lose(), WAIT_S)) == 3
    assert asyncio.run(asyncio.wait_for(look(), WAIT_S)) == b"next"


@pytest.mark.parametrize("level", ["3.1.1", "5"])
def test_aiomqtt_stays_away_and_its_session_keeps_what_comes(
    broker: BrokerProcess, relay: Relay, name: str, level: str
) -> None:
    async def leave() -> None:
        async with aio(relay.port, name, level) as client:
            await client.subscribe(name, 1)
            relay.cut()
            await anext(client.messages)

    async def run() -> bytes:
        before = asyncio.all_tasks()
        with pytest.raises(aiomqtt.MqttError):
            await leave()
        while left := asyncio.all_tasks() - before:  # until nothing of it runs any more
            await asyncio.wait(left)
        assert relay.accepted == 1
        async with aio(broker.port(), f"{name}-other") as other:
            await other.publish(name, "meanwhile", 1)
        async with aio(relay.port, name, level) as client:
            return (await anext(client.messages)).payload

    assert asyncio.run(asyncio.wait_for(run(), WAIT_S)) == b"meanwhile"


def test_a_message_without_a_subscription_is_dropped(broker: BrokerProcess, name: str) -> None:
    with MqttClient(broker.port(), name) as client:
        client.publish(name, "dropped", 1)
        client.subscribe(name, 1)
        client.publish(name, "kept", 1)
        assert client.payloads() == [b"kept"]


# --- python-qpid-proton ---------------------------------------------------------------------------


def test_proton_waits_for_each_confirm(relay: Relay, name: str) -> None:
    proton = pytest.importorskip("proton")
    utils = pytest.importorskip("proton.utils")
    connection = utils.BlockingConnection(f"amqp://127.0.0.1:{relay.port}", timeout=WAIT_S)
    sender = connection.create_sender(f"/queue/{name}")
    message = proton.Message(body="x", durable=True)
    connection.wait(lambda: sender.link.credit > 0)  # nothing else is still to come
    see_whether_it_waits(relay, lambda: sender.send(message))
    connection.close()


def test_proton_tells_that_a_message_was_refused_and_where_to_look_for_the_reason(
    tmp_path: Path,
) -> None:
    proton = pytest.importorskip("proton")
    utils = pytest.importorskip("proton.utils")
    full = "address-settings.full."
    settings = (f"{full}max-size-bytes=8KiB", f"{full}address-full-policy=FAIL")
    with BrokerProcess(tmp_path / "data", "acceptors.all.protocols=AMQP", *settings) as broker:
        url = f"amqp://127.0.0.1:{broker.port()}"
        connection = utils.BlockingConnection(url, timeout=WAIT_S)
        sender = connection.create_sender("/queue/full")
        message = proton.Message(body="x" * 1000, durable=True)
        while sender.send(message, error_states=[]).remote_state == proton.Delivery.ACCEPTED:
            continue  # until it is full
        with pytest.raises(utils.SendException) as refused:
            sender.send(message)
        assert refused.value.state == proton.Delivery.REJECTED
        delivery = sender.send(message, error_states=[])
        assert "resource-limit-exceeded" in str(delivery.remote.condition)
        connection.close()


@pytest.mark.ci
def test_without_durable_a_message_is_accepted_and_gone_with_the_broker(tmp_path: Path) -> None:
    proton = pytest.importorskip("proton")
    utils = pytest.importorskip("proton.utils")
    with BrokerProcess(tmp_path / "data", "acceptors.all.protocols=AMQP") as broker:
        for is_again in (False, True):
            url = f"amqp://127.0.0.1:{broker.port()}"
            connection = utils.BlockingConnection(url, timeout=WAIT_S)
            if not is_again:
                sender = connection.create_sender("/queue/q")
                for is_durable in (False, True):  # `send` raises if it is not accepted
                    sender.send(proton.Message(body=str(is_durable), durable=is_durable))
                broker.kill()
                broker.start()
                continue
            receiver = connection.create_receiver("/queue/q", credit=10)
            assert receiver.receive(WAIT_S).body == "True"
            receiver.accept()
            connection.close()


def test_proton_sends_the_password_in_clear_where_it_was_built_without_cyrus(
    tmp_path: Path,
) -> None:
    proton = pytest.importorskip("proton")
    utils = pytest.importorskip("proton.utils")
    users = tmp_path / "users"
    users.write_text(format_users([make_user("ann", "secret", iterations=4096)]))
    users.chmod(0o600)
    login = {"user": "ann", "password": "secret", "timeout": WAIT_S}
    settings = ("acceptors.all.protocols=AMQP", f"security.users-file={users}")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        url = f"amqp://127.0.0.1:{broker.port()}"
        connection = utils.BlockingConnection(url, **login)
        mechanism = connection.conn.transport.sasl().mech
        connection.close()
        assert mechanism == ("SCRAM-SHA-256" if proton.SASL.extended() else "PLAIN")
        with pytest.raises(proton.ConnectionException):
            utils.BlockingConnection(
                url, **login, allow_insecure_mechs=False, allowed_mechs="PLAIN"
            )
