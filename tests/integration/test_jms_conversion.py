"""docs/howto/conversion.md, the table of JMS: each row from Qpid JMS to stock clients, and back.

One Java program of each API sends and receives for all of them (`Speaker` in tests/jms).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.jms_tests import missing_tool

pytest.importorskip("proton", reason="python-qpid-proton is not there: pip builds it")

import queue
import shutil
import subprocess
import threading
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import Self
from urllib.parse import quote_plus, unquote_plus

from proton import Message

from vespiary_testkit.conversion_clients import (
    MQTT_5,
    MQTT_31,
    MQTT_311,
    STOMP,
    Said,
    Speakers,
    differences,
    near,
    now_ms,
)
from vespiary_testkit.jms_tests import PROJECT, SOURCES, maven
from vespiary_testkit.waiting import WAIT_S

pytestmark = pytest.mark.jms

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/howto/conversion.md"
SENDERS: Final = (STOMP, MQTT_5, MQTT_311, MQTT_31)
RECEIVERS: Final = SENDERS
DAY_MS: Final = 86_400_000
HOURS_MS: Final = 7_200_000
"""How long after this line the last test may run."""
LATER_MS: Final = now_ms() + DAY_MS
SOON: Final = str(now_ms() + 1000)
OBJECT: Final = (
    b"\xac\xed\0\5sr\0\x13java.util.ArrayListx\x81\xd2\x1d\x99\xc7a\x9d\3\0\1I\0\4sizexp\0\0\0\1"
    b"w\4\0\0\0\1t\0\3onex"
)
"""What Java serializes an ArrayList with the string `one` as."""


# --- the program in Java --------------------------------------------------------------------------

# Stock Qpid JMS at the call of a Python test: one Java program that sends, receives and tells.
# What a message has is told by names: `JMSPriority` and its like, `property.NAME`, `body.NAME` of
# a map and `body`; values are pairs of Java's type and text, such as `("int", "7")`, and a list
# of them where a name stands more than once.

Value = tuple[str, str]
_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
"""Written out: without it Maven finds no plug-in of a short name off line, and does not say why."""
_SOURCE: Final = "Speaker.java"
_START_S: Final = 120.0
_OPTIONS: Final = "?jms.deserializationPolicy.allowList=java.util,java.lang"


def text(value: object) -> Value:
    """Return a string of Java."""
    return "string", str(value)


def program(folder: Path, module: str) -> Path:
    """Have Maven put the client's archives into a folder, and the program beside them; return it.

    Args:
        folder: An empty folder.
        module: `jakarta` or `javax`: which of both APIs.
    """
    project = folder / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("target"))
    archives = folder / "archives"
    maven(project, "-pl", module, f"-DoutputDirectory={archives}", _COPY)
    source = (PROJECT / "jakarta" / SOURCES / _SOURCE).read_text()
    (archives / _SOURCE).write_text(source.replace("jakarta.jms", f"{module}.jms"))
    return archives


class JmsSpeaker:
    """A connection of Qpid JMS with one session. Use as a context manager.

    Args:
        port: The broker's port on loopback.
        archives: Folder with the program and the client's archives.
        options: Further ones of its URL, each behind an `&`.
    """

    def __init__(self, port: int, archives: Path, options: str = "") -> None:
        self.archives = archives
        url = f"amqp://127.0.0.1:{port}{_OPTIONS}{options}"
        self._process = subprocess.Popen(
            [
                "java",
                "-XX:TieredStopAtLevel=1",
                "-Xmx256m",
                "-cp",
                f"{archives}/*",
                archives / _SOURCE,
                url,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="jms-speaker")
        self._reader.start()
        self._wait_s = _START_S  # its first answer comes when it is compiled and connected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it ends with its input
        try:
            self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            self._process.wait(WAIT_S)
            self._reader.join()
            self._process.stdout.close()

    def send(self, destination: str, kind: str, said: Mapping[str, Any]) -> None:
        """Send a message, and wait until it is confirmed.

        Args:
            destination: `queue:NAME` or `topic:NAME`.
            kind: Its interface, such as `MapMessage`.
            said: What it has.
        """
        self._call("send", destination, kind, *_words(said))

    @contextmanager
    def receive(self, destination: str) -> Iterator[Any]:
        """Listen to a queue or topic; the value is called for the next message."""
        self._call("listen", destination, destination)
        yield lambda: self.take(destination)
        self._call("leave", destination)

    def take(self, name: str) -> dict[str, Any]:
        """Return the next message of a consumer; `name` is that of a temporary queue, too."""
        words = self._call("take", name)
        told: dict[str, Any] = {}
        for at in range(0, len(words), 3):
            value = (words[at + 1], words[at + 2])
            before = told.get(words[at])
            if before is None:
                told[words[at]] = value
            else:
                told[words[at]] = [*(before if isinstance(before, list) else [before]), value]
        return told

    def call(self, method: str, argument: str = "") -> Value:
        """Call a method of the message that was taken last; return what it returns.

        Args:
            method: Its name, such as `getIntProperty`.
            argument: A string; empty for none.
        """
        _, kind, value = self._call("call", method, argument)
        return kind, value

    def answer(self, said: str) -> None:
        """Send a text to where the message wants its answer that was taken last."""
        self._call("answer", said)

    def _call(self, *words: str) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(quote_plus, words)) + "\n")
        self._process.stdin.flush()
        line = self._lines.get(timeout=self._wait_s)
        assert line, "the Java program has ended: it says why above"
        self._wait_s = 2 * WAIT_S
        answer = [unquote_plus(word) for word in line.rstrip("\n").split("\t")]
        assert answer[0] != "failed", answer
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")


def _words(said: Mapping[str, Any]) -> Iterable[str]:
    for name, values in said.items():
        for kind, value in values if isinstance(values, list) else [values]:
            yield from (name, kind, value)


# --- the tests ------------------------------------------------------------------------------------


def decoded(data: bytes) -> Any:
    """Return the body that sections of AMQP are."""
    message = Message()
    message.decode(data)
    body = message.body  # its bytes are the message's memory, and go with it
    if isinstance(body, dict):
        return {name: _kept(value) for name, value in body.items()}
    return [_kept(value) for value in body]


def _kept(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        sent: What JMS sends: its interface, and what the message has.
        told: What a receiver of another protocol is told; MQTT 3 is told the body alone.
        said: What others say; what is missing cannot say it.
        got: What JMS gets then, whoever has sent it.
        by: What it gets otherwise, by its sender.
        body: What others send as the body.
    """

    sent: tuple[str, Said]
    told: dict[str, Said]
    said: dict[str, Said]
    got: Said
    by: dict[str, Said] = {}  # noqa: RUF012 (nobody changes it)
    body: Any = b"\0body\xff"


