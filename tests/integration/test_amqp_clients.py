"""Stock clients of AMQP 1.0 (python-qpid-proton) against a real broker, alone and beside STOMP."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.cli.api_client import ApiClient
from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S

proton = pytest.importorskip("proton", reason="python-qpid-proton is not there: pip builds it")

from proton import Condition, Delivery, Message, symbol, ulong  # noqa: E402
from proton.handlers import MessagingHandler, TransactionHandler  # noqa: E402
from proton.reactor import (  # noqa: E402
    AtMostOnce,
    Container,
    Copy,
    DurableSubscription,
    Filter,
    LinkOption,
    Selector,
)
from proton.utils import BlockingConnection, LinkDetached, SendException  # noqa: E402

BOTH = "acceptors.all.protocols=STOMP,AMQP"
Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, BOTH, "address-settings.#.dead-letter-address=dead") as process:
        yield process


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def make(container: str = "", **options: Any) -> Any:
            connection = amqp(broker, container, **options)
            stack.callback(connection.close)
            return connection

        yield make


def amqp(broker: BrokerProcess, container: str = "", **options: Any) -> Any:
    made = Container()
    if container:
        made.container_id = container
    url = f"amqp://127.0.0.1:{broker.port()}"
    return BlockingConnection(url, timeout=WAIT_S, container=made, **options)


def name_of(test: str) -> str:
    return f"{test}.{uuid.uuid4()}"


def is_empty(receiver: Any) -> bool:
    """Whether the next message of a receiver's queue is one that is sent now."""
    sender = receiver.connection.create_sender(receiver.link.source.address, name="marker")
    sender.send(Message(body="marker"))
    is_next = receiver.receive().body == "marker"
    receiver.accept()
    return bool(is_next)


@pytest.mark.engine
def test_send_accept_receive_acknowledge(connect: Connect) -> None:
    connection, queue = connect(), f"/queue/{name_of('round')}"
    sender = connection.create_sender(queue)
    for number in range(50):
        sender.send(Message(body=number, durable=True, id=ulong(number)))
    receiver = connection.create_receiver(queue, credit=10)
    for number in range(50):
        message = receiver.receive()
        assert (message.body, message.id, message.durable) == (number, number, True)
        assert message.delivery_count == 0
        receiver.accept()
    assert is_empty(receiver)


def test_sections_of_all_types_survive(connect: Connect) -> None:
    connection, queue = connect(), f"/queue/{name_of('types')}"
    properties = {
        "text": "é", "long": -5, "ulong": ulong(2**63), "truth": True, "nothing": None,
        "real": 0.5, "id": uuid.uuid4(), "sym": symbol("s"),
        "time": proton.timestamp(1234), "small": proton.ubyte(7), "char": proton.char("x"),
    }  # fmt: skip
    body = {"list": [1, "two", None], "map": {ulong(1): True}}
    sent = Message(
        body=body, properties=properties, annotations={symbol("x-opt-a"): ulong(3)},
        subject="s", correlation_id=uuid.uuid4(), reply_to="/queue/r", content_type=None,
        priority=7, group_id="g", group_sequence=2, user_id=b"me",
    )  # fmt: skip
    connection.create_sender(queue).send(sent)
    got = connection.create_receiver(queue).receive()
    assert got.body == body
    assert got.properties == properties
    assert {name: type(value) for name, value in got.properties.items()} == {
        name: type(value) for name, value in properties.items()
    }
    assert got.annotations == sent.annotations
    for field in ("subject", "correlation_id", "reply_to", "priority", "group_id", "user_id"):
        assert getattr(got, field) == getattr(sent, field), field


SIZES = [(size, frame) for size in (0, 1, 255, 256, 100_000) for frame in (512, 16_384)]


@pytest.mark.parametrize(("size", "frame_bytes"), [*SIZES, (3_000_000, 16_384)])
@pytest.mark.parametrize("kind", [bytes, str])
def test_bodies_of_all_sizes(connect: Connect, size: int, kind: type, frame_bytes: int) -> None:
    connection = connect(max_frame_size=frame_bytes)
    queue = f"/queue/{name_of('size')}"
    body: Any = b"x" * size if kind is bytes else "x" * size
    connection.create_sender(queue).send(Message(body=body, durable=True))
    receiver = connection.create_receiver(queue)
    got = receiver.receive()
    assert (bytes(got.body) if kind is bytes else got.body) == body
    receiver.accept()


