"""Stock clients of all protocols that send a message and tell what they received, as flat names.

Owns one client of each kind for a broker, and the names by which tests of conversion say what a
message has: those of the client's own library, with a dot where they are of a map.

    STOMP   stomp.py      header names
    MQTT    paho-mqtt     qos, retain, dup, topic; ContentType, …; user.NAME (a list of values)
    AMQP    proton        attributes of Message; properties.NAME, annotations.NAME

What is not there is None. A body is `body`: bytes, or a string where AMQP has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, Final, Protocol

from proton import Message, symbol
from proton.utils import BlockingConnection

from vespiary_testkit.mqtt_client import MqttClient, told
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S

STOMP: Final = "STOMP"
MQTT_5: Final = "MQTT 5"
MQTT_311: Final = "MQTT 3.1.1"
MQTT_31: Final = "MQTT 3.1"
AMQP: Final = "AMQP 1.0"
SPEAKERS: Final = (STOMP, MQTT_5, MQTT_311, MQTT_31, AMQP)
Said = dict[str, Any]
_NAMES: Final = (
    "address", "durable", "priority", "ttl", "expiry_time", "reply_to", "correlation_id",
    "content_type", "content_encoding", "group_id", "group_sequence", "id", "user_id", "subject",
    "creation_time", "delivery_count", "first_acquirer", "inferred",
)  # fmt: skip


class Speaker(Protocol):
    """A client of one protocol."""

    def send(self, address: str, body: Any, said: Said, prefix: str = "/topic/") -> None:
        """Send a message to a topic or queue, and wait until it is confirmed."""
        ...

    @contextmanager
    def receive(self, address: str, prefix: str = "/topic/") -> Iterator[Any]:
        """Subscribe to a topic; the value is called for the next message."""
        ...


class StompSpeaker:
    """stomp.py."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client = Client(port, "1.2")
        self._client.connect()

    def close(self) -> None:
        self._client.disconnect()

    def send(self, address: str, body: Any, said: Said, prefix: str = "/topic/") -> None:
        self._client.send(f"{prefix}{address}", body, **said)

    @contextmanager
    def receive(self, address: str, prefix: str = "/topic/") -> Iterator[Any]:
        client = Client(self._port, "1.2", auto_decode=False)
        client.connect()
        client.subscribe(f"{prefix}{address}")
        yield lambda: _stomp_told(client.recorder.take(1)[0])
        client.disconnect()

    @contextmanager
    def refuse(self, destination: str) -> Iterator[None]:
        """Subscribe; take the message that the block sends and refuse it, which counts."""
        client = Client(self._port, "1.2")
        client.connect()
        client.subscribe(destination, ack="client-individual")
        yield
        client.nack(client.recorder.take(1)[0])
        client.disconnect()


def _stomp_told(frame: Any) -> Said:
    return {**frame.headers, "body": bytes(frame.body)}


class MqttSpeaker:
    """paho-mqtt."""

    def __init__(self, port: int, version: str) -> None:
        self._port, self._version, self._numbers = port, version, count()
        self._client = MqttClient(port, version=version)
        self._client.connect()

    def close(self) -> None:
        self._client.disconnect()

    def send(self, address: str, body: Any, said: Said, prefix: str = "") -> None:
        of_5 = dict(said)
        qos, retain = of_5.pop("qos", 1), of_5.pop("retain", False)
        users = [(name, of_5.pop(name)) for name in list(of_5) if name.startswith("user.")]
        pairs = [
            (name.removeprefix("user."), one)
            for name, values in users
            for one in ([values] if isinstance(values, str) else values)
        ]
        if pairs:
            of_5["UserProperty"] = pairs
        self._client.publish(address.replace(".", "/"), body, qos, retain=retain, **of_5)

    @contextmanager
    def receive(self, address: str, prefix: str = "/topic/") -> Iterator[Any]:
        client = self.lasting(address)
        options = {"as_published": True} if self._version == "5" else {}
        client.subscribe(address.replace(".", "/"), 2, **options)
        yield lambda: mqtt_told(client.take()[0])
        client.disconnect()

    def lasting(self, name: str, *, is_manual: bool = False) -> MqttClient:
        """Return a client that is connected, with a session that stays."""
        expiry = {"expiry_s": 600} if self._version == "5" else {}
        client_id = f"n{next(self._numbers)}-{name[-8:]}"
        client = MqttClient(
            self._port, client_id, self._version, is_clean=False, is_manual=is_manual, **expiry
        )
        client.connect()
        return client


