"""A stock paho client and what it received, for tests against a real broker.

Owns one paho client whose network loop runs in a thread of its own. It never reconnects by itself:
tests say when. What stock clients cannot do, `mqtt_wire` does.
"""

from __future__ import annotations

import queue
import socket
import threading
from contextlib import ExitStack
from itertools import count
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from vespiary_testkit.waiting import WAIT_S, wait_for

LEVELS: Final = {"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5": paho.MQTTv5}
ALL_QOS: Final = (0, 1, 2)
FOR_EVER_S: Final = 0xFFFFFFFF
_LOOP_S: Final = 0.02
PROTOCOLS: Final = "acceptors.all.protocols=STOMP,MQTT"
"""Setting with which the port for all protocols takes MQTT as well."""


def properties(kind: int, values: dict[str, Any]) -> Properties | None:
    """Return properties of MQTT 5, by paho's names; None for none."""
    if not values:
        return None
    made = Properties(kind)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Connected(NamedTuple):
    """What a CONNACK said."""

    code: int
    is_present: bool
    properties: dict[str, Any]


class Answer(NamedTuple):
    """What a SUBACK, UNSUBACK, PUBACK or PUBREC said."""

    codes: list[int]
    properties: dict[str, Any]


class Ended(NamedTuple):
    """How a connection ended: by a DISCONNECT of the broker, or without a word."""

    code: int
    is_told: bool
    properties: dict[str, Any]


class _Paho(paho.Client):
    """A paho client whose thread checks often whether it has to stop, and can always be joined."""

    def loop_forever(
        self, timeout: float = _LOOP_S, retry_first_connection: bool = False
    ) -> paho.MQTTErrorCode:
        return super().loop_forever(timeout, retry_first_connection)

    def loop_stop(self) -> paho.MQTTErrorCode:
        """Stop the thread and wait for its end.

        The thread sets `_thread` to None as it ends, even between paho's own two uses of it.
        """
        thread = self._thread
        if thread is None:
            return paho.MQTT_ERR_INVAL
        self._thread_terminate = True
        if threading.current_thread() is not thread:
            thread.join()
        return paho.MQTT_ERR_SUCCESS


