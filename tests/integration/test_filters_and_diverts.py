"""Filters and diverts of a real broker, used by stock stomp.py clients, over a restart."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S

CONFIGURATION = """
addresses:
  - name: prices
    queues:
      - {name: cheap, routing-type: MULTICAST, filter-string: "price < 10 AND kind = 'fruit'"}
      - {name: dear, routing-type: MULTICAST, filter-string: "price >= 10"}
  - name: audit
    queues: [{name: audit, routing-type: ANYCAST}]
diverts:
  - {name: copies, address: prices, forwarding-address: audit, filter-string: price > 100}
"""


def _http(broker: BrokerProcess, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.port('http')}/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    return json.loads(text) if path.startswith("api") and text else text


def _ready(broker: BrokerProcess) -> dict[str, int]:
    page = _http(broker, "GET", "api/v1/queues")
    return {item["name"]: item["ready"] for item in page["items"]}


def _send_all(client: Client) -> None:
    for price in ("5", "50", "500"):
        client.send("/topic/prices", price, price=price, kind="fruit")
    client.send("/topic/prices", "5", price="5", kind="spice")  # nobody wants it


@pytest.mark.engine
def test_filters_and_diverts_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(CONFIGURATION)
    with BrokerProcess(tmp_path / "data", configuration=file) as broker:
        client = Client(broker.port(), "1.2")
        client.connect()
        _send_all(client)
        assert _ready(broker) == {"cheap": 1, "dear": 2, "audit": 1}
        assert "vespiary_messages_unrouted_total 1" in _http(broker, "GET", "metrics")
        divert = {"name": "all", "address": "prices", "forwardingAddress": "audit"}
        divert |= {"exclusive": True, "filterString": "kind LIKE 's%'"}
        assert _http(broker, "POST", "api/v1/diverts", divert)["isExclusive"] is True
        client.send("/topic/prices", "5", price="5", kind="spice")
        client.disconnect()
        assert _ready(broker) == {"cheap": 1, "dear": 2, "audit": 2}
        broker.kill()
        broker.start()
        assert _ready(broker) == {"cheap": 1, "dear": 2, "audit": 2}
        client = Client(broker.port(), "1.1")
        client.connect()
        _send_all(client)
        assert _ready(broker) == {"cheap": 2, "dear": 4, "audit": 4}
        _http(broker, "DELETE", "api/v1/diverts/all")
        client.send("/topic/prices", "5", price="5", kind="spice")
        client.subscribe("/queue/audit")
        messages = client.recorder.take(4)
        assert [message.body for message in messages] == ["500", "5", "500", "5"]
        assert {message.headers["destination"] for message in messages} == {"/topic/prices"}
        client.disconnect()


@pytest.mark.engine
def test_transactions_with_filters(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(CONFIGURATION)
    with BrokerProcess(tmp_path / "data", configuration=file) as broker:
        client = Client(broker.port(), "1.2")
        client.connect()
        client.connection.begin("t")
        for price in ("5", "500"):
            client.send("/topic/prices", price, price=price, kind="fruit", transaction="t")
        assert _ready(broker) == {"cheap": 0, "dear": 0, "audit": 0}
        receipt = client.receipt()
        client.connection.commit("t", headers={"receipt": receipt})
        client.recorder.wait_receipt(receipt)
        assert _ready(broker) == {"cheap": 1, "dear": 1, "audit": 1}
        client.disconnect()


@pytest.mark.parametrize(
    ("right", "wrong", "path"),
    [
        ("price >= 10", "price >=", "addresses[0].queues[1].filter-string"),
        ("price > 100", "price >", "diverts[0].filter-string"),
    ],
)
def test_a_bad_filter_in_the_configuration_stops_the_start(
    tmp_path: Path, right: str, wrong: str, path: str
) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(CONFIGURATION.replace(right, wrong))
    broker = BrokerProcess(tmp_path / "data", configuration=file)
    with pytest.raises(AssertionError, match="the broker ended with 1") as caught:
        broker.start()
    assert f"{path}: this filter is no selector" in str(caught.value)
    assert "the selector ends too early" in str(caught.value)
    assert not list((tmp_path / "data").rglob("*.bindings"))


def test_a_selector_that_is_none_is_shown_with_a_caret(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = Client(broker.port(), "1.2")
        client.connect()
        client.connection.subscribe(
            "/queue/x", id="1", headers={"selector": "price == 5", "receipt": "r"}
        )
        error = client.recorder.errors.get(timeout=WAIT_S)
        assert "selector, character 8: '=' is not expected here" in error.headers["message"]
        assert "\nprice == 5\n       ^\n" in error.body
        assert "VSP-P106" in error.body
        assert error.headers["receipt-id"] == "r"