def property_row(kind: str, java: str, others: str) -> Row:
    """Return the row of a property of a type; others are told a text, and send one."""
    return Row(
        ("TextMessage", {"property.one": (kind, java)}),
        {STOMP: {"one": others}, MQTT_5: {"user.one": [others]}},
        {STOMP: {"one": others}, MQTT_5: {"user.one": others}},
        {"property.one": text(others)},
    )


ENTRIES: Final = {
    "body.int": ("int", "7"), "body.null": ("null", ""), "body.char": ("char", "x"),
    "body.bytes": ("bytes", "00ff"), "body.float": ("float", "0.5"), "body.text": text("é"),
}  # fmt: skip
NAMES: Final = [name.removeprefix("body.") for name in ENTRIES]
VALUES: Final = [7, None, "x", b"\0\xff", 0.5, "é"]
ROWS: Final[dict[str, Row]] = {
    "`TextMessage`": Row(
        ("TextMessage", {"body": text("é\n:\\")}),
        {
            STOMP: {"body": "é\n:\\".encode(), "mqtt-payload-format": "1", "amqp-body": None},
            MQTT_5: {"body": "é\n:\\".encode(), "PayloadFormatIndicator": 1},
        },
        {STOMP: {"mqtt-payload-format": "1"}, MQTT_5: {"PayloadFormatIndicator": 1}},
        {"kind": text("TextMessage"), "body": text("é\n:\\")},
        body="é\n:\\",
    ),
    "`BytesMessage`": Row(
        ("BytesMessage", {"body": ("bytes", "00ff41")}),
        {
            STOMP: {"body": b"\0\xffA", "content-type": "application/octet-stream"},
            MQTT_5: {"body": b"\0\xffA", "ContentType": "application/octet-stream"},
        },
        {one: {} for one in SENDERS},
        {"kind": text("BytesMessage"), "body": ("bytes", "00ff41")},
        body=b"\0\xffA",
    ),
    "`MapMessage`": Row(
        ("MapMessage", ENTRIES),
        {
            STOMP: {
                "body": lambda data: decoded(data) == dict(zip(NAMES, VALUES, strict=True)),
                "amqp-body": "encoded",
            },
            MQTT_5: {"user.amqp-body": ["encoded"]},
        },
        {},
        {},
    ),
    "`StreamMessage`": Row(
        ("StreamMessage", {"body": list(ENTRIES.values())}),
        {
            STOMP: {
                "body": lambda data: decoded(data) == VALUES,
                "amqp-body": "encoded",
            },
            MQTT_5: {"user.amqp-body": ["encoded"]},
        },
        {},
        {},
    ),
    "`ObjectMessage`": Row(
        ("ObjectMessage", {"body": text("one")}),
        {
            STOMP: {"body": OBJECT, "content-type": "application/x-java-serialized-object"},
            MQTT_5: {"body": OBJECT, "ContentType": "application/x-java-serialized-object"},
        },
        {
            STOMP: {"content-type": "application/x-java-serialized-object"},
            MQTT_5: {"ContentType": "application/x-java-serialized-object"},
        },
        {"kind": text("ObjectMessage"), "body": text("[one]")},
        body=OBJECT,
    ),
    "`Message`": Row(
        ("Message", {"property.one": text("1")}),
        {STOMP: {"body": b"", "one": "1"}, MQTT_5: {"body": b"", "user.one": ["1"]}},
        {},
        {},
    ),
    "`JMSDeliveryMode` `PERSISTENT`": Row(
        ("TextMessage", {"JMSDeliveryMode": ("int", "2")}),
        {STOMP: {"persistent": "true"}, MQTT_5: {"qos": 2}, MQTT_311: {"qos": 2}},
        {STOMP: {"persistent": "true"}, MQTT_5: {"qos": 1}, MQTT_311: {"qos": 2}},
        {"JMSDeliveryMode": ("int", "2")},
    ),
    "`JMSDeliveryMode` `NON_PERSISTENT`": Row(
        ("TextMessage", {"JMSDeliveryMode": ("int", "1")}),
        {STOMP: {"persistent": None}, MQTT_5: {"qos": 0}, MQTT_311: {"qos": 0}},
        {STOMP: {"persistent": "false"}, MQTT_5: {"qos": 0}, MQTT_311: {"qos": 0}},
        {"JMSDeliveryMode": ("int", "1")},
    ),
    "`JMSPriority`": Row(
        ("TextMessage", {"JMSPriority": ("int", "7")}),
        {STOMP: {"priority": "7"}, MQTT_5: {"user.priority": ["7"]}},
        {STOMP: {"priority": "7"}, MQTT_5: {"user.priority": "7"}},
        {"JMSPriority": ("int", "7")},
        {MQTT_5: {"JMSPriority": ("int", "4"), "property.priority": text("7")}},
    ),
    "`JMSExpiration`": Row(
        ("TextMessage", {"timeToLive": ("long", str(DAY_MS))}),
        {
            STOMP: {"expires": near(LATER_MS, HOURS_MS)},
            MQTT_5: {"MessageExpiryInterval": near(DAY_MS / 1000, HOURS_MS / 1000)},
        },
        {STOMP: {"expires": str(LATER_MS)}, MQTT_5: {"MessageExpiryInterval": DAY_MS // 1000}},
        {"JMSExpiration": lambda it: it[0] == "long" and abs(int(it[1]) - LATER_MS) < HOURS_MS},
    ),
    "`JMSCorrelationID`": Row(
        ("TextMessage", {"JMSCorrelationID": text("ü 1")}),
        {STOMP: {"correlation-id": "ü 1"}, MQTT_5: {"CorrelationData": "ü 1".encode()}},
        {STOMP: {"correlation-id": "ü 1"}, MQTT_5: {"CorrelationData": "ü 1".encode()}},
        {"JMSCorrelationID": text("ü 1")},
    ),
    "`JMSCorrelationID` as bytes": Row(
        ("TextMessage", {"JMSCorrelationID": ("bytes", "00ff")}),
        {
            STOMP: {"mqtt-correlation-data": "AP8=", "correlation-id": "AMQP_BINARY:00FF"},
            MQTT_5: {"CorrelationData": b"\0\xff"},
        },
        {STOMP: {"mqtt-correlation-data": "AP8="}, MQTT_5: {"CorrelationData": b"\0\xff"}},
        {"JMSCorrelationID": text("ID:AMQP_BINARY:00FF")},
    ),
    "`JMSReplyTo`, a queue": Row(
        ("TextMessage", {"JMSReplyTo": text("queue:answers.one")}),
        {STOMP: {"reply-to": "/queue/answers.one"}, MQTT_5: {"ResponseTopic": "answers/one"}},
        {STOMP: {"reply-to": "/queue/answers.one"}},
        {"JMSReplyTo": text("queue:answers.one")},
    ),
    "`JMSReplyTo`, a topic": Row(
        ("TextMessage", {"JMSReplyTo": text("topic:answers.one")}),
        {STOMP: {"reply-to": "/topic/answers.one"}, MQTT_5: {"ResponseTopic": "answers/one"}},
        {STOMP: {"reply-to": "/topic/answers.one"}, MQTT_5: {"ResponseTopic": "answers/one"}},
        {"JMSReplyTo": text("topic:answers.one")},
    ),
    "`JMSType`": Row(
        ("TextMessage", {"JMSType": text("order")}),
        {STOMP: {"type": "order"}, MQTT_5: {"user.type": ["order"]}},
        {STOMP: {"type": "order"}, MQTT_5: {"user.type": "order"}},
        {"JMSType": text("order")},
    ),
    "`JMSMessageID`": Row(
        ("TextMessage", {}),
        {
            STOMP: {"JMSMessageID": lambda it: it.startswith("ID:")},
            MQTT_5: {"user.JMSMessageID": lambda it: it[0].startswith("ID:")},
        },
        {STOMP: {"JMSMessageID": "ID:1"}, MQTT_5: {"user.JMSMessageID": "ID:1"}},
        {"JMSMessageID": text("ID:1")},
    ),
    "`JMSTimestamp`": Row(
        ("TextMessage", {}),
        {
            STOMP: {"timestamp": near(now_ms(), HOURS_MS)},
            MQTT_5: {"user.timestamp": lambda it: near(now_ms(), HOURS_MS)(it[0])},
        },
        {STOMP: {"timestamp": "1700000000000"}, MQTT_5: {"user.timestamp": "1700000000000"}},
        {"JMSTimestamp": ("long", "1700000000000")},
    ),
    "`JMSDeliveryTime`": Row(
        ("TextMessage", {"deliveryDelay": ("long", "100")}),
        {
            STOMP: {"AMQ_SCHEDULED_TIME": near(now_ms(), HOURS_MS)},
            MQTT_5: {"user.AMQ_SCHEDULED_TIME": lambda it: near(now_ms(), HOURS_MS)(it[0])},
        },
        {STOMP: {"AMQ_SCHEDULED_TIME": SOON}, MQTT_5: {"user.AMQ_SCHEDULED_TIME": SOON}},
        {"JMSDeliveryTime": ("long", SOON)},
    ),
    "`JMSXGroupID`, `JMSXGroupSeq`": Row(
        ("TextMessage", {"property.JMSXGroupID": text("g"), "property.JMSXGroupSeq": ("int", "3")}),
        {
            STOMP: {"JMSXGroupID": "g", "JMSXGroupSeq": "3"},
            MQTT_5: {"user.JMSXGroupID": ["g"], "user.JMSXGroupSeq": ["3"]},
        },
        {
            STOMP: {"JMSXGroupID": "g", "JMSXGroupSeq": "3"},
            MQTT_5: {"user.JMSXGroupID": "g", "user.JMSXGroupSeq": "3"},
        },
        {"property.JMSXGroupID": text("g"), "property.JMSXGroupSeq": ("int", "3")},
    ),
    "property, `boolean`": property_row("boolean", "true", "true"),
    "property, `byte`, `short`, `int`, `long`": Row(
        (
            "TextMessage",
            {
                "property.a": ("byte", "-128"), "property.b": ("short", "32767"),
                "property.c": ("int", "-2147483648"), "property.d": ("long", str(2**63 - 1)),
            },
        ),
        {
            STOMP: {"a": "-128", "b": "32767", "c": "-2147483648", "d": str(2**63 - 1)},
            MQTT_5: {"user.a": ["-128"], "user.b": ["32767"], "user.d": [str(2**63 - 1)]},
        },
        {STOMP: {"a": "7"}, MQTT_5: {"user.a": "7"}},
        {"property.a": text("7")},
    ),
    "property, `float`": property_row("float", "0.1", "0.1"),
    "property, `double`": property_row("double", "0.1", "0.1"),
    "property, `String`": property_row("string", "rö: d\n", "rö: d\n"),
    "property, null": Row(
        ("TextMessage", {"property.one": ("null", "")}),
        {
            STOMP: {"amqp-omitted": "application-properties:one", "one": None},
            MQTT_5: {"user.amqp-omitted": ["application-properties:one"], "user.one": None},
        },
        {},
        {},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    missing = missing_tool()
    if missing:
        pytest.skip(missing)
    data = tmp_path_factory.mktemp("conversion") / "data"
    with BrokerProcess(data, "acceptors.all.protocols=STOMP,MQTT,AMQP") as process:
        yield process


@pytest.fixture(scope="module")
def speakers(broker: BrokerProcess) -> Iterator[Speakers]:
    with Speakers(broker.port()) as made:
        yield made


@pytest.fixture(scope="module", params=["jakarta", pytest.param("javax", marks=pytest.mark.verify)])
def jms(
    broker: BrokerProcess,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[JmsSpeaker]:
    archives = program(tmp_path_factory.mktemp("jms"), request.param)
    with JmsSpeaker(broker.port(), archives) as speaker:
        yield speaker


@pytest.fixture
def unchecked(broker: BrokerProcess, jms: JmsSpeaker) -> Iterator[JmsSpeaker]:
    with JmsSpeaker(broker.port(), jms.archives, "&jms.validatePropertyNames=false") as speaker:
        yield speaker


@pytest.fixture
def address() -> str:
    return f"jms.n{uuid4().hex[:8]}"


def column_of(name: str) -> str:
    return MQTT_311 if name == MQTT_31 else name


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.parametrize("row", ROWS)
def test_from_jms(
    speakers: Speakers, jms: JmsSpeaker, row: str, receiver: str, address: str
) -> None:
    (kind, said), told = ROWS[row].sent, ROWS[row].told
    with speakers[receiver].receive(address) as take:
        jms.send(f"topic:{address}", kind, said)
        got = take()
    wanted = {"body": told[STOMP].get("body", b""), **told.get(column_of(receiver), {})}
    assert not differences(got, wanted, address), got
    if receiver in (MQTT_311, MQTT_31):
        assert set(got) == {"topic", "qos", "retain", "dup", "body"}


@pytest.mark.parametrize(
    ("row", "sender"),
    [(row, one) for row in ROWS for one in SENDERS if column_of(one) in ROWS[row].said],
)
def test_to_jms(speakers: Speakers, jms: JmsSpeaker, row: str, sender: str, address: str) -> None:
    said, got, by, body = ROWS[row][2:]
    with jms.receive(f"topic:{address}") as take:
        speakers[sender].send(address, body, said[column_of(sender)])
        came = take()
    assert not differences(came, by.get(sender, got), address), came
    assert came["JMSDestination"] == text(f"topic:{address}")


# --- what kind of message others send -------------------------------------------------------------


@pytest.mark.parametrize("sender", [STOMP, MQTT_5])
@pytest.mark.parametrize(
    ("content_type", "body", "kind", "came"),
    [
        ("text/plain", "é", "TextMessage", text("é")),
        ("text/plain;charset=iso-8859-1", b"\xe9", "TextMessage", text("é")),
        ("application/json", "{}", "TextMessage", text("{}")),
        ("application/xml", "<é/>", "TextMessage", text("<é/>")),
        ("application/atom+xml", "<é/>", "TextMessage", text("<é/>")),
        ("application/problem+json", "{}", "TextMessage", text("{}")),
        ("application/javascript", "1", "TextMessage", text("1")),
        ("application/octet-stream", "x", "BytesMessage", ("bytes", "78")),
        ("image/png", b"\x89P", "BytesMessage", ("bytes", "8950")),
        ("", "é", "BytesMessage", ("bytes", "c3a9")),
    ],
)
def test_the_kind_by_content_type(
    speakers: Speakers, jms: JmsSpeaker, sender: str, content_type: str, body: Any, kind: str,
    came: Any, address: str,
) -> None:  # fmt: skip
    name = "content-type" if sender == STOMP else "ContentType"
    with jms.receive(f"topic:{address}") as take:
        speakers[sender].send(address, body, {name: content_type} if content_type else {})
        got = take()
    assert (got["kind"], got["body"]) == (text(kind), came)


def test_a_body_that_is_not_of_its_charset_is_no_text(
    speakers: Speakers, jms: JmsSpeaker, address: str
) -> None:
    with jms.receive(f"topic:{address}") as take:
        speakers.stomp.send(address, b"\xff", {"content-type": "text/plain"})
        with pytest.raises(AssertionError, match="Cannot decode String in UTF-8"):
            take()
        speakers.stomp.send(address, "behind it", {"content-type": "text/plain"})
        assert take()["body"] == text("behind it")


@pytest.mark.parametrize("sender", [STOMP, MQTT_5])
@pytest.mark.parametrize(
    ("method", "told", "value"),
    [
        ("getBooleanProperty", "true", ("boolean", "true")),
        ("getIntProperty", "-7", ("int", "-7")),
        ("getFloatProperty", "0.1", ("float", "0.1")),
        ("getDoubleProperty", "1e+20", ("double", "1.0E20")),
    ],
)
def test_texts_of_others_are_read_as_what_they_are(
    speakers: Speakers, jms: JmsSpeaker, sender: str, method: str, told: str, value: Any,
    address: str,
) -> None:  # fmt: skip
    with jms.receive(f"topic:{address}") as take:
        speakers[sender].send(address, "x", {"one" if sender == STOMP else "user.one": told})
        take()
        assert jms.call(method, "one") == value


@pytest.mark.parametrize("sender", [STOMP, MQTT_5])
def test_bytes_of_a_correlation_id(
    speakers: Speakers, jms: JmsSpeaker, sender: str, address: str
) -> None:
    said = ROWS["`JMSCorrelationID` as bytes"].said[sender]
    with jms.receive(f"topic:{address}") as take:
        speakers[sender].send(address, "x", said)
        take()
        assert jms.call("getJMSCorrelationIDAsBytes") == ("bytes", "00ff")


@pytest.mark.parametrize("sender", [STOMP, MQTT_5])
def test_an_id_that_does_not_say_so_gets_a_prefix(
    speakers: Speakers, jms: JmsSpeaker, sender: str, address: str
) -> None:
    name = "JMSMessageID" if sender == STOMP else "user.JMSMessageID"
    with jms.receive(f"topic:{address}") as take:
        speakers[sender].send(address, "x", {name: "m1"})
        assert take()["JMSMessageID"] == text("ID:AMQP_NO_PREFIX:m1")
        speakers[sender].send(address, "x", {})
        came = take()
    assert came["JMSMessageID"][1].startswith("ID:AMQP_NO_PREFIX:")
    assert near(now_ms(), HOURS_MS)(came["JMSTimestamp"][1])


@pytest.mark.parametrize("body", [b"\0Sw@", OBJECT])
def test_no_map_stream_or_object_is_made_of_bytes(
    speakers: Speakers, jms: JmsSpeaker, body: bytes, address: str
) -> None:
    with jms.receive(f"topic:{address}") as take:
        speakers.stomp.send(address, body, {"amqp-body": "encoded"})
        got = take()
    assert (got["kind"], got["body"]) == (text("BytesMessage"), ("bytes", body.hex()))


@pytest.mark.parametrize("sender", [STOMP, MQTT_5])
def test_names_that_java_cannot_have_are_not_told(
    speakers: Speakers, jms: JmsSpeaker, sender: str, address: str
) -> None:
    said = {"content-length-of-it": "1", "plain": "2"}
    if sender == MQTT_5:
        said = {f"user.{name}": value for name, value in said.items()}
    with jms.receive(f"topic:{address}") as take:
        speakers[sender].send(address, "x", said)
        got = take()
    assert got["property.plain"] == text("2")
    assert "property.content-length-of-it" not in got


def test_names_that_java_cannot_have_are_told_who_asks_for_them(
    speakers: Speakers, unchecked: JmsSpeaker, address: str
) -> None:
    with unchecked.receive(f"topic:{address}") as take:
        speakers.stomp.send(address, "x", {"content-length-of-it": "1"})
        assert take()["property.content-length-of-it"] == text("1")


# --- request and answer ---------------------------------------------------------------------------


@pytest.mark.parametrize("answerer", [STOMP, MQTT_5])
@pytest.mark.parametrize("kind", ["queue", "topic", "temporary"])
def test_jms_asks_and_others_answer(
    speakers: Speakers, jms: JmsSpeaker, kind: str, answerer: str, address: str
) -> None:
    with ExitStack() as stack:
        ask = stack.enter_context(speakers[answerer].receive(f"asked.{address}"))
        take, where = (lambda: jms.take(address)), f"{kind}:{address}"
        if kind != "temporary":
            take = stack.enter_context(jms.receive(where))
        said = {"JMSReplyTo": text(where), "body": text("how much?")}
        jms.send(f"topic:asked.{address}", "TextMessage", said)
        asked = ask()
        if answerer == STOMP:
            question = asked["JMSMessageID"]
            back, headers = asked["reply-to"], {"correlation-id": question}
            speakers.stomp.send(back, "7", headers, "")
        else:
            (question,) = asked["user.JMSMessageID"]
            back, said = asked["ResponseTopic"], {"CorrelationData": question.encode()}
            speakers.mqtt[MQTT_5].send(back, "7", said)
        answer = take()
    assert (answer["body"], answer["JMSCorrelationID"]) == (("bytes", "37"), text(question))


@pytest.mark.parametrize("via", ["queue", "topic"])
@pytest.mark.parametrize("prefix", ["/queue/", "/topic/"])
def test_stomp_asks_and_jms_answers(
    speakers: Speakers, jms: JmsSpeaker, via: str, prefix: str, address: str
) -> None:
    with (
        jms.receive(f"{via}:asked.{address}"),
        speakers.stomp.receive(address, prefix) as take,
    ):
        said = {"reply-to": f"{prefix}{address}"}
        speakers.stomp.send(f"asked.{address}", "how much?", said, f"/{via}/")
        jms.take(f"{via}:asked.{address}")
        jms.answer("7")
        assert take()["body"] == b"7"


@pytest.mark.parametrize("via", ["topic:ADDRESS", "queue:ADDRESS::kept"])
def test_mqtt_asks_and_jms_answers(
    speakers: Speakers, jms: JmsSpeaker, broker: BrokerProcess, via: str, address: str
) -> None:
    asked = f"asked.{address}"
    where = via.replace("ADDRESS", asked)
    with jms.receive(where), speakers.mqtt[MQTT_5].receive(address) as take:
        said = {"ResponseTopic": address.replace(".", "/")}
        speakers.mqtt[MQTT_5].send(asked, "how much?", said)
        jms.take(where)
        jms.answer("7")
        assert take()["body"] == b"7"


# --- the page -------------------------------------------------------------------------------------


def table() -> dict[str, list[str]]:
    """Return the rows of the page's table of JMS."""
    section = PAGE.read_text().partition("\n## JMS\n")[2]
    lines = section.partition("\n| ")[2].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["JMS", "STOMP header", "MQTT 5", "from STOMP and MQTT"]
    return {row[0]: row[1:] for row in rows[2:]}


def test_the_page_and_the_tests_have_the_same_rows() -> None:
    assert set(table()) == set(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_the_page_names_what_the_tests_look_at(row: str) -> None:
    stomp, mqtt, back = table()[row]
    _, told, said, got, by, _ = ROWS[row]
    for cell, sides in (
        (stomp, [told[STOMP], said.get(STOMP, {})]),
        (mqtt, [told[MQTT_5], said.get(MQTT_5, {})]),
    ):
        looked_at = {name.rpartition("user.")[2] for side in sides for name in side}
        for word in set(re.findall(r"`([A-Za-z][^`]+)`", cell)) - OTHER_WORDS:
            assert word.partition(":")[0] in looked_at, (row, word)
    assert (back == "cannot be sent") == (not said)
    for word in set(re.findall(r"`([A-Za-z][^`]+)`", back)) - OTHER_WORDS:
        assert word in f"{said} {got} {by}", (row, word)


OTHER_WORDS: Final = {
    "true", "false", "float", "double", "String", "ID:", "ID:AMQP_NO_PREFIX:",
    "getBooleanProperty", "getIntProperty", "getFloatProperty", "getDoubleProperty",
    "getJMSCorrelationIDAsBytes",
}  # fmt: skip
"""What is no name of a header or property: values, Java's types, and its methods."""
