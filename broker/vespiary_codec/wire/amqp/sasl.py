"""The frames of the SASL layer.

Owns their fields. Must never parse or print bytes, nor know a mechanism. Used by `frames` and by
its callers.

Source: AMQP 1.0 (OASIS, 2012) §5.3.
"""

from __future__ import annotations

from enum import IntEnum

from vespiary_codec.wire.amqp.composites import SYMBOLS, composite, of


class SaslCode(IntEnum):
    """Outcomes of a login."""

    OK = 0
    AUTH = 1
    SYS = 2
    SYS_PERM = 3
    SYS_TEMP = 4


@composite(0x40, "sasl-mechanisms")
class SaslMechanisms:
    """What a server offers."""

    sasl_server_mechanisms: tuple[str, ...] = of(SYMBOLS)


@composite(0x41, "sasl-init")
class SaslInit:
    """What a client chose, and its first response."""

    mechanism: str = of("symbol", mandatory=True)
    initial_response: bytes | None = of("binary")
    hostname: str | None = of("string")

    def __repr__(self) -> str:
        return f"SaslInit(mechanism={self.mechanism!r}, hostname={self.hostname!r})"


@composite(0x42, "sasl-challenge")
class SaslChallenge:
    """What a server asks."""

    challenge: bytes = of("binary", mandatory=True)

    def __repr__(self) -> str:
        return "SaslChallenge(…)"


@composite(0x43, "sasl-response")
class SaslResponse:
    """What a client answers."""

    response: bytes = of("binary", mandatory=True)

    def __repr__(self) -> str:
        return "SaslResponse(…)"


@composite(0x44, "sasl-outcome")
class SaslOutcome:
    """How it ended: `SaslCode`, and the server's last word."""

    code: int = of("ubyte", mandatory=True)
    additional_data: bytes | None = of("binary")


SASL_FRAMES = (SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)
