"""The options of a sink: their names, values and defaults.

Owns what `format("vespiary").option(…)` may say when a broker's `url` is given to a writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from vespiary_pipeline.option_table import (
    FLAG,
    TEXT,
    Option,
    OptionTable,
    Value,
    number,
    one_of,
    size,
)
from vespiary_spec.errors import ConfigError

PORT_STOMP: Final = 61613
MODES: Final = ("fenced", "dedup", "plain")


class SinkOptions(NamedTuple):
    """What a sink was asked for.

    Attributes:
        url: HTTP listener of the broker, `http://user@host:port`.
        stomp_url: Its STOMP listener, `stomp://host:port` or `stomp+ssl://host:port`.
        password_file: File with the user's password, also on executors; empty: no login.
        address: Where rows go that do not say so.
        routing_type: `anycast` or `multicast`.
        delivery: `fenced`, `dedup` or `plain`.
        write_id: Name of the write, by which another run knows it; empty: each is a new one.
        is_persistent: The broker keeps the messages over a restart.
        transaction_bytes: Bytes of one transaction.
        timeout_s: Seconds in which the broker has to take or answer something.
    """

    url: str
    stomp_url: str = ""
    password_file: str = ""
    address: str = ""
    routing_type: str = "anycast"
    delivery: str = "fenced"
    write_id: str = ""
    is_persistent: bool = True
    transaction_bytes: int = 1024 * 1024
    timeout_s: int = 300


OPTIONS: Final[Mapping[str, Option]] = {
    "url": Option("url", TEXT, "HTTP listener of the broker, `http://user@host:port`; needed"),
    "stompUrl": Option(
        "stomp_url",
        TEXT,
        "STOMP listener, `stomp://host:port` or `stomp+ssl://host:port`; without it port"
        f" {PORT_STOMP} of the same host, with TLS where `url` is `https`",
    ),
    "passwordFile": Option(
        "password_file", TEXT, "the user's password, in a file that is there on executors too"
    ),
    "address": Option("address", TEXT, "where rows go that do not say so"),
    "routingType": Option(
        "routing_type",
        one_of("anycast", "multicast"),
        "`multicast`: to all subscriptions; with none the message is dropped",
    ),
    "delivery": Option("delivery", one_of(*MODES), "what is promised if something is killed"),
    "writeId": Option(
        "write_id",
        Value("up to 43 of `A-Z a-z 0-9 . _ -`", str),
        "name of a write of a DataFrame: another run with this name writes nothing",
    ),
    "persistent": Option("is_persistent", FLAG, "messages survive a restart of the broker"),
    "transactionBytes": Option(
        "transaction_bytes",
        size(4096, 4 * 1024 * 1024),
        "of one transaction; a larger row goes alone",
    ),
    "timeout": Option(
        "timeout_s",
        number(1),
        "seconds in which the broker has to take or answer something; a full address may hold a"
        " task that long",
    ),
}
"""By the names that users write. Beside these there is Spark's own `checkpointLocation`."""

TABLE: Final = OptionTable("a sink", OPTIONS, SinkOptions)
_SPARKS: Final = frozenset({"checkpointlocation"})


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return what a sink was asked for.

    Args:
        given: Spark's options: names in any case, values as text.

    Raises:
        UnknownSetting: A name is none of ours; the nearest one is told.
        ConfigError: A value is not allowed, or `url` is missing.
    """
    fields = TABLE.read(given, _SPARKS)
    if not fields.get("url"):
        raise ConfigError(
            "a sink needs this option", path="url", allowed="such as http://127.0.0.1:8161"
        )
    if fields.get("write_id") and fields.get("delivery", "fenced") == "plain":
        raise ConfigError(
            "delivery=plain remembers no write", path="writeId", value=fields["write_id"],
            cure="leave it out, or take delivery=fenced",
        )  # fmt: skip
    options = SinkOptions(**fields)
    stomp_place(options)
    return options


class StompPlace(NamedTuple):
    """Where a STOMP listener is."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        """Return it as a URL."""
        return f"stomp{'+ssl' if self.is_tls else ''}://{self.host}:{self.port}"


def stomp_place(options: SinkOptions) -> StompPlace:
    """Return where messages go: what is said, or the port 61613 of the HTTP listener's host.

    Raises:
        ConfigError: The URL is none of STOMP.
    """
    if not options.stomp_url:
        parts = _split("url", options.url)
        return StompPlace(parts.hostname or "", PORT_STOMP, parts.scheme == "https")
    parts = _split("stompUrl", options.stomp_url)
    if parts.scheme not in ("stomp", "stomp+ssl") or not parts.hostname or parts.path.strip("/"):
        raise _no_place("stompUrl", options.stomp_url)
    return StompPlace(parts.hostname, parts.port or PORT_STOMP, parts.scheme == "stomp+ssl")


def _split(name: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # a port that is none, a bracket too many
        raise _no_place(name, url) from error
    return parts


def _no_place(name: str, url: str) -> ConfigError:
    if name == "url":
        return ConfigError(
            "this is no URL of a broker", path="url", value=url, allowed="http://user@host:port"
        )
    return ConfigError(
        "this is no STOMP listener", path="stompUrl", value=url,
        allowed="stomp://host:port or stomp+ssl://host:port",
    )  # fmt: skip
