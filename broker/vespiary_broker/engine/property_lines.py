"""Header lines as the journal stores them: reading, dropping and adding some by name.

What a protocol keeps behind the lines (`vespiary_codec.wire.stomp.properties`) is never read here
and stays where it is.

Owns no form of its own: that is `vespiary_codec.wire.stomp.properties`. Names here are plain ASCII,
so that escapes never matter to them. Called by what the engine adds to messages (times, dead
letters).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vespiary_codec.wire.stomp.escapes import escape, unescape
from vespiary_codec.wire.stomp.properties import NATIVE


def value_of(properties: bytes, name: bytes) -> str | None:
    """Return the value of the first header with a name; None if there is none.

    Args:
        properties: Header lines, escaped as in STOMP 1.2.
        name: Name of the header.
    """
    start = name + b":"
    if properties.startswith(start):
        at = len(start)
    else:
        at = properties.find(b"\n" + start, 0, _end_of(properties))
        if at < 0:
            return None
        at += len(start) + 1
    value = properties[at : properties.find(b"\n", at)].decode()
    return unescape(value, "1.2") if "\\" in value else value


def without(properties: bytes, names: Collection[bytes]) -> bytes:
    """Return header lines without those of some names.

    Args:
        properties: Header lines.
        names: Names of the headers to leave out.
    """
    # Not splitlines(): values may hold other ends of lines, escaped or not.
    end = _end_of(properties)
    lines = properties[:end].split(b"\n")[:-1]
    kept = b"".join(line + b"\n" for line in lines if line.partition(b":")[0] not in names)
    return kept + properties[end:]


def with_lines(properties: bytes, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return properties with some headers behind the others.

    Args:
        properties: Header lines.
        headers: Names and values.
    """
    end = _end_of(properties)
    return properties[:end] + lines_of(headers) + properties[end:]


def is_escaped(properties: bytes) -> bool:
    """Whether there are escapes in header lines."""
    return properties.find(b"\\", 0, _end_of(properties)) >= 0


def _end_of(properties: bytes) -> int:
    """Return where the lines end."""
    end = properties.find(NATIVE)
    return len(properties) if end < 0 else end


def lines_of(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as lines, escaped.

    Args:
        headers: Names and values.
    """
    return "".join(
        f"{escape(name, '1.2')}:{escape(value, '1.2')}\n" for name, value in headers
    ).encode()
