r"""The headers of rows in the form that the journal stores: lines, escaped as in STOMP 1.2.

Owns which headers a message gets. What stands in a column wins over the header of the same name in
the column `properties`; a column that is null leaves that header as it is. Headers of the transfer
are left out. Must never see a body. Called by `rows`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from vespiary_codec.wire.stomp.escapes import escape
from vespiary_codec.wire.stomp.properties import TRANSPORT_HEADERS
from vespiary_spec.errors import ImportRefused

PROPERTIES_BYTES_MAX: Final = 2**16 - 1
PRIORITY_USUAL: Final = 4
_KINDS: Final = ("ANYCAST", "MULTICAST")
_TIME_MS_MAX: Final = 2**53
_NUMBER: Final = re.compile(r"[0-9]{1,16}")
_OWN: Final = frozenset(
    {"destination", "destination-type", "priority", "expires", "persistent", "JMSXGroupID",
     "AMQ_SCHEDULED_TIME"}
)  # fmt: skip
"""Headers that the journal or the queue depends on."""


class Said(NamedTuple):
    """What columns say of a message, None where they say nothing.

    Attributes:
        address: Where it goes; never None.
        priority: 0 to 9.
        expires_ms: Milliseconds since 1970; 0: never.
        is_persistent: Whether a header says so.
    """

    address: str
    priority: int | None = None
    expires_ms: int | None = None
    is_persistent: bool = False


class Properties(NamedTuple):
    """The headers of a message, and what follows from them.

    Attributes:
        octets: Its header lines.
        priority: Its priority.
        is_special: The broker looks at it before it is given to a consumer.
        routing_type: `ANYCAST`, `MULTICAST`, or empty where they do not say.
    """

    octets: bytes
    priority: int
    is_special: bool
    routing_type: str


def bare(destination: str) -> str:
    """Return an address without the prefix that clients may write."""
    return destination.removeprefix("/queue/").removeprefix("/topic/")


class PropertyLines:
    """Writes headers. Owner: a task; it remembers the names of headers."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def write(self, headers: Iterable[tuple[str, str | None]], said: Said) -> Properties:
        """Return the headers of a message.

        Args:
            headers: From the column `properties`, in order.
            said: What other columns say.

        Raises:
            ImportRefused: A header cannot be one of STOMP, or all of them are too long.
        """
        lines: list[str] = []
        found: dict[str, str] = {}
        for name, value in headers:
            if value is None or name in TRANSPORT_HEADERS:
                continue
            if name in _OWN and name not in found:
                value = _chosen(name, value, said)
                found[name] = value
            lines.append(f"{self._names.get(name) or self._new(name)}{escape(value, '1.2')}\n")
        lines += _missing(found, said)
        text = "".join(lines)
        octets = text.encode()
        if len(octets) > PROPERTIES_BYTES_MAX or "\0" in text:
            raise ImportRefused(
                "the properties of a message cannot be stored",
                measured=f"{len(octets)} bytes" + (", with NUL" if "\0" in text else ""),
                allowed=f"at most {PROPERTIES_BYTES_MAX} bytes, without NUL",
            )
        return _judged(octets, found)

    def _new(self, name: str) -> str:
        if not name:
            raise ImportRefused("a property has no name", cure="leave it out")
        self._names[name] = f"{escape(name, '1.2')}:"
        return self._names[name]


def _chosen(name: str, value: str, said: Said) -> str:
    """Return the value of a header that a column may say as well."""
    if name == "destination" and bare(value) != said.address:
        return said.address
    if name == "priority" and said.priority is not None and value != str(said.priority):
        return str(said.priority)
    if name == "expires" and said.expires_ms is not None:
        return value if _number(value) == said.expires_ms else str(said.expires_ms)
    if name == "persistent" and said.is_persistent:
        return "true"
    return value


def _missing(found: dict[str, str], said: Said) -> list[str]:
    """Return the lines of what only columns say, and note them."""
    added: dict[str, str] = {}
    if "destination" not in found:
        added["destination"] = said.address
    if "persistent" not in found and said.is_persistent:
        added["persistent"] = "true"
    if "priority" not in found and said.priority not in (None, PRIORITY_USUAL):
        added["priority"] = str(said.priority)
    if "expires" not in found and said.expires_ms:
        added["expires"] = str(said.expires_ms)
    found |= added
    return [f"{name}:{escape(value, '1.2')}\n" for name, value in added.items()]


def _judged(octets: bytes, found: dict[str, str]) -> Properties:
    text = found.get("priority", "4")
    if text not in tuple("0123456789"):
        raise ImportRefused(
            "a message has a wrong priority", measured=ascii(text[:40]), allowed="0 to 9"
        )
    is_timed = any(_number(found.get(name, "")) for name in ("expires", "AMQ_SCHEDULED_TIME"))
    is_special = text != "4" or "JMSXGroupID" in found or is_timed
    kind = found.get("destination-type", "").upper()
    if not kind and found["destination"].startswith("/topic/"):
        kind = "MULTICAST"
    return Properties(octets, int(text), is_special, kind if kind in _KINDS else "")


def _number(text: str) -> int:
    """Return milliseconds since 1970; 0 for what is no such number, as a broker reads it."""
    return int(text) if _NUMBER.fullmatch(text) and int(text) <= _TIME_MS_MAX else 0
