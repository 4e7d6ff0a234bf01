"""The mechanisms by which clients log in: AMQP's SASL, MQTT 5's enhanced authentication.

Owns the table of mechanisms, and one client's way through the one that it chose, as messages in and
out. Must never hash a password: a `Check` is for the caller to make, away from the event loop
(`server.sasl` does). Passwords are neither kept nor logged. Called by the protocols' sessions;
owner: the event loop.

    EXTERNAL       the certificate of the client's TLS says who it is
    SCRAM-SHA-256  a proof that the client knows its password, which is not sent (RFC 7677)
    PLAIN          user name and password as they are (RFC 4616)
    ANONYMOUS      nothing (RFC 4505); where clients may come in without a login
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from vespiary_broker.engine.logins import Check, Logins, Principal
from vespiary_broker.engine.scram import ScramExchange
from vespiary_spec.settings import SaslMechanism

RESPONSE_BYTES_MAX: Final = 4096
"""Bytes of one message of a client, whatever the mechanism."""

ByCertificate = Callable[[], Principal]
"""Returns whose certificate the client showed; raises LoginRefused if it is nobody's."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to send more.

    Attributes:
        data: What it is sent; may be empty.
    """

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The client is in.

    Attributes:
        principal: Who it is.
        data: What it is sent with the good news; empty for nothing.
    """

    principal: Principal
    data: bytes = b""


Outcome = Challenge | Check | Welcome


class Exchange(Protocol):
    """One client's way through a mechanism; over with a `Welcome` or with an error."""

    @property
    def guess(self) -> tuple[str, str] | None:
        """Name and peer of a login that the next message decides without a `Check`.

        It may have to wait (`Logins.pause_s`); None: it need not.
        """

    def respond(self, data: bytes | None, now_s: float) -> Outcome:
        """Take what the client sent.

        Args:
            data: Its message; None if it sent none, with the choice of the mechanism.
            now_s: A monotonic clock, in seconds.

        Returns:
            What to do now. A `Check` is to be made, and its result given to `checked`.

        Raises:
            LoginRefused: No entry, and why.
        """

    def checked(self, check: Check, *, is_good: bool, now_s: float) -> Welcome:
        """Take the result of a check.

        Raises:
            LoginRefused: The password was wrong, or there is no such user: one sentence for both.
        """


class Mechanisms:
    """The mechanisms of one listener.

    Args:
        logins: Decides who comes in.
        wanted: What may be offered, the best first.
    """

    def __init__(
        self, logins: Logins, wanted: Iterable[SaslMechanism] = tuple(SaslMechanism)
    ) -> None:
        self._logins = logins
        self._wanted = tuple(wanted)

    def offered(self, *, has_certificate: bool = False) -> tuple[str, ...]:
        """Return the names of what a client may choose from, the best first.

        Args:
            has_certificate: Whether its TLS has shown a certificate that was verified.
        """
        usable = {
            SaslMechanism.EXTERNAL: has_certificate,
            SaslMechanism.SCRAM_SHA_256: not self._logins.is_open,
            SaslMechanism.PLAIN: True,
            SaslMechanism.ANONYMOUS: self._logins.is_login_optional,
        }
        return tuple(each.value for each in self._wanted if usable[each])

    def begin(
        self, mechanism: str, peer: str, by_certificate: ByCertificate | None = None
    ) -> Exchange:
        """Begin with what a client chose.

        Args:
            mechanism: Its choice, as it sent it.
            peer: Address of its machine.
            by_certificate: Says whose certificate it has; None: it has none.

        Raises:
            LoginRefused: It was not offered that.
        """
        offered = self.offered(has_certificate=by_certificate is not None)
        if mechanism not in offered:
            error = self._logins.refuse(f"the mechanism {mechanism[:40]!a} is not offered here")
            error.allowed = ", ".join(offered)
            raise error
        if mechanism == SaslMechanism.EXTERNAL and by_certificate is not None:
            return _External(self._logins, by_certificate)
        if mechanism == SaslMechanism.SCRAM_SHA_256:
            return _Scram(self._logins, peer)
        if mechanism == SaslMechanism.PLAIN:
            return _Plain(self._logins, peer)
        return _Anonymous(self._logins)


class _OneStep:
    """A mechanism that knows all with the client's first message."""

    def __init__(self, logins: Logins) -> None:
        self._logins = logins

    @property
    def guess(self) -> tuple[str, str] | None:
        return None

    def checked(self, check: Check, *, is_good: bool, now_s: float) -> Welcome:
        return Welcome(self._logins.finish(check, is_good=is_good, now_s=now_s))

    def _check_size(self, data: bytes) -> None:
        if len(data) > RESPONSE_BYTES_MAX:
            raise self._logins.refuse(
                f"the client's answer has {len(data)} bytes; at most {RESPONSE_BYTES_MAX} are "
                "allowed"
            )


class _Plain(_OneStep):
    def __init__(self, logins: Logins, peer: str) -> None:
        super().__init__(logins)
        self._peer = peer

    def respond(self, data: bytes | None, now_s: float) -> Outcome:
        if data is None:
            return Challenge()
        self._check_size(data)
        parts = _texts(data)
        if len(parts) != 3:
            raise self._logins.refuse(
                "the client's PLAIN answer is none: three parts of UTF-8 are wanted"
            )
        acts_as, name, password = parts
        if acts_as not in ("", name):
            raise self._logins.refuse("nobody may log in to act as somebody else")
        outcome = self._logins.begin(name, password, self._peer, now_s)
        return Welcome(outcome) if isinstance(outcome, Principal) else outcome


def _texts(data: bytes) -> tuple[str, ...]:
    """Return the parts of a PLAIN answer; none if they are no text."""
    try:
        return tuple(part.decode() for part in data.split(b"\0"))
    except UnicodeDecodeError:  # it has the password in it, so it is no error's cause
        return ()


class _Scram(_OneStep):
    def __init__(self, logins: Logins, peer: str) -> None:
        super().__init__(logins)
        self._peer = peer
        self._exchange = ScramExchange(logins, peer)

    @property
    def guess(self) -> tuple[str, str] | None:
        return (self._exchange.name, self._peer) if self._exchange.is_begun else None

    def respond(self, data: bytes | None, now_s: float) -> Outcome:
        if data is None and not self._exchange.is_begun:
            return Challenge()
        if not self._exchange.is_begun:
            return Challenge(self._exchange.first(data or b""))
        return Welcome(*self._exchange.final(data or b"", now_s))


class _External(_OneStep):
    def __init__(self, logins: Logins, by_certificate: ByCertificate) -> None:
        super().__init__(logins)
        self._by_certificate = by_certificate

    def respond(self, data: bytes | None, now_s: float) -> Outcome:  # noqa: ARG002
        if data is None:
            return Challenge()
        self._check_size(data)
        principal = self._by_certificate()
        if data not in (b"", principal.name.encode()):
            raise self._logins.refuse("nobody may log in to act as somebody else")
        return Welcome(principal)


class _Anonymous(_OneStep):
    def respond(self, data: bytes | None, now_s: float) -> Outcome:  # noqa: ARG002
        self._check_size(data or b"")  # what it says of itself is not believed, nor kept
        return Welcome(self._logins.without_login())
