"""Brokers that can't be reached, or are none: a sentence in a bounded time, and bounded memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vespiary_pipeline import broker_api
from vespiary_pipeline.broker_api import BrokerApi
from vespiary_pipeline.sink import connection
from vespiary_pipeline.sink.connection import SinkConnection, check_broker
from vespiary_pipeline.sink.sink_options import read_sink_options
from vespiary_pipeline.sink.writer import BatchSink
from vespiary_pipeline.stream.client import Claim, StreamClient
from vespiary_pipeline.stream.reader import StreamReader
from vespiary_pipeline.stream.stream_options import read_stream_options
from vespiary_spec.errors import BrokerRefused, ConfigError, NativeError, VespiaryError
from vespiary_testkit.waiting import WAIT_S

Answer = Callable[[socket.socket], None]


class StrangeListener:
    """A listener that is no broker: it does with each connection what a test says.

    Args:
        answer: Called with each, in a thread.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.calls = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:  # closed
                return
            self.calls += 1
            with one:
                try:
                    self._answer(one)
                except OSError:
                    continue  # it went away

    def close(self) -> None:
        self._listening.close()


@contextmanager
def listening(answer: Answer) -> Iterator[StrangeListener]:
    listener = StrangeListener(answer)
    try:
        yield listener
    finally:
        listener.close()


def silent(one: socket.socket) -> None:
    """Answer nothing, until the other side goes."""
    while one.recv(65536):
        pass


def says(*pieces: bytes) -> Answer:
    def answer(one: socket.socket) -> None:
        one.recv(65536)
        for piece in pieces:
            one.sendall(piece)

    return answer


def http_answer(body: bytes, status: str = "200 OK") -> Answer:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
    return says(head.encode() + body)


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_api, "PAUSE_S", 0.01)
    monkeypatch.setattr(broker_api, "TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(connection, "LOGIN_TIMEOUT_S", WAIT_S)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def sink(port: int, **options: str) -> dict[str, str]:
    return {"url": url(port), "stompUrl": f"stomp://127.0.0.1:{port}", "address": "a", **options}


def by_stream(port: int) -> None:
    options = read_stream_options({"url": url(port), "queues": "a"})
    StreamReader(options, ("sequence",)).initialOffset()


WAYS: dict[str, Callable[[int], object]] = {
    "stream": by_stream,
    "sink of a DataFrame": lambda port: BatchSink(read_sink_options(sink(port))),
    "sink of a task": lambda port: SinkConnection(read_sink_options(sink(port))),
    "replay": lambda port: check_broker(read_sink_options(sink(port))),
    "replay, plain": lambda port: check_broker(read_sink_options(sink(port, delivery="plain"))),
}
"""The ways to a broker."""
OVER_HTTP = ("stream", "sink of a DataFrame", "replay")


def refusal(way: str, port: int) -> VespiaryError:
    """Return what is said of a broker: one line that names it, with a cure."""
    with pytest.raises(VespiaryError) as caught:
        WAYS[way](port)
    said = str(caught.value)
    assert f"127.0.0.1:{port}: " in said
    assert caught.value.cure
    assert "\n" not in said
    return caught.value


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_does_not_run_is_told(way: str, refusing: int) -> None:
    error = refusal(way, refusing)
    assert isinstance(error, NativeError)
    assert "Connection refused" in str(error)
    assert "Is it running?" in str(error)


@pytest.mark.parametrize("way", WAYS)
def test_one_that_answers_nothing_is_waited_for_once(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_api, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(connection, "LOGIN_TIMEOUT_S", 0.2)
    with listening(silent) as listener:
        error = refusal(way, listener.port)
        assert "answered nothing for 0.2 s" in str(error)
        with socket.create_connection(("127.0.0.1", listener.port), timeout=WAIT_S) as last:
            last.shutdown(socket.SHUT_WR)
            assert last.recv(1) == b"", "it is taken, and so are all calls before it"
        assert listener.calls == 2  # this one, and not three times that long


@pytest.mark.parametrize("way", OVER_HTTP)
@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[1, 2]", b"\xff\xfe"])
def test_an_answer_of_something_else_is_told(way: str, body: bytes) -> None:
    with listening(http_answer(body)) as listener:
        error = refusal(way, listener.port)
    assert isinstance(error, BrokerRefused)
    assert "what answers here is no broker's API" in str(error)


@pytest.mark.parametrize("way", OVER_HTTP)
def test_a_refusal_without_a_reason_is_told_with_its_status(way: str) -> None:
    with listening(http_answer(b"go away", "403 Forbidden")) as listener:
        assert "the answer is 403 without a reason" in str(refusal(way, listener.port))


@pytest.mark.parametrize("way", WAYS)
def test_a_listener_of_another_protocol_is_told(way: str) -> None:
    with listening(says(b"220 mail.example ESMTP\r\n" * 3)) as listener:
        refusal(way, listener.port)


def test_an_answer_without_end_is_not_taken_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_api, "ANSWER_BYTES_MAX", 1024 * 1024)
    sent: list[int] = []

    def endless(one: socket.socket) -> None:
        one.recv(65536)
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while len(sent) < 1024:  # which a broken limit would take whole
            one.sendall(bytes(65536))
            sent.append(65536)

    with listening(endless) as listener:
        assert "no broker's API" in str(refusal("stream", listener.port))
    assert sum(sent) < 16 * 1024 * 1024  # what the system's buffers took besides


def test_a_range_without_its_length_is_told() -> None:
    with listening(http_answer(b"blocks?")) as listener:
        client = StreamClient(read_stream_options({"url": url(listener.port), "queues": "a"}))
        with pytest.raises(BrokerRefused, match="no broker's API"):
            client.range(Claim("spark.a", 1, 1), 0, 10, 65536)


@pytest.mark.parametrize(
    "bad",
    ["127.0.0.1:8161", "ftp://h:1", "http://h:port", "http://h:99999", "http://[::1", "http://"],
)
def test_what_is_no_url_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="no URL of a broker"):
        BrokerApi(bad)
    with pytest.raises(ConfigError, match=r"no URL of a broker|no STOMP listener"):
        check_broker(read_sink_options({"url": bad}))


@pytest.mark.parametrize("bad", ["http://h:1", "stomp://", "stomp://h:port", "stomp://[::1"])
def test_what_is_no_stomp_listener_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="no STOMP listener"):
        read_sink_options({"url": "http://h", "stompUrl": bad})


def test_a_password_that_is_none_is_told_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="this file holds no password") as caught:
        BrokerApi("http://user@h", str(file))
    assert str(file) in str(caught.value)
    with pytest.raises(NativeError, match="none: the password can't be read: No such file"):
        BrokerApi("http://user@h", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="a user needs a password"):
        BrokerApi("http://user@h")
