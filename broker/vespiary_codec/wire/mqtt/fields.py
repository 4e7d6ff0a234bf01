"""The fields of a packet, one after the other.

Owns how numbers, texts, bytes and properties stand on the wire, to be read. Must never know what a
packet is made of. Called by `bodies`.

Source: MQTT 5.0 (OASIS, 2019) §1.5 and §2.2.2.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.wire.mqtt.errors import LimitExceeded, RemoteProtocolError, Violation
from vespiary_codec.wire.mqtt.limits import MqttLimits
from vespiary_codec.wire.mqtt.packet_types import PacketType
from vespiary_codec.wire.mqtt.properties import (
    RULES,
    Kind,
    Properties,
    Property,
    Rule,
    Value,
    may_repeat,
)
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode

_VARIABLE_BYTES: Final = 4
_OF_BYTES: Final = {Kind.BYTE: 1, Kind.TWO_BYTES: 2, Kind.FOUR_BYTES: 4}


class Fields:
    """Reads the fields of one packet. Owner: the decoder.

    Args:
        data: The packet behind its fixed header.
        limits: Bounds of what is in it.
    """

    def __init__(self, data: bytes, limits: MqttLimits) -> None:
        self._data = data
        self._limits = limits
        self._at = 0

    @property
    def left_bytes(self) -> int:
        """How much was not read yet."""
        return len(self._data) - self._at

    def number(self, size_bytes: int, what: str) -> int:
        """Read a number, most significant byte first."""
        return int.from_bytes(self._take(size_bytes, what), "big")

    def text(self, what: str) -> str:
        """Read a text with its length.

        Raises:
            RemoteProtocolError: It is cut off, no UTF-8, or has a NUL.
        """
        try:
            found = self.binary(what).decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(
                Violation.NOT_UTF8, f"{what} is not valid UTF-8 at byte {error.start}"
            ) from None
        if "\0" in found:
            raise RemoteProtocolError(
                Violation.NUL_IN_STRING, f"{what} has a NUL at character {found.index(chr(0))}"
            )
        return found

    def binary(self, what: str) -> bytes:
        """Read bytes with their length."""
        return self._take(self.number(2, f"the length of {what}"), what)

    def rest(self) -> bytes:
        """Read all that is left."""
        return self._take(self.left_bytes, "the rest")

    def variable(self, what: str, violation: Violation) -> int:
        """Read a number of one to four bytes, least significant first, seven bits each."""
        value = 0
        for place in range(_VARIABLE_BYTES):
            octet = self.number(1, what)
            value |= (octet & 0x7F) << (7 * place)
            if not octet & 0x80:
                return value
        raise RemoteProtocolError(violation, f"{what} goes on behind its fourth byte")

    def end(self, what: str) -> None:
        """Refuse a packet with more in it than it should have."""
        if self.left_bytes:
            raise RemoteProtocolError(
                Violation.TRAILING_BYTES, f"{self.left_bytes} bytes stand behind the end of {what}"
            )

    def _take(self, size_bytes: int, what: str) -> bytes:
        if size_bytes > self.left_bytes:
            raise RemoteProtocolError(
                Violation.TRUNCATED_FIELD,
                f"{what} needs {size_bytes} bytes, and the packet has {self.left_bytes} more",
            )
        begin, self._at = self._at, self._at + size_bytes
        return self._data[begin : self._at]

    # --- properties -------------------------------------------------------------------------------

    def properties(self, packet: PacketType, *, in_will: bool = False) -> Properties:
        """Read properties with their length.

        Args:
            packet: Type of the packet.
            in_will: Whether they are those of a will.

        Raises:
            LimitExceeded: There are too many user properties.
            RemoteProtocolError: One is unknown, not allowed here, there twice, or has a value that
                it cannot have; or the length is not theirs.
        """
        size = self.variable("the length of the properties", Violation.PROPERTIES_LENGTH)
        if size > self.left_bytes:
            raise RemoteProtocolError(
                Violation.PROPERTIES_LENGTH,
                f"the properties need {size} bytes, and the packet has {self.left_bytes} more",
            )
        own = Fields(self._data[self._at : self._at + size], self._limits)
        self._at += size
        found: Properties = {}
        while own.left_bytes:
            own._property(found, packet, in_will)
        _check_pairs(found)
        return found

    def _property(self, found: Properties, packet: PacketType, in_will: bool) -> None:
        number = self.variable("a property identifier", Violation.UNKNOWN_PROPERTY)
        try:
            name = Property(number)
        except ValueError:
            raise RemoteProtocolError(
                Violation.UNKNOWN_PROPERTY, f"there is no property 0x{number:02x}"
            ) from None
        rule = RULES[name]
        place = "a will" if in_will else packet.name
        if not (rule.in_will if in_will else packet in rule.packets):
            raise RemoteProtocolError(
                Violation.PROPERTY_NOT_ALLOWED, f"{place} has no property {_spoken(name)}",
                ReasonCode.PROTOCOL_ERROR,
            )  # fmt: skip
        if name is Property.USER_PROPERTY:
            self._user_property(found)
            return
        value = self._value(name, rule)
        if name is Property.SUBSCRIPTION_IDENTIFIER:
            assert isinstance(value, int)
            listed = found.setdefault(name, [])
            assert isinstance(listed, list)
            if listed and not may_repeat(name, packet):
                raise _repeated(name, place)
            listed.append(value)  # type: ignore[arg-type]
            return
        if name in found:
            raise _repeated(name, place)
        found[name] = value

    def _user_property(self, found: Properties) -> None:
        pair = (self.text("the name of a user property"), self.text("the value of a user property"))
        pairs = found.setdefault(Property.USER_PROPERTY, [])
        assert isinstance(pairs, list)
        if len(pairs) >= self._limits.user_properties:
            raise LimitExceeded(
                Violation.USER_PROPERTIES,
                f"a packet has more than {self._limits.user_properties} user properties",
                ReasonCode.QUOTA_EXCEEDED,
            )
        pairs.append(pair)  # type: ignore[arg-type]

    def _value(self, name: Property, rule: Rule) -> Value:
        what = f"the property {_spoken(name)}"
        if rule.kind is Kind.TEXT:
            return self.text(what)
        if rule.kind is Kind.BINARY:
            return self.binary(what)
        if rule.kind is Kind.VARIABLE:
            value = self.variable(what, Violation.PROPERTY_VALUE)
        else:
            value = self.number(_OF_BYTES[rule.kind], what)
        if value < rule.least or (rule.most is not None and value > rule.most):
            allowed = (
                f"at least {rule.least}" if rule.most is None else f"{rule.least} to {rule.most}"
            )
            raise RemoteProtocolError(
                Violation.PROPERTY_VALUE, f"{what} is {value}; it must be {allowed}",
                ReasonCode.PROTOCOL_ERROR,
            )  # fmt: skip
        return value


def _check_pairs(found: Properties) -> None:
    """Refuse data of an authentication that names no method (MQTT 5.0 §3.1.2.11.10)."""
    if Property.AUTHENTICATION_DATA in found and Property.AUTHENTICATION_METHOD not in found:
        raise RemoteProtocolError(
            Violation.PROPERTY_NOT_ALLOWED,
            "authentication data stands without an authentication method",
            ReasonCode.PROTOCOL_ERROR,
        )


def _repeated(name: Property, place: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        Violation.REPEATED_PROPERTY, f"{place} has the property {_spoken(name)} twice",
        ReasonCode.PROTOCOL_ERROR,
    )  # fmt: skip


def _spoken(name: Property) -> str:
    return name.name.lower().replace("_", " ")
