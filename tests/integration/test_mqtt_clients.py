"""Stock MQTT clients of Python, JavaScript and Go against a real broker, from their packages.

Each does the same: connect, messages of each QoS both ways, a large one, what is retained, a will,
and a session that is left and taken up again. The page docs/reference/clients.md says which
versions; what it says is compared with what is installed.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.client_programs import CLIENTS, go_programs, node_program, said_by
from vespiary_testkit.mqtt_client import FOR_EVER_S, PROTOCOLS, properties
from vespiary_testkit.waiting import WAIT_S

pytestmark = pytest.mark.once

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/clients.md"
SEEN = {
    "qos": [0, 1, 2],
    "payload": "hello 2",
    "largeBytes": 300_000,
    "retained": ["kept", True],
    "will": "gone",
    "sessionPresent": True,
    "away": ["away 1", "away 2", "away 3"],
}
SEEN_5 = {**SEEN, "colour": "red", "contentType": "text/plain"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mqtt") / "data", PROTOCOLS) as process:
        yield process


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_programs("mqtt", tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return node_program("mqtt", tmp_path_factory.mktemp("node"))


@pytest.mark.ci
def test_paho_mqtt_golang(broker: BrokerProcess, go: Path) -> None:
    assert said_by(str(go / "three"), str(broker.port()), "go-3.1.1") == SEEN


@pytest.mark.ci
def test_paho_golang(broker: BrokerProcess, go: Path) -> None:
    assert said_by(str(go / "five"), str(broker.port()), "go-5") == SEEN_5


@pytest.mark.ci
@pytest.mark.parametrize("level", ["4", "5"])
def test_mqtt_js(broker: BrokerProcess, node: list[str], level: str) -> None:
    seen = said_by(*node, str(broker.port()), level, f"js-{level}")
    assert seen == (SEEN_5 if level == "5" else SEEN)


@pytest.mark.parametrize("level", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
def test_aiomqtt(broker: BrokerProcess, level: aiomqtt.ProtocolVersion) -> None:
    is_5 = level is aiomqtt.ProtocolVersion.V5
    seen = asyncio.run(asyncio.wait_for(AioMqtt(broker.port(), level).run(), WAIT_S))
    assert seen == (SEEN_5 if is_5 else SEEN)


class AioMqtt:
    """What the other clients' programs do, with aiomqtt."""

    def __init__(self, port: int, level: aiomqtt.ProtocolVersion) -> None:
        self._port, self._level = port, level
        self._is_5 = level is aiomqtt.ProtocolVersion.V5
        self._root = f"aio-{level.value}"

    @asynccontextmanager
    async def _open(self, name: str, **options: Any) -> AsyncIterator[aiomqtt.Client]:
        async with aiomqtt.Client(
            "127.0.0.1", self._port, identifier=f"{self._root}-{name}", protocol=self._level,
            **options,
        ) as client:  # fmt: skip
            yield client

    def _lasting(self, *, is_first: bool) -> dict[str, Any]:
        if not self._is_5:
            return {"clean_session": False}
        expiry = properties(1, {"SessionExpiryInterval": FOR_EVER_S})
        return {"clean_start": is_first, "properties": expiry}

    async def run(self) -> dict[str, Any]:
        """Return what was seen."""
        root, seen = self._root, {"qos": []}
        async with self._open("sender") as sender, self._open("late") as late:
            async with self._open("receiver", **self._lasting(is_first=True)) as receiver:
                await receiver.subscribe(f"{root}/#", 2)
                await self._all_qos(sender, receiver, seen)
            await sender.publish(f"{root}-kept", "kept", 1, retain=True)
            await late.subscribe(f"{root}-kept", 1)
            await late.subscribe(f"{root}-will", 1)
            kept = await anext(late.messages)
            seen["retained"] = [kept.payload.decode(), kept.retain]
            await self._die()
            seen["will"] = (await anext(late.messages)).payload.decode()
            for number in (1, 2, 3):
                await sender.publish(f"{root}/away", f"away {number}", 2 - number % 2)
            async with self._open("receiver", **self._lasting(is_first=False)) as back:
                away = [(await anext(back.messages)).payload.decode() for _ in range(3)]
                seen |= {"sessionPresent": True, "away": sorted(away)}  # they came: it was there
        return seen

    async def _all_qos(
        self, sender: aiomqtt.Client, receiver: aiomqtt.Client, seen: dict[str, Any]
    ) -> None:
        said = {"ContentType": "text/plain", "UserProperty": [("colour", "red")]}
        for qos in range(3):
            of_5 = {"properties": properties(3, said)} if self._is_5 else {}
            await sender.publish(f"{self._root}/a", f"hello {qos}", qos, **of_5)
            message = await anext(receiver.messages)
            seen["qos"].append(message.qos)
            seen["payload"] = message.payload.decode()
            if self._is_5:
                seen["contentType"] = message.properties.ContentType
                seen["colour"] = dict(message.properties.UserProperty)["colour"]
        await sender.publish(f"{self._root}/large", b"L" * 300_000, 2)
        seen["largeBytes"] = len((await anext(receiver.messages)).payload)

    async def _die(self) -> None:
        will = aiomqtt.Will(f"{self._root}-will", "gone", 1)
        with suppress(aiomqtt.MqttError):
            async with self._open("dying", will=will) as dying:
                own = dying._client.socket()  # it has no way to crash
                assert own is not None
                own.shutdown(socket.SHUT_RDWR)
                await anext(dying.messages)


