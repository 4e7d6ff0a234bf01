"""A broker drained into another one over loopback: everything goes, once, whoever is killed."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.journal.transfer import TransferMessage, encode_batch
from vespiary_testkit.broker_calls import address, call, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority, Signed
from vespiary_testkit.relay import Relay
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

PAGING = (
    "journal-file-size=1MiB",
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=64KiB",
)
LARGE = "min-large-message-size=100KiB"


@contextmanager
def peer_of(broker: BrokerProcess) -> Iterator[StompPeer]:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        yield peer


def fill(
    broker: BrokerProcess,
    destination: str,
    count: int,
    body: bytes = b"x" * 1000,
    *,
    first: int = 0,
    **more: str,
) -> None:
    with peer_of(broker) as peer:
        for number in range(first, first + count):
            headers = {"destination": destination, "persistent": "true", "n": str(number), **more}
            if number == first + count - 1:
                headers["receipt"] = "all"
            peer.send("SEND", headers, body)
        peer.receive_receipt("all")


def browsed(broker: BrokerProcess, queue: str) -> list[dict[str, Any]]:
    """Return the messages of a queue, in its order."""
    output = run_command(broker, "browse", queue, "--all", "--json", "--body-bytes", "10")
    return [json.loads(line) for line in output.splitlines()]


def numbers(broker: BrokerProcess, queue: str) -> list[int]:
    return [int(message["headers"]["n"]) for message in browsed(broker, queue)]


def drain(source: BrokerProcess, target: BrokerProcess) -> Any:
    return call(source, "POST", "/drain", {"target": address(target)})


def phase(broker: BrokerProcess) -> str:
    return str(call(broker, "GET", "/drain")["phase"])


def wait_drained(source: BrokerProcess) -> Any:
    wait_for(lambda: phase(source) in ("drained", "failed"))
    return call(source, "GET", "/drain")


@pytest.mark.ci
def test_everything_of_a_broker_moves_as_it_is(tmp_path: Path) -> None:
    source_data, target_data = tmp_path / "source", tmp_path / "target"
    body = bytes(range(256)) * 2000
    with (
        BrokerProcess(target_data, LARGE) as target,
        BrokerProcess(source_data, LARGE, *PAGING) as source,
    ):
        fill(source, "/queue/deep", 1500)
        wait_for(lambda: len(list((source_data / "paging").glob("*/*.page"))) > 8)
        fill(source, "/queue/big", 3, body)
        fill(source, "/queue/odd", 1, b"odd", priority="7", colour="red")
        fill(source, "/queue/odd", 1, b"", expires=str(time.time_ns() // 10**6 + 10**7))
        later = str(time.time_ns() // 10**6 + 10**7)
        fill(source, "/queue/odd", 1, b"later", AMQ_SCHEDULED_TIME=later)
        with peer_of(source) as peer:
            subscription = {"id": "1", "destination": "/topic/news", "ack": "auto"}
            peer.send("SUBSCRIBE", {**subscription, "durable-subscription-name": "mine"})
        run_command(source, "queue", "create", "ring", "--ring-size", "5")
        fill(source, "/queue/ring", 9)
        with peer_of(source) as peer, peer_of(source) as consumer:
            consumer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/odd", "ack": "client"})
            consumer.receive_messages(2)  # they come back when the consumer is turned out
            assert drain(source, target)["phase"] == "draining"
            assert "drained" in (peer.receive_error().get("message") or "")
            with StompPeer(source.port()) as late:
                assert "drained" in (late.receive_error().get("message") or "")
            state = wait_drained(source)
        assert (state["phase"], state["reason"]) == ("drained", "")
        assert state["moved"] == 1500 + 3 + 3 + 5
        assert state["messagesLeft"] == 0
        assert numbers(target, "deep") == list(range(1500)), "in their order"
        assert numbers(target, "ring") == list(range(4, 9))
        assert call(target, "GET", "/queues/ring")["ringSize"] == 5
        odd = browsed(target, "odd")
        assert [m["headers"].get("colour") for m in odd] == ["red", None, None]
        assert [m["priority"] for m in odd] == [7, 4, 4]
        assert odd[2]["headers"]["AMQ_SCHEDULED_TIME"] == later
        with peer_of(target) as peer:
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/big", "ack": "auto"})
            assert [m.body for m in peer.receive_messages(3)] == [body] * 3
        assert list((source_data / "large-messages").glob("*.msg")) == [] or wait_for(
            lambda: not list((source_data / "large-messages").glob("*.msg"))
        )
        source.kill()
        source.start()
        assert phase(source) == "cordoned", "a restart lets nobody in"
        assert call(source, "GET", "/drain")["messagesLeft"] == 0
        assert call(source, "DELETE", "/drain")["phase"] == "none"
        fill(source, "/queue/deep", 1)


@pytest.mark.ci
@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])
def test_an_end_of_either_broker_loses_and_doubles_nothing(
    tmp_path: Path, end: Callable[[BrokerProcess], Any]
) -> None:
    """Either ends while something is taken there and not known here to be, as in a rollout."""
    target = BrokerProcess(tmp_path / "target", LARGE)
    source = BrokerProcess(tmp_path / "source", LARGE, *PAGING)
    total, larges = 6000, 12
    with target, source, Relay(target.port("http")) as relay:
        fill(source, "/queue/deep", total, b"x" * 500)
        fill(source, "/queue/big", larges, b"y" * 300_000)
        for turn in range(8):
            before = call(source, "GET", "/drain")["messagesLeft"] or total + larges
            drain_through(relay, source)
            wait_for(
                lambda before=before: call(source, "GET", "/drain")["messagesLeft"] < before,
                lambda: call(source, "GET", "/drain"),
            )
            relay.hold()
            wait_for(lambda: relay.has_kept or phase(source) == "drained")
            if relay.has_kept:
                victim = (source, target)[turn % 2]
                end(victim)
                relay.cut()
                victim.start()
                if victim is source:
                    assert phase(source) == "cordoned", "a restart lets nobody in"
            relay.target = target.port("http")
            relay.release()
            if phase(source) == "drained":
                break
        drain_through(relay, source)
        state = wait_drained(source)
        assert state["phase"] == "drained", state
        assert Counter(numbers(target, "deep")) == Counter(range(total))
        assert Counter(numbers(target, "big")) == Counter(range(larges))


def drain_through(relay: Relay, source: BrokerProcess) -> None:
    call(source, "POST", "/drain", {"target": f"http://127.0.0.1:{relay.port}"})


@pytest.mark.ci
@pytest.mark.engine
def test_messages_of_a_broker_that_came_back_are_not_taken_for_those_before(
    tmp_path: Path,
) -> None:
    """What is not persistent leaves no trace in the journal, and its sequences are told."""
    with (
        BrokerProcess(tmp_path / "target") as target,
        BrokerProcess(tmp_path / "source") as source,
    ):
        fill(source, "/queue/orders", 10, persistent="false")
        drain(source, target)
        assert wait_drained(source)["moved"] == 10
        source.stop()
        source.start()
        assert call(source, "DELETE", "/drain")["phase"] == "none"
        fill(source, "/queue/orders", 10, first=10)
        drain(source, target)
        state = wait_drained(source)
        assert (state["phase"], state["moved"], state["seenBefore"]) == ("drained", 10, 0)
        assert numbers(target, "orders") == list(range(20))


@pytest.mark.ci
def test_what_cannot_be_moved_is_said_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "target", "max-disk-usage=100") as target,
        BrokerProcess(tmp_path / "source") as source,
    ):
        fill(source, "/queue/orders", 10)
        run_command(target, "queue", "create", "orders", "--filter", "colour = 'red'")
        drain(source, target)
        state = wait_drained(source)
        assert state["phase"] == "failed"
        assert "the queue orders does not take a message" in state["reason"]
        assert numbers(source, "orders") == list(range(10))
        run_command(target, "queue", "update", "orders", "--filter", "")
        said = run_command(source, "drain", "--yes", "--to", address(target))
        assert "10 messages" in said
        assert "; 0 left" in said
        assert "drained" in run_command(source, "drain")
        assert "clients are let in again" in run_command(source, "drain", "--cancel")
        assert numbers(target, "orders") == list(range(10))


def test_a_broker_is_no_target_of_itself_nor_of_one_that_is_drained(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "a") as first,
        BrokerProcess(tmp_path / "b") as second,
    ):
        fill(first, "/queue/orders", 1)
        drain(first, first)
        assert "being drained itself" in wait_drained(first)["reason"]
        drain(second, first)
        fill_refused = wait_drained(second)
        assert fill_refused["phase"] == "drained", "it has nothing to move"
        with pytest.raises(urllib.error.HTTPError):
            call(first, "POST", "/drain", {"target": "ftp://x"})


@pytest.mark.engine
def test_a_batch_that_comes_again_adds_nothing_also_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "target", "id-cache-size=0", "journal-file-size=1MiB") as target:
        run_command(target, "queue", "create", "orders")
        batch = encode_batch(
            TransferMessage(n, b"destination:orders\nn:%d\n" % n, b"b" * 500, 1, 1, 4, 0)
            for n in range(1, 2001)
        )
        assert hand_over(target, batch) == {"taken": 2000, "seen": 0}
        assert hand_over(target, batch) == {"taken": 0, "seen": 2000}
        target.kill()
        target.start()
        assert hand_over(target, batch) == {"taken": 0, "seen": 2000}
        assert numbers(target, "orders") == list(range(1, 2001))
        with pytest.raises(urllib.error.HTTPError, match="409"):
            hand_over(target, batch[:-1] + b"x")


def hand_over(broker: BrokerProcess, batch: bytes) -> Any:
    """Post a batch of messages as a broker that is drained does."""
    query = "broker=0123abcd&queue=orders&queueId=7"
    request = urllib.request.Request(
        f"{address(broker)}/api/v1/transfers/messages?{query}", batch, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


# --- into a broker that speaks TLS ----------------------------------------------------------------


def tls_settings(folder: Path, signed: Signed) -> tuple[str, str]:
    signed.write(folder)
    return f"admin.tls.certificate={folder}/tls.crt", f"admin.tls.key={folder}/tls.key"


def over_tls(target: BrokerProcess, trusted: bytes, server_name: str = "") -> dict[str, str]:
    place = f"https://127.0.0.1:{target.port('http')}"
    return {"target": place, "authorities": trusted.decode(), "serverName": server_name}


def test_a_target_is_known_by_its_certificate_and_name_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    authority = Authority()
    own = authority.sign("orders.ns.svc")
    with (
        BrokerProcess(tmp_path / "target", *tls_settings(tmp_path / "tls", own)) as target,
        BrokerProcess(tmp_path / "source") as source,
    ):
        fill(source, "/queue/orders", 5)
        for wrong, said in (
            (over_tls(target, Authority().certificate), "CERTIFICATE_VERIFY_FAILED"),
            (over_tls(target, authority.certificate, "billing.ns.svc"), "Hostname mismatch"),
            (over_tls(target, authority.certificate, "orders..svc"), "label"),
            ({**over_tls(target, b"x"), "authorities": ""}, "CERTIFICATE_VERIFY_FAILED"),
            ({"target": over_tls(target, b"")["target"].replace("https", "http")}, "reached"),
        ):
            # Each is asked for while the one before goes on, which so trusts another certificate.
            assert call(source, "POST", "/drain", wrong)["phase"] == "draining"
            wait_for(lambda said=said: said in call(source, "GET", "/drain")["reason"])
        assert call(source, "GET", "/drain")["messagesLeft"] == 5
        right = over_tls(target, authority.certificate, "orders.ns.svc")
        assert call(source, "POST", "/drain", right)["phase"] == "draining"
        state = wait_drained(source)
        assert (state["phase"], state["moved"], state["reason"]) == ("drained", 5, "")


def test_a_certificate_that_nobody_known_signed_is_trusted_as_it_is(tmp_path: Path) -> None:
    own = Authority().sign("orders.ns.svc")
    with (
        BrokerProcess(tmp_path / "target", *tls_settings(tmp_path / "tls", own)) as target,
        BrokerProcess(tmp_path / "source") as source,
    ):
        fill(source, "/queue/orders", 5)
        with pytest.raises(urllib.error.HTTPError) as caught:
            call(source, "POST", "/drain", over_tls(target, b"no certificate"))
        assert caught.value.code == 400
        assert b"no certificates in PEM form" in caught.value.read()
        assert phase(source) == "none", "it lets clients in as before"
        call(source, "POST", "/drain", over_tls(target, own.certificate, "orders.ns.svc"))
        assert wait_drained(source)["moved"] == 5
