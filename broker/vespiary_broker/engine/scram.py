"""SCRAM-SHA-256 from the server's side (RFC 5802, RFC 7677): two messages in, two out.

Owns one exchange, in bytes, whatever protocol carries them. What the messages mean is scramp's; who
comes in, and what failures cost, is `logins`'. An unknown user gets a challenge like
everybody else, and fails with the same sentence. Channel binding is not offered: a client that
insists on it is refused. Nothing here takes milliseconds: the client does the hashing. Called by
`mechanisms`; owner: the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.logins import Logins, Principal
from vespiary_broker.engine.users import MECHANISM, User
from vespiary_spec.errors import LoginRefused

if TYPE_CHECKING:
    from scramp import ScramServer

MESSAGE_BYTES_MAX: Final = 4096
"""A user name of 200 characters, escaped, with a nonce takes less than half of it."""


class ScramExchange:
    """One client's exchange.

    Args:
        logins: Decides who comes in.
        peer: Address of the client's machine.
    """

    def __init__(self, logins: Logins, peer: str) -> None:
        self._logins = logins
        self._peer = peer
        self._name = ""
        self._user: User | None = None
        self._is_known = False
        self._server: ScramServer | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the client's first message has come."""
        return self._server is not None

    @property
    def name(self) -> str:
        """The user that the client names; empty before its first message."""
        return self._name

    def first(self, message: bytes) -> bytes:
        """Take the client's first message; return the challenge.

        Args:
            message: As it came.

        Raises:
            LoginRefused: It is no such message, or nobody may log in.
        """
        from scramp import ScramException, ScramMechanism

        def find(name: str) -> tuple[bytes, bytes, bytes, int]:
            # Not looked up in here: what is raised here loses its kind on the way out.
            self._name = name
            return bytes(32), bytes(32), bytes(32), 4096

        text = self._text(message)
        try:
            ScramMechanism(MECHANISM).make_server(find).set_client_first(text)
        except ScramException as error:
            raise self._misunderstood(error) from error
        user, self._is_known = self._logins.find(self._name)
        keys = user.salt, user.stored_key, user.server_key, user.iterations
        try:
            server = ScramMechanism(MECHANISM).make_server(lambda _: keys)
            server.set_client_first(text)
            challenge: str = server.get_server_first()
        except ScramException as error:
            raise self._misunderstood(error) from error
        self._user, self._server = user, server
        return challenge.encode()

    def final(self, message: bytes, now_s: float) -> tuple[Principal, bytes]:
        """Take the client's last message.

        Args:
            message: As it came.
            now_s: A monotonic clock, in seconds.

        Returns:
            Who it is, and the message by which the client knows that this is its server.

        Raises:
            LoginRefused: The proof is wrong, or there is no such user: one sentence for both.
        """
        from scramp import ScramException

        server, user = self._server, self._user
        assert server is not None
        assert user is not None
        text = self._text(message)
        try:
            server.set_client_final(text)
            signature: str = server.get_server_final()
        except ScramException:
            raise self._logins.failed(self._name, self._peer, now_s) from None
        current = self._logins.current(user) if self._is_known else None
        if current is None:
            raise self._logins.failed(self._name, self._peer, now_s)
        return self._logins.let_in(current, self._peer), signature.encode()

    def _text(self, message: bytes) -> str:
        if len(message) > MESSAGE_BYTES_MAX:
            raise self._logins.refuse(
                f"the client's {MECHANISM} message has {len(message)} bytes; at most "
                f"{MESSAGE_BYTES_MAX} are allowed"
            )
        try:
            return message.decode()
        except UnicodeDecodeError as error:
            raise self._logins.refuse(f"the client's {MECHANISM} message is no UTF-8") from error

    def _misunderstood(self, error: Exception) -> LoginRefused:
        return self._logins.refuse(f"the client's {MECHANISM} message is not understood: {error}")
