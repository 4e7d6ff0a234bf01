"""`vespiary send` and `receive`: their options, their target, what the server may do to them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from vespiary_broker.cli import terminal
from vespiary_broker.cli.program import run_program
from vespiary_broker.cli.stomp_connection import StompConnection, Target, parse_target
from vespiary_broker.cli.terminal import CommandFailed
from vespiary_codec.wire.stomp import (
    NEED_DATA,
    ClientEvent,
    Frame,
    Message,
    StompDecoder,
    encode,
)
from vespiary_testkit.waiting import WAIT_S

Script = Callable[["Server", Frame], None]


class Server:
    """A STOMP server that answers one connection as a script says, frame by frame."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.frames: list[Frame] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(WAIT_S)
        self.connection = self.listening
        self.url = f"stomp://127.0.0.1:{self.listening.getsockname()[1]}"

    def run(self) -> None:
        self.connection, _ = self.listening.accept()
        decoder = StompDecoder(role="server")
        with self.connection:
            while data := self.connection.recv(65536):
                decoder.feed(data)
                while (event := decoder.next_event()) is not NEED_DATA:
                    assert isinstance(event, Frame)
                    if event.command == "CONNECT":
                        decoder.set_version("1.2")
                    self.frames.append(event)
                    self.script(self, event)

    def answer(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.connection.sendall(encode(Frame(command, list(headers.items()), body), "1.2"))

    def receipt(self, frame: Frame, **headers: str) -> None:
        receipt_id = frame.get("receipt")
        if receipt_id is not None:
            self.answer("RECEIPT", {"receipt-id": receipt_id, **headers})


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    server = Server(script)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        thread.join(10)
        server.listening.close()


def polite(messages: tuple[bytes, ...] = ()) -> Script:
    """Answer everything; give the messages to the first subscription."""

    def script(server: Server, frame: Frame) -> None:
        if frame.command == "CONNECT":
            server.answer("CONNECTED", {"version": "1.2"})
        server.receipt(frame)
        if frame.command == "SUBSCRIBE":
            for number, body in enumerate(messages):
                headers = {
                    "subscription": frame.get("id", ""),
                    "message-id": str(number),
                    "ack": str(number),
                    "destination": "orders",
                    "colour": "red",
                }
                server.answer("MESSAGE", headers, body)

    return script


def refusing(message: str, on: str = "CONNECT", body: bytes = b"") -> Script:
    def script(server: Server, frame: Frame) -> None:
        if frame.command == on:
            server.answer("ERROR", {"message": message}, body)
            server.connection.shutdown(socket.SHUT_WR)
        elif frame.command == "CONNECT":
            server.answer("CONNECTED", {"version": "1.2"})

    return script


def test_a_message_is_sent_with_its_headers_and_confirmed(capsys):
    with serving(polite()) as server:
        options = ["--header", "colour=red=blue", "--url", server.url]
        assert run_program(["send", "orders", "grüße", *options]) == 0
    assert "1 message to orders: confirmed" in capsys.readouterr().out
    sent = server.frames[1]
    assert (sent.command, sent.body) == ("SEND", "grüße".encode())
    assert sent.get("destination") == "orders"
    assert sent.get("destination-type") == "ANYCAST"
    assert sent.get("persistent") == "true"
    assert sent.get("colour") == "red=blue"
    assert server.frames[-1].command == "DISCONNECT"


def test_many_messages_are_counted_when_confirmed(capsys):
    with serving(polite()) as server:
        options = ["-n", "2500", "--topic", "--no-persistent", "--json", "--url", server.url]
        assert run_program(["send", "t", "x", *options]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["confirmed"], outcome["destination"]) == (2500, "t")
    sent = [frame for frame in server.frames if frame.command == "SEND"]
    assert len(sent) == 2500
    assert (sent[0].get("destination-type"), sent[0].get("persistent")) == ("MULTICAST", "false")


@pytest.mark.parametrize(
    ("count", "unrouted", "said"),
    [
        (1, 1, "1 message to orders: confirmed; no queue accepted it\n"),
        (3, 3, "3 messages to orders: confirmed; no queue accepted them\n"),
        (3, 2, "3 messages to orders: confirmed; no queue accepted 2 of them\n"),
    ],
)
def test_what_no_queue_accepted_is_said(
    count: int, unrouted: int, said: str, capsys: pytest.CaptureFixture[str]
):
    def script(server: Server, frame: Frame) -> None:
        sent = sum(frame.command == "SEND" for frame in server.frames)
        if frame.command == "SEND" and sent <= unrouted:
            server.receipt(frame, queues="0")
        else:
            polite()(server, frame)

    for options in ([], ["--json"]):
        with serving(script) as server:
            options = [*options, "-n", str(count), "--url", server.url]
            assert run_program(["send", "orders", "x", *options]) == 0
    line, _, outcome = capsys.readouterr().out.partition("\n")
    assert line + "\n" == said
    found = json.loads(outcome)
    assert (found["confirmed"], found["unrouted"]) == (count, unrouted)


def test_a_destination_in_the_form_of_another_broker_says_itself_what_it_is():
    with serving(polite()) as server:
        assert run_program(["send", "topic://prices", "x", "--url", server.url]) == 0
    sent = server.frames[1]
    assert (sent.get("destination"), sent.get("destination-type")) == ("topic://prices", None)


def test_a_destination_that_means_nothing_here_names_the_right_form(
    capsys: pytest.CaptureFixture[str],
):
    with serving(polite()) as server:
        assert run_program(["send", "/exchange/x/y", "x", "--url", server.url]) == 1
        socket.create_connection(("127.0.0.1", server.listening.getsockname()[1])).close()
    assert "/queue/NAME" in capsys.readouterr().err


def test_a_destination_with_a_prefix_says_itself_what_it_is():
    with serving(polite()) as server:
        assert run_program(["send", "/topic/prices", "x", "--url", server.url]) == 0
    assert server.frames[1].get("destination-type") is None


def test_a_refusal_is_told_with_the_broker_s_sentence(capsys):
    body = b"the queue is closed. [VSP-P102]\nThe connection is closed.\n"
    with serving(refusing("the queue is closed.", "SEND", body)) as server:
        assert run_program(["send", "orders", "x", "--url", server.url]) == 1
    assert capsys.readouterr().err == (
        "vespiary: the broker refused: the queue is closed. [VSP-P102]\n"
    )


def test_a_refused_login_says_how_to_name_a_user(capsys):
    with serving(refusing("this broker needs a login.")) as server:
        assert run_program(["send", "orders", "x", "--url", server.url]) == 1
    assert "--url stomp://USER@" in capsys.readouterr().err


def test_the_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VESPIARY_PASSWORD", "secret")
    with serving(polite()) as server:
        url = server.url.replace("stomp://", "stomp://alice@")
        assert run_program(["send", "orders", "x", "--url", url]) == 0
    assert server.frames[0].get("login") == "alice"
    assert server.frames[0].get("passcode") == "secret"


def test_a_closed_connection_is_a_sentence(capsys):
    def script(server: Server, frame: Frame) -> None:
        if frame.command == "CONNECT":
            server.answer("CONNECTED", {"version": "1.2"})
        else:
            server.connection.shutdown(socket.SHUT_RDWR)

    with serving(script) as server:
        assert run_program(["send", "orders", "x", "--url", server.url]) == 1
    assert "the broker closed the connection" in capsys.readouterr().err


def test_messages_are_printed_and_acknowledged(capsys):
    with serving(polite((b"one", b"two\n"))) as server:
        assert run_program(["receive", "orders", "-n", "2", "--url", server.url]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    commands = [frame.command for frame in server.frames]
    assert commands == ["CONNECT", "SUBSCRIBE", "ACK", "ACK", "UNSUBSCRIBE", "DISCONNECT"]
    assert server.frames[1].get("prefetch-count") == "1"
    assert server.frames[1].get("subscription-type") == "ANYCAST"
    assert [server.frames[i].get("id") for i in (2, 3)] == ["0", "1"]


def test_raw_bodies_and_headers(capsysbinary):
    with serving(polite((b"a\0b",))) as server:
        assert run_program(["receive", "orders", "--raw", "--url", server.url]) == 0
    assert capsysbinary.readouterr().out == b"a\0b"
    with serving(polite((b"a",))) as server:
        assert run_program(["receive", "orders", "--headers", "--url", server.url]) == 0
    assert b"colour: red\ncontent-length: 1\n\na\n" in capsysbinary.readouterr().out


def test_messages_as_json(capsys):
    with serving(polite(("ö".encode(), b"\xff"))) as server:
        assert run_program(["receive", "orders", "-n", "2", "--json", "--url", server.url]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["body"], first["headers"]["colour"]) == ("ö", "red")
    assert second["bodyBase64"] == "/w=="


def test_too_few_messages_are_exit_code_1(capsys, monkeypatch: pytest.MonkeyPatch):
    wait = StompConnection.wait
    events: list[ClientEvent | None] = []
    asked: list[float | None] = []

    def wait_less(connection: StompConnection, timeout_s: float | None) -> ClientEvent | None:
        """Wait a moment only for what never comes: the message behind the first one."""
        if Message in map(type, events) and not connection.client.unconfirmed:
            asked.append(timeout_s)
            timeout_s = 0.05
        events.append(wait(connection, timeout_s))
        return events[-1]

    monkeypatch.setattr(StompConnection, "wait", wait_less)
    with serving(polite((b"one",))) as server:
        options = ["-n", "3", "--timeout", f"{WAIT_S:g}", "--url", server.url]
        assert run_program(["receive", "orders", *options]) == 1
    assert asked == [WAIT_S]  # from when the broker has confirmed the acknowledgement
    captured = capsys.readouterr()
    assert captured.out == "one\n"
    assert f"1 of 3 messages came from orders; none for {WAIT_S:g} s" in captured.err
    assert "ACK" in [frame.command for frame in server.frames]


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("stomp://h", Target("h", 61616, None, is_tls=False)),
        ("stomp://u@h:1", Target("h", 1, "u", is_tls=False)),
        ("stomp+ssl://[::1]:5/", Target("::1", 5, None, is_tls=True)),
    ],
)
def test_urls(url: str, target: Target):
    assert parse_target(url) == target