def mqtt_told(message: Any) -> Said:
    """Return what a message of paho has."""
    found = told(message)
    for name, value in found.pop("UserProperty", ()):
        found.setdefault(f"user.{name}", []).append(value)
    own = {name: getattr(message, name) for name in ("topic", "qos", "retain", "dup")}
    return {**own, **found, "body": message.payload}


class AmqpSpeaker:
    """python-qpid-proton."""

    def __init__(self, port: int) -> None:
        self.connection = BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=WAIT_S)

    def close(self) -> None:
        self.connection.close()

    def send(self, address: str, body: Any, said: Said, prefix: str = "/topic/") -> None:
        fields = {"durable": True}
        for name, value in said.items():
            kind, dot, key = name.partition(".")
            if dot:
                of = symbol(key) if kind == "annotations" else key
                fields.setdefault(kind, {})[of] = value  # type: ignore[call-overload]
            else:
                fields[name] = value
        sender = self.connection.create_sender(f"{prefix}{address}")
        sender.send(Message(body=body, **fields))
        sender.close()

    @contextmanager
    def receive(self, address: str, prefix: str = "/topic/") -> Iterator[Any]:
        receiver = self.connection.create_receiver(f"{prefix}{address}", credit=1)
        yield lambda: self._take(receiver)
        receiver.close()

    @staticmethod
    def _take(receiver: Any) -> Said:
        message = receiver.receive(WAIT_S)
        receiver.accept()
        return _amqp_told(message)


def _amqp_told(message: Message) -> Said:
    found = {name: getattr(message, name) for name in _NAMES}
    for kind in ("properties", "annotations"):
        for name, value in (getattr(message, kind) or {}).items():
            found[f"{kind}.{name}"] = value
    found["body"] = message.body
    return {
        name: bytes(value) if isinstance(value, memoryview) else value
        for name, value in found.items()
        if name == "body" or value not in (None, "")
    }


class Speakers:
    """A client of each kind for one broker. Use as a context manager."""

    def __init__(self, port: int) -> None:
        self.stomp, self.amqp = StompSpeaker(port), AmqpSpeaker(port)
        self.mqtt = {
            name: MqttSpeaker(port, name.removeprefix("MQTT "))
            for name in (MQTT_5, MQTT_311, MQTT_31)
        }
        self._stack = ExitStack()
        for one in (self.stomp, self.amqp, *self.mqtt.values()):
            self._stack.callback(one.close)

    def __getitem__(self, name: str) -> Speaker:
        others: dict[str, Speaker] = {STOMP: self.stomp, AMQP: self.amqp}
        return self.mqtt.get(name) or others[name]

    def __enter__(self) -> Speakers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


# --- what is compared -----------------------------------------------------------------------------


def near(expected: float, tolerance: float) -> Callable[[Any], bool]:
    """Return a check whether a number is there, and near to what is expected."""
    return lambda value: value is not None and abs(float(value) - expected) <= tolerance


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def differences(told: Said, expected: Said, address: str) -> dict[str, tuple[Any, Any]]:
    """Return what is told otherwise than expected, by name."""
    found = {}
    for name, wanted in expected.items():
        if isinstance(wanted, str):
            wanted = wanted.replace("ADDRESS", address).replace("TOPIC", address.replace(".", "/"))
        value = told.get(name)
        if not (wanted(value) if callable(wanted) else value == wanted):
            found[name] = (value, wanted)
    return found
