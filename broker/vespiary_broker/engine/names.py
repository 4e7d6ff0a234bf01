"""Names of destinations: prefixes, fully qualified queue names, what a name may contain.

Owns the way from the text that a client sends to (address, queue, routing type). Must never look
at what exists. Called by the server's sessions, by `registry` and by the admin API.

    /queue/orders          address orders, ANYCAST (the acceptor's anycast-prefix)
    /topic/prices          address prices, MULTICAST (its multicast-prefix)
    orders                 address orders; the address or the settings say which type
    queue://orders         as /queue/orders: forms that clients of other brokers write are mapped
    /exchange/orders       rejected: there is nothing here that it could mean
    news.#                 all addresses whose names begin with news (`wildcards`)
    prices::audit          the queue audit of the address prices ("fully qualified queue name")
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote

from vespiary_spec import limits
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType

QUEUE_SEPARATOR: Final = "::"
PREFIXES: Final = ("/queue/", "/topic/")
"""Prefixes of queues and of topics, where an acceptor has no others."""
OWN_PREFIX: Final = "$mqtt."
"""Addresses that begin so are the broker's own: no client sends to them or consumes there."""
_SYS_WORD: Final = "$SYS"
_STATE_WORDS_MIN: Final = 5
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]")


class _ForeignForm(NamedTuple):
    """How clients of other brokers write a queue or a topic.

    Attributes:
        prefix: What stands in front of the name.
        routing_type: What it means.
        is_encoded: Whether the name is percent-encoded.
        has_options: Whether options of the other broker may stand behind a question mark.
    """

    prefix: str
    routing_type: RoutingType
    is_encoded: bool = False
    has_options: bool = False


_FOREIGN_FORMS: Final = (
    _ForeignForm("/queues/", RoutingType.ANYCAST, is_encoded=True),
    _ForeignForm("/amq/queue/", RoutingType.ANYCAST, is_encoded=True),
    _ForeignForm("queue://", RoutingType.ANYCAST, has_options=True),
    _ForeignForm("jms.queue.", RoutingType.ANYCAST),
    _ForeignForm("/topics/", RoutingType.MULTICAST, is_encoded=True),
    _ForeignForm("topic://", RoutingType.MULTICAST, has_options=True),
    _ForeignForm("jms.topic.", RoutingType.MULTICAST),
)
_EXCHANGES: Final = ("/exchange/", "/exchanges/")
_TEMPORARY: Final = (
    "/temp-queue/",
    "/temp-topic/",
    "/reply-queue/",
    "temp-queue://",
    "temp-topic://",
    "jms.tempqueue.",
    "jms.temptopic.",
)


