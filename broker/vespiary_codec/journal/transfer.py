"""Messages on their way from one broker to another, as one batch of bytes.

Owns the form: what stands in an ADD record of the journal, and how often the message was delivered,
so nothing of a message is lost between two journals. Pure: no I/O. Used by `engine.transfers` and
`app`.

    batch    magic "VSPT", u16 version, u16 zero, u32 number of messages, the messages, u32 CRC32C
    message  u32 properties length, u32 body length, u64 sequence, u32 deliveries, u8 flags,
             u8 protocol, u8 priority, u8 zero; then properties and body
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from vespiary_codec.checksum import crc32c
from vespiary_spec.errors import RemoteProtocolError

MEDIA_TYPE: Final = "application/vnd.vespiary.messages"
_MAGIC: Final = b"VSPT"
_VERSION: Final = 1
_BATCH: Final = struct.Struct("<4sHHI")
_MESSAGE: Final = struct.Struct("<IIQIBBBB")
_CRC: Final = struct.Struct("<I")
OVERHEAD_BYTES: Final = _MESSAGE.size


class TransferFlag(enum.IntFlag):
    """What is true of a message."""

    JOURNALLED = 1
    ESCAPED = 2
    LARGE = 4
    SPECIAL = 8


class TransferMessage(NamedTuple):
    """A message between two brokers.

    Attributes:
        sequence: Its sequence in the queue that it comes from.
        properties: Its header lines as stored.
        body: Its body; of a large one the reference of its sender, with length and checksum of what
            follows by itself.
        flags: See `TransferFlag`.
        protocol: Of its sender.
        priority: 0 to 9.
        deliveries: How often it was given out and came back.
    """

    sequence: int
    properties: bytes
    body: bytes
    flags: int
    protocol: int
    priority: int
    deliveries: int

    @property
    def size_bytes(self) -> int:
        """Bytes of properties and body."""
        return len(self.properties) + len(self.body)


def encode_batch(messages: Iterable[TransferMessage]) -> bytes:
    """Return messages as one batch."""
    parts = [b""]
    count = 0
    for one in messages:
        count += 1
        parts.append(
            _MESSAGE.pack(
                len(one.properties),
                len(one.body),
                one.sequence,
                one.deliveries,
                one.flags,
                one.protocol,
                one.priority,
                0,
            )
        )
        parts += (one.properties, one.body)
    parts[0] = _BATCH.pack(_MAGIC, _VERSION, 0, count)
    data = b"".join(parts)
    return data + _CRC.pack(crc32c(data))


def decode_batch(data: bytes) -> list[TransferMessage]:
    """Return the messages of a batch.

    Raises:
        RemoteProtocolError: It is none, is of another version, or was damaged on its way.
    """
    if len(data) < _BATCH.size + _CRC.size:
        raise RemoteProtocolError("a batch of messages is too short", measured=f"{len(data)} bytes")
    magic, version, _, count = _BATCH.unpack_from(data, 0)
    if magic != _MAGIC or version != _VERSION:
        raise RemoteProtocolError(
            "a batch of messages has another form",
            measured=f"{magic!r} version {version}",
            allowed=f"{_MAGIC!r} version {_VERSION}",
            cure="have both brokers run the same version",
        )
    end = len(data) - _CRC.size
    found = crc32c(data[:end])
    if found != _CRC.unpack_from(data, end)[0]:
        raise RemoteProtocolError("a batch of messages was damaged on its way")
    messages = []
    at = _BATCH.size
    for _ in range(count):
        if at + _MESSAGE.size > end:
            raise _cut(at, end)
        properties, body, sequence, deliveries, flags, protocol, priority, _ = _MESSAGE.unpack_from(
            data, at
        )
        at += _MESSAGE.size
        if at + properties + body > end:
            raise _cut(at, end)
        messages.append(
            TransferMessage(
                sequence,
                data[at : at + properties],
                data[at + properties : at + properties + body],
                flags,
                protocol,
                priority,
                deliveries,
            )
        )
        at += properties + body
    if at != end:
        raise _cut(at, end)
    return messages


def _cut(at: int, end: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        "a batch of messages does not end where it says", measured=at, allowed=str(end)
    )