def test_a_map_beyond_memory_is_refused_with_the_reason(connect: Connect) -> None:
    sender = connect().create_sender(f"/queue/{name_of('huge')}")
    with pytest.raises((SendException, LinkDetached), match="message-size-exceeded"):
        sender.send(Message(body={"x": "x" * 2_000_000}))


@pytest.mark.engine
def test_outcomes(connect: Connect) -> None:
    connection, queue = connect(), f"/queue/{name_of('outcomes')}"
    sender = connection.create_sender(queue)
    sender.send(Message(body="again"))
    receiver = connection.create_receiver(queue, credit=1)
    receiver.receive()
    receiver.release(delivered=False)
    assert receiver.receive().delivery_count == 0
    delivery = receiver.fetcher.unsettled.popleft()
    delivery.local.failed = True
    delivery.update(Delivery.MODIFIED)
    delivery.settle()
    assert receiver.receive().delivery_count == 1
    delivery = receiver.fetcher.unsettled.popleft()
    delivery.local.condition = Condition("app:broken", "cannot be read")
    delivery.update(Delivery.REJECTED)
    delivery.settle()
    assert is_empty(receiver)
    dead = connection.create_receiver("/queue/dead", name="dead").receive()
    assert dead.body == "again"
    assert dead.annotations[symbol("x-opt-reject-condition")] == "app:broken"
    assert dead.annotations[symbol("x-opt-ORIG-QUEUE")] == queue.removeprefix("/queue/")


@pytest.mark.engine
def test_selectors_and_browsing(connect: Connect) -> None:
    connection, queue = connect(), f"/queue/{name_of('selected')}"
    sender = connection.create_sender(queue)
    for number in range(6):
        colour = "red" if number % 2 else "blue"
        sender.send(Message(body=number, properties={"colour": colour, "n": number}))
    browser = connection.create_receiver(queue, name="browser", options=Copy())
    assert [browser.receive().body for _ in range(6)] == list(range(6))
    browser.close()
    wanted = Selector("colour = 'red' AND n > 1")
    receiver = connection.create_receiver(queue, name="red", options=wanted)
    assert [receiver.receive().body for _ in range(2)] == [3, 5]
    with pytest.raises(LinkDetached, match="invalid-field"):
        connection.create_receiver(queue, name="wrong", options=Selector("colour = = 'red'"))


def test_a_topic_goes_to_all(connect: Connect) -> None:
    connection, topic = connect(), f"/topic/{name_of('news')}"
    receivers = [connection.create_receiver(topic, name=f"r{n}") for n in range(3)]
    connection.create_sender(topic).send(Message(body="news"))
    assert [each.receive().body for each in receivers] == ["news"] * 3


def test_request_and_reply_over_a_dynamic_node_and_the_relay(connect: Connect) -> None:
    client, server, queue = connect(), connect(), f"/queue/{name_of('rpc')}"
    replies = client.create_receiver(None, dynamic=True)
    requests = server.create_receiver(queue)
    sender = client.create_sender(queue)
    sender.send(Message(body="2+2", reply_to=replies.link.remote_source.address, id="q1"))
    request = requests.receive()
    requests.accept()
    relay = server.create_sender(None)
    relay.send(Message(address=request.reply_to, body="4", correlation_id=request.id))
    reply = replies.receive()
    assert (reply.body, reply.correlation_id) == ("4", "q1")


class Shared(LinkOption):
    """A shared subscription."""

    def apply(self, receiver: Any) -> None:
        receiver.source.capabilities.put_object(symbol("shared"))


def test_shared_subscriptions(connect: Connect) -> None:
    topic = f"/topic/{name_of('shared')}"
    connections = [connect("team"), connect("team")]
    receivers = [
        each.create_receiver(topic, name=f"sub|{number}", options=Shared(), credit=1)
        for number, each in enumerate(connections)
    ]
    sender = connect().create_sender(topic)
    for number in range(2):
        sender.send(Message(body=number))
    assert sorted(each.receive().body for each in receivers) == [0, 1]


