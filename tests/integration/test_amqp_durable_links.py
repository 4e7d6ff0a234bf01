"""A stock client (python-qpid-proton) that sends by a durable link, and settles last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_broker.cli.api_client import ApiClient, segment
from vespiary_broker.engine.names import OWN_PREFIX
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S, wait_for

proton = pytest.importorskip("proton", reason="python-qpid-proton is not there: pip builds it")

from proton import Link, Message, Terminus  # noqa: E402
from proton.handlers import MessagingHandler  # noqa: E402
from proton.reactor import Container, SenderOption  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402

MESSAGES = 3000


class Durable(SenderOption):
    """Asks for a target that keeps unsettled deliveries, and to settle last."""

    def apply(self, sender: Any) -> None:
        sender.target.durability = Terminus.DELIVERIES
        sender.target.expiry_policy = Terminus.EXPIRE_NEVER
        sender.rcv_settle_mode = Link.RCV_SECOND


class Sending(MessagingHandler):  # type: ignore[misc]
    """Sends messages, and goes when all are accepted and settled."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.sent = self.accepted = 0
        self.errors: list[Any] = []

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(f"amqp://127.0.0.1:{self.port}", reconnect=False)
        event.container.create_sender(connection, "/queue/d", name="d", options=Durable())

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self.sent < MESSAGES:
            event.sender.send(Message(body=self.sent, durable=True))
            self.sent += 1

    def on_accepted(self, event: Any) -> None:
        self.accepted += 1
        event.delivery.settle()
        if self.accepted == MESSAGES:
            event.connection.close()

    def on_link_error(self, event: Any) -> None:
        self.errors.append(event.link.remote_condition)
        event.connection.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, "acceptors.all.protocols=AMQP") as process:
        yield process


@pytest.mark.ci
def test_more_messages_than_credit(broker: BrokerProcess) -> None:
    """Those that are settled leave nothing behind, and the next ones find room."""
    sending = Sending(broker.port())
    Container(sending, container_id="durable").run()
    assert (sending.errors, sending.accepted) == ([], MESSAGES)
    api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
    (notes,) = [one for one in api.items("/queues") if one["name"].startswith(OWN_PREFIX)]
    wait_for(
        lambda: api.call("GET", f"/queues/{segment(notes['name'])}")["messages"] == 0,
        lambda: api.call("GET", "/queues"),
    )
    connection = BlockingConnection(f"amqp://127.0.0.1:{broker.port()}", WAIT_S)
    receiver = connection.create_receiver("/queue/d", credit=500)
    for number in range(MESSAGES):
        assert receiver.receive().body == number
        receiver.accept()
    connection.close()
