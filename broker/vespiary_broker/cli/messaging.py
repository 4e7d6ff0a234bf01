"""`vespiary send` and `vespiary receive`: a look at a broker with stock STOMP, from the shell.

Owns: the two commands. `send` counts a message when its receipt has come. `receive` acknowledges a
message when it has been printed and before it waits for another one: the address may be full of
what is not acknowledged, and its producers wait.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.credentials import password_file_option, read_password
from vespiary_broker.cli.interruption import Interruption
from vespiary_broker.cli.stomp_connection import DEFAULT_URL, StompConnection, parse_target
from vespiary_broker.engine.names import PREFIXES, foreign_meaning
from vespiary_codec.wire.stomp import ClientEvent, Message, Receipt

F = TypeVar("F", bound=Callable[..., Any])

_UNCONFIRMED_MAX: Final = 1000
_CONFIRM_S: Final = 60.0
_FOLLOWING_PREFETCH: Final = 100
_SUBSCRIPTION: Final = "vespiary-receive"


def connection_options(function: F) -> F:
    """Give a command the options of a connection: url, ca, password-file, topic."""
    for option in (
        click.option(
            "--topic", is_flag=True, help="DESTINATION is a topic: every subscriber gets a copy."
        ),
        password_file_option,
        click.option(
            "--ca",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Authorities to trust with stomp+ssl:// (default: those of the system).",
        ),
        click.option(
            "--url",
            default=DEFAULT_URL,
            envvar="VESPIARY_URL",
            show_default=True,
            help="Broker, as stomp://user@host:port, or stomp+ssl:// for TLS.",
        ),
    ):
        function = option(function)
    return function


@contextmanager
def connected(url: str, password_file: Path | None, ca: Path | None) -> Iterator[StompConnection]:
    """Connect and log in until the end of the block."""
    target = parse_target(url)
    password = None
    if target.user is not None:
        password = read_password(target.user, password_file)
    elif password_file is not None:
        raise click.UsageError("a password needs a user: write --url stomp://USER@host:port")
    with StompConnection(target, password, ca) as connection:
        yield connection


def routing_headers(destination: str, is_topic: bool, header: str) -> list[tuple[str, str]]:
    """Return the header that says queue or topic; a destination with a prefix says it itself.

    Raises:
        InvalidName: The destination is in a form of another broker that means nothing here.
    """
    if foreign_meaning(destination, *PREFIXES) or destination.startswith("/"):
        if is_topic:
            raise click.UsageError(f"{destination} has a prefix already; leave --topic out")
        return []
    return [(header, "MULTICAST" if is_topic else "ANYCAST")]


@click.command("send", short_help="Send a message, or many.")
@click.argument("destination")
@click.argument("body", required=False)
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, help="Send it so many times.")
@click.option(
    "--file",
    "file",
    type=click.File("rb"),
    help="Send the content of a file; - is standard input.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Add a header.")
@click.option(
    "--persistent/--no-persistent", default=True, help="Survives a restart (default) or not."
)
@connection_options
@click.option("--json", "is_json", is_flag=True, help="Print the outcome as JSON.")
def send(
    destination: str,
    body: str | None,
    count: int,
    file: Any,
    headers: tuple[str, ...],
    persistent: bool,
    topic: bool,
    url: str,
    password_file: Path | None,
    ca: Path | None,
    is_json: bool,
) -> None:
    """Send BODY to DESTINATION and wait until the broker has confirmed it.

    DESTINATION is the name of a queue (orders), of a topic with --topic, or has a prefix
    (/queue/orders, /topic/prices). A user in --url needs a password: of --password-file, of
    VESPIARY_PASSWORD, or typed.
    """
    if (body is None) == (file is None):
        raise click.UsageError("send takes either BODY or --file")
    if body is not None:
        data = body.encode("utf-8", "surrogateescape")
        extra = [("content-type", "text/plain;charset=utf-8")]
    else:
        data, extra = file.read(), []
    extra += [("persistent", str(persistent).lower())]
    extra += routing_headers(destination, topic, "destination-type")
    given = [_pair(header) for header in headers]
    names = {name for name, _ in given}
    extra = given + [pair for pair in extra if pair[0] not in names]
    with connected(url, password_file, ca) as connection:
        started_s = time.monotonic()
        unrouted = _send_all(connection, destination, data, extra, count)
        seconds = time.monotonic() - started_s
        connection.disconnect()
    if is_json:
        outcome = {"destination": destination, "confirmed": count, "unrouted": unrouted}
        terminal.show_json(outcome | {"seconds": seconds})
        return
    what = f"{terminal.counted(count, 'message')} to {destination}: confirmed"
    if unrouted:
        terminal.echo(f"{what}; no queue accepted {which(unrouted, count)}")
    else:
        terminal.echo(f"{what} in {seconds:.3f} s")


def which(unrouted: int, count: int) -> str:
    """Return which messages no queue accepted, of `count` that were sent."""
    if unrouted < count:
        return f"{unrouted} of them"
    return "it" if count == 1 else "them"


def _send_all(
    connection: StompConnection,
    destination: str,
    body: bytes,
    headers: list[tuple[str, str]],
    count: int,
) -> int:
    """Send and wait for all receipts; never more than a bounded number is on its way.

    Returns:
        How many of the messages no queue accepted.
    """
    client = connection.client
    unrouted = 0
    with terminal.progress(f"sending to {destination}", count) as advance:

        def wait(timeout_s: float) -> bool:
            nonlocal unrouted
            event = wait_receipt(connection, advance, timeout_s)
            unrouted += isinstance(event, Receipt) and event.is_unrouted
            return event is not None

        for _ in range(count):
            receipt_id = client.new_receipt_id()
            connection.write(client.send(destination, body, headers, receipt_id=receipt_id))
            while len(client.unconfirmed) >= _UNCONFIRMED_MAX:
                wait(_CONFIRM_S)
            while wait(0.0):
                pass
        while client.unconfirmed:
            wait(_CONFIRM_S)
    return unrouted


def wait_receipt(
    connection: StompConnection, advance: Callable[[int], None], timeout_s: float
) -> ClientEvent | None:
    """Wait for an event, count it if it is a receipt, and return it; None: none within no time."""
    event = connection.wait(timeout_s)
    if event is None and timeout_s:
        raise terminal.CommandFailed(
            f"no confirmation within {timeout_s:g} s; unconfirmed, and perhaps lost: "
            f"{terminal.counted(len(connection.client.unconfirmed), 'message')}"
        )
    if isinstance(event, Receipt):
        advance(1)
    return event


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header takes NAME=VALUE, not {text!r}")
    return name, value


@click.command("receive", short_help="Receive and acknowledge messages.")
@click.argument("destination")
@click.option("-n", "--count", type=click.IntRange(min=1), help="How many (default: 1).")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for each message (default: 5; with --follow for ever).",
)
@click.option(
    "--follow", is_flag=True, help="Go on until Ctrl-C, with many messages on their way at once."
)
@click.option("--headers", "is_with_headers", is_flag=True, help="Print the headers as well.")
@click.option(
    "--raw",
    "is_raw",
    is_flag=True,
    help="Bodies as they are: no line feed is added, and nothing is escaped.",
)
@connection_options
@click.option("--json", "is_json", is_flag=True, help="Print each message as one line of JSON.")
def receive(
    destination: str,
    count: int | None,
    timeout_s: float | None,
    follow: bool,
    is_with_headers: bool,
    is_raw: bool,
    topic: bool,
    url: str,
    password_file: Path | None,
    ca: Path | None,
    is_json: bool,
) -> int:
    """Print messages of DESTINATION, and acknowledge each once it is printed.

    No more messages than were asked for leave their queue. Exit code 1 when fewer came.
    """
    if follow and count is not None:
        raise click.UsageError("--follow goes on for ever; leave --count out")
    wanted = None if follow else count or 1
    if timeout_s is None and not follow:
        timeout_s = 5.0
    headers = routing_headers(destination, topic, "subscription-type")
    # The broker hands out a message for each acknowledgement. One at a time: so every message is
    # acknowledged at once, and none comes that nobody asked for and goes back as redelivered.
    headers.append(("prefetch-count", str(_FOLLOWING_PREFETCH if wanted is None else 1)))

    def show(message: Message) -> None:
        if is_json:
            terminal.show_json(_plain(message))
        else:
            _print(message, is_with_headers=is_with_headers, is_raw=is_raw)

    interruption = Interruption()
    with connected(url, password_file, ca) as connection, interruption.caught():
        connection.waiting = interruption.waiting
        subscribe = connection.client.subscribe
        connection.write(subscribe(destination, _SUBSCRIPTION, "client-individual", headers))
        received = _receive_all(connection, wanted, timeout_s, show)
    if wanted is not None and received < wanted:
        terminal.show_sentence(
            f"{received} of {terminal.counted(wanted, 'message')} came from {destination}; none "
            f"for {timeout_s:g} s"
        )
        return 1
    return 0


def _receive_all(
    connection: StompConnection,
    wanted: int | None,
    timeout_s: float | None,
    show: Callable[[Message], None],
) -> int:
    """Show and acknowledge messages until there are enough, none comes, or Ctrl-C; then disconnect.

    The acknowledgement of the last one goes with the end of the subscription: else another message
    would come. The time for a message begins when the broker has confirmed what was acknowledged.

    Returns:
        How many came.

    Raises:
        KeyboardInterrupt: Before there were enough; all that was shown is acknowledged.
        OSError: `show` failed; all before is acknowledged.
    """
    client = connection.client
    received = 0
    last = b""
    failure: BaseException | None = None
    try:
        while wanted is None or received < wanted:
            event = connection.wait(_CONFIRM_S if client.unconfirmed else timeout_s)
            if event is None:
                break
            if not isinstance(event, Message):
                continue
            show(event)
            received += 1
            ack = client.ack(event, receipt_id=client.new_receipt_id())
            if received == wanted:
                last = ack
            else:
                connection.write(ack)
    except KeyboardInterrupt as interrupt:
        failure = interrupt if wanted is not None else None
    except OSError as error:
        failure = error
    connection.waiting = nullcontext
    connection.write(last + client.unsubscribe(_SUBSCRIPTION))
    connection.settle(_CONFIRM_S)
    connection.disconnect()
    if failure is not None:
        raise failure
    return received


def _print(message: Message, *, is_with_headers: bool, is_raw: bool) -> None:
    if is_with_headers:
        terminal.show_headers(message.headers, is_raw=is_raw)
    terminal.show_body(message.body, is_raw=is_raw, ends_line=not is_raw)


def _plain(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "destination": message.destination,
        "messageId": message.message_id,
        "headers": dict(reversed(message.headers)),  # of a repeated header the first one counts
    }
    try:
        plain["body"] = message.body.decode()
    except UnicodeDecodeError:
        plain["bodyBase64"] = base64.b64encode(message.body).decode()
    return plain
