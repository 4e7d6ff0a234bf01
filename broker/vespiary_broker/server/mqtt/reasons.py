"""Errors of the broker as MQTT says them: reason codes, and the words beside them.

Owns the table. Called by the handler and by whoever answers a packet with a refusal.
"""

from __future__ import annotations

from vespiary_codec.wire.mqtt import Property, Puback, Pubrec, Suback, Version, encode
from vespiary_codec.wire.mqtt import RemoteProtocolError as MqttError
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode
from vespiary_spec.errors import (
    AddressFull,
    InvalidSelector,
    JournalFull,
    LimitExceeded,
    LoginBusy,
    LoginRefused,
    NotPermitted,
    RemoteProtocolError,
    VespiaryError,
)


class KeepAliveExceeded(LimitExceeded):
    """A client was silent for longer than it said."""

    code = LimitExceeded.code


def reason_of(error: VespiaryError) -> ReasonCode:
    """Return the reason code for an error.

    Args:
        error: What a client did, or what it met.
    """
    if isinstance(error, MqttError):
        return error.reason_code
    if isinstance(error, KeepAliveExceeded):
        return ReasonCode.KEEP_ALIVE_TIMEOUT
    if isinstance(error, LoginBusy):
        return ReasonCode.SERVER_UNAVAILABLE
    if isinstance(error, LoginRefused):
        return ReasonCode.BAD_USER_NAME_OR_PASSWORD
    if isinstance(error, NotPermitted):
        return ReasonCode.NOT_AUTHORIZED
    if isinstance(error, AddressFull | JournalFull | LimitExceeded):
        return ReasonCode.QUOTA_EXCEEDED
    if isinstance(error, RemoteProtocolError | InvalidSelector):
        return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    return ReasonCode.UNSPECIFIED_ERROR


def sentence_for(error: VespiaryError) -> str:
    """Return an error as the sentence of a reason string."""
    if isinstance(error, MqttError):
        return error.reason
    return str(error).removesuffix(f" [{error.code}]")


def explained(
    packet: Puback | Pubrec | Suback, sentence: str, bytes_max: int, version: Version
) -> bytes:
    """Return a packet as bytes, with a reason string if its client wants one and takes it.

    Args:
        packet: The packet; has no properties.
        sentence: The reason; empty for none.
        bytes_max: Largest packet that may have one; 0: none may (MQTT 5.0 §3.1.2.11.7).
        version: That of the client.
    """
    if sentence and bytes_max:
        packet.properties = {Property.REASON_STRING: sentence}
        data = encode(packet, version)
        if len(data) <= bytes_max:
            return data
        packet.properties = {}
    return encode(packet, version)