@pytest.mark.parametrize("url", ["h:61616", "tcp://h", "stomp://", "stomp://h:x", "stomp://u:p@h"])
def test_other_urls_are_refused(url: str):
    with pytest.raises(CommandFailed):
        parse_target(url)


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "orders"],
        ["send", "orders", "x", "--file", "/dev/null"],
        ["send", "orders", "x", "--header", "novalue"],
        ["send", "/queue/orders", "x", "--topic"],
        ["send", "jms.queue.orders", "x", "--topic"],
        ["send", "orders", "x", "-n", "0"],
        ["send", "orders", "x", "--password-file", "/dev/null"],
        ["receive", "orders", "--follow", "-n", "1"],
        ["receive"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]):
    assert run_program(arguments) == 2


def test_nobody_there(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"stomp://127.0.0.1:{server.getsockname()[1]}"
    assert run_program(["send", "orders", "x", "--url", url]) == 1
    error = capsys.readouterr().err
    assert "cannot connect: Connection refused" in error
    assert "vespiary run" in error


def answering(reply: bytes) -> str:
    """Return the address of a server that answers the first bytes with these, once."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listening.getsockname()[1]}"


def test_tls_to_a_port_without_it_names_the_scheme(capsys: pytest.CaptureFixture[str]):
    place = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert run_program(["send", "--url", f"stomp+ssl://{place}", "orders", "x"]) == 1
    error = capsys.readouterr().err
    assert "does not speak TLS" in error
    assert f"--url stomp://{place}" in error
    assert "SSL" not in error


def test_a_port_with_tls_names_the_scheme(capsys: pytest.CaptureFixture[str]):
    place = answering(bytes([0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46]))
    assert run_program(["send", "--url", f"stomp://{place}", "orders", "x"]) == 1
    assert f"speaks TLS: write --url stomp+ssl://{place}" in capsys.readouterr().err


def test_a_file_of_authorities_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]):
    place = answering(b"")
    assert run_program(["send", "--ca", "nosuch", "--url", f"stomp+ssl://{place}", "a", "x"]) == 1
    assert "--ca nosuch: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "said"), [(0, "0 things"), (1, "1 thing"), (2, "2 things")])
def test_numbers_and_their_nouns_agree(count: int, said: str):
    assert terminal.counted(count, "thing") == said
