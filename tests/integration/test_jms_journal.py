"""The JMS journal of a real broker: made at its first use, back after kill -9, in its folder."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer


def ask(broker: BrokerProcess, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", broker.port("http"), timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, f"/api/v1{path}", data, headers)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status < 300, text
        return json.loads(text) if text.startswith(("{", "[")) else text
    finally:
        connection.close()


def jms_files(data: Path) -> list[Path]:
    return sorted(data.rglob("activemq-jms-*.jms"))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("settings", "folder"), [((), "bindings"), (("jms-directory=jms",), "jms")]
)
def test_what_was_made_survives_kill_9(tmp_path: Path, settings: tuple[str, ...], folder: str):
    data = tmp_path / "data"
    with BrokerProcess(data, *settings) as broker:
        assert jms_files(data) == [], "nobody has used it"
        ask(broker, "GET", "/jms/bindings")
        assert jms_files(data) == [], "looking is no use"
        ask(broker, "POST", "/jms/queues", {"name": "orders", "jndiNames": ["jms/orders"]})
        url = "amqp://localhost:5672"
        factory = {"name": "main", "url": url, "jndiNames": ["cf"]}
        ask(broker, "POST", "/jms/connection-factories", factory)
        ask(broker, "POST", "/jms/topics", {"name": "gone", "jndiNames": ["jms/gone"]})
        ask(broker, "DELETE", "/jms/topics/gone")
        broker.kill()
        assert jms_files(data)[0] == data / folder / "activemq-jms-1.jms"
        broker.start()
        names = ask(broker, "GET", "/jms/bindings")["items"]
        assert [(n["jndiName"], n["kind"], n["name"]) for n in names] == [
            ("cf", "connection-factory", "main"),
            ("jms/orders", "queue", "orders"),
        ]
        assert "connectionfactory.cf = amqp://localhost:5672\n" in ask(
            broker, "GET", "/jms/jndi.properties"
        )
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SEND", {"destination": "/queue/orders", "receipt": "1"}, b"x")
            peer.receive_receipt("1")
        assert ask(broker, "GET", "/queues/orders")["messages"] == 1
        addresses = [item["name"] for item in ask(broker, "GET", "/addresses")["items"]]
        assert addresses == ["orders"]


@pytest.mark.ci
def test_what_was_deleted_is_gone_after_kill_9(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        for number in range(5):
            ask(broker, "POST", "/queues", {"name": "q", "address": "a"})
            with StompPeer(broker.port()) as peer:
                peer.connect()
                headers = {"destination": "/queue/a::q", "persistent": "true", "receipt": "1"}
                peer.send("SEND", headers, b"x")
                peer.receive_receipt("1")
            ask(broker, "POST", "/addresses", {"name": f"b{number}", "routingTypes": ["ANYCAST"]})
            ask(broker, "DELETE", f"/addresses/b{number}")
            assert ask(broker, "DELETE", "/queues/q?force=true") == {"messages": 1}
            broker.kill()
            broker.start()
            assert ask(broker, "GET", "/queues")["items"] == []
            names = [item["name"] for item in ask(broker, "GET", "/addresses")["items"]]
            assert not {"q", f"b{number}"} & set(names)


def test_without_persistence_there_is_no_file(tmp_path: Path):
    data = tmp_path / "data"
    with BrokerProcess(data, "persistence-enabled=false") as broker:
        ask(broker, "POST", "/jms/queues", {"name": "orders", "jndiNames": ["jms/orders"]})
        assert ask(broker, "GET", "/jms/bindings")["items"][0]["name"] == "orders"
    assert jms_files(data) == []
