r"""Values that a selector needs, taken out of a message as it is stored.

Owns which name stands for what. Must never take a message's headers apart: it finds the lines of
the names that are asked for, and no others. Called by whoever evaluates a selector: queues whose
order Python decides, filters, diverts, browsers.

Stored properties are lines `name:value\n`, with STOMP 1.2's escapes where `is_escaped` says that
there are any; of a name that comes more than once the first line counts (STOMP 1.2, "Repeated
Header Entries"). Names of JMS and of the reference system that STOMP has no header for come from
what the broker knows of the message. Of a message that came by AMQP, application properties have
the types that they were sent with: those are read behind the lines, where a line has the name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from vespiary_broker.engine.selection.comparisons import within_long
from vespiary_broker.engine.selection.expressions import Text, Value
from vespiary_codec.wire.amqp.native_part import application_properties
from vespiary_codec.wire.amqp.values import Float
from vespiary_codec.wire.stomp.errors import RemoteProtocolError
from vespiary_codec.wire.stomp.escapes import escape, unescape
from vespiary_codec.wire.stomp.properties import NATIVE


class StoredMessage(Protocol):
    """What is read of a message; the core's views have these fields."""

    @property
    def sequence(self) -> int:
        """Its place in its queue."""

    @property
    def deliveries(self) -> int:
        """How often it was given to a consumer before."""

    @property
    def priority(self) -> int:
        """0 to 9."""

    @property
    def time_ms(self) -> int:
        """When it came, in milliseconds since the epoch."""

    @property
    def is_journalled(self) -> bool:
        """Whether it is kept over a restart."""

    @property
    def is_escaped(self) -> bool:
        """Whether there are escapes in `properties`."""

    @property
    def body_length(self) -> int:
        """Bytes of its body."""

    @property
    def properties(self) -> bytes:
        """Its headers."""


_SPLITS_MAX: Final = 8
"""Headers that are looked for one by one; with more, one pass over all lines takes less."""

Take = Callable[[Any, str], Value]
"""From a message, and its properties behind a line feed, to a value."""


def _begins(name: str) -> tuple[str, str]:
    """Return how the line of a header begins, as it is and escaped, behind a line feed."""
    return f"\n{name}:", f"\n{escape(name, '1.2')}:"


def _escaped_value(lines: str, begin: str) -> Value:
    parts = lines.split(begin, 1)
    if len(parts) == 1:
        return None
    return _unescaped(parts[1].partition("\n")[0])


def _unescaped(text: str) -> str:
    try:
        return unescape(text, "1.2") if "\\" in text else text
    except RemoteProtocolError:
        return text  # an escape that nobody knows: as it is


def _header(name: str) -> Take:
    """Return what takes the header of this name."""
    plain, escaped = _begins(name)

    def take(message: StoredMessage, lines: str) -> Value:
        if message.is_escaped:
            return _escaped_value(lines, escaped)
        parts = lines.split(plain, 1)
        return None if len(parts) == 1 else parts[1].partition("\n")[0]

    return take


_DURABLE: Final = ("NON_DURABLE", "DURABLE")
_DELIVERY_MODES: Final = ("NON_PERSISTENT", "PERSISTENT")


def _is_persistent(message: StoredMessage, lines: str) -> bool:
    return message.is_journalled or "\npersistent:true\n" in lines


_KNOWN: Final[dict[str, Take]] = {
    "JMSPriority": lambda message, _: message.priority,
    "JMSTimestamp": lambda message, _: message.time_ms,
    "JMSDeliveryMode": lambda message, lines: _DELIVERY_MODES[_is_persistent(message, lines)],
    "JMSXDeliveryCount": lambda message, _: message.deliveries + 1,
    "JMSExpiration": _header("expires"),
    "JMSCorrelationID": _header("correlation-id"),
    "JMSType": _header("type"),
    "JMSReplyTo": _header("reply-to"),
    "JMSDestination": _header("destination"),
    "AMQPriority": lambda message, _: message.priority,
    "AMQTimestamp": lambda message, _: message.time_ms,
    "AMQDurable": lambda message, lines: _DURABLE[_is_persistent(message, lines)],
    "AMQExpiration": _header("expires"),
    "AMQSize": lambda message, _: len(message.properties) + message.body_length,
    "AMQUserID": _header("JMSMessageID"),
    "AMQGroupID": _header("JMSXGroupID"),
}
"""Names that are no headers of STOMP; a header of that name counts where these give NULL."""