def test_no_local(connect: Connect) -> None:
    from proton import Described

    connection, topic = connect(), f"/topic/{name_of('local')}"
    name = symbol("apache.org:no-local-filter:list")
    no_local = Filter({symbol("no-local"): Described(name, [])})
    receiver = connection.create_receiver(topic, options=no_local)
    connection.create_sender(topic).send(Message(body="own"))
    connect().create_sender(topic).send(Message(body="other"))
    assert receiver.receive().body == "other"


def test_at_most_once(connect: Connect) -> None:
    connection, queue = connect(), f"/queue/{name_of('most')}"
    sender = connection.create_sender(queue)
    for number in range(30):
        sender.send(Message(body=number))
    receiver = connection.create_receiver(queue, credit=5, options=AtMostOnce())
    assert [receiver.receive().body for _ in range(30)] == list(range(30))
    connection.close()
    assert is_empty(connect().create_receiver(queue))


def test_a_producer_that_may_not_make_its_queue(connect: Connect) -> None:
    with pytest.raises(LinkDetached, match=r"invalid-field.*space"):
        connect().create_sender("/queue/with a space behind ")


class Transacting(MessagingHandler, TransactionHandler):
    """Sends in transactions: every second one is aborted."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__()
        self.url, self.queue = url, queue
        self.ended = 0
        self.sender: Any = None
        self.transaction: Any = None

    def on_start(self, event: Any) -> None:
        self.container = event.container
        connection = self.container.connect(self.url)
        self.sender = self.container.create_sender(connection, self.queue)
        self.container.declare_transaction(connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        for number in range(3):
            self.transaction.send(self.sender, Message(body=10 * self.ended + number))
        if self.ended % 2:
            self.transaction.abort()
        else:
            self.transaction.commit()

    def on_transaction_committed(self, event: Any) -> None:
        self._go_on(event)

    def on_transaction_aborted(self, event: Any) -> None:
        self._go_on(event)

    def _go_on(self, event: Any) -> None:
        self.ended += 1
        if self.ended < 4:
            self.container.declare_transaction(event.connection, handler=self)
        else:
            event.connection.close()


@pytest.mark.engine
def test_transactions(broker: BrokerProcess, connect: Connect) -> None:
    queue = f"/queue/{name_of('transacted')}"
    client = Transacting(f"amqp://127.0.0.1:{broker.port()}", queue)
    Container(client).run()
    assert client.ended == 4
    receiver = connect().create_receiver(queue)
    assert [receiver.receive().body for _ in range(6)] == [0, 1, 2, 20, 21, 22]
    assert is_empty(receiver)


@pytest.mark.engine
def test_what_was_accepted_survives_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", BOTH)
    broker.start()
    connection = amqp(broker, "kept")
    sender = connection.create_sender("/queue/kept")
    for number in range(20):
        sender.send(Message(body=number, durable=True, properties={"n": ulong(number)}))
    subscription = connection.create_receiver("/topic/t", name="sub", options=DurableSubscription())
    subscription.link.detach()
    topic = connection.create_sender("/topic/t")
    topic.send(Message(body="for later", durable=True))
    receiver = connection.create_receiver("/queue/kept", credit=5)
    for _ in range(5):
        receiver.receive()
        receiver.accept()
    connection.create_sender("/queue/other").send(Message(body="behind", durable=True))
    broker.kill()
    broker.start()
    connection = amqp(broker, "kept")
    receiver = connection.create_receiver("/queue/kept")
    got = [receiver.receive() for _ in range(15)]
    assert [message.body for message in got] == list(range(5, 20))
    assert type(got[0].properties["n"]) is ulong
    again = connection.create_receiver("/topic/t", name="sub", options=DurableSubscription())
    assert again.receive().body == "for later"
    connection.close()
    assert broker.stop() == 0


def test_logins(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    users = data / "users"
    users.write_text(format_users([make_user("ann", "secret")]))
    users.chmod(0o600)
    with BrokerProcess(data, BOTH) as broker:
        url = f"amqp://127.0.0.1:{broker.port()}"
        connection = BlockingConnection(
            url, timeout=WAIT_S, user="ann", password="secret", allow_insecure_mechs=True
        )
        connection.create_sender("/queue/a").send(Message(body="x"))
        connection.close()
        with pytest.raises(Exception, match=r"(?i)auth"):
            BlockingConnection(
                url, timeout=WAIT_S, user="ann", password="wrong", allow_insecure_mechs=True
            )


# --- beside STOMP ---------------------------------------------------------------------------------


@pytest.fixture
def stomp(broker: BrokerProcess) -> Iterator[Client]:
    client = Client(broker.port(), "1.2")
    client.connect()
    yield client
    client.disconnect()


@pytest.mark.engine
def test_amqp_to_stomp(connect: Connect, stomp: Client) -> None:
    queue = f"/queue/{name_of('to-stomp')}"
    message = Message(
        body="héllo", durable=True, priority=7, ttl=60, subject="order", reply_to="/queue/r",
        correlation_id=ulong(7), id="m1", properties={"colour": "red", "n": 5, "ok": True},
        content_type=symbol("text/plain"),
    )  # fmt: skip
    connect().create_sender(queue).send(message)
    stomp.subscribe(queue, ack="auto")
    (got,) = stomp.recorder.take(1)
    assert got.body == "héllo"
    expected = {
        "persistent": "true", "priority": "7", "type": "order", "reply-to": "/queue/r",
        "correlation-id": "AMQP_ULONG:7", "JMSMessageID": "m1", "colour": "red", "n": "5",
        "ok": "true", "content-type": "text/plain", "destination": queue,
    }  # fmt: skip
    assert {name: got.headers.get(name) for name in expected} == expected
    assert int(got.headers["expires"]) > 1_600_000_000_000


def test_stomp_to_amqp(connect: Connect, stomp: Client) -> None:
    queue = f"/queue/{name_of('to-amqp')}"
    stomp.send(
        queue, "héllo", persistent="true", priority="6", type="order", colour="red",
        **{"reply-to": "/queue/r", "correlation-id": "AMQP_ULONG:7", "content-type": "text/plain"},
    )  # fmt: skip
    got = connect().create_receiver(queue).receive()
    assert (got.body, got.durable, got.priority) == ("héllo", True, 6)
    assert (got.subject, got.reply_to, got.correlation_id) == ("order", "/queue/r", 7)
    assert (got.content_type, got.properties["colour"]) == ("text/plain", "red")
    assert got.address == queue


@pytest.mark.engine
def test_a_large_body_goes_from_stomp_to_amqp_and_back(connect: Connect, stomp: Client) -> None:
    there, back = f"/queue/{name_of('there')}", f"/queue/{name_of('back')}"
    stomp.send(there, "x" * 400_000)
    connection = connect()
    got = connection.create_receiver(there).receive()
    assert bytes(got.body) == b"x" * 400_000
    connection.create_sender(back).send(Message(body=got.body))
    stomp.subscribe(back, ack="auto")
    (returned,) = stomp.recorder.take(1)
    assert returned.body == "x" * 400_000


def test_stomp_selects_what_amqp_has_sent(connect: Connect, stomp: Client) -> None:
    queue = f"/queue/{name_of('picked')}"
    sender = connect().create_sender(queue)
    for number in range(4):
        sender.send(Message(body=str(number), properties={"n": number}))
    stomp.subscribe(queue, ack="auto", selector="n >= 2")
    assert [message.body for message in stomp.recorder.take(2)] == ["2", "3"]


def test_the_api_shows_clients_and_messages(broker: BrokerProcess, connect: Connect) -> None:
    queue = name_of("shown")
    connection = connect("shown-client")
    connection.create_sender(f"/queue/{queue}").send(
        Message(body="text", properties={"colour": "red"})
    )
    api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
    found = [each for each in api.items("/connections") if each["clientId"] == "shown-client"]
    assert [each["protocol"] for each in found] == ["AMQP 1.0"]
    (message,) = api.items(f"/queues/{queue}/messages")
    assert message["headers"]["colour"] == "red"