class MqttClient:
    """One client; its session may have several connections, one after the other.

    Args:
        port: Port on loopback.
        client_id: Its id; empty: the broker gives one.
        version: "3.1", "3.1.1" or "5".
        is_clean: Whether a former session is thrown away.
        expiry_s: Session expiry interval; MQTT 5 alone.
        is_manual: Whether messages of QoS 1 are acknowledged by `own.ack` alone.
        keep_alive_s: Keep alive; 0: none.
        user: Name and password.
        of_connect: Further properties of CONNECT, by paho's names.
    """

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: str = "5",
        *,
        is_clean: bool = True,
        expiry_s: int | None = None,
        is_manual: bool = False,
        keep_alive_s: int = 0,
        user: tuple[str, str] | None = None,
        **of_connect: Any,
    ) -> None:
        self.port, self.version, self.client_id = port, version, client_id
        self.is_clean = is_clean
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.ended: queue.Queue[Ended] = queue.Queue()
        self.of_connect = of_connect
        self._keep_alive_s = keep_alive_s
        if expiry_s is not None:
            of_connect["SessionExpiryInterval"] = expiry_s
        self._answers: dict[int, Answer] = {}
        self._connected: queue.Queue[Connected] = queue.Queue()
        self._changed = threading.Condition()
        self.own = _Paho(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if version == "5" else is_clean,
            protocol=LEVELS[version],
            reconnect_on_failure=False,
            manual_ack=is_manual,
        )
        self.own.max_queued_messages_set(0)
        self.own.max_inflight_messages_set(200)
        if user is not None:
            self.own.username_pw_set(*user)
        self.own.on_connect = self._on_connect
        self.own.on_message = lambda _client, _data, message: self.messages.put(message)
        self.own.on_publish = self._on_publish
        self.own.on_subscribe = self._on_codes
        self.own.on_unsubscribe = self._on_codes
        self.own.on_disconnect = self._on_disconnect

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        if self.own.is_connected():
            self.disconnect()
        self._close()

    def _close(self) -> None:
        self.own.loop_stop()
        self.own._reset_sockets()  # paho keeps those by which it wakes its loop open

    # --- what paho says ---------------------------------------------------------------------------

    def _on_connect(self, _c: Any, _d: Any, flags: Any, code: ReasonCode, said: Any) -> None:
        self._connected.put(Connected(code.value, flags.session_present, _told(said)))

    def _on_publish(self, _c: Any, _d: Any, number: int, code: Any, said: Any) -> None:
        self._answered(number, Answer([code.value], _told(said)))

    def _on_codes(self, _c: Any, _d: Any, number: int, codes: Any, said: Any) -> None:
        self._answered(number, Answer([code.value for code in codes], _told(said)))

    def _answered(self, number: int, answer: Answer) -> None:
        with self._changed:
            self._answers[number] = answer
            self._changed.notify_all()

    def _on_disconnect(self, _c: Any, _d: Any, flags: Any, code: Any, said: Any) -> None:
        value = getattr(code, "value", code)
        self.ended.put(Ended(value, flags.is_disconnect_packet_from_server, _told(said)))

    def answer(self, number: int) -> Answer:
        """Wait for the answer to a packet id."""
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._answers, WAIT_S), (
                f"no answer to packet {number}"
            )
            return self._answers.pop(number)

    # --- what tests do ----------------------------------------------------------------------------

    def connect(self, port: int | None = None) -> Connected:
        """Connect, or connect again; return what CONNACK said."""
        self.port = port or self.port
        self.own.loop_stop()
        of_5: dict[str, Any] = {}
        if self.version == "5":
            of_5["clean_start"] = self.is_clean
            of_5["properties"] = properties(PacketTypes.CONNECT, self.of_connect)
        self.own.connect("127.0.0.1", self.port, keepalive=self._keep_alive_s, **of_5)
        self.own._reset_sockets(sockpair_only=True)  # paho forgets to close those it replaces
        self.own.loop_start()
        return self._connected.get(timeout=WAIT_S)

    def subscribe(
        self,
        topic_filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        as_published: bool = False,
        retain_handling: int = 0,
        **said: Any,
    ) -> Answer:
        """Subscribe; return what SUBACK said."""
        if self.version != "5":
            _, number = self.own.subscribe(topic_filter, qos)
        else:
            options = SubscribeOptions(qos, no_local, as_published, retain_handling)
            _, number = self.own.subscribe(
                topic_filter, options=options, properties=properties(PacketTypes.SUBSCRIBE, said)
            )
        assert number is not None
        return self.answer(number)

    def unsubscribe(self, *topic_filters: str) -> Answer:
        """Unsubscribe; return what UNSUBACK said."""
        _, number = self.own.unsubscribe(list(topic_filters))
        assert number is not None
        return self.answer(number)

    def send(
        self, topic: str, payload: Any = b"", qos: int = 0, *, retain: bool = False, **said: Any
    ) -> paho.MQTTMessageInfo:
        """Publish, and wait for nothing."""
        of_5 = properties(PacketTypes.PUBLISH, said) if said else None
        return self.own.publish(topic, payload, qos, retain, of_5)

    def publish(
        self, topic: str, payload: Any = b"", qos: int = 1, *, retain: bool = False, **said: Any
    ) -> Answer:
        """Publish; return what the answer said (for QoS 0, which has none, nothing)."""
        return self.answer(self.send(topic, payload, qos, retain=retain, **said).mid)

    def settle(self) -> None:
        """Wait until the broker has taken what was published before, also with QoS 0."""
        self.publish("settled", "", 1)

    def take(self, number: int = 1) -> list[paho.MQTTMessage]:
        """Wait for so many messages."""
        taken: list[paho.MQTTMessage] = []
        for _ in range(number):
            try:
                taken.append(self.messages.get(timeout=WAIT_S))
            except queue.Empty:
                said = [(each.topic, each.payload[:40]) for each in taken[-10:]]
                raise AssertionError(f"{len(taken)} of {number} messages came: {said}") from None
        return taken

    def payloads(self, number: int = 1) -> list[bytes]:
        """Wait for so many messages; return their payloads."""
        return [message.payload for message in self.take(number)]

    def disconnect(self, code: int = 0, **said: Any) -> None:
        """Leave with DISCONNECT."""
        if self.version == "5":
            reason = ReasonCode(PacketTypes.DISCONNECT, identifier=code)
            self.own.disconnect(reason, properties(PacketTypes.DISCONNECT, said))
        else:
            self.own.disconnect()
        wait_for(lambda: not self.own.is_connected())
        self._close()

    def cut(self) -> None:
        """Leave without a word, as a program that crashes."""
        self.own.loop_stop()
        own = self.own.socket()
        assert own is not None
        own.shutdown(socket.SHUT_RDWR)
        self.own.loop_misc()
        self.own.loop_read()  # it sees the end


def _told(said: Any) -> dict[str, Any]:
    """Return properties that were received, by paho's names."""
    return (
        {}
        if said is None
        else {name: value for name, value in vars(said).items() if name[0].isupper()}
    )


def told(message: paho.MQTTMessage) -> dict[str, Any]:
    """Return the properties of a message, by paho's names."""
    return _told(getattr(message, "properties", None))


class MqttClients:
    """Makes clients of one broker, and ends them. Use as a context manager."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._stack = ExitStack()
        self._numbers = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, client_id: str = "", version: str = "5", **options: Any) -> MqttClient:
        """Return a client that is connected."""
        client = MqttClient(self.port, client_id, version, **options)
        self._stack.enter_context(client)
        return client

    def name(self, word: str = "n") -> str:
        """Return a word that no other test of this run has."""
        return f"{word}{next(self._numbers)}-{uuid4().hex[:6]}"
