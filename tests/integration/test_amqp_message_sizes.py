"""`max-message-size` of stock clients that receive: bodies in files, pages, browsers, restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S

proton = pytest.importorskip("proton", reason="python-qpid-proton is not there: pip builds it")

from proton import Message  # noqa: E402
from proton.reactor import Copy, ReceiverOption  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402

MOST = 10_000
LARGE = 300_000
PAGES = ("address-settings.#.max-size-bytes=256KiB", "address-settings.#.page-size-bytes=64KiB")


class AtMost(ReceiverOption):
    """Asks for messages up to a size."""

    def apply(self, receiver: Any) -> None:
        receiver.max_message_size = MOST


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, "acceptors.all.protocols=AMQP", *PAGES) as process:
        yield process


def connected(broker: BrokerProcess) -> Any:
    return contextlib.closing(BlockingConnection(f"amqp://127.0.0.1:{broker.port()}", WAIT_S))


def take(receiver: Any, count: int) -> list[Any]:
    """Take so many messages and accept them."""
    found = []
    for _ in range(count):
        found.append(receiver.receive().body)
        receiver.accept()
    return found


def bodies(receiver: Any, count: int) -> list[Any]:
    """Take so many messages, and see that there are no more: the next is one that is sent now."""
    found = take(receiver, count)
    sender = receiver.connection.create_sender(receiver.link.source.address, name="marker")
    sender.send(Message(body="marker"))
    assert take(receiver, 1) == ["marker"], "there is one more"
    sender.close()
    return found


def send(connection: Any, queue: str, sizes: list[int]) -> None:
    sender = connection.create_sender(queue)
    for number, size in enumerate(sizes):
        sender.send(Message(body=str(number).ljust(size), durable=True))
    sender.close()


@pytest.mark.parametrize("large", [20_000, LARGE])
def test_larger_ones_stay_for_others(broker: BrokerProcess, large: int) -> None:
    queue = f"/queue/sizes.{large}"
    sizes = [10, large, 10, large, large, 10]
    with connected(broker) as connection:
        send(connection, queue, sizes)
        receiver = connection.create_receiver(queue, credit=5, options=AtMost())
        assert [int(body) for body in bodies(receiver, 3)] == [0, 2, 5]
        other = connection.create_receiver(queue, credit=5, name="other")
        found = take(other, 3)
        assert [(int(body), len(body)) for body in found] == [(1, large), (3, large), (4, large)]
        receiver.close()
        assert bodies(other, 0) == []


def test_a_browser(broker: BrokerProcess) -> None:
    with connected(broker) as connection:
        send(connection, "/queue/sizes.browsed", [LARGE, 10, 20_000, 10])
        options = [Copy(), AtMost()]
        browser = connection.create_receiver("/queue/sizes.browsed", credit=9, options=options)
        assert [int(browser.receive().body) for _ in range(2)] == [1, 3]
        browser.close()
        assert len(bodies(connection.create_receiver("/queue/sizes.browsed", credit=9), 4)) == 4


@pytest.mark.ci
def test_pages_and_a_restart(broker: BrokerProcess) -> None:
    """Most of it stands in pages; what the link passes over is there after a kill."""
    sizes = [20_000, 2_000, LARGE, 2_000] * 40
    with connected(broker) as connection:
        send(connection, "/queue/sizes.paged", sizes)
        receiver = connection.create_receiver("/queue/sizes.paged", credit=9, options=AtMost())
        small = [int(body) for body in bodies(receiver, 80)]
        assert small == [number for number, size in enumerate(sizes) if size < MOST]
        assert "larger than max-message-size of a link" in broker.log_text()
    broker.kill()
    broker.start()
    with connected(broker) as connection:
        found = bodies(connection.create_receiver("/queue/sizes.paged", credit=9), 80)
        assert [int(body) for body in found] == [n for n, size in enumerate(sizes) if size > MOST]
        assert {len(body) for body in found} == {20_000, LARGE}