@dataclass(eq=False, slots=True)
class Sender:
    """Who sends and subscribes: one session of one client, whatever its destinations.

    Attributes:
        client_id: Name of the client; empty if it has none.
    """

    client_id: str = ""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a client sends to or consumes from.

    Attributes:
        address: Name of the address, without prefix.
        queue: Name of the queue of a fully qualified name; None otherwise.
        routing_type: What prefix or header ask for; None when they say nothing.
        user: Who asks, which permissions are looked up for; what is made for it counts against
            that user's limit. Empty is nobody.
        sender: The session that asks; None: nobody's.
        is_trusted: Whether the broker itself asks, which needs no permission.
    """

    address: str
    queue: str | None = None
    routing_type: RoutingType | None = None
    user: str = ""
    sender: Sender | None = None
    is_trusted: bool = False


class InvalidName(RemoteProtocolError):  # noqa: N818 (as its kin)
    """A text cannot be the name of an address or a queue, or not for what a client asks."""


def check_names(name: str, address: str, *, is_own: bool) -> None:
    """Check the names of a queue and of its address.

    Args:
        name: Of the queue.
        address: Of its address.
        is_own: Whether the broker makes it for itself.

    Raises:
        InvalidName: One may be no name, or no name of what clients make.
    """
    for text, kind in ((name, "queue"), (address, "address")):
        check_name(text, kind)
        if not is_own and text.startswith(OWN_PREFIX):
            raise InvalidName(f"the {kind} {text[:100]} is the broker's own")


def check_name(name: str, kind: str) -> str:
    """Return the name of an address or a queue if it may be one.

    Args:
        name: The name.
        kind: What it names, for the message: `address` or `queue`.

    Raises:
        InvalidName: It is empty, too long, has control characters, or a space at the beginning
            or end.
    """
    size_bytes = len(name.encode())
    if not 0 < size_bytes <= limits.ADDRESS_NAME_CHARACTERS_MAX:
        raise InvalidName(
            f"the name of the {kind} has a wrong length",
            measured=f"{size_bytes} bytes",
            allowed=f"1 to {limits.ADDRESS_NAME_CHARACTERS_MAX} bytes",
        )
    if bad := _UNPRINTABLE.search(name):
        raise InvalidName(
            f"the name of the {kind} has a control character at {bad.start()}",
            measured=ascii(name),
            allowed="no control characters",
        )
    # Nearly always a slip, such as `destination: /queue/a`: STOMP 1.1 and later keep that space.
    if name != name.strip(" "):
        raise InvalidName(
            f"the name of the {kind} begins or ends with a space",
            measured=ascii(name),
            allowed="spaces inside of it only",
        )
    return name


def check_not_own(destination: Destination) -> None:
    """Refuse a client an address that the broker keeps its own notes in.

    Raises:
        InvalidName: It is one.
    """
    if destination.address.startswith(OWN_PREFIX) and not destination.is_trusted:
        name = destination.address[:100]
        raise InvalidName(f"the address {name} is the broker's own, and not for clients")


def is_reserved(address: str, delimiter: str) -> bool:
    """Return whether only the broker itself sends to an address.

    These are its own addresses and those of `$SYS` topics. An exception is
    `$SYS.broker.connection.ID.state`, where the MQTT bridge ID says whether it is connected.

    Args:
        address: Name of the address.
        delimiter: Character between the words of a name.
    """
    if not address.startswith("$"):
        return False
    words = address.split(delimiter)
    if words[0] != _SYS_WORD:
        return address.startswith(OWN_PREFIX)
    is_state = words[1:3] == ["broker", "connection"] and words[-1] == "state"
    return not (is_state and len(words) >= _STATE_WORDS_MIN)


def check_writable(destination: Destination, delimiter: str) -> None:
    """Refuse to let a client send to an address that only the broker sends to.

    Args:
        destination: Where the client sends to.
        delimiter: Character between the words of a name.

    Raises:
        RemoteProtocolError: It is such an address.
    """
    check_not_own(destination)
    if not destination.is_trusted and is_reserved(destination.address, delimiter):
        name = destination.address[:100]
        raise InvalidName(f"only the broker itself sends to the address {name}")


def check_new_name(name: str, kind: str) -> str:
    """Return the name that somebody gives an address or a queue, if clients can say it.

    Args:
        name: The name.
        kind: As for `check_name`.

    Raises:
        InvalidName: As for `check_name`; or clients would take it for a queue of an address, or
            for another name, since they write it in a form of another broker.
    """
    check_name(name, kind)
    meaning = foreign_meaning(name, "", "")
    if meaning is not None:
        means = "queue" if meaning.routing_type is RoutingType.ANYCAST else "topic"
        own = ascii(meaning.name[:100])
        raise InvalidName(
            f"the name of the {kind} is another broker's form of the {means} {own}",
            measured=ascii(name[:100]),
            cure=f"name it {own}",
        )
    if QUEUE_SEPARATOR in name:
        raise InvalidName(
            f"the name of the {kind} has {QUEUE_SEPARATOR} in it, which stands between an address "
            "and its queue",
            measured=ascii(name[:100]),
            cure="name address and queue one by one",
        )
    return name


def parse_routing_type(text: str, header: str) -> RoutingType:
    """Return the routing type that a header asks for.

    Args:
        text: Value of the header, in any case.
        header: Its name, for the message.

    Raises:
        RemoteProtocolError: It is neither of the two.
    """
    try:
        return RoutingType(text.strip().upper())
    except ValueError:
        raise RemoteProtocolError(
            f"the header {header} has an unknown value",
            measured=ascii(text[:40]),
            allowed="ANYCAST or MULTICAST",
        ) from None


class Meaning(NamedTuple):
    """What a form of another broker means here.

    Attributes:
        routing_type: Whether it is a queue or a topic.
        name: What stands behind the prefix: an address, or `address::queue`.
    """

    routing_type: RoutingType
    name: str


def foreign_meaning(text: str, anycast_prefix: str, multicast_prefix: str) -> Meaning | None:
    """Return what a destination means that clients of other brokers write.

    Args:
        text: The destination, without a prefix of this broker.
        anycast_prefix: Prefix of queues; named in errors.
        multicast_prefix: Prefix of topics; named in errors.

    Returns:
        None if it is in no form of another broker.

    Raises:
        InvalidName: It is in a form that means nothing here; names the right one.
    """
    queue, topic = f"{anycast_prefix}NAME", f"{multicast_prefix}NAME"
    if text.startswith(_EXCHANGES):
        raise InvalidName(
            f"the destination {text[:100]!a} names an exchange, and there are none here",
            cure=f"write {queue} for a queue, or {topic} for a topic, to which consumers subscribe",
        )
    if text.startswith(_TEMPORARY):
        raise InvalidName(
            f"the destination {text[:100]!a} is another broker's form of a temporary destination",
            cure=f"write {queue} with a name that nobody can guess, or use a dynamic node of AMQP",
        )
    form = next((each for each in _FOREIGN_FORMS if text.startswith(each.prefix)), None)
    if form is None:
        return None
    name = text[len(form.prefix) :]
    if form.has_options and "?" in name:
        raise InvalidName(
            f"the destination {text[:100]!a} has options of another broker behind the ?",
            cure=f"leave them out: write {text[: text.index('?')][:100]}",
        )
    if form.is_encoded:
        try:
            name = unquote(name, errors="strict")
        except UnicodeDecodeError:
            raise InvalidName(
                f"the destination {text[:100]!a} is percent-encoded wrongly"
            ) from None
    return Meaning(form.routing_type, name)


def meant_queue(text: str) -> str:
    """Return the queue that a name in the form of another broker means; empty: it is in none.

    Args:
        text: What was given as the name of a queue.
    """
    try:
        meaning = foreign_meaning(text, "", "")
    except InvalidName:
        return ""
    return "" if meaning is None else meaning.name.rpartition("::")[2]


def own_form(text: str, anycast_prefix: str, multicast_prefix: str) -> str:
    """Return a destination as clients of this broker write it.

    Messages are stored with it, so whoever gets one can send there, whatever protocol it speaks.

    Args:
        text: What a client wrote.
        anycast_prefix: Prefix of queues; empty for none.
        multicast_prefix: Prefix of topics; empty for none.

    Raises:
        InvalidName: As for `foreign_meaning`.
    """
    if has_prefix(text, anycast_prefix, multicast_prefix):
        return text
    meaning = foreign_meaning(text, anycast_prefix, multicast_prefix)
    if meaning is None:
        return text
    is_queue = meaning.routing_type is RoutingType.ANYCAST
    return (anycast_prefix if is_queue else multicast_prefix) + meaning.name


def has_prefix(text: str, *prefixes: str) -> bool:
    """Whether a destination begins with one of these prefixes; empty ones do not count."""
    return text.startswith(tuple(prefix for prefix in prefixes if prefix))


def plain_address(text: str, anycast_prefix: str, multicast_prefix: str) -> str:
    """Return the address of a destination in its own form, without prefix and queue."""
    for prefix in (anycast_prefix, multicast_prefix):
        if prefix and text.startswith(prefix):
            text = text[len(prefix) :]
            break
    return text.partition(QUEUE_SEPARATOR)[0]


def parse_destination(
    text: str,
    *,
    anycast_prefix: str,
    multicast_prefix: str,
    routing_type: RoutingType | None = None,
    user: str = "",
    sender: Sender | None = None,
) -> Destination:
    """Return what the text of a destination means, in whatever form a client writes it.

    Args:
        text: The header's value, unescaped.
        anycast_prefix: Prefix of queues, such as `/queue/`; empty for none.
        multicast_prefix: Prefix of topics, such as `/topic/`; empty for none.
        routing_type: What a header of the same frame asks for; must not contradict the prefix.
        user: Who asks.
        sender: The session that asks.

    Raises:
        InvalidName: The name may not be one, or it is another broker's and means nothing here.
        RemoteProtocolError: Prefix and header contradict each other.
    """
    by_prefix: RoutingType | None = None
    name = text
    if anycast_prefix and text.startswith(anycast_prefix):
        by_prefix, name = RoutingType.ANYCAST, text[len(anycast_prefix) :]
    elif multicast_prefix and text.startswith(multicast_prefix):
        by_prefix, name = RoutingType.MULTICAST, text[len(multicast_prefix) :]
    elif meaning := foreign_meaning(text, anycast_prefix, multicast_prefix):
        by_prefix, name = meaning
    if by_prefix is not None and routing_type not in (None, by_prefix):
        raise RemoteProtocolError(
            f"destination {text[:100]!a} means {by_prefix}, but a header asks for {routing_type}",
            cure="leave one of them out",
        )
    address, separator, queue = name.partition(QUEUE_SEPARATOR)
    check_name(address, "address")
    if separator:
        if QUEUE_SEPARATOR in queue:
            raise InvalidName(f"destination {text[:100]!a} has more than one {QUEUE_SEPARATOR}")
        check_name(queue, "queue")
    return Destination(
        address, queue if separator else None, by_prefix or routing_type, user, sender
    )