def _known_or_header(known: Take, name: str) -> Take:
    header = _header(name)

    def take(message: StoredMessage, lines: str) -> Value:
        value = known(message, lines)
        return header(message, lines) if value is None else value

    return take


def _give_types(values: dict[str, Value], typed: dict[str, Any]) -> None:
    """Replace texts by the values that they stand for; what says otherwise is another header."""
    for name, text in values.items():
        value = typed.get(name)
        if isinstance(value, str) and value == text:
            values[name] = Text(value)
        elif isinstance(value, bool) and text == str(value).lower():
            values[name] = value
        elif isinstance(value, int) and text == str(int(value)):
            values[name] = within_long(int(value))
        elif isinstance(value, float) and math.isfinite(value):
            own = value.text if isinstance(value, Float) else ""
            if text in (own, repr(float(value))):
                values[name] = float(text)  # what sketches of pages know of it, too


class Extractor:
    """Takes the values of certain names out of messages.

    Args:
        names: The names, as `Selector.names` has them.
        address: The address of the messages, for `AMQAddress`; empty if it is not known.
    """

    __slots__ = ("_escaped", "_headers", "_known", "_plain")

    def __init__(self, names: Iterable[str], *, address: str = "") -> None:
        self._headers: list[tuple[str, str, str]] = []
        self._known: list[tuple[str, Take]] = []
        for name in sorted(names):
            known = _KNOWN.get(name)
            if name == "AMQAddress" and address:
                self._known.append((name, lambda _message, _lines: address))
            elif known is not None:
                self._known.append((name, _known_or_header(known, name)))
            else:
                self._headers.append((name, *_begins(name)))
        self._plain = {plain[1:-1]: name for name, plain, _ in self._headers}
        self._escaped = {escaped[1:-1]: name for name, _, escaped in self._headers}

    def values_of(self, message: StoredMessage) -> dict[str, Value]:
        """Return the values of a message by name; those that it has not are None, or not there."""
        properties = message.properties
        end = properties.find(NATIVE)
        lines = "\n" + str(properties if end < 0 else properties[:end], "utf-8", "replace")
        values: dict[str, Value] = {}
        if len(self._headers) > _SPLITS_MAX:
            self._take_all(lines, values, is_escaped=message.is_escaped)
        elif message.is_escaped:
            for name, _, escaped in self._headers:
                values[name] = _escaped_value(lines, escaped)
        else:
            # Splitting twice takes half the time of finding the begin, the end and what is between.
            for name, plain, _ in self._headers:
                parts = lines.split(plain, 1)
                if len(parts) == 2:
                    values[name] = parts[1].partition("\n")[0]
        if end >= 0 and values:
            _give_types(values, application_properties(properties[end + 1 :], values))
        for name, take in self._known:
            values[name] = take(message, lines)
        return values

    def _take_all(self, lines: str, values: dict[str, Value], *, is_escaped: bool) -> None:
        """Take all headers in one pass, so that many names do not take as many passes."""
        wanted = self._escaped if is_escaped else self._plain
        for line in lines.split("\n"):
            begin, colon, text = line.partition(":")
            name = wanted.get(begin)
            if name is not None and colon and name not in values:
                values[name] = _unescaped(text) if is_escaped else text


def values_of(message: StoredMessage, names: Iterable[str]) -> dict[str, Value]:
    """Return the values of a message by name; for more than one message make an `Extractor`.

    Args:
        message: A message as the core shows it.
        names: The names.
    """
    return Extractor(names).values_of(message)