# --- the page -------------------------------------------------------------------------------------


def rows() -> dict[str, list[str]]:
    """Return the rows of the page's table by client."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {re.sub(r"[`\[]|\].*", "", row[0]): row for row in cells}


def test_the_page_names_the_versions_that_are_run() -> None:
    lock = json.loads((CLIENTS / "node/mqtt/package-lock.json").read_text())
    websocket_lock = json.loads((CLIENTS / "node/package-lock.json").read_text())["packages"]
    rhea = json.loads((CLIENTS / "rhea/package.json").read_text())["dependencies"]["rhea"]
    maven = [(CLIENTS.parent / f"jms/{api}/pom.xml").read_text() for api in ("jakarta", "javax")]
    go_mods = [CLIENTS / "go/mqtt/go.mod", CLIENTS / "go-amqp/go.mod"]
    go_mod = dict(
        re.findall(r"(github\.com/\S+) v(\S+)", "".join(path.read_text() for path in go_mods))
    )
    run = {
        "mqtt.js": lock["packages"]["node_modules/mqtt"]["version"],
        "paho.mqtt.golang": go_mod["github.com/eclipse/paho.mqtt.golang"],
        "paho.golang": go_mod["github.com/eclipse/paho.golang"],
        "go-amqp": go_mod["github.com/Azure/go-amqp"],
        "rhea": f"{rhea}, {websocket_lock['node_modules/rhea']['version']}",
        "@stomp/stompjs": websocket_lock["node_modules/@stomp/stompjs"]["version"],
        "Qpid JMS": ", ".join(
            re.findall(r"qpid-jms-client<.*\s+<version>([\d.]+)<", "".join(maven))
        ),
    }
    table = rows()
    assert {name: table[name][1] for name in run} == run
    wanted = (PAGE.parents[2] / "pyproject.toml").read_text()
    for name in ("paho-mqtt", "aiomqtt", "stomp.py", "python-qpid-proton"):
        (least,) = re.findall(rf'"{re.escape(name)}>=([\d.]+)', wanted)
        assert table[name][1] == least


def test_the_page_names_tests_that_exist() -> None:
    named = [path for row in rows().values() for path in re.findall(r"`(tests/[^`]+)`", row[-1])]
    assert len(named) >= len(rows())
    root = PAGE.parents[2]
    assert [path for path in named if not (root / path).is_file()] == []
